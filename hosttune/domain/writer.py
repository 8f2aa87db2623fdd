"""A planned guest as libvirt domain XML: jinja2 writes it, and lxml reads it back to check it against the plan.

Form (libvirt formatdomain, QEMU docs/pcie.txt): q35; UEFI by firmware auto-selection, without Secure Boot if libvirt
can switch it off, because makers' drivers built in the guest are unsigned; each passed device behind its own root
port; no `<locked/>`: without a hard_limit it means unlimited, and VFIO locks the memory anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from hosttune.assets import templates
from hosttune.domain import implied, notes
from hosttune.domain.proof import differences
from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput
from hosttune.model.plan import Cell, Device, PciController, Plan, PlannedGuest
from hosttune.model.text import UNSAFE
from hosttune.model.values import parse_cpus

if TYPE_CHECKING:
    from jinja2 import Template

_UNWRITABLE = re.compile(f"[\ufffe\uffff]|{UNSAFE}|[\t\n]")


def domain_xml(plan: Plan, name: str, *, annotate: bool = False) -> str:
    """Return the guest `name` of a plan as one `<domain>`, indented, ending in a newline; equal plans give equal texts.

    `annotate` adds a comment with the reason to every pin, memory node, controller and device. Raises BadInput for a
    name that the plan does not place, and for a text that XML cannot contain.
    """
    guest = plan.guest(name)
    texts = {"name": guest.name, "disk": guest.disk, "seed": guest.seed}
    if guest.boot:
        texts |= {f"boot.{key}": getattr(guest.boot, key) for key in ("kernel", "initrd", "cmdline")}
    for n, network in enumerate(guest.networks):
        texts[f"networks[{n}]"] = network.bridge or network.network
    for field, text in texts.items():
        if text is not None and _UNWRITABLE.search(text):
            raise BadInput(
                f"{text!r} holds a control character",
                where=f"plan: guests[{guest.name!r}].{field}",
                hint="XML cannot hold it: take it out",
            )
    _refuse_seed_elsewhere(guest)
    xml = _template().render(_view(plan, guest, annotate=annotate))
    wrong = differences(guest, read_domain(xml, where=f"XML of {name}"))
    if wrong:
        raise RuntimeError(f"the XML of {name} does not say what its plan says: {'; '.join(wrong)}")
    return xml


@cache
def _template() -> Template:
    return templates().get_template("domain.xml.j2")


def _view(plan: Plan, guest: PlannedGuest, *, annotate: bool) -> dict[str, Any]:
    """Return what the template prints: the plan's values in libvirt's units and spelling, and notes if `annotate`."""
    page_bytes = implied.huge_page_bytes(guest)
    fixed = implied.fixed_ports(guest)
    return {
        "guest": guest,
        "domain_type": "kvm" if implied.with_kvm(guest) else "qemu",
        "cpu_mode": implied.cpu_mode(guest),
        "memory_kib": sum(_kib(cell.memory_bytes, f"cells[{cell.id}]") for cell in guest.cells),
        "page_kib": page_bytes // 1024 if page_bytes else None,
        "page_cells": str(parse_cpus(cell.id for cell in guest.cells)),
        "allocation_threads": implied.allocation_threads(guest),
        "memory_nodes": str(parse_cpus(node for cell in guest.cells for node in parse_cpus(cell.host_nodes))),
        "secure_boot": implied.secure_boot(guest),
        "kvm_features": implied.kvm_features(guest),
        "pit_policy": implied.pit_policy(guest),
        "network_queues": implied.network_queues(guest),
        "agent_channel": implied.AGENT_CHANNEL,
        "random_source": implied.RANDOM_SOURCE,
        "dma_translation": "off" if implied.dma_translation(guest) is False else None,
        "qemu_arguments": implied.qemu_arguments(guest),
        "cpu_features": implied.cpu_features(guest),
        "maxphysaddr": implied.address_width(guest),
        "pins": sorted(guest.vcpu_pins, key=lambda pin: pin.vcpu),
        "cells": [_cell(cell) for cell in guest.cells],
        "controllers": [_controller(guest, controller, fixed) for controller in guest.controllers],
        "devices": [_device(guest, device) for device in guest.devices],
        "disk": _disk(guest.disk) if guest.disk else None,
        "notes": _notes(plan, guest) if annotate else None,
    }


def _notes(plan: Plan, guest: PlannedGuest) -> dict[str, Any]:
    """Return the reasons by the elements that they explain, each made safe for an XML comment."""
    controllers = ((controller.index, notes.controller_note(controller)) for controller in guest.controllers)
    return {
        "guest": [_comment(why) for why in guest.why],
        "pins": {vcpu: _comment(note) for vcpu, note in notes.pin_notes(guest).items()},
        "emulator": _comment(notes.emulator_note(plan, guest)),
        "iothreads": [_comment(note) for note in notes.iothread_notes(plan, guest)],
        "cells": {cell.id: _comment(notes.memory_note(guest, cell)) for cell in guest.cells},
        "controllers": {index: _comment(note) for index, note in controllers if note},
        "devices": [_comment(notes.device_note(plan, guest, device)) for device in guest.devices],
    }


def _kib(size_bytes: int, where: str) -> int:
    if size_bytes % 1024:
        raise BadInput(
            f"{size_bytes} bytes are not whole KiB", where=f"plan: {where}", hint="give whole pages of memory"
        )
    return size_bytes // 1024


def _cell(cell: Cell) -> dict[str, object]:
    return {
        "id": cell.id,
        "vcpus": cell.vcpus,
        "memory_kib": _kib(cell.memory_bytes, f"cells[{cell.id}]"),
        "host_nodes": cell.host_nodes,
        "distances": cell.distances,
    }


def _controller(guest: PlannedGuest, controller: PciController, fixed: frozenset[int]) -> dict[str, object]:
    place = None
    if controller.bus is not None and controller.slot is not None:
        address = f"0000:{controller.bus:02x}:{controller.slot:02x}.{controller.function}"
        place = _place(address, _occupied(guest))
    hole = guest.pci_hole64_bytes if controller.model == "pcie-root" else None
    return {
        "index": controller.index,
        "model": controller.model,
        "chassis": controller.chassis,
        "port": controller.port,
        "bus_nr": controller.bus_nr,
        "node": controller.node,
        "hole_kib": _kib(hole, "pci_hole64_bytes") if hole else None,
        "fixed": controller.index in fixed,
        "place": place,
    }


def _device(guest: PlannedGuest, device: Device) -> dict[str, object]:
    mediated = device.kind == "mdev"
    return {
        "uuid": device.address if mediated else None,
        "source": None if mediated else _place(device.address, ()),
        "place": _place(device.guest_address, _occupied(guest)),
        "managed": "yes" if device.managed else "no",
        "rom_bar": device.rom_bar,
    }


def _occupied(guest: PlannedGuest) -> tuple[str, ...]:
    """Return all controllers' and devices' guest addresses, to find slots that need multifunction on function 0."""
    controllers = (
        f"0000:{controller.bus:02x}:{controller.slot:02x}.{controller.function}"
        for controller in guest.controllers
        if controller.bus is not None and controller.slot is not None
    )
    return (*controllers, *(device.guest_address for device in guest.devices))


def _place(address: str, occupied: Iterable[str]) -> dict[str, object]:
    """Return a PCI address in the parts of libvirt's `<address>`."""
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
    kind, image = implied.disk_form(path)
    return {"type": kind, "attribute": "dev" if kind == "block" else "file", "format": image, "path": path}


def _comment(text: str) -> str:
    """Return text that is valid in an XML comment, which can have neither "--" nor control characters."""
    return re.sub(r"-(?=-|$)", "- ", _UNWRITABLE.sub("?", text)).strip()


def _refuse_seed_elsewhere(guest: PlannedGuest) -> None:
    """Raise BadInput for a seed outside the guest's own folder: a plan must not give it other files of the host."""
    if guest.seed is None:
        return
    parts = guest.seed.split("/")
    own = parts[0] == "" and "" not in parts[1:] and not {".", ".."}.intersection(parts)
    if not own or parts[-3:] != ["guests", guest.name, "seed.iso"]:
        raise BadInput(
            f"{guest.seed!r} is not a seed of this guest",
            where=f"plan: guests[{guest.name!r}].seed",
            hint="it is guests/NAME/seed.iso in the state directory: plan the guest again",
        )
