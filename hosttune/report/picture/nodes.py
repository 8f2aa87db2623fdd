"""A NUMA node as a box: its CPUs and memory above, its part of the PCIe tree below; and the grid of all nodes."""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.model.host import Cpu, NumaNode
from hosttune.model.text import count
from hosttune.model.values import CpuSet, Value, format_size
from hosttune.report.picture.cpus import cpu_block
from hosttune.report.picture.guests import MemoryShare, PictureGuest
from hosttune.report.picture.host_view import HostView, check_marks, node_subjects, trees
from hosttune.report.picture.shapes import (
    ASCENT,
    DESCENT,
    SMALL,
    Rect,
    Shape,
    ShapeBlock,
    ShapeGroup,
    label,
    shifted,
    stacked,
    text_width,
)
from hosttune.report.picture.text import Piece, at, below, beside, chip, mark_row, pair, paragraph
from hosttune.report.picture.tree import COLUMN, WIDE, Card, card
from hosttune.report.text import memory_facts

# --- A node's memory as a bar, with the guests that have some of it ------------------------------------------
# In the picture of a host the bar shows what is used, in huge pages and free; in that of a plan, each guest's part.


_BAR_HIGH = 10.0
_PARTS_HIGH = 15.0  # a bar with letters in it
_SHORTEST = 0.1  # part of the available width: the bar of the smallest node
_THINNEST = 2.0  # a guest's part of the bar


def memory_block(view: HostView, node: NumaNode, width: float, longest: float) -> ShapeBlock:
    """Return the node's memory as text and as a bar, and the guests' shares.

    The bar of the largest node has the length `longest`.
    """
    shares = tuple((holder, share) for holder in view.guests for share in holder.shares if share.node == node.id)
    words = _given(node, shares, view.memory_known) if view.by_guest else ", ".join(memory_facts(node))
    text = paragraph(words, width, SMALL)
    title = f"memory of node {node.id}: {words}"
    blocks = [_block(ShapeGroup(kind="memory", shapes=text.shapes, title=title), text)]
    if node.memory_bytes:
        most = max(other.memory_bytes or 0 for other in view.host.numa_nodes)
        long = longest * max(_SHORTEST, node.memory_bytes / most)
        bar = _bar(node, node.memory_bytes, long)
        back = Rect(x=0, y=0, width=long, height=_PARTS_HIGH, style="memory stays", radius=2)
        groups = [ShapeGroup(kind="memory", shapes=(back,), title="memory that no guest has")]
        x = 0.0
        for holder, share in shares:
            wide = min(max(_THINNEST, long * share.memory_bytes / node.memory_bytes), long - x)
            box = Rect(x=x, y=0, width=max(0.0, wide - 1), height=_PARTS_HIGH, style=f"g{holder.colour}", radius=2)
            letter: tuple[Shape, ...] = ()
            if text_width(holder.letter, SMALL, bold=True) + 2 <= wide:
                top = (_PARTS_HIGH - SMALL * (ASCENT + DESCENT)) / 2
                style = f"on{holder.colour}"
                letter = (
                    label(x + wide / 2, top, holder.letter, SMALL, most=wide, style=style, bold=True, anchor="middle"),
                )
            data = [("held", holder.letter), ("node", str(share.node)), ("bytes", str(share.memory_bytes))]
            data += [("page-bytes", str(share.page_bytes))] if share.page_bytes else []
            part_of = f"guest {holder.letter}, {holder.name}: {share.text} on node {share.node}"
            groups.append(ShapeGroup(kind="share", shapes=(box, *letter), title=part_of, data=tuple(data)))
            x += max(0.0, wide)
        parts = ShapeBlock(width=long, height=_PARTS_HIGH, groups=tuple(groups))
        blocks.append(
            parts if view.by_guest else _block(ShapeGroup(kind="memory", shapes=bar.shapes, title=title), bar)
        )
    chips = beside([chip(holder, f"{holder.name} {share.text}", width) for holder, share in shares], width)
    blocks += [_block(ShapeGroup(kind="shares", shapes=chips.shapes), chips)] if shares else []
    return stacked(blocks, 3)


def _block(group: ShapeGroup, piece: Piece) -> ShapeBlock:
    return ShapeBlock(width=piece.width, height=piece.height, groups=(group,))


def _given(node: NumaNode, shares: Sequence[tuple[PictureGuest, MemoryShare]], known: bool) -> str:
    """Return the node's memory, and how much of it no guest has: at most that much if a guest's memory is unknown."""
    if node.memory_bytes is None:
        return "memory unknown"
    given = sum(share.memory_bytes for _, share in shares)
    if given >= node.memory_bytes:
        return f"memory {format_size(node.memory_bytes)}, all for guests"
    rest = f"{'' if known else 'at most '}{format_size(node.memory_bytes - given)}"
    return f"memory {format_size(node.memory_bytes)}, {rest if given or not known else 'all'} free"


def _bar(node: NumaNode, total: int, width: float) -> Piece:
    """Return the parts from the left: in use, huge pages in use, huge pages free; the rest is free or unknown."""
    pages = node.hugepages or ()
    pool = sum((size.total or 0) * size.size_bytes for size in pages)
    spare = sum(min(size.free or 0, size.total or 0) * size.size_bytes for size in pages)
    used = max(0, total - node.free_bytes - pool) if node.free_bytes is not None else 0
    rest = "free" if node.free_bytes is not None else "unknown"
    shapes: list[Shape] = [Rect(x=0, y=0, width=width, height=_BAR_HIGH, style=f"memory {rest}", radius=2)]
    x = 0.0
    for amount, style in ((used, "memory used"), (pool - spare, "memory pages"), (spare, "memory spare")):
        wide = min(width * amount / total, width - x)
        if wide > 0:
            shapes.append(Rect(x=x, y=0, width=wide, height=_BAR_HIGH, style=style, radius=2))
        x += max(0.0, wide)
    return Piece(width=width, height=_BAR_HIGH, shapes=tuple(shapes))


# --- a node as a box -----------------------------------------------------------------------------------------


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


class NodeGrid(Value, frozen=True, kw_only=True):
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


def grid(view: HostView, places: dict[int | None, tuple[str, ...]], gutter: float) -> NodeGrid:
    """Return the nodes in order, as many side by side as fit.

    Devices of unknown node are in a box of their own at the end.
    """
    boxes = [_box(view, node, places.get(node.id, ()), gutter) for node in _nodes_to_draw(view, places)]
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
    wide = (tuple(_widened(view, *stretched, gutter) for stretched in _stretched(row, columns, gutter)) for row in rows)
    return NodeGrid(rows=tuple(wide), columns=columns, gutter=gutter)


def _cpus_without_node(view: HostView) -> tuple[Cpu, ...]:
    """Return the CPUs whose node is unknown or not in the document."""
    nodes = {node.id for node in view.host.numa_nodes}
    return tuple(cpu for node, cpus in view.cpus.items() if node not in nodes for cpu in cpus)


def _nodes_to_draw(view: HostView, places: dict[int | None, tuple[str, ...]]) -> list[NumaNode]:
    """Return the nodes that are not empty. A board with memory on its GPUs may have dozens of empty nodes."""
    nodes = sorted(view.host.numa_nodes, key=lambda node: node.id)
    some = [n for n in nodes if n.id in view.cpus or n.memory_bytes or n.memory_bytes is None or places.get(n.id)]
    return some or nodes[:1]


def _box(view: HostView, node: NumaNode | None, addresses: tuple[str, ...], gutter: float) -> Box:
    cards = [card(view, bus, places, WIDEST, gutter) for bus, places in trees(view, addresses).items()]
    cards.sort(key=lambda bus_card: not bus_card.has_gpu)  # a stable sort: the bus order stays
    tall = sum(bus_card.block.height * bus_card.span for bus_card in cards)
    loud = sum(bus_card.span for bus_card in cards if bus_card.has_gpu)
    span = max(1, min(WIDEST, max(loud, round(tall / 600), max((bus_card.span for bus_card in cards), default=1))))
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
    cards = tuple(
        bus_card if bus_card.has_gpu else card(view, bus_card.bus, bus_card.places, span, gutter, WIDE)
        for bus_card in box.cards
    )
    return Box(node=box.node, name=box.name, cards=cards, span=span, addresses=box.addresses)


def row_block(view: HostView, whole: NodeGrid, row: Sequence[Box]) -> ShapeBlock:
    """Return one row of nodes: together as wide as the grid, and all as tall as the tallest."""
    gutter, full = whole.gutter, whole.full
    gap = gutter / 2 + PAD
    spare = full - _row_width(row, gutter)
    blocks = [_node(view, box, width_of(box.span, gutter) + spare / len(row), whole) for box in row]
    high = max(block.height for block in blocks)
    groups: list[ShapeGroup] = []
    x = 0.0
    for box, block in zip(row, blocks, strict=True):
        style = "node unknown" if box.name == _UNKNOWN else "node"
        frame = Rect(x=0, y=0, width=block.width, height=high, style=style, radius=9)
        back = ShapeGroup(kind="node", name=box.name, shapes=(frame,), title=box.name)
        groups += shifted(ShapeBlock(width=block.width, height=high, groups=(back, *block.groups)), x, 0)
        x += block.width + gap
    return ShapeBlock(width=full, height=high, groups=tuple(groups))


def _row_width(row: Sequence[Box], gutter: float) -> float:
    return _widths(_columns(row), len(row), gutter)


def _node(view: HostView, box: Box, width: float, whole: NodeGrid) -> ShapeBlock:
    inner = width - 2 * PAD
    cpus = view.cpus.get(box.node.id, ()) if box.node else ()
    if box.name == _NONE or (box.name == _UNKNOWN and view.host.numa_nodes):
        cpus = _cpus_without_node(view)
    parts = [_heading(view, box, len({cpu.core for cpu in cpus}), inner)]
    parts += [cpu_block(view, cpus, inner)] if cpus else []
    parts += [memory_block(view, box.node, inner, whole.bar)] if box.node else []
    # Cards with GPUs come first.
    floor = [0.0] * box.span
    groups: list[ShapeGroup] = []
    for bus_card in box.cards:
        span = min(bus_card.span, box.span)
        heights = [max(floor[n : n + span]) for n in range(box.span - span + 1)]
        y = min(heights)
        column = heights.index(y)
        groups += shifted(bus_card.block, column * (COLUMN + whole.gutter), y)
        floor[column : column + span] = [y + bus_card.block.height + _GAP] * span
    parts.append(ShapeBlock(width=0, height=max(0.0, max(floor) - _GAP), groups=tuple(groups)))
    content = stacked([part for part in parts if part.height], _GAP, top=PAD, left=PAD)
    return ShapeBlock(width=width, height=content.height + PAD, groups=content.groups)


def _heading(view: HostView, box: Box, cores: int, width: float) -> ShapeBlock:
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
    return ShapeBlock(width=width, height=whole.height, groups=(ShapeGroup(kind="text", shapes=at(whole, 0, 0)),))
