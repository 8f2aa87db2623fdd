"""Existing guests as planned, as one self-contained HTML page: the host before and after, then each guest's changes."""

from __future__ import annotations

from typing import Any

from hosttune.assets import folder
from hosttune.model.host import Host
from hosttune.model.plan import PlannedGuest
from hosttune.planning.adopting import Adoption, Adoptions
from hosttune.report.adoption_text import change_rows, difference, guest_verdict, settings, verdict
from hosttune.report.defined import with_defined
from hosttune.report.page import page_templates
from hosttune.report.plan_html import action_parts, guest_part
from hosttune.report.plan_text import finding_rows
from hosttune.report.svg import two_plans_sheets


def adoption_html(host: Host, adopted: Adoptions) -> str:
    """Return the page of guests adopted on `host`, ending in a newline. The same documents give the same bytes."""
    from markupsafe import Markup

    plan = adopted.plan
    style = (folder("templates") / "report" / "style.css").read_text()
    before, after = two_plans_sheets(with_defined(host, (one.before for one in adopted.guests)), None, plan)
    facts = verdict(adopted)
    guests = {guest.name: guest for guest in plan.guests}
    return (
        page_templates()
        .get_template("plan.html.j2")
        .render(
            title=f"guests of {plan.hostname or 'an unnamed host'}: {facts}",
            hostname=plan.hostname or host.hostname or "unnamed host",
            facts=facts,
            style=Markup(style),
            before=Markup(before),
            svg=Markup(after),
            guests=[_part(one, guests.get(one.name), host) for one in adopted.guests],
            unplaced=plan.unplaced,
            actions=action_parts(settings(adopted), host),
            findings=finding_rows(plan.findings),
        )
    )


def _part(adoption: Adoption, guest: PlannedGuest | None, host: Host) -> dict[str, Any]:
    """Return what the template shows of a guest; of one without a place, only what is kept."""
    lists = ("rows", "devices", "expected", "worse", "steps", "why")
    nothing: dict[str, Any] = {"name": adoption.name, **dict.fromkeys(lists, ())}
    return {
        **(nothing if guest is None else guest_part(guest, host)),
        "facts": guest_verdict(adoption).partition(": ")[2],
        "changes": change_rows(adoption),
        "difference": difference(adoption),
        "kept": adoption.kept,
    }
