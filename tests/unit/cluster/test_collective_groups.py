"""Which hosts measure together: the series, and the search that finds slow hosts by leaving hosts out."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

import pytest
from sweeps import FULL

from hosttune.cluster.collective.groups import GroupFindings, Trial, counts, findings, most_steps, search, series


class Planted:
    """Hosts of which some are slow. A group is bad if one of them, or one of the cut pairs, is in it."""

    def __init__(
        self, hosts: int, slow: Iterable[int] = (), *, alone: Iterable[int] = (), cut: Iterable[tuple[int, int]] = (),
        noise: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.hosts = [f"h{number:04}" for number in range(hosts)]
        self.slow = {self.hosts[number] for number in slow}
        self.alone = {self.hosts[number] for number in alone}
        self.cut = [{self.hosts[a], self.hosts[b]} for a, b in cut]
        self.random, self.noise = random.Random(seed), noise
        self.trials: list[Trial] = []
        self.tried: list[frozenset[str]] = []
        self.steps: list[tuple[tuple[str, ...], ...]] = []

    def measure(self, groups: tuple[tuple[str, ...], ...]) -> bool:
        named = [host for group in groups for host in group]
        assert len(named) == len(set(named)), "a host is in two groups of a step"
        for group in groups:
            hosts = frozenset(group)
            bad = bool(hosts & self.slow) if len(hosts) > 1 else bool(hosts & self.alone)
            bad = bad or any(pair <= hosts for pair in self.cut) or self.random.random() < self.noise
            self.trials.append(Trial(hosts, bad))
            self.tried.append(hosts)
        if groups:
            self.steps.append(groups)
        return bool(groups)

    def run(self, first: int = 1) -> GroupFindings:
        while self.measure(series(self.hosts, self.trials, first)):
            pass
        searched = 0
        while self.measure(search(self.hosts, self.trials, self.tried)):
            searched += 1
            assert searched <= most_steps(len(self.hosts))
        return findings(self.trials)


def test_the_series_doubles_up_to_all_hosts() -> None:
    assert counts(8) == (1, 2, 4, 8)
    assert counts(6) == (1, 2, 4, 6)
    assert counts(100, 2, 16) == (2, 4, 8, 16)
    assert counts(1) == (1,)
    assert counts(3, 4) == ()
    planted = Planted(6)
    planted.run()
    sizes = [sorted(len(group) for group in step) for step in planted.steps]
    assert sizes == [[1] * 6, [2, 2, 2], [4], [6]]
    assert planted.steps[1][0] == ("h0000", "h0001")  # neighbours in the inventory first


def test_a_host_that_is_left_over_gets_a_group_with_the_network() -> None:
    planted = Planted(5)
    planted.run(2)
    assert planted.steps[:2] == [(("h0000", "h0001"), ("h0002", "h0003")), (("h0000", "h0004"),)]


def test_a_host_that_is_lost_is_left_out_and_comes_back_with_a_resumed_run() -> None:
    """The series is made from what was measured: nothing twice, and what lacks a host once more with it."""
    hosts = ["a", "b", "c", "d"]
    done = [Trial(frozenset(one), False) for one in ("ab", "abc")]
    assert series(["a", "b", "c"], [*done, Trial(frozenset("ac"), False)], 2) == ()
    assert series(hosts, done, 2) == (("c", "d"),)
    assert series(hosts, [*done, Trial(frozenset("cd"), False)], 2) == (("a", "b", "c", "d"),)


@pytest.mark.parametrize("hosts", [4, 5, 6, 7, 8, 16, 33])
@pytest.mark.parametrize("first", [1, 4])
def test_planted_slow_hosts_are_found_and_no_other(hosts: int, first: int) -> None:
    for seed in range(40 if FULL else 6):
        for count in range(min(4, hosts - 1)):  # two good hosts at least
            slow = random.Random(seed * 10 + count).sample(range(hosts), count)
            planted = Planted(hosts, slow)
            found = planted.run(first)
            assert found.slow == planted.slow, (slow, found)
            assert found.unexplained == ()
            good = set(planted.hosts) - planted.slow  # measured without the named ones
            assert any(set(group) == good for step in planted.steps for group in step)


def test_the_search_halves_and_its_steps_do_not_grow_with_the_fleet() -> None:
    planted = Planted(256, [5, 200])
    assert planted.run(256).slow == planted.slow
    assert len(planted.steps) <= 1 + 12  # all at once, then two halvings side by side, two proofs, and without them
    many = Planted(1000, [5, 200, 700])
    assert many.run().slow == many.slow
    assert len(many.steps) <= len(counts(1000)) + 4


def test_noise_alone_names_nobody() -> None:
    """Groups that are bad once, at random: repeated, and not held against a host."""
    named = [0, 0]
    for seed in range(60):
        planted = Planted(16, noise=0.03, seed=seed)
        named[0] += len(planted.run().slow)
        planted = Planted(16, [3, 9], noise=0.03, seed=seed)
        found = planted.run()
        assert found.slow >= planted.slow, (seed, found)
        named[1] += len(found.slow - planted.slow)
    assert named[0] <= 1
    assert named[1] <= 2


def test_a_bad_network_between_good_hosts_is_no_host() -> None:
    planted = Planted(8, cut=[(1, 2)])
    found = planted.run()
    assert found.slow == frozenset()
    assert found.together == (frozenset(planted.hosts[:4]),)
    assert [len(one) for step in planted.steps[4:] for one in step].count(4) >= 1  # it was repeated


@pytest.mark.parametrize("hosts", range(3, 9))
def test_one_bad_link_names_no_host(hosts: int) -> None:
    """h0 and h1, say, are good with everybody else: whichever groups are measured first, neither is at fault."""
    for a in range(hosts):
        for b in range(a):
            for slow in ((), [number for number in range(hosts) if number not in (a, b)][2:3]):
                for first in (1, 2, hosts):
                    found = Planted(hosts, slow, cut=[(a, b)]).run(first)
                    assert found.slow <= {f"h{number:04}" for number in slow}, ((a, b), first, found)


@pytest.mark.parametrize("hosts", [4, 6, 9, 12])
def test_many_slow_hosts_are_found_while_two_are_good(hosts: int) -> None:
    for seed in range(40 if FULL else 8):
        chance = random.Random(seed)
        slow = chance.sample(range(hosts), chance.randint(1, hosts - 2))
        found = Planted(hosts, slow).run(chance.choice([1, 2]))
        assert found.slow == {f"h{number:04}" for number in slow}, (slow, found)


def test_a_host_that_is_bad_by_itself_is_named_so() -> None:
    planted = Planted(4, [2], alone=[2])
    found = planted.run()
    assert found.alone == {"h0002"}
    assert not found.slow
    assert found.cleared == {"h0000", "h0001", "h0003"}


@pytest.mark.parametrize(("hosts", "slow"), [(2, [0]), (3, [0, 1]), (4, [0, 1, 2])])
def test_too_few_good_hosts_leave_suspects_and_no_name(hosts: int, slow: Collection[int]) -> None:
    found = Planted(hosts, slow).run()
    assert found.slow == frozenset()
    assert found.unexplained
    assert all(suspects for _, suspects in found.unexplained)


def test_a_group_without_an_answer_is_not_asked_for_again_and_says_nothing() -> None:
    hosts = ["a", "b", "c", "d"]
    trials = [Trial(frozenset("ab"), True), Trial(frozenset("cd"), False)]
    first = search(hosts, trials, [trial.hosts for trial in trials])
    assert {frozenset(one) for one in first} == {frozenset("ac"), frozenset("bd")}
    tried = [trial.hosts for trial in trials] + [frozenset(one) for one in first]
    again = search(hosts, trials, tried)
    assert not {frozenset(one) for one in again} & set(tried)
    assert findings(trials).slow == frozenset()
