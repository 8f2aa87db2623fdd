"""The order of moves of running guests' threads: nobody joins a guest on a core that the plan gives to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from hosttune.domain.moves import Move, Thread, in_safe_order
from hosttune.model.values import CpuSet

Threads = tuple[Thread, ...]
SERVICES = CpuSet((0, 1))  # one core, planned for no guest
CORES = {cpu: cpu & ~1 for cpu in range(64)}


def vcpus(guest: str, *places: tuple[str, str]) -> Iterator[Thread]:
    """vCPUs of a guest by the CPUs that each has and wants."""
    for number, (now, want) in enumerate(places):
        yield Thread(guest, f"vcpu.{number}", CpuSet.parse(now), CpuSet.parse(want))


def emulator(guest: str, now: str = "0-1") -> Thread:
    return Thread(guest, "emulator", CpuSet.parse(now), SERVICES)


@st.composite
def guests(draw: st.DrawFn, *, alone: bool = False) -> Threads:
    """Threads of up to four guests, each wanted on a core of its own; now on any one core, on some, or on all.

    `alone`: each thread is on one core now, which no other has.
    """
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    count = sum(sizes)
    wanted = draw(st.permutations(range(1, 1 + count)))
    if alone:
        now = [CpuSet((2 * core,)) for core in draw(st.permutations(range(1, 1 + count)))]
    else:
        places = st.sets(st.integers(0, 2 * count + 3), min_size=1, max_size=4)
        now = [CpuSet(draw(st.one_of(places, st.just(set(range(2 * count + 4)))))) for _ in range(count)]
    threads: list[Thread] = []
    for number, size in enumerate(sizes):
        name = f"guest{number}"
        for vcpu in range(size):
            at = sum(sizes[:number]) + vcpu
            threads.append(Thread(name, f"vcpu.{vcpu}", now[at], CpuSet((2 * wanted[at],))))
        everywhere = not alone and draw(st.booleans())
        threads.append(emulator(name, f"0-{2 * count + 3}" if everywhere else "0-1"))
    return tuple(threads)


def states(threads: Threads, moves: Sequence[Move]) -> Iterator[tuple[Move, dict[Thread, CpuSet]]]:
    """Each move with the CPUs of all threads after it."""
    at = {thread: thread.now for thread in threads}
    for move in moves:
        at = at | {move.thread: move.cpus}
        yield move, at


def sharing(at: dict[Thread, CpuSet], thread: Thread) -> list[Thread]:
    """Threads of other guests that may run on the cores of one."""
    mine = {CORES[cpu] for cpu in at[thread]}
    return [one for one in at if one.guest != thread.guest and mine & {CORES[cpu] for cpu in at[one]}]


@settings(max_examples=examples(150, 3000), deadline=None)
@given(guests())
def test_where_a_vcpu_has_arrived_its_guest_is_alone_and_all_arrive(threads: Threads) -> None:
    moves = in_safe_order(threads, CORES)
    arrived: set[Thread] = set()
    at = {thread: thread.now for thread in threads}
    for move, after in states(threads, moves):
        at = after
        if not move.meanwhile:
            arrived.add(move.thread)
        for thread in arrived:
            assert thread.name == "emulator" or not sharing(at, thread), (move, thread)
    assert all(at[thread] == thread.want for thread in threads)
    assert len([move for move in moves if not move.meanwhile]) == len([one for one in threads if one.now != one.want])
    parked = [move.thread for move in moves if move.meanwhile]
    assert len(parked) == len(set(parked))


@settings(max_examples=examples(150, 3000), deadline=None)
@given(guests(alone=True))
def test_of_permutations_one_thread_of_a_cycle_is_moved_twice(threads: Threads) -> None:
    holder = {CORES[min(one.now)]: one for one in threads if one.name != "emulator"}
    cycles, seen = 0, set[Thread]()
    for start in holder.values():
        chain = [start]
        while (after := holder[CORES[min(chain[-1].want)]]) not in chain and after not in seen:
            chain.append(after)
        # Threads of one guest do not wait for each other.
        guests_there = {one.guest for one in chain}
        cycles += start not in seen and len(chain) > 1 and len(guests_there) > 1
        seen.update(chain)
    moves = in_safe_order(threads, CORES)
    assert len(moves) <= len([one for one in threads if one.now != one.want]) + cycles
    assert all(move.cpus == SERVICES for move in moves if move.meanwhile)


@given(guests(alone=True))
def test_the_way_back_is_as_safe(threads: Threads) -> None:
    back = tuple(Thread(one.guest, one.name, one.want, one.now) for one in threads)
    at = {thread: thread.now for thread in back}
    for move, after in states(back, in_safe_order(back, CORES)):
        at = after
        assert move.meanwhile or move.thread.name == "emulator" or not sharing(at, move.thread)
    assert all(at[thread] == thread.want for thread in back)


def test_a_swap_goes_by_housekeeping() -> None:
    threads = (*vcpus("a", ("4", "6")), *vcpus("b", ("6", "4")), emulator("a"), emulator("b"))
    moves = in_safe_order(threads, CORES)
    assert [(move.thread.guest, str(move.cpus), move.meanwhile) for move in moves] == [
        ("b", "0-1", True), ("a", "6", False), ("b", "4", False),
    ]  # fmt: skip


@pytest.mark.parametrize(("now", "want"), [("0-63", "0-1"), ("0-1", "0-63")])
def test_the_fewer_cpus_of_the_emulator_are_housekeeping(now: str, want: str) -> None:
    services = [Thread(guest, "emulator", CpuSet.parse(now), CpuSet.parse(want)) for guest in "ab"]
    moves = in_safe_order((*vcpus("a", ("4", "6")), *vcpus("b", ("6", "4")), *services), CORES)
    assert [str(move.cpus) for move in moves if move.meanwhile] == ["0-1"]


def test_a_floating_guest_is_narrowed_not_parked() -> None:
    """The first move takes nothing from it but what is planned for the other."""
    threads = (*vcpus("a", ("0-9", "4")), *vcpus("b", ("0-9", "6")), emulator("a"), emulator("b"))
    moves = in_safe_order(threads, CORES)
    assert [(move.thread.guest, str(move.cpus)) for move in moves] == [("b", "0-3,6-9"), ("a", "4"), ("b", "6")]


def test_who_floats_makes_room_before_anybody_is_parked() -> None:
    threads = (*vcpus("a", ("0-9", "4")), *vcpus("b", ("4", "6")), emulator("a"), emulator("b"))
    moves = in_safe_order(threads, CORES)
    assert [(move.thread.guest, str(move.cpus)) for move in moves] == [("a", "0-5,8-9"), ("b", "6"), ("a", "4")]


def test_siblings_of_a_core_count_as_one() -> None:
    threads = (*vcpus("a", ("8", "4")), *vcpus("b", ("5", "6")), emulator("a"))
    assert [move.thread.guest for move in in_safe_order(threads, CORES)] == ["b", "a"]
    assert [move.thread.guest for move in in_safe_order(threads, {})] == ["a", "b"]


def test_what_frees_a_core_of_another_goes_first() -> None:
    threads = (*vcpus("a", ("8", "10")), *vcpus("b", ("12", "14")), *vcpus("c", ("14", "16")), emulator("a"))
    assert [move.thread.guest for move in in_safe_order(threads, CORES)] == ["c", "a", "b"]


def test_without_any_cpu_in_between_it_says_so() -> None:
    threads = (*vcpus("a", ("4", "6")), *vcpus("b", ("6", "4")))
    with pytest.raises(ValueError, match=r"vcpu\.0 of guest b must leave CPUs 6, and no CPU is left over"):
        in_safe_order(threads, CORES)


def test_nothing_to_do() -> None:
    assert in_safe_order((*vcpus("a", ("4", "4")), emulator("a")), CORES) == ()
