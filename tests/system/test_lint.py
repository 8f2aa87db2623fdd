"""The linters run as tests, so that `make test` is the whole verdict but for ansible-lint (`make lint`)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from sweeps import FULL
from trees import nodes_of, texts_of, tree_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check", "."),
        ("ruff", "format", "--check", "."),
        ("mypy",),
        ("lint-imports",),
        *([("ansible-lint", "--nocolor")] if FULL else []),  # 15 s, most of it starts playbooks that tests run
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
        "live.py",
        "capture.py",
        "scratch.py",
        "archive.py",
        "opening.py",
        "sealing.py",
        "recording.py",
        "state.py",
        "files.py",
        "jsonlines.py",
        "store.py",
        "child.py",
        "kmsg.py",
        "assets.py",
        "results.py",
        "launch.py",
    )
)


def doors(path: Path) -> list[str]:
    """Calls in a module that reach the machine without a System: open(), os.listdir(), subprocess.run() …"""
    found = []
    for node in nodes_of(path, ast.Call):
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
    assert doors(ROOT / "hosttune" / "machine" / "system.py")  # the search finds what it looks for


def test_programs_of_ours_do_not_import_from_the_working_directory() -> None:
    """hosttune runs as root in any directory: a json.py that somebody left there must not be run."""
    words = r'sys\.executable,\s*"(-[^"]*)"'
    found = [one for path in (ROOT / "hosttune").rglob("*.py") for one in re.findall(words, path.read_text())]
    assert (len(found) > 4, set(found)) == (True, {"-P"})


PATHS = ("/sys/bus/pci/d", "/sys/kernel/iommu_groups", "/sys/devices/system/cpu", "/sys/devices/system/node")


def sysfs_paths(path: Path) -> list[str]:
    """Texts of a module, but for docstrings, that begin with a path which `hosttune.model.sysfs` has."""
    return [text for text in texts_of(path) if text.startswith(PATHS)]


def test_paths_of_sysfs_are_in_one_place() -> None:
    product = ROOT / "hosttune"
    found = {str(path.relative_to(product)): paths for path in product.rglob("*.py") if (paths := sysfs_paths(path))}
    assert len(found.pop("model/sysfs.py")) == 5
    assert found.keys() == {"linux/apparmor.py"}  # a rule of AppArmor, not a path


# --- layers that an import written as a string would get around ----------------------------------------------

_MODULE = re.compile(r"hosttune\.([a-z_0-9]*)(\.[A-Za-z_0-9]*)*")


@cache
def floors() -> dict[str, int]:
    """The floor of each room in pyproject.toml, 0 the highest."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["name"] == "layers, top to bottom"]
    return {
        room.strip().removeprefix("hosttune."): floor for floor, line in enumerate(layers) for room in line.split("|")
    }


def upward_names(tree: ast.Module, room: str) -> Iterator[str]:
    """Strings of a module of `room` that are, or begin, the name of a module in a room above.

    An import of "hosttune." and something computed counts as well: which room that is, nobody can tell.
    """
    known, nodes = floors(), list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.Call) and "import_module" in ast.dump(node.func)]
    computed = {inner for call in imports for inner in ast.walk(call)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (found := _MODULE.fullmatch(node.value)):
            unnamed = -1 if node in computed else len(known)
            if (known.get(found[1], len(known)) if found[1] else unnamed) < known.get(room, 0):
                yield f"line {node.lineno}: {node.value}"


def test_no_module_names_a_module_of_a_room_above_in_a_string() -> None:
    """An import that import-linter does not see would turn the order of the rooms around."""
    found = [
        f"{path.relative_to(ROOT)} {name}"
        for path in sorted((ROOT / "hosttune").rglob("*.py"))
        if path != ROOT / "hosttune" / "__init__.py"  # the package itself stands above all rooms
        for name in upward_names(tree_of(path), path.relative_to(ROOT / "hosttune").parts[0].removesuffix(".py"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('KINDS = {"guest": ("hosttune.hypervisor.definition", "Guest")}', 1),
        ('import_module(f"hosttune.transaction.{name}")', 1),
        ('import_module(f"hosttune.{name}")', 1),
        ('case = f"hosttune.{name}"', 0),
        ('import_module(f"hosttune.settings.{name}"); import_module("hosttune.model.host")', 0),
        ('SCHEMA = "hosttune.host/v1"', 0),
    ],
)
def test_the_search_finds_upward_names(source: str, lines: int) -> None:
    assert len(list(upward_names(ast.parse(source), "settings"))) == lines
