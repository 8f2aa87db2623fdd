"""Print the test files that `make check` runs: the unit tests of what changed since BASE, ALL=1 every unit test.

BASE is HEAD without it: what is not committed. What changed are the rooms of changed files of the product, test files,
and the modules of tests/support that a test file names.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Rooms that read files which lie beside the package.
BESIDE = {"templates": ("domain", "guest", "report"), "baselines": ("bench",), "monitoring": ("metrics",)}


def changed() -> list[str]:
    """The files that differ from BASE, and new ones."""
    base = os.environ.get("BASE", "HEAD")
    lists = (("diff", "--name-only", base), ("ls-files", "--others", "--exclude-standard"))
    return [
        name
        for words in lists
        for name in subprocess.run(("git", *words), capture_output=True, text=True, check=True).stdout.splitlines()
    ]


def tests_of(names: list[str]) -> list[str]:
    """The unit tests that these files ask for."""
    parts = [name.split("/") for name in names]
    rooms = {"front" if part[1] == "__init__.py" else part[1] for part in parts if part[0] == "hosttune"}
    rooms.update(room for part in parts for room in BESIDE.get(part[0], ()))
    support = [Path(name).stem for name in names if name.startswith("tests/support/")]
    named = re.compile(rf"\b({'|'.join(support)}) import\b" if support else "(?!)")
    return [
        name
        for path in sorted((ROOT / "tests/unit").glob("*/test_*.py"))
        if (name := str(path.relative_to(ROOT))) in names
        or "ALL" in os.environ
        or path.parent.name in rooms
        or named.search(path.read_text())
    ]


if __name__ == "__main__":
    print(" ".join(tests_of(changed())))
