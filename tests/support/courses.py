"""Scratch roots in which hand-overs are carried out, with stand-ins for what needs hardware. For tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from applyroots import GPU, STATE

from hosttune.cli import run
from hosttune.discovery import discover
from hosttune.handover.cleaning import Cleaning, Erasure, Work
from hosttune.handover.running import Handed, HandoverOptions, hand_over
from hosttune.handover.targets import Asked, Target
from hosttune.journal.register import read_register
from hosttune.machine.opening import open_system
from hosttune.model.handover import HandoverStep
from hosttune.model.host import Host
from hosttune.model.validation import CheckResult, Validation, verdict_of
from hosttune.transaction.site import Site, site_of

METHODS = f"sys/bus/pci/devices/{GPU}/reset_method"


class Wiped(Cleaning):
    """Erases everything at once; each device as often as it is asked to."""

    def __init__(self, outcome: str = "done") -> None:
        super().__init__()
        self.outcome = outcome
        self.erased: list[str] = []

    def erasure(self, work: Work, target: Target, *, back: bool) -> Erasure:
        """See Cleaning."""

        def erase() -> HandoverStep:
            self.erased.append(target.address)
            return HandoverStep(step="erased", outcome=self.outcome, method="wiped", evidence={"left": 0})  # type: ignore[arg-type]

        return Erasure(work=erase, limit_seconds=60.0, estimate_seconds=1.0)


def passing(level: int, address: str = GPU, outcome: str = "pass") -> Validation:
    """A validation that measured a device."""
    results = (
        CheckResult(check="pcie-link", subject=address, outcome="pass", actual="x16", source="sysfs"),
        CheckResult(check="bench-device-copy", subject=address, outcome=outcome, actual="4000", source="PyTorch"),  # type: ignore[arg-type]
    )
    return Validation(host="h", level=level, verdict=verdict_of(results), results=results)


def with_guest(root: Path, plan: Path) -> None:
    """Apply a plan of one guest, which has the hook, too: its devices are on vfio-pci then, its guest is defined."""
    assert run(["apply", "--root", str(root), str(plan), "--yes"]) == 0


def handed(
    root: Path,
    asked: Asked,
    cleaning: Cleaning | None = None,
    validate: Callable[[int], Validation] = passing,
    out: str | None = None,
) -> Handed:
    """Carry out a hand-over in a root."""
    return hand_over(
        here(root), asked, HandoverOptions(out, cleaning or Wiped(), validate), lambda lines: True, lambda text: None
    )


def here(root: Path) -> tuple[Site, Callable[[], Host]]:
    """Where `hand_over` works."""
    site = site_of(open_system(str(root)))

    def look() -> Host:
        site.system.forget()
        return discover(site.system)

    return site, look


def states(root: Path) -> dict[str, str]:
    """The register's states by address."""
    return {one.address: one.state for one in read_register(str(root / STATE)).devices}


def steps(found: Handed, address: str | None = None) -> list[tuple[str, str]]:
    """Each step of a device with its outcome; without an address of the first one."""
    devices = found.statement.predicate.devices
    device = next(one for one in devices if address in (None, one.address))
    return [(one.step, one.outcome) for one in device.steps]
