"""Existing definitions of guests → where the guests run best, and the same definitions with only that changed."""

from hosttune.planning.adopting.adoption import Adoption, Adoptions, adopt
from hosttune.planning.adopting.changes import LIVE, NEXT_START
from hosttune.planning.adopting.drafts import Definition
from hosttune.planning.adopting.saved import change_definition, saved_plan
from hosttune.planning.adopting.threads import LIVE_AFFINITY

__all__ = [
    "LIVE",
    "LIVE_AFFINITY",
    "NEXT_START",
    "Adoption",
    "Adoptions",
    "Definition",
    "adopt",
    "change_definition",
    "saved_plan",
]
