"""Check of the rate of ports against what they support: Ethernet as `ethtool`, InfiniBand as `smpquery` tells it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosttune.model.ports import Interface, PortDetail, PortInfo, RdmaPort, Reading, Transceiver, believed_gbps
from hosttune.model.values import grouped
from hosttune.rules.checks.facts import listed
from hosttune.rules.checks.nics import (
    IB,
    LINKED,
    STATE,
    UNKNOWN,
    PhysicalFunction,
    in_use,
    port_check,
    unanswered,
    unlisted_ports,
)
from hosttune.rules.checks.on import On, worst_of
from hosttune.rules.engine import Finding

# Virtual functions in a guest (drivers/net/ethernet/mellanox/mlx5/core/main.c, mlx5_core_pci_table): they answer for no
# port.
_VIRTUAL = frozenset(("15b3", device) for device in ("1014", "1016", "1018", "101a", "101c", "101e", "a2d3"))
_SPLIT = 2  # lanes: a card limited to half of its rate has all lanes at half the speed, or two at the full one


@port_check(
    "port-capability",
    title="Ports run at the fastest rate that they support",
    about="each NIC, with its ports that have a link",
    why="A port of a lower rate works, only slower; where all do so no other port shows it",
    source="Linux Documentation/networking/ethtool-netlink.rst, LINKMODES_GET; ethtool(8); InfiniBand Architecture"
    " volume 1, 14.2.5.6 (PortInfo); smpquery(8)",
    expected="each port with a link at the fastest rate that it supports",
    reads="/sys/class/net/*/speed, ethtool NAME; /sys/class/infiniband/*/ports/*/rate, smpquery portinfo",
)
@worst_of
def port_capability(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    in_use(on, nic)
    if nic.is_virtual:
        on.skip("a virtual device: it has no port of its own")
    yield from unlisted_ports(on, nic)
    if not nic.interfaces and all(port.layer not in (IB, None) for port in nic.rdma):
        on.skip("neither an Ethernet nor an InfiniBand port")
    details, infos = on.evidence.port_details or {}, on.evidence.port_info or {}
    for net in nic.interfaces:
        yield _linked(on, nic, net.name) or _ethernet(on, net, details.get(net.name, PortDetail()))
    for port in nic.rdma:
        if port.layer is None:
            yield on.unknown(f"the link layer of {port.name} was not read")
        elif port.layer == IB and (nic.device.vendor_id, nic.device.device_id) in _VIRTUAL:
            text = f"{port.name}: a virtual function; hosttune validate on its host judges the port"
            yield _linked(on, nic, port.name) or on.skipped(text)
        elif port.layer == IB:
            yield _linked(on, nic, port.name) or _infiniband(on, port, infos.get(port.name, PortInfo()))


def _linked(on: On, nic: PhysicalFunction, name: str) -> Finding | None:
    """Return what is said of a port without a link, or whose link is not known; None for one with a link."""
    if nic.links[name] == UNKNOWN:
        return on.unknown(f"whether {name} has a link is not known")
    return None if nic.links[name] == LINKED else on.skipped(f"{name} has no link: see {STATE}")


def _ethernet(on: On, net: Interface, detail: PortDetail) -> Finding:
    name, speed, modes = net.name, net.speed_gbps, detail.modes
    if modes is None:
        return unanswered(on, name, f"ethtool {name}", "ethtool", detail.modes_error, LINKED)
    if speed is None or modes.speed_gbps is None or modes.supported_gbps is None:
        return on.unknown(f"the rate of {name}, or which it supports, was not read")
    if not modes.supported_gbps:
        return on.skipped(f"the driver of {name} does not report which rates it supports")
    most = max(modes.supported_gbps)
    if speed >= most:
        return _fastest(on, name, speed, most)
    offered, partner = max(modes.advertised_gbps or (0.0,)), max(modes.partner_gbps or (0.0,))
    offers = f"; it offers at most {offered:g}" if 0 < offered < most else ""
    other = f"its partner offers at most {partner:g}" if partner else "what its partner can is not known"
    hint = f"if the cable, the module and the switch's port can do more: ethtool {name} shows what both ends offer"
    return on.warned(f"{name} runs at {speed:g} Gb/s and supports {most:g}{offers}; {other}", hint)


def _infiniband(on: On, port: RdmaPort, info: PortInfo) -> Finding:
    """Judge a port by PortInfo, which lists widths and speeds, but not which of them go together."""
    name = port.name
    command = f"smpquery -C {port.device} -P {port.number} -D portinfo 0 {port.number}"
    if info == PortInfo() or info.error is not None:
        hint = f"as root: modprobe ib_umad; {command}" if "UMAD" in (info.error or "") else ""
        return unanswered(on, name, command, "infiniband-diags", info.error, LINKED, hint)
    rate = believed_gbps(port.layer, port.rate_gbps, port.speed)
    if rate is None:
        return on.unknown(f"the rate of {name} was not read, or is not proven: see port-rate")
    if info.unnamed:
        hint = "a newer infiniband-diags; XDR needs 49 or newer"
        return on.unknown(f"smpquery has no name for a speed or width that {name} supports", hint)
    if not info.widths or not info.lane_gbps or info.gbps is None:
        return on.unknown(f"which lanes and speeds {name} supports cannot be read", f"as root: {command}")
    most = max(info.widths) * max(info.lane_gbps)
    if rate >= most:
        return _fastest(on, name, rate, most)
    text = f"{name} runs at {rate:g} Gb/s ({port.width}X {port.speed})"
    lanes = f"{max(info.widths)} lanes and {max(info.lane_gbps):g} Gb/s on each"
    if _SPLIT in info.widths and 2 * rate >= most:
        return on.skipped(
            f"{text} and supports {lanes}; PortInfo does not tell whether both together: a card limited to half"
            " (HDR100, NDR200) does not; its product name in lspci -vv, as root, has its rate"
        )
    enabled = max(info.widths_enabled or (0,)) * max(info.lane_gbps_enabled or (0.0,))
    told = f"; at most {enabled:g} is enabled" if 0 < enabled < most else ""
    hint = f"if the cable and the switch's port can do more: iblinkinfo shows both ends, {command} this one"
    return on.warned(f"{text} and supports {lanes}{told}", hint)


def _fastest(on: On, name: str, rate: float, most: float) -> Finding:
    if rate > most:  # the tool is older than the rate, and has no name for it
        return on.unknown(f"{name} runs at {rate:g} Gb/s, and the fastest that is told of what it supports is {most:g}")
    return on.passed(f"{name} {rate:g} Gb/s, the fastest that it supports")


# --- modules --------------------------------------------------------------------------------------------------

_LANE = ("bias", "tx-power", "rx-power")
_UNITS = {"temperature": "°C", "voltage": "V", "bias": "mA", "tx-power": "mW", "rx-power": "mW"}
_ORDER = ("low alarm", "low warning", "high warning", "high alarm")
_MEND = "look at the cooling, clean the fibre's ends, reseat or swap the module; ethtool -m NAME shows all readings"


@port_check(
    "port-module",
    title="Modules in ports are within their own limits",
    about="each NIC, with the modules in its ports",
    why="A module that is too hot or gets too little light loses its link under load",
    source="SFF-8472 (table 9-5), SFF-8636 (6.6), CMIS (8.5): alarm and warning thresholds; ethtool(8), --module-info",
    expected="each reading within the limits that the module itself states",
    remedy=_MEND,
    reads="ethtool -m NAME",
)
@worst_of
def port_module(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    in_use(on, nic)
    if nic.is_virtual:
        on.skip("a virtual device: it has no port of its own")
    if nic.ports is None or nic.ports.interfaces is None:
        yield on.unknown("which network interfaces it has is not known")
    elif not nic.interfaces:
        on.skip("no Ethernet port: ethtool tells nothing of an InfiniBand one")
    for net in nic.interfaces:
        detail = (on.evidence.port_details or {}).get(net.name, PortDetail())
        yield _module(on, net.name, nic.links[net.name], detail)


@worst_of
def _module(on: On, name: str, linked: str, detail: PortDetail) -> Iterator[Finding]:
    """Judge the readings of a module by its own limits. Current and light only with a link: a laser may be off."""
    module, again = detail.module, f"as root: ethtool -m {name}"
    if module is None:
        yield unanswered(on, name, f"ethtool -m {name}", "ethtool", detail.module_error, linked)
        return
    who = " ".join(filter(None, (name, module.kind, module.vendor, module.part)))
    if module.kind is None:
        on.give_up(f"{name}: which kind its module is was not read", again)
    if not module.readings and (module.copper or module.monitored is False):
        on.skip(f"{who}: {'a copper cable' if module.copper else 'a module'} that measures nothing")
    if not module.readings:
        on.give_up(f"{name}: its module's readings were not read", again)
    if all(_limits(module, reading.quantity) == () for reading in module.readings):
        on.skip(f"{who}: a module that states no limits")
    if linked == UNKNOWN:
        yield on.unknown(f"whether {name} has a link is not known, so whether its laser should be on")
    unused = _unused(module)
    lanes: set[int | None] = {reading.lane for reading in module.readings if reading.quantity in _LANE}
    if linked == LINKED and lanes and lanes <= unused:
        yield on.unknown(f"{name} has a link, and no lane of its module any light or current")
    for quantity in _UNITS:
        here = {reading.lane: reading for reading in module.readings if reading.quantity == quantity}
        wanted = set(here) or {None}
        if quantity in _LANE:
            wanted = lanes or {None} if here or _limits(module, quantity) else set()
        for lane in sorted(wanted - unused, key=lambda lane: lane or 0):
            if linked == LINKED or quantity not in _LANE:
                yield from _reading(on, name, here.get(lane, Reading(quantity=quantity, lane=lane)), module)
    values = [
        f"{reading.quantity}{_of(reading)} {reading.value:g} {_UNITS[reading.quantity]}"
        for reading in module.readings
        if reading.value is not None and reading.lane in (None, 1)
    ]
    yield on.passed(f"{who}: {', '.join(values)}")


def _of(reading: Reading) -> str:
    return f" of lane {reading.lane}" if reading.lane is not None else ""


def _unused(module: Transceiver) -> set[int | None]:
    """Return the lanes that a module does not use: no current, no light either way, and no flag raised about it.

    A module of eight lanes with four in use reports the others so (CMIS; tests/cases/ports/ethtool/m-cmis-400g.txt).
    """
    lanes = grouped(
        (reading.lane, reading) for reading in module.readings if reading.quantity in _LANE and reading.lane is not None
    )
    return {
        lane
        for lane, those in lanes.items()
        if len(those) == len(_LANE) and all(reading.value == 0 and not reading.flags for reading in those)
    }


def _reading(on: On, name: str, reading: Reading, module: Transceiver) -> Iterator[Finding]:
    what, again = f"{name}: {reading.quantity}{_of(reading)}", f"as root: ethtool -m {name}"
    value, limits = reading.value, _limits(module, reading.quantity)
    if value is None:
        yield on.unknown(f"{what} was not read", again)
        return
    text = f"{what} {value:g} {_UNITS[reading.quantity]}"
    if not limits:
        if limits is None:
            yield on.unknown(f"{text}; the module's limits were not read", again)
        return
    low, low_warning, high_warning, high = limits
    if not low <= low_warning <= high_warning <= high or low == high:  # some drivers read the wrong bytes
        yield on.unknown(f"{text}; the module's limits {limits} contradict each other", again)
        return
    flagged = module.flagged or any(other.flags_read for other in module.readings)
    if flagged and reading.flags_read < len(_ORDER):
        yield on.unknown(f"{what}: whether the module has flagged it was not read", again)
    if value > high or value < low:
        yield on.failed(f"{text}, beyond the module's alarm limit {high if value > high else low:g}")
    elif value > high_warning or value < low_warning:
        limit = high_warning if value > high_warning else low_warning
        yield on.warned(f"{text}, beyond the module's warning limit {limit:g}")
    elif flags := listed(list(reading.flags), 4):
        yield on.warned(f"{text}, within its limits; since it was last read the module has flagged: {flags}")


def _limits(module: Transceiver, quantity: str) -> tuple[float, ...] | None:
    """Return low alarm, low warning, high warning, high alarm; () if the module states none (all are 0, or it has no
    flags and no limits), None if one was not read."""
    stated: Mapping[str, float | None] = module.limits.get(quantity, {})
    limits = tuple(value for value in map(stated.get, _ORDER) if value is not None)
    if len(limits) == len(_ORDER):
        return limits if any(limits) else ()
    return () if not module.limits and module.flagged is False else None
