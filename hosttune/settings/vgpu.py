"""The vGPU type of a virtual function that its maker's own VFIO driver holds. Target: the function's PCI address.

Value: the type's number as text, "0" for none. The numbers of types depend on this host's driver and are read from
`creatable_vgpu_types`. `sriov-manage -d` of the GPU undoes it. Source: NVIDIA virtual GPU software documentation,
"Creating an NVIDIA vGPU on a Linux with KVM Hypervisor that Uses a Vendor-Specific VFIO Framework".
"""

from __future__ import annotations

import errno
import re
from typing import Any, ClassVar

from hosttune.errors import Unreadable, WriteFailed
from hosttune.machine.system import System
from hosttune.settings.setting import ByService, OfFunction, refuse

NONE = "0"
_AGAIN = "systemctl restart nvidia-vgpud nvidia-vgpu-mgr, then apply again"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


class VgpuTypeSetting(ByService, OfFunction):
    """See the module."""

    kind: ClassVar[str] = "vgpu-type"
    limit_seconds: ClassVar[float | None] = 60.0  # the driver asks its manager

    @property
    def file(self) -> str:
        """Return the path of the file that holds the type."""
        return f"{self.path}/nvidia/current_vgpu_type"

    def check(self, value: Any) -> None:
        """See Setting. A plan gives a type; only a revert sets none."""
        if not isinstance(value, str) or not _NUMBER.fullmatch(value) or value == NONE:
            raise refuse(self.kind, self.target, f"{value!r} is not a vGPU type", "its number in creatable_vgpu_types")

    def read(self, system: System) -> str | None:
        """See Setting. None if the function does not exist, or offers no vGPU."""
        text = system.read(self.file)
        if text is not None and not _NUMBER.fullmatch(text):
            raise Unreadable(self.file, f"reads {text[:40]!r}")
        return text

    def waits_for(self, system: System) -> str | None:
        """See Setting. sriov-manage creates and removes functions (`gpu.vgpu_set`)."""
        if system.exists(self.file):
            return None
        return "the function is not there, or offers no vGPU: /usr/lib/nvidia/sriov-manage -e ADDRESS of its GPU"

    def write(self, system: System, value: Any) -> None:
        """See Setting.

        A type is only changed from or to none, because any other type is a vGPU that someone else made.
        """
        now = self.read(system)
        if now == value:
            return
        if now is None:
            raise WriteFailed(self.file, "the function is not there, or offers no vGPU", errno.ENOENT)
        if NONE not in (now, value):
            raise WriteFailed(self.file, f"the function carries vGPU type {now}: it is in use", errno.EBUSY)
        if value != NONE:
            self._check_offered(system, str(value))
        try:
            system.write(self.file, str(value))
        except WriteFailed as error:
            why = f"the driver refuses type {value} ({error.reason}): {_AGAIN}"
            raise WriteFailed(self.file, why, error.errno) from error

    def _check_offered(self, system: System, value: str) -> None:
        path = self.file.replace("current_vgpu_type", "creatable_vgpu_types")
        offered = [line.partition(":")[0].strip() for line in (system.read(path) or "").splitlines()]
        if value not in offered:
            which = f"it lists {', '.join(offered)}" if any(offered) else "the list is empty"
            raise WriteFailed(path, f"type {value} cannot be made now, {which}: {_AGAIN}")
