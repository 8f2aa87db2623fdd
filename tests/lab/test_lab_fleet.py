"""`hosttune fleet` over two hosts that reboot: waves, guests, a canary that gets worse, and the way back."""

from __future__ import annotations

import pytest

from lab.product import STATE
from lab.rollout import CANARY, GPU, SECOND, Rollout

pytestmark = pytest.mark.lab

DRAIN, UNDRAIN = "drain", "undrain"
GUEST = "staged"


def test_a_plan_answers_for_both(rollout: Rollout) -> None:
    assert rollout.planned.status == 0
    for host in (CANARY, SECOND):
        planned = rollout.planned.files[host]["plan"]
        assert [guest["name"] for guest in planned["guests"]] == [GUEST]
        assert f"driver:{GPU}" in {action["id"] for action in planned["actions"]}
        assert rollout.planned.answer(host, "plan")["changed"] is True


# --- a host that may not reboot -------------------------------------------------------------------------------


def test_a_host_with_a_running_guest_is_not_rebooted(rollout: Rollout) -> None:
    """What can be set is set, and the host is not given back: its reboot is still to come."""
    asked = rollout.guarded
    assert (asked.status, asked.waves) == (1, [False, None]), asked.story
    outcomes = asked.outcomes(CANARY)
    assert outcomes == {"before": outcomes["before"], "apply": "ok", "status": "refused", "undrain": "unknown"}
    assert asked.answer(CANARY, "apply")["reboot_required"] is True
    assert "guests are running: tenant" in asked.answer(CANARY, "status")["why"]
    assert rollout.staged.id == rollout.before[CANARY].id
    assert asked.hooks == [(DRAIN, CANARY)]


# --- a host that got worse ------------------------------------------------------------------------------------


def test_the_gate_stays_shut_behind_a_host_that_got_worse(rollout: Rollout) -> None:
    """Nothing of ours is amiss on it: the boot was as planned, and something else is worse than it was."""
    asked = rollout.broken
    assert (asked.status, asked.waves) == (1, [False, None]), asked.story
    outcomes = asked.outcomes(CANARY)
    assert (outcomes["apply"], outcomes["status"], outcomes["validate"]) == ("ok", "ok", "no")
    assert asked.files[CANARY]["validate"]["worse"] == ["ksm host: pass -> warn, 1"]
    assert asked.report["waves"][0]["why"] == [f"{CANARY}: validate: no: worse than before: ksm host: pass -> warn, 1"]
    assert f"{CANARY}: validate: no: worse than before: ksm host" in asked.errors
    assert asked.report["stopped"] == "the gate after wave 1 of 2 did not open"
    assert asked.hooks == [(DRAIN, CANARY)]


def test_the_second_host_is_untouched_until_then(rollout: Rollout) -> None:
    assert rollout.spared == rollout.before[SECOND]._replace(state=rollout.spared.state)
    assert rollout.spared.state == [f"{STATE}/plan.json"]
    for asked in (rollout.guarded, rollout.broken):
        assert SECOND not in {host for _, host in asked.hooks}
        assert asked.outcomes(SECOND) == {"apply": "unknown"}
        assert asked.files[SECOND].keys() == {"plan"}


# --- mended ---------------------------------------------------------------------------------------------------


def test_once_mended_the_run_goes_on_and_ends(rollout: Rollout) -> None:
    asked = rollout.done
    assert (asked.status, asked.waves, asked.report["stopped"]) == (0, [True, True], None), asked.story
    for host in (CANARY, SECOND):
        outcomes = asked.outcomes(host)
        assert (outcomes["apply"], outcomes["validate"]) == ("ok", "ok")
        assert asked.files[host]["validate"]["worse"] == []
    assert asked.hooks == [(DRAIN, CANARY), (UNDRAIN, CANARY), (DRAIN, SECOND), (UNDRAIN, SECOND)]


def test_a_canary_that_was_done_is_only_proven(rollout: Rollout) -> None:
    """Its settings and its boot are those of the earlier attempt, and so is what it is compared with."""
    assert [asked.answer(CANARY, "apply")["changed"] for asked in (rollout.guarded, rollout.done)] == [True, False]
    assert [told.boot for told in rollout.done.told if told.host == CANARY] == [rollout.booted[CANARY].id] * 2
    asked = (rollout.guarded, rollout.broken, rollout.done)
    assert len({one.answer(CANARY, "before")["started"] for one in asked}) == 1


def test_a_host_is_drained_changed_booted_proven_and_given_back(rollout: Rollout) -> None:
    drained, given_back = (told for told in rollout.done.told if told.host == SECOND)
    assert (drained.boot, given_back.boot) == (rollout.before[SECOND].id, rollout.booted[SECOND].id)
    assert drained.boot != given_back.boot
    assert rollout.done.files[SECOND]["guests"]["schema"] == "hosttune.host/v1", "what discovery found there"
    answers = [rollout.done.answer(SECOND, phase) for phase in ("before", "apply", "guests", "status", "validate")]
    assert [answer["outcome"] for answer in answers] == ["ok"] * 5
    times = [answer["started"] for answer in answers]
    assert [times[0], drained.at, *times[1:], given_back.at] == sorted([*times, drained.at, given_back.at])


def test_one_run_asked_all_that(rollout: Rollout) -> None:
    runs = {asked.report["run"] for asked in (rollout.guarded, rollout.broken, rollout.done)}
    assert len(runs) == 1
    assert {rollout.done.answer(host, "validate")["run"] for host in (CANARY, SECOND)} == runs


# --- back -----------------------------------------------------------------------------------------------------


def test_a_revert_of_both_at_once_reboots_them(rollout: Rollout) -> None:
    """In one wave, which takes less time. Reverts in several: test_fleet_ssh and test_fleet_playbooks_waves."""
    asked = rollout.reverted
    assert (asked.status, asked.waves, asked.report["stopped"]) == (0, [True], None), asked.story
    for host in (CANARY, SECOND):
        assert [hook for hook, name in asked.hooks if name == host] == [DRAIN, UNDRAIN]
        outcomes = asked.outcomes(host)
        assert (outcomes["revert"], outcomes["status"], outcomes["validate"]) == ("ok", "ok", "ok")
        assert asked.answer(host, "revert")["changed"] is True
        assert rollout.taken[host].id not in (rollout.booted[host].id, rollout.before[host].id)
