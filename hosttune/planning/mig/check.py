"""MIG requests that are wrong on this host: unknown profiles, GPUs that another guest has as a whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.errors import BadInput
from hosttune.gpu.mig_tables import is_profile_name, resolve
from hosttune.inventory.devices import countable_gpus, matches, named_gpus
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.gpu import Gpu
from hosttune.model.hints import did_you_mean
from hosttune.model.intent import GpuRequest, GuestIntent, Intent
from hosttune.model.values import parse_address
from hosttune.planning.mig.instances import gpu_offer, is_vgpu_guest, mig_unknown


def check_mig(context: PlanningContext, intent: Intent, where: str) -> None:
    """Check the MIG requests of an intent on this host.

    Raises BadInput, with the key's path: the GPUs in question do not have the profile (the error lists those that they
    have), or every GPU that could carry the vGPUs is given to another guest as a whole. A request that only does not
    fit is not bad input. Neither is a request for GPUs of which it is unknown whether they have MIG.
    """
    for i, guest in enumerate(intent.guests):
        if guest.mig is not None:
            _check_profile(context, guest, f"{where}: guests[{i}]")
            _check_whole(context, intent, i, f"{where}: guests[{i}].mig")


def _check_profile(context: PlanningContext, guest: GuestIntent, at: str) -> None:
    name = guest.mig.profile if guest.mig else ""
    key = f"{at}.mig.profile"
    gpus = _gpus_concerned(context, guest, at)
    silent = [gpu.address for gpu in gpus if is_profile_name(name) and mig_unknown(context, gpu)]
    if isinstance(guest.gpus, tuple) and guest.gpus:
        for gpu in gpus:
            if gpu.address not in silent:
                resolve(gpu, context.catalogue.pci.get(gpu.address), name, key)
        return
    offers = [(gpu, offer) for gpu in gpus if (offer := gpu_offer(context, gpu)).profiles]
    if silent or any(offer.find(name) for _, offer in offers):
        return
    have = "; ".join(
        dict.fromkeys(
            f"{gpu.model or gpu.address} has {', '.join(profile.name for profile in offer.profiles)}"
            for gpu, offer in offers
        )
    )
    if gpus or not is_profile_name(name):
        none = "none of its GPUs has MIG" if is_profile_name(name) else "a profile is named like 1g.18gb"
        hint = did_you_mean(name, {profile.name for _, offer in offers for profile in offer.profiles}, have or none)
        raise BadInput(f"{name!r} is not a MIG profile of this host's GPUs", where=key, hint=hint)


def _gpus_concerned(context: PlanningContext, guest: GuestIntent, at: str) -> list[Gpu]:
    """Return the GPUs that a request is about: those it names, those of its model, else all that can be counted."""
    if isinstance(guest.gpus, tuple) and guest.gpus:
        return [context.catalogue.gpus[a] for a in named_gpus(context.catalogue, guest.gpus, f"{at}.gpus")]
    gpus = countable_gpus(context.host, context.catalogue)
    if isinstance(guest.gpus, GpuRequest):
        request = guest.gpus
        return [gpu for gpu in gpus if matches(gpu, context.catalogue.pci.get(gpu.address), request)]
    return gpus


def _check_whole(context: PlanningContext, intent: Intent, i: int, key: str) -> None:
    """Check vGPU requests.

    Raises BadInput: every GPU with the profile is named by another guest, which gets it as a whole.
    """
    guest = intent.guests[i]
    if guest.mig is None or not is_vgpu_guest(guest):
        return
    gpus = countable_gpus(context.host, context.catalogue)
    able = [gpu.address for gpu in gpus if gpu_offer(context, gpu).find(guest.mig.profile)]
    whole = _named_whole(guest for n, guest in enumerate(intent.guests) if n != i)
    if able and all(address in whole for address in able):
        given = ", ".join(f"{address} to {whole[address]}" for address in able)
        raise BadInput(
            f"every GPU that has {guest.mig.profile} is given whole to another guest: {given}",
            where=key,
            hint="a GPU is given whole or cut into instances, not both: take it from one of the guests",
        )


def _named_whole(guests: Iterable[GuestIntent]) -> dict[str, str]:
    return {
        parse_address(address): guest.name
        for guest in guests
        if isinstance(guest.gpus, tuple)
        for address in guest.gpus
    }
