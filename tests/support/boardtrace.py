"""What no trace of a board may have: see "Invariants" in `board.md`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from board import TRACE

Row = Mapping[str, Any]
_NOBODYS = ("fault", "away")  # what tests and hardware do


def trace_of(root: Path) -> list[Row]:
    """All that happened to the board of a root, oldest first."""
    file = root / TRACE
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def unfit(row: Row) -> dict[str, str]:
    """The running guests that must not run as things are, each with why."""
    unfit_guests = {}
    for name, devices in row["guests"].items():
        modules = sorted(row["modules"][one] for one in devices if one in row["modules"])
        if modules and row["mode"] == 1 and modules not in row["active"].values():
            unfit_guests[name] = f"modules {modules}, active are {row['active']}"
        bare = [one for one in devices if row["types"].get(one) == "0"]
        if bare:
            unfit_guests[name] = f"{bare} carry no vGPU"
    return unfit_guests


def wrongs(rows: Iterable[Row], *, order: bool = True) -> list[str]:
    """What is wrong in a trace, with its line. `order`: that of NVIDIA's DRA driver holds, too."""
    found, was = [], dict[str, str]()
    for number, row in enumerate(rows, 1):
        what, now = f"line {number}, {row['op']} {' '.join(map(str, row['words']))}", unfit(row)
        if row["op"] not in _NOBODYS:
            found += [f"{what}: guest {name} runs with {why}" for name, why in now.items() if name not in was]
        was = now
        if not row.get("code"):
            found += [f"{what}: {text}" for text in (*_disturbed(row), *(_out_of_order(row) if order else ()))]
    return found


def _disturbed(row: Row) -> Iterator[str]:
    if row["op"] in ("run", "write", "mig-mode"):
        guests = row["before"].items()
        yield from (f"disturbs guest {name}" for name, devices in guests if {*devices} & {*row["touched"]})
    if row["op"] == "write" and row["words"][0].endswith("/nvidia/unbind") and row["clients"].get(row["words"][1]):
        yield "a process has the GPU open"


def _out_of_order(row: Row) -> Iterator[str]:
    """A partition is activated and deactivated while the host's driver has its GPUs."""
    if row["op"] != "run" or row["words"][0] != "fmpm" or row["words"][-2] not in ("-a", "-d"):
        return
    members = row["active"].get(row["words"][-1], [])
    gpus = [name for name, module in row["modules"].items() if module in members] or row["touched"]
    held = [name for name in gpus if row["drivers"][name] != "nvidia"]
    if held:
        yield f"{held} are not on nvidia"
