"""What `handover verify` and `handover status` answer: whether a statement is valid, and the register of devices."""

from __future__ import annotations

from typing import Literal

from hosttune.model.quarantine import DeviceRecord, Recording
from hosttune.model.values import Value, close_lists, to_json

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


class Verification(Value, frozen=True, kw_only=True):
    """The answer about a statement. It is valid only without reasons.

    `about` "document": it was compared with a host document, and says nothing of the live host. `expiring`: it is
    valid, and less than an hour, or a tenth of its time, is left.
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

    def __post_init__(self) -> None:
        close_lists(self)

    def of(self, address: str) -> tuple[Reason, ...]:
        """Return the reasons that are about a device, the host or the whole statement."""
        others = [one for one in self.devices if one != address]
        return tuple(one for one in self.reasons if address in one.subject or not any(o in one.subject for o in others))

    def state(self, address: str) -> StatementState:
        """Return what a device of the statement has from it."""
        if any(one.reason == "quarantined" for one in self.of(address)):
            return "quarantined"
        return "void" if self.verdict == "void" else "expiring" if self.expiring else "valid"

    @property
    def opens_gates(self) -> bool:
        """Whether a device may go to the next tenant on this answer."""
        return self.verdict == "valid" and self.about == "host" and not self.reasons

    def to_json(self) -> str:
        """Return the answer as indented JSON."""
        return to_json(self)


class DeviceStatus(Value, frozen=True, kw_only=True):
    """A device of the register. `epoch` None: unknown, for the reason `epoch_unknown`."""

    record: DeviceRecord
    epoch: int | None = None
    epoch_unknown: str | None = None


class CourseStep(Value, frozen=True, kw_only=True):
    """One step of a hand-over. `outcome` None: it has not ended. Times in seconds; None: unknown."""

    address: str
    step: str
    outcome: str | None = None
    why: str | None = None
    limit_seconds: float | None = None
    estimate_seconds: float | None = None


class CourseStatus(Value, frozen=True, kw_only=True):
    """The newest hand-over of a host. `running`: a process works on it now; `ended`: its statement was written.

    Neither: it was cut off, and another `hosttune handover` of the same devices ends it.
    """

    number: int
    began: str
    running: bool
    ended: bool
    statement: str | None = None
    steps: tuple[CourseStep, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)


class HandoverStatus(Value, frozen=True, kw_only=True):
    """The register of a host. `devices` None: it cannot be read.

    `recording`: whether starts by other programs are recorded; None: unknown. `course`: the newest hand-over; None if
    there was none, or on a captured host. `statements`: the signed statements that are kept here, as they are now; None
    if they cannot be read.
    """

    schema: str = STATUS_SCHEMA
    host: str | None
    devices: tuple[DeviceStatus, ...] | None
    recording: Recording | None
    course: CourseStatus | None = None
    statements: tuple[Verification, ...] | None = None

    def __post_init__(self) -> None:
        close_lists(self)

    def to_json(self) -> str:
        """Return the status as indented JSON."""
        return to_json(self)
