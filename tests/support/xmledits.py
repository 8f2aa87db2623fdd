"""Domain XML with one element changed: by its place, so that an attribute more or less elsewhere changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from lxml import etree

Edit = Mapping[str, str | None] | str | None


def edited(xml: str | bytes, path: str, edit: Edit, *, each: bool = False) -> str:
    """The XML with the first element of `path` (below <domain>; "." is <domain>) changed; `each`: every one, if any.

    A mapping sets attributes, or takes those that are None out; a text in angle brackets becomes another child, any
    other text its text; None takes the element out.
    """
    root = etree.fromstring(xml)
    elements = root.findall(path)
    assert each or elements, path
    for element in elements if each else elements[:1]:
        if edit is None:
            parent = element.getparent()
            assert parent is not None, path
            parent.remove(element)
        elif not isinstance(edit, str):
            for name, value in edit.items():
                if value is None:
                    del element.attrib[name]
                else:
                    element.set(name, value)
        elif edit.startswith("<"):
            element.append(etree.fromstring(edit))
        else:
            element.text = edit
    changed = etree.tostring(root, encoding="unicode")
    assert each or changed != etree.tostring(etree.fromstring(xml), encoding="unicode"), path
    return changed


def with_edits(xml: str, *edits: tuple[str, Edit]) -> str:
    """The XML after several edits of an element each, in order."""
    for path, edit in edits:
        xml = edited(xml, path, edit)
    return xml
