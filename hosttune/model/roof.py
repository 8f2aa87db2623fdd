"""The roof of a GPU model on one host: what bounds its work, by data sheet and by this host's own figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hosttune.model.values import Value, close_mappings

# measured: figures of this host; model: the typical figures of docs/models.md
OwnIs = Literal["measured", "model"]


class GpuRoof(Value, frozen=True, kw_only=True):
    """`peaks` and `own` have "memory" in GB/s (read + written) and dense products by number type in TFLOP/s.

    `peaks` are the data sheet's (`source`); `own` is what this host reaches, and `own_is` how that is known (None: it
    is not).
    """

    gpu: str
    peaks: Mapping[str, float] = {}
    own: Mapping[str, float] = {}
    own_is: OwnIs | None = None
    source: str = ""

    def __post_init__(self) -> None:
        close_mappings(self, "peaks", "own")

    def ridge(self, kind: str) -> float | None:
        """Return where this host's own roof bends for a number type, in operations per byte; None if not known."""
        memory, compute = self.own.get("memory"), self.own.get(kind)
        return compute * 1000 / memory if memory and compute else None
