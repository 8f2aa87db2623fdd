"""What discovery reads of an NVSwitch fabric: the Fabric Manager's list and mode, and module ids that were kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fabrichosts import GPUS, H200, MODULES, SMALL, answered

import hosttune
from hosttune.discovery import discover
from hosttune.discovery.fabric import CONFIG, read_fabric, recall_modules
from hosttune.discovery.recording import write_capture
from hosttune.errors import CommandFailed
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.machine.scratch import Scratch
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, NvSwitch, PciDevice
from hosttune.model.intent import Intent

SMI = Path(__file__).parents[2] / "cases" / "gpu" / "smi-text" / "h100-x8-535.txt"
SWITCH = PciDevice(address="0000:83:00.0", vendor_id="10de", device_id="22a3")
HOST = Host(
    pci=(SWITCH,), gpus=(Gpu(address=GPUS[0], vendor="nvidia"),), nvswitches=(NvSwitch(address=SWITCH.address),)
)
KEPT = "/.hosttune/commands/kept-gpus"
LIST = "/.hosttune/commands/fabric-manager-partitions"
SERVICE = "/.hosttune/commands/fabric-manager-service"
RUNS = "LoadState=loaded\nActiveState=active\n"
IDS = "10de:2335:10de:18be"


def put(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        place = root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


class Live(Capture):
    """A machine of which some commands answer."""

    captured = False

    def __init__(self, root: Path, answers: dict[str, str]) -> None:
        super().__init__(str(root))
        self.answers = answers
        self.asked: list[str] = []

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        return live()

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self.asked.append(" ".join(argv))
        if argv[0] not in self.answers:
            raise CommandFailed(argv, "not installed")
        return self.answers[argv[0]]


# --- the list --------------------------------------------------------------------------------------------------


def test_the_list_of_a_shared_board(tmp_path: Path) -> None:
    reader = Reader(Capture(str(put(tmp_path, {CONFIG: "FABRIC_MODE=1\n", SERVICE: RUNS, LIST: answered(H200, [3])}))))
    found = read_fabric(reader, HOST)
    assert found is not None
    assert (found.mode, found.generation, found.source) == (1, "hopper", "fmpm -l")
    assert {part.id: set(part.module_ids) for part in found.partitions or ()} == H200
    assert [part.id for part in found.partitions or () if part.active] == [3]
    assert {part.nvlinks for part in found.partitions or ()} == {18}
    assert reader.problems == []


def test_a_recorded_list_counts_without_a_daemon_here(tmp_path: Path) -> None:
    """From a service VM: this host has neither the daemon nor its configuration."""
    found = read_fabric(Reader(Capture(str(put(tmp_path, {LIST: answered(H200)})))), HOST)
    assert found is not None
    assert (found.mode, len(found.partitions or ())) == (None, 15)


def test_no_fabric_is_not_asked_about(tmp_path: Path) -> None:
    live = Live(tmp_path, {})
    card = Host(
        pci=(PciDevice(address=GPUS[0], vendor_id="10de", device_id="233b"),),
        gpus=(Gpu(address=GPUS[0], vendor="nvidia"),),
    )
    assert read_fabric(Reader(live), card) is None
    assert live.asked == []


def test_a_capture_without_a_word_of_it_is_unknown(tmp_path: Path) -> None:
    found = read_fabric(Reader(Capture(str(tmp_path))), HOST)
    assert found is not None
    assert (found.mode, found.partitions, found.source) == (None, None, None)


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        ("FABRIC_MODE=1\n", "fmpm -l"),
        ("FABRIC_MODE=2\nFM_CMD_UNIX_SOCKET_PATH=\n", "fmpm -l"),
        ("FABRIC_MODE=1\nFM_CMD_UNIX_SOCKET_PATH=/run/fm/socket\n", "fmpm --unix-domain-socket /run/fm/socket -l"),
        ("FABRIC_MODE=1\nFM_CMD_BIND_INTERFACE=10.0.0.7\n", "fmpm --hostname 10.0.0.7 -l"),
        ("FABRIC_MODE=1\nFM_CMD_UNIX_SOCKET_PATH=-a;0\n", "fmpm -l"),
        ("FABRIC_MODE=1\nFM_CMD_BIND_INTERFACE=--help\n", "fmpm -l"),
    ],
)
def test_the_daemon_is_asked_where_its_configuration_says(tmp_path: Path, config: str, asked: str) -> None:
    live = Live(put(tmp_path, {CONFIG: config}), {"systemctl": RUNS, "fmpm": answered(H200)})
    found = read_fabric(Reader(live), HOST)
    assert found is not None
    assert len(found.partitions or ()) == 15
    assert live.asked[-1] == asked


@pytest.mark.parametrize(
    ("config", "service"),
    [("FABRIC_MODE=0\n", RUNS), ("", RUNS), ("FABRIC_MODE=1\n", "LoadState=loaded\nActiveState=failed\n")],
)
def test_a_daemon_that_has_no_partitions_is_not_asked(tmp_path: Path, config: str, service: str) -> None:
    live = Live(put(tmp_path, {CONFIG: config}), {"systemctl": service, "fmpm": answered(H200)})
    found = read_fabric(Reader(live), HOST)
    assert found is not None
    assert found.partitions is None
    assert not any(command.startswith("fmpm") for command in live.asked)


MEMBER = {"physicalId": 1, "numNvLinksAvailable": 18}


@pytest.mark.parametrize(
    "text",
    [
        "Failed to get partition list. fmReturn: -3",
        '{"partitionInfo": ["x"]}',
        '{"partitionInfo": 3}',
        json.dumps({"partitionInfo": [{"partitionId": 0, "isActive": 0, "numGpus": 2, "gpuInfo": [MEMBER]}]}),
        json.dumps({"partitionInfo": [{"partitionId": 0, "isActive": 0, "numGpus": 2, "gpuInfo": [MEMBER, MEMBER]}]}),
        json.dumps({"partitionInfo": [{"partitionId": -1, "isActive": 0, "numGpus": 1, "gpuInfo": [MEMBER]}]}),
        json.dumps({"partitionInfo": [{"partitionId": 1, "isActive": 0, "numGpus": 1, "gpuInfo": [MEMBER]}] * 2}),
        json.dumps({"partitionInfo": [{"partitionId": 1, "isActive": "yes", "numGpus": 1, "gpuInfo": [MEMBER]}]}),
    ],
)
def test_a_list_that_is_none_is_a_problem_and_unknown(tmp_path: Path, text: str) -> None:
    reader = Reader(Capture(str(put(tmp_path, {CONFIG: "FABRIC_MODE=1\n", LIST: text}))))
    found = read_fabric(reader, HOST)
    assert found is not None
    assert found.partitions is None
    assert [(problem.what, problem.where) for problem in reader.problems] == [("partitions not understood", "fmpm -l")]


# --- a whole host ------------------------------------------------------------------------------------------------


def test_a_real_board_whose_module_ids_are_not_in_bus_order(host_root: Callable[[str], Path], tmp_path: Path) -> None:
    """A PowerEdge XE9680 with its own nvidia-smi -q: 4 GPUs are modules 1-4, which happen to be node 0's."""
    root = tmp_path / "root"
    shutil.copytree(host_root("derived/xe9680-8xh100-lspci"), root, symlinks=True)
    put(root, {"/.hosttune/commands/nvidia-smi-q": SMI.read_text(), LIST: answered(H200), CONFIG: "FABRIC_MODE=1\n"})
    host = hosttune.discover(str(root))
    assert {gpu.address: gpu.module_id for gpu in host.gpus if gpu.vendor == "nvidia"} == MODULES
    for count, partitions in ((2, {3, 4, 5, 6}), (4, {1, 2}), (8, {0})):
        intent = {"version": 1, "profile": "none", "guests": [{"name": "g", **SMALL, "memory": "4GiB", "gpus": count}]}
        (guest,) = hosttune.plan(host, Intent.from_json(json.dumps(intent))).guests
        assert guest.fabric_partition in partitions
        members = {MODULES[device.address] for device in guest.devices if device.kind == "gpu"}
        assert members == H200[guest.fabric_partition or 0]
        places = {GPUS.index(device.address) + 1 for device in guest.devices if device.kind == "gpu"}
        assert count != 2 or places != members  # no pair of bus order is a partition


# --- module ids that were kept -------------------------------------------------------------------------------------


def gpu_function(address: str, driver: str | None = "vfio-pci", device_id: str = "2335") -> PciDevice:
    ids: dict[str, Any] = {"subsystem_vendor_id": "10de", "subsystem_device_id": "18be"}
    return PciDevice(address=address, vendor_id="10de", device_id=device_id, driver=driver, **ids)


def recalled(root: Path, gpus: tuple[Gpu, ...], functions: tuple[PciDevice, ...]) -> tuple[list[int | None], list[str]]:
    reader = Reader(Capture(str(root)))
    found = recall_modules(reader, functions, gpus)
    return [gpu.module_id for gpu in found], [problem.what for problem in reader.problems]


def kept(**changes: object) -> str:
    return json.dumps({GPUS[0]: {"device": IDS, "serial": "1", "uuid": "u", "module_id": 2, **changes}})


@pytest.mark.parametrize(
    ("text", "gpu", "function", "module"),
    [
        (kept(), Gpu(address=GPUS[0], vendor="nvidia"), gpu_function(GPUS[0]), 2),
        (kept(), Gpu(address=GPUS[0], vendor="nvidia"), gpu_function(GPUS[0], driver=None), 2),
        (kept(), Gpu(address=GPUS[0], vendor="nvidia"), gpu_function(GPUS[0], driver="nvidia"), None),
        (kept(), Gpu(address=GPUS[0], vendor="nvidia"), gpu_function(GPUS[0], device_id="2330"), None),
        (kept(), Gpu(address=GPUS[0], vendor="nvidia", serial="9"), gpu_function(GPUS[0]), None),
        (kept(), Gpu(address=GPUS[1], vendor="nvidia"), gpu_function(GPUS[1]), None),
        (kept(), Gpu(address=GPUS[0], vendor="amd"), gpu_function(GPUS[0]), None),
        (kept(), Gpu(address=GPUS[0], vendor="nvidia", module_id=5), gpu_function(GPUS[0]), 5),
        (kept(module_id=None), Gpu(address=GPUS[0], vendor="nvidia"), gpu_function(GPUS[0]), None),
        (kept(module_id=0), Gpu(address=GPUS[0], vendor="nvidia"), gpu_function(GPUS[0]), None),
        (kept(module_id="2"), Gpu(address=GPUS[0], vendor="nvidia"), gpu_function(GPUS[0]), None),
        (json.dumps({GPUS[0]: 3}), Gpu(address=GPUS[0], vendor="nvidia"), gpu_function(GPUS[0]), None),
    ],
)
def test_a_kept_module_id_belongs_to_a_slot_and_its_card(
    tmp_path: Path, text: str, gpu: Gpu, function: PciDevice, module: int | None
) -> None:
    assert recalled(put(tmp_path, {KEPT: text}), (gpu,), (function,)) == ([module], [])


def test_a_kept_module_id_that_another_gpu_says_is_doubted(tmp_path: Path) -> None:
    gpus = (Gpu(address=GPUS[0], vendor="nvidia"), Gpu(address=GPUS[1], vendor="nvidia", module_id=2))
    functions = (gpu_function(GPUS[0]), gpu_function(GPUS[1], driver="nvidia"))
    assert recalled(put(tmp_path, {KEPT: kept()}), gpus, functions) == ([None, 2], ["module id not unique"])


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_what_was_kept_and_cannot_be_read_is_a_problem(tmp_path: Path, text: str) -> None:
    gpu = (Gpu(address=GPUS[0], vendor="nvidia"),)
    found = recalled(put(tmp_path, {KEPT: text}), gpu, (gpu_function(GPUS[0]),))
    assert found == ([None], ["identities of GPUs not understood"])


def test_a_scratch_root_remembers_in_its_own_state(tmp_path: Path) -> None:
    files = {"/.hosttune/scratch": "", "/var/lib/hosttune/gpus.json": kept(), KEPT: kept(module_id=7)}
    reader = Reader(Scratch(str(put(tmp_path, files))))
    (gpu,) = recall_modules(reader, (gpu_function(GPUS[0]),), (Gpu(address=GPUS[0], vendor="nvidia"),))
    assert (gpu.module_id, gpu.module_id_source) == (2, "kept before vfio-pci took it")


def test_the_machine_remembers_in_its_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTTUNE_STATE", "/state")
    live = Live(put(tmp_path, {"/state/gpus.json": kept()}), {})
    (gpu,) = recall_modules(Reader(live), (gpu_function(GPUS[0]),), (Gpu(address=GPUS[0], vendor="nvidia"),))
    assert gpu.module_id == 2


def test_a_capture_holds_the_list_and_what_was_kept(host_root: Callable[[str], Path], tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(host_root("derived/xe9680-8xh100-lspci"), root, symlinks=True)
    folder = root / "sys/bus/pci/devices" / GPUS[0]
    ids = ":".join((folder / name).read_text().strip()[2:] for name in ("vendor", "device", "subsystem_vendor"))
    ids += ":" + (folder / "subsystem_device").read_text().strip()[2:]
    driver = folder.resolve() / "driver"
    away = driver.readlink().with_name("vfio-pci")
    driver.unlink()
    driver.symlink_to(away)
    records = {GPUS[0]: {"device": ids, "serial": "1650124031592", "uuid": "GPU-8b1e0b3f-22f0-4f0d-a3a1-9f3f0f3c1d11"}}
    records[GPUS[0]]["module_id"] = 2  # type: ignore[assignment]
    files = {KEPT: json.dumps(records, indent=2), LIST: answered(H200), CONFIG: "FABRIC_MODE=1\n"}
    before = discover(Capture(str(put(root, files))))
    write_capture(Capture(str(root)), str(tmp_path / "again.tar.gz"))
    after = hosttune.discover(str(tmp_path / "again.tar.gz"))
    assert after.fabric == before.fabric
    assert next(gpu.module_id for gpu in after.gpus if gpu.address == GPUS[0]) == 2
    import tarfile

    with tarfile.open(tmp_path / "again.tar.gz") as tar:
        member = tar.extractfile(KEPT[1:])
        assert member is not None
        text = member.read().decode()
    assert "1650124031592" not in text
    assert "8b1e0b3f" not in text
