"""What the hosts of a run answered to `plan` and to `--check`, with alike hosts together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.answers import read_answer
from hosttune.fleet.gate import COURSE
from hosttune.fleet.missing import HINTS
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.fleet import PLAN_ERRORS, Answer, AnswerOutcome
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.result import Result
from hosttune.model.settingtext import setting_text, setting_value, short_lists, short_value
from hosttune.model.text import count
from hosttune.model.validation import CheckResult
from hosttune.model.values import format_size, grouped

T = TypeVar("T", Plan, Result)


class RehearsedChanges(msgspec.Struct, frozen=True):
    """What a run in check mode found: `hosts` that answered, those of each distinct change, and the writes of all."""

    hosts: tuple[str, ...]
    of: dict[str, list[str]]
    writes: int


def changes(results: str, verb: str, run: str, hosts: Sequence[str]) -> RehearsedChanges:
    """Return every distinct change, in the order of the first host that has it. One document is in memory at a time."""
    answered, actions_of, writes = [], dict[str, list[str]](), 0
    for host in hosts:
        result = _document(Result, results, host, verb, run, check=True)
        if result is None:
            continue
        answered.append(host)
        writes += len(result.writes)
        for line in change_lines(result):
            actions_of.setdefault(line, []).append(host)
    return RehearsedChanges(tuple(answered), actions_of, writes)


def courses(results: str, run: str, hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return what each host would do with its devices, a line each, and what is in the way of it."""
    results_of = {host: _document(Result, results, host, COURSE, run, check=True) for host in hosts}
    return {host: result.notes for host, result in results_of.items() if result is not None}


def plans(results: str, run: str, hosts: Sequence[str], *, check: bool) -> dict[tuple[str, ...], list[str]]:
    """Return the hosts of each distinct plan, by its lines (`plan_lines`), in the order of the first host of each."""
    made = ((host, _document(Plan, results, host, "plan", run, check=check, outcomes=("ok", "no"))) for host in hosts)
    return grouped((plan_lines(plan), host) for host, plan in made if plan is not None)


def of_plan(results: str, host: str, answer: Answer) -> tuple[CheckResult, ...]:
    """Return the errors among the findings of a host's plan as results: a plan can be made and still not work.

    One that cannot be read is unknown.
    """
    if answer.outcome not in ("ok", "no") or answer.run is None:
        return ()
    plan = _document(Plan, results, host, "plan", answer.run, check=answer.check, outcomes=("ok", "no"))
    if plan is None:
        why = "the plan beside the answer cannot be read"
        return (CheckResult(check=PLAN_ERRORS, subject="host", outcome="unknown", actual=why, hint=HINTS["unknown"]),)
    return tuple(
        CheckResult(
            check=PLAN_ERRORS, subject=finding.where or "host", outcome="warn", expected="a plan without errors",
            actual=finding.text, source="plan.json", hint="see to it before fleet apply",
        )
        for finding in plan.findings
        if finding.level == "error"
    )  # fmt: skip


def rehearsals(results: str, verb: str, run: str, hosts: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Result]]:
    """Yield (hosts, what would change on each of them), in the order of the first host of each group.

    Only one document is in memory at a time. Hosts without an answer of this run are left out; the report lists them.
    """
    import hashlib

    from hosttune.model.values import to_json

    made = ((host, _document(Result, results, host, verb, run, check=True)) for host in hosts)
    texts = ((host, to_json(msgspec.structs.replace(result, host=None))) for host, result in made if result is not None)
    for members in grouped((hashlib.sha256(text.encode()).digest(), host) for host, text in texts).values():
        result = _document(Result, results, members[0], verb, run, check=True)
        if result is not None:
            yield tuple(members), result


def _document(
    kind: type[T],
    results: str,
    host: str,
    verb: str,
    run: str,
    *,
    check: bool,
    outcomes: Sequence[AnswerOutcome] = ("ok",),
) -> T | None:
    """Return a host's document of this run; None if there is none that counts."""
    if read_answer(results, host, verb, run, check=check).outcome not in outcomes:
        return None
    path = answer_path(results, host, verb, check=check)
    try:
        data = read_file(path)
        return kind.from_json(data, where=path) if data is not None else None
    except BadInput:
        return None  # the report shows the error


# --- lines of changes -----------------------------------------------------------------------------------------

_ERROR = "error: "


def change_lines(result: Result) -> tuple[str, ...]:
    """Return each change of a dry run, its outcome where it is not planned, and each note. Values are cut short."""
    lines = []
    for entry in result.entries:
        if entry.outcome == "already":
            continue
        kind = entry.action.partition(":")[0]
        before, want = (short_value(setting_value(kind, value)) for value in (entry.before, entry.want))
        before = before if entry.before is not None or entry.before_known else "unknown"
        outcome = "" if entry.outcome == "planned" else f"{entry.outcome}: "
        lines.append(f"{outcome}{setting_text(entry.action)}: {before} -> {want}")
    # That nothing was written is said once for all hosts.
    notes = [short_lists(note.split("\n")[0]) for note in result.notes if not note.startswith("dry run: ")]
    reboot = ["a reboot is required"] if result.reboot_required else []
    return (*dict.fromkeys([*lines, *notes, *reboot]),)


def plan_lines(plan: Plan) -> tuple[str, ...]:
    """Return each guest with its size, places and devices, each guest without a place, actions and findings."""
    needed = sum(action.needed for action in plan.actions)
    reboots = sum(action.effect == "reboot" for action in plan.actions)
    lines = [_guest(guest) for guest in plan.guests]
    lines += [f"guest {left_out.guest}: NOT PLACED: {'; '.join(left_out.why[:1])}" for left_out in plan.unplaced]
    lines.append(f"{count(len(plan.actions), 'action')} ({needed} needed, {reboots} with a reboot)")
    lines += [f"{finding.level}: {finding.text}" for finding in plan.findings if finding.level != "info"]
    return tuple(lines)


def has_errors(lines: Sequence[str]) -> bool:
    """Whether the lines of a plan have a finding of the level error."""
    return any(line.startswith(_ERROR) for line in lines)


def _guest(guest: PlannedGuest) -> str:
    memory = format_size(sum(cell.memory_bytes for cell in guest.cells))
    pages = f" in {format_size(guest.page_bytes)} pages" if guest.page_bytes else ""
    nodes = ",".join(dict.fromkeys(cell.host_nodes for cell in guest.cells if cell.host_nodes))
    given = ", ".join(f"{device.kind} {device.address}" for device in guest.devices)
    place = f"; node {nodes}" if nodes else ""
    return f"guest {guest.name}: {count(len(guest.vcpu_pins), 'vCPU')}, {memory}{pages}{place}" + (
        f"; {given}" if given else ""
    )
