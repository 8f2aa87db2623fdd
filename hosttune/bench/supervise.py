"""Jobs in forked workers, each with its time: a hang or crash of a driver's library costs one job, never the answer.

The supervisor imports no GPU library. A worker says on a pipe what it begins, what it found and what it has done; when
it dies or overstays, the job that it was in is lost, by name, and a new worker takes up the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

Record = dict[str, Any]
Emit = Callable[[Record], None]
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """One piece of work: `kind` chooses the function, `options` its arguments. `seconds` is all the time it gets.

    `metrics` of `subject` is what it should give. `load`: clocks, power and temperature are worth sampling meanwhile.
    """

    kind: str
    subject: str
    metrics: tuple[str, ...]
    options: Mapping[str, Any]
    seconds: float = 30.0
    load: bool = False


def lost(job: Job, why: str) -> Record:
    """The record of a job that gave nothing, or not everything."""
    return {"error": why, "metrics": list(job.metrics), "subject": job.subject}


def run_jobs(
    jobs: Sequence[Job],
    work: Callable[[Job], Iterable[Record]],
    *,
    until: float,
    watch: Callable[[Job], Iterable[Record]] = lambda job: (),
) -> Iterator[Record]:
    """The records of all jobs, as they come, done one after the other in as few workers as hold out.

    `until` (of the monotonic clock) ends it all. `watch` is called about every half second while a job with `load`
    runs, in this process.
    """
    left = tuple(jobs)
    while left:
        if time.monotonic() >= until:
            yield from (lost(job, "not run: the time for all benchmarks was used up") for job in left)
            return
        done = 0
        why = "the worker ended without a result"
        for message in _follow(left, work, until, watch):
            if "done" in message:
                done += 1
            elif "broken" in message:
                why = message["broken"]
            else:
                yield message
        left = left[done:]
        if left:
            yield lost(left[0], why)
            left = left[1:]


def _follow(
    jobs: Sequence[Job],
    work: Callable[[Job], Iterable[Record]],
    until: float,
    watch: Callable[[Job], Iterable[Record]],
) -> Iterator[Record]:
    """What one worker says; the last word is {"broken": why} when it did not come to its end."""
    pid, reader = fork_worker(lambda emit: _all(jobs, work, emit))
    current = 0
    deadline = min(until, time.monotonic() + jobs[0].seconds)
    buffer = b""
    try:
        while True:
            if time.monotonic() >= deadline:
                yield {"broken": f"no answer within {jobs[current].seconds:g} s"}
                return
            ready, _, _ = select.select([reader], [], [], min(_TICK_SECONDS, max(0.0, deadline - time.monotonic())))
            if jobs[current].load:
                yield from watch(jobs[current])
            if not ready:
                continue
            chunk = os.read(reader, 1 << 16)
            if not chunk:
                break
            *whole, buffer = (buffer + chunk).split(b"\n")
            for line in whole:
                message = json.loads(line)
                if "done" in message and current + 1 < len(jobs):
                    current += 1
                    deadline = min(until, time.monotonic() + jobs[current].seconds)
                yield message
    finally:
        os.close(reader)
        ended = end_worker(pid)
    if ended:
        yield {"broken": ended}


def _all(jobs: Sequence[Job], work: Callable[[Job], Iterable[Record]], emit: Emit) -> None:
    for job in jobs:
        for record in work(job):
            emit(record)
        emit({"done": job.kind})


def fork_worker(work: Callable[[Emit], None]) -> tuple[int, int]:
    """A child that does `work`, and the end of the pipe on which it emits lines of JSON.

    Its standard output becomes standard error: libraries log there (NCCL_DEBUG), and ours is the document. It dies
    with its parent and stays in its group, so that whoever ends the parent ends it as well.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_worker(work, writer, parent)
    os.close(writer)
    return pid, reader


def _be_worker(work: Callable[[Emit], None], writer: int, parent: int) -> NoReturn:
    status = 1
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            os.dup2(2, 1)
            work(lambda record: _say(writer, record))
            status = 0
    except Exception as error:  # told to the supervisor, which makes a lost job of it
        with contextlib.suppress(OSError):
            _say(writer, {"broken": f"{type(error).__name__}: {str(error).strip()[:400]}"})
    finally:
        os._exit(status)


def _say(writer: int, record: Record) -> None:
    data = json.dumps(record).encode() + b"\n"
    while data:
        data = data[os.write(writer, data) :]


def end_worker(pid: int) -> str | None:
    """Take a worker off the list of processes, killed if it still runs. Why it ended, None for well.

    One that the kernel holds is not waited for.
    """
    for attempt in range(200):
        with contextlib.suppress(ChildProcessError):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return _ending(status)
        if attempt == 20:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return "does not end: it waits in the kernel"


def _ending(status: int) -> str | None:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"the worker was ended by signal {-code} ({signal.Signals(-code).name})"
    return None
