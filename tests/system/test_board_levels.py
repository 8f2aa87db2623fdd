"""`validate --level 1` to `3` on the stand-in for a board: GPUs are measured in a partition, which goes back."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import boardroots
import pytest
from applyroots import STATE, Cli
from board import Board
from boardkills import told
from boardroots import BoardRoot, asked, clean, ends, with_board

from hosttune.errors import CommandFailed
from hosttune.machine import live

lean_host, root, cli = boardroots.lean_host, boardroots.root, boardroots.cli
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root measures in a partition")


class Measured(BoardRoot):
    """A board that is taken for the machine itself; a measurement is `measure`, and gives no figures."""

    captured = False
    measure: Callable[[Board], object]

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """See System."""
        if "python" in argv[0]:  # the first program of a measurement
            type(self).measure(self.board)
            raise CommandFailed(argv, "not installed")
        return super().run(argv, timeout=timeout)

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        """See System. The GPUs of an active partition are no longer "in progress" (dra-driver-nvidia-gpu#1264)."""
        told = super().query(name, live)
        if name != "nvidia-smi-q-x" or told is None:
            return told
        modules = {module for number in self.board.active for module in self.board.modules(number)}
        for module in modules:
            rest = r"(?:(?!<module_id>).)*?<state>)In Progress(</state>\s*<status>)N/A"
            told = re.sub(rf"(?s)(<module_id>{module}<{rest}", r"\1Completed\2Success", told)
        return told


@pytest.fixture
def board(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Board:
    monkeypatch.setattr(live, "LiveMachine", lambda: Measured(str(cli.root.path)))
    return with_board(cli.root.path)


def validated(level: int, out: Path, measure: Callable[[Board], object]) -> int:
    """`hosttune validate --level N` in a process of its own: its exit status, negative for a signal."""
    child = os.fork()
    if not child:
        Measured.measure = staticmethod(measure)
        code, text = told("validate", "--level", str(level))
        out.write_text(text)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def journals(cli: Cli) -> list[str]:
    return [path.name for path in cli.root.path.glob("var/lib/hosttune/**/transactions/*.jsonl")]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_gpus_are_measured_in_a_partition(cli: Cli, board: Board, tmp_path: Path, level: int) -> None:
    seen = tmp_path / "active"
    assert validated(level, tmp_path / "out", lambda board: seen.write_text(str(board.active))) == 1
    text = (tmp_path / "out").read_text()
    assert (seen.read_text(), board.active, journals(cli)) == ("[0]", [], [])
    assert "in progress, and CUDA fails" not in text
    clean(cli.root)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_measurement_puts_it_back(
    cli: Cli, board: Board, tmp_path: Path, number: signal.Signals
) -> None:
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)  # nohup ignores one of them, and so does the command then
    try:
        code = validated(1, tmp_path / "out", lambda board: os.kill(os.getpid(), number))
    finally:
        signal.signal(number, before)
    assert code not in (0, 1)
    assert (board.active, journals(cli)) == ([], [])
    clean(cli.root)


def defect(board: Board) -> None:
    raise RuntimeError


def test_a_measurement_that_ends_in_a_defect_puts_it_back(cli: Cli, board: Board, tmp_path: Path) -> None:
    assert validated(2, tmp_path / "out", defect) not in (0, 1)
    assert (board.active, journals(cli)) == ([], [])


def killed(board: Board) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_after_a_kill_the_next_command_says_it_and_puts_it_back(cli: Cli, board: Board, tmp_path: Path) -> None:
    intent = asked(tmp_path, a={"gpus": 2})
    assert validated(3, tmp_path / "out", killed) == -signal.SIGKILL
    assert board.active == [0]
    code, out, _ = cli("status")
    assert (code, "hosttune recover" in out) == (1, True), out
    code, _, err = cli("apply", "--intent", intent, "--yes")
    assert (code, "hosttune recover" in err) == (3, True), err
    cli.json("recover")
    assert board.active == []
    assert validated(1, tmp_path / "out", killed) == -signal.SIGKILL
    assert board.active == [0]
    seen = tmp_path / "active"
    assert validated(1, tmp_path / "out", lambda board: seen.write_text(str(board.active))) == 1
    assert (seen.read_text(), board.active) == ("[0]", [])
    assert validated(1, tmp_path / "out", killed) == -signal.SIGKILL
    board.boot()
    cli.json("apply", "--boot")
    assert cli("apply", "--intent", intent, "--yes", "--start")[0] == 0
    clean(cli.root)


def test_status_names_a_measurement_whose_end_does_what_waited(cli: Cli, board: Board, tmp_path: Path) -> None:
    """A guest is turned to MIG while it runs, and ends while other GPUs are measured."""
    guest = {"gpus": ["0000:41:00.0", "0000:56:00.0"]}
    cli.json("apply", "--intent", asked(tmp_path, a=guest), "--yes", "--start")
    mig = asked(tmp_path, a={**guest, "mig": {"profile": "1g.18gb", "count": 2}})
    cli.json("apply", "--intent", mig, "--yes")
    seen = tmp_path / "seen"

    def measure(board: Board) -> None:
        ends(board, "a")
        there = ("--root", str(board.root))
        codes = [told("apply", "--boot", *there)[0], told("status", *there)[0]]
        applied = json.loads(told("status", "-o", "json", *there)[1])
        noted = any("measures in a partition" in note for note in applied["notes"])
        seen.write_text(json.dumps([codes, applied["open_transaction"], noted]))

    assert validated(1, tmp_path / "out", measure) == 1
    assert json.loads(seen.read_text()) == [[3, 0], None, True]
    board.load()
    assert (board.active, cli("status")[0]) == ([], 0)
    clean(cli.root)


def test_a_killed_measurement_hides_no_lost_journals(cli: Cli, board: Board, tmp_path: Path) -> None:
    cli.json("apply", "--intent", asked(tmp_path, a={"gpus": 2}), "--yes")
    board.load()
    before = board.active
    shutil.copytree(cli.root.path / STATE / "transactions", tmp_path / "lost")
    assert validated(1, tmp_path / "out", killed) == -signal.SIGKILL
    for path in (tmp_path / "lost").iterdir():
        (cli.root.path / STATE / "transactions" / path.name).unlink()
    for _ in range(2):
        assert "no journal knows" in cli("status")[1]
        assert cli("recover")[0] in (0, 3)
    assert validated(1, tmp_path / "out", lambda board: None) == 1
    assert "no partition of the NVSwitch fabric is activated to measure" in (tmp_path / "out").read_text()
    board.load()
    assert board.active == before


def test_what_could_not_be_put_back_is_said(cli: Cli, board: Board, tmp_path: Path) -> None:
    assert validated(1, tmp_path / "out", lambda board: board.plant(busy=9)) == 1
    assert "may be active still: hosttune recover" in (tmp_path / "out").read_text()
    board.plant(busy=0)
    cli.json("recover")
    assert board.active == []
