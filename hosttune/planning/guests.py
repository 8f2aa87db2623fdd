"""One guest, decided: cores, cells, memory, devices, its PCIe tree, and the reasons.

Pure. `place_guest` gives a PlannedGuest with the findings it raises, or an Unplaced with the reasons.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from math import gcd

from hosttune.model.intent import GuestIntent, NicRequest
from hosttune.model.plan import Cell, Device, Finding, PlannedGuest, PlannedPin, Topology, Unplaced
from hosttune.model.values import CpuSet, format_size
from hosttune.planning.candidates import gpu_candidates
from hosttune.planning.choice import Choice, choose
from hosttune.planning.devices import Closure, address_key, close_groups, identity, named_devices
from hosttune.planning.nearest import nearest_nics, nearest_nvme
from hosttune.planning.pcie import NoRoomOnBus, Tree, Window, build_tree, size_window
from hosttune.planning.placement import choose_cores, has_whole_cores, pin
from hosttune.planning.relax import relaxations, shortage
from hosttune.planning.resources import Core
from hosttune.planning.sizing import MAX_VCPUS_WITHOUT_IOMMU, Field, auto_share

TCG_ADDRESS_BITS = 40  # QEMU refuses any other width without KVM (target/i386/cpu.c, TCG_PHYS_ADDR_BITS)
ALLOCATION_THREADS = 8  # touching a terabyte of pages with one thread takes minutes
GUEST_NAMESPACE = uuid.UUID("6b1f4c52-9f2e-5a54-8f0c-6a1d0c5d1f7e")


@dataclass(frozen=True)
class Placed:
    """A guest with what there is to say about it, and the cores it took."""

    guest: PlannedGuest
    findings: tuple[Finding, ...]
    cores: tuple[tuple[Core, ...], ...]


def place_guest(field: Field, guest: GuestIntent, where: str) -> Placed | Unplaced:
    """Decide one guest. Raises BadInput for addresses that do not exist or cannot be given away."""
    nics = guest.nics if isinstance(guest.nics, tuple) else ()
    nvme = guest.nvme if isinstance(guest.nvme, tuple) else ()
    named = (
        *named_devices(field.catalogue, nics, "nic", f"{where}.nics"),
        *named_devices(field.catalogue, nvme, "nvme", f"{where}.nvme"),
    )
    candidates = gpu_candidates(field, guest, named, f"{where}.gpus")
    if candidates.first() is None:
        return Unplaced(guest=guest.name, why=candidates.why, relaxation=())
    choice = choose(field, guest, candidates, named)
    if choice is None:
        return Unplaced(
            guest=guest.name,
            why=shortage(field, guest, candidates, named),
            relaxation=relaxations(field, guest, candidates, named),
        )
    counted, missing = _nearest(field, guest, choice, named)
    if missing:
        return Unplaced(guest=guest.name, why=missing, relaxation=("ask for fewer",))
    closure = close_groups(field.catalogue, (*choice.gpus, *named, *counted))
    if closure.conflicts:
        return Unplaced(guest=guest.name, why=closure.conflicts, relaxation=())
    return _build(field, guest, choice, closure, where)


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


def _build(field: Field, guest: GuestIntent, choice: Choice, closure: Closure, where: str) -> Placed | Unplaced:
    cores = [
        choose_cores(field.resources.nodes[node], cell.vcpus, choice.shape)
        for node, cell in zip(choice.placement.nodes, choice.shape.cells, strict=True)
    ]
    cell_of = {address: _cell_of(field, address, choice.placement.nodes) for address in closure.members}
    extra_ports = 1 + (guest.disk is not None) + len(guest.networks or ())
    try:
        tree = build_tree(field.catalogue, cell_of, len(cores), extra_ports)
    except NoRoomOnBus as error:
        return Unplaced(guest=guest.name, why=(str(error),), relaxation=("fewer devices",))
    window = _window(field, guest, choice, closure)
    if window.refusal and guest.accelerator == "kvm":
        return Unplaced(guest=guest.name, why=(window.refusal,), relaxation=("fewer devices, or less memory",))
    pins, topology, said = _pins(field, guest, choice, cores)
    emulator, emulator_said = _emulator(field, choice.placement.nodes, CpuSet(pins), guest.name)
    vendor = field.host.cpu_model.vendor if field.host.cpu_model else None
    planned = PlannedGuest(
        name=guest.name,
        uuid=str(uuid.uuid5(GUEST_NAMESPACE, f"{field.host.hostname or ''}/{guest.name}")),
        vcpu_pins=tuple(PlannedPin(vcpu=i, cpus=str(cpu)) for i, cpu in enumerate(pins)),
        emulator_cpus=str(emulator),
        iothread_cpus=(str(emulator),),
        cells=_cells(field, choice),
        page_bytes=choice.shape.page,
        devices=_devices(field, closure, cell_of, tree),
        why=_why(field, guest, choice, cores, window),
        firmware=guest.firmware,
        accelerator=guest.accelerator,
        cpu_vendor=vendor,
        topology=topology,
        controllers=tree.controllers,
        physical_address_bits=_address_bits(field, guest),
        mmio64_bytes=window.mmio64_bytes,
        pci_hole64_bytes=window.mmio64_bytes if window.mmio64_bytes and window.mmio64_bytes > 32 << 30 else None,
        ovmf_window_mib=window.floor_mib if guest.firmware == "efi" else None,
        iommu_eim=len(pins) > MAX_VCPUS_WITHOUT_IOMMU,
        allocation_threads=min(ALLOCATION_THREADS, len(pins)),
        disk=guest.disk,
        networks=guest.networks or (),
        boot=guest.boot,
    )
    findings = (*said, *emulator_said, *_findings(field, guest, choice, closure, window, f"guest {guest.name}"))
    return Placed(planned, findings, tuple(tuple(c) for c in cores))


def _cell_of(field: Field, address: str, nodes: tuple[int, ...]) -> int | None:
    """The guest cell of a device: its node's, else the nearest node's; None where its node is unknown."""
    node = field.catalogue.node(address)
    if node is None or node not in field.resources.nodes:
        return None
    return min(range(len(nodes)), key=lambda cell: (field.resources.distance(nodes[cell], node), cell))


def _window(field: Field, guest: GuestIntent, choice: Choice, closure: Closure) -> Window:
    memory = sum(cell.memory_bytes for cell in choice.shape.cells)
    amd = bool(field.host.cpu_model and field.host.cpu_model.vendor == "AuthenticAMD")
    return size_window(field.catalogue, closure.members, memory, _address_bits(field, guest), amd=amd)


def _address_bits(field: Field, guest: GuestIntent) -> int | None:
    """The guest's physical address width: the host's own under KVM (host-passthrough), 40 under TCG."""
    if guest.accelerator == "tcg":
        return TCG_ADDRESS_BITS
    return field.host.cpu_model.physical_address_bits if field.host.cpu_model else None


def _pins(
    field: Field, guest: GuestIntent, choice: Choice, cores: list[list[Core]]
) -> tuple[list[int], Topology, list[Finding]]:
    """Host CPUs in vCPU order and the guest's topology; threads=1 where siblings cannot be told truly."""
    shape = choice.shape
    at = f"guest {guest.name}"
    findings: list[Finding] = []
    parts = []
    broken = False
    for node, cell, chosen in zip(choice.placement.nodes, shape.cells, cores, strict=True):
        resources = field.resources.nodes[node]
        if has_whole_cores(resources, cell.vcpus, shape.threads):
            parts.append(pin(chosen, cell.vcpus, shape.threads))
            continue
        broken = True
        parts.append(pin(chosen, cell.vcpus, max(len(core.cpus) for core in chosen)))
        free = {core.id for core in resources.free}
        shared = CpuSet(core.id for core in chosen if core.id not in free)
        text = f"node {node}: cores {shared} are shared with others, as smt: threads allows"
        findings.append(Finding(level="warn", text=text, where=at))
    odd = any(cell.vcpus % shape.threads for cell in shape.cells)
    threads = 1 if broken or odd else shape.threads
    if odd and not broken:
        text = f"an odd number of vCPUs: the last sibling of a core stays idle in {_cells_word(shape.cells)}; threads=1"
        findings.append(Finding(level="info", text=text, where=at))
    elif broken and shape.threads > 1:
        findings.append(Finding(level="info", text="vCPUs on parts of cores: the guest is told threads=1", where=at))
    elif shape.threads < field.resources.threads_per_core:
        most = field.resources.threads_per_core
        text = f"too few whole cores are free: {shape.threads} of {most} threads of each core are used"
        findings.append(Finding(level="warn", text=text, where=at))
    units = [cell.vcpus // threads for cell in shape.cells]
    per_socket = gcd(*units)
    topology = Topology(sockets=sum(units) // per_socket, dies=1, cores=per_socket, threads=threads)
    return [cpu for part in parts for cpu in part], topology, findings


def _cells_word(cells: tuple[object, ...]) -> str:
    return "every cell" if len(cells) > 1 else "its cell"


def _emulator(field: Field, nodes: tuple[int, ...], pinned: CpuSet, name: str) -> tuple[CpuSet, list[Finding]]:
    """CPUs for emulator and I/O threads: housekeeping of the guest's nodes, else the nearest, else what is left."""
    resources = field.resources
    at = f"guest {name}"
    by_node = {
        node.id: CpuSet(cpu for core in node.cores for cpu in core.cpus if cpu in resources.housekeeping)
        for node in resources.nodes.values()
    }
    own = CpuSet().union(*(by_node[node] for node in nodes))
    if own:
        return CpuSet(own), []
    near = sorted((n for n in by_node if by_node[n]), key=lambda n: (resources.distance(nodes[0], n), n))
    if near:
        text = f"no housekeeping core on node {CpuSet(nodes)}: emulator threads run on node {near[0]}"
        return by_node[near[0]], [Finding(level="warn", text=text, where=at)]
    left = [
        (
            node.id,
            CpuSet(cpu for core in node.cores for cpu in core.cpus) - pinned - resources.pinned - resources.isolated,
        )
        for node in resources.nodes.values()
    ]
    spare = sorted(((n, c) for n, c in left if c), key=lambda row: (resources.distance(nodes[0], row[0]), row[0]))
    if spare:
        text = f"no cores are reserved: emulator threads share what is left of node {spare[0][0]}"
        return spare[0][1], [Finding(level="warn", text=text, where=at)]
    text = "no CPU is left: emulator threads run on the guest's own CPUs"
    return pinned, [Finding(level="warn", text=text, where=at)]


def _cells(field: Field, choice: Choice) -> tuple[Cell, ...]:
    nodes = choice.placement.nodes
    cells = []
    first = 0
    for i, (node, demand) in enumerate(zip(nodes, choice.shape.cells, strict=True)):
        cells.append(
            Cell(
                id=i,
                vcpus=str(CpuSet(range(first, first + demand.vcpus))),
                memory_bytes=demand.memory_bytes,
                host_nodes=str(node),
                distances=tuple(field.resources.distance(node, other) for other in nodes),
            )
        )
        first += demand.vcpus
    return tuple(cells)


def _devices(field: Field, closure: Closure, cell_of: dict[str, int | None], tree: Tree) -> tuple[Device, ...]:
    return tuple(
        Device(
            address=address,
            kind=_kind(field, address),
            guest_cell=cell_of[address],
            guest_address=tree.addresses[address],
            identity=identity(field.catalogue, address, field.host),
            host_node=field.catalogue.node(address),
            name=_name(field, address),
        )
        for address in sorted(closure.members, key=address_key)
    )


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


def _why(field: Field, guest: GuestIntent, choice: Choice, cores: list[list[Core]], window: Window) -> tuple[str, ...]:
    """The reasons of a placement, each with the file or figure it rests on."""
    lines = []
    nodes = choice.placement.nodes
    for address in choice.gpus:
        device = field.catalogue.pci.get(address)
        node = field.catalogue.node(address)
        source = device.numa_source if device else None
        told = "is on no known node (sysfs says -1)" if node is None else f"is on node {node} ({_told(source)})"
        lines.append(f"GPU {address} {told}")
    for i, (node, demand, chosen) in enumerate(zip(nodes, choice.shape.cells, cores, strict=True)):
        far = [
            f"{field.resources.distance(node, d)} to {a}"
            for a in choice.gpus
            if (d := field.catalogue.node(a)) is not None and d in field.resources.nodes
        ]
        caches = len({core.llc for core in chosen})
        isolated = sum(bool(core.isolated) for core in chosen)
        lines.append(
            f"cell {i} on node {node}: {demand.vcpus} vCPUs on {len(chosen)} cores in {caches} last-level"
            f" cache{'s' if caches > 1 else ''}{f', {isolated} of them isolated' if isolated else ''},"
            f" {format_size(demand.memory_bytes)}; distance {', '.join(far) or 'to its GPUs unknown'}"
            f" (/sys/devices/system/node/node{node}/distance)"
        )
    if "auto" in (guest.vcpus, guest.memory) and not isinstance(guest.numa, tuple):
        lines.append(f"auto size: {auto_share(field, choice.gpus).why}")
    page = choice.shape.page
    if page:
        lines.append(f"pages of {format_size(page)}: the largest in which every cell is whole and fits its node")
    if window.why:
        lines.append(window.why)
    lines.append(
        "managed='no': the plan's own vfio-pci binding holds, so that stopping the guest does not hand the device"
        " back to the host's driver, its persistence daemon or Fabric Manager"
    )
    return tuple(lines)


def _told(source: str | None) -> str:
    return {
        "device": "its own numa_node file",
        "bridge": "from the bridge above; its own file says -1",
        "firmware": "from its local CPU list; its own file says -1",
    }.get(source or "", "as the host document says")


def _findings(
    field: Field, guest: GuestIntent, choice: Choice, closure: Closure, window: Window, at: str
) -> list[Finding]:
    found: list[Finding] = []

    def say(level: str, text: str) -> None:
        found.append(Finding(level=level, text=text, where=at))

    nodes = choice.placement.nodes
    for address in closure.members:
        node = field.catalogue.node(address)
        if node is None or node not in field.resources.nodes:
            what = "GPU " if address in choice.gpus else ""
            say("warn", f"the NUMA node of {what}{address} is unknown: it did not influence the placement")
        elif node is not None and node in field.resources.nodes and node not in nodes:
            near = min(field.resources.distance(n, node) for n in nodes)
            say("warn", f"{address} is on node {node}, where the guest has no cell: its nearest is at distance {near}")
        gpu = field.catalogue.gpus.get(address)
        if gpu and gpu.processes:
            say("warn", f"GPU {address} is in use by {gpu.processes} process(es) now: apply will refuse until they end")
        if gpu and gpu.mig and gpu.mig.instances:
            say("warn", f"GPU {address} holds {len(gpu.mig.instances)} MIG instance(s): they end when it is given away")
    if choice.short:
        say("info", "less than the auto share: not all of it is free")
    if choice.extra_cells:
        say("info", f"{choice.extra_cells} more cell(s) than nodes with its GPUs: it does not fit on fewer")
    if len(closure.members) > len(set(choice.gpus)) and (along := _along(closure, guest, choice)):
        say("info", f"goes along by IOMMU group: {', '.join(along)}")
    if window.doubt:
        say("warn", window.doubt)
    if window.refusal:
        say("warn", f"{window.refusal}; under tcg this is only said")
    if guest.accelerator == "tcg":
        say("warn", "accelerator tcg: software emulation, for tests; its speed says nothing")
    vcpus = choice.shape.vcpus
    if vcpus > MAX_VCPUS_WITHOUT_IOMMU:
        say("info", f"{vcpus} vCPUs: the guest gets an IOMMU device with extended interrupt mode")
    elif guest.vcpus == "auto" and not isinstance(guest.numa, tuple) and _capped(field, choice):
        say("info", f"auto stops at {MAX_VCPUS_WITHOUT_IOMMU} vCPUs: more would need an IOMMU device; ask by number")
    return found


def _capped(field: Field, choice: Choice) -> bool:
    share = auto_share(field, choice.gpus)
    cells = 1 if share.of_host else len(choice.placement.nodes)
    return share.cores * choice.shape.threads * cells > MAX_VCPUS_WITHOUT_IOMMU


def _along(closure: Closure, guest: GuestIntent, choice: Choice) -> list[str]:
    named = {*choice.gpus}
    for key in (guest.nics, guest.nvme):
        named |= set(key) if isinstance(key, tuple) else set()
    counted = isinstance(guest.nics, int | NicRequest) or isinstance(guest.nvme, int)
    return [] if counted else [address for address in closure.members if address not in named]
