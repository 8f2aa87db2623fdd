"""One expected guest, from a plan or from a definition, and its differences: each spoilt fact is named, alone."""

from __future__ import annotations

import pytest
from domain_shapes import GIB, SHAPES, changed

from hosttune.domain.defined import as_planned
from hosttune.domain.guestdiff import (
    DIFFERENT,
    ELSEWHERE,
    MISSING,
    SAME,
    UNEXPECTED,
    UNKNOWN,
    UNREAD,
    Difference,
    compare_definition,
    compare_memory,
    compare_threads,
)
from hosttune.model.evidence import GuestProcess, GuestThread
from hosttune.model.host import RunningGuest
from hosttune.model.plan import PlannedGuest

every_shape = pytest.mark.parametrize("guest", SHAPES.values(), ids=SHAPES.keys())


def running(guest: PlannedGuest) -> GuestProcess:
    """The process of a guest that runs as planned."""
    threads = [GuestThread(name=f"CPU {pin.vcpu}/KVM", cpus=pin.cpus) for pin in guest.vcpu_pins]
    threads += [GuestThread(name=f"IO iothread{n}", cpus=cpus) for n, cpus in enumerate(guest.iothread_cpus, 1)]
    by_node: dict[str, int] = {}
    for cell in guest.cells:
        by_node[cell.host_nodes] = by_node.get(cell.host_nodes, 0) + cell.memory_bytes
    return GuestProcess(
        guest=guest.name,
        pid=17,
        threads=(*threads, GuestThread(name="qemu-system-x86", cpus=guest.emulator_cpus)),
        memory_by_node=by_node,
        page_sizes=(guest.page_bytes,) if guest.page_bytes else (),
        memory_by_cell={str(cell.id): {cell.host_nodes: cell.memory_bytes} for cell in guest.cells},
    )


def of_process(expected: RunningGuest, process: GuestProcess, *, planned: bool) -> list[Difference]:
    threads = compare_threads(expected, process.threads or (), planned=planned)
    return [*threads, *compare_memory(expected, process, planned=planned)]


# --- definitions ---------------------------------------------------------------------------------------------


@every_shape
def test_a_guest_runs_as_planned_and_as_defined(guest: PlannedGuest) -> None:
    expected = as_planned(guest)
    rows = compare_definition(expected, expected)
    assert {row.state for row in rows} == {SAME}
    assert [row.planned for row in rows] == [row.actual for row in rows]
    assert [of_process(expected, running(guest), planned=planned) for planned in (True, False)] == [[], []]


PINS = as_planned(SHAPES["one-gpu"]).vcpu_pins or ()
SPOILT: dict[str, tuple[dict[str, object], str, str]] = {
    "a pin": ({"vcpu_pins": PINS[:-1]}, "vcpupin of vCPU 15", DIFFERENT),
    "a vCPU more": ({"vcpus": 17}, "vcpus", DIFFERENT),
    "no emulator pin": ({"emulator_cpus": None}, "emulatorpin", DIFFERENT),
    "no I/O thread": ({"iothread_cpus": ()}, "iothreadpin of I/O thread 1", DIFFERENT),
    "I/O threads not read": ({"iothread_cpus": None}, "iothreadpin of I/O thread 1", UNKNOWN),
    "all memory": ({"memory_bytes": GIB}, "memory", DIFFERENT),
    "memory not read": ({"memory": None}, "memory on node 0", UNKNOWN),
    "pages": ({"page_bytes": 2 << 20}, "memoryBacking", DIFFERENT),
    "pages not known": ({"page_bytes": None}, "memoryBacking", UNKNOWN),
    "a device more": ({"devices": ("0000:41:00.0", "0000:42:00.0")}, "hostdev", DIFFERENT),
    "a mediated device more": ({"mdevs": ("aa618089-8b16-5d01-a136-25a0f3c73123",)}, "hostdev", DIFFERENT),
}


@pytest.mark.parametrize(("changes", "what", "state"), SPOILT.values(), ids=SPOILT.keys())
def test_what_a_definition_has_otherwise_is_named_alone(changes: dict[str, object], what: str, state: str) -> None:
    guest = SHAPES["one-gpu"]
    rows = compare_definition(as_planned(guest), changed(as_planned(guest), **changes))
    assert {row.what: row.state for row in rows if row.state != SAME} == {what: state}


@every_shape
def test_of_a_definition_that_was_not_read_nothing_is_as_planned(guest: PlannedGuest) -> None:
    unread = RunningGuest(name=guest.name, state="running")
    assert {row.state for row in compare_definition(as_planned(guest), unread)} <= {UNKNOWN}


def test_huge_pages_that_were_not_planned_are_a_difference() -> None:
    plain = changed(SHAPES["one-gpu"], page_bytes=None)
    rows = compare_definition(as_planned(plain), as_planned(SHAPES["one-gpu"]))
    (row,) = [row for row in rows if row.state != SAME]
    assert (row.what, row.planned, row.actual, row.state) == (
        "memoryBacking",
        "ordinary pages",
        "pages of 1 GiB",
        DIFFERENT,
    )


# --- processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one-gpu", "two-cells", "many-vcpus", "odd"])
def test_each_thread_that_is_elsewhere_unread_or_lost_is_named_alone(name: str) -> None:
    guest = SHAPES[name]
    threads = running(guest).threads or ()
    expected = as_planned(guest)
    for n, thread in enumerate(threads):
        for cpus, kind in (("2047", ELSEWHERE), (None, UNREAD)):
            moved = (*threads[:n], GuestThread(name=thread.name, cpus=cpus), *threads[n + 1 :])
            for planned in (True, False):
                assert [one.kind for one in compare_threads(expected, moved, planned=planned)] == [kind], thread
        lost = [one.kind for one in compare_threads(expected, (*threads[:n], *threads[n + 1 :]), planned=True)]
        assert lost == ([MISSING] if thread.name != "qemu-system-x86" else [])


def test_a_vcpu_that_no_plan_has_is_unexpected_and_that_no_pin_has_is_not() -> None:
    guest = SHAPES["one-gpu"]
    more = (*(running(guest).threads or ()), GuestThread(name="CPU 16/KVM", cpus="0-127"))
    found = list(compare_threads(as_planned(guest), more, planned=True))
    assert found == [Difference(kind=UNEXPECTED, text="vCPU 16 is not expected")]
    assert list(compare_threads(as_planned(guest), more)) == []


def test_cells_that_changed_places_are_seen_where_their_files_are_named() -> None:
    guest = SHAPES["two-cells"]
    process = changed(running(guest), memory_by_cell={"0": {"1": 64 * GIB}, "1": {"0": 64 * GIB}})
    assert [one.text for one in compare_memory(as_planned(guest), process, planned=True)] == [
        "memory of cell 0: on node 1, expected on node 0",
        "memory of cell 1: on node 0, expected on node 1",
    ]


@pytest.mark.parametrize("by_node", [None, {}, {"0": GIB}, {"0": 64 * GIB}, {"0": 64 * GIB, "1": 63 * GIB}])
def test_memory_that_is_not_shown_is_no_proof(by_node: dict[str, int] | None) -> None:
    guest = SHAPES["two-cells"]
    process = changed(running(guest), memory_by_node=by_node, memory_by_cell=None)
    for planned in (True, False):
        differences = compare_memory(as_planned(guest), process, planned=planned)
        assert {one.kind for one in differences} in ({UNREAD}, {MISSING})
