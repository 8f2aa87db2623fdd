"""What a planned guest can expect, as rows of a plan's text and page."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.model.plan import Plan
from hosttune.model.prediction import Expectation, PredictedFigure, WorsePlacement

HEADING = "what to expect (hosttune predict has formulas and sources)"
WORSE_HEADING = "what a worse placement would lose"
_NAMES = {
    "h2d": "host to GPU", "d2h": "GPU to host", "p2p": "GPU to GPU", "all-reduce-busbw": "all-reduce",
    "memory-copy": "memory copy",
}  # fmt: skip


def expectation_of(plan: Plan, guest: str) -> Expectation | None:
    """Return what a guest of the plan can expect; None if the plan does not say."""
    return next((one for one in plan.expected if one.guest == guest), None)


def expected_rows(found: Expectation) -> list[tuple[str, str, str]]:
    """Return (what, figures, of which devices) rows: typical figure and bound, or why they are not known."""
    return [(_NAMES.get(one.metric, one.metric), _figures(one), one.subject) for one in found.figures]


def worse_rows(found: Expectation) -> list[tuple[str, str]]:
    """Return (placement, what it loses) rows."""
    return [(one.placement, "; ".join(_parts(one))) for one in found.worse]


def _figures(one: PredictedFigure) -> str:
    if one.bound is None:
        return "unknown: " + ("; ".join(one.because).removeprefix("not known: ") or "no source")
    bound = f"at most {one.bound:,.4g} {one.unit}"
    return f"typical unknown, {bound}" if one.typical is None else f"typical {one.typical:,.4g}, {bound}"


def _parts(one: WorsePlacement) -> Iterator[str]:
    if one.loses is None or one.here is None or one.there is None:
        yield "unknown"
    elif one.loses <= 0:
        yield "nothing that a source tells"
    else:
        least, most = ("at least ", "at most ") if one.metric == "p2p" else ("", "")  # of a pair `there` is the bound
        yield f"{least}{one.loses:.0%}: {most}{one.there:,.4g} {one.unit} and not {one.here:,.4g}"
    yield one.why
