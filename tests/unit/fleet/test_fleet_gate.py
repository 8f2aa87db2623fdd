"""The gate: it opens for hosts that are proven good, every one of them, and for nothing else."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosttune.fleet.gate import GATES, ONLY_IF_ASKED, PHASES, Gate, HostStatus, exit_code, judge, status_of
from hosttune.model.fleet import Answer, AnswerOutcome
from hosttune.model.validation import Verdict

OUTCOMES: tuple[AnswerOutcome, ...] = get_args(AnswerOutcome)
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
VALIDATIONS = ("before", "validate", "handover")


def answer(phase: str, outcome: AnswerOutcome = "ok", **facts: object) -> Answer:
    verdict = {"verdict": "pass"} if phase in VALIDATIONS else {}
    return Answer(host="h", phase=phase, run="r", outcome=outcome, **{**verdict, **facts})  # type: ignore[arg-type]


def well(verb: str) -> dict[str, Answer]:
    """The answers of a host on which everything went well."""
    return {phase: answer(phase) for phase in PHASES[verb] if phase not in ("status", *ONLY_IF_ASKED)}


def host_status(verb: str, gate: Gate = "either", **others: Answer | None) -> HostStatus:
    answers = {**well(verb), **others}
    return status_of("h", verb, {phase: found for phase, found in answers.items() if found is not None}, gate)


def test_a_host_on_which_all_went_well_is_good() -> None:
    for verb, gate in product(PHASES, GATES):
        found = host_status(verb, gate)
        assert (found.outcome, found.phase, found.why) == ("ok", None, None), (verb, gate)


# Every verb with each phase that is always asked, and every gate.
ASKED = [(verb, phase, gate) for verb in PHASES for phase in well(verb) for gate in GATES]


def test_a_phase_without_an_answer_is_unknown() -> None:
    for verb, phase, gate in ASKED:
        found = host_status(verb, gate, **{phase: None})
        told = (found.outcome, found.phase, found.why)
        assert told == ("unknown", phase, "no answer of this run"), (verb, phase, gate)


def test_a_phase_that_did_not_end_well_is_told_with_its_reason() -> None:
    for (verb, phase, gate), outcome in product(ASKED, OUTCOMES):
        if outcome == "ok":
            continue
        case = (verb, phase, gate, outcome)
        found = host_status(verb, gate, **{phase: answer(phase, outcome, why="because")})
        if phase == "before" and outcome == "no":
            assert found.good, case  # faults that were there before are what the comparison is for
        else:
            assert (found.outcome, found.phase, found.why) == (outcome, phase, "because"), case
            assert found.line == f"h: {phase}: {outcome}: because"


@pytest.mark.parametrize(
    ("gate", "verdict", "outcome"),
    [
        ("either", "pass", "ok"),
        ("either", "warn", "ok"),
        ("either", "fail", "no"),
        ("either", "unknown", "ok"),  # unknown before already, the exit code says: it does not block
        ("either", None, "unknown"),
        ("verdict", "warn", "ok"),
        ("verdict", "unknown", "unknown"),
        ("verdict", "fail", "no"),
        ("verdict", None, "unknown"),
        ("worse", "fail", "ok"),
        ("worse", "unknown", "ok"),
    ],
)
def test_the_verdict_counts_besides_the_exit_code(gate: Gate, verdict: Verdict | None, outcome: str) -> None:
    assert host_status("apply", gate, validate=answer("validate", verdict=verdict)).outcome == outcome


@pytest.mark.parametrize("verdict", [*VERDICTS, None])
def test_a_handover_needs_a_verdict_whatever_the_gate(verdict: Verdict | None) -> None:
    found = host_status("handover", "worse", handover=answer("handover", verdict=verdict))
    assert found.good == (verdict in ("pass", "warn"))


def test_a_reboot_that_is_to_come_keeps_the_gate_shut() -> None:
    pending = answer("apply", reboot_required=True)
    assert host_status("apply", apply=pending).line == "h: status: refused: a reboot is pending, and was not made"
    assert host_status("apply", apply=pending, status=answer("status")).good
    drifted = host_status("apply", apply=pending, status=answer("status", "no", why="drift"))
    assert (drifted.outcome, drifted.phase) == ("no", "status")
    unsure = answer("status", "unknown", why="asked; no answer yet")
    assert host_status("apply", apply=pending, status=unsure).outcome == "unknown"
    assert host_status("apply", apply=answer("apply", reboot_required=False), status=unsure).good  # not asked of it


@pytest.mark.parametrize("phase", ONLY_IF_ASKED)
def test_a_step_that_is_only_made_where_it_is_asked_for_keeps_the_gate_shut_when_it_fails(phase: str) -> None:
    found = host_status("apply", "either", **{phase: answer(phase, "no", why="no such ticket")})
    assert found.line == f"h: {phase}: no: no such ticket"
    assert host_status("apply", "either", **{phase: answer(phase)}).good


def test_in_check_mode_the_verb_itself_decides() -> None:
    both = {"before": answer("before", check=True), "apply": answer("apply", check=True)}
    assert status_of("h", "apply", both, "either", check=True).good
    assert not status_of("h", "apply", {"before": both["before"]}, "either", check=True).good
    assert status_of("h", "apply", {"apply": both["apply"]}, "either", check=True).phase == "before"


def test_every_host_of_the_wave_counts() -> None:
    good, bad = HostStatus("a", "ok"), HostStatus("b", "slow", "apply", "no answer in time")
    assert judge(["a"], {"a": good}) == (True, ())
    assert judge(["a", "b"], {"a": good, "b": bad}) == (False, ("b: apply: slow: no answer in time",))
    assert judge(["a", "c"], {"a": good}) == (False, ("c: no phase: unknown: not asked",))
    assert judge([], {}) == (False, ())


def test_the_reasons_of_very_many_hosts_are_cut() -> None:
    hosts = [f"h{number}" for number in range(100)]
    passed, why = judge(hosts, {})
    assert not passed
    assert len(why) == 21
    assert why[-1] == "and 80 more hosts"


STANDINGS = st.builds(
    HostStatus, st.just("h"), st.sampled_from(OUTCOMES), verdict=st.none() | st.sampled_from(VERDICTS)
)
ANSWERS = st.fixed_dictionaries(
    {},
    optional={
        phase: st.builds(
            Answer,
            host=st.just("h"),
            phase=st.just(phase),
            run=st.just("r"),
            outcome=st.sampled_from(OUTCOMES),
            verdict=st.none() | st.sampled_from(VERDICTS),
            reboot_required=st.none() | st.booleans(),
        )
        for phase in ("hook", "before", "apply", "status", "validate")
    },
)


@given(st.lists(STANDINGS, max_size=12))
def test_the_gate_never_opens_on_a_host_that_is_not_good(found: list[HostStatus]) -> None:
    host_statuses = {f"h{number}": one for number, one in enumerate(found)}
    passed, why = judge([*host_statuses], host_statuses)
    assert passed == (bool(found) and all(one.outcome == "ok" for one in found))
    assert passed or why or not found


@given(st.lists(STANDINGS, min_size=1, max_size=8), STANDINGS)
def test_one_host_more_never_opens_a_gate(found: list[HostStatus], one: HostStatus) -> None:
    host_statuses = {f"h{number}": each for number, each in enumerate(found)}
    before, _ = judge([*host_statuses], host_statuses)
    after, _ = judge([*host_statuses, "x"], {**host_statuses, "x": one})
    assert before or not after


@given(ANSWERS, st.sampled_from(GATES))
def test_a_good_host_has_every_answer_that_proves_it(answers: dict[str, Answer], gate: Gate) -> None:
    if not status_of("h", "apply", answers, gate).good:
        return
    assert answers["apply"].outcome == answers["validate"].outcome == "ok"
    assert answers["before"].outcome in ("ok", "no")
    assert answers["apply"].reboot_required is not True or answers["status"].outcome == "ok"
    assert gate == "worse" or answers["validate"].verdict in ("pass", "warn")


@given(ANSWERS, st.sampled_from(GATES), st.sampled_from(["before", "apply", "validate"]))
def test_an_answer_less_never_makes_a_host_good(answers: dict[str, Answer], gate: Gate, phase: str) -> None:
    less = {name: found for name, found in answers.items() if name != phase}
    assert not status_of("h", "apply", less, gate).good


@given(ANSWERS)
def test_the_gate_of_both_is_at_least_as_strict_as_each(answers: dict[str, Answer]) -> None:
    if status_of("h", "apply", answers, "either").good:
        assert status_of("h", "apply", answers, "worse").good
        assert status_of("h", "apply", answers, "verdict").good


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([HostStatus("a", "ok", verdict="warn")], 0),
        ([HostStatus("a", "ok"), HostStatus("b", "no")], 1),
        ([HostStatus("a", "ok"), HostStatus("b", "unknown")], 1),
        ([HostStatus("a", "unreachable"), HostStatus("b", "needs-person")], 4),
        ([HostStatus("a", "ok", verdict="fail")], 1),  # the gate was `worse`: it was no worse, and is still no pass
        ([HostStatus("a", "ok", verdict="unknown")], 1),
        ([HostStatus("a", "internal")], 1),
    ],
)
def test_the_worst_host_makes_the_exit_code(found: list[HostStatus], code: int) -> None:
    assert exit_code(found) == code
