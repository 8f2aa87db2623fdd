"""AER counters, NVMe drives, the clock and the Fabric Manager, read from small trees; absent told from unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from unit.machine.test_manifest import FILES, LINKS
from unit.machine.test_manifest import Live as Whole

from hosttune.discovery.evidence import gather
from hosttune.discovery.fabric import CONFIG, read_fabric_manager
from hosttune.discovery.health import read_counted_later, read_health
from hosttune.errors import CommandFailed
from hosttune.machine import manifest
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import Cpu, Host, NumaNode, Nvme, NvSwitch, PciDevice
from hosttune.model.starts import REGISTER_ANSWER
from hosttune.model.validation import Counted, Validation

GPU, DISK = "0000:41:00.0", "0000:43:00.0"
HOST = Host(
    pci=(PciDevice(address=GPU), PciDevice(address=DISK)),
    gpus=(Gpu(address=GPU, vendor="nvidia"),),
    nvme=(Nvme(address=DISK, controller="nvme0"),),
    nvswitches=(NvSwitch(address="0000:83:00.0"),),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, "/proc/uptime", "3600.50 1.0\n")
    put(tmp_path, "/.hosttune/capture", "1\n")
    return tmp_path


def put(root: Path, path: str, text: str) -> None:
    place = root / path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def answer(root: Path, name: str, text: str) -> None:
    put(root, f"/.hosttune/commands/{name}", text)


def reader(root: Path) -> Reader:
    return Reader(Capture(str(root)))


class Live(Capture):
    """A machine of which one command answers."""

    captured = False

    def __init__(self, root: Path, answers: dict[str, str | CommandFailed]) -> None:
        super().__init__(str(root))
        self.answers = answers
        self.asked: list[str] = []

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        return live()

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self.asked.append(" ".join(argv))
        found = self.answers.get(argv[0].rpartition("/")[2])
        if found is None or isinstance(found, CommandFailed):
            raise found or CommandFailed(argv, "not installed")
        return found


# --- AER -----------------------------------------------------------------------------------------------------


def test_aer_counts_by_severity_and_kind(root: Path) -> None:
    folder = f"/sys/bus/pci/devices/{GPU}"
    put(root, f"{folder}/aer_dev_correctable", "RxErr 3\nBadTLP 0\nTimeout 4\nTOTAL_ERR_COR 7\n")
    put(root, f"{folder}/aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 0\n")
    put(root, f"{folder}/aer_dev_fatal", "Undefined 0\nTOTAL_ERR_FATAL 1\n")
    health = read_health(reader(root), HOST)
    assert health.uptime_seconds == 3600.5
    assert health.aer == {
        GPU: {"correctable": 7, "correctable:RxErr": 3, "correctable:Timeout": 4, "nonfatal": 0, "fatal": 1}
    }


def test_no_counts_on_a_whole_capture_are_none_kept(root: Path) -> None:
    assert read_health(reader(root), HOST).aer == {}


@pytest.mark.parametrize("missing", ["proc/uptime", ".hosttune/capture"])
def test_no_counts_where_nobody_recorded_them_are_unknown(root: Path, missing: str) -> None:
    (root / missing).unlink()
    assert read_health(reader(root), HOST).aer is None


def test_a_count_that_is_none_is_a_problem(root: Path) -> None:
    put(root, f"/sys/bus/pci/devices/{GPU}/aer_dev_correctable", "RxErr -1\nTOTAL_ERR_COR 99999999999999999999999\n")
    read = reader(root)
    assert read_health(read, HOST).aer == {}
    assert {(p.what, p.where) for p in read.problems} == {
        ("not a count", f"/sys/bus/pci/devices/{GPU}/aer_dev_correctable")
    }


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("DLP 0\nTLP 0\nTOTAL_ERR_FATAL 0\n", 0),
        ("DLP 0\nTLP 0\nTOTAL_ERR", None),  # cut off
        ("DLP 0\nTLP 2\n", 2),
        ("DLP 0\nTOTAL_ERR_FATAL 2\n", 2),
        ("DLP 0\nTLP 0\n" + "".join(f"bit{n} 0\n" for n in range(126)) + "TOTAL_ERR_FATAL 0\n", None),
    ],
)
def test_the_total_of_a_file_counts_if_it_is_whole(root: Path, changed: str, expected: int | None) -> None:
    addresses = (GPU, DISK, "0000:44:00.0")
    for address in addresses:
        put(root, f"/sys/bus/pci/devices/{address}/aer_dev_fatal", "DLP 0\nTLP 0\nTOTAL_ERR_FATAL 0\n")
    put(root, f"/sys/bus/pci/devices/{GPU}/aer_dev_fatal", changed)
    aer = read_health(reader(root), Host(pci=tuple(PciDevice(address=one) for one in addresses))).aer or {}
    assert aer.get(GPU, {}).get("fatal") == expected
    assert aer[DISK] == {"fatal": 0}


# --- memory --------------------------------------------------------------------------------------------------

MC = "/sys/devices/system/edac/mc"


def test_errors_of_memory_controllers(root: Path) -> None:
    for name, counts in (("mc0", (0, 3)), ("mc1", (1, 0))):
        for kind, count in zip(("ue", "ce"), counts, strict=True):
            put(root, f"{MC}/{name}/{kind}_count", f"{count}\n")
    put(root, f"{MC}/power/control", "auto\n")
    assert read_health(reader(root), HOST).edac == {"mc0": {"ue": 0, "ce": 3}, "mc1": {"ue": 1, "ce": 0}}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    ("name", "megabytes", "there", "lost"),
    [
        ("Intel_10nm Socket#0 IMC#0", "65536", 4, False),
        ("Intel_10nm Socket#0 IMC#0", "65536", 3, True),
        ("Intel_10nm Socket#0 IMC#0", "0", 3, False),  # a driver that knows no size
        ("Intel_10nm Socket#0 IMC#0", "", 3, False),
        ("ghes_edac", "262144", 1, False),  # firmware counts for all controllers
        ("F19h_M10h", "16384", 2, False),
        ("F19h_M10h", "131072", 1, True),
    ],
)
def test_the_last_memory_controller_is_missed(
    root: Path, own: bool, name: str, megabytes: str, there: int, lost: bool
) -> None:
    """Two packages with 250 GiB, and a GPU's own memory, which no controller of the host has."""
    for number in range(there):
        put(root, f"{MC}/mc{number}/ue_count", "0\n")
        put(root, f"{MC}/mc{number}/ce_count", "0\n")
        put(root, f"{MC}/mc{number}/mc_name", f"{name}\n")
        if megabytes:
            put(root, f"{MC}/mc{number}/size_mb", f"{megabytes}\n")
    if own:  # a manifest that denies the last one
        text = manifest.write(["/.hosttune/capture", *(f"{MC}/mc{n}/ue_count" for n in range(there))], [MC], [])
        put(root, "/.hosttune/capture", text)
    nodes = tuple(NumaNode(id=n, memory_bytes=125 << 30, kind="cpu") for n in range(2))
    gpu = NumaNode(id=2, memory_bytes=141 << 30, kind="gpu")
    host = Host(cpus=tuple(Cpu(id=n, package=n) for n in range(2)), numa_nodes=(*nodes, gpu))
    read = reader(root)
    whole = {f"mc{n}": {"ue": 0, "ce": 0} for n in range(there)}
    assert read_health(read, host).edac == whole | ({f"mc{there}": {"ue": None, "ce": None}} if lost else {})
    assert ("memory controllers missing" in {problem.what for problem in read.problems}) is lost


def test_a_count_of_memory_errors_that_is_none_is_unknown(root: Path) -> None:
    put(root, f"{MC}/mc0/ue_count", "-1\n")
    read = reader(root)
    assert read_health(read, HOST).edac == {"mc0": {"ue": None, "ce": None}}
    assert ("not a count", f"{MC}/mc0/ue_count") in {(p.what, p.where) for p in read.problems}


def test_no_memory_controller_is_none_where_the_capture_is_whole(root: Path) -> None:
    marker = root / ".hosttune/capture"
    marker.write_text(manifest.write(["/.hosttune/capture"], [], ["/sys/devices/system/edac"]))
    assert read_health(reader(root), HOST).edac == {}
    marker.unlink()
    assert read_health(reader(root), HOST).edac is None


# --- drives --------------------------------------------------------------------------------------------------

SMART = json.dumps(
    {"critical_warning": 0, "media_errors": 2, "percent_used": 5, "avail_spare": 100, "temperature": 310}
)


@pytest.mark.parametrize("log", [SMART, SMART.replace('"media_errors": 2', '"media_errors": "2"')])
def test_a_drive_in_its_own_words(root: Path, log: str) -> None:
    put(root, "/sys/class/nvme/nvme0/state", "live\n")
    put(root, "/sys/class/nvme/nvme0/hwmon3/temp1_input", "36850\n")
    put(root, "/sys/class/nvme/nvme0/hwmon3/temp1_alarm", "0\n")
    answer(root, "nvme-smart-log-nvme0", log)
    assert read_health(reader(root), HOST).disks == {
        DISK: {
            "state": "live",
            "temperature_c": "36.85",
            "alarm": "0",
            "critical_warning": "0",
            "media_errors": "2",
            "percent_used": "5",
            "avail_spare": "100",
        }
    }


@pytest.mark.parametrize("text", ["", "[]", "not json", "[" * 100_000])
def test_smart_log_that_is_none(root: Path, text: str) -> None:
    answer(root, "nvme-smart-log-nvme0", text)
    assert read_health(reader(root), HOST).disks == {DISK: {"smart": "not understood"}}


def test_a_drive_that_cannot_be_asked_is_told_from_a_missing_tool(tmp_path: Path) -> None:
    for failure, why in (
        (None, "not installed"),
        (CommandFailed(("nvme",), "exit status 1", "nvme0: Permission denied\n"), "nvme0: Permission denied"),
        (CommandFailed(("nvme",), "no answer within 10 s"), "no answer within 10 s"),
    ):
        system = Live(tmp_path, {} if failure is None else {"nvme": failure})
        assert read_health(Reader(system), HOST).disks == {DISK: {"smart": why}}
        assert "nvme smart-log /dev/nvme0 --output-format=json" in system.asked


def test_a_controller_with_another_name_is_not_asked(tmp_path: Path) -> None:
    host = Host(nvme=(Nvme(address=DISK, controller="../../etc"), Nvme(address=GPU)))
    system = Live(tmp_path, {})
    assert read_health(Reader(system), host).disks == {}
    assert not any(command.startswith("nvme") for command in system.asked)


# --- clock ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("status 8193 maxerror 250000\n", (True, 0.25)),
        ("status 64 maxerror 16000000\n", (False, 16.0)),
        ("status x maxerror 1\n", (None, None)),
        ("", (None, None)),
    ],
)
def test_clock(root: Path, text: str, expected: tuple[bool | None, float | None]) -> None:
    answer(root, "adjtimex", text)
    health = read_health(reader(root), HOST)
    assert (health.time_synchronised, health.time_error_seconds) == expected


def test_the_kernels_clock_answers(tmp_path: Path) -> None:
    assert read_health(Reader(Live(tmp_path, {})), HOST).time_synchronised in (True, False)


# --- Fabric Manager ------------------------------------------------------------------------------------------

VERSION = "\n\n\tFabric Manager version is : 535.161.08\n\n"
PARTITIONS = json.dumps(
    {"partitionInfo": [{"partitionId": 1, "isActive": 1}, {"partitionId": 2, "isActive": 0}], "numPartitions": 2}
)


def test_fabric_manager_of_a_shared_host(root: Path) -> None:
    answer(root, "fabric-manager-service", "LoadState=loaded\nActiveState=active\n")
    answer(root, "fabric-manager-version", VERSION)
    answer(root, "fabric-manager-partitions", PARTITIONS)
    put(root, CONFIG, "# FABRIC_MODE=0\nLOG_LEVEL=4\n FABRIC_MODE = 1 \n")
    manager = read_fabric_manager(reader(root), HOST)
    assert manager is not None
    assert (manager.installed, manager.running, manager.state) == (True, True, "active")
    assert (manager.version, manager.mode, manager.active_partitions) == ("535.161.08", 1, (1,))


def test_fabric_manager_that_failed(root: Path) -> None:
    answer(root, "fabric-manager-service", "LoadState=loaded\nActiveState=failed\n")
    manager = read_fabric_manager(reader(root), HOST)
    assert manager is not None
    assert (manager.installed, manager.running, manager.state, manager.mode) == (True, False, "failed", None)


def test_fabric_manager_is_not_installed(tmp_path: Path) -> None:
    system = Live(tmp_path, {"systemctl": "LoadState=not-found\nActiveState=inactive\n"})
    manager = read_fabric_manager(Reader(system), HOST)
    assert manager is not None
    assert (manager.installed, manager.running, manager.version) == (False, False, None)


def test_fabric_manager_of_a_capture_without_it_is_unknown(root: Path) -> None:
    manager = read_fabric_manager(reader(root), HOST)
    assert manager is not None
    assert (manager.installed, manager.running, manager.version, manager.mode) == (None, None, None, None)


def test_no_fabric_manager_without_its_makers_gpus(tmp_path: Path) -> None:
    system = Live(tmp_path, {})
    assert read_fabric_manager(Reader(system), Host(gpus=(Gpu(address=GPU, vendor="amd"),))) is None
    assert system.asked == []


@pytest.mark.parametrize("mode", ["7", "one", "1; reboot", ""])
def test_a_mode_that_is_none_is_a_problem(root: Path, mode: str) -> None:
    put(root, CONFIG, f"FABRIC_MODE={mode}\n")
    read = reader(root)
    manager = read_fabric_manager(read, HOST)
    assert manager is not None
    assert manager.mode is None
    assert [(p.what, p.where) for p in read.problems] == [("not a FABRIC_MODE", CONFIG)]


@pytest.mark.parametrize(
    "text", ["[]", "{}", "fmReturn: -3", '{"partitionInfo": [{"partitionId": "x", "isActive": 1}]}']
)
def test_partitions_that_are_none_are_a_problem(root: Path, text: str) -> None:
    answer(root, "fabric-manager-service", "LoadState=loaded\nActiveState=active\n")
    answer(root, "fabric-manager-partitions", text)
    put(root, CONFIG, "FABRIC_MODE=1\n")
    read = reader(root)
    manager = read_fabric_manager(read, HOST)
    assert manager is not None
    assert manager.active_partitions is None
    assert [(p.what, p.where) for p in read.problems] == [("partitions not understood", "fmpm -l")]


# --- what is told twice --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"critical_warning": 4, "critical_warning": 0}', '{"a": {"b": 1, "b": 1}}'])
def test_a_log_with_a_key_twice_is_not_understood(root: Path, text: str) -> None:
    answer(root, "nvme-smart-log-nvme0", text)
    assert (read_health(reader(root), HOST).disks or {})[DISK] == {"smart": "not understood"}


@pytest.mark.parametrize("states", [("failed", "active"), ("active", "failed")])
def test_a_state_of_the_fabric_manager_that_stands_twice_is_unknown(root: Path, states: tuple[str, str]) -> None:
    answer(root, "fabric-manager-service", "LoadState=loaded\n" + "".join(f"ActiveState={one}\n" for one in states))
    answer(root, "fabric-manager-version", "".join(f"Fabric Manager version is : {n}.54.15\n" for n in (550, 580)))
    manager = read_fabric_manager(reader(root), HOST)
    assert manager is not None
    assert (manager.installed, manager.running, manager.state, manager.version) == (True, None, None, None)


@pytest.mark.parametrize(
    ("line", "expected", "doubts"),
    [
        ("HardwareCorrupted:     0 kB", 0, 0),
        ("HardwareCorrupted: 1048576 kB", 1 << 30, 0),
        ("Hugepagesize:       2048 kB", 0, 0),  # a kernel that does not count it
        ("HardwareCorrupted:    -4 kB", None, 1),
        ("HardwareCorrupted:     0 kB\nHardwareCorrupted:     4 kB", None, 1),
    ],
)
def test_memory_that_the_kernel_found_corrupted(tmp_path: Path, line: str, expected: int | None, doubts: int) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal:       131072 kB\n{line}\n")
    read = reader(tmp_path)
    assert read_health(read, HOST).corrupted_bytes == expected
    assert [problem.what for problem in read.problems].count("not an amount of memory") == doubts


def test_corrupted_memory_is_unknown_without_the_file(tmp_path: Path) -> None:
    assert read_health(reader(tmp_path), HOST).corrupted_bytes is None


# --- the second reading --------------------------------------------------------------------------------------


def test_a_capture_holds_the_second_reading_of_error_counters(root: Path) -> None:
    found = Evidence(host=Host())
    assert read_counted_later(reader(root), found) is None
    answer(root, "counted-later", '{"uptime_seconds": 63.0, "counters": {"aer 0000:18:00.0": {"nonfatal": 7}}}')
    later = read_counted_later(reader(root), found)
    assert later is not None
    assert (later.uptime_seconds, later.counters["aer 0000:18:00.0"]["nonfatal"]) == (63.0, 7)
    answer(root, "counted-later", '{"uptime_seconds": "x"}')
    damaged = reader(root)
    assert read_counted_later(damaged, found) is None
    assert [(one.what, one.where) for one in damaged.problems] == [("unreadable", "counted-later")]


class Asked(Whole):
    """A machine that notes what it is asked, and is read once."""

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        self.names = (*getattr(self, "names", ()), name)
        return live() if name == REGISTER_ANSWER else None


@pytest.mark.parametrize(
    ("wait", "looked", "again"), [(True, None, True), (False, None, False), (True, 30.0, False), (True, 90.0, True)]
)
def test_only_a_validation_without_an_earlier_one_waits_for_a_second_reading(
    wait: bool, looked: float | None, again: bool
) -> None:
    files = {**FILES, "/proc/uptime": b"60.5 100.0\n", "/proc/sys/kernel/random/boot_id": b"b\n"}
    seen = Counted(boot_id="b", uptime_seconds=looked) if looked else None
    machine = Asked(files, LINKS, "a machine")
    machine.captured = False
    gather(machine, wait=wait, history=(Validation(counted=seen),))
    assert ("counted-later" in machine.names) is again
