"""The reasons that `--annotate` writes beside pins, memory nodes, controllers and devices: one line each.

They come from the plan alone, and state only what the plan's own values show: "beside" means the same host node.
"""

from __future__ import annotations

from hosttune.model.listing import numbered, some
from hosttune.model.plan import Cell, Device, PciController, Plan, PlannedGuest
from hosttune.model.values import format_size, parse_cpus

_LISTED = 4
_WORDS = {
    "gpu": "GPU",
    "vf": "virtual function",
    "mdev": "mediated device",
    "nvswitch": "NVSwitch",
    "nic": "NIC",
    "nvme": "NVMe drive",
}


def pin_notes(guest: PlannedGuest) -> dict[int, str]:
    """Return a note per vCPU: its host CPU, that CPU's node and why, and its place in the guest's topology."""
    cells = {vcpu: cell for cell in guest.cells for vcpu in parse_cpus(cell.vcpus)}
    cpus = {pin.vcpu: pin.cpus for pin in guest.vcpu_pins}
    places = {cell.id: _place(guest, cell) for cell in guest.cells}
    return {
        vcpu: f"vCPU {vcpu}: host CPU {cpu} {places[cells[vcpu].id] if vcpu in cells else 'in no cell'}"
        f"{_core(guest, vcpu, cpus)}"
        for vcpu, cpu in cpus.items()
    }


def _place(guest: PlannedGuest, cell: Cell) -> str:
    """Return where a cell is, and why: because of its devices, else because of its memory."""
    if not cell.host_nodes:
        return f"of cell {cell.id}, whose host node is unknown"
    beside = _beside(guest, cell)
    if beside:
        return f"on node {cell.host_nodes}, beside its {_listed(beside)}"
    memory = f"on node {cell.host_nodes}, which holds the {format_size(cell.memory_bytes)} of cell {cell.id}"
    nodes = {node for other in guest.cells for node in parse_cpus(other.host_nodes)}
    return f"{memory} (the guest is split over {len(nodes)} nodes)" if len(nodes) > 1 else memory


def _core(guest: PlannedGuest, vcpu: int, cpus: dict[int, str]) -> str:
    if guest.topology is None:
        return ""
    threads = guest.topology.threads
    core, thread = divmod(vcpu, threads)
    if threads == 1:
        return f"; the only thread of guest core {core}"
    others = [other for other in range(core * threads, (core + 1) * threads) if other != vcpu and other in cpus]
    pairs = ", ".join(f"vCPU {other} on CPU {cpus[other]}" for other in others)
    siblings = f" (its sibling{' is' if len(others) == 1 else 's are'} {pairs})" if others else ""
    return f"; thread {thread} of guest core {core}{siblings}"


def _beside(guest: PlannedGuest, cell: Cell) -> list[Device]:
    """Return the devices that explain a cell's place: the GPUs on its node, or without any, its other devices there."""
    nodes = parse_cpus(cell.host_nodes)
    near = [device for device in guest.devices if device.guest_cell == cell.id and device.host_node in nodes]
    return [device for device in near if device.kind == "gpu"] or near


def _listed(devices: list[Device]) -> str:
    words = {_word(device) for device in devices}
    word = words.pop() if len(words) == 1 else "device"
    return f"{word}{'s' if len(devices) > 1 else ''} {some((device.address for device in devices), _LISTED)}"


def _word(device: Device) -> str:
    return _WORDS.get(device.kind, "device")


def emulator_note(plan: Plan, guest: PlannedGuest) -> str:
    """Return why QEMU's own threads have their CPUs."""
    return f"QEMU's own threads on {_service(plan, guest, guest.emulator_cpus)}"


def iothread_notes(plan: Plan, guest: PlannedGuest) -> list[str]:
    """Return for each I/O thread what it serves and why it has its CPUs. The first serves the guest's disks."""
    disks = ("the disks" if guest.further_disks else "the disk") if guest.disk else "no disk so far"
    return [
        f"I/O thread {n}, which serves {disks if n == 1 else 'no disk so far'}, on {_service(plan, guest, cpus)}"
        for n, cpus in enumerate(guest.iothread_cpus, 1)
    ]


def _service(plan: Plan, guest: PlannedGuest, text: str) -> str:
    cpus = parse_cpus(text)
    kept = bool(cpus) and set(cpus) <= set(parse_cpus(plan.housekeeping_cpus))
    name = f"{'housekeeping ' if kept else ''}CPU{'s' if len(cpus) > 1 else ''} {text}"
    shared = [pin.vcpu for pin in guest.vcpu_pins if set(parse_cpus(pin.cpus)) & set(cpus)]
    if shared:
        return f"{name}, shared with {numbered('vCPU', shared)}: no other CPU is left"
    return f"{name}, off every vCPU of the guest, so as to interrupt none"


def memory_note(guest: PlannedGuest, cell: Cell) -> str:
    """Return why a cell's memory comes from its node."""
    beside = _beside(guest, cell)
    devices = f", and its {_listed(beside)} {'are' if len(beside) > 1 else 'is'} there" if beside else ""
    return (
        f"cell {cell.id}: {format_size(cell.memory_bytes)} from node {cell.host_nodes} and no other (strict): "
        f"its vCPUs {cell.vcpus} run there{devices}"
    )


def controller_note(controller: PciController) -> str | None:
    """Return why there is an expander bus or a switch; None for controllers that need no reason."""
    if controller.host is not None:
        return f"the host's switch {controller.host}: what is below it there is below this one"
    if controller.node is None:
        return None
    return f"PCIe bus of guest cell {controller.node}: the guest's kernel places the devices below it there"


def device_note(plan: Plan, guest: PlannedGuest, device: Device) -> str:
    """Return where a device is on the host, where the guest sees it, and who binds its driver."""
    name = f" ({device.name})" if device.name else ""
    bound = any(action.kind == "driver" and action.target == device.address for action in plan.actions)
    return f"{_word(device)} {device.address}{name}: {_affinity(guest, device)}; {_binding(device, bound=bound)}"


def _affinity(guest: PlannedGuest, device: Device) -> str:
    cell = next((cell for cell in guest.cells if cell.id == device.guest_cell), None)
    host = "host node unknown" if device.host_node is None else f"on node {device.host_node}"
    if cell is None:
        return f"{host}, so of no guest cell" if device.host_node is None else f"{host}, where the guest has no cell"
    if device.host_node in parse_cpus(cell.host_nodes):
        return f"{host}, as the vCPUs and memory of guest cell {cell.id}"
    return f"{host}, given to guest cell {cell.id} of node {cell.host_nodes or 'unknown'}"


def _binding(device: Device, *, bound: bool) -> str:
    if device.kind == "mdev":
        return "its parent device keeps its driver"
    if device.managed:
        return "libvirt binds it to vfio-pci at the guest's start, and back at its end"
    if bound:
        return "bound to vfio-pci by the plan's own action"
    if device.kind == "vf":
        return "keeps the driver that it has"  # vfio-pci already, or the maker's own: NVIDIA's supports VFIO
    return "the plan has no driver to change: on vfio-pci already"
