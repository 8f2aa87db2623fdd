"""Where the erasure of a drive stands: one file for each drive, `handover/erase-BDF.json` in the state directory."""

from __future__ import annotations

import os
from typing import Literal

from hosttune.errors import BadInput, state_remedy
from hosttune.handover.erasing.nvme import COMPLETED, COMPLETED_DEALLOCATED, FAILED, RUNNING, SanitizeLog
from hosttune.journal.state import load, mode_of, save
from hosttune.machine.files import make_folder, remove_file, sync_folder
from hosttune.model.handover import HandoverStep
from hosttune.model.starts import FOLDER
from hosttune.model.values import Closed, Value, from_json, to_json

SCHEMA = "hosttune.erasure/v1"

# surveyed: it may be erased. digested: the digests from before are on the disk. sending: the erasing command may have
# been sent. running: the drive has taken it. reading: it has ended, what the drive gives back is compared. ended:
# `step` is set.
Phase = Literal["surveyed", "digested", "sending", "running", "reading", "ended"]


class EraseOrder(Closed, frozen=True, kw_only=True):
    """What is to be erased, and by what right.

    - `serial`: as the operator named it (`--erase SERIAL`). `handover`: the number of the hand-over.
    - `owner`: how it is known that the stopped guest had the drive ("guest a, from its definition"); None: not known.
    - `belonging`: the addresses of all functions of the hand-over, this one among them.
    """

    address: str
    serial: str
    handover: str
    owner: str | None
    belonging: tuple[str, ...]


class Digests(Value, frozen=True, kw_only=True):
    """Of one namespace, before it was erased: its size, and the digests of its places, joined by commas."""

    nsid: int
    bytes: int
    digests: str


class ErasureProgress(Closed, frozen=True, kw_only=True):
    """One erasure.

    - `serial`: as the drive gave it. `method`: as in the statement. `key`: of the places and their digests.
    - `run`: the sanitize. `formatted`: the namespaces whose format has ended.
    - `started`: ISO 8601 in UTC. `percent`: of a running sanitize; None: unknown, or a format.
    - `step`: the result, once it is final.
    """

    schema: str = SCHEMA
    order: EraseOrder
    serial: str
    method: str | None
    phase: Phase = "surveyed"
    key: str
    started: str
    estimate_seconds: float | None = None
    limit_seconds: float
    percent: int | None = None
    before: tuple[Digests, ...] = ()
    run: Sanitize | None = None
    formatted: tuple[int, ...] = ()
    step: HandoverStep | None = None


def erasing(folder: str, address: str) -> ErasureProgress | None:
    """Return where the erasure of a drive stands; None if there is none. Raises BadInput for a file that is damaged."""
    path = _path(folder, address)
    if not os.path.lexists(path):
        return None
    return from_json(ErasureProgress, load(path, what="hosttune's own record of an erasure"), schema=SCHEMA, where=path)


def keep(folder: str, progress: ErasureProgress) -> None:
    """Write where an erasure stands; on the disk when this returns. Raises BadInput."""
    path = _path(folder, progress.order.address)
    make_folder(folder, mode_of(""))
    make_folder(os.path.dirname(path), mode_of(f"{FOLDER}/"))
    save(path, to_json(progress), mode=mode_of(f"{FOLDER}/NAME"))
    sync_folder(os.path.dirname(path))


def forget_erasing(folder: str, address: str) -> None:
    """Remove the file of an erasure, whose step is in a statement now. Raises BadInput."""
    path = _path(folder, address)
    try:
        remove_file(path)
    except OSError as error:
        raise BadInput(f"cannot remove {path}: {error.strerror}", where=path, hint=state_remedy(error)) from error


def _path(folder: str, address: str) -> str:
    return os.path.join(folder, FOLDER, f"erase-{address}.json")


# --- a sanitize ------------------------------------------------------------------------------------------------
# Whether a sanitize is ours, new and done: decided from the log before it and the log now, without a drive.
# The log alone proves little: "completed" stays from the last operation, and Global Data Erased is also set on a
# drive that was never written. What proves a new operation is a log that changed with our command. Its CDW10 is
# chosen to differ from the one in the log before (`nvme.command_dword`), and the drive writes it into the log when it
# starts the operation, before it answers the command; or the operation was seen running after the drive had taken our
# command, because a drive refuses a second one while one runs; or the operation before had failed, and the one in the
# log has not. Source: NVM Express Base Specification 1.4 and 2.0, Sanitize command, Sanitize Status log page,
# Sanitize Operations.

# send: the drive has not had the command, it may be sent (only from a run that has not sent it).
# wait: our operation runs. stale: the drive took the command, and its log is still the one before.
# done, failed: our operation has ended. other: the log is about an operation that is not ours, or not known.
Move = Literal["send", "wait", "stale", "done", "failed", "other"]
_ACTION = 0b111


class Sanitize(Value, frozen=True, kw_only=True):
    """One sanitize: the log before, and the command. `sent`: the drive has taken it.

    `shows`: the command that the log had while the operation was seen running; None: it was not seen running.
    """

    before: SanitizeLog
    cdw10: int
    sent: bool = False
    shows: int | None = None


def move_of(run: Sanitize, log: SanitizeLog) -> Move:
    """Return what a log means for a run. `send` only for a run that is not sent, and only if the log did not change."""
    own = _is_own(run, log)
    if own and log.status == RUNNING:
        return "wait"
    if own and log.status in (COMPLETED, COMPLETED_DEALLOCATED):
        return "done" if log.erased else "failed"
    if own and log.status == FAILED:
        return "failed"
    if log.shown == run.before.shown and log.status != RUNNING:
        return "stale" if run.sent else "send"
    return "other"


def after(run: Sanitize, log: SanitizeLog) -> Sanitize:
    """Return the run with what a log has shown: an operation of ours that runs was sent, and was seen."""
    if log.status != RUNNING or not _is_own(run, log):
        return run
    return Sanitize(before=run.before, cdw10=run.cdw10, sent=True, shows=log.cdw10)


def why(run: Sanitize, log: SanitizeLog) -> str:
    """Return a text for a log that ends a run without success."""
    if not _is_own(run, log):
        return (
            f"the drive's log is about another sanitize (status {log.status}, command {log.cdw10:#x}; this one is "
            f"{run.cdw10:#x})"
        )
    if log.status == FAILED:
        return "the drive reports that the sanitize failed (status 3)"
    return f"the drive reports status {log.status} without Global Data Erased"


def _is_own(run: Sanitize, log: SanitizeLog) -> bool:
    """Return whether a log is about this run's operation, and so about a new one.

    A drive that drops a bit of the command is believed if the operation was seen running after it was sent.
    """
    if run.shows is not None:
        return log.cdw10 == run.shows
    # Whether the operation in the log before had failed, and the one in this log runs or has completed.
    if log.cdw10 == run.cdw10 and (
        log.cdw10 != run.before.cdw10
        or (run.before.status == FAILED and log.status in (RUNNING, COMPLETED, COMPLETED_DEALLOCATED))
    ):
        return True
    same_action = log.cdw10 & _ACTION == run.cdw10 & _ACTION
    return same_action and run.sent and log.status == RUNNING and run.before.status != RUNNING
