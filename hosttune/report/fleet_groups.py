"""How all reports of a fleet order and describe its hosts: worst first, the same failure of many hosts once.

Pure text and numbers, independent of a format.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hosttune.model.fleet import PLAN_ERRORS, AnswerOutcome, FleetReport, HostLine, Median, Outlier
from hosttune.model.listing import some
from hosttune.model.text import count, number
from hosttune.model.validation import ACCEPTED, CheckResult, severity
from hosttune.model.values import Value, grouped
from hosttune.report.outcomes import remedy, without_subject

VERDICTS = ("fail", "unknown", "warn", "pass")  # worst first
VERDICT_WORDS = {"fail": "failed", "unknown": "unknown", "warn": "with warnings", "pass": "passed"}
# The meaning of each answer, worst first. For a host with several answers, reports show the first of this order.
ANSWERS: Mapping[AnswerOutcome, str] = {
    "needs-person": "needs a person: a revert failed",
    "internal": "a bug in hosttune",
    "died": "connection or command died",
    "unreachable": "not reached",
    "slow": "no answer in time",
    "disk-full": "disk full",
    "not-installed": "hosttune is not installed",
    "wrong-version": "another version of hosttune",
    "unknown": "no answer, or one that cannot be trusted",
    "refused": "refused by a guard",
    "bad-input": "input refused",
    "no": "answered no",
    "ok": "answered",
}
_ORDER = tuple(ANSWERS)
_NUMBER = re.compile(r"[0-9]+")
_HOST = "<host>"
_HOST_ANSWERS = "host-answers"
NAMED = 3  # checks of one remedy that are named
_CHECKS = 6  # named in a host's line
_CAUSES = 6  # named in the sentence that answers first


class Trouble(Value, frozen=True, kw_only=True):
    """One failure, unknown or warning, with every host that has it. `results`: the number of subjects in total.

    `checks`: several where one remedy mends them all. `expected` and `actual` are those of the first result; `expected`
    is None where several checks expect different things. `alike`: all results have the same.
    """

    checks: tuple[str, ...]
    outcome: str
    hosts: tuple[str, ...]
    results: int
    expected: str | None = None
    actual: str | None = None
    hint: str | None = None
    alike: bool = True
    answer: AnswerOutcome | None = None  # for hosts that did not answer: the kind of answer
    places: tuple[str, ...] = ()  # devices with their hosts

    @property
    def title(self) -> str:
        """The check. For hosts that did not answer: what happened to them."""
        if self.answer is None:
            return some(self.checks, NAMED)
        check = self.checks[0]
        return ANSWERS[self.answer] if check == _HOST_ANSWERS else f"{check}: {ANSWERS[self.answer]}"

    @property
    def size(self) -> str:
        """How many hosts and results it affects: "12 hosts, 17 results"."""
        hosts = count(len(self.hosts), "host")
        return hosts if self.results == len(self.hosts) else f"{hosts}, {self.results} results"


def answer_of(line: HostLine) -> AnswerOutcome:
    """Return a host's answer in one word: the worst of its phases. A host without any answer is unknown."""
    outcomes = [
        answer.outcome for answer in line.answers if not (answer.phase == "before" and answer.outcome in ("ok", "no"))
    ]
    return min(outcomes, key=_ORDER.index, default="unknown")


def answers_worst_first(report: FleetReport) -> dict[AnswerOutcome, int]:
    """Return how many hosts gave each answer, worst first. Answers that no host gave are left out."""
    counts = Counter(answer_of(line) for line in report.hosts)
    return {word: counts[word] for word in _ORDER if counts[word]}


def verdicts(report: FleetReport) -> dict[str, int]:
    """Return how many hosts have each verdict, worst first, including zeros."""
    counts = Counter(line.verdict for line in report.hosts)
    return {verdict: counts[verdict] for verdict in VERDICTS}  # type: ignore[index]  # the four words of a verdict


def hosts_worst_first(lines: Iterable[HostLine]) -> tuple[HostLine, ...]:
    """Sort hosts by verdict, then by answer, then by number of problems, then by name (with numbers as numbers)."""
    return tuple(sorted(lines, key=_rank))


def _rank(line: HostLine) -> tuple[object, ...]:
    wrong = tuple(-line.counts.get(outcome, 0) for outcome in ("fail", "unknown", "warn"))
    answer = answer_of(line)
    person = answer != "needs-person"
    return (severity(line.verdict), person, wrong, _ORDER.index(answer), natural(line.host))


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return the sort key of a name: gpu-9 comes before gpu-10."""
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((part.isascii() and part.isdecimal(), int(part), "") if n % 2 else (False, 0, part)
                 for n, part in enumerate(parts))  # fmt: skip


def headline(report: FleetReport) -> str:
    """Return how many hosts have which verdict, in one sentence."""
    if not report.hosts:
        return "no hosts"
    parts = [f"{number_of} {VERDICT_WORDS[verdict]}" for verdict, number_of in verdicts(report).items() if number_of]
    parts += [f"update pending on {len(waits)}"] if (waits := pending(report)) else []
    return f"{count(len(report.hosts), 'host')}: {', '.join(parts)}"


def pending(report: FleetReport) -> dict[str, tuple[str, ...]]:
    """Return the hosts on which guests still run as before their change, with these guests."""
    told = {line.host: [name for answer in line.answers for name in answer.pending] for line in report.hosts}
    return {host: tuple(dict.fromkeys(names)) for host, names in told.items() if names}


def meaning(report: FleetReport) -> str:
    """Return what the verdict means for the person who has to decide."""
    if not report.hosts:
        return "No host was asked: this says nothing about the fleet."
    number_of = verdicts(report)
    unchecked = report.verb in ("discover", "plan")  # these verbs give an answer, but judge nothing
    judged = report.verb in ("validate", "handover")  # the only verbs that ask for every check
    warned = sum(1 for line in report.hosts if line.counts.get("warn"))
    fit = f" {_fit(report)}" if judged else ""
    lost = f" {count(number_of['unknown'], 'host')} unknown: that is not a pass." if number_of["unknown"] else ""
    if report.verdict == "fail":
        unfit = "failed" if unchecked else "must not go to a tenant"
        return f"{fit} {count(number_of['fail'], 'host')} {unfit}.{lost}{_plans_with_errors(report)}".strip()
    errors = _plans_with_errors(report)
    warned_of = "." if errors else "; the warnings say what could be better."
    return {
        "unknown": f"{fit} No host failed, but{lost}{errors}".strip(),
        "warn": f"Every host {'succeeded' if unchecked else 'is fit for use'}{warned_of}{errors}",
        "pass": _success(judged, warned),
    }[report.verdict]


def _fit(report: FleetReport) -> str:
    """Return how many hosts may go to tenants, and why not the others: each under the worst that it has."""
    good = sum(line.verdict in ("pass", "warn") for line in report.hosts)
    left = {line.host for line in report.hosts if line.verdict not in ("pass", "warn")}
    causes: Counter[str] = Counter()
    for trouble in troubles(report):
        hit = left.intersection(trouble.hosts)
        causes[trouble.title] += len(hit)
        left -= hit
    causes["no reason given"] += len(left)
    named = [f"{title} ({hosts})" for title, hosts in causes.items() if hosts]
    others = f"; the others: {some(named, _CAUSES)}" if named else ""
    return f"{good} of {count(len(report.hosts), 'host')} may go to tenants{others}."


def _plans_with_errors(report: FleetReport) -> str:
    """Return how many plans have errors: a plan that was made is a success, and its guests may still not start."""
    wrong = sum(line.checks.get(PLAN_ERRORS) == "warn" for line in report.hosts)
    made = sum(
        answer.phase == "plan" and answer.outcome in ("ok", "no") for line in report.hosts for answer in line.answers
    )
    return f" {count(wrong, 'plan')} of {made} with errors: see to them before fleet apply." if wrong else ""


def _success(judged: bool, warned: int) -> str:
    """Return what "pass" means: of checks it speaks only where they were asked for and none warned."""
    if warned:
        return f"Every host succeeded; {count(warned, 'host')} with warnings."
    return "Every host succeeded" + (", and every check that applies to it passed." if judged else ".")


def occasion(report: FleetReport) -> tuple[str, ...]:
    """Return what was asked, when, and by which version: only what is known."""
    facts = [f"hosttune fleet {report.verb}"]
    facts += [f"run {report.run}"] if report.run else []
    facts += [report.at] if report.at else []
    facts += [f"hosttune {report.version}"] if report.version else []
    return tuple(facts)


def summary(line: HostLine, *, warnings: bool = True) -> str:
    """Return what is wrong with a host in one line: why it did not answer, the outcomes and their checks.

    Empty if nothing is wrong. `warnings` False: of the warnings, only their number.
    """
    shown = [result for result in line.told if _answer(line, result) is not None]
    parts = [
        result.actual or result.check if result.check == _HOST_ANSWERS else f"{result.check}: {result.actual}"
        for result in shown
    ]
    for outcome, words in (("fail", "failed"), ("unknown", "unknown"), ("warn", "warnings"), (ACCEPTED, ACCEPTED)):
        number_of = line.counts.get(outcome, 0) - sum(result.outcome == outcome for result in shown)
        names = [
            name for name, worst in line.checks.items() if worst == outcome and name not in {o.check for o in shown}
        ]
        named = names and (warnings or outcome != "warn")
        if number_of > 0:
            word = "warning" if outcome == "warn" and number_of == 1 else words
            parts.append(f"{number_of} {word}" + (f": {some(names, _CHECKS)}" if named else ""))
    if line.worse:
        first = f": {line.worse[0]}" + (" …" if len(line.worse) > 1 else "") if "regression" not in line.checks else ""
        parts.append(f"{len(line.worse)} worse than before{first}")
    return "; ".join(parts)


# --- the same failure on many hosts --------------------------------------------------------------------------


def troubles(report: FleetReport) -> tuple[Trouble, ...]:
    """Return every failure, unknown and warning once, worst first, then by the number of hosts that have it.

    Several checks with one remedy are one: a host of which no device could be read has it for every check.
    """
    members = grouped((_key(line, result), (line, result)) for line in report.hosts for result in line.told)
    remedies = grouped((_remedy(key, same), same) for key, same in members.items())
    every = [_trouble([result for same in alike for result in same]) for alike in remedies.values()]
    return tuple(sorted(every, key=_worst_first))


def _worst_first(trouble: Trouble) -> tuple[object, ...]:
    """Return the sort key: hosts that need a person first, then by severity; whole hosts before single results."""
    whole = trouble.answer is None
    return (
        trouble.answer != "needs-person",
        severity(trouble.outcome),
        whole,
        -len(trouble.hosts),
        -trouble.results,
        trouble.checks,
    )


def _key(line: HostLine, result: CheckResult) -> tuple[str, ...]:
    """Return what makes two results the same failure: check, outcome and hint, whatever their numbers.

    If the hint is a general one (a host that did not answer, a phase that failed), the reason is part of the key.
    """
    answer = _answer(line, result)
    texts = (result.hint, result.actual if result.hint is None or answer is not None else None)
    return (
        result.outcome,
        result.check,
        answer or "",
        *(_NUMBER.sub("#", _general(line, result, text) or "") for text in texts),
    )


def _remedy(key: tuple[str, ...], members: Sequence[tuple[HostLine, CheckResult]]) -> tuple[str, ...]:
    """Return what makes two failures one thing to do: outcome and remedy; where there is no remedy, they stay apart."""
    line, first = members[0]
    hint = _general(line, first, first.hint) if _answer(line, first) is None else None
    return key if hint is None else (first.outcome, hint)


def _answer(line: HostLine, result: CheckResult) -> AnswerOutcome | None:
    """Return the host's answer in the phase that a result is about; None if the result is that of a check."""
    if result.check != _HOST_ANSWERS:
        return next((answer.outcome for answer in line.answers if answer.phase == result.check), None)
    outcome_of = {answer.phase: answer.outcome for answer in line.answers}
    return outcome_of.get(result.subject, answer_of(line) if answer_of(line) not in ("ok", "no") else "unknown")


def _general(line: HostLine, result: CheckResult, text: str | None) -> str | None:
    """Return a text without the names of its host and without the address of its subject."""
    text = without_subject(result, text)
    if text is None:
        return None
    for name in dict.fromkeys((line.host, line.hostname)):
        if name and name in text and _NUMBER.search(name):  # a name without a digit may be a normal word
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", _HOST, text)
    return text


def _trouble(members: Sequence[tuple[HostLine, CheckResult]]) -> Trouble:
    line, first = members[0]
    texts = [tuple(_general(of, result, text) for text in (result.expected, result.actual)) for of, result in members]
    checks = tuple(dict.fromkeys(result.check for _, result in members))
    place = line.host if first.subject == "host" else f"{first.subject} of {line.host}"
    return Trouble(
        checks=checks,
        outcome=first.outcome,
        hosts=tuple(dict.fromkeys(of.host for of, _ in members)),
        places=tuple(
            dict.fromkeys(f"{result.subject} of {of.host}" for of, result in members if result.subject != "host")
        ),
        results=len(members),
        expected=first.expected if len(checks) == 1 or len({text for text, _ in texts}) == 1 else None,
        actual=first.actual,
        hint=remedy([result.hint for _, result in members], place),
        alike=len({(result.expected, result.actual) for _, result in members}) == 1,
        answer=_answer(line, first),
    )


# --- figures ---------------------------------------------------------------------------------------


def outlier_text(outlier: Outlier) -> str:
    """Return the figures of an outlier as text: "28.0 GB/s, median 55.5, -49.5 %, score -132"."""
    part = f"{outlier.value / outlier.median - 1:+.1%}" if outlier.median else "median is 0"
    score = f"score {outlier.score:+.1f}" if outlier.score is not None else "all others alike"
    return f"{number(outlier.value)} {outlier.unit}, median {number(outlier.median)}, {part}, {score}"


def median_name(median: Median) -> str:
    """Return the metric's name, and what it was measured on other than the model."""
    extra = f"{median.gpus} GPUs" if median.gpus else median.subject
    return f"{median.metric} ({extra})" if extra else median.metric


def results_left_out(report: FleetReport) -> str | None:
    """Return how many results are missing in the groups; None if none is."""
    cut = [line.untold for line in report.hosts if line.untold]
    if not cut:
        return None
    return f"{sum(cut)} more results of {count(len(cut), 'host')} are in their own result files, but not here."
