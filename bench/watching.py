"""What `hosttune watch` costs at rest on the host with 517 PCI functions: the agent runs, nothing happens.

What it looks at is a scratch root, so that looks read the whole of that host. Its sources of events are those of a
live host: udev, the kernel log, and libvirt through libvirt-python, at libvirt's own test driver. Looks are made each
second; CPU time of the agent and its children, per look, counts at the default interval. Read from /proc here, and not
with psutil, by which the agent counts itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import msgspec
from rows import PYTHON, ROOT, Row
from system.test_discovery_libvirt_python import python_with_libvirt

INTERVAL = 60.0
SECONDS = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")
AGENT = """
import sys
from hosttune.cli.watch import openers
from hosttune.watch.agent import Agent
from hosttune.watch.looking import Looker
Agent(Looker(sys.argv[1], None), sys.argv[2], 1.0, openers(True, None, None), print, foreign=False).run()
"""


def watching(root: Path) -> list[Row]:
    """CPU time of one look, as a share of a core at the default interval, and memory between two looks and in one."""
    (root / ".hosttune").mkdir(exist_ok=True)
    (root / ".hosttune" / "scratch").touch()
    textfile = root.parent / "hosttune.prom"
    path = os.pathsep.join((str(ROOT), str(Path(msgspec.__file__).parent.parent)))
    python = python_with_libvirt(path)
    environment = {**os.environ, "PYTHONPATH": path, "LIBVIRT_DEFAULT_URI": "test:///default"}
    command = [python or PYTHON, "-c", AGENT, str(root), str(textfile)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as agent:
        try:
            while _looks(textfile) < 3:  # the first ones import what later ones share
                time.sleep(0.05)
            looks, seconds = _looks(textfile), _cpu_seconds(agent.pid)
            at_rest: list[int] = []
            looking: list[int] = []
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                time.sleep(0.1)
                processes = [agent.pid, *_children(agent.pid)]
                (at_rest if len(processes) == 2 else looking).append(sum(map(_memory, processes)))
            looks, seconds = _looks(textfile) - looks, _cpu_seconds(agent.pid) - seconds
        finally:
            agent.send_signal(signal.SIGTERM)
    share = 100 * seconds / max(looks, 1) / INTERVAL
    rest, look = (max(found, default=0) / (1 << 20) for found in (at_rest, looking))
    through = "libvirt-python" if python else "virsh"
    return [
        Row(f"`hosttune watch` at rest, 517 PCI functions, one look a minute, events of libvirt through {through}",
            f"{share:.2f} % of a core", "≤ 0.5 %", share <= 0.5),
        Row("… its memory, of all its processes, between two looks", f"{rest:.0f} MiB", "≤ 80 MiB", 0 < rest <= 80),
        Row("… during a look", f"{look:.0f} MiB", "≤ 80 MiB", 0 < look <= 80),
    ]  # fmt: skip


def _looks(textfile: Path) -> int:
    if not textfile.exists():
        return 0
    lines = [line for line in textfile.read_text().splitlines() if line.startswith("hosttune_watch_looks_total")]
    return sum(int(float(line.rpartition(" ")[2])) for line in lines)


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process, of its children, and of those that have ended (proc(5), stat)."""
    fields = [
        path.read_text().rpartition(")")[2].split()
        for one in (pid, *_children(pid))
        if (path := Path(f"/proc/{one}/stat")).exists()
    ]
    return sum(int(n) for one in fields for n in one[11:15]) / _TICKS


def _memory(pid: int) -> int:
    """Bytes in memory of a process; of a page that several share, its part (proc(5), smaps_rollup, Pss)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # a look that has just ended
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(one) for one in path.read_text().split()] if path.exists() else []
