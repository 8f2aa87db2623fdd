"""A node's memory as a bar: used, in huge pages, free; and the guests that have some of it."""

from __future__ import annotations

from hosttune.model.host import NumaNode
from hosttune.model.values import format_size
from hosttune.report.picture.host_view import HostView
from hosttune.report.picture.shapes import Block, Group, Rect, Shape
from hosttune.report.picture.text import Piece, at, below, beside, chip, paragraph
from hosttune.report.text import memory_facts

_BAR_HIGH = 10.0
_SHORTEST = 0.1  # part of the available width: the bar of the smallest node


def memory_block(view: HostView, node: NumaNode, width: float, longest: float) -> Block:
    """Return the node's memory as text and as a bar, and the guests' shares.

    The bar of the largest node has the length `longest`.
    """
    words = ", ".join(memory_facts(node))
    pieces = [paragraph(words, width, 10)]
    if node.memory_bytes:
        most = max(other.memory_bytes or 0 for other in view.host.numa_nodes)
        pieces.append(_bar(node, node.memory_bytes, longest * max(_SHORTEST, node.memory_bytes / most)))
    shares = _shares(view, node.id, width)
    pieces += [shares] if shares.shapes else []
    whole = below(pieces, 3)
    title = f"memory of node {node.id}: {words}"
    return Block(width=width, height=whole.height, groups=(Group(kind="memory", shapes=at(whole, 0, 0), title=title),))


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


def _shares(view: HostView, node: int, width: float) -> Piece:
    chips = [
        chip(holder, f"{holder.name} {format_size(share.memory_bytes)}", width)
        for holder, guest in zip(view.guests, view.host.guests or (), strict=True)
        for share in guest.memory or ()
        if share.node == node
    ]
    return beside(chips, width)
