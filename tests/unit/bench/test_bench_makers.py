"""Benchmarks of AMD GPUs, of MIG instances and of Gaudi: which device is which, who may be loaded, what is not known.

No such machine was seen here: stand-ins say what the makers' libraries are documented to say.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from benchcases import Bench
from cutshort import put, put_link
from standins import install, told
from unit.bench.test_bench_course import CHILD, FOUND, GPUS, MEMORY, document, host, machine, outcomes, process, record

from hosttune.bench import gpu_child
from hosttune.bench.measuring import MeasuredRuns, measure
from hosttune.bench.parse import child
from hosttune.bench.parse.answer import ParsedOutput
from hosttune.errors import Refused
from hosttune.gpu import habana, mig
from hosttune.machine.live import LiveMachine
from hosttune.model.gpu import Gpu, Mig, MigInstance, MigProfile
from hosttune.model.host import Host, PciDevice, RunningGuest
from hosttune.model.validation import CheckResult, Sample, Validation

A, B = GPUS
UUIDS = ("MIG-11111111-2222-3333-4444-555555555555", "MIG-99999999-2222-3333-4444-555555555555")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the child with a stand-in library whose devices are told."""
    install(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(gpu_child.__file__).parents[2]}")

    def run(standin: str, *arguments: str, **variables: str) -> ParsedOutput:
        monkeypatch.setenv("STANDIN", standin)
        named = tuple(f"{name}={value}" for name, value in variables.items())
        argv = ("env", *named, sys.executable, "-m", "hosttune.bench.gpu_child", *arguments)
        return child.parse(LiveMachine().run(argv, timeout=60))

    return run


def lost(answer: ParsedOutput) -> dict[tuple[str, str], str]:
    return {(row.metric, row.subject): row.why for row in answer.lost}


def figures(answer: ParsedOutput) -> set[tuple[str, str]]:
    return {(row.metric, row.subject) for row in answer.samples if not row.metric.startswith("load-")}


# --- AMD -----------------------------------------------------------------------------------------------------

ROCM = {"hip": "6.4.1", "fp8": "fnuz"}
MI300X = ({"bus": 0x3B, "arch": "gfx942:sramecc+"}, {"bus": 0x19, "arch": "gfx942:sramecc+"})
ALL = ("--gpus", ",".join(GPUS), "--kinds", "host-copies,device-copy,gemm,peer-copy")


def test_amd_gpus_are_told_by_their_pci_addresses_and_not_by_their_order(library: Any) -> None:
    answer = library(told(MI300X, **ROCM), *ALL)
    assert figures(answer) == {
        *((metric, gpu) for gpu in GPUS for metric in ("h2d-ce", "d2h-ce", "device-copy", "gemm-bf16", "gemm-fp8")),
        *(("p2p-write-ce", pair) for pair in (f"{A}->{B}", f"{B}->{A}")),
    }
    assert answer.lost == ()
    assert (answer.facts["hip"], answer.facts["rccl"], "cuda" in answer.facts) == ("6.4.1", "2.27.3", False)


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ((MI300X[0], MI300X[1], MI300X[1]), "shows 2 devices at this address"),
        ((MI300X[0], {"arch": "gfx942"}), "does not report the PCI addresses"),
        ((MI300X[0],), "shows no device at this address"),
    ],
)
def test_a_gpu_that_is_none_of_the_librarys_devices_is_unknown_and_never_guessed(
    library: Any, devices: tuple[dict[str, Any], ...], why: str
) -> None:
    answer = library(told(devices, **ROCM), *ALL)
    found = lost(answer)
    assert {subject for _, subject in figures(answer)} == {B}
    assert set(found) == {(metric, A) for metric in ("h2d-ce", "d2h-ce", "device-copy", "gemm-bf16")}
    assert all(why in text and "hip 6.4.1" in text for text in found.values())


def test_a_gpu_of_another_function_than_the_first_is_not_taken_for_the_first(library: Any) -> None:
    answer = library(told(MI300X, **ROCM), "--gpus", "0000:19:00.1", "--kinds", "device-copy")
    assert figures(answer) == set()
    assert "reports no function numbers" in lost(answer)["device-copy", "0000:19:00.1"]


@pytest.mark.parametrize("name", ["HSA_ENABLE_SDMA", "HSA_ENABLE_PEER_SDMA"])
def test_copies_by_kernels_are_no_figures_of_copy_engines(library: Any, name: str) -> None:
    answer = library(told(MI300X, **ROCM), *ALL, **{name: "0"})
    gone = {metric for metric, _ in lost(answer)}
    assert gone == {"p2p-write-ce"} | ({"h2d-ce", "d2h-ce"} if name == "HSA_ENABLE_SDMA" else set())
    assert all(f"{name}=0" in why for why in lost(answer).values())


def test_tf32_of_rocm_is_not_taken_for_what_may_be_fp32(library: Any) -> None:
    answer = library(told(MI300X, **ROCM), "--gpus", A, "--kinds", "gemm", "--level", "2")
    assert figures(answer) == {(f"gemm-{kind}", A) for kind in ("bf16", "fp8", "fp64")}
    assert [(row.check, row.outcome) for row in answer.results] == [("bench-gemm-tf32", "skip")]


def makers(vendor: str, driver: str, kind: str, **of_gpu: Any) -> Host:
    made_by, _, model = kind.partition(":")
    return host(
        pci=tuple(PciDevice(address=a, vendor_id=made_by, device_id=model, driver=driver, numa_node=0) for a in GPUS),
        gpus=tuple(Gpu(address=a, vendor=vendor, **of_gpu) for a in GPUS),
    )


def amd(root: Path, **answers: str) -> Bench:
    """A machine with two AMD GPUs that nobody holds."""
    system = machine(root, **answers)
    for number, gpu in enumerate(GPUS):
        (root / f"sys/bus/pci/devices/{gpu}/driver").unlink()
        put_link(root, f"/sys/bus/pci/devices/{gpu}/driver", "/sys/bus/pci/drivers/amdgpu")
        put(root, f"/sys/bus/pci/devices/{gpu}/drm/renderD{128 + number}/dev", f"226:{128 + number}\n")
    put_link(root, "/proc/self/ns/pid", "pid:[4026531836]")
    return system


AMD = makers("amd", "amdgpu", "1002:74a1")


def copies(value: float) -> str:
    rows = [record(metric, gpu, *[value] * 5) for gpu in GPUS for metric in ("h2d-ce", "d2h-ce")]
    return document(*rows, *(record("device-copy", gpu, *[4000.0] * 5) for gpu in GPUS))


@pytest.mark.parametrize(("value", "outcome"), [(50.0, "pass"), (46.0, "fail"), (70.0, "unknown")])
def test_figures_of_mi300x_are_held_against_published_floors_and_say_that_they_are_unproven(
    tmp_path: Path, value: float, outcome: str
) -> None:
    found = measure(amd(tmp_path, **{CHILD: copies(value)}), AMD, 1)
    assert {outcomes(found)[f"bench-{metric}", gpu] for gpu in GPUS for metric in ("h2d-ce", "d2h-ce")} == {outcome}
    assert outcomes(found)["bench-device-copy", A] == "skip"  # no floor of it
    rows = [row for row in found.results if row.subject in GPUS]
    assert all("unproven: not seen on a machine with AMD GPUs" in str(row.actual) for row in rows)


def test_an_amd_gpu_that_a_process_holds_is_refused_by_name(tmp_path: Path) -> None:
    system = amd(tmp_path)
    process(tmp_path, 4242, "python3", "/dev/dri/renderD129")
    with pytest.raises(Refused, match=r"python3 \(process 4242") as caught:
        measure(system, AMD, 1)
    assert caught.value.where == B
    assert system.ran == []


@pytest.mark.parametrize("namespace", ["pid:[4026532471]", None])
def test_where_not_all_processes_are_to_be_seen_a_driver_that_counts_none_refuses(
    tmp_path: Path, namespace: str | None
) -> None:
    system = amd(tmp_path)
    (tmp_path / "proc/self/ns/pid").unlink()
    if namespace is not None:
        put_link(tmp_path, "/proc/self/ns/pid", namespace)
    with pytest.raises(Refused, match="counts no processes"):
        measure(system, AMD, 1)
    assert system.ran == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"driver": "gim"}, "on gim"),
        ({"virtfns": ("0000:19:02.0",)}, "1 virtual functions, for guests"),
    ],
)
def test_a_gpu_that_serves_guests_is_not_loaded(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    pci = tuple(
        PciDevice(address=a, **{"vendor_id": "1002", "device_id": "74a1", "driver": "amdgpu", **change}) for a in GPUS
    )
    system = amd(tmp_path)
    found = measure(system, host(pci=pci, gpus=AMD.gpus), 1)
    rows = {row.subject: row for row in found.results if row.check == "bench-gpu"}
    assert [(rows[gpu].outcome, why in str(rows[gpu].actual)) for gpu in GPUS] == [("skip", True)] * 2
    assert not any("gpu_child" in " ".join(argv) for argv in system.ran)


def test_nvidias_tools_are_not_asked_of_amd_gpus(tmp_path: Path) -> None:
    system = amd(tmp_path, **{FOUND: "\n"})
    system.tools = ("nvbandwidth", "all_reduce_perf", "dcgmi")
    found = measure(system, AMD, 2)
    (row,) = (row for row in found.results if row.check == "bench-gemm")
    assert (row.outcome, str(row.actual)) == ("unknown", f"PyTorch: no torch for {sys.executable}")
    assert {argv[0] for argv in system.ran} == {sys.executable}


# --- MIG -----------------------------------------------------------------------------------------------------

PROFILE = MigProfile(name="3g.71gb", multiprocessors=60)
INSTANCES = tuple(
    MigInstance(profile="3g.71gb", id=index + 1, start=4 * index, uuid=uuid) for index, uuid in enumerate(UUIDS)
)
NAMES = tuple(f"{A} MIG 3g.71gb at {start}" for start in (0, 4))


def divided(**changes: Any) -> Host:
    """One GPU in MIG mode with two instances, one whole GPU."""
    parts = Mig(mode="enabled", profiles=(PROFILE,), instances=INSTANCES)
    first: dict[str, Any] = {"address": A, "vendor": "nvidia", "processes": 0, "mig": parts, **changes}
    return host(gpus=(Gpu(**first), Gpu(address=B, vendor="nvidia", processes=0)))


def see_all(root: Path) -> None:
    put_link(root, "/proc/self/ns/pid", "pid:[4026531836]")


def parts_answer(tmp_path: Path, **answers: str) -> tuple[Bench, MeasuredRuns]:
    texts = {
        f"--alone {name}": document(
            *(record(metric, name, *[value] * 5) for metric in ("h2d-ce", "d2h-ce", "device-copy")),
            record("gemm-bf16", name, *[300.0] * 5, unit="TFLOP/s"),
        )
        for name, value in zip(NAMES, (20.0, 21.0), strict=True)
    }
    whole = document(*(record(metric, B, *[55.0] * 5) for metric in ("h2d-ce", "d2h-ce")))
    see_all(tmp_path)
    system = Bench(tmp_path, {FOUND: "torch\n", MEMORY: document(), **texts, **answers, CHILD: whole})
    machine(tmp_path)
    return system, measure(system, divided(), 1)


def test_each_instance_is_measured_alone_and_held_against_no_floor_of_the_whole(tmp_path: Path) -> None:
    system, found = parts_answer(tmp_path)
    assert [(outcomes(found)["bench-h2d-ce", name], outcomes(found)["bench-p2p-write-ce", name]) for name in NAMES] == [
        ("skip", "skip")
    ] * 2
    (row,) = (row for row in found.results if (row.check, row.subject) == ("bench-h2d-ce", NAMES[0]))
    assert "no floor is published for a part of a GPU" in str(row.actual)
    assert "unproven: not seen on a machine with MIG instances" in str(row.actual)
    alone = [argv for argv in system.ran if "--alone" in argv]
    assert [argv[:2] for argv in alone] == [("env", f"CUDA_VISIBLE_DEVICES={uuid}") for uuid in UUIDS]
    assert all(argv[argv.index("--multiprocessors") + 1] == "60" for argv in alone)
    assert not any("collectives" in argv[argv.index("--kinds") + 1] for argv in alone)
    assert outcomes(found)["bench-h2d-ce", B] == "pass"
    assert not any("unproven" in str(row.actual) for row in found.results if row.subject == B)


@pytest.mark.parametrize(("value", "outcome"), [(20.0, "pass"), (15.0, "warn"), (90.0, "unknown")])
def test_an_instance_is_held_against_its_own_history_and_the_peak_of_the_whole(
    tmp_path: Path, value: float, outcome: str
) -> None:
    samples = tuple(Sample(metric="h2d-ce", subject=NAMES[0], value=20.0, unit="GB/s") for _ in range(5))
    before = Validation(host="node1", level=1, verdict="pass", results=(), samples=samples)
    system, _ = parts_answer(tmp_path)
    text = document(*(record(metric, NAMES[0], *[value] * 5) for metric in ("h2d-ce", "d2h-ce")))
    system.answers = {**system.answers, f"--alone {NAMES[0]}": text}
    found = measure(system, divided(), 1, history=(before,))
    assert outcomes(found)["bench-h2d-ce", NAMES[0]] == outcome


@pytest.mark.parametrize(
    "change",
    [
        {"instances": None},
        {"instances": (MigInstance(id=1),)},
        {"instances": (*INSTANCES, MigInstance(profile="1g.18gb", id=9, start=6))},
    ],
)
def test_instances_that_are_not_known_are_unknown(tmp_path: Path, change: dict[str, Any]) -> None:
    see_all(tmp_path)
    system = machine(tmp_path)
    found = measure(system, divided(mig=Mig(mode="enabled", profiles=(PROFILE,), **change)), 1)
    assert outcomes(found)["bench-gpu", A] == "unknown"
    assert not any("--alone" in argv for argv in system.ran)


def test_mig_mode_without_an_instance_has_nothing_to_load(tmp_path: Path) -> None:
    see_all(tmp_path)
    found = measure(machine(tmp_path), divided(mig=Mig(mode="enabled", instances=())), 1)
    assert outcomes(found)["bench-gpu", A] == "skip"


def test_instances_of_guests_and_of_processes_are_not_loaded(tmp_path: Path) -> None:
    see_all(tmp_path)
    system = machine(tmp_path)
    with pytest.raises(Refused, match="1 processes compute on it"):
        measure(system, divided(processes=1), 1)
    with pytest.raises(Refused, match="guest vm1 has it"):
        measure(system, Host(**{**fields(divided()), "guests": (RunningGuest(name="vm1", devices=(A,)),)}), 1)
    given = tuple(
        PciDevice(address=a, vendor_id="10de", device_id="2335", driver="nvidia", virtfns=("0000:19:00.4",) * (a == A))
        for a in GPUS
    )
    found = measure(system, Host(**{**fields(divided()), "pci": given}), 1)
    (row,) = (row for row in found.results if (row.check, row.subject) == ("bench-gpu", A))
    assert (row.outcome, "virtual functions, for guests" in str(row.actual)) == ("skip", True)
    assert not any("--alone" in argv for argv in system.ran)


def test_a_gpu_with_mediated_devices_is_refused(tmp_path: Path) -> None:
    """A guest that has one holds no node of the GPU."""
    see_all(tmp_path)
    system = machine(tmp_path)
    put(tmp_path, f"/sys/bus/pci/devices/{A}/{UUIDS[0].removeprefix('MIG-')}/mdev_type/name", "x\n")
    with pytest.raises(Refused, match="1 mediated devices, for guests") as caught:
        measure(system, divided(), 1)
    assert caught.value.where == A
    assert system.ran == []


def fields(value: Host) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def test_in_mig_mode_a_count_of_no_processes_is_no_proof(tmp_path: Path) -> None:
    """The driver counts those on all instances only for whoever may see them."""
    system = machine(tmp_path)
    with pytest.raises(Refused, match="counts no processes"):
        measure(system, divided(), 1)
    assert system.ran == []


def test_nvidias_tools_do_not_run_where_a_gpu_is_divided(tmp_path: Path) -> None:
    see_all(tmp_path)
    system = machine(tmp_path, ("nvbandwidth", "dcgmi", "all_reduce_perf"), **{FOUND: "\n"})
    found = measure(system, divided(), 2)
    assert not any(argv[0] in ("nvbandwidth", "dcgmi", "all_reduce_perf") for argv in system.ran)
    assert {outcomes(found)["bench-gpu", name] for name in NAMES} == {"unknown"}


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        (({"name": UUIDS[0], "bus": 0x19, "multiprocessors": 26},), "several compute instances"),
        (({"name": UUIDS[0], "bus": 0x3B, "multiprocessors": 60},), "0000:3b:00.0 where this one is at 0000:19:00.0"),
        (({"name": UUIDS[1], "bus": 0x19, "multiprocessors": 60},), "shows 0 devices"),
        (({"name": UUIDS[0], "bus": 0x19, "multiprocessors": 60},) * 2, "shows 2 devices"),
    ],
)
def test_a_device_that_is_not_the_instance_is_unknown(
    library: Any, devices: tuple[dict[str, Any], ...], why: str
) -> None:
    answer = library(told(devices, by="CUDA_VISIBLE_DEVICES"), *ONE, CUDA_VISIBLE_DEVICES=UUIDS[0])
    assert answer.samples == ()
    assert lost(answer).keys() == {("device-copy", NAMES[0]), ("gemm-bf16", NAMES[0])}
    assert all(why in text for text in lost(answer).values())


ONE = ("--gpus", A, "--alone", NAMES[0], "--multiprocessors", "60", "--kinds", "device-copy,gemm")


def test_the_instance_that_the_environment_shows_gives_its_figures(library: Any) -> None:
    rows = (
        {"name": UUIDS[1], "bus": 0x19, "multiprocessors": 60},
        {"name": UUIDS[0], "bus": 0x19, "multiprocessors": 60},
    )
    answer = library(told(rows, by="CUDA_VISIBLE_DEVICES"), *ONE, CUDA_VISIBLE_DEVICES=UUIDS[0])
    assert figures(answer) == {(metric, NAMES[0]) for metric in ("device-copy", "gemm-bf16", "gemm-fp8")}
    assert answer.lost == ()


def test_a_gpu_without_mig_mode_has_no_parts() -> None:
    assert mig.parts(Gpu(address=A, mig=Mig(mode="disabled", instances=()))) is None
    assert mig.parts(Gpu(address=A)) is None


# --- Gaudi ---------------------------------------------------------------------------------------------------


def gaudi(root: Path, **answers: str) -> Bench:
    system = machine(root, **{FOUND: "torch habana_frameworks\n", **answers})
    for number, gpu in enumerate(GPUS):
        (root / f"sys/bus/pci/devices/{gpu}/driver").unlink()
        put_link(root, f"/sys/bus/pci/devices/{gpu}/driver", "/sys/bus/pci/drivers/habanalabs")
        put(root, f"/sys/bus/pci/devices/{gpu}/accel/accel{number}/dev", f"261:{number}\n")
    see_all(root)
    return system


def gaudis(*modules: int | None) -> Host:
    base = makers("habana", "habanalabs", "1da3:1060")
    gpus = tuple(Gpu(address=a, vendor="habana", module_id=n) for a, n in zip(GPUS, modules, strict=True))
    return Host(**{**fields(base), "gpus": gpus})


def answer_of(gpu: str, copy: float) -> str:
    product = record("gemm-bf16", gpu, *[1000.0] * 5, unit="TFLOP/s")
    return document(*(record(metric, gpu, *[copy] * 5) for metric in ("h2d-ce", "d2h-ce", "device-copy")), product)


def test_each_gaudi_is_measured_alone_by_its_module_id(tmp_path: Path) -> None:
    system = gaudi(tmp_path, **{f"--alone {gpu}": answer_of(gpu, 50.0) for gpu in GPUS})
    found = measure(system, gaudis(5, 0), 1)
    alone = [argv for argv in system.ran if "--alone" in argv]
    assert [argv[1] for argv in alone] == ["HABANA_VISIBLE_MODULES=5", "HABANA_VISIBLE_MODULES=0"]
    assert all("PT_HPU_LAZY_MODE=0" in argv for argv in alone)
    for gpu in GPUS:
        rows = {row.check: row for row in found.results if row.subject == gpu}
        assert {row.outcome for row in rows.values()} == {"skip"}  # measured, and no floor of it is known
        assert "median 1000" in str(rows["bench-gemm-bf16"].actual)
        assert "unproven: not seen on a machine with Gaudi" in str(rows["bench-gemm-bf16"].actual)
        assert all("no source was found" in str(rows[f"bench-{metric}"].actual) for metric in habana.WITHOUT)


def test_figures_of_another_device_are_not_believed(tmp_path: Path) -> None:
    found = measure(gaudi(tmp_path, **{CHILD: answer_of(A, 50.0)}), gaudis(5, 0), 1)
    assert outcomes(found)["bench-gemm-bf16", B] == "unknown"
    assert sum(row.metric == "gemm-bf16" for row in found.samples) == 5
    (row,) = (row for row in found.results if (row.check, row.subject) == ("bench-h2d-ce", B))
    assert f"figures of another device than {B}" in str(row.actual)


def test_a_gaudi_above_its_peak_is_not_believed(tmp_path: Path) -> None:
    found = measure(gaudi(tmp_path, **{f"--alone {A}": answer_of(A, 70.0)}), gaudis(5, 0), 1)
    assert outcomes(found)["bench-h2d-ce", A] == "unknown"
    assert outcomes(found)["bench-device-copy", A] == "skip"


def test_a_gaudi_of_unknown_module_id_is_unknown_and_not_loaded(tmp_path: Path) -> None:
    system = gaudi(tmp_path)
    found = measure(system, gaudis(5, None), 1)
    rows: list[CheckResult] = [row for row in found.results if (row.check, row.subject) == ("bench-gpu", B)]
    assert [(row.outcome, "module id is not known" in str(row.actual)) for row in rows] == [("unknown", True)]
    assert [argv[1] for argv in system.ran if "--alone" in argv] == ["HABANA_VISIBLE_MODULES=5"]


def test_a_gaudi_that_a_process_holds_is_refused(tmp_path: Path) -> None:
    system = gaudi(tmp_path)
    process(tmp_path, 4242, "python3", "/dev/accel/accel0")
    with pytest.raises(Refused, match=r"python3 \(process 4242"):
        measure(system, gaudis(5, 0), 1)
    assert system.ran == []


GAUDI_ONE = ("--library", "hpu", "--gpus", A, "--alone", A, "--without", "gemm-fp8")


def test_a_gaudi_gives_copies_and_bf16_products(library: Any) -> None:
    rows = ({"name": "5"}, {"name": "0"})
    answer = library(told(rows, by="HABANA_VISIBLE_MODULES"), *GAUDI_ONE, HABANA_VISIBLE_MODULES="0")
    assert figures(answer) == {(metric, A) for metric in ("h2d-ce", "d2h-ce", "device-copy", "gemm-bf16")}
    assert (answer.lost, answer.results) == ((), ())


def test_where_a_gaudi_is_not_alone_nothing_is_measured(library: Any) -> None:
    rows = ({"name": "5"}, {"name": "5"})
    answer = library(told(rows, by="HABANA_VISIBLE_MODULES"), *GAUDI_ONE, HABANA_VISIBLE_MODULES="5")
    assert answer.samples == ()
    assert all("shows 2 devices" in why for why in lost(answer).values())
    assert sorted(metric for metric, _ in lost(answer)) == ["d2h-ce", "device-copy", "gemm-bf16", "h2d-ce"]
