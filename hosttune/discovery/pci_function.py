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
from hosttune.gpu import model_of, nvswitches
from hosttune.model import sysfs
from hosttune.model.host import Bar, Irq, LinkFigures
from hosttune.model.values import MAX_ID, MAX_SIZE, Value
from hosttune.pciconfig import WIDTHS, ConfigFacts, decode
from hosttune.reader import Reader, number
from hosttune.system import Folder

# Flags of a sysfs `resource` line, <linux/ioport.h>: memory, prefetchable, 64-bit.
_MEM = 0x200
_PREFETCH = 0x2000
_MEM_64 = 0x100000
_REGIONS = 6  # standard BARs; after them come the ROM, SR-IOV and bridge windows
_NO_REGION = b"0x0000000000000000 0x0000000000000000"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(rb"([0-9]{1,3}(?:\.[0-9])?) GT/s")
_DIGITS = re.compile(r"[0-9a-f]+")
_LINK_FILES = frozenset(("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"))
_UNCORE = ("08", "11")  # system peripherals, signal processing
AFFINITY = ("numa_node", "local_cpulist")  # the kernel shows both for every function, or, without NUMA, only the list
MAX_NODES = 1 << 20


class Figures(Value, frozen=True, kw_only=True):
    """What one end of a link reports: speed in GT/s per lane and number of lanes, current and maximum.

    None if unknown.
    """

    speed: float | None = None
    width: int | None = None
    max_speed: float | None = None
    max_width: int | None = None

    @property
    def silent(self) -> bool:
        """Whether the function reports no link at all."""
        return self.max_speed is None and self.max_width is None and self.speed is None and self.width is None


class Function(Value, frozen=True, kw_only=True):
    """One PCI function as sysfs shows it. `above` are the functions above it in its path, nearest first.

    `unread`: those files of `AFFINITY` that exist but could not be read, or have no valid value.
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
    figures: Figures
    told: tuple[LinkFigures, ...]
    numa_node: int | None
    local_cpus: str | None
    unread: frozenset[str]
    bars: tuple[Bar, ...] | None
    driver: str | None
    unbound: bool | None
    power_state: str | None
    runtime_status: str | None
    physfn: str | None
    contradicted: str | None = None

    @property
    def gone(self) -> bool:
        """Whether its ids or its configuration space read all ones: nothing answers.

        (A virtual function has no ids.)
        """
        return self.config.all_ones or (self.vendor == "ffff" and "physfn" not in self.names)

    @property
    def asleep(self) -> bool:
        """Whether it is in D3: the values of its registers mean nothing."""
        return (self.power_state or "").startswith("D3")

    @property
    def matters(self) -> bool:
        """Whether guests or tuning need it: a display, accelerator, network, NVMe or NVSwitch function."""
        return matters(self.class_code, self.vendor, self.device)


@lru_cache(maxsize=128)  # hundreds of functions have the same ids
def matters(class_code: str | None, vendor: str | None, device: str | None) -> bool:
    """Return whether guests or tuning need a function of this class and these ids."""
    kind = class_code or ""
    return kind[:2] in ("03", "12", "02") or kind[:4] == "0108" or nvswitches.is_known(vendor, device)


_NO_CONFIG = ConfigFacts()
_ASLEEP = ConfigFacts()  # of a device that reading it would wake
_GPU_CLASSES = ("03", "12")  # display, processing accelerator
_NO_FIGURES = Figures()
_Bars = dict[bytes, tuple[Bar, ...] | None]


class _Files:
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
        return _line(self.reader.data(f"{self.path}/power/runtime_status")) if "power" in self.names else None


def read_function(
    reader: Reader,
    address: str,
    path: str,
    above: tuple[str, ...],
    parent: str | None,
    seen_bars: _Bars,
    *,
    physical: bool = False,
) -> Function:
    """Read one function under its real `path`.

    `seen_bars` keeps parsed `resource` texts, most of which repeat. `physical` True: its link to a physical
    function is not trusted, and not read.
    """
    with reader.folder(path) as folder:
        files = _Files(reader, path, folder)
        files.names = files.names - {"physfn"} if physical else files.names
        return _read(files, address, above, parent, seen_bars)


def not_read(address: str, why: str) -> Function:
    """Return a function of which only the address is known, because of `why`."""
    path = sysfs.function(address)
    return Function(
        address=address, path=path, above=(), parent=None, names=frozenset(), vendor=None, device=None,
        subsystem_vendor=None, subsystem_device=None, revision=None, class_code=None, config=_NO_CONFIG,
        figures=_NO_FIGURES, told=(), numa_node=None, local_cpus=None, bars=None, driver=None, power_state=None,
        runtime_status=None, physfn=None, contradicted=why, unread=frozenset(), unbound=None,
    )  # fmt: skip


def _read(files: _Files, address: str, above: tuple[str, ...], parent: str | None, seen_bars: _Bars) -> Function:
    names = files.names
    state, status = _power(files)
    config = _config(files, state, status)
    vendor, device, class_code = _ids(files, config)
    contradicted = _why_ids_doubtful(files, config, (vendor, device, class_code))
    subsystem, revision = _subsystem(files, config, vendor)
    if status is None and matters(class_code, vendor, device):
        status = files.runtime_status()
    physfn = files.link_name("physfn")
    figures, told = _figures(files, config, state)
    unread: set[str] = set()
    driver = files.link_name("driver")
    return Function(
        address=address,
        path=files.path,
        above=above,
        parent=parent,
        names=names,
        vendor=vendor,
        device=device,
        subsystem_vendor=subsystem[0],
        subsystem_device=subsystem[1],
        revision=revision,
        class_code=class_code,
        config=config,
        figures=figures,
        told=told,
        numa_node=_node(files, unread),
        local_cpus=_local_cpus(files, unread),
        unread=frozenset(unread),
        bars=() if config.no_bars and class_code and class_code[:2] in _UNCORE else _bars(files, seen_bars),
        driver=driver,
        unbound=True if driver is None and files.reader.lacks(f"{files.path}/driver") else None,
        power_state=state,
        runtime_status=status,
        physfn=physfn if physfn is not None and is_address(physfn) else None,
        contradicted=contradicted,
    )


@lru_cache(maxsize=128)
def _line(data: bytes | None) -> str | None:
    """Return the text of a file with one line; None if the file is absent or empty."""
    return data.decode("utf-8", "replace").strip() or None if data else None


@lru_cache(maxsize=128)
def _hex(data: bytes | None, digits: int) -> str | None:
    """Return the digits of a text such as "0x10de".

    The kernel writes exactly `digits` of them. None for a text that is not such a number or is cut off.
    """
    text = (_line(data) or "").removeprefix("0x").lower()
    return text if len(text) == digits and _DIGITS.fullmatch(text) else None


def is_address(name: str) -> bool:
    """Return whether the kernel would write an address like this.

    The device is below 32, and a domain of more than four digits does not begin with a zero.
    """
    if not ADDRESS.fullmatch(name):
        return False
    domain, _, rest = name.partition(":")
    return int(rest[3:5], 16) < 32 and (len(domain) == 4 or domain[0] != "0")


def _power(files: _Files) -> tuple[str | None, str | None]:
    """Return the power state ("D0") and, if that is unknown, the runtime status ("active").

    Does not touch the device.
    """
    state = _line(files.data("power_state"))
    if state in ("unknown", "error"):
        state = None
    return state, files.runtime_status() if state is None else None


def _config(files: _Files, power_state: str | None, runtime_status: str | None) -> ConfigFacts:
    """Return the configuration space, unless reading it would wake the device: the kernel resumes a device in D3cold.

    (drivers/pci/pci.c, pci_config_pm_runtime_get. A suspended device whose power state is unknown may be in D3cold.)
    """
    if power_state == "D3cold" or (power_state is None and runtime_status == "suspended"):
        return _ASLEEP
    data = files.data("config")
    if data is None:
        return _NO_CONFIG
    facts = decode(data)
    if facts.doubts:
        files.reader.problem("configuration space doubtful", f"{files.path}/config", "; ".join(facts.doubts))
    return facts


def _ids(files: _Files, config: ConfigFacts) -> tuple[str | None, str | None, str | None]:
    """Return vendor, device and class.

    The files are preferred to the header, because the header differs for a kernel quirk or a virtual function. A server
    has hundreds of uncore counters; for these the header is used if the class agrees, since the kernel takes the files
    from it. If file and header differ and only one of them describes a device that matters, that one is used, so that
    no such device is overlooked.
    """
    header = (config.vendor_id, config.device_id, config.class_code)
    filed_class = _hex(files.data("class"), 6)
    uncore = config.vendor_id is not None and (config.class_code or "")[:2] in _UNCORE
    if uncore and filed_class in (None, config.class_code):
        return header
    vendor = _hex(files.data("vendor"), 4) or config.vendor_id
    device = _hex(files.data("device"), 4) or config.device_id
    class_code = filed_class or config.class_code
    return header if _matter(header) and not _matter((vendor, device, class_code)) else (vendor, device, class_code)


_Ids = tuple[str | None, str | None, str | None]


def _matter(ids: _Ids) -> bool:
    vendor, device, class_code = ids
    return matters(class_code, vendor, device)


def _why_ids_doubtful(files: _Files, config: ConfigFacts, ids: _Ids) -> str | None:
    """Return why the ids of a device that matters are doubtful; None if they are not.

    They are doubtful if its files and its header differ, if neither gives its vendor, if the ids of a known GPU have
    another class, and if the header of a GPU is there and cannot be read. A virtual function has no ids in its header.
    Linux corrects the classes of some bridges, storage and serial controllers in its own records
    (drivers/pci/quirks.c), but it never turns another device into a GPU, NIC, NVMe drive or NVSwitch.
    """
    header = (config.vendor_id, config.device_id, config.class_code)
    vendor, device, kind = ids
    if vendor is None and (kind.startswith(_GPU_CLASSES) if kind else device is not None):
        return "who made it could not be read"
    is_gpu = kind is not None and kind.startswith(_GPU_CLASSES)
    if not is_gpu and (model := model_of(vendor, device)):
        return f"its class reads {kind or 'nothing'}, its ids are those of {model}"
    if None in header:
        lost = is_gpu and config is not _ASLEEP and "config" in files.names and "physfn" not in files.names
        return "its configuration space could not be read, which would confirm its ids" if lost else None
    if not (_matter(ids) or _matter(header)):
        return None
    told = []
    for name, mine in zip(("vendor", "device", "class"), header, strict=True):
        filed = _hex(files.data(name), 6 if name == "class" else 4)
        if filed is not None and filed != mine:
            told.append(f"its {name} reads {filed}, in its configuration space {mine}")
    if told:
        files.reader.problem("PCI function contradicts itself", files.path, "; ".join(told))
    return "; ".join(told) or None


def _subsystem(
    files: _Files, config: ConfigFacts, vendor: str | None
) -> tuple[tuple[str | None, str | None], str | None]:
    """Return subsystem ids and revision.

    The kernel takes both from the header, so if the header agrees, three files need not be read.
    """
    if vendor is not None and vendor == config.vendor_id and not config.is_bridge:
        return (config.subsystem_vendor_id, config.subsystem_device_id), config.revision
    subsystem_vendor = _hex(files.data("subsystem_vendor"), 4)
    subsystem_device = _hex(files.data("subsystem_device"), 4)
    revision = _hex(files.data("revision"), 2)
    if subsystem_vendor in (None, "0000", "ffff"):
        subsystem_vendor = subsystem_device = None
    return (subsystem_vendor, subsystem_device), revision or config.revision


def _is_whole(data: bytes | None) -> bool:
    """Return whether a file with one line was read to its end.

    The kernel ends each with a line break, even an empty list.
    """
    return data is not None and data.endswith(b"\n")


def _local_cpus(files: _Files, unread: set[str]) -> str | None:
    """Return the CPUs near the function as a list. Old captures have only the mask."""
    data = files.data("local_cpulist")
    if "local_cpulist" in files.names and not _is_whole(data):
        unread.add("local_cpulist")
    listed = _line(data)
    if listed is not None or "local_cpus" not in files.names or "local_cpulist" in files.names:
        return listed
    mask = _line(files.data("local_cpus"))
    try:
        return str(parsed(files.reader, mask, mask=True)) or None if mask else None
    except ValueError:
        files.reader.problem("not a CPU mask", f"{files.path}/local_cpus", f"reads {mask!r:.60}")
        return None


def _node(files: _Files, unread: set[str]) -> int | None:
    """Return the function's own NUMA node. The kernel's -1 means unknown."""
    data = files.data("numa_node")
    if data == b"-1\n" or "numa_node" not in files.names:
        return None
    node = _decimal(data, MAX_NODES - 1) if _is_whole(data) else None
    if node is not None:
        return node
    unread.add("numa_node")
    if data is not None:
        files.reader.problem("not a node", f"{files.path}/numa_node", f"reads {data[:40]!r}")
    return None


def _figures(files: _Files, config: ConfigFacts, power_state: str | None) -> tuple[Figures, tuple[LinkFigures, ...]]:
    """Return the link as the sysfs files show it, or, without any of them, as configuration space does.

    Also returns the figures of each of the two sources. The kernel shows all four files or none. So if only some are
    there, the missing ones were lost and their figures are unknown. Where nothing is trained, the files say "Unknown"
    and width 0, 63 or 255. A virtual function has no link of its own. Newer kernels wake a device in D3cold to read
    these files.
    """
    filed = files.names & _LINK_FILES
    if "physfn" in files.names or power_state == "D3cold" or not (filed or config.max_width or config.max_speed_gts):
        return _NO_FIGURES, ()
    data = files.data
    own = Figures(
        speed=_speed(data("current_link_speed")),
        width=_lanes(data("current_link_width")),
        max_speed=_speed(data("max_link_speed")),
        max_width=_lanes(data("max_link_width")),
    )
    registers = Figures(
        speed=config.speed_gts, width=config.width, max_speed=config.max_speed_gts, max_width=config.max_width
    )
    folder = sysfs.function(files.path.rpartition("/")[2])
    told = [_told(f"{folder}/{_brace_notation(filed)}", own)] if filed else []
    told += [] if registers.silent else [_told(f"{folder}/config", registers)]
    return own if filed else registers, tuple(told)


def _told(read: str, figures: Figures) -> LinkFigures:
    return LinkFigures(
        read=read,
        speed_gts=figures.speed,
        width=figures.width,
        max_speed_gts=figures.max_speed,
        max_width=figures.max_width,
    )


def _brace_notation(names: frozenset[str]) -> str:
    """Return the names of link files in the brace notation of a shell."""
    if names == _LINK_FILES:
        return "{current,max}_link_{speed,width}"
    return next(iter(names)) if len(names) == 1 else f"{{{','.join(sorted(names))}}}"


@lru_cache(maxsize=128)
def _speed(data: bytes | None) -> float | None:
    """Return the GT/s of "32.0 GT/s PCIe" ("8 GT/s" on older kernels); None for "Unknown"."""
    found = _SPEED.match(data or b"")
    return float(found[1]) or None if found else None


def _lanes(data: bytes | None) -> int | None:
    width = _decimal(data, max(WIDTHS))
    return width if width in WIDTHS else None


@lru_cache(maxsize=128)
def _decimal(data: bytes | None, most: int) -> int | None:
    """Return a number from 0 to `most`, written in decimal digits only as the kernel does; None for anything else."""
    return number((data or b"").decode("ascii", "replace").rstrip("\n"), most)


def _bars(files: _Files, seen: _Bars) -> tuple[Bar, ...] | None:
    """Return the memory BARs from `resource`, where a line has start, end and flags of one region.

    I/O regions are left out.
    """
    data = files.data("resource")
    if data is None:
        return None
    if data not in seen:
        try:
            seen[data] = _parse_bars(data)
        except ValueError:
            files.reader.problem("not a list of regions", f"{files.path}/resource", f"reads {data[:60]!r}")
            seen[data] = None
    return seen[data]


def _parse_bars(data: bytes) -> tuple[Bar, ...]:
    bars: list[Bar] = []
    for index, line in enumerate(data.split(b"\n", _REGIONS)[:_REGIONS]):
        if not line or line.startswith(_NO_REGION):
            continue
        start, end, flags = (int(word, 16) for word in line.split())
        if end - start >= MAX_SIZE:
            raise ValueError(f"a region of {end - start + 1} bytes")
        if flags & _MEM and end > start:
            bars.append(
                Bar(
                    index=index,
                    size_bytes=end - start + 1,
                    prefetchable=bool(flags & _PREFETCH),
                    is_64bit=bool(flags & _MEM_64),
                )
            )
    return tuple(bars)


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
    found = read_set(reader, path)
    return None if found is None else str(found)
