"""Knobs of the GPUs that stay with the host and its drivers; one action for each GPU, by its address. Pure.

A GPU that an existing or planned guest has is not changed here: the guest gets the wanted values through its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hosttune.gpu.knobs import MOST_WATTS, PERSISTENCE
from hosttune.gpu.settings import (
    DRIVER_KNOBS,
    NO_KNOBS,
    GpuComputeMode,
    GpuEcc,
    GpuMigMode,
    GpuPersistence,
    GpuPowerLimit,
    GpuSetting,
    out_of_range,
)
from hosttune.knobs.knob import BY_NAME, HOST, Change, Knob, KnobContext, actions_for, make_action, wanted
from hosttune.model.gpu import Gpu
from hosttune.model.plan import Action, PlanFinding

Found = Iterable[Change | PlanFinding]
_MIGS_OWN = "while MIG is enabled, each MIG device has a compute mode of its own"


def _known(name: str, setting: type[GpuSetting], compare: Callable[[Gpu, Any], Found]) -> Callable[[Gpu, Any], Found]:
    """Return a comparison that runs only if the GPU's current value is known."""

    def changes(gpu: Gpu, value: Any) -> Found:
        if setting.of_gpu(gpu) is None:
            return (_left_alone(name, gpu, "is unknown, or it has none"),)
        return compare(gpu, value)

    return changes


def _left_alone(name: str, gpu: Gpu, why: str) -> PlanFinding:
    return PlanFinding(level="warn", text=f"its {name} {why}: left alone", where=gpu.address)


def _word(setting: type[GpuSetting]) -> Callable[[Gpu, Any], Found]:
    """Return the comparison for a setting that has the same values as the intent."""
    return lambda gpu, value: (Change(gpu.address, setting.of_gpu(gpu), value),)


def _power_limit(gpu: Gpu, value: Any) -> Found:
    """Compare the power limit. `true` means the board's default limit; a limit that was raised is not lowered to it."""
    now, default = gpu.power_limit_watts, gpu.power_default_watts
    if value is True:
        if default is None or now is None:
            yield _left_alone("power_limit_watts", gpu, "has an unknown default")
        elif now < default:
            yield Change(gpu.address, now, default)
    elif (why := out_of_range(gpu, value)) is not None:
        yield _left_alone("power_limit_watts", gpu, f"stays: {why}")
    else:
        yield Change(gpu.address, now, float(value))


def _compute_mode(gpu: Gpu, value: Any) -> Found:
    if gpu.mig_on:
        yield _left_alone("compute_mode", gpu, f"stays: {_MIGS_OWN}")
    else:
        yield from _word(GpuComputeMode)(gpu, value)


def _ecc(gpu: Gpu, value: Any) -> Found:
    """Compare the ECC mode, also if only the pending mode differs: the current mode lasts only until the reboot."""
    mode = value == "enabled"
    if not mode:
        text = "ecc: disabled: its memory corrects and reports no wrong bit, and whoever uses it next has it so too"
        yield PlanFinding(level="warn", text=text, where=gpu.address)
    if gpu.ecc is mode and gpu.ecc_pending not in (None, mode):
        # The action's current value is the mode in use now, which here is the wanted one.
        yield Change(gpu.address, gpu.ecc, mode, always=True)
    else:
        yield Change(gpu.address, gpu.ecc, mode)


def _knob(
    name: str,
    setting: type[GpuSetting],
    compare: Callable[[Gpu, Any], Found] | None = None,
    **declared: Any,
) -> Knob[Gpu]:
    known = _known(name, setting, compare or _word(setting))
    source = "the maker's management library: see its module in hosttune.gpu"
    return Knob(name=name, setting=setting, changes=known, source=source, **declared)


MIG_MODE = _knob(
    "mig_mode",
    GpuMigMode,
    profiles=BY_NAME,
    value="enabled",
    values=("enabled", "disabled"),
    false_means="disabled",
    sets="MIG mode of the GPUs that stay with the host, by name only; disruptive, the driver resets the GPU",
    why="asked for by name: settings.mig_mode; the driver resets the GPU",
)
ECC = _knob(
    "ecc",
    GpuEcc,
    _ecc,
    profiles=BY_NAME,
    value="enabled",
    values=("enabled", "disabled"),
    false_means="disabled",
    sets="ECC of the GPUs that stay with the host, by name only; disruptive, takes effect with a reset or the next"
    " boot",
    why="asked for by name: settings.ecc; takes effect with the GPU's next reset or the next boot",
)
PERSISTENCE_MODE = _knob(
    "persistence",
    GpuPersistence,
    profiles=HOST,
    value=True,
    sets="persistence mode of the GPUs that stay with the host",
    why="without it the driver releases a GPU that is not in use, and its settings are lost",
)
POWER_LIMIT = _knob(
    "power_limit_watts",
    GpuPowerLimit,
    _power_limit,
    profiles=HOST,
    value=True,
    numbers=range(1, MOST_WATTS + 1),
    sets="power limit of the GPUs that stay with the host",
    takes="`true`: the board's own limit, where the one in force is below it; a number of watts within the board's"
    " range, such as `600`",
    why="the limit in force is below the board's own",
)
COMPUTE = _knob(
    "compute_mode",
    GpuComputeMode,
    _compute_mode,
    profiles=BY_NAME,
    value="default",
    values=("default", "exclusive_process", "prohibited"),  # the modes of nvmlComputeMode_t
    sets="compute mode of the GPUs that stay with the host, by name only",
    why="asked for by name: settings.compute_mode",
)
# In the order of applying: a knob that may reset the GPU comes before the knobs whose values a reset loses.
KNOBS = (MIG_MODE, ECC, PERSISTENCE_MODE, POWER_LIMIT, COMPUTE)


def plan_gpus(ctx: KnobContext) -> Iterator[Action | PlanFinding]:
    """Yield the actions for the GPUs that the host keeps, and findings for values that are unknown or cannot be set."""
    knobs = [knob for knob in KNOBS if wanted(ctx.intent, knob) is not None]
    if COMPUTE in knobs and wanted(ctx.intent, MIG_MODE) == "enabled":
        knobs.remove(COMPUTE)
        text = f"{_MIGS_OWN}, and settings.mig_mode enables it: compute_mode is not changed"
        yield PlanFinding(level="warn", text=text, where="settings.compute_mode")
    unset: dict[str, list[str]] = {}
    for gpu in _kept(ctx) if knobs else ():
        function = ctx.devices.pci.get(gpu.address)
        driver = (function.driver if function else None) or ""
        if driver in DRIVER_KNOBS:
            settable = [knob for knob in knobs if knob.setting.kind in DRIVER_KNOBS[driver].writers]
            yield from actions_for(ctx.intent, settable, (gpu,), every=ctx.every)
        elif driver in NO_KNOBS:
            unset.setdefault(driver, []).append(gpu.address)
    names = ", ".join(knob.name for knob in knobs)
    for driver, addresses in unset.items():
        text = f"{names} of {', '.join(addresses)} left alone: {NO_KNOBS[driver]}"
        yield PlanFinding(level="info", text=text, where=f"driver {driver}")


def release_actions(gpu: Gpu | None, driver: str | None) -> Iterator[Action]:
    """Yield what must be set before a GPU's driver can release it: an unbind hangs while persistence mode is on."""
    known = DRIVER_KNOBS.get(driver or "")
    if gpu is not None and gpu.persistence and known is not None and PERSISTENCE in known.writers:
        why = "the driver cannot release a GPU while its persistence mode is on"
        yield make_action(PERSISTENCE, gpu.address, True, False, why, needed=True)


def _kept(ctx: KnobContext) -> Iterator[Gpu]:
    """Yield the accelerators of which no guest has the GPU or one of its virtual functions, in the host's order."""
    for gpu in ctx.host.index.accelerators:
        functions = (gpu.address, *ctx.devices.virtuals.get(gpu.address, ()))
        if ctx.given.isdisjoint(functions):
            yield gpu
