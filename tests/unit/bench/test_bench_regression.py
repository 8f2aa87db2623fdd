"""What a gate stops on: outcomes and figures that are worse than before, and nothing that a change brings by right."""

from __future__ import annotations

import pytest

from hosttune.bench.compare import regressions
from hosttune.model.validation import CheckResult, Outcome, Sample, Validation

ALWAYS = CheckResult(check="smt", subject="host", outcome="pass")


def of(*rows: tuple[str, str, Outcome]) -> Validation:
    results = tuple(CheckResult(check=check, subject=subject, outcome=outcome) for check, subject, outcome in rows)
    return Validation(results=(ALWAYS, *results))


def runs(*values: float) -> Validation:
    return Validation(
        results=(ALWAYS,),
        samples=tuple(Sample(metric="h2d-ce", subject="0000:41:00.0", value=value, unit="GB/s") for value in values),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pass", "warn"),
        ("pass", "unknown"),
        ("pass", "fail"),
        ("warn", "unknown"),
        ("warn", "fail"),
        ("unknown", "fail"),
        ("skip", "unknown"),
        ("skip", "fail"),
    ],
)
def test_an_outcome_that_went_down_is_worse(old: Outcome, new: Outcome) -> None:
    found = regressions(of(("thp", "host", old)), of(("thp", "host", new)))
    assert found == (f"thp host: {old} -> {new}",)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("warn", "pass"),
        ("fail", "pass"),
        ("fail", "unknown"),  # less is known, nothing is worse: the verdict's gate is there for it
        ("fail", "fail"),
        ("unknown", "unknown"),
        ("pass", "skip"),  # the GPU belongs to a guest now
        ("skip", "warn"),
        ("skip", "pass"),
    ],
)
def test_an_outcome_that_did_not_is_not(old: Outcome, new: Outcome) -> None:
    assert regressions(of(("thp", "host", old)), of(("thp", "host", new))) == ()


@pytest.mark.parametrize("outcome", ["unknown", "fail"])
def test_a_new_subject_with_a_fault_is_worse(outcome: Outcome) -> None:
    found = regressions(of(), of(("guest-pins", "a", outcome)))
    assert found == (f"guest-pins a: not there -> {outcome}",)


def test_a_new_subject_with_a_warning_is_news() -> None:
    assert regressions(of(), of(("guest-pins", "a", "warn"))) == ()


@pytest.mark.parametrize("check", ["pcie-link", "numa-affinity"])
def test_a_device_that_is_gone_is_worse(check: str) -> None:
    before = of((check, "0000:18:00.0", "pass"), (check, "0000:41:00.0", "pass"))
    assert regressions(before, of((check, "0000:18:00.0", "pass"))) == (f"{check} 0000:41:00.0: pass -> not there",)


def test_a_guest_that_is_gone_is_not() -> None:
    before = of(("guest-pins", "a", "pass"), ("guest-pins", "b", "pass"))
    assert regressions(before, of(("guest-pins", "b", "pass"))) == ()


def test_a_check_that_is_not_made_any_more_is_worse() -> None:
    assert regressions(of(("thp", "host", "pass")), of()) == ("thp host: pass -> not there",)


def test_a_figure_that_fell_is_worse_and_one_within_noise_is_not() -> None:
    before = runs(55.1, 55.2, 55.3, 55.2, 55.1)
    assert regressions(before, runs(44.1, 44.2, 44.3, 44.2, 44.1)) == (
        "h2d-ce 0000:41:00.0: 55.2 -> 44.2 GB/s, -19.9%",
    )
    assert regressions(before, runs(55.2, 55.1, 55.3, 55.2, 55.1)) == ()
    assert regressions(before, runs(66.1, 66.2, 66.3, 66.2, 66.1)) == ()


def test_what_is_worse_names_what_is_there_now() -> None:
    now = CheckResult(check="thp", subject="host", outcome="warn", actual="always")
    after = Validation(results=(ALWAYS, now))
    assert regressions(of(("thp", "host", "pass")), after) == ("thp host: pass -> warn, always",)
