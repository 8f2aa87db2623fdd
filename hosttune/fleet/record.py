"""The record of runs: RESULTS/run.jsonl, a JSON line an event, appended, never rewritten.

It says which hosts a run has, in which waves, which of them were proven good, and what each gate said: all that
`--resume` needs, whenever the controller ended. It holds names, outcomes and reasons; no variable and no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.gate import Gate
from hosttune.model.fleet import AnswerOutcome
from hosttune.model.validation import Verdict
from hosttune.model.values import Value, to_builtins


class Began(Value, frozen=True, kw_only=True, tag="began", tag_field="event"):
    """A run begins: what was asked. `intent_sha256` tells a changed intent when the run is resumed."""

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


class Members(Value, frozen=True, kw_only=True, tag="members", tag_field="event"):
    """The hosts of a wave, in order; written for every wave before the first host is asked."""

    run: str
    wave: int
    hosts: tuple[str, ...]


class Resumed(Value, frozen=True, kw_only=True, tag="resumed", tag_field="event"):
    """The run goes on after an end; `how`: resume or retry. `told`: what is not as it was."""

    run: str
    at: str
    how: str
    gate: Gate = "either"
    told: tuple[str, ...] = ()


class Asked(Value, frozen=True, kw_only=True, tag="asked", tag_field="event"):
    """A wave begins; `hosts` of it are asked now."""

    run: str
    at: str
    wave: int
    hosts: int


class Done(Value, frozen=True, kw_only=True, tag="host", tag_field="event"):
    """A host of a wave is done, as its result files of this run say."""

    run: str
    wave: int
    host: str
    outcome: AnswerOutcome
    phase: str | None = None
    why: str | None = None
    verdict: Verdict | None = None
    changed: bool = False


class Judged(Value, frozen=True, kw_only=True, tag="gate", tag_field="event"):
    """What the gate behind a wave said."""

    run: str
    wave: int
    passed: bool
    why: tuple[str, ...] = ()


class Stopped(Value, frozen=True, kw_only=True, tag="stopped", tag_field="event"):
    """The run ends before every host was visited."""

    run: str
    at: str
    why: str


class Ended(Value, frozen=True, kw_only=True, tag="ended", tag_field="event"):
    """The run ends; `exit_code` is the command's."""

    run: str
    at: str
    exit_code: int


def now() -> str:
    """The time of a line: UTC, to the second."""
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="seconds")


def new_run() -> str:
    """An id for a run: its time for people, and enough chance that no two are the same."""
    import secrets

    return f"{now().translate({ord(mark): None for mark in '-:'}).partition('+')[0]}-{secrets.token_hex(4)}"


Line = Began | Members | Resumed | Asked | Done | Judged | Stopped | Ended
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """A line of the record, without its newline."""
    return msgspec.json.encode(to_builtins(line))


def decode(data: bytes, *, where: str = "run.jsonl") -> tuple[Line, ...]:
    """The lines of a record. A last line without its end is left out; any other that does not read raises BadInput."""
    lines = data.split(b"\n")[:-1]  # what stands behind the last newline was not finished
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(_DECODER.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(
                f"a line of the record cannot be read: {error}",
                where=f"{where}:{number}",
                hint="begin a new run, or name another results folder with --results",
            ) from error
    return tuple(found)


@dataclass(frozen=True)
class Past:
    """A run as its lines tell it. `done`: each host's last line; `gates`: each wave's last. Waves count from 1."""

    began: Began
    gate: Gate
    members: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    done: Mapping[str, Done] = field(default_factory=dict)
    gates: Mapping[int, Judged] = field(default_factory=dict)
    asked: frozenset[int] = frozenset()
    stopped: str | None = None
    exit_code: int | None = None

    @property
    def run(self) -> str:
        """The run's id."""
        return self.began.run

    @property
    def whole(self) -> bool:
        """Whether the record holds all waves: a controller that died while it wrote them asked no host."""
        return sum(map(len, self.members.values())) == self.began.hosts


def past_run(lines: tuple[Line, ...], verb: str | None = None, run: str | None = None) -> Past | None:
    """The last run (of a verb) that changed or visited hosts (check mode is no run to resume), or the one named."""
    begun = [line for line in lines if isinstance(line, Began) and verb in (None, line.verb)]
    found = [line for line in begun if line.run == run] if run else [line for line in begun if not line.check]
    if not found:
        return None
    past = Past(found[-1], found[-1].gate)
    members: dict[int, tuple[str, ...]] = {}
    done: dict[str, Done] = {}
    gates: dict[int, Judged] = {}
    for line in lines:
        if line.run != past.run:
            continue
        match line:
            case Members():
                members[line.wave] = line.hosts
            case Done():
                done[line.host] = line
            case Judged():
                gates[line.wave] = line
            case Resumed() if line.gate != past.gate:
                done.clear()  # proven by another gate: by this one only their files can prove it
                past = replace(past, **_passing(past, line))
            case _:
                past = replace(past, **_passing(past, line))
    return replace(past, members=members, done=done, gates=gates)


def _passing(past: Past, line: Line) -> dict[str, Any]:
    """What one line of the less common kinds changes in a run."""
    match line:
        case Resumed():
            return {"gate": line.gate, "stopped": None, "exit_code": None}
        case Asked():
            return {"asked": past.asked | {line.wave}}
        case Stopped():
            return {"stopped": line.why}
        case Ended():
            return {"exit_code": line.exit_code}
        case _:
            return {}
