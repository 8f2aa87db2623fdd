# ruff: noqa: N802, N815  (the library has these names)
"""What NVML and amdgpu tell of health: asked call by call, read with every answer doubted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

import hosttune
from hosttune.gpu.amd import read_ras
from hosttune.gpu.nvml_dump import dump_from
from hosttune.gpu.nvml_facts import parse_nvml
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host

A = "0000:19:00.0"


class Failure(Exception):
    """The library's NVMLError."""


class Sick:
    """A library of one GPU that is hot, resent bytes and lost memory; what it does not have is missing."""

    NVMLError = Failure
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVML_FI_DEV_MEMORY_TEMP = 82
    NVML_GPU_INSTANCE_PROFILE_COUNT = 18
    nvmlEccSramErrorStatus_v1 = pynvml.nvmlEccSramErrorStatus_v1
    c_nvmlEccSramErrorStatus_v1_t = pynvml.c_nvmlEccSramErrorStatus_v1_t

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetHandleByPciBusId": A,
            "nvmlDeviceGetPcieReplayCounter": 900,
            "nvmlDeviceGetTemperature": 92,
            "nvmlDeviceGetMarginTemperature": -3,
            "nvmlDeviceGetTotalEccErrors": 4,
            "nvmlDeviceGetRowRemapperHistogram": SimpleNamespace(max=1, high=0, partial=0, low=2, none=1),
            "nvmlDeviceGetRepairStatus": [1, 0],
            "nvmlErrorString": "Not Supported",
        }
        if name not in answers:
            raise AttributeError(name)
        return lambda *arguments: answers[name]

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[Any]) -> list[Any]:
        return [
            SimpleNamespace(nvmlReturn=0 if field == 230 else 3, valueType=1, value=SimpleNamespace(uiVal=1))
            for field in fields
        ]

    def nvmlDeviceGetSramEccErrorStatus(self, handle: str, status: Any) -> int:
        status._obj.bThresholdExceeded = 1
        return 0


def test_a_sick_gpu_as_nvml_tells_it() -> None:
    (gpu,) = parse_nvml(dump_from(Sick(), [A])).gpus
    assert (gpu.pcie_replays, gpu.temperature_c, gpu.temperature_margin_c) == (900, 92, -3)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.ecc_uncorrected_lifetime) == (4, 4, 4)
    assert (gpu.remap_banks_low, gpu.remap_banks_none, gpu.sram_threshold_exceeded) == (2, 1, True)
    assert (gpu.channel_repair_pending, gpu.tpc_repair_pending) == (True, False)
    assert gpu.recovery_action == "reset"
    assert gpu.memory_temperature_c is None
    assert gpu.lacks is not None
    assert "memory_temperature_c" in gpu.lacks
    assert "sm_clock_mhz" not in gpu.lacks  # these bindings do not know it: unknown, not absent


def test_what_bindings_lack_in_health_is_no_doubt_of_discovery() -> None:
    answer = parse_nvml(dump_from(Sick(), [A]))
    assert all("health" not in problem.why for problem in answer.problems)


def test_a_gpu_that_is_too_hot_makes_a_document_that_can_be_read() -> None:
    host = Host(gpus=(Gpu(address=A, temperature_c=93.0, temperature_margin_c=-3.0),))
    assert hosttune.Host.from_json(host.to_json()) == host


@pytest.mark.parametrize("value", [-1, True, "3", 1 << 70, 2.5, None, [], {}])
def test_a_count_that_is_none_stays_unknown(value: Any) -> None:
    health = {"pcieReplays": value, "remapBanks": [value, value], "repairs": [value, value], "recoveryAction": value}
    (gpu,) = parse_nvml(json.dumps({"0": {"busId": A, "health": health}})).gpus
    assert (gpu.pcie_replays, gpu.remap_banks_none, gpu.recovery_action) == (None, None, None)
    assert (gpu.channel_repair_pending, gpu.tpc_repair_pending) == (None, None)


def test_a_gpu_without_repairs_says_so() -> None:
    (gpu,) = parse_nvml(json.dumps({"0": {"busId": A, "health": {"repairs": "ERR Not Supported"}}})).gpus
    assert gpu.lacks == ("channel_repair_pending", "tpc_repair_pending")


@pytest.mark.parametrize("health", [None, [], "ERR", 3])
def test_health_of_another_shape_is_unknown(health: Any) -> None:
    (gpu,) = parse_nvml(json.dumps({"0": {"busId": A, "health": health}})).gpus
    assert gpu == Gpu(address=A, peers=())


def test_an_unknown_recovery_action_keeps_its_number() -> None:
    (gpu,) = parse_nvml(json.dumps({"0": {"busId": A, "health": {"recoveryAction": 9}}})).gpus
    assert gpu.recovery_action == "action 9"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"umc_err_count": "ue: 1\nce: 20\n", "gfx_err_count": "ue: 2\nce: 0\n", "features": "0x1"}, (3, 20)),
        ({"umc_err_count": "ue: x\nce: -1\n"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_errors_of_all_blocks_of_an_amd_gpu(
    tmp_path: Path, files: dict[str, str], expected: tuple[int | None, int | None]
) -> None:
    (tmp_path / "ras").mkdir()
    for name, text in files.items():
        (tmp_path / "ras" / name).write_text(text)
    assert read_ras(Reader(Capture(str(tmp_path))), "") == expected
