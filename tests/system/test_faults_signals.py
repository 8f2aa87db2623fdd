"""What asks a transaction to stop, at every point; what else runs at the same time; and a write that never returns."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from faultkills import applying, back_at_original, lab_of, reverting
from faultkinds import EXAMPLES, together
from faultlab import Faults, applied_state, fresh_root, quiet, run_forked, send, site_on, transactions, tree_of
from sweeps import FULL, sample

import hosttune
from hosttune.discovery import discover
from hosttune.errors import Stuck
from hosttune.journal import Store
from hosttune.machine.child import in_child
from hosttune.machine.scratch import Scratch
from hosttune.model.plan import Action
from hosttune.model.result import Result
from hosttune.settings.files import Ksm
from hosttune.settings.setting import Setting
from hosttune.transaction.engine import StepResults, carry_out
from hosttune.transaction.kinds import setting_of
from hosttune.transaction.steps import SettingStep, prepare

PR_SET_PDEATHSIG = 1
HOSTTUNE = Path(sys.executable).with_name("hosttune")

# --- signals -------------------------------------------------------------------------------------------------

STOPS = {
    "SIGINT": (signal.SIGINT,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGHUP": (signal.SIGHUP,),
    "SIGTERM and SIGHUP": (signal.SIGTERM, signal.SIGHUP),  # a session that ends
}
MOST = 5  # signals of one sweep in a sample
STOPPED = ("ksm", "driver", "irqbalance-ban of a running irqbalance")


@pytest.mark.sweep(most=5)
@pytest.mark.parametrize("name", STOPPED)
@pytest.mark.parametrize("stop", STOPS)
def test_asked_to_stop_at_any_point_it_takes_all_back(stop: str, name: str, tmp_path: Path) -> None:
    """Exit 1 from the first step on. Before it nothing is done yet: the usual end of a command that was interrupted."""
    lab = lab_of(EXAMPLES[name], tmp_path / "root")
    lab.anew()
    count = run_forked(lab.root, applying(lab.example), Faults()).count
    assert count > 20
    codes = []
    for at in sample(f"{stop} {name}", range(1, count + 1), MOST):
        lab.anew()
        ended = run_forked(lab.root, applying(lab.example), Faults(at=at, act=send(*STOPS[stop])))
        assert ended.fired, at
        # A child that is ended in the middle may leave its unfinished copy, as one that is killed (`faultkills`).
        wrong = [text for text in back_at_original(lab) if not text.endswith(".hosttune-new is left")]
        assert wrong == [], ended.fired
        assert ended.code == 1 or not any(one.records for one in transactions(lab.root)), ended.fired
        codes.append(ended.code)
    assert codes.count(1) > (20 if FULL else 0)
    assert set(codes) <= {1, 130, None}
    assert codes == sorted(codes, key=lambda code: code == 1)  # 130 or the signal's default first, 1 ever after


@pytest.mark.sweep(most=5)
@pytest.mark.parametrize("name", STOPPED)
def test_asked_to_stop_a_revert_goes_to_its_end(name: str, tmp_path: Path) -> None:
    lab = lab_of(EXAMPLES[name], tmp_path / "root")
    count = run_forked(lab.root, reverting(lab.example), Faults()).count
    assert count > 20
    for at in sample(f"revert {name}", range(1, count + 1), MOST):
        lab.anew()
        applying(lab.example)(site_on(lab.root))
        ended = run_forked(lab.root, reverting(lab.example), Faults(at=at, act=send(signal.SIGTERM)))
        assert ended.fired, at
        if applied_state(lab.root, lab.records) == ("new",) * len(lab.records):  # before it began
            assert ended.code in (130, None)
            _, code = reverting(lab.example)(site_on(lab.root))
            assert code == 0
        assert list(back_at_original(lab)) == [], ended.fired


# --- two at once ---------------------------------------------------------------------------------------------


def _read_until(fd: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        assert select.select([fd], [], [], 60)[0], seen
        seen += os.read(fd, 4096)
    return seen


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A scratch root that the command can discover, with its plan saved; only thp is to change."""
    example = EXAMPLES["thp"]
    files = {
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "sys/devices/system/cpu/present": "0-1\n",
        "sys/devices/system/cpu/online": "0-1\n",
        "proc/cpuinfo": "processor\t: 0\n\nprocessor\t: 1\n",
    }
    root = fresh_root(tmp_path / "root", {**example.files, **files}, {})
    digest = discover(Scratch(str(root))).digest
    assert digest is not None
    plan = hosttune.Plan.from_json(example.plan.to_json().replace("d" * 64, digest))
    state = root / "var/lib/hosttune"
    state.mkdir(parents=True)
    (state / "plan.json").write_text(plan.to_json())
    return root


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HOSTTUNE, *words], capture_output=True, text=True, check=False, timeout=60)


def test_a_second_apply_is_refused_and_told_who_holds_the_lock(saved: Path) -> None:
    """The first one waits at its prompt, in a terminal, with the lock held."""
    before = tree_of(saved)
    child, terminal = pty.fork()
    if child == 0:
        os.execv(HOSTTUNE, ["hosttune", "apply", "--root", str(saved)])
    _read_until(terminal, b"[y/N]")
    for verb in (["apply", "--yes"], ["revert", "--yes"], ["recover"]):
        second = command(*verb, "--root", str(saved))
        assert second.returncode == 3, second.stderr
        assert f"another hosttune (process {child})" in second.stderr
        assert "where:" in second.stderr
        assert "do:" in second.stderr
    assert tree_of(saved) == before
    os.write(terminal, b"y\n")
    with contextlib.suppress(OSError):  # a terminal without its process answers EIO
        while os.read(terminal, 4096):
            pass
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.WEXITSTATUS(status) == 0
    assert "never" in Scratch(str(saved)).read("/sys/kernel/mm/transparent_hugepage/enabled").split("[")[1]  # type: ignore[union-attr]  # it is there
    again = command("apply", "--yes", "--root", str(saved), "-o", "json")
    assert again.returncode == 0
    assert Result.from_json(again.stdout).changed is False


def test_the_lock_ends_with_its_process(saved: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(HOSTTUNE, ["hosttune", "apply", "--root", str(saved)])
    _read_until(terminal, b"[y/N]")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(terminal)
    assert command("apply", "--yes", "--root", str(saved)).returncode == 0


# --- stuck ---------------------------------------------------------------------------------------------------


class Short(Ksm):
    """Same-page merging whose write is given up soon."""

    limit_seconds: ClassVar[float | None] = 0.3


class Hanging(Scratch):
    """A scratch root where one write never returns."""

    def write(self, path: str, text: str) -> None:
        if path == Ksm.path:
            (Path(self.root) / "writer").write_text(str(os.getpid()))
            while True:
                time.sleep(60)
        super().write(path, text)


class Orphaned(Hanging):
    """And its process outlives the engine, as one does that hangs in the kernel where no signal reaches it."""

    def write(self, path: str, text: str) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
        super().write(path, text)


TOGETHER = together(EXAMPLES["thp"], EXAMPLES["numa-balancing"], EXAMPLES["ksm"])


def action(kind: str, target: str, want: Any, *, needed: bool) -> Action:
    return Action(
        id=f"{kind}:{target}", kind=kind, target=target, current=None, want=want, effect="now", needed=needed,
        reversible=True, why="",
    )  # fmt: skip


def stuck_run(root: Path, system: Scratch, *, needed: bool) -> StepResults:
    """thp, then the write that hangs, then NUMA balancing."""
    settings: list[tuple[Setting, Any]] = []
    for kind, target, want in TOGETHER.wants:
        settings.append((Short(target) if kind == "ksm" else setting_of(kind, target), want))
    settings.sort(key=lambda row: ("thp", "ksm", "numa-balancing").index(row[0].kind))
    steps = []
    for setting, want in settings:
        wanted = action(setting.kind, setting.target, want, needed=needed)
        steps.append(SettingStep(setting, want, (wanted,), {wanted.id: ""}))
    store = Store(str(root / "var/lib/hosttune"))
    with store.locked():
        journal = store.begin(1, verb="apply", version="0", boot_id=None)
        try:
            return carry_out(system, journal, prepare(system, steps, {}), quiet)
        finally:
            journal.close()


def writer_of(root: Path) -> int:
    return int((root / "writer").read_text())


def alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists() and ") Z " not in Path(f"/proc/{process}/stat").read_text()


def test_a_write_that_hangs_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    root = fresh_root(tmp_path / "root", TOGETHER.files, {})
    carried = stuck_run(root, Hanging(str(root)), needed=False)
    assert [made.outcome for _, made in sorted(carried.made.items())] == ["done", "stuck", "done"]
    assert carried.succeeded
    assert "no answer within 0.3 s" in (carried.made[2].why or "")
    (transaction,) = transactions(root)
    assert (transaction.state, [record.outcome for record in transaction.records]) == (
        "applied",
        ["done", "stuck", "done"],
    )
    assert not alive(writer_of(root))  # a kernel that heeds the signal lets it go


def test_a_needed_write_that_hangs_takes_all_back(tmp_path: Path) -> None:
    root = fresh_root(tmp_path / "root", TOGETHER.files, {})
    before = tree_of(root)
    carried = stuck_run(root, Hanging(str(root)), needed=True)
    assert [made.outcome for _, made in sorted(carried.made.items())] == ["done", "stuck"]
    assert (carried.failed, carried.succeeded) == (2, False)
    (root / "writer").unlink()
    assert tree_of(root) == before


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A root whose engine was killed while its child hangs, and that child."""
    root = fresh_root(tmp_path / "root", TOGETHER.files, {})
    engine = os.fork()
    if engine == 0:
        stuck_run(root, Orphaned(str(root)), needed=True)
        os._exit(0)
    deadline = time.monotonic() + 60
    while not ((root / "writer").exists() and (root / "writer").read_text()) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(engine, signal.SIGKILL)
    os.waitpid(engine, 0)
    child = writer_of(root)
    yield root, child
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def test_the_lock_is_free_when_only_the_hanging_child_is_left(orphan: tuple[Path, int]) -> None:
    root, child = orphan
    assert alive(child)
    with Store(str(root / "var/lib/hosttune")).locked():
        assert alive(child)
    assert not [fd for fd in Path(f"/proc/{child}/fd").iterdir() if "transactions" in str(fd.readlink())]
    assert transactions(root)[0].is_open


def test_a_child_that_is_given_up_does_not_hold_the_answer_back() -> None:
    with pytest.raises(Stuck, match=r"no answer within 0\.05 s"):
        in_child(lambda: time.sleep(60), 0.05, "a write")
