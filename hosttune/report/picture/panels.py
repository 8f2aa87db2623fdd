"""The parts around the nodes: the title above; distances, fabric partitions and problems below."""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.model.listing import short_list, some
from hosttune.model.plan import Plan
from hosttune.model.text import count
from hosttune.model.values import CpuSet, format_size
from hosttune.report.outcomes import tally
from hosttune.report.picture.cpus import cores_of
from hosttune.report.picture.host_view import HostView, PictureMark
from hosttune.report.picture.shapes import SMALL, Rect, Shape, ShapeBlock, ShapeGroup, label, shifted, text_width
from hosttune.report.picture.text import Piece, at, below, beside, chip, mark_row, paragraph, phrase
from hosttune.report.plan import verdict
from hosttune.report.text import header, problem_lines
from hosttune.report.text import title as title_of

# --- the distances between NUMA nodes as a small matrix ------------------------------------------------------


_HIGH = 18.0
_APART = 2.0
_LOCAL = 10  # ACPI 6.5, 5.2.17: the distance of a node to itself


def distances_block(view: HostView, width: float) -> ShapeBlock | None:
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
            style = "pair on" if far is not None and far <= _LOCAL else "pair"
            box = Rect(x=names + m * (wide + _APART), y=y, width=wide, height=_HIGH, style=style, radius=2)
            text = "?" if far is None else str(far)
            shapes += [box, label(box.x + wide / 2, y + 2.5, text, SMALL, most=wide, anchor="middle")]
    room = names + len(shown) * (wide + _APART)
    table = Piece(width=room, height=(len(shown) + 1) * (_HIGH + _APART), shapes=tuple(shapes))
    more = len(nodes) - len(shown)
    rest = [paragraph(f"and {count(more, 'node')} more, in `hosttune discover -o json`", width, SMALL)] if more else []
    whole = below((table, *rest))
    group = ShapeGroup(kind="distances", shapes=at(whole, 0, 0), title="distances between nodes, 10 = local")
    return ShapeBlock(width=room if not more else width, height=whole.height, groups=(group,))


# --- the panels ----------------------------------------------------------------------------------------------


_LABEL = 92.0
MOST_PROBLEMS = 24
MOST_UNPLACED = 12
_LONGEST_LIST = 90  # characters of a list of CPUs
_OF_THE_MACHINE = ("CPUs", "memory", "devices")  # rows of the header that the picture of a plan has


def title_block(view: HostView, elsewhere: Sequence[PictureMark], width: float) -> ShapeBlock:
    """Return the host's name, facts about the whole machine and the plan, and faults of the whole machine."""
    name, _, machine = title_of(view.host).partition(": ")
    pieces = [
        Piece(width=width, height=24 * 1.25, shapes=(label(0, 0, name, 24, most=width, bold=True),)),
        paragraph(machine, width, 12, lines=2),
    ]
    rows = [row for row in header(view.host) if not view.by_guest or row[0] in _OF_THE_MACHINE]
    rows += [("checks", tally(view.checked))] if view.checked else []
    if view.plan:
        kept = f"{_cpus(view.housekeeping)} stay with the host" if view.housekeeping else "no CPU"
        rows += [("plan", verdict(view.plan).partition(": ")[2]), ("housekeeping", kept)]
    rows += [("free", _free(view))] if view.by_guest else []
    pieces += [_fact(head, text.replace(" x ", " × "), width) for head, text in rows]
    marks = [*elsewhere, *(_unplaced(view.plan) if view.plan else ()), *(_unknown(view) if view.by_guest else ())]
    pieces += [mark_row(mark, width) for mark in marks]
    whole = below(pieces, 3)
    return ShapeBlock(width=width, height=whole.height, groups=(ShapeGroup(kind="title", shapes=at(whole, 0, 0)),))


def _fact(head: str, text: str, width: float) -> Piece:
    body = paragraph(text, width - _LABEL, SMALL, lines=3, style="")
    shapes = (label(0, 0, head, SMALL, most=_LABEL - 4, style="dim"), *at(body, _LABEL, 0))
    return Piece(width=width, height=body.height, shapes=shapes)


def _cpus(ids: CpuSet) -> str:
    """Return CPUs as a list, or their number if the list is too long for a line; the strips show which they are."""
    text = short_list(ids)
    return f"CPUs {text}" if len(text) <= _LONGEST_LIST else count(len(ids), "CPU")


def _free(view: HostView) -> str:
    """Return the whole cores, the memory by node and the GPUs that no guest has."""
    cores = cores_of(cpu for cpus in view.cpus.values() for cpu in cpus)
    taken = view.housekeeping | view.cpu_holders.keys()
    free = CpuSet(cpu.id for core in cores if taken.isdisjoint(cpu.id for cpu in core) for cpu in core)
    facts = [f"{'' if view.cpus_known else 'at most '}{_cpus(free)}" if free else "no whole core"]
    gpus = [gpu.address for gpu in view.host.index.accelerators]
    slices = {address for holder in view.guests for address, _ in holder.mig}
    left = [address for address in gpus if address not in view.holders and address not in slices]
    most = "at most " if view.host.guests is None and left else ""
    facts += [f"{most}{len(left)} of {len(gpus)} GPUs" + (f" ({some(left)})" if left else "")] if gpus else []
    return ", ".join([*facts, *_free_memory(view)])


def _free_memory(view: HostView) -> list[str]:
    """Return how much memory of all nodes no guest has; nothing if a node's memory is unknown."""
    sizes = [node.memory_bytes for node in view.host.numa_nodes]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return []
    given = sum(share.memory_bytes for holder in view.guests for share in holder.shares if share.node is not None)
    most = "" if view.memory_known else "at most "
    return [f"{most}{format_size(max(0, sum(known) - given))} memory"]


def _unknown(view: HostView) -> list[PictureMark]:
    """Return why what no guest seems to have may be in use."""
    texts = ["the guests of this host are unknown"] if view.host.guests is None else []
    for what, names in (
        ("run on any CPU, because they are not pinned", [guest.name for guest in view.guests if not guest.pinned]),
        ("have memory on unknown nodes", [guest.name for guest in view.guests if not guest.placed]),
    ):
        texts += [f"{what}: {some(names)}"] if names else []
    return [PictureMark(sign="unknown", text=f"what looks free may be in use: {text}", hover_text="") for text in texts]


def _unplaced(plan: Plan) -> list[PictureMark]:
    marks = [
        PictureMark(sign="fail", text=f"NOT placed: {left_out.guest}: {'; '.join(left_out.why)}", hover_text="")
        for left_out in plan.unplaced[:MOST_UNPLACED]
    ]
    more = len(plan.unplaced) - len(marks)
    return [*marks, *([PictureMark(sign="fail", text=f"and {more} more NOT placed", hover_text="")] if more else [])]


def panel(name: str, content: ShapeBlock, width: float) -> ShapeBlock:
    """Return a frame of this width with a heading and the content."""
    high = content.height + 42
    back = Rect(x=0, y=0, width=width, height=high, style="panel", radius=9)
    head = label(12, 10, name, 13, most=width - 24, bold=True)
    group = ShapeGroup(kind="panel", name=name, shapes=(back, head))
    cuts = tuple(31 + y for y in content.cuts)
    return ShapeBlock(width=width, height=high, groups=(group, *shifted(content, 12, 31)), cuts=cuts)


def problems_panel(view: HostView, width: float) -> ShapeBlock:
    """Return the host's problems, with the numbers that marks refer to."""
    lines = problem_lines(view.host)
    pieces = []
    for n, line in enumerate(lines[:MOST_PROBLEMS], 1):
        body = paragraph(line, width - 24 - 28, SMALL, lines=3, style="")
        number = label(0, 0, f"{n}.", SMALL, most=26, style="dim")
        pieces.append(Piece(width=width - 24, height=body.height, shapes=(number, *at(body, 28, 0))))
    if len(lines) > MOST_PROBLEMS:
        more = f"and {len(lines) - MOST_PROBLEMS} more, which `hosttune discover` lists"
        pieces.append(paragraph(more, width - 24, SMALL))
    whole = below(pieces, 3)
    content = ShapeBlock(
        width=width - 24, height=whole.height, groups=(ShapeGroup(kind="text", shapes=at(whole, 0, 0)),)
    )
    return panel("Problems", content, width)


def distances_panel(view: HostView, width: float) -> ShapeBlock | None:
    """Return the distances between nodes; None if there is nothing to show."""
    matrix = distances_block(view, width - 24)
    return panel("Distances between nodes", matrix, width) if matrix else None


def partitions_panel(view: HostView, width: float) -> ShapeBlock | None:
    """Return the fabric partitions that planned guests have, with their GPUs; None if none has one."""
    inner = width - 24
    rows = []
    for holder in view.guests:
        if holder.planned and holder.planned.fabric_partition is not None:
            name = chip(holder, holder.name, inner / 3)
            number = holder.planned.fabric_partition if holder.planned else None
            listed = (view.host.fabric.partitions if view.host.fabric else None) or ()
            modules = next((partition.module_ids for partition in listed if partition.id == number), ())
            gpus = [f"module {gpu.module_id} {gpu.address}" for gpu in view.host.gpus if gpu.module_id in modules]
            text = phrase(
                f"partition {number}" + (f": {some(gpus, 8)}" if gpus else ""), inner - name.width - 8, name.height
            )
            rows.append(beside((name, text), inner))
    if not rows:
        return None
    whole = below(rows, 4)
    content = ShapeBlock(width=inner, height=whole.height, groups=(ShapeGroup(kind="text", shapes=at(whole, 0, 0)),))
    return panel("Fabric partitions", content, width)
