"""Kernel arguments for the next boot, read and written as the kernel reads them.

Pure. `arguments` is a kernel command line cut at its spaces, None where it is unknown. A change is
(target, current, want): `current` is what stands there now, None when nothing does or the command line is unknown,
`want` None means that the argument goes away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hosttune.model.values import CpuSet
from hosttune.planning.pages import HUGE_1G
from hosttune.planning.settings import ISOLATION_FLAGS

Change = tuple[str, str | None, str | None]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+)([KMGT]?)", re.IGNORECASE)


def find(arguments: Sequence[str] | None, name: str) -> str | None:
    """The first argument of this name ("iommu" finds "iommu=pt"), None when there is none."""
    return next((a for a in arguments or () if a.partition("=")[0] == name), None)


def options(argument: str | None) -> list[str]:
    """The comma-separated values of an argument."""
    return [part for part in (argument or "").partition("=")[2].split(",") if part]


# --- pages ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BootPages:
    """The 1 GiB pages that a command line asks for: by node, or `anywhere` spread over the nodes by the kernel."""

    arguments: tuple[str, ...] = ()
    by_node: Mapping[int, int] | None = None
    anywhere: int = 0

    def least(self, node: int, totals: Mapping[int, int]) -> int:
        """Pages that the node gets at least at every boot. `totals`: the pools of all nodes with memory, now."""
        if self.by_node is not None:
            return self.by_node.get(node, 0)
        if sum(totals.values()) == self.anywhere:  # what the kernel made of it
            return totals.get(node, 0)
        return self.anywhere // max(1, len(totals))

    def most(self, node: int, totals: Mapping[int, int]) -> int:
        """Pages to keep for the node so that all nodes together get no fewer than now."""
        if self.by_node is not None:
            return self.by_node.get(node, 0)
        if sum(totals.values()) >= self.anywhere:
            return totals.get(node, 0)
        return -(-self.anywhere // max(1, len(totals))) if node in totals else 0


def read_boot_pages(arguments: Sequence[str] | None) -> BootPages:
    """The 1 GiB pages of a command line.

    `hugepages=` belongs to the `hugepagesz=` or `default_hugepagesz=` before it, to the default size where there
    is none; a second count for a size is ignored (mm/hugetlb.c, hugepages_setup).
    """
    default = _size(options(find(arguments, "default_hugepagesz")))
    size = default
    selector: str | None = None
    for argument in arguments or ():
        name, _, value = argument.partition("=")
        if name in ("hugepagesz", "default_hugepagesz"):
            size = _size([value])
            if name == "hugepagesz" and size == HUGE_1G and selector is None:
                selector = argument
        elif name == "hugepages" and size == HUGE_1G:
            return _counted(value, tuple(a for a in (selector, argument) if a))
    return BootPages((selector,) if selector else ())


def _size(values: Sequence[str]) -> int | None:
    match = _SIZE.fullmatch(values[0]) if values else None
    return int(match[1]) * _UNITS[match[2].upper()] if match else None


def _counted(value: str, arguments: tuple[str, ...]) -> BootPages:
    if value.isdecimal():
        return BootPages(arguments, None, int(value))
    counts: dict[int, int] = {}
    for part in value.split(","):
        node, _, count = part.partition(":")
        if not (node.isdecimal() and count.isdecimal()):
            break  # the kernel stops here too
        counts[int(node)] = int(count)
    return BootPages(arguments, counts)


def boot_pages(arguments: Sequence[str] | None, totals: Mapping[int, int], needed: Mapping[int, int]) -> Change | None:
    """The change that reserves 1 GiB pages at boot; None where the command line already gives what is needed.

    `totals`: node -> pages of its pool now, for every node with memory; `needed`: node -> pages that the pool has
    to have. No node gets fewer than it has now or than the command line gives it. The size and its counts are
    one value, because they only mean something together and in this order.
    """
    now = read_boot_pages(arguments)
    if all(now.least(node, totals) >= count for node, count in needed.items()):
        return None
    nodes = sorted({*totals, *needed, *(now.by_node or ())})
    counts = {node: max(needed.get(node, 0), totals.get(node, 0), now.most(node, totals)) for node in nodes}
    text = ",".join(f"{node}:{count}" for node, count in counts.items() if count)
    return "hugepages", " ".join(now.arguments) or None, f"hugepagesz=1G hugepages={text}"


# --- CPUs ----------------------------------------------------------------------------------------------------


def add_cpus(arguments: Sequence[str] | None, name: str, cpus: CpuSet) -> Change | None:
    """The change that puts CPUs on the list of `isolcpus` or `nohz_full`, what stands there staying on it."""
    current = find(arguments, name)
    parts = options(current)
    flags: list[str] = []
    while parts and parts[0] in ISOLATION_FLAGS:
        flags.append(parts.pop(0))
    try:
        listed = CpuSet.parse(",".join(parts))
        new = [str(listed | cpus)]
    except ValueError:  # strides, "N", "all": the kernel joins the parts of a list, so the text can stay as it is
        listed = CpuSet()
        added = str(cpus).split(",")
        new = parts if parts[-len(added) :] == added else [*parts, *added]
    want = f"{name}={','.join((*flags, *new))}"
    return None if cpus <= listed or want == current else (name, current, want)


# --- IOMMU ---------------------------------------------------------------------------------------------------

_OFF = {"GenuineIntel": ("iommu", "intel_iommu"), "AuthenticAMD": ("iommu", "amd_iommu")}
_OFF["HygonGenuine"] = _OFF["AuthenticAMD"]  # AMD's IOMMU, and its driver


def off_arguments(arguments: Sequence[str] | None, vendor: str | None) -> list[str]:
    """Arguments that switch the IOMMU of this CPU vendor off; of any vendor where it is unknown."""
    names = _OFF.get(vendor or "", ("iommu", "intel_iommu", "amd_iommu"))
    return [a for a in arguments or () if a.partition("=")[0] in names and "off" in options(a)]


def without_off(argument: str) -> Change:
    """The change that takes "off" from an argument; intel_iommu then says "on", which its kernel may need."""
    name = argument.partition("=")[0]
    rest = [part for part in options(argument) if part != "off"]
    if name == "intel_iommu" and "on" not in rest:
        rest.insert(0, "on")
    return name, argument, f"{name}={','.join(rest)}" if rest else None


def passthrough(arguments: Sequence[str] | None) -> Change | None:
    """The change that gives host-owned devices an identity domain (iommu=pt), None where they have it."""
    current = find(arguments, "iommu")
    parts = options(current)
    if "pt" in parts or "iommu.passthrough=1" in (arguments or ()):
        return None
    kept = [part for part in parts if part not in ("off", "nopt")]
    return "iommu", current, f"iommu={','.join((*kept, 'pt'))}"
