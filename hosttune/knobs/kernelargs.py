"""Knobs that are kernel arguments: they take effect at the next boot.

`iommu_passthrough` and `boot_pages` are declared here and planned in `hosttune.planning`, together with the arguments
without which guests cannot work: the IOMMU itself, and the guests' pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hosttune.knobs.knob import BY_NAME, HOST, ISOLATION_FLAGS, Change, Knob, KnobContext, by_name
from hosttune.model.commandline import options, read_boot_pages, text_of
from hosttune.model.plan import PlanFinding
from hosttune.model.values import CpuSet
from hosttune.settings.kernelargs import KernelArguments

_SOURCE = "Documentation/admin-guide/kernel-parameters"


def _cpus(name: str) -> Callable[[KnobContext, str | bool], Iterable[Change]]:
    """Return a function that yields the CPU list: the given one, or the list's CPUs now and the guests' pinned CPUs."""

    def changes(ctx: KnobContext, value: str | bool) -> Iterable[Change]:
        if not ctx.pinned:
            return
        arguments = ctx.host.kernel_args
        given = (name, text_of(arguments, name), f"{name}={value}")
        change = add_cpus(arguments, name, ctx.pinned) if value is True else given
        if change:
            yield Change(*change)

    return changes


def _as_given(name: str) -> Callable[[KnobContext, str], Iterable[Change | PlanFinding]]:
    def changes(ctx: KnobContext, value: str) -> Iterable[Change]:
        known = ctx.host.kernel_args
        yield Change(name, None if known is None else text_of(known, name), f"{name}={value}")

    return changes


def _mitigations(ctx: KnobContext, value: str) -> Iterable[Change | PlanFinding]:
    if value == "off":
        text = (
            "mitigations=off lets a guest read the data of others through flaws of the CPU: never use it on a host of"
            " several tenants"
        )
        yield PlanFinding(level="warn", text=text, where="settings.mitigations")
    yield from _as_given("mitigations")(ctx, value)


IOMMU_PASSTHROUGH: Knob[KnobContext] = Knob(
    name="iommu_passthrough",
    setting=KernelArguments,
    profiles=HOST,
    value=True,
    sets="kernel argument `iommu=pt`; the profile leaves it out where SEV-SNP is on or asked for, which it would end",
    why="DMA of devices that stay with the host is not translated; that of guests still is",
    source=_SOURCE,
)
BOOT_PAGES: Knob[KnobContext] = Knob(
    name="boot_pages",
    setting=KernelArguments,
    profiles=HOST,
    value=True,
    sets="1 GiB pages reserved at boot, when memory is not fragmented yet; no node gets fewer than it has now. `keep`"
    " also forbids it for sizes that only a reboot can give",
    why="1 GiB pages are certain only at boot; no node gets fewer than it has now",
    source="Documentation/admin-guide/mm/hugetlbpage",
)
ISOLCPUS: Knob[KnobContext] = Knob(
    name="isolcpus",
    setting=KernelArguments,
    profiles=BY_NAME,
    value=True,
    cpus=True,
    changes=_cpus("isolcpus"),
    sets="kernel argument, by name only",
    takes='`true`: pinned CPUs besides those on the list now; or the list itself, `"domain,2-7"`',
    why=by_name("isolcpus"),
    source=_SOURCE,
)
NOHZ_FULL: Knob[KnobContext] = Knob(
    name="nohz_full",
    setting=KernelArguments,
    profiles=BY_NAME,
    value=True,
    cpus=True,
    changes=_cpus("nohz_full"),
    sets="kernel argument, by name only",
    takes='`true`: pinned CPUs besides those on the list now; or the list itself, `"2-7"`',
    why=by_name("nohz_full"),
    source=_SOURCE,
)
HUGETLB_FREE_VMEMMAP: Knob[KnobContext] = Knob(
    name="hugetlb_free_vmemmap",
    setting=KernelArguments,
    profiles=BY_NAME,
    value="on",
    values=("on", "off"),
    changes=_as_given("hugetlb_free_vmemmap"),
    # 64 bytes for each of 262144 pages; giving a page back takes memory and time (Documentation/mm/vmemmap_dedup).
    sets="kernel argument, by name only: the kernel keeps no record of each 4 KiB of a huge page, 16 MiB less for each"
    " of 1 GiB; giving a page back then needs memory",
    why=by_name("hugetlb_free_vmemmap"),
    source="Documentation/admin-guide/mm/hugetlbpage",
)
MITIGATIONS: Knob[KnobContext] = Knob(
    name="mitigations",
    setting=KernelArguments,
    profiles=BY_NAME,
    value=None,
    values=("auto", "auto,nosmt", "off"),
    false_means="off",
    changes=_mitigations,
    sets="kernel argument against CPU flaws, by name only, as given; `off` never on a host of several tenants",
    why=by_name("mitigations"),
    source=f"{_SOURCE}; Documentation/admin-guide/hw-vuln",
)
KNOBS = (IOMMU_PASSTHROUGH, BOOT_PAGES, ISOLCPUS, NOHZ_FULL, HUGETLB_FREE_VMEMMAP, MITIGATIONS)
ISOLATION = (ISOLCPUS, NOHZ_FULL)
AS_GIVEN = (MITIGATIONS, HUGETLB_FREE_VMEMMAP)


# --- the next boot's arguments ---------------------------------------------------------------------------------
# Kernel arguments for the next boot, read and written as the kernel reads them.
# Pure. `arguments` is a kernel command line split at its spaces, None if it is unknown. A change is (target, current,
# want): `current` is the argument's value now, None if the argument is absent or the command line is unknown; `want`
# None means that the argument is removed.

ArgumentChange = tuple[str, str | None, str | None]


def values(arguments: Sequence[str] | None, name: str) -> list[str]:
    """Return the comma-separated values of an argument; if the argument is repeated, the values of all of them."""
    named = (a for a in arguments or () if a.partition("=")[0] == name)
    return list(dict.fromkeys(value for argument in named for value in options(argument)))


# --- pages ---------------------------------------------------------------------------------------------------


def boot_pages(
    arguments: Sequence[str] | None, totals: Mapping[int, int], needed: Mapping[int, int]
) -> ArgumentChange | None:
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


def add_cpus(arguments: Sequence[str] | None, name: str, cpus: CpuSet) -> ArgumentChange | None:
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


def without_off(arguments: Sequence[str] | None, name: str) -> ArgumentChange:
    """Return the change that removes "off" from an argument.

    intel_iommu becomes "on" instead, because the kernel may need that.
    """
    rest = [value for value in values(arguments, name) if value != "off"]
    if name == "intel_iommu" and "on" not in rest:
        rest.insert(0, "on")
    return name, text_of(arguments, name), f"{name}={','.join(rest)}" if rest else None


def passthrough(arguments: Sequence[str] | None) -> ArgumentChange | None:
    """Return the change that gives host-owned devices an identity domain (iommu=pt); None if they have one."""
    current = text_of(arguments, "iommu")
    parts = values(arguments, "iommu")
    if "pt" in parts or "iommu.passthrough=1" in (arguments or ()):
        return None
    kept = [part for part in parts if part not in ("off", "nopt")]
    return "iommu", current, f"iommu={','.join((*kept, 'pt'))}"
