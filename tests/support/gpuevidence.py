"""Evidence of GPU hosts for the tests of checks: from a tool's real output, or from single facts."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from hosttune.gpu.nvidia_smi import parse_smi_text
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, Link, PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks import results_of
from hosttune.rules.checks.on import Check
from hosttune.rules.engine import rules_of

CASES = Path(__file__).parents[1] / "cases" / "gpu"
ROOM = "hosttune.rules.checks"
A, B, C = "0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0"
GEN5 = Link(speed_gts=32.0, width=16, max_speed_gts=32.0, max_width=16)


def function(address: str, driver: str | None = "nvidia", device_id: str = "2335", **facts: Any) -> PciDevice:
    """The PCI function of a GPU."""
    return PciDevice(
        address=address, vendor_id="10de", device_id=device_id, class_code="030200", driver=driver, link=GEN5, **facts
    )


def nvidia(address: str = A, **facts: Any) -> Gpu:
    """A GPU that NVML told of."""
    return Gpu(address=address, vendor="nvidia", model="NVIDIA H200", source="nvml", **facts)


def evidence(
    *gpus: Gpu,
    host: dict[str, Any] | None = None,
    driver: str | None = "nvidia",
    device_id: str = "2335",
    **rest: Any,
) -> Evidence:
    """A host with these GPUs, on `driver`; other fields of Host and of Evidence as given."""
    fields: dict[str, Any] = {"pci": tuple(function(gpu.address, driver, device_id) for gpu in gpus), "gpus": gpus}
    live = {"complete": True, "absent": ("/",) if rest.get("complete", True) else ()}
    return Evidence(host=Host(**{**fields, **(host or {})}), **{**live, **rest})


def evidence_from_smi(name: str, device_id: str, **rest: Any) -> Evidence:
    """The host that `nvidia-smi -q` told of in a case file."""
    answer = parse_smi_text((CASES / "smi-text" / f"{name}.txt").read_text())
    gpus = tuple(msgspec.structs.replace(gpu, vendor="nvidia", source="nvidia-smi") for gpu in answer.gpus)
    return evidence(*gpus, host={"pci": tuple(function(gpu.address, device_id=device_id) for gpu in gpus)}, **rest)


def results(found: Evidence, *families: str) -> tuple[CheckResult, ...]:
    """All results of these families."""
    declared = (
        getattr(import_module(f"{ROOM}.{family}"), "CHECKS", ()) or rules_of(ROOM, (family,), Check)
        for family in families
    )
    return tuple(result for family in declared for check in family for result in results_of(check, found))


def of(found: Evidence, check: str, *families: str) -> dict[str, CheckResult]:
    """The results of one check by subject."""
    return {result.subject: result for result in results(found, *families) if result.check == check}


def not_well(found: Iterable[CheckResult]) -> set[tuple[str, str]]:
    """(check, outcome) of what fails or warns."""
    return {(result.check, result.outcome) for result in found if result.outcome in ("fail", "warn")}


def is_whole(result: CheckResult) -> bool:
    """Whether it has what the document promises: a reason, a source where read, a hint where something is to do."""
    if result.outcome == "skip":
        return bool(result.actual)
    read = result.outcome == "unknown" or result.source
    hinted = result.outcome not in ("fail", "unknown", "warn") or result.hint
    return bool(result.actual and result.expected and read and hinted)
