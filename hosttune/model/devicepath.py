"""The way of data between two devices of a host, link by link: part of predictions and diagnoses."""

from __future__ import annotations

from typing import Literal

from hosttune.model.values import Value, close_lists

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


class DevicePath(Value, frozen=True, kw_only=True):
    """The links from `start` to `end`, in order. `at_most_gb_per_s`: the slowest known link.

    None if no link is known, or if data may go another way: between GPUs whose own links were not read.
    `notes`: what is not known, or makes the path longer than it could be.
    """

    start: str
    end: str
    at_most_gb_per_s: float | None = None
    hops: tuple[Hop, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)

    @property
    def slowest(self) -> Hop | None:
        """The link that is marked as the slowest; None if all carry the same, or none is known."""
        return next((hop for hop in self.hops if hop.slowest), None)
