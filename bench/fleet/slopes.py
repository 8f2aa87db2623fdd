"""What grows with the fleet, measured at two sizes: what an inventory costs each ansible process, what a host of a
shard leaves in its memory, what the report over all hosts takes. Figures for docs/scale.md; no bounds."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from rows import Row

from fleet.hosts import BIN, ROOT, inventory, names, unpack
from fleet.meter import Cost, in_turn, measure
from fleet.page import opened
from fleet.phases import playbook

LIGHT = ROOT / "tests/hosts/older/vm-x1.tar.gz"  # a guest with one GPU: the command's own time is short
ASKED = 16
SMALL, LARGE = 1_000, 10_000  # hosts in an inventory
FEW, MANY = 50, 400  # hosts of one ansible process
ROUNDS = 3


def slopes(work: Path) -> list[Row]:
    """All slopes."""
    root = unpack(LIGHT, work / "light")
    return [*by_inventory(root, work), *by_shard(root, work), *by_report(root, work)]


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


def by_report(root: Path, work: Path) -> list[Row]:
    """The report over a thousand hosts and over ten thousand that validated themselves, and its page in Chromium."""
    command: list[str | Path] = [BIN / "hosttune", "validate", "-o", "json", "--root", root]
    text = subprocess.run(command, capture_output=True, check=False).stdout.decode("utf-8")
    costs, pages = zip(*(_report(json.loads(text), work, count) for count in (SMALL, LARGE)), strict=True)
    sizes = [page.stat().st_size for page in pages]
    each = (sizes[1] - sizes[0]) / (LARGE - SMALL)
    seconds = (costs[1].cpu - costs[0].cpu) / (LARGE - SMALL)
    memory = " → ".join(f"{cost.largest / 2**20:.0f} MiB" for cost in costs)
    seen = opened(pages[1])
    rows = [
        Row(f"report over {SMALL:,} and over {LARGE:,} hosts: CPU", f"{seconds * 1000:.1f} ms a host", "", True),
        Row("… memory", memory, "", True),
        Row("… page", f"{sizes[0] / 2**20:.1f} MiB → {sizes[1] / 2**20:.1f} MiB ({each:.0f} bytes a host)", "", True),
    ]
    if seen:
        figure = f"{seen.shown:.1f} s, {seen.filter:.2f} s, {seen.sort:.2f} s, {seen.frame * 1000:.0f} ms"
        rows.append(Row(f"… of {LARGE:,} in Chromium: load, filter, sort, frame while scrolling", figure, "", True))
    return rows


def _report(document: dict[str, Any], work: Path, count: int) -> tuple[Cost, Path]:
    """The report as a page over hosts that all have this validation, as a timer on each leaves it."""
    folder, page = work / f"pulled-{count}", work / f"report-{count}.html"
    hosts = inventory(work / f"pulled-{count}.ini", ((name, work) for name in names(count)))
    for name in names(count):
        answer = {"host": name, "phase": "validate", "outcome": "ok", "exit_code": 0, "verdict": document["verdict"]}
        (folder / name).mkdir(parents=True)
        (folder / name / "validate.json").write_text(json.dumps({**document, "fleet": answer}))
    words = ["report", "--verb", "validate", "-i", hosts, "--results", folder, "-o", "html"]
    cost = measure([BIN / "hosttune", "fleet", *words], codes=(0, 1), output=page)
    shutil.rmtree(folder)
    return cost, page
