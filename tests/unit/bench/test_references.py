"""References of a validation by the shape of a machine: good hosts of any shape pass, bad ones do not, floors stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import examplehosts
import msgspec
import pytest
from examplehosts import discovered

import hosttune
from hosttune.bench.baselines import pair_links, shipped, with_fleet
from hosttune.bench.judge import JudgingContext, judge
from hosttune.bench.modelled import no_model
from hosttune.model.gpu import Peer
from hosttune.model.host import Host, PciDevice
from hosttune.model.validation import CheckResult, Sample, Validation
from hosttune.predicting.references import model_of

HERE = Path(__file__).resolve().parents[2]
STANDARD = shipped()
EXAMPLE = discovered()
XE9680 = discovered(examplehosts.XE9680)
SEVERITY = {"pass": 0, "skip": 1, "warn": 2, "unknown": 3, "fail": 3}
replace = msgspec.structs.replace


def as_gpus(host: Host, model: str, device: str, gts: float = 32.0, links: int | None = None, count: int = 8) -> Host:
    """The host with GPUs of another model, and `count` of them: their ids, links to the CPUs and to each other."""
    names = [gpu.address for gpu in host.index.accelerators][:count]
    pci = []
    for one in host.pci:
        if one.address in names and one.link is not None:
            link = replace(one.link, speed_gts=gts, max_speed_gts=gts, width=16, max_width=16, state=None)
            one = replace(one, device_id=device, link=link)
        pci.append(one)
    kind = "nvlink" if links else "pcie"
    gpus = tuple(
        replace(
            gpu,
            model=model,
            nvlinks_active=links,
            peers=tuple(Peer(address=name, kind=kind, links=links or None) for name in names if name != gpu.address),
        )
        for gpu in host.index.accelerators
        if gpu.address in names
    )
    board = {} if links else {"nvswitches": (), "fabric": None}
    return replace(host, pci=tuple(pci), gpus=gpus, **board)


H200 = as_gpus(EXAMPLE, "NVIDIA H200", "2335", 32.0, 18)
HOSTS: dict[str, Host] = {
    "H200": H200,
    **{f"{n} H200": as_gpus(EXAMPLE, "NVIDIA H200", "2335", 32.0, 18, n) for n in (4, 5, 6, 7)},
    "H100": as_gpus(XE9680, "NVIDIA H100 80GB HBM3", "2330", 32.0, 18),
    "A100": as_gpus(EXAMPLE, "NVIDIA A100-SXM4-80GB", "20b2", 16.0, 12),
    "B200": as_gpus(EXAMPLE, "NVIDIA B200", "2901", 32.0, 18),
    "L40S": as_gpus(EXAMPLE, "NVIDIA L40S", "26b9", 16.0, 0, 2),
}
# Published and measured figures of good machines: tests/cases/models/points.json and baselines/gpus.toml have the
# sources. A100: 24.6 is between Azure's floor of 21 and the slot's 31.5.
GOOD: tuple[tuple[str, str, str, float], ...] = (
    ("H200", "h2d-ce", "one", 55.5), ("H200", "d2h-ce", "one", 55.1), ("H200", "p2p-write-ce", "pair", 394.0),
    ("H200", "device-copy", "one", 4247.0), ("H200", "gemm-bf16", "one", 791.0), ("H200", "gemm-fp8", "one", 1406.0),
    ("H200", "all-reduce-8gib", "8 GPUs", 473.1), ("4 H200", "all-reduce-8gib", "4 GPUs", 363.3),
    ("4 H200", "all-reduce-256mib", "4 GPUs", 339.0), ("5 H200", "all-reduce-8gib", "5 GPUs", 414.2),
    ("6 H200", "all-reduce-8gib", "6 GPUs", 435.6), ("7 H200", "all-reduce-8gib", "7 GPUs", 460.0),
    ("H100", "device-copy", "one", 2903.0), ("H100", "h2d-ce", "one", 55.0), ("H100", "p2p-read-ce", "pair", 390.0),
    ("A100", "all-reduce-8gib", "8 GPUs", 235.0), ("B200", "all-reduce-8gib", "8 GPUs", 838.0),
)  # fmt: skip
# Good machines of which no typical figure has a source: no pass of a model, and no warning.
UNSOURCED = (("A100", "h2d-ce", "one", 24.6), ("L40S", "h2d-ce", "one", 25.0), ("B200", "device-copy", "one", 6900.0),
             ("L40S", "p2p-write-ce", "pair", 22.0))  # fmt: skip


def judged(
    host: Host, metric: str, where: str, value: float, *, model: bool = True, standard: Any = STANDARD, runs: int = 5
) -> CheckResult:
    gpus = [gpu.address for gpu in host.index.accelerators]
    subject = {"one": gpus[0], "pair": "->".join(gpus[:2])}.get(where, where)
    unit = "TFLOP/s" if metric.startswith("gemm") else "GB/s"
    samples = [Sample(metric=metric, subject=subject, value=value, unit=unit)] * runs
    ids = {address: host.index.ids(address) or "" for address in gpus}
    made = model_of(host, gpus, standard) if model else no_model
    context = JudgingContext(standard, ids, len(gpus), links=pair_links(host, gpus), model=made)
    (found,) = judge(samples, context)
    return found


@pytest.mark.parametrize(("shape", "metric", "where", "value"), GOOD, ids=str)
def test_a_good_machine_of_each_shape_passes_and_half_of_it_does_not(
    shape: str, metric: str, where: str, value: float
) -> None:
    good = judged(HOSTS[shape], metric, where, value)
    assert good.outcome == "pass", good
    assert "typical of this shape" in (good.expected or "")
    assert good.source
    bad = judged(HOSTS[shape], metric, where, value / 2)
    assert bad.outcome in ("warn", "fail"), bad
    assert bad.hint


@pytest.mark.parametrize(("shape", "metric", "where", "value"), UNSOURCED, ids=str)
def test_without_a_typical_figure_a_model_passes_nothing_and_warns_of_what_no_machine_is_known_for(
    shape: str, metric: str, where: str, value: float
) -> None:
    good, before = judged(HOSTS[shape], metric, where, value), judged(HOSTS[shape], metric, where, value, model=False)
    assert good.outcome == before.outcome in ("pass", "skip")  # a pass is that of a published floor
    assert judged(HOSTS[shape], metric, where, value / 3).outcome in ("warn", "fail")


def test_the_reason_is_in_words() -> None:
    found = judged(H200, "h2d-ce", "one", 55.5)
    assert found.expected == (
        ">= 48 GB/s (floor); >= 52.68 GB/s (typical of this shape is 55.45: slot of 32 GT/s x16: 63.0 GB/s)"
    )
    assert "PCI Express Base Specification" in (found.source or "")
    low = judged(HOSTS["L40S"], "h2d-ce", "one", 13.0)  # an x8 link
    assert low.outcome == "warn"
    assert low.expected is not None
    assert low.expected.startswith(">= 20.48 GB/s (a part of the bound of this shape, 31.51: slot of 16 GT/s x16")


def test_figures_between_those_of_two_shapes() -> None:
    """365 GB/s is good for a ring of 4 H200 and low for 8 of them, whose switch reduces."""
    assert judged(HOSTS["4 H200"], "all-reduce-4gib", "4 GPUs", 363.0).outcome == "pass"
    assert judged(H200, "all-reduce-4gib", "8 GPUs", 363.0).outcome == "warn"
    assert judged(H200, "all-reduce-16gib", "8 GPUs", 363.0).outcome == "fail"  # the floor


@pytest.mark.parametrize("host", HOSTS)
def test_a_floor_is_never_lowered(host: str) -> None:
    known = HOSTS[host]
    ids = known.index.ids(known.index.accelerators[0].address)
    rows = [row for row in STANDARD.baselines if row.kind == "floor" and row.device == ids]
    for row in rows:
        where = f"{row.gpus} GPUs" if row.metric.startswith("all-") else "pair" if "p2p" in row.metric else "one"
        if row.gpus not in (None, len(known.index.accelerators)):
            continue
        for value in (row.limit * 0.99, row.limit * 0.5):
            assert judged(known, row.metric, where, value, model=False).outcome == "fail"
            assert judged(known, row.metric, where, value).outcome == "fail"


def test_the_model_makes_no_result_of_its_own_machine_easier() -> None:
    """Of H200, which the shipped references were measured on: every figure from 1 to 120 % of good."""
    for shape, metric, where, value in GOOD:
        if shape not in ("H200", "4 H200"):
            continue
        for percent in range(1, 121, 7):
            with_it = judged(HOSTS[shape], metric, where, value * percent / 100)
            without = judged(HOSTS[shape], metric, where, value * percent / 100, model=False)
            if without.outcome != "skip":  # nothing was known before
                assert SEVERITY[with_it.outcome] >= SEVERITY[without.outcome], (metric, percent)


def test_links_that_are_down_do_not_make_another_shape() -> None:
    half = as_gpus(EXAMPLE, "NVIDIA H200", "2335", 32.0, 9)
    assert judged(half, "p2p-write-ce", "pair", 197.0).outcome == "warn"
    assert judged(half, "all-reduce-8gib", "8 GPUs", 236.0).outcome == "warn"


def without_links(host: Host) -> Host:
    return replace(host, pci=tuple(replace(one, link=None) for one in host.pci))


def test_losing_a_fact_keeps_the_shipped_reference() -> None:
    lost = without_links(H200)
    for value in (30.0, 50.0, 55.5):
        found = judged(lost, "h2d-ce", "one", value)
        assert found.outcome == judged(lost, "h2d-ce", "one", value, model=False).outcome
        assert "typical of this shape" not in (found.expected or "")
        assert SEVERITY[found.outcome] >= SEVERITY[judged(H200, "h2d-ce", "one", value).outcome]
    unnamed = replace(H200, gpus=tuple(replace(gpu, model=None) for gpu in H200.gpus))
    assert judged(unnamed, "gemm-bf16", "one", 500.0).outcome == "warn"


def test_what_the_own_slot_cannot_carry_is_not_credible() -> None:
    def with_slot(one: PciDevice) -> PciDevice:
        return replace(one, link=replace(one.link, max_speed_gts=16.0)) if one.link is not None else one

    slow = replace(H200, pci=tuple(with_slot(one) for one in H200.pci))
    found = judged(slow, "h2d-ce", "one", 55.5)
    assert found.outcome == "unknown"
    assert "at most 31.51 GB/s, the bound of this machine (slot of 16 GT/s x16" in (found.expected or "")
    assert judged(replace(slow, hypervisor=True), "h2d-ce", "one", 55.5).outcome == "pass"  # it does not see the slot


def test_the_far_node_has_no_reference_and_no_least() -> None:
    assert judged(H200, "h2d-ce-far", "one", 20.0).outcome == "skip"
    assert judged(H200, "h2d-ce-far", "one", 66.0).outcome == "unknown"


def test_an_operators_own_reference_stays() -> None:
    own = with_fleet(
        '[[baseline]]\nmetric = "h2d-ce"\ndevice = "10de:2335"\nkind = "reference"\nexpected = 56.0\ntolerance = 0.0\n'
        'direction = "higher"\nunit = "GB/s"\nsource = "ours"\n'
    )
    found = judged(H200, "h2d-ce", "one", 55.5, standard=own)
    assert found.outcome == "warn"
    assert ">= 56 GB/s (as measured elsewhere)" in (found.expected or "")


def test_a_part_of_a_gpu_is_not_held_for_the_whole() -> None:
    address = H200.index.accelerators[0].address
    samples = [Sample(metric="gemm-bf16", subject="MIG 1", value=340.0, unit="TFLOP/s")] * 5
    whole = model_of(H200, [address], STANDARD)
    pieces = {"MIG 1": "10de:2335"}
    context = JudgingContext(STANDARD, {}, 1, pieces=pieces, model=lambda metric, subject: whole(metric, address))
    assert [one.outcome for one in judge(samples, context)] == ["skip"]


def test_small_messages_have_no_reference() -> None:
    assert judged(H200, "all-reduce-1mib", "8 GPUs", 5.0).outcome == "skip"
    assert judged(H200, "all-reduce-1mib", "8 GPUs", 900.0).outcome == "unknown"


@pytest.mark.parametrize("count", [1, 4])
def test_real_validations_are_judged_as_before(count: int) -> None:
    """Of real H200 in a guest: what passed passes; figures that had no reference now have one, and pass."""
    validation = Validation.from_json((HERE / f"hosts/h200/vm-x{count}-level1.json").read_text())
    host = hosttune.discover(str(HERE / f"hosts/older/vm-x{count}.tar.gz"))
    gpus = [gpu.address for gpu in host.index.accelerators]
    ids = {address: host.index.ids(address) or "" for address in gpus}
    context = JudgingContext(STANDARD, ids, count, links=pair_links(host, gpus), model=model_of(host, gpus, STANDARD))
    before: Mapping[tuple[str, str], str] = {(one.check, one.subject): one.outcome for one in validation.results}
    found = {(one.check, one.subject): one for one in judge(validation.samples, context)}
    assert {one.outcome for one in found.values()} <= {"pass", "skip"}
    newly = {key[0] for key, one in found.items() if one.outcome == "pass" and before.get(key) == "skip"}
    assert all(found[key].outcome == "pass" for key, outcome in before.items() if outcome == "pass" and key in found)
    if count == 4:
        assert newly >= {"bench-all-reduce-256mib", "bench-all-reduce-1gib"}
    halved = [replace(one, value=None if one.value is None else one.value / 2) for one in validation.samples]
    assert {one.check for one in judge(halved, context) if one.outcome == "pass"} == {"bench-burn-wrong-results"}
