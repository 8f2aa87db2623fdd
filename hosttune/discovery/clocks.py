"""System → the limits that are set for the clocks of CPUs. Read only.

A capture must hold, of each CPU with a frequency driver, `cpufreq/scaling_max_freq`, `cpufreq/cpuinfo_max_freq` and,
where the driver has a table, `cpufreq/scaling_available_frequencies`; and intel_pstate's `max_perf_pct`.
"""

from __future__ import annotations

from hosttune.machine.reader import Reader, number
from hosttune.model import sysfs
from hosttune.model.evidence import ClockLimit, Clocks
from hosttune.model.host import Host
from hosttune.model.values import CpuSet, grouped

_TABLE = "scaling_available_frequencies"


def read_clocks(reader: Reader, host: Host) -> Clocks:
    """Return the limit and the highest clock of each online CPU that has a frequency driver, equal ones together.

    Source: Documentation/admin-guide/pm/cpufreq (scaling_max_freq, cpuinfo_max_freq). A driver with a table of
    frequencies can set no higher one than the table has, while acpi-cpufreq shows the boost clock as cpuinfo_max_freq
    (drivers/cpufreq/acpi-cpufreq.c, since Linux 5.11); so there the table counts.
    """
    cpus = [cpu.id for cpu in host.cpus if cpu.online and cpu.governor is not None]
    # If the first CPU lacks the table, all CPUs lack it: the kernel has one driver for all.
    table = bool(cpus) and _TABLE in reader.names(f"{sysfs.CPUS}/cpu{cpus[0]}/cpufreq")
    by_limit = grouped((_clock(reader, f"{sysfs.CPUS}/cpu{cpu}/cpufreq", table=table), cpu) for cpu in cpus)
    limits = tuple(
        ClockLimit(cpus=str(CpuSet(ids)), limit_khz=at, highest_khz=top) for (at, top), ids in by_limit.items()
    )
    return Clocks(limits=limits, percent=reader.count(sysfs.MAX_PERF_PERCENT))


def _clock(reader: Reader, folder: str, *, table: bool) -> tuple[int | None, int | None]:
    """Return scaling_max_freq and the highest clock that the driver sets, in kHz."""
    limit = reader.count(f"{folder}/scaling_max_freq")
    if not table:
        return limit, reader.count(f"{folder}/cpuinfo_max_freq")
    listed = [number(word) for word in (reader.text(f"{folder}/{_TABLE}") or "").split()]
    known = [clock for clock in listed if clock is not None]
    return limit, max(known) if known and len(known) == len(listed) else None
