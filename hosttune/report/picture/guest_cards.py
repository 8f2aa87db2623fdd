"""A card for each guest: its letter, its name, and what it has, by cell."""

from __future__ import annotations

from collections.abc import Sequence
from string import hexdigits

from hosttune.model.listing import short_list, some
from hosttune.model.plan import Cell, Device, PlannedGuest
from hosttune.model.text import count
from hosttune.model.values import CpuSet, format_size, parse_cpus
from hosttune.report.picture.guests import PictureGuest
from hosttune.report.picture.host_view import HostView, check_marks
from hosttune.report.picture.panels import panel
from hosttune.report.picture.shapes import SMALL, Rect, ShapeBlock, ShapeGroup, flowed, label, text_width
from hosttune.report.picture.text import Piece, at, below, mark_row, pair, paragraph
from hosttune.report.plan import boot_rows

_NARROWEST = 270.0  # width of a card
_GAP = 8.0
_PAD = 7.0
MOST_GUESTS = 128  # cards
MOST_CELLS = 8  # of one card
MOST_DEVICES = 10  # of one cell
MOST_CHANGES = 6  # of one guest
_KINDS = {"gpu": "GPU", "nic": "NIC", "nvme": "NVMe", "nvswitch": "NVSwitch", "vf": "VF", "mdev": "vGPU"}
_SIGNS = {"create": "+ ", "update": "~ ", "keep": "= "}
_UPSTREAM = "pcie-switch-upstream-port"
_DEEPEST = 16  # controllers above a device of a guest


def guests_panel(view: HostView, width: float) -> ShapeBlock:
    """Return the cards, as many side by side as fit."""
    columns = max(1, int((width - 24 + _GAP) // (_NARROWEST + _GAP)))
    wide = (width - 24 + _GAP) / columns - _GAP
    cards = [_card(view, holder, wide) for holder in view.guests[:MOST_GUESTS]]
    more = len(view.guests) - len(cards)
    rest = paragraph(f"and {count(more, 'guest')} more", wide, SMALL)
    cards += (
        [ShapeBlock(width=wide, height=rest.height, groups=(ShapeGroup(kind="text", shapes=rest.shapes),))]
        if more
        else []
    )
    return panel("Guests", flowed(cards, width - 23, _GAP), width)


def _card(view: HostView, holder: PictureGuest, wide: float) -> ShapeBlock:
    inner = wide - 2 * _PAD
    marks = check_marks(view, (holder.name,))
    text = holder.facts
    here = view.plan is not None and holder.planned is None
    badge = max(18.0, text_width(holder.letter, SMALL, bold=True) + 8)
    style = f"on{holder.colour}"
    second_day = view.plan is not None and view.plan.based_on is not None
    sign = _SIGNS[holder.planned.change] if second_day and holder.planned else ""
    shapes = (
        Rect(x=0, y=0, width=badge, height=18, style=f"g{holder.colour}", radius=4),
        label(badge / 2, 3, holder.letter, SMALL, most=badge - 4, style=style, bold=True, anchor="middle"),
        label(badge + 6, 2, sign + holder.name, 12, most=inner - badge - 6, bold=True),
    )
    pieces = [
        Piece(width=inner, height=20, shapes=shapes),
        paragraph(f"not in this plan: {text}" if here else text, inner, SMALL),
    ]
    if holder.planned:
        changes = [f"~ {change.element}: {change.was} → {change.becomes}" for change in holder.planned.changes]
        more = [f"~ and {len(changes) - MOST_CHANGES} more changes"] if len(changes) > MOST_CHANGES else []
        pieces += [paragraph(text, inner, SMALL, style="", bold=True) for text in (*changes[:MOST_CHANGES], *more)]
        pieces += _planned(holder.planned, inner)
    whole = below((*pieces, *(mark_row(mark, inner) for mark in marks)), 3)
    outline = Rect(x=0, y=0, width=wide, height=whole.height + 14, style=f"guest o{holder.colour}", radius=6)
    hover_text = (
        f"guest {holder.letter}, {holder.name}: {text}",
        some(holder.devices, 16),
        *(mark.hover_text for mark in marks),
    )
    group = ShapeGroup(
        kind="guest",
        name=holder.name,
        shapes=(outline, *at(whole, _PAD, _PAD)),
        title="; ".join(filter(None, hover_text)),
        data=(("held", holder.letter),),
    )
    return ShapeBlock(width=wide, height=whole.height + 14, groups=(group,))


def _planned(guest: PlannedGuest, inner: float) -> list[Piece]:
    """Return the cells with their devices, then what belongs to the whole guest."""
    cells = [_cell(guest, cell, inner) for cell in guest.cells[:MOST_CELLS]]
    more = len(guest.cells) - len(cells)
    cells += [paragraph(f"and {count(more, 'cell')} more", inner, SMALL)] if more else []
    near = {cell.id for cell in guest.cells}
    stray = [device for device in guest.devices if device.guest_cell not in near]
    cells += [_box("no cell", "", [], guest, stray, inner)] if stray else []
    facts = [f"{what} {which}" for what, which in boot_rows(guest)]
    facts += [f"emulator threads on CPUs {guest.emulator_cpus}" if guest.emulator_cpus else ""]
    io = CpuSet(CpuSet().union(*map(parse_cpus, guest.iothread_cpus)))
    facts += [f"{count(len(guest.iothread_cpus), 'I/O thread')} on CPUs {short_list(io)}"] if io else []
    facts += [f"fabric partition {guest.fabric_partition}"] if guest.fabric_partition is not None else []
    facts += [
        f"MIG {assignment.profile} on {assignment.gpu}, memory slice {assignment.start}"
        for assignment in guest.mig[:MOST_DEVICES]
    ]
    return [*cells, *(paragraph(fact, inner, SMALL) for fact in facts if fact)]


def _cell(guest: PlannedGuest, cell: Cell, inner: float) -> Piece:
    wanted = CpuSet.parse(cell.vcpus)
    pins = CpuSet(CpuSet().union(*(parse_cpus(pin.cpus) for pin in guest.vcpu_pins if pin.vcpu in wanted)))
    memory = format_size(cell.memory_bytes)
    pages = (
        f"{cell.memory_bytes // guest.page_bytes} pages of {format_size(guest.page_bytes)}" if guest.page_bytes else ""
    )
    facts = [f"vCPUs {cell.vcpus} on CPUs {short_list(pins).replace(',', ', ')}" if pins else "no vCPUs", pages]
    devices = [device for device in guest.devices if device.guest_cell == cell.id]
    return _box(f"cell {cell.id} on node {cell.host_nodes}", memory, facts, guest, devices, inner)


def _box(
    head: str, right: str, facts: Sequence[str], guest: PlannedGuest, devices: Sequence[Device], width: float
) -> Piece:
    """Return a frame: a heading, facts, and devices with their guest addresses, those of a guest's switch below it."""
    inner = width - 2 * _PAD
    pieces = [pair(head, right, inner, SMALL, bold=True), *(paragraph(fact, inner, SMALL) for fact in facts if fact)]
    switch: str | None = None
    for device in devices[:MOST_DEVICES]:
        above = _switch(guest, device)
        if above != switch:
            pieces += [paragraph(f"switch {above}", inner, SMALL, style="bridge")] if above else []
            switch = above
        indent = 10.0 if above else 0.0
        name = f"{_KINDS.get(device.kind, device.kind)} {device.address}"
        place = (
            f"at {device.guest_address.removeprefix('0000:')}" if device.guest_address else ""
        )  # chosen at the start
        line = pair(name, place, inner - indent, SMALL, style="")
        pieces.append(Piece(width=inner, height=line.height, shapes=at(line, indent, 0)))
    more = len(devices) - MOST_DEVICES
    pieces += [paragraph(f"and {count(more, 'device')} more", inner, SMALL)] if more > 0 else []
    content = below(pieces, 2)
    back = Rect(x=0, y=0, width=width, height=content.height + 10, style="card", radius=4)
    return Piece(width=width, height=content.height + 10, shapes=(back, *at(content, _PAD, 5)))


def _switch(guest: PlannedGuest, device: Device) -> str | None:
    """Return the host switch that the guest's switch above this device stands for; None without such a switch."""
    controllers = {controller.index: controller for controller in guest.controllers}
    parts = device.guest_address.split(":")
    at_bus = int(parts[1], 16) if len(parts) == 3 and set(parts[1]) <= set(hexdigits) and parts[1] else None
    for _ in range(_DEEPEST):
        controller = controllers.get(at_bus) if at_bus is not None else None
        if controller is None:
            return None
        if controller.model == _UPSTREAM and controller.host:
            return controller.host
        at_bus = controller.bus
    return None
