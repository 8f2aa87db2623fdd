"""Answers of the host's tools: recorded in a capture as `.hosttune/commands/NAME`, else asked of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosttune.errors import BadInput, CommandFailed, Unreadable
from hosttune.machine.system import System
from hosttune.model.jsontext import recorded_json
from hosttune.model.values import INTERFACE

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
