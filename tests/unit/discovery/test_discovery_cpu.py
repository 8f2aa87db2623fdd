"""CPUs against what hwloc, lscpu and libvirt make of the same real captures."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cpu_trees import SYSTEM, found_in, partition, write
from lxml import etree

from hosttune.discovery.cpu import read_cpus
from hosttune.discovery.memory import read_nodes
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.values import CpuSet

HOSTS = Path(__file__).parents[2] / "hosts"
HostRoot = Callable[[str], Path]


@pytest.fixture
def rerooted(host_root: HostRoot, tmp_path: Path) -> HostRoot:
    """libvirt keeps only system/cpu and system/node: put them where a host has them."""

    def place(name: str) -> Path:
        root = host_root(name)
        inner = root / "system" if (root / "system").is_dir() else root
        shutil.copytree(inner, tmp_path / SYSTEM, symlinks=True)
        return tmp_path

    return place


# --- hwloc ---------------------------------------------------------------------------------------------------

HWLOC = sorted(path.name.removesuffix(".expected.json") for path in (HOSTS / "hwloc").glob("*.expected.json"))

# hwloc counts a package for each core_siblings list. Here those lists are a kernel bug (cluster-on-die halves
# of two sockets); we believe physical_package_id, as sysfs' own inventory does, and say so.
HWLOC_PACKAGES = {"hist-28em64t-2s2n7c-buggycoresiblings": 2}
# hwloc drops or invents nodes: eight nodes that list all CPUs become one; memory-only nodes are given the CPUs
# near them; a kernel without NUMA gets a node. We keep what the kernel lists.
HWLOC_OTHER_NODES = {
    "8em64t-2s2ca2c-buggynuma": {CpuSet({cpu}) for cpu in range(8)},
    "fakememinitiators-1np2c+1npp+gi": {CpuSet({cpu, cpu + 1}) for cpu in (0, 2, 4, 6)},
    "2i386-2c-nohugepage": set(),
}


@pytest.mark.parametrize("name", HWLOC)
def test_hwloc_capture(name: str, host_root: HostRoot) -> None:
    expected: dict[str, Any] = json.loads((HOSTS / "hwloc" / f"{name}.expected.json").read_text())
    whole, limited = expected["hwloc29_with_disallowed"], expected["hwloc29"]
    found = found_in(host_root(f"hwloc/{name}"))
    assert len(found.cpus) == expected["sysfs_inventory"]["cpu_dirs"]
    assert found.ids(online=True) == CpuSet.parse(whole["cpus"])
    assert found.ids(allowed=True) == CpuSet.parse(limited["allowed_cpus"])
    assert len(found.groups("package")) == HWLOC_PACKAGES.get(name, whole["counts"]["Package"])
    assert len(found.groups("core")) == whole["counts"]["Core"]
    if "L3Cache" in whole["counts"]:
        assert len(found.groups("llc")) == whole["counts"]["L3Cache"]
    nodes = {CpuSet.parse(node["cpus"]) for node in whole["numa"].values()} - {CpuSet()}
    assert found.groups("numa_node") == HWLOC_OTHER_NODES.get(name, nodes)
    for cpu in found.ids(online=False):
        places = ("core", "package", "die", "numa_node", "llc", "l2", "allowed", "kind")
        assert {getattr(found.cpus[cpu], place) for place in places} == {None}


@pytest.mark.parametrize(
    ("name", "what", "where"),
    [
        ("16amd64-8n2c-cpusets", "cpuset of a batch system or container", "/dev/cpuset/dummy"),
        ("8em64t-2s2ca2c-buggynuma", "nodes share CPUs", "/sys/devices/system/node"),
        ("hist-28em64t-2s2n7c-buggycoresiblings", "package lists disagree", "/sys/devices/system/cpu/cpu*/topology"),
        ("256ppc-8n8s4t", "unknown package ids", "/sys/devices/system/cpu/cpu*/topology"),
        ("8ia64-2n2s2c", "empty cache lists", "/sys/devices/system/cpu/cpu*/cache/index4"),
        ("20em64t-hybrid-1p6c2t+2ca4co1t", "kinds of cores inferred", "/sys/devices/system/cpu"),
        ("2i386-2c-nohugepage", "unknown NUMA nodes", "/sys/devices/system/node"),
    ],
)
def test_doubts_are_named(name: str, what: str, where: str, host_root: HostRoot) -> None:
    assert found_in(host_root(f"hwloc/{name}")).where(what) == where


@pytest.mark.parametrize(
    "name", ["16em64t-4s2c2t", "48amd64-4pa2n6c-sparse", "memorysidecaches", "128arm-2pa2n8cluster4co"]
)
def test_sound_captures_raise_no_doubt(name: str, host_root: HostRoot) -> None:
    assert found_in(host_root(f"hwloc/{name}")).problems == []


def test_hybrid_part(host_root: HostRoot) -> None:
    found = found_in(host_root("hwloc/20em64t-hybrid-1p6c2t+2ca4co1t"))
    assert found.model.hybrid is True
    assert str(found.ids(kind="performance")) == "0-11"
    assert str(found.ids(kind="efficiency")) == "12-19"
    assert found.ids(l2=12) == CpuSet(range(12, 16))
    assert (found.cpus[0].governor, found.cpus[0].energy_preference) == ("powersave", "balance_performance")
    assert (found.model.scaling_driver, found.model.smt_control, found.model.smt_active) == ("intel_pstate", "on", True)
    assert (found.model.physical_address_bits, found.model.virtual_address_bits) == (46, 48)


# --- lscpu ---------------------------------------------------------------------------------------------------

LSCPU = sorted(path.stem for path in (HOSTS / "lscpu").glob("*.expected"))
# Which of the two lists: lscpu's first numbers cores anew for each model of a big.LITTLE part and merges its
# clusters into one socket; its second prints the kernel's ids, from which package and core can be told.
LSCPU_PHYSICAL = {"arm-A510-A710-A715-X3"}


def lscpu_lists(name: str) -> list[list[dict[str, str]]]:
    """The CSV lists of an .expected file: rows by column name, "" and "-" left out."""
    tables: list[list[dict[str, str]]] = []
    columns: list[str] = []
    for line in (HOSTS / "lscpu" / f"{name}.expected").read_text().splitlines():
        if line.startswith("# CPU,"):
            columns = line[2:].split(",")
            tables.append([])
        elif tables and line and not line.startswith("#"):
            cells = zip(columns, line.split(","), strict=True)
            tables[-1].append({column: cell for column, cell in cells if column and cell not in ("", "-")})
    return tables


def column(rows: Sequence[Mapping[str, str]], *names: str) -> set[CpuSet]:
    keys = {int(row["CPU"]): tuple(row[name] for name in names) if names[-1] in row else None for row in rows}
    return partition(keys)


@pytest.mark.parametrize("name", LSCPU)
def test_lscpu_capture(name: str, host_root: HostRoot) -> None:
    found = found_in(host_root(f"lscpu/{name}"))
    logical, physical = lscpu_lists(name)
    rows = physical if name in LSCPU_PHYSICAL else logical
    assert found.ids(online=True) == CpuSet(int(row["CPU"]) for row in rows)
    assert found.groups("package") == column(rows, "Socket")
    assert found.groups("core") == column(rows, "Socket", "Core")
    assert found.groups("numa_node") == column(rows, "Node")
    assert found.groups("l2") == column(rows, "L2")
    # Where only the first level is shown (POWER7 in a logical partition) the last one is unknown, not the first.
    assert found.groups("llc") == (column(rows, "L3") or column(rows, "L2"))


@pytest.mark.parametrize(
    ("name", "vendor", "model", "flag"),
    [
        ("x86_64-epyc_7451", "AuthenticAMD", "AMD EPYC 7451 24-Core Processor", "svm"),
        ("ppc64-POWER7-64cpu", None, "POWER7 (architected), altivec supported", None),
        ("arm-A510-A710-A715-X3", "ARM", "part 0xd46", "asimd"),
        ("rv64-milkvpioneer", "0x5b7", None, None),
        ("s390-lpar", "IBM/S390", None, "zarch"),
    ],
)
def test_every_architecture_names_itself(
    name: str, vendor: str | None, model: str | None, flag: str | None, host_root: HostRoot
) -> None:
    found = found_in(host_root(f"lscpu/{name}"))
    assert (found.model.vendor, found.model.model) == (vendor, model)
    assert (flag in found.model.flags) if found.model.flags else flag is None


def test_three_kinds_of_cores_by_capacity(host_root: HostRoot) -> None:
    found = found_in(host_root("lscpu/arm-A510-A710-A715-X3"))
    kinds = {kind: str(found.ids(kind=kind)) for kind in ("efficiency", "intermediate", "performance")}
    assert kinds == {"efficiency": "0-2", "intermediate": "3-6", "performance": "7"}
    # One L3 behind clusters that call themselves packages: said, and neither reading is dropped.
    assert found.where("cache across packages") == "/sys/devices/system/cpu/cpu0/cache/index3"


def test_caches_are_read_once_a_group(host_root: HostRoot) -> None:
    read: list[str] = []

    class Counting(Capture):
        def read_bytes(self, path: str) -> bytes | None:
            read.append(path)
            return super().read_bytes(path)

    reader = Reader(Counting(str(host_root("lscpu/x86_64-epyc_7451"))))
    cpus, _ = read_cpus(reader, read_nodes(reader))
    groups = len({cpu.llc for cpu in cpus}), len({cpu.l2 for cpu in cpus})
    assert groups == (16, 48)
    # An LLC group: type, level and list of four caches at one CPU, level and list at another; an L2: level, list.
    assert sum("/cache/" in path for path in read) <= 16 * (4 * 3 + 2) + 48 * 2


# --- libvirt, ghw, guests and derived roots --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic", "caches", "hmat", "resctrl-skx"])
def test_libvirt_capabilities(name: str, rerooted: HostRoot) -> None:
    xml = etree.parse(str(HOSTS / f"libvirt/vircaps/vircaps-x86_64-{name}.xml"))
    found = found_in(rerooted(f"libvirt/vircaps/linux-{name}"))
    assert [str(node.id) for node in found.nodes] == [cell.get("id") for cell in xml.iter("cell")]
    for cell in xml.iter("cell"):
        for element in cell.iter("cpu"):
            cpu = found.cpus[int(element.get("id", ""))]
            siblings = CpuSet.parse(element.get("siblings", ""))
            assert (cpu.package, cpu.numa_node) == (int(element.get("socket_id", "")), int(cell.get("id", "")))
            assert (found.ids(core=cpu.core), cpu.core) == (siblings, min(siblings))
    for field, level in (("llc", 3), ("l2", 2)):
        banks = {CpuSet.parse(bank.get("cpus", "")) for bank in xml.iter("bank") if bank.get("level") == str(level)}
        assert not banks or found.groups(field) == banks


VIRHOSTCPU = {
    "linux-aarch64-high-ids": "linux-high-ids",
    "linux-ppc64-subcores1": "linux-subcores1",
    "linux-x86_64-test3": "linux-test3",
    "linux-x86_64-test6": "linux-test6",
    "linux-x86_64-with-die": "linux-with-die",
}


@pytest.mark.parametrize("case", VIRHOSTCPU)
def test_libvirt_host_cpus(case: str, rerooted: HostRoot) -> None:
    folder = HOSTS / "libvirt" / "virhostcpu"
    root = rerooted(f"libvirt/virhostcpu/{VIRHOSTCPU[case]}")
    found = found_in(write(root, {"proc/cpuinfo": (folder / f"{case}.cpuinfo").read_text()}))
    numbers = [int(number) for number in re.findall(r"\d+", (folder / f"{case}.expected").read_text())]
    online, present, _, nodes, sockets, cores, threads = numbers
    if "ppc64" in case:
        # POWER8 in subcore mode: KVM wants the other threads offline, so libvirt counts them as if they were
        # there. The kernel has one CPU of each core online, and that is what we say.
        online, threads = 20, 1
    assert (len(found.ids(online=True)), len(found.cpus)) == (online, present)
    assert len(found.nodes) == nodes
    assert len(found.groups("core")) == nodes * sockets * cores
    assert max(len(core) for core in found.groups("core")) == threads
    signature = folder / f"{case}.signature"
    if signature.exists():
        assert found.model.model is not None
        assert found.model.model in " ".join(signature.read_text().split())


def test_cores_without_sibling_lists_are_said_to_be_inferred(rerooted: HostRoot) -> None:
    found = found_in(rerooted("libvirt/virhostcpu/linux-test3"))
    assert found.where("cores taken from core ids") == "/sys/devices/system/cpu/cpu*/topology"


@pytest.mark.parametrize(
    ("name", "cpus", "cores", "packages", "nodes"),
    [
        ("ghw/linux-amd64-8581cf3a529e5d8b97ea876eade2f60d", 24, 12, 2, 2),
        ("ghw/linux-amd64-accel-nvidia", 8, 8, 1, 1),
        ("h200/vm-h200x1", 16, 16, 1, 1),
        ("h200/vm-h200x4", 64, 64, 1, 1),
    ],
)
def test_counts(name: str, cpus: int, cores: int, packages: int, nodes: int, host_root: HostRoot) -> None:
    found = found_in(host_root(name))
    sizes = [len(found.groups(field)) for field in ("core", "package", "numa_node")]
    assert (len(found.cpus), sizes) == (cpus, [cores, packages, nodes])
    # The H200 sandboxes contradict themselves about memory, which is not the CPUs' matter.
    assert [problem.what for problem in found.problems if "memory" not in problem.what] == []


@pytest.mark.parametrize("path", sorted((HOSTS / "derived").glob("*.expected.json")), ids=lambda path: path.name)
def test_derived_roots(path: Path, host_root: HostRoot) -> None:
    expected = json.loads(path.read_text())
    found = found_in(host_root(f"derived/{path.name.removesuffix('.expected.json')}"))
    assert len(found.cpus) == expected["cpus"]
    assert len(found.groups("package")) == expected["packages"]
    assert {len(core) for core in found.groups("core")} == {expected["threads_per_core"]}
    assert len(found.groups("core")) == expected["cores"]
    assert found.groups("numa_node") == {CpuSet.parse(cpus) for cpus in expected["nodes"].values()}
    assert found.groups("llc") == set()  # these roots have no cache directories: unknown, not "no cache"
