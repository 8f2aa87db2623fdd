"""Scratch roots with the board of `board.py`: made from a capture, and reached by hosttune as a System."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from applyroots import Cli, Root, copied
from board import PCI, Board, programs
from boardtrace import trace_of, wrongs

from hosttune.errors import CommandFailed, WriteFailed
from hosttune.machine import scratch
from hosttune.machine.scratch import Scratch
from hosttune.machine.system import STATE_INSIDE
from hosttune.model.values import CpuSet
from hosttune.settings.hook import PLACE

COMMANDS = ".hosttune/commands"
_PROGRAMS = ("fmpm", "nvidia-smi", "sriov-manage")
_ASKED = re.compile(r"fabric-manager-(partitions|service)|mig-lgi-.*|nvidia-vgpu-mgr-service")
_VGPUS = re.compile(r".*/(?:nvidia/current_vgpu_type|mdev_supported_types/[^/]+/create)|/sys/bus/mdev/.*/remove")
_STATE, _DEFINITION, _MIG_MODE = "virsh-domstate-", "virsh-dumpxml-", "nvmlDeviceSetMigMode-"


class BoardRoot(Scratch):
    """A scratch root whose GPUs are those of a board: programs and writes go to it, recorded answers come from it."""

    def __init__(self, root: str, origin: str | None = None) -> None:
        super().__init__(root, origin=origin)
        self.board = Board(root)

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        """See System."""
        code, answer = self.board.run(argv)
        self.forget()
        if code is None:
            raise CommandFailed(argv, f"no answer within {timeout:g} s")
        if code:
            raise CommandFailed(argv, f"exit status {code}", answer)
        return answer

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        """See System. What the board's programs answer is asked as on a machine."""
        if _ASKED.fullmatch(name):
            return live()
        if name == "nvml.json":
            return self.board.nvml()
        told = super().query(name, live)
        return self.board.smi_xml(told) if name == "nvidia-smi-q-x" and told else told

    def change(self, argv: tuple[str, ...], *, timeout: float = 60.0, stdin: str | None = None) -> str:
        """See System."""
        if os.path.basename(argv[0]) in _PROGRAMS:
            return self.run(argv, timeout=timeout)
        return super().change(argv, timeout=timeout, stdin=stdin)

    def tell(self, name: str, value: str, live: Callable[[], None]) -> None:
        """See System. A guest that libvirt starts or ends is one of the board's."""
        if name.startswith(_MIG_MODE):
            self.board.set_mode(name.removeprefix(_MIG_MODE), value == "1")
            return
        super().tell(name, value, live)
        if name.startswith(_STATE):
            guest = name.removeprefix(_STATE)
            self.board.guest(guest, devices_of(Path(self.root), guest) if value == "running" else None)

    def write(self, path: str, text: str) -> None:
        """See System."""
        number = self.board.refuse(path, text)
        if number is not None:
            raise WriteFailed(path, os.strerror(number), number)
        if not _VGPUS.fullmatch(path):
            super().write(path, "flr bus" if path.endswith("/reset_method") and text.strip() == "default" else text)
        self.board.wrote(path, text)
        self.forget()


def with_cores(pristine: Path, root: Path, cores: int) -> Path:
    """The example with so many of the 48 cores of each node: most files are theirs."""
    kept = {first + core for first in (0, 48, 96, 144) for core in range(cores)}
    subprocess.run(["cp", "-al", str(pristine), str(root)], check=True)
    cpus = root / "sys/devices/system/cpu"
    for folder in (*cpus.glob("cpu[0-9]*"), *cpus.glob("cpufreq/policy*")):
        if int(folder.name.strip("cpuoliy")) not in kept:
            shutil.rmtree(folder)
    for folder in (*cpus.glob("cpu*/cpuidle"), *cpus.glob("cpu*/power"), *cpus.glob("cpu*/cache/index[01]")):
        shutil.rmtree(folder)
    for mask in ("core_siblings", "package_cpus", "die_cpus"):
        for file in cpus.glob(f"cpu*/topology/{mask}"):
            file.unlink()
    lists = (*cpus.glob("cpu*/topology/*_list"), *cpus.glob("cpu*/cache/index*/shared_cpu_list"))
    nodes = (root / "sys/devices/system/node").glob("node*/cpulist")
    for file in (*lists, *nodes, *(cpus / name for name in ("online", "possible", "present"))):
        left = CpuSet.parse(file.read_text().strip()) & kept
        file.unlink()  # a hard link
        file.write_text(f"{left}\n")
    return root


def lean(pristine: Path, root: Path) -> Path:
    """The example with a sixth of its CPUs, and without NICs and drives: most files are theirs, and no story is about
    them."""
    with_cores(pristine, root, 8)
    for link in (root / PCI).iterdir():
        if (link / "class").read_text().startswith(("0x01", "0x02")):
            shutil.rmtree(link.resolve())
            link.unlink()
    for folder in (*(root / "sys/class" / name for name in ("net", "infiniband", "nvme", "block")), root / "proc/irq"):
        shutil.rmtree(folder)
    return root


def devices_of(root: Path, guest: str) -> list[str]:
    """The functions of the host, and UUIDs of mediated devices, in a guest's definition."""
    tree = ET.fromstring((root / COMMANDS / f"{_DEFINITION}{guest}").read_text())
    found = []
    for source in tree.iterfind("./devices/hostdev/source/address"):
        words = [int(source.get(key, "0"), 16) for key in ("domain", "bus", "slot", "function")]
        found.append(source.get("uuid") or "{:04x}:{:02x}:{:02x}.{:x}".format(*words))
    return found


def with_board(root: Path, *, generation: str = "hopper", vgpus: str = "", functions: int = 8) -> Board:
    """Make a root's GPUs a board. `vgpus`: "vfio" or "mdev": a vGPU manager, and so many virtual functions a GPU."""

    def told(name: str) -> str:
        file = root / COMMANDS / name
        return file.read_text() if file.exists() else ""

    modules = re.findall(r'<gpu id="0000(.{12})">.*?<module_id>(\d+)<', told("nvidia-smi-q-x"), re.DOTALL)
    gpus = {name.lower(): {"index": n, "module": int(module)} for n, (name, module) in enumerate(modules)}
    row = r"GPU  0 Profile ID +(\d+) Placements? ?: \{([\d,]+)\}:(\d+)"
    starts = {
        n: ([int(one) for one in places.split(",")], int(size))
        for n, places, size in re.findall(row, told("mig-lgipp"))
    }
    profiles = re.findall(r"\|   0  MIG (\S+) +(\d+) +\d+/(\d+)", told("mig-lgip"))
    board = Board(root)
    board.state = {
        "generation": generation,
        "vgpus": vgpus,
        "gpus": gpus,
        "listed": json.loads(told("fabric-manager-partitions") or '{"partitionInfo": []}'),
        "profiles": {name: [int(number), int(most), *starts[number]] for name, number, most in profiles},
        "mig": {name: {"on": False, "pending": False, "instances": []} for name in gpus},
        "methods": {name: board.text(name, "reset_method") for name in gpus},
        "vgpu_of": {},  # virtual function -> the GPU instance that carries its vGPU (-1: the whole GPU)
        "manager": {"running": True, "awaits": False, "active": []},
        "unset": sorted(gpus) if generation == "blackwell" else [],  # not reset since Fabric Manager's start
        "clients": {}, "away": [], "guests": {}, "faults": {},
    }  # fmt: skip
    if vgpus:
        board.put("usr/lib/nvidia/sriov-manage", "")
        for name in gpus:
            board.put(f"{PCI}/{name}/sriov_totalvfs", f"{functions}\n")
            board.put(f"{PCI}/{name}/sriov_numvfs", "0\n")
    board.keep()
    return board


def with_nvlink5(root: Path) -> Board:
    """Make a root's GPUs a board of B200, whose NVSwitches are no PCI functions."""
    for link in (root / PCI).iterdir():
        if (link / "class").read_text().startswith("0x0680"):
            shutil.rmtree(link.resolve())
            link.unlink()
    board = with_board(root, generation="blackwell")
    for gpu in board.state["gpus"]:
        board.put(f"{PCI}/{gpu}/device", "0x2901\n")
        space = (root / PCI / gpu / "config").read_bytes()
        board.put(f"{PCI}/{gpu}/config", space[:2] + b"\x01\x29" + space[4:])
    return board


# --- fixtures: a module of tests gives the ones it wants a name of its own ----------------------------------------


_LEAN: dict[Path, Path] = {}  # each module's fixture is one of its own


@pytest.fixture(scope="module")
def lean_host(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lean`, made once for a process, to be copied."""
    if pristine not in _LEAN:
        _LEAN[pristine] = lean(pristine, tmp_path_factory.mktemp("lean") / "root")
    return _LEAN[pristine]


@pytest.fixture(scope="module")
def fewer_cpus(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with a third of its CPUs, and all of its devices."""
    return with_cores(pristine, tmp_path_factory.mktemp("fewer") / "root", 16)


@pytest.fixture
def root(lean_host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Root]:
    """Such a host; scratch roots that the command line opens are boards."""
    with copied(lean_host, tmp_path / "root") as root:
        monkeypatch.setattr(scratch, "Scratch", BoardRoot)
        yield root


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line on it."""
    monkeypatch.setenv("HOSTTUNE_STATE", str(tmp_path / "outside"))
    return Cli(capsys, root)


def asked(folder: Path, **guests: dict[str, Any]) -> str:
    """An intent of small guests by name, each with what it wants besides."""
    small = {"vcpus": 4, "memory": "8GiB", "networks": [{"network": "default"}]}
    rows = [{"name": name, **small, **wanted} for name, wanted in guests.items()]
    path = folder / f"{'-'.join(guests) or 'none'}.json"
    path.write_text(json.dumps({"version": 1, "profile": "none", "guests": rows}))
    return str(path)


def clean(root: Root, *, order: bool = True) -> None:
    """Nothing went wrong until now."""
    assert wrongs(trace_of(root.path), order=order) == []


def ends(board: Board, guest: str) -> None:
    """A guest is shut off by others."""
    (board.root / COMMANDS / f"{_STATE}{guest}").unlink()
    board.guest(guest, None)


def starts(board: Board, guest: str) -> None:
    """A guest is started by others, and no hook is asked."""
    board.put(f"{COMMANDS}/{_STATE}{guest}", "running\n")
    board.guest(guest, devices_of(board.root, guest))


def started_by_others(board: Board, guest: str) -> str:
    """What hosttune's hook says against the start of a guest by others; "": the guest runs."""
    bin_folder, inside = board.root.with_name("bin"), f"{board.root}{STATE_INSIDE}"
    programs(board.root, bin_folder)
    text = (board.root / PLACE[1:]).read_text()
    script = text.replace(STATE_INSIDE, inside).replace("\nsys=/sys\n", f"\nsys={board.root}/sys\n")
    definition = (board.root / COMMANDS / f"{_DEFINITION}{guest}").read_text()
    argv, path = ["sh", "-c", script, "hook", guest, "prepare", "begin", "-"], f"{bin_folder}:{os.environ['PATH']}"
    ended = subprocess.run(argv, input=definition, capture_output=True, text=True, check=False, env={"PATH": path})
    board.load()
    if ended.returncode == 0:
        starts(board, guest)
    return ended.stderr
