"""docs/reference/rules.md: every rule as it is declared (`pytest --regenerate` writes it anew)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hosttune.model.values import grouped
from hosttune.report.draw.md import escaped
from hosttune.rules.causes.judge import rules as causes
from hosttune.rules.checks import checks
from hosttune.rules.engine import Rule
from hosttune.rules.environment import rules as variables
from hosttune.rules.environment.judging import EnvironmentRule, VariableCase
from hosttune.rules.lint import rules as lint

PAGE = Path(__file__).parents[3] / "docs/reference/rules.md"
CHECKS = "Checks of a host (`hosttune validate`)"
CAUSES = "Causes of a figure that falls short (`hosttune diagnose`)"
VARIABLES = "Variables that guides set (`hosttune lint-env`)"
KINDS: Mapping[str, Sequence[Rule[Any]]] = {
    CHECKS: checks(),
    "Definitions of guests (`hosttune lint`)": lint(),
    CAUSES: causes(),
    VARIABLES: tuple(dict.fromkeys(variables().values())),
}
LEAD = """# Rules

What hosttune judges, made from the declarations. In round brackets: what a rule looks at (\\*: inside a guest, too); a
GPU is one of a known maker, given to a guest or not. Do: where a result does not say it itself. In square brackets: the
source.
"""
LEAD_VARIABLES = """By source. A value is useless (a default is), harmful, right, or unknown without a look at the
machine; the verdict without a value is that of every other one. Of those that depend on the machine and on nothing else
the name alone: `hosttune lint-env` says what each does."""


def _paragraph(rule: Rule[Any]) -> str:
    about = f" ({rule.about}{'*' if getattr(rule, 'inside', False) else ''})" if rule.about else ""
    why, remedy = (f"{label}{text}" if text else "" for label, text in ((": ", rule.why), (". Do: ", rule.remedy)))
    return f"**{rule.id}** {escaped(f'{rule.title}{about}{why}{remedy}. [{rule.source}]')}"


def _case(case: VariableCase) -> str:
    value = ", ".join(case.is_ or ())
    if case.verdict == "useless" and case.why in ("it is the default", f"{value} is the default"):
        return f"default {value}"
    condition = re.sub(
        "^any other,? ?", "", case.condition.replace(", with a host:", " where").replace(", on a", " on a")
    )
    return f"{condition + ': ' if condition else ''}{case.verdict}, {case.why}"


def _of_variables(rules: Iterable[EnvironmentRule]) -> Iterator[str]:
    yield LEAD_VARIABLES
    for source, alike in grouped((rule.source, rule) for rule in rules).items():
        yield f"### {escaped(source)}"
        unknown = [rule for rule in alike if {case.verdict for case in rule.row.cases} == {"unknown"}]
        for rule in alike:
            if rule not in unknown:
                yield f"**{escaped(rule.title)}** {escaped('; '.join(map(_case, rule.row.cases)))}."
        if unknown:
            yield f"**{', '.join(escaped(rule.title) for rule in unknown)}** depends."


def test_the_manual_has_every_rule_as_it_is_declared(request: pytest.FixtureRequest) -> None:
    parts = [LEAD.rstrip()]
    for heading, rules in KINDS.items():
        rows = _of_variables(rules) if heading == VARIABLES else map(_paragraph, rules)  # type: ignore[arg-type]
        parts += [f"## {heading}", *rows]
    made = "\n\n".join(parts) + "\n"
    if request.config.getoption("--regenerate"):
        PAGE.write_text(made)
    assert PAGE.read_text() == made
    assert len(made.split()) <= 15_000


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_unique_and_a_rule_is_whole(kind: str) -> None:
    assert [name for name, times in Counter(rule.id for rule in KINDS[kind]).items() if times > 1] == []
    for rule in KINDS[kind]:
        assert rule.title, rule.id
        assert rule.about, rule.id
        assert len(rule.source) > 8, rule.id
        assert rule.why or kind in (CAUSES, VARIABLES), rule.id
        assert rule.remedy or kind in (CHECKS, VARIABLES), rule.id  # a finding of a check has its own
