"""The result document as text: a verdict, the outcome of each action, and what a person must do."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hosttune.model.result import Drift, Entry, Result
from hosttune.model.values import value_text
from hosttune.report.branch import count, say, wrap
from hosttune.report.values import setting_value, short_lists

if TYPE_CHECKING:
    from rich.console import Console

NOTHING = "none"
LONGEST_VALUE = 60  # characters of a value in a row
SUCCESS, PERSON = 0, 4  # exit codes that change the verdict; any other means that the command failed
_STYLES = {"failed": "error", "stuck": "error", "conflict": "warn", "clamped": "warn", "ignored": "warn"}
_ORDER = (
    "failed", "stuck", "conflict", "clamped", "ignored", "reverted", "done", "planned", "pending", "already",
)  # fmt: skip


def print_result(result: Result, console: Console, code: int = SUCCESS) -> None:
    """Print the result of a command that ended with an exit code. Actions already as wanted are only counted."""
    for line in wrap(verdict(result, code), console.width):
        say(line, console, "strong" if code == SUCCESS else "error")
    shown = [entry for entry in result.entries if entry.outcome != "already" or result.verb in ("revert", "recover")]
    drifted = {one.action for one in result.drift}
    for entry in shown:
        standing = "drifted" if entry.action in drifted else "in force"
        word = standing if result.verb == "status" and entry.outcome == "done" else entry.outcome
        _print_entry(word, entry, console)
    already = len(result.entries) - len(shown)
    if already:
        say(f"  {count(already, 'action')} already as wanted", console, "dim")
    _print_drift(result.drift, console)
    _print_exactly("how definitions would change", result.differences, console)
    _print_exactly("what would be written, in order", result.writes, console)
    for note in result.notes:
        for paragraph in note.split("\n"):
            for line in _prose(paragraph, console.width):
                say(line, console, "warn")
    if result.reboot_required:
        say("a reboot is required: what is staged takes effect then", console, "warn")
    if result.open_transaction:
        opened = result.open_transaction
        text = f"transaction {opened.number} is unfinished ({opened.verb}, {opened.state}): run hosttune recover"
        say(text, console, "error")
        say(f"  its journal: {opened.journal}", console)


# --- the verdict ---------------------------------------------------------------------------------------------


def verdict(result: Result, code: int = SUCCESS) -> str:
    """Return the result in one line."""
    if not result.state_known:
        return f"{result.host or 'this host'}: what is applied is unknown"
    if result.verb == "status":
        number = sum(
            1 for entry in result.entries if entry.outcome not in ("ignored", "conflict") and not entry.is_unstaged
        )
        force = count(number, "setting") if number else "nothing"
        drifted = len(result.drift) or "none"
        return f"{result.host or 'this host'}: {force} in force" + (f", {drifted} drifted" if number else "")
    counted = {word: sum(1 for entry in result.entries if entry.outcome == word) for word in _ORDER}
    facts = [f"{number} {word}" for word, number in counted.items() if number]
    details = f" ({', '.join(facts)})" if facts else ""
    verb = f"dry run of {result.verb}" if _is_rehearsal(result) else result.verb
    return f"{verb} on {result.host or 'this host'}: {_ending(result, code)}{details}"


def _is_rehearsal(result: Result) -> bool:
    return bool(result.writes) or any(entry.outcome == "planned" for entry in result.entries)


def _ending(result: Result, code: int) -> str:
    """Return how a command ended, in words."""
    if code == PERSON:
        return "NOT EVERYTHING COULD BE REVERTED, this host needs a person"
    if _is_rehearsal(result):
        return "nothing was written"
    if result.verb == "apply":
        if code == SUCCESS:
            return "changed" if result.changed else "nothing to change"
        return "changed, but NOT COMPLETELY" if result.changed else "FAILED, the host is as it was"
    if code != SUCCESS:
        return "NOT COMPLETE" if result.changed else "NOTHING WAS REVERTED"
    if not result.entries:
        return "nothing is applied" if result.verb == "revert" else "nothing is unfinished"
    return "done" if result.changed else "nothing to change"


# --- rows ----------------------------------------------------------------------------------------------------


def _print_entry(word: str, entry: Entry, console: Console) -> None:
    kind = entry.action.partition(":")[0]
    before, want, after = (short_value(setting_value(kind, one)) for one in (entry.before, entry.want, entry.after))
    before = before if entry.before_known or before != NOTHING else "unknown"
    values = after if entry.outcome == "already" else f"{before} -> {want}"
    text = f"{setting_text(entry.action)}: {values}"
    if entry.outcome in ("clamped", "failed", "stuck", "conflict", "ignored"):
        text += f", {'still' if entry.after == entry.before else 'now'} {after}"
    lead = f"  {word:8}  "
    for n, line in enumerate(wrap(text, console.width - len(lead))):
        say((lead if n == 0 else " " * len(lead)) + line, console, _STYLES.get(entry.outcome, "plain"))
    for line in _prose(short_lists(entry.why), console.width - len(lead) - 2) if entry.why else ():
        say(" " * (len(lead) + 2) + line, console, "dim")


def _print_drift(drift: Sequence[Drift], console: Console) -> None:
    if not drift:
        return
    say("", console)
    say("drift: changed since it was applied", console, "strong")
    for one in drift:
        say(f"  {setting_text(one.action)}", console, "warn")
        text = one.why or f"was {short_value(one.expected)}, now {short_value(one.actual)}"
        for line in wrap(text, console.width - 4):
            say(f"    {line}", console)


def _print_exactly(heading: str, texts: Sequence[str], console: Console) -> None:
    """Print texts of a dry run byte for byte: never wrapped, with Python's escapes for unprintable characters."""
    if not texts:
        return
    say("", console)
    say(heading, console, "strong")
    for text in texts:
        for line in text.split("\n"):
            exact = (mark if mark.isprintable() else repr(mark)[1:-1] for mark in line)
            say(f"  {''.join(exact)}", console)
    say("", console)


def _prose(text: str, width: int) -> list[str]:
    """Print sentences, wrapped between words. Indented lines (a difference of two texts) keep their position."""
    return textwrap.wrap(text, max(width, 20), break_on_hyphens=False, break_long_words=False) or [""]


# --- values --------------------------------------------------------------------------------------------------


def setting_text(action: str) -> str:
    """Return an action's id for people, as the plan's text shows it: "driver:0000:41:00.0" is "driver 0000:41:00.0"."""
    kind, _, target = action.partition(":")
    return f"{kind} {short_lists(target)}" if target and target != kind else kind


def short_value(value: Any) -> str:
    """Return a value for a row: one line, cut if it is long; an empty value is "none"."""
    if isinstance(value, Mapping) and any("\n" in str(part) for part in value.values()):
        return f"({count(len(value), 'file')})"
    text = short_lists(value_text(value, nothing=NOTHING))
    lines = text.splitlines()
    if len(lines) > 1:
        return f"({len(lines)} lines)"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def value_line(setting: Any, live: Any, want: Any) -> str:
    """Return a line of a prompt's list: a setting, its present value and the value that it would get."""
    now, then = (short_value(setting_value(setting.kind, setting.shown(value))) for value in (live, want))
    return f"  {short_lists(f'{setting.kind} {setting.target}'.rstrip())}: {now} -> {then}"
