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


class Reason(Value, frozen=True, kw_only=True):
    """Why a statement is void. `subject`: "statement", "host", or the address of a device. `text`: for people."""

    reason: ReasonName
    subject: str
    text: str


class Verification(Value, frozen=True, kw_only=True):
    """The answer about a statement. It is valid only without reasons.

    `about` "document": it was compared with a host document, and says nothing of the live host.
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

    def __post_init__(self) -> None:
        close_lists(self)

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
    there was none, or on a captured host.
    """

    schema: str = STATUS_SCHEMA
    host: str | None
    devices: tuple[DeviceStatus, ...] | None
    recording: Recording | None
    course: CourseStatus | None = None

    def __post_init__(self) -> None:
        close_lists(self)

    def to_json(self) -> str:
        """Return the status as indented JSON."""
        return to_json(self)
