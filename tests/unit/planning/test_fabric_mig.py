"""Guests that cut whole GPUs of an NVSwitch fabric with MIG: no partition, and none may be active around them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from fabrichosts import AT, GPUS, board, decide, listed, shared, told
from planhosts import Held

from hosttune.inventory.partitions import HostFabric, read_fabric, refusal
from hosttune.model.host import Host
from hosttune.model.plan import MigAssignment, PlannedGuest
from hosttune.planning.fabric.guest import fabric_findings, fabric_reasons, fabric_steps, guest_partition, not_startable

Json = dict[str, Any]
TWO = [AT[1], AT[2]]
PROFILES = [{"name": "1g.18gb", "id": 19, "starts": list(range(7)), "size": 1, "max_instances": 7, "compute_slices": 1}]


def host_of(document: Json) -> Host:
    return Host.from_json(json.dumps(document))


def with_mig(document: Json, gpus: list[str], *, over: Json | None = None) -> tuple[HostFabric, PlannedGuest]:
    """(the fabric of a host, a guest with an instance on each of these GPUs, made inside it)."""
    guest = decide(over or board(None), {"gpus": gpus}).guests[0]
    mig = tuple(MigAssignment(gpu=address, profile="1g.18gb", start=0) for address in gpus)
    return read_fabric(host_of(document)), msgspec.structs.replace(guest, mig=mig, fabric_partition=None)


def findings(fabric: HostFabric, guest: PlannedGuest) -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    fabric_findings(fabric, [guest], lambda level, text, where: said.append((level, text)))
    return said


def test_it_needs_no_partition_and_none_around_it_may_be_active() -> None:
    document = board(shared(), guests=[Held(devices=(AT[5],))])
    three = [AT[1], AT[2], AT[3]]
    fabric, guest = with_mig(document, three)
    assert refusal(fabric, three) is not None
    assert refusal(fabric, three, mig=True) is None
    assert not_startable(host_of(document), guest) is None
    assert guest_partition(fabric, guest) is None
    assert fabric_steps(fabric, guest) == ()
    ((level, text),) = findings(fabric, guest)
    assert level == "info"
    assert "none that joins them with other GPUs may be active" in text
    assert fabric_reasons(fabric, guest) == (
        "no partition of the NVSwitch fabric: MIG, which the guest switches on inside, turns NVLink off",
    )


def test_an_active_partition_that_joins_it_with_others_is_an_error_a_step_and_no_start() -> None:
    document = board(shared(active=[3]), guests=[Held(name="other", devices=(AT[3],))])
    fabric, guest = with_mig(document, [AT[1]])
    ((level, text),) = findings(fabric, guest)
    assert level == "error"
    assert f"partition 3, which is active, joins them with {AT[3]} (guest other)" in text
    assert "Before it starts: fmpm -d 3 once no guest uses the partition" in text
    (step,) = fabric_steps(fabric, guest)
    assert (step.when, step.unproven) == ("start", True)
    assert step.text == "fmpm -d 3 once no guest uses it, then fmpm -l: partition 3 is not active"
    assert "partition 3 of the NVSwitch fabric is active" in (not_startable(host_of(document), guest) or "")


def test_an_active_partition_of_modules_that_are_not_here_counts_too() -> None:
    document = board({"mode": 1, "partitions": [*listed({0: {1}}), *listed({9: {1, 99}}, active=[9])]})
    fabric, guest = with_mig(document, [AT[1]])
    assert [level for level, text in findings(fabric, guest) if "joins them with module 99" in text] == ["error"]


@pytest.mark.parametrize(("active", "gpus"), [(3, [AT[1], AT[3]]), (3, [AT[2]]), (7, [AT[1]])])
def test_an_active_partition_of_its_own_gpus_or_of_none_of_them_is_no_route(active: int, gpus: list[str]) -> None:
    document = board(shared(active=[active]))
    fabric, guest = with_mig(document, gpus)
    assert [level for level, _ in findings(fabric, guest)] == ["info"]
    assert fabric_steps(fabric, guest) == ()
    assert not_startable(host_of(document), guest) is None


@pytest.mark.parametrize(
    ("fabric", "modules", "why"),
    [
        ({"mode": 1}, None, "whether partitions 0, 1, 3 are active could not be read"),
        (shared(), {AT[2]: 2}, f"the module ids of {AT[1]} are unknown"),
        (shared(), {AT[1]: 2, AT[2]: 2, AT[5]: 5}, f"{AT[2]} and {AT[1]} all claim module id 2"),
        (shared(), {address: 100 + n for n, address in enumerate(GPUS)}, "no partition of this host's GPUs alone"),
    ],
)
def test_what_is_active_around_it_is_not_known(fabric: Json, modules: dict[str, int] | None, why: str) -> None:
    document = board(fabric) if modules is None else board(fabric, modules=modules)
    found, guest = with_mig(document, [AT[1]])
    assert [level for level, text in findings(found, guest) if "that is not known" in text and why in text] == ["error"]
    assert why in (not_startable(host_of(document), guest) or "")


def test_two_tenants_on_one_active_partition_are_both_told() -> None:
    document = board(shared(active=[3]))
    for gpu in document["gpus"]:
        gpu["mig"] = {"capable": True, "mode": "disabled", "profiles": PROFILES}
    mig = {"profile": "1g.18gb", "count": 1}
    found = decide(document, {"gpus": [AT[1]], "mig": mig}, {"gpus": [AT[3]], "mig": mig})
    assert [guest.mig[0].gpu for guest in found.guests] == [AT[1], AT[3]]
    errors = told(found, "error")
    assert len(errors) == 2
    for guest, error in zip(found.guests, errors, strict=True):
        assert error.startswith(f"guest {guest.name} cuts its GPUs with MIG inside, and partition 3, which is active")
        assert any("fmpm -d 3" in step.text for step in guest.steps if step.when == "start")
        assert any("turns NVLink off" in line for line in guest.why)


def test_mig_is_the_guests_own_choice_and_isolates_nobody_in_mode_0() -> None:
    beside = read_fabric(host_of(board({"mode": 0}, guests=[Held(devices=(AT[5],))])))
    assert "does not isolate guests" in (refusal(beside, [AT[1]], mig=True) or "")
    fabric, guest = with_mig(board({"mode": 0}), TWO)
    assert refusal(fabric, TWO, mig=True) is None
    assert fabric_reasons(fabric, guest) == ()
    assert not_startable(host_of(board({"mode": 0})), guest) is None
    assert not_startable(host_of(board(None)), guest) is not None  # nobody knows whether it is alone
