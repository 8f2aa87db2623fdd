"""RoCE ports against what the operator declares: the declaration, reading, each difference, and what was not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from domain_shapes import TWO_CELLS, plan_of
from unit.rules.test_checks_portmodules import Asked
from unit.rules.test_checks_ports import A, B, evidence, infiniband, interface, one, rdma

from hosttune.discovery import roce as reading
from hosttune.discovery.portfiles import tool_answer
from hosttune.errors import BadInput, CommandFailed
from hosttune.guest import guest_files
from hosttune.machine.reader import Reader
from hosttune.model.evidence import STATE, Evidence
from hosttune.model.guestplan import GuestPlan
from hosttune.model.host import Host, Nic, Problem
from hosttune.model.intent import Intent
from hosttune.model.networkintent import NetworkIntent, Roce
from hosttune.model.ports import NicPorts, RoceState
from hosttune.rules.checks import results_of
from hosttune.rules.checks.expected import of_document, with_expectations
from hosttune.rules.checks.roce import port_roce

CASES = Path(__file__).parents[2] / "cases" / "ports"
DECLARED = Roce(mtu=9000, rdma_mtu=4096, trust="dscp", pfc=(5,), ecn=(5,), traffic_class=160)
SET = RoceState(
    device="mlx5_0", interface="ens1np0", active_mtu=4096, gid_types=("IB/RoCE v1", "RoCE v2"), trust="dscp", pfc=(5,),
    ecn_np=tuple(range(8)), ecn_rp=(5,), traffic_class=160,
)  # fmt: skip

PORT = NicPorts(rdma=(rdma(layer="ethernet", lid=0, sm_lid=0),), interfaces=(interface(mtu=9000),))


def found(
    state: RoceState | None = SET, roce: Roce | None = DECLARED, ports: NicPorts | None = PORT, **more: Any
) -> Evidence:
    return evidence({A: ports}, roce={A: state} if state is not None else {}, declared_roce=roce, **more)


def changed(**changes: Any) -> RoceState:
    return msgspec.structs.replace(SET, **changes)


def test_what_is_set_as_declared_passes_and_is_told() -> None:
    result = one(found(), "port-roce")
    assert result.outcome == "pass"
    assert result.actual == "a GID of RoCE v2, mtu 9000, rdma_mtu 4096, trust dscp, pfc 5, ecn 5, traffic_class 160"


@pytest.mark.parametrize(
    ("changes", "expected", "said"),
    [
        ({"active_mtu": 1024}, "fail", "rdma_mtu 1024"),
        ({"gid_types": ("IB/RoCE v1",)}, "fail", "no GID of RoCE v2: IB/RoCE v1"),
        ({"trust": "pcp"}, "fail", "trust pcp"),
        ({"pfc": ()}, "fail", "pfc none"),
        ({"pfc": (3, 5)}, "fail", "pfc 3,5"),
        ({"ecn_np": (0, 1)}, "fail", "ecn off on 5 (the receiver does not notify)"),
        ({"ecn_rp": ()}, "fail", "ecn off on 5 (the sender does not slow down)"),
        ({"traffic_class": 0}, "fail", "traffic_class 0"),
        ({"traffic_class": -1}, "fail", "traffic_class none"),
        ({"active_mtu": None, "why": {"active_mtu": "ibv_devinfo: not installed"}}, "unknown", "ibv_devinfo: not inst"),
        ({"gid_types": None}, "unknown", "the types of its GIDs were not read"),
        ({"trust": None}, "unknown", "trust was not read"),
        ({"pfc": None}, "unknown", "pfc was not read"),
        ({"ecn_np": None}, "unknown", "ecn of roce_np was not read"),
        ({"ecn_rp": None}, "unknown", "ecn of roce_rp was not read"),
        ({"traffic_class": None}, "unknown", "traffic_class was not read"),
        ({"interface": None}, "unknown", "mtu was not read"),
        ({"trust": "pcp", "pfc": None}, "fail", "trust pcp"),  # one that is wrong is not hidden by one that is unread
    ],
)
def test_each_difference(changes: dict[str, Any], expected: str, said: str) -> None:
    result = one(found(changed(**changes)), "port-roce")
    assert (result.outcome, said in (result.actual or "")) == (expected, True), result.actual
    assert result.hint


@pytest.mark.parametrize(
    ("ports", "state", "expected"),
    [
        (msgspec.structs.replace(PORT, interfaces=(interface(mtu=1500),)), SET, "fail"),
        (msgspec.structs.replace(PORT, interfaces=(interface(mtu=None),)), SET, "unknown"),
        (PORT, None, "unknown"),
        (NicPorts(rdma=None, interfaces=PORT.interfaces), SET, "unknown"),
        (NicPorts(rdma=(rdma(layer=None),), interfaces=PORT.interfaces), SET, "unknown"),
        (None, SET, "unknown"),
        (infiniband(), None, "skip"),
        (NicPorts(rdma=(), interfaces=PORT.interfaces), None, "skip"),
        (
            NicPorts(
                rdma=(rdma(layer="ethernet", state="down", phys_state="disabled"),),
                interfaces=(interface(is_up=False, carrier=None),),
            ),
            SET,
            "skip",
        ),
    ],
)
def test_ports_that_are_not_read_or_not_roce(ports: NicPorts | None, state: RoceState | None, expected: str) -> None:
    assert one(found(state, ports=ports), "port-roce").outcome == expected


def test_nothing_declared_is_skipped_and_a_lost_declaration_is_unknown() -> None:
    assert one(found(roce=None), "port-roce").outcome == "skip"
    assert one(found(roce=None, ports=None), "port-roce").outcome == "skip"
    lost = (Problem(what=STATE, where="/var/lib/hosttune", why="not readable"),)
    assert one(found(roce=None, problems=lost), "port-roce").outcome == "unknown"


def test_only_the_named_nics_are_compared_and_each_must_be_here() -> None:
    other = found(roce=msgspec.structs.replace(DECLARED, nics=("2a:00.0",)))
    assert one(other, "port-roce").outcome == "skip"
    assert one(other, "port-roce", B).outcome == "fail"
    named = msgspec.structs.replace(DECLARED, nics=("19:00.0",))
    assert one(found(roce=named), "port-roce").outcome == "pass"
    assert one(found(None, roce=named, ports=infiniband()), "port-roce").outcome == "fail"


def test_a_declaration_that_no_port_is_about_is_no_pass() -> None:
    assert one(found(None, ports=infiniband()), "port-roce", "host").outcome == "fail"
    given = found(None, ports=infiniband(), device={"driver": "vfio-pci"})
    assert one(given, "port-roce").outcome == "skip"
    assert "host" not in {result.subject for result in results_of(port_roce, given)}
    assert [result.subject for result in results_of(port_roce, found())] == [A]
    assert one(Evidence(host=Host(), declared_roce=DECLARED), "port-roce", "host").outcome == "unknown"


# --- the declaration -----------------------------------------------------------------------------------------------

TEXT = """version: 1
fabric: {roce: {nics: ["0000:19:00.0"], mtu: 9000, trust: dscp, pfc: [5], ecn: [5], traffic_class: 160}}
"""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{mtu: 100}", "fabric.roce.mtu"),
        ("{rdma_mtu: 9000}", "fabric.roce.rdma_mtu"),
        ("{pfc: [8]}", "fabric.roce.pfc"),
        ("{ecn: [3, 3]}", "fabric.roce.ecn"),
        ("{traffic_class: 256}", "fabric.roce.traffic_class"),
        ("{nics: []}", "fabric.roce.nics"),
        ("{nics: [eth0]}", "fabric.roce.nics[0]"),
        ("{nics: ['19:00.0', '0000:19:00.0']}", "fabric.roce.nics[1]"),
        ("{trust: tos}", "fabric.roce.trust"),
        ("{dscp: 26}", "fabric.roce.dscp"),
    ],
)
def test_a_declaration_that_no_port_can_have_is_refused(text: str, where: str) -> None:
    with pytest.raises(BadInput) as refused:
        Intent.from_yaml(f"version: 1\nfabric: {{roce: {text}}}\n")
    assert refused.value.where == f"intent: {where}"


def test_the_newest_plan_counts_and_a_named_document_before_it() -> None:
    def planned(mtu: int) -> Any:
        intent = Intent(version=1, fabric=NetworkIntent(roce=Roce(mtu=mtu)))
        return msgspec.structs.replace(plan_of(TWO_CELLS), intent=intent)

    bare = msgspec.structs.replace(plan_of(TWO_CELLS), intent=Intent(version=1))
    base = found(roce=None)
    in_force = msgspec.structs.replace(base, plans=(planned(1500), planned(9000), bare))
    assert one(in_force, "port-roce").outcome == "pass"
    named = with_expectations(in_force, [of_document(TEXT.replace("9000", "4200").encode(), "i.yaml")], ())
    assert "mtu 9000" in (one(named, "port-roce").actual or "")
    assert one(named, "port-roce").outcome == "fail"
    saved = of_document(planned(1500).to_json().encode(), "plan.json")
    assert one(with_expectations(base, [saved], ()), "port-roce").outcome == "fail"


def test_a_document_without_a_declaration_is_refused_as_before() -> None:
    for text in (b"version: 1\n", b'{"version": 1}', b"no: yaml: here", b"{}"):
        with pytest.raises(BadInput) as refused:
            of_document(text, "i.yaml")
        assert refused.value.where == "i.yaml"


def test_a_guest_has_the_declaration_of_its_own_nics() -> None:
    nic = next(device for device in TWO_CELLS.devices if device.kind == "nic")

    def declared(roce: Roce) -> Roce | None:
        plan = msgspec.structs.replace(plan_of(TWO_CELLS), intent=Intent(version=1, fabric=NetworkIntent(roce=roce)))
        return GuestPlan.from_json(guest_files(plan, TWO_CELLS.name).bundle["expected.json"]).roce

    assert declared(DECLARED) == DECLARED
    named = declared(msgspec.structs.replace(DECLARED, nics=(nic.address,)))
    assert named == msgspec.structs.replace(DECLARED, nics=(nic.guest_address,))
    assert declared(msgspec.structs.replace(DECLARED, nics=("0000:ee:00.0",))) is None
    inside = found(roce=None, guest_plan=GuestPlan(name="a", roce=Roce(trust="pcp")), inside=True)
    assert one(inside, "port-roce").outcome == "fail"


# --- reading -----------------------------------------------------------------------------------------------------

QOS = CASES.joinpath("mlnx-qos.txt").read_text()
DCB = json.dumps({"pfc_cap": 8, "macsec_bypass": False, "delay": 0, "prio_pfc": [False] * 5 + [True] + [False] * 2})
# The form of ibv_devinfo(1); two ports, so that the second one's MTU is not taken.
DEVINFO = """hca_id:\tmlx5_0
\tnode_guid:\t\t\t4821:0b03:0096:04cb
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tlink_layer:\t\tEthernet

\t\tport:\t2
\t\t\tactive_mtu:\t\t4096 (5)
"""


def test_the_texts_of_the_tools() -> None:
    assert (reading.parse_trust(QOS), reading.parse_pfc(QOS)) == ("dscp", (5,))
    assert reading.parse_pfc(QOS.replace("   6   7\n", "   6\n", 1)) is None
    assert reading.parse_pfc(QOS + QOS) is None
    assert reading.parse_trust(QOS + "Priority trust state: pcp\n") is None
    assert reading.parse_dcb_pfc(DCB) == (5,)
    assert reading.parse_dcb_pfc('{"prio_pfc": [true]}') is None
    assert reading.parse_dcb_pfc('{"prio_pfc": [1,0,0,0,0,0,0,0]}') is None
    assert reading.parse_apptrust('{"order": ["dscp", "pcp"]}') == "dscp"
    assert reading.parse_apptrust('{"order": []}') is None
    assert reading.parse_active_mtu(DEVINFO) == 1024
    assert reading.parse_active_mtu(DEVINFO.replace("1024 (3)", "lots")) is None


def tree(root: Path) -> Host:
    files = {
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0": "IB/RoCE v1",
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1": "RoCE v2",
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/10": "IB/RoCE v1",
        "sys/class/infiniband/mlx5_0/tc/1/traffic_class": "Global tclass=160",
        "sys/class/net/pf0vf0/phys_port_name": "pf0vf0",
        **{f"sys/class/net/eth0/ecn/roce_{end}/enable/{n}": "1" for end in ("np", "rp") for n in range(8)},
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    return Host(nics=(Nic(address=A, rdma="mlx5_0", link_layer="Ethernet", interfaces=("eth0", "pf0vf0")),))


ANSWERS: dict[str, str | CommandFailed] = {
    "mlnx_qos -i eth0": QOS,
    "dcb -j pfc show dev eth0": DCB,
    "dcb -j apptrust show dev eth0": CommandFailed(
        ("dcb",), "exit status 1", "Attribute read: Operation not supported\n"
    ),
    "ibv_devinfo -d mlx5_0": DEVINFO,
}


def state_of(root: Path, host: Host, **answers: str | CommandFailed) -> RoceState:
    named = {name.replace("_", " "): answer for name, answer in answers.items()}
    more = {key: named.get(key.split()[0].replace("_", " "), answer) for key, answer in ANSWERS.items()}
    return reading.read_roce(Reader(Asked(root, more)), host)[A]


def test_a_port_is_read_from_files_and_tools(tmp_path: Path) -> None:
    state = state_of(tmp_path, tree(tmp_path))
    assert state == changed(interface="eth0", active_mtu=1024, ecn_rp=tuple(range(8)))


def test_without_the_first_tool_the_second_counts(tmp_path: Path) -> None:
    host = tree(tmp_path)
    alone = state_of(tmp_path, host, mlnx_qos=CommandFailed(("mlnx_qos",), "not installed"))
    assert (alone.pfc, alone.trust) == ((5,), None)
    assert alone.why["trust"].startswith("mlnx_qos: not installed")


def test_guids_are_not_recorded_and_other_layers_not_asked(tmp_path: Path) -> None:
    host = tree(tmp_path)
    system = Asked(tmp_path, ANSWERS)
    argv = ("ibv_devinfo", "-d", "mlx5_0")
    kept, _ = tool_answer(Reader(system), "ibv-devinfo-mlx5_0", argv, reading.strip_devinfo)
    assert "active_mtu" in (kept or "")
    assert "guid" not in (kept or "")
    other = Host(nics=(msgspec.structs.replace(host.nics[0], link_layer="InfiniBand"),))
    assert reading.read_roce(Reader(system), other) == {}


def test_what_the_driver_does_not_show_is_unknown(tmp_path: Path) -> None:
    host = tree(tmp_path)
    (tmp_path / "sys/class/net/eth0/ecn/roce_np/enable/3").write_text("yes\n")
    (tmp_path / "sys/class/infiniband/mlx5_0/tc/1/traffic_class").write_text("\n")
    state = state_of(tmp_path, host)
    assert (state.ecn_np, state.ecn_rp, state.traffic_class) == (None, tuple(range(8)), -1)
