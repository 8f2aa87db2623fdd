"""Rounds of pairs: no host twice, no pair twice, all hosts connected; 1,000 hosts take minutes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosttune.cluster.pairs.schedule import ALL_PAIRS, DEFAULT_ROUNDS, completing, minutes, regrouped, rounds, steps

Rounds = tuple[tuple[tuple[str, str], ...], ...]


def names(count: int) -> list[str]:
    return [f"h{number}" for number in range(count)]


def no_host_twice(made: Rounds) -> bool:
    return all(len({host for pair in one for host in pair}) == 2 * len(one) for one in made)


def connected(made: Rounds, hosts: list[str]) -> bool:
    """Oracle: hosts that can be reached from the first, by repeated union."""
    group = {host: {host} for host in hosts}
    for one in made:
        for a, b in one:
            if group[a] is not group[b]:
                group[a] |= group[b]
                for host in group[b]:
                    group[host] = group[a]
    return len(group[hosts[0]]) == len(hosts)


@pytest.mark.parametrize("count", range(2, ALL_PAIRS + 1))
def test_up_to_32_hosts_every_pair_is_measured_once(count: int) -> None:
    made = rounds(names(count))
    assert no_host_twice(made)
    pairs = Counter(frozenset(pair) for one in made for pair in one)
    assert pairs == Counter(frozenset((a, b)) for a in names(count) for b in names(count) if a < b)
    assert len(made) == count - 1 + count % 2  # the least: each host is in one pair a round
    sent = Counter(sender for one in made for sender, _ in one)
    assert max(sent.values()) - min(sent[host] for host in names(count)) <= 1


@settings(max_examples=25, deadline=None)
@given(st.integers(33, 400), st.integers(2, 12))
def test_above_32_hosts_rounds_are_bounded_and_connect_all(count: int, most: int) -> None:
    made = rounds(names(count), most)
    assert len(made) == min(most, count - 1 + count % 2)
    assert no_host_twice(made)
    pairs = [frozenset(pair) for one in made for pair in one]
    assert len(pairs) == len(set(pairs))
    assert connected(made, names(count))
    met = Counter(host for pair in pairs for host in pair)
    assert min(met[host] for host in names(count)) >= len(made) - 1  # an odd number of hosts: one waits


def test_a_thousand_hosts_take_minutes() -> None:
    """With the real scheduler: 8 rounds; 8 ports of 2 s each, at once 6 minutes on 16 cores, one by one 22."""
    made = rounds(names(1000))
    assert len(made) == DEFAULT_ROUNDS
    assert connected(made, names(1000))
    assert 2 < minutes(made, 200, 3.5, 16) < 8
    assert 10 < minutes(made, 200, 8 * 3.5, 16) < 30
    assert minutes(made, 200, 3.5, 1) > minutes(made, 200, 3.5, 16)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(names(12)), st.sampled_from(names(12))).filter(lambda p: p[0] != p[1])))
def test_any_pairs_are_put_into_rounds(pairs: list[tuple[str, str]]) -> None:
    made = regrouped(pairs)
    assert no_host_twice(made)
    assert sorted(pair for one in made for pair in one) == sorted(set(pairs))


@settings(max_examples=25, deadline=None)
@given(st.integers(33, 150), st.lists(st.sets(st.integers(0, 149), min_size=2, max_size=60), min_size=1, max_size=5))
def test_hosts_with_rails_that_few_have_meet_on_them(count: int, some_hosts: list[set[int]]) -> None:
    """On every rail each host meets all others, or at least half as many as there are rounds."""
    made = rounds(names(count))
    groups = [[name for number, name in enumerate(names(count)) if number in one] for one in some_hosts]
    more = completing(made, groups)
    assert no_host_twice(more)
    pairs = [frozenset(pair) for one in (*made, *more) for pair in one]
    assert len(pairs) == len(set(pairs))
    for group in groups:
        for host in group:
            met = sum(host in pair and pair <= set(group) for pair in pairs)
            assert met >= min(len(group) - 1, DEFAULT_ROUNDS // 2)


def test_hosts_that_have_the_same_rails_get_no_more_rounds() -> None:
    assert completing(rounds(names(100)), [names(100)] * 8) == ()
    assert completing(rounds(names(101)), [names(101)]) == ()


def test_few_hosts_and_steps() -> None:
    assert rounds([]) == rounds(["a"]) == ()
    assert rounds(["a", "b"]) == ((("a", "b"),),) or rounds(["a", "b"]) == ((("b", "a"),),)
    (one,) = rounds(names(10), 1)
    assert [len(step) for step in steps(one, 4)] == [2, 2, 1]
    assert [len(step) for step in steps(one, 1)] == [1] * 5
