"""A rule of the linter: a declaration and a pure function from a guest on its host to faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hosttune.rules.lint.guest_on_host import GuestOnHost

ERROR, WARN, INFO = "error", "warn", "info"


@dataclass(frozen=True)
class Fault:
    """What a rule found: `where` is a path in the XML; `level` and `remedy` None are the rule's own."""

    text: str
    where: str
    level: str | None = None
    judged: bool = True
    remedy: str | None = None


def unknown(why: str, where: str) -> Fault:
    """Return the fault of a rule that applies and lacks a fact of the host. Never silence, never a pass."""
    return Fault(f"cannot be judged: {why}", where, INFO, judged=False)


@dataclass(frozen=True)
class Need:
    """A fact of the host without which a rule cannot judge: why it cannot, and whether the fact is known."""

    why: str
    known: Callable[[GuestOnHost], bool]


CPUS = Need("the host's CPUs are unknown", lambda scene: bool(scene.host.cpus))
CORES = Need("which CPUs share a core is unknown", lambda scene: bool(scene.cores))
CPU_NODES = Need(
    "the NUMA nodes of the host's CPUs are unknown", lambda scene: any(c.numa_node is not None for c in scene.host.cpus)
)
NODES = Need("the host's NUMA nodes are unknown", lambda scene: bool(scene.host.numa_nodes))
PCI = Need("the host's PCI functions are unknown", lambda scene: bool(scene.host.pci))
GUESTS = Need("the other guests of the host are unknown", lambda scene: scene.host.guests is not None)
CPU_VENDOR = Need("the maker of the host's CPUs is unknown", lambda scene: scene.cpu_vendor is not None)


@dataclass(frozen=True)
class Rule:
    """One rule. `id` is stable and kebab-case.

    `severity` is the level of its faults, the highest if a fault can have a lower one. `right` says what is right,
    `why` what a fault costs, `source` where the rule comes from, `remedy` what to do. `path` is the XML element that it
    is about. The rule is asked only if `applies`, and then only if each of its `needs` is known: otherwise its single
    finding says what is unknown.
    """

    id: str
    severity: str
    right: str
    why: str
    source: str
    remedy: str
    path: str
    find: Callable[[GuestOnHost], Iterable[Fault]]
    needs: tuple[Need, ...] = ()
    applies: Callable[[GuestOnHost], bool] = lambda scene: True

    def faults(self, scene: GuestOnHost) -> tuple[Fault, ...]:
        """Return what this rule finds in a guest on its host."""
        if not self.applies(scene):
            return ()
        missing = next((need for need in self.needs if not need.known(scene)), None)
        return tuple(self.find(scene)) if missing is None else (unknown(missing.why, self.path),)


def rule(
    name: str,
    severity: str,
    path: str,
    *,
    right: str,
    why: str,
    source: str,
    remedy: str,
    needs: tuple[Need, ...] = (),
    applies: Callable[[GuestOnHost], bool] = lambda scene: True,
) -> Callable[[Callable[[GuestOnHost], Iterable[Fault]]], Rule]:
    """Make the decorated function a `Rule` with this declaration."""

    def declare(find: Callable[[GuestOnHost], Iterable[Fault]]) -> Rule:
        return Rule(name, severity, right, why, source, remedy, path, find, needs, applies)

    return declare
