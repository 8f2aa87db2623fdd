"""Checks of the host's memory: huge pages, transparent huge pages, same-page merging, NUMA balancing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import Host, RunningGuest
from hosttune.model.problems import PAGES_UNSURE
from hosttune.model.validation import CheckResult
from hosttune.model.values import format_size
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import (
    HOST,
    RECORD,
    RUNNING,
    guests_known,
    lacks,
    listed,
    named_nodes,
    planned_guests,
    refused,
    wanted,
)
from hosttune.settings.memory import Ksm, NumaBalancing, Thp

Pool = tuple[int | None, int]  # node (None: any), page size in bytes

_THP, _KSM, _BALANCING = Thp.path, Ksm.path, NumaBalancing.path


# --- huge pages ----------------------------------------------------------------------------------------------


def hugepages(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that enough huge pages are reserved for guests that are defined or planned and do not run.

    Where guests that run have more pages than there are, one of the two sources is wrong, and which one is unknown.
    """
    check = "hugepages"
    demand, missing = _demand(evidence), missing_pages(evidence)
    pools: dict[Pool, tuple[int | None, int | None]] = {
        (node.id, pool.size_bytes): (pool.total, pool.free)
        for node in evidence.host.numa_nodes
        for pool in node.hugepages or ()
    }
    pools |= dict.fromkeys(unread_pools(evidence.host), (None, None))
    reserved = {key for key, (total, _) in pools.items() if total != 0 or page_count_uncertain(evidence.host, key[1])}
    keys = sorted({*reserved, *demand, *missing}, key=lambda key: (-1 if key[0] is None else key[0], key[1]))
    if not keys:
        yield _no_pages(evidence, check)
    for key in keys:
        found = _pool(evidence, check, key, demand.get(key, 0), pools)
        if key in missing and found.outcome not in ("fail", "unknown"):
            why, hint = f"{found.actual}; {missing[key]}", WHO_IS_RIGHT
            found = unknown(
                check, found.subject, expected=found.expected or "", why=why, hint=hint, source=found.source
            )
        yield found


WHO_IS_RIGHT = "compare: grep -i huge /proc/meminfo; virsh dumpxml GUEST; grep -l huge /proc/*/numa_maps"


def missing_pages(evidence: Evidence) -> dict[Pool, str]:
    """Return the pools that have fewer pages than running guests hold of them, with both numbers in words.

    A guest that libvirt binds to a node by preference may have its pages elsewhere, so all nodes together must have
    fewer pages of the size. A guest that is just starting may not have its pages yet.
    """
    held: dict[Pool, int] = {}
    for guest in evidence.host.guests or ():
        if guest.state in RUNNING and not guest.starting:
            for key, size in _huge_parts(guest):
                held[key] = held.get(key, 0) + size // key[1]
    totals: dict[Pool, int | None] = {}
    for node in evidence.host.numa_nodes:
        for pool in node.hugepages or ():
            totals[node.id, pool.size_bytes] = pool.total
    found: dict[Pool, str] = {}
    for (node_id, size), pages in held.items():
        every = [total for (_, page), total in totals.items() if page == size]
        known = [total for total in every if total is not None]
        of_all = sum(count for (_, page), count in held.items() if page == size)
        own = sum(known) if node_id is None else totals.get((node_id, size)) or 0
        if len(known) == len(every) and of_all > sum(known) and pages > own:
            found[node_id, size] = f"running guests hold {pages} pages of it, and there are {own}"
    return found


def unread_pools(host: Host) -> list[tuple[int, int]]:
    """Return (node, page size) of pools that must exist and were not read: each node has a pool of each page size."""
    default = host.memory_settings.default_hugepage_bytes if host.memory_settings else None
    had = {node.id: {pool.size_bytes for pool in node.hugepages or ()} for node in host.numa_nodes}
    sizes = {size for found in had.values() for size in found} | ({default} if default and had else set())
    return [(node, size) for node in sorted(named_nodes(host)) for size in sorted(sizes - had.get(node, set()))]


def page_count_uncertain(host: Host, page_bytes: int) -> bool:
    """Return whether the nodes' counts of huge pages of this size are wrong, or not known to be right."""
    default = host.memory_settings.default_hugepage_bytes if host.memory_settings else None
    return default in (None, page_bytes) and any(problem.what == PAGES_UNSURE for problem in host.problems)


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


def _no_pages(evidence: Evidence, check: str) -> CheckResult:
    """Return the result if, as far as is known, no pages are reserved and no guest needs any."""
    host = evidence.host
    source = f"{sysfs.NODES}/node*/hugepages"
    expected = "pages for the guests that ask for them"
    if guests_known(evidence) is None and not evidence.plans:
        why = "libvirt could not be asked which guests there are"
        hint = "run it where libvirt answers: virsh -c qemu:///system list --all"
        return unknown(check, HOST, expected=expected, why=why, hint=hint, source=source)
    if not host.numa_nodes or any(node.hugepages is None for node in host.numa_nodes):
        return unknown(
            check, HOST, expected=expected, why="the pools of the nodes are unknown", hint=RECORD, source=source
        )
    unsure = [guest.name for guest in guests_known(evidence) or () if guest.memory is None or _huge_parts(guest)]
    if unsure:  # one that asks for some, and of which it is unknown whether it runs, or that is just starting
        why = f"none are reserved; whether {listed(unsure)} needs some is unknown"
        hint = "look with: virsh dumpxml GUEST"
        return unknown(check, HOST, expected=expected, why=why, hint=hint, source=source)
    return skipped(check, HOST, "no guest asks for huge pages, and none are reserved")


def _pool(
    evidence: Evidence, check: str, key: Pool, need: int, pools: Mapping[Pool, tuple[int | None, int | None]]
) -> CheckResult:
    node, size = key
    subject = f"node{node} {format_size(size)}" if node is not None else f"{HOST} {format_size(size)}"
    counts = [pool for (at, page), pool in pools.items() if page == size and node in (None, at)]
    place = sysfs.pool("*" if node is None else node, size)
    pages = -(-need // size)
    expected = f"{pages} free for guests that do not run yet" if pages else "as reserved, no guest waits for them"
    if not counts or any(part is None for pool in counts for part in pool):
        why = refused(evidence, place) or "the pool's counts are unknown"
        return unknown(check, subject, expected=expected, why=why, hint=f"look with: grep . {place}/*", source=place)
    total, free = (sum(pool[n] or 0 for pool in counts) for n in (0, 1))
    actual = f"{total} reserved, {free} free"
    if free >= pages and page_count_uncertain(evidence.host, size):
        why = f"{actual}; /proc/meminfo does not confirm it"
        hint = f"look with: grep . {place}/* /proc/meminfo | grep -i huge"
        return unknown(check, subject, expected=expected, why=why, hint=hint, source=place)
    if free >= pages and pages and (result := _unmounted(evidence, check, subject, size, f"{expected}, and mounted")):
        return result
    if free >= pages:
        return passed(check, subject, expected=expected, actual=actual, source=f"{place}/{{nr,free}}_hugepages")
    hint = (
        f"echo {total + pages - free} > {place}/nr_hugepages; for 1 GiB pages on a host that has run for a while plan"
        " with profile host, which reserves them at boot"
    )
    source = f"{place}/{{nr,free}}_hugepages"
    return failed(check, subject, expected=expected, actual=actual, source=source, hint=hint)


def _unmounted(evidence: Evidence, check: str, subject: str, size: int, expected: str) -> CheckResult | None:
    """Return what prevents guests from using pages that exist; None if nothing does.

    libvirt needs a hugetlbfs mount of their size, and finds it only when its daemon starts (src/qemu/qemu_conf.c,
    src/util/virfile.c).
    """
    settings = evidence.host.memory_settings
    mounts = settings.hugetlbfs if settings else None
    source = "/proc/mounts"
    if mounts is None:
        why = refused(evidence, source) or "whether pages of this size are mounted is unknown"
        hint = f"look with: grep hugetlbfs {source}"
        return unknown(check, subject, expected=expected, why=why, hint=hint, source=source)
    alike = [mount for mount in mounts if mount.size_bytes == size]
    if not alike:
        hint = "plan the guest again: the plan mounts them; without a hugetlbfs of this size it does not start"
        return failed(check, subject, expected=expected, actual="no such hugetlbfs", source=source, hint=hint)
    if any(mount.libvirt for mount in alike):
        return None
    paths = ", ".join(mount.path for mount in alike)
    if any(mount.libvirt is None for mount in alike):
        why = f"whether libvirt has found {paths} is unknown"
        return unknown(check, subject, expected=expected, why=why, hint=f"look for {paths}/libvirt/qemu", source=paths)
    hint = "systemctl restart libvirtd (virtqemud where libvirt is modular): it looks for mounts when it starts"
    actual = f"libvirt has not found {paths}"
    return failed(check, subject, expected=expected, actual=actual, source=paths, hint=hint)


# --- settings of the whole host ------------------------------------------------------------------------------


def thp(evidence: Evidence) -> Iterable[CheckResult]:
    """Check for madvise: guests have their own huge pages, and the host gives huge pages only to programs that ask."""
    settings = evidence.host.memory_settings
    yield _word(
        evidence,
        "thp",
        settings.thp if settings else None,
        _THP,
        good={"madvise": "", "never": "no process gets transparent huge pages"},
        expected="madvise",
        hint=f"echo madvise > {_THP}, or plan with profile host (setting thp)",
    )


def ksm(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that KSM is off: merging cannot help pinned memory, and one guest can learn from it what another has."""
    settings = evidence.host.memory_settings
    run = settings.ksm_run if settings else None
    shared = evidence.ksm_pages_shared
    result = _word(
        evidence,
        "ksm",
        None if run is None else str(run),
        _KSM,
        good={"0": "not merging", "2": "not merging, and unmerged"},
        expected="0 or 2: not merging",
        hint=f"echo 2 > {_KSM}, which also unmerges, or plan with profile host (setting ksm)",
    )
    if result.outcome == "pass" and run == 0 and shared is None:
        path = "/sys/kernel/mm/ksm/pages_shared"
        why = "not merging any more; whether merged pages are kept was not read"
        yield unknown("ksm", HOST, expected="0 or 2: not merging", why=why, hint=f"look with: cat {path}", source=path)
    elif result.outcome == "pass" and run == 0 and shared:
        yield warned(
            "ksm",
            HOST,
            expected="0 or 2: not merging",
            actual=f"0: not merging any more, but {shared} merged pages are kept",
            source="/sys/kernel/mm/ksm/{run,pages_shared}",
            hint=f"echo 2 > {_KSM}, which unmerges them",
        )
    else:
        yield result


def numa_balancing(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that NUMA balancing is off where memory is pinned: scanning costs time and cannot move any page."""
    settings = evidence.host.memory_settings
    mode = settings.numa_balancing if settings else None
    nodes = [node for node in evidence.host.numa_nodes if node.kind in ("cpu", "memory", None)]
    if len(nodes) == 1 and len(named_nodes(evidence.host)) == 1:
        yield skipped("numa-balancing", HOST, "one NUMA node: there is nothing to balance")
        return
    yield _word(
        evidence,
        "numa-balancing",
        None if mode is None else str(mode),
        _BALANCING,
        good={"0": "off"},
        expected="0: off",
        hint="sysctl kernel.numa_balancing=0, or plan with profile host (setting numa_balancing)",
    )


def _word(
    evidence: Evidence, check: str, value: str | None, path: str, *, good: Mapping[str, str], expected: str, hint: str
) -> CheckResult:
    """Judge one setting by the kernel's own word: pass if it is good or as an applied plan sets it, else a warning."""
    if value is None:
        why = refused(evidence, path)
        if lacks(evidence, path):
            return skipped(check, HOST, "this kernel has no such setting")
        look = f"look with: cat {path}"
        return unknown(check, HOST, expected=expected, why=why or "not recorded", hint=look, source=path)
    text = f"{value}{f': {good[value]}' if good.get(value) else ''}"
    if value in good:
        return passed(check, HOST, expected=expected, actual=text, source=path)
    if value in {str(want) for want in wanted(evidence, check).values()}:
        return passed(check, HOST, expected=expected, actual=f"{value}, as the applied plan asks", source=path)
    return warned(check, HOST, expected=expected, actual=text, source=path, hint=hint)


CHECKS = (
    Check(
        id="hugepages",
        title="Huge pages reserved and used",
        subjects="each pool (node and page size) that is reserved, or that a guest asks for",
        why="a guest whose pages are missing, or mounted nowhere, does not start; free pages are of no use to others",
        source="Linux Documentation/admin-guide/mm/hugetlbpage; libvirt src/qemu/qemu_conf.c (hugetlbfs)",
        judge=hugepages,
        for_guests=True,
    ),
    Check(
        id="thp",
        title="Transparent huge pages",
        subjects="the host",
        why="always lets the kernel compact memory for everybody beside guests that have pages of their own",
        source="Linux Documentation/admin-guide/mm/transhuge",
        judge=thp,
        for_guests=True,
    ),
    Check(
        id="ksm",
        title="Same-page merging",
        subjects="the host",
        why="it cannot merge pinned guest memory, costs CPU time, and shows one guest what another one has by timing",
        source="Linux Documentation/admin-guide/mm/ksm; Suzaki et al., EuroSec 2011, memory deduplication as a threat",
        judge=ksm,
        for_guests=True,
    ),
    Check(
        id="numa-balancing",
        title="Automatic NUMA balancing",
        subjects="the host, where it has several nodes",
        why="its page scanning costs time and cannot move pinned memory",
        source="Linux Documentation/admin-guide/sysctl/kernel (numa_balancing)",
        judge=numa_balancing,
        for_guests=True,
    ),
)
