"""The reports of `lint` and `lint-env`: what is wrong with each guest, and each variable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from hosttune import __version__
from hosttune.model.lint import (
    LEVEL_WORDS,
    LEVELS,
    OUTCOME_OF,
    VERDICTS,
    EnvironmentLine,
    JudgedEnvironment,
    LintFinding,
)
from hosttune.model.text import count, visible
from hosttune.model.validation import CheckResult, Outcome, severity
from hosttune.model.values import grouped
from hosttune.report.blocks import Entries, Findings, Lines, Report, Section, Suite, Table, TitledFacts
from hosttune.report.outcomes import Mark
from hosttune.rules.lint import ADVISORY, LEVEL, LintRule

_MARKS = {"error": "fail", "warn": "warn", "info": "skip"}


def lint_report(
    findings: Sequence[LintFinding], files: Sequence[str], rules: Sequence[LintRule], fail_on: str
) -> Report:
    """Return the report, guests in the order of `files`. JUnit has a suite for each guest, a case for each rule."""
    levels = {finding.level for finding in findings if finding.judged}
    words = _counts(findings) if files else "no guest to judge"
    of = files[0] if len(files) == 1 else count(len(files), "guest")
    return Report(
        kind="Definitions of guests on their host",
        command="hosttune lint",
        verdict="fail" if "error" in levels else "warn" if "warn" in levels else "",
        headline=f"{of}: {words}" if files else words,
        blocks=(
            *(_guest(file, [finding for finding in findings if finding.file == file], rules) for file in files),
            *(
                Findings(
                    parts=tuple(_case(rule, findings, file, fail_on) for rule in rules), suite=suite, forms=("junit",)
                )
                for file, suite in ((file, Suite(name=file, classname="hosttune.lint")) for file in files)
            ),
        ),
    )


def _guest(file: str, findings: list[LintFinding], rules: Sequence[LintRule]) -> Section:
    advisory = {rule.id for rule in rules if rule.outcome in ADVISORY}
    advice = [
        finding for finding in findings if finding.rule in advisory and finding.level == "info" and finding.judged
    ]
    groups = grouped(
        ((severity(finding.level), finding.rule, finding.remedy), finding)
        for finding in findings
        if finding not in advice
    )
    entries = []
    for (_, rule, remedy), members in sorted(groups.items(), key=lambda item: item[0][0]):
        first = members[0]
        known = any(finding.judged for finding in members)
        facts = [(f"line {finding.line}", finding.text) for finding in members]
        facts += [("do", remedy)] if known else []
        mark = Mark(_MARKS[first.level] if known else "unknown", first.level)
        entries.append(TitledFacts(title=rule, mark=mark, facts=tuple(facts), strong="do"))
    if advice:
        names = ", ".join(dict.fromkeys(finding.rule for finding in advice))
        facts = [("about", names), ("do", "hosttune lint -o json has each with its remedy")]
        entries.append(TitledFacts(title="advice", mark=Mark(_MARKS["info"], "info"), facts=tuple(facts)))
    none = Lines(lines=() if entries else ("Nothing was found.",))
    return Section(
        heading=f"{file}: {_counts(findings)}", blocks=(Entries(parts=tuple(entries), numbered=False, whole=True), none)
    )


def _counts(findings: Sequence[LintFinding]) -> str:
    counts = {level: sum(finding.level == level and finding.judged for finding in findings) for level in LEVELS}
    words = [count(number, LEVEL_WORDS[level]) for level, number in counts.items() if number]
    unknown = len({finding.rule for finding in findings if not finding.judged})
    words += [f"{count(unknown, 'rule')} not judged"] if unknown else []
    return ", ".join(words) or "no findings"


def _case(rule: LintRule, findings: Sequence[LintFinding], file: str, fail_on: str) -> CheckResult:
    """Return what JUnit says of a rule. What could not be judged is skipped; a warning fails only if it is to."""
    members = [finding for finding in findings if (finding.rule, finding.file) == (rule.id, file)]
    levels = {finding.level for finding in members if finding.judged}
    outcome: Outcome = "pass" if not members else "warn" if levels else "skip"
    if "error" in levels or ("warn" in levels and fail_on == "warn"):
        outcome = "fail"
    return CheckResult(
        check=rule.id,
        subject=file,
        outcome=outcome,
        expected=rule.title,
        actual="\n".join(f"line {finding.line}: {finding.text}" for finding in members),
        source=rule.source,
        hint="\n".join(dict.fromkeys(finding.remedy for finding in members)) or rule.remedy,
    )


def environment_report(environment: JudgedEnvironment, where: str) -> Report:
    """Return the counts of the verdicts, and each line in the file's order; last what was not understood."""
    understood = [line for line in environment.lines if line.name is not None]
    rest = [line for line in environment.lines if line.name is None]
    counts = {verdict: sum(line.verdict == verdict for line in understood) for verdict in VERDICTS}
    words = [f"{number} {verdict}" for verdict, number in counts.items() if number]
    words += [f"{count(len(rest), 'line')} not understood"] if rest else []
    return Report(
        kind="An environment or a guide, judged line by line",
        verdict="fail" if counts["harmful"] else "warn" if counts["useless"] else "",
        headline=f"{where}: {', '.join(words) or 'no line sets anything'}",
        blocks=(
            Table(
                heading="Lines",
                columns=("verdict", "line", "what it sets", "why", "hosttune's setting", "source"),
                rows=tuple(
                    (
                        *(Mark(OUTCOME_OF[line.verdict], line.verdict), str(line.line), _line_text(line), line.why),
                        *(line.setting or "", line.source or ""),
                    )
                    for line in understood
                ),
                styles={"what it sets": "mono wrap", "why": "wrap", "source": "wrap", "line": "num"},
                whole=True,
            ),
            Table(
                heading="Not understood: unknown what they set, if anything",
                columns=("line", "what it says"),
                rows=tuple((str(line.line), line.value or "") for line in rest),
                styles={"what it says": "mono wrap", "line": "num"},
                whole=True,
            ),
        ),
    )


def _line_text(line: EnvironmentLine) -> str:
    if line.name is None:
        return line.value or ""
    bare = line.value is None or (line.value == "" and line.name.islower())  # a command, a kernel argument
    return line.name if bare else f"{line.name}={line.value}"


# --- SARIF ----------------------------------------------------------------------------------------------------

# An error is `error`, a warning `warning`, a note `note`. A rule that could not be judged has the kind `open`, whose
# level must be `none` (SARIF 2.1.0, 3.27.9 and 3.27.10).

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def lint_sarif(findings: Sequence[LintFinding], rules: Sequence[LintRule]) -> str:
    """Return one SARIF log with one run, ending in a newline."""
    places = {rule.id: n for n, rule in enumerate(rules)}
    driver = {
        "name": "hosttune",
        "version": __version__,
        "rules": [
            {
                "id": rule.id,
                "shortDescription": {"text": rule.title},
                "fullDescription": {"text": f"{rule.why} ({rule.source})"},
                "help": {"text": rule.remedy},
                "defaultConfiguration": {"level": LEVEL_WORDS[LEVEL[rule.outcome]]},
            }
            for rule in rules
        ],
    }
    results = [_result(finding, places[finding.rule]) for finding in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(finding: LintFinding, place: int) -> dict[str, Any]:
    text = visible(finding.text if not finding.judged else f"{finding.text}. {finding.remedy}")
    location = {"artifactLocation": {"uri": _uri(finding.file)}, "region": {"startLine": finding.line}}
    return {
        "ruleId": finding.rule,
        "ruleIndex": place,
        "kind": "fail" if finding.judged else "open",
        "level": LEVEL_WORDS[finding.level] if finding.judged else "none",
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
    }


def _uri(file: str) -> str:
    """Return a path as a relative or absolute URI reference; a guest that libvirt defines is `libvirt:NAME`."""
    scheme, colon, name = file.partition(":")
    if scheme == "libvirt" and colon:
        return f"libvirt:{quote(name, errors='replace')}"
    path = quote(file, errors="replace")
    return path if path.startswith("/") else f"./{path}" if ":" in file.split("/")[0] else path
