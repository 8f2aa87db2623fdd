"""The plan of a run of `pairs`: its hosts with their ports, its rounds, and the jobs of each host.

RESULTS/pairs-plan.json is written whole before anything is measured. What became of a pair is only in the two hosts'
files of its round, RESULTS/HOST/pairs-NNN.json. So a report can be made, and a run resumed, whenever it ended.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal

import msgspec

from hosttune.cluster.between import BetweenPlan
from hosttune.cluster.pairs.ends import GPU_SECONDS, OMIT_SECONDS, SLACK_SECONDS
from hosttune.cluster.pairs.judging import FLOOR
from hosttune.cluster.pairs.pathmtu import MOST_SECONDS, USUAL_SECONDS
from hosttune.cluster.pairs.ports import TOOLS
from hosttune.cluster.pairs.schedule import ALL_PAIRS, Pairing, completing, minutes, rounds
from hosttune.fleet.membership import Planned, groups_of_known_hosts, unanswered, with_guests, without_mistaken
from hosttune.model.fleet import Answer
from hosttune.model.pairs import End, Ends, Port, Role, Tool
from hosttune.model.values import Value, grouped

PORTS_RECORD = "pairs-ports"
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


class PlannedHost(Planned, frozen=True, kw_only=True):
    """A host of the plan, with its ports. `machine`: who answered."""

    machine: str | None = None
    ports: tuple[Port, ...] = ()


class PlannedRound(Value, frozen=True, kw_only=True):
    """A round. `again`: its pairs did not connect before; here the other host sends."""

    number: int
    pairs: tuple[Pairing, ...]
    again: bool = False


class PairsPlan(BetweenPlan, frozen=True, kw_only=True, dict=True):
    """A run of `pairs`. `most_hosts`: asked at once; `cores`: of the controller, for the estimate."""

    FILE = "pairs-plan.json"
    SCHEMA = "hosttune.cluster.pairs-plan/v1"
    schema: str = SCHEMA
    options: PairsOptions
    hosts: tuple[PlannedHost, ...]
    rounds: tuple[PlannedRound, ...] = ()
    most_hosts: int = 200
    cores: int = 1

    @cached_property
    def by_name(self) -> Mapping[str, PlannedHost]:
        """The hosts by name."""
        return {planned_host.host: planned_host for planned_host in self.hosts}

    def contradiction(self) -> str | None:
        """Return what in it contradicts itself; None if nothing does."""
        if len(self.by_name) != len(self.hosts) or len({planned_round.number for planned_round in self.rounds}) != len(
            self.rounds
        ):
            return "a host or a round is there twice"
        if self.cores < 1 or self.most_hosts < 2:
            return f"{self.cores} cores, {self.most_hosts} hosts at once"
        known = [planned_host.host for planned_host in self.hosts if planned_host.outcome == "ok"]
        reasons = (groups_of_known_hosts(planned_round.pairs, known) for planned_round in self.rounds)
        return next((why for why in reasons if why is not None), None)

    @property
    def measuring(self) -> float:
        """The seconds that a host measures in one round, if its pair connects: its ports one by one, or at once."""
        there = [measured_ports(host, self.options) for host in self.hosts if host.outcome == "ok"]
        ports = max(map(len, there), default=0)
        if self.options.together:  # those with the memory of GPUs after the others
            ports = max((len({port.gpu is not None for port in of_host}) for of_host in there), default=0)
        return (self.options.seconds + OMIT_SECONDS + USUAL_SECONDS) * ports

    @property
    def minutes(self) -> float:
        """What the rounds are estimated to take."""
        return minutes(
            [planned_round.pairs for planned_round in self.rounds], self.most_hosts, self.measuring, self.cores
        )


# --- planning ------------------------------------------------------------------------------------------------


def planned_hosts(
    surveyed: Iterable[tuple[str, Answer, Ends | None]], tool: Tool, disrupt: frozenset[str]
) -> tuple[PlannedHost, ...]:
    """Return the hosts with their ports, and why some are not measured. `surveyed`: host, its answer, its document."""
    answers = list(surveyed)
    hosts = [_planned(host, answer, ends, tool, disrupt) for host, answer, ends in answers]
    addresses = {
        planned_host.host: [port.address for port in planned_host.ports if port.address is not None]
        for planned_host in hosts
    }
    said = {host: ends.host if ends is not None else None for host, _, ends in answers}
    return without_mistaken(hosts, addresses, said)


def _planned(host: str, answer: Answer, ends: Ends | None, tool: Tool, disrupt: frozenset[str]) -> PlannedHost:
    if ends is None or answer.outcome != "ok":
        outcome, why = unanswered(answer)
        return PlannedHost(host=host, outcome=outcome, why=why)
    outcome, why = "ok", ""
    if tool not in ends.tools:
        outcome, why = "not-installed", f"{TOOLS[tool]} is not installed"
    elif ends.guests != () and host not in disrupt:
        outcome, why = "refused", with_guests(host, ends.guests)
    elif twice := [rail for rail, number in Counter(port.rail for port in ends.ports).items() if number > 1]:
        outcome, why = "unknown", f"two of its ports have the name {twice[0][:40]!r}: its answer contradicts itself"
    elif not ends.ports:
        outcome, why = "no-port", "; ".join(("no port that is up and has an address", *ends.notes))
    return PlannedHost(host=host, outcome=outcome, why=why or None, machine=ends.machine, ports=ends.ports)


def planned_rounds(hosts: Sequence[PlannedHost], options: PairsOptions) -> tuple[PlannedRound, ...]:
    """Return the rounds of the hosts that can be measured. Pairs without a common rail stay: they are named.

    Of two hosts each sends in one of two rounds. Of more, each sends to some and receives from others. Where not all
    pairs are measured, hosts with rails that few others have get rounds of their own, unless a bound was given.
    """
    names = [planned_host.host for planned_host in hosts if planned_host.outcome == "ok"]
    made = rounds(names, options.rounds)
    if len(names) == 2 and options.rounds != 1:
        made += tuple(tuple((receiver, sender) for sender, receiver in one) for one in made)
    if len(names) > ALL_PAIRS and options.rounds is None:
        made += completing(made, hosts_by_rail(hosts, options).values())
    return tuple(PlannedRound(number=number, pairs=pairs) for number, pairs in enumerate(made, 1))


def rails(plan: PairsPlan, pair: Pairing) -> list[tuple[Port, Port]]:
    """Return the ports of both hosts on each rail that can be measured, by name: what both have, with an address."""
    first, second = ({p.rail: p for p in measured_ports(plan.by_name[host], plan.options)} for host in pair)
    return [(first[rail], second[rail]) for rail in sorted(first.keys() & second.keys())]


def measured_ports(host: PlannedHost, options: PairsOptions) -> list[Port]:
    """Return the ports of a host that can be measured."""
    return [
        port
        for port in host.ports
        if not_measured(port, options.tool) is None and (port.gpu is None or (options.tool == "rdma" and options.gpu))
    ]


def not_measured(port: Port, tool: Tool) -> str | None:
    """Return why a port is not measured; None if it can be. TCP to the address of an interface that is down may go
    through another one of the same network.
    """
    if port.address is None:
        return "it has no address"
    if not _is_address(port.address):
        return f"{port.address[:40]!r} is no IP address"  # the peer would refuse its job, and be lost to the run
    if tool == "tcp":
        return f"it is {port.state}" if port.state in _DOWN else None
    return "it has no RDMA device" if port.rdma is None else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def hosts_by_rail(hosts: Sequence[PlannedHost], options: PairsOptions) -> Mapping[str, list[str]]:
    """Return the rails that can be measured, by name, each with its hosts."""
    able = (planned_host for planned_host in hosts if planned_host.outcome == "ok")
    by_rail = grouped((port.rail, ready.host) for ready in able for port in measured_ports(ready, options))
    return dict(sorted(by_rail.items()))


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
        sides: tuple[tuple[str, Role, Port, Port], ...] = (
            (pair[0], "client", *ports), (pair[1], "server", *ports[::-1]),
        )  # fmt: skip
        for host, role, own, peer in sides:
            end = End(
                rail=own.rail,
                role=role,
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
    each = [end["wait"] + OMIT_SECONDS + end["seconds"] + SLACK_SECONDS + MOST_SECONDS + 5 for end in ends]
    of_gpus = [seconds + GPU_SECONDS for seconds, end in zip(each, ends, strict=True) if "gpu" in end]
    if job["together"]:  # those with the memory of GPUs after the others
        return float(30 + max(each) + max(of_gpus, default=0))
    return float(30 + sum(each) + GPU_SECONDS * len(of_gpus))


def record_name(number: int) -> str:
    """Return the name of a host's file of a round."""
    return f"pairs-{number:03}"
