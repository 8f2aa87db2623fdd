"""Every placement of one guest on a host, the best first, as amounts of the resources for which guests compete.

Pure. A guest may have more placements than can be listed (8 of 64 GPUs over 34 nodes), so they are generated on demand:
best-first, each family of placements with a bound on its rank (A*).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count as numbers

import msgspec
from msgspec.structs import replace

from hosttune.inventory.cores import CellDemand, GuestShape, cores_needed, fits
from hosttune.inventory.devices import Catalogue
from hosttune.inventory.sizing import Sizes, base_cells, shapes
from hosttune.model.intent import NicRequest
from hosttune.model.values import parse_cpus
from hosttune.planning.mig.instances import MigSlot, mig_share
from hosttune.planning.request.nearest import dealt, shared_bridges
from hosttune.planning.request.resource_pool import ResourcePool, slots_use
from hosttune.planning.search.node_sets import CellCosts, Cells, NodeSet, node_sets
from hosttune.planning.search.problem import NEXT, Fragmentation, LazySequence, PlacementProblem, Rank, plus
from hosttune.planning.search.selections import Node, Partial, Picks, Selection, Selections, View, ways_to_take

# --- nearness of NICs and drives -----------------------------------------------------------------------------


Gpus = tuple[str, ...]
Pair = tuple[str, str | None]  # a device and a GPU


class Nearness:
    """The nearness of devices to GPUs, for picks of a resource pool. What was counted once is kept."""

    def __init__(self, catalogue: Catalogue, resource_pool: ResourcePool) -> None:
        self._catalogue, self._stock = catalogue, resource_pool
        self._shared: dict[tuple[int, Gpus], dict[Pair, int]] = {}
        self._nearest: dict[tuple[int, Gpus], list[int]] = {}

    def exact(self, picks: Picks, gpus: Gpus) -> int:
        """Return the bridges shared if each device is for one GPU, and no GPU has two before every other has one."""
        left: dict[int, int] = {}
        kinds: dict[str, int] = {}
        near: dict[Pair, int] = {}
        for index, count in picks:
            left[index] = count
            kinds |= {device: index for bundle in self._stock.kind(index).bundles for device in bundle}
            near |= self._bridges(index, gpus)

        def take(device: str) -> bool:
            left[kinds[device]] -= 1
            return left[kinds[device]] >= 0

        ranked = sorted(near, key=lambda pair: -near[pair])
        return sum(near[pair] for pair in dealt(ranked, sum(count for _, count in picks), take))

    def most(self, picks: Picks, gpus: Gpus) -> int:
        """Return a bound on that, which costs less: each device counts for the GPU that is nearest to it."""
        reached = 0
        for index, count in picks:
            key = index, gpus
            if key not in self._nearest:
                nearest: dict[str, int] = {}
                for (device, _), bridges in self._bridges(index, gpus).items():
                    nearest[device] = max(bridges, nearest.get(device, 0))
                self._nearest[key] = sorted(nearest.values(), reverse=True)
            reached += sum(self._nearest[key][:count])
        return reached

    def _bridges(self, index: int, gpus: Gpus) -> dict[Pair, int]:
        """Return how many bridges each device of a kind shares with each GPU."""
        key = index, gpus
        if key not in self._shared:
            devices = [address for bundle in self._stock.kind(index).bundles for address in bundle]
            pairs = ((device, gpu) for device in devices for gpu in gpus)
            self._shared[key] = {(device, gpu): shared_bridges(self._catalogue, device, gpu) for device, gpu in pairs}
        return self._shared[key]


# --- placements ----------------------------------------------------------------------------------------------


WORK_OF_A_SELECTION = 40  # cost of one choice of GPUs; one placement costs 1
NO_GPUS: tuple[str, ...] = ()
MOVED_VCPU, MOVED_CELL = 10**8, 10**13  # of a guest that has had places: more than any sum of distances
MOST_FAMILIES = 20_000  # families considered for one placement, before the rest of its level is left out
MOST_DEALT = 64  # ways of equal cost to take NICs and drives that are compared GPU by GPU
MOST_COMPARED = 512  # families of equal rank that are searched for a placement that breaks up less


class Placement(msgspec.Struct, frozen=True):
    """One way to place a guest: its rank, what it takes of the resource pool, and of the memory of each node."""

    rank: Rank
    use: tuple[tuple[int, int], ...]
    memory: tuple[tuple[int, int | None, int], ...]  # node, page size, bytes
    nodes: tuple[int, ...]
    sizes: Sizes
    picks: Picks
    extra_cells: int
    slots: tuple[MigSlot, ...] = ()


class _Cut(msgspec.Struct, frozen=True):
    """GPUs and the remaining cuts of the guest, before the cells have nodes.

    `rank` is a bound for these cuts. `only`: the nodes that the cells may be on; None: any. `given`: its GPUs and named
    devices, and what goes along with them.
    """

    rank: Rank
    selection: Selection
    cuts: LazySequence[Sizes]
    extra: int
    prices: CellCosts
    given: frozenset[str]
    only: frozenset[int] | None


class _OnNodes(msgspec.Struct, frozen=True):
    """One cut, the next set of nodes for its cells, and the sets after it."""

    cut: _Cut
    rank: Rank  # without the cost
    sizes: Sizes
    following: NodeSet
    later: Iterator[NodeSet]


Open = Partial | Selection | _Cut  # what these break up is not known yet
Family = Open | _OnNodes
Bound = tuple[Rank, tuple[Fragmentation, ...]]  # no fragmentation if it is not known yet


def _steps_left(family: Open) -> int:
    """Return how far a family is from placements: of equal bounds, the nearest family comes first."""
    match family:
        case _Cut():
            return 1
        case Selection():
            return 2
        case Partial():
            return 2 + family.left


class PlacementStream:
    """The placements of one guest, generated on demand and kept. Without a `view`, as if it were alone."""

    def __init__(self, problem: PlacementProblem, which: int, view: View | None = None) -> None:
        self._problem, self._field, self._stock = problem, problem.context, problem.resource_pool
        self._view = view or View(self._stock.capacity, self._holds, lambda _: None)
        self._want, self._which = problem.wants[which], which
        self._ables: dict[int, frozenset[int]] = {}
        self._selections = Selections(problem, which, self._view, self._able)
        named = self._selections.all_of("named", 0)
        self._named, self._named_brings = named, self._selections.select(named).brought
        self._known: dict[tuple[int, ...], list[dict[int, int]]] = {}
        guest = self._want.guest
        self._auto = not isinstance(guest.numa, tuple) and "auto" in (guest.vcpus, guest.memory)
        self._roomy: dict[int, bool] = {}
        self._nearness = Nearness(self._field.catalogue, self._stock)
        self._numbers = numbers()
        self._cut_off = False
        self._drawn = LazySequence(self._draw())

    @property
    def cut_off(self) -> bool:
        """Whether there are more placements than are looked at."""
        return self._cut_off or self._selections.cut_off

    def get(self, number: int) -> Placement | None:
        """Return the placement of this number, the best first; None after the last."""
        return self._drawn.get(number)

    def _draw(self) -> Iterator[Placement]:
        """Yield placements level by level.

        First cells on the GPUs' own nodes, if there are such; then the same number of cells on any nodes; then one more
        cell; and so on.
        """
        mixes = range(max(1, len({model for kind in self._stock.kinds for model in kind.trait.models})))
        for level in range(len(self._field.resources.nodes) + 1):
            extra = max(0, level - self._selections.has_own_nodes)
            if extra and self._want.guest.numa != "auto":
                return
            if any(self._has_room(spread + extra) for spread in self._selections.spreads()):
                for mixed in mixes:
                    yield from self._best_first(level, mixed)

    def _has_room(self, cells: int) -> bool:
        """Return whether enough nodes could hold this many cells in some cut.

        An `auto` size depends on the GPUs, so the answer is then true.
        """
        nodes = self._field.resources.nodes
        if self._auto:
            return True
        if cells not in self._roomy:
            cuts, number, roomy = self._cuts(None, cells), 0, False
            while not roomy and (sizes := cuts.get(number)) is not None:
                number += 1
                shape = sizes.shape
                able = {cell: {n for n in nodes if self._view.holds(n, cell, shape)} for cell in set(shape.cells)}
                roomy = all(able.values()) and len(set().union(*able.values())) >= cells
            self._roomy[cells] = roomy
        return self._roomy[cells]

    def _able(self, cells: int) -> frozenset[int]:
        """Return the nodes that could hold a cell of the guest, if it has so many."""
        nodes = self._field.resources.nodes
        if self._auto:
            return frozenset(nodes)
        if cells not in self._ables:
            demands = {(cell, sizes.shape) for sizes in self._cuts(None, cells) for cell in sizes.shape.cells}
            able = (n for n in nodes if any(self._view.holds(n, cell, shape) for cell, shape in demands))
            self._ables[cells] = frozenset(able)
        return self._ables[cells]

    def _best_first(self, level: int, mixed: int) -> Iterator[Placement]:
        """Yield the placements of one level and number of GPU models, the best first."""
        families: list[tuple[Rank, int, int, Open]] = []
        known: list[tuple[Bound, bool, int, _OnNodes | Placement]] = []

        def add(more: Iterator[tuple[Bound, Family | Placement]]) -> int:
            count = 0
            for bound, partial in more:
                count += 1
                if isinstance(partial, (_OnNodes, Placement)):
                    heapq.heappush(known, (bound, isinstance(partial, _OnNodes), next(self._numbers), partial))
                else:
                    heapq.heappush(families, (bound[0], _steps_left(partial), next(self._numbers), partial))
            return count

        add(self._bounded(self._selections.begin(), level, mixed))
        compared = considered = 0
        while families or known:
            as_good = bool(families and known) and known[0][0][0] == families[0][0]
            better = not families or bool(known and known[0][0][0] < families[0][0])
            if better or (as_good and compared >= MOST_COMPARED):
                partial = heapq.heappop(known)[3]
                if isinstance(partial, _OnNodes):
                    add(self._placements(partial))
                    continue
                yield partial
                compared, considered = compared if as_good else 0, 0
            elif considered >= MOST_FAMILIES:
                self._cut_off = True
                families.clear()  # the placements found so far are still returned, the best first
            else:
                compared += as_good
                considered += add(self._inside(heapq.heappop(families)[3], level, mixed))

    def _inside(self, family: Open, level: int, mixed: int) -> Iterator[tuple[Bound, Family | Placement]]:
        """Yield the members of a family, each with its bound."""
        match family:
            case Partial():
                return self._bounded(self._selections.grown(family, mixed), level, mixed)
            case Selection():
                return self._cut_up(family, level)
            case _Cut():
                return self._on_nodes(family)

    def _bounded(
        self, found: Iterator[Selection | Partial], level: int, mixed: int
    ) -> Iterator[tuple[Bound, Family | Placement]]:
        own = level == 0 and self._selections.has_own_nodes
        able = frozenset[Node]().union(*map(self._able, self._selections.spreads())) if own else frozenset[Node]()
        for partial in found:
            if own and not able.issuperset(map(self._field.resources.home, partial.nodes)):
                continue
            if isinstance(partial, Partial) or partial.mixed == mixed:
                busy = partial.busy if isinstance(partial, Selection) else 0
                yield (self._rank(level, mixed, self._selections.least(partial, level), busy=busy), ()), partial

    def _rank(self, level: int, mixed: int, cost: int, short: int = 0, busy: int = 0, order: int = 0) -> Rank:
        """Return a rank.

        A guest without own nodes cannot be away from them. So only more cells raise its level.
        """
        away = level if self._selections.has_own_nodes or not level else level + 1
        return Rank(0, away, mixed, cost, short, busy, order)

    # --- cells ----------------------------------------------------------------------------------------------------

    def _cut_up(self, selection: Selection, level: int) -> Iterator[tuple[Bound, Family | Placement]]:
        """Yield every cut of the guest into the cells of a level, for one choice of GPUs."""
        self._view.spend(WORK_OF_A_SELECTION)
        context, guest = self._field, self._want.guest
        has_own = self._selections.has_own_nodes
        base = base_cells(context, guest, selection.gpus, whole_sockets=level == 0 and not selection.slots)
        own, extra = level == 0 and has_own, max(0, level - has_own)
        cells = base.cells + extra
        if cells > len(context.resources.nodes) or (extra and not base.may_grow) or (own and base.nodes is None):
            return
        if not self._has_room(cells):
            return
        cuts = self._cuts(selection, cells)
        first = cuts.get(0)
        if first is None:
            return
        given = selection.brought | self._named_brings
        known = [*(selection.nodes if selection.slots else ()), *self._nodes_of(given)]
        shares = tuple(self._problem.unit * cell.vcpus // first.shape.vcpus for cell in first.shape.cells)
        prices = CellCosts(shares, self._to_devices(known, first.shape), self._problem.pair, self._known)
        if own and (free := (base.nodes or frozenset()).difference(map(context.home, selection.gpus))):
            prices = self._with_free(prices, free)
        rank = self._rank(level, selection.mixed, self._selections.least(selection, level), busy=selection.busy)
        yield (rank, ()), _Cut(rank, selection, cuts, extra, prices, given, base.nodes if own else None)

    def _with_free(self, prices: CellCosts, free: frozenset[int]) -> CellCosts:
        """Return the costs of a guest with whole sockets: those of its cells beside GPUs, as if it had no others."""
        count = len(prices.shares)
        return CellCosts(
            (self._problem.unit // (count - len(free)),) * count,
            {node: 0 if node in free else cost for node, cost in prices.to_devices.items()},
            {pair: 0 if free.intersection(pair) else cost for pair, cost in prices.pair.items()},
            {},
            free,
        )

    def _to_devices(self, known: Sequence[Node], shape: GuestShape) -> dict[int, int]:
        """Return, for each node, the sum of its distances to devices on these nodes, and what moves there cost."""
        devices = Counter(node for node in known if node is not None)
        distance, own = self._field.resources.distance, self._field.own.get(self._want.guest.name)
        had = Counter({int(cell.host_nodes): len(parse_cpus(cell.vcpus)) for cell in own.cells}) if own else None

        def moves(node: int) -> int:
            if had is None:
                return 0
            vcpus = max(0, shape.cells[0].vcpus - had[node])
            return len(shape.cells) * (MOVED_CELL * (node not in had) + MOVED_VCPU * vcpus)

        nodes = self._field.resources.nodes
        return {n: moves(n) + sum(count * distance(n, d) for d, count in devices.items()) for n in nodes}

    def _cuts(self, selection: Selection | None, cells: int) -> LazySequence[Sizes]:
        """Return the cuts of the guest into `cells` cells. Only an `auto` size depends on the GPUs, by their nodes."""
        guest, known = self._want.guest, self._problem.cuts
        if not self._auto or selection is None:
            key: tuple[object, ...] = (self._which, cells)
            gpus, parts = NO_GPUS, None
        else:
            key = self._which, cells, selection.nodes, selection.gpus if selection.slots else ()
            gpus, parts = selection.gpus, mig_share(self._field, selection.slots) if selection.slots else None
        if key not in known:
            known[key] = LazySequence(shapes(self._field, guest, gpus, cells, parts))
        return known[key]

    def _on_nodes(self, cut: _Cut) -> Iterator[tuple[Bound, Family | Placement]]:
        """Yield the best set of nodes for the cells of a cut, and the cuts after it."""
        sizes = cut.cuts.get(cut.rank.order)
        if sizes is None:
            return
        later = plus(cut.rank, NEXT)
        yield (later, ()), replace(cut, rank=later)
        shape, taken = sizes.shape, Counter(map(self._field.resources.home, cut.selection.nodes))
        twin = [i > 0 and cell == shape.cells[i - 1] for i, cell in enumerate(shape.cells)]
        rooms: list[Mapping[int, Fragmentation]] = []
        for i, cell in enumerate(shape.cells):
            if twin[i]:
                rooms.append(rooms[-1])
                continue
            able = [n for n in cut.only or self._field.resources.nodes if self._view.holds(n, cell, shape)]
            if not able:
                return
            rooms.append({n: self._problem.fragments.of_cell(cell, shape, n, taken) for n in sorted(able)})
        start = self._problem.fragments.of_gpus(cut.selection.gpus)
        source = node_sets(cut.prices, Cells(rooms, twin, start))
        yield from self._next_nodes(cut, cut.rank._replace(short=int(sizes.short)), sizes, source)

    def _next_nodes(
        self, cut: _Cut, rank: Rank, sizes: Sizes, source: Iterator[NodeSet]
    ) -> Iterator[tuple[Bound, Family | Placement]]:
        following = next(source, None)
        if following is not None:
            cost, broken, _ = following
            yield (rank._replace(cost=cost), (broken,)), _OnNodes(cut, rank, sizes, following, source)

    def _holds(self, node: int, cell: CellDemand, shape: GuestShape) -> bool:
        return fits(self._field.resources.nodes[node], self._field.memory.get(node), cell, shape)

    # --- placements -----------------------------------------------------------------------------------------------

    def _placements(self, on_nodes: _OnNodes) -> Iterator[tuple[Bound, Family | Placement]]:
        """Yield every way to count NICs and drives for cells on one set of nodes; then the next set of nodes."""
        (cost, broken, nodes), cut = on_nodes.following, on_nodes.cut
        selection, shape = cut.selection, on_nodes.sizes.shape
        ways = self._by_count(cut, nodes)
        self._view.spend(1 + len(ways))
        uses: list[tuple[int, int]] = []
        for node, cell in zip(nodes, shape.cells, strict=True):
            if shape.share_cores:
                uses.append((self._stock.threads[node], cell.vcpus))
                continue
            cores = cores_needed(cell.vcpus, shape.threads)
            uses += [(self._stock.cores[node, least], cores) for least in range(1, shape.threads + 1)]
            if self._stock.shares:
                uses.append((self._stock.threads[node], cores * self._stock.narrowest[node, shape.threads]))
        cells, slots = uses, slots_use(self._stock, selection.slots)
        memory = tuple((node, shape.page, c.memory_bytes) for node, c in zip(nodes, shape.cells, strict=True))
        for more, dearer in ways:
            picks = (*selection.picks, *more)
            rank = on_nodes.rank._replace(cost=cost + dearer)
            use = (*cells, *self._devices_use((*picks, *self._named)), *slots)
            placement = Placement(rank, use, memory, nodes, on_nodes.sizes, picks, cut.extra, selection.slots)
            yield (rank, (broken,)), placement
        yield from self._next_nodes(cut, on_nodes.rank, on_nodes.sizes, on_nodes.later)

    def _devices_use(self, picks: Picks) -> list[tuple[int, int]]:
        """Return the bundles, and what they also take, each once."""
        also = {index: much for kind, _ in picks for index, much in self._stock.kind(kind).trait.also}
        return [*picks, *sorted(also.items())]

    def _by_count(self, cut: _Cut, nodes: tuple[int, ...]) -> Sequence[tuple[Picks, int]]:
        """Return every way to count NICs and drives: (by kind, what they add to the objective), the cheapest first."""
        guest = self._want.guest
        nics = guest.nics.count if isinstance(guest.nics, NicRequest) else guest.nics
        ways: list[Picks] = [()]
        for what, count in (("nic", nics), ("nvme", guest.nvme)):
            if isinstance(count, int) and count:
                kinds = self._stock.of((self._which, what, 0))
                several = ways_to_take(kinds, self._view.left, count)
                ways = [(*a, *b) for a in ways for b in several]
        priced = [(way, self._cost(cut, nodes, way)) for way in ways]
        gpus = cut.selection.gpus
        if len(priced) > 1:
            priced.sort(key=lambda way: (way[1], -self._nearness.most(way[0], gpus)))
            alike = [way for way in priced[:MOST_DEALT] if way[1] == priced[0][1]]
            if len(alike) > 1 and len(gpus) > 1:
                priced[: len(alike)] = sorted(alike, key=lambda way: -self._nearness.exact(way[0], gpus))
        return priced

    def _cost(self, cut: _Cut, nodes: tuple[int, ...], picks: Picks) -> int:
        """Return what devices add, with everything that goes along; each function counts once."""
        if not picks:
            return 0
        distance = self._field.resources.distance
        more = self._selections.select(picks).brought - cut.given
        return sum(
            share * distance(node, home)
            for home in self._nodes_of(more)
            for share, node in zip(cut.prices.shares, nodes, strict=True)
            if node not in cut.prices.free
        )

    def _nodes_of(self, addresses: frozenset[str]) -> list[int]:
        """Return the known nodes of devices."""
        nodes = (self._field.catalogue.node(address) for address in addresses)
        return sorted(node for node in nodes if node is not None and node in self._field.resources.nodes)
