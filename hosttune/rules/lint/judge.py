"""Faults of domain XML on a host, each with its evidence (`hosttune lint`, `hosttune plan --check-xml FILE`).

A rule uses only what is known: an unknown node, core or group gives a finding that says so. The planner follows the
same rules, so XML written for a host has no fault there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from hosttune.domain.facts import DomainFacts
from hosttune.domain.reader import domain_facts, read_tree
from hosttune.errors import BadInput
from hosttune.model.host import Host, RunningGuest, VcpuPin
from hosttune.model.limits import check_count
from hosttune.model.lint import LEVELS, LintFinding
from hosttune.rules.lint import cpus, devices, locality, machine, memory, pages, pcitree, pins, shared, virtual
from hosttune.rules.lint.guest_on_host import GuestOnHost, HostFacts
from hosttune.rules.lint.lines import Lines
from hosttune.rules.lint.rule import Fault, Rule

if TYPE_CHECKING:
    from lxml.etree import _Element

# The modules of rules, in the order of the manual and of findings of the same level.
FAMILIES: tuple[ModuleType, ...] = (
    *(machine, cpus, pins, memory, pages),
    *(devices, pcitree, locality, shared, virtual),
)
_JUDGED = ("kvm", "qemu")
MOST = 200  # findings of one rule about one guest: the largest planned guests have some 20 devices


def rules() -> tuple[Rule, ...]:
    """Return all rules, in the order of the manual."""
    return tuple(found for family in FAMILIES for found in vars(family).values() if isinstance(found, Rule))


@dataclass(frozen=True)
class Definition:
    """A domain XML and its name for messages: a path, or `libvirt:NAME`."""

    file: str
    xml: str | bytes


def lint(host: Host, definitions: Sequence[Definition]) -> tuple[LintFinding, ...]:
    """Return what is wrong with these guests on this host, also with each other; errors first.

    Raises BadInput, naming the file, for what is not a domain XML, or is one of another hypervisor.
    """
    check_count(len(definitions), "guests of a host", "command line")
    read = [_read(definition) for definition in definitions]
    facts = HostFacts(host, tuple(as_defined(guest) for _, guest, _ in read if guest.name))
    found: list[LintFinding] = []
    for definition, guest, root in read:
        found += _of_guest(definition, GuestOnHost(facts, guest, root))
    return tuple(sorted(found, key=lambda one: LEVELS.index(one.level)))


def _read(definition: Definition) -> tuple[Definition, DomainFacts, _Element]:
    root = read_tree(definition.xml, where=definition.file)
    guest = domain_facts(root, where=definition.file)
    if guest.type not in _JUDGED:
        what = f"a domain of type {guest.type!r}" if guest.type else "a domain without a type"
        hint = "give the XML of a guest of KVM or QEMU: no rule is meant for another hypervisor"
        raise BadInput(f"{what}, which hosttune does not judge", where=definition.file, hint=hint)
    return definition, guest, root


def as_defined(guest: DomainFacts) -> RunningGuest:
    """Return a guest as the host document shows it when it is defined: what other guests must not share."""
    return RunningGuest(
        name=guest.name or "",
        state="shut off",
        vcpus=guest.vcpus,
        vcpu_pins=tuple(VcpuPin(vcpu=vcpu, cpus=str(cpus)) for vcpu, cpus in sorted(guest.pins.items())),
        emulator_cpus=guest.emulator_cpus,
        iothread_cpus=tuple(pin.cpus for pin in guest.iothread_pins),
        devices=guest.functions,
        mdevs=tuple(device.source for device in guest.hostdevs if device.kind == "mdev" and device.source),
        uuid=guest.uuid,
        host_paths=guest.host_paths,
    )


def _of_guest(definition: Definition, scene: GuestOnHost) -> Iterator[LintFinding]:
    lines = Lines(scene.root)
    for one in rules():
        for fault in _shown(one, one.faults(scene)):
            yield LintFinding(
                level=fault.level or one.severity,
                text=fault.text,
                where=f"{definition.file}: {fault.where}",
                rule=one.id,
                guest=scene.guest.name,
                file=definition.file,
                line=lines.of(fault.where),
                path=fault.where,
                remedy=fault.remedy or one.remedy,
                source=one.source,
                judged=fault.judged,
            )


def _shown(one: Rule, faults: Iterable[Fault]) -> Iterator[Fault]:
    """Yield each fault once, and after many only their number: a guest can have thousands of devices."""
    found = sorted(dict.fromkeys(faults), key=lambda fault: LEVELS.index(fault.level or one.severity))
    yield from found[:MOST]
    if len(found) > MOST:
        yield Fault(f"and {len(found) - MOST} more of this rule", one.path, found[MOST].level, found[MOST].judged)
