"""The statement about devices between two tenants: an in-toto Statement v1 with hosttune's predicate.

A subject's digest is the sha256 of the canonical JSON (`canonical_json`) of the fields that it stands for:

- the host: `host`, `boot_id`, `machine` and `applied` of the predicate,
- a device: `address`, `identity`, `firmware`, `driver` and `epoch` of its entry in `devices`.

`verify` reads the same fields from the live host and compares. The steps, the validation and the times are in no
digest: the signature covers every byte of the file.
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from hosttune.errors import BadInput
from hosttune.model.jsontext import plain_json
from hosttune.model.limits import check_size
from hosttune.model.text import decoding_fault, decoding_problem, refuse_surrogates
from hosttune.model.validation import Verdict
from hosttune.model.values import Closed, Document, Value, is_address, to_builtins

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://hosttune.dev/handover/v1"
LONGEST = timedelta(days=30)  # from the signature to the expiry
CLOCKS = timedelta(minutes=5)  # how far the clocks of a controller and a host may differ

StepName = Literal["quarantined", "taken-back", "reset", "erased", "tested", "returned"]
StepOutcome = Literal["done", "not-supported", "not-needed", "failed", "unknown"]
STEPS: tuple[StepName, ...] = ("quarantined", "taken-back", "reset", "erased", "tested", "returned")
_HEX64 = re.compile(r"[0-9a-f]{64}")
_HINT = "give a statement that `hosttune handover` wrote"


def canonical_json(value: object) -> bytes:
    """Return the canonical JSON of a document value: keys sorted, no spaces, UTF-8; the order of keys does not matter.

    Raises BadInput for a text that UTF-8 cannot write.
    """
    plain = to_builtins(value)
    refuse_surrogates(plain, "statement")
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: object) -> str:
    """Return the sha256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


class Digest(Value, frozen=True, kw_only=True):
    """The digest of a subject, in hex."""

    sha256: str


class Subject(Value, frozen=True, kw_only=True):
    """What the statement is about: the host (by its name) or a device (by its address)."""

    name: str
    digest: Digest


class HandoverStep(Closed, frozen=True, kw_only=True):
    """One step of one device.

    `method`: how ("bus reset", "sanitize, block erase"). `evidence`: what was read to prove it, by name. `why`: the
    reason for an outcome that is not `done`; of a device that was returned, also which settings are not set again.
    """

    step: StepName
    outcome: StepOutcome
    method: str | None = None
    evidence: Mapping[str, Any] | None = None
    why: str | None = None

    MAPPINGS = ("evidence",)


class HandedDevice(Closed, frozen=True, kw_only=True):
    """One device: what it is, what was done, and whether it is clean.

    - `identity`: as in plans. `driver`: the driver that it was returned to; None: none.
    - `firmware`: versions by name ("vbios", "inforom", "firmware"); None: unknown; empty: it has none of its own.
    - `epoch`: how often a guest was started with it, by hosttune's count; None: unknown, and so the statement is void.
    """

    address: str
    identity: str
    kind: str | None = None
    driver: str | None = None
    firmware: Mapping[str, str] | None = None
    epoch: int | None = None
    state: Literal["clean", "quarantined"]
    steps: tuple[HandoverStep, ...] = ()

    MAPPINGS = ("firmware",)

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields that the device's digest stands for."""
        return {name: getattr(self, name) for name in ("address", "identity", "firmware", "driver", "epoch")}

    @property
    def unclean(self) -> tuple[str, ...]:
        """Why it is not clean: one text for each step that is missing, or neither done nor not needed; empty if clean.

        A step can occur more than once (a reset before the erasure and one after the test): then each must be done.
        """
        done = {handover_step.step for handover_step in self.steps}
        missing = [f"step {name} is missing" for name in STEPS if name not in done]
        open_steps = [
            f"{handover_step.step}: {handover_step.outcome}{f' ({handover_step.why})' if handover_step.why else ''}"
            for handover_step in self.steps
            if handover_step.outcome not in ("done", "not-needed")
        ]
        state = [] if self.state == "clean" or missing or open_steps else ["its state is quarantined"]
        return (*missing, *open_steps, *state)


class ValidationReference(Value, frozen=True, kw_only=True):
    """The validation of the devices: `sha256` of the validation document's canonical JSON."""

    level: int
    verdict: Verdict
    sha256: str


class Predicate(Closed, frozen=True, kw_only=True):
    """What hosttune states.

    - `machine`: the host document's digest. `applied`: the applied settings with their values, by id ("kind:target"); a
      long value is represented by its own digest ("sha256:…").
    - `issued_at`, `expires_at`: ISO 8601 in UTC. `sign` writes `expires_at`; None: not signed yet.
    """

    host: str | None
    boot_id: str | None
    machine: str | None = None
    applied: Mapping[str, Any] = msgspec.field(default_factory=dict)
    devices: tuple[HandedDevice, ...] = ()
    validation: ValidationReference | None = None
    issued_at: str
    expires_at: str | None = None

    MAPPINGS = ("applied",)

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields that the host's digest stands for."""
        return {name: getattr(self, name) for name in ("host", "boot_id", "machine", "applied")}


class Statement(Document, frozen=True, kw_only=True):
    """The whole document."""

    type: str = msgspec.field(default=STATEMENT_TYPE, name="_type")
    subject: tuple[Subject, ...]
    predicate_type: str = msgspec.field(default=PREDICATE_TYPE, name="predicateType")
    predicate: Predicate

    @classmethod
    def of(cls, predicate: Predicate) -> Statement:
        """Return the statement of a predicate, with the digests of its host and devices."""
        return cls(subject=subjects_of(predicate), predicate=predicate)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "statement") -> Statement:
        """Read a statement. Raises BadInput with the offending field."""
        check_size(len(text), "statement", where)
        plain = plain_json(text, where=where, hint=_HINT, most_values=_MOST_VALUES, once=True)
        for name, known in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
            version = plain.get(name) if isinstance(plain, dict) else None
            if version != known:
                raise BadInput(f"{name} is {str(version)[:200]!r}, not {known!r}", where=where, hint=_HINT)
        try:
            statement = msgspec.convert(plain, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            problem, path, _ = decoding_fault(error)
            raise BadInput(decoding_problem(problem), where=f"{where}: {path}", hint=_HINT) from error
        for n, subject in enumerate(statement.subject):
            if not _HEX64.fullmatch(subject.digest.sha256):
                raise BadInput("not a sha256 in hex", where=f"{where}: $.subject[{n}].digest.sha256", hint=_HINT)
        predicate = statement.predicate
        for n, device in enumerate(predicate.devices):
            at = f"{where}: $.predicate.devices[{n}]"
            if not is_address(device.address):
                raise BadInput(f"{device.address[:80]!r} is not a PCI address", where=f"{at}.address", hint=_HINT)
            if any(handed_device.address == device.address for handed_device in predicate.devices[:n]):
                raise BadInput(f"{device.address} occurs twice", where=at, hint=_HINT)
        if predicate.validation is not None and not _HEX64.fullmatch(predicate.validation.sha256):
            raise BadInput("not a sha256 in hex", where=f"{where}: $.predicate.validation.sha256", hint=_HINT)
        time_of(predicate.issued_at, f"{where}: $.predicate.issued_at")
        if predicate.expires_at is not None:
            time_of(predicate.expires_at, f"{where}: $.predicate.expires_at")
        return statement


_MOST_VALUES = 200_000


def subjects_of(predicate: Predicate) -> tuple[Subject, ...]:
    """Return the subjects of a predicate: the host, then its devices."""
    host = Subject(name=predicate.host or "host", digest=Digest(sha256=digest_of(predicate.fields)))
    return (
        host,
        *(Subject(name=device.address, digest=Digest(sha256=digest_of(device.fields))) for device in predicate.devices),
    )


def time_of(text: str, where: str) -> datetime:
    """Return a time of a statement, in UTC. Raises BadInput for a text that is not ISO 8601 with a time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadInput(f"{text[:80]!r} is not a time", where=where, hint="write it as 2026-01-31T12:00:00+00:00")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise BadInput(f"{text[:80]!r} is not a time", where=where, hint="a year from 1 to 9999") from error
