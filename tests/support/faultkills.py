"""Kill -9 at every point of an apply, a revert and a recover, and what must hold after each. Tests ask for a Tally."""

from __future__ import annotations

import ctypes  # here, so that no child of an engine has to import it again
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from faultkinds import EXAMPLES, Example, host, together
from faultlab import (
    Ended,
    Faults,
    Job,
    applied_state,
    difference,
    fresh_root,
    kill,
    kill_child,
    quiet,
    run_forked,
    site_on,
    transactions,
    tree_of,
)
from sweeps import sample

from hosttune.errors import HosttuneError
from hosttune.hypervisor.disk import CopiedDisk
from hosttune.journal import Record
from hosttune.model.result import Result
from hosttune.transaction import ApplyOptions, apply_plan, recover, revert
from hosttune.transaction.site import Site
from hosttune.transaction.steps import setting_of_record

assert ctypes
WHOLE_HOST, EVERY = "a whole host", 7
MOST = 2  # kills of one series in a sample
MOST_OF_A_HOST = 8
# Where the boot unit goes along; elsewhere hosttune is made to lie at a path that no unit can name, for it would be
# the same points over and over.
WITH_UNIT = ("hugepages", "thp", "driver", "sriov-vfs from some", WHOLE_HOST)
Tree = dict[str, tuple[int, bytes]]


@dataclass
class Tally:
    """Kills and what came of them. `wrong`: what must not be, each with its point."""

    points: int = 0
    kills: int = 0
    old_or_new: int = 0
    between: int = 0
    recovered: int = 0
    leftovers: int = 0
    between_at: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Sum up."""
        for name in ("points", "kills", "old_or_new", "between", "recovered", "leftovers"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.wrong += other.wrong

    @property
    def line(self) -> str:
        """The figures."""
        return (
            f"{self.points} points, {self.kills} kills: {self.old_or_new} at old or new, {self.between} between as"
            f" declared; {self.recovered} recovered"
        )


def options_of(example: Example) -> ApplyOptions:
    """All that the example's plan asks for, allowed."""
    return ApplyOptions(start=example.start, disrupt=frozenset(target for _, target, _ in example.wants))


def applying(example: Example) -> Job:
    """`apply` of an example."""

    def job(site: Site) -> tuple[Result, int]:
        return apply_plan(site, example.plan, options_of(example), host, lambda todo: True, quiet)

    return job


def recovering(example: Example) -> Job:
    """`recover`; a guest that was just started may be ended."""
    return lambda site: recover(site, quiet, disrupt=frozenset(guest.name for guest in example.guests))


def reverting(example: Example) -> Job:
    """`revert`."""
    return lambda site: revert(site, quiet)


@dataclass(frozen=True)
class Lab:
    """One example: its root, the tree before, and the steps that its apply takes (with what they read afterwards)."""

    example: Example
    root: Path
    original: Tree
    applied: Tree
    records: tuple[Record, ...]

    def anew(self) -> None:
        """The root as it was before anything."""
        fresh_root(self.root, self.example.files, self.example.links)


def lab_of(example: Example, root: Path) -> Lab:
    """Apply an example once without any fault."""
    fresh_root(root, example.files, example.links)
    original = tree_of(root)
    result, code = applying(example)(site_on(root))
    assert code == 0, (example.name, [entry for entry in result.entries if entry.outcome != "done"])
    records = transactions(root)[-1].records
    assert all(record.outcome == "done" for record in records), records
    return Lab(example, root, original, tree_of(root), records)


def shut_off(root: Path) -> None:
    """What an operator does before a revert: end the guests."""
    for path in (root / ".hosttune/commands").glob("virsh-domstate-*"):
        path.unlink()


# --- what must hold ------------------------------------------------------------------------------------------


def judge(lab: Lab, tally: Tally, at: int, where: str) -> None:
    """After a kill: every setting old, new, or between as it declares; then `recover` brings all back."""
    tally.kills += 1
    wrong: list[str] = []
    try:
        found = applied_state(lab.root, lab.records)
        wrong += [text for text in found if text not in ("old", "new", "between")]
        if "between" in found:
            tally.between += 1
            tally.between_at.append(at)
        elif not wrong:
            tally.old_or_new += 1
        wrong += _brought_back(lab, tally, found)
    except HosttuneError as error:
        wrong.append(f"{type(error).__name__}: {error}")
    if not wrong:
        tally.recovered += 1
    tally.wrong += [f"{lab.example.name}: killed at {at}, {where}: {text}" for text in wrong]


def _brought_back(lab: Lab, tally: Tally, found: Iterable[str]) -> Iterable[str]:
    known = transactions(lab.root)
    finished = any(one.state in ("applied", "kept") for one in known) and not any(
        one.goes_on and one.records for one in known
    )
    lasting = [setting_of_record(record).undone_later for record in lab.records]
    if finished and {text for text, lasts in zip(found, lasting, strict=True) if lasts} != {"new"}:
        yield f"finished, yet {found}"
    _, code = recovering(lab.example)(site_on(lab.root))
    if code != 0:
        yield f"recover exits {code}"
    if finished:
        shut_off(lab.root)
        _, code = reverting(lab.example)(site_on(lab.root))
        if code != 0:
            yield f"revert exits {code}"
    yield from back_at_original(lab, tally)


def back_at_original(lab: Lab, tally: Tally | None = None) -> Iterable[str]:
    """What is not as it was before anything."""
    after = applied_state(lab.root, lab.records)
    if set(after) != {"old"}:
        yield f"not back: {after}"
    disks = {record.target for record in lab.records if record.kind == CopiedDisk.kind}  # never deleted
    left = difference(lab.original, {path: file for path, file in tree_of(lab.root).items() if path not in disks})
    if tally is not None and left and all(text.endswith(".hosttune-new is left") for text in left):
        tally.leftovers += 1
        left = []
    yield from left
    yield from (f"transaction {one.header.number} is {one.state}" for one in transactions(lab.root) if one.is_open)


# --- series --------------------------------------------------------------------------------------------------


def kills_while(
    lab: Lab, job: Job, begin: Iterable[Job], *, child: bool = False, every: int = 1, most: int = sys.maxsize
) -> Tally:
    """Kill `job` at its points, one a run; `begin` is done before, without a fault.

    `child`: kill only the child that the engine forked. `every`: only each so manyth point; of these at most `most`, in
    a full sweep all. What must hold is judged after each kill.
    """
    tally = Tally()
    lab.anew()
    for one in begin:
        one(site_on(lab.root))
    start = lab.root.with_name(f"{lab.root.name}-start")
    shutil.rmtree(start, ignore_errors=True)
    lab.root.rename(start)

    def run(at: int) -> Ended:
        shutil.rmtree(lab.root, ignore_errors=True)
        shutil.copytree(start, lab.root, symlinks=True)
        return run_forked(lab.root, job, Faults(at=at, act=kill_child if child else kill, inside=child))

    whole = run(0)
    tally.points = whole.count
    for at in sample(lab.example.name, range(1, whole.count + 1, every), most):
        killed = run(at)
        assert killed.fired, f"{lab.example.name}: no point {at} of {whole.count}"
        if child and killed.code != 1:
            tally.wrong.append(f"{lab.example.name}: child killed at {killed.fired}: exits {killed.code}")
        judge(lab, tally, at, killed.fired)
    if whole.code != 0:
        tally.wrong.append(f"{lab.example.name}: a run without a fault exits {whole.code}")
    if whole.strays:
        tally.wrong.append(f"{lab.example.name}: {whole.strays} changes of files through no System")
    return tally


def all_kills(lab: Lab) -> Tally:
    """An example's kills: while it is applied (engine, then child alone), reverted, and recovered from some cuts."""
    applied = kills_while(lab, applying(lab.example), (), most=MOST)
    total = Tally()
    reverted = kills_while(lab, reverting(lab.example), (applying(lab.example), ended), most=MOST)
    cuts = {applied.points - 2, *applied.between_at[len(applied.between_at) // 2 :][:1]}  # all but the end; half done
    series = [
        applied,
        kills_while(lab, applying(lab.example), (), child=True, most=MOST),
        reverted,
        *(kills_while(lab, recovering(lab.example), (killed_at(lab, at),), most=MOST) for at in sorted(cuts)),
    ]
    for one in series:
        total.add(one)
    return total


def ended(site: Site) -> tuple[Result, int]:
    """What an operator does before a revert."""
    shut_off(Path(site.system.origin))
    return Result(verb="apply"), 0


def killed_at(lab: Lab, at: int) -> Job:
    """An apply that is killed at its nth point."""

    def job(site: Site) -> tuple[Result, int]:
        run_forked(lab.root, applying(lab.example), Faults(at=at, act=kill))
        return Result(verb="apply"), 0

    return job


# --- as a program: its own small process forks faster than pytest's ------------------------------------------------


def whole_host() -> Example:
    """Most kinds in one transaction; not two ways to the same thing, and no driver taken from a GPU that is set."""
    guests = {"guest redefined", "guest-files", "adopted-guest", "live-affinity"}
    left_out = guests | {"aspm by registers", "irqbalance-ban", "virtual-function"}
    several = ("driver", "sriov-vfs", "kernel-argument", "irq-affinity", "sysctl beside")
    chosen = [one for name, one in EXAMPLES.items() if name not in left_out and not name.startswith(several)]
    return together(*chosen, EXAMPLES["kernel-argument by GRUB"])


def main() -> None:
    """For each line of stdin, an example's name, a JSON object on a line: its name, its kinds and its Tally."""
    folder = Path(tempfile.mkdtemp(prefix="hosttune-faults-", dir=memory_folder()))
    try:
        for line in sys.stdin:
            name = line.rstrip("\n")
            sys.argv[0] = "/opt/hosttune/bin/hosttune" if name in WITH_UNIT else "/opt/host tune/bin/hosttune"
            lab = lab_of(whole_host() if name == WHOLE_HOST else EXAMPLES[name], folder / "root")
            if name == WHOLE_HOST:
                tally = kills_while(lab, applying(lab.example), (), every=EVERY, most=MOST_OF_A_HOST)
            else:
                tally = all_kills(lab)
            kinds = sorted({record.kind for record in lab.records})
            print(json.dumps({"name": name, "kinds": kinds, "tally": asdict(tally)}), flush=True)
    finally:
        shutil.rmtree(folder)


def memory_folder() -> Path | None:
    """A file system in memory, where there is one: every kill writes a root anew."""
    folder = Path("/dev/shm")
    return folder if os.access(folder, os.W_OK) else None


if __name__ == "__main__":
    main()
