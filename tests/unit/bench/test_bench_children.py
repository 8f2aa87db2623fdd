"""The children: supervised jobs, the environment that they inherit, where their memory lies."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hosttune.bench import gpu_child
from hosttune.bench.gpu_child import collectives
from hosttune.bench.gpu_jobs import GIB, LEVELS, LoadableGpu, collective_job, size_name, worker_jobs
from hosttune.bench.link import under_load
from hosttune.bench.metrics import metric_of
from hosttune.bench.parse import child
from hosttune.bench.placement import NotPlaced, nodes_of, placed
from hosttune.bench.supervise import Measurement, Record, run_jobs
from hosttune.machine.live import LiveMachine

KEPT = {
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_DEBUG": "WARN",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


def job(kind: str, **options: Any) -> Measurement:
    return Measurement(kind, "gpu0", (f"metric-{kind}",), options, seconds=options.pop("seconds", 5.0))


def work(job: Measurement) -> Iterator[Record]:
    if job.kind == "hang":
        time.sleep(60)
    if job.kind == "crash":
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGSEGV)
    if job.kind == "fail":
        raise RuntimeError("CUDA error: unspecified launch failure")
    if job.kind == "leave":
        os._exit(0)
    if job.kind == "noise":
        os.write(1, b"NCCL INFO to standard output\n")
    yield {"metric": job.kind, "pid": os.getpid(), "environment": {name: os.environ.get(name) for name in KEPT}}


def ran(*kinds: str, seconds: float = 5.0) -> list[Record]:
    jobs = [job(kind, seconds=0.3 if kind == "hang" else 5.0) for kind in kinds]
    return list(run_jobs(jobs, work, until=time.monotonic() + seconds))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("hang", "no answer within 0.3 s"),
        ("crash", "signal 11 (SIGSEGV)"),
        ("fail", "RuntimeError: CUDA error: unspecified launch failure"),
        ("leave", "without a result"),
    ],
)
def test_a_job_that_goes_wrong_is_lost_by_name_and_the_rest_is_done(kind: str, why: str) -> None:
    first, wrong, last = ran("one", kind, "two")
    assert (first["metric"], last["metric"]) == ("one", "two")
    assert first["pid"] != last["pid"]
    assert why in wrong["error"]
    assert (wrong["metrics"], wrong["subject"]) == ([f"metric-{kind}"], "gpu0")


def test_when_time_is_up_what_was_not_run_says_so() -> None:
    assert [record["error"] for record in ran("one", "two", seconds=-1)] == [
        "not run: the time for all benchmarks was used up"
    ] * 2


def test_all_jobs_that_go_well_share_one_worker() -> None:
    assert len({record["pid"] for record in ran("one", "two", "three")}) == 1


def test_what_a_library_prints_is_no_record(capfd: pytest.CaptureFixture[str]) -> None:
    assert [record["metric"] for record in ran("noise")] == ["noise"]
    out, err = capfd.readouterr()
    assert (out, "NCCL INFO" in err) == ("", True)


def test_load_is_watched_while_it_lasts() -> None:
    seen: list[str] = []

    def watch(job: Measurement) -> Iterator[Record]:
        seen.append(job.kind)
        yield {"metric": "watched"}

    jobs = [Measurement("one", "gpu0", (), {}), Measurement("two", "gpu0", (), {}, load=True)]
    records = list(run_jobs(jobs, work, until=time.monotonic() + 5, watch=watch))
    assert "two" in seen
    assert {"metric": "watched"} in records


# --- environment ---------------------------------------------------------------------------------------------


def test_commands_and_workers_inherit_the_variables_of_nccl_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEPT.items():
        monkeypatch.setenv(name, value)
    (record,) = ran("one")
    assert record["environment"] == KEPT
    script = f"import json, os; print(json.dumps({{n: os.environ.get(n) for n in {list(KEPT)!r}}}))"
    assert json.loads(LiveMachine().run((sys.executable, "-c", script))) == KEPT


STUB = """
import json, os
__version__ = json.dumps({n: os.environ.get(n) for n in %r})
class version: cuda = "13.0"
class cuda:
    class nccl:
        version = staticmethod(lambda: (2, 28, 9))
    device_count = staticmethod(lambda: 1)
    @staticmethod
    def get_device_properties(index):
        class seen:
            pci_domain_id, pci_bus_id, pci_device_id, uuid = 0, 0x19, 0, "0123"
            name, total_memory = "H200", 1 << 37
        return seen
"""


def test_the_childs_library_sees_them_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(STUB % (list(KEPT),))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(gpu_child.__file__).parents[2]}")
    for name, value in KEPT.items():
        monkeypatch.setenv(name, value)
    argv = (sys.executable, "-m", "hosttune.bench.gpu_child", "--kinds", "none")
    document = json.loads(LiveMachine().run(argv, timeout=60))
    assert json.loads(document["versions"]["torch"]) == KEPT
    assert document["devices"][0]["address"] == "0000:19:00.0"
    assert document["versions"]["nccl"] == "2.28.9"
    assert child.parse(json.dumps(document)).samples == ()


def test_ranks_of_a_collective_that_cannot_start_are_one_lost_job() -> None:
    """No PyTorch here: each rank says so, and all end."""
    devices = [LoadableGpu(index, f"0000:{index:02x}:00.0", 80 * GIB) for index in range(2)]
    (record,) = collectives(collective_job(1, devices), time.monotonic() + 30)
    assert "error" in record
    assert record["subject"] == "2 GPUs"
    assert "all-reduce-4gib" in record["metrics"]


# --- what is measured ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_measures_each_figure_at_least_five_times(level: int) -> None:
    devices = [LoadableGpu(index, f"0000:{index:02x}:00.0", 140 * GIB, (0, (0,)), (1, (1,))) for index in range(4)]
    kinds = frozenset(("host-copies", "device-copy", "peer-copy", "gemm", "burn"))
    jobs = [*worker_jobs(level, devices, kinds, 60), collective_job(level, devices)]
    assert all(metric_of(metric) is not None for job in jobs for metric in job.metrics)
    for found in jobs:
        pace = found.options.get("pace", found.options)
        assert found.kind == "burn" or pace["runs"] >= 5
    pairs = [found.subject for found in jobs if found.kind == "peer-copy"]
    assert len(set(pairs)) == 12
    assert {"h2d-ce", "h2d-ce-far"} <= {metric for found in jobs for metric in found.metrics}
    (burn,) = (found for found in jobs if found.kind == "burn")
    assert (burn.load, burn.options["duration"]) == (True, {1: 6.0, 2: 20.0, 3: 60}[level])


def test_sizes_that_do_not_fit_the_memory_are_left_out() -> None:
    small = [LoadableGpu(index, f"gpu{index}", 4 * GIB) for index in range(2)]
    assert max(collective_job(2, small).options["sizes"]) == GIB
    assert [size_name(size) for size in (GIB, 3 << 20, 1 << 10, 12)] == ["1gib", "3mib", "1kib", "12b"]


QUERY = """00000000:19:00.0, 1980, 3201, 694.27, 63
00000000:3B:00.0, [N/A], 3201, [Not Supported], 55
damaged
"""


def test_what_nvidia_smi_tells_under_load() -> None:
    records = list(gpu_child.loaded(QUERY))
    found: Mapping[tuple[str, str], list[float]] = {(row["metric"], row["subject"]): row["values"] for row in records}
    assert found["load-power", "0000:19:00.0"] == [694.27]
    assert ("load-power", "0000:3b:00.0") not in found
    assert found["load-temperature", "0000:3b:00.0"] == [55.0]


# --- the link under load -------------------------------------------------------------------------------------

ADDRESS = "0000:19:00.0"


def link_records(
    speeds: list[str], busy: list[bool] | None = None, address: str = ADDRESS, width: str = "16\n"
) -> list[Record]:
    """What is told of a link whose speed reads so in turn, while copies are under way as `busy` says in turn."""
    under_way = iter(busy or [True] * 100)

    def read(path: str) -> str:
        assert path.startswith(f"/sys/bus/pci/devices/{ADDRESS}/current_link_")
        if path.endswith("speed") and not speeds:
            raise OSError("no such file")
        return speeds.pop(0) if path.endswith("speed") else width

    return list(under_load(address, lambda: None, lambda: next(under_way), read))


def test_a_link_is_read_while_copies_run() -> None:
    found = link_records(["2.5 GT/s PCIe\n"] + ["32.0 GT/s PCIe\n"] * 6)
    assert found == [
        {"metric": "load-link-speed", "subject": ADDRESS, "unit": "GT/s", "values": [2.5] + [32.0] * 6},
        {"metric": "load-link-width", "subject": ADDRESS, "unit": "lanes", "values": [16.0] * 7},
    ]
    text = json.dumps({"records": found, "sum": gpu_child.checksum(found)})
    assert {row.metric for row in child.parse(text).samples} == {"load-link-speed", "load-link-width"}


def test_what_was_read_after_the_copies_ended_does_not_count() -> None:
    busy = [True, False] * 2 + [True] * 20
    found = link_records(["2.5 GT/s PCIe\n"] * 2 + ["32.0 GT/s PCIe\n"] * 7, busy)
    assert found[0]["values"] == [32.0] * 7


@pytest.mark.parametrize(
    ("speeds", "address", "width", "why"),
    [
        (["32.0 GT/s PCIe\n"] * 6, ADDRESS, "16\n", "no such file"),
        (["Unknown\n"], ADDRESS, "16\n", "no speed and width"),
        (["32.0 GT/s PCIe\n"], ADDRESS, "0\n", "no speed and width"),
        (["32.0 GT/s PCIe\n"], ADDRESS, "63\n", "no speed and width"),
        ([], "GPU-0123", "16\n", "its PCI address is not known"),
    ],
)
def test_a_link_that_cannot_be_read_is_told(speeds: list[str], address: str, width: str, why: str) -> None:
    (found,) = link_records(speeds, address=address, width=width)
    assert (found["metric"], why in found["skip"]) == ("load-link-speed", True)


def test_only_copies_from_the_near_node_read_the_link() -> None:
    devices = [LoadableGpu(0, ADDRESS, 140 * GIB, (0, (0,)), (1, (1,)))]
    jobs = list(worker_jobs(1, devices, frozenset(("host-copies",)), 60))
    assert [job.options.get("link") for job in jobs] == [ADDRESS, None]


# --- placement -----------------------------------------------------------------------------------------------


def test_memory_is_proven_to_lie_where_it_was_asked_for() -> None:
    import ctypes
    import mmap

    before = os.sched_getaffinity(0)
    cpu = min(before)
    with placed([cpu], 0), mmap.mmap(-1, 1 << 20) as memory:
        assert os.sched_getaffinity(0) == {cpu}
        place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert nodes_of(place, 1 << 20) == frozenset()
        ctypes.memset(place, 1, 1 << 20)
        assert nodes_of(place, 1 << 20) == {0}
    assert os.sched_getaffinity(0) == before


def test_a_node_that_is_not_there_is_refused_and_everything_put_back() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(NotPlaced, match="node 1000"), placed([min(before)], 1000):
        pass
    assert os.sched_getaffinity(0) == before


def test_the_memory_policy_of_before_is_put_back() -> None:
    script = (
        "import ctypes\n"
        "from hosttune.bench import placement\n"
        "only_node_0 = placement._Mask(1)\n"
        "placement._call('set_mempolicy', 1, only_node_0, 1024)\n"  # MPOL_PREFERRED
        "with placement.placed((), 0):\n"
        "    inside = placement._memory_policy()[0]\n"
        "mode, nodes = placement._memory_policy()\n"
        "print(inside, mode, *nodes)\n"
    )
    assert LiveMachine().run((sys.executable, "-c", script)).split() == ["2", "1", "1", *["0"] * 15]


def test_a_matrix_of_memory_is_measured() -> None:
    nodes = json.dumps({"cpus": {"0": [min(os.sched_getaffinity(0))]}, "memory": [0, 1000]})
    argv = ("-m", "hosttune.bench.memory_child", "--nodes", nodes, "--run-seconds", "0.02")
    answer = child.parse(LiveMachine().run((sys.executable, *argv), timeout=60))
    assert [row.subject for row in answer.samples] == ["node0->node0"] * 5
    assert [(row.metric, row.subject) for row in answer.lost] == [("memory-copy", "node0->node1000")]
    assert "node 1000" in answer.lost[0].why
