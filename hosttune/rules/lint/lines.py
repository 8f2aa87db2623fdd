"""The line of an element in a domain XML, from the path that a fault names."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hosttune.domain.xml import QEMU, Malformed, pci_address

if TYPE_CHECKING:
    from lxml.etree import _Element

_OF_SOURCE = re.compile(r"/domain/devices/hostdev\[([^@\]]+)\]")


class XmlLines:
    """The lines of one parsed XML."""

    def __init__(self, root: _Element) -> None:
        self._root = root
        self._known: dict[str, int] = {}

    @cached_property
    def _hostdevs(self) -> dict[str, int]:
        """Return the lines of passed functions by their address on the host; the last, where one is passed twice."""
        found: dict[str, int] = {}
        for element in self._root.iterfind("devices/hostdev"):
            try:
                source = pci_address(element.find("source/address"))
            except Malformed:
                continue
            if source is not None:
                found[source] = _line(element)
        return found

    def of(self, path: str) -> int:
        """Return the line of the element at a path, or of the nearest element above that exists; from 1."""
        if path not in self._known:
            self._known[path] = self._of(path)
        return self._known[path]

    def _of(self, path: str) -> int:
        from lxml.etree import XPathError

        if (passed := _OF_SOURCE.fullmatch(path)) and passed[1] in self._hostdevs:
            return self._hostdevs[passed[1]]
        steps = path.removeprefix("/domain").strip("/")
        while steps:
            # libxml2's XPath: lxml's own find() takes a time that is the square of the number for `disk[9000]`.
            try:
                place = _OF_SOURCE.sub("devices/hostdev", steps)
                found: Any = self._root.xpath(f"({place})[1]/self::*", namespaces={"qemu": QEMU[1:-1]})
            except XPathError:  # a name with a prefix that is not known
                found = None
            if found:
                return _line(found[0])
            steps = steps.rpartition("/")[0]
        return _line(self._root)


def _line(element: _Element) -> int:
    line = element.sourceline
    return line if isinstance(line, int) else 1
