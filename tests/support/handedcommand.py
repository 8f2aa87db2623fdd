"""hosttune as a host between two tenants in a test has it: the real command, whose erasure and test are stand-ins.

argv: FOLDER, then hosttune's own arguments. `handover … --yes` carries out the course of `coursekills` in the root; all
else is the command itself. FOLDER/hold.json and FOLDER/began are as in `heldcommand`, by the first two words.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def main(folder: str, arguments: list[str]) -> int:
    """Run hosttune with these arguments, held where FOLDER says so."""
    from coursekills import ASKED, passing_all
    from courses import Wiped, handed
    from heldcommand import hold_at

    from hosttune.cli import run

    with open(f"{folder}/began", "a") as began:
        began.write(f"{' '.join(arguments[:2])}\n")
    root = arguments[arguments.index("--root") + 1]
    if arguments[0] != "handover" or "--yes" not in arguments:
        return run(arguments)
    if os.path.exists(f"{folder}/hold.json"):
        hold_at(folder, root, json.loads(Path(f"{folder}/hold.json").read_text())["at"])
    try:
        found = handed(Path(root), ASKED, Wiped(), passing_all)
    except Exception as error:
        from hosttune.errors import HosttuneError

        if not isinstance(error, HosttuneError):
            raise
        print(f"error: {error.what}\nwhere: {error.where}\n   do: {error.hint}", file=sys.stderr)
        return 3
    print(found.statement.to_json())
    return 0 if found.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
