"""Plan and reality: what each planned guest should get, next to what the host document reports for it.

The checks judge; this module only compares. What the host does not report is unknown, never "as planned".
"""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.domain.expectedguest import ExpectedGuest
from hosttune.domain.guestdiff import DIFFERENT, UNKNOWN, Comparison, compare_definition
from hosttune.model.host import Host
from hosttune.model.plan import Plan, PlannedGuest
from hosttune.model.validation import CheckResult, worst_first
from hosttune.model.values import Value


class GuestReality(Value, frozen=True, kw_only=True):
    """One planned guest: `state` as libvirt reports it, the comparisons, and the results of the checks."""

    name: str
    state: str
    rows: tuple[Comparison, ...]
    results: tuple[CheckResult, ...] = ()

    @property
    def differing(self) -> int:
        """The number of rows that differ."""
        return sum(row.state == DIFFERENT for row in self.rows)

    @property
    def unknown(self) -> int:
        """The number of rows that could not be compared."""
        return sum(row.state == UNKNOWN for row in self.rows)


def reality(plans: Iterable[Plan], host: Host | None, results: Iterable[CheckResult] = ()) -> tuple[GuestReality, ...]:
    """Compare every guest of the plans, in their order. If two plans have the same guest, the later one counts."""
    planned = {guest.name: guest for plan in plans for guest in plan.guests}
    results = tuple(results)
    return tuple(
        _guest(guest, host, tuple(result for result in worst_first(results) if result.subject == guest.name))
        for guest in planned.values()
    )


def _guest(planned: PlannedGuest, host: Host | None, results: tuple[CheckResult, ...]) -> GuestReality:
    guests = host.guests if host else None
    actual = next((guest for guest in guests or () if guest.name == planned.name), None)
    if actual is None:
        missing = "this host's guests are unknown" if guests is None else "not defined on this host"
        state = UNKNOWN if guests is None else DIFFERENT
        row = Comparison(what="guest", planned="defined", actual=missing, state=state)
        return GuestReality(name=planned.name, state=missing, rows=(row,), results=results)
    rows = compare_definition(ExpectedGuest.of_plan(planned), ExpectedGuest.of_definition(actual))
    return GuestReality(name=planned.name, state=actual.state or "state unknown", rows=rows, results=results)
