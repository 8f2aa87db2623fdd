"""Causes in the GPU itself: power, heat, clocks, memory, and a part of a GPU instead of a whole one."""

from __future__ import annotations

import re

from hosttune.rules.causes.rule import CLOCKS, ON_GPU, PRODUCTS, WORK, Case, first_kept, observed, rule, supports
from hosttune.rules.causes.rules_guest import several_alike
from hosttune.rules.causes.verdicts import IDLE, LOADED, SLOWEST_CLOCK, Judged
from hosttune.rules.engine import Finding

# Of the largest clock; of a power limit: reached, too little for it to act, held by something else under full load; so
# near to a part of the typical figure that it counts as that part.
_LEAST_CLOCK, _NEAR_LIMIT, _BELOW_LIMIT, _HELD, _NEAR_PART = 0.9, 0.97, 0.85, 0.5, 0.04
_LONG = r"(?i)\b(?:after a long|hours? later|minutes? later|after (?:\d+|several|some) (?:minutes|hours))\b"
_HELD_CLOCK = 0.6  # of the clock of another run
_WORKING_CLOCK = 1000.0  # MHz; products run at more on V100 (boost 1,530), A100 (1,410) and H100 (1,980)
_FULL_LOAD = r"(?i)(?:full|sustained) load|burn|stress|gemm|matmul|product"  # what takes a board to its limit
_REFRESHED = 0.6  # of the bound: refreshing twice as often does not cost more
_REASONS = "nvml.h, clocks event reasons"


@rule(
    "power-cap",
    tier="run",
    source=f"{_REASONS}: SW power cap; the limit is below the board's default, or the load needs more",
    remedy="set the board's default limit (hosttune plan, settings.power_limit_watts); at the default it is the"
    " board's design",
    confirm="power, limit and clock reasons during the run: hosttune validate --level 2 (load-power, load-sm-clock)",
    unread=("power_capped", (*PRODUCTS, "sm-clock"), "the reason of the clocks was not read", "possible"),
)
def power(case: Case) -> Finding | None:
    """Power limits the clocks."""
    seen, words = case.seen, []
    limit, at_limit = _at_limit(case)
    drawn = max((v.value or 0 for v in _drawn(case)), default=limit)
    if case.lowered and drawn >= limit * _BELOW_LIMIT:
        of = "default" if seen.default_power_limit_watts else "by the data sheet"
        lowered = f"power limit {seen.power_limit_watts:g} W, {of} {case.board_watts or 0:g} W"
        words.append(case.told("power_limit_watts", lowered))
    # At the board's own limit it is normal, and no fault where products are as they should be.
    if seen.power_capped and not any(v.verdict == "expected" for v in case.figures if v.figure.metric in PRODUCTS):
        words.append("the power limit lowers the clocks")
    about = case.about((*CLOCKS, *WORK, "device-copy"))
    if words:
        return observed(case, "; ".join(words), about)
    low = case.low((*CLOCKS, *WORK)) or (
        about if 0 < (seen.sm_clock_mhz or 0) < (seen.max_sm_clock_mhz or 0) * _LEAST_CLOCK else ()
    )
    if at_limit and low:
        return supports("fits", (f"{at_limit[0].name}: {at_limit[0].value:g} W of {limit:g} W",), low)
    return _held(case)


def _at_limit(case: Case) -> tuple[float, list[Judged]]:
    """Return the power limit, else that of such boards, in W, 0 if unknown, and the figures of power that reach it."""
    limit = 0 if case.seen.power_capped is False else case.seen.power_limit_watts or case.board_watts or 0
    return limit, [judged for judged in _drawn(case) if limit and (judged.value or 0) >= limit * _NEAR_LIMIT]


def _drawn(case: Case) -> list[Judged]:
    """Return the figures of power of GPUs that work."""
    power = (judged for judged in case.figures if judged.figure.metric == "power" and judged.value)
    return [judged for judged in power if not IDLE.search(judged.figure.subject[:400])]


def _held(case: Case) -> Finding | None:
    """Return power far below the limit, or below that of equals, under a load that takes all of it."""
    limit = case.seen.power_limit_watts or case.board_watts or 0
    held = [
        judged
        for judged in _drawn(case)
        if (judged.value or 0) <= limit * _HELD and re.search(_FULL_LOAD, judged.figure.subject[:400])
    ]
    words = [f"{judged.name}: {judged.value:g} W under full load, of {limit:g} W" for judged in held]
    apart = case.apart(("power", *PRODUCTS, *WORK))
    words += [f"{judged.name}: {judged.apart}" for judged in apart]
    return supports("fits", words, (*held, *apart)) if words else None


@rule(
    "thermal",
    tier="run",
    source=f"{_REASONS}: SW and HW thermal slowdown",
    remedy="check fans, air flow and water; then hosttune validate (gpu-temperature)",
    confirm="temperature and clock reasons during the run: hosttune validate --level 2 (load-temperature)",
    fault_itself=True,
    unread=("thermal_slowdown", (*PRODUCTS, "sm-clock"), "whether heat lowers the clocks was not read", "possible"),
)
def heat(case: Case) -> Finding | None:
    """Heat limits the clocks."""
    if case.seen.thermal_slowdown is not None:
        words = case.told("thermal_slowdown", "thermal slowdown is active")
        return observed(case, words, case.about((*CLOCKS, *WORK, *ON_GPU))) if case.seen.thermal_slowdown else None
    if fallen := _of_heat(case):
        return supports("fits", (fallen[0],), fallen[1])
    low = case.low(("device-copy",))
    slowed = all(judged.value and judged.bound and judged.value > judged.bound * _REFRESHED for judged in low)
    if low and slowed and not several_alike(case, ("device-copy",)):
        return supports("possible", ("hot memory is refreshed more often; its temperature was not read",), low)
    return _held(case)


def _of_heat(case: Case) -> tuple[str, tuple[Judged, ...], str] | None:
    """Return figures of a warm GPU that are below those of a cold one, or low clocks of one that worked for long."""
    long = tuple(judged for judged in case.low(("sm-clock",)) if re.search(_LONG, judged.figure.subject[:400]))
    return case.contrast("thermal") or ((f"{long[0].name}: {long[0].why}", long, "") if long else None)


@rule(
    "clocks-limited",
    source="nvmlDeviceGetApplicationsClock, nvmlDeviceSetGpuLockedClocks: clocks that were set stay until they are"
    " reset",
    remedy="reset application and locked clocks with the maker's tool; hosttune validate (application-clocks)",
    confirm="SM clock during the run against its maximum: hosttune validate --level 2 (load-sm-clock)",
    unless=("power-cap", "thermal"),
    unread=("sm_clock_mhz", PRODUCTS, "the SM clock during the run was not read", "possible"),
)
def clocks(case: Case) -> Finding | None:
    """Clocks were set below the maximum."""
    now, most = case.seen.sm_clock_mhz, case.seen.max_sm_clock_mhz
    about = case.about((*CLOCKS, *WORK))
    reasoned = _at_limit(case)[1] or _of_heat(case)  # power or heat lowers them
    words = tuple(f"{verdict.name}: {verdict.why}" for verdict in case.low(("sm-clock",)))
    if now is not None and most is not None:
        words = (f"SM clock {now:g} of {most:g} MHz",) if now < most * _LEAST_CLOCK else ()
        return observed(case, words[0], () if reasoned else about, weak=about) if words else None
    if words:
        return supports("indirect" if reasoned else "observed", words, about)
    clocks = [v for v in case.figures if v.figure.metric == "sm-clock" and v.value]
    fastest = max((judged.value or 0 for judged in clocks), default=0)
    held = [  # products take more power than other work, which lowers their clock
        judged for judged in clocks
        if case.written and SLOWEST_CLOCK < (judged.value or 0) < fastest * _HELD_CLOCK
        and re.search(rf"{LOADED.pattern}|\bbench", judged.figure.subject[:400])
        and not re.search(_FULL_LOAD, judged.name) and not IDLE.search(judged.figure.subject[:400])
    ]  # fmt: skip
    if held and not reasoned:
        return supports("fits", (f"{held[0].name}: {held[0].value:g} MHz, another run {fastest:g}",), tuple(held))
    slow = [v for v in clocks if (v.value or 0) < _WORKING_CLOCK]
    if slow and case.low(PRODUCTS):
        return supports("fits", (f"{slow[0].name}: {slow[0].value:g} MHz",), case.low(PRODUCTS))
    return _held(case)


@rule(
    "mig-slice",
    source="MIG user guide, Supported MIG Profiles: a profile Ng.Mgb has N of 7 compute slices",
    remedy="compare with the slice's part of the GPU, or give the guest the whole GPU (gpus instead of mig)",
    confirm="the MIG mode and the instances of the GPU: hosttune discover",
)
def slice_of_gpu(case: Case) -> Finding | None:
    """The figure is of a part of a GPU."""
    slices, shape = case.shape.slices, case.shape
    if slices is not None:
        limits = [
            (peak * slices[0] / slices[1], f"{slices[0]} of {slices[1]} slices")
            for peak in (shape.peaks.get("bf16"), shape.peaks.get("fp8"), shape.peaks.get("memory")) if peak
        ]  # fmt: skip
        return observed(
            case, f"{shape.gpu} is a part of a GPU", case.about((*ON_GPU, *WORK)), first_kept(case.low(ON_GPU), limits)
        )
    if re.search(r"\bMIG\b", shape.gpu or ""):
        return observed(case, f"{shape.gpu} is a part of a GPU", case.about((*ON_GPU, *WORK)))
    for verdict in case.low(ON_GPU):  # half of the memory is also what counts only one direction
        copy = verdict.figure.metric == "device-copy"
        for count in (1, 2) if copy else (1, 2, 3, 4):
            part = (verdict.typical or 0) * count / (8 if copy else 7)
            if part and verdict.value and abs(verdict.value / part - 1) <= _NEAR_PART:
                words = f"{verdict.name} is {count} of {8 if copy else 7} parts of the typical figure"
                return supports("fits", (words,), (verdict,))
    return None


@rule(
    "ecc-or-row-remap",
    source="GPU memory error management guide: ECC kept in the memory itself costs bandwidth on boards without HBM",
    remedy="hosttune validate (ecc-errors, row-remap); a row remap that waits needs a reset",
    confirm="counters of ECC errors and remapped rows: hosttune validate",
)
def memory_errors(case: Case) -> Finding | None:
    """Memory errors or their correction take bandwidth."""
    if apart := case.apart(("device-copy",)):
        return supports("fits", tuple(f"{judged.name}: {judged.apart}" for judged in apart), apart)
    low = case.low(("device-copy",))
    alike = not low or several_alike(case, ("device-copy",))
    return None if alike else supports("possible", ("counters of memory errors were not read",), low)
