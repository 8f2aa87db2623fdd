"""The rows of `nvidia-smi -q`: the place of each fact in the XML and in the text, and how its value is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from hosttune.gpu.nvidia_words import COMPUTE_MODES

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_CELSIUS = re.compile(r"(-?[0-9]{1,3}) C")
_UNKNOWN = re.compile(
    r"\[?(n/a|not supported|unknown error|gpu is lost|requested functionality .*|insufficient permissions)\]?"
)


def is_lacking(value: str) -> bool:
    """Return whether the value says that the GPU does not have this: "N/A" and similar words.

    No failure prints them.
    """
    return value.casefold().strip("[]") in ("n/a", "not supported")


def text_of(value: str) -> str | None:
    """Return the text; None for a word that is not a value."""
    return None if not value or _UNKNOWN.fullmatch(value.casefold()) else value


def word_of(value: str) -> str | None:
    """Return the text in lower case."""
    text = text_of(value)
    return text.casefold() if text else None


def number_of(value: str) -> float | None:
    """Return a number without a unit; None for a number below 0, which is not possible for these facts."""
    return float(value) if _NUMBER.fullmatch(value) else None


def watts_of(value: str) -> float | None:
    """Return the number of "700.00 W"; None with another unit or without a unit."""
    return number_of(value.removesuffix(" W")) if value.endswith(" W") else None


def mhz_of(value: str) -> float | None:
    """Return the number of "1980 MHz"; None with another unit or without a unit."""
    return number_of(value.removesuffix(" MHz")) if value.endswith(" MHz") else None


def compute_mode_of(value: str) -> str | None:
    """Return the compute mode; None for a word that is not a known mode."""
    word = value.casefold().replace(" ", "_")
    return word if word in COMPUTE_MODES else None


def celsius_of(value: str) -> float | None:
    """Return degrees. They may be below 0: the margin of a GPU that is too hot is."""
    match = _CELSIUS.fullmatch(value)
    return float(match[1]) if match else None


def integer_of(value: str) -> int | None:
    """Return a count or an id, which has only digits."""
    return int(value) if re.fullmatch(r"[0-9]{1,15}", value) else None


def lanes_of(value: str) -> int | None:
    """Return the number of "16x"."""
    return integer_of(value.removesuffix("x")) if value.endswith("x") else None


def mode_of(value: str) -> str | None:
    """Return "enabled" or "disabled"; None for any other word."""
    word = value.casefold()
    return word if word in ("enabled", "disabled") else None


def bytes_of(value: str) -> int | None:
    """Return the bytes of a number of MiB."""
    return None if not value.endswith(" MiB") or (mib := integer_of(value.removesuffix(" MiB"))) is None else mib << 20


def flag_of(value: str) -> bool | None:
    """Return True for enabled and False for disabled."""
    return {"enabled": True, "yes": True, "disabled": False, "no": False}.get(value.casefold())


def _banks(value: str) -> int | None:
    """Return the number of "3072 bank(s)"."""
    match = re.fullmatch(r"([0-9]{1,9}) bank\(s\)", value)
    return int(match[1]) if match else None


def _recovery(value: str) -> str | None:
    """Return the recovery action that the driver asks for. Older drivers only say whether a reset is required."""
    return {"yes": "reset", "no": "none"}.get(value.casefold(), word_of(value))


def _repair(value: str) -> bool | None:
    """Return whether a repair waits for a reset. A driver that can say no more prints that the GPU requires one."""
    return True if value.casefold() == "gpu requires reset" else flag_of(value)


_BANKS_XML = "remapped_rows/row_remapper_histogram/row_remapper_histogram_"
_BANKS_TEXT = "Remapped Rows/Bank Remap Availability Histogram/"


class Row(NamedTuple):
    """One fact: the field of `Gpu`, its paths in the XML and in the text (newest form first), and how it is read."""

    field: str
    xml: tuple[str, ...]
    text: tuple[str, ...]
    read: Callable[[str], object]


ROWS = (
    Row("model", ("product_name",), ("Product Name",), text_of),
    Row("uuid", ("uuid",), ("GPU UUID",), text_of),
    Row("serial", ("serial",), ("Serial Number",), text_of),
    Row("firmware_version", ("vbios_version",), ("VBIOS Version",), text_of),
    Row("inforom_version", ("inforom_version/img_version",), ("Inforom Version/Image Version",), text_of),
    Row("module_id", ("platformInfo/module_id", "gpu_module_id"), ("Platform Info/Module Id", "Module ID"), integer_of),
    Row("memory_bytes", ("fb_memory_usage/total",), ("FB Memory Usage/Total",), bytes_of),
    Row("persistence", ("persistence_mode",), ("Persistence Mode",), flag_of),
    Row("compute_mode", ("compute_mode",), ("Compute Mode",), compute_mode_of),
    Row("ecc", ("ecc_mode/current_ecc",), ("ECC Mode/Current", "Ecc Mode/Current"), flag_of),
    Row("ecc_pending", ("ecc_mode/pending_ecc",), ("ECC Mode/Pending", "Ecc Mode/Pending"), flag_of),
    Row("fabric_state", ("fabric/state",), ("Fabric/State",), word_of),
    Row("fabric_status", ("fabric/status",), ("Fabric/Status",), word_of),
    Row(
        "power_limit_watts",
        ("gpu_power_readings/current_power_limit", "power_readings/power_limit"),
        ("GPU Power Readings/Current Power Limit", "Power Readings/Power Limit"),
        watts_of,
    ),
    Row(
        "power_default_watts",
        ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit"),
        ("GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit"),
        watts_of,
    ),
    Row(
        "power_min_watts",
        ("gpu_power_readings/min_power_limit", "power_readings/min_power_limit"),
        ("GPU Power Readings/Min Power Limit", "Power Readings/Min Power Limit"),
        watts_of,
    ),
    Row(
        "power_max_watts",
        ("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"),
        ("GPU Power Readings/Max Power Limit", "Power Readings/Max Power Limit"),
        watts_of,
    ),
    Row("remapped_correctable", ("remapped_rows/remapped_row_corr",), ("Remapped Rows/Correctable Error",), integer_of),
    Row(
        "remapped_uncorrectable",
        ("remapped_rows/remapped_row_unc",),
        ("Remapped Rows/Uncorrectable Error",),
        integer_of,
    ),
    Row("remapped_pending", ("remapped_rows/remapped_row_pending",), ("Remapped Rows/Pending",), flag_of),
    Row(
        "remapped_failed",
        ("remapped_rows/remapped_row_failure",),
        ("Remapped Rows/Remapping Failure Occurred",),
        flag_of,
    ),
    Row(
        "pcie_max_generation",
        ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
        ("PCI/GPU Link Info/PCIe Generation/Max",),
        integer_of,
    ),
    Row(
        "pcie_gpu_max_generation",
        ("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",),
        ("PCI/GPU Link Info/PCIe Generation/Device Max",),
        integer_of,
    ),
    Row(
        "pcie_generation",
        ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
        ("PCI/GPU Link Info/PCIe Generation/Current",),
        integer_of,
    ),
    Row(
        "pcie_width",
        ("pci/pci_gpu_link_info/link_widths/current_link_width",),
        ("PCI/GPU Link Info/Link Width/Current",),
        lanes_of,
    ),
    Row(
        "pcie_max_width",
        ("pci/pci_gpu_link_info/link_widths/max_link_width",),
        ("PCI/GPU Link Info/Link Width/Max",),
        lanes_of,
    ),
    Row("pcie_replays", ("pci/replay_counter",), ("PCI/Replays Since Reset",), integer_of),
    Row(
        "recovery_action",
        ("gpu_recovery_action", "gpu_reset_status/reset_required"),
        ("GPU Recovery Action", "GPU Reset Status/Reset Required"),
        _recovery,
    ),
    Row(
        "sram_threshold_exceeded",
        ("ecc_errors/aggregate/sram_threshold_exceeded",),
        ("ECC Errors/Aggregate/SRAM Threshold Exceeded",),
        flag_of,
    ),
    Row("unrepairable_memory", ("ecc_errors/unrepairable_memory",), ("ECC Errors/Unrepairable Memory",), flag_of),
    Row(
        "channel_repair_pending",
        ("ecc_errors/channel_repair_pending",),
        ("ECC Errors/Channel Repair Pending",),
        _repair,
    ),
    Row("tpc_repair_pending", ("ecc_errors/tpc_repair_pending",), ("ECC Errors/TPC Repair Pending",), _repair),
    Row(
        "retired_pending",
        ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
        ("Retired Pages/Pending Page Blacklist",),
        flag_of,
    ),
    Row("remap_banks_low", (f"{_BANKS_XML}low",), (f"{_BANKS_TEXT}Low",), _banks),
    Row("remap_banks_none", (f"{_BANKS_XML}none",), (f"{_BANKS_TEXT}None",), _banks),
    Row("sm_clock_mhz", ("clocks/sm_clock",), ("Clocks/SM",), mhz_of),
    Row("sm_clock_max_mhz", ("max_clocks/sm_clock",), ("Max Clocks/SM",), mhz_of),
    Row("application_clock_mhz", ("applications_clocks/graphics_clock",), ("Applications Clocks/Graphics",), mhz_of),
    Row(
        "default_application_clock_mhz",
        ("default_applications_clocks/graphics_clock",),
        ("Default Applications Clocks/Graphics",),
        mhz_of,
    ),
    Row("temperature_c", ("temperature/gpu_temp",), ("Temperature/GPU Current Temp",), celsius_of),
    Row("temperature_margin_c", ("temperature/gpu_temp_tlimit",), ("Temperature/GPU T.Limit Temp",), celsius_of),
    Row(
        "temperature_slowdown_c",
        ("temperature/gpu_temp_slow_threshold",),
        ("Temperature/GPU Slowdown Temp",),
        celsius_of,
    ),
    Row("memory_temperature_c", ("temperature/memory_temp",), ("Temperature/Memory Current Temp",), celsius_of),
)
