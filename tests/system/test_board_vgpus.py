"""Stories of MIG, virtual functions and vGPUs on the stand-in for a board (`board.md`), through the command line."""

from __future__ import annotations

from pathlib import Path

import boardroots
import pytest
from applyroots import Cli, Root
from board import PCI, Board
from boardkills import standing
from boardroots import BoardRoot, asked, clean, devices_of, ends, started_by_others, starts, with_board
from courses import handed, passing

from hosttune.cli import run
from hosttune.errors import Refused
from hosttune.gpu.settings import GpuPersistence
from hosttune.handover.targets import Asked
from hosttune.machine.system import COMPLETE

lean_host, root, cli = boardroots.lean_host, boardroots.root, boardroots.cli
pytestmark = pytest.mark.sweep(most=7)  # a story costs most of a second
A, B = "0000:41:00.0", "0000:56:00.0"
DISRUPT = ("--disrupt", A, "--disrupt", B)
TWO = {"mig": {"profile": "1g.18gb", "count": 2}}


def board_with(root: Root, framework: str = "vfio", *gpus: str) -> Board:
    """A board whose operator has made the virtual functions of these GPUs."""
    board = with_board(root.path, vgpus=framework)
    for gpu in gpus or (A,):
        board.run(("sriov-manage", "-e", gpu))
    return board


def card(board: Board) -> None:
    """Make a GPU one that no fabric joins: H100 PCIe."""
    board.put(f"{PCI}/{A}/device", "0x2331\n")
    config = board.root / PCI / A / "config"
    data = config.read_bytes()
    config.write_bytes(data[:2] + b"\x31\x23" + data[4:])


def runs(cli: Cli, board: Board, *guests: str, **wanted: object) -> None:
    """Apply until these guests run; types are known once their instances are there."""
    intent = asked(cli.root.path.parent, **wanted)  # type: ignore[arg-type]
    for _ in range(2):
        told = cli("apply", "--intent", intent, "--yes", "--start", *DISRUPT)
        board.load()
        if {*guests} <= {*board.guests}:
            return
    raise AssertionError(f"{guests} do not run: {told}")


@pytest.mark.parametrize("framework", ["vfio", "mdev"])
def test_after_a_reboot_all_is_there_before_guests_start(cli: Cli, framework: str) -> None:
    """NVIDIA/gpu-operator#2600, cozystack/ansible-cozystack#70: mode, instances, functions and types are lost."""
    board = board_with(cli.root, framework)
    runs(cli, board, "m", m=TWO)
    before = standing(cli.root.path)
    assert sorted(set(before["types"].values())) == ["0", "1414"]
    board.boot()
    board.plant(vf_order=int(framework == "vfio"))  # a type is on the function that the guest's definition has
    assert not any(standing(cli.root.path)["instances"].values())
    cli.json("apply", "--boot")
    assert {**standing(cli.root.path), "guests": before["guests"]} == before
    starts(board, "m")
    clean(cli.root)
    ends(board, "m")
    cli("revert", "--yes")
    now = standing(cli.root.path)
    assert not any(now["instances"].values())
    assert not any(now["modes"].values())
    clean(cli.root)


@pytest.mark.parametrize("framework", ["vfio", "mdev"])
def test_a_hand_over_leaves_what_is_in_force(cli: Cli, framework: str) -> None:
    """Its resets undo mode, instances, functions and vGPUs: they are set again, and nothing while a guest runs."""
    board = board_with(cli.root, framework)
    runs(cli, board, "m", m=TWO)
    GpuPersistence(A).write(BoardRoot(str(cli.root.path)), False)  # by hand: it keeps the GPU open
    with pytest.raises(Refused, match="guest m has it and is running"):
        handed(cli.root.path, Asked(devices=(A,)))
    ends(board, "m")
    before = standing(cli.root.path)
    found = handed(cli.root.path, Asked(devices=(A,)), validate=lambda level: passing(level, A))
    (device,) = found.statement.predicate.devices
    assert {step.outcome for step in device.steps} == {"done"}
    assert standing(cli.root.path) == before
    assert cli.json("status")["drift"] == []
    clean(cli.root)


@pytest.mark.parametrize("fabric", [True, False])
def test_a_hand_over_says_what_could_not_be_set_again(cli: Cli, fabric: bool) -> None:
    board = board_with(cli.root)
    if not fabric:
        card(board)
    runs(cli, board, "m", m=TWO)
    GpuPersistence(A).write(BoardRoot(str(cli.root.path)), False)
    ends(board, "m")
    board.plant(mig_busy=9)
    found = handed(cli.root.path, Asked(devices=(A,)), validate=lambda level: passing(level, A))
    returned = found.statement.predicate.devices[0].steps[-1]
    told = (returned.evidence or {})["in_force"]
    assert "mig-instance 0000:41:00.0 1g.18gb:4: " in told["why"]
    assert returned.why == told["why"]
    assert ("fabric" in (returned.evidence or {})) is fabric
    assert f"vgpu-functions {A}" in told["set"]
    assert cli.json("status", code=1)["drift"] != []
    board.plant(mig_busy=0)
    assert run(["handover", "release", A, "--why", "looked at", "--root", str(cli.root.path)]) == 0
    runs(cli, board, "m", m=TWO)
    clean(cli.root)


def test_a_gpu_that_goes_back_to_no_driver_gets_no_settings(cli: Cli) -> None:
    board = board_with(cli.root)
    card(board)
    runs(cli, board, "m", m=TWO)
    ends(board, "m")
    board.boot()
    (cli.root.path / PCI / A / "driver").unlink()
    board.put(COMPLETE.lstrip("/"), "")  # so it is known that it has none
    found = handed(cli.root.path, Asked(devices=(A,)), validate=lambda level: passing(level, A))
    returned = found.statement.predicate.devices[0].steps[-1]
    assert {step.outcome for step in found.statement.predicate.devices[0].steps} == {"done"}
    assert (returned.method, "in_force" in (returned.evidence or {})) == ("left without a driver", False)


def test_after_a_reboot_nobody_offers_a_type(cli: Cli) -> None:
    board = board_with(cli.root)
    runs(cli, board, "m", m=TWO)
    board.boot()
    board.plant(no_types=1)
    told = cli.json("apply", "--boot", code=1)
    assert {entry["outcome"] for entry in told["entries"] if entry["action"].startswith("vgpu-type")} <= {
        "failed",
        "pending",
    }
    cli("apply", "--intent", asked(cli.root.path.parent, m=TWO), "--yes", "--start")
    board.load()
    assert board.guests == {}
    clean(cli.root)


@pytest.mark.parametrize("faults", [{"unbind_lock": 6, "mig_busy": 1}, {"sriov_race": 1}])
def test_after_a_reboot_with_a_busy_gpu(cli: Cli, faults: dict[str, int]) -> None:
    """stackhpc/ansible-collection-linux#37: what fails once is done by the next run, and told until then."""
    board = board_with(cli.root)
    runs(cli, board, "m", m=TWO)
    before = standing(cli.root.path)
    board.boot()
    board.plant(**faults)
    for _ in range(3):
        code, out, _ = cli("apply", "--boot")
        assert code == 0 or A in out
        assert "take it away" not in out  # its functions are made again
        if code == 0:
            break
    assert {**standing(cli.root.path), "guests": before["guests"]} == before
    clean(cli.root)


@pytest.mark.parametrize("left", ["", "pci-pf-stub", "functions", "functions without a driver"])
def test_sriov_manage_was_killed_half_way(cli: Cli, left: str) -> None:
    """The first boot run does all of it (stackhpc/ansible-collection-linux#37, bigstack-oss/cubecos#1459)."""
    board = board_with(cli.root)
    runs(cli, board, "m", m=TWO)
    before = standing(cli.root.path)
    board.boot()
    if left.startswith("functions"):
        board.run(("sriov-manage", "-e", A))
    bare = board.functions(A) if left == "functions without a driver" else [A]
    for function in bare:
        (cli.root.path / PCI / function / "driver").unlink()
    if left == "pci-pf-stub":
        board.link(f"{PCI}/{A}/driver", f"sys/bus/pci/drivers/{left}")
    told = cli.json("apply", "--boot")
    assert {entry["outcome"] for entry in told["entries"]} <= {"done", "already"}
    assert {**standing(cli.root.path), "guests": before["guests"]} == before
    assert {board.driver(function) for function in (A, *board.functions(A))} == {"nvidia"}
    clean(cli.root)


def test_beside_a_running_vgpu_nothing_is_disturbed(cli: Cli) -> None:
    """cozystack/ansible-cozystack#70: what binds a GPU anew under live vGPUs ends them."""
    board = board_with(cli.root)
    runs(cli, board, "m", m=TWO)
    cli(
        "apply",
        "--intent",
        asked(cli.root.path.parent, m=TWO, n={"mig": {"profile": "3g.71gb", "count": 1}}),
        "--yes",
        "--start",
    )
    cli("revert", "--yes")
    board.load()
    assert "m" in board.guests
    clean(cli.root)


def test_a_former_tenants_instances(cli: Cli) -> None:
    """They are in nobody's intent: neither taken, nor destroyed, nor lost with the mode of the GPU."""
    board = board_with(cli.root)
    board.set_mode(A, True)
    board.run(("nvidia-smi", "mig", "-i", A, "-cgi", "3g.71gb:0,1g.18gb:6"))
    board.load()
    for one in board.mig(A)["instances"]:
        one["compute"] = 1
    board.keep()
    cli("apply", "--intent", asked(cli.root.path.parent, m=TWO), "--yes", "--start", *DISRUPT)
    cli("apply", "--intent", asked(cli.root.path.parent, m=TWO), "--yes", "--start", *DISRUPT)
    there = {("3g.71gb", 0), ("1g.18gb", 6)}
    assert there <= {*standing(cli.root.path)["instances"][A]}
    board.load()
    for guest in [*board.guests]:
        ends(board, guest)
    cli("revert", "--yes")
    assert there == {*standing(cli.root.path)["instances"][A]}
    clean(cli.root)


def test_an_instance_that_cannot_be_made(cli: Cli) -> None:
    board = board_with(cli.root)
    before = standing(cli.root.path)
    board.plant(mig_busy=99)
    code, _, _ = cli("apply", "--intent", asked(cli.root.path.parent, m=TWO), "--yes", "--start", *DISRUPT)
    board.plant(mig_busy=0)
    assert code != 0
    assert standing(cli.root.path) == before
    clean(cli.root)


def test_without_leave_a_gpu_keeps_its_mode(cli: Cli) -> None:
    board = board_with(cli.root)
    before = standing(cli.root.path)
    code, _, _ = cli("apply", "--intent", asked(cli.root.path.parent, m=TWO), "--yes", "--start")
    assert code == 0 or standing(cli.root.path) == before
    assert standing(cli.root.path)["modes"] == before["modes"]
    board.use(A, 1)
    cli("apply", "--intent", asked(cli.root.path.parent, m=TWO), "--yes", "--start", *DISRUPT)
    assert standing(cli.root.path)["modes"] == before["modes"]
    assert Path(cli.root.path / PCI / A / "virtfn0").exists()
    clean(cli.root)


def test_starts_by_others(cli: Cli) -> None:
    """The hook gives back the types that somebody took."""
    board = board_with(cli.root)
    runs(cli, board, "m", m=TWO)
    ends(board, "m")
    for one in devices_of(cli.root.path, "m"):
        BoardRoot(str(cli.root.path)).write(f"/{PCI}/{one}/nvidia/current_vgpu_type", "0")
    assert started_by_others(board, "m") == ""
    clean(cli.root)
