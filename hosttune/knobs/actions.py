"""Turn the knobs of an intent into actions: the one loop that compares wanted and actual values. Pure.

A place is a part of the host where a knob applies: the host itself, a PCI function or a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from hosttune.knobs.knob import Knob, P, reason, wanted
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Finding
from hosttune.settings.setting import BOOT


def actions_for(
    intent: Intent, knobs: Collection[Knob[P]], places: Iterable[P], *, every: bool = False
) -> Iterator[Action | Finding]:
    """Return the actions and findings of some knobs, place by place. `places` is not read if no knob is wanted.

    `every`: also actions for what is as wanted now.
    """
    wants = [(knob, value) for knob in knobs if (value := wanted(intent, knob)) is not None]
    for place in places if wants else ():
        for knob, value in wants:
            for found in knob.at(place, value):
                if isinstance(found, Finding):
                    yield found
                elif every or found.always or found.current != found.want:
                    why = found.why or reason(intent, knob)
                    effect = "reboot" if knob.setting.scope == BOOT else "now"
                    when = found.when or effect
                    yield make_action(
                        knob.setting.kind, found.target, found.current, found.want, why, effect=effect, when=when
                    )


def make_action(kind: str, target: str, current: Any, want: Any, why: str, **more: Any) -> Action:
    """Return an action that takes effect now, is not needed and can be reverted, unless `more` says otherwise."""
    rest = {"effect": "now", "needed": False, "reversible": True, **more}
    rest.setdefault("when", rest["effect"])
    return Action(id=f"{kind}:{target}", kind=kind, target=target, current=current, want=want, why=why, **rest)


def split_findings(found: Iterable[Action | Finding]) -> tuple[list[Action], list[Finding]]:
    """Separate actions from findings; both keep their order."""
    actions: list[Action] = []
    findings: list[Finding] = []
    for one in found:
        (findings if isinstance(one, Finding) else actions).append(one)  # type: ignore[arg-type]
    return actions, findings
