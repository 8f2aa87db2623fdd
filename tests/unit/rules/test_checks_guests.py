"""Checks of guests: every outcome, from evidence that is changed one fact at a time. All of it is synthetic."""

from __future__ import annotations

from typing import Any

import pytest
from evidences import DOWN_2, GIB, GPU, cpus, evidence, gpu, guest, host, judged, nic, outcome, switch

from hosttune.model.evidence import Evidence, GuestProcess, GuestThread
from hosttune.model.gpu import Gpu
from hosttune.model.host import GuestMemory, Host, NumaNode, PciDevice, Problem, RunningGuest, VcpuPin, Virtualization
from hosttune.model.hostfields import LIST_UNREAD, OUTSIDE
from hosttune.model.intent import Intent
from hosttune.model.plan import AdoptedCell, AdoptedGuest, Cell, Device, Plan, PlannedGuest, PlannedPin
from hosttune.model.validation import CheckResult

EVERY = ("guest-numa", "guest-pins", "guest-memory", "guest-definition")
# CPUs 0-1 and 4-5 are node 0's, 2-3 and 6-7 node 1's; the GPU is on node 0.
HOME = GuestMemory(node=0, memory_bytes=4 * GIB, page_bytes=GIB)
STARTING: dict[str, Any] = {"state": "paused", "starting": True}
PROCESS = GuestProcess(
    guest="a",
    pid=17,
    threads=(
        GuestThread(name="qemu-system-x86", cpus="0"),
        GuestThread(name="CPU 0/KVM", cpus="1"),
        GuestThread(name="CPU 1/KVM", cpus="5"),
        GuestThread(name="IO iothread1", cpus="4"),
        GuestThread(name="IO mon_iothread", cpus="0"),
        GuestThread(name="kvm-nx-lpage-re", cpus="0"),
        GuestThread(name="TC tc-ram-node0", cpus="0-7"),
        GuestThread(name="worker", cpus="4"),
    ),
    memory_by_node={"0": 4 * GIB},
    page_sizes=(GIB,),
)


def running(**changes: Any) -> RunningGuest:
    facts: dict[str, Any] = {
        "pins": (1, 5), "vcpus": 2, "emulator_cpus": "0", "iothread_cpus": ("4",), "memory": (HOME,),
        "memory_bytes": 4 * GIB, "page_bytes": GIB, "next_start": (),
    }  # fmt: skip
    pins = changes.pop("vcpu_pins", None)
    found = guest(**(facts | changes))
    return found if pins is None else RunningGuest(**{**_fields(found), "vcpu_pins": pins or None})


def _fields(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def having(one: RunningGuest, process: GuestProcess | None = PROCESS, **more: Any) -> Evidence:
    changes = {name: more.pop(name) for name in tuple(more) if name in Host.__struct_fields__}
    processes = (process,) if process is not None else ()
    return evidence(host(guests=(one,), **changes), processes=processes, **more)


def thread(name: str, allowed: str | None) -> GuestProcess:
    """The process with one thread on other CPUs, or one more."""
    kept = tuple(one for one in PROCESS.threads or () if one.name != name)
    return _process(threads=(*kept, GuestThread(name=name, cpus=allowed)))


def _process(**changes: Any) -> GuestProcess:
    return GuestProcess(**{**_fields(PROCESS), **changes})


def test_a_guest_that_is_where_it_belongs_passes_everything() -> None:
    assert {check: outcome(check, having(running()), "a")[0] for check in EVERY} == dict.fromkeys(EVERY, "pass")


# --- which guests there are ----------------------------------------------------------------------------------


@pytest.mark.parametrize("check", EVERY)
def test_unknown_guests_are_unknown_and_none_are_skipped(check: str) -> None:
    asked = Virtualization(libvirt_version="9.0.0")
    assert outcome(check, evidence(host(guests=None)))[0] == "unknown"
    assert outcome(check, evidence(host(guests=None, virtualization=asked)))[0] == "unknown"
    assert outcome(check, evidence(host(guests=()))) == ("skip", "no guest here")
    bare = host(guests=None, hypervisor=True, virtualization=Virtualization())
    assert outcome(check, evidence(bare))[0] == "skip", "a guest without libvirt, looked at from inside"
    assert outcome(check, evidence(bare, complete=False))[0] == "unknown"


@pytest.mark.parametrize("check", EVERY)
def test_without_libvirt_and_qemu_there_are_none_where_everything_was_looked_at(check: str) -> None:
    bare = host(guests=None, virtualization=Virtualization(kvm=True))
    other = Problem(what="a QEMU guest outside libvirt (x)", where="/proc/9", why="unknown")
    assert outcome(check, evidence(bare)) == ("skip", "no guest here")
    assert outcome(check, evidence(bare, complete=False))[0] == "unknown"
    found = host(guests=None, virtualization=Virtualization(kvm=True), problems=(other,))
    assert outcome(check, evidence(found))[0] == "unknown"


MORE = (
    Problem(what=f"{OUTSIDE} (x)", where="/proc/9", why="unknown"),
    Problem(what=LIST_UNREAD, where="virsh-list", why="a part of it"),
)


@pytest.mark.parametrize("more", MORE, ids=["a process", "the list"])
def test_where_there_may_be_other_guests_those_known_are_judged_and_nothing_is_skipped(more: Problem) -> None:
    found = having(running(), problems=(more,))
    none = evidence(host(guests=(), problems=(more,)))
    for check in EVERY:
        assert {subject: one.outcome for subject, one in judged(check, found).items()} == {
            "host": "unknown",
            "a": "pass",
        }
        assert outcome(check, none)[0] == "unknown"
    plan = Plan(intent=Intent(version=1), guests=(planned(), planned(name="b")))
    told = judged("guest-planned", having(running(), problems=(more,), plans=(plan,)))
    assert {subject: one.outcome for subject, one in told.items()} == {"a": "pass", "b": "unknown"}


@pytest.mark.parametrize("check", EVERY)
def test_a_guest_whose_definition_was_not_read_passes_nothing(check: str) -> None:
    bare = RunningGuest(name="a", state="running")
    assert outcome(check, having(bare), "a")[0] == "unknown"


@pytest.mark.parametrize("check", EVERY[1:])
@pytest.mark.parametrize(("state", "expected"), [("shut off", "skip"), ("crashed", "pass"), (None, "unknown")])
def test_what_runs_is_only_judged_where_it_runs(check: str, state: str | None, expected: str) -> None:
    found = having(running(state=state))
    assert outcome(check, found, "a")[0] == expected


@pytest.mark.parametrize("check", EVERY)
def test_a_paused_guest_is_judged_as_one_that_runs(check: str) -> None:
    assert outcome(check, having(running(state="paused")), "a")[0] == "pass"


# --- guest-numa ----------------------------------------------------------------------------------------------

FAR = GuestMemory(node=1, memory_bytes=4 * GIB)
NUMA = {
    "vCPUs far": ({"pins": (2, 6)}, "fail", "vCPUs on node 1, memory on node 0, devices on node 0"),
    "one vCPU far": ({"pins": (1, 2)}, "fail", "vCPUs on node 0-1"),
    "memory far": ({"memory": (FAR,)}, "fail", "memory on node 1"),
    "no pins": ({"pins": ()}, "fail", "its vCPUs float over the host; vCPUs on node 0-1"),
    "one without a pin": ({"vcpus": 3}, "fail", "float"),
    "pins that name every CPU": ({"vcpu_pins": (VcpuPin(vcpu=0, cpus="0-7"),), "vcpus": 1}, "fail", "float"),
    "memory of any node": ({"memory": (GuestMemory(memory_bytes=GIB),)}, "warn", "may come from any"),
    "memory not told": ({"memory": None}, "unknown", "memory"),
    "a CPU that is none": ({"pins": (1, 99)}, "unknown", "not known"),
    "no devices": ({"devices": ()}, "skip", "no host device"),
    "a device that is not here": ({"devices": (GPU, "0000:ff:00.0")}, "unknown", "0000:ff:00.0"),
    "not running": ({"state": "shut off"}, "pass", "node 0"),
}


@pytest.mark.parametrize(("changes", "expected", "words"), NUMA.values(), ids=NUMA.keys())
def test_guest_numa(changes: dict[str, Any], expected: str, words: str) -> None:
    found, actual = outcome("guest-numa", having(running(**changes)), "a")
    assert found == expected
    assert words in actual


def test_a_gpu_on_a_node_without_a_vcpu_is_far_and_a_nic_is_not() -> None:
    other = "0000:1a:00.0"
    for device, expected in ((gpu(other, DOWN_2, numa_node=1), "fail"), (nic(other, numa_node=1), "pass")):
        both = (Gpu(address=GPU, vendor="nvidia"), *((Gpu(address=other, vendor="nvidia"),) * (expected == "fail")))
        found = having(running(devices=(GPU, other)), pci=(*switch(), gpu(), device), gpus=both)
        assert outcome("guest-numa", found, "a")[0] == expected


def test_with_a_single_node_everything_is_on_it() -> None:
    one: dict[str, Any] = {
        "numa_nodes": (NumaNode(id=0, cpus="0-7", kind="cpu"),),
        "cpus": cpus(),
        "pci": (*switch(), gpu(numa_node=None)),
    }
    flat = tuple(type(cpu)(**{**_fields(cpu), "numa_node": 0}) for cpu in one["cpus"])
    loose = running(pins=(), memory=(GuestMemory(memory_bytes=GIB),))
    assert outcome("guest-numa", having(loose, **(one | {"cpus": flat})), "a")[0] == "pass"
    inside = having(loose, hypervisor=True, **(one | {"cpus": flat}))
    assert outcome("guest-numa", inside, "a")[0] == "unknown"


def test_a_device_of_unknown_node_leaves_a_doubt() -> None:
    found = having(running(), pci=(*switch(), gpu(numa_node=None)))
    assert outcome("guest-numa", found, "a")[0] == "unknown"


# --- guest-pins ----------------------------------------------------------------------------------------------

PINS = {
    "a vCPU floats": ({}, thread("CPU 1/KVM", "0-7"), "fail", "vCPU 1 may run on CPUs 0-7, expected 5"),
    "a vCPU of another": ({}, thread("CPU 1/KVM", "6"), "fail", "expected 5"),
    "the I/O thread": ({}, thread("IO iothread1", "2"), "fail", "I/O thread 1 may run on CPUs 2, expected 4"),
    "an emulator thread": ({}, thread("worker", "0-1"), "fail", "thread 'worker' may run on CPUs 0-1"),
    "a helper that a vCPU asked for": ({}, thread("worker", "5"), "pass", "are where they belong"),
    "the second I/O thread alone pinned": ({"iothread_cpus": ("2",)}, thread("IO iothread1", "2"), "fail", "worker"),
    "no pins": ({"pins": ()}, PROCESS, "fail", "its vCPUs are not pinned"),
    "one without a pin": ({"vcpus": 3}, thread("CPU 2/KVM", "0-7"), "fail", "vCPU 2 is not pinned"),
    "no emulator pin": ({"emulator_cpus": None}, PROCESS, "fail", "the emulator's threads are not pinned"),
    "an emulator pin of all": ({"emulator_cpus": "0-7"}, PROCESS, "fail", "the emulator's threads are not pinned"),
    "no pins, no device": ({"pins": (), "devices": ()}, PROCESS, "warn", "its vCPUs are not pinned"),
    "no device, but elsewhere": ({"devices": ()}, thread("CPU 1/KVM", "0-7"), "fail", "vCPU 1"),
    "a list that was none": ({}, thread("CPU 1/KVM", None), "unknown", "each of its threads"),
    "no threads": ({}, _process(threads=None), "unknown", "list of its threads"),
    "no names": ({}, _process(threads=(GuestThread(name="qemu", cpus="0"),)), "unknown", "name of a vCPU"),
    "no process": ({}, _process(pid=None), "unknown", "its process is not visible"),
    "nothing of it": ({}, None, "unknown", "its process is not visible"),
    "not yet pinned": (STARTING, thread("CPU 1/KVM", "0-7"), "unknown", "has not ended its start"),
    "starts, all as it should be": (STARTING, PROCESS, "unknown", "has not ended its start"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "process", "expected", "words"), PINS.values(), ids=PINS.keys())
def test_guest_pins(changes: dict[str, Any], process: GuestProcess | None, expected: str, words: str) -> None:
    found, actual = outcome("guest-pins", having(running(**changes), process), "a")
    assert found == expected
    assert words in actual


def test_what_is_not_read_has_the_remedy_of_its_check() -> None:
    (found,) = judged("guest-pins", having(running(), _process(threads=None))).values()
    assert found.hint == "run hosttune validate as root, while libvirt runs"


def test_pins_that_name_every_cpu_are_none() -> None:
    everywhere = tuple(VcpuPin(vcpu=n, cpus="0-7") for n in range(2))
    floats = _process(threads=(GuestThread(name="CPU 0/KVM", cpus="0-7"), GuestThread(name="CPU 1/KVM", cpus="0-7")))
    found = outcome("guest-pins", having(running(vcpu_pins=everywhere), floats), "a")
    assert found == ("fail", "its vCPUs are not pinned")


def test_cpus_that_are_offline_are_no_difference() -> None:
    offline = tuple(type(cpu)(**{**_fields(cpu), "online": cpu.id != 7}) for cpu in cpus())
    wide = running(vcpu_pins=(VcpuPin(vcpu=0, cpus="1"), VcpuPin(vcpu=1, cpus="5,7")))
    for allowed, expected in (("5", "pass"), ("5,7", "pass"), ("5-6", "fail")):
        found = having(wide, thread("CPU 1/KVM", allowed), cpus=offline)
        assert outcome("guest-pins", found, "a")[0] == expected


def test_a_vcpu_without_a_thread_was_taken_out_or_not_recorded() -> None:
    fewer = _process(threads=tuple(one for one in PROCESS.threads or () if one.name != "CPU 1/KVM"))
    assert outcome("guest-pins", having(running(), fewer), "a")[0] == "pass"
    assert outcome("guest-pins", having(running(), fewer, complete=False), "a")[0] == "unknown"


# --- guest-memory --------------------------------------------------------------------------------------------

SMALL = GuestMemory(node=0, memory_bytes=4 * GIB)
CELLS = tuple(GuestMemory(node=node, memory_bytes=size * GIB, page_bytes=GIB) for node, size in ((0, 3), (1, 1)))
TWO = (HOME, GuestMemory(node=1, memory_bytes=GIB, page_bytes=2 << 20))
MEMORY = {
    "half elsewhere": ({}, {"memory_by_node": {"0": 2 * GIB, "1": 2 * GIB}}, "fail", "2048 MiB on node 1"),
    "one page elsewhere": ({}, {"memory_by_node": {"0": 3 * GIB, "1": GIB}}, "fail", "expected on node 0"),
    "other pages": ({}, {"page_sizes": (2 << 20,)}, "fail", "on pages of 2048 KiB, expected pages of 1048576 KiB"),
    "ordinary pages": ({}, {"page_sizes": ()}, "fail", "expected pages of 1048576 KiB"),
    "pages of two sizes, one unasked": ({}, {"page_sizes": (2 << 20, GIB)}, "fail", "expected pages of 1048576 KiB"),
    "pages of two sizes, as asked": (
        {"memory": TWO}, {"page_sizes": (2 << 20, GIB), "memory_by_node": {"0": 4 * GIB, "1": GIB}}, "pass", "node 1",
    ),
    "cells that changed places": (
        {"memory": CELLS}, {"memory_by_node": {"0": GIB, "1": 3 * GIB}}, "fail",
        "1024 MiB on node 0, expected 3072 MiB",
    ),
    "cells in their places": ({"memory": CELLS}, {"memory_by_node": {"0": 3 * GIB, "1": GIB}}, "pass", "on node 1"),
    "plugged in while it ran": (
        {"memory_bytes": 5 * GIB}, {"memory_by_node": {"0": 4 * GIB, "1": GIB}}, "pass", "1024 MiB on node 1",
    ),
    "more than was plugged in": (
        {"memory_bytes": 5 * GIB}, {"memory_by_node": {"0": 3 * GIB, "1": 2 * GIB}}, "fail", "2048 MiB on node 1",
    ),
    "the emulator's heap": (
        {"memory": (SMALL,)}, {"page_sizes": (), "memory_by_node": {"0": 4 * GIB, "1": GIB // 8}}, "pass", "128 MiB",
    ),
    "ordinary pages elsewhere": (
        {"memory": (SMALL,)}, {"page_sizes": (), "memory_by_node": {"0": 3 * GIB, "1": GIB}}, "fail", "node 0",
    ),
    "no node": ({"memory": (GuestMemory(memory_bytes=4 * GIB, page_bytes=GIB),)}, {}, "warn", "names no node"),
    "a cell without a node": ({"memory": (HOME, GuestMemory(memory_bytes=GIB))}, {}, "warn", "names no node"),
    "a part is not shown": ({}, {"memory_by_node": {"0": 3 * GIB}}, "unknown", "1024 MiB of its huge pages"),
    "a part is not shown, the rest elsewhere": ({}, {"memory_by_node": {"1": GIB}}, "fail", "on node 1"),
    "one huge page beside ordinary ones": ({}, {"memory_by_node": {"0": GIB}}, "unknown", "3072 MiB"),
    "ordinary pages, not all taken yet": (
        {"memory": (SMALL,), "devices": ()}, {"page_sizes": (), "memory_by_node": {"0": GIB}}, "pass",
        "1024 MiB on node 0",
    ),
    "ordinary pages, of which a VFIO device pins all": (
        {"memory": (SMALL,)}, {"page_sizes": (), "memory_by_node": {"0": GIB}}, "unknown", "3072 MiB of its memory",
    ),
    "ordinary pages, of which the kernel counts more": (
        {"memory": (SMALL,), "devices": ()},
        {"page_sizes": (), "memory_by_node": {"0": GIB}, "resident_bytes": 2 * GIB}, "unknown", "896 MiB of its memory",
    ),
    "ordinary pages, of which the kernel counts nearly as many": (
        {"memory": (SMALL,), "devices": ()},
        {"page_sizes": (), "memory_by_node": {"0": 31 * GIB // 16}, "resident_bytes": 2 * GIB}, "pass", "on node 0",
    ),
    "a process that is not QEMU's": (
        {}, {"threads": (GuestThread(name="sleep", cpus="0"),)}, "unknown", "name of a vCPU",
    ),
    "not shown": ({}, {"memory_by_node": None}, "unknown", "its memory was not read"),
    "not defined": ({"memory": None}, {}, "unknown", "its definition was not read"),
    "not yet allocated": (STARTING, {"memory_by_node": {"0": GIB}}, "unknown", "has not ended its start"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "process", "expected", "words"), MEMORY.values(), ids=MEMORY.keys())
def test_guest_memory(changes: dict[str, Any], process: dict[str, Any], expected: str, words: str) -> None:
    found, actual = outcome("guest-memory", having(running(**changes), _process(**process)), "a")
    assert found == expected
    assert words in actual


# --- guest-definition ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("next_start", "expected", "words"),
    [((), "pass", "it does"), (("memory", "vcpupin"), "warn", "memory, vcpupin"), (None, "unknown", "transient")],
)
def test_guest_definition(next_start: tuple[str, ...] | None, expected: str, words: str) -> None:
    found, actual = outcome("guest-definition", having(running(next_start=next_start)), "a")
    assert found == expected
    assert words in actual


# --- guest-planned -------------------------------------------------------------------------------------------

MDEV = "4b20d080-1b54-4048-85b3-a6a62d165c01"


def passed_device(address: str, kind: str) -> Device:
    return Device(address=address, kind=kind, guest_cell=0, guest_address="0000:01:00.0", identity="")


def planned(**changes: Any) -> PlannedGuest:
    facts: dict[str, Any] = {
        "name": "a", "vcpu_pins": (PlannedPin(vcpu=0, cpus="1"), PlannedPin(vcpu=1, cpus="5")), "emulator_cpus": "0",
        "iothread_cpus": ("4",), "cells": (Cell(id=0, vcpus="0-1", memory_bytes=4 * GIB, host_nodes="0"),),
        "page_bytes": GIB, "devices": (passed_device(GPU, "gpu"),),
    }  # fmt: skip
    return PlannedGuest(**(facts | changes))


def applied(plan: PlannedGuest, *guests: RunningGuest, **more: Any) -> CheckResult:
    found = evidence(host(guests=guests), plans=(Plan(intent=Intent(version=1), guests=(plan,)),), **more)
    return judged("guest-planned", found)["a"]


MOVED = "vcpupin of vCPU 1: host CPUs 2, planned host CPUs 5"
PLANNED = {
    "as planned": (
        {},
        "pass",
        "vcpus, vcpupin of vCPUs 0-1, emulatorpin, iothreadpin of I/O thread 1, memory, memory on "
        "node 0, memoryBacking, hostdev",
    ),
    "other pins": ({"pins": (1, 2)}, "fail", MOVED),
    "swapped pins": ({"pins": (5, 1)}, "fail", "host CPUs 5 1 in this order, planned host CPUs 1 5 in this order"),
    "fewer pins": ({"pins": (1,)}, "fail", "vcpupin of vCPU 1: not pinned, planned host CPUs 5"),
    "more pins": ({"pins": (1, 5, 6)}, "fail", "vcpupin of vCPU 2: host CPUs 6, planned not pinned"),
    "more vCPUs": ({"vcpus": 3}, "fail", "vcpus: 3, planned 2"),
    "no emulator pin": ({"emulator_cpus": None}, "fail", "emulatorpin: not pinned, planned host CPUs 0"),
    "other I/O threads": ({"iothread_cpus": ("2",)}, "fail", "I/O thread 1: host CPUs 2, planned host CPUs 4"),
    "I/O threads not known": ({"iothread_cpus": None}, "unknown", "iothreadpin of I/O thread 1"),
    "other memory": ({"memory_bytes": GIB}, "fail", "memory: 1 GiB, planned 4 GiB"),
    "memory elsewhere": ({"memory": (FAR,)}, "fail", "memory on node 1: 4 GiB, planned none"),
    "its node not known": ({"memory": None}, "unknown", "memory on node 0"),
    "other pages": ({"page_bytes": 2 << 20}, "fail", "memoryBacking: pages of 2 MiB, planned pages of 1 GiB"),
    "pages not known": ({"page_bytes": None}, "unknown", "memoryBacking"),
    "no device": ({"devices": ()}, "fail", f"hostdev: none, planned {GPU}"),
    "another device": ({"devices": (GPU, "0000:19:00.0")}, "fail", f"hostdev: {GPU} 0000:19:00.0, planned {GPU}"),
}


@pytest.mark.parametrize(("changes", "expected", "words"), PLANNED.values(), ids=PLANNED.keys())
def test_guest_planned(changes: dict[str, Any], expected: str, words: str) -> None:
    found = applied(planned(), running(**changes))
    assert found.outcome == expected
    assert words in (found.actual or "")


def test_mediated_devices_are_compared_too() -> None:
    plan = planned(devices=(passed_device(MDEV.upper(), "mdev"),))
    assert applied(plan, running(devices=(), mdevs=(MDEV,))).outcome == "pass"
    assert applied(plan, running(devices=())).outcome == "fail"


def test_a_planned_guest_that_is_not_defined_or_not_readable() -> None:
    assert applied(planned()).outcome == "warn"
    assert applied(planned(), RunningGuest(name="a", state="running")).outcome == "unknown"
    unknown = evidence(host(guests=None), plans=(Plan(intent=Intent(version=1), guests=(planned(),)),))
    assert outcome("guest-planned", unknown)[0] == "unknown"
    assert outcome("guest-planned", evidence())[0] == "skip"


ADOPTED = {
    "as planned": ({}, "pass", "as planned: vcpus, vcpupin of vCPUs 0-1, memory, memory on node 0, memoryBacking"),
    "other pins": ({"pins": (1, 2)}, "fail", MOVED),
    "memory elsewhere": ({"memory": (FAR,)}, "fail", "memory on node 0: none, planned 4 GiB"),
    "its own threads and devices": ({"emulator_cpus": "3", "iothread_cpus": ("2",), "devices": ()}, "pass", "vcpus"),
}


@pytest.mark.parametrize(("changes", "expected", "words"), ADOPTED.values(), ids=ADOPTED.keys())
def test_an_adopted_guest_is_compared_where_the_plan_places_it(
    changes: dict[str, Any], expected: str, words: str
) -> None:
    guest = planned()
    cells = tuple(AdoptedCell(id=3, cell=cell) for cell in guest.cells)
    adopted = AdoptedGuest(
        name="a", uuid="", definition_sha256="", changes=(), guest=guest, pins=guest.vcpu_pins, cells=cells,
        foreign_cpus="1,5",
    )  # fmt: skip
    plan = Plan(intent=Intent(version=1), adoptions=(adopted,))
    found = judged("guest-planned", evidence(host(guests=(running(**changes),)), plans=(plan,)))["a"]
    assert (found.outcome, words in (found.actual or "")) == (expected, True), found


def test_every_result_that_is_not_well_says_what_to_do() -> None:
    device = PciDevice(address="0000:ff:00.0")
    every: list[Any] = [*NUMA.values(), *PINS.values()]
    for changes, *_ in every:
        found = having(running(**changes), pci=(*switch(), gpu(), device))
        for check in EVERY:
            for result in judged(check, found).values():
                assert result.actual
                assert result.outcome == "skip" or result.expected
                assert result.outcome in ("pass", "skip") or result.hint
                assert result.outcome in ("skip", "unknown") or result.source
