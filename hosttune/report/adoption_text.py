"""Existing guests as planned: the changes with their reasons, the difference, what stays, what the host needs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hosttune.model.host import Host
from hosttune.planning.adopting import LIVE, LIVE_AFFINITY, NEXT_START, Adoption, Adoptions, Change
from hosttune.report.branch import count, draw_rows, say
from hosttune.report.plan_text import action_lines, alike, finding_rows

if TYPE_CHECKING:
    from rich.console import Console

    from hosttune.model.plan import Action

FINDINGS = "findings (about ports and MMIO: for the PCI tree of a new guest, not for the present one)"
SETTINGS = "settings of the host that the guests need or gain from (not part of a definition)"


def print_adoptions(adopted: Adoptions, host: Host, console: Console) -> None:
    """Print what of each definition changes and why. `host`: the host that it was planned for."""
    if len(adopted.guests) != 1:
        say(verdict(adopted), console, "error" if adopted.plan.unplaced else "strong")
        say("", console)
    for one in adopted.guests:
        _print_guest(one, console)
    actions = settings(adopted)
    if actions:
        say(SETTINGS, console, "strong")
        for group in alike(actions):
            marks = ("*" if group[0].needed else "-", " ", " ")
            draw_rows(zip(marks, action_lines(group, host), strict=False), console)
    if adopted.plan.findings:
        say(FINDINGS, console, "strong")
        draw_rows(finding_rows(adopted.plan.findings), console)


def verdict(adopted: Adoptions) -> str:
    """Return the adoption of several guests in one line."""
    placed = [one for one in adopted.guests if one.placement is not None]
    changed = sum(1 for one in placed if one.changes or one.affinity)
    facts = [count(len(adopted.guests), "guest"), f"{changed} to change", f"{len(placed) - changed} right as they are"]
    facts += [f"{len(adopted.plan.unplaced)} NOT placed"] if adopted.plan.unplaced else []
    return ", ".join(facts)


def guest_verdict(adoption: Adoption) -> str:
    """Return the adoption of a guest in one line: how many changes, and when they can take effect."""
    if adoption.placement is None:
        return f"guest {adoption.name}: NOT PLACED"
    if not adoption.changes:
        return f"guest {adoption.name}: nothing to change in its definition"
    live = sum(when_of(adoption, change) == LIVE for change in adoption.changes)
    later = len(adoption.changes) - live
    return f"guest {adoption.name}: {count(len(adoption.changes), 'change')}, {live} live, {later} at the next start"


def when_of(adoption: Adoption, change: Change) -> str:
    """Return when a change takes effect: live only if the guest runs and its threads move."""
    return NEXT_START if adoption.affinity is None else change.effect


def change_rows(adoption: Adoption) -> list[tuple[str, str]]:
    """Return (what changes from what to what, and when; why) of each change."""
    rows = [
        (f"{one.element}: {one.was} -> {one.becomes} ({when_of(adoption, one)})", one.why) for one in adoption.changes
    ]
    if adoption.affinity is not None and not adoption.changes:
        why = "its definition is right, but it was started before it, or its threads were moved"
        rows.append(("threads of the running guest: moved to where its definition has them (live)", why))
    return rows


def difference(adoption: Adoption) -> list[str]:
    """Return the unified difference of the definition, line by line; empty if nothing changes."""
    before, after = (data.decode("utf-8", "replace").splitlines() for data in (adoption.before, adoption.after))
    lines = difflib.unified_diff(before, after, "definition", "planned", lineterm="")
    return [line[:1] + line[1:].expandtabs() for line in lines]  # a tab is no printable character


def settings(adopted: Adoptions) -> Sequence[Action]:
    """Return the actions on the host: all but those on running guests, which follow from the definitions' changes."""
    return [action for action in adopted.plan.actions if action.kind != LIVE_AFFINITY]


def _print_guest(adoption: Adoption, console: Console) -> None:
    say(guest_verdict(adoption), console, "error" if adoption.placement is None else "strong")
    draw_rows([("-", why) for why in adoption.unplaced], console)
    if adoption.relaxation:
        say("  it would fit with one of these", console)
        draw_rows([("-", line) for line in adoption.relaxation], console)
    for what, why in change_rows(adoption):
        say(f"  {what}", console)
        draw_rows([(why,)], console, indent=4)
    for line in difference(adoption):
        say(line, console)
    if adoption.kept:
        say("kept as it is", console, "strong")
        draw_rows([("-", text) for text in adoption.kept], console)
