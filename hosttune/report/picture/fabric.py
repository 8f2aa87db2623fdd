"""Links between GPUs that are not PCIe (NVLink, XGMI), in bundles: one line for all GPUs that reach each other.

A full mesh of 8 GPUs has 28 pairs; drawn one by one, they hide everything else. So each GPU of a bundle is connected to
one bus, and a table shows the links of each pair if they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hosttune.model.host import Gpu, Host
from hosttune.model.text import count
from hosttune.model.values import Value
from hosttune.report.picture.shapes import SMALL, Rect, Shape, ShapeBlock, ShapeGroup, ShapeLine, label
from hosttune.report.picture.text import Piece, at, below, pair, paragraph

NAMES = {"nvlink": "NVLink", "xgmi": "XGMI"}
LANE = 6.0
MOST_DRAWN = 12  # bundles with their own line; a host with 16 GPUs in pairs has 8
_CELL = 20.0
_NAMED = 4  # GPUs of a bundle that its line names
_LARGEST = 32  # GPUs in a table


class Bundle(Value, frozen=True, kw_only=True):
    """GPUs that reach each other over links of one kind, directly or through other GPUs."""

    kind: str
    gpus: tuple[str, ...]
    links: Mapping[tuple[str, str], int | None]  # (from, to) -> links, as each GPU reports
    unread: frozenset[str] = frozenset()  # GPUs that do not report: no driver of their maker has them


def bundles(host: Host) -> tuple[Bundle, ...]:
    """Return the host's bundles, lowest addresses first. Peers that are not in the document are left out."""
    found: list[Bundle] = []
    for kind in NAMES:
        links = _links(host.gpus, kind)
        beside: dict[str, set[str]] = {}
        for one, other in links:
            beside.setdefault(one, set()).add(other)
            beside.setdefault(other, set()).add(one)
        left = set(beside)
        while left:
            start = min(left)
            gpus, ahead = {start}, [start]
            while ahead:
                for other in beside[ahead.pop()] - gpus:
                    gpus.add(other)
                    ahead.append(other)
            left -= gpus
            inside = {ends: number for ends, number in links.items() if ends[0] in gpus}
            unread = frozenset(gpu.address for gpu in host.gpus if gpu.address in gpus and gpu.peers is None)
            found.append(Bundle(kind=kind, gpus=tuple(sorted(gpus)), links=inside, unread=unread))
    return tuple(sorted(found, key=lambda bundle: bundle.gpus))


def _links(gpus: Iterable[Gpu], kind: str) -> dict[tuple[str, str], int | None]:
    gpus = tuple(gpus)
    there = {gpu.address for gpu in gpus}
    return {
        (gpu.address, peer.address): peer.links
        for gpu in gpus
        for peer in gpu.peers or ()
        if peer.kind == kind and peer.address in there and peer.address != gpu.address
    }


def is_even(bundle: Bundle) -> bool:
    """Whether every GPU is linked to every other one over the same number of links."""
    pairs = len(bundle.gpus) * (len(bundle.gpus) - 1)
    return len(bundle.links) == pairs and len(set(bundle.links.values())) == 1


# --- lines ---------------------------------------------------------------------------------------------------


class Stub(Value, frozen=True, kw_only=True):
    """Where a GPU's line starts (`x`, `y`), and the lane right of its column on which the line goes down (`lane`)."""

    x: float
    y: float
    lane: float


def row_lines(stubs: Sequence[Stub], bus: float, trunk: float) -> tuple[Shape, ...]:
    """Return the lines from the GPUs of one row of nodes, down their lanes to the bus below, then to the trunk."""
    shapes: list[Shape] = []
    for lane in dict.fromkeys(stub.lane for stub in stubs):
        tops = [stub.y for stub in stubs if stub.lane == lane]
        down = ((lane, min(tops)), (lane, bus))
        shapes += [ShapeLine(points=down, style="casing", thick=7), ShapeLine(points=down, style="fabric", thick=3)]
    shapes += [ShapeLine(points=((stub.x, stub.y), (stub.lane, stub.y)), style="fabric", thick=3) for stub in stubs]
    left = min(stub.lane for stub in stubs)
    shapes.append(ShapeLine(points=((left, bus), (trunk, bus)), style="fabric", thick=3))
    return (*shapes, *(_joint(stub.lane, bus) for stub in stubs), _joint(trunk, bus))


def _joint(x: float, y: float) -> Rect:
    return Rect(x=x - 3, y=y - 3, width=6, height=6, style="joint", radius=3)


# --- panel ---------------------------------------------------------------------------------------------------


def fabric_panel(host: Host, found: Sequence[Bundle], width: float) -> tuple[ShapeBlock, list[float]]:
    """Return the panel: each bundle as text, with a table if pairs differ; then the GPUs that are in no bundle.

    With it the height at which each bundle's trunk enters.
    """
    inner = width - 24
    pieces: list[Piece] = []
    entries: list[float] = []
    y = 10.0
    for bundle in found:
        piece = _bundle_piece(host, bundle, inner)
        entries.append(y + 8)
        pieces.append(piece)
        y += piece.height + 8
    inside = {address for bundle in found for address in bundle.gpus}
    out = [gpu for gpu in host.index.accelerators if gpu.address not in inside]
    alone = [gpu.address for gpu in out if gpu.peers is not None]
    unknown = [gpu.address for gpu in out if gpu.peers is None]
    lines = ((alone, "In no bundle, no such link seen"), (unknown, "Links unknown"))
    pieces += [paragraph(f"{what}: {', '.join(gpus)}", inner, SMALL) for gpus, what in lines if gpus]
    whole = below(pieces, 8)
    back = Rect(x=0, y=0, width=width, height=whole.height + 20, style="panel", radius=9)
    title = "; ".join(_bundle_texts(host, bundle)[0] for bundle in found)
    group = ShapeGroup(kind="fabric", shapes=(back, *at(whole, 12, 10)), title=title)
    return ShapeBlock(width=width, height=whole.height + 20, groups=(group,)), entries


def _bundle_piece(host: Host, bundle: Bundle, width: float) -> Piece:
    first, second = _bundle_texts(host, bundle)
    head = pair(first, second, width, 12, bold=True)
    if is_even(bundle) or len(bundle.gpus) > _LARGEST:
        return head
    # Rows are named by address, columns by row number.
    names = 142.0
    most = int((width - names) // _CELL)
    shapes: list[Shape] = []
    for n, gpu in enumerate(bundle.gpus):
        y = (n + 1) * _CELL
        shapes.append(label(0, y + 3, f"{n + 1}  {gpu}", SMALL, most=names - 4))
        if n >= most:
            continue
        x = names + n * _CELL
        shapes.append(label(x + _CELL / 2, 3, str(n + 1), SMALL, most=_CELL, style="dim", anchor="middle"))
        for m, other in enumerate(bundle.gpus[:most]):
            shapes += _pair_cell(bundle, gpu, other, names + m * _CELL, y)
    return below((head, Piece(width=width, height=(len(bundle.gpus) + 1) * _CELL, shapes=tuple(shapes))), 4)


def _bundle_texts(host: Host, bundle: Bundle) -> tuple[str, str]:
    name, size = NAMES[bundle.kind], len(bundle.gpus)
    numbers = set(bundle.links.values())
    gpus = [gpu for gpu in host.gpus if gpu.address in bundle.gpus]
    facts = [f"{name}: {count(size, 'GPU')}"]
    if is_even(bundle):
        number = next(iter(numbers))
        over = "" if number is None else f" {'over' if size > 2 else 'by'} {count(number, 'link')}"
        facts.append(("every GPU is linked to every other" if size > 2 else "joined") + over)
    else:
        unread = len(bundle.unread)
        facts.append(f"the links of {unread} of them were not read" if unread else "links differ by pair")
    states = sorted({gpu.fabric_state for gpu in gpus if gpu.fabric_state})
    right = (
        [count(len(host.nvswitches), "NVSwitch")] if host.nvswitches and bundle.kind == "nvlink" and size > 2 else []
    )
    right += [f"fabric {' and '.join(states).lower()}"] if states else []
    right += [", ".join(bundle.gpus)] if size <= _NAMED else []
    return ", ".join(facts), " · ".join(right)


def _pair_cell(bundle: Bundle, one: str, other: str, x: float, y: float) -> tuple[Shape, ...]:
    joined = (one, other) in bundle.links
    number = bundle.links.get((one, other))
    unknown = one in bundle.unread if not joined else number is None
    text = "?" if unknown else str(number) if joined else "·"
    box = Rect(x=x, y=y, width=_CELL - 2, height=_CELL - 2, style="pair on" if joined else "pair", radius=2)
    if one == other:
        return (box,)
    return box, label(x + _CELL / 2 - 1, y + 2.5, text, SMALL, most=_CELL - 2, anchor="middle")
