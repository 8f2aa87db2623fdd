"""The size of a guest: the contract's `auto`, and how a guest is divided into equal cells.

Pure. `auto` = what a node has that is not reserved, also what guests hold, divided by its GPUs, times this guest's GPUs
there, rounded down to whole cores and pages. GPUs of unknown node share the whole host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache

import msgspec
from msgspec.structs import replace

from hosttune.inventory.cores import CellDemand, GuestShape, caches_for, cores_needed, fitting_cores, groupings
from hosttune.inventory.devices import Catalogue, countable_gpus, read_catalogue
from hosttune.inventory.pages import HUGE_1G, SMALL_PAGE, NodeMemory, page_sizes, read_memory, split_evenly
from hosttune.inventory.resources import Core, NodeResources, Resources, read_resources
from hosttune.inventory.vcpus import VcpuLimit, vcpu_limit
from hosttune.model.host import Host
from hosttune.model.intent import CellRequest, GuestIntent, Reserve
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import format_size, grouped, parse_size

MOST_LEFT_OUT = 8  # one part in so many
ALIKE = 64  # nodes whose memory differs by less than one part in so many have the same modules


class AutoShare(msgspec.Struct, frozen=True):
    """The result of `auto`: whole cores and bytes of each cell; for GPUs of unknown node, of the whole guest.

    `uncapped`: the cores where a guest could have any number of vCPUs.
    """

    cores: int
    uncapped: int
    memory_bytes: int | None
    of_host: bool
    why: str

    def cores_of(self, cells: int) -> int:
        """Return the cores of each cell."""
        return self.cores // cells if self.of_host else self.cores

    def memory_of(self, cells: int) -> int | None:
        """Return the bytes of each cell; None if the sizes of the nodes are unknown."""
        if self.memory_bytes is None or not self.of_host:
            return self.memory_bytes
        return self.memory_bytes // cells


class PlanningContext(msgspec.Struct, frozen=True, dict=True):
    """The data that planning uses, read once for each plan.

    `vcpus`: the most vCPUs of an `auto` guest. `boot_pages`: whether a reboot may reserve 1 GiB pages. None: only for a
    guest whose memory is given as a number. `own`: the places that guests have had, which they keep where they can.
    `functions`: the virtual functions that guests get for their networks.
    """

    host: Host
    resources: Resources
    memory: dict[int, NodeMemory]
    catalogue: Catalogue
    reserve: Reserve
    vcpus: VcpuLimit
    boot_pages: bool | None = None
    own: Mapping[str, PlannedGuest] = msgspec.field(default_factory=dict)
    functions: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @cached_property
    def countable(self) -> Mapping[str, int | None]:
        """The GPUs by which `auto` divides a node, each with the node that it counts for."""
        return {gpu.address: self.home(gpu.address) for gpu in countable_gpus(self.host, self.catalogue)}

    @cached_property
    def sockets(self) -> Mapping[int, tuple[int, ...]]:
        """The nodes of the same socket, by node; only of sockets with several nodes (NPS, SNC, L3 as NUMA)."""
        pairs = {(cpu.package, cpu.numa_node) for cpu in self.host.cpus if cpu.numa_node is not None}
        known = sorted((package, node) for package, node in pairs if package is not None and node is not None)
        nodes = grouped((package, node) for package, node in known if node in self.resources.nodes)
        return {node: tuple(of) for of in nodes.values() if len(of) > 1 for node in of}

    @cached_property
    def alike(self) -> Mapping[int, list[NodeMemory]]:
        """By node, the memory of the nodes with the same modules and as many GPUs, the node itself included.

        Of equal modules, firmware and the kernel take different amounts; guests of such nodes are to be equal.
        """
        gpus = Counter(self.countable.values())
        known = [(node, size) for node, memory in self.memory.items() if (size := memory.memory_bytes)]
        return {
            node: [
                self.memory[other]
                for other, size in known
                if abs(size - own) * ALIKE <= own and gpus[other] == gpus[node]
            ]
            for node, own in known
        }

    @cached_property
    def dividable(self) -> Mapping[int, list[Core]]:
        """By node, the cores that guests divide: without those few that lack a thread that all others have.

        A guest has equally many threads of each of its cores.
        """
        cores = {number: node.assignable for number, node in self.resources.nodes.items()}
        most = self.resources.threads_per_core
        whole = {node: [core for core in here if len(core.cpus) == most] for node, here in cores.items()}
        return {node: whole[node] if 4 * len(whole[node]) >= 3 * len(here) else [*here] for node, here in cores.items()}

    @cached_property
    def caches(self) -> Mapping[int, frozenset[tuple[int, ...]]]:
        """By node, how many of the cores that guests divide are on each last-level cache of it.

        And of each node that is `alike`, unless it lacks a quarter of these cores.
        """
        here = {
            node: tuple(sorted(Counter(core.llc for core in cores).values())) for node, cores in self.dividable.items()
        }
        return {
            node: frozenset(
                here[other]
                for other in (node, *(memory.node for memory in self.alike.get(node, ())))
                if other in here and 4 * (sum(own) - sum(here[other])) <= sum(own)
            )
            for node, own in here.items()
        }

    def home(self, address: str) -> int | None:
        """Return the node that a device counts for: its own, or the nearest with CPUs and memory; None = unknown."""
        return self.resources.home(self.catalogue.node(address))

    def turns(self, name: str) -> Mapping[int | str, int]:
        """Return the order in which a guest takes equal CPUs and devices: 0 what it has had, 2 what others have had.

        All others are 1, and not in it.
        """
        turn_of: dict[int | str, int] = {}
        for other in sorted(self.own, key=lambda other: other == name):
            places = self.own[other]
            turn = 0 if other == name else 2
            turn_of |= {int(pin.cpus): turn for pin in places.vcpu_pins}
            turn_of |= {device.address: turn for device in places.devices}
        return turn_of

    @cached_property
    def thread_options(self) -> tuple[int, ...]:
        """The threads of a core that a guest may use, most first: from the most that a free core has down to one."""
        nodes = self.resources.nodes.values()
        most = max((len(core.cpus) for node in nodes for core in node.free), default=1)
        return tuple(range(most, 0, -1))


def read_field(host: Host, reserve: Reserve, boot_pages: bool | None = None) -> PlanningContext:
    """Read what planning uses from a host document."""
    memory = read_memory(host, reserve)
    resources, catalogue = read_resources(host, reserve), read_catalogue(host)
    return PlanningContext(host, resources, memory, catalogue, reserve, vcpu_limit(host), boot_pages)


Parts = Mapping[str, Fraction]  # the part of each GPU that a guest has


def auto_share(
    context: PlanningContext, gpus: tuple[str, ...], parts: Parts | None = None, nodes: Collection[int] = ()
) -> AutoShare:
    """Return the `auto` share of a guest with these GPUs (at least one), or with `parts` of them.

    `nodes`: the nodes of its cells. Those without GPUs are its own.
    """
    counted = {**context.countable, **{address: context.home(address) for address in gpus}}
    total = Counter(counted.values())
    by_node: dict[int | None, int | Fraction] = {}
    for address in gpus:
        home = context.home(address)
        by_node[home] = by_node.get(home, 0) + (parts or {}).get(address, 1)
    bare = sorted(set(nodes) - total.keys())
    own_gpus = sum(by_node.values())
    barren = nothing_to_share(context, gpus)
    if barren is not None:
        cores = sum(len(node.assignable) for node in context.resources.nodes.values())
        sizes = [memory.assignable_bytes for memory in context.memory.values()]
        size = None if None in sizes or not sizes else int(sum(s or 0 for s in sizes) * own_gpus // len(counted))
        why = f"{own_gpus} of {len(counted)} GPUs of the whole host, since {barren}"
        part = int(cores * own_gpus // len(counted))
        return AutoShare(part, part, size, True, why)
    own = sorted((n, c) for n, c in by_node.items() if n is not None)
    shares = {node: (count, total[node]) for node, count in own} | dict.fromkeys(bare, (1, 1))
    cores_of_nodes: list[int] = []
    bytes_by_node: list[int | None] = []
    lines = []
    for node, (count, of_all) in shares.items():
        alike = context.alike.get(node, ())
        have = min(map(sum, context.caches[node]))
        lacking = len(context.resources.nodes[node].assignable) - len(context.dividable[node])
        cores_of_nodes.append(int(have * count // of_all))
        assignable = min(filter(None, (other.assignable_bytes for other in alike)), default=None)
        bytes_by_node.append(None if assignable is None else int(assignable * count // of_all))
        lines.append(
            (f"{by_node[node]} of {total[node]} GPUs of node {node}" if node in by_node else
             f"all of node {node}, which has no GPU")
            + f" ({have} cores, {format_size(assignable)} unreserved)"
            + (f" without {lacking} that lack a thread" if lacking else "")
        )  # fmt: skip
    uncapped = min(cores_of_nodes)
    most = min(uncapped, context.vcpus.most // len(shares) // context.resources.threads_per_core)
    cores = _in_whole_caches(context, {node: int(of_all // count) for node, (count, of_all) in shares.items()}, most)
    if cores < most:
        lines[-1] += f" without {most - cores} cores of a cache that would be broken"
    known_bytes = [size for size in bytes_by_node if size is not None]
    memory = min(known_bytes) if known_bytes and len(known_bytes) == len(bytes_by_node) else None
    return AutoShare(cores, uncapped, memory, False, "; ".join(lines))


def _in_whole_caches(context: PlanningContext, copies: Mapping[int, int], cores: int) -> int:
    """Return as many cores, or up to an eighth fewer, of which no guest sees a cache that spans two of the host's.

    `copies`: by node, how many guests of this size it is for. Caches of 6 cores, for example, need dies of 3 cores, or
    one of 5 or 6 cores on each (`inventory.cores`).
    """
    if context.resources.sharing is None:
        return cores
    for fewer in range(cores, cores - cores // MOST_LEFT_OUT - 1, -1):
        for groups in groupings(fewer, len(copies), context.resources.threads_per_core, context.resources.sharing):
            if all(_holds(free, groups, count) for node, count in copies.items() for free in context.caches[node]):
                return fewer
    return cores


@lru_cache(maxsize=1024)  # nodes are alike, and so are most sets of GPUs
def _holds(caches: tuple[int, ...], groups: tuple[int, ...], guests: int) -> bool:
    """Return whether so many guests find caches for all their groups of cores."""
    left = list(caches)
    for _ in range(guests):
        places = caches_for(groups, left)
        if not places:
            return False
        for at, group in zip(places, groups, strict=True):
            left[at] -= group
    return True


def nothing_to_share(context: PlanningContext, gpus: tuple[str, ...]) -> str | None:
    """Return why the nodes of these GPUs have nothing for `auto` (it then means the whole host); None if they have."""
    if not context.resources.cpu_nodes_known:
        return "nothing says which CPU is on which node"
    for address in gpus:
        node = context.catalogue.node(address)
        if node is None or node not in context.resources.nodes:
            return f"the node of {address} is unknown"
        home = context.resources.home(node)
        if home is None:
            return f"node {node} lacks CPUs or memory, and which node with both is nearest to it is unknown"
        if not context.resources.nodes[home].assignable:
            return f"node {home} has no core to share"
        if home in context.memory and (reason := context.memory[home].nothing_to_share):
            return reason
    return None


class Base(msgspec.Struct, frozen=True):
    """The first cells of a guest to try: `nodes` if the contract names them, `may_grow` if more cells may be tried."""

    cells: int
    may_grow: bool
    nodes: frozenset[int] | None = None


def _without_gpus(context: PlanningContext, gpus: Collection[str]) -> Iterator[int]:
    """Yield the nodes without GPUs of the sockets all of whose GPUs these are, if nobody has anything of the node."""
    homes = set(context.countable.values())
    for node, socket in context.sockets.items():
        inside = {address for address, home in context.countable.items() if home in socket}
        here, memory = context.resources.nodes[node], context.memory.get(node)
        of_guest = node not in homes and inside and inside <= {*gpus}
        idle = here.free and len(here.free) == len(here.assignable)
        if of_guest and idle and memory and not memory.nothing_to_share:
            yield node


def base_cells(
    context: PlanningContext, guest: GuestIntent, gpus: tuple[str, ...], *, whole_sockets: bool = False
) -> Base:
    """Return the cells as the intent says; `auto`: one cell on each node that has one of the GPUs.

    `whole_sockets`: and one on the other nodes of sockets all of whose GPUs these are, where cores divide so.

    No cell can be on a node without CPUs: its GPUs count for the nearest node that has. One cell on any node if there
    are no GPUs, their nodes are unknown, or there are fewer cores than nodes.
    """
    if isinstance(guest.numa, tuple):
        return Base(len(guest.numa), False)
    if isinstance(guest.numa, int):
        return Base(guest.numa, False)
    homes = [context.home(address) for address in gpus]
    known = {home for home in homes if home is not None}
    if not gpus or None in homes:
        return Base(1, True)
    if isinstance(guest.vcpus, int) and cores_needed(guest.vcpus, context.resources.threads_per_core) < len(known):
        return Base(1, True)
    more = known.union(_without_gpus(context, gpus) if whole_sockets else ())
    cores = len(more) * context.resources.threads_per_core
    own = known if isinstance(guest.vcpus, int) and guest.vcpus % cores else more
    return Base(len(own), True, frozenset(own))


class Sizes(msgspec.Struct, frozen=True):
    """One way to divide a guest. `short`: `auto` had to leave out cores or memory."""

    shape: GuestShape
    short: bool


def shapes(
    context: PlanningContext, guest: GuestIntent, gpus: tuple[str, ...], cells: int, parts: Parts | None = None
) -> Iterator[Sizes]:
    """Yield every way to divide the guest into `cells` cells, full sizes first; none if that is impossible.

    `gpus` and `parts` are what `auto` is a share of.
    """
    listed = guest.numa if isinstance(guest.numa, tuple) else None
    asked = gpus and listed is None and "auto" in (guest.vcpus, guest.memory)
    own = base_cells(context, guest, gpus, whole_sockets=not parts).nodes or () if asked else ()
    share = auto_share(context, gpus, parts, own if len(own) == cells else ()) if asked else None
    for threads in context.thread_options:
        for page, at_boot in _backings(context, guest):
            demands = _listed(listed, page) if listed else _equal(context, guest, share, cells, threads, page)
            fewer = share is not None and guest.vcpus == "auto" and threads < context.resources.threads_per_core
            for cut, short in demands:
                yield Sizes(GuestShape(cut, threads, page, guest.smt == "threads", at_boot), short or fewer)


def _backings(context: PlanningContext, guest: GuestIntent) -> list[tuple[int | None, bool]]:
    """Return (page size, whether a reboot reserves the pages) to try; options that need no reboot come first."""
    pages = page_sizes(context.host, guest.hugepages)
    backings: list[tuple[int | None, bool]] = [(page, False) for page in pages]
    by_number = guest.memory != "auto" or isinstance(guest.numa, tuple)
    may = by_number if context.boot_pages is None else context.boot_pages
    if may and HUGE_1G in pages and any(memory.short_now for memory in context.memory.values()):
        backings.append((HUGE_1G, True))
    return backings


Cut = tuple[tuple[CellDemand, ...], bool]  # cells, and whether `auto` had to leave something out


def _listed(cells: Sequence[CellRequest], page: int | None) -> Iterator[Cut]:
    listed = tuple(CellDemand(c.vcpus, parse_size(c.memory, where="numa")) for c in cells)
    if all(cell.memory_bytes % (page or SMALL_PAGE) == 0 for cell in listed):
        yield listed, False


def _equal(
    context: PlanningContext, guest: GuestIntent, share: AutoShare | None, cells: int, threads: int, page: int | None
) -> Iterator[Cut]:
    for vcpus, vcpus_short in _cell_vcpus(guest, share, cells, threads, context.vcpus.most):
        for memory, memory_short in _cell_memory(guest, share, cells, page):
            yield tuple(CellDemand(vcpus, size) for size in memory), vcpus_short or memory_short


def _cell_vcpus(
    guest: GuestIntent, share: AutoShare | None, cells: int, threads: int, most: int
) -> Iterator[tuple[int, bool]]:
    """Yield vCPUs of each of `cells` equal cells: as requested, else the share and, last, one core to enlarge later."""
    if isinstance(guest.vcpus, int):
        if guest.vcpus % cells == 0:
            yield guest.vcpus // cells, False
    elif share is not None:
        full = min(share.cores_of(cells), max(1, most // cells // threads))
        if full >= 1:
            yield full * threads, False
        if full != 1:
            yield threads, True


def _cell_memory(
    guest: GuestIntent, share: AutoShare | None, cells: int, page: int | None
) -> Iterator[tuple[list[int], bool]]:
    unit = page or SMALL_PAGE
    if guest.memory != "auto":
        sizes = split_evenly(parse_size(guest.memory, where="memory"), cells, page)
        if sizes:
            yield sizes, False
    elif share is not None and share.memory_bytes is not None:  # a share of an unknown amount has no number
        each = (share.memory_of(cells) or 0) // unit * unit
        if each:
            yield [each] * cells, False
        yield [unit] * cells, True


def _free_cpus(node: NodeResources, shape: GuestShape) -> int:
    """Return the number of CPUs that a cell of this shape could take on a node."""
    if shape.share_cores:
        return len(node.free_threads)
    return len(fitting_cores(node, shape.threads)) * shape.threads


class LaterClaims(msgspec.Struct, frozen=True):
    """What guests built later need of a node, and how many of them divide the rest with this guest."""

    cpus: int = 0
    memory_bytes: int = 0
    sharers: int = 0


def enlarge(
    context: PlanningContext,
    sizes: Sizes,
    guest: GuestIntent,
    gpus: tuple[str, ...],
    nodes: tuple[int, ...],
    claims_of_later: Mapping[int, LaterClaims] | None = None,
    parts: Parts | None = None,
) -> GuestShape:
    """Enlarge an `auto` guest that was placed small: all cells get the size that fits the fullest of its nodes.

    The guests in `claims_of_later` keep what they need, and the rest is divided evenly.
    """
    shape = sizes.shape
    if not sizes.short:
        return shape
    vcpus = [cell.vcpus for cell in shape.cells]
    memory = [cell.memory_bytes for cell in shape.cells]
    cells = len(nodes)
    share = auto_share(context, gpus, parts, nodes)
    others = [(claims_of_later or {}).get(node, LaterClaims()) for node in nodes]
    if guest.vcpus == "auto":
        most = context.vcpus.most // cells // shape.threads * shape.threads
        room = min(
            _part(_free_cpus(context.resources.nodes[node], shape), vcpus[i], others[i].cpus, others[i].sharers)
            for i, node in enumerate(nodes)
        )
        room = room // shape.threads * shape.threads
        vcpus = [max(1, min(max(share.cores_of(cells), 1) * shape.threads, most, room))] * cells
    if guest.memory == "auto" and share.memory_bytes is not None:
        unit = shape.page or SMALL_PAGE
        rooms = [share.memory_of(cells) or 0]
        for i, node in enumerate(nodes):
            memory_of = context.memory.get(node)
            have = memory_of.capacity_bytes(shape.page, at_boot=shape.at_boot) if memory_of else None
            if have is not None:
                rooms.append(_part(have, memory[i], others[i].memory_bytes, others[i].sharers))
        size = min(rooms) // unit * unit
        memory = [max(unit, size)] * cells
    return replace(shape, cells=tuple(CellDemand(v, m) for v, m in zip(vcpus, memory, strict=True)))


def _part(have: int, own: int, others: int, sharers: int) -> int:
    """Return one guest's part of an amount: its own minimum, and an even part of what no guest needs."""
    return own + max(0, have - own - others) // (1 + sharers) if sharers or others else have
