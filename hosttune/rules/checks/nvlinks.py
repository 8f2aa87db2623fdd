"""Check of NVLinks one by one: their speed, and their errors since the driver was loaded or while benchmarks ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hosttune.gpu import hints_for, vendor_of
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu, Nvlink
from hosttune.model.host import PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, skipped
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import listed
from hosttune.rules.checks.gpufacts import Fact, every_gpu, not_judged, others_of_model

_ERRORS = Fact(
    "nvlink-errors",
    "each active link at full speed, without replays, recoveries and CRC errors",
    ("nvlinks",),
    "nvmlDeviceGetFieldValues",
    tables=True,
)
_COUNTERS = {"replays": "replays", "recoveries": "recoveries", "crc_errors": "CRC errors"}
_NOT_FATAL = ("crc_errors",)  # DCGM: an increase of these warns, of every other one it fails
_Found = tuple[str, str]  # outcome, words


def nvlink_errors(evidence: Evidence) -> Iterable[CheckResult]:
    """Check speed and errors of each active NVLink of each GPU. How many links are active is the check `nvlink`."""

    def judged(gpu: Gpu, device: PciDevice | None) -> CheckResult:
        vendor = vendor_of(gpu.vendor)
        if vendor is None or vendor.link != "nvlink":
            return skipped(_ERRORS.check, gpu.address, "its maker's GPUs are not joined by NVLink")
        if gpu.mig_on and gpu.mig is not None and gpu.mig.pending in ("enabled", None) and not gpu.nvlinks_active:
            return skipped(_ERRORS.check, gpu.address, "MIG is on, which turns NVLink between GPUs off")
        if gpu.nvlinks is None and gpu.nvlinks_active == 0:
            return skipped(_ERRORS.check, gpu.address, "no NVLink of it is active: see nvlink")
        return not_judged(evidence, _ERRORS, gpu, device) or _judge(evidence, gpu, device)

    return every_gpu(evidence, _ERRORS, judged)


def _judge(evidence: Evidence, gpu: Gpu, device: PciDevice | None) -> CheckResult:
    active = [link for link in gpu.nvlinks or () if link.active]
    found = [*_slow(evidence, gpu, active, device.device_id if device else None)]
    found += _counted({link.link: _counts(link) for link in active})
    if evidence.gpus_later is not None:
        found += _grown(evidence, gpu, active)
        again = next((one for one in evidence.gpus_later if one.address == gpu.address), None)
        found += _changed(active, again.nvlinks if again else None)
    hint = f"look at them again with {hints_for(gpu).links}; reset the GPU, then reseat it or its baseboard"
    for outcome, make in (("fail", _ERRORS.failed), ("unknown", _ERRORS.unknown), ("warn", _ERRORS.warned)):
        texts = [text for one, text in found if one == outcome]
        if texts:
            return make(gpu, "; ".join(texts), hint)
    speed = f" of {active[0].gb_per_s:g} GB/s" if active and active[0].gb_per_s else ""
    return _ERRORS.passed(gpu, f"{len(active)} links{speed}, no error")


def _counts(link: Nvlink) -> dict[str, int | None]:
    """Return the counters of a link by name: the three of NVLinks before 5, or those of NVLink 5."""
    return dict(link.errors) if link.errors is not None else {name: getattr(link, name) for name in _COUNTERS}


def _names(counts: dict[int, dict[str, int | None]]) -> dict[str, str]:
    """Return the counters of these links, each with its words."""
    return {name: _COUNTERS.get(name, name) for of in counts.values() for name in of}


def _slow(evidence: Evidence, gpu: Gpu, active: list[Nvlink], device_id: str | None) -> Iterator[_Found]:
    """Yield links below the speed of the model's NVLinks, or of the fastest link of the model here."""
    unread = [str(link.link) for link in active if link.gb_per_s is None]
    if unread:
        yield "unknown", f"the speed of link {listed(unread, 3)} was not reported"
    others = [link for one in (gpu, *others_of_model(evidence, gpu)) for link in one.nvlinks or ()]
    full = max((link.gb_per_s for link in others if link.gb_per_s), default=0.0)
    full = max(full, table("boards")["nvlink_gb_per_s"].get(device_id or "", 0.0))
    slow = [f"{link.link} at {link.gb_per_s:g} GB/s" for link in active if link.gb_per_s and link.gb_per_s < full]
    if slow:
        yield "fail", f"link {listed(slow, 3)}, of {full:g}"


def _changed(active: list[Nvlink], again: tuple[Nvlink, ...] | None) -> Iterator[_Found]:
    """Yield the links that were active before the benchmarks, and are not, or are slower, after them."""
    later = {link.link: link for link in again or ()}
    for link in active:
        now = later.get(link.link)
        if now is None:
            continue  # its counters are told as unknown
        if not now.active:
            yield "fail", f"link {link.link} was active before the benchmarks, and is not after them"
        elif link.gb_per_s is not None and now.gb_per_s is None:
            yield "unknown", f"the speed of link {link.link} after the benchmarks was not reported"
        elif link.gb_per_s is not None and now.gb_per_s is not None and now.gb_per_s < link.gb_per_s:
            yield "fail", f"link {link.link} at {now.gb_per_s:g} GB/s after the benchmarks, of {link.gb_per_s:g}"


def _counted(counts: dict[int, dict[str, int | None]]) -> Iterator[_Found]:
    """Yield the errors since the driver was loaded. Nothing tells when they were, so they warn."""
    unread = [str(link) for link, of in counts.items() if None in of.values()]
    if unread:
        yield "unknown", f"the error counters of link {listed(unread, 3)} were not reported"
    for name, words in _names(counts).items():
        had = {link: count for link, of in counts.items() if (count := of.get(name))}
        if had:
            links = listed([f"{link}: {count}" for link, count in had.items()], 4)
            yield "warn", f"{sum(had.values())} {words} since its driver was loaded (link {links})"


def _grown(evidence: Evidence, gpu: Gpu, active: list[Nvlink]) -> Iterator[_Found]:
    """Yield the errors that came between two looks, judged as DCGM does."""
    again = next((one for one in evidence.gpus_later or () if one.address == gpu.address), None)
    before = {link.link: _counts(link) for link in active}
    later = {link.link: _counts(link) for link in (again.nvlinks if again else None) or ()}
    seconds = max(evidence.seconds_later or 0.0, 1.0)
    limit = table("limits")["nvlink"]["crc_errors_per_second"]
    lost = [str(link) for link, of in before.items() if any(later.get(link, {}).get(name) is None for name in of)]
    if lost:
        yield "unknown", f"the error counters of link {listed(lost, 3)} were not reported again after the benchmarks"
    for name, words in _names(before).items():
        grown = {link: _growth(of.get(name), later.get(link, {}).get(name)) for link, of in before.items()}
        had = {link: count for link, count in grown.items() if count}
        if had:
            fatal = name not in _NOT_FATAL or max(had.values()) >= limit * seconds
            links = listed([f"{link}: {count}" for link, count in had.items()], 4)
            text = f"{sum(had.values())} {words} in {seconds:.0f} s of benchmarks (link {links})"
            yield "fail" if fatal else "warn", text


def _growth(before: int | None, after: int | None) -> int:
    """Return how much a counter grew; one that is smaller than before was cleared, and began at 0 again."""
    if before is None or after is None:
        return 0
    return after - before if after >= before else after


CHECKS: tuple[Check, ...] = (
    Check(
        _ERRORS.check,
        "Links between GPUs at full speed, without errors",
        "each GPU with active NVLinks",
        "A link that replays or retrains stalls every collective over it long before it goes down",
        "NVIDIA/DCGM 4.6.0 modules/health/DcgmHealthWatch.cpp (MonitorNVLink4Fields: an increase of replays or"
        " recoveries fails, one of CRC errors warns, from 100 a second on it fails; MonitorNVLink5Fields: any increase"
        " fails); nvml.h, NVML_FI_DEV_NVLINK_*",
        nvlink_errors,
        inside=True,
        none="GPU",
    ),
)
