"""Read what sysfs says of one PCI function, without judging it; `pci` puts the functions together.

Of each function a capture must hold: vendor, device, class, revision, subsystem_vendor, subsystem_device, config,
numa_node, local_cpulist, resource, current_link_speed, current_link_width, max_link_speed, max_link_width,
driver, driver_override, iommu_group, physfn, virtfn*, sriov_totalvfs, sriov_numvfs, boot_vga, power_state,
power/runtime_status, reset_method, irq, msi_irqs/, and /proc/irq/N/{smp,effective}_affinity_list.
"""

from __future__ import annotations

import re

from hosttune.discovery.sets import parsed, read_set
from hosttune.errors import Unreadable
from hosttune.gpu import nvswitches
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
_REGIONS = 6  # standard BARs; behind them come the ROM, SR-IOV and bridge windows
_NO_REGION = b"0x0000000000000000 0x0000000000000000"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(rb"([0-9]{1,3}(?:\.[0-9])?) GT/s")
_DIGITS = re.compile(r"[0-9a-f]+")
_LINK_FILES = frozenset(("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"))
_UNCORE = ("08", "11")  # system peripherals, signal processing
AFFINITY = ("numa_node", "local_cpulist")  # a kernel shows both of every function, or with no NUMA the list alone
MAX_NODES = 1 << 20


class Figures(Value, frozen=True, kw_only=True):
    """One end of a link in its own words: rate in GT/s per lane and lanes, now and at most; None where unknown."""

    speed: float | None = None
    width: int | None = None
    max_speed: float | None = None
    max_width: int | None = None

    @property
    def silent(self) -> bool:
        """The function reports no link at all."""
        return self.max_speed is None and self.max_width is None and self.speed is None and self.width is None


class Function(Value, frozen=True, kw_only=True):
    """One PCI function as sysfs shows it. `above` are the functions of its link path, nearest first.

    `unread`: of `AFFINITY` the files that are there, and could not be read or say nothing that they can say.
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
        """Its ids or its configuration space read all ones: nothing answers there. (A virtual function has no ids.)"""
        return self.config.all_ones or (self.vendor == "ffff" and "physfn" not in self.names)

    @property
    def asleep(self) -> bool:
        """In D3: its registers mean nothing."""
        return (self.power_state or "").startswith("D3")

    @property
    def matters(self) -> bool:
        """A display, accelerator, network, NVMe or NVSwitch function: worth a look at its interrupts and power."""
        return matters(self.class_code, self.vendor, self.device)


def matters(class_code: str | None, vendor: str | None, device: str | None) -> bool:
    """Whether a function of this class and id is something that guests or tuning are about."""
    kind = class_code or ""
    return kind[:2] in ("03", "12", "02") or kind[:4] == "0108" or nvswitches.is_known(vendor, device)


_NO_CONFIG = ConfigFacts()
_NO_FIGURES = Figures()
_Bars = dict[bytes, tuple[Bar, ...] | None]


class _Files:
    """The files of one function: each as bytes, None when absent or unreadable (then a problem is noted)."""

    def __init__(self, reader: Reader, path: str, folder: Folder) -> None:
        self.reader = reader
        self.path = path
        self.names = folder.names
        self._folder = folder

    def data(self, name: str) -> bytes | None:
        """The bytes of a file."""
        try:
            return self._folder.read(name) if name in self.names else None
        except Unreadable as error:
            self.reader.problem("unreadable", f"{self.path}/{name}", error.reason)
            return None

    def link_name(self, name: str) -> str | None:
        """The last part of where a link leads."""
        return self.reader.link_name(f"{self.path}/{name}") if name in self.names else None

    def runtime_status(self) -> str | None:
        """Of runtime power management: "active", "suspended"…"""
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
    """Read one function under its real `path`. `seen_bars` keeps parsed `resource` texts, most of which repeat.

    `physical`: its link to a physical function is not believed, and left unread.
    """
    with reader.folder(path) as folder:
        files = _Files(reader, path, folder)
        files.names = files.names - {"physfn"} if physical else files.names
        return _read(files, address, above, parent, seen_bars)


def not_read(address: str, why: str) -> Function:
    """A function of which nothing is known but its address, because `why`."""
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
    contradicted = _belied(files, config, (vendor, device, class_code))
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


def _line(data: bytes | None) -> str | None:
    """A one-line file's text; None for an absent one and for one that says nothing."""
    return data.decode("utf-8", "replace").strip() or None if data else None


def _hex(data: bytes | None, digits: int) -> str | None:
    """The digits of "0x10de", of which the kernel writes so many; None for what is no such number, or cut off."""
    text = (_line(data) or "").removeprefix("0x").lower()
    return text if len(text) == digits and _DIGITS.fullmatch(text) else None


def is_address(name: str) -> bool:
    """Whether the kernel would write an address so: a device below 32, no zeros before a domain of four digits."""
    if not ADDRESS.fullmatch(name):
        return False
    domain, _, rest = name.partition(":")
    return int(rest[3:5], 16) < 32 and (len(domain) == 4 or domain[0] != "0")


def _power(files: _Files) -> tuple[str | None, str | None]:
    """Power state ("D0") and, where that is not told, runtime status ("active"). Neither touches the device."""
    state = _line(files.data("power_state"))
    if state in ("unknown", "error"):
        state = None
    return state, files.runtime_status() if state is None else None


def _config(files: _Files, power_state: str | None, runtime_status: str | None) -> ConfigFacts:
    """Configuration space, unless reading it would wake the device: the kernel resumes one in D3cold for it.

    (drivers/pci/pci.c, pci_config_pm_runtime_get; a suspended device whose state is not told may be in D3cold.)
    """
    if power_state == "D3cold" or (power_state is None and runtime_status == "suspended"):
        return _NO_CONFIG
    data = files.data("config")
    if data is None:
        return _NO_CONFIG
    facts = decode(data)
    if facts.doubts:
        files.reader.problem("configuration space doubtful", f"{files.path}/config", "; ".join(facts.doubts))
    return facts


def _ids(files: _Files, config: ConfigFacts) -> tuple[str | None, str | None, str | None]:
    """Vendor, device and class. The files go before the header, which a kernel quirk or a virtual function belies.

    A server has hundreds of uncore counters; for these the header does, as it is where the files come from. Where file
    and header are both there and differ, the one of them counts that says a device that matters: none may vanish.
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


def _belied(files: _Files, config: ConfigFacts, ids: _Ids) -> str | None:
    """Why the ids of a device that matters are doubtful: its files and its header differ, or neither tells its maker.

    A virtual function has no ids in its header. Linux mends classes of bridges, storage and serial controllers in its
    own books (drivers/pci/quirks.c); it makes no GPU, NIC, NVMe drive or NVSwitch of anything else.
    """
    header = (config.vendor_id, config.device_id, config.class_code)
    vendor, device, kind = ids
    if vendor is None and (kind.startswith(("03", "12")) if kind else device is not None):
        return "who made it could not be read"
    if None in header or not (_matter(ids) or _matter(header)):
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
    """Subsystem ids and revision. The kernel took both from the header, so a header that agrees saves three files."""
    if vendor is not None and vendor == config.vendor_id and not config.is_bridge:
        return (config.subsystem_vendor_id, config.subsystem_device_id), config.revision
    subsystem_vendor = _hex(files.data("subsystem_vendor"), 4)
    subsystem_device = _hex(files.data("subsystem_device"), 4)
    revision = _hex(files.data("revision"), 2)
    if subsystem_vendor in (None, "0000", "ffff"):
        subsystem_vendor = subsystem_device = None
    return (subsystem_vendor, subsystem_device), revision or config.revision


def _is_whole(data: bytes | None) -> bool:
    """Whether a one-line file was read to its end: the kernel ends each with a line break, an empty list too."""
    return data is not None and data.endswith(b"\n")


def _local_cpus(files: _Files, unread: set[str]) -> str | None:
    """The CPUs near the function as a list; old captures hold only the mask."""
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
    """The function's own NUMA node; the kernel's -1 is unknown."""
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
    """The link as the sysfs files say, and as configuration space does where there is none of them; and each by itself.

    A kernel shows all four files or none: one that is gone was lost, and its figure is unknown. They say "Unknown" and
    width 0, 63 or 255 where nothing is trained. A virtual function has no link of its own, and newer kernels wake a
    device in D3cold to read these.
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
    told = [_told(f"{folder}/{_braced(filed)}", own)] if filed else []
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


def _braced(names: frozenset[str]) -> str:
    """The names of link files as a shell would read them."""
    if names == _LINK_FILES:
        return "{current,max}_link_{speed,width}"
    return next(iter(names)) if len(names) == 1 else f"{{{','.join(sorted(names))}}}"


def _speed(data: bytes | None) -> float | None:
    """GT/s of "32.0 GT/s PCIe" ("8 GT/s" on older kernels); None for "Unknown"."""
    found = _SPEED.match(data or b"")
    return float(found[1]) or None if found else None


def _lanes(data: bytes | None) -> int | None:
    width = _decimal(data, max(WIDTHS))
    return width if width in WIDTHS else None


def _decimal(data: bytes | None, most: int) -> int | None:
    """A number from 0 to `most` in decimal digits alone, as the kernel writes it; None for anything else."""
    return number((data or b"").decode("ascii", "replace").rstrip("\n"), most)


def _bars(files: _Files, seen: _Bars) -> tuple[Bar, ...] | None:
    """Memory BARs from `resource`: a line is start, end and flags of one region. I/O regions are no memory."""
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
    """The function's interrupts (MSI, else the wired one) and the CPUs that each may go to and goes to."""
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
    """A CPU list as the kernel writes it; None, with a problem, for what is none."""
    found = read_set(reader, path)
    return None if found is None else str(found)
