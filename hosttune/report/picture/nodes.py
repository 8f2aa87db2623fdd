"""A NUMA node as a box: its CPUs and memory above, its part of the PCIe tree below; and the grid of all nodes."""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.model.host import NumaNode
from hosttune.model.values import CpuSet, Value, format_size
from hosttune.report.branch import count
from hosttune.report.picture.cpus import cpu_block
from hosttune.report.picture.memory import memory_block
from hosttune.report.picture.scene import Scene, check_marks, node_subjects, trees
from hosttune.report.picture.shapes import Block, Group, Rect, shifted, stacked
from hosttune.report.picture.text import at, below, mark_row, pair, paragraph
from hosttune.report.picture.tree import COLUMN, WIDE, Card, card

WIDEST = 4  # columns of cards beside each other
PAD = 12.0
_GAP = 10.0


class Box(Value, frozen=True, kw_only=True):
    """A node before it is drawn: its cards are known, its width is not. `span`: columns that it asks for."""

    node: NumaNode | None
    name: str
    cards: tuple[Card, ...]
    span: int
    addresses: tuple[str, ...]


class Grid(Value, frozen=True, kw_only=True):
    """All nodes in rows: the picture's inner width, the rows, and the room between the columns of cards."""

    rows: tuple[tuple[Box, ...], ...]
    columns: int
    gutter: float


def width_of(columns: int, gutter: float) -> float:
    """Width of a node's box that holds so many columns of cards: a gutter right of each."""
    return columns * (COLUMN + gutter) + 2 * PAD - gutter / 2


def grid(view: Scene, places: dict[int | None, tuple[str, ...]], gutter: float) -> Grid:
    """Nodes in order, as many beside each other as fit; devices of unknown node in a box of their own at the end."""
    boxes = [_box(view, node, places.get(node.id, ()), gutter) for node in _shown(view, places)]
    empty = {node.id for node in view.host.numa_nodes} - {box.node.id for box in boxes if box.node}
    if not view.host.numa_nodes:
        boxes.append(Box(node=None, name="no NUMA nodes known", cards=(), span=2, addresses=()))
    if places.get(None):
        boxes.append(_box(view, None, places[None], gutter))
    if empty:
        boxes.append(Box(node=None, name=f"empty nodes {CpuSet(empty)}", cards=(), span=1, addresses=()))
    columns = max(2, min(WIDEST, sum(box.span for box in boxes)))
    return Grid(rows=tuple(tuple(row) for row in _rows(view, boxes, columns, gutter)), columns=columns, gutter=gutter)


def _shown(view: Scene, places: dict[int | None, tuple[str, ...]]) -> list[NumaNode]:
    """Nodes that hold anything; a board with memory on its GPUs may have dozens of empty ones."""
    nodes = sorted(view.host.numa_nodes, key=lambda node: node.id)
    some = [n for n in nodes if n.id in view.cpus or n.memory_bytes or n.memory_bytes is None or places.get(n.id)]
    return some or nodes[:1]


def _box(view: Scene, node: NumaNode | None, addresses: tuple[str, ...], gutter: float) -> Box:
    cards = [card(view, bus, places, WIDEST, gutter) for bus, places in trees(view, addresses).items()]
    cards.sort(key=lambda one: not one.has_gpu)  # stable: bus order within
    tall = sum(one.block.height * one.span for one in cards)
    loud = sum(one.span for one in cards if one.has_gpu)
    span = max(1, min(WIDEST, max(loud, round(tall / 600), max((one.span for one in cards), default=1))))
    name = f"node {node.id}" if node else "node unknown"
    return Box(node=node, name=name, cards=tuple(cards), span=span, addresses=addresses)


def _rows(view: Scene, boxes: Sequence[Box], columns: int, gutter: float) -> list[list[Box]]:
    """Boxes in rows; what is left of a row goes to its boxes from the left."""
    rows: list[list[Box]] = [[]]
    for box in boxes:
        if rows[-1] and sum(other.span for other in rows[-1]) + box.span > columns:
            rows.append([])
        rows[-1].append(box)
    return [[_widened(view, *one, gutter) for one in _stretched(row, columns)] for row in rows]


def _stretched(row: list[Box], columns: int) -> list[tuple[Box, int]]:
    spans = [box.span for box in row]
    left = columns - sum(spans)
    for n in range(left):
        spans[n % len(spans)] += 1
    return list(zip(row, spans, strict=True))


def _widened(view: Scene, box: Box, span: int, gutter: float) -> Box:
    """A box of that many columns; its cards without GPUs become wide rather than tall."""
    cards = tuple(one if one.has_gpu else card(view, one.bus, one.places, span, gutter, WIDE) for one in box.cards)
    return Box(node=box.node, name=box.name, cards=cards, span=span, addresses=box.addresses)


def row_block(view: Scene, row: Sequence[Box], gutter: float, full: float) -> Block:
    """One row of nodes, together `full` wide and all as tall as the tallest."""
    gap = gutter / 2 + PAD
    spare = full - _row_width(row, gutter)
    blocks = [_node(view, box, width_of(box.span, gutter) + spare / len(row), gutter) for box in row]
    high = max(block.height for block in blocks)
    groups: list[Group] = []
    x = 0.0
    for box, block in zip(row, blocks, strict=True):
        style = "node unknown" if box.name == "node unknown" else "node"
        frame = Rect(x=0, y=0, width=block.width, height=high, style=style, radius=9)
        back = Group(kind="node", name=box.name, shapes=(frame,), title=box.name)
        groups += shifted(Block(width=block.width, height=high, groups=(back, *block.groups)), x, 0)
        x += block.width + gap
    return Block(width=full, height=high, groups=tuple(groups))


def full_width(whole: Grid) -> float:
    """Width of the widest row of nodes."""
    return max(_row_width(row, whole.gutter) for row in whole.rows)


def _row_width(row: Sequence[Box], gutter: float) -> float:
    return sum(width_of(box.span, gutter) for box in row) + (len(row) - 1) * (gutter / 2 + PAD)


def _node(view: Scene, box: Box, width: float, gutter: float) -> Block:
    inner = width - 2 * PAD
    cpus = view.cpus.get(box.node.id, ()) if box.node else ()
    if box.name == "no NUMA nodes known":
        cpus = tuple(cpu for cpu in view.host.cpus if cpu.online)
    parts = [_heading(view, box, len({cpu.core for cpu in cpus}), inner)]
    parts += [cpu_block(view, cpus, inner)] if cpus else []
    parts += [memory_block(view, box.node, inner)] if box.node else []
    parts.append(_cards(box, gutter))
    whole = stacked([part for part in parts if part.height], _GAP, top=PAD, left=PAD)
    return Block(width=width, height=whole.height + PAD, groups=whole.groups)


def _heading(view: Scene, box: Box, cores: int, width: float) -> Block:
    gpus = sum(1 for address in box.addresses if view.index.labels.get(address, ("",))[0] == "GPU")
    facts = [count(cores, "core")] if cores else []
    if box.node:
        facts += [format_size(box.node.memory_bytes)] if box.node.memory_bytes is not None else []
        facts += [{"memory": "memory only", "gpu": "a GPU's own memory", "empty": "empty"}.get(box.node.kind or "", "")]
    facts += [count(gpus, "GPU")] if gpus else []
    pieces = [pair(box.name, " · ".join(fact for fact in facts if fact), width, 16, bold=True)]
    if box.name == "node unknown":
        pieces.append(paragraph("No node is known for these devices; affinity is never guessed.", width, 10))
    if box.node and box.node.id not in view.cpus and box.node.cpus != "":
        pieces.append(paragraph("CPUs unknown", width, 10))
    if box.node:
        pieces += [mark_row(mark, width) for mark in check_marks(view, node_subjects(box.node.id))]
    whole = below(pieces)
    return Block(width=width, height=whole.height, groups=(Group(kind="text", shapes=at(whole, 0, 0)),))


def _cards(box: Box, gutter: float) -> Block:
    """Cards in the node's columns, each where there is room highest up; GPUs' cards come first."""
    floor = [0.0] * box.span
    groups: list[Group] = []
    for one in box.cards:
        span = min(one.span, box.span)
        starts = range(box.span - span + 1)
        column = min(starts, key=lambda n, span=span: (max(floor[n : n + span]), n))  # type: ignore[misc]
        y = max(floor[column : column + span])
        groups += shifted(one.block, column * (COLUMN + gutter), y)
        floor[column : column + span] = [y + one.block.height + _GAP] * span
    return Block(width=0, height=max(0.0, max(floor) - _GAP), groups=tuple(groups))
