"""The fleet's page in a real browser: filters, order, the heat map by keys and mouse, no script of a host, phones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, needs_browser
from fleetresults import fleet, host_page, html
from sweeps import sample
from system.test_report_validation_browser import _hex
from unit.report.test_fleet_report import ASKED, stopped_run
from unit.report.test_report_validation_html import contrast

from hosttune.fleet.overview import report_of
from hosttune.fleet.pages import with_pages
from hosttune.model.fleet import FleetReport
from hosttune.report.fleet_groups import hosts_worst_first

pytestmark = needs_browser

ROWS = "Array.from(document.querySelectorAll('.hosts tbody')).filter(body => !body.hidden)"
SHOWN = f"{ROWS}.length"
HOSTS = f"{ROWS}.map(body => body.querySelector('th').textContent.trim())"
SAID = "document.getElementById('shown').textContent"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleets")


@pytest.fixture(scope="module")
def reports(folder: Path) -> dict[str, FleetReport]:
    small, hostile, large = str(folder / "small"), str(folder / "hostile"), str(folder / "large")
    return {
        "small": with_pages(report_of(small, fleet(Path(small), 20), ASKED), small, host_page),
        "hostile": with_pages(report_of(hostile, fleet(Path(hostile), 20, hostile=True), ASKED), hostile, host_page),
        "large": report_of(large, fleet(Path(large), 300, level=0, discovered=False), ASKED),
        "stopped": stopped_run(folder / "stopped"),
    }


@pytest.fixture(scope="module")
def saved(folder: Path, reports: dict[str, FleetReport]) -> dict[str, Path]:
    """The pages, beside the hosts' own."""
    paths = {name: folder / name / "fleet.html" for name in reports}
    for name, report in reports.items():
        paths[name].write_text(html(report))
    return paths


NAMES = ("small", "hostile", "large", "stopped")


def counted(report: FleetReport, verdict: str) -> int:
    return sum(line.verdict == verdict for line in report.hosts)


# --- filters and order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small", "large"])
def test_a_verdict_is_shown_alone_and_all_again(
    name: str, chromium: Browser, saved: dict[str, Path], reports: dict[str, FleetReport]
) -> None:
    report = reports[name]
    chromium.open(saved[name])
    assert chromium.run(SHOWN) == len(report.hosts)
    chromium.click("#filters input[value=fail]")
    assert chromium.run(SHOWN) == counted(report, "fail") > 0
    assert chromium.run(SAID) == f"Shown: {counted(report, 'fail')} of {len(report.hosts)} hosts."
    chromium.click("#filters input[value=unknown]")
    assert chromium.run(SHOWN) == counted(report, "fail") + counted(report, "unknown")
    chromium.click("#filters button[type=reset]")
    assert chromium.run(SHOWN) == len(report.hosts)


def test_tiles_at_the_top_and_answers_lead_to_their_hosts(
    chromium: Browser, saved: dict[str, Path], reports: dict[str, FleetReport]
) -> None:
    chromium.open(saved["large"])
    chromium.click(".tiles a[data-outcome=unknown]")
    assert chromium.run(SHOWN) == counted(reports["large"], "unknown")
    assert chromium.run("location.hash") == "#checklist"
    chromium.click("#filters button[type=reset]")
    chromium.click("#answer option[value=unreachable]")
    lost = [line for line in reports["large"].hosts if any(one.outcome == "unreachable" for one in line.answers)]
    assert chromium.run(SHOWN) == len(lost) > 1


def test_a_failure_leads_to_the_hosts_that_have_it(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["large"])
    count = chromium.run("document.querySelector('.causes .names').textContent.split(', ').length")
    chromium.click(".causes button.show")
    assert chromium.run(SHOWN) == count > 1
    check = chromium.run("document.querySelector('.causes .hint').textContent")
    assert chromium.run(f"{ROWS}.every(body => body.textContent.includes('{check}'))")


def test_a_check_is_asked_for(chromium: Browser, saved: dict[str, Path], reports: dict[str, FleetReport]) -> None:
    chromium.open(saved["large"])
    chromium.click("#check option[value=ecc-errors]")
    expected = {line.host for line in reports["large"].hosts if line.checks.get("ecc-errors") == "fail"}
    assert set(chromium.run(HOSTS)) == expected
    chromium.click("#answer option[value=ok]")
    assert chromium.run(SHOWN) == 0


def test_words_are_searched_for_in_names_and_results(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["small"])
    chromium.type("#words", "GPU-07")
    _settle(chromium)
    assert chromium.run(HOSTS) == ["gpu-07.dc1.example.net"]
    chromium.run("document.getElementById('words').value = ''")
    chromium.type("#words", "both ends can do")
    _settle(chromium)
    assert 0 < chromium.run(SHOWN) < 20


def test_waves_are_filtered_by(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["stopped"])
    chromium.click("#wave option[value='3']")
    assert chromium.run(HOSTS) == ["gpu-5", "gpu-6"]


@pytest.mark.parametrize("name", ["small", "large"])
def test_hosts_are_sorted_by_any_column_both_ways(
    name: str, chromium: Browser, saved: dict[str, Path], reports: dict[str, FleetReport]
) -> None:
    lines = reports[name].hosts
    chromium.open(saved[name])
    assert chromium.run(HOSTS) == [line.host for line in hosts_worst_first(lines)]
    chromium.click("#list th:nth-child(2) button")
    assert chromium.run(HOSTS) == [line.host for line in lines]
    assert chromium.run("document.querySelector('#list th:nth-child(2)').getAttribute('aria-sort')") == "ascending"
    chromium.click("#list th:nth-child(2) button")
    assert chromium.run(HOSTS) == [line.host for line in reversed(lines)]
    chromium.click("#list th:nth-child(3) button")
    what = chromium.run(f"{ROWS}.map(body => body.rows[0].cells[2].textContent)")
    assert what == chromium.driver.execute_script(
        "return arguments[0].slice().sort(new Intl.Collator('en', {numeric: true}).compare)", what
    )
    assert len(set(what)) > 1
    assert chromium.run("document.querySelectorAll('[aria-sort]').length") == 1


def test_numbers_in_names_are_numbers(chromium: Browser, tmp_path: Path) -> None:
    from hosttune.model.fleet import HostLine

    lines = tuple(HostLine(host=f"gpu-{n}", folder=f"gpu-{n}") for n in (10, 9, 100, 1))
    (tmp_path / "fleet.html").write_text(html(FleetReport(verb="validate", hosts=lines)))
    chromium.open(tmp_path / "fleet.html")
    chromium.click("#list th:nth-child(2) button")
    assert chromium.run(HOSTS) == ["gpu-1", "gpu-9", "gpu-10", "gpu-100"]


def test_filters_and_order_hold_together(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["large"])
    chromium.click("#filters input[value=fail]")
    before = chromium.run(HOSTS)
    chromium.click("#list th:nth-child(2) button")
    assert chromium.run(HOSTS) == sorted(before) != before


def test_a_row_unfolds_and_leads_to_the_hosts_own_page(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["small"])
    chromium.click("#list tbody summary")
    assert chromium.run("document.querySelector('#list details').open")
    chromium.click("#list tbody details a")
    assert chromium.run("document.querySelector('.kicker').textContent") == "Validation of a GPU host"


# --- heat map ------------------------------------------------------------------------------------------------

CHECKS = "JSON.parse(document.getElementById('grid').textContent).columns"


def test_keys_walk_the_map_and_enter_unfolds_the_host(chromium: Browser, saved: dict[str, Path]) -> None:
    from selenium.webdriver.common.keys import Keys

    chromium.open(saved["large"])
    chromium.click("#bad")
    chromium.run("document.getElementById('canvas').focus()")
    worst, (first, second, third, *_) = chromium.run(HOSTS)[0], chromium.run(CHECKS)
    assert chromium.run("document.getElementById('cell').textContent").startswith(f"{worst}, {first}: ")
    chromium.type("#canvas", Keys.ARROW_RIGHT)
    assert chromium.run("document.getElementById('cell').textContent").startswith(f"{worst}, {second}: ")
    chromium.type("#canvas", Keys.ARROW_DOWN + Keys.ARROW_RIGHT)
    host = chromium.run(HOSTS)[1]
    assert chromium.run("document.getElementById('cell').textContent").startswith(f"{host}, {third}: ")
    chromium.type("#canvas", Keys.ENTER)
    assert chromium.run("document.querySelector('tbody.found th').firstChild.textContent.trim()") == host
    assert chromium.run("document.activeElement.tagName") == "SUMMARY"


def test_the_map_says_what_is_under_the_mouse(chromium: Browser, saved: dict[str, Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    chromium.open(saved["small"])
    chromium.click("#bad")
    _settle(chromium)
    canvas = chromium.driver.find_element("id", "canvas")
    chromium.driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
    size = canvas.size
    ActionChains(chromium.driver).move_to_element_with_offset(
        canvas, 77 - size["width"] // 2, 158 - size["height"] // 2
    ).perform()
    assert chromium.run("document.getElementById('tip').textContent") == (
        f"gpu-03.dc1.example.net, {chromium.run(CHECKS)[0]}: failed"
    )


def test_the_map_draws_failures_in_their_colour(chromium: Browser, saved: dict[str, Path]) -> None:
    """Pixels of the first cell, which failed, and of the last columns in view, which passed or do not apply."""
    chromium.open(saved["small"])
    chromium.click("#bad")
    _settle(chromium)
    seen = chromium.run(
        "Array.from(document.getElementById('canvas').getContext('2d').getImageData(71, 152, 200, 1).data)"
    )
    assert seen[:3] == [0x8F, 0x14, 0x10]
    assert [0xDC, 0xEF, 0xE3] in [seen[n : n + 3] for n in range(0, len(seen), 4)]


def test_the_map_follows_the_filters(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["large"])
    tall = chromium.run("document.getElementById('sheet').offsetHeight")
    chromium.click("#filters input[value=fail]")
    _settle(chromium)
    assert chromium.run("document.getElementById('sheet').offsetHeight") < tall
    chromium.click("#bad")
    _settle(chromium)
    chromium.run("document.getElementById('canvas').focus()")
    assert chromium.run("document.getElementById('cell').textContent").count(":") == 1


def test_all_hosts_at_a_glance_or_with_signs(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["large"])
    _settle(chromium)
    glance = chromium.run("document.getElementById('sheet').offsetHeight")
    chromium.click("#fit")
    _settle(chromium)
    assert chromium.run("document.getElementById('sheet').offsetHeight") > 4 * glance


# --- what may not be -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_host_runs_and_nothing_is_fetched(name: str, chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved[name])
    assert chromium.run("window.hacked") is None
    assert chromium.run("performance.getEntriesByType('resource').length") == 0
    assert chromium.complaints() == []


def test_pages_of_hosts_with_hostile_names_open(
    chromium: Browser, saved: dict[str, Path], reports: dict[str, FleetReport]
) -> None:
    chromium.open(saved["hostile"])
    links = chromium.run("Array.from(document.querySelectorAll('#list details a')).map(link => link.href)")
    assert len(links) == sum(line.page is not None for line in reports["hostile"].hosts) > 2
    folder = saved["hostile"].parent.as_uri()
    for link in links[-8:]:
        assert link.startswith(f"{folder}/")
        chromium.driver.get(link)
        assert chromium.run("document.querySelector('.kicker').textContent") == "Validation of a GPU host"


def test_without_script_all_hosts_are_there_and_no_dead_controls(
    chromium: Browser, saved: dict[str, Path], reports: dict[str, FleetReport]
) -> None:
    chromium.open(saved["large"], script=False)
    assert chromium.run(SHOWN) == len(reports["large"].hosts)
    for selector in ("#filters", "#heat", ".show", "#list thead button"):
        assert chromium.run(
            f"Array.from(document.querySelectorAll('{selector}')).filter(one => one.getClientRects().length).length"
        ) == 0, selector  # fmt: skip
    assert chromium.run("document.querySelector('#list').getClientRects().length") == 1


def test_hosts_that_come_in_later_are_printed_at_once(
    chromium: Browser, saved: dict[str, Path], reports: dict[str, FleetReport]
) -> None:
    chromium.driver.get(saved["large"].as_uri())
    chromium.driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert chromium.run(SHOWN) == len(reports["large"].hosts)


WIDTHS = [(name, width) for name in NAMES for width in (320, 390, 768)]


@pytest.mark.parametrize(("name", "width"), sample("widths of a fleet", WIDTHS, 5))
def test_no_page_scrolls_sideways(name: str, width: int, chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved[name], width=width)
    chromium.run("document.querySelectorAll('details').forEach((one, n) => { one.open = n < 40; })")
    assert chromium.run("document.documentElement.scrollWidth") <= width


def test_1000_hosts_stay_light(chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved["large"])
    assert chromium.run("document.querySelectorAll('*').length") < 8_000
    assert chromium.run("document.getElementById('canvas').height") < 2_000


@pytest.mark.parametrize("name", ["small", "stopped"])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_as_drawn_has_contrast(name: str, dark: bool, chromium: Browser, saved: dict[str, Path]) -> None:
    chromium.open(saved[name], dark=dark)
    chromium.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    colours = chromium.run(
        "Array.from(document.querySelectorAll('p,td,th,li,h1,h2,h3,a,summary,label,button,strong,i,b,span'))"
        ".filter(one => one.textContent.trim() && one.getClientRects().length).map(one => {"
        " let under = one; while (under && getComputedStyle(under).backgroundColor === 'rgba(0, 0, 0, 0)')"
        " under = under.parentElement;"
        " return [getComputedStyle(one).color, getComputedStyle(under || document.body).backgroundColor] })"
    )
    pairs = {(_hex(front), _hex(back)) for front, back in colours}
    assert len(pairs) > 8
    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []


def _settle(chromium: Browser) -> None:
    """Wait until what was typed is filtered and the map is drawn."""
    chromium.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 150)"
    )
