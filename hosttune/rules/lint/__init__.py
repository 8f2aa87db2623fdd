"""What is wrong with existing domain XML on its host: one rule, one declaration and one pure function.

Above the planner, whose arithmetic (MMIO window, partitions, address width) the rules use, so that both agree.
"""

from hosttune.rules.lint.judge import Definition, lint, rules
from hosttune.rules.lint.rule import ADVISORY, LEVEL, LintRule
from hosttune.rules.lint.running import BY_HAND, Manager

__all__ = ["ADVISORY", "BY_HAND", "LEVEL", "Definition", "LintRule", "Manager", "lint", "rules"]
