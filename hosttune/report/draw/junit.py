"""The findings of any report as JUnit XML, so that a CI system shows each check and each subject on its own line.

A fail is a failure. Unknown is an error (the check could not be made). A check that does not apply is skipped. A
warning passes, with its text as the test's output, and so does what is accepted. So a run is red exactly if the verdict
is fail or unknown. Format: the elements and attributes that Jenkins' junit-10.xsd and GitLab's reader have in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from hosttune.model.text import visible
from hosttune.model.validation import ACCEPTED, CheckResult, counts
from hosttune.report.blocks import Findings, Report

# Characters that XML 1.0 allows (https://www.w3.org/TR/xml/#charsets) and a reader can show; others are escaped.
_UNWRITABLE = re.compile("[\ufffe\uffff]")


def junit(report: Report) -> str:
    """Return one `testsuites` with a suite for each block of findings that has one, ending in a newline."""
    blocks = [block for section in report.sections("junit") for block in section.blocks if isinstance(block, Findings)]
    totals = _totals(result for block in blocks for result in block.parts)
    root = Element("testsuites", {"name": safe(report.command), **totals})
    for block in blocks:
        if (about := block.suite) is None:
            continue
        suite = SubElement(root, "testsuite", {"name": safe(about.name), **_totals(block.parts)})
        for name, value in about.attributes.items():
            suite.set(name, safe(value))
        if about.properties:
            properties = SubElement(suite, "properties")
            for name, value in about.properties.items():
                SubElement(properties, "property", {"name": safe(name), "value": safe(value)})
        for result in block.parts:
            names = (about.classname, result.check) if about.classname else (f"hosttune.{result.check}", result.subject)
            judged(SubElement(suite, "testcase", {"classname": safe(names[0]), "name": safe(names[1])}), result)
        if about.log:
            SubElement(suite, "system-out").text = safe(about.log)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _totals(results: Iterable[CheckResult]) -> dict[str, str]:
    number_of = counts(results)
    return {
        "tests": str(sum(number_of.values())),
        "failures": str(number_of["fail"]),
        "errors": str(number_of["unknown"]),
        "skipped": str(number_of["skip"]),
    }


def judged(case: Element, result: CheckResult) -> None:
    """Add a result's outcome to a test case. A pass needs nothing."""
    message = safe(result.actual or "no reason given")
    if result.standing == ACCEPTED and result.accepted is not None:
        SubElement(case, "system-out").text = f"accepted {safe(result.accepted.text)}\n{_details(result)}"
    elif result.outcome == "fail":
        SubElement(case, "failure", {"type": "fail", "message": message}).text = _details(result)
    elif result.outcome == "unknown":
        SubElement(case, "error", {"type": "unknown", "message": message}).text = _details(result)
    elif result.outcome == "skip":
        SubElement(case, "skipped", {"message": message})
    elif result.outcome == "warn":
        SubElement(case, "system-out").text = "warning\n" + _details(result)


def _details(result: CheckResult) -> str:
    facts = (
        ("expected", result.expected),
        ("actual", result.actual),
        ("source", result.source),
        ("accepted", result.accepted.text if result.accepted else None),
        ("do", result.hint),
    )
    return safe("\n".join(f"{label}: {text}" for label, text in facts if text))


def safe(text: str) -> str:
    """Return text that XML allows and that does not act on a terminal. Other characters are escaped."""
    return _UNWRITABLE.sub("?", visible(text))
