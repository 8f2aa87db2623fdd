"""What a hand-over of a host ended with, from the files beside its answers: its statement, and the host's verification.

A statement is a document of the host: data, and untrusted. Only the host's verification of this run makes it valid, and
only until it expires.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from hosttune.errors import BadInput
from hosttune.fleet.gate import COURSE
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.fleet import Answer, HandedLine
from hosttune.model.handover import Predicate, Statement, time_of
from hosttune.model.jsontext import typed_json
from hosttune.model.validation import CheckResult, Outcome
from hosttune.model.verification import StatementState, Verification

CHECK = "handover-statement"
_WANTED = "a valid statement"
_SOON = timedelta(hours=1)
_OUTCOMES: Mapping[str, Outcome] = {"valid": "pass", "expiring": "warn", "void": "fail", "quarantined": "fail"}
_HINTS = {
    "expiring": "give the device to its next tenant, or hand it over again",
    "void": "nothing may be given to the next tenant: hand the device over again",
    "quarantined": "hosttune handover status there says why; hand it over again, or release it",
}


def handed_of(
    results: str, host: str, answers: Mapping[str, Answer], *, at: datetime | None = None
) -> tuple[HandedLine, ...]:
    """Return each device of a host's statement, as it is known now. `answers`: of one run, by phase. `at`: now, in UTC.

    Empty if the host stated nothing that can be read: its answers say why.
    """
    course = answers.get(COURSE)
    if course is None or course.outcome not in ("ok", "no", "refused"):
        return ()
    path = os.path.join(os.path.dirname(answer_path(results, host, COURSE)), "statement.json")
    try:
        data = read_file(path)
        if data is None:
            return ()
        statement = Statement.from_json(data, where=path)
        until = statement.predicate.expires_at
        why = _not_valid(results, host, answers, statement.predicate, at or datetime.now(UTC))
        soon = until is not None and time_of(until, path) - (at or datetime.now(UTC)) < _SOON
    except BadInput:
        return ()
    lines = []
    for device in statement.predicate.devices:
        if device.unclean:
            lines.append(HandedLine(address=device.address, state="quarantined", why=device.unclean))
        else:
            state: StatementState = "void" if why else "expiring" if soon else "valid"
            lines.append(HandedLine(address=device.address, state=state, expires_at=until, why=why))
    return tuple(lines)


def _not_valid(
    results: str, host: str, answers: Mapping[str, Answer], stated: Predicate, at: datetime
) -> tuple[str, ...]:
    """Return why a statement is void; empty if the host has verified it in this run, and it has not expired."""
    for phase, word in (("sign", "not signed"), ("verify", "not verified on the host")):
        answer = answers.get(phase)
        if answer is None or answer.outcome not in ("ok", *(("no",) if phase == "verify" else ())):
            return (f"{word}: {answer.why or answer.outcome}" if answer is not None else word,)
    path = answer_path(results, host, "verify")
    data = read_file(path)
    verification = typed_json(data, Verification, where=path) if data is not None else None
    if verification is None or not verification.opens_gates or answers["verify"].outcome != "ok":
        reasons = [reason.text for reason in verification.reasons] if verification is not None else []
        return tuple(dict.fromkeys(reasons)) or ("not verified on the host",)
    until = stated.expires_at
    mine = (stated.host, tuple(device.address for device in stated.devices), stated.issued_at, until)
    if until is None or mine != (
        verification.host,
        verification.devices,
        verification.issued_at,
        verification.expires_at,
    ):
        return ("it is not the statement that the host verified",)
    return (f"expired at {until}",) if time_of(until, path) <= at else ()


def results_of(handed: tuple[HandedLine, ...], course: Answer | None) -> tuple[CheckResult, ...]:
    """Return the statements as results, so that every format of the report shows them. `course`: the host's answer."""
    if course is not None and course.outcome == "ok" and not handed:
        hint = "run it again with --retry; the host keeps a copy (hosttune handover status)"
        why = "the host has handed over, and its statement beside the answers is missing or cannot be read"
        return (CheckResult(check=CHECK, subject="host", outcome="unknown", expected=_WANTED, actual=why, hint=hint),)
    return tuple(
        CheckResult(
            check=CHECK, subject=line.address, outcome=_OUTCOMES[line.state], expected=_WANTED,
            actual="; ".join((line.state, *line.why)) if line.why else f"{line.state}, until {line.expires_at}",
            source="statement.json, verify.json", hint=_HINTS.get(line.state),
        )
        for line in handed
    )  # fmt: skip
