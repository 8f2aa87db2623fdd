"""The result document as text: a verdict, what became of each action, what a person must do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hosttune.model.result import Drift, Entry, Result
from hosttune.report.branch import count, draw_rows, say, wrap

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_VALUE = 60  # characters of a value in a row
_STYLES = {"failed": "error", "stuck": "error", "conflict": "warn", "clamped": "warn", "ignored": "warn"}
_ORDER = ("failed", "stuck", "conflict", "clamped", "ignored", "reverted", "done", "planned", "pending", "already")


class Wanted(Protocol):
    """What the prompt shows of a step (see hosttune.transaction.steps.Prepared)."""

    @property
    def step(self) -> Any:
        """The step."""

    @property
    def live(self) -> Any:
        """Its value now."""


def print_result(result: Result, console: Console) -> None:
    """Print a result: of a rehearsal every write, else the actions that changed or did not come out as wanted."""
    for line in wrap(verdict(result), console.width):
        say(line, console, "strong")
    shown = [entry for entry in result.entries if entry.outcome != "already"]
    for entry in shown:
        _print_entry(entry, console)
    already = len(result.entries) - len(shown)
    if already:
        say(f"  {count(already, 'action')} already as wanted", console, "dim")
    _print_drift(result.drift, console)
    if result.writes:
        say("\nwhat would be written, in order", console, "strong")
        for change in result.writes:
            for line in change.split("\n"):
                say(f"  {line}", console)
    for note in result.notes:
        for line in wrap(note, console.width):
            say(line, console, "warn")
    if result.reboot_required:
        say("a reboot is required: what is staged takes effect then", console, "warn")
    if result.open_transaction:
        opened = result.open_transaction
        text = f"transaction {opened.number} is unfinished ({opened.state}): hosttune recover settles it"
        say(text, console, "error")
        say(f"  its journal: {opened.journal}", console)


def verdict(result: Result) -> str:
    """The result in one line."""
    if result.verb == "status":
        force = count(len(result.entries), "setting") if result.entries else "nothing"
        return f"{result.host or 'this host'}: {force} in force, {len(result.drift)} drifted"
    counted = {word: sum(1 for entry in result.entries if entry.outcome == word) for word in _ORDER}
    facts = [f"{number} {word}" for word, number in counted.items() if number]
    change = "changed" if result.changed else "nothing changed"
    if result.verb == "apply" and not result.changed and (counted["failed"] or counted["reverted"]):
        change = "FAILED, and what was done was taken back"
    return f"{result.verb} on {result.host or 'this host'}: {change}" + (f" ({', '.join(facts)})" if facts else "")


def _print_entry(entry: Entry, console: Console) -> None:
    text = f"{entry.action}: {value_text(entry.before)} -> {value_text(entry.want)}"
    if entry.outcome in ("clamped", "failed", "stuck", "conflict", "ignored"):
        text += f", now {value_text(entry.after)}"
    lead = f"  {entry.outcome:8}  "
    for n, line in enumerate(wrap(text, console.width - len(lead))):
        say((lead if n == 0 else " " * len(lead)) + line, console, _STYLES.get(entry.outcome, "plain"))
    for line in wrap(entry.why, console.width - len(lead) - 2) if entry.why else ():
        say(" " * (len(lead) + 2) + line, console, "dim")


def _print_drift(drift: Sequence[Drift], console: Console) -> None:
    if not drift:
        return
    say("\ndrift: no longer as it was left", console, "strong")
    rows = [
        (one.action, one.why or f"{value_text(one.expected)} was left, now {value_text(one.actual)}") for one in drift
    ]
    draw_rows(rows, console)


def value_text(value: Any) -> str:
    """A value in a row: one line, cut where it is long; nothing is "none"."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping) and any("\n" in str(part) for part in value.values()):
        return f"({count(len(value), 'file')})"
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}: {value_text(part)}" for name, part in value.items())
    elif isinstance(value, tuple | list):
        text = " ".join(map(str, value)) or "none"
    else:
        text = str(value)
    lines = text.splitlines()
    if len(lines) > 1:
        return f"({len(lines)} lines)"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def wanted_lines(todo: Iterable[Wanted]) -> Iterable[str]:
    """What the prompt lists: each setting, its value now and the wanted one."""
    for one in todo:
        yield f"  {one.step.name}: {value_text(one.live)} -> {value_text(one.step.want)}"
