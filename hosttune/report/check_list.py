"""What every check is about, as text for `hosttune validate --list`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from hosttune.report.branch import say, wrap

if TYPE_CHECKING:
    from rich.console import Console

NARROW = 100


class Documented(Protocol):
    """The texts of a check (see hosttune.checks.check.Check)."""

    @property
    def id(self) -> str:
        """Its permanent name."""

    @property
    def title(self) -> str:
        """What it is about."""

    @property
    def subjects(self) -> str:
        """What it looks at."""

    @property
    def why(self) -> str:
        """What it protects against."""

    @property
    def source(self) -> str:
        """The source of its rule."""


def print_checks(checks: Iterable[Documented], console: Console) -> None:
    """Print one paragraph per check: id and title, then subjects, why and source, at most 100 columns."""
    width = min(console.width, NARROW)
    for check in checks:
        say(f"{check.id}  {check.title}", console, "strong")
        for label, text in (("looks at", check.subjects), ("why", check.why), ("source", check.source)):
            for n, line in enumerate(wrap(text, width - 12)):
                say(f"  {label if n == 0 else '':8}  {line}", console, "dim" if label == "source" else "plain")
