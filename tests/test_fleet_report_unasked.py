"""The report of hosts that were not asked: whose turn has not come, and those that an earlier phase kept from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleetresults import RUN, write

from hosttune.fleet.overview import Asked, report_of
from hosttune.model.fleet import Answer, AnswerOutcome, Wave

WAVES = (Wave(number=1, hosts=1, passed=True), Wave(number=2, hosts=1, passed=None))


@pytest.mark.parametrize("stopped", [None, "the gate after wave 1 of 2 did not open"])
def test_a_host_whose_first_phase_failed_is_told_with_that_alone(stopped: str | None, tmp_path: Path) -> None:
    write(tmp_path, Answer(host="a", phase="before", run=RUN, outcome="unreachable", why="refused"))
    (line,) = report_of(str(tmp_path), ["a"], Asked("apply", run=RUN, stopped=stopped)).hosts
    assert [one.actual for one in line.told] == ["unreachable: refused"]
    assert line.verdict == "unknown"


@pytest.mark.parametrize("outcome", ["ok", "no"])
def test_a_host_that_was_well_before_and_then_not_asked_is_told_as_that(outcome: AnswerOutcome, tmp_path: Path) -> None:
    write(tmp_path, Answer(host="a", phase="before", run=RUN, outcome=outcome, why="x"))
    (line,) = report_of(str(tmp_path), ["a"], Asked("apply", run=RUN)).hosts
    assert [one.actual for one in line.told] == ["no answer of this run"]
    assert line.verdict == "unknown"


def test_a_host_of_a_wave_that_was_not_begun_waits_for_a_resume(tmp_path: Path) -> None:
    asked = Asked("apply", run=RUN, waves=WAVES, wave_of={"a": 1, "b": 2})
    first, second = report_of(str(tmp_path), ["a", "b"], asked).hosts
    assert first.told[0].actual == "no answer of this run"
    assert (second.told[0].actual, second.told[0].hint) == (
        "not asked: the run has not come to its wave",
        "go on with --resume",
    )
    assert second.verdict == "unknown"
