"""No last-level cache that a guest sees spans two of the host's, by the rules of QEMU and Linux written anew here.

QEMU (target/i386/cpu.c, cpu_x86_cpuid; include/hw/i386/topology.h): with cache passthrough leaf 4 EAX[25:14] is the
host's, or the socket's if that has fewer vCPUs; leaf 0x8000001D is the host's. Linux groups by the APIC id without as
many low bits as the number of sharing CPUs needs (arch/x86/kernel/cpu/cacheinfo.c).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planhosts import Card, build_host, cores_of
from planhosts import Shape as HostShape

import hosttune

INTEL, AMD = "GenuineIntel", "AuthenticAMD"


def bits(count: int) -> int:
    return next(width for width in range(32) if 1 << width >= count)


def apic_ids(topology: dict[str, int]) -> list[int]:
    """The APIC id of each vCPU: its place in each level, each level with the bits that its count needs."""
    found = []
    for socket in range(topology["sockets"]):
        for die in range(topology["dies"]):
            for core in range(topology["cores"]):
                for thread in range(topology["threads"]):
                    number = socket
                    for place, count in ((die, "dies"), (core, "cores"), (thread, "threads")):
                        number = number * 2 ** bits(topology[count]) + place
                    found.append(number)
    return found


def seen_caches(topology: dict[str, int], sharing: int, vendor: str) -> list[int]:
    """Which last-level cache each vCPU is on, as a Linux guest finds out."""
    width = bits(sharing)
    in_socket = topology["dies"] * topology["cores"] * topology["threads"]
    if vendor == INTEL and sharing > in_socket:
        width = bits(topology["dies"]) + bits(topology["cores"]) + bits(topology["threads"])
    return [number >> width for number in apic_ids(topology)]


def spanning(guest: dict[str, Any], cache_of: dict[int, int], sharing: int, vendor: str) -> list[set[int]]:
    """The caches of the guest that span several of the host's; none where the guest sees no L3 at all."""
    if guest["cache"] == "disable":
        return []
    hosts = defaultdict(set)
    for pin, seen in zip(guest["vcpu_pins"], seen_caches(guest["topology"], sharing, vendor), strict=True):
        hosts[seen].add(cache_of[int(pin["cpus"])])
    return [caches for caches in hosts.values() if len(caches) > 1]


class Grid:
    """A host with two sockets: `parts` nodes in each, caches of `cores` cores; `smt`: on, firmware or kernel (off), or
    hand: an operator has put every second thread offline.
    """

    def __init__(
        self,
        vendor: str,
        cores: int,
        caches: int,
        parts: int,
        smt: str,
        offline: int = 0,
        gpus: int = 1,
        memory: int = 64,
    ) -> None:
        snc = vendor == INTEL  # one cache for the whole socket, of all its nodes
        threads = 1 if smt == "firmware" else 2
        nodes = 2 * parts
        cards = [
            Card(f"0000:{1 + node * 16 + i:02x}:00.0", node, group=node * 16 + i)
            for node in range(nodes)
            for i in range(gpus)
        ]
        shape = HostShape(
            nodes=nodes, cores_per_node=cores * caches, threads=threads, llc_cores=cores, memory_gib=memory, cards=cards
        )
        gone = [cores_of(shape, i % nodes)[(i * 7) % (cores * caches)][-1] for i in range(1, 1 + offline)]
        if smt in ("kernel", "hand"):
            gone = [core[1] for node in range(nodes) for core in cores_of(shape, node)]
        document = build_host(shape, offline=gone)
        self.cache_of: dict[int, int] = {}
        for node in range(nodes):
            for at, core in enumerate(cores_of(shape, node)):
                self.cache_of |= dict.fromkeys(core, node // parts if snc else node * caches + at // cores)
        for cpu in document["cpus"]:
            if cpu["online"]:
                cpu["package"] = cpu["numa_node"] // parts
                cpu["llc"] = min(c for c, cache in self.cache_of.items() if cache == self.cache_of[cpu["id"]])
        document["cpu_model"] = {
            "vendor": vendor,
            "smt_control": {"on": "on", "hand": "on", "firmware": "notsupported", "kernel": "off"}[smt],
        }
        self.vendor, self.document = vendor, document
        self.sharing = max(Counter(self.cache_of.values()).values())

    def plan(self, *guests: dict[str, Any], **intent: Any) -> dict[str, Any]:
        named = [{"name": f"g{i}", **guest} for i, guest in enumerate(guests)]
        intent = {"version": 1, "profile": "none", **intent, "guests": named}
        host = hosttune.Host.from_json(json.dumps(self.document))
        plan: dict[str, Any] = json.loads(hosttune.plan(host, hosttune.Intent.from_json(json.dumps(intent))).to_json())
        return plan

    def spanning(self, plan: dict[str, Any]) -> list[set[int]]:
        return [bad for guest in plan["guests"] for bad in spanning(guest, self.cache_of, self.sharing, self.vendor)]


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    vendor = draw(st.sampled_from([AMD, AMD, INTEL]))
    parts = draw(st.sampled_from([1, 2, 3] if vendor == INTEL else [1, 2, 4]))
    smt = draw(st.sampled_from(["on", "on", "firmware", "kernel", "hand"]))
    return Grid(
        vendor, draw(st.sampled_from([6, 8, 12, 16])), draw(st.integers(1, 3)), parts, smt,
        draw(st.sampled_from([0, 1, 3, 12])), draw(st.integers(1, 3)),
    )  # fmt: skip


SIZES = st.one_of(
    st.just({"vcpus": "auto", "memory": "auto"}),
    st.builds(lambda vcpus: {"vcpus": vcpus, "memory": "8GiB"}, st.integers(1, 80)),
)


@given(grid=grids(), gpus=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_no_cache_of_a_guest_spans_two_of_the_host(grid: Grid, gpus: list[int], data: st.DataObject) -> None:
    guests = [{"gpus": count, **data.draw(SIZES)} for count in gpus]
    plan = grid.plan(*guests, reserve={"cores_per_node": data.draw(st.integers(0, 3))})
    assert not grid.spanning(plan)


@pytest.mark.parametrize(
    ("cores", "caches", "smt", "gpus", "vcpus", "dies"),
    [
        (8, 4, "on", 1, 62, 1),  # 31 cores: the broken cache comes last
        (8, 4, "firmware", 1, 31, 1),
        (16, 2, "on", 1, 62, 1),
        (8, 4, "on", 4, 14, 1),  # 7 cores each
        (6, 8, "on", 1, 90, 15),  # 45 of 47 cores, in dies of half a cache
        (12, 4, "on", 1, 90, 15),
        (6, 8, "firmware", 1, 45, 15),
        (6, 8, "on", 8, 10, 1),  # inside one cache
        (6, 8, "on", 4, 20, 2),  # of 11 cores, 5 of each of two caches
        (7, 8, "on", 1, 98, 7),  # 49 of 55: the broken cache is left out
        (7, 8, "firmware", 4, 12, 2),
    ],
)
def test_an_auto_guest_sees_the_host_caches(
    cores: int, caches: int, smt: str, gpus: int, vcpus: int, dies: int
) -> None:
    grid = Grid(AMD, cores, caches, 1, smt, gpus=gpus, memory=256)
    plan = grid.plan(*({"gpus": 1} for _ in range(gpus)))
    assert not grid.spanning(plan)
    for guest in plan["guests"]:
        assert (len(guest["vcpu_pins"]), guest["topology"]["dies"], guest["cache"]) == (vcpus, dies, "passthrough")


def test_without_an_order_that_fits_the_guest_sees_no_l3_and_that_is_said() -> None:
    grid = Grid(AMD, 6, 8, 1, "on")
    plan = grid.plan({"gpus": 1, "vcpus": 32, "memory": "16GiB"})
    assert plan["guests"][0]["cache"] == "disable"
    assert any("the guest sees no L3: with 32 vCPUs" in finding["text"] for finding in plan["findings"])
    whole = grid.plan({"gpus": 1, "vcpus": 36, "memory": "16GiB"})
    assert (whole["guests"][0]["cache"], whole["guests"][0]["topology"]["dies"]) == ("passthrough", 3)


def test_cores_of_the_host_are_of_one_cache() -> None:
    """The core numbers of the caches alternate, so the three lowest are of two."""
    grid = Grid(AMD, 8, 2, 1, "on")
    for cpu in grid.document["cpus"]:
        if cpu["numa_node"] == 0:
            cpu["llc"] = cpu["core"] % 2
    kept = grid.plan({"gpus": 1}, reserve={"cores_per_node": 3})["housekeeping_cpus"]
    assert kept.startswith("0,2,4,")


def test_a_guest_of_the_most_vcpus_sees_the_host_caches() -> None:
    """255 vCPUs on four nodes are 31 cores of each: 30 are five whole caches."""
    grid = Grid(AMD, 6, 6, 2, "on", memory=256)
    (guest,) = grid.plan({"gpus": 4})["guests"]
    assert not grid.spanning({"guests": [guest]})
    assert (len(guest["vcpu_pins"]), guest["topology"]["dies"], guest["cache"]) == (240, 5, "passthrough")


@pytest.mark.parametrize(("smt", "gpus"), [("on", 1), ("firmware", 2)])
def test_cores_that_are_offline_in_different_caches_are_left_out_alike(smt: str, gpus: int) -> None:
    """Equal guests are equal, whichever node lacks cores, and each sees its caches."""
    grid = Grid(AMD, 12, 4, 1, smt, gpus=gpus, memory=256)
    lost = {(0, 13), (1, 2), (1, 30)}  # by node and core
    for cpu in grid.document["cpus"]:
        if (cpu["numa_node"], cpu["core"] % 48) in lost:
            cpu |= {"online": False, "core": None, "numa_node": None, "llc": None}
    plan = grid.plan(*({"gpus": 1} for _ in range(2 * gpus)))
    assert not grid.spanning(plan)
    assert {guest["cache"] for guest in plan["guests"]} == {"passthrough"}
    assert len({len(guest["vcpu_pins"]) for guest in plan["guests"]}) == 1


def test_cores_that_lack_a_thread_are_nobodys_and_equal_guests_are_equal() -> None:
    grid = Grid(AMD, 8, 4, 1, "on", gpus=2, memory=256)
    for cpu in grid.document["cpus"]:
        if cpu["id"] >= 64 and cpu["id"] % 9 == 0:
            cpu |= {"online": False, "core": None, "numa_node": None, "llc": None}
    plan = grid.plan(*({"gpus": 1} for _ in range(4)))
    assert not grid.spanning(plan)
    assert len({(len(guest["vcpu_pins"]), guest["cells"][0]["memory_bytes"]) for guest in plan["guests"]}) == 1
    assert {guest["topology"]["threads"] for guest in plan["guests"]} == {2}


def test_a_cache_that_is_wholly_offline_makes_the_others_no_larger() -> None:
    """Of eight caches one is not in sysfs: it is not CPUs that the others have besides."""
    grid = Grid(AMD, 8, 4, 1, "on", memory=256)
    for cpu in grid.document["cpus"]:
        if cpu["llc"] == 8:
            cpu |= {"online": False, "core": None, "numa_node": None, "llc": None}
    plan = grid.plan({"gpus": 1}, {"gpus": 1})
    assert not grid.spanning(plan)
    assert {guest["cache"] for guest in plan["guests"]} == {"passthrough"}
