"""Metrics: the textfile, whole or not at all, and the two commands that write metrics."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from exposed import value, values

from hosttune.cli import run
from hosttune.errors import BadInput
from hosttune.metrics import MOST_SERIES, check_textfile, write_textfile

ROOT = Path(__file__).resolve().parents[3]
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "state"))

    def call(*words: str) -> tuple[int, str, str]:
        code = run(list(words))
        return code, *capsys.readouterr()

    return call


# --- the textfile --------------------------------------------------------------------------------------------


def test_the_textfile_is_whole_and_readable_by_all(tmp_path: Path) -> None:
    path = tmp_path / "host.prom"
    before = os.umask(0o077)
    try:
        write_textfile(str(path), "# HELP hosttune_x x\n")
        write_textfile(str(path), "# HELP hosttune_y y\n")
    finally:
        os.umask(before)
    assert path.read_text() == "# HELP hosttune_y y\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["host.prom"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("missing/host.prom", "no such folder"),
        ("file/host.prom", "not a folder"),
        ("host.txt", "only files that end in .prom"),
        (".prom", "only files that end in .prom"),
        ("folder.prom", "something else than a file"),
        ("link.prom", "something else than a file"),
        ("theirs.prom", "a file that hosttune has not written"),
        ("second.prom", "has hosttune's metrics already"),
        ("long" * 100 + ".prom", "cannot write"),
    ],
)
def test_a_path_that_is_not_ours_to_write(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.prom").mkdir()
    (tmp_path / "link.prom").symlink_to(tmp_path / "file")
    (tmp_path / "theirs.prom").write_text("# HELP other x\n")
    if name == "second.prom":
        (tmp_path / "first.prom").write_text("# HELP hosttune_x x\nhosttune_x 1\n")
    before = {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")}
    for call in (check_textfile, lambda path: write_textfile(path, "# HELP hosttune_x x\n")):
        with pytest.raises(BadInput, match=what) as error:
            call(str(tmp_path / name))
        assert error.value.hint
    assert {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")} == before


CHILD = """
import resource, sys
from hosttune.errors import BadInput
from hosttune.metrics import write_textfile
import signal
{}
try:
    write_textfile(sys.argv[1], "# HELP hosttune_x x\\n" + "x" * 100000)
except BadInput as error:
    print(error.what); print(error.hint)
"""
FULL = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
NOBODY = "import os; os.setgid(65534); os.setuid(65534)"


def child(path: Path, prologue: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", CHILD.format(prologue), str(path)]
    return subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


def test_a_write_that_the_disk_refuses_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "host.prom"
    path.write_text("# HELP hosttune_old x\n")
    done = child(path, FULL)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"cannot write {path}: File too large")
    assert path.read_text() == "# HELP hosttune_old x\n"
    assert os.listdir(tmp_path) == ["host.prom"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_users_folder(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):  # another user must reach it, and may not write in it
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    done = child(tmp_path / "host.prom", NOBODY)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Permission denied" in done.stdout
    assert "as root" in done.stdout
    assert os.listdir(tmp_path) == []


def test_a_killed_write_leaves_the_old_file_and_is_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "host.prom"
    write_textfile(str(path), "# HELP hosttune_old x\n")
    kill = "import os, hosttune.machine.files as f; f.os.replace = lambda *_: os.kill(os.getpid(), 9)"
    assert child(path, kill).returncode == -signal.SIGKILL
    assert path.read_text() == "# HELP hosttune_old x\n"
    assert len(os.listdir(tmp_path)) == 2  # the collector does not read a name that ends in .tmp
    (tmp_path / "other.prom.1.tmp").write_text("not ours")
    write_textfile(str(path), "# HELP hosttune_new x\n")
    assert sorted(os.listdir(tmp_path)) == ["host.prom", "other.prom.1.tmp"]


# --- the commands --------------------------------------------------------------------------------------------


def test_metrics_of_a_captured_host(cli: Cli) -> None:
    code, out, err = cli("metrics", "--root", "@example")
    assert (code, err) == (0, "")
    found = values(out)
    assert len(found) <= MOST_SERIES
    assert value(found, "hosttune_devices", kind="gpu") == 8
    assert value(found, "hosttune_run_exit_code", verb="metrics") == 0


def test_validate_as_metrics_exits_0_and_tells_the_exit_code(cli: Cli) -> None:
    capture = str(ROOT / "tests/hosts/older/vm-x1.tar.gz")
    assert cli("validate", "--root", capture)[0] == 1
    code, out, err = cli("validate", "--root", capture, "-o", "prometheus")
    assert (code, err) == (0, "")
    assert value(values(out), "hosttune_run_exit_code", verb="validate") == 1


def test_this_machine_in_a_textfile_and_nothing_else_is_written(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "host.prom"
    path.parent.mkdir()
    assert cli("metrics", "--textfile", str(path)) == (0, "", "")
    assert len(values(path.read_text())) <= MOST_SERIES
    assert sorted(str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*")) == ["metrics", "metrics/host.prom"]


@pytest.mark.parametrize(
    ("code", "words", "what"),
    [
        (3, ("--root", "@example", "--textfile", "x.prom"), "a captured host cannot be written to a textfile"),
        (2, ("--textfile", "/nowhere/x.prom"), "no such folder"),
        (2, ("--textfile", "/dev/null"), "only files that end in .prom"),
        (2, ("--textfile", ""), "an empty value"),
        (2, ("--root", "/nowhere"), "/nowhere"),
        (2, ("--expect", "/nowhere"), "cannot read /nowhere"),
        (2, ("--root", "@example", "--host", "x"), "both --root and --host"),
    ],
)
def test_bad_input_is_one_error(cli: Cli, code: int, words: tuple[str, ...], what: str) -> None:
    found = cli("metrics", *words)
    assert found[:2] == (code, "")
    assert what in found[2]
    assert found[2].startswith("error: ")
    assert len(found[2].splitlines()) == 3
