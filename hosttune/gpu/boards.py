"""NVIDIA's baseboards with NVSwitches: which one a host has, and its default partitions.

The default partitions are used only if the Fabric Manager cannot be asked, and then the plan says so.

Sources: NVIDIA, Fabric Manager for NVIDIA NVSwitch systems, user guide, appendix "GPU partitions" (partition ids and
the physical ids of their GPUs, which are NVML's module ids); pci.ids (pciutils/pciids 2026.08.22) for device ids. A
published listing of an HGX H200 agrees. For a B200 no listing was found, and no such host was available.
"""

from __future__ import annotations

from functools import cache

import msgspec

from hosttune.gpu import vendor_of
from hosttune.model.host import FabricPartition, Gpu, Host

_GPUS = 8  # on every kind of board
_NVLINKS = 18  # of each GPU in a partition of several GPUs, on Hopper and Blackwell; 0 in a partition of one GPU
NVLINK5 = frozenset(("2901", "3182"))  # B200, B300: their NVSwitches are no PCI functions
# Cards for a PCI Express slot. They are never on a baseboard, whatever else the host has (pci.ids).
_CARDS = frozenset(
    (
        *("20b1", "20b5", "20b7", "2235", "2236", "2321", "2322", "2331", "233a", "233b", "26b5", "26b9", "27b8"),
        *("2bb1", "2bb4", "2bb5"),
    )
)


class Board(msgspec.Struct, frozen=True):
    """A kind of baseboard. `partitions` are its default partitions, None if they are not completely known."""

    generation: str
    gpus: int
    partitions: tuple[FabricPartition, ...] | None


class _BoardKind(msgspec.Struct, frozen=True):
    """How a kind of board is recognised (device ids of its NVSwitches or of its GPUs), and its default partitions.

    `partitions`: the module ids of each, in the order of the partitions' ids, which begin at `first_id`.
    """

    switches: frozenset[str] = frozenset()
    gpus: frozenset[str] = frozenset()
    first_id: int = 0
    partitions: tuple[tuple[int, ...], ...] | None = None


_SINGLES = tuple((module,) for module in range(1, _GPUS + 1))
_HALVES = ((1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4), (5, 6, 7, 8))
_KINDS = {
    # A100: one or two boards of six NVSwitches. The guide's complete list was not available, so none is assumed.
    "ampere": _BoardKind(switches=frozenset(("1af1",))),
    # H100, H200, H800, H20: four NVSwitches.
    "hopper": _BoardKind(
        switches=frozenset(("22a3",)), partitions=(*_HALVES, (1, 3), (2, 4), (5, 7), (6, 8), *_SINGLES)
    ),
    # B200, B300: no NVSwitch is a PCI function.
    "blackwell": _BoardKind(gpus=NVLINK5, first_id=1, partitions=(*_HALVES, (1, 2), (3, 4), (5, 6), (7, 8), *_SINGLES)),
}


def board_of(host: Host) -> Board | None:
    """Return the baseboard of a host's NVSwitch fabric, recognised by PCI device ids; None if no id shows it.

    Also None if the ids belong to several kinds of board.
    """
    switches = {host.index.device_id(switch.address) for switch in host.nvswitches}
    gpus = {host.index.device_id(gpu.address) for gpu in host.gpus}
    boards = [name for name, kind in _KINDS.items() if switches & kind.switches or gpus & kind.gpus]
    return _board(boards[0]) if len(boards) == 1 else None


@cache
def _board(generation: str) -> Board:
    kind = _KINDS[generation]
    if kind.partitions is None:
        return Board(generation, _GPUS, None)
    partitions = (
        FabricPartition(id=number, module_ids=modules, nvlinks=_NVLINKS if len(modules) > 1 else 0)
        for number, modules in enumerate(kind.partitions, kind.first_id)
    )
    return Board(generation, _GPUS, tuple(partitions))


def has_fabric(host: Host) -> bool:
    """Return whether an NVSwitch fabric connects GPUs of this host.

    It does if the host has switches or partitions, if a GPU reports a fabric, or if the GPUs are on such a board.
    """
    states = (gpu.fabric_state for gpu in host.gpus)
    on_fabric = any(state is not None and state.lower() not in ("not supported", "n/a") for state in states)
    partitioned = host.fabric is not None and bool(host.fabric.partitions)
    return bool(host.nvswitches) or on_fabric or partitioned or _bare(host)


def _bare(host: Host) -> bool:
    """Return whether the host has GPUs that exist only on such a board.

    Then there is a fabric, even if no switch of it is a PCI function and no driver reports it.
    """
    if not any((vendor := vendor_of(gpu.vendor)) and vendor.fabric for gpu in host.gpus):
        return False
    return board_of(host) is not None


def fabric_gpus(host: Host) -> tuple[Gpu, ...]:
    """Return the GPUs on the fabric.

    These are whole GPUs of its maker that are not cards and do not report that they have no fabric.
    """
    if not has_fabric(host):
        return ()
    functions = host.index.pci
    gpus = []
    for gpu in host.gpus:
        vendor, device = vendor_of(gpu.vendor), functions.get(gpu.address)
        if vendor is None or not vendor.fabric or (device and (device.physfn or device.device_id in _CARDS)):
            continue
        if gpu.fabric_state is not None or "fabric_state" not in (gpu.lacks or ()):
            gpus.append(gpu)
    return tuple(gpus)


def waits_for_partition(host: Host, gpu: Gpu) -> bool | None:
    """Return whether a GPU has no place on the fabric because no active partition has it; None if that is unknown.

    Only a fabric in mode 1 or 2 has partitions, and no guest sees them. A list in which no partition has the GPU is not
    complete.
    """
    mode, partitions = (host.fabric.mode, host.fabric.partitions or ()) if host.fabric else (None, ())
    states = {
        partition.active for partition in partitions if gpu.module_id is None or gpu.module_id in partition.module_ids
    }
    if host.hypervisor or mode == 0 or (True in states and gpu.module_id is not None):
        return False
    return True if mode is not None and states == {False} else None
