"""Checks of the ports of network functions: their links and rates. Their errors: `porterrors`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from hosttune.model.pci import for_vfio
from hosttune.model.pcitree import shared_switch
from hosttune.model.ports import RdmaPort, believed_gbps
from hosttune.rules.checks.facts import listed
from hosttune.rules.checks.nics import (
    CABLE,
    ETHERNET,
    IB,
    LINKED,
    NO_LINK,
    NO_PORT,
    NVSENTINEL,
    OFF,
    READ,
    STATE,
    UNKNOWN,
    PhysicalFunction,
    any_linked,
    in_use,
    port_check,
    unlisted_ports,
)
from hosttune.rules.checks.on import On, worst_of
from hosttune.rules.engine import Finding

_MOST_GPUS = 64  # of which it is told that a port is their rail
_UNASSIGNED = frozenset((0, 0xFFFF))  # InfiniBand Architecture volume 1, 4.1.3: reserved, and the permissive LID
_DEVICE = "load its driver's RDMA module, look for its messages in the kernel log, and compare: rdma link; rdma dev"
_PROBE = (
    "look in the kernel log why its driver did not take it (firmware, power); else bind it: echo ADDRESS >"
    " /sys/bus/pci/drivers_probe"
)
_UPDATE = "bring the cards of a model to one firmware (mlxfwmanager, or the maker's tool), then reset them or reboot"
_MANAGER = "start the subnet manager (opensm, or the one of the switch), or look whether it can reach this port: sminfo"
_ASK = "ibstat, or mlxlink -d DEVICE as root, asks the port itself"
_SLOWER = "look at the cable, the transceiver and the switch's port: one of them holds the rate down; compare with {0}"


# --- state -------------------------------------------------------------------------------------------------------


@port_check(
    STATE,
    title="Ports have a link, and InfiniBand ports a subnet manager",
    about="each NIC, with its RDMA ports and network interfaces",
    why="A rail that is down slows or stops every job that spans hosts",
    source="Linux Documentation/ABI/stable/sysfs-class-infiniband; InfiniBand Architecture"
    f" volume 1, 14.2 (subnet management); {NVSENTINEL}, link state detection",
    expected="each port that is set up has a link, and on InfiniBand an address from the subnet manager",
    remedy=CABLE,
    reads=READ,
)
def port_state(on: On, nic: PhysicalFunction) -> Finding:
    """Check each port: its link, and on InfiniBand what the subnet manager gave it.

    A port that was set down is not a fault: nothing can use it, and somebody decided so. Only an RDMA port warns where
    the same port of another card of its model has a link. A port that is set up and has no link warns, since a cable
    may be missing on purpose. It is a fault if it is an RDMA port of a card without any link, or if the same port of
    another card of its model has one. A function that its driver did not take, or made no port of, warns where another
    card of its model has ports. A fault tells which GPUs have this function as their rail.
    """
    state = on.worst(_state(on, nic))
    if not nic.rdma or state.outcome in ("pass", "skip"):
        return state
    index = on.host.index
    gpus = [gpu.address for gpu in index.accelerators[:_MOST_GPUS] if shared_switch(index, gpu.address, nic.address)]
    rail = f"; the rail of GPU {listed(gpus, 3)}, below the same switch" if gpus else ""
    return replace(state, text=state.text + rail)


def _state(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    if nic.nic.kind == IB and nic.ports == NO_PORT and not (nic.free or nic.nic.fabric_bridge):
        text = f"{nic.device.driver or 'its driver'} holds an InfiniBand function, and there is no RDMA device of it"
        hint = "load the module that makes the RDMA devices of this driver, then look with: rdma link; ibstat"
        yield on.warned(text, hint)
        return
    used = [other.address for other in nic.alike if not other.free and other.links]
    passed = for_vfio(nic.device.driver) or nic.nic.fabric_bridge
    if used and not passed and not nic.links and (nic.free or nic.ports == NO_PORT):
        text = f"{nic.device.driver} made no port of it" if nic.device.driver else "no driver holds it"
        yield on.warned(f"{text}, and {listed(used, 3)}, of the same model, has ports", _PROBE)
        return
    in_use(on, nic)
    yield from unlisted_ports(on, nic)
    up = LINKED in nic.links.values()
    for port in nic.rdma:
        if nic.links[port.name] == LINKED:
            yield from _managed(on, port)
    yield from (on.unknown(f"{name}: {_port_text(nic, name)}") for name, link in nic.links.items() if link == UNKNOWN)
    if up:
        yield from _without_rdma(on, nic)
        yield from _firmware(on, nic)
    alike = any_linked(nic.alike) if nic.rdma else False
    if dead := [name for name, link in nic.links.items() if link == NO_LINK]:
        yield _dead(on, nic, dead, alike)
    off = ", ".join(name for name, link in nic.links.items() if link == OFF)
    if up or not off:
        yield on.passed(", ".join(_port_text(nic, name) for name in nic.links))
    elif alike:
        hint = f"ip link set {off.rpartition(' ')[2]} up, if it is meant to be used as the other card's is"
        yield on.warned(f"{off} set down, and another card of its model has a link there", hint)
    elif alike is None:
        yield on.unknown(f"{off} set down; whether another card of its model has a link is not known")
    else:
        yield on.skipped(f"{off} set down: nothing here can use it")


def _managed(on: On, port: RdmaPort) -> Iterator[Finding]:
    """Yield what is wrong with an InfiniBand port that has a link: not active, or without LID or subnet manager."""
    if port.state != "active":
        yield on.failed(f"{port.name} is {port.state}: no subnet manager has activated it", _MANAGER)
    elif port.layer == IB and (port.lid is None or port.sm_lid is None):
        yield on.unknown(f"{port.name} is active; its LID or the subnet manager's was not read")
    elif port.layer == IB and not _UNASSIGNED.isdisjoint((port.lid, port.sm_lid)):
        text = f"{port.name} is active with LID {port.lid}, subnet manager's LID {port.sm_lid}: none has assigned it"
        yield on.failed(text, _MANAGER)


def _dead(on: On, nic: PhysicalFunction, dead: list[str], alike: bool | None) -> Finding:
    """Judge ports that are set up and have no link. `alike`: another card of the model has one there."""
    text = f"{', '.join(dead)} set up, without a link"
    if alike:
        return on.failed(f"{text}; the same port of another card of its model has one")
    card = True if LINKED in nic.links.values() else any_linked(nic.on_card)
    fabric = any(port.name in dead for port in nic.rdma)
    if fabric and card is False:
        return on.failed(f"{text}, nor has another port of the card")
    if alike is None or (fabric and card is None):
        return on.unknown(f"{text}; whether another port of the card or another card of its model has one is not known")
    return on.warned(text)


def _without_rdma(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    """Yield that an Ethernet function has no RDMA device although the same function of another card of its model has
    one: collectives leave this rail out. A bond's ports have one RDMA device together, at one of the card's functions.
    """
    if nic.rdma_devices != frozenset() or nic.is_virtual:
        return
    if any("bond" in name for other in nic.on_card for name in other.rdma_devices or ()):
        return
    having = [other.address for other in nic.alike if other.rdma_devices]
    silent = [other.address for other in nic.alike if other.rdma_devices is None]
    if having:
        yield on.warned(f"no RDMA device, and {listed(having, 3)}, of the same model, has one", _DEVICE)
    elif silent:
        yield on.unknown(f"no RDMA device; whether {listed(silent, 3)}, of the same model, has one is not known")


def _firmware(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    """Yield that its RDMA device runs another firmware than most cards of its model here."""
    own = _versions(nic)
    theirs = {other.address: _versions(other) for other in nic.alike if other.rdma_devices != frozenset()}
    silent = [address for address, versions in theirs.items() if not versions]
    if not nic.rdma or not any((own, *theirs.values())):
        return  # it has no RDMA device, or its driver tells none
    (most, count), *rest = Counter((own, *theirs.values())).most_common()
    if not own:
        yield on.unknown("its firmware was not read, which other cards of its model show")
    elif silent:
        yield on.unknown(f"the firmware of {listed(silent, 3)}, of the same model, was not read")
    elif rest and (own != most or rest[0][1] == count):
        others = sorted({version for versions in theirs.values() for version in versions} - set(own))
        yield on.warned(f"firmware {', '.join(own)}; other cards of its model have {listed(others, 3)}", _UPDATE)


def _versions(nic: PhysicalFunction) -> tuple[str, ...]:
    return tuple(sorted({port.firmware for port in nic.rdma if port.firmware}))


def _port_text(nic: PhysicalFunction, name: str) -> str:
    """Return a port in words: "mlx5_0/1 active, linkup, firmware 28.39.1002"."""
    for port in nic.rdma:
        if port.name == name:
            firmware = f", firmware {port.firmware}" if port.firmware else ""
            return f"{name} {port.state or 'state not read'}, {port.phys_state or 'link not read'}{firmware}"
    net = next(interface for interface in nic.interfaces if interface.name == name)
    up = {True: "set up", False: "set down", None: "whether it is set up not read"}[net.is_up]
    carrier = {True: "carrier", False: "no carrier", None: "carrier not read"}[net.carrier if net.is_up else False]
    return f"{name} {up}, {carrier}" + (f", MTU {net.mtu}" if net.mtu else "")


# --- rate --------------------------------------------------------------------------------------------------------


@port_check(
    "port-rate",
    title="Ports run at the rate of other cards of their model",
    about="each NIC whose port has a link",
    why="One port at half its rate halves the collectives of the whole job, and nothing reports it",
    source="Linux drivers/infiniband/core/sysfs.c (rate_show), Documentation/ABI/testing/sysfs-class-net (speed,"
    " duplex)",
    expected="full duplex, and the rate (on RoCE also the MTU) of the same port of the other cards of its model",
    reads=READ,
)
@worst_of
def port_rate(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    """A function may have several ports: the fastest is compared with the fastest, the next one with the next one."""
    in_use(on, nic)
    if UNKNOWN in nic.links.values():
        on.give_up("its link is not known", f"see {STATE} of {nic.address}")
    if LINKED in nic.links.values() and nic.is_virtual:
        on.skip("a virtual device: it has no rate of its own")
    yield from unlisted_ports(on, nic)
    if LINKED not in nic.links.values():
        on.skip(f"no link: see {STATE}")
    yield from _duplex(on, nic)
    rates = _rates(nic)
    yield from (on.unknown(shown, _ASK) for rate, shown in rates.values() if rate is None)
    text = ", ".join(shown for _, shown in rates.values())
    own = _fastest_first(nic) or []
    theirs = {other.address: _fastest_first(other) for other in nic.alike}
    faster = {
        address: max(above)
        for address, those in theirs.items()
        if (above := [rate for rate, mine in zip(those or (), own, strict=False) if rate > mine])
    }
    silent = [address for address, those in theirs.items() if those is None]
    if faster:
        of = max(faster, key=lambda address: faster[address])
        yield on.warned(f"{text}; {of}, of the same model, runs at {faster[of]:g} Gb/s", _SLOWER.format(of))
    elif silent:
        yield on.unknown(f"{text}; the rate of {listed(silent, 3)}, of the same model, is not known")
    else:
        yield from _smaller_mtu(on, nic)
    if any(theirs.values()):
        yield on.passed(f"{text}, as other cards of its model")
    else:
        why = "nothing here tells what it can do: no other card of its model has a link on this port"
        yield on.skipped(f"{text}; {why}")


def _rates(nic: PhysicalFunction) -> dict[str, tuple[float | None, str]]:
    """Return the Gb/s of each port with a link, and its text. The RDMA port of an Ethernet port is the same port."""
    rates: dict[str, tuple[float | None, str]] = {}
    for port in nic.rdma:
        if nic.links[port.name] == LINKED and not (port.layer != IB and nic.interfaces):
            lanes = f" ({port.width}X {port.speed})" if port.width and port.speed else ""
            rate, shown = believed_gbps(port.layer, port.rate_gbps, port.speed), f"{port.rate_gbps or 0:g} Gb/s{lanes}"
            text = f"{port.name} {shown}"
            if rate is None:
                text = f"{port.name} shows {shown}, as the kernel does also for a speed that it has no name for"
            rates[port.name] = rate, text if port.rate_gbps is not None else f"the rate of {port.name} was not read"
    for net in nic.interfaces:
        if nic.links[net.name] == LINKED:
            unread = f"the rate of {net.name} was not read"
            rates[net.name] = net.speed_gbps, f"{net.name} {net.speed_gbps:g} Gb/s" if net.speed_gbps else unread
    return rates


def _fastest_first(nic: PhysicalFunction) -> list[float] | None:
    """Return the Gb/s of a function's ports that have a link, the fastest first; None if it is not known."""
    if not nic.linked:
        return [] if nic.linked is False else None
    rates = [rate for rate, _ in _rates(nic).values()]
    known = [rate for rate in rates if rate is not None]
    return sorted(known, reverse=True) if rates and len(known) == len(rates) else None


def _smaller_mtu(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    """Yield that a RoCE port's MTU is below that of its like: messages between rails then have the smaller one."""
    if not (own := _mtus(nic)):
        return
    others = {other.address: _mtus(other) for other in nic.alike}
    silent = [address for address, mtus in {nic.address: own, **others}.items() if 0 in mtus]
    most = max((mtu for mtus in others.values() for mtu in mtus), default=0)
    if silent:
        yield on.unknown(f"the MTU of {listed(silent, 3)} was not read")
    elif min(own) < most:
        of = next(address for address, mtus in others.items() if most in mtus)
        hint = f"ip link set {nic.interfaces[0].name} mtu {most}, and the same on the switch's port"
        yield on.warned(f"MTU {min(own)}; {of}, of the same model, has {most}", hint)


def _mtus(nic: PhysicalFunction) -> list[int]:
    """Return the MTU of each interface of a RoCE function that has a link; 0 for one that was not read."""
    roce = any(port.layer == ETHERNET for port in nic.rdma)
    return [net.mtu or 0 for net in nic.interfaces if roce and nic.links[net.name] == LINKED]


def _duplex(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    for net in nic.interfaces:
        if nic.links[net.name] == LINKED and net.duplex == "half":
            hint = "set both ends to negotiate: ethtool -s NAME autoneg on; and the switch's port likewise"
            yield on.failed(f"{net.name} runs half duplex", hint)
        elif nic.links[net.name] == LINKED and net.duplex != "full":
            yield on.unknown(f"the duplex of {net.name} was not read")
