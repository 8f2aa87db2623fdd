"""What a transaction refuses before it writes: other machines, other devices, devices in use, running guests."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from hosttune.discovery.fabric import SERVICE, read_fabric_manager
from hosttune.discovery.holders import holders
from hosttune.disks import functions_of
from hosttune.errors import BadInput, Refused, Unreadable
from hosttune.inventory.names import mistaken, unknown_ours
from hosttune.inventory.partitions import read_fabric
from hosttune.journal import Record, Store, Transaction
from hosttune.journal.force import changes_force, newest
from hosttune.journal.register import read_register
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.force import InForce
from hosttune.model.hints import did_you_mean, did_you_mean_address
from hosttune.model.host import Host
from hosttune.model.listing import some
from hosttune.model.plan import Plan, Unplaced
from hosttune.model.platform import RunningGuest
from hosttune.model.quarantine import DeviceRecord
from hosttune.model.values import addresses_in, grouped
from hosttune.settings.drivers import virtual_functions
from hosttune.settings.setting import Disturbing, FreesDevice, MayGiveLess, TakesDevice
from hosttune.transaction.site import Site
from hosttune.transaction.steps import TODO, Prepared, setting_of_record

WAIT_SECONDS = 600.0  # for a person
# Shows a person what to do, and waits at most so many seconds for the answer. False: nobody can be asked, or no.
Person = Callable[[str, float], bool]
_ADDRESS = re.compile(r"[0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}\.[0-9A-Fa-f]")


def check_machine(plan: Plan, host: Host) -> None:
    """Refuse a plan for another machine, or a plan that names no machine. Raises Refused."""
    hint = "plan again on this machine, or copy the intent there instead of the plan"
    if plan.host_digest is None:
        what = "the plan names no machine: it was made from a capture, or where the machine id or the CPUs are unknown"
        raise Refused(what, where="plan: host_digest", hint=hint)
    if host.digest is None:
        raise Refused("this machine cannot be identified: no machine id", where="/etc/machine-id", hint=hint)
    if plan.host_digest != host.digest:
        made = f" ({plan.hostname})" if plan.hostname else ""
        what = f"the plan is of another machine{made}, or CPUs, nodes or the machine id changed since"
        raise Refused(what, where="plan: host_digest", hint=hint)


def check_newest(plan: Plan, site: Site, transactions: Sequence[Transaction]) -> None:
    """Refuse a plan that was made when something else was in force, or that knows of a transaction that is not here.

    A plan that is applied again is not stale by its own transactions, the newest. Raises Refused.
    """
    last = newest(transactions)
    if plan.based_on in (None, last):
        return
    since = [
        transaction
        for transaction in transactions
        if transaction.header.number > plan.based_on and changes_force(transaction)
    ]
    while since and site.store is not None and site.store.plan_of(since[-1]) == plan.to_json():
        since.pop()
    before = since[-1].header.number if since else plan.based_on
    then, now = (
        [transaction for transaction in transactions if transaction.header.number <= number]
        for number in (plan.based_on, before)
    )
    if plan.based_on > last or site.standings(then).in_force != site.standings(now).in_force:
        what = f"the plan is stale: it was made after transaction {plan.based_on}, and the newest here is {last}"
        raise Refused(what, where="plan: based_on", hint="plan again (hosttune plan), or hosttune apply --intent FILE")


def check_identities(plan: Plan, host: Host) -> None:
    """Refuse a plan if its addresses now have other devices. Raises Refused with every difference."""
    from hosttune.inventory.devices import identity, read_catalogue, same_device
    from hosttune.inventory.virtualfunctions import with_functions

    catalogue = read_catalogue(with_functions(host, plan.intent))
    changed = [
        f"  {device.address} (guest {guest.name}): planned {device.identity!r}, now {now!r}"
        for guest in (*plan.guests, *(adopted.guest for adopted in plan.adoptions))
        for device in guest.devices
        if device.kind != "mdev"
        for now in (identity(catalogue, device.address, host),)
        if not same_device(device.identity, now)
    ]
    if changed:
        what = "the plan is stale: the host has other devices now\n" + "\n".join(changed)
        raise Refused(what, where="plan", hint="plan again (hosttune plan), or hosttune apply --intent FILE")


def check_quarantine(plan: Plan, host: Host, store: Store | None) -> None:
    """Refuse a plan that gives away, or changes, a device between two tenants.

    Raises Refused with every device, BadInput for a register that cannot be read.
    """
    from hosttune.inventory.devices import quarantined_devices

    register = read_register(store.folder) if store is not None else None
    guests = (*plan.guests, *(adopted.guest for adopted in plan.adoptions))
    named = {
        *(device.address for guest in guests for device in guest.devices),
        *(assignment.gpu for guest in plan.guests for assignment in guest.mig),
        *(address for action in plan.actions for address in addresses_in(action.target)),
    }
    reasons = quarantined_devices(host, register)
    adopted = {adopted_guest.name for adopted_guest in plan.adoptions}
    paths = [disk for planned_guest in guests for disk in planned_guest.disks if disk.startswith("/dev/")]
    paths += [
        path
        for running_guest in host.guests or ()
        if running_guest.name in adopted
        for path in running_guest.host_paths
    ]
    disks = {path: host.index.functions_under(path) for path in paths}
    named |= {address for functions in disks.values() for address in functions or ()}
    lines = [f"  {reasons[address]}" for address in sorted(named & reasons.keys())]
    lines += [
        f"  {path} may be on one: what it is on is unknown" for path, on in disks.items() if reasons and on is None
    ]
    if lines:
        hint = "finish its hand-over (hosttune handover), or free it (hosttune handover release BDF --why TEXT)"
        raise Refused("devices between two tenants:\n" + "\n".join(lines), where="plan", hint=hint)


def refuse_between_tenants(system: System, store: Store, records: Iterable[Record]) -> None:
    """Refuse to undo what is about a device between two tenants, or what guards it. Raises Refused, BadInput.

    Undone, it would go to the driver of the host, or to a guest by an earlier definition; without libvirt's hook, any
    program could start a guest with it.
    """
    held = {device_record.address: device_record for device_record in read_register(store.folder).quarantined}
    related = {
        other: device_record for address, device_record in held.items() for other in _same_device(system, address)
    }
    lines = {
        f"  {device_record.address} is quarantined since {device_record.since} ({device_record.why}): "
        f"{record.kind}:{record.target} would be undone"
        for record in (records if held else ())
        for device_record in (held.values() if record.kind == "libvirt-hook" else _touched(system, record, related))
    }
    if lines:
        hint = "finish its hand-over (hosttune handover), or free it (hosttune handover release BDF --why TEXT)"
        raise Refused("devices between two tenants:\n" + "\n".join(sorted(lines)), where="journal", hint=hint)


def _same_device(system: System, address: str) -> Iterable[str]:
    """Yield the function itself, its physical function and its virtual functions."""
    physical = system.link(sysfs.function(address, "physfn"))
    return (address, *virtual_functions(system, address), *([physical.rpartition("/")[2]] if physical else ()))


def _touched(system: System, record: Record, held: Mapping[str, DeviceRecord]) -> Iterable[DeviceRecord]:
    """Yield the quarantined devices that a record is about: as its target, or in the definition that it would restore.

    A definition that cannot be read may have any of them.
    """
    from hosttune.hypervisor.definition import GuestDefinition  # `status` does not need it

    setting = setting_of_record(record)
    if not isinstance(setting, GuestDefinition) or record.old is None:
        return [held[address] for address in addresses_in(record.target) if address in held]
    try:
        facts = setting.facts_of(record.old)
        sources = [*facts.functions, *(device.source for device in facts.hostdevs if device.source is not None)]
    except BadInput:
        return held.values()
    shared = functions_of(Reader(system), facts.host_paths)
    if None in shared:
        return held.values()
    sources += [address for functions in shared for address in functions or ()]
    devices = {
        *sources,
        *(
            name
            for source in sources
            for name in sysfs.functions_in(system.link(f"/sys/bus/mdev/devices/{source}") or "")
        ),
    }
    return [device_record for address, device_record in held.items() if address in devices]


# --- busy ----------------------------------------------------------------------------------------------------


def check_names(names: Collection[str], host: Host, others: Iterable[str] = ()) -> None:
    """Refuse names in --disrupt that are no PCI function and no guest here. `others`: guests that are known besides.

    Raises BadInput. Where libvirt cannot be asked, every name that is no address may be a guest.
    """
    guests = None if host.guests is None else {*(guest.name for guest in host.guests), *others}
    addresses = {function.address for function in host.pci}
    for name in names:
        looks_like = _ADDRESS.fullmatch(name) is not None
        if name in addresses or (guests is not None and name in guests) or (guests is None and not looks_like):
            continue
        known = sorted({*(gpu.address for gpu in host.gpus or ()), *(guests or ())})
        hint = f"give the address of a GPU or the name of a guest: {some(known, 16) or 'there is none'}"
        hint = did_you_mean_address(name, known, hint) if looks_like else did_you_mean(name, known, hint)
        raise BadInput(f"no GPU and no guest {name!r} on this host", where="--disrupt", hint=hint)


def refuse_busy(system: System, host: Host, todo: Sequence[Prepared], disrupt: Collection[str]) -> None:
    """Refuse to change what is in use: devices held by processes, and devices and definitions of running guests.

    `disrupt` names GPUs and guests that may be disturbed. Raises Refused, naming every process and guest.
    """
    lines = busy_lines(system, host, todo, disrupt)
    if lines:
        raise Refused(
            "in use, or disruptive:\n" + "\n".join(f"  {line}" for line in lines),
            where="this host",
            hint="stop what uses it, then apply again; a reset or a running guest needs its name in --disrupt",
        )


def busy_lines(system: System, host: Host, todo: Sequence[Prepared], disrupt: Collection[str]) -> tuple[str, ...]:
    """Return what `refuse_busy` refuses, one line each. Raises Unreadable."""
    todo = [change for change in todo if not change.step.gives_up and not change.is_noted]
    lines = (
        *_disruptive(system, todo, disrupt),
        *_of_guests(system, host, todo, disrupt),
        *_held(system, host, todo),
        *manager_lines(system, host, todo),
    )
    return tuple(dict.fromkeys(lines))  # two settings may take one device


def manager_lines(system: System, host: Host, todo: Sequence[Prepared]) -> Iterator[str]:
    """Yield what a person does before NVSwitches, or what carries them, go to a guest: end the Fabric Manager here."""
    settings = [prepared.step.setting for prepared in todo if not prepared.step.back]
    hidden = {setting.target for setting in settings if isinstance(setting, TakesDevice) and setting.hides_device}
    manager = read_fabric_manager(Reader(system), host) if hidden & {*read_fabric(host).switches} else None
    if manager and manager.installed is not False and manager.running is not False:
        runs = "runs here" if manager.running else "may run here (its state is unknown)"
        command = f"systemctl disable --now {SERVICE.removesuffix('.service')}"
        yield f"the Fabric Manager {runs} and has the NVSwitches that go to a guest: {command}; it is inactive then"


def _disruptive(system: System, todo: Sequence[Prepared], disrupt: Collection[str]) -> Iterable[str]:
    for prepared in todo:
        setting = prepared.step.setting
        if setting.disruptive and setting.target not in disrupt:
            yield f"{prepared.step.name} disturbs {setting.target}: --disrupt {setting.target}"
        if prepared.verdict == TODO and isinstance(setting, Disturbing):
            yield from setting.disturbed(system)


def _of_guests(system: System, host: Host, todo: Sequence[Prepared], disrupt: Collection[str]) -> Iterable[str]:
    from hosttune.hypervisor import is_active

    running = {guest.name: guest for guest in host.guests or () if is_active(guest.state)}
    for prepared in todo:
        setting = prepared.step.setting
        if not isinstance(setting, TakesDevice) or prepared.verdict != TODO:
            continue
        for guest in running.values():
            if guest.unread and guest.name not in disrupt:
                unread = f"guest {guest.name}, which is {guest.state} and whose definition cannot be read"
                yield f"{setting.target} may be given to {unread}: correct it, or shut the guest down"
            for address in sorted({setting.target, *setting.taken(system)} & set(guest.devices)):
                yield f"{address} is given to guest {guest.name}, which is {guest.state}: shut it down first"


def _held(system: System, host: Host, todo: Sequence[Prepared]) -> Iterable[str]:
    takers = [
        (prepared.step.setting, prepared.verdict) for prepared in todo if isinstance(prepared.step.setting, TakesDevice)
    ]
    addresses = [address for setting, verdict in takers if verdict == TODO for address in setting.taken(system)]
    for holder in holders(system, addresses) if addresses else ():
        yield holder.text
    freed = {prepared.step.setting.target for prepared in todo if isinstance(prepared.step.setting, FreesDevice)}
    kept = {(setting.target, setting.kept_open(host)) for setting, _ in takers if setting.target not in freed}
    yield from sorted(f"{target}: {why}" for target, why in kept if why)


def refuse_in_use(system: System, records: Sequence[Record], ended: Collection[str] = frozenset()) -> None:
    """Refuse to revert what is in use now, no matter who started that guest or process. Raises Refused.

    This covers devices whose driver would change (vfio-pci's unbind asks QEMU to unplug the device from the running
    guest) and huge pages in use. `ended` names guests that the rollback itself ends first.
    """
    lines = [] if ended else list(_still_in_use(system, records))
    addresses = dict.fromkeys(address for record in records for address in _functions_changing_driver(system, record))
    users = holders(system, tuple(addresses)) if addresses else ()
    lines += [holder.text for holder in users if holder.guest is None or holder.guest not in ended]
    if lines:
        what = "in use:\n" + "\n".join(f"  {line}" for line in lines)
        raise Refused(what, where="this host", hint="stop what uses it, then try again; nothing was reverted")


def _functions_changing_driver(system: System, record: Record) -> tuple[str, ...]:
    """Return the functions whose driver the revert would change. Empty if it is already back or cannot be read."""
    setting = setting_of_record(record)
    try:
        return setting.taken_by_revert(system, record.old) if isinstance(setting, TakesDevice) else ()
    except Unreadable:
        return ()  # the revert reports what it cannot read


def _still_in_use(system: System, records: Sequence[Record]) -> Iterable[str]:
    """Report settings that still have hosttune's value if more is in use than the original value would provide."""
    for changes in grouped(((record.kind, record.target), record) for record in records).values():
        setting = setting_of_record(changes[0])
        if not isinstance(setting, MayGiveLess):
            continue
        cut_off = any(change.outcome is None for change in changes)
        left = None if cut_off else [value for change in changes for value in (change.new, change.after)]
        try:
            line = setting.still_in_use(system, changes[0].old, left)
        except Unreadable:
            continue  # the revert reports it
        if line:
            yield line


def renamed(site: Site, name: str) -> Unplaced | None:
    """Return why libvirt has not the guest in force by this name; None if it has, or if that is unknown."""
    guests, force = _guests_and_force(site)
    return mistaken(guests, force, name) if guests is not None and force is not None else None


def made_since(site: Site) -> tuple[str, ...]:
    """Return a note for each guest of libvirt that an apply may have made after the journals here were saved."""
    guests, force = _guests_and_force(site)
    host = Host(hostname=site.hostname, guests=guests)
    return (
        tuple(f"{finding.where}: {finding.text}" for finding in unknown_ours(host, force)) if force is not None else ()
    )


def _guests_and_force(site: Site) -> tuple[tuple[RunningGuest, ...] | None, InForce | None]:
    """Return the guests that libvirt has now, and what is in force; None for what is unknown."""
    from hosttune.discovery.guests import read_guests

    return read_guests(Reader(site.system))[0], site.in_force()


def refuse_removal(site: Site, records: Iterable[Record]) -> None:
    """Refuse to undefine guests that run, have another name, or of which something would be lost.

    Raises Refused, naming the ways.
    """
    from hosttune.hypervisor.connection import is_active, read_state
    from hosttune.hypervisor.removed import obstacles

    lines, system = [], site.system
    for name in (record.target for record in records if record.kind == "guest" and record.old is None):
        try:
            state = read_state(system, name)
            other = renamed(site, name)
            why = [f"it is {state}: virsh shutdown {name}"] if is_active(state) else []
            why += [] if state is None else obstacles(system, name)
            why += [f"{other.why[0]}: {other.relaxation[0]}"] if other else []
        except Unreadable as error:
            why = [f"libvirt cannot be asked about it: {error.reason}"]
        lines += [f"  guest {name}: {text}" for text in why]
    if lines:
        what = "a guest cannot be taken away now:\n" + "\n".join(lines)
        raise Refused(what, where="guests", hint="do what is named for each, then try again; nothing was changed")


def refuse_running_guests(system: System, records: Iterable[Record], disrupt: Collection[str] = frozenset()) -> None:
    """Refuse to put back the definition of a guest that is running. Raises Refused."""
    from hosttune.hypervisor import is_active

    ours = {record.target for record in records if record.kind in ("guest", "guest-state")}
    if not ours:
        return
    from hosttune.discovery.guests import read_guests

    guests, _ = read_guests(Reader(system))
    if guests is None:
        raise Refused(
            "libvirt cannot be asked whether the guests run that were set up", where="libvirt", hint="start libvirt"
        )
    running = [guest.name for guest in guests if guest.name in ours - set(disrupt) and is_active(guest.state)]
    if running:
        what = f"guests that hosttune set up are running: {', '.join(running)}"
        raise Refused(what, where="guests", hint="shut it down first: virsh shutdown NAME")
