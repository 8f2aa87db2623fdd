"""Build the guests of one search one after the other, each on what the guests before it left.

Pure. A search decides amounts. Here they become addresses, cores, final `auto` sizes, and complete PlannedGuests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from hosttune.inventory.cores import fits
from hosttune.inventory.partitions import lost
from hosttune.inventory.sizing import LaterClaims, PlanningContext, enlarge
from hosttune.model.intent import NicRequest
from hosttune.model.plan import PlannedGuest, PlannedPin, Unplaced
from hosttune.model.values import CpuSet, address_key, parse_cpus
from hosttune.planning.guest.document import Devices, Placed, build_guest
from hosttune.planning.guest.reasons import Choice
from hosttune.planning.guest.reserve import pins_of, take
from hosttune.planning.mig.guest import plan_mig_guest
from hosttune.planning.mig.instances import mig_share
from hosttune.planning.request.nearest import can_be_counted, dealt, remoteness
from hosttune.planning.request.resource_pool import Kind
from hosttune.planning.search.branch_and_bound import Found
from hosttune.planning.search.problem import PlacementProblem


class Builder:
    """Builds the guests of one search, each on what the guests before it left."""

    def __init__(self, problem: PlacementProblem, found: Found) -> None:
        self._wants, self._stock = problem.wants, problem.resource_pool
        self._placements = {i: placement for i, placement in enumerate(found.placements) if placement is not None}
        self._field = replace(problem.context, own={**problem.context.own, **dict(self._needed(problem.context))})

    def build(self) -> list[Placed | Unplaced | None]:
        """Return the result of each guest; None = the search left it out."""
        context = self._field
        taken: set[str] = set()
        functions: set[str] = set()
        built: dict[int, Placed | Unplaced] = {}
        ready: list[tuple[int, PlanningContext, Devices]] = []
        order = self._order()
        for turn, i in enumerate(order):
            devices = self._devices(context, i, taken, functions, order[turn + 1 :])
            functions.update(devices.functions)
            missing = self._missing(context, i, devices)
            placed = missing or build_guest(context, self._wants[i].guest, devices)
            built[i] = placed
            if isinstance(placed, Placed):
                ready.append((i, context, devices))
                if order[turn + 1 :]:
                    context = take(
                        context,
                        msgspec.structs.replace(placed.guest, emulator_cpus="", iothread_cpus=()),
                        exclusive=placed.exclusive,
                    )
                taken.update(device.address for device in placed.guest.devices)
        pins = {i: pins_of(outcome.guest) for i, outcome in built.items() if isinstance(outcome, Placed)}
        everyone = CpuSet(cpu for own in pins.values() for cpu in own)
        for i, before, devices in ready:
            outcome = built[i]
            if isinstance(outcome, Placed) and not _service(outcome).isdisjoint(everyone - pins[i]):
                built[i] = build_guest(before, self._wants[i].guest, devices, CpuSet(everyone - pins[i]))
        return [built.get(i) for i in range(len(self._wants))]

    def _needed(self, context: PlanningContext) -> Iterator[tuple[str, PlannedGuest]]:
        """Yield what guests have had and can have, without CPUs that they do not need there: those are anybody's."""
        for i, placement in self._placements.items():
            had = context.own.get(self._wants[i].guest.name)
            if had is not None and not placement.sizes.short:
                pins: list[PlannedPin] = []
                for node, cell in zip(placement.nodes, placement.sizes.shape.cells, strict=True):
                    here = {cpu for core in context.resources.nodes[node].free for cpu in core.cpus}
                    pins += [pin for pin in had.vcpu_pins if int(pin.cpus) in here][: cell.vcpus]
                yield had.name, msgspec.structs.replace(had, vcpu_pins=tuple(pins))

    def _missing(self, context: PlanningContext, which: int, devices: Devices) -> Unplaced | None:
        """Return a reason to refuse a guest that the amounts of the search do not show.

        A cell may not fit the cores that are left (cores differ in width), and NICs may conflict with its GPUs.
        """
        guest, choice = self._wants[which].guest, devices.choice
        for node, cell in zip(choice.nodes, choice.shape.cells, strict=True):
            if not fits(context.resources.nodes[node], context.memory.get(node), cell, choice.shape):
                return Unplaced(
                    guest=guest.name, why=(f"what is left of node {node} does not hold a cell as it was cut",)
                )
        nics = guest.nics.count if isinstance(guest.nics, NicRequest) else guest.nics
        wanted = sum(count for count in (nics, guest.nvme) if isinstance(count, int))
        if len(devices.counted) < wanted:
            why = f"{len(devices.counted)} of {wanted} NICs and drives can go along with its other devices"
            return Unplaced(guest=guest.name, why=(why,))
        return None

    def _order(self) -> list[int]:
        """Return the order of building: guests of fixed size, then those that take what is left, then those that share
        cores.
        """

        def late(i: int) -> tuple[bool, bool, int]:
            return self._placements[i].sizes.shape.share_cores, self._placements[i].sizes.short, i

        return sorted(self._placements, key=late)

    def _devices(
        self, context: PlanningContext, which: int, taken: set[str], functions: set[str], later: Sequence[int]
    ) -> Devices:
        """Return the addresses of the devices that the search gave a guest by kind, and the guest's final size."""
        want, placement = self._wants[which], self._placements[which]
        turns = context.turns(want.guest.name)
        gpus: list[str] = []
        counted: list[str] = []
        for index, count in placement.picks:
            kind = self._stock.kind(index)
            if kind.trait.of_gpus:
                left = [bundle for bundle in kind.bundles if taken.isdisjoint(bundle)]
                left.sort(key=lambda group: (turns.get(group[0], 1), lost(context.catalogue.fabric, group)))
                gpus += [address for bundle in left[:count] for address in bundle]
        own_gpus = tuple(sorted(gpus, key=address_key))
        near = own_gpus or tuple(sorted({slot.gpu for slot in placement.slots}, key=address_key))
        for what in ("nic", "nvme"):
            counted += self._nearest(context, which, what, near, (*own_gpus, *want.named, *counted), taken, later)
        claims_of_later: dict[int, LaterClaims] = {}
        for i in later:
            sizes = self._placements[i].sizes
            for node, cell in zip(self._placements[i].nodes, sizes.shape.cells, strict=True):
                before = claims_of_later.get(node, LaterClaims())
                claims_of_later[node] = LaterClaims(
                    before.cpus + cell.vcpus,
                    before.memory_bytes + cell.memory_bytes,
                    before.sharers + sizes.short,
                )
        parts = mig_share(context, placement.slots) if placement.slots else None
        shape = enlarge(context, placement.sizes, want.guest, near, placement.nodes, claims_of_later, parts)
        short, extra = placement.sizes.short, placement.extra_cells
        choice = Choice(own_gpus, placement.nodes, shape, short, extra, placement.slots, parts)
        vgpus = plan_mig_guest(context, want.guest, placement.slots, functions) if placement.slots else None
        return Devices.of(context, choice, want.named, tuple(counted), vgpus)

    def _nearest(
        self,
        context: PlanningContext,
        which: int,
        what: str,
        gpus: tuple[str, ...],
        own: tuple[str, ...],
        taken: set[str],
        later: Sequence[int],
    ) -> list[str]:
        """Return NICs or drives, as many from each node as was decided, the nearest pairs of device and GPU first.

        Devices of one node have the same cost. So any of them can be used that was not given to a later guest.
        """
        placement = self._placements[which]
        kinds = {kind.index: kind for kind in self._stock.of((which, what, 0))}
        needed = Counter[tuple[int | None, ...]]()
        for index, count in placement.picks:
            if index in kinds:
                needed[_home(kinds[index])] += count
        gone = {*taken, *own, *(address for i in later for address in self._wants[i].named)}
        kind_of = {device: kind for kind in kinds.values() for (device,) in kind.bundles if device not in gone}
        spare = Counter(kind.index for kind in kind_of.values())
        for i in later:
            spare.subtract(dict(self._placements[i].picks))
        chosen: list[str] = []

        def claim(device: str) -> bool:
            kind = kind_of[device]
            may = needed[_home(kind)] > 0 and spare[kind.index] > 0
            if not may or not can_be_counted(context, device, (*own, *chosen)):
                return False
            needed[_home(kind)] -= 1
            spare[kind.index] -= 1
            chosen.append(device)
            return True

        pairs: list[tuple[str, str | None]] = [(device, gpu) for device in kind_of for gpu in gpus or (None,)]
        turns = context.turns(self._wants[which].guest.name)
        pairs.sort(key=lambda pair: (turns.get(pair[0], 1), remoteness(context, pair[0], pair[1], placement.nodes)))
        dealt(pairs, needed.total(), claim)
        return chosen


def _home(kind: Kind) -> tuple[int | None, ...]:
    """Return the nodes that decide what a NIC or drive costs."""
    return kind.trait.node, *kind.trait.along


def _service(placed: Placed) -> CpuSet:
    service = (placed.guest.emulator_cpus, *placed.guest.iothread_cpus)
    return CpuSet(cpu for cpus in service for cpu in parse_cpus(cpus))
