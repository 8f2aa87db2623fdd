"""The choice for one guest: its GPUs, the node of each cell, its final shape. A pure value."""

from __future__ import annotations

import msgspec

from hosttune.inventory.shape import GuestShape
from hosttune.inventory.sizing import Parts
from hosttune.model.values import address_key
from hosttune.planning.mig.instances import MigSlot
from hosttune.planning.request.candidates import GpuSet


class Choice(msgspec.Struct, frozen=True):
    """A guest's GPUs, host nodes and cells.

    `nodes`: the host node of each cell. `short`: an `auto` size had to be reduced. `extra_cells`: the number of cells
    beyond one on each node that has one of its GPUs. `slots`: the MIG instances that it gets as vGPUs; `parts`: the
    part of each GPU that these are.
    """

    gpus: GpuSet
    nodes: tuple[int, ...]
    shape: GuestShape
    short: bool
    extra_cells: int
    slots: tuple[MigSlot, ...] = ()
    parts: Parts | None = None

    @property
    def sharing(self) -> GpuSet:
        """The GPUs that its `auto` size is a share of."""
        return self.gpus or tuple(sorted({slot.gpu for slot in self.slots}, key=address_key))
