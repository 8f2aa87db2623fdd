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


def test_the_full_page_has_at_most_twelve(chromium: Browser, tmp_path: Path) -> None:
    assert sheets(chromium, tmp_path, full_page(measured())) <= 12
