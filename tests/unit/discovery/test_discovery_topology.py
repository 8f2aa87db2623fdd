"""CPU trees that lie or lack something: what is assumed, and that it is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from cpu_trees import SYSTEM, found_in, four_cpus, topology, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hosttune.model.host import Cpu
from hosttune.model.values import CpuSet

Tree = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return partial(write, tmp_path)


# --- trees that lie ------------------------------------------------------------------------------------------


def test_sound_tree(tree: Tree) -> None:
    found = found_in(tree(four_cpus()))
    assert found.groups("core") == {CpuSet({0, 2}), CpuSet({1, 3})}
    assert [found.cpus[cpu].core for cpu in range(4)] == [0, 1, 0, 1]
    assert found.problems == []


def test_boot_cpu_may_be_offline(tree: Tree) -> None:
    files = four_cpus(("", "1,3", "0,2", "1,3")) | {f"{SYSTEM}/cpu/online": "1-3", f"{SYSTEM}/cpu/present": "0-4"}
    files = {name: text for name, text in files.items() if "/cpu0/" not in name}
    found = found_in(tree(files | {f"{SYSTEM}/cpu/cpu{cpu}/online": "0" for cpu in (0, 4)}))
    assert str(found.ids(online=False)) == "0,4"
    assert found.cpus[0] == Cpu(id=0, online=False, isolated=None, nohz_full=None, allowed=None)
    assert [found.cpus[cpu].core for cpu in (1, 2, 3)] == [1, 2, 1]
    assert found.problems == []  # lists that still name CPU 0 are no lie


@pytest.mark.parametrize("name", ["online", "present"])
def test_a_listed_cpu_without_a_directory_is_left_out(name: str, tree: Tree) -> None:
    """Ten bytes must not make a million CPUs; a real one has a directory, online or not."""
    found = found_in(tree(four_cpus() | {f"{SYSTEM}/cpu/{name}": "0-8191"}))
    assert list(found.cpus) == [0, 1, 2, 3]
    assert found.where("CPUs without a directory") == f"/{SYSTEM}/cpu/{name}"


def test_a_list_of_more_cpus_than_there_can_be_is_no_list(tree: Tree) -> None:
    files = four_cpus() | {f"{SYSTEM}/cpu/online": "0-1048575", f"{SYSTEM}/cpu/possible": "0-40000,9-40000"}
    found = found_in(tree(files))
    assert list(found.cpus) == [0, 1, 2, 3]
    assert found.model.possible is None
    places = [problem.where for problem in found.problems if problem.what == "not a set of CPUs or nodes"]
    assert places == [f"/{SYSTEM}/cpu/online", f"/{SYSTEM}/cpu/possible"]


@pytest.mark.parametrize(("text", "doubts"), [("-1", 0), ("", 0), ("1048576", 1), ("-2", 1), ("9" * 5000, 1)])
def test_ids_that_cannot_be_are_unknown(text: str, doubts: int, tree: Tree) -> None:
    """The kernel says -1 itself where it knows none; anything else out of range is a doubt."""
    path = f"{SYSTEM}/cpu/cpu0/topology/die_id"
    found = found_in(tree(four_cpus() | {path: text}))
    assert found.cpus[0].die is None
    assert [problem.where for problem in found.problems] == [f"/{path}"] * doubts


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
        (V1, "/job", {"": "0-3", "job": "0-3"}, "0-3", None),  # a cpuset that hides nothing
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


@pytest.mark.parametrize("cpus", ["0-3:1/2", "0-1048575"])
def test_isolation_that_only_the_kernel_expands(cpus: str, tree: Tree) -> None:
    found = found_in(tree(four_cpus() | {"proc/cmdline": f"isolcpus={cpus}"}))
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
