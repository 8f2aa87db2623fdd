"""Settings of the GPUs that stay with the host and its drivers, as actions; one action a GPU, by its address. Pure.

A GPU that a guest has, or is to have, is left alone: what is wanted of it goes into the guest through its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from hosttune.gpu.knobs import COMPUTE_MODE, ECC, MIG_MODE, PERSISTENCE, POWER_LIMIT
from hosttune.gpu.settings import (
    KNOBS,
    NO_KNOBS,
    GpuComputeMode,
    GpuEcc,
    GpuMigMode,
    GpuPersistence,
    GpuPowerLimit,
    out_of_range,
)
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Finding, PlannedGuest
from hosttune.planning.action import make_action
from hosttune.planning.devices import Catalogue
from hosttune.planning.settings import reason, wanted

Now = Callable[[Gpu], Any]
_UNKNOWN = "is unknown, or it has none"
_MIGS_OWN = "while MIG is enabled, each MIG device has a compute mode of its own"


class _Wish(NamedTuple):
    """What a GPU shall have, or why it cannot (`problem`). Neither: it is well as it is."""

    want: Any = None
    problem: str | None = None


class _Row(NamedTuple):
    """One setting: its name in an intent, its kind, what a GPU has of it, and why a profile wants it.

    `wish(gpu, value)`: what comes of the intent's value for a GPU of which `now` is known.
    """

    name: str
    kind: str
    now: Now
    wish: Callable[[Gpu, Any], _Wish]
    why: str
    effect: str = "now"


def _word(now: Now) -> Callable[[Gpu, Any], _Wish]:
    """A setting whose values are those of the intent."""
    return lambda gpu, value: _Wish() if now(gpu) == value else _Wish(value)


def _power_limit(gpu: Gpu, value: Any) -> _Wish:
    """`true` is the board's own limit, and no reason to lower one that somebody raised."""
    now, default = gpu.power_limit_watts, gpu.power_default_watts
    if value is True:
        if default is None or now is None:
            return _Wish(problem="has an unknown default")
        return _Wish(default) if now < default else _Wish()
    why = out_of_range(gpu, value)
    if why:
        return _Wish(problem=f"stays: {why}")
    return _Wish() if now == value else _Wish(float(value))


def _compute_mode(gpu: Gpu, value: Any) -> _Wish:
    if gpu.mig is not None and gpu.mig.mode == "enabled":
        return _Wish(problem=f"stays: {_MIGS_OWN}")
    return _word(GpuComputeMode.of_gpu)(gpu, value)


def _ecc(gpu: Gpu, value: Any) -> _Wish:
    """Also where only the pending mode is another one: the current one holds no longer than until the reboot."""
    mode = value == "enabled"
    return _Wish() if gpu.ecc is mode and gpu.ecc_pending in (None, mode) else _Wish(mode)


# In the order of applying: what may reset the GPU before what a reset loses.
_ROWS = (
    _Row(
        "mig_mode",
        MIG_MODE,
        GpuMigMode.of_gpu,
        _word(GpuMigMode.of_gpu),
        "asked for by name: settings.mig_mode; the driver resets the GPU",
    ),
    _Row(
        "ecc",
        ECC,
        GpuEcc.of_gpu,
        _ecc,
        "asked for by name: settings.ecc; takes effect with the GPU's next reset or the next boot",
        "reboot",
    ),
    _Row(
        "persistence",
        PERSISTENCE,
        GpuPersistence.of_gpu,
        _word(GpuPersistence.of_gpu),
        "without it the driver lets go of a GPU that nobody uses, and forgets what was set on it",
    ),
    _Row(
        "power_limit_watts",
        POWER_LIMIT,
        GpuPowerLimit.of_gpu,
        _power_limit,
        "the limit in force is below the board's own",
    ),
    _Row(
        "compute_mode",
        COMPUTE_MODE,
        GpuComputeMode.of_gpu,
        _compute_mode,
        "asked for by name: settings.compute_mode",
    ),
)


def plan_gpu_settings(
    host: Host, intent: Intent, catalogue: Catalogue, guests: tuple[PlannedGuest, ...]
) -> tuple[tuple[Action, ...], tuple[Finding, ...]]:
    """What is to be set on the GPUs that the host keeps; findings for what is unknown or cannot be set of them."""
    rows = [row for row in _ROWS if wanted(intent, row.name) is not None]
    actions: list[Action] = []
    findings: list[Finding] = []
    if wanted(intent, "mig_mode") == "enabled" and any(row.kind == COMPUTE_MODE for row in rows):
        rows = [row for row in rows if row.kind != COMPUTE_MODE]
        text = f"{_MIGS_OWN}, and it is to be enabled: compute_mode is left alone"
        findings.append(Finding(level="warn", text=text, where="settings.compute_mode"))
    unset: dict[str, list[str]] = {}
    for gpu in _kept(host, catalogue, guests) if rows else ():
        driver = catalogue.pci[gpu.address].driver if gpu.address in catalogue.pci else None
        knobs = KNOBS.get(driver or "")
        if knobs is None:
            if driver is not None and driver in NO_KNOBS:
                unset.setdefault(driver, []).append(gpu.address)
            continue
        for row in rows:
            if row.kind in knobs.writers:
                _settle(intent, row, gpu, actions, findings)
    names = ", ".join(row.name for row in rows)
    for driver, addresses in unset.items():
        text = f"{names} of {', '.join(addresses)} left alone: {NO_KNOBS[driver]}"
        findings.append(Finding(level="info", text=text, where=f"driver {driver}"))
    return tuple(actions), tuple(findings)


def let_go(gpu: Gpu | None, driver: str | None) -> Iterator[Action]:
    """What a GPU's driver needs before it can let go of it: an unbind hangs while persistence mode holds the GPU."""
    knobs = KNOBS.get(driver or "")
    if gpu is not None and gpu.persistence and knobs is not None and PERSISTENCE in knobs.writers:
        why = "its driver cannot let go of a GPU that persistence mode holds"
        yield make_action(PERSISTENCE, gpu.address, True, False, why, needed=True)


def _kept(host: Host, catalogue: Catalogue, guests: Iterable[PlannedGuest]) -> Iterator[Gpu]:
    """The accelerators that no guest has or is to have, nor a virtual function of them, in the host's order."""
    given = {device.address for guest in guests for device in guest.devices} | set(catalogue.holders)
    for gpu in host.index.accelerators:
        if given.isdisjoint((gpu.address, *catalogue.virtuals.get(gpu.address, ()))):
            yield gpu


def _settle(intent: Intent, row: _Row, gpu: Gpu, actions: list[Action], findings: list[Finding]) -> None:
    """Add what one setting of one GPU comes to: an action, a finding, or nothing."""
    now = row.now(gpu)
    wish = _Wish(problem=_UNKNOWN) if now is None else row.wish(gpu, wanted(intent, row.name))
    if wish.problem:
        findings.append(Finding(level="warn", text=f"its {row.name} {wish.problem}: left alone", where=gpu.address))
    elif wish.want is not None:
        actions.append(
            Action(
                id=f"{row.kind}:{gpu.address}",
                kind=row.kind,
                target=gpu.address,
                current=now,
                want=wish.want,
                effect=row.effect,
                needed=False,
                reversible=True,
                why=reason(intent, row.name, row.why),
            )
        )
