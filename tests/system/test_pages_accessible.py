"""axe-core finds nothing in the pages: contrast, names, roles, order (WCAG 2.2, A and AA), in light and dark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, needs_browser
from certified import certificate, full_page, measured, statement
from msgspec.structs import replace
from unit.report.test_report_plan_picture import INTENT, example, plan_html

import hosttune
from hosttune.model.intent import Intent

AXE = Path(sys.prefix) / "axe" / "package" / "axe.min.js"
pytestmark = [needs_browser, pytest.mark.skipif(not AXE.exists(), reason="no axe-core here (make set-up-test)")]
_RUN = """
  const done = arguments[0], tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
  axe.run(document, {runOnly: tags}).then((found) => done([
    found.passes.length, found.violations.map((one) => [one.id, one.nodes.length, one.nodes[0].html])]));
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as driver:
        driver.driver.set_script_timeout(120)
        yield driver


def pages() -> dict[str, str]:
    found = {
        "certificate": certificate(measured(), statement()),
        "no certificate": certificate(replace(measured(), verdict="unknown")),
        "validation": full_page(measured()),
        "plan": plan_html(example(), hosttune.plan(example(), Intent.from_yaml(INTENT.read_text()))),
    }
    sample = Path(__file__).parents[2] / "docs" / "fleet-sample.html"
    return {**found, "fleet": sample.read_text(encoding="utf-8")}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(dark: bool, chromium: Browser, tmp_path: Path) -> None:
    for name, text in pages().items():
        path = tmp_path / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        chromium.open(path, dark=dark)
        chromium.driver.execute_script(AXE.read_text(encoding="utf-8"))
        passed, violations = chromium.driver.execute_async_script(_RUN)
        assert violations == [], name
        assert passed > 10, name


def test_axe_finds_what_is_wrong(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "wrong.html"
    path.write_text('<!DOCTYPE html><title>x</title><p style="color:#ccc;background:#fff">pale</p><img src="data:,">')
    chromium.open(path)
    chromium.driver.execute_script(AXE.read_text(encoding="utf-8"))
    _, violations = chromium.driver.execute_async_script(_RUN)
    assert {"color-contrast", "html-has-lang", "image-alt"} <= {one[0] for one in violations}
