"""What `apply` refuses: one block, the code of the contract, and nothing written. On scratch roots of the example."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import applyroots
import boardroots
import pytest
import xmledits
from applyroots import (
    EXAMPLE,
    GPU,
    JOURNAL,
    PAGES,
    STATE,
    Cli,
    Root,
    action,
    block,
    copied,
    edited,
    outcomes,
)

import hosttune.transaction.site  # noqa: F401  (a child without rights may not be able to import it)
from hosttune.cli import run

pristine = boardroots.lean_host
plan = applyroots.plan
root = applyroots.root
cli = applyroots.cli


@pytest.fixture(scope="module")
def quiet(pristine: Path, plan: Path) -> Iterator[Root]:
    """One root for all that must be refused whatever the root; in the end it is as it was, but for the lock."""
    with copied(pristine, pristine.parent / "quiet") as root:
        before = root.contents()
        yield root
        assert root.contents() == before
        state = root.path / STATE
        assert not state.exists() or [path.name for path in state.iterdir()] == ["lock"]


@pytest.fixture
def no(capsys: pytest.CaptureFixture[str], quiet: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands on that root."""
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "outside"))
    capsys.readouterr()
    return Cli(capsys, quiet)


def never(cli: Cli, *arguments: str, code: int) -> dict[str, str]:
    """The block of an apply that must fail."""
    got, out, err = cli("apply", *arguments)
    assert (got, out) == (code, ""), err
    return block(err)


def refused(cli: Cli, *arguments: str, code: int, verb: str = "apply") -> dict[str, str]:
    """The block of a command that must fail and change nothing but its own lock."""
    before = cli.root.tree()
    got, out, err = cli(verb, *arguments)
    assert got == code, out + err
    assert out == ""
    after = cli.root.tree()
    for name in (f"{STATE}/lock", STATE, "var/lib", "var"):
        if name not in before:
            after.pop(name, None)
        elif name in after:
            before[name] = after[name]
    assert after == before
    return block(err)


# --- captured hosts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [("apply", "--yes"), ("revert", "--yes"), ("recover",), ("apply", "--boot")])
def test_a_captured_host_is_not_changed(capsys: pytest.CaptureFixture[str], plan: Path, verb: tuple[str, ...]) -> None:
    capsys.readouterr()
    arguments = [*verb, "--root", str(EXAMPLE), *([str(plan)] if verb == ("apply", "--yes") else [])]
    assert run(arguments) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert block(err)["error"] == "a captured host cannot be changed"
    assert block(err)["where"] == str(EXAMPLE)


def test_a_host_document_is_not_changed_but_rehearsed(cli: Cli, plan: Path, tmp_path: Path) -> None:
    document = tmp_path / "host.json"
    document.write_text(cli("discover", "-o", "json")[1])
    assert run(["apply", "--host", str(document), str(plan), "--yes"]) == 3
    assert run(["revert", "--yes", "--host", str(document)]) == 3
    assert run(["apply", "--host", str(document), str(plan), "--dry-run"]) == 0
    assert run(["status", "--host", str(document)]) == 1  # unknown: a document keeps no state


def test_a_captured_host_is_rehearsed(capsys: pytest.CaptureFixture[str], plan: Path) -> None:
    capsys.readouterr()
    assert run(["apply", "--root", str(EXAMPLE), str(plan), "--dry-run", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changed"] is False
    assert f'write /{PAGES} <- "254"' in document["writes"]
    assert outcomes(document)[f"driver:{GPU}"] == "planned"


@pytest.mark.parametrize(("current", "shown"), [("nvidia", "nvidia"), (None, "unknown")])
def test_a_rehearsal_says_unknown_and_not_none_where_drivers_were_not_recorded(
    cli: Cli, plan: Path, tmp_path: Path, current: str | None, shown: str
) -> None:
    (cli.root.path / ".hosttune/scratch").unlink()  # a captured host
    (cli.root.path / f"sys/bus/pci/devices/{GPU}/driver").unlink()
    driver = action("driver", GPU, "vfio-pci", current=current, needed=True)
    words = ("apply", edited(plan, tmp_path / "p", actions=[driver]), "--dry-run", "--no-guests")
    code, out, _ = cli(*words)
    assert (code, f"planned  driver {GPU}: {shown} -> vfio-pci" in out) == (0, True)
    entry = next(one for one in cli.json(*words)["entries"] if one["action"] == f"driver:{GPU}")
    assert (entry["before"], entry["before_known"], entry["outcome"]) == (current, False, "planned")


def test_without_privilege_this_machine_is_refused_before_anything_is_read(plan: Path) -> None:
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.seteuid(65534)
        os._exit(run(["apply", str(plan), "--yes"]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


# --- the plan is not of this host as it is now ---------------------------------------------------------------


def test_a_plan_of_a_capture_names_no_machine(no: Cli, plan: Path, tmp_path: Path) -> None:
    said = never(no, edited(plan, tmp_path / "p", host_digest=None), "--yes", code=3)
    assert said["error"].startswith("the plan names no machine")
    assert said["where"] == "plan: host_digest"
    assert "intent" in said["do"]


def test_a_plan_of_another_machine(no: Cli, plan: Path, tmp_path: Path) -> None:
    said = never(no, edited(plan, tmp_path / "p", host_digest="f" * 64), "--yes", code=3)
    assert "another machine (example-hgx-h200)" in said["error"]


def test_the_digest_of_a_scratch_root_is_of_its_own_files(cli: Cli, plan: Path) -> None:
    cli.root.put("etc/machine-id", "f" * 32 + "\n")
    assert "another machine" in refused(cli, str(plan), "--yes", code=3)["error"]


def test_a_setting_that_vanished_is_stale(cli: Cli, plan: Path) -> None:
    (cli.root.path / PAGES).unlink()
    for option in ("--yes", "--dry-run"):
        assert "planned from 0, now not there" in refused(cli, str(plan), option, code=3)["error"]


def test_a_plan_that_knows_of_other_transactions_is_stale(cli: Cli, plan: Path, tmp_path: Path) -> None:
    """Another operator was faster, or the state directory came back from a backup."""
    others = edited(plan, tmp_path / "o", actions=lambda actions: actions[:-1])
    assert cli("apply", str(others), "--yes")[0] == 0
    assert cli("apply", str(others), "--yes")[0] == 0  # a plan is not stale by its own transaction
    for number, option in ((0, "--yes"), (3, "--yes"), (3, "--dry-run")):
        wrong = edited(plan, tmp_path / "p", based_on=lambda _, number=number: number)
        said = refused(cli, str(wrong), option, code=3)
        assert f"made after transaction {number}, and the newest here is 1" in said["error"]
    right = edited(plan, tmp_path / "q", based_on=lambda _: 1)
    assert cli("apply", str(right), "--yes")[0] == 0


def change_identity(old: str, new: str) -> Callable[[list[Any]], list[Any]]:
    def change(guests: list[Any]) -> list[Any]:
        identity = guests[0]["devices"][0]["identity"]
        assert old in identity
        guests[0]["devices"][0]["identity"] = identity.replace(old, new)
        return guests

    return change


@pytest.mark.parametrize(
    ("old", "new"), [("10de:2335", "10de:2330"), ("GPU-00000000", "GPU-00000001"), (GPU, "0000:18:00.0")]
)
def test_another_device_in_its_place(no: Cli, plan: Path, tmp_path: Path, old: str, new: str) -> None:
    said = never(no, edited(plan, tmp_path / "p", guests=change_identity(old, new)), "--yes", code=3)
    assert said["error"].startswith("the plan is stale: the host has other devices now")
    assert f"{GPU} (guest gpu-guest)" in said["error"]
    assert new in said["error"]


def test_what_only_one_side_could_read_of_a_device_makes_nothing_stale(cli: Cli, plan: Path, tmp_path: Path) -> None:
    (cli.root.path / ".hosttune/commands/nvidia-smi-q-x").unlink()  # now nobody tells UUID, serial and module id
    changes = {"actions": lambda rows: [row for row in rows if row["kind"] == "driver"]}
    assert cli("apply", edited(plan, tmp_path / "p", **changes), "--yes")[0] == 0


# --- plans that no planner writes ----------------------------------------------------------------------------


def test_a_plan_with_an_unplaced_guest_is_no(no: Cli, plan: Path, tmp_path: Path) -> None:
    unplaced = [{"guest": "big", "why": ["no node has 4000 CPUs"], "relaxation": []}]
    said = never(no, edited(plan, tmp_path / "p", unplaced=unplaced), "--yes", code=1)
    assert said["error"] == "guests without a place:\n  guest big: no node has 4000 CPUs"


@pytest.mark.parametrize(
    ("added", "error", "where"),
    [
        ([action("frobnicate", "x", 1)], "unknown setting kind 'frobnicate'", "action frobnicate:x"),
        ([action("thp", "/etc/passwd", "never")], "not a target of thp", "action thp:/etc/passwd"),
        ([action("hugepages", f"/{PAGES}", 3)], "two actions for one setting", f"action hugepages:/{PAGES}"),
        ([action("driver", "0000:18:00.0", "nouveau")], "'nouveau' is not a driver that a plan can ask for", ""),
        ([action("drop-in", "/etc/cron.d/x", "# Written by hosttune\n")], "drop-in cannot be an action of a plan", ""),
        ([{**action("ksm", "/sys/kernel/mm/ksm/run", 2), "id": "x"}], "id 'x' is not its kind and target", ""),
        ([action("ksm", "/sys/kernel/mm/ksm/run", True)], "invalid value True", ""),
    ],
)
def test_an_action_that_no_planner_writes(
    no: Cli, plan: Path, tmp_path: Path, added: list[Any], error: str, where: str
) -> None:
    path = edited(plan, tmp_path / "p", actions=lambda rows: [*rows, *added])
    said = never(no, path, "--yes", code=2)
    assert error in said["error"]
    assert where in said["where"]


@pytest.mark.parametrize("text", ["", "[", "{}", '{"schema": "hosttune.plan/v9"}', '{"schema": "hosttune.plan/v1"}'])
def test_a_file_that_is_no_plan(no: Cli, tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan"
    path.write_text(text)
    assert never(no, str(path), "--yes", code=2)["where"].startswith(str(path))


def test_a_plan_with_a_key_that_stands_twice(no: Cli, plan: Path, tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(plan.read_text().rstrip().removesuffix("}") + ', "guests": []}')
    assert never(no, str(path), "--yes", code=2)["error"] == "key 'guests' is there twice in an object"


def test_a_journal_without_end(cli: Cli, plan: Path) -> None:
    assert cli("apply", str(plan), "--yes")[0] == 0
    with (cli.root.path / JOURNAL).open("ab") as file:
        file.truncate(64 << 20 | 1)
    assert refused(cli, code=3, verb="recover")["error"] == "a journal that cannot be read: larger than 64 MiB"


def test_no_plan_at_all(no: Cli) -> None:
    said = never(no, "--yes", code=2)
    assert said["where"] == str(no.root.path / STATE / "plan.json")
    assert "hosttune plan" in said["do"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--no-guests", "--start"), "both --no-guests and --start"),
        (("--host", "x"), "both --root and --host"),
        (("--frobnicate",), "no option '--frobnicate'"),
        (("a", "b"), "unexpected extra argument"),
        (("-o", "yaml"), "'yaml' is not known"),
    ],
)
def test_usage(no: Cli, arguments: tuple[str, ...], error: str) -> None:
    said = never(no, *arguments, code=2)
    assert error in said["error"]
    assert said["where"] == ("--output" if "-o" in arguments else "command line")


def test_nobody_to_ask_is_refused_after_saying_what_would_change(cli: Cli, plan: Path) -> None:
    code, out, err = cli("apply", str(plan))
    assert (code, out) == (3, "")
    asked, _, rest = err.partition("error: ")
    assert f"  driver {GPU}: nvidia -> vfio-pci\n" in asked
    assert block("error: " + rest)["do"] == "give --yes"
    assert cli.root.journals() == []


# --- somebody is in the way ----------------------------------------------------------------------------------


def test_one_at_a_time(cli: Cli, plan: Path) -> None:
    cli.root.put(f"{STATE}/lock", "4711\n")
    with open(cli.root.path / STATE / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for verb in (("apply", "--yes", str(plan)), ("revert", "--yes"), ("recover",), ("apply", "--boot")):
            said = refused(cli, *verb[1:], code=3, verb=verb[0])
            assert said["error"] == "another hosttune (process 4711) is changing this host", verb
            assert said["where"].endswith("/lock")
        assert cli("status")[0] == 0  # looking is allowed
    assert cli("apply", str(plan), "--yes")[0] == 0


def test_an_unfinished_transaction_is_settled_first(cli: Cli, plan: Path) -> None:
    assert cli("apply", str(plan), "--yes")[0] == 0
    lines = cli.root.get(JOURNAL).splitlines(keepends=True)
    cli.root.put(JOURNAL, "".join(lines[:9]))  # cut off after its fourth step, the driver
    for verb in (("apply", str(plan), "--yes"), ("revert", "--yes"), ("apply", "--boot")):
        said = refused(cli, *verb[1:], code=3, verb=verb[0])
        assert said["error"] == "transaction 1 was not finished"
        assert said["where"] == str(cli.root.path / JOURNAL)
        assert "hosttune recover" in said["do"]
    notes = cli.json("apply", str(plan), "--dry-run")["notes"]
    assert "apply would be refused: transaction 1 was not finished (hosttune recover)" in notes
    found = cli.json("status", code=1)
    assert found["open_transaction"]["number"] == 1
    assert found["open_transaction"]["journal"] == str(cli.root.path / JOURNAL)
    settled = cli.json("recover")
    assert set(outcomes(settled).values()) == {"reverted"}
    assert cli.root.driver(GPU) == "nvidia"
    assert cli.json("status")["open_transaction"] is None


def network_in_use(cli: Cli) -> None:
    """The GPU has a network interface that is up and has a route."""
    cli.root.put(f"sys/bus/pci/devices/{GPU}/net/acc0/mtu", "1500\n")
    cli.root.put("sys/class/net/acc0/operstate", "up\n")
    cli.root.put(
        "proc/net/route", cli.root.get("proc/net/route") + "\nacc0\t0000FEA9\t00000000\t0001\t0\t0\t0\t0000FFFF\n"
    )


def test_a_dry_run_says_what_apply_would_refuse(cli: Cli, plan: Path, tmp_path: Path) -> None:
    """What is in use, a plan that names no machine: `apply` exits 3, its rehearsal lists it and exits 0."""
    network_in_use(cli)
    lines = refused(cli, str(plan), "--yes", code=3)["error"].splitlines()
    assert lines[0] == "in use, or disruptive:"
    assert f"{GPU}: network interface acc0 is up" in lines[1]
    notes = cli.json("apply", str(plan), "--dry-run")["notes"]
    told = "\n".join(("apply would be refused: in use, or disruptive (1):", *lines[1:]))
    assert notes == [told, "dry run: nothing was written"]
    nameless = edited(plan, tmp_path / "p", host_digest=None)
    assert any(
        note.startswith("apply would be refused: the plan names no machine")
        for note in cli.json("apply", nameless, "--dry-run")["notes"]
    )


def test_a_dry_run_on_a_capture_says_what_may_be_refused_on_the_host(cli: Cli, plan: Path) -> None:
    network_in_use(cli)
    (cli.root.path / ".hosttune/scratch").unlink()
    notes = cli.json("apply", str(plan), "--dry-run")["notes"]
    assert any(
        note.startswith("on the host itself apply may be refused: in use, or disruptive")
        and f"  {GPU}: network interface acc0 is up" in note
        for note in notes
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"schema":"hosttune.journal/v9","number":1,"verb":"apply","version":"9","at":""}\n', "line 1"),
        ("nonsense\n", "line 1"),
    ],
)
def test_a_journal_that_does_not_read_is_never_guessed_at(cli: Cli, plan: Path, text: str, why: str) -> None:
    cli.root.put(JOURNAL, text)
    for verb in (("apply", str(plan), "--yes"), ("revert", "--yes"), ("recover",), ("history",)):
        said = refused(cli, *verb[1:], code=1 if verb == ("history",) else 3, verb=verb[0])  # that would write nothing
        assert said["error"].startswith("a journal that cannot be read")
        assert said["where"] == f"{cli.root.path / JOURNAL}, {why}"
    status = cli.json("status", code=1)
    assert (status["state_known"], f"{JOURNAL}, {why}" in status["notes"][0]) == (False, True)


def test_from_a_running_guest_nothing_is_taken(cli: Cli, plan: Path) -> None:
    """It has its new definition from its next start, keeps its ground and its devices, until it is shut down."""
    cli.root.activate(7)
    path = str(plan)
    assert outcomes(cli.json("apply", path, "--yes", "--start"))["guest-state:gpu-guest"] == "done"
    definition = ".hosttune/commands/virsh-dumpxml-gpu-guest"
    cli.root.put(definition, xmledits.edited(cli.root.get(definition), "devices/controller/pcihole64", "9876543"))
    assert outcomes(cli.json("apply", path, "--yes"))["guest:gpu-guest"] == "done"
    assert "9876543" not in cli.root.get(definition)
    for verb in (("revert", "--yes"), ("revert", "--yes", "--force")):
        said = refused(cli, *verb[1:], code=3, verb=verb[0])
        assert "gpu-guest" in said["error"]
        assert "shut it down" in said["do"]
    driver = (cli.root.path / "sys/bus/pci/devices" / GPU).resolve() / "driver"
    bound = os.readlink(driver)
    driver.unlink()
    driver.symlink_to("../../../../bus/pci/drivers/nvidia")
    said = refused(cli, path, "--yes", code=3)
    assert f"{GPU} is given to guest gpu-guest, which is running" in said["error"]
    driver.unlink()
    driver.symlink_to(bound)
    cli.root.put(".hosttune/commands/virsh-domstate-gpu-guest", "shut off\n")
    assert cli("revert", "--yes")[0] == 0


def test_no_device_is_taken_beside_a_running_guest_that_may_have_it(cli: Cli, plan: Path) -> None:
    """Its definition cannot be read, so the GPU may be its own."""
    cli.root.put(".hosttune/commands/virsh-list", " Id   Name   State\n----------\n 7    web    running\n")
    said = refused(cli, str(plan), "--yes", code=3)
    told = f"{GPU} may be given to guest web, which is running and whose definition cannot be read"
    assert told in said["error"]
    assert "--disrupt" in said["do"]
    assert outcomes(cli.json("apply", str(plan), "--yes", "--disrupt", "web"))[f"driver:{GPU}"] == "done"


def test_a_reset_needs_the_name_of_its_gpu(cli: Cli, plan: Path, tmp_path: Path) -> None:
    """ECC takes effect with a reset: neither --yes nor another GPU's name will do."""
    other = "0000:18:00.0"
    wanted = action("gpu-ecc", other, False, current=None)
    path = edited(plan, tmp_path / "p", actions=[wanted], guests=[])
    for option in ((), ("--disrupt", GPU)):
        said = refused(cli, path, "--yes", *option, code=3)
        assert f"--disrupt {other}" in said["error"]
    assert cli("apply", path, "--yes", "--disrupt", other)[0] == 0


@pytest.mark.parametrize(
    ("name", "meant"),
    [("gpu-gest", "did you mean gpu-guest?"), ("0000:41:00.1", f"did you mean {GPU}?"), ("all", "give the address of")],
)
def test_a_name_in_disrupt_that_is_not_there_is_refused(no: Cli, plan: Path, name: str, meant: str) -> None:
    for option in (("--yes",), ("--dry-run",)):
        said = never(no, str(plan), *option, "--disrupt", name, code=2)
        assert said["error"] == f"no GPU and no guest {name!r} on this host"
        assert said["where"] == "--disrupt"
        assert meant in said["do"]


# --- what a guest cannot work without ------------------------------------------------------------------------


@pytest.mark.parametrize("unreadable", [False, True])
def test_a_needed_setting_that_is_not_there_fails_before_the_first_write(
    cli: Cli, plan: Path, tmp_path: Path, unreadable: bool
) -> None:
    path = edited(plan, tmp_path / "p", actions=lambda rows: [{**row, "current": None} for row in rows])
    (cli.root.path / PAGES).unlink()
    if unreadable:
        cli.root.put(".hosttune/unreadable", f"/{PAGES}\tEIO\n")
    before = cli.root.contents()
    found = cli.json("apply", path, "--yes", code=1)
    assert outcomes(found) == {f"hugepages:/{PAGES}": "failed"}
    assert ("cannot be read" if unreadable else "this host has no") in found["entries"][0]["why"]
    assert found["changed"] is False
    assert cli.root.contents() == before
    assert cli.root.journals() == []


# --- another machine's state ---------------------------------------------------------------------------------


def test_a_journal_of_another_machine_is_refused(cli: Cli, plan: Path) -> None:
    assert cli("apply", str(plan), "--yes", "--no-guests")[0] == 0
    machine_id = cli.root.path / "etc/machine-id"
    machine_id.unlink()  # shared with the pristine root
    machine_id.write_text("f" * 32 + "\n")
    for verb, exit_code in (("revert", 3), ("recover", 3), ("history", 1), ("status", 1)):
        code, out, err = cli(verb)
        assert code == exit_code, verb
        assert "a journal of another machine" in (out if verb == "status" else err)
        assert "000001.jsonl" in out + err


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("vcpu_pins", [{"vcpu": 0, "cpus": "1"}, {"vcpu": 0, "cpus": "2"}], "not each pinned once"),
        ("vcpu_pins", [{"vcpu": 0, "cpus": "1"}, {"vcpu": 1, "cpus": "1"}], "not one CPU of its own"),
        ("vcpu_pins", [{"vcpu": 0, "cpus": "1-2"}], "not one CPU of its own"),
        ("accelerator", "ONE", "'ONE' is none"),
        *(("page_bytes", size, f"{size} is not a size of a huge page") for size in (0, 3, -1, 3 << 20, 1 << 60)),
    ],
)
def test_a_guest_that_no_planner_writes(no: Cli, plan: Path, tmp_path: Path, field: str, value: Any, what: str) -> None:
    document = json.loads(plan.read_text())
    document["guests"][0][field] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    said = never(no, str(path), "--yes", code=2)
    assert what in said["error"]
