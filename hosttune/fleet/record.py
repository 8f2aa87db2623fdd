"""The record of runs: RESULTS/run.jsonl, one JSON line per event. Lines are only appended, never rewritten.

It has the hosts of each run, their waves, which hosts were proven good, and the result of each gate. This is all that
`--resume` needs, whenever the controller ended. It holds names, outcomes and reasons, but no variables or secrets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import msgspec
from msgspec.structs import replace

from hosttune.errors import BadInput
from hosttune.fleet.gate import Gate
from hosttune.journal.jsonlines import decoded, whole_lines
from hosttune.model.clock import now_text, seconds_of
from hosttune.model.declared import Declared
from hosttune.model.fleet import AnswerOutcome
from hosttune.model.text import count, duration
from hosttune.model.validation import Verdict
from hosttune.model.values import Value, to_builtins

NOT_CONTACTED = "ansible contacted no host"


class RunBegun(Value, frozen=True, kw_only=True, tag="began", tag_field="event"):
    """A run begins, with its request. `intent_sha256` detects a changed intent when the run is resumed.

    `declared`: the declared baseline that its hosts are held to; None: none.
    """

    run: str
    at: str
    verb: str
    version: str
    hosts: int
    waves: tuple[str, ...] = ()
    gate: Gate = "either"
    check: bool = False
    inventory: tuple[str, ...] = ()
    limit: str | None = None
    level: int | None = None
    intent: str | None = None
    intent_sha256: str | None = None
    declared: Declared | None = None


class Members(Value, frozen=True, kw_only=True, tag="members", tag_field="event"):
    """The hosts of a wave, in order. It is written for every wave before the first host is contacted."""

    run: str
    wave: int
    hosts: tuple[str, ...]


class Resumed(Value, frozen=True, kw_only=True, tag="resumed", tag_field="event"):
    """The run continues; `how`: resume or retry. `told`: the reported changes since the run began."""

    run: str
    at: str
    how: str
    gate: Gate = "either"
    told: tuple[str, ...] = ()


class WaveBegun(Value, frozen=True, kw_only=True, tag="asked", tag_field="event"):
    """A wave begins; `hosts` is the number of its hosts that are processed now."""

    run: str
    at: str
    wave: int
    hosts: int


class HostDone(Value, frozen=True, kw_only=True, tag="host", tag_field="event"):
    """A host of a wave is finished, according to its result files of this run."""

    run: str
    wave: int
    host: str
    outcome: AnswerOutcome
    phase: str | None = None
    why: str | None = None
    verdict: Verdict | None = None
    changed: bool = False


class GateRecord(Value, frozen=True, kw_only=True, tag="gate", tag_field="event"):
    """The result of the gate after a wave."""

    run: str
    wave: int
    passed: bool
    why: tuple[str, ...] = ()


class Stopped(Value, frozen=True, kw_only=True, tag="stopped", tag_field="event"):
    """The run ends before every host was processed."""

    run: str
    at: str
    why: str


class Ended(Value, frozen=True, kw_only=True, tag="ended", tag_field="event"):
    """The run ends; `exit_code` is the exit code of the command."""

    run: str
    at: str
    exit_code: int


def new_run() -> str:
    """Return an id for a run: the readable time, and 4 random bytes in hex so that no two ids are equal."""
    import secrets

    return f"{now_text().translate({ord(mark): None for mark in '-:'}).partition('+')[0]}-{secrets.token_hex(4)}"


Line = RunBegun | Members | Resumed | WaveBegun | HostDone | GateRecord | Stopped | Ended
_KIND: Any = Line  # for mypy, a union is no type


def encode(line: Line) -> bytes:
    """Return the bytes of a line of the record, without the newline."""
    return msgspec.json.encode(to_builtins(line))


def decode(data: bytes, *, where: str = "run.jsonl") -> tuple[Line, ...]:
    """Return the lines of a record.

    An incomplete last line is left out. Raises BadInput if any other line cannot be read.
    """

    def broken(number: int, why: str) -> BadInput:
        hint = "begin a new run, or name another results folder with --results"
        return BadInput(f"a line of the record cannot be read: {why}", where=f"{where}:{number}", hint=hint)

    return tuple(decoded(line, _KIND, partial(broken, number)) for number, line in whole_lines(data))


class RecordedRun(msgspec.Struct, frozen=True, dict=True):
    """A run as recorded. `done`: the last line of each host; `gates`: the last of each wave. Waves count from 1.

    `last`: the last line of each host under any gate; of one that was asked, the last of those. `cut`: an attempt of
    the run has no end in the record, so hosts may have been asked that have no line.
    """

    began: RunBegun
    gate: Gate
    members: Mapping[int, tuple[str, ...]] = msgspec.field(default_factory=dict)
    done: Mapping[str, HostDone] = msgspec.field(default_factory=dict)
    gates: Mapping[int, GateRecord] = msgspec.field(default_factory=dict)
    asked: frozenset[int] = frozenset()
    stopped: str | None = None
    exit_code: int | None = None
    last: Mapping[str, HostDone] = msgspec.field(default_factory=dict)
    cut: bool = False

    @property
    def run(self) -> str:
        """The run's id."""
        return self.began.run

    @cached_property
    def begun_hosts(self) -> frozenset[str]:
        """The hosts of all waves that have begun."""
        return frozenset(host for number in self.asked for host in self.members.get(number, ()))

    @property
    def whole(self) -> bool:
        """Whether the record has all waves. If not, the controller died while writing them and contacted no host."""
        return sum(map(len, self.members.values())) == self.began.hosts


def past_run(lines: tuple[Line, ...], verb: str | None = None, run: str | None = None) -> RecordedRun | None:
    """Return the named run, or else the last run (of a verb) that was not in check mode; None if there is none.

    A run in check mode cannot be resumed.
    """
    begun = [line for line in lines if isinstance(line, RunBegun) and verb in (None, line.verb)]
    run_beguns = [line for line in begun if line.run == run] if run else [line for line in begun if not line.check]
    if not run_beguns:
        return None
    past = RecordedRun(run_beguns[-1], run_beguns[-1].gate)
    members: dict[int, tuple[str, ...]] = {}
    done: dict[str, HostDone] = {}
    gates: dict[int, GateRecord] = {}
    last: dict[str, HostDone] = {}
    cut = False
    for line in lines:
        if line.run != past.run:
            continue
        cut = cut or (isinstance(line, Resumed) and past.exit_code is None)
        match line:
            case Members():
                members[line.wave] = line.hosts
            case HostDone():
                done[line.host] = line
                if line.why != NOT_CONTACTED or line.host not in last:
                    last[line.host] = line
            case GateRecord():
                gates[line.wave] = line
            case Resumed() if line.gate != past.gate:
                done.clear()  # these hosts were judged with another gate; their files must be judged again
                past = replace(past, **_passing(past, line))
            case _:
                past = replace(past, **_passing(past, line))
    cut = cut or past.exit_code is None
    return replace(past, members=members, done=done, gates=gates, last=last, cut=cut)


def last_took(lines: tuple[Line, ...], verb: str) -> str:
    """Return how long the last run of a verb took that ended in one go, and for how many hosts; "": there is none."""
    begun: dict[str, RunBegun] = {}
    hosts: Counter[str] = Counter()
    text = ""
    for line in lines:
        match line:
            case RunBegun() if line.verb == verb and not line.check:
                begun[line.run] = line
            case Resumed():
                begun.pop(line.run, None)
            case HostDone():
                hosts[line.run] += 1
            case Ended() if line.run in begun:
                end, start = seconds_of(line.at), seconds_of(begun[line.run].at)
                if end is not None and start is not None:
                    text = f"the last one took {duration(end - start)} for {count(hosts[line.run], 'host')}"
            case _:
                pass
    return text


def _passing(past: RecordedRun, line: Line) -> dict[str, Any]:
    """Return the fields of a run that one line of the less common kinds changes."""
    match line:
        case Resumed():
            return {"gate": line.gate, "stopped": None, "exit_code": None}
        case WaveBegun():
            return {"asked": past.asked | {line.wave}}
        case Stopped():
            return {"stopped": line.why}
        case Ended():
            return {"exit_code": line.exit_code}
        case _:
            return {}
