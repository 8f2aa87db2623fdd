"""What is root's and what a user has: the state that a user does not see, and the plan that root does not find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root becomes another user")

PROGRAM = """
import contextlib, io, os, sys
from hosttune.cli import run
with contextlib.redirect_stdout(io.StringIO()):  # imports all: another user may not read the interpreter's files
    run(sys.argv[1:])
os.setgid(65534)
os.setuid(65534)
sys.exit(run(sys.argv[1:]))
"""


def as_another_user(state: Path, made: str) -> subprocess.CompletedProcess[str]:
    """`status` of a user whose state is in `state`, on a machine where `made` has made what is in /var/lib."""
    script = f'mount -t tmpfs none /var/lib && {made} && exec {sys.executable} -c "$0" status -o json'
    kept = {name: value for name, value in os.environ.items() if name != "HOSTTUNE_STATE"}
    where = {**kept, "XDG_STATE_HOME": str(state), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, PROGRAM], env=where, capture_output=True, text=True, check=False, cwd="/"
    )
    if "mount: " in done.stderr or "unshare: " in done.stderr:
        pytest.skip("no mount namespace here")
    return done


@pytest.mark.parametrize(
    ("made", "known"),
    [
        ("true", True),
        ("install -d -m 700 /var/lib/hosttune/transactions", False),
        ("install -d -m 700 /var/lib/hosttune", False),
        ("install -d /var/lib/hosttune/validations", True),
        ("install -d /var/lib/hosttune/transactions && touch /var/lib/hosttune/transactions/000001.jsonl", False),
    ],
    ids=["no state of root", "unreadable journals", "unreadable folder", "nothing applied", "journals left readable"],
)
def test_what_root_has_applied_is_unknown_to_a_user(tmp_path: Path, made: str, known: bool) -> None:
    for folder in (tmp_path, *tmp_path.parents):  # another user must reach it
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    done = as_another_user(tmp_path / "state", made)
    found = json.loads(done.stdout)
    assert (done.returncode, found["state_known"], found["entries"]) == (0 if known else 1, known, [])
    if not known:
        (note,) = found["notes"]
        assert "run hosttune status as root" in note


def test_a_state_directory_that_was_named_is_the_one_that_counts(tmp_path: Path) -> None:
    script = 'mount -t tmpfs none /var/lib && install -d -m 700 /var/lib/hosttune/transactions && exec "$@"'
    words = [sys.executable, "-c", PROGRAM, "status", "-o", "json"]
    where = {**os.environ, "HOSTTUNE_STATE": "/nowhere", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *words], env=where, capture_output=True, text=True, check=False
    )
    if "mount: " in done.stderr or "unshare: " in done.stderr:
        pytest.skip("no mount namespace here")
    assert (done.returncode, json.loads(done.stdout)["state_known"]) == (0, True)


@pytest.mark.parametrize(("uid", "named"), [("0", True), ("", False), ("4294967297", False)])
def test_root_is_told_of_the_plan_that_the_user_saved(tmp_path: Path, uid: str, named: bool) -> None:
    saved = tmp_path / "of a user" / "hosttune" / "plan.json"
    saved.parent.mkdir(parents=True)
    saved.write_text("{}")
    where = {
        **os.environ, "HOSTTUNE_STATE": str(tmp_path / "of root"), "XDG_STATE_HOME": str(tmp_path / "of a user"),
        "SUDO_UID": uid, "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    words = [sys.executable, "-c", "from hosttune.cli import main; main()", "apply", "--yes"]
    done = subprocess.run(words, env=where, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "no plan is saved" in done.stderr
    assert (f"hosttune apply '{saved}'" in done.stderr) is named
    assert ("hosttune plan" in done.stderr) is not named
