"""`validate --accept CHECK[:SUBJECT] --why TEXT --until DATE`: kept with the name, shown everywhere."""

from __future__ import annotations

import json
import tarfile
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hosttune.cli import run
from hosttune.errors import BadInput
from hosttune.machine.opening import open_root
from hosttune.model.evidence import Evidence, Health, KernelEvent
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, PciDevice
from hosttune.model.quarantine import DeviceRecord, HandoverState
from hosttune.model.validation import Acceptance, CheckResult, Validation, counts, verdict_of
from hosttune.validating import ValidationRequest, accepting, decide, validate

VM = Path(__file__).parents[2] / "hosts" / "h100" / "vm-h100x1.tar.gz"
GPU = "0000:00:06.0"
WHY = ("--why", "a cloud VM; it shows no nodes", "--until", "2999-12-31")
ALSO = ("--accept", "time-sync", "--accept", "monitoring-baseline", "--accept", "pcie-replay")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The captured guest as a scratch root: warnings of numa-affinity, pcie-replay, time-sync, no baseline."""
    with tarfile.open(VM) as tar:
        tar.extractall(tmp_path / "root", filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(
            tmp_path
        )
    (tmp_path / "root/.hosttune/scratch").touch()
    return tmp_path / "root"


@pytest.fixture
def hosttune(capsys: pytest.CaptureFixture[str], scratch: Path) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        code = run(["validate", "--root", str(scratch), *words])
        return code, *capsys.readouterr()

    return call


FIVE = {"check": "row-remap", "subject": GPU, "by": "ops", "why": "x", "until": "2999-12-31"}


def standing(text: str) -> dict[str, str]:
    return {one["check"]: one["accepted"] and one["accepted"]["why"] for one in json.loads(text)["results"]}


def test_what_is_accepted_is_kept_shown_in_every_format_and_moves_no_verdict(hosttune: Run, scratch: Path) -> None:
    assert json.loads(hosttune("-o", "json")[1])["verdict"] == "warn"
    code, out, err = hosttune("--accept", f"numa-affinity:{GPU}", *ALSO, *WHY, "-o", "json")
    assert (code, err, json.loads(out)["verdict"]) == (0, "", "pass")
    assert {check for check, why in standing(out).items() if why} == {
        "numa-affinity",
        "time-sync",
        "monitoring-baseline",
        "pcie-replay",
    }
    (first, *_) = json.loads((scratch / "var/lib/hosttune/accepted.json").read_text())["results"]
    assert (first["check"], first["subject"], first["until"]) == ("numa-affinity", GPU, "2999-12-31")
    assert first["by"]
    assert first["at"].startswith("20")
    text = hosttune()[1]  # and in the next validation
    assert text.startswith("PASS")
    assert "accepted: 4" in text
    assert f"by {first['by']} on {first['at'][:10]} until 2999-12-31: a cloud VM; it shows no nodes" in " ".join(
        text.split()
    )
    for form in ("md", "html"):
        assert "a cloud VM; it shows no nodes" in hosttune("-o", form)[1].replace("\\", "")
    suite = ET.fromstring(hosttune("-o", "junit")[1])
    assert suite.get("errors") == "0"
    assert sum((one.text or "").startswith("accepted by") for one in suite.iter("system-out")) == 4
    assert 'hosttune_check_results{check="time-sync",status="accepted"} 1' in hosttune("-o", "prometheus")[1]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--accept", "time-sync"), 2, "--why is missing"),
        (("--accept", "time-sync", "--why", "x"), 2, "--until is missing"),
        (("--until", "2999-12-31"), 2, "nothing to accept"),
        (("--accept", "time-sync", "--why", "x", "--until", "soon"), 2, "'soon' is no date"),
        (("--accept", "time-sync", "--why", "x", "--until", "2020-01-01"), 2, "not in the future"),
        (("--accept", "time-sync", "--why", "x", "--until", "2026-02-30"), 2, "is no date"),
        (("--accept", "time-sync", "--why", "x", "--until", "20200101"), 2, "is no date"),
        (("--accept", "time-sync", "--why", "x", "--until", "2026-W10-1"), 2, "is no date"),
        (("--accept", "time-sync", "--why", "  ", "--until", "2999-12-31"), 2, "not a valid reason"),
        (("--accept", "time-synk", *WHY), 2, "no check 'time-synk'"),
        (("--accept", "device-present", *WHY), 2, "a device that is gone cannot be accepted"),
        (("--accept", "handover-statement", *WHY), 2, "what a hand-over covers cannot be accepted"),
        (("--accept", "gpu-status", *WHY), 2, "nothing is unknown or a warning there"),
        (("--accept", "time-sync:0000:01:00.0", *WHY), 2, "nothing is unknown or a warning there"),
    ],
)
def test_what_cannot_be_accepted_is_refused_with_the_reason(
    words: tuple[str, ...], code: int, told: str, hosttune: Run, scratch: Path
) -> None:
    found = hosttune(*words)
    assert (found[0], found[1]) == (code, "")
    assert told in found[2]
    assert not (scratch / "var/lib/hosttune/accepted.json").exists()


def test_on_a_capture_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "--root", str(VM), "--accept", "time-sync", *WHY]) == 3
    assert "a captured host has no state to write to" in capsys.readouterr().err


def test_a_failure_and_a_device_in_a_hand_over_stay_what_they_are() -> None:
    lost = KernelEvent(kind="oom-guest", seconds=1.0, last_seconds=1.0)
    evidence = Evidence(host=Host(), health=Health(events=(lost,), events_since=0.0, events_source="dmesg"))
    found = decide(evidence, 0, None, live=False)
    word = (Acceptance(check="kernel-log", by="ops", why="known", until="2999-12-31"),)
    with pytest.raises(BadInput, match="a failure cannot be accepted"):
        accepting.keep("/nowhere", "--accept", word, found.results, evidence.host)
    assert accepting.applied(found, word, evidence.host) == found
    record = DeviceRecord(
        address=GPU, identity="10de:2330", state="quarantined", since="2026-01-01", why="a tenant left"
    )
    host = Host(handover=HandoverState(devices=(record,)))
    doubt = CheckResult(check="row-remap", subject=GPU, outcome="unknown", actual="not read")
    asked = (Acceptance(check="row-remap", subject=GPU, by="ops", why="known", until="2999-12-31"),)
    with pytest.raises(BadInput, match="what a hand-over covers"):
        accepting.keep("/nowhere", "--accept", asked, (doubt,), host)
    kept = accepting.applied(Validation(results=(doubt,)), asked, host)
    assert kept.verdict == "unknown"


def test_one_whose_date_is_over_says_so_and_counts_again() -> None:
    doubt = CheckResult(check="row-remap", subject=GPU, outcome="unknown", actual="not read")
    old = (Acceptance(check="row-remap", subject=GPU, by="ops", why="known", until="2020-12-31"),)
    (result,) = (found := accepting.applied(Validation(results=(doubt,)), old, Host())).results
    assert (found.verdict, result.standing) == ("unknown", "unknown")
    assert result.accepted is not None
    assert "that date is over" in result.accepted.text


def test_of_two_people_the_one_whose_date_is_not_overcounts() -> None:
    doubt = CheckResult(check="row-remap", subject=GPU, outcome="unknown", actual="not read")
    long = Acceptance(check="row-remap", by="a", why="known", until="2999-12-31")
    over = Acceptance(check="row-remap", subject=GPU, by="b", why="known", until="2020-12-31")
    for order in ((long, over), (over, long)):
        (result,) = accepting.applied(Validation(results=(doubt,)), order, Host()).results
        assert result.accepted == long
    worse = CheckResult(check="row-remap", subject=GPU, outcome="fail", actual="8 rows")
    assert accepting.applied(Validation(results=(worse,)), (long,), Host()).verdict == "fail"


def test_a_damaged_record_is_named_and_not_written_over(hosttune: Run, scratch: Path) -> None:
    path = scratch / "var/lib/hosttune/accepted.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{")
    code, out, err = hosttune("--accept", "time-sync", *WHY)
    assert (code, out) == (2, "")
    assert str(path) in err
    assert path.read_text() == "{"


def test_a_record_with_what_is_no_date_accepts_nothing(hosttune: Run, scratch: Path) -> None:
    hosttune("--accept", "time-sync", *WHY)
    path = scratch / "var/lib/hosttune/accepted.json"
    path.write_text(path.read_text().replace("2999-12-31", "never"))
    _, out, err = hosttune("-o", "json")
    assert f"nothing that was accepted before counts: {path}: time-sync: 'never' is no date" in err
    assert not any(one["accepted"] for one in json.loads(out)["results"])
    assert hosttune("--accept", "time-sync", *WHY)[0] == 2


@pytest.mark.parametrize("fact", ["uuid", "serial", "dsn"])
def test_it_is_of_the_device_and_not_of_the_address(fact: str) -> None:
    doubt = CheckResult(check="row-remap", subject=GPU, outcome="unknown", actual="not read")
    row = {"check": "row-remap", "subject": GPU, "by": "a", "why": "x", "until": "2999-12-31", "device": {fact: "1"}}
    (known,) = accepting.declared([row], "config.toml: accept")  # --accept notes the same by itself

    def judged(value: str | None) -> CheckResult:
        own = {} if fact == "dsn" else {fact: value}
        gpu = msgspec.structs.replace(Gpu(address=GPU), **own)
        host = Host(gpus=(gpu,), pci=(PciDevice(address=GPU, dsn=value),))
        return accepting.applied(Validation(results=(doubt,)), (known,), host).results[0]

    assert [judged(value).standing for value in ("1", None, "2")] == ["accepted", "accepted", "unknown"]
    told = judged("2").accepted
    assert told is not None
    assert "another device is there now: accept it again" in told.text


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ({}, "not a list"),
        ([{"check": "time-sync"}], "not the five keys"),
        ([{"check": "time-sync", "subject": "host", "by": "", "why": "x", "until": "2999-12-31"}], "an empty value"),
        ([{"check": "nope", "subject": "host", "by": "ops", "why": "x", "until": "2999-12-31"}], "no check 'nope'"),
        ([{**FIVE, "device": {"slot": "7"}}], "device is not what tells"),
        ([{**FIVE, "device": {"serial": 165}}], "an empty value, or none that is text"),
    ],
)
def test_a_configuration_needs_all_five(rows: Any, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        accepting.declared(rows, "config.toml: accept")


def test_a_configuration_accepts_and_a_fleet_counts_it_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scratch: Path
) -> None:
    row = 'check = "time-sync"\nsubject = "host"\nby = "ops"\nwhy = "an isolated network"\nuntil = 2999-12-31\n'
    (tmp_path / "config.toml").write_text(f"[[accept]]\n{row}")
    monkeypatch.setenv("HOSTTUNE_CONFIG", str(tmp_path / "config.toml"))
    from hosttune.cli.config import accepted

    said: list[str] = []
    asked = ValidationRequest(accepted=accepted(), keep=False)
    found = validate(open_root(str(scratch)), asked, say=said.append).validation
    assert said == ["reading the host"]
    assert [one.check for one in found.results if one.standing == "accepted"] == ["time-sync"]
    assert verdict_of(found.results) == found.verdict == "warn", "numa-affinity is not accepted"
    assert counts(found.results)["accepted"] == 1
    assert counts(found.results)["warn"] == 3
    (tmp_path / "fleet.json").write_text(
        json.dumps([{"check": "time-sync", "subject": "host", "by": "ops", "why": "x", "until": "2999-12-31"}])
    )
    assert run(["validate", "--root", str(scratch), "--accepted", str(tmp_path / "fleet.json"), "-o", "json"]) == 0
    assert standing(capsys.readouterr().out)["time-sync"] == "x"
