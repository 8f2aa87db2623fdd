"""One call for each thing that can be asked of a transaction; the command line and the package's functions make it.

Each opens nothing and prints nothing: it gets the place to work (`open_site`) and returns one Result, which holds the
exit code of the command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from hosttune.errors import BadInput
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Plan
from hosttune.model.result import Result
from hosttune.state import load
from hosttune.transaction import undoing
from hosttune.transaction.engine import Say
from hosttune.transaction.site import Site, must_write, open_site, saved_plan_path

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
    """Make the machine match a plan, or rehearse that. `asked` gives the plan, an intent (see `plan_of_intent`; `where`
    it came from) or None for the saved plan; it is called once the machine is known to be one that can be changed.

    Raises BadInput and Refused with nothing written, Declined where `confirm` says no.
    """
    from hosttune.transaction import applying  # as below: to say what is in force, none of it is imported

    site, discover = here
    if not dry_run:
        must_write(site)
    found = asked()
    if isinstance(found, Intent):
        found = plan_of_intent(site, found, discover, where)
    wanted = found if found is not None else _saved_plan(site)
    if dry_run:
        return _with_code(applying.rehearse_apply(site, wanted, options, discover))
    return _with_code(applying.apply(site, wanted, options, discover, confirm, say))


def set_again(here: Here, say: Say) -> Result:
    """Set again what a reboot has undone. Raises Refused."""
    from hosttune.transaction import booting

    return _with_code(booting.reapply(here[0], say))


def status(here: Here) -> Result:
    """What is applied, what has drifted from it, what waits for a reboot. Raises Refused for an unreadable journal."""
    return _with_code(undoing.status(here[0]))


def revert(here: Here, say: Say, *, force: bool = False) -> Result:
    """Take back every finished transaction, newest first. Raises Refused."""
    return _with_code(undoing.revert(here[0], say, force=force))


def recover(here: Here, say: Say, *, force: bool = False, disrupt: Collection[str] = ()) -> Result:
    """Take back what an interrupted transaction had done. Raises Refused."""
    return _with_code(undoing.recover(here[0], say, force=force, disrupt=frozenset(disrupt)))


def change_lines(todo: Sequence[Prepared]) -> tuple[str, ...]:
    """What the prompt shows of the steps that would be carried out: each setting with its value now and the wanted one,
    and how definitions of guests would change.
    """
    from hosttune.report.result_text import wanted_lines
    from hosttune.transaction.guests import definition_change

    return (*wanted_lines(todo), *filter(None, map(definition_change, todo)))


def _with_code(outcome: tuple[Result, int]) -> Result:
    result, code = outcome
    return msgspec.structs.replace(result, exit_code=code)


# --- which plan ----------------------------------------------------------------------------------------------


def plan_of_intent(site: Site, intent: Intent, discover: Callable[[], Host], where: str = "intent") -> Plan:
    """The plan of an intent here: the one in force that was made from it, else the saved one, else a new one.

    So a second apply of an intent has nothing to do, and what an operator has read in a saved plan is what is applied;
    where the host has changed since, that plan is stale and refused as ever. Raises BadInput, Refused.
    """
    found = undoing.plan_in_force(site, intent)
    if found is None and site.store is not None and os.path.exists(saved_plan_path(site)):
        saved = _saved_plan(site)
        found = saved if saved.intent == intent else None
    if found is not None:
        return found
    from hosttune.planning import plan as decide

    return decide(discover(), intent, where=where)


def plan_in_place(root: str | None, host: Host, intent: Intent) -> Plan | None:
    """The plan in force that was made from this intent, where its guests are defined here already; else None.

    Their names are taken by themselves, so that planning anew would refuse what is in place. Raises BadInput, Refused.
    """
    if not {guest.name for guest in intent.guests} & {guest.name for guest in host.guests or ()}:
        return None
    found = undoing.plan_in_force(open_site(root)[0], intent)
    return found if found is not None and found.host_digest == host.digest else None


def _saved_plan(site: Site) -> Plan:
    """The plan that `hosttune plan` has saved here. Raises BadInput."""
    path = saved_plan_path(site)
    if not os.path.exists(path):
        raise BadInput("no plan is saved", where=path, hint="make one: hosttune plan; or name a plan document")
    return read_plan(path)


def read_plan(path: str) -> Plan:
    """A plan document. Raises BadInput."""
    return Plan.from_json(load(path, what="a plan (hosttune plan saves one)"), where=path)
