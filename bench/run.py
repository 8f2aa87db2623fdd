"""`make bench`: whole-process times as ratios to a named peer in the same run, and what planning one guest costs.

Run on an otherwise idle machine. Prints a Markdown table and exits 1 when a bound is missed. Peers: `lstopo`
(hwloc) for discovery, a bare start of the same Python for start-up. Each figure is the median of interleaved
runs, so that a slow moment hits both sides.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from applying import applying
from batch import batches
from bounds import bounds
from models import models
from online import online
from rows import HOSTTUNE, PYTHON, Row, interleaved
from running import running
from watching import watching

ROOT = Path(__file__).resolve().parent.parent
CAPTURE = ROOT / "tests/hosts/derived/xe9680-8xh100-lspci.tar.xz"


def unpack(target: str) -> str:
    """The 517-function capture as a directory, for both tools."""
    with tarfile.open(CAPTURE) as tar:
        if hasattr(tarfile, "fully_trusted_filter"):
            tar.extraction_filter = staticmethod(tarfile.fully_trusted_filter)
        tar.extractall(target)
    return str(Path(target) / "root")


def start_up() -> list[Row]:
    """Start-up against a bare Python."""
    bare, version = interleaved([PYTHON, "-c", "pass"], [HOSTTUNE, "--version"])
    extra = (version - bare) * 1000
    return [
        Row(
            "`hosttune --version` over a bare Python start",
            f"{extra:.0f} ms ({version / bare:.1f}× it)",
            "≤ 60 ms",
            extra <= 60,
        )
    ]


def discovery(root: str) -> list[Row]:
    """Whole-process discovery against lstopo on the same root, and what of it is not reading the host.

    Half of our time is the start: Python, click, msgspec and our modules.
    """
    discover = [HOSTTUNE, "discover", "-o", "json", "--root", root]
    lstopo = ["lstopo-no-graphics", "--whole-io", "--of", "xml", "-i", root]
    bare = [PYTHON, "-c", "pass"]
    libraries = [PYTHON, "-c", "import msgspec"]
    ours, peer, start, imports = interleaved(discover, lstopo, bare, libraries)
    rest = ours - imports
    return [
        Row(
            "`discover -o json`, 517 PCI functions, against `lstopo`",
            f"{ours / peer:.1f}×",
            "≤ 5.4×",
            ours <= 5.4 * peer,
        ),
        Row(
            "… of which a bare Python start, msgspec, reading and writing",
            f"{start / peer:.1f}× + {(imports - start) / peer:.1f}× + {rest / peer:.1f}×",
            "",
            True,
        ),
    ]


def peak_memory(root: str) -> list[Row]:
    """Largest resident size of a discover process, from a directory and from a tar."""
    rows = []
    for what, source in (("a directory", root), ("a tar", str(CAPTURE))):
        code = (
            "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True);"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        command = [sys.executable, "-c", code, HOSTTUNE, "discover", "-o", "json", "--root", source]
        mebibytes = int(subprocess.run(command, capture_output=True, check=True).stdout) / 1024
        rows.append(Row(f"peak memory of `discover` from {what}", f"{mebibytes:.0f} MiB", "≤ 80 MiB", mebibytes <= 80))
    return rows


def percentile(call: Callable[[], object], rounds: int = 200) -> float:
    """The 99th percentile of a call's milliseconds, without Python's garbage collection.

    A collection takes as long as what the process holds: here all hosts of this benchmark, in a command one.
    """
    times = []
    gc.disable()
    try:
        for number in range(rounds):
            if number % 10 == 0:
                gc.collect()
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1000)
    finally:
        gc.enable()
    return sorted(times)[int(rounds * 0.99) - 1]


def planning(root: str) -> list[Row]:
    """Planning one guest in process, on the XE9680 and on 8 nodes x 768 CPUs."""
    from planhosts import Card, Shape, build_host

    import hosttune

    cards = [Card(f"0000:{0x11 + 16 * i:02x}:00.0", i, group=i, bar_bytes=256 << 30) for i in range(8)]
    shape = Shape(nodes=8, cores_per_node=48, threads=2, llc_cores=8, memory_gib=384, cards=cards)
    large = hosttune.Host.from_json(json.dumps(build_host(shape)))
    rows = []
    for what, host in (("the XE9680", hosttune.discover(root)), ("8 nodes × 768 CPUs", large)):
        for request in ("gpus: 1", "gpus: 4", "gpus: 0, vcpus: 200, memory: 256GiB, numa: 4"):
            intent = hosttune.Intent.from_yaml(f"version: 1\nguests: [{{name: guest, {request}}}]")
            worst = percentile(partial(hosttune.plan, host, intent))
            rows.append(
                Row(f"planning one guest on {what} ({request}), p99", f"{worst:.1f} ms", "≤ 50 ms", worst <= 50)
            )
    return rows


def main() -> int:
    """Measure everything, print the table."""
    os.environ["NO_COLOR"] = "1"
    with tempfile.TemporaryDirectory() as target:
        root = unpack(target)
        rows = [*start_up(), *discovery(root), *peak_memory(root), *planning(root), *applying(Path(target)), *batches()]
        rows += [*models(root), *online(), *bounds(), *watching(Path(root)), *running()]
    print("| measured | figure | bound |\n|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.figure}{'' if row.holds else ' **missed**'} | {row.bound} |")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
