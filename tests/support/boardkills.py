"""Kill -9 at the points of a command on a board, and what must hold then: old or new, and a trace without fault."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from board import Board
from boardroots import BoardRoot
from boardtrace import trace_of, wrongs
from faultlab import Ended, Faults, Job, effect_names, kill, run_forked
from sweeps import FULL, SEED

from hosttune.cli import run
from hosttune.machine import scratch
from hosttune.machine.system import STATE_INSIDE
from hosttune.model.result import Result


class FaultyBoard(BoardRoot):
    """A board whose changes are points of `faults`, as `faultlab.Faulty`."""

    faults: Faults


def _with_points(name: str) -> Callable[..., Any]:
    original: Callable[..., Any] = getattr(BoardRoot, name)

    def method(self: FaultyBoard, *arguments: Any, **named: Any) -> Any:
        with self.faults.effect(name, " ".join(map(str, arguments))[:200]):
            return original(self, *arguments, **named)

    return method


for _name in effect_names():
    setattr(FaultyBoard, _name, _with_points(_name))


def told(*argv: str) -> tuple[int, str]:
    """A command's exit code and all that it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        return run(list(argv)), out.getvalue()


def command(*argv: str) -> Job:
    """A command of the command line as a job that can be killed. What a board reads is no point."""

    def job(site: Any) -> tuple[Result, int]:
        FaultyBoard.faults = site.system.faults
        scratch.Scratch = FaultyBoard  # type: ignore[assignment,misc]  # in a process of its own
        return Result(verb="apply"), told(*argv)[0]

    return job


def killed(root: Path, at: int, argv: Sequence[str]) -> Ended:
    """A command that is killed at its nth point; 0: at none."""
    return run_forked(root, command(*argv), Faults(at=at, act=kill))


def left_at(root: Path, share: float, argv: Sequence[str], folder: Path, part: int = 0, parts: int = 1) -> Ended:
    """Run a command; folder/POINT is what a kill at that point would have left, for this share of a part of the points.

    The root must be hard links: what is not appended to is replaced, so a link keeps it. A sample has points before and
    after changes of the machine alone, a full sweep each change of a file, too.
    """

    def keep(faults: Faults, what: str) -> None:
        chosen = Random(f"{SEED} {argv[0]} {faults.count}").random() < share  # in a child, too
        if chosen and faults.count % parts == part:
            (folder / f"{faults.count}.what").write_text(what)
            linked(root, folder / str(faults.count))

    folder.mkdir()
    return run_forked(root, command(*argv), Faults(at=1, act=keep, persistent=True), watch=FULL)


def linked(root: Path, target: Path) -> Path:
    """A root by hard links, but for its state directory."""
    state = STATE_INSIDE[1:]
    subprocess.run(["cp", "-al", str(root), str(target)], check=True)
    if (root / state).exists():
        shutil.rmtree(target / state)
        subprocess.run(["cp", "-a", str(root / state), str(target / state)], check=True)
    return target


def standing(root: Path) -> dict[str, Any]:
    """All of the board that hosttune sets. The ids of GPU instances are the driver's choice."""
    board = Board(root)
    gpus = sorted(board.state["gpus"])
    return {
        "active": board.active,
        "drivers": {gpu: board.driver(gpu) for gpu in gpus},
        "overrides": {gpu: board.text(gpu, "driver_override") for gpu in gpus},
        "methods": {gpu: board.text(gpu, "reset_method") for gpu in gpus},
        "modes": {gpu: board.mig(gpu)["on"] for gpu in gpus},
        "instances": {
            gpu: sorted((one["profile"], one["start"]) for one in board.mig(gpu)["instances"]) for gpu in gpus
        },
        "types": {name: board.type_of(name) for gpu in gpus for name in board.functions(gpu)},
        "guests": board.guests,
    }


def judged(root: Path, old: dict[str, Any], new: dict[str, Any], *, boot: bool = False) -> list[str]:
    """What is wrong after a kill: while things lie as they were left, and after `recover`, or `apply --boot` again."""
    wrong = [f"before: {text}" for text in wrongs(trace_of(root))]
    guests = [word for name in Board(root).guests for word in ("--disrupt", name)]
    code, out = told(*(("apply", "--boot") if boot else ("recover", *guests)), "--root", str(root))
    wrong += [f"exits {code}: {out}"] if code else []
    wrong += wrongs(trace_of(root))
    now = standing(root)
    if now not in (old, new):
        wrong += [
            f"{key}: {now[key]}, neither {old[key]} nor {new[key]}"
            for key in now
            if now[key] not in (old[key], new[key])
        ] or ["in part old, in part new"]
    return wrong
