"""The definition of a check: a pure function from evidence to results, with the text that documents it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hosttune.model.evidence import Evidence
from hosttune.model.validation import CheckResult


@dataclass(frozen=True)
class Check:
    """One check. `id` is stable and kebab-case; there is one result per subject, and at least one in all.

    `subjects` says what the check looks at, `why` what it protects from, `source` where its rule comes from.
    `checks.results_of` handles what many checks have in common. A check only declares it:

    `inside`: the check also makes sense inside a guest, where settings of the host are not judged.
    `for_guests`: the check matters only on a host with GPUs or guests; on others it is skipped without calling `judge`.
    `none`: what the host does not have if `judge` finds no subject ("GPU"); used in the single result that says so.
    `of_tree`: the check uses only the PCI tree, although it is about each GPU: unknown for a GPU missing from the tree.
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
    """Return a result `pass`: the value is as expected."""
    return CheckResult(check=check, subject=subject, outcome="pass", expected=expected, actual=actual, source=source)


def failed(check: str, subject: str, *, expected: str, actual: str, source: str, hint: str) -> CheckResult:
    """Return a result `fail`: the value is not as expected. `hint` names the command or setting that corrects it."""
    return CheckResult(
        check=check, subject=subject, outcome="fail", expected=expected, actual=actual, source=source, hint=hint
    )


def warned(check: str, subject: str, *, expected: str, actual: str, source: str, hint: str) -> CheckResult:
    """Return a result `warn`: a certain or possible cost that does not stop the use of the host."""
    return CheckResult(
        check=check, subject=subject, outcome="warn", expected=expected, actual=actual, source=source, hint=hint
    )


def skipped(check: str, subject: str, why: str) -> CheckResult:
    """Return a result `skip`: the check does not apply here."""
    return CheckResult(check=check, subject=subject, outcome="skip", actual=why)


def unknown(check: str, subject: str, *, expected: str, why: str, hint: str, source: str | None = None) -> CheckResult:
    """Return a result `unknown`: the check applies, but the value could not be read. Never a pass."""
    return CheckResult(
        check=check, subject=subject, outcome="unknown", expected=expected, actual=why, source=source, hint=hint
    )
