"""The steps of a hand-over that a test guest makes, for devices that no driver of the host can take.

The device stays on vfio-pci: it is not taken back. A GPU's memory is searched, written and searched again by three
guests, with a reset by the host after the second. One guest with all these devices validates them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from hosttune.errors import HosttuneError
from hosttune.handover import cleaning, gpumemory, testing, timelimits
from hosttune.handover.cleaning import Erasure
from hosttune.handover.targets import Target
from hosttune.handover.testguest.order import Unanswered, in_host
from hosttune.handover.testguest.planned import TestGuest
from hosttune.handover.testguest.session import BOOT_ESTIMATE, BOOT_SECONDS, Heard, Session
from hosttune.machine.system import System
from hosttune.model.handover import HandoverStep
from hosttune.model.validation import Validation
from hosttune.settings.drivers import DRIVERS


def goes_in(system: System, target: Target, wanted: TestGuest | None) -> bool:
    """Return whether a device is tested in a guest: a GPU that no driver of the host could take."""
    if wanted is None or target.kind != "gpu":
        return False
    return target.driver is None or not system.exists(f"{DRIVERS}/{target.driver}")


class GuestSteps(msgspec.Struct):
    """The devices that a test guest has, by address, and what it found. `level`: of the validation."""

    session: Session
    targets: Mapping[str, Target]
    level: int
    _found: Heard | HosttuneError | None = msgspec.field(default=None)

    def has(self, target: Target) -> bool:
        """Return whether a device goes into the guest."""
        return target.address in self.targets

    def only(self, addresses: Collection[str]) -> None:
        """Leave out all devices but these: a device that was not reset is given to no guest, not even along."""
        self.targets = {address: target for address, target in self.targets.items() if address in addresses}
        self.session.others &= frozenset(addresses)

    def taken_back(self) -> HandoverStep:
        """Return the step of a device that its test guest gets from vfio-pci."""
        return HandoverStep(
            step="taken-back", outcome="not-needed", method="stays on vfio-pci: a test guest has the driver"
        )

    def erasure(self, target: Target, reset: Callable[[], HandoverStep]) -> Erasure:
        """Return the step that searches a GPU's memory. `reset`: resets it on vfio-pci."""
        limit, estimate = timelimits.of_memory(self.session.site.system, target)
        return Erasure(lambda: self._erase(target, reset), limit + 3 * BOOT_SECONDS, estimate + 3 * BOOT_ESTIMATE)

    def _erase(self, target: Target, reset: Callable[[], HandoverStep]) -> HandoverStep:
        if target.kind != "gpu" or not target.search:
            why = f"hosttune knows no way to erase a device of the kind {target.kind} in a test guest"
            return HandoverStep(step="erased", outcome="not-supported", why=why)
        # What `cleaning.parts_left` does. MIG instances cannot be seen here: with them the search finds less
        # than all of the memory.
        shown = msgspec.structs.replace(target, search="")
        left, unknown = cleaning.parts_left(self.session.site.system, self.session.discover(), shown)
        if left or unknown:
            why = f"still there: {'; '.join(left)}" if left else f"it is unknown {'; '.join(unknown)}"
            return HandoverStep(step="erased", outcome="failed" if left else "unknown", why=why)
        told: dict[str, Any] = {}

        def asked(task: gpumemory.MemoryTask, pattern: str) -> dict[str, Any]:
            seconds = gpumemory.LIMIT_SECONDS / 3
            heard = self.session.ask({target.address: target}, task, seconds, pattern=pattern)
            told.update(heard.evidence, hosttune=heard.answer.version, memory_bytes_by="the driver in the guest")
            return {**(heard.answer.memory or {}), "memory_bytes": heard.answer.memory_bytes}

        try:
            handover_step = gpumemory.searched(asked, None, reset)
        except Unanswered as error:
            return HandoverStep(step="erased", outcome=error.outcome, evidence=_ended(told, error), why=error.what)
        return msgspec.structs.replace(
            handover_step,
            evidence={**(handover_step.evidence or {}), "guest": told},
            method=f"{handover_step.method}, in test guests",
        )

    # --- tested ------------------------------------------------------------------------------------------------

    def times(self) -> tuple[float, float]:
        """Return the time limit and the estimate of the test, in seconds."""
        limit, estimate = testing.LIMIT_SECONDS[self.level], testing.ESTIMATE_SECONDS[self.level]
        return limit + BOOT_SECONDS, estimate + BOOT_ESTIMATE

    def tested(self, target: Target) -> HandoverStep:
        """Return the step of a device; the first call makes the guest, which is the same for all."""
        if self._found is None:
            try:
                seconds = testing.LIMIT_SECONDS[self.level]
                self._found = self.session.ask(self.targets, "validate", seconds, level=self.level)
            except HosttuneError as error:
                self._found = error
        heard = self._found
        if isinstance(heard, Unanswered):
            return HandoverStep(step="tested", outcome=heard.outcome, evidence=_ended({}, heard), why=heard.what)
        if isinstance(heard, HosttuneError):
            raise heard
        validation = self.validation
        assert validation is not None
        step = testing.tested(target, validation, self.firmware(target), True)
        method = f"validate --guest --level {self.level}, in a test guest"
        guest = {**heard.evidence, "hosttune": heard.answer.version, "ended": "answered"}
        return msgspec.structs.replace(step, method=method, evidence={**(step.evidence or {}), "guest": guest})

    @property
    def validation(self) -> Validation | None:
        """The validation of the guest, with the host's addresses; None before it was made, or without an answer."""
        if not isinstance(self._found, Heard) or self._found.answer.validation is None:
            return None
        return in_host(self._found.answer.validation, {here: host for host, here in self._places().items()})

    def firmware(self, target: Target) -> Mapping[str, str] | None:
        """Return the firmware versions of a device as its driver in the guest reads them; None if unknown."""
        if not isinstance(self._found, Heard):
            return None
        return (self._found.answer.firmware or {}).get(self._places()[target.address])

    def _places(self) -> Mapping[str, str]:
        """Return the address of each device in the guest."""
        assert isinstance(self._found, Heard)
        return {device.address: device.guest_address for device in self._found.guest.devices}


def guest_targets(system: System, targets: Sequence[Target], wanted: TestGuest | None) -> Mapping[str, Target]:
    """Return the devices of a hand-over that go into a test guest, by address."""
    return {target.address: target for target in targets if goes_in(system, target, wanted)}


def _ended(told: Mapping[str, Any], error: Unanswered) -> Mapping[str, Any]:
    return {"guest": {**told, "ended": error.ended}}
