"""Reasons why a planned guest must not be defined, or not be started, on this host now: (Host, PlannedGuest) → reasons.

Pure. Unknown facts are reasons too: a guest that waits for the administrator does no harm, but a guest with half an
IOMMU group or with another guest's device does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from hosttune.hypervisor.connection import is_active
from hosttune.model.host import Host, PciDevice
from hosttune.model.plan import Device, PlannedGuest
from hosttune.model.values import parse_cpus

_VFIO = "vfio-pci"
_AGAIN = "hosttune apply --start again, for its type is listed once its instance is there; else the plan has steps"


def ready(host: Host, guest: PlannedGuest, making: Collection[str] = ()) -> tuple[str, ...]:
    """Return why the guest must not be defined; empty if it may be.

    The IOMMU group of every passed-through device must be readable and complete: each function in it, except bridges,
    goes to this guest, or has no driver of the host and does not belong to another guest. `making`: NICs whose virtual
    functions are made before it is defined; they are looked at then.
    """
    reasons = [] if host.guests is not None else ["libvirt cannot be asked which guests there are"]
    by_address = host.index.pci
    given = {device.address for device in guest.devices}
    for device in _functions(guest):
        function = by_address.get(device.address)
        if device.network and device.network.vf_of in making:
            continue
        if function is None:
            reasons.append(f"{device.address} is not on this host")
        elif function.iommu_group is None:
            reasons.append(f"the IOMMU group of {device.address} cannot be read")
        else:
            members = (other for other in host.pci if other.iommu_group == function.iommu_group)
            reasons += _not_whole(host, guest, function, [m for m in members if m.address not in given])
    return tuple(dict.fromkeys(reasons))


def _functions(guest: PlannedGuest) -> Iterator[Device]:
    """Return an iterator over the passed-through PCI functions.

    Mediated devices are left out, because their addresses are in no PCI group.
    """
    return (device for device in guest.devices if device.kind != "mdev")


def _not_whole(host: Host, guest: PlannedGuest, function: PciDevice, others: list[PciDevice]) -> Iterator[str]:
    group = f"IOMMU group {function.iommu_group} of {function.address}"
    for other in others:
        if other.is_bridge:
            continue
        if not other.vfio_viable:
            yield f"{group} also holds {other.address}, which {other.driver} drives"
        for holder in host.guests or ():
            if other.address in holder.devices and holder.name != guest.name:
                yield f"{group} also holds {other.address}, which is guest {holder.name}'s"


def startable(host: Host, guest: PlannedGuest) -> tuple[str, ...]:
    """Return why the guest, though defined, must not be started now; empty if it may be."""
    from hosttune.planning.fabric.guest import not_startable  # imported here: `validate` does not need the planner

    running = [other for other in host.guests or () if is_active(other.state)]
    state = next((other.state for other in running if other.name == guest.name), None)
    if state is not None:
        return (f"it is {state}",)
    reasons = [*ready(host, guest), *_without_kvm(host, guest), *_short_of_pages(host, guest)]
    reasons += _without_mount(host, guest)
    by_address = host.index.pci
    reasons += _without_type(host, guest)
    for device in _functions(guest):
        function = by_address.get(device.address)
        if function is not None and not device.managed and device.vgpu_type is None and function.driver != _VFIO:
            bound = f"bound to {function.driver}" if function.driver else "bound to no driver"
            reasons.append(f"{device.address} is {bound}, not to {_VFIO}")
    for device in guest.devices:
        reasons += [f"{device.address} is held by guest {r.name}" for r in running if device.address in r.devices]
    unknown_state = (o.name for o in host.guests or () if o.state is None and o.name != guest.name)
    reasons += [f"whether guest {name} runs is unknown" for name in unknown_state if _shares(host, guest, name)]
    if fabric := not_startable(host, guest):
        reasons.append(fabric)
    return tuple(dict.fromkeys(reasons))


def _without_type(host: Host, guest: PlannedGuest) -> Iterator[str]:
    """Report vGPUs that do not exist yet: a function without its type, or a mediated device that was not created.

    A function's type number shows that it has a type; the list of types has the type's name.
    """
    gpus = host.vgpu.gpus if host.vgpu else ()
    made = {uuid for gpu in gpus for function in gpu.functions for uuid in function.mdevs}
    now = {
        vgpu_function.address: (vgpu_function.current_type, gpu.types or ())
        for gpu in gpus
        for vgpu_function in gpu.functions
    }
    for device in guest.devices:
        if device.vgpu_type is None or device.address in made:
            continue
        number, types = now.get(device.address, (None, ()))
        other = next(
            (vgpu_type.name for vgpu_type in types if vgpu_type.id == number and vgpu_type.name != device.vgpu_type),
            None,
        )
        if device.kind == "mdev":
            yield f"there is no mediated device {device.address} of {device.vgpu_type}: {_AGAIN}"
        elif number in (None, "0"):
            yield f"{device.address} carries no vGPU yet, it wants {device.vgpu_type}: {_AGAIN}"
        elif other is not None:
            yield f"{device.address} carries {other}, not {device.vgpu_type}"


def _shares(host: Host, guest: PlannedGuest, name: str) -> bool:
    """Return whether another guest, which is defined, has a device of this one."""
    other = next(other for other in host.guests or () if other.name == name)
    return any(device.address in other.devices for device in guest.devices)


def _without_kvm(host: Host, guest: PlannedGuest) -> Iterator[str]:
    kvm = host.virtualization.kvm if host.virtualization else None
    if guest.accelerator == "kvm" and not kvm:
        yield "there is no KVM on this host" if kvm is False else "whether this host has KVM is unknown"


def _short_of_pages(host: Host, guest: PlannedGuest) -> Iterator[str]:
    """Check free pages for each set of nodes.

    libvirt's strict mode takes pages from a cell's own nodes, or fails (formatdomain, numatune).
    """
    page_bytes = guest.huge_page_bytes
    if page_bytes is None:
        return
    wanted: dict[str, int] = defaultdict(int)
    for cell in guest.cells:
        wanted[cell.host_nodes] += cell.memory_bytes
    for nodes, size_bytes in sorted(wanted.items()):
        free = _free_pages(host, nodes, page_bytes)
        pages = -(-size_bytes // page_bytes)
        where = f"on node {nodes}" if nodes else "on this host"
        if free is None:
            yield f"how many pages of {page_bytes >> 10} KiB are free {where} is unknown; it needs {pages}"
        elif free < pages:
            yield f"{free} pages of {page_bytes >> 10} KiB are free {where}; it needs {pages}"


def _without_mount(host: Host, guest: PlannedGuest) -> Iterator[str]:
    """Check that libvirt knows a hugetlbfs of the page size: else it does not start the guest.

    See `hosttune.linux.hugetlbfs`.
    """
    page_bytes = guest.huge_page_bytes
    if page_bytes is None:
        return
    size = f"{page_bytes >> 10} KiB"
    mounts = host.memory_settings.hugetlbfs if host.memory_settings else None
    alike = [mount for mount in mounts or () if mount.size_bytes == page_bytes]
    if mounts is None:
        yield f"whether a hugetlbfs with pages of {size} is mounted is unknown: /proc/mounts cannot be read"
    elif not alike:
        yield f"/proc/mounts has no hugetlbfs with pages of {size}: plan again, the plan then mounts one"
    elif not any(mount.libvirt for mount in alike):
        paths = ", ".join(mount.path for mount in alike)
        if all(mount.libvirt is None for mount in alike):
            yield f"whether libvirt has found the hugetlbfs on {paths} is unknown: its folder in it was not recorded"
        else:
            yield (
                f"libvirt has not found the hugetlbfs on {paths}: it looks when it starts, so restart its daemon (plan"
                " again, the plan then does), and see hugetlbfs_mount in /etc/libvirt/qemu.conf"
            )


def _free_pages(host: Host, nodes: str, page_bytes: int) -> int | None:
    """Return the free pages of a size on these nodes ("": on all); None if one of them is unknown."""
    ids = parse_cpus(nodes)
    free = 0
    for node in host.numa_nodes:
        if ids and node.id not in ids:
            continue
        pool = next((pool for pool in node.hugepages or () if pool.size_bytes == page_bytes), None)
        if pool is None or pool.free is None:
            return None
        free += pool.free
    return free if ids.issubset(node.id for node in host.numa_nodes) and host.numa_nodes else None
