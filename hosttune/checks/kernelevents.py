"""What the kernel log says of hardware: XIDs of GPUs, SXids of NVSwitches, machine checks."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.checks.data import table
from hosttune.checks.facts import HOST, RECORD, accelerators, by_address, for_vfio, listed, no_switch, none_here
from hosttune.checks.gpufacts import OLDER
from hosttune.gpu import vendor_of
from hosttune.model.evidence import Evidence, Health, KernelEvent
from hosttune.model.validation import CheckResult

_XID, _SXID, _MCE = "xid", "sxid", "machine-check"
_XIDS = "NVIDIA, XID Errors (docs.nvidia.com/deploy/xid-errors)"
_CLEAN = "none since boot"
_RANK = ("inform", "warn", "fail")


def _events(evidence: Evidence, *kinds: str) -> list[KernelEvent]:
    health = evidence.health
    return [event for event in (health.events or () if health else ()) if event.kind in kinds]


def _read(evidence: Evidence) -> str | None:
    """Why the kernel log cannot be judged; None where it can."""
    health = evidence.health
    if health is None or health.events is None:
        return "the kernel log could not be read"
    if health.events_since is None and not health.events:
        return "the kernel log is empty: somebody cleared it"
    return None


def _hint(evidence: Evidence) -> str:
    return f"run hosttune validate as root: dmesg is refused to others; {OLDER}" if evidence.complete else RECORD


def _source(health: Health | None) -> str:
    return (health.events_source if health else None) or "kernel log"


def _since(health: Health | None) -> str:
    """ "since boot", or from where the log is known."""
    since = health.events_since if health else None
    if since is None or since <= table("limits")["xids"]["whole_log_seconds"]:
        return "since boot"
    return f"since {since / 3600:.3g} h after boot (older lines are lost)"


def _when(event: KernelEvent) -> str:
    times = "" if event.count == 1 else f" {event.count} times"
    at = "" if event.last_seconds is None else f", last {event.last_seconds / 3600:.3g} h after boot"
    return f"{times}{at}"


# --- XID -----------------------------------------------------------------------------------------------------


def xid(evidence: Evidence) -> Iterable[CheckResult]:
    """The XIDs of each GPU of a maker that has them, by the policy table; the worst decides.

    A GPU in a guest logs in the guest's kernel: what the host's log has of it is of before.
    """
    gpus = [gpu for gpu in accelerators(evidence.host) if (vendor := vendor_of(gpu.vendor)) and vendor.fabric]
    if not gpus:
        other = accelerators(evidence.host)
        yield skipped(_XID, HOST, "no GPU here that logs XIDs") if other else none_here(evidence, _XID, "GPU")
        return
    functions = by_address(evidence.host)
    events = _events(evidence, "xid", "lost")
    why = _read(evidence)
    for gpu in gpus:
        device = functions.get(gpu.address)
        mine = [event for event in events if event.address == gpu.address]
        if mine:
            yield _xids(evidence, gpu.address, mine)
        elif device is not None and for_vfio(device.driver):
            yield skipped(_XID, gpu.address, f"on {device.driver}: its XIDs are in the guest's kernel log")
        elif why is not None:
            yield unknown(_XID, gpu.address, expected=_CLEAN, why=why, hint=_hint(evidence))
        else:
            actual = f"none {_since(evidence.health)}"
            yield passed(_XID, gpu.address, expected=_CLEAN, actual=actual, source=_source(evidence.health))


def _xids(evidence: Evidence, address: str, events: list[KernelEvent]) -> CheckResult:
    ranked = sorted(events, key=lambda event: -_RANK.index(_policy(event)))
    worst = _policy(ranked[0])
    actual = listed([_told(event) for event in ranked])
    read = _source(evidence.health)
    if worst == "inform":
        return passed(_XID, address, expected="none that says the GPU failed", actual=actual, source=read)
    verdict = failed if worst == "fail" else warned
    return verdict(_XID, address, expected=_CLEAN, actual=actual, source=read, hint=_what_to_do(ranked[0]))


def _policy(event: KernelEvent) -> str:
    """fail, warn or inform; a GPU that is lost fails, and a code that the table does not know warns."""
    if event.code is None:
        return "fail"
    outcomes = table("xids")["outcome"]
    return next((name for name, codes in outcomes.items() if event.code in codes), "warn")


def _told(event: KernelEvent) -> str:
    if event.code is None:
        return f"lost or not started{_when(event)}"
    name = table("xids")["names"].get(str(event.code))
    return f"XID {event.code}{f' ({name})' if name else ''}{_when(event)}"


def _what_to_do(event: KernelEvent) -> str:
    xids = table("xids")
    key = "cycle" if event.code is None else xids["hint"].get(str(event.code), "see")
    return str(xids["hints"][key])


# --- SXid ----------------------------------------------------------------------------------------------------


def sxid(evidence: Evidence) -> Iterable[CheckResult]:
    """The SXids of each NVSwitch: a fatal one fails, any other warns (the driver's own word in the record)."""
    switches = evidence.host.nvswitches
    events = _events(evidence, "sxid")
    if not switches and not events:
        yield no_switch(evidence, _SXID)
        return
    why = _read(evidence)
    known = [switch.address for switch in switches]
    vfio = {switch.address for switch in switches if for_vfio(switch.driver)}
    for address in dict.fromkeys([*known, *(event.address or HOST for event in events)]):
        mine = [event for event in events if (event.address or HOST) == address]
        if mine:
            yield _sxids(evidence, address, mine)
        elif address in vfio:
            yield skipped(_SXID, address, "on vfio-pci: its SXids are in the guest's kernel log")
        elif why is not None:
            yield unknown(_SXID, address, expected=_CLEAN, why=why, hint=_hint(evidence))
        else:
            actual = f"none {_since(evidence.health)}"
            yield passed(_SXID, address, expected=_CLEAN, actual=actual, source=_source(evidence.health))


def _sxids(evidence: Evidence, address: str, events: list[KernelEvent]) -> CheckResult:
    fatal = [event for event in events if event.severity == "fatal"]
    texts = [f"SXid {event.code} ({event.severity}){_when(event)}" for event in [*fatal, *events] if event.code]
    verdict = failed if fatal else warned
    hint = (
        "reset all GPUs and NVSwitches of the board and restart nvidia-fabricmanager"
        if fatal
        else "read /var/log/fabricmanager.log and appendix D of the Fabric Manager user guide"
    )
    actual = listed(list(dict.fromkeys(texts)))
    return verdict(_SXID, address, expected=_CLEAN, actual=actual, source=_source(evidence.health), hint=hint)


# --- machine checks ------------------------------------------------------------------------------------------


def machine_check(evidence: Evidence) -> Iterable[CheckResult]:
    """Machine checks and firmware-reported hardware errors: fatal and uncorrected ones fail, corrected ones warn."""
    why = _read(evidence)
    if why is not None:
        yield unknown(_MCE, HOST, expected=_CLEAN, why=why, hint=_hint(evidence))
        return
    events = _events(evidence, "mce")
    read = _source(evidence.health)
    if not events:
        yield passed(_MCE, HOST, expected=_CLEAN, actual=f"none {_since(evidence.health)}", source=read)
        return
    hard = [event for event in events if event.severity != "corrected"]
    verdict = failed if hard else warned
    actual = listed([f"{event.severity or 'hardware'} error{_when(event)}" for event in events])
    hint = "ras-mc-ctl --errors or the BMC's event log names the part: memory module, CPU or PCIe slot"
    yield verdict(_MCE, HOST, expected=_CLEAN, actual=actual, source=read, hint=hint)


CHECKS: tuple[Check, ...] = (
    Check(
        _XID,
        "No XID that says a GPU failed",
        "each NVIDIA GPU",
        "The driver tells of failing hardware in the kernel log first, and often nowhere else",
        f"NVIDIA/DCGM modules/health/DcgmHealthWatch.cpp: BuildXidMappings; {_XIDS}",
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
        "No machine checks",
        "host",
        "Uncorrected memory and CPU errors end guests; corrected ones announce them",
        "Linux Documentation/admin-guide/ras.rst; UEFI specification, common platform error record",
        machine_check,
        inside=True,
    ),
)
