"""Findings of the linter as JUnit XML: a suite for each guest, a test case for each rule.

An error is a failure, and so is a warning if the command fails on warnings; otherwise a warning passes with its text,
as a note does. A rule that could not be judged is skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from hosttune.linting import Rule
from hosttune.model.lint import LintFinding
from hosttune.model.validation import CheckResult, Outcome
from hosttune.report.validation_junit import judged, safe


def lint_junit(findings: Sequence[LintFinding], files: Sequence[str], rules: Sequence[Rule], *, fail_on: str) -> str:
    """Return one `testsuites`, guests in the order of `files`, ending in a newline."""
    root = Element("testsuites", {"name": "hosttune lint"})
    suites = [_suite([one for one in findings if one.file == file], file, rules, fail_on) for file in files]
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.extend(suites)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(findings: list[LintFinding], file: str, rules: Sequence[Rule], fail_on: str) -> Element:
    results = [_result(rule, [one for one in findings if one.rule == rule.id], file, fail_on) for rule in rules]
    counts = {
        "tests": len(results),
        "failures": sum(result.outcome == "fail" for result in results),
        "errors": 0,
        "skipped": sum(result.outcome == "skip" for result in results),
    }
    suite = Element("testsuite", {"name": safe(file), **{name: str(count) for name, count in counts.items()}})
    for result in results:
        judged(SubElement(suite, "testcase", {"classname": "hosttune.lint", "name": result.check}), result)
    return suite


def _result(rule: Rule, findings: list[LintFinding], file: str, fail_on: str) -> CheckResult:
    levels = {one.level for one in findings if one.judged}
    outcome: Outcome = "pass" if not findings else "warn" if levels else "skip"
    if "error" in levels or ("warn" in levels and fail_on == "warn"):
        outcome = "fail"
    return CheckResult(
        check=rule.id,
        subject=file,
        outcome=outcome,
        expected=rule.right,
        actual="\n".join(f"line {one.line}: {one.text}" for one in findings),
        source=rule.source,
        hint="\n".join(dict.fromkeys(one.remedy for one in findings)) or rule.remedy,
    )
