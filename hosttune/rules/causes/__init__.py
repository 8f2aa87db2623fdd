"""Why a figure falls short: measured figures and observations → verdicts and causes. Pure.

`verdicts` compares each figure with the model of its machine (`hosttune.predicting`). `rules_*` have one rule a cause;
`judge` asks them all and orders what they find by how it is supported. `logs` reads the output of tools as it is, and
`gathering` makes the same input of a validation with its host.
"""

from __future__ import annotations

from hosttune.rules.causes.judge import diagnose

__all__ = ["diagnose"]
