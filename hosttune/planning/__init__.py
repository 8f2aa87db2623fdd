"""(Host, Intent) → Plan: where guests go and which settings they want. Pure: touches no machine.

One search decides all guests of an intent. The rooms, in the order of the work:

1. `inventory`: cores, memory and pages that are free, devices with their IOMMU groups, how large `auto` is, how a guest
   is cut into cells. `fabric`: NVSwitch partitions. `mig`: MIG instances and vGPUs.
2. `request`: the sets of GPUs that a guest may have, the nearest NICs and drives, and the resources that guests compete
   for.
3. `search`: `placements` draws every placement of a guest, the best first; `rank` is the order of preference;
   `fragmentation` decides between equal ranks; `ledger` and `needs` bound what the remaining guests can still reach;
   `branch_and_bound` finds the best plan.
4. `guest` and `pcie`: amounts become addresses: pins, cells, PCIe tree, MMIO window, and a reason for each.
5. `host`: actions on the host (what guests need, then the knobs), and findings. `suggestions`: what would give an
   unplaced guest a place, each proven by planning it.

The search is exact, on whole numbers: most guests placed, then least distance, then the tie-breakers; tests compare it
with an independent solver. A finding reports if its limit was reached, or if a guest needs more cells than it has GPU
nodes. Whole cores are assigned unless `smt: threads` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from hosttune.errors import BadInput
from hosttune.inventory.sizing import PlanningContext, read_field
from hosttune.knobs.registry import check_settings
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Finding, Plan, PlannedGuest, Unplaced
from hosttune.planning.batch import Outcome, check_apart, guest_request_of, place_guests
from hosttune.planning.host.actions import plan_actions
from hosttune.planning.host.findings import host_findings
from hosttune.planning.host.inside import guest_settings, seed_path
from hosttune.planning.host.page_actions import may_boot_pages
from hosttune.planning.host.quirks import tuned_findings
from hosttune.planning.mig.check import check_mig
from hosttune.planning.request.resource_pool import GuestRequest

__all__ = ["plan"]

Place = Callable[[PlanningContext, Sequence[GuestRequest]], tuple[tuple[Outcome, ...], tuple[Finding, ...]]]
X86_64 = frozenset(("x86_64", "amd64"))


def plan(
    host: Host,
    intent: Intent,
    *,
    where: str = "intent",
    context: PlanningContext | None = None,
    place: Place = place_guests,
) -> Plan:
    """Place the guests of an intent on a host, and decide the settings. The same input gives the same plan.

    `context`: what the guests may use; None: all that is free. `place`: decides the places of the guests.

    Raises BadInput: an address does not exist, is named twice or cannot be given to a guest; a setting is unknown; a
    guest name is in use. A guest that does not fit is in `unplaced`, with reasons.
    """
    check_settings(intent, where)
    context = context or read_field(host, intent.reserve, may_boot_pages(intent))
    given = {
        address: f"{guest.name}, by {guest.disk}"
        for guest in intent.guests
        for address in context.catalogue.index.functions_under(guest.disk or "") or ()
    }
    context = replace(context, catalogue=replace(context.catalogue, users={**given, **context.catalogue.users}))
    check_mig(context, intent, where)
    wants = _wants(host, context, intent, where)
    placed, unplaced, findings = _place(context, intent, wants, place)
    guests, known = host_findings(host, context.catalogue, tuple(placed))
    actions, of_actions = plan_actions(host, intent, context.resources, context.memory, context.catalogue, guests)
    return Plan(
        host_digest=host.digest,
        hostname=host.hostname,
        boot_id=host.boot_id,
        intent=intent,
        housekeeping_cpus=str(context.resources.housekeeping),
        guests=guests,
        unplaced=tuple(unplaced),
        actions=actions,
        findings=(*known, *context.resources.findings, *findings, *of_actions, *tuned_findings(host, actions)),
    )


def _wants(host: Host, context: PlanningContext, intent: Intent, where: str) -> list[GuestRequest]:
    """Return what each guest of the intent may have. Raises BadInput: see `plan`."""
    taken = {guest.name for guest in host.guests or ()}
    wants: list[GuestRequest] = []
    for i, guest in enumerate(intent.guests):
        if guest.name in taken:
            raise BadInput(
                f"a guest named {guest.name!r} exists on this host",
                where=f"{where}: guests[{i}].name",
                hint="choose another name",
            )
        wants.append(guest_request_of(context, guest, f"{where}: guests[{i}]"))
    check_apart(context, wants)
    return wants


def _place(
    context: PlanningContext, intent: Intent, wants: Sequence[GuestRequest], place: Place
) -> tuple[list[PlannedGuest], list[Unplaced], list[Finding]]:
    """Return the guests that are placed, with the settings inside them, those that are not, and findings about both."""
    arch = context.host.arch
    if arch is not None and arch not in X86_64:
        why = (f"this host is {arch}: guests are planned on x86-64 only",)
        return [], [Unplaced(guest=want.guest.name, why=why) for want in wants], []
    outcomes, of_search = place(context, wants) if wants else ((), ())
    placed: list[PlannedGuest] = []
    unplaced: list[Unplaced] = []
    findings: list[Finding] = []
    for want, result in zip(wants, outcomes, strict=True):
        if isinstance(result, Unplaced):
            unplaced.append(result)
            continue
        settings, seed = guest_settings(intent, want.guest), seed_path(want.guest)
        placed.append(msgspec.structs.replace(result.guest, guest_settings=settings, seed=seed))
        findings += result.findings
    return placed, unplaced, [*findings, *of_search]
