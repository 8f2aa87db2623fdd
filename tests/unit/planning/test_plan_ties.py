"""What decides between equal costs: caches, then what stays placeable for guests that come later, then lowest nodes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planhosts import Card, Held, Shape, build_host, intent_of

from hosttune.inventory import cores as cut
from hosttune.inventory.cores import CellDemand, choose_cores, fits, has_whole_cores
from hosttune.inventory.sizing import PlanningContext, read_field
from hosttune.model.host import Host
from hosttune.model.intent import Intent, Reserve
from hosttune.model.values import parse_cpus
from hosttune.planning import plan
from hosttune.planning.batch import guest_request_of
from hosttune.planning.search.branch_and_bound import search_problem
from hosttune.planning.search.problem import Fragmentation, Fragments, joined

Json = dict[str, Any]
GIB = 1 << 30
CORES = 8  # of a node: siblings n and n + all cores of the host, two caches of 4 cores
GPUS = tuple(f"0000:{bus:02x}:00.0" for bus in (0x21, 0x31, 0x41, 0x51))


def cpus_of(cores: list[int], nodes: int) -> tuple[int, ...]:
    return (*cores, *(core + CORES * nodes for core in cores))


def host_of(used: dict[int, list[int]], nodes: int = 3, **changes: Any) -> Json:
    """A host of which one guest holds these cores of each node; core 0 of a node is the host's own."""
    cores = [node * CORES + core for node, here in used.items() for core in here]
    old = (Held(pins=cpus_of(cores, nodes), memory_bytes=GIB),) if cores else ()
    return build_host(Shape(nodes=nodes, cores_per_node=CORES, **{"guests": old, **changes}))


def nodes_taken(host: Json, **guest: Any) -> list[int]:
    wanted = {"gpus": 0, "vcpus": 4, "memory": "4GiB", "hugepages": "none", **guest}
    result = plan(Host.from_json(json.dumps(host)), Intent.from_json(json.dumps(intent_of(**wanted))))
    assert result.unplaced == ()
    place = {cpu["id"]: cpu["numa_node"] for cpu in host["cpus"]}
    return sorted({place[cpu] for pin in result.guests[0].vcpu_pins for cpu in parse_cpus(pin.cpus)})


# --- the order ---------------------------------------------------------------------------------------------------


def test_the_fullest_node_with_room_is_filled_first() -> None:
    assert nodes_taken(host_of({1: [1, 2, 3], 2: [1, 2, 3, 4, 5, 6]})) == [1]


def test_a_fuller_node_waits_where_the_guest_would_span_more_caches() -> None:
    assert nodes_taken(host_of({1: [1, 2, 4, 5, 6]})) == [0]


def test_two_cells_leave_the_emptiest_node_whole() -> None:
    assert nodes_taken(host_of({1: [1], 2: [1, 2]}), numa=2) == [1, 2]


def test_a_guest_without_gpus_leaves_cpus_to_free_gpus() -> None:
    cards = [Card(GPUS[0], 0), Card(GPUS[1], 1)]
    assert nodes_taken(host_of({1: [1, 2]}, cards=cards)) == [2]


def test_gpus_that_a_guest_holds_need_no_cpus() -> None:
    holds = Held(pins=cpus_of([9, 10], 2), memory_bytes=GIB, devices=(GPUS[1],))
    cards = [Card(GPUS[0], 0), Card(GPUS[1], 1)]
    assert nodes_taken(host_of({}, 2, cards=cards, guests=(holds,))) == [1]


def test_a_guest_takes_its_gpu_where_fewest_stay_behind() -> None:
    cards = [Card(address, node) for address, node in zip(GPUS, (0, 0, 1, 2), strict=True)]
    assert nodes_taken(host_of({0: [1, 2]}, cards=cards), gpus=1) == [1]


def test_a_whole_cache_stays_whole() -> None:
    """As many cores are free on both nodes, and one cache is enough on both: on node 1 it is broken already."""
    assert nodes_taken(host_of({0: [1, 2, 3], 1: [1, 5, 6]}, 2)) == [1]


def test_a_guest_of_ordinary_pages_leaves_large_ones_alone() -> None:
    pages = {0: {GIB: (8, 8)}, 1: {GIB: (8, 0)}}
    assert nodes_taken(host_of({}, 2, hugepages=pages)) == [1]
    assert nodes_taken(host_of({}, 2, hugepages=pages), hugepages="1GiB") == [0]


def test_what_is_equal_goes_to_the_lowest_nodes() -> None:
    assert nodes_taken(host_of({})) == [0]
    assert nodes_taken(host_of({}), numa=2) == [0, 1]


def test_no_tie_break_is_worth_any_distance() -> None:
    distances = [[10, 20, 12], [20, 10, 20], [12, 20, 10]]
    assert nodes_taken(host_of({1: [1, 2, 3]}, distances=distances), numa=2) == [0, 2]


# --- exact -------------------------------------------------------------------------------------------------------


@st.composite
def crowded(draw: st.DrawFn) -> Json:
    """A host of some nodes with different room, in groups or at any distance."""
    nodes = draw(st.integers(2, 6))
    used = {n: sorted(draw(st.sets(st.integers(1, CORES - 1), max_size=6))) for n in range(nodes)}
    if draw(st.booleans()):
        distances = [[10 if a == b else 12 if a // 2 == b // 2 else 20 for b in range(nodes)] for a in range(nodes)]
    else:
        far = {(a, b): draw(st.sampled_from((12, 20))) for a in range(nodes) for b in range(a)}
        distances = [[10 if a == b else far[max(a, b), min(a, b)] for b in range(nodes)] for a in range(nodes)]
    cards = [Card(address, draw(st.integers(0, nodes - 1))) for address in GPUS]
    return host_of(used, nodes, distances=distances, cards=cards)


def field_of(host: Json) -> PlanningContext:
    return read_field(Host.from_json(json.dumps(host)), Reserve())


def broken_by(
    field: PlanningContext, cells: Sequence[CellDemand], nodes: Sequence[int], taken: Sequence[int]
) -> Fragmentation:
    """What cells on these nodes break up, for a guest that takes a GPU of each node of `taken`."""
    fragments, shape = Fragments(field), cut.GuestShape(tuple(cells), 2, None, share_cores=False)
    pairs = zip(cells, nodes, strict=True)
    of_cells = (fragments.of_cell(cell, shape, node, Counter(taken)) for cell, node in pairs)
    return reduce(joined, of_cells, fragments.of_gpus(()))


@given(crowded(), st.lists(st.sampled_from((2, 4, 6)), min_size=1, max_size=3), st.booleans())
def test_the_first_placement_breaks_up_least_of_the_cheapest(host: Json, vcpus: list[int], equal: bool) -> None:
    """Against every way to put the cells on nodes; the guest has the GPU of node 0 where the host has one there."""
    field = field_of(host)
    resources = field.resources
    cells = tuple(CellDemand(vcpus[0] if equal else own, GIB) for own in vcpus)
    numa = [{"vcpus": cell.vcpus, "memory": "1GiB"} for cell in cells]
    gpus = [address for address in GPUS if field.catalogue.node(address) == 0][:1]
    guest = intent_of(gpus=gpus, numa=numa, hugepages="none")["guests"][0]
    want = guest_request_of(field, Intent.from_json(json.dumps({"version": 1, "guests": [guest]})).guests[0], "guest")
    searched = search_problem(field, [want])
    found = searched.streams[0].get(0)

    def cost(nodes: tuple[int, ...]) -> Fraction:
        shares = [Fraction(cell.vcpus, sum(vcpu.vcpus for vcpu in cells)) for cell in cells]
        near = sum((s * resources.distance(n, 0) for s, n in zip(shares, nodes, strict=True)), Fraction(0))
        return near * len(gpus) + sum(resources.distance(a, b) for a, b in combinations(nodes, 2))

    shape = cut.GuestShape(cells, 2, None, share_cores=False)
    able = [
        (cost(nodes), broken_by(field, cells, nodes, [0] * len(gpus)))
        for nodes in permutations(resources.nodes, len(cells))
        if all(
            fits(resources.nodes[node], field.memory[node], cell, shape)
            for node, cell in zip(nodes, cells, strict=True)
        )
    ]
    assert (found is None) == (not able)
    if found:
        best = found.nodes
        assert (cost(best), broken_by(field, cells, best, [0] * len(gpus))) == min(able)
        assert Fraction(found.rank.cost, searched.problem.unit) == min(able)[0]


@given(crowded(), st.integers(1, 2))
def test_fragmentation_compares_as_the_rule_says(host: Json, count: int) -> None:
    """The sums over cells against the rule written out, over every set of nodes."""
    field = field_of(host)
    nodes = field.resources.nodes
    gpus = Counter(field.catalogue.node(address) for address in GPUS)
    cells = (CellDemand(4, GIB),) * count
    shape = cut.GuestShape(cells, 2, None, share_cores=False)

    def caches(node: int) -> tuple[int, int]:
        here = nodes[node]
        taken = choose_cores(here, 4, shape)
        by_cache = {c.llc: {o.id for o in here.cores if o.llc == c.llc and o not in here.reserved} for c in taken}
        free = {core.id for core in here.free}
        whole = [own for own in by_cache.values() if own <= free]
        return len(by_cache), sum(not own <= {core.id for core in taken} for own in whole)

    def rule(chosen: tuple[int, ...]) -> Any:
        taken = [caches(node) for node in chosen]
        room = sorted((len(nodes[node].free) for node in chosen), reverse=True)
        return sum(c for c, _ in taken), sum(gpus[node] for node in chosen), room, sum(cut for _, cut in taken)

    able = [node for node in nodes if has_whole_cores(nodes[node], 4, 2)]
    sets = [chosen for chosen in permutations(able, count) if list(chosen) == sorted(chosen)]
    broken = {chosen: broken_by(field, cells, chosen, ()) for chosen in sets}
    assert sorted(sets, key=broken.__getitem__) == sorted(sets, key=rule)
    assert all(broken[chosen].caches == rule(chosen)[0] for chosen in sets)


@given(crowded())
def test_of_all_gpus_the_one_is_taken_that_breaks_up_least(host: Json) -> None:
    """Every GPU is as near to CPUs of its own node as any other, so that only ties decide; none is passed over."""
    field = field_of(host)
    cells = (CellDemand(4, GIB),)
    homes = [node for node in map(field.catalogue.node, GPUS) if node is not None]
    able = sorted(node for node in set(homes) if has_whole_cores(field.resources.nodes[node], 4, 2))
    if able:
        assert nodes_taken(host, gpus=1) == [min(able, key=lambda node: broken_by(field, cells, [node], [node]))]


@pytest.mark.parametrize("numa", [1, 2, 4])
def test_the_answer_does_not_depend_on_the_order_of_the_document(numa: int) -> None:
    host = host_of({0: [1, 2], 1: [3, 4], 2: [5]}, 5)
    turned = {**host, "numa_nodes": host["numa_nodes"][::-1], "cpus": host["cpus"][::-1]}
    assert nodes_taken(host, vcpus=8, numa=numa) == nodes_taken(turned, vcpus=8, numa=numa)
