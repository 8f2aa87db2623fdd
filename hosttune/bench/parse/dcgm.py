"""Parse `dcgmi diag -j`: the verdicts of DCGM 3 ("DCGM GPU Diagnostic") and DCGM 4 ("DCGM Diagnostic").

Source: NVIDIA/DCGM, dcgmi/Diag.cpp (4: results by entity_group and entity_id, test_summary; 3: gpu_ids). Every result
is read, because DCGM has passed runs in which an allocation failed (DCGM#284). So a pass with a warning becomes a
warning, and a status that is not known becomes unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hosttune.bench.parse.answer import NotUnderstood, ParsedOutput, document, part, worst_of_each
from hosttune.model.validation import CheckResult, Outcome

TOOL = "dcgmi diag"
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_OUTCOMES: dict[str, Outcome] = {"pass": "pass", "fail": "fail", "warn": "warn", "skip": "skip", "not run": "skip"}


def parse(text: str) -> ParsedOutput:
    """Return one result for each test and entity. Raises NotUnderstood."""
    report = document(text, TOOL)
    root = next((report[name] for name in _ROOTS if name in report), None)
    root = part(root, dict, TOOL, " or ".join(_ROOTS))
    if root.get("runtime_error"):
        raise NotUnderstood(TOOL, f"it says: {str(root['runtime_error'])[:200]}")
    results = tuple(
        result
        for category in part(root.get("test_categories"), list, TOOL, "test_categories")
        for test in part(part(category, dict, TOOL, "a category").get("tests"), list, TOOL, "tests")
        for result in _test(part(test, dict, TOOL, "a test"))
    )
    if not results:
        raise NotUnderstood(TOOL, "no test in it")
    version = root.get("version") or _metadata(report).get("version")
    return ParsedOutput((), worst_of_each(results), (), {"dcgm": str(version)} if version else {})


def _metadata(record: dict[str, Any]) -> dict[str, Any]:
    value = record.get("metadata")
    return value if isinstance(value, dict) else {}


def _test(test: dict[str, Any]) -> Iterator[CheckResult]:
    name = part(test.get("name"), str, TOOL, "name")
    check = "dcgm-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "test")
    rows = part(test.get("results"), list, TOOL, f"results of {name}")
    if not rows:
        raise NotUnderstood(TOOL, f"{name} has no results")
    for row in rows:
        status = part(part(row, dict, TOOL, "a result").get("status"), str, TOOL, f"status of {name}")
        words = _warnings_text(row)
        for subject in _subjects(row):
            outcome = _OUTCOMES.get(status.lower())
            if outcome == "pass" and re.search(r"error|fail|unable|could not|insufficient", words, re.IGNORECASE):
                outcome = "warn"
            yield CheckResult(
                check=check,
                subject=subject,
                outcome=outcome or "unknown",
                expected=None if outcome == "skip" else "Pass",
                actual=f"{status}: {words}" if words else status,
                source=TOOL,
                hint=None
                if outcome in ("pass", "skip")
                else "dcgmi diag says why; NVIDIA's DCGM guide lists its error codes",
            )


def _subjects(row: dict[str, Any]) -> list[str]:
    """Return the subjects as DCGM's own ids, because the document does not contain the addresses of GPUs."""
    if "entity_id" in row:
        group = str(row.get("entity_group", "entity")).lower()
        return [f"dcgm {group} {part(row['entity_id'], int, TOOL, 'entity_id')}"]
    ids = row.get("gpu_ids") or row.get("gpu_id")
    return [f"dcgm gpu {name.strip()}" for name in str(ids).split(",")] if ids is not None else ["host"]


def _warnings_text(row: dict[str, Any]) -> str:
    rows = [row.get(key) or [] for key in ("warnings", "warning", "info")]
    values = [value for row in rows for value in (row if isinstance(row, list) else [row])]
    return "; ".join(str(value.get("warning", value)) if isinstance(value, dict) else str(value) for value in values)[
        :500
    ]
