"""The host as an SVG picture: one self-contained file, the same bytes for the same host and results.

No script, no reference to anything outside, fonts by generic family; light and dark colours follow the reader's
settings. On a screen a unit is a pixel, so that no text gets too small to read; on paper the picture shrinks to the
page. The file is ASCII: other characters are written as references, so that no locale and no server's charset can
change them. `hosttune.report.picture` makes the layout; this module only writes its shapes as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from hosttune.model.devicepath import DevicePath
from hosttune.model.host import Host
from hosttune.model.plan import Plan
from hosttune.model.text import printable
from hosttune.model.validation import CheckResult
from hosttune.report.picture.layout import Drawing, picture, plan_picture, side_by_side
from hosttune.report.picture.shapes import SIGN, Rect, Shape, ShapeGroup, ShapeLine, Sign, is_plain
from hosttune.report.picture.style import ROOT, style_sheet

_LONGEST_TITLE = 1000  # characters of a tooltip
_FILLS = {
    "fail": f"M3.5 0h4L{SIGN:g} 3.5v4L7.5 {SIGN:g}h-4L0 7.5v-4z",
    "warn": f"M5.5 0L{SIGN:g} {SIGN:g}H0z",
    "unknown": "M5.5 0a5.5 5.5 0 1 1 0 11a5.5 5.5 0 1 1 0-11z",
    "slow": "M5.5 0a5.5 5.5 0 1 1 0 11a5.5 5.5 0 1 1 0-11z",
}
_GLYPHS = {
    "fail": "M3.5 3.5l4 4m0-4l-4 4",
    "warn": "M5.5 4v2.6m0 2.2v.1",
    "unknown": "M3.8 4.2a1.7 1.7 0 1 1 2.6 1.5q-.9.6-.9 1.1m0 1.9v.1",
    "slow": "M3.2 2.8h4.6l-4.6 5.4h4.6z",
}


def host_svg(
    host: Host,
    *,
    results: Iterable[CheckResult] = (),
    sheets: bool = False,
    paths: Sequence[DevicePath] = (),
    part: str = "",
) -> str:
    """Return the host as an SVG document. `results` mark what did not pass on the part that it is about.

    `paths` between devices are drawn over it, the slowest link of each marked. `part` makes the ids of several pictures
    in one page differ.

    `sheets`, for an HTML page: several `svg` elements that make one picture below each other, none cut when printed.

    Everything with a name has `data-kind` and `data-name` (an address, a node, a guest), for pages that contain the
    picture.
    """
    return _document(picture(host, results, paths), sheets, root=f"{ROOT}-{part}" if part else ROOT)


def plan_svg(host: Host, plan: Plan | None, *, sheets: bool = False) -> str:
    """Return the host with each guest of the plan in its colour as an SVG document; without a plan, the guests as now.

    A core has `data-cpus` and `data-held` ("A:1,97": the CPUs of guest A), a part of a node's memory `data-held`,
    `data-node`, `data-bytes` and `data-page-bytes`, a device `data-held`, and a guest's card its name and letter.
    """
    return _document(plan_picture(host, plan), sheets)


def two_plans_svg(host: Host, before: Plan | None, after: Plan | None) -> str:
    """Return the pictures of two plans side by side; None is the host as it is. A guest has one colour in both."""
    return _document(side_by_side(*_two_pictures(host, before, after)), sheets=False)


def two_plans_sheets(host: Host, before: Plan | None, after: Plan | None) -> tuple[str, str]:
    """Return the same two pictures as documents of their own, in sheets (`host_svg`), for one HTML page."""
    left, right = _two_pictures(host, before, after)
    return _document(left, sheets=True, root=f"{ROOT}-before"), _document(right, sheets=True, root=f"{ROOT}-after")


def _two_pictures(host: Host, before: Plan | None, after: Plan | None) -> tuple[Drawing, Drawing]:
    plans = (before, after)
    names = [guest.name for plan in plans for guest in (plan.guests if plan else ())]
    names += [guest.name for guest in host.guests or ()]
    left, right = (plan_picture(host, plan, names=names) for plan in plans)
    return left, right


def adoption_svg(host: Host, definitions: Iterable[bytes], after: Plan | None) -> str:
    """Return two pictures side by side: the guests of domain XML as that says, and as they are planned."""
    from hosttune.report.defined import with_defined

    return two_plans_svg(with_defined(host, definitions), None, after)


def _document(drawn: Drawing, sheets: bool, root: str = ROOT) -> str:
    """Return the markup. `root`: what the ids begin with; they must be unique in a page."""
    ends = [*(cut for cut in drawn.cuts if sheets), drawn.height]
    lines = [line for top, end in zip([0.0, *ends], ends, strict=False) for line in _sheet(drawn, top, end, root)]
    return "\n".join([*lines, ""]).encode("ascii", "xmlcharrefreplace").decode()


def _sheet(drawn: Drawing, top: float, end: float, root: str) -> Iterator[str]:
    """Return the part of the picture between two heights; the first has the title and the style of all."""
    y, wide, high = _number(top), _number(drawn.width), _number(end - top)
    names = f'role="img" aria-labelledby="{root}-title {root}-desc"' if top == 0 else 'aria-hidden="true"'
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{ROOT}" viewBox="0 {y} {wide} {high}" '
        f'width="{wide}" height="{high}" {names}>'
    )
    if top == 0:
        yield f'<title id="{root}-title">{_safe(drawn.name)}</title>'
        yield f'<desc id="{root}-desc">{_safe(drawn.words)}</desc>'
        paths = any(group.kind == "path" for group in drawn.groups)
        yield f"<style>\n{style_sheet(paths=paths)}\n</style>"
    yield f'<rect class="paper" y="{y}" width="{wide}" height="{high}"/>'
    for group in drawn.groups:
        if group.shapes and (end - top == drawn.height or _between(group, top, end)):
            name = f' data-kind="{group.kind}" data-name="{_safe(group.name)}"' if group.name else ""
            data = "".join(f' data-{key}="{_safe(text)}"' for key, text in group.data)
            title = f"<title>{_safe(group.title)}</title>" if group.title else ""
            yield f"<g{name}{data}>{title}{''.join(_shape(shape) for shape in group.shapes)}</g>"
    yield "</svg>"


def _between(group: ShapeGroup, top: float, end: float) -> bool:
    """Whether a part of the group is between these heights."""
    edges = [edge for shape in group.shapes for edge in _heights(shape)]
    return min(edges) < end and max(edges) > top


def _heights(shape: Shape) -> tuple[float, float]:
    if isinstance(shape, Rect):
        return shape.y, shape.y + shape.height
    if isinstance(shape, ShapeLine):
        return min(y for _, y in shape.points), max(y for _, y in shape.points)
    if isinstance(shape, Sign):
        return shape.y, shape.y + SIGN
    return shape.box[1], shape.box[3]


def _shape(shape: Shape) -> str:
    if isinstance(shape, Rect):
        radius = f' rx="{_number(shape.radius)}"' if shape.radius else ""
        place = f'x="{_number(shape.x)}" y="{_number(shape.y)}"'
        size = f'width="{_number(shape.width)}" height="{_number(shape.height)}"'
        return f'<rect class="{shape.style}" {place} {size}{radius}/>'
    if isinstance(shape, ShapeLine):
        points = " ".join(f"{_number(x)},{_number(y)}" for x, y in shape.points)
        return f'<polyline class="{shape.style}" points="{points}" stroke-width="{_number(shape.thick)}"/>'
    if isinstance(shape, Sign):
        place = f'transform="translate({_number(shape.x)} {_number(shape.y)})"'
        fill = f'<path class="sign {shape.kind}" d="{_FILLS[shape.kind]}"/>'
        return f'<g {place}>{fill}<path class="glyph" d="{_GLYPHS[shape.kind]}"/></g>'
    # If the width of the text is not known beforehand, the reader's program fits it.
    if not shape.text:
        return ""
    style = " ".join(filter(None, (shape.style, "strong" if shape.bold else "")))
    attributes = [f'class="{style}"'] if style else []
    attributes += [f'text-anchor="{shape.anchor}"'] if shape.anchor != "start" else []
    if not is_plain(shape.text):
        attributes.append(f'textLength="{_number(shape.width)}" lengthAdjust="spacingAndGlyphs"')
    place = f'x="{_number(shape.x)}" y="{_number(shape.y)}" font-size="{_number(shape.size)}"'
    return f"<text {' '.join((place, *attributes))}>{escape(shape.text)}</text>"


def _safe(text: str) -> str:
    """Return text from a document for markup: printable, bounded, escaped."""
    cut = text if len(text) <= _LONGEST_TITLE else text[: _LONGEST_TITLE - 1] + "…"
    return escape(printable(cut))


def _number(number: float) -> str:
    """Return a coordinate rounded to a tenth, without trailing zeros."""
    return f"{number:.1f}".removesuffix(".0")
