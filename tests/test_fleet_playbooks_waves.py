"""Waves of apply and revert: a gate after each, hooks in their order, reboots only with consent and without guests."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from applyroots import Root
from fleethosts import HOSTTUNE, Fleet, lone, script, stand_in

__all__ = ["lone"]

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


PASSED = {
    "schema": "hosttune.validation/v1", "host": "h", "level": 0, "verdict": "pass", "samples": [],
    "results": [{"check": "cpu", "subject": "host", "outcome": "pass", "actual": "8", "source": "/proc/cpuinfo"}],
}  # fmt: skip
DONE = {"schema": "hosttune.result/v1", "host": "h", "verb": "apply", "changed": True, "reboot_required": False,
        "entries": [], "drift": [], "open_transaction": None}  # fmt: skip
HOST = {"schema": "hosttune.host/v1", "guests": []}


def says(document: object) -> str:
    """Shell that prints a document and is content."""
    return f"cat <<'END'\n{json.dumps(document)}\nEND\nexit 0"


def canned(folder: Path, **cases: str) -> Fleet:
    """Three hosts whose command notes its verb and says what is always the same, or what a test wants."""
    answers = {"validate": says(PASSED), "apply": says(DONE), "discover": says(HOST), "status": says(DONE), **cases}
    lines = "\n".join(f"{verb}) {text} ;;" for verb, text in answers.items())
    command = script(folder / "canned", f'echo "$1" >> {folder}/log\ncase "$1" in\n{lines}\nesac\nexit 99')
    return stand_in(folder, ("h1", "h2", "h3"), hosttune_command=command)


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_a_host_that_fails_in_the_first_wave_stops_the_second(tmp_path: Path, verb: str) -> None:
    fleet = canned(tmp_path, **{verb: "echo 'error: no' >&2; echo 'where: x' >&2; exit 3"})
    played = fleet.play(verb, code=2)
    assert fleet.outcomes(verb) == {"h1": "refused"}
    assert fleet.records("h2") == fleet.records("h3") == set()
    assert fleet.executions() == {"h1": 2, "h2": 0, "h3": 0}
    assert "refused: no (x)" in played.out


def test_a_wave_is_finished_although_one_of_its_hosts_failed(tmp_path: Path) -> None:
    fleet = canned(tmp_path)
    fleet.hosts["h1"]["hosttune_command"] = script(tmp_path / "dies", "kill -9 $$")
    fleet.variables["hosttune_waves"] = [2, "100%"]  # of the inventory
    played = fleet.play("apply", code=2)
    assert fleet.outcomes("before") == {"h1": "died", "h2": "ok"}
    assert fleet.outcomes("apply") == fleet.outcomes("validate") == {"h2": "ok"}
    assert fleet.records("h3") == set()
    assert played.recap()["h1"]["rescued"] == 1


def test_the_default_waves(tmp_path: Path) -> None:
    """1 host, 5 %, 25 %, the rest: of 9 hosts 1, 1, 2 and 5."""
    fleet = stand_in(
        tmp_path, [f"h{n}" for n in range(9)], hosttune_command=canned(tmp_path).variables["hosttune_command"]
    )
    out = fleet.play("apply").out
    waves = [part.count("changed: [") for part in out.split("PLAY [Change hosts in waves]")[1:]]
    assert waves == [1, 1, 2, 5]


def beside(lone: Fleet, folder: Path) -> Fleet:
    """A simulated host, and two for the waves behind it that are always well."""
    others = canned(folder)
    command = {"hosttune_command": others.variables["hosttune_command"]}
    return Fleet(folder, {**lone.hosts, "h2": command, "h3": dict(command)}, lone.variables)


def test_what_got_worse_stops_although_the_verdict_passes(lone: Fleet, tmp_path: Path) -> None:
    """The host that is applied has a link that trained low since: no fault of hosttune's, and a reason to stop."""
    fleet = beside(lone, tmp_path)
    fleet.play("validate", "--limit", "h1", record="before")
    width = tmp_path / "roots/h1/sys/bus/pci/devices/0000:56:00.0/current_link_width"
    breaks = f'rm {width}; echo 8 > {width}; exec {HOSTTUNE} "$@"'
    fleet.hosts["h1"]["hosttune_command"] = instead(tmp_path, apply=breaks)
    fleet.play("apply", code=2, gate="worse")
    assert fleet.outcomes("apply") == {"h1": "ok"}
    assert fleet.outcomes("validate") == {"h1": "no"}
    assert "pcie-link" in fleet.document("h1", "validate")["fleet"]["why"]
    assert fleet.records("h2") == set()


@pytest.mark.parametrize(("gate", "stops"), [("either", True), ("verdict", True), ("worse", False)])
def test_the_gate_says_what_stops_a_host_that_was_bad_before(
    lone: Fleet, tmp_path: Path, gate: str, stops: bool
) -> None:
    fleet = beside(lone, tmp_path)
    Root(fleet.root("h1")).put("sys/bus/pci/devices/0000:56:00.0/current_link_width", "4\n")
    fleet.play("apply", code=2 if stops else 0, gate=gate)
    assert fleet.outcomes("before")["h1"] == "no"
    assert fleet.outcomes("validate")["h1"] == ("no" if stops else "ok")
    assert fleet.outcomes("apply") == ({"h1": "ok"} if stops else {"h1": "ok", "h2": "ok", "h3": "ok"})


def test_hooks_run_in_order(tmp_path: Path) -> None:
    hooks: dict[str, Any] = {"drain": hook(tmp_path, "drain"), "undrain": hook(tmp_path, "undrain")}
    canned(tmp_path).play("apply", "--limit", "h1", **hooks)
    assert logged(tmp_path) == ["validate", "drain h1", "apply", "validate", "undrain h1"]


@pytest.mark.parametrize("phase", ["apply", "validate"])
def test_a_host_that_is_not_well_is_not_given_back(tmp_path: Path, phase: str) -> None:
    against = f'case "$*" in *--against*) exit 9 ;; esac\n{says(PASSED)}'
    fleet = canned(tmp_path, **{phase: "exit 3" if phase == "apply" else against})
    fleet.play("apply", code=2, drain=hook(tmp_path, "drain"), undrain=hook(tmp_path, "undrain"))
    assert logged(tmp_path)[:3] == ["validate", "drain h1", "apply"]
    assert "undrain h1" not in logged(tmp_path)
    assert fleet.records("h2") == set()


FAILS = json.dumps([{"name": "Move the guests away", "ansible.builtin.fail": {"msg": "nowhere to go"}}])


@pytest.mark.parametrize("missing", [False, True])
def test_a_drain_that_fails_leaves_the_host_as_it_is(tmp_path: Path, missing: bool) -> None:
    fleet = canned(tmp_path)
    fleet.play("apply", code=2, drain="/no/such/drain.yml" if missing else hook(tmp_path, "drain", FAILS))
    assert logged(tmp_path) == ["validate"]
    assert fleet.records("h2") == set()
    sealed = fleet.document("h1", "hook")["fleet"]
    assert (sealed["outcome"], sealed["phase"]) == ("no", "hook")
    assert sealed["why"] == ("a file of tasks: it cannot be read" if missing else "Move the guests away: nowhere to go")


def test_an_undrain_that_fails_stops_the_next_wave(tmp_path: Path) -> None:
    fleet = canned(tmp_path)
    fleet.play("apply", code=2, undrain=hook(tmp_path, "undrain", FAILS))
    assert fleet.outcomes("validate") == {"h1": "ok"}
    assert fleet.document("h1", "hook")["fleet"]["outcome"] == "no"
    assert fleet.records("h2") == set()


@pytest.mark.parametrize("where", ["the host", "its hook"])
def test_a_host_that_is_lost_stops_the_next_wave(tmp_path: Path, where: str) -> None:
    fleet = canned(tmp_path)
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


def pending(folder: Path, guests: object = ()) -> Fleet:
    """Hosts that wait for a reboot once something is applied, with such guests, until a test's reboot was there."""
    waits = {**DONE, "reboot_required": True}
    booted = f"if [ -e {folder}/rebooted ]; then\n{says(DONE)}\nfi\n{says(waits)}"
    return canned(folder, apply=says(waits), discover=says({**HOST, "guests": guests}), status=booted)


def reboot(folder: Path) -> str:
    """A reboot of a test's own."""
    return hook(folder, "reboot", json.dumps([
        {"name": "Reboot", "ansible.builtin.shell": f"echo reboot >> {folder}/log; touch {folder}/rebooted",
         "delegate_to": "localhost", "changed_when": True},
    ]))  # fmt: skip


def verbs(folder: Path) -> list[str]:
    """What was noted, but for validations."""
    return [line for line in logged(folder) if line != "validate"]


def test_without_consent_the_host_stays_pending_and_the_wave_stops(tmp_path: Path) -> None:
    fleet = pending(tmp_path)
    fleet.play("apply", code=2, undrain=hook(tmp_path, "undrain"), reboot_with=reboot(tmp_path))
    assert verbs(tmp_path) == ["apply"]
    assert fleet.document("h1", "apply")["fleet"]["reboot_required"] is True
    sealed = fleet.document("h1", "status")["fleet"]
    assert (sealed["outcome"], "hosttune_reboot is not set" in sealed["why"]) == ("refused", True)
    assert fleet.records("h2") == set()


@pytest.mark.parametrize(
    ("guests", "why"),
    [
        ([{"name": "train", "state": "running"}, {"name": "off", "state": "shut off"}], "guests are running: train ("),
        ([{"name": "train", "state": "paused"}], "guests are running: train ("),
        ([{"name": "train", "state": None}], "guests are running: train ("),
        (None, "its guests are unknown"),
    ],
    ids=["running", "paused", "of unknown state", "unknown"],
)
def test_a_host_with_guests_is_not_rebooted(tmp_path: Path, guests: object, why: str) -> None:
    fleet, own = pending(tmp_path, guests), reboot(tmp_path)
    fleet.play("apply", code=2, reboot=True, reboot_with=own)
    assert verbs(tmp_path) == ["apply", "discover"]
    sealed = fleet.document("h1", "status")["fleet"]
    assert sealed["outcome"] == "refused"
    assert why in sealed["why"]
    assert fleet.records("h2") == set()


def test_with_consent_a_host_with_guests_is_rebooted(tmp_path: Path) -> None:
    fleet, own = pending(tmp_path, None), reboot(tmp_path)
    fleet.play("apply", reboot=True, reboot_with=own, reboot_guests=True)
    assert verbs(tmp_path).count("reboot") == 3
    assert fleet.outcomes("status") == {"h1": "ok", "h2": "ok", "h3": "ok"}


def test_a_reboot_comes_between_drain_and_undrain_and_is_confirmed(tmp_path: Path) -> None:
    hooks: dict[str, Any] = {"drain": hook(tmp_path, "drain"), "undrain": hook(tmp_path, "undrain")}
    fleet = pending(tmp_path, [{"name": "off", "state": "shut off"}])
    fleet.play("apply", "--limit", "h1", reboot=True, reboot_with=reboot(tmp_path), **hooks)
    assert logged(tmp_path) == [
        "validate", "drain h1", "apply", "discover", "reboot", "status", "validate", "undrain h1"
    ]  # fmt: skip
    assert fleet.records("h1") >= {"before", "apply", "guests", "status", "validate"}
    assert fleet.executions()["h1"] == 5


def test_a_reboot_that_did_not_help_stops(tmp_path: Path) -> None:
    fleet = pending(tmp_path)
    nothing = hook(tmp_path, "nothing", "[]\n")
    fleet.play("apply", code=2, reboot=True, reboot_with=nothing, undrain=hook(tmp_path, "undrain"), settle=0)
    sealed = fleet.document("h1", "status")["fleet"]
    assert (sealed["outcome"], sealed["why"]) == ("no", "a reboot is pending")
    assert "undrain h1" not in logged(tmp_path)
    assert fleet.records("h2") == set()


def test_a_captured_host_is_never_rebooted_itself(tmp_path: Path) -> None:
    fleet = pending(tmp_path)
    fleet.play("apply", code=2, reboot=True, root=str(tmp_path))
    sealed = fleet.document("h1", "status")["fleet"]
    assert (sealed["outcome"], "hosttune_root is set" in sealed["why"]) == ("refused", True)


def test_the_controller_is_never_rebooted(tmp_path: Path) -> None:
    """A host with connection local is the controller itself, which Ansible's own reboot refuses."""
    fleet = pending(tmp_path)
    out = fleet.play("apply", code=2, reboot=True).out
    assert "would reboot the control node" in out
    assert fleet.document("h1", "hook")["fleet"]["outcome"] == "no"


def test_nothing_is_rebooted_or_drained_in_check_mode(tmp_path: Path) -> None:
    hooks: dict[str, Any] = {"drain": hook(tmp_path, "drain"), "undrain": hook(tmp_path, "undrain")}
    pending(tmp_path).play("apply", "--check", reboot=True, reboot_with=reboot(tmp_path), **hooks)
    assert logged(tmp_path) == ["validate", "apply"] * 3
