"""Settings of the GPUs that stay with the host, as a plan wants them: by profile, by name, and never of a guest's GPU.

Hosts are synthetic (`planhosts`); a board's limits are an H200's, 200 to 700 W.
"""

from __future__ import annotations

from typing import Any

import pytest
from planhosts import Card, Held, build_host, intent_of

from hosttune.errors import BadInput
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan
from hosttune.model.values import to_json
from hosttune.planning import plan
from hosttune.transaction.kinds import setting_of

A, B, C = (f"0000:{bus}:00.0" for bus in ("41", "56", "9a"))
BOARD = {
    "persistence": True,
    "power_limit_watts": 700.0,
    "power_default_watts": 700.0,
    "power_min_watts": 200.0,
    "power_max_watts": 700.0,
    "compute_mode": "default",
    "ecc": True,
    "ecc_pending": True,
    "mig": {"mode": "disabled", "pending": "disabled"},
    "processes": 0,
}
MODES = {"ecc": "gpu-ecc", "mig_mode": "gpu-mig-mode", "compute_mode": "gpu-compute-mode"}


def host_of(*, driver: str = "nvidia", vendor: str = "nvidia", guests: Any = (), **facts: Any) -> dict[str, Any]:
    """Three GPUs under a driver, each with the board's facts; `facts` are those of the first."""
    cards = [Card(address, 0, group=n + 1, driver=driver, vendor=vendor) for n, address in enumerate((A, B, C))]
    host = build_host(cards=cards, guests=guests)
    for gpu in host["gpus"]:
        gpu.update(BOARD)
    host["gpus"][0].update(facts)
    return host


def planned(host: dict[str, Any], profile: str = "host", settings: Any = None, **guest: Any) -> Plan:
    document = intent_of(profile=profile, settings=settings, **{"vcpus": 4, "memory": "4GiB", **guest})
    return plan(Host.from_json(to_json(host)), Intent.from_json(to_json(document)))


def of_gpus(made: Plan) -> list[Action]:
    return [action for action in made.actions if action.kind.startswith("gpu-")]


def rows(made: Plan) -> list[tuple[str, str, Any, Any]]:
    """Kind, address, current, want; every action is one that its setting accepts."""
    for action in of_gpus(made):
        setting_of(action.kind, action.target).check(action.want)
        assert action.id == f"{action.kind}:{action.target}"
        assert action.reversible
        assert action.needed is (action.kind == "gpu-persistence" and action.want is False)  # it is let go of
    return [(action.kind, action.target, action.current, action.want) for action in of_gpus(made)]


def said(made: Plan, where: str) -> list[tuple[str, str]]:
    return [(finding.level, finding.text) for finding in made.findings if finding.where == where]


# --- profiles ----------------------------------------------------------------------------------------------------


def test_profile_host_sets_persistence_and_lifts_a_limit_below_the_boards_own() -> None:
    made = planned(host_of(persistence=False, power_limit_watts=500.0))
    assert rows(made) == [("gpu-persistence", A, False, True), ("gpu-power-limit", A, 500.0, 700.0)]
    assert {action.effect for action in of_gpus(made)} == {"now"}
    assert "below the board's own" in of_gpus(made)[1].why


@pytest.mark.parametrize("profile", ["guest", "none"])
def test_the_other_profiles_set_nothing_of_the_hosts_gpus(profile: str) -> None:
    made = planned(host_of(persistence=False, power_limit_watts=500.0), profile)
    assert rows(made) == []
    assert said(made, A) == []


def test_a_board_that_is_well_as_it_is_is_left_alone() -> None:
    assert rows(planned(host_of())) == []


def test_a_limit_above_the_boards_own_is_not_lowered() -> None:
    assert rows(planned(host_of(power_limit_watts=750.0, power_max_watts=800.0))) == []


def test_no_profile_changes_a_mode() -> None:
    off: dict[str, Any] = {"ecc": False, "ecc_pending": False, "compute_mode": "prohibited"}
    assert rows(planned(host_of(**off, mig={"mode": "enabled", "pending": "enabled"}))) == []


def test_it_needs_no_guest() -> None:
    document = {"version": 1, "profile": "host", "guests": []}
    made = plan(Host.from_json(to_json(host_of(persistence=False))), Intent.from_json(to_json(document)))
    assert rows(made) == [("gpu-persistence", A, False, True)]


@pytest.mark.parametrize("name", ["persistence", "power_limit_watts"])
def test_keep_leaves_alone_what_the_profile_brings(name: str) -> None:
    made = planned(host_of(persistence=False, power_limit_watts=500.0), settings={name: "keep"})
    kinds = {"persistence": "gpu-persistence", "power_limit_watts": "gpu-power-limit"}
    assert [row[0] for row in rows(made)] == [kind for key, kind in kinds.items() if key != name]


# --- whose GPU ---------------------------------------------------------------------------------------------------


def test_a_gpu_of_a_planned_guest_is_left_to_it() -> None:
    made = planned(host_of(persistence=False), gpus=[A])
    assert [device.address for device in made.guests[0].devices] == [A]
    assert rows(made) == []
    made = planned(host_of(persistence=False), settings={"power_limit_watts": 600}, gpus=[A])
    assert {row[1] for row in rows(made) if row[0] == "gpu-power-limit"} == {B, C}


def test_persistence_ends_before_the_driver_must_let_go() -> None:
    made = planned(host_of(persistence=True), "none", gpus=[A])
    assert rows(made) == [("gpu-persistence", A, True, False)]
    kinds = [(action.kind, action.needed) for action in made.actions if action.target == A]
    assert kinds == [("gpu-persistence", True), ("driver", True)]


@pytest.mark.parametrize("state", ["running", "shut off"])
def test_a_gpu_of_a_guest_that_is_there_is_left_to_it(state: str) -> None:
    held = Held(devices=(A,), state=state)
    assert rows(planned(host_of(persistence=False, guests=[held]))) == []


def test_a_gpu_whose_virtual_function_a_guest_has_is_left_alone() -> None:
    virtual = "0000:41:00.4"
    host = host_of(persistence=False, guests=[Held(devices=(virtual,))])
    physical = next(one for one in host["pci"] if one["address"] == A)
    host["pci"].append({**physical, "address": virtual, "physfn": A, "iommu_group": 90})
    physical["virtfns"] = [virtual]
    assert rows(planned(host)) == []


@pytest.mark.parametrize("driver", ["vfio-pci", "nouveau"])
def test_a_gpu_that_its_makers_driver_does_not_hold_is_left_alone(driver: str) -> None:
    made = planned(host_of(driver=driver, persistence=False), settings={"ecc": "disabled"})
    assert rows(made) == []


def test_of_an_amd_gpu_the_power_limit_alone_is_set() -> None:
    host = host_of(driver="amdgpu", vendor="amd", power_limit_watts=600.0, persistence=None)
    assert rows(planned(host, settings=dict.fromkeys(MODES, True))) == [("gpu-power-limit", A, 600.0, 700.0)]


def test_what_nobody_says_how_to_set_is_said_once() -> None:
    made = planned(host_of(driver="habanalabs", vendor="habana", power_limit_watts=600.0))
    assert rows(made) == []
    ((level, text),) = said(made, "driver habanalabs")
    assert level == "info"
    assert text.startswith(f"persistence, power_limit_watts of {A}, {B}, {C} left alone: no source")


# --- by name -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "current", "want", "effect"),
    [
        ("ecc", "disabled", True, False, "reboot"),
        ("mig_mode", "enabled", "disabled", "enabled", "now"),
        ("compute_mode", "exclusive_process", "default", "exclusive_process", "now"),
    ],
)
def test_a_mode_is_changed_by_name_one_gpu_an_action(
    name: str, value: str, current: Any, want: Any, effect: str
) -> None:
    made = planned(host_of(), "none", {name: value})
    assert rows(made) == [(MODES[name], address, current, want) for address in (A, B, C)]
    for action in of_gpus(made):
        assert action.effect == effect
        assert f"asked for by name: settings.{name}" in action.why
        disruptive = setting_of(action.kind, action.target).disruptive
        assert disruptive is (name != "compute_mode")


@pytest.mark.parametrize(("value", "told"), [("disabled", ["warn"] * 3), ("enabled", [])])
def test_memory_without_ecc_is_said(value: str, told: list[str]) -> None:
    made = planned(host_of(ecc=False, ecc_pending=False), "none", {"ecc": value})
    assert [one.level for one in made.findings if "corrects and reports no wrong bit" in one.text] == told


def test_modes_come_before_what_a_reset_loses() -> None:
    settings = {"mig_mode": "enabled", "ecc": "disabled"}
    made = planned(host_of(persistence=False, power_limit_watts=500.0), settings=settings)
    kinds = [kind for kind, address, _, _ in rows(made) if address == A]
    assert kinds == ["gpu-mig-mode", "gpu-ecc", "gpu-persistence", "gpu-power-limit"]


def test_where_mig_is_to_be_enabled_the_compute_mode_is_not_the_gpus() -> None:
    made = planned(host_of(), "none", {"mig_mode": "enabled", "compute_mode": "prohibited"})
    assert {row[0] for row in rows(made)} == {"gpu-mig-mode"}
    assert [level for level, _ in said(made, "settings.compute_mode")] == ["warn"]


def test_a_mode_that_waits_for_a_reset_is_neither_old_nor_new() -> None:
    pending = {"mode": "disabled", "pending": "enabled"}
    (first, *_) = rows(planned(host_of(mig=pending), "none", {"mig_mode": "enabled"}))
    assert first == ("gpu-mig-mode", A, "disabled (enabled pending)", "enabled")


def test_ecc_that_would_change_with_the_next_reset_is_an_action_too() -> None:
    made = planned(host_of(ecc=True, ecc_pending=False), "none", {"ecc": "enabled"})
    assert rows(made) == [("gpu-ecc", A, True, True)]


def test_a_given_limit_is_every_gpus() -> None:
    made = planned(host_of(power_limit_watts=650.0), "none", {"power_limit_watts": 650})
    assert rows(made) == [("gpu-power-limit", address, 700.0, 650.0) for address in (B, C)]
    assert {action.why for action in of_gpus(made)} == {"asked for by name: settings.power_limit_watts"}


def test_a_limit_outside_a_boards_range_is_said_and_left() -> None:
    made = planned(host_of(power_max_watts=500.0, power_limit_watts=500.0), "none", {"power_limit_watts": 600})
    assert [row[1] for row in rows(made)] == [B, C]
    ((level, text),) = said(made, A)
    assert level == "warn"
    assert "600 W is outside the board's range of 200 to 500 W" in text


def test_under_mig_the_compute_mode_is_not_the_gpus() -> None:
    made = planned(host_of(mig={"mode": "enabled", "pending": "enabled"}), "none", {"compute_mode": "prohibited"})
    assert [row[1] for row in rows(made)] == [B, C]
    assert "while MIG is enabled" in said(made, A)[0][1]


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"persistence": True}, {"persistence": None}),
        ({"power_limit_watts": True}, {"power_default_watts": None}),
        ({"power_limit_watts": 600}, {"power_limit_watts": None}),
        ({"ecc": "disabled"}, {"ecc": None}),
        ({"mig_mode": "enabled"}, {"mig": None}),
        ({"compute_mode": "prohibited"}, {"compute_mode": None}),
    ],
)
def test_what_is_unknown_is_said_and_left(settings: dict[str, Any], facts: dict[str, Any]) -> None:
    made = planned(host_of(**facts), "none", settings)
    assert A not in [row[1] for row in rows(made)]
    ((level, text),) = said(made, A)
    assert level == "warn"
    assert "unknown" in text
    assert next(iter(settings)) in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ecc", False),  # could mean disabled
        ("mig_mode", False),
        ("ecc", "off"),
        ("mig_mode", "all"),
        ("mig_mode", {A: "enabled"}),
        ("compute_mode", "exclusive_thread"),
        ("persistence", 1),
        ("power_limit_watts", 0),
        ("power_limit_watts", 10_001),
        ("power_limit_watts", 600.5),
        ("power_limit_watts", "600"),
    ],
)
def test_a_value_that_it_cannot_have_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadInput) as error:
        planned(host_of(), settings={name: value})
    assert error.value.where.endswith(f"settings.{name}")
    assert "keep" in error.value.hint
