"""One function as a box: what it is, its link, the guest that has it, and its faults."""

from __future__ import annotations

from hosttune.model.gpu import Gpu
from hosttune.model.host import Link, Nic, Nvme, PciDevice
from hosttune.model.values import format_size
from hosttune.report.devices import driver_text, link_text, sold_as
from hosttune.report.picture.guests import Holder
from hosttune.report.picture.host_view import HostView, Mark, marks_of, virtual_functions
from hosttune.report.picture.metrics import SMALL
from hosttune.report.picture.shapes import Block, Group, Rect, Shape, shifted, stacked
from hosttune.report.picture.text import CHIP_HIGH, Piece, at, below, beside, chip, fits, mark_row, pair, phrase

_PAD = 6.0
_KINDS = {"GPU": "gpu", "NIC": "nic", "NVMe": "nvme", "NVSwitch": "nvswitch", "display": "display"}


def figures(link: Link | None) -> str:
    """Return present speed and width of a link ("32 GT/s ×16"); empty if they are unknown."""
    if link is None or link.speed_gts is None or link.width is None:
        return ""
    return f"{link.speed_gts:g} GT/s ×{link.width}"


def device_block(view: HostView, address: str, width: float) -> Block:
    """Return a function's box, with the virtual functions that are shown one by one inside it."""
    device = view.device(address)
    word = view.index.labels[address][0] if address in view.index.labels else _other(device)
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
    whole = Group(kind=kind, name=address, shapes=shapes, title=title, data=_data(view, address))
    return Block(
        width=width, height=high, groups=(whole, *shifted(functions, _PAD, high - functions.height - _PAD + 1))
    )


def _fill(view: HostView, kind: str, holders: tuple[Holder, ...]) -> tuple[str, str]:
    """Return the styles of a box and of the text in it: by the kind of device, or by the guest that has it."""
    if not view.by_guest:
        return f"device {kind}", "ongpu" if kind == "gpu" else ""
    if len(holders) == 1:
        return f"device g{holders[0].colour}", f"on{holders[0].colour}"
    return f"device {kind} ungiven", ""


def _slices(view: HostView, address: str) -> list[tuple[Holder, str]]:
    """Return the guests that have a part of this GPU, and which."""
    return [(holder, text) for holder in view.guests for gpu, text in holder.mig if gpu == address]


def _data(view: HostView, address: str) -> tuple[tuple[str, str], ...]:
    held = " ".join(holder.letter for holder in view.holders.get(address, ()))
    mig = " ".join(holder.letter for holder, _ in _slices(view, address))
    return tuple((key, text) for key, text in (("held", held), ("mig", mig)) if text)


def _outline(width: float, high: float, fill: str, colour: int | None, marks: tuple[Mark, ...]) -> tuple[Shape, ...]:
    """Return the box, the outline of the guest that has it around it, and the outline of a fault inside it."""
    box = Rect(x=0, y=0, width=width, height=high, style=fill, radius=4)
    worst = next((mark.sign for mark in marks), None)
    fault = (Rect(x=1.5, y=1.5, width=width - 3, height=high - 3, style=f"fault {worst}", radius=3),) if worst else ()
    held = Rect(x=-1.5, y=-1.5, width=width + 3, height=high + 3, style=f"held o{colour}", radius=5)
    return (box, *fault, held) if colour is not None else (box, *fault)


def _other(device: PciDevice | None) -> str:
    return "bridge" if device and device.is_bridge else "device" if device else "unlisted device"


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


def _function(view: HostView, address: str, width: float) -> Block:
    holders, marks = view.holders.get(address, ()), marks_of(view, address)
    inner = width - 8
    name = phrase(f"VF {address}", inner, CHIP_HIGH)
    pieces = [beside((name, *(chip(holder, holder.name, inner) for holder in holders)), inner)]
    content = below((*pieces, *(mark_row(mark, inner) for mark in marks)))
    high = content.height + 6
    box = Rect(x=0, y=0, width=width, height=high, style="device vf", radius=3)
    title = "; ".join((_tooltip(view, address, "virtual function"), *(mark.hover_text for mark in marks)))
    return Block(
        width=width,
        height=high,
        groups=(
            Group(kind="vf", name=address, shapes=(box, *at(content, 4, 3)), title=title, data=_data(view, address)),
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
