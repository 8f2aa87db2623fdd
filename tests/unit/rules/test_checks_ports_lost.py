"""A RoCE and an InfiniBand port, recorded whole; then files and answers are lost, emptied, cut short: nothing improves.

The captured hosts of the other sweeps have no RoCE port; the texts are real (tests/cases/ports).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import msgspec
import pytest
from damage import Files
from unit.rules.test_checks_ports import FUNCTION, one

from hosttune.discovery.evidence import gather
from hosttune.model.networkintent import Roce
from hosttune.rules.checks import checks

CASES = Path(__file__).parents[2] / "cases" / "ports"
ADDRESS = "0000:19:00.0"
FOLDER = f"/sys/devices/pci0000:18/{ADDRESS}"
PORT, NET = f"{FOLDER}/infiniband/mlx5_0/ports/1", f"{FOLDER}/net/eth0"
COMMANDS = "/.hosttune/commands"
DECLARED = Roce(mtu=9000, rdma_mtu=4096, trust="dscp", pfc=(5,), ecn=(5,), traffic_class=160)
IB = "port-capability of InfiniBand"
CHECKS = ("port-roce", "port-module", "port-capability")
IB_ADDRESS = "0000:2a:00.0"
IB_FOLDER = f"/sys/devices/pci0000:29/{IB_ADDRESS}"
IB_PORT = f"{IB_FOLDER}/infiniband/mlx5_1/ports/1"
HDR = CASES.joinpath("portinfo", "ibsim-hdr.txt").read_text().replace("4X or 8X or 12X or 2X", "2X or 4X")
SFP = CASES.joinpath("ethtool", "m-sfp.txt").read_text()
MODES = CASES.joinpath("ethtool", "bnxt-10g.txt").read_text()
QOS = CASES.joinpath("mlnx-qos.txt").read_text()
HEALTHY: Mapping[str, str] = {
    **{f"{FOLDER}/{name}": text.decode() for name, text in FUNCTION.items()},
    f"{FOLDER}/class": "0x020000\n",
    f"{PORT}/link_layer": "Ethernet\n",
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/phys_state": "5: LinkUp\n",
    f"{PORT}/gid_attrs/types/0": "IB/RoCE v1\n",
    f"{PORT}/gid_attrs/types/1": "RoCE v2\n",
    f"{FOLDER}/infiniband/mlx5_0/tc/1/traffic_class": "Global tclass=160\n",
    f"{NET}/flags": "0x1003\n",
    f"{NET}/carrier": "1\n",
    f"{NET}/type": "1\n",
    f"{NET}/mtu": "9000\n",
    f"{NET}/speed": "10000\n",
    **{f"{NET}/ecn/roce_{end}/enable/{n}": "1\n" for end in ("np", "rp") for n in range(8)},
    f"{COMMANDS}/ethtool-eth0": MODES,
    f"{COMMANDS}/ethtool-m-eth0": SFP,
    f"{COMMANDS}/mlnx-qos-eth0": QOS,
    f"{COMMANDS}/dcb-pfc-eth0": json.dumps({"prio_pfc": [n == 5 for n in range(8)]}),
    **{f"{IB_FOLDER}/{name}": text.decode() for name, text in FUNCTION.items()},
    f"{IB_FOLDER}/class": "0x020700\n",
    f"{IB_PORT}/link_layer": "InfiniBand\n",
    f"{IB_PORT}/state": "4: ACTIVE\n",
    f"{IB_PORT}/phys_state": "5: LinkUp\n",
    f"{IB_PORT}/rate": "200 Gb/sec (4X HDR)\n",
    f"{IB_FOLDER}/net/ib0/type": "32\n",
    f"{COMMANDS}/smpquery-portinfo-mlx5_1-1": HDR,
    f"{COMMANDS}/ibv-devinfo-mlx5_0": "hca_id:\tmlx5_0\n\t\tport:\t1\n\t\t\tactive_mtu:\t\t4096 (5)\n",
}
OWN = tuple(
    path for path in HEALTHY if path.rpartition("/")[0] not in (FOLDER, IB_FOLDER)
)  # those of every function have tests elsewhere
SICK: Mapping[str, str] = {
    **HEALTHY,
    f"{NET}/ecn/roce_rp/enable/5": "0\n",
    f"{COMMANDS}/ethtool-m-eth0": SFP.replace(": 39.18 degrees C / 102.52", ": 91.00 degrees C / 195.80"),
    f"{COMMANDS}/ethtool-eth0": MODES.replace("Speed: 10000", "Speed: 1000"),
    f"{NET}/speed": "1000\n",
    f"{IB_PORT}/rate": "56 Gb/sec (4X FDR)\n",
    f"{COMMANDS}/smpquery-portinfo-mlx5_1-1": HDR.replace(
        "ExtActive:..............53.125", "ExtActive:..............14.0625"
    ),
}


def outcomes(files: Mapping[str, str]) -> dict[str, str]:
    links = {
        f"/sys/bus/pci/devices/{ADDRESS}": FOLDER,
        f"{FOLDER}/driver": "/sys/bus/pci/drivers/mlx5_core",
        "/sys/class/infiniband/mlx5_0": f"{FOLDER}/infiniband/mlx5_0",
        "/sys/class/net/eth0": NET,
        f"{NET}/device": FOLDER,
        f"{FOLDER}/infiniband/mlx5_0/device": FOLDER,
        f"/sys/bus/pci/devices/{IB_ADDRESS}": IB_FOLDER,
        f"{IB_FOLDER}/driver": "/sys/bus/pci/drivers/mlx5_core",
        "/sys/class/infiniband/mlx5_1": f"{IB_FOLDER}/infiniband/mlx5_1",
        f"{IB_FOLDER}/infiniband/mlx5_1/device": IB_FOLDER,
        "/sys/class/net/ib0": f"{IB_FOLDER}/net/ib0",
        f"{IB_FOLDER}/net/ib0/device": IB_FOLDER,
    }
    dirs = {"/".join(path.split("/")[:depth]) for path in HEALTHY for depth in range(2, path.count("/") + 1)}
    host = Files({path: text.encode() for path, text in files.items()}, links, frozenset(dirs))
    found = msgspec.structs.replace(gather(host.system()), declared_roce=DECLARED)
    own: dict[str, str] = {check: one(found, check, ADDRESS).outcome for check in CHECKS}
    return own | {IB: one(found, "port-capability", IB_ADDRESS).outcome}


@cache
def before(sick: bool) -> dict[str, str]:
    return outcomes(SICK if sick else HEALTHY)


def damages(files: Mapping[str, str], path: str) -> Iterator[dict[str, str]]:
    text = files[path]
    yield {name: kept for name, kept in files.items() if name != path}
    for other in ("", text[: len(text) // 2] if text.count("\n") > 1 else ""):
        yield {**files, path: other}


def test_the_whole_port_passes_and_the_sick_one_does_not() -> None:
    assert before(sick=False) == dict.fromkeys((*CHECKS, IB), "pass")
    assert before(sick=True) == {"port-roce": "fail", "port-module": "fail", "port-capability": "warn", IB: "warn"}


def improved(before: str, after: str) -> bool:
    """As docs/validate.md has it: nothing becomes a pass or a skip that was none."""
    return after != before and after in ("pass", "skip")


@pytest.mark.parametrize("sick", [False, True])
@pytest.mark.parametrize("path", OWN, ids=lambda path: path.removeprefix(FOLDER).strip("/").replace("/", "-"))
def test_a_file_or_an_answer_that_is_lost_or_cut_short_improves_nothing(path: str, sick: bool) -> None:
    for files in damages(SICK if sick else HEALTHY, path):
        for check, outcome in outcomes(files).items():
            assert not improved(before(sick)[check], outcome), (check, path, files.get(path))


@pytest.mark.parametrize("sick", [False, True])
def test_an_answer_of_smpquery_that_is_cut_off_at_a_word_improves_nothing(sick: bool) -> None:
    name = f"{COMMANDS}/smpquery-portinfo-mlx5_1-1"
    whole = SICK if sick else HEALTHY
    for at in [found.start() for found in re.finditer(r" or |\n|\.\.+", whole[name])]:
        found = outcomes({**whole, name: whole[name][:at]})
        assert not improved(before(sick)[IB], found[IB]), whole[name][:at][-80:]


def test_the_checks_are_those_of_the_product() -> None:
    assert {check.id for check in checks()} >= set(CHECKS)
