"""Checks of what a former tenant may have left: every outcome. All of the evidence is synthetic."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evidences import DOWN_2, GIB, GPU, cpus, evidence, gpu, guest, host, judged, nic, outcome, switch

from hosttune.model.evidence import Evidence, Leftovers
from hosttune.model.host import (
    GuestMemory,
    Host,
    HugePages,
    NumaNode,
    PciDevice,
    Problem,
    RunningGuest,
    VcpuPin,
    Virtualization,
)
from hosttune.model.intent import Intent
from hosttune.model.plan import Cell, Device, Plan, PlannedGuest, PlannedPin
from hosttune.model.quarantine import DeviceRecord, HandoverState

UUID = "4b20d080-1b54-4048-85b3-a6a62d165c01"
PHYSICAL = "0000:19:00.0"
VFS = ("0000:19:00.1", "0000:19:00.2")
BARE = RunningGuest(name="b", state="running")  # its definition could not be read


def planned(device: Device) -> Plan:
    one = PlannedGuest(
        name="p",
        vcpu_pins=(PlannedPin(vcpu=0, cpus="1"),),
        emulator_cpus="0",
        cells=(Cell(id=0, vcpus="0", memory_bytes=GIB, host_nodes="0"),),
        page_bytes=GIB,
        devices=(device,),
    )
    return Plan(intent=Intent(version=1), guests=(one,))


def passed_device(address: str, kind: str) -> Device:
    return Device(address=address, kind=kind, guest_cell=0, guest_address="0000:01:00.0", identity="")


# --- mediated devices ----------------------------------------------------------------------------------------


def mdevs(found: dict[str, str] | None, *guests: RunningGuest, **more: Any) -> tuple[str, str]:
    of = evidence(host(guests=guests), leftovers=Leftovers(mdevs=found), **more)
    return outcome("leftover-mdevs", of)


def test_mediated_devices_that_nobody_has_fail_whether_guests_run_or_not() -> None:
    assert mdevs({}) == ("pass", "none exists")
    assert mdevs({UUID: GPU}) == ("fail", f"1: {UUID} on {GPU}")
    assert mdevs({UUID: ""}) == ("fail", f"1: {UUID} on an unknown device")
    assert mdevs({UUID: GPU}, guest())[0] == "fail"


def test_mediated_devices_of_guests_and_plans_are_none() -> None:
    assert mdevs({UUID: GPU}, guest(mdevs=(UUID.upper(),)))[0] == "pass"
    assert mdevs({UUID: GPU}, guest(mdevs=(UUID,), state="shut off"))[0] == "pass"
    assert mdevs({UUID: GPU}, plans=(planned(passed_device(UUID, "mdev")),))[0] == "pass"
    assert mdevs({UUID: GPU, "x": GPU}, guest(mdevs=(UUID,))) == ("fail", f"1: x on {GPU}")


def test_mediated_devices_where_something_is_not_known() -> None:
    assert mdevs(None, guest())[0] == "unknown"
    assert outcome("leftover-mdevs", evidence())[0] == "unknown"
    assert mdevs({UUID: GPU}, BARE)[0] == "unknown"
    assert mdevs({}, BARE)[0] == "pass"
    unasked = evidence(host(guests=None), leftovers=Leftovers(mdevs={UUID: GPU}))
    assert outcome("leftover-mdevs", unasked)[0] == "unknown"


def test_a_machine_that_is_a_guest_without_gpus_to_give_has_none() -> None:
    bare = Host(hypervisor=True, guests=())
    assert outcome("leftover-mdevs", evidence(bare))[0] == "skip"


# --- virtual functions ---------------------------------------------------------------------------------------


def functions(*drivers: str | None, guests: tuple[RunningGuest, ...] | None = (), **physical: Any) -> Evidence:
    facts = {"driver": "mlx5_core", "sriov_total_vfs": 8, "sriov_vfs": len(drivers)} | physical
    virtual = tuple(nic(address, driver=driver, physfn=PHYSICAL) for address, driver in zip(VFS, drivers, strict=False))
    return evidence(host(pci=(*switch(), gpu(), nic(PHYSICAL, DOWN_2, **facts), *virtual), guests=guests))


def vfs(of: Evidence) -> tuple[str, str]:
    return outcome("leftover-vfs", of, PHYSICAL)


@pytest.mark.parametrize(
    ("drivers", "expected"),
    [
        (("vfio-pci", "vfio-pci"), ("warn", f"2 of 2 are unused: {', '.join(VFS)}")),
        (("mlx5_vfio_pci", "mlx5_core"), ("warn", f"1 of 2 are unused: {VFS[0]}")),
        ((None, "mlx5_core"), ("warn", f"1 of 2 are unused: {VFS[0]}")),
        (("mlx5_core", "mlx5_core"), ("pass", "2 virtual functions, all in use")),
        (("iavf", "uio_pci_generic"), ("pass", "2 virtual functions, all in use")),
    ],
)
def test_functions_on_a_driver_of_the_hosts_are_its_own(
    drivers: tuple[str | None, ...], expected: tuple[str, str]
) -> None:
    assert vfs(functions(*drivers)) == expected


def test_functions_of_guests_are_theirs() -> None:
    one = guest(devices=(VFS[0],), state="shut off")
    assert vfs(functions("vfio-pci", "vfio-pci", guests=(one,))) == ("warn", f"1 of 2 are unused: {VFS[1]}")
    assert vfs(functions("vfio-pci", guests=(one,)))[0] == "pass"


def test_functions_where_guests_are_unknown() -> None:
    assert vfs(functions("vfio-pci", guests=None))[0] == "unknown"
    assert vfs(functions("vfio-pci", guests=(BARE,)))[0] == "unknown"
    assert vfs(functions("mlx5_core", guests=None))[0] == "pass", "nobody else can have what a driver here has"


def test_functions_that_nobody_listed_or_whose_driver_nobody_recorded() -> None:
    assert vfs(functions("vfio-pci", sriov_vfs=4))[0] == "unknown"
    assert vfs(functions(sriov_vfs=None, virtfns=VFS))[0] == "unknown"
    assert vfs(functions("vfio-pci", sriov_vfs=None))[0] == "warn", "they are there, whatever the count says"
    foreign = functions(None)
    assert vfs(Evidence(host=foreign.host, complete=False))[0] == "unknown"


def test_without_functions_there_is_nothing_to_leave() -> None:
    assert outcome("leftover-vfs", evidence()) == ("skip", "no device with virtual functions here")


# --- huge pages ----------------------------------------------------------------------------------------------


def pages(total: int | None, free: int | None, *guests: RunningGuest, size: int = GIB, **more: Any) -> tuple[str, str]:
    node = NumaNode(id=0, cpus="0-7", hugepages=(HugePages(size_bytes=size, total=total, free=free),))
    known = more.pop("known", guests)
    single = {"numa_nodes": (node,), "cpus": cpus(numa_node=0)}
    found = judged("leftover-pages", evidence(host(guests=known, **single, **more)))
    (result,) = found.values()
    return result.outcome, result.actual or ""


def big(node: int | None = 0, size: int = 4 * GIB, page: int = GIB, **more: Any) -> RunningGuest:
    return guest(
        memory=(GuestMemory(node=node, memory_bytes=size, page_bytes=page),), **({"memory_bytes": size} | more)
    )


PAGES = {
    "all of guests": ((8, 4, big()), "pass", "4 of 8 in use, 4 by running guests"),
    "more than guests have": ((8, 2, big()), "warn", "6 of 8 in use, 4 by running guests"),
    "nobody's": ((8, 2), "warn", "6 of 8 in use, 0 by running guests"),
    "a paused guest has them": ((8, 4, big(state="paused")), "pass", "4 by running guests"),
    "a guest that is off has none": ((8, 4, big(state="shut off")), "warn", "0 by running guests"),
    "on another node": ((8, 4, big(node=1)), "warn", "0 by running guests"),
    "on any node": ((8, 4, big(node=None)), "pass", "4 by running guests"),
    "of another size": ((8, 4, big(page=2 << 20)), "warn", "0 by running guests"),
    "plugged in while it ran": ((8, 2, big(memory_bytes=6 * GIB)), "pass", "6 by running guests"),
    "none in use, guests unread": ((8, 8, BARE), "pass", "0 of 8"),
    "in use, guests unread": ((8, 4, BARE), "unknown", "4 of 8 in use"),
    "in use, its state unknown": ((8, 4, big(state=None)), "unknown", "4 of 8 in use"),
    "free not told": ((8, None, big()), "unknown", "is unknown"),
    "none told": ((None, None, big()), "unknown", "is unknown"),
    "none reserved": ((0, 0), "skip", "no huge pages"),
    "a guest that starts has none yet": ((0, 0, big(starting=True)), "skip", "no huge pages"),
}


@pytest.mark.parametrize(("case", "expected", "words"), PAGES.values(), ids=PAGES.keys())
def test_leftover_pages(case: tuple[Any, ...], expected: str, words: str) -> None:
    found, actual = pages(*case)
    assert found == expected
    assert words in actual


def test_pages_where_guests_are_unknown_and_where_there_can_be_none() -> None:
    assert pages(8, 4, known=None)[0] == "unknown"
    assert pages(8, 8, known=None)[0] == "pass"
    assert pages(8, 4, known=None, virtualization=Virtualization())[0] == "warn"


def test_pages_of_size_nothing_are_none() -> None:
    assert pages(8, 4, big(page=1), size=0)[0] == "skip"


def test_pins_have_nothing_to_do_with_it() -> None:
    floats = RunningGuest(name="f", state="running", vcpu_pins=(VcpuPin(vcpu=0, cpus="0-7"),), memory=())
    assert pages(8, 8, floats)[0] == "pass"


def test_a_document_without_facts_passes_nothing() -> None:
    bare = Host(gpus=(), pci=(PciDevice(address=PHYSICAL, sriov_vfs=2, driver="vfio-pci"),))
    found = Evidence(host=bare)
    assert [outcome(check, found)[0] for check in ("leftover-mdevs", "leftover-pages")] == ["unknown", "unknown"]
    assert vfs(found)[0] == "unknown"


# --- devices between two tenants -----------------------------------------------------------------------------


def between(state: HandoverState | None, *problems: Problem) -> Evidence:
    return evidence(msgspec.structs.replace(host(), handover=state, problems=problems))


def test_a_quarantined_device_is_a_warning_and_an_unread_register_unknown() -> None:
    record = DeviceRecord(address=GPU, identity=GPU, state="quarantined", since="2026-01-01", why="hand-over 7")
    of = between(HandoverState(devices=(record,)))
    assert outcome("device-quarantined", of, GPU) == ("warn", "quarantined since 2026-01-01: hand-over 7")
    for state in ("clean", "released"):
        known = HandoverState(devices=(msgspec.structs.replace(record, state=state),))
        assert outcome("device-quarantined", between(known)) == ("skip", "no device is quarantined here")
    assert outcome("device-quarantined", between(HandoverState())) == ("skip", "no device is quarantined here")
    assert outcome("device-quarantined", between(None))[0] == "skip"
    for where in ("/var/lib/hosttune/handover/register.json", "/.hosttune/commands/handover-register"):
        lost = Problem(what="unreadable", where=where, why="EIO")
        assert outcome("device-quarantined", between(None, lost)) == ("unknown", "unreadable: EIO")
