"""playbooks/handover.yml: hosts that name devices hand them over in waves, the others are only validated."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fleethandovers import Between, fleet_of, statement
from fleethosts import COLLECTION, script
from handovers import SIGNER
from sweeps import FULL
from system.test_fleet_playbooks_waves import DONE, PASSED, hook, logged, says

from hosttune.handover.erasing import SPARE_SECONDS
from hosttune.handover.erasing.survey import _ACTIONS
from hosttune.handover.testing import LIMIT_SECONDS

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no OpenSSH client")


def test_named_devices_are_handed_over_signed_here_verified_there_and_then_given_back(tmp_path: Path) -> None:
    """The host that names none is validated as always, and nothing else is asked of it."""
    one = Between(tmp_path, "h1")
    plain = {"hosttune_handover": [], "hosttune_command": script(tmp_path / "plain", says(PASSED))}
    fleet = fleet_of(tmp_path, [one], h2=plain)
    played = fleet.play("handover", undrain=hook(tmp_path, "undrain"))
    assert (one.asked(), logged(tmp_path)) == (["handover --device", "handover verify"], ["undrain h1"])
    assert {name: fleet.outcomes(name) for name in ("course", "sign", "verify", "undrain", "handover")} == {
        "course": {"h1": "ok"}, "sign": {"h1": "ok"}, "verify": {"h1": "ok"}, "undrain": {"h1": "ok"},
        "handover": {"h2": "ok"},
    }  # fmt: skip
    assert fleet.records("h2") == {"handover"}
    assert fleet.document("h1", "verify")["verdict"] == "valid"
    assert statement(fleet, "h1")["predicate"]["expires_at"]
    assert (fleet.results / "h1/statement.json.sig").is_file()
    assert len(list((one.root / "var/lib/hosttune/handover/signed").glob("*.json"))) == 1  # kept on the host
    (sent,) = (one.root / "var/lib/hosttune/handover/revoked").iterdir()
    assert sent.read_bytes() == Path(fleet.variables["hosttune_revoked"]).read_bytes()  # the controller's list, whole
    assert "BEGIN OPENSSH" not in played.out + "".join(path.read_text() for path in fleet.results.rglob("*.json"))


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"hosttune_key": "/no/key"}, "hosttune_key: cannot read /no/key"),
    "identity": ({"hosttune_identity": ""}, "hosttune_identity is not set"),
    "guests": ({"hosttune_handover": ["a", "b"]}, "names two guests, a and b"),
    "mapping": ({"hosttune_handover": {"device": 1}}, "hosttune_handover is not a list of texts"),
    "image": ({"hosttune_test_guest": "image.qcow2"}, "hosttune_test_guest is not an absolute path on the host"),
    "option": ({"hosttune_erase": ["--yes"]}, "hosttune_erase is not a list of texts"),
}


def test_nothing_is_given_back_without_a_valid_statement(tmp_path: Path) -> None:
    """The first wave: void, not clean, of another machine or time, another one verified, not signable, so not begun."""
    void, unclean = Between(tmp_path, "void"), Between(tmp_path, "unclean", outcome="failed")
    foreign, later = Between(tmp_path, "foreign"), Between(tmp_path, "later")
    void.boots()
    never = script(tmp_path / "never", f"touch {tmp_path}/reached")
    strange = Between(tmp_path, "strange")
    strange.verifies({"host": "scratch", "devices": ["0000:41:00.0"], "issued_at": "x", "expires_at": "x"})
    older = Between(tmp_path, "older")
    older.states("2026-01-01T00:00:00+00:00")
    base = {"hosttune_handover": ["0000:41:00.0"], "hosttune_command": never}
    unusable = {name: {**base, **variables} for name, (variables, _) in UNUSABLE.items()}
    fleet = fleet_of(tmp_path, [void, unclean, foreign, strange, older], **unusable)
    fleet.hosts["later"] = later.variables()  # type: ignore[index]
    (fleet.results / "foreign").mkdir(parents=True)
    (fleet.results / "foreign/discover.json").write_text(json.dumps({"hostname": "scratch", "digest": "e" * 64}))
    waves = [len(fleet.hosts) - 1, 1]
    played = fleet.play("handover", code=2, undrain=hook(tmp_path, "undrain"), waves=waves)
    assert (logged(tmp_path), later.asked(), fleet.records("later")) == ([], [], set())
    assert "The gate of the wave" in played.out

    bad = dict.fromkeys(UNUSABLE, "bad-input")
    assert fleet.outcomes("course") == {
        "void": "ok",
        "unclean": "no",
        "foreign": "ok",
        "strange": "ok",
        "older": "ok",
        **bad,
    }
    for name, (_, why) in UNUSABLE.items():
        assert why in fleet.document(name, "course")["fleet"]["why"]
    assert not (tmp_path / "reached").exists()
    assert "erased is failed" in fleet.document("unclean", "course")["fleet"]["why"]
    assert fleet.outcomes("sign") == {"void": "ok", "foreign": "refused", "strange": "ok", "older": "refused"}
    assert "it is an older one, or a clock is wrong" in fleet.document("older", "sign")["fleet"]["why"]
    assert "the machine of the statement is" in fleet.document("foreign", "sign")["fleet"]["why"]
    assert fleet.outcomes("verify") == {"void": "no", "strange": "unknown"}
    why = fleet.document("strange", "verify")["fleet"]["why"]
    assert why.startswith("it verified another statement: its issued_at, expires_at, devices")
    assert "boot id" in fleet.document("void", "verify")["fleet"]["why"]
    assert set(fleet.outcomes("undrain").values()) == {"unknown"}
    assert sorted(path.parent.name for path in fleet.results.glob("*/statement.json.sig")) == ["strange", "void"]


def test_devices_that_extra_variables_name_are_no_host_s(tmp_path: Path) -> None:
    """They win over the inventory's, and would be erased on every host that has such a drive."""
    one = Between(tmp_path, "h1")
    fleet = fleet_of(tmp_path, [one])
    fleet.play("handover", code=2, erase=["S1"], undrain=hook(tmp_path, "undrain"))
    assert (one.asked(), logged(tmp_path), fleet.outcomes("course")) == ([], [], {"h1": "bad-input"})
    why = fleet.document("h1", "course")["fleet"]["why"]
    assert why.startswith("hosttune_erase is an extra variable (-e), so the same for every host")


def loaded(name: str) -> Any:
    """A module of the playbooks, as the controller loads it."""
    spec = importlib.util.spec_from_file_location(name, COLLECTION / "plugins/module_utils" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_hand_over_may_take_as_long_as_the_host_lets_its_drives_take() -> None:
    """The controller would otherwise stop a hand-over whose drive overwrites itself, and call that slow."""
    longest = max(limit for *_, limit in _ACTIONS) + SPARE_SECONDS
    for drives in range(4):
        allowed = loaded("hosttune_handover").seconds([f"S{number}" for number in range(drives)])
        assert drives * longest + LIMIT_SECONDS[2] < allowed < 7 * 86400, drives


def test_more_drives_than_a_week_is_long_for_take_less_than_a_week() -> None:
    assert loaded("hosttune_handover").seconds([f"S{number}" for number in range(99)]) < 7 * 86400


def test_a_hand_over_that_is_stopped_says_what_becomes_of_it(tmp_path: Path) -> None:
    one, other, given = (Between(tmp_path, name) for name in ("h1", "h2", "h3"))
    waits = {**one.variables(), "hosttune_command": script(tmp_path / "waits", "sleep 60"), "hosttune_timeout": 1}
    fleet = fleet_of(tmp_path, [other], h1=waits, h3={**given.variables(), "hosttune_timeout": 99})
    played = fleet.play("handover", "-vv", code=2, waves=[3])
    assert fleet.outcomes("course") == {"h1": "slow", "h2": "ok", "h3": "ok"}
    why = fleet.document("h1", "course")["fleet"]["why"]
    assert why.startswith("no answer within 1 s: a device that was not returned yet stays quarantined, and an erasure")
    limits = {"h1: course: may take 1 s", "h2: course: may take 217800 s", "h2: verify: may take 300 s",
              "h3: course: may take 99 s"}  # fmt: skip
    assert {one for one in limits if one in played.out} == limits


OTHER = "\n".join(
    f"[ $1 = {verb} ] && {{ {says(document)}\n}}"
    for verb, document in {"validate": PASSED, "apply": DONE, "status": DONE}.items()
)


@pytest.mark.skipif(not FULL, reason="eight runs of Ansible: part of the full sweep (HOSTTUNE_SWEEP=full)")
def test_what_a_hand_over_left_drained_only_a_hand_over_gives_back(tmp_path: Path) -> None:
    """It ended well on the host, which has no quarantined device then, and its statement was found void."""
    one = Between(tmp_path, "h1")
    fleet = fleet_of(tmp_path, [one])
    fleet.hosts["h1"].update(one.variables(OTHER))
    undrain = hook(tmp_path, "undrain")
    fleet.variables["hosttune_identity"] = "nobody@example.com"
    fleet.play("handover", code=2, undrain=undrain)
    assert (fleet.outcomes("course"), fleet.outcomes("verify")) == ({"h1": "ok"}, {"h1": "no"})
    fleet.play("apply", code=2, undrain=undrain, timeout="soon", keep_before=True)
    assert (fleet.outcomes("apply"), fleet.outcomes("undrain")) == ({"h1": "bad-input"}, {"h1": "bad-input"})
    played = fleet.play("apply", code=2, undrain=undrain)  # again
    assert "not given back: a hand-over that did not end with a valid statement left it drained" in played.out
    assert (fleet.outcomes("apply"), fleet.outcomes("undrain")) == ({"h1": "ok"}, {"h1": "unknown"})
    assert logged(tmp_path) == []

    fleet.variables["hosttune_identity"] = SIGNER
    path = fleet.results / "h1/statement.json"
    whole = path.read_text()
    path.write_text(whole[:99])
    fleet.play("handover", code=2, undrain=undrain, keep_course=True)
    assert "statement.json is not a statement" in fleet.document("h1", "sign")["fleet"]["why"]
    path.write_text(whole)
    fleet.play("handover", undrain=undrain, keep_course=True)
    fleet.play("apply", undrain=undrain)
    assert logged(tmp_path) == ["undrain h1"] * 2
    (fleet.results / "h1/undrain.json").write_text("{}")
    fleet.play("apply", code=2, undrain=undrain)
    assert logged(tmp_path) == ["undrain h1"] * 2
