"""What the texts on runs between hosts share: the verdict and faults first, long lists cut short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from hosttune.report.validation_text import prose

if TYPE_CHECKING:
    from rich.console import Console

MOST_FAULTS = 40
MOST_LINES = 20
_STYLES = {"fail": "error", "unknown": "warn", "warn": "warn"}


class _Host(Protocol):
    @property
    def host(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def why(self) -> str | None: ...


class _Fault(Protocol):
    @property
    def words(self) -> str: ...


class _Report(Protocol):
    @property
    def verdict(self) -> str: ...
    @property
    def stopped(self) -> str | None: ...
    @property
    def faults(self) -> Sequence[_Fault]: ...
    @property
    def hosts(self) -> Sequence[_Host]: ...


def print_top(report: _Report, headline: str, occasion: Iterable[str], console: Console) -> None:
    """Print the verdict, what was measured, why it stopped, and the faults."""
    prose(headline, 0, console, _STYLES.get(report.verdict, "strong"))
    for line in occasion:
        prose(line, 0, console, "dim")
    if report.stopped:
        prose(f"stopped: {report.stopped}", 0, console, "error", hang=2)
    for fault in report.faults[:MOST_FAULTS]:
        prose(fault.words, 2, console, "error", hang=2)
    if len(report.faults) > MOST_FAULTS:
        prose(f"and {len(report.faults) - MOST_FAULTS} more; -o json has all", 2, console)


def print_rest(lines: Iterable[str], console: Console) -> None:
    """Print what is bad or unknown, below the figures."""
    for line in lines:
        prose(line, 0, console, "warn", hang=2)


def unmeasured_hosts(report: _Report) -> Iterator[str]:
    """Yield a line for each host that was not measured."""
    for host in report.hosts:
        if host.outcome != "ok":
            yield f"host {host.host}: not measured: {host.outcome}: {host.why}"


def first_lines(lines: Sequence[str], what: str) -> Iterator[str]:
    """Yield the first lines, and how many more there are of what."""
    yield from lines[:MOST_LINES]
    if len(lines) > MOST_LINES:
        yield f"and {len(lines) - MOST_LINES} more {what}; -o json has all"
