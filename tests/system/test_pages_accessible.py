"""axe-core finds nothing in any page: contrast, names, roles, order (WCAG 2.2, A and AA), in light and dark; no word
of any is on two lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, needs_browser
from everypage import every_page

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


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = []
    for name, text in every_page():
        paths.append(folder / f"{name}.html")
        paths[-1].write_text(text, encoding="utf-8")
    return paths


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["light", "dark, on a phone"])
def test_axe_finds_nothing_and_no_word_breaks(width: int, dark: bool, chromium: Browser, pages: list[Path]) -> None:
    for page in pages:
        chromium.open(page, width=width, dark=dark)
        assert chromium.split_words() == [], page.name
        assert chromium.run("document.documentElement.scrollWidth") <= width, page.name
        chromium.driver.execute_script(AXE.read_text(encoding="utf-8"))
        passed, violations = chromium.driver.execute_async_script(_RUN)
        assert violations == [], page.name
        assert passed > 8, page.name


def test_axe_finds_what_is_wrong(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "wrong.html"
    path.write_text('<!DOCTYPE html><title>x</title><p style="color:#ccc;background:#fff">pale</p><img src="data:,">')
    chromium.open(path)
    chromium.driver.execute_script(AXE.read_text(encoding="utf-8"))
    _, violations = chromium.driver.execute_async_script(_RUN)
    assert {"color-contrast", "html-has-lang", "image-alt"} <= {one[0] for one in violations}
