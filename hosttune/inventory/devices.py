"""Which devices a guest takes: named or counted GPUs, what their IOMMU groups add, and how devices are identified.

Pure. Addresses are checked here: an unknown address or the boot display raises BadInput, with a list of what exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hosttune.errors import BadInput
from hosttune.gpu.bridges import KeptFunction, kept_bridges
from hosttune.inventory.partitions import HostFabric, read_fabric
from hosttune.model import pciclass
from hosttune.model.hints import did_you_mean_address
from hosttune.model.host import Gpu, Host, PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.intent import GpuRequest, GuestIntent
from hosttune.model.listing import some
from hosttune.model.pci import DIRECT_REMEDY
from hosttune.model.quarantine import DeviceRecord, Register, drive_mark
from hosttune.model.starts import unread_register
from hosttune.model.values import address_key, parse_address, slot_of

# Parts of a device's identity that are compared only if both sides could read them: a GPU on vfio-pci reports no UUID.
_OPTIONAL = ("sub", "dsn", "serial", "uuid", "module_id", "machine")


class Catalogue(msgspec.Struct, frozen=True):
    """The host's devices by address, and who holds them.

    `index`: how they are connected. `holders`: the existing guest that holds a
    device; `users`: the one that shares it, and by what. `in_use`: why the host itself needs a NIC or drive;
    `use_unknown`: why that is unknown. `busy`: why apply does not take a NIC now. `virtuals`: the current virtual
    functions of a physical function. `fabric`: the NVSwitch fabric of the GPUs.
    """

    index: DeviceIndex
    pci: Mapping[str, PciDevice]
    gpus: Mapping[str, Gpu]
    holders: Mapping[str, str]
    users: Mapping[str, str]
    groups: Mapping[int, tuple[PciDevice, ...]]
    nvswitches: frozenset[str]
    in_use: Mapping[str, str]
    use_unknown: Mapping[str, str]
    busy: Mapping[str, str]
    virtuals: Mapping[str, tuple[str, ...]]
    fabric: HostFabric
    foreign_data: Mapping[str, str]  # drives that may hold data of a guest, of which that is unknown: why
    kept: Mapping[str, KeptFunction]  # functions that carry the GPUs' fabric, or possibly carry it
    quarantined: Mapping[str, str]  # why a device between two tenants is not given away

    def node(self, address: str) -> int | None:
        """Return the NUMA node of a device, None if unknown."""
        device = self.pci.get(address)
        return device.numa_node if device else None

    def above(self, address: str) -> tuple[str, ...]:
        """Return the bridges above a device, nearest first."""
        return self.index.above(address)


def read_catalogue(host: Host) -> Catalogue:
    """Build the catalogue of a host document."""
    # If such a guest is shut off, it needs other devices only at its next start, which is then refused; data is lost at
    # once.
    guest = next((guest.name for guest in host.guests or () if guest.unread), None)
    why = f"it may hold data of guest {guest}, whose definition is unknown"
    if guest is None and host.index.untold:
        named = [f"{path} of guest {name}" for path, name in host.index.untold.items()]
        why = f"it may be {some(named)}, which leads to no known device"
    return Catalogue(
        index=host.index,
        pci=host.index.pci,
        gpus=host.index.gpus,
        holders=host.index.holders,
        users={
            address: "; ".join(f"{name}, by {path}" for name, path in users.items())
            for address, users in host.index.users.items()
        },
        groups=host.index.groups,
        nvswitches=frozenset(switch.address for switch in host.nvswitches),
        in_use=host.index.in_use,
        use_unknown=host.index.use_unknown,
        busy={nic.address: nic.busy for nic in host.nics if nic.busy is not None},
        virtuals=host.index.virtuals,
        fabric=read_fabric(host),
        foreign_data={drive.address: why for drive in host.nvme if guest is not None or host.index.untold},
        kept=kept_bridges(host.pci, host.nics),
        quarantined=quarantined_devices(host),
    )


def countable_gpus(host: Host, catalogue: Catalogue) -> list[Gpu]:
    """Return the GPUs that counts and `auto` refer to.

    From a known vendor, whole (not a virtual function), and not the boot display.
    """
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
    """Return the canonical addresses of explicitly named GPUs, in address order.

    Raises BadInput: one does not exist; the error lists what exists.
    """
    have = ", ".join(f"{g.address} ({g.model or g.vendor})" for g in catalogue.gpus.values()) or "no GPU"
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
            hint = did_you_mean_address(address, catalogue.gpus, f"this host has {have}")
            if known and catalogue.pci[address].responds is False:
                what, hint = f"{address} does not answer: it reads all ones", "power-cycle the host, or leave it out"
            raise BadInput(what, where=where, hint=hint)
        if _is_boot(catalogue, address):
            raise BadInput(
                f"{address} is the boot display: the host's console would go with it",
                where=where,
                hint=f"choose another; this host has {have}",
            )
        result.append(address)
    return tuple(sorted(result, key=address_key))


def named_devices(catalogue: Catalogue, addresses: tuple[str, ...], kind: str, where: str) -> tuple[str, ...]:
    """Return the canonical addresses of explicitly named NICs or NVMe drives.

    Raises BadInput: one does not exist; the error lists what exists.
    """
    prefix = {"nic": pciclass.NETWORK, "nvme": pciclass.NVME}[kind]
    have = [d.address for d in catalogue.pci.values() if (d.class_code or "").startswith(prefix)]
    result = []
    for text in addresses:
        address = parse_address(text, where=where)
        device = catalogue.pci.get(address)
        if device is None or not (device.class_code or prefix).startswith(prefix):
            what = f"no device {address}" if device is None else f"{address} is not a {kind} but {_describe(device)}"
            hint = did_you_mean_address(address, have, f"this host has {', '.join(have[:16]) or 'none'}")
            raise BadInput(what, where=where, hint=hint)
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


def _describe(device: PciDevice) -> str:
    name = device.device_name or f"{device.vendor_id}:{device.device_id}"
    return f"{name} (class {device.class_code}, driver {device.driver or 'none'})"


def gpu_count(guest: GuestIntent) -> int | None:
    """Return how many GPUs the intent counts, None if it names them."""
    if guest.gpus is None:
        return 0
    if isinstance(guest.gpus, GpuRequest):
        return guest.gpus.count
    return guest.gpus if isinstance(guest.gpus, int) else None


def matches(gpu: Gpu, device: PciDevice | None, request: GpuRequest) -> bool:
    """Return whether a GPU is of the requested model: every word is in its name, or its vendor:device ids match."""
    if request.model is None or (device and request.model.lower() == f"{device.vendor_id}:{device.device_id}"):
        return True
    name = (gpu.model or "").lower()
    return bool(name) and all(word in name.replace("-", " ").split() for word in request.model.lower().split())


class Closure(msgspec.Struct, frozen=True):
    """Devices that go to a guest together: `members` by address; `conflicts`: what cannot go with them, and why."""

    members: tuple[str, ...]
    conflicts: tuple[str, ...]
    ungrouped: tuple[str, ...]


def close_groups(catalogue: Catalogue, chosen: tuple[str, ...]) -> Closure:
    """Return everything that must go with the chosen devices: every non-bridge function of their IOMMU groups.

    Functions of the same slot, and NVSwitches with their whole fabric, are added automatically; any other member must
    have been chosen by name. (vfio gives a group as a whole to one owner: kernel Documentation/driver-api/vfio.rst.)
    The host must not use the devices that are added automatically. All GPUs of a fabric in full passthrough mode take
    its NVSwitches with them, whatever their groups are.
    """
    members = [*chosen, *(switch for switch in catalogue.fabric.companions(chosen) if switch not in chosen)]
    conflicts: list[str] = []
    ungrouped: list[str] = []
    for address in members:  # the list grows during this loop
        device = catalogue.pci.get(address)
        if device is None or device.iommu_group is None:
            ungrouped.append(address)
            continue
        if device.kept_by_firmware:
            conflicts.append(f"{address} cannot be given to a guest: {device.kept_by_firmware}; {DIRECT_REMEDY}")
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
        conflicts += _claims(catalogue, address, members, requested_by_name=address in chosen)
    ordered = tuple(sorted(members, key=address_key))
    return Closure(ordered, tuple(dict.fromkeys(conflicts)), tuple(sorted(ungrouped, key=address_key)))


def _pair(catalogue: Catalogue, a: str, b: str) -> tuple[str, str] | None:
    """Return (virtual function, its physical function) if the two are such a pair, in any order."""
    for virtual, physical in ((a, b), (b, a)):
        if virtual in catalogue.virtuals.get(physical, ()):
            return virtual, physical
    return None


def disk_claims(catalogue: Catalogue, disk: str) -> Iterator[str]:
    """Yield why a path cannot be the disk of a guest: its device is quarantined, or goes to a guest as a whole."""
    for address in catalogue.index.functions_under(disk) or ():
        if address in catalogue.quarantined:
            yield f"{disk} is on {address}: {catalogue.quarantined[address]}"
        if address in catalogue.holders:
            yield f"{disk} is on {address}, which is held by guest {catalogue.holders[address]}"


def _ends(virtual: str, physical: str) -> str:
    return f"{virtual} is a virtual function of {physical} and ends when that is given away"


def _claims(catalogue: Catalogue, address: str, members: Sequence[str], *, requested_by_name: bool) -> Iterator[str]:
    """Yield why a device cannot be given to a guest: a guest or the host holds it or needs it."""
    if address in catalogue.holders:
        yield f"{address} is held by guest {catalogue.holders[address]}"
    if address in catalogue.users:
        yield f"{address} is used by guest {catalogue.users[address]}"
    if address in catalogue.quarantined:
        yield catalogue.quarantined[address]
    if _is_boot(catalogue, address):
        yield f"{address} is the boot display"
    if address in catalogue.kept and address not in catalogue.fabric.companions(members):
        yield f"{address} stays with the host: it {catalogue.kept[address].why}"
    if not requested_by_name and address in catalogue.in_use:
        yield f"{address} would have to go to the same guest, and the host uses it ({catalogue.in_use[address]})"
    for doubts in (catalogue.use_unknown, catalogue.foreign_data):
        if not requested_by_name and address in doubts:
            yield f"{address} would have to go to the same guest, and {doubts[address]}"
    for virtual in catalogue.virtuals.get(address, ()):
        if virtual in catalogue.holders:
            yield f"{_ends(virtual, address)}; guest {catalogue.holders[virtual]} holds it"
        if virtual in catalogue.users:
            yield f"{_ends(virtual, address)}; it is used by guest {catalogue.users[virtual]}"
        if virtual in members:
            yield _ends(virtual, address)
        if not requested_by_name and virtual in catalogue.in_use:
            yield f"{_ends(virtual, address)}, and the host uses it ({catalogue.in_use[virtual]})"
    device = catalogue.pci.get(address)
    physical = device.physfn if device else None
    if physical and physical in catalogue.holders:
        yield f"{address} is a virtual function of {physical}, held by guest {catalogue.holders[physical]}"


def identity(catalogue: Catalogue, address: str, host: Host) -> str:
    """Return the identity of a device, for the check before apply: ids, then what `DeviceIndex.identity` knows besides,
    its module id and its machine.
    """
    device, gpu = catalogue.pci.get(address), catalogue.gpus.get(address)
    parts = [address]
    if device:
        parts.append(f"{device.vendor_id or '?'}:{device.device_id or '?'}")
        if device.subsystem_vendor_id and device.subsystem_device_id:
            parts.append(f"sub={device.subsystem_vendor_id}:{device.subsystem_device_id}")
    known: dict[str, object] = {**host.index.identity(address), "module_id": gpu.module_id if gpu else None}
    known["machine"] = (host.platform and host.platform.uuid) or None
    return " ".join((*parts, *(f"{name}={known[name]}" for name in _OPTIONAL if known.get(name) is not None)))


def same_device(planned: str, now: str) -> bool:
    """Return whether two identities can belong to one device: the parts that both could read are equal."""
    one, two = _facts(planned), _facts(now)
    if any(one.get(name) != two.get(name) for name in ("address", "ids")):
        return False
    return all(one[name] == two[name] for name in _OPTIONAL if name in one and name in two)


def _facts(identity: str) -> dict[str, str]:
    words = identity.split(" ")
    facts = {"address": words[0], "ids": words[1] if len(words) > 1 else ""}
    for word in words[2:]:
        name, equals, value = word.partition("=")
        if equals:
            facts[name] = value
    return facts


# --- quarantine -----------------------------------------------------------------------------------------------

_OF_ONE_DEVICE = ("dsn=", "serial=", "uuid=")  # parts of an identity that no other device has


def quarantined_devices(host: Host, register: Register | None = None) -> Mapping[str, str]:
    """Return why a device is quarantined, by address: those of the register, and what belongs to them.

    `register`: as it is now; None: that of the host document, or none if the document does not know it.

    A device that was moved is known by its serial numbers or UUID. A physical function and its virtual functions are
    quarantined together, because a guest that has one can reach what the other has left.
    """
    reasons: dict[str, str] = {}
    lost = unread_register(host.problems) if register is None and host.handover is None else None
    if lost is not None:
        why = f"may be quarantined: {lost.what}: {lost.why} ({lost.where})"
        return {function.address: f"{function.address} {why}" for function in host.pci}
    known = register or (host.handover.register if host.handover else Register())
    for record in known.quarantined:
        why = f"is quarantined since {record.since} ({record.why}): {record.ways_out}"
        for address in _places(host, record):
            reasons.setdefault(address, f"{address} {why}")
            for other in _relatives(host, address):
                reasons.setdefault(other, f"{other} belongs with {address}, which {why}")
    return reasons


def _places(host: Host, record: DeviceRecord) -> Iterator[str]:
    yield record.address
    marks = {word for word in record.identity.split(" ") if word.startswith(_OF_ONE_DEVICE)}
    if marks & _marks(host, record.address):
        return  # it is still there
    yield from (gpu.address for gpu in host.gpus if marks & _marks(host, gpu.address))
    serials = (host.handover.serials if host.handover else None) or {}
    yield from (address for address, serial in serials.items() if drive_mark(serial) in marks)


def _marks(host: Host, address: str) -> set[str]:
    return {f"{name}={value}" for name, value in host.index.identity(address).items()}


def _relatives(host: Host, address: str) -> Iterator[str]:
    function = host.index.pci.get(address)
    yield from host.index.virtuals.get(address, ())
    if function is not None and function.physfn is not None:
        yield function.physfn
