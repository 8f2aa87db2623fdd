"""Measurements with the memory of GPUs (GPUDirect RDMA): which ports, by which words, how judged, and what is blamed.

`ib_write_bw` is a stand-in that prints what a build with CUDA or ROCm prints (tests/cases/pairs/PROVENANCE.md): no NIC
and no GPU has run this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from pairworlds import World, measure, same

from hosttune.cluster.pairplan import PairsOptions, seconds_of
from hosttune.cluster.pairs.blame import blame
from hosttune.cluster.pairs.ends import GPU_SECONDS, check_job, command, measure_one
from hosttune.cluster.pairs.ends import measure as measure_ends
from hosttune.cluster.pairs.judging import joined, judged
from hosttune.cluster.pairs.ports import survey
from hosttune.cluster.pairs.programs import Run
from hosttune.discovery import discover
from hosttune.errors import BadInput, CommandFailed
from hosttune.machine.opening import open_system
from hosttune.model.host import Host
from hosttune.model.pairs import End, GpuMemory, Job, Pair, Port

CASES = Path(__file__).parents[2] / "cases/pairs/ib_write_bw"
HELP = (CASES / "help.txt").read_text()
WITH_CUDA = HELP + (CASES / "cuda-help.txt").read_text()
NO_DMABUF = WITH_CUDA.replace("--use_cuda_dmabuf", "")  # before 4.5-0.20
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04\n"
# The example's rails: GPU and NIC below one switch.
RAILS = {
    "ibp25s0": "0000:18:00.0", "ibp42s0": "0000:29:00.0", "ibp66s0": "0000:41:00.0", "ibp87s0": "0000:56:00.0",
    "ibp155s0": "0000:9a:00.0", "ibp171s0": "0000:aa:00.0", "ibp187s0": "0000:ba:00.0", "ibp219s0": "0000:da:00.0",
}  # fmt: skip
GPU = GpuMemory(address="0000:29:00.0", maker="nvidia")
CLIENT = End(
    rail="r0 gpu", role="client", tool="rdma", address="10.50.0.1", peer_address="10.50.0.2", port=5202, seconds=2,
    wait=1, rdma="mlx5_1", rdma_port=1, gpu=GPU,
)  # fmt: skip


# --- which ports -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example() -> Host:
    """Eight GPUs, each with a NIC below its own switch; the partition of all eight is active."""
    host = discover(open_system("@example"))
    return replace(host, gpus=tuple(replace(gpu, fabric_state="completed") for gpu in host.gpus or ()))


def ports(
    root: Path, host: Host, *, text: str | None = WITH_CUDA, peermem: bool = True, driver: str = CLOSED
) -> dict[str, Port]:
    """The ports of a host whose `ib_write_bw --help` says this; each has an address."""
    addresses = [
        {"ifname": name, "addr_info": [{"scope": "global", "local": f"10.1.{number}.1"}]}
        for number, name in enumerate(RAILS)
    ]
    files = {".hosttune/commands/ip-j-address": json.dumps(addresses), "usr/bin/ib_write_bw": ""}
    files |= {"proc/driver/nvidia/version": driver} if driver else {}
    files |= {} if text is None else {".hosttune/commands/ib-write-bw-help": text}
    files |= {"sys/module/nvidia_peermem/refcnt": "0\n"} if peermem else {}
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return {port.rail: port for port in survey(open_system(str(root)), host, tuple(RAILS)).ports}


def test_each_port_is_measured_with_the_gpu_below_its_switch(tmp_path: Path, example: Host) -> None:
    found = ports(tmp_path, example)
    assert {rail: port.gpu.address for rail, port in found.items() if port.gpu} == {
        f"{rail} gpu": gpu for rail, gpu in RAILS.items()
    }
    assert len(found) == 16
    own, of_gpu = found["ibp42s0"], found["ibp42s0 gpu"]
    assert (own.gpu, own.gpu_why) == (None, None)
    assert of_gpu == replace(own, rail="ibp42s0 gpu", gpu=of_gpu.gpu)
    assert of_gpu.gpu is not None
    assert not of_gpu.gpu.dmabuf


@pytest.mark.parametrize(
    ("given", "why"),
    [({"text": HELP}, "built without --use_cuda_bus_id"),
     ({"text": None}, "was not read"),
     ({"text": "sh: 1: exec: ib_write_bw: not found\n"}, "was not read"),
     ({"peermem": False}, "its driver is not the open one"),
     ({"peermem": False, "driver": ""}, "/proc/driver/nvidia/version was not read"),
     ({"peermem": False, "driver": OPEN, "text": NO_DMABUF}, "without --use_cuda_dmabuf")],
)  # fmt: skip
def test_a_port_whose_gpu_cannot_be_measured_says_why(
    tmp_path: Path, example: Host, given: Mapping[str, object], why: str
) -> None:
    found = ports(tmp_path, example, **given)  # type: ignore[arg-type]  # its own keywords
    assert set(found) == set(RAILS)
    for port in found.values():
        assert why in str(port.gpu_why)


def test_dmabuf_is_used_where_the_driver_is_the_open_one(tmp_path: Path, example: Host) -> None:
    found = ports(tmp_path, example, peermem=False, driver=OPEN)
    assert all(port.gpu.dmabuf for port in found.values() if port.gpu)
    assert len(found) == 16


@pytest.mark.parametrize(
    ("gpu", "driver", "why"),
    [({"processes": 2}, "nvidia", "2 processes compute on it"), ({}, "vfio-pci", "on vfio-pci, for a guest"),
     ({}, None, "no driver holds it")],
)  # fmt: skip
def test_a_gpu_that_is_in_use_or_not_the_hosts_is_left_alone(
    tmp_path: Path, example: Host, gpu: Mapping[str, object], driver: str | None, why: str
) -> None:
    address = RAILS["ibp66s0"]
    host = replace(
        example,
        gpus=tuple(replace(one, **gpu) if one.address == address else one for one in example.gpus),
        pci=tuple(replace(one, driver=driver) if one.address == address else one for one in example.pci),
    )
    found = ports(tmp_path, host)
    assert "ibp66s0 gpu" not in found
    assert why in str(found["ibp66s0"].gpu_why)
    assert len(found) == 15


def test_a_virtual_function_that_is_named_has_the_gpu_of_its_switch(tmp_path: Path, example: Host) -> None:
    nics = tuple(replace(nic, physfn="0000:19:00.0") if nic.rdma == "mlx5_3" else nic for nic in example.nics)
    found = ports(tmp_path, replace(example, nics=nics))
    assert found["ibp87s0 gpu"].gpu == GpuMemory(
        address=RAILS["ibp87s0"], maker="nvidia", uuid="GPU-00000000-0000-4000-8000-000000000056"
    )


def test_gpus_and_nics_below_one_switch_belong_together_in_their_order(tmp_path: Path, example: Host) -> None:
    """Two rails moved below one switch: the first NIC has the first GPU, the second the second."""
    moved = {"0000:29:00.0": "0000:18:00.0", "0000:2a:00.0": "0000:19:00.0"}
    parents = {device.address: device.parent for device in example.pci}
    pci = tuple(
        replace(one, parent=parents[moved[one.address]]) if one.address in moved else one for one in example.pci
    )
    found = ports(tmp_path, replace(example, pci=pci))
    assert {rail: port.gpu.address for rail, port in found.items() if port.gpu} == {
        f"{rail} gpu": gpu for rail, gpu in RAILS.items()
    }


def test_a_port_without_a_gpu_below_its_switch(tmp_path: Path, example: Host) -> None:
    """One of eight is no rail of a GPU, and says nothing. If all are so (a guest with a flat topology), all say it."""
    one = tuple(replace(it, parent=None) if it.address == "0000:19:00.0" else it for it in example.pci)
    found = ports(tmp_path / "one", replace(example, pci=one))
    assert len(found) == 15
    assert (found["ibp25s0"].gpu, found["ibp25s0"].gpu_why) == (None, None)
    flat = tuple(replace(it, parent=None) for it in example.pci)
    found = ports(tmp_path / "flat", replace(example, pci=flat))
    assert set(found) == set(RAILS)
    assert all("none of the GPUs is below" in str(port.gpu_why) for port in found.values())
    others = tuple(replace(gpu, vendor="habana") for gpu in example.gpus)  # they carry ports to other hosts themselves
    for name, gpus in (("none", ()), ("others", others)):
        assert not any(port.gpu_why for port in ports(tmp_path / name, replace(example, gpus=gpus)).values())


# --- one end ---------------------------------------------------------------------------------------------------------


def test_the_words_choose_the_gpu_and_the_way_to_its_memory() -> None:
    words, limit = command(CLIENT, 10)
    assert words[-2:] == ("--use_cuda_bus_id=0000:29:00.0", "10.50.0.2")
    assert limit == command(replace(CLIENT, gpu=None), 10)[1] + GPU_SECONDS
    by_dmabuf, _ = command(replace(CLIENT, gpu=replace(GPU, dmabuf=True), role="server"), 10)
    assert by_dmabuf[-2:] == ("--use_cuda_bus_id=0000:29:00.0", "--use_cuda_dmabuf")  # in this order: its issue 336
    rocm, _ = command(replace(CLIENT, gpu=GpuMemory(address="0000:09:00.0", maker="amd", uuid="GPU-1f2e")), 10)
    at = rocm.index("env")
    assert rocm[at : at + 5] == ("env", "ROCR_VISIBLE_DEVICES=GPU-1f2e", "stdbuf", "-oL", "ib_write_bw")
    assert rocm[-2:] == ("--use_rocm=0", "10.50.0.2")


@pytest.mark.parametrize(
    "gpu",
    [replace(GPU, address="0000:29:00.0 -h"), replace(GPU, maker="nobody"), replace(GPU, maker="intel"),
     GpuMemory(address="0000:09:00.0", maker="amd"), GpuMemory(address="0000:09:00.0", maker="amd", uuid="GPU-1;x")],
)  # fmt: skip
def test_a_job_with_a_gpu_that_has_no_words_is_refused(gpu: GpuMemory) -> None:
    with pytest.raises(BadInput, match="GPU") as caught:
        check_job(Job(ends=(replace(CLIENT, gpu=gpu),)))
    assert caught.value.where == "job: ends[0].gpu"


def printed(text: str, failed: bool = False) -> Run:
    """A machine whose ib_write_bw prints this."""

    def run(argv: tuple[str, ...], limit: float) -> str:
        if failed:
            raise CommandFailed(argv, "exit status 1", text)
        return text

    return run


def test_a_figure_counts_only_for_the_gpu_that_the_program_says_it_used() -> None:
    table = (CASES / "gid-index-client.txt").read_text()
    cuda = (CASES / "cuda-begin.txt").read_text()
    found = measure_one(CLIENT, printed(cuda + table))
    assert (found.outcome, found.gbps) == ("measured", 0.17)
    server = measure_one(replace(CLIENT, role="server"), printed(cuda + (CASES / "gid-index-server.txt").read_text()))
    assert joined(found, server).outcome == "measured"
    other = measure_one(CLIENT, printed(cuda.replace("device No. 1", "device No. 2") + table))
    assert (other.outcome, other.why) == ("not-understood", "it used the GPU at 41:00, not 0000:29:00.0")
    silent = measure_one(CLIENT, printed(table))  # host memory, by a build that ignores the option
    assert silent.outcome == "not-understood"
    assert "does not say" in str(silent.why)


def test_the_same_with_rocm() -> None:
    table, rocm = (CASES / "gid-index-client.txt").read_text(), (CASES / "rocm-begin.txt").read_text()
    end = replace(CLIENT, gpu=GpuMemory(address="0000:09:00.0", maker="amd", uuid="GPU-1f2e"))
    assert measure_one(end, printed(rocm + table)).outcome == "measured"
    assert measure_one(end, printed(rocm.replace("0x9", "0xa") + table)).outcome == "not-understood"


@pytest.mark.parametrize(
    "said",
    ["cuInit(0) returned 999", "cuMemAlloc error=2", "Couldn't allocate MR with error=14",
     "DMA-BUF is not supported on this GPU", "Couldn't init GPU context: 1",
     "cuDeviceGetByPCIBusId failed with error: 101; Failed to get PCI Bus ID (0000:29:00.0)"],
)  # fmt: skip
def test_memory_that_cannot_be_used_is_said_in_the_programs_words(said: str) -> None:
    text = (
        CASES / "cuda-begin.txt"
    ).read_text() + f"{said}\n Couldn't create IB resources\ndestroying current CUDA Ctx\n"
    found = measure_one(CLIENT, printed(text, failed=True))
    assert (found.outcome, found.why) == ("tool-failed", f"GPU 0000:29:00.0, by the peer memory module: {said}")


def test_a_driver_that_does_not_start_is_not_the_networks_fault() -> None:
    """TCP connects first; then the GPU's driver starts. Ended there by the time limit, a peer was met."""
    begun = (CASES / "cuda-begin.txt").read_text()

    def run(argv: tuple[str, ...], limit: float) -> str:
        raise CommandFailed(argv, "exit status 124", begun)

    for role in ("client", "server"):
        found = measure_one(replace(CLIENT, role=role), run)
        assert (found.outcome, str(found.why)[:16]) == ("tool-failed", "exit status 124:")


def test_a_port_is_never_measured_with_both_memories_at_once() -> None:
    """All ports at once: those with host memory, and when the last of these has ended, those with GPU memory."""
    running: list[bool] = []
    mixed: list[set[bool]] = []

    def run(argv: tuple[str, ...], limit: float) -> str:
        running.append(any("use_cuda" in word for word in argv))
        mixed.append(set(running))
        running.pop()
        raise CommandFailed(argv, "exit status 1", "")

    host = replace(CLIENT, rail="r0", gpu=None)
    ends = (host, CLIENT, replace(host, rail="r1"), replace(CLIENT, rail="r1 gpu"))
    found = measure_ends(ends, run, together=True)
    assert [end.rail for end in found] == [end.rail for end in ends]
    assert mixed == [{False}, {False}, {True}, {True}]


# --- judging and blame -----------------------------------------------------------------------------------------------


def pair(sender: str, receiver: str, gbps: float, *, gpu: bool = False, rate: float | None = 400.0) -> Pair:
    rail, memory = ("r0 gpu", "gpu") if gpu else ("r0", "host")
    return Pair(
        sender=sender, receiver=receiver, rail=rail, memory=memory, round=1, state="unknown", outcome="measured",  # type: ignore[arg-type]
        gbps=gbps, rate_gbps=rate,
    )  # fmt: skip


def test_gpu_memory_has_a_median_of_its_own_and_is_held_against_host_memory() -> None:
    pairs = [pair("a", peer, 390.0) for peer in "bcd"] + [pair("a", peer, 370.0, gpu=True) for peer in "bcd"]
    assert {one.state for one in judged(pairs, floor=0.9, against=("rate", "median"))} == {"good"}
    assert {one.expected for one in judged(pairs, floor=0.99, against=("median",))} == {0.99 * 390.0}
    two = judged(
        [pair("a", "b", 390.0, rate=None), pair("a", "b", 200.0, gpu=True, rate=None)], floor=0.9, against=("rate",)
    )
    assert [one.state for one in two] == ["unknown", "low"]
    assert two[1].expected == pytest.approx(351.0)


def test_gpus_are_blamed_only_for_what_host_memory_does_not_show() -> None:
    hosts = (("a", "b"), ("a", "c"), ("b", "c"))
    pairs = [pair(one, two, 390.0) for one, two in hosts]
    pairs += [pair(one, two, 120.0 if one == "a" else 385.0, gpu=True) for one, two in hosts]
    (fault,) = blame(judged(pairs, floor=0.9, against=("rate",)))
    assert (fault.kind, fault.memory, fault.hosts, fault.rail) == ("port", "gpu", ("a",), "r0 gpu")
    assert "down to 120 Gb/s (expected 360)" in fault.words
    assert "between NIC and GPU" in fault.words
    network = [pair(one, two, 120.0 if one == "a" else 390.0, gpu=gpu) for one, two in hosts for gpu in (False, True)]
    (fault,) = blame(judged(network, floor=0.9, against=("rate",)))
    assert (fault.kind, fault.memory, fault.hosts, fault.rail) == ("port", "host", ("a",), "r0")


# --- whole runs ------------------------------------------------------------------------------------------------------

RDMA = PairsOptions(tool="rdma", seconds=2)


def test_a_run_names_the_host_whose_way_to_the_gpu_is_slow(tmp_path: Path) -> None:
    hosts = same(4, rails=2)
    gpus: dict[tuple[str, str], float | str] = {(host, rail): 1.0 for host, rails in hosts.items() for rail in rails}
    world = World(hosts, gpus={**gpus, ("h0002", "r1"): 0.4})
    done = measure(world, tmp_path, RDMA)
    assert [(fault.kind, fault.memory, fault.hosts, fault.rail) for fault in done.report.faults] == [
        ("port", "gpu", ("h0002",), "r1 gpu")
    ]
    assert (done.report.verdict, len(done.report.pairs), done.exit_code) == ("fail", 24, 1)
    assert {one.rail: one.low for one in done.report.rails} == {"r0": 0, "r0 gpu": 0, "r1": 0, "r1 gpu": 3}
    slow_port = World(hosts, gpus=gpus, slow={("h0001", "r0"): 0.5})
    found = measure(slow_port, tmp_path / "second", RDMA).report
    assert [(fault.memory, fault.hosts, fault.rail) for fault in found.faults] == [("host", ("h0001",), "r0")]


def test_what_is_not_measured_with_gpus_is_said_and_no_pass(tmp_path: Path) -> None:
    hosts = same(3)
    gpus: dict[tuple[str, str], float | str] = {(host, "r0"): 1.0 for host in hosts}
    assert measure(World(hosts, gpus=gpus), tmp_path / "all", RDMA).report.verdict == "pass"
    built = "ib_write_bw is built without --use_cuda_bus_id"
    one = measure(World(hosts, gpus={**gpus, ("h0001", "r0"): built}), tmp_path / "one", RDMA).report
    assert one.verdict == "warn"
    assert f"GPU memory (GPUDirect) is not measured on h0001 r0: {built}" in one.notes
    lonely = {**gpus, ("h0001", "r0"): built, ("h0002", "r0"): built}
    two = measure(World(hosts, gpus=lonely), tmp_path / "two", RDMA).report
    assert two.verdict == "warn"
    assert "GPU memory (GPUDirect) is not measured on h0000 r0: no other host has such a port" in two.notes
    assert {pair.memory for pair in two.pairs} == {"host"}
    without = measure(World(hosts, gpus=gpus), tmp_path / "none", replace(RDMA, gpu=False)).report
    assert (without.verdict, {pair.memory for pair in without.pairs}) == ("warn", {"host"})
    assert "GPU memory (GPUDirect) is not measured on h0000 r0, h0001 r0, h0002 r0: --no-gpu" in without.notes
    tcp = measure(World(hosts, gpus=lonely), tmp_path / "tcp").report
    assert (tcp.verdict, tcp.notes) == ("pass", ())


@pytest.mark.parametrize(("together", "times"), [(False, 4), (True, 2)])
def test_the_estimate_and_the_limit_of_a_host_count_its_gpus(tmp_path: Path, *, together: bool, times: int) -> None:
    hosts = same(2, rails=2)
    world = World(hosts, gpus={(host, rail): 1.0 for host, rails in hosts.items() for rail in rails})
    done = measure(world, tmp_path, replace(RDMA, together=together))
    job, _ = (jobs["h0000"] for jobs in world.jobs if jobs)  # it sends, then it receives
    assert [end["rail"] for end in job["ends"]] == ["r0", "r0 gpu", "r1", "r1 gpu"]
    assert len({end["port"] for end in job["ends"]}) == 4
    alone = seconds_of({**job, "ends": job["ends"][:1]}) - 30
    more = GPU_SECONDS * (1 if together else 2)
    assert seconds_of(job) == 30 + times * alone + more
    assert done.report.minutes > 0
