"""The parts of a picture: plain shapes in groups, and blocks that are placed side by side or below each other.

Coordinates grow to the right and down, in user units. Every value is frozen; moving one returns a new one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from msgspec.structs import replace

from hosttune.model.text import printable
from hosttune.model.values import Value

# --- the width of text ---------------------------------------------------------------------------------------

# The width of text, computed without a font: an upper bound, so that what fits here fits in the reader's browser.
#
# A picture names only generic font families, so the reader's machine chooses the font. The widths are the advances of
# DejaVu Sans and DejaVu Sans Bold (its `hmtx` table, in hundredths of the size), the widest common default of `sans-
# serif`.


_REGULAR = (
    *(32, 41, 46, 84, 64, 96, 78, 28, 40, 40, 50, 84, 32, 37, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 34, 34),
    *(84, 84, 84, 54, 100, 69, 69, 70, 77, 64, 58, 78, 76, 30, 30, 66, 56, 87, 75, 79, 61, 79, 70, 64, 62, 74, 69, 99),
    *(69, 62, 69, 40, 34, 40, 84, 50, 50, 62, 64, 55, 64, 62, 36, 64, 64, 28, 28, 58, 28, 98, 64, 62, 64, 64, 42, 53),
    *(40, 64, 60, 82, 60, 60, 53, 64, 34, 64, 84),
)
_BOLD = (
    *(35, 46, 53, 84, 70, 101, 88, 31, 46, 46, 53, 84, 38, 42, 38, 37, 70, 70, 70, 70, 70, 70, 70, 70, 70, 70, 40, 40),
    *(
        84,
        84,
        84,
        58,
        100,
        78,
        77,
        74,
        83,
        69,
        69,
        83,
        84,
        38,
        38,
        78,
        64,
        100,
        84,
        85,
        74,
        85,
        77,
        73,
        69,
        82,
        78,
        111,
    ),
    *(78, 73, 73, 46, 37, 46, 84, 50, 50, 68, 72, 60, 72, 68, 44, 72, 72, 35, 35, 67, 35, 105, 72, 69, 72, 72, 50, 60),
    *(48, 72, 66, 93, 65, 66, 59, 72, 37, 72, 84),
)
_OURS = {"×": 84, "·": 38, "…": 100, "–": 50}  # the characters beyond ASCII that hosttune itself writes
_OTHER = 105  # any other character: ideographs fill the square, and no common letter is wider
SMALL = 11.0  # the smallest font size of a picture, in user units: smaller text is hard to read on a screen
LONGEST = 300  # characters of one text, because a document may have any number


def clean(text: str) -> str:
    """Return text from a document that can be drawn: printable, of bounded length."""
    cut = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return printable(cut)


def is_plain(text: str) -> bool:
    """Whether the width of every character is known. Other text is drawn with its length set in the picture."""
    return all(" " <= character <= "~" or character in _OURS for character in text)


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of one line of text: an upper bound for common fonts."""
    table = _BOLD if bold else _REGULAR
    return sum(_advance(character, table) for character in text) * size / 100


def _advance(character: str, table: tuple[int, ...]) -> int:
    if " " <= character <= "~":
        return table[ord(character) - 32]
    return 0 if unicodedata.combining(character) else _OURS.get(character, _OTHER)


def fitted(text: str, most: float, size: float, *, bold: bool = False) -> str:
    """Return the text, or as much of it as fits with an ellipsis; empty if not even that fits."""
    text = clean(text)
    if text_width(text, size, bold=bold) <= most:
        return text
    kept, left = 0, most - text_width("…", size, bold=bold)
    for character in text:
        left -= text_width(character, size, bold=bold)
        if left < 0:
            break
        kept += 1
    return text[:kept].rstrip() + "…" if kept else ""


def wrapped(text: str, most: float, size: float, lines: int = 4, *, bold: bool = False) -> tuple[str, ...]:
    """Return the text in at most `lines` lines, broken between words. The last line is cut if the text is longer."""
    done: list[str] = []
    words = clean(text).split()
    while words and len(done) < lines - 1:
        line = words.pop(0)
        while words and text_width(f"{line} {words[0]}", size, bold=bold) <= most:
            line += " " + words.pop(0)
        done.append(fitted(line, most, size, bold=bold))
    if words:
        done.append(fitted(" ".join(words), most, size, bold=bold))
    return tuple(done)


# --- shapes and blocks ---------------------------------------------------------------------------------------


SIGN = 11.0  # side of a sign's square
ASCENT, DESCENT = 0.85, 0.24  # parts of the font size above and below the base line


class Rect(Value, frozen=True, kw_only=True):
    """A box. `style` is a list of classes from the style sheet."""

    x: float
    y: float
    width: float
    height: float
    style: str
    radius: float = 0


class ShapeLine(Value, frozen=True, kw_only=True):
    """A line through points. `thick` is its stroke width."""

    points: tuple[tuple[float, float], ...]
    style: str
    thick: float = 1


class Text(Value, frozen=True, kw_only=True):
    """One line of text on a base line. `width` is its maximum width."""

    x: float
    y: float
    text: str
    size: float
    width: float
    style: str = ""
    bold: bool = False
    anchor: str = "start"

    @property
    def box(self) -> tuple[float, float, float, float]:
        """The left, top, right and bottom edge of the area that the text may cover."""
        left = self.x - self.width * {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return left, self.y - ASCENT * self.size, left + self.width, self.y + DESCENT * self.size


class Sign(Value, frozen=True, kw_only=True):
    """A square sign with the side SIGN: "fail" (a cross), "warn" (a triangle), "unknown" (a question mark).

    "slow" (an hourglass): the slowest link of a path.
    """

    x: float
    y: float
    kind: str


Shape = Rect | ShapeLine | Text | Sign


class ShapeGroup(Value, frozen=True, kw_only=True):
    """Shapes that are one thing: its kind, its name (an address, a node, a guest), and the text of its tooltip.

    `data` has (name, text) pairs for programs: the attributes `data-NAME` of the SVG document.
    """

    kind: str
    shapes: tuple[Shape, ...]
    name: str = ""
    title: str = ""
    data: tuple[tuple[str, str], ...] = ()


class ShapeBlock(Value, frozen=True, kw_only=True):
    """Groups laid out from (0, 0), and the space that they take. At the heights `cuts` a page may end."""

    width: float
    height: float
    groups: tuple[ShapeGroup, ...] = ()
    cuts: tuple[float, ...] = ()


def label(
    x: float,
    y: float,
    text: str,
    size: float,
    *,
    most: float,
    style: str = "",
    bold: bool = False,
    anchor: str = "start",
) -> Text:
    """Return a text cut to `most` units, with its top at `y`."""
    kept = fitted(text, most, size, bold=bold)
    return Text(
        x=x,
        y=y + ASCENT * size,
        text=kept,
        size=size,
        width=text_width(kept, size, bold=bold),
        style=style,
        bold=bold,
        anchor=anchor,
    )


def moved(shape: Shape, dx: float, dy: float) -> Shape:
    """Return the same shape, moved."""
    if isinstance(shape, ShapeLine):
        return replace(shape, points=tuple((x + dx, y + dy) for x, y in shape.points))
    return replace(shape, x=shape.x + dx, y=shape.y + dy)


def shifted(block: ShapeBlock, dx: float, dy: float) -> tuple[ShapeGroup, ...]:
    """Return a block's groups, moved."""
    return tuple(replace(group, shapes=tuple(moved(shape, dx, dy) for shape in group.shapes)) for group in block.groups)


def stacked(blocks: Iterable[ShapeBlock], gap: float, *, top: float = 0, left: float = 0) -> ShapeBlock:
    """Return blocks below each other. Without blocks, return an empty block of height `top`."""
    groups: list[ShapeGroup] = []
    y, width = top, 0.0
    for block in blocks:
        groups += shifted(block, left, y)
        y += block.height + gap
        width = max(width, left + block.width)
    return ShapeBlock(width=width, height=max(top, y - gap), groups=tuple(groups))


def flowed(blocks: Iterable[ShapeBlock], most: float, gap: float) -> ShapeBlock:
    """Return blocks side by side, in as many rows as `most` units of width need."""
    groups: list[ShapeGroup] = []
    cuts: list[float] = []
    x = y = row = width = 0.0
    for block in blocks:
        if x and x + block.width > most:
            x, y, row = 0.0, y + row + gap, 0.0
            cuts.append(y - gap / 2)
        groups += shifted(block, x, y)
        width = max(width, x + block.width)
        x, row = x + block.width + gap, max(row, block.height)
    return ShapeBlock(width=width, height=y + row, groups=tuple(groups), cuts=tuple(cuts))
