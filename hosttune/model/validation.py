"""The validation document (`hosttune.validation/v1`): what was checked and measured on one host, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from hosttune.model.configuration import Fact
from hosttune.model.values import Closed, Document, Value, check_address, from_json

VALIDATION_SCHEMA = "hosttune.validation/v1"

Outcome = Literal["pass", "warn", "fail", "skip", "unknown"]
Verdict = Literal["pass", "warn", "fail", "unknown"]


OUTCOMES = ("fail", "unknown", "warn", "pass", "skip")  # worst first
ACCEPTED = "accepted"  # how a warning or an unknown is shown that somebody answers for
# Words of all documents, worst first: those of one place say the same.
_SEVERITY = (
    ("fail", "error", "harmful"),
    ("unknown",),
    ("warn", "useless"),
    (ACCEPTED,),
    ("info",),
    ("pass", "right"),
    ("skip",),
)
_PLACE = {word: place for place, words in enumerate(_SEVERITY) for word in words}


class Acceptance(Closed, frozen=True, kw_only=True):
    """Somebody's word that a warning or an unknown is known and allowed until a date, which is its last day (UTC).

    `subject` "": each subject of the check. `by`: who says so. `at`: when; None: a configuration says so. `device`:
    what tells the subject from another device at its address, as far as it is known. `ended` says why it did not count
    when the validation was made.
    """

    check: str
    subject: str = ""
    by: str
    why: str
    until: str
    at: str | None = None
    device: Mapping[str, str] = {}
    ended: str = ""

    MAPPINGS = ("device",)

    def covers(self, result: CheckResult) -> bool:
        """Return whether it names this result."""
        return result.check == self.check and self.subject in ("", result.subject)

    @property
    def text(self) -> str:
        """Return it for people."""
        at = f" on {self.at[:10]}" if self.at else ""
        over = f"; {self.ended}: accept it again, or mend it" if self.ended else ""
        return f"by {self.by}{at} until {self.until}: {self.why}{over}"


class CheckResult(Value, frozen=True, kw_only=True):
    """The result of one check for one subject (an address, a guest, a node, "host").

    `source` is the file or call that was read (for pass, warn and fail). `hint` is the command or setting that fixes it
    (for fail and unknown). skip: the check does not apply here, with the reason in `actual`. unknown: it applies, and
    the value could not be read. `accepted`: somebody answers for a warning or an unknown, which then does not move the
    verdict until the date is over.
    """

    check: str
    subject: str
    outcome: Outcome
    expected: str | None = None
    actual: str | None = None
    source: str | None = None
    hint: str | None = None
    accepted: Acceptance | None = None

    @property
    def standing(self) -> str:
        """Return its outcome, or ACCEPTED."""
        return ACCEPTED if self.accepted is not None and not self.accepted.ended else self.outcome


class Sample(Value, frozen=True, kw_only=True):
    """One measured figure. Several with the same metric and subject are runs in order; none is left out."""

    metric: str
    subject: str
    value: float | None
    unit: str


class MeasuredGpu(Value, frozen=True, kw_only=True):
    """A GPU that figures and results may belong to. `id` is vendor:device as in the baselines ("10de:2335")."""

    address: str
    model: str | None = None
    id: str | None = None


class KnownDevice(Value, frozen=True, kw_only=True):
    """A device that was known on the machine, present or not.

    `kind` and `id` are as in the host document's `SeenDevice`.
    """

    address: str
    kind: str | None = None
    id: str | None = None
    model: str | None = None


class Machine(Closed, frozen=True, kw_only=True):
    """The machine that was validated: it decides which machines' figures can be compared. GPUs of known makers only.

    `digest` is that of the host document: it distinguishes machines without naming one. None if the host document has
    none. `devices`: GPUs, NICs, NVMe drives and NVSwitches that were present or should have been; a later validation
    expects them again. None: not recorded.
    """

    digest: str | None = None
    product: str | None = None
    gpus: tuple[MeasuredGpu, ...] = ()
    devices: tuple[KnownDevice, ...] | None = None


class Counted(Closed, frozen=True, kw_only=True):
    """What was counted `uptime_seconds` after the start of a boot, by counters ("aer 0000:18:00.0") and word.

    `hosttune.model.counters` has the table of them.
    """

    boot_id: str | None = None
    uptime_seconds: float
    counters: Mapping[str, Mapping[str, int]] = {}

    MAPPINGS = ("counters",)


class Validation(Document, frozen=True, kw_only=True):
    """All results and samples of one run. `facts`: versions and clocks that belong to the figures.

    `worse`: what is worse than in the validation that it was compared with, one line each; None if there was none.
    `configuration`: firmware, drivers, kernel and settings, which a fleet compares; None: not recorded. `counted`: the
    error counters, of which a later validation of the same boot judges the growth; None: not known. `looked`: how
    many GPUs were looked at, when, and how to look at the others; None: none is on vfio-pci.
    """

    schema: str = VALIDATION_SCHEMA
    host: str | None = None
    level: int = 0
    verdict: Verdict = "unknown"
    results: tuple[CheckResult, ...] = ()
    samples: tuple[Sample, ...] = ()
    at: str | None = None
    version: str | None = None
    facts: Mapping[str, str] | None = None
    worse: tuple[str, ...] | None = None
    machine: Machine | None = None
    configuration: tuple[Fact, ...] | None = None
    counted: Counted | None = None
    looked: str | None = None

    MAPPINGS = ("facts",)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "validation") -> Validation:
        """Read a validation. Raises BadInput with the offending field or version."""
        validation = from_json(cls, text, schema=VALIDATION_SCHEMA, where=where)
        machine = validation.machine or Machine()
        for address in [gpu.address for gpu in machine.gpus] + [device.address for device in machine.devices or ()]:
            check_address(address, f"{where}: $.machine")
        return validation


def verdict_of(results: Iterable[CheckResult]) -> Verdict:
    """Return the verdict: fail if any result is fail, else unknown if any is, else warn if any is, else pass.

    What is accepted does not count.
    """
    standings = {result.standing for result in results}
    for outcome in ("fail", "unknown", "warn"):
        if outcome in standings:
            return outcome
    return "pass"


def severity(outcome: str) -> int:
    """Return the place of an outcome, level or verdict in all reports, worst first. Another word counts as unknown."""
    return _PLACE.get(outcome, 1)


def worst_first(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Sort results by severity; then results of a check together, with checks in the order of the document."""
    results = tuple(results)
    order = {check: n for n, check in enumerate(dict.fromkeys(result.check for result in results))}
    return tuple(sorted(results, key=lambda result: (severity(result.standing), order[result.check])))


def counts(results: Iterable[CheckResult]) -> dict[str, int]:
    """Return how many results have each outcome, worst first, including zeros; then those that are accepted, if any."""
    standings = Counter(result.standing for result in results)
    return {outcome: standings[outcome] for outcome in (*OUTCOMES, *([ACCEPTED] if standings[ACCEPTED] else []))}
