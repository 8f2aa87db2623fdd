"""The formulas against the figures that they were made from: each point is left out in turn and predicted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hosttune.bench.baselines import Standard, shipped
from hosttune.model.measured import Measured
from hosttune.model.values import format_size
from hosttune.predicting import formulas
from hosttune.predicting.estimates import Question, estimate
from hosttune.predicting.shape import HostShape, peaks_of, shape_of, slices_of, slot_of

POINTS = json.loads((Path(__file__).parents[2] / "cases/models/points.json").read_text())
GROUPS = {group["formula"]: group["points"] for group in POINTS["groups"]}
STANDARD: Standard = shipped()


def shape(point: dict[str, Any]) -> HostShape:
    setup = {
        "gpu": point["gpu"],
        "nvswitch": True,
        "hosts": point.get("hosts", 1),
        "gpus_per_host": point.get("per_host"),
    }
    if "nics" in point:
        setup["nics"] = {"count": point["nics"], "rate_gbps": point["rate_gbps"]}
    return shape_of(Measured.from_yaml(json.dumps({"version": 1, "setup": setup})), STANDARD)


def ideal(formula: str, point: dict[str, Any]) -> float:
    """What the formula gives with a part of 1."""
    found, ranks = shape(point), point.get("ranks", 0)
    if formula == "switch":
        assert found.links_gb_per_s is not None
        return formulas.in_switch(found.links_gb_per_s, 1.0, ranks)
    rate = found.host_gb_per_s if formula == "flat" else found.slot_gb_per_s
    assert rate is not None
    return rate


def left_out(formula: str) -> list[float]:
    """What the other points of a formula predict of each of its points."""
    if formula == "ring":
        return left_out_of_the_ring()
    if formula == "pair-ring":
        return left_out_of_pairs()
    found = []
    for left in GROUPS[formula]:
        parts = [one["value"] / ideal(formula, one) for one in GROUPS[formula] if one is not left]
        found.append(sum(parts) / len(parts) * ideal(formula, left))
    return found


def left_out_of_the_ring() -> list[float]:
    """The time of the steps is the library's own, the part of the links is fitted."""
    rows, found = [], []
    for one in GROUPS["ring"]:
        n, rate = one["ranks"], shape(one).links_gb_per_s
        assert rate is not None
        moved = one["size"] * 2 * (n - 1) / n / 1e9
        steps = formulas.BASE_SECONDS + 2 * (n - 1) * formulas.STEP_SECONDS["nvlink"]
        rows.append((moved, moved / rate, steps, one["value"]))
    for left, (moved, seconds, steps, _) in enumerate(rows):
        parts = [x / (m / v - s) for at, (m, x, s, v) in enumerate(rows) if at != left]
        found.append(moved / (seconds / (sum(parts) / len(parts)) + steps))
    return found


def left_out_of_pairs() -> list[float]:
    """Both are fitted, by least squares of the relative error: the part of the links, and the time at the beginning."""
    rows = []
    for one in GROUPS["pair-ring"]:
        rate = shape(one).links_gb_per_s
        assert rate is not None
        rows.append((one["size"] / 1e9 / rate, one["size"] / 1e9 / one["value"], one["size"] / 1e9))
    found = []
    for left, (ideal_seconds, _, moved) in enumerate(rows):
        others = [(x / t, 1 / t) for at, (x, t, _) in enumerate(rows) if at != left]
        xx, xy, yy = (sum(a[i] * a[j] for a in others) for i, j in ((0, 0), (0, 1), (1, 1)))
        x, y = (sum(a[i] for a in others) for i in (0, 1))
        slower, begin = (x * yy - y * xy) / (xx * yy - xy * xy), (y * xx - x * xy) / (xx * yy - xy * xy)
        found.append(moved / (slower * ideal_seconds + begin))
    return found


@pytest.mark.parametrize("formula", GROUPS)
def test_each_point_follows_from_the_others_of_its_formula(formula: str) -> None:
    points = GROUPS[formula]
    assert len(points) >= 3
    assert left_out(formula) == pytest.approx([one["value"] for one in points], rel=0.05)


def test_no_three_points_of_one_formula_are_listed_as_single() -> None:
    """A single point: its formula has fewer than three of the same generation of GPUs, or is in a group above."""
    singles = Counter((one["formula"], one["gpu"]) for one in POINTS["single"])
    assert max(singles.values()) < 3


SINGLE = "Single points: each is all that its formula has for that GPU or number of GPUs."
NAMES = {"switch": "all-reduce, NVLS", "ring": "all-reduce, ring", "pair-ring": "all-reduce, two GPUs",
         "flat": "between hosts, flat ring",
         "copy": "copies between host and GPU"}  # fmt: skip


def test_the_manual_has_each_point_as_the_others_predict_it(request: pytest.FixtureRequest) -> None:
    """`pytest --regenerate` writes the table and the list of single points."""
    manual = Path(__file__).parents[2] / "cases/models/POINTS.md"
    head = "| formula | point | measured | predicted from the others | off |\n" + "|---" * 5 + "|\n"
    rows = []
    for formula, points in GROUPS.items():
        for one, predicted in zip(points, left_out(formula), strict=True):
            figures = f"{one['value']:g} | {predicted:.4g} | {predicted / one['value'] - 1:+.1%}"
            rows.append(f"| {NAMES[formula]} | {words(one)} | {figures} |")
    single = [(one, one.get("metric", "all-reduce"), one.get("unit", "GB/s")) for one in POINTS["single"]]
    singles = "\n".join(
        f"- {metric}, {words({**one, 'metric': None})}: {one['value']:g} {unit} ({one['source']})"
        for one, metric, unit in single
    )
    text = "\n".join(rows) + f"\n\n{SINGLE}\n\n{singles}"
    before, found, rest = manual.read_text(encoding="utf-8").partition(head)
    assert found
    table, _, after = rest.partition("\n\n## ")
    if request.config.getoption("--regenerate"):
        manual.write_text(f"{before}{head}{text}\n\n## {after}", encoding="utf-8")
    else:
        assert table == text


def words(point: dict[str, Any]) -> str:
    """A point in words: GPUs, hosts and ports, size."""
    ranks = [point["ranks"]] if "ranks" in point else [point[name] for name in ("hosts", "per_host") if name in point]
    count = "".join(f"{number} × " for number in ranks)
    ports = f", {point['nics']} ports of {point['rate_gbps']} Gb/s a host" if "nics" in point else ""
    metric = f", {point['metric']}" if point.get("metric") else ""
    size = f", {format_size(point['size'])}" if "size" in point else ""
    return f"{count}{point['gpu']}{ports}{metric}{size}"


@pytest.mark.parametrize("point", [*(p for g in POINTS["groups"] for p in g["points"]), *POINTS["single"]], ids=str)
def test_what_is_shipped_predicts_every_point(point: dict[str, Any]) -> None:
    metric = point.get("metric", "all-reduce-busbw")
    found = shape(point)
    if "NVLS off" in point["source"]:
        found = without_nvls(found)
    ranks = point.get("ranks") or (point["hosts"] * point["per_host"] if "hosts" in point else None)
    got = estimate(Question(metric, ranks, point.get("hosts", 1), point.get("size")), found)
    assert got.typical == pytest.approx(point["value"], rel=0.05)
    assert got.bound is not None
    assert got.bound >= point["value"]


HEALTHY = [
    (f"{machine['ranks']} {machine['gpu']} {number}", machine)
    for number, machine in enumerate(
        json.loads((Path(__file__).parents[2] / "cases/models/healthy.json").read_text())["machines"]
    )
]


@pytest.mark.parametrize("machine", [machine for _, machine in HEALTHY], ids=[name for name, _ in HEALTHY])
def test_healthy_gpus_are_not_called_low_and_half_of_what_they_reach_is(machine: dict[str, Any]) -> None:
    """Typical figures within 5 % for all but all-gathers, to which no formula was fitted, and messages up to 32 MiB.

    Of messages of 32 to 128 MiB, which depend more on the version of the library, a third is called low.
    """
    found = without_nvls(shape(machine))
    for figure in machine["figures"]:
        metric, mib, measured = figure["metric"], figure.get("mib", 0), figure["value"]
        got = estimate(Question(metric, machine["ranks"], 1, mib << 20 or None), found)
        assert got.typical is not None
        low = got.low_below * got.typical
        assert measured > low, (figure, low)
        assert measured / (2 if mib == 0 or mib >= 256 else 3) < low, (figure, low)
        if metric != "all-gather-busbw" and mib != 32:
            assert measured == pytest.approx(got.typical, rel=0.05), figure


def test_healthy_figures_without_a_formula_are_not_called_low_and_a_third_is() -> None:
    """Of all-to-all and its like only the bound has a source; smaller messages than those judged are unknown."""
    machine = json.loads((Path(__file__).parents[2] / "cases/models/healthy.json").read_text())["bounded"]
    found = without_nvls(shape(machine))
    for figure in machine["figures"]:
        got = estimate(Question(figure["metric"], machine["ranks"], 1, figure["mib"] << 20), found)
        assert (got.bound is None) == (figure["mib"] < 256)
        if got.bound and got.at_least:
            assert figure["value"] / 3 < got.at_least * got.bound < figure["value"], figure


def without_nvls(found: HostShape) -> HostShape:
    """The shape with NVSwitches that do not reduce."""
    assert found.generation is not None
    generation = msgspec.structs.replace(found.generation, switch_part=None)
    return msgspec.structs.replace(found, switched=True, generation=generation)


def test_bounds_between_hosts() -> None:
    """Two hosts of 8 GPUs with 8 ports of 400 Gb/s: 750 hierarchical, 400 for a flat ring."""
    assert formulas.hierarchical(400, 2, 8) == pytest.approx(750)
    assert formulas.flat(400) == 400
    assert formulas.hierarchical(50, 2, None) == 100  # more than any number of GPUs allows
    assert formulas.hierarchical(12.5, 2, 1) == pytest.approx(12.5)


@pytest.mark.parametrize(
    ("speed", "width", "rate"), [(32, 16, 63.0), (16, 16, 31.5), (8, 16, 15.75), (5, 4, 2.0), (64, 16, None)]
)
def test_what_a_link_carries(speed: float, width: int, rate: float | None) -> None:
    found = formulas.pcie_gb_per_s(speed, width)
    assert found == (None if rate is None else pytest.approx(rate, rel=1e-3))


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("NVIDIA H200", {"10de:2335"}),
        ("H200 NVL", {"10de:233b"}),
        ("NVIDIA A100-SXM4", {"10de:20b0", "10de:20b2"}),
        ("NVIDIA A100-SXM4-80GB", {"10de:20b2"}),
        ("NVIDIA GH200", {"10de:2342", "10de:2348"}),
        ("NVIDIA H20-3e", set()),  # a form whose memory is faster
        ("RTX 3090 Ti", {"10de:2203"}),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", set()),
        ("NVIDIA H100 80GB PCIe", {"10de:2331"}),
        ("B200 SXM6", {"10de:2901"}),
        ("NVIDIA H200 SXM5 141GB HBM3e", {"10de:2335"}),
        ("RTX6000 Ada", {"10de:26b1"}),
        ("Gaudi 2 HL-225H", {"1da3:1020"}),
        ("AMD Instinct MI250X", set()),
        ("GeForce RTX 3080", set()),
        ("some board with 80GB", set()),
        (None, set()),
    ],
)
def test_a_gpu_is_found_by_its_name(name: str | None, devices: set[str]) -> None:
    assert {row.device for row in peaks_of(name, None, STANDARD)} == devices


def test_some_cards_have_eight_lanes() -> None:
    slots = {"RTX 4060 Ti": (16.0, 8), "RTX 5060 Ti": (32.0, 8), "RTX 5090": (32.0, 16), "RTX 4090 Laptop GPU": None}
    for gpu, slot in slots.items():
        setup = {"version": 1, "setup": {"gpu": f"NVIDIA GeForce {gpu}"}}
        assert shape_of(Measured.from_yaml(json.dumps(setup)), STANDARD).slot == slot


def test_a_model_of_several_forms_has_what_they_have_in_common() -> None:
    setup = {"version": 1, "setup": {"gpu": "NVIDIA A100-SXM4"}}
    found = shape_of(Measured.from_yaml(json.dumps(setup)), STANDARD)
    assert found.links == 12
    assert found.peaks["bf16"] == 312
    assert "memory" not in found.peaks  # 1,555 or 2,039


@pytest.mark.parametrize(
    ("text", "slot"), [("5.0 x16", (32.0, 16)), ("Gen4 x8", (16.0, 8)), ("4.0", None), (None, None)]
)
def test_slots(text: str | None, slot: tuple[float, int] | None) -> None:
    assert slot_of(text) == slot


def test_slices() -> None:
    assert slices_of("NVIDIA H100 80GB HBM3 MIG 3g.40gb") == (3, 7)
    assert slices_of("NVIDIA H100 80GB HBM3") is None
