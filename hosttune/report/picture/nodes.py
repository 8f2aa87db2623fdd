"""A NUMA node as a box: its CPUs and memory above, its part of the PCIe tree below; and the grid of all nodes."""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.model.host import Cpu, NumaNode
from hosttune.model.text import count
from hosttune.model.values import CpuSet, Value, format_size
from hosttune.report.picture.cpus import cpu_block
from hosttune.report.picture.host_view import HostView, check_marks, node_subjects, trees
from hosttune.report.picture.memory import memory_block
from hosttune.report.picture.metrics import SMALL
from hosttune.report.picture.shapes import Block, Group, Rect, shifted, stacked
from hosttune.report.picture.text import at, below, mark_row, pair, paragraph
from hosttune.report.picture.tree import COLUMN, WIDE, Card, card

WIDEST = 4  # columns of cards side by side
PAD = 12.0
_GAP = 10.0
_UNKNOWN = "node unknown"
_NONE = "no NUMA nodes known"


class Box(Value, frozen=True, kw_only=True):
    """A node before it is drawn: its cards are known, its width is not.

    `span`: the number of columns that it asks for.
    """

    node: NumaNode | None
    name: str
    cards: tuple[Card, ...]
    span: int
    addresses: tuple[str, ...]


class Grid(Value, frozen=True, kw_only=True):
    """All nodes in rows. `columns` is the picture's inner width, `gutter` the space between the columns of cards."""

    rows: tuple[tuple[Box, ...], ...]
    columns: int
    gutter: float

    @property
    def full(self) -> float:
        """The width of the widest row."""
        return max(_row_width(row, self.gutter) for row in self.rows)

    @property
    def bar(self) -> float:
        """The width of the largest node's memory bar. It is the same in every box, so that lengths can be compared."""
        return width_of(min(box.span for row in self.rows for box in row), self.gutter) - 2 * PAD


def width_of(columns: int, gutter: float) -> float:
    """Return the width of a node's box with this number of columns of cards, each with a gutter on its right."""
    return columns * (COLUMN + gutter) + 2 * PAD - gutter / 2


def grid(view: HostView, places: dict[int | None, tuple[str, ...]], gutter: float) -> Grid:
    """Return the nodes in order, as many side by side as fit.

    Devices of unknown node are in a box of their own at the end.
    """
    boxes = [_box(view, node, places.get(node.id, ()), gutter) for node in _shown(view, places)]
    empty = {node.id for node in view.host.numa_nodes} - {box.node.id for box in boxes if box.node}
    if not view.host.numa_nodes:
        boxes.append(Box(node=None, name=_NONE, cards=(), span=2, addresses=()))
    if places.get(None) or (view.host.numa_nodes and _cpus_without_node(view)):
        boxes.append(_box(view, None, places.get(None, ()), gutter))
    if empty:
        name = f"empty {'node' if len(empty) == 1 else 'nodes'} {CpuSet(empty)}"
        boxes.append(Box(node=None, name=name, cards=(), span=1, addresses=()))
    rows = _rows(boxes, max(2, min(WIDEST, sum(box.span for box in boxes))), gutter)
    columns = max(2, *(_columns(row) for row in rows))
    wide = (tuple(_widened(view, *one, gutter) for one in _stretched(row, columns, gutter)) for row in rows)
    return Grid(rows=tuple(wide), columns=columns, gutter=gutter)


def _cpus_without_node(view: HostView) -> tuple[Cpu, ...]:
    """Return the CPUs whose node is unknown or not in the document."""
    nodes = {node.id for node in view.host.numa_nodes}
    return tuple(cpu for node, cpus in view.cpus.items() if node not in nodes for cpu in cpus)


def _shown(view: HostView, places: dict[int | None, tuple[str, ...]]) -> list[NumaNode]:
    """Return the nodes that are not empty. A board with memory on its GPUs may have dozens of empty nodes."""
    nodes = sorted(view.host.numa_nodes, key=lambda node: node.id)
    some = [n for n in nodes if n.id in view.cpus or n.memory_bytes or n.memory_bytes is None or places.get(n.id)]
    return some or nodes[:1]


def _box(view: HostView, node: NumaNode | None, addresses: tuple[str, ...], gutter: float) -> Box:
    cards = [card(view, bus, places, WIDEST, gutter) for bus, places in trees(view, addresses).items()]
    cards.sort(key=lambda one: not one.has_gpu)  # a stable sort: the bus order stays
    tall = sum(one.block.height * one.span for one in cards)
    loud = sum(one.span for one in cards if one.has_gpu)
    span = max(1, min(WIDEST, max(loud, round(tall / 600), max((one.span for one in cards), default=1))))
    name = f"node {node.id}" if node else _UNKNOWN
    return Box(node=node, name=name, cards=tuple(cards), span=span, addresses=addresses)


def _rows(boxes: Sequence[Box], columns: int, gutter: float) -> list[list[Box]]:
    """Put boxes in as few rows as they need, alike in number where that needs no more: 4 boxes are 2 and 2."""
    rows = _filled(boxes, columns, gutter, len(boxes))
    even = _filled(boxes, columns, gutter, -(-len(boxes) // len(rows)))
    return even if len(even) == len(rows) else rows


def _filled(boxes: Sequence[Box], columns: int, gutter: float, most: int) -> list[list[Box]]:
    rows: list[list[Box]] = [[]]
    for box in boxes:
        longer = [*rows[-1], box]
        fits = _columns(longer) <= columns and _widths(_columns(longer), len(longer), gutter) <= _most(gutter)
        if rows[-1] and not (fits and len(longer) <= most):
            rows.append([])
        rows[-1].append(box)
    return rows


def _columns(row: Sequence[Box]) -> int:
    return sum(box.span for box in row)


def _stretched(row: list[Box], columns: int, gutter: float) -> list[tuple[Box, int]]:
    """Give unused columns of a row to its boxes, starting from the left, while the row is not too wide."""
    spans = [box.span for box in row]
    for n in range(columns - sum(spans)):
        if _widths(sum(spans) + 1, len(row), gutter) <= _most(gutter):
            spans[n % len(spans)] += 1
    return list(zip(row, spans, strict=True))


def _most(gutter: float) -> float:
    """Return the width of the widest row: two boxes, so that the picture is whole in a window of 1,280 pixels."""
    return _widths(WIDEST, 2, gutter)


def _widths(columns: int, boxes: int, gutter: float) -> float:
    """Return the width of a row of so many boxes that have so many columns together."""
    gaps = (boxes - 1) * (gutter / 2 + PAD)
    return width_of(columns, gutter) + (boxes - 1) * width_of(0, gutter) + gaps


def _widened(view: HostView, box: Box, span: int, gutter: float) -> Box:
    """Return a box with this number of columns. Its cards without GPUs become wider instead of taller."""
    cards = tuple(one if one.has_gpu else card(view, one.bus, one.places, span, gutter, WIDE) for one in box.cards)
    return Box(node=box.node, name=box.name, cards=cards, span=span, addresses=box.addresses)


def row_block(view: HostView, whole: Grid, row: Sequence[Box]) -> Block:
    """Return one row of nodes: together as wide as the grid, and all as tall as the tallest."""
    gutter, full = whole.gutter, whole.full
    gap = gutter / 2 + PAD
    spare = full - _row_width(row, gutter)
    blocks = [_node(view, box, width_of(box.span, gutter) + spare / len(row), whole) for box in row]
    high = max(block.height for block in blocks)
    groups: list[Group] = []
    x = 0.0
    for box, block in zip(row, blocks, strict=True):
        style = "node unknown" if box.name == _UNKNOWN else "node"
        frame = Rect(x=0, y=0, width=block.width, height=high, style=style, radius=9)
        back = Group(kind="node", name=box.name, shapes=(frame,), title=box.name)
        groups += shifted(Block(width=block.width, height=high, groups=(back, *block.groups)), x, 0)
        x += block.width + gap
    return Block(width=full, height=high, groups=tuple(groups))


def _row_width(row: Sequence[Box], gutter: float) -> float:
    return _widths(_columns(row), len(row), gutter)


def _node(view: HostView, box: Box, width: float, whole: Grid) -> Block:
    inner = width - 2 * PAD
    cpus = view.cpus.get(box.node.id, ()) if box.node else ()
    if box.name == _NONE or (box.name == _UNKNOWN and view.host.numa_nodes):
        cpus = _cpus_without_node(view)
    parts = [_heading(view, box, len({cpu.core for cpu in cpus}), inner)]
    parts += [cpu_block(view, cpus, inner)] if cpus else []
    parts += [memory_block(view, box.node, inner, whole.bar)] if box.node else []
    # Cards with GPUs come first.
    floor = [0.0] * box.span
    groups: list[Group] = []
    for one in box.cards:
        span = min(one.span, box.span)
        heights = [max(floor[n : n + span]) for n in range(box.span - span + 1)]
        y = min(heights)
        column = heights.index(y)
        groups += shifted(one.block, column * (COLUMN + whole.gutter), y)
        floor[column : column + span] = [y + one.block.height + _GAP] * span
    parts.append(Block(width=0, height=max(0.0, max(floor) - _GAP), groups=tuple(groups)))
    content = stacked([part for part in parts if part.height], _GAP, top=PAD, left=PAD)
    return Block(width=width, height=content.height + PAD, groups=content.groups)


def _heading(view: HostView, box: Box, cores: int, width: float) -> Block:
    gpus = sum(1 for address in box.addresses if view.index.labels.get(address, ("",))[0] == "GPU")
    facts = [count(cores, "core")] if cores else []
    if box.node:
        facts += [format_size(box.node.memory_bytes)] if box.node.memory_bytes is not None else []
        facts += [{"memory": "memory only", "gpu": "a GPU's own memory", "empty": "empty"}.get(box.node.kind or "", "")]
    facts += [count(gpus, "GPU")] if gpus else []
    pieces = [pair(box.name, " · ".join(fact for fact in facts if fact), width, 16, bold=True)]
    if box.name == _UNKNOWN:
        pieces.append(paragraph("No node is known for these; affinity is never guessed.", width, SMALL))
    if box.node and box.node.id not in view.cpus and box.node.cpus != "":
        pieces.append(paragraph("CPUs unknown", width, SMALL))
    if box.node:
        pieces += [mark_row(mark, width) for mark in check_marks(view, node_subjects(box.node.id))]
    whole = below(pieces)
    return Block(width=width, height=whole.height, groups=(Group(kind="text", shapes=at(whole, 0, 0)),))
