"""What checks look at: functions for `each`, from evidence to (subject, thing). What is not known ends the check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from hosttune.gpu import nvswitches
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.guestplan import PLACE, UNREADABLE, GuestPlan
from hosttune.model.host import NvSwitch, RunningGuest
from hosttune.rules.checks.facts import (
    AS_LIBVIRT,
    HOST,
    LIST_PCI,
    RECORD,
    accelerators,
    driver_unread,
    guests_known,
    listed,
    undefined,
    unlisted,
    why_switches_exist,
)
from hosttune.rules.engine import Finding, NoValue, inapplicable


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
        raise inapplicable("no guest here")


def guest_plan(evidence: Evidence) -> GuestPlan:
    """Return what this guest should find; what it should is unknown if its plan is unreadable, skipped without one."""
    if evidence.guest_plan is not None:
        return evidence.guest_plan
    for problem in evidence.problems:
        if problem.what == UNREADABLE:
            remedy = "write the guest's seed or bundle again (hosttune apply on its host) and install it"
            raise NoValue(Finding(outcome="unknown", text=problem.why, source=PLACE, remedy=remedy))
    raise inapplicable(f"no plan of a guest is here: a planned guest's seed or bundle brings {PLACE}")


def switches(evidence: Evidence) -> Iterator[tuple[str, NvSwitch]]:
    """Yield every NVSwitch that is a PCI function; the host is unknown where one must be and none is listed."""
    missed = why_switches_exist(evidence)
    if missed is not None:
        hint = f"look with: lspci -d {nvswitches.VENDOR_ID}: (class 0680); power-cycle the host if they are gone"
        why = Finding(outcome="unknown", text=missed, expected="the NVSwitches of the GPUs' board", remedy=hint)
        raise NoValue(why)
    yield from ((switch.address, switch) for switch in evidence.host.nvswitches)


def nothing_given(evidence: Evidence, why: str) -> NoReturn:
    """End a check of guests' devices that has none: skipped, with why, if all guests and drivers are known."""
    host, guests = evidence.host, guests_known(evidence)
    blank = [guest.name for guest in guests or () if undefined(guest)]
    kinds = (host.gpus, host.nics, host.nvme, host.nvswitches)
    silent = [device.address for kind in kinds for device in kind if driver_unread(evidence, device.address)]
    doubts = (
        (unlisted(evidence), LIST_PCI),
        ("which guests there are is unknown" if guests is None else None, AS_LIBVIRT),
        (f"the definition of {listed(blank, 3)} could not be read" if blank else None, AS_LIBVIRT),
        (f"the driver of {listed(silent, 3)} was not read" if silent else None, RECORD),
    )
    for doubt, remedy in doubts:
        if doubt is not None:
            raise NoValue(Finding(doubt, HOST, "unknown", "the guests' devices can be listed", remedy=remedy))
    raise inapplicable(why)
