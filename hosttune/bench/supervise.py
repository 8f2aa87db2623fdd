"""Run jobs in forked workers with a time limit each: if a driver's library hangs or crashes, only one job is lost.

The supervisor imports no GPU library. A worker writes its records and each finished job to a pipe. If it dies or takes
too long, its current job is recorded as lost, and a new worker does the remaining jobs.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

Record = dict[str, Any]
Emit = Callable[[Record], None]
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TICK_SECONDS = 0.5


class Measurement(msgspec.Struct, frozen=True):
    """One measurement: `kind` selects the function, `options` are its arguments, `seconds` is its time limit.

    It should give the `metrics` of `subject`. `load`: clocks, power and temperature are sampled while it runs.
    """

    kind: str
    subject: str
    metrics: tuple[str, ...]
    options: Mapping[str, Any]
    seconds: float = 30.0
    load: bool = False


def lost(job: Measurement, why: str) -> Record:
    """Return the error record of a job that gave no figures, or not all of them."""
    return {"error": why, "metrics": list(job.metrics), "subject": job.subject}


def run_jobs(
    jobs: Sequence[Measurement],
    work: Callable[[Measurement], Iterable[Record]],
    *,
    until: float,
    watch: Callable[[Measurement], Iterable[Record]] = lambda job: (),
) -> Iterator[Record]:
    """Run all jobs one after another and yield their records as they arrive.

    One worker runs all jobs; a new worker is started only if the last one failed. `until` (monotonic clock) is the
    time limit for all jobs. `watch` is called in this process about every half second while a job with `load` runs.
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
    jobs: Sequence[Measurement],
    work: Callable[[Measurement], Iterable[Record]],
    until: float,
    watch: Callable[[Measurement], Iterable[Record]],
) -> Iterator[Record]:
    """Run one worker and yield its messages. The last message is {"broken": why} if the worker did not finish."""
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


def _all(jobs: Sequence[Measurement], work: Callable[[Measurement], Iterable[Record]], emit: Emit) -> None:
    for job in jobs:
        for record in work(job):
            emit(record)
        emit({"done": job.kind})


def fork_worker(work: Callable[[Emit], None]) -> tuple[int, int]:
    """Fork a child that does `work`. Returns (its process id, the read end of the pipe for its lines of JSON).

    The child's standard output is redirected to standard error: libraries log to it (NCCL_DEBUG), but the parent's
    standard output is the document. The child is killed if its parent dies. It stays in the parent's process group, so
    that a signal to the group ends both.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == parent:
                os.dup2(2, 1)
                work(lambda record: _say(writer, record))
                status = 0
        except Exception as error:  # sent to the supervisor, which records a lost job
            with contextlib.suppress(OSError):
                _say(writer, {"broken": f"{type(error).__name__}: {str(error).strip()[:400]}"})
        finally:
            os._exit(status)
    os.close(writer)
    return pid, reader


def _say(writer: int, record: Record) -> None:
    data = json.dumps(record).encode() + b"\n"
    while data:
        data = data[os.write(writer, data) :]


def end_worker(pid: int) -> str | None:
    """Reap a worker; kill it if it has not ended after about 0.2 s. Returns why it ended, None if it ended normally.

    After about 2 s it stops waiting: the worker is stuck in the kernel.
    """
    for attempt in range(200):
        with contextlib.suppress(ChildProcessError):
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
            if ended_pid:
                code = os.waitstatus_to_exitcode(status)
                if code < 0:
                    return f"the worker was ended by signal {-code} ({signal.Signals(-code).name})"
                return None
        if attempt == 20:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return "does not end: it waits in the kernel"
