"""What a test guest is asked, in its seed, and what it answers, on its channel. An answer is untrusted.

The answer is one line of JSON. It counts only if it has the nonce of the seed, and names no device but those that the
guest was given. What it says of anything else is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from hosttune.errors import BadInput, HosttuneError
from hosttune.model.limits import check_size, limit
from hosttune.model.validation import CheckResult, Validation, verdict_of
from hosttune.model.values import Closed, Value, from_json, to_json

ORDER_SCHEMA, ANSWER_SCHEMA = "hosttune.test-order/v1", "hosttune.test-answer/v1"
CHANNEL = "org.hosttune.handover.0"  # the name of the virtio-serial port
ANSWER_LIMIT = "answer of a test guest"
_TEXT, _VERSIONS = 300, 8  # characters of a text, versions of a device
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
_ADDRESS = re.compile(r"(?<![0-9a-f:.])[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7](?![0-9a-f:.])")

Task = Literal["validate", "search", "write"]
Ended = Literal["silent", "unfinished", "ended-early", "too-much", "garbled", "nonce", "problem", "devices",
                "not-planned", "not-started"]  # fmt: skip
_FAILURES = ("nonce", "devices")  # the guest contradicts what is known; of all others nothing is known


class Unanswered(HosttuneError):
    """A test guest gave no answer that counts. `ended`: how it ended, by name."""

    def __init__(self, ended: Ended, why: str) -> None:
        super().__init__(f"test guest: {ended}: {why}", where="test guest", hint="see docs/handover.md, test guest")
        self.ended = ended

    @property
    def outcome(self) -> Literal["failed", "unknown"]:
        """The outcome of the step that needed the answer."""
        return "failed" if self.ended in _FAILURES else "unknown"


class OrderedDevice(Value, frozen=True, kw_only=True):
    """A device of the guest: its address there, and "vendor:device"; None: unknown."""

    address: str
    ids: str | None = None


class GuestOrder(Closed, frozen=True, kw_only=True):
    """What the guest shall do. `pattern` (32 hex digits): of `search` and `write`, which are of the only device."""

    schema: str = ORDER_SCHEMA
    nonce: str
    task: Task
    devices: tuple[OrderedDevice, ...]
    level: int = 1
    pattern: str | None = None

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "order") -> GuestOrder:
        """Read an order. Raises BadInput."""
        return from_json(cls, text, schema=ORDER_SCHEMA, where=where)


class GuestAnswer(Closed, frozen=True, kw_only=True):
    """What the guest says. `problem`: why it could not do it.

    `validation`, `firmware` (versions by name, by address) of `validate`; `memory` (what the program that searches
    says) and `memory_bytes` (the whole GPU's, as its driver says) of `search` and `write`.
    """

    schema: str = ANSWER_SCHEMA
    nonce: str
    version: str | None = None
    problem: str | None = None
    validation: Validation | None = None
    firmware: Mapping[str, Mapping[str, str] | None] | None = None
    memory: Mapping[str, Any] | None = None
    memory_bytes: int | None = None

    MAPPINGS = ("firmware", "memory")

    def to_line(self) -> str:
        """Return the answer as one line of JSON, with its end."""
        return msgspec.json.format(to_json(self), indent=-1) + "\n"


def read_answer(text: str, order: GuestOrder) -> GuestAnswer:
    """Return the answer to an order, if it counts; of its validation only what is about the order's devices.

    Raises Unanswered.
    """
    try:
        check_size(len(text.encode()), ANSWER_LIMIT, "test guest")
        answer = from_json(GuestAnswer, text, schema=ANSWER_SCHEMA, where="test guest")
    except BadInput as error:
        raise Unanswered("garbled", f"{_clean(error.what)} ({_clean(error.where)})") from error
    if answer.nonce != order.nonce:
        raise Unanswered("nonce", "what answered is not the guest with this hand-over's seed")
    if answer.problem is not None:
        raise Unanswered("problem", _clean(answer.problem))
    if order.task == "validate":
        said = answer.validation
        if said is None or said.machine is None:
            raise Unanswered("garbled", "it has no validation, or the validation does not say which devices it found")
        if (said.level, said.verdict) != (order.level, verdict_of(said.results)):
            raise Unanswered("garbled", "the validation is of another level, or its verdict is not that of its results")
        _check_devices(said, order)
        own = frozenset(device.address for device in order.devices)
        results = tuple(device for result in said.results for device in _of_devices(result, own))
        firmware = {address: _versions((answer.firmware or {}).get(address)) for address in own}
        cut = Validation(level=said.level, verdict=verdict_of(results), results=results)
        return msgspec.structs.replace(answer, validation=cut, firmware=firmware, version=_clean(answer.version or ""))
    if answer.memory is None:
        raise Unanswered("garbled", "it says nothing about the memory that it was asked for")
    names = ("bytes", "total", "found", "nonzero", "seen")
    memory = {name: answer.memory[name] for name in names if type(answer.memory.get(name)) in (int, bool)}
    return msgspec.structs.replace(answer, memory=memory, validation=None, version=_clean(answer.version or ""))


def _check_devices(said: Validation, order: GuestOrder) -> None:
    """Raise Unanswered unless the guest found exactly GPUs and other devices that it was given."""
    given = {device.address: device.ids for device in order.devices}
    machine = said.machine
    assert machine is not None
    gpus = [(gpu.address, gpu.id) for gpu in machine.gpus]
    for address, ids in (*gpus, *((device.address, device.id) for device in machine.devices or ())):
        if address not in given:
            raise Unanswered("devices", f"it claims {_clean(address)}, which it was not given")
        if None not in (ids, given[address]) and ids != given[address]:
            raise Unanswered("devices", f"it claims that {address} is {_clean(ids or '')}, not {given[address]}")


def _of_devices(result: CheckResult, own: frozenset[str]) -> Iterable[CheckResult]:
    """Yield the result with clean texts, if it is about devices of the guest and nothing else."""
    named = _ADDRESS.findall(result.subject)
    if not named or not own.issuperset(named) or not _ID.fullmatch(result.check):
        return
    texts = {name: getattr(result, name) for name in ("expected", "actual", "source", "hint")}
    clean = {name: None if text is None else _clean(text) for name, text in texts.items()}
    yield msgspec.structs.replace(result, subject=_clean(result.subject), accepted=None, **clean)


def _versions(said: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return firmware versions; None if they are unknown, or no versions."""
    if said is None or not 0 < len(said) <= _VERSIONS:
        return None
    return {_clean(name)[:40]: _clean(text)[:80] for name, text in said.items()}


def _clean(text: str) -> str:
    """Return a text of the guest on one line, printable and short."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text[:_TEXT].split()))


def in_host(validation: Validation, places: Mapping[str, str]) -> Validation:
    """Return a validation of a guest with the host's addresses. `places`: the host's address of each guest's."""

    def told(result: CheckResult) -> CheckResult:
        return msgspec.structs.replace(result, subject=_ADDRESS.sub(lambda match: places[match[0]], result.subject))

    return msgspec.structs.replace(validation, results=tuple(told(result) for result in validation.results))


def most_bytes() -> int:
    """Return the size limit of an answer."""
    return limit(ANSWER_LIMIT)
