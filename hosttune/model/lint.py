"""What a rule found in an existing domain XML: the rows of `hosttune lint -o json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hosttune.model.values import Document, Value

LEVELS = ("error", "warn", "info")  # worst first
LEVEL_WORDS = {"error": "error", "warn": "warning", "info": "note"}  # for people, and in SARIF


class LintFinding(Value, frozen=True, kw_only=True):
    """A fault of a guest's XML on its host, found by one rule.

    `level`: error, the guest would not start on a prepared host, or takes what is the host's or another's; warn, it
    costs speed or safety; info, advice, or missing on the host only. `judged` False: the rule applies, and a fact that
    it needs is unknown; the level is then info, and `text` begins with "cannot be judged". `line` counts from 1 and is
    the line of the element at `path`, or of the nearest element above it that exists. `where` is the file and the path.
    """

    level: str
    text: str
    where: str
    rule: str
    guest: str | None
    file: str
    line: int
    path: str
    remedy: str
    source: str
    judged: bool = True


# --- lines of an environment file -----------------------------------------------------------------------------

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
