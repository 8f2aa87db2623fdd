"""Threads of running guests moved by virsh: its words on a stand-in, and QEMU's own threads on a private libvirtd."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from faultkinds import host, running
from faultlab import fresh_root, quiet, site_on
from libvirtd import libvirtd
from system.test_hypervisor_libvirt import machine, running_guest, xml_of
from unit.transaction.test_live_affinity import ONE, WANT, cpus, example_of, restarted

from hosttune.errors import WriteFailed
from hosttune.hypervisor.affinity import LiveAffinity
from hosttune.hypervisor.definition import PlannedDefinition
from hosttune.hypervisor.state import GuestState
from hosttune.machine.live import LiveMachine
from hosttune.machine.scratch import Scratch
from hosttune.model.affinity import read_affinity
from hosttune.transaction import ApplyOptions, apply_plan
from hosttune.transaction.site import Site

__all__ = ["libvirtd", "machine"]

UUID = "11111111-2222-4333-8444-555555555555"
After = Callable[["Virsh", tuple[str, ...]], None]


class Virsh(Scratch):
    """A root with a running guest, "one", on which virsh's commands work; `after` is called after each pin."""

    def __init__(self, root: Path, after: After = lambda system, argv: None, *, follows: bool = True) -> None:
        super().__init__(str(root))
        self.captured, self.after, self.follows = False, after, follows
        self.ran_here: list[str] = []
        self.pins = ""

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        return live() if name.startswith("virsh-") else super().query(name, live)

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        live()

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        if "list" in argv:
            return f"{UUID} one\n"
        if "domstate" in argv:
            return "running\n"
        assert argv[-2:] == ("dumpxml", UUID)
        head = "<domain type='kvm'><name>one</name><memory>1048576</memory><vcpu>2</vcpu>"
        return f"{head}<os><type arch='x86_64'>hvm</type></os><cputune>{self.pins}</cputune></domain>"

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        words = argv[4:]
        self.ran_here.append(" ".join(words))
        thread = {"vcpupin": "vcpu.", "emulatorpin": "emulator", "iothreadpin": "iothread."}[words[0]]
        thread += words[2] if thread.endswith(".") else ""
        if self.follows:
            Scratch.tell(self, "virsh-pin-one", f"{thread}={words[-2]}", lambda: None)
        self.after(self, argv)
        return ""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fresh_root(tmp_path / "root", running((1000, "one", {**ONE, "IO iothread1": "0-7"})), {})


def test_each_thread_is_pinned_while_it_runs_and_by_uuid(root: Path) -> None:
    system = Virsh(root)
    assert LiveAffinity.of("one").write(system, {"one": f"{WANT} iothread.1=0-1"}) is None
    assert system.ran_here == [
        f"vcpupin {UUID} 0 2 --live",
        f"vcpupin {UUID} 1 3 --live",
        f"emulatorpin {UUID} 0-1 --live",
        f"iothreadpin {UUID} 1 0-1 --live",
    ]
    assert cpus(root, 1000) == ["0-1", "2", "3", "0-1"]


def test_the_kernels_word_counts_and_libvirt_is_given_the_same(root: Path) -> None:
    system = Virsh(root, follows=False)
    note = LiveAffinity.of("one").write(system, {"one": WANT})
    assert note == "libvirt accepted CPUs 2 for vcpu.0, and the kernel has 4"
    assert system.ran_here == [f"vcpupin {UUID} 0 2 --live", f"vcpupin {UUID} 0 4 --live"]


def test_an_apply_that_the_kernel_ignores(root: Path) -> None:
    example = example_of((1000, "one", ONE), wants={"one": WANT})
    site = site_on(root)
    there = Site(Virsh(root, follows=False), site.store, site.boot_id, site.hostname)
    result, code = apply_plan(there, example.plan, ApplyOptions(), host, lambda todo: True, quiet)
    assert (code, result.entries[0].outcome, result.changed) == (0, "ignored", False)
    assert result.entries[0].why == "libvirt accepted CPUs 2 for vcpu.0, and the kernel has 4"


def test_after_a_move_that_was_not_followed_there_is_no_other(root: Path) -> None:
    def stops(system: Virsh, argv: tuple[str, ...]) -> None:
        system.follows = False

    system = Virsh(root, stops)
    with pytest.raises(WriteFailed, match=r"libvirt accepted CPUs 3 for vcpu\.1, and the kernel has 5"):
        LiveAffinity.of("one").write(system, {"one": WANT})
    assert len(system.ran_here) == 2
    assert cpus(root, 1000) == ["0-7", "2", "5", "0-7"]


def test_a_process_that_ends_in_between_is_said(root: Path) -> None:
    with pytest.raises(WriteFailed, match="its process ended meanwhile"):
        LiveAffinity.of("one").write(Virsh(root, lambda system, argv: restarted(root, 1000)), {"one": WANT})


def test_pins_that_only_libvirt_has_are_written_again(root: Path) -> None:
    system = Virsh(root)
    system.pins = "<vcpupin vcpu='0' cpuset='6'/><vcpupin vcpu='1' cpuset='5'/><emulatorpin cpuset='0-9'/>"
    setting = LiveAffinity.of("one")
    found = setting.read(system)
    assert found["one"].endswith(" libvirt:vcpu.0=6 process=1000.4711")  # CPUs 8 and 9 are not online
    assert setting.effective(system) == {"one": "vcpu.0=4 vcpu.1=5 emulator=0-7 iothread.1=0-7"}
    assert not setting.agrees(found, {"one": "vcpu.0=4"})
    setting.write(system, {"one": "vcpu.0=4"})
    assert system.ran_here == [f"vcpupin {UUID} 0 4 --live"]


# --- real threads ------------------------------------------------------------------------------------------------


@pytest.fixture
def two() -> tuple[int, int]:
    """The first two CPUs of this machine."""
    here = sorted(os.sched_getaffinity(0))
    if len(here) < 2:
        pytest.skip("one CPU")
    return here[0], here[1]


def start(machine: LiveMachine, name: str) -> None:
    guest = running_guest(name)
    PlannedDefinition.of(name).write(machine, xml_of(guest))
    GuestState.of(name).write(machine, "running")


def test_qemus_threads_are_moved_and_put_back(machine: LiveMachine, two: tuple[int, int]) -> None:
    """Here libvirt has no control groups, so that it moves only the first of the emulator's threads."""
    start(machine, "live")
    setting, (one, other) = LiveAffinity.of("live"), two
    before = setting.read(machine)
    assert read_affinity(before["live"]).cpus["vcpu.0"] == str(one)
    want = {"live": f"vcpu.0={other} vcpu.1={one} emulator={other} iothread.1={one}"}
    setting.check(want)
    assert not setting.agrees(before, want)
    assert setting.write(machine, want) is None
    assert setting.agrees(setting.read(machine), want)
    assert setting.write(machine, before) is None
    assert setting.read(machine) == before
    GuestState.of("live").write(machine, "shut off")
    assert setting.read(machine) == {}
    assert setting.agrees({}, before)
