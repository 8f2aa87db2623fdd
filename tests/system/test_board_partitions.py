"""Stories of partitions on the stand-in for a board (`board.md`), through the command line; each trace is searched for
what must not be."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boardroots
import msgspec
import pytest
from applyroots import Cli, Root, outcomes
from board import CONFIG, Board
from boardroots import BoardRoot, asked, clean, devices_of, ends, started_by_others, starts, with_board, with_nvlink5
from boardtrace import trace_of
from courses import handed, passing
from fabrichosts import H200
from sweeps import sample
from xmledits import edited

from hosttune.cli.plan import intent_of_file
from hosttune.cli.transaction import place
from hosttune.discovery import discover
from hosttune.errors import Refused
from hosttune.handover.targets import Asked
from hosttune.model.result import Result
from hosttune.settings.hook import PLACE
from hosttune.transaction import calls
from hosttune.transaction.applying import ApplyOptions
from hosttune.transaction.calls import PlanRequest
from hosttune.validating.fabric import connected

lean_host, root, cli = boardroots.lean_host, boardroots.root, boardroots.cli
pytestmark = pytest.mark.sweep(most=12)  # a story costs most of a second
KIND = "fabric-partition"
LIST = ".hosttune/commands/fabric-manager-partitions"


@pytest.fixture
def board(root: Root) -> Board:
    return with_board(root.path)


def want(folder: Path, **gpus: Any) -> str:
    """An intent of guests by name, each with these GPUs."""
    return asked(folder, **{name: {"gpus": wanted} for name, wanted in gpus.items()})


def untouched(board: Board) -> bool:
    """No partition is active, and the host's driver has all GPUs."""
    return board.active == [] and {board.driver(gpu) for gpu in board.state["gpus"]} == {"nvidia"}


def test_two_tenants_come_and_go(cli: Cli, board: Board, tmp_path: Path) -> None:
    board.plant(order=1)
    done = outcomes(cli.json("apply", "--intent", want(tmp_path, a=2, b=4), "--yes", "--start"))
    assert done["guest-state:a"] == done["guest-state:b"] == "done"
    assert len(board.active) == 2
    ends(board, "a")
    ends(board, "b")
    cli.json("revert", "--yes")
    assert untouched(board)
    clean(cli.root)


def test_a_hand_over_keeps_the_order(cli: Cli, board: Board, tmp_path: Path) -> None:
    """All GPUs of a partition together: inactive, active for the test, and at the end as apply has it in force."""
    gpus = ["0000:41:00.0", "0000:56:00.0"]
    board.plant(order=1)
    cli.json("apply", "--intent", want(tmp_path, a=gpus), "--yes", "--start")
    ends(board, "a")
    alone = handed(cli.root.path, Asked(devices=(gpus[0],)))
    assert (alone.clean, board.active) == (False, [3])
    results = tuple(result for gpu in gpus for result in passing(1, gpu).results)
    tested = msgspec.structs.replace(passing(1), results=results)
    found = handed(cli.root.path, Asked(devices=tuple(gpus)), validate=lambda level: tested)
    assert found.clean, [device.unclean for device in found.statement.predicate.devices]
    assert [row["words"][-2:] for row in trace_of(cli.root.path) if row["words"][:1] == ["fmpm"]] == [
        [word, "3"] for word in ("-a", "-d", "-a", "-d", "-a")
    ]
    assert board.active == [3]
    assert cli.json("status")["drift"] == []
    starts(board, "a")
    clean(cli.root)


@pytest.fixture
def nvlink5(root: Root) -> Board:
    return with_nvlink5(root.path)


def test_gpus_are_reset_after_the_managers_start(cli: Cli, nvlink5: Board, tmp_path: Path) -> None:
    """NVIDIA/gpu-driver-container#909: by the bus, with what shows it; also those on vfio-pci after a restart."""
    board, wanted = nvlink5, want(tmp_path, a=["0000:41:00.0", "0000:56:00.0"])
    done = cli.json("apply", "--intent", wanted, "--yes", "--start")
    (entry,) = [row for row in done["entries"] if KIND in row["action"]]
    assert "0000:41:00.0: bus reset, 10de:2901 answered" in entry["why"]
    assert (board.active, [*Board(board.root).guests]) == ([3], ["a"])
    ends(board, "a")
    board.restart_manager()
    assert "fmpm -a 3 failed" in started_by_others(board, "a")  # the hook resets nothing
    assert outcomes(cli.json("apply", "--intent", wanted, "--yes", "--start"))["guest-state:a"] == "done"
    assert {board.text(gpu, "reset_method") for gpu in board.state["gpus"]} == {"flr bus"}
    clean(cli.root, order=False)  # the hook


@pytest.mark.parametrize("fault", ["0000:56:00.0", "0000:56:00.0 silently"])
def test_a_gpu_stays_away_after_its_reset(cli: Cli, nvlink5: Board, tmp_path: Path, fault: str) -> None:
    nvlink5.plant(away=fault)
    code, out, _ = cli("apply", "--intent", want(tmp_path, a=["0000:41:00.0", "0000:56:00.0"]), "--yes", "--start")
    assert (code, nvlink5.active, Board(nvlink5.root).guests) == (1, [], {})
    assert "0000:56:00.0" in out
    clean(cli.root)


def test_a_measurement_has_a_partition_and_puts_it_back(cli: Cli, board: Board) -> None:
    """Levels 1 to 3, of the GPUs that wait for one; also if the measurement fails, and if a change is cut off."""
    system, said = BoardRoot(str(cli.root.path)), list[str]()
    with connected(system, discover(system), said.append):
        assert board.active == [0]
    assert (board.active, said) == ([], [])
    board.run(("fmpm", "-a", "3"))
    system.forget()

    def fails() -> None:
        with connected(system, discover(system), said.append):
            assert board.active == [2, 3, 4]  # modules 5 to 8, and 2 with 4
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert (board.active, said) == ([3], [])
    board.plant(busy=1)
    system.forget()
    with connected(system, discover(system), said.append):
        assert board.active == [3, 4]
    assert board.active == [3]
    assert "partition 2 of the NVSwitch fabric is not active: modules 5, 6, 7, 8" in said[0]
    clean(cli.root)


def test_under_a_running_guest_nothing_goes_back(cli: Cli, board: Board, tmp_path: Path) -> None:
    cli.json("apply", "--intent", want(tmp_path, a=2), "--yes", "--start")
    before = board.active
    for words in (("revert", "--yes"), ("apply", "--intent", want(tmp_path), "--yes")):
        cli(*words)
        assert board.active == before
    clean(cli.root)


def test_a_running_guest_is_turned_to_mig(cli: Cli, board: Board, tmp_path: Path) -> None:
    """It needs no partition from its next start: at its end the hook, which stays until then, starts what frees it."""
    gpus, hook = ["0000:41:00.0", "0000:56:00.0"], cli.root.path / PLACE[1:]
    cli.json("apply", "--intent", want(tmp_path, a=gpus), "--yes", "--start")
    mig = asked(tmp_path, a={"gpus": gpus, "mig": {"profile": "1g.18gb", "count": 2}})
    cli.json("apply", "--intent", mig, "--yes")
    assert (board.active, hook.exists()) == ([3], True)
    ends(board, "a")
    cli.json("apply", "--boot")  # what the hook starts
    assert (board.active, hook.exists()) == ([], False)
    clean(cli.root)
    assert outcomes(cli.json("apply", "--intent", mig, "--yes", "--start"))["guest-state:a"] == "done"


def test_a_manager_that_is_slow_or_busy_or_does_not_answer(cli: Cli, board: Board, tmp_path: Path) -> None:
    wanted = want(tmp_path, a=2)
    for fault in ({"slow": 99}, {"busy": 99}, {"hang": 1}):
        board.plant(**{"slow": 0, "busy": 0, "hang": 0, **fault})
        code, out, err = cli("apply", "--intent", wanted, "--yes", "--start")
        board.load()
        assert code != 0 or "may not be active" in out, (fault, code, out, err)
        assert board.guests == {}
        assert board.active == []
        clean(cli.root)
    board.plant(slow=0, busy=0, hang=0)
    assert outcomes(cli.json("apply", "--intent", wanted, "--yes", "--start"))["guest-state:a"] == "done"
    clean(cli.root)


def test_the_manager_was_restarted_under_a_guest(cli: Cli, board: Board, tmp_path: Path) -> None:
    wanted = want(tmp_path, a=2)
    cli.json("apply", "--intent", wanted, "--yes", "--start")
    before = board.active
    board.restart_manager()
    assert any(KIND in row["action"] for row in cli.json("status", code=1)["drift"])
    cli("apply", "--intent", wanted, "--yes", "--start")
    assert board.active == []  # the guest runs: it waits for its end
    ends(board, "a")
    board.plant(order=1)
    assert outcomes(cli.json("apply", "--intent", wanted, "--yes", "--start"))["guest-state:a"] == "done"
    assert board.active == before
    clean(cli.root)


def test_the_manager_waits_for_the_list_of_active_partitions(cli: Cli, board: Board, tmp_path: Path) -> None:
    cli.json("apply", "--intent", want(tmp_path, a=2), "--yes")
    board.restart_manager(resilient=True)
    _, out, _ = cli("apply", "--intent", want(tmp_path, a=2), "--yes", "--start")
    board.load()
    assert board.guests == {}
    assert "may not be active" in out
    clean(cli.root)


@pytest.mark.parametrize("verb", ["-a", "-d"])
def test_another_client_of_the_manager(cli: Cli, board: Board, tmp_path: Path, verb: str) -> None:
    """It activates an overlapping partition, or deactivates the guest's, between any two answers."""
    wanted = want(tmp_path, a=["0000:41:00.0", "0000:56:00.0"])
    for after in sample(f"other client {verb}", range(1, 9), 1):
        board.plant(other=[after, verb, 1 if verb == "-a" else 3])
        cli("apply", "--intent", wanted, "--yes", "--start")
        clean(cli.root, order=verb == "-a")  # the other client does not keep to it
        board.load()
        if "a" in board.guests:
            assert board.active == [3]
            ends(board, "a")
        for number in board.active:
            board.run(("fmpm", "-d", str(number))) if number != 3 else None
        cli("revert", "--yes")
        board.plant(other=[0])


def test_a_gpu_that_is_dead(cli: Cli, board: Board, tmp_path: Path) -> None:
    """Its partition is listed as ever (R9): no guest starts on it, and the others' do."""
    board.load()
    board.state["away"].append("0000:41:00.0")
    board.keep()
    cli("apply", "--intent", want(tmp_path, a=["0000:41:00.0", "0000:56:00.0"]), "--yes", "--start")
    board.load()
    assert board.guests == {}
    assert board.active == []
    clean(cli.root)
    cli("apply", "--intent", want(tmp_path, b=["0000:18:00.0", "0000:29:00.0"]), "--yes", "--start")
    board.load()
    assert board.active == [4]
    assert {*board.guests} == {"b"}
    clean(cli.root)


def test_unknown_module_ids(cli: Cli, board: Board, tmp_path: Path) -> None:
    smi = ".hosttune/commands/nvidia-smi-q-x"
    cli.root.put(smi, cli.root.get(smi).replace("<module_id>", "<module_id>N/A"))
    cli("apply", "--intent", want(tmp_path, a=2), "--yes", "--start")
    board.load()
    assert (board.guests, board.active) == ({}, [])
    clean(cli.root)


def table(board: Board, **partitions: tuple[int, ...]) -> None:
    """An operator's own table: ids with a letter before, and their module ids."""
    board.load()
    one = board.state["listed"]["partitionInfo"][0]["gpuInfo"][0]
    rows = [
        {
            "partitionId": int(name[1:]),
            "isActive": 0,
            "numGpus": len(modules),
            "gpuInfo": [{**one, "physicalId": n} for n in modules],
        }
        for name, modules in partitions.items()
    ]
    board.state["listed"] |= {"partitionInfo": rows, "numPartitions": len(rows)}
    board.keep()


def test_an_operators_own_table(cli: Cli, board: Board, tmp_path: Path) -> None:
    table(board, p40=(1, 2), p41=(3, 4, 5))
    cli.json("apply", "--intent", want(tmp_path, a=3), "--yes", "--start")
    assert board.active == [41]
    cli(
        "apply", "--intent", want(tmp_path, a=3, b=["0000:41:00.0", "0000:9a:00.0"]), "--yes", "--start"
    )  # modules 1, 7
    board.load()
    assert {*board.guests} == {"a"}
    clean(cli.root)


def test_a_table_that_changes_under_what_is_in_force(cli: Cli, board: Board, tmp_path: Path) -> None:
    """The number of a tenant's partition is another's then: it is not deactivated."""
    cli.json("apply", "--intent", want(tmp_path, a=["0000:41:00.0", "0000:56:00.0"]), "--yes", "--start")
    assert board.active == [3]
    ends(board, "a")
    board.restart_manager()
    table(board, p3=(5, 7), p4=(1, 3))
    board.run(("fmpm", "-a", "3"))
    board.guest("of-others", ["0000:9a:00.0", "0000:aa:00.0"])
    cli("apply", "--intent", want(tmp_path, a=["0000:41:00.0", "0000:56:00.0"]), "--yes", "--start")
    assert 3 in board.active
    for name in [*board.guests]:
        if name == "a":
            ends(board, "a")
    cli("revert", "--yes")
    assert 3 in board.active
    clean(cli.root, order=False)


def test_two_plans_for_one_board(cli: Cli, board: Board, tmp_path: Path) -> None:
    """The second was made for the board as it was before the first."""
    for name, gpus in (("a", ["0000:41:00.0", "0000:56:00.0"]), ("b", 4)):
        assert cli("plan", "-f", want(tmp_path, **{name: gpus}), "--out", str(tmp_path / f"{name}.plan"))[0] == 0
    cli.json("apply", str(tmp_path / "a.plan"), "--yes", "--start")
    cli("apply", str(tmp_path / "b.plan"), "--yes", "--start")
    board.load()
    overlap = [name for name, devices in board.guests.items() if name != "a" and {*devices} & {*board.guests["a"]}]
    assert overlap == []
    assert 3 in board.active
    clean(cli.root)


def test_after_a_reboot_the_boot_unit_activates_before_guests_start(cli: Cli, board: Board, tmp_path: Path) -> None:
    cli.json("apply", "--intent", want(tmp_path, a=2, b=2), "--yes", "--start")
    before = board.active
    board.boot()
    board.plant(order=1)
    cli.json("apply", "--boot")
    assert board.active == before
    for guest in ("a", "b"):
        starts(board, guest)
    clean(cli.root)


def test_after_a_reboot_what_could_not_be_is_told(cli: Cli, board: Board, tmp_path: Path) -> None:
    cli.json("apply", "--intent", want(tmp_path, a=2), "--yes", "--start")
    board.boot()
    board.restart_manager(running=False)
    told = cli.json("apply", "--boot", code=1)
    assert [row["outcome"] for row in told["entries"] if KIND in row["action"]] not in ([], ["done"])
    assert board.active == []
    board.restart_manager()
    cli("apply", "--intent", want(tmp_path, a=2), "--yes", "--start")
    clean(cli.root)
    board.load()
    assert {*board.guests} == {"a"}


def test_full_passthrough_has_no_partitions(cli: Cli, board: Board, tmp_path: Path) -> None:
    cli.root.put(CONFIG, "FABRIC_MODE=0\n")
    cli("apply", "--intent", want(tmp_path, a=2), "--yes", "--start")
    board.load()
    assert (board.guests, board.active) == ({}, [])
    assert len(H200) == len(json.loads(cli.root.get(LIST))["partitionInfo"])


def with_person(cli: Cli, intent: str, does: Callable[[str], object]) -> Result:
    """`apply --start` at a terminal; `does`: what the person does who is asked."""

    def person(text: str, seconds: float) -> bool:
        assert seconds == 600
        does(text)
        return True

    options = ApplyOptions(start=True, person=person)
    asked_for = PlanRequest(*intent_of_file(intent, None, prune=False))
    here = place(str(cli.root.path), None)
    return calls.apply(here, lambda: asked_for, options, confirm=lambda todo: True, say=lambda text: None)


def test_a_person_ends_the_fabric_manager_before_full_passthrough(cli: Cli, board: Board, tmp_path: Path) -> None:
    cli.root.put(CONFIG, "FABRIC_MODE=0\n")
    intent, told = want(tmp_path, a=8), list[str]()
    code, _, err = cli("apply", "--intent", intent, "--yes", "--start")
    assert (code, untouched(board)) == (3, True)
    assert "systemctl disable --now nvidia-fabricmanager" in err
    with pytest.raises(Refused, match="systemctl disable"):  # the person says so, and it runs on
        with_person(cli, intent, told.append)
    assert (len(told), untouched(board)) == (1, True)
    done = with_person(cli, intent, lambda text: board.restart_manager(running=False))
    assert done.exit_code == 0
    board.load()
    assert len([one for one in board.guests["a"] if board.driver(one) == "vfio-pci"]) == 12  # GPUs and NVSwitches


def test_a_person_activates_the_partition_where_the_list_cannot_be_read(cli: Cli, board: Board, tmp_path: Path) -> None:
    """The start waits for that state; a kill meanwhile leaves nothing that `recover` does not put back."""
    intent, told = want(tmp_path, a=["0000:41:00.0", "0000:56:00.0"]), list[str]()
    board.plant(slow=999)

    def activates(text: str) -> None:
        told.append(text)
        board.plant(slow=0)
        board.run(("fmpm", "-a", "3"))

    child = os.fork()
    if not child:
        with_person(cli, intent, lambda text: os.kill(os.getpid(), signal.SIGKILL))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    cli.json("recover")
    assert untouched(board)
    unasked = with_person(cli, intent, lambda text: None)
    assert {entry.action: entry.outcome for entry in unasked.entries}["guest-state:a"] == "pending"
    done = with_person(cli, intent, activates)
    assert {entry.action: entry.outcome for entry in done.entries}["guest-state:a"] == "done"
    assert "fmpm -a 3" in told[0]
    clean(cli.root, order=False)  # where the list cannot be read here, the GPUs are on vfio-pci by then
    assert {*Board(board.root).guests} == {"a"}


def test_starts_by_others(cli: Cli, board: Board, tmp_path: Path) -> None:
    """The hook activates what a restart of the manager took, and refuses what must not run."""
    cli.json("apply", "--intent", want(tmp_path, a=["0000:41:00.0", "0000:56:00.0"], b=2), "--yes")
    board.restart_manager()
    board.plant(order=1)
    assert "fmpm -a 3" in started_by_others(board, "a")
    board.plant(order=0)
    board.run(("fmpm", "-a", "9"))  # module 3 alone, by somebody else
    assert "partition 9" in started_by_others(board, "a")
    board.run(("fmpm", "-d", "9"))
    assert board.guests == {}
    assert started_by_others(board, "a") == ""
    definition = f".hosttune/commands/virsh-dumpxml-{'b'}"
    other = next(gpu for gpu in devices_of(board.root, "b"))
    address = f"devices/hostdev/source/address[@bus='0x{other[5:7]}']"
    cli.root.put(definition, edited(cli.root.get(definition), address, {"bus": "0xda"}))
    assert "partition" in started_by_others(board, "b")
    clean(cli.root, order=False)  # vfio-pci has the GPUs when a guest starts
    assert {*board.guests} == {"a"}
