"""Rules of passed devices: whether the host has them and can give them away, and how they are passed."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.elements import CLIQUE
from hosttune.domain.guest import HostDevice
from hosttune.domain.xml import pci_address
from hosttune.gpu import reads_rom
from hosttune.gpu.vgpu import stays_with_driver, type_folder
from hosttune.inventory.cliques import UNKNOWN, apart, clique_gpus, in_words, wrong
from hosttune.model import sysfs
from hosttune.model.pci import DIRECT_REMEDY, PciDevice, for_vfio
from hosttune.model.pciclass import STORAGE
from hosttune.model.vgpu import VgpuFunction
from hosttune.rules.engine import Finding, Need
from hosttune.rules.lint.guest_on_host import GuestOnHost, named
from hosttune.rules.lint.rule import ADVICE, ERROR, INFO, PCI, WARN, rule, unknown

_HOSTDEV = "/domain/devices/hostdev"
_DEVICES = sysfs.PCI_DEVICES
_GROUPS = sysfs.IOMMU_GROUPS
_SOURCE = "libvirt formatdomain, Host device assignment"
_VFIO = "Linux Documentation/driver-api/vfio"
_ELSEWHERE = "use another slot or port, or a virtual function"
# Devices that the guest boots from, and those with a ROM that somebody chose: their ROM is wanted.
_ROM_WANTED = ("devices/hostdev[@type='pci'][boot]", "devices/hostdev[@type='pci']/rom[@file]/..")
_VGPU = Need[GuestOnHost]("the host's vGPUs are unknown", lambda scene: scene.host.vgpu is not None)


def _passed(scene: GuestOnHost) -> bool:
    return bool(scene.passed)


def each(scene: GuestOnHost) -> tuple[HostDevice, ...]:
    """Return the passed functions, each once: one that is passed twice is one fault, of another rule."""
    return tuple({device.source: device for device in scene.passed}.values())


@rule(
    "device-missing",
    ERROR,
    _HOSTDEV,
    right="each passed device exists on this host, answers, and is not a bridge",
    why="the guest does not start; a device at that address later may be another one",
    source=f"{_DEVICES}; {_SOURCE}",
    remedy="name a device of this host: hosttune discover lists them",
    needs=(PCI,),
    applies=lambda scene: bool(scene.taken),
)
def device_missing(scene: GuestOnHost) -> Iterator[Finding]:
    """Find functions that the host does not have, or that do not answer."""
    for address, where in scene.taken.items():
        function = scene.pci.get(address)
        if function is None:
            yield Finding(f"{address} does not exist on this host ({_DEVICES})", where)
        elif function.responds is False:
            remedy = "power-cycle the host, and look into the kernel log; until then take it out of the guest"
            yield Finding(f"{address} does not answer: it reads all ones ({_DEVICES})", where, remedy=remedy)
        elif function.is_bridge:
            remedy = "take it out, and pass the devices below it"
            yield Finding(f"{address} is a bridge of the host: no guest can have it", where, remedy=remedy)


@rule(
    "mdev-missing",
    INFO,
    _HOSTDEV,
    right="each passed mediated device exists on this host",
    why="the guest does not start until it is created; it does not survive a reboot",
    source="Linux Documentation/driver-api/vfio-mediated-device",
    remedy="create it before the start: hosttune apply does it for a planned guest",
    needs=(_VGPU,),
    applies=lambda scene: any(device.kind == "mdev" for device in scene.guest.hostdevs),
)
def mdev_missing(scene: GuestOnHost) -> Iterator[Finding]:
    """Find mediated devices that are not created now."""
    gpus = scene.host.vgpu.gpus if scene.host.vgpu else ()
    here = {uuid.casefold() for gpu in gpus for function in gpu.functions for uuid in function.mdevs}
    wanted = [device.source or "" for device in scene.guest.hostdevs if device.kind == "mdev"]
    absent = [uuid for uuid in wanted if uuid.casefold() not in here]
    if absent:
        yield Finding(f"mediated devices {named(absent)} do not exist now", f"{_HOSTDEV}[@type='mdev']")


@rule(
    "vgpu-type",
    ERROR,
    _HOSTDEV,
    right="a virtual function that its maker's driver holds as a vGPU has a vGPU type",
    why="the guest does not start; the type does not survive a reboot",
    source="NVIDIA vGPU documentation, vendor-specific VFIO",
    remedy="set the type before the start: hosttune apply does it for a planned guest",
    applies=lambda scene: any(_of_vgpu(scene, address) for address in scene.taken),
)
def vgpu_type(scene: GuestOnHost) -> Iterator[Finding]:
    """Find virtual functions without a type now."""
    for address, where in scene.taken.items():
        function, folder = _of_vgpu(scene, address), type_folder(address)
        if function is None or function.mdevs:
            continue
        if function.current_type == "0":
            remedy = f"echo ID > {folder}/current_vgpu_type (cat {folder}/creatable_vgpu_types lists the IDs)"
            yield Finding(f"{address} has no vGPU type ({folder}/current_vgpu_type)", where, remedy=remedy)
        elif function.current_type is None and stays_with_driver(scene.pci.get(address)):
            yield unknown(f"whether {address} has a vGPU type ({folder}/current_vgpu_type)", where)


@rule(
    "boot-display",
    ERROR,
    _HOSTDEV,
    right="the display that the host boots on stays with the host",
    why="the host's console goes with it",
    source=f"{_DEVICES}/*/boot_vga (Linux ABI/testing/sysfs-bus-pci)",
    remedy="pass another GPU, or boot the host on another display",
    needs=(PCI,),
    applies=_passed,
)
def boot_display(scene: GuestOnHost) -> Iterator[Finding]:
    """Find the host's own display."""
    for device in each(scene):
        function = scene.pci.get(device.source or "")
        if function is not None and function.boot_display:
            yield Finding(f"{device.source} is the display that the host boots on ({_DEVICES})", scene.place_of(device))


@rule(
    "host-driver",
    INFO,
    _HOSTDEV,
    right="a device that libvirt does not manage is held by vfio-pci, or by a VFIO driver of its own",
    why="the guest does not start until it is",
    source=f"{_SOURCE}, managed; {_VFIO}",
    remedy="bind it to vfio-pci, or to its own VFIO driver where the kernel has one (modprobe -c names it beside"
    " vfio_pci:): hosttune plan and apply do it",
    needs=(PCI,),
    applies=_passed,
)
def host_driver(scene: GuestOnHost) -> Iterator[Finding]:
    """Find devices without managed='yes' that another driver holds now; vGPUs stay with their maker's driver."""
    for device in each(scene):
        function = scene.pci.get(device.source or "")
        if function is None or device.managed or _of_vgpu(scene, device.source) or for_vfio(function.driver):
            continue
        if function.driver is None and not function.unbound:
            yield unknown(f"the driver of {device.source} is unknown", scene.place_of(device))
        else:
            holder = f"driver {function.driver} holds it" if function.driver else "no driver holds it"
            remedy = f"bind it to {device.model}, which <driver model=…> asks for" if device.model else None
            wanted = device.model or "vfio-pci"
            yield Finding(f"{device.source}: {holder} now, not {wanted}", scene.place_of(device), remedy=remedy)


@rule(
    "rom-bar",
    ADVICE,
    _HOSTDEV,
    right="the option ROM of a passed device is off, unless its driver reads it",
    why="the guest's firmware runs it: starts take longer, and some ROMs hang the firmware",
    source=f"{_SOURCE}, rom",
    remedy="write <rom bar='off'/> in the <hostdev>, unless the guest boots from this device",
    needs=(PCI,),
    applies=lambda scene: scene.x86 and bool(scene.passed),
)
def rom_bar(scene: GuestOnHost) -> Iterator[Finding]:
    """Find option ROMs that the guest's firmware sees; libvirt has no such switch for an interface."""
    boots = {pci_address(e.find("source/address")) for at in _ROM_WANTED for e in scene.root.iterfind(at)}
    for device in each(scene):
        if reads_rom(scene.host.index.gpus.get(device.source or "")):
            if device.rom_bar is False:
                text = f"{device.source}: its driver reads the option ROM, and may not load without it"
                yield Finding(text, scene.place_of(device), INFO, remedy="take <rom bar='off'/> out")
        elif device.rom_bar is not False and not device.interface and device.source in scene.pci.keys() - boots:
            mend = "<rom bar='off'/> keeps the guest's firmware from running it"
            yield Finding(f"{device.source}: the option ROM is mapped; {mend}", scene.place_of(device))


@rule(
    "gpu-cliques",
    WARN,
    _HOSTDEV,
    right="GPUs are in one clique if the host lets them exchange data over PCIe, and only then",
    why="without a clique data between two GPUs goes through the guest's memory; within a wrong one it can reach"
    " another device",
    source="QEMU hw/vfio/pci-quirks.c (x-nv-gpudirect-clique); PCI Express Base 5.0, 6.12.1.1",
    remedy="take the <alias> and <qemu:override> that hosttune plan writes for these GPUs",
    needs=(PCI,),
    applies=lambda scene: len(clique_gpus(scene.host, _sources(scene))) > 1,
)
def gpu_cliques(scene: GuestOnHost) -> Iterator[Finding]:
    """Find cliques that the host's tree and ACS do not allow, and those that are missing."""
    written = {device.source: device.clique for device in scene.passed if device.source and device.clique is not None}
    for one, other, why in wrong(scene.host, written, written):
        text = f"{one} and {other} are in one clique, {why}"
        yield unknown(text, _HOSTDEV) if why == UNKNOWN else Finding(text, f"{_HOSTDEV}[{one}]")
    missing = [pair for pair in apart(scene.host, _sources(scene), written) if not pair[2]]
    if missing and CLIQUE in scene.facts.elements:
        text = f"no peer-to-peer between {'; '.join(in_words(missing))}: they are in no clique"
        yield Finding(text, _HOSTDEV, INFO)


def _sources(scene: GuestOnHost) -> list[str]:
    return [device.source or "" for device in scene.passed]


@rule(
    "managed",
    ERROR,
    _HOSTDEV,
    right="libvirt does not rebind passed devices when the guest stops",
    why="the host's driver and daemons get the GPU each time; a vGPU breaks",
    source=f"{_SOURCE}, managed; NVIDIA vGPU documentation, vendor-specific VFIO",
    remedy="write managed='no', and bind the device to vfio-pci for good (hosttune plan and apply)",
    applies=_passed,
)
def managed(scene: GuestOnHost) -> Iterator[Finding]:
    """Find managed='yes': an error for a vGPU, else worth knowing."""
    for device in each(scene):
        if device.managed and _of_vgpu(scene, device.source):
            text = (
                f"{device.source} is a virtual function that its maker's driver holds as a vGPU: managed='yes' rebinds"
                " it to vfio-pci, which breaks it; it wants managed='no'"
            )
            yield Finding(
                text, scene.place_of(device), remedy="write managed='no', and leave it with its maker's driver"
            )
        elif device.managed:
            text = f"{device.source}: managed='yes' gives it back to the host's driver whenever the guest stops"
            yield Finding(text, scene.place_of(device), INFO)


def _of_vgpu(scene: GuestOnHost, address: str | None) -> VgpuFunction | None:
    """Return a function that has vGPUs through the vendor's own VFIO (NVIDIA vGPU docs, vendor-specific VFIO)."""
    gpus = scene.host.vgpu.gpus if scene.host.vgpu else ()
    return next((function for gpu in gpus for function in gpu.functions if function.address == address), None)


@rule(
    "iommu-group",
    ERROR,
    _HOSTDEV,
    right="no driver of the host and no other guest holds a function of a passed device's IOMMU group",
    why="VFIO opens no such group: the guest does not start",
    source=f"{_VFIO}; {_GROUPS}",
    remedy="pass the function that is left to this guest as well, or bind it to vfio-pci, or leave it without a driver",
    needs=(PCI,),
    applies=lambda scene: bool(scene.taken),
)
def iommu_group(scene: GuestOnHost) -> Iterator[Finding]:
    """Find groups that are split, and devices that are in no group now."""
    passed = set(scene.taken)
    for _, members in sorted(scene.host.index.groups.items()):
        taken = sorted(member.address for member in members if member.address in passed)
        for left in members if taken else ():
            if left.address not in passed:
                yield _left(scene, left, named(taken))
    without = sorted(a for a in passed if (function := scene.pci.get(a)) is not None and function.iommu_group is None)
    if without and scene.host.iommu is not None and scene.host.iommu.present is False:
        text = f"{named(without)} in no IOMMU group: the IOMMU is off, and no device can be passed until it is on"
        yield Finding(text, _HOSTDEV, INFO, remedy="switch the IOMMU on, in the firmware and in the kernel's arguments")
    elif without:
        yield unknown(f"the IOMMU groups of {named(without)} are unknown", _HOSTDEV)


def _left(scene: GuestOnHost, left: PciDevice, taken: str) -> Finding:
    """Judge a function that is left of a group. What the host uses, or may use, is never advised to be given away."""
    index, address = scene.host.index, left.address
    source = f"({_GROUPS}/{left.iommu_group}/devices)"
    if left.driver_unknown:
        return unknown(f"which driver holds {address}, in the group of {taken}, is unknown {source}", _HOSTDEV)
    ends = (address, *index.virtuals.get(address, ()))
    owner = next((other for other in scene.others if not other.devices.isdisjoint(ends)), None)
    if left.vfio_viable or stays_with_driver(left):
        if owner is None:
            text = f"{address} is left in the group of {taken}: nothing can use it while this guest runs {source}"
            return Finding(text, _HOSTDEV, INFO, remedy="pass it as well if the guest needs it")
        text = (
            f"{taken} and {address} of guest {owner.name} are in one group: the two guests cannot run at the same time"
        )
        return Finding(f"{text} {source}", _HOSTDEV, WARN if owner.stopped else "", remedy=_ELSEWHERE)
    uses = (
        *(index.in_use[end] for end in ends if end in index.in_use),
        *(("the host boots on this display",) if left.boot_display else ()),
        *((f"guest {owner.name} has it",) if owner is not None else ()),
    )
    disks = (left.class_code or "").startswith(STORAGE) and address not in {drive.address for drive in scene.host.nvme}
    doubts = (
        *(f"whether the host uses it: {index.use_unknown[end]}" for end in ends if end in index.use_unknown),
        *(("which of the host's disks are behind it is unknown",) if disks else ()),
    )
    why = f" ({'; '.join(uses or doubts)})" if uses or doubts else ""
    text = f"{taken} cannot be passed: {address}, which driver {left.driver} holds, is in its group{why} {source}"
    return Finding(text, _HOSTDEV, remedy=_ELSEWHERE if uses or doubts else None)


@rule(
    "reserved-memory",
    ERROR,
    _HOSTDEV,
    right="the firmware keeps no memory for direct DMA of a passed device",
    why="VFIO and iommufd refuse its IOMMU group, and the guest does not start",
    source=f"{_GROUPS}/*/reserved_regions; Linux drivers/iommu/iommu.c (require_direct)",
    remedy=DIRECT_REMEDY,
    needs=(PCI,),
    applies=lambda scene: bool(scene.taken),
)
def reserved_memory(scene: GuestOnHost) -> Iterator[Finding]:
    """Find passed functions whose group has a reserved region of type direct."""
    for address, where in scene.taken.items():
        if (device := scene.pci.get(address)) is not None and device.kept_by_firmware:
            yield Finding(f"{address} cannot be passed: {device.kept_by_firmware}", where)
