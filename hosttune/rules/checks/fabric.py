"""Checks of connections between GPUs: NVLink, XGMI, fabric registration, NVSwitches (NVIDIA Fabric Manager)."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.gpu import hints_for, nvswitches, vendor_of
from hosttune.gpu.boards import waits_for_partition
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import NvSwitch, PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown
from hosttune.rules.checks.data import table
from hosttune.rules.checks.fabricmanager import CHECKS as MANAGER_CHECKS
from hosttune.rules.checks.fabricpartition import CHECKS as PARTITION_CHECKS
from hosttune.rules.checks.facts import (
    HOST,
    RECORD,
    accelerators,
    for_vfio,
    lacks,
    no_switch,
)
from hosttune.rules.checks.gpufacts import Fact, each_gpu, every_gpu, not_judged, others_of_model
from hosttune.rules.checks.nvlinks import CHECKS as NVLINK_CHECKS

_GUIDE = "NVIDIA, Fabric Manager for NVIDIA NVSwitch systems, user guide"

# --- links between GPUs --------------------------------------------------------------------------------------

_NVLINK = Fact(
    "nvlink",
    "as many links and peers as the other GPUs of its model",
    ("nvlinks_active",),
    "nvmlDeviceGetNvLinkState",
    tables=True,
)
_PEERS = Fact("nvlink", _NVLINK.expected, ("peers",), "nvmlDeviceGetP2PStatus")
_NAMES = {"nvlink": "NVLink", "xgmi": "XGMI"}


def nvlink(evidence: Evidence) -> Iterable[CheckResult]:
    """Check active NVLinks and NVLink peers of each GPU: against its board, else against GPUs of the same model."""
    return _links(evidence, "nvlink", (_NVLINK, _PEERS))


def xgmi(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the XGMI peers of each GPU against those of the other GPUs of its model."""
    return _links(evidence, "xgmi", (Fact("xgmi", "XGMI to each GPU of its model", ("peers",), "", tables=True),))


def _links(evidence: Evidence, kind: str, facts: tuple[Fact, ...]) -> Iterable[CheckResult]:
    def judged(gpu: Gpu, device: PciDevice | None) -> CheckResult:
        vendor = vendor_of(gpu.vendor)
        if vendor is None or vendor.link != kind:
            return skipped(facts[0].check, gpu.address, f"its maker's GPUs are not joined by {_NAMES[kind]}")
        others = others_of_model(evidence, gpu)
        # A single GPU has no peers to compare. Incomplete evidence can show a fault, but never a pass.
        asked = [fact for fact in facts if others or fact.needs != ("peers",)] or facts
        doubts = [not_judged(evidence, fact, gpu, device) for fact in asked]
        doubts_found = [why for why in doubts if why is not None]
        found = None
        if len(doubts_found) < len(asked):
            found = _joined(evidence, kind, facts[0], gpu, others, device.device_id if device else None)
        # A card without NVLink has no list of links. Its row in the topology matrix proves that it has none.
        linkless = found is not None and found.outcome == "skip" and bool(others) and gpu.peers is not None
        hidden = found is not None and found.outcome == "skip" and _off(gpu)
        seen = found is not None and (not doubts_found or found.outcome == "fail" or hidden or linkless)
        return found if found is not None and seen else doubts_found[0]

    return every_gpu(evidence, facts[0], judged)


def _joined(
    evidence: Evidence, kind: str, fact: Fact, gpu: Gpu, others: list[Gpu], device_id: str | None
) -> CheckResult:
    """Compare the links of one GPU with those of its model. MIG mode switches NVLink off by design."""
    reporting = [other for other in others if _reach(other, kind) is not None or other.nvlinks_active is not None]
    links, reach = _count(gpu, kind), _reach(gpu, kind)
    board = table("boards")["nvlinks"].get(device_id) if kind == "nvlink" and not evidence.host.hypervisor else None
    most_links = max([n for other in reporting if (n := _count(other, kind)) is not None] + [board or 0])
    most_reach = max([n for other in reporting if (n := _reach(other, kind)) is not None], default=0)
    actual = _words(kind, links, reach, len(others))
    if _off(gpu) and not reach and (not links or links >= most_links):
        return skipped(fact.check, gpu.address, "MIG is on, which turns NVLink between GPUs off")
    unread = _unread_peer(gpu, others) if kind == "xgmi" and (reach or 0) >= most_reach else None
    if unread is not None:
        why = f"{actual}; how {unread}, of the same model, is joined is unknown"
        hint = f"look with: {hints_for(gpu).links}; and why /sys/class/kfd/kfd/topology does not show it whole"
        return fact.unknown(gpu, why, hint)
    if not (most_links or most_reach or links or reach):
        return skipped(fact.check, gpu.address, f"no {kind} on this GPU or another of its model")
    expected = _words(kind, most_links or None, most_reach if reporting else None, len(others))
    if (links is None or links >= most_links) and (reach is None or reach >= most_reach):
        return fact.passed(gpu, actual, expected=expected)
    # A bridge joins pairs of cards, so a card without a bridge can be intended. A fabric joins three or more GPUs.
    verdict = fact.failed if most_reach > 1 or board else fact.warned
    hint = f"reseat the GPU or its baseboard; read {hints_for(gpu).links}; plan no guest over {_NAMES[kind]} with it"
    return verdict(gpu, actual, hint, expected=expected)


def _unread_peer(gpu: Gpu, others: list[Gpu]) -> str | None:
    """Return a peer whose own peers are unknown, so that this GPU may lack a link that others have; else None."""
    if gpu.peers is None or all(peer.kind == "xgmi" for peer in gpu.peers):
        return None
    listed = {peer.address for peer in gpu.peers}
    return next((other.address for other in others if other.peers is None and other.address in listed), None)


def _off(gpu: Gpu) -> bool:
    """Return whether MIG switches off its NVLinks, both now and (if known) after its next reset."""
    return gpu.mig_on and gpu.mig is not None and gpu.mig.pending in ("enabled", None)


def _count(gpu: Gpu, kind: str) -> int | None:
    """Return the number of active links: as the driver counts, else the most to one peer; 0 without such a peer."""
    if kind == "nvlink" and gpu.nvlinks_active is not None:
        return gpu.nvlinks_active
    if gpu.peers is None:
        return None
    joined = [peer for peer in gpu.peers if peer.kind == kind]
    counts = [peer.links for peer in joined if peer.links is not None]
    return max(counts) if counts else None if joined else 0


def _reach(gpu: Gpu, kind: str) -> int | None:
    return None if gpu.peers is None else sum(peer.kind == kind for peer in gpu.peers)


def _words(kind: str, links: int | None, reach: int | None, others: int) -> str:
    name = _NAMES[kind]
    parts = [f"{links} links"] if links is not None else []
    parts += [f"{name} to {reach} of {others} others"] if reach is not None and others else []
    return ", ".join(parts) or f"{name}, links not counted"


# --- the fabric ----------------------------------------------------------------------------------------------

_STATE = Fact(
    "fabric-state",
    "completed, success, healthy",
    ("fabric_state",),
    "nvmlDeviceGetGpuFabricInfo",
    also=("fabric_health",),
)
_IN_PARTITION = "completed in an active partition, else in progress"


def _fabric_state(evidence: Evidence, gpu: Gpu) -> CheckResult:
    """Judge the registration with the fabric: it must be completed with success, and the health mask without faults.

    On a host whose fabric has partitions (FABRIC_MODE 1 and 2), it is "in progress" while no active partition has it.
    """
    faults = gpu.fabric_health or ()
    words = [gpu.fabric_state or "", *((gpu.fabric_status,) if gpu.fabric_status else ()), *faults]
    actual = ", ".join(words)
    if gpu.fabric_state == "completed" and gpu.fabric_status == "success" and not faults:
        return _STATE.passed(gpu, actual)
    if gpu.fabric_state == "completed" and gpu.fabric_status is None:
        hint = "nvidia-smi -q shows the fabric's status"
        return unknown(
            _STATE.check, gpu.address, expected=_STATE.expected, why=f"{actual}; no status reported", hint=hint
        )
    if gpu.mig_on and (gpu.nvlinks_active or not _off(gpu)):
        why = f"{actual}; MIG is on, by which its NVLinks are off, and {gpu.nvlinks_active or 'no'} are active"
        why = why if _off(gpu) else f"{actual}; MIG is on, and goes off with its next reset"
        hint = "nvidia-smi -q and nvidia-smi nvlink -s show MIG mode and links: look again after a reset of the GPU"
        return unknown(_STATE.check, gpu.address, expected=_STATE.expected, why=why, hint=hint)
    if gpu.mig_on:
        return skipped(_STATE.check, gpu.address, f"{actual}: a GPU in MIG mode needs no partition of the fabric")
    waits = (
        gpu.fabric_state == "in progress"
        and not {*faults} - {"no partition"}
        and waits_for_partition(evidence.host, gpu)
    )
    if waits:
        return _STATE.passed(gpu, f"{actual}, and in no active partition", expected=_IN_PARTITION)
    if waits is None:
        return _STATE.unknown(
            gpu,
            f"{actual}; whether an active partition has it is not known",
            f"read FABRIC_MODE in {nvswitches.MANAGER_CONFIG}, fmpm -l, and the module id in nvidia-smi -q",
            expected=_IN_PARTITION,
        )
    hint = (
        "start nvidia-fabricmanager and read /var/log/fabricmanager.log; in a guest of a shared NVSwitch host its"
        " partition must be active there; CUDA fails with error 802 until then"
    )
    return _STATE.failed(gpu, actual, hint)


_SWITCH = "nvswitch"
_SWITCH_DRIVERS = (nvswitches.DRIVER, nvswitches.MODULE)


def nvswitch(evidence: Evidence) -> Iterable[CheckResult]:
    """Check that each NVSwitch has the driver that its use needs, and that the board has all of its NVSwitches."""
    switches = evidence.host.nvswitches
    if not switches:
        yield no_switch(evidence, _SWITCH)
        return
    yield _all_there(evidence, switches)
    on_vfio = [switch for switch in switches if for_vfio(switch.driver)]
    for switch in switches:
        yield _switch(evidence, switch, mixed=0 < len(on_vfio) < len(switches))


def _all_there(evidence: Evidence, switches: tuple[NvSwitch, ...]) -> CheckResult:
    kinds = {evidence.host.index.device_id(switch.address) or "" for switch in switches}
    board = table("boards")["switches"].get(next(iter(kinds))) if len(kinds) == 1 else None
    count = len(switches)
    if board is None:
        return skipped(_SWITCH, HOST, f"{count} NVSwitches, of which it is not known how many a board has")
    expected = f"{board} on each baseboard"
    read = sysfs.PCI_DEVICES
    if count % board == 0:
        return passed(_SWITCH, HOST, expected=expected, actual=str(count), source=read)
    hint = "power-cycle the host; if it comes back, the baseboard needs service"
    if evidence.host.hypervisor:
        hint = f"give the guest all NVSwitches of the board, or none; {hint}"
    return failed(_SWITCH, HOST, expected=expected, actual=str(count), source=read, hint=hint)


def _switch(evidence: Evidence, switch: NvSwitch, *, mixed: bool) -> CheckResult:
    """Judge the driver of one NVSwitch.

    It must be nvidia if Fabric Manager runs here, and vfio-pci if a guest has all NVSwitches and all GPUs.
    """
    expected = "on nvidia-nvswitch, or on vfio-pci with all the others and the GPUs"
    read = sysfs.function(switch.address, "driver")
    driver = switch.driver
    if driver is None and not lacks(evidence, read):
        return unknown(_SWITCH, switch.address, expected=expected, why="driver not recorded", hint=RECORD)
    actual = f"on {driver}" if driver else "no driver"
    # A board may be passed in part. What matters is that no GPU kept by the host needs a switch that was passed.
    kept = [gpu for gpu in accelerators(evidence.host) if gpu.nvlinks_active or gpu.fabric_state]
    wrong = mixed or driver is None or (for_vfio(driver) and kept)
    if not wrong and (for_vfio(driver) or driver in _SWITCH_DRIVERS):
        return passed(_SWITCH, switch.address, expected=expected, actual=actual, source=read)
    hint = "bind it to nvidia-nvswitch before the Fabric Manager starts, or give all NVSwitches and GPUs to one guest"
    return failed(_SWITCH, switch.address, expected=expected, actual=actual, source=read, hint=hint)


CHECKS: tuple[Check, ...] = (
    Check(
        "nvlink",
        "NVLinks active, all GPUs of a board joined",
        "each GPU",
        "A GPU off NVLink slows every job over it to PCIe, and nothing else reports it",
        f"NVIDIA, NVML API reference (nvml.h): nvmlDeviceGetNvLinkState; data sheets: links of a board; {_GUIDE}",
        nvlink,
        inside=True,
        none="GPU",
    ),
    *NVLINK_CHECKS,
    Check(
        "xgmi",
        "GPUs of a board joined by XGMI",
        "each GPU of a maker that has XGMI",
        "A GPU off XGMI slows every job over it to PCIe",
        "Linux drivers/gpu/drm/amd/amdkfd/kfd_topology.c: io_links",
        xgmi,
        inside=True,
        none="GPU",
    ),
    Check(
        _STATE.check,
        "GPUs registered with the fabric, and healthy on it",
        "each GPU on an NVSwitch fabric",
        "CUDA does not start (error 802) until the fabric is set up; a degraded one is slow",
        f"NVIDIA, NVML API reference (nvml.h): nvmlGpuFabricInfoV_t, NVML_GPU_FABRIC_HEALTH_MASK_*; {_GUIDE}",
        lambda evidence: each_gpu(evidence, _STATE, lambda gpu: _fabric_state(evidence, gpu)),
        inside=True,
        none="GPU",
    ),
    Check(
        _SWITCH,
        "NVSwitches present, on the driver that their use needs",
        "host, each NVSwitch",
        "A missing switch halves paths; one on the wrong driver stops the Fabric Manager",
        _GUIDE,
        nvswitch,
        inside=True,
    ),
    *MANAGER_CHECKS,
    *PARTITION_CHECKS,
)
