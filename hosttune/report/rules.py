"""The manual of rules, from their declarations: `hosttune validate --list`, and docs/reference/rules.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hosttune.report.blocks import Entries, Report, Table, TitledFacts
from hosttune.rules.causes.rule import CauseRule
from hosttune.rules.checks.on import Check
from hosttune.rules.engine import Rule
from hosttune.rules.environment.judging import EnvironmentRule

COLUMNS = ("rule", "what is right, or wrong", "looks at", "why", "do", "to confirm", "source")


def rules_report(kind: str, rules: Iterable[Rule[Any]]) -> Report:
    """Return what each rule is about: a table, on a terminal an entry each."""
    rows = tuple(_row(rule) for rule in rules)
    entries = tuple(
        TitledFacts(
            title=f"{name}  {title}",
            facts=tuple(fact for fact in zip(COLUMNS[2:], rest, strict=True) if fact[1]),
        )
        for name, title, *rest in rows
    )
    headline = f"{len(rows)} rules; nothing was judged"
    blocks = (
        Entries(heading="In the order of the report", parts=entries, numbered=False, whole=True, forms=("text",)),
        Table(heading="In the order of the report", columns=COLUMNS, rows=rows, whole=True, forms=("md", "html")),
    )
    return Report(kind=kind, headline=headline, blocks=blocks)


def _row(rule: Rule[Any]) -> tuple[str, ...]:
    if isinstance(rule, EnvironmentRule):
        cases = "; ".join(f"{case.condition}: {case.verdict}, {case.why}" for case in rule.row.cases)
        return rule.title, "", "", cases, "", "", rule.source
    if isinstance(rule, CauseRule):
        return rule.id, rule.title, "", "", rule.remedy, rule.confirm, rule.source
    about = f"{rule.about}; in a guest, too" if isinstance(rule, Check) and rule.inside else rule.about
    return rule.id, rule.title, about, rule.why, rule.remedy, "", rule.source
