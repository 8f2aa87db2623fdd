"""Definitions to adopt: read, checked against the host and each other, or refused with the reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace
from msgspec.structs import replace as changed

from hosttune.domain.edit import XmlText
from hosttune.domain.guest import Guest, GuestCell
from hosttune.errors import BadInput
from hosttune.inventory.bare import runs, without_guest
from hosttune.inventory.devices import disk_claims, read_catalogue
from hosttune.inventory.sizing import read_field
from hosttune.model import pciclass
from hosttune.model.host import Host, RunningGuest
from hosttune.model.intent import CellRequest, GuestIntent, Intent
from hosttune.model.limits import check_count
from hosttune.model.values import CpuSet, format_size, parse_cpus
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


# --- what a definition asks for --------------------------------------------------------------------------------
# What an existing definition asks for, as an intent, and what of it an intent cannot express. Pure.

Pages = Literal["auto", "2MiB", "1GiB", "none"]
_PAGES: Mapping[int | None, Pages] = {4096: "none", 2 << 20: "2MiB", 1 << 30: "1GiB"}
_HINT = "hosttune adopts guests of QEMU on x86-64 hosts: give what `virsh dumpxml --inactive GUEST` prints"


def check_supported(facts: Guest, where: str) -> None:
    """Raise BadInput for the definition of another hypervisor or machine, and for one without name or memory."""
    if facts.type not in ("kvm", "qemu"):
        raise BadInput(f"a guest of hypervisor {facts.type!r}", where=where, hint=_HINT)
    if facts.arch not in (None, "x86_64"):
        raise BadInput(f"a guest of architecture {facts.arch!r}", where=where, hint=_HINT)
    if facts.name is None or not facts.memory_bytes or not facts.vcpus:
        missing = "name" if facts.name is None else "vCPU" if not facts.vcpus else "memory"
        raise BadInput(f"no {missing}", where=where, hint=_HINT)
    check_count(facts.vcpus, "vcpus", where)


def guest_intent_of(host: Host, facts: Guest, where: str) -> GuestIntent:
    """Return what the planner needs of the guest: devices, vCPUs, memory, cells and pages.

    Raises BadInput: a device does not exist on the host.
    """
    functions = pci_devices(facts)
    absent = next((address for address in functions if address not in host.index.pci), None)
    if absent is not None:
        hint = "this host has no such device: correct the <hostdev>, or plan on the guest's own host"
        raise BadInput(f"no device {absent}", where=where, hint=hint)
    gpus = tuple(address for address in functions if address in host.index.gpus)
    return GuestIntent(
        name=facts.name or "",
        gpus=gpus or None,
        nics=_of_class(host, functions, pciclass.NETWORK) or None,
        nvme=_of_class(host, functions, pciclass.NVME) or None,
        vcpus=facts.vcpus,
        memory=facts.memory_bytes or 0,
        numa=tuple(
            CellRequest(vcpus=len(CpuSet.parse(cell.vcpus)), memory=cell.memory_bytes or 0)
            for cell in in_order(facts.cells)
        )
        or ("auto" if gpus else 1),
        hugepages=_pages(host, facts),
        firmware="bios" if facts.firmware == "bios" else "efi",
        accelerator="kvm" if facts.type == "kvm" else "tcg",
    )


def pci_devices(facts: Guest) -> tuple[str, ...]:
    """Return the host addresses of the PCI functions that the guest has."""
    return tuple(dict.fromkeys(device.source for device in facts.hostdevs if device.kind == "pci" and device.source))


def _pages(host: Host, facts: Guest) -> Pages:
    """Return the page size that the definition has; without one, ordinary pages if its memory is not whole ones."""
    for size in _page_sizes(host, facts):
        return _PAGES.get(size, "auto")
    return "auto" if _whole_pages(facts) else "none"


def _page_sizes(host: Host, facts: Guest) -> set[int | None]:
    """Return the sizes of its huge pages; `<hugepages/>` alone is the host's default size, None if that is unknown."""
    default = host.memory_settings.default_hugepage_bytes if host.memory_settings else None
    return {page.size_bytes or default for page in facts.backing.pages or ()}


def _whole_pages(facts: Guest) -> bool:
    parts = [cell.memory_bytes or 0 for cell in facts.cells] or [facts.memory_bytes or 0]
    return not any(size % (2 << 20) for size in parts)


def refusals(host: Host, facts: Guest) -> Iterator[str]:
    """Yield why no plan can be made of a valid definition."""
    if any(not cell.vcpus or not cell.memory_bytes for cell in facts.cells):
        yield "a guest cell has no vCPUs or no memory of its own: hosttune places cells that have both"
    elif facts.cells and sorted(cpu for cell in facts.cells for cpu in parse_cpus(cell.vcpus)) != [*range(facts.vcpus)]:
        yield "the guest's cells do not name each of its vCPUs once: correct <numa> in <cpu>"
    elif facts.cells and sum(cell.memory_bytes or 0 for cell in facts.cells) != facts.memory_bytes:
        yield "the guest's cells do not add up to its memory: memory that is plugged in cannot be placed"
    sizes = _page_sizes(host, facts)
    if len(sizes) > 1:
        yield "the guest has huge pages of several sizes: hosttune plans one size a guest"
    elif sizes and not sizes <= set(_PAGES):
        (size,) = sizes
        text = "the host's default size, which is unknown: name it in <page>" if size is None else format_size(size)
        yield f"the guest has huge pages of {text}; hosttune plans pages of 2 MiB and 1 GiB"


def kept(host: Host, facts: Guest) -> Iterator[str]:
    """Yield what the definition has that the planner does not decide. It stays as it is."""
    for device in facts.hostdevs:
        if device.kind != "pci":
            yield f"{device.kind} device {device.source or ''}".rstrip() + ": its place is not planned"
        elif device.source and not _planned(host, device.source):
            yield f"device {device.source}: neither GPU, NIC nor NVMe drive, so it does not decide the place"
    if len(facts.cells) > 1 or pci_devices(facts):
        yield "PCI controllers and guest addresses: the guest finds its devices where it has them now"
    if facts.backing.pages is None and not _whole_pages(facts):
        yield "ordinary pages: its memory is not a whole number of huge pages of 2 MiB in every cell"
    if facts.cpu.mode not in (None, "host-passthrough"):
        yield f"CPU mode {facts.cpu.mode}"
    if facts.qemu_arguments:
        yield f"arguments to QEMU: {' '.join(facts.qemu_arguments)}"


def _planned(host: Host, address: str) -> bool:
    device = host.index.pci.get(address)
    return address in host.index.gpus or bool(device and (device.is_network or device.is_nvme))


def _of_class(host: Host, addresses: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    pci = host.index.pci
    return tuple(address for address in addresses if (pci[address].class_code or "").startswith(prefix))


def in_order(cells: tuple[GuestCell, ...]) -> tuple[GuestCell, ...]:
    """Return the guest's cells by their ids."""
    return tuple(sorted(cells, key=lambda cell: cell.id))
