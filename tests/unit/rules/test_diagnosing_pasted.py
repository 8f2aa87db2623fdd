"""What people paste: labels of launchers, several tools and runs in one file, and equals that are compared."""

from __future__ import annotations

import contextlib
import json
import re
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from hosttune.errors import BadInput
from hosttune.gpu import KERNEL_LINES
from hosttune.model.diagnosis import Diagnosis
from hosttune.model.measured import Measured, Nics
from hosttune.report.prediction import diagnosis_report
from hosttune.rules.causes import diagnose
from hosttune.rules.causes.clusterlines import CLUSTER_FAILURES, CLUSTER_LINES, CLUSTER_SYMPTOMS
from hosttune.rules.causes.driverlines import DRIVER_LINES, DRIVER_SYMPTOMS
from hosttune.rules.causes.guestlines import GUEST_FAILURES, GUEST_LINES, GUEST_SYMPTOMS
from hosttune.rules.causes.kernel import ASLEEP
from hosttune.rules.causes.labels import decoded
from hosttune.rules.causes.logs import read_log
from hosttune.rules.causes.search import search
from hosttune.rules.checks.kernelevents import JUDGED

ROOT = Path(__file__).parents[2]
PASTED = json.loads((ROOT / "cases/diagnosis/pasted.json").read_text())
LOGS = ROOT / "cases/diagnosis/logs"
TABLE = (ROOT / "cases/bench/nccl/all-reduce-a100.txt").read_text()

SMI = """\
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   38C    P0             70W /  700W |       1MiB /  81559MiB |      0%      Default |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:3B:00.0 Off |                 {:>4} |
| N/A   38C    P0             70W /  {} |       1MiB /  81559MiB |      0%      Default |
"""
LINKS = "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))


def read(text: str) -> Measured:
    return read_log(text, "a.log")[0]


def names(found: Diagnosis) -> list[str]:
    return [cause.cause for cause in found.causes]


def test_reports_that_are_cut_or_full_of_zeros_are_read_or_refused() -> None:
    chance = Random(20261130)
    logs = [case["log"] for case in chance.sample(PASTED, 80) if "log" in case]
    ways: tuple[Callable[[str], str], ...] = (
        lambda text: re.sub(r"\d", "0", text),
        lambda text: re.sub(r"\b\d+(\.\d+)?\b", lambda number: chance.choice(["0", "0.00", "7", number[0]]), text),
        lambda text: text[chance.randrange(len(text)) :],
        lambda text: text[: chance.randrange(len(text))],
        lambda text: "\n".join(line for line in text.split("\n") if chance.random() < 0.8),
    )
    for log in logs:
        for way in ways:
            with contextlib.suppress(BadInput):
                diagnose(read(way(log)))


@pytest.mark.parametrize("case", PASTED, ids=lambda case: case["id"])
def test_pasted_reports(case: dict[str, Any]) -> None:
    if case.get("refused"):
        with pytest.raises(BadInput):
            read(case["log"])
        return
    measured = read(case["log"]) if "log" in case else Measured.from_yaml(json.dumps(case["measured"]))
    diagnosis = diagnose(measured, written="measured" in case)
    found = names(diagnosis)
    first = found[: 3 if case.get("three") else 1]
    assert set(first) & set(case["causes"]) if case["causes"] else not found
    assert case.get("says", "") in " ".join(line for cause in diagnosis.causes[:1] for line in cause.evidence)


def test_a_port_held_by_all_the_lanes_of_its_card() -> None:
    """A card of four lanes with a port of 200 Gb/s: its link is whole, and is the limit."""
    seen = {"speed_gts": 32, "width": 4, "max_speed_gts": 32, "max_width": 4}
    figure = {"metric": "rdma-write", "subject": "mlx5_0", "value": 111.7, "unit": "Gb/s"}
    setup = {"nics": {"count": 1, "rate_gbps": 200, "kind": "infiniband"}}
    document = {"version": 1, "setup": setup, "figures": [figure], "observations": {"nic_pcie_link": seen}}
    first = diagnose(Measured.from_yaml(json.dumps(document))).causes[0]
    assert (first.cause, first.grade) == ("pcie-generation-limit", "proven")
    assert "second one" in first.remedy


POSTED = tomllib.loads((ROOT / "cases/kernel_log/lines.toml").read_text())["line"]


@pytest.mark.parametrize(
    "line", [line for line in POSTED if line["kind"] in JUDGED], ids=lambda line: line["text"][:40]
)
def test_what_the_kernel_log_states(line: dict[str, Any]) -> None:
    (stated,) = read(f"[    1.234567] usb 1-1: new device\n[   12.345678] {line['text']}\n").observations.stated
    assert (stated.says.rpartition(": ")[2], stated.remedy) in {
        (one.says.rpartition(": ")[2], one.remedy) for one in KERNEL_LINES if one.kind == line["kind"]
    } or (ASLEEP in stated.says and "d3cold_allowed" in stated.remedy and "power state" in line["text"])
    journal = "Nov 12 10:00:00 node01 kernel: usb 1-1: new device\nNov 12 10:00:01 node01 kernel: "
    assert read(f"{journal}{line['text']}\n").observations.stated == (stated,)
    for other in line["not"]:
        assert read(f"[   12.345678] {other}\n").observations.stated == ()


@pytest.mark.parametrize(
    "label",
    [
        "[1,0]<stdout>:", "[1,0]<stdout>: ", "[prterun-host-1@1,0]<stdout>:", " 0: ", "[0]", "[pod/train-0/main] ",
        "pod/train-0 ", "2026-04-30T09:12:00.123456789Z ", "2026-04-30 09:12:00,123 ", "[2026-04-30T09:12:00+02:00] ",
        "Apr 30 09:12:00 node-1 train[77]: ", "2026-04-30T09:12:00Z worker-0: ", "worker-1  | ", "[rank0]: ",
        "(Worker pid=7, ip=192.0.2.1) ",
    ],
)  # fmt: skip
def test_labels_before_lines_change_nothing(label: str) -> None:
    text = "".join(f"{label}{line}\n" for line in TABLE.splitlines())
    assert read(text) == read(TABLE)
    assert read_log(text, "a.log")[2] == ()


def test_a_label_within_rows() -> None:
    figures = read((LOGS / "label-within-rows.txt").read_text()).figures
    assert [one.value for one in figures] == [176.2, 180.1, 181.4, 182.0]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_files_of_other_encodings(encoding: str) -> None:
    assert read(decoded(TABLE.replace("\n", "\r\n").encode(encoding))) == read(TABLE)


def test_tools_and_runs_in_one_file_and_what_was_not_understood() -> None:
    port = (ROOT / "cases/bench/perftest/gbits.txt").read_text()
    text = (
        f"hello, this is slow\n$ mpirun -x NCCL_ALGO=Ring ./all_reduce_perf\n{TABLE}\n{port}\n$ iperf3 -c b\n94 Mb/s\n"
    )
    found, tools, doubts = read_log(text, "a.log")
    assert tools == "nccl-tests and environment variables and perftest"
    assert {one.metric for one in found.figures} == {"all-reduce-busbw", "rdma-write"}
    assert found.setup.environment == {"NCCL_ALGO": "Ring"}
    last = text.count("\n")
    assert [(one.what, one.where, one.why) for one in doubts] == [
        ("not understood", "a.log:1", "'hello, this is slow'"), ("not understood", f"a.log:{last}", "'94 Mb/s'"),
    ]  # fmt: skip
    assert len(read(TABLE + TABLE).figures) == 2 * len(read(TABLE).figures)


def test_one_reset_by_a_guest_is_no_fault_and_many_are() -> None:
    line = "[  9.000000] vfio-pci 0000:01:00.0: vfio_bar_restore: reset recovery - restoring BARs\n"
    assert read(line).observations.stated == ()
    (stated,) = read(line * 3).observations.stated
    assert stated.says.endswith("it does not come back from a reset")


IPERF = """\
Connecting to host 192.0.2.12, port 5201
[  5] local 192.0.2.11 port 41234 connected to 192.0.2.12 port 5201
[ ID] Interval           Transfer     Bitrate         Retr  Cwnd
[  5]   0.00-1.00   sec  10.9 GBytes  93.5 Gbits/sec    0   3.12 MBytes
- - - - - - - - - - - - - - - - - - - - - - - - -
[ ID] Interval           Transfer     Bitrate         Retr
[  5]   0.00-1.00   sec  10.9 GBytes  93.5 Gbits/sec    0             sender
[  5]   0.00-1.04   sec  10.9 GBytes  93.4 Gbits/sec                  receiver

iperf Done.
"""
JOURNAL = """\
Nov 12 10:00:00 node01 kernel: Linux version 6.8.0-45-generic
Nov 12 10:00:01 node01 kernel: pcieport 0000:15:01.0: AER: enabled with IRQ 122
Nov 12 10:00:01 node01 kernel: EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0
Nov 12 10:00:02 node01 kernel: mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged
Nov 12 10:00:02 node01 kernel: nvidia 0000:19:00.0: enabling device (0000 -> 0002)
"""


@pytest.mark.parametrize("text", [IPERF, IPERF.replace("Connecting to host 192.0.2.12, port", "Server listening on"),
                                  JOURNAL], ids=["iperf3", "its server", "journal"])  # fmt: skip
def test_the_whole_output_of_what_is_well_is_understood_and_names_nothing(text: str) -> None:
    measured, _, doubts = read_log(text, "a.log")
    assert doubts == ()
    assert measured.observations.stated == ()
    assert diagnose(measured).causes == ()


# As pages leave the output of ibstat(8), and of ifconfig(8) (net-tools), lib/interface.c.
UNINDENTED = """\
CA 'mlx5_0'
CA type: MT4129
Number of ports: 1
Port 1:
State: Active
Physical state: LinkUp
Rate: 400
Base lid: 0
SM lid: 0
Link layer: Ethernet
"""
IFCONFIG = """\
ens1f0np0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 9000
        inet 192.0.2.1  netmask 255.255.255.0  broadcast 192.0.2.255
        RX errors 0  dropped 0  overruns 0  frame 0
"""


def test_text_without_its_blanks_and_ifconfig() -> None:
    assert read(UNINDENTED).setup.nics == Nics(count=1, rate_gbps=400.0, kind="roce")
    assert names(diagnose(read(UNINDENTED + UNINDENTED.replace("_0", "_1").replace("400", "200")))) == [
        "nic-rate-or-link-down"
    ]
    old = (
        "eth0      Link encap:Ethernet  HWaddr 02:00:00:00:00:01\n          UP BROADCAST RUNNING MULTICAST  MTU:1500\n"
    )
    assert [names(diagnose(read(text))) for text in (IFCONFIG, old)] == [[], []]
    assert names(diagnose(read(IFCONFIG.replace("RUNNING,", "")))) == ["nic-rate-or-link-down"]


def test_iperf_2_beside_iperf3() -> None:
    """esnet/iperf RELNOTES.md, 3.16: before, one thread serves all streams."""
    of2 = IPERF.replace("Connecting to host 192.0.2.12, port 5201", "Client connecting to 192.0.2.12, TCP port 5001")
    slow = IPERF.replace("93.4", "25.6")
    assert [figure.subject for figure in read(of2 + slow).figures] == ["1 stream of iperf 2", "1 stream"]
    (stated,) = read(of2 + slow).observations.stated
    assert stated.line == "iperf 2: 93.4 Gb/s, iperf3: 25.6"
    assert read(of2 + IPERF).observations.stated == read(of2).observations.stated == ()


def test_each_run_of_iperf_is_shown_and_udp_is_not_called_tcp() -> None:
    """esnet/iperf src/iperf_locale.c: the heads of its tables."""
    server = IPERF.replace("Connecting to host 192.0.2.12, port 5201", "Server listening on 5201").replace(
        "93.4", "25.6"
    )
    assert [figure.value for figure in read(IPERF + server).figures] == [93.4, 25.6]
    rows = IPERF.partition("Interval")[2].replace("Retr  Cwnd", "Jitter    Lost/Total Datagrams")
    measured, _, (doubt, *_) = read_log(f"Connecting to host b, port 5201\n[ ID] Interval{rows}", "a.log")
    assert (measured.figures, "of UDP" in doubt.why) == ((), True)
    # iperf 2's client, where no report of the server came: src/Locale.c
    alone = "Client connecting to b, UDP port 5001\n[  3]  0.0-10.0 sec  1.25 GBytes  1.07 Gbits/sec\n"
    assert read_log(alone, "a.log")[0].figures == ()


def test_each_rank_is_named_where_several_print_figures() -> None:
    one = (LOGS / "bandwidthtest.txt").read_text()
    text = "".join(f"[1,{rank}]<stdout>:{line}\n" for rank in (0, 1) for line in one.splitlines())
    assert [figure.subject for figure in read(text).figures] == ["1,0: gpu0", "1,0: gpu0", "1,1: gpu0", "1,1: gpu0"]


def test_what_the_library_recommends_is_not_what_is_set() -> None:
    text = "a:1:2 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.\n"  # noqa: E501
    found = read(text)
    assert found.setup.environment == {}
    assert (found.observations.p2p, names(diagnose(found))) == ("off", ["p2p-disabled"])


def test_copies_between_gpus_without_peer_access() -> None:
    found = read((LOGS / "p2p-4090.txt").read_text())
    assert {(one.metric, one.subject): one.value for one in found.figures} == {
        ("p2p", "gpu0->gpu1"): 9.9, ("p2p", "gpu1->gpu0"): 9.9,
    }  # fmt: skip
    assert found.observations.p2p == "off"
    assert names(diagnose(found))[0] == "p2p-disabled"


def test_tables_of_old_versions() -> None:
    (old,) = read((LOGS / "rccl-old-table.txt").read_text()).figures
    assert (old.metric, old.value) == ("all-gather-busbw", 2.13)
    head = "RDMA_Write BW Test\n #bytes #iterations    BW peak[MB/sec]    BW average[MB/sec] \n"
    (port,) = read(head + " 65536      5000            2800.10            2790.00\n").figures
    assert port.value == pytest.approx(2790 * 2**20 * 8 / 1e9)


def test_a_port_that_reads_and_one_of_a_gpus_memory() -> None:
    (read_of_port,) = (found := read((LOGS / "ib-read.txt").read_text())).figures
    assert (read_of_port.subject, found.setup.nics and found.setup.nics.kind) == ("mlx5_1, reads", "infiniband")
    assert read_of_port.value == pytest.approx(23439.9 * 2**20 * 8 / 1e9)
    text = (LOGS / "ib-read.txt").read_text().replace("RDMA_Read BW", "Send Bidirectional BW")
    found = read(f"Picking device No. 0\n[pid = 3, dev = 0] device name = [NVIDIA A30]\ncreating CUDA Ctx\n{text}")
    assert [one.subject for one in found.figures] == ["mlx5_1, both directions, GPU memory"]
    assert found.setup.gpu == "NVIDIA A30"


def test_tables_of_osu() -> None:
    (within,) = (found := read((LOGS / "osu-rocm.txt").read_text())).figures
    assert (within.metric, within.value, within.size_bytes, found.setup.hosts) == ("p2p", 139961.8, 1 << 27, 1)
    (between,) = (found := read((LOGS / "osu-two-hosts.txt").read_text())).figures
    assert (between.metric, between.value, found.setup.hosts) == ("rdma-write", 6098.41, None)
    text = "# OSU MPI Bandwidth Test v5.6\n# Size      Bandwidth (MB/s)\n1 1.20\n"
    assert "host memory, and whether on one host is not said" in read_log(text, "a.log")[2][0].why


def test_copies_that_a_gpu_makes_are_read_of_transferbench() -> None:
    found, tools, doubts = read_log((LOGS / "transferbench.txt").read_text(), "a.log")
    figures = {(one.metric, one.subject): one.value for one in found.figures}
    assert (tools, doubts, found.setup.gpus_per_host, len(figures)) == ("TransferBench", (), 4, 12 + 4 + 8)
    assert figures["p2p", "gpu0->gpu1"] == 64.58
    assert figures["device-copy", "gpu3"] == 2 * 108.68  # read and written
    assert figures["d2h", "gpu2, CPU 1"] == 23.47
    swapped = (LOGS / "transferbench.txt").read_text().replace("[Local read / Remote", "[Remote read / Local")
    assert {one.metric for one in read(swapped).figures} == {"p2p", "device-copy", "h2d"}


def test_reserved_fields_of_a_virtual_function_are_no_facts() -> None:
    found = read((LOGS / "lspci-vf.txt").read_text())
    seen = found.observations
    assert (seen.max_read_request_bytes, seen.relaxed_ordering, seen.link) == (None, None, None)
    assert names(diagnose(found)) == []
    (doubt,) = read_log((LOGS / "lspci-vf.txt").read_text(), "a.log")[2]
    assert doubt.what == "PCIe settings of a virtual function"


def of(metric: str, *rows: tuple[str, float], gpu: str | None = None) -> Diagnosis:
    figures = [{"metric": metric, "subject": subject, "value": value, "unit": "GB/s"} for subject, value in rows]
    return diagnose(Measured.from_yaml(json.dumps({"version": 1, "setup": {"gpu": gpu}, "figures": figures})))


@pytest.mark.parametrize(
    ("rows", "low"),
    [
        ([("gpu0", 14.2), ("gpu1", 57), ("gpu2", 56.7), ("gpu3", 57)], ["gpu0"]),
        ([("gpu0", 55.2), ("gpu1", 57), ("gpu2", 56.7), ("gpu3", 57)], []),
        ([("gpu0", 27), ("gpu1", 27), ("gpu2", 57), ("gpu3", 57)], []),  # two sockets: none stands out
        ([("8 GPUs", 57), ("4 GPUs", 14), ("2 GPUs", 14)], []),  # not equals
        ([("0000:18:00.0", 13.0), ("0000:3b:00.0", 26.1)], ["0000:18:00.0"]),
    ],
)
def test_the_one_of_equals_that_stands_out(rows: list[tuple[str, float]], low: list[str]) -> None:
    found = of("h2d", *rows)
    assert [one.subject for one in found.figures if one.verdict == "low"] == low
    assert names(found)[:1] == (["pcie-link-degraded"] if low else [])


def test_all_pairs_of_one_gpu() -> None:
    pairs = [(f"gpu{a}->gpu{b}", 6.0 if 2 in (a, b) else 24.0) for a in range(4) for b in range(4) if a != b]
    found = of("p2p", *pairs)
    assert {one.subject for one in found.figures if one.verdict == "low"} == {name for name, rate in pairs if rate == 6}
    assert "25% of the other 6 (24.0 GB/s)" in found.causes[0].evidence[0]


def test_the_pair_of_hosts_that_stands_out() -> None:
    found = of("all-reduce-busbw", ("node1-node2", 180), ("node3-node4", 178), ("node1-node5", 60))
    assert [one.subject for one in found.figures if one.verdict == "low"] == ["node1-node5"]
    assert names(found)[0] == "nic-rate-or-link-down"


@pytest.mark.parametrize(
    ("metric", "value", "verdict"),
    [("h2d", 600, "impossible"), ("h2d", 60, "unknown"), ("rdma-write", 120, "impossible")],
)
def test_a_figure_above_what_any_such_device_can_do(metric: str, value: float, verdict: str) -> None:
    found = of(metric, ("it", value))
    assert found.figures[0].verdict == verdict
    assert names(found)[:1] == (["impossible-figure"] if verdict == "impossible" else [])


def test_one_port_against_four() -> None:
    found = of("rdma-write", ("1 port", 24.0), ("4 ports", 25.0))
    assert names(found)[0] == "nic-count-or-rail-mismatch"
    assert "4 ports give 1.04 times what 1 gives" in found.causes[0].evidence[0]
    assert not of("rdma-write", ("1 port", 24.0), ("4 ports", 95.0)).causes


def test_what_is_stated_comes_before_what_is_inferred() -> None:
    document = {
        "version": 1,
        "setup": {"gpu": "NVIDIA H100 80GB HBM3", "gpus_per_host": 8, "hosts": 2,
                  "environment": {"NCCL_IB_DISABLE": "1"},
                  "nics": {"count": 8, "rate_gbps": 400, "kind": "infiniband"}},
        "figures": [{"metric": "all-reduce-busbw", "subject": "16 GPUs on 2 hosts", "value": 3, "unit": "GB/s"},
                    {"metric": "rdma-write", "subject": "mlx5_0", "value": 150, "unit": "Gb/s"}],
        "observations": {"gpu_nic_path": "SYS", "acs_redirect": True},
    }  # fmt: skip
    assert names(diagnose(Measured.from_yaml(json.dumps(document))))[0] == "socket-transport-instead-of-ib"


def test_copies_from_two_nodes_are_no_fault_of_the_link() -> None:
    found = of("h2d", ("GPU 0, node 0", 55.0), ("GPU 0, node 1", 27.0))
    assert names(found)[0] == "far-numa-node"


def test_a_gpu_without_a_model_is_said() -> None:
    found = of("h2d", ("gpu0", 14.0), ("gpu1", 57.0), ("gpu2", 57.0), gpu="Vega 20")
    assert any(line.startswith("no model of Vega 20") for line in found.next)
    assert names(found)[0] == "pcie-link-degraded"


def test_too_many_lines_are_refused() -> None:
    with pytest.raises(BadInput, match="lines of a log"):
        read("\n" * 1_000_001)


ALLREDUCE = "# OSU MPI-CUDA Allreduce Latency Test v7.0\n# Size       Avg Latency(us)\n65536 30.00\n16777216 {}\n"


def test_times_of_osu_say_what_large_messages_reach() -> None:
    (one,) = read("$ srun -n 4 osu_allreduce -d cuda\n" + ALLREDUCE.format("8630.58")).figures
    assert (one.metric, one.subject, one.size_bytes) == ("all-reduce-busbw", "4 GPUs", 1 << 24)
    assert one.value == pytest.approx((1 << 24) * 1.5 / 8630.58, abs=0.01)
    (two,) = read("# OSU MPI-CUDA Latency Test v7.2\n# Size Latency (us)\n8 2.10\n4194304 170.00\n").figures
    assert (two.metric, two.value) == ("p2p", round(4194304 / 170, 2))
    for text, why in (
        (ALLREDUCE.format("8630.58"), "how many GPUs took part is not said"),
        ("# OSU MPI-CUDA All-to-All Personalized Exchange Latency Test v7.4\n8 2.10\n", "a diagnosis knows bandwidth"),
    ):
        with pytest.raises(BadInput, match=why):
            read(text)
    measured, _, (small,) = read_log("# OSU MPI-CUDA Latency Test v7.2\n8 2.10\n", "a.log")
    assert not measured.figures
    assert "messages below 1 MiB" in small.why


def test_a_rate_that_falls_with_the_size_of_messages() -> None:
    rows = "# Size      Bandwidth (MB/s)\n8192 6400.00\n16384 1500.00\n4194304 2800.00\n"
    found = diagnose(read("$ mpirun -npernode 1 ./osu_bw D D\n# OSU MPI-CUDA Bandwidth Test v7.2\n" + rows))
    assert names(found)[0] == "gpudirect-rdma-off"
    assert "44% of what 8,192 bytes give" in found.causes[0].evidence[0]
    assert names(diagnose(read("$ mpirun -npernode 1 ./osu_bw\n# OSU MPI Bandwidth Test v7.2\n" + rows)))[0] != (
        "gpudirect-rdma-off"
    )


def test_a_transfer_that_is_alone_in_its_test() -> None:
    row = " Transfer {:02}  |   56.309 GB/s |    4.767 ms |    268435456 bytes | {}\n"
    tests = (row.format(0, "G0 -> G000:004 -> G1"), row.format(0, "C1 -> D002:001 -> F2"),
             row.format(0, "G3 -> G003:008 -> G3"), row.format(0, "G0 -> G000:004 -> G1") + row.format(1, "G1 -> G001:004 -> G0"))  # fmt: skip  # noqa: E501
    found = read("".join(f"Test {n}:\n{text}" for n, text in enumerate(tests, 1))).figures
    assert [(one.metric, one.subject, one.value) for one in found] == [
        ("p2p", "gpu0->gpu1", 56.309), ("h2d", "gpu2, CPU 1", 56.309), ("device-copy", "gpu3", 2 * 56.309),
    ]  # fmt: skip


def ibstat(*ports: tuple[str, int]) -> str:
    return "".join(
        f"CA 'mlx5_{n}'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: LinkUp\n"
        f"\t\tRate: {rate}\n\t\tBase lid: 1\n\t\tLink layer: InfiniBand\n"
        for n, (state, rate) in enumerate(ports)
    )


@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        (ibstat(("Active", 400), ("Active", 100)), "port at 100 of 400 Gb/s (mlx5_1 port 1)"),
        (ibstat(*[("Active", 400)] * 3, ("Down", 10)), "3 of 4 ports are active (mlx5_3 port 1)"),
        (ibstat(("Active", 400), ("Down", 10)), ""),  # a second port without a cable
        (ibstat(("Active", 100), ("Active", 100)), ""),
        ("Settings for eth0:\n\tSupported link modes:   25000baseCR/Full\n\t    100000baseCR4/Full\n"
         "\tSpeed: 25000Mb/s\n", "port at 25 of 100 Gb/s (eth0)"),
        ("Settings for eth0:\n\tSupported link modes:   100000baseCR4/Full\n\tSpeed: 100000Mb/s\n", ""),
    ],
)  # fmt: skip
def test_ports(text: str, evidence: str) -> None:
    found = diagnose(read(text))
    assert names(found) == (["nic-rate-or-link-down"] if evidence else [])
    assert [cause.evidence[0] for cause in found.causes] == ([evidence] if evidence else [])


CSV = "index, name, pcie.link.gen.current, pcie.link.gen.max, pcie.link.width.current, pcie.link.width.max\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (CSV + "0, NVIDIA L40S, 1, 4, 16, 16\n1, NVIDIA L40S, 1, 4, 16, 16\n", []),  # idle
        (CSV + "0, NVIDIA L40S, 1, 4, 16, 16\n1, NVIDIA L40S, 4, 4, 4, 16\n", ["pcie-link-degraded"]),
        ("GPU Link Info\n PCIe Generation\n  Max : 4\n  Current : 3\n Link Width\n  Max : 16x\n  Current : 16x\n",
         ["pcie-link-degraded"]),
        ("index, power.limit [W], power.default_limit [W]\n0, 300.00 W, 700.00 W\n", ["power-cap"]),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n", []),  # by design; `next` says so
        (" \tGPU0\tGPU1\t\n GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n", ["p2p-disabled"]),
        ("$ nvidia-smi topo -p2p n\n \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n", []),  # no NVLink
        (" \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n", []),  # of what is not said
        ("$ nvidia-smi topo -p2p p\n \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n", []),
        ("$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n", ["p2p-disabled"]),
        (" \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n", []),
        ("LnkCap: Port #0, Speed 16GT/s, Width x16\nLnkSta: Speed 2.5GT/s (downgraded), Width x16 (ok)\n", []),
        ("LnkCap: Port #0, Speed 16GT/s, Width x16\nLnkSta: Speed 16GT/s (ok), Width x8 (downgraded)\n",
         ["pcie-link-degraded"]),
        ("        HW Thermal Slowdown     : Active\n", ["thermal"]),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-63\nGPU1\tPHB\t X \t0-63\n\n \tGPU0\tGPU1\t\n GPU0\tX\tTNS\t\n"
         " GPU1\tTNS\tX\t\n", ["p2p-disabled"]),
        ("0000:01:00.0  LnkCap: Speed 32GT/s, Width x4    LnkSta: Speed 32GT/s, Width x4\n"
         "0002:01:00.0  LnkCap: Speed 32GT/s, Width x4    LnkSta: Speed 32GT/s, Width x2\n", ["pcie-link-degraded"]),
        ("".join(f"a:{n}:9 [0] NCCL WARN Failed to open libibverbs\na:{n}:9 [0] NCCL INFO NET/Socket : Using e0\n"
                 for n in (1, 2)) + "a:1:9 [0] NCCL INFO Channel 00/02 :    0   1\n", []),
        ("a:1:2 [0] NCCL INFO NET/IB : No device found.\na:1:2 [0] NCCL INFO Using network Socket\n", []),
    ],
)  # fmt: skip
def test_states_of_tools(text: str, cause: list[str]) -> None:
    assert names(diagnose(read(text))) == cause


def test_consumer_cards_without_peer_access_are_in_order() -> None:
    found = diagnose(read(" \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n"))
    assert not found.causes
    assert found.next == (
        "no peer access: the driver gives these GPUs none over PCIe, so their copies go through host memory",
    )


def test_what_a_log_of_one_rank_does_not_decide_is_said() -> None:
    text = "a:1:2 [0] NCCL INFO NET/IB : No device found.\na:1:2 [0] NCCL INFO Using network Socket\n"
    assert any("the lines with nNodes" in line for line in diagnose(read(text)).next)


def test_parts_of_tables() -> None:
    rows = "     4194304       1048576     float     sum      -1    385.4   10.88   16.32      0    386.2   10.86   16.29      0\n"  # noqa: E501
    (one,) = read(rows).figures  # 16.32 ÷ 10.88 = 2·3/4: four ranks
    assert (one.metric, one.subject, one.value) == ("all-reduce-busbw", "4 GPUs", 16.32)
    head = "RDMA_Write BW Test\n #bytes #iterations    BW peak[MB/sec]    BW average[MB/sec] \n"
    (port,) = read(head + " 65536      5000   2800.10   2790.00\n 131072      5000   2900.10   2890.00\n 26").figures
    assert port.value == pytest.approx(2890 * 2**20 * 8 / 1e9)
    copies = (
        "> Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth\n    0   1\n0  35.19 35.25\n"
    )
    assert read(copies).figures[1].value == 35.25
    csv = "bandwidthTest-H2D-Pinned, Bandwidth = 12.4 GB/s, Time = 0.00258 s, Size = 33554432 bytes, NumDevsUsed = 1\n"
    assert [(copy.metric, copy.value) for copy in read("[CUDA Bandwidth Test] - Starting...\n" + csv).figures] == [
        ("h2d", 12.4)
    ]


def test_a_line_of_a_broken_bus_is_no_fault_of_another_device() -> None:
    bridge = (
        "00:01.0 PCI bridge: A\n\tBus: primary=00, secondary=01, subordinate=0{}, sec-latency=0\n\tCapabilities: [40]\n"
    )
    card = "05:00.0 3D controller: NVIDIA Corporation GA100\n\tLnkCap: Port #0, Speed 16GT/s, Width x16\n\tLnkSta: Speed 16GT/s, Width x16\n"  # noqa: E501
    redirects = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+\n"
    assert names(diagnose(read(card + bridge.format(5) + redirects))) == ["acs-redirect"]
    assert names(diagnose(read(card + bridge.format(3) + redirects))) == []


PEERS = "> Peer access from NVIDIA A40 (GPU{}) -> NVIDIA A40 (GPU{}) : {}\n"


@pytest.mark.parametrize(
    "text",
    [
        " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tTNS\t\n GPU1\tOK\tX\tOK\t\n GPU2\tTNS\tOK\tX\t\n",
        PEERS.format(0, 1, "Yes") + PEERS.format(0, 2, "No") + PEERS.format(2, 0, "No"),
        "p2p 0 2 peers:false distance:-1\np2p 0 1 peers:true distance:36 PCIe:36\n",
    ],
)
def test_peer_access_that_some_pairs_lack_is_said_of_those_alone(text: str) -> None:
    seen = (measured := read(text)).observations
    assert (seen.p2p, seen.said["p2p"].partition(":")[0]) == ("partly", "gpu0-gpu2")
    assert names(diagnose(measured)) == ["p2p-disabled"]
    low = "".join(
        f'{{"metric": "p2p", "subject": "{pair}", "value": {rate}, "unit": "GB/s"}},'
        for pair, rate in (("gpu0->gpu1", 6), ("gpu1->gpu0", 24), ("gpu1->gpu2", 24), ("gpu2->gpu1", 24))
    )
    partly = '{"p2p": "partly", "said": {"p2p": "gpu0-gpu2"}}'
    document = f'{{"version": 1, "figures": [{low[:-1]}], "observations": {partly}}}'
    assert "p2p-disabled" not in names(diagnose(Measured.from_yaml(document)))
    assert "p2p-disabled" in names(diagnose(Measured.from_yaml(document.replace("gpu0-gpu2", "gpu0-gpu1"))))


@pytest.mark.parametrize(
    "text",
    [
        "\n \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n\nLegend:\n\n  X    = Self\n",
        "GPU 0: NVIDIA H100 (UUID: GPU-x)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n",
        "PCIe Generation\n  Max : 4\n  Current : 3\n Link Width\n  Max : 16x\n  Current : 16x\n",
    ],
)
def test_lines_that_were_used_are_not_listed(text: str) -> None:
    assert [doubt.where for doubt in read_log("hello\n" + text, "a.log")[2]] == ["a.log:1"]


def test_long_lines_of_names_are_read_at_once() -> None:
    began = time.process_time()
    with pytest.raises(BadInput):
        read("power.limit [W]\n" + "pcie.link.gen.max, " * 20_000 + "!\n")
    assert time.process_time() - began < 2


STATED = (  # what people paste, and what the first cause says; "" nothing is wrong
    ("april 24 16:22:15 host-1 kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n" * 2,
     "0000:01:00.0: the driver reports XID 79"),
    ('{"log": "then kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."}\n',
     "0000:01:00.0: the driver reports XID 79"),
    ("kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=p, Ch 00000001 caused by previous Xid 149\n"
     "kernel: NVRM: Xid (PCI:0000:ed:00): 45, pid=2, name=p, Ch 00000001 caused by previous Xid 145\n",
     "0000:dc:00.0: the driver reports XID 149"),
    ("[    1.000000] NVRM: Xid (PCI:0000:01:00): 45, pid=1, name=p, Ch 00000001\n", ""),
    ("[    1.000000] pcieport 0000:00:03.1: AER: Corrected error received: 0000:01:00.0\n", ""),
    ("  Fabric\n      State            : In Progress\n      Status           : N/A\n", "fabric"),
    ("  Fabric\n      State            : Completed\n      Status           : Success\nGPU Current Temp : 30 C\n", ""),
    ("Warning  SyncFailed: qemu-kvm: -device vfio-pci,host=0000:01:00.0: vfio 0000:01:00.0: group 1 is not viable\\nPl",
     "same IOMMU group"),
    ("qemu-system-x86_64: VFIO_MAP_DMA failed: Cannot allocate memory\n", "may not be locked"),
    ("accel0\nno interfaces were detected\n", "own network ports"),
    ("a:1:2 [0] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct\n"
     "a:1:2 [1] enqueue.cc:1500 NCCL WARN Cuda failure 1 'invalid argument'\n", "kernel of NCCL"),
    ("a:1:2 [1] init.cc:15 NCCL WARN Cuda failure 'unknown error'\na: Test NCCL failure x.cu:1 'unhandled cuda"
    " error'\n",
     "A call of the GPU's runtime failed"),
    ("a:1:2 [0] graph/search.cc:1 NCCL WARN Could not find a path for pattern 4, falling back to simple order\n", ""),
    ("\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+\n\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir-\n",
     "ReqRedir+ in 1 of 2"),
    ("| PCIe                      | Fail - GPU: 3       |\n| Warning | GPU 3 bandwidth 12.7 |\n", "DCGM"),
    ("qemu-system-x86_64: unable to map backing store for guest RAM: Cannot allocate memory\n", "huge pages"),
    ("PCI device 0000:41:00.0 is in use by driver QEMU, domain other\n", "Another guest has the device"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "uncorrectable error"),
    ("Couldn't allocate MR\nfailed to create mr\nERRNO: Bad address.\n", "cannot be registered with the NIC"),
    ("Couldn't allocate MR\nfailed to create mr\n", "limit of locked memory"),
    ("NCCL WARN socketStartConnect: Connect to 10.0.0.1<1> failed: Connection reset by peer\n", "do not reach"),
    ("GPU 0: A (UUID: GPU-x)\n\t Link 0: Replay Errors: 0\n\t Link 1: Recovery Errors: 3\n", "Recovery Errors: 3"),
    ("GPU 0: A (UUID: GPU-x)\n\t Link 0: 25 GB/s\n\t Link 0: Replay Errors: 2\n\t Link 0: Recovery Errors: 0\n", ""),
    ("".join(f"GPU {n}: NVIDIA H200 (UUID: GPU-x{n})\n" + LINKS for n in (0, 1))[:-200], ""),  # cut short
    ("GPU 0: NVIDIA H200 (UUID: GPU-x)\n" + LINKS.replace("7: 26.562 GB/s", "7: <inactive>"), "16 of its 18 links"),
    (SMI.format("0", "700W"), ""),
    (SMI.format("0", "400W"), "400 W, default 700 W (GPU 1"),
    (SMI.format("3", "700W"), "GPU 1: 3"),
    (SMI.format("ERR!", "700W"), "GPU 1: ERR!"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "words"), STATED)
def test_what_a_text_says_outright_comes_first(text: str, words: str) -> None:
    causes = diagnose(read(text)).causes
    assert words in causes[0].sentence if words else not causes


def test_what_names_no_cause_is_quoted_with_its_line() -> None:
    text = "x\n" + "".join(text for text, words in STATED if not words and ("AER" in text or "WARN" in text))
    noted = [(doubt.where, doubt.why) for doubt in read_log(text, "a.log")[2] if doubt.what != "not understood"]
    assert [where for where, _ in noted] == ["a.log:3", "a.log:2"]
    assert "pattern 4" in noted[0][1]


def test_a_test_without_runs_in_place_is_no_all_reduce() -> None:
    row = " 1048576  262144  float  sum  -1  45.34  23.13  23.13  {}  44.67  23.48  23.48  {}\n"
    assert not read(row.format("0", "N/A")).figures  # how many ranks sent to each other is not in it
    assert read("# Rank 0 on a device 0 [0x0] X\n# Rank 1 on a device 1 [0x1] X\n" + row.format("N/A", "N/A")).figures


H100S = "".join(f"#  Rank {n} Group 0 Pid 7 on {{}} device {n} [0x{n}] NVIDIA H100 80GB HBM3\n" for n in range(4))


@pytest.mark.parametrize(
    ("cells", "factor", "errors", "metric"),
    [
        ("none -1", 0.75, "N/A", "all-to-all-busbw"),
        ("sum -1", 1.0, "N/A", "send-recv-busbw"),
        ("none 0", 1.0, "0", "broadcast-busbw"),
        ("sum 0", 1.0, "0", "reduce-busbw"),
        ("none 0", 0.75, "0", ""),  # gather
        ("none -1", 2.0, "N/A", ""),
    ],
)
def test_collectives_of_nccl_tests_are_told_by_their_columns(
    cells: str, factor: float, errors: str, metric: str
) -> None:
    """Columns: NVIDIA/nccl-tests src/*.cu. Over NVLink four GPUs pass on far more than the 15 GB/s of shared memory."""
    rates = f"{(size := 1073.74):.2f} {size * factor:.2f}"
    row = f" 1073741824 67108864 float {cells} 1000.0 {rates} 0 1000.0 {rates} {errors}\n"
    figures = read(H100S.format(*"aaaa") + row).figures
    assert [figure.metric for figure in figures] == [metric] * bool(metric)
    slow = diagnose(read(H100S.format(*"aaaa") + row.replace("1000.0 1073.74", "71582.8 15.00").replace(
        f" {size * factor:.2f} ", f" {15 * factor:.2f} ")))  # fmt: skip
    assert (slow.figures[0].verdict, slow.causes[0].cause) == ("low", "p2p-disabled") if metric else not slow.figures


def test_an_all_to_all_between_hosts_is_held_against_what_must_leave_a_host() -> None:
    """2 × 8 H100 with 400 GB/s a host: a bus bandwidth of 85 (EP16 over EFA) is as it should be, 20 is not."""
    setup = {"gpu": "NVIDIA H100", "gpus_per_host": 8, "hosts": 2, "nics": {"count": 16, "rate_gbps": 200}}
    for value, verdict in ((85, "expected"), (20, "low"), (120, "impossible")):
        figure = {"metric": "all-to-all-busbw", "value": value, "unit": "GB/s", "size_bytes": 1 << 30}
        judged = diagnose(msgspec.convert({"version": 1, "setup": setup, "figures": [figure]}, Measured)).figures[0]
        assert (judged.verdict, judged.bound) == (verdict, 93.75)


def test_an_all_to_all_of_fewer_gpus_than_hosts_and_of_a_rack_is_not_held_against_ports() -> None:
    nics = {"count": 4, "rate_gbps": 400}
    figure = {"metric": "all-to-all-busbw", "value": 500, "unit": "GB/s", "size_bytes": 1 << 30}
    for setup, subject in (
        ({"gpu": "NVIDIA GB200", "gpus_per_host": 4}, "8 GPUs on 2 hosts"),
        ({}, "2 GPUs on 3 hosts"),
    ):
        document = {"version": 1, "setup": {**setup, "nics": nics}, "figures": [{**figure, "subject": subject}]}
        assert diagnose(msgspec.convert(document, Measured)).figures[0].verdict != "impossible"


def test_sockets_decide_nothing_where_all_ranks_are_of_one_host() -> None:
    lines = ("# Rank  0 Pid 1 on a device  0 [0x0] X", "# Rank  1 Pid 1 on a device  1 [0x1] X",
             "a:1:2 [1] NCCL INFO Failed to open libibverbs.so[.1]", "a:1:2 [1] NCCL INFO NET/Socket : Using"
             " [0]eth0:1<0>",
             "a:1:3 [1] NCCL INFO comm 0x1 rank 1 nranks 2 cudaDev 1 busId 3000 - Init START")  # fmt: skip
    assert read("\n".join(lines)).observations.transport is None


def test_the_gpu_whose_pairs_are_all_low_is_named() -> None:
    rows = "\n".join(f"{a}  " + "  ".join("900.00" if a == b else "3.90" if 3 in (a, b) else "50.00" for b in range(4))
                     for a in range(4))  # fmt: skip
    found = diagnose(read(f"Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n D\\D 0 1 2 3\n{rows}\n"))
    assert "as all pairs of gpu3" in found.causes[0].sentence


def test_a_run_on_a_part_of_a_host_is_no_contradiction() -> None:
    topology = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-31\nGPU1\tSYS\t X \t0-31\n"
    ranks = "a:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n"
    measured, _, doubts = read_log(topology + ranks, "a.log")
    assert (measured.setup.gpus_per_host, [doubt for doubt in doubts if doubt.what == "two sources differ"]) == (1, [])


def a_run(host: str, gpu: str, busbw: float) -> list[str]:
    """Return what nccl-tests prints of one all-reduce on eight GPUs."""
    ranks = [f"#  Rank  {n} Group  0 Pid 7{n} on {host} device  {n} [0x{n}] {gpu}" for n in range(8)]
    row = f"{8589934.592 * 1.75 / busbw:.1f} {busbw / 1.75:.2f}   {busbw:.2f}      0"
    return [
        "# nThread 1 nGpus 8 minBytes 8589934592",
        *ranks,
        f" 8589934592 2147483648 float sum -1 {row} {row}",
    ]


def by_pdsh(*runs: list[str]) -> str:
    """Return their lines as they arrive: those of all hosts in turn, each with its host before it."""
    hosts = [run[1].split(" on ")[1].split()[0] for run in runs]
    return "\n".join(
        f"{host}: {line}" for lines in zip(*runs, strict=True) for host, line in zip(hosts, lines, strict=True)
    )


@pytest.mark.parametrize("mixed", [by_pdsh, lambda *runs: "\n".join(line for run in runs for line in run)])
def test_runs_of_several_hosts_in_one_file(mixed: Callable[..., str]) -> None:
    """Each host ran its own test: equals are compared by host, and no network is between them."""
    slow, well = (a_run(host, "NVIDIA A100-SXM4-80GB", rate) for host, rate in (("gpu02", 60.0), ("gpu03", 234.0)))
    found = diagnose(read(mixed(slow, well)))
    assert [(figure.subject, figure.verdict) for figure in found.figures] == [
        ("gpu02: 8 GPUs", "low"), ("gpu03: 8 GPUs", "expected")]  # fmt: skip
    assert names(found)[0] == "nvlink-down-or-missing"
    assert not {"log-line", "network-congestion-or-routing"} & {*names(found)}


@pytest.mark.parametrize("mixed", [by_pdsh, lambda *runs: "\n".join(line for run in runs for line in run)])
def test_runs_of_different_machines_in_one_file(mixed: Callable[..., str]) -> None:
    """No model holds for both, and neither is the measure of the other: that is said first."""
    text = mixed(a_run("gpu01", "NVIDIA H200", 477.0), a_run("gpu02", "NVIDIA A100-SXM4-80GB", 60.0))
    measured, _, doubts = read_log(text, "both.log")
    found = msgspec.structs.replace(diagnose(measured), problems=doubts)
    assert names(found) == []
    assert {figure.verdict for figure in found.figures} == {"unknown"}
    assert "of 'NVIDIA H200' and of 'NVIDIA A100-SXM4-80GB': give the output of each machine alone" in (
        diagnosis_report(found).headline)  # fmt: skip


def test_a_few_links_to_each_peer_are_no_switch() -> None:
    """Four A100 of one board: of two the four links between them carry the run, and not all twelve."""
    gpus = [f"GPU{n}" for n in range(4)]
    rows = "".join(f"{a}\t" + "\t".join(" X " if a == b else "NV4" for b in gpus) + "\t0-31\n" for a in gpus)
    topology = "\t" + "\t".join(gpus) + "\tCPU Affinity\n" + rows
    ranks = "".join(f"#  Rank  {n} Group  0 Pid 1 on a device  {n} [0x0] NVIDIA A100-SXM-64GB\n" for n in range(2))
    row = " 1073741824  268435456  float  sum  -1  14892  72.10  72.10  0  14616  73.47  73.47  0\n"
    assert names(diagnose(read(ranks + row + topology))) == []


PORT = (
    "RDMA_Write BW Test\n Device         : {0}\n"
    " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    " 65536    5000    {1}    {1}    {2}\n----\n"
)
STREAM = "".join(
    f"[  5]   {n}.00-{n + 1}.00   sec   400 MBytes  {rate} Gbits/sec    {{4}}    277 KBytes\n"
    for n, rate in enumerate(("1.0", "{0}", "{1}", "{2}", "{3}", "{0}"))
)
TWO = (
    "#       size   count   type   redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong\n"
    "    33554432   8388608  float  sum  -1   812.3   41.31   41.31   0   808.2   41.52   41.52   0\n"
)
DCGM = "GPUs:\n    gpuId 0:\n        U U U U\n    gpuId 1:\n        U U {} U\n"
ROCM = (LOGS / "rocm-bandwidth-one.txt").read_text()


# One form of each, as drivers and tools print it (the sources stand beside the rows of faultlines.py).
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[  +0.001779] vfio_pin_pages_remote: RLIMIT_MEMLOCK (65536) exceeded", "may not be locked"),
        ("[  +0.000004] pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
         "PCIe errors, fatal"),
        ("[sam. nov. 28 15:16:08 2026] vfio-pci 0000:03:00.0: BAR 0: can't reserve [mem 0x28-0x2f]",
         "holds a BAR"),
        ("node-7 | 12:00:01 vfio-pci 0000:03:00.0: not ready 65535ms after bus reset; giving up", "after a reset"),
        ("2024-07-02 18:46:08.681559 kernel:[   21.766727] NVRM: Xid (PCI:0000:61:00): 79, GPU has fallen off",
         "XID 79"),
        ("NVRM: GPU 0000:13:00.0: RmInitAdapter failed! (0x24:0x1c:1447)", "power cables"),
        ("nvidia 0000:01:00.0: not ready 65535ms after resume; giving up\nNVRM: GPU 0000:01:00.0: RmInitAdapter"
         " failed! (0x22:0x56:667)", "cannot be woken"),
        ("nvidia 0000:01:00.0: not ready 8191ms after resume; waiting", "cannot be woken"),
        ("[H1:1:0]  ib_verbs.h:84   UCX  ERROR ibv_exp_query_device(mlx5_0) returned 38: No space left on device",
         "another RDMA library"),
        ("./a.out: relocation error: libuct_ib.so.0: symbol mlx5dv_is_supported, version MLX5_1.8 not defined in file"
         " libmlx5.so.1", "another RDMA library"),
        ("#     component 0  :  posix\n#     component 3  :  tcp\n#      resource 3  :  md 3  dev 1  flags -- tcp/ib0",
         "no transport for InfiniBand"),
        ("# Memory domain: tcp\n#     Component: tcp\n#      Transport: tcp\n#         Device: ib0",
         "no transport for InfiniBand"),
        ("# Memory domain: tcp\n#            component: tcp\n#   Transport: tcp\n#\n#   Device: ib0", "for InfiniBand"),
        ("nvidia 0000:63:00.0: AER: can't recover (no error_detected callback)\n"
         "NVRM: Xid (PCI:0000:63:00): 31, name=plasmashell, MMU Fault", "PCIe error that was not corrected"),
        ("infiniband ports on a device\nare not used by default.  The intent is to use UCX", "old path for Infini"),
        ("there are no active ports detected (or Open MPI was unable to use\nthem).", "no port of it that is active"),
        ("[0] MPI startup(): libfabric provider: sockets\nprovider psm returned -61", "libfabric's TCP"),
        ("4: enp1s0f1np1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq\n#  Rank  0 Group  0 Pid 11 on a device "
         " 0 [000f:01:00] NVIDIA GB10\n#  Rank  1 Group  0 Pid 12 on b device  0 [000f:01:00] NVIDIA GB10\n"
         " 17179869184    2147483648     float    none      -1   453650   37.87   18.94      0   410049   41.90  "
         " 20.95\n",
         "MTU of 1500"),
        ("|   0  NVIDIA GB10  |\nNVRM version: NVIDIA UNIX aarch64 Kernel Module  580.95.05", "closed kernel mod"),
        ("$ cat /proc/driver/nvidia/version\nNVRM version: NVIDIA UNIX Kernel Module  580.95\nGB10", "closed kernel"),
        ("#       size         count      type\n#        (B)    (elements)      (us)\n^C", "its head and no row"),
        (">      bytes             N    type      op     time\n\n(stalled here)", "its head and no row"),
        ("# Rank  0 Pid 13 on n1 device  0 [0x00] V100\n# Rank  0 Pid 20 on n2 device  0 [0x00] V100", "ran alone"),
        ("NVRM kgspInitRm_IMPL: missing NVDEC0 engine, cannot initialize GSP-RM", "cannot run this GPU"),
        ("With NCCL_P2P_DISABLE=1 the same program completes.", "copies between the GPUs do not arrive"),
        ("This system also has UEFI Secure Boot enabled; you may\nKernel module load error: Operation not permitted",
         "Secure Boot refuses"),
        ("vfio group X is not viable, please ensure all devices within the iommu group are bound", "group"),
        ("[921.622] NVRM: GPU0 _kgspBootGspRm: unexpected WPR2 already up,\n       cannot proceed\n"
         "[921.623] NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x62:0x40:2192)", "not reset"),
        ("No devices were found\nNVRM: GPU 0000:98:00.0: kgspWaitForGfwBootOk: failed to wait for GFW boot complete",
         "own firmware"),
        ("h:1:2 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5> with status=12 len=0",
         "status 12"),
        ("h:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-U to 963789 bytes", "/dev/shm"),
        ("[33058.244455] infiniband mlx5_0: create_mkey_warn:158: async reg mr failed. status -121", "keys left"),
        ("15:38:15.8 IP truncated-ip - 7502 bytes missing! (tos 0x2,ECT(0), flags [DF], length 9000)", "MTU"),
        ("nv-fabricmanager[1]: fabric manager NVIDIA GPU driver interface version 550.127.05 don't match with driver"
         " version 550.120.", "different versions"),
        ("q: vfio 0000:41:10.1: Region pc.ram: vfio_dma_map(0x55ba53e7a9d0, 0x100000000, 0xff30000000, 0x7ed243e00000)"
         " = -22 (Invalid argument)", "0xfd00000000"),
        ("q: Region pc.ram: vfio_dma_map(0x55ba53e7a9d0, 0x0, 0x80000000, 0x7ed243e00000) = -22 (Invalid argument)\n"
         "0x0000000070000000 0x0000000071ffffff reserved", "0x71ffffff"),
        ("DMAR:[DMA Read] Request device [02:00.0] fault addr 9d0000000", "0000:02:00.0: its memory access"),
        ("train-0 | nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 12028, Non-fatal, Link 32 egress", "SXid 12028"),
        ("TASK ERROR: cannot prepare PCI pass-through, IOMMU not present", "IOMMU is off"),
        ("pcieport 0000:40:01.1: AER: Uncorrectable (Non-Fatal) error message received", "PCIe errors"),
        ("\t\tLnkSta:\tSpeed 5GT/s (downgraded), Width x1 (downgraded)\n\t\t\tTrErr- Train- SlotClk+", "x1 at 5 GT/s"),
        ("| PCIe         | Fail - All            |\n| Warning | GPU 0GPU 0's NvLink link 0 is currently down |",
         "no fault"),
        ("q: error getting device from group 14: Input/output error\n"
         "Verify all devices in group 14 are bound to vfio-<bus> or pci-stub and not already in use\n"
         "nvidia-vgpu-mgr[8]: error: vmiop_log: (0x0): vGPU is supported only on VGX capable boards", "has no vGPU"),
        ("Verify all devices in group 14 are bound to vfio-<bus> or pci-stub", "same IOMMU group"),
        ("vfio-pci 0000:0c:00.0: AMD_NAVI10: timed out waiting for PSP to reach valid state", "from a reset"),
        ("GPUs:\n    gpuId 0:\n        D D D D _ _\n    gpuId 1:\n        D D D D _ _\n", "all links of a GPU"),
        ("h:1:2 [0] NCCL INFO NET/IB : Using [0]rxe0:1/RoCE [RO]; OOB eth0", "is software"),
        (PORT.format("rxe0", 3.1, 0.005913), "is software"),
        (STREAM.format(3.1, 4.2, 3.3, 4.4, 0), "a CPU on its way"),
        ("".join(f"NVRM: Xid (PCI:0000:02:00): {code}, pid=1\n" for code in (62, 32, 13))
         + "NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x24:0x65:1185)", "itself is failing: XID 62, 32, 13"),
    ],
)  # fmt: skip
def test_wordings_of_faults(line: str, words: str) -> None:
    """The line that says why is alone or first; that of what failed with it does not stand beside it."""
    first, *others = read(f"{line}\n").observations.stated
    assert words in first.says
    assert not any("lost, or did not start" in other.says for other in others)


@pytest.mark.parametrize(
    "text",
    [
        "    Clocks Throttle Reasons\n        Idle : Active\n        SW Power Cap                : Not Active\n"
        "            HW Thermal Slowdown     : Not Active\n",
        "RDMA_Write BW Test\n #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]\n"
        " 1048576    5000             92.62              92.62              0.011041\n```\n\n**client**\n",
        "LnkCap: Port #0, Speed 16GT/s, Width x16\nLnkSta: Speed 2.5GT/s (downgraded),\n        Width x16\n",
        "00:01.0 PCI bridge: X\n\tCapabilities: [40] Express\n\t\tLnkSta: Speed 8GT/s, Width x4 (downgraded)\n",
        "[  +0.001779] vfio-pci 0000:03:00.0: enabling device (0000 -> 0003)\n",
        "[12.1] NVRM: The NVIDIA probe routine was not called for 1 device(s).\n",
        PORT.format("rxe0", 9.2, 0.017548),
        PORT.format("mlx5_0", 3.1, 0.005913),
        STREAM.format(4.9, 5.0, 4.9, 5.0, 0),
        STREAM.format(3.1, 4.2, 3.3, 4.4, 2),
        STREAM.format(23.1, 34.2, 23.3, 34.4, 0),
        DCGM.format("U"),
        ROCM,
        f"$ mpirun -np 2 -x NCCL_ALGO=Tree ./all_reduce_perf\n{TWO}",
        "[    9.123] mlx5_core 0000:13:00.0: mlx5_pcie_event:297: PCIe slot power capability was not advertised\n",
    ],
)
def test_healthy_fragments_name_nothing(text: str) -> None:
    assert not diagnose(read(text)).causes


GUESTS = tomllib.loads((ROOT / "cases/diagnosis/guests.toml").read_text())
CLUSTERS = tomllib.loads((ROOT / "cases/diagnosis/clusters.toml").read_text())
DRIVERS = tomllib.loads((ROOT / "cases/diagnosis/drivers.toml").read_text())
TOLD = [*GUESTS["told"], *CLUSTERS["told"], *DRIVERS["told"]]


@pytest.mark.parametrize(("words", "text"), TOLD, ids=lambda part: part[:40])
def test_what_is_said_of_guests_drivers_and_clusters(words: str, text: str) -> None:
    first, *_ = read(f"{text}\n").observations.stated
    assert words in first.says


def test_every_row_about_guests_drivers_and_clusters_has_a_line() -> None:
    told = [text for _, text in TOLD]
    guests = (*GUEST_LINES, *GUEST_SYMPTOMS, *GUEST_FAILURES)
    rows = (*guests, *CLUSTER_LINES, *CLUSTER_SYMPTOMS, *CLUSTER_FAILURES, *DRIVER_LINES, *DRIVER_SYMPTOMS)
    assert [row.says for row in rows if not any(search(row.pattern, text) for text in told)] == []


@pytest.mark.parametrize("text", GUESTS["quiet"], ids=lambda text: text[:40])
def test_healthy_hosts_and_guests_name_nothing(text: str) -> None:
    assert not diagnose(read(f"[    0.000000] Linux version 6.8.0\n{text}")).causes


@pytest.mark.parametrize("text", CLUSTERS["quiet"] + DRIVERS["quiet"], ids=lambda text: text[:40])
def test_healthy_clusters_and_drivers_name_nothing(text: str) -> None:
    assert not diagnose(read(text)).causes


@pytest.mark.parametrize(
    "text",
    [
        "qemu-system-x86_64: something new went wrong",
        "error: internal error: something new went wrong",
        "[    1.234567] __common_interrupt: 4.55 No irq handler for vector",
    ],
)
def test_a_line_without_a_rule_is_quoted_and_no_alarm(text: str) -> None:
    measured, _, doubts = read_log(f"{text}\n", "a.log")
    assert not diagnose(measured).causes
    assert doubts[0].where == f"a.log:{text.count(chr(10)) + 1}"
    assert text.rpartition("\n")[2] in doubts[0].why


def test_quotation_marks_of_pages_are_those_of_programs() -> None:
    """harvester/pcidevices issue 81."""
    line = "[12.1] vfio-pci 0000:b3:00.0: BAR 1: can\u2019t reserve [mem 0xe0000000-0xefffffff 64bit pref]\n"
    assert [one.says for one in read(line).observations.stated] == [
        "0000:b3:00.0: something else holds a BAR that VFIO needs"
    ]


def test_memory_of_another_node_is_no_cause_for_one_gpu_of_four() -> None:
    """NVIDIA/nvbandwidth issue 6: all four copy from the same memory."""
    figures = [{"metric": "h2d", "subject": f"gpu{n}", "value": rate, "unit": "GB/s"}
               for n, rate in enumerate((14.2, 57.06, 56.68, 57.07))]  # fmt: skip
    document = {"version": 1, "setup": {"gpu": "NVIDIA H100 80GB HBM3", "hosts": 1}, "figures": figures}
    assert names(diagnose(Measured.from_yaml(json.dumps(document)))) == ["pcie-link-degraded"]


def test_that_a_gpu_did_not_start_is_left_to_its_xid() -> None:
    """Start9Labs/start-technologies pull request 3693; an application's own XID of before says nothing of it."""
    text = "NVRM: Xid (PCI:0000:02:00): {}, pid=1\nNVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x62:0x1a:2631)\n"
    assert [one.says for one in read(text.format(169)).observations.stated] == [
        "0000:02:00.0: the driver reports XID 169 (internal microcontroller halt)"
    ]
    first, second = read(text.format(31)).observations.stated
    assert ("did not start" in first.says, "XID 31" in second.says) == (True, True)


def test_a_port_that_waited_for_a_device_after_a_reset_is_no_root() -> None:
    """gnif/vendor-reset issue 72."""
    port = "[1.1] pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=8\n"
    gone = "[9.1] vfio-pci 0000:01:00.0: not ready 65535ms after bus reset; giving up\n"
    waited = "[1.2] pcieport 0000:00:01.0:    [14] CmpltTO                (First)\n"
    for why, first in ((waited, "0000:01:00.0"), ("", "0000:00:01.0")):
        assert next(iter(read(port + why + gone).observations.stated)).says.startswith(first)


def test_a_confidential_gpu_that_is_not_ready_lacks_no_fabric() -> None:
    """NVIDIA/nvtrust issue 56: CUDA says 802 of it, too."""
    text = "Confidential Compute GPUs Ready state: {}\nRuntimeError: CUDA error: system not yet initialized\n"
    not_ready, ready = (read(text.format(state)).observations for state in ("not-ready", "ready"))
    assert (not_ready.p2p, ready.p2p, len(not_ready.stated), len(ready.stated)) == (None, "off", 1, 0)


def test_a_topology_without_links_is_that_of_a_guest() -> None:
    """NVIDIA/nccl issue 1329; with the links it says nothing."""
    text = """<system version="1">
  <cpu numaid="-1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="134">
    <pci busid="0000:00:09.0" class="0x030200" vendor="0x10de" device="0x20f5" link_speed="" link_width="0">
      <gpu dev="0" sm="80" rank="0" gdr="1"/>
"""
    assert names(diagnose(read(text))) == ["guest-topology-hidden"]
    linked = text.replace('link_speed="" link_width="0"', 'link_speed="16.0 GT/s PCIe" link_width="16"')
    assert read(f"[    0.000000] Linux version 6.8.0\n{linked}").observations.guest_topology is None


def test_a_boot_log_says_that_this_is_a_guest() -> None:
    lines = ("Hypervisor detected: KVM", "DMI: QEMU Standard PC (Q35 + ICH9, 2009)", "Hypervisor detected: Xen PV")
    assert [read(f"[    0.000000] {line}\n").setup.virtual for line in lines] == [True, True, None]


def test_what_a_guest_prints_within_a_log_of_its_host_is_one_sentence() -> None:
    """kata-containers issue 11671."""
    line = 'containerd[9]: level=debug msg="reading guest console" vmconsole="[13.25] NVRM: {}"\n'
    words = ("The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2331)", "installed in this system is not supported by the",
             "NVIDIA 575.64.03 driver release.")  # fmt: skip
    (told,) = read("".join(map(line.format, words))).observations.stated
    plain, *rest = words
    (same,) = read(f"[13.25] NVRM: {plain}\n" + "".join(f"    NVRM: {word}\n" for word in rest)).observations.stated
    assert (told.says, told.remedy) == (same.says, same.remedy)


def test_without_peer_access_redirection_is_no_cause() -> None:
    """Copies then go through the host's memory, whatever the bridges do."""
    figure = {"metric": "p2p", "subject": "gpu0->gpu1", "value": 5.9, "unit": "GB/s"}
    setup = {"gpu": "NVIDIA GeForce RTX 3090", "gpus_per_host": 4, "hosts": 1}
    document = {"version": 1, "setup": setup, "figures": [figure], "observations": {"p2p": "off"}}
    assert names(diagnose(Measured.from_yaml(json.dumps(document)))) == ["p2p-disabled"]


def test_sockets_that_the_environment_asks_for_come_first() -> None:
    """Without the ways within a host even its own GPUs talk over TCP."""
    environment = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"}
    setup = {"gpu": "NVIDIA H100 80GB HBM3", "gpus_per_host": 8, "hosts": 1, "environment": environment}
    figure = {"metric": "all-reduce-busbw", "value": 2.3, "unit": "GB/s", "size_bytes": 1 << 30}
    found = names(diagnose(Measured.from_yaml(json.dumps({"version": 1, "setup": setup, "figures": [figure]}))))
    assert found[0] == "socket-transport-instead-of-ib"
    assert "p2p-disabled" not in found


def test_two_ranks_without_their_list() -> None:
    """The operation and the missing root tell all_reduce, whose factor of two ranks is 1."""
    assert [(one.subject, one.value) for one in read(TWO).figures] == [("2 GPUs", 41.31)]
    assert not read(TWO.replace("sum  -1", "sum   0")).figures
    # The protocol still counts for two.
    forced = f"$ mpirun -x NCCL_PROTO=LL ./all_reduce_perf\n{TWO}"
    assert names(diagnose(read(forced))) == ["algorithm-or-protocol-forced"]


def test_the_first_version_of_rocm_bandwidth_test_on_one_lane() -> None:
    """It names no buses, and a GPU is what copies within itself; less than a lane is low for any slot."""
    old = ROCM.replace(",  19:0.0", "").replace(" copy", "")
    assert {one.metric for one in read(old).figures} == {"h2d", "d2h", "device-copy"}
    found = diagnose(read(old.replace("13.750", "0.318").replace("14.280", "0.342")))
    assert names(found)[0] == "pcie-link-degraded"
    assert "far-numa-node" not in names(found)


def test_the_link_to_a_cards_own_switch_is_not_that_to_its_slot() -> None:
    block = (
        "19:00.0 Display controller: {} Vega 20 (rev 01)\n\tCapabilities: [64] Express\n"
        "\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM L1\n\t\tLnkSta:\tSpeed 16GT/s, Width {}\n"
    )
    maker = "Advanced Micro Devices, Inc. [AMD/ATI]"
    assert read(block.format(maker, "x16")).observations.link is None
    assert read(block.format(maker, "x8")).observations.link is not None
    assert read(block.format("NVIDIA Corporation", "x16")).observations.link is not None


def test_nvbandwidth_without_the_names_of_its_tests() -> None:
    text = "".join(
        f"Device 0: NVIDIA GeForce RTX 5090 (00000000:2e:00)\nmemcpy CE CPU(row) {arrow} GPU(column) bandwidth (GB/s)\n"
        f"           0\n 0      {value}\n\n"
        for arrow, value in (("->", "2.80"), ("<-", "3.29"), ("<->", "2.47"))
    )
    assert [(one.metric, one.value) for one in read(text).figures] == [("h2d", 2.8), ("d2h", 3.29)]
    assert names(diagnose(read(text)))[0] == "pcie-link-degraded"


def test_links_of_dcgm() -> None:
    found = read(DCGM.format("D"))
    assert found.setup.nvlinks_per_gpu == 3
    assert found.observations.said["nvlinks"] == "GPU 1: 3 of its 4 links are active"
