"""Text in several lines, marks and chips: the texts in boxes of every kind."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.model.values import Value
from hosttune.report.picture.guests import PictureGuest
from hosttune.report.picture.host_view import PictureMark
from hosttune.report.picture.shapes import (
    ASCENT,
    DESCENT,
    SIGN,
    SMALL,
    Rect,
    Shape,
    Sign,
    clean,
    fitted,
    label,
    moved,
    text_width,
    wrapped,
)

LEADING = 1.3  # line height, as a part of the font size
MARK_HIGH = 17.0
CHIP_HIGH = 17.0
_APART = 8.0  # between the two texts of a line
_BETWEEN = 4.0  # pieces beside each other


class Piece(Value, frozen=True, kw_only=True):
    """Shapes that are part of a thing, laid out from (0, 0), and the space that they take."""

    width: float
    height: float
    shapes: tuple[Shape, ...] = ()


def paragraph(text: str, width: float, size: float, *, lines: int = 4, style: str = "dim", bold: bool = False) -> Piece:
    """Return text in at most `lines` lines."""
    rows = wrapped(text, width, size, lines, bold=bold)
    shapes = tuple(
        label(0, n * size * LEADING, row, size, most=width, style=style, bold=bold) for n, row in enumerate(rows)
    )
    return Piece(width=width, height=len(rows) * size * LEADING, shapes=shapes)


def pair(left: str, right: str, width: float, size: float, *, style: str = "", bold: bool = False) -> Piece:
    """Return a line with text at both ends.

    The right text keeps its space, and the left one is cut. Bold text on the left is never cut: the right text then
    gets its own line.
    """
    small = min(size, SMALL)
    right = fitted(right, max(width / 2, width - text_width(clean(left), size, bold=bold) - _APART), small)
    high = size * LEADING
    if not right:
        return Piece(width=width, height=high, shapes=(label(0, 0, left, size, most=width, style=style, bold=bold),))
    if bold and not fits(left, right, width, size, bold=bold):
        first = label(0, 0, left, size, most=width, style=style, bold=bold)
        second = label(0, high, right, small, most=width, style=style)
        return Piece(width=width, height=high + small * LEADING, shapes=(first, second))
    room = width - text_width(right, small) - _APART
    first = label(0, 0, left, size, most=room, style=style, bold=bold)
    second = label(width, (size - small) * ASCENT, right, small, most=width, style=style, anchor="end")
    return Piece(width=width, height=high, shapes=(first, second))


def fits(left: str, right: str, width: float, size: float, *, bold: bool = False) -> bool:
    """Whether `pair` has space for both texts on one line."""
    needed = text_width(clean(left), size, bold=bold) + _APART + text_width(clean(right), min(size, SMALL))
    return not right or needed <= width


def mark_row(mark: PictureMark, width: float) -> Piece:
    """Return a sign and its text on a strip of their own, readable on any background."""
    room = width - SIGN - 9
    lines = wrapped(mark.text, room, SMALL, 3, bold=True)
    high = MARK_HIGH + (len(lines) - 1) * SMALL * LEADING
    strip = Rect(x=0, y=0, width=width, height=high, style=f"strip {mark.sign}", radius=3)
    words = [
        label(SIGN + 6, 2.6 + n * SMALL * LEADING, line, SMALL, most=room, style="onstrip", bold=True)
        for n, line in enumerate(lines)
    ]
    return Piece(width=width, height=high, shapes=(strip, Sign(x=3, y=2, kind=mark.sign), *words))


def phrase(text: str, most: float, high: float) -> Piece:
    """Return a few small words at their own width, in a line of the given height, to be put beside others."""
    words = label(0, (high - SMALL * (ASCENT + DESCENT)) / 2, text, SMALL, most=most)
    return Piece(width=words.width, height=high, shapes=(words,))


def chip(holder: PictureGuest, text: str, most: float) -> Piece:
    """Return a guest's letter and some words on the guest's colour."""
    words = fitted(f"{holder.letter} · {text}" if text else holder.letter, most - 8, SMALL, bold=True)
    wide = text_width(words, SMALL, bold=True) + 8
    fill = Rect(x=0, y=0, width=wide, height=CHIP_HIGH, style=f"g{holder.colour}", radius=8)
    name = label(4, 2.6, words, SMALL, most=most - 8, style=f"on{holder.colour}", bold=True)
    return Piece(width=wide, height=CHIP_HIGH, shapes=(fill, name))


def below(pieces: Iterable[Piece], gap: float = 2) -> Piece:
    """Return pieces placed under each other."""
    shapes: list[Shape] = []
    y, width = 0.0, 0.0
    for piece in pieces:
        shapes += (moved(shape, 0, y) for shape in piece.shapes)
        y, width = y + piece.height + gap, max(width, piece.width)
    return Piece(width=width, height=max(0.0, y - gap), shapes=tuple(shapes))


def beside(pieces: Iterable[Piece], most: float) -> Piece:
    """Return pieces placed side by side, in as many rows as they need."""
    shapes: list[Shape] = []
    x = y = row = 0.0
    for piece in pieces:
        if x and x + piece.width > most:
            x, y, row = 0.0, y + row + _BETWEEN, 0.0
        shapes += (moved(shape, x, y) for shape in piece.shapes)
        x, row = x + piece.width + _BETWEEN, max(row, piece.height)
    return Piece(width=most, height=y + row, shapes=tuple(shapes))


def at(piece: Piece, dx: float, dy: float) -> tuple[Shape, ...]:
    """Return a piece's shapes, moved to this position."""
    return tuple(moved(shape, dx, dy) for shape in piece.shapes)
