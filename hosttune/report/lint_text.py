"""Findings of the linter as text: one paragraph for each guest, the worst first, with what to do."""

from __future__ import annotations

from collections.abc import Sequence

from hosttune.model.lint import LEVEL_WORDS, LEVELS, LintFinding
from hosttune.model.values import grouped


def lint_text(findings: Sequence[LintFinding], files: Sequence[str]) -> str:
    """Return the findings by file, level and rule. A file without a finding has one line, as has no file at all."""
    if not files:
        return "no guest is defined: nothing to judge"
    return "\n".join(line for file in files for line in _guest(file, [one for one in findings if one.file == file]))


def _guest(file: str, findings: list[LintFinding]) -> list[str]:
    lines = [f"{file}: {_counts(findings)}"]
    groups = grouped(((LEVELS.index(one.level), one.rule, one.remedy), one) for one in findings)
    for (_, rule, remedy), group in sorted(groups.items(), key=lambda item: item[0][0]):
        lines.append(f"{group[0].level:5}  {rule}")
        lines += [f"       line {one.line}: {one.text}" for one in group]
        if any(one.judged for one in group):
            lines.append(f"       do: {remedy}")
    return lines


def _counts(findings: list[LintFinding]) -> str:
    counts = {level: sum(one.level == level and one.judged for one in findings) for level in LEVELS}
    words = [f"{count} {LEVEL_WORDS[level]}{'' if count == 1 else 's'}" for level, count in counts.items() if count]
    unknown = len({one.rule for one in findings if not one.judged})
    words += [f"{unknown} rule{'' if unknown == 1 else 's'} not judged"] if unknown else []
    return ", ".join(words) or "no findings"
