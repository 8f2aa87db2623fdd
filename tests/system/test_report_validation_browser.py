"""The HTML report in a real browser: filtering by clicking, no script of a document, phone width, colours as drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, needs_browser
from sweeps import sample
from unit.report.test_report_plan_picture import INTENT, example, plan_html
from unit.report.test_report_svg import texts
from unit.report.test_report_validation_html import DOCUMENTS, contrast, host, page, page_of, planned, running
from validations import GPUS, faulty

import hosttune
from hosttune.model.intent import Intent
from hosttune.report.blocks import Report, Table
from hosttune.report.draw.html import page as html_of
from hosttune.report.outcomes import folded, groups
from hosttune.report.picture.layout import plan_picture

pytestmark = needs_browser

SHOWN = (
    "Array.from(document.querySelectorAll('#checks tr.r'))"
    ".filter(row => row.getClientRects().length && row.checkVisibility({contentVisibilityAuto: true})).length"
)
PAGES = (*DOCUMENTS, "drawn", "plan")
OPEN = 7  # lines of what failed, is unknown or warns, of the 15 of `faulty`


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in (*PAGES, "narrow")}
    for name in DOCUMENTS:
        paths[name].write_text(page(name))
    seen = host(guests=(running(),))
    paths["drawn"].write_text(page_of(faulty(), host=seen, plans=(planned(),)))
    seen, plan = example(), hosttune.plan(example(), Intent.from_yaml(INTENT.read_text()))
    paths["plan"].write_text(plan_html(seen, plan))
    rows = (("Needed", "reachable", "unreachable", " ".join(["everything"] * 200), "a/long/path" * 60),)
    crowded = Table(heading="A crowded table", columns=("level", "state", "answer", "text", "path"), rows=rows)
    paths["narrow"].write_text(html_of(Report(kind="A page", headline="narrow columns", blocks=(crowded,))))
    return paths


def test_an_outcome_is_shown_alone_and_all_again(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["faulty"])
    assert chromium.run(SHOWN) == OPEN
    chromium.click("#filters input[value=fail]")
    assert chromium.run(SHOWN) == 3
    assert chromium.run("document.getElementById('shown').textContent") == "Shown: 3 of 15 lines."
    chromium.click("#filters input[value=unknown]")
    assert chromium.run(SHOWN) == 5
    chromium.click("#filters button[type=reset]")
    assert chromium.run(SHOWN) == OPEN
    chromium.click("#filters input[value=pass]")
    assert chromium.run(SHOWN) == 6


def test_a_device_is_shown_alone(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["faulty"])
    chromium.click(f"#device option[value='{GPUS[5]}']")
    assert chromium.run(SHOWN) == 4
    chromium.click("#filters input[value=fail]")
    assert chromium.run(SHOWN) == 2
    subjects = "Array.from(document.querySelectorAll('#checks tr.r:not([hidden])')).map(row => row.dataset.f0)"
    assert all(f"|{GPUS[5]}|" in of for of in chromium.run(subjects))


def test_words_are_searched_for_in_every_column(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["faulty"])
    chromium.type("#words", "CHRONY")
    assert chromium.run(SHOWN) == 1


def test_a_tile_of_the_verdict_leads_to_its_results(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["faulty"])
    chromium.click(".tiles a[data-outcome=warn]")
    assert chromium.run(SHOWN) == 2
    assert chromium.run("location.hash") == "#checklist"


def test_a_device_of_the_picture_leads_to_its_results(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["drawn"])
    chromium.click(f".picture [data-name='{GPUS[2]}'] text")
    assert chromium.run("document.getElementById('device').value") == GPUS[2]
    assert chromium.run(SHOWN) == 4


def test_without_script_all_can_be_opened_and_no_dead_controls(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["faulty"], script=False)
    assert chromium.run(SHOWN) == OPEN
    chromium.click("#checks details.pass > summary")
    chromium.click("#checks details.skip > summary")
    assert chromium.run(SHOWN) == 15
    assert chromium.run("document.getElementById('filters').getClientRects().length") == 0


@pytest.mark.parametrize("script", [True, False])
def test_on_paper_what_did_not_pass_is_told_and_the_rest_named(
    script: bool, chromium: Browser, saved: dict[str, Path]
) -> None:
    chromium.open(saved["faulty"], script=script, paper=True)
    assert chromium.run(SHOWN) == OPEN
    named = "Array.from(document.querySelectorAll('#checks > .paper')).map(one => one.innerText).join(' ')"
    quiet = [group for group in groups(faulty().results) if group.outcome in ("pass", "skip")]
    assert quiet
    assert all(group.check in chromium.run(named) for group in quiet)


def test_on_paper_what_a_filter_chose_is_told(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["faulty"], paper=True)
    chromium.run("document.querySelector('#filters input[value=pass]').click()")
    assert chromium.run(SHOWN) == 6
    assert chromium.run("document.querySelectorAll('#checks > .paper')[0].getClientRects().length") == 0


@pytest.mark.parametrize("name", PAGES)
def test_nothing_of_a_document_runs_and_nothing_is_fetched(
    name: str, chromium: Browser, saved: dict[str, Path]
) -> None:
    chromium.open(saved[name])
    assert chromium.run("window.hacked") is None
    assert chromium.run("performance.getEntriesByType('resource').length") == 0
    assert chromium.complaints() == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", [*PAGES, "narrow"])
def test_no_word_breaks_inside(name: str, width: int, chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved[name], width=width)
    assert chromium.split_words() == []
    assert chromium.run("document.documentElement.scrollWidth") <= width


def test_hostile_subjects_can_be_filtered_by(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["hostile"])
    chromium.click("#device option:last-child")
    assert chromium.run(SHOWN) == 5
    assert chromium.run("window.hacked") is None


WIDTHS = [(name, width) for name in PAGES for width in (320, 768)]


@pytest.mark.parametrize(("name", "width"), sample("widths", WIDTHS, 5))
def test_no_page_scrolls_sideways(name: str, width: int, chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved[name], width=width)
    assert chromium.run("document.documentElement.scrollWidth") <= width


def test_2000_results_are_filtered_and_the_page_stays_light(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["large"])
    chromium.click("#filters input[value=unknown]")
    expected = [one for one in folded(groups(DOCUMENTS["large"]().results)) if one.outcome == "unknown"]
    assert chromium.run(SHOWN) == len(expected)
    assert chromium.run("document.querySelectorAll('*').length") < 40_000


def test_the_text_of_a_picture_is_as_narrow_as_computed_and_does_not_shrink_on_a_phone(
    chromium: Browser, saved: dict[str, Path]
) -> None:
    seen, plan = example(), hosttune.plan(example(), Intent.from_yaml(INTENT.read_text()))
    drawn = plan_picture(seen, plan)
    allowed = {(text.text, text.size, text.bold): text.width for text in texts(drawn)}
    chromium.open(saved["plan"], width=390)
    found = chromium.run(
        "Array.from(document.querySelectorAll('.picture text')).map(one => [one.textContent,"
        " parseFloat(getComputedStyle(one).fontSize), one.classList.contains('strong'), one.getComputedTextLength()])"
    )
    assert len(found) >= len(texts(drawn))
    assert [one for one in found if one[3] > allowed[one[0], one[1], one[2]] + 0.5] == []
    sizes = chromium.run(
        "Array.from(document.querySelectorAll('.picture svg'))"
        ".map(one => one.getBoundingClientRect().width / one.viewBox.baseVal.width)"
    )
    assert sizes == [1] * len(sizes)


@pytest.mark.parametrize("name", ["oci-bm-gpu-a100-b4-nps4", "azure-ndv4-8xa100-vm"])
def test_the_picture_of_many_nodes_is_whole_in_a_window(
    name: str, chromium: Browser, host_root: Callable[[str], Path], tmp_path: Path
) -> None:
    """A number that is cut at the edge reads as another number: ×16 was ×1."""
    seen = hosttune.discover(str(host_root(f"derived/{name}")))
    intent = Intent.from_yaml("version: 1\nguests: [{name: a, gpus: 4}]\n")
    path = tmp_path / "plan.html"
    path.write_text(plan_html(seen, hosttune.plan(seen, intent)))
    chromium.open(path, width=1280)
    place = "document.querySelector('.scroll.picture')"
    assert chromium.run(f"{place}.scrollWidth") <= chromium.run(f"{place}.clientWidth")


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_as_drawn_has_contrast(dark: bool, chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["faulty"], dark=dark)
    colours = chromium.run(
        "Array.from(document.querySelectorAll('p, td, th, li, h1, h2, h3, a, summary, dt, dd, label, button, strong'))"
        ".filter(one => one.textContent.trim() && one.getClientRects().length).map(one => {"
        " let under = one; while (under && getComputedStyle(under).backgroundColor === 'rgba(0, 0, 0, 0)')"
        " under = under.parentElement;"
        " return [getComputedStyle(one).color, getComputedStyle(under || document.body).backgroundColor] })"
    )
    pairs = {(_hex(front), _hex(back)) for front, back in colours}
    assert len(pairs) > 5
    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []


def test_light_and_dark_are_the_readers(chromium: Browser, saved: dict[str, Path]) -> None:
    backgrounds = []
    for dark in (False, True):
        chromium.open(saved["clean"], dark=dark)
        backgrounds.append(_hex(chromium.run("getComputedStyle(document.body).backgroundColor")))
    assert backgrounds == ["#f4f6f8", "#0f1318"]


def _hex(colour: str) -> str:
    parts = colour[colour.index("(") + 1 : -1].split(",")
    return "#" + "".join(f"{int(part):02x}" for part in parts[:3])
