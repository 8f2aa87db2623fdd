"""`apply --dry-run`: what `apply` would write, without a write or a lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from hosttune.errors import Refused, Unreadable
from hosttune.model.host import Host
from hosttune.model.plan import Plan
from hosttune.model.result import OpenTransaction, Result
from hosttune.settings.setting import BOOT, GONE
from hosttune.transaction.applied import SUCCESS
from hosttune.transaction.applying import (
    ApplyOptions,
    Discover,
    due,
    freed_by,
    inapplicable_notes,
    is_inapplicable,
    lacking_steps,
    look,
    waits_for_boot,
    wanted_of,
)
from hosttune.transaction.guards import busy_lines, check_identities, check_machine, check_newest, check_quarantine
from hosttune.transaction.guests import definition_change
from hosttune.transaction.plancheck import check_places
from hosttune.transaction.rehearsal import rehearse
from hosttune.transaction.rollback import AT_ORIGINAL, COMES_BACK
from hosttune.transaction.site import Site, described, writable_store
from hosttune.transaction.steps import ALREADY, TODO, UNREADABLE, Prepared, check_there, entry, with_verdict

_NO_WRITE = {GONE: ALREADY, AT_ORIGINAL: ALREADY, COMES_BACK: TODO}  # why there is none -> the verdict


def rehearse_apply(site: Site, plan: Plan, options: ApplyOptions, discover: Discover) -> tuple[Result, int]:
    """Return what `apply` would write, without writing or locking; guests' files are shown by digest.

    The notes have what apply would refuse or fail at. Raises Refused for a stale plan.
    """
    wanted = wanted_of(plan, options)
    host = discover()
    check_identities(plan, host)
    check_quarantine(plan, host, site.store)
    check_places(plan, host)
    transactions = site.transactions()
    unfinished = next((described(transaction) for transaction in transactions if transaction.is_open), None)
    check_newest(plan, site, transactions)
    prepared = [change for change in look(site, wanted, host, transactions) if not change.step.gives_up]
    check_there(prepared)
    todo = due(prepared)
    freed = freed_by(todo)
    rehearsed = {id(change): _changes(site, change, freed) for change in todo}
    told = [_rehearsed(change, *rehearsed.get(id(change), ((), None))) for change in prepared]
    refused = [(change, why) for change in todo if (why := rehearsed[id(change)][1]) and change.verdict == TODO]
    users, uses = _uses(site, host, todo, options)
    result = Result(
        host=site.hostname,
        verb="apply",
        entries=tuple(row for change in told if not is_inapplicable(change) for row in entry(change)),
        reboot_required=any(change.step.setting.scope == BOOT for change in todo) or waits_for_boot(prepared),
        writes=tuple(line for change in todo for line in _lines(change, *rehearsed[id(change)])),
        differences=tuple(change for prepared in todo if (change := definition_change(prepared))),
        notes=(
            *inapplicable_notes(prepared),
            *_refusals(site, plan, host, unfinished),
            *uses,
            *(f"apply would fail: {lacking_step.step.name} is needed" for lacking_step in lacking_steps(prepared)),
            *(
                f"apply would fail: {change.step.name} {why}"
                for change, why in refused
                if not change.unrecorded and why not in _NO_WRITE and not any(line in why for line in users)
            ),
            "dry run: nothing was written",
        ),
    )
    return result, SUCCESS


def _changes(site: Site, change: Prepared, freed: Collection[str]) -> tuple[tuple[str, ...], str | None]:
    """Return every change that a step would make, and why there are no more of them (`rehearse`).

    What is put back is written only if it is not as it was. `freed`: devices whose drivers are put back before it.
    """
    setting = change.step.setting
    changes, why = rehearse(site.system, setting, change.step.written)
    known = not change.unrecorded and why != GONE
    if known and change.step.back and change.live == change.step.want:
        return (), AT_ORIGINAL
    hidden = change.live is None and not setting.none_is_value and (change.step.back or setting.target in freed)
    return ((), COMES_BACK) if known and why and hidden else (changes, why)


def _refusals(site: Site, plan: Plan, host: Host, unfinished: OpenTransaction | None) -> Iterable[str]:
    """Yield why apply would refuse the plan here. A capture is no machine: what a plan says of one is not compared."""
    if site.store is not None:
        try:
            writable_store(site)
            check_machine(plan, host)
            site.refuse_lost(site.transactions())
        except Refused as error:
            yield f"apply would be refused: {error.what} ({error.hint})"
    if unfinished is not None:
        yield f"apply would be refused: transaction {unfinished.number} was not finished (hosttune recover)"


def _uses(
    site: Site, host: Host, todo: Sequence[Prepared], options: ApplyOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what apply would refuse as in use or disruptive, line by line, and the notes that say so.

    A capture shows what was so when it was made.
    """
    word = "apply would be refused" if site.store is not None else "on the host itself apply may be refused"
    try:
        lines = busy_lines(site.system, host, todo, options.disrupt)
    except Unreadable as error:
        return (), (f"whether apply would be refused is unknown: {error.what}",)
    if not lines:
        return (), ()
    return lines, ("\n".join((f"{word}: in use, or disruptive ({len(lines)}):", *(f"  {line}" for line in lines))),)


def _rehearsed(change: Prepared, changes: Sequence[str], why: str | None) -> Prepared:
    """Return a step as a rehearsal reports it: a step that would write nothing is not `planned`, and has the reason.

    If the step's setting may just be missing from the capture, it stays `planned`; the reason is listed with the
    writes.
    """
    if why is None or changes or change.unrecorded or (change.verdict != TODO and why != COMES_BACK):
        return change
    return with_verdict(change, _NO_WRITE.get(why, UNREADABLE), why)


def _lines(change: Prepared, changes: Sequence[str], why: str | None) -> Iterable[str]:
    """Return the changes of one step, and, if there are no more, the reason."""
    yield from changes
    if why is not None:
        yield f"({change.step.name}: {'unknown here, its state is not recorded' if change.unrecorded else why})"
