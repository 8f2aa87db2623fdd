"""The checklist: checks that turn Evidence into results. Pure; each module is one family, and declares its checks.

A check gives one result per subject. A fact that is missing, refused or cut short is unknown, which is between warn and
fail. The PCI tree is one source of devices among several; each source says what it shows and what it could show, and a
device that one of them should show and does not is not passed. For a running guest /proc counts, not its XML.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from hosttune.model.evidence import Evidence
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.facts import HOST, none_here, without_use
from hosttune.rules.checks.on import Check, On
from hosttune.rules.engine import Finding, NoValue, rules_of

# One row per family; the report shows the families in this order.
FAMILIES: tuple[str, ...] = (
    "presence",
    "pcie",
    "cpus",
    "memory",
    "iommu",
    "p2p",
    "interrupts",
    "kernel",
    "security",
    "gpus",
    "gpumemory",
    "gpumodes",
    "nvlinks",
    "fabric",
    "gpuports",
    "gpupartition",
    "kernelevents",
    "health",
    "ports",
    "porterrors",
    "portcapability",
    "roce",
    "rails",
    "guests",
    "guestlibrary",
    "leftovers",
)


@cache
def checks(inside: bool = False) -> tuple[Check, ...]:
    """Return every check; with `inside`, only the checks that make sense inside a guest."""
    return tuple(check for check in rules_of(__name__, FAMILIES, Check) if check.inside or not inside)


def judge(evidence: Evidence, listed: Sequence[Check] | None = None) -> Iterable[CheckResult]:
    """Yield the results of the checks, in order: of `listed`, or of all checks that apply to this kind of evidence.

    A device that is lost passes no check.
    """
    from hosttune.rules.checks.presence import guarded

    for check in checks(evidence.inside) if listed is None else listed:
        yield from guarded(check, evidence, results_of(check, evidence))


def results_of(check: Check, evidence: Evidence) -> Sequence[CheckResult]:
    """Return the results of one check, at least one.

    For a host without GPUs or guests, or without subjects of the check, the result follows the check's declaration. Of
    a fact that is newer than the capture only what is bad counts: it is there all the same.
    """
    findings = _findings(check, evidence)
    if evidence.facts is not None and evidence.facts < check.since:
        bad = [finding for finding in findings if finding.outcome in ("fail", "warn")]
        findings = iter(bad or [Finding("not in this capture", outcome="skip")])
    results = tuple(_result(check, finding) for finding in findings)
    return results or ((_result(check, none_here(evidence, check.none)),) if check.none else ())


def _findings(check: Check, evidence: Evidence) -> Iterator[Finding]:
    if check.for_guests and (without := without_use(evidence)) is not None:
        yield without
        return
    try:
        for subject, thing in check.each(evidence) if check.each else ((HOST, None),):
            yield from check.findings(On(evidence, check, subject, thing))
    except NoValue as no:  # which subjects there are is not known, or there is none
        yield no.finding


def _result(check: Check, finding: Finding) -> CheckResult:
    judged, unknown = finding.outcome != "skip", finding.outcome == "unknown"
    remedy = finding.remedy or (unknown and check.look) or check.remedy or None
    return CheckResult(
        check=check.id,
        subject=finding.subject or HOST,
        outcome=finding.outcome,  # type: ignore[arg-type]  # one of the words of a result, for a check
        expected=(finding.expected or check.expected) if judged else None,
        actual=finding.text,
        source=finding.source or None,
        hint=remedy if finding.outcome in ("fail", "warn", "unknown") else None,
    )
