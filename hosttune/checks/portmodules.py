"""Checks of what `ethtool` tells of Ethernet ports: the rate below what the port supports, and the module in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from hosttune.checks.check import Check, skipped
from hosttune.checks.facts import RECORD, SOFTWARE, listed
from hosttune.checks.nics import LINKED, UNKNOWN, Found, Judged, each_nic, links, result_of_worst
from hosttune.model.evidence import Evidence
from hosttune.model.ports import PortDetail, Reading, Transceiver
from hosttune.model.validation import CheckResult

_CAPABILITY, _MODULE = "port-capability", "port-module"
_ALL = "each Ethernet port with a link at the fastest rate that it supports"
_WITHIN = "each reading within the limits that the module itself states"
_NOT_INSTALLED, _NOT_SUPPORTED = "not installed", "operation not supported"
_LANE = ("bias", "tx-power", "rx-power")
_UNITS = {"temperature": "°C", "voltage": "V", "bias": "mA", "tx-power": "mW", "rx-power": "mW"}
_ORDER = ("low alarm", "low warning", "high warning", "high alarm")


def port_capability(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the rate of each Ethernet port with a link against the fastest that the port supports."""
    return each_nic(evidence, _CAPABILITY, _ALL, lambda judged: _judge(evidence, judged, _CAPABILITY, _ALL, _capable))


def port_module(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the module in each Ethernet port against its own limits: temperature, voltage, laser current, light."""
    return each_nic(evidence, _MODULE, _WITHIN, lambda judged: _judge(evidence, judged, _MODULE, _WITHIN, _modular))


# One port's findings, and what is said of it if there is none. A finding of outcome "skip" says why it is not judged.
_OfPort = tuple[list[Found], str]
_JudgePort = Callable[[str, float | None, str, PortDetail], _OfPort]


def _judge(evidence: Evidence, judged: Judged, check: str, expected: str, of_port: _JudgePort) -> CheckResult:
    if judged.device.vendor_id in SOFTWARE:
        return skipped(check, judged.address, "a virtual device: it has no port of its own")
    if judged.ports.interfaces is not None and not judged.interfaces:
        return skipped(check, judged.address, "no Ethernet port: ethtool tells nothing of an InfiniBand one")
    known = links(judged)
    found: list[Found] = []
    good: list[str] = []
    if judged.ports.interfaces is None:
        found.append(Found("unknown", "which network interfaces it has is not known"))
    for one in judged.interfaces:
        detail = (evidence.port_details or {}).get(one.name)
        faults, said = of_port(one.name, one.speed_gbps, known[one.name], detail or PortDetail())
        found += faults
        good.append(said)
    skips = [one.text for one in found if one.outcome == "skip"]
    faults = [one for one in found if one.outcome != "skip"]
    if skips and not faults and len(skips) == len(judged.interfaces):
        return skipped(check, judged.address, "; ".join(skips))
    return result_of_worst(
        check, judged, expected, faults, "; ".join([*filter(None, good), *skips]), source=_SOURCE[check]
    )


def _unanswered(name: str, error: str | None, linked: str, command: str) -> Found:
    """Return what follows from an answer that is not there."""
    if error is None:
        return Found("unknown", f"what ethtool tells of {name} was not read", RECORD)
    if error.lower() == _NOT_INSTALLED:
        return Found("skip", f"ethtool is not installed, which reads it: apt-get install ethtool ({name})")
    if _NOT_SUPPORTED in error.lower():
        return Found("skip", f"the driver of {name} does not tell it: {error}")
    if linked not in (LINKED, UNKNOWN):
        return Found("skip", f"{name} has no link, and nothing answers there: {error}")
    return Found("unknown", f"{command} {name}: {error}", f"as root: {command} {name}")


# --- capability --------------------------------------------------------------------------------------------------


def _capable(name: str, speed: float | None, linked: str, detail: PortDetail) -> _OfPort:
    modes = detail.modes
    if linked == UNKNOWN:
        return [Found("unknown", f"whether {name} has a link is not known")], ""
    if linked != LINKED:
        return [Found("skip", f"{name} has no link: see port-state")], ""
    if modes is None:
        return [_unanswered(name, detail.modes_error, linked, "ethtool")], ""
    if speed is None or modes.speed_gbps is None or modes.supported_gbps is None:
        return [Found("unknown", f"the rate of {name}, or which it supports, was not read")], ""
    if speed != modes.speed_gbps:
        text = f"{name}: sysfs shows {speed:g} Gb/s, ethtool {modes.speed_gbps:g}"
        return [Found("unknown", text, f"ethtool {name}; cat /sys/class/net/{name}/speed")], ""
    if not modes.supported_gbps:
        return [Found("skip", f"the driver of {name} does not report which rates it supports")], ""
    most = max(modes.supported_gbps)
    if speed > most:
        return [Found("unknown", f"{name} runs at {speed:g} Gb/s and supports at most {most:g}")], ""
    if speed == most:
        return [], f"{name} {speed:g} Gb/s, the fastest that it supports"
    return [Found("warn", _slower(name, speed, most, detail), _why_slower(name))], ""


def _slower(name: str, speed: float, most: float, detail: PortDetail) -> str:
    """Return the words for a rate below the capability, with what each end offers as far as it is known."""
    modes = detail.modes
    text = f"{name} runs at {speed:g} Gb/s and supports {most:g}"
    offered = max((modes.advertised_gbps if modes else None) or (0.0,))
    if 0 < offered < most:
        text += f"; it offers at most {offered:g}"
    partner = max((modes.partner_gbps if modes else None) or (0.0,))
    return (
        f"{text}; its partner offers at most {partner:g}" if partner else f"{text}; what its partner can is not known"
    )


def _why_slower(name: str) -> str:
    return f"if the cable, the module and the switch's port can do more: ethtool {name} shows what both ends offer"


# --- modules -----------------------------------------------------------------------------------------------------


def _modular(name: str, speed: float | None, linked: str, detail: PortDetail) -> _OfPort:
    del speed
    module = detail.module
    if module is None:
        return [_unanswered(name, detail.module_error, linked, "ethtool -m")], ""
    who = " ".join(filter(None, (name, module.kind, module.vendor, module.part)))
    if module.kind is None:
        return [Found("unknown", f"{name}: which kind its module is was not read", f"as root: ethtool -m {name}")], ""
    if not module.readings and (module.copper or module.monitored is False):
        return [Found("skip", f"{who}: {'a copper cable' if module.copper else 'a module'} that measures nothing")], ""
    if module.readings and all(_limits(module, one.quantity) == () for one in module.readings):
        return [Found("skip", f"{who}: a module that states no limits")], ""
    found = list(_readings(name, linked, module))
    values = [_words(one) for one in module.readings if one.value is not None and one.lane in (None, 1)]
    return found, f"{who}: {', '.join(values)}"


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
_SOURCE = {_CAPABILITY: "/sys/class/net/*/speed, ethtool NAME", _MODULE: "ethtool -m NAME"}

CHECKS: tuple[Check, ...] = (
    Check(
        _CAPABILITY,
        "Ethernet ports run at the fastest rate that they support",
        "each NIC, with all its Ethernet ports that have a link",
        "A port that negotiated a lower rate works, only slower, and where all ports do so no other port shows it",
        "Linux Documentation/networking/ethtool-netlink.rst, LINKMODES_GET; ethtool(8)",
        port_capability,
        inside=True,
        none="NIC",
    ),
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
