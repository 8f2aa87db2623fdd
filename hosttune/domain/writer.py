"""A planned guest as libvirt domain XML: jinja2 writes it, lxml reads it back to the plan's own facts.

Shape (libvirt formatdomain, QEMU docs/pcie.txt): q35; UEFI by firmware auto-selection, without Secure Boot where
libvirt can say so, since makers' drivers built on the guest are unsigned; each passed device behind a root port of
its own; no `<locked/>`: without a hard_limit it means unlimited, and VFIO locks the memory anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from hosttune.domain import elements
from hosttune.domain.proof import differences
from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput
from hosttune.model.plan import Cell, Device, PciController, Plan, PlannedGuest
from hosttune.model.values import format_size, parse_cpus

if TYPE_CHECKING:
    from jinja2 import Template

_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_KVM_HINTS = (elements.HINT_DEDICATED, elements.POLL_CONTROL)


def domain_xml(plan: Plan, name: str, *, annotate: bool = False) -> str:
    """The guest `name` of a plan as one `<domain>`, indented, ending in a newline; the same plan gives the same text.

    `annotate` adds a comment with the reason to every pin, memory node, controller and device. Raises BadInput for a
    name that the plan does not place, and for a text that XML cannot hold.
    """
    guest = next((guest for guest in plan.guests if guest.name == name), None)
    if guest is None:
        placed = ", ".join(guest.name for guest in plan.guests) or "none"
        raise BadInput(f"the plan places no guest named {name!r}", where="plan: guests", hint=f"it places {placed}")
    _refuse_unwritable(guest)
    xml = _template().render(_view(guest, annotate=annotate))
    wrong = differences(guest, read_domain(xml, where=f"XML of {name}"))
    if wrong:
        raise RuntimeError(f"the XML of {name} does not say what its plan says: {'; '.join(wrong)}")
    return xml


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from hosttune.assets import folder

    environment = Environment(
        loader=FileSystemLoader(folder("templates")),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("domain.xml.j2")


def _view(guest: PlannedGuest, *, annotate: bool) -> dict[str, Any]:
    """What the template prints: the plan's values in libvirt's units and spelling, and the notes if wanted."""
    kvm = guest.accelerator == "kvm"
    return {
        "guest": guest,
        "domain_type": "kvm" if kvm else "qemu",
        "cpu_mode": "host-passthrough" if kvm else "maximum",
        "memory_kib": sum(_kib(cell.memory_bytes, f"cells[{cell.id}]") for cell in guest.cells),
        "page_kib": guest.page_bytes // 1024 if guest.page_bytes and guest.page_bytes > 4096 else None,
        "page_cells": str(parse_cpus(cell.id for cell in guest.cells)),
        "allocation_threads": guest.allocation_threads if _may(guest, elements.ALLOCATION_THREADS) else None,
        "memory_nodes": str(parse_cpus(node for cell in guest.cells for node in parse_cpus(cell.host_nodes))),
        "kvm_features": [hint for hint in _KVM_HINTS if kvm and _may(guest, hint)],
        # AMD's CPUID says nothing of threads without topoext, and QEMU's emulated maximum CPU is an AMD one.
        "topoext": not kvm or guest.cpu_vendor == "AuthenticAMD",
        "maxphysaddr": _address_width(guest),
        "pins": _pins(guest, annotate),
        "cells": [_cell(cell, annotate) for cell in guest.cells],
        "controllers": [_controller(guest, controller, annotate) for controller in guest.controllers],
        "devices": [_device(guest, device, annotate) for device in guest.devices],
        "disk": _disk(guest.disk) if guest.disk else None,
        "notes": {
            "guest": [_comment(why) for why in guest.why] if annotate else [],
            "emulator": "QEMU's other threads stay on housekeeping CPUs, off every vCPU" if annotate else None,
        },
    }


def _may(guest: PlannedGuest, element: str) -> bool:
    return element in guest.elements


def _kib(size_bytes: int, where: str) -> int:
    if size_bytes % 1024:
        raise BadInput(
            f"{size_bytes} bytes is no whole number of KiB", where=f"plan: {where}", hint="give whole pages of memory"
        )
    return size_bytes // 1024


def _address_width(guest: PlannedGuest) -> dict[str, object] | None:
    """The maxphysaddr element: the host's own width, cut where the IOMMU maps less; a plain number without KVM."""
    if not _may(guest, elements.MAXPHYSADDR):
        return None
    if guest.accelerator != "kvm":
        bits = guest.physical_address_bits
        return {"mode": "emulate", "bits": bits, "limit": None} if bits else None
    limit = guest.physical_address_limit_bits if _may(guest, elements.MAXPHYSADDR_LIMIT) else None
    return {"mode": "passthrough", "bits": None, "limit": limit}


def _pins(guest: PlannedGuest, annotate: bool) -> list[dict[str, object]]:
    threads = guest.topology.threads if guest.topology else 1
    nodes = {vcpu: cell for cell in guest.cells for vcpu in parse_cpus(cell.vcpus)}
    pins: list[dict[str, object]] = []
    for pin in sorted(guest.vcpu_pins, key=lambda pin: pin.vcpu):
        note = None
        if annotate:
            cell = nodes.get(pin.vcpu)
            place = f"cell {cell.id}, host node {cell.host_nodes or 'unknown'}" if cell else "no cell"
            core = f"thread {pin.vcpu % threads} of guest core {pin.vcpu // threads}"
            note = _comment(f"vCPU {pin.vcpu}: {place}, {core}")
        pins.append({"vcpu": pin.vcpu, "cpus": pin.cpus, "note": note})
    return pins


def _cell(cell: Cell, annotate: bool) -> dict[str, object]:
    size = format_size(cell.memory_bytes)
    note = f"cell {cell.id}: {size} from host node {cell.host_nodes}, where its vCPUs {cell.vcpus} run"
    return {
        "id": cell.id,
        "vcpus": cell.vcpus,
        "memory_kib": _kib(cell.memory_bytes, f"cells[{cell.id}]"),
        "host_nodes": cell.host_nodes,
        "distances": cell.distances,
        "note": _comment(note) if annotate else None,
    }


def _controller(guest: PlannedGuest, controller: PciController, annotate: bool) -> dict[str, object]:
    place = None
    if controller.bus is not None and controller.slot is not None:
        address = f"0000:{controller.bus:02x}:{controller.slot:02x}.{controller.function}"
        place = _place(address, _occupied(guest))
    hole = guest.pci_hole64_bytes if controller.model == "pcie-root" else None
    note = None
    if annotate and controller.node is not None:
        note = f"PCIe bus of guest cell {controller.node}: the guest's kernel places the devices below it there"
    return {
        "index": controller.index,
        "model": controller.model,
        "chassis": controller.chassis,
        "port": controller.port,
        "bus_nr": controller.bus_nr,
        "node": controller.node,
        "hole_kib": _kib(hole, "pci_hole64_bytes") if hole else None,
        "place": place,
        "note": _comment(note) if note else None,
    }


def _device(guest: PlannedGuest, device: Device, annotate: bool) -> dict[str, object]:
    mediated = device.kind == "mdev"
    return {
        "uuid": device.address if mediated else None,
        "source": None if mediated else _place(device.address, ()),
        "place": _place(device.guest_address, _occupied(guest)),
        "managed": "yes" if device.managed else "no",
        "rom_bar": device.rom_bar,
        "note": _comment(_reason(device)) if annotate else None,
    }


def _reason(device: Device) -> str:
    name = f" ({device.name})" if device.name else ""
    host = f"host node {device.host_node}" if device.host_node is not None else "host node unknown"
    cell = f"guest cell {device.guest_cell}" if device.guest_cell is not None else "no guest cell"
    binding = "libvirt rebinds its driver" if device.managed else "bound to its driver beforehand"
    return f"{device.kind} {device.address}{name}: {host}, {cell}; {binding}"


def _occupied(guest: PlannedGuest) -> tuple[str, ...]:
    """Guest addresses of all controllers and devices: a slot with several functions says so on function 0."""
    controllers = (
        f"0000:{controller.bus:02x}:{controller.slot:02x}.{controller.function}"
        for controller in guest.controllers
        if controller.bus is not None and controller.slot is not None
    )
    return (*controllers, *(device.guest_address for device in guest.devices))


def _place(address: str, occupied: Iterable[str]) -> dict[str, object]:
    """A PCI address in the parts of libvirt's `<address>`."""
    slot, _, function = address.rpartition(".")
    domain, bus, device = slot.split(":")
    several = function == "0" and any(other.startswith(f"{slot}.") and other != address for other in occupied)
    return {
        "domain": f"0x{domain}",
        "bus": f"0x{bus}",
        "slot": f"0x{device}",
        "function": f"0x{function}",
        "multifunction": several,
    }


def _disk(path: str) -> dict[str, str]:
    """A disk by its path: a device node is raw, a file qcow2 or raw by its suffix."""
    if path.startswith("/dev/"):
        return {"type": "block", "attribute": "dev", "format": "raw", "path": path}
    image = "qcow2" if path.endswith(".qcow2") else "raw"
    return {"type": "file", "attribute": "file", "format": image, "path": path}


def _comment(text: str) -> str:
    """Text that may stand in an XML comment: "--" would end it, and a control character is no XML."""
    return re.sub(r"-(?=-|$)", "- ", _UNWRITABLE.sub("?", text)).strip()


def _refuse_unwritable(guest: PlannedGuest) -> None:
    """Control characters and lone surrogates have no XML form: refuse them by field."""
    texts = {"name": guest.name, "disk": guest.disk}
    if guest.boot:
        texts |= {f"boot.{key}": getattr(guest.boot, key) for key in ("kernel", "initrd", "cmdline")}
    for n, network in enumerate(guest.networks):
        texts[f"networks[{n}]"] = network.bridge or network.network
    for field, text in texts.items():
        if text is not None and _UNWRITABLE.search(text):
            _refuse(text, f"plan: guests[{guest.name!r}].{field}")


def _refuse(text: str, where: str) -> NoReturn:
    raise BadInput(f"{text!r} holds a control character", where=where, hint="XML cannot hold it: take it out")
