"""Which guest of the host one in force is: the one with its UUID, whatever its name in libvirt is now. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

from hosttune.model.force import GuestInForce, InForce
from hosttune.model.host import Host, RunningGuest
from hosttune.model.plan import PlanFinding, Unplaced

GUEST_NAMESPACE = uuid.UUID("6b1f4c52-9f2e-5a54-8f0c-6a1d0c5d1f7e")


def uuid_of(host: Host, name: str) -> str:
    """Return the UUID of a guest that is new on a host: always the same of one name."""
    return str(uuid.uuid5(GUEST_NAMESPACE, f"{host.hostname or ''}/{name}"))


def unknown_ours(host: Host, force: InForce) -> Iterator[PlanFinding]:
    """Yield each guest that is not in force and has the UUID that hosttune gives: an older journal does not know it."""
    known = {guest.uuid for guest in force.guests}
    for guest in host.guests or ():
        if guest.uuid not in known and guest.uuid == uuid_of(host, guest.name):
            text = (
                "has the UUID that hosttune gives it, and is not in force: if an apply made it, the state directory is"
            )
            hint = f"that of an older backup: restore the newest; else hosttune plan --adopt {guest.name}"
            yield PlanFinding(level="info", text=f"it {text} {hint}", where=f"guest {guest.name}")


def resident_of(guests: Sequence[RunningGuest], guest: GuestInForce) -> RunningGuest | None:
    """Return the guest of libvirt that a guest in force is: the one with its UUID, whatever its name is now."""
    for running_guest in guests:
        if guest.uuid is not None and (running_guest.uuid or "").lower() == guest.uuid.lower():
            return running_guest
    return next(
        (
            running_guest
            for running_guest in guests
            if running_guest.name == guest.name and not (running_guest.uuid and guest.uuid)
        ),
        None,
    )


def mistaken(guests: Sequence[RunningGuest], force: InForce, name: str) -> Unplaced | None:
    """Return why the guest that libvirt has by a name is not the one in force by it; None if it is, or if none has it.

    libvirt renames only a guest that is shut off, and to a name that is free.
    """
    names = {
        running_guest.name: owner.name
        for owner in force.guests
        if (running_guest := resident_of(guests, owner)) is not None
    }
    there = {running_guest.name for running_guest in guests}
    known = any(guest_in_force.name == name for guest_in_force in force.guests)
    now = next((given for given, owner in names.items() if owner == name), None)
    if now == name or not (now or name in names or (known and name in there)):
        return None
    own, given = (name, now) if now else (names.get(name), name)
    if own is None:
        what = f"the guest that libvirt has as {name!r} is another one: its UUID is not that of the guest in force"
        steps = [(name, f"{name}-other")]
    elif names.get(own) == given:
        what = f"guests {own!r} and {given!r} have each other's name in libvirt"
        first, second = sorted((own, given))
        steps = [(first, f"{first}-other"), (second, first), (f"{first}-other", second)]
    else:
        what = f"guest {own!r} has the name {given!r} in libvirt"
        steps = [*([(own, f"{own}-other")] if own in there else ()), (given, own)]
    hint = "; ".join(f"virsh domrename {old} {new}" for old, new in steps)
    hint = f"while they are shut off: {hint}; then try again"
    return Unplaced(guest=name, why=(what, "it is left as it is"), relaxation=(hint,), refused=True)
