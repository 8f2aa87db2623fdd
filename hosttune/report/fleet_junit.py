"""The fleet report as JUnit XML: a suite for each host, a test case for each of its checks.

As in the report of one host, a fail is a failure, unknown is an error, a check that does not apply is skipped, and a
warning passes with its text. A host that did not answer has one case, an error. For a check with several subjects the
worst outcome decides; the case lists the subjects with problems.
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import msgspec

from hosttune.model.fleet import FleetReport, HostLine
from hosttune.model.validation import CheckResult, Outcome
from hosttune.model.values import grouped
from hosttune.report.draw.junit import judged, safe
from hosttune.report.fleet_groups import answer_of, headline, summary


def junit(report: FleetReport) -> str:
    """Return the report as one `testsuites`, hosts in the order of the report, ending in a newline."""
    suites = [_suite(line, report.verb) for line in report.hosts]
    root = Element("testsuites", {"name": safe(f"hosttune fleet {report.verb}: {headline(report)}")})
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.extend(suites)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(line: HostLine, verb: str) -> Element:
    results = _results(line)
    totals = {
        "tests": len(results),
        "failures": sum(one.outcome == "fail" for one in results),
        "errors": sum(one.outcome == "unknown" for one in results),
        "skipped": sum(one.outcome == "skip" for one in results),
    }
    suite = Element("testsuite", {"name": safe(line.host), **{name: str(total) for name, total in totals.items()}})
    suite.set("hostname", safe(line.hostname or line.host))
    seconds = [answer.seconds for answer in line.answers if answer.seconds is not None]
    if seconds:
        suite.set("time", f"{sum(seconds):.3f}")
    _properties(suite, line)
    for one in results:
        case = SubElement(
            suite, "testcase", {"classname": safe(f"hosttune.{verb}.{line.host}"), "name": safe(one.check)}
        )
        judged(case, one)
    return suite


def _results(line: HostLine) -> list[CheckResult]:
    """Return one result for each check: the worst, with the texts of every subject with a problem."""
    results = grouped((one.check, one) for one in line.told)
    found = [_of_check(check, outcome, results.get(check, [])) for check, outcome in line.checks.items()]
    if not {"fail", "unknown"} & set(line.checks.values()) and line.verdict in ("fail", "unknown"):
        outcome: Outcome = "fail" if line.verdict == "fail" else "unknown"
        reason = summary(line) or "nothing is proven of this host"
        found.append(CheckResult(check="verdict", subject="host", outcome=outcome, actual=reason))
    return found


def _of_check(check: str, outcome: Outcome, results: list[CheckResult]) -> CheckResult:
    if not results:
        actual = "does not apply here" if outcome == "skip" else "see the host's own result file"
        return CheckResult(check=check, subject="host", outcome=outcome, actual=actual)
    first = results[0]
    if len(results) == 1:
        return msgspec.structs.replace(first, actual=f"{first.subject}: {first.actual or 'no reason given'}")
    lines = [f"{one.subject}: {one.outcome}: {one.actual or 'no reason given'}" for one in results]
    return msgspec.structs.replace(first, actual="\n".join(lines))


def _properties(suite: Element, line: HostLine) -> None:
    facts = {
        "verdict": line.verdict,
        "answer": answer_of(line),
        "summary": summary(line),
        "product": line.product,
        "devices": line.devices,
        "wave": str(line.wave) if line.wave is not None else None,
    }
    properties = SubElement(suite, "properties")
    for name, value in facts.items():
        if value:
            SubElement(properties, "property", {"name": name, "value": safe(value)})
