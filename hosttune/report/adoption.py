"""Existing guests as planned: the changes with their reasons, the difference, what stays, what the host needs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from msgspec.structs import replace

from hosttune.model.host import Host
from hosttune.model.plan import Action, AdoptedChange, GuestChange
from hosttune.model.text import count
from hosttune.planning.adopting import LIVE, LIVE_AFFINITY, NEXT_START, Adoption, Adoptions
from hosttune.report.blocks import Entries, Exact, Lines, Picture, Report, Section, TitledFacts
from hosttune.report.plan import CAPTION, action_sections, finding_table, guest_section, worst

FINDINGS = "about ports and MMIO: for the PCI tree of a new guest, not for the present one"
SETTINGS = "settings of the host that the guests need or gain from (not part of a definition)"


def adoption_report(adopted: Adoptions, host: Host, following: str) -> Report:
    """Return what of each definition changes and why. `host`: the host that it was planned for. `following`: what to do
    next if anything is to change.
    """
    plan = adopted.plan
    errors = [finding for finding in plan.findings if finding.level == "error"]
    others = [finding for finding in plan.findings if finding.level != "error"]
    changing = plan.actions or any(adoption.changes for adoption in adopted.guests)
    alone = len(adopted.guests) == 1
    return Report(
        kind="Plan for guests of a GPU host",
        verdict=worst(plan),
        headline=guest_verdict(adopted.guests[0]) if alone else verdict(adopted),
        meaning=f"{'Not every guest is placed. ' if plan.unplaced else ''}Nothing has been changed.",
        after="" if plan.unplaced else f"next: {following}" if changing else "nothing would change",
        blocks=(
            finding_table("Errors", errors),
            *(_guest(adoption, alone) for adoption in adopted.guests),
            *action_sections(settings(adopted), host),
            Section(heading="Before and after", blocks=(_pictures(adopted, host),)),
            *(replace(guest_section(guest, host, None), forms=("html",)) for guest in plan.guests),
            Section(heading="Findings", lead=FINDINGS, blocks=(finding_table("", others),)),
        ),
    )


def _pictures(adopted: Adoptions, host: Host) -> Picture:
    changes = {adoption.name: tuple(map(_change, adoption.changes)) for adoption in adopted.guests}
    guests = tuple(replace(guest, changes=changes.get(guest.name, ())) for guest in adopted.plan.guests)

    def draw() -> str:
        from hosttune.report.defined import with_defined
        from hosttune.report.svg import two_plans_sheets

        seen = with_defined(host, (adoption.before for adoption in adopted.guests))
        before, after = two_plans_sheets(seen, None, replace(adopted.plan, guests=guests))
        return f'<div class="beside"><div><h3>Before</h3>{before}</div><div><h3>After</h3>{after}</div></div>'

    return Picture(draw=draw, name="Pictures of the host and its guests before and after", caption=CAPTION)


def _change(change: AdoptedChange) -> GuestChange:
    return GuestChange(element=change.element, was=change.was, becomes=change.becomes, when="next-start")


def verdict(adopted: Adoptions) -> str:
    """Return the adoption of several guests in one line."""
    placed = [adoption for adoption in adopted.guests if adoption.placement is not None]
    changed = sum(1 for adoption in placed if adoption.changes or adoption.affinity)
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


def when_of(adoption: Adoption, change: AdoptedChange) -> str:
    """Return when a change takes effect: live only if the guest runs and its threads move."""
    return NEXT_START if adoption.affinity is None else change.effect


def change_rows(adoption: Adoption) -> list[tuple[str, str]]:
    """Return (what changes from what to what, and when; why) of each change."""
    rows = [
        (f"{change.element}: {change.was} -> {change.becomes} ({when_of(adoption, change)})", change.why)
        for change in adoption.changes
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


def _guest(adoption: Adoption, alone: bool) -> Section:
    changes = tuple(TitledFacts(title=f"~ {what}", facts=(("", why),)) for what, why in change_rows(adoption))
    return Section(
        heading="What changes" if alone else guest_verdict(adoption),
        blocks=(
            Lines(lines=adoption.unplaced, style="error", whole=True),
            Lines(heading="it would fit with one of these", lines=adoption.relaxation, whole=True),
            Entries(parts=changes, numbered=False, whole=True),
            Exact(heading="Difference of the definition", parts=tuple(difference(adoption)), fold=True),
            Lines(heading="kept as it is", lines=adoption.kept, whole=True),
        ),
    )
