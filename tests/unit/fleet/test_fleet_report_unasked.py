"""The report of hosts without an answer: those that were not asked, and those whose answer is lost."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fleetresults import RUN, formats, recorded, unwrapped, write
from fleetsim import Fleet, Killed, begin, go_on, names, rollout_of, with_shard
from fleetsim import write as answered

from hosttune.fleet.overview import RunContext, report_of
from hosttune.fleet.reporting import report_of_past
from hosttune.fleet.results import RECORD
from hosttune.model.fleet import Answer, AnswerOutcome, Wave

WAVES = (Wave(number=1, hosts=1, passed=True), Wave(number=2, hosts=1, passed=None))


@pytest.mark.parametrize("stopped", [None, "the gate after wave 1 of 2 did not open"])
def test_a_host_whose_first_phase_failed_is_told_with_that_alone(stopped: str | None, tmp_path: Path) -> None:
    write(tmp_path, Answer(host="a", phase="before", run=RUN, outcome="unreachable", why="refused"))
    (line,) = report_of(str(tmp_path), ["a"], RunContext("apply", run=RUN, stopped=stopped)).hosts
    assert [one.actual for one in line.told] == ["unreachable: refused"]
    assert line.verdict == "unknown"


@pytest.mark.parametrize("outcome", ["ok", "no"])
def test_a_host_that_was_well_before_and_then_not_asked_is_told_as_that(outcome: AnswerOutcome, tmp_path: Path) -> None:
    write(tmp_path, Answer(host="a", phase="before", run=RUN, outcome=outcome, why="x"))
    (line,) = report_of(str(tmp_path), ["a"], RunContext("apply", run=RUN)).hosts
    assert [one.actual for one in line.told] == ["no answer of this run"]
    assert line.verdict == "unknown"


def test_a_host_of_a_wave_that_was_not_begun_waits_for_a_resume(tmp_path: Path) -> None:
    record = recorded([["a"], ["b"]], asked=1)
    asked = RunContext("apply", run=RUN, waves=WAVES, wave_of={"a": 1, "b": 2}, record=record)
    first, second = report_of(str(tmp_path), ["a", "b"], asked).hosts
    assert first.told[0].actual == "not asked: it was left out"
    assert (second.told[0].actual, second.told[0].hint) == (
        "not asked: the run has not come to its wave",
        "go on with --resume",
    )
    assert second.verdict == "unknown"


# --- lost answers of hosts that were asked: they may have been changed ---------------------------------------

HOSTS = names(4)  # waves of 1, 2 and 1
LOST = "asked, and there is no answer of its apply: what it did is unknown"
LOOK = "look at hosttune status there; then run again with --retry, and with --recover if a transaction is unfinished"
STOPPED = "not asked: the run stopped before"


def said(results: Path, run: str | None = None) -> dict[str, str | None]:
    """What the report of a run says first of each host; each is unknown or worse."""
    report = report_of_past(str(results), run)
    assert all(line.verdict in ("unknown", "fail") for line in report.hosts)
    return {line.host: line.told[0].actual for line in report.hosts}


def test_a_host_whose_answers_are_lost_after_the_run_was_asked_in_every_format(tmp_path: Path) -> None:
    begin(rollout_of(tmp_path, "apply", HOSTS), tmp_path, Fleet(script={"h001": [("apply", "no")]}))
    shutil.rmtree(tmp_path / "h002")
    report = report_of_past(str(tmp_path))
    lost = next(line for line in report.hosts if line.host == "h002")
    assert (lost.told[0].actual, lost.told[0].hint) == (f"{LOST} (the record of the run says: ok)", LOOK)
    assert lost.answers[0].why == lost.told[0].actual
    assert said(tmp_path)["h003"] == STOPPED
    assert all(LOST in text and LOOK in text for text in map(unwrapped, formats(report)))


@pytest.mark.parametrize("script", [{}, {"h001": [("apply", "no")]}])
def test_answers_that_another_run_replaced_are_lost_ones(script: dict[str, Any], tmp_path: Path) -> None:
    begin(rollout_of(tmp_path, "apply", HOSTS), tmp_path, Fleet(script=script))
    begin(rollout_of(tmp_path, "apply", HOSTS, run="r2"), tmp_path, Fleet())
    told = said(tmp_path, "r1")
    assert told["h000"] == f"{LOST} (the record of the run says: ok)"
    assert told["h003"] == (STOPPED if script else told["h000"])


def test_a_results_folder_that_takes_no_answer(tmp_path: Path) -> None:
    begin(rollout_of(tmp_path, "apply", HOSTS), tmp_path, Fleet(full=True))
    assert said(tmp_path) == {"h000": LOST, **dict.fromkeys(HOSTS[1:], STOPPED)}


def test_what_a_broken_playbook_did_not_contact_was_not_asked(tmp_path: Path) -> None:
    begin(rollout_of(tmp_path, "apply", HOSTS), tmp_path, Fleet(dead=True))
    assert said(tmp_path) == {"h000": "not asked: ansible contacted no host", **dict.fromkeys(HOSTS[1:], STOPPED)}


def test_a_broken_playbook_later_does_not_unask_a_host(tmp_path: Path) -> None:
    fleet = Fleet(script={"h000": [("apply", "died")]})
    begin(rollout_of(tmp_path, "apply", HOSTS), tmp_path, fleet)
    fleet.dead = True
    shutil.rmtree(tmp_path / "h000")
    go_on(tmp_path, "apply", HOSTS, fleet)
    assert said(tmp_path)["h000"] == f"{LOST} (the record of the run says: apply: died: as scripted)"


def test_an_interrupted_run_says_which_hosts_it_asked(tmp_path: Path) -> None:
    begin(rollout_of(tmp_path, "apply", HOSTS, sizes="100%"), tmp_path, Fleet(interrupt_at=2))
    shutil.rmtree(tmp_path / "h001")
    told = said_of_all(tmp_path)
    assert told["h001"] == [f"{LOST} (the record of the run says: ok)"]
    assert told["h002"] == told["h003"] == [STOPPED]


def test_after_a_kill_every_host_of_the_begun_wave_may_have_been_asked(tmp_path: Path) -> None:
    with suppress(Killed):
        begin(with_shard(rollout_of(tmp_path, "apply", HOSTS, sizes="1,2,100%"), 1), tmp_path, Fleet(kill_at=1))
    told = said_of_all(tmp_path)
    assert told["h001"] == ["asked; no answer yet"]  # of its validation
    assert told["h002"] == ["its wave had begun when the run was cut off, and it may have been asked: what it did is"
                            " unknown"]  # fmt: skip
    assert told["h003"] == [STOPPED]
    answered(rollout_of(tmp_path, "apply", HOSTS).order, "h002", "apply", "unknown", why="asked; no answer yet")
    assert said_of_all(tmp_path)["h002"] == ["asked; no answer yet: what it did is unknown"]


def said_of_all(results: Path) -> dict[str, list[str | None]]:
    """All that the report of the last run says of each host."""
    return {line.host: [one.actual for one in line.told] for line in report_of_past(str(results)).hosts}


def test_of_a_validation_only_the_answer_is_lost(tmp_path: Path) -> None:
    begin(rollout_of(tmp_path, "validate", HOSTS), tmp_path, Fleet())
    (tmp_path / "h002" / "validate.json").unlink()
    told = next(line.told[0] for line in report_of_past(str(tmp_path)).hosts if line.host == "h002")
    assert told.actual == "asked, and there is no answer of its validate (the record of the run says: ok)"
    assert told.hint == "run again with --retry; if it stays so, run the command on the host by hand"


def test_a_hand_over_whose_answer_is_lost_names_its_own_status(tmp_path: Path) -> None:
    begin(rollout_of(tmp_path, "course", HOSTS), tmp_path, Fleet(full=True))
    told = report_of_past(str(tmp_path)).hosts[0].told[0]
    assert told.actual == "asked, and there is no answer of its hand-over: what it did is unknown"
    assert (told.hint or "").startswith("look at hosttune handover status there")


def test_a_record_that_is_cut_never_says_that_an_asked_host_was_not(tmp_path: Path) -> None:
    """Whatever the end of the record is: of a host that was asked, and whose files are lost, nobody says it was not."""
    begin(rollout_of(tmp_path, "apply", HOSTS), tmp_path, Fleet(full=True))
    record = (tmp_path / RECORD).read_bytes().splitlines(keepends=True)
    begun = next(number for number, line in enumerate(record) if b'"asked"' in line)
    for end in range(begun + 1, len(record) + 1):
        (tmp_path / RECORD).write_bytes(b"".join(record[:end]))
        assert "not asked" not in str(said(tmp_path)["h000"])
