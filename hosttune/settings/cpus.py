"""Frequency and idle settings of CPUs. A target is "cpus LIST"; the setting has one part for each CPU in the list.

Value: one value if all CPUs have it, {CPU list: value} if they differ.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.values import CpuSet, FrozenMap, grouped
from hosttune.settings.setting import Divisible, refuse

_CPU = sysfs.CPUS
_WORD = re.compile(r"[a-z_]{1,32}")
LONGEST_LATENCY_US = (1 << 31) - 1


class PerCpu(Divisible):
    """Base class of the three kinds: one file for each CPU, written only if it differs."""

    file: ClassVar[str] = ""

    @classmethod
    def of(cls, target: str) -> Self:
        """See Setting."""
        word, _, text = target.partition(" ")
        try:
            cpus = CpuSet.parse(text) if word == "cpus" else CpuSet()
        except ValueError:
            cpus = CpuSet()
        if not cpus:
            raise refuse(cls.kind, target, "not a list of CPUs", 'write "cpus 2-7,16"')
        return cls(target)

    @property
    def cpus(self) -> CpuSet:
        """Return the CPUs of the target."""
        return CpuSet.parse(self.target.partition(" ")[2])

    def check(self, value: Any) -> None:
        """See Setting."""
        if not isinstance(value, str) or not self.allows(value):
            raise refuse(self.kind, self.target, f"invalid value {value!r}", "plan again")

    def allows(self, word: str) -> bool:
        """Return whether a word is a valid value for a single CPU."""
        return bool(_WORD.fullmatch(word))

    def read(self, system: System) -> Any:
        """See Setting."""
        return self.joined({str(cpu): system.read(self._path(cpu)) for cpu in sorted(self.cpus)})

    def write(self, system: System, value: Any) -> None:
        """See Setting."""
        for cpu, part in self.parts(value).items():
            path = self._path(int(cpu))
            if part is not None and system.read(path) != part:
                system.write(path, part)

    def parts(self, value: Any) -> Mapping[str, Any]:
        """See Setting."""
        if not isinstance(value, Mapping):
            return {str(cpu): value for cpu in self.cpus}
        return {str(cpu): part for cpus, part in value.items() for cpu in sorted(CpuSet.parse(cpus))}

    def joined(self, parts: Mapping[str, Any]) -> Any:
        """See Setting."""
        groups = grouped((part, int(cpu)) for cpu, part in parts.items())
        if len(groups) == 1:
            return next(iter(groups))
        return FrozenMap({str(CpuSet(cpus)): part for part, cpus in sorted(groups.items(), key=lambda row: row[1])})

    def target_of(self, names: Collection[str]) -> str:
        """See Setting."""
        return f"cpus {CpuSet(map(int, names))}"

    def _path(self, cpu: int) -> str:
        return f"{_CPU}/cpu{cpu}/{self.file}"


class Governor(PerCpu):
    """The cpufreq governor (admin-guide/pm/cpufreq)."""

    kind: ClassVar[str] = "governor"
    file: ClassVar[str] = "cpufreq/scaling_governor"


class EnergyPreference(PerCpu):
    """The energy-performance preference (admin-guide/pm/intel_pstate, amd-pstate)."""

    kind: ClassVar[str] = "energy-preference"
    file: ClassVar[str] = "cpufreq/energy_performance_preference"


class ResumeLatency(PerCpu):
    """The longest wake-up that a CPU's idle state may have, in µs: "n/a" tolerates none, "0" means no limit.

    Source: Documentation/ABI/testing/sysfs-devices-power, pm_qos_resume_latency_us.
    """

    kind: ClassVar[str] = "resume-latency"
    file: ClassVar[str] = "power/pm_qos_resume_latency_us"

    def allows(self, word: str) -> bool:
        """See PerCpu."""
        return word == "n/a" or (word.isdecimal() and len(word) < 11 and int(word) <= LONGEST_LATENCY_US)
