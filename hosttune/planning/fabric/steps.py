"""The steps that a person does on the NVSwitch fabric before a guest starts and after it has ended, in order.

Pure. A partition that hosttune activates itself (`guest.activated_partition`) has no step. Others have a reset on
boards whose GPUs want one after each start of the Fabric Manager (NVIDIA/gpu-driver-container#909). A reset is by the
bus, because a function-level one leaves state (`gpu.nvidia.WEAK_RESETS`). Sources: NVIDIA, Fabric Manager user guide
("Full passthrough virtualization model", "Shared NVSwitch virtualization model", "vGPU multitenancy");
NVIDIA/Fabric-Manager-Client, README.md; Linux Documentation/ABI/testing/sysfs-bus-pci (reset). The order around a
partition is that of `hosttune.hypervisor.partition`. No step was tried on such a machine: every one is marked unproven.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace as changed

from hosttune.inventory.partitions import VGPU, HostFabric, partition_of
from hosttune.model.plan import PlannedGuest, Step
from hosttune.planning.fabric.guest import activated_partition, fabric_of, needs_none, open_partitions

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
