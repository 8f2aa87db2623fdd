"""Nova's placement of guest streams: a line of JSON in is a stream, a line out what became of its guests.

Runs in the environment of `requirements.txt`, as a child of `bench/online.py`, and imports nothing of hosttune. Each
guest is a flavour with dedicated CPUs, siblings preferred; its cells come from Nova's own `numa_get_constraints`, its
place from `numa_fit_instance_to_host`, and the host's usage is updated as Nova's compute service does it
(`numa_usage_from_instance_numa`). Timed is the fit alone. A host may have PCI devices of named kinds, and a guest ask
for one of each of some kinds, on its own nodes (policy `required`).
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from typing import Any

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

import nova.conf  # type: ignore[import-not-found]  # noqa: E402
from nova import objects  # type: ignore[attr-defined]  # noqa: E402
from nova.pci import stats, whitelist  # type: ignore[import-not-found]  # noqa: E402
from nova.virt import hardware  # type: ignore[import-not-found]  # noqa: E402

Json = dict[str, Any]
SMALL_PAGE_KB = 4
VENDOR = "10de"


def host_topology(host: Json) -> Any:
    """Nova's view of a host whose nodes have `cpus`, `cores` (siblings) and `memory_mib`: all CPUs dedicated."""
    cells = []
    for node in host["nodes"]:
        pages = objects.NUMAPagesTopology(
            size_kb=SMALL_PAGE_KB, total=node["memory_mib"] * 1024 // SMALL_PAGE_KB, used=0
        )
        cells.append(
            objects.NUMACell(
                id=node["id"],
                cpuset=set(),
                pcpuset={cpu for core in node["cores"] for cpu in core},
                memory=node["memory_mib"],
                cpu_usage=0,
                memory_usage=0,
                pinned_cpus=set(node.get("in_use", ())),
                siblings=[set(core) for core in node["cores"]],
                mempages=[pages],
                socket=node["id"],
            )
        )
    return objects.NUMATopology(cells=cells)


def pci_stats(host: Json, topology: Any) -> Any:
    """The host's free devices, one pool a kind (its PCI product id) and node; None where there are none."""
    devices = host.get("devices", [])
    if not devices:
        return None
    kinds = sorted({device["kind"] for device in devices})
    rules = [json.dumps({"vendor_id": VENDOR, "product_id": kind}) for kind in kinds]
    pools = stats.PciDeviceStats(topology, dev_filter=whitelist.Whitelist(rules))
    for device in devices:
        place = {"address": device["address"], "numa_node": device["node"], "parent_addr": None, "compute_node_id": 1}
        what = {"vendor_id": VENDOR, "product_id": device["kind"], "dev_type": "type-PCI", "label": device["kind"]}
        pools.add_device(objects.PciDevice(**place, **what, status="available", request_id=None, extra_info={}))
    return pools


def pci_requests(guest: Json) -> list[Any]:
    """One device of each kind that the guest asks for."""
    return [
        objects.InstancePCIRequest(
            count=1,
            spec=[{"vendor_id": VENDOR, "product_id": kind}],
            alias_name=kind,
            request_id=kind,
            numa_policy="required",
        )
        for kind in guest.get("kinds", [])
    ]


def instance_topology(guest: Json) -> Any:
    """The cells of a guest, as Nova cuts its flavour."""
    specs = {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "prefer", "hw:numa_nodes": str(guest["cells"])}
    flavour = objects.Flavor(vcpus=guest["vcpus"], memory_mb=guest["memory_mib"], extra_specs=specs)
    image = objects.ImageMeta.from_dict({"properties": {}})
    return hardware.numa_get_constraints(flavour, image)


def play(stream: Json) -> list[Json]:
    """Place the guests of a stream in turn: node and CPUs (in vCPU order) of each cell (null: refused), and seconds."""
    packing = stream["mode"] == "pack"
    nova.conf.CONF.set_override("packing_host_numa_cells_allocation_strategy", packing, group="compute")
    topology = host_topology(stream["host"])
    pools = pci_stats(stream["host"], topology)
    placed = []
    found = None
    for guest in stream["guests"]:
        topology = hardware.numa_usage_from_instance_numa(topology, found)
        wanted, requests = instance_topology(guest), pci_requests(guest)
        start = time.perf_counter()
        found = hardware.numa_fit_instance_to_host(topology, wanted, None, pci_requests=requests, pci_stats=pools)
        seconds = time.perf_counter() - start
        cells = None
        if found is not None:
            cells = [
                {"node": cell.id, "cpus": [cpu for _, cpu in sorted(cell.cpu_pinning.items())]} for cell in found.cells
            ]
        placed.append({"cells": cells, "seconds": seconds})
    return placed


def main() -> None:
    """Answer streams until the input ends."""
    objects.register_all()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
