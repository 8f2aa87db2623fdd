"""`hosttune fleet pairs` as one call: ports of all hosts, a plan, its rounds, a report.

A round is carried out in steps: one ansible for the hosts of at most `most_hosts / 2` pairs, all at once. The pairs of
a host that gives no answer are unknown.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hosttune.cluster import between, pairplan
from hosttune.cluster.between import BetweenRequest, CurrentRun, EndedRun, Verb
from hosttune.cluster.pairplan import (
    PORTS_RECORD,
    PairsOptions,
    PairsPlan,
    PlannedHost,
    PlannedRound,
    hosts_by_rail,
    measured_ports,
    not_measured,
    other_fabric,
    rails,
    record_name,
)
from hosttune.cluster.pairs.blame import blame
from hosttune.cluster.pairs.judging import CUT, JudgedPair, joined, judged, rail_figures, remarks, verdict_of
from hosttune.cluster.pairs.schedule import Pairing, regrouped, step_seconds, steps
from hosttune.fleet.answers import has_answer_file, read_document
from hosttune.fleet.membership import other_machine, unwatched
from hosttune.model.clock import now_text
from hosttune.model.fleet import Answer
from hosttune.model.listing import some
from hosttune.model.pairs import GPU_RAIL, EndResult, Ends, Pair, PairHost, PairOutcome, PairsReport, PathMtu
from hosttune.model.values import grouped

# --- the answers -----------------------------------------------------------------------------------------------
# The answers of a run of `pairs`, its hosts' files → its pairs, who is asked again, and the report.

NO_ANSWER = ("no-connection", "connection-refused")  # these pairs are tried once more, the other way round


def raw_pairs(results: str, plan: PairsPlan) -> tuple[Pair, ...]:
    """Return every pair of the plan on every rail, from the files, not judged yet.

    A pair that did not connect, and did the other way round in another round, is `one-way`.
    """
    by_ends: dict[tuple[str, str, str], Pair] = {}
    worked: dict[tuple[str, str, str], Pair] = {}  # by those who would be sender and receiver the other way round
    for planned in plan.rounds:
        for pair in planned.pairs:
            for ends_pair in _of_pair(results, plan, planned, pair):
                if not planned.again:
                    by_ends[ends_pair.sender, ends_pair.receiver, ends_pair.rail] = ends_pair
                if ends_pair.outcome == "measured":
                    worked[ends_pair.receiver, ends_pair.sender, ends_pair.rail] = ends_pair
    for key, ends_pair in by_ends.items():
        if ends_pair.outcome in NO_ANSWER and (back := worked.get(key)) is not None:
            why = f"only {back.sender} to {back.receiver} connects ({back.gbps:.3g} Gb/s)"
            by_ends[key] = msgspec.structs.replace(ends_pair, outcome="one-way", why=why)
    return tuple(by_ends.values())


def _of_pair(results: str, plan: PairsPlan, planned: PlannedRound, pair: Pairing) -> Iterator[Pair]:
    answers = [_host_ends(results, plan, host, planned.number) for host in pair]
    for first, second in rails(plan, pair):
        # The active rate of a port. One that is not above 0 is none: every figure would reach it.
        rates = [port.rate_gbps if (port.rate_gbps or 0) > 0 else None for port in (first, second)]
        if other_fabric(first, second):
            what = JudgedPair("wrong-fabric", why=f"{first.link_layer} and {second.link_layer}")
        else:
            what = _joined(pair, answers, first.rail)
            if what.path_mtu.state == "not-asked" and first.gpu is None and first.link_layer != "InfiniBand":
                untold = PathMtu(why="the sender did not ask, and its port is not known to be one of InfiniBand")
                what = msgspec.structs.replace(what, path_mtu=untold)
        yield Pair(
            sender=pair[0],
            receiver=pair[1],
            rail=first.rail,
            memory="host" if first.gpu is None else "gpu",
            round=planned.number,
            state="unknown",
            outcome=what.outcome,
            gbps=what.gbps,
            rate_gbps=None if None in rates else min(rate for rate in rates if rate is not None),
            retransmits=what.retransmits,
            errors=what.errors,
            path_mtu=what.path_mtu,
            why=what.why,
        )


_Answered = tuple[Answer, Mapping[tuple[str, str], EndResult] | None]


def _host_ends(results: str, plan: PairsPlan, host: str, number: int) -> _Answered:
    """Return (the answer, its ends by rail and role). A host that was restarted or replaced has none.

    Of an end that is there twice nothing is known: it is left out.
    """
    answer, ends = read_document(results, host, record_name(number), plan.run, Ends)
    if ends is None:
        return answer, None
    why = other_machine(plan.by_name[host].machine, ends.machine, "its ports were listed")
    if why is not None:
        return msgspec.structs.replace(answer, outcome="unknown", why=why), None
    times = Counter((result.rail, result.role) for result in ends.ends)
    return answer, {(result.rail, result.role): result for result in ends.ends if times[result.rail, result.role] == 1}


def _joined(pair: Pairing, answers: Sequence[_Answered], rail: str) -> JudgedPair:
    for host, (answer, ends) in zip(pair, answers, strict=True):
        if ends is None:
            word: PairOutcome = "refused" if answer.outcome == "refused" else "host-lost"
            asked = has_answer_file(answer)
            return JudgedPair(word if asked else "not-asked", why=f"{host}: {answer.why}" if asked else None)
    (_, sender), (_, receiver) = answers
    assert sender is not None
    assert receiver is not None
    return joined(sender.get((rail, "client")), receiver.get((rail, "server")))


def again(results: str, plan: PairsPlan) -> tuple[PlannedRound, ...]:
    """Return rounds in which those who did not connect try the other way round; none for pairs that have tried."""
    tried = {pair for planned in plan.rounds for pair in planned.pairs}
    reversed_pairs = [(p.receiver, p.sender) for p in raw_pairs(results, plan) if p.outcome in NO_ANSWER]
    made = regrouped(pair for pair in reversed_pairs if pair not in tried)
    first = max((planned.number for planned in plan.rounds), default=0) + 1
    return tuple(PlannedRound(number=number, pairs=pairs, again=True) for number, pairs in enumerate(made, first))


def settled(results: str, plan: PairsPlan, planned: PlannedRound, pair: Pairing) -> bool:
    """Whether the files of this run say of every rail of a pair that it was measured, or that the network cut it."""
    return all(
        measured.outcome == "measured" or measured.outcome in CUT for measured in _of_pair(results, plan, planned, pair)
    )


def report(results: str, plan: PairsPlan, *, check: bool = False, stopped: str | None = None) -> PairsReport:
    """Return the report of a plan from the files. `check`: nothing was measured, and all of it is unknown."""
    options = plan.options
    raw = () if check else raw_pairs(results, plan)
    pairs = judged(raw, floor=options.floor, against=options.against, limit_gbps=options.rate_gbps)
    unmeasured, lacking = (*_unmeasured(plan), *_unwatched(plan)), (*_lacking(plan), *_without_gpus(plan))
    measured = [planned for planned in plan.rounds if not planned.again]
    there = sum(host.outcome == "ok" for host in plan.hosts)
    limit = tuple(_limits(options, pairs))
    return PairsReport(
        run=plan.run,
        at=plan.at,
        tool=options.tool,
        check=check,
        against=options.against,
        floor=options.floor,
        rate_limit_gbps=options.rate_gbps,
        verdict=verdict_of(
            pairs, incomplete=bool(unmeasured) or there < len(plan.hosts), limited=bool(limit or lacking)
        ),
        rounds=len(measured),
        all_pairs=len({frozenset(pair) for planned_round in measured for pair in planned_round.pairs})
        == there * (there - 1) // 2,
        minutes=round(plan.minutes, 1),
        hosts=tuple(_report_host(host) for host in plan.hosts),
        rails=rail_figures(pairs),
        faults=blame(pairs),
        pairs=pairs,
        notes=(*unmeasured, *lacking, *limit, *_not_read(pairs), *remarks(raw)),
        stopped=stopped,
    )


def _limits(options: PairsOptions, pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield what good figures leave open, besides what each pair says by itself (`verdict_of`)."""
    if options.rate_gbps is not None:
        yield f"at most {options.rate_gbps:g} Gb/s were sent: no port's full rate is proven"
    if "rate" not in options.against:
        yield "compared with the median alone: a fleet that is slow as a whole is not seen"
    measured = [pair for pair in pairs if pair.outcome == "measured"]
    sent, got = ({(getattr(pair, role), pair.rail) for pair in measured} for role in ("sender", "receiver"))
    for words, ports in (("receive", sent - got), ("send", got - sent)):
        if ports:
            named = some([f"{host} port {rail}" for host, rail in sorted(ports)], 8)
            yield f"not measured whether these {words} well, too: {named}; more rounds give both directions"


def _not_read(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield what hosts did not tell of the pairs that they measured."""
    measured = [pair for pair in pairs if pair.outcome == "measured"]
    blind = [f"{pair.sender} to {pair.receiver} on {pair.rail}" for pair in measured if pair.errors is None]
    if blind:
        yield f"error counters of a port were not read: {some(blind, 8)}"
    by_reason = grouped(
        (pair.path_mtu.why or "the sender did not tell", f"{pair.sender} to {pair.receiver} on {pair.rail}")
        for pair in measured
        if pair.path_mtu.state == "unknown"
    )
    for why, names in by_reason.items():
        yield f"whether packets of the ports' MTU arrive whole is not known: {why} ({some(names, 8)})"


def _report_host(host: PlannedHost) -> PairHost:
    rails_ = tuple(port.rail for port in host.ports if port.gpu is None)
    return PairHost(host=host.host, outcome=host.outcome, why=host.why, rails=rails_)


def _unmeasured(plan: PairsPlan) -> Iterator[str]:
    """Yield what is not measured although its host is: ports without an address, and ports that no other host has."""
    hosts = [planned_host for planned_host in plan.hosts if planned_host.outcome == "ok"]
    for planned_host in hosts:
        for port in planned_host.ports:
            why = not_measured(port, plan.options.tool)
            if why is not None:
                yield f"{planned_host.host}, port {port.rail}: {why} and is not measured"
    for rail, there in hosts_by_rail(plan.hosts, plan.options).items():
        if len(there) == 1 < len(hosts) and not rail.endswith(GPU_RAIL):
            yield f"{there[0]}, port {rail}: no other host has a port of this name; name the ports by hosttune_ports"
    yield from _in_no_round(plan)
    if len(hosts) < 2:
        yield f"{len(hosts)} of {len(plan.hosts)} hosts can be measured: a pair needs two"


def _unwatched(plan: PairsPlan) -> Iterator[str]:
    return unwatched(
        {planned_host.host: planned_host.machine for planned_host in plan.hosts if planned_host.outcome == "ok"}
    )


def _in_no_round(plan: PairsPlan) -> Iterator[str]:
    """Yield the ports that no round measures, though other hosts have such a port."""
    there = {
        host: {port.rail for port in measured_ports(planned_host, plan.options)}
        for host, planned_host in plan.by_name.items()
    }
    met = {
        (rail, host)
        for planned in plan.rounds
        for first, second in planned.pairs
        for rail in there[first] & there[second]
        for host in (first, second)
    }
    for rail, hosts in hosts_by_rail(plan.hosts, plan.options).items():
        left = [host for host in hosts if (rail, host) not in met]
        if left and len(hosts) > 1:
            yield f"port {rail} of {some(left, 8)}: in no round with another host that has it; give more --rounds"


def _lacking(plan: PairsPlan) -> Iterator[str]:
    """Yield the rails that some hosts do not have: they have fewer ports, or lost one."""
    hosts = [planned_host.host for planned_host in plan.hosts if planned_host.outcome == "ok"]
    for rail, there in hosts_by_rail(plan.hosts, plan.options).items():
        lacking = [host for host in hosts if host not in set(there)]
        if lacking and len(there) > 1:
            yield f"rail {rail}: {len(lacking)} of {len(hosts)} hosts have no such port ({some(lacking, 8)})"


def _without_gpus(plan: PairsPlan) -> Iterator[str]:
    """Yield which ports with a GPU on their rail are not measured with its memory, and why."""
    by_reason: dict[str, list[str]] = {}
    alone = {rail for rail, there in hosts_by_rail(plan.hosts, plan.options).items() if len(there) == 1}
    for planned_host in plan.hosts if plan.options.tool == "rdma" else ():
        for port in planned_host.ports if planned_host.outcome == "ok" else ():
            if port.gpu is not None and (not plan.options.gpu or port.rail in alone):
                why = "no other host has such a port" if plan.options.gpu else "--no-gpu"
                by_reason.setdefault(why, []).append(f"{planned_host.host} {port.rail.removesuffix(GPU_RAIL)}")
            elif port.gpu_why is not None:
                by_reason.setdefault(port.gpu_why, []).append(f"{planned_host.host} {port.rail}")
    for why, ports in by_reason.items():
        yield f"GPU memory (GPUDirect) is not measured on {some(ports, 8)}: {why}"


# --- the run ---------------------------------------------------------------------------------------------------

PairsRequest = BetweenRequest[PairsOptions]
PairsRun = EndedRun[PairsReport]


def _planned(current: CurrentRun[PairsOptions], hosts: Sequence[str]) -> tuple[str | None, PairsPlan]:
    """Ask every host for its ports, and plan rounds."""
    options = current.asked.options
    stopped = current.list_hosts(PORTS_RECORD, hosts, "ports")
    surveyed = ((host, *read_document(current.results, host, PORTS_RECORD, current.run, Ends)) for host in hosts)
    planned = pairplan.planned_hosts(surveyed, options.tool, frozenset(current.asked.disrupt))
    plan = PairsPlan(
        run=current.run,
        at=now_text(),
        options=options,
        hosts=planned,
        rounds=pairplan.planned_rounds(planned, options),
        most_hosts=current.most_hosts,
        cores=os.cpu_count() or 1,
    )
    return stopped, plan


def _measured(current: CurrentRun[PairsOptions], plan: PairsPlan) -> tuple[str | None, PairsPlan]:
    """Measure all rounds, then those that did not connect the other way round."""
    stopped = _rounds(current, plan, plan.rounds)
    more = again(current.results, plan) if stopped is None else ()
    if more:
        plan = msgspec.structs.replace(plan, rounds=(*plan.rounds, *more))
        between.write_plan(current.results, plan)
        stopped = _rounds(current, plan, more)
    return stopped, plan


def _rounds(current: CurrentRun[PairsOptions], plan: PairsPlan, rounds: Sequence[PlannedRound]) -> str | None:
    return next((why for planned in rounds if (why := _round(current, plan, planned)) is not None), None)


def _round(current: CurrentRun[PairsOptions], plan: PairsPlan, planned: PlannedRound) -> str | None:
    """Measure the pairs of a round that no file settles. Returns why it stopped, or None."""
    todo = [pair for pair in planned.pairs if not settled(current.results, plan, planned, pair)]
    for step in steps(todo, plan.most_hosts):
        live = [pair for pair in step if not current.lost.keys() & set(pair)]
        if not live:
            continue
        stopped = current.no_time(step_seconds(2 * len(live), plan.measuring, plan.cores))
        stopped = stopped or _step(current, plan, planned, live)
        if stopped is not None:
            return stopped
    return None


def _step(
    current: CurrentRun[PairsOptions], plan: PairsPlan, planned: PlannedRound, pairs: Sequence[Pairing]
) -> str | None:
    """Let the hosts of these pairs measure, all at once. Returns why the run cannot go on, or None."""
    made = {
        host: job
        for pair in pairs
        for host, job in pairplan.jobs(plan, pair, frozenset(current.asked.disrupt), 2 * len(pairs)).items()
    }
    if not made:
        return None
    of = f"round {planned.number} of {len(plan.rounds)}{' (again, the other way round)' if planned.again else ''}"
    seconds = max(map(pairplan.seconds_of, made.values()))
    return current.measure(pairplan.record_name(planned.number), made, seconds, f"{of}: {len(pairs)} pairs")


PAIRS = Verb("pairs", PairsPlan, _planned, _measured, report)
