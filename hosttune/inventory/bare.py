"""The host as it would be without what hosttune has applied: without its guests, and with the original settings.

Pure. A plan is made on this host and then compared with the real one. Only what a plan depends on is put back: pools of
pages, kernel arguments, drivers, and values by which a knob decides whether it wants anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec.structs import replace as changed

from hosttune.gpu.fmpm import INACTIVE, KIND, parts_of
from hosttune.gpu.settings import GpuPersistence, GpuPowerLimit
from hosttune.gpu.vgpu_set import MigInstanceSetting
from hosttune.inventory.pages import guest_shares
from hosttune.inventory.resources import place_cpus
from hosttune.model import sysfs
from hosttune.model.commandline import text_of, without
from hosttune.model.force import GuestInForce, InForce, SettingInForce
from hosttune.model.host import Fabric, Gpu, Host, MigInstance, NumaNode, PciDevice, RunningGuest, Vgpu, VgpuFunction
from hosttune.model.plan import MigAssignment, PlannedGuest
from hosttune.model.platform import RUNNING
from hosttune.settings.drivers import Driver
from hosttune.settings.files import Ksm, NodeHugePages
from hosttune.settings.kernelargs import KernelArguments
from hosttune.settings.pcie import AccessControl

Originals = Mapping[tuple[str, str], Any]  # (kind, target) -> the value before hosttune's first write


def runs(guest: RunningGuest) -> bool:
    """Return whether a guest runs now; an unknown state counts as running."""
    return (guest.state or "running") in RUNNING


def without_guest(host: Host, resident: RunningGuest) -> Host:
    """Return the host without a guest: what a running guest holds of a node's memory is free."""
    guests = tuple(guest for guest in host.guests or () if guest.name != resident.name)
    if not runs(resident):
        return changed(host, guests=guests)
    nodes = list(host.numa_nodes)
    for of, size, page in guest_shares(resident, host.numa_nodes, place_cpus(host).nodes):
        nodes = [_given_back(node, size, page) if of == node.id else node for node in nodes]
    return changed(host, guests=guests, numa_nodes=tuple(nodes))


def _given_back(node: NumaNode, size_bytes: int, page_bytes: int | None) -> NumaNode:
    if page_bytes is None:
        return node if node.free_bytes is None else changed(node, free_bytes=node.free_bytes + size_bytes)
    pools = tuple(
        changed(pool, free=min(pool.free + size_bytes // page_bytes, pool.total or 0))
        if pool.size_bytes == page_bytes and pool.free is not None and pool.total is not None
        else pool
        for pool in node.hugepages or ()
    )
    return changed(node, hugepages=pools)


def bare_host(
    host: Host,
    force: InForce,
    residents: Collection[RunningGuest],
    stay: Iterable[GuestInForce],
    again: Iterable[GuestInForce] = (),
) -> Host:
    """Return the host without the guests in force that it has (`residents`), and with the original settings.

    `stay`: guests whose MIG instances are taken, whether they exist yet or not. `again`: guests that will have the same
    ones: they and their vGPUs are as if not made yet.
    """
    adopted = {guest.name for guest in force.guests if guest.adopted is not None}
    claims = Counter[tuple[int, int]]()  # pages of adopted guests that do not run: they stay with the host's other uses
    for guest in host.guests or ():
        if guest.name in adopted and not runs(guest):
            for node, size, page in guest_shares(guest, host.numa_nodes, place_cpus(host).nodes):
                claims[node, page or 0] += size // (page or size or 1)
    for resident in residents:
        host = without_guest(host, resident)
    originals = {(setting.kind, setting.target): setting.original.get("") for setting in force.settings}
    memory, stack = host.memory_settings, host.virtualization
    if memory is not None:
        mounts = {setting.target for setting in force.settings if setting.kind == "mount"}
        left = (
            None if memory.hugetlbfs is None else tuple(mount for mount in memory.hugetlbfs if mount.path not in mounts)
        )
        ksm = originals.get((Ksm.kind, Ksm.path), memory.ksm_run)
        memory = changed(memory, hugetlbfs=left, ksm_run=ksm)
    if stack is not None and any(setting.kind == "apparmor-rule" for setting in force.settings):
        stack = changed(stack, reads_node_cpus=False)
    return changed(
        host,
        memory_settings=memory,
        virtualization=stack,
        fabric=host.fabric and _as_found(host.fabric, originals),
        kernel_args=_arguments(host.kernel_args, force.settings),
        numa_nodes=tuple(_with_pools(node, originals, claims) for node in host.numa_nodes),
        pci=tuple(_function(device, originals) for device in host.pci),
        gpus=with_instances((_gpu(gpu, originals, again) for gpu in host.gpus), [guest.places for guest in stay]),
        vgpu=host.vgpu
        and _without_types(host.vgpu, {device.address for guest in again for device in guest.places.devices}),
    )


def _as_found(fabric: Fabric, originals: Originals) -> Fabric:
    """Return the fabric without the partitions that hosttune has activated."""
    ours = {parts_of(target)[0] for (kind, target), value in originals.items() if (kind, value) == (KIND, INACTIVE)}
    return changed(
        fabric,
        partitions=fabric.partitions
        and tuple(changed(part, active=False) if part.id in ours else part for part in fabric.partitions),
    )


def _arguments(arguments: tuple[str, ...] | None, settings: Iterable[SettingInForce]) -> tuple[str, ...] | None:
    """Return the kernel arguments without those of hosttune that the running kernel has."""
    staged = {
        name: text
        for setting in settings
        if setting.kind == KernelArguments.kind
        for name, text in setting.want.items()
    }
    ours = [name for name, text in staged.items() if text and text_of(arguments, name) == text]
    return arguments if arguments is None else without(arguments, ours)


def _with_pools(node: NumaNode, originals: Originals, claims: Mapping[tuple[int, int], int]) -> NumaNode:
    """Return a node with its original pools of pages; what others use of them now is theirs.

    What hosttune has added is ordinary memory again.
    """
    pools, back = [], 0
    for pool in node.hugepages or ():
        original = originals.get((NodeHugePages.kind, sysfs.pool_total(node.id, pool.size_bytes)))
        if original is not None and pool.total is not None and pool.free is not None:
            used = pool.total - pool.free
            total = max(original, used + claims.get((node.id, pool.size_bytes), 0))
            back += (pool.total - total) * pool.size_bytes
            pool = changed(pool, total=total, free=total - used)
        pools.append(pool)
    free = None if node.free_bytes is None else max(0, node.free_bytes + back)
    return changed(node, hugepages=node.hugepages and tuple(pools), free_bytes=free)


def _function(device: PciDevice, originals: Originals) -> PciDevice:
    driver = originals.get((Driver.kind, device.address), device.driver)
    if isinstance(driver, Mapping):
        driver = driver.get("driver")
    acs = device.acs
    if acs is not None and (enabled := originals.get((AccessControl.kind, device.address))) is not None:
        acs = changed(acs, enabled=tuple(name for name in enabled.split() if name in acs.capable))
    return device if (driver, acs) == (device.driver, device.acs) else changed(device, driver=driver, acs=acs)


def _gpu(gpu: Gpu, originals: Originals, again: Iterable[GuestInForce]) -> Gpu:
    persistence = originals.get((GpuPersistence.kind, gpu.address), gpu.persistence)
    watts = originals.get((GpuPowerLimit.kind, gpu.address), gpu.power_limit_watts)
    mig, starts = (
        gpu.mig,
        {assignment.start for guest in again for assignment in guest.places.mig if assignment.gpu == gpu.address},
    )
    if mig is not None and mig.instances:
        kept = (
            instance
            for instance in mig.instances
            if instance.start not in starts
            and originals.get((MigInstanceSetting.kind, f"{gpu.address} {instance.profile}:{instance.start}"))
            is not False
        )
        mig = changed(mig, instances=tuple(kept))
    return changed(gpu, persistence=persistence, power_limit_watts=watts, mig=mig)


def with_instances(gpus: Iterable[Gpu], guests: Iterable[PlannedGuest]) -> tuple[Gpu, ...]:
    """Return the GPUs with the MIG instances that these guests have or will have as vGPUs."""
    owed = [
        assignment for guest in guests if any(device.vgpu_type for device in guest.devices) for assignment in guest.mig
    ]
    return tuple(_with_owed(gpu, [assignment for assignment in owed if assignment.gpu == gpu.address]) for gpu in gpus)


def _with_owed(gpu: Gpu, owed: Iterable[MigAssignment]) -> Gpu:
    known = (gpu.mig and gpu.mig.instances) or ()
    starts = {instance.start for instance in known}
    more = tuple(
        MigInstance(profile=assignment.profile, start=assignment.start)
        for assignment in owed
        if assignment.start not in starts
    )
    return changed(gpu, mig=changed(gpu.mig, instances=(*known, *more))) if gpu.mig and more else gpu


def _without_types(vgpu: Vgpu, functions: Collection[str]) -> Vgpu:
    """Return the vGPU data in which these functions, or mediated devices, are not made."""

    def one(function: VgpuFunction) -> VgpuFunction:
        kind = None if function.address in functions else function.current_type
        return changed(
            function, current_type=kind, mdevs=tuple(uuid for uuid in function.mdevs if uuid not in functions)
        )

    return changed(vgpu, gpus=tuple(changed(gpu, functions=tuple(map(one, gpu.functions))) for gpu in vgpu.gpus))
