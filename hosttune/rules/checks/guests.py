"""Checks of guests: the running definition against the kept one, and against the applied plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hosttune.domain.defined import as_adopted, as_planned
from hosttune.domain.guestdiff import DIFFERENT, UNKNOWN, compare_definition
from hosttune.model.evidence import Evidence
from hosttune.model.host import RunningGuest
from hosttune.rules.checks.facts import AS_LIBVIRT, guests_known, listed, planned_guests
from hosttune.rules.checks.guestplacement import FORMATDOMAIN, PLACE, started, with_definition
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import guests
from hosttune.rules.engine import Finding, NoValue, inapplicable


@check(
    "guest-definition",
    title="The running definition is the kept one",
    about="each running guest",
    why="a guest that was edited while it ran becomes another one with its next start",
    source="libvirt virDomainGetXMLDesc (VIR_DOMAIN_XML_INACTIVE)",
    expected="it runs with the definition that libvirt keeps",
    look=AS_LIBVIRT,
    reads="libvirt",
    each=guests,
)
def guest_definition(on: On, guest: RunningGuest) -> Finding:
    """Check that a running guest runs with the definition that its next start would use."""
    started(on, guest)
    what = "its running or its kept definition (of a transient guest libvirt keeps none)"
    if differing := on.need(guest.next_start, what):
        hint = f"shut it down and start it again: virsh shutdown {guest.name}, virsh start {guest.name}"
        return on.warned(f"its next start differs in: {listed(differing, 4)}", hint)
    return on.passed("it does")


class _Planned(NamedTuple):
    """A guest of the applied plans, and as libvirt has it; None: it has none, or that is not known."""

    plan: RunningGuest
    guest: RunningGuest | None
    adopted: bool


def _planned(evidence: Evidence) -> Iterator[tuple[str, _Planned]]:
    """Yield every guest of the applied plans; the host if there is none, or if no guest at all is known."""
    plans = {name: (as_planned(guest), False) for name, guest in planned_guests(evidence).items()}
    for plan in evidence.plans:
        plans |= {adopted.name: (as_adopted(adopted), True) for adopted in plan.adoptions}
    if not plans:
        raise inapplicable("no applied plan has a guest")
    if guests_known(evidence) is None and not evidence.host.guests:
        raise NoValue(Finding(outcome="unknown", text="which guests there are is unknown"))
    known = {guest.name: guest for guest in evidence.host.guests or ()}
    yield from ((name, _Planned(plan, known.get(name), adopted)) for name, (plan, adopted) in plans.items())


@check(
    "guest-planned",
    title="The guest is the planned one",
    about="each guest of the applied plans",
    why="what was validated is only worth something for the guest that is there",
    source=FORMATDOMAIN,
    expected="libvirt has it as the applied plan says",
    look=AS_LIBVIRT,
    reads="libvirt",
    each=_planned,
)
def guest_planned(on: On, planned: _Planned) -> Finding:
    """Compare a guest of the applied plans with its definition in libvirt."""
    if planned.guest is None and guests_known(on.evidence) is None:
        on.give_up("whether it is defined is unknown: there may be other guests than those listed")
    if planned.guest is None:
        hint = "hosttune apply --intent FILE defines it; after hosttune apply --no-guests that is left to you"
        return on.warned("it is not defined", hint)
    with_definition(on, planned.guest)
    rows = compare_definition(planned.plan, planned.guest, adopted=planned.adopted)
    if different := [row for row in rows if row.state == DIFFERENT]:
        actual = "; ".join(f"{row.what}: {row.actual}, planned {row.planned}" for row in different)
        return on.failed(actual, PLACE.format(on.subject))
    if unread := [row.what for row in rows if row.state == UNKNOWN]:
        on.give_up(f"of its definition was not read: {listed(unread)}")
    return on.passed(f"as planned: {listed([row.what for row in rows])}")
