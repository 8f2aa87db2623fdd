"""One host in a group: what it has, and its part of a collective, in child processes with a time limit.

Nothing is left behind, whoever dies: the ranks end with their child, the child with this process, and this process ends
by its own limit, or as soon as another host of the group is gone. It changes nothing and sets no variable of NCCL.
"""

from __future__ import annotations

import math
import os
import re
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any

import msgspec

from hosttune.cluster.collective.launch import MeasuringChild, child
from hosttune.cluster.collective.meeting import Met, NotMet, hear, meet
from hosttune.cluster.pairs.ends import other_way
from hosttune.cluster.pairs.programs import Run
from hosttune.errors import BadInput
from hosttune.model.collective import Member, MemberOutcome, Task, Timing
from hosttune.model.jsontext import plain_json

# Variables that libraries for collectives, and what carries them, read. They are kept, and recorded.
_VARIABLES = re.compile(
    r"(NCCL|RCCL|TORCH|GLOO|UCX|OFI|FI|HSA|HCCL|PYTORCH)_[A-Z0-9_]+|(CUDA|HIP|ROCR)_VISIBLE_DEVICES|LD_PRELOAD"
    r"|LD_LIBRARY_PATH|CUDA_DEVICE_ORDER|OMP_NUM_THREADS"
)
_MOST_VARIABLES, _MOST_TEXT = 100, 500
_MOST = {"port": 65535, "seconds": 3600, "wait": 600, "ranks": 64, "runs": 100}
_MOST_HOSTS, _MOST_BYTES = 5000, 64 << 30
_END_SECONDS = 5.0
_OWN_SECONDS = 1.0  # in which this host can still say a reason of its own after another host has failed


def check_task(task: Task) -> None:
    """Check a task: its values go to other hosts and to the ranks. Raises BadInput that names the first wrong value."""
    for name in ("address", "own"):
        try:
            ip_address(getattr(task, name))
        except ValueError as error:
            raise _bad(name, f"not an IP address: {getattr(task, name)[:40]!r}") from error
    for name, most in _MOST.items():
        if not 1 <= getattr(task, name) <= most:
            raise _bad(name, f"{getattr(task, name)} is not 1 to {most}")
    if not 0 < task.run_seconds <= 60:
        raise _bad("run_seconds", "not above 0 and at most 60")
    if not 1 <= len(task.hosts) <= _MOST_HOSTS or len(set(task.hosts)) != len(task.hosts):
        raise _bad("hosts", f"not 1 to {_MOST_HOSTS} different hosts")
    if len(task.machines) not in (0, len(task.hosts)) or not 0 <= task.index < len(task.hosts):
        raise _bad("index", "hosts, machines and index do not belong together")
    if not task.kinds or not task.sizes or not all(4 <= size <= _MOST_BYTES for size in task.sizes):
        raise _bad("sizes", f"not one or more of 4 to {_MOST_BYTES} bytes, for one or more kinds")


def _bad(name: str, why: str) -> BadInput:
    return BadInput(why, where=f"job: task.{name}", hint="`hosttune fleet collective` writes the job")


def environment(variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that libraries for collectives read, as they are."""
    names = sorted(name for name in variables if _VARIABLES.fullmatch(name))
    return {name: variables[name][:_MOST_TEXT] for name in names[:_MOST_VARIABLES]}


class _MemberCourse(msgspec.Struct):
    """What was heard while a group measured."""

    task: Task
    timings: list[Timing] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    wrong: list[str] = msgspec.field(default_factory=list)
    wrong_of: set[str] = msgspec.field(default_factory=set)
    ranks: int | None = None
    done: bool = False
    failed: tuple[MemberOutcome, str, tuple[str, ...]] | None = None
    lost: tuple[MemberOutcome, str, tuple[str, ...]] | None = None  # what another host said, or that it is gone

    @property
    def answer(self) -> tuple[MemberOutcome, str | None, tuple[str, ...]]:
        """(outcome, why, hosts that are accused)."""
        if self.wrong:
            return "wrong", "; ".join(self.wrong[:3]), tuple(sorted(self.wrong_of))
        if self.failed is not None or self.lost is not None:
            return self.failed or self.lost or ("not-understood", None, ())
        if not self.done:
            return "tool-failed", "the measuring process ended before its last line", ()
        if not self.timings:
            return "not-understood", "; ".join(self.notes[:2]) or "no figure", ()
        return "measured", None, ()


def take_part(
    task: Task, about: Member, run: Run, *, python: str | None = None, variables: Mapping[str, str] = os.environ
) -> Member:
    """Return this host's answer: it meets the others of its group and measures with them. Never raises for the group.

    `about`: who this host is. `run`: runs a command (`ip`). `variables`: the environment of the ranks.
    """
    from msgspec.structs import replace

    known = replace(about, group=task.group, environment=environment(variables))
    peers = [] if task.index == 0 else [task.address]
    for peer in peers:
        lost = other_way(task.interface, task.own, peer, run)
        if lost is not None:
            return replace(known, outcome=lost[0], why=lost[1][:300])
    try:
        met = meet(task, about.machine)
    except NotMet as error:
        return replace(known, outcome=error.outcome, why=str(error)[:300], accused=error.accused)
    try:
        course = _measure(task, met, python or sys.executable, variables)
    finally:
        met.close()
    outcome, why, accused = course.answer
    return replace(
        known,
        outcome=outcome,
        why=why[:300] if why else None,
        accused=accused,
        ranks=course.ranks,
        timings=tuple(course.timings),
        notes=(*about.notes, *course.notes),
    )


def _measure(task: Task, met: Met, python: str, variables: Mapping[str, str]) -> _MemberCourse:
    """Run the ranks of this host, and listen to the other hosts meanwhile."""
    course = _MemberCourse(task)
    try:
        with child(task, met, python, variables) as process:
            if met.listening is not None:
                met.listening.close()
                met.listening = None
            _follow(course, met, process)
            _said_at_the_end(course, process)
    except FileNotFoundError:
        course.failed = ("not-installed", f"no interpreter {python}", ())
    except OSError as error:
        course.failed = course.failed or ("tool-failed", str(error), ())
    _tell_the_end(course, met)
    return course


def _said_at_the_end(course: _MemberCourse, process: MeasuringChild) -> None:
    """Take what a child that gave no reason wrote to its standard error."""
    if course.failed is not None or course.lost is not None:
        return
    code = process.end(_END_SECONDS)
    if not course.done:
        last = process.last_words()
        outcome: MemberOutcome = "not-installed" if "No module named 'torch" in last else "tool-failed"
        course.failed = (outcome, f"the measuring process ended with {code}: {last}", ())


def _follow(course: _MemberCourse, met: Met, process: MeasuringChild) -> None:
    """Hear the child and the other hosts until the child ends, one of them is lost, or the time is over."""
    deadline = time.monotonic() + course.task.seconds + _END_SECONDS
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process, selectors.EVENT_READ, None)
        for host, link in met.links.items():
            selector.register(link, selectors.EVENT_READ, (host, link))
        while course.failed is None:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and course.lost is not None:
                return
            if not ready:
                course.failed = ("collective-failed", f"it did not end in {course.task.seconds} s", ())
            for key, _ in sorted(ready, key=lambda event: event[0].data is not None):
                if key.data is not None:
                    selector.unregister(key.data[1])
                    if _is_lost(course, *key.data):
                        deadline = min(deadline, time.monotonic() + _OWN_SECONDS)
                    continue
                chunk = process.read()
                if not chunk:
                    return
                *whole, data = (data + chunk).split(b"\n")
                for line in whole:
                    if course.failed is None:
                        _heard(course, line)


def _is_lost(course: _MemberCourse, host: str, link: socket.socket) -> bool:
    """Take what another host says: it has ended, or failed, or is gone. Returns whether the group is lost."""
    said = hear(link)
    if said is None:
        course.lost = course.lost or (
            "member-lost",
            f"the connection to {host} ended while the group measured",
            (host,),
        )
    elif "failed" in said:
        accused = tuple(str(name)[:255] for name in said.get("accused") or (host,))
        course.lost = course.lost or ("member-lost", f"{host}: {str(said['failed'])[:200]}", accused)
    return course.lost is not None


def _tell_the_end(course: _MemberCourse, met: Met) -> None:
    """Tell the others how it ended here, and wait until they have ended too: a connection that closes means a loss."""
    over = course.failed or course.lost
    if over is not None:
        own = (course.task.hosts[course.task.index],)
        met.say({"failed": over[1][:300], "accused": over[2] or own})
        return
    met.say({"done": course.task.group})
    deadline = time.monotonic() + _END_SECONDS
    for link in met.links.values():
        with selectors.DefaultSelector() as selector:
            selector.register(link, selectors.EVENT_READ)
            if selector.select(max(0.0, deadline - time.monotonic())):
                hear(link)


# --- what the child says -------------------------------------------------------------------------------------------


def _heard(course: _MemberCourse, line: bytes) -> None:
    """Take a line of the child. One that cannot be read ends the measurement."""
    try:
        said = plain_json(line, where="child")
        take = next(function for key, function in _LINES.items() if key in said)
        take(course, said)
    except (BadInput, ValueError, TypeError, KeyError, StopIteration, AttributeError, IndexError) as error:
        course.failed = ("not-understood", f"a line of the measuring process cannot be read: {error}"[:200], ())


def _began(course: _MemberCourse, said: Mapping[str, Any]) -> None:
    task = course.task
    wanted = len(task.hosts) * task.ranks
    course.ranks = int(said["ranks"])
    if course.ranks != wanted:
        course.failed = ("not-understood", f"the group has {course.ranks} ranks, not {wanted}", ())
    there = [part for part in (f"torch {said['torch']}", f"nccl {said['nccl']}") if part.split()[1] != "None"]
    if task.library is not None and any(part not in task.library for part in there):
        course.failed = ("other-version", f"this host has {', '.join(there)}, the group uses {task.library}", ())


def _timed(course: _MemberCourse, said: Mapping[str, Any]) -> None:
    seconds = tuple(float(duration) for duration in said["seconds"])
    if len(seconds) != course.task.runs or not all(math.isfinite(duration) and duration > 0 for duration in seconds):
        raise ValueError(f"times {seconds[:3]}")
    kind = said["kind"]
    if kind not in course.task.kinds or not 0 < int(said["size"]) <= max(course.task.sizes):
        raise ValueError(f"{str(kind)[:20]} of {said['size']} bytes was not asked for")
    course.timings.append(Timing(kind=kind, size_bytes=int(said["size"]), ranks=int(said["ranks"]), seconds=seconds))


def _wrong(course: _MemberCourse, said: Mapping[str, Any]) -> None:
    """Values were wrong: of an all-gather the rank is known whose part is, and so its host."""
    hosts = sorted({course.task.hosts[int(rank) // course.task.ranks] for rank in said["of"]})
    of = f", the part of {', '.join(hosts[:5])}" if hosts else ""
    course.wrong.append(f"{said['wrong']} of {said['size']} bytes gave wrong values at rank {said['seen_by']}{of}")
    course.wrong_of |= set(hosts) if len(hosts) < len(course.task.hosts) else set()


def _left_out(course: _MemberCourse, said: Mapping[str, Any]) -> None:
    course.notes.append(f"{said['left_out']} of {said['size']} bytes was left out: {str(said['why'])[:150]}")


def _failed(course: _MemberCourse, said: Mapping[str, Any]) -> None:
    of_all = said.get("collective") or said.get("late")
    course.failed = ("collective-failed" if of_all else "tool-failed", str(said["failed"])[:300], ())
    if "No module named 'torch" in str(said["failed"]):
        course.failed = ("not-installed", f"{said['failed']}", ())


def _done(course: _MemberCourse, said: Mapping[str, Any]) -> None:
    course.done = True


_LINES: Mapping[str, Callable[[_MemberCourse, Mapping[str, Any]], None]] = {
    "began": _began, "left_out": _left_out, "wrong": _wrong, "failed": _failed, "done": _done, "seconds": _timed,
}  # fmt: skip
