"""Whether a drive may be erased: it is the stopped guest's, nothing else shares it, and nothing uses it.

A sanitize erases the whole NVM subsystem: every namespace, also those that only other controllers or virtual functions
reach. So each of these must belong to the hand-over; what cannot be told is refused. Signatures on the media refuse
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosttune.discovery.holders import holders
from hosttune.disks import nvme_names
from hosttune.errors import CommandFailed, InUse, Refused, Unreadable
from hosttune.handover.erasing.nvme import Drive, NvmeIdentity
from hosttune.handover.erasing.progress import EraseOrder
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.values import Value, grouped

_CLASS = "/sys/class/nvme"
_BLOCK = "/sys/class/block"


class NvmeController(Value, frozen=True, kw_only=True):
    """A controller that the host's nvme driver has: its name ("nvme0"), its id in its subsystem, its PCI function."""

    name: str
    cntlid: int | None
    address: str


def refuse_unowned(order: EraseOrder) -> None:
    """Raise Refused unless the drive was the stopped guest's and is part of the hand-over."""
    if order.address not in order.belonging:
        raise _refused(order, "is not part of this hand-over", "name it with --device, or its guest with --guest")
    if order.owner is None:
        hint = "only a drive that the stopped guest had, by its definition or hosttune's journal, is erased"
        raise _refused(order, "is not known to have been the guest's", hint)


def controller_of(system: System, order: EraseOrder) -> str:
    """Return the name of the drive's controller ("nvme0"). Raises Refused if the nvme driver does not have it."""
    reader = Reader(system)
    name, _ = nvme_names(reader, order.address)
    if name is None or reader.link_name(sysfs.function(order.address, "driver")) != "nvme":
        raise _refused(order, "is not on the host's nvme driver", "bind it to nvme first")
    return name


def refuse_other_serial(order: EraseOrder, identity: NvmeIdentity) -> None:
    """Raise Refused unless the drive gives the serial number that was named."""
    if identity.serial != order.serial.strip():
        what = f"has the serial number {identity.serial!r}, not {order.serial.strip()!r}"
        raise _refused(order, what, "nothing was erased: look which drive is there now, and name its serial number")


def refuse_foreign(
    system: System, order: EraseOrder, drive: Drive, identity: NvmeIdentity
) -> tuple[NvmeController, ...]:
    """Return the controllers of the drive's subsystem, this one first; all belong to the hand-over.

    Raises Refused if a controller, a function or a namespace does not belong, or if that cannot be told.
    """
    reader = Reader(system)
    # The drive's controller and all others of its subsystem, by the subsystem's NQN.
    own = reader.text(f"{_CLASS}/{drive.name}/subsysnqn")
    if not own:
        raise _refused(order, "has an NVM subsystem that cannot be told: no subsysnqn in sysfs", "use a newer kernel")
    names = (drive.name, *(other for other in reader.names(_CLASS) if other != drive.name))
    controllers = []
    for other in names:
        nqn = reader.text(f"{_CLASS}/{other}/subsysnqn")
        if nqn in (own, None, ""):  # one that cannot be told counts as of this subsystem
            address = order.address if other == drive.name else reader.text(f"{_CLASS}/{other}/address") or other
            cntlid = reader.count(f"{_CLASS}/{other}/cntlid")
            controllers.append(NvmeController(name=other, cntlid=cntlid, address=address))
    known = tuple(controllers)
    functions = {controller.address for controller in known}
    functions |= {other for address in sorted(functions) for other in _relatives(reader, address)}
    foreign = sorted(functions - set(order.belonging))
    if foreign:
        what = f"shares its NVM subsystem with {', '.join(foreign)}, which are not part of this hand-over"
        raise _refused(order, what, "hand over all functions of the drive together: their data is erased with it")
    if reader.problems:
        first = reader.problems[0]
        raise _refused(order, f"may share its NVM subsystem: {first.where}: {first.why}", "run as root")
    ids = {controller.cntlid for controller in known}
    if None in ids or identity.cntlid not in ids:
        raise _refused(order, "has a controller whose id is unknown", "check the drive with nvme id-ctrl")
    if not identity.alone:
        _refuse_unseen(reader, order, drive, identity, ids)
    return known


def _relatives(reader: Reader, address: str) -> Iterator[str]:
    """Yield the virtual functions of a function, and for a virtual function its physical one with all its others."""
    physical = reader.link_name(sysfs.function(address, "physfn"))
    if physical is not None:
        yield physical
    owner = physical or address
    for name in reader.names(sysfs.function(owner)):
        if name.startswith("virtfn"):
            yield reader.link_name(sysfs.function(owner, name)) or f"{owner}/{name}"


def _refuse_unseen(
    reader: Reader, order: EraseOrder, drive: Drive, identity: NvmeIdentity, known: set[int | None]
) -> None:
    """Raise Refused for a controller of the subsystem that is neither here nor an unused secondary one."""
    try:
        listed = drive.controllers()
        secondaries = drive.secondaries() if identity.virtualizes else ()
    except CommandFailed as error:
        what = f"may have other controllers, and does not list them: {error.what}"
        raise _refused(order, what, error.hint or "check it with nvme list-ctrl") from error
    functions = {
        secondary.cntlid: sysfs.function(order.address, f"virtfn{secondary.function - 1}") for secondary in secondaries
    }
    unused = {secondary.cntlid for secondary in secondaries if not secondary.online}
    # A secondary controller whose virtual function exists is reached by that function, which belongs (see above).
    covered = {cntlid for cntlid, path in functions.items() if cntlid in unused or reader.link(path) is not None}
    missing = sorted(set(listed) - covered - {nsid for nsid in known if nsid is not None})
    if missing:
        what = f"has controllers that are not on this host's nvme driver: {', '.join(map(str, missing))}"
        hint = "a sanitize would erase what they reach: bind all functions of the drive to nvme, in one hand-over"
        raise _refused(order, what, hint)
    if identity.cntlid not in listed:
        raise _refused(order, "does not list itself among its controllers", "check it with nvme list-ctrl")


def attached(
    system: System, order: EraseOrder, known: tuple[NvmeController, ...], identity: NvmeIdentity
) -> Mapping[int, str]:
    """Return the namespaces of the subsystem, by id, each with the first controller that has it.

    Raises Refused for one that no controller has: nobody can say whose it is. Raises CommandFailed.
    """
    holders = grouped((nsid, row.name) for row in known for nsid in Drive(system, row.name).namespaces())
    if identity.manages_namespaces:
        loose = sorted(set(Drive(system, known[0].name).namespaces(allocated=True)) - set(holders))
        if loose:
            what = f"has namespaces that are attached to no controller here: {', '.join(map(str, loose))}"
            hint = "attach them (nvme attach-ns) or delete them (nvme delete-ns), if nobody needs their data"
            raise _refused(order, what, hint)
    return {nsid: names[0] for nsid, names in sorted(holders.items())}


def device_of(system: System, known: tuple[NvmeController, ...], nsid: int) -> str | None:
    """Return the block device of a namespace ("/dev/nvme0n1"); None if the host has none for it."""
    reader = Reader(system)
    for controller in known:
        for head in nvme_names(reader, controller.address)[1]:
            if reader.count(f"{_BLOCK}/{head}/nsid") == nsid:
                return f"/dev/{head}"
    return None


def refuse_used(system: System, order: EraseOrder, known: tuple[NvmeController, ...], devices: tuple[str, ...]) -> None:
    """Raise Refused if anything uses a namespace, or if that cannot be told."""
    users = holders(system, [controller.address for controller in known])
    if users:
        may = "may be" if all(user.unknown for user in users) else "is"
        what = "; ".join(user.text for user in users)
        raise _refused(order, f"{may} in use: {what}", "free it, then run the hand-over again")
    for device in devices:
        try:
            with system.claim(device):
                pass
        except (InUse, Unreadable) as error:
            raise claim_refused(order, error) from error


def claim_refused(order: EraseOrder, error: InUse | Unreadable) -> Refused:
    """Return the refusal of a namespace that cannot be held alone."""
    return _refused(order, f"cannot be held alone: {error.path}: {error.reason}", error.hint)


def _refused(order: EraseOrder, what: str, hint: str) -> Refused:
    return Refused(f"the drive {order.address} {what}", where=order.address, hint=hint)
