"""Plans and trees of built hosts, for the tests of the guest's own tree."""

from __future__ import annotations

import json
from typing import Any

from guest_tree_oracle import Nccl, Tree
from guesttrees import Leaf, Made
from lxml import etree

import hosttune
from hosttune.domain.writer import domain_xml
from hosttune.guest import guest_files
from hosttune.guest.nccl import FILE
from hosttune.inventory.devices import read_catalogue
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.planning.pcie.tree import Tree as Planned
from hosttune.planning.pcie.tree import build_tree


def planned(host: Host, **guest: Any) -> Plan:
    """The plan of one guest, `g` if not named, that small hosts have room for."""
    intent = {
        "version": 1,
        "reserve": {"cores_per_node": 0, "memory_per_node": 0},
        "guests": [{"name": "g", "memory": "4GiB", "hugepages": "none", **guest}],
    }
    return hosttune.plan(host, Intent.from_json(json.dumps(intent)))


def only(plan: Plan) -> PlannedGuest:
    assert plan.unplaced == ()
    (guest,) = plan.guests
    return guest


def witnesses(plan: Plan) -> tuple[Tree, Nccl]:
    return Tree(domain_xml(plan, "g")), Nccl(guest_files(plan, "g").bundle[FILE])


def everything(made: Made, **guest: Any) -> Plan:
    """A plan with all GPUs, NICs and drives of a built host; it has a cell on each node where that fits."""
    host = Host.from_json(made.text())
    wanted = {"gpus": made.of("gpu"), "nics": made.of("nic"), "nvme": made.of("nvme")}
    return planned(host, **{key: value for key, value in wanted.items() if value}, **guest)


def gpu(name: str) -> Leaf:
    return Leaf("gpu", name)


def nic(name: str) -> Leaf:
    return Leaf("nic", name)


def laid(made: Made, spare: int = 2) -> Planned:
    """The tree of everything on a built host, without planning the rest."""
    host = Host.from_json(made.text())
    nodes = {d.address: d.numa_node for d in host.pci}
    cells = {address: nodes[address] for address in (*made.of("gpu"), *made.of("nic"), *made.of("nvme"))}
    return build_tree(read_catalogue(host), cells, 4, spare)


def skeleton(tree: Planned) -> str:
    """A tree as the part of domain XML that the oracle reads."""
    root = etree.Element("domain")
    devices = etree.SubElement(root, "devices")
    for c in tree.controllers:
        element = etree.SubElement(devices, "controller", type="pci", index=str(c.index), model=c.model)
        if c.bus_nr is not None:
            target = etree.SubElement(element, "target", busNr=str(c.bus_nr))
            if c.node is not None:
                etree.SubElement(target, "node").text = str(c.node)
        if c.bus is not None:
            assert c.slot is not None
            _place(element, f"0000:{c.bus:02x}:{c.slot:02x}.{c.function}")
    for source, address in tree.addresses.items():
        hostdev = etree.SubElement(devices, "hostdev", type="pci")
        _place(etree.SubElement(hostdev, "source"), source)
        _place(hostdev, address)
    return etree.tostring(root, encoding="unicode")


def _place(parent: Any, address: str) -> None:
    slot, function = address.split(".")
    domain, bus, device = slot.split(":")
    places = {"domain": domain, "bus": bus, "slot": device, "function": function}
    etree.SubElement(parent, "address", {key: f"0x{value}" for key, value in places.items()})
