"""The fleet's page: what it holds without any script, what it may not hold, size, colours; and hosts' own pages."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import random
import re
from pathlib import Path

import pytest
from fleetresults import (
    HOSTILE_NAMES,
    RUN,
    fleet,
    host_page,
    html,
    unwrapped,
    validation,
    write_discovered,
    write_lost,
    write_validation,
)
from sweeps import examples
from unit.report.test_fleet_report import ASKED, stopped_run
from unit.report.test_report_validation_html import Page, contrast

from hosttune.errors import BadInput
from hosttune.fleet.overview import report_of
from hosttune.fleet.pages import with_pages
from hosttune.model.fleet import FleetReport
from hosttune.model.text import printable
from hosttune.model.validation import OUTCOMES
from hosttune.report.draw.html import AT_ONCE
from hosttune.report.fleet_groups import answer_of, hosts_worst_first

ROOT = Path(__file__).parents[3]
PLACE = ROOT / "templates" / "report"
LARGE = examples(300, 1000)  # hosts


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FleetReport]:
    folder = tmp_path_factory.mktemp("fleets")
    small, hostile, large = folder / "small", folder / "hostile", folder / "large"
    found = {"small": report_of(str(small), fleet(small, 8), ASKED)}
    found["hostile"] = with_pages(
        report_of(str(hostile), fleet(hostile, 20, hostile=True), ASKED), str(hostile), host_page
    )
    found["stopped"] = stopped_run(folder / "stopped")
    found["large"] = report_of(str(large), fleet(large, LARGE, level=0, discovered=False), ASKED)
    found["none"] = FleetReport(verb="validate")
    return found


@pytest.fixture(scope="module")
def pages(reports: dict[str, FleetReport]) -> dict[str, str]:
    return {name: html(report) for name, report in reports.items()}


NAMES = ("small", "hostile", "stopped", "large", "none")


def data_of(page: str) -> dict[str, list[object]]:
    (text,) = re.findall(r'<script type="application/json" id="grid">(.*?)</script>', page, re.DOTALL)
    found: dict[str, list[object]] = json.loads(text)
    return found


# --- what it says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_host_has_a_row_without_any_script(
    name: str, reports: dict[str, FleetReport], pages: dict[str, str]
) -> None:
    page = Page(pages[name])
    rows = [attributes for tag, attributes in page.tags if tag == "tbody" and attributes.get("role") == "rowgroup"]
    assert len(rows) == len(reports[name].hosts)
    assert not any("hidden" in row for row in rows)
    text = page.text
    assert [line.host for line in reports[name].hosts if " ".join(printable(line.host).split()) not in text] == []


def test_the_verdict_and_why_the_run_stopped_come_first(pages: dict[str, str]) -> None:
    text = Page(pages["stopped"]).text
    order = ["FAIL", "stopped: the gate of wave 2 is shut", "What to do next", "Waves", "Hosts", "Checks"]
    places = [text.index(words, 1 if n else 0) for n, words in enumerate(order[:3])]
    assert places == sorted(places)
    assert "wave 2, 3 hosts ✗ stopped" in text
    assert "wave 3, 2 hosts – not reached" in text
    assert "gpu-3: apply: unreachable" in text


def test_a_row_unfolds_what_is_wrong_with_its_host(pages: dict[str, str]) -> None:
    rows = re.findall(r'<tbody role="rowgroup".*?</tbody>', pages["small"], re.DOTALL)
    (row,) = [row for row in rows if "gpu-3.dc1" in row]
    text = Page(row).text
    assert "16 GT/s x16, both ends can do 32 GT/s" in text
    assert "Expected as pcie-link requires" in text
    assert "reseat the board of" in text


def test_the_same_failure_is_one_line_with_all_its_hosts(pages: dict[str, str]) -> None:
    steps = pages["large"][: pages["large"].index('<section id="checklist"')]
    assert unwrapped(steps).count("nvidia-smi --gpu-reset") == 1
    assert steps.count(">not reached</span>") == 2  # refused, and another host key


def test_the_checks_add_up_to_the_hosts(reports: dict[str, FleetReport], pages: dict[str, str]) -> None:
    (table,) = re.findall(
        r'<caption class="out">Hosts by check and outcome</caption>.*?</table>', pages["large"], re.DOTALL
    )
    rows = re.findall(r"<tr><th scope=\"row\"[^>]*>(.*?)</th>(.*?)</tr>", table)
    assert len(rows) > 60
    for _, cells in rows:
        numbers = [int(text) for text in re.findall(r">([0-9]+)</td>", cells)]
        assert sum(numbers) == len(reports["large"].hosts)


def test_no_cell_of_a_host_without_an_answer_is_empty(reports: dict[str, FleetReport], pages: dict[str, str]) -> None:
    data = data_of(pages["large"])
    lines = hosts_worst_first(reports["large"].hosts)
    lost = [n for n, line in enumerate(lines) if answer_of(line) not in ("ok", "no")]
    assert len(lost) > LARGE // 17
    assert {letter for n in lost for letter in str(data["rows"][n])} == {"x", "u"}
    assert all("x" not in str(data["rows"][n]) for n in range(len(data["rows"])) if n not in lost)


def test_a_page_of_no_hosts_says_so(pages: dict[str, str]) -> None:
    text = Page(pages["none"]).text
    assert "No host was asked" in text
    assert "PASS" not in text.replace("PASS.", "")


def test_outliers_and_medians_have_their_rule_beside_them(pages: dict[str, str]) -> None:
    text = Page(pages["small"]).text
    assert "Iglewicz and Hoaglin" in text
    assert "Medians of NVIDIA H200" in text


# --- what it may not do --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_page_refers_to_nothing_but_hosts_pages_beside_it(name: str, pages: dict[str, str]) -> None:
    loading = ("src", "srcset", "data", "action", "poster", "background", "ping", "cite", "xlink:href", "formaction")
    for tag, attributes in Page(pages[name]).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "video", "audio", "source", "svg"), tag
        assert not set(loading) & set(attributes), (tag, attributes)
        href = attributes.get("href") or "#"
        assert re.fullmatch(r"#[a-z0-9-]*|(?!\.)[\w.%-]+/validate\.html", href, re.ASCII), href
        assert not [key for key in attributes if key.startswith("on")], (tag, attributes)
    style = re.findall(r"<style>(.*?)</style>", pages[name], re.DOTALL)[0]
    assert not re.search(r"url\(|@import|//", style)


@pytest.mark.parametrize("name", NAMES)
def test_only_our_script_and_style_may_be_used(name: str, pages: dict[str, str]) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", pages[name], re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", pages[name], re.DOTALL)
    assert scripts == [(PLACE / file).read_text() for file in ("script.js", "map.js")][: 2 if name != "none" else 0]
    assert [text.strip() for text in styles] == [(PLACE / "style.css").read_text().strip()]
    policy = next(attributes["content"] for tag, attributes in Page(pages[name]).tags if "http-equiv" in attributes)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "script-src 'unsafe" not in policy
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes


def test_hostile_names_stay_text(pages: dict[str, str]) -> None:
    page = Page(pages["hostile"])
    assert [tag for tag, _ in page.tags].count("script") == 3  # the data and ours
    assert "img" not in [tag for tag, _ in page.tags]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", pages["hostile"])
    assert [name for name in HOSTILE_NAMES if " ".join(printable(name).split()) not in page.text] == []


def test_links_lead_to_files_that_are_there(reports: dict[str, FleetReport], pages: dict[str, str]) -> None:
    from urllib.parse import unquote

    hrefs = [href for _, one in Page(pages["hostile"]).tags if (href := one.get("href") or "").endswith(".html")]
    linked = [line.page for line in reports["hostile"].hosts if line.page]
    assert len(linked) > 2
    assert sorted(map(unquote, hrefs)) == sorted(linked)


# --- size ----------------------------------------------------------------------------------------------------


def test_a_host_adds_little(pages: dict[str, str]) -> None:
    assert len(pages["large"].encode()) < 1_000_000 + 3_000 * LARGE


def test_a_browser_with_scripts_first_lays_out_few_hosts(pages: dict[str, str]) -> None:
    """The others are text to it until the page is shown; to a browser without scripts they are a table as well."""
    at_once, *later = re.split("</?noscript>", pages["large"])
    assert at_once.count("<tbody role=") == AT_ONCE
    assert sum(part.count("<tbody role=") for part in later) == LARGE - AT_ONCE
    assert sum(part.count("<") for part in (at_once, *later[1::2])) < 10_000


def test_1000_hosts_of_which_everything_fails_have_a_page_of_at_most_10_mb(tmp_path: Path) -> None:
    """Every check of every host fails, each with other words: nothing can be told once for many."""
    from hosttune.model.fleet import HostLine
    from hosttune.model.validation import CheckResult

    def bad(host: int, n: int) -> CheckResult:
        words = f"{host} {'x' * 150} {chr(97 + host % 26)}"
        return CheckResult(check=f"check-{n}", subject="host", outcome="fail", expected=words, actual=words, hint=words)

    lines = tuple(
        HostLine(
            host=f"gpu-{host}", folder=f"gpu-{host}", verdict="fail", told=tuple(bad(host, n) for n in range(48)),
            checks={f"check-{n}": "fail" for n in range(60)}, counts={"fail": 60}, untold=12,
        )
        for host in range(1000)
    )  # fmt: skip
    page = html(FleetReport(verb="validate", verdict="fail", hosts=lines))
    assert len(page.encode()) <= 10_000_000
    assert page.count("<") < 2 * 200_000  # opening and closing tags


# --- accessible ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_unique_and_labels_lead_somewhere(name: str, pages: dict[str, str]) -> None:
    tags = Page(pages[name]).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in tags:
        for key in ("aria-labelledby", "aria-describedby", "for"):
            assert set((attributes.get(key) or "").split()) <= set(ids)
        if (attributes.get("href") or "").startswith("#"):
            assert (attributes["href"] or "")[1:] in ids


@pytest.mark.parametrize("name", NAMES)
def test_tables_have_a_caption_scoped_headers_and_their_roles(name: str, pages: dict[str, str]) -> None:
    tags = Page(pages[name]).tags
    assert [tag for tag, _ in tags].count("table") == [tag for tag, _ in tags].count("caption")
    assert all("scope" in attributes for tag, attributes in tags if tag == "th")
    inside = itertools.takewhile(
        lambda one: one[0] != "section",
        itertools.dropwhile(lambda one: one[1].get("id") != "list", tags),
    )
    assert all(
        "role" in attributes for tag, attributes in inside if tag in ("table", "thead", "tbody", "tr", "td", "th")
    )


def palettes() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    blocks = re.findall(r":root \{(.*?)\}", (PLACE / "style.css").read_text(), re.DOTALL)
    blocks = [block for block in blocks if "#" in block and "--page: #ffffff" not in block]
    for n in range(0, len(blocks), 2):
        light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks[n : n + 2])
        found["light"] = found.get("light", {}) | light
        found["dark"] = found.get("dark", {}) | light | dark
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_maps_colours_differ_in_lightness_alone(scheme: str) -> None:
    """Whoever sees no hues, or prints in grey, tells good from bad, and the worse from the less bad."""
    colours = palettes()[scheme]
    well = [colours[f"m-{name}"] for name in ("pass", "skip", "none")]
    for bad in ("fail", "unknown", "warn"):
        assert min(contrast(colours[f"m-{bad}"], one) for one in well) >= 1.7, bad
    assert contrast(colours["m-fail"], colours["m-unknown"]) >= 1.7
    assert contrast(colours["m-unknown"], colours["m-warn"]) >= 1.2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_maps_signs_can_be_read(scheme: str) -> None:
    colours = palettes()[scheme]
    for sign, ground in (("on-dark", "fail"), ("on-dark", "unknown"), ("ink", "warn"), ("on-light", "pass")):
        assert contrast(colours[f"m-{sign}"], colours[f"m-{ground}"]) >= 4.5, (sign, ground)
    assert contrast(colours["muted"], colours["m-skip"]) >= 4.5


def test_the_key_of_the_map_has_a_sign_for_every_colour(pages: dict[str, str]) -> None:
    (key,) = re.findall(r'<ul class="key">.*?</ul>', pages["small"], re.DOTALL)
    assert re.findall(r'class="k k-(\w+)"', key) == [*OUTCOMES, "lost", "none"]


# --- hosts' own pages ----------------------------------------------------------------------------------------


def measured(folder: Path) -> FleetReport:
    """One host that is well, one with faults, one that was lost."""
    draw = random.Random(1)
    for name, faults in (("well", 0), ("bad", 3)):
        write_discovered(folder, name)
        write_validation(folder, name, validation(name, draw, faults=faults, level=0))
    write_lost(folder, "lost", "slow", "no answer within 120 s")
    return report_of(str(folder), ["well", "bad", "lost"], ASKED)


def test_hosts_that_are_not_well_get_pages(tmp_path: Path) -> None:
    found = with_pages(measured(tmp_path), str(tmp_path), host_page)
    assert [line.page for line in found.hosts] == [None, "bad/validate.html", None]
    text = Page((tmp_path / "bad" / "validate.html").read_text()).text
    assert "FAIL" in text
    assert "The host" in text  # the picture
    assert not (tmp_path / "well" / "validate.html").exists()


def test_a_page_is_written_again_only_when_its_documents_are_newer(tmp_path: Path) -> None:
    report = measured(tmp_path)
    page = tmp_path / "bad" / "validate.html"
    with_pages(report, str(tmp_path), host_page)
    made = page.stat().st_mtime_ns
    os.utime(tmp_path / "bad" / "validate.json", ns=(made - 10**9, made - 10**9))
    os.utime(tmp_path / "bad" / "discover.json", ns=(made - 10**9, made - 10**9))
    page.write_text("as it was")
    with_pages(report, str(tmp_path), host_page)
    assert page.read_text() == "as it was"
    os.utime(tmp_path / "bad" / "validate.json", ns=(made + 10**10, made + 10**10))
    with_pages(report, str(tmp_path), host_page)
    assert "FAIL" in page.read_text()


def test_a_page_of_an_earlier_validation_does_not_stay(tmp_path: Path) -> None:
    with_pages(measured(tmp_path), str(tmp_path), host_page)
    page = tmp_path / "bad" / "validate.html"
    later = page.stat().st_mtime_ns + 10**9
    write_lost(tmp_path, "bad", "unreachable", "timed out")
    os.utime(tmp_path / "bad" / "validate.json", ns=(later, later))
    found = with_pages(report_of(str(tmp_path), ["bad"], ASKED), str(tmp_path), host_page)
    assert found.hosts[0].page is None
    assert not page.exists()


def test_a_host_document_that_does_not_read_costs_the_picture_alone(tmp_path: Path) -> None:
    report = measured(tmp_path)
    (tmp_path / "bad" / "discover.json").write_text("{")
    with_pages(report, str(tmp_path), host_page)
    assert "<svg" not in (tmp_path / "bad" / "validate.html").read_text()


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    report = measured(tmp_path)
    (tmp_path / "bad" / "validate.html").mkdir()
    with pytest.raises(BadInput, match=r"bad/validate\.html"):
        with_pages(report, str(tmp_path), host_page)
    assert not list((tmp_path / "bad").glob("*.tmp"))


def test_verbs_without_a_validation_have_no_pages(tmp_path: Path) -> None:
    report = FleetReport(verb="discover", run=RUN)
    assert with_pages(report, str(tmp_path), host_page) is report
