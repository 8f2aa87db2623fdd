"""Kill -9 while a board is set, put back and set right again: old or new, and no guest on a wrong partition."""

from __future__ import annotations

import subprocess
from pathlib import Path

import boardroots
import pytest
from applyroots import GPU
from board import Board
from boardkills import judged, killed, left_at, linked, standing, told
from boardroots import BoardRoot, asked, ends, with_board, with_nvlink5
from sweeps import FULL, sample

from hosttune.machine import scratch

lean_host = boardroots.lean_host
FRAMEWORKS = ("mdev", "vfio")


@pytest.fixture
def root(lean_host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scratch, "Scratch", BoardRoot)
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "outside"))
    return linked(lean_host, tmp_path / "root")


def series(root: Path, share: float, *argv: str, process: bool = False) -> None:
    """Kill a command at a share of its points, in a full sweep at each.

    What a kill would leave is kept as the command runs on; `process`: a process is killed, too: it is the same.
    """
    folder = root.with_name(f"{root.name}-kills")
    folder.mkdir()

    def on(name: str) -> tuple[Path, list[str]]:
        one = linked(root, folder / name)
        return one, [argv[0], "--root", str(one), *argv[1:]]

    old, boot = standing(root), "--boot" in argv
    wrong, count = list[str](), 0
    parts = 5 if FULL else 1  # what a kill has left is ten thousand files
    for part in range(parts):
        whole, words = on("whole")
        ended = left_at(whole, 1.0 if FULL else share, words, folder / "left", part, parts)
        assert (ended.code, ended.strays) == (0, 0)
        new = standing(whole)
        old = new if boot else old  # each setting by itself: the next boot does the rest
        for path in sorted((folder / "left").glob("*.what"), key=lambda path: int(path.stem)):
            found = judged(path.with_suffix(""), old, new, boot=boot)
            wrong += [f"killed at {path.stem}, {path.read_text()}: {text}" for text in found]
            count += 1
        subprocess.run(["rm", "-rf", str(whole), str(folder / "left")], check=True)
    for at in sample(f"board {argv[0]}", range(1, ended.count + 1), 1)[:20] if process and FULL else ():
        one, words = on(f"process-{at}")
        fired = killed(one, at, words).fired
        assert fired, f"no point {at} of {ended.count}"
        wrong += [f"killed at {at}, {fired}: {text}" for text in judged(one, old, new)]
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    assert wrong == []
    assert count >= 3
    print(f"killed at {count} points of {ended.count}")


def test_a_partition_is_set(root: Path, tmp_path: Path) -> None:
    with_board(root)
    series(root, 0.13, "apply", "--intent", asked(tmp_path, a={"gpus": 2}), "--yes", "--start", process=True)


def test_gpus_are_reset_before_their_partition_is_set(root: Path, tmp_path: Path) -> None:
    with_nvlink5(root)
    series(root, 0.12, "apply", "--intent", asked(tmp_path, a={"gpus": 2}), "--yes")


def test_a_partition_is_put_back(root: Path, tmp_path: Path) -> None:
    board = with_board(root)
    words = ("apply", "--root", str(root), "--intent", asked(tmp_path, a={"gpus": 2}), "--yes", "--start")
    assert told(*words)[0] == 0
    ends(board, "a")
    series(root, 0.1, "revert", "--yes")


@pytest.mark.parametrize("framework", sample("vGPUs killed", FRAMEWORKS, 1))
def test_vgpus_are_made(root: Path, tmp_path: Path, framework: str) -> None:
    board = with_board(root, vgpus=framework)
    board.run(("sriov-manage", "-e", GPU))
    intent = asked(tmp_path, m={"mig": {"profile": "1g.18gb", "count": 2}})
    series(root, 0.12, "apply", "--intent", intent, "--yes", "--start", "--disrupt", GPU)


@pytest.mark.parametrize("framework", sample("reboots killed", FRAMEWORKS, 1))
def test_all_is_set_again_after_a_reboot(root: Path, tmp_path: Path, framework: str) -> None:
    board = with_board(root, vgpus=framework)
    board.run(("sriov-manage", "-e", GPU))
    intent = asked(tmp_path, a={"gpus": 2}, m={"mig": {"profile": "1g.18gb", "count": 2}})
    for _ in range(2):  # types are known once their instances are there
        told("apply", "--root", str(root), "--intent", intent, "--yes", "--start", "--disrupt", GPU)
    assert {*Board(root).guests} == {"a", "m"}
    board.boot()
    board.plant(vf_order=int(framework == "vfio"))
    series(root, 0.3, "apply", "--boot")
