"""Domain XML for people: one form for the same XML, and what changes from one definition to the next."""

from __future__ import annotations

import difflib

from hosttune.domain.xml import parse


def canonical(xml: str) -> str:
    """The XML indented by two blanks, without comments, attributes in order, ending in a newline.

    Raises lxml's XMLSyntaxError or ValueError for a text that is no XML.
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
    """A unified diff of two definitions, each in its canonical form; None = no definition. Empty where they agree.

    Raises as `canonical` does.
    """
    lines = difflib.unified_diff(
        canonical(old).splitlines(keepends=True) if old is not None else [],
        canonical(new).splitlines(keepends=True) if new is not None else [],
        fromfile="defined now" if old is not None else "not defined",
        tofile="defined then" if new is not None else "not defined",
    )
    return "".join(lines)
