"""The time limits and estimates of a hand-over's steps, in seconds, as `handover status` shows them.

A limit is the sum of what the step may wait for: each wait ends by itself (a child that is given up, a command with a
time limit, a lock), so no step needs a limit of its own.
"""

from __future__ import annotations

from hosttune.gpu.vgpu_set import VgpuFunctions
from hosttune.handover import binding, gpumemory, network, record
from hosttune.handover.erasing import SPARE_SECONDS
from hosttune.handover.targets import Target
from hosttune.machine.system import System
from hosttune.settings import resets
from hosttune.settings.drivers import virtual_functions

Times = tuple[float, float]  # limit, estimate


def of_quarantine(target: Target) -> Times:
    """Of the register, and of what is read of a network function before anything is done."""
    looks = network.LIMIT_SECONDS if target.kind == "nic" else 0.0
    return 2 * record.WAIT_SECONDS + looks, 1.0


def of_reset(system: System, target: Target) -> Times:
    """Of a reset on vfio-pci: the driver, virtual functions that are removed, the reset, the maker's tool."""
    limit, estimate = gpumemory.times(system, target)
    functions = network.LIMIT_SECONDS if target.kind == "nic" and target.physical is None else 0.0
    if target.kind == "gpu" and virtual_functions(system, target.address):
        functions = VgpuFunctions.limit_seconds or 0.0
    limit += record.WAIT_SECONDS + functions + binding.LIMIT_SECONDS + resets.LIMIT_SECONDS
    return limit, resets.ESTIMATE_SECONDS + estimate


def of_binding() -> Times:
    """Of another driver."""
    return record.WAIT_SECONDS + binding.LIMIT_SECONDS, binding.ESTIMATE_SECONDS


def of_memory(system: System, target: Target) -> Times:
    """Of the search of a GPU's memory, with the reset in between and the driver after it."""
    reset, bound = of_reset(system, target), of_binding()
    limit, estimate = gpumemory.LIMIT_SECONDS, gpumemory.ESTIMATE_SECONDS
    return limit + reset[0] + bound[0], estimate + reset[1] + bound[1]


def of_drive(limit: float | None, estimate: float | None) -> tuple[float | None, float | None]:
    """Of the erasure of a drive, of which its own limit is known: with what is read of it before and after."""
    return None if limit is None else limit + SPARE_SECONDS, estimate
