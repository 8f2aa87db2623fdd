"""The parsed output of a tool, and the error for output that cannot be parsed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hosttune.errors import HosttuneError
from hosttune.model.validation import CheckResult, Outcome, Sample

_WORST_FIRST: tuple[Outcome, ...] = ("fail", "unknown", "warn", "pass", "skip")


class NotUnderstood(HosttuneError):
    """The output of a tool does not have a known format: its figures are unknown."""

    def __init__(self, tool: str, what: str) -> None:
        super().__init__(what, where=f"output of {tool}", hint=f"run {tool} by hand and read what it says")


class NotJudged(NotUnderstood):
    """The output is understood, and its figures decide nothing."""


class Lost(msgspec.Struct, frozen=True):
    """A figure that was requested but is missing, and the reason."""

    metric: str
    subject: str
    why: str


class ParsedOutput(msgspec.Struct, frozen=True):
    """The parsed output of a command: figures, the tool's verdicts, missing figures, and facts about the figures."""

    samples: tuple[Sample, ...] = ()
    results: tuple[CheckResult, ...] = ()
    lost: tuple[Lost, ...] = ()
    facts: Mapping[str, str] = msgspec.field(default_factory=dict)


def number(value: object, tool: str, what: str, *, least: float = 0.0) -> float:
    """Return a finite number, also from text. Raises NotUnderstood if it is not a number or is below `least`."""
    try:
        figure = float(value)  # type: ignore[arg-type]  # whatever is no number raises
    except (TypeError, ValueError) as error:
        raise NotUnderstood(tool, f"{what} is not a number: {str(value)[:40]!r}") from error
    if isinstance(value, bool) or not math.isfinite(figure) or figure < least:
        raise NotUnderstood(tool, f"{what} cannot be {str(value)[:40]!r}")
    return figure


def positive(value: object, tool: str, what: str) -> float:
    """Return a finite number above zero. Raises NotUnderstood."""
    figure = number(value, tool, what)
    if figure == 0:
        raise NotUnderstood(tool, f"{what} is 0")
    return figure


def document(text: str, tool: str) -> dict[str, Any]:
    """Return the JSON object in a text; lines before it are ignored. Raises NotUnderstood."""
    start = text.find("{")
    try:
        root, _ = json.JSONDecoder().raw_decode(text[start:]) if start >= 0 else (None, 0)
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(tool, f"not JSON: {error}") from error
    if not isinstance(root, dict):
        raise NotUnderstood(tool, "not a JSON object")
    return root


def part(value: object, kind: type, tool: str, what: str) -> Any:
    """Return the value if it has the expected type. Raises NotUnderstood otherwise."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise NotUnderstood(tool, f"{what} is missing or of another kind")
    return value


def close(value: float, expected: float, fraction: float, slack: float = 0.0) -> bool:
    """Return whether two figures of one output agree."""
    return abs(value - expected) <= fraction * abs(expected) + slack


def worst_of_each(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """Return the worst result of each check and subject. So if some runs of a figure are missing, that counts."""
    worst: dict[tuple[str, str], CheckResult] = {}
    for result in results:
        key = (result.check, result.subject)
        if key not in worst or _WORST_FIRST.index(result.outcome) < _WORST_FIRST.index(worst[key].outcome):
            worst[key] = result
    return tuple(worst.values())
