"""`make bench-fleet`: what a fleet costs, as ratios in one run. See bench/README.md.

Prints a Markdown table and exits 1 when a bound is missed. FLEET_HOSTS is the size of the large fleet (1,000).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH), str(BENCH.parent), str(BENCH.parent / "tests/support"), str(BENCH.parent / "tests")]

from rows import Row  # noqa: E402

from fleet.page import page  # noqa: E402
from fleet.peer import against_handwritten  # noqa: E402
from fleet.phases import phases  # noqa: E402
from fleet.scale import scale  # noqa: E402
from fleet.slopes import slopes  # noqa: E402

MEMORY, ROOM = Path("/dev/shm"), 6 << 30
PARTS = {"peer": against_handwritten, "phases": phases, "slopes": slopes, "scale": scale, "page": page}


def folder() -> Path | None:
    """Memory where there is room: every step of an apply is synced, and a disk's time is not what is measured."""
    return MEMORY if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM else None


def main(wanted: list[str]) -> int:
    """Measure all parts, or those that are named; print the table."""
    os.environ["NO_COLOR"] = "1"
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-fleet-", dir=folder()) as whole:
        for name, part in PARTS.items():
            if not wanted or name in wanted:
                work = Path(whole, name)
                work.mkdir()
                rows += part(work)
    print("| measured | figure | bound |\n|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.figure}{'' if row.holds else ' **missed**'} | {row.bound} |")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
