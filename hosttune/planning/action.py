"""How a plan writes an action down. Pure."""

from __future__ import annotations

from typing import Any

from hosttune.model.plan import Action


def make_action(kind: str, target: str, current: Any, want: Any, why: str, **more: Any) -> Action:
    """An action that takes effect now, is not needed and can be undone, unless `more` says otherwise."""
    rest = {"effect": "now", "needed": False, "reversible": True, **more}
    return Action(id=f"{kind}:{target}", kind=kind, target=target, current=current, want=want, why=why, **rest)
