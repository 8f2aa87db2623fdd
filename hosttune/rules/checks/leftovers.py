"""Checks of what a former tenant may have left on the host: devices created for it, pages that were not released."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from hosttune.inventory.pcielink import SOFTWARE
from hosttune.model import sysfs
from hosttune.model.evidence import OF_REGISTER, UNREAD_STATEMENT, Evidence
from hosttune.model.host import PciDevice, RunningGuest
from hosttune.model.pci import for_vfio
from hosttune.model.quarantine import DeviceRecord
from hosttune.model.starts import REGISTER, SIGNED, unread_register
from hosttune.model.values import grouped
from hosttune.model.verification import Verification
from hosttune.rules.checks.facts import (
    RECORD,
    RUNNING,
    accelerators,
    driver_unread,
    guests_known,
    holders,
    lacks,
    listed,
    planned_guests,
    undefined,
)
from hosttune.rules.checks.memory import unread_pools
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding, NoValue, inapplicable

_QUARANTINED, _STATEMENT = OF_REGISTER
_ROOT = "run hosttune validate as root, on the host itself"


def _guests_unread(evidence: Evidence) -> bool:
    """Return whether it is not known what each guest has."""
    guests = guests_known(evidence)
    return guests is None or any(undefined(guest) for guest in guests)


@check(
    "leftover-mdevs",
    title="No mediated devices of a former tenant",
    about="the host",
    why="a device made for a guest that is gone keeps its share of a GPU, and may keep its memory's contents",
    source="Linux Documentation/driver-api/vfio-mediated-device",
    expected="no mediated device without a guest",
    look=_ROOT,
    reads="/sys/bus/mdev/devices",
    for_guests=True,
)
def leftover_mdevs(on: On) -> Finding:
    evidence = on.evidence
    there = on.need(evidence.leftovers.mdevs if evidence.leftovers else None, "/sys/bus/mdev")
    known = {device.address.casefold() for guest in planned_guests(evidence).values() for device in guest.devices}
    known.update(uuid.casefold() for guest in guests_known(evidence) or () for uuid in guest.mdevs)
    strange = [f"{uuid} on {of or 'an unknown device'}" for uuid, of in there.items() if uuid.casefold() not in known]
    if not strange:
        return on.passed(f"{len(there)} mediated devices, each of a guest" if there else "none exists")
    actual = f"{len(strange)}: {listed(strange, 3)}"
    if _guests_unread(evidence):
        on.give_up(f"what guests have is not known; {actual}")
    hint = "see who has it (virsh nodedev-list --cap mdev); remove it: echo 1 > /sys/bus/mdev/devices/UUID/remove"
    return on.failed(actual, hint)


def _physical(evidence: Evidence) -> Iterator[tuple[str, tuple[PciDevice, list[PciDevice] | None]]]:
    """Yield each device that has virtual functions, with those listed; first those of which it is not known (None)."""
    of = grouped((device.physfn, device) for device in evidence.host.pci if device.physfn)
    having = [device for device in evidence.host.pci if device.sriov_vfs or device.virtfns or device.address in of]
    known, host = {device.address for device in having}, evidence.host
    kinds = {row.address for part in (accelerators(host), host.nics, host.nvme) for row in part} - known
    doubtful = [
        device for device in host.pci if device.address not in known and _may_have_functions(evidence, device, kinds)
    ]
    yield from ((device.address, (device, None)) for device in doubtful)
    yield from ((device.address, (device, of.get(device.address, []))) for device in having)


def _may_have_functions(evidence: Evidence, device: PciDevice, kinds: Collection[str]) -> bool:
    """Return whether it is unknown if a device has virtual functions: it can have some, and its number was not read, or
    it is not known whether it can. `kinds`: the devices that guests are given."""
    if device.physfn is not None or device.sriov_vfs is not None:
        return False
    if device.sriov_total_vfs is not None:
        return True
    # The capability is in extended configuration space, as is ACS. If it was not read, only the kernel's file shows it.
    unseen = device.acs is None and not lacks(evidence, sysfs.function(device.address, "sriov_totalvfs"))
    return device.address in kinds and device.vendor_id not in SOFTWARE and unseen


@check(
    "leftover-vfs",
    title="No virtual functions of a former tenant",
    about="each device that has virtual functions now",
    why="they take queues and bandwidth, and the next user gets one as it was left",
    source="Linux Documentation/PCI/pci-iov-howto",
    expected="each virtual function has a guest, or a driver of the host's",
    look=_ROOT,
    each=_physical,
    none="device with virtual functions",
)
def leftover_vfs(on: On, physical: tuple[PciDevice, list[PciDevice] | None]) -> Finding:
    """Check for virtual functions without a guest, on a VFIO driver or none; with other drivers the host uses them."""
    device, evidence = physical[0], on.evidence
    path = sysfs.function(device.address, "sriov_numvfs")
    on, functions = on.reading(path), on.need(physical[1], "whether it has virtual functions", path)
    count, held = max(device.sriov_vfs or 0, len(device.virtfns), len(functions)), holders(evidence)
    idle = [vf.address for vf in functions if vf.address not in held and (vf.driver is None or for_vfio(vf.driver))]
    if len(functions) < count:
        on.give_up(f"{count - len(functions)} of {count} virtual functions are not in the list of PCI functions")
    if idle and _guests_unread(evidence):
        on.give_up("what guests have is not known")
    if any(driver_unread(evidence, address) for address in idle):
        on.give_up("which drivers its virtual functions have was not recorded")
    if idle:
        actual = f"{len(idle)} of {count} are unused: {listed(idle, 3)}"
        return on.warned(actual, f"remove them if no guest needs them: echo 0 > {path}")
    return on.passed(f"{count} virtual functions, all in use")


class _PagesOfNode(NamedTuple):
    """Huge pages of one size on one node."""

    node: int
    page_bytes: int
    total: int | None = None
    free: int | None = None


def _pools(evidence: Evidence) -> Iterator[tuple[str, _PagesOfNode]]:
    """Yield the pools that have pages, or may have some; the host is unknown where pools are, and skipped without."""
    host, nodes = evidence.host, evidence.host.numa_nodes
    pools = [
        _PagesOfNode(node.id, pool.size_bytes, pool.total, pool.free)
        for node in nodes
        for pool in node.hugepages or ()
        if pool.size_bytes and pool.total != 0
    ]
    pools += [_PagesOfNode(node, page_bytes) for node, page_bytes in unread_pools(host)]
    yield from ((f"node {pool.node}, {pool.page_bytes >> 10} KiB", pool) for pool in pools)
    if not pools and (not nodes or any(node.hugepages is None and node.memory_bytes != 0 for node in nodes)):
        raise NoValue(Finding(outcome="unknown", text="the pools of the nodes are unknown", remedy=RECORD))
    if not pools:
        raise inapplicable("no huge pages are reserved")


@check(
    "leftover-pages",
    title="No huge pages held without a guest",
    about="each pool of huge pages",
    why="pages that something else holds are missing when the next guest starts",
    source="Linux Documentation/admin-guide/mm/hugetlbpage",
    expected="pages in use are those of running guests",
    look=_ROOT,
    each=_pools,
    for_guests=True,
)
def leftover_pages(on: On, pool: _PagesOfNode) -> Finding:
    on = on.reading(sysfs.pool(pool.node, pool.page_bytes))
    if pool.free is None or pool.total is None:
        on.give_up("how many there are, or are free, is unknown")
    used, guests = pool.total - pool.free, guests_known(on.evidence)
    running = [guest for guest in guests or () if guest.state in (None, *RUNNING)]
    if used > 0 and (guests is None or any(guest.memory is None or guest.state is None for guest in running)):
        on.give_up(f"{used} of {pool.total} in use; what guests have is not known")
    of_guests = _pages_of_guests(running, pool.node, pool.page_bytes)
    actual = f"{used} of {pool.total} in use, {of_guests} by running guests"
    if used > of_guests:
        hint = "see who maps them: grep -l huge /proc/*/numa_maps; files in a hugetlbfs mount hold them too"
        return on.warned(actual, hint)
    return on.passed(actual)


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


def _quarantined(evidence: Evidence) -> Iterator[tuple[str, DeviceRecord]]:
    """Yield the quarantined devices. None is a skip, not a pass: a lost register shows none too."""
    host = evidence.host
    if host.handover is None and (lost := unread_register(host.problems)):
        raise NoValue(Finding(outcome="unknown", text=f"{lost.what}: {lost.why}"))
    if host.handover is None:
        raise inapplicable("hosttune's register of hand-overs was not recorded here")
    yield from ((record.address, record) for record in host.handover.register.quarantined)
    if not host.handover.register.quarantined:
        raise inapplicable("no device is quarantined here")


@check(
    _QUARANTINED,
    title="No device between two tenants",
    about="each quarantined device",
    why="a device that is not proven clean may show the last tenant's data to the next",
    source="docs/handover.md",
    expected="no device is between two tenants",
    look=_ROOT,
    reads=REGISTER,
    each=_quarantined,
)
def quarantined(on: On, record: DeviceRecord) -> Finding:
    """Warn of a device between two tenants: the rest of the host can be used, and no guest gets this one."""
    return on.warned(f"quarantined since {record.since}: {record.why}", record.ways_out)


def _statements(evidence: Evidence) -> Iterator[tuple[str, Verification]]:
    """Yield each device of the signed statements that are kept here; the host for what could not be read."""
    yield from ((address, statement) for statement in evidence.statements or () for address in statement.devices)
    lost = [f"{problem.where}: {problem.why}" for problem in evidence.problems if problem.what == UNREAD_STATEMENT]
    if lost:
        raise NoValue(Finding(outcome="unknown", text="; ".join(lost)))
    if not evidence.statements:
        raise inapplicable("no signed statement of a hand-over is kept here")


@check(
    _STATEMENT,
    title="Statements of hand-overs are valid",
    about="each device of a signed statement that is kept",
    why="a device whose statement is void may not go to its next tenant",
    source="docs/handover.md",
    expected="valid until the next tenant's guest starts",
    look=_ROOT,
    reads=SIGNED,
    each=_statements,
)
def statements(on: On, statement: Verification) -> Finding:
    """Check the statement of a device. A warning: only the next hand-over needs one; a guest's has served."""
    address, state = on.subject, statement.state(on.subject)
    if any(address in guest.devices and guest.state in RUNNING for guest in on.host.guests or ()):
        on.skip("a guest has it: the statement was for the time before its start")
    until = f"{state}, until {statement.expires_at}"
    if state == "valid":
        return on.passed(until)
    why = "; ".join(dict.fromkeys(reason.text for reason in statement.of(address)))
    hint = f"hand it over again before its next tenant: hosttune handover --device {address}"
    return on.warned(until if state == "expiring" else f"{state}: {why}", hint)
