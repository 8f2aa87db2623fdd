"""A running guest that is changed: what only its present run holds waits in the journal, and the first look after its
end does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import boardroots
import pytest
from applyroots import BOOT_ID, Root, copied
from secondday import Day, check_back

from hosttune.machine.scratch import Scratch
from hosttune.transaction.keeping import keep
from hosttune.transaction.site import site_of

A = {"name": "a", "gpus": 2, "memory": "64GiB", "vcpus": 16}
B = {"name": "b", "gpus": 1, "memory": "32GiB", "vcpus": 8}
LESS = {**A, "gpus": 1, "memory": "32GiB", "vcpus": 8}
DOMSTATE = ".hosttune/commands/virsh-domstate-a"
PROCESSES, STAT = ".hosttune/commands/qemu-processes", "proc/1000/stat"
LIST = "var/lib/hosttune/after-stop"
POOL = "sys/devices/system/node/node0/hugepages/hugepages-1048576kB/"


pristine = boardroots.fewer_cpus


def written(day: Day) -> tuple[str, dict[str, str]]:
    """The pages, and the drivers of the guest's devices of the first day."""
    return day.root.get(POOL + "nr_hugepages"), {one: day.root.driver(one) for one in day.log}


@pytest.fixture
def changed(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Day]:
    """A guest with half its memory and devices, that runs with all of them."""
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "outside"))
    with copied(pristine, tmp_path / "root") as root:
        day = Day(Root(root.path), pristine)
        day.intent = {"version": 1, "guests": [A, B]}
        day.apply().ended()
        day.log = [host for host, _ in day.places()["a"].devices]
        day.root.put(DOMSTATE, "running\n")
        day.root.put(PROCESSES, "1000 a\n")
        began(day, 4711)
        day.root.put(POOL + "free_hugepages", str(int(day.root.get(POOL + "free_hugepages")) - 64))
        before = written(day)
        day.intent = {"version": 1, "guests": [LESS]}
        result = day.apply().ended()
        assert written(day) == before
        assert result["pending"] == ["a"]
        assert any("virsh shutdown a, then hosttune apply --start" in (one["why"] or "") for one in result["entries"])
        yield day


def began(day: Day, ticks: int) -> None:
    """The guest's process, and when it started (proc(5), stat, field 22)."""
    day.root.put(STAT, f"1000 (qemu-system-x86) S {'0 ' * 18}{ticks} 0\n")


def waits(day: Day) -> set[str]:
    """The kinds of what waits for the end of a run."""
    entries = day("status", "-o", "json").document["entries"]
    return {
        one["action"].partition(":")[0]
        for one in entries
        if one["outcome"] == "pending" and "irqbalance" not in one["why"]
    }


def by_apply(day: Day) -> None:
    assert day("apply", "--yes").code == 0  # no plan was saved: the one that was applied last


def by_intent(day: Day) -> None:
    day.apply().ended()


def by_boot(day: Day) -> None:
    assert day("apply", "--boot").code == 0


def by_keep(day: Day) -> None:
    found = keep(site_of(Scratch(str(day.root.path))), lambda line: None)
    assert (found.refused, {one.outcome for one in found.settings} - {"corrected"}) == (None, set())


@pytest.mark.sweep(most=3)
@pytest.mark.parametrize("way", [by_apply, by_intent, by_boot, by_keep])
def test_the_first_look_after_its_end_does_it(changed: Day, way: Callable[[Day], None]) -> None:
    assert waits(changed) == {
        "hugepages", "fabric-partition", "driver", "gpu-persistence", "energy-preference", "irqbalance-ban",
    }  # fmt: skip
    before = written(changed)
    if way is not by_intent:  # a scratch root has one definition of a guest: a plan would take it for that of the run
        way(changed)
    assert (written(changed), changed.root.get(LIST)) == (before, "a")
    for name in (DOMSTATE, PROCESSES, STAT):
        (changed.root.path / name).unlink()
    (changed.root.path / STAT).parent.rmdir()
    changed.root.put(POOL + "free_hugepages", changed.root.get(POOL + "nr_hugepages"))
    way(changed)
    pages, drivers = written(changed)
    assert (pages, sorted(drivers.values())) == ("64", ["nvidia", "vfio-pci"])
    assert (waits(changed), changed.root.get(LIST)) == (set(), "")
    again = [one["action"] for one in changed.apply().ended()["entries"] if one["outcome"] == "done"]
    assert set(again) <= {"irqbalance-ban:irqbalance"}  # the planner says it for the guests that there are now
    check_back(changed)


@pytest.mark.sweep(most=3)
@pytest.mark.parametrize("way", [by_apply, by_boot, by_keep])
def test_a_guest_that_was_restarted_has_ended_its_run(changed: Day, way: Callable[[Day], None]) -> None:
    """It runs at every look, by another process: by its new definition."""
    way(changed)
    assert written(changed)[0] == "96"
    began(changed, 9000)
    changed.root.put(POOL + "free_hugepages", str(int(changed.root.get(POOL + "nr_hugepages")) - 32))
    assert "its guest has stopped" in changed("status").out
    way(changed)
    pages, drivers = written(changed)
    assert (pages, sorted(drivers.values())) == ("64", ["nvidia", "vfio-pci"])
    assert waits(changed) == set()


def test_after_a_reboot_the_new_values_are_set(changed: Day) -> None:
    """The reboot has ended the run, and undone what it undoes."""
    changed.root.put(BOOT_ID, "11111111-2222-4333-8444-555555555555\n")
    changed.root.put(POOL + "nr_hugepages", "0\n")
    changed.root.put(POOL + "free_hugepages", "0\n")
    assert changed("apply", "--boot").code == 0
    pages, drivers = written(changed)
    assert (pages, sorted(drivers.values())) == ("64", ["nvidia", "vfio-pci"])
    assert waits(changed) == set()
    (changed.root.path / DOMSTATE).unlink()
    assert changed("revert", "--yes").code == 0
    assert "nothing in force" in changed("status").out
