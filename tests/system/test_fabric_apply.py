"""Partitions of the NVSwitch fabric from plan to revert, on the example's board as a scratch root.

The Fabric Manager is the root's stand-in: what this proves is hosttune's side, not a board's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import applyroots
import boardroots
import pytest
from applyroots import BOOT_ID, GPU, Cli, outcomes
from fabricroots import activate, active, exactly_of

pristine = boardroots.lean_host
KIND = "fabric-partition"
plan, root, cli = applyroots.plan, applyroots.root, applyroots.cli
RUNS = {".hosttune/commands/virsh-domstate-a": "running\n", ".hosttune/commands/qemu-processes": "1000 a\n"}


def intent(folder: Path, **guest: Any) -> str:
    rows = (
        [{"name": "a", "vcpus": 8, "memory": "16GiB", "networks": [{"network": "default"}], **guest}] if guest else []
    )
    path = folder / "intent.json"
    path.write_text(json.dumps({"version": 1, "profile": "guest", "guests": rows}))
    return str(path)


def steps(cli: Cli, which: int = -1) -> list[tuple[str, str]]:
    """Kind and target of each write of a transaction, in order."""
    return [(line["kind"], line["target"]) for line in cli.root.journals()[which] if line.get("event") == "intent"]


def of_partition(found: dict[str, Any], place: str = "entries") -> dict[str, Any]:
    """The row of the partition in a result."""
    rows = [row for row in found[place] if row["action"].startswith(KIND)]
    assert len(rows) == 1, found[place]
    row: dict[str, Any] = rows[0]
    return row


def test_it_is_set_read_back_kept_and_taken_back_in_order(cli: Cli, tmp_path: Path) -> None:
    wanted = intent(tmp_path, gpus=2)
    found = cli.json("apply", "--intent", wanted, "--yes", "--start")
    row = of_partition(found)
    number, gpus = row["action"].partition(":")[2].partition("@")[::2]
    modules = {int(one) for one in row["want"].removeprefix("active: modules ").split(",")}
    assert (row["outcome"], row["before"], row["after"]) == ("done", "inactive", row["want"])
    assert (active(cli.root.path), exactly_of(cli.root.path, modules)) == ([int(number)], int(number))
    assert outcomes(found)["guest-state:a"] == "done"
    done = steps(cli)
    first = done.index((KIND, f"{number}@{gpus}"))
    assert all(first < done.index(("driver", gpu)) for gpu in gpus.split("+"))
    assert "After=nvidia-fabricmanager.service" in cli.root.get("etc/systemd/system/hosttune-boot.service")
    assert not cli.json("apply", "--intent", wanted, "--yes")["changed"]
    assert cli.json("status")["drift"] == []

    for name in RUNS:
        (cli.root.path / name).unlink(missing_ok=True)
    cli.json("revert", "--yes")
    assert active(cli.root.path) == []
    undone = steps(cli)
    if (KIND, f"{number}@{gpus}") in undone:
        last = undone.index((KIND, f"{number}@{gpus}"))
        assert all(undone.index(("driver", gpu)) < last for gpu in gpus.split("+"))
    assert cli.root.driver(gpus.split("+")[0]) == "nvidia"


def test_after_a_restart_of_the_fabric_manager_it_drifts_and_is_set_again(cli: Cli, tmp_path: Path) -> None:
    wanted = intent(tmp_path, gpus=2)
    number = int(of_partition(cli.json("apply", "--intent", wanted, "--yes"))["action"].partition(":")[2].split("@")[0])
    activate(cli.root.path)
    assert of_partition(cli.json("status", code=1), "drift")
    assert of_partition(cli.json("apply", "--intent", wanted, "--yes"))["outcome"] == "done"
    assert active(cli.root.path) == [number]


def test_after_a_reboot_the_boot_unit_sets_it_again(cli: Cli, tmp_path: Path) -> None:
    cli.json("apply", "--intent", intent(tmp_path, gpus=2), "--yes")
    before = active(cli.root.path)
    activate(cli.root.path)
    cli.root.put(BOOT_ID, "00000000-0000-4000-8000-000000000002\n")
    assert of_partition(cli.json("apply", "--boot"))["outcome"] == "done"
    assert active(cli.root.path) == before


def test_a_partition_that_others_activated_is_not_hosttunes(cli: Cli, tmp_path: Path) -> None:
    activate(cli.root.path, 7)
    wanted = intent(tmp_path, gpus=[GPU])
    row = of_partition(cli.json("apply", "--intent", wanted, "--yes"))
    assert (row["before"], row["outcome"], row["after"]) == (row["want"], "done", row["want"])
    assert not cli.json("apply", "--intent", wanted, "--yes")["changed"]
    cli.json("revert", "--yes")
    assert active(cli.root.path) == [7]


def test_a_running_guest_keeps_it_until_it_has_stopped(cli: Cli, tmp_path: Path) -> None:
    cli.json("apply", "--intent", intent(tmp_path, gpus=2), "--yes", "--start")
    before = active(cli.root.path)
    for name, text in RUNS.items():
        cli.root.put(name, text)
    cli.json("apply", "--intent", intent(tmp_path, gpus=1), "--yes")
    assert active(cli.root.path) == before
    rows = [row for row in cli.json("status")["entries"] if row["action"].startswith(KIND)]
    assert [row["when"] for row in rows if row["outcome"] == "pending"] == ["after-stop", "after-stop"]
    for name in RUNS:
        (cli.root.path / name).unlink()
    found = cli.json("apply", "--intent", intent(tmp_path, gpus=1), "--yes")
    assert [row["outcome"] for row in found["entries"] if row["action"].startswith(KIND)]
    assert len(active(cli.root.path)) == 1
    assert active(cli.root.path) != before


@pytest.mark.parametrize("answer", ["", "{}", "not JSON"])
def test_a_fabric_manager_that_does_not_answer_ends_nothing(cli: Cli, tmp_path: Path, answer: str) -> None:
    """A plan beside what is in force keeps the partition; status says that it cannot be read."""
    wanted = intent(tmp_path, gpus=2)
    cli.json("apply", "--intent", wanted, "--yes")
    listed = ".hosttune/commands/fabric-manager-partitions"
    before = cli.root.get(listed)
    cli.root.put(listed, answer)
    plan = json.loads(cli("plan", "-f", wanted, "-o", "json")[1])
    assert [action for action in plan["actions"] if action["kind"] == KIND] == []
    cli.json("status", code=1)
    cli.root.put(listed, before)
    assert cli.json("status")["drift"] == []
