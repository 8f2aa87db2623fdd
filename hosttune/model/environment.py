"""An environment or a guide's commands, judged line by line: the document of `hosttune lint-env -o json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hosttune.model.values import Document, Value

VERDICTS = ("harmful", "useless", "right", "unknown")  # worst first
Verdict = Literal["harmful", "useless", "right", "unknown"]
# Outcome of a rule -> its word in this document.
VERDICT_OF: Mapping[str, Verdict] = {"fail": "harmful", "warn": "useless", "pass": "right", "unknown": "unknown"}
OUTCOME_OF = {verdict: outcome for outcome, verdict in VERDICT_OF.items()}


class EnvironmentLine(Value, frozen=True, kw_only=True):
    """One variable of an environment, or a line that was not understood (`name` is then None, `value` its text).

    `value` None: the line gives none (`unset`, `export NAME`). `source` None: no source is known, and the verdict is
    unknown. `line` counts from 1. `setting`: hosttune's own for what the line sets.
    """

    line: int
    name: str | None
    value: str | None
    verdict: Verdict
    why: str
    source: str | None = None
    setting: str | None = None


class JudgedEnvironment(Document, frozen=True, kw_only=True):
    """All lines of an environment that say something, in the file's order."""

    lines: tuple[EnvironmentLine, ...] = ()
