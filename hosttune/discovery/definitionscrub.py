"""Definitions of guests for a capture: only what shows a guest's resources, without secrets."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from lxml import etree
from lxml.etree import _Element

from hosttune.discovery.libvirtd import LibvirtFacts
from hosttune.domain.arguments import CLIQUE, passed_functions
from hosttune.domain.reader import domain_facts
from hosttune.domain.xml import QEMU, parse
from hosttune.errors import BadInput
from hosttune.model import sysfs
from hosttune.model.values import to_json

# The elements of a domain XML that show a guest's resources. A capture keeps only these (no disks, networks, secrets).
_KEPT = (
    *("name", "uuid", "memory", "currentMemory", "maxMemory", "vcpu", "vcpus", "iothreads", "iothreadids"),
    *("cputune", "numatune", "memoryBacking", "memtune", "cpu", "features"),
)
_KEPT_DEVICES = ("hostdev", "controller", "memballoon", "iommu", "memory")


def strip_facts(text: str, scrubbed: Callable[[str], str]) -> str:
    """Return the same facts without what discovery does not need: of each domain only CPUs, memory and host devices.

    `scrubbed`: replaces the path of a device node.
    """
    facts = msgspec.json.decode(text, type=LibvirtFacts)
    domains = facts.domains
    if domains is not None:
        domains = tuple(
            msgspec.structs.replace(d, xml=strip_xml(d.xml, scrubbed), inactive_xml=strip_xml(d.inactive_xml, scrubbed))
            for d in domains
        )
    return to_json(msgspec.structs.replace(facts, domains=domains))


def strip_xml(xml: str | None, scrubbed: Callable[[str], str]) -> str | None:
    """Return a domain's XML with only its CPUs, memory and host devices, and without paths of files.

    Of disks and interfaces that share a device of the host only the path is kept, of arguments only the function.
    """
    if xml is None:
        return None
    try:
        root = parse(xml)
        facts = domain_facts(root, where="a definition")
    except (etree.XMLSyntaxError, ValueError, BadInput):
        return "<unreadable/>"  # not a domain, as before
    for child in list(root):
        if child.tag == "devices":
            drop = [device for device in child if not _is_kept(device)]
        elif child.tag == "os":
            drop = [part for part in child if part.tag != "type"]
        elif child.tag == f"{QEMU}override":
            drop = [
                element for element in child if any(p.get("name") != CLIQUE for p in element.iter(f"{QEMU}property"))
            ]
        elif child.tag in _KEPT:
            continue
        else:
            root.remove(child)
            continue
        for element in drop:
            child.remove(element)
    for disk in root.iterfind("devices/disk"):
        _keep_only(disk, "source")  # a serial number or a secret would be beside it, or in it
        for source in disk:
            _keep_only(source, "address")
    for path in map(scrubbed, facts.host_paths):
        tag, kind = ("interface", "direct") if path.startswith(sysfs.NET) else ("disk", "block")
        devices = next(root.iterfind("devices"), None)
        element = etree.SubElement(etree.SubElement(root, "devices") if devices is None else devices, tag, type=kind)
        etree.SubElement(element, "source", dev=path.removeprefix(f"{sysfs.NET}/"))
    for address in filter(None, passed_functions(facts.qemu_arguments).values()):
        words = etree.SubElement(root, f"{QEMU}commandline")
        for word in ("-device", f"vfio-pci,host={address}"):
            etree.SubElement(words, f"{QEMU}arg", value=word)
    for element in list(root.iter("path", "mac")):
        element.getparent().remove(element)  # of a memory device; of a virtual function
    for element in root.iter():
        element.attrib.pop("file", None)  # of a device's ROM
    return str(etree.tostring(root, encoding="unicode"))


def _keep_only(element: _Element, tag: str) -> None:
    for child in list(element):
        if child.tag != tag:
            element.remove(child)


def _is_kept(device: _Element) -> bool:
    """Return whether a device is a PCI function of the host, or a disk on one, or belongs to the guest's PCI topology.

    SCSI devices are not kept, because they name other hosts.
    """
    if device.tag in ("hostdev", "interface"):
        return device.get("type") in (("pci", "mdev") if device.tag == "hostdev" else ("hostdev",))
    if device.tag == "disk":
        return device.get("type") == "nvme"
    return device.tag in _KEPT_DEVICES
