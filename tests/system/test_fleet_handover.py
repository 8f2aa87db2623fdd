"""`hosttune fleet handover`: named devices in waves, continued after a stop, and reported by their statements."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from coursekills import DRIVE as TAKEN
from coursekills import NIC
from fleethandovers import Between, fleet_of, statement
from fleethosts import HOSTTUNE
from fleethosts import Fleet as Hosts
from fleetsim import Fleet, Killed, begin, go_on, names, rollout_of
from handovers import DRIVE, GPU
from handovers import statement as stated
from sweeps import FULL
from system.test_fleet_playbooks_waves import hook, logged

from hosttune.errors import BadInput
from hosttune.fleet.answers import read_answer
from hosttune.fleet.handed import handed_of
from hosttune.fleet.inventory import between_tenants, variables_of
from hosttune.fleet.options import check_variable
from hosttune.fleet.overview import RunContext, report_of
from hosttune.fleet.run import FleetRequest, check_request, read_record
from hosttune.model.verification import Reason, Verification

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


# --- a run ---------------------------------------------------------------------------------------------------------


def ask(fleet: Hosts, *words: str) -> subprocess.CompletedProcess[str]:
    """hosttune fleet on the hosts."""
    argv = [HOSTTUNE, "fleet", *words, "--results", str(fleet.results)]
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, cwd=fleet.folder, env=fleet.environment(), timeout=300
    )


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no OpenSSH client")
def test_a_run_that_stopped_before_the_signature_goes_on_without_another_erasure(tmp_path: Path) -> None:
    one, other = Between(tmp_path, "h1"), Between(tmp_path, "h2")
    fleet = fleet_of(tmp_path, [one, other], h3={"hosttune_command": "/none"})
    fleet.variables.update(hosttune_undrain=hook(tmp_path, "undrain"), hosttune_identity="nobody@example.com")
    words = ("handover", "-i", str(fleet.inventory()))
    first = ask(fleet, *words)
    assert first.returncode == 1, first.stdout + first.stderr
    assert "1 hosts name no devices in hosttune_handover: they are not in this run" in first.stderr
    assert re.search(r"void +2 devices\n +hosts: h1\n", first.stdout), first.stdout
    assert (other.asked(), logged(tmp_path), fleet.records("h3")) == ([], [], set())
    assert fleet.outcomes("verify") == {"h1": "no"}

    fleet.variables["hosttune_identity"] = "ops@example.com"
    fleet.inventory()
    again = ask(fleet, *words, "--resume")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [one.asked().count("handover --device"), other.asked().count("handover --device")] == [1, 1]
    assert logged(tmp_path) == ["undrain h1", "undrain h2"]
    report = json.loads(ask(fleet, "report", "-o", "json").stdout)
    assert [(line["host"], line["verdict"], [one["state"] for one in line["handed"]]) for line in report["hosts"]] == [
        ("h1", "pass", ["valid", "valid"]), ("h2", "pass", ["valid", "valid"]),
    ]  # fmt: skip
    assert statement(fleet, "h2")["predicate"]["expires_at"] == report["hosts"][1]["handed"][0]["expires_at"]


def test_a_controller_that_is_killed_keeps_hand_overs_that_had_ended(tmp_path: Path) -> None:
    hosts, fleet = names(4), Fleet(script={"h001": [("verify", "no")]}, kill_at=3)
    with pytest.raises(Killed):
        begin(rollout_of(tmp_path, "course", hosts, sizes="100%"), tmp_path, fleet)
    fleet.kill_at = None
    assert read_answer(str(tmp_path), "h001", "course", "r1").outcome == "ok"
    fleet.orders.clear()
    done = go_on(tmp_path, "course", hosts, fleet)
    assert (done.exit_code, done.stopped) == (0, None)
    kept = {order.hosts: order.variables.get("hosttune_keep_course") for order in fleet.orders}
    assert kept == {("h001", "h003"): True}  # the one without a valid statement, and the one that it was killed at


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no OpenSSH client")
def test_check_mode_hands_nothing_over_and_says_what_would_be_done(tmp_path: Path) -> None:
    """No hook is run; neither the host nor the last statement is changed. A full sweep: by the playbook alone, too."""
    one, other = Between(tmp_path, "h1"), Between(tmp_path, "h2")
    fleet = fleet_of(tmp_path, [one, other])
    fleet.variables.update(hosttune_drain=hook(tmp_path, "drain"), hosttune_undrain=hook(tmp_path, "undrain"))
    fleet.hosts["h2"]["hosttune_erase"] = []
    kept = {name: f"{name} of an earlier run" for name in ("statement.json", "statement.json.sig")}
    (fleet.results / "h1").mkdir(parents=True)
    for name, text in kept.items():
        (fleet.results / "h1" / name).write_text(text)
    before = files_of(one.root)
    done = ask(fleet, "handover", "-i", str(fleet.inventory()), "--check")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "what would be handed over on 1 host (h1); nothing was written" in done.stdout
    for address, word in ((TAKEN, "erase serial number S1"), (NIC, "validate --level ")):
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"  {address} ("))
        assert (word in line, "quarantine, " in line) == (True, True)
    assert f"drive {TAKEN} is not named to be erased" in done.stdout
    assert fleet.outcomes("course.check") == {"h1": "ok", "h2": "refused"}
    assert fleet.document("h1", "course.check")["changed"] is False
    if FULL:
        fleet.play("handover", "--check", "--limit", "h1")
    assert (one.asked(), logged(tmp_path)) == (["handover --device"] * (1 + FULL), [])
    assert files_of(one.root) == before
    assert {path.name for path in (fleet.results / "h1").iterdir()} == {*kept, "course.check.json"}
    assert {name: (fleet.results / "h1" / name).read_text() for name in kept} == kept


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_check_mode_is_for_named_devices(tmp_path: Path) -> None:
    fleet = Hosts(tmp_path, {"h1": {}})
    done = ask(fleet, "handover", "-i", str(fleet.inventory()), "--check")
    assert done.returncode == 2
    assert "error: no host of the inventory is handed over" in done.stderr
    assert "where: --check" in done.stderr


# --- which hosts ---------------------------------------------------------------------------------------------------


def test_hosts_that_name_devices() -> None:
    listed = {"_meta": {"hostvars": {
        "a": {"hosttune_handover": ["0000:41:00.0"], "x": 1}, "b": {"hosttune_handover": []}, "c": {},
        "d": {"hosttune_handover": "vm"}, "e": {"hosttune_handover": None},
    }}, "all": {"children": ["ungrouped"]}}  # fmt: skip
    assert between_tenants(variables_of(json.dumps(listed))) == {"a", "d"}
    with pytest.raises(BadInput, match="variables cannot be read"):
        variables_of("[]")


@pytest.mark.parametrize(
    "text",
    [
        "hosttune_handover=vm", "hosttune_erase=S1", 'x=1 hosttune_erase="S1"', '{"hosttune_erase": ["S1"]}',
        "{hosttune_handover: vm}", "{'x': 1, 'hosttune_erase': [S1]}", '{"hosttune\\u005ferase": ["S1"]}',
    ],
)  # fmt: skip
def test_devices_are_never_named_for_all_hosts_at_once(tmp_path: Path, text: str) -> None:
    file = tmp_path / "more.yml"
    file.write_text(text if text.startswith("{") else f"x: !unsafe y\n{text.split()[-1].replace('=', ': ')}\n")
    for given in (text, f"@{file}"):
        with pytest.raises(BadInput, match="cannot be given as a variable of the run"):
            check_variable(given)
    for harmless in ('{"x": "hosttune_erase"}', "x=hosttune_erase", "my_hosttune_erase=S1", "[hosttune_erase]"):
        check_variable(harmless)
    with pytest.raises(BadInput, match="not YAML"):
        check_variable("{hosttune_erase: [")


def test_waves_are_taken(tmp_path: Path) -> None:
    check_request(FleetRequest(verb="handover", inventories=("x,",), waves="1,100%"))
    assert read_record(str(tmp_path)) == ()


# --- the report ----------------------------------------------------------------------------------------------------


def folder(results: Path, *, verified: Verification | None, expires: datetime, **changes: Any) -> None:
    """The files of a host whose statement was verified."""
    there = results / "h"
    there.mkdir(exist_ok=True)
    made = stated(expires_at=expires.isoformat(), **changes)
    (there / "statement.json").write_text(made.to_json())
    for phase in ("course", "sign", "verify"):
        answer = {"host": "h", "phase": phase, "run": "r", "outcome": "ok"}
        document = json.loads(verified.to_json()) if verified is not None and phase == "verify" else {}
        if document.get("verdict") == "void":
            answer["outcome"] = "no"
        (there / f"{phase}.json").write_text(json.dumps({**document, "fleet": answer}))


def verified(expires: datetime, *reasons: Reason) -> Verification:
    return Verification(
        verdict="void" if reasons else "valid", about="host", host="node1", signer="ops", devices=(GPU, DRIVE),
        issued_at="2026-01-01T00:00:00+00:00", expires_at=expires.isoformat(), reasons=reasons,
    )  # fmt: skip


def states(results: Path, at: datetime = NOW) -> list[tuple[str, tuple[str, ...]]]:
    answers = {phase: read_answer(str(results), "h", phase, "r") for phase in ("course", "sign", "verify")}
    return [(one.state, one.why) for one in handed_of(str(results), "h", answers, at=at)]


def test_a_statement_is_valid_only_as_the_host_verified_it_and_until_it_expires(tmp_path: Path) -> None:
    late, soon = NOW + timedelta(hours=5), NOW + timedelta(minutes=30)
    folder(tmp_path, verified=verified(late), expires=late)
    assert states(tmp_path) == [("valid", ())] * 2
    assert states(tmp_path, late)[0] == ("void", (f"expired at {late.isoformat()}",))
    folder(tmp_path, verified=verified(soon), expires=soon)
    assert states(tmp_path) == [("expiring", ())] * 2
    folder(tmp_path, verified=verified(soon), expires=late)  # signed again since, and not verified
    assert states(tmp_path)[0] == ("void", ("it is not the statement that the host verified",))
    for other in ({"host": "node2"}, {"devices": (GPU,)}, {"issued_at": "2026-01-01T00:00:01+00:00"}):
        folder(tmp_path, verified=msgspec.structs.replace(verified(late), **other), expires=late)
        assert states(tmp_path)[0] == ("void", ("it is not the statement that the host verified",))
    boot = Reason(reason="boot", subject="host", text="boot id: was a, and is b")
    folder(tmp_path, verified=verified(late, boot), expires=late)
    assert states(tmp_path) == [("void", ("boot id: was a, and is b",))] * 2
    folder(tmp_path, verified=msgspec.structs.replace(verified(late), about="document"), expires=late)
    assert states(tmp_path)[0][0] == "void"
    folder(tmp_path, verified=None, expires=late)
    assert states(tmp_path)[0][0] == "void"
    (tmp_path / "h/verify.json").unlink()
    assert states(tmp_path)[0] == ("void", ("not verified on the host: no answer of this run",))


def test_a_device_that_is_not_clean_is_quarantined_whatever_the_signature(tmp_path: Path) -> None:
    late = NOW + timedelta(hours=5)
    devices = stated().predicate.devices
    kept = (msgspec.structs.replace(devices[0], state="quarantined"), devices[1])
    folder(tmp_path, verified=verified(late), expires=late, devices=kept)
    assert states(tmp_path) == [("quarantined", ("its state is quarantined",)), ("valid", ())]


@pytest.mark.parametrize("text", ["", "{}", "[1", '{"_type": 3}', "\xff"])
def test_a_statement_that_cannot_be_read_shows_nothing_good(tmp_path: Path, text: str) -> None:
    late = NOW + timedelta(hours=5)
    folder(tmp_path, verified=verified(late), expires=late)
    (tmp_path / "h/statement.json").write_text(text)
    assert states(tmp_path) == []
    line = report_of(str(tmp_path), ["h"], RunContext("course", run="r")).hosts[0]
    assert (line.verdict, line.handed, line.told[0].check) == ("unknown", (), "handover-statement")
