"""Kernel arguments for the next boot, read and written as the kernel reads them.

Pure. `arguments` is a kernel command line split at its spaces, None if it is unknown. A change is (target, current,
want): `current` is the argument's value now, None if the argument is absent or the command line is unknown; `want` None
means that the argument is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosttune.knobs.knob import ISOLATION_FLAGS
from hosttune.model.commandline import options, read_boot_pages, text_of
from hosttune.model.values import CpuSet

Change = tuple[str, str | None, str | None]


def values(arguments: Sequence[str] | None, name: str) -> list[str]:
    """Return the comma-separated values of an argument; if the argument is repeated, the values of all of them."""
    named = (a for a in arguments or () if a.partition("=")[0] == name)
    return list(dict.fromkeys(value for argument in named for value in options(argument)))


# --- pages ---------------------------------------------------------------------------------------------------


def boot_pages(arguments: Sequence[str] | None, totals: Mapping[int, int], needed: Mapping[int, int]) -> Change | None:
    """Return the change that reserves 1 GiB pages at boot; None if the command line already reserves enough.

    `totals`: node -> pages in its pool now, for every node with memory; `needed`: node -> pages that the pool must
    have. No node gets fewer pages than it has now or than the command line gives it. The page size and the counts are
    one value, because they only have a meaning together and in this order.
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
    """Return the change that adds CPUs to the list of `isolcpus` or `nohz_full`; the CPUs on the list stay on it."""
    current = text_of(arguments, name)
    given = values(arguments, name)
    flags = [value for value in given if value in ISOLATION_FLAGS]
    parts = [value for value in given if value not in ISOLATION_FLAGS]
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
_OFF["HygonGenuine"] = _OFF["AuthenticAMD"]  # Hygon CPUs use AMD's IOMMU and its driver


def off_arguments(arguments: Sequence[str] | None, vendor: str | None) -> list[str]:
    """Return the arguments that switch off the IOMMU of this CPU vendor; of any vendor if it is unknown."""
    names = _OFF.get(vendor or "", ("iommu", "intel_iommu", "amd_iommu"))
    return [a for a in arguments or () if a.partition("=")[0] in names and "off" in options(a)]


def without_off(arguments: Sequence[str] | None, name: str) -> Change:
    """Return the change that removes "off" from an argument.

    intel_iommu becomes "on" instead, because the kernel may need that.
    """
    rest = [value for value in values(arguments, name) if value != "off"]
    if name == "intel_iommu" and "on" not in rest:
        rest.insert(0, "on")
    return name, text_of(arguments, name), f"{name}={','.join(rest)}" if rest else None


def passthrough(arguments: Sequence[str] | None) -> Change | None:
    """Return the change that gives host-owned devices an identity domain (iommu=pt); None if they have one."""
    current = text_of(arguments, "iommu")
    parts = values(arguments, "iommu")
    if "pt" in parts or "iommu.passthrough=1" in (arguments or ()):
        return None
    kept = [part for part in parts if part not in ("off", "nopt")]
    return "iommu", current, f"iommu={','.join((*kept, 'pt'))}"
