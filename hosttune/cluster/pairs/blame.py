"""Low and cut pairs → the hosts, ports, rails and pairs that explain them. Pure functions.

A pair is as fast as the slower of its two ports and of the path between them. So one bad port makes all of its pairs
bad, and a good pair speaks for both of its ports. Unknown pairs say nothing. The method:

1. Greedy cover. A bad pair counts against a port only if the other port is good in another pair: else the other one,
   or both, may be at fault. While there is a port with at least two such bad pairs, and with more of them than good
   ones among its pairs with ports that are not blamed, the one with the most of them is blamed.
2. A port that has, among its pairs with ports that are not blamed in the end, no more bad than good ones is not blamed
   after all: others explain its bad pairs.
3. The same cover once more over what is left, with the two directions of a port apart: a port that is bad only when it
   sends, or only when it receives.
4. Blamed ports of a rail that are good with each other are no bad ports: what is bad is the way between this group and
   the others, such as a link between two switches, two subnets or a firewall. The group is blamed, and not its ports.
5. A host of which at least two ports are blamed, and no other port has a good pair or is unknown in all of its pairs,
   is blamed itself. If of the other hosts more than half of the ports on a rail are blamed, and this is not so on all
   rails, the rail is blamed, and its ports say nothing of their hosts. So is a rail without any good pair: nothing
   tells its ports apart.
6. What is left are bad pairs: the path between two ports. A port of such a pair without any good pair stays a suspect.

Pairs with the memory of GPUs are explained by themselves, in the same way. Those that are bad with host memory too say
nothing of GPUs; what explains the others is the way between NIC and GPU.

Limits. It needs two other ports that are good: where there are none (two hosts alone, nearly all ports bad, many pairs
unknown), suspects or the whole rail are named. If more than half of the ports are bad, figures below the median say
little. A port that is bad only towards half of its peers or fewer shows as pairs. With few rounds a port has few pairs,
so two bad paths of one port among three can look like the port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from hosttune.model.listing import some
from hosttune.model.pairs import GPU_RAIL, Fault, FaultKind, Pair
from hosttune.model.values import grouped

_LEAST = 2  # bad pairs of a port before it is blamed
_FEW = 0.2  # of the pairs of a group with others may be good
_BAD = ("low", "cut")
GPU_PATH = (
    "these pairs are not low with host memory, so it is the way between NIC and GPU: ACS redirect on the ports of their"
    " switch, ATS, the peer memory module or dma-buf (validate: acs, ats, gpu-rail, guest-gpudirect)"
)
PortKey = tuple[str, str]  # (host, rail)
N = TypeVar("N", bound=Hashable)


class _PortPairs(msgspec.Struct, frozen=True):
    """The measured pairs of each port. `cleared`: the ports that have a good pair. `unknown`: those without a measured
    one."""

    pairs: Mapping[PortKey, Sequence[Pair]]
    cleared: frozenset[PortKey]
    unknown: frozenset[PortKey]

    def counts(self, pair: Pair, port: PortKey) -> bool:
        """Whether a pair says something of this port: it is good, or the other port is good in another pair."""
        return pair.state not in _BAD or _other(pair, port) in self.cleared

    def clean(self, port: PortKey, blamed: Iterable[PortKey]) -> tuple[int, int]:
        """Return (bad, all) of the port's pairs that count, with ports that are not blamed."""
        without = frozenset(blamed)
        counted = [pair for pair in self.pairs[port] if _other(pair, port) not in without and self.counts(pair, port)]
        return sum(pair.state in _BAD for pair in counted), len(counted)


def blame(pairs: Iterable[Pair]) -> tuple[Fault, ...]:
    """Return what explains the low and cut pairs: hosts, rails, groups, ports, pairs, in this order, each by name.

    First the network, from pairs with host memory, then the ways to GPUs.
    """
    every = tuple(pairs)
    of_host = {(pair.sender, pair.receiver, pair.rail): pair.state for pair in every if pair.memory == "host"}
    of_gpus = [
        replace(pair, state="unknown") if of_host.get(pair.with_host_memory) in _BAD else pair
        for pair in every
        if pair.memory == "gpu"
    ]
    network = _blamed(pair for pair in every if pair.memory == "host")
    return (*network, *(replace(fault, memory="gpu", words=f"{fault.words}; {GPU_PATH}") for fault in _blamed(of_gpus)))


def _blamed(pairs: Iterable[Pair]) -> tuple[Fault, ...]:
    there = tuple(pairs)
    measured = [pair for pair in there if pair.state in ("good", *_BAD)]
    by_port = grouped((port, pair) for pair in measured for port in _ends(pair))
    good = frozenset(port for port, pairs in by_port.items() if any(pair.state == "good" for pair in pairs))
    matrix = _PortPairs(by_port, good, frozenset(port for pair in there for port in _ends(pair)) - by_port.keys())
    blamed = _blamed_ports(matrix)
    groups = _groups(matrix, blamed)
    blamed = blamed.difference(*groups)
    rails = _blamed_rails(matrix, blamed, _blamed_hosts(matrix, blamed, frozenset()))
    hosts = _blamed_hosts(matrix, blamed, rails)
    ports = sorted(port for port in blamed if port[0] not in hosts and port[1] not in rails)
    explained = blamed | {port for port in matrix.pairs if port[1] in rails or port[0] in hosts}
    left = [pair for pair in measured if pair.state in _BAD and not explained.intersection(_ends(pair))]
    across = {group: [pair for pair in left if len(group.intersection(_ends(pair))) == 1] for group in groups}
    between = {id(pair) for pairs in across.values() for pair in pairs}
    pairs_of = {
        (tuple(sorted({host for host, _ in group})), next(iter(group))[1]): pairs
        for group, pairs in across.items()
        if pairs
    }
    return (
        *(_fault("host", (host,), None, _of(measured, host, None)) for host in sorted(hosts)),
        *(_fault("rail", (), rail, [pair for pair in measured if pair.rail == rail]) for rail in sorted(rails)),
        *[_fault("group", hosts, rail, pairs) for (hosts, rail), pairs in sorted(pairs_of.items())],
        *(_fault("port", (host,), rail, matrix.pairs[host, rail]) for host, rail in ports),
        *_pair_faults(matrix, measured, [pair for pair in left if id(pair) not in between]),
    )


def _ends(pair: Pair) -> tuple[PortKey, PortKey]:
    return (pair.sender, pair.rail), (pair.receiver, pair.rail)


def _other(pair: Pair, port: PortKey) -> PortKey:
    first, second = _ends(pair)
    return second if first == port else first


def _of(measured: Iterable[Pair], host: str, rail: str | None) -> list[Pair]:
    return [pair for pair in measured if host in (pair.sender, pair.receiver) and rail in (None, pair.rail)]


def _blamed_ports(matrix: _PortPairs) -> frozenset[PortKey]:
    """Return the ports of the steps 1 to 3."""
    several = {rail for rail, ports in _by_rail(matrix).items() if len(ports) > 2}  # of two ports none is told apart
    known = {port: tuple(pairs) for port, pairs in matrix.pairs.items() if port[1] in several}
    blamed = set(_cover(known, lambda node: node, matrix.counts))
    for port in sorted(blamed):
        bad, there = matrix.clean(port, blamed - {port})
        if there and 2 * bad <= there:
            blamed.discard(port)
    ways = grouped(
        ((port, "sends" if pair.sender == port[0] else "receives"), pair)
        for port, pairs in known.items()
        if port not in blamed
        for pair in pairs
        if _other(pair, port) not in blamed
    )
    return frozenset(blamed | {port for port, _ in _cover(ways, lambda node: node[0], matrix.counts)})


def _cover(
    pairs: Mapping[N, Sequence[Pair]], port_of: Callable[[N], PortKey], counting: Callable[[Pair, PortKey], bool]
) -> set[N]:
    """Return the nodes that a greedy cover takes: most bad pairs first, more bad than good ones of what is left.

    A node is a port, or a port in one direction. A pair has a node at each end; `counting`: whether it says something
    of a port. Counts are kept up to date, so that the time grows with the pairs.
    """
    counts: dict[N, list[int]] = {}
    at: dict[int, list[N]] = {}
    for node, found in pairs.items():
        own = [pair for pair in found if counting(pair, port_of(node))]
        counts[node] = [sum(pair.state in _BAD for pair in own), len(own)]
        for pair in own:
            at.setdefault(id(pair), []).append(node)
    taken: set[N] = set()
    while True:
        able = [node for node, (bad, there) in counts.items() if bad >= _LEAST and 2 * bad > there]
        if not able:
            return taken
        worst = max(able, key=lambda node: (counts[node][0], counts[node][0] / counts[node][1], port_of(node)))
        taken.add(worst)
        del counts[worst]
        for pair in pairs[worst]:
            for node in at.get(id(pair), ()):
                if node in counts:
                    counts[node][0] -= pair.state in _BAD
                    counts[node][1] -= 1


def _groups(matrix: _PortPairs, blamed: frozenset[PortKey]) -> list[frozenset[PortKey]]:
    """Return the blamed ports of a rail that are connected by good pairs: with each other mostly good, with the others
    nearly always bad. A bad port is bad with another bad one, too; one that is bad in one direction is not always bad.
    """
    left, groups = set(blamed), []
    while left:
        todo = [min(left)]
        group: set[PortKey] = set()
        while todo:
            port = todo.pop()
            group.add(port)
            good = {_other(pair, port) for pair in matrix.pairs[port] if pair.state == "good"}
            todo += (good & left) - group
        left -= group
        inside, across = Counter[str](), Counter[str]()
        for port in group:
            for pair in matrix.pairs[port]:
                other = _other(pair, port)
                (inside if other in group else across)[pair.state] += other in group or other not in blamed
        if len(group) > 1 and 2 * inside["good"] > inside.total() and across["good"] < _FEW * across.total():
            groups.append(frozenset(group))
    return groups


def _blamed_hosts(matrix: _PortPairs, blamed: frozenset[PortKey], rails: frozenset[str]) -> frozenset[str]:
    """Return the hosts of which two ports or more are blamed, and no other one has a good pair or is unknown; `rails`
    say nothing.
    """
    bad = Counter(host for host, rail in blamed if rail not in rails)
    good = {
        port[0]
        for port, pairs in matrix.pairs.items()
        if port not in blamed and port[1] not in rails and any(pair.state == "good" for pair in pairs)
    }
    unknown = {host for host, rail in matrix.unknown if rail not in rails}
    return frozenset(host for host, number in bad.items() if number >= _LEAST and host not in good | unknown)


def _blamed_rails(matrix: _PortPairs, blamed: frozenset[PortKey], hosts: frozenset[str]) -> frozenset[str]:
    there = Counter(rail for host, rail in matrix.pairs if host not in hosts)
    bad = Counter(rail for host, rail in blamed if host not in hosts)
    mostly_bad = frozenset(rail for rail, number in bad.items() if 2 * number > there[rail] and number >= _LEAST)
    return (mostly_bad if len(mostly_bad) < len(there) else frozenset()) | _dead_rails(matrix)


def _dead_rails(matrix: _PortPairs) -> frozenset[str]:
    """Return the rails without a good pair, on which each port has several bad ones: nothing tells the ports apart."""
    return frozenset(
        rail
        for rail, ports in _by_rail(matrix).items()
        if len(ports) > 2 and all(len(pairs) >= _LEAST and all(pair.state in _BAD for pair in pairs) for pairs in ports)
    )


def _by_rail(matrix: _PortPairs) -> Mapping[str, Sequence[Sequence[Pair]]]:
    """Return the pairs of each host's port, by rail."""
    return grouped((rail, pairs) for (_, rail), pairs in matrix.pairs.items())


def _pair_faults(matrix: _PortPairs, measured: Sequence[Pair], left: Sequence[Pair]) -> list[Fault]:
    """Return the faults of pairs of hosts on a rail; two hosts with several rails, all of them bad, are one fault."""
    pair_faults: list[Fault] = []
    by_hosts = grouped((tuple(sorted((pair.sender, pair.receiver))), pair) for pair in left)
    for hosts, bad in sorted(by_hosts.items()):
        of_both = [pair for pair in measured if {pair.sender, pair.receiver} == set(hosts)]
        rails = dict.fromkeys(pair.rail for pair in bad)
        groups = (
            [bad] if len(bad) == len(of_both) else [[pair for pair in of_both if pair.rail == rail] for rail in rails]
        )
        for group in groups:
            ports = sorted({port for pair in group for port in _ends(pair)})
            suspects = tuple(
                f"{host} port {rail}"
                for host, rail in ports
                if not any(pair.state == "good" for pair in matrix.pairs[host, rail])
            )
            rail = group[0].rail if len({pair.rail for pair in group}) == 1 else None
            pair_faults.append(_fault("pair", hosts, rail, group, suspects))
    return pair_faults


def _fault(
    kind: FaultKind, hosts: tuple[str, ...], rail: str | None, pairs: Sequence[Pair], suspects: tuple[str, ...] = ()
) -> Fault:
    bad = [pair for pair in pairs if pair.state in _BAD]
    figures = [pair.gbps for pair in bad if pair.gbps is not None]
    words = f"{_subject(kind, hosts, rail)}: {_how(bad)}, {len(bad)} of {len(pairs)} measured"
    words += _direction(hosts[0], pairs) if kind in ("host", "port") else ""
    if kind == "pair" and len(bad) < len(pairs):
        words += f"; only from {bad[0].sender} to {bad[0].receiver}"
    if suspects:
        words += f"; or it is {some(suspects, 8)}: nothing good was measured there"
    return Fault(
        kind=kind,
        hosts=hosts,
        rail=rail,
        bad=len(bad),
        measured=len(pairs),
        worst_gbps=min(figures, default=None),
        suspects=suspects,
        words=words,
    )


def _subject(kind: str, hosts: tuple[str, ...], rail: str | None) -> str:
    on = f", port {rail}" if rail is not None else ""
    if kind == "group":
        return f"between {some(hosts, 8)} and the others{on} (a link between switches, a subnet, a firewall)"
    if kind == "rail":
        cause = "" if str(rail).endswith(GPU_RAIL) else ": a switch, its settings, or what they have in common"
        return f"rail {rail} (more than half of its ports, or all{cause})"
    return f"{kind} {' - '.join(hosts)}{on}" if kind == "pair" else f"host {hosts[0]}{on}"


def _how(bad: Sequence[Pair]) -> str:
    """Return how the bad pairs are bad: low figures, and what cut the others."""
    low = [pair for pair in bad if pair.state == "low" and pair.gbps is not None]
    parts = []
    if low:
        worst = min(low, key=lambda pair: (pair.gbps or 0.0) / (pair.expected or 1.0))
        parts.append(f"low, down to {worst.gbps:.3g} Gb/s (expected {worst.expected or 0:.3g})")
        if worst.rate_gbps is not None and worst.rate_gbps < (worst.expected or 0.0):
            parts[0] += f" at an active rate of {worst.rate_gbps:g}, below most of the rail"
    counted = Counter(pair.outcome for pair in bad if pair.state == "cut")
    parts += [f"{outcome} ({number})" for outcome, number in sorted(counted.items())]
    return " and ".join(parts)


def _direction(host: str, pairs: Sequence[Pair]) -> str:
    """Return in which direction alone the host is bad, "" if in both or if one of them was not measured."""
    for word, opposite in (("sender", "receiver"), ("receiver", "sender")):
        mine = [pair.state in _BAD for pair in pairs if getattr(pair, word) == host]
        others = [pair.state in _BAD for pair in pairs if getattr(pair, opposite) == host]
        if mine and others and all(mine) and not any(others):
            return f"; only when it {'sends' if word == 'sender' else 'receives'}"
    return ""
