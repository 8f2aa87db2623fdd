"""Network functions between two tenants: what their firmware keeps, and what the host's driver keeps of a virtual one.

- `tools`: what `ip`, `devlink`, `mstconfig` and `ethtool` answer; nothing here writes firmware configuration.
- `known`: what is kept of a function between hand-overs, to be compared with, and what it was like before its last
  guest got it, as the hook of libvirt recorded it.
- `physical`: the step that shows what a physical function was left with.
- `virtual`: the settings that its physical function keeps for a virtual one, and how they are put back.
"""

from hosttune.handover.network.known import settle
from hosttune.handover.network.physical import ESTIMATE_SECONDS, LIMIT_SECONDS, compared_with, first_look
from hosttune.handover.network.physical import step as compare
from hosttune.handover.network.virtual import first_look as first_look_of_virtual
from hosttune.handover.network.virtual import goes_back_to, remove_all
from hosttune.handover.network.virtual import step as put_back

__all__ = [
    "ESTIMATE_SECONDS",
    "LIMIT_SECONDS",
    "compare",
    "compared_with",
    "first_look",
    "first_look_of_virtual",
    "goes_back_to",
    "put_back",
    "remove_all",
    "settle",
]
