"""The interface for settings of a GPU that its maker's driver holds. The maker's module has one `Knobs` per driver.

The settings and the form of their values are the same for all makers. They are in `hosttune.gpu.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hosttune.machine.system import System
from hosttune.model.gpu import Gpu

PERSISTENCE = "gpu-persistence"
POWER_LIMIT = "gpu-power-limit"
COMPUTE_MODE = "gpu-compute-mode"
ECC = "gpu-ecc"
MIG_MODE = "gpu-mig-mode"
MOST_WATTS = 10_000  # far above any board's power limit; the board's own range is checked as well

Writer = Callable[[System, str, Any], str | None]


class Knobs(msgspec.Struct, frozen=True):
    """What one driver lets hosttune set, by kind of setting. Each call is for a single GPU.

    `facts(system, address)` returns the GPU's current settings; raises Unreadable. It must return in limited time,
    because a driver can hang. `writers[kind](system, address, value)` sets a value; raises WriteFailed. Its return
    value is reported with the outcome.
    """

    driver: str
    facts: Callable[[System, str], Gpu]
    writers: Mapping[str, Writer]
