"""Checks of what a former tenant may have left on the host: devices created for it, pages that were not released."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.model import sysfs
from hosttune.model.evidence import OF_REGISTER, UNREAD_STATEMENT, Evidence
from hosttune.model.host import HugePages, NumaNode, PciDevice, RunningGuest
from hosttune.model.starts import REGISTER, SIGNED, unread_register
from hosttune.model.validation import CheckResult
from hosttune.model.values import grouped
from hosttune.model.verification import Verification
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import (
    HOST,
    RECORD,
    RUNNING,
    SOFTWARE,
    accelerators,
    driver_unread,
    for_vfio,
    guests_known,
    holders,
    lacks,
    listed,
    planned_guests,
    undefined,
)
from hosttune.rules.checks.memory import WHO_IS_RIGHT, missing_pages, page_count_uncertain, unread_pools

_MDEVS, _VFS, _PAGES = "leftover-mdevs", "leftover-vfs", "leftover-pages"
_QUARANTINED, _STATEMENT = OF_REGISTER
_ROOT = "run hosttune validate as root, on the host itself"


def leftover_mdevs(evidence: Evidence) -> Iterable[CheckResult]:
    """Check for mediated devices that belong to no guest: to none in libvirt, and to none of an applied plan."""
    expected = "no mediated device without a guest"
    found = evidence.leftovers.mdevs if evidence.leftovers else None
    if found is None:
        yield unknown(_MDEVS, HOST, expected=expected, why="/sys/bus/mdev was not recorded", hint=_ROOT)
        return
    known = {d.address.casefold() for guest in planned_guests(evidence).values() for d in guest.devices}
    guests = guests_known(evidence)
    known.update(uuid.casefold() for guest in guests or () for uuid in guest.mdevs)
    strange = [f"{uuid} on {on or 'an unknown device'}" for uuid, on in found.items() if uuid.casefold() not in known]
    source = "/sys/bus/mdev/devices"
    if not strange:
        actual = f"{len(found)} mediated devices, each of a guest" if found else "none exists"
        yield passed(_MDEVS, HOST, expected=expected, actual=actual, source=source)
        return
    actual = f"{len(strange)}: {listed(strange, 3)}"
    if guests is None or any(undefined(guest) for guest in guests):
        why = f"what guests have is not known; {actual}"
        yield unknown(_MDEVS, HOST, expected=expected, why=why, hint=_ROOT, source=source)
        return
    hint = "see who has it (virsh nodedev-list --cap mdev); remove it: echo 1 > /sys/bus/mdev/devices/UUID/remove"
    yield failed(_MDEVS, HOST, expected=expected, actual=actual, source=source, hint=hint)


def leftover_vfs(evidence: Evidence) -> Iterable[CheckResult]:
    """Check for virtual functions without a guest, on a VFIO driver or none; with other drivers the host uses them."""
    functions = grouped((device.physfn, device) for device in evidence.host.pci if device.physfn)
    physical = [d for d in evidence.host.pci if d.sriov_vfs or d.virtfns or d.address in functions]
    doubtful = [d for d in evidence.host.pci if d not in physical and _may_have_functions(evidence, d)]
    for device in doubtful:
        expected = "each virtual function has a guest, or a driver of the host's"
        why = "whether it has virtual functions was not read"
        hint = f"look with: cat /sys/bus/pci/devices/{device.address}/sriov_numvfs"
        yield unknown(_VFS, device.address, expected=expected, why=why, hint=hint)
    held = holders(evidence)
    for device in physical:
        there = functions.get(device.address, [])
        idle = [vf for vf in there if vf.address not in held and (vf.driver is None or for_vfio(vf.driver))]
        yield _virtual(evidence, device, len(there), idle)


def _may_have_functions(evidence: Evidence, device: PciDevice) -> bool:
    """Return whether it is unknown if a device has virtual functions: it can have some, and its number was not read, or
    it is not known whether it can."""
    if device.physfn is not None or device.sriov_vfs is not None:
        return False
    if device.sriov_total_vfs is not None:
        return True
    # The capability is in extended configuration space, as is ACS. If it was not read, only the kernel's file shows it.
    host = evidence.host
    kinds = {one.address for part in (accelerators(host), host.nics, host.nvme) for one in part}
    unseen = device.acs is None and not lacks(evidence, sysfs.function(device.address, "sriov_totalvfs"))
    return device.address in kinds and device.vendor_id not in SOFTWARE and unseen


def _virtual(evidence: Evidence, device: PciDevice, listed_vfs: int, idle: list[PciDevice]) -> CheckResult:
    """Judge one physical function: `idle` are its virtual functions without a guest and without a host driver."""
    source = sysfs.function(device.address, "sriov_numvfs")
    expected = "each virtual function has a guest, or a driver of the host's"
    count = max(device.sriov_vfs or 0, len(device.virtfns), listed_vfs)
    guests = guests_known(evidence)
    why = None
    if listed_vfs < count:
        why = f"{count - listed_vfs} of {count} virtual functions are not in the list of PCI functions"
    elif idle and (guests is None or any(undefined(guest) for guest in guests)):
        why = "what guests have is not known"
    elif any(driver_unread(evidence, vf.address) for vf in idle):
        why = "which drivers its virtual functions have was not recorded"
    if why is not None:
        return unknown(_VFS, device.address, expected=expected, why=why, hint=_ROOT, source=source)
    if idle:
        names = listed([vf.address for vf in idle], 3)
        actual = f"{len(idle)} of {count} are unused: {names}"
        hint = f"remove them if no guest needs them: echo 0 > {source}"
        return warned(_VFS, device.address, expected=expected, actual=actual, source=source, hint=hint)
    actual = f"{count} virtual functions, all in use"
    return passed(_VFS, device.address, expected=expected, actual=actual, source=source)


def leftover_pages(evidence: Evidence) -> Iterable[CheckResult]:
    """Compare the huge pages in use on each node with those of the running guests."""
    nodes = evidence.host.numa_nodes
    every = [(node, pool) for node in nodes for pool in node.hugepages or () if pool.size_bytes]
    missing = missing_pages(evidence)
    pools = [
        (node, pool)
        for node, pool in every
        if pool.total != 0
        or page_count_uncertain(evidence.host, pool.size_bytes)
        or not missing.keys().isdisjoint(((node.id, pool.size_bytes), (None, pool.size_bytes)))
    ]
    pools += [(NumaNode(id=node), HugePages(size_bytes=size)) for node, size in unread_pools(evidence.host)]
    if not pools and (not nodes or any(node.hugepages is None for node in nodes)):
        expected, why = "pages in use are those of running guests", "the pools of the nodes are unknown"
        yield unknown(_PAGES, HOST, expected=expected, why=why, hint=RECORD)
    elif not pools:
        yield skipped(_PAGES, HOST, "no huge pages are reserved")
    for node, pool in pools:
        yield _pool(
            evidence, node, pool, missing.get((node.id, pool.size_bytes)) or missing.get((None, pool.size_bytes))
        )


def _pool(evidence: Evidence, node: NumaNode, pool: HugePages, missing: str | None) -> CheckResult:
    """Judge one pool. `missing`: what running guests have more than there is."""
    subject = f"node {node.id}, {pool.size_bytes >> 10} KiB"
    source = sysfs.pool(node.id, pool.size_bytes)
    expected = "pages in use are those of running guests"
    if pool.free is None or pool.total is None:
        why = "how many there are, or are free, is unknown"
        return unknown(_PAGES, subject, expected=expected, why=why, hint=_ROOT, source=source)
    used = pool.total - pool.free
    guests = guests_known(evidence)
    running = [guest for guest in guests or () if guest.state in (None, *RUNNING)]
    if used > 0 and (guests is None or any(guest.memory is None or guest.state is None for guest in running)):
        why = f"{used} of {pool.total} in use; what guests have is not known"
        return unknown(_PAGES, subject, expected=expected, why=why, hint=_ROOT, source=source)
    of_guests = _pages_of_guests(running, node.id, pool.size_bytes)
    actual = f"{used} of {pool.total} in use, {of_guests} by running guests"
    if used > of_guests:
        hint = "see who maps them: grep -l huge /proc/*/numa_maps; files in a hugetlbfs mount hold them too"
        return warned(_PAGES, subject, expected=expected, actual=actual, source=source, hint=hint)
    if page_count_uncertain(evidence.host, pool.size_bytes):
        why = f"{actual}; /proc/meminfo does not confirm it"
        return unknown(_PAGES, subject, expected=expected, why=why, hint=_ROOT, source=source)
    if missing is not None:
        why = f"{used} of {pool.total} in use; {missing}"
        return unknown(_PAGES, subject, expected=expected, why=why, hint=WHO_IS_RIGHT, source=source)
    return passed(_PAGES, subject, expected=expected, actual=actual, source=source)


def _pages_of_guests(running: list[RunningGuest], node: int, page_bytes: int) -> int:
    """Return the pages of one size on one node that running guests account for. Memory without a node counts on any
    node, and so does memory that was plugged into a running guest, which belongs to no cell."""
    pages = 0
    for guest in running:
        parts = guest.memory or ()
        plugged = (guest.memory_bytes or 0) - sum(part.memory_bytes or 0 for part in parts)
        if plugged > 0 and any(part.page_bytes == page_bytes for part in parts):
            pages += plugged // page_bytes
        matching = (part for part in parts if part.page_bytes == page_bytes and part.node in (node, None))
        pages += sum((part.memory_bytes or 0) // page_bytes for part in matching)
    return pages


def quarantined(evidence: Evidence) -> Iterable[CheckResult]:
    """Check for devices between two tenants. A warning: the rest of the host can be used, and no guest gets these."""
    host, expected = evidence.host, "no device is between two tenants"
    if host.handover is None:
        lost = unread_register(host.problems)
        if lost is None:
            yield skipped(_QUARANTINED, HOST, "hosttune's register of hand-overs was not recorded here")
        else:
            yield unknown(_QUARANTINED, HOST, expected=expected, why=f"{lost.what}: {lost.why}", hint=_ROOT)
        return
    for one in host.handover.register.quarantined:
        actual = f"quarantined since {one.since}: {one.why}"
        yield warned(_QUARANTINED, one.address, expected=expected, actual=actual, source=REGISTER, hint=one.ways_out)
    if not host.handover.register.quarantined:
        yield skipped(_QUARANTINED, HOST, "no device is quarantined here")  # not a pass: a lost register shows none too


def statements(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the signed statements that are kept here. A warning: only the next hand-over of a device needs one.

    While a guest has the device, its statement has served.
    """
    expected = "valid until the next tenant's guest starts"
    for lost in evidence.problems:
        if lost.what == UNREAD_STATEMENT:
            yield unknown(_STATEMENT, HOST, expected=expected, why=f"{lost.where}: {lost.why}", hint=_ROOT)
    for one in evidence.statements or ():
        for address in one.devices:
            taken = any(address in guest.devices and guest.state in RUNNING for guest in evidence.host.guests or ())
            yield _statement(one, address, expected, taken=taken)
    if not evidence.statements and all(one.what != UNREAD_STATEMENT for one in evidence.problems):
        yield skipped(_STATEMENT, HOST, "no signed statement of a hand-over is kept here")


def _statement(found: Verification, address: str, expected: str, *, taken: bool) -> CheckResult:
    state, reasons = found.state(address), found.of(address)
    if taken:
        return skipped(_STATEMENT, address, "a guest has it: the statement was for the time before its start")
    until = f"{state}, until {found.expires_at}"
    if state == "valid":
        return passed(_STATEMENT, address, expected=expected, actual=until, source=SIGNED)
    why = "; ".join(dict.fromkeys(one.text for one in reasons))
    hint = f"hand it over again before its next tenant: hosttune handover --device {address}"
    actual = until if state == "expiring" else f"{state}: {why}"
    return warned(_STATEMENT, address, expected=expected, actual=actual, source=SIGNED, hint=hint)


CHECKS = (
    Check(
        id=_MDEVS,
        title="No mediated devices of a former tenant",
        subjects="the host",
        why="a device made for a guest that is gone keeps its share of a GPU, and may keep its memory's contents",
        source="Linux Documentation/driver-api/vfio-mediated-device",
        judge=leftover_mdevs,
        for_guests=True,
    ),
    Check(
        id=_VFS,
        title="No virtual functions of a former tenant",
        subjects="each device that has virtual functions now",
        why="they take queues and bandwidth, and the next user gets one as it was left",
        source="Linux Documentation/PCI/pci-iov-howto",
        judge=leftover_vfs,
        none="device with virtual functions",
    ),
    Check(
        id=_PAGES,
        title="No huge pages held without a guest",
        subjects="each pool of huge pages",
        why="pages that something else holds are missing when the next guest starts",
        source="Linux Documentation/admin-guide/mm/hugetlbpage",
        judge=leftover_pages,
        for_guests=True,
    ),
    Check(
        id=_QUARANTINED,
        title="No device between two tenants",
        subjects="each quarantined device",
        why="a device that is not proven clean may show the last tenant's data to the next",
        source="docs/handover.md",
        judge=quarantined,
    ),
    Check(
        id=_STATEMENT,
        title="Statements of hand-overs are valid",
        subjects="each device of a signed statement that is kept",
        why="a device whose statement is void may not go to its next tenant",
        source="docs/handover.md",
        judge=statements,
    ),
)
