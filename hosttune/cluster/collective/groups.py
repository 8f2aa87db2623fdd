"""Which hosts do collectives together, in which order: the series 1 → 2 → 4 → … → all, then the search for slow hosts.

A collective is as fast as its slowest member. So a good group speaks for all of its hosts, and a bad one holds at
least one host that is at fault, or the network between them is. The search leaves hosts out: the suspects of a bad
group are halved, each half is measured together with hosts that are known to be good, and so on (adaptive group
testing: F. K. Hwang, "A method for detecting all defective members in a population by group testing", JASA 67, 1972).
Several slow hosts are found the same way: both halves stay bad. A host is named only after two bad groups or more that
have no good host in common, and only if no group with it was good: else one bad link to that good host may be all there
is. A group that no host explains is measured once more. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from math import ceil, log2

import msgspec

from hosttune.cluster.pairs.schedule import rounds

Members = tuple[str, ...]
_PROOFS = 2  # bad groups in which everyone else is known to be good
_MOST_TRIED = 200  # sets of companions


class Trial(msgspec.Struct, frozen=True):
    """A group that was measured: whether it was bad; None: unknown, and not to be tried again."""

    hosts: frozenset[str]
    bad: bool | None


def counts(hosts: int, first: int = 1, last: int | None = None) -> tuple[int, ...]:
    """Return the numbers of hosts of the series: first, doubled again and again, and the last one; () if there is none.

    `last` None: all hosts.
    """
    most = min(hosts, last or hosts)
    steps_up = []
    count = first
    while count < most:
        steps_up.append(count)
        count *= 2
    return (*steps_up, most) if first <= most else ()


def series(
    hosts: Sequence[str], trials: Iterable[Trial], first: int = 1, last: int | None = None
) -> tuple[Members, ...]:
    """Return the next groups of the series, disjoint, in the order of the hosts; () when nothing is left.

    Of each number of hosts as many groups as fit. Of the first number above one also those hosts get a group that are
    left over, together with others: every host is measured with the network at least once.
    """
    wanted = counts(len(hosts), first, last)
    several = next((count for count in wanted if count > 1), None)
    there = set(hosts)
    done = [trial.hosts for trial in trials if trial.hosts <= there]
    for count in wanted:
        covered = {host for hosts in done if len(hosts) == count for host in hosts}
        left = [host for host in hosts if host not in covered]
        if len(left) >= count:
            return tuple(tuple(left[at : at + count]) for at in range(0, len(left) - count + 1, count))
        if left and (not covered or count in (several, len(hosts))):
            others = [host for host in hosts if host not in left][: count - len(left)]
            return (tuple(host for host in hosts if host in {*left, *others}),)
    return ()


class GroupFindings(msgspec.Struct, frozen=True):
    """What the trials show so far.

    `cleared`: hosts of a good group of two or more. `alone`: hosts that were bad by themselves, twice. `slow`: hosts
    that are named. `together`: groups that were bad twice, though each of their hosts is cleared; not those that hold
    another such group. `unexplained`: other bad groups without a named host, with those of their hosts that are not
    cleared. `doubtful`: hosts that were bad by themselves, once. `always`: by host that alone is not cleared in its
    groups, the others that were in all of them: a bad link to one of these may be all there is.
    """

    cleared: frozenset[str]
    alone: frozenset[str]
    slow: frozenset[str]
    together: tuple[frozenset[str], ...]
    unexplained: tuple[tuple[frozenset[str], frozenset[str]], ...]
    doubtful: tuple[frozenset[str], ...]
    always: Mapping[str, frozenset[str]]


def findings(trials: Sequence[Trial]) -> GroupFindings:
    """Return what these trials show. Of trials of the same hosts the last one counts."""
    newest = {trial.hosts: trial for trial in trials}
    times = Counter(trial.hosts for trial in trials)
    single = [trial.hosts for trial in newest.values() if len(trial.hosts) == 1 and trial.bad]
    many = [trial for trial in newest.values() if len(trial.hosts) > 1]
    alone = frozenset(host for hosts in single if times[hosts] >= _PROOFS for host in hosts)
    cleared = frozenset(host for trial in many if trial.bad is False for host in trial.hosts)
    bad = sorted((trial.hosts for trial in many if trial.bad), key=lambda hosts: (len(hosts), sorted(hosts)))
    always = _always_beside(bad, cleared)
    slow = frozenset(host for host, others in always.items() if not others) - alone
    together: list[frozenset[str]] = []
    left = []
    for hosts in bad:
        if hosts & (slow | alone) or any(less <= hosts for less in together):
            continue
        if hosts <= cleared and times[hosts] >= _PROOFS:
            together.append(hosts)
        else:
            left.append((hosts, hosts - cleared))
    doubtful = tuple(hosts for hosts in single if times[hosts] < _PROOFS)
    return GroupFindings(cleared, alone, slow, tuple(together), tuple(left), doubtful, always)


def _always_beside(bad: Iterable[frozenset[str]], cleared: frozenset[str]) -> dict[str, frozenset[str]]:
    """Return, of each host that alone is not cleared in a bad group, the others that are in all such groups."""
    beside: dict[str, frozenset[str]] = {}
    for hosts in bad:
        if len(hosts - cleared) == 1:
            (host,) = hosts - cleared
            beside[host] = beside.get(host, hosts) & hosts & cleared
    return beside


def most_steps(hosts: int) -> int:
    """Return the bound of steps of a search."""
    return 8 + 2 * ceil(log2(max(2, hosts)))


def search(hosts: Sequence[str], trials: Sequence[Trial], tried: Sequence[frozenset[str]] = ()) -> tuple[Members, ...]:
    """Return the groups of the next step of the search, disjoint; () when it is over.

    At its end the largest bad group is measured without the hosts that were named. `tried`: every group that was asked
    for, as often as it was; a group without an answer is not asked for again here.
    """
    group_findings = findings(trials)
    place = {host: number for number, host in enumerate(hosts)}
    times = Counter(tried)
    used: set[str] = set()
    groups: list[frozenset[str]] = []

    def take(wanted: Iterable[frozenset[str]]) -> None:
        for one in wanted:
            if not one & used and one <= place.keys():
                groups.append(one)
                used.update(one)

    take(hosts for hosts in group_findings.doubtful if times[hosts] < _PROOFS)
    open_ = sorted(group_findings.unexplained, key=lambda hosts: (len(hosts[1]), len(hosts[0]), sorted(hosts[0])))
    for group, suspects in open_:
        take(_wanted(group, suspects, group_findings, times, place, used))
    # The hosts that only were in bad groups with a named host: nothing is known of them.
    seen = {host for trial in trials if trial.bad and len(trial.hosts) > 1 for host in trial.hosts}
    for host in sorted(seen - group_findings.cleared - group_findings.slow - group_findings.alone):
        take(islice(_with_good((host,), 2, group_findings, times, place, used), 1))
    if not groups and open_ and not group_findings.cleared:
        take(_others(sorted({host for _, few in open_ for host in few} & place.keys(), key=place.__getitem__), times))
    if not groups:
        take(_without(group_findings, trials, times))
    return tuple(tuple(sorted(group, key=place.__getitem__)) for group in groups)


def _without(
    group_findings: GroupFindings, trials: Iterable[Trial], times: Counter[frozenset[str]]
) -> Iterator[frozenset[str]]:
    """Yield the largest bad group without the named hosts."""
    named = group_findings.slow | group_findings.alone
    bad = [trial.hosts for trial in trials if trial.bad and len(trial.hosts) > 1 and trial.hosts & named]
    left = max(bad, key=lambda hosts: (len(hosts), sorted(hosts)), default=frozenset()) - named
    if len(left) > 1 and left not in times:
        yield left


def _wanted(
    group: frozenset[str],
    suspects: frozenset[str],
    group_findings: GroupFindings,
    times: Counter[frozenset[str]],
    place: dict[str, int],
    used: set[str],
) -> Iterator[frozenset[str]]:
    """Yield the groups that would tell more of a bad one."""
    if not suspects:
        if times[group] < _PROOFS:
            yield group
        return
    ordered = sorted(suspects & place.keys(), key=place.__getitem__)
    if len(suspects) == 1:
        yield from islice(_with_good(ordered, len(group), group_findings, times, place, used), 1)
        return
    half = len(ordered) // 2
    taken: set[str] = set(used)
    for part in (ordered[:half], ordered[half:]):
        for chosen in islice(_with_good(part, max(2, len(part)), group_findings, times, place, taken), 1):
            taken |= chosen
            yield chosen


def _with_good(
    part: Sequence[str],
    size: int,
    group_findings: GroupFindings,
    times: Counter[frozenset[str]],
    place: dict[str, int],
    used: set[str],
) -> Iterator[frozenset[str]]:
    """Yield groups of these hosts with cleared ones, of the size if so many are free, that were not asked for yet.

    One host alone gets others than those that were in all of its bad groups, or half of them.
    """
    if not part:
        return
    good = [
        host
        for host in sorted(place, key=place.__getitem__)
        if host in group_findings.cleared and host not in {*used, *part}
    ]
    if len(part) == 1 and (always := group_findings.always.get(part[0])):
        good = [host for host in good if host not in always] or good[: len(good) // 2]
    more = min(max(size - len(part), 1 if len(part) == 1 else 0), len(good))
    if len(part) + more < 2:
        return
    for companions in islice(combinations(good, more), _MOST_TRIED):
        chosen = frozenset((*part, *companions))
        if chosen not in times:
            yield chosen


def _others(hosts: Sequence[str], times: Counter[frozenset[str]]) -> Iterator[frozenset[str]]:
    """Yield the first round of pairs in which one is new: while no host is known to be good, others are combined."""
    for made in rounds(hosts, len(hosts)):
        fresh = [frozenset(pair) for pair in made if frozenset(pair) not in times]
        if fresh:
            yield from fresh
            return
