"""Partition modes of GPUs: read from amdgpu's files, judged among the GPUs of a model, and kept from benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpuevidence import A, B, C, evidence

from hosttune.gpu import read_gpus
from hosttune.gpu.amd import AMD
from hosttune.machine.capture import Archive
from hosttune.machine.reader import Reader
from hosttune.model.gpu import Gpu
from hosttune.model.host import PciDevice
from hosttune.rules.checks import judge

SPX, CPX = ("SPX", "NPS1"), ("CPX", "NPS4")
Modes = tuple[str | None, str | None]


def function(address: str, device: str = "74a1", driver: str | None = "amdgpu") -> PciDevice:
    return PciDevice(address=address, vendor_id="1002", device_id=device, class_code="120000", driver=driver)


@pytest.mark.parametrize(
    ("compute", "memory", "expected", "problems"),
    [
        ("SPX\n", "NPS1\n", SPX, 0),
        ("CPX\n", "NPS4\n", CPX, 0),
        ("UNKNOWN\n", "NPS1\n", (None, "NPS1"), 1),
        ("", "NPS1\n", (None, "NPS1"), 0),
        ("XPS\0\xff", "-7\n", (None, None), 2),
        (None, None, (None, None), 0),
    ],
)
def test_modes_in_amdgpus_files(
    compute: str | None, memory: str | None, expected: Modes, problems: int, tmp_path: Path
) -> None:
    folder = f"/sys/bus/pci/devices/{A}"
    texts = {"current_compute_partition": compute, "current_memory_partition": memory}
    files = {f"{folder}/{name}": text.encode() for name, text in texts.items() if text is not None}
    reader = Reader(Archive(files, {}, "test"))
    (gpu,) = read_gpus(reader, (function(A),))
    assert (gpu.compute_partition, gpu.memory_partition) == expected
    assert [problem.what for problem in reader.problems].count("not a partition mode") == problems


def outcomes(
    *modes: Modes, device: str = "74a1", driver: str | None = "amdgpu", drivers: tuple[str | None, ...] = ()
) -> list[str]:
    addresses = (A, B, C)[: len(modes)]
    gpus = (
        Gpu(
            address=address,
            vendor="amd",
            model="AMD Instinct MI300X",
            source="amdgpu",
            compute_partition=compute,
            memory_partition=memory,
        )
        for address, (compute, memory) in zip(addresses, modes, strict=True)
    )
    held = drivers or (driver,) * len(addresses)
    pci = tuple(function(address, device, one) for address, one in zip(addresses, held, strict=True))
    found = [one for one in judge(evidence(*gpus, host={"pci": pci})) if one.check == "gpu-partition"]
    return [{one.subject: one.outcome for one in found}[address] for address in addresses]


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((SPX,), ["pass"]),
        ((SPX, SPX, SPX), ["pass"] * 3),
        ((CPX, CPX), ["pass", "pass"]),
        ((SPX, SPX, CPX), ["pass", "pass", "warn"]),
        ((SPX, CPX), ["warn", "warn"]),
        ((SPX, (None, "NPS1")), ["unknown", "unknown"]),
        ((SPX, SPX, (None, None)), ["unknown"] * 3),
        ((SPX, CPX, (None, None)), ["unknown"] * 3),
    ],
)
def test_modes_of_the_gpus_of_a_model(modes: tuple[Modes, ...], expected: list[str]) -> None:
    assert outcomes(*modes) == expected


def test_models_of_which_no_source_says_it_and_gpus_of_guests_are_not_judged() -> None:
    assert outcomes((None, None), device="740f") == ["skip"]
    assert outcomes((None, None), driver="vfio-pci") == ["skip"]
    assert outcomes((None, None), driver="pci-stub") == ["unknown"]


@pytest.mark.parametrize(
    ("drivers", "modes", "expected"),
    [
        (("amdgpu", "vfio-pci", "amdgpu"), (SPX, (None, None), SPX), ["pass", "skip", "pass"]),
        (("amdgpu", "vfio-pci", "amdgpu"), (SPX, (None, None), CPX), ["warn", "skip", "warn"]),
        (("amdgpu", "vfio-pci", "amdgpu"), (SPX, (None, None), (None, None)), ["unknown", "skip", "unknown"]),
        (("amdgpu", "vfio-pci", "vfio-pci"), (SPX, (None, None), (None, None)), ["pass", "skip", "skip"]),
        (("amdgpu", None, "amdgpu"), (SPX, (None, None), SPX), ["unknown"] * 3),
        (("amdgpu", "pci-stub", "amdgpu"), (SPX, (None, None), SPX), ["unknown"] * 3),
    ],
)
def test_gpus_of_guests_are_not_compared(
    drivers: tuple[str | None, ...], modes: tuple[Modes, ...], expected: list[str]
) -> None:
    """amdgpu alone can read the modes: what a guest has on vfio-pci leaves the others to be judged among themselves."""
    assert outcomes(*modes, drivers=drivers) == expected


def test_a_divided_gpu_is_not_measured() -> None:
    assert AMD.bench is not None
    found = [AMD.bench.parts(Gpu(address=A, vendor="amd", compute_partition=mode)) for mode in (None, "SPX", "CPX")]
    assert found[:2] == [None, None]
    assert "divided (CPX)" in str(found[2])
