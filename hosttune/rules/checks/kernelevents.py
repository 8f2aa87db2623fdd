"""Checks of hardware events in the kernel log: GPU XIDs, NVSwitch SXids, machine checks; and the counters of EDAC.

Each is judged by what the log contains. If a part of the log is unknown (older lines are lost, records could not be
read), the known part can still cause a failure; any better result is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.gpu import vendor_of
from hosttune.model.evidence import Evidence, Health, KernelEvent
from hosttune.model.gpu import Gpu
from hosttune.model.problems import MEMORY_UNSURE
from hosttune.model.validation import CheckResult
from hosttune.model.values import format_size
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import (
    HOST,
    RECORD,
    accelerators,
    for_vfio,
    listed,
    no_switch,
    none_here,
    refused,
)
from hosttune.rules.checks.gpufacts import OLDER
from hosttune.rules.checks.xids import rulings

_XID, _SXID, _MCE = "xid", "sxid", "machine-check"
_XIDS = "NVIDIA, Xid catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html)"
_EDAC = "/sys/devices/system/edac/mc"
_MEMINFO = "/proc/meminfo"
_LOOK_AT_MEMORY = f"look with: grep MemTotal {_MEMINFO} /sys/devices/system/node/node*/meminfo"
_CLEAN = "none since boot"


def _events(evidence: Evidence, *kinds: str) -> list[KernelEvent]:
    health = evidence.health
    return [event for event in (health.events or () if health else ()) if event.kind in kinds]


def _read(evidence: Evidence) -> str | None:
    """Return why all or part of the kernel log is unknown; None if all of it since boot is known."""
    health = evidence.health
    if health is None or health.events is None:
        return "the kernel log could not be read"
    if health.events_unread:
        return f"{health.events_unread} records of the kernel log could not be read"
    since = health.events_since
    if since is None:
        return "the kernel log is empty or its times are not known: it was cleared, or it is damaged"
    if since > table("limits")["xids"]["whole_log_seconds"]:
        return f"the kernel log is only known since {since / 3600:.3g} h after boot: older lines are lost"
    return None


def _hint(evidence: Evidence) -> str:
    health = evidence.health
    if not evidence.complete and (health is None or health.events is None):
        return RECORD
    if health is None or health.events is None:
        return f"run hosttune validate as root: dmesg is refused to others; {OLDER}"
    if health.events_unread:
        return "read it by hand: dmesg --kernel; what is damaged in a capture, capture again"
    return (
        "keep the journal from boot on (Storage=persistent and SystemMaxUse in journald.conf, so that journalctl"
        " --dmesg --boot begins with the boot), or boot with a larger log_buf_len; a reboot begins a new log"
    )


def _source(health: Health | None) -> str:
    return (health.events_source if health else None) or "kernel log"


def _actual(evidence: Evidence, text: str) -> str:
    """Return what was found, and which part of the log is unknown."""
    why = _read(evidence)
    return text if why is None else f"{text}; {why}"


def _when(event: KernelEvent) -> str:
    times = "" if event.count == 1 else f" {event.count} times"
    at = "" if event.last_seconds is None else f", last {event.last_seconds / 3600:.3g} h after boot"
    return f"{times}{at}"


# --- XID -----------------------------------------------------------------------------------------------------


def xid(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the XIDs of each GPU of a maker that reports XIDs, by NVIDIA's catalogue; the worst XID decides.

    The XIDs of a GPU in a guest go to the guest's kernel log: those in the host's log are from an earlier time. If a
    device has XIDs but is in no other list, it was present at some time since boot.
    """
    gpus = [gpu.address for gpu in accelerators(evidence.host) if _logs_xids(gpu)]
    functions = evidence.host.index.pci
    events = _events(evidence, "xid", "lost")
    addresses = dict.fromkeys([*gpus, *(event.address or HOST for event in events)])
    if not addresses:
        others = accelerators(evidence.host)
        yield skipped(_XID, HOST, "no GPU here that logs XIDs") if others else none_here(evidence, _XID, "GPU")
        return
    why = _read(evidence) or _misplaced(evidence, events)
    for address in addresses:
        device = functions.get(address)
        own = [event for event in events if (event.address or HOST) == address]
        if own:
            yield _xids(evidence, address, own)
        elif device is not None and for_vfio(device.driver):
            yield skipped(_XID, address, f"on {device.driver}: its XIDs are in the guest's kernel log")
        elif why is not None:
            yield unknown(_XID, address, expected=_CLEAN, why=why, hint=_hint(evidence))
        else:
            yield passed(_XID, address, expected=_CLEAN, actual=_CLEAN, source=_source(evidence.health))


def _misplaced(evidence: Evidence, events: list[KernelEvent]) -> str | None:
    """Return which event is of a function that is not a GPU, so that it is of one that it does not name; else None."""
    functions = evidence.host.index.pci
    others = (functions.get(event.address or "") for event in events)
    strange = next((one.address for one in others if one and one.class_code and not one.is_display), None)
    return None if strange is None else f"the log has an XID of {strange}, which is not a GPU: it is of another one"


def _logs_xids(gpu: Gpu) -> bool:
    vendor = vendor_of(gpu.vendor)
    return vendor is not None and vendor.fabric


def _xids(evidence: Evidence, address: str, events: list[KernelEvent]) -> CheckResult:
    ruled = rulings(events)
    worst = ruled[0][1]
    text = listed([f"{ruling.name}{_when(event)}" for event, ruling in ruled])
    read = _source(evidence.health)
    why = _read(evidence)
    if worst.outcome == "fail":
        return failed(_XID, address, expected=_CLEAN, actual=text, source=read, hint=worst.hint)
    if worst.outcome == "unknown" or why is not None:
        hint = worst.hint if worst.outcome == "unknown" else _hint(evidence)
        return unknown(_XID, address, expected=_CLEAN, why=_actual(evidence, text), hint=hint, source=read)
    if worst.outcome == "inform":
        return passed(_XID, address, expected="none that says the GPU failed", actual=text, source=read)
    return warned(_XID, address, expected=_CLEAN, actual=text, source=read, hint=worst.hint)


# --- SXid ----------------------------------------------------------------------------------------------------


def sxid(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the SXids of each NVSwitch: a fatal one fails, any other warns (the driver's own word in the record)."""
    switches = evidence.host.nvswitches
    events = _events(evidence, "sxid")
    if not switches and not events:
        yield no_switch(evidence, _SXID)
        return
    why = _read(evidence)
    known = [switch.address for switch in switches]
    vfio = {switch.address for switch in switches if for_vfio(switch.driver)}
    for address in dict.fromkeys([*known, *(event.address or HOST for event in events)]):
        own = [event for event in events if (event.address or HOST) == address]
        if own:
            yield _sxids(evidence, address, own)
        elif address in vfio:
            yield skipped(_SXID, address, "on vfio-pci: its SXids are in the guest's kernel log")
        elif why is not None:
            yield unknown(_SXID, address, expected=_CLEAN, why=why, hint=_hint(evidence))
        else:
            yield passed(_SXID, address, expected=_CLEAN, actual=_CLEAN, source=_source(evidence.health))


def _sxids(evidence: Evidence, address: str, events: list[KernelEvent]) -> CheckResult:
    fatal = [event for event in events if event.severity == "fatal"]
    texts = [f"SXid {event.code} ({event.severity}){_when(event)}" for event in [*fatal, *events] if event.code]
    text = listed(list(dict.fromkeys(texts)))
    read = _source(evidence.health)
    if fatal:
        hint = "reset all GPUs and NVSwitches of the board and restart nvidia-fabricmanager"
        return failed(_SXID, address, expected=_CLEAN, actual=text, source=read, hint=hint)
    if _read(evidence) is not None:
        why = _actual(evidence, text)
        return unknown(_SXID, address, expected=_CLEAN, why=why, hint=_hint(evidence), source=read)
    hint = "read /var/log/fabricmanager.log and appendix D of the Fabric Manager user guide"
    return warned(_SXID, address, expected=_CLEAN, actual=text, source=read, hint=hint)


# --- machine checks ------------------------------------------------------------------------------------------

_PART = "ras-mc-ctl --errors or the BMC's event log names the part: memory module, CPU or PCIe slot"


def machine_check(evidence: Evidence) -> Iterable[CheckResult]:
    """Check machine checks, errors reported by firmware, and memory errors: uncorrected ones fail, corrected ones warn.

    There are three sources: the log, EDAC's counters since its driver was loaded, and the memory that the kernel has
    taken out of use since boot. Linux' RAS guide recommends reporting every corrected memory error: such errors
    indicate a module that begins to fail. Memory is taken out of use after an uncorrected error, and by programs after
    many corrected ones (mm/memory-failure.c, soft_offline_page), so alone it warns.
    """
    events = _events(evidence, "mce", "edac")
    counts = (evidence.health.edac if evidence.health else None) or {}
    texts = [f"{_kind(event)}{_when(event)}" for event in events]
    texts += [f"{name} counts {n} {kind}" for name, found in counts.items() for kind, n in found.items() if n]
    corrupted = evidence.health.corrupted_bytes if evidence.health else None
    texts += [f"the kernel has found {format_size(corrupted)} of memory corrupted"] if corrupted else []
    hard = any(event.severity != "corrected" for event in events) or any(found.get("ue") for found in counts.values())
    read = _source(evidence.health) + (f", {_EDAC}/mc*/{{ue,ce}}_count" if counts else "")
    read += f", {_MEMINFO} (HardwareCorrupted)" if corrupted else ""
    why = _read(evidence) or _uncounted(evidence) or _memory_unread(evidence)
    actual = listed(texts)
    if hard:
        yield failed(_MCE, HOST, expected=_CLEAN, actual=actual, source=read, hint=_PART)
    elif why is not None:
        hint = f"cat {_EDAC}/mc*/ue_count as root" if _uncounted(evidence) else _LOOK_AT_MEMORY
        hint = _hint(evidence) if _read(evidence) else hint
        yield unknown(_MCE, HOST, expected=_CLEAN, why=f"{actual}; {why}" if texts else why, hint=hint)
    elif texts:
        yield warned(_MCE, HOST, expected=_CLEAN, actual=actual, source=read, hint=_PART)
    else:
        yield passed(_MCE, HOST, expected=_CLEAN, actual=_CLEAN, source=read)


def _kind(event: KernelEvent) -> str:
    if event.kind == "edac":
        return f"{'corrected' if event.severity == 'corrected' else 'uncorrected'} memory error (EDAC MC{event.code})"
    return f"{event.severity or 'hardware'} error"


def _uncounted(evidence: Evidence) -> str | None:
    """Return which memory controllers, of those in the log or in sysfs, have unknown error counts; else None."""
    counts = (evidence.health.edac if evidence.health else None) or {}
    why = refused(evidence, "/sys/devices/system/edac")
    if why is not None:
        return why
    known = {name for name, found in counts.items() if None not in (found.get("ue"), found.get("ce"))}
    seen = {f"mc{event.code}" for event in _events(evidence, "edac-mc")}
    missing = sorted((seen | set(counts)) - known)
    return f"the error counts of {listed(missing)} could not be read" if missing else None


def _memory_unread(evidence: Evidence) -> str | None:
    """Return why the kernel's own count of corrupted memory is unknown, or why its files about memory are in doubt."""
    doubt = next((one for one in evidence.host.problems if one.what == MEMORY_UNSURE), None)
    if doubt is not None:
        return f"{MEMORY_UNSURE}: {doubt.why}"
    unread = evidence.health is None or evidence.health.corrupted_bytes is None
    return refused(evidence, _MEMINFO) or f"{_MEMINFO} could not be read" if unread else None


CHECKS: tuple[Check, ...] = (
    Check(
        _XID,
        "No XID that says a GPU failed",
        "each NVIDIA GPU, and each device that the log has an XID of",
        "The driver reports failing hardware in the kernel log first, and often nowhere else",
        f"{_XIDS}; NVIDIA/DCGM modules/health/DcgmHealthWatch.cpp: BuildXidMappings",
        xid,
        inside=True,
    ),
    Check(
        _SXID,
        "No SXid of an NVSwitch",
        "each NVSwitch",
        "A fatal switch error ends every job on the fabric",
        "NVIDIA, Fabric Manager for NVIDIA NVSwitch systems, user guide: appendix D",
        sxid,
        inside=True,
    ),
    Check(
        _MCE,
        "No machine checks, no memory errors",
        "host",
        "Uncorrected memory and CPU errors end guests; corrected ones announce them",
        "Linux Documentation/admin-guide/ras.rst (any corrected memory error is to be reported), ABI/testing/"
        "sysfs-devices-edac, filesystems/proc.rst (HardwareCorrupted); UEFI specification, common platform error"
        " record",
        machine_check,
        inside=True,
    ),
)
