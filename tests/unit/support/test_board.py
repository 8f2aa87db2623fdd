"""The stand-in for a board follows the rules of `board.md`, and its trace shows what must not be."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from applyroots import Root, copied
from board import MDEV, PCI, Board, programs
from boardroots import BoardRoot, with_board
from boardtrace import trace_of, wrongs

from hosttune.errors import CommandFailed, WriteFailed

A, B = "0000:41:00.0", "0000:56:00.0"  # modules 1 and 3: partition 3
UUID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Iterator[Root]:
    with copied(pristine, tmp_path / "root") as root:
        yield root


def fmpm(board: Board, *words: str) -> tuple[int | None, str]:
    return board.run(("fmpm", *words))


def bind(system: BoardRoot, gpu: str, driver: str) -> None:
    now = system.board.driver(gpu)
    system.write(f"/{PCI}/{gpu}/driver_override", driver if driver == "vfio-pci" else "")
    system.write(f"/sys/bus/pci/drivers/{now}/unbind", gpu)
    system.write(f"/sys/bus/pci/drivers/{driver}/bind", gpu)


def refusal(system: BoardRoot, path: str, text: str) -> int | None:
    with pytest.raises(WriteFailed) as refused:
        system.write(path, text)
    return refused.value.errno


def test_partitions(root: Root) -> None:
    board = with_board(root.path)
    assert fmpm(board, "-a", "3") == (0, "")
    assert board.active == [3]
    rows = json.loads(fmpm(board, "-l")[1])["partitionInfo"]
    assert [row["partitionId"] for row in rows if row["isActive"]] == [3]
    assert fmpm(board, "-a", "3") == (249, "Failed to activate partition. fmReturn: -7\n")
    assert fmpm(board, "-a", "1")[0] == 249  # shares GPUs with it
    assert fmpm(board, "-a", "20")[0] == 255
    assert fmpm(board, "-a", "64") == (255, "Invalid Partition ID.\n")
    assert fmpm(board, "-d", "4") == (252, "Failed to deactivate partition. fmReturn: -4\n")
    assert fmpm(board, "-d", "3") == (0, "")
    assert fmpm(board, "--unix-domain-socket", "/run/fm", "-l")[0] == 0  # the option has no effect
    root.put("usr/share/nvidia/nvswitch/fabricmanager.cfg", "FABRIC_MODE=1\nFM_CMD_UNIX_SOCKET_PATH=/run/fm\n")
    assert fmpm(board, "--unix-domain-socket", "/run/fm", "-l")[0] == 247


def test_restarts_and_faults_of_the_manager(root: Root) -> None:
    board = with_board(root.path, generation="blackwell")
    assert fmpm(board, "-a", "3")[0] == 246
    system = BoardRoot(str(root.path))
    for gpu in (A, B):
        system.write(f"/{PCI}/{gpu}/reset_method", "bus")
        system.write(f"/{PCI}/{gpu}/reset", "1")
    board.plant(slow=1, busy=1)
    assert [fmpm(board, "-a", "3")[0] for _ in range(3)] == [248, 251, 0]
    board.restart_manager(resilient=True)
    assert fmpm(board, "-l")[0] == 248
    assert fmpm(board, "--set-activated-list", "3") == (0, "")
    assert board.active == [3]
    board.restart_manager()
    assert board.active == []
    board.restart_manager(running=False)
    assert fmpm(board, "-l")[0] == 247


def test_another_client_and_a_refused_order(root: Root) -> None:
    board = with_board(root.path)
    board.plant(other=[1, "-a", 3], order=1)
    assert fmpm(board, "-l")[0] == 0
    assert board.active == [3]
    bind(BoardRoot(str(root.path)), A, "vfio-pci")
    assert fmpm(board, "-d", "3")[0] == 254


def test_instances(root: Root) -> None:
    board, system = with_board(root.path), BoardRoot(str(root.path))
    assert board.run(("nvidia-smi", "mig", "-i", A, "-lgi")) == (6, "No MIG-enabled devices found.\n")
    assert board.set_mode(A, True)
    assert board.run(("nvidia-smi", "mig", "-i", A, "-lgi")) == (6, "No GPU instances found: Not Found\n")
    code, out = board.run(("nvidia-smi", "mig", "-i", A, "-cgi", "3g.71gb:4,1g.18gb:0,2g.35gb:4"))
    assert code == 23
    assert "Insufficient Resources" in out
    places = {one["start"]: one["id"] for one in board.mig(A)["instances"]}
    assert places.keys() == {0, 4}  # what was made stays
    assert "MIG 3g.71gb" in board.run(("nvidia-smi", "mig", "-i", A, "-lgi"))[1]
    assert not board.set_mode(A, False)
    assert board.run(("nvidia-smi", "mig", "-i", A, "-dci", "-gi", str(places[0])))[0] == 6
    assert board.run(("nvidia-smi", "mig", "-i", A, "-dgi", "-gi", str(places[0])))[0] == 0
    system.write(f"/{PCI}/{A}/reset", "1")
    board.load()
    assert board.mig(A) == {"on": False, "pending": False, "instances": []}


def test_virtual_functions_and_types(root: Root) -> None:
    board, system = with_board(root.path, vgpus="vfio"), BoardRoot(str(root.path))
    manage = ("/usr/lib/nvidia/sriov-manage", "-e", A)
    board.set_mode(A, True)
    board.run(("nvidia-smi", "mig", "-i", A, "-cgi", "1g.18gb:6"))
    board.plant(unbind_lock=1)
    assert [board.run(manage)[0] for _ in range(3)] == [1, 0, 0]
    assert board.mig(A) == {"on": True, "pending": True, "instances": []}  # the GPU was bound anew
    first = board.functions(A)[0]
    types = f"{PCI}/{first}/nvidia/creatable_vgpu_types"
    assert root.get(types) == ""
    assert refusal(system, f"/{PCI}/{first}/nvidia/current_vgpu_type", "1414") == errno.EIO
    board.run(("nvidia-smi", "mig", "-i", A, "-cgi", "1g.18gb:6"))
    assert root.get(types) == "1414 : NVIDIA H200X-1-18C"
    system.write(f"/{PCI}/{first}/nvidia/current_vgpu_type", "1414")
    assert board.type_of(first) == "1414"
    assert root.get(types) == ""
    instance = str(BoardRoot(str(root.path)).board.mig(A)["instances"][0]["id"])
    assert board.run(("nvidia-smi", "mig", "-i", A, "-dgi", "-gi", instance))[0] == 19
    assert refusal(system, f"/{PCI}/{A}/sriov_numvfs", "0") == errno.EINVAL
    system.write(f"/{PCI}/{B}/reset_method", "bus")
    board.plant(vf_order=1)
    board.run(("sriov-manage", "-e", B))
    assert os.readlink(root.path / PCI / B / "virtfn0").endswith(board.functions(B)[-1])
    assert refusal(system, f"/{PCI}/{B}/reset", "1") == errno.ENOTTY  # its own functions are on the bus
    board.boot()
    assert board.functions(A) == []


def test_mediated_devices(root: Root) -> None:
    board, system = with_board(root.path, vgpus="mdev"), BoardRoot(str(root.path))
    board.run(("sriov-manage", "-e", A))
    first, second, *_ = board.functions(A)
    kind = "mdev_supported_types/nvidia-1428"
    system.write(f"/{PCI}/{first}/{kind}/create", UUID)
    assert (root.path / MDEV / UUID / "mdev_type").resolve().name == "nvidia-1428"
    assert refusal(system, f"/{PCI}/{second}/{kind}/create", UUID) == errno.EEXIST
    assert refusal(system, f"/{PCI}/{second}/{kind}/create", UUID.replace("1", "2")) == errno.ENOSPC
    board.guest("g", [UUID])
    assert refusal(system, f"/{MDEV}/{UUID}/remove", "1") == errno.EBUSY
    board.guest("g", None)
    system.write(f"/{MDEV}/{UUID}/remove", "1")
    assert not (root.path / MDEV / UUID).exists()


@pytest.mark.parametrize("how", ["", " silently"])
def test_a_gpu_stays_away(root: Root, how: str) -> None:
    board, system = with_board(root.path), BoardRoot(str(root.path))
    board.plant(away=f"{A}{how}")
    if how:
        system.write(f"/{PCI}/{A}/reset", "1")
    else:
        assert refusal(system, f"/{PCI}/{A}/reset", "1") == errno.ENOTTY
    assert set((root.path / PCI / A / "config").read_bytes()) == {0xFF}
    assert root.get(f"{PCI}/{A}/vendor") == "0x10de"
    assert fmpm(board, "-a", "3")[0] == 246
    assert A.upper() not in board.smi_xml(root.get(".hosttune/commands/nvidia-smi-q-x"))


def test_as_a_system_and_as_programs(root: Root, tmp_path: Path) -> None:
    board, system = with_board(root.path), BoardRoot(str(root.path))
    system.change(("fmpm", "-a", "3"))
    with pytest.raises(CommandFailed) as refused:
        system.change(("fmpm", "-a", "1"))
    assert (refused.value.reason, refused.value.output) == (
        "exit status 249",
        "Failed to activate partition. fmReturn: -7\n",
    )
    programs(root.path, tmp_path / "bin")
    found = subprocess.run([tmp_path / "bin/fmpm", "-d", "3"], check=False, capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
    assert board.active == []


def test_the_trace_shows_what_must_not_be(root: Root) -> None:
    board, system = with_board(root.path), BoardRoot(str(root.path))
    fmpm(board, "-a", "3")
    for gpu in (A, B):
        bind(system, gpu, "vfio-pci")
    board.guest("g", [A, B])
    assert wrongs(trace_of(root.path)) == []
    lines = len(trace_of(root.path))
    fmpm(board, "-d", "3")
    system.write(f"/{PCI}/{A}/reset", "1")
    board.guest("h", ["0000:18:00.0"])
    told = "\n".join(wrongs(trace_of(root.path)))
    for text in (
        f"line {lines + 1}, run fmpm -d 3: guest g runs with modules [1, 3]",
        f"line {lines + 1}, run fmpm -d 3: disturbs guest g",
        f"line {lines + 1}, run fmpm -d 3: ['0000:41:00.0', '0000:56:00.0'] are not on nvidia",
        f"line {lines + 2}, write /sys/bus/pci/devices/{A}/reset flr: disturbs guest g",
        f"line {lines + 3}, start h: guest h runs with modules [2]",
    ):
        assert text in told
    board.guest("g", None)
    for gpu in (A, B):
        bind(system, gpu, "nvidia")
    before = len(wrongs(trace_of(root.path)))
    board.use(A, 1)
    bind(system, A, "vfio-pci")
    fmpm(board, "-a", "3")
    late = wrongs(trace_of(root.path))[before:]
    assert [text.partition(": ")[2] for text in late] == ["a process has the GPU open", f"['{A}'] are not on nvidia"]
