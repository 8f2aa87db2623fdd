"""The memory of running guests: read from /proc, moved in steps, proven, given back, or left for the next start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from faultkills import applying, lab_of, reverting
from faultkinds import EXAMPLES, LIVE, Example, host, together, with_memory
from faultlab import fresh_root, quiet, site_on

from hosttune.errors import BadInput, Refused, Unreadable
from hosttune.hypervisor.memory import LiveMemory, running_memory
from hosttune.model.guestmemory import RunningMemory, Step, read_step
from hosttune.model.result import Entry, Result
from hosttune.scratch import Scratch
from hosttune.transaction import Options, apply_plan, recover, rehearse_apply, revert, status
from hosttune.transaction.site import Site

EXAMPLE = EXAMPLES["live-memory"]
WANT = "cell.0=0 cell.1=1 process=4000.4711"
BEFORE = "cell.0=2048KiB@1:4 cell.1=4KiB@0:4000,1:1000 process=4000.4711"
AFTER = "cell.0=2048KiB@0:4 cell.1=4KiB@1:5000 process=4000.4711"
NAMED = Options(disrupt=frozenset({"big"}))
NODE = "sys/devices/system/node/node{}"
NUMA_MAPS, DEFINITION = "proc/4000/numa_maps", ".hosttune/commands/virsh-dumpxml-big"


def root_of(path: Path, example: Example = EXAMPLE) -> Path:
    return fresh_root(path / "root", example.files, example.links)


def apply(
    root: Path, options: Options = NAMED, system: Scratch | None = None, example: Example = EXAMPLE
) -> tuple[Result, int]:
    site = site_on(root)
    site = site if system is None else Site(system, site.store, site.boot_id, site.hostname)
    return apply_plan(site, example.plan, options, host, lambda todo: True, quiet)


def only(result: Result) -> Entry:
    (entry,) = result.entries
    return entry


def now(root: Path) -> str:
    """Where the memory is."""
    found = LiveMemory.of("big").read(Scratch(str(root)))
    assert isinstance(found, str)
    return found


def edit(root: Path, path: str, old: str, new: str) -> None:
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new))


class Changed(Scratch):
    """A scratch root in which something happens at a step: `act` returns the step that is made instead, or None."""

    def __init__(self, root: Path, act: Callable[[int, Step], Step | None]) -> None:
        super().__init__(str(root))
        self.calls = 0
        self.act = act

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        self.calls += 1
        step = self.act(self.calls, read_step(value))
        if step is not None:
            super().tell(name, str(step), live)


# --- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["cell.0=1", BEFORE, "", None, 4, f"{WANT} ", "vcpu.0=1 process=1.2"])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(BadInput, match="not the nodes of cells") as refused:
        LiveMemory.of("vm").check(value)
    assert refused.value.where == "action live-memory:vm"


def test_other_targets_are_refused() -> None:
    with pytest.raises(BadInput, match="is not a guest name"):
        LiveMemory.of("a,b")


@pytest.mark.parametrize(
    ("live", "want", "agrees"),
    [
        (AFTER, WANT, True),
        (BEFORE, WANT, False),
        (None, WANT, False),
        (AFTER.replace("4711", "4712"), WANT, False),  # another process is not the one that was planned
        (AFTER.replace("4711", "4712"), BEFORE, True),  # of a process that has ended nothing is left to put back
        (AFTER, BEFORE, False),
        (BEFORE.replace("4000,", "4100,"), BEFORE, True),  # pages that came
        (BEFORE.replace("4000,", "3900,"), BEFORE, True),  # pages that went
        ("cell.0=2048KiB@0:4 process=4000.4711", WANT, False),
    ],
)
def test_what_agrees(live: str | None, want: str, agrees: bool) -> None:
    assert LiveMemory.of("big").agrees(live, want) is agrees


# --- apply and revert --------------------------------------------------------------------------------------------


def test_each_cell_goes_to_its_node_and_as_many_pages_go_back(tmp_path: Path) -> None:
    lab = lab_of(EXAMPLE, tmp_path / "root")
    assert now(lab.root) == AFTER
    assert "7f0000000000 default anon=300 dirty=300 N0=100 N1=200" in (lab.root / NUMA_MAPS).read_text()
    result, code = applying(EXAMPLE)(site_on(lab.root))
    assert (code, result.changed, only(result).outcome) == (0, False, "already")
    assert status(site_on(lab.root))[1] == 0
    result, code = reverting(EXAMPLE)(site_on(lab.root))
    assert (code, only(result).outcome, now(lab.root)) == (0, "reverted", BEFORE)


def test_a_rehearsal_lists_the_steps(tmp_path: Path) -> None:
    root = root_of(tmp_path)
    result, _ = rehearse_apply(site_on(root), EXAMPLE.plan, NAMED, host)
    assert result.writes == (
        'call  move-pages-big <- "7f1000000000-7f1000800000 1->0 4"',
        'call  move-pages-big <- "7f2000000000-7f2040000000 0->1 4000"',
    )
    assert now(root) == BEFORE


def test_progress_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    apply_plan(site_on(root_of(tmp_path)), EXAMPLE.plan, NAMED, host, lambda todo: True, said.append)
    assert "  cell 0 of guest big, node 1 to 0: 8 MiB of 8 MiB moved" in said


def test_memory_moves_after_the_threads(tmp_path: Path) -> None:
    """What the guest touches after that is near them, and the kernel does not move it away again. Also on a revert."""
    assert EXAMPLE.plan.actions[0].kind == "live-memory"
    example = together(EXAMPLE, LIVE)
    files = {**example.files, **{path: text for path, text in EXAMPLE.files.items() if "commands" in path}}
    for name in (".hosttune/commands/virsh-list", ".hosttune/commands/qemu-processes"):
        files[name] = f"{LIVE.files[name]!s}{str(EXAMPLE.files[name]).splitlines()[-1]}\n"
    root = fresh_root(tmp_path / "root", files, {})
    names = [target for _, target, _ in example.wants]
    result, code = apply(root, Options(disrupt=frozenset(names)), example=example)
    assert code == 0
    order = [entry.action.partition(":")[0] for entry in result.entries if entry.outcome == "done"]
    assert order == [*["live-affinity"] * 3, "live-memory"]
    said: list[str] = []
    assert revert(site_on(root), said.append)[1] == 0
    assert [text.partition(" ")[0] for text in said if text.endswith(": reverted")] == ["live-affinity", "live-memory"]


# --- never -------------------------------------------------------------------------------------------------------


def test_without_its_name_in_disrupt_it_waits_and_the_rest_goes_on(tmp_path: Path) -> None:
    example = together(EXAMPLES["ksm"], EXAMPLE)
    root = root_of(tmp_path, example)
    result, code = apply(root, Options(disrupt=frozenset({"other"})), example=example)
    said = {
        entry.action: (entry.outcome, entry.why) for entry in result.entries if entry.action.startswith(("ksm", "l"))
    }
    assert code == 0
    assert said["live-memory:big"] == ("pending", "it disturbs guest big: --disrupt big")
    assert said["ksm:/sys/kernel/mm/ksm/run"][0] == "done"
    assert now(root) == BEFORE


def vfio(root: Path) -> None:
    (root / "proc/4000/fd").mkdir()
    (root / "dev/vfio").mkdir(parents=True)
    (root / "dev/vfio/12").touch()
    (root / "proc/4000/fd/31").symlink_to("../../../dev/vfio/12")


def hostdev(root: Path) -> None:
    place = "<address domain='0x0000' bus='0x41' slot='0x00' function='0x0'/>"
    device = f"<hostdev mode='subsystem' type='pci'><source>{place}</source></hostdev>"
    edit(root, DEFINITION, "</domain>", f"<devices>{device}</devices></domain>")


def put(path: str, text: str | None) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        if text is None:
            (root / path).unlink()
        else:
            (root / path).write_text(text)

    return change


def edited(path: str, old: str, new: str) -> Callable[[Path], None]:
    return lambda root: edit(root, path, old, new)


NEVER: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "a device that it has open": (
        vfio, "/dev/vfio/12 is assigned to it and holds its memory: it moves at its next start",
    ),
    "a device of its definition": (hostdev, "0000:41:00.0 is assigned to it and holds its memory"),
    "private memory": (
        edited(DEFINITION, "</domain>", "<launchSecurity type='sev-snp'/></domain>"), "its memory is private",
    ),
    "a cpuset": (
        edited("proc/4000/task/4000/status", "Mems_allowed_list:\t0-1", "Mems_allowed_list:\t0"),
        "its control group allows memory of node 0 only (numatune strict), not of 1: it moves at its next start",
    ),
    "an unknown cpuset": (
        edited("proc/4000/task/4000/status", "Mems_allowed_list", "x"), "it has no Mems_allowed_list",
    ),
    "another process": (
        edited("proc/4000/stat", "4711", "4712"), "it was started again since it was planned: plan again",
    ),
    "other cells": (
        edited(DEFINITION, "<cell id='0' cpus='0' memory='8192' unit='KiB'/>", ""), "it has other cells than planned",
    ),
    "too few huge pages": (
        put(f"{NODE.format(0)}/hugepages/hugepages-2048kB/free_hugepages", "3\n"),
        "node 0 has room for 3 pages of 2 MiB, and 4 have to move there",
    ),
    "unknown huge pages": (
        put(f"{NODE.format(0)}/hugepages/hugepages-2048kB/free_hugepages", None), "the free huge pages of the node",
    ),
    "a full node": (
        edited(f"{NODE.format(1)}/meminfo", f"MemFree: {2 << 20}", "MemFree: 70000"), "node 1 has room for 1116 pages",
    ),
    "an unknown node": (put(f"{NODE.format(1)}/meminfo", None), "it has no line"),
    "a guest that ended": (
        put(".hosttune/commands/virsh-list", " Id   Name   State\n---\n -    big    shut off\n"), "it does not run",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
def test_nothing_is_written_where_it_must_not_move(tmp_path: Path, name: str) -> None:
    change, why = NEVER[name]
    root = root_of(tmp_path)
    change(root)
    memory = (root / NUMA_MAPS).read_text()
    system = Changed(root, lambda number, step: step)
    result, code = apply(root, system=system)
    assert (code, only(result).outcome, system.calls) == (0, "pending", 0)
    assert why in str(only(result).why)
    assert (root / NUMA_MAPS).read_text() == memory


def test_memory_that_cannot_be_told_apart_is_left_alone(tmp_path: Path) -> None:
    lines = ((0x7F1000000000, 64, "", "anon=5 dirty=5 N1=5", "4"), (0x7F2000000000, 64, "", "anon=5 dirty=5 N1=5", "4"))
    example = Example("alike", with_memory("big", 4000, {0: 64}, lines), EXAMPLE.wants, needed=False)
    root = root_of(tmp_path, example)
    system = Changed(root, lambda number, step: step)
    with pytest.raises(Unreadable, match="no name says which it is"):
        LiveMemory.of("big").read(system)
    result, code = apply(root, system=system, example=example)
    assert (code, only(result).outcome, system.calls) == (0, "failed", 0)
    found = running_memory(Scratch(str(root)), "big")
    assert found is not None
    assert (found.places, "no name says which it is" in str(found.stays)) == (None, True)


@pytest.mark.parametrize("consent", [False, True])
def test_the_memory_of_a_guest_of_another_manager_needs_consent(tmp_path: Path, consent: bool) -> None:
    from msgspec.structs import replace

    root = root_of(tmp_path)
    instance = "<metadata><n:instance xmlns:n='http://openstack.org/xmlns/libvirt/nova/1.1'/></metadata>"
    edit(root, DEFINITION, "<memory ", f"{instance}<memory ")
    with pytest.raises(Refused, match="OpenStack Nova manages guest 'big'"):
        apply(root)
    assert now(root) == BEFORE
    if consent:
        from adoptions import BY_HAND, adopted_by_hand

        adopted = replace(adopted_by_hand(BY_HAND, consent=True), name="big", managers=("OpenStack Nova",))
        from hosttune.transaction.adopting import refuse_unconsented

        refuse_unconsented(Scratch(str(root)), replace(EXAMPLE.plan, adoptions=(adopted,)))


# --- what moves by itself, or not at all ---------------------------------------------------------------------------


def test_pages_that_come_while_it_is_carried_out_are_moved_too(tmp_path: Path) -> None:
    root = root_of(tmp_path)

    def touched(number: int, step: Step) -> Step:
        if number == 2:
            edit(root, NUMA_MAPS, "anon=5000 dirty=5000 N0=4000", "anon=5007 dirty=5007 N0=4007")
        return step

    result, code = apply(root, system=Changed(root, touched))
    assert (code, only(result).outcome) == (0, "done")
    assert now(root) == AFTER.replace("5000", "5007")
    result, code = revert(site_on(root), quiet)
    assert (code, only(result).outcome, now(root)) == (0, "reverted", BEFORE.replace("1:1000", "1:1007"))


def test_what_does_not_move_is_reported_and_not_tried_again(tmp_path: Path) -> None:
    root = root_of(tmp_path)
    held = 40

    def partly(number: int, step: Step) -> Step | None:
        return step if step.pages == 4 else step._replace(pages=step.pages - held) if step.pages > held else None

    result, code = apply(root, system=Changed(root, partly))
    assert (code, only(result).outcome) == (0, "clamped")
    assert "40 of 4 KiB of cell 1 stay on node 0, not on 1" in str(only(result).why)
    system = Changed(root, partly)
    result, code = apply(root, system=system)
    assert (code, only(result).outcome, system.calls) == (0, "clamped", 0)
    assert status(site_on(root))[0].drift == ()
    result, code = revert(site_on(root), quiet)
    assert (code, only(result).outcome, now(root)) == (0, "reverted", BEFORE)


def test_nothing_moves_at_all(tmp_path: Path) -> None:
    root = root_of(tmp_path)
    result, code = apply(root, system=Changed(root, lambda number, step: None))
    assert (code, only(result).outcome, result.changed) == (0, "ignored", False)
    assert now(root) == BEFORE


def test_what_does_not_go_back_is_a_conflict_that_says_so(tmp_path: Path) -> None:
    root = root_of(tmp_path)
    assert apply(root)[1] == 0
    site = site_on(root)
    system = Changed(root, lambda number, step: step._replace(pages=step.pages - 3) if step.pages > 4 else None)
    result, code = revert(Site(system, site.store, site.boot_id, site.hostname), quiet)
    assert (code, only(result).outcome) == (1, "conflict")
    assert "4 of 2 MiB of cell 0 stay on node 0, not on 1" in str(only(result).why)
    assert str(only(result).why).endswith("hosttune revert --force tries again")
    assert result.open_transaction is None
    result, code = revert(site_on(root), quiet, force=True)
    assert (code, now(root)) == (0, BEFORE)


def test_a_revert_moves_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    root = root_of(tmp_path)
    assert apply(root)[1] == 0
    put(f"{NODE.format(1)}/hugepages/hugepages-2048kB/free_hugepages", "0\n")(root)
    result, code = revert(site_on(root), quiet)
    assert code == 1
    assert "4 of 2 MiB of cell 0 stay on node 0, not on 1" in str(only(result).why)
    assert now(root) == BEFORE.replace("@1:4", "@0:4")


def test_what_another_program_has_moved_since_is_a_conflict(tmp_path: Path) -> None:
    root = root_of(tmp_path)
    assert apply(root)[1] == 0
    edit(root, NUMA_MAPS, "N1=5000", "N1=2500 N2=2500")
    assert status(site_on(root))[1] == 1
    result, code = revert(site_on(root), quiet)
    assert (code, only(result).outcome) == (1, "conflict")
    assert now(root) == AFTER.replace("1:5000", "1:2500,2:2500")


def test_what_the_kernel_has_moved_back_since_is_drift_and_no_conflict(tmp_path: Path) -> None:
    """Automatic NUMA balancing moves pages to the CPUs that use them: between what was and what was made of it."""
    root = root_of(tmp_path)
    assert apply(root)[1] == 0
    edit(root, NUMA_MAPS, "anon=5000 dirty=5000 N1=5000", "anon=5010 dirty=5010 N0=2500 N1=2510")
    assert status(site_on(root))[1] == 1
    result, code = revert(site_on(root), quiet)
    assert (code, only(result).outcome) == (0, "reverted")
    assert now(root) == BEFORE.replace("1:1000", "1:1010")


def test_pages_that_the_kernel_moves_before_its_turn_are_no_conflict(tmp_path: Path) -> None:
    """The guest's threads have moved just before."""
    root = root_of(tmp_path)

    class Balancing(Changed):
        def query(self, name: str, live: Callable[[], str | None]) -> str | None:
            if (root / "var/lib/hosttune/transactions/000001.jsonl").exists():
                text = (root / NUMA_MAPS).read_text()
                (root / NUMA_MAPS).write_text(text.replace("N0=4000 N1=1000", "N0=4010 N1=990"))
            return super().query(name, live)

    result, code = apply(root, system=Balancing(root, lambda number, step: step))
    assert (code, only(result).outcome, now(root)) == (0, "done", AFTER)
    result, code = revert(site_on(root), quiet)
    assert (code, now(root)) == (0, BEFORE)


def test_pages_that_the_kernel_takes_again_after_a_revert_are_said(tmp_path: Path) -> None:
    root = root_of(tmp_path)
    assert apply(root)[1] == 0

    class Restless(Changed):
        reads = 0

        def read_bytes(self, path: str) -> bytes | None:
            data = super().read_bytes(path)
            if path == f"/{NUMA_MAPS}" and self.calls == 2:
                self.reads += 1
                if self.reads > 2:  # the last step's own, and what it was looked at with
                    return (data or b"").replace(b"N0=4000 N1=1000", b"N0=3990 N1=1010")
            return data

    site = site_on(root)
    result, code = revert(Site(Restless(root, lambda number, step: step), site.store, site.boot_id, None), quiet)
    assert (code, only(result).outcome, result.open_transaction) == (1, "conflict", None)
    assert "since it was put back: hosttune revert --force tries again" in str(only(result).why)


@pytest.mark.parametrize("end", ["restarted", "ended"])
def test_of_a_process_that_has_ended_nothing_is_drift_or_given_back(tmp_path: Path, end: str) -> None:
    root = root_of(tmp_path)
    assert apply(root)[1] == 0
    if end == "restarted":
        edit(root, "proc/4000/stat", "4711", "4712")
    else:
        NEVER["a guest that ended"][0](root)
    found, code = status(site_on(root))
    assert (code, found.drift) == (0, ())
    result, code = revert(site_on(root), quiet)
    assert (code, only(result).outcome, result.changed) == (0, "already", False)


def test_a_process_that_ends_half_way_is_not_touched_again(tmp_path: Path) -> None:
    root = root_of(tmp_path)

    def ends(number: int, step: Step) -> Step:
        if number == 1:
            edit(root, "proc/4000/stat", "4711", "4712")
        return step

    system = Changed(root, ends)
    result, code = apply(root, system=system)
    assert (code, only(result).outcome) == (1, "failed")
    assert "its process ended meanwhile" in str(only(result).why)
    assert recover(site_on(root), quiet)[1] == 0


def test_mappings_that_change_while_they_are_read_are_read_again(tmp_path: Path) -> None:
    root = root_of(tmp_path)

    class Starting(Scratch):
        reads = 0

        def read_bytes(self, path: str) -> bytes | None:
            data = super().read_bytes(path)
            if path == "/proc/4000/maps":
                self.reads += 1
                if self.reads < 3:  # a thread's stack that numa_maps does not have
                    return b"7e0000000000-7e0000800000 rw-p 00000000 00:00 0 \n" + (data or b"")
            return data

    assert LiveMemory.of("big").read(Starting(str(root))) == BEFORE


def test_a_device_that_came_since_keeps_the_memory_there(tmp_path: Path) -> None:
    root = root_of(tmp_path)
    assert apply(root)[1] == 0
    vfio(root)
    result, code = revert(site_on(root), quiet)
    assert (code, only(result).outcome, result.open_transaction, now(root)) == (1, "conflict", None, AFTER)
    assert "/dev/vfio/12 is assigned to it and holds its memory" in str(only(result).why)


def test_what_a_plan_is_told_of_a_running_guest(tmp_path: Path) -> None:
    root = root_of(tmp_path)
    system = Scratch(str(root))
    assert running_memory(system, "big") == RunningMemory(places=BEFORE, allowed="0-1")
    vfio(root)
    found = running_memory(Scratch(str(root)), "big")
    assert found is not None
    assert "/dev/vfio/12 is assigned to it" in str(found.stays)
    NEVER["a guest that ended"][0](root)
    assert running_memory(Scratch(str(root)), "big") is None
