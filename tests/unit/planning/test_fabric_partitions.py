"""GPUs of an NVSwitch fabric: a guest gets exactly one partition, or it is said why that is not known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fabrichosts import (
    AT,
    B200,
    GPUS,
    H200,
    MODULES,
    SWITCHES,
    board,
    decide,
    gpus_of,
    shared,
    told,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_optimum import objective
from planhosts import Card, Held, build_host

from hosttune.errors import BadInput
from hosttune.gpu.boards import board_of
from hosttune.inventory.partitions import HostFabric, lost, partition_of, read_fabric
from hosttune.model.host import Host
from hosttune.model.plan import Plan
from hosttune.model.values import to_builtins
from hosttune.planning.fabric.guest import not_startable
from hosttune.settings.hook import PLACE

Json = dict[str, Any]


def host_of(document: Json) -> Host:
    return Host.from_json(json.dumps(document))


def fabric_of(document: Json) -> HostFabric:
    return read_fabric(host_of(document))


def why(found: Plan, which: int = 0) -> str:
    assert found.guests == () or len(found.unplaced) > which
    return " | ".join(found.unplaced[which].why)


def modules_of(found: Plan, which: int = 0) -> set[int]:
    return {MODULES[address] for address in gpus_of(found, which)}


# --- the tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device_id", "switches", "table", "generation"),
    [("2335", SWITCHES, H200, "hopper"), ("2330", SWITCHES, H200, "hopper"), ("2901", (), B200, "blackwell")],
)
def test_default_partitions_of_a_board(
    device_id: str, switches: tuple[str, ...], table: dict[int, set[int]], generation: str
) -> None:
    found = board_of(host_of(board(None, device_id=device_id, switches=switches)))
    assert found is not None
    assert found.partitions is not None
    assert found.generation == generation
    assert {part.id: set(part.module_ids) for part in found.partitions} == table
    assert {part.nvlinks for part in found.partitions if len(part.module_ids) > 1} == {18}
    assert {part.nvlinks for part in found.partitions if len(part.module_ids) == 1} == {0}


def test_an_a100_board_has_no_partitions_that_are_known() -> None:
    document = board({"mode": 1})
    for device in document["pci"]:
        if device["address"] in SWITCHES:
            device["device_id"] = "1af1"
    found = decide(document, {"gpus": 2})
    assert found.guests[0].fabric_partition is None
    assert any("this board's is not known" in text for text in told(found, "error"))


@pytest.mark.parametrize(("device_id", "switches", "table"), [("2335", SWITCHES, H200), ("2901", (), B200)])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_default_partition_can_be_named(
    device_id: str, switches: tuple[str, ...], table: dict[int, set[int]], count: int
) -> None:
    document = board({"mode": 1}, device_id=device_id, switches=switches)
    for number, modules in table.items():
        if len(modules) == count:
            found = decide(document, {"gpus": [AT[module] for module in sorted(modules)]})
            assert found.guests[0].fabric_partition == number
            assert any("could not be asked" in text for text in told(found, "warn"))
            assert told(found, "error") == []


# --- one partition, and which ------------------------------------------------------------------------------------


def test_module_ids_and_not_the_order_of_addresses_make_a_partition() -> None:
    """The first two GPUs by address are modules 2 and 4: a partition of H200, none of B200, where pairs are 1+2."""
    named = {"gpus": list(GPUS[:2])}
    assert decide(board(shared(H200)), named).guests[0].fabric_partition == 4
    found = decide(board(shared(B200)), named)
    assert found.guests == ()
    assert f"GPUs {GPUS[0]} (module 2), {GPUS[1]} (module 4) are not a partition" in why(found)
    in_order = {**{address: number for number, address in enumerate(GPUS, 1)}}
    assert decide(board(shared(H200), modules=in_order), named).guests == ()


def test_the_set_of_a_published_listing() -> None:
    """Eight H100 whose partitions were published by index of lspci: 4 GPUs are one half, 2 one of four pairs."""
    order = (4, 6, 5, 7, 0, 2, 1, 3)  # indices by module id, from 1
    modules = {GPUS[index]: number for number, index in enumerate(order, 1)}
    fabric = fabric_of(board(shared(H200), modules=modules))
    at = {number: {GPUS.index(gpu) for gpu in part.gpus} for part in fabric.partitions or () for number in [part.id]}
    assert {number: sets for number, sets in at.items() if len(sets) == 4} == {1: {4, 5, 6, 7}, 2: {0, 1, 2, 3}}
    assert {number: sets for number, sets in at.items() if len(sets) == 2} == {
        3: {4, 5},
        4: {6, 7},
        5: {0, 1},
        6: {2, 3},
    }


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_counted_guest_gets_one_partition(count: int) -> None:
    found = decide(board(shared()), {"gpus": count})
    number = found.guests[0].fabric_partition
    assert number is not None
    assert modules_of(found) == H200[number]
    assert told(found, "error") == []
    assert all(device.kind == "gpu" for device in found.guests[0].devices)  # NVSwitches stay where they are


@pytest.mark.parametrize("count", [3, 5, 6, 7])
def test_a_number_of_gpus_that_no_partition_has_is_not_placed(count: int) -> None:
    found = decide(board(shared()), {"gpus": count})
    assert f"partitions of 1, 2, 4 and 8 GPUs, none of {count}" in why(found)
    assert any(text.startswith("gpus: ") for text in found.unplaced[0].relaxation)


def test_named_gpus_of_two_partitions_are_not_placed_and_the_key_is_named() -> None:
    found = decide(board(shared()), {"gpus": 1}, {"gpus": [AT[1], AT[2]]})
    said = " | ".join(next(row for row in found.unplaced if row.guest == "g1").why)
    assert "guests[1].gpus" in said
    assert "3 (1+3)" in said
    assert f"nearest: partition 3: {', '.join(sorted((AT[1], AT[3])))}" in said


def test_gpus_in_two_guests_are_bad_input() -> None:
    with pytest.raises(BadInput) as refused:
        decide(board(shared()), {"gpus": [AT[1], AT[3]]}, {"gpus": [AT[3]]})
    assert "guests[1].gpus" in refused.value.where


def test_a_guest_that_holds_one_of_them_takes_its_partitions_away() -> None:
    document = board(shared(), guests=[Held(devices=(AT[1],))])
    assert decide(document, {"gpus": 8}).guests == ()
    assert modules_of(decide(document, {"gpus": 4})) == H200[2]
    assert modules_of(decide(document, {"gpus": [AT[2], AT[4]]})) == {2, 4}
    assert decide(document, {"gpus": [AT[1], AT[3]]}).guests == ()


def test_a_partition_beside_an_active_one_is_not_available() -> None:
    document = board(shared(active=[3]))
    assert modules_of(decide(document, {"gpus": 4})) == H200[2]
    assert "shares GPUs with partition 3, which is active (fmpm -d 3" in why(decide(document, {"gpus": 8}))
    assert "partition 1 shares GPUs with partition 3" in why(decide(document, {"gpus": [AT[n] for n in (1, 2, 3, 4)]}))
    assert decide(document, {"gpus": [AT[1], AT[3]]}).guests[0].fabric_partition == 3  # it is its own


def test_a_list_that_names_broken_modules_leaves_the_rest() -> None:
    document = board(shared(), modules={**MODULES, AT[5]: 5})
    document["gpus"] = [gpu for gpu in document["gpus"] if gpu["address"] != AT[5]]
    assert modules_of(decide(document, {"gpus": 4})) == H200[1]
    assert decide(document, {"gpus": 8}).guests == ()


def test_several_guests_have_a_partition_each() -> None:
    found = decide(board(shared()), {"gpus": 4}, {"gpus": 2}, {"gpus": 1}, {"gpus": 1})
    sets = [modules_of(found, which) for which in range(4)]
    assert sum(map(len, sets)) == len(set().union(*sets)) == 8
    assert all(H200[guest.fabric_partition or 0] == mine for guest, mine in zip(found.guests, sets, strict=True))


def test_guests_that_break_every_half_leave_no_place_for_four() -> None:
    found = decide(board(shared()), {"gpus": [AT[1]]}, {"gpus": [AT[5]]}, {"gpus": 4})
    assert [row.guest for row in found.unplaced] == ["g2"]


def test_what_is_still_placeable() -> None:
    fabric = fabric_of(board(shared()))
    assert {size: len(parts) for size, parts in fabric.placeable.items()} == {8: 1, 4: 2, 2: 4, 1: 8}
    assert lost(fabric, ()) == (0, 0, 0, 0)
    assert lost(fabric, [AT[1], AT[5]]) == (1, 2, 2, 2)
    assert partition_of(fabric, [AT[5], AT[7], "0000:c0:00.0"]) == 5  # a NIC is none of its GPUs


@pytest.mark.parametrize(
    ("held", "count", "modules"),
    [
        ((5, 7), 2, {6, 8}),  # the other half stays whole, though its node is the first
        ((1, 3), 2, {2, 4}),
        ((8,), 1, {6}),  # the last pair of its half is broken anyway
        ((2,), 1, {4}),
        ((5, 6), 1, {7}),
    ],
)
def test_of_equal_partitions_the_one_that_breaks_the_fewest_is_taken(
    held: tuple[int, ...], count: int, modules: set[int]
) -> None:
    document = board(shared(), guests=[Held(devices=tuple(AT[module] for module in held))])
    found = decide(document, {"gpus": count})
    assert modules_of(found) in (modules, {8} if held == (5, 6) else modules)


def test_guests_planned_together_break_as_few_partitions() -> None:
    found = decide(board(shared()), {"gpus": 1}, {"gpus": 1}, {"gpus": 0})
    taken = {address for which in (0, 1) for address in gpus_of(found, which)}
    assert lost(fabric_of(board(shared())), taken) == (1, 1, 1, 2)


# --- what is not known -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fabric", "modules"),
    [
        (None, MODULES),
        ({"mode": None}, MODULES),
        ({"mode": 1}, {}),
        (shared(), {}),
        ({"mode": 1, "partitions": []}, MODULES),
    ],
)
def test_what_is_unknown_is_null_and_an_error_and_unplaces_nobody(fabric: Json | None, modules: dict[str, int]) -> None:
    document = board(fabric, modules=modules)
    for request in ({"gpus": 3}, {"gpus": list(GPUS[:2])}):
        found = decide(document, request)
        assert found.guests[0].fabric_partition is None
        assert found.guests[0].steps == ()
        assert any("whose partitions are unknown" in text for text in told(found, "error"))
        refusal = not_startable(host_of(document), found.guests[0])
        assert refusal is not None
        assert "unknown" in refusal


def test_one_unknown_module_id_unplaces_nobody() -> None:
    document = board(shared(), modules={**MODULES, AT[8]: None})
    found = decide(document, {"gpus": 8})
    assert found.guests[0].fabric_partition is None
    assert any(f"the module ids of {AT[8]} are unknown" in text for text in told(found, "error"))
    assert modules_of(decide(document, {"gpus": 4})) in (H200[1], H200[2])


def test_no_fabric_is_null_and_no_finding() -> None:
    found = decide(board(None, device_id="233b", switches=()), {"gpus": 2})
    assert found.guests[0].fabric_partition is None
    assert told(found, "error") == told(found, "warn") == []


def test_no_gpu_of_the_fabric_no_word_of_it() -> None:
    found = decide(board(shared()), {"gpus": 0})
    assert found.guests[0].fabric_partition is None
    assert told(found, "error") == told(found, "warn") == told(found, "info") == []


def test_a_service_vm_stands_for_the_shared_mode() -> None:
    """One guest with all NVSwitches and no GPU runs the Fabric Manager: this host's own configuration is idle."""
    document = board({"mode": 0}, guests=[Held(name="fm", devices=SWITCHES)])
    found = decide(document, {"gpus": 4})
    assert found.guests[0].fabric_partition in (1, 2)
    assert any("guest fm has the NVSwitches and no GPU" in text for text in told(found, "warn"))


# --- mode 0 and mode 2 -------------------------------------------------------------------------------------------


def test_full_passthrough_takes_the_nvswitches_along() -> None:
    document = board({"mode": 0, "partitions": None})
    for request in ({"gpus": 8}, {"gpus": list(GPUS)}):
        found = decide(document, request)
        (guest,) = found.guests
        assert {device.address for device in guest.devices if device.kind == "nvswitch"} == set(SWITCHES)
        assert guest.fabric_partition is None
        assert told(found, "error") == []
        assert not_startable(host_of(document), guest) is None
        drivers = {action.target for action in found.actions if action.kind == "driver"}
        assert drivers == set() or drivers >= set(SWITCHES)


def test_one_gpu_of_a_fabric_in_mode_0_is_an_error_finding() -> None:
    found = decide(board({"mode": 0}), {"gpus": 1})
    assert found.guests[0].fabric_partition is None
    assert any("NVLinks stay open" in text for text in told(found, "error"))


@pytest.mark.parametrize("request_", [{"gpus": 2}, {"gpus": 4}, {"gpus": list(GPUS[:4])}, {"gpus": list(GPUS[:7])}])
def test_a_part_of_a_fabric_in_mode_0_is_not_placed(request_: Json) -> None:
    found = decide(board({"mode": 0}), request_)
    assert "a guest gets 1 GPU, or all 8 with the NVSwitches" in why(found)


def test_a_board_in_mode_0_that_lacks_a_gpu_or_its_switches_is_not_passed_whole() -> None:
    fewer = board({"mode": 0})
    fewer["gpus"] = fewer["gpus"][:7]
    assert "GPUs are missing" in why(decide(fewer, {"gpus": 7}))
    hidden = board({"mode": 0}, device_id="2901", switches=())
    assert "which functions carry its NVSwitches is unknown" in why(decide(hidden, {"gpus": 8}))


def bridged(**marks: bool | None) -> Json:
    """A B200 board in mode 0; of each function by its bus, whether it carries the fabric."""
    cards = [Card(address, group=i) for i, address in enumerate(GPUS)]
    cards += [Card(f"0000:{bus[1:]}:00.0", kind="nic", group=20 + i) for i, bus in enumerate(marks)]
    document = {**build_host(cards=cards, cores_per_node=24), "fabric": {"mode": 0}}
    for row in document["pci"]:
        row["device_id"] = "2901" if row["address"] in GPUS else row["device_id"]
    for nic, mark in zip(document["nics"], marks.values(), strict=True):
        nic["fabric_bridge"] = mark
    return document


def test_full_passthrough_of_an_nvlink5_board_takes_what_carries_its_nvswitches_along() -> None:
    """NVIDIA, Optimizing VM configuration for AI inference: Blackwell Ultra HGX, known limitations."""
    document = bridged(_05=True, _06=True, _07=False)
    found = decide(document, {"gpus": 8})
    (guest,) = found.guests
    assert [device.address for device in guest.devices if device.kind == "nvswitch"] == ["0000:05:00.0", "0000:06:00.0"]
    assert (told(found, "error"), not_startable(host_of(document), guest)) == ([], None)
    assert "0000:05:00.0" in guest.steps[0].text
    assert "0000:05:00.0" not in guest.steps[1].text  # nothing resets it
    assert decide(document, {"gpus": 8}, {"gpus": 0, "nics": 1}).guests[1].devices[0].address == "0000:07:00.0"
    assert "which functions carry" in why(decide(bridged(_05=True, _06=None), {"gpus": 8}))
    assert {device.kind for device in decide(document, {"gpus": 1}).guests[0].devices} == {"gpu"}


def test_several_tenants_in_mode_0_are_refused() -> None:
    document = board({"mode": 0}, guests=[Held(name="first", devices=(AT[1],))])
    for request in ({"gpus": 1}, {"gpus": [AT[5]]}):
        assert "does not isolate guests, and first has GPUs of it" in why(decide(document, request))
    found = decide(board({"mode": 0}), {"gpus": 1}, {"gpus": 1}, {"gpus": 0})
    assert [guest.name for guest in found.guests] == ["g0", "g2"]
    assert "several guests need FABRIC_MODE=1" in why(found)


def test_whole_gpus_in_vgpu_mode_are_an_error_finding() -> None:
    found = decide(board(shared(mode=2)), {"gpus": 2})
    assert found.guests[0].fabric_partition is not None
    assert any("mode 2 (vGPU)" in text for text in told(found, "error"))
    assert any("fmActivateFabricPartitionWithVFs" in step.text for step in found.guests[0].steps)


# --- starting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("active", "now", "reason"),
    [
        ([3], H200, None),
        ([], H200, "not active: fmpm -a 3"),
        ([3], {**H200, 3: {1, 2}, 4: {3, 4}}, "does not hold exactly its GPUs now"),
    ],
)
def test_a_guest_starts_on_its_own_active_partition(
    active: list[int], now: dict[int, set[int]], reason: str | None
) -> None:
    guest = decide(board(shared()), {"gpus": [AT[1], AT[3]]}).guests[0]
    refusal = not_startable(host_of(board(shared(now, active=active))), guest)
    assert (refusal is None) == (reason is None)
    assert reason is None or reason in (refusal or "")


def test_nobody_starts_in_mode_0_beside_another_tenant() -> None:
    guest = decide(board({"mode": 0}), {"gpus": 1}).guests[0]
    assert not_startable(host_of(board({"mode": 0})), guest) is None
    other = next(address for address in GPUS if address != guest.devices[0].address)
    beside = host_of(board({"mode": 0}, guests=[Held(name="other", devices=(other,))]))
    assert "does not isolate guests" in (not_startable(beside, guest) or "")


def actions_of(found: Plan) -> list[tuple[str, str, Any]]:
    return [(action.kind, action.target, action.want) for action in found.actions if action.needed]


def test_a_partition_is_activated_before_its_gpus_leave_their_driver() -> None:
    document = board(shared())
    for device in document["pci"]:
        device["driver"] = "nvidia" if device["address"] in GPUS else device["driver"]
    found = decide(document, {"gpus": [AT[1], AT[3]]})
    mine = [AT[1], AT[3]]
    kinds = [(kind, target) for kind, target, _ in actions_of(found) if kind in ("fabric-partition", "driver")]
    assert kinds == [("fabric-partition", f"3@{'+'.join(sorted(mine))}"), *(("driver", gpu) for gpu in mine)]
    partition = next(action for action in found.actions if action.kind == "fabric-partition")
    assert (partition.current, partition.want, partition.effect) == ("inactive", "active: modules 1, 3", "now")
    assert found.guests[0].steps == ()


@pytest.mark.parametrize("value", [True, "keep"])
def test_the_hook_is_one_needed_action_whatever_the_intent_says_of_it(value: object) -> None:
    found = decide(board(shared()), {"gpus": [AT[1], AT[3]]}, libvirt_hook=value)
    assert [(action.kind, action.needed) for action in found.actions if action.target == PLACE] == [
        ("libvirt-hook", True)
    ]


def test_a_partition_that_is_active_is_in_force_from_then_on() -> None:
    """A reboot would undo it."""
    found = decide(board(shared(active=[3])), {"gpus": [AT[1], AT[3]]})
    (partition,) = [action for action in found.actions if action.kind == "fabric-partition"]
    assert partition.current == partition.want == "active: modules 1, 3"
    assert found.guests[0].steps == ()


def test_steps_by_hand_are_in_the_order_of_the_actions_and_unproven() -> None:
    """Nobody could ask the Fabric Manager: the board's usual partitions are assumed, and a person activates."""
    found = decide(board({"mode": 1}), {"gpus": [AT[1], AT[3]]})
    steps = found.guests[0].steps
    assert "fabric-partition" not in {kind for kind, _, _ in actions_of(found)}
    assert all(step.unproven for step in steps)
    texts = {when: " | ".join(step.text for step in steps if step.when == when) for when in ("start", "stop")}
    start, stop = texts["start"], texts["stop"]
    assert start.index("fmpm -l: partition 3 is that of module ids 1, 3") < start.index("fmpm -a 3")
    assert start.index("fmpm -a 3") < start.index("hosttune apply: vfio-pci gets")
    assert stop.index("shut off") < stop.index("nvidia gets the GPUs back") < stop.index("fmpm -d 3")
    assert all(address in start for address in (AT[1], AT[3]))


def test_a_partition_whose_state_is_not_told_is_not_activated() -> None:
    document = board(shared())
    for row in document["fabric"]["partitions"]:
        if row["id"] == 3:
            row["active"] = None
    found = decide(document, {"gpus": [AT[1], AT[3]]})
    assert "fabric-partition" not in {kind for kind, _, _ in actions_of(found)}
    assert "fmpm -a 3" in " | ".join(step.text for step in found.guests[0].steps)


def test_gpus_without_nvswitch_functions_want_a_reset_after_the_fabric_manager() -> None:
    """What apply activates, it resets before."""
    asked = {"gpus": [AT[1], AT[2]]}
    assert decide(board(shared(B200), device_id="2901", switches=()), asked).guests[0].steps == ()
    step = decide(board({"mode": 1}, device_id="2901", switches=()), asked).guests[0].steps[0]
    assert all(f"nvidia-smi -i {AT[module]} -r" in step.text for module in (1, 2))


@pytest.mark.parametrize(("count", "after"), [(8, ", after systemctl disable --now nvidia-fabricmanager"), (1, "")])
def test_in_passthrough_what_is_reset_is_on_vfio_first(count: int, after: str) -> None:
    guest = decide(board({"mode": 0}), {"gpus": count}).guests[0]
    bind, reset, *_ = [step.text for step in guest.steps if step.when == "start"]
    passed = {device.address for device in guest.devices}
    assert bind.startswith(f"hosttune apply, without --start{after}: vfio-pci has ")
    assert passed == {address for address in passed if address in bind and address in reset}
    assert reset.startswith("as root, reset each of: ")


# --- documents ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fabric", "path"),
    [
        ({"mode": 3}, "$.fabric.mode"),
        ({"mode": 1, "partitions": [{"id": 1, "module_ids": [-1]}]}, "$.fabric.partitions[0].module_ids[0]"),
        ({"partitions": [{"id": 1, "module_ids": [1]}, {"id": 1, "module_ids": [2]}]}, "$.fabric.partitions[1].id"),
    ],
)
def test_a_document_that_no_machine_has_is_refused(fabric: Json, path: str) -> None:
    with pytest.raises(BadInput) as refused:
        host_of(board(fabric))
    assert path in refused.value.where


# --- always ------------------------------------------------------------------------------------------------------

TABLES = st.dictionaries(st.integers(0, 40), st.sets(st.integers(1, 8), min_size=1, max_size=8), max_size=12)
REQUESTS = st.lists(
    st.one_of(st.integers(0, 8), st.lists(st.sampled_from(GPUS), min_size=1, max_size=4, unique=True)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_guest_has_exactly_one_partition_or_an_error_says_why_not(data: st.DataObject) -> None:
    table = data.draw(TABLES)
    modules: dict[str, int | None] = dict(zip(GPUS, data.draw(st.permutations(range(1, 9))), strict=True))
    for address in data.draw(st.sets(st.sampled_from(GPUS), max_size=2)):
        modules[address] = None
    requests = data.draw(REQUESTS)
    try:
        active = data.draw(st.sets(st.sampled_from(sorted(table) or [0]), max_size=1))
        found = decide(board(shared(table, active=active), modules=modules), *({"gpus": wanted} for wanted in requests))
    except BadInput:
        return  # a GPU in two guests
    taken: set[str] = set()
    for guest in found.guests:
        mine = {device.address for device in guest.devices if device.kind == "gpu"}
        assert taken.isdisjoint(mine)
        taken |= mine
        if not mine:
            assert guest.fabric_partition is None
        elif guest.fabric_partition is None:
            assert any(f"guest {guest.name} gets GPUs of an NVSwitch fabric" in text for text in told(found, "error"))
            assert not table or any(modules[address] is None for address in GPUS) or _resolves_nothing(table, modules)
        else:
            assert {modules[address] for address in mine} == table[guest.fabric_partition]
            others = [number for number in active if number != guest.fabric_partition]
            assert all(table[number].isdisjoint(table[guest.fabric_partition]) for number in others)


@settings(max_examples=40, deadline=None)
@given(
    order=st.permutations(range(1, 9)),
    nodes=st.sampled_from([2, 4]),
    table=st.sampled_from([H200, B200]),
    count=st.sampled_from([1, 2, 4, 8]),
    held=st.sets(st.sampled_from(GPUS), max_size=3),
)
def test_the_partition_that_is_chosen_is_the_nearest_of_its_size(
    order: list[int], nodes: int, table: dict[int, set[int]], count: int, held: set[str]
) -> None:
    """Against naming the GPUs of every partition of that size, one after the other."""
    modules = dict(zip(GPUS, order, strict=True))
    at = {module: address for address, module in modules.items()}
    document = board(shared(table), modules=modules, nodes=nodes, guests=[Held(devices=tuple(held))] if held else ())
    wanted = {"vcpus": 8, "memory": "1GiB"}
    costs = []
    for number, members in table.items():
        if len(members) == count:
            named = decide(document, {**wanted, "gpus": [at[module] for module in sorted(members)]})
            assert bool(named.guests) == held.isdisjoint(at[module] for module in members)
            if named.guests:
                assert named.guests[0].fabric_partition == number
                costs.append(objective(document, to_builtins(named.guests[0])))
    found = decide(document, {**wanted, "gpus": count})
    assert bool(found.guests) == bool(costs)
    if costs:
        assert objective(document, to_builtins(found.guests[0])) == min(costs)


def _resolves_nothing(table: dict[int, set[int]], modules: dict[str, int | None]) -> bool:
    return not any(part <= set(modules.values()) for part in table.values())
