"""A trait of settings whose values are too long to show: they describe how two values differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Explains(ABC):
    """A setting that compares its values itself and describes the differences for people."""

    @abstractmethod
    def differences(self, live: Any, want: Any) -> tuple[str, ...]:
        """Return how the live value differs from the wanted one, one text each; empty if they mean the same."""
