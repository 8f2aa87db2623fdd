"""Result files → fleet report → text, Markdown, JUnit and JSON: nothing lost, nothing passed that was not proven."""

from __future__ import annotations

import io
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from fleetresults import (
    HOSTILE_NAMES,
    LOST,
    RUN,
    fleet,
    lost,
    names,
    validation,
    write,
    write_discovered,
    write_lost,
    write_validation,
)
from rich.console import Console

from hosttune.errors import BadInput
from hosttune.fleet.overview import MOST_TEXT, MOST_TOLD, Asked, report_of
from hosttune.fleet.results import answer_path, host_folder
from hosttune.model.fleet import Answer, FleetReport, HostLine, Wave
from hosttune.model.validation import CheckResult, Validation, Verdict
from hosttune.report.fleet_groups import ANSWERS, answer_of, headline, hosts_worst_first, natural, summary, troubles
from hosttune.report.fleet_junit import junit
from hosttune.report.fleet_md import markdown
from hosttune.report.fleet_text import print_fleet

GOLDEN = Path(__file__).parent / "golden" / "report"
ROOT = Path(__file__).parent.parent
ASKED = Asked("validate", run=RUN, at="2026-03-01T10:00:00Z", version="0.1.0")
GOOD = CheckResult(check="pcie-link", subject="host", outcome="pass", source="/sys")
BAD = CheckResult(check="pcie-link", subject="host", outcome="fail", actual="x8", hint="reseat it")


def printed(report: FleetReport, width: int = 100) -> str:
    out = io.StringIO()
    print_fleet(report, Console(file=out, width=width, force_terminal=False, color_system=None))
    return out.getvalue()


def one(folder: Path, host: str = "a", asked: Asked = ASKED) -> HostLine:
    (line,) = report_of(str(folder), [host], asked).hosts
    return line


def answered(host: str = "a", phase: str = "validate", **changes: object) -> Answer:
    fields: dict[str, object] = {"host": host, "phase": phase, "run": RUN, "outcome": "ok", "exit_code": 0}
    return Answer(**(fields | changes))  # type: ignore[arg-type]


def of(*results: CheckResult, verdict: Verdict = "pass", **changes: object) -> Validation:
    return Validation(host="a", verdict=verdict, results=results, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> FleetReport:
    """130 hosts and those with hostile names."""
    folder = tmp_path_factory.mktemp("many")
    return report_of(str(folder), fleet(folder, 130, hostile=True), ASKED)


# --- what is unknown -----------------------------------------------------------------------------------------

BROKEN: dict[str, bytes | None] = {
    "missing": None,
    "empty": b"",
    "cut": b'{"schema":"hosttune.validation/v1","verdict":"pass","results":[{"check"',
    "no JSON": b"Traceback (most recent call last)",
    "no object": b"[]",
    "null": b"null",
    "no bytes of text": b"\xff\xfe\x00",
    "nothing of the fleet": msgspec.json.encode(of(GOOD)),
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
    assert one(tmp_path, asked=Asked("validate")).verdict == "pass"


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
    assert "says nothing" in printed(report)


def test_a_verb_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="destroy"):
        report_of(str(tmp_path), ["a"], Asked("destroy"))


# --- other verbs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["discover", "plan"])
@pytest.mark.parametrize(("outcome", "verdict"), [("ok", "pass"), ("no", "fail"), ("slow", "unknown")])
def test_verbs_without_a_validation_are_judged_by_their_answer(
    verb: str, outcome: str, verdict: str, tmp_path: Path
) -> None:
    write(tmp_path, answered(phase=verb, outcome=outcome))
    assert one(tmp_path, asked=Asked(verb, run=RUN)).verdict == verdict


APPLY = Asked("apply", run=RUN)


def applied(
    folder: Path, *, before: str = "no", status: str | None = None, after: bool = True, **changes: object
) -> None:
    write(folder, answered(phase="before", outcome=before), of(BAD, verdict="fail"))
    write(folder, msgspec.structs.replace(answered(phase="apply"), **changes))
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
    applied(tmp_path, outcome=outcome, why="because", exit_code=4)
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
    assert one(tmp_path, asked=Asked("apply", run=RUN, check=True)).verdict == "pass"
    assert one(tmp_path, asked=APPLY).verdict == "unknown"


def test_hosts_that_a_stopped_run_did_not_reach_are_unknown_and_one_line(tmp_path: Path) -> None:
    applied(tmp_path, outcome="no")
    waves = (Wave(number=1, hosts=1, passed=False, why=("a: apply: no",)), Wave(number=2, hosts=9))
    asked = Asked("apply", run=RUN, waves=waves, stopped="the gate of wave 1 is shut")
    report = report_of(str(tmp_path), ["a", *names(9)], asked)
    assert [line.verdict for line in report.hosts] == ["fail"] + ["unknown"] * 9
    (group,) = [trouble for trouble in troubles(report) if trouble.outcome == "unknown"]
    assert (len(group.hosts), group.actual) == (9, "not asked: the run stopped before")
    text = printed(report)
    assert "stopped: the gate of wave 1 is shut" in text
    assert "wave 2, 9 hosts: not reached" in text


# --- what is kept --------------------------------------------------------------------------------------------


def test_of_many_results_the_worst_are_kept_and_the_rest_counted(tmp_path: Path) -> None:
    warns = [CheckResult(check="w", subject=str(n), outcome="warn") for n in range(60)]
    write(tmp_path, answered(outcome="no"), of(*warns, BAD, verdict="fail"))
    line = one(tmp_path)
    assert (line.told[0].outcome, len(line.told), line.untold) == ("fail", MOST_TOLD, 61 - MOST_TOLD)
    assert line.counts == {"fail": 1, "unknown": 0, "warn": 60, "pass": 0, "skip": 0}
    assert "13 more results of 1 host" in printed(report_of(str(tmp_path), ["a"], ASKED))


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


# --- words ---------------------------------------------------------------------------------------------------


def test_the_same_failure_of_many_hosts_is_one_line(many: FleetReport) -> None:
    found = [trouble for trouble in troubles(many) if trouble.check == "ecc-errors"]
    assert len(found) == 1
    assert len(found[0].hosts) > 2
    assert found[0].hint == "nvidia-smi --gpu-reset -i <subject>"
    assert printed(many).count("nvidia-smi --gpu-reset") == 1


def test_failures_that_differ_only_in_numbers_and_names_are_one(tmp_path: Path) -> None:
    for n, name in enumerate(names(3)):
        why = f"{name}: ssh: connect to host {name} port 22: timed out after {n} s"
        write_lost(tmp_path, name, "unreachable", why)
    (group,) = troubles(report_of(str(tmp_path), names(3), ASKED))
    assert (len(group.hosts), group.title, group.alike) == (3, ANSWERS["unreachable"], False)


def test_ways_not_to_answer_are_told_apart(tmp_path: Path) -> None:
    for n, (outcome, why) in enumerate(LOST):
        write_lost(tmp_path, f"host-{n}", outcome, why)
    report = report_of(str(tmp_path), [f"host-{n}" for n in range(len(LOST))], ASKED)
    found = troubles(report)
    assert len(found) == len(LOST)
    assert {trouble.answer for trouble in found} == {outcome for outcome, _ in LOST}
    for text in (printed(report), markdown(report)):
        for outcome, _ in LOST:
            assert ANSWERS[outcome] in text  # type: ignore[index]


def test_a_host_that_needs_a_person_comes_first(tmp_path: Path) -> None:
    for name, outcome in (("a", "no"), ("b", "needs-person"), ("c", "unreachable")):
        write(tmp_path, answered(host=name, phase="apply", outcome=outcome, why="because"))
    report = report_of(str(tmp_path), ["a", "b", "c"], APPLY)
    assert [line.host for line in hosts_worst_first(report.hosts)] == ["b", "a", "c"]
    assert troubles(report)[0].answer == "needs-person"


def test_hosts_are_ordered_worst_first_then_by_number() -> None:
    verdicts: tuple[tuple[int, Verdict], ...] = ((10, "pass"), (9, "pass"), (3, "warn"), (2, "unknown"), (1, "fail"))
    lines = [HostLine(host=f"gpu-{n}", folder="", verdict=verdict) for n, verdict in verdicts]
    assert [line.host for line in hosts_worst_first(lines)] == ["gpu-1", "gpu-2", "gpu-3", "gpu-9", "gpu-10"]
    assert natural("a٣b") == ((False, 0, "a٣b"),)


def test_a_host_without_answers_is_unknown() -> None:
    assert answer_of(HostLine(host="a", folder="a")) == "unknown"


def test_the_headline_counts_every_host(many: FleetReport) -> None:
    numbers = [int(text) for text in re.findall(r"\d+", headline(many))]
    assert numbers[0] == sum(numbers[1:]) == 137


def test_a_summary_says_why_there_is_no_answer(tmp_path: Path) -> None:
    found = {line.host: summary(line) for line in stopped_run(tmp_path).hosts}
    assert found["gpu-3"] == "unreachable: ssh: No route to host"
    assert found["gpu-4"] == "apply: needs-person: the revert of iommu failed"


def test_a_summary_names_the_checks() -> None:
    line = HostLine(host="a", folder="a", checks={"x": "fail", "y": "warn", "z": "pass"}, counts={"fail": 2, "warn": 1})
    assert summary(line) == "2 failed: x; 1 warning: y"
    assert summary(line, warnings=False) == "2 failed: x; 1 warning"


# --- formats -------------------------------------------------------------------------------------------------


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
        Asked(
            "apply", run=RUN, waves=waves, wave_of=wave_of, stopped=stopped, at="2026-03-01T10:00:00Z", version="0.1.0"
        ),
    )


@pytest.mark.parametrize("kind", ["txt", "md", "xml"])
def test_reports_are_as_they_were_read_and_found_good(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = {"txt": printed, "md": markdown, "xml": junit}[kind](stopped_run(tmp_path))
    path = GOLDEN / f"fleet-stopped.{kind}"
    if request.config.getoption("--regenerate"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_text_fits_100_columns(width: int, many: FleetReport) -> None:
    assert max(map(len, printed(many, width).splitlines())) <= min(width, 100)


def test_text_names_every_kind_of_trouble_and_what_to_do(many: FleetReport) -> None:
    text = printed(many)
    wrong = [trouble for trouble in troubles(many) if trouble.outcome in ("fail", "unknown")]
    assert text.count("    do        ") >= len(wrong)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)


def test_markdown_is_short_enough_for_a_ticket(many: FleetReport) -> None:
    assert len(markdown(many)) < 30_000


def test_no_name_of_a_host_is_markup_in_markdown(tmp_path: Path) -> None:
    for name in HOSTILE_NAMES:
        write_lost(tmp_path, name, "unknown", name)
    text = markdown(report_of(str(tmp_path), HOSTILE_NAMES, ASKED))
    assert not re.search(r"(?<!\\)<", text)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headings) == 4
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_junit_has_a_suite_for_every_host_and_says_how_many(many: FleetReport) -> None:
    root = ElementTree.fromstring(junit(many))
    suites = root.findall("testsuite")
    assert len(suites) == len(many.hosts)
    for line, suite in zip(many.hosts, suites, strict=True):
        cases = suite.findall("testcase")
        assert [case.attrib["name"] for case in cases] == list(line.checks)
        assert int(suite.attrib["tests"]) == len(cases)
        for attribute, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.attrib[attribute]) == len(suite.findall(f"testcase/{element}"))
    for attribute in ("tests", "failures", "errors", "skipped"):
        assert int(root.attrib[attribute]) == sum(int(suite.attrib[attribute]) for suite in suites)


def test_junit_is_red_for_exactly_the_hosts_that_failed_or_are_unknown(many: FleetReport) -> None:
    for line, suite in zip(many.hosts, ElementTree.fromstring(junit(many)).findall("testsuite"), strict=True):
        red = int(suite.attrib["failures"]) + int(suite.attrib["errors"]) > 0
        assert red == (line.verdict in ("fail", "unknown")), line.host


def test_a_verdict_without_a_result_is_red_too() -> None:
    report = FleetReport(verb="validate", hosts=(HostLine(host="a", folder="a", verdict="unknown"),))
    assert ElementTree.fromstring(junit(report)).find("testsuite/testcase/error") is not None


def test_junit_holds_hostile_names_but_for_what_xml_cannot_hold(many: FleetReport) -> None:
    found = [suite.attrib["name"] for suite in ElementTree.fromstring(junit(many)).findall("testsuite")]
    assert found[130:] == [re.sub("[\x00\x1b]", "?", name) for name in HOSTILE_NAMES]


def test_the_subjects_that_are_not_well_stand_in_their_case(tmp_path: Path) -> None:
    results = [msgspec.structs.replace(BAD, subject=f"gpu-{n}", actual=f"x{n}") for n in range(3)]
    write(tmp_path, answered(outcome="no"), of(*results, verdict="fail"))
    failure = ElementTree.fromstring(junit(report_of(str(tmp_path), ["a"], ASKED))).find("testsuite/testcase/failure")
    assert failure is not None
    assert all(f"gpu-{n}: fail: x{n}" in (failure.text or "") for n in range(3))


def test_every_host_is_in_every_whole_format(many: FleetReport) -> None:
    silent = next(line for line in many.hosts if line.told and "no answer of this run" in (line.told[0].actual or ""))
    for text in (many.to_json(), junit(many), printed(many), markdown(many)):
        assert silent.host in text


def test_the_same_files_give_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    hosts = fleet(tmp_path, 8)
    program = (
        "import sys; sys.path[:0] = ['tests', '.']\n"
        "from test_fleet_report import ASKED, junit, markdown, printed, report_of\n"
        "from hosttune.report.fleet_html import html\n"
        "report = report_of(sys.argv[1], sys.argv[2:], ASKED)\n"
        "made = [report.to_json(), junit(report), markdown(report), printed(report), html(report)]\n"
        "sys.stdout.buffer.write(chr(0).join(made).encode())"
    )
    made = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program, str(tmp_path), *hosts]
        made.add(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True).stdout)
    assert len(made) == 1
    assert len(next(iter(made))) > 10_000


def test_a_lost_host_has_the_same_words_whoever_wrote_its_file(tmp_path: Path) -> None:
    """With the document that stands for none, and with the answer alone."""
    write_lost(tmp_path, "a", "slow", "no answer within 120 s")
    write(tmp_path, answered(host="b", outcome="slow", why="no answer within 120 s"))
    report = report_of(str(tmp_path), ["a", "b"], ASKED)
    (group,) = troubles(report)
    assert group.hosts == ("a", "b")
    assert lost("a", "x").verdict == "unknown"
