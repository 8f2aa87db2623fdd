"""The vGPU type of a virtual function that its maker's own VFIO driver holds. Target: the function's PCI address.

Value: the type's number as text, "0" for none; what number a type has is this host's driver's own affair, and is read
from `creatable_vgpu_types`. Source: NVIDIA virtual GPU software documentation, "Creating an NVIDIA vGPU on a Linux with
KVM Hypervisor that Uses a Vendor-Specific VFIO Framework".
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from hosttune.errors import Unreadable, WriteFailed
from hosttune.settings.function import OfFunction
from hosttune.settings.setting import refuse
from hosttune.system import System

NONE = "0"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class VgpuType(OfFunction):
    """See the module."""

    kind: ClassVar[str] = "vgpu-type"
    limit_seconds: ClassVar[float | None] = 60.0  # the driver asks its manager
    reset_by: ClassVar[str] = "a reboot, or sriov-manage -d of its GPU"

    @property
    def file(self) -> str:
        """The file that holds the type."""
        return f"{self.path}/nvidia/current_vgpu_type"

    def check(self, value: Any) -> None:
        """See Setting. A plan gives a type; that there is none is the way back only."""
        if not isinstance(value, str) or not _NUMBER.fullmatch(value) or value == NONE:
            raise refuse(self.kind, self.target, f"{value!r} is not a vGPU type", "its number in creatable_vgpu_types")

    def read(self, system: System) -> str | None:
        """See Setting. None where the function is not there, or offers no vGPU."""
        text = system.read(self.file)
        if text is not None and not _NUMBER.fullmatch(text):
            raise Unreadable(self.file, f"reads {text[:40]!r}")
        return text

    def waits_for(self, system: System) -> str | None:
        """See Setting. Functions come and go with sriov-manage, which is not ours to run."""
        if system.exists(self.file):
            return None
        return "the function is not there, or offers no vGPU: /usr/lib/nvidia/sriov-manage -e ADDRESS of its GPU"

    def write(self, system: System, value: Any) -> None:
        """See Setting. A type is changed from and to none only: another one is somebody's vGPU."""
        now = self.read(system)
        if now == value:
            return
        if now is None:
            raise WriteFailed(self.file, "the function is not there, or offers no vGPU", errno.ENOENT)
        if NONE not in (now, value):
            raise WriteFailed(self.file, f"the function carries vGPU type {now}: it is in use", errno.EBUSY)
        system.write(self.file, str(value))
