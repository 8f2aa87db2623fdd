"""Where the threads and the memory of running guests really are, by /proc, against what their definitions say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from hosttune.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.checks.facts import AS_LIBVIRT, RUNNING, guests_or_why, listed, named_nodes, online, own_pins
from hosttune.model.evidence import Evidence, GuestProcess, GuestThread
from hosttune.model.host import Host, RunningGuest
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet, parse_cpus

_PINS, _MEMORY = "guest-pins", "guest-memory"
# QEMU names its threads as libvirt asks it to (-name debug-threads=on); all others are the emulator's, which is
# libvirt's own division (formatdomain, emulatorpin).
_VCPU, _IO = re.compile(r"CPU ([0-9]{1,5})/(?:KVM|TCG)"), re.compile(r"IO iothread[0-9]{1,5}")
# QEMU's thread-context clears a cell's memory from that cell's node before the guest runs, and sleeps ever after.
_CLEARING = re.compile(r"TC tc-ram-node[0-9]*")
# QEMU's pool for file I/O: a thread of it runs where the thread that asked for it does, a vCPU's where the firmware
# writes its variables, and ends after ten seconds without work (util/thread-pool.c).
_POOL = "worker"
_STRAY_PART = 16  # on ordinary pages QEMU's own memory cannot be told from its guest's: so small a part is no fault
_PLACE = "plan it again and redefine it: hosttune plan, hosttune apply --disrupt {0}"
_Judge = Callable[[Evidence, RunningGuest, GuestProcess, str], CheckResult]


def guest_pins(evidence: Evidence) -> Iterable[CheckResult]:
    """Every thread of every running guest on the CPUs that its definition gives it, by /proc."""
    yield from _running(evidence, _PINS, "each thread may run where the definition says, and nowhere else", _pins)


def guest_memory(evidence: Evidence) -> Iterable[CheckResult]:
    """The memory of every running guest on the nodes and of the page size of its definition, by /proc."""
    yield from _running(evidence, _MEMORY, "its memory is on the nodes, and of the pages, of its definition", _memory)


def _running(evidence: Evidence, check: str, expected: str, judge: _Judge) -> Iterator[CheckResult]:
    guests, said = guests_or_why(evidence, check, expected)
    yield from said
    processes = {process.guest: process for process in evidence.processes or ()}
    for guest in guests:
        process = processes.get(guest.name)
        if guest.state is None:
            yield unknown(check, guest.name, expected=expected, why="whether it runs is unknown", hint=AS_LIBVIRT)
        elif guest.state not in RUNNING:
            yield skipped(check, guest.name, f"it is {guest.state}")
        elif process is None or process.pid is None:
            yield unknown(check, guest.name, expected=expected, why="its process is not visible", hint=AS_LIBVIRT)
        else:
            yield judge(evidence, guest, process, expected)


# --- threads -------------------------------------------------------------------------------------------------


def _pins(evidence: Evidence, guest: RunningGuest, process: GuestProcess, expected: str) -> CheckResult:
    source = f"/proc/{process.pid}/task/*/status"
    doubt = _doubt(evidence, guest, process)
    if doubt:
        hint = "run hosttune validate as root, while libvirt runs"
        return unknown(_PINS, guest.name, expected=expected, why=doubt, hint=hint, source=source)
    threads = process.threads or ()
    wrong = list(_strays(evidence.host, guest, threads))
    loose = list(_loose(evidence.host, guest))
    place = _PLACE.format(guest.name)
    if wrong or (loose and guest.devices):
        hint = f"virsh vcpupin and emulatorpin correct it at once; permanently: {place}"
        actual = listed([*loose, *wrong], 4)
        return failed(_PINS, guest.name, expected=expected, actual=actual, source=source, hint=hint)
    if loose:
        hint = f"pin it, so that it takes no time from pinned guests: {place}"
        return warned(_PINS, guest.name, expected=expected, actual=listed(loose, 4), source=source, hint=hint)
    count = sum(_VCPU.fullmatch(thread.name) is not None for thread in threads)
    actual = f"{count} vCPUs and the emulator's threads are where they belong"
    return passed(_PINS, guest.name, expected=expected, actual=actual, source=source)


def _doubt(evidence: Evidence, guest: RunningGuest, process: GuestProcess) -> str | None:
    """Why nothing can be said of its threads; None where all of them are known."""
    if guest.vcpu_pins is None:
        return "its definition could not be read"
    if process.threads is None or any(thread.cpus is None for thread in process.threads):
        return "the kernel does not show all of its threads"
    seen = {int(found[1]) for thread in process.threads if (found := _VCPU.fullmatch(thread.name))}
    if not seen:
        return "no thread is named as a vCPU's: which is which is not known"
    # Live, all threads were looked at: a vCPU without one was taken out of the running guest.
    missing = {pin.vcpu for pin in guest.vcpu_pins} - seen
    return f"vCPU {CpuSet(missing)} shows no thread" if missing and not evidence.complete else None


def _loose(host: Host, guest: RunningGuest) -> Iterator[str]:
    """What its definition leaves free to run anywhere. A pin that names every CPU is none: so libvirt shows it."""
    everywhere = online(host)
    pins = {vcpu: cpus for vcpu, cpus in own_pins(guest).items() if not everywhere or not everywhere <= cpus}
    count = max(guest.vcpus or 0, len(guest.vcpu_pins or ()))
    if not pins:
        yield "its vCPUs are not pinned"
    elif len(pins) < count:
        yield f"vCPU {CpuSet(set(range(count)) - pins.keys())} is not pinned"
    emulator = parse_cpus(guest.emulator_cpus)
    if pins and (not emulator or (everywhere and everywhere <= emulator)):
        yield "the emulator's threads are not pinned: they run on the vCPUs' CPUs too"


def _strays(host: Host, guest: RunningGuest, threads: Iterable[GuestThread]) -> Iterator[str]:
    """Threads that may run where their definition does not say. CPUs that are offline now are left out on both sides:
    the kernel may or may not list them."""
    known = online(host)
    here = known or CpuSet.parse("0-65535")
    pins = own_pins(guest)
    io = [parse_cpus(cpus) for cpus in guest.iothread_cpus or ()]
    emulator = parse_cpus(guest.emulator_cpus)
    others = CpuSet(emulator.union(*io)) if emulator else CpuSet()  # an I/O thread's helpers start where it runs
    for thread in threads:
        cpus, vcpu = parse_cpus(thread.cpus), _VCPU.fullmatch(thread.name)
        if vcpu:
            wanted = pins.get(int(vcpu[1]))
            if wanted is not None and cpus & here != wanted & here:
                yield f"vCPU {vcpu[1]} may run on CPUs {cpus}, its pin is {wanted}"
        elif _IO.fullmatch(thread.name):
            # The document has no numbers of them: each must be on the CPUs of one of their pins.
            if io and not any(cpus & here == one & here for one in io):
                pinned = " or ".join(str(one) for one in dict.fromkeys(io))
                yield f"{thread.name.removeprefix('IO ')} may run on CPUs {cpus}, its pin is {pinned}"
        elif thread.name == _POOL and any(cpus & here == pin & here for pin in pins.values()):
            continue
        elif others and (cpus & here) - others and not _CLEARING.fullmatch(thread.name):
            # Kernel threads of KVM and vhost may be held to fewer CPUs.
            yield f"thread {thread.name!r} may run on CPUs {cpus}, the emulator's are {emulator}"


# --- memory --------------------------------------------------------------------------------------------------


def _memory(evidence: Evidence, guest: RunningGuest, process: GuestProcess, expected: str) -> CheckResult:
    source = f"/proc/{process.pid}/numa_maps"
    if guest.memory is None or process.memory_by_node is None:
        known = guest.memory is not None
        why = "the kernel does not show its memory" if known else "its definition could not be read"
        hint = "run hosttune validate as root, on a kernel with NUMA (CONFIG_NUMA)"
        return unknown(_MEMORY, guest.name, expected=expected, why=why, hint=hint, source=source)
    held = {int(node): size for node, size in process.memory_by_node.items()}
    actual = ", ".join(f"{size >> 20} MiB on node {node}" for node, size in sorted(held.items()))
    if process.page_sizes:
        actual += f", pages of {_kib(process.page_sizes)}"
    again = f"shut it down and start it again; if it stays so, {_PLACE.format(guest.name)}"
    pages, found = {part.page_bytes for part in guest.memory if part.page_bytes}, set(process.page_sizes)
    if pages and not (found and found <= pages):
        actual += f", wanted {_kib(pages)}"
        return failed(_MEMORY, guest.name, expected=expected, actual=actual, source=source, hint=again)
    nodes = _nodes(evidence, guest)
    stray = sum(size for node, size in held.items() if nodes is not None and node not in nodes)
    if stray > _may_stray(guest, process, sum(held.values())):
        actual += f"; its definition says node {nodes}"
        return failed(_MEMORY, guest.name, expected=expected, actual=actual, source=source, hint=again)
    lacking = _lacking(guest, sum(held.values()))
    if lacking:
        why = f"where {lacking >> 20} MiB of its huge pages are is not shown; {actual}"
        hint = "run hosttune validate again, as root; libvirt takes all huge pages of a guest when it starts"
        return unknown(_MEMORY, guest.name, expected=expected, why=why, hint=hint, source=source)
    if nodes is None:
        actual += "; its definition names no node"
        hint = _PLACE.format(guest.name)
        return warned(_MEMORY, guest.name, expected=expected, actual=actual, source=source, hint=hint)
    return passed(_MEMORY, guest.name, expected=expected, actual=actual, source=source)


def _nodes(evidence: Evidence, guest: RunningGuest) -> CpuSet | None:
    """The nodes that its memory comes from; None where a part of it may come from any of several."""
    single = len(evidence.host.numa_nodes) == 1 and len(named_nodes(evidence.host)) == 1
    only = evidence.host.numa_nodes[0].id if single else None
    nodes = [only if part.node is None else part.node for part in guest.memory or ()]
    return CpuSet(node for node in nodes if node is not None) if nodes and None not in nodes else None


def _lacking(guest: RunningGuest, held: int) -> int:
    """Bytes of huge pages in its definition that its process does not show.

    libvirt has QEMU take all of them before the guest runs (qemu_command.c, memory-backend-file with prealloc).
    """
    return max(sum(part.memory_bytes or 0 for part in guest.memory or () if part.page_bytes) - held, 0)


def _may_stray(guest: RunningGuest, process: GuestProcess, held: int) -> int:
    """Bytes that may lie elsewhere: memory plugged in while it ran, which no cell holds; without huge pages a part."""
    in_cells = sum(part.memory_bytes or 0 for part in guest.memory or ())
    plugged = max((guest.memory_bytes or 0) - in_cells, 0)
    return plugged + (0 if process.page_sizes else held // _STRAY_PART)


def _kib(sizes: Iterable[int]) -> str:
    return ", ".join(f"{size >> 10} KiB" for size in sorted(sizes))


CHECKS = (
    Check(
        id=_PINS,
        title="Threads where they were pinned",
        subjects="each running guest",
        why="XML says what was asked for; an unpinned thread takes time from vCPUs, its own or another guest's",
        source="proc(5), /proc/PID/task/TID/status (Cpus_allowed_list); libvirt formatdomain, CPU Tuning",
        judge=guest_pins,
    ),
    Check(
        id=_MEMORY,
        title="Memory where it was placed",
        subjects="each running guest",
        why="memory that came from another node stays there as long as the guest runs",
        source="proc(5), /proc/PID/numa_maps",
        judge=guest_memory,
    ),
)
