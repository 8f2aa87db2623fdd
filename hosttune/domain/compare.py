"""Comparison of two values of facts, field by field; the caller names the fields that may differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosttune.model.values import Value

LeftOpen = Mapping[type[Value], tuple[str, ...]]


def compare(want: object, found: object, left_open: LeftOpen, at: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield (path, wanted, found) of each difference; a path is "cpu.topology.cores" or "controllers[2].port".

    Values are compared field by field, lists of equal length item by item, all else as a whole. `left_open`: by class,
    the fields that may have any value if the wanted value is None.
    """
    if isinstance(want, Value) and type(want) is type(found):
        may_differ = left_open.get(type(want), ())
        for name in want.__struct_fields__:
            field = getattr(want, name)
            if field is not None or name not in may_differ:
                yield from compare(field, getattr(found, name), left_open, f"{at}.{name}" if at else name)
    elif isinstance(want, tuple) and isinstance(found, tuple) and len(want) == len(found):
        for n, (one, other) in enumerate(zip(want, found, strict=True)):
            yield from compare(one, other, left_open, f"{at}[{n}]")
    elif want != found:
        yield at, want, found
