"""Definitions as text: a canonical form, and the difference for people."""

from __future__ import annotations

import difflib

from hosttune.domain.xml import parse


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
