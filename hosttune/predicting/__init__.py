"""What a placement can reach: formulas with sources → bound and typical figure. Pure; docs/models.md has them all.

`formulas` has one function a model, on plain numbers. `shape` is the machine that they are asked about, from a setup
that was written down or from a host. `estimates` chooses the formula of a metric; `predict` asks for all figures of a
host or a plan. A number without a source is None, and so is a figure that needs it.
"""

from __future__ import annotations

from hosttune.predicting.predict import Scope, predict

__all__ = ["Scope", "predict"]
