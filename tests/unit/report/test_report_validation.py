"""The text, Markdown and JUnit reports of a validation: golden files, and what no document may do to them."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from validations import GPUS, HOSTILE, RULES, clean, everything_unknown, faulty, hostile, large, result

from hosttune.bench.measures import Measure, Scale, figure_rows, measures
from hosttune.model.text import number, visible
from hosttune.model.validation import CheckResult, Sample, Validation, verdict_of
from hosttune.report.draw import drawn
from hosttune.report.draw.junit import junit
from hosttune.report.draw.md import markdown
from hosttune.report.draw.text import draw
from hosttune.report.outcomes import ANY_SUBJECT, folded, groups, headline, next_steps
from hosttune.report.validation import brief_report, validation_report

GOLDEN = Path(__file__).parents[2] / "golden" / "report"
DOCUMENTS = {"clean": clean, "faulty": faulty, "unknown": everything_unknown, "hostile": hostile}


def printed(validation: Validation, width: int = 100, *, each: bool = False) -> str:
    out = io.StringIO()
    draw(
        validation_report(validation, each=each),
        Console(file=out, width=width, force_terminal=False, color_system=None),
    )
    return out.getvalue()


def agrees(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / name
    if request.config.getoption("--regenerate"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["clean", "faulty", "unknown"])
def test_reports_are_as_they_were_read_and_found_good(name: str, request: pytest.FixtureRequest) -> None:
    document = DOCUMENTS[name]()
    agrees(f"validation-{name}.txt", printed(document), request)
    agrees(f"validation-{name}.md", markdown(validation_report(document)), request)
    agrees(f"validation-{name}.xml", junit(validation_report(document)), request)


# --- what all share ------------------------------------------------------------------------------------------


def test_the_worst_comes_first_and_unknown_before_warnings() -> None:
    order = [group.outcome for group in groups(faulty().results)]
    assert list(dict.fromkeys(order)) == ["fail", "unknown", "warn", "pass", "skip"]


def test_results_that_differ_only_in_their_address_are_one_group() -> None:
    found = [group for group in groups(faulty().results) if group.check == "pcie-link" and group.outcome == "fail"]
    assert [group.subjects for group in found] == [(GPUS[2], GPUS[5])]
    assert found[0].source == f"/sys/bus/pci/devices/{ANY_SUBJECT}/current_link_speed"


def test_results_that_say_different_things_stay_apart() -> None:
    rule = RULES[0]
    found = groups((result(rule, GPUS[0], "fail", "16 GT/s x16"), result(rule, GPUS[1], "fail", "32 GT/s x8")))
    assert [group.actual for group in found] == ["16 GT/s x16", "32 GT/s x8"]


def test_a_hint_is_given_once_with_everything_that_it_mends() -> None:
    hint = "boot with intel_iommu=on"
    found = next_steps(
        CheckResult(check=check, subject="host", outcome=outcome, hint=hint)  # type: ignore[arg-type]
        for check, outcome in (("a", "warn"), ("b", "fail"), ("c", "pass"))
    )
    assert [(step.hint, step.outcome, [check for check, _ in step.mends]) for step in found] == [
        (hint, "fail", ["b", "a"])
    ]


def test_nothing_checked_is_never_told_as_a_pass() -> None:
    text = printed(Validation(host="h", verdict="pass"))
    assert "Nothing was checked" in text


def test_each_outcome_is_counted_in_the_headline() -> None:
    assert headline(faulty()) == "4 failed, 2 unknown, 2 warnings, 29 passed, 2 not applicable"


def test_a_run_without_a_figure_is_counted_and_never_zero() -> None:
    runs = [Sample(metric="m", subject="s", value=value, unit="GB/s") for value in (10.0, None, 12.0)]
    (measure,) = measures(runs)
    assert (measure.median, measure.missing) == (11.0, 1)
    assert figure_rows((measure,)) == (("s", "11.0  (10.0 to 12.0, 3 runs, 1 without a figure)"),)
    assert figure_rows((Measure(metric="m", subject="s", unit="u", runs=(None,)),)) == (
        ("s", "unknown: no figure from 1 run"),
    )


def test_a_scale_of_a_subject_goes_before_that_of_the_metric() -> None:
    runs = [Sample(metric="m", subject=subject, value=1.0, unit="u") for subject in ("a", "b")]
    scales = (Scale(metric="m", floor=1.0), Scale(metric="m", subject="b", floor=2.0))
    assert [one.scale and one.scale.floor for one in measures(runs, scales)] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [(4247.3, "4,247"), (55.51, "55.5"), (0.0, "0.00"), (0.00123, "0.00123"), (None, "unknown"), (math.nan, "unknown")],
)
def test_figures_have_three_digits(value: float | None, text: str) -> None:
    assert number(value) == text


# --- text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*DOCUMENTS, "large"])
@pytest.mark.parametrize("width", [100, 160])
def test_text_fits_100_columns(name: str, width: int) -> None:
    lines = printed({**DOCUMENTS, "large": large}[name](), width).splitlines()
    assert max(map(len, lines)) <= 100


def test_text_has_a_hint_below_every_fail_and_unknown() -> None:
    text = printed(faulty())
    wrong = [group for group in groups(faulty().results) if group.outcome in ("fail", "unknown", "warn")]
    assert text.count("    do        ") == len(wrong) == 7


def test_text_of_many_pairs_is_their_ends_and_middle() -> None:
    text = printed(clean())
    assert text.count("0000:18:00.0->") == 1
    assert "median of 56" in text


def test_text_has_no_control_characters() -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", printed(hostile()))


# --- Markdown ------------------------------------------------------------------------------------------------


def test_no_text_of_a_document_is_markup_in_markdown() -> None:
    text = markdown(validation_report(hostile()))
    assert not re.search(r"(?<!\\)<", text)
    assert not re.search(r"(?<!\\)\]\(", text)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in tables}
    assert widths <= {3, 4, 5, 6, 7}, "a cell has become two"


def test_markdown_cells_have_one_line() -> None:
    found = CheckResult(check="a", subject="b\n\n# c", outcome="fail", expected="d\r\n---", actual="e", hint="- f")
    text = markdown(validation_report(Validation(results=(found,), verdict="fail")))
    assert "\n# c" not in text
    assert "1. **\\- f**" in text


# --- JUnit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*DOCUMENTS, "large"])
def test_junit_has_one_case_for_each_result_and_says_how_many(name: str) -> None:
    document = {**DOCUMENTS, "large": large}[name]()
    suite = ElementTree.fromstring(junit(validation_report(document))).find("testsuite")
    assert suite is not None
    assert len(suite.findall("testcase")) == len(document.results) == int(suite.attrib["tests"])
    for attribute, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[attribute]) == len(suite.findall(f"testcase/{element}"))


@pytest.mark.parametrize("name", [*DOCUMENTS, "large"])
def test_junit_is_red_exactly_where_the_verdict_is_fail_or_unknown(name: str) -> None:
    document = {**DOCUMENTS, "large": large}[name]()
    suite = ElementTree.fromstring(junit(validation_report(document))).find("testsuite")
    assert suite is not None
    red = int(suite.attrib["failures"]) + int(suite.attrib["errors"]) > 0
    assert red == (verdict_of(document.results) in ("fail", "unknown"))


def test_junit_holds_hostile_text_whole_but_for_what_xml_cannot_hold() -> None:
    suite = ElementTree.fromstring(junit(validation_report(hostile()))).find("testsuite")
    assert suite is not None
    case = suite.find("testcase")
    assert case is not None
    assert case.attrib["name"] == visible(HOSTILE)
    assert "timestamp" not in suite.attrib


def test_one_reason_of_several_checks_is_told_once_and_all_of_it_on_request() -> None:
    lost, none = "which guests there are is unknown", "no NVSwitch here"
    results = (
        CheckResult(check="guest-numa", subject="host", outcome="unknown", actual=lost, hint="start libvirt"),
        CheckResult(check="guest-pins", subject="host", outcome="unknown", actual=lost, hint="start libvirt"),
        CheckResult(check="nvswitch", subject="host", outcome="skip", actual=none),
        CheckResult(check="sxid", subject="host", outcome="skip", actual=none),
    )
    found = Validation(verdict="unknown", results=results)
    text, table = printed(found), markdown(validation_report(found))
    assert text.count("which guests there are is unknown") == table.count("which guests there are is unknown") == 1
    assert "? guest-numa, guest-pins: host" in text
    assert "– no NVSwitch here: nvswitch, sxid" in text
    each = printed(found, each=True)
    assert each.count("which guests there are is unknown") == each.count("no NVSwitch here") == 2


def test_the_brief_report_is_one_table() -> None:
    text = drawn(brief_report(faulty()), "text")
    assert text.startswith("FAIL  ")
    assert len(text.splitlines()) < 40
    lines = [line.split() for line in text.splitlines() if line.startswith(("  ✗", "  ?", "  !"))]
    assert [line[1] for line in lines] == ["fail"] * 3 + ["unknown"] * 2 + ["warn"] * 2
    bad = [group for group in folded(groups(faulty().results)) if group.outcome in ("fail", "unknown", "warn")]
    assert len(bad) == len(lines)
    assert all(group.check.split(", ")[0] in text and (group.hint or "").split()[0] in text for group in bad)
    assert "✓" not in text
