"""`fleet pairs` over hosts that answer wrongly, or have other ports than most: what is not measured is not good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pairworlds import RATE, World, measure, same

from hosttune.cluster.pairplan import PairsOptions
from hosttune.model.pairs import PairsReport

Change = Callable[[dict[str, Any]], None]


def of_ends(**changes: Any) -> Change:
    """Changes every end of a document."""
    return lambda document: document.update(ends=[{**end, **changes} for end in document["ends"]])


def told(tmp_path: Path, *liars: str, hosts: int = 4, **changes: Change) -> PairsReport:
    """The report where `liars` change their documents: `listed` that of their ports, `measured` those of rounds."""

    def lie(host: str, record: str, document: dict[str, Any]) -> None:
        change = changes.get("listed" if record == "pairs-ports" else "measured")
        if host in liars and change is not None:
            change(document)

    return measure(World(same(hosts), lies=lie), tmp_path).report


def outcomes(report: PairsReport, host: str) -> set[tuple[str, str]]:
    return {(pair.outcome, pair.state) for pair in report.pairs if host in (pair.sender, pair.receiver)}


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "end", [{"why": LONG}, {"errors": {LONG: 1}}, {"outcome": "tool-failed", "why": LONG}, {"path_mtu": {"why": LONG}}]
)
def test_texts_of_any_length_stay_short_in_the_report(tmp_path: Path, end: dict[str, Any]) -> None:
    report = told(tmp_path, "h0002", measured=of_ends(**end))
    assert "x" * 300 in report.to_json()
    assert "x" * 301 not in report.to_json()


@pytest.mark.parametrize(
    "change",
    [
        of_ends(gbps=-5.0),
        of_ends(gbps=None),
        of_ends(gbps=97e9),  # bits, not gigabits
        of_ends(connection=None),
        of_ends(connection="mine"),
        of_ends(outcome="nobody-came"),
        lambda document: document.update(ends=[]),
        lambda document: document["ends"].extend([{**end, "gbps": 96.0} for end in document["ends"]]),
        lambda document: document.update(machine="m-other"),
        lambda document: document.update(machine=None),
        lambda document: document.update(schema="hosttune.ends/v9"),
    ],
)  # fmt: skip
def test_a_host_that_answers_wrongly_costs_its_own_pairs_only(tmp_path: Path, change: Change) -> None:
    report = told(tmp_path, "h0002", measured=change)
    its = outcomes(report, "h0002")
    assert not its & {("measured", "good")}, its
    assert {pair.state for pair in report.pairs if "h0002" not in (pair.sender, pair.receiver)} == {"good"}
    assert report.verdict in ("unknown", "fail")
    assert all("h0002" in fault.hosts for fault in report.faults)


def test_results_that_were_not_asked_for_are_not_used(tmp_path: Path) -> None:
    def more(document: dict[str, Any]) -> None:
        own = document["ends"]
        document.update(ends=[*own, *({**end, "rail": "r9", "gbps": 1.0} for end in own)])

    report = told(tmp_path, "h0001", "h0002", measured=more)
    assert (report.verdict, {pair.rail for pair in report.pairs}) == ("pass", {"r0"})


@pytest.mark.parametrize("figure", [RATE * 1.06, RATE * 8, 1e300])
def test_a_figure_above_the_ports_rate_is_not_good(tmp_path: Path, figure: float) -> None:
    """Both ends agree on it: through the host itself, or another port, or the rate is not the port's."""
    everybody = tuple(same(4))
    report = told(tmp_path, *everybody, measured=of_ends(gbps=figure))
    assert {(pair.outcome, pair.state) for pair in report.pairs} == {("measured", "unknown")}
    assert report.verdict == "unknown"
    assert "is above the active rate of 100" in (report.pairs[0].why or "")
    assert told(tmp_path / "near", *everybody, measured=of_ends(gbps=RATE * 1.01)).verdict == "pass"


@pytest.mark.parametrize("rate", [0.0, -400.0, None])
def test_a_port_without_a_rate_above_0_is_not_good(tmp_path: Path, rate: float | None) -> None:
    def listed(document: dict[str, Any]) -> None:
        document["ports"][0]["rate_gbps"] = rate

    report = told(tmp_path, "h0000", listed=listed)
    assert outcomes(report, "h0000") == {("measured", "unknown")}
    assert report.verdict == "unknown"


def test_a_host_that_names_a_port_twice_is_not_measured(tmp_path: Path) -> None:
    report = told(tmp_path, "h0000", listed=lambda document: document["ports"].append(document["ports"][0]))
    host = next(one for one in report.hosts if one.host == "h0000")
    assert (host.outcome, report.verdict) == ("unknown", "unknown")
    assert "two of its ports have the name 'r0'" in (host.why or "")


@pytest.mark.parametrize("address", ["eth0", "", "10.1.0.256", "-c"])
def test_an_address_that_is_none_goes_to_no_peer(tmp_path: Path, address: str) -> None:
    """A peer would refuse the job, and be asked no more: one host would cost all others their pairs."""
    report = told(tmp_path, "h0000", listed=lambda document: document["ports"][0].update(address=address))
    assert report.verdict == "unknown"
    assert f"h0000, port r0: {address!r} is no IP address and is not measured" in report.notes
    assert {pair.state for pair in report.pairs} == {"good"}
    assert len(report.pairs) == 3


@pytest.mark.parametrize("machine", [None, ""])
def test_a_host_that_does_not_say_which_machine_it_is_gives_no_pass(tmp_path: Path, machine: str | None) -> None:
    """Were it known, a restart would cost the host its pairs: not to know it must not be better."""

    def nobody(document: dict[str, Any]) -> None:
        document.update(machine=machine)

    report = told(tmp_path, "h0002", listed=nobody, measured=nobody)
    assert (report.verdict, {pair.state for pair in report.pairs}) == ("unknown", {"good"})
    assert any(note.startswith("h0002 did not say which machine they are") for note in report.notes)


def test_a_results_folder_that_takes_no_answer_is_not_said_to_be_hosts_that_were_not_contacted(tmp_path: Path) -> None:
    """Hosts listed their ports and measured, and the folder is full: they were contacted."""
    for full in ("pairs-ports", "pairs-001"):
        world = World(same(4), full=full)
        done = measure(world, tmp_path / full)
        why = f"no host's answer is in {tmp_path / full}: ansible ended with 2; see whether files can be written there"
        assert (done.stopped, done.report.stopped, done.exit_code) == (why, why, 1)
        assert done.report.verdict == "unknown"


def test_counters_that_were_not_read_are_no_pass(tmp_path: Path) -> None:
    report = told(tmp_path, "h0003", measured=of_ends(errors=None))
    assert (report.verdict, {pair.state for pair in report.pairs}) == ("warn", {"good"})
    assert any(note.startswith("error counters of a port were not read: ") for note in report.notes)
    assert sum(pair.errors is None for pair in report.pairs) == 3


@pytest.mark.parametrize("told_path", [{"state": "not-asked"}, {"state": "whole"}, {}])
def test_a_path_that_a_host_does_not_tell_of_is_no_pass(tmp_path: Path, told_path: dict[str, Any]) -> None:
    report = told(tmp_path, "h0003", measured=of_ends(path_mtu=told_path))
    assert (report.verdict, {pair.state for pair in report.pairs}) == ("warn", {"good"})
    assert any(
        note.startswith("whether packets of the ports' MTU arrive whole is not known: ") for note in report.notes
    )


def test_above_32_hosts_a_rail_of_three_hosts_is_measured(tmp_path: Path) -> None:
    """By 8 rounds of 60 hosts they would hardly meet each other."""
    hosts = {name: ("r0", "r1") if name in ("h0004", "h0017", "h0031") else ("r0",) for name in same(60)}
    report = measure(World(hosts, {("h0017", "r1"): 0.5}), tmp_path / "a").report
    assert sum(pair.rail == "r1" for pair in report.pairs) == 3
    assert [(fault.kind, fault.hosts, fault.rail) for fault in report.faults] == [("port", ("h0017",), "r1")]
    assert all(
        len(hosts) == len(set(hosts)) for hosts in ([h for p in pairs for h in p] for pairs in rounds_of(report))
    )


def rounds_of(report: PairsReport) -> list[list[tuple[str, str]]]:
    found: dict[int, list[tuple[str, str]]] = {}
    for pair in report.pairs:
        if pair.rail == "r0":
            found.setdefault(pair.round, []).append((pair.sender, pair.receiver))
    return list(found.values())


def test_ports_that_the_rounds_leave_out_are_named(tmp_path: Path) -> None:
    """With a bound of rounds no more are made."""
    hosts = {name: ("r0", "r1") if name in ("h0000", "h0010") else ("r0",) for name in same(40)}
    report = measure(World(hosts), tmp_path, PairsOptions(rounds=2)).report
    assert (report.rounds, report.verdict) == (2, "unknown")
    note = "port r1 of h0000, h0010: in no round with another host that has it; give more --rounds"
    assert note in report.notes
    assert {pair.rail for pair in report.pairs} == {"r0"}


def test_two_kinds_of_hosts_in_one_fleet_are_measured_among_their_own(tmp_path: Path) -> None:
    """Every second host calls its ports otherwise: half of the pairs have nothing in common."""
    hosts = {name: ("r0",) if number % 2 else ("r1",) for number, name in enumerate(same(80))}
    report = measure(World(hosts, {("h0009", "r0"): 0.4, ("h0010", "r1"): 0.4}), tmp_path).report
    assert {(fault.kind, fault.hosts) for fault in report.faults} == {("port", ("h0009",)), ("port", ("h0010",))}
    met = [host for pair in report.pairs for host in (pair.sender, pair.receiver)]
    assert min(met.count(host) for host in hosts) >= 4
