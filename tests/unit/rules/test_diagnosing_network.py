"""Reports of networks between hosts and of launchers: ports, fabric tools, tables of pairs, lines of libraries."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hosttune.errors import BadInput
from hosttune.model.diagnosis import Diagnosis
from hosttune.rules.causes import diagnose
from hosttune.rules.causes.logs import read_log
from hosttune.rules.causes.pairs import PAIRS

REPORTS = json.loads((Path(__file__).parents[2] / "cases/diagnosis/network.json").read_text())


def found(text: str) -> Diagnosis:
    return diagnose(read_log(text, "a.log")[0])


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["id"])
def test_reports(report: dict[str, Any]) -> None:
    causes = [f"{cause.cause}: {cause.evidence[0]}" for cause in found(report["log"]).causes]
    assert (report["first"].lower() in causes[0].lower()) if report["first"] else not causes


LINK = (
    '           2    {0}[  ] ==( {1}      25.78125 Gbps Active/  LinkUp)==>      1{0}    1[  ] "node{0} mlx5_0" ({2})\n'
)
SWITCH = "Switch: 0x7cfe900300a3d2c0 MF0;sw01:MSB7700/U1:\n"
EMPTY = '           2    9[  ] ==(                Down/ Polling)==>             [  ] "" ( )\n'
MLXLINK = (
    "Operational Info\n----------------\nState                           : {}\n\nTroubleshooting Info\n"
    "--------------------\nStatus Opcode                   : {}\nGroup Opcode                    : {}\n"
    "Recommendation                  : {}\n"
)
COUNTERS = "# Port counters: Lid 5 port 1 (CapMask: 0x5300)\nSymbolErrorCounter:..............{}\nPortRcvErrors:...................0\nPortXmitDiscards:................{}\nPortRcvPkts:.....................{}\n"  # noqa: E501
SHOW_GIDS = (
    "DEV     PORT    INDEX   GID                                     IPv4            VER     DEV\n"
    "---     ----    -----   ---                                     ------------    ---     ---\n"
    "mlx5_0  1       1       fe80:0000:0000:0000:0ac0:ebff:fe21:03da                 v2      eth2\n{}n_gids_found=2\n"
)
ADDRESS = "mlx5_0  1       3       0000:0000:0000:0000:0000:ffff:c000:0211 192.0.2.17      v2      eth2\n"
ETHTOOL = "Settings for eth{}:\n\tSupported link modes:   100000baseCR4/Full\n\tSpeed: Unknown!\n\tLink detected: no\n"
IP = "{0}: ens{0}: <{1}> mtu 9000 qdisc mq state DOWN qlen 1000\n    link/ether 02:00:00:00:00:0{0} brd ff:ff:ff:ff\n"
DEVINFO = (
    "hca_id:\tmlx5_{}\n\tvendor_part_id:\t\t4129\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n"
    "\t\t\tlink_layer:\t\tInfiniBand\n\t\t\tactive_width:\t\t4X (2)\n\t\t\tactive_speed:\t\t{} Gbps (128)\n"
)


# The forms are those of iblinkinfo, mlxlink, perfquery, show_gids, ethtool, ip and ibv_devinfo -v (rdma-core,
# Mellanox/mstflint, ethtool, iproute2), with invented values.
@pytest.mark.parametrize(
    ("text", "first"),
    [
        (SWITCH + LINK.format(1, "4X", " ") + LINK.format(2, "1X", " Could be 4X ") + EMPTY, "narrower or slower"),
        (SWITCH + LINK.format(1, "4X", " ") + LINK.format(2, "4X", " ") + EMPTY, ""),
        (MLXLINK.format("Polling", 1024, "MNG FW", "Cable is unplugged"), "Cable is unplugged"),
        (MLXLINK.format("Active", 0, "N/A", "No issue was observed"), ""),
        (COUNTERS.format(65535, 0, 234567), "arrive damaged"),
        (COUNTERS.format(2, 7, 32262508468), ""),
        (COUNTERS.format(0, 9000, 234567), "could not send on"),
        ("GUID 0x98039b03009a1b2c port 7:  [SymbolErrorCounter == 65535] [PortXmitWait == 22]\n", "counts errors"),
        (SHOW_GIDS.format(""), "all GIDs are link-local"),
        (SHOW_GIDS.format(ADDRESS), ""),
        (ETHTOOL.format(1), "0 of 1 ports are active (eth1: no link)"),
        (ETHTOOL.format(1) + ETHTOOL.format(2).replace("Unknown!", "100000Mb/s").replace("no\n", "yes\n"), ""),
        (IP.format(4, "NO-CARRIER,BROADCAST,MULTICAST,UP"), "ens4: no carrier"),
        (IP.format(4, "BROADCAST,MULTICAST"), "ens4: ip link set"),
        (IP.format(4, "NO-CARRIER,BROADCAST,UP") + IP.format(5, "BROADCAST,MULTICAST,UP,LOWER_UP"), ""),
        (DEVINFO.format(0, "100.0") + DEVINFO.format(1, "25.0"), "port at 100 of 400 Gb/s (mlx5_1 port 1)"),
        ("mlx5_0 port 1 ==> ens1 (Down)\n", "0 of 1 ports are active (mlx5_0 port 1)"),
        ("mlx5_0 port 1 ==> ens1 (Up)\nmlx5_1 port 1 ==> ib0 (Down)\n", ""),  # of IPoIB it tells nothing of the port
        ("$ ping -M do -s 8972 node2\n--- node2 ping statistics ---\n3 packets transmitted, 0 received, 100% loss\n",
         "an MTU on the way"),
        ("$ ping node2\n--- node2 ping statistics ---\n3 packets transmitted, 0 received, 100% loss\n",
         "other host does not answer"),
        (DEVINFO.format(0, "100.0").replace("ACTIVE (4)", "INIT (2)"), "waits for the subnet manager"),
        ("\tModule temperature high alarm             : On\n", "too hot"),
        ("[W socket.cpp:697] [c10d] The client socket has failed to connect to [n0]:29500 (errno: 111 - Connection "
         "refused).\n", "ranks do not reach the first one"),
        # A rank that starts before the first one tries again.
        ("[W socket.cpp:697] [c10d] The client socket has failed to connect to [n0]:29500 (errno: 111 - Connection "
         "refused).\nn0:1:1 [0] NCCL INFO comm 0x5 rank 0 nranks 16 cudaDev 0 - Init COMPLETE\n", ""),
        ("ssh: connect to host node2 port 22: Connection refused\n", "cannot log in"),
        ("h:1:2 [0] NCCL WARN NET/IB : mlx5_0:1 async fatal event on QP (0x7f) qpn=9 state=6 rq_psn=1: local access "
         "violation work queue error\n", "refused a request of its peer"),
        ("h:1:2 [0] NCCL WARN NET/IB : Attempted to merge incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE. "
         "Try selecting NICs of only one link type using NCCL_IB_HCA\n", "are mixed"),
    ],
)  # fmt: skip
def test_states_of_ports_and_networks(text: str, first: str) -> None:
    causes = [cause.evidence[0] for cause in found(text).causes]
    assert (first.lower() in causes[0].lower()) if first else not causes


def test_a_refused_command_of_the_firmware_is_quoted_and_no_cause() -> None:
    line = "[    1.500000] mlx5_core 0000:17:00.0: mlx5_cmd_check:810:(pid 9): create_mkey(0x200) op_mod(0x0) failed, status bad parameter(0x3)\n"  # noqa: E501
    measured, _, doubts = read_log(line, "a.log")
    assert not diagnose(measured).causes
    assert [doubt.what for doubt in doubts] == ["the NIC's firmware refused a command of its driver"]


SQUARE = "| Gb/s | gpu-a | gpu-b | gpu-c |\n|---|---|---|---|\n| gpu-a | - | 90.1 | 197.0 |\n| gpu-b | 91.0 | - | 90.4 |\n| gpu-c | 197.1 | 90.2 | - |\n"  # noqa: E501


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("ib_write_bw, Gb/s\nnode1 -> node2: 392.1\nnode1 -> node3: 188.4\nnode2 -> node3: 189.0\n"
         "node1 -> node4: 391.8\nnode2 -> node4: 392.0\nnode3 -> node4: 188.8\n", "node3"),
        (SQUARE, "gpu-b"),
        ("src,dst,Gbps\n192.0.2.1,192.0.2.2,97.1\n192.0.2.1,192.0.2.3,97.0\n192.0.2.1,192.0.2.4,9.4\n"
         "192.0.2.2,192.0.2.3,97.1\n", "192.0.2.4"),
        ("n1 n2 392.1 Gb/s\nn1 n3 388.4 Gb/s\nn2 n3 389.0 Gb/s\n", ""),
    ],
)  # fmt: skip
def test_the_host_whose_pairs_stand_out(text: str, host: str) -> None:
    causes = found(text).causes
    assert (f"host {host}:" in " ".join(causes[0].evidence) + ":") if host else not causes


@pytest.mark.parametrize(
    "text",
    [
        "model gpt-7b 12.1\nmodel gpt-13b 8.4\nmodel gpt-70b 1.5\nGB/s\n",
        "node1 node2 392.1\nnode1 node3 388.4\nnode2 node3 389.0\n",  # in which unit?
    ],
)
def test_tables_that_are_none_of_pairs_of_hosts(text: str) -> None:
    with pytest.raises(BadInput, match="a table of pairs of hosts"):
        read_log(text, "a.log")


def test_a_section_of_a_report_is_no_table_of_pairs() -> None:
    rows = "".join(f"        {name:40}: 0\n" for name in ("Active Sessions", "Average FPS", "Average Latency"))
    assert not re.search(PAIRS, rows)
