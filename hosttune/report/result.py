"""The report of a result: a verdict, the outcome of each action, and what a person must do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hosttune.model.result import Drift, Entry, Result
from hosttune.model.settingtext import NOTHING, setting_text, setting_value, short_lists, short_value
from hosttune.model.text import count
from hosttune.report.blocks import AnyBlock, Entries, Exact, Lines, Report, Section
from hosttune.report.blocks import Entry as Row
from hosttune.report.outcomes import Mark

SUCCESS, PERSON = 0, 4  # exit codes that change the verdict; any other means that the command failed
_MARKS = {
    **dict.fromkeys(("failed", "stuck"), "fail"),
    **dict.fromkeys(("conflict", "clamped", "ignored", "drifted"), "warn"),
    **dict.fromkeys(("planned", "pending", "already"), "skip"),
}
_ORDER = (
    "failed", "stuck", "conflict", "clamped", "ignored", "reverted", "done", "planned", "pending", "already",
)  # fmt: skip


def result_report(result: Result) -> Report:
    """Return the result of a command. Actions already as wanted are only counted."""
    code = result.exit_code or SUCCESS
    shown = [entry for entry in result.entries if entry.outcome != "already" or result.verb in ("revert", "recover")]
    drifted = {one.action for one in result.drift}
    rows = tuple(entry_row(one, _word(one, result, drifted)) for one in shown)
    already = len(result.entries) - len(shown)
    counted = (f"{count(already, 'action')} already as wanted",) if already else ()
    opened = result.open_transaction
    unfinished: tuple[AnyBlock, ...] = ()
    if opened is not None:
        left = f"transaction {opened.number} is unfinished ({opened.verb}, {opened.state}): run hosttune recover"
        unfinished = (Lines(lines=(left,), style="error"), Exact(parts=(f"its journal: {opened.journal}",)))
    reboot = ("a reboot is required: what is staged takes effect then",) if result.reboot_required else ()
    drift = tuple(_drift(one) for one in result.drift)
    notes = tuple(line for note in result.notes for line in note.split("\n"))
    return Report(
        kind=f"hosttune {result.verb}",
        verdict="" if code == SUCCESS else "fail",
        headline=verdict(result, code),
        blocks=(
            Section(
                heading="settings",
                blocks=(
                    Entries(parts=rows, numbered=False, whole=True),
                    Lines(lines=counted, style="dim"),
                ),
            ),
            Entries(heading="drift: changed since it was applied", parts=drift, numbered=False, whole=True),
            Exact(heading="how definitions would change", parts=_lines(result.differences)),
            Exact(heading="what would be written, in order", parts=_lines(result.writes)),
            Lines(heading="what to know", lines=(*notes, *reboot), style="warn", whole=True),
            Section(heading="unfinished", blocks=unfinished),
        ),
    )


def _lines(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(line for text in texts for line in text.split("\n"))


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


def _word(entry: Entry, result: Result, drifted: Collection[str]) -> str:
    if result.verb == "status" and entry.outcome == "done":
        return "drifted" if entry.action in drifted else "in force"
    return entry.outcome


def entry_row(entry: Entry, word: str) -> Row:
    """Return the row of an action, with the word for its outcome."""
    kind = entry.action.partition(":")[0]
    before, want, after = (short_value(setting_value(kind, one)) for one in (entry.before, entry.want, entry.after))
    before = before if entry.before_known or before != NOTHING else "unknown"
    values = after if entry.outcome == "already" else f"{before} -> {want}"
    text = f"{setting_text(entry.action)}: {values}"
    if entry.outcome in ("clamped", "failed", "stuck", "conflict", "ignored"):
        text += f", {'still' if entry.after == entry.before else 'now'} {after}"
    mark = Mark(_MARKS.get(word, "pass"), word)
    return Row(title=text, mark=mark, facts=(("", short_lists(entry.why)),) if entry.why else ())


def _drift(one: Drift) -> Row:
    text = one.why or f"was {short_value(one.expected)}, now {short_value(one.actual)}"
    return Row(title=setting_text(one.action), facts=(("", text),))
