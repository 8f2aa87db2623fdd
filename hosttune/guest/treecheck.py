"""Checks of the parts of a plan that describe a guest's PCI tree, before they become documents: a plan is untrusted."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hosttune.errors import BadInput
from hosttune.model.plan import Device, PlannedGuest
from hosttune.model.values import parse_address, parse_cpus

MAX_VCPUS = 8192  # far above the limit of QEMU's q35 (4096); NCCL does not read longer masks
_CLASS = re.compile(r"[0-9a-f]{6}")
_VENDOR = re.compile(r"[A-Za-z0-9 ._!-]{1,12}")  # CPUID leaf 0: twelve characters
_BUSES = range(256)
_SLOTS = range(32)
_FUNCTIONS = range(8)


def check_tree(guest: PlannedGuest) -> None:
    """Raise BadInput, with the field, for a value that no guest's PCI tree can have."""
    at = f"plan: guests[{guest.name!r}]"
    for where, what in (*_cpus(guest), *_controllers(guest)):
        raise BadInput(what, where=f"{at}.{where}", hint="plan the guest again")
    for n, device in enumerate(guest.devices):
        for field, what in _device(device, f"{at}.devices[{n}].guest_address"):
            raise BadInput(what, where=f"{at}.devices[{n}].{field}", hint="plan the guest again")


def _cpus(guest: PlannedGuest) -> Iterator[tuple[str, str]]:
    for n, pin in enumerate(guest.vcpu_pins):
        if not 0 <= pin.vcpu < MAX_VCPUS:
            yield f"vcpu_pins[{n}].vcpu", f"{pin.vcpu} is not a vCPU"
    for n, cell in enumerate(guest.cells):
        for field in ("vcpus", "host_nodes"):
            try:
                ids = parse_cpus(getattr(cell, field))
            except ValueError as error:
                yield f"cells[{n}].{field}", str(error)
            else:
                if max(ids, default=0) >= MAX_VCPUS:
                    yield f"cells[{n}].{field}", f"{max(ids)} is above {MAX_VCPUS - 1}"
        if not 0 <= cell.id < MAX_VCPUS:
            yield f"cells[{n}].id", f"{cell.id} is not a cell"
    if guest.cpu_vendor is not None and not _VENDOR.fullmatch(guest.cpu_vendor):
        yield "cpu_vendor", f"{guest.cpu_vendor!r} is not a maker of CPUs"


def _controllers(guest: PlannedGuest) -> Iterator[tuple[str, str]]:
    for n, controller in enumerate(guest.controllers):
        numbers = (
            (controller.index, _BUSES),
            (controller.bus or 0, _BUSES),
            (controller.slot or 0, _SLOTS),
            (controller.function, _FUNCTIONS),
        )
        if any(number not in allowed for number, allowed in numbers):
            yield f"controllers[{n}]", "is where no PCI function can be"


def _device(device: Device, where: str) -> Iterator[tuple[str, str]]:
    address = parse_address(device.guest_address, where=where)
    if address != device.guest_address or not address.startswith("0000:"):
        yield "guest_address", f"{device.guest_address!r} is not written as a guest's address is: {address}"
    if device.class_code is not None and not _CLASS.fullmatch(device.class_code):
        yield "class_code", f"{device.class_code!r} is not a PCI class"
