"""The whole picture: title, rows of nodes, links between GPUs, panels below. Pure: a host in, shapes out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hosttune.model.devicepath import DevicePath
from hosttune.model.host import Host
from hosttune.model.plan import Plan
from hosttune.model.validation import CheckResult
from hosttune.model.values import Value
from hosttune.report.picture.fabric import LANE, MOST_DRAWN, Bundle, Stub, bundles, fabric_panel, row_lines
from hosttune.report.picture.guest_cards import guests_panel
from hosttune.report.picture.host_view import HostView, marks_elsewhere, node_subjects, places_of, view_of_host
from hosttune.report.picture.nodes import PAD, grid, row_block
from hosttune.report.picture.panels import distances_panel, partitions_panel, problems_panel, title_block
from hosttune.report.picture.route import path_groups, route_style
from hosttune.report.picture.shapes import (
    SIGN,
    SMALL,
    Rect,
    Shape,
    ShapeBlock,
    ShapeGroup,
    ShapeLine,
    Sign,
    Text,
    flowed,
    label,
    shifted,
)
from hosttune.report.picture.tree import COLUMN
from hosttune.report.plan import verdict

# --- the legend: the signs and colours that a picture uses, with their meanings ------------------------------


_ICON = 14.0


def legend(groups: Iterable[ShapeGroup], width: float) -> ShapeBlock:
    """Return the signs and colours that this picture uses, with their meanings."""
    shapes = [shape for group in groups for shape in group.shapes]
    styles = {
        style for shape in shapes for style in ((f"sign-{shape.kind}",) if isinstance(shape, Sign) else _classes(shape))
    }
    items = [_item(icon, words) for key, icon, words in _entries() if key in styles]
    return flowed(items, width, 6)


def _classes(shape: Shape) -> tuple[str, ...]:
    if isinstance(shape, Text | Sign):
        return ()
    return (shape.style, *(word for word in shape.style.split() if word != "core"))


def _item(icon: tuple[Shape, ...], words: str) -> ShapeBlock:
    text = label(_ICON + 6, 1.5, words, SMALL, most=400, style="dim")
    shapes = (*icon, text)
    return ShapeBlock(width=_ICON + 6 + text.width + 12, height=16, groups=(ShapeGroup(kind="legend", shapes=shapes),))


def _entries() -> Iterable[tuple[str, tuple[Shape, ...], str]]:
    boxes = (
        ("gpu", "GPU"),
        ("nic", "NIC"),
        ("nvme", "NVMe drive"),
        ("nvswitch", "NVSwitch"),
        ("display", "other display"),
        ("other", "other function"),
    )
    for kind, words in boxes:
        yield f"device {kind}", (_swatch(f"device {kind}"),), words
    yield "ungiven", (_swatch("device ungiven"),), "device that no guest has"
    yield "switch", (_swatch("switch"),), "PCIe switch"
    yield "pcie", tuple(_line(y, "pcie", thick) for y, thick in ((2, 1.5), (7, 3.5), (13, 5))), "link ×1, ×8, ×16"
    yield "degraded", (_line(8, "pcie degraded", 3.5),), "degraded link"
    yield "fabric", (_line(8, "fabric", 3),), "links between GPUs"
    yield "route r0", (_line(8, "route r0", 4),), "path 1"
    yield "route r1", (_line(8, "route r1", 4),), "path 2"
    yield "core", (_cell("core"),), "core"
    yield "cache", (Rect(x=0, y=1, width=14, height=14, style="cache", radius=3),), "cores of one last-level cache"
    yield "core free", (_cell("core free"),), "core that no guest has"
    yield (
        "housekeeping",
        (_cell("core housekeeping"), ShapeLine(points=((3.5, 11.5), (10.5, 4.5)), style="hatch", thick=2)),
        "core that stays with the host",
    )
    yield "isolated", (_cell("core isolated"),), "isolated core"
    yield "hidden", (_cell("core hidden"),), "core hidden from guests"
    yield "g0", (_swatch("g0"), _letter("A", "on0")), "held by guest A"
    yield "several", (_swatch("several"), _letter("+", "onguest")), "held by several guests"
    yield "memory stays", (_cell("memory stays"),), "memory that no guest has"
    yield "memory free", (_cell("memory free"),), "memory free"
    yield "memory unknown", (_cell("memory unknown"),), "use of memory unknown"
    yield "memory used", (_cell("memory used"),), "memory used"
    yield "memory pages", (_cell("memory pages"),), "huge pages in use"
    yield "memory spare", (_cell("memory spare"),), "huge pages free"
    yield "sign-fail", (Sign(x=1, y=2, kind="fail"),), "a check failed"
    yield "sign-warn", (Sign(x=1, y=2, kind="warn"),), "degraded, or a check warns"
    yield "sign-slow", (Sign(x=1, y=2, kind="slow"),), "slowest link of a path"
    yield "sign-unknown", (Sign(x=1, y=2, kind="unknown"),), "doubtful, or a check is unknown"


def _swatch(style: str) -> Rect:
    return Rect(x=0, y=1, width=_ICON, height=_ICON, style=style, radius=3)


def _cell(style: str) -> Rect:
    return Rect(x=1.5, y=2.5, width=SIGN, height=SIGN, style=style, radius=2)


def _line(y: float, style: str, thick: float) -> ShapeLine:
    return ShapeLine(points=((0, y), (_ICON, y)), style=style, thick=thick)


def _letter(text: str, style: str) -> Text:
    return label(_ICON / 2, 1.5, text, SMALL, most=_ICON, style=style, bold=True, anchor="middle")


# --- the picture ---------------------------------------------------------------------------------------------


MARGIN = 20.0
_GAP = 14.0
_HEAD = 16.0  # font size of the headings of two pictures


class Drawing(Value, frozen=True, kw_only=True):
    """Shapes in the order in which they are painted, and the size of the viewBox.

    `cuts` are the heights at which a printed page may end without cutting a text.
    """

    width: float
    height: float
    groups: tuple[ShapeGroup, ...]
    name: str
    words: str  # what the picture shows, as text for people who cannot see it
    cuts: tuple[float, ...] = ()


def picture(host: Host, results: Iterable[CheckResult] = (), paths: Sequence[DevicePath] = ()) -> Drawing:
    """Lay out a host.

    `results` are results of checks: failures and unknowns are marked where their subject is drawn. `paths` between
    devices are drawn over it, each with its slowest link marked; which go together: `route.pictures_of`.
    """
    return _drawn(view_of_host(host, results, paths=paths))


def plan_picture(host: Host, plan: Plan | None, *, names: Sequence[str] = ()) -> Drawing:
    """Lay out a host with each guest in its colour: those of the plan, and those that are there and not in it.

    Without a plan: the guests as they are now. `names` gives guests of these names the first letters and colours.
    """
    return _drawn(view_of_host(host, plan=plan, by_guest=True, names=names))


def side_by_side(left: Drawing, right: Drawing) -> Drawing:
    """Return the pictures before and after a change beside each other, each below its heading."""
    x = left.width + _GAP
    blocks = ((left, 0.0, "before"), (right, x, "after"))
    groups: list[ShapeGroup] = []
    for drawing, at_x, head in blocks:
        title = label(at_x + MARGIN, MARGIN, head, _HEAD, most=drawing.width - 2 * MARGIN, style="dim", bold=True)
        groups.append(ShapeGroup(kind="head", shapes=(title,)))
        groups += shifted(
            ShapeBlock(width=drawing.width, height=drawing.height, groups=drawing.groups), at_x, MARGIN + _HEAD
        )
    return Drawing(
        width=x + right.width,
        height=MARGIN + _HEAD + max(left.height, right.height),
        groups=tuple(groups),
        name=f"{left.name}; {right.name}" if left.name != right.name else left.name,
        words=f"before: {left.words}; after: {right.words}",
    )


def _drawn(view: HostView) -> Drawing:
    host = view.host
    drawn_bundles = bundles(host)
    places = places_of(view)
    gutter = 14.0 + 5 * max(0, _lanes(drawn_bundles, places) - 1)
    whole = grid(view, places, gutter)
    full = whole.full
    groups: list[ShapeGroup] = []
    rows: list[tuple[float, tuple[ShapeGroup, ...]]] = []
    cuts: list[float] = []
    y = 0.0
    for row in whole.rows:
        cuts.append(y - _GAP / 2)
        block = row_block(view, whole, row)
        placed = shifted(block, 0, y)
        lanes = sum(1 for bundle in drawn_bundles[:MOST_DRAWN] if _inside(placed, bundle))
        rows.append((y + block.height, placed))
        y += block.height + (LANE * lanes + 10 if lanes else 0) + _GAP
        groups += placed
    groups += path_groups(view, groups)
    below = _below(view, groups, drawn_bundles, rows, y, full, gutter)
    width = full + (LANE * min(len(drawn_bundles), MOST_DRAWN) + 8 if drawn_bundles else 0)
    body = ShapeBlock(width=width, height=below.height, groups=(*groups, *below.groups), cuts=(*cuts, *below.cuts))
    return _framed(view, body, full)


def _lanes(found: Sequence[Bundle], places: dict[int | None, tuple[str, ...]]) -> int:
    """Return the largest number of bundles that meet on one node: each needs a lane beside its GPUs."""
    return max(
        (sum(1 for b in found[:MOST_DRAWN] if set(b.gpus) & set(addresses)) for addresses in places.values()), default=0
    )


def _inside(groups: Iterable[ShapeGroup], bundle: Bundle) -> tuple[ShapeGroup, ...]:
    return tuple(group for group in groups if group.name in bundle.gpus and group.kind in ("gpu", "display"))


def _below(
    view: HostView,
    groups: Sequence[ShapeGroup],
    found: Sequence[Bundle],
    rows: Sequence[tuple[float, tuple[ShapeGroup, ...]]],
    top: float,
    full: float,
    gutter: float,
) -> ShapeBlock:
    """Return everything below the nodes. Its height is the height of the whole picture."""
    placed: list[ShapeGroup] = []
    cuts: list[float] = []
    y = top
    if found:
        cuts.append(y - _GAP / 2)
        panel, entries = fabric_panel(view.host, found, full)
        shapes: list[Shape] = []
        for n, bundle in enumerate(found[:MOST_DRAWN]):
            shapes += _bundle_lines(bundle, n, found, rows, y + entries[n], full, gutter)
        shapes += _link_paths(view, found, rows, full, gutter)
        placed.append(ShapeGroup(kind="links", shapes=tuple(shapes)))
        placed += shifted(panel, 0, y)
        y += panel.height + _GAP
    panels = [guests_panel(view, full)] if view.guests else []
    panels += [
        shape_block for shape_block in (partitions_panel(view, full), distances_panel(view, full)) if shape_block
    ]
    panels += [problems_panel(view, full)] if view.host.problems else []
    for block in panels:
        cuts += (y - _GAP / 2, *(y + inner for inner in block.cuts))
        placed += shifted(block, 0, y)
        y += block.height + _GAP
    key = legend((*groups, *placed), full)
    return ShapeBlock(
        width=full, height=y + key.height, groups=(*placed, *shifted(key, 0, y)), cuts=(*cuts, y - _GAP / 2)
    )


def _bundle_lines(
    bundle: Bundle,
    number: int,
    found: Sequence[Bundle],
    rows: Sequence[tuple[float, tuple[ShapeGroup, ...]]],
    entry: float,
    full: float,
    gutter: float,
) -> list[Shape]:
    """Return a bundle's lines: through every row that has its GPUs, then down the trunk into the panel."""
    trunk = full + 8 + LANE * number
    shapes: list[Shape] = []
    buses: list[float] = []
    for bottom, placed in rows:
        there = [bundle for bundle in found[:MOST_DRAWN] if _inside(placed, bundle)]
        if bundle not in there:
            continue
        buses.append(bottom + 8 + LANE * there.index(bundle))
        shapes += row_lines(_stubs(placed, bundle, there, gutter), buses[-1], trunk)
    points = ((trunk, min(buses, default=entry)), (trunk, entry), (full, entry))
    return [*shapes, ShapeLine(points=points, style="fabric", thick=3)]


def _stubs(placed: Sequence[ShapeGroup], bundle: Bundle, there: Sequence[Bundle], gutter: float) -> list[Stub]:
    """Return where the lines of a bundle's GPUs in one row of nodes start, and the lanes that they use."""
    frames = [(group.shapes[0], group) for group in placed if group.kind == "node"]
    stubs = []
    for gpu in _inside(placed, bundle):
        box = gpu.shapes[0]
        frame = next(
            f for f, _ in frames if isinstance(f, Rect) and isinstance(box, Rect) and f.x < box.x < f.x + f.width
        )
        if not isinstance(box, Rect) or not isinstance(frame, Rect):
            continue
        column = int((box.x - frame.x - PAD) // (COLUMN + gutter))
        edge = frame.x + PAD + column * (COLUMN + gutter) + COLUMN
        near = [bundle for bundle in there if any(_within(g, frame) for g in _inside(placed, bundle))]
        stubs.append(Stub(x=box.x + box.width, y=box.y + 14, lane=edge + 5 + 5 * near.index(bundle)))
    return stubs


def _link_paths(
    view: HostView,
    found: Sequence[Bundle],
    rows: Sequence[tuple[float, tuple[ShapeGroup, ...]]],
    full: float,
    gutter: float,
) -> list[Shape]:
    """Return the paths that go over links between GPUs, drawn over the bundle's own lines."""
    shapes: list[Shape] = []
    for number, path in enumerate(view.paths):
        for n, bundle in enumerate(found[:MOST_DRAWN]):
            if not path.hops or path.hops[0].kind != "links" or not {path.start, path.end} <= set(bundle.gpus):
                continue
            trunk, ends = full + 8 + LANE * n, []
            for bottom, placed in rows:
                there = [bundle for bundle in found[:MOST_DRAWN] if _inside(placed, bundle)]
                stubs = _stubs(placed, bundle, there, gutter)
                bus = bottom + 8 + LANE * there.index(bundle) if bundle in there else bottom
                ends += [
                    (stub, bus)
                    for gpu, stub in zip(_inside(placed, bundle), stubs, strict=True)
                    if gpu.name in (path.start, path.end)
                ]
            (a, bus_a), (b, bus_b) = ends
            across = ((trunk, bus_a), (trunk, bus_b)) if bus_a != bus_b else ()
            points = ((a.x, a.y), (a.lane, a.y), (a.lane, bus_a), *across, (b.lane, bus_b), (b.lane, b.y), (b.x, b.y))
            shapes.append(ShapeLine(points=points, style=route_style(number), thick=4))
    return shapes


def _within(group: ShapeGroup, frame: Rect) -> bool:
    box = group.shapes[0]
    return isinstance(box, Rect) and frame.x < box.x < frame.x + frame.width


def _framed(view: HostView, block: ShapeBlock, full: float) -> Drawing:
    """Add the title on top, and a margin around everything."""
    host = view.host
    names = {group.name for group in block.groups if group.kind not in ("bridge", "panel", "node")}
    boxes = {group.name for group in block.groups if group.kind == "node"}
    nodes = [node.id for node in view.host.numa_nodes if f"node {node.id}" in boxes]
    head = title_block(
        view, marks_elsewhere(view, names | {subject for node in nodes for subject in node_subjects(node)}), full
    )
    top = MARGIN + head.height + _GAP
    body = shifted(block, MARGIN, top)
    counts = [
        f"{len(host.numa_nodes)} NUMA nodes",
        f"{len(host.index.accelerators)} GPUs",
        f"{sum(1 for nic in host.nics if not nic.physfn)} NICs",
        f"{len(host.nvme)} NVMe drives",
        "guests unknown" if host.guests is None else f"{len(host.guests)} guests",
        f"{len(host.problems)} problems",
    ]
    if view.plan:
        counts.append(verdict(view.plan))
    return Drawing(
        width=block.width + 2 * MARGIN,
        height=top + block.height + MARGIN,
        groups=(*shifted(head, MARGIN, MARGIN), *body),
        name=f"{'Guests on' if view.by_guest else 'Topology of'} {host.hostname or 'an unnamed host'}",
        words=", ".join(counts),
        cuts=tuple(float(round(top + y)) for y in block.cuts),
    )
