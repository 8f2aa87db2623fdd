"""The erasure of one drive: digests, the erasing command, its end, the read-back. Cut off anywhere, it is continued."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from hosttune.errors import CommandFailed, InUse, Refused, Unreadable
from hosttune.handover.erasing import progress, readback
from hosttune.handover.erasing.holdback import held_back
from hosttune.handover.erasing.nvme import Drive, SanitizeLog, command_dword
from hosttune.handover.erasing.progress import Digests, EraseOrder, ErasureProgress, Phase, erasing, keep
from hosttune.handover.erasing.survey import Survey, claim_refused, controller_of, look, refuse_other_serial, survey
from hosttune.machine.system import System
from hosttune.model.clock import now_text
from hosttune.model.handover import HandoverStep, StepOutcome

_STALE_SECONDS = 120.0  # a drive writes its log before it answers the command: much longer than it can need
_READ_SECONDS = 600.0  # to read all places of a drive, before or after; they take seconds
_LEAST_FORMAT = 600.0  # a format that has begun has at least so long, also near the limit
SPARE_SECONDS = 2 * _READ_SECONDS + _LEAST_FORMAT  # a step may take so much longer than the limit of the erasure
_TRIES = 3  # to read the log, when a reading fails
_UNSUPPORTED = ("invalid command opcode", "invalid_opcode")  # nvme-cli's words for status 1, in 2.x and 1.x


class Clock:
    """The clock and the waiting of an erasure; a test has its own."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class _NotEnded(Exception):
    """The erasure has not ended, and this call ends: `why`."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def erase(system: System, folder: str, order: EraseOrder, clock: Clock | None = None) -> HandoverStep:
    """Erase a drive, or go on where an earlier call of the same hand-over was cut off; return the step `erased`.

    `folder`: the state directory. A result that is final is kept there, and given again for the same drive; "done" only
    if the drive says that nothing was written since, else it is erased anew. Not final is only "unknown" because of the
    time limit: then call again.

    Raises Refused, with nothing sent to the drive, if it must not be erased; CommandFailed if nvme-cli is missing or
    fails before the erasing command; BadInput if the state directory cannot be written.
    """
    known = erasing(folder, order.address)
    if known is not None and known.order.handover != order.handover:
        known = None  # of an earlier hand-over: this one needs a proof of its own
    if known is not None and known.order.serial.strip() != order.serial.strip():
        what = f"an erasure of the drive with serial number {known.order.serial!r} was begun at {order.address}"
        raise Refused(what, where=order.address, hint="name that serial number, or begin a new hand-over")
    if known is not None and known.step is not None:
        drive = Drive(system, controller_of(system, order))
        refuse_other_serial(order, drive.identity())
        if known.step.outcome != "done" or _is_still_erased(drive, known.step):
            return known.step
        known = None
    seen = survey(system, order) if known is None else look(system, order)
    begun = _begin(order, seen) if known is None else known
    course = _Erasing(system, folder, begun, seen, clock or Clock())
    with ExitStack() as held:
        for device in seen.devices:
            try:
                held.enter_context(system.claim(device))
            except (InUse, Unreadable) as error:
                raise claim_refused(order, error) from error
        return course.run()


def _is_still_erased(drive: Drive, step: HandoverStep) -> bool:
    """Return whether nothing was written since a sanitize: Global Data Erased is still set. A format has no log."""
    then = (step.evidence or {}).get("log_after")
    return then is not None and drive.sanitize_log().shown == then


def _begin(order: EraseOrder, seen: Survey) -> ErasureProgress:
    return ErasureProgress(
        order=order,
        serial=seen.identity.serial,
        method=seen.method,
        key=os.urandom(16).hex(),
        started=now_text(),
        estimate_seconds=seen.estimate_seconds,
        limit_seconds=seen.limit_seconds,
    )


class _Erasing:
    def __init__(self, system: System, folder: str, state: ErasureProgress, seen: Survey, clock: Clock) -> None:
        self._system = system
        self._folder = folder
        self._state = state
        self._seen = seen
        self._clock = clock
        self._drive = Drive(system, seen.controller)
        self._begun = clock.monotonic()

    def run(self) -> HandoverStep:
        """Go on from the phase that the file has."""
        try:
            if self._seen.method is None:
                return self._end("not-supported", self._seen.why)
            if self._state.method != self._seen.method:
                return self._end(
                    "unknown", f"the drive offered {self._state.method} before, and {self._seen.method} now"
                )
            if self._state.phase == "surveyed":
                read = self._digests()
                digests = tuple(
                    Digests(nsid=namespace.nsid, bytes=namespace.form.bytes, digests=",".join(read[namespace.nsid]))
                    for namespace in self._seen.namespaces
                )
                self._keep(phase="digested", before=digests)
                self._begun = self._clock.monotonic()
            if self._state.phase != "reading":
                step = self._format() if self._seen.action is None else self._sanitize(self._seen.action)
                if step is not None:
                    return step
                self._keep(phase="reading", percent=None)
            return self._read_back()
        except _NotEnded as waiting:
            return self._step("unknown", waiting.why, {})

    # --- before ----------------------------------------------------------------------------------------------

    def _digests(self) -> Mapping[int, tuple[str, ...]]:
        """Return the digests of all namespaces, by id. What is not read in time counts as unread."""
        until = self._clock.monotonic() + _READ_SECONDS

        def late() -> bool:
            return self._clock.monotonic() > until

        return {
            namespace.nsid: readback.digests(
                self._system, namespace.device, namespace.form.bytes, self._state.key, namespace.nsid, late
            )
            for namespace in self._seen.namespaces
        }

    def _recheck(self, drive: Drive) -> None:
        """Ask the controller that gets a command for its serial number, just before. Raises Refused, CommandFailed."""
        name = controller_of(self._system, self._state.order)
        refuse_other_serial(self._state.order, drive.identity())
        if name != self._drive.name:
            what = f"{self._state.order.address} was {self._drive.name}, and is {name} now"
            raise Refused(what, where=self._state.order.address, hint="run the hand-over again")

    # --- sanitize --------------------------------------------------------------------------------------------

    def _sanitize(self, action: int) -> HandoverStep | None:
        """Wait until a sanitize of ours has ended, started once; return a step only if that is not a success."""
        run = self._state.run
        if run is None:
            before = self._log()
            run = progress.Sanitize(before=before, cdw10=command_dword(action, before))
            self._keep(phase="sending", run=run)
        sent_at = self._clock.monotonic()
        while True:
            log = self._log()
            after = progress.after(run, log)
            if after != run:
                run = after
                self._keep(phase="running", run=run)
            move = progress.move_of(run, log)
            if move == "done":
                return None
            if move in ("failed", "other"):
                outcome: StepOutcome = "failed" if move == "failed" else "unknown"
                return self._end(outcome, progress.why(run, log), log=log)
            if move == "send":
                refused = self._send(run)
                if refused is not None:
                    return refused
                run = progress.Sanitize(before=run.before, cdw10=run.cdw10, sent=True)
                self._keep(phase="running", run=run)
                sent_at = self._clock.monotonic()
                continue
            if move == "stale" and self._clock.monotonic() - sent_at > _STALE_SECONDS:
                why = "the drive took the command, and its log does not show it: only the operation before is in it"
                return self._end("unknown", why, log=log)
            # Wait a while, and keep the percent. Raises _NotEnded at the time limit.
            percent = None if log.progress == 0xFFFF else 100 * log.progress >> 16
            if percent != self._state.percent:
                self._keep(percent=percent)
            self._refuse_late(f"{'?' if percent is None else percent} % done")
            estimate = self._seen.estimate_seconds or 600.0
            self._clock.sleep(min(60.0, max(1.0, estimate / 100)))

    def _send(self, run: progress.Sanitize) -> HandoverStep | None:
        """Send the sanitize, once; return the step if the drive refuses it.

        If it gives no answer, it may have taken the command: it counts as sent, and the log tells.
        """
        self._recheck(self._drive)
        try:
            self._drive.sanitize(run.cdw10)
        except CommandFailed as error:
            if error.reason.startswith("no answer"):
                return None
            log = self._log()
            if progress.move_of(run, log) in ("send", "other"):
                return self._refused_by_drive(error)
        return None

    def _log(self) -> SanitizeLog:
        for left in reversed(range(_TRIES)):
            try:
                return self._drive.sanitize_log()
            except CommandFailed as error:
                if left == 0:
                    if self._state.run is None:
                        raise
                    raise _NotEnded(f"the drive's sanitize log cannot be read: {error.what}: {error.hint}") from error
            self._clock.sleep(1.0)
        raise AssertionError

    def _left(self) -> float:
        """Return how many seconds are left to the limit."""
        return self._seen.limit_seconds - (self._clock.monotonic() - self._begun)

    def _refuse_late(self, stands: str) -> None:
        if self._left() < 0:
            what = f"not ended within {self._seen.limit_seconds:.0f} s ({stands})"
            raise _NotEnded(f"{what}: call again to wait on")

    # --- format ----------------------------------------------------------------------------------------------

    def _format(self) -> HandoverStep | None:
        """Format each namespace whose format was not seen to end; return a step only if that is not a success."""
        assert self._seen.ses is not None
        for namespace in self._seen.namespaces:
            if namespace.nsid in self._state.formatted:
                continue
            drive = Drive(self._system, namespace.controller)
            while (remaining := drive.format(namespace.nsid).remaining) is not None:
                self._refuse_late(f"a format of namespace {namespace.nsid} has {remaining} % to do")
                self._clock.sleep(5.0)
            self._refuse_late(f"namespace {namespace.nsid} is not formatted")
            self._keep(phase="sending")
            self._recheck(drive)
            try:
                drive.erase_namespace(namespace.nsid, namespace.form, self._seen.ses, max(_LEAST_FORMAT, self._left()))
            except CommandFailed as error:
                if error.reason.startswith("no answer"):
                    raise _NotEnded(
                        f"the format of namespace {namespace.nsid} has not ended: {error.reason}"
                    ) from error
                return self._refused_by_drive(error)
            self._keep(formatted=(*self._state.formatted, namespace.nsid))
        return None

    def _refused_by_drive(self, error: CommandFailed) -> HandoverStep:
        said = " ".join(error.output.split())[:300]
        outcome: StepOutcome = "not-supported" if any(word in said.lower() for word in _UNSUPPORTED) else "failed"
        return self._end(outcome, f"the drive refused the command: {error.reason}: {said}")

    # --- after -----------------------------------------------------------------------------------------------

    def _read_back(self) -> HandoverStep:
        identity = self._drive.identity()
        log = None if self._seen.action is None else self._log()
        if identity.serial != self._state.serial:
            return self._end("unknown", f"another drive is there now: serial number {identity.serial!r}", log=log)
        run = self._state.run
        if run is not None and log is not None and progress.move_of(run, log) != "done":
            return self._end("unknown", f"after it was done, {progress.why(run, log)}", log=log)
        sizes = {digests.nsid: digests.bytes for digests in self._state.before}
        current = {namespace.nsid: namespace.form.bytes for namespace in self._seen.namespaces}
        if current != sizes:
            return self._end("unknown", f"its namespaces were {sizes} (bytes by id), and are {current}", log=log)
        before = {
            digests.nsid: tuple(digests.digests.split(",")) if digests.bytes else () for digests in self._state.before
        }
        found = readback.compare(self._state.key, sizes, before, self._digests())
        if found.same:
            why = f"{found.same} of {found.with_data} blocks still have their old data, first {found.first_same}"
            return self._end("failed", why, log=log, compared=found)
        if found.unread:
            why = f"{found.unread} of {found.places} blocks cannot be read, first {found.first_unread}"
            return self._end("unknown", why, log=log, compared=found)
        return self._end("done", None, log=log, compared=found)

    def _end(
        self,
        outcome: StepOutcome,
        why: str | None,
        *,
        log: SanitizeLog | None = None,
        compared: readback.Readback | None = None,
    ) -> HandoverStep:
        """Keep a result that is final, and return it."""
        evidence: dict[str, Any] = {}
        if log is not None:
            evidence["log_after"] = log.shown
        if compared is not None:
            evidence["read_back"] = {
                name: getattr(compared, name) for name in ("places", "with_data", "same", "unread")
            }
        step = self._step(outcome, why, evidence)
        self._keep(phase="ended", step=step)
        return step

    def _step(self, outcome: StepOutcome, why: str | None, evidence: dict[str, Any]) -> HandoverStep:
        state, identity, run = self._state, self._seen.identity, self._state.run
        facts: dict[str, Any] = {
            "serial": identity.serial,
            "model": identity.model,
            "firmware": identity.firmware,
            "owner": state.order.owner,
            "namespaces": [
                {"id": namespace.nsid, "bytes": namespace.form.bytes} for namespace in self._seen.namespaces
            ],
            "udev_held_back": state.order.address in held_back(self._system),
            "started": state.started,
            "ended": now_text(),
        }
        if run is not None:
            facts |= {"command": run.cdw10, "log_before": run.before.shown, "seen_running": run.shows is not None}
        if self._seen.action is None and state.method is not None:
            facts["formatted"] = list(state.formatted)
        return HandoverStep(step="erased", outcome=outcome, method=state.method, evidence=facts | evidence, why=why)

    def _keep(self, **changes: Any) -> None:
        phase: Phase | None = changes.get("phase")
        if phase is not None and phase != "running":
            changes.setdefault("percent", None)
        self._state = msgspec.structs.replace(self._state, **changes)
        keep(self._folder, self._state)
