"""Scratch roots made from captures, and the command line run on them: what the tests of apply and status share."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import unpacking

from hosttune.cli import run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "hgx-h200-8.tar.xz"
HOSTS = Path(__file__).resolve().parents[1] / "hosts"
GPU, OTHER_GPU = "0000:41:00.0", "0000:18:00.0"
PAGES = "sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages"
PREFERENCE = "sys/devices/system/cpu/cpu{}/cpufreq/energy_performance_preference"
BOOT_ID = "proc/sys/kernel/random/boot_id"
STATE = "var/lib/hosttune"
JOURNAL = f"{STATE}/transactions/000001.jsonl"
# What a scratch root may keep of an apply that was rolled back: its state, answers of its stand-in for libraries, and
# a driver that was loaded.
_LEFT_BEHIND = (STATE, ".hosttune/commands/nvml", "sys/bus/pci/drivers/vfio-pci")
KEPT_BY_VALIDATE = ("var", "var/lib", STATE, f"{STATE}/gpus.json")
_MADE_ON_THE_WAY = ("var", "var/lib", "sys/bus/pci/drivers")  # folders that a capture may lack
RESULT = {"schema", "host", "verb", "changed", "reboot_required", "entries", "drift", "open_transaction"}
ENTRY = {"action", "outcome", "before", "want", "after", "why", "before_known", "when"}
OUTCOMES = {"done", "already", "clamped", "ignored", "stuck", "failed", "reverted", "conflict", "pending"}


def unpack(archive: Path, target: Path) -> Path:
    """A capture as a scratch root: marked as one, with a machine id where the capture has none."""
    root = unpacking.unpack(archive, target)
    for name, text in ((".hosttune/scratch", ""), ("etc/machine-id", "0123456789abcdef0123456789abcdef\n")):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or not path.read_text().strip():
            path.write_text(text)
    return root


@dataclass(frozen=True)
class Root:
    """A scratch root of one test. An overlay keeps what is written to it in `upper`, above the root `lower`."""

    path: Path
    lower: Path | None = None
    upper: Path | None = None

    def put(self, name: str, text: str) -> None:
        """Change a file as somebody else would. A new file: the old one is a hard link to the capture's."""
        path = self.path / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def get(self, name: str) -> str:
        """A file's text without its line end."""
        return (self.path / name).read_text().rstrip("\n")

    def activate(self, partition: int, *, active: bool = True) -> None:
        """Activate a partition of the NVSwitch fabric, as `fmpm -a` would, or deactivate it."""
        name = ".hosttune/commands/fabric-manager-partitions"
        listed = json.loads(self.get(name))
        for row in listed["partitionInfo"]:
            if row["partitionId"] == partition:
                row["isActive"] = int(active)
        self.put(name, json.dumps(listed, indent=3) + "\n")  # as it prints it

    def driver(self, address: str) -> str:
        """The driver that holds a function."""
        return os.path.basename(os.readlink(self.path / "sys/bus/pci/devices" / address / "driver"))

    def tree(self) -> dict[str, Any]:
        """Every name with what it holds, so that two of these are equal only if nothing was written between. Without
        what a validation keeps of GPUs.

        Of an overlay the names that were written are enough, and there are few of them.
        """
        found: dict[str, Any] = {}
        for name, entry in _entries(self.upper or self.path):
            if name in KEPT_BY_VALIDATE:
                continue
            state = entry.stat(follow_symlinks=False)
            if entry.is_symlink():
                found[name] = os.readlink(entry.path)
            else:
                whole = entry.is_dir(follow_symlinks=False)
                found[name] = state.st_mode if whole else (state.st_ino, state.st_size, state.st_mtime_ns)
        return found

    def contents(self) -> dict[str, str | bytes | None]:
        """Every name with its contents, but for what a scratch root keeps of an apply that was taken back.

        Of an overlay the names that are not what they are below it; None for one that is gone.
        """
        if self.upper is not None and self.lower is not None:
            differing = self._differing(self.lower, self._touched(self.upper, self.lower))
            return {name: _held(self.path / name) for name in differing}
        found: dict[str, str | bytes | None] = {}
        for name, entry in _entries(self.path):
            if name.startswith(_LEFT_BEHIND) or name in _MADE_ON_THE_WAY:
                continue
            if entry.is_symlink():
                found[name] = os.readlink(entry.path)
            elif entry.is_dir():
                found[name] = "folder"
            else:
                with open(entry.path, "rb", buffering=0) as file:
                    found[name] = file.read()
        return found

    def differences(self, pristine: Path) -> set[str]:
        """Names that are not what they are in the root that this one is a copy of, as `contents` compares them; files
        that are still the same (hard links of each other) are not read."""
        if self.upper is not None and self.lower == pristine:
            return set(self.contents())
        mine, theirs = _inodes(self.path), _inodes(pristine)
        names = {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)}
        return self._differing(pristine, names)

    def held(self, name: str) -> str | bytes | None:
        """What a name holds; None where there is none."""
        return _held(self.path / name)

    def _touched(self, upper: Path, lower: Path) -> set[str]:
        """Names that may not be what they are in `lower`: in `upper`, hidden by it, or in a folder that was renamed."""
        found = set()
        for name, entry in _entries(upper):
            found.add(name)
            marks = os.listxattr(entry.path, follow_symlinks=False)
            folder = entry.is_dir(follow_symlinks=False)
            if "trusted.overlay.redirect" in marks:
                found |= {f"{name}/{inside}" for inside, _ in _entries(self.path / name)}
            if (not folder or {"trusted.overlay.opaque", "trusted.overlay.redirect"} & {*marks}) and (
                os.path.isdir(lower / name) and not os.path.islink(lower / name)
            ):
                found |= {f"{name}/{inside}" for inside, _ in _entries(lower / name)}
        return found

    def _differing(self, pristine: Path, names: Iterable[str]) -> set[str]:
        ours = {name for name in names if not name.startswith(_LEFT_BEHIND) and name not in _MADE_ON_THE_WAY}
        return {name for name in ours if _held(self.path / name) != _held(pristine / name)}

    def journals(self) -> list[list[dict[str, Any]]]:
        """The whole lines of every journal, oldest first. The last line may be torn while a command writes it."""
        folder = self.path / STATE / "transactions"
        texts = [path.read_text().rpartition("\n")[0] for path in sorted(folder.glob("*.jsonl"))]
        return [[json.loads(line) for line in text.splitlines()] for text in texts]


def _inodes(root: Path) -> dict[str, int]:
    """Every name but folders' with its inode, folders with 0."""
    return {name: 0 if entry.is_dir(follow_symlinks=False) else entry.inode() for name, entry in _entries(root)}


def _entries(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below a folder by its path in there; links are not followed. Thousands of names: no Path for each."""
    todo = [""]
    while todo:
        folder = todo.pop()
        with os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                yield name, entry
                if entry.is_dir(follow_symlinks=False):
                    todo.append(f"{name}/")


def _held(path: Path) -> str | bytes | None:
    """What a name holds; None where there is none."""
    if path.is_symlink():
        return os.readlink(path)
    return "folder" if path.is_dir() else path.read_bytes() if path.exists() else None


_DETACH = 2  # MNT_DETACH
_LIBC = ctypes.CDLL(None, use_errno=True)


def _overlaid(pristine: Path, target: Path) -> Path | None:
    """Mount what looks like a copy, where this process may mount: no file is copied before it is written.

    Return the folder that holds what is written.
    """
    aside = Path(tempfile.mkdtemp(dir=pristine.parent))
    upper, work = aside / "upper", aside / "work"
    for folder in (upper, work, target):
        folder.mkdir(parents=True)
    # redirect_dir: a folder of the root below can be renamed, as the scratch root does when a driver lets go.
    options = f"lowerdir={pristine},upperdir={upper},workdir={work},redirect_dir=on".encode()
    if _LIBC.mount(b"overlay", os.fsencode(target), b"overlay", 0, options) == 0:
        return aside
    shutil.rmtree(aside)
    target.rmdir()
    return None


@contextlib.contextmanager
def copied(pristine: Path, target: Path) -> Iterator[Root]:
    """A copy to be written: an overlay, or hard links, for what changes a scratch root replaces whole files."""
    aside = _overlaid(pristine, target)
    if aside is None:
        subprocess.run(["cp", "-al", str(pristine), str(target)], check=True)
    try:
        yield Root(target, pristine, aside / "upper") if aside is not None else Root(target)
    finally:
        if aside is None:
            subprocess.run(["rm", "-rf", str(target)], check=True)  # a third of shutil's time
        else:
            assert _LIBC.umount2(os.fsencode(target), _DETACH) == 0, os.strerror(ctypes.get_errno())
            shutil.rmtree(aside)
            target.rmdir()


def put_pages(cli: Cli, number: int) -> None:
    """Somebody sets a pool to this number of pages, none of which are in use."""
    for name in (PAGES, PAGES.replace("nr_", "free_")):
        cli.root.put(name, f"{number}\n")


class Cli:
    """Run commands in process on one root; HOSTTUNE_STATE names a place that must stay untouched."""

    def __init__(self, capsys: pytest.CaptureFixture[str], root: Root) -> None:
        self._capsys = capsys
        self.root = root

    def __call__(self, verb: str, *arguments: str) -> tuple[int, str, str]:
        code = run([verb, "--root", str(self.root.path), *arguments])
        out, err = self._capsys.readouterr()
        return code, out, err

    def json(self, verb: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        """The result document of a command that must end with `code`, its shape checked."""
        got, out, err = self(verb, "-o", "json", *arguments)
        assert (got, err) == (code, ""), out + err
        document: dict[str, Any] = json.loads(out)
        check_result(document, verb)
        return document


def planned(root: Path, name: str, *options: str) -> Path:
    """A plan for a root, saved beside it. Its guest of options can boot from a network."""
    path = root.parent / f"{name}.json"
    network = [] if {"-f", "--disk", "--adopt", "--adopt-all"} & set(options) else ["--network", "default"]
    assert run(["plan", "--root", str(root), *options, *network, "--out", str(path)]) == 0
    return path


def applied(pristine: Path, folder: Path, intent: str) -> Path:
    """A root in which an intent is in force, for tests to copy: hard links of `pristine`, but for what was written."""
    path, file = folder / "root", folder / "intent.yaml"
    subprocess.run(["cp", "-al", str(pristine), str(path)], check=True)
    file.write_text(intent)
    assert run(["apply", "--root", str(path), "--intent", str(file), "--yes"]) == 0
    return path


# --- fixtures: a module of tests gives the ones it wants a name of its own ----------------------------------------


@pytest.fixture(scope="module")
def plan(pristine: Path) -> Path:
    """A plan of one guest for that host."""
    return planned(pristine, "plan", "--gpu", GPU)


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Iterator[Root]:
    """A copy of `pristine` to be written."""
    with copied(pristine, tmp_path / "root") as root:
        yield root


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Path
) -> Iterator[Cli]:
    """Commands on that copy, which leave the state of this machine alone."""
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "outside"))
    monkeypatch.delenv("COLUMNS", raising=False)
    capsys.readouterr()
    yield Cli(capsys, root)
    assert not (tmp_path / "outside").exists()


# --- what is told ------------------------------------------------------------------------------------------------


def check_result(document: Mapping[str, Any], verb: str) -> None:
    """Field by field what the document of a result promises."""
    assert document["schema"] == "hosttune.result/v1"
    assert document["verb"] == verb
    assert set(document) >= RESULT
    assert type(document["changed"]) is type(document["reboot_required"]) is bool
    for entry in document["entries"]:
        assert set(entry) == ENTRY
        assert entry["outcome"] in OUTCOMES | ({"planned"} if document.get("writes") else set()), entry
        assert ":" in entry["action"]


def outcomes(document: Mapping[str, Any]) -> dict[str, str]:
    """Outcome by action."""
    return {entry["action"]: entry["outcome"] for entry in document["entries"]}


def block(err: str) -> dict[str, str]:
    """The one error block, by its labels; fails when stderr holds anything else."""
    assert err.startswith("error: "), err
    assert "Traceback" not in err, err
    what, _, rest = err.removeprefix("error: ").partition("\nwhere: ")
    where, _, hint = rest.partition("\n   do: ")
    assert where, err
    assert hint, err
    assert "\n" not in where, err
    return {"error": what, "where": where, "do": hint.rstrip("\n")}


def edited(plan: Path, target: Path, **changes: Any) -> str:
    """A copy of a plan; a change is a new value for a top-level key, or what makes one of the old."""
    document = json.loads(plan.read_text())
    for key, change in changes.items():
        document[key] = change(document[key]) if callable(change) else change
    target.write_text(json.dumps(document))
    return str(target)


def action(kind: str, target: str, want: Any, *, current: Any = None, needed: bool = False) -> dict[str, Any]:
    """An action as a plan has it."""
    return {
        "id": f"{kind}:{target}", "kind": kind, "target": target, "current": current, "want": want, "effect": "now",
        "needed": needed, "reversible": True, "why": "asked for",
    }  # fmt: skip


def plain(text: str, root: Root) -> str:
    """Text that is the same on every machine: the root, the state directory and our own command have names."""
    state = os.environ.get("HOSTTUNE_STATE", "/nowhere")
    named = text.replace(str(root.path), "ROOT").replace(state, "/STATE")
    named = named.replace(os.path.dirname(sys.executable), "/BIN")
    return re.sub(r"(hosttune-boot.service \(mode 644, )\d+", r"\1N", named)  # it holds those paths


def agrees(name: str, text: str, request: pytest.FixtureRequest) -> None:
    """Compare with a golden text; --regenerate writes it."""
    path = Path(__file__).parents[1] / "golden" / "apply" / name
    if request.config.getoption("--regenerate"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
