"""Definitions to adopt: read, checked against the host and each other, or refused with the reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace
from msgspec.structs import replace as changed

from hosttune.domain.edit import XmlText
from hosttune.domain.guest import Guest
from hosttune.errors import BadInput
from hosttune.inventory.bare import runs, without_guest
from hosttune.inventory.devices import disk_claims, read_catalogue
from hosttune.inventory.sizing import read_field
from hosttune.model.host import Host, RunningGuest
from hosttune.model.intent import GuestIntent, Intent
from hosttune.model.values import CpuSet
from hosttune.planning.adopting.request import check_supported, guest_intent_of, refusals
from hosttune.planning.batch import guest_request_of


class Definition(msgspec.Struct, frozen=True):
    """A domain XML to adopt. `where`: its source, for messages. `name`: the guest of which libvirt has it, if it has.

    `refused`: why it must not be planned.
    """

    data: bytes
    where: str = "domain XML"
    name: str | None = None
    refused: tuple[str, ...] = ()


class Draft(msgspec.Struct, frozen=True):
    """A definition that was read. `resident`: the guest of the host that it is of; None: the host has no such guest.

    `unplaced`: why it is not planned; `facts` and `intent` are None if it could not be read.
    """

    definition: Definition
    name: str
    resident: RunningGuest | None
    facts: Guest | None = None
    intent: GuestIntent | None = None
    unplaced: tuple[str, ...] = ()
    relaxation: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the guest runs now; an unknown state counts as running."""
        return self.resident is not None and runs(self.resident)


class Candidate(msgspec.Struct, frozen=True):
    """A guest that may be planned, with what its definition says."""

    draft: Draft
    facts: Guest
    intent: GuestIntent

    @property
    def own_cpus(self) -> CpuSet | None:
        """The host CPUs that it may keep: one for each vCPU. None if a vCPU floats or two share a CPU."""
        own = [cpus for _, cpus in sorted(self.facts.pins.items())]
        cpus = CpuSet(cpu for pin in own for cpu in pin)
        return cpus if len(own) == len(cpus) == self.facts.vcpus else None


def candidates(drafts: Sequence[Draft]) -> list[Candidate]:
    """Return the guests that are not refused."""
    return [
        Candidate(draft, draft.facts, draft.intent)
        for draft in drafts
        if not draft.unplaced and draft.facts is not None and draft.intent is not None
    ]


def read_drafts(host: Host, definitions: Sequence[Definition], *, tolerant: bool) -> list[Draft]:
    """Return the drafts by name. Raises BadInput as `adopt`."""
    drafts = sorted((_draft(host, definition, tolerant) for definition in definitions), key=lambda draft: draft.name)
    _check_apart(drafts)
    # two that have the same device cannot run at once
    owners: dict[str, list[str]] = {}
    for candidate in candidates(drafts):
        for source in (*candidate.facts.functions, *candidate.facts.mdevs):
            if candidate.draft.name not in owners.setdefault(source, []):
                owners[source].append(candidate.draft.name)
    shared = {source: names for source, names in owners.items() if len(names) > 1}
    drafts = [_refuse_shared(draft, shared) for draft in drafts]
    free = without(host, drafts)
    context = read_field(free, Intent(version=1).reserve)
    found = []
    for draft in drafts:
        held = () if draft.unplaced or draft.facts is None else tuple(_held(free, draft.facts))
        try:
            if draft.intent is not None and not draft.unplaced:
                guest_request_of(context, draft.intent, draft.definition.where)
        except BadInput as error:
            if not tolerant:
                raise
            held = (_reason(error),)
        found.append(replace(draft, unplaced=held) if held else draft)
    return found


def _draft(host: Host, definition: Definition, tolerant: bool) -> Draft:
    name = definition.name or ""
    resident = next((guest for guest in host.guests or () if guest.name == name), None)
    if definition.refused:
        return Draft(definition, name, resident, unplaced=definition.refused)
    try:
        return _read(host, definition)
    except BadInput as error:
        if not tolerant:
            raise
        return Draft(definition, name, resident, unplaced=(_reason(error),))


def _reason(error: BadInput) -> str:
    return f"{error.what}: {error.hint}" if error.hint else error.what


def _read(host: Host, definition: Definition) -> Draft:
    where = definition.where
    facts = XmlText(definition.data, where=where).guest
    check_supported(facts, where)
    name = facts.name or ""
    if definition.name is not None and name != definition.name:
        hint = "read the guests again: libvirt has changed"
        raise BadInput(f"the definition is that of guest {name!r}", where=where, hint=hint)
    resident = _resident(host, facts, where)
    intent = guest_intent_of(host, facts, where)
    return Draft(definition, name, resident, facts, intent, tuple(refusals(host, facts)))


def _resident(host: Host, facts: Guest, where: str) -> RunningGuest | None:
    """Return the host's guest that this definition is of; None if it is not defined there. Raises BadInput."""
    hint = "correct the name or the UUID, or plan on the guest's own host"
    for guest in host.guests or ():
        same_uuid = facts.uuid is not None and facts.uuid == (guest.uuid or "").lower()
        if guest.name == facts.name:
            if facts.uuid and guest.uuid and not same_uuid:
                raise BadInput(f"guest {guest.name!r} of this host has another UUID", where=where, hint=hint)
            return guest
        if same_uuid:
            raise BadInput(f"guest {guest.name!r} of this host has this UUID", where=where, hint=hint)
    return None


def _check_apart(drafts: Sequence[Draft]) -> None:
    """Check that each guest is given once. Raises BadInput."""
    names: dict[str, Draft] = {}
    uuids: dict[str, Draft] = {}
    for draft in drafts:
        if draft.name in names:
            before = names[draft.name].definition.where
            what = f"guest {draft.name!r} is given twice, by {before} and {draft.definition.where}"
            raise BadInput(what, where="command line", hint="give each guest once")
        names[draft.name] = draft
        uuid = draft.facts.uuid if draft.facts else None
        if uuid is not None and uuids.setdefault(uuid, draft) is not draft:
            what = f"guests {uuids[uuid].name!r} and {draft.name!r} have the same UUID"
            raise BadInput(what, where=draft.definition.where, hint="give one of them another UUID")


def _refuse_shared(draft: Draft, shared: Mapping[str, list[str]]) -> Draft:
    why = tuple(
        f"{source} is also in the definition of guest {' and '.join(name for name in names if name != draft.name)}:"
        " a device goes to one guest"
        for source, names in shared.items()
        if draft.name in names and not draft.unplaced
    )
    return replace(draft, unplaced=why) if why else draft


def _held(free: Host, facts: Guest) -> Iterator[str]:
    """Yield which devices of a definition another guest of the host has."""
    mdevs = {uuid.lower(): guest.name for guest in free.guests or () for uuid in guest.mdevs}
    holders = {address: free.index.holders.get(address) for address in facts.functions}
    holders |= {uuid: mdevs.get(uuid) for uuid in facts.mdevs}
    yield from (f"{source} is held by guest {holder}" for source, holder in holders.items() if holder)
    catalogue = read_catalogue(free)
    users = ((address, catalogue.users.get(address)) for address in facts.functions)
    yield from (f"{address} is used by guest {user}" for address, user in users if user)
    yield from (claim for path in facts.host_paths for claim in disk_claims(catalogue, path))


# --- the host without them --------------------------------------------------------------------------------------


def without(host: Host, drafts: Sequence[Draft]) -> Host:
    """Return the host as it would be without the guests that are planned: their memory, CPUs and devices are free.

    Those that were adopted before are planned anew, so they are not in force there.
    """
    able = candidates(drafts)
    for candidate in able:
        if candidate.draft.resident is not None:
            host = without_guest(host, candidate.draft.resident)
    if host.in_force is None:
        return host
    planned = {candidate.draft.name for candidate in able}
    left = tuple(guest for guest in host.in_force.guests if guest.adopted is None or guest.name not in planned)
    return changed(host, in_force=changed(host.in_force, guests=left))
