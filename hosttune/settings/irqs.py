"""Interrupt affinity: interrupts of a passed-through device, and the CPUs that irqbalance must not use."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from hosttune.errors import CommandFailed, WriteFailed
from hosttune.linux.irqbalance import (
    DROP_IN,
    IRQBALANCE_OURS,
    IRQBALANCE_THEIRS,
    OWED,
    OWED_SAID,
    irqbalance_bans,
    parse_ban,
)
from hosttune.machine.system import System
from hosttune.model.values import CpuSet, FrozenMap
from hosttune.settings.drivers import VFIO
from hosttune.settings.files import only
from hosttune.settings.setting import AFTER_START_STAGE, FILE, OfFunction, Setting, driver_of, refuse

# Errors that concern one interrupt, not the whole setting. A managed interrupt returns EIO, EPERM since Linux 6.12
# (kernel/irq/proc.c). ENOSPC: these CPUs have no free vector (arch/x86/kernel/apic/vector.c).
_LEFT_ALONE = {
    errno.EIO: "managed by the kernel",
    errno.EPERM: "managed by the kernel",
    errno.ENOSPC: "no vector is left on these CPUs",
    errno.ENOENT: "gone meanwhile",
}


class IrqAffinity(OfFunction):
    """The CPUs that a device's interrupts go to (core-api/irq/irq-affinity). Wanted: one CPU list for all interrupts.

    vfio requests a device's interrupts when the guest's driver enables them, and frees them when it ends. So they have
    other numbers after each start. Value as read: {interrupt: CPU list}. A revert writes the interrupts that the device
    has then: each gets its old CPU list, or, if all had the same list, that one. irqbalance may still move them among
    the CPUs that it is not banned from.
    """

    kind: ClassVar[str] = "irq-affinity"
    stage: ClassVar[int] = AFTER_START_STAGE
    may_stop_midway: ClassVar[bool] = True

    def check(self, value: Any) -> None:
        """See Setting."""
        if cpu_list(value) in (None, ""):
            raise refuse(self.kind, self.target, f"{value!r} is not a list of CPUs", 'write "0-1,64"')

    def read(self, system: System) -> Mapping[str, str]:
        """See Setting. Empty while the device has no interrupts, or is a virtual function that is yet to be made."""
        cpus_of = {str(irq): system.read(_affinity(irq)) for irq in self._irqs(system)}
        return FrozenMap({irq: cpu_list(cpus) or cpus for irq, cpus in cpus_of.items() if cpus is not None})

    def waits_for(self, system: System) -> str | None:
        """See Setting."""
        if not system.exists(self.path):
            return "there is no such device now"
        driver = driver_of(system, self.target) or ""
        vgpu = driver == "nvidia" and system.link(f"{self.path}/physfn") is not None  # also a VFIO driver
        if "vfio" not in driver and not vgpu:
            return "its interrupts are its present driver's: they change when vfio-pci takes it"
        if not self.read(system):
            return "its guest does not run, or has not switched the device's interrupts on yet"
        return None

    def write(self, system: System, value: Any) -> str | None:
        """See Setting. Interrupts that the kernel does not allow to move are reported; they are not a failure."""
        left: dict[str, list[str]] = {}
        for irq, now in self.read(system).items():
            want = _for_one(value, irq)
            if want is None or cpu_list(want) == now:
                continue
            try:
                system.write(_affinity(irq), want)
            except WriteFailed as error:
                if error.errno not in _LEFT_ALONE:
                    raise
                left.setdefault(_LEFT_ALONE[error.errno], []).append(irq)
        return "; ".join(f"{_counted(irqs)} left alone: {why}" for why, irqs in left.items()) or None

    def parts(self, value: Any) -> Mapping[str, Any]:
        """See Setting. Without interrupts there are no parts."""
        return {} if isinstance(value, Mapping) and not value else {"": value}

    def joined(self, parts: Mapping[str, Any]) -> Any:
        """See Setting."""
        return parts.get("", FrozenMap({}))

    def agrees(self, live: Any, want: Any) -> bool:
        """Return whether every interrupt of the device goes to the wanted CPUs; False if it has no interrupts."""
        if not isinstance(live, Mapping):
            return cpu_list(live) is not None and cpu_list(live) == cpu_list(want)
        if not live:
            return isinstance(want, Mapping)
        wanted = ((now, _for_one(want, irq)) for irq, now in live.items())
        return all(cpus is None or cpu_list(cpus) == cpu_list(now) for now, cpus in wanted)

    def _irqs(self, system: System) -> list[int]:
        """Return the device's interrupts: those of MSI, which are never shared, else the wired one if only this device
        uses it.

        Source: Documentation/ABI/testing/sysfs-bus-pci (msi_irqs), sysfs-kernel-irq (actions).
        """
        message = sorted(int(name) for name in system.list(f"{self.path}/msi_irqs") if name.isdecimal())
        if message:
            return message
        wired = system.read(f"{self.path}/irq") or ""
        if not wired.isdecimal() or int(wired) == 0:
            return []
        actions = (system.read(f"/sys/kernel/irq/{wired}/actions") or "").split(",")
        is_own = len(actions) == 1 and actions[0] not in ("", "(null)")
        if is_own and driver_of(system, self.target) == VFIO:
            is_own = actions[0].startswith("vfio-") and self.target in actions[0]
        return [int(wired)] if is_own else []


def _affinity(irq: int | str) -> str:
    return f"/proc/irq/{irq}/smp_affinity_list"


def _for_one(value: Any, irq: str) -> str | None:
    """Return the CPU list that a value has for one interrupt; None if it has none."""
    if not isinstance(value, Mapping):
        return str(value)
    cpus = set(value.values())
    cpu = value.get(irq, next(iter(cpus)) if len(cpus) == 1 else None)
    return None if cpu is None else str(cpu)


def _counted(irqs: list[str]) -> str:
    return f"interrupt {irqs[0]}" if len(irqs) == 1 else f"{len(irqs)} interrupts ({CpuSet(map(int, irqs))})"


def cpu_list(text: Any) -> str | None:
    """Return a CPU list in the kernel's form; None if the text is not a CPU list."""
    try:
        return str(CpuSet.parse(text)) if isinstance(text, str) else None
    except ValueError:
        return None


# --- irqbalance ----------------------------------------------------------------------------------------------

_UNIT = "irqbalance.service"
_ALONE = " (its drop-in is missing)"
_UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_HEAD = "# Written by hosttune: the CPUs that irqbalance leaves alone. irqbalance(1), 1.8 or later.\n"


class IrqbalanceBan(Setting):
    """The CPUs to which irqbalance moves no interrupts. Value: their list; "" for none; None if no file sets it.

    hosttune uses two files: a drop-in for irqbalance's unit, and the environment file that it names. Of several
    EnvironmentFile= the last one counts, and a drop-in is read after the unit (systemd.exec(5), systemd.unit(5)). The
    distribution's file is not changed; if it already has the wanted value, hosttune's files are removed. A value with
    "(irqbalance not restarted)" is left by an interrupted write. One with "(its drop-in is missing)" is in hosttune's
    file, which irqbalance does not read then.
    """

    kind: ClassVar[str] = "irqbalance-ban"
    scope: ClassVar[str] = FILE
    none_is_value: ClassVar[bool] = True
    may_stop_midway: ClassVar[bool] = True

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        return only(cls, target, "irqbalance")

    def check(self, value: Any) -> None:
        """See Setting."""
        if cpu_list(value) is None or cpu_list(value) != value:
            raise refuse(self.kind, self.target, f"{value!r} is not a list of CPUs", 'write "2-7,16"')

    def effective(self, system: System) -> str | None:
        """See Setting. The ban as irqbalance reads it."""
        return _first(irqbalance_bans(system.read))

    def read(self, system: System) -> str | None:
        """See Setting. Both files of hosttune are checked."""
        text = system.read(IRQBALANCE_OURS)
        if text is not None and OWED not in text and not system.exists(DROP_IN):
            return f"{parse_ban(text) or ''}{_ALONE}"
        return self.effective(system)

    def write(self, system: System, value: Any) -> str | None:
        """See Setting.

        The first write marks hosttune's file, the last removes the mark; irqbalance restarts in between.
        """
        if value is not None and str(value).endswith(_ALONE):  # a revert restores what was found
            system.replace(IRQBALANCE_OURS, _environment(str(value).removesuffix(_ALONE), restart_owed=False))
            system.remove(DROP_IN)
            return _restart(system)[1]
        wanted = None if value is None else str(value).removesuffix(OWED_SAID)
        keep = wanted is not None and wanted != _first(irqbalance_bans(system.read, IRQBALANCE_THEIRS))
        if not keep and not system.exists(DROP_IN) and not system.exists(IRQBALANCE_OURS):
            return None
        system.replace(IRQBALANCE_OURS, _environment(wanted or "", restart_owed=True))
        if keep:
            system.replace(DROP_IN, f"[Service]\nEnvironmentFile=-{IRQBALANCE_OURS}\n".encode())
        else:
            system.remove(DROP_IN)
        restarted, note = _restart(system)
        if not keep:
            system.remove(IRQBALANCE_OURS)
        elif restarted:
            system.replace(IRQBALANCE_OURS, _environment(wanted or "", restart_owed=False))
        return note

    def places(self, system: System) -> tuple[str, ...]:
        """See Setting."""
        return (DROP_IN, IRQBALANCE_OURS)


def _first(bans: Iterable[tuple[str, str | None]]) -> str | None:
    return next((ban for _, ban in bans if ban is not None), None)


def _environment(cpus: str, *, restart_owed: bool) -> bytes:
    """Return hosttune's file.

    It clears the mask, because irqbalance prefers it to the list (cputree.c, setup_banned_cpus).
    """
    mark = OWED if restart_owed else ""
    return f"{_HEAD}{mark}IRQBALANCE_BANNED_CPUS=\nIRQBALANCE_BANNED_CPULIST={cpus}\n".encode()


def _restart(system: System) -> tuple[bool, str | None]:
    """Restart a running irqbalance, so that it reads its environment. Return whether this is done, and a note."""
    units = [path for folder in _UNIT_FOLDERS if system.exists(path := f"{folder}/{_UNIT}")]
    if not units or system.link(units[0]) == "/dev/null":
        state = "masked" if units else "not installed"
        return True, f"irqbalance is {state}: there is nothing to ban now, and it would find the ban if that changes"
    if not system.exists("/run/systemd/system"):  # sd_booted(3)
        return True, "systemd does not run here: irqbalance finds the ban when systemd starts it"
    try:
        system.change(("systemctl", "daemon-reload"))
        system.change(("systemctl", "try-restart", _UNIT))
    except CommandFailed as error:
        return False, f"irqbalance was not restarted, it finds the ban when it starts: {error.reason}"
    return True, None


# --- the host's own tasks --------------------------------------------------------------------------------------
# The host's own tasks and new interrupts stay off the CPUs of guests.
# systemd's slices: systemd.resource-control(5), AllowedCPUs= (cpuset of cgroup v2); guests are in machine.slice. The
# mask of interrupts that are requested from now on: Documentation/core-api/irq/irq-affinity.

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
