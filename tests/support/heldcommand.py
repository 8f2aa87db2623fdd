"""hosttune as a host in a test has it: the real command, which can be made to wait in the middle of what it does.

argv: FOLDER, then hosttune's own arguments. Where FOLDER/hold.json holds {"verb": V, "at": N}, verb V waits before its
Nth change of a file below the root (0: before it does anything): it makes FOLDER/held and goes on once FOLDER/hold.json
is gone. FOLDER/began gets a line for each start: the verb.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR
_CHANGES = frozenset(("os.rename", "os.remove", "os.mkdir", "os.symlink", "os.link", "os.truncate"))


def wait(folder: str) -> None:
    """Say that this is the place, and stay there until told to go on."""
    with open(f"{folder}/held", "a"):
        pass
    while os.path.exists(f"{folder}/hold.json"):
        time.sleep(0.02)


def hold_at(folder: str, root: str, number: int) -> None:
    """Wait before the Nth change of a file below `root`; the state directory's own files count, too."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "open":
            changes = isinstance(arguments[2], int) and bool(arguments[2] & _WRITING)
        else:
            changes = event in _CHANGES
        if changes and str(arguments[0]).startswith(root):
            seen += 1
            if seen == number:
                wait(folder)

    sys.addaudithook(hook)


def main(folder: str, arguments: list[str]) -> int:
    """Run hosttune with these arguments, held where FOLDER says so."""
    from hosttune.cli import run

    with open(f"{folder}/began", "a") as began:
        began.write(f"{arguments[0]}\n")
    try:
        with open(f"{folder}/hold.json") as file:
            order = json.load(file)
    except FileNotFoundError:
        order = {}
    if order.get("verb") == arguments[0]:
        if order["at"]:
            hold_at(folder, arguments[arguments.index("--root") + 1], order["at"])
        else:
            wait(folder)
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
