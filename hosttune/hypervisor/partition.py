"""A partition of the NVSwitch fabric: the GPUs of one guest, whose NVLinks are open to each other and to no others.

The order is that of NVIDIA's DRA driver (kubernetes-sigs/dra-driver-nvidia-gpu 95932046,
cmd/gpu-kubelet-plugin/device_state.go: prepareDevices, Unprepare): a partition is activated before its GPUs go to
vfio-pci, and deactivated after they have come back. It is in a plan before the drivers of its GPUs, and what is put
back goes back in the opposite order. GPUs that stay on vfio-pci, as after a restart of the Fabric Manager, are lent to
their maker's driver for the change. On NVLink5 boards each GPU is reset before: after a start of the Fabric Manager it
must be (NVIDIA/gpu-driver-container#909). Proven on stand-ins, not on a board.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from hosttune.discovery.holders import holders
from hosttune.errors import CommandFailed, InUse, WriteFailed
from hosttune.gpu.boards import NVLINK5
from hosttune.gpu.fmpm import INACTIVE, KIND, active_as, answer_of, client, modules_of, partitions_now, parts_of
from hosttune.gpu.nvswitches import MANAGER_CONFIG
from hosttune.gpu.nvswitches import MODULE as MANAGER_DRIVER
from hosttune.gpu.settings import GpuPersistence
from hosttune.machine.system import System, state_in
from hosttune.model import sysfs
from hosttune.model.gpu import FabricPartition
from hosttune.settings.drivers import VFIO, Driver
from hosttune.settings.resets import LIMIT_SECONDS, methods_now, reset, restore_methods
from hosttune.settings.setting import ByService, TakesDevice, driver_of, refuse

_COMMAND_SECONDS, _LISTED_SECONDS = 60.0, 10.0  # a command; until the list shows what it did
_BUS = "bus"  # the reset that leaves no state (settings.resets)
_CUT_OFF = ", its GPUs as a change left them that was cut off"


class FabricPartitionState(ByService, TakesDevice):
    """Whether a partition is active. Target: its id and GPUs (`fmpm.target_of`).

    Value: "active: modules 1, 2", or "inactive". A restart of the Fabric Manager, and a reboot, make it inactive. An
    operator's own table can give its number to other GPUs: then it is neither as wanted, nor activated.
    """

    kind: ClassVar[str] = KIND
    in_force_as_found: ClassVar[bool] = True
    limit_seconds: ClassVar[float | None] = 600.0 + 8 * LIMIT_SECONDS  # its GPUs may change their driver, and be reset
    may_stop_midway: ClassVar[bool] = True

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
        if own is None:
            return None
        state = active_as(own.module_ids) if own.active else INACTIVE
        return f"{state}{_CUT_OFF}" if system.exists(self._note(system)) else state

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. Asks the Fabric Manager, and who has the GPUs, once more. Return what shows their resets."""
        value = value.removesuffix(_CUT_OFF)
        self._give_back(system)
        listed = partitions_now(system)
        own, where = self._own(listed), f"partition {self.number}"
        if own is None:
            raise WriteFailed(where, "the Fabric Manager has no such partition")
        if own.active is (value != INACTIVE) and value in (INACTIVE, active_as(own.module_ids)):
            return None
        if value != INACTIVE:
            ended = [parts_of(target)[0] for kind, target in system.undone if kind == KIND]
            others = tuple(partition for partition in listed if partition.id not in ended)
            why = _not_activated(own, others, modules_of(value))
            if why:
                raise WriteFailed(where, why)
        users = holders(system, self.gpus)
        if users:
            raise InUse(where, "; ".join(user.text for user in users))
        resets = value != INACTIVE and any(_id_of(system, gpu)[1] in NVLINK5 for gpu in self.gpus)
        shown = None
        try:
            if resets or any(driver_of(system, gpu) == VFIO for gpu in self.gpus):
                before = {gpu: (driver_of(system, gpu), methods_now(system, gpu)) for gpu in self.gpus}
                system.replace(self._note(system), json.dumps(before).encode())
            if resets:
                shown = "; ".join(_reset(system, gpu) for gpu in self.gpus)
            for gpu in self.gpus:
                if driver_of(system, gpu) == VFIO:
                    Driver(gpu).write(system, MANAGER_DRIVER)
            word = "-d" if value == INACTIVE else "-a"
            system.change((*client(system.read(MANAGER_CONFIG)), word, str(self.number)), timeout=_COMMAND_SECONDS)
        except CommandFailed as error:
            raise WriteFailed(f"{where} (fmpm {error.argv[-2]})", answer_of(error)) from error
        finally:
            self._give_back(system)
            system.forget()
        deadline = time.monotonic() + (0.0 if system.captured or system.rehearses else _LISTED_SECONDS)
        while self.read(system) != value and time.monotonic() < deadline:
            time.sleep(1.0)
        return shown

    def _give_back(self, system: System) -> None:
        """Give the GPUs back to the drivers from which they were lent, with their reset methods."""
        text = system.read(self._note(system))
        if text is None:
            return
        before: Mapping[str, Any] = json.loads(text or "{}")
        for gpu, (driver, methods) in before.items():
            restore_methods(system, gpu, methods)
            Driver(gpu).write(system, driver)
        system.remove(self._note(system))

    def _note(self, system: System) -> str:
        """Return the path of the note of the GPUs' drivers, which is there while they are lent."""
        return f"{state_in(system)}/{KIND}-{self.number}"

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


def _reset(system: System, gpu: str) -> str:
    """Reset a GPU on vfio-pci by its bus; return what shows it. Raises HosttuneError."""
    methods, ids = methods_now(system, gpu), ":".join(_id_of(system, gpu))
    if _BUS not in (methods or ()):
        offered = " ".join(methods or ()) or "none"
        raise WriteFailed(f"GPU {gpu}", f"it is not alone below its port: of the resets the kernel offers {offered}")
    if driver_of(system, gpu) != VFIO and GpuPersistence(gpu).read(system):
        raise InUse(f"GPU {gpu}", "persistence mode holds it: switch it off first")
    Driver(gpu).write(system, VFIO)
    done = reset(system, gpu, _BUS, methods)
    if not done.answers or done.ids != ids:
        raise WriteFailed(f"GPU {gpu}", f"after its reset it says that it is {done.ids or 'nothing'}, not {ids}")
    return f"{gpu}: {done.method} reset, {done.ids} answered after {done.seconds} s"


def _id_of(system: System, gpu: str) -> tuple[str, str]:
    """Return the vendor and the device of a function."""
    vendor, device = ((system.read(sysfs.function(gpu, name)) or "?") for name in ("vendor", "device"))
    return vendor.removeprefix("0x"), device.removeprefix("0x")
