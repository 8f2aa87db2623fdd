"""Hosts on which Nova's fit answers wrongly, and what hosttune answers.

Distances: two cells on four nodes of which {0,1} and {2,3} are near pairs; Nova's fit knows no distances. Pins: after
it has refused nodes for their devices, Nova's fit takes up CPUs that it had chosen on another node (its cache of what
fits is keyed on an id that the fit itself changes).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from peer import Arrival, Json, Nova, nova_host
from rows import Row

import hosttune
from hosttune.model.values import parse_cpus

NEAR, FAR = 12, 32
NEAR_PAIRS = ((10, NEAR, FAR, FAR), (NEAR, 10, FAR, FAR), (FAR, FAR, 10, NEAR), (FAR, FAR, NEAR, 10))
# Node and kind (a PCI product id) of each device; the guest asks for one of each of the first two kinds.
DEVICES = ((3, "2337"), (3, "2335"), (2, "2336"), (1, "2337"), (1, "2337"), (0, "2335"))
WANTED = ("2335", "2336")
MEMORY_MIB = 2048


def answers(peer: Nova) -> list[Row]:
    """One row a question."""
    return [*near_pair(peer), *pins(peer)]


def near_pair(peer: Nova) -> list[Row]:
    """Node 1 is nearly full: the only near pair left is nodes 2 and 3."""
    from planhosts import Held, Shape, build_host

    held = Held(pins=(4, 5, 6), memory_bytes=1 << 30)
    host = build_host(Shape(nodes=4, cores_per_node=4, threads=1, distances=NEAR_PAIRS, guests=(held,)))
    guest = {"vcpus": 8, "cells": 2, "memory_mib": MEMORY_MIB}
    theirs = peer.place("spread", nova_host(host), [guest])[0]
    ours = decide(host, guest)
    found = [NEAR_PAIRS[a.cells[0][0]][a.cells[1][0]] for a in (theirs, ours)]
    what = "distance between the cells of a guest where a near pair is free: Nova, hosttune"
    return [Row(what, f"{found[0]}, {found[1]}", f"{NEAR}", found[1] == NEAR)]


def pins(peer: Nova) -> list[Row]:
    """Two cells, two devices: each cell's CPUs must be those of the node that it is said to be on."""
    from planhosts import Card, Shape, build_host

    cards = [Card(f"0000:{0x11 * (i + 1):02x}:00.0", node, group=i) for i, (node, _) in enumerate(DEVICES)]
    host = build_host(Shape(nodes=4, cores_per_node=4, threads=1, cards=cards))
    devices: list[Json] = [
        {"address": card.address, "node": node, "kind": kind} for card, (node, kind) in zip(cards, DEVICES, strict=True)
    ]
    guest = {"vcpus": 4, "cells": 2, "memory_mib": MEMORY_MIB, "kinds": WANTED}
    theirs = peer.place("spread", {**nova_host(host), "devices": devices}, [guest])[0]
    gpus = [next(device["address"] for device in devices if device["kind"] == kind) for kind in WANTED]
    ours = decide(host, guest, gpus)
    wrong = [astray(host, arrival) for arrival in (theirs, ours)]
    what = "cells whose CPUs are not on the node that the plan says, two cells with two devices: Nova, hosttune"
    return [Row(what, f"{wrong[0]}, {wrong[1]}", "0", bool(ours.cells) and wrong[1] == 0)]


def astray(host: Json, arrival: Arrival) -> int:
    """Cells with CPUs of another node than theirs."""
    node_of = {cpu["id"]: cpu["numa_node"] for cpu in host["cpus"]}
    return sum(any(node_of[cpu] != node for cpu in cpus) for node, cpus in arrival.cells)


def decide(host: Json, guest: Json, gpus: Sequence[str] = ()) -> Arrival:
    """hosttune's answer, in Nova's child's form."""
    size = {"vcpus": guest["vcpus"], "memory": f"{guest['memory_mib']}MiB", "numa": guest["cells"]}
    wanted: dict[str, Any] = {"name": "guest", **size, "gpus": list(gpus), "hugepages": "none"}
    reserve = {"cores_per_node": 0, "memory_per_node": 0}
    intent = {"version": 1, "profile": "none", "reserve": reserve, "guests": [wanted]}
    plan = hosttune.plan(hosttune.Host.from_json(json.dumps(host)), hosttune.Intent.from_json(json.dumps(intent)))
    if not plan.guests:
        return Arrival(None, 0)
    planned = plan.guests[0]
    cpu_of = {pin.vcpu: next(iter(parse_cpus(pin.cpus))) for pin in planned.vcpu_pins}
    cells = tuple(
        (int(cell.host_nodes), tuple(cpu_of[vcpu] for vcpu in sorted(parse_cpus(cell.vcpus)))) for cell in planned.cells
    )
    return Arrival(tuple(cpu_of[vcpu] for vcpu in sorted(cpu_of)), 0, cells)
