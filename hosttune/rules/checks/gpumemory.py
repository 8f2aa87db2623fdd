"""Checks of errors that GPUs count themselves: ECC, remapped rows, retired pages, replays on the PCIe link."""

from __future__ import annotations

import math

from hosttune.gpu import hints_for, vendor_of
from hosttune.gpu.knobs import ECC
from hosttune.model import sysfs
from hosttune.model.counters import growth
from hosttune.model.gpu import Gpu
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import wanted
from hosttune.rules.checks.gpufacts import by_driver, complete, fact, gpu_check, reset_hint, why_unknown
from hosttune.rules.checks.on import On
from hosttune.rules.engine import Finding

_REMAP_GUIDE = "GPU memory error management (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt)"
_RMA = "take the GPU out of use and ask its maker for a replacement; run the maker's field diagnostics first"


@gpu_check(
    "ecc-mode",
    title="ECC is on",
    about="each GPU that has ECC",
    why="Without ECC a wrong bit is a wrong result that goes unnoticed",
    source="nvml.h: nvmlDeviceGetEccMode",
    expected="enabled",
)
def ecc_mode(on: On, gpu: Gpu) -> Finding:
    """Check that ECC is on; off fails on a data-centre GPU (one that hosttune knows by name) and warns on any other."""
    on = by_driver(on, gpu, "nvmlDeviceGetEccMode")
    want, enabled = wanted(on.evidence, ECC).get(gpu.address), fact(on, gpu, "ecc")
    now = "enabled" if enabled else "disabled"
    if gpu.ecc_pending not in (None, enabled):
        return on.warned(f"{now}, {'enabled' if gpu.ecc_pending else 'disabled'} pending", reset_hint(gpu))
    hint = f"nvidia-smi -i {gpu.address} -e 1, then reset it: without ECC wrong bits stay unseen"
    if enabled or want is False:
        complete(on, gpu, now, "ecc_pending")
        return on.passed(now) if enabled else on.warned(f"{now}, as planned", f"{hint}; and ecc: keep in the intent")
    vendor, known = vendor_of(gpu.vendor), on.host.index.device_id(gpu.address)
    # The driver's name of the model counts too, because the id may be lost.
    if want is True or (vendor is not None and (known in vendor.models or gpu.model in vendor.models.values())):
        return on.failed(now, hint)
    on.need(
        known, f"{now}; the device id, which says whether it is a data-centre GPU,", look=f"lspci -ns {gpu.address}"
    )
    complete(on, gpu, now, "ecc_pending")
    return on.warned(now, hint)


@gpu_check(
    "ecc-errors",
    title="No uncorrected memory errors",
    about="each GPU that counts them",
    why="An uncorrected error has made a result wrong; memory that cannot be repaired will again",
    source="nvml.h: nvmlDeviceGetTotalEccErrors, nvmlDeviceGetRepairStatus; Documentation/gpu/amdgpu/ras.rst;"
    f" {_REMAP_GUIDE}",
    expected="no uncorrected error",
)
def ecc_errors(on: On, gpu: Gpu) -> Finding:
    """A repair that waits for a reset fails, even where errors are not counted."""
    on = by_driver(on, gpu, "nvmlDeviceGetTotalEccErrors")
    counts = (
        (gpu.ecc_uncorrected, "uncorrected"),
        (gpu.ecc_corrected, "corrected since the driver was loaded"),
        (gpu.ecc_uncorrected_lifetime or None, "uncorrected in its life"),
    )
    beyond = (
        (gpu.sram_threshold_exceeded, "SRAM threshold exceeded"),
        (gpu.unrepairable_memory, "memory that cannot be repaired"),
    )
    waiting = ((gpu.channel_repair_pending, "a memory channel"), (gpu.tpc_repair_pending, "a TPC"))
    worn = [text for flag, text in beyond if flag]
    repairs = [f"repair of {part} pending" for flag, part in waiting if flag]
    uncorrected = gpu.ecc_uncorrected if repairs else fact(on, gpu, "ecc_uncorrected")
    actual = ", ".join([*(f"{count} {text}" for count, text in counts if count is not None), *worn, *repairs])
    if worn or repairs or uncorrected:
        return on.failed(actual, _RMA if worn else "; ".join(filter(None, (reset_hint(gpu), hints_for(gpu).repaired))))
    flags = ("sram_threshold_exceeded", "unrepairable_memory", "channel_repair_pending", "tpc_repair_pending")
    complete(on, gpu, actual, *flags, of_sisters=True)
    return on.passed(actual)


@gpu_check(
    "row-remap",
    title="No row remap pending or failed",
    about="each GPU that remaps rows",
    why="A pending remap needs a reset before the next tenant; a failed one is a GPU to be replaced",
    source=f"nvml.h: nvmlDeviceGetRemappedRows; {_REMAP_GUIDE}",
    expected="none pending, none failed",
)
def row_remap(on: On, gpu: Gpu) -> Finding:
    """Judge row remapping. Pending: a reset applies it, and until then the pages are only kept out of use. Failed: no
    spare row was left."""
    on = by_driver(on, gpu, "nvmlDeviceGetRemappedRows")
    pending, failed = fact(on, gpu, "remapped_pending"), fact(on, gpu, "remapped_failed")
    counts = (
        (gpu.remapped_correctable, "after corrected errors"),
        (gpu.remapped_uncorrectable, "after uncorrected errors"),
    )
    remapped = ", ".join(f"{count} {text}" for count, text in counts if count)
    rows = f"remapped: {remapped}" if remapped else "no row remapped"
    if failed:
        return on.failed(f"remapping failed; {rows}", _RMA)
    if pending:
        return on.failed(f"remapping pending; {rows}", reset_hint(gpu))
    complete(on, gpu, rows, "remapped_correctable", "remapped_uncorrectable")
    complete(on, gpu, rows, "remap_banks_none", of_sisters=True)
    if gpu.remap_banks_none:
        hint = "plan to replace the GPU: the next error in one of these banks cannot be repaired"
        return on.warned(f"{gpu.remap_banks_none} memory banks without a spare row; {rows}", hint)
    return on.passed(rows)


@gpu_check(
    "retired-pages",
    title="No page waits to be retired",
    about="each GPU that retires pages (before Ampere)",
    why="A page with a wrong bit stays in use until the reset",
    source="nvml.h: nvmlDeviceGetRetiredPagesPendingStatus",
    expected="none pending",
)
def retired_pages(on: On, gpu: Gpu) -> Finding:
    """Check for pages that wait to be retired, on GPUs that retire pages; those that remap rows do not."""
    on = by_driver(on, gpu, "nvmlDeviceGetRetiredPagesPendingStatus")
    unread = why_unknown(on, gpu, "retired_pending")
    if unread is not None:
        known = on.host.index.device_id(gpu.address)
        remaps = known is not None and any(low <= known <= high for low, high in table("boards")["remapping"]["ranges"])
        if unread.outcome == "unknown" and (remaps or (gpu.remapped_pending, gpu.remapped_failed) != (None, None)):
            on.skip("it remaps rows instead of retiring pages: see row-remap")
        return unread
    return on.failed("pending", reset_hint(gpu)) if gpu.retired_pending else on.passed("none")


# --- PCIe ----------------------------------------------------------------------------------------------------

NO_BOUND = "of links of 64 GT/s no bound is known: their forward error correction starts from a far higher rate"


def errors_allowed(speed_gts: float, width: int) -> int | None:
    """Return the errors per minute that a link may have at its bit error rate, as DCGM does: rounded up; Gen5 x16: 31.

    None above 32 GT/s (`NO_BOUND`).
    """
    limits = table("limits")["pcie"]
    if speed_gts > limits["bounded_gts"]:
        return None
    return math.ceil(float(limits["bit_error_rate"]) * speed_gts * 1e9 * width * 60)


def by_rate(
    on: On, address: str, count: int, text: str, expected: str, hint: str, seconds: float | None = None
) -> Finding:
    """Judge the errors of a link by their rate: "{rate}" a minute in `text`, "{allowed}" in `expected`.

    They came within `seconds`; None: they are divided by the host's uptime, a rate no higher than the true one.
    """
    health, device = on.evidence.health, on.host.index.pci.get(address)
    link = device.link if device else None
    up = seconds or (health.uptime_seconds if health else None) or None
    up = on.need(up, f"{count} errors; the uptime", "/proc/uptime")
    speed_file, width_file = (sysfs.function(address, f"current_link_{name}") for name in ("speed", "width"))
    speed = on.need(link.speed_gts if link else None, f"{count} errors; the link's speed", speed_file)
    width = on.need(link.width if link else None, f"{count} errors; the link's width", width_file)
    allowed, rate = errors_allowed(speed, width), count / max(up / 60, 1.0)
    text = text.replace("{rate}", f"{rate:.2g}")
    if allowed is None:
        return on.unknown(f"{text}; {NO_BOUND}", "compare with a sister slot, and watch whether the count grows")
    expected = expected.replace("{allowed}", str(allowed))
    return on.passed(text, expected=expected) if rate <= allowed else on.warned(text, hint, expected=expected)


@gpu_check(
    "pcie-replay",
    title="PCIe replays within the bit error rate",
    about="each GPU that counts them",
    why="A link that resends much is a link about to fail, and slow until then",
    source="PCI Express base specification: bit error rate 10^-12; NVIDIA/DCGM modules/health/DcgmHealthWatch.cpp",
    expected="fewer than the bit error rate allows",
)
def pcie_replay(on: On, gpu: Gpu) -> Finding:
    on = by_driver(on, gpu, "nvmlDeviceGetPcieReplayCounter")
    count = fact(on, gpu, "pcie_replays")
    if not count:
        return on.passed("none")
    hint = "reseat the GPU or its riser and cables; compare with a sister slot; read AER (check aer)"
    grown = growth(on.evidence, "replays", gpu.address)
    if grown is None:
        return on.alone(f"{count} since its reset", hint)
    more = grown.counts["replays"]
    text = f"{count} since its reset, {more or 'none'} of them {grown.words}"
    return (
        by_rate(on, gpu.address, more, f"{text}, {{rate}} a minute", "at most {allowed} a minute", hint, grown.seconds)
        if more
        else on.passed(text)
    )
