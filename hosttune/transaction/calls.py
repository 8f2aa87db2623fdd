"""One function for each command on transactions, used by the command line and by the package's functions.

A function here opens nothing and prints nothing. It gets the place to work in (`open_site`) and returns one Result,
which holds the command's exit code.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from hosttune.errors import BadInput
from hosttune.journal.state import load, plan_of_sudo_user
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.model.result import Result
from hosttune.transaction import applied, guards, undoing
from hosttune.transaction.site import Site, open_site, saved_plan_path, writable_store
from hosttune.transaction.writing import Say

if TYPE_CHECKING:
    from hosttune.transaction.applying import Confirm, Options
    from hosttune.transaction.steps import Prepared

Here = tuple[Site, Callable[[], Host]]  # where to work, and how to discover the host there
Asked = Callable[[], Plan | Intent | None]


def apply(
    here: Here,
    asked: Asked,
    options: Options,
    *,
    confirm: Confirm,
    say: Say,
    dry_run: bool = False,
    where: str = "intent",
) -> Result:
    """Make the machine match a plan, or rehearse that.

    `asked` returns the plan, an intent (see `plan_of_intent`; `where` names its source) or None for the saved plan. It
    is called only after the machine is known to be one that can be changed. Raises BadInput and Refused before anything
    is written, Declined if `confirm` returns false.
    """
    from hosttune.transaction import applying, dryrun  # imported here because `status` does not need them

    site, discover = here
    if not dry_run:
        writable_store(site)
    found = asked()
    if isinstance(found, Intent):
        found = plan_of_intent(site, found, discover, where)
    wanted = found if found is not None else _saved_plan(site)

    def known() -> Host:
        host = discover()
        guards.check_names(options.disrupt, host, (guest.name for guest in wanted.guests))
        return host

    if dry_run:
        return _with_code(dryrun.rehearse_apply(site, wanted, options, known))
    return _with_code(applying.apply(site, wanted, options, known, confirm, say))


def set_again(here: Here, say: Say) -> Result:
    """Set again what a reboot has undone. Raises Refused."""
    from hosttune.transaction import booting

    return _with_code(booting.reapply(here[0], say))


def status(here: Here) -> Result:
    """Return what is applied, what has drifted, and what waits for a reboot.

    Raises Refused for an unreadable journal.
    """
    return _with_code(applied.status(here[0]))


def revert(
    here: Here,
    say: Say,
    *,
    force: bool = False,
    dry_run: bool = False,
    confirm: undoing.Confirm = lambda lines: True,
) -> Result:
    """Revert every finished transaction, newest first, or rehearse that. Raises Refused, Declined if not confirmed."""
    return _with_code(undoing.revert(here[0], say, force=force, dry_run=dry_run, confirm=confirm))


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
    from hosttune.model.settingtext import value_line
    from hosttune.transaction.guests import definition_change

    lines = (value_line(one.step.setting, one.live, one.step.want) for one in todo)
    return (*lines, *filter(None, map(definition_change, todo)))


def _with_code(outcome: tuple[Result, int]) -> Result:
    result, code = outcome
    return msgspec.structs.replace(result, exit_code=code)


# --- which plan ----------------------------------------------------------------------------------------------


def plan_of_intent(site: Site, intent: Intent, discover: Callable[[], Host], where: str = "intent") -> Plan:
    """Return the plan for an intent: the applied one that was made from it, else the saved one, else a new one.

    So a second apply of an intent has nothing to do, and the plan that the administrator has read is the plan that is
    applied. If the host has changed since then, that plan is stale and is refused. Raises BadInput, Refused.
    """
    found = applied.plan_in_force(site, intent)
    if found is None and site.store is not None and os.path.exists(saved_plan_path(site)):
        saved = _saved_plan(site)
        found = saved if saved.intent == intent else None
    if found is not None:
        return found
    from hosttune.planning import plan as decide

    return decide(discover(), intent, where=where)


def plan_in_place(root: str | None, host: Host, intent: Intent) -> Plan | None:
    """Return the applied plan that was made from this intent, if its guests are already defined here; else None.

    A new plan is not possible then: the guests' names are taken by the guests themselves. Raises BadInput, Refused.
    """
    if not {guest.name for guest in intent.guests} & {guest.name for guest in host.guests or ()}:
        return None
    found = applied.plan_in_force(open_site(root)[0], intent)
    return found if found is not None and found.host_digest == host.digest else None


def _saved_plan(site: Site) -> Plan:
    """Return the plan that `hosttune plan` saved here. Raises BadInput."""
    path = saved_plan_path(site)
    if not os.path.exists(path):
        hint = "make one: hosttune plan; or name a plan document"
        if not site.system.captured and (other := plan_of_sudo_user()) is not None:
            hint = f"the user who called sudo has saved one: hosttune apply {shlex.quote(other)}"
        raise BadInput("no plan is saved", where=path, hint=hint)
    return read_plan(path)


def read_plan(path: str) -> Plan:
    """Read a plan document. Raises BadInput."""
    return Plan.from_json(load(path, what="a plan (hosttune plan saves one)"), where=path)
