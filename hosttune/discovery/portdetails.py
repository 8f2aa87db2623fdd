"""System → what `ethtool` tells of Ethernet ports: the rates that they support, and the modules in them. Read only.

A capture must hold the answers `ethtool-NAME` and `ethtool-m-NAME` of each interface of a physical network function
that is no virtual device; the module's serial number is left out. Reading a module clears the flags that it keeps of
the past (SFF-8636 6.2.3, CMIS 8.9: latched, cleared on read); its limits and values stay.
"""

from __future__ import annotations

import re

from hosttune.discovery.answers import tool_answer
from hosttune.discovery.ethtool import parse_link_modes, parse_module
from hosttune.discovery.portfiles import NET
from hosttune.machine.reader import Reader
from hosttune.model.host import Host
from hosttune.model.ports import PortDetail

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
