"""What nodes have to give: memory and its pools, CPUs of unknown place, distances of which some are missing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from planhosts import Card, Held, build_host, intent_of

import hosttune
from hosttune.inventory.pages import NodeMemory, read_memory, reserve_bytes
from hosttune.inventory.resources import LOCAL_DISTANCE, REMOTE_DISTANCE, Resources, read_resources
from hosttune.model.host import Host, HugePages, NumaNode
from hosttune.model.intent import Intent, Reserve
from hosttune.model.plan import Plan
from hosttune.model.values import to_json
from hosttune.planning import plan

GIB = 1 << 30
MIB = 1 << 20
Json = dict[str, Any]


def host_of(document: Json) -> Host:
    return Host.from_json(to_json(document))


def planned(document: Json, **intent: Any) -> Plan:
    return plan(host_of(document), Intent.from_json(to_json(intent_of(**{"vcpus": 4, "memory": "4GiB", **intent}))))


def memory_of(*pools: HugePages, memory_gib: int | None = 64, reserve: Reserve | None = None) -> NodeMemory:
    size = None if memory_gib is None else memory_gib * GIB
    node = NumaNode(id=0, cpus="0-3", memory_bytes=size, hugepages=pools)
    return read_memory(Host(numa_nodes=(node,)), reserve or Reserve())[0]


def resources_of(document: Json) -> Resources:
    return read_resources(host_of(document), Reserve())


# --- pools ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "free", "pages_free", "want", "creatable_gib"),
    [
        (20, 8, 8, 24, 36),  # 64 less 8 for the host less 20 in the pool
        (20, 20, 20, 20, 36),
        (20, None, 0, 32, 36),
        (None, 8, 8, 12, 48),  # 4 missing on top of the 8 that are known to be there
        (None, None, 0, 12, 56),
        (20, 25, 20, 20, 36),  # more free than there are: a mistake that gives nothing
    ],
)
def test_a_pool_in_part_unknown(
    total: int | None, free: int | None, pages_free: int, want: int, creatable_gib: int
) -> None:
    memory = memory_of(HugePages(size_bytes=GIB, total=total, free=free))
    assert memory.pages_free(GIB) == pages_free
    assert memory.pages_wanted(GIB, 12 * GIB) == want
    assert memory.creatable_bytes == creatable_gib * GIB
    assert memory.pools[GIB].total == total


def test_a_pool_that_is_not_there_needs_every_page() -> None:
    memory = memory_of()
    assert (memory.pages_known(GIB), memory.pages_wanted(GIB, 3 * GIB)) == (0, 3)


# --- nodes with little or no memory --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory_gib", "asked", "kept_gib"),
    [(64, None, 8), (16, None, 4), (0, None, 0), (None, None, 8), (4, "8GiB", 4), (0, "8GiB", 0), (None, "2GiB", 2)],
)
def test_the_reserve_is_never_more_than_the_node(memory_gib: int | None, asked: str | None, kept_gib: int) -> None:
    size = None if memory_gib is None else memory_gib * GIB
    host = Host(numa_nodes=(NumaNode(id=0, memory_bytes=size),))
    assert reserve_bytes(host, Reserve(memory_per_node=asked)) == {0: kept_gib * GIB}


@pytest.mark.parametrize(
    ("memory_gib", "bars_gib", "cores", "kept_gib"),
    [
        (1024, [256] * 4, 96, 8),  # 2 of the host, 2 of page tables, 1.5 of QEMU's 192 vCPUs, 1 of four guests
        (2048, [256] * 8, 96, 10),  # 2 + 4 + 1.5 + 2 = 9.5
        (2048, [512] * 8, 96, 14),  # 2 + 8 + 1.5 + 2 = 13.5
        (32, [512] * 8, 96, 8),  # never more than a quarter
        (2048, [], 384, 8),  # 2 + 6
    ],
)
def test_the_reserve_holds_page_tables_and_qemu(
    memory_gib: int, bars_gib: list[int], cores: int, kept_gib: int
) -> None:
    cards = [Card(f"0000:{0x41 + n:02x}:00.0", 0, group=n) for n in range(len(bars_gib))]
    document = build_host(nodes=1, cores_per_node=cores, memory_gib=memory_gib, cards=cards)
    for card, size in zip(cards, bars_gib, strict=True):
        row = next(row for row in document["pci"] if row["address"] == card.address)
        row["bars"] = [{"index": 2, "size_bytes": size * GIB}]
    assert reserve_bytes(host_of(document), Reserve()) == {0: kept_gib * GIB}
    for row in document["pci"]:
        row["numa_node"] = None  # as firmware of one-node hosts often leaves it
    assert reserve_bytes(host_of(document), Reserve()) == {0: kept_gib * GIB}
    assert reserve_bytes(host_of(document), Reserve(memory_per_node="3GiB")) == {0: 3 * GIB}


@pytest.mark.parametrize(
    ("cores", "posts", "asked", "kept"),
    [(32, False, None, 2), (31, False, None, 1), (32, True, None, 1), (32, None, None, 1), (32, False, 1, 1)],
)
def test_a_host_that_sees_each_interrupt_keeps_another_core(
    cores: int, posts: bool | None, asked: int | None, kept: int
) -> None:
    host = host_of({**build_host(cores_per_node=cores), "iommu": {"interrupt_posting": posts}})
    nodes = read_resources(host, Reserve(cores_per_node=asked)).nodes
    assert [len(node.reserved) for node in nodes.values()] == [kept, kept]


@pytest.mark.parametrize(
    ("memory_gib", "asked", "text"),
    [
        (0, None, "node 0 has no memory"),
        (4, "8GiB", "the host's reserve takes all 4 GiB of node 0"),
        (4, "4GiB", "the host's reserve takes all 4 GiB of node 0"),
        (4, "2GiB", None),
        (64, None, None),
        (None, None, None),  # unknown is not none
    ],
)
def test_a_node_with_nothing_to_share_says_why(memory_gib: int | None, asked: str | None, text: str | None) -> None:
    memory = memory_of(memory_gib=memory_gib, reserve=Reserve(memory_per_node=asked))
    assert memory.nothing_to_share == text
    assert memory.assignable_bytes is None or memory.assignable_bytes >= 0
    assert memory.creatable_bytes is None or memory.creatable_bytes >= 0
    assert memory.has_memory == (memory_gib != 0)


# --- CPUs of unknown place -----------------------------------------------------------------------------------


def without_places(document: Json, *, keep: tuple[int, ...] = ()) -> Json:
    """A document that the contract allows, with neither nodes of CPUs nor CPUs of nodes, but for some CPUs."""
    for cpu in document["cpus"]:
        if cpu["id"] not in keep:
            cpu["numa_node"] = None
    for node in document["numa_nodes"]:
        del node["cpus"]
    return document


def test_cpus_of_one_node_are_its_own() -> None:
    document = without_places(build_host(nodes=1))
    resources = resources_of(document)
    assert len(resources.nodes[0].cores) == 8
    assert resources.cpu_nodes_known
    assert resources.findings == ()


@pytest.mark.parametrize(("memory_gib", "node"), [([64, 64], 0), ([0, 64], 1), ([0, 0], 0)])
def test_cpus_that_nobody_places_count_as_one_node_with_memory(memory_gib: list[int], node: int) -> None:
    resources = resources_of(without_places(build_host(memory_gib=memory_gib)))
    assert [len(n.cores) for n in resources.nodes.values()] == [16 * (node == 0), 16 * (node == 1)]
    assert not resources.cpu_nodes_known
    (finding,) = resources.findings
    assert (finding.level, finding.where) == ("warn", "cpus[].numa_node")
    assert f"node {node}" in finding.text


def test_memory_that_is_known_comes_before_memory_that_is_not() -> None:
    document = without_places(build_host())
    document["numa_nodes"][0]["memory_bytes"] = None
    assert len(resources_of(document).nodes[1].cores) == 16


def test_cpus_that_nobody_places_do_not_unplace_a_guest() -> None:
    made = planned(without_places(build_host(cards=[Card("0000:41:00.0", 1, group=1)])), gpus=1)
    assert [cell.host_nodes for cell in made.guests[0].cells] == ["0"]
    assert any("unknown" in f.text and f.level == "warn" for f in made.findings if f.where == "cpus[].numa_node")


def test_a_few_cpus_without_a_place_are_not_used() -> None:
    document = without_places(build_host(nodes=2), keep=tuple(range(12)))
    resources = resources_of(document)
    assert resources.cpu_nodes_known
    used = {cpu for node in resources.nodes.values() for core in node.cores for cpu in core.cpus}
    assert used == set(range(12))
    assert any("12-31" in finding.text for finding in resources.findings)


def test_an_existing_guest_holds_memory_where_its_cpus_say_they_are() -> None:
    """Nodes without CPU lists: the CPUs' own word is enough."""
    document = build_host(guests=[Held(pins=(9, 25), memory_bytes=8 * GIB)])
    for node in document["numa_nodes"]:
        del node["cpus"]
    memory = read_memory(host_of(document), Reserve())
    assert [memory[node].creatable_bytes for node in (0, 1)] == [56 * GIB, 48 * GIB]


# --- distances -----------------------------------------------------------------------------------------------


def test_the_distances_of_a_whole_table_are_known() -> None:
    resources = resources_of(build_host())
    assert resources.has_all_distances((0, 1))
    assert resources.distance(0, 1) == 21
    assert resources.findings == ()


@pytest.mark.parametrize(
    ("row", "distance"),
    [
        (None, REMOTE_DISTANCE),
        ({}, REMOTE_DISTANCE),
        ({"0": 10}, REMOTE_DISTANCE),
        ({"0": 10, "1": 0}, REMOTE_DISTANCE),
        ({"0": 10, "1": -5}, REMOTE_DISTANCE),
        ({"0": 10, "node1": 21}, REMOTE_DISTANCE),
        ({"0": 10, "": 21, "-1": 7, "²": 7}, REMOTE_DISTANCE),
    ],
)
def test_a_missing_or_senseless_distance_is_assumed_and_said(row: Json | None, distance: int) -> None:
    document = build_host()
    document["numa_nodes"][0]["distances"] = row
    resources = read_resources(msgspec.convert(document, Host), Reserve())  # from_json refuses some of these
    assert resources.distance(0, 1) == distance
    assert resources.distance(0, 0) == LOCAL_DISTANCE
    assert resources.distance(1, 0) == 21
    assert not resources.has_all_distances((0, 1))
    assert resources.has_all_distances((1,))
    (finding,) = resources.findings
    assert (finding.level, finding.where) == ("warn", "numa_nodes[].distances")


def test_one_node_needs_no_table() -> None:
    document = build_host(nodes=1)
    document["numa_nodes"][0]["distances"] = None
    resources = resources_of(document)
    assert resources.findings == ()
    assert not resources.has_all_distances((0,))  # nothing to cite


def test_the_example_knows_its_distances() -> None:
    resources = read_resources(hosttune.discover("examples/hgx-h200-8.tar.xz"), Reserve())
    assert resources.has_all_distances(resources.nodes)
