"""NVIDIA's baseboards with NVSwitches: which one a host has, and the partitions that it makes by default.

Pure look-ups in `boards.toml`, which names its sources. The partitions stand in only where the Fabric Manager cannot be
asked, and whoever plans with them says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hosttune.assets import read_table
from hosttune.gpu import vendor_of
from hosttune.model.gpu import FabricPartition, Gpu
from hosttune.model.host import Host

_GENERATIONS = ("ampere", "hopper", "blackwell")
GUIDE = "NVIDIA, Fabric Manager user guide, GPU partitions"


@dataclass(frozen=True)
class Board:
    """A kind of baseboard. `partitions` are its default ones, None where they are not known whole."""

    generation: str
    gpus: int
    partitions: tuple[FabricPartition, ...] | None


@cache
def _table() -> Mapping[str, Any]:
    return read_table(Path(__file__).with_suffix(".toml"))


def board_of(host: Host) -> Board | None:
    """The baseboard of a host's NVSwitch fabric, told by PCI device ids; None where no id tells.

    Where ids tell of several, there is no answer either.
    """
    switches = {host.index.device_id(switch.address) for switch in host.nvswitches}
    gpus = {host.index.device_id(gpu.address) for gpu in host.gpus}
    found = [
        name
        for name in _GENERATIONS
        if switches & set(_table()[name]["switches"]) or gpus & set(_table()[name]["gpus"])
    ]
    return _board(found[0]) if len(found) == 1 else None


@cache
def _board(generation: str) -> Board:
    row = _table()[generation]
    listed = row.get("partitions")
    if listed is None:
        return Board(generation, _table()["gpus_per_board"], None)
    partitions = (
        FabricPartition(id=int(name), module_ids=tuple(modules), nvlinks=row["nvlinks"] if len(modules) > 1 else 0)
        for name, modules in listed.items()
    )
    return Board(generation, _table()["gpus_per_board"], tuple(sorted(partitions, key=lambda part: part.id)))


def has_fabric(host: Host) -> bool:
    """Whether an NVSwitch fabric joins GPUs of this host: it has switches, a GPU says so, or it has such a board."""
    states = (gpu.fabric_state for gpu in host.gpus)
    told = any(state is not None and state.lower() not in ("not supported", "n/a") for state in states)
    return bool(host.nvswitches) or told or (host.fabric is not None and bool(host.fabric.partitions)) or _bare(host)


def _bare(host: Host) -> bool:
    """GPUs that are on such a board only, though no switch of it is a PCI function and no driver tells of it."""
    if not any((vendor := vendor_of(gpu.vendor)) and vendor.fabric for gpu in host.gpus):
        return False
    return board_of(host) is not None


def fabric_gpus(host: Host) -> tuple[Gpu, ...]:
    """The GPUs on the fabric: whole ones of its maker that are no cards and do not say that they have no fabric."""
    if not has_fabric(host):
        return ()
    functions = host.index.pci
    found = []
    for gpu in host.gpus:
        vendor, device = vendor_of(gpu.vendor), functions.get(gpu.address)
        if vendor is None or not vendor.fabric or (device and (device.physfn or device.device_id in _table()["cards"])):
            continue
        if gpu.fabric_state is not None or "fabric_state" not in (gpu.lacks or ()):
            found.append(gpu)
    return tuple(found)
