"""A trait of settings whose values are too long to show: they say in what two values differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Explains(ABC):
    """A setting that compares its values itself, for people."""

    @abstractmethod
    def differences(self, live: Any, want: Any) -> tuple[str, ...]:
        """In what the live value is not the wanted one, one text a difference; empty where they mean the same."""
