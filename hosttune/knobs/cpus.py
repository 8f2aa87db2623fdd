"""Knobs of the CPUs that guests are pinned to: clock and idle states. CPUs with the same value now share one action."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from hosttune.knobs.knob import GUEST, HOST, Change, Knob, KnobContext, actions_for, wanted
from hosttune.model import sysfs
from hosttune.model.host import Cpu
from hosttune.model.plan import Action, PlanFinding
from hosttune.model.values import CpuSet, grouped
from hosttune.settings.cpus import LONGEST_LATENCY_US, EnergyPreference, Governor, ResumeLatency

Cpus = Sequence[Cpu]
# These drivers choose frequencies themselves. They have a preference instead of a governor (admin-guide/pm).
PREFERENCE_DRIVERS = frozenset(("intel_pstate", "amd-pstate-epp", "amd_pstate_epp"))
_THE_DRIVER = "the frequency driver"  # used in a reason if the name of the host's driver is unknown


def _each(now: Callable[[Cpu], str | None]) -> Callable[[Cpus, str | int], Iterable[Change]]:
    """Return a function that yields one change for each group of CPUs that have the same value now."""

    def changes(cpus: Cpus, value: str | int) -> Iterable[Change]:
        want = str(value)
        groups = grouped((now(cpu), cpu.id) for cpu in cpus)
        for current, ids in sorted(groups.items(), key=lambda row: row[1]):
            yield Change(f"cpus {CpuSet(ids)}", current, want)

    return changes


GOVERNOR: Knob[Cpus] = Knob(
    name="governor",
    kept=True,
    setting=Governor,
    profiles=GUEST,
    value="performance",
    values=("performance", "powersave", "schedutil", "ondemand", "conservative", "userspace"),
    changes=_each(lambda cpu: cpu.governor),
    sets="governor of pinned CPUs",
    why=f"pinned vCPUs should not wait for {_THE_DRIVER} to raise the clock",
    source="Documentation/admin-guide/pm/cpufreq",
)
ENERGY_PREFERENCE: Knob[Cpus] = Knob(
    name="energy_preference",
    kept=True,
    setting=EnergyPreference,
    profiles=GUEST,
    value="performance",
    values=("performance", "balance_performance", "default", "balance_power", "power"),
    changes=_each(lambda cpu: cpu.energy_preference),
    sets="where the driver takes a preference instead of a governor",
    why=f"{_THE_DRIVER} takes a preference, not a governor",
    source="Documentation/admin-guide/pm/intel_pstate, amd-pstate",
)
RESUME_LATENCY: Knob[Cpus] = Knob(
    name="resume_latency_us",
    kept=True,
    setting=ResumeLatency,
    profiles=HOST,
    value=10,
    values=("n/a",),
    numbers=range(1, LONGEST_LATENCY_US + 1),  # not 0: to the kernel 0 means "no limit"
    changes=_each(lambda cpu: cpu.resume_latency_us),
    sets="deepest C-state of pinned CPUs, by wake-up latency",
    takes="`10`; any number from 1, or `n/a` for none at all",
    why="bounds how long an idle core takes to wake (pm_qos_resume_latency_us; 0 would mean no limit)",
    source="Documentation/ABI/testing/sysfs-devices-power",
)
KNOBS = (GOVERNOR, ENERGY_PREFERENCE, RESUME_LATENCY)


def plan_cpus(ctx: KnobContext) -> Iterator[Action | PlanFinding]:
    """Yield the actions for the pinned CPUs: governor or preference, as their frequency driver has it, then idle
    states.
    """
    cpus = [cpu for cpu in ctx.host.cpus if cpu.id in ctx.pinned]
    driver = ctx.host.cpu_model.scaling_driver if ctx.host.cpu_model else None
    frequency = ENERGY_PREFERENCE if driver in PREFERENCE_DRIVERS else GOVERNOR
    if any(cpu.governor is not None for cpu in cpus):
        named = msgspec.structs.replace(frequency, why=frequency.why.replace(_THE_DRIVER, driver or _THE_DRIVER))
        yield from actions_for(ctx.intent, (named,), (cpus,), every=ctx.every)
    elif wanted(ctx.intent, GOVERNOR) or wanted(ctx.intent, ENERGY_PREFERENCE):
        text = "no frequency driver is visible: governor and energy preference are left alone"
        yield PlanFinding(level="info", text=text, where=f"{sysfs.CPUS}/cpufreq")
    yield from actions_for(ctx.intent, (RESUME_LATENCY,), (cpus,), every=ctx.every)
