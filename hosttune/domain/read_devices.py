"""The devices of a domain XML: controllers, host devices, disks and networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hosttune.domain.facts import Controller, Disk, HostDevice, Interface
from hosttune.domain.xml import attribute, element_size, number, pci_address, switch, text

if TYPE_CHECKING:
    from lxml.etree import _Element

_SOURCES = ("file", "dev", "dir", "volume", "name")
_NETWORKS = ("network", "bridge", "dev", "path", "name")


def read_controllers(root: _Element) -> tuple[Controller, ...]:
    """Return PCI controllers by index. One without an index gets the lowest free one, as libvirt does."""
    elements = [c for c in root.iterfind("devices/controller") if c.get("type") == "pci"]
    written = [number(c, attribute(c, "index")) for c in elements]
    free = iter(sorted(set(range(len(elements) + len(written))) - {index for index in written if index is not None}))
    controllers = (
        _controller(element, next(free) if index is None else index)
        for element, index in zip(elements, written, strict=True)
    )
    return tuple(sorted(controllers, key=lambda controller: controller.index))


def _controller(element: _Element, index: int) -> Controller:
    target = element.find("target")
    node = element.find("target/node")

    def of_target(name: str) -> int | None:
        return None if target is None else number(target, attribute(target, name))

    return Controller(
        index=index,
        model=attribute(element, "model"),
        address=pci_address(element.find("address")),
        chassis=of_target("chassis"),
        port=of_target("port"),
        bus_nr=of_target("busNr"),
        node=None if node is None else number(node, text(node)),
        pcihole64_bytes=element_size(element.find("pcihole64")),
        hotplug=None if target is None else switch(target, "hotplug"),
    )


def read_hostdevs(root: _Element) -> tuple[HostDevice, ...]:
    """Return host devices in the order of the XML; those given as network interfaces come last."""
    subsystem = (_hostdev(e) for e in root.iterfind("devices/hostdev") if e.get("mode", "subsystem") == "subsystem")
    interfaces = (_hostdev(e) for e in root.iterfind("devices/interface") if e.get("type") == "hostdev")
    return (*subsystem, *interfaces)


def _hostdev(element: _Element) -> HostDevice:
    interface = element.tag == "interface"
    kind = "pci" if interface else attribute(element, "type") or "unknown"
    source = element.find("source/address")
    driver = element.find("driver")
    return HostDevice(
        kind=kind,
        source=pci_address(source) if kind == "pci" else attribute(source, "uuid") if kind == "mdev" else None,
        managed=switch(element, "managed"),
        guest_address=pci_address(element.find("address")),
        rom_bar=switch(element.find("rom"), "bar"),
        driver=attribute(driver, "name"),
        model=attribute(driver, "model") or (None if interface else attribute(element, "model")),
        interface=interface,
    )


def read_disks(root: _Element) -> tuple[Disk, ...]:
    """Return disks (and other block devices) in the order of the XML."""
    return tuple(_disk(element) for element in root.iterfind("devices/disk"))


def _disk(element: _Element) -> Disk:
    driver = element.find("driver")
    order = element.find("boot")
    target = element.find("target")
    nvme = attribute(element, "type") == "nvme"
    return Disk(
        source=_first(element.find("source"), _SOURCES),
        target=attribute(target, "dev"),
        bus=attribute(target, "bus"),
        type=attribute(element, "type"),
        format=attribute(driver, "type"),
        cache=attribute(driver, "cache"),
        io=attribute(driver, "io"),
        iothread=None if driver is None else number(driver, attribute(driver, "iothread")),
        boot_order=None if order is None else number(order, attribute(order, "order")),
        guest_address=pci_address(element.find("address")),
        device=attribute(element, "device"),
        readonly=element.find("readonly") is not None,
        function=pci_address(element.find("source/address")) if nvme else None,
    )


def read_interfaces(root: _Element) -> tuple[Interface, ...]:
    """Return virtual NICs in the order of the XML, without those that are host devices."""
    return tuple(_interface(e) for e in root.iterfind("devices/interface") if e.get("type") != "hostdev")


def _interface(element: _Element) -> Interface:
    driver = element.find("driver")
    return Interface(
        type=attribute(element, "type"),
        source=_first(element.find("source"), _NETWORKS),
        model=attribute(element.find("model"), "type"),
        guest_address=pci_address(element.find("address")),
        queues=None if driver is None else number(driver, attribute(driver, "queues")),
    )


def _first(element: _Element | None, names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := attribute(element, name)) is not None), None)
