"""Figures against floors, history and physics; before against after."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.bench.baselines import shipped
from hosttune.bench.compare import FigureChange, compare, rank_test
from hosttune.bench.judge import JudgingContext, RatedPort, judge, loaded_links, missing, spread
from hosttune.bench.parse.answer import Lost
from hosttune.model.validation import CheckResult, Sample, Validation

GPU = "0000:19:00.0"
H200 = "10de:2335"
GOOD = (55.3, 55.4, 55.2, 55.5, 55.3)


def runs(metric: str, values: Sequence[float], subject: str = GPU, unit: str = "GB/s") -> tuple[Sample, ...]:
    return tuple(Sample(metric=metric, subject=subject, value=value, unit=unit) for value in values)


def verdict(
    values: Sequence[float],
    metric: str = "h2d-ce",
    subject: str = GPU,
    gpus: int = 8,
    history: tuple[Validation, ...] = (),
) -> CheckResult:
    (result,) = judge(runs(metric, values, subject), JudgingContext(shipped(), {GPU: H200}, gpus, history))
    assert result.check == f"bench-{metric}"
    assert result.subject == subject
    return result


def test_the_median_against_the_floor_and_what_was_measured_elsewhere() -> None:
    assert verdict(GOOD).outcome == "pass"
    assert verdict((50.0,) * 5).outcome == "warn"  # above the floor of 48, below what an H200 gives
    assert [verdict((value,) * 5).outcome for value in (48.0, 47.99)] == ["warn", "fail"]
    failed = verdict((40.0, 40.1, 39.9, 40.2, 40.0))
    assert failed.outcome == "fail"
    assert "median 40 GB/s of 5 runs, 39.9 to 40.2" in str(failed.actual)
    assert ">= 48 GB/s (floor)" in str(failed.expected)
    assert "azurehpc-health-checks" in str(failed.source)
    assert failed.hint


def test_one_good_run_of_five_does_not_pass() -> None:
    assert verdict((40.0, 40.1, 55.5, 40.2, 40.0)).outcome == "fail"


def test_too_few_runs_and_impossible_figures_are_unknown() -> None:
    assert verdict(GOOD[:4]).outcome == "unknown"
    impossible = verdict((70.0,) * 5)
    assert impossible.outcome == "unknown"
    assert "not credible" in str(impossible.actual)
    assert "63" in str(impossible.expected)


def test_a_figure_with_nothing_to_hold_it_against_is_no_pass() -> None:
    assert verdict(GOOD, subject="0000:99:00.0").outcome == "skip"
    assert verdict((30.0,) * 5, "h2d-sm").outcome == "skip"


def test_runs_that_scatter_are_a_warning() -> None:
    unsteady = verdict((55.0, 61.0, 56.0, 62.0, 49.0, 48.5, 62.0))
    assert unsteady.outcome == "warn"
    assert "unsteady" in str(unsteady.actual)


def test_a_floor_for_eight_gpus_judges_no_four() -> None:
    assert verdict((300.0,) * 5, "all-reduce-16gib", "8 GPUs", 8).outcome == "fail"
    assert verdict((300.0,) * 5, "all-reduce-16gib", "4 GPUs", 4).outcome == "skip"


PEER = "0000:3b:00.0"
PAIR = f"{GPU}->{PEER}"


@pytest.mark.parametrize(
    ("value", "links", "expected", "said"),
    [
        (394.0, 18, "pass", ">= 335 GB/s (floor)"),
        (159.0, 18, "fail", ">= 335 GB/s (floor)"),
        # a board of four GPUs with 6 links to each other one: 335 of 18 links are 111.7 of 6
        (131.0, 6, "pass", ">= 111.7 GB/s (floor)"),
        (111.0, 6, "fail", ">= 111.7 GB/s (floor)"),
        (160.0, 6, "unknown", "at most 150 GB/s"),  # more than 6 links of 25 GB/s carry
        (55.0, 0, "skip", ""),  # over PCIe
        (70.0, 0, "unknown", "at most 63 GB/s"),
        # not known how many: enough for the most links is enough for any
        (394.0, None, "pass", ">= 335 GB/s (floor)"),
        (131.0, None, "unknown", ">= 335 GB/s (floor)"),
    ],
)
def test_a_floor_of_copies_between_gpus_is_that_of_their_links(
    value: float, links: int | None, expected: str, said: str
) -> None:
    known = {} if links is None else {PAIR: links}
    scene = JudgingContext(shipped(), {GPU: H200, PEER: H200}, 2, links=known)
    (result,) = judge(runs("p2p-write-ce", (value,) * 5, PAIR), scene)
    assert result.outcome == expected
    assert said in (result.expected or "")
    assert (result.hint is not None) == (expected in ("fail", "unknown"))
    if (links, expected) == (6, "pass"):
        assert "stated for 18 NVLinks, here 6" in (result.source or "")


@pytest.mark.parametrize(("links", "expected"), [(12, "pass"), (None, "pass"), (0, "skip")])
def test_a_floor_of_two_bridged_cards_is_none_for_two_without_a_bridge(links: int | None, expected: str) -> None:
    known = {} if links is None else {"2 GPUs": links}
    scene = JudgingContext(shipped(), {GPU: "10de:2321", PEER: "10de:2321"}, 2, links=known)
    (result,) = judge(runs("all-reduce-16gib", (210.0,) * 5, "2 GPUs"), scene)
    assert result.outcome == expected
    (slow,) = judge(runs("all-reduce-16gib", (40.0,) * 5, "2 GPUs"), scene)
    assert slow.outcome == {12: "fail", None: "unknown", 0: "skip"}[links]


@pytest.mark.parametrize(
    ("value", "port", "expected"),
    [
        (399.6, RatedPort(400.0), "pass"),
        (355.0, RatedPort(400.0), "fail"),
        (196.0, RatedPort(200.0), "pass"),  # a good port of 200 Gb/s of the same NIC
        (196.0, RatedPort(200.0, 504.1), "pass"),
        (175.0, RatedPort(200.0), "fail"),
        (250.0, RatedPort(200.0), "unknown"),  # more than the port carries
        (110.0, RatedPort(200.0, 126.0), "skip"),  # the slot carries less than the port
        (399.6, RatedPort(), "unknown"),
    ],
)
def test_an_rdma_port_is_held_against_its_own_rate(value: float, port: RatedPort, expected: str) -> None:
    scene = JudgingContext(shipped(), {"mlx5_0": "15b3:1021"}, 0, ports={"mlx5_0": port})
    (result,) = judge(runs("rdma-write", (value,) * 5, "mlx5_0->host2", "Gb/s"), scene)
    assert result.outcome == expected
    if expected in ("pass", "fail"):
        assert "host memory" in (result.source or "")
        assert "/sys/class/infiniband/mlx5_0/ports/1/rate" in (result.source or "")


def test_a_link_under_load_is_the_median_of_its_readings() -> None:
    speeds = runs("load-link-speed", (2.5, 32.0, 32.0, 32.0, 32.0), unit="GT/s")
    widths = runs("load-link-width", (16.0,) * 5, unit="lanes")
    assert loaded_links((*speeds, *widths)) == {GPU: (32.0, 16)}
    assert loaded_links(speeds) == {}
    assert loaded_links((*speeds[:4], *widths)) == {}
    assert judge((*speeds, *widths), JudgingContext(shipped(), {GPU: H200}, 1)) == ()


def test_a_host_is_held_against_its_own_history() -> None:
    old = Validation(samples=runs("h2d-sm", (50.0, 50.1, 49.9, 50.0, 50.2)))
    assert verdict((50.0,) * 5, "h2d-sm", history=(old,)).outcome == "pass"
    slower = verdict((45.0,) * 5, "h2d-sm", history=(old, old))
    assert slower.outcome == "warn"
    assert "50 GB/s before" in str(slower.expected)


def test_one_wrong_product_fails_a_gpu() -> None:
    assert verdict((0.0,), "burn-wrong-results").outcome == "pass"
    assert verdict((1.0,), "burn-wrong-results").outcome == "fail"


def test_clocks_and_power_are_not_judged_and_what_is_lost_is_unknown() -> None:
    assert judge(runs("load-power", (700.0,) * 5), JudgingContext(shipped(), {GPU: H200}, 1)) == ()
    (result,) = missing([Lost("h2d-ce", GPU, "no answer within 30 s")])
    assert (result.outcome, result.actual) == ("unknown", "no answer within 30 s")
    assert result.hint


@given(st.lists(st.floats(1, 2000), min_size=1, max_size=9))
def test_a_pass_is_a_median_between_floor_and_peak(values: list[float]) -> None:
    result = verdict(values)
    if result.outcome == "pass":
        assert len(values) >= 5
        assert 48 <= sorted(values)[len(values) // 2] <= 63.7
        assert spread(values) <= 0.1


# --- before and after ----------------------------------------------------------------------------------------


def change(before: Sequence[float], after: Sequence[float], metric: str = "h2d-ce", unit: str = "GB/s") -> FigureChange:
    (found,) = compare(Validation(samples=runs(metric, before)), Validation(samples=runs(metric, after, unit=unit)))
    return found


def test_an_effect_is_real_when_runs_and_size_both_say_so() -> None:
    better = change((50.0, 50.1, 49.9, 50.2, 50.0), (55.0, 55.2, 54.9, 55.1, 55.0))
    assert better.verdict == "better"
    assert better.change == pytest.approx(0.1)
    assert better.change is not None
    assert better.low is not None
    assert better.high is not None
    assert 0.09 < better.low <= better.change <= better.high < 0.11
    assert change((55.0, 55.2, 54.9, 55.1, 55.0), (50.0, 50.1, 49.9, 50.2, 50.0)).verdict == "worse"


def test_less_time_is_better() -> None:
    assert change((9.0, 9.1, 9.2, 9.3, 9.4), (5.0, 5.1, 5.2, 5.3, 5.4), "memory-latency").verdict == "better"


def test_within_noise() -> None:
    assert change(GOOD, GOOD).verdict == "within noise"
    assert change((50.0, 55.0, 45.0, 52.0, 48.0), (53.0, 58.0, 47.0, 54.0, 51.0)).verdict == "within noise"
    one_between = change((50.0, 51.0, 52.0, 53.0, 55.0), (54.0, 56.0, 57.0, 58.0, 59.0))
    assert one_between.verdict == "within noise"  # by chance in 1.6 %
    small = change((55.00, 55.01, 55.02, 55.03, 55.04), (55.20, 55.21, 55.22, 55.23, 55.24))
    assert small.verdict == "within noise"  # surely different, by 0.4 %


@pytest.mark.parametrize(
    ("before", "after", "unit", "why"),
    [
        (GOOD, (), "GB/s", "measured only before"),
        ((), GOOD, "GB/s", "measured only after"),
        (GOOD, GOOD[:3], "GB/s", "fewer than 5 runs"),
        (GOOD, GOOD, "MB/s", "in GB/s before, in MB/s after"),
        (GOOD, (0.0, *GOOD), "GB/s", "a figure is not positive"),
    ],
)
def test_what_cannot_be_compared_says_why(before: Sequence[float], after: Sequence[float], unit: str, why: str) -> None:
    found = change(before, after, unit=unit)
    assert (found.verdict, found.why, found.change) == ("unknown", why, None)


def test_the_same_documents_give_the_same_words() -> None:
    before, after = (random.Random(seed).choices(range(50, 60), k=9) for seed in (1, 2))
    assert change(before, after) == change(before, after)


def test_no_change_is_seldom_called_one() -> None:
    source = random.Random(7)
    draws = [
        change([source.gauss(100, 5) for _ in range(7)], [source.gauss(100, 5) for _ in range(7)]) for _ in range(300)
    ]
    assert sum(found.verdict != "within noise" for found in draws) <= 9  # 1 % of 300, thrice


@given(st.lists(st.integers(1, 6), min_size=2, max_size=9), st.integers(1, 8))
def test_the_rank_test_is_that_of_counting_all_ways(values: list[int], cut: int) -> None:
    cut = min(cut, len(values) - 1)
    numbers = [float(value) for value in values]
    ordered = sorted(numbers)
    ranks = [ordered.index(value) + len(ordered) - 1 - ordered[::-1].index(value) + 2 for value in numbers]
    centre = cut * (len(numbers) + 1)
    distance = abs(sum(ranks[:cut]) - centre)
    ways = [
        abs(sum(ranks[index] for index in chosen) - centre) >= distance
        for chosen in combinations(range(len(ranks)), cut)
    ]
    assert rank_test(numbers[:cut], numbers[cut:]) == pytest.approx(sum(ways) / len(ways))


def test_many_runs_take_the_normal_approximation() -> None:
    source = random.Random(3)
    old, new = [source.gauss(100, 1) for _ in range(60)], [source.gauss(100.9, 1) for _ in range(60)]
    assert rank_test(old, new) < 0.001
    assert rank_test(old, old) == 1.0


def test_a_floor_for_eight_gpus_is_none_for_seven_of_them() -> None:
    """A GPU that the library does not show is missing from the collective as well."""
    scene = JudgingContext(shipped(), {GPU: H200, PEER: H200}, 8)
    outcomes = [
        judge(runs("all-reduce-16gib", (400.0,) * 5, subject), scene)[0].outcome for subject in ("8 GPUs", "7 GPUs")
    ]
    assert outcomes == ["fail", "skip"]


def test_between_two_mi300x_a_floor_is_that_of_their_one_link() -> None:
    for value, links, expected in (
        (50.0, None, "pass"),
        (40.0, None, "fail"),
        (70.0, None, "unknown"),
        (40.0, 0, "skip"),
    ):
        known = {} if links is None else {PAIR: links}
        scene = JudgingContext(shipped(), {GPU: "1002:74a1", PEER: "1002:74a1"}, 8, links=known)
        (result,) = judge(runs("p2p-write-ce", (value,) * 5, PAIR), scene)
        assert result.outcome == expected, value
