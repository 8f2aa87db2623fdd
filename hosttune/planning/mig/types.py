"""What hosttune does for planned vGPUs: MIG mode of their GPUs, and the vGPU types of virtual functions.

Pure. Each is an action, but for the vGPU type of a function where it is not certain which instance the driver takes, or
which no list names yet: that is a step for a person.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from hosttune.gpu.settings import GpuMigMode
from hosttune.gpu.vgpu import SRIOV_MANAGE, type_folder
from hosttune.gpu.vgpu_set import MediatedDevice, MigInstanceSetting, VgpuFunctions
from hosttune.inventory.devices import Catalogue
from hosttune.knobs.knob import make_action
from hosttune.model.host import Gpu, Host
from hosttune.model.plan import Action, MigAssignment, PlanFinding, PlannedGuest, Step
from hosttune.model.values import address_key
from hosttune.model.vgpu import FRAMEWORKS, VgpuFunction, VgpuGpu
from hosttune.settings.virtual import VgpuTypeSetting


class _TypeChange(msgspec.Struct, frozen=True):
    """A function that gets a vGPU type. `now` and `number`: its current type and the wanted one.

    None = unknown, or not listed. `by_hand`: why writing the type is a step for a person; None: it is an action.
    `uuid`: of the mediated device that it gets instead of a type.
    """

    guest: str
    function: str
    uuid: str | None
    name: str
    now: str | None
    number: str | None
    by_hand: str | None


def mig_actions(host: Host, catalogue: Catalogue, guests: Iterable[PlannedGuest]) -> Iterator[Action]:
    """Yield the actions for planned vGPUs, in order: each GPU's mode, functions and instances; then the vGPUs.

    Also for what is as wanted: a reboot undoes it, so it must be in force. `sriov-manage` ends every instance
    (bigstack-oss/cubecos, measured), so these come after it.
    """
    with_vgpus = _with_vgpus(guests)
    slots = [slot for guest in with_vgpus for slot in guest.mig]
    for address in sorted({slot.gpu for slot in slots}, key=address_key):
        gpu = catalogue.gpus.get(address)
        why = "a vGPU backed by MIG needs the mode; the driver resets the GPU"
        mode = GpuMigMode.of_gpu(gpu) if gpu else None
        yield make_action(GpuMigMode.kind, address, mode, "enabled", why, needed=True)
        device = catalogue.pci.get(address)
        functions = bool(device.virtfns) if device else None
        yield make_action(VgpuFunctions.kind, address, functions, True, "vGPUs are on them", needed=True)
        for slot in sorted((slot for slot in slots if slot.gpu == address), key=lambda slot: slot.start):
            target, why = f"{address} {slot.profile}:{slot.start}", "a vGPU is on it"
            yield make_action(MigInstanceSetting.kind, target, _is_there(gpu, slot), True, why, needed=True)
    for typing in _typings(HostDevices(host, catalogue), with_vgpus):
        if typing.number is not None and typing.by_hand is None:
            why = f"guest {typing.guest} gets {typing.function} as {typing.name}"
            kind, target = VgpuTypeSetting.kind, typing.function
            if typing.uuid is not None:
                kind, target = MediatedDevice.kind, f"{typing.uuid} {typing.function}"
            yield make_action(kind, target, typing.now, typing.number, why, needed=True)


def _is_there(gpu: Gpu | None, slot: MigAssignment) -> bool | None:
    """Return whether an instance is there; None if that is unknown."""
    if gpu is None or gpu.mig is None or gpu.mig.instances is None:
        return False if gpu is not None and gpu.mig is not None and gpu.mig.mode == "disabled" else None
    return any((instance.profile, instance.start) == (slot.profile, slot.start) for instance in gpu.mig.instances)


def with_type_steps(host: Host, catalogue: Catalogue, guests: tuple[PlannedGuest, ...]) -> tuple[PlannedGuest, ...]:
    """Return the guests of a plan with a step for each type that cannot be an action, directly before the start."""
    typings = list(_typings(HostDevices(host, catalogue), _with_vgpus(guests)))
    type_steps: list[PlannedGuest] = []
    for guest in guests:
        own = [change for change in typings if change.guest == guest.name and change.uuid is None]
        steps = [_typed(change, change.by_hand) for change in own if change.by_hand is not None]
        before = [step for step in guest.steps if step.when == "start"]
        after = [step for step in guest.steps if step.when != "start"]
        type_steps.append(msgspec.structs.replace(guest, steps=(*before, *steps, *after)) if steps else guest)
    return tuple(type_steps)


def _typed(change: _TypeChange, why: str) -> Step:
    folder = type_folder(change.function)
    text = f"write the number of {change.name} in {folder}/creatable_vgpu_types to {folder}/current_vgpu_type"
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
            uuid = device.address if device.kind == "mdev" else None
            function = device.identity.rpartition(" on ")[2] if uuid else device.address
            now, number = _number(known.host, function, device.vgpu_type)
            if uuid is not None:
                made = (
                    vgpu_function.mdevs
                    for gpu in _vgpus(known.host)
                    for vgpu_function in gpu.functions
                    if vgpu_function.address == function
                )
                now = number if any(uuid in mdevs for mdevs in made) else None
            why = _by_hand(known, instance, planned, listed=number is not None)
            yield _TypeChange(guest.name, function, uuid, device.vgpu_type or "", now, number, why)


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
    # instances that are not the plan's and may be unused
    of_plan = {start for address, name, start in planned if (address, name) == (instance.gpu, instance.profile)}
    mig_instances = (gpu.mig.instances if gpu.mig and gpu.mig_on else None) or ()
    alike = [
        mig_instance
        for mig_instance in mig_instances
        if mig_instance.profile == instance.profile and (mig_instance.uuid is None or gpu.source != "nvml")
    ]
    others = sorted(other.start for other in alike if other.start is not None and other.start not in of_plan)
    if others:
        rivals = f"there are others of {instance.profile} (at {', '.join(map(str, others))})"
        return f"its driver takes any that is unused, and {rivals}: look which it took, then apply this plan"
    return None if listed else "once it is listed; hosttune plan then makes an action of it"


def _number(host: Host, address: str, name: str | None) -> tuple[str | None, str | None]:
    """Return (the number of a function's vGPU type now, the number of the named type in its GPU's list)."""
    for gpu in _vgpus(host):
        for function in gpu.functions:
            if function.address == address:
                number = next((vgpu_type.id for vgpu_type in gpu.types or () if vgpu_type.name == name), None)
                return function.current_type, number
    return None, None


def _vgpus(host: Host) -> tuple[VgpuGpu, ...]:
    return host.vgpu.gpus if host.vgpu else ()


# --- vGPU data -------------------------------------------------------------------------------------------------
# The vGPU data of a host document that is used: known frameworks, and functions that belong to the GPU.
# Pure. A host document may come from any source. A vGPU is on a virtual function of its GPU, or is a mediated device
# on the GPU itself (NVIDIA virtual GPU software documentation). Anything else in the document is ignored, with a
# finding.


class Known(Protocol):
    """The data that these functions need: a `PlanningContext`, or only its host and catalogue."""

    @property
    def host(self) -> Host:
        """The host document."""

    @property
    def catalogue(self) -> Catalogue:
        """Its devices by address."""


class HostDevices(msgspec.Struct, frozen=True):
    """A host and its devices, for callers without a `PlanningContext`."""

    host: Host
    catalogue: Catalogue


def vgpu_of(known: Known, address: str) -> VgpuGpu | None:
    """Return a GPU's vGPU framework, with only the functions that belong to the GPU; None if no framework is known."""
    vgpu = known.host.vgpu
    vgpu_gpu = next((gpu for gpu in vgpu.gpus if gpu.address == address), None) if vgpu else None
    if vgpu_gpu is None or vgpu_gpu.framework not in FRAMEWORKS:
        return None
    own = tuple(function for function in vgpu_gpu.functions if _is_own(known, vgpu_gpu, function.address))
    return msgspec.structs.replace(vgpu_gpu, functions=own)


def _is_own(known: Known, gpu: VgpuGpu, address: str) -> bool:
    device = known.catalogue.pci.get(address)
    virtual = device is not None and device.physfn == gpu.address
    return virtual or (gpu.framework == "mdev" and address == gpu.address)


def unused_vgpu_data(known: Known) -> Iterator[PlanFinding]:
    """Yield findings about vGPU data of the host document that is not used."""
    for gpu in known.host.vgpu.gpus if known.host.vgpu else ():
        at = f"vgpu: GPU {gpu.address}"
        if gpu.framework is not None and gpu.framework not in FRAMEWORKS:
            text = f"framework {gpu.framework!r} is neither of {', '.join(FRAMEWORKS)}: taken as unknown"
            yield PlanFinding(level="warn", text=text, where=at)
            continue
        others = [function.address for function in gpu.functions if not _is_own(known, gpu, function.address)]
        if others:
            text = f"no virtual function of this GPU by `pci`, so ignored: {', '.join(others)}"
            yield PlanFinding(level="warn", text=text, where=at)


def free_functions(known: Known, address: str) -> tuple[VgpuFunction, ...]:
    """Return the functions of a GPU that carry no vGPU and that no guest holds, in address order."""
    gpu = vgpu_of(known, address)
    free = [function for function in (gpu.functions if gpu else ()) if not carries(known, function)]
    return tuple(sorted(free, key=lambda function: address_key(function.address)))


def carries(known: Known, function: VgpuFunction) -> bool:
    """Return whether a function carries a vGPU, or a guest holds it."""
    taken = function.current_type not in (None, "0") or bool(function.mdevs)
    return taken or function.address in known.catalogue.holders


def manager_off(known: Known) -> bool:
    """Return whether it is known that no vGPU manager runs: then no vGPU can be made, whatever functions there are."""
    return known.host.vgpu is not None and known.host.vgpu.manager is False


def no_manager(known: Known) -> str | None:
    """Return why this host can make no vGPU at all; None if its manager runs, or seems to run."""
    vgpu = known.host.vgpu
    only = "a MIG instance is not a PCI function, and only a vGPU of the maker's manager takes one into a guest"
    if manager_off(known):
        return f"no vGPU manager runs on this host: {only}"
    if vgpu is None or not any(vgpu_of(known, gpu.address) for gpu in vgpu.gpus):
        if vgpu is not None and vgpu.manager:
            tool = f"{SRIOV_MANAGE} -e ADDRESS"
            return f"the vGPU manager runs, and no GPU has a function that offers a vGPU type: {tool}, then plan again"
        return f"no vGPU manager is seen on this host: {only}"
    return None
