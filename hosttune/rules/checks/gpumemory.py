"""Checks of errors that GPUs count themselves: ECC, remapped rows, retired pages, replays on the PCIe link."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

from hosttune.gpu import hints_for, vendor_of
from hosttune.gpu.knobs import ECC
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, skipped
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import RECORD, accelerators, wanted
from hosttune.rules.checks.gpufacts import Fact, each_gpu, every_gpu, not_judged, reset_hint, whole

_NVML = "NVIDIA, NVML API reference (nvml.h)"
_REMAP_GUIDE = "NVIDIA, GPU memory error management (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt)"
_RMA = "take the GPU out of use and ask its maker for a replacement; run the maker's field diagnostics first"

_MODE = Fact("ecc-mode", "enabled", ("ecc",), "nvmlDeviceGetEccMode", whole=("ecc_pending",))


def ecc_mode(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that ECC is on; off fails on a data-centre GPU (one that hosttune knows by name) and warns on any other."""
    functions = evidence.host.index.pci
    plan = wanted(evidence, ECC)
    return each_gpu(evidence, _MODE, lambda gpu: _ecc_mode(plan.get(gpu.address), gpu, functions.get(gpu.address)))


def _ecc_mode(want: object, gpu: Gpu, device: PciDevice | None) -> CheckResult:
    now = "enabled" if gpu.ecc else "disabled"
    if gpu.ecc_pending not in (None, gpu.ecc):
        actual = f"{now}, {'enabled' if gpu.ecc_pending else 'disabled'} pending"
        return _MODE.warned(gpu, actual, reset_hint(gpu))
    if gpu.ecc or want is False:
        expected = "disabled, as planned" if want is False else _MODE.expected
        return _MODE.passed(gpu, now, expected=expected)
    hint = f"nvidia-smi -i {gpu.address} -e 1, then reset it: without ECC wrong bits stay unseen"
    known = device.device_id if device is not None else None
    vendor = vendor_of(gpu.vendor)
    # The driver's name of the model counts too, because the id may be lost.
    listed = vendor is not None and (known in vendor.models or gpu.model in vendor.models.values())
    if known is None and not listed and want is not True:
        why = f"{now}; whether it is a data-centre GPU is unknown: its device id was not read"
        return _MODE.unknown(gpu, why, hint)
    verdict = _MODE.failed if listed or want is True else _MODE.warned
    return verdict(gpu, now, hint)


_ERRORS = Fact(
    "ecc-errors",
    "no uncorrected error",
    ("ecc_uncorrected",),
    "nvmlDeviceGetTotalEccErrors",
    also=("sram_threshold_exceeded", "unrepairable_memory", "channel_repair_pending", "tpc_repair_pending"),
)


def ecc_errors(evidence: Evidence) -> Iterable[CheckResult]:
    """Check uncorrected errors and repairs. A repair that is pending fails even where errors are not counted."""

    def judged(gpu: Gpu, device: PciDevice | None) -> CheckResult:
        if _repairs(gpu):
            return _ecc_errors(gpu)
        return not_judged(evidence, _ERRORS, gpu, device) or whole(evidence, _ERRORS, gpu, _ecc_errors(gpu))

    return every_gpu(evidence, _ERRORS, judged)


def _repairs(gpu: Gpu) -> list[str]:
    """Return the repairs that wait for a reset."""
    pending = ((gpu.channel_repair_pending, "a memory channel"), (gpu.tpc_repair_pending, "a TPC"))
    return [f"repair of {part} pending" for flag, part in pending if flag]


def _ecc_errors(gpu: Gpu) -> CheckResult:
    """Judge uncorrected errors since the driver was loaded: any fails; so do memory reported as beyond repair, and a
    repair that waits for a reset."""
    parts = [f"{gpu.ecc_uncorrected} uncorrected"] if gpu.ecc_uncorrected is not None else []
    if gpu.ecc_corrected is not None:
        parts.append(f"{gpu.ecc_corrected} corrected since the driver was loaded")
    if gpu.ecc_uncorrected_lifetime:
        parts.append(f"{gpu.ecc_uncorrected_lifetime} uncorrected in its life")
    worn = [
        name
        for flag, name in (
            (gpu.sram_threshold_exceeded, "SRAM threshold exceeded"),
            (gpu.unrepairable_memory, "memory that cannot be repaired"),
        )
        if flag
    ]
    repairs = _repairs(gpu)
    actual = ", ".join(parts + worn + repairs)
    if worn or repairs or gpu.ecc_uncorrected:
        hint = _RMA if worn else "; ".join(filter(None, (reset_hint(gpu), hints_for(gpu).repaired)))
        return _ERRORS.failed(gpu, actual, hint)
    return _ERRORS.passed(gpu, actual)


_REMAP = Fact(
    "row-remap",
    "none pending, none failed",
    ("remapped_pending", "remapped_failed"),
    "nvmlDeviceGetRemappedRows",
    whole=("remapped_correctable", "remapped_uncorrectable"),
    also=("remap_banks_none",),
)


def _row_remap(gpu: Gpu) -> CheckResult:
    """Judge row remapping. Pending: a reset applies it; until then the pages are only kept out of use. Failed: no spare
    row was left."""
    counts = [
        f"{count} {name}"
        for count, name in (
            (gpu.remapped_correctable, "after corrected errors"),
            (gpu.remapped_uncorrectable, "after uncorrected errors"),
        )
        if count
    ]
    rows = f"remapped: {', '.join(counts)}" if counts else "no row remapped"
    if gpu.remapped_failed or gpu.remapped_pending:
        actual = f"{'remapping failed' if gpu.remapped_failed else 'remapping pending'}; {rows}"
        hint = _RMA if gpu.remapped_failed else reset_hint(gpu)
        return _REMAP.failed(gpu, actual, hint)
    if gpu.remap_banks_none:
        actual = f"{gpu.remap_banks_none} memory banks without a spare row; {rows}"
        hint = "plan to replace the GPU: the next error in one of these banks cannot be repaired"
        return _REMAP.warned(gpu, actual, hint)
    return _REMAP.passed(gpu, rows)


_RETIRED = Fact("retired-pages", "none pending", ("retired_pending",), "nvmlDeviceGetRetiredPagesPendingStatus")


def retired_pages(evidence: Evidence) -> Iterable[CheckResult]:
    """Check for pages that wait to be retired, on GPUs that retire pages; GPUs that remap rows do not retire pages."""
    functions = evidence.host.index.pci
    remapping = {gpu.address for gpu in accelerators(evidence.host) if _remaps(gpu, functions.get(gpu.address))}
    for found in each_gpu(evidence, _RETIRED, _retired):
        if found.outcome == "unknown" and found.subject in remapping:
            yield skipped(_RETIRED.check, found.subject, "it remaps rows instead of retiring pages: see row-remap")
        else:
            yield found


def _remaps(gpu: Gpu, device: PciDevice | None) -> bool:
    """Return whether the GPU remaps rows: it reports them, or its device id is of a generation that does."""
    if gpu.remapped_pending is not None or gpu.remapped_failed is not None:
        return True
    vendor, known = vendor_of(gpu.vendor), device.device_id if device else None
    if vendor is None or known is None or not vendor.tells.issuperset(_RETIRED.needs):
        return False
    return any(low <= known <= high for low, high in table("boards")["remapping"]["ranges"])


def _retired(gpu: Gpu) -> CheckResult:
    if not gpu.retired_pending:
        return _RETIRED.passed(gpu, "none")
    hint = reset_hint(gpu)
    return _RETIRED.failed(gpu, "pending", hint)


# --- PCIe ----------------------------------------------------------------------------------------------------

_REPLAY = Fact(
    "pcie-replay", "fewer than the bit error rate allows", ("pcie_replays",), "nvmlDeviceGetPcieReplayCounter"
)


NO_BOUND = "of links of 64 GT/s no bound is known: their forward error correction starts from a far higher rate"


def errors_allowed(speed_gts: float, width: int) -> int | None:
    """Return the errors per minute that a link may have at its bit error rate, as DCGM does: rounded up; Gen5 x16: 31.

    None above 32 GT/s (`NO_BOUND`).
    """
    limits = table("limits")["pcie"]
    if speed_gts > limits["bounded_gts"]:
        return None
    return math.ceil(float(limits["bit_error_rate"]) * speed_gts * 1e9 * width * 60)


def pcie_replay(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the replays of each GPU's link since its reset. They are divided by the host's uptime, which gives a rate
    no higher than the true one."""
    functions = evidence.host.index.pci
    up = evidence.health.uptime_seconds if evidence.health else None
    return each_gpu(evidence, _REPLAY, lambda gpu: _replay(up, gpu, functions.get(gpu.address)))


def _replay(up: float | None, gpu: Gpu, device: PciDevice | None) -> CheckResult:
    count = gpu.pcie_replays or 0
    if not count:
        return _REPLAY.passed(gpu, "none")
    link = device.link if device else None
    if not up or link is None or not link.speed_gts or not link.width:
        lacking = "for how long is not known" if not up else "speed and width of its link are not known"
        why = f"{count} since its reset; {lacking}"
        return _REPLAY.unknown(gpu, why, RECORD)
    allowed = errors_allowed(link.speed_gts, link.width)
    rate = count / max(up / 60, 1.0)
    actual = f"{count} since its reset, {rate:.2g} a minute over the host's uptime"
    if allowed is None:
        why, hint = f"{actual}; {NO_BOUND}", "compare with a sister slot; read AER (check aer)"
        return _REPLAY.unknown(gpu, why, hint)
    expected = f"at most {allowed} a minute"
    if rate <= allowed:
        return _REPLAY.passed(gpu, actual, expected=expected)
    hint = "reseat the GPU or its riser and cables; compare with a sister slot; read AER (check aer)"
    return _REPLAY.warned(gpu, actual, hint, expected=expected)


CHECKS: tuple[Check, ...] = (
    Check(
        _MODE.check,
        "ECC is on",
        "each GPU that has ECC",
        "Without ECC a wrong bit is a wrong result that goes unnoticed",
        f"{_NVML}: nvmlDeviceGetEccMode",
        ecc_mode,
        inside=True,
        none="GPU",
    ),
    Check(
        _ERRORS.check,
        "No uncorrected memory errors",
        "each GPU that counts them",
        "An uncorrected error has already made a result wrong; memory that cannot be repaired will do so again",
        f"{_NVML}: nvmlDeviceGetTotalEccErrors, nvmlDeviceGetRepairStatus; Documentation/gpu/amdgpu/ras.rst;"
        f" {_REMAP_GUIDE}",
        ecc_errors,
        inside=True,
        none="GPU",
    ),
    Check(
        _REMAP.check,
        "No row remap pending or failed",
        "each GPU that remaps rows",
        "A pending remap needs a reset before the next tenant; a failed one is a GPU to be replaced",
        f"{_NVML}: nvmlDeviceGetRemappedRows; {_REMAP_GUIDE}",
        partial(each_gpu, fact=_REMAP, judge=_row_remap),
        inside=True,
        none="GPU",
    ),
    Check(
        _RETIRED.check,
        "No page waits to be retired",
        "each GPU that retires pages (before Ampere)",
        "A page with a wrong bit stays in use until the reset",
        f"{_NVML}: nvmlDeviceGetRetiredPagesPendingStatus",
        retired_pages,
        inside=True,
        none="GPU",
    ),
    Check(
        _REPLAY.check,
        "PCIe replays within the bit error rate",
        "each GPU that counts them",
        "A link that resends much is a link about to fail, and slow until then",
        "PCI Express base specification: bit error rate 10^-12; NVIDIA/DCGM modules/health/DcgmHealthWatch.cpp",
        pcie_replay,
        inside=True,
        none="GPU",
    ),
)
