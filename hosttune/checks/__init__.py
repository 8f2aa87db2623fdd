"""The checklist: Evidence → results. Pure; each module holds one family of checks and lists them as `CHECKS`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def judge(evidence: Evidence, listed: Sequence[Check] | None = None) -> Iterable[CheckResult]:
    """The results of the checks (of `listed`; without it, of all that apply to what the evidence is of), in order.

    A device that is lost, or that sources contradict, passes none of them.
    """
    from hosttune.checks.presence import guarded

    for check in checks(evidence.inside) if listed is None else listed:
        yield from guarded(check, evidence, results_of(check, evidence))


def results_of(check: Check, evidence: Evidence) -> Sequence[CheckResult]:
    """The results of one check: at least one, and what its declaration says of hosts without GPUs or guests, or without
    its subjects.
    """
    from hosttune.checks.facts import at_rest, none_here

    if check.for_guests and (rest := at_rest(evidence, check.id)) is not None:
        return (rest,)
    found = tuple(check.judge(evidence))
    return found if found or check.none is None else (none_here(evidence, check.id, check.none),)
