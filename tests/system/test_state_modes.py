"""Who may read what hosttune keeps: the modes of `hosttune.journal.state.MODES`, whatever the umask is."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import applyroots
import pytest
from applyroots import GPU, STATE, Root

from hosttune.errors import BadInput, Refused, state_remedy
from hosttune.journal.state import MODES, mode_of, save
from hosttune.machine.files import make_folder
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import put_file
from hosttune.transaction.site import refuse_others, site_of

ROOT = Path(__file__).resolve().parents[2]
root = applyroots.root
# In a process of its own, for the umask is the process's: plan, apply, and a validation that is kept.
_CHILD = """
import json, os, sys
os.umask(int(sys.argv[1], 8))
from hosttune.cli import run
root, state, intent = sys.argv[2:]
assert run(["apply", "--root", root, "--intent", intent, "--yes"]) == 0
from hosttune.validating.history import keep
from hosttune.model.validation import Validation
os.environ["HOSTTUNE_STATE"] = state
keep(Validation(host=None, level=1, verdict="pass", results=(), at="2026-01-01T00:00:00+00:00"))
from hosttune.cli.planned import save_plan
from hosttune.model.plan import Plan
kept = os.path.join(root, "var/lib/hosttune/transactions/000001.plan.json")
save_plan(Plan.from_json(open(kept).read()), None)
"""


def test_the_documentation_has_the_same_modes() -> None:
    text = (ROOT / "docs/state.md").read_text()
    listed = dict(re.findall(r"^\| `(/[^`]*)` \| `([0-7]{4})` \|", text, re.MULTILINE))
    assert listed == {path: f"{mode:04o}" for path, mode in MODES.items()}


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_modes_are_those_of_the_table_under_any_umask(root: Root, tmp_path: Path, umask: str) -> None:
    intent = tmp_path / "intent.json"
    guest = {"name": "a", "gpus": [GPU], "seed": True, "disk": "/srv/a.qcow2"}
    intent.write_text(json.dumps({"version": 1, "guests": [guest]}))
    command = [sys.executable, "-c", _CHILD, umask, str(root.path), str(tmp_path / "state"), str(intent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    seen = set()
    for base in (root.path / STATE, tmp_path / "state"):
        for path in (base, *base.rglob("*")):
            inside = "" if path == base else str(path.relative_to(base))
            if inside.split("/")[0] == "scratch":
                continue  # what a scratch root remembers of its stand-ins for the kernel
            name = f"{inside}/" if path.is_dir() and inside else inside
            assert f"{path.stat().st_mode & 0o777:04o}" == f"{mode_of(name):04o}", name
            seen.add(re.sub(r"^/(transactions|validations)/[^/]+$", r"/\1/NAME", f"/{name}").replace("/a/", "/NAME/"))
    wanted = {"/lock", "/transactions/", "/transactions/NAME", "/guests/NAME/seed.iso", "/guests/NAME/user-data"}
    assert wanted | {"/plan.json", "/gpus.json", "/validations/NAME", "/guests/NAME/bundle/install.sh"} <= seen


def test_journals_of_an_earlier_version_are_closed(tmp_path: Path) -> None:
    from hosttune.journal import Store

    (tmp_path / "transactions").mkdir(mode=0o755)
    Store(str(tmp_path)).begin(1, verb="apply", version="0").close()
    assert (tmp_path / "transactions").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "transactions/000001.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["", "transactions"])
def test_a_state_that_another_user_can_change_is_refused(name: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    refuse_others(str(tmp_path))
    (tmp_path / "transactions").mkdir(mode=0o700)
    refuse_others(str(tmp_path))
    (tmp_path / name).chmod(0o777)
    with pytest.raises(Refused, match="another user can change this folder") as caught:
        refuse_others(str(tmp_path))
    assert (caught.value.where, "mode 0777" in caught.value.what) == (str(tmp_path / name), True)


@pytest.mark.parametrize("name", ["lock", "transactions", "gpus.json", "plan.json"])
def test_a_link_in_the_state_of_a_scratch_root_is_refused(name: str, tmp_path: Path) -> None:
    state = tmp_path / "root/var/lib/hosttune"
    state.mkdir(parents=True)
    (tmp_path / "root/.hosttune").mkdir()
    (tmp_path / "root/.hosttune/scratch").write_text("")
    assert site_of(Scratch(str(tmp_path / "root"))).store is not None
    (tmp_path / "elsewhere").mkdir()
    (state / name).symlink_to("/elsewhere")
    with pytest.raises(BadInput, match=r"link|is not a plain file"):
        site_of(Scratch(str(tmp_path / "root")))
    (state / name).unlink()
    (tmp_path / "root/elsewhere").mkdir()
    (state / name).symlink_to("../../../elsewhere")
    with pytest.raises(BadInput, match=r"link|is not a plain file"):
        site_of(Scratch(str(tmp_path / "root")))


def test_a_file_in_the_place_of_the_state_of_a_scratch_root(tmp_path: Path) -> None:
    for name in (".hosttune/scratch", "var/lib/hosttune"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    with pytest.raises(BadInput, match="no state can be kept here: Not a directory") as caught:
        site_of(Scratch(str(tmp_path)))
    assert caught.value.where == f"{tmp_path}: /var/lib/hosttune/lock"


def test_files_that_a_user_named_have_what_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(str(tmp_path / "out.json"), "{}")
        put_file(str(tmp_path / "etc/a/b.conf"), b"x")
        make_folder(str(tmp_path / "c"), 0o711)
    finally:
        os.umask(before)
    modes = {
        name: (tmp_path / name).stat().st_mode & 0o777 for name in ("out.json", "etc", "etc/a", "etc/a/b.conf", "c")
    }
    assert modes == {"out.json": 0o640, "etc": 0o755, "etc/a": 0o755, "etc/a/b.conf": 0o644, "c": 0o711}


def test_what_a_killed_process_left_in_the_state_is_removed_by_the_next_one(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f"a.json.{ended.pid}.tmp", "tmp", "x.tmp"):
        (tmp_path / name).write_text("")
    save(str(tmp_path / "plan.json"), "{}", make_folder=True)
    assert sorted(os.listdir(tmp_path)) == ["plan.json", "tmp", "x.tmp"]
    (tmp_path / "b.json.1.tmp").write_text("")  # of a process that runs
    save(str(tmp_path / "plan.json"), "{}", make_folder=True)
    assert sorted(os.listdir(tmp_path)) == ["b.json.1.tmp", "plan.json", "tmp", "x.tmp"]


def test_a_path_without_a_row_has_no_mode() -> None:
    with pytest.raises(KeyError):
        mode_of("secrets/key")


@pytest.mark.parametrize(
    ("number", "way"), [(errno.EROFS, "remount,rw"), (errno.ENOSPC, "free space"), (errno.EIO, "")]
)
def test_what_to_do_about_the_state_directory_is_never_another_one(number: int, way: str) -> None:
    """Another one does not know what is in force: nothing could be reverted with it."""
    remedy = state_remedy(OSError(number, "refused"))
    assert way in remedy
    assert "HOSTTUNE_STATE" not in remedy
