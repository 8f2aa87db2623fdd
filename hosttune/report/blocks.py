"""A report as blocks: what every report is made of.

A document has one function that returns its `Report`; a format has one drawer that draws any `Report`
(`hosttune.report.draw`). A new document needs no drawer, a new format no document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from hosttune.model.listing import some
from hosttune.model.validation import CheckResult, worst_first
from hosttune.model.values import Value, grouped
from hosttune.report.heatmaps import Matrix
from hosttune.report.judged import Chart
from hosttune.report.outcomes import Group, Mark, folded, groups
from hosttune.report.roofline import Plot

Style = Literal["plain", "strong", "dim", "warn", "error"]
Form = Literal["text", "md", "html", "junit"]
T = TypeVar("T")
CHECKLIST = "Checklist"  # the heading of the section of findings, to which a page leads
EVERY: tuple[Form, ...] = ("text", "md", "html")
# Lines or rows of a block that a form shows; the document (-o json) has all.
MOST = {"text": 20, "md": 40, "html": 300}
NAMED = {"text": 8, "md": 12, "html": 24}  # names of a fact before "and N more"
Cell = str | Mark
# "x": its member did not answer; "-": it answered, and this was not asked there.
GRID = {"fail": "f", "unknown": "u", "warn": "w", "pass": "p", "skip": "s", "lost": "x", "none": "-"}


class Block(Value, frozen=True, kw_only=True):
    """A part of a report below its heading. `forms`: those that show it.

    `fold`: a page shows the heading, and the rest on request. `whole`: no form cuts it.
    """

    heading: str = ""
    forms: tuple[Form, ...] = EVERY
    fold: bool = False
    whole: bool = False


class Lines(Block, frozen=True, kw_only=True):
    """Sentences. `empty`: said where there is none; without it the block is left out then."""

    lines: tuple[str, ...]
    style: Style = "plain"
    empty: str = ""
    numbered: bool = False

    @property
    def parts(self) -> Sequence[str]:
        """What is drawn and may be cut."""
        return self.lines or ((self.empty,) if self.empty else ())


class Table(Block, frozen=True, kw_only=True):
    """Rows of cells. `styles`: of columns by name: "num", "mono", "wrap"."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    styles: Mapping[str, str] = {}

    @property
    def parts(self) -> Sequence[tuple[Cell, ...]]:
        """What is drawn and may be cut."""
        return self.rows

    @property
    def used(self) -> tuple[int, ...]:
        """The numbers of the columns that have any cell."""
        return tuple(n for n in range(len(self.columns)) if any(n < len(row) and row[n] for row in self.rows))


class Facts(Block, frozen=True, kw_only=True):
    """Names with their values."""

    parts: tuple[tuple[str, str], ...]


class Exact(Block, frozen=True, kw_only=True):
    """Lines byte for byte, such as a difference of two files: never wrapped."""

    parts: tuple[str, ...]
    whole: bool = True


class NameList(Value, frozen=True):
    """Names, of which a form shows as many as it has room for. `lead`: words before them."""

    names: tuple[str, ...]
    lead: str = ""


class TitledFacts(Value, frozen=True, kw_only=True):
    """Something with a title, and facts about it: (label, text). `strong`: the label that matters most."""

    title: str
    mark: Mark | None = None
    note: str = ""
    facts: tuple[tuple[str, str | NameList], ...] = ()
    strong: str = ""


class Entries(Block, frozen=True, kw_only=True):
    """Entries, the first of which matters most. `first`: how many a page shows without a request."""

    parts: tuple[TitledFacts, ...]
    numbered: bool = True
    first: int = 300


class Suite(Value, frozen=True, kw_only=True):
    """What JUnit says of results besides them. `classname`: of all cases, which then have their check's name; without
    it each has the class of its check and the subject's name.
    """

    name: str
    classname: str = ""
    attributes: Mapping[str, str] = {}
    properties: Mapping[str, str] = {}
    log: str = ""


class Findings(Block, frozen=True, kw_only=True):
    """Judged results. A page filters them; `labels`: of subjects, for people.

    `each` False: what is unknown, or does not apply, in several checks for one reason is told once.
    """

    parts: tuple[CheckResult, ...]
    labels: Mapping[str, str] = {}
    suite: Suite | None = None
    each: bool = False
    whole: bool = True

    def groups(self, members: Iterable[CheckResult]) -> tuple[Group, ...]:
        """Return results that say the same as one."""
        return groups(members) if self.each else folded(groups(members))

    @property
    def sections(self) -> tuple[tuple[str, tuple[CheckResult, ...]], ...]:
        """The results of each outcome that any has, worst first."""
        sections = grouped((result.standing, result) for result in worst_first(self.parts))
        return tuple((outcome, tuple(members)) for outcome, members in sections.items())

    @property
    def subjects(self) -> tuple[tuple[str, str], ...]:
        """Each subject with its words; the host first, then the others by name."""
        names = sorted({result.subject for result in self.parts}, key=lambda name: (name != "host", name))
        return tuple((name, self.labels.get(name, name)) for name in names)


class Facet(Value, frozen=True, kw_only=True):
    """What a page filters members by: the values of each, in their order."""

    label: str
    values: tuple[tuple[str, ...], ...]

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Each value that any member has, with how many have it."""
        counted = Counter(value for values in self.values for value in values)
        return tuple((value, f"{value} ({counted[value]})") for value in sorted(counted))


class RosterRow(Value, frozen=True, kw_only=True):
    """A row of a roster. `cells`: of its columns; what is below the summary is shown on request."""

    name: str
    outcome: str
    note: str = ""
    cells: tuple[str, ...]
    summary: str
    entries: tuple[TitledFacts, ...] = ()
    notes: tuple[str, ...] = ()
    page: str | None = None


class Roster(Block, frozen=True, kw_only=True):
    """Many of a kind (`noun`), worst first, which a page filters and sorts. `styles`: of columns by name: "num"."""

    noun: str
    columns: tuple[str, ...]
    styles: Mapping[str, str] = {}
    parts: tuple[RosterRow, ...]
    facets: tuple[Facet, ...] = ()
    forms: tuple[Form, ...] = ("html",)
    whole: bool = True


class Grid(Block, frozen=True, kw_only=True):
    """A map of a roster's members by `columns`: a letter of GRID for each, rows in the roster's order."""

    columns: tuple[str, ...]
    parts: tuple[str, ...]
    forms: tuple[Form, ...] = ("html",)
    whole: bool = True


class Charts(Block, frozen=True, kw_only=True):
    """Bars. `key`: what its marks mean, (mark, words)."""

    parts: tuple[Chart, ...]
    key: tuple[tuple[str, str], ...]
    forms: tuple[Form, ...] = ("html",)


class Plots(Block, frozen=True, kw_only=True):
    """Rooflines."""

    parts: tuple[Plot, ...]
    forms: tuple[Form, ...] = ("html",)


class Maps(Block, frozen=True, kw_only=True):
    """Heat maps. `reading`: how to read them."""

    parts: tuple[Matrix, ...]
    reading: str = ""
    forms: tuple[Form, ...] = ("html",)


class Picture(Block, frozen=True, kw_only=True):
    """A drawing: `draw` returns its markup, which hosttune made and which is used unchanged."""

    draw: Callable[[], str]
    name: str
    caption: str
    forms: tuple[Form, ...] = ("html",)
    parts: tuple[()] = ()


AnyBlock = Lines | Table | Facts | Exact | Entries | Findings | Roster | Grid | Charts | Plots | Maps | Picture


class Section(Value, frozen=True, kw_only=True):
    """Blocks below one heading. `lead`: how to read them. `forms`: those that show it, and only these compute it."""

    heading: str
    lead: str = ""
    blocks: tuple[AnyBlock, ...] | Callable[[], tuple[AnyBlock, ...]]
    forms: tuple[Form, ...] = EVERY


class Report(Value, frozen=True, kw_only=True):
    """One report: what it is about (`kind`, `name`), its verdict in a `word` and a line, what that means, the occasion,
    and the blocks, worst first. A block outside a section is a section with its own heading.

    `tiles`: results by outcome: (outcome, number, words). `command`: whose report it is. `data`: JSON documents that a
    page holds for programs, by name. `after`: what follows, with the next command: last in a terminal, first on a page.
    """

    kind: str
    command: str = ""
    verdict: str = ""
    word: str = ""
    headline: str
    name: str = ""
    meaning: str = ""
    occasion: tuple[str, ...] = ()
    stopped: str | None = None
    tiles: tuple[tuple[str, int, str], ...] = ()
    blocks: tuple[Section | AnyBlock, ...] = ()
    data: tuple[tuple[str, str], ...] = ()
    after: str = ""

    @property
    def title(self) -> str:
        """The verdict, what it is about, and why, in a line."""
        about = f"{self.name}: {self.headline}" if self.name else self.headline
        return f"{self.word}  {about}" if self.word else about

    def sections(self, form: Form) -> Iterator[ShownSection]:
        """Yield the sections that have something for a form."""
        for block in self.blocks:
            section = (
                block
                if isinstance(block, Section)
                else Section(heading=block.heading, blocks=(block,), forms=block.forms)
            )
            if form in section.forms:
                blocks = section.blocks() if callable(section.blocks) else section.blocks
                whole = form == "junit"  # a suite without a case is one
                parts = tuple(
                    block
                    for block in blocks
                    if form in block.forms and (block.parts or whole or isinstance(block, Picture))
                )
                if parts:
                    yield ShownSection(section.heading, section.lead, parts)


class ShownSection(NamedTuple):
    """A section as a form shows it."""

    heading: str
    lead: str
    blocks: tuple[AnyBlock, ...]


def cut(block: AnyBlock, parts: Sequence[T], form: Form) -> tuple[Sequence[T], str]:
    """Return the parts of a block that a form shows, and words for the others."""
    most = len(parts) if block.whole else MOST[form]
    return parts[:most], f"and {len(parts) - most} more; -o json has all" if len(parts) > most else ""


def told(text: str | NameList, form: Form) -> str:
    """Return a fact as a form shows it."""
    return text if isinstance(text, str) else text.lead + some(text.names, NAMED[form])
