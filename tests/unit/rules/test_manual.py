"""docs/reference/rules.md: every rule as it is declared (`pytest --regenerate` writes it anew)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hosttune.report.draw.md import markdown
from hosttune.report.rules import rules_report
from hosttune.rules.causes.judge import rules as causes
from hosttune.rules.checks import checks
from hosttune.rules.engine import Rule
from hosttune.rules.environment import rules as variables
from hosttune.rules.lint import rules as lint

PAGE = Path(__file__).parents[3] / "docs/reference/rules.md"
KINDS: dict[str, Sequence[Rule[Any]]] = {
    "Checks of a host (`hosttune validate`)": checks(),
    "Definitions of guests (`hosttune lint`)": lint(),
    "Causes of a figure that falls short (`hosttune diagnose`)": causes(),
    "Variables that guides set (`hosttune lint-env`)": tuple(dict.fromkeys(variables().values())),
}


def test_the_manual_has_every_rule_as_it_is_declared(request: pytest.FixtureRequest) -> None:
    parts = ["# Rules\n\nWhat hosttune judges, made from the declarations.\n"]
    for heading, rules in KINDS.items():
        table = next(part for part in markdown(rules_report(heading, rules)).split("\n\n") if part.startswith("|"))
        parts.append(f"## {heading}\n\n{table.strip()}\n")
    made = "\n".join(parts)
    if request.config.getoption("--regenerate"):
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(made)
    assert PAGE.read_text() == made


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_unique_and_a_rule_is_whole(kind: str) -> None:
    assert [name for name, times in Counter(rule.id for rule in KINDS[kind]).items() if times > 1] == []
    for rule in KINDS[kind]:
        assert rule.title, rule.id
        assert len(rule.source) > 8, rule.id
