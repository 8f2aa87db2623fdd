"""Whether a sanitize is ours, new and done: decided from the log before it and the log now, without a drive.

The log alone proves little: "completed" stays from the last operation, and Global Data Erased is also set on a drive
that was never written. What proves a new operation is a log that changed with our command. Its CDW10 is chosen to
differ from the one in the log before (`nvme.command_dword`), and the drive writes it into the log when it starts the
operation, before it answers the command; or the operation was seen running after the drive had taken our command,
because a drive refuses a second one while one runs; or the operation before had failed, and the one in the log has not.
Source: NVM Express Base Specification 1.4 and 2.0, Sanitize command, Sanitize Status log page, Sanitize Operations.
"""

from __future__ import annotations

from typing import Literal

from hosttune.handover.erasing.nvme import COMPLETED, COMPLETED_DEALLOCATED, FAILED, RUNNING, SanitizeLog
from hosttune.model.values import Value

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
