"""May a drive be erased, how, and how long does it take: reads only."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from hosttune.errors import Refused
from hosttune.handover.erasing import belonging
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
from hosttune.machine.system import System
from hosttune.model.values import Value

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
    belonging.refuse_unowned(order)
    drive = Drive(system, belonging.controller_of(system, order))
    identity = drive.identity()
    belonging.refuse_other_serial(order, identity)
    known = belonging.refuse_foreign(system, order, drive, identity)
    namespaces = tuple(
        Namespace(
            nsid=nsid,
            controller=controller,
            device=belonging.device_of(system, known, nsid),
            form=Drive(system, controller).format(nsid),
        )
        for nsid, controller in belonging.attached(system, order, known, identity).items()
    )
    method = _with_method(drive, order, identity, namespaces)
    belonging.refuse_used(system, order, known, method.devices)
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
