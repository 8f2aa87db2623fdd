"""A hundred hosts and a thousand through discover, plan, validate, report: cost a host, memory, size."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rows import Row

from fleet.hosts import BIN, EXAMPLE, INTENT, ROOT, inventory, names, unpack
from fleet.meter import Cost, Failed, measure
from fleet.page import LIMIT

LARGE = int(os.environ.get("FLEET_HOSTS", "1000"))
SMALL = max(4, LARGE // 10)
FORKS = 4
VERBS = ("discover", "plan", "validate")
MORE_WORDS: dict[str, tuple[object, ...]] = {"plan": ("--intent", INTENT), "validate": ("--level", 0)}
HOST_COST = 0.15  # how much dearer a host may be in the large fleet
MEMORY = 0.10  # how much larger the controller's processes may be
MEMORY_LEAST = 8 << 20  # what is not told from noise


@dataclass(frozen=True)
class Course:
    """One fleet through all phases: the cost of each, where its results lie, its report."""

    hosts: int
    costs: dict[str, Cost]
    results: Path
    page: Path

    def cost(self, field: str) -> float:
        """Seconds of all phases together (`wall` or `cpu`)."""
        return sum(float(getattr(cost, field)) for cost in self.costs.values())

    def most(self, field: str) -> int:
        """The most that any phase took (`largest` or `together`, bytes)."""
        return max(int(getattr(cost, field)) for cost in self.costs.values())


def scale(work: Path) -> list[Row]:
    """Both fleets, and how the second grew over the first."""
    roots = list(variants(work))
    small = course(work / "small", SMALL, roots)
    large = course(work / "large", LARGE, roots)
    return [*costs(small, large), *memory(small, large), *sizes(small, large)]


def variants(work: Path) -> Iterator[Path]:
    """Roots that hosts share, for these phases only read: 47 as they should be, one with a link that lost lanes, one
    with a link that lost speed, one whose GPUs nobody can say the node of."""
    good = unpack(EXAMPLE, work / "good")
    yield from [good] * 47
    for number, (name, text) in enumerate(
        (("current_link_width", "8\n"), ("current_link_speed", "16.0 GT/s PCIe\n"), ("numa_node", "-1\n"))
    ):
        root = work / f"variant-{number}"
        shutil.copytree(good, root, symlinks=True, copy_function=os.link)
        path = root / "sys/bus/pci/devices/0000:41:00.0" / name
        path.unlink()
        path.write_text(text)
        yield root


def course(work: Path, count: int, roots: list[Path]) -> Course:
    """One fleet of `count` hosts through the phases by `hosttune fleet`, and its report."""
    work.mkdir()
    hosts = inventory(work / "hosts.ini", ((name, roots[i % len(roots)]) for i, name in enumerate(names(count))))
    results, page = work / "results", work / "report.html"
    costs = {}
    for verb in VERBS:
        words: list[object] = [verb, "-i", hosts, "--results", results, "--forks", str(FORKS), "-o", "json"]
        words += MORE_WORDS.get(verb, ())
        costs[verb] = measure(
            [BIN / "hosttune", "fleet", *words], cwd=ROOT, codes=(0, 1), memory=True, output=work / f"{verb}.json"
        )
        whole(results, verb, count)
    costs["report"] = measure(
        [BIN / "hosttune", "fleet", "report", "--results", results, "-o", "html"], codes=(0, 1), memory=True,
        output=page,
    )  # fmt: skip
    return Course(count, costs, results, page)


def whole(results: Path, verb: str, count: int) -> None:
    """Whether every host's document of a phase is there and whole. Raises Failed."""
    schema = {"discover": "hosttune.host/v1", "plan": "hosttune.plan/v1", "validate": "hosttune.validation/v1"}[verb]
    answered = 0
    for path in results.glob(f"*/{verb}.json"):
        document = json.loads(path.read_bytes())
        answered += document["schema"] == schema and document["fleet"]["outcome"] in ("ok", "no")
    if answered != count:
        raise Failed(f"{verb}: {answered} of {count} hosts answered")


def costs(small: Course, large: Course) -> list[Row]:
    """Seconds a host in both, phase by phase, and how much dearer a host is in the large fleet."""
    rows = []
    for verb in large.costs:
        of = [f"{course.costs[verb].wall / course.hosts:.3f} s" for course in (small, large)]
        cpu = [f"{course.costs[verb].cpu / course.hosts:.3f} s" for course in (small, large)]
        rows.append(Row(f"{verb}: wall a host, CPU a host", f"{' → '.join(of)}, {' → '.join(cpu)}", "", True))
    for field in ("wall", "cpu"):
        per = [course.cost(field) / course.hosts for course in (small, large)]
        more = per[1] / per[0] - 1
        what = f"all phases, {field} a host: {large.hosts:,} hosts over {small.hosts:,}"
        rows.append(
            Row(what, f"{per[0]:.2f} s → {per[1]:.2f} s: {more:+.0%}", f"≤ +{HOST_COST:.0%}", more <= HOST_COST)
        )
    return rows


def memory(small: Course, large: Course) -> list[Row]:
    """The largest process, and all of them together, in both."""
    rows = []
    for what, field in (
        ("the largest process", "largest"),
        ("all processes together, shared pages in each", "together"),
    ):
        one, other = small.most(field), large.most(field)
        holds = other - one <= max(MEMORY * one, MEMORY_LEAST)
        figure = f"{one / 2**20:.0f} MiB → {other / 2**20:.0f} MiB"
        name = f"memory from {small.hosts:,} to {large.hosts:,} hosts: {what}"
        rows.append(Row(name, figure, f"flat: ≤ +{MEMORY:.0%} or {MEMORY_LEAST >> 20} MiB", holds))
    return rows


def sizes(small: Course, large: Course) -> list[Row]:
    """Bytes of the report and of the results on disk."""
    pages = [course.page.stat().st_size for course in (small, large)]
    kept = sum(path.stat().st_size for path in large.results.rglob("*") if path.is_file())
    return [
        Row(
            f"report of {large.hosts:,} hosts, one HTML file",
            f"{pages[1] / 1e6:.1f} MB ({(pages[1] - pages[0]) / (large.hosts - small.hosts) / 1024:.1f} KiB a host)",
            f"≤ {LIMIT / 1e6:.0f} MB",
            pages[1] <= LIMIT,
        ),
        Row("results on disk a host", f"{kept / large.hosts / 1024:.0f} KiB", "", True),
    ]
