"""The drawers of reports: every kind of block in every format, cut where it is long, and no text that acts."""

from __future__ import annotations

import io
import re
from typing import Any, get_args

import pytest
from rich.console import Console
from unit.report.test_report_validation_html import Page

from hosttune.model.validation import CheckResult
from hosttune.report.blocks import (
    MOST,
    AnyBlock,
    Charts,
    Entries,
    Exact,
    Facet,
    Facts,
    Findings,
    Form,
    Grid,
    Lines,
    Maps,
    NameList,
    Picture,
    Plots,
    Report,
    Roster,
    RosterRow,
    Section,
    Suite,
    Table,
    TitledFacts,
)
from hosttune.report.draw.html import page
from hosttune.report.draw.junit import junit
from hosttune.report.draw.md import markdown
from hosttune.report.draw.text import draw
from hosttune.report.heatmaps import HeatCell, Matrix
from hosttune.report.judged import BarRow, Chart
from hosttune.report.outcomes import Mark
from hosttune.report.roofline import Plot, RooflineRow

HOSTILE = '<script>alert(1)</script>|`a`\u202e\x1b[31m[x](http://y) & "'
RESULT = CheckResult(check=HOSTILE, subject=HOSTILE, outcome="fail", expected=HOSTILE, actual=HOSTILE, hint=HOSTILE)
FACTS = (("do", HOSTILE), ("hosts", NameList((HOSTILE,))))
BLOCKS: tuple[AnyBlock, ...] = (
    Lines(heading=HOSTILE, lines=(HOSTILE,), style="warn"),
    Lines(heading="steps", lines=(HOSTILE, "b"), numbered=True),
    Table(heading=HOSTILE, columns=(HOSTILE, "n", "mark", "empty"), rows=((HOSTILE, "1", Mark("fail", "low"), ""),)),
    Facts(heading="facts", parts=((HOSTILE, HOSTILE),)),
    Exact(heading="exact", parts=(f"+{HOSTILE}",), fold=True),
    Entries(
        heading="entries",
        parts=(TitledFacts(title=HOSTILE, mark=Mark("warn", "low"), facts=FACTS),),
    ),
    Roster(
        heading="roster",
        noun="host",
        columns=("n",),
        parts=(
            RosterRow(
                name=HOSTILE, outcome="fail", cells=(HOSTILE,), summary=HOSTILE, entries=(TitledFacts(title=HOSTILE),)
            ),
        ),
        facets=(Facet(label="Answer", values=((HOSTILE,),)),),
    ),
    Grid(heading="grid", columns=(HOSTILE,), parts=("f",)),
    Findings(parts=(RESULT,), suite=Suite(name=HOSTILE, log=HOSTILE), forms=("text", "md", "html", "junit")),
    Charts(
        heading="charts",
        parts=(
            Chart(title=HOSTILE, words="", unit="u", axis="1", bars=(BarRow(name=HOSTILE, figure="1", width=50.0),)),
        ),
        key=(("bar", "figure"),),
    ),
    Plots(
        heading="plots",
        parts=(
            Plot(
                title=HOSTILE,
                lines=(),
                dots=(),
                rows=(RooflineRow(work=HOSTILE, intensity="", measured="", peak="", part=""),),
            ),
        ),
    ),
    Maps(
        heading="maps",
        parts=(
            Matrix(
                title=HOSTILE,
                words="",
                unit="u",
                names=("a",),
                columns=("b",),
                rows=((HeatCell(text=HOSTILE),),),
                best="",
                worst="",
            ),
        ),
    ),
    Picture(heading="picture", draw=lambda: "<svg></svg>", name=HOSTILE, caption=HOSTILE),
)


def report(*blocks: AnyBlock) -> Report:
    forms: tuple[Form, ...] = ("text", "md", "html", "junit")
    sections = tuple(Section(heading=f"s{n}", lead=HOSTILE, blocks=(one,), forms=forms) for n, one in enumerate(blocks))
    return Report(kind="k", verdict="fail", word="FAIL", name=HOSTILE, headline=HOSTILE, blocks=sections)


def text(found: Report) -> str:
    out = io.StringIO()
    draw(found, Console(file=out, width=100, color_system=None))
    return out.getvalue()


def test_here_is_every_kind_of_block() -> None:
    assert {type(block) for block in BLOCKS} == set(get_args(AnyBlock))


def test_no_text_of_a_document_acts_in_any_format() -> None:
    found = report(*BLOCKS)
    printed, marked, shown, suites = text(found), markdown(found), page(found), junit(found)
    for made in (printed, marked, shown, suites):
        assert not {"\u202e", "\x1b"} & set(made)
    assert not re.search(r"(?<!\\)[<`]", "\n".join(line for line in marked.splitlines() if not line.startswith("    ")))
    tags = [tag for tag, _ in Page(shown).tags]
    assert tags.count("script") == 3  # the filter, the map and its letters
    assert tags.count("svg") == 2  # the picture and the roofline
    assert page(found) == shown


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if "text" in block.forms], ids=lambda one: type(one).__name__
)
def test_text_and_markdown_draw_a_block(block: AnyBlock) -> None:
    printed = text(report(block))
    assert "alert(1)" in printed.partition("s0")[2] or isinstance(block, Findings)
    assert all(len(line) <= 100 for line in printed.splitlines())
    assert "alert" in markdown(report(block)).partition("## ")[2]


def test_the_work_of_a_table_grows_with_its_rows_alone() -> None:
    asked = 0

    class Row(tuple[str, ...]):
        def __getitem__(self, place: Any) -> Any:
            nonlocal asked
            asked += 1
            return super().__getitem__(place)

    counts = []
    for many in (100, 200):
        asked = 0
        table = Table(columns=("a", "b", "c"), rows=tuple(Row(("x", "", "y")) for _ in range(many)))
        text(report(table))
        counts.append(asked)
    assert counts[1] <= 2 * counts[0]


def test_a_column_that_has_no_room_goes_below_its_row_with_its_name() -> None:
    wide = tuple(letter * 40 for letter in "abc")
    printed = text(report(Table(heading="t", columns=("one", "two", "three"), rows=(wide,))))
    assert f"\n        three: {wide[2]}\n" in printed


def test_what_is_cut_is_said_and_what_is_whole_is_not_cut() -> None:
    many = tuple(map(str, range(MOST["text"] + 5)))
    assert "and 5 more; -o json has all" in text(report(Lines(lines=many)))
    assert "more" not in text(report(Lines(lines=many, whole=True)))
