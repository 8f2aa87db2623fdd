"""Existing guests as planned, as one self-contained HTML page: the host before and after, then each guest's changes."""

from __future__ import annotations

from typing import Any

from hosttune.assets import folder
from hosttune.model.host import Host
from hosttune.planning.adopting import Adoption, Adoptions
from hosttune.report.adoption_text import change_rows, difference, guest_verdict, settings, verdict
from hosttune.report.page import page_templates
from hosttune.report.plan_html import action_parts, guest_part
from hosttune.report.plan_text import finding_rows
from hosttune.report.svg import two_plans_sheets


def adoption_html(host: Host, adopted: Adoptions) -> str:
    """Return the page of guests adopted on `host`, ending in a newline. The same documents give the same bytes."""
    from markupsafe import Markup

    plan = adopted.plan
    style = (folder("templates") / "report" / "style.css").read_text()
    before, after = two_plans_sheets(host, None, plan)
    facts = verdict(adopted)
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
            guests=[_part(one, host) for one in adopted.guests],
            unplaced=plan.unplaced,
            actions=action_parts(settings(adopted), host),
            findings=finding_rows(plan.findings),
        )
    )


def _part(adoption: Adoption, host: Host) -> dict[str, Any]:
    """Return what the template shows of a guest; of one without a place, what is kept only."""
    found = guest_part(adoption.placement.guest, host) if adoption.placement is not None else {"name": adoption.name}
    return {
        **found,
        "facts": guest_verdict(adoption).partition(": ")[2],
        "changes": change_rows(adoption),
        "difference": difference(adoption),
        "kept": adoption.kept,
    }
