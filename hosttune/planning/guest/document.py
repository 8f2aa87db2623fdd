"""Build the plan of one guest: cores, cells, memory, devices, its PCIe tree, and the reasons.

Pure. `build_guest` returns a PlannedGuest with its findings, or an Unplaced with the reasons.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import msgspec

from hosttune.inventory.devices import Closure, close_groups, identity
from hosttune.inventory.resources import Core
from hosttune.inventory.sizing import PlanningContext
from hosttune.inventory.vcpus import needs_iommu
from hosttune.inventory.width import AddressWidth, address_width
from hosttune.inventory.window import DEFAULT_HOLE, Window, firmware_of, remedies, size_window
from hosttune.model.intent import GuestIntent
from hosttune.model.plan import Cell, Device, Finding, PlannedGuest, PlannedPin, Unplaced
from hosttune.model.values import CpuSet, address_key
from hosttune.planning.guest.cells import guest_cells
from hosttune.planning.guest.choice import Choice
from hosttune.planning.guest.pinning import Pinning, pin_guest
from hosttune.planning.guest.reasons import Decision, guest_findings, reasons
from hosttune.planning.mig.guest import MigParts, as_devices, mig_inside
from hosttune.planning.pcie.tree import NoRoomOnBus, Tree, build_tree, tree_findings, with_host_places

OWN_PORTS = 3  # guest agent's controller, random number device, one free for hotplug
ALLOCATION_THREADS = 8  # one thread would take minutes to allocate a terabyte of pages
GUEST_NAMESPACE = uuid.UUID("6b1f4c52-9f2e-5a54-8f0c-6a1d0c5d1f7e")


@dataclass(frozen=True)
class Placed:
    """A guest with its findings, and how it uses its cores."""

    guest: PlannedGuest
    findings: tuple[Finding, ...]
    cores: tuple[tuple[Core, ...], ...]
    functions: tuple[str, ...] = ()  # the functions of its vGPUs
    exclusive: bool = True  # no other guest may use its cores or their idle siblings (smt: cores)


@dataclass(frozen=True)
class Devices:
    """A choice of GPUs and nodes, the NICs and drives (`named` or `counted`), and the closure of all devices."""

    choice: Choice
    named: tuple[str, ...]
    counted: tuple[str, ...]
    closure: Closure
    vgpus: MigParts | None = None

    @classmethod
    def of(
        cls,
        context: PlanningContext,
        choice: Choice,
        named: tuple[str, ...],
        counted: tuple[str, ...],
        vgpus: MigParts | None = None,
    ) -> Devices:
        """Return the devices of a choice with everything that goes along with them; virtual functions carry `vgpus`."""
        functions = tuple(one.function for one in vgpus.devices if one.kind == "vf") if vgpus else ()
        chosen = (*choice.gpus, *named, *counted, *functions)
        return cls(choice, named, counted, close_groups(context.catalogue, chosen), vgpus)

    @property
    def functions(self) -> tuple[str, ...]:
        """The host functions that carry its vGPUs."""
        return tuple(one.function for one in self.vgpus.devices) if self.vgpus else ()


def build_guest(
    context: PlanningContext, guest: GuestIntent, devices: Devices, others: CpuSet | None = None
) -> Placed | Unplaced:
    """Build a guest as decided. Unplaced: its devices cannot go together, or its PCIe tree has no room.

    `others` are the CPUs of guests that are planned with it: its emulator threads do not use them.
    """
    choice, closure = devices.choice, devices.closure
    at = f"guest {guest.name}"
    if closure.conflicts:
        return Unplaced(guest=guest.name, why=closure.conflicts)
    cell_of = _cells_of(context, devices)
    extra_ports = OWN_PORTS + (guest.disk is not None) + len(guest.networks or ())
    try:
        tree = build_tree(context.catalogue, cell_of, len(choice.shape.cells), extra_ports)
    except NoRoomOnBus as error:
        return Unplaced(guest=guest.name, why=(str(error),), relaxation=("fewer devices",))
    width = address_width(context.host, guest.accelerator, devices=bool(closure.members))
    window = _window(context, guest, devices, width)
    if isinstance(window, Unplaced):
        return window
    pinning = pin_guest(context.resources, choice, at, others, context.turns(guest.name))
    cells, of_cells = guest_cells(context.resources, choice, at)
    inside, of_mig = mig_inside(context, guest, choice.gpus) if choice.gpus else ((), ())
    if devices.vgpus:
        inside, of_mig = devices.vgpus.mig, devices.vgpus.findings
    decision = Decision(
        guest, choice, devices.named, devices.counted, closure, pinning.cores, width, window, devices.functions
    )
    planned = _written(context, decision, pinning, cells, tree)
    planned = msgspec.structs.replace(
        planned,
        devices=with_host_places(context.catalogue, _devices(context, devices, cell_of, tree)),
        mig=inside,
        steps=devices.vgpus.steps if devices.vgpus else (),
        why=(*planned.why, *(devices.vgpus.why if devices.vgpus else ())),
    )
    findings = (*pinning.findings, *of_cells, *tree_findings(tree, at), *guest_findings(context, decision, at), *of_mig)
    return Placed(planned, findings, pinning.cores, devices.functions, guest.smt == "cores")


def _written(
    context: PlanningContext, decision: Decision, pinning: Pinning, cells: tuple[Cell, ...], tree: Tree
) -> PlannedGuest:
    """Return the planned guest without its devices."""
    guest, window, width = decision.guest, decision.window, decision.width
    # QEMU's 64-bit hole: as large as the window, if the default is too small and the guest can address it.
    too_small = (window.mmio64_bytes or 0) > DEFAULT_HOLE
    return PlannedGuest(
        name=guest.name,
        uuid=str(uuid.uuid5(GUEST_NAMESPACE, f"{context.host.hostname or ''}/{guest.name}")),
        vcpu_pins=tuple(PlannedPin(vcpu=i, cpus=str(cpu)) for i, cpu in enumerate(pinning.cpus)),
        emulator_cpus=str(pinning.emulator),
        iothread_cpus=(str(pinning.emulator),),
        cells=cells,
        page_bytes=decision.choice.shape.page,
        why=reasons(context, decision),
        firmware=guest.firmware,
        accelerator=guest.accelerator,
        cpu_vendor=context.host.cpu_model.vendor if context.host.cpu_model else None,
        topology=pinning.topology,
        controllers=tree.controllers,
        physical_address_bits=width.bits,
        physical_address_limit_bits=width.limit,
        mmio64_bytes=window.mmio64_bytes,
        mmio_note=window.note,
        pci_hole64_bytes=window.mmio64_bytes if too_small and not window.refusal else None,
        ovmf_window_mib=window.floor_mib,
        iommu_eim=needs_iommu(len(pinning.cpus), pinning.topology),
        allocation_threads=min(ALLOCATION_THREADS, len(pinning.cpus)),
        disk=guest.disk,
        networks=guest.networks or (),
        boot=guest.boot,
    )


def _cells_of(context: PlanningContext, devices: Devices) -> dict[str, int | None]:
    """Return the guest cell of each host function; a function with a vGPU is in the cell of its GPU."""
    nodes = devices.choice.nodes
    vgpus = devices.vgpus.devices if devices.vgpus else ()
    whole = {address: _cell_of(context, address, nodes) for address in devices.closure.members}
    return whole | {one.function: _cell_of(context, one.gpu, nodes) for one in vgpus}


def _cell_of(context: PlanningContext, address: str, nodes: tuple[int, ...]) -> int | None:
    """Return the guest cell of a device: the one on its node, else on the nearest node; None if its node is unknown."""
    node, home = context.catalogue.node(address), context.home(address)
    if node is None or node not in context.resources.nodes:
        return None
    if home in nodes:
        return nodes.index(home)
    return min(range(len(nodes)), key=lambda cell: (context.resources.distance(nodes[cell], node), cell))


def _window(context: PlanningContext, guest: GuestIntent, devices: Devices, width: AddressWidth) -> Window | Unplaced:
    """Return the MMIO window; Unplaced if the guest cannot have it (with tcg there is only a finding)."""
    choice, members = devices.choice, devices.closure.members
    memory = sum(cell.memory_bytes for cell in choice.shape.cells)
    firmware = firmware_of(context.host, guest.firmware, guest.accelerator)
    window = size_window(context.catalogue, members, memory, width, firmware)
    if window.refusal is None or guest.accelerator != "kvm":
        return window
    advice = remedies(context.catalogue, members, choice.gpus, memory, width, firmware)
    why = [window.refusal]
    if not advice:
        bits = "the firmware" if width.usable is None else f"{width.usable} address bits"
        why.append(f"neither less memory nor fewer GPUs help: {bits} cannot hold one of them")
    return Unplaced(guest=guest.name, why=tuple(why), relaxation=advice)


def _devices(
    context: PlanningContext, devices: Devices, cell_of: dict[str, int | None], tree: Tree
) -> tuple[Device, ...]:
    vgpus = as_devices(devices.vgpus, cell_of, tree.addresses) if devices.vgpus else ()
    whole = tuple(
        Device(
            address=address,
            kind=_kind(context, address),
            guest_cell=cell_of[address],
            guest_address=tree.addresses[address],
            identity=identity(context.catalogue, address, context.host),
            host_node=context.catalogue.node(address),
            name=_name(context, address),
        )
        for address in sorted(devices.closure.members, key=address_key)
        if address not in devices.functions
    )
    return (*whole, *vgpus)


def _kind(context: PlanningContext, address: str) -> str:
    device = context.catalogue.pci.get(address)
    if device and device.physfn:
        return "vf"
    if address in context.catalogue.gpus:
        return "gpu"
    if address in context.catalogue.nvswitches:
        return "nvswitch"
    if device is None:
        return "other"
    return "nic" if device.is_network else "nvme" if device.is_nvme else "other"


def _name(context: PlanningContext, address: str) -> str | None:
    gpu = context.catalogue.gpus.get(address)
    device = context.catalogue.pci.get(address)
    return (gpu.model if gpu else None) or (device.device_name if device else None)
