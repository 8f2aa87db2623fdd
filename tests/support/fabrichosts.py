"""Hosts with an NVSwitch fabric for tests: documents of HGX boards, and what a Fabric Manager answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planhosts import Card, Held, build_host

from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.planning import plan

Json = dict[str, Any]

# The tables of the Fabric Manager user guide, written down here a second time: partition id -> module ids.
H200 = {
    **{0: {1, 2, 3, 4, 5, 6, 7, 8}, 1: {1, 2, 3, 4}, 2: {5, 6, 7, 8}},
    **{3: {1, 3}, 4: {2, 4}, 5: {5, 7}, 6: {6, 8}},
    **{7: {1}, 8: {2}, 9: {3}, 10: {4}, 11: {5}, 12: {6}, 13: {7}, 14: {8}},
}
B200 = {
    **{1: {1, 2, 3, 4, 5, 6, 7, 8}, 2: {1, 2, 3, 4}, 3: {5, 6, 7, 8}},
    **{4: {1, 2}, 5: {3, 4}, 6: {5, 6}, 7: {7, 8}},
    **{8: {1}, 9: {2}, 10: {3}, 11: {4}, 12: {5}, 13: {6}, 14: {7}, 15: {8}},
}
BUSES = ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")
GPUS = tuple(f"0000:{bus}:00.0" for bus in BUSES)
SWITCHES = tuple(f"0000:{bus}:00.0" for bus in ("83", "84", "85", "86"))
MODULES = dict(zip(GPUS, (2, 4, 1, 3, 7, 5, 6, 8), strict=True))  # of a PowerEdge XE9680, as nvidia-smi -q told them
AT = {module: address for address, module in MODULES.items()}
SMALL = {"vcpus": 2, "memory": "1GiB", "hugepages": "none"}


def listed(table: Mapping[int, Iterable[int]], active: Iterable[int] = ()) -> list[Json]:
    """Partitions as a host document has them."""
    return [
        {"id": number, "module_ids": sorted(modules), "active": number in set(active), "nvlinks": 18}
        for number, modules in table.items()
    ]


def answered(table: Mapping[int, Iterable[int]], active: Iterable[int] = ()) -> str:
    """The same as `fmpm -l` prints it (fmpm.cpp, listPartitions: jsoncpp's styled writer)."""
    member = {"maxNumNvLinks": 18, "numNvLinksAvailable": 18, "nvlinkLineRateMBps": 26562}
    nowhere = {"pciBusId": "00000000:00:00.0", "uuid": ""}
    rows = [
        {
            "gpuInfo": [{**member, **nowhere, "physicalId": module} for module in sorted(modules)],
            "isActive": int(number in set(active)),
            "numGpus": len(list(modules)),
            "partitionId": number,
        }
        for number, modules in table.items()
    ]
    return json.dumps({"maxNumPartitions": 15, "numPartitions": len(rows), "partitionInfo": rows, "version": 16909068})


def board(
    fabric: Json | None,
    modules: Mapping[str, int | None] = MODULES,
    guests: Sequence[Held] = (),
    device_id: str = "2335",
    switches: Sequence[str] = SWITCHES,
    nodes: int = 2,
) -> Json:
    """A host with eight GPUs, as many on each node, and NVSwitches; `fabric` is the document's field."""
    cards = [Card(address, node=i * nodes // 8, group=i) for i, address in enumerate(GPUS)]
    cards += [Card(address, kind="nvswitch", group=20 + i) for i, address in enumerate(switches)]
    host = build_host(cards=cards, cores_per_node=24, guests=guests, nodes=nodes)
    for gpu in host["gpus"]:
        gpu["module_id"] = modules.get(gpu["address"])
    for device in host["pci"]:
        if device["address"] in GPUS:
            device["device_id"] = device_id
    return {**host, "fabric": fabric}


def shared(table: Mapping[int, Iterable[int]] = H200, active: Iterable[int] = (), mode: int = 1) -> Json:
    """The field of a host whose Fabric Manager listed these partitions."""
    return {"mode": mode, "partitions": listed(table, active), "generation": "hopper", "source": "fmpm -l"}


def decide(host: Json, *guests: Json, **settings: object) -> Plan:
    """The plan of small guests on a host; what a guest does not say is small."""
    rows = [{"name": f"g{i}", **SMALL, **guest} for i, guest in enumerate(guests)]
    intent = {"version": 1, "profile": "none", "guests": rows, "settings": settings}
    return plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent)))


def gpus_of(found: Plan, which: int = 0) -> list[str]:
    """The GPUs of a planned guest."""
    return [device.address for device in found.guests[which].devices if device.kind == "gpu"]


def told(found: Plan, level: str) -> list[str]:
    """Findings about the fabric."""
    return [finding.text for finding in found.findings if finding.level == level and finding.where == "Fabric Manager"]
