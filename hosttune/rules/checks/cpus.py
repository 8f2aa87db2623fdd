"""Checks of CPU settings: governor and energy preference, idle states, SMT; judged on the CPUs that guests use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hosttune.knobs.cpus import ENERGY_PREFERENCE, GOVERNOR, PREFERENCE_DRIVERS
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import Cpu
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet, parse_cpus
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import HOST, RECORD, lacks, pinned, planned_guests, refused, spread, wanted

_CPUS = sysfs.CPUS

# The words that the kernel writes into these files: admin-guide/pm/cpufreq (governors), intel_pstate (a preference is
# a word, or a number from 0 to 255). Any other word means that the file was not read correctly.
_WORDS = {
    "governor": frozenset(map(str, GOVERNOR.values)),
    "energy-preference": frozenset(map(str, ENERGY_PREFERENCE.values)) | {str(number) for number in range(256)},
}


def _cpu_subjects(evidence: Evidence) -> Iterable[tuple[str, tuple[Cpu, ...]]]:
    """Yield (subject, its CPUs): each guest with pins; if there is none, the host with all CPUs that are online."""
    online = tuple(cpu for cpu in evidence.host.cpus if cpu.online)
    guests = pinned(evidence)
    if not guests:
        yield HOST, online
    for name, cpus in guests.items():
        yield name, tuple(cpu for cpu in online if cpu.id in cpus)


def _asked_for(evidence: Evidence, kind: str, cpus: Sequence[Cpu]) -> set[str]:
    """Return the values that applied plans set for these CPUs."""
    ids = {cpu.id for cpu in cpus}
    found = set()
    for target, want in wanted(evidence, kind).items():
        listed = CpuSet.parse(target.removeprefix("cpus ")) if target.startswith("cpus ") else CpuSet()
        if listed & ids:
            found.add(str(want))
    return found


# --- frequency -----------------------------------------------------------------------------------------------


def cpu_frequency(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the governor, or the energy preference where the driver supports one, and the limits of clocks."""
    check = "cpu-frequency"
    model = evidence.host.cpu_model
    driver = model.scaling_driver if model else None
    for subject, cpus in _cpu_subjects(evidence):
        known = [cpu for cpu in cpus if cpu.governor is not None]
        if not known:
            yield _no_frequency(evidence, check, subject, cpus)
            continue
        if driver in PREFERENCE_DRIVERS:
            found = _preference(evidence, check, subject, known, driver or "")
        else:
            found = _governor(evidence, check, subject, known, driver)
        yield _whole(_limited(evidence, found, known, driver), cpus, known, "cpufreq/scaling_governor")


def _whole(found: CheckResult, cpus: Sequence[Cpu], known: Sequence[Cpu], file: str) -> CheckResult:
    """Return a result for CPUs of which only some were read: a failure stays a failure; all else becomes unknown."""
    unread = CpuSet({cpu.id for cpu in cpus} - {cpu.id for cpu in known})
    if not unread or found.outcome in ("fail", "unknown"):
        return found
    why = f"{found.actual}; of CPUs {unread} it was not read"
    hint = f"look with: grep . {_CPUS}/cpu*/{file}"
    return unknown(found.check, found.subject, expected=found.expected or "", why=why, hint=hint, source=found.source)


def _paths(cpus: Sequence[Cpu], file: str) -> list[str]:
    return [f"{_CPUS}/cpu{cpu.id}/{file}" for cpu in cpus]


def _no_frequency(evidence: Evidence, check: str, subject: str, cpus: Sequence[Cpu]) -> CheckResult:
    path = f"{_CPUS}/cpu{cpus[0].id if cpus else 0}/cpufreq/scaling_governor"
    if cpus and lacks(evidence, *_paths(cpus, "cpufreq/scaling_governor")) and not refused(evidence, "/cpufreq"):
        why = "no frequency driver here: the hypervisor sets the clock" if evidence.host.hypervisor else (
            "no frequency driver here: the firmware sets the clock by itself"
        )  # fmt: skip
        return skipped(check, subject, why)
    why = refused(evidence, "/cpufreq") or "no governor was recorded"
    hint = f"look with: grep . {_CPUS}/cpu*/cpufreq/scaling_governor"
    return unknown(check, subject, expected="performance", why=why, hint=hint, source=path)


def _preference(evidence: Evidence, check: str, subject: str, cpus: Sequence[Cpu], driver: str) -> CheckResult:
    """Judge the energy preference. With a driver that supports it, governor performance has the same effect as
    preference performance."""
    source = f"{_CPUS}/cpu*/cpufreq/energy_performance_preference"
    expected = f"energy preference performance ({driver})"
    unread = CpuSet(cpu.id for cpu in cpus if cpu.energy_preference is None and cpu.governor != "performance")
    # Hardware without EPP leaves the choice to the governor alone (intel_pstate, "without HWP").
    if unread:
        if lacks(evidence, *_paths(cpus, "cpufreq/energy_performance_preference")):
            return _governor(evidence, check, subject, cpus, f"{driver} without a preference")
        why = refused(evidence, "energy_performance_preference") or f"no preference was recorded of CPUs {unread}"
        return unknown(check, subject, expected=expected, why=why, hint=f"look with: grep . {source}", source=source)
    values = [("performance" if c.governor == "performance" else c.energy_preference or "", c.id) for c in cpus]
    return _judged(evidence, check, subject, values, "energy-preference", expected, source, ())


def _governor(evidence: Evidence, check: str, subject: str, cpus: Sequence[Cpu], driver: str | None) -> CheckResult:
    """Judge the governor. powersave keeps the lowest frequency with a driver that does not scale it itself."""
    source = f"{_CPUS}/cpu*/cpufreq/scaling_governor"
    values = [(cpu.governor or "", cpu.id) for cpu in cpus]
    bad = () if (driver or "").startswith(("intel_pstate", "amd")) else ("powersave",)
    return _judged(evidence, check, subject, values, "governor", f"governor performance ({driver})", source, bad)


def _judged(
    evidence: Evidence, check: str, subject: str, values: list[tuple[str, int]], kind: str, expected: str, source: str,
    bad: Sequence[str],
) -> CheckResult:  # fmt: skip
    """Compare `values` by CPU with performance and with applied plans: values in `bad` fail, other deviations warn."""
    ids = {cpu for _, cpu in values}
    asked = _asked_for(evidence, kind, [cpu for cpu in evidence.host.cpus if cpu.id in ids])
    actual = spread(values)
    found = {value for value, _ in values}
    if found <= {"performance", *asked}:
        suffix = "" if found <= {"performance"} else ", as the applied plan asks"
        return passed(check, subject, expected=expected, actual=actual + suffix, source=source)
    file = source.rpartition("/")[2]
    hint = (
        f"plan with profile guest and apply (setting {kind.replace('-', '_')}), or echo performance into {file} of"
        " these CPUs"
    )
    if found & set(bad):
        return failed(check, subject, expected=expected, actual=actual, source=source, hint=hint)
    if strange := found - _WORDS[kind] - asked:
        why = f"{spread(values)}: no {kind.replace('-', ' ')} is named {', '.join(sorted(strange))[:40]}"
        return unknown(check, subject, expected=expected, why=why, hint=f"look with: grep . {source}", source=source)
    return warned(check, subject, expected=expected, actual=actual, source=source, hint=hint)


def _limited(evidence: Evidence, found: CheckResult, cpus: Sequence[Cpu], driver: str | None) -> CheckResult:
    """Add what limits clocks. A limit below the highest clock warns, one that was not read is unknown.

    Turbo that is off is only said: operators switch it off on purpose, so that clocks do not vary.
    """
    low, unread = _limits(evidence, cpus)
    percent = evidence.clocks.percent if evidence.clocks else None
    if percent is not None and percent < 100:
        hint = f"find what sets it, or echo 100 > {sysfs.MAX_PERF_PERCENT}"
        low.append((f"performance of all CPUs limited to {percent} %", hint))
    elif percent is None and driver in (None, "intel_pstate", "intel_cpufreq"):
        unread += [] if lacks(evidence, sysfs.MAX_PERF_PERCENT) else ["max_perf_pct was not read"]
    boost = next((fact for fact in evidence.configuration or () if fact.name == "boost"), None)
    turbo = [f"turbo is off ({boost.source})"] if boost is not None and boost.value == "off" else []
    said = [*filter(None, [found.actual]), *(text for text, _ in low), *turbo]
    hint = "; ".join([*filter(None, [found.hint]), *(hint for _, hint in low)])
    expected = f"{found.expected}, no limit below the highest clock"
    source = f"{_CPUS}/cpu*/cpufreq/{{scaling,cpuinfo}}_max_freq"
    if unread and found.outcome not in ("fail", "unknown"):
        look = f"look with: grep . {source} {sysfs.MAX_PERF_PERCENT}" if evidence.complete else RECORD
        why = "; ".join([*said, *unread])
        return unknown(found.check, found.subject, expected=expected, why=why, hint=look, source=source)
    actual = "; ".join(said)
    if low and found.outcome == "pass":
        return warned(found.check, found.subject, expected=expected, actual=actual, source=source, hint=hint)
    return msgspec.structs.replace(found, actual=actual, hint=hint or None)


def _limits(evidence: Evidence, cpus: Sequence[Cpu]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the limits of these CPUs' clocks that are below the highest clock, with a hint; and what was not read."""
    rows = evidence.clocks.limits if evidence.clocks else ()
    by_cpu = {cpu: (row.limit_khz, row.highest_khz) for row in rows for cpu in CpuSet.parse(row.cpus)}
    step = table("limits")["clock"]["step_khz"]
    low: list[tuple[str, int]] = []
    unread: list[int] = []
    for cpu in cpus:
        limit, highest = by_cpu.get(cpu.id, (None, None))
        if limit is None or not highest:
            unread.append(cpu.id)
        elif limit + step < highest:
            low.append((f"{limit // 1000} of {highest // 1000} MHz", cpu.id))
    hint = (
        "find what sets scaling_max_freq of these CPUs (TuneD, cpupower, a power manager, the firmware), or echo the"
        " highest clock into it"
    )
    whom = "" if len(low) == len(cpus) else f"of CPUs {CpuSet(cpu for _, cpu in low)} "
    found = [(f"clock {whom}limited to {spread(low)}", hint)] if low else []
    return found, [f"the limit of the clock of CPUs {CpuSet(unread)} was not read"] if unread else []


# --- idle states ---------------------------------------------------------------------------------------------


def cpu_idle(evidence: Evidence) -> Iterable[CheckResult]:
    """Check how long an idle core may take to wake: limited if a plan asks for it; no idle states at all is a fault."""
    check = "cpu-idle"
    model = evidence.host.cpu_model
    for subject, cpus in _cpu_subjects(evidence):
        known = [cpu for cpu in cpus if cpu.resume_latency_us is not None]
        if known:
            found = _latency(evidence, check, subject, known, model.idle_driver if model else None)
            yield _whole(found, cpus, known, "power/pm_qos_resume_latency_us")
        elif cpus and lacks(evidence, *_paths(cpus, "power/pm_qos_resume_latency_us")):
            yield skipped(check, subject, "this kernel offers no bound on wake-up latency")
        else:
            yield unknown(
                check,
                subject,
                expected="a limit on idle states where a plan sets one",
                why=refused(evidence, "pm_qos_resume_latency_us") or "no bound was recorded",
                hint=f"look with: grep . {_CPUS}/cpu*/power/pm_qos_resume_latency_us",
            )


def _latency(evidence: Evidence, check: str, subject: str, cpus: Sequence[Cpu], driver: str | None) -> CheckResult:
    source = f"{_CPUS}/cpu*/power/pm_qos_resume_latency_us"
    asked = _asked_for(evidence, "resume-latency", cpus)
    expected = f"{' or '.join(sorted(asked))} us, as planned" if asked else "idle states, with a bound or without"
    words = {"0": "no bound", "n/a": "no idle state allowed"}
    values = [(words.get(text := cpu.resume_latency_us or "", f"{text} us"), cpu.id) for cpu in cpus]
    actual = f"{spread(values)}{f' ({driver})' if driver and driver != 'none' else ''}"
    found = {cpu.resume_latency_us for cpu in cpus}
    if asked and not found <= asked:
        hint = "see what changed it with hosttune status, then hosttune apply --intent FILE"
        return failed(check, subject, expected=expected, actual=actual, source=source, hint=hint)
    if "n/a" in found and "n/a" not in asked:
        hint = (
            "bound the latency instead (settings: resume_latency_us: 10): cores that never idle leave others no turbo"
        )
        return warned(check, subject, expected=expected, actual=actual, source=source, hint=hint)
    arguments = evidence.host.kernel_args
    if arguments is None:
        why = f"{actual}; the kernel's arguments were not read, which may switch idle states off"
        return unknown(check, subject, expected=expected, why=why, hint="look with: cat /proc/cmdline", source=source)
    if "intel_idle.max_cstate=0" in arguments:
        hint = "remove the argument: it hands idling to acpi_idle; to bound it use settings: resume_latency_us"
        text = f"{actual}; intel_idle.max_cstate=0 switches intel_idle off, not idle states"
        return warned(check, subject, expected=expected, actual=text, source="/proc/cmdline", hint=hint)
    return passed(check, subject, expected=expected, actual=actual, source=source)


# --- SMT -----------------------------------------------------------------------------------------------------


def smt(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that SMT is the same on all cores of a kind, and that no core is shared by two guests."""
    check = "smt"
    yield _siblings(evidence, check)
    guests = pinned(evidence)
    if len(guests) > 1:
        cores = {cpu.id: cpu.core for cpu in evidence.host.cpus}
        for name, cpus in guests.items():
            yield _shared(evidence, check, name, cpus, guests, cores)


def _siblings(evidence: Evidence, check: str) -> CheckResult:
    host = evidence.host
    source = f"{_CPUS}/smt/control, {_CPUS}/cpu*/topology"
    expected = "every core of a kind with the same number of threads"
    places = [(cpu.core, cpu.kind) for cpu in host.cpus if cpu.online]
    model = host.cpu_model
    present = parse_cpus(model.present if model else None)
    lost = present - {cpu.id for cpu in host.cpus}
    lost |= CpuSet(cpu.id for cpu in host.cpus if cpu.online is None)
    if lost or not places or any(core is None for core, _ in places):
        hint = f"look with: grep . {_CPUS}/cpu*/topology/thread_siblings_list"
        return unknown(
            check, HOST, expected=expected, why="the cores of some CPUs are unknown", hint=hint, source=source
        )
    threads = {place: places.count(place) for place in set(places)}
    shapes: dict[str | None, set[int]] = {}
    for (_, kind), number in threads.items():
        shapes.setdefault(kind, set()).add(number)
    control = host.cpu_model.smt_control if host.cpu_model else None
    word = f"SMT {control}, " if control in ("on", "off", "forceoff") else ""
    counts = ", ".join(
        f"{' or '.join(map(str, sorted(numbers)))} a core{f' ({kind})' if kind else ''}"
        for kind, numbers in sorted(shapes.items(), key=lambda row: row[0] or "")
    )
    if all(len(numbers) == 1 for numbers in shapes.values()):
        return passed(check, HOST, expected=expected, actual=f"{word}threads: {counts}", source=source)
    hint = f"bring the siblings back: echo 1 > {_CPUS}/cpuN/online, or switch all off: echo off > {_CPUS}/smt/control"
    return warned(check, HOST, expected=expected, actual=f"{word}threads: {counts}", source=source, hint=hint)


def _shared(
    evidence: Evidence, check: str, name: str, cpus: CpuSet, guests: dict[str, CpuSet], cores: dict[int, int | None]
) -> CheckResult:
    """Check that a guest shares no core with others (L1TF, MDS: a sibling thread can read the core's caches)."""
    source = "vcpu_pins of the guests"
    expected = "no core shared with another guest"
    own_cores = {cores.get(cpu) for cpu in cpus} - {None}
    others = [other for other, held in guests.items() if other != name and own_cores & {cores.get(cpu) for cpu in held}]
    if not others:
        return passed(check, name, expected=expected, actual=f"CPUs {cpus}, all cores its own", source=source)
    actual = f"shares cores with {', '.join(sorted(others))}"
    hint = "plan both again with smt: cores (the default), which gives whole cores"
    if all(other in planned_guests(evidence) for other in (name, *others)) and any(
        guest.smt == "threads" for plan in evidence.plans for guest in plan.intent.guests
    ):
        return warned(check, name, expected=expected, actual=f"{actual}, as asked for", source=source, hint=hint)
    return failed(check, name, expected=expected, actual=actual, source=source, hint=hint)


CHECKS = (
    Check(
        id="cpu-frequency",
        title="CPU governor, energy preference and limits of the clock",
        subjects="each guest with pinned vCPUs; without any, the host",
        why="a vCPU that waits for its core to speed up delays the GPU that waits for it",
        source=(
            "Linux Documentation/admin-guide/pm: cpufreq (scaling_max_freq), intel_pstate (max_perf_pct), amd-pstate"
        ),
        judge=cpu_frequency,
        for_guests=True,
    ),
    Check(
        id="cpu-idle",
        title="CPU idle states",
        subjects="each guest with pinned vCPUs; without any, the host",
        why="deep idle states wake late; none at all takes turbo from the other cores",
        source=(
            "Linux Documentation/ABI/testing/sysfs-devices-power (pm_qos_resume_latency_us),"
            " admin-guide/pm/cpuidle, admin-guide/kernel-parameters (intel_idle.max_cstate)"
        ),
        judge=cpu_idle,
        for_guests=True,
    ),
    Check(
        id="smt",
        title="SMT siblings",
        subjects="the host; each guest with pinned vCPUs where there are several",
        why="a core with a missing sibling breaks the guests' topology; what shares a core can read its caches",
        source="Linux Documentation/ABI/testing/sysfs-devices-system-cpu (smt), admin-guide/hw-vuln/l1tf, mds",
        judge=smt,
        for_guests=True,
    ),
)
