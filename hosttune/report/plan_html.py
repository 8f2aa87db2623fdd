"""A plan as one self-contained HTML page: the picture, then each guest with its reasons, actions and findings.

Nothing is loaded from elsewhere, there is no script, and a content security policy lets none run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hosttune.assets import folder
from hosttune.model.host import Host
from hosttune.model.plan import Action, Plan, PlannedGuest
from hosttune.model.prediction import Expectation
from hosttune.report.expectation_text import expectation_of, expected_rows, worse_rows
from hosttune.report.page import page_templates
from hosttune.report.plan_text import (
    action_lines,
    alike,
    device_row,
    finding_rows,
    guest_facts,
    guest_rows,
    verdict,
)
from hosttune.report.svg import plan_svg

_EFFECTS = (("now", "effective at once"), ("reboot", "effective after a reboot"))


def plan_html(host: Host, plan: Plan) -> str:
    """Return the page of a plan made for `host`, ending in a newline. The same documents give the same bytes."""
    from markupsafe import Markup

    style = (folder("templates") / "report" / "style.css").read_text()
    return (
        page_templates()
        .get_template("plan.html.j2")
        .render(
            title=verdict(plan),
            hostname=plan.hostname or host.hostname or "unnamed host",
            facts=verdict(plan).partition(": ")[2],
            style=Markup(style),
            before=None,
            svg=Markup(plan_svg(host, plan, sheets=True)),
            guests=[guest_part(guest, host, expectation_of(plan, guest.name)) for guest in plan.guests],
            unplaced=plan.unplaced,
            actions=action_parts(plan.actions, host),
            findings=finding_rows(plan.findings),
        )
    )


def guest_part(guest: PlannedGuest, host: Host, expected: Expectation | None = None) -> dict[str, Any]:
    """Return what the template shows of a guest. `expected`: what it can reach, None if the plan does not say."""
    models = {gpu.address: gpu.model for gpu in host.gpus}
    return {
        "name": guest.name,
        "facts": guest_facts(guest),
        "rows": [(what.strip(), text) for what, text in guest_rows(guest)],
        "devices": [device_row(device, host.index.pci, models) for device in guest.devices],
        "expected": expected_rows(expected) if expected else (),
        "worse": worse_rows(expected) if expected else (),
        "steps": guest.steps,
        "why": guest.why,
        "changes": (),
        "difference": (),
        "kept": (),
    }


def action_parts(actions: Sequence[Action], host: Host) -> list[tuple[str, list[tuple[bool, tuple[str, ...]]]]]:
    """Return (when effective, [(needed, lines)]): actions that differ only in their target are one entry."""
    found = []
    for effect, heading in _EFFECTS:
        groups = alike([action for action in actions if action.effect == effect])
        if groups:
            found.append((heading, [(group[0].needed, action_lines(group, host)) for group in groups]))
    return found
