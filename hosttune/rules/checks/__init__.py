"""The checklist: checks that turn Evidence into results. Pure; each module has one family, listed as `CHECKS`.

A check gives one result per subject. A fact that is missing, damaged or contradicted is unknown, which is between warn
and fail. The PCI tree is one source of devices among several; each source says what it shows and what it could show,
and a device that one of them should show and does not is not passed. For a running guest /proc counts, not its XML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module

from hosttune.model.evidence import Evidence
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check

# One row per family; the report shows the families in this order.
FAMILIES: tuple[str, ...] = (
    "presence",
    "links",
    "placement",
    "pcie",
    "cpus",
    "memory",
    "iommu",
    "p2p",
    "interrupts",
    "kvm",
    "kernel",
    "gpus",
    "gpumemory",
    "gpumodes",
    "fabric",
    "fabricbridges",
    "gpuports",
    "gpupartition",
    "health",
    "ports",
    "portcapability",
    "portmodules",
    "roce",
    "rails",
    "guests",
    "guesttree",
    "guestlibrary",
    "leftovers",
)


def checks(inside: bool = False) -> tuple[Check, ...]:
    """Return every check; with `inside`, only the checks that make sense inside a guest."""
    found = (check for family in FAMILIES for check in import_module(f"hosttune.rules.checks.{family}").CHECKS)
    return tuple(check for check in found if check.inside or not inside)


def judge(evidence: Evidence, listed: Sequence[Check] | None = None) -> Iterable[CheckResult]:
    """Yield the results of the checks, in order: of `listed`, or of all checks that apply to this kind of evidence.

    A device that is lost, or about which sources contradict each other, passes no check.
    """
    from hosttune.rules.checks.presence import guarded

    for check in checks(evidence.inside) if listed is None else listed:
        yield from guarded(check, evidence, results_of(check, evidence))


def results_of(check: Check, evidence: Evidence) -> Sequence[CheckResult]:
    """Return the results of one check, at least one.

    For a host without GPUs or guests, or without subjects of the check, the result follows the check's declaration.
    """
    from hosttune.rules.checks.facts import none_here, skipped_without_use

    if check.for_guests and (rest := skipped_without_use(evidence, check.id)) is not None:
        return (rest,)
    found = tuple(check.judge(evidence))
    return found if found or check.none is None else (none_here(evidence, check.id, check.none),)
