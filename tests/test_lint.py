"""The linters run as tests, so that `make test` is the whole verdict."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
        ("lint-imports",),
        ("ansible-lint", "--nocolor"),
    ],
    ids=" ".join,
)
def test_linter(command: tuple[str, ...]) -> None:
    tool = Path(sys.executable).with_name(command[0])
    done = subprocess.run([str(tool), *command[1:]], capture_output=True, text=True, check=False, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


DOORS = frozenset(("open", "fdopen", "listdir", "scandir", "readlink", "system", "popen", "Popen", "run"))
ROOMS = frozenset(
    (
        "system.py",
        "recorded.py",
        "scratch.py",
        "archive.py",
        "recording.py",
        "state.py",
        "files.py",
        "jsonlines.py",
        "journal.py",
        "child.py",
        "locked.py",
        "assets.py",
        "results.py",
        "launch.py",
    )
)


def doors(path: Path) -> list[str]:
    """Calls in a module that reach the machine without a System: open(), os.listdir(), subprocess.run() …"""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            found.append(f"{path.relative_to(ROOT)}:{node.lineno} open")
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            module, name = called.value.id, called.attr
            if module in ("os", "subprocess", "shutil") and name in DOORS:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {module}.{name}")
    return found


def test_only_the_command_line_calls_the_functions_of_the_package() -> None:
    """The package's functions import every room, so that no room below the command line may go through them."""
    package = ROOT / "hosttune"
    modules = {path.stem for path in package.iterdir()} | {"__version__"}
    found = []
    for path in package.rglob("*.py"):
        for line in re.findall(
            r"^ *(import hosttune\b(?!\.).*|from hosttune import .+)$", path.read_text(), re.MULTILINE
        ):
            names = set(re.findall(r"\w+", line.partition(" import ")[2]))
            if path.parts[-2] != "cli" and not (names and names <= modules):
                found.append(f"{path.relative_to(ROOT)}: {line}")
    assert found == ["hosttune/__init__.py: import hosttune"], "its docstring shows how it is used"


def test_only_a_few_rooms_touch_files_and_processes() -> None:
    product = [p for p in (ROOT / "hosttune").rglob("*.py") if p.name not in ROOMS]
    assert len(product) > 30
    assert [door for path in product for door in doors(path)] == []
    assert doors(ROOT / "hosttune" / "system.py")  # the search finds what it looks for
