"""A node's memory as a bar, with the guests that have some of it.

In the picture of a host the bar shows what is used, in huge pages and free; in that of a plan, each guest's part.
"""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.model.host import NumaNode
from hosttune.model.values import format_size
from hosttune.report.picture.guests import Holder, Share
from hosttune.report.picture.host_view import HostView
from hosttune.report.picture.metrics import SMALL, text_width
from hosttune.report.picture.shapes import ASCENT, DESCENT, Block, Group, Rect, Shape, label, stacked
from hosttune.report.picture.text import Piece, beside, chip, paragraph
from hosttune.report.text import memory_facts

_BAR_HIGH = 10.0
_PARTS_HIGH = 15.0  # a bar with letters in it
_SHORTEST = 0.1  # part of the available width: the bar of the smallest node
_THINNEST = 2.0  # a guest's part of the bar


def memory_block(view: HostView, node: NumaNode, width: float, longest: float) -> Block:
    """Return the node's memory as text and as a bar, and the guests' shares.

    The bar of the largest node has the length `longest`.
    """
    shares = tuple((holder, share) for holder in view.guests for share in holder.shares if share.node == node.id)
    words = _given(node, shares, view.memory_known) if view.by_guest else ", ".join(memory_facts(node))
    text = paragraph(words, width, SMALL)
    title = f"memory of node {node.id}: {words}"
    blocks = [_block(Group(kind="memory", shapes=text.shapes, title=title), text)]
    if node.memory_bytes:
        most = max(other.memory_bytes or 0 for other in view.host.numa_nodes)
        long = longest * max(_SHORTEST, node.memory_bytes / most)
        bar = _bar(node, node.memory_bytes, long)
        back = Rect(x=0, y=0, width=long, height=_PARTS_HIGH, style="memory stays", radius=2)
        groups = [Group(kind="memory", shapes=(back,), title="memory that no guest has")]
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
            groups.append(Group(kind="share", shapes=(box, *letter), title=part_of, data=tuple(data)))
            x += max(0.0, wide)
        parts = Block(width=long, height=_PARTS_HIGH, groups=tuple(groups))
        blocks.append(parts if view.by_guest else _block(Group(kind="memory", shapes=bar.shapes, title=title), bar))
    chips = beside([chip(holder, f"{holder.name} {share.text}", width) for holder, share in shares], width)
    blocks += [_block(Group(kind="shares", shapes=chips.shapes), chips)] if shares else []
    return stacked(blocks, 3)


def _block(group: Group, piece: Piece) -> Block:
    return Block(width=piece.width, height=piece.height, groups=(group,))


def _given(node: NumaNode, shares: Sequence[tuple[Holder, Share]], known: bool) -> str:
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
