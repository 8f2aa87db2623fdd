"""Checks of the host's memory: huge pages, transparent huge pages, same-page merging, NUMA balancing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host, RunningGuest
from hosttune.model.values import format_size
from hosttune.rules.checks.facts import HOST, RECORD, RUNNING, guests_known, listed, named_nodes, planned_guests, wanted
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding, NoValue
from hosttune.settings.files import Ksm, NumaBalancing, Thp

Pool = tuple[int | None, int]  # node (None: any), page size in bytes

_THP, _KSM, _BALANCING = Thp.path, Ksm.path, NumaBalancing.path


# --- huge pages ----------------------------------------------------------------------------------------------


class PagePool(NamedTuple):
    """Pages of one size, on one node or any. `counts`: (total, free) of each node; `need`: bytes that guests want."""

    node: int | None
    size: int
    counts: tuple[tuple[int | None, int | None], ...]
    need: int


def page_pools(evidence: Evidence) -> Iterator[tuple[str, PagePool]]:
    """Yield the pools that are reserved, or that a guest asks for which does not run yet."""
    host, demand = evidence.host, _demand(evidence)
    pools: dict[Pool, tuple[int | None, int | None]] = {
        (node.id, pool.size_bytes): (pool.total, pool.free) for node in host.numa_nodes for pool in node.hugepages or ()
    }
    pools |= dict.fromkeys(unread_pools(host), (None, None))
    reserved = {key for key, (total, _) in pools.items() if total != 0}
    keys = sorted({*reserved, *demand}, key=lambda key: (-1 if key[0] is None else key[0], key[1]))
    if not keys:
        raise NoValue(_no_pages(evidence))
    for node, size in keys:
        counts = tuple(pool for (at, page), pool in pools.items() if page == size and node in (None, at))
        subject = f"{HOST if node is None else f'node{node}'} {format_size(size)}"
        yield subject, PagePool(node, size, counts, demand.get((node, size), 0))


def _no_pages(evidence: Evidence) -> Finding:
    """Return the finding if, as far as is known, no pages are reserved and no guest needs any."""
    guests, nodes = guests_known(evidence), evidence.host.numa_nodes
    unsure = [guest.name for guest in guests or () if guest.memory is None or _huge_parts(guest)]
    if guests is None and not evidence.plans:
        why = "libvirt could not be asked which guests there are"
        remedy = "run it where libvirt answers: virsh -c qemu:///system list --all"
    elif not nodes or any(node.hugepages is None and node.memory_bytes != 0 for node in nodes):
        why, remedy = "the pools of the nodes are unknown", RECORD
    elif unsure:  # one that asks for some, and of which it is unknown whether it runs, or that is just starting
        why, remedy = (
            f"none are reserved; whether {listed(unsure)} needs some is unknown",
            "look with: virsh dumpxml GUEST",
        )
    else:
        return Finding(outcome="skip", text="no guest asks for huge pages, and none are reserved")
    return Finding(outcome="unknown", text=why, expected="pages for the guests that ask for them", remedy=remedy)


def unread_pools(host: Host) -> list[tuple[int, int]]:
    """Return (node, page size) of pools that must exist and were not read: each node with memory has one of each size.

    Linux before 6.1 makes no pool on a node without memory (a4a00b451ef5, "mm/hugetlb: eliminate memory-less nodes
    handling"), and later ones have no page there.
    """
    default = host.memory_settings.default_hugepage_bytes if host.memory_settings else None
    had = {node.id: {pool.size_bytes for pool in node.hugepages or ()} for node in host.numa_nodes}
    sizes = {size for found in had.values() for size in found} | ({default} if default and had else set())
    nodes = named_nodes(host) - {node.id for node in host.numa_nodes if node.memory_bytes == 0}
    return [(node, size) for node in sorted(nodes) for size in sorted(sizes - had.get(node, set()))]


def _huge_parts(guest: RunningGuest) -> list[tuple[Pool, int]]:
    """Return the parts of a guest's memory that are of huge pages: (pool, bytes)."""
    return [
        ((part.node, part.page_bytes), part.memory_bytes)
        for part in guest.memory or ()
        if part.page_bytes and part.page_bytes > 4096 and part.memory_bytes
    ]


def _demand(evidence: Evidence) -> dict[Pool, int]:
    """Return the bytes that guests which do not run yet will take, by node and page size."""
    demand: dict[Pool, int] = {}
    known = {guest.name: guest for guest in evidence.host.guests or ()}
    for guest in known.values():
        if (guest.state or "running") in RUNNING:
            continue
        for key, size in _huge_parts(guest):
            demand[key] = demand.get(key, 0) + size
    for name, planned in planned_guests(evidence).items():
        for cell in planned.cells if name not in known and planned.page_bytes else ():
            key = int(cell.host_nodes), planned.page_bytes or 0
            demand[key] = demand.get(key, 0) + cell.memory_bytes
    return demand


@check(
    "hugepages",
    title="Huge pages reserved and used",
    about="each pool (node and page size) that is reserved, or that a guest asks for",
    why="a guest whose pages are missing, or mounted nowhere, does not start; free pages are of no use to others",
    source="Linux Documentation/admin-guide/mm/hugetlbpage; libvirt src/qemu/qemu_conf.c (hugetlbfs)",
    each=page_pools,
    for_guests=True,
)
def hugepages(on: On, pool: PagePool) -> Finding:
    place = sysfs.pool("*" if pool.node is None else pool.node, pool.size)
    pages = -(-pool.need // pool.size)
    expected = f"{pages} free for guests that do not run yet" if pages else "as reserved, no guest waits for them"
    on = on.reading(f"{place}/{{nr,free}}_hugepages", expected)
    known = [(total, free) for total, free in pool.counts if total is not None and free is not None]
    whole = known if known and len(known) == len(pool.counts) else None
    counts = on.need(whole, "how many there are, or are free,", place, look=f"grep . {place}/*")
    total, free = sum(total for total, _ in counts), sum(free for _, free in counts)
    actual = f"{total} reserved, {free} free"
    if free < pages:
        return on.failed(
            actual,
            f"echo {total + pages - free} > {place}/nr_hugepages; for 1 GiB pages on a host that has run for a while"
            " plan with profile host, which reserves them at boot",
        )
    unmounted = _unmounted(on.reading("/proc/mounts", f"{expected}, and mounted"), pool.size) if pages else None
    return unmounted or on.passed(actual)


def _unmounted(on: On, size: int) -> Finding | None:
    """Return what prevents guests from using pages that exist; None if nothing does.

    libvirt needs a hugetlbfs mount of their size, and finds it only when its daemon starts (src/qemu/qemu_conf.c,
    src/util/virfile.c).
    """
    settings = on.host.memory_settings
    mounts = on.need(settings.hugetlbfs if settings else None, "what is mounted", "/proc/mounts")
    alike = [mount for mount in mounts if mount.size_bytes == size]
    paths = ", ".join(mount.path for mount in alike)
    if not alike:
        hint = "plan the guest again: the plan mounts them; without a hugetlbfs of this size it does not start"
        return on.failed("no such hugetlbfs", hint)
    if any(mount.libvirt for mount in alike):
        return None
    if any(mount.libvirt is None for mount in alike):
        return on.unknown(f"whether libvirt has found {paths} is unknown", f"look for {paths}/libvirt/qemu", paths)
    hint = "systemctl restart libvirtd (virtqemud where libvirt is modular): it looks for mounts when it starts"
    return on.failed(f"libvirt has not found {paths}", hint, paths)


# --- settings of the whole host ------------------------------------------------------------------------------


@check(
    "thp",
    title="Transparent huge pages",
    about="the host",
    why="always lets the kernel compact memory beside guests that have pages of their own",
    source="Linux Documentation/admin-guide/mm/transhuge",
    expected="madvise",
    remedy=f"echo madvise > {_THP}, or plan with profile host (setting thp)",
    reads=_THP,
    for_guests=True,
)
def thp(on: On) -> Finding:
    settings = on.host.memory_settings
    good = {"madvise": "", "never": "no process gets transparent huge pages"}
    return _setting(on, settings.thp if settings else None, _THP, good)


@check(
    "ksm",
    title="Same-page merging",
    about="the host",
    why="it cannot merge pinned memory, costs CPU time, and by timing shows one guest what another has",
    source="Linux Documentation/admin-guide/mm/ksm; Suzaki et al., EuroSec 2011, memory deduplication as a threat",
    expected="0 or 2: not merging",
    remedy=f"echo 2 > {_KSM}, which also unmerges, or plan with profile host (setting ksm)",
    reads=_KSM,
    for_guests=True,
)
def ksm(on: On) -> Finding:
    settings, path = on.host.memory_settings, "/sys/kernel/mm/ksm/pages_shared"
    run = settings.ksm_run if settings else None
    finding = _setting(on, run, _KSM, {"0": "not merging", "2": "not merging, and unmerged"})
    if finding.outcome != "pass" or run != 0:
        return finding
    shared = on.need(on.evidence.ksm_pages_shared, "not merging any more; whether merged pages are kept", path)
    if not shared:
        return finding
    text = f"0: not merging any more, but {shared} merged pages are kept"
    return on.warned(text, f"echo 2 > {_KSM}, which unmerges them", "/sys/kernel/mm/ksm/{run,pages_shared}")


@check(
    "numa-balancing",
    title="Automatic NUMA balancing",
    about="the host, where it has several nodes",
    why="its page scanning costs time and cannot move pinned memory",
    source="Linux Documentation/admin-guide/sysctl/kernel (numa_balancing)",
    expected="0: off",
    remedy="sysctl kernel.numa_balancing=0, or plan with profile host (setting numa_balancing)",
    reads=_BALANCING,
    for_guests=True,
)
def numa_balancing(on: On) -> Finding:
    host, settings = on.host, on.host.memory_settings
    if len([node for node in host.numa_nodes if node.kind in ("cpu", "memory", None)]) == 1 == len(named_nodes(host)):
        on.skip("one NUMA node: there is nothing to balance")
    return _setting(on, settings.numa_balancing if settings else None, _BALANCING, {"0": "off"})


def _setting(on: On, value: str | int | None, path: str, good: Mapping[str, str]) -> Finding:
    """Judge one setting by the kernel's own word: pass if it is good or as an applied plan sets it, else a warning."""
    word = str(on.need(value, "the setting", path, skip="this kernel has no such setting"))
    text = f"{word}: {good[word]}" if good.get(word) else word
    if word in good:
        return on.passed(text)
    if word in {str(want) for want in wanted(on.evidence, on.check.id).values()}:
        return on.passed(f"{word}, as the applied plan asks")
    return on.warned(text)
