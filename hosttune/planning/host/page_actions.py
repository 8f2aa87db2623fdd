"""Huge pages of the planned guests, as actions: pools that grow now, 1 GiB pages that the next boot reserves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.inventory.pages import GIB, HUGE_1G, NodeMemory
from hosttune.knobs.kernelargs import BOOT_PAGES, HUGETLB_FREE_VMEMMAP, boot_pages
from hosttune.knobs.knob import make_action, wanted
from hosttune.knobs.registry import intent_in_force
from hosttune.model import sysfs
from hosttune.model.commandline import PAGES, read_boot_pages, split, text_of
from hosttune.model.host import Host, NumaNode
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, PlanFinding, PlannedGuest
from hosttune.model.values import CpuSet, format_size, grouped
from hosttune.settings.files import NodeHugePages
from hosttune.settings.kernelargs import KernelArguments

VMEMMAP = "/proc/sys/vm/hugetlb_optimize_vmemmap"
VMEMMAP_OF_1G = 16 << 20  # struct pages of 64 bytes for 262144 pages of 4 KiB

Pages = dict[tuple[int, int], int]  # (node, page size) -> bytes, or pages


def _page_demand(guests: tuple[PlannedGuest, ...]) -> Pages:
    """Return what the planned guests take of each pool, in bytes."""
    parts = grouped(
        ((int(cell.host_nodes), guest.page_bytes), cell.memory_bytes)
        for guest in guests
        if guest.page_bytes
        for cell in guest.cells
    )
    return {pool: sum(sizes) for pool, sizes in parts.items()}


def _missing(memory: Mapping[int, NodeMemory], guests: tuple[PlannedGuest, ...]) -> Pages:
    """Return how many pages each pool must grow by."""
    return {
        (node, page): memory[node].missing_pages(page, size) if node in memory else -(-size // page)
        for (node, page), size in _page_demand(guests).items()
    }


def _at_boot(memory: Mapping[int, NodeMemory], guests: tuple[PlannedGuest, ...]) -> frozenset[int]:
    """Return the nodes whose 1 GiB pages need a reboot, because too little memory is free there now."""
    missing = _missing(memory, guests)
    new = grouped((node, pages * page) for (node, page), pages in missing.items())
    return frozenset(
        node
        for node, sizes in new.items()
        if missing.get((node, HUGE_1G)) and node in memory and memory[node].short_now
        if sum(sizes) > (memory[node].room_bytes() or 0)
    )


def _staged(host: Host) -> frozenset[int]:
    """Return the nodes whose 1 GiB pages are reserved at boot because too little memory was free for them once."""
    force = host.in_force
    if force is None or wanted(intent_in_force(force), BOOT_PAGES):
        return frozenset()
    texts = (setting.want.get(PAGES) for setting in force.settings if setting.kind == KernelArguments.kind)
    by_text = [read_boot_pages(split(text)).by_node or {} for text in texts if text]
    return frozenset(node for counts in by_text for node in counts)


def page_actions(
    host: Host,
    intent: Intent,
    memory: Mapping[int, NodeMemory],
    guests: tuple[PlannedGuest, ...],
    findings: list[PlanFinding],
    *,
    every: bool = False,
) -> Iterable[Action]:
    """Yield the pools that must grow for the guests, and report why the kernel may give fewer pages.

    `every`: also pools that are large enough.
    """
    nodes = {node.id: node for node in host.numa_nodes}
    late = _at_boot(memory, guests)
    missing_pages = _missing(memory, guests)
    for (node, page), size in sorted(_page_demand(guests).items()):
        missing = missing_pages[node, page]
        pool = memory[node].pools.get(page) if node in memory else None
        current = pool.total if pool else None
        if not missing and not (every and current is not None):
            continue
        want = memory[node].pages_wanted(page, size) if node in memory else missing
        target = sysfs.pool_total(node, page)
        have = "none known" if pool is None else f"{pool.free} free" if pool.counted else "how many are free is unknown"
        why = f"guests on node {node} need {-(-size // page)} pages of {format_size(page)}, {have}"
        if page == HUGE_1G and node in late:
            why += f"; {format_size(nodes[node].free_bytes)} of the node is free now: the next boot reserves them"
            yield make_action(NodeHugePages.kind, target, current, want, why, needed=True, effect="reboot")
            continue
        yield make_action(NodeHugePages.kind, target, current, want, why, needed=True)
        if current is None:
            text = (
                f"the pages that node {node} has now are unknown: {want} is what this plan needs, and writing it takes"
                " pages from others where there are more"
            )
            findings.append(PlanFinding(level="warn", text=text, where=target))
        findings += _page_shortfall_findings(intent, nodes.get(node), page, missing, target)


def _page_shortfall_findings(
    intent: Intent, node: NumaNode | None, page: int, missing: int, target: str
) -> Iterable[PlanFinding]:
    """Report why the kernel may give fewer pages than an action wants."""
    size = missing * page
    if node is not None and node.free_bytes is not None and node.free_bytes < size:
        enough = node.free_bytes + (node.cache_bytes or 0) >= size
        text = (
            f"node {node.id} has {format_size(node.free_bytes)} free now, {format_size(size)} of new pages are"
            " wanted: the kernel takes the rest from caches, and may give fewer: sync;"
            " echo 3 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/compact_memory frees what caches hold"
        )
        yield PlanFinding(level="info" if enough else "warn", text=text, where=target)
    elif page == HUGE_1G and wanted(intent, BOOT_PAGES) is None:
        text = (
            "1 GiB pages need unbroken memory: on a host that has run for a while the kernel may give fewer;"
            " hugepages: 2MiB or profile: host (reserved at boot) avoid that"
        )
        yield PlanFinding(level="info", text=text, where=target)


def boot_page_actions(
    host: Host,
    intent: Intent,
    memory: Mapping[int, NodeMemory],
    guests: tuple[PlannedGuest, ...],
    findings: list[PlanFinding],
) -> Iterable[Action]:
    """Yield the 1 GiB pages of the planned guests that are reserved at boot in addition to the current pools.

    All of them if `boot_pages` is wanted, else those of nodes with too little free memory for them now.
    """
    late = _at_boot(memory, guests) | _staged(host)
    every = bool(wanted(intent, BOOT_PAGES))
    needed = {
        node: memory[node].pages_wanted(page, size) if node in memory else -(-size // page)
        for (node, page), size in _page_demand(guests).items()
        if page == HUGE_1G and (every or node in late)
    }
    if not needed:
        return
    saved = sum(needed.values()) * VMEMMAP_OF_1G
    asked = wanted(intent, HUGETLB_FREE_VMEMMAP) or text_of(host.kernel_args, "hugetlb_free_vmemmap")
    if saved >= GIB and not asked and (host.settings or {}).get(VMEMMAP, "0").strip() == "0":
        text = (
            f"the kernel's records of these pages take {format_size(saved)}: settings: {{hugetlb_free_vmemmap: true}}"
            " gives that back, but the kernel then needs memory to give a page back and takes longer over it"
        )
        findings.append(PlanFinding(level="info", text=text, where=VMEMMAP))
    totals = {node.node: node.pages_known(HUGE_1G) for node in memory.values() if node.has_memory}
    change = boot_pages(host.kernel_args, totals, needed)
    if change:
        why = BOOT_PAGES.why
        if late:
            why = f"node {CpuSet(late)} has too little free memory for these pages now; no node gets fewer than it has"
        yield make_action(KernelArguments.kind, *change, why, effect="reboot", needed=bool(late))


def may_boot_pages(intent: Intent) -> bool | None:
    """Return whether a reboot may reserve 1 GiB pages, as the profile or the intent says; None if neither does.

    None: only if a guest whose size is given as a number has no place without them (the contract: kernel arguments only
    if something planned cannot work without them).
    """
    if wanted(intent, BOOT_PAGES):
        return True
    return False if BOOT_PAGES.name in (intent.settings or {}) else None
