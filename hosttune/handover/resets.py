"""The reset of a device of a hand-over, by a method that is known to clear it (`settings.resets`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hosttune.errors import HosttuneError
from hosttune.handover.targets import Target
from hosttune.machine.system import System
from hosttune.model.handover import HandoverStep, StepOutcome
from hosttune.settings import resets
from hosttune.settings.setting import driver_of

# In this order. `pm` is left out: the PCI standard does not say that it clears what is in a device.
_CLEARING = ("device_specific", "acpi", "flr", "af_flr", "bus")


def method_of(methods: Sequence[str] | None, weak: Mapping[str, str]) -> str | None:
    """Return the reset method to use, of those that the kernel has for a function; None if none clears it."""
    known = methods or ()
    return next((method for method in _CLEARING if method in known and method not in weak), None)


def reset(system: System, target: Target) -> HandoverStep:
    """Reset a function that no driver of the host has. Raises HosttuneError for what the kernel refuses."""
    driver = driver_of(system, target.address)
    if driver is not None and "vfio" not in driver:
        return _step("failed", None, why=f"{driver} has the device: it would be reset under its driver")
    method = method_of(target.methods, target.weak)
    if method is None:
        if target.methods is None:
            why = "which reset methods the kernel has for it is unknown"
        else:
            weak = "; ".join(f"{method}: {target.weak[method]}" for method in target.methods if method in target.weak)
            offered = ", ".join(target.methods) or "none"
            why = f"no reset method that clears it: the kernel offers {offered}{f' ({weak})' if weak else ''}"
        return _step("unknown" if target.methods is None else "not-supported", None, why=why)
    done = resets.reset(system, target.address, method, target.methods)
    evidence = {
        "offered": list(target.methods or ()),
        "reset_method": done.method,
        "kernel": "the write to reset succeeded",
        "seconds": done.seconds,
        "ids": done.ids,
    }
    if done.ids is None:
        return _step("unknown", method, evidence, "its configuration space cannot be read")
    # Why a device is not as before its reset, by the beginning of its configuration space. A virtual function
    # reads all ones as its ids (PCI Express Base Specification 5.0, 9.3.4.1.1 and 9.3.4.1.2).
    wrong, before = None, target.identity.split(" ")[1]
    if not done.answers or (target.physical is None and str(done.ids).startswith("ffff:")):
        wrong = "it does not answer any more: it reads all ones"
    elif target.physical is None and "?" not in before and done.ids != before:
        wrong = f"it was {before} before its reset, and says that it is {done.ids}: its firmware may not have started"
    return _step("failed" if wrong else "done", method, evidence, wrong)


def _step(
    outcome: StepOutcome, method: str | None, evidence: Mapping[str, object] | None = None, why: str | None = None
) -> HandoverStep:
    name = f"{method} reset" if method is not None else None
    return HandoverStep(step="reset", outcome=outcome, method=name, evidence=evidence, why=why)


def reason(error: HosttuneError | OSError) -> str:
    """Return what an error says, on one line."""
    text = error.what if isinstance(error, HosttuneError) else str(error)
    return " ".join(text.split())
