"""The page of `fleet pairs`: faults are marked in the maps, names are short, and a browser draws it readable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, browser, needs_browser
from msgspec.structs import replace
from sweeps import sample
from system.test_report_validation_browser import _hex
from unit.cluster.test_pairs_blame import made
from unit.report.test_report_validation_html import contrast

from hosttune.cluster.pairs.blame import blame
from hosttune.cluster.pairs.judging import judged, rail_figures, verdict_of
from hosttune.model.pairs import Pair, PairHost, PairsReport
from hosttune.report.draw.html import page as html_of
from hosttune.report.pairs import maps, pairs_report

DOMAIN = ".dc1.example.net"


def report(hosts: int, rails: int) -> PairsReport:
    """h5 is slow, so is port r1 of h2; nobody gets into h6; of h7 nothing is known."""
    slow = {(2, 1): 0.31, **{(5, rail): 0.52 for rail in range(rails)}}
    found = [_spoilt(pair) for pair in made(hosts, rails, slow)]
    pairs = tuple(
        replace(pair, sender=pair.sender + DOMAIN, receiver=pair.receiver + DOMAIN)
        for pair in judged(found, floor=0.9, against=("rate", "median"))
    )
    return PairsReport(
        run="20261123T223304-f3b907b4", tool="rdma", verdict=verdict_of(pairs, incomplete=False, limited=False),
        rounds=hosts - 1, hosts=tuple(PairHost(host=f"h{number}{DOMAIN}") for number in range(hosts)),
        rails=rail_figures(pairs), faults=blame(pairs), pairs=pairs,
    )  # fmt: skip


def _spoilt(pair: Pair) -> Pair:
    if "h7" in (pair.sender, pair.receiver):
        return replace(pair, outcome="host-lost", gbps=None, why="<b>h7</b>: died")
    if pair.receiver == "h6":
        return replace(pair, outcome="one-way", gbps=None, why="only back")
    return pair


def test_maps_mark_who_is_at_fault_on_which_rail() -> None:
    first, second = maps(report(8, 2))
    assert first.names == first.columns == ("h0", "h1", "h2", "h3", "h4", "✗ h5", "✗ h6", "h7")
    assert second.names == ("h0", "h1", "✗ h2", "h3", "h4", "✗ h5", "✗ h6", "h7")
    texts = [cell.text for row in first.rows for cell in row]
    assert texts.count("") == 8 * 8 - 28  # a pair is measured in one direction
    assert texts.count("?") == 7
    into = [pair for pair in report(8, 2).pairs if pair.receiver == f"h6{DOMAIN}" and pair.rail == "r0"]
    assert texts.count("cut") == sum(pair.state == "cut" for pair in into) > 0


def test_what_hosts_say_is_text_on_the_page() -> None:
    page = html_of(pairs_report(report(8, 2)))
    assert "&lt;b&gt;h7" in page
    assert "<b>h7" not in page
    assert "<script" not in page
    assert re.search(r'<td class="no low" title="h\d\S+ to h6\.dc1\.example\.net: one-way: only back">✗cut', page)
    assert "undefined" not in page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@needs_browser
def test_the_page_is_readable_in_a_browser(chromium: Browser, tmp_path: Path) -> None:
    """32 hosts with 8 rails: no page scrolls sideways, a map does; names stay in sight; every cell has contrast."""
    path = tmp_path / "pairs.html"
    path.write_text(html_of(pairs_report(report(32, 8))))
    for width, dark in sample("pages of pairs", [(1280, False), (390, True), (1280, True), (768, False)], 2):
        chromium.open(path, width=width, dark=dark)
        assert chromium.run("document.documentElement.scrollWidth") <= width
        assert chromium.complaints() == []
        assert chromium.run("document.querySelectorAll('table.pairs').length") == 8
        told = chromium.run(
            "Array.from(new Set(Array.from(document.querySelectorAll('.pairs td, .pairs th')).map(one => {"
            "let back = one;"
            "while (getComputedStyle(back).backgroundColor === 'rgba(0, 0, 0, 0)') back = back.parentElement;"
            "return getComputedStyle(one).color + '|' + getComputedStyle(back).backgroundColor})))"
        )
        colours = [tuple(map(_hex, one.split("|"))) for one in told]
        assert len(colours) >= 4
        assert [pair for pair in colours if contrast(*pair) < 4.5] == []
        chromium.run("document.querySelector('.scroll').scrollLeft = 9999")
        name = "document.querySelector('.pairs tbody th').getBoundingClientRect()"
        frame = "document.querySelector('.scroll').getBoundingClientRect()"
        assert chromium.run(f"{name}.left >= {frame}.left - 1 && {name}.right <= {frame}.right")
    chromium.open(path, width=1280)
    one = "document.querySelector('.scroll')"
    assert chromium.run(f"{one}.scrollWidth <= {one}.clientWidth")  # 32 hosts fit on a screen
