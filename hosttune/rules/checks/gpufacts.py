"""What checks ask of a GPU's own driver: a fact, or why it is not there. Pure."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

from hosttune.gpu import hints_for, vendor_of
from hosttune.gpu.inside import is_vgpu
from hosttune.model import sysfs
from hosttune.model.evidence import LOOKED, Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import PciDevice
from hosttune.model.pci import for_vfio
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import accelerators, lacks
from hosttune.rules.checks.looks import last_look
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import gpus
from hosttune.rules.engine import Finding, NoValue

gpu_check = partial(check, each=gpus, inside=True, none="GPU")


def by_driver(on: On, gpu: Gpu, call: str = "", expected: str | None = None) -> On:
    """Return `on` with the source of this GPU's facts. `call`: the function of the maker's library, if there is one."""
    vendor = vendor_of(gpu.vendor)
    tellers = vendor.tellers if vendor else {}
    usual = next(iter(tellers.values()), gpu.source or "sysfs")
    return on.reading(tellers.get(gpu.source or "", usual).replace("{call}", call).strip(), expected)


def fact(on: On, gpu: Gpu, name: str) -> Any:  # noqa: RET503
    """Return a fact that the maker's driver reports of this GPU. Without it the check ends, and says why.

    It is skipped for a GPU that proves to have no such thing. Of one on vfio-pci the last look counts, for its health.
    """
    vendor, device = vendor_of(gpu.vendor), function(on, gpu)
    held = device.driver if device else None
    if vendor is None or name not in vendor.tells:
        on.skip(f"{vendor.driver if vendor else 'its driver'} does not report it")
    if device is not None and device.physfn is not None:
        on.skip(f"a virtual function: reported for {device.physfn}")
    if for_vfio(held) and on.check.id in LOOKED:
        raise NoValue(last_look(on))
    if for_vfio(held):
        on.skip(f"on {held}: its guest sees it (hosttune validate --guest in there)")
    value = getattr(gpu, name)
    if value is not None:
        return value
    if held == vendor.driver and name in (gpu.lacks or ()):
        _lacking(on, gpu, name)
    where = sysfs.function(gpu.address, "driver")
    bind = f"bind it to {vendor.driver} to look at it"
    if held is None and lacks(on.evidence, where):
        on.give_up("no driver holds it", bind, where)
    if on.need(held, "which driver holds it", where) != vendor.driver:
        on.give_up(f"{held} holds it, which does not report it", bind)
    if device is not None and device.runtime_status == "suspended":
        on.give_up("suspended: asking would wake it", f"echo on > /sys/bus/pci/devices/{gpu.address}/power/control")
    if gpu.source in (None, "sysfs"):
        on.give_up(f"{held} holds it, and {hints_for(gpu).reporters} reported it", "see gpu-driver")
    on.give_up(f"{gpu.source} did not report it", on.look(hints_for(gpu).show))


def why_unknown(on: On, gpu: Gpu, name: str) -> Finding | None:
    """Return what `fact` would end the check with; None if the fact is known."""
    try:
        fact(on, gpu, name)
    except NoValue as no:
        return no.finding
    return None


def complete(on: On, gpu: Gpu, text: str, *names: str, of_sisters: bool = False) -> None:
    """End the check as unknown if a fact is missing that could make a result worse; `text`: what the result would say.

    `of_sisters`: not every driver reports these; each is missed where another GPU of this model has it.
    """
    asked = [gpu, *others_of_model(on.evidence, gpu)]
    missing = [name for name in names if not _is_answered(on, gpu, name)]
    if of_sisters:
        missing = [name for name in missing if any(_is_answered(on, other, name) for other in asked)]
    if missing:
        why = f"{text}; {', '.join(name.replace('_', ' ') for name in missing)} not reported"
        on.give_up(why, on.look(hints_for(gpu).show))


def function(on: On, gpu: Gpu) -> PciDevice | None:
    """Return the PCI function of a GPU; None for one that only other sources show."""
    return on.host.index.pci.get(gpu.address)


def module_version(on: On, name: str) -> str | None:
    """Return the version of a loaded kernel module; None if it has none, or was not read."""
    modules = on.host.platform.modules if on.host.platform else ()
    return next((module.version for module in modules if module.name == name and module.version), None)


def others_of_model(evidence: Evidence, gpu: Gpu) -> list[Gpu]:
    """Return the other GPUs of the same model."""
    return [other for other in accelerators(evidence.host) if other.model == gpu.model and other.address != gpu.address]


def reset_hint(gpu: Gpu) -> str:
    """Return how to reset this GPU."""
    return f"{hints_for(gpu).reset}, then validate again"


def _lacking(on: On, gpu: Gpu, name: str) -> NoReturn:
    """End the check for a GPU whose driver denies that it has this: skipped, unless its model is known to have it."""
    if gpu.mig_on:
        hint = "look at it while MIG is off, or in the kernel log (check xid)"
        on.give_up("MIG is on, which hides it from the driver's library", hint)
    having = [other.address for other in others_of_model(on.evidence, gpu) if getattr(other, name) is not None]
    why = f"{having[0]}, of the same model, has" if having else "every GPU of its model has"
    if having or _has_for_certain(on, gpu, name):
        hint = f"{hints_for(gpu).show} shows it again; look for XIDs in the kernel log (check xid)"
        on.give_up(f"its driver reports that it does not have this, and {why}", hint)
    on.skip("the GPU does not have this, its driver reports")


def _is_answered(on: On, gpu: Gpu, name: str) -> bool:
    """Return whether a fact is reported, or reported as not there by a GPU that may lack it."""
    return getattr(gpu, name) is not None or (name in (gpu.lacks or ()) and not _has_for_certain(on, gpu, name))


def _has_for_certain(on: On, gpu: Gpu, name: str) -> bool:
    """Return whether all GPUs of this model have this, by PCI device id (boards.toml): its driver denies it wrongly.

    Exceptions: MIG hides fields from the driver's library, a vGPU lacks fields of its physical GPU, and with ECC off
    there are no error counts; with ECC on there are, on any model.
    """
    if is_vgpu(gpu.model) or gpu.mig_on:
        return False
    if name == "ecc_uncorrected" and gpu.ecc is not None:
        return gpu.ecc
    index = on.host.index
    switches = {index.device_id(switch.address) for switch in on.host.nvswitches}
    return any(
        name in row["fields"]
        and index.device_id(gpu.address) in row["gpus"]
        and ("switches" not in row or switches.intersection(row["switches"]))
        for row in table("boards")["certain"]
    )
