"""Faults of passed devices: missing, IOMMU groups, position in the guest's PCIe tree, locality."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.facts import HostDevice
from hosttune.domain.guest_on_host import Fault, GuestOnHost
from hosttune.model import sysfs
from hosttune.model.listing import some
from hosttune.model.values import CpuSet

_HOSTDEV = "/domain/devices/hostdev"
_PORTS = ("pcie-root-port", "pcie-switch-downstream-port")
_DEVICES = sysfs.PCI_DEVICES


def device_faults(scene: GuestOnHost) -> Iterator[Fault]:
    """Yield all faults that the rules of this file find."""
    # A device passed twice is one fault; another rule reports it.
    for device in {device.source: device for device in scene.passed}.values():
        yield from _presence(scene, device)
        yield from _place(scene, device)
        yield from _options(scene, device)
    for gpu in {gpu.source: gpu for gpu in scene.gpus}.values():
        yield from _vcpus_near(scene, gpu)
        yield from _memory_near(scene, gpu)
    yield from _groups(scene)
    yield from _flat(scene)


def _presence(scene: GuestOnHost, device: HostDevice) -> Iterator[Fault]:
    if not scene.pci:
        return
    found = scene.pci.get(device.source or "")
    if found is None:
        yield Fault("error", f"{device.source} does not exist on this host ({_DEVICES})", scene.place_of(device))
    elif found.boot_display:
        yield Fault(
            "error", f"{device.source} is the display that the host boots on ({_DEVICES})", scene.place_of(device)
        )


def _place(scene: GuestOnHost, device: HostDevice) -> Iterator[Fault]:
    """Check the position: PCIe devices belong behind a root port; on the root bus they are integrated endpoints."""
    gpu = device in scene.gpus
    machine = scene.guest.machine or ""
    if "q35" not in machine and scene.guest.arch == "x86_64":
        if gpu:
            text = f"{device.source}: machine {machine} has no PCIe; a GPU wants q35 and a root port of its own"
            yield Fault("warn", text, "/domain/os/type")
        return
    chain = scene.above(device)
    if not chain or chain[0].model in _PORTS:
        return
    holder = chain[0]
    if holder.model == "pcie-root":
        level = "error" if gpu else "warn"
        text = (
            f"{device.source} sits directly on pcie.0 ({device.guest_address}), without a root port: to the guest it "
            "is an integrated endpoint, where CUDA initialisation fails on SXM boards"
        )
        yield Fault(level, text, scene.place_of(device))
    else:
        text = f"{device.source} sits on a {holder.model} ({device.guest_address}), not behind a root port"
        yield Fault("warn", text, scene.place_of(device))


def _options(scene: GuestOnHost, device: HostDevice) -> Iterator[Fault]:
    if device.rom_bar is not False and not device.interface and scene.pci.get(device.source or ""):
        text = f"{device.source}: the option ROM is mapped; <rom bar='off'/> keeps the guest's firmware from running it"
        yield Fault("info", text, scene.place_of(device))
    if device.managed and _is_vgpu(scene, device):
        text = (
            f"{device.source} is a virtual function that its maker's driver holds as a vGPU: managed='yes' rebinds it"
            " to vfio-pci, which breaks it; it wants managed='no'"
        )
        yield Fault("error", text, scene.place_of(device))
    elif device.managed:
        text = f"{device.source}: managed='yes' gives it back to the host's driver whenever the guest stops"
        yield Fault("info", text, scene.place_of(device))


def _is_vgpu(scene: GuestOnHost, device: HostDevice) -> bool:
    """Return whether a function has vGPUs through the vendor's own VFIO (NVIDIA vGPU docs, vendor-specific VFIO)."""
    gpus = scene.host.vgpu.gpus if scene.host.vgpu else ()
    return any(function.address == device.source for gpu in gpus for function in gpu.functions)


def _vcpus_near(scene: GuestOnHost, gpu: HostDevice) -> Iterator[Fault]:
    node = scene.device_node(gpu)
    cells = len(scene.guest.cells)
    cell = scene.cell_of(gpu) if cells > 1 else None
    vcpus = scene.vcpu_nodes(cell)
    if node is None or not vcpus:
        return
    # A guest of several cells may have vCPUs on other nodes; a guest without cells sees no difference between them.
    far = node not in vcpus if cells > 1 else bool(vcpus - scene.gpu_nodes)
    if far or node not in vcpus:
        who = "the vCPUs" if cell is None else f"the vCPUs of cell {cell}"
        text = f"{gpu.source} is on node {node} ({_DEVICES}/{gpu.source}/numa_node), {who} run on nodes {vcpus}"
        yield Fault("warn", f"vCPUs off the GPU's node: {text}", "/domain/cputune/vcpupin")


def _memory_near(scene: GuestOnHost, gpu: HostDevice) -> Iterator[Fault]:
    node = scene.device_node(gpu)
    if node is None:
        return
    cells = [cell.id for cell in scene.guest.cells]
    cell = scene.cell_of(gpu) if len(cells) > 1 else (cells[0] if cells else None)
    if len(cells) > 1 and cell is None:
        memory = CpuSet(n for c in cells for n in scene.memory_nodes(c) or ())
    else:
        memory = scene.memory_nodes(cell) or CpuSet()
    spill = memory - scene.gpu_nodes if len(cells) < 2 else CpuSet()
    if memory and (node not in memory or spill):
        who = "the memory" if cell is None else f"the memory of cell {cell}"
        text = f"{gpu.source} is on node {node} ({_DEVICES}/{gpu.source}/numa_node), {who} comes from nodes {memory}"
        yield Fault("warn", f"memory off the GPU's node: {text}", "/domain/numatune")


def _groups(scene: GuestOnHost) -> Iterator[Fault]:
    """Check IOMMU groups: VFIO opens whole groups, so every function that is not a bridge goes to one guest."""
    passed = {device.source for device in scene.passed}
    members: dict[int, set[str]] = {}
    for device in scene.host.pci:
        if device.iommu_group is not None and not device.is_bridge:
            members.setdefault(device.iommu_group, set()).add(device.address)
    for group, addresses in sorted(members.items()):
        taken = addresses & passed
        left = addresses - passed
        if taken and left:
            text = (
                f"IOMMU group {group} is split: {some(sorted(taken), 6)} passed, {some(sorted(left), 6)} left "
                f"(/sys/kernel/iommu_groups/{group}/devices)"
            )
            yield Fault("warn", text, _HOSTDEV)


def _flat(scene: GuestOnHost) -> Iterator[Fault]:
    """Find a guest on several host nodes that has no cells, so that it does not know of the nodes."""
    spread = scene.vcpu_nodes(None)
    if len(scene.guest.cells) < 2:
        if len(spread) > 1:
            text = f"flat topology: the vCPUs run on nodes {spread}, but the guest has no NUMA cells to see it"
            yield Fault("warn", text, "/domain/cpu/numa")
        return
    if len(scene.gpus) and not any(controller.model == "pcie-expander-bus" for controller in scene.guest.controllers):
        known = [str(gpu.source) for gpu in scene.gpus if scene.device_node(gpu) is not None]
        if known:
            text = (
                f"flat topology: {len(scene.guest.cells)} cells, but {some(known, 6)} are not below an expander bus: "
                "the guest cannot see which cell a GPU is near"
            )
            yield Fault("warn", text, "/domain/devices/controller")
