"""Rules of the linter: from a guest on its host to what is wrong with its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hosttune.rules.engine import Finding, Need, Rule
from hosttune.rules.lint.guest_on_host import GuestOnHost

ERROR, WARN, INFO = "fail", "warn", "info"
TUNING = "tuning"  # speed that a guest with a GPU is there for: a warning about it, advice for any other
ADVICE = "advice"  # worth knowing
ADVISORY = (TUNING, ADVICE)  # outcomes of rules whose notes a text tells in one line
LEVEL = {ERROR: "error", WARN: "warn", TUNING: "warn", INFO: "info", ADVICE: "info", "unknown": "info"}  # at most


def unknown(why: str, where: str) -> Finding:
    """Return that a rule applies and lacks a fact of the host. Never silence, never a pass."""
    return Finding(why, where, "unknown")


CPUS = Need[GuestOnHost]("the host's CPUs are unknown", lambda scene: bool(scene.host.cpus))
CORES = Need[GuestOnHost]("which CPUs share a core is unknown", lambda scene: bool(scene.cores))
CPU_NODES = Need[GuestOnHost](
    "the NUMA nodes of the host's CPUs are unknown", lambda scene: any(c.numa_node is not None for c in scene.host.cpus)
)
NODES = Need[GuestOnHost]("the host's NUMA nodes are unknown", lambda scene: bool(scene.host.numa_nodes))
PCI = Need[GuestOnHost]("the host's PCI functions are unknown", lambda scene: bool(scene.host.pci))
GUESTS = Need[GuestOnHost]("the other guests of the host are unknown", lambda scene: scene.host.guests is not None)
CPU_VENDOR = Need[GuestOnHost]("the maker of the host's CPUs is unknown", lambda scene: scene.cpu_vendor is not None)

LIBVIRT = Need[GuestOnHost]("the version of libvirt is unknown", lambda scene: scene.facts.libvirt is not None)
QEMU_VERSION = Need[GuestOnHost]("the version of QEMU is unknown", lambda scene: scene.facts.qemu is not None)


class LintRule(Rule[GuestOnHost], frozen=True, kw_only=True):
    """A rule about a definition. `about` is the path of the XML element, and the subject of a finding is one, too."""


def rule(
    name: str, outcome: str, path: str, *, right: str, **declaration: Any
) -> Callable[[Callable[[GuestOnHost], Iterable[Finding]]], LintRule]:
    """Make the decorated function a rule, whose other fields the declaration has. `outcome`: its worst finding's."""
    return lambda judge: LintRule(id=name, outcome=outcome, about=path, title=right, judge=judge, **declaration)
