"""The one judge of PCIe links: what runs, what both ends can do, and what it means that less runs. Pure.

lspci's word "downgraded" looks at one end only; a Gen5 port above a Gen4 drive is not a fault. The figures of a root
port or downstream port are those of the link *below* it. The figures of an endpoint, an upstream port or a PCI bridge
are those of the link above it. Inside a switch (upstream to downstream port) and inside the root complex there is no
link. A card may have a switch of its own, whose ports claim 2.5 GT/s x1 while the card's slot runs at 16 GT/s x16: no
wire either (Syllo/nvtop#344; lspci in geerlingguy/raspberry-pi-pcie-devices#510, #695); the card's link is that of the
switch. The figures decide, not the `state` that a document has: discovery writes there what this module says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from hosttune.gpu.vendor import IDLING_DRIVERS
from hosttune.model import pciclass
from hosttune.model.host import Link, PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.listing import some
from hosttune.model.pci import common_link, for_vfio, link_shape
from hosttune.model.values import Value, slot_of

# Vendors of devices that are software, without a wire: virtio, QEMU, VMware, Google, Microsoft.
SOFTWARE = ("1af4", "1b36", "15ad", "1ae0", "1414")
IN_THE_ROOT = ("root-complex-endpoint", "root-complex-event-collector")  # types of ports of what has no link
NOMINAL = (2.5, 1)  # what a port inside a card claims that is no wire
_BRIDGES_FACE_DOWN = {"pci-to-pcie-bridge": True, "pcie-to-pci-bridge": False}


class JudgedLink(Value, frozen=True, kw_only=True):
    """A link, with `end`, the function whose figures these are, and the port above it, None if there is none.

    `other`: the link as that port shows it; None: the port is not the real other end. `best_speed_gts`, `best_width`:
    the most that all real ends can do. `state` and `why` as in `Link`. `rest`: why a link of state "idle" may run at a
    lower speed only now.
    """

    end: PciDevice
    port: PciDevice | None = None
    link: Link
    other: Link | None = None
    best_speed_gts: float | None = None
    best_width: int | None = None
    state: str
    why: str
    rest: str | None = None

    @property
    def best(self) -> tuple[float, int] | None:
        """Return GT/s and lanes that all real ends can do; None: not known."""
        speed, width = self.best_speed_gts, self.best_width
        return None if speed is None or width is None else (speed, width)

    @property
    def carries(self) -> tuple[float, int] | None:
        """Return GT/s and lanes under load: the best, or what runs on a degraded link; None: not known."""
        speed, width = self.link.speed_gts, self.link.width
        return (speed, width) if self.state == "degraded" and speed and width else self.best


_judged_links: WeakKeyDictionary[DeviceIndex, dict[str, JudgedLink | None]] = WeakKeyDictionary()  # each judged once


def link_of(index: DeviceIndex, address: str, loaded: tuple[float, int] | None = None) -> JudgedLink | None:
    """Judge the link of a function, for a port that of the link below it; None if the function reports none.

    `loaded`: speed and width read while copies ran.
    """
    kept = _judged_links.setdefault(index, {})
    if loaded is not None:
        return _link_of(index, address, loaded)
    if address not in kept:
        kept[address] = _link_of(index, address, None)
    return kept[address]


def _link_of(index: DeviceIndex, address: str, loaded: tuple[float, int] | None) -> JudgedLink | None:
    device = index.pci.get(address)
    if device is not None and (wire := _on_the_wire(index, device)) is not None:
        judged = link_of(index, wire.address, loaded)
        whose = "the physical function" if device.physfn else "the card's own switch"
        return replace(judged, why=f"the link of {whose} {wire.address}: {judged.why}") if judged else None
    if device is None or device.link is None:
        return None
    if loaded is not None:
        link = replace(device.link, speed_gts=loaded[0], width=loaded[1])
        return _judge_link(index, device, link, resting=False)
    if device.power_state == "D3cold":
        return JudgedLink(end=device, link=device.link, state="unknown", why="in D3cold: not read, that would wake it")
    return (
        _below_port(index, device, device.link)
        if faces_down(index, device)
        else _judge_link(index, device, device.link)
    )


def _on_the_wire(index: DeviceIndex, device: PciDevice) -> PciDevice | None:
    """Return the function whose link is that of another, which has none: of a virtual function, or inside a card."""
    physical = index.pci.get(device.physfn or "")
    if physical is not None or index.inside:
        return physical if physical is not None and physical.physfn is None else None
    port = index.pci.get(device.parent or "")
    switch = index.pci.get(port.parent or "") if port is not None else None
    if port is None or switch is None or port.link is None or switch.link is None or not faces_down(index, port):
        return None
    nominal = (port.link.max_speed_gts, port.link.max_width) == NOMINAL and (switch.link.max_width or 0) > NOMINAL[1]
    return switch if nominal and device.vendor_id == port.vendor_id == switch.vendor_id else None


def uplinks(index: DeviceIndex, address: str) -> Iterator[JudgedLink]:
    """Yield the links above a function's own up to the root port, nearest first: the narrowest carries all it moves.

    (Linux drivers/pci/pci.c, pcie_bandwidth_available(), walks the same way.) The bridges that a guest shows have none.
    """
    for bridge in () if index.inside else index.bridges(address):
        if bridge.parent and bridge.vendor_id not in SOFTWARE and not faces_down(index, bridge):
            yield link_of(index, bridge.address) or _judge_link(index, bridge, Link())


def path(index: DeviceIndex, address: str) -> tuple[JudgedLink, ...]:
    """Return a function's own link, if it reports one, and those above it."""
    own = link_of(index, address)
    return (*(() if own is None else (own,)), *uplinks(index, address if own is None else own.end.address))


def limits(index: DeviceIndex, address: str) -> tuple[float | None, int | None]:
    """Return the most that both ends of a function's link can do, in GT/s and lanes; None: unknown."""
    judged = link_of(index, address)
    return (judged.best_speed_gts, judged.best_width) if judged is not None else (None, None)


def narrowest(index: DeviceIndex, addresses: Iterable[str], *, now: bool = False) -> tuple[float, int] | None:
    """Return GT/s and lanes of the slowest link between devices and their root ports, by what it can do.

    None if what a slot can do is not known, or there is none. `now`: a degraded link counts as it runs.
    """
    links = [link_of(index, address) for address in addresses if address in index.pci]
    slots = [None if link is None else link.carries if now else link.best for link in links]
    hops = (hop for link in links if link is not None for hop in uplinks(index, link.end.address))
    known = [slot for slot in (*slots, *(hop.carries if now else hop.best for hop in hops)) if slot is not None]
    return min(known, key=lambda slot: slot[0] * slot[1]) if known and None not in slots else None


def _below(index: DeviceIndex, bridge: PciDevice) -> tuple[str, ...]:
    """Return the GPUs, NICs, drives and switches of links below a bridge, one a slot: what its link carries."""
    kinds = (*pciclass.GPUS, *pciclass.NICS, pciclass.NVME, pciclass.OTHER_BRIDGE)
    under = (
        device.address
        for device in index.pci.values()
        if (device.class_code or "").startswith(kinds) and device.physfn is None
        if bridge.address in index.above(device.address)
    )
    return tuple({slot_of(address): address for address in under}.values())


def faces_down(index: DeviceIndex, device: PciDevice) -> bool:
    """Return whether a function is a port whose link is below it.

    Ports alternate along the tree, and that overrides a wrong or unread port type (as in the kernel's
    set_pcie_port_type()): a port below a link faces up, a port below an upstream port faces down.
    """
    down: bool | None = None
    for function in (*reversed(index.bridges(device.address)), device):
        if function.port_type in _BRIDGES_FACE_DOWN or not (function.class_code or "").startswith(pciclass.PCI_BRIDGE):
            down = _BRIDGES_FACE_DOWN.get(function.port_type or "", False)
        else:
            down = function.port_type != "upstream-port" if down is None else not down
    return down is True


def _below_port(index: DeviceIndex, port: PciDevice, link: Link) -> JudgedLink:
    """Judge a port's link by the first function below it, so that both ends of a link get the same state."""
    below = (function for function in index.below.get(port.address, ()) if function.physfn is None)
    lower = next(
        (function for function in below if function.link is not None and function.power_state != "D3cold"), None
    )
    if lower is None or lower.link is None:
        return JudgedLink(end=port, link=link, state="unknown", why="nothing answers below the port")
    judged = replace(_judge_link(index, lower, lower.link), end=port, link=link, port=None)
    if judged.state not in ("full", "by-design"):
        return judged
    if (link.speed_gts, link.width) == (link.max_speed_gts, link.max_width):
        return replace(judged, state="full", why="runs at the port's most")
    most = link_shape(lower.link.max_speed_gts, lower.link.max_width)
    return replace(judged, state="by-design", why=f"{lower.address} below can do {most}")


def _judge_link(index: DeviceIndex, device: PciDevice, link: Link, *, resting: bool = True) -> JudgedLink:
    """Judge the link between a function and the port above it. `resting`: it may be idle, and then a lower speed too.

    If a slot has several functions, the first one shows what the slot can do: another may claim more lanes.
    """
    above = index.pci.get(device.parent or "")
    port = above if above is not None and faces_down(index, above) else None
    other, blind = _other_end(index, link, port)
    first = index.pci.get(f"{slot_of(device.address)}.0")
    ends = [link, *(one for one in (None if first is None else first.link, other) if one is not None)]
    best = common_link((link.max_speed_gts, link.max_width) for link in ends)
    now, most = (link.speed_gts, link.width), (link.max_speed_gts, link.max_width)
    state, why, rest = "unknown", f"{link_shape(*now)} of {link_shape(*most)}; {blind}", None
    if None in (*now, *most):
        why = "the link reports no speed or width: not trained, or not readable"
    elif now == most:
        state, why = "full", f"runs at the device's most{f'; {blind}' if blind else ''}"
    elif other is None or port is None:
        pass
    elif now == best:
        by_port = now == common_link((most, (other.max_speed_gts, other.max_width)))
        able = f"{port.address} above can do {link_shape(other.max_speed_gts, other.max_width)}"
        state, why = "by-design", able if by_port else f"the slot can do {link_shape(*best)}"
    elif (now[0] or 0) > (best[0] or 0) or (now[1] or 0) > (best[1] or 0):
        why = f"{link_shape(*now)}, more than both ends can do: no figure of this link"
    else:
        why = f"{link_shape(*now)} of {link_shape(*best)}, which both ends ({device.address}, {port.address}) can do"
        rest = _rest(index, device) if resting and now[1] == best[1] else None
        state, why = ("idle", f"{why}; {rest}: read it again under load") if rest else ("degraded", why)
    if state == "degraded" and len(sharing := _below(index, device)) > 1:
        why = f"{why}; shared by {some(sharing, 6)}"
    return JudgedLink(
        end=device, port=port, link=link, other=other, best_speed_gts=best[0], best_width=best[1], state=state, why=why,
        rest=rest,
    )  # fmt: skip


def _other_end(index: DeviceIndex, link: Link, port: PciDevice | None) -> tuple[Link | None, str]:
    """Return the link as the port above shows it, or None and why that is not the real other end."""
    if port is None:
        return None, "no port above: the other end is not visible"
    most = (port.link.max_speed_gts, port.link.max_width) if port.link else (None, None)
    if index.inside or port.vendor_id in SOFTWARE:
        return None, f"{port.address} is a virtual port: the real other end is not visible"
    if most[0] is None or most[1] is None:
        return None, f"{port.address} is silent"
    if (link.speed_gts or 0) > most[0] or (link.width or 0) > most[1]:
        return None, f"{port.address} claims less than what runs ({link_shape(*most)}): not the real other end"
    return port.link, ""


def _rest(index: DeviceIndex, device: PciDevice) -> str | None:
    """Return why the link above a function may run at a lower speed now; None if nothing lowers it. The width stays.

    Registers of a device in D3hot can be read (Linux drivers/pci/pci.c, pci_config_pm_runtime_get). A card's own switch
    has its maker's id, and its link is slowed with that of the GPU below it.
    """
    todo, seen = [device], set[str]()
    while todo:
        function = todo.pop()
        seen.add(function.address)
        if function.runtime_status == "suspended" or function.power_state == "D3hot":
            return f"{function.address} is {'in D3hot' if function.power_state == 'D3hot' else 'suspended'}"
        if function.is_display and function.driver in IDLING_DRIVERS:
            return f"{function.driver} may slow an idle link"
        if function.is_display and for_vfio(function.driver) and function.address in index.holders:
            return f"its driver in guest {index.holders[function.address]} may slow an idle link"
        below = (
            index.below.get(function.address, ()) if (function.class_code or "").startswith(pciclass.PCI_BRIDGE) else ()
        )
        todo += [inner for inner in below if inner.vendor_id == device.vendor_id and inner.address not in seen]
    return None
