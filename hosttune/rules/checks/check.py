"""The definition of a check: a pure function from evidence to results, with the text that documents it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hosttune.model.evidence import Evidence
from hosttune.model.validation import CheckResult


def Check(  # noqa: N802
    id: str,  # noqa: A002
    title: str,
    subjects: str,
    why: str,
    source: str,
    judge: Callable[[Evidence], Iterable[CheckResult]],
    **more: Any,
) -> Any:
    """Return a check that is written in the earlier form."""
    from hosttune.rules.checks import on
    from hosttune.rules.engine import Finding

    def findings(scene: on.On) -> Iterator[Finding]:
        for one in judge(scene.evidence):
            yield Finding(
                outcome=one.outcome,
                text=one.actual or "",
                subject=one.subject,
                expected=one.expected,
                source=one.source,
                remedy=one.hint,
            )

    return on.Check(id=id, title=title, about=subjects, why=why, source=source, judge=findings, **more)


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
