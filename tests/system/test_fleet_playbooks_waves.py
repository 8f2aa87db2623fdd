"""Waves of apply and revert: a gate after each, hooks in their order, reboots only with consent and without guests."""

from __future__ import annotations

import dataclasses
import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fleethosts import HOSTTUNE, Fleet, Played, script, simulated, stand_in

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


def answering(folder: Path, **cases: str) -> str:
    """A command that notes its verb and says what is always the same, or what a test wants."""
    answers = {"validate": says(PASSED), "apply": says(DONE), "discover": says(HOST), "status": says(DONE), **cases}
    lines = "\n".join(f"{verb}) {text} ;;" for verb, text in answers.items())
    return script(folder / "canned", f'echo "$1" >> {folder}/log\ncase "$1" in\n{lines}\nesac\nexit 99')


def canned(folder: Path, **cases: str) -> Fleet:
    """Three hosts with such a command."""
    return stand_in(folder, ("h1", "h2", "h3"), hosttune_command=answering(folder, **cases))


FAILS = json.dumps([{"name": "Move the guests away", "ansible.builtin.fail": {"msg": "nowhere to go"}}])


def pending(folder: Path, guests: object = ()) -> str:
    """A host that waits for a reboot once something is applied, with such guests, until a test's reboot was there."""
    waits = {**DONE, "reboot_required": True}
    booted = f"if [ -e {folder}/rebooted ]; then\n{says(DONE)}\nfi\n{says(waits)}"
    return answering(folder, apply=says(waits), discover=says({**HOST, "guests": guests}), status=booted)


def reboot(folder: Path) -> str:
    """A reboot of a test's own."""
    return hook(folder, "reboot", json.dumps([
        {"name": "Reboot", "ansible.builtin.shell": f"echo reboot >> {folder}/log; touch {folder}/rebooted",
         "delegate_to": "localhost", "changed_when": True},
    ]))  # fmt: skip


def verbs(folder: Path) -> list[str]:
    """What was noted, but for validations."""
    return [line for line in logged(folder) if line != "validate"]


def unreachable(closed: socket.socket) -> dict[str, Any]:
    """Variables of a host at a port that nobody listens at, and that nobody else takes meanwhile."""
    closed.bind(("127.0.0.1", 0))
    return {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": closed.getsockname()[1]}


def shut_by(played: Played, gate: str = "host by host") -> set[str]:
    """The hosts at which a gate stopped the run: each of them alone does (any_errors_fatal)."""
    _, _, text = played.out.partition(f"TASK [The gate of the wave, {gate}]")
    return set(re.findall(r"^fatal: \[(\w+)\]: FAILED!", text.partition("\nTASK [")[0], re.M))


# --- one wave with a host for each way to be well or not ---------------------------------------------------------

Case = Callable[[Path], Mapping[str, Any]]
AGAINST = f'case "$*" in *--against*) exit 9 ;; esac\n{says(PASSED)}'


def quarantined(outcome: str, subject: str) -> Case:
    """A failed hand-over left the host drained: a wave of another verb does not end that."""
    row = {"check": "device-quarantined", "subject": subject, "outcome": outcome}
    return lambda at: {
        "command": answering(at, validate=says({**PASSED, "results": [row]})),
        "undrain": hook(at, "undrain"),
    }


def with_guests(guests: object) -> Case:
    return lambda at: {"command": pending(at, guests), "reboot": True, "reboot_with": reboot(at)}


OFF = {"name": "off", "state": "shut off"}
NOT_OFF = ("running", "paused", "unknown")
# Variables of each host, `hosttune_` left out of their names.
WELL: dict[str, Case] = {
    "plain": lambda at: {"command": answering(at)},
    "hooks": lambda at: {
        "command": answering(at), "drain": hook(at, "drain"), "undrain": hook(at, "undrain")
    },
    "drained": lambda at: {"command": answering(at), "drain": hook(at, "drain")},
    "reboots": lambda at: {
        "command": pending(at, [OFF]), "drain": hook(at, "drain"), "undrain": hook(at, "undrain"),
        "reboot": True, "reboot_with": reboot(at),
    },
    "reboots_with_guests": lambda at: {**with_guests(None)(at), "reboot_guests": True},
}  # fmt: skip
NOT_WELL: dict[str, Case] = {
    "dies": lambda at: {"command": script(at / "dies", "kill -9 $$")},
    "refuses": lambda at: {
        "command": answering(at, apply="echo 'error: no' >&2; echo 'where: x' >&2; exit 3"),
        "drain": hook(at, "drain"), "undrain": hook(at, "undrain"),
    },
    "got_worse": lambda at: {
        "command": answering(at, validate=AGAINST), "drain": hook(at, "drain"), "undrain": hook(at, "undrain")
    },
    "no_drain": lambda at: {"command": answering(at), "drain": "/no/such/drain.yml"},
    "drain_fails": lambda at: {"command": answering(at), "drain": hook(at, "drain", FAILS)},
    "undrain_fails": lambda at: {"command": answering(at), "undrain": hook(at, "undrain", FAILS)},
    "quarantined": quarantined("warn", "0000:41:00.0"),
    "perhaps_quarantined": quarantined("unknown", "host"),
    "no_consent": lambda at: {
        "command": pending(at), "undrain": hook(at, "undrain"), "reboot_with": reboot(at)
    },
    "running": with_guests([{"name": name, "state": name if name != "unknown" else None} for name in NOT_OFF] + [OFF]),
    "unknown_guests": with_guests(None),
    "stays_pending": lambda at: {
        "command": pending(at), "reboot": True, "reboot_with": hook(at, "nothing", "[]\n"),
        "undrain": hook(at, "undrain"), "settle": 0,
    },
    "captured": lambda at: {"command": pending(at), "reboot": True, "root": str(at)},
    "controller": lambda at: {"command": pending(at), "reboot": True},
    "away": lambda at: {"command": answering(at)},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Wave:
    """One run of apply over those hosts, and one host in the wave behind them."""

    fleet: Fleet
    played: Played
    executions: Mapping[str, int]

    def at(self, host: str) -> Path:
        """The folder of a host's commands, hooks and notes."""
        return self.fleet.folder / "at" / host

    def sealed(self, host: str, record: str) -> dict[str, Any]:
        """What became of a record."""
        sealed: dict[str, Any] = self.fleet.document(host, record)["fleet"]
        return sealed


@pytest.fixture(scope="module")
def wave(tmp_path_factory: pytest.TempPathFactory) -> Wave:
    folder = tmp_path_factory.mktemp("wave")
    hosts: dict[str, dict[str, Any]] = {}
    for name, case in {**WELL, **NOT_WELL, "behind": WELL["plain"]}.items():
        (folder / "at" / name).mkdir(parents=True)
        hosts[name] = {f"hosttune_{key}": value for key, value in case(folder / "at" / name).items()}
    fleet = Fleet(folder, hosts, {"hosttune_waves": [len(hosts) - 1, "100%"]})
    with socket.socket() as closed:
        hosts["away"].update(unreachable(closed))
        played = fleet.play("apply", code=2)
    return Wave(fleet, played, fleet.executions())


def test_every_host_that_is_not_well_shuts_the_gate(wave: Wave) -> None:
    """The wave is finished all the same, and the next one is not begun."""
    assert shut_by(wave.played) == set(NOT_WELL)
    for host in WELL:
        outcomes = {record: wave.sealed(host, record)["outcome"] for record in ("before", "apply", "validate")}
        assert set(outcomes.values()) == {"ok"}, host
    assert (wave.fleet.records("behind"), wave.executions["behind"]) == (set(), 0)
    assert logged(wave.at("behind")) == []


def test_a_host_that_dies_or_is_lost_or_refuses(wave: Wave) -> None:
    for host, outcome in (("dies", "died"), ("away", "unreachable")):
        assert wave.fleet.records(host) == {"before"}
        assert wave.sealed(host, "before")["outcome"] == outcome
    assert wave.played.recap()["dies"]["rescued"] == 1
    assert wave.sealed("refuses", "apply")["outcome"] == "refused"
    assert wave.executions["refuses"] == 2
    assert "refused: no (x)" in wave.played.out


def test_hooks_run_in_order(wave: Wave) -> None:
    assert logged(wave.at("hooks")) == ["validate", "drain hooks", "apply", "validate", "undrain hooks"]
    sealed = wave.sealed("hooks", "undrain")
    assert (sealed["outcome"], sealed["changed"]) == ("ok", False)  # given back
    assert "undrain" not in wave.fleet.records("drained")  # nothing to give back


@pytest.mark.parametrize("host", ["refuses", "got_worse"])
def test_a_host_that_is_not_well_is_not_given_back(wave: Wave, host: str) -> None:
    assert logged(wave.at(host))[:3] == ["validate", f"drain {host}", "apply"]
    assert f"undrain {host}" not in logged(wave.at(host))


@pytest.mark.parametrize(("host", "subject"), [("quarantined", "0000:41:00.0"), ("perhaps_quarantined", "host")])
def test_a_host_between_two_tenants_is_not_given_back_by_a_change(wave: Wave, host: str, subject: str) -> None:
    assert f"not given back: quarantined: {subject}." in wave.played.out
    assert [wave.sealed(host, record)["outcome"] for record in ("apply", "undrain")] == ["ok", "unknown"]
    assert f"undrain {host}" not in logged(wave.at(host))


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("no_drain", "a file of tasks: it cannot be read"),
        ("drain_fails", "Move the guests away: nowhere to go"),
    ],
)
def test_a_drain_that_fails_leaves_the_host_as_it_is(wave: Wave, host: str, why: str) -> None:
    assert logged(wave.at(host)) == ["validate"]
    sealed = wave.sealed(host, "hook")
    assert (sealed["outcome"], sealed["phase"], sealed["why"]) == ("no", "hook", why)


def test_an_undrain_that_fails_leaves_the_host_to_be_given_back(wave: Wave) -> None:
    outcomes = {record: wave.sealed("undrain_fails", record)["outcome"] for record in ("validate", "hook", "undrain")}
    assert outcomes == {"validate": "ok", "hook": "no", "undrain": "unknown"}


def test_without_consent_the_host_stays_pending(wave: Wave) -> None:
    assert verbs(wave.at("no_consent")) == ["apply"]
    assert wave.sealed("no_consent", "apply")["reboot_required"] is True
    sealed = wave.sealed("no_consent", "status")
    assert (sealed["outcome"], "hosttune_reboot is not set" in sealed["why"]) == ("refused", True)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("running", "guests are running: running, paused, unknown ("),
        ("unknown_guests", "its guests are unknown"),
    ],
)
def test_a_host_with_guests_is_not_rebooted(wave: Wave, host: str, why: str) -> None:
    assert verbs(wave.at(host)) == ["apply", "discover"]
    sealed = wave.sealed(host, "status")
    assert sealed["outcome"] == "refused"
    assert why in sealed["why"]


def test_with_consent_a_host_with_guests_is_rebooted(wave: Wave) -> None:
    assert verbs(wave.at("reboots_with_guests")) == ["apply", "reboot", "status"]
    assert wave.sealed("reboots_with_guests", "status")["outcome"] == "ok"


def test_a_reboot_comes_between_drain_and_undrain_and_is_confirmed(wave: Wave) -> None:
    assert logged(wave.at("reboots")) == [
        "validate", "drain reboots", "apply", "discover", "reboot", "status", "validate", "undrain reboots"
    ]  # fmt: skip
    assert wave.fleet.records("reboots") >= {"before", "apply", "guests", "status", "validate"}
    assert wave.executions["reboots"] == 5


def test_a_reboot_that_did_not_help_stops(wave: Wave) -> None:
    sealed = wave.sealed("stays_pending", "status")
    assert (sealed["outcome"], sealed["why"]) == ("no", "a reboot is pending")
    assert "undrain stays_pending" not in logged(wave.at("stays_pending"))


def test_neither_a_captured_host_nor_the_controller_is_ever_rebooted(wave: Wave) -> None:
    """A host with connection local is the controller itself, which Ansible's own reboot refuses."""
    sealed = wave.sealed("captured", "status")
    assert (sealed["outcome"], "hosttune_root is set" in sealed["why"]) == ("refused", True)
    assert "would reboot the control node" in wave.played.out
    assert wave.sealed("controller", "hook")["outcome"] == "no"


# --- waves and gates of other kinds ------------------------------------------------------------------------------


@pytest.mark.sweep(most=2)
def test_a_host_that_fails_in_the_first_wave_stops_the_second(tmp_path: Path) -> None:
    fleet = canned(tmp_path, revert="echo 'error: no' >&2; echo 'where: x' >&2; exit 3")
    played = fleet.play("revert", code=2)
    assert fleet.outcomes("revert") == {"h1": "refused"}
    assert fleet.records("h2") == fleet.records("h3") == set()
    assert fleet.executions() == {"h1": 2, "h2": 0, "h3": 0}
    assert "refused: no (x)" in played.out


@pytest.mark.sweep(most=2)
def test_hosts_that_are_lost_in_hooks_stop_the_next_wave(tmp_path: Path) -> None:
    """What Ansible cannot reach it leaves out of the play: at the gate they are missed."""
    fleet = Fleet(tmp_path, {name: {} for name in ("drained", "given_back", "well", "behind")}, {})
    fleet.variables["hosttune_command"] = answering(tmp_path)
    with socket.socket() as closed:
        task = {"name": "Ask the host", "ansible.builtin.ping": {}, "vars": unreachable(closed)}
        lost = hook(tmp_path, "lost", json.dumps([task]))
        fleet.hosts["drained"]["hosttune_drain"] = fleet.hosts["given_back"]["hosttune_undrain"] = lost
        played = fleet.play("apply", code=None, waves=[3, "100%"])
    assert fleet.records("behind") == set()
    assert "2 of 3 hosts of this wave were lost" in played.out
    assert (fleet.outcomes("before")["drained"], "apply" in fleet.records("drained")) == ("ok", False)
    assert fleet.outcomes("validate") == {"given_back": "ok", "well": "ok"}
    sealed = fleet.document("given_back", "undrain")["fleet"]
    assert (sealed["outcome"], sealed["phase"], sealed["why"]) == ("unknown", "undrain", "not given back yet")


@pytest.mark.sweep(most=2)
def test_the_default_waves_and_nothing_is_rebooted_or_drained_in_check_mode(tmp_path: Path) -> None:
    """1 host, 5 %, 25 %, the rest: of 9 hosts 1, 1, 2 and 5."""
    hooks: dict[str, Any] = {"drain": hook(tmp_path, "drain"), "undrain": hook(tmp_path, "undrain")}
    fleet = stand_in(tmp_path, [f"h{n}" for n in range(9)], hosttune_command=pending(tmp_path))
    out = fleet.play("apply", "--check", reboot=True, reboot_with=reboot(tmp_path), **hooks).out
    waves = [part.partition("\nTASK [")[0].count("ok: [") for part in out.split("TASK [Validate the host before]")[1:]]
    assert waves == [1, 1, 2, 5]
    assert Counter(logged(tmp_path)) == {"validate": 9, "apply": 9}
    assert {name for host in fleet.hosts for name in fleet.records(host)} == {"before.check", "apply.check"}


def test_the_gate_says_what_stops_a_host_that_was_bad_before(pristine: Path, tmp_path: Path) -> None:
    """Three were bad before. Of `worsened` a link trained low since: no fault of hosttune's, and a reason to stop."""
    link = "sys/bus/pci/devices/0000:56:00.0/current_link_width"
    with simulated(pristine, tmp_path, ("either", "verdict", "worse", "worsened", "version", "stray")) as fleet:
        unchanged = instead(tmp_path, apply=says(DONE))
        for gate in ("either", "verdict", "worse"):
            fleet.root(gate).put(link, "4\n")
            fleet.hosts[gate].update(hosttune_gate=gate, hosttune_command=unchanged)
        width = f"{fleet.root('worsened').path}/{link}"
        (tmp_path / "breaks").mkdir()
        breaks = instead(tmp_path / "breaks", apply=f"rm {width}; echo 8 > {width}\n{says(DONE)}")
        fleet.hosts["worsened"].update(hosttune_gate="worse", hosttune_command=breaks)
        fleet.hosts["version"]["hosttune_intent"] = {"version": 2, "guests": []}
        before = fleet.root("version").tree()
        # By what discovery itself says of a guest that libvirt does not know: the two must not drift apart.
        fleet.root("stray").put(".hosttune/commands/qemu-processes", "4321 stray\n")
        (tmp_path / "stray").mkdir()
        waits = instead(tmp_path / "stray", validate=says(PASSED), apply=says({**DONE, "reboot_required": True}))
        fleet.hosts["stray"].update(
            hosttune_command=waits, hosttune_reboot=True, hosttune_reboot_with=reboot(tmp_path / "stray")
        )
        more = Fleet(tmp_path, {**fleet.hosts, "behind": {"hosttune_command": answering(tmp_path)}}, fleet.variables)
        played = more.play("apply", code=2, waves=[len(fleet.hosts), "100%"])
        assert fleet.root("version").tree() == before
    assert shut_by(played) == {"either", "verdict", "worsened", "version", "stray"}
    assert more.records("behind") == set()
    assert more.outcomes("apply") == {
        "either": "ok", "verdict": "ok", "worse": "ok", "worsened": "ok", "version": "bad-input", "stray": "ok"
    }  # fmt: skip
    assert [more.outcomes("before")[gate] for gate in ("either", "verdict", "worse")] == ["no"] * 3
    assert [more.outcomes("validate")[host] for host in ("either", "verdict", "worse", "worsened")] == [
        "no", "no", "ok", "no"
    ]  # fmt: skip
    assert "pcie-link" in more.document("worsened", "validate")["fleet"]["why"]
    answer = more.document("version", "apply")["fleet"]
    assert (answer["exit_code"], "version" in answer["why"]) == (2, True)
    assert logged(tmp_path / "stray") == []
    assert more.outcomes("guests") == {"stray": "ok"}
    sealed = more.document("stray", "status")["fleet"]
    assert sealed["outcome"] == "refused"
    assert "guests are running: a QEMU guest outside libvirt (stray)" in sealed["why"]


# --- whatever the operator has set -------------------------------------------------------------------------------


class Free(Fleet):
    """Hosts of an operator whose ansible.cfg lets each of them run at its own pace."""

    def environment(self) -> dict[str, str]:
        """As the fleet's, and ANSIBLE_STRATEGY."""
        return {**super().environment(), "ANSIBLE_STRATEGY": "free"}


@pytest.mark.sweep(most=2)
def test_a_wave_has_its_gate_whatever_strategy_ansible_is_set_to(tmp_path: Path) -> None:
    """Left to run free, h2 would be through before h1 has failed, and h3 be changed."""
    fleet = canned(tmp_path, apply=f"if mkdir {tmp_path}/first 2>/dev/null; then sleep 4; exit 3; fi\n{says(DONE)}")
    Free(*(getattr(fleet, one.name) for one in dataclasses.fields(fleet))).play("apply", code=2, waves=[2, "100%"])
    assert sorted(fleet.outcomes("apply").values()) == ["ok", "refused"]
    assert fleet.records("h3") == set()


@pytest.mark.sweep(most=2)
def test_a_handover_is_judged_by_its_verdict_whatever_the_gate_of_waves_is(tmp_path: Path) -> None:
    """Compared with what it was before, a host that was as bad then would be fit for its next tenant."""
    fleet = canned(tmp_path, validate=f'case "$*" in *--gate*|*--against*) exit 9 ;; esac\n{says(PASSED)}')
    fleet.play("handover", "--limit", "h1", gate="worse", against="before")
    assert fleet.outcomes("handover") == {"h1": "ok"}
