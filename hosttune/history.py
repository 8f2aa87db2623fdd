"""What hosttune keeps of a host's validations, which devices it expects by them, and which were taken out of that.

Of a machine it lies in the state directory of whoever asks, of a scratch root inside that root; a capture has none.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import msgspec

from hosttune import forgotten
from hosttune.checks.expected import Expectation, Forgotten, known_here, standing, with_expectations
from hosttune.errors import BadInput, Refused
from hosttune.journal import Store
from hosttune.model.evidence import STATE, Evidence
from hosttune.model.host import Problem
from hosttune.model.plan import Plan
from hosttune.model.result import Result
from hosttune.model.validation import KnownDevice, Validation
from hosttune.model.values import parse_address
from hosttune.state import DEVICES, VALIDATIONS, load, mode_of, save, state_directory, stored_validations
from hosttune.system import STATE_INSIDE, System
from hosttune.transaction import applied_plans, status
from hosttune.transaction.site import Site, site_of


def gather(system: System, *, inside: bool) -> Evidence:
    """What the machine shows, and what hosttune knows of it; a state that cannot be read is a problem of the evidence.

    `inside`: the machine is a guest.
    """
    from hosttune.discovery.evidence import gather as read

    site = _site_to_read(system)
    plans: tuple[Plan, ...] = ()
    in_force: Result | None = None
    doubts = []
    try:
        plans = applied_plans(site)
        in_force = status(site)[0] if site.store is not None else None
    except (BadInput, Refused) as error:
        doubts.append(_doubt(error))
    history, unread = _validations(_folder(system))
    found = read(system, inside=inside, plans=plans, standing=in_force, history=history)
    return msgspec.structs.replace(found, problems=(*found.problems, *doubts, *unread))


def read_validation(path: str) -> Validation:
    """An earlier validation. Raises BadInput."""
    what = "a validation (hosttune validate -o json prints one)"
    return Validation.from_json(load(path, what=what), where=path)


def _doubt(error: BadInput | Refused) -> Problem:
    return Problem(what=STATE, where=error.where, why=error.what)


def _validations(folder: str | None) -> tuple[tuple[Validation, ...], tuple[Problem, ...]]:
    """(earlier validations of this host, oldest first; those that cannot be read, as problems)."""
    found: list[Validation] = []
    unread = []
    for path in stored_validations(folder) if folder is not None else ():
        try:
            found.append(read_validation(path))
        except BadInput as error:
            unread.append(Problem(what="unreadable", where=path, why=error.what))
    found.sort(key=lambda validation: validation.at or "")
    return tuple(found), tuple(unread)


def _folder(system: System) -> str | None:
    """The state directory whose validations are read and written; None: a capture, which has none."""
    if not system.captured:
        return state_directory()
    store = site_of(system).store
    return store.folder if store is not None else None


def _site_to_read(system: System) -> Site:
    """The site whose plans in force are read: root's also where another user asks, for only root applies."""
    site = site_of(system)
    if system.captured or keeps_state():
        return site
    return dataclasses.replace(site, store=Store(STATE_INSIDE))


# --- what is expected to be here -----------------------------------------------------------------------------


def with_expected(
    system: System | None, evidence: Evidence, named: Expectation | None
) -> tuple[Evidence, tuple[KnownDevice, ...]]:
    """(the evidence with what is expected as sources of devices, the devices that a kept validation names).

    `named`: an expectation besides those of the state; the kept validation does not take it over.
    """
    taken_out: tuple[Forgotten, ...] = ()
    folder = _folder(system) if system is not None else None
    try:
        taken_out = forgotten.read_forgotten(folder) if folder is not None else ()
    except BadInput as error:
        evidence = msgspec.structs.replace(evidence, problems=(*evidence.problems, _doubt(error)))
    evidence = with_expectations(evidence, standing(evidence), taken_out)
    known = known_here(evidence.host)
    return with_expectations(evidence, (named,) if named else (), taken_out), known


def check_forget(addresses: Sequence[str], why: str | None) -> tuple[str, ...]:
    """The addresses of devices that are no longer expected, in the kernel's spelling. Raises BadInput."""
    if bool(addresses) != (why is not None):
        missing = "--why" if addresses else "--forget"
        raise BadInput(f"{missing} is missing", where=missing, hint="give both: --forget BDF --why TEXT")
    if why is not None and not (why.strip() and why.isprintable() and len(why) <= forgotten.MOST_WHY):
        hint = f"write in one line of at most {forgotten.MOST_WHY} characters why the device is gone"
        raise BadInput("not a valid reason", where="--why", hint=hint)
    found = tuple(parse_address(address, where="--forget") for address in addresses)
    if len(set(found)) != len(found):
        raise BadInput("a device is named twice", where="--forget", hint="name each device once")
    return found


def forget(
    system: System | None, evidence: Evidence, named: Expectation | None, addresses: Sequence[str], why: str
) -> None:
    """Take devices out of what is expected here, for good.

    Raises Refused for a capture, BadInput for a device that nothing expects and where the record cannot be written.
    """
    folder = _folder(system) if system is not None else None
    if folder is None:
        where = "--host" if system is None else system.origin
        raise Refused("a captured host has no state to write to", where=where, hint="run it on the host itself")
    expected = {one.address for found in (*standing(evidence), *((named,) if named else ())) for one in found.devices}
    strange = [address for address in addresses if address not in expected]
    if strange:
        hint = "no plan in force, kept validation or --expect names it: see device-present in hosttune validate"
        raise BadInput(f"{strange[0]} is not expected here", where="--forget", hint=hint)
    forgotten.forget(folder, addresses, why)


# --- keeping -------------------------------------------------------------------------------------------------


def keep(validation: Validation) -> None:
    """Keep a validation for later ones. Raises BadInput where it cannot be written.

    One that measured is kept with all others. Of those that did not, only the last is kept, for its devices.
    """
    stamp = (validation.at or "").partition("+")[0].replace(":", "").replace("-", "")
    name = f"{stamp}-level{validation.level}.json" if validation.level else DEVICES
    path = os.path.join(state_directory(), VALIDATIONS, name)
    validation = validation if validation.level else msgspec.structs.replace(validation, results=())
    save(path, validation.to_json(), make_folder=True, mode=mode_of(f"{VALIDATIONS}/NAME"))


def keeps_state() -> bool:
    """Whether whoever asks keeps the machine's state: root, or who has named a place for it."""
    return os.geteuid() == 0 or bool(os.environ.get("HOSTTUNE_STATE"))
