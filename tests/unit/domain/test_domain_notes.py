"""The reasons beside pins, memory, threads and devices: one line each, and only what the plan shows."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from domain_shapes import NO_GPU, ODD, ONE_GPU, SHAPES, TWO_CELLS, changed, device, plan_of

from hosttune.domain.writer import domain_xml
from hosttune.model.plan import Action, Plan, PlannedGuest, PlannedPin


def comments(plan: Plan) -> dict[str, str]:
    """The comment of each element that follows one, by that element's tag and first attribute."""
    (guest,) = plan.guests
    pairs = re.findall(r"<!-- (.*) -->\n +<(.*?)[/>]", domain_xml(plan, guest.name, annotate=True))
    return {" ".join(element.split()[:2]): note for note, element in pairs}


def of(guest: PlannedGuest, **changes: object) -> dict[str, str]:
    return comments(plan_of(changed(guest, **changes)))


def hostdev(guest: PlannedGuest, plan: Plan | None = None) -> str:
    return comments(plan or plan_of(guest))["hostdev mode='subsystem'"]


def binding(address: str) -> Action:
    return Action(
        id=f"driver:{address}",
        kind="driver",
        target=address,
        current="nvidia",
        want="vfio-pci",
        effect="now",
        needed=True,
        reversible=True,
        why="",
    )


@pytest.mark.parametrize("guest", SHAPES.values(), ids=SHAPES.keys())
def test_every_pin_memory_node_and_device_has_its_reason(guest: PlannedGuest) -> None:
    lines = domain_xml(plan_of(guest), guest.name, annotate=True).splitlines()
    for before, line in pairwise(lines):
        if re.match(r" +<(vcpupin|emulatorpin|iothreadpin|memnode|hostdev) ", line):
            assert re.fullmatch(r" +<!-- .+ -->", before), line


def test_a_pin_says_why_this_node_and_which_thread() -> None:
    notes = of(TWO_CELLS)
    assert notes["vcpupin vcpu='0'"] == (
        "vCPU 0: host CPU 2 on node 0, beside its GPU 0000:41:00.0; "
        "thread 0 of guest core 0 (its sibling is vCPU 1 on CPU 3)"
    )
    assert notes["vcpupin vcpu='15'"] == (
        "vCPU 15: host CPU 521 on node 1, beside its GPU 0000:c1:00.0; "
        "thread 1 of guest core 7 (its sibling is vCPU 14 on CPU 520)"
    )


def test_without_devices_a_pin_is_where_the_memory_is() -> None:
    assert "host CPU 2 on node 0, which holds the 64 GiB of cell 0; thread 0" in of(NO_GPU)["vcpupin vcpu='0'"]
    assert of(TWO_CELLS, devices=())["vcpupin vcpu='8'"].startswith(
        "vCPU 8: host CPU 514 on node 1, which holds the 64 GiB of cell 1 (the guest is split over 2 nodes); thread 0"
    )


def test_a_pin_claims_no_device_that_is_elsewhere_or_nowhere_known() -> None:
    far = changed(ONE_GPU.devices[0], host_node=1, guest_cell=None)
    unknown = changed(ONE_GPU.devices[0], host_node=None)
    for elsewhere in (far, unknown):
        assert "beside" not in of(ONE_GPU, devices=(elsewhere,))["vcpupin vcpu='0'"]
    cells = tuple(changed(cell, host_nodes="") for cell in ONE_GPU.cells)
    assert "of cell 0, whose host node is unknown;" in of(ONE_GPU, cells=cells)["vcpupin vcpu='0'"]


def test_many_devices_stay_one_line() -> None:
    nics = tuple(device(f"0000:{bus:02x}:00.0", "nic", bus, 0) for bus in range(1, 7))
    told = of(ONE_GPU, devices=nics)["vcpupin vcpu='0'"]
    assert "beside its NICs 0000:01:00.0, 0000:02:00.0, 0000:03:00.0, 0000:04:00.0 and 2 more;" in told


def test_threads_as_the_guest_is_told() -> None:
    assert of(ODD)["vcpupin vcpu='3'"].endswith("; the only thread of guest core 3")
    assert of(ONE_GPU, topology=None)["vcpupin vcpu='3'"].endswith("beside its GPU 0000:41:00.0")


def test_service_threads_say_whose_cpus_they_use() -> None:
    kept = comments(changed(plan_of(ONE_GPU), housekeeping_cpus="0-1,512"))
    off = "off every vCPU of the guest, so as to interrupt none"
    assert kept["emulatorpin cpuset='0-1'"] == f"QEMU's own threads on housekeeping CPUs 0-1, {off}"
    assert kept["iothreadpin iothread='1'"] == (f"I/O thread 1, which serves the disk, on housekeeping CPUs 0-1, {off}")
    bare = of(ONE_GPU, disk=None, iothread_cpus=("5",))
    assert bare["emulatorpin cpuset='0-1'"].startswith("QEMU's own threads on CPUs 0-1, off")
    assert bare["iothreadpin iothread='1'"] == (
        "I/O thread 1, which serves no disk so far, on CPU 5, shared with vCPU 3: no other CPU is left"
    )


def test_memory_says_why_its_node() -> None:
    assert of(TWO_CELLS)["memnode cellid='1'"] == (
        "cell 1: 64 GiB from node 1 and no other (strict): its vCPUs 8-15 run there, and its GPU 0000:c1:00.0 is there"
    )
    assert of(NO_GPU)["memnode cellid='0'"].endswith("its vCPUs 0-15 run there")


def test_a_device_says_who_binds_its_driver() -> None:
    gpu = ONE_GPU.devices[0]
    vf, managed = changed(gpu, kind="vf"), changed(gpu, managed=True)
    bound = changed(plan_of(ONE_GPU), actions=(binding(gpu.address),))
    assert hostdev(ONE_GPU, bound) == (
        "GPU 0000:41:00.0 (GH100 [H200 SXM 141GB]): on node 0, as the vCPUs and memory of guest cell 0; "
        "bound to vfio-pci by the plan's own action"
    )
    assert hostdev(ONE_GPU).endswith("; the plan has no driver to change: on vfio-pci already")
    assert hostdev(changed(ONE_GPU, devices=(vf,))).endswith("; keeps the driver that it has")
    assert hostdev(changed(ONE_GPU, devices=(managed,))).endswith("at the guest's start, and back at its end")
    mediated = device("53764d0e-85a0-42b4-af5c-2046b460b1dc", "mdev", 1)
    assert hostdev(changed(ONE_GPU, devices=(mediated,))).endswith("; its parent device keeps its driver")


@pytest.mark.parametrize(
    ("host_node", "cell", "told"),
    [
        (1, None, "on node 1, where the guest has no cell"),
        (None, None, "host node unknown, so of no guest cell"),
        (1, 0, "on node 1, given to guest cell 0 of node 0"),
        (None, 0, "host node unknown, given to guest cell 0 of node 0"),
    ],
)
def test_a_device_elsewhere_says_so(host_node: int | None, cell: int | None, told: str) -> None:
    away = changed(ONE_GPU.devices[0], host_node=host_node, guest_cell=cell)
    assert f": {told}; " in hostdev(changed(ONE_GPU, devices=(away,)))


def test_a_plan_without_a_pin_for_a_sibling_names_none() -> None:
    pins = (PlannedPin(vcpu=0, cpus="2"),)
    assert of(ONE_GPU, vcpu_pins=pins)["vcpupin vcpu='0'"].endswith("; thread 0 of guest core 0")
