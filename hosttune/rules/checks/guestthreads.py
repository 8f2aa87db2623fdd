"""Checks of the threads and memory of running guests: where they are by /proc, compared with the definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hosttune.domain.expectedguest import ExpectedGuest
from hosttune.domain.guestdiff import ELSEWHERE, MISSING, OWN_PART, compare_memory, compare_threads, vcpu_of
from hosttune.model.evidence import Evidence, GuestProcess
from hosttune.model.host import RunningGuest
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import AS_LIBVIRT, RUNNING, for_vfio, guests_or_why, listed, online, only_node

_PINS, _MEMORY = "guest-pins", "guest-memory"
# Of a guest that hosttune defined, and of any other.
PLACE = "define it as planned: hosttune apply --intent FILE; a guest of somebody else: hosttune plan --adopt {0}"
_Judge = Callable[[Evidence, RunningGuest, GuestProcess, str], CheckResult]


def guest_pins(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that every thread of every running guest is on the CPUs that its definition gives it, by /proc."""
    yield from _running(evidence, _PINS, "each thread may run where the definition says, and nowhere else", _pins)


def guest_memory(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that the memory of every running guest has the nodes and page size of its definition, by /proc."""
    yield from _running(evidence, _MEMORY, "its memory is on the nodes, and of the pages, of its definition", _memory)


def _running(evidence: Evidence, check: str, expected: str, judge: _Judge) -> Iterator[CheckResult]:
    guests, results = guests_or_why(evidence, check, expected)
    yield from results
    processes = {process.guest: process for process in evidence.processes or ()}
    for guest in guests:
        process = processes.get(guest.name)
        if guest.state is None:
            yield unknown(check, guest.name, expected=expected, why="whether it runs is unknown", hint=AS_LIBVIRT)
        elif guest.state not in RUNNING:
            yield skipped(check, guest.name, f"it is {guest.state}")
        elif guest.starting:
            why = "libvirt has not ended its start, and places its threads and memory until then"
            yield unknown(check, guest.name, expected=expected, why=why, hint="validate again when it has started")
        elif process is None or process.pid is None:
            yield unknown(check, guest.name, expected=expected, why="its process is not visible", hint=AS_LIBVIRT)
        else:
            yield judge(evidence, guest, process, expected)


# --- threads -------------------------------------------------------------------------------------------------


def _pins(evidence: Evidence, guest: RunningGuest, process: GuestProcess, expected: str) -> CheckResult:
    source = f"/proc/{process.pid}/task/*/status"
    defined, threads = ExpectedGuest.of_definition(guest), process.threads or ()
    doubt = _doubt(evidence, defined, process)
    if doubt:
        hint = "run hosttune validate as root, while libvirt runs"
        return unknown(_PINS, guest.name, expected=expected, why=doubt, hint=hint, source=source)
    known = online(evidence.host)
    # A pinned vCPU without a thread was unplugged from the running guest; `_doubt` has ruled out other reasons.
    wrong = [one.text for one in compare_threads(defined, threads, online=known) if one.kind == ELSEWHERE]
    loose = list(_loose(defined, known))
    place = PLACE.format(guest.name)
    if wrong or (loose and guest.devices):
        hint = f"virsh vcpupin and emulatorpin correct it at once; permanently: {place}"
        actual = listed([*loose, *wrong], 4)
        return failed(_PINS, guest.name, expected=expected, actual=actual, source=source, hint=hint)
    if loose:
        hint = f"pin it, so that it takes no time from pinned guests: {place}"
        return warned(_PINS, guest.name, expected=expected, actual=listed(loose, 4), source=source, hint=hint)
    count = sum(vcpu_of(thread) is not None for thread in threads)
    actual = f"{count} vCPUs and the emulator's threads are where they belong"
    return passed(_PINS, guest.name, expected=expected, actual=actual, source=source)


def _doubt(evidence: Evidence, defined: ExpectedGuest, process: GuestProcess) -> str | None:
    """Return why the threads cannot be judged; None if all of them are known."""
    if defined.vcpu_pins is None:
        return "its definition could not be read"
    if process.threads is None or any(thread.cpus is None for thread in process.threads):
        return "the kernel does not show all of its threads"
    seen = {vcpu for thread in process.threads if (vcpu := vcpu_of(thread)) is not None}
    if not seen:
        return "no thread is named as a vCPU's: which is which is not known"
    # On a live host all threads were read: a vCPU without a thread was unplugged from the running guest.
    missing = defined.vcpu_pins.keys() - seen
    return f"vCPU {CpuSet(missing)} shows no thread" if missing and not evidence.complete else None


def _loose(defined: ExpectedGuest, everywhere: CpuSet) -> Iterator[str]:
    """Yield what its definition lets run anywhere. A pin to all CPUs does not count: libvirt shows it for no pin."""
    every, emulator = defined.vcpu_pins or {}, defined.emulator_cpus
    pins = {vcpu: cpus for vcpu, cpus in every.items() if not everywhere or not everywhere <= cpus}
    count = max(defined.vcpus or 0, len(every))
    if not pins:
        yield "its vCPUs are not pinned"
    elif len(pins) < count:
        yield f"vCPU {CpuSet(set(range(count)) - pins.keys())} is not pinned"
    if pins and (not emulator or (everywhere and everywhere <= emulator)):
        yield "the emulator's threads are not pinned: they run on the vCPUs' CPUs too"


# --- memory --------------------------------------------------------------------------------------------------


def _memory(evidence: Evidence, guest: RunningGuest, process: GuestProcess, expected: str) -> CheckResult:
    source = f"/proc/{process.pid}/numa_maps"
    defined = ExpectedGuest.of_definition(guest, only_node=only_node(evidence.host))
    is_guest = any(vcpu_of(thread) is not None for thread in process.threads or ())
    if defined.memory is None or process.memory_by_node is None or not is_guest:
        why = "the kernel does not show its memory" if is_guest else "no thread of its process is named as a vCPU's"
        why = why if guest.memory is not None else "its definition could not be read"
        hint = "run hosttune validate as root, on a kernel with NUMA (CONFIG_NUMA)"
        return unknown(_MEMORY, guest.name, expected=expected, why=why, hint=hint, source=source)
    differences = list(compare_memory(defined, process))
    lacking = _lacking(defined, process) or _unplaced(evidence, guest, defined, process)
    wrong = [one.text for one in differences if one.kind == ELSEWHERE]
    if defined.has_huge_pages and not lacking:  # all huge pages are present: what one node lacks is on another node
        wrong += [one.text for one in differences if one.kind == MISSING]
    actual = _held(process)
    if wrong:
        again = f"shut it down and start it again; if it stays so, {PLACE.format(guest.name)}"
        actual = f"{actual}; {listed(wrong, 4)}"
        return failed(_MEMORY, guest.name, expected=expected, actual=actual, source=source, hint=again)
    if lacking:
        what = "huge pages" if defined.has_huge_pages else "memory"
        why = f"no node is shown for {lacking >> 20} MiB of its {what}; {actual}"
        hint = "run hosttune validate again, as root: /proc/PID/numa_maps shows all memory that a process has"
        return unknown(_MEMORY, guest.name, expected=expected, why=why, hint=hint, source=source)
    if not defined.memory or not all(part.nodes for part in defined.memory):
        actual += "; its definition names no node"
        hint = PLACE.format(guest.name)
        return warned(_MEMORY, guest.name, expected=expected, actual=actual, source=source, hint=hint)
    return passed(_MEMORY, guest.name, expected=expected, actual=actual, source=source)


def _lacking(defined: ExpectedGuest, process: GuestProcess) -> int:
    """Return the bytes of huge pages in its definition that its process does not show on any node."""
    huge = sum(part.size_bytes or 0 for part in defined.memory or () if part.page_bytes)
    return max(huge - sum((process.memory_by_node or {}).values()), 0)


def _unplaced(evidence: Evidence, guest: RunningGuest, defined: ExpectedGuest, process: GuestProcess) -> int:
    """Return the bytes on ordinary pages that its process must have and does not show on any node; 0 if it shows all.

    The kernel counts what the process has in memory (proc(5), VmRSS, which is not exact: a part as small as the one
    that may be elsewhere is ignored). All memory of a guest with a VFIO device is pinned, and so in memory
    (Documentation/driver-api/vfio).
    """
    if defined.has_huge_pages or process.page_sizes:
        return 0
    held = sum((process.memory_by_node or {}).values())
    counted = process.resident_bytes or 0
    least = counted - counted // OWN_PART
    devices = (evidence.host.index.pci.get(address) for address in guest.devices)
    if any(device is not None and for_vfio(device.driver) for device in devices):
        least = max(least, sum(part.size_bytes or 0 for part in defined.memory or ()))
    return max(least - held, 0)


def _held(process: GuestProcess) -> str:
    held = sorted((int(node), size) for node, size in (process.memory_by_node or {}).items())
    text = ", ".join(f"{size >> 20} MiB on node {node}" for node, size in held)
    sizes = ", ".join(f"{size >> 10} KiB" for size in process.page_sizes)
    return f"{text}, pages of {sizes}" if sizes else text


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
