"""What checks share that ask tools about ports: one result of a function's ports, and what a missing answer means."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import skipped
from hosttune.rules.checks.facts import RECORD
from hosttune.rules.checks.nics import LINKED, UNKNOWN, Found, Judged, result_of_worst

_NOT_INSTALLED, _NOT_SUPPORTED = "not installed", "operation not supported"


class OfPort(NamedTuple):
    """One port's findings, and what is said of it if there is none. A finding "skip" says why it is not judged."""

    found: tuple[Found, ...] = ()
    good: str = ""


def of_port(outcome: str, text: str, hint: str = "") -> OfPort:
    """Return one finding about a port."""
    return OfPort((Found(outcome, text, hint),))


def result_of_ports(
    check: str, judged: Judged, expected: str, ports: Iterable[OfPort], *, doubts: Iterable[Found], source: str
) -> CheckResult:
    """Return the result of the worst finding of a function's ports; skipped if none of them can be judged.

    `doubts`: which ports it may have besides.
    """
    every = list(ports)
    found = [*doubts, *(one for port in every for one in port.found)]
    skips = [one.text for one in found if one.outcome == "skip"]
    faults = [one for one in found if one.outcome != "skip"]
    if skips and not faults and len(skips) == len(every):
        return skipped(check, judged.address, "; ".join(skips))
    good = "; ".join([*filter(None, (port.good for port in every)), *skips])
    return result_of_worst(check, judged, expected, faults, good, source=source)


def unanswered(name: str, command: str, package: str, error: str | None, linked: str, hint: str = "") -> OfPort:
    """Return what follows from an answer of `command` about a port that is not there. `package` has the tool."""
    tool = command.partition(" ")[0]
    if error is None:
        return of_port("unknown", f"what {tool} tells of {name} was not read", RECORD)
    if error.lower() == _NOT_INSTALLED:
        return of_port("skip", f"{tool} is not installed, which reads it: apt-get install {package} ({name})")
    if _NOT_SUPPORTED in error.lower():
        return of_port("skip", f"the driver of {name} does not tell it: {error}")
    if linked not in (LINKED, UNKNOWN):
        return of_port("skip", f"{name} has no link, and nothing answers there: {error}")
    return of_port("unknown", f"{command}: {error}", hint or f"as root: {command}")
