"""The documents of a fleet: one host's answer in one phase, and the report on all hosts (`hosttune.fleet/v1`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hosttune.model.diagnosis import Cause, Grade, JudgedFigure
from hosttune.model.validation import CheckResult, Verdict
from hosttune.model.validation import Outcome as CheckOutcome
from hosttune.model.values import Closed, Document, Value, from_json
from hosttune.model.verification import StatementState

# alike: all have the same value; differs: more than half of those that are known have one value, others another;
# split: several values, and none has more than half; single: only one is there to compare; unknown: those that are
# known do not differ, but not all are known, or at most half of the hosts have no such device.
State = Literal["alike", "differs", "split", "single", "unknown"]
STATES: tuple[State, ...] = ("differs", "split", "unknown", "single", "alike")  # in the order of a report


class Holder(Closed, frozen=True, kw_only=True):
    """A host with a value. `subjects`: its devices that have it; empty for a fact of the host."""

    host: str
    subjects: tuple[str, ...] = ()


class ValueGroup(Closed, frozen=True, kw_only=True):
    """A value, and how many hosts and subjects (devices, or the hosts themselves) have it.

    `holders` is empty for the majority: these are all hosts that no other group names.
    """

    value: str
    hosts: int
    subjects: int
    holders: tuple[Holder, ...] = ()


class Spread(Closed, frozen=True, kw_only=True):
    """One fact of one kind of device (`kind` None: of the host itself) on the hosts of one machine model.

    `product` and `gpus` (vendor:device, sorted) are the machine model; `product` None: unknown, so that nothing is
    compared. `majority`: the value of more than half of the known subjects. `groups`: the values, most subjects first
    (`more_values`: how many are left out). `unknown`: who could not be read. `without`: hosts of this machine model
    without such a device.
    """

    fact: str
    state: State
    product: str | None = None
    gpus: tuple[str, ...] = ()
    gpu_models: tuple[str, ...] = ()
    kind: str | None = None
    model: str | None = None
    majority: str | None = None
    hosts: int = 0
    known: int = 0
    groups: tuple[ValueGroup, ...] = ()
    more_values: int = 0
    unknown: tuple[Holder, ...] = ()
    without: tuple[str, ...] = ()


FLEET_SCHEMA = "hosttune.fleet/v1"
PLAN_ERRORS = "plan-errors"  # the check whose results are the errors among the findings of a plan

# ok: exit code 0 and a complete document. The next five are hosttune's exit codes 1, 2, 3, 4 and 70. The others say why
# there is no answer to trust; `unknown` covers everything else, such as an answer that is missing, empty or cut.
AnswerOutcome = Literal[
    "ok", "no", "bad-input", "refused", "needs-person", "internal",
    "unreachable", "slow", "died", "disk-full", "wrong-version", "not-installed", "unknown",
]  # fmt: skip


class Answer(Value, frozen=True, kw_only=True):
    """The outcome of one phase on one host: the key `fleet` of RESULTS/HOST/PHASE.json, beside the document's keys.

    `host` is the inventory's name. `run` names the run that asked, so that an old file is never taken for a new answer.
    `exit_code` is the command's; None if there was none. `why`: one line for any answer that is not ok, and for a
    setting that did not become as wanted. `pending`: guests whose change holds from their next start.
    `reboot_required` and `verdict` are repeated here, so that a wave can be judged without the documents.
    """

    host: str
    phase: str
    run: str | None = None
    outcome: AnswerOutcome = "unknown"
    exit_code: int | None = None
    why: str | None = None
    changed: bool = False
    check: bool = False
    reboot_required: bool | None = None
    verdict: Verdict | None = None
    pending: tuple[str, ...] = ()
    started: str | None = None
    seconds: float | None = None


class Median(Value, frozen=True, kw_only=True):
    """The median of a metric over the fleet, for one device model.

    Each subject's median of its runs is one figure. `median` is the median of these figures and `mad` their median
    absolute deviation (not scaled), both in `unit`. `hosts` and `subjects` are counts. `gpus`: measured on this number
    of GPUs at once. `subject`: for a metric of the machine itself ("node0->node1"), only this subject is compared.
    """

    model: str
    device: str | None = None  # vendor:device, as in the baselines
    metric: str
    unit: str
    gpus: int | None = None
    subject: str | None = None
    median: float
    mad: float
    hosts: int
    subjects: int


class Outlier(Value, frozen=True, kw_only=True):
    """A figure far from its model's median: `score` is 0.6745 x (value - median) / MAD (Iglewicz and Hoaglin 1993)."""

    host: str
    subject: str
    model: str
    metric: str
    unit: str
    value: float
    median: float
    mad: float
    score: float | None = None  # None: MAD is 0, and the value differs by more than the minimum relative size
    worse: bool = True  # False: it is far on the good side


class HandedLine(Closed, frozen=True, kw_only=True):
    """A device of a host's hand-over. `why`: what makes its statement void, or keeps it quarantined, one line each."""

    address: str
    state: StatementState
    expires_at: str | None = None
    why: tuple[str, ...] = ()


class HostLine(Closed, frozen=True, kw_only=True):
    """One host in the report. `verdict` is that of its validation in this run, unknown if it has none.

    `checks` maps each check to the worst outcome of its subjects, `counts` each outcome to its number of
    results; what is accepted counts apart ("accepted"), and in `checks` as passed.
    `told` are the results that are not pass or skip, worst first, cut after some dozens (`untold`: how many more).
    `page`: path of the host's own page, from the results folder. `groups`: the inventory's. `low`: figures below what
    is typical of the host's shape, or above what it can give (`low_untold`: how many more); `causes`: why, best first.
    `handed`: the devices of its hand-over in this run.
    """

    host: str
    folder: str
    verdict: Verdict = "unknown"
    hostname: str | None = None
    product: str | None = None
    devices: str | None = None  # "8 x NVIDIA H200"
    wave: int | None = None
    answers: tuple[Answer, ...] = ()
    groups: tuple[str, ...] = ()
    checks: Mapping[str, CheckOutcome] = {}
    counts: Mapping[str, int] = {}
    told: tuple[CheckResult, ...] = ()
    untold: int = 0
    worse: tuple[str, ...] = ()  # what became worse since the last validation, one line each
    page: str | None = None
    low: tuple[JudgedFigure, ...] = ()
    low_untold: int = 0
    causes: tuple[Cause, ...] = ()
    handed: tuple[HandedLine, ...] = ()

    MAPPINGS = ("checks", "counts")


class CauseGroup(Value, frozen=True, kw_only=True):
    """The hosts whose low figures have the same first cause, as the diagnosis of each host's validation says.

    `cause` None: none was found; `confirm` then says what to measure. `grade` and `evidence` are those of the host
    where the cause is supported best, `figures` is the number of low figures of all hosts, `example` is one of them.
    """

    cause: str | None = None
    grade: Grade | None = None
    hosts: tuple[str, ...]
    figures: int = 0
    example: str | None = None
    evidence: tuple[str, ...] = ()
    remedy: str | None = None
    confirm: str | None = None
    source: str | None = None


class Wave(Closed, frozen=True, kw_only=True):
    """One wave of apply or revert: its number of hosts, and what its gate decided (None: not reached)."""

    number: int
    hosts: int
    passed: bool | None = None
    why: tuple[str, ...] = ()


class FleetReport(Document, frozen=True, kw_only=True):
    """One run over many hosts.

    `verdict`: fail if any host fails, else unknown if any is unknown, else warn if any warns, else pass.
    """

    schema: str = FLEET_SCHEMA
    verb: str
    run: str | None = None
    at: str | None = None
    version: str | None = None
    verdict: Verdict = "unknown"
    hosts: tuple[HostLine, ...] = ()
    waves: tuple[Wave, ...] = ()
    stopped: str | None = None  # why the run ended before all hosts were visited
    medians: tuple[Median, ...] = ()
    outliers: tuple[Outlier, ...] = ()
    causes: tuple[CauseGroup, ...] = ()  # which hosts are low, and why
    uniformity: tuple[Spread, ...] = ()  # firmware, drivers, kernel, settings: who differs; () if no host gave them
    notes: tuple[str, ...] = ()  # what the reader must know about the report itself: what could not be compared and why

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "fleet report") -> FleetReport:
        """Read a fleet report. Raises BadInput with the offending field or version."""
        return from_json(cls, text, schema=FLEET_SCHEMA, where=where)
