"""Check of the modules in Ethernet ports, as `ethtool -m` tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosttune.model.ports import PortDetail, Reading, Transceiver
from hosttune.model.values import grouped
from hosttune.rules.checks.facts import RECORD, listed
from hosttune.rules.checks.nics import LINKED, UNKNOWN, PhysicalFunction, in_use, nics, unanswered
from hosttune.rules.checks.on import On, check, worst_of
from hosttune.rules.engine import Finding

_LANE = ("bias", "tx-power", "rx-power")
_UNITS = {"temperature": "°C", "voltage": "V", "bias": "mA", "tx-power": "mW", "rx-power": "mW"}
_ORDER = ("low alarm", "low warning", "high warning", "high alarm")
_MEND = "look at the cooling, clean the fibre's ends, reseat or swap the module; ethtool -m NAME shows all readings"


@check(
    "port-module",
    title="Modules in ports are within their own limits",
    about="each NIC, with the modules in its ports",
    why="A module that is too hot or gets too little light loses its link under load",
    source="SFF-8472 (table 9-5), SFF-8636 (6.6), CMIS (8.5): alarm and warning thresholds; ethtool(8), --module-info",
    expected="each reading within the limits that the module itself states",
    remedy=_MEND,
    look=RECORD,
    reads="ethtool -m NAME",
    each=nics,
    inside=True,
    none="NIC",
)
@worst_of
def port_module(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    """Check the module in each Ethernet port against its own limits: temperature, voltage, laser current, light."""
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
    found = tuple(value for value in map(stated.get, _ORDER) if value is not None)
    if len(found) == len(_ORDER):
        return found if any(found) else ()
    return () if not module.limits and module.flagged is False else None
