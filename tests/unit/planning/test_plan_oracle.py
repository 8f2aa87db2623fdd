"""The plan oracle can fail: one right plan, written by hand, and for every check a wrong plan that it names."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from plan_facts import Json
from plan_optimum import Verdict, judge, objective
from plan_oracle import same_bytes, violations
from planhosts import GIB, Card, Held, Shape, build_host, intent_of

# Two nodes of four SMT2 cores, siblings n and n+8: node 0 has CPUs 0-3,8-11, node 1 has 4-7,12-15.
SHAPE = Shape(
    cores_per_node=4,
    llc_cores=2,
    memory_gib=32,
    cards=(
        Card("0000:41:00.0", 1, group=1, bar_bytes=GIB),
        Card("0000:41:00.1", 1, kind="audio", group=1, bar_bytes=GIB),
        Card("0000:51:00.0", 0, group=2, bar_bytes=GIB),
        Card("0000:61:00.0", None, kind="nic", group=3, bar_bytes=GIB),
        Card("0000:71:00.0", 1, vendor="other", group=4, bar_bytes=GIB),
    ),
    guests=(Held(pins=(1, 9), devices=("0000:51:00.0",), memory_bytes=GIB),),
    digest="d1",
)
GPU, AUDIO, HELD, NIC, OTHER = (card.address for card in SHAPE.cards)


def _device(address: str, kind: str, cell: int | None, place: int) -> Json:
    return {
        "address": address,
        "kind": kind,
        "guest_cell": cell,
        "guest_address": f"0000:{place:02x}:00.0",
        "identity": f"id of {address}",
    }


def right() -> tuple[Json, Json, Json]:
    """A host, an intent and a plan that keeps everything: two cells, a GPU with its audio function, a NIC."""
    intent = intent_of(gpus=[GPU], nics=[NIC], vcpus=8, memory="4GiB", numa=2)
    guest = {
        "name": "g",
        "vcpu_pins": [{"vcpu": i, "cpus": str(cpu)} for i, cpu in enumerate([2, 10, 3, 11, 6, 14, 7, 15])],
        "emulator_cpus": "0,8",
        "iothread_cpus": ["4,12"],
        "cells": [
            {"id": 0, "vcpus": "0-3", "memory_bytes": 2 * GIB, "host_nodes": "0"},
            {"id": 1, "vcpus": "4-7", "memory_bytes": 2 * GIB, "host_nodes": "1"},
        ],
        "page_bytes": GIB,
        "devices": [_device(GPU, "gpu", 1, 1), _device(AUDIO, "other", 1, 2), _device(NIC, "nic", None, 3)],
        "mig": [],
        "fabric_partition": None,
        "why": [f"{NIC}: its node is unknown"],
        "topology": {"sockets": 1, "dies": 1, "cores": 4, "threads": 2},
    }
    plan = {
        "schema": "hosttune.plan/v1",
        "host_digest": "d1",
        "intent": intent,
        "housekeeping_cpus": "0,4,8,12",
        "guests": [guest],
        "unplaced": [],
        "actions": [_hugepages(0, 2), _hugepages(1, 2)],
        "findings": [],
    }
    return build_host(SHAPE), intent, plan


def _hugepages(node: int, want: int) -> Json:
    target = f"/sys/devices/system/node/node{node}/hugepages/hugepages-1048576kB/nr_hugepages"
    return {
        "id": f"hugepages:{node}",
        "kind": "hugepages",
        "target": target,
        "want": want,
        "effect": "now",
        "needed": True,
    }


def test_the_right_plan_is_right() -> None:
    assert violations(*right()) == []


Change = Callable[[Json, Json, Json], object]  # host, intent, plan: changed in place


def _guest(plan: Json) -> Json:
    guest: Json = plan["guests"][0]
    return guest


def _pin(plan: Json, *cpus: int) -> None:
    _guest(plan)["vcpu_pins"] = [{"vcpu": i, "cpus": str(cpu)} for i, cpu in enumerate(cpus)]


def _mark(host: Json, cpus: set[int], **facts: Any) -> None:
    for cpu in host["cpus"]:
        if cpu["id"] in cpus:
            cpu.update(facts)


def _one_cell(host: Json, intent: Json, plan: Json, *cpus: int) -> None:
    """One cell on node 1, where the GPU is."""
    intent["guests"][0].update(vcpus=len(cpus), numa="auto")
    _pin(plan, *cpus)
    _guest(plan)["cells"] = [
        {"id": 0, "vcpus": f"0-{len(cpus) - 1}", "memory_bytes": 4 * GIB, "host_nodes": "1"},
    ]
    for device in _guest(plan)["devices"][:2]:
        device["guest_cell"] = 0
    _guest(plan)["emulator_cpus"] = "4,12"
    _guest(plan)["topology"] = {"sockets": 1, "dies": 1, "cores": len(cpus) // 2, "threads": 2}
    plan["actions"] = [_hugepages(1, 4)]


def _second(intent: Json, plan: Json, gib: int) -> None:
    """Another guest with one cell of so many GiB on node 1, where the first has two."""
    intent["guests"].append({**intent["guests"][0], "name": "second"})
    cell = {"id": 0, "vcpus": "0-3", "memory_bytes": gib * GIB, "host_nodes": "1"}
    plan["guests"].append({**_guest(plan), "name": "second", "cells": [cell], "devices": []})


def _odd(host: Json, intent: Json, plan: Json) -> None:
    _one_cell(host, intent, plan, 6, 14, 7)
    _guest(plan)["topology"] = {"sockets": 1, "dies": 1, "cores": 3, "threads": 1}


def _threads_shared(host: Json, intent: Json, plan: Json) -> None:
    _one_cell(host, intent, plan, 6, 14, 5, 13)
    intent["guests"][0]["smt"] = "threads"
    host["guests"][0]["vcpu_pins"] = [{"vcpu": 0, "cpus": "14"}]
    _pin(plan, 6, 5, 13, 7)
    _guest(plan)["topology"] = {"sockets": 1, "dies": 1, "cores": 4, "threads": 1}


def _no_reserve_all_used(host: Json, intent: Json, plan: Json) -> None:
    intent["reserve"] = {"cores_per_node": 0}
    plan["housekeeping_cpus"] = ""
    _mark(host, {1, 9}, allowed=False)
    intent["guests"][0].update(vcpus=14, numa=[{"vcpus": 6, "memory": "2GiB"}, {"vcpus": 8, "memory": "2GiB"}])
    host["guests"] = []
    _pin(plan, 0, 8, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15)
    _guest(plan)["cells"][0]["vcpus"] = "0-5"
    _guest(plan)["cells"][1]["vcpus"] = "6-13"
    _guest(plan)["topology"]["cores"] = 7
    _guest(plan)["iothread_cpus"] = ["0,8"]


def _auto_short(host: Json, intent: Json, plan: Json) -> None:
    _one_cell(host, intent, plan, 6, 14)
    host["guests"] = []
    plan["housekeeping_cpus"] = "0,4,8,12"
    intent["guests"][0].update(vcpus="auto", memory="auto")


CASES: list[tuple[str, Change]] = [
    ("schema", lambda h, i, p: p.update(schema="hosttune.plan/v2")),
    ("host-digest", lambda h, i, p: p.update(host_digest=None)),
    ("guest-once", lambda h, i, p: p["unplaced"].append({"guest": "g", "why": ["full"]})),
    ("unplaced-why", lambda h, i, p: p["unplaced"].append({"guest": "g", "why": []})),
    ("finding-level", lambda h, i, p: p["findings"].append({"level": "fatal", "text": "", "where": ""})),
    ("action-id", lambda h, i, p: p["actions"].append(p["actions"][0])),
    ("action-effect", lambda h, i, p: p["actions"][0].update(effect="later")),
    ("action-needed", lambda h, i, p: p["actions"][0].update(needed=False)),
    ("hypervisor-said", lambda h, i, p: h.update(hypervisor=True)),
    ("pin-one-cpu", lambda h, i, p: _guest(p)["vcpu_pins"][0].update(cpus="2-3")),
    ("cpu-once", lambda h, i, p: _guest(p)["vcpu_pins"][1].update(cpus="2")),
    ("cpu-once", lambda h, i, p: _guest(p)["vcpu_pins"][1].update(cpus="9")),
    ("core-shared", lambda h, i, p: h["guests"][0]["vcpu_pins"].append({"vcpu": 2, "cpus": [14]})),
    ("core-shared-said", _threads_shared),
    ("housekeeping-isolated", lambda h, i, p: _mark(h, {4, 12}, isolated=True)),
    ("housekeeping-online", lambda h, i, p: p.update(housekeeping_cpus="0,4,8,12,99")),
    ("housekeeping-pinned", lambda h, i, p: p.update(housekeeping_cpus="0,6,8")),
    ("housekeeping-exact", lambda h, i, p: p.update(housekeeping_cpus="0,4-5,8,12-13")),
    ("boot-core", lambda h, i, p: _pin(p, 0, 8, 3, 11, 6, 14, 7, 15)),
    ("node-core", lambda h, i, p: _mark(h, {4, 5, 12, 13}, isolated=True)),
    ("vcpus-numbered", lambda h, i, p: _guest(p)["vcpu_pins"][7].update(vcpu=9)),
    ("pin-online", lambda h, i, p: _mark(h, {15}, online=False)),
    ("pin-allowed", lambda h, i, p: _mark(h, {15}, allowed=False)),
    ("vcpus-asked", lambda h, i, p: i["guests"][0].update(vcpus=10)),
    ("whole-cores", lambda h, i, p: _pin(p, 2, 10, 3, 11, 5, 6, 7, 13)),
    ("isolated-first", lambda h, i, p: _mark(h, {5, 13}, isolated=True)),
    ("topology-size", lambda h, i, p: _guest(p)["topology"].update(sockets=2)),
    ("siblings", lambda h, i, p: _pin(p, 2, 3, 10, 11, 6, 14, 7, 15)),
    ("siblings-said", lambda h, i, p: _guest(p)["topology"].update(cores=8, threads=1)),
    ("siblings-said", lambda h, i, p: _guest(p)["topology"].update(cores=2, threads=4)),
    ("threads-one-said", _odd),
    ("helpers-empty", lambda h, i, p: _guest(p).update(emulator_cpus="")),
    ("helpers-online", lambda h, i, p: _guest(p).update(emulator_cpus="0,99")),
    ("helpers-pinned", lambda h, i, p: _guest(p).update(iothread_cpus=["2"])),
    ("helpers-own-said", _no_reserve_all_used),
    ("helpers-isolated", lambda h, i, p: _mark(h, {4, 12}, isolated=True)),
    ("helpers-hidden", lambda h, i, p: _mark(h, {4, 12}, allowed=False)),
    ("helpers-place", lambda h, i, p: _guest(p).update(emulator_cpus="5")),
    ("cells-partition", lambda h, i, p: _guest(p)["cells"][1].update(vcpus="4-6")),
    ("cells-numbered", lambda h, i, p: _guest(p)["cells"][1].update(id=2)),
    ("cells-own-node", lambda h, i, p: _guest(p)["cells"][1].update(host_nodes="0-1")),
    (
        "cells-listed",
        lambda h, i, p: i["guests"][0].update(numa=[{"vcpus": 2, "memory": 1}, {"vcpus": 6, "memory": 1}]),
    ),
    (
        "cells-equal",
        lambda h, i, p: (_guest(p)["cells"][0].update(vcpus="0-1"), _guest(p)["cells"][1].update(vcpus="2-7")),
    ),
    ("cells-count", lambda h, i, p: i["guests"][0].update(numa=3)),
    ("cell-node", lambda h, i, p: _pin(p, 6, 14, 3, 11, 2, 10, 7, 15)),
    ("page-size", lambda h, i, p: i["guests"][0].update(hugepages="2MiB")),
    ("page-size", lambda h, i, p: i["guests"][0].update(hugepages="none")),
    ("whole-pages", lambda h, i, p: _guest(p)["cells"][0].update(memory_bytes=GIB + 4096)),
    ("memory-node", lambda h, i, p: _guest(p)["cells"][1].update(host_nodes="7")),
    ("memory-free", lambda h, i, p: _guest(p)["cells"][0].update(memory_bytes=24 * GIB)),
    ("pages-short", lambda h, i, p: p["actions"].pop()),
    ("pages-short", lambda h, i, p: h["numa_nodes"][1].update(hugepages=[{"size_bytes": GIB, "total": 1, "free": 0}])),
    ("pages-exceed-node", lambda h, i, p: p["actions"][0].update(want=30)),
    ("not-free-now", lambda h, i, p: h["numa_nodes"][1].update(free_bytes=GIB)),
    ("not-reserved", lambda h, i, p: p["actions"][0].update(effect="reboot")),
    ("memory-asked", lambda h, i, p: i["guests"][0].update(memory="6GiB")),
    ("memory-listed", lambda h, i, p: i["guests"][0].update(numa=[{"vcpus": 4, "memory": "3GiB"}] * 2)),
    ("memory-share", lambda h, i, p: (i["guests"][0].pop("memory"), _guest(p)["cells"][0].update(memory_bytes=GIB))),
    ("memory-joint", lambda h, i, p: _second(i, p, 23)),
    ("pages-joint", lambda h, i, p: _second(i, p, 2)),
    ("device-once", lambda h, i, p: _guest(p)["devices"].append(_device(GPU, "gpu", 1, 9))),
    ("device-held", lambda h, i, p: _guest(p)["devices"].append(_device(HELD, "gpu", 0, 9))),
    ("device-exists", lambda h, i, p: _guest(p)["devices"].append(_device("0000:99:00.0", "gpu", 0, 9))),
    ("device-bridge", lambda h, i, p: _guest(p)["devices"].append(_device("0000:00:00.0", "other", 1, 9))),
    ("device-boot-display", lambda h, i, p: [r.update(boot_display=True) for r in h["pci"] if r["address"] == GPU]),
    ("guest-address", lambda h, i, p: _guest(p)["devices"][0].update(guest_address="0000:02:00.0")),
    ("device-identity", lambda h, i, p: _guest(p)["devices"][0].update(identity="")),
    ("binding", lambda h, i, p: [r.update(driver="nvidia") for r in h["pci"] if r["address"] == GPU]),
    ("bars-said", lambda h, i, p: [r.update(bars=None) for r in h["pci"] if r["address"] == GPU]),
    ("fabric-error", lambda h, i, p: h["nvswitches"].append({"address": "0000:91:00.0"})),
    ("affinity-guessed", lambda h, i, p: _guest(p)["devices"][2].update(guest_cell=0)),
    ("affinity-said", lambda h, i, p: _guest(p).update(why=[])),
    ("device-cell", lambda h, i, p: _guest(p)["devices"][0].update(guest_cell=0)),
    ("no-groups-error", lambda h, i, p: [r.update(iommu_group=None) for r in h["pci"]]),
    ("group-whole", lambda h, i, p: _guest(p)["devices"].pop(1)),
    ("group-uninvited", lambda h, i, p: _foreign_member(h, p)),
    ("devices-asked", lambda h, i, p: _guest(p)["devices"].pop(2)),
    ("devices-count", lambda h, i, p: i["guests"][0].update(gpus=2)),
    ("devices-other", lambda h, i, p: _count_takes_other(i, p)),
    ("nearest", lambda h, i, p: _far_nic(h, i, p)),
    ("auto-vcpus", _auto_short),
    ("auto-memory", _auto_short),
    ("fewest-caches", lambda h, i, p: _one_cell(h, i, p, 5, 13, 6, 14)),
]


def _foreign_member(host: Json, plan: Json) -> None:
    """A drive in the GPU's group goes along though nobody named it."""
    row = next(row for row in host["pci"] if row["address"] == GPU)
    host["pci"].append({**row, "address": "0000:81:00.0", "class_code": "010802"})
    _guest(plan)["devices"].append(_device("0000:81:00.0", "nvme", 1, 9))


def _far_nic(host: Json, intent: Json, plan: Json) -> None:
    """The NIC that the plan takes is on node 0; a free one is on the node of the GPU and the guest."""
    _one_cell(host, intent, plan, 6, 14, 7, 15)
    row = next(row for row in host["pci"] if row["address"] == NIC)
    row["numa_node"] = 0
    host["pci"].append({**row, "address": "0000:81:00.0", "numa_node": 1, "iommu_group": 9})
    host["nics"].append({"address": "0000:81:00.0"})
    intent["guests"][0]["nics"] = 1


def _count_takes_other(intent: Json, plan: Json) -> None:
    intent["guests"][0]["gpus"] = 2
    _guest(plan)["devices"].append(_device(OTHER, "gpu", 1, 9))


@pytest.mark.parametrize(("name", "change"), CASES, ids=[f"{n}-{name}" for n, (name, _) in enumerate(CASES)])
def test_a_wrong_plan_is_caught_by_the_named_check(name: str, change: Change) -> None:
    host, intent, plan = copy.deepcopy(right())
    change(host, intent, plan)
    assert name in {line.partition(":")[0] for line in violations(host, intent, plan)}


def test_every_check_is_proven_able_to_fail() -> None:
    files = ("plan_oracle.py", "plan_device_oracle.py", "plan_joint_oracle.py")
    source = "".join((Path(__file__).parents[2] / "support" / name).read_text() for name in files)
    assert set(re.findall(r'(?:yield |append\()f?"([a-z-]+):', source)) == {name for name, _ in CASES}


def test_bytes_that_differ_are_named() -> None:
    assert same_bytes('{"a": 1, "b": 2}', '{"a": 1, "b": 3}') == ["determinism: b differs"]
    assert same_bytes('{"a": 1}', '{"a":1}') == ["determinism: bytes"]
    assert same_bytes("{}", "{}") == []


# --- the exhaustive oracle, on examples worked out by hand ---------------------------------------------------


def test_objective_of_the_right_plan() -> None:
    host, _, plan = right()
    # GPU and audio function on node 1: 2 × (½·21 + ½·10); the NIC's node is unknown: 0; the pair of cells: 21.
    assert objective(host, plan["guests"][0]) == Fraction(2 * 31, 2) + 21


def _cards(*nodes: int | None) -> list[Card]:
    return [Card(f"0000:{0x21 + 16 * i:02x}:00.0", node, group=i) for i, node in enumerate(nodes)]


NEAR_PAIRS = [[10, 12, 32, 32], [12, 10, 32, 32], [32, 32, 10, 12], [32, 32, 12, 10]]


@pytest.mark.parametrize(
    ("shape", "guest", "verdict"),
    [
        # one GPU, room on its node: 10
        ({"cards": _cards(1)}, {"gpus": 1, "vcpus": 4, "memory": "2GiB"}, Verdict(True, frozenset({Fraction(10)}))),
        # a count prefers two GPUs of one node: 10 + 10, against 31 + 21 with one on each
        (
            {"cards": _cards(0, 1, 1)},
            {"gpus": 2, "vcpus": 4, "memory": "2GiB"},
            Verdict(True, frozenset({Fraction(20)})),
        ),
        # one cell on each node that holds one of its GPUs: 2 × 15.5 + 21
        (
            {"cards": _cards(0, 1)},
            {"gpus": 2, "vcpus": 4, "memory": "2GiB"},
            Verdict(True, frozenset({Fraction(52)})),
        ),
        # two cells without devices go to a near pair
        (
            {"nodes": 4, "distances": NEAR_PAIRS},
            {"gpus": 0, "vcpus": 4, "memory": "2GiB", "numa": 2},
            Verdict(True, frozenset({Fraction(12)})),
        ),
        # 14 free CPUs a node (8 cores, one reserved): 16 need two cells, 30 fit nowhere
        ({}, {"gpus": 0, "vcpus": 16, "memory": "2GiB"}, Verdict(True, frozenset({Fraction(21)}))),
        ({}, {"gpus": 0, "vcpus": 30, "memory": "2GiB"}, Verdict(False)),
        # 64 GiB less 8 a node: 56 fit on one, 57 need two cells and cannot be placed as 1 GiB pages in equal halves
        ({}, {"gpus": 0, "vcpus": 4, "memory": "56GiB"}, Verdict(True, frozenset({Fraction(0)}))),
        ({}, {"gpus": 0, "vcpus": 4, "memory": "113GiB"}, Verdict(False)),
        # a GPU that an existing guest keeps
        (
            {"cards": _cards(0), "guests": [Held(devices=("0000:21:00.0",))]},
            {"gpus": 1, "vcpus": 4, "memory": "2GiB"},
            Verdict(False),
        ),
        # unknown node: one cell, adds nothing
        ({"cards": _cards(None)}, {"gpus": 1, "vcpus": 4, "memory": "2GiB"}, Verdict(True, frozenset({Fraction(0)}))),
        # auto with room
        (
            {"cards": _cards(1)},
            {"gpus": 1, "vcpus": "auto", "memory": "auto"},
            Verdict(True, frozenset({Fraction(10)})),
        ),
    ],
)
def test_the_optimum_of_hand_made_cases(shape: dict[str, Any], guest: dict[str, Any], verdict: Verdict) -> None:
    assert judge(build_host(**shape), intent_of(**guest)) == verdict
