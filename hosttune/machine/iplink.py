"""What a physical network function keeps for its virtual ones, as `ip -j -d link show` tells it.

Sources: ip-link(8) (vf NUM); iproute2, ip/ipaddress.c (print_vfinfo): vlan, qos and rates that are 0 may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hosttune.errors import BadInput, CommandFailed, Unreadable
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.jsontext import recorded_json
from hosttune.model.values import INTERFACE, FrozenMap, grouped

Settings = Mapping[str, "str | int | bool"]
FLAGS = {"spoofchk": "spoofchk", "trust": "trust", "query_rss_en": "query_rss"}  # field -> word of ip-link(8)
GUIDS = {"node guid": "node_guid", "port guid": "port_guid"}


def uplink(system: System, physical: str) -> tuple[str | None, str]:
    """Return (the interface of a physical function that keeps the settings, ""), or (None, why there is none)."""
    names = system.list(sysfs.function(physical, "net"))
    ports = {name: system.read(f"/sys/class/net/{name}/phys_port_name") or "" for name in names}
    uplinks = [name for name, port in ports.items() if not re.search(r"(?:vf|sf)[0-9]+$", port)]
    if len(uplinks) != 1:
        why = f"its physical function {physical} has {len(uplinks)} interfaces on the host: one must keep its settings"
        return None, why
    if system.read(f"/sys/class/net/{uplinks[0]}/phys_switch_id"):
        # Documentation/networking/switchdev.rst: the settings are then rules on the port that represents it.
        why = (
            f"{uplinks[0]} is a switch (switchdev): what was set for this function are rules on the port that"
            " represents it, which hosttune does not read"
        )
        return None, why
    return uplinks[0], ""


def read_function(system: System, interface: str, number: int) -> Settings | None:
    """Return what an interface keeps for one of its virtual functions; None if it cannot be read or is incomplete."""
    return read_functions(system, interface).get(number)


def read_functions(system: System, interface: str) -> Mapping[int, Settings]:
    """Return what an interface keeps for its virtual functions, by number, as far as that can be read completely."""
    link = link_of(system, interface)
    rows = link.get("vfinfo_list") if link is not None else None
    told = grouped((row.get("vf"), _settings(row)) for row in rows or () if isinstance(row, dict))
    return {n: of[0] for n, of in told.items() if type(n) is int and len(of) == 1 and of[0] is not None}


def _settings(row: Mapping[str, Any]) -> Settings | None:
    """Return a row's settings in one form. A flag that the driver does not report is left out."""
    vlans, rate = row.get("vlan_list", [row]), row.get("rate")
    if not isinstance(vlans, list) or len(vlans) > 1 or not isinstance(rate, dict):
        return None
    vlan = vlans[0] if vlans and isinstance(vlans[0], dict) else {}
    values: dict[str, Any] = {
        "address": row.get("address"),
        "vlan": vlan.get("vlan", 0),
        "qos": vlan.get("qos", 0),
        "protocol": vlan.get("protocol", "802.1Q"),
        "max_tx": rate.get("max_tx"),
        "min_tx": rate.get("min_tx"),
        "link_state": row.get("link_state"),
    }
    values |= {name: row[name] for name in (*FLAGS, *GUIDS) if name in row}
    texts = dict.fromkeys(("address", "protocol", "link_state", *GUIDS), str)
    kinds: dict[str, type] = {**texts, **dict.fromkeys(FLAGS, bool)}
    return FrozenMap(values) if all(type(value) is kinds.get(name, int) for name, value in values.items()) else None


# Answers of the host's tools: recorded in a capture as `.hosttune/commands/NAME`, else asked of the machine.


_SECONDS = 30.0


def ask(system: System, name: str, argv: tuple[str, ...]) -> str | None:
    """Return a command's answer, recorded or live; None if the tool is not installed, refuses or hangs."""

    def live() -> str | None:
        try:
            return system.run(argv, timeout=_SECONDS)
        except CommandFailed:
            return None

    return system.query(name, live)


def link_of(system: System, interface: str) -> Mapping[str, Any] | None:
    """Return what `ip -j -d link show` says of an interface; None if it cannot be asked."""
    if not INTERFACE.fullmatch(interface):
        return None
    links = json_of(ask(system, f"ip-link-{interface}", ("ip", "-j", "-d", "link", "show", "dev", interface)))
    if not isinstance(links, list) or len(links) != 1 or not isinstance(links[0], dict):
        return None
    return links[0] if links[0].get("ifname") == interface else None


def json_of(text: str | None) -> Any:
    """Return a tool's answer; None if there is none or it is not JSON."""
    try:
        return None if text is None else recorded_json(text, where="a tool's answer")
    except (BadInput, Unreadable):
        return None
