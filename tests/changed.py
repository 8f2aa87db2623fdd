"""Print the test files that `make check` runs: those of what changed since BASE (HEAD: what is not committed).

A test file is one of a changed module if it names the module. Files that start Ansible, ssh, a browser or many
processes are for `make test`. `ALL=1`: every other file.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

TESTS = Path(__file__).parent
SYSTEM = re.compile(
    r"test_(fleet|faults|bootstrap|monitoring|watch|evidence|handover_(course|kills|network)|.*browser|.*_kills"
    r"|python|docs|knobs_figures|joint|lint\b)"
)


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
    """The test files that are among these files, or that name a module among them."""
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names]
    named = re.compile("|".join(rf"\b{re.escape(one)}\b" for one in modules if one.startswith("hosttune.")) or r"(?!)")
    files = [file for file in sorted(TESTS.glob("test_*.py")) if not SYSTEM.match(file.name)]
    if os.environ.get("ALL"):
        return [f"tests/{file.name}" for file in files]
    return [f"tests/{file.name}" for file in files if f"tests/{file.name}" in names or named.search(file.read_text())]


if __name__ == "__main__":
    print(" ".join(tests_of(changed())))
