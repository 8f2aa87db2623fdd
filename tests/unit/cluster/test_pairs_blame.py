"""Who is at fault: planted faults over random matrices must be found, and nothing else blamed.

The figures are made by the model of the specification, written here alone: a pair is as fast as the slower of its two
ports and of its path, with noise. Nothing of the judged code makes them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from sweeps import examples

from hosttune.cluster.pairs.blame import blame
from hosttune.cluster.pairs.judging import judged, verdict_of
from hosttune.cluster.pairs.schedule import rounds
from hosttune.model.pairs import Pair

RATE = 400.0


def made(
    hosts: int,
    rails: int,
    slow: dict[tuple[int, int], float],
    paths: Collection[tuple[int, int, int]] = (),
    *,
    seed: int = 0,
    unknown: float = 0.0,
    most: int | None = None,
    tenths: float = 0.02,
) -> tuple[Pair, ...]:
    """Pairs of a fleet: `slow` (host, rail) → part of the rate; `paths`: (host, host, rail) that carry a third."""
    chance = random.Random(seed)
    names = [f"h{number}" for number in range(hosts)]
    found = []
    for number, one in enumerate(rounds(names, most), 1):
        for (sender, receiver), rail in itertools.product(one, range(rails)):
            a, b = int(sender[1:]), int(receiver[1:])
            part = min(slow.get((a, rail), 1.0), slow.get((b, rail), 1.0))
            if (a, b, rail) in paths or (b, a, rail) in paths:
                part = min(part, 0.33)
            lost = chance.random() < unknown
            figure = RATE * 0.98 * part * (1 - tenths * chance.random())
            found.append(
                Pair(
                    sender=sender, receiver=receiver, rail=f"r{rail}", round=number, state="unknown",
                    outcome="host-lost" if lost else "measured", gbps=None if lost else figure, rate_gbps=RATE,
                )
            )  # fmt: skip
    return judged(found, floor=0.9, against=("rate", "median"))


def told(pairs: tuple[Pair, ...]) -> set[tuple[str, tuple[str, ...], str | None]]:
    return {(fault.kind, fault.hosts, fault.rail) for fault in blame(pairs)}


@settings(max_examples=examples(30, full=1500), deadline=None)
@given(st.data())
def test_planted_faults_are_found_and_nothing_else(data: st.DataObject) -> None:
    """Several slow hosts and ports at once, of all pairs and of bounded rounds, with unknown pairs between."""
    many = data.draw(st.booleans())
    hosts = data.draw(st.integers(40, 90) if many else st.integers(8, 24))
    rails = data.draw(st.integers(2, 4))
    # With 8 rounds a port has 8 pairs: a tenth of slow hosts leaves it more good than bad ones but for rare chance.
    number = data.draw(st.integers(0, 3 if many else max(1, hosts // 5)))
    chosen = data.draw(st.lists(st.integers(0, hosts - 1), min_size=number, max_size=number, unique=True))
    whole = [host for host in chosen if data.draw(st.booleans())]
    single = {host: data.draw(st.integers(0, rails - 1)) for host in chosen if host not in whole}
    part = data.draw(st.floats(0.05, 0.8))
    slow = {(host, rail): part for host in whole for rail in range(rails)} | dict.fromkeys(single.items(), part)
    pairs = made(hosts, rails, slow, seed=data.draw(st.integers(0, 9)), unknown=data.draw(st.sampled_from([0, 0.1])))
    expected: set[tuple[str, tuple[str, ...], str | None]] = {("host", (f"h{host}",), None) for host in whole}
    expected |= {("port", (f"h{host}",), f"r{rail}") for host, rail in single.items()}
    assert told(pairs) == expected


@settings(max_examples=examples(20, full=800), deadline=None)
@given(st.data())
def test_slow_paths_are_pairs_beside_slow_ports(data: st.DataObject) -> None:
    hosts = data.draw(st.integers(8, 20))
    bad = data.draw(st.integers(0, hosts - 1))
    ends = st.tuples(st.integers(0, hosts - 1), st.integers(0, hosts - 1)).filter(lambda p: p[0] < p[1])
    first, second = data.draw(ends.filter(lambda p: bad not in p))
    pairs = made(hosts, 2, {(bad, 1): 0.5}, [(first, second, 0)])
    names = tuple(sorted((f"h{first}", f"h{second}")))
    assert told(pairs) == {("port", (f"h{bad}",), "r1"), ("pair", names, "r0")}


@settings(max_examples=examples(60, full=3000), deadline=None)
@given(st.data())
def test_a_healthy_port_is_never_blamed_however_many_are_bad_and_unknown(data: st.DataObject) -> None:
    """Few hosts or many, up to all but one of them bad, half of the pairs unknown. All bad pairs are explained."""
    hosts = data.draw(st.integers(3, 16) | st.integers(33, 60))
    rails = data.draw(st.integers(1, 4))
    bad = data.draw(st.sets(st.integers(0, hosts - 1), max_size=hosts - 1))
    ports = data.draw(st.sets(st.tuples(st.integers(0, hosts - 1), st.integers(0, rails - 1)), max_size=4))
    slow = {(host, rail): 0.4 for host in bad for rail in range(rails)} | dict.fromkeys(ports, 0.4)
    unknown = data.draw(st.sampled_from([0, 0.1, 0.3, 0.5]))
    pairs = made(hosts, rails, slow, seed=data.draw(st.integers(0, 999)), unknown=unknown)
    faults = blame(pairs)
    for fault in faults:
        if fault.kind in ("host", "port"):
            own = range(rails) if fault.rail is None else [int(fault.rail[1:])]
            assert all((int(fault.hosts[0][1:]), rail) in slow for rail in own), fault.words
    for pair in pairs:
        ends = {pair.sender, pair.receiver}
        named = [f for f in faults if f.rail in (None, pair.rail) and (not f.hosts or ends & set(f.hosts))]
        assert bool([f for f in named if f.kind != "pair" or set(f.hosts) == ends]) or pair.state in ("good", "unknown")


def test_of_three_hosts_none_is_named_while_the_pair_of_the_others_is_unknown() -> None:
    """h1 may be bad, or both of the others are."""
    pairs = [pair for pair in made(3, 1, {(1, 0): 0.4}) if {pair.sender, pair.receiver} != {"h0", "h2"}]
    assert {kind for kind, _, _ in told(tuple(pairs))} == {"pair"}
    assert {fault.suspects for fault in blame(pairs)} == {("h0 port r0", "h1 port r0"), ("h1 port r0", "h2 port r0")}
    assert told(made(3, 1, {(1, 0): 0.4})) == {("port", ("h1",), "r0")}


@pytest.mark.parametrize(("hosts", "behind", "good"), [(8, 4, 0.0), (32, 16, 0.0), (24, 3, 0.1), (60, 20, 0.1)])
def test_a_bad_link_between_switches_is_no_fault_of_the_hosts_behind_it(hosts: int, behind: int, good: float) -> None:
    """Each host is good with those at its own switch. h1 has a bad port besides."""
    chance = random.Random(hosts)

    def spoilt(pair: Pair) -> Pair:
        places = [int(host[1:]) < behind for host in (pair.sender, pair.receiver)]
        slow = pair.rail == "r0" and places[0] != places[1] and chance.random() >= good
        return replace(pair, gbps=(pair.gbps or 0.0) * (0.4 if slow else 1.0))

    pairs = judged([spoilt(pair) for pair in made(hosts, 2, {(1, 1): 0.4})], floor=0.9, against=("rate", "median"))
    group, port = blame(pairs)
    sides = {frozenset(f"h{n}" for n in range(behind)), frozenset(f"h{n}" for n in range(behind, hosts))}
    assert (group.kind, group.rail, frozenset(group.hosts) in sides) == ("group", "r0", True), group.words
    assert group.words.startswith(f"between {group.hosts[0]}, ")
    assert "and the others, port r0 (a link between switches" in group.words
    assert (port.kind, port.hosts, port.rail) == ("port", ("h1",), "r1")


@pytest.mark.parametrize(("every", "kinds"), [(6, {"group"}), (4, {"port"})])
def test_a_group_is_bad_with_at_least_four_of_five_others(every: int, kinds: set[str]) -> None:
    """Three hosts are good with each other and with every sixth, or every fourth, of the 24 others."""

    def spoilt(pair: Pair) -> Pair:
        sender, receiver = (int(host[1:]) for host in (pair.sender, pair.receiver))
        slow = (sender < 3) != (receiver < 3) and (sender + receiver) % every
        return replace(pair, gbps=(pair.gbps or 0.0) * (0.4 if slow else 1.0))

    found = judged([spoilt(pair) for pair in made(27, 1, {})], floor=0.9, against=("rate", "median"))
    assert {kind for kind, _, _ in told(found)} == kinds


def test_two_ports_that_are_bad_in_opposite_directions_are_no_group() -> None:
    """h2 sends badly, h5 receives badly: h5 to h2 is good."""
    pairs = [
        replace(pair, gbps=90.0) if pair.sender == "h2" or pair.receiver == "h5" else pair for pair in made(7, 1, {})
    ]
    found = judged(pairs, floor=0.9, against=("rate", "median"))
    assert told(found) == {("port", ("h2",), "r0"), ("port", ("h5",), "r0")}


@pytest.mark.parametrize(("bad", "kinds"), [(2, {"pair"}), (3, {"port"})])
def test_a_port_that_is_bad_towards_half_of_its_peers_shows_as_pairs(bad: int, kinds: set[str]) -> None:
    pairs = made(9, 1, {})
    slow = [pair for pair in pairs if pair.sender == "h3"][:bad]  # it sends to four
    spoilt = [replace(pair, gbps=90.0) if pair in slow else pair for pair in pairs]
    assert {kind for kind, _, _ in told(judged(spoilt, floor=0.9, against=("rate", "median")))} == kinds


def test_a_rail_of_which_most_ports_are_slow_is_the_rail() -> None:
    pairs = made(10, 3, {(host, 1): 0.5 for host in range(7)} | {(9, rail): 0.2 for rail in range(3)})
    assert told(pairs) == {("rail", (), "r1"), ("host", ("h9",), None)}


@pytest.mark.parametrize("bad", [4, 7])
def test_a_host_beside_a_bad_rail_is_the_host_and_not_its_ports(bad: int) -> None:
    pairs = made(16, 4, {(host, 1): 0.5 for host in range(16)} | {(bad, rail): 0.3 for rail in range(4)})
    assert told(pairs) == {("rail", (), "r1"), ("host", (f"h{bad}",), None)}
    pairs = made(16, 2, {(host, 1): 0.5 for host in range(16)} | {(bad, 0): 0.3})
    assert told(pairs) == {("rail", (), "r1"), ("port", (f"h{bad}",), "r0")}, "its other port is as all of its rail"


def test_a_bad_host_is_the_host_though_only_one_other_has_a_port_on_its_last_rail() -> None:
    def there(pair: Pair) -> bool:
        return pair.rail != "r2" or {pair.sender, pair.receiver} == {"h1", "h3"}

    pairs = tuple(filter(there, made(6, 3, {(1, rail): 0.5 for rail in range(3)})))
    assert told(pairs) == {("host", ("h1",), None)}


def unknown_on(pairs: Sequence[Pair], host: str, rails: Collection[str]) -> tuple[Pair, ...]:
    """The pairs, those of a host on these rails without a figure."""
    return tuple(
        replace(pair, state="unknown", gbps=None)
        if host in (pair.sender, pair.receiver) and pair.rail in rails
        else pair
        for pair in pairs
    )


@pytest.mark.parametrize("unknown", [1, 6])
def test_two_bad_ports_of_a_host_whose_other_ports_are_unknown_are_two_ports(unknown: int) -> None:
    """Nothing is known of the others: they may be good."""
    rails = 2 + unknown
    pairs = made(12, rails, {(3, 0): 0.5, (3, 1): 0.5})
    ports = {("port", ("h3",), "r0"), ("port", ("h3",), "r1")}
    assert told(unknown_on(pairs, "h3", [f"r{rail}" for rail in range(2, rails)])) == told(pairs) == ports
    of_gpus = [replace(pair, memory="gpu", rail=f"{pair.rail} gpu") for pair in pairs if pair.rail in ("r0", "r1")]
    good = [replace(pair, state="good") for pair in pairs if pair.rail in ("r0", "r1")]
    # On r2 it is low with host memory too, which says nothing of the GPU there.
    third = [pair for pair in made(12, 3, {(3, 2): 0.5}) if pair.rail == "r2"]
    third += [replace(pair, memory="gpu", rail="r2 gpu") for pair in third]
    found = {(one.kind, one.rail) for one in blame([*good, *of_gpus, *third]) if one.memory == "gpu"}
    assert found == {("port", "r0 gpu"), ("port", "r1 gpu")}


def test_a_host_is_the_host_though_some_of_its_pairs_are_unknown() -> None:
    pairs = made(12, 3, {(3, rail): 0.5 for rail in range(3)})
    some_left = [
        replace(pair, state="unknown", gbps=None) if {"h3", "h5"} == {pair.sender, pair.receiver} else pair
        for pair in pairs
    ]
    assert told(tuple(some_left)) == {("host", ("h3",), None)}


def test_most_hosts_slow_are_still_named_by_the_ports_rate() -> None:
    """12 of 20: the median is low as well, the rate of the port is not."""
    pairs = made(20, 2, {(host, rail): 0.5 for host in range(12) for rail in range(2)})
    assert {hosts for _, hosts, _ in told(pairs)} == {(f"h{host}",) for host in range(12)}


def at_rates(rates: Sequence[float], **options: Any) -> tuple[Pair, ...]:
    """A rail of ports with these active rates: each pair reaches 0.98 of the lower one."""
    found = [
        Pair(sender=sender, receiver=receiver, rail="r0", round=number, state="unknown", outcome="measured",
             gbps=0.98 * (rate := min(rates[int(sender[1:])], rates[int(receiver[1:])])), rate_gbps=rate)
        for number, one in enumerate(rounds([f"h{number}" for number in range(len(rates))]), 1)
        for sender, receiver in one
    ]  # fmt: skip
    return judged(found, **{"floor": 0.9, "against": ("rate", "median"), **options})


def test_a_port_that_came_up_at_half_of_its_rate_is_at_fault_though_it_reaches_that_half() -> None:
    """The fleet's median is that of its rail: the pairs of one rate alone would be compared with each other."""
    pairs = at_rates([RATE] * 9 + [RATE / 2])
    assert told(pairs) == {("port", ("h9",), "r0")}
    assert "(expected 353) at an active rate of 200, below most of the rail" in blame(pairs)[0].words
    assert told(at_rates([RATE] * 5 + [RATE / 2] * 5)) == set(), (
        "a fleet of two kinds of ports, neither of them unusual"
    )
    assert told(at_rates([RATE] * 9 + [RATE / 2], against=("rate",))) == set(), "as asked"


def test_two_hosts_cannot_tell_which() -> None:
    (fault,) = blame(made(2, 1, {(0, 0): 0.5}))
    assert (fault.kind, fault.hosts, fault.suspects) == ("pair", ("h0", "h1"), ("h0 port r0", "h1 port r0"))
    assert "or it is h0 port r0, h1 port r0" in fault.words


@pytest.mark.parametrize(("hosts", "rails"), [(3, 1), (4, 2), (9, 1)])
def test_where_nothing_is_good_no_port_is_named(hosts: int, rails: int) -> None:
    """All ports are alike: whichever were named, the same would hold of the others."""
    pairs = made(hosts, rails, {(host, rail): 0.1 for host in range(hosts) for rail in range(rails)})
    assert told(pairs) == {("rail", (), f"r{rail}") for rail in range(rails)}


def test_two_hosts_with_one_bad_direction_or_one_bad_rail() -> None:
    def pair(sender: str, receiver: str, rail: str, figure: float) -> Pair:
        return Pair(
            sender=sender, receiver=receiver, rail=rail, round=1, state="unknown", outcome="measured", gbps=figure,
            rate_gbps=RATE,
        )  # fmt: skip

    def faults(*slow: tuple[str, str, str]) -> list[tuple[str | None, int, int, str]]:
        ways = [(a, b, rail) for a, b in (("h0", "h1"), ("h1", "h0")) for rail in ("r0", "r1")]
        pairs = judged([pair(*way, 40.0 if way in slow else 390.0) for way in ways], floor=0.9, against=("rate",))
        return [(one.rail, one.bad, one.measured, one.words.rpartition("; ")[2]) for one in blame(pairs)]

    assert faults(("h1", "h0", "r0")) == [("r0", 1, 2, "only from h1 to h0")]
    both = ("h0", "h1", "r1"), ("h1", "h0", "r1")
    assert faults(*both) == [("r1", 2, 2, "or it is h0 port r1, h1 port r1: nothing good was measured there")]


def test_two_hosts_with_all_rails_bad_are_one_fault() -> None:
    (fault,) = blame(made(2, 4, {(0, rail): 0.5 for rail in range(4)}))
    assert (fault.kind, fault.rail, fault.bad) == ("pair", None, 4)


def test_only_one_direction_is_said() -> None:
    pairs = made(9, 1, {})
    spoilt = [
        Pair(
            sender=p.sender, receiver=p.receiver, rail=p.rail, round=p.round, rate_gbps=RATE, state="unknown",
            outcome="measured", gbps=90.0 if p.receiver == "h3" else p.gbps,
        )
        for p in pairs
    ]  # fmt: skip
    found = judged(spoilt, floor=0.9, against=("rate", "median"))
    faults = blame(found)
    assert [(fault.kind, fault.hosts) for fault in faults] == [("port", ("h3",))]
    assert faults[0].words.endswith("; only when it receives")


@pytest.mark.parametrize("state", ["unknown", "none"])
def test_what_is_not_measured_is_never_good(state: str) -> None:
    pairs = made(6, 1, {}, unknown=1.0)
    assert {pair.state for pair in pairs} == {"unknown"}
    assert blame(pairs) == ()
    assert verdict_of(pairs if state == "unknown" else (), incomplete=False, limited=False) == "unknown"


def test_losing_pairs_never_improves_the_verdict() -> None:
    slow = made(12, 1, {(3, 0): 0.5})
    order = ["pass", "warn", "unknown", "fail"]
    good = made(12, 1, {})
    for seed in range(5):
        fewer = made(12, 1, {}, unknown=0.3, seed=seed)
        assert order.index(verdict_of(fewer, incomplete=False, limited=False)) > order.index(
            verdict_of(good, incomplete=False, limited=False)
        )
    assert verdict_of(slow, incomplete=True, limited=True) == "fail"
    assert verdict_of(good, incomplete=False, limited=True) == "warn"
