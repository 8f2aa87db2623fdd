"""The guest's own PCIe tree: bus numbers, addresses that firmware gives, XML that libvirt takes, any tree at all."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from domain_faults import criticise
from domain_shapes import TWO_CELLS, cells_of, changed, plan_of
from guest_tree_oracle import Nccl, Tree, host_grade, merged
from guestplans import everything, gpu, laid, nic, only, skeleton, witnesses
from guesttrees import Hub, Leaf, Made, NoBusLeftError, Root
from hypothesis import HealthCheck, event, given, reject, settings
from hypothesis import strategies as st
from libvirtd import Libvirtd, libvirtd
from sweeps import examples
from xmledits import edited

from hosttune.domain.writer import domain_xml
from hosttune.guest import guest_files
from hosttune.guest.nccl import FILE
from hosttune.inventory.devices import read_catalogue
from hosttune.model.host import Host
from hosttune.model.plan import Device, Plan
from hosttune.planning.pcie.tree import LAST_BUS, NoRoomOnBus, with_host_places

__all__ = ["libvirtd"]

# --- budgets ---------------------------------------------------------------------------------------------------------


def slots_under(count: int, *, nested: int = 0) -> Made:
    """`count` GPUs, each with a NIC below a switch of its own, and these below `nested` outer ones in pairs."""
    hubs: tuple[Leaf | Hub, ...] = tuple(Hub((gpu(f"g{n}"), nic(f"n{n}"))) for n in range(count))
    for _ in range(nested):
        hubs = tuple(Hub(hubs[n : n + 2]) for n in range(0, len(hubs), 2))
    made = [Root((hub,), n % 4, domain=n) for n, hub in enumerate(hubs)]
    return Made(made, nodes=4)


def test_bus_numbers_run_out_level_by_level() -> None:
    one = "the host bridges of each cell are one"
    assert laid(slots_under(28)).note is None  # pcie.0 has 29 slots: 28 expanders, and 4 spare ports in the last
    assert laid(slots_under(29)).note == one
    assert laid(slots_under(60)).note == one  # 60 x (port, switch, two ports) + 4 expanders + 4 spare ports
    assert laid(slots_under(62)).note == f"{one}, and its PCIe switches are left out"
    assert laid(slots_under(48, nested=1)).note == one
    assert laid(slots_under(52, nested=1)).note == f"{one}, and switches below other switches are left out"
    assert laid(slots_under(123)).note == f"{one}, and its PCIe switches are left out"
    with pytest.raises(NoRoomOnBus, match="need more than 255 bus numbers"):
        laid(slots_under(124))


def test_a_flatter_tree_is_said_and_nccl_still_sees_the_switches() -> None:
    made = slots_under(63)
    plan = everything(made, numa=4, vcpus=16, memory="16GiB")
    assert [f.level for f in plan.findings if "its PCIe switches are left out" in f.text] == ["warn"]
    tree, nccl = witnesses(plan)
    assert tree.grade(made.at["g0"], made.at["n0"]) == "PHB"
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
    try:
        return Made(roots, nodes=4)
    except NoBusLeftError:
        reject()


@settings(
    max_examples=examples(16, full=400),
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
                    assert drawn.grade(a, b) == want


@settings(
    max_examples=examples(16, full=400),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(hosts_at_random())
def test_nccls_file_of_any_tree_keeps_every_grade(made: Made) -> None:
    """Also where the guest's own tree had to be flatter."""
    host = Host.from_json(made.text())
    catalogue = read_catalogue(host)
    try:
        tree = laid(made)
    except NoRoomOnBus:
        return
    functions = {d["address"]: d for d in made.pci}
    kinds = {made.at[name]: kind for name, kind in made.kinds.items()}
    devices = with_host_places(
        catalogue,
        tuple(
            Device(
                address=address,
                kind=kinds[address],
                guest_cell=functions[address]["numa_node"],
                guest_address=at,
                identity=f"{address} {functions[address]['vendor_id']}:{functions[address]['device_id']}",
                host_node=functions[address]["numa_node"],
            )
            for address, at in tree.addresses.items()
        ),
    )
    guest = changed(TWO_CELLS, name="g", cells=cells_of(4, 4), controllers=tree.controllers, devices=devices)
    text = guest_files(plan_of(guest), "g").bundle.get(FILE)
    assert (text is None) == ("gpu" not in kinds.values())
    shown = [address for address, kind in kinds.items() if kind != "nvme"]
    nccl = Nccl(text) if text else None
    for a in shown if nccl else ():
        for b in shown:
            nodes = functions[a]["numa_node"], functions[b]["numa_node"]
            want = merged(host_grade(functions, a, b))
            if nccl and a != b and (want in ("PIX", "PXB") or None not in nodes):
                want = "CPU" if want == "SYS" and nodes[0] == nodes[1] else want
                assert nccl.grade(tree.addresses[a], tree.addresses[b]) == want


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
                f"pxb-pcie,id=pci.{c.index},bus=pcie.0,addr={c.slot:#x},bus_nr={c.bus_nr}"
                + ("" if c.node is None else f",numa_node={c.node}"),
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
    """Two host bridges a cell, cascaded switches, own root ports, devices of no cell: what decides the numbers."""
    cascade = Hub((Hub((gpu("a"), nic("b"))), Hub((gpu("c"), nic("d"))), nic("e")))
    roots = [Root((cascade, gpu("f")), 0), Root((Hub((gpu("g"), nic("h"))), nic("i")), 1)]
    roots += [Root((nic("k"),), 0), Root((nic("l"),), 1), Root((nic("j"),), None), Root((nic("m"),), None)]
    plan = everything(Made(roots, nodes=2), accelerator="tcg", vcpus=4)
    assert len(only(plan).devices) == 13
    assert numbered_by(firmware, plan) == {
        f"passed-{n}": device.guest_address for n, device in enumerate(only(plan).devices)
    }


# --- libvirt ---------------------------------------------------------------------------------------------------------

SHAPES = {
    "one": lambda: Made([Root((Hub((gpu("g"), nic("n"))),))], nodes=1),
    "cascade": lambda: Made([Root((Hub((Hub((gpu("g"), nic("n"))), Hub((nic("m"),)))),))], nodes=1),
    "cells": lambda: Made([Root((Hub((gpu(f"g{n}"), nic(f"n{n}"))),), n) for n in range(4)], nodes=4),
    "unknown": lambda: Made([Root((Hub((gpu("g"), nic("n"))),), None), Root((nic("m"),), None)], nodes=1),
    "pair": lambda: Made([Root((Hub((gpu("g"), gpu("h"))),)), Root((gpu("i"),))], nodes=1),
    "many": lambda: Made([Root((Hub(tuple(nic(f"n{n}") for n in range(36))), gpu("g")))], nodes=1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_libvirt_takes_every_tree(libvirtd: Libvirtd, name: str) -> None:
    guest = f"tree-{name}"
    plan = everything(SHAPES[name](), accelerator="tcg", vcpus=8, name=guest)
    libvirtd.virsh("define", "--validate", libvirtd.file(f"{guest}.xml", domain_xml(plan, guest)))
    argv = libvirtd.argv(_on_this_machine(plan))
    devices = {device["id"]: device for device in argv.parsed("-device") if "id" in device}
    expanders = {d["bus_nr"]: d.get("numa_node") for d in devices.values() if d["driver"] == "pxb-pcie"}
    assert expanders == {c.bus_nr: c.node for c in only(plan).controllers if c.bus_nr is not None}
    for device in only(plan).devices:
        found = next(d for d in devices.values() if d.get("host") == device.address)
        assert found["bus"] == f"pci.{int(device.guest_address.split(':')[1], 16)}"
    cliques = {d["host"]: d["x-nv-gpudirect-clique"] for d in devices.values() if "x-nv-gpudirect-clique" in d}
    assert cliques == {d.address: d.clique for d in only(plan).devices if d.clique is not None}
    assert bool(cliques) == (name == "pair")
    switches = [d for d in devices.values() if d["driver"] == "x3130-upstream"]
    assert len(switches) == sum(c.model == "pcie-switch-upstream-port" for c in only(plan).controllers)


def _on_this_machine(plan: Plan) -> str:
    return edited(domain_xml(plan, only(plan).name), "numatune/*", {"nodeset": "0"}, each=True)


def test_an_annotated_switch_says_whose_it_is() -> None:
    plan = everything(SHAPES["one"](), vcpus=8)
    (switch,) = [c.host for c in only(plan).controllers if c.host is not None]
    assert f"<!-- the host's switch {switch}: " in domain_xml(plan, "g", annotate=True)


@pytest.mark.parametrize("name", SHAPES)
def test_the_critic_finds_nothing_in_the_tree(name: str) -> None:
    made = SHAPES[name]()
    host = Host.from_json(made.text())
    found = criticise(host, domain_xml(everything(made, vcpus=8), "g"), where="g.xml")
    assert [f.text for f in found if f.judged and ("controller" in f.where or "bus number" in f.text)] == []


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
    found = criticise(host, edited(xml, "devices", more), where="g.xml")
    first = next(c.bus_nr for c in only(plan).controllers if c.bus_nr is not None)
    assert [(f.level, f.text) for f in found if "bus numbers" in f.text] == [
        (
            "error",
            f"{first} ports below pcie.0 need bus numbers up to {first}, but an expander begins at {first}: the "
            "guest's firmware cannot reach all devices",
        )
    ]
