"""hosttune as an operator calls it, inside the emulated host and on the machine that runs the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from lab.hardware import TREE
from lab.machine import LabMachine

OUTSIDE_SECONDS = 120
COMMAND_SECONDS = 400
PROGRAM = "/usr/local/bin/hosttune"
STATE = "/var/lib/hosttune"


class Ran(NamedTuple):
    """A command of hosttune's that was run: exit status, its document (None: it printed none), stderr."""

    status: int
    document: dict[str, Any] | None
    errors: str

    @property
    def outcomes(self) -> dict[str, str]:
        """Outcome by action of a result document."""
        assert self.document is not None, self.errors
        return {entry["action"]: entry["outcome"] for entry in self.document["entries"]}

    @property
    def doubts_found(self) -> dict[str, str | None]:
        """Reason by action of a result document."""
        assert self.document is not None, self.errors
        return {entry["action"]: entry["why"] for entry in self.document["entries"]}


def install(machine: LabMachine) -> None:
    """hosttune in the machine as just installed: with nothing applied and no state."""
    machine.shell(f"rm -rf {STATE}")


def run(machine: LabMachine, *words: str, before: str = "") -> Ran:
    """Run `hosttune WORDS... -o json`; `before` is what the command line begins with ("strace ...")."""
    answer = machine.shell(f"{before} hosttune {' '.join(words)} -o json", check=False, timeout=COMMAND_SECONDS)
    return Ran(answer.status, json.loads(answer) if answer.strip() else None, answer.errors)


def discover(machine: LabMachine) -> dict[str, Any]:
    """The host document of the emulated host, as plain JSON."""
    return document_of(machine.shell("hosttune discover -o json"))


def plan(machine: LabMachine, intent: dict[str, Any]) -> dict[str, Any]:
    """The plan for an intent (a mapping; JSON is YAML too), as plain JSON; saved on the host as any live plan is."""
    return document_of(machine.shell("hosttune plan -f - -o json", stdin=json.dumps(intent)))


def outside(*arguments: str) -> str:
    """Run hosttune on this machine; its stdout."""
    call = (sys.executable, "-c", "from hosttune.cli import main; main()", *arguments)
    done = subprocess.run(call, cwd=TREE, capture_output=True, text=True, timeout=OUTSIDE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def discover_capture(path: Path) -> dict[str, Any]:
    """The host document of a capture, made on this machine."""
    return document_of(outside("discover", "--root", str(path), "-o", "json"))


def document_of(text: str) -> dict[str, Any]:
    """A JSON document that is an object."""
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def by_address(document: dict[str, Any], section: str = "pci") -> dict[str, dict[str, Any]]:
    """A section of a host document by PCI address."""
    return {entry["address"]: entry for entry in document[section]}
