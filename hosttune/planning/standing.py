"""An intent compared with the guests in force: which of them stay exactly where they are, change, or are taken away.

Pure. A guest in force is the one with its UUID. It is unchanged if its request means the same as the one applied last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace as changed

from hosttune.domain.compare import as_changes, compare_guests
from hosttune.domain.defined import as_planned
from hosttune.domain.planned import guest_of
from hosttune.errors import BadInput
from hosttune.inventory.bare import bare_host, runs
from hosttune.inventory.devices import identity, quarantined_devices, read_catalogue, same_device
from hosttune.inventory.names import mistaken, resident_of, unknown_ours
from hosttune.inventory.pages import guest_shares, reserve_bytes
from hosttune.inventory.resources import LEAST_CORES, place_cpus
from hosttune.knobs.registry import intent_in_force
from hosttune.model.force import GuestInForce, InForce
from hosttune.model.host import GuestMemory, Host, RunningGuest, VcpuPin
from hosttune.model.hostfields import FORCE_UNKNOWN
from hosttune.model.intent import GpuRequest, GuestIntent, Intent, NicRequest, Reserve
from hosttune.model.plan import PlanFinding, PlannedGuest, Removal, Source, Unnamed, Unplaced
from hosttune.model.values import parse_address, parse_cpus, parse_size, value_text
from hosttune.planning.guest.reserve import pins_of
from hosttune.planning.host.inside import guest_settings

NOTHING = InForce()
_UNASKED = "libvirt cannot be asked: no guest is planned, changed or taken away; start its daemon, then plan again"


class StandingIntent(msgspec.Struct, frozen=True):
    """An intent beside what is in force on a host.

    `bare`: the host without what hosttune has applied. `intent`: its wanted guests, with every setting that is in
    force. `fixed`: guests that stay where they are; `moving`: those whose request has changed; `residents`: the guests
    of the host that those in force are, by name. `out`: guests of the intent that are not planned.
    """

    bare: Host
    intent: Intent
    fixed: tuple[GuestInForce, ...]
    moving: Mapping[str, GuestInForce]
    residents: Mapping[str, RunningGuest]
    out: Mapping[str, Unplaced]
    removals: tuple[Removal, ...]
    unnamed: tuple[Unnamed, ...]
    findings: tuple[PlanFinding, ...]

    @property
    def old_runs(self) -> Mapping[str, RunningGuest]:
        """The guests that run now and are changed or taken away: what they have is theirs until they stop."""
        gone = {*self.moving, *(removal.name for removal in self.removals)}
        return {name: guest for name, guest in self.residents.items() if name in gone and runs(guest)}


def compare(
    host: Host, intent: Intent, where: str, *, source: Source | None, prune: bool, replan: Collection[str]
) -> StandingIntent:
    """Return what stays, changes and goes.

    Raises BadInput: a name of the intent is that of a guest that hosttune did not define or has only adopted; `prune`
    without a file; `replan` of a guest that the intent does not name.
    """
    force = host.in_force or NOTHING
    _check_options(intent, source, prune=prune, replan=replan)
    ours = {guest.name: guest for guest in force.guests if guest.adopted is None}
    asked = {guest.name: guest for guest in intent.guests}
    here = host.guests or ()
    others = {name: left_out for name in (*ours, *asked) if (left_out := mistaken(here, force, name)) is not None}
    _check_names(host, intent, force, others, where)
    residents = {name: there for name, guest in ours.items() if (there := resident_of(here, guest)) is not None}
    out = {name: others[name] for name in asked if name in others}
    gone = [
        guest
        for name, guest in ours.items()
        if name not in others
        and (asked[name].state == "absent" if name in asked else prune and _from_file(guest.source))
    ]
    fixed, moving, findings = [], {}, list(unknown_ours(host, force) if host.in_force else ())
    for guest in [guest for guest in ours.values() if guest not in gone]:
        wanted = asked.get(guest.name)
        if wanted is None or guest.name in out:
            fixed.append(guest)
        elif guest.name in replan or not same_request(host, guest, wanted, intent.reserve):
            moving[guest.name] = guest
        else:
            match _as_it_is(host, guest, wanted):
                case Unplaced() as left:
                    out[guest.name] = left
                    fixed.append(guest)
                case PlanFinding() as displaced:
                    moving[guest.name] = guest
                    findings.append(displaced)
                case same:
                    fixed.append(same)
                    findings += _exchanged(guest, same)
    if host.guests is None and ours:
        out = {guest.name: Unplaced(guest=guest.name, why=(_UNASKED,), stays=True) for guest in intent.guests}
        fixed, moving, gone = list(ours.values()), {}, []
    again = [guest for name, guest in moving.items() if name not in replan and asked[name].mig == guest.request.mig]
    kept = {name: wanted.value for name, wanted in force.wanted.items() if not (prune and _from_file(wanted.source))}
    settings = {**kept, **(intent.settings or {})}
    return StandingIntent(
        bare=host if force == NOTHING else bare_host(host, force, residents.values(), fixed, again),
        intent=changed(intent, settings=settings if force.wanted else intent.settings, guests=intent.present),
        fixed=tuple(fixed),
        moving=moving,
        residents=residents,
        out=out,
        removals=tuple(_removal(guest_in_force, residents.get(guest_in_force.name)) for guest_in_force in gone),
        unnamed=tuple(_unnamed(force, asked, intent.settings or {}, {guest.name for guest in gone}, settings)),
        findings=tuple(findings),
    )


def _check_options(intent: Intent, source: Source | None, *, prune: bool, replan: Collection[str]) -> None:
    if prune and not _from_file(source):
        raise BadInput("--prune without an intent file", where="--prune", hint="give the whole intent with -f FILE")
    names = [guest.name for guest in intent.present]
    for name in replan:
        if name not in names:
            hint = "name one of: " + (", ".join(names) or "(none)")
            raise BadInput(f"no guest {name!r} in this intent", where="--replan", hint=hint)


def _from_file(source: Source | None) -> bool:
    return source is not None and source.kind == "file"


def _removal(guest: GuestInForce, resident: RunningGuest | None) -> Removal:
    return Removal(name=guest.name, uuid=guest.uuid, when="after-stop" if resident and runs(resident) else "now")


def _unnamed(
    force: InForce, asked: Collection[str], settings: Collection[str], gone: Collection[str], left: Collection[str]
) -> Iterator[Unnamed]:
    for guest in force.guests:
        if guest.name not in asked and guest.name not in gone:
            yield Unnamed(kind="guest", name=guest.name, source=guest.source)
    for name, wanted in force.wanted.items():
        if name not in settings and name in left:
            yield Unnamed(kind="setting", name=name, source=wanted.source)


# --- which guest it is ------------------------------------------------------------------------------------------


def _check_names(host: Host, intent: Intent, force: InForce, others: Collection[str], where: str) -> None:
    """Check that hosttune defined each guest of the host that has a name of the intent.

    Raises BadInput; where the journals are lost or unreadable, for that.
    """
    known = {guest.name: guest for guest in force.guests}
    there = {guest.name for guest in host.guests or ()}
    for i, guest in enumerate(intent.guests):
        at, other = f"{where}: guests[{i}].name", known.get(guest.name)
        if other is not None and other.adopted is not None:
            hint = f"hosttune plan --adopt {guest.name} plans it anew; hosttune revert --guest {guest.name} gives it up"
            raise BadInput(f"guest {guest.name!r} is an adopted one: its definition decides", where=at, hint=hint)
        if other is None and guest.name in there and guest.name not in others:
            if lost := next((problem for problem in host.problems if problem.what == FORCE_UNKNOWN), None):
                what, _, remedy = lost.why.partition("; ")
                raise BadInput(what, where=lost.where, hint=remedy)
            what = f"a guest named {guest.name!r} exists on this host"
            why = "no journal says that hosttune defined it" if host.in_force else "what is in force here is unknown"
            hint = f"choose another name, or plan that guest: hosttune plan --adopt {guest.name} ({why})"
            hint = next(
                (finding.text for finding in unknown_ours(host, force) if finding.where == f"guest {guest.name}"), hint
            )
            raise BadInput(what, where=at, hint=hint)


def _as_it_is(host: Host, guest: GuestInForce, wanted: GuestIntent) -> GuestInForce | Unplaced | PlanFinding:
    """Return a guest whose request is the same, with the devices that are at its addresses now.

    Unplaced: it cannot have them all, and is left as it is. PlanFinding: it cannot have its place, and is placed anew.
    """
    quarantined = quarantined_devices(host)
    lost = []
    for device in guest.places.devices:
        if device.kind != "mdev" and device.address not in host.index.pci:
            lost.append(f"{device.address} is gone: this host has no such device now")
        elif device.address in quarantined:
            lost.append(quarantined[device.address])
    if lost:
        hint = "change the devices in its intent"
        if not isinstance(wanted.gpus, tuple):
            hint += f", or let it have others: hosttune plan -f FILE --replan {guest.name}"
        return Unplaced(guest=guest.name, why=(*lost, "it is left as it is"), relaxation=(hint,), stays=True)
    catalogue = read_catalogue(host)
    seen = ((device, identity(catalogue, device.address, host)) for device in guest.places.devices)
    devices = (
        device if device.kind == "mdev" or same_device(device.identity, here) else changed(device, identity=here)
        for device, here in seen
    )
    now = changed(guest.places, devices=tuple(devices))
    if displaced := _displaced(host, guest.places, now):
        return PlanFinding(level="warn", text=f"{displaced}: it is placed anew", where=f"guest {guest.name}")
    return changed(guest, places=now)


def _exchanged(guest: GuestInForce, same: GuestInForce) -> Iterator[PlanFinding]:
    new = [device.address for device in same.places.devices if device not in guest.places.devices]
    if new:
        text = f"another device is at {', '.join(new)} than was planned: the guest gets it, at its old place"
        yield PlanFinding(level="info", text=text, where=f"guest {guest.name}")


def _displaced(host: Host, places: PlannedGuest, now: PlannedGuest) -> str | None:
    """Return why a guest cannot have exactly its places: the host has other numbers, or devices of another kind."""
    nodes = place_cpus(host).nodes
    usable = {cpu.id for cpu in host.cpus if cpu.online is not False and cpu.allowed is not False}
    node_of = {vcpu: int(cell.host_nodes) for cell in places.cells for vcpu in parse_cpus(cell.vcpus)}
    known = {node.id for node in host.numa_nodes}
    if any(
        cpu not in usable or nodes.get(cpu) != node_of.get(pin.vcpu) or (known and nodes.get(cpu) not in known)
        for pin in places.vcpu_pins
        for cpu in parse_cpus(pin.cpus)
    ):
        return "its CPUs or the nodes of this host have other numbers now, or are gone"
    kinds = [[device.identity.split()[:2] for device in guest.devices] for guest in (places, now)]
    return None if kinds[0] == kinds[1] else "a device of another kind is at the address of one that it has"


# --- what is asked for ------------------------------------------------------------------------------------------


def same_request(host: Host, guest: GuestInForce, wanted: GuestIntent, reserve: Reserve) -> bool:
    """Return whether a request means the same as the one of a guest in force."""
    alike = guest.reserve == reserve or _kept(host, guest.reserve) == _kept(host, reserve)
    return alike and _meaning(guest.request) == _meaning(wanted)


def _kept(host: Host, reserve: Reserve) -> tuple[int, dict[int, int]]:
    """Return the cores and the bytes of each node that a reserve keeps; an older journal has the default cores as 1."""
    cores = LEAST_CORES if reserve.cores_per_node is None else reserve.cores_per_node
    return cores, reserve_bytes(host, reserve)


def _meaning(guest: GuestIntent) -> dict[str, Any]:
    """Return a request so that equal values ask for the same: sizes in bytes, addresses in one form and order."""
    fields = {name: getattr(guest, name) for name in guest.__struct_fields__ if name not in ("name", "state")}
    fields |= {name: _devices(fields[name]) for name in ("gpus", "nics", "nvme")}
    if isinstance(guest.numa, tuple):
        cells = [(cell.vcpus, parse_size(cell.memory, where="numa")) for cell in guest.numa]
        fields |= {"numa": cells, "vcpus": sum(cpus for cpus, _ in cells), "memory": sum(size for _, size in cells)}
    elif guest.memory != "auto":
        fields["memory"] = parse_size(guest.memory, where="memory")
    fields |= {"disk": None, "disks": tuple(guest.disk_paths.values())}
    fields["networks"] = guest.networks or ()
    fields["sysctl"] = {name: str(value) for name, value in (guest.sysctl or {}).items()}
    return fields


def _devices(value: object) -> object:
    if isinstance(value, tuple):
        return sorted(parse_address(address, where="guests") for address in value) or 0
    if isinstance(value, GpuRequest | NicRequest) and value == type(value)(count=value.count):
        return value.count
    return value or 0


# --- what a guest holds ------------------------------------------------------------------------------------------


def entry_of(standing: StandingIntent, guest: GuestInForce) -> RunningGuest:
    """Return a guest that stays as the host document shows it, with what its definition or its run has besides."""
    entry, resident = as_planned(guest.places), standing.residents.get(guest.name)
    if resident is None:
        return entry
    more = beyond(standing.bare, resident, guest.places, run=runs(resident))
    return changed(
        entry,
        vcpu_pins=(*(entry.vcpu_pins or ()), *(more.vcpu_pins or ())),
        memory=(*(entry.memory or ()), *(more.memory or ())),
        devices=(*entry.devices, *more.devices),
        mdevs=(*entry.mdevs, *more.mdevs),
        host_paths=tuple(dict.fromkeys((*entry.host_paths, *more.host_paths))),
    )


def beyond(host: Host, resident: RunningGuest, places: PlannedGuest | None, *, run: bool) -> RunningGuest:
    """Return what a guest of the host has besides these places: devices, and with `run` CPUs and memory of its run."""
    had = {device.address for device in places.devices} if places else ()
    own = pins_of(places) if places else ()
    pins = [pin for pin in resident.vcpu_pins or () if run and not parse_cpus(pin.cpus).issubset(own)]
    every = {cpu for pin in pins for cpu in parse_cpus(pin.cpus)} >= {
        cpu.id for cpu in host.cpus if cpu.online is not False
    }
    left: Counter[tuple[int, int | None]] = Counter()
    for cell in places.cells if places else ():
        left[int(cell.host_nodes), places.page_bytes if places else None] += cell.memory_bytes
    shares = guest_shares(resident, host.numa_nodes, place_cpus(host).nodes) if run else []
    return RunningGuest(
        name=resident.name,
        state="shut off",  # its memory is free on the bare host, as that of one that does not run
        vcpu_pins=() if every else tuple(VcpuPin(vcpu=pin.vcpu, cpus=pin.cpus) for pin in pins),
        memory=tuple(
            GuestMemory(node=node, memory_bytes=size - left[node, page], page_bytes=page)
            for node, size, page in shares
            if size > left[node, page]
        ),
        devices=tuple(address for address in resident.devices if address not in had),
        mdevs=tuple(uuid for uuid in resident.mdevs if uuid not in had),
        host_paths=resident.host_paths,
    )


# --- what changes of a guest --------------------------------------------------------------------------------------


def compared(host: Host, standing: StandingIntent, wanted: GuestIntent, planned: PlannedGuest) -> PlannedGuest:
    """Return a planned guest with what it changes of the one in force; one that stays is exactly as it is in force."""
    force = host.in_force or NOTHING
    old = next((guest for guest in force.guests if guest.name == wanted.name), None)
    if old is None:
        return planned
    resident = standing.residents.get(wanted.name)
    planned = changed(planned, uuid=old.uuid or old.places.uuid)
    stays = next((guest.places for guest in standing.fixed if guest.name == wanted.name), None)
    if stays is not None:
        planned, was = stays, intent_in_force(force)
        if (was.profile, was.settings) != (standing.intent.profile, standing.intent.settings or {}):
            planned = changed(planned, guest_settings=guest_settings(standing.intent, wanted))
    before, after = (guest_of(changed(guest, uuid=planned.uuid)) for guest in (old.places, planned))
    beside = _beside_guest(old.places)
    others = ((name, now, beside[name]) for name, now in _beside_guest(planned).items() if now != beside[name])
    later = resident is not None and runs(resident)
    changes = as_changes((*compare_guests(after, before), *others), "next-start" if later else "now")
    if resident is None:
        return changed(planned, change="create", changes=changes)
    return changed(
        planned if changes else changed(old.places, devices=planned.devices),
        change="update" if changes else "keep",
        changes=changes,
    )


def _beside_guest(guest: PlannedGuest) -> dict[str, object]:
    """Return what is planned of a guest and is not in its XML, by name."""
    ports = (changed(network, mac=None, vlan=None).text for network in guest.networks if network.vf_of)
    return {
        "MIG instances": tuple(f"{part.profile} at {part.start} of {part.gpu}" for part in guest.mig),
        "image": guest.image,
        "login": (*filter(None, (guest.user,)), *guest.ssh_keys),
        "virtual functions": "; ".join(ports) or None,
        "autostart": "as it is" if guest.autostart is None else guest.autostart,
        "settings inside": value_text(guest.guest_settings, nothing="") or None,
    }
