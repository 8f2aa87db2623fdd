"""The distances between NUMA nodes as a small matrix."""

from __future__ import annotations

from hosttune.model.text import count
from hosttune.report.picture.host_view import HostView
from hosttune.report.picture.metrics import SMALL, text_width
from hosttune.report.picture.shapes import Block, Group, Rect, Shape, label
from hosttune.report.picture.text import Piece, at, below, paragraph

_HIGH = 18.0
_APART = 2.0
_LOCAL = 10  # ACPI 6.5, 5.2.17: the distance of a node to itself


def distances_block(view: HostView, width: float) -> Block | None:
    """Return the matrix: from the row's node to the column's. None if no distance between two nodes is known.

    Nodes that do not fit the width are counted below it.
    """
    nodes = sorted(view.host.numa_nodes, key=lambda node: node.id)
    if len(nodes) < 2 or not any(node.distances for node in nodes):
        return None
    figures = [str(far) for node in nodes for far in (node.distances or {}).values()]
    wide = max(text_width(text, SMALL) for text in (*figures, *(str(node.id) for node in nodes))) + 10
    names = text_width(f"node {nodes[-1].id}", SMALL) + 8
    shown = nodes[: max(1, int((width - names) // (wide + _APART)))]
    shapes: list[Shape] = []
    for n, node in enumerate(shown):
        x, y = names + n * (wide + _APART), (n + 1) * (_HIGH + _APART)
        shapes.append(label(x + wide / 2, 2.5, str(node.id), SMALL, most=wide, style="dim", anchor="middle"))
        shapes.append(label(0, y + 2.5, f"node {node.id}", SMALL, most=names, style="dim"))
        for m, other in enumerate(shown):
            far = (node.distances or {}).get(str(other.id))
            box = Rect(x=names + m * (wide + _APART), y=y, width=wide, height=_HIGH, style=_style(far), radius=2)
            text = "?" if far is None else str(far)
            shapes += [box, label(box.x + wide / 2, y + 2.5, text, SMALL, most=wide, anchor="middle")]
    room = names + len(shown) * (wide + _APART)
    table = Piece(width=room, height=(len(shown) + 1) * (_HIGH + _APART), shapes=tuple(shapes))
    more = len(nodes) - len(shown)
    rest = [paragraph(f"and {count(more, 'node')} more, in `hosttune discover -o json`", width, SMALL)] if more else []
    whole = below((table, *rest))
    group = Group(kind="distances", shapes=at(whole, 0, 0), title="distances between nodes, 10 = local")
    return Block(width=room if not more else width, height=whole.height, groups=(group,))


def _style(far: int | None) -> str:
    return "pair on" if far is not None and far <= _LOCAL else "pair"
