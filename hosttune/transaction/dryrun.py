"""`apply --dry-run`: what `apply` would write, without a write or a lock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from hosttune.errors import Refused, Unreadable
from hosttune.journal import Record
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
from hosttune.transaction.guards import (
    busy_lines,
    check_identities,
    check_machine,
    check_newest,
    check_quarantine,
    refuse_between_tenants,
    refuse_removal,
)
from hosttune.transaction.guests import definition_change
from hosttune.transaction.plancheck import check_places
from hosttune.transaction.rehearsal import rehearse
from hosttune.transaction.rollback import AT_ORIGINAL, COMES_BACK
from hosttune.transaction.site import Site, described, writable_store
from hosttune.transaction.steps import ALREADY, TODO, UNREADABLE, Prepared, check_there, entry, with_verdict

_NO_WRITE = {GONE: ALREADY, AT_ORIGINAL: ALREADY, COMES_BACK: TODO}  # why there is none -> the verdict


def rehearse_apply(
    site: Site, plan: Plan, options: ApplyOptions, discover: Discover, verb: str = "apply"
) -> tuple[Result, int]:
    """Return what `verb` would write, without writing or locking; guests' files are shown by digest.

    The notes have what would be refused or fail. Raises Refused for a stale plan.
    """
    wanted = wanted_of(plan, options)
    host = discover()
    check_identities(plan, host)
    check_quarantine(plan, host, site.store)
    check_places(plan, host)
    transactions = site.transactions()
    unfinished = next((described(transaction) for transaction in transactions if transaction.is_open), None)
    check_newest(plan, site, transactions)
    prepared = look(site, wanted, host, transactions)
    check_there(prepared)
    todo = due(prepared)
    freed = freed_by(todo)
    undone = [(change.step.setting.kind, change.step.setting.target) for change in todo if change.step.back]
    rehearsed = {id(change): _changes(site, change, freed, undone) for change in todo}
    told = [_rehearsed(change, *rehearsed.get(id(change), ((), None))) for change in prepared]
    refused = [(change, why) for change in todo if (why := rehearsed[id(change)][1]) and change.verdict == TODO]
    removed = [change.step.origin for change in todo if change.step.origin is not None]
    users, uses = _uses(site, host, todo, options, verb)
    result = Result(
        host=site.hostname,
        verb=verb,
        entries=tuple(row for change in told if not is_inapplicable(change) for row in entry(change)),
        reboot_required=any(change.step.setting.scope == BOOT and not change.step.gives_up for change in todo)
        or waits_for_boot(prepared),
        writes=tuple(line for change in todo for line in _lines(change, *rehearsed[id(change)])),
        differences=tuple(change for prepared in todo if (change := definition_change(prepared))),
        notes=(
            *inapplicable_notes(prepared),
            *(f"{verb} would be refused: {why}" for why in _refusals(site, plan, host, unfinished, removed)),
            *uses,
            *(f"{verb} would fail: {lacking_step.step.name} is needed" for lacking_step in lacking_steps(prepared)),
            *(
                f"{verb} would fail: {change.step.name} {why}"
                for change, why in refused
                if not change.unrecorded and why not in _NO_WRITE and not any(line in why for line in users)
            ),
            "dry run: nothing was written",
        ),
    )
    return result, SUCCESS


def _changes(
    site: Site, change: Prepared, freed: Collection[str], undone: Collection[tuple[str, str]]
) -> tuple[tuple[str, ...], str | None]:
    """Return every change that a step would make, and why there are no more of them (`rehearse`).

    What is put back is written only if it is not as it was. `freed`: devices whose drivers are put back before it.
    `undone`: kind and target of the settings that are.
    """
    setting = change.step.setting
    if change.step.gives_up:
        return (), None
    changes, why = rehearse(site.system, setting, change.step.written, undone)
    known = not change.unrecorded and why != GONE
    if known and change.step.back and change.live == change.step.want:
        return (), AT_ORIGINAL
    hidden = change.live is None and not setting.none_is_value and (change.step.back or setting.target in freed)
    return ((), COMES_BACK) if known and why and hidden else (changes, why)


def _refusals(
    site: Site, plan: Plan, host: Host, unfinished: OpenTransaction | None, removed: Sequence[Record]
) -> Iterable[str]:
    """Yield why the plan would be refused here. A capture is no machine: what a plan says of one is not compared."""
    guards: tuple[Callable[[], object], ...] = (
        lambda: check_machine(plan, host),
        lambda: site.refuse_lost(site.transactions()),
        lambda: refuse_between_tenants(site.system, writable_store(site), removed),
        lambda: refuse_removal(site, removed),
    )
    for guard in guards if site.store is not None else ():
        try:
            guard()
        except Refused as error:
            yield f"{error.what} ({error.hint})"
    if unfinished is not None:
        yield f"transaction {unfinished.number} was not finished (hosttune recover)"


def _uses(
    site: Site, host: Host, todo: Sequence[Prepared], options: ApplyOptions, verb: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what would be refused as in use or disruptive, line by line, and the notes that say so.

    A capture shows what was so when it was made.
    """
    word = f"{verb} would be refused" if site.store is not None else f"on the host itself {verb} may be refused"
    try:
        lines = busy_lines(site.system, host, todo, options.disrupt)
    except Unreadable as error:
        return (), (f"whether {verb} would be refused is unknown: {error.what}",)
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
