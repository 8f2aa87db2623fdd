"""The partitions of an NVSwitch fabric for the time of a measurement.

In mode 1 CUDA fails with error 802 on a GPU that is in no active partition
(kubernetes-sigs/dra-driver-nvidia-gpu#1264).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from hosttune.discovery import discover
from hosttune.errors import HosttuneError
from hosttune.gpu.boards import waits_for_partition
from hosttune.gpu.fmpm import INACTIVE, active_as, target_of
from hosttune.gpu.nvswitches import MODULE as MANAGER_DRIVER
from hosttune.hypervisor.partition import FabricPartitionState
from hosttune.inventory.partitions import SHARED, Partition, read_fabric
from hosttune.machine.system import System
from hosttune.model.host import Host

_SETTLE_SECONDS = 30.0  # until the GPUs of an active partition no longer report "in progress"


@contextlib.contextmanager
def connected(system: System, host: Host, tell: Callable[[str], None]) -> Iterator[Host]:
    """Activate partitions for GPUs of the host's driver that wait for one; yield the host as it is then.

    Afterwards they are inactive again. What could not be set is told, and those GPUs are not measured.
    """
    opened: list[FabricPartitionState] = []
    try:
        for partition in waiting_partitions(host):
            setting = FabricPartitionState(target_of(partition.id, partition.gpus))
            if _set(system, setting, active_as(partition.modules), tell):
                opened.append(setting)
        yield _settled(system, {gpu for setting in opened for gpu in setting.gpus}) if opened else host
    finally:
        for setting in opened:
            _set(system, setting, INACTIVE, tell)


def waiting_partitions(host: Host) -> Iterator[Partition]:
    """Yield the largest inactive partitions whose GPUs all wait for one, none of them twice. Pure."""
    fabric = read_fabric(host)
    if fabric.mode != SHARED or fabric.assumed:
        return
    drivers = {gpu.address: host.index.pci[gpu.address].driver for gpu in host.gpus if gpu.address in host.index.pci}
    left = {
        gpu.address
        for gpu in host.gpus
        if drivers.get(gpu.address) == MANAGER_DRIVER and not gpu.mig_on and waits_for_partition(host, gpu)
    }
    for partition in sorted(fabric.partitions or (), key=lambda partition: (-len(partition.gpus), partition.id)):
        if partition.active is False and partition.gpus <= left:
            left -= partition.gpus
            yield partition


def _set(system: System, setting: FabricPartitionState, value: str, tell: Callable[[str], None]) -> bool:
    try:
        setting.write(system, value)
    except HosttuneError as error:
        tell(f"partition {setting.number} of the NVSwitch fabric is not {value}: {error.what}")
        return False
    return True


def _settled(system: System, gpus: set[str]) -> Host:
    deadline = time.monotonic() + (0.0 if system.captured else _SETTLE_SECONDS)
    while True:
        system.forget()
        host = discover(system)
        busy = any(gpu.address in gpus and gpu.fabric_state == "in progress" for gpu in host.gpus)
        if not busy or time.monotonic() > deadline:
            return host
        time.sleep(1.0)
