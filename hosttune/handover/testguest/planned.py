"""The test guest: planned and written like any guest of an operator, with exactly the devices that it shall test. Pure.

It takes nothing from the host but free CPUs, free memory in ordinary pages, and the devices: a guest that would need a
change of the host is not made.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec

from hosttune.domain.writer import domain_xml
from hosttune.domain.xml import parse
from hosttune.errors import BadInput
from hosttune.handover.testguest.order import CHANNEL, Unanswered
from hosttune.hypervisor import is_active, startable
from hosttune.hypervisor.disk import Image
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.values import Value
from hosttune.settings.drivers import VFIO

NAME = "hosttune-test-guest"
KINDS: Mapping[str, str] = {"gpu": "gpus", "nic": "nics", "nvme": "nvme"}  # of a hand-over -> key of an intent
# A choice of ours, enough for a driver, its library and pinned buffers: each limits what `auto` gives.
_VCPUS, _MEMORY = 8, 16 << 30  # for each device
_WITHOUT_GPU = (2, 2 << 30)


class TestGuest(Value, frozen=True, kw_only=True):
    """What the operator gave: the image, and the firmware that boots it."""

    __test__ = False  # not a test of pytest

    image: Image
    firmware: Literal["efi", "bios"] = "efi"


def planned_guest(
    host: Host, wanted: TestGuest, devices: Mapping[str, str], others: Collection[str], uuid: str, folder: str
) -> Plan:
    """Return a plan with the one guest, whose files are in `folder`. Raises Unanswered if there can be none.

    `devices`: kinds by address. `others`: further devices of the hand-over, which may go along (functions of a slot).
    """
    free = _without_owners(host, {*devices, *others})
    plan = _plan(free, wanted, devices, "auto", "auto")
    if plan.guests:
        vcpus, memory = len(plan.guests[0].vcpu_pins), sum(cell.memory_bytes for cell in plan.guests[0].cells)
        most = len(devices) * _VCPUS, len(devices) * _MEMORY
        if vcpus > most[0] or memory > most[1]:
            plan = _plan(free, wanted, devices, min(vcpus, most[0]), min(memory, most[1]))
    if not plan.guests:
        raise Unanswered("not-planned", "; ".join(why for left_out in plan.unplaced for why in left_out.why))
    guest = plan.guests[0]
    got = {device.address for device in guest.devices}
    if not set(devices) <= got <= {*devices, *others}:
        strange = ", ".join(sorted(got - {*devices, *others})) or "not all of them"
        raise Unanswered("not-planned", f"it would get {strange}: hand these over together")
    # Raise Unanswered for a guest that needs a change of the host.
    bound = [action for action in plan.actions if action.kind == "driver" and action.want == VFIO]
    changes = [
        action for action in plan.actions if action.needed and action.current != action.want and action not in bound
    ]
    if changes:
        why = "; ".join(f"{action.id}: {action.why}" for action in changes[:3])
        raise Unanswered("not-planned", f"the host would have to be changed for it: {why}")
    paths = {"disk": f"{folder}/disk.qcow2", "seed": f"{folder}/seed.iso"}
    return msgspec.structs.replace(plan, guests=(msgspec.structs.replace(guest, uuid=uuid, **paths),))


def refuse_unstartable(host: Host, guest: PlannedGuest) -> None:
    """Raise Unanswered if the guest must not be started on this host now."""
    why = startable(host, guest)
    if why:
        raise Unanswered("not-planned", "; ".join(why))


def _without_owners(host: Host, devices: Collection[str]) -> Host:
    """Return the host as the planner of this guest shall see it: the devices free, their stopped owners not there.

    An owner cannot be started meanwhile: its devices are quarantined.
    """
    state = host.handover
    if state is not None:
        kept = tuple(record for record in state.devices if record.address not in devices)
        state = msgspec.structs.replace(state, devices=kept)
    owners = [
        guest
        for guest in host.guests or ()
        if not is_active(guest.state) and not set(devices).isdisjoint(guest.devices)
    ]
    guests = None if host.guests is None else tuple(guest for guest in host.guests if guest not in owners)
    return msgspec.structs.replace(host, handover=state, guests=guests)


def _plan(host: Host, wanted: TestGuest, devices: Mapping[str, str], vcpus: int | str, memory: int | str) -> Plan:
    from hosttune.planning import plan

    named: dict[str, Sequence[str]] = {
        key: [address for address, kind in devices.items() if kind == one] for one, key in KINDS.items()
    }
    if not named["gpus"]:
        vcpus, memory = _WITHOUT_GPU
    kvm = host.virtualization.kvm if host.virtualization is not None else None
    guest: dict[str, Any] = {
        "name": NAME, "vcpus": vcpus, "memory": memory, "hugepages": "none", "firmware": wanted.firmware,
        "accelerator": "tcg" if kvm is False else "kvm", "seed": True, "disk": "/disk.qcow2",
    }  # fmt: skip
    guest |= {key: addresses for key, addresses in named.items() if addresses}
    intent = {"version": 1, "profile": "none", "guests": [guest]}
    try:
        return plan(host, Intent.from_json(json.dumps(intent)))
    except BadInput as error:
        raise Unanswered("not-planned", error.what) from error


def xml_of(plan: Plan, image: Image) -> str:
    """Return the guest's XML: the planner's, with the channel of the answer, and the image as its disk's base.

    The base is written out, so that libvirt looks for no other file behind it. libvirt is not to give the image to
    QEMU's user: QEMU reads it as it is.
    """
    from lxml import etree  # few commands need it

    domain = parse(domain_xml(plan, NAME))
    devices = domain.find("devices")
    disk = domain.find("devices/disk[@device='disk']")
    assert devices is not None
    assert disk is not None
    base = etree.SubElement(disk, "backingStore", type="file")
    etree.SubElement(base, "format", type=image.format)
    source = etree.SubElement(base, "source", file=image.path)
    etree.SubElement(source, "seclabel", model="dac", relabel="no")
    etree.SubElement(base, "backingStore")
    channel = etree.SubElement(devices, "channel", type="unix")
    etree.SubElement(channel, "target", type="virtio", name=CHANNEL)
    text: str = etree.tostring(domain, encoding="unicode", pretty_print=True)
    return text
