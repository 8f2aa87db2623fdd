"""Simulated hosts for a fleet's course: a player in ansible's place that writes result files as the playbooks do.

What a host answers is scripted per attempt, so that a test says "unreachable the first time, well the second". The
player keeps the order in which hosts were asked; it never judges.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hosttune.fleet.gate import Gate, HostStatus
from hosttune.fleet.playbook import PlaybookOrder, Played, Stop, TaskEvent
from hosttune.fleet.record import Line, RecordedRun, Resumed, RunBegun, decode, encode, past_run
from hosttune.fleet.results import RECORD, answer_path, held
from hosttune.fleet.rollout import Rollout, RunOutcome, RunServices, carry_out, opening, parse_sizes, resumed, waves_of
from hosttune.journal.jsonlines import JsonLines

STEPS: Mapping[str, tuple[str, ...]] = {
    "discover": ("discover",),
    "plan": ("plan",),
    "validate": ("validate",),
    "handover": ("handover",),
    "apply": ("before", "apply", "validate"),
    "revert": ("before", "revert", "validate"),
    "course": ("course", "sign", "verify"),
}
AT = "2026-01-02T03:04:05+00:00"


class Killed(BaseException):
    """The controller is killed here: nothing after this runs in it."""


@dataclass
class Fleet:
    """`script`: host → of each attempt the phase that does not end well and its outcome; None: all of it does.

    `asked` are the hosts in the order in which they were asked; `kill_at`: the controller dies when so many hosts have
    been asked, `interrupt_at`: it is interrupted then.
    """

    script: dict[str, list[tuple[str, str] | None]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    orders: list[PlaybookOrder] = field(default_factory=list)
    kill_at: int | None = None
    interrupt_at: int | None = None
    dead: bool = False
    full: bool = False  # hosts are asked, and their answers cannot be written
    said: tuple[str, ...] = ()  # what ansible says then
    begun: bool = False  # and whether its tasks are heard of
    befores: dict[str, int] = field(default_factory=dict)
    well: set[str] = field(default_factory=set)
    well_then: list[frozenset[str]] = field(default_factory=list)

    def play(self, order: PlaybookOrder, heard: Callable[[TaskEvent], None], stop: Stop) -> Played:
        """As `playbook.play`."""
        self.orders.append(order)
        if self.dead:
            return Played(4, False, ("[ERROR]: the playbook is broken",))
        if self.full:
            return Played(2, False, self.said, self.begun)
        for host in order.hosts:
            if len(self.asked) == self.interrupt_at:
                stop.now()
                return Played(254, True, ())
            self._ask(order, host, heard, die=len(self.asked) == self.kill_at)
        return Played(0, False, ())

    def _ask(self, order: PlaybookOrder, host: str, heard: Callable[[TaskEvent], None], *, die: bool) -> None:
        self.asked.append(host)
        self.well_then.append(frozenset(self.well))
        self.well.discard(host)
        attempts = self.script.get(host, [])
        trouble = attempts.pop(0) if attempts else None
        heard(TaskEvent("start", host, "Ask"))
        for phase in STEPS[order.verb]:
            if phase == "before" and order.variables.get("hosttune_keep_before"):
                continue
            self.befores[host] = self.befores.get(host, 0) + (phase == "before")
            write(order, host, phase, "unknown", why="asked; no answer yet")
            if die and phase == STEPS[order.verb][-1]:
                raise Killed
            if trouble is not None and trouble[0] == phase:
                write(order, host, phase, trouble[1], why="as scripted")
                heard(TaskEvent("failed", host, "Ask", phase, trouble[1], "as scripted"))
                return
            write(order, host, phase, "ok")
        self.well.add(host)
        heard(TaskEvent("ok", host, "Ask", STEPS[order.verb][-1], "ok"))


def write(order: PlaybookOrder, host: str, phase: str, outcome: str, *, why: str | None = None, **facts: Any) -> None:
    """A result file, as the playbooks write it."""
    answer = {
        "host": host,
        "phase": phase,
        "run": order.variables["hosttune_run"],
        "outcome": outcome,
        "why": why,
        "verdict": "pass" if phase in ("before", "validate", "handover") and outcome == "ok" else None,
        "check": order.check,
        **facts,
    }
    path = Path(answer_path(order.results, host, phase, check=order.check))
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "schema": "hosttune.answer/v1",
        **({"verdict": "valid"} if (phase, outcome) == ("verify", "ok") else {}),
    }
    path.write_text(json.dumps({**document, "fleet": answer}))


def names(count: int) -> list[str]:
    """So many hosts."""
    return [f"h{number:03}" for number in range(count)]


def rollout_of(
    results: Path, verb: str, hosts: Sequence[str], *, run: str = "r1", sizes: str = "1,2,100%", **others: Any
) -> Rollout:
    """A new course over these hosts."""
    check = bool(others.get("check", False))
    order = PlaybookOrder(verb, ("inventory",), (), str(results), {"hosttune_run": run}, check=check)
    waves = waves_of(verb, hosts, parse_sizes(sizes), check=check)
    return Rollout(run, verb, order, waves, **others)


@contextmanager
def run_services(
    results: Path, fleet: Fleet, told: list[HostStatus] | None = None, *, wait_seconds: float = 60.0
) -> Iterator[RunServices]:
    """What a course works with: the record of a folder, and simulated hosts."""

    def settled(_: int, host_status: HostStatus) -> None:
        if told is not None:
            told.append(host_status)

    with held(str(results), wait_seconds=wait_seconds) as journal:
        yield RunServices(journal, Stop(), lambda _: None, settled, fleet.play)


def begin(rollout: Rollout, results: Path, fleet: Fleet) -> RunOutcome:
    """Begin a run and carry it out."""
    with run_services(results, fleet) as those:
        began = RunBegun(
            run=rollout.run, at=AT, verb=rollout.verb, version="1", hosts=len(rollout.hosts), gate=rollout.gate,
            check=rollout.check, waves=("1",) if rollout.gated else (),
        )  # fmt: skip
        add(those.journal, opening(rollout, began))
        return carry_out(rollout, those)


def go_on(
    results: Path, verb: str, hosts: Sequence[str], fleet: Fleet, *, retry: bool = False, gate: Gate = "either"
) -> RunOutcome:
    """Go on with the last run of a verb; `hosts` are those that the inventory has now."""
    with run_services(results, fleet) as those:
        past = past_in(results, verb)
        base = rollout_of(results, verb, hosts, run=past.run, gate=gate)
        rollout = resumed(base, past, hosts, only_failed=retry)
        add(those.journal, [Resumed(run=past.run, at=AT, how="retry" if retry else "resume", gate=gate)])
        return carry_out(rollout, those)


def past_in(results: Path, verb: str) -> RecordedRun:
    """The last run of a verb in a folder's record."""
    past = past_run(lines_in(results), verb)
    assert past is not None
    return past


def lines_in(results: Path) -> tuple[Line, ...]:
    """The lines of a folder's record."""
    return decode((results / RECORD).read_bytes())


def add(journal: JsonLines, lines: Iterable[Line]) -> None:
    """Record lines."""
    for line in lines:
        journal.add(encode(line))


def with_shard(rollout: Rollout, shard: int) -> Rollout:
    """The course with shards of at most so many hosts."""
    return msgspec.structs.replace(rollout, shard=shard)
