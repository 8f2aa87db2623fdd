"""Checks of CPU settings: governor and energy preference, idle states, SMT; judged on the CPUs that guests use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hosttune.knobs.cpus import PREFERENCE_DRIVERS
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import Cpu
from hosttune.model.values import CpuSet, parse_cpus
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import HOST, lacks, pinned, planned_guests, refused, spread, wanted
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

_CPUS = sysfs.CPUS
_GOVERNOR, _PREFERENCE = "cpufreq/scaling_governor", "cpufreq/energy_performance_preference"
_LATENCY = "power/pm_qos_resume_latency_us"


def cpus_of_guests(evidence: Evidence) -> Iterator[tuple[str, tuple[Cpu, ...]]]:
    """Yield each guest with pins and its CPUs; if there is none, the host with all CPUs that are online."""
    online = tuple(cpu for cpu in evidence.host.cpus if cpu.online)
    guests = pinned(evidence)
    yield from ((name, tuple(cpu for cpu in online if cpu.id in cpus)) for name, cpus in guests.items())
    if not guests:
        yield HOST, online


def _asked_for(on: On, kind: str, cpus: Sequence[Cpu]) -> set[str]:
    """Return the values that applied plans set for these CPUs."""
    ids, settings = {cpu.id for cpu in cpus}, wanted(on.evidence, kind).items()
    of_cpus = ((target.removeprefix("cpus "), want) for target, want in settings if target.startswith("cpus "))
    return {str(want) for listed, want in of_cpus if CpuSet.parse(listed) & ids}


def _lack(on: On, cpus: Sequence[Cpu], file: str) -> bool:
    """Return whether all these CPUs are proven to have no such file."""
    return bool(cpus) and lacks(on.evidence, *(f"{_CPUS}/cpu{cpu.id}/{file}" for cpu in cpus))


# --- frequency -----------------------------------------------------------------------------------------------


@check(
    "cpu-frequency",
    title="CPU governor, energy preference and limits of the clock",
    about="each guest with pinned vCPUs; without any, the host",
    why="a vCPU that waits for its core to speed up delays the GPU that waits for it",
    source="Linux Documentation/admin-guide/pm: cpufreq (scaling_max_freq), intel_pstate (max_perf_pct), amd-pstate",
    expected="performance",
    each=cpus_of_guests,
    for_guests=True,
)
def cpu_frequency(on: On, cpus: tuple[Cpu, ...]) -> Finding:
    """With a driver that has preferences, governor performance has the same effect as preference performance; hardware
    without EPP leaves the choice to the governor alone (intel_pstate, "without HWP"). powersave keeps the lowest
    frequency with a driver that does not scale it itself, as amd-pstate in passive and guided mode (amd-pstate.rst).
    Turbo that is off is only said: operators switch it off on purpose, so that clocks do not vary.
    """
    host, model = on.host, on.host.cpu_model
    driver = model.scaling_driver if model else None
    known = [cpu for cpu in cpus if cpu.governor is not None]
    if not known and _lack(on, cpus, _GOVERNOR) and not refused(on.evidence, "/cpufreq"):
        who = "the hypervisor sets the clock" if host.hypervisor else "the firmware sets the clock by itself"
        on.skip(f"no frequency driver here: {who}")
    if not known:
        on.need(None, "the governor", "/cpufreq", look=f"grep . {_CPUS}/cpu*/{_GOVERNOR}")
    kind, file, expected, bad = "governor", _GOVERNOR, f"governor performance ({driver})", set[str]()
    values = [(cpu.governor or "", cpu.id) for cpu in known]
    silent = CpuSet(cpu.id for cpu in known if cpu.energy_preference is None and cpu.governor != "performance")
    if driver in PREFERENCE_DRIVERS and silent and _lack(on, known, _PREFERENCE):
        expected = f"governor performance ({driver} without a preference)"
    elif driver in PREFERENCE_DRIVERS:
        kind, file, expected = "energy-preference", _PREFERENCE, f"energy preference performance ({driver})"
        look = f"grep . {_CPUS}/cpu*/{file}"
        on.need(None if silent else "", f"the preference of CPUs {silent}", "energy_performance_preference", look=look)
        preferences = {cpu.id: cpu.energy_preference or "" for cpu in known}
        values = [(value if value == "performance" else preferences[cpu], cpu) for value, cpu in values]
    elif driver not in PREFERENCE_DRIVERS:
        bad = {"powersave"}
    on = on.reading(f"{_CPUS}/cpu*/{file}", expected)
    differ = {value for value, _ in values} - {"performance"}
    unplanned = differ - _asked_for(on, kind, known)
    low, unread = _limits(on, known)
    said = [spread(values) + (", as the applied plan asks" if differ and not unplanned else "")]
    said += [*(limit for limit, _ in low), *_turbo_off(on)]
    setting = f"plan with profile guest and apply (setting {kind.replace('-', '_')})"
    remedies = [f"{setting}, or echo performance into {file.rpartition('/')[2]} of these CPUs"] if unplanned else []
    remedy = "; ".join([*remedies, *(hint for _, hint in low)])
    if unplanned & bad:
        return on.failed("; ".join(said), remedy)
    whole, source = (
        f"{expected}, no limit below the highest clock",
        f"{_CPUS}/cpu*/cpufreq/{{scaling,cpuinfo}}_max_freq",
    )
    if len(known) < len(cpus):
        unread.append(f"of CPUs {CpuSet(cpu.id for cpu in cpus if cpu not in known)} it was not read")
    if unread:
        look = on.look(f"grep . {source} {_CPUS}/cpu*/{_GOVERNOR} {sysfs.MAX_PERF_PERCENT}")
        return on.unknown("; ".join([*said, *unread]), look, source, expected=whole)
    if unplanned:
        return on.warned("; ".join(said), remedy)
    return on.warned("; ".join(said), remedy, source, expected=whole) if low else on.passed("; ".join(said))


def _turbo_off(on: On) -> list[str]:
    boost = next((fact for fact in on.evidence.configuration or () if fact.name == "boost"), None)
    return [f"turbo is off ({boost.source})"] if boost is not None and boost.value == "off" else []


def _limits(on: On, cpus: Sequence[Cpu]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the limits of these CPUs' clocks that are below the highest clock, with a hint; and what was not read."""
    clocks, model = on.evidence.clocks, on.host.cpu_model
    rows = clocks.limits if clocks else ()
    by_cpu = {cpu: (row.limit_khz, row.highest_khz) for row in rows for cpu in CpuSet.parse(row.cpus)}
    step = table("limits")["clock"]["step_khz"]
    low: list[tuple[str, int]] = []
    blank: list[int] = []
    for cpu in cpus:
        limit, highest = by_cpu.get(cpu.id, (None, None))
        if limit is None or not highest:
            blank.append(cpu.id)
        elif limit + step < highest:
            low.append((f"{limit // 1000} of {highest // 1000} MHz", cpu.id))
    texts: list[tuple[str, str]] = []
    unread = [f"the limit of the clock of CPUs {CpuSet(blank)} was not read"] if blank else []
    if low:
        whom = "" if len(low) == len(cpus) else f"of CPUs {CpuSet(cpu for _, cpu in low)} "
        hint = (
            "find what sets scaling_max_freq of these CPUs (TuneD, cpupower, a power manager, the firmware), or echo"
            " the highest clock into it"
        )
        texts.append((f"clock {whom}limited to {spread(low)}", hint))
    percent, driver = clocks.percent if clocks else None, model.scaling_driver if model else None
    if percent is not None and percent < 100:
        hint = f"find what sets it, or echo 100 > {sysfs.MAX_PERF_PERCENT}"
        texts.append((f"performance of all CPUs limited to {percent} %", hint))
    elif percent is None and driver in (None, "intel_pstate", "intel_cpufreq"):
        unread += [] if lacks(on.evidence, sysfs.MAX_PERF_PERCENT) else ["max_perf_pct was not read"]
    return texts, unread


# --- idle states ---------------------------------------------------------------------------------------------


@check(
    "cpu-idle",
    title="CPU idle states",
    about="each guest with pinned vCPUs; without any, the host",
    why="deep idle states wake late; none at all takes turbo from the other cores",
    source="Linux Documentation/ABI/testing/sysfs-devices-power (pm_qos_resume_latency_us),"
    " admin-guide/pm/cpuidle, admin-guide/kernel-parameters (intel_idle.max_cstate)",
    expected="a limit on idle states where a plan sets one",
    reads=f"{_CPUS}/cpu*/{_LATENCY}",
    each=cpus_of_guests,
    for_guests=True,
)
def cpu_idle(on: On, cpus: tuple[Cpu, ...]) -> Finding:
    """Check how long an idle core may take to wake: limited if a plan asks for it; no idle states at all is a fault."""
    known = [cpu for cpu in cpus if cpu.resume_latency_us is not None]
    look = f"grep . {_CPUS}/cpu*/{_LATENCY}"
    if not known and _lack(on, cpus, _LATENCY):
        on.skip("this kernel offers no bound on wake-up latency")
    if not known:
        on.need(None, "the bound on wake-up latency", "pm_qos_resume_latency_us", look=look)
    asked = _asked_for(on, "resume-latency", known)
    expected = f"{' or '.join(sorted(asked))} us, as planned" if asked else "idle states, with a bound or without"
    on = on.reading(f"{_CPUS}/cpu*/{_LATENCY}", expected)
    words = {"0": "no bound", "n/a": "no idle state allowed"}
    values = [(words.get(text := cpu.resume_latency_us or "", f"{text} us"), cpu.id) for cpu in known]
    driver = on.host.cpu_model.idle_driver if on.host.cpu_model else None
    actual = f"{spread(values)}{f' ({driver})' if driver and driver != 'none' else ''}"
    bounds = {cpu.resume_latency_us for cpu in known}
    if asked and not bounds <= asked:
        return on.failed(actual, "see what changed it with hosttune status, then hosttune apply --intent FILE")
    if unread := CpuSet({cpu.id for cpu in cpus if cpu not in known}):
        return on.unknown(f"{actual}; of CPUs {unread} it was not read", on.look(look))
    if "n/a" in bounds and "n/a" not in asked:
        hint = "bound the latency instead (settings: resume_latency_us: 10)"
        return on.warned(actual, f"{hint}: cores that never idle leave others no turbo")
    if "intel_idle.max_cstate=0" in on.need(on.host.kernel_args, "the kernel's command line", "/proc/cmdline"):
        hint = "remove the argument: it hands idling to acpi_idle; to bound it use settings: resume_latency_us"
        text = f"{actual}; intel_idle.max_cstate=0 switches intel_idle off, not idle states"
        return on.warned(text, hint, "/proc/cmdline")
    return on.passed(actual)


# --- SMT -----------------------------------------------------------------------------------------------------


def host_and_guests(evidence: Evidence) -> Iterator[tuple[str, CpuSet | None]]:
    """Yield the host; then each guest with pins and its CPUs, if there are several."""
    guests = pinned(evidence)
    yield HOST, None
    yield from guests.items() if len(guests) > 1 else ()


@check(
    "smt",
    title="SMT siblings",
    about="the host; each guest with pinned vCPUs where there are several",
    why="a core with a missing sibling breaks the guests' topology; what shares a core can read its caches",
    source="Linux Documentation/ABI/testing/sysfs-devices-system-cpu (smt), admin-guide/hw-vuln/l1tf, mds",
    each=host_and_guests,
    for_guests=True,
)
def smt(on: On, cpus: CpuSet | None) -> Finding:
    """L1TF, MDS: a sibling thread can read the core's caches."""
    if cpus is None:
        return _siblings(on)
    on, guests = on.reading("vcpu_pins of the guests", "no core shared with another guest"), pinned(on.evidence)
    cores = {cpu.id: cpu.core for cpu in on.host.cpus if cpu.core is not None}
    own = {cores[cpu] for cpu in cpus if cpu in cores}
    others = [name for name, held in guests.items() if name != on.subject and own & {cores.get(cpu) for cpu in held}]
    if not others:
        return on.passed(f"CPUs {cpus}, all cores its own")
    actual = f"shares cores with {', '.join(sorted(others))}"
    hint = "plan both again with smt: cores (the default), which gives whole cores"
    planned = all(name in planned_guests(on.evidence) for name in (on.subject, *others))
    if planned and any(guest.smt == "threads" for plan in on.evidence.plans for guest in plan.intent.guests):
        return on.warned(f"{actual}, as asked for", hint)
    return on.failed(actual, hint)


def _siblings(on: On) -> Finding:
    host, model = on.host, on.host.cpu_model
    expected = "every core of a kind with the same number of threads"
    on = on.reading(f"{_CPUS}/smt/control, {_CPUS}/cpu*/topology", expected)
    places = [(cpu.core, cpu.kind) for cpu in host.cpus if cpu.online]
    lost = parse_cpus(model.present if model else None) - {cpu.id for cpu in host.cpus}
    if lost or not places or any(cpu.online is None or (cpu.online and cpu.core is None) for cpu in host.cpus):
        look = f"look with: grep . {_CPUS}/cpu*/topology/thread_siblings_list"
        return on.unknown("the cores of some CPUs are unknown", look)
    shapes: dict[str | None, set[int]] = {}
    for core, kind in set(places):
        shapes.setdefault(kind, set()).add(places.count((core, kind)))
    control = model.smt_control if model else None
    word = f"SMT {control}, " if control in ("on", "off", "forceoff") else ""
    counts = ", ".join(
        f"{' or '.join(map(str, sorted(numbers)))} a core{f' ({kind})' if kind else ''}"
        for kind, numbers in sorted(shapes.items(), key=lambda row: row[0] or "")
    )
    if all(len(numbers) == 1 for numbers in shapes.values()):
        return on.passed(f"{word}threads: {counts}")
    hint = f"bring the siblings back: echo 1 > {_CPUS}/cpuN/online, or switch all off: echo off > {_CPUS}/smt/control"
    return on.warned(f"{word}threads: {counts}", hint)
