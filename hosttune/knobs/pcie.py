"""Knobs of PCIe: ASPM of links, ACS of bridges, and the endpoints that the host keeps.

Pure. vfio resets a passed endpoint whenever it is opened (drivers/vfio/pci). So the guest sets the endpoint's own bits,
and only the bridge above it gets an action.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from hosttune.knobs.kernelargs import values
from hosttune.knobs.knob import BY_NAME, GUEST, HOST, Change, Knob, KnobContext, actions_for, wanted
from hosttune.model.host import PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.plan import Action, PlanFinding
from hosttune.model.values import FrozenMap, address_key
from hosttune.settings.pcie import READ_REQUEST_BYTES, AccessControl, Aspm, ReadRequest, RelaxedOrdering, acs_text

# These bits isolate devices, and a device that translates its addresses itself loses nothing (PCIe 5.0, 6.12).
# Translation blocking is not among them, because it disables ATS, and neither is egress control, which does nothing
# without its vector.
ACS_ISOLATION = ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
_FACING_DOWN = ("root-port", "downstream-port", None)
_NOT_KEPT = (None, "vfio-pci", "pci-stub")


class KnobFunction(NamedTuple):
    """A PCI function with the index of the host's devices. `device` None: the host document does not have it."""

    address: str
    device: PciDevice | None
    devices: DeviceIndex


def _function(ctx: KnobContext, address: str) -> KnobFunction:
    return KnobFunction(address, ctx.devices.pci.get(address), ctx.devices)


def _link_states(place: KnobFunction) -> Any:
    """Return the ASPM states of the link below a port.

    One value if both ends agree, else a value for each address (as `Aspm` reads it).
    """
    port = place.device
    if port is None:
        return None
    ends = [end for end in place.devices.below.get(port.address, ()) if end.physfn is None]
    states = {end.address: end.aspm for end in (*ends, port) if end.aspm is not None}
    return port.aspm if port.aspm is None or set(states.values()) == {port.aspm} else FrozenMap(states)


def _acs(place: KnobFunction, value: str) -> Iterable[Change | PlanFinding]:
    """Yield the change that adds ACS bits; bits are never removed.

    A finding reports the bits that a bridge should have but does not support.
    """
    address, bridge, _ = place
    if bridge is None or bridge.acs is None:
        yield PlanFinding(level="warn", text="its ACS is unknown: left alone", where=address)
        return
    asked = value.split()
    missing = [name for name in asked if name not in bridge.acs.capable]
    if missing and bridge.port_type in ("root-port", "downstream-port"):
        yield PlanFinding(level="info", text=f"it has no ACS {' '.join(missing)}", where=address)
    more = [name for name in asked if name in bridge.acs.capable and name not in bridge.acs.enabled]
    now, want = acs_text(bridge.acs.enabled), acs_text((*bridge.acs.enabled, *more))
    if more:
        yield Change(address, now, want, ACS.why)


def _relaxed_ordering(place: KnobFunction, value: bool) -> Iterable[Change | PlanFinding]:
    now = place.device.relaxed_ordering if place.device else None
    flawed = _root_without_relaxed_ordering(place)
    if flawed and now != value:
        text = f"relaxed ordering stays off: the kernel lists the root port {flawed} as one that handles it wrongly"
        yield PlanFinding(level="info", text=text, where=place.address)
    else:
        yield Change(place.address, now, value)


def _root_without_relaxed_ordering(place: KnobFunction) -> str | None:
    """Return the root port above if the kernel disables relaxed ordering below it (drivers/pci/quirks.c)."""
    root = place.devices.pci.get((place.devices.above(place.address) or ("",))[-1])
    if root is None or root.device_id is None:
        return None
    number = int(root.device_id, 16)
    intel = root.vendor_id == "8086" and (0x2F01 <= number <= 0x2F0E or 0x6F01 <= number <= 0x6F0E)
    amd = root.vendor_id == "1022" and 0x1A00 <= number <= 0x1A02
    return root.address if intel or amd else None


ASPM: Knob[KnobFunction] = Knob(
    name="aspm",
    setting=Aspm,
    profiles=GUEST,
    value="off",
    values=("off",),
    false_means="off",
    target=lambda port: port.address,
    now=_link_states,
    sets="links to passed devices, by the port above; the device's own end inside the guest",
    why="the link to a passed device leaves its low-power states too slowly; it is set at the port above, because vfio"
    " resets the device whenever it is opened: the device's own end is set again inside the guest",
    source="PCIe 5.0, 5.4.1; Documentation/ABI/testing/sysfs-bus-pci",
)
READ_REQUEST: Knob[KnobFunction] = Knob(
    name="read_request_bytes",
    setting=ReadRequest,
    profiles=HOST,
    value=4096,
    values=READ_REQUEST_BYTES,
    target=lambda place: place.address,
    now=lambda place: place.device.read_request_bytes if place.device else None,
    sets="largest read of GPUs and RDMA NICs: of those that stay with the host; of a guest's, inside it",
    takes=", ".join(f"`{size}`" for size in reversed(READ_REQUEST_BYTES)),
    why="longer reads need fewer requests",
    source="PCIe 5.0, 7.5.3.4",
)
RELAXED_ORDERING: Knob[KnobFunction] = Knob(
    name="relaxed_ordering",
    setting=RelaxedOrdering,
    profiles=HOST,
    value=True,
    changes=_relaxed_ordering,
    sets="on for GPUs and RDMA NICs, likewise; not below root ports that the kernel lists as handling it wrongly",
    why="writes of the device need not wait for each other",
    source="PCIe 5.0, 7.5.3.4; drivers/pci/quirks.c",
)
ACS: Knob[KnobFunction] = Knob(
    name="acs",
    setting=AccessControl,
    profiles=BY_NAME,
    value=" ".join(ACS_ISOLATION),
    names=(*ACS_ISOLATION, "DirectTrans"),
    changes=_acs,
    sets="ACS bits added on the bridges above passed devices, by name only; none is ever taken away",
    takes=f"`{' '.join(ACS_ISOLATION)}`; any of these and `DirectTrans`",
    why="asked for by name: settings.acs; bits are only added",
    source="PCIe 5.0, 6.12",
)
KNOBS = (ASPM, READ_REQUEST, RELAXED_ORDERING, ACS)
_OF_ENDPOINTS = (READ_REQUEST, RELAXED_ORDERING)


def plan_pcie(ctx: KnobContext) -> Iterator[Action | PlanFinding]:
    """Yield ASPM at the ports above passed devices, ACS of all bridges above them, and the host's own endpoints."""
    yield from actions_for(ctx.intent, (ASPM,), _ports(ctx), every=ctx.every)
    above = {bridge for guest in ctx.guests for device in guest.devices for bridge in ctx.devices.above(device.address)}
    yield from actions_for(ctx.intent, (ACS,), (_function(ctx, address) for address in sorted(above, key=address_key)))
    knobs = [knob for knob in _OF_ENDPOINTS if wanted(ctx.intent, knob) is not None]
    if READ_REQUEST in knobs and "pcie_bus_perf" in values(ctx.host.kernel_args, "pci"):
        # admin-guide/kernel-parameters, pci=pcie_bus_perf: payload sizes may differ along a path, and reads must stay
        # small.
        text = "the kernel keeps read requests as small as payloads: their size is left alone"
        yield PlanFinding(level="info", text=text, where="kernel argument pci=pcie_bus_perf")
        knobs.remove(READ_REQUEST)
    for place in _kept(ctx) if knobs else ():
        if place.device is None or place.device.read_request_bytes is None:
            text = "its device control cannot be read: read-request size and relaxed ordering are left alone"
            yield PlanFinding(level="info", text=text, where=place.address)
        else:
            yield from actions_for(ctx.intent, knobs, (place,), every=ctx.every)


def _ports(ctx: KnobContext) -> Iterator[KnobFunction]:
    """Yield the ports directly above passed devices that have a link."""
    ports = {function.parent for function in ctx.passed() if function.parent}
    for place in (_function(ctx, address) for address in sorted(ports, key=address_key)):
        if place.device and place.device.link is not None and place.device.port_type in _FACING_DOWN:
            yield place


def _kept(ctx: KnobContext) -> Iterator[KnobFunction]:
    """Yield GPUs and RDMA NICs that the host's own drivers hold, in address order.

    Without virtual functions and the boot display.
    """
    gpus = [gpu.address for gpu in ctx.host.index.accelerators]
    nics = [nic.address for nic in ctx.host.nics if nic.rdma]
    for address in sorted({*gpus, *nics} - ctx.given, key=address_key):
        function = ctx.devices.pci.get(address)
        if function and function.driver not in _NOT_KEPT and not function.physfn and not function.boot_display:
            yield _function(ctx, address)
