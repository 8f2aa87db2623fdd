"""The answers of a group's hosts → one outcome with figures → good, low, failed or unknown. Pure functions.

Bus bandwidth as nccl-tests defines it (NVIDIA/nccl-tests doc/PERFORMANCE.md), n ranks: all-reduce 2(n-1)/n · S ÷ t,
all-gather (n-1)/n · S ÷ t, S the bytes of the buffer, of an all-gather of the gathered one; t is the time of the
slowest rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

import msgspec
from msgspec.structs import replace

from hosttune.model.collective import GroupFigure, GroupOutcome, GroupState, HostGroup, Kind, Member, Scaling, Timing
from hosttune.model.listing import some
from hosttune.model.validation import Verdict
from hosttune.model.values import grouped
from hosttune.predicting.formulas import SMALL_BYTES, Estimate

FLOOR = 0.9
LEAST_FOR_MEDIAN = 3  # groups of the same number of hosts; with fewer no figure is unusual
_SAME = 0.01  # the times of one operation are agreed on by all ranks
_BYTES = 4  # of a number
_SHORTEST, _LONGEST = 1e-9, 1e5  # seconds that an operation may have taken
_ABOVE = 1.02  # times the bound: no such machine can give more
_FACTORS: Mapping[Kind, int] = {"all-reduce": 2, "all-gather": 1}
# The collective did not work between hosts that answered.
FAILED: frozenset[GroupOutcome] = frozenset(
    ("wrong", "no-connection", "connection-refused", "no-route", "wrong-fabric", "nobody-came", "other-member",
     "member-lost", "collective-failed")
)  # fmt: skip
# If hosts give different reasons, the first of these is the cause, and the others follow from it.
_ORDER: tuple[GroupOutcome, ...] = (
    "wrong", "port-busy", "not-installed", "other-version", "not-understood", "tool-failed", "wrong-fabric", "no-route",
    "connection-refused", "no-connection", "other-member", "nobody-came", "collective-failed", "member-lost",
)  # fmt: skip
Expect = Callable[[Kind, int, int], Estimate | None]  # (kind, hosts, bytes) → the prediction


def busbw(kind: Kind, ranks: int, size_bytes: int, seconds: float) -> float:
    """Return the bus bandwidth in GB/s."""
    return _FACTORS[kind] * (ranks - 1) / ranks * size_bytes / seconds / 1e9


class JudgedGroup(msgspec.Struct, frozen=True):
    """What became of a group: its outcome, the figures of each run, why there are none, who is accused, and what was
    asked for and has no figure."""

    outcome: GroupOutcome
    timings: tuple[Timing, ...] = ()
    why: str | None = None
    accused: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class WantedGroup(msgspec.Struct, frozen=True):
    """What a group was asked for: its name, the ranks of all of its hosts, and each of `kinds` at each of `sizes`."""

    name: str
    ranks: int
    kinds: tuple[Kind, ...]
    sizes: tuple[int, ...]
    runs: int


def joined(wanted: WantedGroup, answers: Mapping[str, Member]) -> JudgedGroup:
    """Return what became of a group from the answers of all of its hosts.

    There are figures only if every host measured in this very group, with this number of ranks, the same times, and
    nothing else than was asked for. `left_out` says what has no figure.
    """
    name, ranks = wanted.name, wanted.ranks
    for host, member in answers.items():
        if member.group != name:
            return JudgedGroup("not-understood", why=f"{host}: its answer is of another group")
        if member.ranks not in (None, ranks) or any(timing.ranks != ranks for timing in member.timings):
            return JudgedGroup("not-understood", why=f"{host}: its answer is of {member.ranks} ranks, not {ranks}")
    bad = {host: member for host, member in answers.items() if member.outcome != "measured"}
    if bad:
        place: dict[str, int] = {outcome: number for number, outcome in enumerate(_ORDER)}
        host, member = min(bad.items(), key=lambda item: place.get(item[1].outcome, len(place)))
        if member.outcome == "listed":
            return JudgedGroup("not-understood", why=f"{host}: it did not take part")
        accused = member.accused or tuple(dict.fromkeys(name for broken in bad.values() for name in broken.accused))
        return JudgedGroup(member.outcome, why=f"{host}: {member.why}", accused=accused)
    first, *others = answers.items()
    for host, member in others:
        if not _agree(first[1].timings, member.timings):
            return JudgedGroup("not-understood", why=f"{first[0]} and {host} contradict each other")
    if not first[1].timings or any(member.ranks is None for member in answers.values()):
        return JudgedGroup("not-understood", why=f"{first[0]}: no figure")
    return _as_asked(wanted, first[0], first[1].timings)


def _as_asked(wanted: WantedGroup, host: str, timings: Sequence[Timing]) -> JudgedGroup:
    """Return the times by the sizes that were asked for: all ranks have equal parts of a buffer, so it may be less."""
    by_size: dict[tuple[Kind, int], Timing] = {}
    for timing in timings:
        size = min(wanted.sizes, key=lambda asked: abs(asked - timing.size_bytes))
        if timing.kind not in wanted.kinds or abs(size - timing.size_bytes) >= _BYTES * wanted.ranks:
            return JudgedGroup(
                "not-understood", why=f"{host}: {timing.kind} of {timing.size_bytes} bytes was not asked for"
            )
        if (timing.kind, size) in by_size or len(timing.seconds) != wanted.runs:
            return JudgedGroup(
                "not-understood", why=f"{host}: {timing.kind} of {size} bytes does not have {wanted.runs} times"
            )
        if not all(_SHORTEST <= seconds <= _LONGEST for seconds in timing.seconds):
            return JudgedGroup("not-understood", why=f"{host}: {timing.kind} of {size} bytes has times that cannot be")
        by_size[timing.kind, size] = replace(timing, size_bytes=size)
    missing = [
        f"{kind} of {size} bytes" for size in wanted.sizes for kind in wanted.kinds if (kind, size) not in by_size
    ]
    return JudgedGroup("measured", tuple(by_size.values()), left_out=tuple(missing))


def _agree(first: Sequence[Timing], second: Sequence[Timing]) -> bool:
    if [(t.kind, t.size_bytes, len(t.seconds)) for t in first] != [
        (t.kind, t.size_bytes, len(t.seconds)) for t in second
    ]:
        return False
    pairs = [pair for a, b in zip(first, second, strict=True) for pair in zip(a.seconds, b.seconds, strict=True)]
    return all(min(pair) > 0 and abs(pair[0] - pair[1]) <= _SAME * max(pair) for pair in pairs)


def figures(timings: Iterable[Timing]) -> tuple[GroupFigure, ...]:
    """Return the figures of a group, not judged yet."""
    rows = []
    for timing in timings:
        values = [busbw(timing.kind, timing.ranks, timing.size_bytes, seconds) for seconds in timing.seconds]
        rows.append(
            GroupFigure(
                kind=timing.kind,
                size_bytes=timing.size_bytes,
                busbw=median(values),
                lowest=min(values),
                highest=max(values),
            )
        )
    return tuple(rows)


class CollectiveStandard(msgspec.Struct, frozen=True):
    """What figures are compared with. `expect`: asks the prediction. `against`: "prediction", "fleet" or both.

    `least`: the operator's own floor for the largest size between hosts, GB/s. `floor`: part of the fleet's median.
    """

    expect: Expect
    against: tuple[str, ...] = ("prediction", "fleet")
    floor: float = FLOOR
    least: float | None = None


def judged(groups: Sequence[HostGroup], standard: CollectiveStandard) -> tuple[HostGroup, ...]:
    """Return the groups with states. Of groups of the same hosts the last one counts, earlier ones are `repeated`.

    So is a group without an answer whose hosts all have one of later groups of as many hosts.
    """
    last = {frozenset(group.hosts): number for number, group in enumerate(groups) if settled(group.outcome)}
    now = [
        replace(
            host_group,
            repeated=last.get(frozenset(host_group.hosts), n) > n or _made_up_for(host_group, groups[n + 1 :]),
        )
        for n, host_group in enumerate(groups)
    ]
    medians = _medians(host_group for host_group in now if not host_group.repeated)
    return tuple(_judge_group(host_group, standard, medians) for host_group in now)


def _made_up_for(group: HostGroup, later: Sequence[HostGroup]) -> bool:
    if settled(group.outcome):
        return False
    alike = [
        host_group for host_group in later if len(host_group.hosts) == len(group.hosts) and settled(host_group.outcome)
    ]
    return set(group.hosts) <= {host for host_group in alike for host in host_group.hosts}


def settled(outcome: GroupOutcome) -> bool:
    """Return whether a group's outcome says something of its hosts and the network between them."""
    return outcome == "measured" or outcome in FAILED


def _medians(groups: Iterable[HostGroup]) -> Mapping[tuple[str, int, int], float]:
    """Return the median by kind, size and number of hosts."""
    medians = grouped(
        ((figure.kind, figure.size_bytes, len(group.hosts)), figure.busbw)
        for group in groups
        for figure in group.figures
    )
    return {key: median(values) for key, values in medians.items() if len(values) >= LEAST_FOR_MEDIAN}


def _judge_group(
    group: HostGroup, standard: CollectiveStandard, medians: Mapping[tuple[str, int, int], float]
) -> HostGroup:
    if group.outcome != "measured":
        return replace(group, state="failed" if group.outcome in FAILED else "unknown")
    largest = max(figure.size_bytes for figure in group.figures)
    group_figures = tuple(_figure(figure, len(group.hosts), largest, standard, medians) for figure in group.figures)
    counted = [figure for figure in group_figures if figure.size_bytes >= min(SMALL_BYTES, largest)]
    states = [figure.state for figure in counted]
    why = next((figure.why for figure in counted if figure.state in ("low", "unknown") and figure.why), group.why)
    if group.left_out and not why:
        why = f"{some(group.left_out, 2)} has no figure"
    unknown = "unknown" in states or group.left_out
    state: GroupState = "low" if "low" in states else "unknown" if unknown else "good"
    return replace(group, state=state, figures=group_figures, why=why)


def _figure(
    figure: GroupFigure,
    hosts: int,
    largest: int,
    standard: CollectiveStandard,
    medians: Mapping[tuple[str, int, int], float],
) -> GroupFigure:
    if figure.size_bytes < min(SMALL_BYTES, largest):
        return replace(figure, why="a small message beside larger ones: not judged")
    estimate = standard.expect(figure.kind, hosts, figure.size_bytes)
    bound, typical = (estimate.bound, estimate.typical) if estimate is not None else (None, None)
    predicted = _predicted(estimate) if "prediction" in standard.against else None
    middle = medians.get((figure.kind, figure.size_bytes, hosts)) if "fleet" in standard.against else None
    own = standard.least if hosts > 1 and figure.size_bytes == largest else None
    known = [
        value for value in (predicted, own, None if middle is None else standard.floor * middle) if value is not None
    ]
    expected = max(known, default=None)
    state, why = _state(figure, expected, bound, hosts=hosts)
    if state == "good":
        judges = own is not None or predicted is not None or (standard.against == ("fleet",) and middle is not None)
        size_only = standard.least is not None and hosts > 1 and figure.size_bytes < largest
        if not judges and not size_only:
            state, why = "unknown", _lacking(estimate, standard, hosts)
    return replace(figure, state=state, bound=bound, typical=typical, expected=expected, why=why)


def _predicted(estimate: Estimate | None) -> float | None:
    """Return below what a figure is low; None: unknown, or the size is outside of the formula's range."""
    if estimate is None:
        return None
    if estimate.typical is not None:
        return estimate.typical * estimate.low_below if estimate.low_below > 0 else None
    return estimate.bound * estimate.at_least if estimate.bound is not None and estimate.at_least is not None else None


def _state(
    figure: GroupFigure, expected: float | None, bound: float | None, *, hosts: int
) -> tuple[GroupState, str | None]:
    if bound is not None and figure.busbw > bound * _ABOVE:
        return (
            "unknown",
            f"{figure.busbw:.4g} GB/s is above the bound of {bound:.4g}: another path, or the facts are wrong",
        )
    if expected is not None and figure.busbw < expected:
        size = f"{figure.kind} of {figure.size_bytes >> 20} MiB" if figure.size_bytes >= 1 << 20 else f"{figure.kind}"
        return "low", f"{size}: {figure.busbw:.4g} GB/s, expected {expected:.4g}"
    return "good", None


def _lacking(estimate: Estimate | None, standard: CollectiveStandard, hosts: int) -> str:
    if standard.against == ("fleet",):
        return (
            f"fewer than {LEAST_FOR_MEDIAN} groups of {hosts} hosts were measured; --least gives a figure of your own"
        )
    missing = "; ".join(estimate.because) if estimate is not None and estimate.because else "no model of these machines"
    return f"no prediction to compare with ({missing}); --least or --against fleet judges without one"


def scaling(groups: Iterable[HostGroup], expect: Expect) -> tuple[Scaling, ...]:
    """Return the figures of the series by kind, size and number of hosts, with the efficiency against its base.

    Throughput of n ranks is n times the bus bandwidth, so the efficiency per rank is the ratio of bus bandwidths.
    """
    series: dict[tuple[Kind, int], dict[int, list[tuple[int, float]]]] = {}
    for group in groups:
        for figure in group.figures if group.purpose == "series" and not group.repeated else ():
            by_hosts = series.setdefault((figure.kind, figure.size_bytes), {})
            by_hosts.setdefault(len(group.hosts), []).append((group.ranks, figure.busbw))
    rows = []
    for (kind, size), by_hosts in sorted(series.items()):
        base = min((hosts for hosts in by_hosts if hosts > 1), default=None)
        middle = {hosts: median(value for _, value in values) for hosts, values in by_hosts.items()}
        for hosts, values in sorted(by_hosts.items()):
            estimate = expect(kind, hosts, size)
            rows.append(
                Scaling(
                    kind=kind,
                    size_bytes=size,
                    hosts=hosts,
                    ranks=values[0][0],
                    groups=len(values),
                    busbw=middle[hosts],
                    lowest=min(value for _, value in values),
                    bound=estimate.bound if estimate else None,
                    typical=estimate.typical if estimate else None,
                    efficiency=middle[hosts] / middle[base] if base is not None and hosts > base else None,
                    base_hosts=base if base is not None and hosts > base else None,
                    of_one_host=middle[hosts] / middle[1] if 1 in middle and hosts > 1 else None,
                )
            )
    return tuple(rows)


def verdict_of(groups: Iterable[HostGroup], *, incomplete: bool, limited: bool = False) -> Verdict:
    """Return the verdict. `incomplete`: hosts are not measured, or not all groups of the series; `limited`: what
    figures were compared with leaves open whether they are good."""
    now = list(groups)
    states = {group.state for group in now if not group.repeated}
    if states & {"low", "failed"}:
        return "fail"
    if not states or incomplete or "unknown" in states:
        return "unknown"
    limited = limited or any(group.repeated and group.state in ("low", "failed") for group in now)
    return "warn" if limited else "pass"
