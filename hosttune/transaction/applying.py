"""`apply`: make the machine match a plan. Everything is read and checked before the first write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from hosttune.discovery.health import read_log
from hosttune.errors import BadInput, Declined
from hosttune.inventory.bare import runs
from hosttune.journal import Record, Store, Transaction
from hosttune.journal.force import ADOPTED, GUEST, StandingSetting, cut, left_by, newest_plan
from hosttune.journal.gpus import keep_gpus
from hosttune.journal.records import TAKING_AWAY
from hosttune.knobs.knob import make_action
from hosttune.knobs.registry import given_up
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model.clock import now_text
from hosttune.model.evidence import LOOKED, Evidence
from hosttune.model.host import Host
from hosttune.model.plan import Action, Plan
from hosttune.model.result import Entry, Result
from hosttune.model.sysfs import PCI_DEVICES
from hosttune.model.values import freeze
from hosttune.rules.checks import checks, judge
from hosttune.rules.checks.looks import looks_to_keep
from hosttune.settings.drivers import UDEV_RULES, cards
from hosttune.settings.dropin import DropIn, own_state, ruled
from hosttune.settings.hook import LibvirtHook
from hosttune.settings.kernelargs import KernelArguments
from hosttune.settings.setting import (
    AFTER_START_STAGE,
    BOOT,
    OF_GUESTS,
    START_STAGE,
    MadeByAnother,
    Remediable,
    Setting,
    TakesDevice,
)
from hosttune.transaction.adopting import adoption_steps
from hosttune.transaction.applied import NO, PERSON, SUCCESS, drifted_records, reboot_required, undone_entries
from hosttune.transaction.engine import StepResults, carry_out
from hosttune.transaction.guards import (
    WAIT_SECONDS,
    Person,
    check_identities,
    check_machine,
    check_newest,
    check_quarantine,
    manager_lines,
    refuse_between_tenants,
    refuse_busy,
    refuse_removal,
)
from hosttune.transaction.guests import (
    Starting,
    apart,
    guest_actions,
    guest_verdicts,
    kept_steps,
    refuse_images,
    refuse_variables,
    removal_steps,
    running_notes,
)
from hosttune.transaction.persistence import bound, persistence
from hosttune.transaction.plancheck import check_places, check_plan
from hosttune.transaction.site import Site, described, facts_of, log, next_number, refuse_open, writable_store
from hosttune.transaction.steps import (
    ABSENT,
    PENDING,
    TODO,
    UNREADABLE,
    Prepared,
    SettingStep,
    back_step,
    check_there,
    covered,
    entries,
    entry,
    held_by,
    in_order,
    prepare,
    setting_of_record,
    steps_of,
    with_origin,
    with_verdict,
)
from hosttune.transaction.writing import Say, interruptible


class ApplyOptions(msgspec.Struct, frozen=True):
    """How to apply. `disrupt`: GPUs and guests that may be disturbed. `guests`: define guests.

    `start`: also start them. `person`: asks a person who is there to do a step; None: nobody is there.
    """

    guests: bool = True
    start: bool = False
    disrupt: Collection[str] = msgspec.field(default=frozenset())
    person: Person | None = None


class WantedSteps(msgspec.Struct, frozen=True):
    """The steps of a plan: `steps` for its actions, `guests` for its guests.

    `waiting`: what only a present run of a guest holds, and modes of GPUs that go back once --disrupt names the GPU.
    """

    plan: Plan
    steps: tuple[SettingStep, ...]
    guests: tuple[SettingStep, ...]
    waiting: tuple[SettingStep, ...] = ()


_VERBS = {"apply": "apply", TAKING_AWAY: "revert"}  # of a transaction, and of the command that made it
_RESETS = "it goes back with a reset of the GPU: hosttune apply --disrupt {}"
Confirm = Callable[[Sequence[Prepared]], bool]
Discover = Callable[[], Host]


def apply(
    site: Site, plan: Plan, options: ApplyOptions, discover: Discover, confirm: Confirm, say: Say, verb: str = "apply"
) -> tuple[Result, int]:
    """Make the machine match the plan; on a failure, roll back. Return the result and the exit code.

    Exit code 0: the machine matches the plan; any deviation in the result is one that the guests do not need. 1: a step
    failed and everything was rolled back, or a setting that the guests do not need cannot be read. 4: something could
    not be rolled back. Raises Refused and BadInput before anything is written, Declined when `confirm` returns false.
    """
    store = writable_store(site)
    wanted = wanted_of(plan, options)  # check the plan itself before the machine is read
    with store.locked():
        transactions = site.transactions()
        refuse_open(transactions)
        site.refuse_lost(transactions)
        host = discover()
        check_machine(plan, host)
        check_identities(plan, host)
        check_quarantine(plan, host, store)
        check_places(plan, host)
        check_newest(plan, site, transactions)
        prepared = look(site, wanted, host, transactions)
        check_there(prepared)
        todo = due(prepared)
        if lacking := lacking_steps(prepared):
            notes = (f"nothing was changed: {change.step.name} is needed" for change in lacking)
            return _unchanged(site, transactions, verb, lacking, *notes), NO
        if not todo:
            done = _unchanged(site, transactions, verb, prepared)
            pending = _pending_guests(host, plan, prepared)
            return msgspec.structs.replace(done, pending=pending), _code(StepResults({}), prepared)
        removed = [change.step.origin for change in todo if change.step.origin is not None]
        refuse_between_tenants(site.system, store, removed)
        refuse_removal(site, removed)
        for line in manager_lines(site.system, host, todo):
            if options.person is not None:  # what is not so then is refused
                options.person(line, WAIT_SECONDS)
                site.system.forget()
        refuse_busy(site.system, host, todo, options.disrupt)
        if not confirm(todo):
            raise Declined("not applied: answered no", where="prompt", hint="nothing was changed")
        with interruptible():
            starting = Starting(site.system, plan, discover, options.person)
            return _carried(site, store, transactions, host, starting, prepared, todo, say, verb)


def look(site: Site, wanted: WantedSteps, host: Host, transactions: Sequence[Transaction]) -> tuple[Prepared, ...]:
    """Return every step of a plan, and of the files that make it persistent, with its setting's present value.

    Raises BadInput, and Refused for an existing guest whose definition must not be changed, a way back that is not the
    journal's, and UEFI variables of another guest.
    """
    rows = site.standings(transactions)
    known = [standing_setting.record for standing_setting in rows.in_force]
    removed = removal_steps(wanted.plan, known)
    running = {guest.name for guest in host.guests or () if runs(guest)}
    newest = newest_plan(transactions, site.plan_of) if wanted.waiting else None
    over = () if newest is None or newest[1] != wanted.plan else site.waiting(transactions)
    ended = {action.id for action, held in over if not held}  # the guest may run anew
    waits = [
        step
        for step in wanted.waiting
        if not ended.issuperset(action.id for action in step.actions)
        and (host.guests is None or not step.holders or running.intersection(step.holders))
    ]
    now = [step for step in wanted.waiting if step not in waits]
    of_runs = {step.setting for step in now}
    now += (step for step in wanted.steps if step.setting not in of_runs)
    sets = [step for step in now if not step.back]
    # The plan's order: the steps of `wanted` are in that of execution, and are put in it again below.
    origins = (with_origin(step, known) for step in reversed(now) if step.back)
    backs = [*removed, *(step for step in origins if step is not None)]
    parts = {
        (rec.kind, name if rec.kind == KernelArguments.kind else rec.target): (rec, name)
        for rec in known
        for name in setting_of_record(rec).parts(freeze(rec.new))
    }
    for key in given_up(wanted.plan.intent, parts):
        record, name = parts[key]
        setting = setting_of_record(record)
        record = cut(record, setting, [name]) if record.kind == KernelArguments.kind else record
        backs.append(back_step(record, "settings: keep", gives_up=True))
    backs += kept_steps(wanted.plan, known)
    left = tuple(left_by(rows.in_force, [step.setting for step in backs], setting_of_record))
    files_due = lasting_actions(site, sets, [standing_setting.record for standing_setting in left])
    lasting = steps_of((*files_due, *_drifted_unseen(site, left, [*sets, *backs])))
    files = {step.setting.target for step in lasting}
    backs += [
        back_step(standing_setting.record)
        for standing_setting in left
        if standing_setting.record.kind == DropIn.kind and standing_setting.record.target not in files
    ]
    age = {(record.kind, record.target): number for number, record in enumerate(known)}
    backs.sort(key=lambda step: age.get((step.setting.kind, step.setting.target), 0))  # oldest write first, as planned
    adopted = adoption_steps(site.system, wanted.plan, host, {(record.kind, record.target): record for record in known})
    steps = apart(site.system, in_order((*sets, *lasting, *wanted.guests, *adopted, *backs)))
    told = (*known, *(standing_setting.record for standing_setting in rows.dropped))
    waiting = (
        with_verdict(
            change,
            PENDING,
            held_by(change.step.holders) if change.step.holders else _RESETS.format(change.step.setting.target),
        )
        for change in prepare(site.system, waits, told)
    )
    prepared = guest_verdicts(site.system, covered(prepare(site.system, steps, told)), wanted.plan, host)
    refuse_images(site.system, prepared)
    refuse_variables(site.system, prepared, host)
    return (*prepared, *waiting)


def due(prepared: Sequence[Prepared]) -> tuple[Prepared, ...]:
    """Return the steps that have something to write, and those that wait for one of them.

    These follow the start of a guest, or are settings of a device that this transaction takes back from its guest, or
    makes.
    """
    todo = [change for change in prepared if change.verdict == TODO]
    late = {AFTER_START_STAGE} if any(change.step.setting.stage == START_STAGE for change in todo) else set()
    freed = freed_by(todo)
    set_now = {(change.step.setting.kind, change.step.setting.target) for change in todo if not change.step.back}
    return tuple(
        change
        for change in prepared
        if change.verdict == TODO
        or (change.verdict == PENDING and (change.step.setting.stage in late or change.step.setting.target in freed))
        or (isinstance(change.step.setting, MadeByAnother) and change.step.setting.made_by in set_now)
    )


def freed_by(todo: Iterable[Prepared]) -> Collection[str]:
    """Return the devices that these steps take back from guests: what their drivers can set is there after that."""
    return {change.step.setting.target for change in todo if change.step.back and _hides_device(change.step.setting)}


def _hides_device(setting: Setting) -> bool:
    return isinstance(setting, TakesDevice) and setting.hides_device


def lacking_steps(prepared: Sequence[Prepared]) -> tuple[Prepared, ...]:
    """Return the needed steps whose setting this host lacks or cannot read. Found before the first write."""
    return tuple(change for change in prepared if change.step.needed and change.verdict in (ABSENT, UNREADABLE))


def _unchanged(
    site: Site, transactions: Iterable[Transaction], verb: str, prepared: Sequence[Prepared], *notes: str
) -> Result:
    rows = tuple(row for step in prepared if not is_inapplicable(step) for row in entry(step))
    waits = waits_for_boot(prepared) or reboot_required(site, transactions)
    told = (*inapplicable_notes(prepared), *notes)
    return Result(host=site.hostname, verb=_VERBS[verb], entries=rows, reboot_required=waits, notes=told)


def _pending_guests(host: Host, plan: Plan, prepared: Sequence[Prepared]) -> tuple[str, ...]:
    """Return the guests that run otherwise than they are now defined, or on what goes back once they have stopped."""
    edited = {
        change.step.setting.target
        for change in prepared
        if change.verdict == TODO and change.step.setting.kind in (GUEST, ADOPTED)
    }
    edited |= {name for change in prepared if change.verdict == PENDING for name in change.step.holders}
    planned = {guest.name for guest in plan.guests}
    running = (guest for guest in host.guests or () if runs(guest))
    return tuple(
        running_guest.name
        for running_guest in running
        if running_guest.name in edited or (running_guest.name in planned and running_guest.next_start)
    )


def is_inapplicable(change: Prepared) -> bool:
    """Return whether the step's setting does not exist on this host and no guest needs it.

    Such a step has no entry in the result, only a note.
    """
    return change.verdict == ABSENT and not change.step.needed


def inapplicable_notes(prepared: Sequence[Prepared]) -> Iterable[str]:
    """Yield one line that names what this host does not have, if there is any."""
    names = [change.step.name for change in prepared if is_inapplicable(change)]
    if names:
        yield f"this host has no {', no '.join(names)}: nothing was written for that"


def waits_for_boot(prepared: Sequence[Prepared]) -> bool:
    """Return whether something is staged for the next boot.

    A step that waits for something else (for example, for a boot loader that can be configured) needs no reboot.
    """
    return any(
        change.verdict == PENDING
        and change.step.setting.scope == BOOT
        and change.step.setting.agrees(change.live, change.step.want)
        for change in prepared
    )


def _carried(
    site: Site,
    store: Store,
    transactions: tuple[Transaction, ...],
    host: Host,
    starting: Starting,
    prepared: Sequence[Prepared],
    todo: Sequence[Prepared],
    say: Say,
    verb: str,
) -> tuple[Result, int]:
    remember_gpus(site, store, starting.plan, host, todo)
    number = next_number(transactions)
    store.keep_plan(number, starting.plan.to_json())
    pending = _pending_guests(host, starting.plan, prepared)
    facts = facts_of(site, verb, source=starting.plan.source, digest=host.digest, runs=site.runs(pending) or None)
    starts = [prepared.step.setting.target for prepared in todo if prepared.step.setting.stage in OF_GUESTS]
    site.keep_at_start(transactions, without=starts)
    journal = store.begin(number, **facts)
    try:
        carried = carry_out(site.system, journal, todo, say, starting.look_again)
    finally:
        journal.close()
    transactions = site.transactions()
    transaction = next(transaction for transaction in transactions if transaction.header.number == number)
    if carried.succeeded:
        site.keep_holders(transactions)
    site.keep_at_start(transactions)
    rows = _entries(site, prepared, todo, carried, transaction)
    code = _code(carried, prepared)
    result = Result(
        host=site.hostname,
        verb=_VERBS[verb],
        changed=code == PERSON or (carried.succeeded and any(map(_changed, transaction.records))),
        reboot_required=waits_for_boot(prepared) or _staged(todo, carried) or reboot_required(site, transactions),
        entries=rows,
        open_transaction=described(transaction) if transaction.is_open else None,
        pending=pending if carried.succeeded else (),
        notes=(
            *inapplicable_notes(prepared),
            *_notes(carried, todo),
            *(f"{change.step.name}: {change.why}" for change in todo if change.step.whole is not None and change.why),
            *_proofs(site, starting.plan, todo, carried),
            *_not_handed_over(site.system, host, starting.plan, todo, carried),
        ),
    )
    log(site, result, code)
    return result, code


def _changed(record: Record) -> bool:
    """Return whether a step that was carried out has changed its setting. An ignored write has not."""
    return bool(record.after != record.old)


def _code(carried: StepResults, prepared: Sequence[Prepared]) -> int:
    if carried.succeeded:
        unknown = any(change.verdict == UNREADABLE and not change.step.gives_up for change in prepared)
        return NO if unknown else SUCCESS
    outcomes = {made.outcome for made in (carried.undone or {}).values()}
    return PERSON if outcomes & {"failed", "stuck"} else NO


def _notes(carried: StepResults, todo: Sequence[Prepared]) -> tuple[str, ...]:
    notes: list[str] = []
    if carried.failed is not None:
        prepared, made = todo[carried.failed - 1], carried.made[carried.failed]
        notes.append(f"{prepared.step.name} ended the transaction: {made.outcome}{f', {made.why}' if made.why else ''}")
        setting = prepared.step.setting
        if made.outcome in ("clamped", "ignored") and isinstance(setting, Remediable) and setting.remedy:
            notes.append(setting.remedy)
    if any(made.outcome == "stuck" for made in carried.made.values()):
        notes.append("what hung may still take effect when the kernel finishes it: hosttune status shows it then")
    if carried.interrupted:
        notes.append("interrupted: what had been done was rolled back")
    if carried.unjournalled:
        notes.append("the journal could not be written to its end: free space, then run hosttune recover")
    return tuple(notes)


def _proofs(site: Site, plan: Plan, todo: Sequence[Prepared], carried: StepResults) -> Iterable[str]:
    """Compare the started guests with their plan, from /proc. Yield each difference, or one line that there is none."""
    if not carried.succeeded:
        return ()
    started = [
        prepared.step.setting.target
        for number, prepared in enumerate(todo, 1)
        if prepared.step.setting.kind == "guest-state" and carried.made[number].outcome == "done"
    ]
    return running_notes(site.system, plan, started)


def _not_handed_over(
    system: System, host: Host, plan: Plan, todo: Sequence[Prepared], carried: StepResults
) -> Iterable[str]:
    """Yield which devices left a guest, for the host or for another guest, with the command that makes them fit."""
    back = [prepared.step.setting for prepared in todo if prepared.step.back]
    defined = {prepared.step.setting.target for prepared in todo if prepared.step.setting.kind == GUEST}
    has = {(guest.name, device.address) for guest in plan.guests for device in guest.devices}
    edited = [guest for guest in host.guests or () if guest.name in defined and not runs(guest)]
    left = [address for guest in edited for address in guest.devices if (guest.name, address) not in has]
    left += [setting.target for setting in back if _hides_device(setting)]
    given = [address for address in dict.fromkeys(left) if system.exists(f"{PCI_DEVICES}/{address}")]
    if given and carried.succeeded:
        command = " ".join(("hosttune handover", *(f"--device {address}" for address in given)))
        yield f"not handed over: {', '.join(given)} (each as its last guest left it); {command}"


def _staged(todo: Sequence[Prepared], carried: StepResults) -> bool:
    """Return whether this transaction has staged something for the next boot."""
    return carried.succeeded and any(
        prepared.step.setting.scope == BOOT
        and not prepared.step.gives_up
        and carried.made[number].outcome in ("done", "clamped")
        for number, prepared in enumerate(todo, 1)
    )


def _entries(
    site: Site, prepared: Sequence[Prepared], todo: Sequence[Prepared], carried: StepResults, transaction: Transaction
) -> tuple[Entry, ...]:
    numbers = {id(change.step): number for number, change in enumerate(todo, 1)}
    records = {record.step: record for record in transaction.records}
    rows: list[Entry] = []
    for change in prepared:
        number = numbers.get(id(change.step))
        if is_inapplicable(change):
            continue
        if number is None:
            rows += entry(_waiting_now(site, change) if carried.succeeded else change)
        elif number in carried.made:
            rows += _entry_of_made(site, change, number, carried, records.get(number))
    return tuple(rows)


def _waiting_now(site: Site, change: Prepared) -> Prepared:
    """Return a waiting step with the reason why it still waits, now that the other steps are carried out."""
    if change.verdict != PENDING or change.step.setting.scope == BOOT:
        return change
    return with_verdict(change, PENDING, change.step.setting.waits_for(site.system) or change.why or "")


def _entry_of_made(
    site: Site, change: Prepared, number: int, carried: StepResults, record: Record | None
) -> Sequence[Entry]:
    made = carried.made[number]
    undone = (carried.undone or {}).get(number)
    if undone is not None and undone.outcome == "already":  # in an apply, `already` means "as wanted"
        undone = replace(undone, outcome="reverted")
    if undone is not None and record is not None and number != carried.failed:
        return tuple(undone_entries(record, undone))
    outcome, why = made.outcome, made.why
    if undone is not None:
        why = f"{f'{why}; ' if why else ''}rolled back: {undone.outcome}"
    if outcome == "done" and change.step.setting.scope == BOOT:
        works = change.step.setting.effective(site.system)
        if not change.step.setting.agrees(works, change.step.want):
            outcome, why = "pending", "staged: takes effect with the next boot"
    return entries(change.step, outcome, change.live, made.after, why)


# --- what follows from a plan --------------------------------------------------------------------------------


def wanted_of(plan: Plan, options: ApplyOptions) -> WantedSteps:
    """Return the steps of a plan. Raises BadInput, and Incomplete for a plan with unplaced guests."""
    check_plan(plan)
    now = steps_of(action for action in plan.actions if action.when != "after-stop")
    modes = [step for step in now if step.back and step.setting.disruptive]
    stay = tuple(step for step in modes if step.setting.target not in options.disrupt)
    steps = tuple(step for step in now if step not in stay)
    waiting = (*stay, *steps_of(action for action in plan.actions if action.when == "after-stop"))
    if not options.guests and plan.removals:
        names = ", ".join(removal.name for removal in plan.removals)
        hint = "apply it without --no-guests"
        raise BadInput(f"--no-guests with a plan that takes away {names}", where="plan: removals", hint=hint)
    if not options.guests:
        others = tuple(step for step in steps if step.setting.stage not in OF_GUESTS)
        return WantedSteps(msgspec.structs.replace(plan, adoptions=()), others, (), waiting)
    return WantedSteps(plan, steps, steps_of(guest_actions(plan, start=options.start)), waiting)


def _drifted_unseen(site: Site, left: Iterable[StandingSetting], steps: Iterable[SettingStep]) -> Iterator[Action]:
    """Yield the actions that set again what has drifted and no plan can see: the host document does not have it."""
    planned = {action.id for step in steps for action in step.actions}
    unseen = [row for row in left if row.record.kind in (LibvirtHook.kind, KernelArguments.kind)]
    for record in drifted_records(site, unseen):
        for name, want in setting_of_record(record).parts(freeze(record.new)).items():
            action = make_action(record.kind, name or record.target, None, want, "drifted", needed=record.needed)
            if action.id not in planned:
                yield action


def lasting_actions(site: Site, sets: Iterable[SettingStep], left: Iterable[Record]) -> tuple[Action, ...]:
    """Return the actions for the files that make a plan persistent. Raises BadInput.

    These files also hold what earlier applies need (`left`). They are written even for a step that has to wait now.
    """
    wanted_settings = [(record.kind, record.target, record.new) for record in left]
    wanted_settings += [(action.kind, action.target, action.want) for step in sets for action in step.actions]
    rules = "".join(record.after or "" for record in left if record.target == UDEV_RULES)
    ids = {**ruled(rules), **cards(site.system, bound(wanted_settings))}  # a card that is gone may come back
    return persistence(wanted_settings, None if site.system.captured else own_state(), ids)


def remember_gpus(site: Site, store: Store, plan: Plan, host: Host, todo: Sequence[Prepared]) -> None:
    """Keep who the GPUs are that are about to leave their driver, and how their health is: then neither can be asked.

    Raises Refused.
    """
    settings = [prepared.step.setting for prepared in todo]
    leaving = [setting.target for setting in settings if _hides_device(setting)]
    if not leaving:
        return
    known = Evidence(
        host=host, health=read_log(Reader(site.system)), plans=(plan,), complete=site.system.complete, looks={}
    )
    results = judge(known, [check for check in checks() if check.id in LOOKED])
    looks = looks_to_keep(known, results, now_text())
    keep_gpus(store.folder, host, {address: look for address, look in looks.items() if address in leaving})
