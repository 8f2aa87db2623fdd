"""Faults of the guest's PCI space: devices passed twice, ports that look alike, windows too small for the BARs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosttune.domain.facts import Controller
from hosttune.domain.guest_on_host import Fault, GuestOnHost
from hosttune.model.listing import some
from hosttune.model.values import format_size

_CONTROLLER = "/domain/devices/controller"
_WIDTH = "/domain/cpu/maxphysaddr"
_EXPANDER = "pcie-expander-bus"
_BUSES = 256
_PORTS = ("pcie-root-port", "pcie-switch-downstream-port")
_LOW_MEMORY = 2 << 30  # most memory that q35 places below 4 GiB, the rest above (QEMU hw/i386/pc_q35.c)
_FOUR_GIB = 4 << 30


def pci_faults(scene: GuestOnHost) -> Iterator[Fault]:
    """Yield all faults that the rules of this file find."""
    yield from _twice(scene)
    yield from _chassis(scene)
    yield from _bus_numbers(scene)
    yield from _hole(scene)
    yield from _address_width(scene)


def _twice(scene: GuestOnHost) -> Iterator[Fault]:
    sources = [device.source for device in scene.guest.hostdevs if device.source]
    for source in dict.fromkeys(sources):
        if sources.count(source) > 1:
            text = f"{source} is passed {sources.count(source)} times: libvirt refuses (Hostdev already exists)"
            yield Fault("error", text, f"/domain/devices/hostdev[{source}]")


def _chassis(scene: GuestOnHost) -> Iterator[Fault]:
    """Find ports with the same chassis number, which QEMU refuses.

    QEMU identifies a port by chassis and slot, and libvirt does not write the slot, so the chassis must differ. Port
    numbers may repeat: QEMU starts with them, and ports of different buses may have equal numbers.
    """
    seats: dict[int, list[Controller]] = {}
    for controller in scene.guest.controllers:
        if controller.model in _PORTS and controller.chassis is not None:
            seats.setdefault(controller.chassis, []).append(controller)
    for chassis, ports in sorted(seats.items()):
        if len(ports) > 1:
            who = some((f"{port.index} (port {_hex(port.port)})" for port in ports), 6)
            text = f"controllers {who} have the same chassis {chassis}: QEMU refuses (Can't add chassis slot)"
            yield Fault("error", text, _CONTROLLER)


def _bus_numbers(scene: GuestOnHost) -> Iterator[Fault]:
    """Count bus numbers: every port takes one between its root bus's own number and the next (QEMU docs/pcie.txt, 4).

    Ports that libvirt places are not counted, so the count is a lower bound: libvirt may add ports, but removes none.
    """
    controllers = {controller.index: controller for controller in scene.guest.controllers}
    firsts = {0: 0} | {c.index: c.bus_nr for c in controllers.values() if c.model == _EXPANDER and c.bus_nr is not None}
    below = dict.fromkeys(firsts, 0)
    for controller in controllers.values():
        root = _root_of(controllers, controller)
        if root in below and controller.model in (*_PORTS, "pcie-switch-upstream-port"):
            below[root] += 1
    for index, first in firsts.items():
        end = min((other for other in firsts.values() if other > first), default=_BUSES)
        if first + below[index] >= end:
            who = "pcie.0" if index == 0 else f"expander {index} (busNr {first})"
            text = (
                f"{below[index]} ports below {who} need bus numbers up to {first + below[index]}, but "
                f"{'an expander begins' if end < _BUSES else 'the numbers end'} at {end}: the guest's firmware cannot "
                "reach all devices"
            )
            yield Fault("error", text, _CONTROLLER)


def _root_of(controllers: Mapping[int, Controller], controller: Controller) -> int | None:
    """Return the index of the root bus above a controller; None if the XML does not say."""
    seen: set[int] = set()
    at: Controller | None = controller
    while at is not None and at.address and at.index not in seen:
        seen.add(at.index)
        bus = int(at.address.split(":")[1], 16)
        at = controllers.get(bus)
        if bus == 0 or (at is not None and at.model == _EXPANDER):
            return bus
    return None


def _hex(port: int | None) -> str:
    return "not written" if port is None else f"{port:#x}"


def _hole(scene: GuestOnHost) -> Iterator[Fault]:
    """Find a hole smaller than the BARs.

    A warning, not an error: the ACPI window grows to what the firmware could place by itself.
    """
    hole = scene.hole_bytes
    bars = scene.bars_bytes
    if hole is not None and hole < bars:
        text = (
            f"pcihole64 is {format_size(hole)}, but the 64-bit BARs of the passed devices are {format_size(bars)} "
            "(/sys/bus/pci/devices/*/resource): the guest's kernel has no room to place what the firmware did not"
        )
        yield Fault("warn", text, f"{_CONTROLLER}[@index='0']/pcihole64")


def _address_width(scene: GuestOnHost) -> Iterator[Fault]:
    """Check that memory and the BARs (or the written hole) above it are addressable: QEMU checks it for the hole.

    Gaps from alignment are not counted: what does not fit without them never fits.
    """
    bits, said = _width(scene)
    # libvirt makes the guest's memory the sum of its cells, whatever <memory> says.
    memory = max(scene.guest.memory_bytes or 0, sum(cell.memory_bytes or 0 for cell in scene.guest.cells))
    if bits is None or not memory:
        return
    top = _FOUR_GIB + max(0, memory - _LOW_MEMORY)
    hole = scene.hole_bytes or 0
    above = max(hole, scene.bars_bytes)
    what = f"a pcihole64 of {format_size(hole)}" if hole == above else f"BARs of {format_size(above)}"
    end = top + above
    if end <= 1 << bits:
        return
    text = (
        f"{bits} address bits ({said}) reach {format_size(1 << bits)}, but {format_size(memory)} of memory and "
        f"{what} above it need {(end - 1).bit_length()} bits"
    )
    if _overridden(scene):
        yield Fault("warn", f"{text}; with {scene.guest.cpu.mode} QEMU takes the host's width instead", _WIDTH)
    else:
        yield Fault("error", text, _WIDTH)


def _width(scene: GuestOnHost) -> tuple[int | None, str]:
    """Return the guest's address bits and their source; None if neither the XML nor the host has them."""
    cpu = scene.guest.cpu
    written = cpu.address_width
    if written and written.mode == "emulate" and written.bits:
        return written.bits, f"maxphysaddr bits='{written.bits}'"
    if not scene.takes_host_cpu and not (written and written.mode == "passthrough"):
        return None, ""
    model = scene.host.cpu_model
    own = model.physical_address_bits if model else None
    limit = written.limit if written else None
    if limit is not None and (own is None or limit < own):
        return limit, f"maxphysaddr limit='{limit}'"
    return own, "this host's, /proc/cpuinfo"


def _overridden(scene: GuestOnHost) -> bool:
    """Return whether host-passthrough overrides a written number of address bits.

    It turns host-phys-bits on, and QEMU then ignores the number (QEMU target/i386/host-cpu.c).
    """
    written = scene.guest.cpu.address_width
    return bool(written and written.mode == "emulate" and scene.takes_host_cpu)
