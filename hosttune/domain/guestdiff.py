"""Differences between a guest and what is expected of it, by name. Pure; the callers judge them.

Expected is a guest of the host document, or a planned one as it will show it (`domain.defined`). `compare_definition`
compares two of them, one row per subject; `compare_threads` and `compare_memory` the process of a running guest.
libvirt lets QEMU name its threads (-name debug-threads=on): "CPU 3/KVM", "IO iothread1"; all others belong to the
emulator, as in libvirt's own division (formatdomain, emulatorpin).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from hosttune.model.evidence import GuestProcess, GuestThread
from hosttune.model.host import RunningGuest
from hosttune.model.listing import short_list, some
from hosttune.model.values import CpuSet, format_size, parse_cpus

SAME, DIFFERENT, UNKNOWN = "as planned", "differs", "unknown"
# The kind of a difference: something is elsewhere, is missing, exists but is not expected, or its place cannot be
# read.
ELSEWHERE, MISSING, UNEXPECTED, UNREAD = "elsewhere", "missing", "unexpected", "unread"

_VCPU = re.compile(r"CPU ([0-9]{1,5})/(?:KVM|TCG)")
_IO_THREAD = re.compile(r"IO iothread([0-9]{1,5})")
# QEMU's thread-context: it clears a cell's memory from that cell's node before the guest starts, and then only sleeps.
_CLEARING = re.compile(r"TC tc-ram-node[0-9]*")
# QEMU's pool for file I/O. A pool thread runs on the CPUs of the thread that asked for it (a vCPU if the firmware
# writes its variables), and ends after ten seconds without work (util/thread-pool.c).
_POOL = "worker"
_SMALL_PAGE_BYTES = 4096
_MANY = 6  # number of devices named before "and N more"
# On ordinary pages QEMU's memory cannot be separated from the guest's, so a part this small is not a difference.
OWN_PART = 16


# --- two definitions -----------------------------------------------------------------------------------------


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One subject of a guest: planned and actual value in words, and whether they are SAME, DIFFERENT or UNKNOWN."""

    what: str
    planned: str
    actual: str
    state: str


def compare_definition(
    expected: RunningGuest, actual: RunningGuest, *, adopted: bool = False
) -> tuple[Comparison, ...]:
    """Compare a planned guest with its definition.

    One row each: vCPUs, emulator threads, I/O threads, memory, page size, devices. I/O threads and page size are left
    out if neither has them. `adopted`: its other threads and its devices are its own, and are left out.
    """
    want, have = _by_nodes(expected) or Counter(), _by_nodes(actual)
    total = actual.memory_bytes
    texts = [f"{format_size(total)} in all"] if total is not None and total != sum(want.values()) else []
    same = have == want and not texts
    texts += [] if have is None else [_sizes(have)]
    rows = (
        _vcpus(expected, actual),
        None if adopted else _emulator(expected, actual),
        None if adopted else _iothreads(expected, actual),
        _row("memory", _sizes(want), "; ".join(texts) or None, same=same),
        _page_size(expected, actual),
        None if adopted else _devices(expected, actual),
    )
    return tuple(row for row in rows if row is not None)


def _row(what: str, planned: str, actual: str | None, *, same: bool = False) -> Comparison:
    """Return a row; `actual` None = unknown."""
    state = UNKNOWN if actual is None else SAME if same else DIFFERENT
    return Comparison(what=what, planned=planned, actual="unknown" if actual is None else actual, state=state)


def _vcpus(expected: RunningGuest, actual: RunningGuest) -> Comparison:
    want, have = expected.pins, actual.pins
    if actual.vcpu_pins is None:
        return _row("vCPUs", _pins(want), None)
    wrong = [vcpu for vcpu in sorted({*want, *have}) if want.get(vcpu) != have.get(vcpu)]
    texts = [f"vCPU {vcpu} on {have.get(vcpu) or 'no pin'}, not {want.get(vcpu) or 'planned'}" for vcpu in wrong]
    if actual.vcpus is not None and expected.vcpus is not None and actual.vcpus != expected.vcpus:
        texts.insert(0, f"{actual.vcpus} vCPUs in all, not {expected.vcpus}")
    return _row("vCPUs", _pins(want), "; ".join(filter(None, (_pins(have), some(texts, 3, "; ")))), same=not texts)


def _pins(pins: Mapping[int, CpuSet]) -> str:
    cpus = CpuSet(cpu for cpu_set in pins.values() for cpu in cpu_set)
    return f"{len(pins)} on host CPUs {short_list(cpus)}" if pins else "none pinned"


def _emulator(expected: RunningGuest, actual: RunningGuest) -> Comparison:
    want, have = parse_cpus(expected.emulator_cpus), parse_cpus(actual.emulator_cpus)
    # Pins are known only if the definition was read. Then a missing emulator pin means that there is none.
    unread = actual.vcpu_pins is None and actual.emulator_cpus is None
    return _row("emulator threads", _cpus(want), None if unread else _cpus(have), same=have == want)


def _cpus(cpus: CpuSet) -> str:
    return f"host CPUs {short_list(cpus)}" if cpus else "any CPU"


def _iothreads(expected: RunningGuest, actual: RunningGuest) -> Comparison | None:
    want, have = _iothread_cpus(expected), _iothread_cpus(actual)
    if not want and not have:
        return None
    words = None if actual.iothread_cpus is None else _each_cpus(have)
    return _row("I/O threads", _each_cpus(want), words, same=have == want)


def _iothread_cpus(guest: RunningGuest) -> tuple[CpuSet, ...]:
    return tuple(map(parse_cpus, guest.iothread_cpus or ()))


def _each_cpus(threads: Sequence[CpuSet]) -> str:
    return f"{len(threads)} on host CPUs {'; '.join(map(short_list, threads))}" if threads else "none pinned"


def _by_nodes(guest: RunningGuest) -> Counter[int | None] | None:
    """Return bytes by the node that they come from (None: any); None if not all are known."""
    sizes = Counter[int | None]()
    for part in guest.memory or ():
        if part.memory_bytes is None:
            return None
        sizes[part.node] += part.memory_bytes
    return None if guest.memory is None else sizes


def _sizes(by_nodes: Mapping[int | None, int]) -> str:
    return ", ".join(f"{format_size(size)} on node {_node(node)}" for node, size in _in_order(by_nodes)) or "none"


def _in_order(by_nodes: Mapping[int | None, int]) -> list[tuple[int | None, int]]:
    return sorted(by_nodes.items(), key=lambda part: -1 if part[0] is None else part[0])


def _node(node: int | None) -> str:
    return "any" if node is None else str(node)


def _page_size(expected: RunningGuest, actual: RunningGuest) -> Comparison | None:
    want, have = expected.page_bytes, actual.page_bytes
    if want is None and (have or 0) <= _SMALL_PAGE_BYTES:
        return None
    words = "ordinary pages" if want is None else format_size(want)
    return _row("page size", words, None if have is None else format_size(have), same=have == want)


def _devices(expected: RunningGuest, actual: RunningGuest) -> Comparison:
    want, have = _addresses(expected), _addresses(actual)
    if actual.unread:
        return _row("devices", some(want, _MANY) or "none", None)
    missing, extra = sorted({*want} - {*have}), sorted({*have} - {*want})
    texts = [f"missing {some(missing, _MANY)}"] if missing else []
    texts += [f"not planned {some(extra, _MANY)}"] if extra else []
    words = "; ".join((some(have, _MANY) or "none", *texts))
    return _row("devices", some(want, _MANY) or "none", words, same=want == have)


def _addresses(guest: RunningGuest) -> list[str]:
    return sorted({device.casefold() for device in (*guest.devices, *guest.mdevs)})


# --- a running process ---------------------------------------------------------------------------------------


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a running guest that is not as expected: its kind (ELSEWHERE, MISSING, UNEXPECTED, UNREAD) and a text.

    `size_bytes`: how much memory is elsewhere or missing; otherwise 0.
    """

    kind: str
    text: str
    size_bytes: int = 0


def vcpu_of(thread: GuestThread) -> int | None:
    """Return the vCPU that a thread of QEMU runs; None for any other thread."""
    match = _VCPU.fullmatch(thread.name)
    return int(match[1]) if match else None


def compare_threads(
    expected: RunningGuest, threads: Sequence[GuestThread], *, online: CpuSet | None = None, planned: bool = False
) -> Iterator[Difference]:
    """Yield the threads of a guest that may run elsewhere, are missing or are not expected.

    `planned`: hosttune decided the values, so there is no other vCPU or I/O thread, and I/O threads are in order.
    `online`: the CPUs that are online. Offline CPUs are ignored on both sides, because the kernel may or may not list
    them.
    """
    iothreads = _iothread_cpus(expected)
    yield from _pinned("vCPU", expected.pins, _numbered(threads, _VCPU), online, exactly=planned)
    by_number = _numbered(threads, _IO_THREAD)
    if planned:
        yield from _pinned("I/O thread", dict(enumerate(iothreads, 1)), by_number, online, exactly=True)
    elif iothreads:  # a definition has no numbers: each thread is on the CPUs of one of the pins
        alike = [(number, thread) for number, guest_threads in sorted(by_number.items()) for thread in guest_threads]
        for number, thread in alike:
            if not any(_agree(thread, cpus, online) for cpus in iothreads):
                yield _elsewhere(f"I/O thread {number}", thread, " or ".join(map(str, dict.fromkeys(iothreads))))
    yield from _others(expected, threads, online)


def _numbered(threads: Sequence[GuestThread], form: re.Pattern[str]) -> dict[int, list[GuestThread]]:
    by_number: dict[int, list[GuestThread]] = defaultdict(list)
    for thread in threads:
        named = form.fullmatch(thread.name)
        if named:
            by_number[int(named[1])].append(thread)
    return by_number


def _pinned(
    what: str,
    pins: Mapping[int, CpuSet],
    by_number: Mapping[int, Sequence[GuestThread]],
    online: CpuSet | None,
    *,
    exactly: bool,
) -> Iterator[Difference]:
    """Check that each pinned thread exists once, on exactly its CPUs; with `exactly`, that there is no other thread."""
    for number in sorted(pins.keys() | by_number.keys()):
        wanted, alike = pins.get(number), by_number.get(number, ())
        if wanted is None:
            if exactly:
                yield Difference(kind=UNEXPECTED, text=f"{what} {number} is not expected")
            continue
        if not alike:
            yield Difference(kind=MISSING, text=f"{what} {number}: no thread of it, expected on CPUs {wanted}")
        elif len(alike) > 1:
            yield Difference(kind=UNEXPECTED, text=f"{what} {number}: {len(alike)} threads of that name")
        for thread in alike:
            if not _agree(thread, wanted, online):
                yield _elsewhere(f"{what} {number}", thread, str(wanted))


def _others(expected: RunningGuest, threads: Sequence[GuestThread], online: CpuSet | None) -> Iterator[Difference]:
    """Check the emulator's threads: on its CPUs, or on those of an I/O thread, whose helper threads start there."""
    own = parse_cpus(expected.emulator_cpus)
    if not own:
        return
    allowed = own.union(*_iothread_cpus(expected))
    pins = expected.pins.values()
    for thread in threads:
        if any(form.fullmatch(thread.name) for form in (_VCPU, _IO_THREAD, _CLEARING)):
            continue
        if thread.name == _POOL and any(_agree(thread, cpus, online) for cpus in pins):
            continue
        cpus = _visible(thread, online)
        # The kernel may restrict its own threads for KVM and vhost to fewer CPUs.
        if not cpus or not cpus <= allowed:
            yield _elsewhere(f"emulator thread {thread.name!r}", thread, str(own))


def _visible(thread: GuestThread, online: CpuSet | None) -> CpuSet | None:
    """Return the CPUs that a thread may run on, without offline CPUs; None = unknown."""
    if thread.cpus is None:
        return None
    cpus = parse_cpus(thread.cpus)
    return cpus & online if online else cpus


def _agree(thread: GuestThread, wanted: CpuSet, online: CpuSet | None) -> bool:
    return _visible(thread, online) == (wanted & online if online else wanted)


def _elsewhere(what: str, thread: GuestThread, wanted: str) -> Difference:
    if thread.cpus is None:
        return Difference(kind=UNREAD, text=f"{what}: the CPUs that it may run on are unknown, expected {wanted}")
    return Difference(kind=ELSEWHERE, text=f"{what} may run on CPUs {thread.cpus}, expected {wanted}")


def compare_memory(expected: RunningGuest, process: GuestProcess, *, planned: bool = False) -> Iterator[Difference]:
    """Yield memory of a guest that is on other nodes, in pages of another size, or not shown.

    `planned`: hosttune decided the values, so there are no other huge pages, and cells are in order.

    If a part has huge pages, only huge pages are compared: all of them are allocated before the guest runs (libvirt has
    QEMU do this: qemu_command.c, memory-backend-file with prealloc), and all other memory is QEMU's own.
    """
    if expected.memory is None or process.memory_by_node is None:
        yield Difference(kind=UNREAD, text="memory: where it is, is unknown")
        return
    wanted = {part.page_bytes for part in expected.memory or () if part.page_bytes}
    sizes = set(process.page_sizes)
    if wanted and not (sizes and sizes <= wanted):
        yield Difference(kind=ELSEWHERE, text=f"memory: on {_kib(sizes)}, expected {_kib(wanted)}")
    if sizes and not wanted and planned:
        yield Difference(kind=UNEXPECTED, text=f"memory: on {_kib(sizes)}, expected {_kib(())}")
    held = {int(node): size for node, size in process.memory_by_node.items()}
    yield from _unexpected_memory(expected, held, huge=bool(process.page_sizes))
    yield from _shortage(expected, held)
    if planned:
        yield from _cells(expected, process)


def _kib(sizes: Collection[int]) -> str:
    return f"pages of {', '.join(f'{size >> 10} KiB' for size in sorted(sizes))}" if sizes else "ordinary pages"


def _unexpected_memory(expected: RunningGuest, held: Mapping[int, int], *, huge: bool) -> Iterator[Difference]:
    """Yield memory on nodes where none is expected.

    Some memory may be on any node: memory plugged in while the guest ran, which belongs to no cell, and, on ordinary
    pages, QEMU's own memory.
    """
    parts = expected.memory or ()
    nodes = CpuSet(part.node for part in parts if part.node is not None)
    if not parts or any(part.node is None for part in parts):
        return
    plugged = max((expected.memory_bytes or 0) - sum(part.memory_bytes or 0 for part in parts), 0)
    tolerated = plugged + (0 if huge else sum(held.values()) // OWN_PART)
    strays = {node: size for node, size in sorted(held.items()) if node not in nodes}
    if sum(strays.values()) > tolerated:
        for node, size in strays.items():
            text = f"memory: {size >> 20} MiB on node {node}, expected on node {nodes}"
            yield Difference(kind=ELSEWHERE, text=text, size_bytes=size)


def _shortage(expected: RunningGuest, held: Mapping[int, int]) -> Iterator[Difference]:
    """Yield missing memory, by node; parts that may come from any node are compared with the remainder."""
    wanted = Counter[int | None]()
    for part in expected.memory or ():
        if part.page_bytes or not expected.has_huge_pages:
            wanted[part.node] += part.memory_bytes or 0
    bound = wanted.total() - wanted[None]
    for node, size in _in_order(wanted):
        there = max(sum(held.values()) - bound, 0) if node is None else held.get(node, 0)
        if there < size:
            text = f"memory: {there >> 20} MiB on node {_node(node)}, expected {size >> 20} MiB"
            yield Difference(kind=MISSING, text=text, size_bytes=size - there)


def _cells(expected: RunningGuest, process: GuestProcess) -> Iterator[Difference]:
    """Compare each cell's memory with that cell's nodes, if the kernel's figures separate the cells."""
    nodes = {str(cell): part.node for cell, part in enumerate(expected.memory or ())}
    for cell, held in sorted((process.memory_by_cell or {}).items()):
        wanted = nodes.get(cell)
        strays = {int(node): size for node, size in held.items() if wanted not in (None, int(node))}
        if strays:
            text = f"memory of cell {cell}: on node {CpuSet(map(int, held))}, expected on node {wanted}"
            yield Difference(kind=ELSEWHERE, text=text, size_bytes=sum(strays.values()))
