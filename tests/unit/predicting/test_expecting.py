"""What `plan` says of a guest's speed, and what a worse placement would lose: never a figure without a source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import examplehosts
import msgspec
import pytest
from examplehosts import discovered

import hosttune
from hosttune.cli import run
from hosttune.model.gpu import Peer
from hosttune.model.host import Host, Link
from hosttune.model.plan import MigAssignment, Plan
from hosttune.model.prediction import Expectation, PredictedFigure, WorsePlacement
from hosttune.model.topology import CpuModel
from hosttune.planning import plan
from hosttune.predicting import Scope, predict
from hosttune.predicting.expecting import scope_of, with_expectations
from hosttune.report.plan import expected_rows, worse_rows

HERE = Path(__file__).resolve().parents[2]
HOST = discovered()
XE9680 = discovered(examplehosts.XE9680)
replace = msgspec.structs.replace


def expected(host: Host, guest: str) -> Expectation:
    intent = hosttune.Intent.from_yaml(f"version: 1\nguests: [{{name: web, {guest}}}]")
    decided = plan(host, intent)
    assert decided.expected == (), "the planner itself needs no model"
    (found,) = with_expectations(decided, host).expected
    assert hosttune.plan(host, intent).expected == (found,)
    assert found.guest == "web"
    return found


def figure(found: Expectation, metric: str) -> PredictedFigure:
    (row,) = [one for one in found.figures if one.metric == metric]
    return row


def worse(found: Expectation, metric: str) -> WorsePlacement:
    (row,) = [one for one in found.worse if one.metric == metric]
    return row


def with_cpu(host: Host, name: str | None) -> Host:
    return replace(host, cpu_model=None if name is None else CpuModel(vendor="x", model=name))


def test_the_few_lines_of_eight_gpus_are_those_of_predict() -> None:
    found = expected(HOST, "gpus: 8")
    every = {(one.metric, one.bound, one.typical) for one in predict(HOST, Scope("host")).figures}
    assert {(one.metric, one.bound, one.typical) for one in found.figures} <= every
    said = [(one.metric, one.subject, one.typical, one.bound) for one in found.figures]
    assert said == [
        ("h2d", "each of 8 GPUs, near node", 55.45, 63.02),
        ("d2h", "each of 8 GPUs, near node", 55.45, 63.02),
        ("p2p", "each of 28 pairs of GPUs", 394.5, 450.0),
        ("all-reduce-busbw", "8 GPUs, 1 GiB", 476.9, 700.0),
        ("memory-copy", "each of 4 pairs of nodes", None, None),
    ]
    assert all(one.source for one in found.figures)


def test_gpus_that_share_an_uplink_have_its_rate_only_alone() -> None:
    """The second GPU hangs below the switch of the first, whose uplink has four lanes."""
    gpus = [gpu.address for gpu in HOST.index.accelerators[:2]]
    first, second = map(HOST.index.bridges, gpus)
    slow = replace(first[1].link or Link(), width=4)
    pci = tuple(
        replace(one, parent=first[1].address)
        if one.address == second[0].address
        else replace(one, link=slow)
        if one.address == first[1].address
        else one
        for one in HOST.pci
    )
    found = expected(replace(HOST, pci=pci), f"gpus: ['{gpus[0]}', '{gpus[1]}']")
    row = figure(found, "h2d")
    assert (row.subject, row.bound) == ("each of 2 GPUs, near node, alone: up to 2 share an uplink", 15.75)


def test_one_gpu_has_no_line_about_others() -> None:
    found = expected(HOST, "gpus: 1")
    assert [one.metric for one in found.figures] == ["h2d", "d2h", "memory-copy"]
    assert [one.metric for one in found.worse] == ["h2d"]


@pytest.mark.parametrize(
    ("cpu", "there", "loses"),
    [
        ("INTEL(R) XEON(R) PLATINUM 8558", 40.0, 0.2),
        ("Intel(R) Xeon(R) Platinum 8480C", 22.0, 0.56),
        ("AMD EPYC 9654", 16.0, 0.68),
        ("a CPU of next year", None, None),
        (None, None, None),
    ],
)
def test_a_nic_of_the_other_socket_costs_what_the_library_counts(
    cpu: str | None, there: float | None, loses: float | None
) -> None:
    row = worse(expected(with_cpu(HOST, cpu), "gpus: 1, nics: 1"), "rdma-write")
    assert (row.here, row.there, row.loses) == (50.0, there, loses)
    assert ("not known" in row.why) == (there is None)


def test_the_far_node_has_no_source_and_no_figure() -> None:
    found = expected(HOST, "gpus: 1")
    row = worse(found, "h2d")
    assert (row.here, row.there, row.loses) == (55.45, None, None)
    assert "no source says how much such hosts reach" in row.why
    assert worse_rows(found)[0][1].startswith("unknown; ")
    one_node = replace(HOST, numa_nodes=HOST.numa_nodes[:1])
    assert with_expectations(hosttune.plan(HOST, INTENT), one_node).expected[0].worse == ()


INTENT = hosttune.Intent.from_yaml("version: 1\nguests: [{name: web, gpus: 2}]")


def bridged() -> Host:
    """The GPUs of the XE9680 as if only neighbours were joined, by 4 links; all others are on PCIe."""
    names = [gpu.address for gpu in XE9680.index.accelerators]
    gpus = []
    for gpu in XE9680.gpus:
        if gpu.address not in names:
            gpus.append(gpu)
            continue
        mate = names[names.index(gpu.address) ^ 1]
        peers = tuple(
            Peer(address=other, kind="nvlink" if other == mate else "pcie", links=4 if other == mate else None)
            for other in names
            if other != gpu.address
        )
        gpus.append(replace(gpu, peers=peers))
    return replace(XE9680, gpus=tuple(gpus), nvswitches=(), fabric=None)


def test_a_pair_that_fewer_links_join_is_the_worse_one() -> None:
    host = bridged()
    names = [gpu.address for gpu in host.index.accelerators]
    found = expected(host, f"gpus: ['{names[0]}', '{names[1]}']")
    row = worse(found, "p2p")
    assert row.here == pytest.approx(4 / 18 * 394.5, rel=1e-3)
    assert row.there == pytest.approx(63.02, rel=1e-3)  # the slot's bound: no source says how much of it
    assert row.loses == pytest.approx(1 - 63.02 / (4 / 18 * 394.5), abs=2e-3)
    assert "at least 28%: at most 63.02 GB/s" in worse_rows(found)[-1][1]
    apart = expected(host, f"gpus: ['{names[0]}', '{names[2]}']")
    assert [one for one in apart.worse if one.metric == "p2p"] == []


@pytest.mark.parametrize("capture", ["oci-bm-gpu-a100-b4-nps4", "azure-ndv4-8xa100-vm", "amd-mi300x-8-vm"])
def test_another_shape_has_a_bound_and_no_borrowed_figure(capture: str) -> None:
    host = hosttune.discover(str(HERE / f"hosts/derived/{capture}.tar.xz"))
    found = expected(host, "gpus: 4")
    assert {one.typical for one in found.figures} == {None}
    assert figure(found, "h2d").bound in (31.51, 63.02)
    rows = expected_rows(found)
    assert all("unknown" in text for _, text, _ in rows)


@pytest.mark.parametrize(
    ("example", "named", "why"),
    [
        ("mi300x-8", None, ("the known points are of GPUs of another maker",)),
        ("gaudi3-8", None, ("the known points are of GPUs of another maker",)),
        ("hgx-h200-8", "NVIDIA Q100", ("the known points are of other models of GPUs",)),
        ("hgx-h200-8", "NVIDIA H200", ()),
    ],
)
def test_a_copy_without_a_typical_figure_has_its_own_reason(example: str, named: str | None, why: tuple[str]) -> None:
    host = hosttune.discover(str(HERE.parent / f"examples/{example}.tar.xz"))
    model = {} if named is None else {"model": named}
    host = replace(host, gpus=tuple(replace(gpu, **model) for gpu in host.gpus))
    near = next(one for one in predict(host, Scope("host")).figures if one.metric == "h2d")
    assert near.because == ("slot of 32 GT/s x16: 63.0 GB/s", *why)
    assert (near.typical is None) == bool(why)


def test_a_guest_without_whole_gpus_has_no_figures() -> None:
    intent = hosttune.Intent.from_yaml("version: 1\nguests: [{name: web, gpus: 0, vcpus: 4, memory: 8GiB}]")
    assert with_expectations(hosttune.plan(HOST, intent), HOST).expected == ()


def test_instances_of_a_gpu_are_not_held_for_the_whole() -> None:
    decided = hosttune.plan(HOST, INTENT)
    (guest,) = decided.guests
    gpu = guest.devices[0].address
    sliced = replace(
        guest, mig=tuple(MigAssignment(gpu=one.address, profile="1g.18gb", start=0) for one in guest.devices)
    )
    assert with_expectations(replace(decided, guests=(sliced,)), HOST).expected == ()
    half = replace(guest, mig=(MigAssignment(gpu=gpu, profile="1g.18gb", start=0),))
    (found,) = with_expectations(replace(decided, guests=(half,)), HOST).expected
    assert figure(found, "h2d").subject != f"{gpu}, near node"


# --- the command -----------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], host: Path, *words: str) -> str:
    if not host.exists():
        host.write_text(HOST.to_json())
    assert run(["plan", "--host", str(host), *words]) == 0
    return capsys.readouterr().out


def test_text_page_and_document_say_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    target = tmp_path / "plan.json"
    text = printed(capsys, tmp_path / "host.json", "--gpus", "2", "--nics", "1")
    page = printed(capsys, tmp_path / "host.json", "--gpus", "2", "--nics", "1", "-o", "html")
    document = printed(capsys, tmp_path / "host.json", "--gpus", "2", "--nics", "1", "-o", "json", "--out", str(target))
    assert target.read_text() == document
    xml = printed(capsys, tmp_path / "host.json", "--gpus", "2", "--nics", "1", "-o", "xml", "--out", str(target))
    assert target.read_text() == document, "what is saved is the same, whatever is printed"
    assert "expect" not in xml
    (found,) = Plan.from_json(document).expected
    assert json.loads(document)["expected"][0]["figures"][0]["typical"] == 55.45
    for words in [*(row[1] for row in expected_rows(found)), *(text for _, text in worse_rows(found))]:
        assert words in " ".join(text.split())
        assert words in page
    assert "what to expect" in text
    assert "what a worse placement would lose" in page


def test_a_plan_without_the_field_is_read() -> None:
    document: dict[str, Any] = json.loads(with_expectations(hosttune.plan(HOST, INTENT), HOST).to_json())
    del document["expected"]
    assert Plan.from_json(json.dumps(document)).expected == ()


# --- predict: between hosts, ports, nodes --------------------------------------------------------------------------


def rows(host: Host, hosts: int = 1) -> dict[tuple[str, str], PredictedFigure]:
    return {(one.metric, one.subject): one for one in predict(host, Scope("x", None, hosts)).figures}


def test_between_hosts_by_size_flat_ring_and_rail() -> None:
    found = rows(HOST, 2)
    most = found["all-reduce-busbw", "16 GPUs on 2 hosts"]
    flat = found["all-reduce-busbw", "16 GPUs on 2 hosts, flat ring"]
    rail = found["all-reduce-busbw", "2 GPUs on 2 hosts, one rail"]
    assert (most.bound, flat.bound, rail.bound) == (750.0, 400.0, 50.0)
    assert (flat.typical, rail.typical) == (382.8, 47.85)
    sizes = [found["all-reduce-busbw", f"16 GPUs on 2 hosts, {size}"].typical for size in ("32 MiB", "1 GiB", "8 GiB")]
    assert sizes == sorted(one for one in sizes if one is not None)
    uneven = replace(HOST, nics=HOST.nics[:3])
    assert rows(uneven, 2)["all-reduce-busbw", "2 GPUs on 2 hosts, one rail"].bound is None


def test_a_management_port_with_rdma_is_not_a_port_of_the_fabric() -> None:
    subject = ("all-reduce-busbw", "16 GPUs on 2 hosts")
    more = tuple(replace(nic, rdma=nic.rdma or f"bnxt_re{number}") for number, nic in enumerate(HOST.nics))
    assert sum(nic.rdma is not None for nic in more) > sum(nic.rdma is not None for nic in HOST.nics)
    assert rows(replace(HOST, nics=more), 2)[subject].bound == rows(HOST, 2)[subject].bound == 750.0


def test_over_tcp_the_ports_count_only_where_they_are_slower() -> None:
    subject = ("all-reduce-busbw", "16 GPUs on 2 hosts, over TCP")
    fast = rows(HOST, 2)[subject]
    assert (fast.bound, fast.typical, fast.width) == (400.0, 3.5, 0.5)
    slow = replace(HOST, nics=tuple(replace(nic, rate_gbps=10.0) for nic in HOST.nics if nic.rdma)[:2])
    assert (rows(slow, 2)[subject].bound, rows(slow, 2)[subject].typical) == (2.5, 2.5)
    assert rows(replace(HOST, nics=()), 2)[subject].typical == 3.5


def test_a_port_in_a_slot_that_carries_less_has_the_slots_bound() -> None:
    nic = next(one for one in HOST.nics if one.rdma and one.physfn is None)
    link = next(one.link for one in HOST.pci if one.address == nic.address)
    assert link is not None
    slow = replace(link, max_speed_gts=16.0)
    host = replace(HOST, pci=tuple(replace(p, link=slow) if p.address == nic.address else p for p in HOST.pci))
    name = nic.rdma or ""
    assert (rows(HOST)["rdma-write", name].bound, rows(HOST)["rdma-write", name].typical) == (400.0, 384.0)
    found = rows(host)["rdma-write", name]
    assert found.bound == pytest.approx(252.1, rel=1e-3)
    assert found.typical is None
    assert "less than the port" in found.because[-1]


def test_a_guest_of_a_plan_has_its_own_nodes() -> None:
    decided = hosttune.plan(HOST, INTENT)
    found = predict(HOST, scope_of(decided.guests[0]))
    assert {one.subject for one in found.figures if one.metric == "memory-copy"} == {"node0->node0"}


def test_the_emulated_ports_of_a_guest_say_nothing_of_the_slot() -> None:
    """QEMU's root ports report 2.5 or 16 GT/s, whatever the device has on the host."""
    gpu = HOST.index.accelerators[0].address
    port = HOST.index.pci[gpu].parent
    pci = tuple(
        replace(one, link=replace(one.link, speed_gts=16.0, max_speed_gts=16.0 if one.address == port else 32.0))
        if one.address in (gpu, port) and one.link
        else one
        for one in HOST.pci
    )
    host = replace(HOST, pci=pci)
    subject = f"{gpu}, near node"
    assert rows(host)["h2d", subject].bound == 31.51
    assert rows(replace(host, hypervisor=True))["h2d", subject].bound == 63.02
