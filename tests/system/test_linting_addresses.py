"""Guest PCI addresses that libvirt refuses, and those that it takes: the linter says the same as a private libvirtd."""

from __future__ import annotations

import re

import pytest
from domain_faults import criticise
from libvirtd import Libvirtd, libvirtd

from hosttune.model.host import Host

__all__ = ["libvirtd"]

RULES = {"address-twice": "Attempted double use of PCI Address", "address-slot": "Invalid PCI address .*must be"}
ROOT_PORTS = (
    "<controller type='pci' index='0' model='pcie-root'/>"
    "<controller type='pci' index='1' model='pcie-root-port'><address type='pci' bus='0' slot='1' multifunction='on'/>"
    "</controller>"
    "<controller type='pci' index='2' model='pcie-root-port'><address type='pci' bus='0' slot='1' function='1'/>"
    "</controller>"
)
BRIDGE = (
    ROOT_PORTS + "<controller type='pci' index='3' model='pcie-to-pci-bridge'><address type='pci' bus='2' slot='0'/>"
    "</controller>"
)
EXPANDER = (
    "<controller type='pci' index='0' model='pcie-root'/>"
    "<controller type='pci' index='1' model='pcie-expander-bus'><target busNr='200'/>"
    "<address type='pci' bus='0' slot='0x10'/></controller>"
    "<controller type='pci' index='2' model='pcie-root-port'><address type='pci' bus='1' slot='{}'/></controller>"
)
SWITCH = (
    ROOT_PORTS + "<controller type='pci' index='3' model='pcie-switch-upstream-port'><address type='pci' bus='1' "
    "slot='0'/></controller><controller type='pci' index='4' model='pcie-switch-downstream-port'>"
    "<address type='pci' bus='3' slot='0x1f'/></controller>"
)


def rng(address: str) -> str:
    return f"<rng model='virtio'><backend model='random'>/dev/urandom</backend>{address}</rng>"


def at(bus: int, slot: int, function: int = 0, more: str = "") -> str:
    """A device at an address."""
    return rng(f"<address type='pci' domain='0' bus='{bus:#x}' slot='{slot:#x}' function='{function}' {more}/>")


CASES = {
    # --- refused
    "two devices at one address": ("q35", ROOT_PORTS + at(1, 0) + at(1, 0), "address-twice"),
    "a device at the address of a controller": ("q35", ROOT_PORTS + at(0, 1, 1), "address-twice"),
    "two devices at one address of i440fx": ("pc", at(0, 5) + at(0, 5), "address-twice"),
    "a disk and a NIC": (
        "q35",
        ROOT_PORTS
        + "<disk type='file'><source file='/a'/><target dev='vda' bus='virtio'/><address type='pci' bus='1' slot='0'/>"
        "</disk><interface type='user'><model type='virtio'/><address type='pci' bus='1' slot='0'/></interface>",
        "address-twice",
    ),
    "the same function of two": ("q35", ROOT_PORTS + at(0, 9, 2) + at(0, 9, 3) + at(0, 9, 2), "address-twice"),
    "slot 2 of a root port": ("q35", ROOT_PORTS + at(1, 2), "address-slot"),
    "slot 1 of a downstream port": ("q35", SWITCH + at(4, 1), "address-slot"),
    "slot 0 of a bridge": ("q35", BRIDGE + at(3, 0), "address-slot"),
    "slot 0 of a bridge of i440fx": (
        "pc",
        "<controller type='pci' index='1' model='pci-bridge'/>" + at(1, 0),
        "address-slot",
    ),
    "no slot": ("q35", ROOT_PORTS + at(0, 32), "address-slot"),
    # --- taken
    "a device a port": ("q35", ROOT_PORTS + at(1, 0) + at(2, 0), None),
    "functions of one device": ("q35", ROOT_PORTS + at(1, 0, 0, "multifunction='on'") + at(1, 0, 1), None),
    "functions without multifunction": ("q35", ROOT_PORTS + at(1, 0) + at(1, 0, 7), None),
    "slot 0 of the root bus is not written": ("q35", ROOT_PORTS + at(0, 0) + at(0, 0) + at(0, 0, 1), None),
    "slot 0 of the root bus of i440fx is not written": ("pc", at(0, 0, 1) + at(0, 0, 1), None),
    "no address": ("q35", ROOT_PORTS + rng("") + rng("<address type='pci'/>"), None),
    "the last slot of the root bus": ("q35", ROOT_PORTS + at(0, 30), None),
    "slots of a bridge": ("q35", BRIDGE + at(3, 1) + at(3, 31), None),
    "slots of a bridge of i440fx": ("pc", "<controller type='pci' index='1' model='pci-bridge'/>" + at(1, 31), None),
    "a port in slot 0 of an expander": ("q35", EXPANDER.format(0) + at(2, 0), None),
    "a port in slot 31 of an expander": ("q35", EXPANDER.format(31) + at(2, 0), None),
    "slots of a switch": ("q35", SWITCH + at(4, 0), None),
    "slots of i440fx": ("pc", at(0, 5) + at(0, 31), None),
    "a serial port that is also the console": (
        "q35",
        ROOT_PORTS + "<serial type='pty'><target type='pci-serial' port='0'/><address type='pci' bus='0' slot='9'/>"
        "</serial><console type='pty'><target type='serial' port='0'/><address type='pci' bus='0' slot='9'/></console>",
        None,
    ),
    "no balloon": (
        "q35",
        ROOT_PORTS + at(0, 9) + "<memballoon model='none'><address type='pci' bus='0' slot='9'/></memballoon>",
        None,
    ),
    "addresses of other types": (
        "q35",
        ROOT_PORTS
        + "<controller type='scsi' index='0' model='virtio-scsi'><address type='pci' bus='1' slot='0'/></controller>"
        "<disk type='file'><source file='/a'/><target dev='sda' bus='scsi'/>"
        "<address type='drive' controller='0' bus='0' target='0' unit='0'/></disk>"
        "<disk type='file'><source file='/b'/><target dev='sdb' bus='scsi'/>"
        "<address type='drive' controller='0' bus='0' target='0' unit='1'/></disk>",
        None,
    ),
}


@pytest.mark.parametrize(("machine", "devices", "rule"), CASES.values(), ids=CASES.keys())
def test_what_libvirt_refuses_is_an_error(libvirtd: Libvirtd, machine: str, devices: str, rule: str | None) -> None:
    xml = (
        "<domain type='qemu'><name>seats</name><memory>1048576</memory><vcpu>1</vcpu>"
        f"<os><type arch='x86_64' machine='{machine}'>hvm</type></os><devices>{devices}</devices></domain>"
    )
    found = [one for one in criticise(Host(), xml, where="vm.xml") if one.rule in RULES]
    assert [(one.rule, one.level) for one in found] == ([(rule, "error")] if rule else [])
    refusal = libvirtd.refusal("define", libvirtd.file("seats.xml", xml))
    if rule is None:
        assert refusal is None
        libvirtd.virsh("undefine", "seats")
    else:
        assert refusal is not None
        assert re.search(RULES[rule], refusal), refusal
