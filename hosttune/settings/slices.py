"""The host's own tasks and new interrupts stay off the CPUs of guests.

systemd's slices: systemd.resource-control(5), AllowedCPUs= (cpuset of cgroup v2); guests are in machine.slice. The
mask of interrupts that are requested from now on: Documentation/core-api/irq/irq-affinity.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from hosttune.errors import CommandFailed
from hosttune.machine.system import System
from hosttune.model.values import CpuSet
from hosttune.settings.files import only
from hosttune.settings.irqs import cpu_list
from hosttune.settings.setting import FILE, Setting, refuse

SLICES = ("system.slice", "user.slice")
_CGROUPS = "/sys/fs/cgroup"
HEAD = "# Written by hosttune: the tasks of this slice stay off the CPUs of guests.\n[Slice]\nAllowedCPUs="
DEFAULT_AFFINITY = "/proc/irq/default_smp_affinity"


def slice_file(name: str) -> str:
    """Return the path of hosttune's drop-in for a slice."""
    return f"/etc/systemd/system/{name}.d/90-hosttune.conf"


def slice_cpus(text: str | None) -> str | None:
    """Return the CPUs that hosttune's drop-in allows; None if there is none, or another's text in it."""
    return cpu_list(text[len(HEAD) :].strip()) if text and text.startswith(HEAD[:-1]) else None


class SliceCpus(Setting):
    """The CPUs of a slice's tasks. None: hosttune has no drop-in. "LIST (works: LIST)": its cgroup has others."""

    kind: ClassVar[str] = "slice-cpus"
    scope: ClassVar[str] = FILE
    none_is_value: ClassVar[bool] = True
    may_stop_midway: ClassVar[bool] = True

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        return only(cls, target, target if target in SLICES else SLICES[0])

    def check(self, value: Any) -> None:
        """See Setting."""
        if cpu_list(value) in (None, "") or cpu_list(value) != value:
            raise refuse(self.kind, self.target, f"{value!r} is not a list of CPUs", 'write "0-1,64"')

    def read(self, system: System) -> str | None:
        """See Setting."""
        listed = slice_cpus(system.read(slice_file(self.target)))
        now = cpu_list(system.read(f"{_CGROUPS}/{self.target}/cpuset.cpus.effective"))
        same = listed is None or now == listed or (now is None and system.captured)
        return listed if same else f"{listed} (works: {now})"

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        there = system.captured or system.exists(f"{_CGROUPS}/cpuset.cpus.effective")
        return None if there else f"{_CGROUPS} has no cpuset of cgroup v2"

    def write(self, system: System, value: Any) -> str | None:
        """See Setting."""
        if value is None:
            system.remove(slice_file(self.target))
        else:
            system.replace(slice_file(self.target), f"{HEAD}{str(value).partition(' ')[0]}\n".encode())
        try:
            system.change(("systemctl", "daemon-reload"))
        except CommandFailed as error:
            return f"systemd has not read it yet: {error.reason}"
        return None

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return (slice_file(self.target),)


class DefaultAffinity(Setting):
    """The CPUs to which interrupts go that are requested from now on, as a list."""

    kind: ClassVar[str] = "default-irq-affinity"

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        return only(cls, target, DEFAULT_AFFINITY)

    def check(self, value: Any) -> None:
        """See Setting."""
        if cpu_list(value) in (None, "") or cpu_list(value) != value:
            raise refuse(self.kind, self.target, f"{value!r} is not a list of CPUs", 'write "0-1,64"')

    def read(self, system: System) -> str | None:
        """See Setting."""
        return mask_list(system.read(DEFAULT_AFFINITY))

    def write(self, system: System, value: Any) -> None:
        """See Setting. The mask has as many digits as before."""
        now = (system.read(DEFAULT_AFFINITY) or "").strip()
        digits = f"{sum(1 << cpu for cpu in CpuSet.parse(value)):0{len(now.replace(',', ''))}x}"
        first = len(digits) % 8
        groups = [digits[:first]] * bool(first) + [digits[n : n + 8] for n in range(first, len(digits), 8)]
        system.write(DEFAULT_AFFINITY, ",".join(groups))


def mask_list(text: str | None) -> str | None:
    """Return a mask of CPUs as a list; None if it is none."""
    try:
        return str(CpuSet.parse_mask(text)) if text else None
    except ValueError:
        return None
