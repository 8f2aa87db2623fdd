"""The expected CPUs, memory nodes and devices of a guest, as one value from its plan or from its definition.

Pure. `hosttune.domain.guestdiff` compares it with another definition, and with the guest's running process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hosttune.domain.planned import is_node
from hosttune.model.host import GuestMemory, RunningGuest, VcpuPin
from hosttune.model.plan import AdoptedGuest, PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus


@dataclass(frozen=True, kw_only=True)
class ExpectedMemory:
    """A part of a guest's memory: its bytes (None: unknown) and the host nodes that it comes from (empty: any node).

    `page_bytes`: the size of its huge pages; None: ordinary pages, or unknown. `cell`: the guest's cell; None: unknown.
    """

    size_bytes: int | None
    nodes: CpuSet
    page_bytes: int | None = None
    cell: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExpectedGuest:
    """The expected places of a guest's threads, memory and devices; a field that is None is unknown.

    `vcpu_pins`: host CPUs by vCPU; a vCPU without an entry is not pinned. `emulator_cpus`: empty = not pinned.
    `iothread_cpus`: host CPUs of each pinned I/O thread; from a plan in the order of I/O thread 1, 2, and so on.
    `memory_bytes`: all memory, including memory plugged in later, which is not in `memory`. `page_bytes`: the only size
    of its huge pages. `devices`: PCI addresses and UUIDs of mediated devices, in lower case. `from_plan`: hosttune
    decided the values, so no other vCPU, I/O thread or huge page is expected.
    """

    name: str
    vcpus: int | None
    vcpu_pins: Mapping[int, CpuSet] | None
    emulator_cpus: CpuSet | None
    iothread_cpus: tuple[CpuSet, ...] | None
    memory_bytes: int | None
    memory: tuple[ExpectedMemory, ...] | None
    page_bytes: int | None
    devices: frozenset[str] | None
    from_plan: bool = False

    @property
    def has_huge_pages(self) -> bool:
        """Return whether any part of its memory is known to have huge pages."""
        return any(part.page_bytes for part in self.memory or ())

    @classmethod
    def of_plan(cls, guest: PlannedGuest) -> ExpectedGuest:
        """Return the guest as its plan decides it."""
        page_bytes = guest.huge_page_bytes
        return cls(
            name=guest.name,
            vcpus=len(guest.vcpu_pins),
            vcpu_pins={pin.vcpu: parse_cpus(pin.cpus) for pin in guest.vcpu_pins},
            emulator_cpus=parse_cpus(guest.emulator_cpus),
            iothread_cpus=tuple(parse_cpus(cpus) for cpus in guest.iothread_cpus),
            memory_bytes=sum(cell.memory_bytes for cell in guest.cells),
            memory=tuple(
                ExpectedMemory(
                    size_bytes=cell.memory_bytes,
                    nodes=parse_cpus(cell.host_nodes),
                    page_bytes=page_bytes,
                    cell=cell.id,
                )
                for cell in guest.cells
            ),
            page_bytes=page_bytes,
            devices=frozenset(device.address.casefold() for device in guest.devices),
            from_plan=True,
        )

    @classmethod
    def of_adoption(cls, adopted: AdoptedGuest) -> ExpectedGuest:
        """Return the place of an existing guest as a plan decides it; its other threads and devices are its own."""
        memory = tuple(
            ExpectedMemory(size_bytes=one.cell.memory_bytes, nodes=parse_cpus(one.cell.host_nodes), cell=one.id)
            for one in adopted.cells
        )
        pins = {pin.vcpu: parse_cpus(pin.cpus) for pin in adopted.pins}
        planned = cls.of_plan(adopted.guest)
        return replace(
            planned, vcpu_pins=pins, memory=memory, emulator_cpus=None, iothread_cpus=None, devices=None,
            from_plan=False,
        )  # fmt: skip

    @classmethod
    def of_definition(cls, guest: RunningGuest, *, only_node: int | None = None) -> ExpectedGuest:
        """Return the guest as libvirt defines it. `only_node`: the host's single node, from which all memory comes."""
        pins = guest.vcpu_pins
        unread = guest.vcpus is None and pins is None and guest.memory is None
        devices = frozenset(device.casefold() for device in (*guest.devices, *guest.mdevs))
        return cls(
            name=guest.name,
            vcpus=guest.vcpus,
            vcpu_pins=None if pins is None else {pin.vcpu: parse_cpus(pin.cpus) for pin in pins},
            # Pins are known only if the definition was read. Then a missing emulator pin means that there is none.
            emulator_cpus=None if pins is None and guest.emulator_cpus is None else parse_cpus(guest.emulator_cpus),
            iothread_cpus=None if guest.iothread_cpus is None else tuple(map(parse_cpus, guest.iothread_cpus)),
            memory_bytes=guest.memory_bytes,
            memory=None if guest.memory is None else tuple(_part(part, only_node) for part in guest.memory),
            page_bytes=guest.page_bytes,
            devices=None if unread and not devices else devices,
        )


def _part(part: GuestMemory, only_node: int | None) -> ExpectedMemory:
    node = only_node if part.node is None else part.node
    return ExpectedMemory(
        size_bytes=part.memory_bytes, nodes=CpuSet(() if node is None else (node,)), page_bytes=part.page_bytes
    )


def as_defined(guest: PlannedGuest) -> RunningGuest:
    """Return a planned guest as the host document will show it once it is defined."""
    return RunningGuest(
        name=guest.name,
        state="shut off",
        vcpus=len(guest.vcpu_pins),
        vcpu_pins=tuple(VcpuPin(vcpu=pin.vcpu, cpus=pin.cpus) for pin in guest.vcpu_pins),
        emulator_cpus=guest.emulator_cpus,
        iothread_cpus=guest.iothread_cpus,
        memory_bytes=sum(cell.memory_bytes for cell in guest.cells),
        memory=tuple(
            GuestMemory(node=int(cell.host_nodes), memory_bytes=cell.memory_bytes, page_bytes=guest.page_bytes)
            for cell in guest.cells
        ),
        page_bytes=guest.page_bytes,
        devices=tuple(device.address for device in guest.devices),
        uuid=guest.uuid,
        host_paths=(guest.disk,) if guest.disk and is_node(guest.disk) else (),
    )
