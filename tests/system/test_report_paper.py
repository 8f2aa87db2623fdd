"""On how many A4 pages the reports of a validation are printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, needs_browser
from certified import ACCEPTED, certificate, changed, full_page, measured, result_of, statement
from msgspec.structs import replace

pytestmark = needs_browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as driver:
        yield driver


def sheets(chromium: Browser, folder: Path, text: str) -> int:
    path = folder / "page.html"
    path.write_text(text)
    return chromium.sheets(path)


def test_a_certificate_has_at_most_three_pages(chromium: Browser, tmp_path: Path) -> None:
    good = changed(result_of("cpu-frequency", accepted=ACCEPTED))
    assert sheets(chromium, tmp_path, certificate(good, statement())) <= 3
    unread = tuple(replace(result, outcome="unknown", hint="run it as root") for result in measured().results)
    bad = replace(measured(), verdict="unknown", results=unread)
    assert sheets(chromium, tmp_path, certificate(bad, statement())) <= 3


_TIGHT = """Array.from(document.querySelectorAll(".bars td.num")).filter((cell) => {
  const figure = cell.querySelector("b").getBoundingClientRect(), cut = cell.closest("table").getBoundingClientRect();
  const track = cell.parentElement.querySelector(".track")?.getBoundingClientRect();
  const range = cell.querySelector(".range")?.getClientRects()[0];
  return (track && track.right > figure.left) || (range && (range.left < figure.right + 3 || range.right > cut.right));
}).map((cell) => cell.innerText)"""


def test_a_figure_stands_apart_from_its_bar_and_its_range(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(full_page(measured()))
    chromium.open(path, width=688, paper=True)  # A4 without its margins
    assert chromium.run("document.querySelectorAll('.bars td.num').length") > 30
    assert chromium.run(_TIGHT) == []


def test_the_full_page_has_at_most_twelve(chromium: Browser, tmp_path: Path) -> None:
    assert sheets(chromium, tmp_path, full_page(measured())) <= 12
