"""Result files → fleet report: nothing lost, nothing passed that was not proven."""

from __future__ import annotations

import os
import random
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from fleetresults import (
    HOSTILE_NAMES,
    RUN,
    example,
    fleet,
    names,
    recorded,
    validation,
    write,
    write_discovered,
    write_validation,
)

import hosttune
from hosttune.errors import BadInput
from hosttune.fleet.overview import MOST_TEXT, MOST_TOLD, RunContext, report_of
from hosttune.fleet.results import answer_path, host_folder
from hosttune.model.fleet import Answer, FleetReport, HostLine, Wave
from hosttune.model.validation import CheckResult, Machine, MeasuredGpu, Validation, Verdict
from hosttune.report.fleet_groups import ANSWERS, meaning, results_left_out, troubles

ASKED = RunContext("validate", run=RUN, at="2026-03-01T10:00:00Z", version="0.1.0")
GOOD = CheckResult(check="pcie-link", subject="host", outcome="pass", source="/sys")
BAD = CheckResult(check="pcie-link", subject="host", outcome="fail", actual="x8", hint="reseat it")


def one(folder: Path, host: str = "a", asked: RunContext = ASKED) -> HostLine:
    (line,) = report_of(str(folder), [host], asked).hosts
    return line


CODES = {"ok": 0, "no": 1, "bad-input": 2, "refused": 3, "needs-person": 4, "internal": 70}


def answered(host: str = "a", phase: str = "validate", **changes: object) -> Answer:
    fields: dict[str, object] = {"host": host, "phase": phase, "run": RUN, "outcome": "ok"}
    fields["exit_code"] = CODES.get(str(changes.get("outcome", "ok")))
    return Answer(**(fields | changes))  # type: ignore[arg-type]


def of(*results: CheckResult, verdict: Verdict = "pass", **changes: object) -> Validation:
    return Validation(host="a", verdict=verdict, results=results, **changes)  # type: ignore[arg-type]


@cache
def of_many_hosts() -> FleetReport:
    """The report of 130 hosts and those with hostile names."""
    with TemporaryDirectory() as folder:
        return report_of(folder, fleet(Path(folder), 130, hostile=True), ASKED)


@pytest.fixture
def many() -> FleetReport:
    return of_many_hosts()


# --- what is unknown -----------------------------------------------------------------------------------------

BROKEN: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "cut": b'{"schema":"hosttune.validation/v1","verdict":"pass","results":[{"check"',
    "no JSON": b"Traceback (most recent call last)",
    "no object": b"[]",
    "null": b"null",
    "no bytes of text": b"\xff\xfe\x00",
    "no fleet record": msgspec.json.encode(of(GOOD)),
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_host_without_a_whole_file_is_unknown(name: str, tmp_path: Path) -> None:
    content = BROKEN[name]
    if content is not None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "validate.json").write_bytes(content)
    line = one(tmp_path)
    assert line.verdict == "unknown"
    assert [(told.check, told.outcome) for told in line.told] == [("host-answers", "unknown")]
    assert line.told[0].actual
    assert line.told[0].hint


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (answered(run="an older run"), "no answer of this run"),
        (answered(run=None), "no answer of this run"),
        (answered(host="b"), "another host"),
        (answered(phase="discover"), "another host or phase"),
        (answered(check=True), "another host or phase"),
    ],
)
def test_a_pass_of_another_run_host_or_phase_is_no_pass(answer: Answer, why: str, tmp_path: Path) -> None:
    place = write(tmp_path, answer, of(GOOD))
    (tmp_path / "a").mkdir(exist_ok=True)
    place.rename(tmp_path / "a" / "validate.json")
    line = one(tmp_path)
    assert (line.verdict, line.checks) == ("unknown", {"host-answers": "unknown"})
    assert why in (line.told[0].actual or "")


def test_any_run_counts_where_none_is_named(tmp_path: Path) -> None:
    write(tmp_path, answered(run="an older run"), of(GOOD))
    assert one(tmp_path, asked=RunContext("validate")).verdict == "pass"


def test_a_folder_in_the_place_of_a_file_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "a" / "validate.json").mkdir(parents=True)
    assert one(tmp_path).verdict == "unknown"


@pytest.mark.parametrize(
    ("document", "verdict"),
    [
        (of(GOOD), "pass"),
        (of(), "unknown"),  # nothing was checked
        (of(BAD), "fail"),  # says pass, holds a failure
        (of(GOOD, verdict="fail"), "fail"),
        (of(GOOD, CheckResult(check="x", subject="host", outcome="unknown")), "unknown"),
    ],
)
def test_the_verdict_is_the_worst_of_what_the_document_says(document: Validation, verdict: str, tmp_path: Path) -> None:
    write(tmp_path, answered(), document)
    assert one(tmp_path).verdict == verdict


def test_an_answer_that_is_ok_and_holds_no_validation_is_unknown(tmp_path: Path) -> None:
    write(tmp_path, answered())
    line = one(tmp_path)
    assert (line.verdict, line.answers[0].outcome) == ("unknown", "unknown")
    assert "no validation" in (line.told[0].actual or "")


@pytest.mark.parametrize("outcome", [word for word in ANSWERS if word not in ("ok", "no")])
def test_a_document_beside_an_answer_that_is_not_to_be_trusted_is_not_believed(outcome: str, tmp_path: Path) -> None:
    write(tmp_path, answered(outcome=outcome, why="because"), of(GOOD))
    line = one(tmp_path)
    assert line.verdict == "unknown"
    assert line.told[0].actual == ("because" if outcome == "unknown" else f"{outcome}: because")


def test_no_hosts_are_no_pass(tmp_path: Path) -> None:
    report = report_of(str(tmp_path), [], ASKED)
    assert report.verdict == "unknown"
    assert "says nothing" in meaning(report)


def test_a_verb_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="destroy"):
        report_of(str(tmp_path), ["a"], RunContext("destroy"))


# --- other verbs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["discover", "plan"])
@pytest.mark.parametrize(("outcome", "verdict"), [("ok", "pass"), ("no", "fail"), ("slow", "unknown")])
def test_verbs_without_a_validation_are_judged_by_their_answer(
    verb: str, outcome: str, verdict: str, tmp_path: Path
) -> None:
    planned = hosttune.plan(example()[0], hosttune.Intent.from_yaml("version: 1")) if verb == "plan" else None
    write(tmp_path, answered(phase=verb, outcome=outcome), planned)
    assert one(tmp_path, asked=RunContext(verb, run=RUN)).verdict == verdict


APPLY = RunContext("apply", run=RUN)


def applied(
    folder: Path, *, before: str = "no", status: str | None = None, after: bool = True, **changes: object
) -> None:
    write(folder, answered(phase="before", outcome=before), of(BAD, verdict="fail"))
    write(folder, answered("a", "apply", **changes))
    if status is not None:
        write(folder, answered(phase="status", outcome=status))
    if after:
        write(folder, answered(), of(GOOD))


def test_a_host_that_was_applied_and_is_well_passes_whatever_it_was_before(tmp_path: Path) -> None:
    applied(tmp_path)
    assert one(tmp_path, asked=APPLY).verdict == "pass"


def test_a_host_that_was_applied_and_not_validated_is_unknown(tmp_path: Path) -> None:
    applied(tmp_path, after=False)
    line = one(tmp_path, asked=APPLY)
    assert line.verdict == "unknown"
    assert [told.actual for told in line.told] == ["changed, and not validated since"]


def test_a_validation_that_another_run_left_is_no_proof_of_the_last_one(tmp_path: Path) -> None:
    applied(tmp_path)
    assert one(tmp_path, asked=RunContext("apply")).verdict == "pass"
    applied(tmp_path, after=False, run="later")
    line = one(tmp_path, asked=RunContext("apply"))
    assert line.verdict == "unknown"
    assert [told.actual for told in line.told] == ["changed, and not validated since"]


def test_a_host_that_is_well_and_was_not_given_back_is_unknown(tmp_path: Path) -> None:
    applied(tmp_path)
    write(tmp_path, answered(phase="undrain", outcome="unknown", why="not given back yet"))
    line = one(tmp_path, asked=APPLY)
    assert (line.verdict, [told.subject for told in line.told]) == ("unknown", ["undrain"])


def test_a_host_that_waits_for_a_reboot_is_unknown_even_with_a_pass(tmp_path: Path) -> None:
    applied(tmp_path, reboot_required=True)
    line = one(tmp_path, asked=APPLY)
    assert line.verdict == "unknown"
    assert "reboot" in (line.told[0].actual or "")


def test_a_host_that_was_rebooted_and_is_well_passes(tmp_path: Path) -> None:
    applied(tmp_path, reboot_required=True, status="ok")
    assert one(tmp_path, asked=APPLY).verdict == "pass"


@pytest.mark.parametrize("outcome", ["needs-person", "refused", "bad-input", "internal", "no"])
def test_an_apply_that_was_not_carried_out_is_a_failure(outcome: str, tmp_path: Path) -> None:
    applied(tmp_path, outcome=outcome, why="because", exit_code=CODES[outcome])
    line = one(tmp_path, asked=APPLY)
    assert (line.verdict, line.checks["apply"]) == ("fail", "fail")


def test_what_got_worse_is_a_failure_even_without_a_fault(tmp_path: Path) -> None:
    applied(tmp_path, after=False)
    warned = CheckResult(check="x", subject="host", outcome="warn", actual="slow")
    worse = ("x host: pass -> warn, slow",)
    write(tmp_path, answered(outcome="no", exit_code=1), of(warned, verdict="warn", worse=worse))
    line = one(tmp_path, asked=APPLY)
    assert (line.verdict, line.worse, line.checks["regression"]) == ("fail", worse, "fail")


def test_a_rehearsal_is_judged_by_its_own_file_alone(tmp_path: Path) -> None:
    write(tmp_path, answered(phase="apply", check=True))
    assert one(tmp_path, asked=RunContext("apply", run=RUN, check=True)).verdict == "pass"
    assert one(tmp_path, asked=APPLY).verdict == "unknown"


def test_hosts_that_a_stopped_run_did_not_reach_are_unknown_and_one_line(tmp_path: Path) -> None:
    applied(tmp_path, outcome="no")
    waves = (Wave(number=1, hosts=1, passed=False, why=("a: apply: no",)), Wave(number=2, hosts=9))
    record = recorded([["a"], names(9)], asked=1)
    asked = RunContext("apply", run=RUN, waves=waves, stopped="the gate of wave 1 is shut", record=record)
    report = report_of(str(tmp_path), ["a", *names(9)], asked)
    assert [line.verdict for line in report.hosts] == ["fail"] + ["unknown"] * 9
    (group,) = [trouble for trouble in troubles(report) if trouble.outcome == "unknown"]
    assert (len(group.hosts), group.actual) == (9, "not asked: the run stopped before")
    assert (report.stopped, report.waves) == (asked.stopped, waves)


# --- what is kept --------------------------------------------------------------------------------------------


def test_of_many_results_the_worst_are_kept_and_the_rest_counted(tmp_path: Path) -> None:
    warns = [CheckResult(check="w", subject=str(n), outcome="warn") for n in range(60)]
    write(tmp_path, answered(outcome="no"), of(*warns, BAD, verdict="fail"))
    line = one(tmp_path)
    assert (line.told[0].outcome, len(line.told), line.untold) == ("fail", MOST_TOLD, 61 - MOST_TOLD)
    assert line.counts == {"fail": 1, "unknown": 0, "warn": 60, "pass": 0, "skip": 0}
    assert "13 more results of 1 host" in (results_left_out(report_of(str(tmp_path), ["a"], ASKED)) or "")


def test_a_text_without_end_is_cut(tmp_path: Path) -> None:
    write(tmp_path, answered(outcome="no"), of(msgspec.structs.replace(BAD, actual="x" * 100_000), verdict="fail"))
    assert len(one(tmp_path).told[0].actual or "") < MOST_TEXT + 50


def test_a_check_has_its_worst_subject(tmp_path: Path) -> None:
    results = [msgspec.structs.replace(GOOD, subject=str(n)) for n in range(3)]
    results[1] = msgspec.structs.replace(BAD, subject="1", outcome="warn")
    write(tmp_path, answered(), of(*results, verdict="warn"))
    assert one(tmp_path).checks == {"pcie-link": "warn"}


def test_the_machine_comes_from_the_host_document_beside(tmp_path: Path) -> None:
    write_validation(tmp_path, "a", validation("a", random.Random(1)))
    assert one(tmp_path).devices is None
    write_discovered(tmp_path, "a", run="another run")
    line = one(tmp_path)
    assert line.devices == "8 × NVIDIA H200"
    assert line.product


def test_the_machine_that_a_validation_names_comes_first(tmp_path: Path) -> None:
    """A host document of another day may be of other GPUs."""
    own = Machine(product="Other", gpus=(MeasuredGpu(address="0000:18:00.0", model="NVIDIA H100", id="10de:2330"),))
    write_validation(tmp_path, "a", msgspec.structs.replace(validation("a", random.Random(1)), machine=own))
    write_discovered(tmp_path, "a")
    assert (one(tmp_path).devices, one(tmp_path).product) == ("1 × NVIDIA H100", "Other")


def test_a_machine_that_answers_under_two_names_is_told(tmp_path: Path) -> None:
    for name, digest in (("a", "one"), ("b", "one"), ("c", "two"), ("d", None), ("e", None)):
        own = Machine(digest=digest, product="Box")
        write_validation(tmp_path, name, msgspec.structs.replace(validation(name, random.Random(1)), machine=own))
    (note,) = [note for note in report_of(str(tmp_path), list("abcde"), ASKED).notes if "same machine" in note]
    assert note.startswith("the same machine (machine id, CPUs and nodes) answered as a, b: ")


def test_figures_of_hosts_without_a_host_document_are_said_to_be_compared_with_nobody(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_validation(tmp_path, name, validation(name, random.Random(1)))
    write_discovered(tmp_path, "b")
    report = report_of(str(tmp_path), ["a", "b"], ASKED)
    assert {one.hosts for one in report.medians} == {1}
    assert report.notes[0].startswith("1 of 2 measured hosts")


def test_slow_devices_stand_out(many: FleetReport) -> None:
    slow = {(far.host, far.metric) for far in many.outliers if (far.score or 0) < -50}
    assert slow == {(line.host, "h2d-ce") for n, line in enumerate(many.hosts) if n % 40 == 3 and n % 3 != 1}


def test_the_report_is_a_document(many: FleetReport) -> None:
    assert FleetReport.from_json(many.to_json()) == many
    assert FleetReport.from_json(many.to_json()).to_json() == many.to_json()


def test_hosts_keep_the_order_of_the_inventory(many: FleetReport) -> None:
    assert [line.host for line in many.hosts] == [*names(130), *HOSTILE_NAMES]


def test_no_name_leads_out_of_the_folder() -> None:
    for name in HOSTILE_NAMES:
        assert re.fullmatch(r"[A-Za-z0-9_%-][A-Za-z0-9._%-]*", host_folder(name))
        assert os.path.normpath(answer_path("r", name, "validate")).startswith("r/")


def stopped_run(folder: Path) -> FleetReport:
    """Six hosts in three waves: one well, one worse, one not reached, one that needs a person, two not asked."""
    for host in ("gpu-1", "gpu-2", "gpu-3", "gpu-4"):
        write(folder, answered(host, "before"), of(GOOD))
    for host in ("gpu-1", "gpu-2"):
        write(folder, answered(host, "apply", changed=True, seconds=2.0))
    write(folder, answered("gpu-1", seconds=3.25), of(GOOD))
    slow = msgspec.structs.replace(BAD, outcome="warn", actual="16 GT/s", expected="32 GT/s", source="/sys")
    worse = ("pcie-link host: pass -> warn, 16 GT/s",)
    write(folder, answered("gpu-2", outcome="no", exit_code=1), of(slow, verdict="warn", worse=worse))
    write(folder, answered("gpu-3", "apply", outcome="unreachable", exit_code=None, why="ssh: No route to host"))
    write(folder, answered("gpu-4", "apply", outcome="needs-person", exit_code=4, why="the revert of iommu failed"))
    waves = (
        Wave(number=1, hosts=1, passed=True),
        Wave(number=2, hosts=3, passed=False, why=("gpu-2: validate: no", "gpu-3: apply: unreachable")),
        Wave(number=3, hosts=2),
    )
    hosts = [f"gpu-{n}" for n in range(1, 7)]
    wave_of = dict(zip(hosts, (1, 2, 2, 2, 3, 3), strict=True))
    stopped = "the gate of wave 2 is shut: 3 of 3 hosts are not well"
    return report_of(
        str(folder),
        hosts,
        RunContext(
            "apply",
            run=RUN,
            waves=waves,
            wave_of=wave_of,
            stopped=stopped,
            at="2026-03-01T10:00:00Z",
            version="0.1.0",
            record=recorded([hosts[:1], hosts[1:4], hosts[4:]], asked=2),
        ),
    )
