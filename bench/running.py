"""`lint --running` of eight guests against reading the files that it reads of them: what the judging itself costs."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from rows import Row

import hosttune
from hosttune.discovery.running import read_running
from hosttune.domain.running import definition
from hosttune.machine.live import LiveMachine
from hosttune.machine.reader import Reader
from hosttune.rules.lint import LintedDefinition, Manager, lint

GUESTS, ROUNDS, MOST = 8, 15, 2.0
# Paused and emulated, with threads, cells and ports as a manager writes them; its memory is touched, as a guest's is.
LINE = (
    "qemu-system-x86_64 -S -display none -daemonize -machine q35 -accel tcg,thread=multi -smp 16,sockets=2 -m 512"
    " -object memory-backend-ram,id=m0,size=256M,prealloc=on -object memory-backend-ram,id=m1,size=256M,prealloc=on"
    " -numa node,nodeid=0,memdev=m0,cpus=0-7 -numa node,nodeid=1,memdev=m1,cpus=8-15 -object iothread,id=io0"
)
PORTS = "".join(f" -device pcie-root-port,id=p{n},chassis={n},bus=pcie.0" for n in range(1, 9))


class Noting(LiveMachine):
    """This machine; it notes what is read, as calls that read the same."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Callable[[], object]] = []

    def read_bytes(self, path: str) -> bytes | None:
        """Read a file, and note it."""
        self.reads.append(Path(path).read_bytes)
        return super().read_bytes(path)

    def list(self, path: str) -> list[str]:
        """List a folder, and note it."""
        self.reads.append(partial(os.listdir, path))
        return super().list(path)

    def link(self, path: str) -> str | None:
        """Read a link, and note it."""
        self.reads.append(partial(os.readlink, path))
        return super().link(path)


def running() -> list[Row]:
    """The one row."""
    with _guests():
        host, noting = hosttune.discover(), Noting()
        _judge(noting, host)
        ours, files = _medians(partial(_judge, LiveMachine(), host), partial(_read, noting.reads))
    what = f"`lint --running`, {GUESTS} guests, against reading the same {len(noting.reads)} files, links and folders"
    return [Row(what, f"{ours / files:.2f}×  ({ours * 1000:.0f} ms)", f"≤ {MOST:g}×", ours <= MOST * files)]


def _judge(machine: LiveMachine, host: hosttune.Host) -> None:
    found = read_running(Reader(machine)) or ()
    lint(host, [LintedDefinition(str(one.pid), definition(process, host), Manager()) for one, process in found])


def _read(reads: list[Callable[[], object]]) -> None:
    for read in reads:
        with suppress(OSError):  # of a process that has ended
            read()


def _medians(*actions: Callable[[], None]) -> list[float]:
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(ROUNDS):
        for action, row in zip(actions, times, strict=True):
            start = time.process_time()
            action()
            row.append(time.process_time() - start)
    return [statistics.median(row) for row in times]


@contextmanager
def _guests() -> Iterator[None]:
    processes: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number in range(GUESTS):
                pid = Path(folder, str(number))
                name = f" -name guest=bench{number},debug-threads=on -pidfile {pid}"
                subprocess.run((LINE + PORTS + name).split(), check=True)
                processes.append(int(pid.read_text()))
            yield
        finally:
            for process in processes:
                os.kill(process, 9)


if __name__ == "__main__":
    print(running())
