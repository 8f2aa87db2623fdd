"""What a check is: a pure function from evidence to results, with the words that document it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hosttune.model.evidence import Evidence
from hosttune.model.validation import CheckResult


@dataclass(frozen=True)
class Check:
    """One check. `id` is stable and kebab-case; one result for each subject, at least one in all.

    `subjects` says what it looks at, `why` what it protects from, `source` where its rule comes from. What many checks
    have in common is declared, and done for them by `checks.results_of`:

    `inside`: it makes sense in a guest too, where the settings of the host are not to be judged.
    `for_guests`: it matters only on a host with GPUs or guests, and is skipped on others without asking `judge`.
    `none`: what a host lacks where `judge` finds no subject at all ("GPU"), for the one result that says so.
    `of_tree`: it looks at the PCI tree alone, though it is about each GPU: unknown for a GPU that the tree has lost.
    """

    id: str
    title: str
    subjects: str
    why: str
    source: str
    judge: Callable[[Evidence], Iterable[CheckResult]]
    inside: bool = False
    for_guests: bool = False
    none: str | None = None
    of_tree: bool = False


def passed(check: str, subject: str, *, expected: str, actual: str, source: str) -> CheckResult:
    """It is as it should be."""
    return CheckResult(check=check, subject=subject, outcome="pass", expected=expected, actual=actual, source=source)


def failed(check: str, subject: str, *, expected: str, actual: str, source: str, hint: str) -> CheckResult:
    """It is not; `hint` names the command or setting that mends it."""
    return CheckResult(
        check=check, subject=subject, outcome="fail", expected=expected, actual=actual, source=source, hint=hint
    )


def warned(check: str, subject: str, *, expected: str, actual: str, source: str, hint: str) -> CheckResult:
    """It costs something, or may, and stops nobody."""
    return CheckResult(
        check=check, subject=subject, outcome="warn", expected=expected, actual=actual, source=source, hint=hint
    )


def skipped(check: str, subject: str, why: str) -> CheckResult:
    """It does not apply here."""
    return CheckResult(check=check, subject=subject, outcome="skip", actual=why)


def unknown(check: str, subject: str, *, expected: str, why: str, hint: str, source: str | None = None) -> CheckResult:
    """It applies and could not be read. Never a pass."""
    return CheckResult(
        check=check, subject=subject, outcome="unknown", expected=expected, actual=why, source=source, hint=hint
    )
