"""What applying costs: a full host's settings on a scratch root, and a second apply against discovery.

A scratch root takes the writes in the kernel's place, so the figures are hosttune's own: reading, judging, the synced
journal. What the kernel itself takes (pages, binding) is not in them.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from rows import HOSTTUNE, ROOT, Row, interleaved

EXAMPLE = ROOT / "examples/hgx-h200-8.tar.xz"
OVER_DISCOVER_SECONDS = 0.5
MACHINE_ID = "0123456789abcdef0123456789abcdef\n"


def scratch_host(target: Path) -> Path:
    """The bundled 8-GPU host as a scratch root."""
    with tarfile.open(EXAMPLE) as tar:
        if hasattr(tarfile, "fully_trusted_filter"):
            tar.extraction_filter = staticmethod(tarfile.fully_trusted_filter)
        tar.extractall(target)
    (target / ".hosttune").mkdir(exist_ok=True)
    (target / ".hosttune/scratch").touch()
    (target / "etc/machine-id").write_text(MACHINE_ID)
    return target


def applying(target: Path) -> list[Row]:
    """First apply, second apply, revert: seconds, system calls, processes, writes."""
    root = scratch_host(target / "scratch")
    plan = target / "plan.json"
    request = ["--gpus", "4", "--profile", "host", "--out", str(plan)]
    run([HOSTTUNE, "plan", "--root", str(root), *request])
    apply = [HOSTTUNE, "apply", "--root", str(root), str(plan), "--yes"]
    first = traced(apply, target / "trace")
    before = digest(root)
    again, discover = interleaved(apply, [HOSTTUNE, "discover", "-o", "json", "--root", str(root)])
    written = sum(1 for path, data in digest(root).items() if before.get(path) != data)
    over = again - discover
    settings = first.settings
    rows = [
        Row(f"first `apply` of a full host's {settings} settings", f"{first.seconds:.2f} s", "", True),
        Row("… system calls, of these on disk for good (fsync)", f"{first.calls:,}, {first.syncs}", "", True),
        Row("… processes started (children that make risky writes, tools)", f"{first.processes}", "", True),
        Row("second `apply`: files written", f"{written}", "0", written == 0),
        Row("second `apply` over `discover`", f"{over:.2f} s", "≤ 0.5 s", over <= OVER_DISCOVER_SECONDS),
    ]
    run([HOSTTUNE, "revert", "--yes", "--root", str(root)])
    return rows


class Traced:
    """What strace counted of one command, and how long it took without strace."""

    def __init__(self, seconds: float, calls: int, syncs: int, processes: int, settings: int) -> None:
        self.seconds, self.calls, self.syncs = seconds, calls, syncs
        self.processes, self.settings = processes, settings


def traced(apply: list[str], trace: Path) -> Traced:
    """Apply under strace for the counts, revert, then apply again for the time."""
    output = run(["strace", "-f", "-qq", "-o", str(trace), *apply]).stdout
    calls = trace.read_text("utf-8", "replace").splitlines()
    names = [found[1] for line in calls if (found := re.match(r"\d+\s+(\w+)\(", line))]
    processes = sum(1 for name in names if name in ("fork", "vfork", "clone", "clone3"))
    run([apply[0], "revert", "--yes", *apply[2:4]])
    seconds = timed(lambda: run(apply))
    settings = len(re.findall(r"^  (?:done|clamped|pending|ignored) ", output, re.MULTILINE))
    return Traced(seconds, len(names), sum(1 for name in names if name == "fsync"), processes, settings)


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    import time

    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def digest(root: Path) -> dict[str, bytes]:
    """Every file of a root but the lock, which holds a process id."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and path.name != "lock")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed."""
    return subprocess.run(command, capture_output=True, text=True, check=True)
