"""Whole runs of `fleet pairs` over a simulated fleet: killed and resumed, in a time window, with guests, bounded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed
from pairworlds import Killed, World, measure, same
from sweeps import sample

from hosttune.cli import run
from hosttune.cluster.between import EndedRun, in_window
from hosttune.cluster.pairplan import PairsOptions
from hosttune.errors import BadInput
from hosttune.fleet.membership import other_names
from hosttune.model.collective import CollectiveReport
from hosttune.model.pairs import PairsReport
from hosttune.model.validation import Verdict

SLOW = {("h0001", "r1"): 0.5, ("h0003", "r0"): 0.3}
ROUNDS, HOSTS = 5, 5  # of five hosts each waits once
RECORDS = [f"pairs-{number:03}" for number in range(1, ROUNDS + 1)]
PLACES = [("pairs-ports", 2), *((record, at) for record in RECORDS for at in range(HOSTS - 1))]


def timeless(report: PairsReport) -> PairsReport:
    """A report without what no two runs have in common."""
    return changed(report, run="", at=None)


def asked_pairs(world: World) -> list[tuple[str, str]]:
    """(record, host) of every job with ends."""
    return [(record, host) for (record, _), jobs in zip(world.asked, world.jobs, strict=True) for host in jobs]


def test_a_killed_run_resumes_and_its_report_is_that_of_a_whole_one(tmp_path: Path) -> None:
    """Killed at any place: what both ends of a pair have answered is not asked again; the report is the same."""
    whole = World(same(5, 2), SLOW)
    report = measure(whole, tmp_path / "whole").report
    assert {fault.rail for fault in report.faults} == {"r0", "r1"}
    for record, answered in sample("kills of pairs", PLACES, 8):
        results = tmp_path / f"{record}-{answered}"
        world = World(same(5, 2), SLOW, killed_at=(record, answered))
        with pytest.raises(Killed):
            measure(world, results)
        first = asked_pairs(world)
        again = World(same(5, 2), SLOW)
        found = measure(again, results, resume=True)
        assert timeless(found.report) == timeless(report), (record, answered)
        assert found.exit_code == 1
        lost = set(world.jobs[-1]) if world.jobs else set()  # the step that it was killed in: asked as a whole again
        kept = {(one, host) for one, host in first if one != record or host not in lost}
        assert not kept & set(asked_pairs(again)), (record, answered)


def test_a_step_of_which_one_pair_had_answered_asks_only_for_the_other(tmp_path: Path) -> None:
    world = World(same(4), killed_at=("pairs-001", 2))
    with pytest.raises(Killed):
        measure(world, tmp_path)
    (_, (one, two, *others)) = world.asked[-1]
    again = World(same(4))
    assert measure(again, tmp_path, resume=True).report.verdict == "pass"
    assert again.asked[0] == ("pairs-001", tuple(others))
    assert {one, two} & set(others) == set()


def test_another_option_on_resume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        measure(World(same(2), killed_at=("pairs-001", 0)), tmp_path)
    with pytest.raises(BadInput, match="the run began with seconds 5") as caught:
        measure(World(same(2)), tmp_path, PairsOptions(seconds=9), resume=True, given={"seconds": 9})
    assert caught.value.where == "--seconds"


def test_another_inventory_on_resume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        measure(World(same(2), killed_at=("pairs-001", 0)), tmp_path)
    with pytest.raises(BadInput, match="the run began without h0002, h0003") as caught:
        measure(World(same(4)), tmp_path, resume=True)
    assert caught.value.where == "--inventory"


def test_a_run_that_was_stopped_while_hosts_listed_their_ports_asks_all_of_them_again(tmp_path: Path) -> None:
    first = World(same(6), before=lambda order, stop: stop.now() if len(first.asked) == 1 else None)
    assert measure(first, tmp_path, forks=2).exit_code == 130
    again = World(same(6))
    report = measure(again, tmp_path, resume=True, forks=2).report
    assert [hosts for record, hosts in again.asked if record == "pairs-ports"] == [
        ("h0000", "h0001"), ("h0002", "h0003"), ("h0004", "h0005")
    ]  # fmt: skip
    assert (report.verdict, report.all_pairs) == ("pass", True)


def test_a_window_is_kept_and_the_next_one_continues(tmp_path: Path) -> None:
    """Steps begin only in the window, and end in it; what was measured is not measured again."""
    begin, end = datetime(2026, 3, 2, 22), datetime(2026, 3, 2, 22, 1)
    world = World(same(6), now=begin - timedelta(minutes=5))
    early = measure(world, tmp_path, window="22:00-22:01")
    assert (early.exit_code, early.stopped) == (1, "the time window 22:00-22:01 does not leave time for the next step")
    assert [record for record, _ in world.asked] == ["pairs-ports"]
    assert early.report.verdict == "unknown"
    assert {pair.outcome for pair in early.report.pairs} == {"not-asked"}

    world = replace(world, now=begin + timedelta(seconds=25), asked=[], jobs=[])
    part = measure(world, tmp_path, window="22:00-22:01", resume=True)
    done = [record for record, _ in world.asked]
    assert part.stopped is not None
    assert done
    assert done[0] == "pairs-001"
    assert len(done) < 5
    assert world.now <= end

    world = replace(world, now=begin + timedelta(days=1), asked=[], jobs=[])
    rest = measure(world, tmp_path, window="22:00-23:00", resume=True)
    assert rest.report.verdict == "pass"
    assert [record for record, _ in world.asked] == [f"pairs-{n:03}" for n in range(len(done) + 1, 6)]


def test_a_window_may_include_midnight() -> None:
    def fits(hour: int, minute: int, seconds: float) -> bool:
        return in_window("23:00-01:00", datetime(2026, 3, 2, hour, minute), seconds)

    assert fits(23, 0, 7200)
    assert not fits(23, 0, 7201)
    assert fits(0, 59, 60)
    assert not fits(0, 59, 61)
    assert not fits(22, 59, 1)
    assert in_window("06:00-06:00", datetime(2026, 3, 2, 5, 59), 60)  # the whole day


@pytest.mark.parametrize(
    ("stopped", "check", "codes"),  # of pass, warn, fail and unknown
    [
        (None, False, (0, 0, 1, 1)),
        (None, True, (0, 0, 0, 0)),  # only planned
        ("the time window is over", False, (1, 1, 1, 1)),
        ("no host answered", True, (1, 1, 1, 1)),
        ("interrupted", False, (130, 130, 130, 130)),
        ("interrupted", True, (130, 130, 130, 130)),
    ],
)
@pytest.mark.parametrize("kind", [PairsReport, CollectiveReport])
def test_the_exit_code_of_each_verdict(
    kind: type[PairsReport] | type[CollectiveReport], stopped: str | None, check: bool, codes: tuple[int, ...]
) -> None:
    verdicts: tuple[Verdict, ...] = ("pass", "warn", "fail", "unknown")
    reports = (kind(run="1", check=check, verdict=verdict, stopped=stopped) for verdict in verdicts)
    assert tuple(EndedRun(report, stopped).exit_code for report in reports) == codes


@pytest.mark.parametrize("window", ["22-23", "24:00-01:00", "22:00", "22:00-23:60", ""])
def test_a_wrong_window_is_bad_input_and_nobody_is_asked(tmp_path: Path, window: str) -> None:
    world = World(same(2))
    with pytest.raises(BadInput, match="no time window") as caught:
        measure(world, tmp_path / "r", window=window)
    assert caught.value.where == "--window"
    assert world.asked == []
    assert not (tmp_path / "r").exists()


def test_guests_keep_a_host_out_unless_it_is_named(tmp_path: Path) -> None:
    """--disrupt names hosts one by one. A guest that is started meanwhile costs the pairs of its host from then on."""
    guests: Mapping[str, tuple[str, ...]] = {"h0000": ("tenant-a",), "h0001": ("tenant-b",)}
    world = World(same(4), guests=guests)
    report = measure(world, tmp_path, disrupt=("h0001",)).report
    told = {host.host: (host.outcome, host.why) for host in report.hosts}
    assert told["h0000"] == ("refused", "its guests are running: tenant-a; --disrupt h0000 would load its network")
    assert {outcome for host, (outcome, _) in told.items() if host != "h0000"} == {"ok"}
    assert "h0000" not in {host for _, hosts in world.asked[1:] for host in hosts}
    assert {pair.state for pair in report.pairs} == {"good"}
    assert report.verdict == "unknown"  # a host was not measured
    assert [jobs[host]["disrupt"] for jobs in world.jobs[1:] for host in jobs if host != "h0001"] == [False] * 4
    with pytest.raises(BadInput, match="no host 'h0009'") as caught:
        measure(World(same(4)), tmp_path / "other", disrupt=("h0009",))
    assert caught.value.where == "--disrupt"


def test_a_guest_that_is_started_meanwhile(tmp_path: Path) -> None:
    guests: dict[str, tuple[str, ...]] = {}
    world = World(same(4), guests=guests)
    world.before = lambda order, stop: guests.update(h0002=("new",)) if len(world.asked) == 2 else None
    report = measure(world, tmp_path).report
    its = [pair for pair in report.pairs if "h0002" in (pair.sender, pair.receiver)]
    told = {(pair.round, pair.outcome, pair.state) for pair in its}
    assert told == {(1, "measured", "good"), (2, "refused", "unknown"), (3, "not-asked", "unknown")}
    assert {pair.state for pair in report.pairs if pair not in its} == {"good"}
    assert report.verdict == "unknown"


def test_together_measures_all_ports_at_once(tmp_path: Path) -> None:
    one_by_one, at_once = World(same(2, 4)), World(same(2, 4))
    measure(one_by_one, tmp_path / "a")
    measure(at_once, tmp_path / "b", PairsOptions(together=True))
    for world, together in ((one_by_one, False), (at_once, True)):
        assert [job["together"] for job in world.jobs[1].values()] == [together] * 2
    ports = {end["port"] for end in at_once.jobs[1]["h0000"]["ends"]}
    assert ports == {5201, 5202, 5203, 5204}  # each rail has its own: they are in use at the same time
    assert one_by_one.now - at_once.now == timedelta(seconds=2 * 3 * 6.5)  # two rounds


def test_hosts_with_fewer_ports_one_way_links_and_dead_hosts_are_named(tmp_path: Path) -> None:
    own = {"h0002": ("r0",), "h0004": ("r0", "r7")}
    world = World({**same(5, 2), **own}, shut=frozenset(("h0001",)), dead=frozenset(("h0003",)))
    report = measure(world, tmp_path).report
    assert "rail r1: 2 of 4 hosts have no such port (h0002, h0004)" in report.notes
    assert any("h0004, port r7: no other host has a port of this name" in note for note in report.notes)
    told = {host.host: host.outcome for host in report.hosts}
    assert told["h0003"] == "unreachable"
    into = [pair for pair in report.pairs if pair.receiver == "h0001"]
    assert into
    assert {(pair.outcome, pair.state) for pair in into} == {("one-way", "cut")}
    assert {pair.state for pair in report.pairs if pair.receiver != "h0001"} == {"good"}
    assert report.verdict == "fail"


def test_a_fleet_that_is_slow_as_a_whole_is_no_pass(tmp_path: Path) -> None:
    hosts = same(5)
    slow = {(host, "r0"): 0.1 for host in hosts}
    report = measure(World(hosts, slow), tmp_path / "both").report
    assert (report.verdict, {pair.state for pair in report.pairs}) == ("fail", {"low"})
    alone = measure(World(hosts, slow), tmp_path / "median", PairsOptions(against=("median",))).report
    assert (alone.verdict, alone.notes) == (
        "warn", ("compared with the median alone: a fleet that is slow as a whole is not seen",)
    )  # fmt: skip


def test_two_hosts_are_measured_both_ways_and_a_port_of_one_direction_alone_is_no_pass(tmp_path: Path) -> None:
    """A fibre may be bad one way only."""
    report = measure(World(same(2)), tmp_path / "both").report
    assert {(pair.sender, pair.receiver, pair.round) for pair in report.pairs} == {
        ("h0000", "h0001", 1), ("h0001", "h0000", 2)
    }  # fmt: skip
    assert (report.verdict, report.all_pairs, report.notes) == ("pass", True, ())
    report = measure(World(same(2)), tmp_path / "one", PairsOptions(rounds=1)).report
    assert (report.verdict, [note.partition(";")[0] for note in report.notes]) == (
        "warn",
        [
            "not measured whether these receive well, too: h0000 port r0",
            "not measured whether these send well, too: h0001 port r0",
        ],
    )
    assert measure(World(same(3)), tmp_path / "three").report.verdict == "pass"


def test_a_firewall_between_two_hosts_that_lets_one_way_through_is_one_way(tmp_path: Path) -> None:
    world = World(same(2), shut=frozenset(("h0001",)))
    report = measure(world, tmp_path).report
    assert {(pair.receiver, pair.outcome) for pair in report.pairs} == {("h0001", "one-way"), ("h0000", "measured")}
    assert [record for record, _ in world.asked] == ["pairs-ports", "pairs-001", "pairs-002"], "and nothing again"
    assert [fault.words.partition(":")[0] for fault in report.faults] == ["pair h0000 - h0001, port r0"]


def test_a_host_that_calls_itself_as_another_one_of_the_run_is_not_measured(tmp_path: Path) -> None:
    report = measure(World(same(4), calls={"h0001": "h0002"}), tmp_path).report
    assert {host.host: host.outcome for host in report.hosts if host.outcome != "ok"} == {"h0001": "other-name"}
    assert (report.verdict, any("h0001" in (pair.sender, pair.receiver) for pair in report.pairs)) == ("unknown", False)
    assert other_names({"h1": "h1.example.org", "h2.example.org": "H2", "h3": None, "h4": "node-17"}) == {}
    assert other_names({"a.one": "a", "a.two": "a"}) == {}, "domains are not compared"
    swapped = other_names({"h1": "h2", "h2": "h1.example.org", "h3": "h3"})
    assert swapped.keys() == {"h1", "h2"}
    assert "it calls itself h2, which is another host here" in swapped["h1"]


def test_a_thousand_hosts_take_minutes_by_the_simulated_clock(tmp_path: Path) -> None:
    """The run itself, with its plan, steps and files; only hosts, ansible and the clock are simulated.

    Planted: a host, a port, and twenty hosts that never answer; each costs its own pairs, and a step once.
    """
    names = list(same(1000))
    dead = frozenset(names[number] for number in range(5, 1000, 50))
    slow = {(names[7], "r1"): 0.5, (names[9], "r0"): 0.4, (names[9], "r1"): 0.4}
    world = World(same(1000, 2), slow, dead=dead)
    began = world.now
    report = measure(world, tmp_path, PairsOptions(seconds=2, together=True)).report
    assert world.now - began < timedelta(minutes=10)
    assert (report.rounds, report.all_pairs) == (8, False)
    rounds = {record for record, _ in world.asked} - {"pairs-ports"}
    assert {f"pairs-{number:03}" for number in range(1, 9)} == rounds
    assert all(len(hosts) == len(set(hosts)) <= 200 for _, hosts in world.asked)
    told = {(fault.kind, fault.hosts, fault.rail) for fault in report.faults}
    assert told == {("host", (names[9],), None), ("port", (names[7],), "r1")}
    assert {host.host for host in report.hosts if host.outcome != "ok"} == world.dead


def test_the_estimate_is_what_the_simulation_takes(tmp_path: Path) -> None:
    world = World(same(40, 2), cores=os.cpu_count() or 1)
    planned = measure(world, tmp_path, check=True).report
    assert [record for record, _ in world.asked] == ["pairs-ports"]  # --check measures nothing
    assert (planned.check, planned.pairs) == (True, ())
    began = world.now
    measure(world, tmp_path)
    listing = 10.0  # the ports' step, which the estimate leaves out, at most
    took = (world.now - began).total_seconds()
    assert took - listing <= planned.minutes * 60 * 1.02 <= took * 1.1


def test_metrics_do_not_judge_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(World(same(2)), tmp_path)
    report = ["fleet", "report", "--results", str(tmp_path)]
    assert run([*report, "--metrics", "absent.prom"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "is one of pairs" in told.err
    assert "--metrics" in told.err
    assert run([*report, "-o", "json"]) == 0
    assert PairsReport.from_json(capsys.readouterr().out).verdict == "pass"


def test_a_port_that_is_down_is_named_and_never_measured_through_another_one(tmp_path: Path) -> None:
    world = World(same(4, rails=2), down=frozenset({("h0002", "r1")}))
    done = measure(world, tmp_path)
    assert done.report.verdict == "unknown"
    assert "h0002, port r1: it is down and is not measured" in done.report.notes
    assert {pair.rail for pair in done.report.pairs if "h0002" in (pair.sender, pair.receiver)} == {"r0"}


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a host that is not there": lambda plan: plan["rounds"][0].update(pairs=[["x", "h0000"]]),
    "a host against itself": lambda plan: plan["rounds"][0].update(pairs=[["h0000", "h0000"]]),
    "a round twice": lambda plan: plan["rounds"].extend(plan["rounds"]),
    "a host twice": lambda plan: plan["hosts"].extend(plan["hosts"]),
    "no host": lambda plan: plan.update(hosts=[]),
    "no core": lambda plan: plan.update(cores=0),
    "a host that was refused": lambda plan: plan["hosts"][0].update(outcome="refused"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_plan_that_contradicts_itself_is_bad_input(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(World(same(3)), tmp_path)
    path = tmp_path / "pairs-plan.json"
    plan = json.loads(path.read_text())
    DAMAGES[name](plan)
    path.write_text(json.dumps(plan))
    assert run(["fleet", "report", "--results", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "the plan contradicts itself" in told.err
    with pytest.raises(BadInput, match="contradicts itself"):
        measure(World(same(3)), tmp_path, resume=True)
