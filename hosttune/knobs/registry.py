"""All knobs: the names an intent can use, the values that it wants, and the resulting actions for a host. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hosttune.errors import BadInput
from hosttune.knobs import cpus, files, gpus, interrupts, kernelargs, pcie, storage
from hosttune.knobs.knob import KEEP, Knob, KnobContext, actions_for
from hosttune.model.commandline import PAGES
from hosttune.model.force import InForce
from hosttune.model.hints import did_you_mean
from hosttune.model.intent import Intent
from hosttune.model.plan import Action, PlanFinding
from hosttune.model.values import to_builtins
from hosttune.settings.kernelargs import KernelArguments


def all_knobs() -> Mapping[str, Knob[Any]]:
    """Return every knob by its name in an intent, in the order of the manual."""
    knobs: tuple[Knob[Any], ...] = (
        *cpus.KNOBS,
        *interrupts.KNOBS,
        *files.KNOBS,
        *kernelargs.KNOBS,
        *pcie.KNOBS,
        *storage.KNOBS,
        *files.SYSCTLS,
        *gpus.KNOBS,
        *files.LIBVIRT_HOOK,
    )
    return {knob.name: knob for knob in knobs}


def check_settings(intent: Intent, where: str = "intent") -> None:
    """Check the names and values under `settings`.

    Raises BadInput: hosttune does not know the name, or the setting does not take the value.
    """
    known = all_knobs()
    for name, value in (intent.settings or {}).items():
        at = f"{where}: settings.{name}"
        if name not in known:
            hint = did_you_mean(name, known, f"known: {', '.join(known)}")
            raise BadInput(f"no setting {name!r}", where=at, hint=hint)
        knob = known[name]
        # YAML 1.1 reads `off` as false; `keep` would mean the opposite
        if knob.false_means is not None and value is False:
            word = knob.false_means
            raise BadInput(f"false can mean {word} or keep", where=at, hint=f'write "{word}" in quotes, or keep')
        if not knob.accepts(value):
            words = [str(word) for word in (*knob.values, *knob.names, KEEP)]
            hint = did_you_mean(str(value), words, f"allowed: {knob.allowed}")
            raise BadInput(f"invalid value {to_builtins(value)!r:.80}", where=at, hint=hint)


def intent_in_force(force: InForce) -> Intent:
    """Return the profile and the settings that are in force, as an intent."""
    settings = {name: wanted.value for name, wanted in force.wanted.items()}
    return Intent(version=1, profile=force.profile or "guest", settings=settings)


def given_up(intent: Intent, held: Collection[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the parts of settings that the intent says to keep: they stay as they are, and are nobody's any more."""
    names = {"iommu_passthrough": "iommu", "boot_pages": PAGES}
    for name, knob in all_knobs().items():
        if (intent.settings or {}).get(name) == KEEP:
            of_kind = [key for key in held if key[0] == knob.setting.kind]
            named = [key for key in of_kind if key[1] == names.get(name, name)]
            yield from named if knob.setting.kind in (KernelArguments.kind, "sysctl") else of_kind


def plan_isolation(ctx: KnobContext) -> Iterator[Action | PlanFinding]:
    """Yield the actions for CPUs that the next boot reserves for guests."""
    return actions_for(ctx.intent, kernelargs.ISOLATION, (ctx,))


def plan_guests_knobs(ctx: KnobContext) -> Iterator[Action | PlanFinding]:
    """Yield the actions and findings of knobs that concern the guests, in the order of applying.

    If guests are requested and none of them fits (`_no_guest_fits`), there are no PCIe actions.
    """
    if ctx.guests:
        yield from cpus.plan_cpus(ctx)
        yield from interrupts.plan_interrupts(ctx)
    if not _no_guest_fits(ctx):
        yield from pcie.plan_pcie(ctx)


def plan_host_knobs(ctx: KnobContext) -> Iterator[Action | PlanFinding]:
    """Yield the actions and findings for the host as a whole and for the GPUs that stay with it.

    `iommu_passthrough` and `boot_pages` are planned by `hosttune.planning`, with the IOMMU and the guests' pages.
    """
    if not _no_guest_fits(ctx):
        yield from actions_for(ctx.intent, files.KNOBS, (ctx.host,), every=ctx.every)
        yield from storage.plan_queues(ctx)
        yield from actions_for(ctx.intent, files.SYSCTLS, (ctx.host,), every=ctx.every)
        yield from actions_for(ctx.intent, kernelargs.AS_GIVEN, (ctx,), every=ctx.every)
    yield from gpus.plan_gpus(ctx)
    yield from actions_for(ctx.intent, files.LIBVIRT_HOOK, (ctx.host,))


def _no_guest_fits(ctx: KnobContext) -> bool:
    """Return whether guests are requested and none of them has a place."""
    return bool(ctx.intent.guests) and not ctx.guests
