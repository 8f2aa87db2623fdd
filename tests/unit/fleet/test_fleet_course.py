"""A run over simulated hosts: what is asked in which order, where it stops, and that what follows on it is exact."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from fleetsim import Fleet, Killed, begin, go_on, lines_in, names, past_in, rollout_of, with_shard, write
from hypothesis import given, settings
from hypothesis import strategies as st

from hosttune.errors import BadInput
from hosttune.fleet.playbook import PlaybookOrder, Played, Stop, TaskEvent
from hosttune.fleet.record import Ended, GateRecord, HostDone, Members, Stopped, WaveBegun
from hosttune.fleet.results import RECORD
from hosttune.fleet.rollout import changes, resumed

HOSTS = names(8)  # waves of 1, 2 and 5


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def test_waves_are_asked_in_order_and_each_gate_is_recorded(results: Path) -> None:
    fleet = Fleet()
    done = begin(rollout_of(results, "apply", HOSTS), results, fleet)
    assert (done.exit_code, done.stopped) == (0, None)
    assert fleet.asked == HOSTS
    assert [order.hosts for order in fleet.orders] == [tuple(HOSTS[:1]), tuple(HOSTS[1:3]), tuple(HOSTS[3:])]
    lines = lines_in(results)
    assert [line.hosts for line in lines if isinstance(line, Members)] == [order.hosts for order in fleet.orders]
    assert [(line.wave, line.passed) for line in lines if isinstance(line, GateRecord)] == [
        (1, True),
        (2, True),
        (3, True),
    ]
    assert [line.host for line in lines if isinstance(line, HostDone)] == HOSTS
    assert isinstance(lines[-1], Ended)
    assert [wave.passed for wave in done.waves] == [True, True, True]


@pytest.mark.parametrize("phase", ["before", "apply", "validate"])
@pytest.mark.parametrize("outcome", ["no", "unreachable", "slow", "died", "disk-full", "unknown", "wrong-version"])
def test_a_canary_that_is_not_good_stops_the_run(results: Path, phase: str, outcome: str) -> None:
    fleet = Fleet(script={"h000": [(phase, outcome)]})
    done = begin(rollout_of(results, "apply", HOSTS), results, fleet)
    if (phase, outcome) == ("before", "no"):  # here the simulated host goes no further
        assert done.host_statuses["h000"].phase == "apply"
    else:
        assert done.host_statuses["h000"].line == f"h000: {phase}: {outcome}: as scripted"
    assert fleet.asked == ["h000"]
    assert done.stopped == "the gate after wave 1 of 3 did not open"
    assert done.exit_code == 1
    assert [wave.passed for wave in done.waves] == [False, None, None]
    assert done.host_statuses["h007"].why == "not asked"
    assert any(isinstance(line, Stopped) for line in lines_in(results))


def test_resume_begins_with_the_hosts_of_the_stopped_wave_that_were_not_good(results: Path) -> None:
    fleet = Fleet(script={"h002": [("apply", "died")]})
    assert begin(rollout_of(results, "apply", HOSTS), results, fleet).exit_code == 1
    assert fleet.asked == HOSTS[:3]
    fleet.asked.clear()
    done = go_on(results, "apply", HOSTS, fleet)
    assert fleet.asked == HOSTS[2:]
    assert (done.exit_code, done.stopped) == (0, None)
    assert all(host_status.good for host_status in done.host_statuses.values())


def test_retry_asks_those_that_failed_and_begins_no_wave(results: Path) -> None:
    fleet = Fleet(script={"h001": [("apply", "slow"), None]})
    begin(rollout_of(results, "apply", HOSTS), results, fleet)
    fleet.asked.clear()
    done = go_on(results, "apply", HOSTS, fleet, retry=True)
    assert fleet.asked == ["h001"]
    assert [wave.passed for wave in done.waves] == [True, True, None]
    assert done.exit_code == 1  # the others were not asked yet
    fleet.asked.clear()
    assert go_on(results, "apply", HOSTS, fleet).exit_code == 0
    assert fleet.asked == HOSTS[3:]


def test_a_run_that_is_done_has_nothing_to_go_on_with(results: Path) -> None:
    fleet = Fleet()
    begin(rollout_of(results, "apply", HOSTS), results, fleet)
    fleet.asked.clear()
    assert go_on(results, "apply", HOSTS, fleet).exit_code == 0
    assert fleet.asked == []


def test_a_host_that_needs_a_person_is_the_exit_code(results: Path) -> None:
    fleet = Fleet(script={"h000": [("apply", "needs-person")]})
    assert begin(rollout_of(results, "apply", HOSTS), results, fleet).exit_code == 4


@pytest.mark.parametrize("verb", ["discover", "plan", "validate", "handover"])
def test_what_changes_no_host_visits_all_and_fails_at_the_end(results: Path, verb: str) -> None:
    fleet = Fleet(script={"h000": [(verb, "unreachable")], "h004": [(verb, "no")]})
    done = begin(with_shard(rollout_of(results, verb, HOSTS), 3), results, fleet)
    assert fleet.asked == HOSTS
    assert [len(order.hosts) for order in fleet.orders] == [2, 3, 3]
    assert (done.exit_code, done.stopped) == (1, None)
    assert not any(isinstance(line, GateRecord) for line in lines_in(results))
    fleet.asked.clear()
    assert go_on(results, verb, HOSTS, fleet, retry=True).exit_code == 0
    assert fleet.asked == ["h000", "h004"]


def test_check_mode_changes_nothing_and_so_has_no_gates(results: Path) -> None:
    fleet = Fleet(script={"h000": [("apply", "no")]})
    done = begin(rollout_of(results, "apply", HOSTS, check=True), results, fleet)
    assert fleet.asked == HOSTS
    assert (done.exit_code, done.stopped) == (1, None)
    assert (results / "h001" / "apply.check.json").is_file()
    assert not (results / "h001" / "apply.json").exists()


def test_files_of_another_run_prove_nothing(results: Path) -> None:
    begin(rollout_of(results, "apply", HOSTS, run="old"), results, Fleet())
    silent = Fleet(dead=True)
    done = begin(rollout_of(results, "apply", HOSTS, run="new"), results, silent)
    assert done.host_statuses["h000"].line == "h000: before: unknown: ansible contacted no host"
    assert done.stopped == "ansible contacted no host: [ERROR]: the playbook is broken"
    assert done.exit_code == 1
    assert len(silent.orders) == 1


def test_a_results_folder_that_takes_no_answer_is_not_said_to_be_hosts_that_were_not_contacted(results: Path) -> None:
    done = begin(rollout_of(results, "apply", HOSTS), results, Fleet(full=True))
    why = f"no host's answer is in {results}: ansible ended with 2; see whether files can be written there"
    assert (done.exit_code, done.stopped) == (1, why)
    for said, begun in ((("[WARNING]: a key is deprecated",), False), (("[ERROR]: late", ""), True)):
        done = begin(rollout_of(results, "apply", HOSTS), results, Fleet(full=True, said=said, begun=begun))
        assert done.stopped is not None
        assert done.stopped.startswith(f"no host's answer is in {results}: ansible ended with 2")


def test_another_run_over_a_hosts_file_does_not_unprove_a_recorded_host(results: Path) -> None:
    fleet = Fleet(script={"h001": [("apply", "no")]})
    rollout = rollout_of(results, "apply", HOSTS)
    begin(rollout, results, fleet)
    begin(rollout_of(results, "validate", HOSTS, run="r2"), results, Fleet())
    fleet.asked.clear()
    assert go_on(results, "apply", HOSTS, fleet).exit_code == 0
    assert fleet.asked == ["h001", *HOSTS[3:]]


def test_an_interrupted_run_says_so_and_goes_on(results: Path) -> None:
    fleet = Fleet(interrupt_at=5)
    done = begin(rollout_of(results, "apply", HOSTS), results, fleet)
    assert (done.exit_code, done.stopped) == (130, "interrupted")
    recorded = [line.host for line in lines_in(results) if isinstance(line, HostDone)]
    assert recorded == HOSTS[:5]  # a host that was not asked has no line
    fleet.interrupt_at = None
    fleet.asked.clear()
    assert go_on(results, "apply", HOSTS, fleet).exit_code == 0
    assert fleet.asked == HOSTS[5:]


def test_retry_after_an_interrupt_leaves_hosts_that_were_never_asked(results: Path) -> None:
    fleet = Fleet(script={"h001": [("validate", "no")]}, interrupt_at=5)
    begin(with_shard(rollout_of(results, "validate", HOSTS), 4), results, fleet)
    fleet.interrupt_at = None
    fleet.asked.clear()
    done = go_on(results, "validate", HOSTS, fleet, retry=True)
    assert fleet.asked == ["h001"]
    assert done.exit_code == 1
    assert done.host_statuses["h006"].why == "not asked; --resume asks it"


def test_a_host_that_left_the_inventory_stays_unknown_and_is_told(results: Path) -> None:
    fleet = Fleet(script={"h001": [("apply", "unreachable")]})
    rollout = rollout_of(results, "apply", HOSTS)
    begin(rollout, results, fleet)
    fleet.asked.clear()
    now = [host for host in HOSTS if host not in ("h000", "h001")]
    done = go_on(results, "apply", [*now, "new"], fleet)
    assert fleet.asked == []
    assert done.stopped == "the gate after wave 2 of 3 did not open"
    assert done.host_statuses["h001"].why == "no longer in the inventory"
    assert done.host_statuses["h000"].good  # it was proven while it was there
    past = past_in(results, "apply")
    told = changes(resumed(rollout, past, [*now, "new"], only_failed=False), past, [*now, "new"], "other")
    assert told == [
        "no longer in the inventory, 1: h001; what is not proven stays unknown",
        "new in the inventory, 1: new; not in this run",
        "the intent is not the one that the run began with",
    ]


def test_a_host_asked_again_keeps_what_it_was_before_the_first_attempt(results: Path) -> None:
    fleet = Fleet(script={"h001": [("apply", "died"), ("validate", "no"), None], "h002": [("before", "slow"), None]})
    begin(rollout_of(results, "apply", HOSTS), results, fleet)
    go_on(results, "apply", HOSTS, fleet)
    assert go_on(results, "apply", HOSTS, fleet).exit_code == 0
    assert fleet.befores["h001"] == 1
    assert fleet.befores["h002"] == 2  # the first gave nothing to compare with


def test_a_hook_that_failed_is_forgotten_when_the_host_is_asked_again(results: Path) -> None:
    rollout = rollout_of(results, "apply", HOSTS)
    fleet = Fleet(script={"h000": [("apply", "died")]})
    begin(rollout, results, fleet)
    write(rollout.order, "h000", "hook", "no", why="Drain: no such ticket")
    assert go_on(results, "apply", HOSTS, fleet).exit_code == 0
    assert not (results / "h000" / "hook.json").exists()


def test_another_gate_takes_no_proof_of_the_old_ones_word(results: Path) -> None:
    rollout = rollout_of(results, "apply", HOSTS, gate="worse")
    fleet = Fleet(script={"h001": [("apply", "no")]})
    begin(rollout, results, fleet)
    write(rollout.order, "h000", "validate", "ok", verdict="fail")  # no worse than before, and no pass either
    fleet.asked.clear()
    assert go_on(results, "apply", HOSTS, fleet, gate="either").exit_code == 0
    assert fleet.asked[:2] == ["h000", "h001"]


def test_a_record_without_all_its_waves_cannot_go_on(results: Path) -> None:
    begin(rollout_of(results, "apply", HOSTS), results, Fleet())
    lines = (results / RECORD).read_bytes().splitlines(keepends=True)
    (results / RECORD).write_bytes(b"".join(lines[:2]))
    with pytest.raises(BadInput, match="before its waves were written") as refused:
        go_on(results, "apply", HOSTS, Fleet())
    assert refused.value.where == RECORD


OUTCOMES = st.sampled_from(["no", "unreachable", "slow", "died", "unknown", "refused"])
TROUBLES = st.lists(st.none() | st.tuples(st.sampled_from(["before", "apply", "validate"]), OUTCOMES), max_size=2)


@settings(max_examples=60)
@given(
    st.integers(1, 14),
    st.sampled_from(["1,2,100%", "1,5%,25%,100%", "3", "50%", "100%"]),
    st.integers(1, 5),
    st.dictionaries(st.sampled_from(names(14)), TROUBLES, max_size=4),
    st.lists(st.integers(0, 20), max_size=3),
    st.integers(0, 40),
)
def test_whatever_happens_no_wave_begins_before_the_one_before_is_proven(
    count: int, sizes: str, shard: int, script: dict[str, list[tuple[str, str] | None]], kills: list[int], torn: int
) -> None:
    hosts = names(count)
    fleet = Fleet(script={host: list(attempts) for host, attempts in script.items()})
    with TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        rollout = with_shard(rollout_of(results, "apply", hosts, sizes=sizes), shard)
        fleet.kill_at = kills.pop() if kills else None
        with suppress(Killed):
            begin(rollout, results, fleet)
        for _ in range(8):  # each host has at most two troubles, and the controller at most three deaths
            cut_tail(results, torn if fleet.kill_at is not None else 0)
            fleet.kill_at = len(fleet.asked) + kills.pop() if kills else None
            with suppress(Killed):
                done = go_on(results, "apply", hosts, fleet)
        assert done.exit_code == 0
        assert fleet.well == set(hosts) == set(fleet.asked)
        wave_of = {host: number for number, wave in enumerate(rollout.waves) for host in wave}
        for host, well in zip(fleet.asked, fleet.well_then, strict=True):
            assert all(wave_of[other] >= wave_of[host] for other in hosts if other not in well)
        begun = [line.wave for line in lines_in(results) if isinstance(line, WaveBegun)]
        passed = {line.wave for line in lines_in(results) if isinstance(line, GateRecord) and line.passed}
        assert begun == sorted(begun)
        assert {number for number in begun if number < max(begun)} <= passed


def cut_tail(results: Path, size: int) -> None:
    """The controller died within its last line: at most that is torn."""
    record = results / RECORD
    if not size or not record.exists():
        return
    data = record.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    record.write_bytes(data[: max(last, len(data) - size)] if b'"members"' not in data[last:] else data)


class Drained(Fleet):
    """Hosts whose first way back fails after all else went well; the controller can die right before the second."""

    die_before = False

    def play(self, order: PlaybookOrder, heard: Callable[[TaskEvent], None], stop: Stop) -> Played:
        """As `playbook.play`."""
        if self.die_before:
            raise Killed
        first = not self.asked
        played = super().play(order, heard, stop)
        if first:
            write(order, order.hosts[0], "hook", "no", why="the undrain failed")
        return played


@pytest.mark.parametrize("between", ["discover", "apply --check"])
def test_a_run_of_another_verb_takes_no_fault_of_this_one_away(results: Path, between: str) -> None:
    fleet = Drained()
    assert begin(rollout_of(results, "apply", HOSTS), results, fleet).host_statuses["h000"].phase == "hook"
    verb, _, check = between.partition(" ")
    begin(rollout_of(results, verb, HOSTS, run="r2", check=bool(check)), results, fleet)
    fleet.asked.clear()
    kept = resumed(rollout_of(results, "apply", HOSTS), past_in(results, "apply"), HOSTS, only_failed=False)
    assert "h000" not in kept.host_statuses


def test_an_attempt_that_ends_before_it_begins_does_not_live_on_the_proof_of_the_last(results: Path) -> None:
    """Of the first attempt all is well but the step of the operator's; that word goes, and the proof with it."""
    fleet = Drained()
    begin(rollout_of(results, "apply", HOSTS), results, fleet)
    fleet.die_before = True
    with suppress(Killed):
        go_on(results, "apply", HOSTS, fleet)
    kept = resumed(rollout_of(results, "apply", HOSTS), past_in(results, "apply"), HOSTS, only_failed=False)
    assert "h000" not in kept.host_statuses
