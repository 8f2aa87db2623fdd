"""The whole chain on the planner's own output: host → plan → XML → libvirt's schema, the proof, the critic, libvirt.

Hosts are the bundled example, unpacked captures and built documents. What is asserted of QEMU's command line is
asserted against the host document: a GPU's expander must be of the cell whose memory is on that GPU's node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from domain_faults import criticise
from domain_shapes import changed
from examplehosts import discovered
from libvirtd import PACKAGES, Argv, Libvirtd, libvirtd
from lxml import etree
from planhosts import GIB, Card, Held, Shape, build_host

import hosttune
from hosttune.domain.definitions import same_guest
from hosttune.domain.planned import guest_of
from hosttune.domain.reader import read_domain
from hosttune.domain.writer import domain_xml
from hosttune.model.gpu import Fabric
from hosttune.model.host import CpuModel, Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.values import parse_cpus

__all__ = ["libvirtd"]

HERE = Path(__file__).parents[1]
GOLDEN = HERE / "golden" / "domain" / "example-0000-41-00-0-annotated.xml"
SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
NARROW = {"address bits": "address bits reach only"}  # a GPU's window is wider than the emulated CPU's 40 bits
NO_HOUSEKEEPING = dict.fromkeys(("CPU 0 given away", "where the guest has no cell"), "no cores are reserved")
SHARED = {"share those cores": "cores 1-4 are shared with others, as smt: threads allows"}
PAGELESS = {"no huge pages": "hugepages: none with a GPU"}
FAR = {"off the GPU's node: 0000:21:00.0 is on node 1": "0000:21:00.0 is on node 1, where the guest has no cell"}


@dataclass(frozen=True)
class Case:
    """A guest asked of a host. `said`: a text of the critic → the plan's own text for it.

    `vcpus`, `cells`, `devices` are what must come out: a plan of nothing proves nothing.
    """

    host: str
    guest: Mapping[str, Any]
    vcpus: int
    cells: int = 1
    devices: int = 0
    top: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)


NAMED = {"gpus": ["0000:41:00.0"]}
LIST = [{"vcpus": 4, "memory": "8GiB"}, {"vcpus": 8, "memory": "16GiB"}]
BOOT = {"kernel": "/boot/vmlinuz", "initrd": "/boot/initrd.img", "cmdline": 'root=/dev/vda1 "<&>" console=ttyS0'}
NETWORKS = [{"network": "default"}, {"bridge": "br0"}]
NO_CORES = {"reserve": {"cores_per_node": 0}}

CASES = {
    "one-gpu": Case("example", NAMED, 22, devices=1),
    "two-nodes": Case("example-unlisted", {"gpus": ["0000:18:00.0", "0000:da:00.0"]}, 44, cells=2, devices=2),
    "whole-fabric": Case("example-passthrough", {"gpus": 8}, 188, cells=2, devices=12),
    "eight-gpus": Case("example", {"gpus": 8}, 188, cells=2, devices=8),
    "everything": Case("example", {"gpus": 8, "nics": 8, "nvme": 2}, 188, cells=2, devices=18),
    "no-gpu": Case("example", {"vcpus": 188, "memory": "512GiB"}, 188, cells=2),
    "odd": Case("example", {**NAMED, "vcpus": 7, "memory": "32GiB"}, 7, devices=1),
    "cells": Case("example", {"gpus": 2, "numa": LIST}, 12, cells=2, devices=2),
    "cell-count": Case("example", {"gpus": 4, "numa": 2, "vcpus": 16, "memory": "64GiB"}, 16, cells=2, devices=4),
    "small-pages": Case("example", {**NAMED, "hugepages": "2MiB"}, 22, devices=1),
    "no-pages": Case("example", {**NAMED, "hugepages": "none"}, 22, devices=1, said=PAGELESS),
    "bios": Case("example", {**NAMED, "firmware": "bios"}, 22, devices=1),
    "boot": Case("example", {**NAMED, "boot": BOOT}, 22, devices=1),
    "disk": Case("example", {**NAMED, "disk": "/img/a b&c.qcow2", "networks": NETWORKS}, 22, devices=1),
    "amd": Case("example-amd", {"gpus": 2}, 46, devices=2),
    "tcg": Case("example", {**NAMED, "accelerator": "tcg"}, 22, devices=1),
    "guest-x1": Case("h200/vm-h200x1", {"gpus": 1}, 15, devices=1),
    "guest-x4": Case("older/vm-x4", {"gpus": 4}, 63, devices=4),
    "xe9680": Case("derived/xe9680-8xh100-lspci", {"gpus": 8}, 220, cells=2, devices=8),
    "nps4": Case("derived/oci-bm-gpu-a100-b4-nps4", {"gpus": 8}, 240, cells=8, devices=8),
    "ndv4": Case("derived/azure-ndv4-8xa100-vm", {"gpus": 8}, 92, cells=4, devices=8),
    "mi300x": Case("derived/amd-mi300x-8-vm", {"gpus": 8}, 94, cells=2, devices=8),
    "sparse": Case("hwloc/48amd64-4pa2n6c-sparse", {"vcpus": 2, "memory": "512MiB"}, 2),
    "cpusets": Case("hwloc/16amd64-8n2c-cpusets", {"vcpus": 2, "memory": "512MiB"}, 2, cells=2),
    "four-nodes": Case("nodes-4", {"gpus": 8}, 56, cells=4, devices=8),
    "four-nodes-three": Case("nodes-4", {"gpus": 3}, 12, cells=2, devices=3),
    "eight-nodes": Case("nodes-8", {"gpus": 8}, 112, cells=8, devices=8),
    "many-vcpus": Case("wide", {"gpus": 2, "vcpus": 288, "memory": "256GiB"}, 288, cells=2, devices=2),
    "no-housekeeping": Case(
        "nodes-4", {"gpus": 1, "vcpus": 16, "memory": "8GiB"}, 16, devices=1, top=NO_CORES, said=NO_HOUSEKEEPING
    ),
    "threads": Case("crowded", {"gpus": 1, "smt": "threads", "vcpus": 4, "memory": "8GiB"}, 4, devices=1, said=SHARED),
    "far-node": Case("far", {"gpus": 1, "vcpus": 4, "memory": "8GiB"}, 4, devices=1, said=FAR),
    "unknown-node": Case("unknown", {"gpus": 2, "numa": LIST}, 12, cells=2, devices=2),
    "beside": Case("held", {"gpus": 1}, 6, devices=1),
}


def cards(count: int, nodes: int) -> tuple[Card, ...]:
    return tuple(Card(f"0000:{0x21 + i:02x}:00.0", i % nodes, group=i, bar_bytes=256 * GIB) for i in range(count))


BUILT = {
    "nodes-4": Shape(nodes=4, cards=cards(8, 4)),
    "nodes-8": Shape(nodes=8, cards=cards(8, 8), numbering="interleaved"),
    "wide": Shape(cores_per_node=96, memory_gib=512, cards=cards(2, 2)),
    "far": Shape(cores_per_node=(8, 1), cards=(Card("0000:21:00.0", 1, group=1, bar_bytes=256 * GIB),)),
    "unknown": Shape(cards=(*cards(1, 1), Card("0000:31:00.0", None, group=9, bar_bytes=256 * GIB))),
    "crowded": Shape(nodes=1, cards=cards(1, 1), guests=(Held(pins=(1, 2, 3, 4, 5, 6, 7)),)),
    "held": Shape(cards=cards(4, 2), guests=(Held(pins=(1, 17), devices=("0000:21:00.0",), memory_bytes=GIB),)),
}


@pytest.fixture(scope="module")
def hosts(host_root: Callable[[str], Path]) -> Callable[[str], Host]:
    """Host documents by name, each made once."""

    @cache
    def of(name: str) -> Host:
        if name == "example":
            return discovered()
        if name == "example-unlisted":  # where nobody says which GPUs the NVSwitches can join
            return changed(of("example"), fabric=None)
        if name == "example-passthrough":  # the NVSwitches go along
            return changed(of("example"), fabric=Fabric(mode=0))
        if name == "example-amd":
            host = of("example")
            assert host.cpu_model is not None
            return changed(host, cpu_model=changed(host.cpu_model, vendor="AuthenticAMD"))
        if name in BUILT:
            model = CpuModel(vendor="GenuineIntel", physical_address_bits=52)
            return changed(Host.from_json(json.dumps(build_host(BUILT[name]))), cpu_model=model)
        return hosttune.discover(str(host_root(name)))

    return of


@pytest.fixture(scope="module")
def schema() -> etree.RelaxNG:
    if not SCHEMA.exists():
        pytest.fail(f"{SCHEMA} not installed: apt-get install {PACKAGES}")
    return etree.RelaxNG(etree.parse(str(SCHEMA)))


def planned(host: Host, name: str, **guest: object) -> Plan:
    """The plan of a case; keywords change the guest that it asks for."""
    case = CASES[name]
    intent = {"version": 1, **case.top, "guests": [{"name": name, **case.guest, **guest}]}
    return hosttune.plan(host, Intent.from_json(json.dumps(intent)))


def only(plan: Plan) -> PlannedGuest:
    assert plan.unplaced == ()
    (guest,) = plan.guests
    return guest


every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_the_plan_is_of_that_size(hosts: Callable[[str], Host], name: str) -> None:
    case = CASES[name]
    guest = only(planned(hosts(case.host), name))
    assert (len(guest.vcpu_pins), len(guest.cells), len(guest.devices)) == (case.vcpus, case.cells, case.devices)


@every_case
@pytest.mark.parametrize("annotate", [False, True], ids=["plain", "annotated"])
def test_its_xml_is_valid_and_says_what_the_plan_says(
    hosts: Callable[[str], Host], schema: etree.RelaxNG, name: str, annotate: bool
) -> None:
    plan = planned(hosts(CASES[name].host), name)
    xml = domain_xml(plan, name, annotate=annotate)
    assert schema.validate(etree.fromstring(xml)), schema.error_log
    assert read_domain(xml) == guest_of(only(plan))


@every_case
def test_the_critic_finds_no_more_than_the_plan_says(hosts: Callable[[str], Host], name: str) -> None:
    case = CASES[name]
    host = hosts(case.host)
    plan = planned(host, name)
    found = [f"{f.where}: {f.text}" for f in criticise(host, domain_xml(plan, name), where=name) if f.level != "info"]
    assert [text for text in found if not any(known in text for known in case.said)] == []
    for critic, own in case.said.items():
        assert any(critic in text for text in found)
        assert any(own in finding.text for finding in plan.findings)


def test_a_tpm_is_valid(hosts: Callable[[str], Host], schema: etree.RelaxNG) -> None:
    plan = planned(hosts("example"), "one-gpu", tpm=True, secure_boot=True)
    assert schema.validate(etree.fromstring(domain_xml(plan, "one-gpu"))), schema.error_log


# --- libvirt itself, with the emulated twin: this machine need not have KVM, nor any of the devices ---------------


@every_case
def test_libvirt_defines_the_emulated_twin_and_keeps_every_fact(
    hosts: Callable[[str], Host], libvirtd: Libvirtd, name: str
) -> None:
    plan = planned(hosts(CASES[name].host), name, accelerator="tcg")
    xml = domain_xml(plan, name)
    libvirtd.virsh("define", "--validate", libvirtd.file(f"{name}.xml", xml))
    kept = libvirtd.virsh("dumpxml", name)
    assert same_guest(kept, xml) == ()
    assert read_domain(kept).uuid == only(plan).uuid


def translated(libvirtd: Libvirtd, plan: Plan) -> Argv:
    """QEMU's command line, with what libvirt looks up on this machine moved to what it has: node 0, no taps."""
    guest = only(plan)
    here = changed(guest, cells=tuple(changed(cell, host_nodes="0") for cell in guest.cells), networks=())
    here = here if libvirtd.hugepages else changed(here, page_bytes=None)
    return libvirtd.argv(domain_xml(changed(plan, guests=(here,)), guest.name))


@every_case
def test_qemu_puts_each_device_on_the_cell_of_its_node(
    hosts: Callable[[str], Host], libvirtd: Libvirtd, name: str
) -> None:
    host = hosts(CASES[name].host)
    plan = planned(host, name, accelerator="tcg")
    argv = translated(libvirtd, plan)
    devices = {device["id"]: device for device in argv.parsed("-device") if "id" in device}
    passed = {device["host"]: device for device in devices.values() if device["driver"] == "vfio-pci"}
    assert len(passed) == CASES[name].devices
    node_of_cell = {cell.id: parse_cpus(cell.host_nodes) for cell in only(plan).cells}
    node_of_device = {device.address: device.numa_node for device in host.pci}
    for address, device in passed.items():
        port = devices[device["bus"]]
        while port["driver"] == "xio3130-downstream":
            upstream = devices[port["bus"]]
            assert upstream["driver"] == "x3130-upstream"
            port = devices[upstream["bus"]]
        assert port["driver"] == "pcie-root-port"
        if node_of_device[address] is None:
            assert port["bus"] == "pcie.0"
            continue
        expander = devices[port["bus"]]
        assert expander["driver"] == "pxb-pcie"
        if "where the guest has no cell" not in str(CASES[name].said):
            assert list(node_of_cell[expander["numa_node"]]) == [node_of_device[address]]
    chassis = [device["chassis"] for device in devices.values() if "chassis" in device]
    assert len(set(chassis)) == len(chassis)


@every_case
def test_qemu_gets_the_cells_and_threads_of_the_plan(
    hosts: Callable[[str], Host], libvirtd: Libvirtd, name: str
) -> None:
    host = hosts(CASES[name].host)
    plan = planned(host, name, accelerator="tcg")
    argv, guest = translated(libvirtd, plan), only(plan)
    counts = dict(part.split("=") for part in argv.one("-smp").split(",")[1:])
    core_of = {cpu.id: cpu.core for cpu in host.cpus}
    pins = [int(pin.cpus) for pin in sorted(guest.vcpu_pins, key=lambda pin: pin.vcpu)]
    threads = int(counts["threads"])
    for first in range(0, len(pins), threads):  # what QEMU calls siblings are siblings
        assert len({core_of[cpu] for cpu in pins[first : first + threads]}) == 1
    sizes = {backend["id"]: backend["size"] for backend in argv.parsed("-object") if "size" in backend}
    nodes = [value for value in argv.all("-numa") if value.startswith("node,")]
    assert nodes == [f"node,nodeid={c.id},cpus={_numa(c.vcpus)},memdev=ram-node{c.id}" for c in guest.cells]
    assert [sizes[f"ram-node{cell.id}"] for cell in guest.cells] == [cell.memory_bytes for cell in guest.cells]
    told = {value for value in argv.all("-numa") if value.startswith("dist,")}
    assert told == distances(host, [cell.host_nodes for cell in guest.cells])


def distances(host: Host, nodes: list[str]) -> set[str]:
    """The host's own table between the cells' nodes; none where it is QEMU's default, which libvirt leaves out."""
    table = {str(node.id): node.distances or {} for node in host.numa_nodes}
    rows = {(a, b): table[x][y] for a, x in enumerate(nodes) for b, y in enumerate(nodes)}
    if all(value == (10 if a == b else 20) for (a, b), value in rows.items()):
        return set()
    return {f"dist,src={a},dst={b},val={value}" for (a, b), value in rows.items()}


def _numa(vcpus: str) -> str:
    """libvirt repeats cpus= for each range of a list."""
    return vcpus.replace(",", ",cpus=")


# --- for people ------------------------------------------------------------------------------------------------


def test_the_examples_annotated_xml_is_as_it_was_reviewed(
    request: pytest.FixtureRequest, hosts: Callable[[str], Host]
) -> None:
    xml = domain_xml(planned(hosts("example"), "one-gpu"), "one-gpu", annotate=True)
    if request.config.getoption("--regenerate"):
        GOLDEN.write_text(xml)
    assert xml == GOLDEN.read_text()
