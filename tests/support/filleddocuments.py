"""A document of any kind with every field filled, made from its type: for tests that change each field in turn."""

from __future__ import annotations

from typing import Any

from msgspec import inspect

NAMED = {
    "address": "0000:41:00.0", "peer_address": "10.0.0.2", "sha256": "a" * 64, "cpus": "0-3", "against": "rate",
}  # fmt: skip


def filled(kind: Any, name: str = "", depth: int = 0) -> Any:
    """A value of a type with one part in each list and mapping, the plainest that the type takes."""
    shape = kind if isinstance(kind, inspect.Type) else inspect.type_info(kind)
    if isinstance(shape, inspect.UnionType):
        return filled(next(one for one in shape.types if not isinstance(one, inspect.NoneType)), name, depth)
    if isinstance(shape, inspect.StructType):
        values = {one.encode_name: _field(one, depth) for one in shape.fields if depth < 12 or one.required}
        return values | ({shape.tag_field: shape.tag} if shape.tag_field else {})
    if isinstance(shape, inspect.VarTupleType | inspect.ListType | inspect.CollectionType):
        return [filled(shape.item_type, name, depth + 1)]
    if isinstance(shape, inspect.TupleType):
        return [filled(one, name, depth + 1) for one in shape.item_types]
    if isinstance(shape, inspect.DictType):
        return {"x": filled(shape.value_type, name, depth + 1)}
    if isinstance(shape, inspect.LiteralType):
        return shape.values[0]
    if isinstance(shape, inspect.BoolType):
        return True
    if isinstance(shape, inspect.IntType | inspect.FloatType | inspect.AnyType):
        return 1
    return "2026-01-31T12:00:00+00:00" if name.endswith(("_at", "since", "started", "at")) else NAMED.get(name, "x")


def _field(field: Any, depth: int) -> Any:
    if isinstance(field.default, str) and field.default:
        return field.default
    return filled(field.type, field.name, depth + 1)
