"""Paths between devices, drawn over the host: along the PCIe tree, and between nodes in the free lanes around them.

The lines stay in the margins of cards and boxes, so that they cross no text. The slowest link of a path is dashed, and
marked in words at its device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from hosttune.model.devicepath import DevicePath
from hosttune.model.host import Host
from hosttune.model.values import Value
from hosttune.report.picture.host_view import HostView, marked_at
from hosttune.report.picture.shapes import Rect, Shape, ShapeGroup, ShapeLine, Text

_THICK = 4.0
_DEVICES = ("gpu", "nic", "nvme", "nvswitch", "display", "other")
_TRUNK = 9.0  # from a bridge's vertical line to the things below it
Point = tuple[float, float]


class _Anchor(Value, frozen=True, kw_only=True):
    """Where a line meets a box or a port: its left edge, the height of its name, and the top of its vertical line."""

    x: float
    y: float
    head: float
    box: Rect | None = None


def route_style(number: int, *, slow: bool = False) -> str:
    """Return the style of a path's line."""
    return f"route r{number}{' slow' if slow else ''}"


def path_groups(view: HostView, placed: Sequence[ShapeGroup]) -> tuple[ShapeGroup, ...]:
    """Return a group for each path: its lines along PCIe, and the outlines of its two ends."""
    anchors = {group.name: anchor for group in placed if (anchor := _anchor(group)) is not None}
    groups = []
    for number, path in enumerate(view.paths):
        shapes = [*_ends(path, anchors, number)]
        if path.hops and path.hops[0].kind != "links":
            shapes += _lines(view.host, path, anchors, placed, number)
        title = f"path {number + 1}: {path.start} to {path.end}"
        groups.append(ShapeGroup(kind="path", name=f"path {number + 1}", shapes=tuple(shapes), title=title))
    return tuple(groups)


def _anchor(group: ShapeGroup) -> _Anchor | None:
    trunk = next((shape.points[0][1] for shape in group.shapes if isinstance(shape, ShapeLine)), None)
    if group.kind in (*_DEVICES, "switch"):
        box = group.shapes[0]
        if isinstance(box, Rect):
            return _Anchor(x=box.x, y=box.y + 12, head=trunk if trunk is not None else box.y + 12, box=box)
    if group.kind == "port":
        text = next((shape for shape in group.shapes if isinstance(shape, Text)), None)
        if text is not None:
            return _Anchor(x=text.x - 3, y=text.y - 4, head=trunk if trunk is not None else text.y + 4)
    return None


def _ends(path: DevicePath, anchors: Mapping[str, _Anchor], number: int) -> Iterable[Shape]:
    for end in (path.start, path.end):
        anchor = anchors.get(end)
        if anchor is not None and anchor.box is not None:
            box, out = anchor.box, 2.0 + 2.5 * number
            yield Rect(
                x=box.x - out, y=box.y - out, width=box.width + 2 * out, height=box.height + 2 * out,
                style=f"ends r{number}", radius=6,
            )  # fmt: skip


def _lines(
    host: Host, path: DevicePath, anchors: Mapping[str, _Anchor], placed: Sequence[ShapeGroup], number: int
) -> list[Shape]:
    """Return the lines from one end up, across, and down to the other end; nothing where an end has no box."""
    ends = ((end, *host.index.above(end)) for end in (path.start, path.end))
    up, down = ([place for place in chain if place in anchors] for chain in ends)
    named = {name for hop in path.hops for name in (hop.start, hop.end)}
    slow = (
        next(iter(marked_at(host, path.slowest))) if path.slowest is not None and path.slowest.kind == "pcie" else None
    )
    both = [address for address in up if address in down]
    if both:
        turn = next((address for address in reversed(both) if address in named), both[0])
        return [*_climb(up, turn, anchors, slow, number), *_climb(down, turn, anchors, slow, number)]
    shapes: list[Shape] = []
    tops: list[tuple[float, Rect, float]] = []
    for chain, end in ((up, path.start), (down, path.end)):
        cpu = _to_cpu(chain, end, anchors, slow, placed, number)
        if cpu is None:
            return shapes
        shapes += cpu[0]
        tops.append(cpu[1])
    across = _across(tops[0], tops[1])
    socket = path.slowest is not None and path.slowest.kind in ("cpu", "socket")
    return [*shapes, ShapeLine(points=across, style=route_style(number, slow=socket), thick=_THICK)]


def _climb(
    chain: Sequence[str], turn: str | None, anchors: Mapping[str, _Anchor], slow: str | None, number: int
) -> list[Shape]:
    """Return a line for each link from a device up to the bridge where the path turns, or to the last one drawn."""
    shapes: list[Shape] = []
    for below, above in pairwise(chain):
        child, parent = anchors[below], anchors[above]
        lane = child.x - _TRUNK if child.x - parent.x > _TRUNK else parent.x - 2
        points: list[Point] = [(child.x, child.y), (lane, child.y), (lane, parent.head)]
        if above != turn:
            points += [(parent.x, parent.head), (parent.x, parent.y)]
        shapes.append(ShapeLine(points=tuple(points), style=route_style(number, slow=below == slow), thick=_THICK))
        if above == turn:
            break
    return shapes


def _to_cpu(
    chain: Sequence[str],
    end: str,
    anchors: Mapping[str, _Anchor],
    slow: str | None,
    placed: Sequence[ShapeGroup],
    number: int,
) -> tuple[list[Shape], tuple[float, Rect, float]] | None:
    """Return the lines up to the lane above a node's cards, and where they end: x, the node's frame, the lane's y."""
    frames = [group for group in placed if group.kind == "node" and isinstance(group.shapes[0], Rect)]
    if not chain:  # a node itself: its memory
        frame = next((group.shapes[0] for group in frames if group.name == end), None)
        if not isinstance(frame, Rect) or (y := _lane(frame, placed)) is None:
            return None
        return [], (frame.x + 20, frame, y)
    top = anchors[chain[-1]]
    frame = next(
        (
            rect
            for rect in (group.shapes[0] for group in frames)
            if isinstance(rect, Rect)
            and (rect.x < top.x < rect.x + rect.width and rect.y < top.y < rect.y + rect.height)
        ),
        None,
    )
    if frame is None or (y := _lane(frame, placed)) is None:
        return None
    x = top.x - (0 if top.box is None else 4)
    start: tuple[Point, ...] = ((top.x, top.y), (x, top.y)) if top.box is not None else ((x, top.y),)
    last = ShapeLine(
        points=(*start, (x, y)), style=route_style(number, slow=len(chain) == 1 and chain[0] == slow), thick=4
    )
    return [*_climb(chain, None, anchors, slow, number), last], (x, frame, y)


def _lane(frame: Rect, placed: Sequence[ShapeGroup]) -> float | None:
    """Return the height of the free lane between a node's memory and its cards."""
    cards = [group.shapes[0] for group in placed if group.kind == "bridge"]
    tops = [
        card.y
        for card in cards
        if isinstance(card, Rect)
        and frame.x < card.x < frame.x + frame.width
        and frame.y < card.y < frame.y + frame.height
    ]
    return min(tops) - 5 if tops else frame.y + frame.height - 6


def _across(one: tuple[float, Rect, float], other: tuple[float, Rect, float]) -> tuple[Point, ...]:
    """Return the line between two ends in the lanes of their nodes; of another node, around the frames."""
    (x, frame, y), (x_2, frame_2, y_2) = one, other
    if frame == frame_2:
        return ((x, y), (x_2, y))
    out, out_2 = (side.x - 8 for side in (frame, frame_2))
    top, top_2 = frame.y - 5, frame_2.y - 5
    if frame.y == frame_2.y:
        return ((x, y), (out, y), (out, top), (out_2, top), (out_2, y_2), (x_2, y_2))
    left = -8.0
    first: tuple[Point, ...] = ((x, y), (left, y)) if frame.x == 0 else ((x, y), (out, y), (out, top), (left, top))
    last: tuple[Point, ...] = (
        ((left, y_2), (x_2, y_2)) if frame_2.x == 0 else ((left, top_2), (out_2, top_2), (out_2, y_2), (x_2, y_2))
    )
    return (*first, *last)
