"""How all reports of a validation order and describe results: worst first, similar ones together, hints once each.

Pure text and numbers, independent of a format. No outcome is shown by colour alone: each has a word and a sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hosttune.model.collective import CollectiveReport
from hosttune.model.evidence import LOOKED
from hosttune.model.pairs import PairsReport
from hosttune.model.text import count
from hosttune.model.validation import ACCEPTED, Acceptance, CheckResult, Validation, counts, worst_first
from hosttune.model.values import Value, grouped

WORDS = {
    "fail": "failed", "unknown": "unknown", "warn": "warnings", ACCEPTED: "accepted", "pass": "passed",
    "skip": "not applicable",
}  # fmt: skip
SIGNS = {"fail": "✗", "unknown": "?", "warn": "!", ACCEPTED: "~", "pass": "✓", "skip": "–"}
_ADDRESS = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
ANY_SUBJECT = "<subject>"
LEVELS = {0: "checklist", 1: "quick benchmarks", 2: "full benchmarks", 3: "burn-in"}


class Mark(Value, frozen=True):
    """A word that says how good or bad something is: a badge with a sign, never colour alone. No outcome: a word."""

    outcome: str
    word: str

    @property
    def signed(self) -> str:
        """The word with its sign."""
        return f"{SIGNS[self.outcome]} {self.word}" if self.outcome else self.word


class Group(Value, frozen=True, kw_only=True):
    """Results that say the same about several subjects, of one check or, in `check`, of several with one reason.

    If the texts differ only in the subject, `ANY_SUBJECT` replaces it.
    """

    check: str
    outcome: str
    subjects: tuple[str, ...]
    expected: str | None = None
    actual: str | None = None
    source: str | None = None
    hint: str | None = None
    accepted: Acceptance | None = None

    @property
    def facts(self) -> tuple[tuple[str, str | None], ...]:
        """What is said of it: (label, text)."""
        word = self.accepted.text if self.accepted else None
        return (
            ("expected", self.expected), ("actual", self.actual), ("source", self.source), (ACCEPTED, word),
            ("do", self.hint),
        )  # fmt: skip


class NextStep(Value, frozen=True, kw_only=True):
    """One thing to do: a hint, the worst outcome that it fixes, and what it fixes as (check, subjects)."""

    hint: str
    outcome: str
    mends: tuple[tuple[str, tuple[str, ...]], ...]


def groups(results: Iterable[CheckResult]) -> tuple[Group, ...]:
    """Group results that differ only in their subject, worst first."""
    alike: dict[tuple[object, ...], list[CheckResult]] = {}
    for result in worst_first(results):
        texts = tuple(without_subject(result, text) for text in _texts(result))
        alike.setdefault((result.standing, result.check, *texts, result.accepted), []).append(result)
    return tuple(_group(members) for members in alike.values())


def folded(found: Iterable[Group]) -> tuple[Group, ...]:
    """Put together what is unknown, or does not apply, in several checks for one reason."""
    alike: dict[tuple[object, ...], list[Group]] = {}
    for group in found:
        alone = () if group.outcome in ("unknown", "skip") else (group.check, group.expected, group.source)
        alike.setdefault((group.outcome, group.actual, group.hint, group.accepted, *alone), []).append(group)
    return tuple(_folded(members) for members in alike.values())


def _folded(members: Sequence[Group]) -> Group:
    first = members[0]
    if len(members) == 1:
        return first
    return msgspec.structs.replace(
        first,
        check=", ".join(dict.fromkeys(group.check for group in members)),
        subjects=tuple(dict.fromkeys(subject for group in members for subject in group.subjects)),
        expected=None,
        source=first.source if len({group.source for group in members}) == 1 else None,
    )


def subjects_by_check(found: Iterable[Group]) -> dict[str, tuple[str, ...]]:
    """Return the subjects of each check, each once, in the order of the groups."""
    subjects: dict[str, dict[str, None]] = {}
    for group in found:
        subjects.setdefault(group.check, {}).update(dict.fromkeys(group.subjects))
    return {check: tuple(names) for check, names in subjects.items()}


def next_steps(results: Iterable[CheckResult]) -> tuple[NextStep, ...]:
    """Return what to do, worst first: every hint of a fail, unknown or warning once, with what it fixes."""
    mended = grouped(
        (group.hint, group) for group in groups(results) if group.hint and group.outcome in ("fail", "unknown", "warn")
    )
    return tuple(
        NextStep(hint=hint, outcome=members[0].outcome, mends=tuple(subjects_by_check(members).items()))
        for hint, members in mended.items()
    )


def headline(validation: Validation) -> str:
    """Return the reason for the verdict in one sentence, and which GPUs were looked at when."""
    return "; ".join(filter(None, (tally(validation.results), validation.looked)))


def tally(results: Iterable[CheckResult]) -> str:
    """Return how many results have which outcome, worst first, in the words of all reports."""
    number = counts(results)
    bad = [f"{number[outcome]} {WORDS[outcome]}" for outcome in ("fail", "unknown") if number[outcome]]
    if number["warn"]:
        bad.append(count(number["warn"], "warning"))
    bad += [f"{number[ACCEPTED]} {WORDS[ACCEPTED]}"] if ACCEPTED in number else []
    good = [f"{number['pass']} passed"] if number["pass"] or not bad else []
    good += [f"{number['skip']} not applicable"] if number["skip"] else []
    return ", ".join((*bad, *good))


def meaning(validation: Validation) -> str:
    """Return what the verdict means for the person who has to decide."""
    if not validation.results:
        return "Nothing was checked: this says nothing about the host."
    if unseen(validation) and validation.verdict in ("pass", "warn"):
        return "Nobody has looked at some facts of GPUs, which a person has accepted: not shown to be fit for use."
    return {
        "fail": "Do not give this host to a tenant until the failures are fixed.",
        "unknown": "Nothing failed, but some checks could not be made: this is not a pass.",
        "warn": "Fit for use; the warnings say what could be better.",
        "pass": "Every check that applies to this host passed.",
    }[validation.verdict]


def unseen(validation: Validation) -> bool:
    """Return whether nobody has looked at a fact of a GPU's health, accepted or not."""
    return any(result.outcome == "unknown" and result.check in LOOKED for result in validation.results)


def occasion(validation: Validation) -> tuple[str, ...]:
    """Return the level, time and version of the validation: only what is known."""
    level = LEVELS.get(validation.level)
    facts = [f"level {validation.level}" + (f" ({level})" if level else "")]
    facts += [validation.at] if validation.at else []
    facts += [f"hosttune {validation.version}"] if validation.version else []
    return tuple(facts)


def _texts(result: CheckResult) -> tuple[str | None, ...]:
    return (result.expected, result.actual, result.source, result.hint)


def without_subject(result: CheckResult, text: str | None) -> str | None:
    """Return a text without the subject's address, so that it is the same for each subject of a group.

    Only addresses are removed: "host" or a guest's name may be a part of another word.
    """
    if text is None or not _ADDRESS.fullmatch(result.subject):
        return text
    return text.replace(result.subject, ANY_SUBJECT)


def _group(members: Sequence[CheckResult]) -> Group:
    first = members[0]
    alone = len(members) == 1
    expected, actual, source = (text if alone else without_subject(first, text) for text in _texts(first)[:3])
    return Group(
        check=first.check,
        outcome=first.standing,
        subjects=tuple(dict.fromkeys(member.subject for member in members)),
        expected=expected,
        actual=actual,
        source=source,
        hint=remedy([member.hint for member in members], first.subject),
        accepted=first.accepted,
    )


def remedy(hints: Sequence[str | None], of: str) -> str | None:
    """Return what to do about alike results: for the first of them (`of`), and likewise where others differ."""
    return hints[0] if len(set(hints)) == 1 else f"{hints[0]} (so for {of}; likewise for the others)"


# --- hosts that were not measured -----------------------------------------------------------------------------


def unmeasured_hosts(report: PairsReport | CollectiveReport) -> Iterator[str]:
    """Yield a line for each host that was not measured."""
    for host in report.hosts:
        if host.outcome != "ok":
            yield f"host {host.host}: not measured: {host.outcome}: {host.why}"
