"""What a rule found in an existing domain XML: the rows of `hosttune lint -o json`."""

from __future__ import annotations

from hosttune.model.values import Value

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
