"""What libvirt and QEMU can give to a guest, from libvirt's domain capabilities (formatdomaincaps)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosttune.domain.xml import attribute, parse, text
from hosttune.machine.reader import Reader, number
from hosttune.model.host import DomainCapabilities

if TYPE_CHECKING:
    from lxml.etree import _Element


def read_capabilities(reader: Reader, xml: str) -> DomainCapabilities | None:
    """Return what `<domainCapabilities>` offers; None, with a problem of the reader, if it is not XML.

    `features` are the names of the supported elements.
    """
    try:
        root = parse(xml)
    except (SyntaxError, ValueError) as error:
        reader.problem("unreadable domain capabilities", "libvirt", str(error))
        return None
    vcpus = attribute(root.find("vcpu"), "max") or ""
    return DomainCapabilities(
        machine=text(root.find("machine")),
        max_vcpus=number(vcpus),
        firmwares=tuple(str(value.text) for value in root.iterfind("os/enum[@name='firmware']/value")),
        loaders=tuple(str(value.text) for value in root.iterfind("os/loader/value")),
        cpu_modes=tuple(str(mode.get("name")) for mode in root.iterfind("cpu/mode[@supported='yes']")),
        host_cpu_model=text(root.find("cpu/mode[@name='host-model']/model")),
        features=tuple(
            str(element.tag)
            for parent in (".", "features", "devices")
            for element in root.iterfind(f"{parent}/*[@supported='yes']")
        ),
        domain_type=text(root.find("domain")),
        iothreads=_supported(root.find("iothreads")),
        hostdev_vfio=_takes_vfio(root.find("devices/hostdev")),
    )


def _supported(element: _Element | None) -> bool | None:
    """Return the element's attribute `supported`; None if this libvirt does not list the element."""
    return None if element is None else {"yes": True, "no": False}.get(element.get("supported") or "")


def _takes_vfio(hostdev: _Element | None) -> bool | None:
    """Return whether host devices go through VFIO.

    If the kernel offers no VFIO, libvirt leaves the list of backends empty.
    """
    supported = _supported(hostdev)
    if hostdev is None or not supported:
        return supported
    backends = hostdev.find("enum[@name='pciBackend']")
    return None if backends is None else any(value.text == "vfio" for value in backends.iterfind("value"))
