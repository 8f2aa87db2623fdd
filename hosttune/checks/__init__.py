"""The checklist: Evidence → results. Pure; each module holds one family of checks and lists them as `CHECKS`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from hosttune.checks.check import Check
from hosttune.model.evidence import Evidence
from hosttune.model.validation import CheckResult

# One row a family; the order is that of the report.
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
    "health",
    "guests",
    "guesttree",
    "leftovers",
)


def checks(inside: bool = False) -> tuple[Check, ...]:
    """Every check; inside a guest, those that make sense there."""
    found = (check for family in FAMILIES for check in import_module(f"hosttune.checks.{family}").CHECKS)
    return tuple(check for check in found if check.inside or not inside)


def judge(evidence: Evidence) -> Iterable[CheckResult]:
    """The results of all checks that apply to what the evidence is of, in the order of the list."""
    from hosttune.checks.presence import guarded

    for check in checks(evidence.inside):
        yield from guarded(check, evidence, check.judge(evidence))
