"""Words that NVML and nvidia-smi share: one spelling for both in the host document."""

from __future__ import annotations

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
# nvmlGpuFabricState_t; 0 is "not supported", which is no state
FABRIC_STATES = (None, "not started", "in progress", "completed")


def clock_reasons(bits: int) -> tuple[str, ...]:
    """The names of the set bits, lowest first; a bit that nvml.h did not name yet is "bit-N"."""
    names = (*CLOCK_REASONS, *(f"bit-{bit}" for bit in range(len(CLOCK_REASONS), 64)))
    return tuple(name for bit, name in enumerate(names) if bits >> bit & 1)
