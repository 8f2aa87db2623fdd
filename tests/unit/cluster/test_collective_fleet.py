"""`fleet collective` as one call: series, search, deaths, hosts that differ, resumed runs, and the report's words."""

from __future__ import annotations

import io
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from collectivehosts import Fabric, member
from msgspec.structs import replace
from rich.console import Console

from hosttune.cluster.between import report_of_past, run_between
from hosttune.cluster.collectiveplan import CollectiveOptions
from hosttune.cluster.collectiveruns import COLLECTIVE, CollectiveRequest, CollectiveRun
from hosttune.errors import BadInput
from hosttune.fleet.inventory import Inventory
from hosttune.fleet.run import FleetRequest
from hosttune.model.collective import CollectiveReport, Member
from hosttune.report.collective import collective_report
from hosttune.report.draw.html import page
from hosttune.report.draw.text import draw

# An all-gather within a host reaches no more than its links; these hosts have one figure for both.
OPTIONS = CollectiveOptions(sizes=(256 << 20, 1 << 30), kinds=("all-reduce",))
NOON = datetime(2026, 11, 23, 12, 0)


def hosts(count: int) -> tuple[str, ...]:
    return tuple(f"gpu-{number}" for number in range(1, count + 1))


def run(results: Path, fabric: Fabric, count: int = 8, **more: Any) -> CollectiveRun:
    base = FleetRequest(
        verb="collective", inventories=(",".join((*hosts(count), "")),), results=str(results),
        resume=more.pop("resume", False), check=more.pop("check", False),
    )  # fmt: skip
    options = replace(OPTIONS, **more.pop("options", {}))
    request = CollectiveRequest(base, options, **more)
    return carried_out(request, fabric, count)


def carried_out(request: CollectiveRequest, fabric: Fabric, count: int) -> CollectiveRun:
    """Without `ansible --list-hosts`, which takes a second."""
    here = Inventory(hosts(count))
    return run_between(
        COLLECTIVE, request, lambda line: None, player=fabric.play, clock=lambda: NOON, reader=lambda *_: here
    )


def text(report: CollectiveReport) -> str:
    out = io.StringIO()
    draw(collective_report(report), Console(file=out, width=100, highlight=False))
    return " ".join(out.getvalue().split())


def within(record: str, members: frozenset[str]) -> float:
    """As predicted: one host 470, two hosts 640, more 380 GB/s."""
    return {1: 470 / 380, 2: 640 / 380}.get(len(members), 1.0)


def test_a_good_fleet_passes_with_its_scaling(tmp_path: Path) -> None:
    fabric = Fabric(factor=within)
    done = run(tmp_path, fabric)
    report = done.report
    assert (done.exit_code, report.verdict) == (0, "pass"), report.to_json()
    assert report.series == (1, 2, 4, 8)
    assert [record for record, _ in fabric.asked] == ["collective-hosts", *(f"collective-{n:03}" for n in range(1, 5))]
    rows = [row for row in report.scaling if (row.kind, row.size_bytes) == ("all-reduce", 1 << 30)]
    assert [(row.hosts, row.ranks, row.groups) for row in rows] == [(1, 8, 8), (2, 16, 4), (4, 32, 2), (8, 64, 1)]
    assert rows[3].efficiency == pytest.approx(380 / 640)
    assert rows[3].base_hosts == 2
    assert rows[3].bound == pytest.approx(400 * 8 * 63 / (64 * 7))
    said = text(report)
    assert "8 64 1 380 380 373.7 450" in said
    assert "59% of 2 hosts" in said
    assert "NCCL_DEBUG" in said
    assert CollectiveReport.from_json(report.to_json()) == report
    assert report_of_past(COLLECTIVE, str(tmp_path), report.run) == report


def test_two_planted_slow_hosts_are_named_and_left_out(tmp_path: Path) -> None:
    fabric = Fabric(reaches={"gpu-3": 150.0, "gpu-8": 90.0}, factor=within)
    done = run(tmp_path, fabric)
    report = done.report
    assert (done.exit_code, report.verdict) == (1, "fail")
    assert [(one.kind, one.hosts) for one in report.faults] == [("host", ("gpu-3",)), ("host", ("gpu-8",))]
    last = report.groups[-1]
    assert (last.purpose, set(last.hosts), last.state) == ("search", set(hosts(8)) - {"gpu-3", "gpu-8"}, "good")
    assert "host gpu-3: every group with it is bad" in text(report)
    assert "gpu-3" in page(collective_report(report))
    assert all(len(set(asked)) == len(asked) for _, asked in fabric.asked)


def test_wrong_values_are_a_failure_and_their_host_is_found(tmp_path: Path) -> None:
    """Every group with gpu-2 is fast, and has wrong sums."""
    fabric = Fabric(
        outcomes={"gpu-2": ("wrong", "all-reduce of 268435456 bytes gave wrong values at rank 3")}, factor=within
    )
    report = run(tmp_path, fabric, 4, options={"first": 2}).report
    assert report.verdict == "fail"
    assert [(one.kind, one.hosts) for one in report.faults] == [("host", ("gpu-2",))]
    assert {one.outcome for one in report.groups if one.state == "failed"} == {"wrong"}


def test_a_host_that_dies_costs_its_own_groups_and_a_resumed_run_measures_it(tmp_path: Path) -> None:
    fabric = Fabric(dies={"gpu-3": "collective-002"}, factor=within)
    first = run(tmp_path, fabric, 4).report
    assert first.verdict == "unknown"
    lost = [one for one in first.groups if one.outcome == "host-lost"]
    assert [one.hosts for one in lost] == [("gpu-3", "gpu-4")]
    assert {one.hosts for one in first.groups if one.state == "good" and len(one.hosts) > 1} == {
        ("gpu-1", "gpu-2"), ("gpu-1", "gpu-4"), ("gpu-1", "gpu-2", "gpu-4"),
    }  # fmt: skip
    assert not any("gpu-3" in asked for _, asked in fabric.asked[3:])
    again = Fabric(factor=within)
    second = run(tmp_path, again, 4, resume=True).report
    assert [asked for _, asked in again.asked] == [("gpu-1", "gpu-3"), hosts(4)]
    assert (second.run, second.verdict) == (first.run, "pass"), text(second)


def test_a_busy_port_is_tried_twice_and_is_unknown(tmp_path: Path) -> None:
    fabric = Fabric(outcomes={"gpu-1": ("port-busy", "cannot listen at 10.0.0.2 port 29500: Address already in use")})
    report = run(tmp_path, fabric, 2, options={"first": 2}).report
    assert [one.outcome for one in report.groups] == ["port-busy", "port-busy"]
    assert (report.verdict, report.faults) == ("unknown", ())
    assert "Address already in use" in text(report)


OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "gpus": ({"library": replace(member("x", 1).library, gpus=4)}, "other-gpus"),  # type: ignore[type-var]
    "version": ({"library": replace(member("x", 1).library, nccl="2.27.3")}, "other-version"),  # type: ignore[type-var]
    "library": ({"library": None, "notes": ("no PyTorch for python3",)}, "not-installed"),
    "cpu": ({"library": replace(member("x", 1).library, gpus=0, nccl=None)}, "no-gpus"),  # type: ignore[type-var]
    "guests": ({"guests": ("train",)}, "refused"),
    "unknown guests": ({"guests": None}, "refused"),
    "address": ({"place": member("gpu-1", 1).place}, "same-address"),
    "name": ({"host": "gpu-2.example.org"}, "other-name"),  # the inventory leads to the wrong machine
    "no address": ({"place": None, "notes": ("there is no default route",)}, "no-address"),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_host_unlike_the_others_is_not_measured_and_said(name: str, tmp_path: Path) -> None:
    says, outcome = OTHER[name]
    report = run(tmp_path, Fabric(says={"gpu-4": says}, factor=within), 4, options={"first": 2}).report
    told = {one.host: one.outcome for one in report.hosts}
    assert told["gpu-4"] == outcome
    assert not any("gpu-4" in one.hosts for one in report.groups)
    assert report.verdict == "unknown"
    assert f"host gpu-4: not measured: {outcome}" in text(report)


def test_a_named_host_is_measured_though_guests_run(tmp_path: Path) -> None:
    fabric = Fabric(says={"gpu-2": {"guests": ("train",)}}, factor=within)
    report = run(tmp_path, fabric, 2, disrupt=("gpu-2",)).report
    assert report.verdict == "pass"
    with pytest.raises(BadInput, match="no host 'gpu-9'"):
        run(tmp_path, fabric, 2, disrupt=("gpu-9",))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(lambda one: replace(one, machine="boot-other"), "another machine answers"),
     (lambda one: replace(one, machine=None), "does not say any more which machine"),
     (lambda one: replace(one, timings=(replace(one.timings[0], seconds=()), *one.timings[1:])), "contradict"),
     (lambda one: replace(one, group="other"), "another group"),
     (lambda one: replace(one, ranks=3), "3 ranks, not 16"),
     (lambda one: replace(one, timings=one.timings[:1]), "contradict")],
)  # fmt: skip
def test_an_answer_of_somebody_else_has_no_figure(spoil: Any, said: str, tmp_path: Path) -> None:
    def other(host: str, found: Member) -> Member:
        return spoil(found) if host == "gpu-2" else found

    report = run(tmp_path, Fabric(spoil=other, factor=within), 2, options={"first": 2}).report
    assert {one.state for one in report.groups} == {"unknown"}
    assert said in text(report)


def test_a_size_that_every_host_left_out_is_unknown_and_its_scaling_has_one_base(tmp_path: Path) -> None:
    """With 24 ranks an all-gather has some bytes less than what was asked for: it is the same row of the scaling."""

    def without_the_largest(host: str, found: Member) -> Member:
        return replace(found, timings=tuple(one for one in found.timings if one.size_bytes < 1 << 30))

    report = run(tmp_path / "left", Fabric(spoil=without_the_largest, factor=within), 2, options={"first": 2}).report
    assert (report.verdict, [one.state for one in report.groups]) == ("unknown", ["unknown"])
    assert "all-reduce of 1073741824 bytes has no figure" in text(report)

    def rounded(host: str, found: Member) -> Member:
        timings = tuple(
            replace(one, size_bytes=one.size_bytes // 4 // one.ranks * 4 * one.ranks) for one in found.timings
        )
        return replace(found, timings=timings)

    report = run(tmp_path / "part", Fabric(spoil=rounded, factor=within), 3, options={"first": 2}).report
    assert {row.size_bytes for row in report.scaling} == set(OPTIONS.sizes)
    assert [row.base_hosts for row in report.scaling if row.hosts == 3] == [2, 2]


def test_check_measures_nothing(tmp_path: Path) -> None:
    fabric = Fabric()
    done = run(tmp_path, fabric, check=True)
    assert (done.exit_code, len(fabric.asked)) == (0, 1)
    assert "PLAN 8 hosts, groups of 1 → 2 → 4 → 8 hosts; nothing was measured" in text(done.report)


def test_a_report_has_the_same_minutes_on_every_machine_that_prints_it(tmp_path: Path) -> None:
    """The cores are those of the controller that planned: the plan has them, whoever prints the report."""
    done = run(tmp_path, Fabric(factor=within))
    path = tmp_path / "collective-plan.json"
    planned = json.loads(path.read_text())
    assert planned["cores"] == os.cpu_count()
    minutes = {}
    for cores in (1, 100):
        path.write_text(json.dumps({**planned, "cores": cores}))
        minutes[cores] = report_of_past(COLLECTIVE, str(tmp_path), done.report.run).minutes
    waits = {cores: 4 * (2.7 + 0.14 * 8 / cores + 1 + 60) + 2.7 for cores in minutes}  # four steps, docs/scale.md
    assert minutes == {cores: round(seconds / 60, 1) for cores, seconds in waits.items()}
    assert minutes[1] > minutes[100]


def test_a_step_begins_only_in_its_window_and_the_run_goes_on_later(tmp_path: Path) -> None:
    shut = run(tmp_path, Fabric(), 2, window="13:00-14:00")
    assert (shut.exit_code, shut.report.verdict) == (1, "unknown")
    assert "does not leave time" in str(shut.stopped)
    assert run(tmp_path, Fabric(factor=within), 2, resume=True).report.verdict == "pass"
    with pytest.raises(BadInput, match="no time window"):
        run(tmp_path, Fabric(), 2, window="1-2")
    run(tmp_path / "other", Fabric(), 2, window="13:00-14:00")
    with pytest.raises(BadInput, match="the run began with gpus None"):
        run(tmp_path / "other", Fabric(), 2, resume=True, given={"gpus": 2})


def test_an_interrupted_run_resumes_with_what_is_left(tmp_path: Path) -> None:
    def stop_at_third(order: Any, stop: Any) -> None:
        if order.variables["hosttune_collective_record"] == "collective-003":
            stop.asked = True

    first = run(tmp_path, Fabric(before=stop_at_third, factor=within), 4)
    assert first.exit_code == 130
    again = Fabric(factor=within)
    assert run(tmp_path, again, 4, resume=True).report.verdict == "pass"
    assert [asked for _, asked in again.asked] == [hosts(4)]


@pytest.mark.parametrize("full", ["collective-hosts", "collective-001"])
def test_a_results_folder_that_takes_no_answer_is_not_said_to_be_hosts_that_were_not_contacted(
    full: str, tmp_path: Path
) -> None:
    done = run(tmp_path, Fabric(factor=within, full=full), 4)
    assert (
        done.stopped
        == f"no host's answer is in {tmp_path}: ansible ended with 2; see whether files can be written there"
    )
    assert (done.report.verdict, done.exit_code) == ("unknown", 1)


@pytest.mark.parametrize("check", [False, True])
def test_a_fleet_of_which_no_host_answers_is_unknown(check: bool, tmp_path: Path) -> None:
    fabric = Fabric(dies=dict.fromkeys(hosts(4), "collective-hosts"))
    done = run(tmp_path, fabric, 4, check=check)
    assert (done.report.verdict, done.stopped) == ("unknown", None)
    assert {one.outcome for one in done.report.hosts} == {"died"}
    assert "no collective" in text(done.report)


def test_a_host_that_does_not_say_which_machine_it_is_gives_no_pass(tmp_path: Path) -> None:
    assert run(tmp_path / "known", Fabric(factor=within), 4).report.verdict == "pass"
    report = run(tmp_path / "unknown", Fabric(factor=within, says={"gpu-2": {"machine": None}}), 4).report
    assert report.verdict == "unknown"
    assert {group.state for group in report.groups} == {"good"}
    assert any(note.startswith("gpu-2 did not say which machine they are") for note in report.notes)


def test_noise_once_is_a_warning(tmp_path: Path) -> None:
    """The group of all hosts is low once, each of them is good in another one, and together they are when repeated."""
    bad = {"collective-004"}
    fabric = Fabric(factor=lambda record, members: within(record, members) * (0.5 if record in bad else 1.0))
    report = run(tmp_path, fabric).report
    assert (report.verdict, report.faults) == ("warn", ())
    assert "good when it was repeated" in text(report)


def test_figures_of_tcp_or_of_the_fleet_alone_are_at_best_a_warning(tmp_path: Path) -> None:
    """A fleet that is slow as a whole: a variable that was left behind, or hosts that are all as slow as each other."""
    says = {host: {"environment": {"NCCL_IB_DISABLE": "1"}} for host in hosts(4)}
    over_tcp = Fabric(says=says, factor=lambda _, members: 470 / 380 if len(members) == 1 else 3.4 / 380)
    report = run(tmp_path / "tcp", over_tcp, 4).report
    assert (report.verdict, {group.state for group in report.groups}) == ("warn", {"good"}), report.to_json()
    assert "RDMA is switched off by the environment: figures are compared with those of TCP" in report.notes
    assert run(tmp_path / "rdma", Fabric(factor=over_tcp.factor), 4).report.verdict == "fail"
    alone = {"against": ("fleet",), "first": 2, "last": 2}
    report = run(tmp_path / "fleet", Fabric(factor=lambda *_: 0.1), options=alone).report
    assert (report.verdict, {group.state for group in report.groups}) == ("warn", {"good"}), report.to_json()


def test_groups_are_no_larger_than_the_hosts_that_are_asked_at_once(tmp_path: Path) -> None:
    fabric = Fabric(factor=within)
    base = FleetRequest(verb="collective", inventories=(",".join((*hosts(6), "")),), results=str(tmp_path), forks=4)
    report = carried_out(CollectiveRequest(base, OPTIONS), fabric, 6).report
    assert max(len(asked) for _, asked in fabric.asked) == 4
    assert report.series == (1, 2, 4)
    assert "groups of at most 4 hosts" in text(report)


def test_one_group_at_a_time(tmp_path: Path) -> None:
    fabric = Fabric(factor=within)
    run(tmp_path, fabric, 4, options={"one_group": True, "first": 2})
    assert [asked for _, asked in fabric.asked[1:]] == [hosts(2), ("gpu-3", "gpu-4"), hosts(4)]


def test_a_host_that_is_slow_by_itself_needs_no_search(tmp_path: Path) -> None:
    slow = frozenset(("gpu-2",))
    fabric = Fabric(factor=lambda record, members: within(record, members) * (0.5 if members & slow else 1.0))
    report = run(tmp_path, fabric, 4).report
    assert [(one.kind, one.hosts, one.bad) for one in report.faults] == [("alone", ("gpu-2",), 1)]
    assert [group.state for group in report.groups if group.hosts == ("gpu-2",)] == ["low", "low"]  # it was repeated


@pytest.mark.parametrize(
    "damage",
    [lambda plan: plan["steps"][0]["groups"][0].update(hosts=["x"]), lambda plan: plan["steps"][0].update(groups=[]),
     lambda plan: plan["steps"].extend(plan["steps"]), lambda plan: plan.update(ranks=0),
     lambda plan: plan.update(hosts=[]), lambda plan: plan["options"].update(sizes=[]),
     lambda plan: plan.update(cores=0)],
)  # fmt: skip
def test_a_plan_that_contradicts_itself_is_bad_input(damage: Any, tmp_path: Path) -> None:
    done = run(tmp_path, Fabric(factor=within), 2)
    path = tmp_path / "collective-plan.json"
    plan = json.loads(path.read_text())
    damage(plan)
    path.write_text(json.dumps(plan))
    with pytest.raises(BadInput, match="the plan contradicts itself"):
        report_of_past(COLLECTIVE, str(tmp_path), done.report.run)
