"""Before and after: changed outcomes and figures, in words. hosttune.bench.compare decides which ones changed.

What cannot be compared is unknown, and what is within the noise is called that: neither is reported as a change.
"""

from __future__ import annotations

from collections import Counter

from hosttune.bench.compare import FigureChange, compare, got_worse
from hosttune.model.text import number
from hosttune.model.validation import CheckResult, Validation
from hosttune.model.values import Value

VERDICTS = ("worse", "better", "unknown", "within noise")  # in the order in which a reader must see them
SIGNS = {"worse": "✗", "better": "✓", "unknown": "?", "within noise": "="}
NONE = "not there"


class ChangedFigure(Value, frozen=True, kw_only=True):
    """A figure before and after, as text. `effect` has its 95 % interval if it is known, else the reason why not."""

    metric: str
    subject: str
    unit: str
    before: str
    after: str
    effect: str
    verdict: str


class Outcomes(Value, frozen=True, kw_only=True):
    """A check whose outcome changed; NONE if only one of the two validations made it.

    `worse` as in bench.compare.
    """

    check: str
    subject: str
    before: str
    after: str
    actual: str
    worse: bool


class Changes(Value, frozen=True, kw_only=True):
    """Two validations compared: `same` is the number of results whose outcome did not change."""

    before: str
    outcomes: tuple[Outcomes, ...]
    same: int
    figures: tuple[ChangedFigure, ...]

    @property
    def changed(self) -> tuple[ChangedFigure, ...]:
        """The figures that really changed."""
        return tuple(figure for figure in self.figures if figure.verdict in ("worse", "better"))

    @property
    def unknown(self) -> tuple[ChangedFigure, ...]:
        """The figures that cannot be compared."""
        return tuple(figure for figure in self.figures if figure.verdict == "unknown")

    @property
    def within_noise(self) -> tuple[ChangedFigure, ...]:
        """The figures whose change cannot be distinguished from chance."""
        return tuple(figure for figure in self.figures if figure.verdict == "within noise")

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why figures cannot be compared: each metric and reason once, with the number of figures."""
        why = Counter((figure.metric, figure.effect) for figure in self.unknown)
        return tuple(f"{metric}: {count} not comparable, {reason}" for (metric, reason), count in why.items())

    @property
    def headline(self) -> str:
        """Return how much changed, in one sentence."""
        worse = sum(outcome.worse for outcome in self.outcomes)
        facts = [f"{len(self.outcomes) - worse} outcomes better or other", f"{worse} worse", f"{self.same} unchanged"]
        counted = [(verdict, sum(figure.verdict == verdict for figure in self.figures)) for verdict in VERDICTS]
        figures = [f"{count} {verdict}" for verdict, count in counted if count]
        return ", ".join(facts) + (f"; figures: {', '.join(figures)}" if figures else "; no figures on either side")


def changes(before: Validation | None, after: Validation) -> Changes | None:
    """Return all changes, worst first; None if there is nothing to compare with."""
    if before is None:
        return None
    outcomes, same = _outcomes(before, after)
    figures = sorted(
        (_figure(change) for change in compare(before, after)), key=lambda figure: VERDICTS.index(figure.verdict)
    )
    named = ", ".join(text for text in (before.host, before.at) if text) or "an earlier validation"
    return Changes(before=named, outcomes=outcomes, same=same, figures=tuple(figures))


def _outcomes(before: Validation, after: Validation) -> tuple[tuple[Outcomes, ...], int]:
    old, new = (
        {(result.check, result.subject): result for result in validation.results} for validation in (before, after)
    )
    keys = [*new, *(key for key in old if key not in new)]
    made = {check for check, _ in new}
    changed = [
        _outcome(key, old.get(key), new.get(key), made=key[0] in made)
        for key in keys
        if not (key in old and key in new and old[key].outcome == new[key].outcome)
    ]
    return tuple(sorted(changed, key=lambda outcomes: not outcomes.worse)), len(keys) - len(changed)


def _outcome(key: tuple[str, str], old: CheckResult | None, new: CheckResult | None, *, made: bool) -> Outcomes:
    return Outcomes(
        check=key[0],
        subject=key[1],
        before=old.outcome if old else NONE,
        after=new.outcome if new else NONE,
        actual=(new.actual if new else None) or "",
        worse=got_worse(key[0], old, new, made=made),
    )


def _figure(figure: FigureChange) -> ChangedFigure:
    effect = figure.why or "unknown"
    if figure.change is not None:
        effect = f"{figure.change:+.1%}"
        if figure.low is not None and figure.high is not None:
            effect += f" ({figure.low:+.1%} to {figure.high:+.1%})"
    return ChangedFigure(
        metric=figure.metric,
        subject=figure.subject,
        unit=figure.unit,
        before=number(figure.before) if figure.before is not None else NONE,
        after=number(figure.after) if figure.after is not None else NONE,
        effect=effect,
        verdict=figure.verdict,
    )
