"""Settings of a GPU while its maker's driver holds it on the host. The target is the GPU's PCI address, never "all".

A GPU on vfio-pci has none of these settings on the host; its guest sets them. Values have the form of the host
document, so a plan's value and the result of `effective` can be compared. `hosttune.transaction.kinds` lists these
settings.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from hosttune.errors import Unreadable, WriteFailed
from hosttune.gpu import VENDORS
from hosttune.gpu.knobs import COMPUTE_MODE, ECC, MIG_MODE, MOST_WATTS, PERSISTENCE, POWER_LIMIT, Knobs
from hosttune.gpu.nvidia_words import COMPUTE_MODES
from hosttune.gpu.vgpu_set import LEFT, VgpuFunctions, manage_functions, with_driver
from hosttune.machine.system import System, state_in
from hosttune.model.gpu import Gpu
from hosttune.settings.drivers import VFIO, virtual_functions
from hosttune.settings.setting import BOOT, FreesDevice, OfFunction, TakesDevice, driver_of, refuse

DRIVER_KNOBS: Mapping[str, Knobs] = {
    vendor.knobs.driver: vendor.knobs for vendor in VENDORS if vendor.knobs is not None
}
# Why nothing is set for a driver that is known but has no knobs here.
NO_KNOBS: Mapping[str, str] = {driver: why for vendor in VENDORS for driver, why in vendor.unset.items()}
_PENDING = " pending)"
_CUT_OFF = ", without its functions"


class GpuSetting(OfFunction):
    """What all GPU settings have in common: the driver that holds the GPU decides how a setting is read and written."""

    limit_seconds: ClassVar[float | None] = 60.0

    @staticmethod
    @abstractmethod
    def of_gpu(gpu: Gpu) -> Any:
        """Return the value that is in effect, from the GPU's facts.

        None if unknown, or if the GPU has no such setting.
        """

    def read(self, system: System) -> Any:
        """See Setting. None if the maker's driver does not hold the GPU: then a guest has it, or no driver holds it."""
        gpu = self._gpu(system)
        return None if gpu is None else self.of_gpu(gpu)

    def waits_for(self, system: System) -> str | None:
        """See Setting. On vfio-pci the earlier setting cannot be read, but it is not lost.

        The same holds for a GPU without a driver that vfio-pci is to take: a change of its driver was cut off.
        """
        driver = driver_of(system, self.target) or system.read(f"{self.path}/driver_override")
        return f"the GPU is given to {VFIO}: it is its guest's" if driver == VFIO else None

    def write(self, system: System, value: Any) -> str | None:
        """See Setting."""
        knobs = self._knobs(system)
        if knobs is None:
            holder = driver_of(system, self.target)
            raise WriteFailed(f"{self.kind} of {self.target}", f"the GPU is held by {holder or 'no driver'}")
        return knobs.writers[self.kind](system, self.target, value)

    def _knobs(self, system: System) -> Knobs | None:
        knobs = DRIVER_KNOBS.get(driver_of(system, self.target) or "")
        return knobs if knobs and self.kind in knobs.writers else None

    def _gpu(self, system: System) -> Gpu | None:
        """Return the GPU's current settings; None if hosttune cannot set this kind on it.

        A sleeping GPU is not woken.
        """
        knobs = self._knobs(system)
        if knobs is None:
            return None
        path = f"{self.path}/power/runtime_status"  # Documentation/ABI/testing/sysfs-devices-power
        if system.read(path) == "suspended":
            raise Unreadable(path, "the GPU is suspended, and asking its driver would wake it")
        return knobs.facts(system, self.target)


class GpuPersistence(GpuSetting, FreesDevice):
    """Whether the driver keeps the GPU initialised while no process uses it. Value: true or false."""

    kind: ClassVar[str] = PERSISTENCE
    values = (True, False)

    @staticmethod
    def of_gpu(gpu: Gpu) -> bool | None:
        """See GpuSetting."""
        return gpu.persistence


class GpuPowerLimit(GpuSetting):
    """The power limit in watts, within the range of the board. A reset, or unloading the driver, undoes it."""

    kind: ClassVar[str] = POWER_LIMIT

    @staticmethod
    def of_gpu(gpu: Gpu) -> float | None:
        """See GpuSetting."""
        return gpu.power_limit_watts

    def check(self, value: Any) -> None:
        """See Setting. Drivers use whole milliwatts."""
        known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not known or not 0 < value <= MOST_WATTS or round(value, 3) != value:
            raise refuse(self.kind, self.target, f"{value!r} is not a power limit", f"watts, at most {MOST_WATTS}")

    def agrees(self, live: Any, want: Any) -> bool:
        """See Setting. 700 and 700.0 W are equal."""
        numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in (live, want))
        return bool(numbers and live == want)

    def write(self, system: System, value: Any) -> str | None:
        """See Setting.

        A limit outside the board's range is refused here, because not every driver says why it refuses one.
        """
        gpu = self._gpu(system)
        if gpu is not None:
            why = out_of_range(gpu, value)
            if why:
                raise WriteFailed(f"the power limit of {self.target}", why)
        return super().write(system, value)


def out_of_range(gpu: Gpu, watts: float) -> str | None:
    """Return why a GPU cannot have this power limit; None if it can, or if its range is unknown."""
    low, high = gpu.power_min_watts, gpu.power_max_watts
    if (low is None or low <= watts) and (high is None or watts <= high):
        return None
    least, most = ("?" if bound is None else f"{bound:g}" for bound in (low, high))
    return f"{watts:g} W is outside the board's range of {least} to {most} W"


class GpuComputeMode(GpuSetting):
    """Whether processes may share the GPU (nvmlComputeMode_t). Exclusive-thread can be read, but no longer be set."""

    kind: ClassVar[str] = COMPUTE_MODE
    values = tuple(mode for mode in COMPUTE_MODES if mode != "exclusive_thread")

    @staticmethod
    def of_gpu(gpu: Gpu) -> str | None:
        """See GpuSetting."""
        return gpu.compute_mode


class GpuEcc(GpuSetting, TakesDevice):
    """Whether the GPU's memory is ECC-protected. Value: true or false. `read` returns the mode after the next reset.

    The GPU keeps it itself (InfoROM).
    """

    kind: ClassVar[str] = ECC
    scope: ClassVar[str] = BOOT
    disruptive: ClassVar[bool] = True
    values = (True, False)

    @staticmethod
    def of_gpu(gpu: Gpu) -> bool | None:
        """See GpuSetting."""
        return gpu.ecc

    def read(self, system: System) -> bool | None:
        """See Setting."""
        gpu = self._gpu(system)
        return None if gpu is None else gpu.ecc_pending

    def effective(self, system: System) -> bool | None:
        """See Setting."""
        gpu = self._gpu(system)
        return None if gpu is None else gpu.ecc

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. Does not touch the GPU if the mode is already pending."""
        return None if self.read(system) is value else super().write(system, value)


class GpuMigMode(GpuSetting, TakesDevice):
    """Multi-Instance GPU. Value: enabled or disabled, or "disabled (enabled pending)" until a reset.

    The driver resets the GPU to activate the mode; hosttune does not reset it otherwise. NVIDIA's own sources disagree
    on whether the mode survives a reboot, so the boot unit sets it again.
    """

    kind: ClassVar[str] = MIG_MODE
    limit_seconds: ClassVar[float | None] = 400.0  # it may reset the GPU, and make its functions again
    disruptive: ClassVar[bool] = True
    may_stop_midway: ClassVar[bool] = True
    in_force_as_found: ClassVar[bool] = True
    values = ("enabled", "disabled")

    @staticmethod
    def of_gpu(gpu: Gpu) -> str | None:
        """See GpuSetting."""
        mig = gpu.mig
        if mig is None or mig.mode is None or mig.pending in (None, mig.mode):
            return mig.mode if mig else None
        return f"{mig.mode} ({mig.pending}{_PENDING}"

    def taken(self, system: System) -> tuple[str, ...]:
        """See TakesDevice. Its virtual functions end with a change, and are made again."""
        return (self.target, *virtual_functions(system, self.target))

    def read(self, system: System) -> str | None:
        """See Setting. A change that was cut off has left the GPU without its functions, or without a driver."""
        if VgpuFunctions(self.target).read(system) == LEFT and self.waits_for(system) is None:
            return LEFT
        mode: str | None = super().read(system)
        return mode and f"{mode}{_CUT_OFF}" if system.exists(self._note(system)) else mode

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. A value that `read` returned with a pending mode makes that mode pending again."""
        with_driver(system, self.target)
        now = self.read(system)
        if now == value or value == LEFT:
            return None
        value = value.removesuffix(_CUT_OFF)
        functions = bool(virtual_functions(system, self.target))
        if functions:
            system.replace(self._note(system), b"")
            manage_functions(system, self.target, on=False)
        mode = value.partition("(")[2].removesuffix(_PENDING) or value
        note = super().write(system, mode) if (now or "").removesuffix(_CUT_OFF) != value else None
        if functions or system.exists(self._note(system)):
            manage_functions(system, self.target, on=True)
            system.remove(self._note(system))
        return note

    def is_original(self, live: Any, old: Any) -> bool:
        """See Setting. Nobody wants it without a driver."""
        return bool(old == LEFT)

    def _note(self, system: System) -> str:
        """Return the path of the note that the GPU had virtual functions."""
        return f"{state_in(system)}/mig-mode-{self.target}"
