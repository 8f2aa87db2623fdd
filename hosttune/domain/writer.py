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
from hosttune.domain import notes
from hosttune.domain.arguments import CLIQUE
from hosttune.domain.compare import compare
from hosttune.domain.guest import Guest
from hosttune.domain.planned import guest_of
from hosttune.domain.reader import read_domain
from hosttune.errors import BadInput
from hosttune.model.limits import check_count
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.text import UNSAFE

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
    controllers = ((controller.index, notes.controller_note(controller)) for controller in guest.controllers)
    return {
        "guest": [_comment(why) for why in guest.why],
        "pins": {vcpu: _comment(note) for vcpu, note in notes.pin_notes(guest).items()},
        "emulator": _comment(notes.emulator_note(plan, guest)),
        "iothreads": [_comment(note) for note in notes.iothread_notes(plan, guest)],
        "cells": {cell.id: _comment(notes.memory_note(guest, cell)) for cell in guest.cells},
        "controllers": {index: _comment(note) for index, note in controllers if note},
        "devices": {device.address: _comment(notes.device_note(plan, guest, device)) for device in guest.devices},
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
