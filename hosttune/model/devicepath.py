"""The way of data between two devices of a host, link by link: part of predictions and diagnoses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hosttune.model.values import Closed, Value

# links   links between GPUs (NVLink, XGMI), direct or over switches
# pcie    a PCIe link between a function and the port above it
# chip    a GPU's own link to its CPU
# cpu     from one root port to another, through the CPU of one node
# socket  from one node to another
# port    the network port of a NIC
HopKind = Literal["links", "pcie", "chip", "cpu", "socket", "port"]


class Hop(Value, frozen=True, kw_only=True):
    """One link. `start`, `end`: an address, "node 0" or "network". `gb_per_s`: one direction, None if not known.

    `slowest`: no other known link of the path carries less, and not all carry the same.
    """

    kind: HopKind
    start: str
    end: str
    gb_per_s: float | None = None
    words: str
    slowest: bool = False


class DevicePath(Closed, frozen=True, kw_only=True):
    """The links from `start` to `end`, in order. `at_most_gb_per_s`: the slowest known link.

    None if no link is known, or if data may go another way: between GPUs whose own links were not read.
    `notes`: what is not known, or makes the path longer than it could be.
    """

    start: str
    end: str
    at_most_gb_per_s: float | None = None
    hops: tuple[Hop, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def slowest(self) -> Hop | None:
        """The link that is marked as the slowest; None if all carry the same, or none is known."""
        return next((hop for hop in self.hops if hop.slowest), None)


# --- the roof of a GPU ----------------------------------------------------------------------------------------

# measured: figures of this host; model: the typical figures of docs/models.md
OwnIs = Literal["measured", "model"]


class GpuRoof(Closed, frozen=True, kw_only=True):
    """`peaks` and `own` have "memory" in GB/s (read + written) and dense products by number type in TFLOP/s.

    `peaks` are the data sheet's (`source`); `own` is what this host reaches, and `own_is` how that is known (None: it
    is not).
    """

    gpu: str
    peaks: Mapping[str, float] = {}
    own: Mapping[str, float] = {}
    own_is: OwnIs | None = None
    source: str = ""

    MAPPINGS = ("peaks", "own")

    def ridge(self, kind: str) -> float | None:
        """Return where this host's own roof bends for a number type, in operations per byte; None if not known."""
        memory, compute = self.own.get("memory"), self.own.get(kind)
        return compute * 1000 / memory if memory and compute else None
