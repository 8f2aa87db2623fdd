"""The exit code of a validation beside an earlier one."""

from __future__ import annotations

import pytest

from hosttune.model.validation import CheckResult, Outcome, Validation, verdict_of
from hosttune.validating import exit_code


def validation(*outcomes: Outcome, worse: tuple[str, ...] | None = None) -> Validation:
    found = tuple(CheckResult(check="c", subject=str(n), outcome=outcome) for n, outcome in enumerate(outcomes))
    return Validation(results=found, verdict=verdict_of(found), worse=worse)


@pytest.mark.parametrize(
    ("before", "now", "code"),
    [
        (["unknown", "pass"], ["unknown", "pass"], 0),
        (["unknown", "pass"], ["unknown", "unknown"], 1),
        (["unknown", "pass"], ["unknown", "fail"], 1),
        (["unknown"], ["fail"], 1),
        (["fail"], ["unknown"], 1),  # it was a fault, and nothing shows that it is none now
        (["skip"], ["unknown"], 1),
        (["fail"], ["fail"], 1),
        (["unknown"], ["warn"], 0),
    ],
)
def test_either_leaves_out_what_was_unknown_before(before: list[Outcome], now: list[Outcome], code: int) -> None:
    assert exit_code(validation(*now, worse=()), "either", validation(*before)) == code


def test_other_gates_and_no_earlier_validation() -> None:
    stood = validation("unknown")
    assert exit_code(stood, "verdict", stood) == 1
    assert exit_code(stood, "worse", stood) == 0
    assert exit_code(stood, "either") == 1
    assert exit_code(validation("pass", worse=("c 0: less",)), "either", validation("pass")) == 1
