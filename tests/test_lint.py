"""The linters run as tests, so that `make test` is the whole verdict."""

from __future__ import annotations

import ast
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
        "machine.py",
        "recorded.py",
        "scratch.py",
        "archive.py",
        "capture.py",
        "state.py",
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


def test_only_a_few_rooms_touch_files_and_processes() -> None:
    product = [p for p in (ROOT / "hosttune").rglob("*.py") if p.name not in ROOMS]
    assert len(product) > 30
    assert [door for path in product for door in doors(path)] == []
    assert doors(ROOT / "hosttune" / "system.py")  # the search finds what it looks for


PATHS = ("/sys/bus/pci/d", "/sys/kernel/iommu_groups", "/sys/devices/system/cpu", "/sys/devices/system/node")


def sysfs_paths(path: Path) -> list[str]:
    """Texts of a module, but for docstrings, that begin with a path which `hosttune.model.sysfs` has."""
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documentation)
    return [text.value for text in texts if isinstance(text.value, str) and text.value.startswith(PATHS)]


def test_paths_of_sysfs_are_in_one_place() -> None:
    product = ROOT / "hosttune"
    found = {str(path.relative_to(product)): paths for path in product.rglob("*.py") if (paths := sysfs_paths(path))}
    assert len(found.pop("model/sysfs.py")) == 5
    assert found.keys() == {"apparmor.py"}  # a rule of AppArmor, not a path
