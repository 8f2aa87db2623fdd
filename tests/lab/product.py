"""hosttune as an operator calls it, inside the emulated host and on the machine that runs the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.machine import TREE, LabMachine

OUTSIDE_SECONDS = 120


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
