"""An existing definition of a guest → where the guest runs best, and the same definition with only that changed."""

from hosttune.planning.adopting.adoption import Adoption, adopt
from hosttune.planning.adopting.changes import LIVE, NEXT_START, Change
from hosttune.planning.adopting.saved import adopted_guest, change_definition

__all__ = ["LIVE", "NEXT_START", "Adoption", "Change", "adopt", "adopted_guest", "change_definition"]
