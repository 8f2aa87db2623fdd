"""A sequence whose items are generated on demand and kept. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class LazySequence(Generic[T]):
    """The items of a source, each generated once."""

    def __init__(self, source: Iterator[T]) -> None:
        self._source = source
        self._kept: list[T] = []

    def get(self, number: int) -> T | None:
        """Return the item of this number, from 0 on; None after the last."""
        while len(self._kept) <= number:
            try:
                self._kept.append(next(self._source))
            except StopIteration:
                return None
        return self._kept[number]

    def __iter__(self) -> Iterator[T]:
        """Yield every item."""
        number = 0
        while (item := self.get(number)) is not None:
            yield item
            number += 1
