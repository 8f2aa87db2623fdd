"""Definitions as text: what a new one keeps of the old one, a canonical form, and the difference for people."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from hosttune.domain.xml import parse

if TYPE_CHECKING:
    from lxml.etree import _Element


def with_identity(xml: str, old_xml: str) -> str:
    """Return the XML with the identity of the existing guest: its UUID, and the MAC address of each network it had.

    libvirt refuses to redefine a guest under another UUID. It makes up a MAC address if none is given, and then the
    guest would lose its network configuration. Raises as `canonical` does.
    """
    from lxml import etree

    root, old = parse(xml), parse(old_xml)
    found = old.find("uuid")
    if found is not None:
        for written in root.findall("uuid"):
            root.remove(written)
        root.insert(1, found)
    had = [(_network(interface), interface.find("mac")) for interface in old.iterfind("devices/interface")]
    for interface in root.iterfind("devices/interface"):
        same = next((n for n, (network, _) in enumerate(had) if network == _network(interface)), None)
        mac = had.pop(same)[1] if same is not None else None
        if mac is not None and interface.find("mac") is None:
            interface.insert(0, mac)
    return str(etree.tostring(root, encoding="unicode")) + "\n"


def _network(interface: _Element) -> tuple[str | None, ...]:
    source = interface.find("source")
    names = ("network", "bridge", "dev")
    return (interface.get("type"), *(None if source is None else source.get(name) for name in names))


def canonical(xml: str) -> str:
    """Return the XML indented by two spaces, without comments, with sorted attributes, ending in a newline.

    Raises lxml's XMLSyntaxError or ValueError for a text that is not XML.
    """
    from lxml import etree

    root = parse(xml)
    for element in root.iter():
        if element.tail is not None:
            element.tail = None
        if len(element) and not (element.text or "").strip():
            element.text = None
        ordered = sorted(element.items())
        element.attrib.clear()
        element.attrib.update(ordered)
    etree.indent(root, space="  ")
    return str(etree.tostring(root, encoding="unicode")) + "\n"


def xml_difference(old: str | None, new: str | None) -> str:
    """Return a unified diff of two definitions in canonical form; None = no definition. Empty if they are equal.

    Raises as `canonical` does.
    """
    lines = difflib.unified_diff(
        canonical(old).splitlines(keepends=True) if old is not None else [],
        canonical(new).splitlines(keepends=True) if new is not None else [],
        fromfile="defined now" if old is not None else "not defined",
        tofile="defined then" if new is not None else "not defined",
    )
    return "".join(lines)
