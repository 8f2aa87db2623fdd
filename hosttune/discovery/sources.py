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
from hosttune.gpu.vendor import Listing
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
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
_MOST_NAMED = 8
_MOST_TOLD = 64  # maximum number of devices that get a problem of their own

Tree = dict[str, PciDevice]


def read_sources(reader: Reader, host: Host) -> tuple[DeviceSource, ...]:
    """Return every source that shows devices, with what it shows beyond the PCI tree and what it lacks."""
    tree = {device.address: device for device in host.pci if device.is_there and device.is_identified}
    return tuple(source for read in _SOURCES for source in read(reader, host, tree))


def problems(host: Host) -> Iterator[Problem]:
    """Yield a problem for each device on which a source and the PCI tree disagree; only one if there is no tree."""
    sources = [source for source in host.sources or () if source.shows is not None]
    beyond = grouped((seen.address, source.name) for source in sources for seen in source.beyond)
    lacking = grouped((address, source.name) for source in sources for address in source.lacking)
    for source in sources:
        if not source.names and source.shows != source.could:
            why = f"{source.shows} GPUs there, {source.could} in the PCI tree"
            yield Problem(what="sources of devices disagree", where=source.read, why=why)
    if not host.pci and beyond:
        names = sorted({name for lines in beyond.values() for name in lines})
        why = f"missing, empty or not readable, and {_some(names)} name {len(beyond)} devices"
        yield Problem(what="no PCI tree", where=TREE, why=why)
        return
    doubts = [
        (at, f"named by {_some(names)}, and not {'identified ' if at in host.index.pci else ''}in the PCI tree")
        for at, names in beyond.items()
    ]
    doubts += [
        (address, f"in the PCI tree, and not in {_some(names)}, which could show it")
        for address, names in lacking.items()
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
    return DeviceSource(
        name=name,
        read=read,
        shows=len(shown),
        could=len(expected),
        beyond=tuple(shown[address] for address in sorted(shown.keys() - tree.keys(), key=address_key)),
        lacking=tuple(sorted(expected - shown.keys(), key=address_key)),
        **more,
    )


# --- the makers of GPUs --------------------------------------------------------------------------------------


def _makers(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    for vendor in VENDORS:
        # What one maker's driver and tools list of the functions that the driver holds. A sleeping GPU is not asked, so
        # it is not expected in a list.
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
            seen = (
                SeenDevice(address=gpu.address, kind="gpu", vendor=gpu.vendor, model=gpu.model) for gpu in listing.gpus
            )
            yield _source(listing.name, listing.read, seen, tree, awake if listing.whole else ())
        if vendor.must_list and awake and not named and not reported:
            name = f"{vendor.driver}'s own list"
            yield DeviceSource(name=name, read="its library, tool or /proc", could=len(awake), lacking=tuple(awake))


def _counted(listing: Listing, count: int, held: int, here: int) -> DeviceSource:
    """Return a source that only counts GPUs.

    It should count at least the GPUs that the driver holds, and at most all known GPUs of the maker.
    """
    could = min(max(count, held), max(here, held))
    return DeviceSource(name=listing.name, read=listing.read, shows=count, could=could, names=False)


# --- the kernel ----------------------------------------------------------------------------------------------


def _groups(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    """Yield the members of the IOMMU groups. A group without members was not recorded."""
    members = grouped(
        (group, name)
        for group in reader.names(GROUPS)
        for name in reader.names(f"{GROUPS}/{group}/devices")
        if sysfs.is_function(name)
    )
    if members:
        could = (function.address for function in tree.values() if str(function.iommu_group) in members)
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
        seen += [SeenDevice(address=address, kind=kind, vendor=vendor) for address in held]
    if seen:
        yield _source("the drivers' folders", f"{_DRIVERS}/*", seen, tree)


def _folders(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    """Yield the functions' own folders: each is in the folder of its bridge, or in that of its root bus.

    Only for a capture that does not say what it may have lost. On a live host, and in hosttune's own captures, these
    folders are the tree itself.
    """
    if not reader.system.captured or reader.system.complete:
        return
    addresses: set[str] = set()
    inner = [f"{_DEVICES}/{name}" for name in reader.names(_DEVICES) if _ROOT.fullmatch(name)]
    while inner:
        path = inner.pop()
        below = [name for name in reader.names_of_open_folder(path) if sysfs.is_function(name)]
        addresses.update(below)
        inner += [f"{path}/{name}" for name in below]
    if addresses:
        seen = (SeenDevice(address=address) for address in addresses)
        yield _source("the functions' folders", f"{_DEVICES}/pci*", seen, tree)


def _classed(reader: Reader, host: Host, tree: Tree) -> Iterator[DeviceSource]:
    for folder, kind in _CLASSES:
        paths = (f"{folder}/{name}" for name in reader.names(folder))
        targets = (reader.link(path) or reader.link(f"{path}/device") or "" for path in paths)
        addresses = {address for target in targets for address in sysfs.functions_in(target)[-1:]}
        if addresses:
            seen = (SeenDevice(address=address, kind=kind) for address in addresses)
            yield _source(f"the class {folder.rpartition('/')[2]}", folder, seen, tree)


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
    _classed,
    _guests,
)
