"""Waves of apply and revert: a gate after each, hooks in their order, reboots only with consent and without guests."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from applyroots import Root
from fleethosts import HOSTTUNE, Fleet, fleet, pristine, script

__all__ = ["fleet", "pristine"]

# As hosttune, but for verbs that a test answers itself: {verb} stands for the lines of such a case.
_INSTEAD = """case "$1:$*" in
{cases}
esac
exec {hosttune} "$@"
"""


def instead(folder: Path, **cases: str) -> str:
    """hosttune, with shell of a test in place of some verbs (`verb="lines"`)."""
    lines = "\n".join(f"{verb}:*) {text} ;;" for verb, text in cases.items())
    return script(folder / "instead", _INSTEAD.format(cases=lines, hosttune=HOSTTUNE))


def hook(folder: Path, name: str, text: str = "") -> str:
    """A tasks file of the operator's that notes that it ran, and what was there by then."""
    log = folder / "log"
    path = folder / f"{name}.yml"
    note = {
        "name": name.capitalize(),
        "ansible.builtin.shell": f"echo '{name}' {{{{ inventory_hostname }}}} >> {log}",
        "delegate_to": "localhost",
        "changed_when": False,
    }
    path.write_text(text or json.dumps([note]))
    return str(path)


def logged(folder: Path) -> list[str]:
    """What hooks and commands of a test noted, in order."""
    path = folder / "log"
    return path.read_text().splitlines() if path.exists() else []


def noting(folder: Path) -> str:
    """hosttune, each verb noted."""
    return script(folder / "noting", f'echo "$1" >> {folder}/log\nexec {HOSTTUNE} "$@"')


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_a_host_that_fails_in_the_first_wave_stops_the_second(fleet: Fleet, tmp_path: Path, verb: str) -> None:
    fleet.hosts["h1"]["hosttune_command"] = instead(
        tmp_path, **{verb: "echo 'error: no' >&2; echo 'where: x' >&2; exit 3"}
    )
    untouched = {host: Root(fleet.root(host)).tree() for host in ("h2", "h3")}
    played = fleet.play(verb, code=2)
    assert fleet.outcomes(verb) == {"h1": "refused"}
    assert fleet.records("h2") == fleet.records("h3") == set()
    assert {host: Root(fleet.root(host)).tree() for host in ("h2", "h3")} == untouched
    assert "refused: no (x)" in played.out


def test_a_wave_is_finished_although_one_of_its_hosts_failed(fleet: Fleet, tmp_path: Path) -> None:
    fleet.hosts["h1"]["hosttune_command"] = instead(tmp_path, apply="kill -9 $$")
    fleet.variables["hosttune_waves"] = [2, "100%"]  # of the inventory
    played = fleet.play("apply", code=2)
    assert fleet.outcomes("apply") == {"h1": "died", "h2": "ok"}
    assert fleet.outcomes("validate") == {"h2": "ok"}
    assert fleet.records("h3") == set()
    assert played.recap()["h1"]["rescued"] == 1


def test_what_got_worse_stops_although_the_verdict_passes(fleet: Fleet, tmp_path: Path) -> None:
    worse = fleet.folder / "worse.json"
    fleet.play("validate", "--limit", "h1")
    document = fleet.document("h1", "validate")
    document.pop("fleet")
    passed = next(result for result in document["results"] if result["outcome"] == "pass")
    passed["outcome"] = "warn"
    worse.write_text(json.dumps(document))
    both = f'case "$*" in *--against*) cat {worse}; exit 1 ;; esac'
    fleet.hosts["h1"]["hosttune_command"] = instead(tmp_path, validate=both)
    fleet.play("apply", code=2)
    assert fleet.outcomes("validate") == {"h1": "no"}
    assert fleet.records("h2") == set()


@pytest.mark.parametrize(("gate", "stops"), [("either", True), ("verdict", True), ("worse", False)])
def test_the_gate_says_what_stops_a_host_that_was_bad_before(
    fleet: Fleet, tmp_path: Path, gate: str, stops: bool
) -> None:
    for host in fleet.hosts:
        Root(fleet.root(host)).put("sys/bus/pci/devices/0000:56:00.0/current_link_width", "4\n")
    fleet.play("apply", code=2 if stops else 0, gate=gate)
    assert fleet.outcomes("before")["h1"] == "no"
    assert fleet.outcomes("validate")["h1"] == ("no" if stops else "ok")
    assert fleet.outcomes("apply") == ({"h1": "ok"} if stops else {"h1": "ok", "h2": "ok", "h3": "ok"})


def test_hooks_run_in_order(fleet: Fleet, tmp_path: Path) -> None:
    hooks: dict[str, Any] = {"drain": hook(tmp_path, "drain"), "undrain": hook(tmp_path, "undrain")}
    fleet.play("apply", "--limit", "h1", command=noting(tmp_path), **hooks)
    assert logged(tmp_path) == ["validate", "drain h1", "apply", "validate", "undrain h1"]


@pytest.mark.parametrize("phase", ["apply", "validate"])
def test_a_host_that_is_not_well_is_not_given_back(fleet: Fleet, tmp_path: Path, phase: str) -> None:
    against = 'case "$*" in *--against*) exit 9 ;; esac'
    command = instead(tmp_path, **{phase: "exit 3" if phase == "apply" else against})
    hooks: dict[str, Any] = {"drain": hook(tmp_path, "drain"), "undrain": hook(tmp_path, "undrain")}
    fleet.play("apply", "--limit", "h1", code=2, command=command, **hooks)
    assert logged(tmp_path) == ["drain h1"]


FAILS = json.dumps([{"name": "Move the guests away", "ansible.builtin.fail": {"msg": "nowhere to go"}}])


@pytest.mark.parametrize("missing", [False, True])
def test_a_drain_that_fails_leaves_the_host_as_it_is(fleet: Fleet, tmp_path: Path, missing: bool) -> None:
    drain = "/no/such/drain.yml" if missing else hook(tmp_path, "drain", FAILS)
    before = Root(fleet.root("h1")).tree()
    fleet.play("apply", code=2, drain=drain)
    assert Root(fleet.root("h1")).tree() == before
    assert fleet.records("h2") == set()
    assert "apply" not in fleet.records("h1")
    sealed = fleet.document("h1", "hook")["fleet"]
    assert (sealed["outcome"], sealed["phase"]) == ("no", "hook")
    assert sealed["why"] == ("a file of tasks: it cannot be read" if missing else "Move the guests away: nowhere to go")


def test_an_undrain_that_fails_stops_the_next_wave(fleet: Fleet, tmp_path: Path) -> None:
    fleet.play("apply", code=2, undrain=hook(tmp_path, "undrain", FAILS))
    assert fleet.outcomes("validate") == {"h1": "ok"}
    assert fleet.document("h1", "hook")["fleet"]["outcome"] == "no"
    assert fleet.records("h2") == set()


@pytest.mark.parametrize("where", ["the host", "its hook"])
def test_a_host_that_is_lost_stops_the_next_wave(fleet: Fleet, tmp_path: Path, where: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ssh = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": closed.getsockname()[1]}
        variables: dict[str, Any] = {"waves": [2, "100%"]}
        if where == "the host":
            fleet.hosts["h1"].update(ssh)
        else:
            task = {
                "name": "Ask the host",
                "ansible.builtin.ping": {},
                "vars": ssh,
                "when": "inventory_hostname == 'h1'",
            }
            variables["drain"] = hook(tmp_path, "drain", json.dumps([task]))
        fleet.play("apply", code=None, **variables)
    assert fleet.records("h3") == set()
    assert fleet.outcomes("apply") == {"h2": "ok"}
    assert fleet.outcomes("before") == {"h1": "unreachable" if where == "the host" else "ok", "h2": "ok"}


# --- reboots -------------------------------------------------------------------------------------------------


def pending(folder: Path, guests: str = "[]") -> str:
    """hosttune, whose apply waits for a reboot, on a host with such guests, until the reboot of a test was there."""
    result = {"schema": "hosttune.result/v1", "host": "h", "verb": "apply", "changed": True, "entries": [], "drift": []}
    waits = json.dumps({**result, "reboot_required": True, "open_transaction": None})
    done = json.dumps({**result, "verb": "status", "reboot_required": False, "open_transaction": None})
    host = '{"schema": "hosttune.host/v1", "guests": %s}' % guests  # noqa: UP031
    return instead(
        folder,
        apply=f"cat <<'END'\n{waits}\nEND\nexit 0",
        discover=f"cat <<'END'\n{host}\nEND\nexit 0",
        status=f"[ -e {folder}/rebooted ] && cat <<'END' && exit 0\n{done}\nEND\ncat <<'END'\n{waits}\nEND\nexit 0",
    )


def reboot(folder: Path) -> str:
    """A reboot of a test's own."""
    return hook(folder, "reboot", json.dumps([
        {"name": "Reboot", "ansible.builtin.shell": f"echo reboot >> {folder}/log; touch {folder}/rebooted",
         "delegate_to": "localhost", "changed_when": True},
    ]))  # fmt: skip


def test_without_consent_the_host_stays_pending_and_the_wave_stops(fleet: Fleet, tmp_path: Path) -> None:
    undrain = hook(tmp_path, "undrain")
    fleet.play("apply", code=2, command=pending(tmp_path), undrain=undrain, reboot_with=reboot(tmp_path))
    assert logged(tmp_path) == []
    assert fleet.document("h1", "apply")["fleet"]["reboot_required"] is True
    sealed = fleet.document("h1", "status")["fleet"]
    assert (sealed["outcome"], "hosttune_reboot is not set" in sealed["why"]) == ("refused", True)
    assert fleet.records("h2") == set()


@pytest.mark.parametrize(
    ("guests", "why"),
    [
        (
            '[{"name": "train", "state": "running"}, {"name": "off", "state": "shut off"}]',
            "guests are running: train (",
        ),
        ('[{"name": "train", "state": "paused"}]', "guests are running: train ("),
        ('[{"name": "train", "state": null}]', "guests are running: train ("),
        ("null", "its guests are unknown"),
    ],
)
def test_a_host_with_guests_is_not_rebooted(fleet: Fleet, tmp_path: Path, guests: str, why: str) -> None:
    command, own = pending(tmp_path, guests), reboot(tmp_path)
    fleet.play("apply", code=2, command=command, reboot=True, reboot_with=own)
    assert logged(tmp_path) == []
    sealed = fleet.document("h1", "status")["fleet"]
    assert sealed["outcome"] == "refused"
    assert why in sealed["why"]
    assert fleet.records("h2") == set()
    fleet.play("apply", command=command, reboot=True, reboot_with=own, reboot_guests=True)
    assert logged(tmp_path) == ["reboot"] * 3
    assert fleet.outcomes("status") == {"h1": "ok", "h2": "ok", "h3": "ok"}


def test_a_reboot_comes_between_drain_and_undrain_and_is_confirmed(fleet: Fleet, tmp_path: Path) -> None:
    hooks: dict[str, Any] = {
        "drain": hook(tmp_path, "drain"),
        "undrain": hook(tmp_path, "undrain"),
        "reboot_with": reboot(tmp_path),
    }
    fleet.play("apply", "--limit", "h1", command=pending(tmp_path), reboot=True, **hooks)
    assert logged(tmp_path) == ["drain h1", "reboot", "undrain h1"]
    assert fleet.records("h1") == {"before", "apply", "guests", "status", "validate"}
    assert fleet.executions()["h1"] == 5  # before, apply, guests, status, validate


def test_a_reboot_that_did_not_help_stops(fleet: Fleet, tmp_path: Path) -> None:
    nothing = hook(tmp_path, "nothing", "[]\n")
    undrain = hook(tmp_path, "undrain")
    command = pending(tmp_path)
    fleet.play("apply", code=2, command=command, reboot=True, reboot_with=nothing, undrain=undrain, settle=0)
    sealed = fleet.document("h1", "status")["fleet"]
    assert (sealed["outcome"], sealed["why"]) == ("no", "a reboot is pending")
    assert logged(tmp_path) == []
    assert fleet.records("h2") == set()


def test_a_captured_host_is_never_rebooted_itself(fleet: Fleet, tmp_path: Path) -> None:
    fleet.play("apply", code=2, command=pending(tmp_path), reboot=True)
    sealed = fleet.document("h1", "status")["fleet"]
    assert (sealed["outcome"], "hosttune_root is set" in sealed["why"]) == ("refused", True)


def test_nothing_is_rebooted_or_drained_in_check_mode(fleet: Fleet, tmp_path: Path) -> None:
    hooks: dict[str, Any] = {
        "drain": hook(tmp_path, "drain"),
        "undrain": hook(tmp_path, "undrain"),
        "reboot_with": reboot(tmp_path),
    }
    fleet.play("apply", "--check", command=pending(tmp_path), reboot=True, **hooks)
    assert logged(tmp_path) == []
