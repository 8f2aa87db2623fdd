"""Which devices a guest takes: GPUs named or counted, what their IOMMU groups bring along, and who they are.

Pure. Addresses are checked here: unknown ones and the boot display are bad input, with what exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hosttune.errors import BadInput
from hosttune.gpu.bridges import Kept, kept_bridges
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.intent import GpuRequest, GuestIntent
from hosttune.model.values import address_key as address_key
from hosttune.model.values import parse_address, slot_of
from hosttune.planning.fabric.partitions import Fabric, read_fabric


@dataclass(frozen=True)
class Catalogue:
    """The host's devices by address, and who has which.

    `index`: how they are connected, and what is in doubt. `holders`: the existing guest that holds a device.
    `in_use`: why the host itself needs a NIC or drive. `virtuals`: the virtual functions that a physical function has
    now. `fabric`: what joins the GPUs.
    """

    index: DeviceIndex
    pci: Mapping[str, PciDevice]
    gpus: Mapping[str, Gpu]
    holders: Mapping[str, str]
    groups: Mapping[int, tuple[PciDevice, ...]]
    nvswitches: frozenset[str]
    in_use: Mapping[str, str]
    virtuals: Mapping[str, tuple[str, ...]]
    fabric: Fabric
    kept: Mapping[str, Kept]  # functions that carry the GPUs' fabric, or may

    def node(self, address: str) -> int | None:
        """The NUMA node of a device, None when unknown."""
        device = self.pci.get(address)
        return device.numa_node if device else None

    def above(self, address: str) -> tuple[str, ...]:
        """The bridges above a device, nearest first."""
        return self.index.above(address)


def read_catalogue(host: Host) -> Catalogue:
    """Index a host document."""
    return Catalogue(
        index=host.index,
        pci=host.index.pci,
        gpus=host.index.gpus,
        holders=host.index.holders,
        groups=host.index.groups,
        nvswitches=frozenset(switch.address for switch in host.nvswitches),
        in_use=host.index.in_use,
        virtuals=host.index.virtuals,
        fabric=read_fabric(host),
        kept=kept_bridges(host.pci, host.nics),
    )


def countable_gpus(host: Host, catalogue: Catalogue) -> list[Gpu]:
    """GPUs that counts and `auto` mean: of a known maker, whole (no virtual function), not the boot display."""
    return [
        gpu
        for gpu in host.index.accelerators
        if not _is_virtual(catalogue, gpu.address) and not _is_boot(catalogue, gpu.address)
    ]


def _is_virtual(catalogue: Catalogue, address: str) -> bool:
    device = catalogue.pci.get(address)
    return bool(device and device.physfn)


def _is_boot(catalogue: Catalogue, address: str) -> bool:
    device = catalogue.pci.get(address)
    return bool(device and device.boot_display)


def named_gpus(catalogue: Catalogue, addresses: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Canonical addresses of explicitly named GPUs, in address order. Raises BadInput listing what exists."""
    have = _listing(catalogue)
    result: list[str] = []
    for text in addresses:
        address = parse_address(text, where=where)
        if address in result:
            raise BadInput(f"GPU {address} is named twice", where=where, hint="name each GPU once")
        if address not in catalogue.gpus:
            known = address in catalogue.pci
            what = (
                f"{address} is not a GPU but {_describe(catalogue.pci[address])}" if known else f"no device {address}"
            )
            raise BadInput(what, where=where, hint=f"this host has {have}")
        if _is_boot(catalogue, address):
            raise BadInput(
                f"{address} is the boot display: the host's console would go with it",
                where=where,
                hint=f"choose another; this host has {have}",
            )
        result.append(address)
    return tuple(sorted(result, key=address_key))


def named_devices(catalogue: Catalogue, addresses: tuple[str, ...], kind: str, where: str) -> tuple[str, ...]:
    """Canonical addresses of explicitly named NICs or NVMe drives. Raises BadInput listing what exists."""
    prefix = {"nic": "02", "nvme": "0108"}[kind]
    have = [d.address for d in catalogue.pci.values() if (d.class_code or "").startswith(prefix)]
    result = []
    for text in addresses:
        address = parse_address(text, where=where)
        device = catalogue.pci.get(address)
        if device is None or not (device.class_code or prefix).startswith(prefix):
            what = f"no device {address}" if device is None else f"{address} is not a {kind} but {_describe(device)}"
            raise BadInput(what, where=where, hint=f"this host has {', '.join(have[:16]) or 'none'}")
        if address in result:
            raise BadInput(f"{address} is named twice", where=where, hint="name each device once")
        if address in catalogue.kept and catalogue.kept[address].known:
            raise BadInput(
                f"{address} is not a NIC that can be given away: it {catalogue.kept[address].why}",
                where=where,
                hint="choose another; without it no GPU of the board has NVLink",
            )
        result.append(address)
    return tuple(sorted(result, key=address_key))


def _listing(catalogue: Catalogue) -> str:
    return ", ".join(f"{g.address} ({g.model or g.vendor})" for g in catalogue.gpus.values()) or "no GPU"


def _describe(device: PciDevice) -> str:
    name = device.device_name or f"{device.vendor_id}:{device.device_id}"
    return f"{name} (class {device.class_code}, driver {device.driver or 'none'})"


def gpu_count(guest: GuestIntent) -> int | None:
    """How many GPUs the intent counts, None when it names them."""
    if guest.gpus is None:
        return 0
    if isinstance(guest.gpus, GpuRequest):
        return guest.gpus.count
    return guest.gpus if isinstance(guest.gpus, int) else None


def matches(gpu: Gpu, device: PciDevice | None, request: GpuRequest) -> bool:
    """Whether a GPU is of the model asked for: every word of it in the name, or its vendor:device ids."""
    if request.model is None:
        return True
    if device and request.model.lower() == f"{device.vendor_id}:{device.device_id}":
        return True
    name = (gpu.model or "").lower()
    return bool(name) and all(word in name.replace("-", " ").split() for word in request.model.lower().split())


@dataclass(frozen=True)
class Closure:
    """Devices that go together: `members` by address; `conflicts` names what cannot go along and why."""

    members: tuple[str, ...]
    conflicts: tuple[str, ...]
    ungrouped: tuple[str, ...]


def close_groups(catalogue: Catalogue, chosen: tuple[str, ...]) -> Closure:
    """Everything that must go with the chosen devices: every non-bridge function of their IOMMU groups.

    Functions of the same slot, and NVSwitches with their whole fabric, go along by themselves; any other
    member only if it was chosen by name. (vfio hands a group to one owner as a whole: kernel
    Documentation/driver-api/vfio.rst.) What goes along uninvited must not be the host's own. All GPUs of a fabric
    in full passthrough take its NVSwitches with them, whatever their groups are.
    """
    members = [*chosen, *(switch for switch in catalogue.fabric.companions(chosen) if switch not in chosen)]
    conflicts: list[str] = []
    ungrouped: list[str] = []
    for address in members:  # grows while it is walked
        device = catalogue.pci.get(address)
        if device is None or device.iommu_group is None:
            ungrouped.append(address)
            continue
        for other in catalogue.groups[device.iommu_group] if not device.is_bridge else ():
            if other.address in members:
                continue
            if pair := _pair(catalogue, address, other.address):
                conflicts.append(f"{_ends(*pair)}: both are in IOMMU group {device.iommu_group}")
            elif other.address in catalogue.nvswitches:
                members += [switch for switch in sorted(catalogue.nvswitches) if switch not in members]
            elif any(slot_of(other.address) == slot_of(member) for member in members):
                members.append(other.address)
            else:
                conflicts.append(
                    f"IOMMU group {device.iommu_group} of {address} also holds {other.address}, {_describe(other)}"
                )
    for address in members:
        conflicts += _claims(catalogue, address, members, invited=address in chosen)
    ordered = tuple(sorted(members, key=address_key))
    return Closure(ordered, tuple(dict.fromkeys(conflicts)), tuple(sorted(ungrouped, key=address_key)))


def _pair(catalogue: Catalogue, a: str, b: str) -> tuple[str, str] | None:
    """(virtual function, its physical function) if the two are that, in any order."""
    for virtual, physical in ((a, b), (b, a)):
        if virtual in catalogue.virtuals.get(physical, ()):
            return virtual, physical
    return None


def _ends(virtual: str, physical: str) -> str:
    return f"{virtual} is a virtual function of {physical} and ends when that is given away"


def _claims(catalogue: Catalogue, address: str, members: Sequence[str], *, invited: bool) -> Iterator[str]:
    """Why a device cannot be given away: a guest or the host has it or lives by it, or what it is is in doubt."""
    if address in catalogue.holders:
        yield f"{address} is held by guest {catalogue.holders[address]}"
    if _is_boot(catalogue, address):
        yield f"{address} is the boot display"
    if address in catalogue.index.contradicted:
        yield f"sources disagree on what {address} is, or on who holds it: {catalogue.index.contradicted[address]}"
    if address in catalogue.kept:
        yield f"{address} stays with the host: it {catalogue.kept[address].why}"
    if not invited and address in catalogue.in_use:
        yield f"{address} would have to go to the same guest, and the host uses it ({catalogue.in_use[address]})"
    for virtual in catalogue.virtuals.get(address, ()):
        if virtual in catalogue.holders:
            yield f"{_ends(virtual, address)}; guest {catalogue.holders[virtual]} holds it"
        if virtual in members:
            yield _ends(virtual, address)
        if not invited and virtual in catalogue.in_use:
            yield f"{_ends(virtual, address)}, and the host uses it ({catalogue.in_use[virtual]})"
    device = catalogue.pci.get(address)
    physical = device.physfn if device else None
    if physical and physical in catalogue.holders:
        yield f"{address} is a virtual function of {physical}, held by guest {catalogue.holders[physical]}"


def identity(catalogue: Catalogue, address: str, host: Host) -> str:
    """Who a device is, for the check before apply: ids, then serial, UUID and module id where they could be read."""
    device = catalogue.pci.get(address)
    parts = [address]
    if device:
        parts.append(f"{device.vendor_id or '?'}:{device.device_id or '?'}")
        if device.subsystem_vendor_id and device.subsystem_device_id:
            parts.append(f"sub={device.subsystem_vendor_id}:{device.subsystem_device_id}")
    gpu = catalogue.gpus.get(address)
    for key in ("serial", "uuid", "module_id"):
        value = getattr(gpu, key, None)
        if value is not None:
            parts.append(f"{key}={value}")
    if host.platform and host.platform.uuid:
        parts.append(f"machine={host.platform.uuid}")
    return " ".join(parts)
