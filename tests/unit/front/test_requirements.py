"""The example script for NVIDIA's validation suite: its form, and that a requirement passes only on evidence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hosttune
from hosttune.rules.checks import checks

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "examples/host_requirements.py"


def said(validation: Path) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, str(SCRIPT), "--report", str(validation)]
    run = subprocess.run(argv, capture_output=True, text=True, check=False)
    return run.returncode, json.loads(run.stdout)


def declared() -> dict[str, Any]:
    """What the script declares."""
    space: dict[str, Any] = {}
    exec(compile(SCRIPT.read_text(), str(SCRIPT), "exec"), {"__name__": "script"}, space)
    return space


def test_a_capture_of_before_has_not_passed_what_it_does_not_hold(tmp_path: Path) -> None:
    report = tmp_path / "v.json"
    report.write_text(hosttune.validate(str(ROOT / "examples/hgx-h200-8.tar.xz")).to_json())
    code, found = said(report)
    assert (code, found["success"], found["platform"], found["test_name"]) == (1, False, "bm", "host_requirements")
    assert {name: test["passed"] for name, test in found["tests"].items()} == {
        "CAP05": True, "SEC11": False, "SEC21": False, "SEC22": False, "BFX03": False,
    }  # fmt: skip
    assert "cpu-vulnerabilities (host): skip, not in this capture" in found["tests"]["SEC11"]["error"]


def test_a_requirement_passes_on_a_pass_alone(tmp_path: Path) -> None:
    """All checks passed; then one of them warns, is unknown, or was not asked."""
    rows = [
        {"check": check, "subject": "host", "outcome": "pass", "actual": "x"}
        for check in declared()["REQUIREMENTS"]["SEC11"][1]
    ]
    report = tmp_path / "v.json"
    for change, passed in (
        ({}, True), ({"outcome": "skip"}, True), ({"outcome": "warn"}, False), ({"outcome": "unknown"}, False),
        ({"check": "another"}, False),
    ):  # fmt: skip
        results = [{**rows[0], **change}, *rows[1:]]
        report.write_text(json.dumps({"verdict": "pass", "host": "h", "results": results}))
        assert said(report)[1]["tests"]["SEC11"]["passed"] is passed, change


def test_firmware_is_known_where_each_part_has_it(tmp_path: Path) -> None:
    facts = [{"name": name, "value": "1", "model": None, "subjects": []} for name in declared()["FIRMWARE"]]
    report = tmp_path / "v.json"
    for more, passed in (([], True), ([{**facts[-1], "value": None}], False)):
        report.write_text(json.dumps({"verdict": "pass", "host": "h", "results": [], "configuration": facts + more}))
        assert said(report)[1]["tests"]["BFX03"]["passed"] is passed


def test_no_validation_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text("")
    code, found = said(tmp_path / "v.json")
    assert (code, found["success"], found["error"][:13]) == (1, False, "no validation")


def test_its_checks_exist_and_are_in_the_manual() -> None:
    named = {check for _, of in declared()["REQUIREMENTS"].values() for check in of}
    assert named <= {check.id for check in checks()}
    page = (ROOT / "docs/requirements.md").read_text()
    assert [check for check in sorted(named) if f"`{check}`" not in page] == []
