"""`apply` on kernels that give less than asked, and forth and back on the machines that were captured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import applyroots
import msgspec
import pytest
from applyroots import (
    GPU,
    HOSTS,
    PAGES,
    Cli,
    Root,
    action,
    agrees,
    edited,
    outcomes,
    plain,
    unpack,
)
from bootroots import GRUB_FILES
from cutshort import put
from sweeps import sample

from hosttune.discovery import discover
from hosttune.errors import WriteFailed
from hosttune.machine.scratch import Scratch
from hosttune.model.plan import Plan
from hosttune.model.result import Result
from hosttune.transaction import ApplyOptions, apply_plan
from hosttune.transaction.site import site_of

QUEUE = "sys/bus/pci/devices/0000:1a:00.0/nvme/nvme0/nvme0n1/queue"
# Real machines (h200, hwloc, lscpu) and trees derived from real facts; what they lack is unknown there.
CAPTURES = [
    "older/vm-x1",
    "h200/vm-h200x4",
    "derived/azure-ndv4-8xa100-vm",
    "derived/xe9680-8xh100-lspci",
    "hwloc/20em64t-hybrid-1p6c2t+2ca4co1t",
    "hwloc/32em64t-2n8c+dax+nvme+mic+dimms",
    "hwloc/hist-28em64t-2s2n7c-buggycoresiblings",
]
# Machines whose captures hold no pool of the pages that a guest needs.
POOLLESS = ["hwloc/16amd64-8n2c-cpusets", "lscpu/vmware_fpe"]

plan = applyroots.plan
root = applyroots.root
cli = applyroots.cli


# --- a kernel that gives less, or nothing --------------------------------------------------------------------


class Stingy(Scratch):
    """A kernel with memory for 100 pages of 1 GiB, which takes every governor's preference and keeps its own."""

    def write(self, path: str, text: str) -> None:
        if path.endswith("nr_hugepages"):
            text = str(min(int(text), 100))
        if not path.endswith("energy_performance_preference"):
            super().write(path, text)


class Refusing(Scratch):
    """A kernel that answers EIO to a change of the preference, long after other settings were changed."""

    def write(self, path: str, text: str) -> None:
        if path.endswith("energy_performance_preference"):
            raise WriteFailed(path, "Input/output error", 5)
        super().write(path, text)


def applied(root: Root, plan: str | Path, kind: Callable[[str], Scratch]) -> tuple[Result, int]:
    """An apply on a root with another kernel."""
    system = kind(str(root.path))
    wanted = Plan.from_json(Path(plan).read_text())
    return apply_plan(
        site_of(system), wanted, ApplyOptions(), lambda: discover(system), lambda todo: True, lambda text: None
    )


def test_fewer_pages_than_a_guest_needs_are_clamped_and_all_is_taken_back(cli: Cli, plan: Path) -> None:
    before = cli.root.contents()
    result, code = applied(cli.root, plan, Stingy)
    assert code == 1
    assert not result.changed
    short = next(entry for entry in result.entries if entry.action == f"hugepages:/{PAGES}")
    assert (short.outcome, short.before, short.want, short.after) == ("clamped", 0, 254, 100)
    assert any("hugepages: 2MiB" in note and "profile: host" in note for note in result.notes)
    assert cli.root.contents() == before
    assert cli.json("status")["entries"] == []


def test_fewer_pages_now_take_nothing_back_where_the_next_boot_has_them(cli: Cli, tmp_path: Path) -> None:
    """The remedy that the refusal names: a plan with profile host, on a host whose boot loader can be told."""
    for name, text in GRUB_FILES.items():
        put(cli.root.path, name, text)
    path = tmp_path / "host.json"
    assert cli("plan", "--gpu", GPU, "--profile", "host", "--out", str(path))[0] == 0
    result, code = applied(cli.root, path, Stingy)
    found = {entry.action: entry for entry in result.entries}
    assert (found[f"hugepages:/{PAGES}"].outcome, found[f"hugepages:/{PAGES}"].after) == ("clamped", 100)
    assert found["kernel-argument:hugepages"].outcome == "pending"
    assert (code, result.reboot_required) == (0, True)
    assert cli("revert", "--yes")[0] == 0


def test_ignored_and_not_needed_is_told_and_the_rest_goes_on(cli: Cli, plan: Path, tmp_path: Path) -> None:
    path = edited(plan, tmp_path / "p", actions=lambda rows: [row for row in rows if row["kind"] != "hugepages"])
    result, code = applied(cli.root, path, Stingy)
    found = {entry.action: entry for entry in result.entries}
    ignored = found["energy-preference:cpus 1-11,97-107"]
    assert code == 0
    assert (ignored.outcome, ignored.after) == ("ignored", "balance_performance")
    assert found[f"driver:{GPU}"].outcome == "done"
    again = cli.json("apply", path, "--yes")  # by a kernel that would take it: it must not be tried
    assert again["changed"] is False
    assert outcomes(again)["energy-preference:cpus 1-11,97-107"] == "ignored"
    assert cli.json("status")["drift"] == []
    assert cli("revert", "--yes")[0] == 0
    assert cli.json("status")["entries"] == []


def test_ignored_and_needed_is_taken_back(cli: Cli, plan: Path, tmp_path: Path) -> None:
    def needed(rows: list[Any]) -> list[Any]:
        return [{**row, "needed": True} for row in rows if row["kind"] != "hugepages"]

    before = cli.root.contents()
    result, code = applied(cli.root, edited(plan, tmp_path / "p", actions=needed), Stingy)
    found = {entry.action: entry.outcome for entry in result.entries}
    assert code == 1
    assert found["energy-preference:cpus 1-11,97-107"] == "ignored"
    assert found[f"driver:{GPU}"] == "reverted"
    assert cli.root.contents() == before


def test_a_failing_write_takes_everything_back_needed_or_not(cli: Cli, plan: Path) -> None:
    before = cli.root.contents()
    result, code = applied(cli.root, plan, Refusing)
    found = {entry.action: entry for entry in result.entries}
    assert code == 1
    assert found["energy-preference:cpus 1-11,97-107"].outcome == "failed"
    assert "Input/output error" in (found["energy-preference:cpus 1-11,97-107"].why or "")
    assert {found[f"driver:{GPU}"].outcome, found[f"hugepages:/{PAGES}"].outcome} == {"reverted"}
    assert cli.root.contents() == before


def test_a_queue_shorter_than_asked_is_clamped_told_and_left(cli: Cli, plan: Path, tmp_path: Path) -> None:
    for name, text in (("scheduler", "[mq-deadline] none\n"), ("nr_requests", "256\n"), ("rq_affinity", "1\n")):
        cli.root.put(f"{QUEUE}/{name}", text)
    cli.root.put(f"{QUEUE}/../../sqsize", "127\n")
    wanted = action("nvme-queue", "0000:1a:00.0 n1", {"scheduler": "none", "nr_requests": 1023, "rq_affinity": 2})
    path = edited(plan, tmp_path / "p", actions=[wanted], guests=[])
    entry = cli.json("apply", path, "--yes")["entries"][0]
    assert entry["outcome"] == "clamped"
    assert entry["after"] == {"scheduler": "none", "nr_requests": 127, "rq_affinity": 2}
    assert "127" in entry["why"]
    again = cli.json("apply", path, "--yes")
    assert again["changed"] is False
    assert again["entries"][0]["outcome"] == "clamped"
    assert cli.json("status")["drift"] == []
    cli.root.put(f"{QUEUE}/nr_requests", "64\n")
    assert [one["actual"]["nr_requests"] for one in cli.json("status", code=1)["drift"]] == [64]


# --- every capture -------------------------------------------------------------------------------------------


def unpacked(name: str, profile: str, cli: Callable[[Root], Cli], tmp_path: Path) -> tuple[Cli, str]:
    """A capture as a scratch root, with a plan for its first two GPUs or, without any, for a small guest."""
    found = cli(Root(unpack(next(HOSTS.glob(f"{name}.tar.*")), tmp_path / "root")))
    listed = json.loads(found("discover", "-o", "json")[1])["gpus"]
    gpus = [gpu["address"] for gpu in listed if gpu["vendor"] != "other"][:2]
    guest = {"name": "g", "gpus": gpus} if gpus else {"name": "g", "gpus": 0, "vcpus": 2, "memory": "1GiB"}
    intent, plan = tmp_path / "intent.json", str(tmp_path / "plan.json")
    intent.write_text(json.dumps({"version": 1, "profile": profile, "guests": [guest]}))
    assert found("plan", "-f", str(intent), "--out", plan)[0] == 0
    return found, plan


@pytest.mark.parametrize(
    ("name", "profile"), sample("machines", [(name, profile) for name in CAPTURES for profile in ("guest", "host")], 7)
)
def test_forth_and_back_on_other_machines(
    name: str, profile: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli, plan = unpacked(name, profile, lambda root: Cli(capsys, root), tmp_path)
    before = cli.root.contents()
    rehearsed = cli.json("apply", plan, "--dry-run")
    assert cli.root.contents() == before
    first = cli.json("apply", plan, "--yes")
    assert first["changed"] is True
    assert [entry["action"] for entry in first["entries"]] == [entry["action"] for entry in rehearsed["entries"]]
    between = cli.root.contents()
    assert cli.json("apply", plan, "--yes")["changed"] is False
    assert cli.root.contents() == between
    assert cli.json("status")["drift"] == []
    assert set(outcomes(cli.json("revert", "--yes")).values()) <= {"reverted", "already"}
    assert cli.root.contents() == before
    assert cli.json("revert", "--yes")["entries"] == []


@pytest.mark.parametrize("name", POOLLESS)
def test_machines_without_the_pages_that_a_guest_needs(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cli, plan = unpacked(name, "guest", lambda root: Cli(capsys, root), tmp_path)
    before = cli.root.contents()
    found = cli.json("apply", plan, "--yes", code=1)
    assert {name.partition(":")[0] for name in outcomes(found)} == {"hugepages"}
    assert cli.root.contents() == before


# --- what people read ----------------------------------------------------------------------------------------


def test_texts_of_failures(cli: Cli, plan: Path, request: pytest.FixtureRequest) -> None:
    import io

    from rich.console import Console

    from hosttune.report.draw.text import draw
    from hosttune.report.result import result_report

    for name, kind in (("clamped", Stingy), ("failed", Refusing)):
        result, code = applied(cli.root, plan, kind)
        page = Console(file=io.StringIO(), width=110)
        draw(result_report(msgspec.structs.replace(result, exit_code=code)), page)
        assert isinstance(page.file, io.StringIO)
        agrees(f"{name}.txt", plain(page.file.getvalue(), cli.root), request)
