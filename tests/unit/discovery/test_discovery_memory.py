"""NUMA nodes and memory settings: real captures against their inventories, and trees with odd nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hosttune.discovery.memory import read_memory_settings, read_nodes
from hosttune.errors import Unreadable
from hosttune.machine import manifest
from hosttune.machine.capture import Archive, Capture
from hosttune.machine.reader import Reader
from hosttune.machine.system import COMPLETE
from hosttune.model.host import HugePages, MemorySettings, NumaNode, Problem
from hosttune.model.values import CpuSet

LOOKED_FOR = manifest.write((), (), ["/sys/devices/system/node"]).encode()
HOSTS = Path(__file__).parents[2] / "hosts"
HWLOC = sorted(path.name.removesuffix(".expected.json") for path in (HOSTS / "hwloc").glob("*.expected.json"))
HostRoot = Callable[[str], Path]
Tree = Callable[[Mapping[str, str]], Path]
NODES = "sys/devices/system/node"


class Found(NamedTuple):
    nodes: tuple[NumaNode, ...]
    problems: list[Problem]

    @property
    def kinds(self) -> dict[int, str | None]:
        return {node.id: node.kind for node in self.nodes}

    def where(self, what: str) -> str:
        """Where the one problem of that kind is; fails when there is none or more than one."""
        (found,) = [problem for problem in self.problems if problem.what == what]
        return found.where


def found_in(root: Path) -> Found:
    reader = Reader(Capture(str(root)))
    return Found(read_nodes(reader), reader.problems)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """tree({"sys/…/file": "text"}) writes a host below tmp_path."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return write


# --- real captures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HWLOC)
def test_hwloc_capture(name: str, host_root: HostRoot) -> None:
    expected: dict[str, Any] = json.loads((HOSTS / "hwloc" / f"{name}.expected.json").read_text())
    inventory = expected["sysfs_inventory"]
    found = found_in(host_root(f"hwloc/{name}"))
    assert [node.id for node in found.nodes] == inventory["node_ids"]
    assert [node.id for node in found.nodes if not node.cpus] == inventory["cpuless"]
    assert [node.id for node in found.nodes if not node.memory_bytes] == inventory["memless"]
    for node in found.nodes:
        listed = inventory["nodes_detail"][str(node.id)]
        cpus = listed["cpulist"].strip() if listed["cpumap"] is None else str(CpuSet.parse_mask(listed["cpumap"]))
        distances = dict(zip(map(str, inventory["node_ids"]), map(int, listed["dist"].split()), strict=True))
        assert (node.cpus, node.memory_bytes, node.distances) == (cpus, listed["mem_kb"] * 1024, distances)
        assert node.free_bytes is not None
        assert node.free_bytes <= listed["mem_kb"] * 1024
    assert sum(len(node.hugepages or ()) for node in found.nodes) == inventory["hugepages"]


@pytest.mark.parametrize("name", HWLOC)
def test_node_memory_is_what_hwloc_reads(name: str, host_root: HostRoot) -> None:
    expected: dict[str, Any] = json.loads((HOSTS / "hwloc" / f"{name}.expected.json").read_text())
    nodes = {str(node.id): node for node in found_in(host_root(f"hwloc/{name}")).nodes}
    for node, read in expected["hwloc29_with_disallowed"]["numa"].items():
        # Where the kernel has no node directories, hwloc makes up a node from /proc/meminfo; nodes without
        # memory have no size there.
        if node in nodes:
            assert nodes[node].memory_bytes == int(read["mem"] or 0)


def test_gpu_memory_is_no_place_for_guests(host_root: HostRoot) -> None:
    found = found_in(host_root("hwloc/nvidiagpunumanodes"))
    assert found.kinds == {0: "cpu", 8: "cpu"} | dict.fromkeys(range(250, 256), "gpu")
    assert found.nodes[2].distances == {"0": 80, "8": 80, "250": 10} | dict.fromkeys(map(str, range(251, 256)), 80)


def test_nodes_without_cpus_or_memory(host_root: HostRoot) -> None:
    # Nodes 0-3 have the CPUs and no memory, node 4 is a generic initiator, 5-10 are memory alone.
    found = found_in(host_root("hwloc/fakememinitiators-1np2c+1npp+gi"))
    assert found.kinds == dict.fromkeys(range(4), "cpu") | {4: "empty"} | dict.fromkeys(range(5, 11), "memory")
    assert [node.memory_bytes for node in found.nodes[:5]] == [0] * 5


def test_kernel_without_numa(host_root: HostRoot) -> None:
    """The capture lacks the directory and does not say that it is whole."""
    found = found_in(host_root("hwloc/2i386-2c-nohugepage"))
    assert found.nodes == ()
    assert found.where("unknown NUMA nodes") == "/sys/devices/system/node"
    assert "not in the capture" in found.problems[0].why


class Closed(Archive):
    """A capture in which the directory of the nodes cannot be listed, though it is there."""

    def list(self, path: str) -> list[str]:
        if path == "/sys/devices/system/node":
            raise Unreadable(path, "Permission denied")
        return super().list(path)


@pytest.mark.parametrize(
    ("system", "told"),
    [
        (Archive({"/proc/version": b""}, {}, "x"), ["unknown NUMA nodes"]),
        (Archive({"/proc/version": b""}, {}, "x", ["/sys/devices/system/node"]), ["no NUMA nodes"]),
        (Archive({"/proc/version": b"", COMPLETE: LOOKED_FOR}, {}, "x"), ["no NUMA nodes"]),
        (Closed({"/sys/devices/system/node/node0/cpulist": b"0"}, {}, "x"), ["unreadable", "unknown NUMA nodes"]),
    ],
)
def test_no_nodes_are_claimed_only_where_the_kernel_lists_none(system: Archive, told: list[str]) -> None:
    reader = Reader(system)
    assert read_nodes(reader) == ()
    assert [problem.what for problem in reader.problems] == told


@pytest.mark.parametrize("path", sorted((HOSTS / "derived").glob("*.expected.json")), ids=lambda path: path.name)
def test_derived_roots(path: Path, host_root: HostRoot) -> None:
    expected = json.loads(path.read_text())["nodes"]
    found = found_in(host_root(f"derived/{path.name.removesuffix('.expected.json')}"))
    assert {str(node.id): node.cpus for node in found.nodes} == expected
    assert set(found.kinds.values()) == {"cpu"}


@pytest.mark.parametrize(("name", "node_kb"), [("h200/vm-h200x1", 131981020), ("h200/vm-h200x4", 528231220)])
def test_h200_guests_have_one_flat_node(name: str, node_kb: int, host_root: HostRoot) -> None:
    found = found_in(host_root(name))
    assert [(node.id, node.kind, node.distances) for node in found.nodes] == [(0, "cpu", {"0": 10})]
    # Their kernels initialise memory when it is needed (deferred_init=lazy) and count in the node only what they have
    # initialised, 4 and 5 GiB: the machine's total is the only node's.
    assert found.nodes[0].memory_bytes == node_kb * 1024
    assert found.problems == []


@pytest.mark.parametrize("name", [name for name in HWLOC if not name.startswith("2i386")])
def test_node_memory_agrees_with_the_total(name: str, host_root: HostRoot) -> None:
    assert found_in(host_root(f"hwloc/{name}")).problems == []


@pytest.mark.parametrize(
    ("name", "default", "overcommit"),
    [
        ("hwloc/256ppc-8n8s4t", 16 << 20, None),
        ("hwloc/32em64t-2n8c+dax+nvme+mic+dimms", 2 << 20, {"2097152": 15360}),
        ("hwloc/memorysidecaches", 2 << 20, {"2097152": 0, "1073741824": 0}),
        ("hwloc/2i386-2c-nohugepage", None, None),
    ],
)
def test_huge_page_settings(
    name: str, default: int | None, overcommit: dict[str, int] | None, host_root: HostRoot
) -> None:
    settings = read_memory_settings(Reader(Capture(str(host_root(name)))))
    assert (settings.default_hugepage_bytes, settings.overcommit_hugepages) == (default, overcommit)


# --- odd trees -----------------------------------------------------------------------------------------------


def node(number: int, cpus: str | None, mem_kb: int | None, **files: str) -> dict[str, str]:
    path = f"{NODES}/node{number}"
    written = {f"{path}/{name}": text for name, text in files.items()}
    if cpus is not None:
        written[f"{path}/cpulist"] = cpus
    if mem_kb is not None:
        total = f"Node {number} MemTotal:       {mem_kb} kB"
        written[f"{path}/meminfo"] = f"\n{total}\nNode {number} MemFree:        {mem_kb // 2} kB"
    return written


@pytest.mark.parametrize(
    ("cpus", "mem_kb", "kind"),
    [
        ("0-3", 1024, "cpu"),
        ("0-3", 0, "cpu"),
        ("0-3", None, "cpu"),
        ("", 1024, "memory"),
        ("", 0, "empty"),
        ("", None, None),
        (None, 1024, None),
        (None, 0, None),
    ],
)
def test_kind_of_node(cpus: str | None, mem_kb: int | None, kind: str | None, tree: Tree) -> None:
    (found,) = found_in(tree({f"{NODES}/node7/vmstat": "", **node(7, cpus, mem_kb)})).nodes
    assert (found.id, found.cpus, found.kind) == (7, cpus, kind)
    assert found.memory_bytes == (None if mem_kb is None else mem_kb * 1024)
    assert found.free_bytes == (None if mem_kb is None else mem_kb * 512)


def test_gpu_node_is_known_by_its_driver(tree: Tree) -> None:
    status = {
        "proc/driver/nvidia/gpus/0009:01:00.0/numa_status": "Node:      1\nStatus:    online",
        "proc/driver/nvidia/gpus/0019:01:00.0/numa_status": "Node:      -1\nStatus:    offline",
    }
    found = found_in(tree(node(0, "0-3", 1024) | node(1, "", 1024) | node(2, "", 1024) | status))
    assert found.kinds == {0: "cpu", 1: "gpu", 2: "memory"}


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpulist": "0-3\n\0"}, "0-3"),  # Linux 5.16 counts the NUL in
        ({"cpumap": "00000001,0000000f"}, "0-3,32"),
        ({"cpulist": "0-x", "cpumap": "f"}, "0-3"),
        ({"cpu4/online": "1", "cpu2/online": "1"}, "2,4"),
        ({"cpulist": "", "cpumap": "0"}, ""),
        ({"cpulist": "(null)"}, ""),
        ({"cpulist": "0-3,,5"}, "0-3,5"),
        ({"cpulist": "0-1048575,x", "cpumap": "f"}, "0-3"),
    ],
)
def test_cpus_of_node(files: dict[str, str], cpus: str, tree: Tree) -> None:
    found = found_in(tree({f"{NODES}/node0/{name}": text for name, text in files.items()}))
    assert found.nodes[0].cpus == cpus
    expected = "/sys/devices/system/node/node0/cpulist"
    assert [problem.where for problem in found.problems] == ([expected] if "x" in files.get("cpulist", "") else [])


def test_distances_are_those_of_online_nodes(tree: Tree) -> None:
    files = node(0, "0", 1024, distance="10 32") | node(8, "1", 1024, distance="32 10") | {f"{NODES}/online": "0,8"}
    assert [found.distances for found in found_in(tree(files)).nodes] == [{"0": 10, "8": 32}, {"0": 32, "8": 10}]


@pytest.mark.parametrize("distance", ["10 32 32", "10", "10 x", "10 -1", "10 256", "10 " + "9" * 5000])
def test_unusable_distances_are_unknown(distance: str, tree: Tree) -> None:
    files = node(0, "0", 1024, distance=distance) | {f"{NODES}/online": "0-1"}
    found = found_in(tree(files))
    assert found.nodes[0].distances is None
    assert found.where("unusable distances") == "/sys/devices/system/node/node0/distance"


def test_every_size_of_huge_page(tree: Tree) -> None:
    pools = {"hugepages-1048576kB": ("4", "1"), "hugepages-2048kB": ("512", "512"), "hugepages-64kB": ("many", "0")}
    files = {f"{NODES}/node0/hugepages/{pool}/nr_hugepages": total for pool, (total, _) in pools.items()}
    files |= {f"{NODES}/node0/hugepages/{pool}/free_hugepages": free for pool, (_, free) in pools.items()}
    found = found_in(tree(node(0, "0", 1024) | files))
    assert found.nodes[0].hugepages == (
        HugePages(size_bytes=64 << 10, total=None, free=0),
        HugePages(size_bytes=2 << 20, total=512, free=512),
        HugePages(size_bytes=1 << 30, total=4, free=1),
    )
    assert found.where("not a count").endswith("/hugepages-64kB/nr_hugepages")


@pytest.mark.parametrize("text", ["-1", "9223372036854775808", "9" * 5000])
def test_counts_that_cannot_be_are_unknown(text: str, tree: Tree) -> None:
    pool = f"{NODES}/node0/hugepages/hugepages-2048kB"
    found = found_in(tree(node(0, "0", 1024) | {f"{pool}/nr_hugepages": "1", f"{pool}/free_hugepages": text}))
    assert found.nodes[0].hugepages == (HugePages(size_bytes=2 << 20, total=1, free=None),)
    assert found.where("not a count") == f"/{pool}/free_hugepages"


@pytest.mark.parametrize("kibibytes", ["9007199254740992", "9" * 5000])
def test_memory_that_cannot_be_is_unknown(kibibytes: str, tree: Tree) -> None:
    found = found_in(tree(node(0, "0", None) | {f"{NODES}/node0/meminfo": f"Node 0 MemTotal: {kibibytes} kB"}))
    assert found.nodes[0].memory_bytes is None
    assert found.where("not a count") == f"/{NODES}/node0/meminfo"


def test_memory_settings(tree: Tree) -> None:
    root = tree(
        {
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
            "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never",
            "sys/kernel/mm/ksm/run": "1",
            "proc/sys/kernel/numa_balancing": "0",
            "proc/meminfo": "MemTotal: 1024 kB\nHugepagesize:    1048576 kB",
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages": "3",
        }
    )
    assert read_memory_settings(Reader(Capture(str(root)))) == MemorySettings(
        thp="madvise",
        thp_defrag="madvise",
        ksm_run=1,
        numa_balancing=0,
        default_hugepage_bytes=1 << 30,
        overcommit_hugepages={"2097152": 3},
    )


def test_settings_that_the_kernel_lacks_are_unknown(tree: Tree) -> None:
    reader = Reader(Capture(str(tree({"proc/version": "Linux"}))))
    assert read_memory_settings(reader) == MemorySettings()
    assert reader.problems == []


def test_choice_without_brackets_is_doubted(tree: Tree) -> None:
    reader = Reader(Capture(str(tree({"sys/kernel/mm/transparent_hugepage/enabled": "always"}))))
    assert read_memory_settings(reader).thp is None
    (problem,) = reader.problems
    assert (problem.what, problem.where) == ("no choice marked", "/sys/kernel/mm/transparent_hugepage/enabled")
