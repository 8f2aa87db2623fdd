"""The parts of a picture: plain shapes in groups, and blocks that are placed side by side or below each other.

Coordinates grow to the right and down, in user units. Every value is frozen; moving one returns a new one.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from hosttune.model.values import Value
from hosttune.report.picture.metrics import fitted, text_width

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


class Line(Value, frozen=True, kw_only=True):
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


Shape = Rect | Line | Text | Sign


class Group(Value, frozen=True, kw_only=True):
    """Shapes that are one thing: its kind, its name (an address, a node, a guest), and the text of its tooltip.

    `data` has (name, text) pairs for programs: the attributes `data-NAME` of the SVG document.
    """

    kind: str
    shapes: tuple[Shape, ...]
    name: str = ""
    title: str = ""
    data: tuple[tuple[str, str], ...] = ()


class Block(Value, frozen=True, kw_only=True):
    """Groups laid out from (0, 0), and the space that they take. At the heights `cuts` a page may end."""

    width: float
    height: float
    groups: tuple[Group, ...] = ()
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
    if isinstance(shape, Line):
        return replace(shape, points=tuple((x + dx, y + dy) for x, y in shape.points))
    return replace(shape, x=shape.x + dx, y=shape.y + dy)


def shifted(block: Block, dx: float, dy: float) -> tuple[Group, ...]:
    """Return a block's groups, moved."""
    return tuple(replace(group, shapes=tuple(moved(shape, dx, dy) for shape in group.shapes)) for group in block.groups)


def stacked(blocks: Iterable[Block], gap: float, *, top: float = 0, left: float = 0) -> Block:
    """Return blocks below each other. Without blocks, return an empty block of height `top`."""
    groups: list[Group] = []
    y, width = top, 0.0
    for block in blocks:
        groups += shifted(block, left, y)
        y += block.height + gap
        width = max(width, left + block.width)
    return Block(width=width, height=max(top, y - gap), groups=tuple(groups))


def flowed(blocks: Iterable[Block], most: float, gap: float) -> Block:
    """Return blocks side by side, in as many rows as `most` units of width need."""
    groups: list[Group] = []
    cuts: list[float] = []
    x = y = row = width = 0.0
    for block in blocks:
        if x and x + block.width > most:
            x, y, row = 0.0, y + row + gap, 0.0
            cuts.append(y - gap / 2)
        groups += shifted(block, x, y)
        width = max(width, x + block.width)
        x, row = x + block.width + gap, max(row, block.height)
    return Block(width=width, height=y + row, groups=tuple(groups), cuts=tuple(cuts))
