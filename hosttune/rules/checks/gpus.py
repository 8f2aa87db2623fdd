"""Checks of GPUs by their drivers: driver, status, clocks, power, heat. Memory: `gpumemory`; modes: `gpumodes`."""

from __future__ import annotations

from hosttune.gpu import hints_for, vendor_of
from hosttune.gpu.knobs import POWER_LIMIT
from hosttune.gpu.vendor import Vendor
from hosttune.model import sysfs
from hosttune.model.gpu import Gpu
from hosttune.model.pci import for_vfio
from hosttune.rules.checks.facts import RECORD, lacks, wanted
from hosttune.rules.checks.gpufacts import by_driver, complete, fact, function, gpu_check, module_version, reset_hint
from hosttune.rules.checks.on import On
from hosttune.rules.engine import Finding


@gpu_check(
    "gpu-driver",
    title="The GPU's driver holds it and answers",
    about="each GPU",
    why="A GPU that its driver does not list is lost; a module and a library of two versions fail every program",
    source="nvml.h: NVML_ERROR_LIB_RM_VERSION_MISMATCH; Documentation/driver-api/vfio.rst",
)
def gpu_driver(on: On, gpu: Gpu) -> Finding:
    vendor, device = vendor_of(gpu.vendor), function(on, gpu)
    own = vendor.driver if vendor and vendor.driver else None
    held = device.driver if device else None
    where = sysfs.function(gpu.address, "driver")
    on = on.reading(where, f"held by {own or 'its driver'}, which answers; or by vfio-pci for a guest")
    if for_vfio(held):
        on.skip(f"on {held}, for a guest: only PCI of it can be read here (hosttune validate --guest in there)")
    if held is None and lacks(on.evidence, where):
        return on.warned("no driver", f"modprobe {own or 'the driver'}; or apply a plan that gives it to a guest")
    held = on.need(held, "which driver holds it", where)
    if vendor is None or own is None:
        on.skip(f"held by {held}; nothing is known of this maker's driver")
    if held != own:
        return on.failed(f"held by {held}", f"unbind {held} and load {own}, or give the GPU to a guest")
    return _answers(on, gpu, vendor)


def _answers(on: On, gpu: Gpu, vendor: Vendor) -> Finding:
    """Judge whether the maker's driver, which holds the GPU, reports it, and is of its library's version."""
    own, hints = vendor.driver, vendor.hints
    loaded, library = module_version(on, own), gpu.driver_version
    mismatch = next((p.why for p in on.host.problems if "version mismatch" in p.why.casefold()), None)
    if loaded and library and loaded != library:
        mismatch = mismatch or f"module {loaded}, library {library}"
    if mismatch is not None:
        hint = f"reboot, or reload {own}, so that module and library are of one version"
        return by_driver(on, gpu, "nvmlInit").failed(mismatch, hint)
    text = f"{own} {library or loaded or 'of unknown version'}"
    if gpu.source not in (None, "sysfs") or library is not None:
        if vendor.queries and (library is None or (loaded is None and vendor.module_version)):
            lacking = "its module's version" if loaded is None else "its library's version"
            hint = f"compare /sys/module/{own}/version with {hints.tool}"
            on.give_up(f"{text}; {lacking} was not read, and both must agree", hint)
        complete(on, gpu, text, "memory_bytes", of_sisters=True)
        return by_driver(on, gpu, "nvmlSystemGetDriverVersion").passed(text)
    if on.evidence.complete and any(
        other.vendor == gpu.vendor and other.source not in (None, "sysfs") for other in on.host.gpus
    ):
        hint = f"look for {hints.lost} in the kernel log; power-cycle the host if the GPU is off the bus"
        return by_driver(on, gpu).failed(f"held by {own}, which lists other GPUs and not this one", hint)
    hint = hints.unreported if on.evidence.complete else RECORD
    return on.unknown(f"held by {text}, and {hints.reporters} reported it", hint)


@gpu_check(
    "gpu-status",
    title="The driver asks for no reset",
    about="each GPU",
    why="After some errors a GPU works on until it is reset, with results that cannot be trusted",
    source="nvml.h: nvmlDeviceGpuRecoveryAction_t; Documentation/ABI/testing/sysfs-driver-habanalabs: status",
    expected="operational, nothing asked for",
)
def gpu_status(on: On, gpu: Gpu) -> Finding:
    vendor = vendor_of(gpu.vendor)
    if vendor is not None and "status" in vendor.tells:
        on = by_driver(on, gpu)
        status = fact(on, gpu, "status")
        if status == "operational":
            return on.passed(status)
        return on.failed(status, f"{hints_for(gpu).reset}, or power-cycle the host")
    on = by_driver(on, gpu, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", "no recovery asked for")
    action = fact(on, gpu, "recovery_action")
    if action == "none":
        return on.passed(action)
    return on.failed(action, "reboot the host" if "reboot" in action else reset_hint(gpu))


# --- clocks and power ----------------------------------------------------------------------------------------

_HELD_DOWN = {
    "hw_slowdown": "hardware slowdown: too hot, or the power brake is active",
    "hw_thermal_slowdown": "too hot",
    "hw_power_brake_slowdown": "the power brake is active: power supplies or the BMC ask for less power",
}


@gpu_check(
    "clock-reasons",
    title="Nothing holds the clocks down",
    about="each GPU",
    why="A GPU that is too hot or under power brake runs at a fraction of its clock, without other signs",
    source="nvml.h: nvmlClocksEventReasons",
    expected="not slowed down by hardware or heat",
)
def clock_reasons(on: On, gpu: Gpu) -> Finding:
    """Judge clock reasons: bits 0x8, 0x40 and 0x80 fail, 0x20 warns; idle, power cap, application clocks are normal."""
    on = by_driver(on, gpu, "nvmlDeviceGetCurrentClocksEventReasons")
    reasons = fact(on, gpu, "clock_reasons")
    actual = ", ".join(reasons) or "no reason"
    held = [name for name in reasons if name in _HELD_DOWN]
    if held:
        # hw_slowdown is the sum of the other two, so the text names them where they are reported.
        named = [_HELD_DOWN[name] for name in held if name != "hw_slowdown" or len(held) == 1]
        cool = "check power supplies, the BMC's power cap, fans and air flow; nvidia-smi -q -d PERFORMANCE shows it go"
        return on.failed(f"{actual} ({'; '.join(named)})", cool)
    if "sw_thermal_slowdown" in reasons:
        return on.warned(actual, "check fans, air flow and the inlet temperature")
    return on.passed(actual)


@gpu_check(
    "application-clocks",
    title="Application clocks at the board's default",
    about="each GPU",
    why="Clocks that were lowered for a test stay lowered while the driver is loaded",
    source="nvml.h: nvmlDeviceGetApplicationsClock",
    expected="the board's default",
)
def application_clocks(on: On, gpu: Gpu) -> Finding:
    now, default = fact(on, gpu, "application_clock_mhz"), fact(on, gpu, "default_application_clock_mhz")
    on = by_driver(on, gpu, "nvmlDeviceGetApplicationsClock", f"at least {default:g} MHz, the board's default")
    if now >= default:
        return on.passed(f"{now:g} MHz")
    return on.warned(f"{now:g} MHz", f"nvidia-smi -i {gpu.address} --reset-applications-clocks")


@gpu_check(
    "power-limit",
    title="Power limit as planned, else the board's default",
    about="each GPU",
    why="A limit below the board's own costs clock under load",
    source="nvml.h: nvmlDeviceGetPowerManagementLimit; Documentation/gpu/amdgpu/thermal.rst: power1_cap",
    expected="the board's default",
)
def power_limit(on: On, gpu: Gpu) -> Finding:
    now, default = fact(on, gpu, "power_limit_watts"), fact(on, gpu, "power_default_watts")
    want = wanted(on.evidence, POWER_LIMIT).get(gpu.address)
    planned = isinstance(want, int | float)
    target: float = want if isinstance(want, int | float) else default
    expected = f"{target:g} W, as planned" if planned else f"at least {target:g} W, the board's default"
    on = by_driver(on, gpu, "nvmlDeviceGetPowerManagementLimit", expected)
    if now == target or (now > target and not planned):
        return on.passed(f"{now:g} W")
    command, plan = hints_for(gpu).set_power, "plan with settings.power_limit_watts"
    return on.warned(f"{now:g} W", f"{command} {target:g}; or {plan}" if command else plan)


@gpu_check(
    "gpu-temperature",
    title="Not near the temperature at which it slows down",
    about="each GPU",
    why="Heat at rest means fans, air flow or a cold plate that fail under load",
    source="nvml.h: nvmlDeviceGetMarginTemperature; Documentation/gpu/amdgpu/thermal.rst: temp1_crit",
    expected="below the temperature at which it slows down",
)
def gpu_temperature(on: On, gpu: Gpu) -> Finding:
    """Judge how many degrees are left: by the driver's own margin and by the limit; the smaller number counts."""
    on = by_driver(on, gpu, "nvmlDeviceGetTemperature")
    now, limit = fact(on, gpu, "temperature_c"), gpu.temperature_slowdown_c
    by_limit = limit - now if limit is not None and limit > 0 else None  # a limit below 0 is a margin, no temperature
    margins = [margin for margin in (gpu.temperature_margin_c, by_limit) if margin is not None]
    if not margins:
        on.give_up(f"{now:g} °C; no limit reported", f"{hints_for(gpu).heat} shows the limits")
    actual = f"{now:g} °C, {min(margins):g} °C left"
    complete(on, gpu, actual, "temperature_margin_c", of_sisters=True)
    if min(margins) > 0:
        return on.passed(actual)
    return on.warned(actual, "check fans, air flow and the inlet temperature")
