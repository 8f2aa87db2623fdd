"""A guest read from XML together with its host: the values that the rules need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from hosttune.domain import arguments
from hosttune.domain.elements import ASSUMED_LIBVIRT, ASSUMED_QEMU, Version, version_of
from hosttune.domain.guest import Controller, Guest, HostDevice
from hosttune.inventory.devices import Catalogue, read_catalogue
from hosttune.inventory.width import supported_elements
from hosttune.model.host import Cpu, Host, PciDevice, RunningGuest
from hosttune.model.listing import some
from hosttune.model.values import CpuSet, parse_cpus

if TYPE_CHECKING:
    from lxml.etree import _Element

_X86 = ("x86_64", "i686")
QEMU_ARGUMENTS = "/domain/qemu:commandline"
_NVME_DISK = "/domain/devices/disk[@type='nvme']"
_STOPPED = ("shut off", "crashed")
_SWITCHES = ("pcie-expander-bus", "pcie-switch-upstream-port")


def bus_of(address: str) -> int:
    """Return the bus of a PCI address; in the guest this is its controller's index."""
    return int(address.split(":")[1], 16)


def named(items: Iterable[object], limit: int = 6) -> str:
    """Return items for a sentence, cut after a few: "0, 1, 2 and 5 more"."""
    return some(map(str, items), limit)


class OtherGuest(msgspec.Struct, frozen=True):
    """What another guest has: the host CPUs of its vCPUs, of its other threads, and its devices.

    A guest that may use every CPU is not pinned: it has no CPUs of its own. `cores` are those of its vCPUs.
    """

    guest: RunningGuest
    vcpus: CpuSet
    service: CpuSet
    cores: frozenset[int]
    devices: frozenset[str]

    @property
    def name(self) -> str:
        """Return its name."""
        return self.guest.name

    @property
    def stopped(self) -> bool:
        """Return whether it does not run: what it has can be another's in the meantime."""
        return self.guest.state in _STOPPED


class HostFacts(msgspec.Struct, frozen=True, dict=True):
    """What the rules derive from a host alone. One value serves all guests that are judged together.

    `given` are those guests, as they will be defined; they replace the host's guests of the same name.
    """

    host: Host
    given: tuple[RunningGuest, ...] = ()

    @cached_property
    def guests(self) -> tuple[OtherGuest, ...]:
        """Return all guests, those that are judged first."""
        names = {guest.name for guest in self.given}
        known = (*self.given, *(guest for guest in self.host.guests or () if guest.name not in names))
        return tuple(self._other(guest) for guest in known)

    def shared_by(self, guest: RunningGuest | Guest) -> Mapping[str, str]:
        """Return the functions that a guest shares with the host, each with the path of the node or interface."""
        return {function: path for path in guest.host_paths for function in self.host.index.functions_under(path) or ()}

    def _other(self, guest: RunningGuest) -> OtherGuest:
        vcpus = CpuSet().union(*(parse_cpus(pin.cpus) for pin in guest.vcpu_pins or ()))
        service = parse_cpus(guest.emulator_cpus).union(*map(parse_cpus, guest.iothread_cpus or ()))
        own, beside = (CpuSet() if self.online and cpus >= self.online else CpuSet(cpus) for cpus in (vcpus, service))
        cores = frozenset(found.core for cpu in own if (found := self.cpus.get(cpu)) and found.core is not None)
        devices = frozenset((*guest.devices, *(uuid.casefold() for uuid in guest.mdevs)))
        return OtherGuest(guest, own, beside, cores, devices)

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
    def catalogue(self) -> Catalogue:
        """Return the host's devices as the planner sees them, with its NVSwitch fabric."""
        return read_catalogue(self.host)

    @cached_property
    def libvirt(self) -> Version | None:
        """Return the version of the installed libvirt."""
        return version_of(self.host.virtualization.libvirt_version if self.host.virtualization else None)

    @cached_property
    def qemu(self) -> Version | None:
        """Return the version of the installed QEMU."""
        return version_of(self.host.virtualization.qemu_version if self.host.virtualization else None)

    @property
    def json_devices(self) -> bool:
        """Return whether libvirt gives QEMU each device as JSON, where -set finds none (QEMU_CAPS_DEVICE_JSON).

        libvirt 7.9 took JSON of QEMU 6.2; 8.1 and newer wait for QEMU 7.0, which can unplug such devices.
        """
        libvirt, qemu = self.libvirt or ASSUMED_LIBVIRT, self.qemu or ASSUMED_QEMU
        return qemu >= ((7, 0) if libvirt >= (8, 1) else (6, 2)) and libvirt >= (7, 9)

    @cached_property
    def elements(self) -> frozenset[str]:
        """Return the optional XML elements that the installed libvirt and QEMU support, as the planner decides it."""
        return frozenset(supported_elements(self.host.virtualization)[0])


class GuestOnHost(msgspec.Struct, frozen=True, dict=True):
    """A host and a guest read from XML.

    `root` is the `<domain>` element, for what `guest` does not have. `runs`: it is made of a QEMU that runs, so QEMU
    has taken it, and libvirt may not know it.
    """

    facts: HostFacts
    guest: Guest
    root: _Element
    runs: bool = False

    @property
    def host(self) -> Host:
        """Return the host document."""
        return self.facts.host

    @property
    def cpus(self) -> dict[int, Cpu]:
        """Return the host's CPUs by id."""
        return self.facts.cpus

    @property
    def online(self) -> CpuSet:
        """Return the CPUs that are online, or not known to be offline."""
        return self.facts.online

    @property
    def cores(self) -> dict[int, CpuSet]:
        """Return the online CPUs of each known core, by the core's lowest CPU."""
        return self.facts.cores

    @property
    def cpu_vendor(self) -> str | None:
        """Return the maker of the host's CPUs."""
        return self.host.cpu_model.vendor if self.host.cpu_model else None

    @cached_property
    def x86(self) -> bool:
        """Return whether it is an x86 guest; without an architecture libvirt takes the host's."""
        return (self.guest.arch or self.host.arch or _X86[0]) in _X86

    @cached_property
    def q35(self) -> bool:
        """Return whether its machine has PCIe (only for x86 guests)."""
        return "q35" in (self.guest.machine or "")

    @property
    def kvm(self) -> bool:
        """Return whether it runs on KVM; otherwise QEMU emulates its CPU."""
        return self.guest.type == "kvm"

    @cached_property
    def demanding(self) -> bool:
        """Return whether it is meant to be fast: it has pinned vCPUs or devices of the host."""
        return bool(self.pins or self.given)

    @cached_property
    def given(self) -> tuple[HostDevice, ...]:
        """Return the passed functions and mediated devices."""
        return tuple(device for device in self.guest.hostdevs if device.kind in ("pci", "mdev"))

    @cached_property
    def confidential(self) -> bool:
        """Return whether its memory is encrypted, or the kernel's guest_memfd: then nothing moves or merges it."""
        return self.written("launchSecurity")

    @cached_property
    def all_pinned(self) -> bool:
        """Return whether each vCPU has one host CPU of its own."""
        return len(self.pins) == self.guest.vcpus and len(self.single) == self.guest.vcpus

    def written(self, path: str) -> bool:
        """Return whether an element of that path (ElementPath, below `<domain>`) is in the XML."""
        return self.root.find(path) is not None

    @cached_property
    def pins(self) -> dict[int, CpuSet]:
        """Return the host CPUs that each vCPU may run on; for a vCPU without a pin those of `<vcpu cpuset>`."""
        return {vcpu: cpus for vcpu, cpus in self.guest.pins.items() if vcpu < self.guest.vcpus}

    @cached_property
    def off(self) -> frozenset[int]:
        """Return the vCPUs that are off when the guest starts: they have no thread until they are plugged in."""
        if self.written("vcpus/vcpu"):
            ids = (element.get("id") or "" for element in self.root.iterfind("vcpus/vcpu[@enabled='no']"))
            return frozenset(int(text) for text in ids if text.isdecimal() and len(text) < 6)
        current = self.guest.vcpus_current
        return frozenset(range(self.guest.vcpus if current is None else current, self.guest.vcpus))

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
    def others(self) -> tuple[OtherGuest, ...]:
        """Return the other guests; one with the same name or UUID is this guest itself."""
        mine = self.guest
        return tuple(
            other
            for other in self.facts.guests
            if other.name != mine.name and (other.guest.uuid is None or other.guest.uuid != mine.uuid)
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
    def has_gpus(self) -> bool:
        """Return whether it has GPUs or vGPUs, also by arguments, or passed functions of which that is unknown."""
        known = {gpu.address for gpu in self.host.gpus}
        taken = (self.pci.get(address) for address in self.taken)
        vgpus = any(device.kind == "mdev" for device in self.given)
        return (
            self.may_have_gpus
            or vgpus
            or any(function and known & {function.address, function.physfn} for function in taken)
        )

    @property
    def may_have_gpus(self) -> bool:
        """Return whether it has GPUs, or passed functions of which that is unknown."""
        return bool(self.gpus) or (bool(self.passed) and not self.host.pci)

    @cached_property
    def gpu_nodes(self) -> CpuSet:
        """Return the known NUMA nodes that the passed GPUs count for."""
        return CpuSet(node for node in map(self.home_of, self.gpus) if node is not None)

    @cached_property
    def passed(self) -> tuple[HostDevice, ...]:
        """Return the passed PCI functions."""
        return tuple(device for device in self.guest.hostdevs if device.kind == "pci" and device.source)

    @cached_property
    def taken(self) -> Mapping[str, str]:
        """Return the XML path of each PCI function that the guest takes: passed ones, and NVMe drives of its disks."""
        drives = {disk.function: _NVME_DISK for disk in self.guest.disks if disk.function is not None}
        written = arguments.passed_functions(self.guest.qemu_arguments).values()
        return {
            **dict.fromkeys(filter(None, written), QEMU_ARGUMENTS),
            **drives,
            **{device.source or "": self.place_of(device) for device in self.passed},
        }

    @cached_property
    def shared(self) -> Mapping[str, str]:
        """Return the functions that the guest shares with the host, each with the path of the node or interface."""
        return self.facts.shared_by(self.guest)

    @cached_property
    def untold(self) -> tuple[str, ...]:
        """Return the nodes of the host of which it is unknown what they are on."""
        return tuple(path for path in self.guest.host_paths if self.host.index.functions_under(path) is None)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Return the addresses of the passed functions, each once."""
        return tuple(dict.fromkeys(device.source or "" for device in self.passed))

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
        """Return the pcihole64 of the root bus, as an argument (QEMU takes the last) or written; None = QEMU's own."""
        return arguments.hole_bytes(self.guest.qemu_arguments) or next(
            (c.pcihole64_bytes for c in self.guest.controllers if c.index == 0), None
        )

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

    def home_of(self, device: HostDevice) -> int | None:
        """Return the node that a passed function counts for: its own, or the nearest with CPUs if that has none."""
        return self.host.home(self.device_node(device))

    @cached_property
    def _policies(self) -> dict[int | None, CpuSet | None]:
        """Return the nodes of each cell that has a memnode, and of all memory (key None); None = any node."""
        return {
            policy.cell: parse_cpus(policy.nodes)
            if policy.mode in ("strict", "restrictive") and (policy.nodes or policy.cell is not None)
            else None
            for policy in self.guest.policies
        }

    def memory_nodes(self, cell: int | None) -> CpuSet | None:
        """Return the host nodes that a cell's memory must come from (None: the whole guest's); None = any node."""
        return self._policies.get(cell, self._policies.get(None))

    @cached_property
    def _vcpu_nodes(self) -> dict[int | None, CpuSet]:
        """Return the host nodes of the vCPUs of each cell, and of all vCPUs (None)."""
        nodes: dict[int | None, set[int]] = {None: set()}
        for vcpu, cpus in self.pins.items():
            cpu_set = self.nodes_of(cpus)
            nodes[None] |= cpu_set
            nodes.setdefault(self.cell_of_vcpu.get(vcpu), set()).update(cpu_set)
        return {cell: CpuSet(cpus) for cell, cpus in nodes.items()}

    def vcpu_nodes(self, cell: int | None) -> CpuSet:
        """Return the host nodes that a cell's vCPUs (None: all vCPUs) are pinned to."""
        return self._vcpu_nodes.get(cell, CpuSet())

    @cached_property
    def pages_of_cell(self) -> dict[int, int | None]:
        """Return the page size of each cell that pages are written for; None = the host's default."""
        sizes: dict[int, int | None] = {}
        for page in self.guest.backing.pages or ():
            for cell in parse_cpus(page.cells):
                sizes.setdefault(cell, page.size_bytes)
        return sizes

    @cached_property
    def by_index(self) -> dict[int, Controller]:
        """Return the PCI controllers by index."""
        return {controller.index: controller for controller in self.guest.controllers}

    @cached_property
    def has_tree(self) -> bool:
        """Return whether the guest has expander buses or switches: then the place of a device means something."""
        return any(controller.model in _SWITCHES for controller in self.guest.controllers)

    @cached_property
    def _chains(self) -> dict[int, tuple[Controller, ...]]:
        """Return the controllers from each bus up to the root, or to the first that the XML does not have."""
        chains: dict[int, tuple[Controller, ...]] = {}
        for bus in {bus_of(device.guest_address) for device in self.guest.hostdevs if device.guest_address}:
            chain: dict[int, Controller] = {}
            at = self.by_index.get(bus)
            while at is not None and at.index not in chain:
                chain[at.index] = at
                at = self.by_index.get(bus_of(at.address)) if at.index and at.address else None
            chains[bus] = tuple(chain.values())
        return chains

    def above(self, device: HostDevice) -> tuple[Controller, ...]:
        """Return the controllers from a device's own up to the root; empty if libvirt chooses the address."""
        return self._chains[bus_of(device.guest_address)] if device.guest_address else ()

    def place_of(self, device: HostDevice) -> str:
        """Return the XML path of a passed device."""
        return "/domain/devices/interface" if device.interface else f"/domain/devices/hostdev[{device.source}]"

    def cell_of(self, device: HostDevice) -> int | None:
        """Return the guest cell that a device belongs to: that of the expander bus above it."""
        return next((controller.node for controller in self.above(device) if controller.node is not None), None)
