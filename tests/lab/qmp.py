"""What QEMU itself says of guests that somebody started by hand: an oracle by QMP. Imports nothing of hosttune."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from lab import facts
from lab.machine import LabMachine

# Run inside: {name: {command: answer}} and the CPUs of each thread that an answer names.
ASK = r"""
import json, re, socket, sys
found = {}
for name in sys.argv[1:]:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(f"/run/{name}.qmp")
        lines = link.makefile("rw")
        lines.readline()
        said = {}
        def ask(command, **arguments):
            lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
            lines.flush()
            while True:
                answer = json.loads(lines.readline())
                if "event" not in answer:
                    return answer.get("return", answer)
        ask("qmp_capabilities")
        for command in ("query-uuid", "query-cpus-fast", "query-iothreads", "query-memdev",
                        "query-memory-size-summary", "query-named-block-nodes"):
            said[command] = ask(command)
        said["type"] = ask("qom-get", path="/machine", property="type")
        said["devices"] = {}
        for device in ask("qom-list", path="/machine/peripheral"):
            path = "/machine/peripheral/" + device["name"]
            said["devices"][device["name"]] = {
                key: ask("qom-get", path=path, property=key) for key in ("type", "addr", "parent_bus", "bus_nr", "host")
            }
    process = int(open(f"/run/{name}.pid").read())
    threads = [one["thread-id"] for key in ("query-cpus-fast", "query-iothreads") for one in said[key]]
    said["pid"] = process
    said["cpus"] = {thread: re.search(r"Cpus_allowed_list:\s*(\S+)", open(f"/proc/{thread}/status").read())[1]
                    for thread in (process, *threads)}
    found[name] = said
print(json.dumps(found))
"""
_POLICIES = {"bind": "strict", "preferred": "preferred", "interleave": "interleave"}


class Seen(NamedTuple):
    """A guest's facts. CPUs and nodes are lists as the kernel writes them, sizes bytes.

    `tree`: the types of devices that have a name, by their path from a root bus down ("00/02.0/00.0").
    """

    uuid: str | None
    machine: str
    vcpus: int
    pins: dict[int, str]
    emulator: str
    iothreads: list[str]
    memory: int
    page_bytes: set[int]
    cells: dict[int, tuple[set[int], int | None]]
    bound: dict[str, tuple[str, str]]
    tree: dict[str, str]
    passed: str | None
    disks: set[str]


def seen(machine: LabMachine, names: list[str]) -> dict[str, Seen]:
    """Ask each guest; its socket is /run/NAME.qmp."""
    answers = json.loads(machine.shell(f"python3 - {' '.join(names)}", stdin=ASK))
    return {name: _seen(machine, said) for name, said in answers.items()}


def _seen(machine: LabMachine, said: dict[str, Any]) -> Seen:
    uuid = said["query-uuid"]["UUID"]
    cpus, processors, devices = said["cpus"], said["query-cpus-fast"], said["devices"]
    memory = {one.get("id", ""): one for one in said["query-memdev"]}
    cells: dict[int, tuple[set[int], int | None]] = {}
    for one in processors:
        if (node := one["props"].get("node-id")) is not None:
            cells.setdefault(node, (set(), memory.get(f"ram{node}", {}).get("size")))[0].add(one["cpu-index"])
    return Seen(
        uuid if uuid.strip("0-") else None,
        said["type"].removesuffix("-machine"),
        len(processors),
        {one["cpu-index"]: cpus[str(one["thread-id"])] for one in processors},
        cpus[str(said["pid"])],
        [cpus[str(one["thread-id"])] for one in said["query-iothreads"]],
        said["query-memory-size-summary"]["base-memory"],
        {one["kernelpagesize_kB"] << 10 for one in facts.huge_pages_of(machine, said["pid"])},
        cells,
        {
            name: (_POLICIES[one["policy"]], ",".join(map(str, one["host-nodes"])))
            for name, one in memory.items()
            if one["policy"] in _POLICIES and one["host-nodes"]
        },
        {_path(devices, name): one["type"] for name, one in devices.items() if isinstance(one["addr"], int)},
        next((one["host"] for one in devices.values() if one["type"] == "vfio-pci"), None),
        {one["file"] for one in said["query-named-block-nodes"] if one["drv"] == "file"},
    )


def _path(devices: dict[str, Any], name: str) -> str:
    # query-pci shows nothing below a bridge that no firmware has numbered yet. A bus has the name of its device.
    above = devices[name]["parent_bus"].rpartition("/")[2]
    place = f"{devices[name]['addr'] >> 3:02x}.{devices[name]['addr'] & 7}"
    if above not in devices or devices[above]["type"] == "pxb-pcie":
        return f"{devices[above]['bus_nr'] if above in devices else 0:02x}/{place}"
    return f"{_path(devices, above)}/{place}"
