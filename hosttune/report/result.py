"""The report of a result: a verdict, the outcome of each action, and what a person must do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from hosttune.model.history import History, PastTransaction
from hosttune.model.result import Drift, Entry, Result
from hosttune.model.settingtext import NOTHING, change_text, setting_value, short_lists, short_value, targets_text
from hosttune.model.text import count
from hosttune.model.values import grouped
from hosttune.report.blocks import AnyBlock, Entries, Exact, Lines, Report, Section, Table
from hosttune.report.blocks import TitledFacts as Row
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
_WORST = ("fail", "warn", "pass", "skip")
_NUMBER = re.compile(r"(?<=[a-z_])[0-9]+(?=/)|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")  # of a CPU, a node, a device


def result_report(result: Result) -> Report:
    """Return the result of a command. Actions already as wanted are only counted."""
    code = result.exit_code or SUCCESS
    shown = [entry for entry in result.entries if entry.outcome != "already" or result.verb in ("revert", "recover")]
    drifted = {drift.action: drift for drift in result.drift}
    rows = entry_rows(
        _standing(entry, drifted.get(entry.action)) if result.verb == "status" else (entry.outcome, entry)
        for entry in shown
    )
    already = len(result.entries) - len(shown)
    counted = (f"{count(already, 'action')} already as wanted",) if already else ()
    opened = result.open_transaction
    unfinished: tuple[AnyBlock, ...] = ()
    if opened is not None:
        left = f"transaction {opened.number} is unfinished ({opened.verb}, {opened.state}): run hosttune recover"
        unfinished = (Lines(lines=(left,), style="error"), Exact(parts=(f"its journal: {opened.journal}",)))
    rest = "; hosttune apply then does what waits for it" if result.verb in ("apply", "status") else ""
    reboot = (f"a reboot is required: what is staged takes effect then{rest}",) if result.reboot_required else ()
    notes = tuple(line for note in result.notes for line in note.split("\n"))
    settable = opened is None and any(drift.hint is None for drift in result.drift)
    notes += ("hosttune apply --intent FILE sets again what has drifted",) if settable else ()
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
            Exact(
                heading="how definitions would change",
                parts=tuple(line for text in result.differences for line in text.split("\n")),
            ),
            Exact(heading="what would be written, in order", parts=tuple(_written(result.writes))),
            Lines(heading="what to know", lines=(*notes, *reboot), style="warn", whole=True),
            Section(heading="unfinished", blocks=unfinished),
        ),
    )


def _written(writes: Sequence[str]) -> Iterable[str]:
    """Yield the writes; those of one value to alike places as one line, of a definition its first. JSON has all."""
    alike = grouped(
        (_NUMBER.sub("*", text) if text.startswith("write") else str(n), text) for n, text in enumerate(writes)
    )
    for first, *others in alike.values():
        line, *content = first.split("\n")
        yield f"{line} (and {count(len(others), 'more place')} alike)" if others else line
        yield from content if not line.startswith("call") else ()


# --- the verdict ---------------------------------------------------------------------------------------------


def verdict(result: Result, code: int = SUCCESS) -> str:
    """Return the result in one line."""
    if not result.state_known:
        return f"{result.host or 'this host'}: what is applied is unknown"
    if result.verb == "status":
        number = sum(1 for entry in result.entries if entry.outcome not in ("ignored", "conflict") and not entry.waits)
        force = count(number, "setting") if number else "nothing"
        drifted = len(result.drift) or "none"
        opened = result.open_transaction
        left = f", transaction {opened.number} unfinished" if opened else ""
        return f"{result.host or 'this host'}: {force} in force" + (f", {drifted} drifted" if number else "") + left
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
        if result.changed or all(entry.outcome in ("already", "pending") for entry in result.entries):
            return f"{'changed' if result.changed else 'nothing changed'}, but NOT COMPLETELY"
        return "FAILED, the host is as it was"
    if code != SUCCESS:
        return "NOT COMPLETE" if result.changed else "NOTHING WAS REVERTED"
    if not result.entries:
        return "nothing is applied" if result.verb == "revert" else "nothing is unfinished"
    return "done" if result.changed else "nothing to change"


# --- rows ----------------------------------------------------------------------------------------------------


def _standing(entry: Entry, drift: Drift | None) -> tuple[str, Entry]:
    """Return the word for what is in force, and its entry; of one that has drifted, with what it was and what it is."""
    if drift is not None:
        why = drift.why or f"it was {short_value(drift.expected)}, and is {short_value(drift.actual)} now"
        return "drifted", replace(entry, why=f"{why}: {drift.hint}" if drift.hint else why)
    return "in force" if entry.outcome == "done" else entry.outcome, entry


def entry_rows(entries: Iterable[tuple[str, Entry]]) -> tuple[Row, ...]:
    """Return rows of (word for the outcome, entry), worst first; those that differ only in their target are one."""
    alike = grouped(
        ((entry.action.partition(":")[0], word, _values(entry), entry.why), entry.action) for word, entry in entries
    )
    rows = []
    for (kind, word, values, why), actions in alike.items():
        title, targets = targets_text(kind, [action.partition(":")[2] for action in actions])
        facts = tuple(("", text) for text in (targets, short_lists(why or "")) if text)
        rows.append(Row(title=f"{title}: {values}", mark=Mark(_MARKS.get(word, "pass"), word), facts=facts))
    return tuple(sorted(rows, key=lambda row: _WORST.index(row.mark.outcome) if row.mark else len(_WORST)))


def _values(entry: Entry) -> str:
    kind = entry.action.partition(":")[0]
    before, want, after = (short_value(setting_value(kind, value)) for value in (entry.before, entry.want, entry.after))
    before = before if entry.before_known or before != NOTHING else "unknown"
    if entry.outcome == "already" or (entry.outcome == "pending" and before == want):
        return after
    if entry.outcome in ("clamped", "failed", "stuck", "conflict", "ignored"):
        return f"{before} -> {want}, {'still' if entry.after == entry.before else 'now'} {after}"
    return change_text(before, want)


# --- history --------------------------------------------------------------------------------------------------

_COLUMNS = ("no.", "at", "by", "what", "settings", "guests")


def history_report(history: History) -> Report:
    """Return the history as a report, oldest transaction first."""
    parts = entry_rows((row.outcome, row) for transaction in history.transactions for row in transaction.entries or ())
    return Report(
        kind="hosttune history",
        verdict="",
        headline=count(len(history.transactions), "transaction"),
        blocks=(
            Table(columns=_COLUMNS, rows=tuple(map(_row, history.transactions)), whole=True),
            Entries(heading="what it changed", parts=parts, numbered=False, whole=True),
        ),
    )


def _row(transaction: PastTransaction) -> tuple[str | Mark, ...]:
    by = transaction.by
    who = "" if by is None else f"{by.sudo_user or by.login}{'' if by.via == 'shell' else f', {by.via}'}"
    source = "" if transaction.source is None else transaction.source.name or transaction.source.kind
    signs = (("+", transaction.guests.created), ("~", transaction.guests.updated), ("-", transaction.guests.removed))
    guests = " ".join(f"{sign}{name}" for sign, names in signs for name in names)
    at = f"{transaction.at[:16].replace('T', ' ')}Z" if transaction.at.endswith("+00:00") else transaction.at
    return (
        str(transaction.number),
        at,
        who,
        f"{transaction.verb} {source}".rstrip(),
        f"{transaction.settings} {transaction.outcome}",
        guests,
    )
