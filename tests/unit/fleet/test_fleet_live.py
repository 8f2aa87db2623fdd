"""Progress: what it counts, what a log gets, what a terminal shows."""

from __future__ import annotations

import io
import time

import pytest

from hosttune.fleet.gate import HostStatus
from hosttune.fleet.live import Display, PlainProgress, Progress, watch
from hosttune.fleet.playbook import Stop, TaskEvent, first_error
from hosttune.model.text import duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ended(host: str, phase: str = "validate", outcome: str = "ok") -> TaskEvent:
    return TaskEvent("ok" if outcome == "ok" else "failed", host, "Validate the host", phase, outcome)


def test_a_host_is_done_with_its_last_phase_and_counted_once() -> None:
    progress = Progress("apply", 3, 2)
    assert progress.eta_seconds is None
    assert Progress("apply", 3, 1, "the last one took 12 min for 3 hosts").line() == (
        "apply: 0 of 3 hosts; 0 s so far; the last one took 12 min for 3 hosts"
    )
    assert not progress.hear(TaskEvent("start", "a", "Validate the host before"))
    assert progress.now_in == {"a": "Validate the host before"}
    assert not progress.hear(ended("a", "before"))
    assert progress.hear(ended("a"))
    assert not progress.hear(ended("a"))
    assert (progress.finished, progress.now_in) == (1, {})
    progress.count(1, HostStatus("a", "ok"))
    assert progress.finished == 1
    assert progress.hear(TaskEvent("unreachable", "b", "Validate the host before"))
    progress.count(2, HostStatus("b", "unreachable", "before", "no route"))
    assert progress.line().startswith("apply: 2 of 3 hosts, wave 2 of 2; 1 ok, 1 unreachable; 0 s so far, about ")


def test_an_event_without_a_result_is_no_answer() -> None:
    progress = Progress("validate", 1, 1)
    assert not progress.hear(TaskEvent("ok", "a", "Validate the host"))
    assert progress.finished == 0
    progress.count(1, HostStatus("a", why="no answer of this run"))
    assert progress.line() == "validate: 1 of 1 hosts; 1 unknown"


def test_the_rest_takes_as_long_as_what_is_done_did() -> None:
    progress = Progress("validate", 4, 1)
    progress.begun = time.monotonic() - 60
    progress.count(1, HostStatus("a", "ok"))
    assert progress.eta_seconds == pytest.approx(180, rel=0.05)
    assert progress.line() == "validate: 1 of 4 hosts; 1 ok; 60 s so far, about 3 min left"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99, "99 s"), (100, "2 min"), (7000, "117 min"), (7500, "2 h 5 min")]
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_log_gets_a_line_for_each_of_few_hosts() -> None:
    told: list[str] = []
    with PlainProgress(Progress("validate", 2, 1), told.append) as lines:
        lines.heard(ended("a"))
        lines.host_done(1, HostStatus("a", "ok"))
        lines.host_done(1, HostStatus("b", "slow", "validate", "no answer within 300 s"))
    assert told == ["a: ok", "b: validate: slow: no answer within 300 s", "validate: 2 of 2 hosts; 1 ok, 1 slow"]


def test_a_log_of_many_hosts_gets_those_in_trouble_and_the_end() -> None:
    told: list[str] = []
    with PlainProgress(Progress("validate", 1000, 1), told.append) as lines:
        for number in range(999):
            lines.host_done(1, HostStatus(f"h{number}", "ok"))
        lines.host_done(1, HostStatus("z", "no", "validate", "verdict fail"))
    assert told == ["z: validate: no: verdict fail", "validate: 1000 of 1000 hosts; 1 no, 999 ok"]


def test_a_terminal_shows_phases_outcomes_and_troubles() -> None:
    screen = Terminal()
    with watch(Progress("apply", 3, 2), screen, lambda _: None) as shown:
        assert isinstance(shown, Display)
        shown.heard(TaskEvent("start", "a", "Change the host: apply"))
        shown.heard(TaskEvent("start", "b", "Change the host: apply"))
        shown.host_done(1, HostStatus("c", "died", "apply", "the line\x1b[31m went"))
    text = screen.getvalue()
    assert "2 Change the host: apply" in text
    assert "c: apply: died: the line?[31m went" in text
    assert text.rstrip().endswith("1 died; about 0 s left") or "1 of 3 hosts" in text
    assert "\x1b[31m went" not in text


def test_where_nobody_watches_lines_are_safe_for_a_terminal() -> None:
    told: list[str] = []
    with watch(Progress("validate", 1, 1), io.StringIO(), told.append) as shown:
        assert isinstance(shown, PlainProgress)
        shown.host_done(1, HostStatus("a\x1b[2J\n", "no"))
        shown.host_done(1, HostStatus("x" * 1000, "no"))
    assert told[0] == "a?[2J?: no phase: no"
    assert told[1] == "x" * 500


def test_a_stop_kills_ansible_only_after_its_time_or_when_asked_twice() -> None:
    stop = Stop()
    assert not stop.overdue()
    stop.now()
    assert stop.asked
    assert stop.overdue()  # no ansible is known that could end in order
    stop = Stop()
    stop.process = 2**22 + 1  # a process that is not there
    stop.now()
    assert not stop.overdue()
    stop.now()
    assert stop.overdue()
    stop.over()
    assert stop.process is None


def test_what_ansible_complains_of_is_found() -> None:
    assert first_error(["[WARNING]: x", "[ERROR]: no such playbook", "more"]) == "[ERROR]: no such playbook"
    assert first_error(["only this"]) == "only this"
    assert first_error([]) is None
