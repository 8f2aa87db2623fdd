"""No proof: hosts lost on the way back, a strategy without gates, guests that libvirt does not know, old answers."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path

import pytest
from applyroots import Root
from fleethosts import Fleet, fleet, lone
from test_fleet_playbooks_waves import DONE, FAILS, PASSED, canned, hook, instead, logged, reboot, says

__all__ = ["fleet", "lone"]


class Free(Fleet):
    """Hosts of an operator whose ansible.cfg lets each of them run at its own pace."""

    def environment(self) -> dict[str, str]:
        """As the fleet's, and ANSIBLE_STRATEGY."""
        return {**super().environment(), "ANSIBLE_STRATEGY": "free"}


def test_a_wave_has_its_gate_whatever_strategy_ansible_is_set_to(tmp_path: Path) -> None:
    """Left to run free, h2 would be through before h1 has failed, and h3 be changed."""
    fleet = canned(tmp_path, apply=f"if mkdir {tmp_path}/first 2>/dev/null; then sleep 4; exit 3; fi\n{says(DONE)}")
    Free(*(getattr(fleet, one.name) for one in dataclasses.fields(fleet))).play("apply", code=2, waves=[2, "100%"])
    assert sorted(fleet.outcomes("apply").values()) == ["ok", "refused"]
    assert fleet.records("h3") == set()


def test_a_host_that_is_lost_while_it_is_given_back_is_not_done(tmp_path: Path) -> None:
    fleet = canned(tmp_path)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ssh = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": closed.getsockname()[1]}
        task = {"name": "Ask the host", "ansible.builtin.ping": {}, "vars": ssh}
        fleet.play("apply", code=None, undrain=hook(tmp_path, "undrain", json.dumps([task])))
    assert fleet.outcomes("validate") == {"h1": "ok"}
    sealed = fleet.document("h1", "undrain")["fleet"]
    assert (sealed["outcome"], sealed["phase"], sealed["why"]) == ("unknown", "undrain", "not given back yet")
    assert fleet.records("h2") == set()


def test_a_host_that_is_given_back_says_so(tmp_path: Path) -> None:
    fleet = canned(tmp_path)
    fleet.play("apply", "--limit", "h1", undrain=hook(tmp_path, "undrain"))
    assert fleet.outcomes("undrain") == {"h1": "ok"}
    assert fleet.document("h1", "undrain")["fleet"]["changed"] is False


@pytest.mark.parametrize(("outcome", "subject"), [("warn", "0000:41:00.0"), ("unknown", "host")])
def test_a_host_between_two_tenants_is_not_given_back_by_a_change(tmp_path: Path, outcome: str, subject: str) -> None:
    """A failed hand-over left it drained: a wave of another verb does not end that."""
    row = {"check": "device-quarantined", "subject": subject, "outcome": outcome}
    fleet = canned(tmp_path, validate=says({**PASSED, "results": [row]}))
    played = fleet.play("apply", "--limit", "h1", code=2, undrain=hook(tmp_path, "undrain"))
    assert f"not given back: quarantined: {subject}." in played.out
    assert (fleet.outcomes("apply"), fleet.outcomes("undrain")) == ({"h1": "ok"}, {"h1": "unknown"})
    assert "undrain h1" not in logged(tmp_path)


def test_an_undrain_that_fails_leaves_the_host_to_be_given_back(tmp_path: Path) -> None:
    fleet = canned(tmp_path)
    fleet.play("apply", code=2, undrain=hook(tmp_path, "undrain", FAILS))
    assert fleet.outcomes("undrain") == {"h1": "unknown"}


def test_without_an_undrain_or_in_check_mode_there_is_nothing_to_give_back(tmp_path: Path) -> None:
    fleet = canned(tmp_path)
    fleet.play("apply", "--limit", "h1", drain=hook(tmp_path, "drain"))
    fleet.play("apply", "--limit", "h1", "--check", undrain=hook(tmp_path, "undrain"))
    assert not [name for name in fleet.records("h1") if "undrain" in name]
    assert "undrain h1" not in logged(tmp_path)


def test_a_host_is_not_rebooted_under_a_guest_that_libvirt_does_not_know(lone: Fleet, tmp_path: Path) -> None:
    """By what discovery itself says of such a guest: the two must not drift apart."""
    Root(lone.root("h1")).put(".hosttune/commands/qemu-processes", "4321 stray\n")
    waits = says({**DONE, "reboot_required": True})
    lone.hosts["h1"]["hosttune_command"] = instead(tmp_path, validate=says(PASSED), apply=waits)
    lone.play("apply", code=2, reboot=True, reboot_with=reboot(tmp_path))
    assert logged(tmp_path) == []
    assert lone.outcomes("guests") == {"h1": "ok"}
    sealed = lone.document("h1", "status")["fleet"]
    assert sealed["outcome"] == "refused"
    assert "guests are running: a QEMU guest outside libvirt (stray)" in sealed["why"]


def test_a_handover_is_judged_by_its_verdict_whatever_the_gate_of_waves_is(tmp_path: Path) -> None:
    """Compared with what it was before, a host that was as bad then would be fit for its next tenant."""
    fleet = canned(tmp_path, validate=f'case "$*" in *--gate*|*--against*) exit 9 ;; esac\n{says(PASSED)}')
    fleet.play("validate", "--limit", "h1", record="before")
    fleet.play("handover", "--limit", "h1", gate="worse", against="before")
    assert fleet.outcomes("handover") == {"h1": "ok"}
