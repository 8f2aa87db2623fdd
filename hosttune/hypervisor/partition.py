"""A partition of the NVSwitch fabric: the GPUs of one guest, whose NVLinks are open to each other and to no others.

The order is that of NVIDIA's DRA driver (kubernetes-sigs/dra-driver-nvidia-gpu 95932046,
cmd/gpu-kubelet-plugin/device_state.go: prepareDevices, Unprepare): a partition is activated before its GPUs go to
vfio-pci, and deactivated after they have come back. It is in a plan before the drivers of its GPUs, and what is put
back goes back in the opposite order. GPUs that stay on vfio-pci, as after a restart of the Fabric Manager, are lent to
their maker's driver for the change. Proven on stand-ins, not on a board.
"""

from __future__ import annotations

import shlex
import time
from typing import Any, ClassVar, Self

from hosttune.discovery.holders import holders
from hosttune.errors import InUse, WriteFailed
from hosttune.gpu.fmpm import INACTIVE, KIND, active_as, client, modules_of, partitions_now, parts_of
from hosttune.gpu.nvswitches import MANAGER_CONFIG
from hosttune.gpu.nvswitches import MODULE as MANAGER_DRIVER
from hosttune.machine.system import System
from hosttune.model.gpu import FabricPartition
from hosttune.settings.drivers import VFIO, Driver
from hosttune.settings.setting import ByService, TakesDevice, driver_of, refuse

_COMMAND_SECONDS, _LISTED_SECONDS = 60.0, 10.0  # a command; until the list shows what it did


class FabricPartitionState(ByService, TakesDevice):
    """Whether a partition is active. Target: its id and GPUs (`fmpm.target_of`).

    Value: "active: modules 1, 2", or "inactive". A restart of the Fabric Manager, and a reboot, make it inactive. An
    operator's own table can give its number to other GPUs: then it is neither as wanted, nor activated.
    """

    kind: ClassVar[str] = KIND
    in_force_as_found: ClassVar[bool] = True
    limit_seconds: ClassVar[float | None] = 600.0  # its GPUs may change their driver twice

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        try:
            parts_of(target)
        except ValueError as error:
            raise refuse(cls.kind, target, str(error), "plan again") from error
        return cls(target)

    @property
    def number(self) -> int:
        """Return its id."""
        return parts_of(self.target)[0]

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return its GPUs."""
        return parts_of(self.target)[1]

    def check(self, value: Any) -> None:
        """See Setting."""
        if len(modules_of(value)) != len(self.gpus):
            raise refuse(self.kind, self.target, f"{value!r} does not name a module id for each GPU", "plan again")

    def taken(self, system: System) -> tuple[str, ...]:
        """See TakesDevice. Who has one of its GPUs loses NVLink, or shares it."""
        return self.gpus

    def waits_for(self, system: System) -> str | None:
        """See Setting. A guest that runs on it has lost its NVLinks (the Fabric Manager was restarted)."""
        guests = dict.fromkeys(user.guest for user in holders(system, self.gpus) if user.guest)
        ends = " && ".join(f"virsh shutdown {shlex.quote(name)}" for name in guests)
        return f"guest {', '.join(guests)} has its GPUs: {ends}, then hosttune apply --start" if guests else None

    def read(self, system: System) -> str | None:
        """See Setting. None if the Fabric Manager has no such partition."""
        own = self._own(partitions_now(system))
        return None if own is None else active_as(own.module_ids) if own.active else INACTIVE

    def write(self, system: System, value: Any) -> None:
        """See Setting. Asks the Fabric Manager, and who has the GPUs, once more."""
        listed = partitions_now(system)
        own, where = self._own(listed), f"partition {self.number}"
        if own is None:
            raise WriteFailed(where, "the Fabric Manager has no such partition")
        if own.active is (value != INACTIVE) and value in (INACTIVE, active_as(own.module_ids)):
            return
        if value != INACTIVE:
            why = _not_activated(own, listed, modules_of(value))
            if why:
                raise WriteFailed(where, why)
        users = holders(system, self.gpus)
        if users:
            raise InUse(where, "; ".join(user.text for user in users))
        lent = [Driver(gpu) for gpu in self.gpus if driver_of(system, gpu) == VFIO]
        try:
            for driver in lent:
                driver.write(system, MANAGER_DRIVER)
            word = "-d" if value == INACTIVE else "-a"
            system.change((*client(system.read(MANAGER_CONFIG)), word, str(self.number)), timeout=_COMMAND_SECONDS)
        finally:
            for driver in lent:
                driver.write(system, VFIO)
            system.forget()
        deadline = time.monotonic() + (0.0 if system.captured else _LISTED_SECONDS)
        while self.read(system) != value and time.monotonic() < deadline:
            time.sleep(1.0)

    def _own(self, listed: tuple[FabricPartition, ...]) -> FabricPartition | None:
        return next((partition for partition in listed if partition.id == self.number), None)


def _not_activated(own: FabricPartition, listed: tuple[FabricPartition, ...], modules: tuple[int, ...]) -> str | None:
    """Return why a partition must not be activated as one of these module ids; None if it may."""
    if own.module_ids != modules:
        has = ", ".join(map(str, own.module_ids))
        return f"it has module ids {has} now, not {', '.join(map(str, modules))}: plan again"
    for other in listed:
        if other.active and other.id != own.id and set(other.module_ids) & set(modules):
            return f"partition {other.id} is active and has GPUs of it: fmpm -d {other.id} once no guest uses it"
    return None
