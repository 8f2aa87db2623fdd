"""Kill -9 while a board is set, put back and set right again: old or new, and no guest on a wrong partition."""

from __future__ import annotations

from pathlib import Path

import boardroots
import pytest
from boardkills import judged, killed, left_at, linked, standing, told
from boardroots import BoardRoot, asked, ends, with_board
from sweeps import sample

from hosttune.machine import archive

lean_host = boardroots.lean_host
REAL = 1  # kills of a process; the others are what it would leave


@pytest.fixture
def root(lean_host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(archive, "Scratch", BoardRoot)
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "outside"))
    return linked(lean_host, tmp_path / "root")


def series(root: Path, name: str, most: int, *argv: str) -> None:
    """Kill a command at `most` of its points, in a full sweep at a thousand at most, each on a copy of the root."""

    def on(target: Path) -> tuple[Path, list[str]]:
        return linked(root, target), [argv[0], "--root", str(target), *argv[1:]]

    folder = root.with_name(f"{root.name}-kills")
    folder.mkdir()
    old = standing(root)
    whole, words = on(folder / "whole")
    ended = killed(whole, 0, words)
    assert (ended.code, ended.strays) == (0, 0)
    new, points = standing(whole), range(1, ended.count + 1)
    wrong = []
    for at in sample(f"board {name} process", points, REAL)[:20]:
        one, words = on(folder / f"process-{at}")
        fired = killed(one, at, words).fired
        wrong += [f"killed at {at}, {fired}: {text}" for text in judged(one, old, new)]
    one, words = on(folder / "watched")
    chosen = sample(f"board {name}", points[:1000], most)
    for at, what in left_at(one, chosen, words, folder / "left").items():
        wrong += [f"cut at {at}, {what}: {text}" for text in judged(folder / "left" / str(at), old, new)]
    assert wrong == []


def test_a_partition_is_set(root: Path, tmp_path: Path) -> None:
    with_board(root)
    series(root, "set", 8, "apply", "--intent", asked(tmp_path, a={"gpus": 2}), "--yes", "--start")


def test_a_partition_is_put_back(root: Path, tmp_path: Path) -> None:
    board = with_board(root)
    words = ("apply", "--root", str(root), "--intent", asked(tmp_path, a={"gpus": 2}), "--yes", "--start")
    assert told(*words)[0] == 0
    ends(board, "a")
    series(root, "put back", 6, "revert", "--yes")
