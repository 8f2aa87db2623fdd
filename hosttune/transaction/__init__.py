"""Transactions: a plan applied with read-back, a journal and a way back."""

from __future__ import annotations

from hosttune.transaction.applying import Options, rehearse_apply
from hosttune.transaction.applying import apply as apply_plan
from hosttune.transaction.booting import reapply
from hosttune.transaction.undoing import applied_plans, plan_in_force, recover, revert, status

__all__ = [
    "Options",
    "applied_plans",
    "apply_plan",
    "plan_in_force",
    "reapply",
    "recover",
    "rehearse_apply",
    "revert",
    "status",
]
