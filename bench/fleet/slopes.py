"""What grows with the fleet, measured at two sizes: what an inventory costs each ansible process, what a host of a
shard leaves in its memory. Figures for docs/scale.md; no bounds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rows import Row

from fleet.hosts import ROOT, inventory, names, unpack
from fleet.meter import Cost, in_turn, measure
from fleet.phases import playbook

LIGHT = ROOT / "tests/hosts/h200/vm-x1.tar.gz"  # a guest with one GPU: the command's own time is short
ASKED = 16
SMALL, LARGE = 1_000, 10_000  # hosts in an inventory
FEW, MANY = 50, 400  # hosts of one ansible process
ROUNDS = 3


def slopes(work: Path) -> list[Row]:
    """Both slopes."""
    root = unpack(LIGHT, work / "light")
    return [*by_inventory(root, work), *by_shard(root, work)]


def by_inventory(root: Path, work: Path) -> list[Row]:
    """The same 16 hosts asked out of a thousand and out of ten thousand."""
    few, many = in_turn(ROUNDS, *(partial(_asked, root, work, size) for size in (SMALL, LARGE)))
    thousands = (LARGE - SMALL) / 1000
    seconds, memory = (many.cpu - few.cpu) / thousands, (many.largest - few.largest) / thousands / 2**20
    figure = f"{few.cpu:.1f} s → {many.cpu:.1f} s, {few.largest / 2**20:.0f} MiB → {many.largest / 2**20:.0f} MiB"
    what = f"{ASKED} hosts discovered out of {SMALL:,} and of {LARGE:,} in the inventory: CPU, largest process"
    return [
        Row(what, figure, "", True),
        Row(
            "… a process for each 1,000 hosts more in the inventory", f"{seconds:.2f} CPU-s, {memory:.1f} MiB", "", True
        ),
    ]


def _asked(root: Path, work: Path, size: int) -> Cost:
    hosts = inventory(work / f"{size}.ini", ((name, root) for name in names(size)))
    limit = work / "limit"
    limit.write_text("\n".join(names(ASKED)) + "\n")
    return measure(playbook("discover", hosts, work / "results", "--limit", f"@{limit}"), cwd=ROOT)


def by_shard(root: Path, work: Path) -> list[Row]:
    """One ansible process with few hosts and with many."""
    few, many = (_whole(root, work, count) for count in (FEW, MANY))
    kibibytes = (many.largest - few.largest) / (MANY - FEW) / 1024
    return [
        Row(
            f"one ansible process with {FEW} and with {MANY} hosts: largest process, all of them",
            f"{few.largest / 2**20:.0f} MiB → {many.largest / 2**20:.0f} MiB ({kibibytes:.0f} KiB a host), "
            f"{few.together / 2**20:.0f} MiB → {many.together / 2**20:.0f} MiB",
            "",
            True,
        )
    ]


def _whole(root: Path, work: Path, count: int) -> Cost:
    hosts = inventory(work / f"{count}.ini", ((name, root) for name in names(count)))
    return measure(playbook("discover", hosts, work / "results"), cwd=ROOT, memory=True)
