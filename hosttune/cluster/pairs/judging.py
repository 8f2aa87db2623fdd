"""The two ends of a pair → one pair; a figure → good, low, cut or unknown. Pure functions.

Expected is FLOOR of the lower active rate of the two ports, FLOOR of the median of all pairs whose ports have the same
rate and memory, and FLOOR of the median of its rail: a port that came up at half of its rate reaches that half. A
figure below one of them is low. With the memory of GPUs it is low also below FLOOR of the same pair's figure with host
memory: the two ways differ between NIC and memory alone. Sources of 0.9 of the port's rate as a floor: Azure's and
OCI's health checks of `ib_write_bw` (380 of 400, 360 of 400 with GPUDirect, 384 of 400, 192 of 200 Gb/s):
docs/fleet-pairs.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

import msgspec
from msgspec.structs import replace

from hosttune.model.listing import some
from hosttune.model.pairs import EndResult, Memory, Pair, PairOutcome, PairState, PathMtu, RailFigures
from hosttune.model.validation import Verdict
from hosttune.model.values import grouped

FLOOR = 0.9
LEAST_FOR_MEDIAN = 3  # measured pairs; with fewer no figure is unusual
_MOST_WORDS = 300  # characters of a reason that a host gives
_SAME = 0.05  # the two ends' figures of one connection may differ by this part
_ABOVE = 1.05  # times the port's rate: no port carries more; what is above was measured for seconds, with buffers
CUT: frozenset[PairOutcome] = frozenset(
    ("no-connection", "connection-refused", "one-way", "no-route", "wrong-fabric", "other-peer")
)
# If the server could not listen, what the client met there says nothing about the network.
_SERVERS_OWN = ("port-busy", "wrong-fabric", "no-route", "not-installed", "tool-failed", "not-understood")

_NOT_TOLD = PathMtu()


class JudgedPair(msgspec.Struct, frozen=True):
    """What became of a pair: its outcome, the receiver's figure, and why there is none, or what is unusual about it."""

    outcome: PairOutcome
    gbps: float | None = None
    why: str | None = None
    retransmits: int | None = None
    errors: tuple[str, ...] | None = ()
    path_mtu: PathMtu = _NOT_TOLD


def joined(client: EndResult | None, server: EndResult | None) -> JudgedPair:
    """Return what became of a pair from its two ends. None: that host gave no answer.

    There is a figure only if both ends measured the same connection. If only one end has one, or if the ends name
    different connections, somebody else answered at the server's address (`other-peer`).
    """
    if client is None or server is None:
        return JudgedPair("host-lost", why="one of the two hosts gave no answer")
    client, server = _shortened(client), _shortened(server)
    if server.outcome in _SERVERS_OWN:
        return JudgedPair(server.outcome, why=f"receiver: {server.why}")  # type: ignore[arg-type]  # _SERVERS_OWN
    if client.outcome == "measured" and not client.connection:
        return JudgedPair("not-understood", why="the sender's output does not name its connection")
    if client.outcome == "measured" and server.outcome == "measured":
        if client.connection != server.connection:
            return JudgedPair("other-peer", why="sender and receiver were connected, but not to each other")
        if client.gbps is None or server.gbps is None or min(client.gbps, server.gbps) < 0:
            return JudgedPair("not-understood", why="an end without a figure, or with one below 0")
        if abs(client.gbps - server.gbps) > _SAME * max(client.gbps, server.gbps):
            return JudgedPair(
                "not-understood", why=f"the ends contradict each other: {client.gbps:g} and {server.gbps:g} Gb/s"
            )
        ends = (("sender", client.errors or {}), ("receiver", server.errors or {}))
        lines = tuple(f"{role}: {name} {count}" for role, counters in ends for name, count in counters.items())
        errors = None if not lines and None in (client.errors, server.errors) else lines
        return JudgedPair(
            "measured", min(client.gbps, server.gbps), server.why, client.retransmits, errors, _path(client)
        )
    if client.outcome == "measured" and server.outcome == "nobody-came":
        return JudgedPair("other-peer", why="the sender was answered, and nobody came to the receiver")
    if client.outcome == "measured":
        return JudgedPair("not-understood", why=f"receiver: {server.outcome}: {server.why}")
    if client.outcome == "nobody-came":
        return JudgedPair("not-understood", why="the sender's answer is that of a receiver")
    path = _path(client)
    smaller = f"; {path.why}" if path.state == "smaller" else ""
    return JudgedPair(client.outcome, why=f"sender: {client.why}{smaller}", path_mtu=path)


def _shortened(end: EndResult) -> EndResult:
    """Return what a host says of an end, its texts no longer than a report can show."""
    errors = end.errors and {name[:_MOST_WORDS]: count for name, count in end.errors.items()}
    path = replace(end.path_mtu, why=(end.path_mtu.why or "")[:_MOST_WORDS] or None)
    return replace(end, why=(end.why or "")[:_MOST_WORDS] or None, errors=errors, path_mtu=path)


def _path(client: EndResult) -> PathMtu:
    """Return what the sender says of its path; nothing is known of it if it does not name the MTU."""
    told, why = client.path_mtu, client.path_mtu.why
    if told.state in ("whole", "smaller") and not told.bytes:
        return PathMtu(why="the sender does not name the MTU of its port")
    if told.state == "smaller" and why is None:
        why = f"packets of {told.bytes} bytes do not arrive whole"
    return replace(told, why=why)


def judged(
    pairs: Sequence[Pair], *, floor: float, against: Sequence[str], limit_gbps: float | None = None
) -> tuple[Pair, ...]:
    """Return the pairs with state and expected figure. `limit_gbps`: nobody sent more than this."""
    medians = _medians(pairs)
    of_host = {(pair.sender, pair.receiver, pair.rail): pair.gbps for pair in pairs if pair.memory == "host"}
    return tuple(
        _judge_pair(pair, medians, floor, against, limit_gbps, of_host.get(pair.with_host_memory)) for pair in pairs
    )


def _judge_pair(
    pair: Pair, medians: _Medians, floor: float, against: Sequence[str], limit: float | None, of_host: float | None
) -> Pair:
    """Return a pair with its state. `of_host`: its figure with host memory."""
    if pair.outcome != "measured" or pair.gbps is None:
        return replace(pair, state="cut" if pair.outcome in CUT else "unknown")
    port = pair.rate_gbps if "rate" in against else None
    beside = of_host if pair.memory == "gpu" else None
    middles = (medians.get((pair.memory, pair.rate_gbps)), medians.get(pair.rail)) if "median" in against else ()
    figures = ((port if port is None or limit is None else min(port, limit)), *middles, beside)
    expected = max((floor * value for value in figures if value is not None), default=None)
    state: PairState = "unknown"
    why = pair.why
    if pair.gbps == 0 or (expected is not None and pair.gbps < expected):
        state = "low"  # 0 is low even where all others are 0, too
    elif port is not None and pair.gbps > port * _ABOVE:
        why = f"{pair.gbps:.4g} Gb/s is above the active rate of {port:g}: it took another way, or this rate is wrong"
    elif "rate" in against and port is None:
        why = "the active rate of a port is unknown"
    elif expected is None:
        why = f"fewer than {LEAST_FOR_MEDIAN} pairs like it were measured"
    else:
        state = "good"
    return replace(pair, state=state, expected=expected, why=why)


_Medians = Mapping[tuple[Memory, float | None] | str, float]


def _medians(pairs: Iterable[Pair]) -> _Medians:
    """Return the median of the measured pairs by memory and rate of their ports (None: unknown), and by their rail."""
    medians: dict[tuple[Memory, float | None] | str, list[float]] = {}
    for pair in pairs:
        if pair.outcome == "measured" and pair.gbps is not None:
            for kind in ((pair.memory, pair.rate_gbps), pair.rail):
                medians.setdefault(kind, []).append(pair.gbps)
    return {kind: median(figures) for kind, figures in medians.items() if len(figures) >= LEAST_FOR_MEDIAN}


def verdict_of(pairs: Iterable[Pair], *, incomplete: bool, limited: bool) -> Verdict:
    """Return the verdict. `incomplete`: hosts or ports are not measured; `limited`: so that it is no pass.

    Errors that ports counted while they were measured, or that are not known, are no pass either, nor is a path that
    does not carry packets as large as its ports send, or of which this is not known.
    """
    all_pairs = tuple(pairs)
    states = {pair.state for pair in all_pairs}
    if states & {"low", "cut"}:
        return "fail"
    if not states or incomplete or "unknown" in states:
        return "unknown"
    limited = limited or any(pair.errors != () or pair.path_mtu.state in ("smaller", "unknown") for pair in all_pairs)
    return "warn" if limited else "pass"


def rail_figures(pairs: Iterable[Pair]) -> tuple[RailFigures, ...]:
    """Return how many pairs of each rail are in which state, and the median of its figures, rails by name."""
    return tuple(_rail(rail, alike) for rail, alike in sorted(grouped((pair.rail, pair) for pair in pairs).items()))


def _rail(rail: str, pairs: Sequence[Pair]) -> RailFigures:
    figures = [pair.gbps for pair in pairs if pair.gbps is not None]
    counted = {state: sum(pair.state == state for pair in pairs) for state in ("good", "low", "cut", "unknown")}
    return RailFigures(rail=rail, median=median(figures) if figures else None, **counted)


def remarks(pairs: Iterable[Pair]) -> Iterator[str]:
    """Yield what hosts said of measurements that worked, each once with its receivers."""
    measured = (pair for pair in pairs if pair.outcome == "measured")
    for why, hosts in grouped((pair.why, pair.receiver) for pair in measured if pair.why is not None).items():
        yield f"{why} ({some(tuple(dict.fromkeys(hosts)), 8)})"
