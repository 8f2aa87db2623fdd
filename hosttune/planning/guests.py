"""One guest, decided: cores, cells, memory, devices, its PCIe tree, and the reasons.

Pure. `place_guest` gives a PlannedGuest with the findings it raises, or an Unplaced with the reasons.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import msgspec

from hosttune.model.intent import GuestIntent, NicRequest
from hosttune.model.plan import Device, Finding, PlannedGuest, PlannedPin, Unplaced
from hosttune.model.values import CpuSet
from hosttune.planning.candidates import gpu_candidates
from hosttune.planning.cells import guest_cells
from hosttune.planning.choice import Choice, choose, some_choice
from hosttune.planning.devices import Closure, address_key, close_groups, identity, named_devices
from hosttune.planning.migguest import MigParts, as_devices, mig_inside
from hosttune.planning.nearest import nearest_nics, nearest_nvme
from hosttune.planning.pcie import NoRoomOnBus, Tree, build_tree, tree_findings, with_host_places
from hosttune.planning.pinning import pin_guest
from hosttune.planning.reasons import Decision, guest_findings, reasons
from hosttune.planning.relax import relaxations, shortage
from hosttune.planning.resources import Core
from hosttune.planning.sizing import Field
from hosttune.planning.vcpus import needs_iommu
from hosttune.planning.width import AddressWidth, address_width
from hosttune.planning.window import DEFAULT_HOLE, Window, firmware_of, remedies, size_window

OWN_PORTS = 3  # the controller of the guest agent's channel, the device of random numbers, and one to plug something in
ALLOCATION_THREADS = 8  # touching a terabyte of pages with one thread takes minutes
GUEST_NAMESPACE = uuid.UUID("6b1f4c52-9f2e-5a54-8f0c-6a1d0c5d1f7e")


@dataclass(frozen=True)
class Placed:
    """A guest with what there is to say about it, and the cores it took."""

    guest: PlannedGuest
    findings: tuple[Finding, ...]
    cores: tuple[tuple[Core, ...], ...]
    functions: tuple[str, ...] = ()  # those that carry its vGPUs
    exclusive: bool = True  # its cores are nobody else's, their idle siblings either (smt: cores)


@dataclass(frozen=True)
class Devices:
    """A choice of GPUs and nodes, the NICs and drives that were `named` or `counted`, and all that goes together."""

    choice: Choice
    named: tuple[str, ...]
    counted: tuple[str, ...]
    closure: Closure
    vgpus: MigParts | None = None

    @classmethod
    def of(
        cls,
        field: Field,
        choice: Choice,
        named: tuple[str, ...],
        counted: tuple[str, ...],
        vgpus: MigParts | None = None,
    ) -> Devices:
        """The devices of a choice with all that goes along with them; virtual functions carry `vgpus`."""
        functions = tuple(one.function for one in vgpus.devices if one.kind == "vf") if vgpus else ()
        chosen = (*choice.gpus, *named, *counted, *functions)
        return cls(choice, named, counted, close_groups(field.catalogue, chosen), vgpus)

    @property
    def functions(self) -> tuple[str, ...]:
        """The host functions that carry its vGPUs."""
        return tuple(one.function for one in self.vgpus.devices) if self.vgpus else ()


def place_guest(field: Field, guest: GuestIntent, where: str, *, suggest: bool = True) -> Placed | Unplaced:
    """Decide one guest. Raises BadInput for addresses that do not exist or cannot be given away.

    `suggest`: for a guest that is not placed, changes that would help are tried as a whole.
    """
    result = _decide(field, guest, where)
    if isinstance(result, Placed) or not suggest:
        return result
    candidates = gpu_candidates(field, guest, named_of(field, guest, where), f"{where}.gpus")

    def would_place(on: Field, changed: GuestIntent) -> bool:
        return isinstance(_decide(on, changed, where, trial=True), Placed)

    helpful = relaxations(field, guest, candidates, would_place)
    return msgspec.structs.replace(result, relaxation=(*helpful, *result.relaxation))


def refusal_of(field: Field, guest: GuestIntent, where: str) -> Unplaced | None:
    """Why a guest could not be placed if it were the only one; None where it could. Raises BadInput."""
    if isinstance(_decide(field, guest, where, trial=True), Placed):
        return None
    result = _decide(field, guest, where)  # a trial looks at one choice of GPUs
    return None if isinstance(result, Placed) else result


def named_of(field: Field, guest: GuestIntent, where: str) -> tuple[str, ...]:
    """NICs and drives that the intent names."""
    nics = guest.nics if isinstance(guest.nics, tuple) else ()
    nvme = guest.nvme if isinstance(guest.nvme, tuple) else ()
    return (
        *named_devices(field.catalogue, nics, "nic", f"{where}.nics"),
        *named_devices(field.catalogue, nvme, "nvme", f"{where}.nvme"),
    )


def _decide(field: Field, guest: GuestIntent, where: str, *, trial: bool = False) -> Placed | Unplaced:
    """Decide a guest; a `trial` only wants to know whether it would be placed."""
    named = named_of(field, guest, where)
    candidates = gpu_candidates(field, guest, named, f"{where}.gpus")
    if candidates.first() is None:
        return Unplaced(guest=guest.name, why=candidates.why)
    choice = (some_choice if trial else choose)(field, guest, candidates, named)
    if choice is None:
        return Unplaced(guest=guest.name, why=shortage(field, guest, candidates))
    counted, missing = _nearest(field, guest, choice, named)
    if missing:
        return Unplaced(guest=guest.name, why=missing)
    return build_guest(field, guest, Devices.of(field, choice, named, counted))


def _nearest(
    field: Field, guest: GuestIntent, choice: Choice, named: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(addresses of NICs and drives chosen by count, why there are too few)."""
    chosen: list[str] = []
    missing: list[str] = []
    taken = (*choice.gpus, *named)
    if isinstance(guest.nics, int | NicRequest):
        request = guest.nics if isinstance(guest.nics, NicRequest) else NicRequest(count=guest.nics)
        found, why = nearest_nics(field, request, choice.gpus, choice.placement.nodes, taken)
        chosen += found
        missing += why
    if isinstance(guest.nvme, int):
        found, why = nearest_nvme(field, guest.nvme, choice.gpus, choice.placement.nodes, taken)
        chosen += found
        missing += why
    return tuple(chosen), tuple(missing)


def build_guest(field: Field, guest: GuestIntent, devices: Devices, others: CpuSet | None = None) -> Placed | Unplaced:
    """A guest as decided, written down; Unplaced where its devices cannot go together or its tree has no room.

    `others` are the CPUs of guests that are planned with it: its emulator threads keep off them.
    """
    choice, closure = devices.choice, devices.closure
    if closure.conflicts:
        return Unplaced(guest=guest.name, why=closure.conflicts)
    at = f"guest {guest.name}"
    cell_of = _cells_of(field, devices)
    extra_ports = OWN_PORTS + (guest.disk is not None) + len(guest.networks or ())
    try:
        tree = build_tree(field.catalogue, cell_of, len(choice.shape.cells), extra_ports)
    except NoRoomOnBus as error:
        return Unplaced(guest=guest.name, why=(str(error),), relaxation=("fewer devices",))
    width = address_width(field.host, guest.accelerator, devices=bool(closure.members))
    window = _window(field, guest, devices, width)
    if isinstance(window, Unplaced):
        return window
    pinning = pin_guest(field.resources, choice, at, others)
    cells, told = guest_cells(field.resources, choice, at)
    inside, of_mig = mig_inside(field, guest, choice.gpus) if choice.gpus else ((), ())
    of_mig = devices.vgpus.findings if devices.vgpus else of_mig
    decision = Decision(
        guest,
        choice,
        devices.named,
        devices.counted,
        closure,
        pinning.cores,
        width=width,
        window=window,
        functions=devices.functions,
    )
    said = (*pinning.findings, *told, *tree_findings(tree, at), *guest_findings(field, decision, at), *of_mig)
    planned = PlannedGuest(
        name=guest.name,
        uuid=str(uuid.uuid5(GUEST_NAMESPACE, f"{field.host.hostname or ''}/{guest.name}")),
        vcpu_pins=tuple(PlannedPin(vcpu=i, cpus=str(cpu)) for i, cpu in enumerate(pinning.cpus)),
        emulator_cpus=str(pinning.emulator),
        iothread_cpus=(str(pinning.emulator),),
        cells=cells,
        page_bytes=choice.shape.page,
        devices=with_host_places(field.catalogue, _devices(field, devices, cell_of, tree)),
        mig=devices.vgpus.mig if devices.vgpus else inside,
        steps=devices.vgpus.steps if devices.vgpus else (),
        why=(*reasons(field, decision), *(devices.vgpus.why if devices.vgpus else ())),
        firmware=guest.firmware,
        accelerator=guest.accelerator,
        cpu_vendor=field.host.cpu_model.vendor if field.host.cpu_model else None,
        topology=pinning.topology,
        controllers=tree.controllers,
        physical_address_bits=width.bits,
        physical_address_limit_bits=width.limit,
        mmio64_bytes=window.mmio64_bytes,
        mmio_note=window.note,
        pci_hole64_bytes=_hole(window),
        ovmf_window_mib=window.floor_mib,
        iommu_eim=needs_iommu(len(pinning.cpus), pinning.topology),
        allocation_threads=min(ALLOCATION_THREADS, len(pinning.cpus)),
        disk=guest.disk,
        networks=guest.networks or (),
        boot=guest.boot,
    )
    return Placed(planned, said, pinning.cores, devices.functions, guest.smt == "cores")


def _hole(window: Window) -> int | None:
    """QEMU's 64-bit hole: as large as the window, where its default is too small and the guest can address it."""
    too_small = (window.mmio64_bytes or 0) > DEFAULT_HOLE
    return window.mmio64_bytes if too_small and not window.refusal else None


def _cells_of(field: Field, devices: Devices) -> dict[str, int | None]:
    """The guest cell of each host function; one that carries a vGPU is where its GPU is."""
    nodes = devices.choice.placement.nodes
    vgpus = devices.vgpus.devices if devices.vgpus else ()
    whole = {address: _cell_of(field, address, nodes) for address in devices.closure.members}
    return whole | {one.function: _cell_of(field, one.gpu, nodes) for one in vgpus}


def _cell_of(field: Field, address: str, nodes: tuple[int, ...]) -> int | None:
    """The guest cell of a device: its node's, else the nearest node's; None where its node is unknown."""
    node = field.catalogue.node(address)
    if node is None or node not in field.resources.nodes:
        return None
    return min(range(len(nodes)), key=lambda cell: (field.resources.distance(nodes[cell], node), cell))


def _window(field: Field, guest: GuestIntent, devices: Devices, width: AddressWidth) -> Window | Unplaced:
    """The MMIO window; Unplaced where it cannot be had (under tcg that is only said)."""
    choice, members = devices.choice, devices.closure.members
    memory = sum(cell.memory_bytes for cell in choice.shape.cells)
    firmware = firmware_of(field.host, guest.firmware, guest.accelerator)
    window = size_window(field.catalogue, members, memory, width, firmware)
    if window.refusal is None or guest.accelerator != "kvm":
        return window
    advice = remedies(field.catalogue, members, choice.gpus, memory, width, firmware)
    why = [window.refusal]
    if not advice:
        bits = "the firmware" if width.usable is None else f"{width.usable} address bits"
        why.append(f"neither less memory nor fewer GPUs help: {bits} cannot hold one of them")
    return Unplaced(guest=guest.name, why=tuple(why), relaxation=advice)


def _devices(field: Field, devices: Devices, cell_of: dict[str, int | None], tree: Tree) -> tuple[Device, ...]:
    vgpus = as_devices(devices.vgpus, cell_of, tree.addresses) if devices.vgpus else ()
    whole = tuple(
        Device(
            address=address,
            kind=_kind(field, address),
            guest_cell=cell_of[address],
            guest_address=tree.addresses[address],
            identity=identity(field.catalogue, address, field.host),
            host_node=field.catalogue.node(address),
            name=_name(field, address),
        )
        for address in sorted(devices.closure.members, key=address_key)
        if address not in devices.functions
    )
    return (*whole, *vgpus)


def _kind(field: Field, address: str) -> str:
    device = field.catalogue.pci.get(address)
    class_code = (device.class_code if device else None) or ""
    if device and device.physfn:
        return "vf"
    if address in field.catalogue.gpus:
        return "gpu"
    if address in field.catalogue.nvswitches:
        return "nvswitch"
    return "nic" if class_code.startswith("02") else "nvme" if class_code.startswith("0108") else "other"


def _name(field: Field, address: str) -> str | None:
    gpu = field.catalogue.gpus.get(address)
    device = field.catalogue.pci.get(address)
    return (gpu.model if gpu else None) or (device.device_name if device else None)
