"""Series of the results of a validation: the verdict, counts for each check, and the results that need attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from hosttune.metrics import families as f
from hosttune.metrics.writing import Group, Point
from hosttune.model.validation import CheckResult, Validation
from hosttune.model.values import grouped

VERDICTS = ("pass", "warn", "fail", "unknown")
MOST_STATUS = 30  # results in hosttune_check_status
_WORST_FIRST = ("fail", "unknown", "warn")
_GUEST = "guest-"


def verdict_group(validation: Validation | None) -> Group:
    """Return the verdict; that of a host which was not validated is unknown."""
    now = validation.verdict if validation is not None else "unknown"
    return f.VERDICT, tuple(Point(labels={"verdict": one}, value=int(one == now)) for one in VERDICTS)


def count_group(validation: Validation | None) -> Group:
    """Return the number of results by check and status."""
    results = validation.results if validation is not None else ()
    counted = Counter((one.check, one.outcome) for one in results)
    points = (Point(labels={"check": check, "status": status}, value=n) for (check, status), n in counted.items())
    return f.CHECK_RESULTS, tuple(points)


def status_groups(validation: Validation | None) -> tuple[Group, ...]:
    """Return the results that are neither pass nor skip, at most MOST_STATUS, and how many are left out.

    Fails come first, then unknowns, then warnings; within these each check in turn, so that a check with very many
    subjects does not hide the others.
    """
    results = validation.results if validation is not None else ()
    chosen = [one for status in _WORST_FIRST for one in _in_turn([r for r in results if r.outcome == status])]
    points = tuple(
        Point(labels={"check": one.check, "subject": one.subject, "status": one.outcome}, value=1)
        for one in chosen[:MOST_STATUS]
    )
    return (f.CHECK_STATUS, points), (f.CHECK_OMITTED, (Point(value=len(chosen) - len(points)),))


def _in_turn(results: Sequence[CheckResult]) -> list[CheckResult]:
    by_check = grouped((one.check, one) for one in results)
    places = {id(one): place for group in by_check.values() for place, one in enumerate(group)}
    return sorted(results, key=lambda one: places[id(one)])


def placement_group(validation: Validation | None, guests: Collection[str]) -> Group:
    """Return, for each guest and each check of guests, 1 if it is violated, 0 if not, None if unknown.

    A check that does not apply (the guest does not run) has no series. `guests`: the names of this host's guests.
    """
    results = validation.results if validation is not None else ()
    return f.PLACEMENT, tuple(sorted(_placements(results, guests), key=lambda point: point.value == 0))


def _placements(results: Iterable[CheckResult], guests: Collection[str]) -> Iterable[Point]:
    values = {"pass": 0, "warn": 1, "fail": 1, "unknown": None}
    for one in results:
        if one.check.startswith(_GUEST) and one.subject in guests and one.outcome in values:
            labels = {"guest": one.subject, "kind": one.check.removeprefix(_GUEST)}
            yield Point(labels=labels, value=values[one.outcome])
