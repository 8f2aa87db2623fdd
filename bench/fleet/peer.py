"""The frozen handwritten playbook and hosttune's own, on the same simulated hosts with equal forks."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rows import Row

from fleet.hosts import BIN, EXAMPLE, INTENT, ROOT, inventory, names, scratch, unpack
from fleet.meter import Cost, Failed, in_turn, measure

HANDWRITTEN = ROOT / "bench/fleet/handwritten/handwritten.yml"
SAME = ROOT / "bench/fleet/same.yml"
APPLY = ROOT / "playbooks/apply.yml"
HOSTS = 16
FORKS = 4
ROUNDS = 2
LEAST, AIM = 10, 25
TASKS = 41


def against_handwritten(work: Path) -> list[Row]:
    """Wall and CPU of both, medians of runs in turn, each on fresh hosts; what both did is compared."""
    written = len(re.findall(r"^    - name:", HANDWRITTEN.read_text("utf-8"), re.MULTILINE))
    if written != TASKS:
        raise Failed(f"{HANDWRITTEN} has {written} tasks: it is frozen at {TASKS}")
    both = Both(unpack(EXAMPLE, work / "base"), work)
    theirs, ours, whole = in_turn(ROUNDS, both.handwritten, both.same, both.whole)
    what = f"{TASKS} ordinary tasks on {HOSTS} hosts, {FORKS} forks: wall, CPU"
    return [
        Row(what, f"{theirs.wall:.1f} s, {theirs.cpu:.1f} s", "", True),
        *_rows("the same by two phases: apply (facts, plan, settings, read-back), validate", theirs, ours, least=LEAST),
        *_rows("more by `apply.yml`: it validates before as well, has hooks, and gates", theirs, whole),
    ]


def _rows(what: str, theirs: Cost, ours: Cost, *, least: float = 0) -> list[Row]:
    """The figures of one side, and how many times less that is; `least` 0: no bound, for it does more."""
    wall, cpu = theirs.wall / ours.wall, theirs.cpu / ours.cpu
    bound = f"≥ {least}× (aim {AIM}×)" if least else ""
    return [
        Row(what, f"{ours.wall:.1f} s, {ours.cpu:.1f} s", "", True),
        Row("… less wall", f"{wall:.1f}×", bound, wall >= least),
        Row("… less CPU", f"{cpu:.1f}×", bound, cpu >= least),
    ]


class Both:
    """Handwritten and hosttune's, each call on roots of its own that are gone afterwards."""

    def __init__(self, base: Path, work: Path) -> None:
        self._base, self._work = base, work

    def handwritten(self) -> Cost:
        """41 tasks a host."""
        return self._on_fresh_hosts(HANDWRITTEN)

    def same(self) -> Cost:
        """The same by hosttune's module, two tasks a host."""
        return self._on_fresh_hosts(SAME)

    def whole(self) -> Cost:
        """hosttune's own playbook, in one wave as the others."""
        return self._on_fresh_hosts(APPLY)

    def _on_fresh_hosts(self, playbook: Path) -> Cost:
        with tempfile.TemporaryDirectory(dir=self._work) as folder:
            roots = {name: scratch(self._base, Path(folder, name)) for name in names(HOSTS)}
            hosts = inventory(Path(folder, "hosts.ini"), roots.items())
            given = json.dumps({
                "hosttune_results": f"{folder}/results", "hosttune_intent": str(INTENT), "hosttune_waves": ["100%"],
                "handwritten_results": folder, "hosttune_hosts": "all", "hosttune_report": False,
            })  # fmt: skip
            command = [BIN / "ansible-playbook", "-i", hosts, "-f", str(FORKS), "-e", given, playbook]
            cost = measure(command, cwd=ROOT, output=self._work / "played.txt")
            self._same(roots)
        return cost

    @staticmethod
    def _same(roots: dict[str, Path]) -> None:
        """Whether a playbook really left every host as the intent wants it. Raises Failed."""
        for name, root in roots.items():
            found = {what: check(root) for what, check in _DONE.items()}
            if not all(found.values()):
                raise Failed(f"{name} is not as the intent wants it: {found}")
            shutil.rmtree(root)


def _lines(root: Path, pattern: str) -> list[str]:
    return [path.read_text().strip() for path in sorted(root.glob(pattern))]


_CPU = "sys/devices/system/cpu/cpu[0-9]*"
_NODE = "sys/devices/system/node/node0"
_DONE: dict[str, Callable[[Path], bool]] = {
    "pages": lambda root: (
        int(_lines(root, "sys/devices/system/node/node0/hugepages/*1048576kB/nr_hugepages")[0]) > 1000
    ),
    "driver": lambda root: _lines(root, "sys/bus/pci/devices/*/driver_override").count("vfio-pci") == 4,
    "preference": lambda root: _lines(root, f"{_CPU}/cpufreq/energy_performance_preference").count("performance") == 94,
    "latency": lambda root: _lines(root, f"{_CPU}/power/pm_qos_resume_latency_us").count("10") == 94,
    "balancing": lambda root: _lines(root, "proc/sys/kernel/numa_balancing") == ["0"],
    "after a reboot": lambda root: len(_lines(root, "etc/udev/rules.d/10-*")) == 1,
}
