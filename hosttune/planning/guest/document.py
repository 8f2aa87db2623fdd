"""Build the plan of one guest: cores, cells, memory, devices, its PCIe tree, and the reasons.

Pure. `build_guest` returns a PlannedGuest with its findings, or an Unplaced with the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Literal

import msgspec

from hosttune.domain import elements
from hosttune.domain.planned import mac_of
from hosttune.gpu import reads_rom
from hosttune.inventory.cliques import cliques
from hosttune.inventory.cores import (
    choose_cores,
    cores_in_groups,
    groupings,
    has_whole_cores,
    pin,
    whole_first,
    with_dies,
)
from hosttune.inventory.devices import Closure, close_groups, identity
from hosttune.inventory.names import uuid_of
from hosttune.inventory.resources import LOCAL_DISTANCE, Core, Resources
from hosttune.inventory.sizing import PlanningContext
from hosttune.inventory.vcpus import needs_iommu
from hosttune.inventory.virtualfunctions import vf_networks
from hosttune.inventory.width import AddressBits, address_width, supported_elements
from hosttune.inventory.window import DEFAULT_HOLE, Window, firmware_of, remedies, size_window
from hosttune.model.intent import GuestIntent, Network
from hosttune.model.listing import numbered
from hosttune.model.plan import Cell, Device, PlanFinding, PlannedGuest, PlannedPin, Topology, Unplaced
from hosttune.model.values import CpuSet, address_key
from hosttune.planning.guest.reasons import Choice, Decision, guest_findings, reasons
from hosttune.planning.mig.guest import MigParts, as_devices, mig_inside
from hosttune.planning.pcie.tree import NoRoomOnBus, Tree, build_tree, tree_findings, with_host_places

# --- cells ---------------------------------------------------------------------------------------------------


# libvirt refuses the local distance between two cells, and values that are not distances (255 means "unreachable" in
# ACPI).
NEAREST_REMOTE = 11
FARTHEST = 254


def guest_cells(resources: Resources, choice: Choice, at: str) -> tuple[tuple[Cell, ...], tuple[PlanFinding, ...]]:
    """Return (cells, findings). If the host's distance table is unknown, the cells have no distances."""
    nodes = choice.nodes
    known = resources.has_all_distances(nodes)
    findings: list[PlanFinding] = []
    if not known and len(nodes) > 1:
        text = "the distances between its nodes are unknown: its cells get none"
        findings.append(PlanFinding(level="info", text=text, where=at))
    cells: list[Cell] = []
    first = 0
    for i, (node, demand) in enumerate(zip(nodes, choice.shape.cells, strict=True)):
        row = [_cell_text(resources, node, other, at) for other in nodes] if known else []
        findings += [finding for _, finding in row if finding]
        cells.append(
            Cell(
                id=i,
                vcpus=str(CpuSet(range(first, first + demand.vcpus))),
                memory_bytes=demand.memory_bytes,
                host_nodes=str(node),
                distances=tuple(distance for distance, _ in row),
            )
        )
        first += demand.vcpus
    return tuple(cells), tuple(findings)


def _cell_text(resources: Resources, a: int, b: int, at: str) -> tuple[int, PlanFinding | None]:
    """Return the distance to write between the cells of two host nodes, and a finding if it differs from the host's."""
    distance = resources.distance(a, b)
    value = LOCAL_DISTANCE if a == b else min(max(distance, NEAREST_REMOTE), FARTHEST)
    if value == distance:
        return value, None
    most = f"{LOCAL_DISTANCE} within a cell and {NEAREST_REMOTE} to {FARTHEST} between cells"
    text = f"the host's distance {distance} from node {a} to node {b} is written as {value}: libvirt accepts {most}"
    return value, PlanFinding(level="info", text=text, where=at)


# --- the guest -----------------------------------------------------------------------------------------------


# --- pins ----------------------------------------------------------------------------------------------------

# Host CPUs of a placed guest: a core for every pair of vCPUs, the guest's topology, the CPUs of its other threads.
#


class Pinning(msgspec.Struct, frozen=True):
    """The cores of each cell, one host CPU for each vCPU in vCPU order, the guest's topology, the emulator's CPUs."""

    cores: tuple[tuple[Core, ...], ...]
    cpus: tuple[int, ...]
    topology: Topology
    emulator: CpuSet
    findings: tuple[PlanFinding, ...]
    cache: Literal["passthrough", "disable"]


def pin_guest(
    resources: Resources,
    choice: Choice,
    at: str,
    others: CpuSet | None = None,
    turns: Mapping[int | str, int] | None = None,
) -> Pinning:
    """Decide every CPU of a guest. `at` is the place named in its findings.

    `others` are the CPUs of guests that are planned with it: its emulator threads do not use them. `turns`: see
    `choose_cores`.
    """
    nodes, shape = choice.nodes, choice.shape
    cores = _cores(resources, choice, turns)
    findings: list[PlanFinding] = []
    cpus: list[int] = []
    broken = False
    for node, cell, chosen in zip(nodes, shape.cells, cores, strict=True):
        if has_whole_cores(resources.nodes[node], cell.vcpus, shape.threads):
            cpus += pin(chosen, cell.vcpus, shape.threads)
            continue
        broken = True
        cpus += pin(chosen, cell.vcpus, max(len(core.cpus) for core in chosen))
        free = {core.id for core in resources.nodes[node].free}
        shared = CpuSet(core.id for core in chosen if core.id not in free)
        text = f"node {node}: cores {shared} are shared with others, as smt: threads allows"
        findings.append(PlanFinding(level="warn", text=text, where=at))
    if resources.boot_core is not None and any(core.id == resources.boot_core for part in cores for core in part):
        text = f"core {resources.boot_core}, the boot CPU's, goes to the guest: reserve.cores_per_node is 0"
        findings.append(PlanFinding(level="warn", text=text, where=at))
    topology, of_topology = _topology(resources, choice, at, broken=broken)
    cache_of = {cpu: core.llc for part in cores for core in part for cpu in core.cpus}
    caches = [cache_of[cpu] for cpu in cpus[:: topology.threads]]
    cache: Literal["passthrough", "disable"] = "passthrough"
    if resources.sharing and (divided := with_dies(caches, topology, resources.sharing)):
        topology = divided
    elif resources.sharing:
        cache = "disable"
        text = (
            f"the guest sees no L3: with {shape.vcpus} vCPUs so placed, QEMU would show it caches that span two of the"
            f" host's, which {resources.sharing.cpus} CPUs share; whole caches in each cell avoid that"
        )
        findings.append(PlanFinding(level="warn", text=text, where=at))
    emulator, warned = _emulator(resources, nodes, CpuSet(cpus), others or CpuSet(), at)
    warned += _far_emulator(resources, nodes, emulator, at)
    return Pinning(cores, tuple(cpus), topology, emulator, (*findings, *of_topology, *warned), cache)


def _cores(resources: Resources, choice: Choice, turns: Mapping[int | str, int] | None) -> tuple[tuple[Core, ...], ...]:
    """Return the cores of each cell in their order: those on the fewest caches; if so the guest would see caches that
    span two of the host's, others with which it does not, where there are any.
    """
    nodes, shape = [resources.nodes[node] for node in choice.nodes], choice.shape
    cells = zip(nodes, shape.cells, strict=True)
    fewest = tuple(tuple(whole_first(choose_cores(node, cell.vcpus, shape, turns))) for node, cell in cells)
    counts = {len(part) for part in fewest}
    if resources.sharing is None or shape.share_cores or len(counts) > 1:
        return fewest
    (need,) = counts
    one_die = Topology(sockets=len(nodes), dies=1, cores=need, threads=shape.threads)
    if with_dies([core.llc for part in fewest for core in part], one_die, resources.sharing):
        return fewest
    for groups in groupings(need, len(nodes), shape.threads, resources.sharing):
        others = tuple(tuple(cores_in_groups(node, shape.threads, groups)) for node in nodes)
        if all(others):
            return others
    return fewest


def _topology(resources: Resources, choice: Choice, at: str, *, broken: bool) -> tuple[Topology, list[PlanFinding]]:
    """Return (the guest's topology, findings).

    threads=1 if sibling vCPUs would not be on sibling host CPUs, or if a cell has an odd number of vCPUs.
    """
    shape = choice.shape
    findings: list[PlanFinding] = []
    odd = [i for i, cell in enumerate(shape.cells) if cell.vcpus % shape.threads]
    if odd and not broken:
        text = f"an odd number of vCPUs: the last sibling of a core stays idle in {numbered('cell', odd)}; threads=1"
        findings.append(PlanFinding(level="info", text=text, where=at))
    elif broken and resources.threads_per_core > 1:
        findings.append(PlanFinding(level="info", text="vCPUs on parts of cores: the guest gets threads=1", where=at))
    elif shape.threads < resources.threads_per_core:
        most = resources.threads_per_core
        text = f"too few whole cores are free: {shape.threads} of {most} threads of each core are used"
        findings.append(PlanFinding(level="warn", text=text, where=at))
    threads = 1 if broken or odd else shape.threads
    units = [cell.vcpus // threads for cell in shape.cells]
    per_socket = gcd(*units)
    return Topology(sockets=sum(units) // per_socket, dies=1, cores=per_socket, threads=threads), findings


def _far_emulator(resources: Resources, nodes: tuple[int, ...], emulator: CpuSet, at: str) -> list[PlanFinding]:
    """Return findings for cells on nodes where the emulator threads have no CPU.

    libvirt 9.0 allocates a cell's memory with threads that QEMU binds to the cell's node, within the emulator's CPUs.
    On the emulated host this ended in "Setting CPU affinity failed" (thread-context, QEMU 7.2).
    """
    here = {node: CpuSet(cpu for core in resources.nodes[node].cores for cpu in core.cpus) for node in nodes}
    bare = [node for node, cpus in here.items() if cpus and emulator.isdisjoint(cpus)]
    if not bare:
        return []
    text = (
        f"the emulator threads have no CPU of node {CpuSet(bare)}, where the guest has memory: libvirt 9.0 does not"
        " start such a guest; reserve a core there"
    )
    return [PlanFinding(level="warn", text=text, where=at)]


def _emulator(
    resources: Resources, nodes: tuple[int, ...], pinned: CpuSet, others: CpuSet, at: str
) -> tuple[CpuSet, list[PlanFinding]]:
    """Return CPUs for emulator and I/O threads: housekeeping of the guest's nodes, else the nearest, else any left."""
    every = {node.id: CpuSet(cpu for core in node.cores for cpu in core.cpus) for node in resources.nodes.values()}
    by_node = {node: cpus & resources.housekeeping for node, cpus in every.items()}
    own = CpuSet().union(*(by_node[node] for node in nodes))
    if own:
        return CpuSet(own), []
    near = sorted((n for n in by_node if by_node[n]), key=lambda n: (resources.distance(nodes[0], n), n))
    if near:
        text = f"no housekeeping core on node {CpuSet(nodes)}: emulator threads run on node {near[0]}"
        return by_node[near[0]], [PlanFinding(level="warn", text=text, where=at)]
    left = {node: cpus - pinned - others - resources.pinned - resources.isolated for node, cpus in every.items()}
    spare = sorted((n for n in left if left[n]), key=lambda n: (resources.distance(nodes[0], n), n))
    if spare:
        text = f"no cores are reserved: emulator threads share what is left of node {spare[0]}"
        return left[spare[0]], [PlanFinding(level="warn", text=text, where=at)]
    text = "no CPU is left: emulator threads run on the guest's own CPUs"
    return pinned, [PlanFinding(level="warn", text=text, where=at)]


# --- the guest -----------------------------------------------------------------------------------------------


OWN_PORTS = 3  # guest agent's controller, random number device, one free for hotplug
ALLOCATION_THREADS = 8  # one thread would take minutes to allocate a terabyte of pages


class Placed(msgspec.Struct, frozen=True):
    """A guest with its findings, and how it uses its cores."""

    guest: PlannedGuest
    findings: tuple[PlanFinding, ...]
    cores: tuple[tuple[Core, ...], ...]
    functions: tuple[str, ...] = ()  # the functions of its vGPUs
    exclusive: bool = True  # no other guest may use its cores or their idle siblings (smt: cores)


class Devices(msgspec.Struct, frozen=True):
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
        functions = tuple(device.function for device in vgpus.devices if device.kind == "vf") if vgpus else ()
        chosen = (*choice.gpus, *named, *counted, *functions)
        return cls(choice, named, counted, close_groups(context.catalogue, chosen), vgpus)

    @property
    def functions(self) -> tuple[str, ...]:
        """The host functions that carry its vGPUs."""
        return tuple(device.function for device in self.vgpus.devices) if self.vgpus else ()


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
    left_out = dict(supported_elements(context.host.virtualization)[1])
    if guest.firmware == "efi" and elements.FIRMWARE in left_out:
        why = f"UEFI by <os firmware='efi'> {left_out[elements.FIRMWARE]}: before, the guest would get SeaBIOS"
        return Unplaced(guest=guest.name, why=(why,), relaxation=("firmware: bios", "a newer libvirt"))
    if guest.secure_boot and elements.FIRMWARE_FEATURES in left_out:
        why = f"Secure Boot {left_out[elements.FIRMWARE_FEATURES]}"
        return Unplaced(guest=guest.name, why=(why,), relaxation=("no secure_boot", "a newer libvirt"))
    cell_of = _cells_of(context, devices)
    extra_ports = OWN_PORTS + len(guest.disk_paths) + sum(network.vf_of is None for network in guest.networks or ())
    extra_ports += guest.watchdog and elements.CHIPSET_WATCHDOG in left_out  # for the bridge to conventional PCI
    try:
        tree = build_tree(
            context.catalogue,
            _cells_of(context, devices, exact=True),
            len(choice.shape.cells),
            extra_ports,
            context.own.get(guest.name),
        )
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
    of_networks = _of_networks(context, guest, planned.uuid or "")
    planned = msgspec.structs.replace(
        planned,
        devices=with_host_places(context.catalogue, _devices(context, devices, cell_of, tree, of_networks)),
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
    first, *further = guest.disk_paths.values() or (None,)
    # QEMU's 64-bit hole: as large as the window, if the default is too small and the guest can address it.
    too_small = (window.mmio64_bytes or 0) > DEFAULT_HOLE
    return PlannedGuest(
        name=guest.name,
        uuid=uuid_of(context.host, guest.name),
        vcpu_pins=tuple(PlannedPin(vcpu=i, cpus=str(cpu)) for i, cpu in enumerate(pinning.cpus)),
        emulator_cpus=str(pinning.emulator),
        iothread_cpus=(str(pinning.emulator),),
        cells=cells,
        page_bytes=decision.choice.shape.page,
        why=reasons(context, decision),
        firmware=guest.firmware,
        secure_boot=guest.secure_boot,
        tpm=guest.tpm,
        watchdog=guest.watchdog,
        autostart=None if guest.autostart == "keep" else guest.autostart,
        accelerator=guest.accelerator,
        cpu_vendor=context.host.cpu_model.vendor if context.host.cpu_model else None,
        topology=pinning.topology,
        cache=pinning.cache,
        controllers=tree.controllers,
        physical_address_bits=width.bits,
        physical_address_limit_bits=width.limit,
        mmio64_bytes=window.mmio64_bytes,
        mmio_note=window.note,
        pci_hole64_bytes=window.mmio64_bytes if too_small and not window.refusal else None,
        ovmf_window_mib=window.floor_mib,
        iommu_eim=needs_iommu(len(pinning.cpus), pinning.topology),
        allocation_threads=min(ALLOCATION_THREADS, len(pinning.cpus)),
        disk=first,
        further_disks=tuple(further),
        image=guest.image,
        user=guest.user,
        ssh_keys=guest.ssh_keys or (),
        networks=guest.networks or (),
        boot=guest.boot,
    )


def _cells_of(context: PlanningContext, devices: Devices, *, exact: bool = False) -> dict[str, int | None]:
    """Return the guest cell of each host function; a function with a vGPU is in the cell of its GPU.

    `exact`: of a device on another node none, beside those that are in their cells: the guest's tree shows it no nearer
    to them than it is.
    """
    nodes = devices.choice.nodes
    vgpus = devices.vgpus.devices if devices.vgpus else ()
    homes = {address: address for address in devices.closure.members} | {
        device.function: device.gpu for device in vgpus
    }
    off = {address for address in homes.values() if context.home(address) not in nodes}
    off = off if exact and off < {*homes.values()} else set()
    return {
        function: None if address in off else _cell_of(context, address, nodes) for function, address in homes.items()
    }


def _cell_of(context: PlanningContext, address: str, nodes: tuple[int, ...]) -> int | None:
    """Return the guest cell of a device: the one on its node, else on the nearest node; None if its node is unknown."""
    node, home = context.catalogue.node(address), context.home(address)
    if node is None or node not in context.resources.nodes:
        return None
    if home in nodes:
        return nodes.index(home)
    return min(range(len(nodes)), key=lambda cell: (context.resources.distance(nodes[cell], node), cell))


def _window(context: PlanningContext, guest: GuestIntent, devices: Devices, width: AddressBits) -> Window | Unplaced:
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


def _of_networks(context: PlanningContext, guest: GuestIntent, guest_uuid: str) -> dict[str, Network]:
    """Return the network that each virtual function of a guest is for, with the MAC that it gets.

    One of InfiniBand has none.
    """
    kinds = {nic.address: nic.kind for nic in context.host.nics}
    networks = {}
    rows = zip(context.functions.get(guest.name, ()), vf_networks(guest.networks), strict=True)
    for address, (number, network, physical) in rows:
        infiniband = network.guid is not None or kinds.get(physical) == "infiniband"
        mac = network.mac or (None if infiniband else mac_of(guest_uuid, number))
        networks[address] = msgspec.structs.replace(network, vf_of=physical, mac=mac and mac.lower())
    return networks


def _devices(
    context: PlanningContext,
    devices: Devices,
    cell_of: dict[str, int | None],
    tree: Tree,
    of_networks: Mapping[str, Network],
) -> tuple[Device, ...]:
    vgpus = as_devices(devices.vgpus, cell_of, tree.addresses) if devices.vgpus else ()
    sets = cliques(context.host, (member for member in devices.closure.members if member not in devices.functions))
    whole = tuple(
        Device(
            address=address,
            kind=_kind(context, address),
            guest_cell=cell_of[address],
            guest_address=tree.addresses[address],
            identity=identity(context.catalogue, address, context.host),
            host_node=context.catalogue.node(address),
            name=_name(context, address),
            clique=sets.get(address),
            managed=address in of_networks,
            network=of_networks.get(address),
            rom_bar=reads_rom(context.catalogue.gpus.get(address)),
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
    if address in (*context.catalogue.nvswitches, *context.catalogue.fabric.switches):
        return "nvswitch"
    if device is None:
        return "other"
    return "nic" if device.is_network else "nvme" if device.is_nvme else "other"


def _name(context: PlanningContext, address: str) -> str | None:
    gpu = context.catalogue.gpus.get(address)
    device = context.catalogue.pci.get(address)
    return (gpu.model if gpu else None) or (device.device_name if device else None)
