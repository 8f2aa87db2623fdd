"""A row of the benchmark's table, and whole processes timed side by side."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Before the modules that are imported after this one.
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/support")]

# hosttune as it is on a host, which `make bench` installs; without that, the checkout's own beside what tests need.
_HOST = ROOT / ".bench/host/bin"
_BIN = _HOST if (_HOST / "hosttune").exists() else Path(sys.executable).parent
HOSTTUNE, PYTHON = str(_BIN / "hosttune"), str(_BIN / "python")
ROUNDS = 25


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, the figure, its bound, and whether it holds."""

    what: str
    figure: str
    bound: str
    holds: bool


def interleaved(*commands: list[str]) -> list[float]:
    """Median seconds of each command, all of them run in turn."""
    times: list[list[float]] = [[] for _ in commands]
    for _ in range(ROUNDS):
        for i, command in enumerate(commands):
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            times[i].append(time.perf_counter() - start)
    return [statistics.median(row) for row in times]
