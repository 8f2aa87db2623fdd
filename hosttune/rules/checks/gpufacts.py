"""What the checks of GPUs share: which GPUs can be judged, and why others cannot. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hosttune.gpu import hints_for, vendor_of
from hosttune.gpu.inside import is_vgpu
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import PciDevice
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import failed, passed, skipped, unknown, warned
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import RECORD, accelerators, for_vfio, lacks


@dataclass(frozen=True)
class Fact:
    """What a check of GPUs reads: the check's id, its expectation, the fields it needs, and NVML's function for them.

    A GPU is judged if all fields of `needs` are known. It passes only if all fields of `whole` are known as well, and
    each field of `also` that another GPU of its model has (not every driver reports these). `tables`: the facts are
    paths between GPUs or MIG, which other recorded answers also report, not only the answers with the driver's facts.
    """

    check: str
    expected: str
    needs: tuple[str, ...]
    call: str
    whole: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    tables: bool = False

    def passed(self, gpu: Gpu, actual: str, *, expected: str | None = None) -> CheckResult:
        """Return a pass of this GPU. `expected`, here and below: what is expected of this GPU, if it is more exact."""
        at = self.check, gpu.address
        return passed(*at, expected=expected or self.expected, actual=actual, source=source(gpu, self.call))

    def warned(self, gpu: Gpu, actual: str, hint: str, *, expected: str | None = None) -> CheckResult:
        """Return a warning of this GPU."""
        at = self.check, gpu.address
        return warned(*at, expected=expected or self.expected, actual=actual, source=source(gpu, self.call), hint=hint)

    def failed(self, gpu: Gpu, actual: str, hint: str, *, expected: str | None = None) -> CheckResult:
        """Return a failure of this GPU."""
        at = self.check, gpu.address
        return failed(*at, expected=expected or self.expected, actual=actual, source=source(gpu, self.call), hint=hint)

    def unknown(self, gpu: Gpu, why: str, hint: str, *, expected: str | None = None) -> CheckResult:
        """Return that the value of this GPU is unknown, although the source was read."""
        at = self.check, gpu.address
        return unknown(*at, expected=expected or self.expected, why=why, hint=hint, source=source(gpu, self.call))


UNREADABLE = "unreadable"  # `Problem.what` of an answer that was recorded, but is lost or too long (gpu.vendor.ask)
OLDER = "a capture by an older version of hosttune lacks it: capture again"
Judge = Callable[[Gpu], CheckResult]


def unknown_if_below_others(evidence: Evidence, fact: Fact, gpu: Gpu, name: str, found: CheckResult) -> CheckResult:
    """Turn a pass into unknown if another GPU of the same model has a higher board default in field `name`.

    The pass was judged against this GPU's own default, but boards of one model have the same default.
    """
    if found.outcome != "pass":
        return found
    own = getattr(gpu, name)
    other = max(others_of_model(evidence, gpu), key=lambda one: getattr(one, name) or 0, default=None)
    if other is None or own is None or (getattr(other, name) or 0) <= own:
        return found
    words = name.replace("_", " ")
    why = f"{found.actual}; {words} {own:g}, and {getattr(other, name):g} of {other.address}, of the same model"
    hint = f"{hints_for(gpu).defaults} shows the defaults of both: look at them again"
    return unknown(fact.check, gpu.address, expected=fact.expected, why=why, hint=hint, source=found.source)


def source(gpu: Gpu, call: str) -> str:
    """Return the source of a GPU's facts; `call` is the function of the maker's library, if facts come from one."""
    vendor = vendor_of(gpu.vendor)
    tellers = vendor.tellers if vendor else {}
    usual = next(iter(tellers.values()), gpu.source or "sysfs")
    return tellers.get(gpu.source or "", usual).replace("{call}", call).strip()


def reset_hint(gpu: Gpu) -> str:
    """Return how to reset this GPU."""
    return f"{hints_for(gpu).reset}, then validate again"


def each_gpu(evidence: Evidence, fact: Fact, judge: Judge) -> Iterable[CheckResult]:
    """Yield one result per accelerator: the judgement, or why there is none."""

    def judged(gpu: Gpu, device: PciDevice | None) -> CheckResult:
        return not_judged(evidence, fact, gpu, device) or whole(evidence, fact, gpu, judge(gpu))

    return every_gpu(evidence, fact, judged)


def every_gpu(
    evidence: Evidence, fact: Fact, judge: Callable[[Gpu, PciDevice | None], CheckResult]
) -> Iterable[CheckResult]:
    """Like `each_gpu`, but the check itself decides which GPUs it can judge; `judge` also gets the PCI function."""
    for gpu in accelerators(evidence.host):
        yield _uncontradicted(evidence, fact, gpu, judge(gpu, evidence.host.index.pci.get(gpu.address)))


def _uncontradicted(evidence: Evidence, fact: Fact, gpu: Gpu, found: CheckResult) -> CheckResult:
    """Turn a pass or warning into unknown if the facts may be another GPU's, or if what might contradict is lost."""
    if found.outcome not in ("pass", "warn") or not (doubt := _of_another(evidence, gpu) or _lost(evidence, fact, gpu)):
        return found
    why, expected = f"{found.actual}; but {doubt}", found.expected or fact.expected
    return unknown(fact.check, gpu.address, expected=expected, why=why, hint=RECORD, source=found.source)


def _of_another(evidence: Evidence, gpu: Gpu) -> str | None:
    """Return which other GPU has the same UUID, so that one's facts may be a copy of the other's; None if none has."""
    others = (one.address for one in others_of_model(evidence, gpu) if gpu.uuid is not None and one.uuid == gpu.uuid)
    twin = next(others, None)
    return None if twin is None else f"{twin} has the same UUID: which of them this is about is unknown"


def _lost(evidence: Evidence, fact: Fact, gpu: Gpu) -> str | None:
    """Return which recorded answer of the maker was lost that reports the same facts; None if none was.

    For paths between GPUs and MIG (`Fact.tables`) it is any answer of the maker.
    """
    vendor = vendor_of(gpu.vendor)
    if vendor is None or gpu.source in (None, "sysfs"):
        return None
    names = vendor.queries if fact.tables else vendor.compared
    lost = next((one for one in evidence.host.problems if one.what == UNREADABLE and one.where in names), None)
    return None if lost is None else f"{lost.where}, which reports it too, cannot be read: {lost.why}"


def whole(evidence: Evidence, fact: Fact, gpu: Gpu, found: CheckResult) -> CheckResult:
    """Turn a result that is not a failure into unknown if a part of the evidence for it is missing."""
    missing = [name for name in fact.whole if not _is_reported(evidence, gpu, name)]
    others = others_of_model(evidence, gpu)
    missing += [
        name
        for name in fact.also
        if not _is_reported(evidence, gpu, name) and any(_is_reported(evidence, one, name) for one in others)
    ]
    if not missing or found.outcome in ("fail", "unknown"):
        return found
    why = f"{found.actual}; {', '.join(name.replace('_', ' ') for name in missing)} not reported"
    hint = f"{hints_for(gpu).show} shows what its driver knows; {OLDER}" if evidence.complete else RECORD
    return unknown(fact.check, gpu.address, expected=fact.expected, why=why, hint=hint, source=found.source)


def others_of_model(evidence: Evidence, gpu: Gpu) -> list[Gpu]:
    """Return the other GPUs of the same model."""
    return [one for one in accelerators(evidence.host) if one.model == gpu.model and one.address != gpu.address]


def not_judged(evidence: Evidence, fact: Fact, gpu: Gpu, device: PciDevice | None) -> CheckResult | None:
    """Return why this GPU cannot be judged by this fact; None if it can."""
    vendor = vendor_of(gpu.vendor)
    driver = device.driver if device else None
    if vendor is None or not vendor.tells.issuperset(fact.needs):
        return skipped(fact.check, gpu.address, f"{vendor.driver if vendor else 'its driver'} does not report it")
    if for_vfio(driver):
        return skipped(fact.check, gpu.address, f"on {driver}: its guest sees it (hosttune validate --guest in there)")
    if device is not None and device.physfn is not None:
        return skipped(fact.check, gpu.address, f"a virtual function: reported for {device.physfn}")
    missing = [name for name in fact.needs if getattr(gpu, name) is None]
    if not missing:
        return None
    if driver == vendor.driver and all(name in (gpu.lacks or ()) for name in missing):
        having = [o for o in others_of_model(evidence, gpu) if any(getattr(o, name) is not None for name in missing)]
        return _lacking(evidence, fact, gpu, having)
    why, hint = _silent(evidence, gpu, device, vendor.driver)
    return unknown(fact.check, gpu.address, expected=fact.expected, why=why, hint=hint)


def _is_reported(evidence: Evidence, gpu: Gpu, name: str) -> bool:
    """Return whether a fact is reported, or correctly reported as not available."""
    return getattr(gpu, name) is not None or (name in (gpu.lacks or ()) and not _certain(evidence, gpu, name))


def _certain(evidence: Evidence, gpu: Gpu, name: str) -> bool:
    """Return whether all GPUs of this model have this field, by PCI device id (boards.toml).

    A driver that denies such a field is wrong. Exceptions: MIG hides fields from the driver's library, a vGPU lacks
    fields of its physical GPU, and with ECC off there are no error counts.
    """
    if is_vgpu(gpu.model) or gpu.mig_on or (name == "ecc_uncorrected" and gpu.ecc is False):
        return False
    index = evidence.host.index
    switches = {index.device_id(switch.address) for switch in evidence.host.nvswitches}
    return any(
        name in row["fields"]
        and index.device_id(gpu.address) in row["gpus"]
        and ("switches" not in row or switches.intersection(row["switches"]))
        for row in table("boards")["certain"]
    )


# A field, and the field that implies it: a GPU with the second also has the first.
_IMPLIED = {"ecc_uncorrected": "ecc"}


def _lacking(evidence: Evidence, fact: Fact, gpu: Gpu, having: list[Gpu]) -> CheckResult:
    """Return the result for a GPU whose driver reports that the field does not exist: skipped, unless GPUs of the same
    model have it or another fact contradicts the driver."""
    if gpu.mig_on:
        why = "MIG is on, which hides it from the driver's library"
        hint = "look at it while MIG is off, or in the kernel log (check xid)"
        return unknown(fact.check, gpu.address, expected=fact.expected, why=why, hint=hint)
    hint = f"{hints_for(gpu).show} shows it again; look for XIDs in the kernel log (check xid)"
    if having:
        why = f"its driver reports that it does not have this, and {having[0].address}, of the same model, has"
        return unknown(fact.check, gpu.address, expected=fact.expected, why=why, hint=hint)
    if any(_certain(evidence, gpu, name) for name in fact.needs):
        why = "its driver reports that it does not have this, and every GPU of its model has"
        return unknown(fact.check, gpu.address, expected=fact.expected, why=why, hint=hint)
    if any(getattr(gpu, _IMPLIED.get(name, ""), None) for name in fact.needs):
        why = "its driver reports that it does not have this, and other facts say that it has"
        return unknown(fact.check, gpu.address, expected=fact.expected, why=why, hint=hint)
    return skipped(fact.check, gpu.address, "the GPU does not have this, its driver reports")


def _silent(evidence: Evidence, gpu: Gpu, device: PciDevice | None, driver: str) -> tuple[str, str]:
    """Return why a fact that the driver could report is unknown, and what to do."""
    held = device.driver if device else None
    if held is None and lacks(evidence, sysfs.function(gpu.address, "driver")):
        return "no driver holds it", f"bind it to {driver} to look at it"
    if held is None:
        return "not recorded which driver holds it", RECORD
    if held != driver:
        return f"{held} holds it, which does not report it", f"bind it to {driver} to look at it"
    if device is not None and device.runtime_status == "suspended":
        return "suspended: asking would wake it", f"echo on > /sys/bus/pci/devices/{gpu.address}/power/control"
    if gpu.source in (None, "sysfs"):
        return f"{driver} holds it, and {hints_for(gpu).reporters} reported it", "see gpu-driver"
    hint = f"{hints_for(gpu).show} shows what its driver knows; {OLDER}" if evidence.complete else RECORD
    return f"{gpu.source} did not report it", hint
