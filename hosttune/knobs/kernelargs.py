"""Knobs that are kernel arguments: they take effect at the next boot.

`iommu_passthrough` and `boot_pages` are declared here and planned in `hosttune.planning`, together with the arguments
without which guests cannot work: the IOMMU itself, and the guests' pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hosttune.knobs.bootargs import add_cpus
from hosttune.knobs.knob import BY_NAME, HOST, Change, Knob, KnobContext, by_name
from hosttune.model.commandline import text_of
from hosttune.model.plan import PlanFinding
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
