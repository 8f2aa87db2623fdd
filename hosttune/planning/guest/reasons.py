"""The reasons of each decision about a placed guest, and findings for the operator.

Pure. Reasons name the file or figure that they are based on. If it is unknown, they say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from hosttune.gpu import vendor_of
from hosttune.inventory.cores import GuestShape
from hosttune.inventory.devices import Closure
from hosttune.inventory.resources import Core
from hosttune.inventory.sizing import Parts, PlanningContext, auto_share, nothing_to_share
from hosttune.inventory.width import AddressBits
from hosttune.inventory.window import Window
from hosttune.model.intent import GuestIntent
from hosttune.model.plan import PlanFinding, PlannedGuest
from hosttune.model.text import count
from hosttune.model.values import CpuSet, address_key, format_size, parse_cpus
from hosttune.planning.mig.instances import MigSlot
from hosttune.planning.request.candidates import GpuSet

MOST_ON_CORE = 2  # a choice of hosttune: a core has two threads
Say = Callable[[str, str], None]  # level, text


class Decision(msgspec.Struct, frozen=True):
    """Everything decided about one guest. `named` and `counted` are the NICs and drives, `closure` all devices."""

    guest: GuestIntent
    choice: Choice
    named: tuple[str, ...]
    counted: tuple[str, ...]
    closure: Closure
    cores: tuple[tuple[Core, ...], ...]
    width: AddressBits
    window: Window
    functions: tuple[str, ...] = ()  # the functions of its vGPUs


# --- reasons -------------------------------------------------------------------------------------------------


def reasons(context: PlanningContext, decision: Decision) -> tuple[str, ...]:
    """Return the reasons of a placement, one for each line."""
    choice, guest = decision.choice, decision.guest
    lines = [f"GPU {address} {_home(context, address)}" for address in choice.gpus]
    lines += _cell_lines(context, decision)
    if "auto" in (guest.vcpus, guest.memory) and not isinstance(guest.numa, tuple):
        lines.append(f"auto size: {auto_share(context, choice.sharing, choice.parts, choice.nodes).why}")
    page = choice.shape.page
    if page:
        largest = "the largest in which every cell is whole and fits its node"
        asked = f"pages of {format_size(page)}, as asked"
        lines.append(f"pages of {format_size(page)}: {largest}" if guest.hugepages == "auto" else asked)
    if decision.window.why:
        lines.append(decision.window.why)
    if decision.functions:
        lines.append(
            "managed='no': the function of a vGPU stays on its maker's driver, which is its VFIO driver too; vfio-pci"
            " would break it"
        )
    virtual = context.functions.get(guest.name, ())
    if virtual:
        lines.append("managed='yes': libvirt gives virtual functions to vfio-pci while the guest runs, and back")
    if not set(decision.closure.members) <= {*decision.functions, *virtual}:
        lines.append(
            "managed='no': the plan itself binds it to vfio-pci, so that stopping the guest does not hand the device"
            f" back to the host's driver{_retakers(context, choice.gpus)}"
        )
    return tuple(lines)


def _retakers(context: PlanningContext, gpus: Iterable[str]) -> str:
    """Return what else than the host's driver takes these GPUs when they come back, for the end of a sentence."""
    makers = (vendor_of(gpu.vendor) for address in gpus if (gpu := context.host.index.gpus.get(address)))
    return "".join(dict.fromkeys(maker.hints.retakers for maker in makers if maker))


def _home(context: PlanningContext, address: str) -> str:
    """Return where a GPU is, and the source of that."""
    node = context.catalogue.node(address)
    if node is None:
        return "is anywhere: its NUMA node is unknown"
    if node not in context.resources.nodes:
        return f"is on node {node}, which is none of this host's"
    device = context.catalogue.pci.get(address)
    sources = {
        "device": "its own numa_node file",
        "bridge": "from the bridge above; its own file says -1",
        "firmware": "from its local CPU list; its own file says -1",
    }
    return f"is on node {node} ({sources.get((device and device.numa_source) or '', 'as the host document says')})"


def _cell_lines(context: PlanningContext, decision: Decision) -> Iterator[str]:
    choice = decision.choice
    for i, (node, demand, chosen) in enumerate(zip(choice.nodes, choice.shape.cells, decision.cores, strict=True)):
        caches = len({core.llc for core in chosen})
        isolated = sum(bool(core.isolated) for core in chosen)
        yield (
            f"cell {i} on node {node}: {count(demand.vcpus, 'vCPU')} on {count(len(chosen), 'core')} in"
            f" {count(caches, 'last-level cache')}{f', {isolated} of them isolated' if isolated else ''},"
            f" {format_size(demand.memory_bytes)}{_distances(context, node, choice.gpus)}"
        )


def _distances(context: PlanningContext, node: int, gpus: tuple[str, ...]) -> str:
    """Return the distances from a node to each GPU's node, with their file; unknown if the host has no table."""
    if not gpus:
        return ""
    known = []
    unknown = []
    for address in gpus:
        home = context.catalogue.node(address)
        if home is None or home not in context.resources.nodes or not context.resources.has_all_distances((node, home)):
            unknown.append(address)
        else:
            known.append(f"{context.resources.distance(node, home)} to {address}")
    if not known:
        return "; distance to its GPUs unknown"
    rest = f", unknown to {', '.join(unknown)}" if unknown else ""
    return f"; distance {', '.join(known)} (/sys/devices/system/node/node{node}/distance){rest}"


# --- findings ------------------------------------------------------------------------------------------------


def guest_findings(context: PlanningContext, decision: Decision, at: str) -> tuple[PlanFinding, ...]:
    """Return what the operator should know about a placed guest; `at` names it."""
    findings: list[PlanFinding] = []

    def say(level: str, text: str) -> None:
        findings.append(PlanFinding(level=level, text=text, where=at))

    for address in decision.closure.members:
        _affinity(context, decision, address, say)
        _busy(context, decision, address, say)
    for disk in decision.guest.disk_paths.values():
        if disk.startswith("/dev/") and context.catalogue.index.functions_under(disk) is None:
            unchecked = "whether it is quarantined, or another guest's, was not checked"
            say("warn", f"which device {disk} is on is unknown: {unchecked}")
    for address in decision.choice.gpus:
        _partitioned(context, address, say)
    _size(context, decision, say)
    asked = {*decision.choice.gpus, *decision.named, *decision.counted, *decision.functions}
    fabric = context.catalogue.fabric.companions(decision.choice.gpus)
    along = [address for address in decision.closure.members if address not in (*asked, *fabric)]
    if along:
        say("info", f"goes to the same guest, by IOMMU group: {', '.join(along)}")
    if fabric:
        say("info", f"goes with all GPUs, since the Fabric Manager is in mode 0: {', '.join(fabric)}")
    if decision.width.finding:
        say(*decision.width.finding)
    if decision.window.doubt:
        say("warn", decision.window.doubt)
    if decision.window.refusal:
        say("warn", f"{decision.window.refusal}; under tcg this is only a finding")
    if decision.guest.accelerator == "tcg":
        say("warn", "accelerator tcg: software emulation, for tests; its speed means nothing")
    return tuple(findings)


def _affinity(context: PlanningContext, decision: Decision, address: str, say: Say) -> None:
    node = context.catalogue.node(address)
    nodes = decision.choice.nodes
    if node is None or node not in context.resources.nodes:
        what = "GPU " if address in decision.choice.gpus else ""
        say("warn", f"the NUMA node of {what}{address} is unknown: it did not influence the placement")
        return
    home = context.resources.home(node)
    if home != node and home is not None and context.resources.cpu_nodes_known:
        measured = context.resources.has_all_distances((home, node))
        near = f", at distance {context.resources.distance(home, node)}" if measured else ""
        lacks = "memory" if context.resources.nodes[node].cores else "CPU that a guest can use"
        why = f"it counts for node {home}, the nearest with CPUs and memory{near}"
        say("info", f"{address} is on node {node}, which has no {lacks}: {why}")
    if node not in nodes and home not in nodes:
        known = [context.resources.distance(n, node) for n in nodes if context.resources.has_all_distances((n, node))]
        near = f"at distance {min(known)}" if known else "at an unknown distance"
        say("warn", f"{address} is on node {node}, where the guest has no cell: its nearest is {near}")


def _busy(context: PlanningContext, decision: Decision, address: str, say: Say) -> None:
    """Report who uses a device now: the host, processes, or guests of its virtual functions."""
    catalogue = context.catalogue
    if address in decision.named and address in catalogue.in_use:
        say("error", f"{address} is asked for, but the host uses it ({catalogue.in_use[address]}): apply will refuse")
    elif address in decision.named and address in catalogue.use_unknown:
        text = f"{address} is asked for, and whether the host uses it is unknown: {catalogue.use_unknown[address]}"
        say("error", f"{text}; if it does, the host loses it")
    elif address in catalogue.busy:
        say("warn", f"{address}: {catalogue.busy[address]}: apply will refuse until the interface is taken down")
    if address in decision.named and address in catalogue.foreign_data:
        say("error", f"{address} is asked for, and {catalogue.foreign_data[address]}: a new guest may overwrite it")
    virtual = catalogue.virtuals.get(address, ())
    if virtual:
        used = [f"{v} ({catalogue.in_use[v]})" for v in virtual if v in catalogue.in_use]
        say("warn", f"{address} has {len(virtual)} virtual function(s): they end when it is given away")
        if used:
            say("error", f"the host uses virtual functions of {address}: {', '.join(used)}: apply will refuse")
    gpu = catalogue.gpus.get(address)
    if gpu and gpu.processes:
        say("warn", f"GPU {address} is in use by {gpu.processes} process(es) now: apply will refuse until they end")
    if gpu and gpu.mig and gpu.mig.instances:
        say("warn", f"GPU {address} holds {len(gpu.mig.instances)} MIG instance(s): they end when it is given away")


def _partitioned(context: PlanningContext, address: str, say: Say) -> None:
    """Report a GPU that is only a virtual function. A vGPU needs its type and its vendor's driver (not vfio-pci)."""
    device = context.catalogue.pci.get(address)
    if device is None or not device.physfn:
        return
    part = f"GPU {address} is a virtual function of {device.physfn}"
    vendor = vendor_of(context.catalogue.gpus[address].vendor)
    if vendor is not None and vendor.serves_vfio:
        stays = f"stays with the {vendor.driver} driver; vfio-pci would break it"
        say("error", f"{part}: a vGPU needs its type set and {stays}")
    else:
        say("warn", f"{part}: it is a share of that GPU and lasts only as long as its driver keeps it")


def _size(context: PlanningContext, decision: Decision, say: Say) -> None:
    auto = "auto" in (decision.guest.vcpus, decision.guest.memory) and not isinstance(decision.guest.numa, tuple)
    if auto and decision.choice.gpus and (reason := nothing_to_share(context, decision.choice.gpus)):
        say("warn", f"{reason}: auto is a share of the whole host")
    choice, guest = decision.choice, decision.guest
    if choice.short:
        level, text = _shortfall(context, choice)
        say(level, text)
    alike = {memory.node: memory for node in choice.nodes for memory in context.alike.get(node, ())}
    for node, memory in sorted(alike.items()) if auto and guest.memory == "auto" else ():
        if memory.held_bytes > memory.reserve_bytes:
            text = (
                f"programs, tmpfs and the kernel hold {format_size(memory.held_bytes)} of node {node} and cannot give"
                f" it back (the reserve is {format_size(memory.reserve_bytes)}): auto is a share of the rest. ps aux"
                " --sort=-rss and df -t tmpfs show what holds it; end that and plan again"
            )
            say("warn", text)
    if choice.extra_cells:
        say("info", f"{choice.extra_cells} more cell(s) than nodes with its GPUs: it does not fit on fewer")
    if choice.gpus and choice.shape.page is None:
        say("warn", "hugepages: none with a GPU: all of its memory is pinned in 4 KiB pages, slow to start and to map")
    if guest.vcpus == "auto" and not isinstance(guest.numa, tuple) and _capped(context, choice):
        say("info", f"auto stops at {context.vcpus.most} vCPUs: {context.vcpus.why}")


def unused_nodes(context: PlanningContext, guests: Iterable[PlannedGuest]) -> Iterator[PlanFinding]:
    """Yield what of sockets from which guests have GPUs nobody gets: nodes without memory, and those without GPUs.

    If the node of a GPU is unknown, no node is known to have none.
    """
    placed = [guest for guest in guests if any(device.kind == "gpu" for device in guest.devices)]
    taken = {int(cell.host_nodes) for guest in placed for cell in guest.cells}
    beside = {near for node in taken for near in context.sockets.get(node, ())} - taken
    empty = {node for node in beside if node in context.memory and not context.memory[node].has_memory}
    homes = set(context.countable.values())
    for left in (CpuSet(empty), CpuSet(() if None in homes else beside - empty - homes)):
        cores = sum(len(context.resources.nodes[node].assignable) for node in left)
        size = sum(context.memory[node].assignable_bytes or 0 for node in left if node in context.memory)
        which = f"node {left} has" if len(left) == 1 else f"nodes {left} have"
        text = f"{which} no memory: {count(cores, 'core')} there stay unused; a cell has CPUs and memory of one node"
        if left.isdisjoint(empty):
            text = (
                f"{which} no GPU: {count(cores, 'core')} and {format_size(size)} there stay unused; a guest"
                " with all GPUs of the socket gets them, others ask by numa: and vcpus:"
            )
        if cores:
            yield PlanFinding(level="info", text=text, where="guests")


def crowded_cores(context: PlanningContext, guests: Collection[PlannedGuest]) -> Iterator[PlanFinding]:
    """Yield a finding about nodes where more than two guests share each core of the host.

    More than one where it is known that interrupts of passed devices are not posted to vCPUs: each runs there first.
    """
    passed = any(device.kind != "mdev" for guest in guests for device in guest.devices)
    through_host = passed and context.host.interrupts_through_host
    texts = (*(guest.emulator_cpus for guest in context.host.guests or ()), *(guest.emulator_cpus for guest in guests))
    threads = [parse_cpus(text) for text in texts]
    for node in context.resources.nodes.values():
        cpus = CpuSet(cpu for core in node.reserved for cpu in core.cpus) & context.resources.housekeeping
        cores, sharers = len(node.reserved), sum(not cpus.isdisjoint(own) for own in threads)
        most = 1 if through_host else MOST_ON_CORE
        if sharers > most * cores:
            text = (
                f"emulator, I/O and vhost threads of {sharers} guests share {count(cores, 'core')} of node {node.id}"
                f" (CPUs {CpuSet(cpus)}){', and with them each interrupt of a passed device' * through_host}: reserve:"
                f" {{cores_per_node: {-(-sharers // most)}}} gives them more"
            )
            yield PlanFinding(level="info", text=text, where="reserve")


def _shortfall(context: PlanningContext, choice: Choice) -> tuple[str, str]:
    """Return why an `auto` guest is smaller than its share: what its nodes and those of its GPUs have to give."""
    homes = (context.home(address) for address in choice.gpus)
    nodes = {*choice.nodes, *(home for home in homes if home is not None)}
    level, parts = "info", []
    for node in sorted(nodes):
        resources = context.resources.nodes[node]
        memory = context.memory.get(node)
        size = resources.info.memory_bytes if resources.info else None
        at_boot = choice.shape.at_boot
        room = memory.capacity_bytes(choice.shape.page, at_boot=at_boot) if memory else None
        now = " (of what is free or in caches now)"
        limit = now if memory and memory.short_now and not at_boot else ""
        cores = f"{len(resources.free)} of {len(resources.cores)} cores free" if resources.cores else "no CPUs"
        kinds = Counter(len(core.cpus) for core in resources.free)
        if len(kinds) > 1:
            each_kind = ", ".join(f"{kinds[n]} with {count(n, 'thread')}" for n in sorted(kinds, reverse=True))
            cores += f" ({each_kind}: a guest gets cores of one kind)"
        give = "no memory" if size == 0 else f"{format_size(room)} to give{limit}"
        level = "warn" if size == 0 or not resources.cores else level
        parts.append(f"node {node} has {cores} and {give}")
    share = auto_share(context, choice.sharing, choice.parts, choice.nodes)
    each = "in all" if share.of_host else "a cell"
    if not share.cores:
        return level, f"its auto share is not a whole core {each}, it gets one: {'; '.join(parts)}"
    wanted = f"{share.cores} cores and {format_size(share.memory_bytes)} {each}"
    return level, f"less than the auto share of {wanted}: {'; '.join(parts)}"


def _capped(context: PlanningContext, choice: Choice) -> bool:
    share = auto_share(context, choice.sharing, choice.parts, choice.nodes)
    cells = 1 if share.of_host else len(choice.nodes)
    return share.uncapped * choice.shape.threads * cells > context.vcpus.most


# --- the choice ------------------------------------------------------------------------------------------------
# The choice for one guest: its GPUs, the node of each cell, its final shape. A pure value.


class Choice(msgspec.Struct, frozen=True):
    """A guest's GPUs, host nodes and cells.

    `nodes`: the host node of each cell. `short`: an `auto` size had to be reduced. `extra_cells`: the number of cells
    beyond one on each node that has one of its GPUs. `slots`: the MIG instances that it gets as vGPUs; `parts`: the
    part of each GPU that these are.
    """

    gpus: GpuSet
    nodes: tuple[int, ...]
    shape: GuestShape
    short: bool
    extra_cells: int
    slots: tuple[MigSlot, ...] = ()
    parts: Parts | None = None

    @property
    def sharing(self) -> GpuSet:
        """The GPUs that its `auto` size is a share of."""
        return self.gpus or tuple(sorted({slot.gpu for slot in self.slots}, key=address_key))
