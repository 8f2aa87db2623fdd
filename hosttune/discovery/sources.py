"""Other sources that know of devices, each compared with the PCI tree. Last step of discovery.

A source gives the devices that it shows and the functions of the tree that it could show. The maker's tool could show
those that its driver holds; the kernel's IOMMU groups those that are in a group; a class of devices and a guest only
those that they name. A source that was not recorded proves nothing. `_SOURCES` lists all sources; `problems` reports
where one of them and the tree disagree.

A capture must hold, as far as the host has them, /proc/bus/pci/devices, /proc/driver/nvidia/gpus/ and
/sys/kernel/iommu_groups/*/devices/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from hosttune.gpu import VENDORS, maker_of, nvswitches
from hosttune.gpu.vendor import Listing, Vendor
from hosttune.machine.reader import Reader
from hosttune.model import pciclass, sysfs
from hosttune.model.host import DeviceSource, Host, PciDevice, Problem, SeenDevice
from hosttune.model.platform import RUNNING
from hosttune.model.values import address_key, grouped

TREE = sysfs.PCI_DEVICES
GROUPS = sysfs.IOMMU_GROUPS
_DRIVERS = sysfs.PCI_DRIVERS
_DEVICES = "/sys/devices"
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_PROC = "/proc/bus/pci/devices"
_LINE = re.compile(r"([0-9a-f]{2})([0-9a-f]{2})\t([0-9a-f]{4})([0-9a-f]{4})\t")
# Folders of sysfs whose links lead through a device's own directory, and the kind of their devices.
_CLASSES = (("/sys/class/nvme", "nvme"), ("/sys/class/infiniband", "nic"), ("/sys/class/net", "nic"))
# Drivers that hold only one kind of device. Those of GPU makers are in `hosttune.gpu`.
_KINDS = {nvswitches.DRIVER: "nvswitch", "nvme": "nvme"}
_HOSTS_OWN = "a driver of the host"  # it is unknown which one, but not one that gives devices to guests
# The part of a class link after the function that the device belongs to. A USB adapter does not match, so it does not
# count as its controller.
_OWN = re.compile(r"(/virtio[0-9]+)?(/(net|infiniband|nvme)/[^/]+)?")
_APPLE = "106b"  # its NVMe drives have class 0180 (drivers/nvme/host/pci.c)
# Classes with network ports, besides known accelerators: network, co-processors, wireless, old InfiniBand, memory,
# unspecified.
_WITH_PORTS = (pciclass.NETWORK, "0b", "0d", "0c06", "05", "00", "ff")
_INTERFACED = (pciclass.STORAGE, pciclass.NETWORK)  # classes whose drivers make folders in the function's own
_MOST_NAMED = 8
_MOST_TOLD = 64  # maximum number of devices that get a problem of their own

Tree = dict[str, PciDevice]


def read_sources(reader: Reader, host: Host) -> tuple[DeviceSource, ...]:
    """Return every source that shows devices, with what it shows beyond the PCI tree and what it lacks."""
    tree = {device.address: device for device in host.pci if device.is_there}
    return tuple(source for read in _SOURCES for source in read(reader, host, tree))


def problems(host: Host) -> Iterator[Problem]:
    """Yield a problem for each device on which a source and the PCI tree disagree; only one if there is no tree."""
    sources = [source for source in host.sources or () if source.shows is not None]
    beyond = grouped((seen.address, source.name) for source in sources for seen in source.beyond)
    lacking = grouped((address, source.name) for source in sources for address in source.lacking)
    contrary = grouped((seen.address, source.name) for source in sources for seen in source.contrary)
    for source in sources:
        if not source.names and source.shows != source.could:
            why = f"{source.shows} GPUs there, {source.could} in the PCI tree"
            yield Problem(what="sources of devices disagree", where=source.read, why=why)
    if not host.pci and beyond:
        names = sorted({name for found in beyond.values() for name in found})
        why = f"missing, empty or not readable, and {_some(names)} name {len(beyond)} devices"
        yield Problem(what="no PCI tree", where=TREE, why=why)
        return
    doubts = [(address, f"named by {_some(names)}, and not in the PCI tree") for address, names in beyond.items()]
    doubts += [
        (address, f"in the PCI tree, and not in {_some(names)}, which could show it")
        for address, names in lacking.items()
    ]
    doubts += [
        (address, f"another device in {_some(names)}, or held by another driver") for address, names in contrary.items()
    ]
    doubts.sort(key=lambda doubt: address_key(doubt[0]))
    for address, why in doubts[:_MOST_TOLD]:
        yield Problem(what="sources of devices disagree", where=f"{TREE}/{address}", why=why)
    if len(doubts) > _MOST_TOLD:
        why = f"{len(doubts) - _MOST_TOLD} more devices are not in all sources that could show them"
        yield Problem(what="sources of devices disagree", where=TREE, why=why)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED])


def _source(
    name: str, read: str, seen: Iterable[SeenDevice], tree: Tree, could: Iterable[str] = (), **more: bool
) -> DeviceSource:
    shown = {device.address: device for device in seen}
    expected = set(could)
    contrary = (
        device
        for address, device in shown.items()
        if (one := tree.get(address)) is not None and (_is_another(device, one) or _is_held_otherwise(device, one))
    )
    return DeviceSource(
        name=name,
        read=read,
        shows=len(shown),
        could=len(expected),
        beyond=tuple(shown[address] for address in sorted(shown.keys() - tree.keys(), key=address_key)),
        lacking=tuple(sorted(expected - shown.keys(), key=address_key)),
        contrary=tuple(sorted(contrary, key=lambda device: address_key(device.address))),
        **more,
    )


# --- where a source and the tree disagree about one function -------------------------------------------------


def _is_another(seen: SeenDevice, function: PciDevice) -> bool:
    """Return whether a source shows another kind of device, another maker or other ids than the tree."""
    if seen.id is None and seen.kind is None:
        return False
    code, ids = function.class_code or "", f"{function.vendor_id}:{function.device_id}"
    if seen.id not in (None, ids) and None not in (function.vendor_id, function.device_id):
        return True
    if function.vendor_id is None:
        return seen.kind == "gpu"  # only this source shows that it is a GPU
    if not code:
        return False
    is_switch = nvswitches.may_be_nvswitch(function)
    if seen.kind == "gpu":
        maker = maker_of(function.vendor_id)
        made_so = seen.vendor is None or (maker is not None and maker.name == seen.vendor)
        return not (function.is_display and made_so) and not is_switch
    if seen.kind == "nvswitch":
        return not is_switch
    if seen.kind == "nvme":
        return not function.is_nvme and function.vendor_id != _APPLE
    known = code.startswith(pciclass.ACCELERATOR) and maker_of(function.vendor_id) is not None
    return seen.kind == "nic" and not (known or code.startswith(_WITH_PORTS))


def _is_held_otherwise(seen: SeenDevice, function: PciDevice) -> bool:
    """Return whether a source shows another driver for the function than its link, or a driver although it has none.

    If `driver_override` names the link's driver, the link is right and the source is older.
    """
    if seen.driver is None:
        return False
    if function.driver is None:
        return function.unbound is True
    if function.driver_override == function.driver:
        return False
    if seen.driver == _HOSTS_OWN:
        return "vfio" in function.driver
    return seen.driver != function.driver


# --- the makers of GPUs --------------------------------------------------------------------------------------


def _makers(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    for vendor in VENDORS:
        yield from _maker(reader, host, tree, vendor)


def _maker(reader: Reader, host: Host, tree: Tree, vendor: Vendor) -> Iterator[DeviceSource]:
    """Yield what one maker's driver and tools list of the functions that the driver holds.

    A sleeping GPU is not asked, so it is not expected in a list.
    """
    functions = [tree[gpu.address] for gpu in host.gpus if gpu.vendor == vendor.name and gpu.address in tree]
    held = [device for device in functions if device.driver == vendor.driver and device.physfn is None]
    awake = [device.address for device in held if device.runtime_status != "suspended"]
    listings = list(vendor.lists(reader))
    reported = tuple(gpu for gpu in host.gpus if gpu.vendor == vendor.name and gpu.source not in (None, "sysfs"))
    named = [listing for listing in listings if listing.count is None]
    if not named and reported:  # live: the library reported them one by one
        listings.append(Listing(name=reported[0].source or "", read=reported[0].source or "", gpus=reported))
    lost = {gpu.address for listing in listings for gpu in listing.gpus} - tree.keys()
    for listing in listings:
        if listing.count is not None:
            yield _counted(listing, listing.count, len(held), len(functions) + len(lost))
            continue
        driver = vendor.driver or None
        seen = (
            SeenDevice(
                address=gpu.address,
                kind="gpu",
                id=_id_by_name(vendor, gpu.model, tree.get(gpu.address)),
                vendor=gpu.vendor,
                model=gpu.model,
                driver=driver,
            )
            for gpu in listing.gpus
        )
        yield _source(listing.name, listing.read, seen, tree, awake if listing.whole else ())
    if vendor.must_list and awake and not named and not reported:
        name = f"{vendor.driver}'s own list"
        yield DeviceSource(name=name, read="its library, tool or /proc", could=len(awake), lacking=tuple(awake))


def _id_by_name(vendor: Vendor, name: str | None, function: PciDevice | None) -> str | None:
    """Return the ids of the model that a tool names, if the function's own ids are those of another model.

    Only names of known models count, since a maker gives boards of one id several names. None too if one of the two
    names begins with the words of the other: "NVIDIA H100" and "NVIDIA H100 PCIe".
    """
    known = vendor.models.get(function.device_id or "") if function is not None else None
    ids = [device_id for device_id, model in vendor.models.items() if model == name]
    if known is None or name is None or not ids:
        return None
    words = zip(*(re.split(r"[^A-Za-z0-9]+", text) for text in (known, name)), strict=False)
    return f"{vendor.vendor_id}:{ids[0]}" if any(one != other for one, other in words) else None


def _counted(listing: Listing, count: int, held: int, here: int) -> DeviceSource:
    """Return a source that only counts GPUs.

    It should count at least the GPUs that the driver holds, and at most all known GPUs of the maker.
    """
    could = min(max(count, held), max(here, held))
    return DeviceSource(name=listing.name, read=listing.read, shows=count, could=could, names=False)


# --- the kernel ----------------------------------------------------------------------------------------------


def _groups(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    """Yield the members of the IOMMU groups. A group without members was not recorded."""
    members: dict[str, list[str]] = {}
    for group in reader.names(GROUPS):
        listed = [name for name in reader.names(f"{GROUPS}/{group}/devices") if sysfs.is_function(name)]
        if listed:
            members[group] = listed
    if members:
        could = (one.address for one in tree.values() if str(one.iommu_group) in members)
        seen = (SeenDevice(address=address) for listed in members.values() for address in listed)
        yield _source("the IOMMU groups", f"{GROUPS}/*/devices", seen, tree, could)


def _proc(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    """Yield the kernel's other list of all functions (drivers/pci/proc.c).

    It leaves out the domain, so it can be used only if there is just domain 0000.
    """
    lines = [match for line in (reader.text(_PROC) or "").splitlines() if (match := _LINE.match(line))]
    places = [(match[1], match[2]) for match in lines]
    if not lines or len(set(places)) != len(places) or any(not address.startswith("0000:") for address in tree):
        return
    seen = []
    for bus, devfn, vendor, device in (match.groups() for match in lines):
        number = int(devfn, 16)
        address = f"0000:{bus}:{number >> 3:02x}.{number & 7}"
        seen.append(SeenDevice(address=address, id=f"{vendor}:{device}", **_by_id(vendor, device)))
    yield _source("the kernel's list of functions", _PROC, seen, tree, tree)


def _by_id(vendor_id: str, device_id: str) -> dict[str, str]:
    """Return what the ids say about a function, if they are those of a known accelerator or NVSwitch."""
    maker = maker_of(vendor_id)
    if maker is not None and device_id in maker.models:
        return {"kind": "gpu", "vendor": maker.name, "model": maker.models[device_id]}
    return {"kind": "nvswitch"} if nvswitches.is_known(vendor_id, device_id) else {}


def _drivers(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    """Yield the links in the drivers' folders of a capture.

    On a live host they are the same as the tree's own links.
    """
    if not reader.system.captured:
        return
    makers = {vendor.driver: vendor for vendor in VENDORS if vendor.driver}
    seen = []
    for driver in reader.names(_DRIVERS):
        maker = makers.get(driver)
        kind, vendor = ("gpu", maker.name) if maker else (_KINDS.get(driver), None)
        held = (name for name in reader.names(f"{_DRIVERS}/{driver}") if sysfs.is_function(name))
        seen += [SeenDevice(address=address, kind=kind, vendor=vendor, driver=driver) for address in held]
    if seen:
        yield _source("the drivers' folders", f"{_DRIVERS}/*", seen, tree)


def _folders(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    """Yield the functions' own folders: each is in the folder of its bridge, or in that of its root bus.

    Only for a capture that does not say what it may have lost. On a live host, and in hosttune's own captures, these
    folders are the tree itself.
    """
    if not reader.system.captured or reader.system.complete:
        return
    found: set[str] = set()
    inner = [f"{_DEVICES}/{name}" for name in reader.names(_DEVICES) if _ROOT.fullmatch(name)]
    while inner:
        path = inner.pop()
        below = [name for name in reader.names_of_open_folder(path) if sysfs.is_function(name)]
        found.update(below)
        inner += [f"{path}/{name}" for name in below]
    if found:
        seen = (SeenDevice(address=address) for address in found)
        yield _source("the functions' folders", f"{_DEVICES}/pci*", seen, tree)


def _bound(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    """Yield the functions whose driver drives only one kind of device, if the tree has another kind at any of them."""
    makers = {vendor.driver: vendor.name for vendor in VENDORS if vendor.driver}
    seen = [
        SeenDevice(address=address, kind="gpu", vendor=makers[driver])
        if driver in makers
        else SeenDevice(address=address, kind=_KINDS[driver])
        for address, device in tree.items()
        if (driver := device.driver or "") in makers or driver in _KINDS
    ]
    source = _source("the bound drivers", f"{TREE}/*/driver", seen, tree)
    if source.contrary:
        yield source


def _classed(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    for folder, kind in _CLASSES:
        found, own = set(), set()
        for name in reader.names(folder):
            target = reader.link(f"{folder}/{name}") or reader.link(f"{folder}/{name}/device") or ""
            functions = sysfs.functions_in(target)
            found.update(functions[-1:])
            if functions and _OWN.fullmatch(target.rpartition(functions[-1])[2]):
                own.add(functions[-1])
        if found:
            driver = "nvme" if kind == "nvme" else _HOSTS_OWN
            seen = (
                SeenDevice(address=address, kind=kind, driver=driver if address in own else None)
                if address in own or address not in tree
                else SeenDevice(address=address)
                for address in found
            )
            yield _source(f"the class {folder.rpartition('/')[2]}", folder, seen, tree)


def _interfaced(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    """Yield the functions whose own folders hold what only a driver makes there, if the tree has no driver for one.

    A folder that a capture lost, or that the kernel refuses to list, counts: only a folder that is listed and empty
    shows that there is no interface. A function whose class is unknown may be any of them.
    """
    seen = []
    for address, device in tree.items():
        if device.driver is None and (device.class_code or pciclass.NETWORK).startswith(_INTERFACED):
            here = reader.names(f"{TREE}/{address}")
            seen += [
                SeenDevice(address=address, kind=kind, driver="nvme" if kind == "nvme" else _HOSTS_OWN)
                for name, kind in ((folder.rpartition("/")[2], kind) for folder, kind in _CLASSES)
                if name in here and reader.listing(f"{TREE}/{address}/{name}") != []
            ]
    source = _source("the functions' interfaces", f"{TREE}/*/{{net,infiniband,nvme}}", seen, tree)
    if source.contrary:
        yield source


# --- guests --------------------------------------------------------------------------------------------------


def _guests(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    """Yield the devices that guests have or are defined with: a definition says which devices should be here."""
    for guest in host.guests or ():
        if guest.devices:
            seen = (SeenDevice(address=address, kind="other") for address in guest.devices)
            runs = guest.state in RUNNING
            name = f"the {'running' if runs else 'defined'} guest {guest.name}"
            yield _source(name, "libvirt", seen, tree, expects=not runs)


_SOURCES: tuple[Callable[[Reader, Host, Tree], Iterator[DeviceSource]], ...] = (
    _makers,
    _groups,
    _proc,
    _drivers,
    _folders,
    _bound,
    _classed,
    _interfaced,
    _guests,
)
