"""(Host, Intent) → Plan: where guests go and which settings they want. Pure: touches no machine.

One search decides all guests of an intent. The rooms, in the order of the work:

1. `inventory`: cores, memory and pages that are free, devices with their IOMMU groups, how large `auto` is, how a guest
   is cut into cells. `fabric`: NVSwitch partitions. `mig`: MIG instances and vGPUs.
2. `request`: the sets of GPUs that a guest may have, the nearest NICs and drives, and the resources that guests compete
   for.
3. `search`: `placements` draws every placement of a guest, the best first; `Rank` is the order of preference;
   `Fragmentation` decides between equal ranks; `ledger` and `needs` bound what the remaining guests can still reach;
   `branch_and_bound` finds the best plan.
4. `guest` and `pcie`: amounts become addresses: pins, cells, PCIe tree, MMIO window, and a reason for each.
5. `standing`: which guests in force stay exactly where they are; `staying`: what the changed ones keep; `rebase`: what
   of the actions is left to do, and what goes back.
6. `host`: actions on the host (what guests need, then the knobs), and findings. `suggestions`: what would give an
   unplaced guest a place, each proven by planning it.

The search is exact, on whole numbers: most guests placed, then least distance, then the tie-breakers; tests compare it
with an independent solver. A finding reports if its limit was reached, or if a guest needs more cells than it has GPU
nodes. Whole cores are assigned unless `smt: threads` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from msgspec.structs import replace
from msgspec.structs import replace as changed

from hosttune.inventory.devices import read_catalogue
from hosttune.inventory.pages import read_memory
from hosttune.inventory.resources import Resources
from hosttune.inventory.sizing import PlanningContext, read_field
from hosttune.inventory.virtualfunctions import allotted, with_functions
from hosttune.knobs.registry import check_settings
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Plan, PlanFinding, PlannedGuest, Source, Unplaced
from hosttune.planning.batch import Outcome, check_apart, guest_request_of, place_guests
from hosttune.planning.guest.reasons import crowded_cores, unused_nodes
from hosttune.planning.guest.reserve import take_entry
from hosttune.planning.host.actions import plan_actions
from hosttune.planning.host.findings import host_findings
from hosttune.planning.host.inside import guest_settings, seed_path
from hosttune.planning.host.page_actions import may_boot_pages
from hosttune.planning.host.quirks import tuned_findings
from hosttune.planning.mig.check import check_mig
from hosttune.planning.rebase import rebase, values_of
from hosttune.planning.request.resource_pool import GuestRequest
from hosttune.planning.standing import StandingIntent, beyond, compare, compared, entry_of
from hosttune.planning.staying import objective, place_again

__all__ = ["plan"]

Place = Callable[[PlanningContext, Sequence[GuestRequest]], tuple[tuple[Outcome, ...], tuple[PlanFinding, ...]]]
X86_64 = frozenset(("x86_64", "amd64"))


def plan(
    host: Host,
    intent: Intent,
    *,
    where: str = "intent",
    source: Source | None = None,
    prune: bool = False,
    replan: Collection[str] = (),
    context: PlanningContext | None = None,
    place: Place | None = None,
) -> Plan:
    """Place the guests of an intent on a host, and decide the settings. The same input gives the same plan.

    What is in force (`host.in_force`) stays where the intent does not say otherwise. `source`: where the intent came
    from. `prune`: what came from files and is not in this one goes. `replan`: guests that may get other places.
    `context`: what the guests may use; None: all that is free. `place`: decides the places of the guests.

    Raises BadInput: an address does not exist, is named twice or cannot be given to a guest; a setting is unknown; a
    guest name is in use. A guest that does not fit is in `unplaced`, with reasons.
    """
    check_settings(intent, where)
    host = with_functions(host, intent)
    standing = compare(host, intent, where, source=source, prune=prune, replan=replan)
    ground = context or read_field(standing.bare, intent.reserve, may_boot_pages(standing.intent))
    context = _with_given(_beside_fixed(ground, standing, replan), intent, standing)
    check_mig(context, standing.intent, where)
    wants = [
        guest_request_of(context, guest, f"{where}: guests[{i}]")
        for i, guest in enumerate(intent.guests)
        if guest.state == "present" and guest.name not in standing.out
    ]
    check_apart(context, wants)
    fixed = {guest.name: guest for guest in standing.fixed}
    again = (context.own or standing.old_runs) and partial(place_again, old_runs=standing.old_runs)
    anew = [want for want in wants if want.guest.name not in fixed]
    placed, unplaced, findings = _place(context, standing.intent, anew, place or again or place_guests)
    unplaced = [*unplaced, *standing.out.values()]
    planned_guests, known = host_findings(
        standing.bare,
        context.catalogue,
        (*placed, *(fixed[w.guest.name].places for w in wants if w.guest.name in fixed)),
    )
    new = {guest.name: guest for guest in planned_guests}
    named = [guest for guest in intent.guests if guest.name in new]
    guests = tuple(compared(host, standing, guest, new[guest.name]) for guest in named)
    every = (*guests, *(guest.places for guest in standing.fixed if guest.name not in new))
    actions, of_actions = _actions(host, standing, ground, context, every)
    decided = Plan(
        host_digest=host.digest,
        hostname=host.hostname,
        boot_id=host.boot_id,
        intent=intent,
        housekeeping_cpus=str(context.resources.housekeeping),
        guests=guests,
        unplaced=tuple(unplaced),
        actions=actions,
        findings=(
            *known, *context.resources.findings, *standing.findings, *findings, *of_actions,
            *tuned_findings(host, actions),
        ),
        source=source if host.in_force else None,  # a plan beside what is unknown is applied by its intent
        based_on=host.in_force.last if host.in_force else None,
        removals=standing.removals,
        unnamed=standing.unnamed,
        prune=prune,
    )  # fmt: skip

    def freed(name: str) -> Plan:
        return plan(host, intent, where=where, source=source, prune=prune, replan=(name,))

    better = () if replan or place else tuple(_better(context.resources, decided, freed))
    return changed(decided, findings=(*decided.findings, *better))


def _better(resources: Resources, decided: Plan, freed: Callable[[str], Plan]) -> Iterator[PlanFinding]:
    """Yield each guest that stays although it would get a better place. `freed`: the plan in which it need not stay."""
    for guest in decided.guests:
        homes = {str(device.host_node) for device in guest.devices if device.host_node is not None}
        beside = len(homes) == 1 and {cell.host_nodes for cell in guest.cells} == homes
        if guest.change != "keep" or beside or not homes:
            continue
        other = freed(guest.name)
        places = [
            objective(resources, planned_guest)
            for planned_guest in (*(g for g in other.guests if g.name == guest.name), guest)
        ]
        if len(other.unplaced) <= len(decided.unplaced) and places[0] < places[-1]:
            text = f"it could be nearer to its devices: plan again with --replan {guest.name}"
            yield PlanFinding(level="info", text=text, where=f"guest {guest.name}")


def _beside_fixed(ground: PlanningContext, standing: StandingIntent, replan: Collection[str]) -> PlanningContext:
    """Return what the guests that are placed anew may use, and what each of them has had."""
    entries = [entry_of(standing, guest) for guest in standing.fixed]
    if entries:
        beside = changed(standing.bare, guests=(*(standing.bare.guests or ()), *entries))
        ground = read_field(beside, ground.reserve, ground.boot_pages)
    for name, guest in standing.moving.items():
        if name in standing.residents:
            ground = take_entry(ground, beyond(standing.bare, standing.residents[name], guest.places, run=False))
    own = {name: guest.places for name, guest in standing.moving.items() if name not in replan}
    return replace(ground, own=own) if own else ground


def _with_given(context: PlanningContext, intent: Intent, standing: StandingIntent) -> PlanningContext:
    """Return the context with the devices that guests have by their disks, and the functions allotted to networks."""
    given = {
        address: f"{guest.name}, by {disk}"
        for guest in intent.present
        for disk in guest.disk_paths.values()
        for address in context.catalogue.index.functions_under(disk) or ()
    }
    catalogue = replace(context.catalogue, users={**given, **context.catalogue.users})
    taken = {*catalogue.holders, *catalogue.users, *catalogue.in_use, *catalogue.quarantined}
    stay = {guest.name: guest.places for guest in standing.fixed}
    functions = allotted(context.host, intent, {**context.own, **stay}, taken)
    return replace(context, catalogue=catalogue, functions=functions)


def _actions(
    host: Host,
    standing: StandingIntent,
    ground: PlanningContext,
    context: PlanningContext,
    guests: tuple[PlannedGuest, ...],
) -> tuple[tuple[Action, ...], list[PlanFinding]]:
    """Return the actions of a plan for all guests, and the findings about those that are left to do."""
    bare, intent = standing.bare, standing.intent
    force = host.in_force
    if force is None or not (force.settings or force.guests):
        found, of_actions = plan_actions(bare, intent, ground.resources, ground.memory, context.catalogue, guests)
        return found, list(of_actions)
    desired, findings = plan_actions(
        bare, intent, ground.resources, ground.memory, context.catalogue, guests, every=True
    )
    memory, catalogue = read_memory(host, intent.reserve), read_catalogue(host)
    live, _ = plan_actions(host, intent, ground.resources, memory, catalogue, guests, every=True)
    actions = rebase(host, standing, desired, values_of(live), guests)
    done = {action.target for action in desired} - {action.target for action in actions}
    return actions, [finding for finding in findings if finding.where not in done]


def _place(
    context: PlanningContext, intent: Intent, wants: Sequence[GuestRequest], place: Place
) -> tuple[list[PlannedGuest], list[Unplaced], list[PlanFinding]]:
    """Return the guests that are placed, with the settings inside them, those that are not, and findings about both."""
    arch = context.host.arch
    if arch is not None and arch not in X86_64:
        why = (f"this host is {arch}: guests are planned on x86-64 only",)
        return [], [Unplaced(guest=want.guest.name, why=why) for want in wants], []
    outcomes, of_search = place(context, wants) if wants else ((), ())
    placed: list[PlannedGuest] = []
    unplaced: list[Unplaced] = []
    findings: list[PlanFinding] = []
    for want, result in zip(wants, outcomes, strict=True):
        if isinstance(result, Unplaced):
            unplaced.append(result)
            continue
        settings, seed = guest_settings(intent, want.guest), seed_path(want.guest)
        placed.append(changed(result.guest, guest_settings=settings, seed=seed))
        findings += result.findings
    of_host = (*unused_nodes(context, placed), *crowded_cores(context, placed))
    return placed, unplaced, [*findings, *of_search, *of_host]
