"""System → what `ethtool` tells of Ethernet ports: the rates that they support, and the modules in them. Read only.

A capture must hold the answers `ethtool-NAME` and `ethtool-m-NAME` of each interface of a physical network function
that is no virtual device; the module's serial number is left out. Reading a module clears the flags that it keeps of
the past (SFF-8636 6.2.3, CMIS 8.9: latched, cleared on read); its limits and values stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hosttune.discovery.portfiles import NET, tool_answer
from hosttune.machine.reader import Reader
from hosttune.model.host import Host
from hosttune.model.ports import LinkModes, PortDetail, Reading, Transceiver

# --- the text of ethtool -------------------------------------------------------------------------------------
# The names are ethtool's own, for SFF-8472, SFF-8636 and CMIS alike (ethtool: netlink/settings.c, sff-common.c,
# sfpdiag.c, qsfp.c, cmis.c). A name that is there twice with two values is unknown.


_MOST_LINES = 2000  # a module of 8 lanes prints about 200
_QUANTITIES = {
    "Module temperature": "temperature",
    "Module voltage": "voltage",
    "Laser bias current": "bias",
    "Laser tx bias current": "bias",
    "Laser output power": "tx-power",
    "Laser tx power": "tx-power",
    "Transmit avg optical power": "tx-power",
    "Laser rx power": "rx-power",
    "Receiver signal average optical power": "rx-power",
    "Receiver signal OMA": "rx-power",
    "Rcvr signal avg optical power": "rx-power",
    "Rcvr signal OMA": "rx-power",
}
_NAMED = re.compile(
    rf"({'|'.join(_QUANTITIES)})(?: (high|low) (alarm|warning)( threshold)?)? ?(?:\((?:Channel|Chan) ([1-9][0-9]?)\))?"
)
_NUMBER = re.compile(r"(-?[0-9]{1,6}(?:\.[0-9]{1,4})?) (?:degrees C|V|mA|mW)\b.*")
_MODE = re.compile(r"([0-9]{1,8})base(?:[A-Za-z0-9_.-]+/(?:Full|Half)|R_FEC)")  # net/ethtool/common.c: 10000baseR_FEC
_SPEED = re.compile(r"([0-9]{1,8})Mb/s")
_COPPER = ("Copper cable", "Passive Cable", "Active Cable", "passive Cu")  # of technology or type: no optics to watch


def parse_link_modes(text: str) -> LinkModes:
    """Return the rates of `ethtool NAME` in Gb/s; a list that the driver does not report is (), a lost one None."""
    lists: dict[str, str | None] = {}
    name = ""
    for line in text.splitlines()[:_MOST_LINES]:
        label, colon, value = line.partition(":")
        if colon:
            name = label.strip()
            lists[name] = value.strip() if lists.get(name, value.strip()) == value.strip() else None
        elif name in lists and lists[name] is not None and line.strip():
            lists[name] = f"{lists[name]} {line.strip()}"
    speed = _SPEED.fullmatch(lists.get("Speed") or "")
    return LinkModes(
        supported_gbps=_rates(lists.get("Supported link modes")),
        advertised_gbps=_rates(lists.get("Advertised link modes")),
        partner_gbps=_rates(lists.get("Link partner advertised link modes")),
        speed_gbps=int(speed[1]) / 1000 if speed else None,
    )


def _rates(words: str | None) -> tuple[float, ...] | None:
    """Return the rates of link modes, each once; None for a list with another word in it."""
    if not words:
        return None
    if words == "Not reported":
        return ()
    rates = [_MODE.fullmatch(word) for word in words.split()]
    if any(match is None for match in rates):
        return None
    return tuple(sorted({int(match[1]) / 1000 for match in rates if match}))


def parse_module(text: str) -> Transceiver:
    """Return what a module says of itself: identity, readings, and its own limits and flags."""
    rows: dict[str, str | None] = {}
    several: dict[str, list[str]] = {}
    for line in text.splitlines()[:_MOST_LINES]:
        name, colon, value = line.partition(":")
        key = re.sub(r"\s+", " ", name).strip()
        if colon:
            rows[key] = value.strip() if rows.get(key, value.strip()) == value.strip() else None
            several.setdefault(key, []).append(value.strip())
    identifier = re.fullmatch(r"0x[0-9a-f]{2} \((.{1,80})\)", rows.get("Identifier") or "")
    kinds = (*several.get("Transmitter technology", ()), *several.get("Transceiver type", ()))
    copper = any(word in kind for kind in kinds for word in _COPPER)
    support = rows.get("Optical diagnostics support")
    flags = rows.get("Alarm/warning flags implemented")
    return Transceiver(
        kind=identifier[1].partition(" ")[0] if identifier else None,
        vendor=rows.get("Vendor name") or None,
        part=rows.get("Vendor PN") or None,
        copper=copper,
        monitored=False if support == "No" else True if support == "Yes" else None,
        flagged=False if flags == "No" else True if flags == "Yes" else None,
        readings=_readings(rows),
        limits=_limits(rows),
    )


def _readings(rows: Mapping[str, str | None]) -> tuple[Reading, ...]:
    values: dict[tuple[str, int | None], float | None] = {}
    flags: dict[tuple[str, int | None], dict[str, bool]] = {}
    for name, text in rows.items():
        match = _NAMED.fullmatch(name)
        if match is None or match[4]:
            continue
        at = _QUANTITIES[match[1]], int(match[5]) if match[5] else None
        if match[2] is None:
            values[at] = None if at in values else _number(text)
        elif text in ("On", "Off"):
            flags.setdefault(at, {})[f"{match[2]} {match[3]}"] = text == "On"
    return tuple(
        Reading(
            quantity=at[0],
            lane=at[1],
            value=values.get(at),
            flags=tuple(name for name, on in flags.get(at, {}).items() if on),
            flags_read=len(flags.get(at, {})),
        )
        for at in dict.fromkeys((*values, *flags))
    )


def _limits(rows: Mapping[str, str | None]) -> dict[str, dict[str, float | None]]:
    """Return by quantity its limits by name ("high alarm"); None for one that is no number."""
    limits: dict[str, dict[str, float | None]] = {}
    for name, text in rows.items():
        match = _NAMED.fullmatch(name)
        if match is not None and match[4] and not match[5]:
            limits.setdefault(_QUANTITIES[match[1]], {})[f"{match[2]} {match[3]}"] = _number(text)
    return limits


def _number(text: str | None) -> float | None:
    match = _NUMBER.fullmatch(text or "")
    return float(match[1]) if match else None


# --- ports ---------------------------------------------------------------------------------------------------


MODULE = "ethtool-m-"  # and the interface: the name of the answer about its module
_ETHERNET = 1  # ARPHRD_ETHER
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,14}")  # IFNAMSIZ is 16; other names are not given to a command
_MOST = 256  # interfaces
_SERIAL = "Vendor SN"


def read_port_details(reader: Reader, host: Host) -> dict[str, PortDetail]:
    """Return by interface what ethtool tells of it. Interfaces of other kinds than Ethernet are not asked."""
    names = [
        name
        for nic in host.nics
        if nic.physfn is None and not nic.fabric_bridge
        for name in nic.interfaces
        if _NAME.fullmatch(name) and reader.identifier(f"{NET}/{name}/type") == _ETHERNET
    ]
    return {name: _detail(reader, name) for name in names[:_MOST]}


def _detail(reader: Reader, name: str) -> PortDetail:
    modes, modes_error = tool_answer(reader, f"ethtool-{name}", ("ethtool", name))
    module, module_error = tool_answer(reader, f"{MODULE}{name}", ("ethtool", "-m", name), strip_module)
    return PortDetail(
        modes=parse_link_modes(modes) if modes else None,
        modes_error=modes_error,
        module=parse_module(module) if module else None,
        module_error=module_error,
    )


def strip_module(text: str) -> str:
    """Return the answer without the module's serial number."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.strip().startswith(_SERIAL))
