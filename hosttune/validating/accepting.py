"""Results that somebody answers for until a date: a warning or an unknown that then does not move the verdict.

A fail, a device that is gone and what a hand-over covers cannot be accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

import msgspec

from hosttune.errors import BadInput, Refused
from hosttune.journal import accepted
from hosttune.journal.accepted import MOST_WHY, caller
from hosttune.model.clock import now_text
from hosttune.model.evidence import OF_REGISTER
from hosttune.model.hints import did_you_mean
from hosttune.model.host import Host
from hosttune.model.index import is_another
from hosttune.model.validation import Acceptance, CheckResult, Validation, verdict_of
from hosttune.rules.checks import checks

_PRESENT = "device-present"
TELLING = frozenset(("dsn", "serial", "uuid"))  # names of `DeviceIndex.identity` that a configuration can give


def asked(names: Sequence[str], why: str | None, until: str | None) -> tuple[Acceptance, ...]:
    """Return what `--accept CHECK[:SUBJECT] --why TEXT --until DATE` asks for. Raises BadInput."""
    if not names:
        if until is not None:
            raise BadInput("nothing to accept", where="--until", hint="name it: --accept CHECK[:SUBJECT]")
        return ()
    if why is None or until is None:
        missing = "--why" if why is None else "--until"
        hint = "give all three: --accept CHECK[:SUBJECT] --why TEXT --until DATE"
        raise BadInput(f"{missing} is missing", where=missing, hint=hint)
    named = (name.partition(":")[::2] for name in names)
    rows = [
        {"check": check, "subject": subject, "by": caller(), "why": why, "until": until} for check, subject in named
    ]
    acceptances = tuple(_valid(msgspec.convert(row, Acceptance), f"--accept {row['check']}") for row in rows)
    if any(acceptance.until <= _today() for acceptance in acceptances):
        raise BadInput(f"{until} is not in the future", where="--until", hint="give a later date")
    return tuple(msgspec.structs.replace(acceptance, at=now_text()) for acceptance in acceptances)


def declared(rows: object, where: str) -> tuple[Acceptance, ...]:
    """Return the acceptances of a configuration: a list of check, subject, by, why, until, and device if it binds.

    Raises BadInput.
    """
    needed = {"check", "subject", "by", "why", "until"}
    hint = f"write a list of entries, each with {', '.join(sorted(needed))}"
    if not isinstance(rows, list):
        raise BadInput("not a list", where=where, hint=hint)
    acceptances = []
    for number, row in enumerate(rows):
        place = f"{where}[{number}]"
        if not isinstance(row, dict) or row.keys() - {"device"} != needed:
            raise BadInput("not the five keys of an acceptance", where=place, hint=hint)
        device = row.get("device", {})
        if not isinstance(device, dict) or not device.keys() <= TELLING:
            what = "device is not what tells a device from another one"
            raise BadInput(what, where=place, hint=f"write some of {', '.join(sorted(TELLING))}, as discover -o json")
        texts = {name: str(row[name]) if isinstance(row[name], date) else row[name] for name in needed}
        if not all(isinstance(value, str) and value.strip() for value in (*texts.values(), *device.values())):
            raise BadInput("an empty value, or none that is text", where=place, hint=hint)
        acceptances.append(_valid(msgspec.convert({**texts, "device": device}, Acceptance), place))
    return tuple(acceptances)


def _valid(acceptance: Acceptance, where: str) -> Acceptance:
    """Return an acceptance that can count. Raises BadInput with the reason why it cannot."""
    known = {check.id for check in checks()}
    if acceptance.check not in known and not acceptance.check.startswith("bench-"):
        hint = did_you_mean(acceptance.check, known, "hosttune validate --list names all")
        raise BadInput(f"no check {acceptance.check!r:.80}", where=where, hint=hint)
    if acceptance.check == _PRESENT:
        hint = "put it back, or take it out of what is expected: --forget BDF --why TEXT"
        raise BadInput("a device that is gone cannot be accepted", where=where, hint=hint)
    if acceptance.check in OF_REGISTER:
        hint = "finish it: hosttune handover status names the command"
        raise BadInput("what a hand-over covers cannot be accepted", where=where, hint=hint)
    if not all(
        text.strip() and text.isprintable() and len(text) <= MOST_WHY for text in (acceptance.why, acceptance.by)
    ):
        hint = f"write in one line of at most {MOST_WHY} characters who accepts it and why"
        raise BadInput("not a valid reason", where=where, hint=hint)
    accepted.check_date(acceptance.until, where)
    return acceptance


def keep(folder: str | None, where: str, new: Sequence[Acceptance], results: Sequence[CheckResult], host: Host) -> None:
    """Record what is accepted now. Raises Refused for a capture, BadInput for results that cannot be accepted."""
    if new and folder is None:
        raise Refused("a captured host has no state to write to", where=where, hint="run it on the host itself")
    for acceptance in new:
        name = f"--accept {acceptance.check}" + (f":{acceptance.subject}" if acceptance.subject else "")
        covered = [result for result in results if acceptance.covers(result)]
        if any(result.outcome == "fail" for result in covered):
            raise BadInput("a failure cannot be accepted", where=name, hint="mend it: hosttune validate names how")
        if any(_handed(result, host) for result in covered):
            hint = "finish it: hosttune handover status names the command"
            raise BadInput("what a hand-over covers cannot be accepted", where=name, hint=hint)
        if not any(result.outcome in ("unknown", "warn") for result in covered):
            raise BadInput("nothing is unknown or a warning there", where=name, hint="see hosttune validate")
    if new and folder is not None:
        accepted.accept(folder, new)


def applied(validation: Validation, acceptances: Iterable[Acceptance], host: Host) -> Validation:
    """Return the validation with what is accepted in its results, and the verdict of the others."""
    judged = [msgspec.structs.replace(acceptance, ended=_ended(acceptance, host)) for acceptance in acceptances]
    oldest_first = sorted(judged, key=lambda acceptance: not acceptance.ended)  # and those that have ended before all
    results = []
    for result in validation.results:
        acceptance = next((acceptance for acceptance in reversed(oldest_first) if acceptance.covers(result)), None)
        if acceptance is not None and result.outcome in ("unknown", "warn") and not _handed(result, host):
            result = msgspec.structs.replace(result, accepted=acceptance)
        results.append(result)
    return msgspec.structs.replace(validation, results=tuple(results), verdict=verdict_of(results))


def _ended(acceptance: Acceptance, host: Host) -> str:
    """Return why an acceptance counts no longer; "" if it does."""
    if _today() > acceptance.until:
        return "that date is over"
    return (
        "another device is there now" if is_another(acceptance.device, host.index.identity(acceptance.subject)) else ""
    )


def _handed(result: CheckResult, host: Host) -> bool:
    """Return whether a hand-over of the result's device is open: its evidence decides, and nobody's word."""
    register = host.handover.devices if host.handover is not None else ()
    quarantined = any(record.address == result.subject and record.state == "quarantined" for record in register)
    return quarantined or result.check in (_PRESENT, *OF_REGISTER)


def _today() -> str:
    return now_text()[:10]
