"""Every way to place one guest on an otherwise empty host, cheapest first, as amounts of what guests compete for.

Pure. A guest may have more ways than can be listed (8 of 64 GPUs over 34 nodes), so they are drawn as they are asked
for: best-first, each family of choices with a bound on what it comes to (A*). Costs are whole numbers: the contract's
objective times `Scale.unit`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from itertools import islice
from math import lcm

from hosttune.model.intent import NicRequest
from hosttune.planning.devices import address_key, gpu_count
from hosttune.planning.mig import MigSlot, is_vgpu_guest, mig_choices, mig_share
from hosttune.planning.nodesets import Prices, node_sets
from hosttune.planning.placement import CellDemand, Shape, cores_needed, device_distances, fits
from hosttune.planning.sizing import Field, Sizes, base_cells, shapes
from hosttune.planning.stock import Kind, Stock, Want, gpu_pools, gpu_sets, occupied, slots_use

KEPT_CHOICES = 4096
MOST_SLOTS = 1024  # ways to place the MIG instances of one guest that are looked at
WORK_OF_A_CHOICE = 40  # what looking at one choice of GPUs costs, where looking at one way costs 1
Node = int | None
Picks = tuple[tuple[int, int], ...]  # (index of a kind, bundles of it)


@dataclass(frozen=True)
class Scale:
    """How ranks are written as one whole number each, so that they add up and compare in the order of the rule.

    First to last: cells off the guest's own nodes or beyond the contract's number, GPU models mixed, the objective,
    `auto` sizes cut short, busy GPUs, order of the cut (threads per core, page size). `unit` makes objectives whole.
    """

    unit: int
    cost_bits: int
    part_bits: int = 16  # of each of the other parts: sums over thousands of guests stay below

    def rank(self, level: int, mixed: int, cost: int, short: int, busy: int, order: int) -> int:
        """The rank of one way; ranks of several guests may be added."""
        value = ((level << self.part_bits | mixed) << self.cost_bits) | cost
        for part in (short, busy, order):
            value = value << self.part_bits | part
        return value

    @property
    def unplaced(self) -> int:
        """What a guest that is not placed adds: more than anything else can."""
        return 1 << (self.cost_bits + 5 * self.part_bits)


def scale_of(field: Field, wants: Sequence[Want]) -> Scale:
    """A scale on which every objective of these guests is whole."""
    most = len(field.resources.nodes)
    parts = [*range(1, most + 1)]
    parts += [sum(cell.vcpus for cell in w.guest.numa) for w in wants if isinstance(w.guest.numa, tuple)]
    unit = 2 * lcm(*parts)
    farthest = max((*field.resources.distances.values(), 20))
    devices = len(field.catalogue.pci) + len(field.catalogue.gpus)
    bound = unit * farthest * (devices + most * most) * (1 + len(wants))
    return Scale(unit, bound.bit_length() + 1)


@dataclass(frozen=True, slots=True)
class Option:
    """One way to place a guest: its rank, what it takes of the stock, and of the memory of each node."""

    rank: int
    use: tuple[tuple[int, int], ...]
    memory: tuple[tuple[int, int | None, int], ...]  # node, page size, bytes
    nodes: tuple[int, ...]
    sizes: Sizes
    picks: Picks
    extra_cells: int
    slots: tuple[MigSlot, ...] = ()


@dataclass(frozen=True)
class Settled:
    """GPUs that were settled: how many of which kinds, the node of each, and some that stand for all like them."""

    picks: Picks
    nodes: tuple[Node, ...]
    mixed: int
    busy: int
    gpus: tuple[str, ...]
    brought: frozenset[str] = frozenset()  # these and all that goes along with them
    slots: tuple[MigSlot, ...] = ()


# Bound, how far it is from whole ways, its number, what is in it: of equal bounds, what is nearly done comes first.
Family = tuple[int, int, int, Callable[[], Iterator["Family | Option"]]]


@dataclass(frozen=True)
class View:
    """What there is for a guest: the amounts that are left, and whether a node could hold a cell of some shape."""

    left: Sequence[int]
    holds: Callable[[int, CellDemand, Shape], bool]
    spend: Callable[[int], None]  # told of work done, so that a search can end in time


class Options:
    """The ways of one guest, drawn as they are asked for and kept. Without a `view`, as if it were alone."""

    def __init__(
        self, field: Field, stock: Stock, scale: Scale, wants: Sequence[Want], which: int, view: View | None = None
    ) -> None:
        self._field, self._stock, self._scale = field, stock, scale
        self._view = view or View(stock.capacity, self._holds, lambda _: None)
        self._halves: dict[tuple[int, ...], list[dict[int, int]]] = {}
        self._want, self._which = wants[which], which
        self._kinds = {kind.index: kind for kind in stock.kinds}
        self._gpus = gpu_count(self._want.guest)
        self._vgpu = is_vgpu_guest(self._want.guest)
        self._slots: list[Settled] | None = None
        self._by_spread: dict[int, list[Settled]] = {}
        self._has_own = self._may_be_home()
        nodes = list(field.resources.nodes)
        self._pair = {(a, b): scale.unit * field.resources.distance(a, b) for a in nodes for b in nodes if a != b}
        self._cut_ups: dict[object, CutUp | None] = {}
        self.cut_off = False  # whether there are more ways than are looked at
        self._kept: list[Option] = []
        self._numbers = numbers()
        self._source = self._draw()

    def _may_be_home(self) -> bool:
        """Whether the contract gives it cells on its GPUs' own nodes, so that other nodes are a step away from that."""
        if self._want.guest.numa != "auto":
            return False
        if self._vgpu:
            return any(None not in settled.nodes for settled in self._vgpus())
        sets = [self._settled(self._all_of("set", part)).nodes for part in range(len(gpu_sets(self._want.candidates)))]
        if sets:
            return any(nodes and None not in nodes for nodes in sets)
        pools = (self._stock.of((self._which, "gpu", part)) for part in range(len(gpu_pools(self._want))))
        return any(kind.trait.node is not None for pool in pools for kind in pool)

    def get(self, number: int) -> Option | None:
        """The way of this number, the least rank first; None past the last."""
        while len(self._kept) <= number:
            found = next(self._source, None)
            if found is None:
                return None
            self._kept.append(found)
        return self._kept[number]

    def _draw(self) -> Iterator[Option]:
        """Level by level: cells on the GPUs' own nodes, where it has such; as many anywhere; one more; and so on."""
        mixes = range(max(1, len({model for kind in self._stock.kinds for model in kind.trait.models})))
        for level in range(len(self._field.resources.nodes) + 1):
            for mixed in mixes:
                yield from self._cheapest(level, mixed)

    def _cheapest(self, level: int, mixed: int) -> Iterator[Option]:
        """The ways of one level and number of GPU models, the least rank first."""
        spreads = range(len(self._field.resources.nodes) + 2)  # 0: no GPUs; the last: some are of unknown node
        heap: list[Family] = [
            (self._least(spread, level), 2, next(self._numbers), self._spread(spread, level, mixed))
            for spread in spreads
        ]
        heapq.heapify(heap)
        waiting: list[tuple[int, int, Option]] = []
        while heap:
            bound, _, _, family = heapq.heappop(heap)
            floor = self._scale.rank(self._away(level), mixed, bound, 0, 0, 0)
            while waiting and waiting[0][0] <= floor:
                yield heapq.heappop(waiting)[2]
            for found in family():
                if isinstance(found, Option):
                    heapq.heappush(waiting, (found.rank, next(self._numbers), found))
                else:
                    heapq.heappush(heap, found)
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _away(self, level: int) -> int:
        """How far from home a level is: 0 with a guest's own cells, else 1 and the cells beyond their number."""
        return level if self._has_own or not level else level + 1

    def _least(self, spread: int, level: int) -> int:
        """A bound on the objective of GPUs from so many nodes with a cell on each; 0 where cells are elsewhere."""
        if level or not self._has_own or not self._gpus or self._vgpu or spread < 2 or not self._pair:
            return 0
        own = self._scale.unit * min(self._field.resources.distance(n, n) for n in self._field.resources.nodes)
        other = min(self._pair.values())
        to_devices = self._gpus * (own + (spread - 1) * min(own, other)) // spread
        return to_devices + other * spread * (spread - 1) // 2

    # --- GPUs ---------------------------------------------------------------------------------------------------

    def _spread(self, spread: int, level: int, mixed: int) -> Callable[[], Iterator[Family | Option]]:
        """The family of all choices of GPUs from so many nodes."""

        def families() -> Iterator[Family]:
            for settled in self._choices(spread):
                if settled.mixed == mixed:
                    yield self._later(settled, level)

        return families

    def _choices(self, spread: int) -> Iterator[Settled]:
        """Every choice of GPUs from so many nodes; kept, where they are not too many, for the other levels."""
        known = self._by_spread.get(spread)
        if known is not None:
            yield from known
            return
        kept: list[Settled] = []
        for settled in self._vgpus() if self._vgpu else map(self._settled, self._picks(spread)):
            self._view.spend(1)
            if len(set(settled.nodes)) == spread:
                if len(kept) <= KEPT_CHOICES:
                    kept.append(settled)
                yield settled
        if len(kept) <= KEPT_CHOICES:
            self._by_spread[spread] = kept

    def _later(self, settled: Settled, level: int) -> Family:
        """The family of one choice of GPUs, not looked into before its turn comes."""

        def family() -> Iterator[Family]:
            drawn = self._begin(settled, level)
            if drawn is not None:
                yield drawn

        return self._least_of(settled, level), 1, next(self._numbers), family

    def _least_of(self, settled: Settled, level: int) -> int:
        """A bound on the objective of these GPUs: cells on the nearest nodes, as near to each other as can be.

        Named devices and those counted out later come on top.
        """
        distance = self._field.resources.distance
        devices = [node for node in settled.nodes if node is not None]
        toward = sorted(sum(distance(node, device) for device in devices) for node in self._field.resources.nodes)
        if not toward or isinstance(self._want.guest.numa, tuple):
            return self._scale.unit * toward[0] if toward else 0
        base = base_cells(self._field, self._want.guest, settled.gpus)
        cells = base.cells + max(0, level - self._has_own)
        nearest = min(self._pair.values(), default=0)
        return self._scale.unit * sum(toward[:cells]) // cells + nearest * (cells * (cells - 1) // 2)

    def _vgpus(self) -> list[Settled]:
        """Every way to have its MIG instances on what is left of the host's GPUs, best first."""
        if self._slots is None:
            taken = occupied(self._stock, self._view.left)
            sites = self._stock.sites.get(self._want.guest.mig.profile) if self._want.guest.mig else None
            ways = mig_choices(self._field, self._want.guest, taken, self._want.where, sites)
            self._slots = [self._of_slots(slots) for slots in islice(ways, MOST_SLOTS)]
            self.cut_off = len(self._slots) == MOST_SLOTS
        return self._slots

    def _of_slots(self, slots: tuple[MigSlot, ...]) -> Settled:
        nodes = tuple(self._field.catalogue.node(slot.gpu) for slot in slots)
        known = tuple(node if node in self._field.resources.nodes else None for node in nodes)
        gpus = tuple(sorted({slot.gpu for slot in slots}, key=address_key))
        return Settled((), known, 0, 0, gpus, slots=slots)

    def _picks(self, spread: int) -> Iterator[Picks]:
        """The GPUs that a guest names, the partitions that it may have, or every way to count them out."""
        sets = gpu_sets(self._want.candidates)
        for part in range(len(sets)):
            picks = self._all_of("set", part)
            if all(self._view.left[index] >= count for index, count in picks):
                yield picks
        if sets or not self._gpus:
            if not sets:
                yield ()
            return
        for part in range(len(gpu_pools(self._want))):
            by_node: dict[Node, list[Kind]] = {}
            for kind in self._stock.of((self._which, "gpu", part)):
                by_node.setdefault(kind.trait.node, []).append(kind)
            pool = [by_node[node] for node in sorted(by_node, key=lambda n: (n is None, n or 0))]
            yield from _count_out(pool, self._view.left, spread, self._gpus)

    def _all_of(self, what: str, part: int) -> Picks:
        """Every device of a list: those that are alike are in it together."""
        return tuple((kind.index, len(kind.bundles)) for kind in self._stock.of((self._which, what, part)))

    def _settled(self, picks: Picks) -> Settled:
        gpus: list[str] = []
        models: set[str | None] = set()
        nodes: list[Node] = []
        brought: set[str] = set()
        busy = 0
        for index, count in picks:
            kind = self._kinds[index]
            gpus += [address for bundle in kind.bundles[:count] for address in bundle]
            models |= kind.trait.models
            busy += kind.trait.busy * count
            brought.update(address for one in kind.members[:count] for address in one)
            nodes += [kind.trait.node] * (kind.trait.size * count)
        listed = bool(gpu_sets(self._want.candidates))  # what is named, or a partition, is as it was asked for
        mixed = 0 if listed else max(0, len(models) - 1)
        return Settled(picks, tuple(nodes), mixed, busy, tuple(gpus), frozenset(brought))

    # --- cells ----------------------------------------------------------------------------------------------------

    def _begin(self, settled: Settled, level: int) -> Family | None:
        """The family of one choice of GPUs at one level; None where no set of nodes could hold its cells."""
        self._view.spend(WORK_OF_A_CHOICE)
        field, guest = self._field, self._want.guest
        base = base_cells(field, guest, settled.gpus)
        own = level == 0 and self._has_own
        extra = max(0, level - self._has_own)
        cells = base.cells + extra
        if cells > len(field.resources.nodes) or (extra and not base.may_grow) or (own and base.nodes is None):
            return None
        cut_up = self._cut_up(settled, cells)
        if cut_up is None:
            return None
        cuts, twin, rooms = cut_up
        if own:
            rooms = [[node for node in room if node in (base.nodes or ())] for room in rooms]
            if not all(rooms):
                return None
        shape = cuts[0][1].shape
        named = self._settled(self._all_of("named", 0))
        given = settled.brought | named.brought
        known = [*(settled.nodes if settled.slots else ()), *self._nodes_of(given)]
        prices = Prices(
            shares=tuple(self._scale.unit * cell.vcpus // shape.vcpus for cell in shape.cells),
            to_devices=device_distances(field.resources, [node for node in known if node is not None]),
            pair=self._pair,
        )
        drawn = _Drawn(settled, extra, cuts, level, prices, given)
        return self._next(drawn, node_sets(prices, rooms, twin, self._halves))

    def _cut_up(self, settled: Settled, cells: int) -> CutUp | None:
        """The guest in so many cells: which of them are alike, and the nodes that could hold each; None: it cannot be.

        Only an `auto` size depends on the GPUs, and that on their nodes alone.
        """
        guest = self._want.guest
        auto = "auto" in (guest.vcpus, guest.memory)
        key = cells, (settled.nodes, settled.gpus if settled.slots else ()) if auto else ()
        if key not in self._cut_ups:
            parts = mig_share(self._field, settled.slots) if settled.slots else None
            cuts = tuple(enumerate(shapes(self._field, guest, settled.gpus, cells, parts)))
            demands = [[sizes.shape.cells[i] for _, sizes in cuts] for i in range(cells)]
            twin = [i > 0 and demands[i] == demands[i - 1] for i in range(cells)]
            rooms: list[list[int]] = []
            for i in range(cells):
                rooms.append(rooms[-1] if twin[i] else self._rooms(cuts, i))
            self._cut_ups[key] = (cuts, twin, rooms) if cuts and all(rooms) else None
        return self._cut_ups[key]

    def _rooms(self, cuts: Sequence[Cut], cell: int) -> list[int]:
        """The nodes that could hold a cell in some cut."""
        nodes = self._field.resources.nodes
        return [n for n in nodes if any(self._view.holds(n, s.shape.cells[cell], s.shape) for _, s in cuts)]

    def _holds(self, node: int, cell: CellDemand, shape: Shape) -> bool:
        return fits(self._field.resources.nodes[node], self._field.memory.get(node), cell, shape)

    def _next(self, drawn: _Drawn, source: Iterator[tuple[int, tuple[int, ...]]]) -> Family | None:
        """The family of the next set of nodes of a source, and of those that come after."""
        found = next(source, None)
        if found is None:
            return None
        cost, nodes = found

        def family() -> Iterator[Family | Option]:
            yield from self._options(drawn, cost, nodes)
            rest = self._next(drawn, source)
            if rest is not None:
                yield rest

        return cost, 0, next(self._numbers), family

    # --- options --------------------------------------------------------------------------------------------------

    def _options(self, drawn: _Drawn, cost: int, nodes: tuple[int, ...]) -> Iterator[Option]:
        """Every cut of the guest that could stand on these nodes, with every way to count out its NICs and drives."""
        settled = drawn.settled
        named = self._all_of("named", 0)
        ways = self._by_count(drawn, nodes)
        for order, sizes in drawn.cuts:
            pairs = list(zip(nodes, sizes.shape.cells, strict=True))
            if not all(self._view.holds(n, cell, sizes.shape) for n, cell in pairs):
                continue
            cells = self._cells_use(sizes.shape, nodes)
            memory = tuple((node, sizes.shape.page, cell.memory_bytes) for node, cell in pairs)
            self._view.spend(len(ways))
            for more, extra in ways:
                picks = (*settled.picks, *more)
                short = int(sizes.short)
                yield Option(
                    rank=self._scale.rank(
                        self._away(drawn.level), settled.mixed, cost + extra, short, settled.busy, order
                    ),
                    use=(*cells, *self._devices_use((*picks, *named)), *slots_use(self._stock, settled.slots)),
                    memory=memory,
                    nodes=nodes,
                    sizes=sizes,
                    picks=picks,
                    extra_cells=drawn.extra,
                    slots=settled.slots,
                )

    def _cells_use(self, shape: Shape, nodes: tuple[int, ...]) -> list[tuple[int, int]]:
        """Cores of each node, and the CPUs that sharers could have had."""
        found: list[tuple[int, int]] = []
        for node, cell in zip(nodes, shape.cells, strict=True):
            if shape.share_cores:
                found.append((self._stock.threads[node], cell.vcpus))
                continue
            cores = cores_needed(cell.vcpus, shape.threads)
            found += [(self._stock.cores[node, least], cores) for least in range(1, shape.threads + 1)]
            if self._stock.shares:
                found.append((self._stock.threads[node], cores * self._stock.narrowest[node, shape.threads]))
        return found

    def _devices_use(self, picks: Picks) -> list[tuple[int, int]]:
        """Bundles, and once each what they bring along."""
        also = {index: much for kind, _ in picks for index, much in self._kinds[kind].trait.also}
        return [*picks, *sorted(also.items())]

    def _by_count(self, drawn: _Drawn, nodes: tuple[int, ...]) -> list[tuple[Picks, int]]:
        """(NICs and drives by kind, what they add to the objective): every way, the cheapest first."""
        guest = self._want.guest
        nics = guest.nics.count if isinstance(guest.nics, NicRequest) else guest.nics
        ways: list[Picks] = [()]
        for what, count in (("nic", nics), ("nvme", guest.nvme)):
            if isinstance(count, int) and count:
                kinds = self._stock.of((self._which, what, 0))
                found = _handed_out(kinds, self._view.left, count)
                ways = [(*a, *b) for a in ways for b in found]
        return sorted(((way, self._cost(drawn, nodes, way)) for way in ways), key=lambda way: way[1])

    def _cost(self, drawn: _Drawn, nodes: tuple[int, ...], picks: Picks) -> int:
        """What devices add, with all that goes along: each function counts once, whoever brings it."""
        distance = self._field.resources.distance
        more = self._settled(picks).brought - drawn.given if picks else frozenset()
        return sum(
            share * distance(node, home)
            for home in self._nodes_of(more)
            for share, node in zip(drawn.prices.shares, nodes, strict=True)
        )

    def _nodes_of(self, addresses: frozenset[str]) -> list[int]:
        """The nodes of devices, as far as they are known."""
        found = (self._field.catalogue.node(address) for address in addresses)
        return sorted(node for node in found if node is not None and node in self._field.resources.nodes)


Cut = tuple[int, Sizes]  # its place in the order of preference
CutUp = tuple[tuple[Cut, ...], list[bool], list[list[int]]]


@dataclass(frozen=True)
class _Drawn:
    """A choice of GPUs and a number of cells: what every set of nodes for them has in common."""

    settled: Settled
    extra: int
    cuts: tuple[Cut, ...]
    level: int
    prices: Prices
    given: frozenset[str]  # its GPUs and named devices, and what goes along with them


def _count_out(pool: Sequence[Sequence[Kind]], left: Sequence[int], spread: int, wanted: int) -> Iterator[Picks]:
    """Every way to take so many devices over exactly so many nodes of a pool (its kinds by node)."""
    if not spread:
        if not wanted:
            yield ()
        return
    for i, here in enumerate(pool):
        if len(pool) - i < spread:
            return
        most = sum(kind.trait.size * left[kind.index] for kind in here)
        for size in range(1, min(most, wanted - spread + 1) + 1):
            for first in _handed_out(here, left, size):
                for rest in _count_out(pool[i + 1 :], left, spread - 1, wanted - size):
                    yield (*first, *rest)


def _handed_out(kinds: Sequence[Kind], left: Sequence[int], count: int) -> list[Picks]:
    """Every way to take exactly so many devices of some kinds."""
    if not count:
        return [()]
    if not kinds:
        return []
    kind, rest = kinds[0], kinds[1:]
    found: list[Picks] = []
    for bundles in range(min(left[kind.index], count // kind.trait.size), -1, -1):
        head: Picks = ((kind.index, bundles),) if bundles else ()
        found += [(*head, *tail) for tail in _handed_out(rest, left, count - bundles * kind.trait.size)]
    return found
