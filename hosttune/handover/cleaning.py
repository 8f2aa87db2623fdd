"""How the last tenant's data is removed from a device, by its kind, and what shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hosttune.handover.targets import Target
from hosttune.model.handover import HandoverStep
from hosttune.transaction.site import Site

_NO_DRIVER = "the host's driver does not have the device"


@dataclass(frozen=True)
class Erasure:
    """The step that erases one device. Times in seconds; None: unknown."""

    work: Callable[[], HandoverStep]
    limit_seconds: float | None = None
    estimate_seconds: float | None = None


class Cleaning:
    """Erases devices, each kind in its own way. What it has no way for is not supported."""

    def before_driver(self, site: Site, target: Target) -> None:
        """Prepare for the host's driver, before it gets the device. Raises HosttuneError: then it must not get it."""

    def after_driver(self, site: Site, target: Target) -> None:
        """Undo `before_driver`, after the device was returned. Raises HosttuneError."""

    def finished(self, site: Site, target: Target) -> None:
        """Remove what was kept to go on after a cut, once the statement is on the disk. Raises HosttuneError."""

    def erasure(self, site: Site, target: Target, targets: Sequence[Target], back: bool) -> Erasure:
        """Return the step that erases a device. `back`: the host's driver has it. Raises nothing."""
        if target.kind == "gpu":
            return _answer("unknown", _NO_DRIVER if not back else "its memory was not searched")
        return _answer("not-supported", f"hosttune knows no way to erase a device of the kind {target.kind}")


def _answer(outcome: str, why: str) -> Erasure:
    step = HandoverStep(step="erased", outcome=outcome, why=why)  # type: ignore[arg-type]
    return Erasure(work=lambda: step)
