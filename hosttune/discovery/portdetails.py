"""System → what `ethtool` tells of Ethernet ports: the rates that they support, and the modules in them. Read only.

A capture must hold the answers `ethtool-NAME` and `ethtool-m-NAME` of each interface of a physical network function
that is no virtual device; the module's serial number is left out. Reading a module clears the flags that it keeps of
the past (SFF-8636 6.2.3, CMIS 8.9: latched, cleared on read); its limits and values stay.
"""

from __future__ import annotations

import json
import re

from hosttune.discovery.ethtool import parse_link_modes, parse_module
from hosttune.discovery.portfiles import NET
from hosttune.errors import BadInput, CommandFailed
from hosttune.model.host import Host
from hosttune.model.jsontext import recorded_json
from hosttune.model.ports import PortDetail
from hosttune.reader import Reader

MODULE = "ethtool-m-"  # and the interface: the name of the answer about its module
_ETHERNET = 1  # ARPHRD_ETHER
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,14}"  # IFNAMSIZ is 16; other names are not given to a command
_SECONDS = 10.0
_MOST = 256  # interfaces
_SERIAL = "Vendor SN"


def read_port_details(reader: Reader, host: Host) -> dict[str, PortDetail]:
    """Return by interface what ethtool tells of it. Interfaces of other kinds than Ethernet are not asked."""
    names = [
        name
        for nic in host.nics
        if nic.physfn is None and not nic.fabric_bridge
        for name in nic.interfaces
        if re.fullmatch(_NAME, name) and reader.identifier(f"{NET}/{name}/type") == _ETHERNET
    ]
    return {name: _detail(reader, name) for name in names[:_MOST]}


def _detail(reader: Reader, name: str) -> PortDetail:
    modes, modes_error = _answer(reader, f"ethtool-{name}", (name,))
    module, module_error = _answer(reader, f"{MODULE}{name}", ("-m", name))
    return PortDetail(
        modes=parse_link_modes(modes) if modes else None,
        modes_error=modes_error,
        module=parse_module(module) if module else None,
        module_error=module_error,
    )


def _answer(reader: Reader, query: str, words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return the tool's text, or why there is none; both None if it was not recorded or is damaged."""
    text = reader.query(query, lambda: _ask(reader, words))
    if text is None or not text.lstrip().startswith("{"):
        return text, None
    try:
        document = recorded_json(text, where=query)
    except BadInput:
        return None, None
    error = document.get("error") if isinstance(document, dict) else None
    return None, error[:120] if isinstance(error, str) and error else None


def _ask(reader: Reader, words: tuple[str, ...]) -> str:
    """Return ethtool's text without the module's serial number, or {"error": reason}."""
    try:
        text = reader.system.run(("ethtool", *words), timeout=_SECONDS)
    except CommandFailed as error:
        lines = error.output.strip().splitlines() or [error.reason]
        return json.dumps({"error": lines[-1] if error.reason.startswith("exit") else error.reason})
    return strip_module(text)


def strip_module(text: str) -> str:
    """Return the answer without the module's serial number."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.strip().startswith(_SERIAL))
