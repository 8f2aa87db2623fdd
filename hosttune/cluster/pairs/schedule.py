"""Rounds of pairs in which no host occurs twice. Pure functions.

All pairs of n hosts fit into n - 1 rounds (n even) or n rounds (n odd): the round-robin tournament by the circle method
(E. Lucas, Récréations mathématiques II, 1883), which is a 1-factorisation of the complete graph: no pair occurs twice.
Of more than ALL_PAIRS hosts only some of these rounds are taken. They stay free of repeated pairs, each host meets a
different one in each round, and the pairs connect all hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import gcd

ALL_PAIRS = 32  # up to so many hosts every pair is measured
DEFAULT_ROUNDS = 8  # above: each host is measured with so many others
_GOLDEN = 0.6180339887498949  # multiples of it modulo 1 are spread evenly (three-distance theorem)
# What a step costs besides measuring. docs/scale.md: one ansible starts in 0.7 s of CPU time, a host and phase costs
# 0.14 s, which the cores of the controller share. Assumed: 2 s for connections, 1 s to look for running guests.
START_SECONDS, HOST_SECONDS, COMMAND_SECONDS = 2.7, 0.14, 1.0

Pairing = tuple[str, str]  # (who sends, who receives)


def rounds(hosts: Sequence[str], most: int | None = None) -> tuple[tuple[Pairing, ...], ...]:
    """Return the rounds for hosts in this order. `most`: bound of rounds; None: all pairs, or DEFAULT_ROUNDS.

    In its rounds each host sends about as often as it receives. Empty for less than two hosts.
    """
    count = len(hosts) + len(hosts) % 2
    if len(hosts) < 2:
        return ()
    limit = most if most is not None else (count - 1 if len(hosts) <= ALL_PAIRS else DEFAULT_ROUNDS)
    return tuple(tuple(_round(hosts, number, count)) for number in _chosen(count - 1, min(limit, count - 1)))


def _round(hosts: Sequence[str], number: int, count: int) -> Iterator[Pairing]:
    """Yield the pairs of one round of the tournament: places i and j meet in the round (i + j) mod (count - 1).

    The last place is fixed and meets the place i with 2 i = number. If the number of hosts is odd, nobody is there.
    """
    modulus = count - 1
    for i in range(modulus):
        j = (number - i) % modulus
        if i == j:
            j = count - 1
        if i > j or j >= len(hosts):
            continue
        # The place that is less far ahead on the circle receives, so that each sends in about half of the rounds.
        ahead = (j - i) % modulus if j < modulus else number % 2 * modulus
        yield (hosts[i], hosts[j]) if ahead <= modulus // 2 else (hosts[j], hosts[i])


def _chosen(there: int, wanted: int) -> tuple[int, ...]:
    """Return the numbers of the rounds that are taken: all, or `wanted` of them, spread, and together connected.

    Two rounds r and s move a host by r - s places. If these differences have no common divisor with the number of
    places, the pairs of the rounds connect all hosts.
    """
    if wanted >= there:
        return tuple(range(there))
    taken: list[int] = []
    for step in range(there):
        start = int(step * _GOLDEN * there) % there
        number = next((start + more) % there for more in range(there) if (start + more) % there not in taken)
        taken.append(number)
        if len(taken) == wanted:
            break
    common = there
    for number in taken[1:]:
        common = gcd(common, number - taken[0])
    if common != 1 and wanted > 1:
        taken[-1] = next(n for n in range(1, there) if gcd(there, n - taken[0]) == 1 and n not in taken)
    return tuple(taken)


def completing(made: Iterable[Sequence[Pairing]], rails: Iterable[Sequence[str]]) -> tuple[tuple[Pairing, ...], ...]:
    """Return more rounds for hosts with rails that few have. `made`: the rounds that there are; `rails`: hosts of each.

    On each of its rails a host meets all other hosts if these are few, else half as many as there are rounds in `made`.
    """
    rounds_there = tuple(made)
    there = {frozenset(pair) for pairs in rounds_there for pair in pairs}
    more: list[Pairing] = []
    for hosts in dict.fromkeys(tuple(rail) for rail in rails if len(rail) > 1):
        few = len(hosts) - 1 <= len(rounds_there)
        wanted = len(hosts) - 1 if few else len(rounds_there) // 2
        own = frozenset(hosts)
        met = Counter(host for pair in there if pair <= own for host in pair)
        for pair in (pair for one in rounds(hosts, len(rounds_there) + 1) for pair in one):
            if frozenset(pair) not in there and min(met[host] for host in pair) < wanted:
                more.append(pair)
                there.add(frozenset(pair))
                met.update(pair)
    return regrouped(more)


def regrouped(pairs: Iterable[Pairing]) -> tuple[tuple[Pairing, ...], ...]:
    """Return any pairs in rounds in which no host occurs twice, the first free round for each pair.

    At most 2 d - 1 rounds, where d is the most pairs of one host (greedy colouring of edges).
    """
    rounds_made: list[list[Pairing]] = []
    busy: list[set[str]] = []
    for pair in dict.fromkeys(pairs):
        number = next((n for n, there in enumerate(busy) if not there & set(pair)), len(rounds_made))
        if number == len(rounds_made):
            rounds_made.append([])
            busy.append(set())
        rounds_made[number].append(pair)
        busy[number] |= set(pair)
    return tuple(map(tuple, rounds_made))


def steps(pairs: Sequence[Pairing], most_hosts: int) -> tuple[tuple[Pairing, ...], ...]:
    """Return the pairs of a round in steps of at most `most_hosts` hosts (2 at least): hosts that are asked at once."""
    size = max(1, most_hosts // 2)
    return tuple(tuple(pairs[at : at + size]) for at in range(0, len(pairs), size))


def step_seconds(hosts: int, measuring: float, cores: int) -> float:
    """Return the seconds that a step of so many hosts is estimated to take, if each measures for `measuring` seconds.

    `cores`: of the controller.
    """
    return START_SECONDS + HOST_SECONDS * hosts / cores + COMMAND_SECONDS + measuring


def minutes(made: Iterable[Sequence[Pairing]], most_hosts: int, measuring: float, cores: int) -> float:
    """Return what these rounds are estimated to take, in minutes, if every host answers and every pair connects."""
    all_steps = (step for pairs in made for step in steps(pairs, most_hosts))
    return sum(step_seconds(2 * len(step), measuring, cores) for step in all_steps) / 60
