"""The reset of a function by a method that is known to clear it, and what shows that it happened.

The kernel is left one method only, so that it cannot fall back to another. That the reset happened is the kernel's own
word: the write to `reset` succeeds only if the method was carried out and the device answered again. Afterwards its
configuration space is read. Sources: Documentation/ABI/testing/sysfs-bus-pci (reset, reset_method); drivers/pci/pci.c
(pci_reset_function, pci_dev_wait, pci_parent_bus_reset: a bus reset is offered only to a device that is alone on its
bus).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from hosttune.errors import HosttuneError
from hosttune.handover.targets import Target
from hosttune.machine.child import in_child
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.handover import HandoverStep, StepOutcome
from hosttune.settings.setting import driver_of

LIMIT_SECONDS, ESTIMATE_SECONDS = 90.0, 5.0  # the kernel waits up to 60 s for the device to answer again
_HEADER, _STATUS = 8, slice(4, 8)  # bytes: the ids, then command and status, never all ones where a device answers
# In this order. `pm` is left out: the PCI standard does not say that it clears what is in a device.
_CLEARING = ("device_specific", "acpi", "flr", "af_flr", "bus")


def method_of(methods: Sequence[str] | None, weak: Mapping[str, str]) -> str | None:
    """Return the reset method to use, of those that the kernel has for a function; None if none clears it."""
    known = methods or ()
    return next((one for one in _CLEARING if one in known and one not in weak), None)


def reset(system: System, target: Target) -> HandoverStep:
    """Reset a function that no driver of the host has. Raises HosttuneError for what the kernel refuses."""
    driver = driver_of(system, target.address)
    if driver is not None and "vfio" not in driver:
        return _step("failed", None, why=f"{driver} has the device: it would be reset under its driver")
    method = method_of(target.methods, target.weak)
    if method is None:
        return _step("unknown" if target.methods is None else "not-supported", None, why=_lacking(target))
    choice, path = (sysfs.function(target.address, name) for name in ("reset_method", "reset"))
    before = (system.read(choice) or "").split()
    began = time.monotonic()
    try:
        if before != [method]:
            system.write(choice, method)
        used = (system.read(choice) or "").split()
        if used != [method]:
            return _step(
                "failed", method, why=f"{choice} reads {' '.join(used) or 'nothing'} after {method} was written"
            )
        in_child(lambda: system.write(path, "1"), LIMIT_SECONDS, path)
    finally:
        system.forget()
        restore_methods(system, target.address, target.methods)
    answer = (system.read_bytes(sysfs.function(target.address, "config")) or b"")[:_HEADER]
    evidence = {
        "offered": list(target.methods or ()),
        "reset_method": used[0],
        "kernel": "the write to reset succeeded",
        "seconds": round(time.monotonic() - began, 1),
        "ids": f"{answer[1::-1].hex()}:{answer[3:1:-1].hex()}" if len(answer) == _HEADER else None,
    }
    if len(answer) < _HEADER:
        return _step("unknown", method, evidence, "its configuration space cannot be read")
    wrong = _wrong(target, answer, evidence["ids"])
    return _step("failed" if wrong else "done", method, evidence, wrong)


def methods_now(system: System, address: str) -> tuple[str, ...] | None:
    """Return the reset methods that the kernel would use for a function now; None if it does not say."""
    text = system.read(sysfs.function(address, "reset_method"))
    return None if text is None else tuple(text.split())


def restore_methods(system: System, address: str, methods: Sequence[str] | None) -> None:
    """Give a function its reset methods back. Raises WriteFailed."""
    now = methods_now(system, address)
    if now is not None and now != tuple(methods or ()):
        system.write(sysfs.function(address, "reset_method"), " ".join(methods or ()))


def _wrong(target: Target, answer: bytes, ids: object) -> str | None:
    """Return why a device is not as before its reset, by the beginning of its configuration space.

    A virtual function reads all ones as its ids (PCI Express Base Specification 5.0, 9.3.4.1.1 and 9.3.4.1.2).
    """
    if answer[_STATUS] == b"\xff" * 4 or (target.physical is None and answer[:2] == b"\xff\xff"):
        return "it does not answer any more: it reads all ones"
    before = target.identity.split(" ")[1]
    if target.physical is None and "?" not in before and ids != before:
        return f"it was {before} before its reset, and says that it is {ids}: its firmware may not have started"
    return None


def _lacking(target: Target) -> str:
    if target.methods is None:
        return "which reset methods the kernel has for it is unknown"
    weak = "; ".join(f"{method}: {target.weak[method]}" for method in target.methods if method in target.weak)
    offered = ", ".join(target.methods) or "none"
    return f"no reset method that clears it: the kernel offers {offered}{f' ({weak})' if weak else ''}"


def _step(
    outcome: StepOutcome, method: str | None, evidence: Mapping[str, object] | None = None, why: str | None = None
) -> HandoverStep:
    name = f"{method} reset" if method is not None else None
    return HandoverStep(step="reset", outcome=outcome, method=name, evidence=evidence, why=why)


def reason(error: HosttuneError | OSError) -> str:
    """Return what an error says, on one line."""
    text = error.what if isinstance(error, HosttuneError) else str(error)
    return " ".join(text.split())
