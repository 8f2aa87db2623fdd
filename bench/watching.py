"""What `hosttune watch` costs at rest on the host with 517 PCI functions: the agent runs, nothing happens.

The host is a scratch root, so that looks read the whole of it, without the events and commands of a live one. Looks are
made each second; CPU time of the agent and its children, per look, counts at the default interval.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from rows import HOSTTUNE, Row

INTERVAL = 60.0
SECONDS = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


def watching(root: Path) -> list[Row]:
    """CPU time of one look, as a share of a core at the default interval, and memory between two looks."""
    (root / ".hosttune").mkdir(exist_ok=True)
    (root / ".hosttune" / "scratch").touch()
    textfile = root.parent / "hosttune.prom"
    command = [HOSTTUNE, "watch", "--root", str(root), "--textfile", str(textfile), "--interval", "1"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as agent:
        try:
            while _looks(textfile) < 3:  # the first ones import what later ones share
                time.sleep(0.05)
            looks, seconds = _looks(textfile), _cpu_seconds(agent.pid)
            memory = []
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(0.5)
                memory.append(_resident(agent.pid))
            looks, seconds = _looks(textfile) - looks, _cpu_seconds(agent.pid) - seconds
        finally:
            agent.send_signal(signal.SIGTERM)
    share = 100 * seconds / max(looks, 1) / INTERVAL
    mebibytes = max(memory) / (1 << 20)
    return [
        Row("`hosttune watch` at rest, 517 PCI functions, one look a minute", f"{share:.2f} % of a core", "≤ 0.5 %",
            share <= 0.5),
        Row("… its memory, of agent and look together", f"{mebibytes:.0f} MiB", "≤ 80 MiB", mebibytes <= 80),
    ]  # fmt: skip


def _looks(textfile: Path) -> int:
    if not textfile.exists():
        return 0
    lines = [line for line in textfile.read_text().splitlines() if line.startswith("hosttune_watch_looks_total")]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that have ended (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def _resident(pid: int) -> int:
    """Bytes in memory of a process and its children. What they share counts for each: more than there really is."""
    found = 0
    for process in (str(pid), *_children(pid)):
        path = Path(f"/proc/{process}/statm")
        if path.exists():
            found += int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return found


def _children(pid: int) -> list[str]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return path.read_text().split() if path.exists() else []
