"""Plan a guest's MIG instances: functions or mediated devices with their vGPU types, ordered steps.

Pure. Order (NVIDIA virtual GPU software documentation, "Configuring a GPU for MIG-Backed vGPUs"; NVIDIA's
vgpu-device-manager and mig-parted): MIG mode, virtual functions, GPU instances, vGPU types, then the guest. These are
actions (`types`), proven on stand-ins, not on a board. What no list names yet is a step for a person.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from hosttune.gpu.mig_tables import vgpu_suffix, vgpu_type_name
from hosttune.inventory.devices import identity
from hosttune.inventory.sizing import PlanningContext
from hosttune.model import sysfs
from hosttune.model.intent import GuestIntent
from hosttune.model.plan import Device, MigAssignment, PlanFinding, Step
from hosttune.model.vgpu import VgpuFunction
from hosttune.planning.mig.instances import MigSlot, gpu_offer, no_profiles
from hosttune.planning.mig.packing import start_sets
from hosttune.planning.mig.types import free_functions, vgpu_of

_NAMESPACE = uuid.UUID("6b1f4c52-9f2e-5a54-8f0c-6a1d0c5d1f7e")
_DEVICES = sysfs.PCI_DEVICES


class MigDevice(msgspec.Struct, frozen=True):
    """A vGPU before it has its guest address. `address`: its function's, or its UUID as a mediated device.

    `kind`: "vf" or "mdev". `name`: its vGPU type. `type_id`: that type's number on this host, None = not listed now.
    `function`: the host function that carries it. `gpu`: the physical GPU.
    """

    address: str
    kind: str
    gpu: str
    function: str
    identity: str
    host_node: int | None
    name: str
    type_id: str | None


class MigParts(msgspec.Struct, frozen=True):
    """The result of chosen slots for one guest: devices in the order of the slots, with steps and findings."""

    devices: tuple[MigDevice, ...]
    mig: tuple[MigAssignment, ...]
    steps: tuple[Step, ...]
    why: tuple[str, ...]
    findings: tuple[PlanFinding, ...]


# --- vGPUs ---------------------------------------------------------------------------------------------------


def plan_mig_guest(
    context: PlanningContext, guest: GuestIntent, slots: Sequence[MigSlot], taken: Collection[str]
) -> MigParts:
    """Plan a guest's slots as vGPUs. `taken`: functions that other planned guests have.

    `mig_choices` gives no more slots on a GPU than it has free functions; functions are taken in address order,
    its own first.
    """
    devices: list[MigDevice] = []
    used, turns = set(taken), context.turns(guest.name)
    for slot in slots:
        able = (function for function in free_functions(context, slot.gpu) if function.address not in used)
        free = min(able, key=lambda function: turns.get(function.address, 1))
        used.add(free.address)
        devices.append(_device(context, guest, slot, free))
    return MigParts(
        devices=tuple(devices),
        mig=tuple(MigAssignment(gpu=slot.gpu, profile=slot.profile, start=slot.start) for slot in slots),
        steps=tuple(_before(devices)),
        why=tuple(_why(slot, device) for slot, device in zip(slots, devices, strict=True)),
        findings=tuple(_findings(context, guest, slots)),
    )


def as_devices(parts: MigParts, cell_of: Mapping[str, int | None], addresses: Mapping[str, str]) -> tuple[Device, ...]:
    """Return the vGPUs as devices of a plan. Both mappings are by host function: its guest cell, its guest address."""
    return tuple(
        Device(
            address=device.address,
            kind=device.kind,
            guest_cell=cell_of[device.function],
            guest_address=addresses[device.function],
            identity=device.identity,
            rom_bar=device.kind == "mdev",  # a mediated device has no ROM that could be disabled
            host_node=device.host_node,
            name=device.name,
            vgpu_type=device.name,
        )
        for device in parts.devices
    )


def _device(context: PlanningContext, guest: GuestIntent, slot: MigSlot, function: VgpuFunction) -> MigDevice:
    catalogue = context.catalogue
    framework = vgpu_of(context, slot.gpu)
    mediated = framework is not None and framework.framework == "mdev"
    # The vGPU type of a slot among the types that the GPU lists now: by its full name, else by its ending. All types of
    # a list belong to the same board. So the ending shows which instance profile a type uses.
    framework = vgpu_of(context, slot.gpu)
    listed = (framework.types if framework else None) or ()
    expected = vgpu_type_name(context.catalogue.pci.get(slot.gpu), slot.profile)
    suffix = vgpu_suffix(slot.profile)
    exact = [vgpu_type for vgpu_type in listed if vgpu_type.name == expected]
    ending = [vgpu_type for vgpu_type in listed if suffix is not None and vgpu_type.name.endswith(f"-{suffix}")]
    found = next((vgpu_types[0] for vgpu_types in (exact, ending) if len(vgpu_types) == 1), None)
    expected = vgpu_type_name(catalogue.pci.get(slot.gpu), slot.profile)
    address = function.address
    who = identity(catalogue, address, context.host)
    if mediated:
        name = f"{context.host.hostname or ''}/{guest.name}/mig/{slot.gpu}/{slot.start}"
        address = str(uuid.uuid5(_NAMESPACE, name))
        who = f"{address} on {function.address}"
    return MigDevice(
        address=address,
        kind="mdev" if mediated else "vf",
        gpu=slot.gpu,
        function=function.address,
        identity=who,
        host_node=catalogue.node(slot.gpu),
        name=found.name if found else expected or f"vGPU type ending in -{vgpu_suffix(slot.profile) or slot.profile}",
        type_id=found.id if found else None,
    )


def _why(slot: MigSlot, device: MigDevice) -> str:
    slices = f"slice {slot.start}" if slot.size == 1 else f"slices {slot.start}-{slot.start + slot.size - 1}"
    on = f"{device.function}" if device.kind == "vf" else f"a mediated device of {device.function}"
    return f"MIG {slot.profile} on GPU {slot.gpu}, memory {slices}, as {device.name} on {on}"


def _findings(context: PlanningContext, guest: GuestIntent, slots: Sequence[MigSlot]) -> Iterator[PlanFinding]:
    at = f"guest {guest.name}"
    vgpu = context.host.vgpu
    if vgpu is not None and vgpu.manager is None:
        text = "whether the vGPU manager runs is unknown; its functions are there, which only its driver makes"
        yield PlanFinding(level="warn", text=text, where=at)
    for address in dict.fromkeys(slot.gpu for slot in slots):
        gpu = context.catalogue.gpus[address]
        offer = gpu_offer(context, gpu)
        if offer.doubt:
            yield PlanFinding(level="warn", text=f"GPU {address}: {offer.doubt}", where=at)
        if not gpu.mig_on:
            text = f"GPU {address}: MIG mode has to be switched on, which resets it: apply wants --disrupt {address}"
            yield PlanFinding(level="warn", text=text, where=at)
        if gpu.processes and not gpu.mig_on:
            text = f"GPU {address} is in use by {gpu.processes} process(es) now: MIG mode needs an idle GPU"
            yield PlanFinding(level="warn", text=text, where=at)
    text = (
        "its vGPUs are made as documents say: proven on stand-ins, not on a board; it is not started before its"
        " functions carry their types"
    )
    yield PlanFinding(level="warn", text=text, where=at)


# --- steps ---------------------------------------------------------------------------------------------------


def _before(devices: Sequence[MigDevice]) -> Iterator[Step]:
    """Yield the steps before the guest starts: a mediated device whose type nobody lists yet. The rest are actions."""
    for device in devices:
        if device.kind == "mdev" and device.type_id is None:
            create = f"{_DEVICES}/{device.function}/mdev_supported_types/TYPE/create"
            text = f"echo {device.address} > {create}: TYPE is the folder whose name says {device.name}"
            yield Step(when="start", text=f"{text}; hosttune plan makes an action of it once it is there")


# --- instances inside a guest --------------------------------------------------------------------------------


def mig_inside(
    context: PlanningContext, guest: GuestIntent, gpus: Sequence[str]
) -> tuple[tuple[MigAssignment, ...], tuple[PlanFinding, ...]]:
    """Return the instances that a guest creates on its own whole GPUs, `count` on each, and findings about them.

    A GPU has no instances when its guest gets it: those of the host are removed when the GPU is passed. Call this for
    GPUs on which `takes_inside` is true.
    """
    request = guest.mig
    if request is None:
        return (), ()
    assignments: list[MigAssignment] = []
    findings: list[PlanFinding] = []
    for address in gpus:
        offer = gpu_offer(context, context.catalogue.gpus[address])
        profile = offer.find(request.profile)
        sets = start_sets(profile, request.count, 0, offer.profiles) if profile else ()
        assignments += [MigAssignment(gpu=address, profile=request.profile, start=n) for n in (sets[0] if sets else ())]
        if offer.doubt:
            findings.append(
                PlanFinding(level="warn", text=f"GPU {address}: {offer.doubt}", where=f"guest {guest.name}")
            )
    text = (
        "its MIG instances are made inside it, by its seed or bundle at every boot: none outlasts a reboot, and where"
        " the guest's driver cannot reset the GPU, MIG mode waits for a restart of the guest"
    )
    findings.append(PlanFinding(level="info", text=text, where=f"guest {guest.name}"))
    return tuple(assignments), tuple(findings)


def takes_inside(context: PlanningContext, guest: GuestIntent, address: str) -> bool:
    """Return whether a whole GPU can have all instances that its guest creates on it; true if it creates none."""
    if guest.mig is None:
        return True
    offer = gpu_offer(context, context.catalogue.gpus[address])
    profile = offer.find(guest.mig.profile)
    return profile is not None and bool(start_sets(profile, guest.mig.count, 0, offer.profiles))


def inside_refusal(context: PlanningContext, guest: GuestIntent, address: str) -> str:
    """Return why a whole GPU cannot have the instances that its guest creates on it."""
    name, count = (guest.mig.profile, guest.mig.count) if guest.mig else ("", 0)
    offer = gpu_offer(context, context.catalogue.gpus[address])
    profile = offer.find(name)
    if not offer.profiles:
        return no_profiles(context, context.catalogue.gpus[address])
    if profile is None:
        have = ", ".join(mig_profile.name for mig_profile in offer.profiles)
        return f"GPU {address} has no MIG profile {name}; it has {have}"
    fits = len([n for n in range(1, count) if start_sets(profile, n, 0, offer.profiles)])
    return f"{count} x {name} wanted on each GPU, {address} takes {fits}"
