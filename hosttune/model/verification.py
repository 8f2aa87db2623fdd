"""What `handover verify` and `handover status` answer: whether a statement is valid, and the register of devices."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from hosttune.model.quarantine import DeviceRecord, StartRecording
from hosttune.model.values import Closed, Document, Value

VERIFICATION_SCHEMA = "hosttune.handover-verification/v1"
STATUS_SCHEMA = "hosttune.handover-status/v1"

ReasonName = Literal[
    "no-signature", "signature", "signer", "revoked",  # the signature
    "expired", "no-expiry", "future", "not-clean", "no-device", "subject",  # the statement
    "host", "boot", "machine", "setting",  # the host
    "missing", "moved", "identity", "driver", "firmware", "started", "quarantined", "released", "in-use",  # a device
    "unknown",  # what cannot be read now
]  # fmt: skip


StatementState = Literal["valid", "expiring", "void", "quarantined"]


class Reason(Value, frozen=True, kw_only=True):
    """Why a statement is void. `subject`: "statement", "host", or the address of a device. `text`: for people."""

    reason: ReasonName
    subject: str
    text: str

    @property
    def addresses(self) -> tuple[str, ...]:
        """The words of the subject: users that are unknown name several devices ("0000:41:00.0, 0000:c1:00.0")."""
        return tuple(self.subject.split(", "))


class RevokedList(Value, frozen=True, kw_only=True):
    """A list of revoked keys: the digest of its bytes, and when the host was last given it, ISO 8601 in UTC."""

    sha256: str
    given_at: str


class Verification(Document, frozen=True, kw_only=True):
    """The answer about a statement. It is valid only without reasons.

    `about` "document": it was compared with a host document, and says nothing of the live host. `expiring`: it is
    valid, and less than an hour, or a tenth of its time, is left. `revoked`: the lists of revoked keys that it was
    verified with.
    """

    schema: str = VERIFICATION_SCHEMA
    verdict: Literal["valid", "void"]
    about: Literal["host", "document"]
    host: str | None
    signer: str
    devices: tuple[str, ...]
    issued_at: str
    expires_at: str | None
    reasons: tuple[Reason, ...] = ()
    expiring: bool = False
    revoked: tuple[RevokedList, ...] = ()

    def of(self, address: str) -> tuple[Reason, ...]:
        """Return the reasons that are about a device, the host or the whole statement."""
        others = {device for device in self.devices if device != address}
        return tuple(
            reason for reason in self.reasons if address in reason.addresses or not others & set(reason.addresses)
        )

    def state(self, address: str) -> StatementState:
        """Return what a device of the statement has from it."""
        if any(reason.reason == "quarantined" for reason in self.of(address)):
            return "quarantined"
        return "void" if self.verdict == "void" else "expiring" if self.expiring else "valid"

    def list_age(self, now: datetime | None = None) -> str:
        """Return how long ago the host was last given a list of revoked keys, in words. `now`: in UTC."""
        times = [datetime.fromisoformat(revoked_list.given_at) for revoked_list in self.revoked]
        if not times:
            return "no list of revoked keys was given"
        hours = int(((now or datetime.now(UTC)) - max(times)).total_seconds() // 3600)
        if hours < 0:
            return f"list of revoked keys given {max(times).isoformat()}, which is in the future: a clock is wrong"
        text = "less than an hour" if hours < 1 else f"{hours} h" if hours < 48 else f"{hours // 24} days"
        return f"list of revoked keys given {text} ago"

    @property
    def opens_gates(self) -> bool:
        """Whether a device may go to the next tenant on this answer."""
        return self.verdict == "valid" and self.about == "host" and not self.reasons


class DeviceStatus(Value, frozen=True, kw_only=True):
    """A device of the register. `epoch` None: unknown, for the reason `epoch_unknown`."""

    record: DeviceRecord
    epoch: int | None = None
    epoch_unknown: str | None = None


class CourseStep(Value, frozen=True, kw_only=True):
    """One step of a hand-over. `outcome` None: it has not ended. Times in seconds; None: unknown.

    `began`: ISO 8601 in UTC. `percent`: of a drive's sanitize that runs.
    """

    address: str
    step: str
    outcome: str | None = None
    why: str | None = None
    limit_seconds: float | None = None
    estimate_seconds: float | None = None
    began: str | None = None
    percent: int | None = None


class CourseStatus(Closed, frozen=True, kw_only=True):
    """The newest hand-over of a host. `running`: a process works on it now; `ended`: its statement was written.

    Neither: it was cut off, and another `hosttune handover` of the same devices ends it.
    """

    number: int
    began: str
    running: bool
    ended: bool
    statement: str | None = None
    steps: tuple[CourseStep, ...] = ()


class HandoverStatus(Document, frozen=True, kw_only=True):
    """The register of a host. `devices` None: it cannot be read.

    `recording`: whether starts by other programs are recorded; None: unknown. `course`: the newest hand-over; None if
    there was none, or on a captured host. `statements`: the signed statements that are kept here, as they are now; None
    if they cannot be read.
    """

    schema: str = STATUS_SCHEMA
    host: str | None
    devices: tuple[DeviceStatus, ...] | None
    recording: StartRecording | None
    course: CourseStatus | None = None
    statements: tuple[Verification, ...] | None = None
