"""Other checks of the host's health: PCIe AER, drives, the clock, and whether a baseline was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hosttune.gpu import hints_for, vendor_of
from hosttune.inventory.pcielink import uplinks
from hosttune.model import sysfs
from hosttune.model.counters import growth, may_be_new
from hosttune.model.evidence import STATE, Evidence, Health, KernelEvent, Security
from hosttune.model.gpu import Gpu
from hosttune.model.host import Nvme, PciDevice
from hosttune.model.pci import for_vfio
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import RECORD, accelerators, lacks, listed, model_of
from hosttune.rules.checks.gpumemory import by_rate
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

_SMART = ("critical_warning", "media_errors", "avail_spare", "spare_thresh")
_KINDS = ("correctable", "nonfatal", "fatal")
_WEAR = ("percent_used", "percentage_used")  # of nvme-cli 2, and of older ones


# --- AER -----------------------------------------------------------------------------------------------------


def _links(evidence: Evidence) -> Iterator[tuple[str, PciDevice]]:
    """Yield each GPU, NIC, NVMe drive and NVSwitch that is a function of its own, and the uplinks above them."""
    host = evidence.host
    addresses = [gpu.address for gpu in accelerators(host)]
    addresses += [device.address for part in (host.nics, host.nvme, host.nvswitches) for device in part]
    addresses += [hop.end.address for address in addresses for hop in uplinks(host.index, address)]
    for address in dict.fromkeys(addresses):
        function = host.index.pci.get(address)
        if function is not None and function.physfn is None:
            yield address, function


WIRE = "reseat the device, its riser or cables; compare with a sister slot; update firmware of device and switch"


@check(
    "aer",
    title="No PCIe errors on the links that matter",
    about="each GPU, NIC, NVMe drive and NVSwitch, and each uplink of a switch above one",
    why="A link that corrects many errors is slow and about to fail; an uncorrected one ends a guest",
    source="Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats, Documentation/PCI/pcieaer-howto.rst",
    expected="no uncorrected error; corrected ones within the bit error rate",
    each=_links,
    none="GPU, NIC, NVMe drive or NVSwitch",
    of_tree=True,
)
def aer(on: On, device: PciDevice) -> Finding:
    """Check the errors on a device's link, counted at both ends: those since the last look, or between two readings.

    One reading alone that is not 0 does not tell when the errors came: it warns. The host also counts errors of devices
    that guests use. That a port disabled its link is only in the kernel log.
    """
    health = on.evidence.health or Health()
    ends = [end for end in (device.address, device.parent) if end]
    counted = {end: counts for end in ends if (counts := (health.aer or {}).get(end))}
    events = [event for event in _pcie_events(health) if event.address in ends and may_be_new(on.evidence, event)]
    # A kernel creates all AER files of an end or none (drivers/pci/pcie/aer.c, aer_stats_attrs_are_visible).
    files = {end: [f"{sysfs.PCI_DEVICES}/{end}/aer_dev_{kind}" for kind in _KINDS] for end in ends}
    uncounted = [end for end in ends if end not in counted and lacks(on.evidence, *files[end]) and not _counts(on, end)]
    if not counted and not events and len(uncounted) == len(ends):
        on.skip("the kernel keeps no AER counts of this link (a virtual port, or firmware handles its errors)")
    on = on.reading(f"aer_dev_* of {', '.join(counted or ends)} in /sys/bus/pci/devices")
    sums = {kind: sum(counts.get(kind, 0) for counts in counted.values()) for kind in _KINDS}
    actual = _described(counted, sums, events)
    grown = growth(on.evidence, "aer", *counted) if any(sums.values()) else None
    if grown is not None:
        actual += (
            f", of which {_described({}, grown.counts, []) if any(grown.counts.values()) else 'none'} {grown.words}"
        )
    fatal = grown is not None and any(grown.counts.get(kind) for kind in _KINDS[1:])
    if fatal or any(event.severity in ("fatal", "nonfatal") for event in events):
        return on.failed(actual, WIRE)
    before = "" if actual == "none" else f"{actual}; "
    silent = [end for end in ends if end not in uncounted and not all(kind in counted.get(end, {}) for kind in _KINDS)]
    if silent:
        on.need(None, f"{before}the AER count of {silent[0]}", look=f"grep . {sysfs.PCI_DEVICES}/{silent[0]}/aer_dev_*")
    on.need(health.events, f"{before}the kernel log", look="dmesg, as root")
    if any(sums.values()) and grown is None:
        hours = f", within {health.uptime_seconds / 3600:.3g} h" if health.uptime_seconds else ""
        return on.alone(f"{actual} since boot{hours}", WIRE)
    # Of links whose errors are in no counter the log has them.
    count = grown.counts.get("correctable", 0) if grown is not None else sum(event.count for event in events)
    if not count:
        return on.passed(actual)
    expected = "no uncorrected error; corrected ones at most {allowed} a minute"
    text = f"{actual}; {{rate}} a minute" + (" since boot" if grown is None else "")
    return by_rate(on, device.address, count, text, expected, WIRE, grown.seconds if grown is not None else None)


def _pcie_events(health: Health) -> list[KernelEvent]:
    return [event for event in health.events or () if event.kind in ("aer", "dpc")]


def _counts(on: On, end: str) -> bool:
    """Return whether the kernel counts the errors of a function, although it shows no counters.

    A kernel that reports errors counts those of each function with the AER capability (drivers/pci/pcie/aer.c,
    pci_aer_init). Where the capability is unknown, functions of the same model are the same.
    """
    functions, health = on.host.index.pci, on.evidence.health or Health()
    device, counted = functions.get(end), health.aer or {}
    if device is None:
        return False
    others = (functions[other] for other in counted if other in functions)
    alike = [other for other in others if model_of(other) == model_of(device)]
    has_counters = bool(device.aer and (counted or _pcie_events(health)))
    return has_counters or any(device.aer is None or not other.aer for other in alike)


def _described(counted: Mapping[str, Mapping[str, int]], sums: Mapping[str, int], events: list[KernelEvent]) -> str:
    parts = [f"{sums[kind]} {kind}" for kind in _KINDS if sums.get(kind)]
    kinds = {name for counts in counted.values() for name, count in counts.items() if ":" in name and count}
    parts += [listed(sorted(name.partition(":")[2] for name in kinds))] if kinds else []
    if not counted or not parts:
        parts += [f"{event.severity} in the kernel log {event.count} times" for event in events]
    return ", ".join(parts) or "none"


# --- drives --------------------------------------------------------------------------------------------------


@check(
    "disk-health",
    title="NVMe drives healthy",
    about="each NVMe drive",
    why="A drive that fails under a guest takes its data with it",
    source="NVM Express base specification: SMART / Health Information; Linux drivers/nvme/host/hwmon.c",
    expected="alive, no critical warning, no media error",
    each=lambda evidence: ((drive.address, drive) for drive in evidence.host.nvme),
    none="NVMe drive",
    inside=True,
)
def disk_health(on: On, drive: Nvme) -> Finding:
    device = on.host.index.pci.get(drive.address)
    if device is not None and for_vfio(device.driver):
        on.skip(f"on {device.driver}: its guest sees it")
    where = sysfs.function(drive.address, "driver")
    if device is not None and device.driver is None and lacks(on.evidence, where):
        hint = "look in the kernel log why its driver gave it up; a plan that gives it to a guest binds it"
        return on.warned("no driver holds it", hint, where)
    disks = (on.evidence.health.disks if on.evidence.health else None) or {}
    words = on.need(disks.get(drive.address) or None, "its state", look="nvme list, as root")
    on = on.reading(f"/sys/class/nvme/{drive.controller}, nvme smart-log")
    bad, doubtful = _faults(words)
    hint = f"nvme smart-log /dev/{drive.controller}; replace the drive before a guest depends on it"
    if bad:
        return on.failed(", ".join([*bad, *doubtful]), hint)
    reported = {name for told in disks.values() for name in told}
    untold = words.get("smart") == "not installed" and not reported.intersection(_SMART)
    lacking = _lacking(words, reported, smart=not untold)
    if lacking:
        why = (None if untold else words.get("smart")) or f"its {listed(lacking)} could not be read"
        on.give_up(", ".join([*doubtful, why]), "run hosttune validate as root" if on.evidence.complete else RECORD)
    if doubtful:
        return on.warned(", ".join(doubtful), hint)
    if untold:
        on.skip(f"state {words['state']}; nvme-cli is not installed to ask its own log")
    wear = next((words[name] for name in _WEAR if words.get(name)), None)
    return on.passed(f"{words['state']}, no warning" + (f", {wear} % worn" if wear else ""))


def _lacking(words: Mapping[str, str], reported: set[str], *, smart: bool) -> list[str]:
    """Return what is not known about a drive: its own log if `smart`, and other words that another drive reports."""
    needed = {"state", *(_SMART if smart else ()), *(reported & {"alarm"})}
    lacking = sorted(name for name in needed if not words.get(name) or (name in _SMART and not words[name].isdecimal()))
    if smart and not any(words.get(name, "").isdecimal() for name in _WEAR):
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
    wear = max(number.get(name, 0) for name in _WEAR)
    doubtful += [f"{wear} % of its endurance used"] if wear >= table("limits")["nvme"]["percent_used"] else []
    return bad, doubtful


# --- clock and baseline --------------------------------------------------------------------------------------

_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")  # of the board, not of CPU or hypervisor


@check(
    "time-sync",
    title="The clock is kept right",
    about="host",
    why="Order of logs of several hosts, licences and certificates need the right time",
    source="adjtimex(2): STA_UNSYNC; systemd (ntp_synced: an error below 16 s); chrony sys_timex.c (set_sync_status)",
    expected="kept right by a time service",
    inside=True,
)
def time_sync(on: On) -> Finding:
    """chronyd leaves STA_UNSYNC set unless it has `rtcsync`, but keeps the maximum error: without a service 16 s."""
    health = on.evidence.health or Health()
    on, error = on.reading(health.time_source or "adjtimex(2)"), health.time_error_seconds
    if not on.need(health.time_synchronised, "the kernel's clock state", look="timedatectl"):
        if error is not None and error < 16:
            return on.passed(f"within {error:.3g} s, by a service that does not set the hardware clock (no rtcsync)")
        hint = "install and start chrony or systemd-timesyncd (timedatectl set-ntp true); chronyc tracking says more"
        return on.warned("not synchronised", hint)
    return on.passed("synchronised" + ("" if error is None else f", within {error:.3g} s"))


@check(
    "clocksource",
    title="The kernel reads the time from the CPU",
    about="host",
    why="without the TSC each reading of the time leaves the CPU, on the host and in every guest",
    source="Linux kernel/time/clocksource.c; kernel-parameters: tsc",
    expected="tsc, or what the hypervisor offers",
    remedy="dmesg | grep -i tsc says why the TSC was rejected; update the firmware, take clocksource= and tsc=unstable"
    " out of the kernel's arguments, then reboot",
    reads=sysfs.CLOCKSOURCE,
    inside=True,
    since=2,
)
def clocksource(on: On) -> Finding:
    name = on.need((on.evidence.security or Security()).clocksource, "the clock source", sysfs.CLOCKSOURCE)
    if name not in _SLOW_CLOCKS:
        return on.passed(name)
    return on.warned(name) if on.host.hypervisor else on.failed(name)


@check(
    "monitoring-baseline",
    title="Measured before, with this driver",
    about="host",
    why="Without it a later slowdown has nothing to be compared with",
    source="hosttune's own rule: a host is judged against its own history",
    expected="a stored level 1 validation with this driver",
    reads="the state directory",
    none="GPU",
)
def monitoring_baseline(on: On) -> Finding | tuple[()]:
    gpus = accelerators(on.host)
    versions = {gpu.driver_version for gpu in gpus if vendor_of(gpu.vendor) is not None and gpu.driver_version}
    silent = [gpu for gpu in gpus if _is_silent(on, gpu)]
    if not gpus:
        return ()
    if not versions and silent:
        why = f"the driver's version of {listed([gpu.address for gpu in silent], 3)} was not read"
        on.give_up(why, f"{hints_for(silent[0]).show}, or gpu-driver, says why its driver does not report it")
    if not versions:
        on.skip("no GPU that its driver holds and reports: nothing to measure here")
    now = ", ".join(sorted(versions))
    expected = f"a stored level 1 validation with driver {now}"
    stored = [old for old in on.evidence.history if old.level >= 1 and old.samples]
    last = next((old for old in reversed(stored) if (old.facts or {}).get("driver") == now), None)
    if last is not None:
        return on.passed(f"level {last.level} of {last.at or 'unknown date'}", expected=expected)
    if on.evidence.loaded_links or on.evidence.loaded_clocks:
        return on.passed("this one", expected=expected)
    if not stored and on.evidence.applied_state is None:
        if all(problem.what != STATE for problem in on.evidence.problems):
            on.skip("a capture or a document holds no measurements: the host itself keeps them")
        on.give_up("no state of this host can be read here", "hosttune validate --level 1 on the host, as root")
    hint = "hosttune validate --level 1 while the host is idle: later runs are compared with it"
    return on.warned("only with another driver" if stored else "none", hint, expected=expected)


def _is_silent(on: On, gpu: Gpu) -> bool:
    """Return whether a GPU has, or may have, its maker's driver, and that driver's version is unknown."""
    vendor, device = vendor_of(gpu.vendor), on.host.index.pci.get(gpu.address)
    if gpu.driver_version is not None or vendor is None or "driver_version" not in vendor.tells:
        return False
    may_hold = device is None or device.driver in (None, vendor.driver)
    return may_hold and not lacks(on.evidence, sysfs.function(gpu.address, "driver"))
