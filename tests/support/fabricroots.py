"""The example's NVSwitch fabric in a root: which of its partitions are active, and its mode."""

from __future__ import annotations

import json
from pathlib import Path

from hosttune.discovery import discover
from hosttune.machine.scratch import Scratch

LIST = ".hosttune/commands/fabric-manager-partitions"
CONFIG = "usr/share/nvidia/nvswitch/fabricmanager.cfg"


def activate(root: Path, *numbers: int) -> None:
    """Make exactly these partitions active."""
    document = json.loads((root / LIST).read_text())
    for one in document["partitionInfo"]:
        one["isActive"] = int(one["partitionId"] in numbers)
    (root / LIST).write_text(json.dumps(document))


def with_mode(root: Path, mode: int) -> None:
    """Set the mode in the Fabric Manager's configuration."""
    config = root / CONFIG
    lines = [line for line in config.read_text().splitlines() if not line.startswith("FABRIC_MODE=")]
    config.write_text("\n".join([*lines, f"FABRIC_MODE={mode}", ""]))


def exactly_of(root: Path, modules: set[int]) -> int:
    """The partition of exactly these module ids."""
    rows = json.loads((root / LIST).read_text())["partitionInfo"]
    found = [one["partitionId"] for one in rows if {gpu["physicalId"] for gpu in one["gpuInfo"]} == modules]
    assert len(found) == 1
    return int(found[0])


def address_of(root: Path, module: int) -> str:
    """The GPU with a module id."""
    return next(one.address for one in discover(Scratch(str(root))).gpus if one.module_id == module)


def active(root: Path) -> list[int]:
    """The active partitions."""
    rows = json.loads((root / LIST).read_text())["partitionInfo"]
    return [one["partitionId"] for one in rows if one["isActive"]]
