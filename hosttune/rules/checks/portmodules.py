"""Check of the modules in Ethernet ports, as `ethtool -m` tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hosttune.model.evidence import Evidence
from hosttune.model.ports import PortDetail, Reading, Transceiver
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, skipped
from hosttune.rules.checks.facts import SOFTWARE, listed
from hosttune.rules.checks.nics import LINKED, UNKNOWN, Found, Judged, each_nic, links
from hosttune.rules.checks.portanswers import OfPort, of_port, result_of_ports, unanswered

_MODULE = "port-module"
_WITHIN = "each reading within the limits that the module itself states"
_LANE = ("bias", "tx-power", "rx-power")
_UNITS = {"temperature": "°C", "voltage": "V", "bias": "mA", "tx-power": "mW", "rx-power": "mW"}
_ORDER = ("low alarm", "low warning", "high warning", "high alarm")


def port_module(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the module in each Ethernet port against its own limits: temperature, voltage, laser current, light."""
    return each_nic(evidence, _MODULE, _WITHIN, lambda judged: _judge(evidence, judged))


def _judge(evidence: Evidence, judged: Judged) -> CheckResult:
    if judged.device.vendor_id in SOFTWARE:
        return skipped(_MODULE, judged.address, "a virtual device: it has no port of its own")
    if judged.ports.interfaces is not None and not judged.interfaces:
        return skipped(_MODULE, judged.address, "no Ethernet port: ethtool tells nothing of an InfiniBand one")
    known, details = links(judged), evidence.port_details or {}
    lost = judged.ports.interfaces is None
    doubts = [Found("unknown", "which network interfaces it has is not known")] if lost else []
    ports = [_port(one.name, known[one.name], details.get(one.name, PortDetail())) for one in judged.interfaces]
    return result_of_ports(_MODULE, judged, _WITHIN, ports, doubts=doubts, source="ethtool -m NAME")


def _port(name: str, linked: str, detail: PortDetail) -> OfPort:
    module = detail.module
    if module is None:
        return unanswered(name, f"ethtool -m {name}", "ethtool", detail.module_error, linked)
    who = " ".join(filter(None, (name, module.kind, module.vendor, module.part)))
    if module.kind is None:
        return of_port("unknown", f"{name}: which kind its module is was not read", f"as root: ethtool -m {name}")
    if not module.readings and (module.copper or module.monitored is False):
        return of_port("skip", f"{who}: {'a copper cable' if module.copper else 'a module'} that measures nothing")
    if module.readings and all(_limits(module, one.quantity) == () for one in module.readings):
        return of_port("skip", f"{who}: a module that states no limits")
    values = [_words(one) for one in module.readings if one.value is not None and one.lane in (None, 1)]
    return OfPort(tuple(_readings(name, linked, module)), f"{who}: {', '.join(values)}")


def _words(one: Reading) -> str:
    lane = f" of lane {one.lane}" if one.lane is not None else ""
    return f"{one.quantity}{lane} {one.value:g} {_UNITS[one.quantity]}"


def _readings(name: str, linked: str, module: Transceiver) -> Iterator[Found]:
    """Judge the readings of a module by its own limits. Current and light only with a link: a laser may be off."""
    if not module.readings:
        yield Found("unknown", f"{name}: its module's readings were not read", f"as root: ethtool -m {name}")
        return
    if linked == UNKNOWN:
        yield Found("unknown", f"whether {name} has a link is not known, so whether its laser should be on")
    unused = _unused(module)
    lanes = {one.lane for one in module.readings if one.quantity in _LANE}
    if linked == LINKED and lanes and lanes <= unused:
        yield Found("unknown", f"{name} has a link, and no lane of its module any light or current")
    for quantity in _UNITS:
        if quantity in _LANE and linked != LINKED:
            continue
        here = {one.lane: one for one in module.readings if one.quantity == quantity}
        wanted = set(here) or {None}
        if quantity in _LANE:
            wanted = lanes or {None} if here or _limits(module, quantity) else set()
        for lane in sorted(wanted - unused, key=lambda lane: lane or 0):
            one = here.get(lane, Reading(quantity=quantity, lane=lane))
            yield from _reading(name, one, module)


def _unused(module: Transceiver) -> set[int | None]:
    """Return the lanes that a module does not use: no current, no light either way, and no flag raised about it.

    A module of eight lanes with four in use reports the others so (CMIS; tests/cases/ports/ethtool/m-cmis-400g.txt).
    """
    by_lane: dict[int | None, list[Reading]] = {}
    for one in module.readings:
        if one.quantity in _LANE and one.lane is not None:
            by_lane.setdefault(one.lane, []).append(one)
    return {
        lane
        for lane, those in by_lane.items()
        if len(those) == len(_LANE) and all(one.value == 0 and not one.flags for one in those)
    }


def _reading(name: str, one: Reading, module: Transceiver) -> Iterator[Found]:
    what = f"{name}: {one.quantity}" + (f" of lane {one.lane}" if one.lane is not None else "")
    again = f"as root: ethtool -m {name}"
    if one.value is None:
        yield Found("unknown", f"{what} was not read", again)
        return
    limits = _limits(module, one.quantity)
    if not limits:
        if limits is None:
            yield Found(
                "unknown", f"{what} {one.value:g} {_UNITS[one.quantity]}; the module's limits were not read", again
            )
        return
    low, low_warning, high_warning, high = limits
    if not low <= low_warning <= high_warning <= high or low == high:
        yield Found("unknown", f"{what} {one.value:g}; the module's limits {limits} contradict each other", again)
        return
    text = f"{what} {one.value:g} {_UNITS[one.quantity]}"
    flagged = module.flagged or any(reading.flags_read for reading in module.readings)
    if flagged and one.flags_read < len(_ORDER):
        yield Found("unknown", f"{what}: whether the module has flagged it was not read", again)
    if one.value > high or one.value < low:
        yield Found("fail", f"{text}, beyond the module's alarm limit {high if one.value > high else low:g}", _MEND)
    elif one.value > high_warning or one.value < low_warning:
        limit = high_warning if one.value > high_warning else low_warning
        yield Found("warn", f"{text}, beyond the module's warning limit {limit:g}", _MEND)
    elif flags := listed(list(one.flags), 4):
        yield Found("warn", f"{text}, within its limits; since it was last read the module has flagged: {flags}", _MEND)


def _limits(module: Transceiver, quantity: str) -> tuple[float, ...] | None:
    """Return low alarm, low warning, high warning, high alarm; () if the module states none (all are 0, or it has no
    flags and no limits), None if one was not read."""
    stated: Mapping[str, float | None] = module.limits.get(quantity, {})
    found = tuple(value for value in map(stated.get, _ORDER) if value is not None)
    if len(found) == len(_ORDER):
        return found if any(found) else ()
    return () if not module.limits and module.flagged is False else None


_MEND = "look at the cooling, clean the fibre's ends, reseat or swap the module; ethtool -m NAME shows all readings"

CHECKS: tuple[Check, ...] = (
    Check(
        _MODULE,
        "Modules in ports are within their own limits",
        "each NIC, with the modules in all its Ethernet ports",
        "A module that is too hot or gets too little light loses its link under load, hours after the installation",
        "SFF-8472 (table 9-5), SFF-8636 (6.6), CMIS (8.5): alarm and warning thresholds; ethtool(8), --module-info",
        port_module,
        inside=True,
        none="NIC",
    ),
)
