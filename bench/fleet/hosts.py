"""Simulated hosts: captures as roots of their own or as one root for all, and the inventories that name them."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
EXAMPLE = ROOT / "examples/hgx-h200-8.tar.xz"
MACHINE_ID = "0123456789abcdef0123456789abcdef\n"
INTENT = ROOT / "bench/fleet/intent.yml"

# Files that the handwritten playbook writes in place, as one writes to sysfs: no two hosts may share them.
_WRITTEN = (
    "sys/devices/system/node/node*/hugepages/*/nr_hugepages",
    "sys/devices/system/cpu/cpu[0-9]*/cpufreq/energy_performance_preference",
    "sys/devices/system/cpu/cpu[0-9]*/power/pm_qos_resume_latency_us",
    "sys/bus/pci/devices/*/driver_override",
    "sys/bus/pci/drivers/*/bind",
    "sys/bus/pci/drivers/*/unbind",
    "proc/sys/kernel/numa_balancing",
)


def unpack(archive: Path, target: Path) -> Path:
    """A capture as a directory: the one that holds sys/ and proc/."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "fully_trusted_filter"):  # our own archives; Python 3.11.2 knows no filters
            tar.extraction_filter = staticmethod(tarfile.fully_trusted_filter)
        tar.extractall(target)
    inner = [path for path in target.iterdir() if path.is_dir()]
    return target if (target / "sys").is_dir() or len(inner) != 1 else inner[0]


def scratch(base: Path, target: Path) -> Path:
    """A scratch root of a capture: its files are hard links but for those that something writes in place."""
    shutil.copytree(base, target, symlinks=True, copy_function=os.link)
    for pattern in _WRITTEN:
        for path in target.glob(pattern):
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
    (target / ".hosttune").mkdir(exist_ok=True)
    (target / ".hosttune/scratch").touch()
    (target / "etc").mkdir(exist_ok=True)
    (target / "etc/machine-id").unlink(missing_ok=True)
    (target / "etc/machine-id").write_text(MACHINE_ID)
    return target


def names(count: int) -> list[str]:
    """Inventory names: gpu-0001 and on."""
    return [f"gpu-{number:04d}" for number in range(1, count + 1)]


def inventory(path: Path, roots: Iterable[tuple[str, Path]], connection: str = "local") -> Path:
    """An inventory of simulated hosts, written to `path`: each (name, root), reached without ssh."""
    lines = [f"{name} hosttune_root={root}" for name, root in roots]
    shared = {
        "ansible_connection": connection,
        "ansible_pipelining": "true",
        "ansible_python_interpreter": sys.executable,
        "hosttune_command": BIN / "hosttune",
    }
    path.write_text("\n".join([*lines, "", "[all:vars]", *(f"{key}={value}" for key, value in shared.items()), ""]))
    return path
