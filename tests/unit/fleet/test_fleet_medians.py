"""Medians of a fleet, figures far from them, and floors made of them that `validate --fleet` takes and warns by."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

import pytest

from hosttune.bench.baselines import with_fleet
from hosttune.bench.judge import JudgingContext, judge
from hosttune.fleet.medians import (
    FAR,
    FEWEST_HOSTS,
    LEAST_TOLERANCE,
    Hardware,
    HostFigures,
    fleet_medians,
    floors_toml,
    is_far,
    rows_of,
)
from hosttune.model.fleet import Median, Outlier
from hosttune.model.validation import Sample

GPU, OTHER = "0000:18:00.0", "0000:29:00.0"
H200 = ("NVIDIA H200", "10de:2335")
H100 = ("NVIDIA H100", "10de:2330")
ONE = Hardware({GPU: H200}, "HGX")


def runs(metric: str, subject: str, *values: float | None, unit: str = "GB/s") -> tuple[Sample, ...]:
    return tuple(Sample(metric=metric, subject=subject, value=value, unit=unit) for value in values)


def seen(
    values: Iterable[float], metric: str = "h2d-ce", unit: str = "GB/s"
) -> tuple[tuple[Median, ...], tuple[Outlier, ...]]:
    hosts = [(f"host-{n}", rows_of(runs(metric, GPU, value, unit=unit), ONE)) for n, value in enumerate(values)]
    return fleet_medians(hosts)


# --- medians -------------------------------------------------------------------------------------------------


def test_median_and_mad_are_of_every_subjects_median_of_its_runs() -> None:
    two = Hardware({GPU: H200, OTHER: H200})
    first = rows_of((*runs("h2d-ce", GPU, 50.0, 55.0, 54.0), *runs("h2d-ce", OTHER, 56.0)), two)
    second = rows_of(runs("h2d-ce", GPU, 57.0), two)
    (one,), _ = fleet_medians([("a", first), ("b", second)])
    assert (one.median, one.mad, one.hosts, one.subjects) == (56.0, 1.0, 2, 3)
    assert (one.model, one.device, one.metric, one.unit) == (*H200, "h2d-ce", "GB/s")


def test_models_are_never_mixed() -> None:
    found, _ = fleet_medians(
        (name, rows_of(runs("h2d-ce", GPU, value), Hardware({GPU: model})))
        for name, model, value in (("a", H200, 55.0), ("b", H100, 50.0))
    )
    assert {one.model: one.median for one in found} == {"NVIDIA H100": 50.0, "NVIDIA H200": 55.0}


@pytest.mark.parametrize(
    ("metric", "subject", "unit"),
    [
        ("h2d-ce", "0000:99:00.0", "GB/s"),  # an address that is no GPU of the host
        ("p2p-read-ce", f"{GPU}->0000:99:00.0", "GB/s"),
        ("no-such-metric", GPU, "GB/s"),
        ("h2d-ce", GPU, "ns"),  # another dimension
        ("h2d-ce", GPU, "furlongs"),
    ],
)
def test_what_cannot_be_compared_is_left_out(metric: str, subject: str, unit: str) -> None:
    assert rows_of(runs(metric, subject, 1.0, unit=unit), ONE) == ()


def test_a_pair_of_two_models_and_a_host_of_two_models_belong_to_none() -> None:
    mixed = Hardware({GPU: H200, OTHER: H100})
    assert rows_of(runs("p2p-read-ce", f"{GPU}->{OTHER}", 300.0), mixed) == ()
    assert rows_of(runs("all-reduce-1gib", "2 GPUs", 300.0), mixed) == ()


def test_figures_are_in_the_metrics_own_unit() -> None:
    (row,) = rows_of(runs("h2d-ce", GPU, 55_000.0, unit="MB/s"), ONE)
    assert (row.kind.unit, list(row.values)) == ("GB/s", [55.0])


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_run_without_a_figure_is_no_figure(value: float | None) -> None:
    assert rows_of(runs("h2d-ce", GPU, value), ONE) == ()


def test_gpus_together_are_compared_by_their_number() -> None:
    (row,) = rows_of(runs("all-reduce-1gib", "8 GPUs", 470.0), ONE)
    assert (row.kind.gpus, row.kind.device) == (8, "10de:2335")


def test_a_machines_own_figures_are_compared_subject_by_subject_with_machines_of_its_product() -> None:
    samples = (*runs("memory-copy", "node0->node0", 240.0), *runs("memory-copy", "node0->node1", 118.0))
    assert [(row.kind.model, row.kind.subject) for row in rows_of(samples, ONE)] == [
        ("HGX", "node0->node0"),
        ("HGX", "node0->node1"),
    ]
    assert rows_of(samples, Hardware({})) == ()


# --- outliers ------------------------------------------------------------------------------------------------


def test_the_score_is_that_of_iglewicz_and_hoaglin() -> None:
    values = [54.0, 55.0, 55.5, 56.0, 57.0, 40.0]
    _, (far,) = seen(values)
    middle = median(values)
    mad = median(abs(value - middle) for value in values)
    assert far.score == pytest.approx(0.6745 * (40.0 - middle) / mad)
    assert (far.host, far.subject, far.value, far.median, far.mad, far.worse) == (
        "host-5",
        GPU,
        40.0,
        middle,
        mad,
        True,
    )


def test_the_limit_is_three_and_a_half() -> None:
    assert is_far(100 + 1.001 * FAR / 0.6745, 100.0, 1.0)
    assert not is_far(100 + 0.999 * FAR / 0.6745, 100.0, 1.0)


@pytest.mark.parametrize("hosts", range(1, FEWEST_HOSTS))
def test_few_hosts_have_no_outlier(hosts: int) -> None:
    assert seen([55.0] * (hosts - 1) + [1.0])[1] == ()


def test_one_host_with_many_gpus_is_one_host() -> None:
    gpus = {f"0000:{n:02x}:00.0": H200 for n in range(1, 9)}
    samples = tuple(sample for n, gpu in enumerate(gpus) for sample in runs("h2d-ce", gpu, 10.0 if n == 0 else 55.0))
    assert fleet_medians([("a", rows_of(samples, Hardware(gpus)))])[1] == ()


@pytest.mark.parametrize(("odd", "far"), [(55.1, False), (53.0, False), (52.0, True), (58.0, True)])
def test_without_any_spread_the_relative_size_decides(odd: float, far: bool) -> None:
    medians, outliers = seen([55.0] * 9 + [odd])
    assert medians[0].mad == 0
    assert bool(outliers) == far
    assert all(one.score is None for one in outliers)


def test_a_difference_too_small_to_matter_is_none_however_alike_the_others_are() -> None:
    assert seen([55.0, 55.001, 55.002, 55.003, 55.004, 55.2])[1] == ()


def test_a_fleet_of_zeros_has_an_outlier_in_any_other_number() -> None:
    _, (far,) = seen([0.0] * 6 + [3.0], metric="burn-wrong-results", unit="count")
    assert far.worse


@pytest.mark.parametrize(
    ("metric", "unit", "value", "worse"),
    [
        ("h2d-ce", "GB/s", 20.0, True),
        ("h2d-ce", "GB/s", 90.0, False),
        ("load-temperature", "°C", 20.0, False),
        ("load-temperature", "°C", 90.0, True),
    ],
)
def test_the_bad_side_is_the_metrics_own(metric: str, unit: str, value: float, worse: bool) -> None:
    _, outliers = seen([54.0, 55.0, 56.0, 55.5, 54.5, value], metric, unit)
    assert [one.worse for one in outliers] == [worse]


def test_the_bad_side_comes_first_then_the_farthest() -> None:
    _, outliers = seen([54.0, 54.5, 55.0, 55.2, 55.5, 56.0, 30.0, 200.0, 20.0])
    assert [one.value for one in outliers] == [20.0, 30.0, 200.0]


def test_a_third_of_bad_hosts_hides_nobody() -> None:
    """Mean and deviation would: that is why it is the median."""
    _, outliers = seen([54.8, 55.0, 55.1, 55.2, 55.4, 55.5, 27.0, 27.2, 27.4])
    assert {one.host for one in outliers} == {"host-6", "host-7", "host-8"}


def test_the_order_of_hosts_changes_no_median() -> None:
    values = [random.Random(3).gauss(55, 1) for _ in range(40)]
    assert seen(values)[0] == seen(values[::-1])[0]


# --- floors --------------------------------------------------------------------------------------------------


def fleet_of(values: Mapping[str, tuple[float, str]], hosts: int = 12) -> str:
    """The floors of a fleet whose hosts differ by up to 1 %."""
    draw = random.Random(5)
    all_hosts: list[tuple[str, tuple[HostFigures, ...]]] = []
    for n in range(hosts):
        samples = tuple(
            sample
            for metric, (value, unit) in values.items()
            for sample in runs(
                metric, "8 GPUs" if metric.startswith("all") else GPU, value * draw.uniform(0.99, 1.01), unit=unit
            )
        )
        all_hosts.append((f"host-{n}", rows_of(samples, ONE)))
    return floors_toml(fleet_medians(all_hosts)[0], run="r1", at="2026-03-01")


MEASURED = {"h2d-ce": (55.5, "GB/s"), "gemm-bf16": (798.0, "TFLOP/s"), "all-reduce-1gib": (400.0, "GB/s")}


def test_the_floors_are_what_validate_takes() -> None:
    rows = [row for row in with_fleet(fleet_of(MEASURED)).baselines if row.kind == "fleet"]
    assert {(row.metric, row.device, row.gpus) for row in rows} == {
        ("h2d-ce", "10de:2335", None),
        ("gemm-bf16", "10de:2335", None),
        ("all-reduce-1gib", "10de:2335", 8),
    }
    assert all("run r1" in row.source and "12 hosts" in row.source for row in rows)


@pytest.mark.parametrize(("part", "outcome"), [(1.0, "pass"), (0.97, "pass"), (0.88, "warn")])
def test_a_host_that_lags_behind_its_fleet_warns(part: float, outcome: str) -> None:
    scene = JudgingContext(standard=with_fleet(fleet_of(MEASURED)), devices={GPU: "10de:2335"}, gpus=1)
    (result,) = judge(runs("h2d-ce", GPU, *[55.5 * part] * 5), scene)
    assert result.outcome == outcome
    assert "fleet's median" in (result.expected or "")


def test_a_fleet_that_differs_much_has_a_wider_floor_and_a_very_alike_one_keeps_some() -> None:
    def tolerance(values: list[float]) -> float:
        (row,) = tomllib.loads(floors_toml(seen(values)[0]))["baseline"]
        return float(row["tolerance"])

    assert tolerance([55.0] * 6) == LEAST_TOLERANCE
    assert tolerance([50.0, 52.0, 54.0, 55.0, 56.0, 58.0, 60.0]) == pytest.approx(3.5 / 0.6745 * 3.0 / 55.0, abs=0.001)


STRANGE = Median(model="X", device="dead:beef", metric="h2d-ce", unit="GB/s", median=5.0, mad=0.1, hosts=9, subjects=9)


@pytest.mark.parametrize(
    ("medians", "why"),
    [
        (seen([55.0] * 4)[0], "4 hosts, fewer than 5"),
        (seen([60.0] * 6, "load-temperature", "°C")[0], "reported, not judged"),
        (seen([0.0] * 6, "burn-wrong-results", "count")[0], "the median is 0"),
        (seen([9000.0] * 6)[0], "above the physical peak"),
        (seen([0.01] * 6)[0], "it could not fail"),
        ((STRANGE,), "no peak"),
    ],
)
def test_what_makes_no_floor_is_a_comment_with_its_reason(medians: tuple[Median, ...], why: str) -> None:
    text = floors_toml(medians)
    assert tomllib.loads(text) == {}
    assert why in text


def test_a_fleet_without_figures_has_no_floors_and_says_so() -> None:
    assert "Nothing was measured" in floors_toml(())
    assert not [row for row in with_fleet(floors_toml(())).baselines if row.kind == "fleet"]


def test_a_hostile_model_is_no_toml() -> None:
    model = "H200\"\n[[baseline]]\nmetric = \"x\x00\x7f\u202e''' \\"
    hosts = [(f"host-{n}", rows_of(runs("h2d-ce", GPU, 55.0), Hardware({GPU: (model, "10de:2335")}))) for n in range(6)]
    text = floors_toml(fleet_medians(hosts)[0], run=model, at=model)
    assert len(tomllib.loads(text)["baseline"]) == 1
    with_fleet(text)


def test_the_command_line_takes_the_floors(tmp_path: Path) -> None:
    from hosttune.cli.validate import read_fleet

    (tmp_path / "floors.toml").write_text(fleet_of(MEASURED))
    assert read_fleet(str(tmp_path / "floors.toml")) == fleet_of(MEASURED)


@pytest.mark.parametrize("text", ["", floors_toml(())])
def test_the_command_line_refuses_floors_that_compare_nothing(tmp_path: Path, text: str) -> None:
    from hosttune.cli.validate import read_fleet
    from hosttune.errors import BadInput

    (tmp_path / "floors.toml").write_text(text)
    with pytest.raises(BadInput, match="no floors in it"):
        read_fleet(str(tmp_path / "floors.toml"))
