"""`amd-smi static --json` beside amdgpu's files: what it contradicts is unknown, and its loss improves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from applyroots import unpack
from damage import Damage, Files, Found, as_captured, improvements, load, places, read_by_discovery, validated
from damage import with_damage as damaged

from hosttune import capture
from hosttune.discovery import discover
from hosttune.errors import BadInput, CommandFailed, Unreadable
from hosttune.gpu import read_gpus
from hosttune.gpu.amd_smi import COMMAND, NOT_UNDERSTOOD, QUERY, parse_amd_smi
from hosttune.machine.capture import Archive
from hosttune.machine.opening import open_root
from hosttune.machine.reader import Reader
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, PciDevice

CASES = Path(__file__).parents[2] / "cases" / "gpu" / "amd-smi"
MI300X = (CASES / "mi300x-x8-rocm7.2.1.txt").read_text()
NO_ROOT = (CASES / "mi300x-x8-rocm7.2.1-no-root.txt").read_text()
STRIX = (CASES / "strix-halo-x1-rocm6.3.1.txt").read_text()
EXAMPLE = Path(__file__).parents[3] / "examples" / "mi300x-8.tar.xz"
RECORD = f"/.hosttune/commands/{QUERY}"
GPUS = [f"0000:{bus}:00.0" for bus in ("18", "29", "41", "56", "9a", "aa", "ba", "da")]
ONE = GPUS[0]
Change = Callable[[dict[str, Any]], object]


@cache
def example() -> Files:
    return load(EXAMPLE)


def printed(change: Change = lambda gpu: None, of: int = 0) -> str:
    """What the tool printed on the example, with a change to one GPU."""
    document = json.loads(example().files[RECORD])
    change(document["gpu_data"][of])
    return json.dumps(document, indent=4)


def at(gpu: dict[str, Any], *path: str) -> dict[str, Any]:
    for name in path:
        gpu = gpu[name]
    return gpu


def put(*path: str, value: object) -> Change:
    return lambda gpu: at(gpu, *path[:-1]).update({path[-1]: value})


def lost(*path: str) -> Change:
    return lambda gpu: at(gpu, *path[:-1]).pop(path[-1])


def host_with(text: str) -> Host:
    return discover(example().put({RECORD: text}).system())


def gpu_of(host: Host, address: str = ONE) -> Gpu:
    return next(gpu for gpu in host.gpus if gpu.address == address)


def watts(amount: object) -> dict[str, object]:
    return {"value": amount, "unit": "W"}


# --- the parser ----------------------------------------------------------------------------------------------


def test_eight_mi300x_of_rocm_7() -> None:
    report = parse_amd_smi(MI300X)
    assert (report.problems, report.unread) == ((), ())
    assert [gpu.address[5:7] for gpu in report.told] == ["1b", "3d", "4e", "5f", "9d", "bd", "cd", "dd"]
    assert {gpu.unrepairable_memory for gpu in report.told} == {False}
    assert len({gpu.serial for gpu in report.told}) == 8


def test_without_root_retired_pages_are_not_told() -> None:
    report = parse_amd_smi(NO_ROOT)
    assert [problem.what for problem in report.problems] == ["amd-smi printed a warning"]
    assert report.unread == tuple(gpu.address for gpu in report.told)


def test_the_list_of_rocm_6() -> None:
    report = parse_amd_smi(STRIX)
    (gpu,) = report.told
    assert (gpu.serial, report.unread, report.problems) == (None, (), ())


def test_an_entry_without_an_address_is_left_out() -> None:
    text = (CASES / "mi210-x1-no-address.txt").read_text()
    (problem,) = parse_amd_smi(text).problems
    assert problem.what == "GPU without a PCI address"
    report = parse_amd_smi(text.replace('"bus": {', '"bus": {"bdf": "0000:83:00.0",'))
    assert [gpu.address for gpu in report.told] == ["0000:83:00.0"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[]", "null", "[1]", '{"gpu_data": []}', '{"gpu_data": {}}', '{"error": "no device"}', "\0\xff"),
        *("ERROR: amdgpu is not loaded", MI300X[: len(MI300X) // 2], MI300X + "and more", "[" * 100_000),
        MI300X.replace('"gpu": 0,', '"gpu": 0, "gpu": 0,'),
        '{"gpu_data": [], "gpu_data": [{"bus": {"bdf": "0000:1b:00.0"}}]}',
    ],
)
def test_what_is_no_answer_of_the_tool_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_amd_smi(text)


@pytest.mark.parametrize(
    "change",
    [
        put("ras", value={}),
        lost("ras", "bad_page_threshold_exceeded"),
        put("ras", "bad_page_threshold_exceeded", value="maybe"),
        put("ras", "bad_page_threshold_exceeded", value=False),
    ],
)
def test_where_retired_pages_are_not_understood_uncorrected_errors_are_unknown(change: Change) -> None:
    text = printed(change)
    assert parse_amd_smi(text).unread == (ONE,)
    found = host_with(text)
    assert gpu_of(found).ecc_uncorrected is None
    assert {(problem.what, problem.where) for problem in found.problems} == {(NOT_UNDERSTOOD, ONE)}
    assert gpu_of(found, GPUS[1]) == gpu_of(host_with(printed()), GPUS[1])


# --- beside the driver's files -------------------------------------------------------------------------------


def test_the_tool_adds_the_serial_number_and_the_pages() -> None:
    found = host_with(printed())
    assert found.problems == ()
    assert (gpu_of(found).serial, gpu_of(found).unrepairable_memory) == ("SCRUBBED-00000000", False)
    without = discover(Files({k: v for k, v in example().files.items() if k != RECORD}, example().links).system())
    assert (gpu_of(without).serial, gpu_of(without).unrepairable_memory) == (None, None)
    assert gpu_of(without).power_limit_watts == 750.0


def outcomes(text: str) -> dict[tuple[str, str], str]:
    return dict(validated(example().put({RECORD: text})).outcomes)


def changed(text: str) -> dict[tuple[str, str], str]:
    good = outcomes(printed())
    return {key: outcome for key, outcome in outcomes(text).items() if good.get(key) != outcome}


def test_more_retired_pages_than_the_board_may_lose_fail() -> None:
    exceeded = put("ras", "bad_page_threshold_exceeded", value="True")
    assert changed(printed(exceeded)) == {("ecc-errors", ONE): "fail"}
    not_available = put("ras", "bad_page_threshold_exceeded", value="N/A")
    assert changed(printed(not_available)) == {("ecc-errors", ONE): "unknown"}, "other GPUs of the model have it"


def test_a_gpu_that_the_tool_leaves_out() -> None:
    document = json.loads(printed())
    del document["gpu_data"][2]
    text = json.dumps(document)
    assert changed(text) == {(check, GPUS[2]): "unknown" for check in ("device-present", "ecc-errors")}
    assert "amd-smi lists other GPUs and not this one" in {
        one.where: one.why for one in host_with(text).problems if one.what == "GPU facts unknown"
    }[GPUS[2]].removeprefix("amdgpu holds it, and ")


def test_a_gpu_that_only_the_tool_lists_is_missing() -> None:
    document = json.loads(printed())
    document["gpu_data"].append(json.loads(printed(put("bus", "bdf", value="0000:77:00.0")))["gpu_data"][0])
    assert outcomes(json.dumps(document))["device-present", "0000:77:00.0"] == "fail"


def test_the_parts_of_a_divided_gpu_are_no_gpus_that_were_lost() -> None:
    document = json.loads(printed())
    parts = [json.loads(printed(put("bus", "bdf", value=f"{ONE[:-1]}{n}")))["gpu_data"][0] for n in range(1, 8)]
    document["gpu_data"] += parts
    assert changed(json.dumps(document)) == {}
    document["gpu_data"] = [*json.loads(printed())["gpu_data"][1:], parts[0]]
    assert outcomes(json.dumps(document))["device-present", parts[0]["bus"]["bdf"]] == "fail"


def test_a_host_with_the_kernels_own_driver_has_no_version_of_the_module() -> None:
    """ROCm/amdsmi prints the kernel's version then, and so does discovery; the driver's answer is no doubt."""
    host = example()
    kernel = host.files["/proc/sys/kernel/osrelease"].decode().strip()
    document = json.loads(printed())
    for gpu in document["gpu_data"]:
        gpu["driver"]["version"] = kernel
    files = {path: data for path, data in host.files.items() if path != "/sys/module/amdgpu/version"}
    without = Files({**files, RECORD: json.dumps(document).encode()}, host.links, host.dirs)
    own = as_captured(without, read_by_discovery(without))
    found = validated(own).outcomes
    assert {found["gpu-driver", address] for address in GPUS} == {"pass"}


# --- evidence that is lost -----------------------------------------------------------------------------------


def sick() -> str:
    """A fault of one GPU, of which only the tool knows."""
    document = json.loads(printed())
    put("ras", "bad_page_threshold_exceeded", value="True")(document["gpu_data"][7])
    return json.dumps(document, indent=4)


@cache
def sick_host() -> tuple[Files, Found, tuple[Damage, ...]]:
    host = example().put({RECORD: sick()})
    read = read_by_discovery(host)
    own = as_captured(host, read)
    return own, validated(own), tuple(one for one in places(own, read) if one.path == RECORD)


def test_the_sick_host_shows_its_fault() -> None:
    found = sick_host()[1].outcomes
    assert {address: found["ecc-errors", address] for address in GPUS if found["ecc-errors", address] != "pass"} == {
        GPUS[7]: "fail"
    }


def better(*damages: Damage) -> list[str]:
    host, before, _ = sick_host()
    try:
        after = validated(damaged(host, *damages))
    except (BadInput, Unreadable):
        return []
    return [f"{' + '.join(one.what for one in damages)}: {line}" for line in improvements(before, after)]


def test_the_answer_lost_emptied_refused_or_cut_short_improves_nothing() -> None:
    damages = [one for one in sick_host()[2] if one.stratum.startswith(f"{RECORD} ")]
    assert {one.stratum.removeprefix(f"{RECORD} ") for one in damages} == {"lost", "empty", "refused", "cut short"}
    assert [line for one in damages for line in better(one)] == []


# --- live, captured, on a scratch root -----------------------------------------------------------------------


class Live(Archive):
    """A machine with the example's files, on which the tool answers `text`, or fails."""

    captured = False

    def __init__(self, text: str | None, why: str = "") -> None:
        files = {path: data for path, data in example().files.items() if path != RECORD}
        super().__init__(files, example().links, "a machine", example().dirs)
        self.text, self.why, self.ran = text, why, list[tuple[str, ...]]()

    def query(self, name: str, live: Callable[[], str | None]) -> str | None:
        return live()

    def run(self, argv: tuple[str, ...], *, timeout: float = 20.0) -> str:
        self.ran.append(argv)
        if self.text is None:
            raise CommandFailed(argv, self.why)
        return self.text


def functions(asleep: str = "", driver: str = "amdgpu") -> tuple[PciDevice, ...]:
    return tuple(
        PciDevice(
            address=address,
            vendor_id="1002",
            device_id="74a1",
            class_code="120000",
            driver=driver,
            runtime_status="suspended" if address == asleep else "active",
        )
        for address in GPUS
    )


def test_the_tool_is_asked_once_for_all_gpus() -> None:
    machine = Live(printed())
    gpus = read_gpus(Reader(machine), functions())
    assert machine.ran == [COMMAND]
    assert len({gpu.serial for gpu in gpus}) == 8


def test_the_tool_is_not_asked_beside_a_sleeping_gpu_or_for_those_of_guests() -> None:
    machine = Live(printed())
    assert read_gpus(Reader(machine), functions(asleep=GPUS[4]))[0].power_limit_watts == 750.0
    read_gpus(Reader(machine), functions(driver="vfio-pci"))
    assert machine.ran == []


@pytest.mark.parametrize(
    ("why", "told"), [("not installed", []), ("no answer within 60 s", ["amd-smi did not answer"])]
)
def test_without_the_tool_the_drivers_files_count(why: str, told: list[str]) -> None:
    reader = Reader(Live(None, why))
    gpus = read_gpus(reader, functions())
    assert {gpu.power_limit_watts for gpu in gpus} == {750.0}
    assert [problem.what for problem in reader.problems] == told


def test_a_capture_has_no_serial_number_of_it_and_the_same_facts(tmp_path: Path) -> None:
    """Also not of the chip, in whose place the capture has another text: it is compared with nothing then."""
    root = tmp_path / "root"
    unpack(EXAMPLE, root)
    text = printed(put("board", "product_serial", value="692409006566"))
    (root / RECORD.lstrip("/")).write_text(text)
    target = tmp_path / "captured.tar.gz"
    capture(str(target), root=str(root))
    archive = open_root(str(target))
    kept = archive.read(RECORD) or ""
    assert "692409006566" not in kept
    assert "6CF1F9CF" not in kept.upper()
    before, after = discover(open_root(str(root))), discover(archive)
    assert [one for one in after.problems if QUERY in one.where or "GPU" in one.what] == []
    assert gpu_of(after).power_limit_watts == gpu_of(before).power_limit_watts == 750.0
    assert (gpu_of(after).serial or "").startswith("SCRUBBED-")
