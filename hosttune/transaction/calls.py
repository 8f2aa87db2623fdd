"""One function for each command on transactions, used by the command line and by the package's functions.

A function here opens nothing and prints nothing. It gets the place to work in (`open_site`) and returns one Result,
which holds the command's exit code.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from hosttune.errors import BadInput, Declined, Refused
from hosttune.inventory.bare import runs
from hosttune.journal.force import counts, newest_plan
from hosttune.journal.records import TAKING_AWAY
from hosttune.journal.state import load, plan_of_sudo_user
from hosttune.model.hints import did_you_mean
from hosttune.model.host import Host
from hosttune.model.intent import GuestIntent, Intent
from hosttune.model.plan import Plan, Removal, Source
from hosttune.model.result import Result
from hosttune.transaction import applied, applying, booting, dryrun, guards, undoing
from hosttune.transaction.applying import ApplyOptions, Confirm
from hosttune.transaction.site import Site, refuse_open, saved_plan_path, writable_store
from hosttune.transaction.steps import Prepared
from hosttune.transaction.writing import Say

Here = tuple[Site, Callable[[], Host]]  # where to work, and how to discover the host there


class PlanRequest(NamedTuple):
    """An intent to plan anew. `prune`: what came from files and is not in it goes."""

    intent: Intent
    source: Source | None = None
    prune: bool = False


Asked = Callable[[], Plan | Intent | PlanRequest | None]


def apply(
    here: Here,
    asked: Asked,
    options: ApplyOptions,
    *,
    confirm: Confirm,
    say: Say,
    dry_run: bool = False,
) -> Result:
    """Make the machine match a plan, or rehearse that.

    `asked` returns the plan, an intent, which is planned anew, or None for the saved plan.
    It is called only after the machine is known to be one that can be changed. Raises BadInput and Refused before
    anything is written, Declined if `confirm` returns false.
    """

    site, discover = here
    if not dry_run:
        writable_store(site)
    asked_plan = asked()
    if isinstance(asked_plan, Intent):
        asked_plan = PlanRequest(asked_plan)
    if isinstance(asked_plan, PlanRequest):
        from hosttune.planning import plan as decide  # a saved plan, `status` and `revert` do not need the planner

        if not dry_run:
            transactions = site.transactions()
            refuse_open(transactions)  # what it has done is not in force yet
            site.refuse_lost(transactions)
        where = (asked_plan.source and asked_plan.source.name) or "intent"
        asked_plan = decide(
            discover(), asked_plan.intent, where=where, source=asked_plan.source, prune=asked_plan.prune
        )
    wanted = asked_plan if asked_plan is not None else _saved_plan(site)

    def known() -> Host:
        host = discover()
        guards.check_names(options.disrupt, host, (guest.name for guest in wanted.guests))
        return host

    if dry_run:
        result, code = dryrun.rehearse_apply(site, wanted, options, known)
    else:
        result, code = applying.apply(site, wanted, options, known, confirm, say)
    left = (
        f"guest {left_out.guest}: {'; '.join((*left_out.why, *left_out.relaxation))}" for left_out in wanted.unplaced
    )
    return _with_code((msgspec.structs.replace(result, notes=(*result.notes, *left)), code or wanted.unplaced_code))


def set_again(here: Here, say: Say) -> Result:
    """Set again what a reboot has undone. Raises Refused."""

    return _with_code(booting.reapply(here[0], say))


def status(here: Here) -> Result:
    """Return what is applied, what has drifted, and what waits for a reboot."""
    return _with_code(applied.status(here[0]))


def revert(
    here: Here,
    say: Say,
    *,
    force: bool = False,
    dry_run: bool = False,
    confirm: undoing.Confirm = lambda lines: True,
) -> Result:
    """Put all that is in force back to its original, or rehearse that. Raises Refused, Declined if not confirmed."""
    return _with_code(undoing.revert(here[0], say, force=force, dry_run=dry_run, confirm=confirm))


def take_away(here: Here, names: Sequence[str], options: ApplyOptions, *, confirm: Confirm, say: Say,
              dry_run: bool = False) -> Result:  # fmt: skip
    """Take guests away, with what they alone needed; all else that is in force stays. An adopted one: as it was found.

    Raises BadInput for a guest that is not in force here, Refused and Declined as `apply`.
    """

    site, discover = here
    if not dry_run:
        writable_store(site)
    host = discover()
    site.refuse_lost(site.transactions())
    if host.in_force is None:
        hint = "restore the state directory from a backup, or read it as root"
        raise Refused("what is in force here is unknown", where=site.system.origin, hint=hint)
    known = {guest.name: guest for guest in host.in_force.guests}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, f"in force: {', '.join(known) or 'no guest'}")
            raise BadInput(f"guest {name!r} is not in force here", where="--guest", hint=hint)
    adopted = [known[name] for name in names if known[name].adopted is not None]
    for guest in host.guests or ():
        if guest.name in {guest_in_force.name for guest_in_force in adopted} and runs(guest):
            what = f"guest {guest.name!r} runs, on what would go back"
            raise Refused(what, where="--guest", hint=f"shut it down first: virsh shutdown {guest.name}")
    from hosttune.planning import plan as decide

    # Without them in force, what they alone needed goes back; as guests of the host they keep their places.
    left = tuple(guest for guest in host.in_force.guests if guest not in adopted)
    beside = msgspec.structs.replace(host, in_force=msgspec.structs.replace(host.in_force, guests=left))
    absent = tuple(GuestIntent(name=name, state="absent") for name in names if known[name] not in adopted)
    profile = host.in_force.profile or "guest"
    plan = decide(beside, Intent(version=1, profile=profile, guests=absent), where="--guest")
    removals = (*plan.removals, *(Removal(name=guest.name, uuid=guest.uuid) for guest in adopted))
    if kept := [left_out for left_out in plan.unplaced if left_out.guest in names]:
        why = "; ".join(f"guest {left_out.guest}: {left_out.why[0]}" for left_out in kept)
        raise Refused(f"cannot be taken away: {why}", where="--guest", hint="; ".join(kept[0].relaxation))
    plan = msgspec.structs.replace(plan, unplaced=(), removals=removals)  # a guest without a place is left as it is
    if dry_run:
        return _with_code(dryrun.rehearse_apply(site, plan, options, discover, "revert"))
    return _with_code(applying.apply(site, plan, options, discover, confirm, say, verb=TAKING_AWAY))


def forget_guest(here: Here, name: str, *, confirm: undoing.Confirm) -> Result:
    """Delete what was kept of a guest that was taken away: UEFI variables and TPM state.

    Raises BadInput if nothing is kept, Refused, Declined if `confirm`, which gets the paths, returns false.
    """
    from hosttune.hypervisor.removed import forget, kept_of

    site = here[0]
    with writable_store(site).locked():
        if not confirm(kept_of(site.system, name)):
            raise Declined("not deleted: answered no", where="prompt", hint="nothing was changed")
        paths = forget(site.system, name)
    return Result(host=site.hostname, verb="forget-guest", changed=True, notes=tuple(f"deleted: {p}" for p in paths),
                  exit_code=0)  # fmt: skip


def recover(here: Here, say: Say, *, force: bool = False, disrupt: Collection[str] = ()) -> Result:
    """Roll back an interrupted transaction. Raises Refused, BadInput for a name in `disrupt` that is no guest here."""
    if disrupt:
        writable_store(here[0])
        guards.check_names(disrupt, here[1]())
    return _with_code(undoing.recover(here[0], say, force=force, disrupt=frozenset(disrupt)))


def change_lines(todo: Sequence[Prepared]) -> tuple[str, ...]:
    """Return the lines that the prompt shows.

    They are each setting with its present and its wanted value, and the differences between guests' present and new
    definitions.
    """
    from hosttune.model.settingtext import value_lines
    from hosttune.transaction.guests import definition_change

    lines = value_lines((prepared.step.setting, prepared.live, prepared.step.want, "") for prepared in todo)
    return (*lines, *filter(None, map(definition_change, todo)))


def _with_code(outcome: tuple[Result, int]) -> Result:
    result, code = outcome
    return msgspec.structs.replace(result, exit_code=code)


# --- which plan ----------------------------------------------------------------------------------------------


def _saved_plan(site: Site) -> Plan:
    """Return the plan that `hosttune plan` saved here; if it was applied, or none was, the newest one that was applied.

    Raises BadInput, Refused.
    """
    path = saved_plan_path(site)
    saved = read_plan(path) if os.path.exists(path) else None
    known = site.transactions()
    newest = newest_plan(known, site.plan_of)
    plans = (site.plan_of(transaction) for transaction in known if counts(transaction))
    if newest is not None and (saved is None or any(plan and _decided(plan) == _decided(saved) for plan in plans)):
        return newest[1]
    if saved is None:
        hint = "make one: hosttune plan -f FILE; or apply an intent: hosttune apply --intent FILE"
        if not site.system.captured and (other := plan_of_sudo_user()) is not None:
            hint = f"the user who called sudo has saved one: hosttune apply {shlex.quote(other)}"
        raise BadInput("no plan is saved", where=path, hint=hint)
    return saved


def _decided(plan: Plan) -> Plan:
    """Return a plan without what only `hosttune plan` adds to it, and `apply --intent` does not."""
    return msgspec.structs.replace(plan, expected=(), findings=())


def read_plan(path: str) -> Plan:
    """Read a plan document. Raises BadInput."""
    return Plan.from_json(load(path, what="a plan (hosttune plan saves one)"), where=path)
