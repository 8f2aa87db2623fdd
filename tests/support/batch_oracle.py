"""Several guests, one decision: the most guests that fit, and the least objective with that, by CP-SAT.

Written from the contract and the requirement alone; imports nothing that it judges. Exact in this order: guests
placed; then the fewest extra cells; then Σ over guests of [Σ over cells and devices of (the cell's share of the
guest's vCPUs) × distance(cell's node, device's node) + Σ over unordered pairs of cells of their distance].

The second is how `numa: auto` ("one cell on each node that holds one of the guest's GPUs, … more only where that does
not fit") is read for several guests: a guest's level is 0 with its own cells, 1 + e with e cells more than their
number, on any nodes; the sum of levels is least. `Reading.free` leaves it out: the objective alone chooses.

Devices alike to every guest are one class (`batch_facts.Class`), so that guests ask for numbers of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import combinations
from math import lcm

from batch_brute import Again, Had
from batch_facts import Ask, CellKind, Class, Cut, Room, asks_of, room_of
from ortools.sat.python import cp_model
from plan_facts import Json

SECONDS = 60.0
GPUS = ("gpus", "other")


class Reading(Enum):
    """How `numa: auto` weighs a guest's extra cells: before the objective, or not at all."""

    LEVELS = "levels"
    FREE = "free"


@dataclass(frozen=True)
class Optimum:
    """What the best plan reaches. `guests`: name -> (nodes of its cells, devices of each class), as a witness."""

    placed: int
    levels: int
    objective: Fraction
    guests: dict[str, tuple[tuple[int, ...], Counter[Class]]]


def solve(host: Json, intent: Json, reading: Reading = Reading.LEVELS) -> Optimum:
    """The optimum for the guests of an intent on a host; `Undecided` where the contract is open."""
    return optimum(room_of(host, intent), asks_of(host, intent), reading)


def optimum(room: Room, asks: list[Ask], reading: Reading = Reading.LEVELS) -> Optimum:
    """The same for a room and asks. Each goal is solved to proven optimality, then held while the next is."""
    model = _Model(room, asks)
    goals = [-cp_model.LinearExpr.sum([guest.placed for guest in model.guests])]
    if reading is Reading.LEVELS and any(guest.level is not None for guest in model.guests):
        goals.append(cp_model.LinearExpr.sum([g.level for g in model.guests if g.level is not None]))
    goals.append(cp_model.LinearExpr.sum([guest.cost for guest in model.guests]))
    for goal in goals:
        solver = model.least(goal)
    names = [g.ask.name for g in model.guests if solver.value(g.placed)]
    levels = sum(solver.value(g.level) for g in model.guests if g.level is not None)
    objective = Fraction(sum(solver.value(g.cost) for g in model.guests), model.scale)
    return Optimum(len(names), levels, objective, {g.ask.name: g.found(solver) for g in model.guests})


def again(room: Room, asks: list[Ask], had: Mapping[str, Had]) -> Again:
    """The best beside guests that stay: left out, devices moved, Σ levels, cells and vCPUs moved, objective.

    What each part means says `batch_brute.best_again`, which tries everything.
    """
    model = _Model(room, asks, had)
    rows = [guest.moves(had[guest.ask.name]) for guest in model.guests if guest.ask.name in had]
    devices, cells, vcpus = ([row[at] for row in rows] for at in range(3))
    left = [1 - guest.placed for guest in model.guests]
    levels = [guest.level for guest in model.guests if guest.level is not None]
    goals = [cp_model.LinearExpr.sum(one) for one in (left, devices, levels, cells, vcpus)]
    goals.append(cp_model.LinearExpr.sum([guest.cost for guest in model.guests]))
    out, moved, level, other, pins, cost = [round(model.least(goal).objective_value) for goal in goals]
    return out, moved, level, other, pins, Fraction(cost, model.scale)


class _Model:
    """The constraints that the guests share: cores, threads, memory and devices of each node."""

    def __init__(self, room: Room, asks: list[Ask], had: Mapping[str, Had] | None = None) -> None:
        self.room, self.model = room, cp_model.CpModel()
        self.scale = lcm(*(ask.share(k, cut).denominator for ask in asks for cut in ask.cuts for k in cut.kinds))
        self.guests = [_Guest(self.model, room, ask, self.scale) for ask in asks]
        self._cores()
        self._memory()
        for kind, free in room.devices.items():
            self.model.add(sum(guest.taken[kind] for guest in self.guests if kind in guest.taken) <= free)
        self._alike(had or {})

    def least(self, goal: cp_model.LinearExprT) -> cp_model.CpSolver:
        """Minimise, prove, and hold the goal at its least from now on."""
        self.model.minimize(goal)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        solver.parameters.max_time_in_seconds = SECONDS
        status = solver.solve(self.model)
        assert status == cp_model.OPTIMAL, solver.status_name(status)
        self.model.add(goal == round(solver.objective_value))
        return solver

    def _cores(self) -> None:
        """[intent] smt: whole cores of no other guest; `threads` may share what whole-core guests leave."""
        for node in self.room.nodes:
            cores, threads = [], []
            for guest in self.guests:
                for cell in guest.cells:
                    whole = -(-cell.kind.vcpus // self.room.width)
                    cores += [] if guest.ask.threads else [whole * cell.on[node]]
                    threads += [cell.kind.vcpus * cell.on[node]] if guest.ask.threads else []
            self.model.add(sum(cores) <= self.room.cores[node])
            if threads:
                self.model.add(sum(threads) + self.room.width * sum(cores) <= self.room.threads[node])

    def _memory(self) -> None:
        """[inv] whole pages of the cell's node that are free or that an action reserves."""
        sizes = sorted({cell.page for guest in self.guests for cell in guest.cells})
        for node in self.room.nodes:
            grown = []
            for page in sizes:
                cells = [cell for guest in self.guests for cell in guest.cells if cell.page == page]
                used = sum(cell.kind.bytes // page * cell.on[node] for cell in cells)
                new = self.model.new_int_var(0, self.room.growth[node] // page, f"new {node} {page}")
                self.model.add(new >= used - self.room.pages.get((node, page), 0))
                grown.append(new * (page >> 12))
            self.model.add(sum(grown) <= self.room.growth[node] >> 12)

    def _alike(self, had: Mapping[str, Had]) -> None:
        """Guests that ask the same are placed in their order: what they exchange changes nothing."""
        for a, b in combinations((one for one in self.guests if one.ask.name not in had), 2):
            if (a.ask.counts, a.ask.fixed, a.ask.cuts) == (b.ask.counts, b.ask.fixed, b.ask.cuts) and (
                a.ask.follows,
                a.ask.threads,
            ) == (b.ask.follows, b.ask.threads):
                self.model.add_implication(b.placed, a.placed)


@dataclass(frozen=True)
class _Cell:
    """Equal cells of one cut: `on[node]` = one of them is there."""

    kind: CellKind
    page: int
    on: dict[int, cp_model.IntVar]


class _Guest:
    """The variables of one guest: whether it is placed, its cut, its cells' nodes, its devices, level and cost."""

    def __init__(self, model: cp_model.CpModel, room: Room, ask: Ask, scale: int) -> None:
        self.model, self.room, self.ask, self.scale = model, room, ask, scale
        self.placed = model.new_bool_var(f"{ask.name} placed")
        self.cuts = [(cut, model.new_bool_var(f"{ask.name} cut {i}")) for i, cut in enumerate(_useful(room, ask))]
        model.add(sum(chosen for _, chosen in self.cuts) == self.placed)
        self.taken = self._devices()
        self.cells: list[_Cell] = []
        self.kinds: list[tuple[Cut, cp_model.IntVar, list[_Cell]]] = [
            (cut, chosen, [self._cell(cut, chosen, kind) for kind in cut.kinds]) for cut, chosen in self.cuts
        ]
        for _, chosen, cells in self.kinds:
            for node in room.nodes:
                model.add(sum(cell.on[node] for cell in cells) <= chosen)  # [intent] a node of its own
        self.there = {node: sum(cell.on[node] for cell in self.cells) for node in room.nodes}
        self.level = self._level() if ask.follows else None
        self.cost = self._cost()

    def found(self, solver: cp_model.CpSolver) -> tuple[tuple[int, ...], Counter[Class]]:
        """Nodes of the cells and devices of each class in a solution."""
        nodes = tuple(node for node in self.room.nodes if any(solver.value(cell.on[node]) for cell in self.cells))
        return nodes, Counter({kind: n for kind, count in self.taken.items() if (n := solver.value(count))})

    def _devices(self) -> dict[Class, cp_model.LinearExprT]:
        """Devices of each class that the guest takes: those it names, and its counts of each pool."""
        taken: dict[Class, cp_model.LinearExprT] = {k: n * self.placed for k, n in self.ask.fixed.items()}
        for pool, count in self.ask.counts.items():
            classes = [kind for kind in self.room.devices if kind.pool == pool]
            chosen = [self.model.new_int_var(0, min(count, self.room.devices[k]), f"{k}") for k in classes]
            self.model.add(sum(chosen) == count * self.placed)
            taken |= dict(zip(classes, chosen, strict=True))
        return taken

    def _cell(self, cut: Cut, chosen: cp_model.IntVar, kind: CellKind) -> _Cell:
        on = {node: self.model.new_bool_var(f"{self.ask.name} {kind} {node}") for node in self.room.nodes}
        self.model.add(sum(on.values()) == kind.cells * chosen)
        cell = _Cell(kind, cut.page, on)
        self.cells.append(cell)
        return cell

    def moves(self, had: Had) -> tuple[cp_model.LinearExprT, cp_model.LinearExprT, cp_model.LinearExprT]:
        """How many devices, cells' nodes and vCPUs it has and had not before."""
        devices = [self._beyond(count, had.devices[kind]) for kind, count in self.taken.items()]
        on = {node: sum(cell.kind.vcpus * cell.on[node] for cell in self.cells) for node in self.room.nodes}
        vcpus = [self._beyond(count, had.vcpus[node]) for node, count in on.items()]
        return sum(devices), sum(there for node, there in self.there.items() if node not in had.vcpus), sum(vcpus)

    def _beyond(self, count: cp_model.LinearExprT, had: int) -> cp_model.IntVar:
        more = self.model.new_int_var(0, 1 << 16, f"{self.ask.name} more")
        self.model.add(more >= count - had)
        return more

    # --- numa: auto ---

    def _level(self) -> cp_model.IntVar:
        """0: one cell on each node that holds one of its GPUs (one cell without any); else 1 + cells more."""
        model, nodes, name = self.model, self.room.nodes, self.ask.name
        holds = {node: self._holds(node) for node in nodes}
        own = model.new_bool_var(f"{name} own")
        base = model.new_int_var(1, len(nodes), f"{name} base")
        model.add_max_equality(base, [sum(holds.values()), 1])
        count = sum(self.there.values())
        model.add(count >= base).only_enforce_if(self.placed)
        some = model.new_bool_var(f"{name} some")
        model.add_max_equality(some, [holds[node] for node in nodes])
        for node in nodes:
            model.add(self.there[node] == holds[node]).only_enforce_if([own, some, self.placed])
        model.add(count == base).only_enforce_if([own, self.placed])
        level = model.new_int_var(0, len(nodes), f"{name} level")
        model.add(level == 0).only_enforce_if(~self.placed)
        model.add(level >= 1 + count - base).only_enforce_if([~own, self.placed])
        return level

    def _holds(self, node: int) -> cp_model.IntVar:
        """Whether the node holds one of the guest's GPUs; none does where it names one of unknown node."""
        found = self.model.new_bool_var(f"{self.ask.name} holds {node}")
        lost = any(kind.pool in GPUS and kind.node is None for kind in self.ask.fixed)
        here = [count for kind, count in self.taken.items() if kind.pool in GPUS and kind.node == node and not lost]
        total = sum(here)
        if not here:
            self.model.add(found == 0)
            return found
        self.model.add(total >= 1).only_enforce_if(found)
        self.model.add(total == 0).only_enforce_if(~found)
        return found

    # --- the objective ---

    def _cost(self) -> cp_model.IntVar:
        """The guest's part of the objective, times the scale that makes every share a whole number."""
        pairs = [self._both(a, b) * self.room.distance[a, b] * self.scale for a, b in combinations(self.room.nodes, 2)]
        near = [term for cut, chosen, cells in self.kinds for term in self._near(cut, chosen, cells)]
        cost = self.model.new_int_var(0, 1 << 50, f"{self.ask.name} cost")
        self.model.add(cost == cp_model.LinearExpr.sum([*pairs, *near]))
        return cost

    def _both(self, a: int, b: int) -> cp_model.IntVar:
        both = self.model.new_bool_var(f"{self.ask.name} {a} and {b}")
        self.model.add(both >= self.there[a] + self.there[b] - 1)
        self.model.add(both <= self.there[a])
        self.model.add(both <= self.there[b])
        return both

    def _near(self, cut: Cut, chosen: cp_model.IntVar, cells: list[_Cell]) -> Iterable[cp_model.LinearExprT]:
        """Each device meets each cell: (functions of the node, while this cut is chosen) × distance × share."""
        for place, count, most in self._functions():
            here = self.model.new_int_var(0, most, f"{self.ask.name} {cut} {place}")
            self.model.add(here <= most * chosen)
            self.model.add(here == count).only_enforce_if(chosen)
            for cell in cells:
                share = self.ask.share(cell.kind, cut) * self.scale
                assert share.denominator == 1
                met = [self.model.new_int_var(0, most, f"met {place} {node}") for node in self.room.nodes]
                self.model.add(sum(met) == cell.kind.cells * here)
                for node, number in zip(self.room.nodes, met, strict=True):
                    self.model.add(number <= here)
                    self.model.add(number <= most * cell.on[node])
                    yield number * (self.room.near(node, place) * share.numerator)

    def _functions(self) -> Iterable[tuple[int, cp_model.LinearExprT, int]]:
        """(node, functions that the guest is given there, at most so many) of each known node."""
        for place in self.room.nodes:
            kinds = [kind for kind in self.taken if kind.node == place]
            most = sum(kind.functions * max(self.ask.fixed[kind], self.room.devices[kind]) for kind in kinds)
            if most:
                yield place, sum(self.taken[kind] * kind.functions for kind in kinds), most


def _useful(room: Room, ask: Ask) -> list[Cut]:
    """The guest's cuts; of those that differ in page size alone the smallest, where no pages are free anyway."""
    if any(room.pages.values()):
        return list(ask.cuts)
    least = min((cut.page for cut in ask.cuts), default=0)
    return [cut for cut in ask.cuts if cut.page == least]
