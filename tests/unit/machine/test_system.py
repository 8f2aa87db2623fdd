"""The one door to a machine: live files and commands, captures in a directory and in memory, and what they refuse."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hosttune.errors import BadInput, CommandFailed, Refused, Unreadable
from hosttune.machine.capture import Archive, Capture
from hosttune.machine.live import LiveMachine
from hosttune.machine.reader import Reader
from hosttune.machine.system import MAX_FILE_BYTES, System, join_link

Tree = dict[str, str | bytes | None]  # path -> text, bytes, None: directory, or "-> TARGET": a link

TREE: Tree = {
    "/sys/devices/pci0000:00/0000:00:01.0/vendor": "0x10de\n",
    "/sys/devices/pci0000:00/0000:00:01.0/driver": "-> ../../../bus/pci/drivers/vfio-pci",
    "/sys/bus/pci/devices/0000:00:01.0": "-> ../../../devices/pci0000:00/0000:00:01.0",
    "/sys/bus/pci/drivers/vfio-pci": None,
    "/sys/kernel/iommu_groups": None,
    "/sys/absolute": "-> /sys/bus",
    "/sys/dangling": "-> nowhere",
    "/sys/loop": "-> loop2",
    "/sys/loop2": "-> loop",
    "/sys/secret": "hidden",
    "/proc/name": b"caf\xe9\n",
    "/.hosttune/unreadable": (
        "/sys/secret\tPermission denied\n/sys/shut\t\n/sys/kernel/iommu_groups\tInput/output error\n"
    ),
    "/.hosttune/commands/tool": "answer\n",
}


def build(root: Path, tree: Tree) -> Path:
    for path, content in tree.items():
        place = root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            place.mkdir()
        elif isinstance(content, str) and content.startswith("-> "):
            place.symlink_to(content[3:])
        else:
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def in_memory(tree: Tree) -> Archive:
    files: dict[str, bytes] = {}
    links: dict[str, str] = {}
    for path, content in tree.items():
        if isinstance(content, str) and content.startswith("-> "):
            links[path] = join_link(os.path.dirname(path), content[3:]) or ""
        elif content is not None:
            files[path] = content if isinstance(content, bytes) else content.encode()
    return Archive(files, links, "test", [path for path, content in tree.items() if content is None])


@pytest.fixture(params=["directory", "archive"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> System:
    return Capture(str(build(tmp_path, TREE)), origin="test") if request.param == "directory" else in_memory(TREE)


# --- captures, both kinds alike ------------------------------------------------------------------------------


def test_reads_files_also_through_links(system: System) -> None:
    assert system.read("/sys/bus/pci/devices/0000:00:01.0/vendor") == "0x10de"
    assert system.read("/sys/absolute/pci/devices/0000:00:01.0/vendor") == "0x10de"


@pytest.mark.parametrize("path", ["/sys/none", "/sys/none/deeper", "/sys/bus", "/sys/dangling", "/proc/name/below"])
def test_what_is_no_file_is_none(system: System, path: str) -> None:
    assert system.read_bytes(path) is None


def test_lists_directories_sorted_and_nothing_else(system: System) -> None:
    assert system.list("/sys/bus/pci") == ["devices", "drivers"]
    assert system.list("/sys/bus/pci/devices/0000:00:01.0") == ["driver", "vendor"]
    assert system.list("/sys/none") == []
    assert system.list("/proc/name") == []
    assert system.list("/sys/bus/pci/drivers/vfio-pci") == []


def test_a_link_is_counted_from_its_real_directory(system: System) -> None:
    assert system.link("/sys/bus/pci/devices/0000:00:01.0") == "/sys/devices/pci0000:00/0000:00:01.0"
    assert system.link("/sys/bus/pci/devices/0000:00:01.0/driver") == "/sys/bus/pci/drivers/vfio-pci"
    assert system.link("/sys/bus/pci/devices/0000:00:01.0/vendor") is None
    assert system.link("/sys/none") is None


def test_exists_follows_links(system: System) -> None:
    assert system.exists("/sys/bus/pci/drivers/vfio-pci")
    assert system.exists("/sys/bus/pci/devices/0000:00:01.0/driver")
    assert system.exists("/proc/name")
    assert not system.exists("/sys/dangling")
    assert not system.exists("/sys/none")


def test_bytes_that_are_no_text_do_not_stop_reading(system: System) -> None:
    assert system.read("/proc/name") == "caf�"


def test_an_unreadable_file_stays_unreadable(system: System) -> None:
    with pytest.raises(Unreadable) as caught:
        system.read_bytes("/sys/secret")
    assert (caught.value.path, caught.value.reason) == ("/sys/secret", "Permission denied")
    with pytest.raises(Unreadable, match="recorded as unreadable"):
        system.read_bytes("/sys/shut")
    with pytest.raises(Unreadable, match="Input/output error"):
        system.list("/sys/kernel/iommu_groups")


def test_a_reader_makes_a_problem_of_an_unreadable_file(system: System) -> None:
    reader = Reader(system)
    assert reader.text("/sys/secret") is None
    assert [(p.what, p.where, p.why) for p in reader.problems] == [("unreadable", "/sys/secret", "Permission denied")]


def test_a_loop_of_links_is_bad_input(system: System) -> None:
    with pytest.raises(BadInput, match="loop of links"):
        system.read_bytes("/sys/loop")
    with pytest.raises(BadInput, match="loop of links"):
        system.list("/sys/loop/below")


def test_a_capture_answers_queries_from_its_record_and_runs_nothing(system: System) -> None:
    def never() -> str:
        raise AssertionError("a capture must not ask the machine it is read on")

    assert system.query("tool", never) == "answer"
    assert system.query("other", never) is None
    with pytest.raises(Refused) as caught:
        system.run(("true",))
    assert caught.value.exit_code == 3
    with pytest.raises(Refused):
        system.write("/proc/name", "x")


def test_completeness_and_scratch_are_said_by_marks(tmp_path: Path) -> None:
    plain = Capture(str(build(tmp_path / "plain", {"/proc/x": ""})))
    assert (plain.captured, plain.complete, plain.scratch) == (True, False, False)
    marked = build(tmp_path / "marked", {"/proc/x": "", "/.hosttune/capture": "1\n", "/.hosttune/scratch": ""})
    assert (Capture(str(marked)).complete, Capture(str(marked)).scratch) == (True, True)
    assert in_memory({"/proc/x": "", "/.hosttune/capture": "1\n"}).complete
    assert not in_memory({"/proc/x": "", "/.hosttune/scratch": ""}).scratch


# --- a hostile directory -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["../../../outside/secret", "/outside/secret", "../../../../../../etc/passwd"])
def test_a_link_out_of_a_directory_is_refused(tmp_path: Path, target: str) -> None:
    build(tmp_path / "outside", {"/secret": "not yours"})
    root = build(tmp_path / "root", {"/sys/leak": f"-> {target}", "/sys/dir": f"-> {os.path.dirname(target)}"})
    capture = Capture(str(root), origin="given")
    for ask in (lambda: capture.read_bytes("/sys/leak"), lambda: capture.list("/sys/dir")):
        with pytest.raises(BadInput, match="leads out of the capture") as caught:
            ask()
        assert caught.value.where == "given"


def test_dots_in_a_path_do_not_climb(tmp_path: Path) -> None:
    build(tmp_path, {"/secret": "not yours", "/root/sys/x": ""})
    with pytest.raises(BadInput, match="leads out"):
        Capture(str(tmp_path / "root")).read_bytes("/sys/../../secret")


def test_special_files_are_refused_without_being_opened(tmp_path: Path) -> None:
    root = build(tmp_path, {"/sys/x": ""})
    os.mkfifo(root / "sys/fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(root / "sys/socket"))
    listener.close()
    names = ["fifo", "socket"]
    if os.geteuid() == 0:
        try:
            os.mknod(root / "sys/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
            names.append("null")
        except PermissionError:
            pass  # a container without CAP_MKNOD
    for name in names:
        with pytest.raises(BadInput, match=f"/sys/{name} is a special file"):
            Capture(str(root)).read_bytes(f"/sys/{name}")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    root = build(tmp_path, {"/sys/huge": ""})
    os.truncate(root / "sys/huge", MAX_FILE_BYTES + 1)
    with pytest.raises(BadInput, match="larger than 256 KiB"):
        Capture(str(root)).read_bytes("/sys/huge")


def test_a_name_that_is_no_text_is_shown_as_such(tmp_path: Path) -> None:
    build(tmp_path, {"/sys/x": ""})
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/sys/\xff")).write_text("")
    assert Capture(str(tmp_path)).list("/sys") == ["x", "�"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permissions_of_a_directory_are_respected(tmp_path: Path) -> None:
    root = build(tmp_path, {"/sys/x": "1"})
    (root / "sys/x").chmod(0)
    with pytest.raises(Unreadable, match="Permission denied"):
        Capture(str(root)).read_bytes("/sys/x")


@pytest.mark.parametrize(
    ("directory", "target", "expected"),
    [
        ("/a/b", "../c", "/a/c"),
        ("/a/b", "/c/./d", "/c/d"),
        ("/a/b", "c//d/", "/a/b/c/d"),
        ("/", "..", None),
        ("/a", "../..", None),
        ("/a", "b/../../..", None),
        ("/a", "..", "/"),
    ],
)
def test_join_link(directory: str, target: str, expected: str | None) -> None:
    assert join_link(directory, target) == expected


# --- this machine --------------------------------------------------------------------------------------------


def test_the_live_machine_reads_files_links_and_directories(tmp_path: Path) -> None:
    tree = {path: content for path, content in TREE.items() if not path.startswith("/.hosttune")}
    build(tmp_path, tree)
    machine = LiveMachine()
    base = str(tmp_path)
    assert (machine.captured, machine.complete) == (False, True)
    assert machine.read(f"{base}/sys/bus/pci/devices/0000:00:01.0/vendor") == "0x10de"
    assert machine.read_bytes(f"{base}/sys/bus") is None
    assert machine.read_bytes(f"{base}/none") is None
    assert machine.list(f"{base}/sys/bus/pci") == ["devices", "drivers"]
    assert machine.list(f"{base}/none") == []
    assert machine.link(f"{base}/sys/bus/pci/devices/0000:00:01.0/driver") == f"{base}/sys/bus/pci/drivers/vfio-pci"
    assert machine.link(f"{base}/sys/secret") is None
    assert not machine.exists(f"{base}/sys/dangling")


def test_a_link_of_the_live_machine_has_a_number_of_its_own(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for link in (one, other):
        link.symlink_to(tmp_path)
    machine = LiveMachine()
    numbers = [machine.link_number(str(path)) for path in (one, other, one)]
    assert numbers[0] == numbers[2] == str(os.lstat(one).st_ino) != numbers[1]
    assert [machine.link_number(str(tmp_path / name)) for name in (".", "none")] == [None, None]
    assert Capture(str(tmp_path)).link_number("/one") is None


def test_the_live_machine_says_what_the_kernel_refuses(tmp_path: Path) -> None:
    build(tmp_path, TREE)
    with pytest.raises(Unreadable, match="symbolic links"):
        LiveMachine().read_bytes(f"{tmp_path}/sys/loop")  # ELOOP is neither absent nor a value


def test_the_live_machine_reads_a_large_file_whole(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1024
    (tmp_path / "large").write_bytes(data)
    assert LiveMachine().read_bytes(str(tmp_path / "large")) == data


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_run_gives_stdout_in_the_c_locale_and_keeps_the_environment() -> None:
    assert LiveMachine().run(python("import os; print(os.environ['LC_ALL'], 'PATH' in os.environ)")) == "C True\n"


@pytest.mark.parametrize(
    ("argv", "reason", "output"),
    [
        (("hosttune-has-no-such-command",), "not installed", ""),
        (("/etc",), "Permission denied", ""),
        (python("import sys; sys.exit('broken')"), "exit status 1", "broken"),
        (python("print('told'); raise SystemExit(3)"), "exit status 3", "told"),
    ],
)
def test_run_names_what_went_wrong(argv: tuple[str, ...], reason: str, output: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        LiveMachine().run(argv)
    assert caught.value.reason == reason
    assert caught.value.output.strip() == output


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_run_gives_up_on_a_hung_command_and_ends_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "child"
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(CommandFailed, match=r"no answer within 2 s"):
        LiveMachine().run(python(code), timeout=2)
    child = int(note.read_text())
    wait_until(lambda: not _alive(child))


def wait_until(condition: Callable[[], bool]) -> None:
    """Signals arrive when the kernel likes: poll for a while, then fail."""
    import time

    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within 10 s")


# --- folders that were not there -----------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for files, with the state beside it."""
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "state"))
    (tmp_path / "etc").mkdir()
    return tmp_path / "etc"


def names_below(folder: Path) -> list[str]:
    """Every path below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_folders_that_were_made_for_a_file_go_with_it(made: Path) -> None:
    file = str(made / "local/abstractions/rule")
    LiveMachine().replace(file, b"x")
    LiveMachine().replace(str(made / "local/second"), b"y")
    LiveMachine().remove(file)
    assert names_below(made.parent) == [
        "etc", "etc/local", "etc/local/second",
        "state", "state/folders", f"state/folders/{str(made / 'local').replace('/', '%')}",
    ]  # fmt: skip
    LiveMachine().remove(str(made / "local/second"))
    assert names_below(made) == names_below(made.parent / "state") == []


def test_a_folder_that_was_there_or_holds_somebodys_file_stays(made: Path) -> None:
    (made / "found").mkdir()
    for name in ("found/a", "new/a"):
        LiveMachine().replace(str(made / name), b"x")
    (made / "new/theirs").write_text("")
    for name in ("found/a", "new/a"):
        LiveMachine().remove(str(made / name))
    assert names_below(made) == ["found", "new", "new/theirs"]


@pytest.mark.parametrize("cut", ["noted", "made", "half a file"])
def test_a_folder_that_a_crash_left_is_taken_when_the_file_is_taken_back(made: Path, cut: str) -> None:
    note = made.parent / "state/folders" / str(made / "local").replace("/", "%")
    note.parent.mkdir(parents=True)
    note.write_text("")
    if cut != "noted":
        (made / "local").mkdir()
    if cut == "half a file":
        (made / "local/rule.hosttune-new").write_text("")
    LiveMachine().tidy(str(made / "local/rule"))
    assert names_below(made) == []
    assert not note.exists()


def test_a_state_directory_that_is_a_mount_stays(tmp_path: Path) -> None:
    """The last file of hosttune in a mounted state directory can be removed; the kernel removes no mount point."""
    state = tmp_path / "hosttune"
    state.mkdir()
    act = "import sys; from hosttune.machine.system import take_file as take; open(sys.argv[1], 'w'); take(sys.argv[1])"
    start = f'{sys.executable} -c "{act}" {state}/guests/f'
    script = f"mount -t tmpfs none {state} && mkdir {state}/guests && exec {start}"
    where = {**os.environ, "HOSTTUNE_STATE": str(state), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], env=where, capture_output=True, text=True, check=False)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("no mount namespace here")
    assert (done.returncode, done.stderr) == (0, "")
