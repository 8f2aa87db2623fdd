"""Planned guests on the NVSwitch fabric: the partition of each, whether it can start, and findings for the operator.

Pure. A guest that divides its whole GPUs with MIG needs no partition, because MIG disables NVLink. But MIG is only
enabled once the guest has enabled it, and the guest can disable it at any time. So isolation from other tenants needs
more: no partition of several GPUs that contains its GPUs may be active. Sources: NVIDIA, Fabric Manager for NVIDIA
NVSwitch systems, user guide ("Interoperability with MIG", "Shared NVSwitch virtualization model"); docs/fabric.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace as changed

from hosttune.gpu.fmpm import INACTIVE, KIND, active_as, target_of
from hosttune.inventory.partitions import (
    SHARED,
    VGPU,
    GpuSet,
    HostFabric,
    Partition,
    blocked,
    exactly,
    partition_of,
    read_fabric,
    unnamed,
)
from hosttune.knobs.knob import make_action
from hosttune.model.host import Host
from hosttune.model.plan import Action, PlannedGuest, Step

Say = Callable[[str, str, str], None]  # level, text, where
_WHERE = "Fabric Manager"


def fabric_of(fabric: HostFabric, guest: PlannedGuest) -> GpuSet:
    """Return the guest's whole GPUs that are on the fabric."""
    return tuple(d.address for d in guest.devices if d.kind == "gpu" and d.address in fabric.members)


def guest_partition(fabric: HostFabric, guest: PlannedGuest) -> int | None:
    """Return the partition that must be active for a planned guest; None if it needs none, or if it is unknown."""
    return None if needs_none(fabric, guest) else partition_of(fabric, fabric_of(fabric, guest))


def needs_none(fabric: HostFabric, guest: PlannedGuest) -> bool:
    """Return whether the guest needs no partition: MIG on whole GPUs, on a fabric whose mode has partitions.

    Source: user guide, "Interoperability with MIG".
    """
    return bool(guest.mig and fabric_of(fabric, guest)) and fabric.known and not fabric.passthrough


def open_partitions(fabric: HostFabric, guest: PlannedGuest) -> tuple[int, ...]:
    """Return active partitions that connect the guest's GPUs with other GPUs: NVLink routes between them are open."""
    own = {fabric.modules[address] for address in fabric_of(fabric, guest) if address in fabric.modules}
    return tuple(number for number, modules in sorted(fabric.active.items()) if modules & own and modules - own)


def why_routes_unknown(fabric: HostFabric, guest: PlannedGuest) -> str | None:
    """Return why it is unknown whether such a partition is active; None if it is known."""
    gpus = fabric_of(fabric, guest)
    if missing := unnamed(gpus, fabric.modules, fabric.claimed):
        return missing
    if fabric.partitions == ():
        return fabric.why
    own = frozenset(gpus)
    unread = [p.id for p in fabric.partitions or () if p.active is None and p.gpus & own and p.gpus - own]
    return f"whether partitions {', '.join(map(str, unread))} are active could not be read" if unread else None


def fabric_reasons(fabric: HostFabric, guest: PlannedGuest) -> tuple[str, ...]:
    """Return why a guest with GPUs of the fabric has no partition, if it needs none."""
    if not needs_none(fabric, guest):
        return ()
    return ("no partition of the NVSwitch fabric: MIG, which the guest switches on inside, turns NVLink off",)


def activated_partition(fabric: HostFabric, guest: PlannedGuest) -> Partition | None:
    """Return the guest's partition if hosttune activates it: in mode 1, where this host's Fabric Manager lists it."""
    gpus = frozenset(fabric_of(fabric, guest))
    if fabric.mode != SHARED or fabric.assumed:
        return None
    own = (partition for partition in fabric.partitions or () if partition.id == guest.fabric_partition)
    return next((partition for partition in own if partition.gpus == gpus and partition.active is not None), None)


def partition_actions(fabric: HostFabric, guests: Iterable[PlannedGuest]) -> Iterator[Action]:
    """Yield the partition of each guest's GPUs. It comes before their drivers: see `hypervisor.partition`.

    Also one that is active: a reboot undoes it, so it must be in force.
    """
    for guest in guests:
        partition = activated_partition(fabric, guest)
        if partition is not None:
            want = active_as(partition.modules)
            now = want if partition.active else INACTIVE
            why = f"guest {guest.name} gets exactly its GPUs"
            yield make_action(KIND, target_of(partition.id, partition.gpus), now, want, why, needed=True)


# --- starting ----------------------------------------------------------------------------------------------------


def not_startable(host: Host, guest: PlannedGuest) -> str | None:
    """Return why a planned guest must not be started with the fabric in its current state; None if it can be started.

    For a guest that needs a partition, one that is not known to be active is a reason: CUDA in the guest would fail
    with error 802 until the partition is activated. For a guest with MIG inside, an active partition that connects its
    GPUs with others is a reason, and so is one whose state is unknown.
    """
    fabric = read_fabric(host)
    gpus = fabric_of(fabric, guest)
    if not gpus:
        return None
    if fabric.passthrough and guest.fabric_partition is None:
        return _not_startable_passthrough(fabric, guest)
    if needs_none(fabric, guest):
        joined = open_partitions(fabric, guest)
        if joined:
            step = f"fmpm -d {joined[0]} once no guest uses it"
            return f"partition {joined[0]} of the NVSwitch fabric is active and joins its GPUs with others: {step}"
        why = why_routes_unknown(fabric, guest)
        return (
            f"whether an active partition of the NVSwitch fabric joins its GPUs with others is unknown: {why}"
            if why
            else None
        )
    if guest.fabric_partition is None:
        why = unnamed(gpus, fabric.modules, fabric.claimed) or fabric.why
        text = "its GPUs are on an NVSwitch fabric and which partition holds them is unknown"
        return f"{text}: {why}" if why else text
    if not fabric.known or any(address not in fabric.modules for address in gpus):
        return None
    partition = exactly(fabric, gpus)
    if partition is None or partition.id != guest.fabric_partition:
        return f"partition {guest.fabric_partition} of the NVSwitch fabric does not hold exactly its GPUs now"
    if partition.active:
        return None
    text = f"partition {partition.id} of the NVSwitch fabric"
    if partition.active is False:
        return f"{text} is not active: fmpm -a {partition.id}"
    return (
        f"{text} may not be active, the Fabric Manager does not tell. Once fmpm -l answers here: hosttune"
        f" apply --start; if it runs elsewhere, fmpm -a {partition.id} there, virsh start {guest.name} here"
    )


def _not_startable_passthrough(fabric: HostFabric, guest: PlannedGuest) -> str | None:
    gpus = fabric_of(fabric, guest)
    if any(name != guest.name for name in fabric.tenants.values()):
        return "the Fabric Manager is in mode 0, which does not isolate guests, and another guest has GPUs of it"
    switches = {device.address for device in guest.devices if device.kind == "nvswitch"}
    if len(gpus) == 1 or guest.mig or (fabric.whole(gpus) and switches >= set(fabric.switches)):
        return None
    return "the Fabric Manager is in mode 0, and it has neither one GPU nor all with the NVSwitches"


# --- findings ----------------------------------------------------------------------------------------------------


def fabric_findings(fabric: HostFabric, guests: Iterable[PlannedGuest], say: Say) -> None:
    """Report what the operator should know about the planned guests' GPUs on the fabric."""
    on_fabric = [guest for guest in guests if fabric_of(fabric, guest)]
    if on_fabric and fabric.assumed:
        say("warn", f"{fabric.assumed}; compare with fmpm -l before a guest starts", _WHERE)
    for guest in on_fabric:
        if fabric.passthrough:
            _report_passthrough(fabric, guest, say)
        elif needs_none(fabric, guest):
            _report_inner_mig(fabric, guest, say)
        elif partition_of(fabric, fabric_of(fabric, guest)) is None:
            _report_no_partition(fabric, guest, say)
        elif fabric.mode == VGPU:
            say(
                "error",
                f"guest {guest.name} gets whole GPUs, and the Fabric Manager is in mode 2 (vGPU), which activates"
                " partitions with virtual functions only: whole GPUs need FABRIC_MODE=1",
                _WHERE,
            )


def _report_no_partition(fabric: HostFabric, guest: PlannedGuest, say: Say) -> None:
    """Report a guest whose partition is unknown, or cannot be activated now."""
    gpus = fabric_of(fabric, guest)
    partition = exactly(fabric, gpus)
    why = unnamed(gpus, fabric.modules, fabric.claimed) or fabric.why or (partition and blocked(fabric, partition))
    what = "whose partitions are unknown" if fabric.partitions is None else "and which partition holds them is unknown"
    if fabric.claimed.keys() & set(gpus):
        what = "whose module ids contradict each other"
    say(
        "error",
        f"guest {guest.name} gets GPUs of an NVSwitch fabric {what}: it is not started until one partition holds"
        f" exactly these GPUs{f' ({why})' if why else ''}",
        _WHERE,
    )


def _report_inner_mig(fabric: HostFabric, guest: PlannedGuest, say: Say) -> None:
    """Report a guest that divides its GPUs itself: NVLink routes of active partitions are open until it enables MIG."""
    for number in open_partitions(fabric, guest):
        # A GPU whose address is unknown is listed by its module id.
        at = {module: address for address, module in fabric.modules.items()}
        own = set(fabric_of(fabric, guest))
        lines = []
        for module in sorted(fabric.active[number]):
            address = at.get(module)
            if address not in own:
                holder = fabric.tenants.get(address or "")
                lines.append((address or f"module {module}") + (f" (guest {holder})" if holder else ""))
        others = ", ".join(lines)
        say(
            "error",
            f"guest {guest.name} cuts its GPUs with MIG inside, and partition {number}, which is active, joins them"
            f" with {others}: until MIG is on inside, and whenever the guest turns it off, the NVLinks between them are"
            " open to any guest or program that has those GPUs. Before it starts: fmpm -d "
            f"{number} once no guest uses the partition",
            _WHERE,
        )
    if open_partitions(fabric, guest):
        return
    text = (
        f"guest {guest.name} cuts its GPUs with MIG inside and needs no partition: none that joins them with other GPUs"
        " may be active while it has them (fmpm -l), because the guest can turn MIG off"
    )
    doubt = why_routes_unknown(fabric, guest)
    if doubt:
        say("error", f"{text}; that is not known: {doubt}; it is not started until it is", _WHERE)
    else:
        say("info", text, _WHERE)


def _report_passthrough(fabric: HostFabric, guest: PlannedGuest, say: Say) -> None:
    gpus = fabric_of(fabric, guest)
    if fabric.whole(gpus):
        say(
            "info",
            f"guest {guest.name} gets the whole NVSwitch fabric: the Fabric Manager runs inside it, of its driver's own"
            " version; stop the host's first, it needs the NVSwitches",
            _WHERE,
        )
        return
    say(
        "error",
        f"guest {guest.name} gets a GPU of an NVSwitch fabric in mode 0 (no partition): its NVLinks stay open to the"
        " other GPUs unless they are disabled, which only the guest itself can do here (NVreg_NvLinkDisable=1, no"
        " isolation): give no other tenant a GPU of this host, or use FABRIC_MODE=1",
        _WHERE,
    )


# --- steps of a person -----------------------------------------------------------------------------------------
# The steps that a person does on the NVSwitch fabric before a guest starts and after it has ended, in order.
# Pure. A partition that hosttune activates itself (`guest.activated_partition`) has no step. Others have a reset on
# boards whose GPUs want one after each start of the Fabric Manager (NVIDIA/gpu-driver-container#909). A reset is by
# the bus, because a function-level one leaves state (`gpu.nvidia.WEAK_RESETS`). Sources: NVIDIA, Fabric Manager user
# guide ("Full passthrough virtualization model", "Shared NVSwitch virtualization model", "vGPU multitenancy");
# NVIDIA/Fabric-Manager-Client, README.md; Linux Documentation/ABI/testing/sysfs-bus-pci (reset). The order around a
# partition is that of `hosttune.hypervisor.partition`. No step was tried on such a machine: every one is marked
# unproven.

START, STOP = "start", "stop"


def fabric_steps(fabric: HostFabric, guest: PlannedGuest) -> tuple[Step, ...]:
    """Return the steps around a guest with whole GPUs of the fabric; none if its partition is unknown.

    A guest with MIG inside needs no partition: it has a step only if an active partition connects its GPUs with others.
    """
    gpus = fabric_of(fabric, guest)
    if needs_none(fabric, guest):
        return tuple(_deactivated(number) for number in open_partitions(fabric, guest))
    if not gpus or guest.mig:
        return ()
    if fabric.passthrough:
        return tuple(_whole(fabric, guest) if fabric.whole(gpus) else _alone(guest, gpus[0]))
    number = partition_of(fabric, gpus)
    if number is None:
        return ()
    return tuple(_with_functions(guest, number) if fabric.mode == VGPU else _shared(fabric, guest, gpus, number))


def _shared(fabric: HostFabric, guest: PlannedGuest, gpus: tuple[str, ...], number: int) -> Iterator[Step]:
    if activated_partition(fabric, changed(guest, fabric_partition=number)) is not None:
        return
    if fabric.nvlink5:
        text = "if the Fabric Manager has started since the last reset of its GPUs, reset them while nvidia has them"
        yield Step(when=START, text=f"{text}: {' '.join(f'nvidia-smi -i {gpu} -r' for gpu in gpus)}")
    modules = ", ".join(str(module) for module in sorted(fabric.modules[address] for address in gpus))
    active = next(partition.active for partition in fabric.partitions or () if partition.id == number)
    state = "" if active else f", then fmpm -a {number}, while the driver nvidia has the GPUs"
    text = f"where the Fabric Manager runs, fmpm -l: partition {number} is that of module ids {modules}"
    yield Step(when=START, text=f"{text}{state}")
    yield Step(when=START, text=f"hosttune apply: vfio-pci gets {' '.join(gpus)}; then virsh start {guest.name}")
    yield Step(when=STOP, text=f"virsh domstate {guest.name}: shut off (never deactivate under a running guest)")
    yield Step(when=STOP, text="take the guest out of the intent and apply it: the driver nvidia gets the GPUs back")
    yield Step(when=STOP, text=f"fmpm -d {number}, then fmpm -l: partition {number} is not active")


def _with_functions(guest: PlannedGuest, number: int) -> Iterator[Step]:
    text = f"activate partition {number} with one virtual function of each GPU, in the order of the partition's GPUs"
    yield Step(when=START, text=f"{text} (fmActivateFabricPartitionWithVFs of libnvfm; fmpm has no command for it)")
    yield Step(when=START, text=f"start guest {guest.name}")
    yield Step(when=STOP, text=f"virsh domstate {guest.name}: shut off (never deactivate under a running guest)")
    yield Step(when=STOP, text=f"fmpm -d {number}, then fmpm -l: partition {number} is not active")


def _whole(fabric: HostFabric, guest: PlannedGuest) -> Iterator[Step]:
    # The driver cannot release NVSwitches that the Fabric Manager holds open. So the daemon stops before apply binds
    # them, which asks for that (`transaction.guards.manager_lines`). What carries those of NVLink5 boards is not reset:
    # no source says so.
    yield _applied((*fabric.members, *fabric.switches), ", after systemctl disable --now nvidia-fabricmanager")
    reset = fabric.members if fabric.nvlink5 else (*fabric.members, *fabric.switches)
    yield from _resets(START, reset)
    yield Step(when=START, text=f"start guest {guest.name} with all GPUs and NVSwitches; do not reset them again")
    inside = "the Fabric Manager of exactly its driver's version, FABRIC_MODE=0, running (hosttune validate --guest)"
    yield Step(when=START, text=f"inside it: {inside}")
    yield Step(when=STOP, text=f"virsh domstate {guest.name}: shut off")
    yield from _resets(STOP, reset)
    text = "once the guest is out of the intent and applied, systemctl enable --now nvidia-fabricmanager on this host"
    yield Step(when=STOP, text=text)


def _alone(guest: PlannedGuest, gpu: str) -> Iterator[Step]:
    yield _applied((gpu,))
    yield from _resets(START, (gpu,))
    text = "options nvidia NVreg_NvLinkDisable=1 in its /etc/modprobe.d, before its driver loads (no isolation)"
    yield Step(when=START, text=f"inside guest {guest.name}: {text}")
    yield Step(when=STOP, text=f"virsh domstate {guest.name}: shut off")
    yield from _resets(STOP, (gpu,))


def _deactivated(number: int) -> Step:
    text = f"fmpm -d {number} once no guest uses it, then fmpm -l: partition {number} is not active"
    return Step(when=START, text=text)


def _applied(addresses: Iterable[str], after: str = "") -> Step:
    """Return the step that applies the plan without the start: only a function bound to vfio-pci may be reset."""
    return Step(when=START, text=f"hosttune apply, without --start{after}: vfio-pci has {' '.join(addresses)}")


def _resets(when: str, addresses: Iterable[str]) -> Iterator[Step]:
    """Yield one step that resets every function through its own reset file."""
    files = "echo bus > /sys/bus/pci/devices/ADDRESS/reset_method, then echo 1 > /sys/bus/pci/devices/ADDRESS/reset"
    seen = "done when both end without an error and setpci -s ADDRESS 0.l does not read ffffffff"
    yield Step(when=when, text=f"as root, reset each of: {' '.join(addresses)} ({files}; {seen})")
