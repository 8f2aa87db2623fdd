"""`apply` through the command line, on scratch roots: what it writes and says; again, rehearsed, and in part."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import applyroots
import pytest
import xmledits
from applyroots import (
    BOOT_ID,
    GPU,
    JOURNAL,
    OTHER_GPU,
    PAGES,
    PREFERENCE,
    ROOT,
    STATE,
    Cli,
    Root,
    agrees,
    edited,
    outcomes,
    plain,
    planned,
)

plan = applyroots.plan
root = applyroots.root
cli = applyroots.cli


@pytest.fixture(scope="module")
def host_plan(pristine: Path) -> Path:
    """The same guest on a host given to GPU work: settings of the whole host, and arguments of the kernel."""
    return planned(pristine, "host-plan", "--gpu", GPU, "--profile", "host")


# --- what is asked for is done -------------------------------------------------------------------------------


def test_the_machine_matches_the_plan_afterwards(cli: Cli, plan: Path) -> None:
    found = cli.json("apply", str(plan), "--yes")
    assert found["host"] == "example-hgx-h200"
    assert found["changed"] is True
    assert found["reboot_required"] is False
    assert found["drift"] == []
    assert found["open_transaction"] is None
    assert set(outcomes(found).values()) == {"done", "pending"}
    wanted = {row["id"]: row["want"] for row in json.loads(plan.read_text())["actions"]}
    for entry in found["entries"]:
        if entry["action"] in wanted:
            assert entry["want"] == wanted[entry["action"]]
        if entry["outcome"] == "done":
            assert entry["after"] == entry["want"]
    assert cli.root.get(PAGES) == "254"
    assert cli.root.driver(GPU) == "vfio-pci"
    assert cli.root.driver(OTHER_GPU) == "nvidia"
    assert {cli.root.get(PREFERENCE.format(cpu)) for cpu in (1, 11, 97, 107)} == {"performance"}
    assert {cli.root.get(PREFERENCE.format(cpu)) for cpu in (0, 12, 96, 108)} == {"balance_performance"}
    # At boot a GPU of a partition stays with its driver until the boot unit has activated the partition.
    assert not (cli.root.path / "etc/udev/rules.d/10-hosttune-vfio.rules").exists()
    assert cli.root.get("etc/systemd/system/hosttune-boot.service")
    assert cli.root.get(".hosttune/commands/virsh-dumpxml-gpu-guest").startswith("<domain")
    assert cli.root.get(f"{STATE}/guests/gpu-guest/user-data").startswith("#cloud-config")
    # Who a GPU is stays known after its driver let go.
    kept = json.loads(cli.root.get(f"{STATE}/gpus.json"))[GPU]
    assert kept["uuid"] == "GPU-00000000-0000-4000-8000-000000000041"
    assert kept["module_id"] == 1
    # Interrupts wait for the guest, and say so; without --start it is defined and not started.
    waiting = next(entry for entry in found["entries"] if entry["action"] == f"irq-affinity:{GPU}")
    assert waiting["outcome"] == "pending"
    assert waiting["why"]
    assert "guest-state:gpu-guest" not in outcomes(found)
    assert not (cli.root.path / ".hosttune/commands/virsh-domstate-gpu-guest").exists()


@pytest.mark.parametrize("kind", ["plan", "host_plan"])
def test_a_second_apply_writes_nothing(cli: Cli, kind: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(kind)
    assert cli("apply", str(path), "--yes")[0] == 0
    before = cli.root.tree()
    found = cli.json("apply", str(path), "--yes")
    after = cli.root.tree()
    assert {name for name in before | after if before.get(name) != after.get(name)} <= {f"{STATE}/lock"}
    assert found["changed"] is False
    assert set(outcomes(found).values()) <= {"already", "pending"}


def test_the_saved_plan_is_the_default_and_a_named_one_goes_before_it(cli: Cli, plan: Path) -> None:
    cli.root.put(f"{STATE}/plan.json", plan.read_text())
    assert cli("apply", "--yes")[0] == 0
    assert cli.root.driver(GPU) == "vfio-pci"
    cli.root.put(f"{STATE}/plan.json", "nonsense")
    assert cli("apply", str(plan), "--yes")[0] == 0


def test_a_plan_from_standard_input(root: Root, plan: Path) -> None:
    command = (sys.executable, "-c", "from hosttune.cli import main; main()")
    arguments = ("apply", "--root", str(root.path), "-", "--yes")
    done = subprocess.run([*command, *arguments], input=plan.read_bytes(), cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert root.driver(GPU) == "vfio-pci"


def test_nothing_outside_a_scratch_root_is_touched(root: Root, plan: Path, tmp_path: Path) -> None:
    """Every file that is opened for writing, and every name that changes, lies inside: by Python's audit events."""
    program = """
import os, sys
inside = sys.argv[1]
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod")
def hook(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or event in CHANGES:
        paths = [path for path in arguments[:2] if isinstance(path, str) and path.startswith("/")]
        if isinstance(arguments[0], int) or paths[-1:] == ["/dev/null"]:
            return  # a file that was opened before
        if not paths[-1:] or not paths[-1].startswith(inside + "/"):
            os.write(2, f"TOUCHED {event} {arguments}\\n".encode())
    elif event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "socket.connect"):
        os.write(2, f"TOUCHED {event} {arguments}\\n".encode())
sys.addaudithook(hook)
from hosttune.cli import run
for words in sys.argv[2].split(";"):
    code = run(words.split())
    if code:
        sys.exit(code)
"""
    at = f"--root {root.path}"
    words = f"apply {at} {plan} --dry-run;apply {at} {plan} --yes;apply {at} {plan} --yes;status {at};revert {at} --yes"
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, str(root.path), words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "HOSTTUNE_STATE": str(tmp_path / "outside")},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "outside").exists()
    assert (root.path / JOURNAL).exists()


# --- options -------------------------------------------------------------------------------------------------


def test_no_guests_leaves_libvirt_alone(cli: Cli, plan: Path) -> None:
    found = cli.json("apply", str(plan), "--yes", "--no-guests")
    assert [name for name in outcomes(found) if name.startswith("guest")] == []
    assert not (cli.root.path / ".hosttune/commands/virsh-dumpxml-gpu-guest").exists()
    assert not (cli.root.path / STATE / "guests").exists()
    assert cli.root.driver(GPU) == "vfio-pci"


@pytest.mark.parametrize(
    ("partition", "why"),
    [
        (None, "which partition holds them is unknown"),
        (3, "partition 3 of the NVSwitch fabric does not hold exactly its GPUs now"),
    ],
)
def test_a_guest_without_its_own_active_fabric_partition_is_not_started(
    cli: Cli, plan: Path, tmp_path: Path, partition: int | None, why: str
) -> None:
    path = edited(plan, tmp_path / "p", guests=lambda rows: [{**row, "fabric_partition": partition} for row in rows])
    found = cli.json("apply", path, "--yes", "--start")
    start = next(entry for entry in found["entries"] if entry["action"] == "guest-state:gpu-guest")
    assert start["outcome"] == "pending"
    assert why in start["why"]
    assert not (cli.root.path / ".hosttune/commands/virsh-domstate-gpu-guest").exists()


def test_a_module_id_outlives_the_driver(cli: Cli, plan: Path) -> None:
    """Once vfio-pci has the GPU, only what apply kept says which partition is its own; another card has none."""
    outcomes(cli.json("apply", str(plan), "--yes", "--no-guests"))
    assert cli.root.driver(GPU) == "vfio-pci"
    kept = json.loads(cli.root.get(f"{STATE}/gpus.json"))
    told = next(gpu for gpu in json.loads(cli("discover", "-o", "json")[1])["gpus"] if gpu["address"] == GPU)
    assert (told["module_id"], told["module_id_source"]) == (1, "kept before vfio-pci took it")
    code, out, _ = cli("plan", "--gpu", GPU, "-o", "json")
    assert (code, json.loads(out)["guests"][0]["fabric_partition"]) == (0, 7)
    cli.root.put(f"{STATE}/gpus.json", json.dumps({**kept, GPU: {**kept[GPU], "device": "10de:2330:10de:16c1"}}))
    guest = json.loads(cli("plan", "--gpu", GPU, "-o", "json")[1])
    assert guest["guests"][0]["fabric_partition"] is None
    assert any(f"module ids of {GPU} are unknown" in f["text"] for f in guest["findings"] if f["level"] == "error")


def test_start(cli: Cli, plan: Path) -> None:
    cli.root.activate(7)
    path = str(plan)
    assert outcomes(cli.json("apply", path, "--yes", "--start"))["guest-state:gpu-guest"] == "done"
    assert cli.root.get(".hosttune/commands/virsh-domstate-gpu-guest") == "running"
    assert outcomes(cli.json("apply", path, "--yes", "--start"))["guest-state:gpu-guest"] == "already"
    assert "guest-state:gpu-guest" not in outcomes(cli.json("status"))  # whether it runs now is its operator's business


def answered(root: Root, answer: bytes, *words: str) -> tuple[int, str]:
    """Exit code and terminal of a command whose prompt is answered.

    Ctrl-C is pressed until it ends: Python's readline does not see one between its prompt and its wait for input.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
        signal.alarm(60)  # whatever happens, nobody waits for it for good
        program = "from hosttune.cli import main; main()"
        os.execv(sys.executable, [sys.executable, "-c", program, *words, "--root", str(root.path)])
    text, answered_once, left = b"", False, False
    try:
        while True:
            if not select.select([terminal], [], [], 1)[0]:
                if left:
                    os.write(terminal, answer)
                continue
            if not (chunk := os.read(terminal, 4096)):
                break
            text += chunk
            if b"[y/N]" in text and not answered_once:
                os.write(terminal, answer)
                answered_once, left = True, answer == b"\x03"
    except OSError:  # EIO: the child has closed its side
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text.decode()


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b"what\n", b"\x04"])
def test_no_is_no_and_is_the_default(root: Root, plan: Path, answer: bytes) -> None:
    code, text = answered(root, answer, "apply", str(plan))
    assert code == 1
    assert f"driver {GPU}: nvidia -> vfio-pci" in text
    assert "change 12 settings?" in text
    assert "error: not applied: answered no" in text
    assert root.driver(GPU) == "nvidia"
    assert root.journals() == []


def test_a_revert_asks_too(cli: Cli, root: Root, plan: Path) -> None:
    assert cli("apply", str(plan), "--yes")[0] == 0
    code, text = answered(root, b"n\n", "revert")
    assert (code, root.driver(GPU)) == (1, "vfio-pci")
    assert f"driver {GPU}: vfio-pci -> nvidia" in text
    assert "restore the original values?" in text
    assert "error: not reverted: answered no" in text
    assert answered(root, b"y\n", "revert")[0] == 0
    assert root.driver(GPU) == "nvidia"


def test_yes_on_a_terminal_shows_progress(root: Root, plan: Path) -> None:
    code, text = answered(root, b"y\n", "apply", str(plan))
    assert code == 0, text
    assert re.search(rf"^ +\d+ s  \[4/12\] driver {GPU}: nvidia -> vfio-pci, at most 60 s\s*$", text, re.MULTILINE), (
        text
    )
    assert root.driver(GPU) == "vfio-pci"


def test_a_terminal_that_is_left_is_not_an_answer(root: Root, plan: Path) -> None:
    code, text = answered(root, b"\x03", "apply", str(plan))
    assert code == 130
    assert "Traceback" not in text
    assert root.journals() == []


@pytest.mark.parametrize("no_color", [None, "1"])
def test_no_colours_into_a_pipe_nor_where_they_are_not_wanted(
    cli: Cli, plan: Path, monkeypatch: pytest.MonkeyPatch, no_color: str | None
) -> None:
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    for verb in (("apply", str(plan), "--yes"), ("status",), ("revert", "--yes")):
        code, out, err = cli(*verb)
        assert (code, err) == (0, "")
        assert "\x1b" not in out
        assert max(map(len, out.splitlines())) <= 110


# --- rehearsed -----------------------------------------------------------------------------------------------


def test_a_rehearsal_writes_nothing_not_even_a_lock(cli: Cli, plan: Path, host_plan: Path) -> None:
    before = cli.root.tree()
    for path in (plan, host_plan):
        found = cli.json("apply", str(path), "--dry-run")
        assert found["changed"] is False
        assert set(outcomes(found).values()) <= {"planned", "pending"}
        assert all(entry["after"] is None for entry in found["entries"] if entry["outcome"] == "planned")
    assert cli.root.tree() == before


def test_what_was_rehearsed_is_what_is_written_byte_for_byte(cli: Cli, host_plan: Path) -> None:
    writes = cli.json("apply", str(host_plan), "--dry-run")["writes"]
    assert cli("apply", str(host_plan), "--yes")[0] == 0
    attributes = [found for line in writes if (found := re.fullmatch(r'write (/\S+) <- "(.*)"', line))]
    assert len(attributes) > 40
    for found in attributes:
        path = cli.root.path / found[1][1:]
        if path.name not in ("bind", "unbind", "driver_override", "drivers_probe"):
            assert path.read_text().rstrip("\n") == found[2], found[1]
    files = {}  # the last of several contents of one file counts
    for line in writes:
        if found := re.match(r"file  (/\S+) \(mode (\d+), (\d+) bytes\)((?:\n  \| .*)*)", line):
            files[found[1]] = (found[2], int(found[3]), "".join(f"{row[4:]}\n" for row in found[4].split("\n")[1:]))
    assert len(files) > 8
    for name, (mode, size, text) in files.items():
        path = cli.root.path / name[1:]
        assert path.stat().st_size == size, name
        assert f"{path.stat().st_mode & 0o777:o}" == mode, name
        if text:
            assert path.read_text() == text, name
    commands = [json.loads(line) for line in cli.root.get(f"{STATE}/scratch/ran").splitlines()]
    assert [line.removeprefix("run   ") for line in writes if line.startswith("run")] == [" ".join(c) for c in commands]


def test_a_rehearsal_shows_how_a_definition_would_change(cli: Cli, plan: Path) -> None:
    assert cli("apply", str(plan), "--yes")[0] == 0
    definition = ".hosttune/commands/virsh-dumpxml-gpu-guest"
    cli.root.put(definition, xmledits.edited(cli.root.get(definition), "devices/controller/pcihole64", "9876543"))
    text = cli("apply", str(plan), "--dry-run")[1]
    assert re.search(r"^  -.*pcihole64.*9\d+", text, re.MULTILINE)
    assert re.search(r"^  \+.*pcihole64", text, re.MULTILINE)


# --- more than one -------------------------------------------------------------------------------------------


def test_applies_add_up_and_are_taken_back_at_once(cli: Cli, tmp_path: Path) -> None:
    before = cli.root.contents()
    for number, (gpu, name) in enumerate(((GPU, "a"), (OTHER_GPU, "b")), 1):
        path = tmp_path / f"{name}.json"
        assert cli("plan", "--gpu", gpu, "--name", name, "--out", str(path))[0] == 0
        assert cli("apply", str(path), "--yes")[0] == 0
        assert len(cli.root.journals()) == number
    assert cli.root.get(PAGES) == "508"
    applied_state = outcomes(cli.json("status"))
    assert {f"driver:{GPU}", f"driver:{OTHER_GPU}", "guest:a", "guest:b"} <= set(applied_state)
    undone = cli.json("revert", "--yes")["entries"]
    names = [entry["action"] for entry in undone]
    assert names[:2] == ["guest:b", "guest:a"]  # no device before its guest
    assert names[-1] == f"hugepages:/{PAGES}"
    assert [entry["after"] for entry in undone if entry["action"] == f"hugepages:/{PAGES}"] == [0]
    assert cli.root.driver(GPU) == cli.root.driver(OTHER_GPU) == "nvidia"
    assert cli.root.contents() == before
    assert cli.json("status")["entries"] == []


def test_what_others_broke_since_is_set_again_when_that_is_no_surprise(cli: Cli, plan: Path) -> None:
    """A value that moved is drift: applying again sets it, and it reverts as before."""
    before = cli.root.contents()
    assert cli("apply", str(plan), "--yes")[0] == 0
    cli.root.put(PREFERENCE.format(5), "balance_performance\n")
    found = outcomes(cli.json("apply", str(plan), "--yes"))
    assert [name for name, outcome in found.items() if outcome == "done"] == ["energy-preference:cpus 1-11,97-107"]
    assert cli.root.get(PREFERENCE.format(5)) == "performance"
    assert cli("revert", "--yes")[0] == 0
    assert cli.root.contents() == before


def test_apply_after_revert_is_a_first_apply(cli: Cli, plan: Path) -> None:
    """Also after another boot: its id makes nothing stale."""
    assert cli.json("apply", str(plan), "--yes")["changed"] is True
    assert cli("revert", "--yes")[0] == 0
    assert cli.root.driver(GPU) == "nvidia"
    cli.root.put(BOOT_ID, "11111111-0000-4000-8000-000000000000\n")
    assert cli.json("apply", str(plan), "--yes")["changed"] is True
    assert cli.json("apply", str(plan), "--yes")["changed"] is False


# --- a live value that is neither stale nor to be written ----------------------------------------------------


def test_a_value_that_is_already_wanted_is_neither_stale_nor_written(cli: Cli, plan: Path) -> None:
    cli.root.put(PAGES, "254\n")
    assert outcomes(cli.json("apply", str(plan), "--yes"))[f"hugepages:/{PAGES}"] == "already"
    assert cli("revert", "--yes")[0] == 0
    assert cli.root.get(PAGES) == "254"


def test_a_current_of_null_is_never_stale(cli: Cli, plan: Path, tmp_path: Path) -> None:
    path = edited(plan, tmp_path / "p", actions=lambda rows: [{**row, "current": None} for row in rows])
    cli.root.put(PAGES, "7\n")
    found = next(e for e in cli.json("apply", path, "--yes")["entries"] if e["action"].startswith("hugepages"))
    assert (found["outcome"], found["before"], found["after"]) == ("done", 7, 254)
    assert cli("revert", "--yes")[0] == 0
    assert cli.root.get(PAGES) == "7"


# --- what people read ----------------------------------------------------------------------------------------


def test_texts(cli: Cli, host_plan: Path, request: pytest.FixtureRequest) -> None:
    def read(name: str, verb: str, *arguments: str, code: int = 0) -> None:
        got, out, err = cli(verb, *arguments)
        assert got == code, out + err
        agrees(f"{name}.txt", plain(out + err, cli.root), request)

    read("dry-run", "apply", str(host_plan), "--dry-run", "--no-guests")
    read("no-terminal", "apply", str(host_plan), code=3)
    read("apply", "apply", str(host_plan), "--yes")
    read("apply-again", "apply", str(host_plan), "--yes")
    read("status", "status")
    applyroots.put_pages(cli, 300)
    cli.root.put(PREFERENCE.format(1), "power\n")
    read("status-drift", "status", code=1)
    read("apply-drifted", "apply", str(host_plan), "--yes")
    applyroots.put_pages(cli, 300)
    cli.root.put(PREFERENCE.format(1), "power\n")
    read("revert-conflict", "revert", "--yes", code=1)
    read("revert-force", "revert", "--yes", "--force")
    read("revert-nothing", "revert", "--yes")
    read("recover-nothing", "recover")
    read("status-nothing", "status")
