"""A guest read from XML together with its host: the values that the critic's rules need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from hosttune.domain.facts import Controller, DomainFacts, HostDevice
from hosttune.model.host import Cpu, Host, PciDevice, RunningGuest
from hosttune.model.values import CpuSet, parse_cpus


@dataclass(frozen=True)
class Fault:
    """A finding without the name of its file: `where` is a path in the XML."""

    level: str
    text: str
    where: str


@dataclass(frozen=True)
class GuestOnHost:
    """A host and a guest read from XML."""

    host: Host
    guest: DomainFacts

    @cached_property
    def cpus(self) -> dict[int, Cpu]:
        """Return the host's CPUs by id."""
        return {cpu.id: cpu for cpu in self.host.cpus}

    @cached_property
    def online(self) -> CpuSet:
        """Return the CPUs that are online, or not known to be offline."""
        return CpuSet(cpu.id for cpu in self.host.cpus if cpu.online is not False)

    @cached_property
    def cores(self) -> dict[int, CpuSet]:
        """Return the online CPUs of each known core, by the core's lowest CPU."""
        cores: dict[int, set[int]] = {}
        for cpu in self.host.cpus:
            if cpu.core is not None and cpu.online is not False:
                cores.setdefault(cpu.core, set()).add(cpu.id)
        return {core: CpuSet(ids) for core, ids in cores.items()}

    @cached_property
    def pins(self) -> dict[int, CpuSet]:
        """Return the host CPUs that each vCPU may run on; for a vCPU without a pin those of `<vcpu cpuset>`."""
        return {vcpu: cpus for vcpu, cpus in self.guest.pins.items() if vcpu < self.guest.vcpus}

    @cached_property
    def pinned(self) -> CpuSet:
        """Return every host CPU that any vCPU is pinned to."""
        return CpuSet(cpu for cpus in self.pins.values() for cpu in cpus)

    @cached_property
    def single(self) -> CpuSet:
        """Return every host CPU that is the only CPU of a vCPU."""
        return CpuSet(cpu for cpus in self.pins.values() if len(cpus) == 1 for cpu in cpus)

    @cached_property
    def service(self) -> CpuSet:
        """Return every host CPU that emulator and I/O threads are pinned to."""
        iothreads = (parse_cpus(pin.cpus) for pin in self.guest.iothread_pins)
        return parse_cpus(self.guest.emulator_cpus) | CpuSet().union(*iothreads)

    @cached_property
    def others(self) -> tuple[RunningGuest, ...]:
        """Return the host's other guests; one with the same name or UUID is this guest itself."""
        return tuple(
            other
            for other in self.host.guests or ()
            if other.name != self.guest.name and (other.uuid is None or other.uuid != self.guest.uuid)
        )

    @cached_property
    def pci(self) -> Mapping[str, PciDevice]:
        """Return the host's PCI functions by address."""
        return self.host.index.pci

    @cached_property
    def gpus(self) -> tuple[HostDevice, ...]:
        """Return the passed devices that the host lists as GPUs."""
        known = {gpu.address for gpu in self.host.gpus}
        return tuple(device for device in self.passed if device.source in known)

    @cached_property
    def gpu_nodes(self) -> CpuSet:
        """Return the known NUMA nodes of the passed GPUs."""
        return CpuSet(node for node in map(self.device_node, self.gpus) if node is not None)

    @cached_property
    def passed(self) -> tuple[HostDevice, ...]:
        """Return the passed PCI functions."""
        return tuple(device for device in self.guest.hostdevs if device.kind == "pci" and device.source)

    @cached_property
    def bars_bytes(self) -> int:
        """Return the least size of the 64-bit window: the sum of all known 64-bit BARs, without alignment gaps."""
        known = (self.pci.get(source) for source in {device.source or "" for device in self.passed})
        return sum(
            bar.size_bytes
            for device in known
            for bar in (device.bars if device else None) or ()
            if bar.is_64bit and bar.prefetchable
        )

    @cached_property
    def hole_bytes(self) -> int | None:
        """Return the pcihole64 written for the root bus; None = QEMU's default."""
        return next((c.pcihole64_bytes for c in self.guest.controllers if c.index == 0), None)

    @cached_property
    def takes_host_cpu(self) -> bool:
        """Return whether the guest has the host's own CPU model, including its address width."""
        return self.guest.type == "kvm" and self.guest.cpu.mode in ("host-passthrough", "maximum")

    @cached_property
    def cell_of_vcpu(self) -> dict[int, int]:
        """Return the guest cell of each vCPU."""
        return {vcpu: cell.id for cell in self.guest.cells for vcpu in parse_cpus(cell.vcpus)}

    def core_of(self, cpu: int) -> int | None:
        """Return the core of a host CPU, named by its lowest CPU."""
        known = self.cpus.get(cpu)
        return known.core if known else None

    def node_of(self, cpu: int) -> int | None:
        """Return the NUMA node of a host CPU."""
        known = self.cpus.get(cpu)
        return known.numa_node if known else None

    def nodes_of(self, cpus: Iterable[int]) -> CpuSet:
        """Return the known NUMA nodes of some host CPUs."""
        return CpuSet(node for node in map(self.node_of, cpus) if node is not None)

    def device_node(self, device: HostDevice) -> int | None:
        """Return the NUMA node of a passed function; None if the host does not know it."""
        known = self.pci.get(device.source or "")
        return known.numa_node if known else None

    def memory_nodes(self, cell: int | None) -> CpuSet | None:
        """Return the host nodes that a cell's memory must come from (None: the whole guest's); None = any node."""
        numatune = self.guest.numatune
        for memnode in numatune.memnodes:
            if memnode.cell == cell:
                return parse_cpus(memnode.nodes) if memnode.mode in ("strict", "restrictive") else None
        if numatune.mode not in ("strict", "restrictive") or not numatune.nodes:
            return None
        return parse_cpus(numatune.nodes)

    def vcpu_nodes(self, cell: int | None) -> CpuSet:
        """Return the host nodes that a cell's vCPUs (None: all vCPUs) are pinned to."""
        vcpus = [v for v in self.pins if cell is None or self.cell_of_vcpu.get(v) == cell]
        return self.nodes_of(cpu for vcpu in vcpus for cpu in self.pins[vcpu])

    def above(self, device: HostDevice) -> tuple[Controller, ...]:
        """Return the controllers from a device's own up to the root; empty if libvirt chooses the address."""
        by_index = {controller.index: controller for controller in self.guest.controllers}
        chain: list[Controller] = []
        address = device.guest_address
        while address and (found := by_index.get(int(address.split(":")[1], 16))) and found not in chain:
            chain.append(found)
            address = found.address if found.index else None
        return tuple(chain)

    def place_of(self, device: HostDevice) -> str:
        """Return the XML path of a passed device."""
        return "/domain/devices/interface" if device.interface else f"/domain/devices/hostdev[{device.source}]"

    def cell_of(self, device: HostDevice) -> int | None:
        """Return the guest cell that a device belongs to: that of the expander bus above it."""
        return next((controller.node for controller in self.above(device) if controller.node is not None), None)
