"""What a tool's answer comes to, and the error of one that is not understood."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hosttune.errors import HosttuneError
from hosttune.model.validation import CheckResult, Outcome, Sample

_WORST_FIRST: tuple[Outcome, ...] = ("fail", "unknown", "warn", "pass", "skip")


class NotUnderstood(HosttuneError):
    """A tool's answer is not what this tool is known to print: its figures are unknown."""

    def __init__(self, tool: str, what: str) -> None:
        super().__init__(what, where=f"output of {tool}", hint=f"run {tool} by hand and read what it says")


@dataclass(frozen=True)
class Lost:
    """A figure that was asked for and did not come, and why."""

    metric: str
    subject: str
    why: str


@dataclass(frozen=True)
class Answer:
    """Figures of one command, the tool's own verdicts, what did not come, and what belongs to the figures."""

    samples: tuple[Sample, ...] = ()
    results: tuple[CheckResult, ...] = ()
    lost: tuple[Lost, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def number(value: object, tool: str, what: str, *, least: float = 0.0) -> float:
    """A finite number above `least` (from text too). Raises NotUnderstood."""
    try:
        found = float(value)  # type: ignore[arg-type]  # whatever is no number raises
    except (TypeError, ValueError) as error:
        raise NotUnderstood(tool, f"{what} is not a number: {str(value)[:40]!r}") from error
    if isinstance(value, bool) or not math.isfinite(found) or found < least:
        raise NotUnderstood(tool, f"{what} cannot be {str(value)[:40]!r}")
    return found


def positive(value: object, tool: str, what: str) -> float:
    """A finite number above zero. Raises NotUnderstood."""
    found = number(value, tool, what)
    if found == 0:
        raise NotUnderstood(tool, f"{what} is 0")
    return found


def document(text: str, tool: str) -> dict[str, Any]:
    """The JSON object in a text, after whatever lines come before it. Raises NotUnderstood."""
    start = text.find("{")
    try:
        found, _ = json.JSONDecoder().raw_decode(text[start:]) if start >= 0 else (None, 0)
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(tool, f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise NotUnderstood(tool, "not a JSON object")
    return found


def part(value: object, kind: type, tool: str, what: str) -> Any:
    """A value of the kind expected. Raises NotUnderstood."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise NotUnderstood(tool, f"{what} is missing or of another kind")
    return value


def close(found: float, expected: float, fraction: float, slack: float = 0.0) -> bool:
    """Whether two figures of one answer agree."""
    return abs(found - expected) <= fraction * abs(expected) + slack


def worst_of_each(results: Iterable[CheckResult]) -> tuple[CheckResult, ...]:
    """One result a check and subject, the worst: of a figure that partly came, what did not come counts."""
    found: dict[tuple[str, str], CheckResult] = {}
    for result in results:
        key = (result.check, result.subject)
        if key not in found or _WORST_FIRST.index(result.outcome) < _WORST_FIRST.index(found[key].outcome):
            found[key] = result
    return tuple(found.values())
