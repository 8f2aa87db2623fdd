"""Checks of the kernel log: GPU XIDs, NVSwitch SXids, machine checks, and what `linux.kernellines` has; and of EDAC.

Each is judged by what the log contains. If a part of the log is unknown (older lines are lost, records could not be
read), the known part can still cause a failure; any better result is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from hosttune.gpu import KERNEL_LINES, vendor_of
from hosttune.model.counters import growth, may_be_new, of_this_boot
from hosttune.model.evidence import Evidence, Health, KernelEvent
from hosttune.model.pci import for_vfio
from hosttune.model.values import format_size, grouped
from hosttune.rules.checks import subjects
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import HOST, accelerators, listed, refused
from hosttune.rules.checks.looks import last_look
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.xids import rulings
from hosttune.rules.engine import Finding, inapplicable

_EDAC = "/sys/devices/system/edac/mc"
_CLEAN = "none since boot"
_Events = list[KernelEvent]


def _events(evidence: Evidence, *kinds: str) -> _Events:
    health = evidence.health
    return [event for event in (health.events or () if health else ()) if event.kind in kinds]


def _by_address(evidence: Evidence, *kinds: str) -> dict[str, _Events]:
    """Return the events of these kinds by the address that they name, or by the host."""
    events = _events(evidence, *kinds)
    return {
        address: list(mine) for address, mine in grouped((event.address or HOST, event) for event in events).items()
    }


def _whole_log(on: On, text: str = "") -> None:
    """End the check as unknown if a part of the kernel log since boot is not known. `text`: what the rest says.

    Lines that are lost are known where a validation of this boot passed the check when they were there.
    """
    health, before = on.evidence.health or Health(), f"{text}; " if text else ""
    on.need(health.events, f"{before}the kernel log", look="dmesg, as root")
    if health.events_unread:
        why = f"{before}{health.events_unread} records of the kernel log could not be read"
        on.give_up(why, "read it by hand: dmesg --kernel; what is damaged in a capture, capture again")
    keep = (
        "keep the journal from boot on (Storage=persistent and SystemMaxUse in journald.conf, so that journalctl"
        " --dmesg --boot begins with the boot), or boot with a larger log_buf_len; a reboot begins a new log"
    )
    if health.events_since is None:
        on.give_up(f"{before}the kernel log is empty or its times are not known: it was cleared, or is damaged", keep)
    if health.events_since > table("limits")["xids"]["whole_log_seconds"]:
        read = (old for old, then in of_this_boot(on.evidence) if then.uptime_seconds >= health.events_since)
        if any(map(on.passed_in, read)):  # the older lines were read then
            return
        hours = f"{health.events_since / 3600:.3g} h"
        on.give_up(f"{before}the kernel log is only known since {hours} after boot: older lines are lost", keep)


def _of_log(on: On) -> On:
    health = on.evidence.health
    return on.reading((health.events_source if health else None) or "kernel log")


def _none(on: On, names: str) -> Finding:
    """Judge a device of which the log has no event: those of a guest's device are in the guest's log."""
    drivers = {switch.address: switch.driver for switch in on.host.nvswitches}
    drivers |= {address: device.driver for address, device in on.host.index.pci.items()}
    driver = drivers.get(on.subject)
    if for_vfio(driver):
        on.skip(f"on {driver}: its {names} are in the guest's kernel log")
    _whole_log(on)
    return on.passed(_CLEAN)


def _when(event: KernelEvent) -> str:
    times = "" if event.count == 1 else f" {event.count} times"
    at = "" if event.last_seconds is None else f", last {event.last_seconds / 3600:.3g} h after boot"
    return f"{times}{at}"


# --- XID and SXid --------------------------------------------------------------------------------------------


def _with_xids(evidence: Evidence) -> Iterator[tuple[str, _Events]]:
    """Yield each GPU of a maker that reports XIDs, and each device that the log has one of, with its events.

    A device that has XIDs but is in no other list was present at some time since boot.
    """
    gpus = accelerators(evidence.host)
    logging = [gpu.address for gpu in gpus if (vendor := vendor_of(gpu.vendor)) is not None and vendor.fabric]
    events = _by_address(evidence, "xid", "lost")
    if gpus and not logging and not events:
        raise inapplicable("no GPU here that logs XIDs")
    yield from ((address, events.get(address, [])) for address in dict.fromkeys([*logging, *events]))


@check(
    "xid",
    title="No XID that says a GPU failed",
    about="each NVIDIA GPU, and each device that the log has an XID of",
    why="The driver reports failing hardware in the kernel log first, often only there",
    source="NVIDIA, Xid catalogue (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html); NVIDIA/DCGM"
    " modules/health/DcgmHealthWatch.cpp: BuildXidMappings",
    expected=_CLEAN,
    each=_with_xids,
    inside=True,
    none="GPU",
)
def xid(on: On, events: _Events) -> Finding:
    """The XIDs of a GPU in a guest go to the guest's kernel log: those in the host's log are from an earlier time."""
    function = on.host.index.pci.get(on.subject)
    if on.subject in on.host.index.gpus and function and for_vfio(function.driver) and not function.physfn:
        judges = (last_look, *((partial(_by_catalogue, events=events),) if events else ()))
        return on.worst(judge(on) for judge in judges)
    return _by_catalogue(on, events) if events else _none(_of_log(on), "XIDs")


def _by_catalogue(on: On, events: _Events) -> Finding:
    on = _of_log(on)
    ruled = rulings(events)
    worst = ruled[0][1]
    text = listed([f"{ruling.name}{_when(event)}" for event, ruling in ruled])
    if worst.outcome == "fail":
        return on.failed(text, worst.hint)
    if worst.outcome == "unknown":
        return on.unknown(text, worst.hint)
    _whole_log(on, text)
    if worst.outcome == "inform":
        return on.passed(text, expected="none that says the GPU failed")
    return on.warned(text, worst.hint)


def _with_sxids(evidence: Evidence) -> Iterator[tuple[str, _Events]]:
    """Yield each NVSwitch, and each device that the log has an SXid of, with its events."""
    events = _by_address(evidence, "sxid")
    known = [switch.address for switch in evidence.host.nvswitches]
    if not known and not events:
        yield from ((address, []) for address, _ in subjects.switches(evidence))
    yield from ((address, events.get(address, [])) for address in dict.fromkeys([*known, *events]))


SXID_REMEDIES = {  # by whether it is fatal
    True: "reset all GPUs and NVSwitches of the board and restart nvidia-fabricmanager",
    False: "read /var/log/fabricmanager.log and appendix D of the Fabric Manager user guide",
}


@check(
    "sxid",
    title="No SXid of an NVSwitch",
    about="each NVSwitch",
    why="A fatal switch error ends every job on the fabric",
    source="Fabric Manager user guide: appendix D",
    expected=_CLEAN,
    each=_with_sxids,
    inside=True,
    none="NVSwitch that is a PCI function",
)
def sxid(on: On, events: _Events) -> Finding:
    """Check the SXids of each NVSwitch: a fatal one fails, any other warns (the driver's own word in the record)."""
    on = _of_log(on)
    if not events:
        return _none(on, "SXids")
    fatal = [event for event in events if event.severity == "fatal"]
    texts = [f"SXid {event.code} ({event.severity}){_when(event)}" for event in [*fatal, *events] if event.code]
    text = listed(list(dict.fromkeys(texts)))
    if fatal:
        return on.failed(text, SXID_REMEDIES[True])
    _whole_log(on, text)
    return on.warned(text, SXID_REMEDIES[False])


# --- machine checks ------------------------------------------------------------------------------------------


@check(
    "machine-check",
    title="No machine checks, no memory errors",
    about="host",
    why="Uncorrected memory and CPU errors end guests; corrected ones announce them",
    source="Linux Documentation/admin-guide/ras.rst, ABI/testing/sysfs-devices-edac, filesystems/proc.rst"
    " (HardwareCorrupted); UEFI specification, common platform error record",
    expected=_CLEAN,
    remedy="ras-mc-ctl --errors or the BMC's event log names the part: memory module, CPU or PCIe slot",
    inside=True,
)
def machine_check(on: On) -> Finding:
    """Check machine checks, errors reported by firmware, and memory errors: uncorrected ones fail, corrected ones warn.

    A record that does not say which (a line of the kernel for both) warns: what was not corrected has other lines too.
    There are three sources: the log, EDAC's counters since its driver was loaded, and the memory that the kernel has
    taken out of use since boot. Linux' RAS guide recommends reporting every corrected memory error: such errors
    indicate a module that begins to fail. Memory is taken out of use after an uncorrected error, and by programs after
    many corrected ones (mm/memory-failure.c, soft_offline_page), so alone it warns. Of memory errors those since the
    last look count: corrected ones of before pass, uncorrected ones of before warn.
    """
    health, events = on.evidence.health or Health(), _events(on.evidence, "mce", "edac")
    events = [event for event in events if event.kind == "mce" or may_be_new(on.evidence, event)]
    counts, corrupted = health.edac or {}, health.corrupted_bytes
    memory = [_counted(on, name, counters) for name, counters in counts.items() if any(counters.values())]
    texts = [f"{_kind(event)}{_when(event)}" for event in events] + [finding.text for finding in memory]
    texts += [f"the kernel has found {format_size(corrupted)} of memory corrupted"] if corrupted else []
    read = _of_log(on).reads or ""
    read += f", {_EDAC}/mc*/{{ue,ce}}_count" if counts else ""
    on = on.reading(f"{read}, /proc/meminfo (HardwareCorrupted)" if corrupted else read)
    text = listed(texts)
    told = {finding.outcome for finding in memory}
    if any(event.severity not in ("corrected", None) for event in events) or "fail" in told:
        return on.failed(text)
    _whole_log(on, text)
    before = f"{text}; " if text else ""
    known = {name for name, counters in counts.items() if None not in (counters.get("ue"), counters.get("ce"))}
    seen = {f"mc{event.code}" for event in _events(on.evidence, "edac-mc")}
    missing = sorted((seen | counts.keys()) - known)
    why = refused(on.evidence, "/sys/devices/system/edac")
    if why or missing:
        why = why or f"{before}the error counts of {listed(missing)} were not read"
        on.give_up(why, on.look(f"cat {_EDAC}/mc*/ue_count, as root"))
    on.need(corrupted, f"{before}the kernel's count of corrupted memory", "/proc/meminfo")
    if "unknown" in told:
        return on.unknown(text)
    return on.warned(text) if events or corrupted or "warn" in told else on.passed(text or _CLEAN)


def _counted(on: On, name: str, counters: Mapping[str, int | None]) -> Finding:
    """Judge the counts of a memory controller."""
    text = f"{name} counts {listed([f'{n} {kind}' for kind, n in counters.items() if n])}"
    grown = growth(on.evidence, "edac", name)
    if grown is None:
        return on.alone(text)
    more = [f"{n} {kind}" for kind, n in grown.counts.items() if n]
    say = on.failed if grown.counts.get("ue") else on.warned if more or counters.get("ue") else on.passed
    return say(f"{text}, of which {listed(more) or 'none'} {grown.words}")


def _kind(event: KernelEvent) -> str:
    if event.kind == "edac":
        return f"{'corrected' if event.severity == 'corrected' else 'uncorrected'} memory error (EDAC MC{event.code})"
    return f"{event.severity} error" if event.severity else "machine check, corrected or not"


# --- other lines ---------------------------------------------------------------------------------------------

JUDGED = {line.kind: line for line in reversed(KERNEL_LINES) if line.outcome}


def _events_by_subject(evidence: Evidence) -> Iterator[tuple[str, _Events]]:
    """Yield the host, and each device that a line names, with the events; a drive's line has its controller's name."""
    drives = {drive.controller: drive.address for drive in evidence.host.nvme}
    by_subject = grouped(
        (event.address or drives.get(f"nvme{event.code}") or HOST, event) for event in _events(evidence, *JUDGED)
    )
    yield from ((subject, list(by_subject.get(subject, ()))) for subject in dict.fromkeys([HOST, *by_subject]))


@check(
    "kernel-log",
    title="Nothing in the kernel log that stops or slows a guest",
    about="host, and each device that the log names",
    why="Resets that gave up, stalls and killed guests are told there first, often only there",
    source="the kernel's own messages: hosttune/linux/kernellines.py has the file of each",
    expected=_CLEAN,
    each=_events_by_subject,
    inside=True,
    since=1,
)
def kernel_log(on: On, events: _Events) -> Finding:
    """A BAR that found no address at first and has one now is no fault."""
    on = _of_log(on)
    device = on.host.index.pci.get(on.subject)
    placed = device is not None and device.bars and not device.unassigned_bars
    told = [(JUDGED[event.kind], event) for event in events if not (placed and event.kind == "bar-unassigned")]
    told.sort(key=lambda row: row[0].outcome)  # fail before warn
    if not told:
        _whole_log(on)
        return on.passed(_CLEAN)
    text = listed([f"{line.says}{_when(event)}" for line, event in told])
    worst = told[0][0]
    if worst.outcome == "fail":
        return on.failed(text, worst.remedy)
    _whole_log(on, text)
    return on.warned(text, worst.remedy)
