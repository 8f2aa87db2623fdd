"""What shells complete from the host: addresses of GPUs and names of guests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from system.test_manual import command, in_bash

from hosttune.cli import run

command = command
LISTED = " Id   Name    State\n---------------------\n -    db      shut off\n 1    web     running\n"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A host with a GPU, another one behind a domain of its own, a NIC, and two guests."""
    functions = {"0000:41:00.0": "0x030200", "0000:9a:00.0": "0x120000", "10000:e1:00.0": "0x030000",
                 "0000:42:00.0": "0x020000"}  # fmt: skip
    for address, kind in functions.items():
        folder = tmp_path / "host/sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in (("class", kind), ("vendor", "0x10de"), ("device", "0x2335")):
            (folder / name).write_text(f"{text}\n")
    commands = tmp_path / "host/.hosttune/commands"
    commands.mkdir(parents=True)
    (commands / "virsh-list").write_text(LISTED)
    return str(tmp_path / "host")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("plan", "--root", "ROOT", "--gpu", ""), ["0000:41:00.0", "0000:9a:00.0", "10000:e1:00.0"]),
        (("plan", "--root", "ROOT", "--gpu", "0000", ":", "4"), ["41:00.0"]),
        (("plan", "--root", "ROOT", "--gpu", "0000", ":"), ["41:00.0", "9a:00.0"]),
        (("plan", "--root", "ROOT", "--gpu", "0000", ":", "41", ":", "0"), ["00.0"]),
        (("plan", "--root", "ROOT", "--gpu", "9"), ["9a:00.0"]),
        (("plan", "--root", "ROOT", "--gpu", "42"), []),
        (("plan", "--root", "ROOT", "--adopt", ""), ["db", "web"]),
        (("apply", "--root", "ROOT", "--disrupt", "w"), ["web"]),
        (("lint", "--root", "ROOT", "d"), ["(compopt", "-o", "default)", "db"]),
        (("plan", "--root", "/nowhere", "--gpu", ""), []),
        (("plan", "--root", "@ex"), ["(compopt", "-o", "default)", "@example"]),
        (("plan", "--root", "ex"), ["(compopt", "-o", "default)"]),
        (("lint", "--root", "/nowhere", ""), ["(compopt", "-o", "default)"]),
    ],
)
def test_bash_offers_what_the_host_has(command: Path, root: str, words: tuple[str, ...], offered: list[str]) -> None:
    assert in_bash(command, "hosttune", *(root if word == "ROOT" else word for word in words)) == offered


@pytest.mark.parametrize(
    ("answer", "offered"), [("printf 'web\\ndb\\n\\n'", ["web", "db"]), ("echo refused >&2; exit 1", [])]
)
def test_the_guests_of_this_machine(command: Path, answer: str, offered: list[str]) -> None:
    """A libvirt that cannot be asked offers nothing, and the shell shows no error."""
    virsh = command / "virsh"
    virsh.write_text(f"#!/bin/sh\n{answer}\n")
    virsh.chmod(0o755)
    assert in_bash(command, "hosttune", "recover", "--disrupt", "") == offered


def test_the_script_for_bash_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "bash"]) == 0
    done = subprocess.run(["bash", "-n"], input=capsys.readouterr().out.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
