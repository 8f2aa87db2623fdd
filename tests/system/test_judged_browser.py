"""The pages of predictions and diagnoses on a telephone: no word is cut in two, none runs out of its column."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, needs_browser
from unit.rules.test_diagnosing_hosts import HOST

from hosttune.predicting import Scope, predict
from hosttune.report.draw.html import page as html_of
from hosttune.report.prediction import prediction_report

pytestmark = needs_browser
_OUTSIDE = """[...document.querySelectorAll(
  ".judged .num b, .judged .range, .judged tbody th, .formulas th, .roof th, .roof td")].filter(one => {
  const text = document.createRange(); text.selectNodeContents(one);
  return text.getBoundingClientRect().right > one.closest("td, th").getBoundingClientRect().right + 1;
}).map(one => one.textContent)"""
_CUT = """[...document.querySelectorAll(
  ".roof th, .judged tbody th, .formulas th, .hops th, .hops td")].flatMap(one => {
  const texts = document.createTreeWalker(one, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/[^\\s/-]+/g)) {
    const part = document.createRange();
    part.setStart(texts.currentNode, word.index); part.setEnd(texts.currentNode, word.index + word[0].length);
    if (part.getClientRects().length > 1) found.push(word[0]);
  }
  return found;
})"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "expect.html"
    path.write_text(html_of(prediction_report([predict(HOST, Scope("example", None, 2))])))
    return path


@pytest.fixture(scope="module")
def reader() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.mark.parametrize("width", [1280, 390])
def test_words_stay_whole_and_in_their_columns(reader: Browser, page: Path, width: int) -> None:
    reader.open(page, width=width)
    assert reader.run('document.querySelectorAll(".judged .num b").length') > 20
    assert "typical unknown" in reader.run('[...document.querySelectorAll(".judged .num b")].map(b => b.textContent)')
    assert reader.run(_OUTSIDE) == []
    assert reader.run(_CUT) == []


def test_a_pair_of_devices_breaks_beside_its_arrow(page: Path) -> None:
    assert "28 alike: 0000:18:00.0 → 0000:29:00.0 to " in page.read_text()
