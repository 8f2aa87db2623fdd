"""The guest's own PCIe tree: grades as on the host, budgets, addresses that firmware gives, XML that libvirt takes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from guest_tree_oracle import Nccl, Tree, host_grade, merged, read_mask
from guesttrees import FILES, MATRICES, Hub, Leaf, Made, Root, host_of, host_of_file, read_matrix
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from libvirtd import Libvirtd, libvirtd
from lxml import etree

import hosttune
from hosttune.domain import criticise, domain_xml
from hosttune.guest import guest_files
from hosttune.guest.nccl import FILE
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.values import parse_cpus
from hosttune.planning.devices import read_catalogue
from hosttune.planning.pcie import LAST_BUS, NoRoomOnBus, build_tree
from hosttune.planning.pcie import Tree as Planned

__all__ = ["libvirtd"]

EXAMPLE = Path(__file__).parent.parent / "examples" / "hgx-h200-8.tar.xz"
MATRIX_NAMES = sorted(path.name.removesuffix(".txt") for path in MATRICES.glob("*.txt"))
FILE_NAMES = sorted(path.name.removesuffix(".xml") for path in FILES.glob("*.xml"))


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


# --- the grade of each pair ------------------------------------------------------------------------------------------

HOSTS = {
    "example": str(EXAMPLE),
    "xe9680": "derived/xe9680-8xh100-lspci",
    "nps4": "derived/oci-bm-gpu-a100-b4-nps4",
    "ndv4": "derived/azure-ndv4-8xa100-vm",
    "mi300x": "derived/amd-mi300x-8-vm",
}


@pytest.fixture(scope="module")
def hosts(host_root: Callable[[str], Path]) -> Callable[[str], Host]:
    @cache
    def of(name: str) -> Host:
        where = HOSTS[name]
        return hosttune.discover(where if where.endswith(".xz") else str(host_root(where)))

    return of


@pytest.mark.parametrize("name", HOSTS)
def test_each_pair_has_its_grade_of_the_host(hosts: Callable[[str], Host], name: str) -> None:
    host = hosts(name)
    pci = {d["address"]: d for d in json.loads(host.to_json())["pci"]}
    gpus = [gpu.address for gpu in host.gpus if gpu.vendor != "other"]
    nics = [nic.address for nic in host.nics if nic.in_use is None]
    plan = planned(host, gpus=gpus, nics=nics, memory="64GiB")
    tree, nccl = witnesses(plan)
    pairs = {(gpu, nic): merged(host_grade(pci, gpu, nic)) for gpu in gpus for nic in nics}
    assert len(pairs) >= 64
    assert {pair: tree.grade(*pair) for pair in pairs} == pairs
    assert {pair: nccl.grade(*map(tree.at, pair)) for pair in pairs} == pairs


OTHERS = (
    "ghw/linux-amd64-accel-nvidia",
    "ghw/linux-amd64-8581cf3a529e5d8b97ea876eade2f60d",
    "h200/h200x1",
    "h200/h200x4",
    "h200/vm-x1",
    "h200/vm-x4",
    "hwloc/2pa-pcidomain32bits",
    "hwloc/32em64t-2n8c+dax+nvme+mic+dimms",
    "hwloc/40intel64-2g2n4c+pcilocality",
    "hwloc/nvidiagpunumanodes",
)


@pytest.mark.parametrize("name", OTHERS)
def test_each_pair_has_its_grade_of_every_other_capture_with_gpus(host_root: Callable[[str], Path], name: str) -> None:
    """The tree alone: most of these could not be planned, for want of free devices or memory."""
    host = hosttune.discover(str(host_root(name)))
    pci = {d["address"]: d for d in json.loads(host.to_json())["pci"]}
    ends = [gpu.address for gpu in host.gpus] + [nic.address for nic in host.nics]
    nodes = sorted({pci[end]["numa_node"] for end in ends} - {None})
    cells = {end: None if pci[end]["numa_node"] is None else nodes.index(pci[end]["numa_node"]) for end in ends}
    tree = Tree(skeleton(build_tree(read_catalogue(host), cells, max(1, len(nodes)), 2)))
    for one in (gpu.address for gpu in host.gpus):
        for other in ends:
            if one != other and (cells[one] is None) == (cells[other] is None):
                assert tree.grade(one, other) == merged(host_grade(pci, one, other)), (one, other)


def seen(plan: Plan, ends: tuple[str, str], grade: str) -> str:
    """What the guest's own tree shows of a grade: between nodes of which it has no cell, it can tell nothing apart."""
    guest = only(plan)
    nodes = {device.address: device.host_node for device in guest.devices}
    cells = {device.address: device.guest_cell for device in guest.devices}
    homes = {int(cell.host_nodes) for cell in guest.cells}
    away = {nodes[end] for end in ends} - homes
    return "CPU" if grade == "SYS" and away and cells[ends[0]] == cells[ends[1]] else grade


@pytest.mark.parametrize("name", MATRIX_NAMES)
def test_each_pair_has_its_grade_of_the_matrix(name: str) -> None:
    """PIX and PXB are the matrix's; what is off-switch is judged by nodes, for nvidia-smi itself errs there."""
    matrix = read_matrix(name)
    made, nodes = host_of(matrix)
    plan = everything(made)
    tree, nccl = witnesses(plan)
    compared = 0
    for gpu in matrix.gpus:
        for other in (*matrix.gpus, *matrix.nics):
            said = matrix.cells.get((gpu, other), "X")
            want = said if said in ("PIX", "PXB") else "CPU" if nodes[gpu] == nodes[other] else "SYS"
            if gpu != other and not said.startswith("NV"):  # NVLink hides how the two are joined by PCIe
                ends = made.at[gpu], made.at[other]
                assert tree.grade(*ends) == seen(plan, ends, want), (gpu, other)
                assert nccl.grade(*map(tree.at, ends)) == want, (gpu, other)
                compared += 1
    assert compared >= len(matrix.gpus) * len(matrix.nics)


@pytest.mark.parametrize("name", FILE_NAMES)
def test_each_pair_has_its_grade_of_the_nccl_file(name: str) -> None:
    made, gpus, nics = host_of_file(name)
    theirs = Nccl((FILES / f"{name}.xml").read_text())
    plan = everything(made)
    tree, ours = witnesses(plan)
    assert gpus
    for gpu in gpus:
        for other in (*gpus, *nics):
            if gpu != other:
                ends = made.at[gpu], made.at[other]
                assert tree.grade(*ends) == seen(plan, ends, theirs.grade(gpu, other)), (gpu, other)
                assert ours.grade(*map(tree.at, ends)) == theirs.grade(gpu, other), (gpu, other)


def test_the_oracle_can_tell_the_grades_apart() -> None:
    made = Made([Root((Hub((Hub((gpu("a"), nic("b"))), nic("c"))),)), Root((nic("d"),)), Root((nic("e"),), 1)], nodes=2)
    pci = {d["address"]: d for d in made.pci}
    grades = [host_grade(pci, made.at["a"], made.at[other]) for other in "bcde"]
    assert grades == ["PIX", "PXB", "NODE", "SYS"]


def gpu(name: str) -> Leaf:
    return Leaf("gpu", name)


def nic(name: str) -> Leaf:
    return Leaf("nic", name)


# --- what hosts are like ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", [True, False], ids=["port types", "no port types"])
def test_a_nic_shared_by_two_gpus(typed: bool) -> None:
    made = Made([Root((Hub((gpu("g0"), gpu("g1"), nic("n"))),))], nodes=1, typed=typed)
    tree, nccl = witnesses(everything(made))
    for one in ("g0", "g1"):
        assert tree.grade(made.at[one], made.at["n"]) == "PIX"
        assert nccl.grade(tree.at(made.at[one]), tree.at(made.at["n"])) == "PIX"


@pytest.mark.parametrize("typed", [True, False], ids=["port types", "no port types"])
def test_cascaded_switches_stay_cascaded(typed: bool) -> None:
    below = Hub((Hub((gpu("g0"), nic("n0"))), Hub((gpu("g1"), nic("n1"))), nic("n2")))
    made = Made([Root((below,))], nodes=1, typed=typed)
    tree, _ = witnesses(everything(made))
    grades = {(g, n): tree.grade(made.at[g], made.at[n]) for g in ("g0", "g1") for n in ("n0", "n1", "n2")}
    assert grades == {
        ("g0", "n0"): "PIX",
        ("g0", "n1"): "PXB",
        ("g0", "n2"): "PXB",
        ("g1", "n0"): "PXB",
        ("g1", "n1"): "PIX",
        ("g1", "n2"): "PXB",
    }


def test_sub_numa_clusters_with_three_one_three_and_one_gpu() -> None:
    counts = (3, 1, 3, 1)
    roots = [
        Root((Hub((gpu(f"g{node}{n}"), nic(f"n{node}{n}"))),), node) for node, c in enumerate(counts) for n in range(c)
    ]
    made = Made(roots, nodes=4)
    plan = everything(made)
    tree, nccl = witnesses(plan)
    guest = only(plan)
    assert [cell.host_nodes for cell in guest.cells] == ["0", "1", "2", "3"]
    assert sorted(c.node for c in guest.controllers if c.node is not None) == [0, 1, 2, 3]
    for node, count in enumerate(counts):
        for n in range(count):
            assert tree.node(made.at[f"g{node}{n}"]) == str(node)
            assert nccl.numaid(tree.at(made.at[f"g{node}{n}"])) == str(node)
            assert tree.grade(made.at[f"g{node}{n}"], made.at[f"n{node}{n}"]) == "PIX"


def test_a_host_without_switches_has_a_root_port_for_each_slot() -> None:
    made = Made([Root((gpu("a"),)), Root((nic("b"),))], nodes=1)
    guest = only(everything(made))
    assert not [c for c in guest.controllers if "switch" in c.model]
    assert Tree(domain_xml(everything(made), "g")).grade(made.at["a"], made.at["b"]) == "CPU"


def test_several_pci_domains_on_equal_buses() -> None:
    roots = [Root((Hub((gpu(f"g{d}"), nic(f"n{d}"))),), d % 2, domain=d) for d in (0, 1, 2, 0x10000)]
    made = Made(roots, nodes=2)
    tree, nccl = witnesses(everything(made))
    assert tree.at(made.at["g0"]) != tree.at(made.at["g1"])
    assert tree.grade(made.at["g65536"], made.at["n65536"]) == "PIX"
    assert nccl.grade(tree.at(made.at["g0"]), tree.at(made.at["n2"])) == "CPU"
    assert nccl.grade(tree.at(made.at["g0"]), tree.at(made.at["n1"])) == "SYS"


def test_devices_of_unknown_node_hang_on_the_root_bus_and_keep_their_switch() -> None:
    made = Made([Root((Hub((gpu("a"), nic("b"))),), None), Root((gpu("c"),), 0)], nodes=2)
    plan = everything(made, numa=2, vcpus=8)
    tree, nccl = witnesses(plan)
    assert tree.node(made.at["a"]) is None
    assert tree.node(made.at["c"]) == "0"
    assert tree.grade(made.at["a"], made.at["b"]) == "PIX"
    assert nccl.numaid(tree.at(made.at["a"])) == "-1"


def test_in_a_guest_of_one_cell_a_device_of_unknown_node_is_of_that_cell_for_nccl() -> None:
    made = Made([Root((gpu("a"),), None)], nodes=1)
    tree, nccl = witnesses(everything(made, vcpus=4))
    assert tree.node(made.at["a"]) is None
    assert nccl.numaid(tree.at(made.at["a"])) == "0"


def test_a_nic_off_the_guests_nodes_stays_far_for_nccl() -> None:
    made = Made([Root((gpu("a"),), 0), Root((nic("b"),), 1)], nodes=2)
    plan = everything(made, numa=1, vcpus=4)
    tree, nccl = witnesses(plan)
    assert nccl.grade(tree.at(made.at["a"]), tree.at(made.at["b"])) == "SYS"
    assert nccl.numaid(tree.at(made.at["b"])) == "1"  # no node of the guest's
    assert read_mask(str(next(nccl.pci[tree.at(made.at["b"])].iterancestors("cpu")).get("affinity"))) == set(range(4))


# --- budgets ---------------------------------------------------------------------------------------------------------


def laid(made: Made, spare: int = 2) -> Planned:
    """The tree of everything on a built host, without planning the rest."""
    host = Host.from_json(made.text())
    nodes = {d.address: d.numa_node for d in host.pci}
    cells = {address: nodes[address] for address in (*made.of("gpu"), *made.of("nic"), *made.of("nvme"))}
    return build_tree(read_catalogue(host), cells, 4, spare)


def slots_under(count: int, *, nested: int = 0) -> Made:
    """`count` GPUs, each with a NIC below a switch of its own, and these below `nested` outer ones in pairs."""
    hubs: tuple[Leaf | Hub, ...] = tuple(Hub((gpu(f"g{n}"), nic(f"n{n}"))) for n in range(count))
    for _ in range(nested):
        hubs = tuple(Hub(hubs[n : n + 2]) for n in range(0, len(hubs), 2))
    made = [Root((hub,), n % 4, domain=n) for n, hub in enumerate(hubs)]
    return Made(made, nodes=4)


def test_bus_numbers_run_out_level_by_level() -> None:
    assert laid(slots_under(60)).note is None  # 60 x (port, switch, two ports) + 4 expanders + 4 spare ports
    assert laid(slots_under(62)).note == "its PCIe switches are left out"
    assert laid(slots_under(48, nested=1)).note is None
    assert laid(slots_under(52, nested=1)).note == "switches below other switches are left out"
    assert laid(slots_under(123)).note == "its PCIe switches are left out"
    with pytest.raises(NoRoomOnBus, match="need more than 255 bus numbers"):
        laid(slots_under(124))


def test_a_flatter_tree_is_said_and_nccl_still_sees_the_switches() -> None:
    made = slots_under(63)
    plan = everything(made, numa=4, vcpus=16, memory="16GiB")
    assert [f.level for f in plan.findings if "its PCIe switches are left out" in f.text] == ["warn"]
    tree, nccl = witnesses(plan)
    assert tree.grade(made.at["g0"], made.at["n0"]) == "CPU"
    assert nccl.grade(tree.at(made.at["g0"]), tree.at(made.at["n0"])) == "PIX"
    switches = [bus_id for bus_id, node in nccl.pci.items() if node.get("class") == "0x060400"]
    assert len(set(switches)) == 63
    assert all(str(bus_id).startswith("ffff:ff:") for bus_id in switches)


def test_more_functions_than_a_bus_has_slots_share_them() -> None:
    made = Made(
        [Root((Hub(tuple(gpu(f"g{n}") for n in range(40))),)), *(Root((nic(f"n{n}"),)) for n in range(40))], nodes=1
    )
    tree = laid(made)
    places = [(c.bus, c.slot, c.function) for c in tree.controllers if c.bus is not None]
    assert len(set(places)) == len(places)
    assert all(slot is not None and slot < 32 for _, slot, _ in places)


# --- anything at all -------------------------------------------------------------------------------------------------


def leaves(counter: Iterator[int]) -> st.SearchStrategy[Leaf]:
    return st.sampled_from(("gpu", "nic", "nvme")).map(lambda kind: Leaf(kind, f"{kind}{next(counter)}"))


@st.composite
def hosts_at_random(draw: st.DrawFn) -> Made:
    counter = iter(range(10_000))
    inner = leaves(counter)
    hub = st.recursive(
        inner, lambda below: st.lists(below, min_size=1, max_size=4).map(lambda b: Hub(tuple(b))), max_leaves=12
    )
    roots = draw(
        st.lists(
            st.builds(
                Root,
                st.lists(hub, min_size=1, max_size=3).map(tuple),
                st.sampled_from((0, 0, 1, 2, 3, None)),
                st.sampled_from((0, 0, 1, 0x10000)),
            ),
            min_size=1,
            max_size=draw(st.sampled_from((2, 5, 20))),
        )
    )
    return Made(roots, nodes=4)


@settings(
    max_examples=int(os.environ.get("HOSTTUNE_EXAMPLES", "200")),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(hosts_at_random(), st.integers(0, 6))
def test_any_tree_keeps_budgets_and_grades(made: Made, spare: int) -> None:
    slots = len(made.at)
    try:
        tree = laid(made, spare)
    except NoRoomOnBus:
        assert slots + spare + 4 + 2 > LAST_BUS
        event("no room")
        return
    event(tree.note or "whole")
    indexes = [c.index for c in tree.controllers]
    assert indexes == list(range(len(indexes)))
    assert len(indexes) <= LAST_BUS + 1
    xml = skeleton(tree)
    drawn = Tree(xml)
    assert drawn.numbered() == {index: index for index in indexes}
    assert len(set(tree.addresses.values())) == len(tree.addresses) == slots
    pci = {d["address"]: d for d in made.pci}
    cells = {address: pci[address]["numa_node"] for address in tree.addresses}
    for a in tree.addresses:
        for b in tree.addresses:
            if tree.note is None and a < b:
                want = host_grade(pci, a, b)
                if want in ("PIX", "PXB") or None not in (cells[a], cells[b]):
                    assert drawn.grade(a, b) == merged("PHB" if cells[a] == cells[b] and want == "SYS" else want)


def skeleton(tree: Planned) -> str:
    """A tree as the part of domain XML that the oracle reads."""
    root = etree.Element("domain")
    devices = etree.SubElement(root, "devices")
    for c in tree.controllers:
        element = etree.SubElement(devices, "controller", type="pci", index=str(c.index), model=c.model)
        if c.bus_nr is not None:
            etree.SubElement(etree.SubElement(element, "target", busNr=str(c.bus_nr)), "node").text = str(c.node)
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


# --- firmware --------------------------------------------------------------------------------------------------------

FIRMWARE = {"bios": (), "efi": ("-drive", "if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd")}
DRIVERS = {
    "pcie-root-port": "pcie-root-port",
    "pcie-switch-upstream-port": "x3130-upstream",
    "pcie-switch-downstream-port": "xio3130-downstream",
}


def qemu_options(plan: Plan) -> Iterator[str]:
    """QEMU's options for the tree of a planned guest, with a harmless device in place of each passed one."""
    guest = only(plan)
    for cell in guest.cells:
        yield from ("-object", f"memory-backend-ram,id=m{cell.id},size=256M")
        yield from ("-numa", f"node,nodeid={cell.id},cpus={cell.id},memdev=m{cell.id}")
    for c in guest.controllers[1:]:
        bus = f"bus=pci{'e' if c.bus == 0 else ''}.{c.bus},addr={c.slot:#x}.{c.function},multifunction=on"
        if c.model == "pcie-expander-bus":
            yield from (
                "-device",
                f"pxb-pcie,id=pci.{c.index},bus=pcie.0,addr={c.slot:#x},bus_nr={c.bus_nr},numa_node={c.node}",
            )
        elif c.model == "pcie-switch-upstream-port":
            yield from ("-device", f"x3130-upstream,id=pci.{c.index},{bus}")
        else:
            yield from ("-device", f"{DRIVERS[c.model]},id=pci.{c.index},{bus},chassis={c.chassis},hotplug=off")
    for n, device in enumerate(guest.devices):
        bus_number = int(device.guest_address.split(":")[1], 16)
        yield from ("-device", f"virtio-rng-pci,id=passed-{n},bus=pci.{bus_number},addr=0")


def numbered_by(firmware: str, plan: Plan) -> dict[str, str]:
    """The address of each device, by its place in the plan, as firmware has left it in QEMU's registers."""
    cells = len(only(plan).cells)
    argv = (
        "qemu-system-x86_64",
        "-M",
        "q35",
        "-accel",
        "tcg",
        "-m",
        str(256 * cells),
        "-smp",
        str(cells),
        "-nodefaults",
    )
    monitor = ("-display", "none", "-qmp", "stdio", *FIRMWARE[firmware])
    deadline = time.monotonic() + 300
    with subprocess.Popen([*argv, *monitor, *qemu_options(plan)], stdin=-1, stdout=-1, text=True) as qemu:
        try:
            found: dict[str, str] = {}
            before: dict[str, str] = {}
            ask(qemu, "qmp_capabilities")
            while (len(found) < len(only(plan).devices) or found != before) and time.monotonic() < deadline:
                time.sleep(0.5)
                before = found
                functions = [f for bus in ask(qemu, "query-pci") for f in functions_below(bus["devices"])]
                named = {f["qdev_id"]: f"0000:{f['bus']:02x}:{f['slot']:02x}.{f['function']}" for f in functions}
                found = {name: at for name, at in named.items() if name.startswith("passed-")}
        finally:
            qemu.kill()
    return found


def ask(qemu: subprocess.Popen[str], command: str) -> Any:
    """The answer to a command of QEMU's monitor; events and the greeting are passed over."""
    assert qemu.stdin
    assert qemu.stdout
    qemu.stdin.write(json.dumps({"execute": command}) + "\n")
    qemu.stdin.flush()
    for line in qemu.stdout:
        answer = json.loads(line)
        assert "error" not in answer, answer
        if "return" in answer:
            return answer["return"]
    raise AssertionError("QEMU ended")


def functions_below(functions: Any) -> Iterator[Any]:
    for function in functions:
        yield function
        yield from functions_below(function.get("pci_bridge", {}).get("devices", ()))


@pytest.mark.parametrize("firmware", FIRMWARE)
def test_firmware_gives_each_device_the_address_of_the_plan(firmware: str) -> None:
    """Two cells, cascaded switches, root ports of their own, a device of no cell: what decides the numbers."""
    cascade = Hub((Hub((gpu("a"), nic("b"))), Hub((gpu("c"), nic("d"))), nic("e")))
    roots = [Root((cascade, gpu("f")), 0), Root((Hub((gpu("g"), nic("h"))), nic("i")), 1), Root((nic("j"),), None)]
    plan = everything(Made(roots, nodes=2), accelerator="tcg", vcpus=4)
    assert len(only(plan).devices) == 10
    assert numbered_by(firmware, plan) == {
        f"passed-{n}": device.guest_address for n, device in enumerate(only(plan).devices)
    }


# --- libvirt ---------------------------------------------------------------------------------------------------------

SHAPES = {
    "one": lambda: Made([Root((Hub((gpu("g"), nic("n"))),))], nodes=1),
    "cascade": lambda: Made([Root((Hub((Hub((gpu("g"), nic("n"))), Hub((nic("m"),)))),))], nodes=1),
    "cells": lambda: Made([Root((Hub((gpu(f"g{n}"), nic(f"n{n}"))),), n) for n in range(4)], nodes=4),
    "unknown": lambda: Made([Root((Hub((gpu("g"), nic("n"))),), None)], nodes=1),
    "many": lambda: Made([Root((Hub(tuple(nic(f"n{n}") for n in range(36))), gpu("g")))], nodes=1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_libvirt_takes_every_tree(libvirtd: Libvirtd, name: str) -> None:
    guest = f"tree-{name}"
    plan = everything(SHAPES[name](), accelerator="tcg", vcpus=8, name=guest)
    libvirtd.virsh("define", "--validate", libvirtd.file(f"{guest}.xml", domain_xml(plan, guest)))
    argv = libvirtd.argv(_on_this_machine(plan))
    devices = {device["id"]: device for device in argv.parsed("-device")}
    expanders = {d["bus_nr"]: d["numa_node"] for d in devices.values() if d["driver"] == "pxb-pcie"}
    assert expanders == {c.bus_nr: c.node for c in only(plan).controllers if c.bus_nr is not None}
    for device in only(plan).devices:
        found = next(d for d in devices.values() if d.get("host") == device.address)
        assert found["bus"] == f"pci.{int(device.guest_address.split(':')[1], 16)}"
    switches = [d for d in devices.values() if d["driver"] == "x3130-upstream"]
    assert len(switches) == sum(c.model == "pcie-switch-upstream-port" for c in only(plan).controllers)


def _on_this_machine(plan: Plan) -> str:
    xml = domain_xml(plan, only(plan).name)
    for cell in only(plan).cells:
        xml = xml.replace(f"nodeset='{cell.host_nodes}'", "nodeset='0'")
    nodes = str(parse_cpus(",".join(cell.host_nodes for cell in only(plan).cells)))
    return xml.replace(f"nodeset='{nodes}'", "nodeset='0'")


def test_an_annotated_switch_says_whose_it_is() -> None:
    plan = everything(SHAPES["one"](), vcpus=8)
    (switch,) = [c.host for c in only(plan).controllers if c.host is not None]
    assert f"<!-- the host's switch {switch}: " in domain_xml(plan, "g", annotate=True)


@pytest.mark.parametrize("name", SHAPES)
def test_the_critic_finds_nothing_in_the_tree(name: str) -> None:
    made = SHAPES[name]()
    host = Host.from_json(made.text())
    found = criticise(host, domain_xml(everything(made, vcpus=8), "g"), where="g.xml")
    assert [f.text for f in found if "controller" in f.where or "bus number" in f.text] == []


def test_the_critic_finds_ports_that_have_no_bus_number() -> None:
    made = SHAPES["one"]()
    host = Host.from_json(made.text())
    plan = everything(made, vcpus=8)
    xml = domain_xml(plan, "g")
    last = only(plan).controllers[-1].index
    more = (
        f"<controller type='pci' index='{last + 1}' model='pcie-root-port'><target chassis='99' port='0x99'/>"
        "<address type='pci' domain='0x0000' bus='0x00' slot='0x10' function='0x0'/></controller>"
    )
    found = criticise(host, xml.replace("<serial ", f"{more}<serial ", 1), where="g.xml")
    first = next(c.bus_nr for c in only(plan).controllers if c.bus_nr is not None)
    assert [(f.level, f.text) for f in found if "bus numbers" in f.text] == [
        (
            "error",
            f"{first} ports below pcie.0 need bus numbers up to {first}, but an expander begins at {first}: the "
            "guest's firmware cannot reach all devices",
        )
    ]
