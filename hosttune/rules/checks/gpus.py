"""Checks of GPUs by their drivers: driver, status, clocks, power, heat. Memory: `gpumemory`; modes: `gpumodes`."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.gpu import hints_for, vendor_of
from hosttune.gpu.inside import is_vgpu
from hosttune.gpu.knobs import POWER_LIMIT
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import RECORD, accelerators, for_vfio, lacks, model_of, wanted
from hosttune.rules.checks.gpufacts import (
    Fact,
    each_gpu,
    every_gpu,
    not_judged,
    reset_hint,
    source,
    unknown_if_below_others,
)

_NVML = "NVIDIA, NVML API reference (nvml.h)"

# --- driver --------------------------------------------------------------------------------------------------

_DRIVER = "gpu-driver"


def gpu_driver(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that a driver that can report the GPU holds it and responds, and that its module and library have the same
    version."""
    functions = evidence.host.index.pci
    for gpu in accelerators(evidence.host):
        yield _driver(evidence, gpu, functions.get(gpu.address))


def _driver(evidence: Evidence, gpu: Gpu, device: PciDevice | None) -> CheckResult:
    vendor = vendor_of(gpu.vendor)
    own = vendor.driver if vendor and vendor.driver else None
    held = device.driver if device else None
    expected = f"held by {own or 'its driver'}, which answers; or by vfio-pci for a guest"
    where = sysfs.function(gpu.address, "driver")
    if for_vfio(held):
        return CheckResult(
            check=_DRIVER,
            subject=gpu.address,
            outcome="skip",
            actual=f"on {held}, for a guest: nothing of it can be read here but PCI",
            hint="hosttune validate --guest inside the guest looks at the GPU itself",
        )
    if held is None:
        hint = f"modprobe {own or 'the driver'}; or apply a plan that gives it to a guest"
        if lacks(evidence, where):
            return warned(_DRIVER, gpu.address, expected=expected, actual="no driver", source=where, hint=hint)
        return unknown(_DRIVER, gpu.address, expected=expected, why="not recorded", hint=RECORD)
    if own is None:
        return skipped(_DRIVER, gpu.address, f"held by {held}; nothing is known of this maker's driver")
    if held != own:
        hint = f"unbind {held} and load {own}, or give the GPU to a guest"
        return failed(_DRIVER, gpu.address, expected=expected, actual=f"held by {held}", source=where, hint=hint)
    return _answers(evidence, gpu, own, expected)


def _answers(evidence: Evidence, gpu: Gpu, own: str, expected: str) -> CheckResult:
    """Judge whether the maker's driver, which holds the GPU, reports it."""
    platform = evidence.host.platform
    loaded = next((module.version for module in platform.modules if module.name == own), None) if platform else None
    mismatch = next((p for p in evidence.host.problems if "version mismatch" in p.why.casefold()), None)
    conflict = loaded is not None and gpu.driver_version is not None and loaded != gpu.driver_version
    if mismatch is not None or conflict:
        actual = mismatch.why if mismatch else f"module {loaded}, library {gpu.driver_version}"
        hint = f"reboot, or reload {own}, so that module and library are of one version"
        return failed(_DRIVER, gpu.address, expected=expected, actual=actual, source=source(gpu, "nvmlInit"), hint=hint)
    is_reported = gpu.source not in (None, "sysfs") or gpu.driver_version is not None
    version = gpu.driver_version or loaded or "of unknown version"
    vendor, hints = vendor_of(gpu.vendor), hints_for(gpu)
    needed = (gpu.driver_version, *((loaded,) if vendor is not None and vendor.module_version else ()))
    if is_reported and vendor is not None and vendor.queries and None in needed:
        lacking = "its module's version" if loaded is None else "its library's version"
        why = f"{own} {version}; {lacking} was not read, and both must agree"
        hint = f"compare /sys/module/{own}/version with {hints.tool}"
        return unknown(_DRIVER, gpu.address, expected=expected, why=why, hint=hint)
    if is_reported and (less := _less_memory(evidence, gpu)) is not None:
        hint = f"{hints.show} shows the memory of each; look for {hints.lost} in the kernel log; reset the GPU"
        return unknown(_DRIVER, gpu.address, expected=expected, why=f"{own} {version}; {less}", hint=hint)
    if is_reported:
        answer = source(gpu, "nvmlSystemGetDriverVersion")
        return passed(_DRIVER, gpu.address, expected=expected, actual=f"{own} {version}", source=answer)
    others = any(other.vendor == gpu.vendor and other.source not in (None, "sysfs") for other in evidence.host.gpus)
    if others and evidence.complete:
        actual = f"held by {own}, which lists other GPUs and not this one"
        hint = f"look for {hints.lost} in the kernel log; power-cycle the host if the GPU is off the bus"
        return failed(_DRIVER, gpu.address, expected=expected, actual=actual, source=source(gpu, ""), hint=hint)
    why = f"held by {own} {version}, and {hints.reporters} reported it"
    hint = hints.unreported if evidence.complete else RECORD
    return unknown(_DRIVER, gpu.address, expected=expected, why=why, hint=hint)


def _less_memory(evidence: Evidence, gpu: Gpu) -> str | None:
    """Return what the driver reports of this GPU's memory, if it reports much more of another one of the same ids.

    Boards of the same ids have the same memory. GPUs that are divided in another way are not compared.
    """
    functions = evidence.host.index.pci
    own = functions.get(gpu.address)
    if own is None or None in model_of(own)[:4]:
        return None

    def divided(one: Gpu) -> tuple[object, ...]:
        return one.mig_on, is_vgpu(one.model), one.compute_partition, one.memory_partition

    alike = [
        one
        for one in accelerators(evidence.host)
        if (device := functions.get(one.address)) is not None
        and model_of(device) == model_of(own)
        and device.driver == own.driver
        and divided(one) == divided(gpu)
    ]
    most = max(alike, key=lambda one: one.memory_bytes or 0, default=gpu)
    if not most.memory_bytes:
        return None
    other = f"{most.memory_bytes >> 20} MiB of {most.address}, of the same ids"
    if gpu.memory_bytes is None:
        return f"its memory was not reported, and {other}"
    less = gpu.memory_bytes < most.memory_bytes - most.memory_bytes // table("limits")["gpu"]["memory_share"]
    return f"{gpu.memory_bytes >> 20} MiB of memory, and {other}" if less else None


_STATUS = Fact("gpu-status", "operational, nothing asked for", ("status",), "")
_RECOVERY = Fact("gpu-status", "no recovery asked for", ("recovery_action",), "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")


def gpu_status(evidence: Evidence) -> Iterable[CheckResult]:
    """Check what the driver itself reports: a required reset or reboot; for a Gaudi, its status."""

    def judged(gpu: Gpu, device: PciDevice | None) -> CheckResult:
        vendor = vendor_of(gpu.vendor)
        by_word = vendor is not None and "status" in vendor.tells
        fact, judge = (_STATUS, _status) if by_word else (_RECOVERY, _recovery)
        return not_judged(evidence, fact, gpu, device) or judge(gpu)

    return every_gpu(evidence, _STATUS, judged)


def _recovery(gpu: Gpu) -> CheckResult:
    actual = gpu.recovery_action or ""
    if actual == "none":
        return _RECOVERY.passed(gpu, "none")
    hint = "reboot the host" if "reboot" in actual else reset_hint(gpu)
    return _RECOVERY.failed(gpu, actual, hint)


def _status(gpu: Gpu) -> CheckResult:
    actual = gpu.status or ""
    if actual == "operational":
        return _STATUS.passed(gpu, actual)
    hint = f"{hints_for(gpu).reset}, or power-cycle the host"
    return _STATUS.failed(gpu, actual, hint)


# --- clocks and power ----------------------------------------------------------------------------------------

_CLOCKS = Fact(
    "clock-reasons", "not slowed down by hardware or heat", ("clock_reasons",), "nvmlDeviceGetCurrentClocksEventReasons"
)
_HELD_DOWN = {
    "hw_slowdown": "hardware slowdown: too hot, or the power brake is active",
    "hw_thermal_slowdown": "too hot",
    "hw_power_brake_slowdown": "the power brake is active: power supplies or the BMC ask for less power",
}
_COOL = "check power supplies, the BMC's power cap, fans and air flow; nvidia-smi -q -d PERFORMANCE shows it go"


def _clock_reasons(gpu: Gpu) -> CheckResult:
    """Judge clock reasons: bits 0x8, 0x40 and 0x80 fail, 0x20 warns; idle, power cap, application clocks are normal."""
    reasons = gpu.clock_reasons or ()
    held = [name for name in reasons if name in _HELD_DOWN]
    actual = ", ".join(reasons) or "no reason"
    if held:
        # hw_slowdown is the sum of the other two, so the text names them where they are reported.
        named = [_HELD_DOWN[name] for name in held if name != "hw_slowdown" or len(held) == 1]
        actual = f"{actual} ({'; '.join(named)})"
        return _CLOCKS.failed(gpu, actual, _COOL)
    if "sw_thermal_slowdown" in reasons:
        hint = "check fans, air flow and the inlet temperature"
        return _CLOCKS.warned(gpu, actual, hint)
    return _CLOCKS.passed(gpu, actual)


_APPLICATION = Fact(
    "application-clocks",
    "the board's default",
    ("application_clock_mhz", "default_application_clock_mhz"),
    "nvmlDeviceGetApplicationsClock",
)


def _application_clocks(gpu: Gpu) -> CheckResult:
    now, default = gpu.application_clock_mhz or 0, gpu.default_application_clock_mhz or 0
    expected = f"at least {default:g} MHz, the board's default"
    if now >= default:
        return _APPLICATION.passed(gpu, f"{now:g} MHz", expected=expected)
    hint = f"nvidia-smi -i {gpu.address} --reset-applications-clocks"
    return _APPLICATION.warned(gpu, f"{now:g} MHz", hint, expected=expected)


_POWER = Fact(
    "power-limit",
    "the board's default",
    ("power_limit_watts", "power_default_watts"),
    "nvmlDeviceGetPowerManagementLimit",
)


_PLAN_IT = "plan with settings.power_limit_watts"


def _power_limit(plan: dict[str, object], gpu: Gpu) -> CheckResult:
    now, default = gpu.power_limit_watts or 0, gpu.power_default_watts or 0
    want = plan.get(gpu.address)
    planned = isinstance(want, int | float) and not isinstance(want, bool)
    target = float(want) if planned and isinstance(want, int | float) else default
    expected = f"{target:g} W, as planned" if planned else f"at least {default:g} W, the board's default"
    actual = f"{now:g} W"
    if gpu.power_max_watts is not None and max(now, default) > gpu.power_max_watts:
        why = f"{actual}, default {default:g} W: more than the board's greatest limit, {gpu.power_max_watts:g} W"
        hint = f"{hints_for(gpu).power} shows them: look at them again"
        return _POWER.unknown(gpu, why, hint, expected=expected)
    if now == target or (now > target and not planned):
        return _POWER.passed(gpu, actual, expected=expected)
    command = hints_for(gpu).set_power
    hint = f"{command} {target:g}; or plan with settings.power_limit_watts" if command else _PLAN_IT
    return _POWER.warned(gpu, actual, hint, expected=expected)


_HEAT = Fact(
    "gpu-temperature",
    "below the temperature at which it slows down",
    ("temperature_c",),
    "nvmlDeviceGetTemperature",
    also=("temperature_margin_c",),
)


def _temperature(gpu: Gpu) -> CheckResult:
    now = gpu.temperature_c or 0
    limit = gpu.temperature_slowdown_c
    by_limit = limit - now if limit is not None and limit > 0 else None  # a limit below 0 is a margin, no temperature
    left = min((one for one in (gpu.temperature_margin_c, by_limit) if one is not None), default=None)
    actual = f"{now:g} °C" + ("" if left is None else f", {left:g} °C left")
    if left is None:
        hint = f"{hints_for(gpu).heat} shows the limits"
        return unknown(_HEAT.check, gpu.address, expected=_HEAT.expected, why=f"{actual}; no limit reported", hint=hint)
    if left > 0:
        return _HEAT.passed(gpu, actual)
    hint = "check fans, air flow and the inlet temperature"
    return _HEAT.warned(gpu, actual, hint)


# --- the list ------------------------------------------------------------------------------------------------


def _power_limits(evidence: Evidence) -> Iterable[CheckResult]:
    plan = wanted(evidence, POWER_LIMIT)

    def judge(gpu: Gpu) -> CheckResult:
        found = _power_limit(plan, gpu)
        planned = gpu.address in plan
        return found if planned else unknown_if_below_others(evidence, _POWER, gpu, "power_default_watts", found)

    return each_gpu(evidence, _POWER, judge)


def _all_application_clocks(evidence: Evidence) -> Iterable[CheckResult]:
    def judge(gpu: Gpu) -> CheckResult:
        found = _application_clocks(gpu)
        return unknown_if_below_others(evidence, _APPLICATION, gpu, "default_application_clock_mhz", found)

    return each_gpu(evidence, _APPLICATION, judge)


CHECKS: tuple[Check, ...] = (
    Check(
        _DRIVER,
        "The GPU's driver holds it and answers",
        "each GPU",
        "A GPU that its driver does not list is lost; a module and a library of two versions fail every program",
        f"{_NVML}: NVML_ERROR_LIB_RM_VERSION_MISMATCH; Documentation/driver-api/vfio.rst",
        gpu_driver,
        inside=True,
        none="GPU",
    ),
    Check(
        _STATUS.check,
        "The driver asks for no reset",
        "each GPU",
        "After some errors a GPU works on until it is reset, with results that cannot be trusted",
        f"{_NVML}: nvmlDeviceGpuRecoveryAction_t; Documentation/ABI/testing/sysfs-driver-habanalabs: status",
        gpu_status,
        inside=True,
        none="GPU",
    ),
    Check(
        _CLOCKS.check,
        "Nothing holds the clocks down",
        "each GPU",
        "A GPU that is too hot or whose power brake is active runs at a fraction of its clock without any other sign",
        f"{_NVML}: nvmlClocksEventReasons",
        lambda evidence: each_gpu(evidence, _CLOCKS, _clock_reasons),
        inside=True,
        none="GPU",
    ),
    Check(
        _APPLICATION.check,
        "Application clocks at the board's default",
        "each GPU",
        "Clocks that were lowered for a test stay lowered while the driver is loaded",
        f"{_NVML}: nvmlDeviceGetApplicationsClock",
        _all_application_clocks,
        inside=True,
        none="GPU",
    ),
    Check(
        _POWER.check,
        "Power limit as planned, else the board's default",
        "each GPU",
        "A limit below the board's own costs clock under load",
        f"{_NVML}: nvmlDeviceGetPowerManagementLimit; Documentation/gpu/amdgpu/thermal.rst: power1_cap",
        _power_limits,
        inside=True,
        none="GPU",
    ),
    Check(
        _HEAT.check,
        "Not near the temperature at which it slows down",
        "each GPU",
        "Heat at rest means fans, air flow or a cold plate that fail under load",
        f"{_NVML}: nvmlDeviceGetMarginTemperature; Documentation/gpu/amdgpu/thermal.rst: temp1_crit",
        lambda evidence: each_gpu(evidence, _HEAT, _temperature),
        inside=True,
        none="GPU",
    ),
)
