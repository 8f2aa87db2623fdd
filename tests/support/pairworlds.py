"""A fleet for `fleet pairs` without any host: what hosts would answer to each order, by a model of their links.

The model is the specification's: a pair is as fast as the slower of its two ports. Times are simulated, so that a
thousand hosts take a second: what the controller spends on a host (docs/scale.md), then connections, then measuring.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pairhosts import store

from hosttune.cluster.between import run_between
from hosttune.cluster.pairplan import PairsOptions
from hosttune.cluster.pairruns import PAIRS, PairsRequest, PairsRun
from hosttune.fleet.inventory import Inventory
from hosttune.fleet.playbook import PlaybookOrder, Played, Stop, TaskEvent
from hosttune.fleet.run import FleetRequest

RATE = 100.0  # Gb/s of every port
ANSIBLE_SECONDS, HOST_SECONDS = 0.7, 0.14  # docs/scale.md: CPU time of the controller, to start and for a host
CONNECT_SECONDS, COMMAND_SECONDS = 2.0, 1.0  # assumed: ssh; looking for guests


class Killed(BaseException):
    """The controller is killed: nothing of it runs after this."""


@dataclass
class World:
    """Hosts by name, each with its rails. `slow`: (host, rail) → part of the rate; `dead`: hosts that never answer.

    `gpus`: (host, rail) → what part of the rate the way to the GPU there lets through, or why it is not measured.
    `guests`: by host. `calls`: how a host calls itself, if otherwise. `shut`: hosts into which nobody gets.
    `down`: (host, rail). `killed_at`: (record, so many answers) at which the controller is killed.
    `full`: the record whose answers cannot be written.
    `lies`: changes a host's document of a record. `asked`: (record, hosts) of every order; `jobs`: what each was to do.
    """

    hosts: Mapping[str, Sequence[str]]
    slow: Mapping[tuple[str, str], float] = field(default_factory=dict)
    gpus: Mapping[tuple[str, str], float | str] = field(default_factory=dict)
    dead: frozenset[str] = frozenset()
    shut: frozenset[str] = frozenset()
    down: frozenset[tuple[str, str]] = frozenset()
    guests: Mapping[str, Sequence[str]] = field(default_factory=dict)
    calls: Mapping[str, str] = field(default_factory=dict)
    killed_at: tuple[str, int] | None = None
    cores: int = 16
    now: datetime = datetime(2026, 3, 2, 21, 0)
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    jobs: list[Mapping[str, Any]] = field(default_factory=list)
    before: Callable[[PlaybookOrder, Stop], None] = lambda order, stop: None
    full: str | None = None
    lies: Callable[[str, str, dict[str, Any]], None] = lambda host, record, document: None

    def __post_init__(self) -> None:
        self._numbers = {name: number for number, name in enumerate(self.hosts)}
        self._names = {self.address(name, rail): name for name, rails in self.hosts.items() for rail in rails}

    def address(self, host: str, rail: str) -> str:
        number = self._numbers[host]
        return f"10.{1 + int(rail.lstrip('r'))}.{number // 250}.{1 + number % 250}"

    def play(self, order: PlaybookOrder, heard: Callable[[TaskEvent], None], stop: Stop) -> Played:
        """As `playbook.play`."""
        self.before(order, stop)
        if stop.asked:
            return Played(254, True, ())
        record = str(order.variables["hosttune_pairs_record"])
        jobs = order.variables.get("hosttune_pairs_jobs", {})
        self.asked.append((record, order.hosts))
        self.jobs.append(jobs)
        if self.full == record:
            return Played(2, False, ("[WARNING]: a key of ansible.cfg is deprecated",))
        took = CONNECT_SECONDS
        for number, host in enumerate(order.hosts):
            if self.killed_at == (record, number):
                raise Killed
            job = jobs.get(host, {})
            took = max(took, HOST_SECONDS * (number + 1) / self.cores + CONNECT_SECONDS + self._seconds(host, job))
            self._answer(order, record, host, job)
        self.now += timedelta(seconds=ANSIBLE_SECONDS + took)
        return Played(0, False, ())

    def _seconds(self, host: str, job: Mapping[str, Any]) -> float:
        """What a host takes for its job. A server whose peer is dead waits as long as that would try to connect."""
        each = []
        for end in job.get("ends", ()):
            waits = self._names[end["peer_address"]] in self.dead
            each.append(end["wait"] if waits else end["seconds"] + 1.5)
        total = max(each, default=0) if job.get("together") else sum(each)
        return COMMAND_SECONDS + total

    def _answer(self, order: PlaybookOrder, record: str, host: str, job: Mapping[str, Any]) -> None:
        if host in self.dead:
            store(order, host, record, {"outcome": "unreachable", "why": "no route to host"}, None)
            return
        guests = list(self.guests.get(host, ()))
        if guests and job.get("ends") and not job["disrupt"]:
            store(order, host, record, {"outcome": "refused", "why": "guests are running"}, None)
            return
        ports = [port for rail in self.hosts[host] for port in self._ports(host, rail)]
        ends = [self._end(host, end) for end in job.get("ends", ())]
        document = {
            "schema": "hosttune.ends/v1", "host": self.calls.get(host, host), "machine": f"m-{host}", "guests": guests,
            "tools": ["tcp", "rdma"], "ports": ports, "ends": ends,
        }  # fmt: skip
        self.lies(host, record, document)
        store(order, host, record, {"outcome": "ok"}, json.dumps(document))

    def _ports(self, host: str, rail: str) -> list[dict[str, Any]]:
        own = {"rail": rail, "interface": rail, "address": self.address(host, rail), "rate_gbps": RATE}
        own["state"] = "down" if (host, rail) in self.down else "up"
        own["rdma"] = f"mlx5_{rail}"
        way = self.gpus.get((host, rail))
        if way is None or isinstance(way, str):
            return [{**own, "gpu_why": way}]
        return [own, {**own, "rail": f"{rail} gpu", "gpu": {"address": "0000:18:00.0", "maker": "nvidia"}}]

    def _end(self, host: str, end: Mapping[str, Any]) -> dict[str, Any]:
        peer, rail, server = self._names[end["peer_address"]], end["rail"], end["role"] == "server"
        head = {"rail": rail, "role": end["role"]}
        if peer in self.dead or (host if server else peer) in self.shut:
            return {**head, "outcome": "nobody-came" if server else "no-connection", "why": "nobody there"}
        first, second = sorted((host, peer))
        parts = [self.slow.get((one, rail.removesuffix(" gpu")), 1.0) for one in (host, peer)]
        if "gpu" in end:
            parts += [float(self.gpus[one, rail.removesuffix(" gpu")]) for one in (host, peer)]
        part = min(parts)
        figure = min(0.97 * RATE * part, end.get("rate_gbps") or RATE)
        name = f"{first}-{second}-{rail}"
        return {
            **head,
            "outcome": "measured",
            "gbps": figure,
            "connection": name,
            "errors": {},
            "path_mtu": {"state": "not-asked" if "gpu" in end else "whole", "bytes": 9000},
        }


def same(count: int, rails: int = 1) -> dict[str, tuple[str, ...]]:
    """So many hosts with the same rails."""
    return {f"h{number:04}": tuple(f"r{rail}" for rail in range(rails)) for number in range(count)}


def measure(
    world: World, results: Path, options: PairsOptions | None = None, *, resume: bool = False, check: bool = False,
    forks: int | None = None, disrupt: Sequence[str] = (), window: str | None = None,
    given: Mapping[str, object] | None = None,
) -> PairsRun:  # fmt: skip
    """`fleet pairs` over this world."""
    base = FleetRequest(
        verb="pairs", inventories=("world,",), results=str(results), resume=resume, check=check, forks=forks
    )
    request = PairsRequest(base, options or PairsOptions(), given or {}, tuple(disrupt), window)
    inventory = Inventory(tuple(world.hosts))
    return run_between(
        PAIRS, request, lambda line: None, player=world.play, clock=lambda: world.now, reader=lambda *asked: inventory
    )
