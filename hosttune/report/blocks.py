"""A report as blocks: what every report is made of.

A document has one function that returns its `Report`; a format has one drawer that draws any `Report`
(`hosttune.report.draw`). A new document needs no drawer, a new format no document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

from hosttune.model.values import Value
from hosttune.report.heatmaps import Matrix

Style = Literal["plain", "strong", "dim", "warn", "error"]
Form = Literal["text", "md", "html"]
T = TypeVar("T")
EVERY: tuple[Form, ...] = ("text", "md", "html")
# Lines or rows of a block that a form shows; the document (-o json) has all.
MOST = {"text": 20, "md": 40, "html": 300}


class Block(Value, frozen=True, kw_only=True):
    """A part of a report below its heading. `forms`: those that show it."""

    heading: str
    forms: tuple[Form, ...] = EVERY


class Lines(Block, frozen=True, kw_only=True):
    """Sentences. `empty`: said where there is none; without it the block is left out then."""

    lines: tuple[str, ...]
    style: Style = "plain"
    empty: str = ""

    @property
    def parts(self) -> Sequence[str]:
        """What is drawn and may be cut."""
        return self.lines or ((self.empty,) if self.empty else ())


class Table(Block, frozen=True, kw_only=True):
    """Rows, each cell a text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def parts(self) -> Sequence[tuple[str, ...]]:
        """What is drawn and may be cut."""
        return self.rows


class Maps(Block, frozen=True, kw_only=True):
    """Heat maps. `reading`: how to read them."""

    matrices: tuple[Matrix, ...]
    reading: str
    forms: tuple[Form, ...] = ("html",)

    @property
    def parts(self) -> Sequence[Matrix]:
        """What is drawn and may be cut."""
        return self.matrices


AnyBlock = Lines | Table | Maps


class Report(Value, frozen=True, kw_only=True):
    """One report: what it is about (`kind`), its verdict in a line, the occasion, and the blocks, worst first."""

    kind: str
    verdict: str
    headline: str
    occasion: tuple[str, ...] = ()
    stopped: str | None = None
    blocks: tuple[AnyBlock, ...] = ()

    def of(self, form: Form) -> Iterator[AnyBlock]:
        """Yield each block that has something for a form."""
        for block in self.blocks:
            if form in block.forms and block.parts:
                yield block


def cut(parts: Sequence[T], form: Form) -> tuple[Sequence[T], str]:
    """Return the parts that a form shows, and words for the others."""
    left = len(parts) - MOST[form]
    return parts[: MOST[form]], f"and {left} more; -o json has all" if left > 0 else ""
