"""`status`, `revert`, `recover` and the boot unit's `apply --boot` through the command line, on scratch roots."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import applyroots
import msgspec
import pytest
from applyroots import (
    BOOT_ID,
    ENTRY,
    GPU,
    JOURNAL,
    OTHER_GPU,
    PAGES,
    PREFERENCE,
    RESULT,
    STATE,
    Cli,
    Root,
    action,
    agrees,
    copied,
    edited,
    outcomes,
    plain,
    planned,
)

from hosttune.cli import run
from hosttune.machine.scratch import Scratch
from hosttune.model.result import Result
from hosttune.model.values import freeze
from hosttune.settings.drivers import Driver
from hosttune.settings.hook import PLACE
from hosttune.transaction import status
from hosttune.transaction.site import site_of
from hosttune.transaction.steps import setting_of_record

UNIT = "etc/systemd/system/hosttune-boot.service"
CMDLINE = "proc/cmdline"
DROP_IN = "etc/default/grub.d"
ANOTHER_BOOT = "11111111-0000-4000-8000-000000000000\n"
PREFERENCES = "energy-preference:cpus 1-11,97-107"
PARTITION = f"fabric-partition:7@{GPU}"

root = applyroots.root
cli = applyroots.cli


def linked(pristine: Path, folder: Path) -> Root:
    """A copy by hard links: overlays above it stand no second one below."""
    subprocess.run(["cp", "-al", str(pristine), str(folder / "root")], check=True)
    return Root(folder / "root")


@pytest.fixture(scope="module")
def pristine(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as a scratch root, with a GRUB that reads drop-ins, which nobody writes to."""
    root = linked(pristine, tmp_path_factory.mktemp("grub"))
    root.put("usr/sbin/grub-mkconfig", 'for x in ${sysconfdir}/default/grub.d/*.cfg ; do . "${x}" ; done\n')
    root.put("usr/sbin/update-grub", "#!/bin/sh\n")
    return root.path


@pytest.fixture(scope="module")
def plan(pristine: Path) -> Path:
    """A plan with settings of every scope: a guest on a host that is given to GPU work."""
    return planned(pristine, "plan", "--gpu", GPU, "--profile", "host")


@pytest.fixture(scope="module")
def in_force(pristine: Path, plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root on which the plan is applied, which nobody writes to."""
    root = linked(pristine, tmp_path_factory.mktemp("applied"))
    assert run(["apply", str(plan), "--root", str(root.path), "--yes"]) == 0
    return root.path


@pytest.fixture
def applied(cli: Cli, in_force: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """A copy of that root."""
    with copied(in_force, tmp_path / "applied") as root:
        yield Cli(capsys, root)


# --- the document --------------------------------------------------------------------------------------------


def test_the_result_is_what_its_schema_says(applied: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    text = applied("status", "-o", "json")[1]
    Result.from_json(text)
    assert run(["schema", "result"]) == 0
    schema = json.loads(capsys.readouterr().out)
    fields = schema["$defs"]["Result"]["properties"]
    assert set(fields) >= RESULT
    assert set(json.loads(text)) == set(fields)
    assert set(schema["$defs"]["Entry"]["properties"]) == ENTRY
    assert set(schema["$defs"]["Drift"]["properties"]) == {"action", "expected", "actual", "why", "hint"}
    assert set(schema["$defs"]["OpenTransaction"]["properties"]) == {"number", "verb", "state", "journal"}
    words = schema["$defs"]["Entry"]["properties"]["outcome"]["enum"]
    assert {"done", "already", "clamped", "ignored", "stuck", "failed", "reverted", "conflict", "pending"} <= set(words)
    only_fixed = {name: json.loads(text)[name] for name in RESULT}
    assert msgspec.json.decode(json.dumps(only_fixed), type=Result).verb == "status"


# --- status --------------------------------------------------------------------------------------------------


def test_what_is_merely_saved_is_not_in_force(cli: Cli, plan: Path) -> None:
    cli.root.put(f"{STATE}/plan.json", plan.read_text())
    found = cli.json("status")
    assert found["entries"] == found["drift"] == []
    assert found["reboot_required"] is False
    assert cli("status")[1] == "example-hgx-h200: nothing in force\n"


@pytest.mark.parametrize("option", ["--root", "--host"])
def test_what_is_applied_on_a_capture_is_unknown(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A capture and a host document keep no state: "nothing in force" would be a claim without evidence."""
    place = "examples/mi300x-8.tar.xz"
    if option == "--host":
        assert run(["discover", "--root", place, "-o", "json"]) == 0
        place = str(tmp_path / "host.json")
        Path(place).write_text(capsys.readouterr().out)
    assert run(["status", option, place]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "example-mi300x: what is applied is unknown"
    assert "run hosttune status on the host itself" in out
    assert run(["status", option, place, "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["state_known"], found["exit_code"], found["entries"]) == (False, 1, [])


def test_in_force_is_what_was_applied_and_status_changes_nothing(applied: Cli) -> None:
    before = applied.root.tree()
    applied_state = {entry["action"]: entry for entry in applied.json("status")["entries"]}
    assert (applied_state[f"driver:{GPU}"]["before"], applied_state[f"driver:{GPU}"]["after"]) == ("nvidia", "vfio-pci")
    assert applied_state[f"hugepages:/{PAGES}"]["want"] == 254
    assert "guest:gpu-guest" in applied_state
    assert f"irq-affinity:{GPU}" not in applied_state  # it still waits
    assert applied.root.tree() == before


@pytest.mark.parametrize(
    ("name", "text", "drifted", "actual"),
    [
        (PAGES, "200\n", f"hugepages:/{PAGES}", 200),
        (UNIT, "# mine\n", f"drop-in:/{UNIT}", "# mine\n"),
        ("proc/sys/kernel/numa_balancing", "1\n", "numa-balancing:kernel.numa_balancing", 1),
    ],
)  # fmt: skip
def test_drift_is_named_setting_by_setting(applied: Cli, name: str, text: str, drifted: str, actual: Any) -> None:
    applied.root.put(name, text)
    found = applied.json("status", code=1)["drift"]
    assert [(one["action"], one["actual"]) for one in found] == [(drifted, actual)]
    assert found[0]["expected"] not in (None, actual)


def test_a_setting_of_many_cpus_drifts_in_one(applied: Cli) -> None:
    applied.root.put(PREFERENCE.format(7), "power\n")
    (one,) = applied.json("status", code=1)["drift"]
    assert one["action"] == PREFERENCES
    assert "power" in json.dumps(one["actual"])


def test_what_cannot_be_read_any_more_is_drift_not_fine(applied: Cli) -> None:
    (applied.root.path / PAGES).unlink()
    applied.root.put(".hosttune/unreadable", f"/{PAGES}\tEIO\n")
    (one,) = applied.json("status", code=1)["drift"]
    assert one["action"] == f"hugepages:/{PAGES}"
    assert "cannot be read" in one["why"]
    assert one["actual"] is None


# --- revert --------------------------------------------------------------------------------------------------


def test_nothing_applied_is_nothing_to_revert(cli: Cli) -> None:
    found = cli.json("revert", "--yes")
    assert (found["changed"], found["entries"]) == (False, [])
    assert cli.json("recover")["entries"] == []


def test_revert_brings_everything_back_and_once_is_enough(cli: Cli, plan: Path) -> None:
    before = cli.root.contents()
    assert cli("apply", str(plan), "--yes")[0] == 0
    assert cli.root.contents() != before
    assert set(outcomes(cli.json("revert", "--yes")).values()) == {"reverted"}
    assert cli.root.contents() == before
    state = cli.root.tree()
    assert cli.json("revert", "--yes")["changed"] is False
    after = cli.root.tree()
    assert {name for name in state | after if state.get(name) != after.get(name)} <= {f"{STATE}/lock"}


def test_what_others_changed_is_left_alone_until_forced(cli: Cli, plan: Path) -> None:
    before = cli.root.contents()
    assert cli("apply", str(plan), "--yes")[0] == 0
    applyroots.put_pages(cli, 300)
    cli.root.put(PREFERENCE.format(1), "power\n")
    found = cli.json("revert", "--yes", code=1)
    told = {entry["action"]: entry for entry in found["entries"]}
    assert {name for name, entry in told.items() if entry["outcome"] == "conflict"} == {
        f"hugepages:/{PAGES}",
        PREFERENCES,
    }
    assert told[f"hugepages:/{PAGES}"]["after"] == 300
    assert "--force" in told[f"hugepages:/{PAGES}"]["why"]
    assert cli.root.get(PAGES) == "300"
    assert (cli.root.get(PREFERENCE.format(1)), cli.root.get(PREFERENCE.format(2))) == ("power", "balance_performance")
    assert cli.root.driver(GPU) == "nvidia"
    applied_state = cli.json("status", code=1)
    assert outcomes(applied_state) == {
        f"hugepages:/{PAGES}": "conflict", "energy-preference:cpus 1": "conflict",
    }  # fmt: skip
    assert applied_state["drift"] == []  # what is another's is no drift of ours
    assert set(outcomes(cli.json("revert", "--yes", code=1)).values()) == {"conflict"}
    assert set(outcomes(cli.json("revert", "--yes", "--force")).values()) == {"reverted"}
    assert cli.root.contents() == before
    assert cli.json("status")["entries"] == []


def rehearsed_revert(cli: Cli, *options: str) -> dict[str, str]:
    """The outcomes of a dry run, which has written nothing."""
    before = cli.root.tree()
    code, out, err = cli("revert", "--dry-run", *options, "-o", "json")
    assert (code, err, cli.root.tree()) == (0, "", before)
    found = json.loads(out)
    assert (found["changed"], found["notes"][-1]) == (False, "dry run: nothing was written")
    return outcomes(found)


@pytest.fixture(scope="module")
def twice(pristine: Path, plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root on which two plans are applied, which nobody writes to."""
    at = linked(pristine, tmp_path_factory.mktemp("twice")).path
    assert run(["apply", str(plan), "--root", str(at), "--yes", "--no-guests"]) == 0
    again = planned(at, "again", "--gpu", OTHER_GPU, "--name", "second", "--profile", "host")
    assert run(["apply", str(again), "--root", str(at), "--yes", "--no-guests"]) == 0
    return at


@pytest.mark.parametrize("changed", [{}, {PAGES: "300\n", PREFERENCE.format(1): "power\n"}], ids=["ours", "others"])
@pytest.mark.parametrize("options", [(), ("--force",)])
def test_a_revert_does_what_its_dry_run_says(
    twice: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str], options: tuple[str, ...]
) -> None:
    """Also where a second apply changed some of the same CPUs: each value is what the revert before it would leave."""
    with copied(twice, tmp_path / "root") as root:
        cli = Cli(capsys, root)
        for name, text in changed.items():
            root.put(name, text)
        said = rehearsed_revert(cli, *options)
        done = outcomes(cli.json("revert", "--yes", *options, code=1 if changed and not options else 0))
    assert set(said.values()) >= {"planned"}
    foretold = {"planned": {"reverted", "already"}, "already": {"already"}, "conflict": {"conflict"}}
    assert said.keys() == done.keys()
    kept = {name for name, outcome in done.items() if outcome == "conflict"}
    assert {n: (o, done[n]) for n, o in said.items() if done[n] not in foretold[o] and n not in kept} == {}
    assert kept <= {name for name, outcome in said.items() if outcome in ("planned", "conflict")}


def test_a_dry_run_says_what_a_revert_would_refuse(applied: Cli) -> None:
    applied.root.put(".hosttune/commands/virsh-domstate-gpu-guest", "running\n")
    _, out, _ = applied("revert", "--dry-run")
    assert "revert would be refused: guests that hosttune set up are running: gpu-guest" in " ".join(out.split())
    assert "dry run of revert on example-hgx-h200: nothing was written" in out


def test_without_a_terminal_a_revert_needs_yes(applied: Cli) -> None:
    before = applied.root.contents()
    code, out, err = applied("revert")
    assert (code, out) == (3, "")
    assert f"driver {GPU}: vfio-pci -> nvidia" in err
    assert "do: give --yes" in err
    assert applied.root.contents() == before


def test_what_others_put_back_themselves_is_no_conflict(applied: Cli) -> None:
    applied.root.put(PAGES, "0\n")
    (entry,) = [one for one in applied.json("revert", "--yes")["entries"] if one["action"] == f"hugepages:/{PAGES}"]
    assert (entry["outcome"], entry["before"], entry["after"]) == ("already", 0, 0)
    assert "nothing was written" in entry["why"]


# --- the journal, and recover --------------------------------------------------------------------------------


def test_a_person_can_read_the_journal(applied: Cli) -> None:
    (lines,) = applied.root.journals()
    assert lines[0]["schema"] == "hosttune.journal/v1"
    assert (lines[0]["verb"], lines[0]["host"]) == ("apply", "example-hgx-h200")
    assert lines[-1] == {"event": "closed", "at": lines[-1]["at"], "state": "applied"}
    assert applied.json("recover")["entries"] == []  # what is finished is left alone
    assert applied.root.driver(GPU) == "vfio-pci"
    events = [(line["event"], line["step"]) for line in lines[1:-1]]
    assert events == [(event, step) for step in range(1, len(events) // 2 + 1) for event in ("intent", "done")]


def test_a_journal_that_only_began_holds_nothing_up(applied: Cli) -> None:
    applied.root.put(JOURNAL, applied.root.get(JOURNAL).splitlines(keepends=True)[0] + '{"event":"inte')
    assert applied.json("status")["open_transaction"] is None
    assert applied.json("recover")["entries"] == []


@pytest.mark.parametrize("lines", [2, 3, 8, 9])  # within and after the first step and the fourth, the driver
def test_a_cut_off_journal_is_settled(applied: Cli, lines: int) -> None:
    """Whatever the last line on disk is: what it names is taken back, the rest (here: as it was left) is told of."""
    kept = applied.root.get(JOURNAL).splitlines(keepends=True)[:lines]
    applied.root.put(JOURNAL, "".join(kept) + '{"event":"inte')
    assert applied.json("status", code=1)["open_transaction"]["state"] == "applying"
    found = applied.json("recover")
    assert found["open_transaction"] is None
    assert len(found["entries"]) == lines // 2
    assert set(outcomes(found).values()) <= {"reverted"}
    assert applied.json("status")["entries"] == []
    assert all(line["event"] for line in applied.root.journals()[0][1:])  # the torn line is gone
    applied.root.put(JOURNAL, "".join(applied.root.get(JOURNAL).splitlines(keepends=True)[:-1]))
    assert applied.json("recover")["notes"] == ["transaction 1 was rolled back already: it is closed now"]


# --- reboots -------------------------------------------------------------------------------------------------


def test_arguments_of_the_kernel_wait_for_the_boot_that_shows_them(cli: Cli, plan: Path) -> None:
    first = cli.json("apply", str(plan), "--yes")
    argument = "kernel-argument:iommu"
    assert outcomes(first)[argument] == "pending"
    assert first["reboot_required"] is True
    assert cli.root.get(CMDLINE).count("iommu=pt") == 0
    again = cli.json("apply", str(plan), "--yes")
    assert (again["changed"], again["reboot_required"], outcomes(again)[argument]) == (False, True, "pending")
    applied_state = cli.json("status")
    assert (applied_state["reboot_required"], applied_state["drift"]) == (True, [])
    cli.root.put(BOOT_ID, ANOTHER_BOOT)  # a boot that did not take them confirms nothing
    assert cli.json("status")["reboot_required"] is True
    cli.root.put(CMDLINE, cli.root.get(CMDLINE) + " iommu=pt hugepagesz=1G hugepages=0:254\n")
    applied_state = cli.json("status")
    assert (applied_state["reboot_required"], applied_state["drift"]) == (False, [])
    assert outcomes(cli.json("apply", str(plan), "--yes"))[argument] == "already"


def test_a_boot_that_is_pending_is_told_by_every_later_apply(cli: Cli, tmp_path: Path) -> None:
    intent = tmp_path / "intent.yaml"
    intent.write_text("version: 1\nprofile: host\nguests: [{name: a, gpus: 1, memory: 32GiB}]\n")
    told = [cli.json("apply", "--intent", str(intent), "--yes") for _ in range(2)]
    assert [(one["changed"], one["reboot_required"]) for one in told] == [(True, True), (False, True)]
    assert cli("plan", "-f", str(intent), "--check")[0] == 0


def test_arguments_that_are_staged_together_stand_and_drift_one_by_one(applied: Cli) -> None:
    applied_state = {entry["action"]: entry for entry in applied.json("status")["entries"]}
    argument = applied_state["kernel-argument:iommu"]
    assert (argument["before"], argument["want"], argument["outcome"]) == ("not staged", "iommu=pt", "pending")
    assert applied_state["kernel-argument:hugepages"]["want"] == "hugepagesz=1G hugepages=0:254"
    (drop_in,) = (applied.root.path / DROP_IN).iterdir()
    drop_in.unlink()
    drifted = {one["action"]: one["actual"] for one in applied.json("status", code=1)["drift"]}
    assert drifted == {"kernel-argument:iommu": "not staged", "kernel-argument:hugepages": "not staged"}


def test_what_is_taken_back_works_until_the_next_boot(applied: Cli) -> None:
    shown = applied.root.get(CMDLINE)
    applied.root.put(CMDLINE, shown + " iommu=pt hugepagesz=1G hugepages=0:254\n")
    assert applied.json("revert", "--yes")["reboot_required"] is True
    assert applied.json("status")["reboot_required"] is True
    assert not (applied.root.path / DROP_IN).exists()
    applied.root.put(CMDLINE, shown + "\n")
    assert applied.json("status")["reboot_required"] is False


def rebooted(root: Root) -> None:
    """What a reboot undoes of the plan."""
    root.put(BOOT_ID, ANOTHER_BOOT)
    root.put(PAGES, "0\n")
    root.put(PAGES.replace("nr_", "free_"), "0\n")
    root.put("proc/sys/kernel/numa_balancing", "1\n")
    root.activate(7, active=False)
    for cpu in (*range(1, 12), *range(97, 108)):
        root.put(PREFERENCE.format(cpu), "balance_performance\n")


def test_a_reboot_reopens_what_runs_only_until_then(applied: Cli, plan: Path) -> None:
    rebooted(applied.root)
    drifted = {one["action"] for one in applied.json("status", code=1)["drift"]}
    assert drifted == {f"hugepages:/{PAGES}", PREFERENCES, PARTITION, "numa-balancing:kernel.numa_balancing"}
    again = outcomes(applied.json("apply", str(plan), "--yes"))
    assert {name for name, outcome in again.items() if outcome == "done"} == drifted
    assert applied.json("status")["drift"] == []


def test_the_boot_unit_sets_it_again_from_the_journal(cli: Cli, plan: Path) -> None:
    before = cli.root.contents()
    assert cli("apply", str(plan), "--yes")[0] == 0
    unit = cli.root.get(UNIT)
    assert "apply --boot" in unit
    assert "Before=libvirtd.service virtqemud.service" in unit
    rebooted(cli.root)
    found = outcomes(cli.json("apply", "--boot"))
    done = {f"hugepages:/{PAGES}", PREFERENCES, PARTITION, "numa-balancing:kernel.numa_balancing"}
    assert {name for name, outcome in found.items() if outcome == "done"} == done
    assert cli.root.get(PAGES) == "254"
    assert cli.json("status")["drift"] == []
    assert cli.json("apply", "--boot")["changed"] is False
    assert set(outcomes(cli.json("revert", "--yes")).values()) == {"reverted"}  # to the originals of the apply
    assert cli.root.contents() == {**before, BOOT_ID: ANOTHER_BOOT.encode()}


def test_the_boot_unit_has_nothing_to_do_where_nothing_is_applied(cli: Cli) -> None:
    found = cli.json("apply", "--boot")
    assert (found["changed"], found["entries"]) == (False, [])


def test_revert_after_a_reboot_is_no_conflict(applied: Cli) -> None:
    rebooted(applied.root)
    found = {entry["action"]: entry for entry in applied.json("revert", "--yes")["entries"]}
    undone = {f"hugepages:/{PAGES}", PREFERENCES, PARTITION, "numa-balancing:kernel.numa_balancing"}
    assert {name for name, entry in found.items() if entry["outcome"] == "already"} == undone
    assert all("the reboot had undone it" in found[name]["why"] for name in undone)
    assert {entry["outcome"] for name, entry in found.items() if name not in undone} == {"reverted"}
    assert applied.root.get(PAGES) == "0"


# --- an outcome that was told --------------------------------------------------------------------------------


def test_what_this_host_does_not_have_is_neither_in_force_nor_drift(cli: Cli, plan: Path, tmp_path: Path) -> None:
    absent = action("sysctl", "vm.zone_reclaim_mode", "0")
    path = edited(plan, tmp_path / "p", actions=[absent], guests=[])
    found = cli.json("apply", path, "--yes")
    assert outcomes(found) == {}  # nothing was written: no outcome would be true of it
    assert "this host has no sysctl vm.zone_reclaim_mode: nothing was written for that" in found["notes"]
    assert found["changed"] is False
    assert cli.json("status")["entries"] == []
    assert cli.root.journals() == []


# --- what people read ----------------------------------------------------------------------------------------


def test_texts(cli: Cli, plan: Path, request: pytest.FixtureRequest) -> None:
    def read(name: str, verb: str, *arguments: str, code: int = 0) -> None:
        got, out, err = cli(verb, *arguments)
        assert got == code, out + err
        agrees(f"{name}.txt", plain(out + err, cli.root), request)

    read("staged", "apply", str(plan), "--yes")
    read("status-staged", "status")
    rebooted(cli.root)
    read("status-rebooted", "status", code=1)
    read("boot", "apply", "--boot")
    cli.root.put(JOURNAL, "".join(cli.root.get(JOURNAL).splitlines(keepends=True)[:7]))
    read("status-unfinished", "status", code=1)
    read("unfinished", "apply", str(plan), "--yes", code=3)
    read("recover", "recover")


def test_a_plan_that_does_not_read_leaves_the_journal_to_tell(applied: Cli) -> None:
    before = outcomes(applied.json("status"))
    applied.root.put(f"{STATE}/transactions/000001.plan.json", "{")
    found = applied.json("status")
    assert outcomes(found) == before
    assert any(
        "000001.jsonl cannot be read: what it stages for the next boot is unknown" in note for note in found["notes"]
    )


def test_apply_sets_again_all_that_somebody_put_back(cli: Cli, tmp_path: Path) -> None:
    intent = tmp_path / "intent.yaml"
    intent.write_text(
        "version: 1\nprofile: host\nsettings: {libvirt_hook: true, compute_mode: exclusive_process}\n"
        f'guests: [{{name: a, gpus: ["{GPU}"], memory: 8GiB, nvme: 1, autostart: true}}]\n'
    )
    assert cli("apply", "--intent", str(intent), "--yes")[0] == 0
    machine = Scratch(str(cli.root.path))
    rows = site_of(machine).standings(site_of(machine).transactions()).in_force
    for record in (row.record for row in reversed(rows)):
        setting_of_record(record).write(machine, freeze(record.old))
    drift = cli.json("status", code=1)["drift"]
    assert len({entry["action"].partition(":")[0] for entry in drift}) > 10
    assert cli("apply", "--intent", str(intent), "--yes")[0] == 0
    code, out, _ = cli("status")
    assert code == 0, out


def test_a_hook_that_another_program_replaced_is_drift(applied: Cli) -> None:
    """It refuses starts without what the guest's devices need: it must not be missed."""
    applied.root.put(PLACE.removeprefix("/"), "#!/bin/sh\n# another program's\n")
    (drift,) = applied.json("status", code=1)["drift"]
    assert (drift["action"], drift["actual"]) == (f"libvirt-hook:{PLACE}", "of another program")
    assert drift["hint"] == f"{PLACE} is a file of another program: move it away"


def test_a_driver_that_an_iommu_switched_off_keeps_away_is_drift(applied: Cli) -> None:
    """After a boot without an IOMMU vfio-pci cannot have the GPU, and its guest cannot start."""
    machine = Scratch(str(applied.root.path))
    machine.complete = True  # as a live machine: what is not there is not there
    Driver.of(GPU).write(machine, "nvidia")
    (applied.root.path / f"sys/bus/pci/devices/{GPU}").resolve().joinpath("iommu_group").unlink()
    result, code = status(site_of(machine))
    assert code == 1
    drift = {entry.action: entry for entry in result.drift}[f"driver:{GPU}"]
    assert drift.actual == "nvidia"
    assert "it has no IOMMU group" in (drift.hint or "")
