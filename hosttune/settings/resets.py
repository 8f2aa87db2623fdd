"""The reset of a function by one method, and what shows that it happened.

The kernel is left one method only, so that it cannot fall back to another. That the reset happened is the kernel's own
word: the write to `reset` succeeds only if the method was carried out and the device answered again. Afterwards its
configuration space is read. Sources: Documentation/ABI/testing/sysfs-bus-pci (reset, reset_method); drivers/pci/pci.c
(pci_reset_function, pci_dev_wait, pci_parent_bus_reset: a bus reset is offered only to a device that is alone on its
bus).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence

import msgspec

from hosttune.errors import WriteFailed
from hosttune.machine.child import in_child
from hosttune.machine.system import System
from hosttune.model import sysfs

LIMIT_SECONDS, ESTIMATE_SECONDS = 90.0, 5.0  # the kernel waits up to 60 s for the device to answer again
_HEADER, _STATUS = 8, slice(4, 8)  # bytes: the ids, then command and status, never all ones where a device answers


class Reset(msgspec.Struct, frozen=True):
    """What shows a reset that the kernel carried out.

    `method`: as read back. `ids`: "vendor:device" as the device says afterwards; None: it cannot be read. `answers`:
    its command and status are not all ones.
    """

    method: str
    seconds: float
    ids: str | None
    answers: bool


def reset(system: System, address: str, method: str, methods: Sequence[str] | None) -> Reset:
    """Reset a function that no driver of the host has by a method, and leave it these methods.

    Raises HosttuneError for what the kernel refuses.
    """
    choice, path = (sysfs.function(address, name) for name in ("reset_method", "reset"))
    began = time.monotonic()
    try:
        if methods_now(system, address) != (method,):
            system.write(choice, method)
        used = (method,) if system.rehearses else methods_now(system, address) or ()
        if used != (method,):
            raise WriteFailed(choice, f"{choice} reads {' '.join(used) or 'nothing'} after {method} was written")
        try:
            if system.rehearses:  # a child could not add to what is recorded
                system.write(path, "1")
            else:
                in_child(lambda: system.write(path, "1"), LIMIT_SECONDS, path)
        except WriteFailed as error:
            if error.errno != errno.ENOTTY:
                raise
            why = "it did not answer again, or cannot be reset so now (dmesg); if it stays away, power-cycle the host"
            raise WriteFailed(f"{address} ({method} reset)", why, error.errno) from error
    finally:
        system.forget()
        restore_methods(system, address, methods)
    answer = (system.read_bytes(sysfs.function(address, "config")) or b"")[:_HEADER]
    ids = f"{answer[1::-1].hex()}:{answer[3:1:-1].hex()}" if len(answer) == _HEADER else None
    return Reset(used[0], round(time.monotonic() - began, 1), ids, answer[_STATUS] != b"\xff" * 4)


def methods_now(system: System, address: str) -> tuple[str, ...] | None:
    """Return the reset methods that the kernel would use for a function now; None if it does not say."""
    text = system.read(sysfs.function(address, "reset_method"))
    return None if text is None else tuple(text.split())


def restore_methods(system: System, address: str, methods: Sequence[str] | None) -> None:
    """Give a function its reset methods back. Raises WriteFailed."""
    now = methods_now(system, address)
    if now is not None and now != tuple(methods or ()):
        system.write(sysfs.function(address, "reset_method"), " ".join(methods or ()))
