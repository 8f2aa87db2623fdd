"""The dashboards are what `monitoring/dashboards.py` builds, and every query of them is one that Prometheus takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dashboards
import pytest
import yaml
from exposed import needs_promtool, promtool
from jsonschema import Draft7Validator
from system.test_monitoring import OTHERS

from hosttune.metrics.families import FAMILIES

FOLDER = Path(__file__).resolve().parents[2] / "monitoring" / "dashboards"
CASES = Path(__file__).resolve().parents[1] / "cases" / "grafana"


def page(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def replaced(expression: str, instance: str = ".*") -> str:
    """A query as Grafana sends it."""
    return expression.replace('="$instance"', f'=~"{instance}"').replace("$__rate_interval", "1m")


def test_the_files_are_what_is_built(request: pytest.FixtureRequest) -> None:
    made = dashboards.pages()
    if request.config.getoption("--regenerate"):
        for name, text in made.items():
            (FOLDER / name).write_text(text)
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == made


def test_they_keep_to_grafanas_schema() -> None:
    judge = Draft7Validator(json.loads((CASES / "dashboard.schema.json").read_text()))
    for path in FOLDER.glob("*.json"):
        found = page(path.name)
        for mark in found["annotations"]["list"]:
            assert mark.pop("expr", None) or mark.get("builtIn"), (
                "its query, which the schema leaves to the data source"
            )
        assert [f"{list(wrong.absolute_path)}: {wrong.message}"[:300] for wrong in judge.iter_errors(found)] == []
        found["panels"][-1]["title"] = 7
        assert not judge.is_valid(found)


def test_the_runbooks_are_where_the_site_has_them() -> None:
    site = yaml.safe_load((FOLDER.parents[1] / "mkdocs.yml").read_text())["site_url"]
    for path in FOLDER.glob("*.json"):
        text = next(one for one in page(path.name)["templating"]["list"] if one["name"] == "runbooks")
        assert text["query"] == f"{site}/runbooks/"
    assert (FOLDER.parents[1] / "docs/runbooks/README.md").exists()


@needs_promtool
def test_promtool_parses_every_query(tmp_path: Path) -> None:
    found = [one for path in FOLDER.glob("*.json") for one in dashboards.expressions(page(path.name))]
    assert len(found) > 30
    rules = [{"record": f"x:y{n}", "expr": replaced(one)} for n, one in enumerate(found)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))
    code, said = promtool("check", "rules", str(path))
    assert (code, f"{len(rules)} rules found" in said) == (0, True), said


def test_they_show_metrics_that_there_are_and_leave_none_out() -> None:
    known = {family.name for family in FAMILIES}
    read = {name for path in FOLDER.glob("*.json") for one in dashboards.expressions(page(path.name))
            for name in re.findall(r"\bhosttune_\w+", one)}  # fmt: skip
    assert read <= known | OTHERS
    unseen = ("run_exit_code", "run_duration_seconds", "bench_timestamp_seconds", "check_status_omitted",
              "series_omitted", "pcie_link_speed_gts_expected")  # fmt: skip
    assert known - read == {f"hosttune_{name}" for name in unseen}


def test_panels_do_not_overlap_and_have_a_source() -> None:
    for path in FOLDER.glob("*.json"):
        places: set[tuple[int, int]] = set()
        for panel in page(path.name)["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= 24
            assert not places & cells, panel["title"]
            places |= cells
            if panel["type"] != "row":
                assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
                assert all(target["refId"] for target in panel["targets"]), panel["title"]


def test_each_panel_says_what_it_shows_and_its_thresholds_can_show() -> None:
    for path in FOLDER.glob("*.json"):
        for panel in page(path.name)["panels"]:
            if panel["type"] == "row":
                continue
            assert len(panel["description"].split()) > 5, panel["title"]
            steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
            limits = [step["value"] for step in steps if step["value"] is not None]
            assert limits == sorted(set(limits)), panel["title"]
            assert len({step["color"] for step in steps}) == len(steps), panel["title"]


def test_they_lead_to_each_other_and_mark_what_happened() -> None:
    host, fleet = page("host.json"), page("fleet.json")
    assert [link["url"] for link in host["links"]] == ["/d/hosttune-fleet", "${runbooks}"]
    assert [link["url"] for link in fleet["links"]] == ["/d/hosttune-host", "${runbooks}"]
    assert "/d/hosttune-host?var-instance=" in json.dumps(fleet["panels"])
    for one in (host, fleet):
        assert [mark["name"] for mark in one["annotations"]["list"]] == ["Apply", "Reboot", "Hand-over"]
        assert all(mark["datasource"]["uid"] == "${datasource}" for mark in one["annotations"]["list"])
