"""Readers of libvirt's attributes: sizes with units, CPU lists with exclusions, PCI addresses, yes and no."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from hosttune.model.values import CpuSet
from hosttune.model.values import number as whole_number

if TYPE_CHECKING:
    from lxml.etree import _Element

QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"  # the namespace of <qemu:commandline>
MAX_CPU_ID = 16384  # VIR_DOMAIN_CPUMASK_LEN: libvirt itself refuses larger ids
UNLIMITED_KIB = 9007199254740991  # VIR_DOMAIN_MEMORY_PARAM_UNLIMITED

# libvirt's virScaleInteger: one letter, or a letter with "iB", means powers of 1024; "B" means powers of 1000.
UNITS = {"b": 1, "bytes": 1, "byte": 1}
for _power, _letter in enumerate("kmgtpe", 1):
    UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}


class Malformed(Exception):
    """An invalid value in the XML; `read_domain` turns it into BadInput with file and line."""

    def __init__(self, element: _Element, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.line = element.sourceline
        self.tag = str(element.tag)


def text(element: _Element | None) -> str | None:
    """Return the element's own text, stripped; None if it is absent or empty."""
    return ((element.text or "").strip() or None) if element is not None else None


def attribute(element: _Element | None, name: str) -> str | None:
    """Return an attribute's text; None if it or the element is absent."""
    value = element.get(name) if element is not None else None
    return None if value is None else str(value)


def number(element: _Element, value: str | None) -> int | None:
    """Return a whole number, decimal or with 0x in hex; None for None. Raises Malformed."""
    if value is None:
        return None
    try:
        parsed = int(value, 16) if value.strip().lower().startswith("0x") else int(value)
    except ValueError:
        parsed = 1 << 64
    if not -(1 << 63) <= parsed < 1 << 64:
        _reject(element, f"{value[:40]!r} is not a whole number of 64 bits")
    return parsed


def switch(element: _Element | None, name: str) -> bool | None:
    """Return an on/off or yes/no attribute as a bool; None if it is absent. Raises Malformed for any other word."""
    value = attribute(element, name)
    if element is None or value is None:
        return None
    if value not in ("on", "yes", "off", "no"):
        _reject(element, f"{name}={value!r} is neither on nor off, yes nor no")
    return value in ("on", "yes")


def size(element: _Element | None, value: str | None, unit: str | None) -> int | None:
    """Return the bytes of a value with libvirt's unit (KiB if none is written). Raises Malformed."""
    if element is None or value is None:
        return None
    scale = UNITS.get((unit or "KiB").lower())
    if scale is None:
        _reject(element, f"{unit!r} is not a unit of size")
    count = number(element, value) or 0
    if count < 0:
        _reject(element, f"{value!r} is not a size")
    return count * scale


def element_size(element: _Element | None) -> int | None:
    """Return the bytes of an element like `<memory unit='GiB'>4</memory>`."""
    return size(element, text(element), attribute(element, "unit"))


def cpu_list(element: _Element | None, value: str | None) -> str | None:
    """Convert libvirt's list ("0-5,^2") to the kernel's form ("0-1,3-5"); None for None. Raises Malformed."""
    if element is None or value is None:
        return None
    ids: set[int] = set()
    for part in value.split(","):
        exclude = part.strip().startswith("^")
        low, dash, high = part.strip().removeprefix("^").partition("-")
        first, last = (whole_number(word.strip()) for word in (low, high if dash else low))
        if first is None or last is None:
            _reject(element, f"{value[:40]!r} is not a CPU or node list")
        if last < first or last > MAX_CPU_ID:
            _reject(element, f"{part[:40]!r} is not a range of CPU or node ids")
        span = range(first, last + 1)
        ids = ids.difference(span) if exclude else ids.union(span)
    return str(CpuSet(ids))


def pci_address(element: _Element | None) -> str | None:
    """Return a PCI `<address>` as "0000:01:00.0"; None without one, or if libvirt chooses it."""
    if element is None or attribute(element, "type") not in (None, "pci"):
        return None
    parts = [number(element, attribute(element, name)) for name in ("domain", "bus", "slot", "function")]
    if parts[1] is None and parts[2] is None:
        return None
    domain, bus, slot, function = (part or 0 for part in parts)
    if not (0 <= domain < 1 << 32 and 0 <= bus <= 0xFF and 0 <= slot <= 0x1F and 0 <= function <= 7):
        _reject(element, "not a PCI address")
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def parse(xml: str | bytes) -> Any:
    """Return the root. No entities, external files or huge trees. Raises lxml's XMLSyntaxError or ValueError."""
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
        # A str may still declare the encoding of its former bytes. The encoding given here overrides it.
        encoding="utf-8" if isinstance(xml, str) else None,
    )
    data = xml.encode("utf-8") if isinstance(xml, str) else xml
    return etree.fromstring(data, parser)


def _reject(element: _Element, what: str) -> NoReturn:
    raise Malformed(element, what)
