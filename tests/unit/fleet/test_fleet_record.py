"""The record: whole lines, appended by one run at a time, read with suspicion; and the locks of the folder."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fleetsim import Fleet, begin, lines_in, names, rollout_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hosttune.errors import BadInput, Refused
from hosttune.fleet.launch import main as launch
from hosttune.fleet.record import (
    Ended,
    HostDone,
    Line,
    Members,
    Resumed,
    RunBegun,
    Stopped,
    WaveBegun,
    decode,
    encode,
    last_took,
    new_run,
    past_run,
)
from hosttune.fleet.results import ASKING, RECORD, held

AT = "2026-01-02T03:04:05+00:00"
BEGAN = RunBegun(run="r1", at=AT, verb="apply", version="1", hosts=3, waves=("1", "100%"))
LINES = (
    BEGAN,
    Members(run="r1", wave=1, hosts=("a",)),
    Members(run="r1", wave=2, hosts=("b\n", "ü{{ c }}")),
    WaveBegun(run="r1", at=AT, wave=1, hosts=1),
    HostDone(run="r1", wave=1, host="a", outcome="slow", phase="apply", why='said "no"\nand went'),
    Stopped(run="r1", at=AT, why="the gate after wave 1 of 2 did not open"),
    Ended(run="r1", at=AT, exit_code=1),
)
DATA = b"".join(encode(line) + b"\n" for line in LINES)


def test_lines_come_back_as_they_were() -> None:
    assert decode(DATA) == LINES
    assert DATA.count(b"\n") == len(LINES)


@given(st.integers(0, len(DATA)))
def test_a_record_that_was_cut_off_anywhere_gives_its_whole_lines(size: int) -> None:
    whole = DATA[:size].count(b"\n")
    assert decode(DATA[:size]) == LINES[:whole]


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"event":"else"}', b'{"event":"ended","run":"r"}', b"\xff"])
def test_any_other_line_that_does_not_read_is_named(line: bytes) -> None:
    with pytest.raises(BadInput, match="a line of the record cannot be read") as refused:
        decode(encode(BEGAN) + b"\n" + line + b"\n" + encode(LINES[1]) + b"\n", where="results/run.jsonl")
    assert refused.value.where == "results/run.jsonl:2"


def test_a_run_is_put_together_from_its_own_lines() -> None:
    other: tuple[Line, ...] = (
        RunBegun(run="r2", at=AT, verb="validate", version="1", hosts=1),
        Members(run="r2", wave=1, hosts=("a",)),
        HostDone(run="r2", wave=1, host="a", outcome="ok"),
    )
    past = past_run((*LINES[:5], *other, *LINES[5:]), "apply")
    assert past is not None
    assert past.whole
    assert past.members == {1: ("a",), 2: ("b\n", "ü{{ c }}")}
    assert past.done["a"].outcome == "slow"
    assert past.asked == {1}
    assert past.exit_code == 1
    assert past.stopped == "the gate after wave 1 of 2 did not open"


def test_the_last_run_of_the_verb_counts_and_check_mode_is_none() -> None:
    lines = (
        BEGAN,
        RunBegun(run="r2", at=AT, verb="apply", version="1", hosts=0),
        RunBegun(run="r3", at=AT, verb="revert", version="1", hosts=0),
        RunBegun(run="r4", at=AT, verb="apply", version="1", hosts=0, check=True),
    )
    assert [past_run(lines, verb).run for verb in ("apply", "revert")] == ["r2", "r3"]  # type: ignore[union-attr]
    assert past_run(lines, "validate") is None
    assert past_run(lines).run == "r3"  # type: ignore[union-attr]
    assert past_run(lines, None, "r4").run == "r4"  # type: ignore[union-attr]


def test_what_the_last_run_in_one_go_took_is_told() -> None:
    def run(name: str, end: str, *between: Line) -> tuple[Line, ...]:
        done = (HostDone(run=name, wave=1, host=host, outcome="ok") for host in ("a", "b"))
        return (replace(BEGAN, run=name), *done, *between, Ended(run=name, at=end, exit_code=0))

    first, later = (
        run("r2", "2026-01-02T03:10:05+00:00"),
        run("r3", "2026-02-02T03:10:05+00:00", Resumed(run="r3", at=AT, how="retry")),
    )
    assert last_took((*first, *later), "apply") == "the last one took 6 min for 2 hosts"
    assert last_took((*first, BEGAN), "validate") == last_took((BEGAN,), "apply") == ""
    assert last_took(run("r2", "then"), "apply") == ""


def test_going_on_takes_back_the_end_and_another_gate_the_proofs() -> None:
    good = HostDone(run="r1", wave=1, host="a", outcome="ok")
    same = past_run((*LINES, good, Resumed(run="r1", at=AT, how="resume")), "apply")
    assert same is not None
    assert (same.stopped, same.exit_code) == (None, None)
    assert "a" in same.done
    other = past_run((*LINES, good, Resumed(run="r1", at=AT, how="resume", gate="worse")), "apply")
    assert other is not None
    assert (other.gate, other.done) == ("worse", {})


def test_no_two_runs_have_one_id() -> None:
    assert len({new_run() for _ in range(100)}) == 100


def test_a_torn_line_is_cut_off_before_the_next_is_written(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(encode(BEGAN) + b'\n{"event":"host","ru')
    with held(str(tmp_path)) as journal:
        journal.add(encode(LINES[1]))
    assert lines_in(tmp_path) == LINES[:2]


def test_a_record_that_is_one_torn_line_is_empty(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(b"x" * 200_000)
    with held(str(tmp_path)) as journal:
        journal.add(encode(BEGAN))
    assert lines_in(tmp_path) == (BEGAN,)


def test_runs_of_one_folder_stand_one_after_the_other(tmp_path: Path) -> None:
    begin(rollout_of(tmp_path, "discover", names(2), run="r1"), tmp_path, Fleet())
    begin(rollout_of(tmp_path, "discover", names(2), run="r2"), tmp_path, Fleet())
    assert [line.run for line in lines_in(tmp_path) if isinstance(line, RunBegun)] == ["r1", "r2"]


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        held(str(tmp_path)),
        pytest.raises(Refused, match=f"process {os.getpid()} works on it") as refused,
        held(str(tmp_path)),
    ):
        pass
    assert (refused.value.where, refused.value.exit_code) == (str(tmp_path), 3)
    with held(str(tmp_path)):  # the lock went with its holder
        pass


def test_a_run_waits_for_the_ansible_of_one_that_was_killed(tmp_path: Path) -> None:
    with held(str(tmp_path)):
        pass
    fd = os.open(tmp_path / ASKING, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    try:
        with pytest.raises(Refused, match="still asking hosts"), held(str(tmp_path), wait_seconds=0.1):
            pass
    finally:
        os.close(fd)
    with held(str(tmp_path), wait_seconds=0.1):
        pass


def test_ansible_holds_the_lock_for_as_long_as_it_is_there(tmp_path: Path) -> None:
    with held(str(tmp_path)):
        launcher = [sys.executable, "-P", launch.__code__.co_filename, str(os.getpid()), str(tmp_path / ASKING)]
        child = subprocess.Popen([*launcher, "/bin/sh", "-c", "echo here; read line"], stdin=-1, stdout=-1)
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"here\n"
    try:
        with pytest.raises(Refused, match="still asking hosts"), held(str(tmp_path), wait_seconds=0.05):
            pass
    finally:
        child.communicate(b"\n", timeout=20)
    with held(str(tmp_path), wait_seconds=0.05):
        pass


def test_ansible_does_not_start_for_a_run_that_is_gone(tmp_path: Path) -> None:
    launcher = [sys.executable, "-P", launch.__code__.co_filename, "1", str(tmp_path / ASKING)]
    done = subprocess.run([*launcher, "/bin/echo", "started"], capture_output=True, check=False, timeout=20)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write") as refused, held(str(tmp_path / "file" / "results")):
        pass
    assert "--results" in refused.value.hint


def test_a_link_in_the_place_of_the_record_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / RECORD).symlink_to("/dev/null")
    with pytest.raises(BadInput, match="cannot write"), held(str(tmp_path)):
        pass
