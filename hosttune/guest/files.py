"""The files of one guest: as a value, and as the bytes that the applier writes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping

import msgspec

from hosttune.errors import BadInput
from hosttune.guest.bundle import EXPECTED, VOLUME, library, make_bundle, meta_data, notes_of, read_wanted, user_data
from hosttune.guest.nccl import FILE, ids_of, is_gpu, is_nic, places, topology
from hosttune.model import pciclass
from hosttune.model.guestplan import ExpectedCell, ExpectedDevice, ExpectedPair, GuestPlan
from hosttune.model.host import PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.intent import is_guest_name
from hosttune.model.login import check_login
from hosttune.model.networkintent import Roce
from hosttune.model.pcitree import grade
from hosttune.model.plan import Device, PciController, Plan, PlannedGuest
from hosttune.model.values import Closed, parse_address, parse_cpus

# --- what a planned guest should find in itself --------------------------------------------------------------


_PORTS = {
    "pcie-root-port": "root-port",
    "pcie-switch-upstream-port": "upstream-port",
    "pcie-switch-downstream-port": "downstream-port",
}


def expected(guest: PlannedGuest, roce: Roce | None = None) -> GuestPlan:
    """Return the document for this guest. Grades that cannot be derived from the guest's own PCI tree are left out.

    `roce`: what the intent declares of the host's RoCE ports.
    """
    tree = guest_tree(guest)
    index = DeviceIndex(tuple(tree.values()))
    gpus = [device.guest_address for device in guest.devices if is_gpu(device)]
    nics = [device.guest_address for device in guest.devices if is_nic(device)]
    pairs = ((gpu, nic, grade(index, gpu, nic)) for gpu in gpus for nic in nics)
    return GuestPlan(
        name=guest.name,
        cells=tuple(ExpectedCell(id=cell.id, cpus=cell.vcpus, memory_bytes=cell.memory_bytes) for cell in guest.cells),
        devices=tuple(
            ExpectedDevice(
                address=device.guest_address,
                kind=device.kind,
                ids=None if ids_of(device) == "-" else ids_of(device),
                node=tree[device.guest_address].numa_node,
            )
            for device in guest.devices
            if device.kind != "mdev"  # it has no configuration space of the host's device
        ),
        library=library(guest, roce),
        roce=_roce(guest, roce),
        pairs=tuple(ExpectedPair(gpu=gpu, nic=nic, grade=found) for gpu, nic, found in pairs if found is not None),
    )


def _roce(guest: PlannedGuest, declared: Roce | None) -> Roce | None:
    """Return the declaration for the NICs of this guest, by their guest addresses; None if it is about none of them.

    A virtual function has no port of its own: its settings are those of the physical one, which the host checks.
    """
    own = [device for device in guest.devices if device.kind == "nic"]
    if declared is None or not own:
        return None
    if declared.nics is None:
        return declared
    named = tuple(device.guest_address for device in own if device.address in (declared.addresses or ()))
    return msgspec.structs.replace(declared, nics=named) if named else None


def guest_tree(guest: PlannedGuest) -> dict[str, PciDevice]:
    """Return ports and passed functions of a planned guest by guest address, as the guest's kernel should show them.

    A controller's index is its bus number in the guest (`planning.pcie` makes sure of that).
    """
    by_index = {controller.index: controller for controller in guest.controllers}
    ports = [port for port in guest.controllers if port.model in _PORTS]
    functions = {
        _address(port): PciDevice(
            address=_address(port),
            class_code=f"{pciclass.PCI_BRIDGE}00",
            port_type=_PORTS[port.model],
            parent=_parent(by_index, port.bus),
            numa_node=_node(by_index, port.bus),
        )
        for port in ports
    }
    for device in guest.devices:
        bus = int(device.guest_address.split(":")[1], 16)
        functions[device.guest_address] = PciDevice(
            address=device.guest_address,
            class_code=device.class_code,
            parent=_parent(by_index, bus),
            numa_node=_node(by_index, bus),
        )
    return functions


def _address(port: PciController) -> str:
    return f"0000:{port.bus or 0:02x}:{port.slot or 0:02x}.{port.function}"


def _parent(by_index: dict[int, PciController], bus: int | None) -> str | None:
    """Return the bridge above this bus; None for a root bus."""
    above = by_index.get(bus) if bus is not None else None
    return _address(above) if above is not None and above.model in _PORTS else None


def _node(by_index: dict[int, PciController], bus: int | None) -> int | None:
    """Return the guest node of devices on this bus: that of the expander above it."""
    seen: set[int] = set()
    while bus is not None and bus not in seen and (above := by_index.get(bus)) is not None:
        if above.node is not None:
            return above.node
        seen.add(bus)
        bus = above.bus
    return None


# --- the PCIe tree of an untrusted plan ----------------------------------------------------------------------

# Checks of the parts of a plan that describe a guest's PCI tree, before they become documents: a plan is untrusted.


MAX_VCPUS = 8192  # far above the limit of QEMU's q35 (4096); NCCL does not read longer masks
_CLASS = re.compile(r"[0-9a-f]{6}")
_VENDOR = re.compile(r"[A-Za-z0-9 ._!-]{1,12}")  # CPUID leaf 0: twelve characters
_BUSES = range(256)
_SLOTS = range(32)
_FUNCTIONS = range(8)


def _cpus(guest: PlannedGuest) -> Iterator[tuple[str, str]]:
    for n, pin in enumerate(guest.vcpu_pins):
        if not 0 <= pin.vcpu < MAX_VCPUS:
            yield f"vcpu_pins[{n}].vcpu", f"{pin.vcpu} is not a vCPU"
    for n, cell in enumerate(guest.cells):
        for field in ("vcpus", "host_nodes"):
            try:
                ids = parse_cpus(getattr(cell, field))
            except ValueError as error:
                yield f"cells[{n}].{field}", str(error)
            else:
                if max(ids, default=0) >= MAX_VCPUS:
                    yield f"cells[{n}].{field}", f"{max(ids)} is above {MAX_VCPUS - 1}"
        if not 0 <= cell.id < MAX_VCPUS:
            yield f"cells[{n}].id", f"{cell.id} is not a cell"
    if guest.cpu_vendor is not None and not _VENDOR.fullmatch(guest.cpu_vendor):
        yield "cpu_vendor", f"{guest.cpu_vendor!r} is not a maker of CPUs"


def _controllers(guest: PlannedGuest) -> Iterator[tuple[str, str]]:
    for n, controller in enumerate(guest.controllers):
        numbers = (
            (controller.index, _BUSES),
            (controller.bus or 0, _BUSES),
            (controller.slot or 0, _SLOTS),
            (controller.function, _FUNCTIONS),
        )
        if any(number not in allowed for number, allowed in numbers):
            yield f"controllers[{n}]", "is where no PCI function can be"


def _device(device: Device, where: str) -> Iterator[tuple[str, str]]:
    address = parse_address(device.guest_address, where=where)
    if address != device.guest_address or not address.startswith("0000:"):
        yield "guest_address", f"{device.guest_address!r} is not written as a guest's address is: {address}"
    if device.class_code is not None and not _CLASS.fullmatch(device.class_code):
        yield "class_code", f"{device.class_code!r} is not a PCI class"


# --- the files -----------------------------------------------------------------------------------------------


_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class GuestFiles(Closed, frozen=True, kw_only=True):
    """The files of one guest: the `bundle` (file name → text) and the cloud-init seed that contains it.

    `name` is checked: it is safe as a single part of a path. `notes` say which settings are not applied, and why.
    """

    name: str
    bundle: Mapping[str, str]
    meta_data: str
    user_data: str
    notes: tuple[str, ...] = ()

    MAPPINGS = ("bundle",)


def guest_files(plan: Plan, name: str) -> GuestFiles:
    """Return the files that the guest `name` of a plan needs inside. The same plan gives the same files.

    Raises BadInput for a guest that the plan does not place, and for an impossible value in the plan: a name with
    characters other than letters, digits, '.', '_' and '-', a malformed address, an unknown setting.
    """
    guest = plan.guest(name)
    where = f"plan: guests[{guest.name!r}]"
    if not is_guest_name(guest.name):
        raise BadInput(
            f"{guest.name!r} is not a guest name",
            where=f"{where}.name",
            hint="use letters, digits, '.', '_' and '-'; at most 64, the first a letter or digit",
        )
    if guest.uuid is not None and not _UUID.fullmatch(guest.uuid):
        raise BadInput(f"{guest.uuid!r} is not a UUID", where=f"{where}.uuid", hint="plan the guest again")
    check_login(guest.user, guest.ssh_keys, where)
    wanted = read_wanted(guest)
    devices = places(guest)
    notes = notes_of(wanted, devices)
    roce = plan.intent.fabric.roce if plan.intent.fabric is not None else None
    at = f"plan: guests[{guest.name!r}]"
    for where, what in (*_cpus(guest), *_controllers(guest)):
        raise BadInput(what, where=f"{at}.{where}", hint="plan the guest again")
    for n, device in enumerate(guest.devices):
        for field, what in _device(device, f"{at}.devices[{n}].guest_address"):
            raise BadInput(what, where=f"{at}.devices[{n}].{field}", hint="plan the guest again")
    files = {EXPECTED: expected(guest, roce).to_json()}
    text = topology(guest)
    bundle = make_bundle(
        guest.name, wanted, devices, notes, files if text is None else files | {FILE: text}, library(guest, roce)
    )
    user = user_data(bundle, guest.user, guest.ssh_keys)
    return GuestFiles(
        name=guest.name,
        bundle=bundle,
        meta_data=meta_data(guest.name, guest.uuid, user, hostname=bool(guest.ssh_keys)),
        user_data=user,
        notes=notes,
    )


def seed_image(files: GuestFiles) -> bytes:
    """Return the seed as an ISO 9660 image labelled `cidata`, with Rock Ridge and Joliet names.

    The same files give the same bytes.
    """
    return make_image(VOLUME, {"meta-data": files.meta_data.encode(), "user-data": files.user_data.encode()})


def write_plan(files: GuestFiles) -> Mapping[str, bytes]:
    """Return every file of a guest by its path in the guest's folder: the seed, its two texts, the bundle.

    They are whole files, for the applier to write. The paths are constant.
    """
    bundle = {f"bundle/{name}": text.encode() for name, text in files.bundle.items()}
    texts = {"meta-data": files.meta_data.encode(), "user-data": files.user_data.encode()}
    return {"seed.iso": seed_image(files), **texts, **bundle}


# --- ISO 9660 --------------------------------------------------------------------------------------------------
# A small ISO 9660 image with Rock Ridge and Joliet names. The same files give the same bytes.
# The library writes the current time into every record; `without_dates` sets all times to one constant.
# Source: ECMA-119 (8.4 primary and 8.5 supplementary volume descriptor, 9.1 directory record); IEEE P1282 4.1.6 (TF).

SECTOR = 2048
_FIRST_DESCRIPTOR = 16
_PRIMARY, _SUPPLEMENTARY, _LAST = 1, 2, 255
_ROOT_RECORD = 156  # in a volume descriptor, 34 bytes
_VOLUME_DATES = range(813, 813 + 4 * 17, 17)  # creation, modification, expiration, effective
_DATE = bytes((80, 1, 1, 0, 0, 0, 0))  # 1980-01-01 00:00:00 UTC: years since 1900 … offset from GMT
_LONG_DATE = b"1980010100000000\0"
_NO_DATE = b"0" * 16 + b"\0"  # "not specified" (8.4.26.1)
_RECORD_DATE = 18


def make_image(volume: str, files: Mapping[str, bytes]) -> bytes:
    """Return an image with the volume id and, in its root directory, the read-only files.

    Names are lower case with hyphens. A reader that knows only plain ISO 9660 names sees upper case with underscores.
    """
    import pycdlib

    image = pycdlib.PyCdlib()
    image.new(interchange_level=3, vol_ident=volume, joliet=3, rock_ridge="1.09")
    for name, data in files.items():
        plain = f"/{name.replace('-', '_').upper()}.;1"
        image.add_fp(io.BytesIO(data), len(data), plain, rr_name=name, joliet_path=f"/{name}", file_mode=0o100444)
    out = io.BytesIO()
    image.write_fp(out)
    image.close()
    return without_dates(out.getvalue())


def without_dates(image: bytes) -> bytes:
    """Return the same image with all dates constant. Raises ValueError if the bytes are not an ISO 9660 image."""
    changed = bytearray(image)
    for descriptor in _descriptors(image):
        for at in _VOLUME_DATES:
            dated = image[descriptor + at : descriptor + at + 17] != _NO_DATE
            changed[descriptor + at : descriptor + at + 17] = _LONG_DATE if dated else _NO_DATE
        root = descriptor + _ROOT_RECORD
        for record in (root, *_records(image, root)):
            changed[record + _RECORD_DATE : record + _RECORD_DATE + 7] = _DATE
            for at, length in _time_stamps(image, record):
                changed[at : at + length] = _DATE * (length // 7)
    return bytes(changed)


def _descriptors(image: bytes) -> Iterator[int]:
    """Yield the offsets of the primary and supplementary volume descriptors."""
    for at in range(_FIRST_DESCRIPTOR * SECTOR, len(image), SECTOR):
        if image[at + 1 : at + 6] != b"CD001":
            break
        if image[at] == _LAST:
            return
        if image[at] in (_PRIMARY, _SUPPLEMENTARY):
            yield at
    raise ValueError("not an ISO 9660 image: its volume descriptors do not end")


def _records(image: bytes, root: int) -> Iterator[int]:
    """Yield the offsets of the root directory's records. Images made here have no other directory."""
    extent = int.from_bytes(image[root + 2 : root + 6], "little") * SECTOR
    end = extent + int.from_bytes(image[root + 10 : root + 14], "little")
    at = extent
    while at < end:
        length = image[at]
        if length:
            yield at
            at += length
        else:  # Records do not cross sectors: the rest of this sector is empty.
            at += SECTOR - at % SECTOR


def _time_stamps(image: bytes, record: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the dates in the record's Rock Ridge TF entries, each date 7 bytes long."""
    name = image[record + 32]
    at = record + 33 + name + (name + 1) % 2
    end = record + image[record]
    while at + 4 <= end and image[at + 2] >= 4:
        if image[at : at + 2] == b"TF":
            yield at + 5, image[at + 2] - 5
        at += image[at + 2]
