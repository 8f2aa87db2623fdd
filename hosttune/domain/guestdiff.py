"""Differences between a guest and what is expected of it, by name. Pure; the callers judge them.

Expected is a guest of the host document, or a planned one as it will show it (`domain.defined`). `compare_definition`
compares two of them, a row for each fact; `compare_threads` and `compare_memory` the process of a running guest.
libvirt lets QEMU name its threads (-name debug-threads=on): "CPU 3/KVM", "IO iothread1"; all others belong to the
emulator, as in libvirt's own division (formatdomain, emulatorpin).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from hosttune.domain.compare import compare, in_words
from hosttune.domain.guest import Pages, Pin
from hosttune.model.evidence import GuestProcess, GuestThread
from hosttune.model.host import RunningGuest
from hosttune.model.plan import SMALL_PAGE_BYTES
from hosttune.model.values import CpuSet, parse_cpus

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
_OF_ITS_OWN = ("emulator_cpus", "iothread_pins", "hostdevs")  # of an adopted guest
# On ordinary pages QEMU's memory cannot be separated from the guest's, so a part this small is not a difference.
OWN_PART = 16


# --- two definitions -----------------------------------------------------------------------------------------


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of a guest: planned and actual value in words, and whether they are SAME, DIFFERENT or UNKNOWN."""

    what: str
    planned: str
    actual: str
    state: str


def compare_definition(
    expected: RunningGuest, actual: RunningGuest, *, adopted: bool = False
) -> tuple[Comparison, ...]:
    """Compare a planned guest with its definition as the host document has it, in the terms of `domain.compare`.

    The document has no `Guest`, but these facts of it, each known or not. What neither has is left out. `adopted`: its
    other threads and its devices are its own, and are left out.
    """
    want, have = _facts(expected), _facts(actual)
    known = {
        "vcpus": actual.vcpus,
        "vcpu_pins": actual.vcpu_pins,
        # Pins are known only if the definition was read. Then a missing emulator pin means that there is none.
        "emulator_cpus": actual.emulator_cpus or actual.vcpu_pins,
        "iothread_pins": actual.iothread_cpus,
        "memory_bytes": actual.memory_bytes,
        "memory on": _by_nodes(actual),
        "backing.pages": actual.page_bytes,
        "hostdevs": None if actual.unread else actual.devices,
    }
    unread = tuple(fact for fact, value in known.items() if value is None)
    rows: list[Comparison] = []
    for fact in want | have:
        if adopted and fact in _OF_ITS_OWN:
            continue
        planned, there = want.get(fact), have.get(fact)
        state = UNKNOWN if fact.startswith(unread) else SAME if planned == there else DIFFERENT
        for what, words, other in in_words(compare(planned, there if state == DIFFERENT else None, at=fact)):
            actually = {SAME: words, DIFFERENT: other, UNKNOWN: "unknown"}[state]
            rows.append(Comparison(what=what, planned=words, actual=actually, state=state))
    return tuple(rows)


def _facts(guest: RunningGuest) -> dict[str, object]:
    """Return what the host document has of a guest, by its field of `Guest`; memory also by the nodes it comes from."""
    iothreads = enumerate(_iothread_cpus(guest), 1)
    return {
        "vcpus": guest.vcpus,
        "vcpu_pins": tuple(Pin(id=vcpu, cpus=str(cpus)) for vcpu, cpus in guest.pins.items()) or None,
        "emulator_cpus": str(parse_cpus(guest.emulator_cpus)) or None,
        "iothread_pins": tuple(Pin(id=number, cpus=str(cpus)) for number, cpus in iothreads) or None,
        "memory_bytes": guest.memory_bytes,
        **{f"memory on node {_node(node)}_bytes": size for node, size in _in_order(_by_nodes(guest) or {})},
        "backing.pages": (Pages(size_bytes=guest.page_bytes),) if (guest.page_bytes or 0) > SMALL_PAGE_BYTES else None,
        "hostdevs": tuple(sorted({device.casefold() for device in (*guest.devices, *guest.mdevs)})) or None,
    }


def _iothread_cpus(guest: RunningGuest) -> tuple[CpuSet, ...]:
    return tuple(map(parse_cpus, guest.iothread_cpus or ()))


def _by_nodes(guest: RunningGuest) -> Counter[int | None] | None:
    """Return bytes by the node that they come from (None: any); None if not all are known."""
    sizes = Counter[int | None]()
    for part in guest.memory or ():
        if part.memory_bytes is None:
            return None
        sizes[part.node] += part.memory_bytes
    return None if guest.memory is None else sizes


def _in_order(by_nodes: Mapping[int | None, int]) -> list[tuple[int | None, int]]:
    return sorted(by_nodes.items(), key=lambda part: -1 if part[0] is None else part[0])


def _node(node: int | None) -> str:
    return "any" if node is None else str(node)


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
