"""A declared baseline: written from a run or a host, checked, and as a gate between waves. Unknown is never a pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fleetresults import RUN, write_lost, write_validation
from fleetsim import AT, Fleet, add, begin, names, past_in, rollout_of, run_services
from fleetstub import Stubs
from uniformhosts import GPUS, KINDS, VALUES, document, facts, machine
from unit.fleet.test_fleet_uniformity import H100, H200

from hosttune.cli import run as hosttune
from hosttune.errors import BadInput
from hosttune.fleet.declared import baseline_text, judged, of_validation
from hosttune.fleet.medians import Hardware
from hosttune.fleet.overview import RunContext, report_of
from hosttune.fleet.playbook import PlaybookOrder, Played, Stop, TaskEvent
from hosttune.fleet.record import Ended, Line, Members, Resumed, RunBegun, decode, encode
from hosttune.fleet.results import RECORD, answer_path
from hosttune.fleet.rollout import carry_out, resumed
from hosttune.fleet.run import FleetRequest, check_request, past_of
from hosttune.fleet.uniformity import Gathering, HostHardware
from hosttune.model.configuration import FACT_KINDS, HOST_SPECIFIC, Fact
from hosttune.model.declared import Declared, DeclaredHosts

GPU_KIND = KINDS["gpu"][0]
NAMELESS = HostHardware(None, Hardware(H200.hardware.gpus, None))


def written(*hosts: tuple[Fact, ...], hardware: HostHardware = H200) -> str:
    """The baseline of these hosts."""
    gathering = Gathering()
    for number, found in enumerate(hosts):
        gathering.add(f"h{number}", hardware, found)
    return baseline_text(gathering.spreads(), source="a test")


WHOLE = Declared.from_yaml(written(facts(), facts()))


def outcomes(
    declared: Declared, found: tuple[Fact, ...] | None, hardware: HostHardware | None = H200
) -> dict[str, set[str]]:
    """Outcomes by check of a host."""
    result: dict[str, set[str]] = {}
    for one in judged(declared, hardware, found):
        result.setdefault(one.check, set()).add(one.outcome)
    return result


# --- writing and reading -----------------------------------------------------------------------------------------


def test_what_is_written_from_hosts_is_what_they_have() -> None:
    (hosts,) = WHOLE.hosts
    assert (hosts.product, hosts.gpus) == ("PowerBox 9680", ("10de:2335",))
    declared = dict(hosts.facts) | {name: value for one in hosts.devices for name, value in one.facts.items()}
    assert declared == VALUES
    assert outcomes(WHOLE, facts()) == {f"declared-{name}": {"pass"} for name in VALUES}
    assert Declared.from_yaml(WHOLE.to_json()) == WHOLE


def test_without_a_majority_or_a_value_it_is_a_comment_with_the_reason() -> None:
    text = written(facts({"kernel": "a"}), facts({"kernel": "b"}), facts({"microcode": None, "kernel": "c"}))
    assert "# kernel: no majority: 1 x a, 1 x b, 1 x c" in text
    assert 'microcode: "0x2b000590"  # 2 of 3' in text
    declared = Declared.from_yaml(text).hosts[0].facts
    assert "kernel" not in declared
    assert declared["microcode"] == VALUES["microcode"]
    assert "# microcode: not known" in written(facts({"microcode": None}), facts({"microcode": None}))
    with pytest.raises(BadInput, match="no host gives a fact that could be declared"):
        written()
    with pytest.raises(BadInput, match="no host gives a fact"):
        written(facts(), hardware=NAMELESS)


def test_a_device_that_half_of_the_hosts_lack_is_not_declared() -> None:
    other = Fact(name="drive-firmware", value="7", kind="1344:51c3 1344:3100", subjects=("0000:02:00.0",))
    swapped = (*facts(lost=["drive-firmware"]), other)
    kinds = [one.kind for one in Declared.from_yaml(written(facts(), facts(), swapped)).hosts[0].devices]
    assert kinds == sorted(kind for kind, _, _ in KINDS.values())
    assert outcomes(WHOLE, swapped)["declared-drive-firmware"] == {"unknown"}
    half = Declared.from_yaml(written(facts(), swapped)).hosts[0].devices
    assert KINDS["drive"][0] not in [one.kind for one in half]


def test_texts_of_hosts_cannot_become_keys() -> None:
    evil = 'a"\\: [} # {{'
    text = written(facts({"bios-version": evil, "vbios": "x #y"}), facts({"bios-version": evil, "vbios": "x #y"}))
    declared = Declared.from_yaml(text).hosts[0]
    assert declared.facts["bios-version"] == evil
    assert declared.facts.keys() == {name for name in VALUES if FACT_KINDS[name].of == "host"}


def plain(**others: Any) -> dict[str, Any]:
    return {"version": 1, "hosts": [{"product": "P", "gpus": ["10de:2335"], "facts": {"kernel": "1"}, **others}]}


def fact(name: str, value: object) -> dict[str, Any]:
    return plain(facts={name: value})


def device(kind: str, name: str, value: object) -> dict[str, Any]:
    return plain(devices=[{"kind": kind, "facts": {name: value}}])


BAD: list[tuple[object, str, str]] = [
    ([], "not a mapping", ""),
    ({}, "no version", "version"),
    ({"version": 2, "hosts": []}, "version 2 is not known", "version"),
    ({"version": True, "hosts": []}, "version True is not known", "version"),
    ({"version": 1}, "missing required field `hosts`", "$"),
    ({"version": 1, "hosts": []}, "no hosts", "hosts"),
    ({**plain(), "hostz": 1}, "unknown key 'hostz'", "$"),
    (plain(fact=1), "unknown key 'fact'", "hosts[0]"),
    (plain(facts={}), "declares nothing", "hosts[0]"),
    (plain(product=" "), "no product name", "hosts[0].product"),
    (plain(product=7), "Expected `str`", "hosts[0].product"),
    ({"version": 1, "hosts": [*plain()["hosts"], *plain()["hosts"]]}, "machine model that is there twice", "hosts[1]"),
    (fact("kernal", "1"), "unknown fact 'kernal'", "hosts[0].facts"),
    (fact("vbios", "1"), "'vbios' is a fact of a device", "hosts[0].facts"),
    (fact("kernel", 6.8), "Expected `str | object | array`", "hosts[0].facts"),
    (fact("kernel", []), "an empty list", "hosts[0].facts.kernel"),
    (fact("kernel", ""), "'' cannot be a value", "hosts[0].facts.kernel"),
    (fact("kernel", {"min": "6.1"}), "kernel has no order", "hosts[0].facts.kernel"),
    (fact("bios-version", {"min": "2.1"}), "bios-version has no order", "hosts[0].facts.bios-version"),
    (fact("microcode", {}), "a range without min and max", "hosts[0].facts.microcode"),
    (fact("microcode", {"min": "2b"}), "'2b' cannot be compared", "hosts[0].facts.microcode"),
    (fact("microcode", {"min": "0x3", "max": "0x2"}), "min is above max", "hosts[0].facts.microcode"),
    (fact("microcode", {"mini": "0x3"}), "unknown key 'mini'", "hosts[0].facts"),
    (fact("bios-date", {"max": "2025-01-01"}), "cannot be compared", "hosts[0].facts.bios-date"),
    (fact("kernel", "a\x1bb"), "control character", "kernel"),
    (device("10de:2335", "vbios", "1"), "'10de:2335' is no kind", "hosts[0].devices[0].kind"),
    (device(GPU_KIND, "kernel", "1"), "'kernel' is a fact of the host", "hosts[0].devices[0].facts"),
    (device(GPU_KIND, "vbios", {"min": "96"}), "vbios has no order", "hosts[0].devices[0].facts.vbios"),
    (plain(devices=[{"kind": GPU_KIND, "facts": {"vbios": "1"}}] * 2), "a kind that is there twice", "devices[1]"),
]


@pytest.mark.parametrize(("content", "what", "place"), BAD, ids=[one[1][:30] for one in BAD])
def test_a_malformed_baseline_is_refused_with_its_key(content: object, what: str, place: str) -> None:
    with pytest.raises(BadInput) as error:
        Declared.from_yaml(json.dumps(content), where="b.yml")
    assert what in error.value.what
    assert error.value.where.startswith("b.yml")
    assert place in error.value.where


@pytest.mark.parametrize("text", ["version: 1\nhosts: &a [*a]", "version: 1\nversion: 1", "a: [", "\xff", "", "- 1"])
def test_no_yaml_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        Declared.from_yaml(text, where="b.yml")


# --- judging -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VALUES)
def test_each_fact_fails_where_it_differs_and_is_unknown_where_it_is_missing(name: str) -> None:
    check = f"declared-{name}"
    differs, unread, left_out = (
        outcomes(WHOLE, found) for found in (facts({name: "other"}), facts({name: None}), facts(lost=[name]))
    )
    assert (differs.pop(check), unread.pop(check), left_out.pop(check)) == ({"fail"}, {"unknown"}, {"unknown"})
    assert all(found == {"pass"} for one in (differs, unread, left_out) for found in one.values())


def test_one_device_that_differs_fails_by_its_address() -> None:
    bad = [one for one in judged(WHOLE, H200, facts(device={"vbios": (GPUS[2], "old")})) if one.outcome != "pass"]
    assert [(one.check, one.subject, one.actual, one.expected) for one in bad] == [
        ("declared-vbios", GPUS[2], "old", VALUES["vbios"])
    ]


def test_hosts_without_facts_or_of_another_model_are_unknown() -> None:
    for found, hardware, words in (
        (None, H200, "no configuration facts"), (facts(), None, "no configuration facts"),
        (facts(), H100, "10de:2330"), (facts(), NAMELESS, "unknown, 10de:2335"),
        ((Fact(name="kernel", value="1"),) * 2000, H200, "too many"),
    ):  # fmt: skip
        (one,) = judged(WHOLE, hardware, found)
        assert (one.check, one.outcome) == ("declared-baseline", "unknown")
        assert words in (one.actual or "")


def test_devices_of_unknown_ids_and_contradictions_are_unknown() -> None:
    nameless = tuple(msgspec.structs.replace(one, kind=None) if one.name == "vbios" else one for one in facts())
    assert outcomes(WHOLE, nameless)["declared-vbios"] == {"unknown"}
    assert outcomes(WHOLE, (*facts(), Fact(name="kernel", value="6.5")))["declared-kernel"] == {"unknown"}
    again = Fact(name="vbios", value="other", kind=GPU_KIND, subjects=(GPUS[0],))
    assert outcomes(WHOLE, (*facts(), again))["declared-vbios"] == {"pass", "unknown"}
    assert outcomes(WHOLE, facts({"kernel": f"{VALUES['kernel']}\x1b[0m"}))["declared-kernel"] == {"unknown"}


def declaring(name: str, wanted: object) -> Declared:
    where = "devices" if FACT_KINDS[name].of != "host" else "facts"
    found: object = {name: wanted}
    if where == "devices":
        found = [{"kind": KINDS[FACT_KINDS[name].of][0], "facts": found}]
    hosts = {"product": "PowerBox 9680", "gpus": ["10de:2335"], where: found}
    return Declared.from_yaml(json.dumps({"version": 1, "hosts": [hosts]}))


@pytest.mark.parametrize(
    ("name", "wanted", "value", "outcome"),
    [
        ("kernel", ["6.8", "6.11"], "6.11", "pass"),
        ("kernel", ["6.8", "6.11"], "6.1", "fail"),
        ("gpu-driver", {"min": "570.86", "max": "570.200"}, "570.124.06", "pass"),
        ("gpu-driver", {"min": "570.86", "max": "570.200"}, "570.9", "fail"),
        ("gpu-driver", {"min": "570.86"}, "575.1", "pass"),
        ("gpu-driver", {"max": "570.86.0"}, "570.86", "pass"),
        ("gpu-driver", {"min": "570.86"}, "570.beta", "unknown"),
        ("microcode", {"min": "0x2b000590"}, "0x2b000603", "pass"),
        ("microcode", {"min": "0x2b000590"}, "0x2b0004b1", "fail"),
        ("microcode", {"min": "0x2b000590"}, "0x2b000590 and 0x2b000603", "unknown"),
        ("bios-date", {"min": "12/31/2024"}, "01/02/2025", "pass"),
        ("bios-date", {"min": "12/31/2024"}, "12/30/2024", "fail"),
        ("bios-date", {"min": "12/31/2024"}, "13/30/2024", "unknown"),
        ("kernel-arguments", "iommu=pt ro intel_iommu=on root=UUID=7", VALUES["kernel-arguments"], "pass"),
        ("kernel-arguments", ["ro iommu=pt root=*"], VALUES["kernel-arguments"], "fail"),
    ],
)  # fmt: skip
def test_lists_and_ranges(name: str, wanted: object, value: str, outcome: str) -> None:
    assert outcomes(declaring(name, wanted), facts({name: value})) == {f"declared-{name}": {outcome}}


def test_a_device_whose_fact_is_not_there_is_unknown_though_its_seven_peers_are_as_declared() -> None:
    """It is known by its other facts, or by the machine's list of GPUs."""
    for lost in (["vbios"], [name for name, kind in FACT_KINDS.items() if kind.of == "gpu"]):
        fewer = tuple(msgspec.structs.replace(one, subjects=GPUS[1:]) if one.name in lost else one for one in facts())
        results = [one for one in judged(WHOLE, H200, fewer) if one.outcome != "pass"]
        assert {one.check for one in results} == {f"declared-{name}" for name in lost}
        assert {(one.subject, one.outcome, one.actual) for one in results} == {(GPUS[0], "unknown", "not known")}


def test_what_is_not_declared_is_not_judged() -> None:
    assert outcomes(declaring("kernel", VALUES["kernel"]), facts({"vbios": "other", "smt": None})) == {
        "declared-kernel": {"pass"}
    }


# --- the gate ----------------------------------------------------------------------------------------------------


class Configured(Fleet):
    """Simulated hosts whose validation has configuration facts; `odd` by host, "torn" for a file that is cut."""

    odd: dict[str, tuple[Fact, ...] | str | None]

    def play(self, order: PlaybookOrder, heard: Callable[[TaskEvent], None], stop: Stop) -> Played:
        played = super().play(order, heard, stop)
        for host in order.hosts:
            path = Path(answer_path(order.results, host, "validate"))
            if not path.exists():
                continue
            content = json.loads(path.read_text())
            found = self.odd.get(host, facts())
            made = json.loads(document(host, None if isinstance(found, str) else found, machine()).to_json())
            text = json.dumps({**made, "fleet": content["fleet"]})
            path.write_text(text.replace('"configuration": [', '"configuration": [7, ') if found == "torn" else text)
        return played


def gated(tmp_path: Path, odd: dict[str, Any], declared: Declared | None = WHOLE) -> tuple[Configured, Any]:
    fleet = Configured()
    fleet.odd = odd
    return fleet, begin(rollout_of(tmp_path, "apply", names(6), declared=declared), tmp_path, fleet)


def test_hosts_as_declared_open_every_gate(tmp_path: Path) -> None:
    fleet, outcome = gated(tmp_path, {})
    assert (outcome.exit_code, len(fleet.asked)) == (0, 6)


@pytest.mark.parametrize(
    ("odd", "word", "why"),
    [
        (facts({"kernel": "6.5"}), "no", "kernel is 6.5, declared 6.8.0-45-generic"),
        (facts({"microcode": None}), "unknown", "microcode is not known"),
        (facts(lost=["smt"]), "unknown", "smt is not known"),
        (None, "unknown", "no configuration facts"),
        ("torn", "unknown", "no configuration facts"),
    ],
)
def test_a_host_that_differs_or_is_unknown_does_not_open_the_next_wave(
    odd: Any, word: str, why: str, tmp_path: Path
) -> None:
    fleet, outcome = gated(tmp_path, {"h001": odd})
    assert outcome.exit_code == 1
    assert fleet.asked == ["h000", "h001", "h002"]  # waves of 1, 2, 3
    assert outcome.waves[1].passed is False
    assert outcome.host_statuses["h001"].outcome == word
    assert f"h001: validate: {word}: not as the declared baseline: " in outcome.waves[1].why[0]
    assert why in outcome.waves[1].why[0]


def test_without_a_baseline_the_same_host_opens_it(tmp_path: Path) -> None:
    assert gated(tmp_path, {"h001": facts({"kernel": "6.5"})}, None)[1].exit_code == 0


def test_a_resumed_run_is_held_to_its_recorded_baseline(tmp_path: Path) -> None:
    fleet, _ = gated(tmp_path, {"h001": facts({"kernel": "6.5"})})
    line = RunBegun(run="r", at=AT, verb="apply", version="1", hosts=1, declared=WHOLE)
    assert decode(encode(line) + b"\n")[0] == line
    for odd, code in ((fleet.odd, 1), ({}, 0)):
        fleet.odd = odd
        with run_services(tmp_path, fleet) as those:
            past = past_in(tmp_path, "apply")
            base = rollout_of(tmp_path, "apply", names(6), run=past.run, declared=WHOLE)
            again = resumed(base, past, names(6), only_failed=False)
            add(those.journal, [Resumed(run=past.run, at=AT, how="resume")])
            assert carry_out(again, those).exit_code == code
    assert len(fleet.asked) == 3 + 1 + 4


def recorded(folder: Path, declared: Declared | None = None, *, verb: str = "validate") -> None:
    """A record of one run over h0 to h3 in a results folder."""
    hosts = ("h0", "h1", "h2", "h3")
    lines: tuple[Line, ...] = (
        RunBegun(run=RUN, at=AT, verb=verb, version="1", hosts=4, declared=declared),
        Members(run=RUN, wave=1, hosts=hosts),
        Ended(run=RUN, at=AT, exit_code=0),
    )
    (folder / RECORD).write_bytes(b"".join(encode(line) + b"\n" for line in lines))


def four(folder: Path, odd: Mapping[str, tuple[Fact, ...] | None] | None = None) -> None:
    for name in ("h0", "h1", "h2", "h3"):
        write_validation(folder, name, document(name, (odd or {}).get(name, facts())))


def test_another_baseline_cannot_be_given_to_a_resumed_run(tmp_path: Path) -> None:
    recorded(tmp_path, WHOLE)
    assert past_of(FleetRequest("validate", ("h0,",), results=str(tmp_path), resume=True)) is not None
    for declared, began, what in ((declaring("kernel", "1"), WHOLE, "another"), (WHOLE, None, "no")):
        recorded(tmp_path, began)
        with pytest.raises(BadInput, match=f"the run began with {what} declared baseline"):
            past_of(FleetRequest("validate", ("h0,",), results=str(tmp_path), resume=True, declared=declared))
    with pytest.raises(BadInput, match="--check validates no host"):
        check_request(FleetRequest("apply", ("h0,",), check=True, baseline="b.yml"))
    with pytest.raises(BadInput, match="discover does not take it"):
        check_request(FleetRequest("discover", ("h0,",), baseline="b.yml"))


def test_the_report_of_a_run_has_the_baselines_results(tmp_path: Path) -> None:
    four(tmp_path, {"h1": facts({"kernel": "6.5"}), "h2": facts({"vbios": None}), "h3": None})
    report = report_of(str(tmp_path), ("h0", "h1", "h2", "h3"), RunContext(verb="validate", run=RUN, declared=WHOLE))
    assert [one.verdict for one in report.hosts] == ["pass", "fail", "unknown", "unknown"]
    assert report.hosts[1].checks["declared-kernel"] == "fail"
    assert report.hosts[3].checks["declared-baseline"] == "unknown"


# --- the command -------------------------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = hosttune(["fleet", "baseline", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_written_checked_and_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    four(tmp_path, {"h3": facts({"kernel": "6.5"})})
    recorded(tmp_path)
    results, path = ("--results", str(tmp_path)), str(tmp_path / "b.yml")
    code, out, _ = command(capsys, *results)
    assert (code, Declared.from_yaml(out).hosts[0].facts["kernel"]) == (0, VALUES["kernel"])
    code, out, err = command(capsys, *results, "--from-host", "h3", "--out", path)
    assert (code, out) == (0, "")
    assert f"written: {path}" in err
    assert Declared.from_yaml(Path(path).read_text()).hosts[0].facts["kernel"] == "6.5"
    code, out, err = command(capsys, *results, "--out", path)
    assert (code, "the file exists" in err) == (2, True)
    code, out, _ = command(capsys, *results, "--against", path)
    assert code == 1
    assert "FAIL  1 of 4 hosts are as declared, different: 3, unknown: 0" in out
    assert "kernel: 6.8.0-45-generic, declared 6.5" in out
    code, out, _ = command(capsys, *results, "--against", path, "-o", "json")
    answer = json.loads(out)
    assert (code, answer["verdict"], [one["verdict"] for one in answer["hosts"]]) == (
        1,
        "fail",
        [*["fail"] * 3, "pass"],
    )
    four(tmp_path, dict.fromkeys(("h0", "h1", "h2", "h3"), facts({"kernel": "6.5"})))
    assert command(capsys, *results, "--against", path)[0] == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--from-host", "h9"), "no host 'h9' in the run"),
        (("--run", "none"), "no run none in its record"),
        (("--against", "none.yml"), "none.yml"),
        (("--against", "b.yml", "--from-host", "h0"), "both --against and --from-host"),
        (("--against", "b.yml", "--out", "x"), "both --against and --out"),
        (("--from-host", "h2"), "'h2' has no validation there"),
        (("--out", "/no/such/place/b.yml"), "cannot write it"),
        (("-o", "json"), "a baseline is written as YAML"),
        (("-i", "h0,"), "a run's hosts are in its record"),
        (("--run", RUN, "--verb", "validate"), "both --run and --verb"),
    ],
)
def test_bad_requests_are_2_and_write_nothing(
    words: tuple[str, ...], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    four(tmp_path)
    write_lost(tmp_path, "h2", "unreachable", "no route")
    recorded(tmp_path)
    code, out, err = command(capsys, "--results", str(tmp_path), *words)
    assert (code, out) == (2, "")
    assert what in err


def test_empty_and_torn_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = ("--results", str(tmp_path))
    (tmp_path / "b.yml").write_text(written(facts(), facts()))
    assert "no run in its record" in command(capsys, *results)[2]
    recorded(tmp_path, verb="discover")
    assert "it validated no host" in command(capsys, *results)[2]
    recorded(tmp_path)
    code, _, err = command(capsys, *results)
    assert (code, "no host gives a fact that could be declared" in err) == (2, True)
    code, out, _ = command(capsys, *results, "--against", str(tmp_path / "b.yml"))
    assert (code, "UNKNOWN  0 of 4 hosts are as declared, different: 0, unknown: 4" in out) == (1, True)
    four(tmp_path)
    place = Path(answer_path(str(tmp_path), "h1", "validate"))
    place.write_bytes(place.read_bytes()[:300])
    code, out, _ = command(capsys, *results, "--against", str(tmp_path / "b.yml"))
    assert (code, "3 of 4 hosts are as declared, different: 0, unknown: 1" in out) == (1, True)


def test_hosts_that_validate_themselves_have_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    four(tmp_path, {"h3": facts({"kernel": "6.5"})})
    results, path = ("--results", str(tmp_path), "--verb", "validate"), tmp_path / "b.yml"
    code, out, _ = command(capsys, *results)
    assert code == 0
    path.write_text(out)
    code, out, _ = command(capsys, *results, "--against", str(path))
    assert (code, "3 of 4 hosts are as declared, different: 1, unknown: 0 (last answers to validate)" in out) == (
        1,
        True,
    )
    code, out, _ = command(capsys, *results, "--against", str(path), "-i", "h0,h1,h8")
    assert (code, "2 of 3 hosts are as declared, different: 0, unknown: 1" in out) == (1, True)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no host has answered" in command(capsys, "--results", str(empty), "--verb", "validate")[2]


def test_one_host_is_a_baseline_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    four(tmp_path)
    recorded(tmp_path)
    code, out, _ = command(capsys, "--results", str(tmp_path), "--from-host", "h0")
    assert code == 0
    assert Declared.from_yaml(out) == WHOLE


def test_mixed_models_have_an_entry_each(tmp_path: Path) -> None:
    other = machine("PowerBox 9690", ("NVIDIA B200", "10de:2901"))
    gathering = Gathering()
    gathering.add("h0", H200, facts())
    gathering.add("h1", H200, facts())
    gathering.add("h2", H100, facts({"kernel": "6.5"}))
    declared = Declared.from_yaml(baseline_text(gathering.spreads(), source="a test"))
    assert [(one.gpus, one.facts["kernel"]) for one in declared.hosts] == [
        (("10de:2330",), "6.5"), (("10de:2335",), VALUES["kernel"]),
    ]  # fmt: skip
    assert isinstance(declared.hosts[0], DeclaredHosts)
    (one,) = of_validation(declared, document("h3", facts(), other))
    assert one.outcome == "unknown"


def test_the_gate_through_the_real_playbooks(tmp_path: Path) -> None:
    """These hosts answer as an older hosttune does, without configuration facts: unknown, so no second wave."""
    stubs = Stubs(tmp_path, ("a", "b"))
    stubs.inventory()
    path = tmp_path / "b.yml"
    path.write_text("version: 2\n")
    refused = stubs.fleet("apply", "--waves", "1", "--baseline", str(path), code=2)
    assert "is not known" in refused.stderr
    assert (stubs.calls(), stubs.record()) == ([], [])
    path.write_text(written(facts()))
    done = stubs.fleet("apply", "--waves", "1", "--baseline", str(path), code=1)
    assert stubs.calls() == ["a validate", "a apply", "a validate"]
    assert "a: validate: unknown: not as the declared baseline" in done.stdout
    assert "the gate after wave 1 of 2 did not open" in done.stderr
    assert stubs.record()[0]["declared"]["version"] == 1


# --- the manual --------------------------------------------------------------------------------------------------


def test_the_page_has_every_fact_and_a_baseline_that_can_be_read() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "fleet-uniformity.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for name in FACT_KINDS:
        assert any(f"`{name}`" in row for row in rows), name
    for name in HOST_SPECIFIC:
        assert f"`{name}`" in page, name
    block = page[page.index("    version: 1\n") :].partition("\n\n")[0]
    declared = Declared.from_yaml("\n".join(line[4:] for line in block.splitlines()))
    assert [(one.product, one.devices[0].kind) for one in declared.hosts] == [("PowerBox 9680", GPU_KIND)]
    for name, kind in FACT_KINDS.items():
        assert (f"`{name}`" in page.partition("have an order:")[2].partition("VBIOS, BIOS")[0]) == bool(kind.order)
