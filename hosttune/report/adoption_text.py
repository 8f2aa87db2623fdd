"""An existing guest as planned: the changes with their reasons, the difference, what stays, what the host needs."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from hosttune.model.host import Host
from hosttune.planning.adopting import Adoption
from hosttune.report.branch import count, draw_rows, say
from hosttune.report.plan_text import action_lines, alike, finding_rows

if TYPE_CHECKING:
    from rich.console import Console


def print_adoption(adoption: Adoption, host: Host, console: Console) -> None:
    """Print what of a definition changes and why. `host`: the host that it was planned for."""
    say(_verdict(adoption), console, "error" if adoption.unplaced else "strong")
    draw_rows([("-", why) for why in adoption.unplaced], console)
    if adoption.relaxation:
        say("  it would fit with one of these", console)
        draw_rows([("-", line) for line in adoption.relaxation], console)
    for change in adoption.changes:
        when = change.effect if adoption.runs else "next start"
        say(f"  {change.element}: {change.was} -> {change.becomes} ({when})", console)
        draw_rows([(change.why,)], console, indent=4)
    _print_difference(adoption, console)
    if adoption.kept:
        say("kept as it is", console, "strong")
        draw_rows([("-", text) for text in adoption.kept], console)
    actions = adoption.plan.actions if adoption.plan and not adoption.unplaced else ()
    if actions:
        say("settings of the host that the guest needs or gains from (not part of the definition)", console, "strong")
        for group in alike(actions):
            marks = ("*" if group[0].needed else "-", " ", " ")
            draw_rows(zip(marks, action_lines(group, host), strict=False), console)
    if adoption.findings:
        say(
            "findings (about ports and MMIO: for the PCI tree of a new guest, not for the present one)",
            console,
            "strong",
        )
        draw_rows(finding_rows(adoption.findings), console)


def _verdict(adoption: Adoption) -> str:
    if adoption.unplaced:
        return f"guest {adoption.name}: NOT PLACED"
    if not adoption.changes:
        return f"guest {adoption.name}: nothing to change in its definition"
    live = sum(change.effect == "live" for change in adoption.changes) if adoption.runs else 0
    later = len(adoption.changes) - live
    return f"guest {adoption.name}: {count(len(adoption.changes), 'change')}, {live} live, {later} at the next start"


def _print_difference(adoption: Adoption, console: Console) -> None:
    before, after = (data.decode("utf-8", "replace").splitlines() for data in (adoption.before, adoption.after))
    for line in difflib.unified_diff(before, after, "definition", "planned", lineterm=""):
        say(line, console)
