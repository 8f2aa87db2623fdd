"""What got worse between two validations of a host: outcomes and figures, one line each. Pure functions.

A gate between waves closes on any of these lines. So they contain what a change of the host must not cause, but no
expected effects of a change: the temperature of a GPU that now belongs to a guest is no longer read, and the checks of
a guest appear and disappear with the guest.
"""

from __future__ import annotations

from hosttune.bench.compare import compare
from hosttune.model.validation import CheckResult, Validation

# These checks judge every device, in a guest or not. If a subject is missing now, the device is gone.
_EVERY_DEVICE = ("pcie-link", "numa-affinity")
_SEVERITY = {"pass": 0, "skip": 0, "warn": 1, "unknown": 2, "fail": 3}


def got_worse(check: str, old: CheckResult | None, new: CheckResult | None, *, made: bool) -> bool:
    """Return whether the result of one subject is worse. `made`: whether the check gave any result this time.

    Worse is: a fail or unknown that was less severe or absent before; a pass that is now a warning; a device that is
    gone; a check that is no longer made. Not worse is: a warning for a subject that did not apply before, and a result
    that no longer applies.
    """
    if new is None:
        return old is not None and (not made or (old.outcome != "skip" and check in _EVERY_DEVICE))
    if new.outcome == "warn":
        return old is not None and old.outcome == "pass"
    return _SEVERITY[new.outcome] > (_SEVERITY[old.outcome] if old is not None else 0)


def regressions(before: Validation, after: Validation) -> tuple[str, ...]:
    """Return a line for each outcome and each figure that is worse in `after`, in its order.

    Among outcomes, those that `after` no longer has come last; figures come after all outcomes.
    """
    old, new = ({(result.check, result.subject): result for result in side.results} for side in (before, after))
    keys = [*new, *(key for key in old if key not in new)]
    made = {check for check, _ in new}
    pairs = [(key, old.get(key), new.get(key)) for key in keys]
    outcomes = [_line(key, was, now) for key, was, now in pairs if got_worse(key[0], was, now, made=key[0] in made)]
    figures = [
        f"{change.metric} {change.subject}: {change.before:g} -> {change.after:g} {change.unit}, {change.change:+.1%}"
        for change in compare(before, after)
        if change.verdict == "worse"
        and change.before is not None
        and change.after is not None
        and change.change is not None
    ]
    return (*outcomes, *figures)


def _line(key: tuple[str, str], old: CheckResult | None, new: CheckResult | None) -> str:
    was, now = (result.outcome if result is not None else "not there" for result in (old, new))
    return f"{key[0]} {key[1]}: {was} -> {now}" + (f", {new.actual}" if new is not None and new.actual else "")
