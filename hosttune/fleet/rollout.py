"""A run over a fleet: its waves in order, each asked in shards, each judged from the hosts' files, all of it recorded.

What a host answered is read from its files after each shard; nothing else of it is held. A run ends when all waves
are done, when a gate stays shut, when it is interrupted, or when ansible itself cannot work. The record then says how
far it came, and the same run can go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hosttune.errors import BadInput
from hosttune.fleet.answers import read_answer, was_asked
from hosttune.fleet.gate import ONLY_IF_ASKED, WAVES, Gate, HostStatus, exit_code, judge, phases, stands
from hosttune.fleet.record import Asked, Began, Done, Ended, Judged, Line, Members, Past, Stopped, encode, now
from hosttune.fleet.results import RECORD, forget
from hosttune.fleet.runner import Event, Order, Played, Stop, first_error, play
from hosttune.fleet.waves import cut, shards
from hosttune.jsonlines import JsonLines
from hosttune.model.fleet import Wave

INTERRUPTED = "interrupted"
GONE = "no longer in the inventory"
# What an earlier attempt left of a host that is changed again. The proof goes first: killed in between, there is none.
_OUTDATED = ("validate", "status", *ONLY_IF_ASKED)


@dataclass(frozen=True)
class Rollout:
    """What is to be done: the waves with their members (one wave, without a gate, for verbs that visit every host).

    `order` is what each ansible gets, but for its hosts. Of a run that goes on: `standings` are the hosts that it has
    proven good, `unasked` those that are not asked again and why, `begun` the waves that it had come to; `only_failed`
    (retry) begins no other wave.
    """

    run: str
    verb: str
    order: Order
    waves: tuple[tuple[str, ...], ...]
    gate: Gate = "either"
    check: bool = False
    shard: int = 500
    standings: Mapping[str, HostStatus] = field(default_factory=dict)
    unasked: Mapping[str, str] = field(default_factory=dict)
    begun: frozenset[int] = frozenset()
    only_failed: bool = False

    @property
    def gated(self) -> bool:
        """Whether a wave must prove itself before the next begins."""
        return self.verb in WAVES and not self.check

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host of the run, in its order."""
        return tuple(host for wave in self.waves for host in wave)

    @property
    def todo(self) -> tuple[str, ...]:
        """The hosts that are asked if no gate stops the run."""
        waves = [wave for number, wave in enumerate(self.waves, 1) if not self.only_failed or number in self.begun]
        return tuple(host for wave in waves for host in wave if host not in self.standings and host not in self.unasked)


@dataclass(frozen=True)
class RunServices:
    """What a course works with: its record, the wish to end, ansible, and who is told of its progress.

    `heard` gets ansible's events, `settled` each host's wave and standing once its files were read.
    """

    journal: JsonLines
    stop: Stop
    heard: Callable[[Event], None]
    settled: Callable[[int, HostStatus], None]
    player: Callable[[Order, Callable[[Event], None], Stop], Played] = play

    def add(self, line: Line) -> None:
        """Record a line."""
        self.journal.add(encode(line))


@dataclass(frozen=True)
class Outcome:
    """How a run ended: how each host stands, what the gates said, and why it stopped before its end, if it did."""

    standings: Mapping[str, HostStatus]
    waves: tuple[Wave, ...]
    stopped: str | None = None
    said: tuple[str, ...] = ()  # by an ansible that asked no host

    @property
    def exit_code(self) -> int:
        """The command's: 130 where somebody ended the run, else by the worst host."""
        return 130 if self.stopped == INTERRUPTED else exit_code(self.standings.values())


def carry_out(course: Rollout, hands: RunServices) -> Outcome:
    """Do a course to its end, and record it. Raises BadInput where ansible cannot be started or the disk is full."""
    standings = dict(course.standings)
    waves = [Wave(number=number, hosts=len(hosts)) for number, hosts in enumerate(course.waves, 1)]
    why: str | None = None
    said: list[str] = []
    for number in range(1, len(course.waves) + 1):
        if course.only_failed and number not in course.begun:
            break
        why = _ask_wave(course, number, standings, hands, said)
        if course.gated:
            waves[number - 1] = _pass_gate(course, number, standings, hands)
            if why is None and not waves[number - 1].passed and number < len(course.waves):
                why = f"the gate after wave {number} of {len(course.waves)} did not open"
        if why is not None:
            break
    for host in course.hosts:
        standings.setdefault(host, HostStatus(host, why="not asked"))
    if why is not None:
        hands.add(Stopped(run=course.run, at=now(), why=why))
    outcome = Outcome(standings, tuple(waves), why, tuple(said))
    hands.add(Ended(run=course.run, at=now(), exit_code=outcome.exit_code))
    return outcome


def _pass_gate(course: Rollout, number: int, standings: Mapping[str, HostStatus], hands: RunServices) -> Wave:
    """Judge a wave, and record what its gate said."""
    hosts = course.waves[number - 1]
    passed, reasons = judge(hosts, standings)
    hands.add(Judged(run=course.run, wave=number, passed=passed, why=reasons))
    return Wave(number=number, hosts=len(hosts), passed=passed, why=reasons)


def _ask_wave(
    course: Rollout, number: int, standings: dict[str, HostStatus], hands: RunServices, said: list[str]
) -> str | None:
    """Ask the hosts of a wave that are not proven good, shard by shard. Returns why the run cannot go on, if so; `said`
    gets what an ansible that asked nobody had to say.
    """
    hosts = course.waves[number - 1]
    for host in hosts:
        if host in course.unasked:
            standings[host] = HostStatus(host, why=course.unasked[host])
    todo = [host for host in hosts if host not in standings]
    if todo and not hands.stop.asked:
        hands.add(Asked(run=course.run, at=now(), wave=number, hosts=len(todo)))
    for order in _orders(course, todo):
        if hands.stop.asked:
            return INTERRUPTED
        shard = order.hosts
        for host in shard if course.gated else ():
            for phase in _OUTDATED:
                forget(order.results, host, phase)
        played = hands.player(order, hands.heard, hands.stop)
        answered = [_settle(course, number, host, standings, hands) for host in shard]
        if played.stopped:
            return INTERRUPTED
        if not any(answered):
            said += played.said
            return f"ansible contacted no host: {first_error(played.said) or f'it ended with {played.code}'}"
    return None


def _orders(course: Rollout, hosts: Sequence[str]) -> Iterator[Order]:
    """What each ansible gets. A host that this run has validated before keeps that: it may have been changed since,
    and compared with what an earlier attempt left behind it would look no worse.
    """
    measured = [host for host in hosts if course.gated and course.begun and _measured(course, host)]
    again = frozenset(measured)
    keeping = replace(course.order, variables={**course.order.variables, "hosttune_keep_before": True})
    for order, some in ((keeping, measured), (course.order, [host for host in hosts if host not in again])):
        for shard in shards(some, course.shard):
            yield replace(order, hosts=shard)


def _measured(course: Rollout, host: str) -> bool:
    return read_answer(course.order.results, host, "before", course.run).outcome in ("ok", "no")


def _settle(course: Rollout, number: int, host: str, standings: dict[str, HostStatus], hands: RunServices) -> bool:
    """Read how a host stands, record it and tell it. Returns whether it has any file of this run."""
    standing, asked = standing_of(course, host)
    standings[host] = standing
    if asked or not hands.stop.asked:  # a host that an interrupted ansible did not come to has nothing to record
        hands.add(done_line(course.run, number, standing))
    hands.settled(number, standing)
    return asked


def standing_of(course: Rollout, host: str) -> tuple[HostStatus, bool]:
    """(how a host stands, from its files of this run; whether there is any such file)."""
    check, results = course.check, course.order.results
    asked_in = phases(course.verb, check=check)
    answers = {phase: read_answer(results, host, phase, course.run, check=check) for phase in asked_in}
    return stands(host, course.verb, answers, course.gate, check=check), any(map(was_asked, answers.values()))


def done_line(run: str, wave: int, standing: HostStatus) -> Done:
    """A host's line in the record."""
    return Done(
        run=run,
        wave=wave,
        host=standing.host,
        outcome=standing.outcome,
        phase=standing.phase,
        why=standing.why,
        verdict=standing.verdict,
        changed=standing.changed,
    )


# --- beginning, and going on ---------------------------------------------------------------------------------


def opening(course: Rollout, began: Began) -> list[Line]:
    """The first lines of a new run: the members of all its waves are recorded before the first host is asked."""
    members = [Members(run=course.run, wave=number, hosts=hosts) for number, hosts in enumerate(course.waves, 1)]
    return [began, *members]


def waves_of(verb: str, hosts: Sequence[str], sizes: Sequence[str], *, check: bool) -> tuple[tuple[str, ...], ...]:
    """The waves of a new run: those of `sizes` where hosts are changed, else one of all hosts."""
    return cut(hosts, sizes) if verb in WAVES and not check else (tuple(hosts),)


def resumed(course: Rollout, past: Past, inventory: Sequence[str], *, only_failed: bool) -> Rollout:
    """The course of a run that goes on: its waves as recorded, less the hosts that it has proven good.

    A host is proven where the record says so, or where its files of this run do (the controller died before it could
    write the line). `only_failed`: those that were asked and are not good, and no other. Raises BadInput where the
    record does not hold all waves: then no host was asked.
    """
    if not past.whole:
        raise BadInput("the run ended before its waves were written", where=RECORD, hint="begin a new run")
    waves = tuple(past.members[number] for number in sorted(past.members))
    again = replace(course, run=past.run, waves=waves, only_failed=only_failed, begun=past.asked)
    known = frozenset(inventory)
    good: dict[str, HostStatus] = {}
    unasked = {host: GONE for host in again.hosts if host not in known}
    for host in (host for number in sorted(past.asked) for host in past.members[number]):
        standing, asked = _stood(again, past, host)
        if standing.good:
            good[host] = standing
        elif only_failed and not asked:
            unasked.setdefault(host, "not asked; --resume asks it")
    return replace(again, standings=good, unasked={host: why for host, why in unasked.items() if host not in good})


def _stood(course: Rollout, past: Past, host: str) -> tuple[HostStatus, bool]:
    """(how a host stood when the run ended, whether it had been asked). Another gate needs proof of its own."""
    line = past.done.get(host)
    if line is not None and line.outcome == "ok" and course.gate == past.gate:
        return HostStatus(host, "ok", None, None, line.verdict, line.changed), True
    standing, asked = standing_of(course, host)
    return standing, asked or line is not None


def changes(course: Rollout, past: Past, inventory: Sequence[str], intent: str | None) -> list[str]:
    """What is not as it was when the run began, a line each. `intent`: its digest, None where none is given."""
    told = []
    hosts = frozenset(course.hosts)
    gone = [host for host, why in course.unasked.items() if why == GONE]
    new = [host for host in inventory if host not in hosts]
    if gone:
        told.append(f"no longer in the inventory, {len(gone)}: {_some(gone)}; what is not proven stays unknown")
    if new:
        told.append(f"new in the inventory, {len(new)}: {_some(new)}; not in this run")
    if intent != past.began.intent_sha256:
        told.append("the intent is not the one that the run began with")
    if course.gate != past.gate:
        told.append(f"the gate is {course.gate}, was {past.gate}")
    return told


def _some(hosts: Sequence[str], most: int = 10) -> str:
    return ", ".join(hosts[:most]) + (f" and {len(hosts) - most} more" if len(hosts) > most else "")


def digest(data: bytes) -> str:
    """What tells one intent from another in the record."""
    return hashlib.sha256(data).hexdigest()
