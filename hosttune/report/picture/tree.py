"""The PCIe tree of a node: a card for each host bridge, boxes for switches, lines as thick as the links are wide."""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.model.host import Gpu, Link, Nic, Nvme, PciDevice
from hosttune.model.pci import PORT_WORDS
from hosttune.model.values import Value, format_size
from hosttune.report.devices import driver_text, link_text, sold_as
from hosttune.report.picture.guests import PictureGuest
from hosttune.report.picture.host_view import HostView, PictureMark, TreePlace, marks_of, virtual_functions
from hosttune.report.picture.shapes import (
    SMALL,
    Rect,
    Shape,
    ShapeBlock,
    ShapeGroup,
    ShapeLine,
    label,
    shifted,
    stacked,
)
from hosttune.report.picture.text import CHIP_HIGH, Piece, at, below, beside, chip, fits, mark_row, pair, phrase

# --- one function as a box: what it is, its link, the guest that has it, and its faults ----------------------


_PAD = 6.0
_KINDS = {"GPU": "gpu", "NIC": "nic", "NVMe": "nvme", "NVSwitch": "nvswitch", "display": "display"}


def figures(link: Link | None) -> str:
    """Return present speed and width of a link ("32 GT/s ×16"); empty if they are unknown."""
    if link is None or link.speed_gts is None or link.width is None:
        return ""
    return f"{link.speed_gts:g} GT/s ×{link.width}"


def _fill(view: HostView, kind: str, holders: tuple[PictureGuest, ...]) -> tuple[str, str]:
    """Return the styles of a box and of the text in it: by the kind of device, or by the guest that has it."""
    if not view.by_guest:
        return f"device {kind}", "ongpu" if kind == "gpu" else ""
    if len(holders) == 1:
        return f"device g{holders[0].colour}", f"on{holders[0].colour}"
    return f"device {kind} ungiven", ""


def _slices(view: HostView, address: str) -> list[tuple[PictureGuest, str]]:
    """Return the guests that have a part of this GPU, and which."""
    return [(holder, text) for holder in view.guests for gpu, text in holder.mig if gpu == address]


def _data(view: HostView, address: str) -> tuple[tuple[str, str], ...]:
    held = " ".join(holder.letter for holder in view.holders.get(address, ()))
    mig = " ".join(holder.letter for holder, _ in _slices(view, address))
    return tuple((key, text) for key, text in (("held", held), ("mig", mig)) if text)


def _outline(
    width: float, high: float, fill: str, colour: int | None, marks: tuple[PictureMark, ...]
) -> tuple[Shape, ...]:
    """Return the box, the outline of the guest that has it around it, and the outline of a fault inside it."""
    box = Rect(x=0, y=0, width=width, height=high, style=fill, radius=4)
    worst = next((mark.sign for mark in marks), None)
    fault = (Rect(x=1.5, y=1.5, width=width - 3, height=high - 3, style=f"fault {worst}", radius=3),) if worst else ()
    held = Rect(x=-1.5, y=-1.5, width=width + 3, height=high + 3, style=f"held o{colour}", radius=5)
    return (box, *fault, held) if colour is not None else (box, *fault)


def _lines(view: HostView, address: str, word: str, width: float, style: str) -> list[Piece]:
    """Return the name with its link, then the facts.

    If the link does not fit beside the name, it is put on the next line.
    """
    device = view.device(address)
    loud = word == "GPU"
    size = 12 if loud else SMALL
    rows = [(left, right) for left, right in _facts(view, address, word) if left or right]
    link = figures(device.link if device else None)
    name = f"{word} {address}"
    if rows and not rows[0][1] and not fits(name, link, width, size, bold=True):
        rows[0], link = (rows[0][0], link), ""
    first = pair(name, link, width, size, style=style, bold=True)
    return [first, *(pair(left, right, width, SMALL, style=style or "dim") for left, right in rows)]


def _facts(view: HostView, address: str, word: str) -> list[tuple[str, str]]:
    """Return the lines below the first one as (left, right)."""
    device, host = view.device(address), view.host
    gpu = _find(host.gpus, address)
    if isinstance(gpu, Gpu):
        return _gpu(gpu, device, word)
    nic = _find(host.nics, address)
    if isinstance(nic, Nic):
        return _nic(nic, device)
    drive = _find(host.nvme, address)
    if isinstance(drive, Nvme):
        names = " ".join(drive.namespaces) or drive.controller or ""
        return [
            (" · ".join(filter(None, (names, drive.model or sold_as(device)))), ""),
            (f"in use: {drive.in_use}" if drive.in_use else "", ""),
        ]
    if address in view.index.labels:
        return [(view.index.labels[address][1], "")]
    return [(sold_as(device), "")]


def _find(devices: tuple[Gpu, ...] | tuple[Nic, ...] | tuple[Nvme, ...], address: str) -> Gpu | Nic | Nvme | None:
    return next((device for device in devices if device.address == address), None)


def _gpu(gpu: Gpu, device: PciDevice | None, word: str) -> list[tuple[str, str]]:
    memory = format_size(gpu.memory_bytes) if gpu.memory_bytes is not None else ""
    if word != "GPU":
        return [(gpu.model or sold_as(device), memory)]
    facts = [f"module {gpu.module_id}" if gpu.module_id is not None else "", *_binding(device)]
    lines = [(gpu.model or sold_as(device) or f"{gpu.vendor} GPU", memory), (" · ".join(filter(None, facts)), "")]
    if gpu.mig and gpu.mig_on:
        names = [instance.profile or "?" for instance in gpu.mig.instances or ()]
        text = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "no instance"
        lines.append((f"MIG: {text}", ""))
    return lines


def _nic(nic: Nic, device: PciDevice | None) -> list[tuple[str, str]]:
    rate = f"{nic.rate_gbps:g} Gb/s" if nic.rate_gbps is not None else ""
    down = nic.state.lower() if nic.state and nic.state.lower() not in ("active", "up") else ""
    names = [*((nic.rdma,) if nic.rdma else ()), *nic.interfaces]
    functions = ""
    if device and device.sriov_total_vfs and (device.sriov_vfs or device.virtfns):
        there = device.sriov_vfs if device.sriov_vfs is not None else len(device.virtfns)
        functions = f"{there} of {device.sriov_total_vfs} VFs"
    second = " · ".join(filter(None, (" ".join(names), down, functions)))
    return [(sold_as(device) or nic.kind or "", rate), (second, "")]


def _binding(device: PciDevice | None) -> list[str]:
    if device is None:
        return []
    group = [f"group {device.iommu_group}"] if device.iommu_group is not None else []
    return [*([device.driver] if device.driver else []), *group]


def _function(view: HostView, address: str, width: float) -> ShapeBlock:
    holders, marks = view.holders.get(address, ()), marks_of(view, address)
    inner = width - 8
    name = phrase(f"VF {address}", inner, CHIP_HIGH)
    pieces = [beside((name, *(chip(holder, holder.name, inner) for holder in holders)), inner)]
    content = below((*pieces, *(mark_row(mark, inner) for mark in marks)))
    high = content.height + 6
    box = Rect(x=0, y=0, width=width, height=high, style="device vf", radius=3)
    title = "; ".join((_tooltip(view, address, "virtual function"), *(mark.hover_text for mark in marks)))
    return ShapeBlock(
        width=width,
        height=high,
        groups=(
            ShapeGroup(
                kind="vf", name=address, shapes=(box, *at(content, 4, 3)), title=title, data=_data(view, address)
            ),
        ),
    )


def _tooltip(view: HostView, address: str, word: str) -> str:
    """Return everything about a function in one line, for its tooltip."""
    device = view.device(address)
    facts = [f"{word} {address}", view.index.labels.get(address, ("", ""))[1]]
    if device:
        facts += [sold_as(device), link_text(device.link).replace(" x", " ×")]
        facts += [driver_text(device)]
        facts += [f"IOMMU group {device.iommu_group}"] if device.iommu_group is not None else []
        facts += ["node unknown" if device.numa_node is None else f"node {device.numa_node}"]
        facts += [f"node from {device.numa_source}"] if device.numa_source in ("bridge", "firmware") else []
        facts += ["boot display"] if device.boot_display else []
    facts += [f"held by guest {holder.letter}, {holder.name}" for holder in view.holders.get(address, ())]
    return ", ".join(fact for fact in facts if fact)


# --- the tree ------------------------------------------------------------------------------------------------


COLUMN = 272.0  # width of a card
NARROWEST = 140.0  # width of a device's box below which deeper trees are not indented
TALLEST = 460.0  # height of a card's column above which a card takes another column; without GPUs: WIDE
WIDE = 130.0
_GAP = 6.0
_TREE_PAD = 7.0
_HEAD = 19.0


class Card(Value, frozen=True, kw_only=True):
    """A host bridge with everything below it, `span` columns wide."""

    bus: str
    places: tuple[TreePlace, ...]
    block: ShapeBlock
    span: int
    has_gpu: bool


def card(
    view: HostView, bus: str, places: Sequence[TreePlace], most: int, gutter: float, tallest: float = TALLEST
) -> Card:
    """Lay out a host bridge.

    Branches that would make the card too tall go to more columns, with `gutter` between them.
    """
    inner = COLUMN - 2 * _TREE_PAD
    branches = [_branch(view, place, inner) for place in places]
    tall = sum(branch.height + _GAP for branch in branches)
    number = max(1, min(most, len(branches), round(tall / tallest)))
    goal = sum(branch.height for branch in branches) / number
    columns: list[list[ShapeBlock]] = [[]]
    filled = 0.0
    for branch in branches:
        if columns[-1] and filled + branch.height / 2 > goal * len(columns) and len(columns) < number:
            columns.append([])
        columns[-1].append(branch)
        filled += branch.height
    parts = [stacked(column, _GAP) for column in columns]
    pitch = COLUMN + gutter
    width = pitch * len(parts) - gutter
    high = _HEAD + max((part.height for part in parts), default=0) + _TREE_PAD
    back = Rect(x=0, y=0, width=width, height=high, style="card", radius=6)
    head = label(_TREE_PAD, 3, f"host bridge {bus}", SMALL, most=inner, style="dim")
    groups = [ShapeGroup(kind="bridge", name=bus, shapes=(back, head), title=f"host bridge {bus}")]
    for n, part in enumerate(parts):
        groups += shifted(part, _TREE_PAD + n * pitch, _HEAD)
    has_gpu = any(group.kind == "gpu" for group in groups)
    block = ShapeBlock(width=width, height=high, groups=tuple(groups))
    return Card(bus=bus, places=tuple(places), block=block, span=len(parts), has_gpu=has_gpu)


def _branch(view: HostView, place: TreePlace, width: float) -> ShapeBlock:
    if place.kind == "device" or not place.below:
        address = place.address
        device = view.device(address)
        other = "bridge" if device and device.is_bridge else "device" if device else "unlisted device"
        word = view.index.labels[address][0] if address in view.index.labels else other
        kind = _KINDS.get(word, "other")
        marks = marks_of(view, address)
        holders = view.holders.get(address, ())
        inner = width - 2 * _PAD
        fill, ink = _fill(view, kind, holders)
        pieces = [*_lines(view, address, word, inner, ink)]
        chips = [chip(holder, holder.name, inner) for holder in holders]
        chips += [chip(holder, f"{holder.name} {text}", inner) for holder, text in _slices(view, address)]
        pieces += [beside(chips, inner)] if chips else []
        pieces += [mark_row(mark, inner) for mark in marks]
        content = below(pieces)
        functions = stacked((_function(view, function, inner) for function in virtual_functions(view, address)), 3)
        high = content.height + 2 * _PAD - 2 + (functions.height + 3 if functions.groups else 0)
        held = holders[0].colour if holders and not fill.endswith(f"g{holders[0].colour}") else None
        shapes = (*_outline(width, high, fill, held, marks), *at(content, _PAD, _PAD))
        title = "; ".join((_tooltip(view, address, word), *(mark.hover_text for mark in marks)))
        whole = ShapeGroup(kind=kind, name=address, shapes=shapes, title=title, data=_data(view, address))
        return ShapeBlock(
            width=width, height=high, groups=(whole, *shifted(functions, _PAD, high - functions.height - _PAD + 1))
        )
    return _switch(view, place, width) if place.kind == "switch" else _port(view, place, width)


def _port(view: HostView, place: TreePlace, width: float) -> ShapeBlock:
    """Return a root port or other bridge: a line of text, with the things below it connected to its vertical line."""
    head, title = _head(view, place, width)
    things, lines = _things_below(view, place, width, left=4.0, top=head.height + 4)
    shapes = (*lines, *at(head, 0, 0))
    group = ShapeGroup(kind="port", name=place.address, shapes=shapes, title=title)
    return ShapeBlock(width=width, height=things.height, groups=(group, *things.groups))


def _switch(view: HostView, place: TreePlace, width: float) -> ShapeBlock:
    """Return a switch as a box around the things below it."""
    head, title = _head(view, place, width - 12)
    things, lines = _things_below(view, place, width - 6, left=9.0, top=head.height + 10)
    high = things.height + 6
    box = Rect(x=0, y=0, width=width, height=high, style="switch", radius=5)
    shapes = (box, *lines, *at(head, 6, 5))
    group = ShapeGroup(kind="switch", name=place.address, shapes=shapes, title=title)
    return ShapeBlock(width=width, height=high, groups=(group, *things.groups))


def _head(view: HostView, place: TreePlace, width: float) -> tuple[Piece, str]:
    """Return a bridge's name, link and faults, and its tooltip."""
    device = view.device(place.address)
    word = PORT_WORDS.get((device and device.port_type) or "", "bridge")
    marks = marks_of(view, place.address)
    link = figures(device.link if device else None) if word == "switch" else ""
    name = pair(f"{word} {place.address}", link, width, SMALL, style="bridge", bold=word == "switch")
    hover_text = [f"{word} {place.address}", link_text(device.link).replace(" x", " ×") if device else ""]
    title = ", ".join((*filter(None, hover_text), *(mark.hover_text for mark in marks)))
    return below((name, *(mark_row(mark, width) for mark in marks))), title


def _things_below(
    view: HostView, place: TreePlace, width: float, *, left: float, top: float
) -> tuple[ShapeBlock, list[ShapeLine]]:
    """Return the things below a bridge, and the lines that lead to them from the bridge's vertical line at `left`."""
    indent = left + 9 if width - left - 9 >= NARROWEST else 0.0
    y = top
    groups: list[ShapeGroup] = []
    lines: list[ShapeLine] = []
    ends: list[float] = []
    for child in place.below:
        block = _branch(view, child, width - indent)
        groups += shifted(block, indent, y)
        if indent:
            ends.append(y + 12)
            lines.append(_line_to_device(view, child.address, left, indent, y + 12))
        y += block.height + _GAP
    if ends:
        lines.insert(0, ShapeLine(points=((left, top - 5), (left, ends[-1])), style="pcie", thick=2))
    return ShapeBlock(width=width, height=y - _GAP, groups=tuple(groups)), lines


def _line_to_device(view: HostView, address: str, left: float, right: float, y: float) -> ShapeLine:
    """Return the line to a device: as thick as its link is wide, dashed if the link is degraded."""
    device = view.device(address)
    link = device.link if device else None
    lanes = link.width if link and link.width else 1
    thick = next(thick for least, thick in ((16, 5.0), (8, 3.5), (4, 2.5), (0, 1.5)) if lanes >= least)
    style = "pcie degraded" if link and link.state == "degraded" else "pcie"
    return ShapeLine(points=((left, y), (right, y)), style=style, thick=thick)
