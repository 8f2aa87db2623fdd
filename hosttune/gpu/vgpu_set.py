"""What vGPUs need on the host, as settings: GPU instances, virtual functions of a GPU, mediated devices.

A reboot undoes all of it, whoever made it (gpu-operator#2600). So it is in force, and set again at boot, also where it
was there before. Sources: MIG user guide, "Getting Started with MIG" (nvidia-smi mig, PROFILE:START); NVIDIA virtual
GPU software documentation, "Creating an NVIDIA vGPU on a Linux with KVM Hypervisor" (sriov-manage, mdev);
Documentation/driver-api/vfio-mediated-device.rst. Proven on stand-ins, not on a board.
"""

from __future__ import annotations

import re
import time
from typing import Any, ClassVar

from hosttune.errors import CommandFailed, InUse, Unreadable, WriteFailed
from hosttune.gpu.vgpu import SRIOV_MANAGE, is_uuid
from hosttune.machine.system import System
from hosttune.model.gpu import MigInstance
from hosttune.model.values import is_address
from hosttune.model.vgpu import is_type_id
from hosttune.settings.drivers import Driver, virtual_functions
from hosttune.settings.setting import (
    DEVICES,
    ByService,
    MadeByAnother,
    OfFunction,
    Setting,
    TakesDevice,
    Targets,
    driver_of,
    refuse,
)

_DRIVER = "nvidia"
_BARE = (None, "pci-pf-stub")  # where a sriov-manage that was cut off leaves a GPU (bigstack-oss/cubecos#1459)
_MDEVS = "/sys/bus/mdev/devices"
_PROFILE = r"[0-9]g\.[0-9]{1,4}gb[a-z0-9.+-]{0,16}"
# "|   0  MIG 3g.20gb       9        1          4:4     |": GPU, name, ids of profile and instance, start and size.
_ROW = re.compile(r"\|\s*[0-9]+\s+MIG\s+(\S+)\s+[0-9]+\s+([0-9]{1,9})\s+([0-9]{1,4}):([0-9]{1,4})\s*\|")
_BUSY = "unbindLock"  # sriov-manage: "Cannot obtain unbindLock", while a process has the GPU open
_TRIES, _PAUSE_SECONDS = 5, 2.0
LEFT = "without a driver"
_NONE = re.compile(r"No GPU instances found|No MIG-enabled devices found")


def instances_of(system: System, address: str) -> tuple[MigInstance, ...]:
    """Return the GPU instances of a GPU, from `nvidia-smi mig -lgi`. Raises Unreadable."""
    argv = ("nvidia-smi", "mig", "-i", address, "-lgi")
    try:
        text = system.query(f"mig-lgi-{address}", lambda: system.run(argv, timeout=20.0))
    except CommandFailed as error:
        text = error.output
        if not _NONE.search(text):
            raise Unreadable(" ".join(argv), error.reason) from error
    if text is None:
        raise Unreadable(" ".join(argv), "not recorded")
    rows = _ROW.findall(text)
    if not rows and not _NONE.search(text):
        raise Unreadable(" ".join(argv), f"reads {text[:60]!r}")
    return tuple(MigInstance(profile=name, id=int(n), start=int(at), size=int(size)) for name, n, at, size in rows)


class MigInstanceSetting(MadeByAnother):
    """A GPU instance at its place. Target: "0000:41:00.0 1g.18gb:4". Value: whether it is there.

    It is made without compute instance: the vGPU's guest gets one. None: the driver nvidia does not hold the GPU.
    `sriov-manage` would end it: so it is made once the GPU has its virtual functions.
    """

    kind: ClassVar[str] = "mig-instance"
    limit_seconds: ClassVar[float | None] = 120.0
    in_force_as_found: ClassVar[bool] = True
    targets = Targets(
        lambda target: (
            is_address(target.partition(" ")[0]) and re.fullmatch(rf"{_PROFILE}:[0-9]{{1,3}}", target.partition(" ")[2])
        ),
        "not a GPU, a profile and its first memory slice",
    )
    values = (True,)

    @property
    def gpu(self) -> str:
        """Return its GPU."""
        return self.target.partition(" ")[0]

    @property
    def made_by(self) -> tuple[str, str]:
        """See MadeByAnother."""
        return VgpuFunctions.kind, self.gpu

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        there = VgpuFunctions(self.gpu).read(system)
        return None if there in (None, True) else f"{self.gpu} has no virtual functions, and making them would end it"

    def read(self, system: System) -> bool | None:
        """See Setting."""
        return None if driver_of(system, self.gpu) != _DRIVER else self._there(system) is not None

    def write(self, system: System, value: Any) -> None:
        """See Setting. Other instances stay where they are; the driver refuses to destroy one that is in use."""
        there, place = self._there(system), self.target.partition(" ")[2]
        if (there is not None) is value:
            return
        if value:
            commands: tuple[tuple[str, ...], ...] = (("-cgi", place),)
        else:
            assert there is not None
            commands = tuple((word, "-gi", str(there.id)) for word in ("-dci", "-dgi"))
        for words in commands:
            try:
                system.change(("nvidia-smi", "mig", "-i", self.gpu, *words), timeout=50.0)
            except CommandFailed as error:
                if words[0] == "-dci" and "Not Found" in error.output:
                    continue  # it has none
                raise WriteFailed(f"GPU {self.gpu}: nvidia-smi mig {' '.join(words)}", _last_line(error)) from error
            finally:
                system.forget()

    def _there(self, system: System) -> MigInstance | None:
        name, _, start = self.target.partition(" ")[2].rpartition(":")
        alike = (instance for instance in instances_of(system, self.gpu) if instance.profile == name)
        return next((instance for instance in alike if instance.start == int(start)), None)


class VgpuFunctions(ByService, OfFunction, TakesDevice):
    """Whether a GPU has its virtual functions, all that it can. Only `sriov-manage` makes and removes them.

    Cut off, it can leave the GPU, or functions, without a driver: then the value is neither, and nobody's wish.
    """

    kind: ClassVar[str] = "vgpu-functions"
    limit_seconds: ClassVar[float | None] = 240.0
    may_stop_midway: ClassVar[bool] = True
    in_force_as_found: ClassVar[bool] = True
    values = (True,)

    def taken(self, system: System) -> tuple[str, ...]:
        """See TakesDevice. The driver is taken from the GPU for a moment."""
        return (self.target, *virtual_functions(system, self.target))

    def read(self, system: System) -> bool | str | None:
        """See Setting. None if another driver than nvidia holds it, or it has no such functions."""
        text, driver = system.read(f"{self.path}/sriov_numvfs"), driver_of(system, self.target)
        if driver not in (*_BARE, _DRIVER) or text is None or not text.isdecimal():
            return None
        return LEFT if _bare(system, self.target) else text != "0"

    def is_original(self, live: Any, old: Any) -> bool:
        """See Setting."""
        return bool(old == LEFT)

    def write(self, system: System, value: Any) -> None:
        """See Setting. It would end every GPU instance (bigstack-oss/cubecos, measured), so there must be none."""
        with_driver(system, self.target)
        if self.read(system) == value or value == LEFT:
            return
        instances = instances_of(system, self.target)
        if instances:
            command = f"nvidia-smi mig -i {self.target} -dci, then -dgi"
            raise InUse(f"GPU {self.target}", f"{len(instances)} GPU instances would end with it: {command}")
        manage_functions(system, self.target, on=value is True)


def manage_functions(system: System, gpu: str, *, on: bool) -> None:
    """Make or remove a GPU's virtual functions. Raises WriteFailed.

    A GPU that a process has open is tried again for some seconds (bigstack-oss/cubecos, RunSriovManageWithRetry). One
    that is left without a driver (stackhpc/ansible-collection-linux#37) gets it back.
    """
    argv = (SRIOV_MANAGE, "-e" if on else "-d", gpu)
    for left in reversed(range(_TRIES)):
        try:
            system.change(argv, timeout=100.0)
            break
        except CommandFailed as error:
            if _BUSY not in error.output or not left:
                opened = ": a process has it open (fuser -v /dev/nvidia*)" if _BUSY in error.output else ""
                raise WriteFailed(" ".join(argv), f"{_last_line(error)}{opened}") from error
        finally:
            system.forget()
            with_driver(system, gpu)
        time.sleep(0.0 if system.captured else _PAUSE_SECONDS)


def with_driver(system: System, gpu: str) -> None:
    """Give a GPU and its virtual functions back the driver without which `sriov-manage` left them."""
    for function in _bare(system, gpu):
        Driver(function).write(system, _DRIVER)
        system.forget()


def _bare(system: System, gpu: str) -> list[str]:
    """Return which of a GPU and its virtual functions have no driver, or the one that `sriov-manage` uses between."""
    return [one for one in (gpu, *virtual_functions(system, gpu)) if driver_of(system, one) in _BARE]


class MediatedDevice(ByService, Setting):
    """A vGPU as a mediated device. Target: its UUID and function, "UUID 0000:41:00.4". Value: its type; None: no such.

    The type is the name of its folder in `mdev_supported_types`: "nvidia-474".
    """

    kind: ClassVar[str] = "vgpu-mdev"
    limit_seconds: ClassVar[float | None] = 60.0  # the driver asks its manager
    none_is_value: ClassVar[bool] = True
    in_force_as_found: ClassVar[bool] = True
    targets = Targets(
        lambda target: is_uuid(target.partition(" ")[0]) and is_address(target.partition(" ")[2]),
        "not a UUID and a function",
    )

    def check(self, value: Any) -> None:
        """See Setting."""
        if not isinstance(value, str) or not is_type_id(value):
            raise refuse(self.kind, self.target, f"{value!r} is not a vGPU type", "a name in mdev_supported_types")

    def read(self, system: System) -> str | None:
        """See Setting."""
        path = f"{_MDEVS}/{self.target.partition(' ')[0]}"
        if not system.exists(path):
            return None
        kind = system.link(f"{path}/mdev_type")
        if kind is None:
            raise Unreadable(f"{path}/mdev_type", "its type cannot be read")
        return kind.rpartition("/")[2]

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        function = self.target.partition(" ")[2]
        if system.exists(f"{DEVICES}/{function}/mdev_supported_types"):
            return None
        return f"{function} is not there, or offers no vGPU"

    def write(self, system: System, value: Any) -> None:
        """See Setting. One of another type is somebody else's."""
        uuid, _, function = self.target.partition(" ")
        now = self.read(system)
        if now == value:
            return
        if now is not None and value is not None:
            raise InUse(f"{_MDEVS}/{uuid}", f"it has type {now}")
        if value is None:
            system.write(f"{_MDEVS}/{uuid}/remove", "1")
        else:
            system.write(f"{DEVICES}/{function}/mdev_supported_types/{value}/create", uuid)


def _last_line(error: CommandFailed) -> str:
    return ": ".join((error.reason, *error.output.strip().splitlines()[-1:]))
