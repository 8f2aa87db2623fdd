"""Logs as tools print them: read, refused by name when cut or of another tool, and joined without guessing."""

from __future__ import annotations

import contextlib
import random
import re
import time
import tracemalloc
from pathlib import Path

import pytest
from msgspec.structs import replace

from hosttune.errors import BadInput
from hosttune.model.measured import Measured
from hosttune.report.prediction import diagnosis_report
from hosttune.rules.causes import diagnose
from hosttune.rules.causes.logs import read_log
from hosttune.rules.causes.merging import merge
from hosttune.rules.causes.search import search
from hosttune.rules.causes.stated import SPOKEN

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "cases/bench"

# After NVIDIA/nccl src/init.cc, src/transport/net_ib and p2p.cc; the names are invented.
DEBUG = """\
node1:100:200 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0,mlx5_1.
node1:100:200 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
node1:100:200 [0] NCCL INFO comm 0x55 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
node1:100:200 [0] NCCL INFO NVLS multicast support is not available on dev 0
node1:100:200 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0
node1:100:200 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
"""
TOPOLOGY = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPHB\tPIX\t0-31\t0\t\tN/A
GPU1\tPHB\t X \tSYS\t0-31\t0\t\tN/A
NIC0\tPIX\tSYS\t X \t\t\t\t

Legend:

  NIC0: mlx5_0
"""
LSPCI = """\
17:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tCapabilities: [148 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+
18:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x8 (downgraded)
29:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tDevCtl:\tCorrErr- NonFatalErr- FatalErr- UnsupReq-
\t\t\tRlxdOrd- ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-
\t\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x16
\t\tATSCtl:\tEnable-, Smallest Translation Unit: 00
"""


def read(text: str) -> Measured:
    return read_log(text, "a.log")[0]


def test_nccl_debug() -> None:
    found = read(DEBUG)
    assert (found.setup.hosts, found.setup.gpus_per_host) == (2, 8)
    assert found.setup.nics is not None
    assert found.setup.nics.count == 2
    assert found.setup.environment == {"NCCL_IB_HCA": "mlx5_0,mlx5_1"}
    seen = found.observations
    assert (seen.transport, seen.gpudirect_rdma, seen.nvls) == ("ib", False, False)
    assert read(DEBUG.replace("via NET/IB/0", "via NET/IB/0/GDRDMA")).observations.gpudirect_rdma is True
    socket = DEBUG.replace("via NET/IB/0", "via NET/Socket/0")
    assert read(socket).observations.transport == "socket"


def test_a_topology_matrix() -> None:
    found = read(TOPOLOGY)
    assert found.setup.gpus_per_host == 2
    assert found.setup.nvlinks_per_gpu == 0
    assert (found.observations.p2p, found.observations.gpu_nic_path) == ("pcie", "SYS")


def test_a_matrix_that_head_cut() -> None:
    """The rows that are left say what holds for their GPUs; one that reaches all over switches is as the others."""
    rows = TOPOLOGY.splitlines()
    found = read("\n".join(row for row in rows if not row.startswith("GPU1\t")) + "\n")
    assert (found.setup.gpus_per_host, found.setup.nvlinks_per_gpu) == (2, None)
    assert (found.observations.p2p, found.observations.gpu_nic_path) == (None, None)
    assert read("\n".join(row for row in rows if not row.startswith("NIC0\t")) + "\n").observations.p2p == "pcie"
    names = "".join(f"\tGPU{number}" for number in range(8))
    links = "\tNV18" * 7
    switched = read(f"{names}\tCPU Affinity\nGPU0\t X {links}\t0-47\n")
    assert (switched.setup.nvswitch, switched.setup.nvlinks_per_gpu, switched.observations.p2p) == (True, 18, "nvlink")
    with pytest.raises(BadInput, match="no row"):
        read(f"{names}\tCPU Affinity\n")


def test_lspci() -> None:
    seen = read(LSPCI).observations
    assert seen.link is not None
    assert (seen.link.width, seen.link.max_width) == (8, 16)
    assert (seen.acs_redirect, seen.ats, seen.relaxed_ordering, seen.max_read_request_bytes) == (
        True,
        False,
        False,
        512,
    )
    assert diagnose(read(LSPCI)).causes[0].cause == "pcie-link-degraded"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (LSPCI.replace("[60] Express (v2) Endpoint, MSI 00", "<access denied>"), "access denied"),
        (LSPCI.splitlines()[0] + "\n\tControl: I/O-\n", "no capabilities"),
        (f"$ lspci | grep NVIDIA\n{LSPCI.splitlines()[0]}\n", "no capabilities"),
    ],
)
def test_lspci_that_shows_too_little_names_nothing_and_says_what_to_run(text: str, what: str) -> None:
    measured, _, (doubt, *_) = read_log(text, "a.log")
    assert measured == Measured(version=1)
    assert what in doubt.why
    assert "run lspci -vvv as root" in doubt.why
    with pytest.raises(BadInput, match="cut in the middle"):
        read(LSPCI[:-10])


def test_nccl_tests_with_its_machine() -> None:
    found = read((BENCH / "nccl/all-reduce-a100.txt").read_text())
    assert (found.setup.hosts, found.setup.gpus_per_host) == (1, 8)
    diagnosis = diagnose(found)
    assert {one.metric for one in diagnosis.figures} == {"all-reduce-busbw"}
    assert {one.verdict for one in diagnosis.figures} == {"expected"}
    assert diagnosis.causes == ()
    gather = read((BENCH / "nccl/all-gather-a100.txt").read_text())
    assert {one.metric for one in gather.figures} == {"all-gather-busbw"}


def test_nvbandwidth_and_perftest() -> None:
    found = read((BENCH / "nvbandwidth/hopper-8gpu-d2d.txt").read_text())
    assert {one.metric for one in found.figures} == {"p2p"}
    (port,) = read((BENCH / "perftest/gbits.txt").read_text()).figures
    assert (port.metric, port.unit) == ("rdma-write", "Gb/s")


@pytest.mark.parametrize(
    ("name", "what"),
    [("fio/disk-write.txt", "writes"), ("mlc/two-nodes.txt", "not the output")],
)
def test_what_a_diagnosis_cannot_use_is_refused_by_name(name: str, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        read((BENCH / name).read_text())


WHOLE = {
    "debug": DEBUG, "topology": TOPOLOGY, "lspci": LSPCI,
    **{name: (BENCH / name).read_text() for name in (
        "nccl/all-reduce-a100.txt", "fio/disk-read.txt", "nvbandwidth/two-gpus-json.txt", "perftest/gbits.txt")},
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_log_that_is_cut_is_refused_or_shows_no_more_than_the_whole(name: str) -> None:
    text = WHOLE[name]
    whole = {(one.metric, one.subject, one.size_bytes, one.value) for one in read(text).figures}
    for end in random.Random(7).sample(range(len(text)), 25):
        try:
            found = read(text[:end])
        except BadInput:
            continue
        assert {(one.metric, one.subject, one.size_bytes, one.value) for one in found.figures} <= whole


def test_whole_rows_of_a_table_without_its_end_count() -> None:
    text = WHOLE["nccl/all-reduce-a100.txt"]
    assert read(text[: text.index("# Out of bounds")]) == read(text)


def test_sources_that_differ_are_named_and_not_used() -> None:
    one = Measured.from_yaml("{version: 1, setup: {gpu: NVIDIA H200, hosts: 1}, observations: {ats: true}}")
    other = Measured.from_yaml("{version: 1, setup: {gpu: H200, hosts: 2}, observations: {ats: true}}")
    found, doubts = merge([("a", one), ("b", other)])
    assert (found.setup.gpu, found.setup.hosts, found.observations.ats) == ("NVIDIA H200", None, True)
    assert [(doubt.where, doubt.why) for doubt in doubts] == [("b: setup.hosts", "hosts: 1 and 2")]


@pytest.mark.parametrize("pattern", SPOKEN)
def test_fixed_letters_find_what_the_pattern_finds(pattern: str) -> None:
    for name in WHOLE:
        text = WHOLE[name]
        found, expected = search(pattern, text), re.search(pattern, text)
        assert (found and found.span()) == (expected and expected.span())


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("abcd.?efghi", "abcdefghi"), (r"x\.cc:\d{1,3} abcd", "x.cc:12 abcd"), ("(?:abcd|e)f|ghijk", "ef"),
     ("(?i:abcdef)", "ABCDEF"), ("abcde{0,2}?", "abcd"), (r"[\]x](?=abcd)|12345", "]abcd"), ("abcdef?", "abcde")],
)  # fmt: skip
def test_no_match_is_lost_with_fixed_letters(pattern: str, text: str) -> None:
    assert search(pattern, text) is not None


def test_copies_by_sms_to_hosts_are_not_judged_and_that_is_said() -> None:
    """The form of NVIDIA/nvbandwidth issue 24."""
    table = "memcpy SM CPU(row) -> GPU(column) bandwidth (GB/s)\n           0\n 0     35.19\n"
    text = f"Running host_to_device_memcpy_sm.\n{table}\nSUM host_to_device_memcpy_sm 35.19\n"
    measured, _, (doubt, *_) = read_log(text, "a.log")
    assert (measured.figures, "no test that is judged" in doubt.why) == ((), True)


def test_lines_that_were_not_understood_are_counted_to_a_limit() -> None:
    *_, last = read_log("power.limit [W], power.default_limit [W]\n700, 700\n$ x\n" + "what\n" * 5_000, "a.log")[2]
    assert last.why == "more than 995 lines"


def test_memory_of_a_log_is_a_few_times_its_size() -> None:
    text = "".join(f"node1:1:2 [0] NCCL INFO Channel {n:02d}/0 : 0[0] -> 1[1] via P2P/CUMEM and some words\n"
                   for n in range(20_000))  # fmt: skip
    tracemalloc.start()
    read(text)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 * len(text)


@pytest.mark.parametrize("line", ["#  Rank  0 on x device\n", "node NCCL INFO Channel 0 : \n", "00:00.0 a\n\tb\n"])
def test_long_logs_take_bounded_time(line: str) -> None:
    text = line * ((4 << 20) // len(line))
    start = time.process_time()
    with contextlib.suppress(BadInput):
        read(text)
    assert time.process_time() - start < 5


def test_nvbandwidth_without_the_sum_of_its_last_test_is_refused() -> None:
    whole = (BENCH / "nvbandwidth/gh200-edited.txt").read_text()
    start = whole.rindex("Running host_device_latency_sm")
    with pytest.raises(BadInput, match="host_device_latency_sm has no sum: the output was cut short"):
        read(whole[: start + 60])
    assert read(whole).figures


@pytest.mark.parametrize(
    "text",
    [
        "sockperf: Summary: Latency is 11.012 usec\n",
        "STREAM version $Revision: 5.10 $\nCopy: 300000.0 0.01\n",
        "<html><body>a page</body></html>",
        '{"a": 1}',
        "",
        "\x00\x01\x02",
    ],
)
def test_output_of_other_tools_is_refused_with_the_tools_that_are_read(text: str) -> None:
    with pytest.raises(BadInput, match="not the output of a tool that hosttune reads") as error:
        read(text)
    assert "nvbandwidth" in error.value.hint


def test_a_list_of_ranks_that_is_cut_is_completed_by_the_factor_of_the_rates() -> None:
    table = " 67108864 16777216 float sum -1 370.6 181.09 316.90 0 369.3 181.71 318.00 0\n"
    head = "#  Rank  {} Group  0 Pid  1 on     hgx-{} device  7 [0x18] NVIDIA H100 80GB HBM3\n"
    whole = read(head.format(7, 4) + table)
    assert (whole.setup.hosts, whole.setup.gpus_per_host, whole.figures[0].subject) == (1, 8, "8 GPUs")
    assert read(head.format(3, 4) + table).setup.hosts is None  # where the last one is, is not known


def test_one_host_of_two_without_gpudirect_is_named() -> None:
    line = "{}:1:9 [0] NCCL INFO Channel 00/0 : 9[1b000] -> 2[6a000] [{}] via NET/IB/1{}\n"
    seen = read(line.format("node1", "receive", "") + line.format("node2", "send", "/GDRDMA")).observations
    assert seen.gpudirect_rdma is False
    assert "no channel of node1 has GDRDMA" in seen.said["gpudirect_rdma"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("iperf 3.7\n[ ID] Interval\nCPU Utilization: local/sender 99.3% (1.2%u/98.1%s)\n", "one CPU is the limit"),
        ("a:1:2 [0] NCCL INFO Channel 00/0 : 4[0] -> 0[0] [send] via NET/IB/0/GDRDMA\na:1:2 [0] NCCL WARN NET/IB : Got"
         " completion from peer 10.0.0.1<1> with error 4, opcode 0, len 0, vendor err 81 (Send)\n",
         "did not reach GPU memory"),
    ],
)  # fmt: skip
def test_faults_that_two_lines_tell_together(text: str, says: str) -> None:
    assert says in read(text).observations.stated[0].says


def test_one_corrected_error_of_a_whole_log_is_no_fault() -> None:
    error = "PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)"
    at = f"[{{}}.118819] pcieport 0000:3a:00.0: {error}\n"
    boot = "".join(f"[{second}.1] usb 1-1: new device\n" for second in range(20))
    assert not diagnose(read(boot + at.format(99))).causes
    assert diagnose(read(at.format(99))).causes  # somebody asks about it
    assert diagnose(read(boot + at.format(99) + at.format(100))).causes


GROUPS = """\
IOMMU Group 0:
\t00:02.0 Display controller [0380]: Intel Corporation HD Graphics 530 [8086:1912]
IOMMU Group {}:
\t00:01.0 PCI bridge [0604]: Intel Corporation PCIe Controller (x16) [8086:1901]
\t01:00.0 VGA compatible controller [0300]: NVIDIA Corporation TU116 [10de:2184]
\t01:00.1 Audio device [0403]: NVIDIA Corporation TU116 [10de:1aeb]
IOMMU Group 2:
\t02:00.0 Ethernet controller [0200]: Intel Corporation I210 [8086:1533]
"""


def test_gpus_that_share_their_iommu_group() -> None:
    """The form of the script of the Arch wiki; Coopydood/ultimate-macOS-KVM issue 213."""
    assert read(GROUPS.format(1)).observations.stated == ()
    (stated,) = read(GROUPS.format(1).replace("IOMMU Group 2:\n", "")).observations.stated
    assert "IOMMU group" in stated.says
    assert "02:00 Ethernet" in stated.line


def test_a_fault_within_many_lines_that_are_alike() -> None:
    noise = "".join(f"[{n}.000001] usb 1-1: new device {n:x}\n" for n in range(200_000))
    fault = "[  9.000001] vfio-pci 0000:3b:00.0: Unable to power on device, stuck in D3\n"
    start = time.process_time()
    (stated,) = read(noise + fault).observations.stated
    assert "D3" in stated.line
    assert time.process_time() - start < 20


def test_lines_of_trouble_of_a_tool_that_is_not_read_are_quoted() -> None:
    measured, _, doubts = read_log("checking\nflux: FAILED to claim the lane\nflux: retry\n", "a.log")
    assert (measured, [(doubt.where, doubt.why) for doubt in doubts]) == (
        Measured(version=1),
        [("a.log:2", "'flux: FAILED to claim the lane'")],
    )


def test_the_headline_quotes_a_warning_that_no_rule_knows() -> None:
    measured, _, doubts = read_log("host-1:75:95 [2] graph/some.cc:101 NCCL WARN Bad frame of 7 bytes\n", "a.log")
    diagnosis = diagnose(measured)
    report = diagnosis_report(replace(diagnosis, problems=(*diagnosis.problems, *doubts)))
    assert report.headline.startswith("not decided: no rule knows the line ")
    assert "NCCL WARN Bad frame of 7 bytes" in report.headline
