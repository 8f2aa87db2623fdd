"""What hosttune keeps of a host's validations, the devices that it therefore expects, and those removed from them.

For a machine this is in the caller's state directory, for a scratch root inside that root; a capture has none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from hosttune.errors import BadInput, Refused
from hosttune.journal import Store, accepted
from hosttune.journal.gpus import keep_gpus
from hosttune.journal.state import DEVICES, VALIDATIONS, load, mode_of, save, stored_validations
from hosttune.machine.system import STATE_INSIDE, System, state_directory
from hosttune.model.clock import now_text
from hosttune.model.evidence import STATE, Evidence
from hosttune.model.host import Host, Problem
from hosttune.model.plan import Plan
from hosttune.model.result import Result
from hosttune.model.starts import SIGNED
from hosttune.model.validation import Acceptance, KnownDevice, Validation
from hosttune.model.values import parse_address
from hosttune.model.verification import Verification
from hosttune.rules.checks.expected import (
    ExpectedDevices,
    Forgotten,
    devices_to_keep,
    kept_expectations,
    with_expectations,
)
from hosttune.rules.checks.looks import looks_to_keep
from hosttune.transaction import status
from hosttune.transaction.site import Site, site_of


def gather(system: System, *, inside: bool, wait: bool) -> Evidence:
    """Return what the machine shows and what hosttune knows about it.

    A state that cannot be read becomes a problem of the evidence. `inside`: the machine is a guest.
    `wait` as in `discovery.evidence.gather`.
    """
    from hosttune.discovery.evidence import gather as read

    # The site with the applied plans. Only root applies, so for another user this is root's site.
    site = site_of(system)
    site = site if system.captured or keeps_state() else msgspec.structs.replace(site, store=Store(STATE_INSIDE))
    plan: Plan | None = None
    in_force: Result | None = None
    doubts = []
    try:
        plan = site.plan_in_force()
        in_force = status(site)[0] if site.store is not None else None
        if in_force is not None and not in_force.state_known:
            doubts = [Problem(what=STATE, where="hosttune status", why=note) for note in in_force.notes]
    except (BadInput, Refused) as error:
        doubts.append(_doubt(error))
    history, unread = _validations(_folder(system))
    evidence = read(
        system, inside=inside, plans=(plan,) if plan else (), applied_state=in_force, history=history, wait=wait
    )
    evidence = msgspec.structs.replace(evidence, host=msgspec.structs.replace(evidence.host, in_force=site.in_force()))
    statements, lost = _statements(site, evidence.host)
    return msgspec.structs.replace(
        evidence, statements=statements, problems=(*evidence.problems, *doubts, *unread, *lost)
    )


def _statements(site: Site, host: Host) -> tuple[tuple[Verification, ...] | None, tuple[Problem, ...]]:
    """Return the signed statements that are kept here, and what of them cannot be read."""
    if site.store is None:
        return None, ()
    if not os.path.lexists(os.path.join(site.store.folder, SIGNED)):
        return (), ()  # a folder that another user may not enter does not show either: `host.handover` is unknown then
    from hosttune.handover.kept import kept  # few hosts need it

    return kept(site, host)


def read_validation(path: str) -> Validation:
    """Read an earlier validation. Raises BadInput."""
    return Validation.from_json(load(path, what="a validation (hosttune validate -o json prints one)"), where=path)


def _doubt(error: BadInput | Refused) -> Problem:
    return Problem(what=STATE, where=error.where, why=error.what)


def _validations(folder: str | None) -> tuple[tuple[Validation, ...], tuple[Problem, ...]]:
    """Return (earlier validations of this host, oldest first; those that cannot be read, as problems)."""
    validations: list[Validation] = []
    unread = []
    for path in stored_validations(folder) if folder is not None else ():
        try:
            validations.append(read_validation(path))
        except BadInput as error:
            unread.append(Problem(what="unreadable", where=path, why=error.what))
    validations.sort(key=lambda validation: validation.at or "")
    return tuple(validations), tuple(unread)


def _folder(system: System) -> str | None:
    """Return the state directory that holds validations; None for a capture, which has none."""
    if not system.captured:
        return state_directory()
    store = site_of(system).store
    return store.folder if store is not None else None


# --- what is expected to be here -----------------------------------------------------------------------------


def with_expected(
    system: System | None, evidence: Evidence, named: ExpectedDevices | None
) -> tuple[Evidence, tuple[KnownDevice, ...]]:
    """Return (the evidence with the expected devices as sources, the devices that a kept validation names).

    `named`: an expectation in addition to those in the state; it is not added to the kept validation.
    """
    taken_out: tuple[Forgotten, ...] = ()
    folder = _folder(system) if system is not None else None
    try:
        taken_out = accepted.read_forgotten(folder) if folder is not None else ()
    except BadInput as error:
        evidence = msgspec.structs.replace(evidence, problems=(*evidence.problems, _doubt(error)))
    evidence = with_expectations(evidence, kept_expectations(evidence), taken_out)
    known = devices_to_keep(evidence.host)
    return with_expectations(evidence, (named,) if named else (), taken_out), known


def kept_acceptances(system: System | None) -> tuple[tuple[Acceptance, ...], str | None]:
    """Return (the acceptances that the state keeps, the state directory; None for a capture). Raises BadInput."""
    folder = _folder(system) if system is not None else None
    return (accepted.read_accepted(folder) if folder is not None else ()), folder


def check_forget(addresses: Sequence[str], why: str | None) -> tuple[str, ...]:
    """Return the addresses of devices that are no longer expected, in the kernel's spelling. Raises BadInput."""
    if bool(addresses) != (why is not None):
        missing = "--why" if addresses else "--forget"
        raise BadInput(f"{missing} is missing", where=missing, hint="give both: --forget BDF --why TEXT")
    if why is not None and not (why.strip() and why.isprintable() and len(why) <= accepted.MOST_WHY):
        hint = f"write in one line of at most {accepted.MOST_WHY} characters why the device is gone"
        raise BadInput("not a valid reason", where="--why", hint=hint)
    addresses_given = tuple(parse_address(address, where="--forget") for address in addresses)
    if len(set(addresses_given)) != len(addresses_given):
        raise BadInput("a device is named twice", where="--forget", hint="name each device once")
    return addresses_given


def forget(
    system: System | None, evidence: Evidence, named: ExpectedDevices | None, addresses: Sequence[str], why: str
) -> None:
    """Remove devices permanently from those expected here.

    Raises Refused for a capture, BadInput for a device that is not expected and if the record cannot be written.
    """
    folder = _folder(system) if system is not None else None
    if folder is None:
        where = "--host" if system is None else system.origin
        raise Refused("a captured host has no state to write to", where=where, hint="run it on the host itself")
    expected = {
        device.address
        for named_evidence in (*kept_expectations(evidence), *((named,) if named else ()))
        for device in named_evidence.devices
    }
    strange = [address for address in addresses if address not in expected]
    if strange:
        hint = "no plan in force, kept validation or --expect names it: see device-present in hosttune validate"
        raise BadInput(f"{strange[0]} is not expected here", where="--forget", hint=hint)
    accepted.forget(folder, addresses, why)


# --- keeping -------------------------------------------------------------------------------------------------


def keep(validation: Validation) -> None:
    """Keep a validation for later ones. Raises BadInput if it cannot be written.

    All validations with measurements are kept. Of those without, only the last one is kept, for its devices.
    """
    stamp = (validation.at or "").partition("+")[0].replace(":", "").replace("-", "")
    name = f"{stamp}-level{validation.level}.json" if validation.level else DEVICES
    path = os.path.join(state_directory(), VALIDATIONS, name)
    validation = validation if validation.level else msgspec.structs.replace(validation, results=())
    save(path, validation.to_json(), make_folder=True, mode=mode_of(f"{VALIDATIONS}/NAME"))


def keep_looks(system: System, evidence: Evidence, validation: Validation) -> None:
    """Keep what a validation found of GPUs, for the time when their driver does not have them (`checks.looks`).

    Raises Refused and BadInput if it cannot be written.
    """
    looks = looks_to_keep(evidence, validation.results, validation.at or now_text())
    store = site_of(system).store
    if looks and store is not None:  # without the lock, which would refuse an apply: the file is replaced whole
        keep_gpus(store.folder, evidence.host, looks)


def keeps_state() -> bool:
    """Return whether the user keeps the machine's state: root, or a user who has named a state directory."""
    return os.geteuid() == 0 or bool(os.environ.get("HOSTTUNE_STATE"))
