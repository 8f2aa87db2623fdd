"""The plan of a run of `pairs`: its hosts with their ports, its rounds, and from the hosts' files the report.

RESULTS/pairs-plan.json is written whole before anything is measured. What became of a pair is only in the two hosts'
files of its round, RESULTS/HOST/pairs-NNN.json. So a report can be made, and a run resumed, whenever it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from hosttune.fleet.answers import has_answer_file, read_document
from hosttune.fleet.between import Plan, other_names, shared_addresses, unanswered, with_guests
from hosttune.model.fleet import Answer
from hosttune.model.listing import some
from hosttune.model.pairs import GPU_RAIL, End, EndResult, Ends, Pair, PairHost, PairsReport, Port, Tool
from hosttune.model.values import Value
from hosttune.pairs.blame import blame
from hosttune.pairs.ends import GPU_SECONDS, OMIT_SECONDS, SLACK_SECONDS
from hosttune.pairs.judging import CUT, FLOOR, Joined, joined, judged, rail_figures, remarks, verdict_of
from hosttune.pairs.ports import TOOLS
from hosttune.pairs.schedule import Pairing, minutes, regrouped, rounds

PORTS_RECORD = "pairs-ports"
NO_ANSWER = ("no-connection", "connection-refused")  # these pairs are tried once more, the other way round
Against = Literal["rate", "median"]
_DOWN = ("down", "lowerlayerdown", "dormant", "notpresent")  # operstate (Documentation/networking/operstates.rst)


class PairsOptions(Value, frozen=True, kw_only=True):
    """How a run measures. `seconds` a measurement; `rate_gbps` bounds what is sent; `rounds` None: as many as needed.

    `port`: the first TCP port of servers. `wait`: how long a sender tries to connect; None: by the size of a step.
    `gpu`: with the memory of GPUs too, on the ports that hosts list for it.
    """

    tool: Tool = "tcp"
    seconds: int = 5
    rate_gbps: float | None = None
    streams: int = 1
    rounds: int | None = None
    floor: float = FLOOR
    against: tuple[Against, ...] = ("rate", "median")
    port: int = 5201
    wait: int | None = None
    together: bool = False
    gpu: bool = True


class PlannedHost(Value, frozen=True, kw_only=True):
    """A host of the plan. `outcome` other than ok: it is in no round, and why. `machine`: who answered."""

    host: str
    outcome: str = "ok"
    why: str | None = None
    machine: str | None = None
    ports: tuple[Port, ...] = ()


class PlannedRound(Value, frozen=True, kw_only=True):
    """A round. `again`: its pairs did not connect before; here the other host sends."""

    number: int
    pairs: tuple[Pairing, ...]
    again: bool = False


class PairsPlan(Plan, frozen=True, kw_only=True, dict=True):
    """A run of `pairs`. `most_hosts`: asked at once; `cores`: of the controller, for the estimate."""

    FILE = "pairs-plan.json"
    SCHEMA = "hosttune.pairs-plan/v1"
    schema: str = SCHEMA
    options: PairsOptions
    hosts: tuple[PlannedHost, ...]
    rounds: tuple[PlannedRound, ...] = ()
    most_hosts: int = 200
    cores: int = 1

    @cached_property
    def by_name(self) -> Mapping[str, PlannedHost]:
        """The hosts by name."""
        return {one.host: one for one in self.hosts}

    @property
    def measuring(self) -> float:
        """The seconds that a host measures in one round, if its pair connects: its ports one by one, or at once."""
        there = [_measured_ports(one, self.options) for one in self.hosts if one.outcome == "ok"]
        ports = max(map(len, there), default=0)
        if self.options.together:  # those with the memory of GPUs after the others
            ports = max((len({port.gpu is not None for port in of_host}) for of_host in there), default=0)
        return (self.options.seconds + OMIT_SECONDS) * ports

    @property
    def minutes(self) -> float:
        """What the rounds are estimated to take."""
        return minutes([one.pairs for one in self.rounds], self.most_hosts, self.measuring, self.cores)


# --- planning ------------------------------------------------------------------------------------------------


def planned_hosts(
    surveyed: Iterable[tuple[str, Answer, Ends | None]], tool: Tool, disrupt: frozenset[str]
) -> tuple[PlannedHost, ...]:
    """Return the hosts with their ports, and why some are not measured. `surveyed`: host, its answer, its document."""
    answers = list(surveyed)
    found = [_planned(host, answer, ends, tool, disrupt) for host, answer, ends in answers]
    shared = shared_addresses(
        {one.host: [port.address for port in one.ports if port.address is not None] for one in found}
    )
    others = other_names({host: ends.host if ends is not None else None for host, _, ends in answers})
    faults = {host: ("other-name", why) for host, why in others.items()}
    faults |= {host: ("same-address", why) for host, why in shared.items()}
    return tuple(
        msgspec.structs.replace(one, outcome=faults[one.host][0], why=faults[one.host][1])
        if one.outcome == "ok" and one.host in faults
        else one
        for one in found
    )


def _planned(host: str, answer: Answer, ends: Ends | None, tool: Tool, disrupt: frozenset[str]) -> PlannedHost:
    if ends is None or answer.outcome != "ok":
        outcome, why = unanswered(answer)
        return PlannedHost(host=host, outcome=outcome, why=why)
    outcome, why = "ok", ""
    if tool not in ends.tools:
        outcome, why = "not-installed", f"{TOOLS[tool]} is not installed"
    elif ends.guests != () and host not in disrupt:
        outcome, why = "refused", with_guests(host, ends.guests)
    elif not ends.ports:
        outcome, why = "no-port", "; ".join(("no port that is up and has an address", *ends.notes))
    return PlannedHost(host=host, outcome=outcome, why=why or None, machine=ends.machine, ports=ends.ports)


def planned_rounds(hosts: Sequence[PlannedHost], most: int | None) -> tuple[PlannedRound, ...]:
    """Return the rounds of the hosts that can be measured. Pairs without a common rail stay: they are named.

    Of two hosts each sends in one of two rounds. Of more, each sends to some and receives from others.
    """
    names = [one.host for one in hosts if one.outcome == "ok"]
    made = rounds(names, most)
    if len(names) == 2 and most != 1:
        made += tuple(tuple((receiver, sender) for sender, receiver in one) for one in made)
    return tuple(PlannedRound(number=number, pairs=pairs) for number, pairs in enumerate(made, 1))


def rails(plan: PairsPlan, pair: Pairing) -> list[tuple[Port, Port]]:
    """Return the ports of both hosts on each rail that can be measured, by name: what both have, with an address."""
    first, second = ({p.rail: p for p in _measured_ports(plan.by_name[host], plan.options)} for host in pair)
    return [(first[rail], second[rail]) for rail in sorted(first.keys() & second.keys())]


def _measured_ports(one: PlannedHost, options: PairsOptions) -> list[Port]:
    return [port for port in one.ports if _usable(port, options.tool) and (port.gpu is None or _with_gpus(options))]


def _usable(port: Port, tool: Tool) -> bool:
    return _against(port, tool) is None


def _against(port: Port, tool: Tool) -> str | None:
    """Return why a port is not measured; None if it can be. TCP to the address of an interface that is down may go
    through another one of the same network.
    """
    if port.address is None:
        return "it has no address"
    if tool == "tcp":
        return f"it is {port.state}" if port.state in _DOWN else None
    return "it has no RDMA device" if port.rdma is None else None


def _with_gpus(options: PairsOptions) -> bool:
    return options.tool == "rdma" and options.gpu


def other_fabric(first: Port, second: Port) -> bool:
    """Whether two ports are known to be of different kinds of network: nothing can connect them."""
    return None not in (first.link_layer, second.link_layer) and first.link_layer != second.link_layer


def jobs(plan: PairsPlan, pair: Pairing, disrupt: frozenset[str], step_hosts: int) -> dict[str, dict[str, object]]:
    """Return the job of each of the two hosts, as plain data; empty if no rail can be measured."""
    options = plan.options
    ends: dict[str, list[End]] = {host: [] for host in pair}
    wait = options.wait if options.wait is not None else options.seconds + 10 + step_hosts // 10
    for number, ports in enumerate(rails(plan, pair)):
        if other_fabric(*ports):
            continue
        for host, role, own, peer in ((pair[0], "client", *ports), (pair[1], "server", *ports[::-1])):
            end = End(
                rail=own.rail,
                role=role,  # type: ignore[arg-type]  # the two roles stand in the line above
                tool=options.tool,
                address=str(own.address),
                peer_address=str(peer.address),
                port=options.port + number,
                seconds=options.seconds,
                wait=wait,
                interface=own.interface,
                rdma=own.rdma,
                rdma_port=own.rdma_port,
                rate_gbps=options.rate_gbps,
                streams=options.streams,
                gpu=own.gpu,
            )
            ends[host].append(end)
    return {
        host: {
            "ends": [{k: v for k, v in msgspec.to_builtins(end).items() if v is not None} for end in made],
            "disrupt": host in disrupt,
            "together": options.together,
        }
        for host, made in ends.items()
        if made
    }


def seconds_of(job: Mapping[str, object]) -> float:
    """Return the most seconds that a job may take, with half a minute for the command itself."""
    ends = job["ends"]
    assert isinstance(ends, list)
    each = [end["wait"] + OMIT_SECONDS + end["seconds"] + SLACK_SECONDS + 5 for end in ends]
    of_gpus = [seconds + GPU_SECONDS for seconds, end in zip(each, ends, strict=True) if "gpu" in end]
    if job["together"]:  # those with the memory of GPUs after the others
        return float(30 + max(each) + max(of_gpus, default=0))
    return float(30 + sum(each) + GPU_SECONDS * len(of_gpus))


# --- files → pairs -------------------------------------------------------------------------------------------


def record_name(number: int) -> str:
    """Return the name of a host's file of a round."""
    return f"pairs-{number:03}"


def raw_pairs(results: str, plan: PairsPlan) -> tuple[Pair, ...]:
    """Return every pair of the plan on every rail, from the files, not judged yet.

    A pair that did not connect, and did the other way round in another round, is `one-way`.
    """
    found: dict[tuple[str, str, str], Pair] = {}
    worked: dict[tuple[str, str, str], Pair] = {}  # by those who would be sender and receiver the other way round
    for planned in plan.rounds:
        for pair in planned.pairs:
            for one in _of_pair(results, plan, planned, pair):
                if not planned.again:
                    found[one.sender, one.receiver, one.rail] = one
                if one.outcome == "measured":
                    worked[one.receiver, one.sender, one.rail] = one
    for key, one in found.items():
        if one.outcome in NO_ANSWER and (back := worked.get(key)) is not None:
            why = f"only {back.sender} to {back.receiver} connects ({back.gbps:.3g} Gb/s)"
            found[key] = msgspec.structs.replace(one, outcome="one-way", why=why)
    return tuple(found.values())


def _of_pair(results: str, plan: PairsPlan, planned: PlannedRound, pair: Pairing) -> Iterator[Pair]:
    answers = [_host_ends(results, plan, host, planned.number) for host in pair]
    for first, second in rails(plan, pair):
        rates = [port.rate_gbps for port in (first, second)]
        if other_fabric(first, second):
            what = Joined("wrong-fabric", why=f"{first.link_layer} and {second.link_layer}")
        else:
            what = _joined(pair, answers, first.rail)
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
            why=what.why,
        )


_Answered = tuple[Answer, Mapping[tuple[str, str], EndResult] | None]


def _host_ends(results: str, plan: PairsPlan, host: str, number: int) -> _Answered:
    """Return (the answer, its ends by rail and role). A host that was restarted or replaced has none."""
    answer, ends = read_document(results, host, record_name(number), plan.run, Ends)
    if ends is None:
        return answer, None
    machine = plan.by_name[host].machine
    if None not in (machine, ends.machine) and machine != ends.machine:
        why = "it was restarted, or another machine answers in its place, since its ports were listed"
        return msgspec.structs.replace(answer, outcome="unknown", why=why), None
    return answer, {(one.rail, one.role): one for one in ends.ends}


def _joined(pair: Pairing, answers: Sequence[_Answered], rail: str) -> Joined:
    for host, (answer, ends) in zip(pair, answers, strict=True):
        if ends is None:
            word = "refused" if answer.outcome == "refused" else "host-lost"
            asked = has_answer_file(answer)
            return Joined(word if asked else "not-asked", why=f"{host}: {answer.why}" if asked else None)  # type: ignore[arg-type]
    (_, sender), (_, receiver) = answers
    assert sender is not None
    assert receiver is not None
    return joined(sender.get((rail, "client")), receiver.get((rail, "server")))


def again(results: str, plan: PairsPlan) -> tuple[PlannedRound, ...]:
    """Return rounds in which those who did not connect try the other way round; none for pairs that have tried."""
    tried = {pair for planned in plan.rounds for pair in planned.pairs}
    found = [(p.receiver, p.sender) for p in raw_pairs(results, plan) if p.outcome in NO_ANSWER]
    made = regrouped(pair for pair in found if pair not in tried)
    first = max((planned.number for planned in plan.rounds), default=0) + 1
    return tuple(PlannedRound(number=number, pairs=pairs, again=True) for number, pairs in enumerate(made, first))


def settled(results: str, plan: PairsPlan, planned: PlannedRound, pair: Pairing) -> bool:
    """Whether the files of this run say of every rail of a pair that it was measured, or that the network cut it."""
    return all(one.outcome == "measured" or one.outcome in CUT for one in _of_pair(results, plan, planned, pair))


def report(results: str, plan: PairsPlan, *, check: bool = False, stopped: str | None = None) -> PairsReport:
    """Return the report of a plan from the files. `check`: nothing was measured, and all of it is unknown."""
    options = plan.options
    found = () if check else raw_pairs(results, plan)
    pairs = judged(found, floor=options.floor, against=options.against, limit_gbps=options.rate_gbps)
    unmeasured, lacking = tuple(_unmeasured(plan)), (*_lacking(plan), *_without_gpus(plan))
    measured = [planned for planned in plan.rounds if not planned.again]
    there = sum(one.outcome == "ok" for one in plan.hosts)
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
        all_pairs=len({frozenset(pair) for one in measured for pair in one.pairs}) == there * (there - 1) // 2,
        minutes=round(plan.minutes, 1),
        hosts=tuple(_report_host(one) for one in plan.hosts),
        rails=rail_figures(pairs),
        faults=blame(pairs),
        pairs=pairs,
        notes=(*unmeasured, *lacking, *limit, *remarks(found)),
        stopped=stopped,
    )


def _limits(options: PairsOptions, pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield what good figures leave open."""
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


def _report_host(one: PlannedHost) -> PairHost:
    rails_ = tuple(port.rail for port in one.ports if port.gpu is None)
    return PairHost(host=one.host, outcome=one.outcome, why=one.why, rails=rails_)


def _unmeasured(plan: PairsPlan) -> Iterator[str]:
    """Yield what is not measured although its host is: ports without an address, and ports that no other host has."""
    hosts = [one for one in plan.hosts if one.outcome == "ok"]
    for one in hosts:
        for port in one.ports:
            against = _against(port, plan.options.tool)
            if against is not None:
                yield f"{one.host}, port {port.rail}: {against} and is not measured"
    for rail, there in _rails(plan).items():
        if len(there) == 1 < len(hosts) and not rail.endswith(GPU_RAIL):
            yield f"{there[0]}, port {rail}: no other host has a port of this name; name the ports by hosttune_ports"
    if len(hosts) < 2:
        yield f"{len(hosts)} of {len(plan.hosts)} hosts can be measured: a pair needs two"


def _lacking(plan: PairsPlan) -> Iterator[str]:
    """Yield the rails that some hosts do not have: they have fewer ports, or lost one."""
    hosts = [one.host for one in plan.hosts if one.outcome == "ok"]
    for rail, there in _rails(plan).items():
        lacking = [host for host in hosts if host not in set(there)]
        if lacking and len(there) > 1:
            yield f"rail {rail}: {len(lacking)} of {len(hosts)} hosts have no such port ({some(lacking, 8)})"


def _without_gpus(plan: PairsPlan) -> Iterator[str]:
    """Yield which ports with a GPU on their rail are not measured with its memory, and why."""
    found: dict[str, list[str]] = {}
    alone = {rail for rail, there in _rails(plan).items() if len(there) == 1}
    for one in plan.hosts if plan.options.tool == "rdma" else ():
        for port in one.ports if one.outcome == "ok" else ():
            if port.gpu is not None and (not plan.options.gpu or port.rail in alone):
                why = "no other host has such a port" if plan.options.gpu else "--no-gpu"
                found.setdefault(why, []).append(f"{one.host} {port.rail.removesuffix(GPU_RAIL)}")
            elif port.gpu_why is not None:
                found.setdefault(port.gpu_why, []).append(f"{one.host} {port.rail}")
    for why, ports in found.items():
        yield f"GPU memory (GPUDirect) is not measured on {some(ports, 8)}: {why}"


def _rails(plan: PairsPlan) -> Mapping[str, list[str]]:
    """Return the rails that can be measured, by name, each with its hosts."""
    found: dict[str, list[str]] = {}
    for one in plan.hosts:
        for port in _measured_ports(one, plan.options) if one.outcome == "ok" else ():
            found.setdefault(port.rail, []).append(one.host)
    return dict(sorted(found.items()))
