"""What the hosts of a run answered to `plan` and to `--check`, with alike hosts together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.answers import read_answer
from hosttune.fleet.changelines import change_lines, plan_lines
from hosttune.fleet.gate import COURSE
from hosttune.fleet.missing import HINTS
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.fleet import PLAN_ERRORS, Answer, AnswerOutcome
from hosttune.model.plan import Plan
from hosttune.model.result import Result
from hosttune.model.validation import CheckResult

T = TypeVar("T", Plan, Result)


class RehearsedChanges(msgspec.Struct, frozen=True):
    """What a run in check mode found: `hosts` that answered, those of each distinct change, and the writes of all."""

    hosts: tuple[str, ...]
    of: dict[str, list[str]]
    writes: int


def changes(results: str, verb: str, run: str, hosts: Sequence[str]) -> RehearsedChanges:
    """Return every distinct change, in the order of the first host that has it. One document is in memory at a time."""
    answered, found, writes = [], dict[str, list[str]](), 0
    for host in hosts:
        result = _document(Result, results, host, verb, run, check=True)
        if result is None:
            continue
        answered.append(host)
        writes += len(result.writes)
        for line in change_lines(result):
            found.setdefault(line, []).append(host)
    return RehearsedChanges(tuple(answered), found, writes)


def courses(results: str, run: str, hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return what each host would do with its devices, a line each, and what is in the way of it."""
    found = {host: _document(Result, results, host, COURSE, run, check=True) for host in hosts}
    return {host: result.notes for host, result in found.items() if result is not None}


def plans(results: str, run: str, hosts: Sequence[str], *, check: bool) -> dict[tuple[str, ...], list[str]]:
    """Return the hosts of each distinct plan, by its lines (`plan_lines`), in the order of the first host of each."""
    found: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        plan = _document(Plan, results, host, "plan", run, check=check, outcomes=("ok", "no"))
        if plan is not None:
            found.setdefault(plan_lines(plan), []).append(host)
    return found


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

    alike: dict[bytes, list[str]] = {}
    for host in hosts:
        result = _document(Result, results, host, verb, run, check=True)
        if result is not None:
            key = hashlib.sha256(to_json(msgspec.structs.replace(result, host=None)).encode()).digest()
            alike.setdefault(key, []).append(host)
    for members in alike.values():
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
