"""(Host, Intent) → Plan: where guests go and which settings they want. Pure: touches no machine."""

from __future__ import annotations

import msgspec

from hosttune.errors import BadInput
from hosttune.knobs.registry import check_settings
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Finding, Plan, PlannedGuest, Unplaced
from hosttune.planning.batch import check_apart, place_guests, want_of
from hosttune.planning.host.actions import plan_actions
from hosttune.planning.host.findings import host_findings
from hosttune.planning.host.inside import guest_settings, seed_path
from hosttune.planning.host.page_actions import may_boot_pages
from hosttune.planning.host.quirks import tuned_findings
from hosttune.planning.inventory.sizing import PlanningContext, read_field
from hosttune.planning.mig.check import check_mig
from hosttune.planning.request.resource_pool import GuestRequest

__all__ = ["plan"]

X86_64 = frozenset(("x86_64", "amd64"))


def plan(host: Host, intent: Intent, *, where: str = "intent", context: PlanningContext | None = None) -> Plan:
    """Place the guests of an intent on a host, and decide the settings. The same input gives the same plan.

    `context`: what the guests may use; None: all that is free.

    Raises BadInput: an address does not exist, is named twice or cannot be given to a guest; a setting is unknown; a
    guest name is in use. A guest that does not fit is in `unplaced`, with reasons.
    """
    check_settings(intent, where)
    taken = {guest.name for guest in host.guests or ()}
    context = context or read_field(host, intent.reserve, may_boot_pages(intent))
    check_mig(context, intent, where)
    placed: list[PlannedGuest] = []
    unplaced: list[Unplaced] = []
    findings: list[Finding] = [*context.resources.findings]
    wants: list[GuestRequest] = []
    for i, guest in enumerate(intent.guests):
        if guest.name in taken:
            raise BadInput(
                f"a guest named {guest.name!r} exists on this host",
                where=f"{where}: guests[{i}].name",
                hint="choose another name",
            )
        wants.append(want_of(context, guest, f"{where}: guests[{i}]"))
    check_apart(context, wants)
    if host.arch is not None and host.arch not in X86_64:
        why = (f"this host is {host.arch}: guests are planned on x86-64 only",)
        unplaced += [Unplaced(guest=guest.name, why=why) for guest in intent.guests]
    elif wants:
        outcomes, said = place_guests(context, wants)
        for want, result in zip(wants, outcomes, strict=True):
            if isinstance(result, Unplaced):
                unplaced.append(result)
                continue
            settings, seed = guest_settings(intent, want.guest), seed_path(want.guest)
            placed.append(msgspec.structs.replace(result.guest, guest_settings=settings, seed=seed))
            findings += result.findings
        findings += said
    guests, known = host_findings(host, context.catalogue, tuple(placed))
    actions, said = plan_actions(host, intent, context.resources, context.memory, context.catalogue, guests)
    return Plan(
        host_digest=host.digest,
        hostname=host.hostname,
        boot_id=host.boot_id,
        intent=intent,
        housekeeping_cpus=str(context.resources.housekeeping),
        guests=guests,
        unplaced=tuple(unplaced),
        actions=actions,
        findings=(*known, *findings, *said, *tuned_findings(host, actions)),
    )
