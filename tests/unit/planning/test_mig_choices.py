"""Ways to give guests MIG instances as vGPUs: every one that differs, the best first, and why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mighosts import A, B, C, D, field_of, functions_of, gpu_row, guest_of, mig_host, pci_row, vgpu_row

from hosttune.errors import BadInput
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.intent import GuestIntent, Intent
from hosttune.planning import plan
from hosttune.planning.mig.check import check_mig
from hosttune.planning.mig.instances import (
    MigSlot,
    is_vgpu_guest,
    mig_changes,
    mig_choices,
    mig_refusal,
    mig_share,
)
from hosttune.planning.mig.packing import FULL, MEDIA

ALL = (A, B, C, D)


def ways(
    field: PlanningContext, guest: GuestIntent, occupied: Mapping[str, int] | None = None
) -> list[list[tuple[str, int]]]:
    found = mig_choices(field, guest, occupied or {}, "guests[0]")
    return [[(slot.gpu, slot.start) for slot in slots] for slots in found]


# --- choices -----------------------------------------------------------------------------------------------------


def test_alike_gpus_are_tried_once_and_each_start_once() -> None:
    found = ways(field_of(mig_host(*ALL)), guest_of())
    assert [start for ((gpu, start),) in found if gpu == A] == [6, 4, 5, 0, 1, 2, 3]
    assert {gpu for ((gpu, _),) in found} == {A, C}  # B is like A, D like C


def test_what_is_taken_makes_gpus_differ_and_is_filled_first() -> None:
    """A 1g on the broken GPU loses nothing large; on a whole one it would."""
    found = ways(field_of(mig_host(A, B)), guest_of(), {B: 0b1000000})
    assert found[0] == [(B, 4)]
    assert {gpu for ((gpu, _),) in found} == {A, B}


def test_a_slot_says_what_it_takes() -> None:
    (first, *_) = next(mig_choices(field_of(mig_host(A)), guest_of("1g.18gb+me"), {}, ""))
    assert first == MigSlot(A, "1g.18gb+me", 6, 1, 1 << 6 | MEDIA)
    (first, *_) = next(mig_choices(field_of(mig_host(A)), guest_of("3g.71gb"), {}, ""))
    assert first == MigSlot(A, "3g.71gb", 4, 4, 0b11110000)


def test_seven_fit_on_one_gpu_and_an_eighth_touches_another() -> None:
    field = field_of(mig_host(A, B))
    assert ways(field, guest_of(count=7))[0] == [(A, n) for n in range(7)]
    first = ways(field, guest_of(count=8))[0]
    assert {gpu for gpu, _ in first} == {A, B}
    assert len(first) == len(set(first)) == 8


def test_several_on_one_gpu_come_before_several_gpus() -> None:
    found = ways(field_of(mig_host(A, B)), guest_of("3g.71gb", 2))
    assert found[0] == [(A, 0), (A, 4)]
    assert found[1:] == [[(A, 4), (B, 4)], [(A, 0), (B, 4)], [(A, 0), (B, 0)]] or len(found) == 4


def test_a_gpu_with_mig_on_is_preferred() -> None:
    host = mig_host(A, B)
    gpu_row(host, A)["mig"] |= {"mode": "disabled", "pending": "disabled", "instances": None}
    assert ways(field_of(host), guest_of())[0][0][0] == B


def test_existing_instances_stay() -> None:
    host = mig_host(A)
    instance = {"profile": "4g.71gb", "id": 1, "start": 0, "size": 4, "uuid": "MIG-1"}
    gpu_row(host, A)["mig"]["instances"] = [instance]
    field = field_of(host)
    assert ways(field, guest_of("3g.71gb")) == [[(A, 4)]]
    assert ways(field, guest_of("4g.71gb")) == []
    assert mig_refusal(field, guest_of("4g.71gb")) == (
        "1 x 4g.71gb wanted, room for 0",
        f"GPU {A} has no room for another 4g.71gb beside its instances",
    )


def test_an_unused_instance_is_taken_as_it_is() -> None:
    host = mig_host(A)
    gpu_row(host, A)["mig"]["instances"] = [{"profile": "1g.18gb", "id": n, "start": n, "size": 1} for n in (2, 3)]
    field = field_of(host)
    assert ways(field, guest_of())[0] == [(A, 2)]
    assert ways(field, guest_of(count=2))[0] == [(A, 2), (A, 3)]
    assert ways(field, guest_of("3g.71gb")) == [[(A, 4)]]
    vgpu_row(host, A)["functions"][0]["current_type"] = "1414"  # which instance it is on is not told
    assert {start for ((_, start),) in ways(field_of(host), guest_of())} == {0, 1, 4, 5, 6}


def test_an_instance_of_unknown_place_keeps_its_gpu_away() -> None:
    host = mig_host(A)
    gpu_row(host, A)["mig"]["instances"] = [{"profile": "1g.18gb", "id": 1}]
    assert mig_refusal(field_of(host), guest_of())[1] == (f"GPU {A} has MIG on, and which instances it has is unknown")


def test_what_another_guest_has_whole_takes_nothing() -> None:
    assert ways(field_of(mig_host(A)), guest_of(), {A: FULL}) == []


def _valid_sets(count: int, size: int, starts: tuple[int, ...], taken: int) -> set[tuple[int, ...]]:
    found = set()
    for chosen in combinations(starts, count):
        slices = [start + i for start in chosen for i in range(size)]
        if len(set(slices)) == len(slices) and not any(taken >> one & 1 for one in slices):
            found.add(chosen)
    return found


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([("1g.18gb", 1, (0, 1, 2, 3, 4, 5, 6)), ("1g.35gb", 2, (0, 2, 4, 6)), ("3g.71gb", 4, (0, 4))]),
    st.integers(1, 4),
    st.integers(0, 255),
    st.integers(0, 255),
)
def test_no_way_is_missing_and_none_stands_twice(
    profile: tuple[str, int, tuple[int, ...]], count: int, of_a: int, of_b: int
) -> None:
    name, size, starts = profile
    field = field_of(mig_host(A, B))
    found = ways(field, guest_of(name, count), {A: of_a, B: of_b})
    all_ways = {
        (on_a, on_b)
        for n in range(count + 1)
        for on_a in _valid_sets(n, size, starts, of_a)
        for on_b in _valid_sets(count - n, size, starts, of_b)
    }
    if of_a == of_b:  # alike: the ways come once, whichever GPU has which
        all_ways = {(min(way), max(way)) for way in all_ways}
    seen = []
    for way in found:
        pair = tuple(tuple(start for gpu, start in way if gpu == address) for address in (A, B))
        seen.append(tuple(sorted(pair)) if of_a == of_b else pair)
    assert len(seen) == len(set(seen))
    assert set(seen) == all_ways
    touched = [len({gpu for gpu, _ in way}) for way in found]
    assert touched == sorted(touched)


# --- none --------------------------------------------------------------------------------------------------------


def test_without_a_manager_the_whole_gpu_is_offered() -> None:
    host = mig_host(A, vgpus=False)
    host["vgpu"] = {"manager": False, "gpus": [{"address": A}]}
    field = field_of(host)
    (reason,) = mig_refusal(field, guest_of())
    assert reason.startswith("no vGPU manager runs on this host: a MIG instance is not a PCI function")
    ((text, changed),) = mig_changes(field, guest_of(count=9))
    assert text == "the whole GPU with MIG inside the guest: gpus: 1, mig: {profile: 1g.18gb, count: 7}"
    assert changed.gpus == 1
    assert not is_vgpu_guest(changed)
    assert mig_refusal(field_of(mig_host(A, vgpus=False)), guest_of())[0].startswith("no vGPU manager is seen")


def test_a_manager_that_is_known_not_to_run_makes_no_vgpu_on_functions_that_are_there() -> None:
    host = mig_host(A)
    host["vgpu"]["manager"] = False
    field = field_of(host)
    assert ways(field, guest_of()) == []
    assert mig_refusal(field, guest_of())[0].startswith("no vGPU manager runs on this host")
    decided = plan(field.host, Intent(version=1, guests=(guest_of(vcpus=2, memory="8GiB"),)))
    (unplaced,) = decided.unplaced
    assert unplaced.why[0].startswith("no vGPU manager runs on this host")
    assert any(text.startswith("the whole GPU with MIG inside the guest: gpus: 1") for text in unplaced.relaxation)
    host["vgpu"]["manager"] = None
    assert ways(field_of(host), guest_of())


def test_fewer_instances_are_offered_where_they_fit() -> None:
    texts = [text for text, _ in mig_changes(field_of(mig_host(A)), guest_of("3g.71gb", 3))]
    assert texts[0] == "mig: {profile: 3g.71gb, count: 2}"


def _held(host: dict[str, Any]) -> None:
    host["guests"] = [{"name": "old", "state": "running", "devices": [A]}]


def _vfio(host: dict[str, Any]) -> None:
    pci_row(host, A)["driver"] = "vfio-pci"


def _timesliced(host: dict[str, Any]) -> None:
    gpu_row(host, A)["mig"] |= {"mode": "disabled", "pending": "disabled", "instances": None}
    vgpu_row(host, A)["functions"][0]["current_type"] = "1428"


def _no_functions(host: dict[str, Any]) -> None:
    vgpu_row(host, A).update(framework=None, functions=[])


def _framework_alone(host: dict[str, Any]) -> None:
    vgpu_row(host, A).update(functions=[])


def _strange_framework(host: dict[str, Any]) -> None:
    vgpu_row(host, A).update(framework="wibble")


def _functions_of_another(host: dict[str, Any]) -> None:
    vgpu_row(host, A).update(functions=[{"address": B, "current_type": "0"}])


def _itself(host: dict[str, Any]) -> None:
    vgpu_row(host, A).update(functions=[{"address": A, "current_type": "0"}])


def _quarantined(host: dict[str, Any]) -> None:
    record = {"address": A, "identity": A, "state": "quarantined", "since": "2026-01-01", "why": "hand-over"}
    host["handover"] = {"devices": [record]}


def _all_taken(host: dict[str, Any]) -> None:
    for function in vgpu_row(host, A)["functions"]:
        function["current_type"] = "1414"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_held, "is held as a whole by guest old"),
        (_quarantined, "is quarantined since 2026"),
        (_vfio, "is bound to vfio-pci, to be given away as a whole"),
        (_timesliced, "carries vGPUs without MIG: they would end with the switch"),
        (_no_functions, f"has no function that offers a vGPU type: /usr/lib/nvidia/sriov-manage -e {A}"),
        (_framework_alone, f"has no virtual function that could carry a vGPU: /usr/lib/nvidia/sriov-manage -e {A}"),
        (_strange_framework, "has no function that offers a vGPU type"),
        (_functions_of_another, "has no virtual function that could carry a vGPU"),
        (_itself, "has no virtual function that could carry a vGPU"),
        (_all_taken, "every function of GPU 0000:41:00.0 that can carry a vGPU is taken"),
    ],
)
def test_a_gpu_that_cannot_carry_instances_says_why(change: Any, reason: str) -> None:
    host = mig_host(A, B)
    change(host)
    field = field_of(host)
    assert all(gpu == B for way in ways(field, guest_of()) for gpu, _ in way)
    refusal = mig_refusal(field, guest_of(count=8))
    assert refusal[0] == "8 x 1g.18gb wanted, room for 7"
    assert any(reason in line for line in refusal), refusal


def test_what_of_a_document_is_not_believed_is_said() -> None:
    said = []
    for change in (_strange_framework, _functions_of_another, _itself):
        host = mig_host(A, B)
        change(host)
        decided = plan(field_of(host).host, Intent(version=1))
        said += [one.text for one in decided.findings if one.where == f"vgpu: GPU {A}"]
    assert said == [
        "framework 'wibble' is neither of vfio, mdev: taken as unknown",
        f"no virtual function of this GPU by `pci`, so ignored: {B}",
        f"no virtual function of this GPU by `pci`, so ignored: {A}",
    ]
    host = mig_host(A)
    _itself(host)
    vgpu_row(host, A)["framework"] = "mdev"
    assert ways(field_of(host), guest_of())


def test_a_share_is_in_compute_slices() -> None:
    field = field_of(mig_host(A, B))
    (slots, *_) = mig_choices(field, guest_of("2g.35gb", 4), {}, "")
    assert mig_share(field, slots) == {A: Fraction(6, 7), B: Fraction(2, 7)}


# --- bad input ---------------------------------------------------------------------------------------------------


def _intent(*guests: GuestIntent) -> Intent:
    return Intent(version=1, guests=guests)


@pytest.mark.parametrize("gpus", [None, 1, (A,)])
def test_a_profile_that_does_not_exist_is_refused_with_those_that_do(gpus: Any) -> None:
    guest = guest_of("1g.20gb", gpus=gpus)
    with pytest.raises(BadInput) as caught:
        check_mig(field_of(mig_host(A)), _intent(guest), "intent")
    assert caught.value.where == "intent: guests[0].mig.profile"
    assert "1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb" in caught.value.hint


@pytest.mark.parametrize("name", ["", "1g", "1c.3g.71gb", "1g.18gb; reboot", "x"])
def test_what_is_no_profile_is_refused_without_any_gpu(name: str) -> None:
    with pytest.raises(BadInput, match="not a MIG profile"):
        check_mig(field_of(mig_host()), _intent(guest_of(name)), "intent")


def _silent(host: dict[str, Any], *gpus: str) -> None:
    for address in gpus:
        pci_row(host, address)["device_id"] = None
        gpu_row(host, address).update(model=None, mig=None)


@pytest.mark.parametrize("gpus", [None, 1, (A,)])
def test_where_nothing_tells_of_mig_the_guest_is_not_placed(gpus: Any) -> None:
    host = mig_host(A, vgpus=False)
    _silent(host, A)
    guest = guest_of(gpus=gpus, vcpus=2, memory="8GiB")
    decided = plan(field_of(host).host, _intent(guest))
    (unplaced,) = decided.unplaced
    assert any(f"whether GPU {A} has MIG is unknown" in line for line in unplaced.why), unplaced.why
    with pytest.raises(BadInput, match="is not a MIG profile"):
        check_mig(field_of(host), _intent(guest_of("1g", gpus=gpus)), "intent")


def test_one_gpu_that_tells_nothing_leaves_a_profile_unknown() -> None:
    host = mig_host(A, B)
    _silent(host, B)
    check_mig(field_of(host), _intent(guest_of("1g.20gb")), "intent")


@pytest.mark.parametrize("change", [{"vendor": "amd"}, {"lacks": ["mig"]}])
@pytest.mark.parametrize("gpus", [None, 1, (A,)])
def test_a_profile_where_no_gpu_has_mig_is_refused(gpus: Any, change: dict[str, Any]) -> None:
    host = mig_host(A, vgpus=False)
    _silent(host, A)
    gpu_row(host, A).update(change)
    with pytest.raises(BadInput) as caught:
        check_mig(field_of(host), _intent(guest_of(gpus=gpus)), "intent")
    assert caught.value.where == "intent: guests[0].mig.profile"


def test_a_request_that_merely_does_not_fit_is_no_bad_input() -> None:
    check_mig(field_of(mig_host(A)), _intent(guest_of("3g.71gb", 3)), "intent")
    check_mig(field_of(mig_host()), _intent(guest_of("3g.71gb")), "intent")


def test_mig_on_a_gpu_that_another_guest_has_whole_is_refused() -> None:
    whole = GuestIntent(name="whole", gpus=("41:00.0",))
    with pytest.raises(BadInput) as caught:
        check_mig(field_of(mig_host(A)), _intent(whole, guest_of()), "intent")
    assert caught.value.where == "intent: guests[1].mig"
    assert f"{A} to whole" in caught.value.what
    check_mig(field_of(mig_host(A, B)), _intent(whole, guest_of()), "intent")


def test_functions_are_those_of_the_gpu() -> None:
    assert functions_of(A, 5) == [
        "0000:41:00.4", "0000:41:00.5", "0000:41:00.6", "0000:41:00.7", "0000:41:01.0"
    ]  # fmt: skip
