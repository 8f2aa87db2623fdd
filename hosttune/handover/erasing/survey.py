"""May a drive be erased, how, and how long does it take: reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec.structs import replace

from hosttune.discovery.holders import holders
from hosttune.disks import nvme_names
from hosttune.errors import CommandFailed, InUse, Refused, Unreadable
from hosttune.handover.erasing.nvme import (
    BLOCK_ERASE,
    CRYPTO_ERASE,
    OVERWRITE,
    RUNNING,
    Drive,
    Format,
    NvmeIdentity,
    SanitizeLog,
)
from hosttune.handover.erasing.progress import EraseOrder
from hosttune.handover.erasing.readback import BLOCK
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.values import Value, grouped

Method = Literal[
    "sanitize, block erase",
    "sanitize, cryptographic erase",
    "sanitize, overwrite",
    "format, cryptographic erase",
    "format, user data erase",
]
# SANICAP bit, SANACT, and the limit if the drive reports no time. In this order: a block erase empties the cells, a
# cryptographic erase rests on the drive's own encryption, an overwrite takes hours and does not reach remapped cells.
_ACTIONS: tuple[tuple[int, int, Method, float], ...] = (
    (1 << 1, BLOCK_ERASE, "sanitize, block erase", 4 * 3600.0),
    (1 << 0, CRYPTO_ERASE, "sanitize, cryptographic erase", 4 * 3600.0),
    (1 << 2, OVERWRITE, "sanitize, overwrite", 48 * 3600.0),
)
_FORMAT_LIMIT = 4 * 3600.0  # a drive reports no time for a format
_LEAST_LIMIT = 600.0
_CRYPTO_FORMAT = 1 << 2  # in FNA


class Namespace(Value, frozen=True, kw_only=True):
    """A namespace: its controller ("nvme0"), its block device (None: the host has none), its size and format."""

    nsid: int
    controller: str
    device: str | None
    form: Format


class Survey(Value, frozen=True, kw_only=True):
    """A drive that may be erased.

    - `method` None: the drive cannot be erased; `why` says what it lacks. `action`: SANACT of a sanitize; `ses`: of a
      format.
    - `log`: the sanitize log as it is now; None: the drive has no sanitize.
    - `estimate_seconds` None: the drive does not report it.
    """

    address: str
    controller: str
    identity: NvmeIdentity
    method: Method | None
    why: str | None = None
    action: int | None = None
    ses: int | None = None
    namespaces: tuple[Namespace, ...]
    log: SanitizeLog | None = None
    estimate_seconds: float | None = None
    limit_seconds: float = _FORMAT_LIMIT

    @property
    def devices(self) -> tuple[str, ...]:
        """The block devices of its namespaces."""
        return tuple(namespace.device for namespace in self.namespaces if namespace.device is not None)


def survey(system: System, order: EraseOrder) -> Survey:
    """Return what an erasure of this drive would do. Writes nothing.

    Raises Refused if the drive must not be erased, CommandFailed if nvme-cli is missing or fails.
    """
    found = look(system, order)
    if found.log is not None and found.log.status == RUNNING:
        what = f"the drive {order.address} is being sanitized by another command"
        hint = "wait until it has ended (nvme sanitize-log), then run the hand-over again"
        raise Refused(what, where=order.address, hint=hint)
    return found


def look(system: System, order: EraseOrder) -> Survey:
    """As `survey`, also while a sanitize runs."""
    refuse_unowned(order)
    drive = Drive(system, controller_of(system, order))
    identity = drive.identity()
    refuse_other_serial(order, identity)
    known = refuse_foreign(system, order, drive, identity)
    namespaces = tuple(
        Namespace(
            nsid=nsid,
            controller=controller,
            device=device_of(system, known, nsid),
            form=Drive(system, controller).format(nsid),
        )
        for nsid, controller in attached(system, order, known, identity).items()
    )
    method = _with_method(drive, order, identity, namespaces)
    refuse_used(system, order, known, method.devices)
    return method


def _with_method(drive: Drive, order: EraseOrder, identity: NvmeIdentity, namespaces: tuple[Namespace, ...]) -> Survey:
    plain = Survey(address=order.address, controller=drive.name, identity=identity, method=None, namespaces=namespaces)
    if not any(namespace.form.bytes >= BLOCK for namespace in namespaces):
        return replace(plain, why="it has no namespace, so that nothing could be read back: make one (nvme create-ns)")
    for bit, action, method, limit in _ACTIONS:
        if identity.sanicap & bit:
            log = drive.sanitize_log()
            seconds = log.seconds(action)
            return replace(
                plain,
                method=method,
                action=action,
                log=log,
                estimate_seconds=None if seconds is None else float(seconds),
                limit_seconds=limit if seconds is None else max(_LEAST_LIMIT, 3.0 * seconds),
            )
    # Why a format cannot erase all of a drive: it reaches only what is in a namespace now.
    why = None
    if not identity.formats:
        why = f"no format (OACS {identity.oacs:#x})"
    elif identity.manages_namespaces and identity.unvmcap != 0:
        amount = "an unknown amount" if identity.unvmcap is None else f"{identity.unvmcap} bytes"
        why = f"a format does not reach {amount} of it that no namespace has (UNVMCAP)"
    if why is not None:
        return replace(plain, why=f"it has no sanitize (SANICAP {identity.sanicap:#x}), and {why}")
    crypto = bool(identity.fna & _CRYPTO_FORMAT)
    kind: Method = "format, cryptographic erase" if crypto else "format, user data erase"
    return replace(plain, method=kind, ses=2 if crypto else 1)


# --- whose the drive is ----------------------------------------------------------------------------------------
# Whether a drive may be erased: it is the stopped guest's, nothing else shares it, and nothing uses it.
# A sanitize erases the whole NVM subsystem: every namespace, also those that only other controllers or virtual
# functions reach. So each of these must belong to the hand-over; what cannot be told is refused. Signatures on the
# media refuse nothing.

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
