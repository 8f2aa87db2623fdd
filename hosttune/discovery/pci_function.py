"""Read what sysfs says about one PCI function, without judging it. `pci` puts the functions together.

Of each function a capture must hold: vendor, device, class, revision, subsystem_vendor, subsystem_device, config,
numa_node, local_cpulist, resource, current_link_speed, current_link_width, max_link_speed, max_link_width, driver,
driver_override, iommu_group, physfn, virtfn*, sriov_totalvfs, sriov_numvfs, boot_vga, power_state,
power/runtime_status, reset_method, irq, msi_irqs/, and /proc/irq/N/{smp,effective}_affinity_list.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hosttune.discovery.sets import parsed, read_set
from hosttune.errors import Unreadable
from hosttune.gpu import nvswitches
from hosttune.linux.pciconfig import WIDTHS, ConfigFacts, decode
from hosttune.machine.reader import Reader, number
from hosttune.machine.system import Folder
from hosttune.model import pciclass, sysfs
from hosttune.model.host import Bar, Irq, LinkFigures
from hosttune.model.values import MAX_ID, MAX_SIZE, Value, is_address

# Flags of a sysfs `resource` line, <linux/ioport.h>: memory, prefetchable, 64-bit, without an address.
_MEM = 0x200
_PREFETCH = 0x2000
_MEM_64 = 0x100000
_UNSET = 0x20000000
_REGIONS = 6  # standard BARs; after them come the ROM, SR-IOV and bridge windows
_NO_REGION = b"0x0000000000000000 0x0000000000000000"
_SPEED = re.compile(rb"([0-9]{1,3}(?:\.[0-9])?) GT/s")
LINK_FIGURES = ("speed_gts", "width", "max_speed_gts", "max_width")
_LINK_FILES = frozenset(("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"))
AFFINITY = ("numa_node", "local_cpulist")  # the kernel shows both for every function, or, without NUMA, only the list
_MAX_NODES = 1 << 20


class Function(Value, frozen=True, kw_only=True):
    """One PCI function as sysfs shows it. `above` are the functions above it in its path, nearest first.

    `link`: what sysfs and configuration space report of it; the first counts. `unread`: those files of `AFFINITY` that
    exist but could not be read, or have no valid value.
    """

    address: str
    path: str
    above: tuple[str, ...]
    parent: str | None
    names: frozenset[str]
    vendor: str | None
    device: str | None
    subsystem_vendor: str | None
    subsystem_device: str | None
    revision: str | None
    class_code: str | None
    config: ConfigFacts
    link: tuple[LinkFigures, ...]
    numa_node: int | None
    local_cpus: str | None
    unread: frozenset[str]
    bars: tuple[Bar, ...] | None
    unassigned_bars: tuple[int, ...] | None
    driver: str | None
    unbound: bool | None
    power_state: str | None
    runtime_status: str | None
    physfn: str | None

    @property
    def gone(self) -> bool:
        """Whether its ids or its configuration space read all ones: nothing answers.

        (A virtual function has no ids.)
        """
        return self.config.all_ones or (self.vendor == "ffff" and "physfn" not in self.names)

    @property
    def matters(self) -> bool:
        """Whether guests or tuning need it: a display, accelerator, network, NVMe or NVSwitch function."""
        return matters(self.vendor, self.device, self.class_code)


Regions = tuple[tuple[Bar, ...], tuple[int, ...]]  # BARs with an address, indexes of those without
Bars = dict[tuple[bytes, tuple[int, ...]], Regions | None]


def read_function(
    reader: Reader,
    address: str,
    path: str,
    above: tuple[str, ...],
    parent: str | None,
    seen_bars: Bars,
) -> Function:
    """Read one function under its real `path`. `seen_bars` keeps parsed `resource` texts, most of which repeat."""
    with reader.folder(path) as folder:
        return _read(FunctionFiles(reader, path, folder), address, above, parent, seen_bars)


def _read(files: FunctionFiles, address: str, above: tuple[str, ...], parent: str | None, seen_bars: Bars) -> Function:
    names = files.names
    state, status = _power(files)
    config = read_config(files, state, status)
    ids = vendor, device, class_code = read_ids(files, config)
    subsystem_vendor, subsystem_device, revision = read_subsystem(files, config, vendor)
    if status is None and matters(*ids):
        status = files.runtime_status()
    physfn = files.link_name("physfn")
    unread: set[str] = set()
    driver = files.link_name("driver")
    known = ((), ()) if config.no_bars and is_uncore(class_code) else _bars(files, config.wide_bars, seen_bars)
    return Function(
        address=address,
        path=files.path,
        above=above,
        parent=parent,
        names=names,
        vendor=vendor,
        device=device,
        subsystem_vendor=subsystem_vendor,
        subsystem_device=subsystem_device,
        revision=revision,
        class_code=class_code,
        config=config,
        link=_link_figures(files, config, state),
        numa_node=_node(files, unread),
        local_cpus=_local_cpus(files, unread),
        unread=frozenset(unread),
        bars=known[0] if known else None,
        unassigned_bars=known[1] if known else None,
        driver=driver,
        unbound=True if driver is None and files.reader.lacks(f"{files.path}/driver") else None,
        power_state=state,
        runtime_status=status,
        physfn=physfn if physfn is not None and is_address(physfn) else None,
    )


def _power(files: FunctionFiles) -> tuple[str | None, str | None]:
    """Return the power state ("D0") and, if that is unknown, the runtime status ("active").

    Does not touch the device.
    """
    state = line(files.data("power_state"))
    if state in ("unknown", "error"):
        state = None
    return state, files.runtime_status() if state is None else None


def _local_cpus(files: FunctionFiles, unread: set[str]) -> str | None:
    """Return the CPUs near the function as a list. Old captures have only the mask."""
    data = files.data("local_cpulist")
    if "local_cpulist" in files.names and not is_whole(data):
        unread.add("local_cpulist")
    listed = line(data)
    if listed is not None or "local_cpus" not in files.names or "local_cpulist" in files.names:
        return listed
    mask = line(files.data("local_cpus"))
    try:
        return str(parsed(files.reader, mask, mask=True)) or None if mask else None
    except ValueError:
        files.reader.problem("not a CPU mask", f"{files.path}/local_cpus", f"reads {mask!r:.60}")
        return None


def _node(files: FunctionFiles, unread: set[str]) -> int | None:
    """Return the function's own NUMA node. The kernel's -1 means unknown."""
    data = files.data("numa_node")
    if data == b"-1\n" or "numa_node" not in files.names:
        return None
    node = decimal(data, _MAX_NODES - 1) if is_whole(data) else None
    if node is not None:
        return node
    unread.add("numa_node")
    if data is not None:
        files.reader.problem("not a node", f"{files.path}/numa_node", f"reads {data[:40]!r}")
    return None


def _link_figures(files: FunctionFiles, config: ConfigFacts, power_state: str | None) -> tuple[LinkFigures, ...]:
    """Return the link as the sysfs files show it, then as configuration space does; each only where it shows one.

    The kernel shows all four files or none. So if only some are there, the missing ones were lost and their figures are
    unknown. Where nothing is trained, the files say "Unknown" and width 0, 63 or 255. A virtual function has no link of
    its own. Newer kernels wake a device in D3cold to read these files.
    """
    filed = files.names & _LINK_FILES
    if "physfn" in files.names or power_state == "D3cold" or not (filed or config.max_width or config.max_speed_gts):
        return ()
    data, folder, sources = files.data, sysfs.function(files.path.rpartition("/")[2]), []
    if filed:
        sources.append(
            LinkFigures(
                read=f"{folder}/{_brace_notation(filed)}",
                speed_gts=_speed(data("current_link_speed")),
                width=_lanes(data("current_link_width")),
                max_speed_gts=_speed(data("max_link_speed")),
                max_width=_lanes(data("max_link_width")),
            )
        )
    registers = {name: getattr(config, name) for name in LINK_FIGURES}
    if any(figure is not None for figure in registers.values()):
        sources.append(LinkFigures(read=f"{folder}/config", **registers))
    return tuple(sources)


def _brace_notation(names: frozenset[str]) -> str:
    """Return the names of link files in the brace notation of a shell."""
    if names == _LINK_FILES:
        return "{current,max}_link_{speed,width}"
    return next(iter(names)) if len(names) == 1 else f"{{{','.join(sorted(names))}}}"


@lru_cache(maxsize=128)
def _speed(data: bytes | None) -> float | None:
    """Return the GT/s of "32.0 GT/s PCIe" ("8 GT/s" on older kernels); None for "Unknown"."""
    match = _SPEED.match(data or b"")
    return float(match[1]) or None if match else None


def _lanes(data: bytes | None) -> int | None:
    width = decimal(data, max(WIDTHS))
    return width if width in WIDTHS else None


def _bars(files: FunctionFiles, wide: tuple[int, ...], seen: Bars) -> Regions | None:
    """Return the memory BARs from `resource`, where a line has start, end and flags of one region.

    I/O regions are left out. `wide`: the 64-bit memory BARs that the function has.
    """
    data = files.data("resource")
    if data is None:
        return None
    key = data, wide
    if key not in seen:
        try:
            seen[key] = _parse_bars(data, wide)
        except ValueError:
            files.reader.problem("not a list of regions", f"{files.path}/resource", f"reads {data[:60]!r}")
            seen[key] = None
    return seen[key]


def _parse_bars(data: bytes, wide: tuple[int, ...]) -> Regions:
    """Return (BARs, those without an address).

    Of these the kernel shows the size only, or nothing at all (reset_resource(), Linux drivers/pci/setup-bus.c).
    """
    bars: list[Bar] = []
    unassigned = set(wide)
    for index, row in enumerate(data.split(b"\n", _REGIONS)[:_REGIONS]):
        if not row or row.startswith(_NO_REGION):
            continue
        start, end, flags = (int(word, 16) for word in row.split())
        if end - start >= MAX_SIZE:
            raise ValueError(f"a region of {end - start + 1} bytes")
        if flags & _MEM and flags & _UNSET:
            unassigned.add(index)
        elif flags & _MEM and end > start:
            bars.append(
                Bar(
                    index=index,
                    size_bytes=end - start + 1,
                    prefetchable=bool(flags & _PREFETCH),
                    is_64bit=bool(flags & _MEM_64),
                )
            )
    return tuple(bars), tuple(sorted(unassigned - {bar.index for bar in bars}))


def read_irqs(reader: Reader, function: Function) -> tuple[Irq, ...] | None:
    """Return the function's interrupts (MSI, or else the wired one) with the CPUs that each may use and does use."""
    named = (number(name, MAX_ID) for name in reader.names(f"{function.path}/msi_irqs"))
    numbers = [irq for irq in named if irq is not None]
    if not numbers and "irq" in function.names:
        wired = reader.count(f"{function.path}/irq")
        if wired is None:
            return None
        numbers = [wired] if wired else []
    elif not numbers and "msi_irqs" not in function.names:
        return None
    return tuple(
        Irq(
            irq=irq,
            affinity=_cpus(reader, f"/proc/irq/{irq}/smp_affinity_list"),
            effective=_cpus(reader, f"/proc/irq/{irq}/effective_affinity_list"),
        )
        for irq in sorted(numbers)
    )


def _cpus(reader: Reader, path: str) -> str | None:
    """Return a CPU list as the kernel wrote it; None, with a problem, for text that is not a CPU list."""
    cpu_set = read_set(reader, path)
    return None if cpu_set is None else str(cpu_set)


# The files of one PCI function in sysfs, and the forms in which the kernel writes values there.


_DIGITS = re.compile(r"[0-9a-f]+")


class FunctionFiles:
    """The files of one function, each as bytes; None if absent or unreadable (unreadable also adds a problem)."""

    def __init__(self, reader: Reader, path: str, folder: Folder) -> None:
        self.reader = reader
        self.path = path
        self.names = folder.names
        self._folder = folder

    def data(self, name: str) -> bytes | None:
        """Return the bytes of a file."""
        try:
            return self._folder.read(name)
        except Unreadable as error:
            self.reader.problem("unreadable", f"{self.path}/{name}", error.reason)
            return None

    def link_name(self, name: str) -> str | None:
        """Return the last part of a link's target."""
        return self.reader.link_name(f"{self.path}/{name}") if name in self.names else None

    def runtime_status(self) -> str | None:
        """The status of runtime power management: "active", "suspended"…"""
        return line(self.reader.data(f"{self.path}/power/runtime_status")) if "power" in self.names else None


@lru_cache(maxsize=128)
def line(data: bytes | None) -> str | None:
    """Return the text of a file with one line; None if the file is absent or empty."""
    return data.decode("utf-8", "replace").strip() or None if data else None


@lru_cache(maxsize=128)
def hex_digits(data: bytes | None, digits: int) -> str | None:
    """Return the digits of a text such as "0x10de".

    The kernel writes exactly `digits` of them. None for a text that is not such a number or is cut off.
    """
    text = (line(data) or "").removeprefix("0x").lower()
    return text if len(text) == digits and _DIGITS.fullmatch(text) else None


@lru_cache(maxsize=128)
def decimal(data: bytes | None, most: int) -> int | None:
    """Return a number from 0 to `most`, written in decimal digits only as the kernel does; None for anything else."""
    return number((data or b"").decode("ascii", "replace").rstrip("\n"), most)


def is_whole(data: bytes | None) -> bool:
    """Return whether a file with one line was read to its end.

    The kernel ends each with a line break, even an empty list.
    """
    return data is not None and data.endswith(b"\n")


# --- what tells a function's ids ------------------------------------------------------------------------------

_NOT_READ = ConfigFacts()  # also of a device that reading it would wake
_MATTER = (*pciclass.GPUS, pciclass.NETWORK, pciclass.NVME)
_UNCORE = ("08", "11")  # system peripherals, signal processing

Ids = tuple[str | None, str | None, str | None]  # vendor, device, class


@lru_cache(maxsize=128)  # hundreds of functions have the same ids
def matters(vendor: str | None, device: str | None, class_code: str | None) -> bool:
    """Return whether guests or tuning need a function of these ids and this class."""
    return (class_code or "").startswith(_MATTER) or nvswitches.is_known(vendor, device)


def is_uncore(class_code: str | None) -> bool:
    """Return whether a class is one of those that a processor's own functions have: a server has hundreds of them."""
    return (class_code or "")[:2] in _UNCORE


def read_config(files: FunctionFiles, power_state: str | None, runtime_status: str | None) -> ConfigFacts:
    """Return the configuration space, unless reading it would wake the device: the kernel resumes a device in D3cold.

    (drivers/pci/pci.c, pci_config_pm_runtime_get. A suspended device whose power state is unknown may be in D3cold.)
    """
    if power_state == "D3cold" or (power_state is None and runtime_status == "suspended"):
        return _NOT_READ
    data = files.data("config")
    if data is None:
        return _NOT_READ
    facts = decode(data)
    if facts.doubts:
        files.reader.problem("configuration space doubtful", f"{files.path}/config", "; ".join(facts.doubts))
    return facts


def read_ids(files: FunctionFiles, config: ConfigFacts) -> Ids:
    """Return vendor, device and class.

    The files are preferred to the header, because the header differs for a kernel quirk or a virtual function. For
    uncore functions whose class agrees only the header is used, since the kernel takes the files from it.
    """
    header = (config.vendor_id, config.device_id, config.class_code)
    vendor = device = None
    class_code = hex_digits(files.data("class"), 6)
    uncore = config.vendor_id is not None and is_uncore(config.class_code) and not matters(*header)
    if not uncore or class_code not in (None, config.class_code):
        vendor, device = hex_digits(files.data("vendor"), 4), hex_digits(files.data("device"), 4)
    return vendor or config.vendor_id, device or config.device_id, class_code or config.class_code


def read_subsystem(
    files: FunctionFiles, config: ConfigFacts, vendor: str | None
) -> tuple[str | None, str | None, str | None]:
    """Return subsystem vendor, subsystem device and revision.

    The kernel takes all from the header, so if the header agrees, three files need not be read.
    """
    if vendor is not None and vendor == config.vendor_id and not config.is_bridge:
        return config.subsystem_vendor_id, config.subsystem_device_id, config.revision
    subsystem_vendor = hex_digits(files.data("subsystem_vendor"), 4)
    subsystem_device = hex_digits(files.data("subsystem_device"), 4)
    revision = hex_digits(files.data("revision"), 2) or config.revision
    if subsystem_vendor in (None, "0000", "ffff"):
        return None, None, revision
    return subsystem_vendor, subsystem_device, revision
