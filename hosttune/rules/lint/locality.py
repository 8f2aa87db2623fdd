"""Rules of what is near what: GPUs, the vCPUs and memory that use them, and what the guest sees of it."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.guest import Controller, HostDevice
from hosttune.model import sysfs
from hosttune.model.listing import numbered
from hosttune.model.values import CpuSet
from hosttune.rules.engine import Finding
from hosttune.rules.lint.devices import each
from hosttune.rules.lint.guest_on_host import GuestOnHost, bus_of, named
from hosttune.rules.lint.rule import CPU_NODES, PCI, WARN, rule, unknown

_PINS = "/domain/cputune/vcpupin"
_NUMATUNE = "/domain/numatune"
_CONTROLLER = "/domain/devices/controller"
_DEVICES = sysfs.PCI_DEVICES
_EXPANDER = "pcie-expander-bus"
_NUMA = "Linux Documentation/ABI/testing/sysfs-bus-pci (numa_node)"
_PXB = "QEMU docs/pci_expander_bridge.txt; libvirt formatdomain, Controllers"


def _gpus(scene: GuestOnHost) -> tuple[HostDevice, ...]:
    return tuple({gpu.source: gpu for gpu in scene.gpus}.values())


def _place(scene: GuestOnHost, gpu: HostDevice) -> str:
    """Return the node of a GPU for a message, with its file, and the nearest with CPUs and memory if it lacks one."""
    node, home = scene.device_node(gpu), scene.home_of(gpu)
    near = "" if home == node else f", which lacks CPUs or memory (node {home} is the nearest with both)"
    return f"{gpu.source} is on node {node} ({_DEVICES}/{gpu.source}/numa_node){near}"


def _without_node(scene: GuestOnHost, where: str) -> Iterator[Finding]:
    """Yield the GPUs whose node is unknown, if the host can have several."""
    lost = [gpu.source for gpu in _gpus(scene) if scene.device_node(gpu) is None]
    if lost and len(scene.host.numa_nodes) != 1:
        yield unknown(f"the NUMA nodes of {named(lost)} are unknown", where)


@rule(
    "gpu-vcpus",
    WARN,
    _PINS,
    right="vCPUs run on the nodes of the guest's GPUs",
    why="each copy and each doorbell crosses the link between sockets",
    source=f"{_NUMA}; libvirt formatdomain, CPU Tuning",
    remedy="pin the vCPUs of a GPU's cell to CPUs of its node: hosttune plan chooses them",
    needs=(PCI, CPU_NODES),
    applies=lambda scene: scene.may_have_gpus and bool(scene.pins),
)
def gpu_vcpus(scene: GuestOnHost) -> Iterator[Finding]:
    """Find GPUs whose node has no vCPUs, and flat guests with vCPUs on nodes without a GPU."""
    cells = len(scene.guest.cells)
    for gpu in _gpus(scene):
        node = scene.home_of(gpu)
        cell = scene.cell_of(gpu) if cells > 1 else None
        vcpus = scene.vcpu_nodes(cell)
        if node is None or not vcpus:
            continue
        # A guest of several cells may have vCPUs on other nodes; a guest without cells sees no difference between them.
        if node not in vcpus or (cells < 2 and scene.nodes_of(scene.single) - scene.gpu_nodes):
            who = "the vCPUs" if cell is None else f"the vCPUs of cell {cell}"
            text = f"{_place(scene, gpu)}, {who} run on {numbered('node', vcpus)}"
            remedy = f"pin {who} to CPUs of node {node}: hosttune plan chooses them"
            yield Finding(f"vCPUs off the GPU's node: {text}", _PINS, remedy=remedy)
    yield from _without_node(scene, _PINS)


@rule(
    "gpu-memory",
    WARN,
    _NUMATUNE,
    right="memory comes from the nodes of the guest's GPUs",
    why="each copy between GPU and memory crosses the link between sockets",
    source=f"{_NUMA}; libvirt formatdomain, NUMA Node Tuning",
    remedy="bind the memory of a GPU's cell to its node (numatune, memnode)",
    needs=(PCI,),
    applies=lambda scene: scene.may_have_gpus,
)
def gpu_memory(scene: GuestOnHost) -> Iterator[Finding]:
    """Find GPUs whose node has none of the memory, and flat guests with memory on nodes without a GPU."""
    cells = [cell.id for cell in scene.guest.cells]
    for gpu in _gpus(scene):
        node = scene.device_node(gpu)
        if node is None:
            continue
        cell = scene.cell_of(gpu) if len(cells) > 1 else (cells[0] if cells else None)
        if len(cells) > 1 and cell is None:
            memory = CpuSet(n for c in cells for n in scene.memory_nodes(c) or ())
        else:
            memory = scene.memory_nodes(cell) or CpuSet()
        # A node without CPUs can have memory, which is near its GPU, too.
        near = CpuSet(n for n in (node, scene.home_of(gpu)) if n is not None)
        beside = CpuSet(n for device in scene.gpus if (n := scene.device_node(device)) is not None) | scene.gpu_nodes
        spill = memory - beside if len(cells) < 2 else CpuSet()
        if memory and (not near & memory or spill):
            who = "the memory" if cell is None else f"the memory of cell {cell}"
            text = f"{_place(scene, gpu)}, {who} comes from {numbered('node', memory)}"
            remedy = f"bind {who} to node {node} (numatune{'' if cell is None else ', memnode'})"
            yield Finding(f"memory off the GPU's node: {text}", _NUMATUNE, remedy=remedy)
    yield from _without_node(scene, _NUMATUNE)


@rule(
    "flat-topology",
    WARN,
    "/domain/cpu/numa",
    right="a guest on several nodes has a cell for each",
    why="it takes all nodes for near: one flat guest fell from 476 to 28 GB/s",
    source="libvirt formatdomain, Guest NUMA Topology; users' report in nccl-tests",
    remedy="write one <cell> for each host node, with its vCPUs and memory, and an expander bus for its devices",
    applies=lambda scene: len(scene.guest.cells) < 2 and bool(scene.pins or scene.may_have_gpus),
)
def flat_topology(scene: GuestOnHost) -> Iterator[Finding]:
    """Find vCPUs or GPUs on several host nodes in a guest that has no cells, so that it does not know of the nodes."""
    where = "/domain/cpu/numa"
    for what, nodes in (("vCPUs run", scene.nodes_of(scene.single)), ("GPUs are", scene.gpu_nodes)):
        if len(nodes) > 1:
            text = f"flat topology: the {what} on {numbered('node', nodes)}, but the guest has no NUMA cells to see it"
            yield Finding(text, where)
            return
    for need, asked in ((CPU_NODES, bool(scene.pins)), (PCI, scene.may_have_gpus)):
        if asked and not need.known(scene):
            yield unknown(need.why, where)


@rule(
    "device-cell",
    WARN,
    _CONTROLLER,
    right="in a guest of several cells each device is below the expander bus of the cell on its node",
    why="the guest cannot see which cell a device is near: CUDA and NCCL place their work by it",
    source=f"{_PXB}; NCCL src/graph/xml.cc (numa_node)",
    remedy="write a pcie-expander-bus with <node> for each cell, and the device's <address> below its ports",
    needs=(PCI,),
    applies=lambda scene: len(scene.guest.cells) > 1 and bool(scene.passed) and scene.x86,
)
def device_cell(scene: GuestOnHost) -> Iterator[Finding]:
    """Find devices that are below no expander bus of a cell, though a cell is on their node."""
    homes = {cell.id: scene.vcpu_nodes(cell.id) | (scene.memory_nodes(cell.id) or ()) for cell in scene.guest.cells}
    near = CpuSet().union(*homes.values())
    loose = [
        device
        for device in each(scene)
        if (node := scene.home_of(device)) is not None and node in near and scene.cell_of(device) is None
    ]
    if not loose:
        return
    names = named(device.source for device in loose)
    has = any(controller.model == _EXPANDER for controller in scene.guest.controllers)
    text = (
        f"flat topology: {len(scene.guest.cells)} cells, but {names} are not below an expander bus"
        f"{' that belongs to a cell' if has else ''}: the guest cannot see which cell a device is near"
    )
    yield Finding(text, scene.place_of(loose[0]) if has else _CONTROLLER)


@rule(
    "device-place",
    WARN,
    "/domain/devices/hostdev",
    right="in a guest with expander buses or switches each device and its ports have an address",
    why="libvirt puts it on any free port, away from its cell and switch",
    source="libvirt docs/pci-addresses",
    remedy="write the <address> of the device, and of each port above it",
    applies=lambda scene: bool(scene.given),
)
def device_place(scene: GuestOnHost) -> Iterator[Finding]:
    """Find passed devices whose place in the tree libvirt chooses."""
    for device in {(d.kind, d.source): d for d in scene.given}.values():
        where = scene.place_of(device) if device.kind == "pci" else "/domain/devices/hostdev[@type='mdev']"
        chain = scene.above(device)
        if chain:
            yield from _top(scene, device, chain[-1])
        elif scene.has_tree and device.guest_address is None:
            yield Finding(f"{device.source} has no <address>: libvirt chooses its port", where)
        elif scene.has_tree and device.guest_address and bus_of(device.guest_address):
            yield Finding(f"{device.source} is at {device.guest_address}, on a bus that no controller has", where)


def _top(scene: GuestOnHost, device: HostDevice, top: Controller) -> Iterator[Finding]:
    """Judge the uppermost known controller above a device; a root port without an address goes to pcie.0 anyway."""
    where = f"{_CONTROLLER}[@index='{top.index}']"
    what = f"{device.source}: controller {top.index} ({top.model}) above it"
    if top.address is not None and bus_of(top.address) != 0:
        yield Finding(f"{what} is at {top.address}, on a bus that no controller has", where)
    elif top.index and top.address is None and scene.has_tree and top.model != _EXPANDER:  # it fits on pcie.0 only
        yield Finding(f"{what} has no <address>: libvirt chooses its bus", where)


@rule(
    "expander-node",
    WARN,
    _CONTROLLER,
    right="each expander bus of a guest with cells belongs to one",
    why="devices below it are near no cell of the guest",
    source=_PXB,
    remedy="write <target><node>CELL</node></target> in the controller",
    applies=lambda scene: bool(scene.guest.cells),
)
def expander_node(scene: GuestOnHost) -> Iterator[Finding]:
    """Find expander buses without a cell, or of a cell that the guest does not have.

    Without a cell is right where no passed device below is on a node of a cell, as far as the host knows.
    """
    cells = {cell.id for cell in scene.guest.cells}
    here = CpuSet().union(*(scene.vcpu_nodes(cell) | (scene.memory_nodes(cell) or ()) for cell in cells))
    for controller in scene.guest.controllers:
        if controller.model == _EXPANDER and controller.node not in cells:
            homes = [scene.home_of(device) for device in each(scene) if controller in scene.above(device)]
            if controller.node is None and here.isdisjoint(node for node in homes if node is not None):
                continue
            has = "no cell" if controller.node is None else f"cell {controller.node}, which does not exist"
            text = f"expander bus {controller.index} belongs to {has}"
            yield Finding(text, f"{_CONTROLLER}[@index='{controller.index}']")
