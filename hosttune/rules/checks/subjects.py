"""What checks look at: functions for `each`, from evidence to (subject, thing). What is not known ends the check."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import RunningGuest
from hosttune.rules.checks.facts import (
    AS_LIBVIRT,
    LIST_PCI,
    RECORD,
    accelerators,
    driver_unread,
    guests_known,
    listed,
    undefined,
    unlisted,
)
from hosttune.rules.engine import Finding, NoValue


def gpus(evidence: Evidence) -> Iterator[tuple[str, Gpu]]:
    """Yield every GPU of a known accelerator maker that any source knows."""
    yield from ((gpu.address, gpu) for gpu in accelerators(evidence.host))


def guests(evidence: Evidence) -> Iterator[tuple[str, RunningGuest]]:
    """Yield the guests that are known; then the host: unknown where there may be others, skipped where is none."""
    known = evidence.host.guests or ()
    yield from ((guest.name, guest) for guest in known)
    if guests_known(evidence) is None:
        why = f"which {'other ' if known else ''}guests there are is unknown"
        raise NoValue(Finding(outcome="unknown", text=why, remedy=AS_LIBVIRT))
    if not known:
        raise NoValue(Finding(outcome="skip", text="no guest here"))


def none_given(evidence: Evidence, what: str) -> NoValue:
    """Return that no guest has a device: skipped as `what` if every function, guest and driver is known."""
    host, guests = evidence.host, guests_known(evidence)
    blank = [guest.name for guest in guests or () if undefined(guest)]
    devices = (one for part in (host.gpus, host.nics, host.nvme, host.nvswitches) for one in part)
    silent = [one.address for one in devices if driver_unread(evidence, one.address)]
    if why := unlisted(evidence):
        remedy = LIST_PCI
    elif guests is None or blank:
        why, remedy = f"the definition of {listed(blank, 3)} could not be read", AS_LIBVIRT
        why = "which guests there are is unknown" if guests is None else why
    elif silent:
        why, remedy = f"the driver of {listed(silent, 3)} was not read", RECORD
    else:
        return NoValue(Finding(outcome="skip", text=what))
    expected = "the guests' devices can be listed"
    return NoValue(Finding(outcome="unknown", text=why, expected=expected, remedy=remedy))
