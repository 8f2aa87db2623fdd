"""Which host is low, and why: the diagnosis of each host's validation, and the hosts grouped by their first cause.

It explains and never decides: verdicts come from the validations. The host document is that of the last `fleet
discover`; it is read only for hosts that are low, and only if it is of the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hosttune.bench.baselines import Standard
from hosttune.errors import BadInput
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.diagnosis import GRADES, Cause, Diagnosis, JudgedFigure
from hosttune.model.fleet import CauseGroup, HostLine
from hosttune.model.host import Host
from hosttune.model.validation import Validation
from hosttune.model.values import grouped
from hosttune.rules.causes import diagnose
from hosttune.rules.causes.gathering import of_validation

MOST_FIGURES = 12  # of a host, kept in the report; `hosttune diagnose` on its own files has all of them
MOST_CAUSES = 3
MOST_TEXT = 200  # characters of a text of the host


class Diagnosed(msgspec.Struct, frozen=True):
    """The low and impossible figures of a host, at most MOST_FIGURES (`more`: how many others), and its causes."""

    low: tuple[JudgedFigure, ...] = ()
    more: int = 0
    causes: tuple[Cause, ...] = ()
    next: tuple[str, ...] = ()


def diagnose_host(results: str, host: str, validation: Validation, standard: Standard) -> Diagnosed | None:
    """Return why a host's figures fall short; None if they cannot be diagnosed (there are too many of them)."""
    if not validation.samples:
        return Diagnosed()
    try:
        diagnosis = diagnose(of_validation(validation, None), standard, complaining=False)
        if validation.machine is None or diagnosis.causes or _low(diagnosis):
            seen = read_host(results, host, validation)
            if seen is not None:
                diagnosis = diagnose(of_validation(validation, seen), standard, complaining=False)
    except (BadInput, RecursionError):
        return None
    low = _low(diagnosis)
    shown = tuple(
        msgspec.structs.replace(
            figure, subject=figure.subject[:MOST_TEXT], unit=figure.unit[:MOST_TEXT], why=figure.why[:MOST_TEXT]
        )
        for figure in low[:MOST_FIGURES]
    )
    return Diagnosed(shown, max(0, len(low) - MOST_FIGURES), diagnosis.causes[:MOST_CAUSES], diagnosis.next)


def _low(diagnosis: Diagnosis) -> tuple[JudgedFigure, ...]:
    return tuple(figure for figure in diagnosis.figures if figure.verdict in ("low", "impossible"))


def read_host(results: str, host: str, validation: Validation) -> Host | None:
    """Return the host document beside a validation; None if there is none, or if it is of another machine."""
    try:
        data = read_file(answer_path(results, host, "discover"))
        host_document = Host.from_json(data, where=host) if data is not None else None
    except (BadInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the phase `discover` has its own answer
    known = validation.machine.digest if validation.machine is not None else None
    return (
        None
        if host_document is None or (known and host_document.digest and known != host_document.digest)
        else host_document
    )


def groups_of(lines: Sequence[HostLine], unexplained: dict[str, str]) -> tuple[CauseGroup, ...]:
    """Return the hosts that are low or have a fault, by their first cause, the cause of most hosts first.

    `unexplained`: what to measure next, of hosts without a cause.
    """
    by_cause = grouped(
        (line.causes[0].cause if line.causes else None, line) for line in lines if line.low or line.causes
    )
    groups = [_group(cause, members, unexplained) for cause, members in by_cause.items()]
    return tuple(sorted(groups, key=lambda cause: (cause.cause is None, -len(cause.hosts), cause.cause or "")))


def _group(cause: str | None, members: Sequence[HostLine], unexplained: dict[str, str]) -> CauseGroup:
    low = [(line, figure) for line in members for figure in line.low]
    hosts, figures = tuple(line.host for line in members), sum(len(line.low) + line.low_untold for line in members)
    example = f"{low[0][0].host}: {low[0][1].words}" if low else None
    if cause is None:
        return CauseGroup(hosts=hosts, figures=figures, example=example, confirm=unexplained.get(hosts[0]))
    first = min((line.causes[0] for line in members), key=lambda cause: GRADES.index(cause.grade))
    return CauseGroup(
        cause=cause, grade=first.grade, hosts=hosts, figures=figures, example=example, evidence=first.evidence,
        remedy=first.remedy, confirm=first.confirm, source=first.source,
    )  # fmt: skip
