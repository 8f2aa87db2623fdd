"""The text of a plan: golden texts of plans built here, and what must never be missing from them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from msgspec import structs
from rich.console import Console

from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, Link, PciDevice
from hosttune.model.intent import Intent
from hosttune.model.plan import (
    Action,
    Cell,
    Device,
    MigAssignment,
    Plan,
    PlanFinding,
    PlannedGuest,
    PlannedPin,
    Topology,
    Unplaced,
)
from hosttune.report.draw.text import draw
from hosttune.report.plan import pin_runs, plan_report, verdict

GOLDEN = Path(__file__).parents[2] / "golden" / "report"
GIB = 1 << 30
INTENT = Intent(version=1)


def printed(plan: Plan, width: int = 100) -> str:
    out = io.StringIO()
    draw(plan_report(plan, host()), Console(file=out, width=width, force_terminal=False, color_system=None))
    return out.getvalue()


def agrees(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / name
    if request.config.getoption("--regenerate"):
        path.write_text(text)
    assert text == path.read_text()


def host() -> Host:
    link = Link(speed_gts=16.0, width=16, max_speed_gts=32.0, max_width=16, state="degraded")
    return Host(
        pci=(PciDevice(address="0000:41:00.0", link=link),),
        gpus=(Gpu(address="0000:41:00.0", vendor="nvidia", model="NVIDIA H200"),),
    )


def action(target: str, **changes: object) -> Action:
    fields: dict[str, object] = {
        "id": f"driver:{target}",
        "kind": "driver",
        "target": target,
        "current": "nvidia",
        "want": "vfio-pci",
        "effect": "now",
        "needed": True,
        "reversible": True,
        "why": f"guest g gets {target}",
    }
    return Action(**(fields | changes))  # type: ignore[arg-type]


def placed() -> PlannedGuest:
    """Two cells, the first with siblings in one run, the second in two; one device without a cell."""
    host_cpus = [4, 100, 5, 101, 6, 102, 48, 144, 50, 146, 51, 147]
    return PlannedGuest(
        name="g",
        vcpu_pins=tuple(PlannedPin(vcpu=n, cpus=str(cpu)) for n, cpu in enumerate(host_cpus)),
        emulator_cpus="0,96",
        iothread_cpus=("0,96",),
        cells=(
            Cell(id=0, vcpus="0-5", memory_bytes=64 * GIB, host_nodes="0", distances=(10, 21)),
            Cell(id=1, vcpus="6-11", memory_bytes=64 * GIB, host_nodes="1", distances=(21, 10)),
        ),
        page_bytes=GIB,
        devices=(
            Device(
                address="0000:41:00.0",
                kind="gpu",
                guest_cell=0,
                guest_address="0000:03:00.0",
                identity="10de:2335",
                host_node=0,
            ),
            Device(
                address="0000:c1:00.0",
                kind="nvme",
                guest_cell=None,
                guest_address="0000:04:00.0",
                identity="144d:a80a",
                managed=True,
                name="Disk",
            ),
        ),
        mig=(MigAssignment(gpu="0000:41:00.0", profile="1g.18gb", start=0),),
        fabric_partition=0,
        why=("cell 0 on node 0: distance 10 to 0000:41:00.0 (/sys/devices/system/node/node0/distance)",),
        topology=Topology(sockets=2, dies=1, cores=3, threads=2),
        mmio64_bytes=512 * GIB,
        ovmf_window_mib=524288,
    )


def full_plan() -> Plan:
    return Plan(
        hostname="h",
        intent=INTENT,
        housekeeping_cpus="0,48,96,144",
        guests=(placed(),),
        unplaced=(Unplaced(guest="big", why=("9 GPUs wanted, 8 on this host",), relaxation=("ask for 8 GPUs",)),),
        actions=(
            action("0000:41:00.0"),
            action("0000:c1:00.0"),
            action("hugepages", kind="pages", current=0, want=128, why="none are free"),
            action("ecc", kind="ecc", current=None, want=True, needed=False, reversible=False, why="named in settings"),
            action("iommu", kind="kernel-argument", current="", want="iommu=pt", effect="reboot", why="no groups"),
        ),
        findings=(
            PlanFinding(level="info", text="pages need unbroken memory", where="node 0"),
            PlanFinding(level="info", text="pages need unbroken memory", where="node 1"),
            PlanFinding(level="error", text="no IOMMU groups", where="/sys/kernel/iommu_groups"),
            PlanFinding(level="warn", text="a device is busy", where="0000:41:00.0"),
        ),
    )


def test_an_instance_is_inside_the_guest_that_has_its_whole_gpu() -> None:
    row = "MIG               1g.18gb on 0000:41:00.0, memory slice 0"
    guest = placed()
    function = structs.replace(guest.devices[0], address="0000:41:00.4", kind="vf")
    carried = structs.replace(guest, devices=(function,))
    lines = [line.strip() for line in printed(structs.replace(full_plan(), guests=(guest,))).splitlines()]
    assert f"{row}, inside the guest" in lines
    lines = [line.strip() for line in printed(structs.replace(full_plan(), guests=(carried,))).splitlines()]
    assert row in lines


def test_a_plan_with_everything(request: pytest.FixtureRequest) -> None:
    agrees("plan.txt", printed(full_plan()), request)


def test_an_empty_plan(request: pytest.FixtureRequest) -> None:
    agrees("plan-empty.txt", printed(Plan(intent=INTENT)), request)


def test_no_line_is_wider_than_the_console_nor_ends_in_blanks() -> None:
    for width in (80, 100, 140):
        lines = printed(full_plan(), width).splitlines()
        assert max(map(len, lines)) <= width
        assert [line for line in lines if line != line.rstrip()] == []


def test_the_verdict_counts_what_matters() -> None:
    assert verdict(full_plan()) == (
        "plan for h: 1 guest placed, 1 NOT placed, 5 actions (4 needed, 1 with a reboot), 1 error, 1 warning"
    )


def test_errors_come_before_warnings_before_information() -> None:
    text = printed(full_plan())
    places = [text.index(f"\n  {level}") for level in ("✗ error", "! warn", "– info")]
    assert places == sorted(places)


def test_a_finding_said_of_two_places_is_one_line_with_both() -> None:
    assert "pages need unbroken memory (node 0, node 1)" in printed(full_plan())


def test_actions_that_differ_in_their_target_share_a_line_and_name_each_target() -> None:
    text = " ".join(printed(full_plan()).split())
    assert "driver of 2 targets, each: nvidia -> vfio-pci 0000:41:00.0, 0000:c1:00.0 guest g" in text


def test_values_are_told_apart_from_unknown_and_empty() -> None:
    text = printed(full_plan())
    assert "pages hugepages: 0 -> 128" in text
    assert "ecc ecc: unknown -> on (cannot be undone)" in text
    assert 'kernel-argument iommu: "" -> iommu=pt' in text


def test_a_setting_of_several_parts_names_them() -> None:
    queue = {"scheduler": "none", "nr_requests": 1023}
    wanted = action("0000:c1:00.0 n1", kind="nvme-queue", current=None, want=queue)
    text = printed(Plan(intent=INTENT, actions=(wanted,)))
    assert "nvme-queue 0000:c1:00.0 n1: unknown -> scheduler: none, nr_requests: 1023" in text


def test_a_device_on_an_unknown_node_says_so() -> None:
    assert "node unknown -> no cell" in printed(full_plan())


def test_every_pin_is_in_the_text() -> None:
    text = printed(full_plan())
    assert "vCPUs 0-5       host CPUs 4-6 with siblings 100-102" in text
    assert "vCPUs 6-7       host CPUs 48 with siblings 144" in text
    assert "vCPUs 8-11      host CPUs 50-51 with siblings 146-147" in text


def many_pins(vcpus: int, threads: int) -> Plan:
    """Return a plan of a guest on every second core of a host whose siblings are 112 apart."""
    pins = [2 + vcpu // 2 * 2 + vcpu % 2 * 112 for vcpu in range(vcpus)]
    guest = PlannedGuest(
        name="g",
        vcpu_pins=tuple(PlannedPin(vcpu=vcpu, cpus=str(cpu)) for vcpu, cpu in enumerate(pins)),
        topology=Topology(sockets=1, dies=1, cores=vcpus // threads, threads=threads),
        cells=(Cell(id=0, vcpus=f"0-{vcpus - 1}", memory_bytes=GIB, host_nodes="0"),),
        emulator_cpus="0",
        page_bytes=GIB,
    )
    cpus = ",".join(map(str, sorted(pins)))
    return Plan(
        intent=INTENT,
        guests=(guest,),
        actions=(action("irqbalance", kind="irqbalance-ban", current=None, want=cpus),),
    )


def test_many_pins_show_which_cpus_are_siblings() -> None:
    assert "vCPUs 0-53      host CPUs 2,4..54 with siblings 114,116..166\n" in printed(many_pins(54, 2))
    assert "vCPUs 0-52      host CPUs 2,4..54,114,116..164\n" in printed(many_pins(53, 1))


def test_a_list_of_cpus_in_an_action_is_short() -> None:
    text = printed(many_pins(54, 2))
    assert "irqbalance-ban irqbalance: unknown -> 2,4..54,114,116..166\n" in text


@pytest.mark.parametrize(
    ("pins", "threads", "runs"),
    [
        ([], 1, []),
        ([(0, 4), (1, 5), (2, 9)], 1, [("0-1", "4-5"), ("2", "9")]),
        ([(0, 4), (1, 100), (2, 5), (3, 101)], 2, [("0-3", "4-5 with siblings 100-101")]),
        ([(0, 4), (1, 100), (2, 5)], 2, [("0-1", "4 with siblings 100"), ("2", "5")]),
        ([(0, 0), (1, 2), (2, 4)], 1, [("0", "0"), ("1", "2"), ("2", "4")]),
    ],
)
def test_pins_form_runs_of_neighbouring_cores(
    pins: list[tuple[int, int]], threads: int, runs: list[tuple[str, str]]
) -> None:
    assert pin_runs(pins, threads) == runs
