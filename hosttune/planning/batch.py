"""Several guests, one decision: which of them fit together, on which nodes, with which devices.

Pure. Guests that cannot be placed even alone are told so for themselves. The others are decided together (`search`):
the most guests, then the contract's objective; then each is built, one after the other, on what the others leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hosttune.errors import BadInput
from hosttune.model.intent import GuestIntent
from hosttune.model.plan import Finding, PlannedGuest, Unplaced
from hosttune.model.values import CpuSet, parse_address, parse_cpus
from hosttune.planning.candidates import gpu_candidates
from hosttune.planning.choice import Choice
from hosttune.planning.devices import address_key, named_gpus
from hosttune.planning.fabric import lost
from hosttune.planning.guests import Devices, Placed, build_guest, fits_alone, named_of, place_guest
from hosttune.planning.mig import is_vgpu_guest, mig_changes, mig_refusal, mig_share
from hosttune.planning.migguest import plan_mig_guest
from hosttune.planning.nearest import pick
from hosttune.planning.placement import Placement, cost_of
from hosttune.planning.relax import shortage
from hosttune.planning.search import Found, Stage, all_fit, best_of, set_stage
from hosttune.planning.sizing import Field, Spoken, enlarge
from hosttune.planning.stock import Want
from hosttune.planning.taking import take

MOST_RIVALS = 32  # guests among which a smallest set that is in the way is looked for
Outcome = Placed | Unplaced
Asked = tuple[int, Want]  # its place in the intent


def want_of(field: Field, guest: GuestIntent, where: str) -> Want:
    """A guest with the devices that it names and the sets of GPUs that it may have. Raises BadInput."""
    named = named_of(field, guest, where)
    return Want(guest, where, named, gpu_candidates(field, guest, named, f"{where}.gpus"))


def check_apart(field: Field, wants: Sequence[Want]) -> None:
    """Refuse (BadInput, with the path of the later key) a device that two guests name."""
    names: dict[str, str] = {}
    for want in wants:
        gpus = want.guest.gpus if isinstance(want.guest.gpus, tuple) else ()
        keys = {**dict.fromkeys(named_gpus(field.catalogue, gpus, f"{want.where}.gpus"), "gpus")}
        keys |= {address: "nics" if address in _nics(want) else "nvme" for address in want.named}
        for address, key in keys.items():
            if address in names:
                raise BadInput(
                    f"{address} is named by guests {names[address]} and {want.guest.name}",
                    where=f"{want.where}.{key}",
                    hint="a device goes to one guest: name another, or ask for a number of them",
                )
            names[address] = want.guest.name


def _nics(want: Want) -> frozenset[str]:
    nics = want.guest.nics if isinstance(want.guest.nics, tuple) else ()
    return frozenset(parse_address(text, where=f"{want.where}.nics") for text in nics)


def place_guests(field: Field, wants: Sequence[Want]) -> tuple[tuple[Outcome, ...], tuple[Finding, ...]]:
    """(what became of each guest, findings about the whole)."""
    if len(wants) == 1 and not is_vgpu_guest(wants[0].guest):
        return (place_guest(field, wants[0].guest, wants[0].where),), ()
    outcomes: dict[int, Outcome] = {}
    asked: list[Asked] = []
    for i, want in enumerate(wants):
        if is_vgpu_guest(want.guest):
            refused = _no_vgpu(field, want)
            if refused is None:
                asked.append((i, want))
            else:
                outcomes[i] = refused
        elif fits_alone(field, want.guest, want.where):
            asked.append((i, want))
        else:
            outcomes[i] = place_guest(field, want.guest, want.where)
    findings: list[Finding] = []
    while asked:
        stage = set_stage(field, [want for _, want in asked])
        found = best_of(stage)
        built = _Builder(stage, found).build()
        failed = [n for n, outcome in enumerate(built) if isinstance(outcome, Unplaced)]
        if not failed:
            findings += _doubts(found)
            break
        for n in failed:  # what no amount shows (bus numbers, address space) ends it for this guest alone
            outcomes[asked[n][0]] = built[n]  # type: ignore[assignment]
        asked = [one for n, one in enumerate(asked) if n not in failed]
    else:
        return tuple(outcomes[i] for i in range(len(wants))), ()
    for (i, _), outcome in zip(asked, built, strict=True):
        if outcome is not None:
            outcomes[i] = outcome
    after = field
    for outcome in outcomes.values():
        if isinstance(outcome, Placed):
            after = take(after, outcome.guest)
    left = [n for n, outcome in enumerate(built) if outcome is None]
    for n in left:
        outcomes[asked[n][0]] = _left_out(stage, after, n, found)
    return tuple(outcomes[i] for i in range(len(wants))), tuple(findings)


def _doubts(found: Found) -> list[Finding]:
    """Where the search was cut off, the plan holds but may not be the best."""
    if found.proven:
        return []
    text = (
        "the search for the best plan was cut off: this one is valid, but more guests or nearer nodes may be possible"
    )
    return [Finding(level="warn", text=text, where="guests")]


def _left_out(stage: Stage, after: Field, which: int, found: Found) -> Unplaced:
    """Why a guest that would fit alone has no place, and what would give it one beside the others as they are."""
    want = stage.wants[which]
    placed = [i for i, option in enumerate(found.options) if option is not None]
    if is_vgpu_guest(want.guest):
        line = f"no GPU has room for {_instances(want.guest)} beside what they take"
        beside: Outcome = Unplaced(guest=want.guest.name, why=(line,), relaxation=_other_mig(stage, which, placed))
    else:
        beside = place_guest(after, want.guest, want.where)
    rivals = [stage.wants[i].guest.name for i in _in_the_way(stage, which, placed)]
    why = f"alone it fits; it has no place beside {_listed(rivals)}"
    if isinstance(beside, Placed):
        return Unplaced(guest=want.guest.name, why=(why, "the search was cut off before it found one"))
    return msgspec.structs.replace(beside, why=(why, *beside.why))


def _in_the_way(stage: Stage, which: int, placed: Sequence[int]) -> list[int]:
    """Placed guests beside which it does not fit, none of whom can be left out of that."""
    rivals = list(placed)
    for other in placed if len(placed) <= MOST_RIVALS else ():
        fewer = [i for i in rivals if i != other]
        if not all_fit(stage, (*fewer, which)):
            rivals = fewer
    return rivals


def _no_vgpu(field: Field, want: Want) -> Unplaced | None:
    """Why a guest cannot have its vGPUs even alone, and what it could have instead; None where it can."""
    stage = set_stage(field, [want])
    if all_fit(stage, [0]):
        return None
    refused = mig_refusal(field, want.guest)
    why = refused or shortage(field, want.guest, want.candidates)
    return Unplaced(guest=want.guest.name, why=why, relaxation=_other_mig(stage, 0, ()))


def _instances(guest: GuestIntent) -> str:
    return f"{guest.mig.count} x {guest.mig.profile}" if guest.mig else "nothing"


def _other_mig(stage: Stage, which: int, placed: Sequence[int]) -> tuple[str, ...]:
    """Other ways to ask for MIG with each of which a guest would be placed beside these, each tried."""
    want = stage.wants[which]
    helpful: list[str] = []
    for text, changed in mig_changes(stage.field, want.guest):
        try:
            other = want_of(stage.field, changed, want.where)
        except BadInput:
            continue
        trial = set_stage(stage.field, [*(stage.wants[i] for i in placed), other])
        if all_fit(trial, range(len(trial.wants))):
            helpful.append(text)
    return tuple(helpful)


def _listed(names: Sequence[str]) -> str:
    head = ", ".join(names[:-1])
    return f"{'guests' if head else 'guest'} {f'{head} and ' if head else ''}{names[-1] if names else '(none)'}"


# --- from amounts to devices and cores ---------------------------------------------------------------------------


class _Builder:
    """Builds the guests of one search, each on what those before it left."""

    def __init__(self, stage: Stage, found: Found) -> None:
        self._field, self._wants = stage.field, stage.wants
        self._options = {i: option for i, option in enumerate(found.options) if option is not None}
        self._kinds = {kind.index: kind for kind in stage.stock.kinds}

    def build(self) -> list[Placed | Unplaced | None]:
        """What became of each guest; None = the search left it out."""
        field = self._field
        taken: set[str] = set()
        functions: set[str] = set()
        built: dict[int, Placed | Unplaced] = {}
        ready: list[tuple[int, Field, Devices]] = []
        order = self._order()
        for turn, i in enumerate(order):
            devices = self._devices(field, i, taken, functions, order[turn + 1 :])
            functions.update(devices.functions)
            placed = build_guest(field, self._wants[i].guest, devices)
            built[i] = placed
            if isinstance(placed, Placed):
                ready.append((i, field, devices))
                field = take(field, _unserved(placed))
                taken.update(device.address for device in placed.guest.devices)
        pins = {i: _pins(outcome) for i, outcome in built.items()}
        everyone = CpuSet(cpu for own in pins.values() for cpu in own)
        for i, before, devices in ready:
            outcome = built[i]
            if isinstance(outcome, Placed) and not _service(outcome).isdisjoint(everyone - pins[i]):
                built[i] = build_guest(before, self._wants[i].guest, devices, CpuSet(everyone - pins[i]))
        return [built.get(i) for i in range(len(self._wants))]

    def _order(self) -> list[int]:
        """Those of fixed size first, then those that take what is left, then those that share cores."""

        def late(i: int) -> tuple[bool, bool, int]:
            return self._options[i].sizes.shape.share_cores, self._options[i].sizes.short, i

        return sorted(self._options, key=late)

    def _devices(self, field: Field, which: int, taken: set[str], functions: set[str], later: Sequence[int]) -> Devices:
        """Addresses for the kinds that a guest was given, and its final size."""
        want, option = self._wants[which], self._options[which]
        gpus: list[str] = []
        counted: list[str] = []
        for index, count in option.picks:
            kind = self._kinds[index]
            if kind.trait.of_gpus:
                left = [bundle for bundle in kind.bundles if taken.isdisjoint(bundle)]
                left.sort(key=lambda bundle: lost(field.catalogue.fabric, bundle))  # else by address, as they are
                gpus += [address for bundle in left[:count] for address in bundle]
        mine = tuple(sorted(gpus, key=address_key))
        near = mine or tuple(sorted({slot.gpu for slot in option.slots}, key=address_key))
        for what in ("nic", "nvme"):
            counted += self._nearest(field, which, what, near, (*mine, *want.named, *counted), taken, later)
        spoken = self._spoken(later)
        parts = mig_share(field, option.slots) if option.slots else None
        shape = enlarge(field, option.sizes, want.guest, near, option.nodes, spoken, parts)
        cut = (slot.gpu for slot in option.slots)
        nodes = [field.catalogue.node(address) for address in (*mine, *cut, *want.named, *counted)]
        homes = [node for node in nodes if node is not None and node in field.resources.nodes]
        cost = cost_of(shape, field.resources, option.nodes, homes)
        placement = Placement(option.nodes, cost, 0)
        choice = Choice(mine, placement, shape, option.sizes.short, option.extra_cells, option.slots, parts)
        vgpus = plan_mig_guest(field, want.guest, option.slots, functions) if option.slots else None
        return Devices.of(field, choice, want.named, tuple(counted), vgpus)

    def _nearest(
        self,
        field: Field,
        which: int,
        what: str,
        gpus: tuple[str, ...],
        own: tuple[str, ...],
        taken: set[str],
        later: Sequence[int],
    ) -> list[str]:
        """NICs or drives by count, as many of each node as was decided: each GPU in turn takes the nearest there is.

        Devices of one node cost the same, so that any of them will do that no later guest was given.
        """
        option = self._options[which]
        kinds = [kind for kind in self._kinds.values() if (which, what, 0) in kind.trait.labels]
        needed: dict[tuple[int | None, ...], int] = {}
        for index, count in option.picks:
            if any(kind.index == index for kind in kinds):
                home = self._kinds[index].trait.node, *self._kinds[index].trait.along
                needed[home] = needed.get(home, 0) + count
        chosen: list[str] = []
        gone = {*taken, *own, *(address for i in later for address in self._wants[i].named)}
        for home, count in needed.items():
            for _ in range(count):
                pool: list[str] = []
                for kind in kinds:
                    free = [a for (a,) in kind.bundles if a not in gone and a not in chosen]
                    spare = len(free) - sum(n for i in later for k, n in self._options[i].picks if k == kind.index)
                    pool += free if (kind.trait.node, *kind.trait.along) == home and spare > 0 else []
                gpu = (gpus[len(chosen) % len(gpus)],) if gpus else ()
                chosen += pick(field, pool, 1, gpu, option.nodes, (*own, *chosen))
        return chosen

    def _spoken(self, later: Sequence[int]) -> Mapping[int, Spoken]:
        """What guests whose turn comes later need of each node at the least."""
        found: dict[int, Spoken] = {}
        for i in later:
            sizes = self._options[i].sizes
            for node, cell in zip(self._options[i].nodes, sizes.shape.cells, strict=True):
                before = found.get(node, Spoken())
                found[node] = Spoken(
                    before.cpus + cell.vcpus,
                    before.memory_bytes + cell.memory_bytes,
                    before.sharers + sizes.short,
                )
        return found


def _pins(outcome: Placed | Unplaced) -> CpuSet:
    if isinstance(outcome, Unplaced):
        return CpuSet()
    return CpuSet(cpu for pin in outcome.guest.vcpu_pins for cpu in parse_cpus(pin.cpus))


def _service(placed: Placed) -> CpuSet:
    service = (placed.guest.emulator_cpus, *placed.guest.iothread_cpus)
    return CpuSet(cpu for cpus in service for cpu in parse_cpus(cpus))


def _unserved(placed: Placed) -> PlannedGuest:
    """The guest without its emulator threads: those make room for whoever is planned with it."""
    return msgspec.structs.replace(placed.guest, emulator_cpus="", iothread_cpus=())
