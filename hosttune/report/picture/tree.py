"""The PCIe tree of a node: a card for each host bridge, boxes for switches, lines as thick as the links are wide."""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.model.values import Value
from hosttune.report.devices import link_text
from hosttune.report.picture.devices import device_block, figures
from hosttune.report.picture.host_view import HostView, Place, marks_of
from hosttune.report.picture.metrics import SMALL
from hosttune.report.picture.shapes import Block, Group, Line, Rect, Shape, label, shifted, stacked
from hosttune.report.picture.text import Piece, at, below, mark_row, pair

COLUMN = 272.0  # width of a card
NARROWEST = 140.0  # width of a device's box below which deeper trees are not indented
TALLEST = 460.0  # height of a card's column above which a card takes another column; without GPUs: WIDE
WIDE = 130.0
_GAP = 6.0
_PAD = 7.0
_HEAD = 19.0


class Card(Value, frozen=True, kw_only=True):
    """A host bridge with everything below it, `span` columns wide."""

    bus: str
    places: tuple[Place, ...]
    block: Block
    span: int
    has_gpu: bool


def card(view: HostView, bus: str, places: Sequence[Place], most: int, gutter: float, tallest: float = TALLEST) -> Card:
    """Lay out a host bridge.

    Branches that would make the card too tall go to more columns, with `gutter` between them.
    """
    inner = COLUMN - 2 * _PAD
    branches = [_branch(view, place, inner) for place in places]
    tall = sum(branch.height + _GAP for branch in branches)
    number = max(1, min(most, len(branches), round(tall / tallest)))
    goal = sum(branch.height for branch in branches) / number
    columns: list[list[Block]] = [[]]
    filled = 0.0
    for branch in branches:
        if columns[-1] and filled + branch.height / 2 > goal * len(columns) and len(columns) < number:
            columns.append([])
        columns[-1].append(branch)
        filled += branch.height
    parts = [stacked(column, _GAP) for column in columns]
    pitch = COLUMN + gutter
    width = pitch * len(parts) - gutter
    high = _HEAD + max((part.height for part in parts), default=0) + _PAD
    back = Rect(x=0, y=0, width=width, height=high, style="card", radius=6)
    head = label(_PAD, 3, f"host bridge {bus}", SMALL, most=inner, style="dim")
    groups = [Group(kind="bridge", name=bus, shapes=(back, head), title=f"host bridge {bus}")]
    for n, part in enumerate(parts):
        groups += shifted(part, _PAD + n * pitch, _HEAD)
    has_gpu = any(group.kind == "gpu" for group in groups)
    block = Block(width=width, height=high, groups=tuple(groups))
    return Card(bus=bus, places=tuple(places), block=block, span=len(parts), has_gpu=has_gpu)


def _branch(view: HostView, place: Place, width: float) -> Block:
    if place.kind == "device" or not place.below:
        return device_block(view, place.address, width)
    return _switch(view, place, width) if place.kind == "switch" else _port(view, place, width)


def _port(view: HostView, place: Place, width: float) -> Block:
    """Return a root port or other bridge: a line of text, with the things below it connected to its vertical line."""
    head, title = _head(view, place, width)
    below_it = _things_below(view, place, width, left=4.0, top=head.height + 4)
    shapes = (*below_it.lines, *at(head, 0, 0))
    group = Group(kind="port", name=place.address, shapes=shapes, title=title)
    return Block(width=width, height=below_it.block.height, groups=(group, *below_it.block.groups))


def _switch(view: HostView, place: Place, width: float) -> Block:
    """Return a switch as a box around the things below it."""
    head, title = _head(view, place, width - 12)
    below_it = _things_below(view, place, width - 6, left=9.0, top=head.height + 10)
    high = below_it.block.height + 6
    box = Rect(x=0, y=0, width=width, height=high, style="switch", radius=5)
    shapes = (box, *below_it.lines, *at(head, 6, 5))
    group = Group(kind="switch", name=place.address, shapes=shapes, title=title)
    return Block(width=width, height=high, groups=(group, *below_it.block.groups))


def _head(view: HostView, place: Place, width: float) -> tuple[Piece, str]:
    """Return a bridge's name, link and faults, and its tooltip."""
    device = view.device(place.address)
    word = {"root-port": "root port", "upstream-port": "switch", "downstream-port": "switch port"}.get(
        (device and device.port_type) or "", "bridge"
    )
    marks = marks_of(view, place.address)
    link = figures(device.link if device else None) if word == "switch" else ""
    name = pair(f"{word} {place.address}", link, width, SMALL, style="bridge", bold=word == "switch")
    hover_text = [f"{word} {place.address}", link_text(device.link).replace(" x", " ×") if device else ""]
    title = ", ".join((*filter(None, hover_text), *(mark.hover_text for mark in marks)))
    return below((name, *(mark_row(mark, width) for mark in marks))), title


class _ThingsBelow(Value, frozen=True, kw_only=True):
    block: Block
    lines: tuple[Shape, ...]


def _things_below(view: HostView, place: Place, width: float, *, left: float, top: float) -> _ThingsBelow:
    """Return the things below a bridge, and the lines that lead to them from the bridge's vertical line at `left`."""
    indent = left + 9 if width - left - 9 >= NARROWEST else 0.0
    y = top
    groups: list[Group] = []
    lines: list[Line] = []
    ends: list[float] = []
    for child in place.below:
        block = _branch(view, child, width - indent)
        groups += shifted(block, indent, y)
        if indent:
            ends.append(y + 12)
            lines.append(_line_to_device(view, child.address, left, indent, y + 12))
        y += block.height + _GAP
    if ends:
        lines.insert(0, Line(points=((left, top - 5), (left, ends[-1])), style="pcie", thick=2))
    return _ThingsBelow(block=Block(width=width, height=y - _GAP, groups=tuple(groups)), lines=tuple(lines))


def _line_to_device(view: HostView, address: str, left: float, right: float, y: float) -> Line:
    """Return the line to a device: as thick as its link is wide, dashed if the link is degraded."""
    device = view.device(address)
    link = device.link if device else None
    lanes = link.width if link and link.width else 1
    thick = next(thick for least, thick in ((16, 5.0), (8, 3.5), (4, 2.5), (0, 1.5)) if lanes >= least)
    style = "pcie degraded" if link and link.state == "degraded" else "pcie"
    return Line(points=((left, y), (right, y)), style=style, thick=thick)
