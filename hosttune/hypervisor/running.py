"""Proof that a running guest is where its plan puts it, from the kernel's own files and not from any XML.

proc(5): `status` (Cpus_allowed_list) and `comm` of each thread, `numa_maps` of the process, the links in `fd`. QEMU
names its threads as libvirt asks it to (-name debug-threads=on): "CPU 3/KVM", "IO iothread1"; the rest are emulator
threads, which is libvirt's own division (formatdomain, emulatorpin).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from hosttune.discovery.maps import Mapped, read_maps
from hosttune.domain.implied import huge_page_bytes
from hosttune.errors import Unreadable
from hosttune.model.plan import Device, PlannedGuest
from hosttune.model.values import CpuSet, Value, parse_cpus
from hosttune.system import System

_VCPU = re.compile(r"CPU ([0-9]{1,5})/(?:KVM|TCG)")
_IO_THREAD = re.compile(r"IO iothread([0-9]{1,5})")
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*([0-9,-]+)\s*$", re.MULTILINE)
# QEMU's thread-context: it clears a cell's memory from that cell's node before the guest runs, and sleeps ever after.
_CLEARING = re.compile(r"TC tc-ram-node[0-9]*")
# QEMU's pool for file I/O: a thread of it runs where the thread that asked for it does, a vCPU's where the firmware
# writes its variables, and ends after ten seconds without work (util/thread-pool.c).
_POOL = "worker"
_CELL = re.compile(r"\bram-node([0-9]{1,4})\b")  # libvirt's name of a cell's memory, part of the file's


class Thread(Value, frozen=True, kw_only=True):
    """A thread of a process: its name, and the CPUs that it may run on (None: not told)."""

    id: str
    name: str
    cpus: CpuSet | None


def verify_running(system: System, guest: PlannedGuest, process: int) -> tuple[str, ...]:
    """How a running guest differs from its plan, one text each; empty when all is as planned.

    `process` is QEMU's. What cannot be read is a difference: unknown is no proof.
    """
    found: list[str] = []
    for what, judge in (("threads", _threads), ("memory", _memory), ("devices", _devices)):
        try:
            found += judge(system, guest, process)
        except Unreadable as error:
            found.append(f"{what}: unknown, {error.what}")
    return tuple(found)


# --- threads -------------------------------------------------------------------------------------------------


def read_threads(system: System, process: int) -> tuple[Thread, ...]:
    """The threads of a process, by id; those that end meanwhile are left out. Raises Unreadable."""
    return tuple(thread for name in system.list(f"/proc/{process}/task") if (thread := _thread(system, process, name)))


def _thread(system: System, process: int, number: str) -> Thread | None:
    status = system.read(f"/proc/{process}/task/{number}/status")
    name = system.read(f"/proc/{process}/task/{number}/comm")
    if status is None or name is None:
        return None
    allowed = _ALLOWED.search(status)
    return Thread(id=number, name=name, cpus=CpuSet.parse(allowed[1]) if allowed else None)


def _threads(system: System, guest: PlannedGuest, process: int) -> Iterator[str]:
    threads = read_threads(system, process)
    if not threads:
        yield f"threads: unknown, process {process} shows none"
        return
    vcpus = {pin.vcpu: pin.cpus for pin in guest.vcpu_pins}
    yield from _pinned(threads, _VCPU, "vCPU", vcpus)
    yield from _pinned(threads, _IO_THREAD, "I/O thread", dict(enumerate(guest.iothread_cpus, 1)))
    planned = parse_cpus(guest.emulator_cpus)
    own = {parse_cpus(cpus) for cpus in vcpus.values()}
    for thread in threads:
        if any(form.fullmatch(thread.name) for form in (_VCPU, _IO_THREAD, _CLEARING)):
            continue
        if thread.name == _POOL and thread.cpus in own:
            continue
        # Threads that the kernel adds for KVM and vhost may be held to fewer.
        if not thread.cpus or not thread.cpus <= planned:
            yield f"emulator thread {thread.name!r}: planned on CPUs {planned}, may run on {_shown(thread)}"


def _pinned(threads: Sequence[Thread], form: re.Pattern[str], what: str, planned: dict[int, str]) -> Iterator[str]:
    """Each planned thread once, and on its CPUs exactly; none that is not planned."""
    by_number: dict[int, list[Thread]] = defaultdict(list)
    for thread in threads:
        found = form.fullmatch(thread.name)
        if found:
            by_number[int(found[1])].append(thread)
    for number in sorted(planned.keys() | by_number):
        wanted = parse_cpus(planned[number]) if number in planned else None
        alike = by_number.get(number, [])
        if wanted is None:
            yield f"{what} {number}: not planned, found"
        elif len(alike) != 1:
            yield f"{what} {number}: planned on CPUs {wanted}, {len(alike)} threads of that name"
        elif alike[0].cpus != wanted:
            yield f"{what} {number}: planned on CPUs {wanted}, may run on {_shown(alike[0])}"


def _shown(thread: Thread) -> str:
    return "unknown CPUs" if thread.cpus is None else f"CPUs {thread.cpus}"


# --- memory --------------------------------------------------------------------------------------------------


def _memory(system: System, guest: PlannedGuest, process: int) -> Iterator[str]:
    maps = read_maps(system, process)
    if not maps:
        yield f"memory: unknown, /proc/{process}/numa_maps is empty"
        return
    page_bytes = huge_page_bytes(guest)
    huge = [mapped for mapped in maps if mapped.huge]
    if page_bytes is None:
        if huge:
            yield f"memory: planned on ordinary pages, found pages of {_sizes(huge)}"
        # The guest's memory has no name; with it are the heap and all else that QEMU allocates.
        yield from _by_node(guest, [mapped for mapped in maps if not mapped.huge and not mapped.file], exact=False)
        return
    wrong = [mapped for mapped in huge if mapped.page_bytes != page_bytes]
    if wrong:
        yield f"memory: planned on pages of {page_bytes >> 10} KiB, found pages of {_sizes(wrong)}"
    right = [mapped for mapped in huge if mapped.page_bytes == page_bytes]
    yield from _by_node(guest, right, exact=True)
    yield from _by_cell(guest, right)


def _sizes(maps: Sequence[Mapped]) -> str:
    sizes = sorted({mapped.page_bytes or 0 for mapped in maps})
    return ", ".join(f"{size >> 10} KiB" if size else "an unknown size" for size in sizes)


def _by_node(guest: PlannedGuest, maps: Sequence[Mapped], *, exact: bool) -> Iterator[str]:
    """Bytes on each set of nodes; `exact`: and none anywhere else."""
    wanted: dict[str, int] = defaultdict(int)
    for cell in guest.cells:
        wanted[cell.host_nodes] += cell.memory_bytes
    held: dict[int, int] = defaultdict(int)
    for mapped in maps:
        for node, pages in mapped.pages.items():
            held[int(node)] += pages * (mapped.page_bytes or 0)
    for nodes, size_bytes in sorted(wanted.items()):
        ids = parse_cpus(nodes) if nodes else CpuSet(held)
        found = sum(held.get(node, 0) for node in ids)
        if found < size_bytes:
            yield f"memory: planned {size_bytes >> 20} MiB on node {nodes or '(any)'}, found {found >> 20} MiB"
    planned = CpuSet(node for nodes in wanted for node in (parse_cpus(nodes) if nodes else held))
    for stray in sorted(held.keys() - planned) if exact else ():
        yield f"memory: none planned on node {stray}, found {held[stray] >> 20} MiB"


def _by_cell(guest: PlannedGuest, maps: Sequence[Mapped]) -> Iterator[str]:
    """Where the file behind a mapping names its cell, that cell's memory is on that cell's nodes."""
    nodes = {cell.id: parse_cpus(cell.host_nodes) for cell in guest.cells if cell.host_nodes}
    for mapped in maps:
        named = _CELL.search(mapped.file or "")
        wanted = nodes.get(int(named[1])) if named else None
        strays = CpuSet(int(node) for node in mapped.pages) - wanted if wanted is not None else CpuSet()
        if named and strays:
            yield f"memory of cell {named[1]}: planned on node {wanted}, found on node {strays} too"


# --- devices -------------------------------------------------------------------------------------------------


def _devices(system: System, guest: PlannedGuest, process: int) -> Iterator[str]:
    if not guest.devices:
        return
    folder = f"/proc/{process}/fd"
    open_files = {system.link(f"{folder}/{name}") for name in system.list(folder)}
    for device in guest.devices:
        mediated = device.kind == "mdev"
        if not mediated:
            driver = (system.link(f"/sys/bus/pci/devices/{device.address}/driver") or "").rpartition("/")[2]
            if driver != "vfio-pci":
                yield f"device {device.address}: planned on vfio-pci, bound to {driver or 'no driver'}"
        doors = _doors(system, device)
        if not doors:
            yield f"device {device.address}: unknown, it has no IOMMU group"
        elif not open_files.intersection(doors):
            yield f"device {device.address}: process {process} does not hold {' or '.join(doors)}"


def _doors(system: System, device: Device) -> tuple[str, ...]:
    """Files through which QEMU can hold a device: its group's, or its own with iommufd (driver-api/vfio.rst)."""
    bus = "mdev" if device.kind == "mdev" else "pci"
    folder = f"/sys/bus/{bus}/devices/{device.address}"
    group = (system.link(f"{folder}/iommu_group") or "").rpartition("/")[2]
    own = (f"/dev/vfio/devices/{name}" for name in system.list(f"{folder}/vfio-dev"))
    return ((f"/dev/vfio/{group}",) if group else ()) + tuple(own)
