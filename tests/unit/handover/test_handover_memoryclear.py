"""What a GPU's maker says of its memory after a reset in a hand-over: evidence, never in place of the search.

The outputs are the real tool's (tests/cases/memory_clear/PROVENANCE.md).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from courses import states, steps
from cutshort import KilledError, put, put_link
from faultkills import memory_folder
from sweeps import sample
from testguests import GPU, GuestHost, good, place, qcow2, root_of, tried

from hosttune.errors import CommandFailed, WriteFailed
from hosttune.gpu.nvidia_clear import MEMORY_CLEAR, TOOL, failure, heard, version_of_help
from hosttune.handover import binding, record
from hosttune.handover.gpumemory import announced, asked, times
from hosttune.handover.running import Handed, lines_of
from hosttune.handover.targets import Asked, Target
from hosttune.journal import Store
from hosttune.machine.live import run_command
from hosttune.model.handover import HandoverStep
from hosttune.settings import resets

CASES = Path(__file__).parents[2] / "cases/memory_clear"
HELP = (CASES / "help.txt").read_text()
FINISHED = (CASES / "cleared.exit0.txt").read_text()
NOT_FINISHED = (CASES / "not-finished.exit1.txt").read_text()
TARGET = Target(address=GPU, kind="gpu", identity="x", memory_clear=MEMORY_CLEAR)
RESET = HandoverStep(
    step="reset", outcome="done", method="bus reset", evidence={"reset_method": "bus", "kernel": "the write succeeded"}
)
STILL = "Timed out polling register memory_clear_finished"


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hosttune-clear-", dir=memory_folder()))
    yield root_of(folder / "root")
    shutil.rmtree(folder)


class ClearHost(GuestHost):
    """A host with the maker's tool, which answers `output`, or fails with it (`status`). `asks`: what it was asked.

    `around`: the operations right before and after a command of the tool.
    """

    output, status = FINISHED, 0

    def __init__(self, root: Path, *, cut: int = -1, installed: bool = True) -> None:
        super().__init__(root, cut=cut)
        self.asks: list[tuple[str, ...]] = []
        self.around: list[int] = []
        if installed:
            put(root, f".hosttune/commands/{TOOL}", HELP)

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """See System."""
        if TOOL not in argv:
            return super().change(argv, timeout=timeout, stdin=stdin)
        self.around += [self.count, self.count + 1]
        self._reach()
        self.asks.append(argv)
        self._reach()
        if self.status != 0:
            raise CommandFailed(argv, f"exit status {self.status}", self.output)
        return self.output


def said(found: HandoverStep) -> dict[str, Any]:
    """What the tool said, in the evidence of a step."""
    told = (found.evidence or {})["memory_clear"]
    return {name: one for name, one in told.items() if name != "seconds"}


# --- what the tool prints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "answer"),
    [("cleared", "finished"), ("asleep", "finished"), ("cc", "finished"), ("not-supported", "not supported")],
)
def test_what_it_prints_when_it_ends_well(case: str, answer: str) -> None:
    text = (CASES / f"{case}.exit0.txt").read_text()
    assert heard(text, GPU) == answer
    assert heard(text, "0000:42:00.0") is None  # of another GPU
    assert [heard(text[:size], GPU) for size in (0, 40, text.index("Selected") + 30)] == [None] * 3  # cut off
    assert heard(text.replace("NVIDIA GPU Tools", "GPU Tools"), GPU) is None
    assert heard(f"{text}2026-11-24,01:51:22.193 ERROR    Something else\n", GPU) is None
    selected = next(line for line in text.splitlines() if "Selected" in line)
    assert heard(f"{text}{selected.replace(GPU, f'1{GPU}')}\n", GPU) is None
    assert heard(f"{text}Traceback (most recent call last):\n", GPU) is None


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("not-finished", f"gpu.error.GpuPollTimeout: {STILL} (0x100b20), value 0x0 is not the expected 0x1."),
        ("not-booted", "gpu.error.GpuPollTimeout: Timed out polling register boot_complete (0x200bc), value 0x0"),
        ("broken", "Device /sys/bus/pci/devices/0000:41:00.0 broken"),
        ("refused", "Device /sys/bus/pci/devices/0000:41:00.0 broken [Errno 30] Read-only file system"),
        ("not-found", "Matching for 0000:41:00.0 found nothing"),
    ],
)
def test_what_it_prints_when_it_fails(case: str, says: str) -> None:
    text = (CASES / f"{case}.exit1.txt").read_text()
    assert failure(text).startswith(says)
    assert heard(text, GPU) is None  # also if its exit status had been lost


def test_which_tool_can_be_asked() -> None:
    assert version_of_help(HELP) == "v2025.10.20o"
    assert version_of_help(HELP.replace("--clear-memory", "--other")) is None  # a version without it
    assert (version_of_help("usage: something else --clear-memory\n"), failure("")) == (None, "it says nothing")


# --- the step ----------------------------------------------------------------------------------------------------


def test_a_gpu_that_says_that_its_memory_is_cleared(root: Path) -> None:
    host = ClearHost(root)
    found = asked(host, TARGET, RESET)
    assert (found.outcome, found.why, found.method) == ("done", None, "bus reset")
    assert said(found) == {"tool": TOOL, "version": "v2025.10.20o", "answer": "finished"}
    assert (found.evidence or {})["kernel"] == "the write succeeded"
    assert [argv[4:] for argv in host.asks] == [(TOOL, "--gpu-bdf", GPU, "--clear-memory")]
    assert (times(host, TARGET), announced(host, TARGET)) == ((60.0, 5.0), f", then {TOOL} is asked")


@pytest.mark.parametrize(
    ("output", "status", "why"),
    [
        (NOT_FINISHED, 1, f"exit status 1: gpu.error.GpuPollTimeout: {STILL}"),
        ("", 1, "exit status 1"),
        ("", 0, "its output is not understood"),
        (FINISHED.replace("Selected GPU", "Selected Device"), 0, "its output is not understood"),
    ],
)
def test_asked_without_an_answer_it_is_unknown(root: Path, output: str, status: int, why: str) -> None:
    host = ClearHost(root)
    host.output, host.status = output, status
    found = asked(host, TARGET, RESET)
    assert (found.outcome, said(found)["answer"]) == ("unknown", None)
    assert said(found)["why"].startswith(why)
    assert str(found.why).startswith(f"reset, but whether it has cleared its memory is unknown: {TOOL}: {why}")


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("no tool", "it is not installed"),
        ("flr", "cannot ask: it was reset by flr, and the answer is about a reset by bus"),
        ("lockdown", "cannot ask: the kernel's lockdown (integrity) forbids access to the registers"),
        ("address", f"cannot ask: its address is a part of that of 1{GPU}, which the tool would open too"),
    ],
)
def test_what_is_not_asked_counts_neither_way(root: Path, says: str, why: str) -> None:
    host = ClearHost(root, installed=says != "no tool")
    if says == "lockdown":
        put(root, "sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    if says == "address":
        put(root, f"sys/bus/pci/devices/1{GPU}/vendor", "0x10de\n")
    reset = msgspec.structs.replace(RESET, evidence={"reset_method": "flr" if says == "flr" else "bus"})
    found = asked(host, TARGET, reset)
    assert (found.outcome, host.asks) == ("done", [])
    assert (said(found)["answer"], said(found)["why"]) == ("not asked", why)
    if says == "no tool":
        assert (times(host, TARGET), announced(host, TARGET)) == ((0.0, 0.0), "")


def test_what_does_not_keep_it_from_being_asked(root: Path) -> None:
    put(root, "sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
    put(root, f"sys/bus/pci/devices/1{GPU}/vendor", "0x8086\n")  # the tool opens GPUs and switches of its maker alone
    host = ClearHost(root)
    host.output = (CASES / "not-supported.exit0.txt").read_text()
    found = asked(host, TARGET, RESET)
    assert (found.outcome, said(found)["answer"], len(host.asks)) == ("done", "not supported", 1)
    assert asked(host, msgspec.structs.replace(TARGET, memory_clear=None), RESET) is RESET  # another maker's
    failed = msgspec.structs.replace(RESET, outcome="failed")
    assert (asked(host, TARGET, failed), len(host.asks)) == (failed, 1)


def test_a_tool_that_cannot_be_used_is_no_missing_tool(root: Path) -> None:
    put(root, f".hosttune/commands/{TOOL}", "usage: another tool\n")
    host = ClearHost(root, installed=False)
    found = asked(host, TARGET, RESET)
    assert (found.outcome, said(found)["why"], host.asks) == ("unknown", "its answer is not understood", [])
    assert times(host, TARGET) == (60.0, 5.0)


def test_never_under_a_driver_or_beside_a_guest(root: Path) -> None:
    link = root / f"sys/devices/pci0000:40/{GPU}/driver"
    link.unlink()
    put_link(root, f"sys/devices/pci0000:40/{GPU}/driver", "sys/bus/pci/drivers/nvidia")
    host = ClearHost(root)
    with pytest.raises(WriteFailed, match="its registers are not read then"):
        asked(host, TARGET, RESET)
    link.unlink()
    put_link(root, f"sys/devices/pci0000:40/{GPU}/driver", "sys/bus/pci/drivers/vfio-pci")
    put(root, "proc/77/comm", "qemu-system-x86\n")
    put(root, "dev/vfio/7", "")
    put_link(root, "proc/77/fd/3", "/dev/vfio/7")
    host.forget()
    with pytest.raises(WriteFailed, match="qemu-system-x86"):
        asked(host, TARGET, RESET)
    assert host.asks == []


class LiveTool(ClearHost):
    """Runs the commands of the tool as the machine does."""

    def query(self, name: str, live: Any) -> str | None:
        """See System."""
        return live() if name == TOOL else super().query(name, live)

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """See System."""
        return run_command(argv, timeout)

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """See System."""
        return run_command(argv, timeout)


def test_a_command_on_the_path(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both streams are read, an exit status counts, and it is ended at its time limit."""
    host, tool = LiveTool(root, installed=False), tmp_path / TOOL
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert said(asked(host, TARGET, RESET))["why"] == "it is not installed"

    def stand_in(case: str, then: str) -> HandoverStep:
        tool.write_text(
            f"#!/bin/sh\nif [ \"$*\" = --help ]; then exec cat '{CASES}/help.txt'; fi\n"
            f"[ \"$*\" = '--gpu-bdf {GPU} --clear-memory' ] || exit 9\n"
            f"head -n 2 '{CASES}/{case}'\ntail -n +3 '{CASES}/{case}' >&2\n{then}\n"
        )
        tool.chmod(0o755)
        short = msgspec.structs.replace(MEMORY_CLEAR, limit_seconds=0.5 if "sleep" in then else 60.0)
        return asked(host, msgspec.structs.replace(TARGET, memory_clear=short), RESET)

    assert said(stand_in("cleared.exit0.txt", "exit 0"))["answer"] == "finished"
    assert said(stand_in("not-supported.exit0.txt", "exit 0"))["answer"] == "not supported"
    assert STILL in said(stand_in("not-finished.exit1.txt", "exit 1"))["why"]
    found = stand_in("cleared.exit0.txt", "sleep 600")  # it is killed
    assert (found.outcome, said(found)["why"]) == ("unknown", "no answer within 0.5 s")
    tool.chmod(0o644)
    assert said(asked(host, TARGET, RESET))["why"] == "Permission denied"


# --- the course --------------------------------------------------------------------------------------------------


def device_steps(found: Handed, name: str) -> list[HandoverStep]:
    (device,) = found.statement.predicate.devices
    return [one for one in device.steps if one.step == name]


def test_each_reset_of_a_hand_over_is_asked_about_and_the_statement_has_it(root: Path, tmp_path: Path) -> None:
    host = ClearHost(root)
    (line, *_) = lines_of(place(host), Asked(guest="vm"))
    assert f"reset (bus, then {TOOL} is asked), " in line
    found = tried(host, qcow2(tmp_path / "image"))
    assert (found.clean, states(root), len(host.asks)) == (True, {GPU: "clean"}, 3)
    about = device_steps(found, "reset") + device_steps(found, "erased")
    assert [said(one)["answer"] for one in about] == ["finished"] * 3
    last = record.last_course(Store(str(root / "var/lib/hosttune")))
    assert last is not None
    limits = [(one.new["limit_seconds"], one.new["estimate_seconds"]) for one in last.records if "reset" in one.actions]
    most = record.WAIT_SECONDS + binding.LIMIT_SECONDS + resets.LIMIT_SECONDS + 60.0
    assert limits == [(most, resets.ESTIMATE_SECONDS + 5.0)] * 2


def test_memory_that_is_not_cleared_keeps_a_gpu_quarantined(root: Path, tmp_path: Path) -> None:
    host = ClearHost(root)
    host.output, host.status = NOT_FINISHED, 1
    found = tried(host, qcow2(tmp_path / "image"))
    assert steps(found)[:3] == [("quarantined", "done"), ("reset", "unknown"), ("taken-back", "unknown")]
    assert (found.clean, states(root), host.orders) == (False, {GPU: "quarantined"}, [])  # no guest had it
    assert os.readlink(root / f"sys/devices/pci0000:40/{GPU}/driver").endswith("vfio-pci")
    host.output, host.status = FINISHED, 0
    assert tried(host, tmp_path / "image").clean


def test_a_finished_clear_is_no_search(root: Path, tmp_path: Path) -> None:
    """The tool says that the memory is cleared, and the pattern is still there."""

    def says(order: dict[str, Any]) -> Any:
        answer = good(order)
        if order["task"] == "search" and len(host.orders) > 1:
            answer["memory"] |= {"found": 3, "nonzero": 48}
        return answer

    host = ClearHost(root)
    host.says = says
    found = tried(host, qcow2(tmp_path / "image"))
    (erased,) = device_steps(found, "erased")
    assert (erased.outcome, said(erased)["answer"], states(root)) == ("failed", "finished", {GPU: "quarantined"})


def test_killed_around_a_question_it_is_quarantined_and_the_next_hand_over_ends_it(root: Path, tmp_path: Path) -> None:
    image, start, again = qcow2(tmp_path / "image"), root.with_name("start"), root.with_name("again")
    shutil.copytree(root, start, symlinks=True)
    whole = ClearHost(root)
    assert tried(whole, image).clean
    assert len(whole.around) == 6
    for cut in sample("question", whole.around, 2):
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(start, again, symlinks=True)
        with pytest.raises(KilledError):
            tried(ClearHost(again, cut=cut), image)
        listed = (again / "var/lib/hosttune/handover/quarantined").read_text().split()
        assert (states(again), listed) == ({GPU: "quarantined"}, [GPU, "end", "1"]), cut
        assert tried(ClearHost(again), image).clean, cut
