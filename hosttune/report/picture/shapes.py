"""What a picture is made of: plain shapes in groups, and blocks that are put beside and below each other.

Coordinates grow to the right and down, in user units. Every value is frozen; moving gives a new one.
"""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.model.values import Value
from hosttune.report.picture.metrics import fitted, text_width

SIGN = 11.0  # side of a sign's square
ASCENT, DESCENT = 0.85, 0.24  # parts of the size above and below the base line


class Rect(Value, frozen=True, kw_only=True):
    """A box. `style` is a list of classes that the style sheet knows."""

    x: float
    y: float
    width: float
    height: float
    style: str
    radius: float = 0


class Line(Value, frozen=True, kw_only=True):
    """A line through points; `thick` is its stroke's width."""

    points: tuple[tuple[float, float], ...]
    style: str
    thick: float = 1


class Text(Value, frozen=True, kw_only=True):
    """One line of text on a base line; `width` is what it may take at most."""

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
        """Left, top, right and bottom of what the text may cover."""
        left = self.x - self.width * {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return left, self.y - ASCENT * self.size, left + self.width, self.y + DESCENT * self.size


class Sign(Value, frozen=True, kw_only=True):
    """A sign of `SIGN` square: "fail" (a cross), "warn" (a triangle), "unknown" (a question mark)."""

    x: float
    y: float
    kind: str


Shape = Rect | Line | Text | Sign


class Group(Value, frozen=True, kw_only=True):
    """Shapes that are one thing: its kind, its name (an address, a node, a guest), and what its tooltip says."""

    kind: str
    shapes: tuple[Shape, ...]
    name: str = ""
    title: str = ""


class Block(Value, frozen=True, kw_only=True):
    """Groups laid out from (0, 0), and the room that they take."""

    width: float
    height: float
    groups: tuple[Group, ...] = ()


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
    """A text cut to `most` units, its top at `y`."""
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
    """The same shape elsewhere."""
    if isinstance(shape, Rect):
        return Rect(
            x=shape.x + dx,
            y=shape.y + dy,
            width=shape.width,
            height=shape.height,
            style=shape.style,
            radius=shape.radius,
        )
    if isinstance(shape, Line):
        points = tuple((x + dx, y + dy) for x, y in shape.points)
        return Line(points=points, style=shape.style, thick=shape.thick)
    if isinstance(shape, Sign):
        return Sign(x=shape.x + dx, y=shape.y + dy, kind=shape.kind)
    return Text(
        x=shape.x + dx,
        y=shape.y + dy,
        text=shape.text,
        size=shape.size,
        width=shape.width,
        style=shape.style,
        bold=shape.bold,
        anchor=shape.anchor,
    )


def shifted(block: Block, dx: float, dy: float) -> tuple[Group, ...]:
    """A block's groups, moved."""
    return tuple(
        Group(
            kind=group.kind,
            shapes=tuple(moved(shape, dx, dy) for shape in group.shapes),
            name=group.name,
            title=group.title,
        )
        for group in block.groups
    )


def stacked(blocks: Iterable[Block], gap: float, *, top: float = 0, left: float = 0) -> Block:
    """Blocks below each other; none gives an empty block of height `top`."""
    groups: list[Group] = []
    y, width = top, 0.0
    for block in blocks:
        groups += shifted(block, left, y)
        y += block.height + gap
        width = max(width, left + block.width)
    return Block(width=width, height=max(top, y - gap), groups=tuple(groups))


def flowed(blocks: Iterable[Block], most: float, gap: float) -> Block:
    """Blocks beside each other, in as many rows as `most` units of width need."""
    groups: list[Group] = []
    x = y = row = width = 0.0
    for block in blocks:
        if x and x + block.width > most:
            x, y, row = 0.0, y + row + gap, 0.0
        groups += shifted(block, x, y)
        width = max(width, x + block.width)
        x, row = x + block.width + gap, max(row, block.height)
    return Block(width=width, height=y + row, groups=tuple(groups))
