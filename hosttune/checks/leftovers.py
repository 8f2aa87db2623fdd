"""What a former tenant may have left on the host: devices made for it, pages that nobody gave back."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.checks.facts import HOST, RUNNING, holders, listed, no_work, planned_guests
from hosttune.model.evidence import Evidence
from hosttune.model.validation import CheckResult

_MDEVS, _VFS, _PAGES = "leftover-mdevs", "leftover-vfs", "leftover-pages"
_ROOT = "run hosttune validate as root, on the host itself"


def leftover_mdevs(evidence: Evidence) -> Iterable[CheckResult]:
    """Mediated devices that belong to no guest of an applied plan."""
    expected = "no mediated device without a guest"
    idle = no_work(evidence)
    if idle:
        yield skipped(_MDEVS, HOST, idle)
        return
    found = evidence.leftovers.mdevs if evidence.leftovers else None
    if found is None:
        yield unknown(_MDEVS, HOST, expected=expected, why="/sys/bus/mdev was not recorded", hint=_ROOT)
        return
    # libvirt's record of a guest names PCI functions alone: that one of them is its own cannot be ruled out.
    ours = {d.address for guest in planned_guests(evidence).values() for d in guest.devices if d.kind == "mdev"}
    strange = [f"{uuid} on {parent or 'an unknown device'}" for uuid, parent in found.items() if uuid not in ours]
    source = "/sys/bus/mdev/devices"
    if not strange:
        actual = f"{len(found)} mediated devices, all planned" if found else "none exists"
        yield passed(_MDEVS, HOST, expected=expected, actual=actual, source=source)
        return
    actual = f"{len(strange)}: {listed(strange, 3)}"
    hint = "see who has it (virsh nodedev-list --cap mdev); remove it: echo 1 > /sys/bus/mdev/devices/UUID/remove"
    judge = warned if any(guest.state in RUNNING for guest in evidence.host.guests or ()) else failed
    yield judge(_MDEVS, HOST, expected=expected, actual=actual, source=source, hint=hint)


def leftover_vfs(evidence: Evidence) -> Iterable[CheckResult]:
    """Virtual functions on a VFIO driver, or on none, that no guest has."""
    host = evidence.host
    physical = [device for device in host.pci if device.sriov_vfs]
    if not physical:
        yield skipped(_VFS, HOST, "no device has virtual functions now")
        return
    held = holders(evidence)
    by_parent: dict[str, list[str]] = {}
    for device in host.pci:
        idle = device.driver is None or "vfio" in device.driver
        if device.physfn and idle and device.address not in held:
            by_parent.setdefault(device.physfn, []).append(device.address)
    for device in physical:
        source = f"/sys/bus/pci/devices/{device.address}/sriov_numvfs"
        expected = "each virtual function has a guest, or a driver of the host's"
        free = by_parent.get(device.address, [])
        if host.guests is None:
            why = "which guests there are is unknown"
            yield unknown(_VFS, device.address, expected=expected, why=why, hint=_ROOT, source=source)
        elif free:
            actual = f"{len(free)} of {device.sriov_vfs} are nobody's: {listed(free, 3)}"
            hint = f"take them away if no guest is to have them: echo 0 > {source}"
            yield warned(_VFS, device.address, expected=expected, actual=actual, source=source, hint=hint)
        else:
            actual = f"{device.sriov_vfs} virtual functions, all in use"
            yield passed(_VFS, device.address, expected=expected, actual=actual, source=source)


def leftover_pages(evidence: Evidence) -> Iterable[CheckResult]:
    """Huge pages in use on each node against those of the guests that run."""
    host = evidence.host
    idle = no_work(evidence)
    pools = [(node, pool) for node in host.numa_nodes for pool in node.hugepages or () if pool.total]
    if idle or not pools:
        yield skipped(_PAGES, HOST, idle or "no huge pages are reserved")
        return
    expected = "pages in use are those of running guests"
    for node, pool in pools:
        subject = f"node {node.id}, {pool.size_bytes >> 10} KiB"
        source = f"/sys/devices/system/node/node{node.id}/hugepages/hugepages-{pool.size_bytes >> 10}kB"
        if pool.free is None or pool.total is None or host.guests is None:
            why = "how many are free is unknown" if host.guests is not None else "which guests there are is unknown"
            yield unknown(_PAGES, subject, expected=expected, why=why, hint=_ROOT, source=source)
            continue
        used = pool.total - pool.free
        guests = _pages_of_guests(evidence, node.id, pool.size_bytes)
        actual = f"{used} of {pool.total} in use, {guests} by running guests"
        if used > guests:
            hint = "see who maps them: grep -l huge /proc/*/numa_maps; files in a hugetlbfs mount hold them too"
            yield warned(_PAGES, subject, expected=expected, actual=actual, source=source, hint=hint)
        else:
            yield passed(_PAGES, subject, expected=expected, actual=actual, source=source)


def _pages_of_guests(evidence: Evidence, node: int, page_bytes: int) -> int:
    """Pages of one size on one node that running guests account for; memory without a node counts on any."""
    running = [guest for guest in evidence.host.guests or () if guest.state in RUNNING]
    parts = [part for guest in running for part in guest.memory or () if part.page_bytes == page_bytes]
    return sum((part.memory_bytes or 0) // page_bytes for part in parts if part.node in (node, None))


CHECKS = (
    Check(
        id=_MDEVS,
        title="no mediated devices of a former tenant",
        subjects="the host",
        why="a device made for a guest that is gone keeps its share of a GPU, and may keep its memory's contents",
        source="Linux Documentation/driver-api/vfio-mediated-device",
        judge=leftover_mdevs,
    ),
    Check(
        id=_VFS,
        title="no virtual functions of a former tenant",
        subjects="each device that has virtual functions now",
        why="they take queues and bandwidth, and whoever gets one next gets it as it was left",
        source="Linux Documentation/PCI/pci-iov-howto",
        judge=leftover_vfs,
    ),
    Check(
        id=_PAGES,
        title="no huge pages held by nobody's guest",
        subjects="each pool of huge pages",
        why="pages that something else holds are missing when the next guest starts",
        source="Linux Documentation/admin-guide/mm/hugetlbpage",
        judge=leftover_pages,
    ),
)
