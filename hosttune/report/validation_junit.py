"""The validation document as JUnit XML, so that a CI system shows each check and each subject on its own line.

A fail is a failure. Unknown is an error (the check could not be made). A check that does not apply is skipped. A
warning passes, with its text as the test's output. So a run is red exactly if the verdict is fail or unknown. Format:
the elements and attributes that Jenkins' junit-10.xsd and GitLab's reader have in common.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from hosttune.model.text import visible
from hosttune.model.validation import CheckResult, Validation
from hosttune.report.measures import Measure, measures, number
from hosttune.report.outcomes import counts, headline

# Characters that XML 1.0 allows (https://www.w3.org/TR/xml/#charsets) and a reader can show; others are escaped.
_UNWRITABLE = re.compile("[\ufffe\uffff]")
_WHEN = re.compile(r"([0-9]{4}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9])")


def junit(validation: Validation) -> str:
    """Return one `testcase` for each check and subject, in the order of the document, ending in a newline."""
    number_of = counts(validation.results)
    totals = {
        "tests": str(len(validation.results)),
        "failures": str(number_of["fail"]),
        "errors": str(number_of["unknown"]),
        "skipped": str(number_of["skip"]),
    }
    root = Element("testsuites", {"name": "hosttune validate", **totals})
    suite = SubElement(root, "testsuite", {"name": safe(f"hosttune validate {validation.host or 'host'}"), **totals})
    suite.set("hostname", safe(validation.host or "unknown"))
    when = _WHEN.match(validation.at or "")
    if when:
        suite.set("timestamp", when[1])
    _properties(suite, validation)
    for result in validation.results:
        _case(suite, result)
    lines = [_line(measure) for measure in measures(validation.samples)]
    if lines:
        SubElement(suite, "system-out").text = safe("\n".join(lines))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _properties(suite: Element, validation: Validation) -> None:
    facts = {
        "verdict": validation.verdict,
        "summary": headline(validation),
        "level": str(validation.level),
        "hosttune": validation.version or "unknown",
        **(validation.facts or {}),
    }
    properties = SubElement(suite, "properties")
    for name, value in facts.items():
        SubElement(properties, "property", {"name": safe(name), "value": safe(value)})


def _case(suite: Element, result: CheckResult) -> None:
    case = SubElement(suite, "testcase", {"classname": safe(f"hosttune.{result.check}"), "name": safe(result.subject)})
    judged(case, result)


def judged(case: Element, result: CheckResult) -> None:
    """Add a result's outcome to a test case. A pass needs nothing."""
    message = safe(result.actual or "no reason given")
    if result.outcome == "fail":
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
        ("do", result.hint),
    )
    return safe("\n".join(f"{label}: {text}" for label, text in facts if text))


def _line(measure: Measure) -> str:
    runs = " ".join(number(run) for run in measure.runs)
    return f"{measure.metric} {measure.subject}: {number(measure.median)} {measure.unit} (runs: {runs})"


def safe(text: str) -> str:
    """Return text that XML allows and that does not act on a terminal. Other characters are escaped."""
    return _UNWRITABLE.sub("?", visible(text))
