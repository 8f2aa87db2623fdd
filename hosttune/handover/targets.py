"""Which devices a hand-over is about, whose they were, and what refuses it before anything is changed.

Ownership is what the guests' definitions or the applied plans say, or what the register recorded when the device was
quarantined. It is recorded there before any driver changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hosttune.discovery.holders import holders
from hosttune.errors import BadInput, Refused
from hosttune.gpu import maker_of, reset_touches, vendor_of
from hosttune.gpu.bridges import fabric_bridges
from hosttune.gpu.vendor import MemoryClear
from hosttune.handover.serials import check_serial, serial_now
from hosttune.hypervisor import unread_guests
from hosttune.inventory.devices import identity, read_catalogue, same_device
from hosttune.journal.register import read_register
from hosttune.machine.system import System
from hosttune.model.host import Host, PciDevice
from hosttune.model.quarantine import DeviceRecord, Register, drive_mark
from hosttune.model.values import Value, address_key, is_address, parse_address
from hosttune.settings.drivers import VFIO, Driver
from hosttune.transaction.site import Site, refuse_open

NVME_DRIVER = "nvme"
_UNSURE = "in an unknown state"
_BRIDGE, _SWITCH = "06", "nvswitch"
# Driver of a physical network function -> of its virtual ones: mlx5_core_pci_table (mlx5/core/main.c) has both;
# iavf_pci_tbl (iavf_main.c): the adaptive VF is that of ice and i40e.
_OF_VIRTUAL = {"mlx5_core": "mlx5_core", "ice": "iavf", "i40e": "iavf"}


class Asked(Value, frozen=True, kw_only=True):
    """What the operator asked for.

    - `devices`: addresses; `guest`: a stopped guest, whose devices are meant. `erase`: serial numbers of the drives
      that may be erased, each alone or as ADDRESS=SERIAL.
    - `level`: of the validation, 1 or 2. `to_vfio`: return the devices to vfio-pci, whichever driver they were on.
    """

    devices: tuple[str, ...] = ()
    guest: str | None = None
    erase: tuple[str, ...] = ()
    level: int = 1
    to_vfio: bool = False


class Target(Value, frozen=True, kw_only=True):
    """One device of a hand-over.

    - `guest`: the guest that had it; `owner`: how that is known, None if it is not. `back`: the driver that it is
      returned to, None: none. `driver`: the host's own driver for it, None: unknown.
    - `handover`: the number under which its hand-over began; `again`: that one was cut off or not clean.
    - `physical`: the physical function of a virtual one. `unused`: it was clean, and no guest was started since.
      `serial`: of a drive, as given to be erased. `firmware`: as of
      its last hand-over, None: unknown.
    - `search`: the program that searches a GPU's memory, "" if there is none. `memory_clear`: the maker's tool that
      says whether a GPU has cleared it, None if none is known.
    - `methods`: the reset methods of the kernel for it; `weak`: those of them that leave state, with the reason.
    """

    address: str
    kind: str
    identity: str
    guest: str | None = None
    owner: str | None = None
    back: str | None = None
    driver: str | None = None
    handover: str | None = None
    again: bool = False
    physical: str | None = None
    unused: bool = False
    serial: str | None = None
    firmware: Mapping[str, str] | None = None
    methods: tuple[str, ...] | None = None
    weak: Mapping[str, str] = {}
    search: str = ""
    memory_clear: MemoryClear | None = None


def chosen(site: Site, host: Host, asked: Asked) -> tuple[Target, ...]:
    """Return the devices of a hand-over, in the order of addresses. Raises BadInput, Refused; changes nothing."""
    register = host.handover.register if host.handover is not None else Register()
    if site.store is not None:
        register = read_register(site.store.folder)
    addresses = _asked_addresses(host, register, asked)
    # Raise Refused for an address where another device is quarantined: that one would not be, any more.
    for known in (record for record in register.quarantined if record.address in addresses):
        refuse_other(known, identity_now(site.system, host, known.address))
    refuse_open(site.transactions())
    owners = {address: _owner(site, host, register, address, asked) for address in addresses}
    _refuse_used(site, host, addresses)
    serials = _serials(site, host, addresses, asked.erase, owners)
    # Raise Refused if another drive is to be erased than the one that is quarantined at its address.
    for known in (record for record in register.quarantined if record.address in serials):
        marks = [word for word in known.identity.split(" ") if word.startswith("serial=")]
        if marks and marks != [drive_mark(serials[known.address])]:
            what = f"quarantined at {known.address} is {known.identity!r}, not {serials[known.address]!r}"
            hint = f"put that drive back, or free it: hosttune handover release {known.address} --why TEXT"
            raise Refused(what, where="--erase", hint=hint)
    return tuple(
        _target(site, host, register, address, owners[address], serials.get(address), asked) for address in addresses
    )


def _asked_addresses(host: Host, register: Register, asked: Asked) -> tuple[str, ...]:
    """Return the addresses that the operator means, each once. Raises BadInput, Refused."""
    if not asked.devices and asked.guest is None:
        hint = "name devices (--device BDF) or a stopped guest (--guest NAME)"
        raise BadInput("no device is named", where="command line", hint=hint)
    if len(set(asked.devices)) != len(asked.devices):
        raise BadInput("a device is named twice", where="--device", hint="name each device once")
    if host.guests is None:
        what = "libvirt cannot be asked which guests have these devices"
        raise Refused(what, where="libvirt", hint="start libvirt, then try again")
    addresses = {*asked.devices, *(_of_guest(host, register, asked.guest) if asked.guest is not None else ())}
    for address in sorted(addresses, key=address_key):
        function = host.index.pci.get(address)
        if function is None:
            hint = "hosttune discover lists the devices of this host"
            raise BadInput(f"no device {address}", where="--device", hint=hint)
        if (function.class_code or "").startswith(_BRIDGE) and kind_of(host, address) != _SWITCH:
            raise BadInput(f"{address} is a bridge", where="--device", hint="name the devices below it")
        if function.boot_display:
            raise BadInput(f"{address} is the boot display", where="--device", hint="the host's console needs it")
    return tuple(sorted(addresses, key=address_key))


def _of_guest(host: Host, register: Register, name: str) -> Iterable[str]:
    """Return the devices of a guest: of its definition, or those that it had when their hand-over began."""
    guest = next((running_guest for running_guest in host.guests or () if running_guest.name == name), None)
    if guest is not None and guest.may_run:
        hint = f"shut it down first: virsh shutdown {name}"
        raise Refused(f"guest {name} is {guest.state or _UNSURE}", where="--guest", hint=hint)
    if guest is not None and guest.mdevs:
        what = f"guest {name} has mediated devices, which cannot be handed over: {', '.join(guest.mdevs)}"
        hint = "name the function that they are of, and the other devices: --device BDF"
        raise Refused(what, where="--guest", hint=hint)
    begun = [record.address for record in register.quarantined if record.guest == name]
    addresses = [*(guest.devices if guest is not None else ()), *begun]
    named = tuple(dict.fromkeys(address for address in addresses if is_address(address)))
    if not named and not any(name in users for users in host.index.users.values()):
        what = f"guest {name} has no PCI device" if guest is not None else f"no guest {name} is defined here"
        raise BadInput(what, where="--guest", hint="virsh list --all shows the guests; or name devices: --device BDF")
    return named


def identity_now(system: System, host: Host, address: str) -> str:
    """Return the identity of a device, of a drive with the serial number that the host's driver shows."""
    serial = serial_now(system, address)
    return " ".join([identity(read_catalogue(host), address, host), *([drive_mark(serial)] if serial else [])])


def joined(before: str, now: str) -> str:
    """Return the identity of a device as it is now, with what was known of it before and is not told now."""
    names = {word.partition("=")[0] for word in now.split(" ")[2:]}
    return " ".join([now, *(word for word in before.split(" ")[2:] if word.partition("=")[0] not in names)])


def refuse_other(known: DeviceRecord, now: str) -> None:
    """Raise Refused if the device that is quarantined at an address is not the one that is there now."""
    if not same_device(known.identity, now):
        what = f"another device is at {known.address} now: quarantined is {known.identity!r}, and it is {now!r}"
        hint = f"put the quarantined device back, or free it: hosttune handover release {known.address} --why TEXT"
        raise Refused(what, where=known.address, hint=hint)


def _owner(site: Site, host: Host, register: Register, address: str, asked: Asked) -> tuple[str, str] | None:
    """Return the guest that had a device, and how that is known; None if it is not. Raises BadInput."""
    record = register.record(address)
    begun = record.guest if record is not None and record.state == "quarantined" else None
    sharing = host.index.users.get(address, {})
    if sharing.keys() - {asked.guest, begun} or set(host.index.untold.values()) - {asked.guest, begun}:
        return None  # its data is another guest's, or may be
    if begun is not None:
        return begun, f"guest {begun}, recorded when its hand-over began"
    defined = [running_guest.name for running_guest in host.guests or () if address in running_guest.devices] or [
        *sharing
    ]
    if unread_guests(host):
        return None  # another guest may have it too
    if len(defined) == 1:
        return defined[0], f"guest {defined[0]}, from its definition"
    if defined:
        return None  # which of them had it last is not known
    plan = site.plan_in_force()
    guests = plan.guests if plan is not None else ()
    planned = [guest.name for guest in guests for device in guest.devices if device.address == address]
    return (planned[-1], f"guest {planned[-1]}, from the journal") if planned else None


def _refuse_used(site: Site, host: Host, addresses: Sequence[str]) -> None:
    """Raise Refused for devices that a running guest or a process uses, or of which that cannot be told."""
    lines = [line for address in addresses for line in _running(host, address)]
    lines += _touched(host, addresses)
    kept = {gpu.address: Driver.of(gpu.address).kept_open(host) for gpu in host.gpus if gpu.address in addresses}
    lines += [f"{address}: {why}" for address, why in kept.items() if why]
    if not site.system.captured or site.system.scratch:
        switches = any(kind_of(host, address) == _SWITCH for address in addresses)
        joined = [gpu.address for gpu in host.gpus if switches and gpu.address not in addresses]
        lines += [user.text for user in holders(site.system, (*addresses, *joined))]
    if lines:
        what = "in use:\n" + "\n".join(f"  {line}" for line in lines)
        raise Refused(what, where="this host", hint="stop what uses it, then try again; nothing was changed")


def _touched(host: Host, addresses: Sequence[str]) -> list[str]:
    """Return which guests run with a GPU that the reset of another device, which is handed over, can interrupt.

    How GPUs are joined is known only while their maker's driver holds them: unknown counts as joined. NVSwitches join
    all GPUs.
    """
    touching = [gpu for gpu in host.gpus if reset_touches(gpu, host.index.pci.get(gpu.address))]
    switches = [peer for peer in addresses if kind_of(host, peer) == _SWITCH]
    lines = [line for gpu in host.gpus if switches for line in _running(host, gpu.address, switches[0])]
    for gpu in (gpu for gpu in touching if gpu.address in addresses):
        maker = vendor_of(gpu.vendor)
        peers = {peer.address for peer in gpu.peers or () if maker is not None and peer.kind == maker.link}
        alike = [peer.address for peer in touching if peer.vendor == gpu.vendor and peer.address not in addresses]
        joined = [other for other in alike if gpu.peers is None or other in peers]
        lines += [line for other in joined for line in _running(host, other, gpu.address)]
    return lines


def _running(host: Host, address: str, reset: str | None = None) -> list[str]:
    """Return one line for each guest that runs with a device or a part of it: a virtual function, a mediated device.

    `reset`: the other device whose reset can interrupt it.
    """
    functions = [of for gpu in (host.vgpu.gpus if host.vgpu else ()) if gpu.address == address for of in gpu.functions]
    parts = {address, *host.index.virtuals.get(address, ()), *(uuid for of in functions for uuid in of.mdevs)}
    users = host.index.users.get(address, {})
    interrupts = f", and a reset of {reset} can interrupt it" if reset else ""
    return [
        f"{address}: guest {guest.name} has it and is {guest.state or _UNSURE}{interrupts}: shut it down first"
        for guest in host.guests or ()
        if guest.may_run and (guest.name in users or not parts.isdisjoint((*guest.devices, *guest.mdevs)))
    ]


def _serials(
    site: Site, host: Host, addresses: Sequence[str], given: Sequence[str], owners: Mapping[str, tuple[str, str] | None]
) -> Mapping[str, str]:
    """Return the serial number to erase of each drive. Raises BadInput, Refused for a drive that may not be erased.

    A drive on vfio-pci does not show its serial number. It is read again before anything is sent to the drive.
    """
    drives = [address for address in addresses if kind_of(host, address) == "nvme"]
    named, plain = _given(given)
    shown = {drive: serial_now(site.system, drive) for drive in drives}
    for drive, known in shown.items():
        if drive not in named and known in plain:
            named[drive] = str(known)
            plain.remove(str(known))
        if known is not None and named.get(drive, known) != known:
            what = f"drive {drive} has the serial number {known!r}, not {named[drive]!r}"
            raise Refused(what, where="--erase", hint="look which drive is there now; nothing was changed")
    unknown = [drive for drive in drives if drive not in named and shown[drive] is None]
    if len(unknown) == len(plain) == 1:
        named[unknown[0]] = plain.pop()
    elif plain and unknown:
        hint = "these drives are on vfio-pci and show no serial number: name each as --erase ADDRESS=SERIAL"
        raise BadInput(f"which of {', '.join(unknown)} has which serial number", where="--erase", hint=hint)
    strange = [*plain, *(address for address in named if address not in drives)]
    if strange:
        what = f"{strange[0]} is not a drive of this hand-over"
        raise BadInput(what, where="--erase", hint=f"drives of this hand-over: {', '.join(drives) or 'none'}")
    for drive in drives:
        if drive not in named:
            hint = "allow it by its serial number: --erase SERIAL; or leave it out: --device of the others"
            raise Refused(f"drive {drive} is not named to be erased", where="--erase", hint=hint)
        if owners[drive] is None:
            hint = "the stopped guest's definition, or a plan that is applied, must have it, and no other guest"
            unread = ", ".join(guest.name for guest in unread_guests(host))
            hint += f"; which devices these guests have cannot be read: {unread}" if unread else ""
            untold = ", ".join(f"{path} of guest {name}" for path, name in host.index.untold.items())
            hint += f"; what these are on is unknown: {untold}" if untold else ""
            users = " and ".join(host.index.users.get(drive, {}))
            hint += f"; guest {users} has a part of it: if that may go, name the guest too (--guest)" if users else ""
            raise Refused(f"drive {drive}: that a stopped guest had it is not known", where=drive, hint=hint)
    return named


def _given(given: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return (the serial numbers that were given with an address, the others). Raises BadInput."""
    named: dict[str, str] = {}
    plain: list[str] = []
    for one in given:
        address, kind, serial = one.partition("=")
        serial = check_serial(serial if kind else one)
        if not kind:
            plain.append(serial)
            continue
        address = parse_address(address.strip(), where="--erase")
        if address in named:
            raise BadInput(f"{address} is named twice", where="--erase", hint="give each drive one serial number")
        named[address] = serial
    return named, plain


def kind_of(host: Host, address: str) -> str:
    """Return the kind of a device, as in plans."""
    function = host.index.pci.get(address)
    if address in host.index.gpus:
        return "gpu"
    if function is not None and function.is_nvme:
        return "nvme"
    if address in (*(switch.address for switch in host.nvswitches), *fabric_bridges(host.pci, host.nics)):
        return _SWITCH
    if function is not None and function.is_network:
        return "nic"
    return "other"


def _target(
    site: Site,
    host: Host,
    register: Register,
    address: str,
    owner: tuple[str, str] | None,
    serial: str | None,
    asked: Asked,
) -> Target:
    function, record = host.index.pci[address], register.record(address)
    begun = record if record is not None and record.state == "quarantined" else None
    kind = kind_of(host, address)
    resets_of = maker_of(function.vendor_id) if kind in ("gpu", _SWITCH) else None
    maker = resets_of if kind == "gpu" else None
    return Target(
        address=address,
        kind=kind,
        identity=begun.identity if begun else identity_now(site.system, host, address),
        guest=owner[0] if owner else None,
        owner=owner[1] if owner else None,
        back=VFIO if asked.to_vfio else begun.driver if begun else _driver_now(function),
        driver=_own_driver(site, host, function, (maker.driver if maker else "") or (NVME_DRIVER * (kind == "nvme"))),
        handover=_number(host, begun),
        again=begun is not None,
        physical=function.physfn,
        unused=_unused(host, record),
        serial=serial,
        firmware=record.firmware if record is not None and record.state != "released" else None,
        methods=function.reset_methods,
        weak=resets_of.weak_resets if resets_of else {},
        search=maker.memory_search if maker else "",
        memory_clear=maker.memory_clear if maker else None,
    )


def _driver_now(function: PciDevice) -> str | None:
    address = function.address
    if function.driver_unknown:
        raise Refused(f"the driver of {address} is unknown", where=address, hint="run as root, on the host itself")
    return function.driver


def _number(host: Host, begun: DeviceRecord | None) -> str | None:
    """Return the number to go on with; None to begin anew: unless it is known that no guest was started since."""
    if begun is None or begun.epoch is None:
        return None
    now = host.handover.counted(begun) if host.handover is not None else None
    return begun.handover if now == begun.epoch else None


def _unused(host: Host, record: DeviceRecord | None) -> bool:
    """Return whether it is known that no guest was started with a device since its last hand-over, which was clean."""
    state = host.handover
    if record is None or record.state != "clean" or record.epoch is None or state is None:
        return False
    return state.counted(record) == record.epoch


def _own_driver(site: Site, host: Host, function: PciDevice, of_kind: str) -> str | None:
    """Return the host's own driver for a device; None if it is not known.

    The one that has it, or had it before vfio-pci; that of its kind; the one that has another device of its model; or,
    for a virtual network function, the one that belongs to the driver of its physical one.
    """
    if function.driver is not None and "vfio" not in function.driver:
        return function.driver
    for transaction in reversed(site.transactions()):
        for record in transaction.records:
            before = record.old if (record.kind, record.target) == ("driver", function.address) else None
            if isinstance(before, str) and "vfio" not in before:
                return before
    alike = {device.driver for device in host.pci if device.ids and device.ids == function.ids and device.driver}
    others = [driver for driver in sorted(alike) if "vfio" not in driver]
    if of_kind or len(others) == 1:
        return of_kind or others[0]
    physical = host.index.pci.get(function.physfn) if function.physfn is not None else None
    return _OF_VIRTUAL.get(physical.driver or "") if physical is not None else None
