"""What chosen slots become: functions and mediated devices with their types, actions and steps in order, the XML."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from domain_faults import criticise
from domain_shapes import plan_of
from mighosts import A, B, field_of, functions_of, gpu_row, guest_of, mig_host, parts_of, pci_row, planned, vgpu_row
from xmledits import edited

from hosttune.domain.reader import read_domain
from hosttune.domain.writer import domain_xml
from hosttune.errors import BadInput
from hosttune.gpu.mig_tables import offer_of, resolve, vgpu_suffix, vgpu_type_name
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.gpu import Gpu, Mig, MigProfile
from hosttune.model.host import PciDevice
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, PlannedGuest
from hosttune.planning import plan
from hosttune.planning.mig.guest import (
    MigParts,
    inside_refusal,
    mig_inside,
    takes_inside,
)
from hosttune.planning.mig.instances import counts_inside
from hosttune.planning.mig.packing import atoms_of, most
from hosttune.planning.mig.types import mig_actions, with_type_steps

VFS = functions_of(A)


def texts(parts: MigParts, when: str = "start") -> list[str]:
    return [step.text.partition(": ")[0] for step in parts.steps if step.when == when]


def wanted_settings(field: PlanningContext, *guests: PlannedGuest) -> tuple[list[Action], list[str]]:
    """(actions, steps before the starts without their reasons) of these guests as a whole plan."""
    settled = with_type_steps(field.host, field.catalogue, guests)
    steps = [step.text.partition(": ")[0] for guest in settled for step in guest.steps if step.when == "start"]
    return list(mig_actions(field.host, field.catalogue, settled)), steps


def prepared(*starts: int) -> list[tuple[str, str, Any, Any, bool]]:
    """What comes before the vGPUs of instances that are there on one GPU: it is in force from now on."""
    instances = [("mig-instance", f"{A} 1g.18gb:{start}", True, True, True) for start in starts]
    mode = ("gpu-mig-mode", A, "enabled", "enabled", True)
    return [mode, ("vgpu-functions", A, True, True, True), *instances]


def rows(actions: list[Action]) -> list[tuple[str, str, Any, Any, bool]]:
    return [(action.kind, action.target, action.current, action.want, action.needed) for action in actions]


def typed(function: str, name: str) -> str:
    folder = f"/sys/bus/pci/devices/{function}/nvidia"
    return f"write the number of {name} in {folder}/creatable_vgpu_types to {folder}/current_vgpu_type"


def _there(host: dict[str, Any], *starts: int) -> None:
    rows = [{"profile": "1g.18gb", "id": 7 + start, "start": start, "size": 1} for start in starts]
    gpu_row(host, A)["mig"]["instances"] = rows


def _mediated(host: dict[str, Any]) -> None:
    row = vgpu_row(host, A)
    types = [{"id": "nvidia-474", "name": "NVIDIA A100X-1-5C"}, {"id": "nvidia-501", "name": "NVIDIA H200X-1-18C"}]
    row.update(framework="mdev", types=types)
    for function in row["functions"]:
        function["current_type"] = None


# --- virtual functions -------------------------------------------------------------------------------------------


def test_a_slot_is_a_virtual_function_with_the_right_type() -> None:
    parts = parts_of(field_of(mig_host(A)), guest_of(count=2))
    assert [(device.kind, device.address, device.name, device.type_id) for device in parts.devices] == [
        ("vf", VFS[0], "NVIDIA H200X-1-18C", "1414"),
        ("vf", VFS[1], "NVIDIA H200X-1-18C", "1414"),
    ]
    assert [(one.gpu, one.profile, one.start) for one in parts.mig] == [(A, "1g.18gb", 4), (A, "1g.18gb", 5)]
    assert all(device.host_node == 0 and device.gpu == A for device in parts.devices)


def test_functions_of_others_are_not_taken() -> None:
    host = mig_host(A)
    vgpu_row(host, A)["functions"][0]["current_type"] = "1414"
    host["guests"] = [{"name": "old", "state": "shut off", "devices": [VFS[1]]}]
    assert [device.address for device in parts_of(field_of(host), guest_of(), VFS[2]).devices] == [VFS[3]]


def test_the_type_of_a_function_whose_instance_is_there_is_an_action() -> None:
    host = mig_host(A)
    _there(host, 3)
    field = field_of(host)
    actions, steps = wanted_settings(field, planned(parts_of(field, guest_of())))
    assert rows(actions) == [*prepared(3), ("vgpu-type", VFS[0], "0", "1414", True)]
    assert steps == []


@pytest.mark.parametrize("mode", ["enabled", "disabled"])
def test_mode_instances_functions_and_types_are_set_in_that_order(mode: str) -> None:
    field = field_of(mig_host(A, mode=mode))
    guest = planned(parts_of(field, guest_of(count=2)))
    actions, steps = wanted_settings(field, guest)
    places = [f"{A} 1g.18gb:{slot.start}" for slot in guest.mig]
    assert rows(actions) == [
        ("gpu-mig-mode", A, mode, "enabled", True),
        ("vgpu-functions", A, True, True, True),
        *(("mig-instance", place, False, True, True) for place in places),
        *(("vgpu-type", name, "0", "1414", True) for name in VFS[:2]),
    ]
    assert steps == []


def test_every_instance_is_made_before_the_first_type_is_written() -> None:
    host = mig_host(A)
    _there(host, 3)
    field = field_of(host)
    actions, _ = wanted_settings(field, planned(parts_of(field, guest_of(count=2))))
    kinds = [action.kind for action in actions]
    assert kinds == ["gpu-mig-mode", "vgpu-functions", "mig-instance", "mig-instance", "vgpu-type", "vgpu-type"]
    assert [action.current for action in actions if action.kind == "mig-instance"] == [False, True]


def test_with_other_unused_instances_of_the_profile_the_type_is_a_step() -> None:
    host = mig_host(A)
    _there(host, 1, 3)
    field = field_of(host)
    guest = planned(parts_of(field, guest_of()))
    actions, steps = wanted_settings(field, guest)
    assert "vgpu-type" not in {action.kind for action in actions}
    assert steps == [typed(VFS[0], "NVIDIA H200X-1-18C")]
    (settled,) = with_type_steps(field.host, field.catalogue, (guest,))
    other = {1: 3, 3: 1}[guest.mig[0].start]
    assert f"there are others of 1g.18gb (at {other}): look which it took" in settled.steps[0].text
    assert [step.when for step in settled.steps] == ["start"]


def test_when_the_plan_takes_every_unused_instance_the_types_are_actions() -> None:
    host = mig_host(A)
    _there(host, 1, 3)
    field = field_of(host)
    actions, steps = wanted_settings(field, planned(parts_of(field, guest_of(count=2))))
    assert ([action.target for action in actions if action.kind == "vgpu-type"], steps) == (VFS[:2], [])


def test_an_instance_of_which_nobody_knows_whether_it_is_used_makes_a_step() -> None:
    host = mig_host(A)
    _there(host, 3)
    gpu_row(host, A)["source"] = "nvidia-smi"
    field = field_of(host)
    (settled,) = with_type_steps(field.host, field.catalogue, (planned(parts_of(field, guest_of())),))
    assert "there are others of 1g.18gb (at 3): look which it took, then apply this plan" in settled.steps[0].text


def test_a_type_that_is_not_listed_yet_is_a_step() -> None:
    host = mig_host(A)
    vgpu_row(host, A)["types"] = []
    field = field_of(host)
    parts = parts_of(field, guest_of("3g.71gb"))
    assert parts.devices[0].name == "NVIDIA H200X-3-71C"
    assert parts.devices[0].type_id is None
    actions, steps = wanted_settings(field, planned(parts))
    assert "vgpu-type" not in {action.kind for action in actions}
    assert steps == [typed(VFS[0], "NVIDIA H200X-3-71C")]


def test_a_mode_that_is_to_be_switched_wants_the_gpus_name() -> None:
    parts = parts_of(field_of(mig_host(A, mode="disabled")), guest_of(count=2))
    assert parts.steps == ()
    assert any("--disrupt" in finding.text for finding in parts.findings)


def test_guests_on_two_gpus_have_instances_on_both() -> None:
    field = field_of(mig_host(A, B))
    guest = planned(parts_of(field, guest_of("4g.71gb", 2)))
    actions, _ = wanted_settings(field, guest)
    assert [action.target for action in actions if action.kind == "mig-instance"] == [
        f"{A} 4g.71gb:0",
        f"{B} 4g.71gb:0",
    ]


# --- mediated devices --------------------------------------------------------------------------------------------


def test_a_slot_is_a_mediated_device_where_the_host_has_those() -> None:
    host = mig_host(A)
    _mediated(host)
    parts = parts_of(field_of(host), guest_of())
    (device,) = parts.devices
    assert (device.kind, device.function, device.type_id) == ("mdev", VFS[0], "nvidia-501")
    assert uuid.UUID(device.address).version == 5
    assert device.address == parts_of(field_of(host), guest_of()).devices[0].address
    actions, steps = wanted_settings(field_of(host), planned(parts))
    assert rows(actions)[-1] == ("vgpu-mdev", f"{device.address} {VFS[0]}", None, "nvidia-501", True)
    assert steps == []


def test_a_mediated_device_whose_type_nobody_lists_is_a_step() -> None:
    host = mig_host(A)
    _mediated(host)
    vgpu_row(host, A)["types"] = []
    parts = parts_of(field_of(host), guest_of())
    actions, (step,) = wanted_settings(field_of(host), planned(parts))
    assert step == f"echo {parts.devices[0].address} > /sys/bus/pci/devices/{VFS[0]}/mdev_supported_types/TYPE/create"
    assert "vgpu-mdev" not in {action.kind for action in actions}


def test_of_a_mediated_device_that_is_yet_to_be_made_no_group_is_asked() -> None:
    host = mig_host(A)
    _mediated(host)
    decided = plan(field_of(host).host, Intent(version=1, guests=(guest_of(vcpus=2, memory="8GiB"),)))
    assert [device.kind for device in decided.guests[0].devices] == ["mdev"]
    assert not [one.text for one in decided.findings if "IOMMU group" in one.text]


@pytest.mark.parametrize("mediated", [False, True])
def test_the_function_of_a_vgpu_stays_on_its_makers_driver(mediated: bool) -> None:
    host = mig_host(A)
    if mediated:
        _mediated(host)
    decided = plan(field_of(host).host, Intent(version=1, guests=(guest_of(vcpus=2, memory="8GiB"),)))
    (line,) = [line for line in decided.guests[0].why if line.startswith("managed='no'")]
    assert "stays on its maker's driver" in line


# --- XML ---------------------------------------------------------------------------------------------------------


def test_the_xml_of_a_function_leaves_it_with_its_driver() -> None:
    guest = planned(parts_of(field_of(mig_host(A)), guest_of(count=2)))
    facts = read_domain(domain_xml(plan_of(guest), "g"))
    assert [(device.kind, device.source, device.managed) for device in facts.hostdevs] == [
        ("pci", VFS[0], False),
        ("pci", VFS[1], False),
    ]


def test_the_xml_of_a_mediated_device_names_its_uuid() -> None:
    host = mig_host(A)
    _mediated(host)
    guest = planned(parts_of(field_of(host), guest_of()))
    (device,) = read_domain(domain_xml(plan_of(guest), "g")).hostdevs
    assert (device.kind, device.source, device.model, device.managed) == (
        "mdev", guest.devices[0].address, "vfio-pci", False,
    )  # fmt: skip


def test_an_existing_xml_that_rebinds_a_vgpu_is_criticised() -> None:
    field = field_of(mig_host(A))
    xml = domain_xml(plan_of(planned(parts_of(field, guest_of()))), "g")
    assert not [one for one in criticise(field.host, xml, where="x") if "managed" in one.text]
    rebound = edited(xml, "devices/hostdev", {"managed": "yes"})
    (finding,) = [one for one in criticise(field.host, rebound, where="x") if "managed" in one.text]
    assert finding.level == "error"
    assert "rebinds it to vfio-pci, which breaks it" in finding.text


# --- inside a guest ----------------------------------------------------------------------------------------------


def test_instances_inside_are_the_same_on_each_whole_gpu() -> None:
    host = mig_host(A, B)
    pci_row(host, A)["driver"] = "vfio-pci"
    gpu_row(host, A)["mig"] = None
    field = field_of(host)
    guest = guest_of("3g.71gb", 2, gpus=2)
    assigned, findings = mig_inside(field, guest, (A, B))
    assert [(one.gpu, one.start) for one in assigned] == [(A, 0), (A, 4), (B, 0), (B, 4)]
    assert any("by table" in finding.text and A in finding.text for finding in findings)
    assert not any("by table" in finding.text and B in finding.text for finding in findings)
    assert counts_inside(guest)
    assert not counts_inside(guest_of())


def test_what_a_whole_gpu_does_not_take_is_said() -> None:
    field = field_of(mig_host(A))
    assert takes_inside(field, guest_of(count=7, gpus=1), A)
    assert not takes_inside(field, guest_of(count=8, gpus=1), A)
    assert inside_refusal(field, guest_of(count=8, gpus=1), A) == f"8 x 1g.18gb wanted on each GPU, {A} takes 7"
    assert "1g.18gb, 1g.18gb+me" in inside_refusal(field, guest_of("1g.20gb", gpus=1), A)


# --- tables ------------------------------------------------------------------------------------------------------


def _device(device_id: str) -> PciDevice:
    return PciDevice(address=A, vendor_id="10de", device_id=device_id)


@pytest.mark.parametrize(
    ("device_id", "profile", "name"),
    [
        ("2335", "1g.18gb", "NVIDIA H200X-1-18C"),
        ("2335", "1g.18gb+me", "NVIDIA H200X-1-18CME"),
        ("2335", "7g.141gb", "NVIDIA H200X-7-141C"),
        ("233b", "2g.35gb", "NVIDIA H200-2-35C"),
        ("2330", "1g.10gb", "NVIDIA H100XM-1-10C"),
        ("2901", "1g.23gb", None),
        ("2335", "1g.24gb+gfx", None),
        ("20b7", "2g.12gb+me", "NVIDIA A30-2-12CME"),
        ("20b2", "1g.10gb", "GRID A100DX-1-10C"),
        ("232c", "3g.71gb", "NVIDIA H20X-3-71C"),
        ("2348", "7g.144gb", "NVIDIA GH200L-7-144C"),
        ("2941", "1g.24gb+me", "NVIDIA GB200-1-24CME"),
    ],
)
def test_type_names(device_id: str, profile: str, name: str | None) -> None:
    assert vgpu_type_name(_device(device_id), profile) == name


@pytest.mark.parametrize(
    ("device_id", "profile", "starts"),
    [
        ("20b7", "2g.12gb", (0, 2)),
        ("2bb5", "1g.24gb-me", (0, 3, 6, 9)),
        ("2bb5", "4g.96gb+gfx", (0,)),
        ("3182", "1g.67gb", (0, 2, 4, 6)),
        ("31c2", "1g.35gb", None),  # GB300: its names change with the driver
    ],
)
def test_products_of_the_table(device_id: str, profile: str, starts: tuple[int, ...] | None) -> None:
    known = offer_of(Gpu(address=A), _device(device_id)).find(profile)
    assert (known and known.starts) == starts


def test_a_listing_of_twelve_slices_is_believed() -> None:
    """As an RTX PRO 6000 lists them."""
    listed = tuple(
        MigProfile(name=name, starts=starts, size=size)
        for name, starts, size in (("1g.24gb", (0, 3, 6, 9), 3), ("2g.48gb", (0, 6), 6), ("4g.96gb", (0,), 12))
    )
    assert offer_of(Gpu(address=A, mig=Mig(profiles=listed)), None).profiles == listed
    assert [most(profile, atoms_of(listed[0], 3)) for profile in listed] == [3, 1, 0]


def test_the_device_comes_before_the_table() -> None:
    listed = MigProfile(name="1g.18gb", starts=(0, 1), size=1)
    gpu = Gpu(address=A, mig=Mig(profiles=(listed,)))
    assert offer_of(gpu, _device("2335")).profiles == (listed,)
    assert offer_of(gpu, _device("2335")).doubt is None


def test_placements_that_a_listing_lacks_come_from_the_table_and_that_is_said() -> None:
    gpu = Gpu(address=A, mig=Mig(profiles=(MigProfile(name="3g.71gb", id=9), MigProfile(name="9g.1gb"))))
    offer = offer_of(gpu, _device("2335"))
    assert [(one.name, one.starts, one.size) for one in offer.profiles] == [("3g.71gb", (0, 4), 4)]
    assert "its listing lacks it" in (offer.doubt or "")


@pytest.mark.parametrize(
    "profile",
    [
        MigProfile(name="1g.18gb", starts=(0, 12), size=1),
        MigProfile(name="1g.18gb", starts=(0,), size=1 << 60),
        MigProfile(name="1g.18gb", starts=(-1,), size=1),
        MigProfile(name="$(reboot)", starts=(0,), size=1),
        MigProfile(name="1c.2g.35gb", starts=(0,), size=1),
    ],
)
def test_a_listing_that_no_gpu_can_have_is_not_believed(profile: MigProfile) -> None:
    assert offer_of(Gpu(address=A, mig=Mig(profiles=(profile,))), None).profiles == ()


def test_a_document_with_strange_vgpus_is_refused() -> None:
    host = mig_host(A)
    vgpu_row(host, A)["types"] = [{"id": "1; reboot", "name": "NVIDIA H200X-1-18C"}]
    with pytest.raises(BadInput) as caught:
        field_of(host)
    assert caught.value.where == "host document: $.vgpu.gpus[0].types[0].id"
    host = mig_host(A)
    vgpu_row(host, A)["functions"][0]["address"] = "0000:41:00.4; reboot"
    with pytest.raises(BadInput, match="is not a PCI address"):
        field_of(host)


def test_a_document_with_a_vgpu_twice_is_refused() -> None:
    places = []
    for change in (_gpu_twice, _function_twice, _type_twice):
        host = mig_host(A, B)
        change(host)
        with pytest.raises(BadInput, match="is there twice, first in") as caught:
            field_of(host)
        places.append(caught.value.where)
    assert places == [
        "host document: $.vgpu.gpus[1].address",
        "host document: $.vgpu.gpus[1].functions[2].address",
        "host document: $.vgpu.gpus[0].types[1].id",
    ]


def _gpu_twice(host: dict[str, Any]) -> None:
    vgpu_row(host, B)["address"] = A


def _function_twice(host: dict[str, Any]) -> None:
    vgpu_row(host, B)["functions"][2]["address"] = VFS[0]


def _type_twice(host: dict[str, Any]) -> None:
    vgpu_row(host, A)["types"][1]["id"] = vgpu_row(host, A)["types"][0]["id"]


def test_a_product_that_no_source_tells_has_none() -> None:
    assert offer_of(Gpu(address=A), _device("26b9")).profiles == ()
    assert offer_of(Gpu(address=A), None).profiles == ()
    assert resolve(Gpu(address=A), _device("2901"), "3g.90gb", "x").starts == (0, 4)
    assert resolve(Gpu(address=A), _device("2901"), "3g.90gb", "x").id is None
    assert vgpu_suffix("1c.3g.71gb") is None
