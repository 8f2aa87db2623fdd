"""Settings of one PCI function; the target is its address in the kernel's form ("0000:41:00.0")."""

from __future__ import annotations

from typing import Self

from hosttune.errors import Unreadable
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.values import is_address
from hosttune.settings.setting import Setting, refuse

DEVICES = sysfs.PCI_DEVICES


class OfFunction(Setting):
    """Base class of settings of one PCI function."""

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        if not is_address(target):
            what = f"{target[:40]!r} is not a PCI address"
            raise refuse(cls.kind, target, what, "write it as the kernel does, in full and in lower case: 0000:41:00.0")
        return cls(target)

    @property
    def path(self) -> str:
        """Return the function's folder in sysfs."""
        return f"{DEVICES}/{self.target}"

    def require(self, system: System) -> None:
        """Raise Unreadable if the function does not exist: a missing device has no state, not even "none"."""
        if not system.exists(self.path):
            raise Unreadable(self.path, "there is no such device")


def driver_of(system: System, address: str) -> str | None:
    """Return the driver that holds a function; None for none. Raises Unreadable."""
    target = system.link(f"{DEVICES}/{address}/driver")
    return None if target is None else target.rpartition("/")[2]
