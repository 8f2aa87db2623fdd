"""Findings of the linter as SARIF 2.1.0, the format that code hosts and editors read.

An error is `error`, a warning `warning`, a note `note`. A rule that could not be judged has the kind `open`, whose
level must be `none` (SARIF 2.1.0, 3.27.9 and 3.27.10).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from hosttune import __version__
from hosttune.model.lint import LEVEL_WORDS, LintFinding
from hosttune.model.text import visible
from hosttune.rules.lint import LEVEL, LintRule

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


def _result(one: LintFinding, place: int) -> dict[str, Any]:
    text = visible(one.text if not one.judged else f"{one.text}. {one.remedy}")
    location = {"artifactLocation": {"uri": _uri(one.file)}, "region": {"startLine": one.line}}
    return {
        "ruleId": one.rule,
        "ruleIndex": place,
        "kind": "fail" if one.judged else "open",
        "level": LEVEL_WORDS[one.level] if one.judged else "none",
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
