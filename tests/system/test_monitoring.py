"""The shipped rules: every alert has a case that fires and one that is silent, says what to do, and has its page."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from exposed import lines, needs_promtool, promtool, text_of
from unit.metrics.test_metrics_hosts import EXAMPLE, whole

from hosttune.metrics.families import FAMILIES
from hosttune.rules.checks import checks

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "monitoring"
RULES = MONITORING / "rules" / "hosttune.yml"
CASES = sorted((MONITORING / "tests").glob("*.yml"))
# What the rules read besides: Prometheus' and node_exporter's own, and those of the agent (hosttune watch).
OTHERS = {
    "up", "node_textfile_mtime_seconds", "node_textfile_scrape_error", "hosttune_watch_interval_seconds",
    "hosttune_watch_look_failed", "hosttune_watch_source_up", "hosttune_watch_keep_given_up",
}  # fmt: skip


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


@cache
def cases() -> tuple[tuple[str, dict[str, Any]], ...]:
    found = [case for path in CASES for case in yaml.safe_load(path.read_text())["tests"]]
    return tuple((case["name"], case) for case in found if case["name"].startswith("Hosttune"))  # others: recorded


@needs_promtool
def test_every_case_of_every_rule() -> None:
    code, said = promtool("test", "rules", *map(str, CASES))
    assert (code, said.count("SUCCESS")) == (0, len(CASES)), said


@needs_promtool
def test_no_alert_loses_a_label_that_the_operator_gave_the_host(tmp_path: Path) -> None:
    """Where alerts go is often decided by such a label (a cluster, a rack). The list of hosts alone has none."""
    copies = [tmp_path / path.name for path in CASES]
    for path, copy in zip(CASES, copies, strict=True):
        head, *found = path.read_text().replace("../rules/hosttune.yml", str(RULES)).split("\n  - name: ")
        text = "\n  - name: ".join([head, *(case for case in found if case.partition("\n")[0].endswith("fires"))])
        copy.write_text(text.replace('instance="a",job="hosttune"', 'instance="a",job="hosttune",rack="7"'))
    code, said = promtool("test", "rules", *map(str, copies))
    assert (code, said.count("SUCCESS")) == (0, len(CASES)), said


@needs_promtool
def test_promtool_can_read_the_rules() -> None:
    code, said = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert (code, f"{len(rules())} rules found" in said) == (0, True), said


def test_every_alert_has_a_case_that_fires_and_one_that_is_silent() -> None:
    fires = {name.split()[0] for name, case in cases() if case["promql_expr_test"][0]["exp_samples"]}
    silent = {name.split()[0] for name, case in cases() if not case["promql_expr_test"][0]["exp_samples"]}
    assert fires == silent == set(alerts())
    for name, case in cases():  # a case looks at its own alert, and its name says what it expects
        (test,) = case["promql_expr_test"]
        assert f'alertname="{name.split()[0]}"' in test["expr"]
        assert name.endswith("fires") == bool(test["exp_samples"])
        assert case["input_series"]


def test_every_alert_says_what_to_do_and_has_a_page() -> None:
    for name, rule in alerts().items():
        assert set(rule["annotations"]) == {"summary", "description", "action", "runbook"}
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{name}.md"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        page = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text()
        assert page.startswith(f"# {name}\n")
    assert {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")} == {*alerts(), "README"}


def test_an_alert_names_only_labels_that_it_has() -> None:
    """A label that an expression drops, or that the alert's own replaces (severity), is an empty word in the text."""
    fired = {name.split()[0]: case["promql_expr_test"][0]["exp_samples"] for name, case in cases()
             if name.endswith("fires")}  # fmt: skip
    for name, rule in alerts().items():
        used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        assert used <= set(re.findall(r"(\w+)=", fired[name][0]["labels"])), name
        assert "severity" not in used


def test_the_rules_read_metrics_that_there_are() -> None:
    known = {family.name for family in FAMILIES} | OTHERS
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        text = re.sub(r'"[^"]*"', "", rule["expr"])
        text = re.sub(r"(\bby|\bon|\bignoring|\bgroup_left)\s*\([^)]*\)|\{[^}]*\}", "", text)
        names = set(re.findall(r"\b(?:hosttune|node|up)[\w:]*", text))
        assert names <= known | recorded, rule


def test_the_rules_name_checks_that_there_are() -> None:
    named = re.findall(r'\bcheck[!=~]+"([^"]+)"', " ".join(rule["expr"] for rule in rules()))
    assert named
    assert {one for names in named for one in names.split("|")} <= {check.id for check in checks()}


def test_what_is_unknown_has_an_alert() -> None:
    """NaN is neither above nor below anything: each family that can be NaN is compared with itself, or has a source."""
    text = " ".join(rule["expr"] for rule in rules())
    for name in ("pcie_link_speed_gts", "pcie_link_width", "setting_drift", "guest_placement_violations", "bench_value",
                 "handover_valid", "handover_expiry_timestamp_seconds"):  # fmt: skip
        assert f"hosttune_{name} != hosttune_{name}" in text
    for name in ("source_readable", "devices_expected", "check_status"):
        assert f"hosttune_{name}" in text


@needs_promtool
def test_nothing_fires_in_a_healthy_hour(tmp_path: Path) -> None:
    """The example host's own metrics, scraped for an hour. It has no state, so that nothing is expected or applied."""
    _, evidence, validation, _ = whole(EXAMPLE)
    allowed = "HosttuneSourceUnreadable|HosttuneApplyUnknown|HosttuneNothingExpected"
    series = [{"series": 'up{instance="a",job="hosttune"}', "values": "1x12"}]
    for line in lines(text_of(evidence, validation)):
        name, _, number = line.rpartition(" ")
        labels = 'instance="a",job="hosttune"'
        name = name.replace("{", "{" + labels + ",") if "{" in name else name + "{" + labels + "}"
        number = " ".join(["NaN"] * 13) if number == "NaN" else f"{number}x12"
        series.append({"series": name, "values": "0+300x12" if "run_timestamp" in name else number})
    test = {"expr": f'ALERTS{{alertname!~"{allowed}"}}', "eval_time": "60m", "exp_samples": []}
    case = {"interval": "5m", "input_series": series, "promql_expr_test": [test]}
    path = tmp_path / "healthy.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "5m", "tests": [case]}))
    code, said = promtool("test", "rules", str(path))
    assert code == 0, said


@needs_promtool
def test_the_queries_of_the_page_are_queries(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    part = page.partition("## A guest's GPU metrics")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^    .*\n)+", re.sub(r"(?m)^    #.*\n", "\n", part), re.MULTILINE)
    queries = [block for block in blocks if "awk" not in block]
    assert len(queries) == 3
    rules = [{"record": f"x:y{n}", "expr": one} for n, one in enumerate(queries)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))
    assert promtool("check", "rules", str(path))[0] == 0


# Of DCGM's header (NVIDIA/DCGM, dcgmlib/dcgm_fields.h, 4.x), read apart from the table.
NUMBERS = {"DCGM_FI_DEV_UUID": 54, "DCGM_FI_DEV_XID_ERRORS": 230, "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": 235,
           "DCGM_FI_DEV_PCIE_LINK_WIDTH": 238, "DCGM_FI_DEV_POWER_VIOLATION": 240, "DCGM_FI_DEV_ROW_REMAP_FAILURE": 395,
           "DCGM_FI_DEV_ROW_REMAP_PENDING": 396, "DCGM_FI_PROF_SM_OCCUPANCY": 1003,
           "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 1004, "DCGM_FI_PROF_PCIE_TX_BYTES": 1009}  # fmt: skip


def test_the_fields_of_the_guests_side() -> None:
    with (MONITORING / "dcgm-fields.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = [int(row["number"]) for row in rows]
    assert numbers == sorted(set(numbers))
    assert {row["field"]: int(row["number"]) for row in rows}.items() >= NUMBERS.items()
    assert {row["type"] for row in rows} == {"gauge", "counter", "label"}
    for row in rows:  # the page makes dcgm-exporter's list of the columns 2 to 4 with awk, which knows no quotes
        assert not any("," in row[name] or '"' in row[name] for name in ("field", "type", "help"))
        assert re.fullmatch(r"DCGM_FI_(DEV|PROF)_[A-Z0-9_]+", row["field"])
