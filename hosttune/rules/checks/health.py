"""Other checks of the host's health: PCIe AER, drives, the clock, and whether a baseline was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hosttune.gpu import hints_for, vendor_of
from hosttune.model import sysfs
from hosttune.model.evidence import STATE, Evidence, KernelEvent
from hosttune.model.gpu import Gpu
from hosttune.model.host import Nvme, PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import (
    HOST,
    RECORD,
    accelerators,
    for_vfio,
    lacks,
    listed,
    model_of,
    none_here,
)
from hosttune.rules.checks.gpufacts import OLDER
from hosttune.rules.checks.gpumemory import NO_BOUND, errors_allowed
from hosttune.rules.checks.kernelevents import CHECKS as EVENT_CHECKS

_AER, _DISK, _TIME, _BASELINE = "aer", "disk-health", "time-sync", "monitoring-baseline"
_SMART = ("critical_warning", "media_errors", "avail_spare", "spare_thresh")
_KINDS = ("correctable", "nonfatal", "fatal")
_NO_ERROR = "no uncorrected error; corrected ones within the bit error rate"
_WIRE = "reseat the device, its riser or cables; compare with a sister slot; update firmware of device and switch"

# --- AER -----------------------------------------------------------------------------------------------------


def aer(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the errors on the link of each GPU, NIC, NVMe drive and NVSwitch, counted at both ends since boot.

    The host also counts errors of devices that guests use.
    """
    host = evidence.host
    functions = host.index.pci
    wanted = [gpu.address for gpu in accelerators(host)]
    wanted += [device.address for part in (host.nics, host.nvme, host.nvswitches) for device in part]
    subjects = [a for a in dict.fromkeys(wanted) if a in functions and functions[a].physfn is None]
    for address in subjects:
        yield _link(evidence, functions[address])


def _link(evidence: Evidence, device: PciDevice) -> CheckResult:
    ends = [end for end in (device.address, device.parent) if end]
    health = evidence.health
    counted = {end: counts for end in ends if (counts := (health.aer or {}).get(end))} if health else {}
    events = [e for e in (health.events or () if health else ()) if e.kind in ("aer", "dpc") and e.address in ends]
    # A kernel creates all AER files of an end or none (drivers/pci/pcie/aer.c, aer_stats_attrs_are_visible).
    uncounted = [
        end
        for end in ends
        if end not in counted and lacks(evidence, *_counters(end)) and not _must_count(evidence, end)
    ]
    if not counted and not events and len(uncounted) == len(ends):
        why = "the kernel keeps no AER counts of this link (a virtual port, or firmware handles its errors)"
        return skipped(_AER, device.address, why)
    sums = {kind: sum(counts.get(kind, 0) for counts in counted.values()) for kind in _KINDS}
    bad = sums["fatal"] + sums["nonfatal"] or any(e.severity in ("fatal", "nonfatal") for e in events)
    read = f"aer_dev_* of {', '.join(counted or ends)} in /sys/bus/pci/devices"
    actual = _described(counted, sums, events)
    if bad:
        return failed(_AER, device.address, expected=_NO_ERROR, actual=actual, source=read, hint=_WIRE)
    # Both ends count errors. That a port disabled its link is only in the kernel log.
    silent = [end for end in ends if end not in uncounted and not all(kind in counted.get(end, {}) for kind in _KINDS)]
    if silent or health is None or health.events is None:
        lacking = "the kernel log could not be read"
        if silent:
            lacking = (
                "its AER counts are not known" if silent == ends else f"the AER counts of {silent[0]} are not known"
            )
        why = lacking if actual == "none" else f"{actual}; {lacking}"
        hint = OLDER if evidence.complete else RECORD
        return unknown(_AER, device.address, expected=_NO_ERROR, why=why, hint=hint)
    logged = sum(event.count for event in events)  # for links whose errors are in no counter
    return _corrected(evidence, device, sums["correctable"] or logged, actual, read)


def _must_count(evidence: Evidence, end: str) -> bool:
    """Return whether the kernel must have AER counters of a function, because it counts, or reports, errors of others.

    It then has counters of each function with the AER capability (drivers/pci/pcie/aer.c, pci_aer_init). Where the
    capability is unknown, functions of the same model are the same.
    """
    functions, health = evidence.host.index.pci, evidence.health
    device = functions.get(end)
    counted = {} if health is None else health.aer or {}
    reports = bool(counted) or any(event.kind in ("aer", "dpc") for event in (health.events or () if health else ()))
    if device is None or not reports:
        return False
    alike = (functions[one] for one in counted if one in functions and model_of(functions[one]) == model_of(device))
    return bool(device.aer) or any(device.aer is None or not one.aer for one in alike)


def _counters(end: str) -> list[str]:
    return [f"{sysfs.PCI_DEVICES}/{end}/aer_dev_{kind}" for kind in _KINDS]


def _described(counted: Mapping[str, Mapping[str, int]], sums: Mapping[str, int], events: list[KernelEvent]) -> str:
    parts = [f"{sums[kind]} {kind}" for kind in _KINDS if sums[kind]]
    named = {name for counts in counted.values() for name, count in counts.items() if ":" in name and count}
    parts += [listed(sorted(name.partition(":")[2] for name in named))] if named else []
    if not counted or not parts:
        parts += [f"{event.severity} in the kernel log {event.count} times" for event in events]
    return ", ".join(parts) or "none"


def _corrected(evidence: Evidence, device: PciDevice, count: int, actual: str, read: str) -> CheckResult:
    """Judge corrected errors by their rate since boot."""
    if not count:
        return passed(_AER, device.address, expected=_NO_ERROR, actual=actual, source=read)
    up = evidence.health.uptime_seconds if evidence.health else None
    link = device.link
    if not up or link is None or not link.speed_gts or not link.width:
        why = f"{actual}; the rate is not known"
        return unknown(_AER, device.address, expected=_NO_ERROR, why=why, hint=RECORD, source=read)
    allowed = errors_allowed(link.speed_gts, link.width)
    rate = count / max(up / 60, 1.0)
    text = f"{actual}; {rate:.2g} a minute since boot"
    if allowed is None:
        why, hint = f"{text}; {NO_BOUND}", "compare with a sister slot, and watch whether the count grows"
        return unknown(_AER, device.address, expected=_NO_ERROR, why=why, hint=hint, source=read)
    expected = f"no uncorrected error; corrected ones at most {allowed} a minute"
    if rate <= allowed:
        return passed(_AER, device.address, expected=expected, actual=text, source=read)
    return warned(_AER, device.address, expected=expected, actual=text, source=read, hint=_WIRE)


# --- drives --------------------------------------------------------------------------------------------------


def disk_health(evidence: Evidence) -> Iterable[CheckResult]:
    """Check each NVMe drive: it responds, and its own log is healthy where nvme-cli can read it."""
    functions = evidence.host.index.pci
    disks = (evidence.health.disks if evidence.health else None) or {}
    reported = {name for words in disks.values() for name in words}
    for drive in evidence.host.nvme:
        device = functions.get(drive.address)
        yield _drive(evidence, drive, device, disks.get(drive.address), reported)


def _drive(
    evidence: Evidence, drive: Nvme, device: PciDevice | None, words: Mapping[str, str] | None, reported: set[str]
) -> CheckResult:
    expected = "alive, no critical warning, no media error"
    if device is not None and for_vfio(device.driver):
        return skipped(_DISK, drive.address, f"on {device.driver}: its guest sees it")
    if not words:
        hint = "load the nvme driver, or run as root" if evidence.complete else RECORD
        return unknown(_DISK, drive.address, expected=expected, why="nothing of its state is known", hint=hint)
    read = f"/sys/class/nvme/{drive.controller}, nvme smart-log"
    bad, doubtful = _faults(words)
    hint = f"nvme smart-log /dev/{drive.controller}; replace the drive before a guest depends on it"
    if bad:
        actual = ", ".join([*bad, *doubtful])
        return failed(_DISK, drive.address, expected=expected, actual=actual, source=read, hint=hint)
    silent = words.get("smart") == "not installed" and not reported.intersection(_SMART)
    lacking = _lacking(words, reported, smart=not silent)
    if lacking:
        why = words.get("smart") if not silent else None
        why = ", ".join([*doubtful, why or f"its {listed(lacking)} could not be read"])
        hint = "run hosttune validate as root" if evidence.complete else RECORD
        return unknown(_DISK, drive.address, expected=expected, why=why, hint=hint)
    if doubtful:
        return warned(_DISK, drive.address, expected=expected, actual=", ".join(doubtful), source=read, hint=hint)
    if silent:
        state = words["state"]
        return skipped(_DISK, drive.address, f"state {state}; nvme-cli is not installed to ask its own log")
    wear = words.get("percent_used") or words.get("percentage_used")
    actual = f"{words.get('state', 'state unknown')}, no warning" + (f", {wear} % worn" if wear else "")
    return passed(_DISK, drive.address, expected=expected, actual=actual, source=read)


def _lacking(words: Mapping[str, str], reported: set[str], *, smart: bool) -> list[str]:
    """Return what is not known about a drive: its own log if `smart`, and other words that another drive reports."""
    needed = {"state", *(_SMART if smart else ()), *(reported & {"alarm"})}
    lacking = sorted(name for name in needed if not words.get(name))
    lacking += sorted(name for name in _SMART if words.get(name) and not words[name].isdecimal())
    if smart and not any(words.get(name, "").isdecimal() for name in ("percent_used", "percentage_used")):
        lacking.append("percent_used")
    return lacking if words.get("alarm", "0") in ("0", "1") else [*lacking, "temperature alarm"]


def _faults(words: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the failures and the warnings in the words that a drive reports."""
    number = {name: int(word) for name, word in words.items() if word.isdecimal() and len(word) < 40}
    bad = [f"state {words['state']}"] if words.get("state", "live") != "live" else []
    bad += ["temperature alarm"] if words.get("alarm") == "1" else []
    bad += [f"critical warning {number['critical_warning']:#x}"] if number.get("critical_warning") else []
    spare, least = number.get("avail_spare"), number.get("spare_thresh")
    bad += [f"spare {spare} % below {least} %"] if spare is not None and least is not None and spare < least else []
    doubtful = [f"{number['media_errors']} media errors"] if number.get("media_errors") else []
    wear = max(number.get("percent_used", 0), number.get("percentage_used", 0))
    doubtful += [f"{wear} % of its endurance used"] if wear >= table("limits")["nvme"]["percent_used"] else []
    return bad, doubtful


# --- clock and baseline --------------------------------------------------------------------------------------


def time_sync(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that a service keeps the clock synchronised."""
    health = evidence.health
    expected = "kept right by a time service"
    if health is None or health.time_synchronised is None:
        yield unknown(
            _TIME,
            HOST,
            expected=expected,
            why="the kernel's clock state is not known",
            hint="timedatectl shows it" if evidence.complete else RECORD,
        )
    elif health.time_synchronised:
        error = health.time_error_seconds
        actual = "synchronised" + ("" if error is None else f", within {error:.3g} s")
        yield passed(_TIME, HOST, expected=expected, actual=actual, source=health.time_source or "adjtimex(2)")
    else:
        hint = "install and start chrony or systemd-timesyncd (timedatectl set-ntp true)"
        source = health.time_source or "adjtimex(2)"
        yield warned(_TIME, HOST, expected=expected, actual="not synchronised", source=source, hint=hint)


def _is_silent(evidence: Evidence, gpu: Gpu) -> bool:
    """Return whether a GPU has, or may have, its maker's driver, and that driver's version is unknown."""
    vendor, index = vendor_of(gpu.vendor), evidence.host.index
    if gpu.driver_version is not None or vendor is None or "driver_version" not in vendor.tells:
        return False
    device = index.pci.get(gpu.address)
    may_hold = device is None or device.driver in (None, vendor.driver)
    return may_hold and not lacks(evidence, sysfs.function(gpu.address, "driver"))


def monitoring_baseline(evidence: Evidence) -> Iterable[CheckResult]:
    """Check for a stored measurement (level 1 or higher) of this host with the driver that is loaded now."""
    versions = {
        gpu.driver_version
        for gpu in accelerators(evidence.host)
        if vendor_of(gpu.vendor) is not None and gpu.driver_version
    }
    silent = [gpu for gpu in accelerators(evidence.host) if _is_silent(evidence, gpu)]
    if not versions and (silent or not accelerators(evidence.host)):
        if not silent:
            yield none_here(evidence, _BASELINE, "GPU")
            return
        why = f"the driver's version of {listed([gpu.address for gpu in silent], 3)} is not known"
        hint = f"{hints_for(silent[0]).show}, or gpu-driver, says why its driver does not report it"
        expected = "a stored level 1 validation with this driver"
        yield unknown(_BASELINE, HOST, expected=expected, why=why, hint=hint)
        return
    if not versions:
        yield skipped(_BASELINE, HOST, "no GPU that its driver holds and reports: nothing to measure here")
        return
    now = ", ".join(sorted(versions))
    expected = f"a stored level 1 validation with driver {now}"
    stored = [old for old in evidence.history if old.level >= 1 and old.samples]
    matching = [old for old in stored if (old.facts or {}).get("driver") == now]
    read = "the state directory"
    if matching:
        actual = f"level {matching[-1].level} of {matching[-1].at or 'unknown date'}"
        yield passed(_BASELINE, HOST, expected=expected, actual=actual, source=read)
    elif not stored and evidence.applied_state is None and all(problem.what != STATE for problem in evidence.problems):
        yield skipped(_BASELINE, HOST, "a capture or a document holds no measurements: the host itself keeps them")
    elif not stored and evidence.applied_state is None:
        hint = "hosttune validate --level 1 on the host, as root"
        yield unknown(_BASELINE, HOST, expected=expected, why="no state of this host can be read here", hint=hint)
    else:
        hint = "hosttune validate --level 1 while the host is idle: later runs are compared with it"
        actual = "only with another driver" if stored else "none"
        yield warned(_BASELINE, HOST, expected=expected, actual=actual, source=read, hint=hint)


CHECKS: tuple[Check, ...] = (
    *EVENT_CHECKS,
    Check(
        _AER,
        "No PCIe errors on the links that matter",
        "each GPU, NIC, NVMe drive and NVSwitch",
        "A link that corrects many errors is slow and about to fail; an uncorrected one ends a guest",
        "Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats, Documentation/PCI/pcieaer-howto.rst",
        aer,
        none="GPU, NIC, NVMe drive or NVSwitch",
        of_tree=True,
    ),
    Check(
        _DISK,
        "NVMe drives healthy",
        "each NVMe drive",
        "A drive that fails under a guest takes its data with it",
        "NVM Express base specification: SMART / Health Information; Linux drivers/nvme/host/hwmon.c",
        disk_health,
        none="NVMe drive",
        inside=True,
    ),
    Check(
        _TIME,
        "The clock is kept right",
        "host",
        "Logs of several hosts can only be put in order, and licences and certificates checked, with the right time",
        "adjtimex(2): STA_UNSYNC",
        time_sync,
        inside=True,
    ),
    Check(
        _BASELINE,
        "Measured before, with this driver",
        "host",
        "Without a measurement of this host a later slowdown has nothing to be compared with",
        "hosttune's own rule: a host is judged against its own history",
        monitoring_baseline,
    ),
)
