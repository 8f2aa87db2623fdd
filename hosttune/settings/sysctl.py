"""A kernel parameter below /proc/sys, set now and in a drop-in of hosttune. Target: its name ("vm.zone_reclaim_mode").

Only the names listed here are allowed. Value: the text, if both have the same; otherwise {"now": text, "boot": text or
null}, with "boot" from the line of the drop-in. sysctl.d(5): files are read at boot, in the order of their names; the
last one wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hosttune.machine.system import System
from hosttune.settings.setting import AT_BOOT, FILE, NOW, NowAndAtBoot, Targets, refuse

DROP_IN = "/etc/sysctl.d/90-hosttune.conf"
_HEAD = "# Written by hosttune; `hosttune revert` takes its lines away.\n"
# Name -> the allowed numbers. Documentation/admin-guide/sysctl/vm.rst and kernel.rst.
NAMES: Mapping[str, range] = {
    "vm.zone_reclaim_mode": range(8),  # bits: reclaim, write dirty pages out, swap
    "vm.compaction_proactiveness": range(101),
    "vm.swappiness": range(201),
    "vm.max_map_count": range(65530, 1 << 31),
    "vm.stat_interval": range(1, 3601),  # seconds
    "kernel.nmi_watchdog": range(2),
    "kernel.timer_migration": range(2),
}


class Sysctl(NowAndAtBoot):
    """See the module."""

    kind: ClassVar[str] = "sysctl"
    scope: ClassVar[str] = FILE
    targets = Targets(NAMES.__contains__, "not a sysctl that hosttune sets", f"one of {', '.join(NAMES)}")

    def check(self, value: Any) -> None:
        """See Setting."""
        numbers = NAMES[self.target]
        if not (isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 11):
            raise refuse(self.kind, self.target, f"{value!r} is not a number as text", 'write "0"')
        if int(value) not in numbers or str(int(value)) != value:
            raise refuse(self.kind, self.target, f"invalid value {value!r}", f"{numbers[0]} to {numbers[-1]}")

    def effective(self, system: System) -> str | None:
        """See Setting."""
        text = system.read(sysctl_path(self.target))
        return None if text is None else " ".join(text.split())

    def read(self, system: System) -> Any:
        """See Setting."""
        now = self.effective(system)
        return None if now is None else self.joined({NOW: now, AT_BOOT: _lines(system).get(self.target)})

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        wanted = self.parts(value)
        if self.effective(system) != wanted[NOW]:  # first: a value that the kernel refuses must not be set at boot
            system.write(sysctl_path(self.target), wanted[NOW])
        lines = _lines(system)
        if lines.get(self.target) != wanted[AT_BOOT]:
            changed = {**lines, self.target: wanted[AT_BOOT]}
            _put(system, {name: text for name, text in changed.items() if text is not None})

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return (DROP_IN,)


def sysctl_path(name: str) -> str:
    """Return the path of a sysctl."""
    return f"/proc/sys/{name.replace('.', '/')}"


def _lines(system: System) -> dict[str, str]:
    """Return all assignments in the drop-in; those that others added to hosttune's file are kept."""
    pairs = (
        line.partition("=") for line in (system.read(DROP_IN) or "").splitlines() if not line.lstrip().startswith("#")
    )
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _put(system: System, lines: Mapping[str, str]) -> None:
    if not lines:
        system.remove(DROP_IN)
        return
    text = _HEAD + "".join(f"{name} = {value}\n" for name, value in sorted(lines.items()))
    system.replace(DROP_IN, text.encode())
