"""A planned guest as libvirt domain XML: jinja2 prints it, and what lxml reads back must be the same guest.

Form (libvirt formatdomain, QEMU docs/pcie.txt): q35; UEFI by firmware auto-selection, without Secure Boot if libvirt
can switch it off, because makers' drivers built in the guest are unsigned; each passed device behind its own root
port; no `<locked/>`: without a hard_limit it means unlimited, and VFIO locks the memory anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from hosttune.assets import templates
from hosttune.domain.arguments import CLIQUE
from hosttune.domain.compare import compare
from hosttune.domain.guest import Guest
from hosttune.domain.planned import guest_of
from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput
from hosttune.model.limits import check_count
from hosttune.model.listing import numbered, some
from hosttune.model.plan import Cell, Device, PciController, Plan, PlannedGuest
from hosttune.model.text import UNSAFE
from hosttune.model.values import format_size, parse_cpus

if TYPE_CHECKING:
    from jinja2 import Template


_UNWRITABLE = re.compile(f"[\ufffe\uffff]|{UNSAFE}|[\t\n]")


def domain_xml(plan: Plan, name: str, *, annotate: bool = False) -> str:
    """Return the guest `name` of a plan as one `<domain>`, indented, ending in a newline; equal plans give equal texts.

    `annotate` adds a comment with the reason to every pin, memory node, controller and device. Raises BadInput for a
    name that the plan does not place, and for a text that XML cannot contain.
    """
    guest = plan.guest(name)
    check_count(len(guest.disks), "disks", f"plan: guests[{name!r}].further_disks")
    texts = {"name": guest.name, "disk": guest.disk, "seed": guest.seed}
    texts |= {f"further_disks[{n}]": disk for n, disk in enumerate(guest.further_disks)}
    if guest.boot:
        texts |= {f"boot.{key}": getattr(guest.boot, key) for key in ("kernel", "initrd", "cmdline")}
    for n, network in enumerate(guest.networks):
        texts[f"networks[{n}]"] = network.text
    for field, text in texts.items():
        if text is not None and _UNWRITABLE.search(text):
            raise BadInput(
                f"{text!r} holds a control character",
                where=f"plan: guests[{guest.name!r}].{field}",
                hint="XML cannot hold it: take it out",
            )
    _refuse_seed_elsewhere(guest)
    defined = guest_of(guest)
    xml = print_guest(defined, _notes(plan, guest) if annotate else None)
    if defined != (written := read_domain(xml, where=f"XML of {name}")):
        wrong = list(compare(defined, written))
        raise RuntimeError(f"the XML of {name} does not say what its plan says: {wrong}")
    return xml


@cache
def _template() -> Template:
    return templates().get_template("domain.xml.j2")


def print_guest(guest: Guest, printed_notes: Mapping[str, Any] | None = None) -> str:
    """Return a guest as domain XML, without what hosttune never writes, and with notes in comments if there are any."""
    return _template().render(guest=guest, kib=_kib, clique=CLIQUE, notes=printed_notes)


def _notes(plan: Plan, guest: PlannedGuest) -> dict[str, Any]:
    """Return the reasons by the elements that they explain, each made safe for an XML comment."""
    controllers = ((controller.index, controller_note(controller)) for controller in guest.controllers)
    return {
        "guest": [_comment(why) for why in guest.why],
        "pins": {vcpu: _comment(note) for vcpu, note in pin_notes(guest).items()},
        "emulator": _comment(emulator_note(plan, guest)),
        "iothreads": [_comment(note) for note in iothread_notes(plan, guest)],
        "cells": {cell.id: _comment(memory_note(guest, cell)) for cell in guest.cells},
        "controllers": {index: _comment(note) for index, note in controllers if note},
        "devices": {device.address: _comment(device_note(plan, guest, device)) for device in guest.devices},
    }


def _kib(size_bytes: int | None) -> int | None:
    if size_bytes is None:
        return None
    if size_bytes % 1024:
        what = f"{size_bytes} bytes are not whole KiB"
        raise BadInput(what, where="plan: sizes of a guest", hint="give whole pages of memory")
    return size_bytes // 1024


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


# --- notes -----------------------------------------------------------------------------------------------------
# The reasons that `--annotate` writes beside pins, memory nodes, controllers and devices: one line each.
# They come from the plan alone, and state only what the plan's own values show: "beside" means the same host node.

_LISTED = 4
_WORDS = {
    "gpu": "GPU",
    "vf": "virtual function",
    "mdev": "mediated device",
    "nvswitch": "NVSwitch",
    "nic": "NIC",
    "nvme": "NVMe drive",
}


def pin_notes(guest: PlannedGuest) -> dict[int, str]:
    """Return a note per vCPU: its host CPU, that CPU's node and why, and its place in the guest's topology."""
    cells = {vcpu: cell for cell in guest.cells for vcpu in parse_cpus(cell.vcpus)}
    cpus = {pin.vcpu: pin.cpus for pin in guest.vcpu_pins}
    places = {cell.id: _place(guest, cell) for cell in guest.cells}
    return {
        vcpu: f"vCPU {vcpu}: host CPU {cpu} {places[cells[vcpu].id] if vcpu in cells else 'in no cell'}"
        f"{_core(guest, vcpu, cpus)}"
        for vcpu, cpu in cpus.items()
    }


def _place(guest: PlannedGuest, cell: Cell) -> str:
    """Return where a cell is, and why: because of its devices, else because of its memory."""
    if not cell.host_nodes:
        return f"of cell {cell.id}, whose host node is unknown"
    beside = _beside(guest, cell)
    if beside:
        return f"on node {cell.host_nodes}, beside its {_listed(beside)}"
    memory = f"on node {cell.host_nodes}, which holds the {format_size(cell.memory_bytes)} of cell {cell.id}"
    nodes = {node for other in guest.cells for node in parse_cpus(other.host_nodes)}
    return f"{memory} (the guest is split over {len(nodes)} nodes)" if len(nodes) > 1 else memory


def _core(guest: PlannedGuest, vcpu: int, cpus: dict[int, str]) -> str:
    if guest.topology is None:
        return ""
    threads = guest.topology.threads
    core, thread = divmod(vcpu, threads)
    if threads == 1:
        return f"; the only thread of guest core {core}"
    others = [other for other in range(core * threads, (core + 1) * threads) if other != vcpu and other in cpus]
    pairs = ", ".join(f"vCPU {other} on CPU {cpus[other]}" for other in others)
    siblings = f" (its sibling{' is' if len(others) == 1 else 's are'} {pairs})" if others else ""
    return f"; thread {thread} of guest core {core}{siblings}"


def _beside(guest: PlannedGuest, cell: Cell) -> list[Device]:
    """Return the devices that explain a cell's place: the GPUs on its node, or without any, its other devices there."""
    nodes = parse_cpus(cell.host_nodes)
    near = [device for device in guest.devices if device.guest_cell == cell.id and device.host_node in nodes]
    return [device for device in near if device.kind == "gpu"] or near


def _listed(devices: list[Device]) -> str:
    words = {_word(device) for device in devices}
    word = words.pop() if len(words) == 1 else "device"
    return f"{word}{'s' if len(devices) > 1 else ''} {some((device.address for device in devices), _LISTED)}"


def _word(device: Device) -> str:
    return _WORDS.get(device.kind, "device")


def emulator_note(plan: Plan, guest: PlannedGuest) -> str:
    """Return why QEMU's own threads have their CPUs."""
    return f"QEMU's own threads on {_service(plan, guest, guest.emulator_cpus)}"


def iothread_notes(plan: Plan, guest: PlannedGuest) -> list[str]:
    """Return for each I/O thread what it serves and why it has its CPUs. The first serves the guest's disks."""
    disks = ("the disks" if guest.further_disks else "the disk") if guest.disk else "no disk so far"
    return [
        f"I/O thread {n}, which serves {disks if n == 1 else 'no disk so far'}, on {_service(plan, guest, cpus)}"
        for n, cpus in enumerate(guest.iothread_cpus, 1)
    ]


def _service(plan: Plan, guest: PlannedGuest, text: str) -> str:
    cpus = parse_cpus(text)
    kept = bool(cpus) and set(cpus) <= set(parse_cpus(plan.housekeeping_cpus))
    name = f"{'housekeeping ' if kept else ''}CPU{'s' if len(cpus) > 1 else ''} {text}"
    shared = [pin.vcpu for pin in guest.vcpu_pins if set(parse_cpus(pin.cpus)) & set(cpus)]
    if shared:
        return f"{name}, shared with {numbered('vCPU', shared)}: no other CPU is left"
    return f"{name}, off every vCPU of the guest, so as to interrupt none"


def memory_note(guest: PlannedGuest, cell: Cell) -> str:
    """Return why a cell's memory comes from its node."""
    beside = _beside(guest, cell)
    devices = f", and its {_listed(beside)} {'are' if len(beside) > 1 else 'is'} there" if beside else ""
    return (
        f"cell {cell.id}: {format_size(cell.memory_bytes)} from node {cell.host_nodes} and no other (strict): "
        f"its vCPUs {cell.vcpus} run there{devices}"
    )


def controller_note(controller: PciController) -> str | None:
    """Return why there is an expander bus or a switch; None for controllers that need no reason."""
    if controller.host is not None:
        return f"the host's switch {controller.host}: what is below it there is below this one"
    if controller.node is None:
        return None
    return f"PCIe bus of guest cell {controller.node}: the guest's kernel places the devices below it there"


def device_note(plan: Plan, guest: PlannedGuest, device: Device) -> str:
    """Return where a device is on the host, where the guest sees it, and who binds its driver."""
    name = f" ({device.name})" if device.name else ""
    bound = any(action.kind == "driver" and action.target == device.address for action in plan.actions)
    return f"{_word(device)} {device.address}{name}: {_affinity(guest, device)}; {_binding(device, bound=bound)}"


def _affinity(guest: PlannedGuest, device: Device) -> str:
    cell = next((cell for cell in guest.cells if cell.id == device.guest_cell), None)
    host = "host node unknown" if device.host_node is None else f"on node {device.host_node}"
    if cell is None:
        return f"{host}, so of no guest cell" if device.host_node is None else f"{host}, where the guest has no cell"
    if device.host_node in parse_cpus(cell.host_nodes):
        return f"{host}, as the vCPUs and memory of guest cell {cell.id}"
    return f"{host}, given to guest cell {cell.id} of node {cell.host_nodes or 'unknown'}"


def _binding(device: Device, *, bound: bool) -> str:
    if device.kind == "mdev":
        return "its parent device keeps its driver"
    if device.managed:
        return "libvirt binds it to vfio-pci at the guest's start, and back at its end"
    if bound:
        return "bound to vfio-pci by the plan's own action"
    if device.kind == "vf":
        return "keeps the driver that it has"  # vfio-pci already, or the maker's own: NVIDIA's supports VFIO
    return "the plan has no driver to change: on vfio-pci already"
