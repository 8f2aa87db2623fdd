"""Words that NVML and nvidia-smi share: one spelling for both in the host document."""

from __future__ import annotations

from collections.abc import Iterable

# What is limited to a maximum number in one answer, for the error message (hosttune.model.limits).
MOST = "GPUs that NVIDIA's driver reports"
# nvmlClocksEventReasons in bit order (nvml.h), in the words of `nvidia-smi --query-gpu=clocks_event_reasons.…`.
CLOCK_REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clocks_setting",
)
# nvmlComputeMode_t
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
# nvmlGpuFabricState_t; 0 is "not supported", so there is no state
FABRIC_STATES = (None, "not started", "in progress", "completed")
# nvmlDeviceGpuRecoveryAction_t, in the words of `nvidia-smi -q`
RECOVERY_ACTIONS = ("none", "reset", "reboot", "drain p2p", "drain and reset")
# What NVML answers in place of a value (nvmlErrorString: NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED), the worse
# first, and what recovers such a GPU.
_ERRORS = {"GPU is lost": "reboot", "GPU requires reset": "reset"}
# NVML_GPU_FABRIC_HEALTH_MASK_*: two bits each, 1 means true. The incorrect configuration has four bits, of which 1
# means none (nvml.h).
FABRIC_FAULTS = (
    (0, "degraded bandwidth"),
    (2, "route recovery in progress"),
    (4, "route unhealthy"),
    (6, "access timeout recovery"),
)
FABRIC_MISCONFIGURATIONS = {
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
}
# Fields of `Gpu` that NVML and nvidia-smi can report. If a GPU does not have one, it says so (`Gpu.lacks`).
TELLS = frozenset(
    (
        *("channel_repair_pending", "tpc_repair_pending"),
        *("application_clock_mhz", "clock_reasons", "compute_mode", "default_application_clock_mhz", "driver_version"),
        *("ecc", "ecc_corrected", "ecc_pending", "ecc_uncorrected", "fabric_state", "nvlinks", "nvlinks_active"),
        *("peers", "pcie_replays", "persistence", "power_default_watts", "power_limit_watts", "processes"),
        *("recovery_action", "remap_banks_none", "remapped_correctable", "remapped_failed", "remapped_pending"),
        *("remapped_uncorrectable", "retired_pending", "sram_threshold_exceeded", "temperature_c"),
        *("temperature_margin_c", "temperature_slowdown_c", "unrepairable_memory", "mig"),
    )
)


def recovery(action: str | None, answers: Iterable[object]) -> str | None:
    """Return what recovers a GPU: what its driver asks for, else what errors in place of values mean."""
    told = {answer.removeprefix("ERR ") for answer in answers if isinstance(answer, str)}
    meant = (then for error, then in _ERRORS.items() if error in told)
    return next(meant, action) if action in (None, "none") else action


def reported_fabric_parts(mask: int) -> frozenset[int] | None:
    """Return the parts of nvml.h's health mask, by their shift, that say whether there is a fault.

    None if a part has a value that nvml.h does not define (3).
    """
    parts = {shift: mask >> shift & 3 for shift, _ in FABRIC_FAULTS}
    reported = {shift for shift, value in parts.items() if value} | ({8} if mask >> 8 & 15 else set())
    return None if 3 in parts.values() else frozenset(reported)


def fabric_faults(mask: int) -> tuple[str, ...] | None:
    """Return the faults in nvml.h's health mask; None if it has no information (0: none of it is supported)."""
    if not mask:
        return None
    faults = [name for shift, name in FABRIC_FAULTS if mask >> shift & 3 == 1]
    wrong = mask >> 8 & 15
    if wrong > 1:
        faults.append(FABRIC_MISCONFIGURATIONS.get(wrong, f"incorrect configuration {wrong}"))
    return tuple(faults)


def clock_reasons(bits: int) -> tuple[str, ...]:
    """Return the names of the set bits, lowest first; "bit-N" for a bit that nvml.h did not name yet."""
    names = (*CLOCK_REASONS, *(f"bit-{bit}" for bit in range(len(CLOCK_REASONS), 64)))
    return tuple(name for bit, name in enumerate(names) if bits >> bit & 1)
