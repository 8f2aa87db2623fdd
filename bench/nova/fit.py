"""Nova's placement of guest streams: a line of JSON in is a stream, a line out what became of its guests.

Runs in the environment of `requirements.txt`, as a child of `bench/online.py`, and imports nothing of hosttune. Each
guest is a flavour with dedicated CPUs, siblings preferred; its cells come from Nova's own `numa_get_constraints`, its
place from `numa_fit_instance_to_host`, and the host's usage is updated as Nova's compute service does it
(`numa_usage_from_instance_numa`). Timed is the fit alone.
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
from nova.virt import hardware  # type: ignore[import-not-found]  # noqa: E402

Json = dict[str, Any]
SMALL_PAGE_KB = 4


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
                pinned_cpus=set(),
                siblings=[set(core) for core in node["cores"]],
                mempages=[pages],
                socket=node["id"],
            )
        )
    return objects.NUMATopology(cells=cells)


def instance_topology(guest: Json) -> Any:
    """The cells of a guest, as Nova cuts its flavour."""
    specs = {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "prefer", "hw:numa_nodes": str(guest["cells"])}
    flavour = objects.Flavor(vcpus=guest["vcpus"], memory_mb=guest["memory_mib"], extra_specs=specs)
    image = objects.ImageMeta.from_dict({"properties": {}})
    return hardware.numa_get_constraints(flavour, image)


def play(stream: Json) -> list[Json]:
    """Place the guests of a stream in turn: the CPUs of each in vCPU order (null: refused), and seconds."""
    packing = stream["mode"] == "pack"
    nova.conf.CONF.set_override("packing_host_numa_cells_allocation_strategy", packing, group="compute")
    topology = host_topology(stream["host"])
    placed = []
    for guest in stream["guests"]:
        wanted = instance_topology(guest)
        start = time.perf_counter()
        found = hardware.numa_fit_instance_to_host(topology, wanted, {})
        seconds = time.perf_counter() - start
        cpus = None
        if found is not None:
            topology = hardware.numa_usage_from_instance_numa(topology, found)
            pins = {vcpu: cpu for cell in found.cells for vcpu, cpu in cell.cpu_pinning.items()}
            cpus = [pins[vcpu] for vcpu in sorted(pins)]
        placed.append({"cpus": cpus, "seconds": seconds})
    return placed


def main() -> None:
    """Answer streams until the input ends."""
    objects.register_all()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(play(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
