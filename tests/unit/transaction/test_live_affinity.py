"""The CPUs of running guests' threads: read from /proc, moved in order, proven, given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from faultkills import applying, lab_of, reverting
from faultkinds import EXAMPLES, QEMU, Example, host, running, together
from faultlab import fresh_root, quiet, site_on, transactions
from hypothesis import given
from hypothesis import strategies as st

from hosttune.errors import BadInput, HosttuneError, Unreadable, WriteFailed
from hosttune.hypervisor.affinity import LiveAffinity
from hosttune.machine.scratch import Scratch
from hosttune.model.affinity import Affinity, affinity_text, read_affinity, thread_of
from hosttune.model.result import Result
from hosttune.model.values import CpuSet
from hosttune.transaction import ApplyOptions, apply_plan, rehearse_apply, revert, status
from hosttune.transaction.site import Site

EXAMPLE = EXAMPLES["live-affinity"]
ONE = {QEMU: "0-7", "CPU 0/KVM": "4", "CPU 1/KVM": "5"}
WANT = "vcpu.0=2 vcpu.1=3 emulator=0-1"


def example_of(*guests: tuple[int, str, Mapping[str, str]], wants: Mapping[str, str], **files: str) -> Example:
    found = {**running(*guests), **files}
    return Example("live", found, tuple(("live-affinity", name, want) for name, want in wants.items()), needed=False)


def root_of(path: Path, example: Example) -> Path:
    return fresh_root(path / "root", example.files, example.links)


def apply(root: Path, example: Example, system: Scratch | None = None) -> tuple[Result, int]:
    site = site_on(root)
    site = site if system is None else Site(system, site.store, site.boot_id, site.hostname)
    return apply_plan(site, example.plan, ApplyOptions(), host, lambda todo: True, quiet)


def cpus(root: Path, process: int) -> list[str]:
    """The CPUs of a process' threads, in order."""
    tasks = sorted((root / f"proc/{process}/task").iterdir())
    return [(task / "status").read_text().partition("list:\t")[2].split("\n")[0] for task in tasks]


def restarted(root: Path, process: int) -> None:
    """The guest ends and starts again, under the same process id."""
    stat = root / f"proc/{process}/stat"
    stat.write_text(stat.read_text().replace("4711", "4712"))


# --- text ------------------------------------------------------------------------------------------------------


SETS = st.sets(st.integers(0, 70), min_size=1).map(CpuSet)


@given(
    st.dictionaries(st.integers(0, 300), SETS, min_size=1), st.none() | SETS, st.dictionaries(st.integers(1, 9), SETS)
)
def test_the_text_reads_back(vcpus: dict[int, CpuSet], emulator: CpuSet | None, iothreads: dict[int, CpuSet]) -> None:
    text = affinity_text(vcpus, emulator, iothreads)
    read = read_affinity(text)
    assert str(read) == read.without_notes() == text
    assert {name: CpuSet.parse(found) for name, found in read.cpus.items()} == {
        **{f"vcpu.{number}": found for number, found in vcpus.items()},
        **({"emulator": emulator} if emulator else {}),
        **{f"iothread.{number}": found for number, found in iothreads.items()},
    }


def test_the_order_is_by_kind_and_number() -> None:
    text = affinity_text({10: CpuSet((3,)), 2: CpuSet((4, 5, 9))}, CpuSet((0, 64)), {1: CpuSet((0,))})
    assert text == "vcpu.2=4-5,9 vcpu.10=3 emulator=0,64 iothread.1=0"


def test_notes_stay_apart() -> None:
    text = "vcpu.0=4 emulator=0-1|3 libvirt:vcpu.0=0-7 process=12.34"
    read = read_affinity(text)
    assert read == Affinity(cpus={"vcpu.0": "4", "emulator": "0-1|3"}, libvirt={"vcpu.0": "0-7"}, process="12.34")
    assert (str(read), read.without_notes()) == (text, "vcpu.0=4 emulator=0-1|3")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("CPU 3/KVM", "vcpu.3"), ("CPU 12/TCG", "vcpu.12"), ("IO iothread2", "iothread.2"), (QEMU, "emulator"),
        ("call_rcu", "emulator"), ("CPU x/KVM", "emulator"), ("worker", None), ("TC tc-ram-node0", None),
        ("vhost-1234", None), ("kvm-nx-lpage-re", None),
    ],
)  # fmt: skip
def test_threads_by_the_names_that_qemu_gives(name: str, word: str | None) -> None:
    assert thread_of(name) == word


@pytest.mark.parametrize(
    "text",
    [
        "", "vcpu.0", "vcpu.0=", "vcpu.0=4-", "vcpu.0=5,4", "vcpu.00=4", "vcpu.0=4  emulator=0", "emulator=0 vcpu.0=4",
        "vcpu.0=4 vcpu.0=4", "vcpu.1=4 vcpu.0=5", "vcpu.0=4\n", "cpu.0=4", "vcpu.0=4 process=1.2", "iothread=4",
        "vcpu.0=4 libvirt:vcpu.0=5", "emulator=0|1", "vcpu.0=0-99999999", "vcpu.123456=1", None, 4, ["vcpu.0=4"],
        " ".join(f"vcpu.{number}=0-65000" for number in range(20000)),
    ],
)  # fmt: skip
def test_other_values_are_refused(text: Any) -> None:
    with pytest.raises(BadInput) as refused:
        LiveAffinity.of("vm").check(text)
    assert refused.value.where == "action live-affinity:vm"


@pytest.mark.parametrize("name", ["", "a b", "../x", "a,b", "-x"])
def test_other_targets_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="is not a guest name"):
        LiveAffinity.of(name)


# --- apply and revert --------------------------------------------------------------------------------------------


def test_all_guests_of_a_plan_are_one_step_and_go_back(tmp_path: Path) -> None:
    """Two have each other's cores, and one floats: a transaction as a whole, then its end."""
    lab = lab_of(EXAMPLE, tmp_path / "root")
    assert [record.target for record in lab.records] == ["loose,one,two"]
    assert cpus(lab.root, 1000) == ["0-1", "2", "3", "0-1", "4"]  # a pool's thread is where it is
    assert (cpus(lab.root, 2000), cpus(lab.root, 3000)) == (["0-1", "4", "5"], ["0-1", "6", "7"])
    result, code = applying(EXAMPLE)(site_on(lab.root))
    assert (code, result.changed, {entry.outcome for entry in result.entries}) == (0, False, {"already"})
    assert status(site_on(lab.root))[1] == 0
    result, code = reverting(EXAMPLE)(site_on(lab.root))
    assert (code, {entry.outcome for entry in result.entries}) == (0, {"reverted"})
    assert cpus(lab.root, 1000) == ["0-7", "4", "5", "0-7", "4"]
    assert (cpus(lab.root, 2000), cpus(lab.root, 3000)) == (["0-7", "2", "3"], ["0-7", "0-7", "0-7"])


def test_a_rehearsal_lists_the_moves_in_their_order(tmp_path: Path) -> None:
    two = {QEMU: "0-1", "CPU 0/KVM": "2", "CPU 1/KVM": "3"}
    wants = {"one": WANT, "two": "vcpu.0=4 vcpu.1=5 emulator=0-1"}
    example = example_of((1000, "one", ONE), (2000, "two", two), wants=wants)
    root = root_of(tmp_path, example)
    result, _ = rehearse_apply(site_on(root), example.plan, ApplyOptions(), host)
    assert list(result.writes) == [
        'call  virsh-pin-one <- "emulator=0-1"',
        'call  virsh-pin-two <- "vcpu.0=0-1"',
        'call  virsh-pin-two <- "vcpu.1=0-1"',
        'call  virsh-pin-one <- "vcpu.0=2"',
        'call  virsh-pin-one <- "vcpu.1=3"',
        'call  virsh-pin-two <- "vcpu.0=4"',
        'call  virsh-pin-two <- "vcpu.1=5"',
    ]
    assert cpus(root, 1000) == ["0-7", "4", "5"]


def test_no_name_in_disrupt_is_needed(tmp_path: Path) -> None:
    example = example_of((1000, "one", ONE), wants={"one": WANT})
    result, code = apply(root_of(tmp_path, example), example)
    assert (code, [entry.outcome for entry in result.entries]) == (0, ["done"])
    assert result.entries[0].before == "vcpu.0=4 vcpu.1=5 emulator=0-7 process=1000.4711"


def test_with_its_cpus_come_the_governor_and_the_interrupts_of_its_devices(tmp_path: Path) -> None:
    """They are ordinary settings: a guest that runs has its interrupts now, so none of them waits for a start."""
    example = together(EXAMPLES["governor"], EXAMPLES["irq-affinity"], EXAMPLE)
    result, code = apply(root_of(tmp_path, example), example)
    assert code == 0
    done = [entry.action.partition(":")[0] for entry in result.entries if entry.outcome == "done"]
    assert [kind for kind in done if kind != "drop-in"] == ["governor", *["live-affinity"] * 3, "irq-affinity"]


def test_without_guests_libvirt_is_left_alone(tmp_path: Path) -> None:
    example = together(EXAMPLES["ksm"], EXAMPLE)
    root = root_of(tmp_path, example)
    result, _ = apply_plan(site_on(root), example.plan, ApplyOptions(guests=False), host, lambda todo: True, quiet)
    assert [entry.action for entry in result.entries if "live" in entry.action or "ksm" in entry.action] == [
        "ksm:/sys/kernel/mm/ksm/run"
    ]


def test_a_thread_without_a_word_is_left_where_it_is(tmp_path: Path) -> None:
    example = example_of((1000, "one", ONE), wants={"one": "vcpu.1=7"})
    root = root_of(tmp_path, example)
    assert apply(root, example)[1] == 0
    assert cpus(root, 1000) == ["0-7", "4", "7"]


def test_a_guest_that_ended_waits_and_the_others_go_on(tmp_path: Path) -> None:
    example = example_of((1000, "one", ONE), (2000, "two", ONE), wants={"one": WANT, "two": "vcpu.0=6"})
    root = root_of(tmp_path, example)
    (root / ".hosttune/commands/virsh-list").write_text(" Id   Name   State\n---\n 1    one     running\n")
    result, code = apply(root, example)
    said = {entry.action: (entry.outcome, entry.why) for entry in result.entries}
    assert code == 0
    assert said == {
        "live-affinity:one": ("done", None),
        "live-affinity:two": ("pending", "guest two: it does not run: its definition holds when it starts"),
    }
    assert cpus(root, 2000) == ["0-7", "4", "5"]


def test_what_another_has_pinned_since_is_a_conflict(tmp_path: Path) -> None:
    example = example_of((1000, "one", ONE), wants={"one": WANT})
    root = root_of(tmp_path, example)
    assert apply(root, example)[1] == 0
    Scratch(str(root)).tell("virsh-pin-one", "vcpu.0=6", lambda: None)
    assert status(site_on(root))[1] == 1
    result, code = revert(site_on(root), quiet)
    assert (code, result.entries[0].outcome) == (1, "conflict")
    assert cpus(root, 1000) == ["0-1", "6", "3"]


@pytest.mark.parametrize("end", ["restarted", "ended"])
def test_of_a_process_that_has_ended_nothing_is_drift_or_given_back(tmp_path: Path, end: str) -> None:
    """The next process has the CPUs of its definition, which this setting has not changed."""
    example = example_of((1000, "one", ONE), wants={"one": WANT})
    root = root_of(tmp_path, example)
    assert apply(root, example)[1] == 0
    if end == "restarted":
        restarted(root, 1000)
    else:
        (root / ".hosttune/commands/virsh-list").write_text(" Id   Name   State\n---\n -    one     shut off\n")
    found, code = status(site_on(root))
    assert (code, found.drift) == (0, ())
    result, code = revert(site_on(root), quiet)
    assert (code, result.entries[0].outcome, result.changed) == (0, "already", False)
    assert cpus(root, 1000) == ["0-1", "2", "3"]
    assert status(site_on(root))[0].entries == ()


def test_interrupts_of_a_guest_that_is_off_are_not_in_force_after_a_revert(tmp_path: Path) -> None:
    example = EXAMPLES["irq-affinity"]
    root = root_of(tmp_path, example)
    assert apply(root, example)[1] == 0
    (root / f"sys/bus/pci/devices/{example.wants[0][1]}/msi_irqs").rename(tmp_path / "ended")
    result, code = revert(site_on(root), quiet)
    assert (code, result.entries[0].outcome) == (0, "already")
    assert status(site_on(root))[0].entries == ()


def test_a_cut_is_settled_only_in_its_own_process(tmp_path: Path) -> None:
    lab = lab_of(example_of((1000, "one", ONE), wants={"one": WANT}), tmp_path / "root")
    setting = LiveAffinity.of("one")
    old = setting.read(Scratch(str(lab.root)))
    restarted(lab.root, 1000)
    assert setting.agrees(setting.read(Scratch(str(lab.root))), old)
    assert not setting.agrees(setting.read(Scratch(str(lab.root))), {"one": "vcpu.0=7"})


class Changed(Scratch):
    """A scratch root in which something happens at a call."""

    def __init__(self, root: Path, act: Callable[[Changed, int, Callable[[], None]], None]) -> None:
        super().__init__(str(root))
        self.calls = 0
        self.act = act

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        self.calls += 1
        self.act(self, self.calls, lambda: Scratch.tell(self, name, value, live))


def test_it_is_ignored_if_the_kernel_does_not_follow(tmp_path: Path) -> None:
    example = example_of((1000, "one", ONE), wants={"one": WANT})
    root = root_of(tmp_path, example)
    result, code = apply(root, example, Changed(root, lambda system, number, make: None))
    assert (code, result.entries[0].outcome, result.changed) == (0, "ignored", False)
    assert status(site_on(root))[0].drift == ()


def test_a_guest_that_ends_half_way_takes_the_others_back(tmp_path: Path) -> None:
    two = {QEMU: "0-1", "CPU 0/KVM": "2", "CPU 1/KVM": "3"}
    example = example_of((1000, "one", ONE), (2000, "two", two), wants={"one": WANT, "two": "vcpu.0=4 vcpu.1=5"})
    root = root_of(tmp_path, example)

    def ends(system: Changed, number: int, make: Callable[[], None]) -> None:
        if number == 4:
            (root / ".hosttune/commands/virsh-list").write_text(" Id   Name   State\n---\n 1    one     running\n")
            raise WriteFailed("guest two", "its process ended meanwhile")
        make()

    result, code = apply(root, example, Changed(root, ends))
    assert (code, result.changed) == (1, False)
    assert {entry.outcome for entry in result.entries} == {"failed"}
    assert "its process ended meanwhile" in (result.entries[0].why or "")
    assert cpus(root, 1000) == ["0-7", "4", "5"]
    assert not any(one.is_open for one in transactions(root))


@pytest.mark.parametrize("version", [1, 2])
def test_a_cpuset_that_forbids_a_cpu_is_named_before_the_first_move(tmp_path: Path, version: int) -> None:
    scope = "machine.slice/machine-qemu.scope"
    mount, name = ("sys/fs/cgroup/cpuset", "cpus") if version == 1 else ("sys/fs/cgroup", "cpus.effective")
    options = "rw,cpuset" if version == 1 else "rw"
    files = {
        "proc/mounts": f"cgroup /{mount} cgroup{'2' if version == 2 else ''} {options} 0 0\n",
        "proc/1000/cpuset": f"/{scope}/libvirt/emulator\n",
        f"{mount}/cpuset.{name}": "0-7\n",
        **dict.fromkeys((f"{mount}/{path}/cpuset.{name}" for path in ("machine.slice", f"{scope}/libvirt")), "0-5\n"),
    }
    example = example_of((1000, "one", ONE), wants={"one": "vcpu.0=2 vcpu.1=6 emulator=0-1"}, **files)
    root = root_of(tmp_path, example)
    result, code = apply(root, example)
    assert (code, result.entries[0].outcome) == (1, "failed")
    assert "its control group /machine.slice has only CPUs 0-5, so no thread can run on 6" in str(result.entries[0].why)
    assert cpus(root, 1000) == ["0-7", "4", "5"]


def test_a_vcpu_that_is_not_there_is_reported(tmp_path: Path) -> None:
    example = example_of((1000, "one", ONE), wants={"one": "vcpu.0=2 vcpu.1=3 vcpu.2=6 emulator=0-1"})
    root = root_of(tmp_path, example)
    result, code = apply(root, example)
    assert (code, result.entries[0].outcome) == (0, "clamped")
    assert result.entries[0].why == "guest one has no thread of vcpu.2"


def test_of_a_vcpu_that_was_taken_out_since_nothing_is_drift_or_given_back(tmp_path: Path) -> None:
    example = example_of((1000, "one", ONE), wants={"one": WANT})
    root = root_of(tmp_path, example)
    assert apply(root, example)[1] == 0
    for name in ("comm", "status"):
        (root / f"proc/1000/task/1002/{name}").unlink()
    (root / "proc/1000/task/1002").rmdir()
    for task in (1000, 1001):
        status_file = root / f"proc/1000/task/{task}/status"
        status_file.write_text(status_file.read_text().replace("Threads:\t3", "Threads:\t2"))
    assert status(site_on(root))[0].drift == ()
    result, code = revert(site_on(root), quiet)
    assert (code, result.entries[0].outcome, cpus(root, 1000)) == (0, "reverted", ["0-7", "4"])


def test_emulator_threads_that_differ_are_shown_and_brought_together(tmp_path: Path) -> None:
    threads = {QEMU: "0-3", "call_rcu": "6", "CPU 0/KVM": "4"}
    example = example_of((1000, "one", threads), wants={"one": "vcpu.0=4 emulator=0-1"})
    root = root_of(tmp_path, example)
    result, code = apply(root, example)
    assert (code, cpus(root, 1000)) == (0, ["0-1", "0-1", "4"])
    assert result.entries[0].before == "vcpu.0=4 emulator=0-3|6 process=1000.4711"
    assert revert(site_on(root), quiet)[1] == 0
    assert cpus(root, 1000) == ["0-3,6", "0-3,6", "4"]  # libvirt has one list for all of them


def test_offline_cpus_do_not_count(tmp_path: Path) -> None:
    example = example_of((1000, "one", {**ONE, QEMU: "0-127"}), wants={"one": WANT})
    assert LiveAffinity.of("one").effective(Scratch(str(root_of(tmp_path, example)))) == {
        "one": "vcpu.0=4 vcpu.1=5 emulator=0-7"
    }


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("proc/1000/task/1001/status", "", "CPUs of its threads are not all known"),
        ("proc/1000/task/1001/status", "Cpus_allowed_list:\t4\nCpus_allowed_list:\t5\n", "more than once"),
        (".hosttune/commands/qemu-processes", "", "the process of guest one: no QEMU of that name is found"),
    ],
)
def test_unknown_cpus_are_not_guessed(tmp_path: Path, path: str, text: str, why: str) -> None:
    example = example_of((1000, "one", ONE), wants={"one": WANT})
    root = root_of(tmp_path, example)
    (root / path).write_text(text)
    with pytest.raises(Unreadable) as refused:
        LiveAffinity.of("one").read(Scratch(str(root)))
    assert why in refused.value.what
    result, code = apply(root, example)
    assert (code, result.entries[0].outcome, result.changed) == (1, "failed", False)


def test_no_cpu_in_between_is_said_before_the_first_move(tmp_path: Path) -> None:
    one, two = {**ONE, "CPU 1/KVM": "4"}, {QEMU: "6", "CPU 0/KVM": "6"}
    example = example_of((1000, "one", one), (2000, "two", two), wants={"one": "vcpu.0=6", "two": "vcpu.0=4"})
    with pytest.raises(HosttuneError, match="no CPU is left over for it"):
        LiveAffinity.restored("one,two").write(
            Scratch(str(root_of(tmp_path, example))), {"one": "vcpu.0=6", "two": "vcpu.0=4"}
        )
