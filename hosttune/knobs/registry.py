"""All knobs: what an intent may name, what it wants, and the actions that follow for a host. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hosttune.errors import BadInput
from hosttune.knobs import cpus, files, gpus, interrupts, kernelargs, pcie, storage, sysctl
from hosttune.knobs.actions import actions_for
from hosttune.knobs.context import KnobContext
from hosttune.knobs.knob import Knob
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, Finding


def all_knobs() -> Mapping[str, Knob[Any]]:
    """Every knob by its name in an intent, in the order of the manual."""
    found: tuple[Knob[Any], ...] = (
        *cpus.KNOBS,
        *interrupts.KNOBS,
        *files.file_knobs(),
        *kernelargs.KNOBS,
        *pcie.KNOBS,
        *storage.KNOBS,
        *sysctl.KNOBS,
        *gpus.KNOBS,
    )
    return {knob.name: knob for knob in found}


def check_settings(intent: Intent, where: str = "intent") -> None:
    """Refuse (BadInput) a name under `settings` that hosttune does not know, or a value that it cannot have."""
    known = all_knobs()
    for name, value in (intent.settings or {}).items():
        at = f"{where}: settings.{name}"
        if name not in known:
            raise BadInput(f"no setting {name!r}", where=at, hint=f"known: {', '.join(known)}")
        knob = known[name]
        if knob.false_means is not None and value is False:  # what YAML 1.1 makes of `off`; `keep` is the opposite
            word = knob.false_means
            raise BadInput(f"false can mean {word} or keep", where=at, hint=f'write "{word}" in quotes, or keep')
        if not knob.accepts(value):
            raise BadInput(f"invalid value {value!r}", where=at, hint=f"allowed: {knob.allowed}")


def plan_isolation(ctx: KnobContext) -> Iterator[Action | Finding]:
    """CPUs that the next boot keeps for guests."""
    return actions_for(ctx.intent, kernelargs.ISOLATION, (ctx,))


def plan_guests_knobs(ctx: KnobContext) -> Iterator[Action | Finding]:
    """The actions of knobs that are about the guests, in the order of applying, and what is worth knowing about them.

    None of PCIe for a request that finds no place: `_no_guest_fits`.
    """
    if ctx.guests:
        yield from cpus.plan_cpus(ctx)
        yield from interrupts.plan_interrupts(ctx)
    if not _no_guest_fits(ctx):
        yield from pcie.plan_pcie(ctx)


def plan_host_knobs(ctx: KnobContext) -> Iterator[Action | Finding]:
    """The same of the host as a whole, and of the GPUs that stay with it.

    `iommu_passthrough` and `boot_pages` are planned by `hosttune.planning`, with the IOMMU and the guests' pages.
    """
    if not _no_guest_fits(ctx):
        yield from actions_for(ctx.intent, files.file_knobs(), (ctx.host,))
        yield from storage.plan_queues(ctx)
        yield from actions_for(ctx.intent, sysctl.KNOBS, (ctx.host,))
        yield from actions_for(ctx.intent, kernelargs.AS_GIVEN, (ctx,))
    yield from gpus.plan_gpus(ctx)


def _no_guest_fits(ctx: KnobContext) -> bool:
    """Whether guests are asked for and none of them finds a place."""
    return bool(ctx.intent.guests) and not ctx.guests
