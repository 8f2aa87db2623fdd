"""What hosttune does for planned vGPUs: MIG mode of their GPUs, and the vGPU types of virtual functions.

Pure. MIG mode is an action. The vGPU type of a function is an action if the instances exist and it is certain which of
them the functions get; otherwise it is a step for a person.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from hosttune.gpu.settings import GpuMigMode
from hosttune.gpu.vgpu import type_folder
from hosttune.inventory.devices import Catalogue
from hosttune.knobs.knob import make_action
from hosttune.model.host import Gpu, Host
from hosttune.model.plan import Action, MigAssignment, PlannedGuest, Step
from hosttune.model.values import address_key
from hosttune.planning.mig.instances import gpu_offer, instances_are_known, ready_starts
from hosttune.planning.mig.vgpu import HostDevices, Known
from hosttune.settings.vgpu import VgpuTypeSetting


class _TypeChange(msgspec.Struct, frozen=True):
    """A function that gets a vGPU type. `now` and `number`: its current type and the wanted one.

    None = unknown, or not listed. `by_hand`: why writing the type is a step for a person; None: it is an action.
    """

    guest: str
    function: str
    name: str
    now: str | None
    number: str | None
    by_hand: str | None


def mig_actions(
    host: Host, catalogue: Catalogue, guests: Iterable[PlannedGuest], *, every: bool = False
) -> Iterator[Action]:
    """Yield the actions for planned vGPUs, in order: MIG mode of each GPU, then the type of each function.

    `every`: also for a mode that is on.
    """
    with_vgpus = _with_vgpus(guests)
    for address in sorted({assignment.gpu for guest in with_vgpus for assignment in guest.mig}, key=address_key):
        gpu = catalogue.gpus.get(address)
        now = GpuMigMode.of_gpu(gpu) if gpu else None
        if every or now != "enabled":
            why = "a vGPU backed by MIG needs the mode; the driver resets the GPU"
            yield make_action(GpuMigMode.kind, address, now, "enabled", why, needed=True)
    for one in _typings(HostDevices(host, catalogue), with_vgpus):
        if one.number is not None and one.by_hand is None:
            why = f"guest {one.guest} gets {one.function} as {one.name}"
            yield make_action(VgpuTypeSetting.kind, one.function, one.now, one.number, why, needed=True)


def with_type_steps(host: Host, catalogue: Catalogue, guests: tuple[PlannedGuest, ...]) -> tuple[PlannedGuest, ...]:
    """Return the guests of a plan with a step for each type that cannot be an action, directly before the start."""
    typings = list(_typings(HostDevices(host, catalogue), _with_vgpus(guests)))
    type_steps: list[PlannedGuest] = []
    for guest in guests:
        steps = [_typed(one, one.by_hand) for one in typings if one.guest == guest.name and one.by_hand is not None]
        before = [step for step in guest.steps if step.when == "start"]
        after = [step for step in guest.steps if step.when != "start"]
        type_steps.append(msgspec.structs.replace(guest, steps=(*before, *steps, *after)) if steps else guest)
    return tuple(type_steps)


def _typed(one: _TypeChange, why: str) -> Step:
    folder = type_folder(one.function)
    text = f"write the number of {one.name} in {folder}/creatable_vgpu_types to {folder}/current_vgpu_type"
    return Step(when="start", text=f"{text}: {why}")


def _with_vgpus(guests: Iterable[PlannedGuest]) -> list[PlannedGuest]:
    return [guest for guest in guests if any(device.vgpu_type for device in guest.devices)]


def _typings(known: Known, guests: Sequence[PlannedGuest]) -> Iterator[_TypeChange]:
    """Yield every virtual function that gets a type, guest by guest.

    A guest's vGPUs have the order of its instances.
    """
    planned = {(assignment.gpu, assignment.profile, assignment.start) for guest in guests for assignment in guest.mig}
    for guest in guests:
        vgpus = [device for device in guest.devices if device.vgpu_type]
        for device, instance in zip(vgpus, guest.mig, strict=True):
            if device.kind == "vf":
                now, number = _number(known.host, device.address, device.vgpu_type)
                why = _by_hand(known, instance, planned, listed=number is not None)
                yield _TypeChange(guest.name, device.address, device.vgpu_type or "", now, number, why)


def _by_hand(
    known: Known, instance: MigAssignment, planned: Collection[tuple[str, str, int]], *, listed: bool
) -> str | None:
    """Return why hosttune does not write the type of an instance's function; None if it does.

    The driver puts a vGPU on any unused instance of its profile. So all instances of the plan must exist, and no
    others.
    """
    gpu = known.catalogue.gpus.get(instance.gpu)
    if gpu is None:
        return "nothing is known of its GPU"
    there = {name: _ready(known, gpu, name) for address, name, _ in planned if address == instance.gpu}
    made = all(start in there[name] for address, name, start in planned if address == instance.gpu)
    others = _others(gpu, instance, planned)
    if made and listed and not others:
        return None
    first = "" if made else "once every instance of the plan on its GPU is there, which lists it; "
    if others:
        rivals = f"there are others of {instance.profile} (at {', '.join(map(str, others))})"
        return f"{first}its driver takes any that is unused, and {rivals}: look which it took, then apply this plan"
    then = "hosttune plan then makes an action of it" if instances_are_known(known, gpu) else "then apply this plan"
    return f"{first or 'once it is listed; '}{then}"


def _others(gpu: Gpu, instance: MigAssignment, planned: Collection[tuple[str, str, int]]) -> tuple[int, ...]:
    """Return the starts of a GPU's instances of a profile that are not the plan's and may be unused."""
    of_plan = {start for address, name, start in planned if (address, name) == (instance.gpu, instance.profile)}
    mig_instances = (gpu.mig.instances if gpu.mig and gpu.mig_on else None) or ()
    alike = [
        mig_instance
        for mig_instance in mig_instances
        if mig_instance.profile == instance.profile and (mig_instance.uuid is None or gpu.source != "nvml")
    ]
    return tuple(
        sorted(
            mig_instance.start
            for mig_instance in alike
            if mig_instance.start is not None and mig_instance.start not in of_plan
        )
    )


def _ready(known: Known, gpu: Gpu, name: str) -> tuple[int, ...]:
    profile = gpu_offer(known, gpu).find(name)
    return ready_starts(known, gpu, profile) if profile is not None and gpu.mig_on else ()


def _number(host: Host, address: str, name: str | None) -> tuple[str | None, str | None]:
    """Return (the number of a function's vGPU type now, the number of the named type in its GPU's list)."""
    vgpu = host.vgpu
    for gpu in vgpu.gpus if vgpu else ():
        for function in gpu.functions:
            if function.address == address:
                number = next((vgpu_type.id for vgpu_type in gpu.types or () if vgpu_type.name == name), None)
                return function.current_type, number
    return None, None
