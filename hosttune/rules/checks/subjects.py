"""What checks look at: functions for `each`, from evidence to (subject, thing). What is not known ends the check."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import RunningGuest
from hosttune.rules.checks.facts import AS_LIBVIRT, accelerators, guests_known
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
