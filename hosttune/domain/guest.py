"""A guest as libvirt has it or will have it: the content of its domain XML as one frozen value.

The planner's result leads to it (`planned`), the template prints it, the reader reads it; adoption, linter and
discovery use the same.

None means that the XML does not have it. Sizes are bytes; CPU and node lists are in the kernel's list format, with
libvirt's "^" exclusions resolved; PCI addresses are "0000:01:00.0", on the guest's side with libvirt's controller
index as the bus.
"""

from __future__ import annotations

import os
import re
from collections import Counter

from hosttune.domain.arguments import named_nodes, passed_functions
from hosttune.model.sysfs import NET
from hosttune.model.values import CpuSet, Value, parse_cpus, slot_of

PORTS = ("pcie-root-port", "pcie-switch-downstream-port")
_NO_DRIVE = r"/dev/(?:sr|cdrom|dvd|fd|shm/)"


class Pin(Value, frozen=True, kw_only=True):
    """A vCPU or an I/O thread (`id`) and the host CPUs that it may run on."""

    id: int
    cpus: str


class Memnode(Value, frozen=True, kw_only=True):
    """The host nodes from which the memory of a guest cell comes (`cell` None: all memory), by an element of numatune.

    `placement` auto: numad chooses the nodes at each start.
    """

    cell: int | None = None
    mode: str
    nodes: str | None
    placement: str | None = None


class GuestCell(Value, frozen=True, kw_only=True):
    """A guest NUMA cell; `distances` are (cell, distance) pairs as written. Without vCPUs, the list is empty."""

    id: int
    vcpus: str
    memory_bytes: int | None
    distances: tuple[tuple[int, int], ...] = ()
    access: str | None = None
    discard: bool | None = None


class Pages(Value, frozen=True, kw_only=True):
    """Huge pages: a size (None = the host's default size) and the guest cells it is for (None = all others)."""

    size_bytes: int | None
    cells: str | None = None


class CpuTopology(Value, frozen=True, kw_only=True):
    """The guest's topology element; a level that is not written is 1."""

    sockets: int
    dies: int
    clusters: int
    cores: int
    threads: int


class AddressWidth(Value, frozen=True, kw_only=True):
    """The maxphysaddr element."""

    mode: str | None
    bits: int | None = None
    limit: int | None = None


class Controller(Value, frozen=True, kw_only=True):
    """A PCI controller. `bus_nr` and `node` are an expander's, `chassis` and `port` a port's.

    `hotplug` None = not written (libvirt: on).
    """

    index: int
    model: str | None
    address: str | None = None
    chassis: int | None = None
    port: int | None = None
    bus_nr: int | None = None
    node: int | None = None
    pcihole64_bytes: int | None = None
    hotplug: bool | None = None


class HostDevice(Value, frozen=True, kw_only=True):
    """A host device given to the guest, as `<hostdev>` or `<interface type='hostdev'>`.

    `kind` is libvirt's subsystem type (pci, usb, scsi, scsi_host, mdev, …). `source` is a PCI address for pci, the
    UUID for mdev, None for the others. `managed` None = not written (libvirt: no). `rom_bar` None = libvirt's default.
    `clique`: the GPUs with which a GPU may exchange data over PCIe, by `<qemu:override>`. `mac` and `vlan` are an
    interface's: libvirt sets them in the physical function.
    """

    kind: str
    source: str | None
    managed: bool | None = None
    guest_address: str | None = None
    rom_bar: bool | None = None
    clique: int | None = None
    driver: str | None = None
    model: str | None = None
    interface: bool = False
    mac: str | None = None
    vlan: int | None = None


class Disk(Value, frozen=True, kw_only=True):
    """A disk of the guest. `device` is libvirt's (disk, cdrom, …); None = not written (libvirt: disk).

    `function`: the NVMe drive of a disk of type nvme. QEMU drives it through VFIO, so no one else has it meanwhile.
    """

    source: str | None
    target: str | None
    bus: str | None
    type: str | None = None
    format: str | None = None
    cache: str | None = None
    io: str | None = None
    iothread: int | None = None
    boot_order: int | None = None
    guest_address: str | None = None
    device: str | None = None
    readonly: bool = False
    discard: str | None = None
    function: str | None = None


class GuestInterface(Value, frozen=True, kw_only=True):
    """A virtual NIC: `type` is network, bridge, … and `source` the name of that network or bridge."""

    type: str | None
    source: str | None
    model: str | None = None
    mac: str | None = None
    guest_address: str | None = None
    queues: int | None = None


class VirtualIommu(Value, frozen=True, kw_only=True):
    """The guest's IOMMU device; an attribute that is not written is None."""

    model: str | None
    intremap: bool | None = None
    caching_mode: bool | None = None
    eim: bool | None = None
    iotlb: bool | None = None
    dma_translation: bool | None = None
    aw_bits: int | None = None


class MemoryBacking(Value, frozen=True, kw_only=True):
    """The memoryBacking element. `pages` None = no huge pages."""

    pages: tuple[Pages, ...] | None = None
    locked: bool = False
    nosharepages: bool = False
    allocation: str | None = None
    allocation_threads: int | None = None
    source: str | None = None
    access: str | None = None


class GuestCpu(Value, frozen=True, kw_only=True):
    """The cpu element without its cells."""

    mode: str | None = None
    model: str | None = None
    check: str | None = None
    migratable: bool | None = None
    topology: CpuTopology | None = None
    cache: str | None = None
    address_width: AddressWidth | None = None
    features: tuple[tuple[str, str], ...] = ()  # (name, policy), as written


class Guest(Value, frozen=True, kw_only=True):
    """A guest. `balloon` None = libvirt adds a balloon.

    `firmware` is "efi" or "bios" for x86 guests, None if their ROM is neither by its name.
    """

    type: str | None
    name: str | None
    uuid: str | None = None
    arch: str | None = None
    machine: str | None = None
    firmware: str | None = None
    secure_boot: bool | None = None
    kernel: str | None = None
    initrd: str | None = None
    cmdline: str | None = None
    vcpus: int
    vcpus_current: int | None = None
    vcpu_cpus: str | None = None
    vcpu_placement: str | None = None
    vcpu_pins: tuple[Pin, ...] = ()
    emulator_cpus: str | None = None
    iothreads: int = 0
    iothread_pins: tuple[Pin, ...] = ()
    memory_bytes: int | None = None
    current_memory_bytes: int | None = None
    max_memory_bytes: int | None = None
    hard_limit_bytes: int | None = None
    numatune: Memnode | None = None  # its element for all memory
    memnodes: tuple[Memnode, ...] = ()
    backing: MemoryBacking = MemoryBacking()
    cpu: GuestCpu = GuestCpu()
    cells: tuple[GuestCell, ...] = ()
    features: tuple[str, ...] = ()
    kvm_features: tuple[str, ...] = ()  # those that are on
    ioapic: str | None = None
    controllers: tuple[Controller, ...] = ()
    hostdevs: tuple[HostDevice, ...] = ()
    disks: tuple[Disk, ...] = ()
    interfaces: tuple[GuestInterface, ...] = ()
    serial: bool = False
    channels: tuple[str, ...] = ()  # names of virtio channels
    random: str | None = None  # the source of a virtio random number device
    tpm: str | None = None  # the version of a TPM that a program of the host emulates
    watchdog: str | None = None  # the model of the first watchdog
    panic: str | None = None  # the model of a device that reports the kernel's panic
    on_crash: str | None = None
    pit: str | None = None  # what the PIT does with missed ticks
    balloon: str | None = None
    iommu: VirtualIommu | None = None
    qemu_arguments: tuple[str, ...] = ()

    @property
    def functions(self) -> tuple[str, ...]:
        """Return the host addresses of all PCI functions that the guest takes: passed ones and drives of its disks."""
        passed = (device.source for device in self.hostdevs if device.kind == "pci")
        taken = (*passed, *(disk.function for disk in self.disks), *passed_functions(self.qemu_arguments).values())
        return tuple(dict.fromkeys(filter(None, taken)))

    @property
    def policies(self) -> tuple[Memnode, ...]:
        """Return the elements of numatune, the one for all memory first."""
        return (*filter(None, (self.numatune,)), *self.memnodes)

    @property
    def mdevs(self) -> tuple[str, ...]:
        """Return the UUIDs of its mediated devices."""
        return tuple(device.source for device in self.hostdevs if device.kind == "mdev" and device.source)

    @property
    def host_paths(self) -> tuple[str, ...]:
        """Return the nodes (/dev/…) and interfaces (/sys/class/net/…) of the host by which it has a part of a device.

        Disks that are block devices, vDPA, interfaces of the type direct (macvtap), and nodes that QEMU is told of. Of
        a volume of a storage pool, which may be on any device, "volume NAME": a path that leads nowhere.
        """
        block = [disk.source for disk in self.disks if disk.source and disk.type in ("block", "vhostvdpa")]
        disks = [*block, *(disk.source for disk in self.disks if disk.source and disk.source.startswith("/dev/"))]
        disks += [f"volume {disk.source}" for disk in self.disks if disk.type == "volume"]
        links = [
            f"{NET}/{interface.source}"
            for interface in self.interfaces
            if interface.type == "direct" and interface.source
        ]
        vdpa = [interface.source for interface in self.interfaces if interface.type == "vdpa"]
        paths = (os.path.normpath(path) for path in (*disks, *links, *vdpa, *named_nodes(self.qemu_arguments)) if path)
        return tuple(dict.fromkeys(path for path in paths if not re.match(_NO_DRIVE, path)))

    @property
    def multifunction(self) -> frozenset[str]:
        """Return the guest addresses with function 0 in slots that have other functions, too: the XML must say so."""
        places = {controller.address for controller in self.controllers} | {
            device.guest_address for device in self.hostdevs
        }
        slots = Counter(slot_of(place) for place in places if place)
        return frozenset(place for place in places if place and place[-1] == "0" and slots[slot_of(place)] > 1)

    @property
    def pins(self) -> dict[int, CpuSet]:
        """Return the CPUs of each vCPU as libvirt applies them: without a pin, those of `<vcpu cpuset=…>`, if any."""
        default = parse_cpus(self.vcpu_cpus)
        pins = dict.fromkeys(range(self.vcpus), default) if default else {}
        return pins | {pin.id: parse_cpus(pin.cpus) for pin in self.vcpu_pins}
