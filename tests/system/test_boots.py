"""Guests that have nothing to boot from, or whose disk is not there: said in every format, defined, not started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import applyroots
import pytest
from applyroots import GPU, Cli, outcomes

from hosttune.cli import run

root = applyroots.root
cli = applyroots.cli
plan = applyroots.plan

DISK = "/images/train.qcow2"
NOTHING = (
    "nothing to boot from: give it a disk (disk: PATH, --disk), a network (networks:, --network) or a kernel (boot:)"
)
ABSENT = f"there is no {DISK}, which should be its disk"
STATE = "guest-state:train"


def intent(tmp_path: Path, **more: Any) -> str:
    """The path of an intent of one guest with a GPU."""
    path = tmp_path / "intent.yaml"
    path.write_text(json.dumps({"version": 1, "guests": [{"name": "train", "gpus": [GPU], **more}]}))
    return str(path)


def boot_findings(text: str) -> list[tuple[str, str]]:
    """Level and text of the findings of a JSON plan that are about what the guest boots from."""
    rows = [(row["level"], row["text"]) for row in json.loads(text)["findings"]]
    return [row for row in rows if ("boot" in row[1] and "give it a disk" in row[1]) or "its disk" in row[1]]


@pytest.mark.parametrize("output", ["text", "json", "html", "xml"])
def test_every_format_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str) -> None:
    for more, said in (({}, True), ({"networks": [{"network": "default"}]}, False)):
        assert run(["plan", "--root", "@example", "-f", intent(tmp_path, **more), "-o", output]) == 0
        out, err = capsys.readouterr()
        assert ("nothing to boot from" in " ".join((err if output == "xml" else out).split())) is said, output
        assert output != "xml" or out.startswith("<domain")


@pytest.mark.parametrize(
    ("more", "level"),
    [
        ({}, "warn"),
        ({"disk": DISK}, None),
        ({"networks": [{"bridge": "br0"}]}, None),
        ({"boot": {"kernel": "/boot/vmlinuz"}}, None),
        ({"nvme": 1}, "warn"),
        ({"nics": 1}, "warn"),
    ],
    ids=str,
)
def test_what_a_guest_boots_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any], level: str | None
) -> None:
    assert run(["plan", "--root", "@example", "-f", intent(tmp_path, **more), "-o", "json"]) == 0
    found = boot_findings(capsys.readouterr().out)
    assert [row[0] for row in found] == ([level] if level else [])
    assert not more or all("only from what is passed to it" in text for _, text in found)


@pytest.mark.parametrize("start", [(), ("--start",)], ids=["define", "start"])
def test_a_guest_with_nothing_to_boot_from_is_defined_and_waits(
    cli: Cli, tmp_path: Path, start: tuple[str, ...]
) -> None:
    cli.root.activate(7)
    found = cli.json("apply", "--intent", intent(tmp_path), "--yes", *start)
    assert (outcomes(found)["guest:train"], outcomes(found)[STATE]) == ("done", "pending")
    (entry,) = [row for row in found["entries"] if row["action"] == STATE]
    assert NOTHING in entry["why"]
    assert not (cli.root.path / ".hosttune/commands/virsh-domstate-train").exists()
    assert outcomes(cli.json("apply", "--intent", intent(tmp_path), "--yes", *start))[STATE] == "pending"


@pytest.mark.parametrize("more", [{"networks": [{"network": "default"}]}, {"nvme": 1}], ids=str)
def test_what_may_boot_is_started(cli: Cli, tmp_path: Path, more: dict[str, Any]) -> None:
    cli.root.activate(7)
    found = outcomes(cli.json("apply", "--intent", intent(tmp_path, **more), "--yes", "--start"))
    assert found[STATE] == "done"
    assert STATE not in outcomes(cli.json("apply", "--intent", intent(tmp_path, **more), "--yes"))


def test_a_disk_that_is_not_there_is_an_error_and_the_guest_waits_for_it(
    cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.root.activate(7)
    wanted = intent(tmp_path, disk=DISK)
    said = cli("plan", "-f", wanted, "-o", "json")[1]
    assert [(level, ABSENT in text) for level, text in boot_findings(said)] == [("error", True)]
    text = cli("plan", "-f", wanted)[1]
    assert ABSENT in " ".join(text.partition("\nguest train")[0].split())  # above the guests, beside the verdict
    found = cli.json("apply", "--intent", wanted, "--yes", "--start")
    assert (outcomes(found)["guest:train"], outcomes(found)[STATE]) == ("done", "pending")
    assert ABSENT in next(row["why"] for row in found["entries"] if row["action"] == STATE)
    cli.root.put(DISK.lstrip("/"), "")
    assert outcomes(cli.json("apply", "--intent", wanted, "--yes", "--start"))[STATE] == "done"


def test_of_a_capture_nobody_knows_the_disks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--root", "@example", "-f", intent(tmp_path, disk=DISK), "-o", "json"]) == 0
    assert boot_findings(capsys.readouterr().out) == []
