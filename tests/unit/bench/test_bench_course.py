"""A run of benchmarks: what may be loaded, which backend measures, and that nothing garbled passes."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchcases import CASES, Bench
from cutshort import put, put_link

from hosttune.bench.measuring import MeasuredRuns, measure
from hosttune.errors import BadInput, Refused
from hosttune.machine.capture import Capture
from hosttune.model.gpu import Gpu, Mig, Peer
from hosttune.model.host import Cpu, Host, Nic, NumaNode, PciDevice, RunningGuest, VcpuPin
from hosttune.model.validation import verdict_of

GPUS = ("0000:19:00.0", "0000:3b:00.0")
FOUND = r"find_spec"
CHILD = r"gpu_child"
MEMORY = r"memory_child"


def host(**changes: Any) -> Host:
    values: dict[str, Any] = {
        "hostname": "node1",
        "kernel": "6.12.0",
        "cpus": tuple(Cpu(id=i, core=i // 2 * 2, numa_node=i // 4) for i in range(8)),
        "numa_nodes": tuple(
            NumaNode(
                id=i, cpus=f"{4 * i}-{4 * i + 3}", memory_bytes=1 << 36, distances={"0": 10 + 11 * i, "1": 21 - 11 * i}
            )
            for i in range(2)
        ),
        "pci": (
            *(
                PciDevice(address=a, vendor_id="10de", device_id="2335", driver="nvidia", numa_node=i)
                for i, a in enumerate(GPUS)
            ),
            PciDevice(address="0000:1a:00.0", vendor_id="15b3", device_id="1021", numa_node=0),
        ),
        "gpus": tuple(Gpu(address=a, vendor="nvidia", processes=0, driver_version="580.159.04") for a in GPUS),
        "guests": (),
    }
    return Host(**{**values, **changes})


def document(*records: dict[str, Any], **more: Any) -> str:
    rows = list(records)
    return json.dumps({"records": rows, "sum": zlib.crc32(json.dumps(rows, sort_keys=True).encode()), **more})


def record(metric: str, subject: str, *values: float, unit: str = "GB/s") -> dict[str, Any]:
    return {"metric": metric, "subject": subject, "unit": unit, "values": list(values)}


GOOD = document(
    *(record(metric, gpu, 55.3, 55.4, 55.2, 55.5, 55.3) for gpu in GPUS for metric in ("h2d-ce", "d2h-ce")),
    *(record("device-copy", gpu, *[4250.0] * 5) for gpu in GPUS),
    record("p2p-write-ce", f"{GPUS[0]}->{GPUS[1]}", *[394.0] * 5),
    *(record(f"gemm-{kind}", gpu, *[800.0] * 5, unit="TFLOP/s") for gpu in GPUS for kind in ("bf16", "bf16-sustained")),
    *(record("burn-wrong-results", gpu, 0.0, unit="count") for gpu in GPUS),
    record("all-reduce-1gib", "2 GPUs", *[355.0] * 5),
    record("all-gather-1gib", "2 GPUs", *[330.0] * 5),
    versions={"torch": "2.11.0"},
)
ANSWERS = {FOUND: "torch\n", CHILD: GOOD, MEMORY: document(record("memory-copy", "node0->node0", *[200.0] * 5))}


def machine(tmp_path: Path, tools: tuple[str, ...] = (), /, **answers: str) -> Bench:
    """A tree with a /proc of one harmless process, taken for a machine."""
    put(tmp_path, "/proc/1/comm", "init\n")
    (tmp_path / "proc/1/fd").mkdir(exist_ok=True)
    for number, gpu in enumerate(GPUS):
        put_link(tmp_path, f"/sys/bus/pci/devices/{gpu}/driver", "/sys/bus/pci/drivers/nvidia")
        put(tmp_path, f"/proc/driver/nvidia/gpus/{gpu}/information", f"Device Minor: \t {number}\n")
    return Bench(tmp_path, {**answers, **{key: value for key, value in ANSWERS.items() if key not in answers}}, tools)


def process(root: Path, pid: int, name: str, node: str) -> None:
    put(root, f"/proc/{pid}/comm", f"{name}\n")
    put(root, f"/proc/{pid}/cmdline", f"{name}\0")
    put(root, node, "")
    put_link(root, f"/proc/{pid}/fd/3", node)


def outcomes(found: MeasuredRuns) -> dict[tuple[str, str], str]:
    return {(row.check, row.subject): row.outcome for row in found.results}


def test_a_good_host_passes_with_every_run_in_order(tmp_path: Path) -> None:
    said: list[str] = []
    found = measure(machine(tmp_path), host(), 1, say=said.append)
    assert outcomes(found)["bench-h2d-ce", GPUS[0]] == "pass"
    assert [row.value for row in found.samples[:5]] == [55.3, 55.4, 55.2, 55.5, 55.3]
    assert {row.check for row in found.results} >= {"bench-h2d-ce", "bench-disk"}
    assert verdict_of(found.results) == "pass"
    assert found.facts == {"kernel": "6.12.0", "driver": "580.159.04", "torch": "2.11.0"}
    assert [line.split("]")[0] for line in said] == [f"[{n}/{len(said)}" for n in range(1, len(said) + 1)]
    assert all(re.search(r": .+ \(.+\), at most \d+ s$", line) for line in said), said
    assert len({(row.check, row.subject) for row in found.results}) == len(found.results)


def test_a_captured_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        measure(Capture(str(tmp_path)), host(), 1)
    assert caught.value.exit_code == 3


def test_a_gpu_that_a_process_holds_is_refused_by_name(tmp_path: Path) -> None:
    system = machine(tmp_path)
    process(tmp_path, 4242, "python3", "/dev/nvidia1")
    with pytest.raises(Refused) as caught:
        measure(system, host(), 1)
    assert "python3 (process 4242" in caught.value.what
    assert caught.value.where == GPUS[1]
    assert system.ran == []


def test_daemons_that_compute_nothing_are_no_holders(tmp_path: Path) -> None:
    system = machine(tmp_path)
    process(tmp_path, 4242, "nvidia-persistenced", "/dev/nvidia1")
    assert outcomes(measure(system, host(), 1))["bench-h2d-ce", GPUS[1]] == "pass"


def test_a_gpu_on_which_the_driver_counts_processes_is_refused(tmp_path: Path) -> None:
    """In another PID namespace nobody is to be seen in /proc."""
    busy = (Gpu(address=GPUS[0], vendor="nvidia", processes=2),)
    with pytest.raises(Refused, match="2 processes compute on it"):
        measure(machine(tmp_path), host(gpus=busy), 1)


def test_what_cannot_be_seen_to_be_free_is_refused(tmp_path: Path) -> None:
    unseen = (Gpu(address=GPUS[0], vendor="nvidia"),)
    system = machine(tmp_path)
    (tmp_path / "proc/1/fd").rmdir()
    (tmp_path / "proc/1").joinpath("comm").unlink()
    (tmp_path / "proc/1").rmdir()
    with pytest.raises(Refused) as caught:
        measure(system, host(gpus=unseen), 1)
    assert "unknown" in caught.value.what
    assert system.ran == []


def test_a_gpu_of_a_running_guest_is_refused_and_one_of_a_stopped_guest_is_not(tmp_path: Path) -> None:
    system = machine(tmp_path)
    guest = RunningGuest(name="vm1", state="running", devices=(GPUS[0],))
    with pytest.raises(Refused, match="guest vm1 has it"):
        measure(system, host(guests=(guest,)), 1)
    stopped = RunningGuest(name="vm1", state="shut off", devices=(GPUS[0],))
    assert outcomes(measure(system, host(guests=(stopped,)), 1))["bench-h2d-ce", GPUS[0]] == "pass"


def test_gpus_on_vfio_and_in_mig_mode_are_skipped_with_a_hint(tmp_path: Path) -> None:
    pci = tuple(
        PciDevice(address=a, vendor_id="10de", device_id="2335", driver=d)
        for a, d in zip(GPUS, ("vfio-pci", "nvidia"), strict=True)
    )
    gpus = (Gpu(address=GPUS[0], vendor="nvidia"), Gpu(address=GPUS[1], vendor="nvidia", mig=Mig(mode="enabled")))
    system = machine(tmp_path)
    found = measure(system, host(pci=pci, gpus=gpus), 1)
    skips = {row.subject: str(row.actual) for row in found.results if row.check == "bench-gpu"}
    assert "hosttune revert" in skips[GPUS[0]]
    assert "MIG mode" in skips[GPUS[1]]
    assert not any("gpu_child" in " ".join(argv) for argv in system.ran)


def test_a_gpu_that_waits_for_a_partition_is_not_loaded_and_says_so(tmp_path: Path) -> None:
    waiting = Gpu(address=GPUS[0], vendor="nvidia", processes=0, fabric_state="in progress")
    system = machine(tmp_path)
    found = measure(system, host(gpus=(waiting, msgspec.structs.replace(waiting, address=GPUS[1]))), 1)
    skips = {row.subject: str(row.actual) for row in found.results if row.check == "bench-gpu"}
    assert set(skips) == set(GPUS)
    assert all("error 802" in why and "fmpm -a" in why for why in skips.values())
    assert not any("gpu_child" in " ".join(argv) for argv in system.ran)


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        (Gpu(address=GPUS[0], vendor="nvidia", model="NVIDIA H200X-1-18C"), "a part of one"),
        (Gpu(address=GPUS[0], vendor="intel"), "no benchmark for GPUs of intel"),
        (Gpu(address=GPUS[0], vendor="amd"), "bind amdgpu"),
    ],
)
def test_parts_of_gpus_and_gpus_without_a_benchmark_are_held_against_nothing(
    tmp_path: Path, gpu: Gpu, why: str
) -> None:
    system = machine(tmp_path)
    found = measure(system, host(gpus=(gpu,)), 1)
    (row,) = (row for row in found.results if row.subject == GPUS[0])
    assert (row.check, row.outcome, why in str(row.actual)) == ("bench-gpu", "skip", True)
    assert found.samples == () or all(sample.metric == "memory-copy" for sample in found.samples)


def test_what_a_link_does_under_load_is_told_by_gpu(tmp_path: Path) -> None:
    records = [
        *(
            record("load-link-speed", gpu, *[speed] * 7, unit="GT/s")
            for gpu, speed in zip(GPUS, (32.0, 16.0), strict=True)
        ),
        *(record("load-link-width", gpu, *[16.0] * 7, unit="lanes") for gpu in GPUS),
    ]
    answer = document(*json.loads(GOOD)["records"], *records)
    found = measure(machine(tmp_path, **{CHILD: answer}), host(), 1)
    assert found.links == {GPUS[0]: (32.0, 16), GPUS[1]: (16.0, 16)}
    assert not any("link" in row.check for row in found.results)


def test_a_link_that_was_not_read_is_told_of_no_gpu(tmp_path: Path) -> None:
    assert measure(machine(tmp_path), host(), 1).links == {}


@pytest.mark.parametrize(("links", "expected"), [(18, "fail"), (6, "pass")])
def test_pairs_are_held_against_their_links(tmp_path: Path, links: int, expected: str) -> None:
    answer = document(*json.loads(GOOD.replace("394.0", "131.0"))["records"])
    gpus = tuple(
        Gpu(address=a, vendor="nvidia", processes=0, peers=(Peer(address=b, kind="nvlink", links=links),))
        for a, b in (GPUS, GPUS[::-1])
    )
    found = measure(machine(tmp_path, **{CHILD: answer}), host(gpus=gpus), 1)
    assert outcomes(found)["bench-p2p-write-ce", f"{GPUS[0]}->{GPUS[1]}"] == expected


def test_beside_running_guests_nothing_loads_the_whole_host(tmp_path: Path) -> None:
    guest = RunningGuest(name="vm1", state="running")
    system = machine(tmp_path, ("fio",))
    found = measure(system, host(guests=(guest,)), 1, scratch_path="/proc")
    for check in ("bench-memory", "bench-disk"):
        (row,) = (row for row in found.results if row.check == check)
        assert (row.outcome, "vm1" in str(row.actual)) == ("skip", True)
    assert not any("memory_child" in " ".join(argv) or argv[0] == "fio" for argv in system.ran)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("!no answer within 85 s", "no answer within 85 s"),
        ("", "not a JSON object"),
        (GOOD.replace("55.3", "95.3", 1), "checksum"),
        ('{"records": []}', "checksum"),
        (document(), "gave no figure"),
        (document({"error": "no answer within 30 s", "metrics": ["h2d-ce"], "subject": GPUS[0]}), "within 30 s"),
    ],
)
def test_an_answer_that_is_none_is_unknown_and_never_a_pass(tmp_path: Path, answer: str, why: str) -> None:
    found = measure(machine(tmp_path, **{CHILD: answer}), host(), 1)
    rows = [row for row in found.results if row.check == "bench-h2d-ce"]
    assert {row.outcome for row in rows} == {"unknown"}
    assert why in str(rows[0].actual)
    assert rows[0].hint
    assert verdict_of(found.results) == "unknown"


def test_the_child_gets_free_gpus_their_nodes_and_a_limit(tmp_path: Path) -> None:
    system = machine(tmp_path)
    measure(system, host(), 1)
    (argv,) = (argv for argv in system.ran if "hosttune.bench.gpu_child" in argv)
    places = json.loads(argv[argv.index("--places") + 1])
    assert places[GPUS[0]] == {"near": [0, [0, 1, 2, 3]], "far": [1, [4, 5, 6, 7]]}
    assert places[GPUS[1]]["near"][0] == 1
    assert argv[argv.index("--gpus") + 1] == ",".join(GPUS)
    assert float(argv[argv.index("--budget") + 1]) < 100


def test_without_a_gpu_library_nvidias_tools_measure_five_times(tmp_path: Path) -> None:
    text = (CASES / "nvbandwidth/two-gpus-json.txt").read_text()
    system = machine(tmp_path, ("nvbandwidth",), **{FOUND: "\n", "nvbandwidth": text})
    found = measure(system, host(), 1)
    assert sum(argv[0] == "nvbandwidth" for argv in system.ran) == 5
    assert outcomes(found)["bench-h2d-ce", GPUS[0]] == "pass"
    assert outcomes(found)["bench-p2p-read-ce", f"{GPUS[0]}->{GPUS[1]}"] == "pass"
    assert outcomes(found)["bench-d2h-ce", GPUS[0]] == "unknown"
    (gemm,) = (row for row in found.results if row.check == "bench-gemm")
    assert (gemm.outcome, "torch" in str(gemm.actual)) == ("unknown", True)


@pytest.mark.parametrize(
    ("count", "level", "unknown"),
    [
        (1, 1, {"host-copies", "device-copy", "gemm", "burn"}),
        (2, 2, {"host-copies", "device-copy", "gemm", "burn", "peer-copy", "collectives"}),
    ],
)
def test_without_any_tool_for_them_the_figures_of_gpus_are_unknown(
    tmp_path: Path, count: int, level: int, unknown: set[str]
) -> None:
    """A level that measured no GPU must not pass; tools that look at something besides may be missing."""
    whole = host()
    one = msgspec.structs.replace(whole, gpus=whole.gpus[:count])
    found = measure(machine(tmp_path, (), **{FOUND: "\n"}), one, level)
    rows = {row.check.removeprefix("bench-"): row for row in found.results}
    assert {name for name, row in rows.items() if row.outcome == "unknown"} == unknown
    assert all("docs/benchmarks.md" in str(rows[name].hint) for name in unknown)
    if count == 1:
        assert "fewer than two" in str(rows["collectives"].actual)
    if level == 2:
        assert rows["dcgm"].outcome == rows["jitter"].outcome == "skip"
    assert verdict_of(found.results) == "unknown"


def test_a_full_run_takes_dcgms_verdicts(tmp_path: Path) -> None:
    text = (CASES / "dcgm/dcgm4-warnings.txt").read_text()
    found = measure(machine(tmp_path, ("dcgmi",), dcgmi=text), host(), 2)
    assert outcomes(found)["dcgm-software", "dcgm gpu 1"] == "fail"
    assert verdict_of(found.results) == "fail"


@pytest.mark.parametrize("path", ["scratch", "/dev/nvme0n1", "/nowhere", "/proc:/sys", "/proc/1/comm"])
def test_a_scratch_path_that_is_no_folder_is_bad_input(tmp_path: Path, path: str) -> None:
    system = machine(tmp_path, ("fio",))
    with pytest.raises(BadInput) as caught:
        measure(system, host(), 1, scratch_path=path)
    assert caught.value.where == "scratch path"
    assert not any(argv[0] == "fio" for argv in system.ran)


def test_fio_stays_in_its_scratch_folder(tmp_path: Path) -> None:
    system = machine(
        tmp_path,
        ("fio",),
        **{n: (CASES / f"fio/{n}.txt").read_text() for n in ("disk-write", "disk-read", "disk-random-read")},
    )
    (tmp_path / "scratch").mkdir()
    found = measure(system, host(), 1, scratch_path="/scratch")
    runs = [argv for argv in system.ran if argv[0] == "fio"]
    assert len(runs) == 15
    assert all("--directory=/scratch" in argv and "--unlink=1" in argv for argv in runs)
    assert outcomes(found)["bench-disk-write", "/scratch"] == "skip"  # measured, and no floor for a disk


@pytest.mark.parametrize("peer", ["", "-d", "host;rm", "a b", "host\n"])
def test_a_peer_that_is_no_host_name_is_bad_input(tmp_path: Path, peer: str) -> None:
    with pytest.raises(BadInput) as caught:
        measure(machine(tmp_path), host(), 2, peers=[peer])
    assert caught.value.where == "peers"


def test_each_port_is_measured_against_each_named_host(tmp_path: Path) -> None:
    text = (CASES / "perftest/gbits.txt").read_text()
    nics = (Nic(address="0000:1a:00.0", kind="infiniband", rdma="mlx5_0", rate_gbps=400.0),)
    system = machine(tmp_path, ("ib_write_bw",), ib_write_bw=text)
    found = measure(system, host(nics=nics), 2, peers=["host2"])
    assert outcomes(found)["bench-rdma-write", "mlx5_0->host2"] == "pass"
    assert sum(argv[0] == "ib_write_bw" for argv in system.ran) == 5


def test_jitter_of_the_guests_cpus_and_of_the_others(tmp_path: Path) -> None:
    text = (CASES / "cyclictest/debian12.txt").read_text()
    guest = RunningGuest(name="vm1", state="shut off", vcpu_pins=(VcpuPin(vcpu=0, cpus="2"), VcpuPin(vcpu=1, cpus="3")))
    system = machine(tmp_path, ("cyclictest",), cyclictest=text)
    measure(system, host(guests=(guest,)), 2)
    where = {argv[argv.index("-a") + 1] for argv in system.ran if argv[0] == "cyclictest"}
    assert where == {"2-3", "0-1,4-7"}


def test_a_fleets_median_stands_beside_the_floor(tmp_path: Path) -> None:
    fleet = (
        '[[baseline]]\nmetric = "h2d-ce"\ndevice = "10de:2335"\nkind = "fleet"\nexpected = 60.0\ntolerance = 0.02\n'
        'direction = "higher"\nunit = "GB/s"\nsource = "median of 40 hosts"\n'
    )
    found = measure(machine(tmp_path), host(), 1, fleet=fleet)
    (row,) = (row for row in found.results if (row.check, row.subject) == ("bench-h2d-ce", GPUS[0]))
    assert row.outcome == "warn"
    assert "fleet's median" in str(row.expected)
    assert "median of 40 hosts" in str(row.source)
