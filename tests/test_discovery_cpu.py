"""CPUs against what hwloc, lscpu and libvirt make of the same real captures, and against trees that lie."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from hosttune.discovery.cpu import read_cpus
from hosttune.discovery.memory import read_nodes
from hosttune.model.host import Cpu, CpuModel, NumaNode, Problem
from hosttune.model.values import CpuSet
from hosttune.reader import Reader
from hosttune.system import Capture

HOSTS = Path(__file__).parent / "hosts"
HostRoot = Callable[[str], Path]
Tree = Callable[[Mapping[str, str]], Path]
SYSTEM = "sys/devices/system"


class Found(NamedTuple):
    cpus: dict[int, Cpu]
    model: CpuModel
    nodes: tuple[NumaNode, ...]
    problems: list[Problem]

    def groups(self, field: str) -> set[CpuSet]:
        """The online CPUs partitioned by one field, CPUs without it left out."""
        return partition({cpu.id: getattr(cpu, field) for cpu in self.cpus.values()})

    def where(self, what: str) -> str:
        """Where the one problem of that kind is; fails when there is none or more than one."""
        (found,) = [problem for problem in self.problems if problem.what == what]
        return found.where

    def ids(self, **fields: object) -> CpuSet:
        return CpuSet(
            cpu.id for cpu in self.cpus.values() if all(getattr(cpu, name) == value for name, value in fields.items())
        )


def partition(keys: Mapping[int, Hashable]) -> set[CpuSet]:
    members = defaultdict[Hashable, set[int]](set)
    for cpu, key in keys.items():
        if key is not None:
            members[key].add(cpu)
    return {CpuSet(group) for group in members.values()}


def found_in(root: Path) -> Found:
    reader = Reader(Capture(str(root)))
    nodes = read_nodes(reader)
    cpus, model = read_cpus(reader, nodes)
    assert [cpu.id for cpu in cpus] == sorted({cpu.id for cpu in cpus})
    return Found({cpu.id: cpu for cpu in cpus}, model, nodes, reader.problems)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """tree({"sys/…/file": "text"}) writes a host below tmp_path; files stay between calls."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return write


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
        ("2i386-2c-nohugepage", "no NUMA nodes", "/sys/devices/system/node"),
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
def test_libvirt_host_cpus(case: str, rerooted: HostRoot, tree: Tree) -> None:
    folder = HOSTS / "libvirt" / "virhostcpu"
    root = rerooted(f"libvirt/virhostcpu/{VIRHOSTCPU[case]}")
    found = found_in(tree({"proc/cpuinfo": (folder / f"{case}.cpuinfo").read_text()}) and root)
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
        ("h200/h200x1", 16, 16, 1, 1),
        ("h200/h200x4", 64, 64, 1, 1),
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


# --- trees that lie ------------------------------------------------------------------------------------------


def topology(cpu: int, package: int, threads: str, siblings: str = "0-3") -> dict[str, str]:
    path = f"{SYSTEM}/cpu/cpu{cpu}/topology"
    return {
        f"{path}/physical_package_id": str(package),
        f"{path}/core_cpus_list": threads,
        f"{path}/package_cpus_list": siblings,
    }


def four_cpus(
    threads: Iterable[str] = ("0,2", "1,3", "0,2", "1,3"), packages: Sequence[int] = (0,) * 4
) -> dict[str, str]:
    """Four online CPUs of one node; two cores of two threads unless told otherwise."""
    files = {f"{SYSTEM}/cpu/{name}": "0-3" for name in ("online", "present", "possible")}
    files |= {f"{SYSTEM}/node/node0/cpulist": "0-3", f"{SYSTEM}/node/online": "0"}
    for cpu, (listed, package) in enumerate(zip(threads, packages, strict=True)):
        siblings = str(CpuSet(other for other in range(4) if packages[other] == package))
        files |= topology(cpu, package, listed, siblings)
    return files


def test_sound_tree(tree: Tree) -> None:
    found = found_in(tree(four_cpus()))
    assert found.groups("core") == {CpuSet({0, 2}), CpuSet({1, 3})}
    assert [found.cpus[cpu].core for cpu in range(4)] == [0, 1, 0, 1]
    assert found.problems == []


def test_boot_cpu_may_be_offline(tree: Tree) -> None:
    files = four_cpus(("", "1,3", "2", "1,3")) | {f"{SYSTEM}/cpu/online": "1-3", f"{SYSTEM}/cpu/present": "0-4"}
    found = found_in(tree({name: text for name, text in files.items() if "/cpu0/" not in name}))
    assert str(found.ids(online=False)) == "0,4"
    assert found.cpus[0] == Cpu(id=0, online=False, isolated=None, nohz_full=None, allowed=None)
    assert [found.cpus[cpu].core for cpu in (1, 2, 3)] == [1, 2, 1]


@pytest.mark.parametrize(
    ("threads", "cores"),
    [
        (("0,2", "1,3", "2", "1,3"), {"0,2", "1,3"}),  # CPU 0 lists CPU 2, which does not list it
        (("0-1", "1-2", "2", "3"), {"0-2", "3"}),  # a chain: all that any list joins
        (("1", "0", "2", "3"), {"0-1", "2", "3"}),  # lists without their own CPU
    ],
)
def test_asymmetric_sibling_lists(threads: tuple[str, ...], cores: set[str], tree: Tree) -> None:
    found = found_in(tree(four_cpus(threads)))
    assert {str(core) for core in found.groups("core")} == cores
    assert found.where("sibling lists disagree") == "/sys/devices/system/cpu/cpu*/topology"


def test_cores_do_not_cross_packages(tree: Tree) -> None:
    found = found_in(tree(four_cpus(("0,2", "1,3", "0,2", "1,3"), (0, 0, 1, 1))))
    assert {str(core) for core in found.groups("core")} == {"0", "1", "2", "3"}
    assert found.where("cores across packages") == "/sys/devices/system/cpu/cpu*/topology"


def test_unreadable_sibling_list_leaves_only_that_core_unknown(tree: Tree) -> None:
    found = found_in(tree(four_cpus(("0,2", "1,x", "0,2", "3"))))
    assert found.where("not a set of CPUs or nodes") == "/sys/devices/system/cpu/cpu1/topology/core_cpus_list"
    assert str(found.ids(core=None)) == "1"
    assert found.where("unknown cores") == "/sys/devices/system/cpu/cpu*/topology"


def test_package_lists_narrower_than_the_ids(tree: Tree) -> None:
    found = found_in(tree(four_cpus() | topology(3, 0, "1,3", siblings="1,3")))
    assert found.groups("package") == {CpuSet(range(4))}
    assert found.where("package lists disagree") == "/sys/devices/system/cpu/cpu*/topology"


def test_cpuinfo_stands_in_for_topology(tree: Tree) -> None:
    block = "processor\t: {0}\nvendor_id\t: GenuineIntel\nphysical id\t: {1}\ncore id\t\t: {2}\n"
    cpuinfo = "\n".join(block.format(cpu, cpu // 2, 0) for cpu in range(4))
    found = found_in(tree({f"{SYSTEM}/cpu/online": "0-3", "proc/cpuinfo": cpuinfo}))
    assert found.groups("package") == found.groups("core") == {CpuSet({0, 1}), CpuSet({2, 3})}
    assert found.where("no CPU topology in sysfs") == "/sys/devices/system/cpu"
    assert found.where("cores taken from core ids") == "/sys/devices/system/cpu/cpu*/topology"


def test_nothing_at_all(tree: Tree) -> None:
    found = found_in(tree({"proc/version": "Linux"}))
    assert found.cpus == {}
    assert found.where("no CPUs") == "/sys/devices/system/cpu"


def test_cpu_that_no_node_lists(tree: Tree) -> None:
    found = found_in(tree(four_cpus() | {f"{SYSTEM}/node/node0/cpulist": "0-2"}))
    assert found.cpus[3].numa_node is None
    assert found.where("CPUs without a node") == "/sys/devices/system/node"


def caches(lists: Mapping[int, str]) -> dict[str, str]:
    files: dict[str, str] = {}
    for cpu, shared in lists.items():
        path = f"{SYSTEM}/cpu/cpu{cpu}/cache/index3"
        files |= {f"{path}/level": "3", f"{path}/type": "Unified", f"{path}/shared_cpu_list": shared}
    return files


@pytest.mark.parametrize(
    ("lists", "groups", "what", "cpu"),
    [
        ({0: "0-3", 1: "0-3", 2: "0-3", 3: "2-3"}, {"0-3"}, "cache lists disagree", 0),
        ({0: "0-1", 1: "0-1", 2: "1-3", 3: "1-3"}, {"0-1", "2-3"}, "cache lists overlap", 2),
        ({0: "1", 1: "1", 2: "2-3", 3: "2-3"}, {"0-1", "2-3"}, "cache lists overlap", 0),
    ],
)
def test_cache_lists_that_disagree(lists: dict[int, str], groups: set[str], what: str, cpu: int, tree: Tree) -> None:
    found = found_in(tree(four_cpus() | caches(lists)))
    assert {str(group) for group in found.groups("llc")} == groups
    assert found.where(what) == f"/sys/devices/system/cpu/cpu{cpu}/cache/index3"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lists=st.lists(st.frozensets(st.integers(0, 5), max_size=4), min_size=4, max_size=4),
    packages=st.lists(st.integers(-1, 1), min_size=4, max_size=4),
)
def test_any_lies_give_a_partition(lists: list[frozenset[int]], packages: list[int], tree: Tree) -> None:
    found = found_in(tree(four_cpus([str(CpuSet(listed)) for listed in lists], packages)))
    for core in found.groups("core"):
        assert {found.cpus[cpu].core for cpu in core} == {min(core)}
        assert len({found.cpus[cpu].package for cpu in core}) == 1
    for cpu, listed in enumerate(lists):
        for other in listed & {0, 1, 2, 3} if listed else ():
            if found.cpus[cpu].package == found.cpus[other].package:
                assert found.cpus[cpu].core == found.cpus[other].core


# --- isolation, cpusets, kinds, running ------------------------------------------------------------------------

V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"
V1 = "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0"


@pytest.mark.parametrize(
    ("mounts", "own", "groups", "allowed", "doubted"),
    [
        (None, None, {}, "0-3", None),  # nothing known: nothing hides a CPU
        ("tmpfs /tmp tmpfs rw 0 0", "/", {}, "0-3", None),
        (V2, "/user.slice/a.scope", {"": "0-3", "user.slice": "0"}, "0-3", None),  # guests go elsewhere
        (V2, "/user.slice/a.scope", {"": "0-3", "machine.slice": "2-3"}, "2-3", None),
        (V2, "/batch/job", {"": "0-3", "batch": "1-2"}, "1-2", "/sys/fs/cgroup/batch/job"),  # the nearest above
        (V2, "/../outside", {"": "1-3"}, "1-3", None),  # another control-group namespace
        (V1, "/job", {"": "0-3", "job": "0,2"}, "0,2", "/sys/fs/cgroup/cpuset/job"),
        (V1, "/job", {"": "0-3", "job": "0,2", "machine": "1"}, "1", None),  # libvirt without systemd
        ("none /dev/cpuset cpuset rw 0 0", "/job", {"job": "3"}, "3", "/dev/cpuset/job"),
    ],
)
def test_allowed_cpus(
    mounts: str | None, own: str | None, groups: dict[str, str], allowed: str, doubted: str | None, tree: Tree
) -> None:
    files = four_cpus() | ({"proc/mounts": mounts} if mounts else {}) | ({"proc/self/cpuset": own} if own else {})
    mount, name = "/sys/fs/cgroup", "cpuset.cpus.effective"
    if mounts == V1:
        mount, name = "/sys/fs/cgroup/cpuset", "cpuset.cpus"
    elif mounts and "/dev/cpuset" in mounts:
        mount, name = "/dev/cpuset", "cpus"
    files |= {f"{mount[1:]}/{group}/{name}": cpus for group, cpus in groups.items()}
    found = found_in(tree(files))
    assert str(found.ids(allowed=True)) == allowed
    assert found.ids(allowed=None) == CpuSet()
    assert [problem.where for problem in found.problems] == ([doubted] if doubted else [])


@pytest.mark.parametrize(
    ("files", "isolated", "nohz_full"),
    [
        ({}, None, None),
        ({f"{SYSTEM}/cpu/isolated": "", f"{SYSTEM}/cpu/nohz_full": "  (null)"}, "", ""),
        ({f"{SYSTEM}/cpu/isolated": "1-2", f"{SYSTEM}/cpu/nohz_full": "2"}, "1-2", "2"),
        ({f"{SYSTEM}/cpu/isolated": "1", "sys/fs/cgroup/cpuset.cpus.isolated": "3"}, "1,3", None),
        ({"proc/cmdline": "ro isolcpus=managed_irq,domain,1-2 nohz_full=3"}, "1-2", "3"),
        ({"proc/cmdline": "ro quiet"}, "", ""),
    ],
)
def test_isolation(files: dict[str, str], isolated: str | None, nohz_full: str | None, tree: Tree) -> None:
    found = found_in(tree(four_cpus() | files))
    for field, expected in (("isolated", isolated), ("nohz_full", nohz_full)):
        if expected is None:
            assert len(found.ids(**{field: None})) == 4
        else:
            assert str(found.ids(**{field: True})) == expected
            assert found.ids(**{field: None}) == CpuSet()


def test_isolation_that_only_the_kernel_expands(tree: Tree) -> None:
    found = found_in(tree(four_cpus() | {"proc/cmdline": "isolcpus=0-3:1/2"}))
    assert len(found.ids(isolated=None)) == 4
    assert found.where("unreadable CPU list") == "/proc/cmdline"


def test_hybrid_by_performance_units(tree: Tree) -> None:
    found = found_in(tree(four_cpus() | {"sys/devices/cpu_core/cpus": "0,2", "sys/devices/cpu_atom/cpus": "1,3"}))
    assert (str(found.ids(kind="performance")), str(found.ids(kind="efficiency"))) == ("0,2", "1,3")
    assert found.model.hybrid is True


def test_equal_capacities_are_no_hybrid(tree: Tree) -> None:
    found = found_in(tree(four_cpus() | {f"{SYSTEM}/cpu/cpu{cpu}/cpu_capacity": "1024" for cpu in range(4)}))
    assert (found.model.hybrid, found.ids(kind=None)) == (False, CpuSet(range(4)))


def test_how_cpus_are_run(tree: Tree) -> None:
    files = {f"{SYSTEM}/cpu/cpu{cpu}/power/pm_qos_resume_latency_us": "0" for cpu in range(4)}
    files |= {f"{SYSTEM}/cpu/cpu{cpu}/cpufreq/scaling_governor": "powersave" for cpu in range(4)}
    files |= {f"{SYSTEM}/cpu/cpu2/power/pm_qos_resume_latency_us": "n/a", f"{SYSTEM}/cpu/smt/active": "1"}
    found = found_in(tree(four_cpus() | files))
    assert [cpu.resume_latency_us for cpu in found.cpus.values()] == ["0", "0", "n/a", "0"]
    assert {(cpu.governor, cpu.energy_preference) for cpu in found.cpus.values()} == {("powersave", None)}
    assert found.model.smt_active is True
