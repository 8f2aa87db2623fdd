"""Results as every report of a validation orders and words them: worst first, alike together, hints once each.

Pure words and numbers; nothing here knows a format. A colour never stands alone: each outcome has a word and a sign.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from hosttune.model.validation import CheckResult, Validation
from hosttune.model.values import Value

OUTCOMES = ("fail", "unknown", "warn", "pass", "skip")  # worst first
WORDS = {"fail": "failed", "unknown": "unknown", "warn": "warnings", "pass": "passed", "skip": "not applicable"}
SIGNS = {"fail": "✗", "unknown": "?", "warn": "!", "pass": "✓", "skip": "–"}
_ADDRESS = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
ANY_SUBJECT = "<subject>"
LEVELS = {0: "checklist", 1: "quick benchmarks", 2: "full benchmarks", 3: "burn-in"}


class Group(Value, frozen=True, kw_only=True):
    """Results of one check that say the same of several subjects. `ANY_SUBJECT` stands for each where they differ."""

    check: str
    outcome: str
    subjects: tuple[str, ...]
    expected: str | None = None
    actual: str | None = None
    source: str | None = None
    hint: str | None = None


class Step(Value, frozen=True, kw_only=True):
    """One thing to do: a hint, the worst outcome it mends, and what it mends as (check, subjects)."""

    hint: str
    outcome: str
    mends: tuple[tuple[str, tuple[str, ...]], ...]


def severity(outcome: str) -> int:
    """Place of an outcome in the reports, worst first; one that nobody knows counts as unknown."""
    return OUTCOMES.index(outcome if outcome in OUTCOMES else "unknown")


def counts(results: Iterable[CheckResult]) -> dict[str, int]:
    """How many results have each outcome, worst first, zeros included."""
    found = Counter(result.outcome for result in results)
    return {outcome: found[outcome] for outcome in OUTCOMES}  # type: ignore[index]


def worst_first(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Results by severity; within one, those of a check together, checks in the order of the document."""
    results = tuple(results)
    order = {check: n for n, check in enumerate(dict.fromkeys(result.check for result in results))}
    return tuple(sorted(results, key=lambda result: (severity(result.outcome), order[result.check])))


def groups(results: Iterable[CheckResult]) -> tuple[Group, ...]:
    """Results worst first, those of a check that differ only in their subject as one."""
    alike: dict[tuple[object, ...], list[CheckResult]] = {}
    for result in worst_first(results):
        said = tuple(_general(result, text) for text in _texts(result))
        alike.setdefault((result.outcome, result.check, *said), []).append(result)
    return tuple(_group(members) for members in alike.values())


def next_steps(results: Iterable[CheckResult]) -> tuple[Step, ...]:
    """What to do, worst first: every hint of a fail, unknown or warning once, with what it mends."""
    mended: dict[str, list[Group]] = {}
    for group in groups(results):
        if group.hint and group.outcome in ("fail", "unknown", "warn"):
            mended.setdefault(group.hint, []).append(group)
    return tuple(_step(hint, members) for hint, members in mended.items())


def headline(validation: Validation) -> str:
    """The verdict's reason in one sentence."""
    number = counts(validation.results)
    bad = [f"{number[outcome]} {WORDS[outcome]}" for outcome in ("fail", "unknown") if number[outcome]]
    if number["warn"]:
        bad.append(f"{number['warn']} warning{'s' if number['warn'] > 1 else ''}")
    good = [f"{number['pass']} passed"] if number["pass"] or not bad else []
    good += [f"{number['skip']} not applicable"] if number["skip"] else []
    return ", ".join((*bad, *good))


def meaning(validation: Validation) -> str:
    """What the verdict is to whoever has to decide."""
    if not validation.results:
        return "Nothing was checked: this says nothing about the host."
    return {
        "fail": "Do not give this host to a tenant until the failures are fixed.",
        "unknown": "Nothing failed, but some checks could not be made: this is not a pass.",
        "warn": "Fit for use; the warnings may cost performance.",
        "pass": "Every check that applies to this host passed.",
    }[validation.verdict]


def occasion(validation: Validation) -> tuple[str, ...]:
    """How deep, when and by which version it was looked at: only what is known."""
    level = LEVELS.get(validation.level)
    facts = [f"level {validation.level}" + (f" ({level})" if level else "")]
    facts += [validation.at] if validation.at else []
    facts += [f"hosttune {validation.version}"] if validation.version else []
    return tuple(facts)


def _texts(result: CheckResult) -> tuple[str | None, ...]:
    return (result.expected, result.actual, result.source, result.hint)


def _general(result: CheckResult, text: str | None) -> str | None:
    """A text with the subject's address taken out: what is left is the same for each subject of a group.

    Addresses only: "host" or a guest's name may be a part of any other word.
    """
    if text is None or not _ADDRESS.fullmatch(result.subject):
        return text
    return text.replace(result.subject, ANY_SUBJECT)


def _group(members: Sequence[CheckResult]) -> Group:
    first = members[0]
    alone = len(members) == 1
    expected, actual, source, hint = (text if alone else _general(first, text) for text in _texts(first))
    return Group(
        check=first.check,
        outcome=first.outcome,
        subjects=tuple(dict.fromkeys(member.subject for member in members)),
        expected=expected,
        actual=actual,
        source=source,
        hint=hint,
    )


def _step(hint: str, members: Sequence[Group]) -> Step:
    subjects: dict[str, dict[str, None]] = {}
    for member in members:
        subjects.setdefault(member.check, {}).update(dict.fromkeys(member.subjects))
    mends = tuple((check, tuple(names)) for check, names in subjects.items())
    return Step(hint=hint, outcome=members[0].outcome, mends=mends)
