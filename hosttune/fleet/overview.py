"""Result files → the fleet report.

The documents are read one host at a time, and only a HostLine and the host's medians are kept. A host is judged only by
its files of this run. A file that is missing, empty, incomplete, or from another host or run is unknown, never ok.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from hosttune.bench.baselines import shipped
from hosttune.errors import BadInput
from hosttune.fleet.answers import has_answer_file, read_answer
from hosttune.fleet.causes import Diagnosed, diagnose_host, groups_of
from hosttune.fleet.declared import of_validation
from hosttune.fleet.gate import COURSE, PHASES, WAVES, phases
from hosttune.fleet.handed import handed_of, results_of
from hosttune.fleet.medians import FleetFigures, Hardware
from hosttune.fleet.missing import HINTS, hint_of, told, why_unanswered
from hosttune.fleet.record import RecordedRun
from hosttune.fleet.rehearsal import of_plan
from hosttune.fleet.results import answer_path, host_folder, read_file
from hosttune.fleet.uniformity import Gathering, HostHardware, machine_of, read_machine
from hosttune.model.declared import Declared
from hosttune.model.fleet import Answer, FleetReport, HandedLine, HostLine, Wave
from hosttune.model.jsontext import typed_json
from hosttune.model.listing import some
from hosttune.model.validation import (
    ACCEPTED,
    VALIDATION_SCHEMA,
    CheckResult,
    Validation,
    Verdict,
    counts,
    severity,
    verdict_of,
    worst_first,
)
from hosttune.model.validation import Outcome as CheckOutcome

if TYPE_CHECKING:
    from hosttune.fleet.monitored import Monitored  # it brings the metrics, and checks with them

# The phase whose validation gives the final verdict of a host; the other verbs have none.
_JUDGES = {"apply": "validate", "validate": "validate", "handover": "handover", "revert": "validate"}
# Outcomes with which the host reported a failure. After any other outcome than ok, the state of the host is unknown.
_NEGATIVE = frozenset(("no", "bad-input", "refused", "needs-person", "internal"))
MOST_TOLD = 48  # results kept in the report for each host, worst first; the host's own file has all of them
MOST_TEXT = 600  # most characters of each text of a result
HOST_ANSWERS = "host-answers"  # the name of the check that a host without a good answer does not pass


class RunContext(msgspec.Struct, frozen=True):
    """The request that a report is about, and what only the run knows: its waves, why it stopped, inventory groups.

    `check`: it was a dry run, and the files are HOST/PHASE.check.json. `run` None: the run that wrote the files last.
    `metrics`: what Prometheus knows of the hosts now; each then has a result of its own. `declared`: the baseline that
    hosts are held to; each fact of it is a result. `record`: the run as it recorded itself; None: not known.
    """

    verb: str
    run: str | None = None
    check: bool = False
    waves: Sequence[Wave] = ()
    wave_of: Mapping[str, int] = msgspec.field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    stopped: str | None = None
    at: str | None = None
    version: str | None = None
    metrics: Monitored | None = None
    declared: Declared | None = None
    record: RecordedRun | None = None


class _Seen(msgspec.Struct, frozen=True):
    """The content of a host's files: the answers that are used, and the validation that gives the verdict.

    `planned`: the errors of its plan.
    """

    answers: tuple[Answer, ...]
    validation: Validation | None
    handed: tuple[HandedLine, ...] = ()
    planned: tuple[CheckResult, ...] = ()


class _Hosts:
    """What the report says of the hosts, gathered one host after the other.

    `unexplained`: what to measure next, of hosts that are low without a cause.
    """

    def __init__(self, results: str, asked: RunContext) -> None:
        self._results, self._asked = results, asked
        self._standard = shipped()
        self._shared: dict[str, str] = {}
        self._named: dict[str, list[str]] = {}  # hosts by the digest of their machine
        self._undiagnosed = 0
        self.lines: list[HostLine] = []
        self.figures, self.facts = FleetFigures(), Gathering()
        self.unexplained: dict[str, str] = {}

    def add(self, host: str) -> None:
        """Read the files of a host. Its documents are dropped: memory must not grow with the fleet."""
        seen = _look(self._results, host, self._asked)
        validation = seen.validation
        own = machine_of(validation) if validation is not None else None
        machine = own or read_machine(self._results, host)
        self.facts.add(host, machine, validation.configuration if validation is not None else None)
        why = None
        if validation is not None:
            # Why a host's figures are low; nothing where that cannot be told.
            why = diagnose_host(self._results, host, validation, self._standard)
            self._undiagnosed += why is None
            if why is not None and why.low and not why.causes:
                self.unexplained[host] = _cut("; ".join(why.next))
        self.lines.append(_line(host, seen, machine, self._asked, self._shared, why or Diagnosed()))
        if validation is not None:
            self.figures.add(host, validation.samples, machine.hardware if machine is not None else None)
            if validation.machine is not None and validation.machine.digest:
                self._named.setdefault(validation.machine.digest, []).append(host)

    def notes(self) -> Iterator[str]:
        """Yield what a person must know of the hosts as a whole."""
        yield from self.figures.notes()
        if self._undiagnosed:
            why = "too many of them, or they cannot be read"
            yield f"the figures of {self._undiagnosed} hosts are not diagnosed: {why}"
        for hosts in self._named.values():  # an intended host was not contacted
            if len(hosts) > 1:
                yield (
                    f"the same machine (machine id, CPUs and nodes) answered as {some(hosts, 5)}: look for an address "
                    "that is listed twice in the inventory, or for a machine id that was cloned"
                )
        yield from self.facts.notes()
        if self._asked.metrics is not None:
            yield from self._asked.metrics.strangers([line.host for line in self.lines])


def report_of(results: str, hosts: Iterable[str], asked: RunContext) -> FleetReport:
    """Return the report over these hosts, in this order, from the files in the folder `results`.

    The documents of one host are dropped before the next host is read. A host whose files cannot be read is unknown.
    Raises BadInput for a verb that has no report.
    """
    if asked.verb not in PHASES:
        raise BadInput(f"no verb {asked.verb!r}", where="fleet report", hint=f"one of {', '.join(PHASES)}")
    gathered = _Hosts(results, asked)
    for host in hosts:
        gathered.add(host)
    medians, outliers = gathered.figures.medians()
    return FleetReport(
        verb=asked.verb,
        run=asked.run,
        at=asked.at,
        version=asked.version,
        waves=tuple(asked.waves),
        stopped=asked.stopped,
        verdict=_worst(line.verdict for line in gathered.lines) if gathered.lines else "unknown",
        hosts=tuple(gathered.lines),
        medians=medians,
        outliers=outliers,
        causes=groups_of(gathered.lines, gathered.unexplained),
        uniformity=gathered.facts.spreads(),
        notes=tuple(gathered.notes()),
    )


# --- reading result files ------------------------------------------------------------------------------------


def _look(results: str, host: str, asked: RunContext) -> _Seen:
    """Return the host's answer in every phase that was run; the answer of the verb itself is always included."""
    asked_in = phases(asked.verb, check=asked.check)
    # If no run is named, use the one that wrote last. Files that other runs left in the folder prove nothing about it.
    run = asked.run or read_answer(results, host, asked.verb, None, check=asked.check).run
    answers = {phase: read_answer(results, host, phase, run, check=asked.check) for phase in asked_in}
    judge = judge_of(asked.verb, check=asked.check)
    validation = None
    if judge is not None and answers[judge].outcome in ("ok", "no"):  # only these have a document that can be trusted
        validation, doubt = _validation(results, host, judge, asked)
        if doubt is not None:
            answers[judge] = msgspec.structs.replace(answers[judge], outcome="unknown", why=doubt)
    kept = [answer for phase, answer in answers.items() if phase == asked.verb or has_answer_file(answer)]
    stated = asked.verb == COURSE and not asked.check
    planned = of_plan(results, host, answers["plan"]) if asked.verb == "plan" else ()
    return _Seen(tuple(kept), validation, handed_of(results, host, answers) if stated else (), planned)


def judge_of(verb: str, *, check: bool = False) -> str | None:
    """Return the phase whose validation gives the final verdict of a host; None if the verb has none.

    After a dry run of a change there is nothing to validate.
    """
    return None if check and verb in WAVES else _JUDGES.get(verb)


def _validation(results: str, host: str, phase: str, asked: RunContext) -> tuple[Validation | None, str | None]:
    """Return (the validation in a phase's file, None), or (None, the reason why there is none)."""
    path = answer_path(results, host, phase, check=asked.check)
    try:
        data = read_file(path)
        if data is None:
            return None, "the result file has disappeared"
        if typed_json(data, _Schema).schema != VALIDATION_SCHEMA:
            return None, "the result file holds no validation"
        return Validation.from_json(data, where=path), None
    except BadInput as error:
        return None, error.what
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, f"the result file cannot be read: {error}"


class _Schema(msgspec.Struct):
    schema: str | None = None


# --- one host ------------------------------------------------------------------------------------------------


def _line(
    host: str, seen: _Seen, machine: HostHardware | None, asked: RunContext, shared: dict[str, str], why: Diagnosed
) -> HostLine:
    made = seen.validation.results if seen.validation is not None else ()
    handed = tuple(
        msgspec.structs.replace(line, why=tuple(_cut(text) for text in line.why[:MOST_TOLD])) for line in seen.handed
    )
    course = next((answer for answer in seen.answers if answer.phase == COURSE and not asked.check), None)
    monitored = () if asked.metrics is None else (asked.metrics.of(host),)
    held = () if asked.declared is None or seen.validation is None else of_validation(asked.declared, seen.validation)
    own = (*results_of(handed, course), *seen.planned, *monitored, *held, *made)
    results = (*_results_of_answers(seen, made, asked), *own)
    notable = [result for result in worst_first(results) if result.standing not in (ACCEPTED, "pass", "skip")]
    worse = (seen.validation.worse or ()) if seen.validation is not None else ()
    hardware = machine.hardware if machine is not None else Hardware({})

    return HostLine(
        host=host,
        folder=host_folder(host),
        verdict=_verdict(seen, asked, results),
        hostname=(seen.validation.host if seen.validation is not None else None)
        or (machine.hostname if machine is not None else None),
        product=hardware.product,
        devices=machine.devices if machine is not None else None,
        wave=asked.wave_of.get(host),
        groups=tuple(asked.groups.get(host, ())),
        answers=tuple(
            msgspec.structs.replace(answer, why=told(answer, asked.record, asked.stopped)) for answer in seen.answers
        ),
        checks=_checks(results, shared),
        counts=counts(results),
        told=tuple(_kept(result, shared) for result in notable[:MOST_TOLD]),
        untold=max(0, len(notable) - MOST_TOLD),
        worse=tuple(_cut(line) for line in worse[:MOST_TOLD]),
        low=why.low,
        low_untold=why.more,
        causes=why.causes,
        handed=handed,
    )


def _results_of_answers(seen: _Seen, made: Sequence[CheckResult], asked: RunContext) -> tuple[CheckResult, ...]:
    """Return a result for each answer that is not ok.

    Two answers are left out. The `no` of a validation is already shown by its results. The `no` of the phase `before`
    describes the host before the change, not its state now. If an earlier phase failed, so that later phases were not
    run, only the earlier phase gives a result.
    """
    has_reason = any(has_answer_file(answer) and answer.outcome not in ("ok", "no") for answer in seen.answers)
    asked_for = [
        answer
        for answer in seen.answers
        if answer.outcome != "ok"
        and (has_answer_file(answer) or not has_reason)
        and not (answer.outcome == "no" and answer.phase in ("before", judge_of(asked.verb, check=asked.check)))
    ]
    return (*(_result(answer, asked) for answer in asked_for), *_unjudged(seen, asked), *_regressed(seen, made, asked))


def _unjudged(seen: _Seen, asked: RunContext) -> tuple[CheckResult, ...]:
    """Return a result for a host that was changed but not validated or not rebooted since: its state is unknown."""
    by_phase = {answer.phase: answer for answer in seen.answers}
    if (
        judge_of(asked.verb, check=asked.check) is None
        or asked.verb not in WAVES
        or by_phase[asked.verb].outcome != "ok"
    ):
        return ()
    reboot = by_phase[asked.verb].reboot_required and "status" not in by_phase
    if "validate" in by_phase and not reboot:
        return ()
    why = "the change waits for a reboot that was not made" if reboot else "changed, and not validated since"
    hint = "reboot it, or allow it (--reboot), then run again with --retry" if reboot else HINTS["unknown"]
    return (_no_answer("validate", why, hint),)


def _regressed(seen: _Seen, made: Sequence[CheckResult], asked: RunContext) -> tuple[CheckResult, ...]:
    """Return a result for a host without fail or unknown for which the gate is closed: something got worse."""
    judge = judge_of(asked.verb, check=asked.check)
    judged = next((answer for answer in seen.answers if answer.phase == judge), None)
    if seen.validation is None or judged is None or judged.outcome != "no" or verdict_of(made) in ("fail", "unknown"):
        return ()
    worse = seen.validation.worse or ()
    actual = f"{len(worse)} worse: {'; '.join(worse)}" if worse else "the answer is no, and no result gives a reason"
    return (
        CheckResult(
            check="regression",
            subject="host",
            outcome="fail",
            expected="nothing worse than before",
            actual=actual,
            source=f"phase {judged.phase}",
            hint="compare the host's results before and after; hosttune revert undoes the change",
        ),
    )


def _no_answer(subject: str, why: str, hint: str) -> CheckResult:
    return CheckResult(
        check=HOST_ANSWERS,
        subject=subject,
        outcome="unknown",
        expected="a whole answer of this run",
        actual=why,
        hint=hint,
    )


def _result(answer: Answer, asked: RunContext) -> CheckResult:
    if not has_answer_file(answer):
        return _no_answer("host", *why_unanswered(answer, asked.record, asked.stopped))
    why = told(answer, asked.record, asked.stopped) or f"the answer is {answer.outcome}"
    hint = hint_of(answer)
    if answer.outcome not in ("unknown", "no"):
        why = f"{answer.outcome}: {why}"
    if answer.outcome not in _NEGATIVE or answer.phase in ("before", judge_of(asked.verb, check=asked.check)):
        return _no_answer("host" if answer.phase == asked.verb else answer.phase, why, hint)
    return CheckResult(
        check=answer.phase,
        subject="host",
        outcome="fail",
        expected="done",
        actual=why,
        source=f"exit code {answer.exit_code}" if answer.exit_code is not None else None,
        hint=hint,
    )


def _verdict(seen: _Seen, asked: RunContext, results: Sequence[CheckResult]) -> Verdict:
    """Return the worst of the validation's own verdict, its results, and the results of the answers.

    It is at best unknown if the verb needs a validation and there is none.
    """
    verdicts: list[Verdict] = [verdict_of(results)]
    if seen.validation is not None:
        verdicts.append(seen.validation.verdict if seen.validation.results else "unknown")
    elif judge_of(asked.verb, check=asked.check) is not None:
        verdicts.append("unknown")
    return _worst(verdicts)


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=severity)


def _checks(results: Iterable[CheckResult], shared: dict[str, str]) -> dict[str, CheckOutcome]:
    checks: dict[str, CheckOutcome] = {}
    for result in results:
        name = shared.setdefault(result.check, result.check)
        outcome: CheckOutcome = "pass" if result.standing == ACCEPTED else result.outcome
        if name not in checks or severity(outcome) < severity(checks[name]):
            checks[name] = outcome
    return checks


def _kept(result: CheckResult, shared: dict[str, str]) -> CheckResult:
    """Return a result with its texts cut to MOST_TEXT. Equal texts of several hosts share one string (saves memory)."""

    def short(text: str | None) -> str | None:
        return None if text is None else shared.setdefault(cut := _cut(text), cut)

    return CheckResult(
        check=shared.setdefault(result.check, result.check),
        subject=result.subject,
        outcome=result.outcome,
        expected=short(result.expected),
        actual=short(result.actual),
        source=short(result.source),
        hint=short(result.hint),
    )


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} … ({len(text) - MOST_TEXT} more characters)"
