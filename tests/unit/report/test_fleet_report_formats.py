"""The fleet report as text, Markdown and JUnit: the same failure once, every host, no text of a host as markup."""

from __future__ import annotations

import os
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
    fleet,
    junit,
    lost,
    markdown,
    names,
    printed,
    write,
    write_lost,
    write_validation,
)
from unit.report.test_fleet_report import APPLY, ASKED, BAD, answered, of, of_many_hosts, stopped_run

from hosttune.fleet.overview import report_of
from hosttune.model.fleet import FleetReport, HostLine
from hosttune.model.text import visible
from hosttune.model.validation import CheckResult, Validation, Verdict
from hosttune.report.fleet_groups import ANSWERS, answer_of, headline, hosts_worst_first, natural, summary, troubles

GOLDEN = Path(__file__).parents[2] / "golden" / "report"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def many() -> FleetReport:
    return of_many_hosts()


# --- words ---------------------------------------------------------------------------------------------------


def test_the_same_failure_of_many_hosts_is_one_line(many: FleetReport) -> None:
    found = [trouble for trouble in troubles(many) if trouble.checks == ("ecc-errors",)]
    assert len(found) == 1
    assert len(found[0].hosts) > 2
    first = next(one for line in many.hosts for one in line.told if one.check == "ecc-errors")
    assert (found[0].hint or "").startswith(f"{first.hint} (so for {first.subject} of {found[0].hosts[0]}; ")
    assert "<" not in (found[0].hint or "")
    assert printed(many).count("nvidia-smi --gpu-reset") == 1


def test_failures_that_differ_only_in_numbers_and_names_are_one(tmp_path: Path) -> None:
    for n, name in enumerate(names(3)):
        why = f"{name}: ssh: connect to host {name} port 22: timed out after {n} s"
        write_lost(tmp_path, name, "unreachable", why)
    (group,) = troubles(report_of(str(tmp_path), names(3), ASKED))
    assert (len(group.hosts), group.title, group.alike) == (3, ANSWERS["unreachable"], False)


def test_one_remedy_of_many_checks_is_one_thing_to_do(tmp_path: Path) -> None:
    """A host of which nothing could be read must not push what else is wrong with the fleet off the page."""
    hint = "look with: lspci -D"
    rows = [
        CheckResult(check=f"check-{n}", subject="host", outcome="unknown", expected=f"e{n}", actual="unread", hint=hint)
        for n in range(12)
    ]
    rows.append(CheckResult(check="aer", subject="host", outcome="unknown", actual="unread", hint="another remedy"))
    rows.append(CheckResult(check="check-1", subject="host", outcome="fail", actual="wrong", hint=hint))
    rows.append(CheckResult(check="xid", subject="host", outcome="unknown", actual="unread"))
    rows.append(CheckResult(check="sxid", subject="host", outcome="unknown", actual="unread"))
    found = Validation(host="arm", level=0, verdict="fail", results=tuple(rows))
    write_validation(tmp_path, "arm", found)
    report = report_of(str(tmp_path), ["arm"], ASKED)
    told = [(trouble.outcome, trouble.title, trouble.size) for trouble in troubles(report)]
    assert told == [
        ("fail", "check-1", "1 host"),
        ("unknown", "check-0, check-1, check-2 and 9 more", "1 host, 12 results"),
        ("unknown", "aer", "1 host"),
        ("unknown", "sxid", "1 host"),
        ("unknown", "xid", "1 host"),
    ]
    text = printed(report)
    assert text.count(hint) == 2
    assert "expected  e0" not in text


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
    assert [one.title for one in wrong if one.title not in text] == []
    assert text.count("      do: ") >= len(wrong)
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


def escaped(name: str) -> str:
    """A name as a terminal may have it: controls but for tab and line end, and what turns the direction, as escapes."""
    name = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", name)
    return re.sub("[\u202a-\u202e]", lambda found: f"\\u{ord(found[0]):04x}", name)


def test_junit_holds_hostile_names_but_for_what_xml_cannot_hold(many: FleetReport) -> None:
    found = [suite.attrib["name"] for suite in ElementTree.fromstring(junit(many)).findall("testsuite")]
    assert found[130:] == [visible(name) for name in HOSTILE_NAMES]


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
        "import sys; sys.path[:0] = ['tests/support', 'tests', '.']\n"
        "from unit.report.test_fleet_report_formats import ASKED, junit, markdown, printed, report_of\n"
        "from fleetresults import html\n"
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
