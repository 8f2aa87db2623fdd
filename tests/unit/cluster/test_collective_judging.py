"""Answers of a group's hosts become one outcome; figures are compared with prediction, fleet and a floor."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from collectivehosts import member, seconds_of
from msgspec.structs import replace

from hosttune.cluster.collective.judging import (
    CollectiveStandard,
    WantedGroup,
    busbw,
    figures,
    joined,
    judged,
    scaling,
    verdict_of,
)
from hosttune.cluster.collectiveanswers import expected, machines
from hosttune.model.collective import HostGroup, Member, Timing
from hosttune.predicting.formulas import Estimate

MIB = 1 << 20
WANTED = WantedGroup("g", 16, ("all-reduce",), (256 * MIB,), 1)


def timing(rate: float, ranks: int = 16, size: int = 256 * MIB, **changes: Any) -> Timing:
    made = Timing(
        kind="all-reduce", size_bytes=size, ranks=ranks, seconds=(seconds_of("all-reduce", ranks, size, rate),)
    )
    return replace(made, **changes)


def answer(host: str, *timings: Timing, **changes: Any) -> Member:
    return replace(Member(host=host, group="g", ranks=16, outcome="measured", timings=timings), **changes)


def group(rate: float, *hosts: str, step: int = 1, **changes: Any) -> HostGroup:
    ranks = 8 * len(hosts)
    made = HostGroup(
        step=step,
        purpose="series",
        hosts=hosts,
        ranks=ranks,
        outcome="measured",
        figures=figures([timing(rate, ranks)]),
    )
    return replace(made, **changes)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md: 2(n-1)/n and (n-1)/n of the algorithm bandwidth, S being the gathered size."""
    assert busbw("all-reduce", 8, 1 << 30, 0.01) == pytest.approx(107.3741824 * 1.75)
    assert busbw("all-gather", 8, 1 << 30, 0.01) == pytest.approx(107.3741824 * 0.875)
    assert busbw("all-reduce", 2, 10**9, 1.0) == 1.0


def test_hosts_that_agree_have_figures() -> None:
    found = joined(WANTED, {"a": answer("a", timing(380)), "b": answer("b", timing(380))})
    assert (found.outcome, len(found.timings)) == ("measured", 1)
    (figure,) = figures(found.timings)
    assert figure.busbw == pytest.approx(380)


@pytest.mark.parametrize(
    ("changes", "outcome", "said"),
    [({"group": "h"}, "not-understood", "another group"),
     ({"ranks": 8}, "not-understood", "8 ranks, not 16"),
     ({"timings": (timing(380, 8),)}, "not-understood", "ranks, not 16"),
     ({"timings": (timing(300),)}, "not-understood", "contradict"),
     ({"timings": ()}, "not-understood", "contradict"),
     ({"timings": (timing(380, seconds=(float("nan"),)),)}, "not-understood", "contradict"),
     ({"outcome": "wrong", "why": "NaN", "accused": ("b",)}, "wrong", "b: NaN"),
     ({"outcome": "port-busy", "why": "taken"}, "port-busy", "b: taken"),
     ({"outcome": "listed"}, "not-understood", "did not take part")],
)  # fmt: skip
def test_an_answer_that_is_not_of_this_group_has_no_figure(changes: dict[str, Any], outcome: str, said: str) -> None:
    found = joined(WANTED, {"a": answer("a", timing(380)), "b": replace(answer("b", timing(380)), **changes)})
    assert found.outcome == outcome
    assert said in str(found.why)
    assert found.timings == ()


def test_wrong_values_count_whatever_the_speed_and_the_cause_comes_before_what_follows() -> None:
    """One host has wrong values, another lost its peer because of that, and the first has a figure."""
    answers = {
        "a": answer("a", timing(900)),
        "b": answer("b", outcome="member-lost", why="a ended"),
        "c": answer("c", timing(900), outcome="wrong", why="NaN at rank 17"),
    }
    found = joined(WANTED, answers)
    assert (found.outcome, found.why) == ("wrong", "c: NaN at rank 17")
    (judged_,) = judged([group(1, "a", "b", "c", outcome="wrong", figures=())], CollectiveStandard(lambda *_: None))
    assert judged_.state == "failed"


def standard(**changes: Any) -> CollectiveStandard:
    return replace_standard(
        CollectiveStandard(lambda kind, hosts, size: Estimate("GB/s", "", "", 400.0, 380.0)), **changes
    )


def replace_standard(of: CollectiveStandard, **changes: Any) -> CollectiveStandard:
    return msgspec.structs.replace(of, **changes)


@pytest.mark.parametrize(
    ("rate", "of", "state"),
    [(380, standard(), "good"),
     (320, standard(), "low"),  # 0.85 of 380 is 323
     (430, standard(), "unknown"),  # above the bound
     (380, standard(expect=lambda *_: None), "unknown"),
     (380, standard(expect=lambda *_: None, least=300.0), "good"),
     (250, standard(expect=lambda *_: None, least=300.0), "low"),
     (380, standard(against=("fleet",)), "unknown"),  # one group is no fleet
     (380, standard(expect=lambda *_: Estimate("GB/s", "", "", 400.0, None, at_least=None)), "unknown"),
     (150, standard(expect=lambda *_: Estimate("GB/s", "", "", 400.0, None)), "low"),  # half of the bound
     (1, standard(expect=lambda *_: Estimate("GB/s", "", "", 400.0, 380.0, low_below=0.0)), "unknown")],
)  # fmt: skip
def test_a_figure_is_good_only_if_something_says_so(rate: float, of: CollectiveStandard, state: str) -> None:
    (found,) = judged([group(rate, "a", "b")], of)
    assert found.state == state, found
    assert (found.why is None) == (state == "good")


def test_groups_of_the_same_size_are_compared_with_each_other() -> None:
    groups = [group(rate, f"{n}", f"{n}x") for n, rate in enumerate((100, 100, 99, 80))]
    found = judged(groups, CollectiveStandard(lambda *_: None, against=("fleet",)))
    assert [one.state for one in found] == ["good", "good", "good", "low"]
    both = judged(groups, CollectiveStandard(lambda *_: None))  # the prediction is asked too, and is unknown
    assert [one.state for one in both] == ["unknown", "unknown", "unknown", "low"]


def test_the_last_measurement_of_the_same_hosts_counts() -> None:
    groups = [
        group(100, "a", "b"),
        group(380, "b", "a", step=2),
        group(9, "a", "b", step=3, outcome="host-lost", figures=()),
    ]
    found = judged(groups, standard())
    assert [(one.state, one.repeated) for one in found] == [("low", True), ("good", False), ("unknown", False)]
    assert verdict_of(found[:2], incomplete=False) == "warn"
    assert verdict_of(found[:1], incomplete=False) == "unknown"
    assert verdict_of(judged(groups[1:2], standard()), incomplete=False) == "pass"
    assert verdict_of(judged(groups[1:2], standard()), incomplete=True) == "unknown"
    assert verdict_of(judged(groups[:1], standard()), incomplete=True) == "fail"


def test_efficiency_names_its_base() -> None:
    """Per rank, against the fewest hosts with a network between them; one host alone is another figure."""
    groups = [group(480, "a"), group(360, "a", "b"), group(340, "c", "d"), group(315, "a", "b", "c", "d")]
    rows = {row.hosts: row for row in scaling(groups, lambda *_: None)}
    assert rows[1].efficiency is rows[2].efficiency is None
    assert (rows[2].busbw, rows[2].lowest, rows[2].groups) == pytest.approx((350, 340, 2))
    assert rows[4].base_hosts == 2
    assert rows[4].efficiency == pytest.approx(0.9)
    assert rows[4].of_one_host == pytest.approx(315 / 480)


def test_the_prediction_is_that_of_the_shape() -> None:
    """2 × 8 H200 with eight ports of 50 GB/s: as NVLS in one (docs/models.md); over TCP 3.5 GB/s; one host NVLS."""
    hosts = [member("a", 1), member("b", 2)]
    found = expected(machines(hosts, 8, "gpu"), "all-reduce", 2, 8 << 30)
    assert found is not None
    assert (found.bound, found.typical) == pytest.approx((750, 478), rel=0.01)
    alone = expected(machines(hosts, 8, "gpu"), "all-reduce", 1, 8 << 30)
    assert alone is not None
    assert alone.typical == pytest.approx(478.7, rel=0.01)
    tcp = expected(machines([replace(one, rdma=False) for one in hosts], 8, "gpu"), "all-reduce", 2, 1 << 30)
    assert tcp is not None
    assert (tcp.bound, tcp.typical) == (12.5, 3.5)  # the port where they meet has 100 Gb/s
    off = [replace(one, environment={"NCCL_IB_DISABLE": "1"}) for one in hosts]
    assert machines(off, 8, "gpu").tcp
    assert expected(machines(hosts, 8, "cpu"), "all-reduce", 2, 1 << 30) is None
    part = expected(machines(hosts, 4, "gpu"), "all-reduce", 2, 8 << 30)
    assert part is not None
    assert part.bound == pytest.approx(200 * 2 * 7 / 8)  # the ports of four GPUs
    mixed = [hosts[0], replace(hosts[1], wiring=replace(hosts[1].wiring, nics=4))]  # type: ignore[type-var]
    assert expected(machines(mixed, 8, "gpu"), "all-reduce", 2, 8 << 30) is None


def test_small_messages_are_not_judged_beside_large_ones() -> None:
    small = figures([timing(1.0, size=1 << 20), timing(380.0)])
    (found,) = judged([group(380, "a", "b", figures=small)], standard())
    assert found.state == "good"
    assert [one.state for one in found.figures] == ["unknown", "good"]


def test_an_all_gather_is_judged_by_the_size_that_was_asked_for() -> None:
    """Of 24 ranks each has the same part of the buffer, so that it has 32 bytes less than 32 MiB."""
    size, ranks = 32 * MIB, 24
    less = size // 4 // ranks * ranks * 4
    assert less < size
    wanted = WantedGroup("g", ranks, ("all-reduce", "all-gather"), (size,), 1)
    fast = timing(1.2, ranks, size)
    slow = timing(1, ranks, less, kind="all-gather", seconds=(seconds_of("all-gather", ranks, less, 0.001),))
    found = joined(wanted, {"a": answer("a", fast, slow, ranks=ranks)})
    assert [(one.kind, one.size_bytes) for one in found.timings] == [("all-reduce", size), ("all-gather", size)]
    of = HostGroup(step=1, purpose="series", hosts=("a", "b", "c"), ranks=ranks, outcome="measured",
                   figures=figures(found.timings))  # fmt: skip
    (judged_,) = judged([of], CollectiveStandard(lambda *_: None, least=1.1))
    assert [one.state for one in judged_.figures] == ["good", "low"]


@pytest.mark.parametrize(
    "timings",
    [(timing(380, seconds=()),), (timing(380, seconds=(0.0,)),), (timing(380, seconds=(-1.0,)),),
     (timing(380, seconds=(1e-300,)),), (timing(380, seconds=(0.01, 0.01)),), (timing(380, size=1 << 62),),
     (timing(380, size=-1),), (timing(380, size=16 * MIB),), (timing(380), timing(380)),
     (timing(380, kind="all-gather"),)],
)  # fmt: skip
def test_times_that_cannot_be_or_were_not_asked_for_are_no_figure(timings: tuple[Timing, ...]) -> None:
    """One host alone has nobody who contradicts it."""
    for hosts in ("a", "ab"):
        found = joined(WANTED, {host: answer(host, *timings) for host in hosts})
        assert (found.outcome, found.timings) == ("not-understood", ())


def test_a_group_with_a_size_that_was_left_out_is_not_good() -> None:
    """A collective that is slow enough does not fit into its time."""
    both = msgspec.structs.replace(WANTED, sizes=(256 * MIB, 1024 * MIB))
    found = joined(both, {"a": answer("a", timing(380))})
    assert (found.outcome, found.left_out) == ("measured", (f"all-reduce of {1024 * MIB} bytes",))
    (judged_,) = judged([group(380, "a", "b", left_out=found.left_out)], standard())
    assert (judged_.state, judged_.why) == ("unknown", f"all-reduce of {1024 * MIB} bytes has no figure")
    assert judged([group(100, "a", "b", left_out=found.left_out)], standard())[0].state == "low"
