"""A GPU's health as NVML reports it: asked into `nvml.json` as "health", and read from there. Nothing is set.

A failure in it is not a problem of discovery. The fact stays unknown, and the check that needs it reports that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from hosttune.gpu.nvidia_links import Asker, field_values, has_no_counters
from hosttune.gpu.nvidia_words import RECOVERY_ACTIONS, fabric_faults, recovery, reported_fabric_parts
from hosttune.model.values import MAX_SIZE

_CORRECTED, _UNCORRECTED = 0, 1  # NVML_MEMORY_ERROR_TYPE_…
_VOLATILE, _LIFETIME = 0, 1  # NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC
_GRAPHICS, _SM = 0, 1  # NVML_CLOCK_…
_CORE, _SLOWDOWN = 0, 1  # NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
_FIELDS = {"memoryTemperature": "NVML_FI_DEV_MEMORY_TEMP", "recoveryAction": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"}
_MISSING = "ERR Not Supported"
_COUNT, _CELSIUS = range(MAX_SIZE + 1), range(-300, 301)

# Key in "health" → field of Gpu, for answers that are a plain number.
_NUMBERS: Mapping[str, str] = {
    "pcieReplays": "pcie_replays",
    "temperature": "temperature_c",
    "temperatureMargin": "temperature_margin_c",
    "temperatureSlowdown": "temperature_slowdown_c",
    "memoryTemperature": "memory_temperature_c",
    "correctedVolatile": "ecc_corrected",
    "uncorrectedLifetime": "ecc_uncorrected_lifetime",
    "smClock": "sm_clock_mhz",
    "smClockMax": "sm_clock_max_mhz",
    "applicationClock": "application_clock_mhz",
    "applicationClockDefault": "default_application_clock_mhz",
}
_FLAGS: Mapping[str, str] = {"sramThreshold": "sram_threshold_exceeded", "retiredPending": "retired_pending"}
# Answers outside "health" for which "Not Supported" means that the GPU does not have these fields.
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "nvmlDeviceGetEccMode": ("ecc", "ecc_pending"),
    "uncorrectedVolatile": ("ecc_uncorrected",),
    "nvmlDeviceGetRemappedRows": (
        *("remapped_pending", "remapped_failed"),
        *("remapped_correctable", "remapped_uncorrectable"),
    ),
    "nvmlDeviceGetPersistenceMode": ("persistence",),
    "nvmlDeviceGetComputeMode": ("compute_mode",),
    "nvmlDeviceGetPowerManagementLimit": ("power_limit_watts",),
    "nvmlDeviceGetPowerManagementDefaultLimit": ("power_default_watts",),
    "nvmlDeviceGetCurrentClocksEventReasons": ("clock_reasons",),
    "nvmlDeviceGetMigMode": ("mig",),
}


def ask_health(nvml: Asker, handle: object) -> dict[str, Any]:
    """Return the health facts of one GPU."""
    # The bindings define the fields' numbers; what older bindings do not define, they cannot ask.
    numbers = {name: getattr(nvml.library, constant, None) for name, constant in _FIELDS.items()}
    known = {name: number for name, number in numbers.items() if number is not None}
    fields = dict(zip(known, field_values(nvml, handle, list(known.values())), strict=True))
    return {
        **{name: fields.get(name, f"ERR these bindings have no {_FIELDS[name]}") for name in _FIELDS},
        "pcieReplays": nvml.ask("nvmlDeviceGetPcieReplayCounter", handle),
        "temperature": nvml.ask("nvmlDeviceGetTemperature", handle, _CORE),
        "temperatureMargin": nvml.ask("nvmlDeviceGetMarginTemperature", handle),
        "temperatureSlowdown": nvml.ask("nvmlDeviceGetTemperatureThreshold", handle, _SLOWDOWN),
        "correctedVolatile": nvml.ask("nvmlDeviceGetTotalEccErrors", handle, _CORRECTED, _VOLATILE),
        "uncorrectedLifetime": nvml.ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _LIFETIME),
        "smClock": nvml.ask("nvmlDeviceGetClockInfo", handle, _SM),
        "smClockMax": nvml.ask("nvmlDeviceGetMaxClockInfo", handle, _SM),
        "applicationClock": nvml.ask("nvmlDeviceGetApplicationsClock", handle, _GRAPHICS),
        "applicationClockDefault": nvml.ask("nvmlDeviceGetDefaultApplicationsClock", handle, _GRAPHICS),
        "retiredPending": nvml.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle),
        "remapBanks": nvml.guard(partial(_banks, nvml, handle)),
        "repairs": nvml.ask("nvmlDeviceGetRepairStatus", handle),
        "sramThreshold": nvml.guard(partial(_sram, nvml, handle)),
    }


def _banks(nvml: Asker, handle: object) -> Any:
    """Return [banks with few spare rows, banks with none]."""
    histogram = nvml.ask("nvmlDeviceGetRowRemapperHistogram", handle)
    return histogram if isinstance(histogram, str) else [histogram.low, histogram.none]


def _sram(nvml: Asker, handle: object) -> Any:
    """Return 1 if the lifetime count of SRAM errors is above NVIDIA's limit (nvmlEccSramErrorStatus_v1_t)."""
    status = nvml.library.c_nvmlEccSramErrorStatus_v1_t()
    status.version = nvml.library.nvmlEccSramErrorStatus_v1
    answer = nvml.ask("nvmlDeviceGetSramEccErrorStatus", handle, nvml.reference(status))
    return answer if isinstance(answer, str) else status.bThresholdExceeded


def health_facts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of Gpu from one GPU's entry of `nvml.json`, including `lacks`."""
    health = raw.get("health")
    health = health if isinstance(health, dict) else {}
    facts: dict[str, Any] = {
        field: _number(health.get(name), _CELSIUS if "temperature" in field else _COUNT)
        for name, field in _NUMBERS.items()
    }
    facts |= {field: None if (n := _number(health.get(name))) is None else bool(n) for name, field in _FLAGS.items()}
    banks = health.get("remapBanks")
    if isinstance(banks, list) and len(banks) == 2:
        facts["remap_banks_low"], facts["remap_banks_none"] = map(_number, banks)
    repairs = health.get("repairs")
    if isinstance(repairs, list) and len(repairs) == 2:
        pending = (None if (n := _number(repair)) is None else bool(n) for repair in repairs)
        facts["channel_repair_pending"], facts["tpc_repair_pending"] = pending
    action = _number(health.get("recoveryAction"))
    if action is not None:
        known = 0 <= action < len(RECOVERY_ACTIONS)
        facts["recovery_action"] = RECOVERY_ACTIONS[action] if known else f"action {action}"
    facts["recovery_action"] = recovery(facts.get("recovery_action"), (*raw.values(), *health.values()))
    fabric = raw.get("fabricInfo")
    mask = _number(fabric.get("healthMask")) if isinstance(fabric, dict) else None
    facts["fabric_health"] = None if mask is None else fabric_faults(mask)
    return {**facts, "lacks": _lacks(raw, health)}


def incomplete_fabric_masks(entries: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Return the keys of GPUs whose fabric health mask has less information than another GPU's.

    For them, a mask without a fault does not prove that there is none.
    """
    fabrics = {key: entry["fabricInfo"] for key, entry in entries.items() if isinstance(entry.get("fabricInfo"), dict)}
    masks = {key: mask for key, info in fabrics.items() if (mask := _number(info.get("healthMask"))) is not None}
    parts_of = {key: reported_fabric_parts(mask) for key, mask in masks.items()}
    most = frozenset(part for parts in parts_of.values() for part in parts or ())
    garbled = {key for key, parts in parts_of.items() if parts is None}
    return frozenset(garbled | {key for key in fabrics if most and parts_of.get(key) != most})


def _lacks(raw: Mapping[str, Any], health: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the fields for which NVML answers "Not Supported". A fabric state of 0 means the same (nvml.h)."""
    named = {**_NUMBERS, **_FLAGS, "remapBanks": "remap_banks_none", "recoveryAction": "recovery_action"}
    lacking = {field for name, field in named.items() if health.get(name) == _MISSING}
    if health.get("repairs") == _MISSING:
        lacking.update(("channel_repair_pending", "tpc_repair_pending"))
    for name, fields in _OTHERS.items():
        lacking.update(fields if raw.get(name) == _MISSING else ())
    fabric = raw.get("fabricInfo")
    if fabric == _MISSING or (isinstance(fabric, dict) and fabric.get("state") == 0):
        lacking.add("fabric_state")
    if has_no_counters(raw.get("nvlinks")):
        lacking.add("nvlinks")
    return tuple(sorted(lacking)) or None


def _number(value: object, within: range = _COUNT) -> int | None:
    """Return a whole number within the possible range; None for any other value, such as a count below 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value in within else None
