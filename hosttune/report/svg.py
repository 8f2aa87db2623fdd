"""The host as an SVG picture: one self-contained file, the same bytes for the same host and results.

No script, no reference to anything outside, fonts by generic family; light and dark colours follow the reader's
settings. The file is ASCII: other characters are written as references, so that no locale and no server's charset can
change them. `hosttune.report.picture` makes the layout; this module only writes its shapes as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING

from hosttune.report.branch import printable
from hosttune.report.picture.layout import picture
from hosttune.report.picture.metrics import is_plain
from hosttune.report.picture.shapes import SIGN, Group, Line, Rect, Shape, Sign, Text
from hosttune.report.picture.style import ROOT, style_sheet

if TYPE_CHECKING:
    from hosttune.model.host import Host
    from hosttune.model.validation import CheckResult

_LONGEST_TITLE = 1000  # characters of a tooltip
_FILLS = {
    "fail": f"M3.5 0h4L{SIGN:g} 3.5v4L7.5 {SIGN:g}h-4L0 7.5v-4z",
    "warn": f"M5.5 0L{SIGN:g} {SIGN:g}H0z",
    "unknown": "M5.5 0a5.5 5.5 0 1 1 0 11a5.5 5.5 0 1 1 0-11z",
}
_GLYPHS = {
    "fail": "M3.5 3.5l4 4m0-4l-4 4",
    "warn": "M5.5 4v2.6m0 2.2v.1",
    "unknown": "M3.8 4.2a1.7 1.7 0 1 1 2.6 1.5q-.9.6-.9 1.1m0 1.9v.1",
}


def host_svg(host: Host, *, results: Iterable[CheckResult] = ()) -> str:
    """Return the host as an SVG document. `results` mark what did not pass on the part that it is about.

    Everything with a name has `data-kind` and `data-name` (an address, a node, a guest), for pages that contain the
    picture.
    """
    drawn = picture(host, results)
    wide, high = _number(drawn.width), _number(drawn.height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{ROOT}" role="img" viewBox="0 0 {wide} {high}" '
        f'width="{wide}" height="{high}" style="max-width:100%;height:auto" '
        f'aria-labelledby="{ROOT}-title {ROOT}-desc">',
        f'<title id="{ROOT}-title">{_safe(drawn.name)}</title>',
        f'<desc id="{ROOT}-desc">{_safe(drawn.words)}</desc>',
        f"<style>\n{style_sheet()}\n</style>",
        f'<rect class="paper" width="{wide}" height="{high}"/>',
    ]
    for group in drawn.groups:
        lines += _group(group)
    return "\n".join([*lines, "</svg>", ""]).encode("ascii", "xmlcharrefreplace").decode()


def _group(group: Group) -> Iterator[str]:
    name = f' data-kind="{group.kind}" data-name="{_safe(group.name)}"' if group.name else ""
    title = f"<title>{_safe(group.title)}</title>" if group.title else ""
    yield f"<g{name}>{title}{''.join(_shape(shape) for shape in group.shapes)}</g>"


def _shape(shape: Shape) -> str:
    if isinstance(shape, Rect):
        radius = f' rx="{_number(shape.radius)}"' if shape.radius else ""
        place = f'x="{_number(shape.x)}" y="{_number(shape.y)}"'
        size = f'width="{_number(shape.width)}" height="{_number(shape.height)}"'
        return f'<rect class="{shape.style}" {place} {size}{radius}/>'
    if isinstance(shape, Line):
        points = " ".join(f"{_number(x)},{_number(y)}" for x, y in shape.points)
        return f'<polyline class="{shape.style}" points="{points}" stroke-width="{_number(shape.thick)}"/>'
    if isinstance(shape, Sign):
        place = f'transform="translate({_number(shape.x)} {_number(shape.y)})"'
        fill = f'<path class="sign {shape.kind}" d="{_FILLS[shape.kind]}"/>'
        return f'<g {place}>{fill}<path class="glyph" d="{_GLYPHS[shape.kind]}"/></g>'
    return _text(shape)


def _text(text: Text) -> str:
    """Return a text element. If the width of the text is not known beforehand, the reader's program fits it."""
    if not text.text:
        return ""
    style = " ".join(filter(None, (text.style, "strong" if text.bold else "")))
    attributes = [f'class="{style}"'] if style else []
    attributes += [f'text-anchor="{text.anchor}"'] if text.anchor != "start" else []
    if not is_plain(text.text):
        attributes.append(f'textLength="{_number(text.width)}" lengthAdjust="spacingAndGlyphs"')
    place = f'x="{_number(text.x)}" y="{_number(text.y)}" font-size="{_number(text.size)}"'
    return f"<text {' '.join((place, *attributes))}>{escape(text.text)}</text>"


def _safe(text: str) -> str:
    """Return text from a document for markup: printable, bounded, escaped."""
    cut = text if len(text) <= _LONGEST_TITLE else text[: _LONGEST_TITLE - 1] + "…"
    return escape(printable(cut))


def _number(number: float) -> str:
    """Return a coordinate rounded to a tenth, without trailing zeros."""
    return f"{number:.1f}".removesuffix(".0")
