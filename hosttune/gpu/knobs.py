"""The seam for setting a GPU while its maker's driver holds it: one `Knobs` value a driver, made in the maker's module.

What is set, and what its values look like, is the same for all makers and stands in `hosttune.gpu.settings`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hosttune.model.gpu import Gpu
from hosttune.system import System

PERSISTENCE = "gpu-persistence"
POWER_LIMIT = "gpu-power-limit"
COMPUTE_MODE = "gpu-compute-mode"
ECC = "gpu-ecc"
MIG_MODE = "gpu-mig-mode"
MOST_WATTS = 10_000  # of a power limit: far above any board, whose own range is checked besides

Writer = Callable[[System, str, Any], str | None]


@dataclass(frozen=True)
class Knobs:
    """What one driver lets be set, by kind, each for a single GPU.

    `facts(system, address)`: the GPU's settings now; raises Unreadable. It returns in bounded time: a driver can hang.
    `writers[kind](system, address, value)`: set it; raises WriteFailed. What it returns is told beside the outcome.
    """

    driver: str
    facts: Callable[[System, str], Gpu]
    writers: Mapping[str, Writer]
