"""The resources for which guests compete, as numbers: cores, threads and devices of a host, each with its amount.

Pure. Devices that are equal for every guest (same node, same model, wanted by the same guests) are one `Kind` with a
count, so that a search over many guests does not try them one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import msgspec

from hosttune.inventory.devices import close_groups
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.intent import GpuRequest, GuestIntent, NicRequest
from hosttune.model.values import address_key
from hosttune.planning.mig.instances import MigSlot, Sites, is_vgpu_guest, mig_sites
from hosttune.planning.mig.packing import FULL
from hosttune.planning.mig.types import free_functions
from hosttune.planning.request.candidates import Candidates, GpuSet
from hosttune.planning.request.nearest import can_be_counted, free_nics

Bundle = tuple[str, ...]  # devices that can only be taken together
Label = tuple[int, str, int]  # which guest, for what ("gpu", "set", "nic", "nvme"), and which part of its request
ATOMS = FULL.bit_length()
WHOLE_FUNCTION = 1 << 16  # the amount of a physical function that a guest takes; a virtual function takes 1


class GuestRequest(msgspec.Struct, frozen=True):
    """One guest of a batch: `named` are the NICs and drives that it names, `candidates` its possible sets of GPUs."""

    guest: GuestIntent
    where: str
    named: tuple[str, ...]
    candidates: Candidates
    asked: GuestIntent  # as the intent says; `guest` counts without the devices that its GPUs bring

    @property
    def by_name(self) -> tuple[str, ...]:
        """All devices that it names: they may share groups."""
        return (*self.named, *(self.candidates.named or ()))


class Trait(msgspec.Struct, frozen=True):
    """The properties that equal bundles of devices share. `also`: (index, amount) of what taking them also takes.

    `along`: the known nodes of the functions that go along with each bundle; these count as devices, too.
    """

    node: int | None
    size: int
    models: frozenset[str | None]
    busy: int
    labels: frozenset[Label]
    also: tuple[tuple[int, int], ...]
    along: tuple[int, ...]

    @property
    def of_gpus(self) -> bool:
        """Whether these are GPUs."""
        return any(what in ("gpu", "set") for _, what, _ in self.labels)


class Kind(msgspec.Struct, frozen=True):
    """Bundles of devices that are equal; `index` is the index of their amount in the resource pool."""

    index: int
    trait: Trait
    bundles: tuple[Bundle, ...]
    members: tuple[Bundle, ...]  # each bundle with everything that goes along with it


class ResourcePool(msgspec.Struct, frozen=True, dict=True):
    """Everything that can be counted.

    `capacity` is indexed by `cores` (node, threads of a core), `threads` and kinds.
    """

    capacity: tuple[int, ...]
    cores: Mapping[tuple[int, int], int]
    threads: Mapping[int, int]
    kinds: tuple[Kind, ...]
    narrowest: Mapping[tuple[int, int], int]  # CPUs of the narrowest free core with at least this many, by (node, CPUs)
    shares: bool  # whether a guest may share cores, so that CPUs are counted as well as cores
    sites: Mapping[str, Sites]  # by MIG profile, the GPUs that could carry vGPUs of it
    parts: Mapping[str, int]  # index of the amount of a named thing: slices and functions of GPUs that can be divided
    nodeless: tuple[int, ...]  # amounts without a node: devices of unknown node, things that several bundles take

    @cached_property
    def pools(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """(index, devices in each bundle) of the kinds that can be given by count: "gpu", "nic", "nvme".

        "any-gpu": of all GPUs.
        """
        by_name = {"any-gpu": tuple((kind.index, kind.trait.size) for kind in self.kinds if kind.trait.of_gpus)}
        for what in ("gpu", "nic", "nvme"):
            by_name[what] = tuple(
                (kind.index, kind.trait.size)
                for kind in self.kinds
                if any(label[1] == what for label in kind.trait.labels)
            )
        return by_name

    def kind(self, index: int) -> Kind:
        """Return the kind of this index."""
        return self.kinds[index - self.kinds[0].index]

    def of(self, label: Label) -> tuple[Kind, ...]:
        """Return the kinds that a guest may take for one of its requests."""
        return tuple(kind for kind in self.kinds if label in kind.trait.labels)


def read_resource_pool(context: PlanningContext, wants: Sequence[GuestRequest]) -> ResourcePool:
    """Count the resources for which these guests compete."""
    capacity: list[int] = []
    cores: dict[tuple[int, int], int] = {}
    threads: dict[int, int] = {}
    for node in context.resources.nodes.values():
        for least in range(1, context.resources.threads_per_core + 1):
            cores[node.id, least] = len(capacity)
            capacity.append(sum(len(core.cpus) >= least for core in node.free))
        threads[node.id] = len(capacity)
        capacity.append(len(node.free_threads))
    labels = _labels(context, wants)
    profiles = {want.guest.mig.profile for want in wants if want.guest.mig and is_vgpu_guest(want.guest)}
    sites = {profile: mig_sites(context, profile) for profile in sorted(profiles)}
    cut = _cut_up(context, sites.values())
    # what more than one bundle takes
    takers = Counter(name for bundle in labels for name in _amounts_taken(context, bundle, cut))
    shared = {
        name: WHOLE_FUNCTION if name.startswith("part of ") else 1 for name, count in takers.items() if count > 1
    } | cut
    places: dict[str, int] = {}
    for name, amount in sorted(shared.items()):
        places[name] = len(capacity)
        capacity.append(amount)
    groups = _alike(context, labels, cut, places)
    kinds: list[Kind] = []
    for trait, bundles in groups.items():
        members = tuple(close_groups(context.catalogue, bundle).members for bundle in bundles)
        kinds.append(Kind(len(capacity), trait, tuple(bundles), members))
        capacity.append(len(bundles))
    nodeless = (*places.values(), *(kind.index for kind in kinds if kind.trait.node is None))
    narrowest: dict[tuple[int, int], int] = {}
    for node_id, least in cores:
        widths = (len(core.cpus) for core in context.resources.nodes[node_id].free)
        narrowest[node_id, least] = min((width for width in widths if width >= least), default=1)
    shares = any(want.guest.smt == "threads" for want in wants)
    return ResourcePool(tuple(capacity), cores, threads, tuple(kinds), narrowest, shares, sites, places, nodeless)


def _alike(
    context: PlanningContext, labels: Mapping[Bundle, set[Label]], cut: Mapping[str, int], places: Mapping[str, int]
) -> dict[Trait, list[Bundle]]:
    """Group bundles that are equal, in the order of their addresses; `places`: the index of each shared thing."""
    groups: dict[Trait, list[Bundle]] = {}
    for bundle in sorted(labels, key=lambda b: [address_key(a) for a in b]):
        brings = sorted(_amounts_taken(context, bundle, cut).items())
        also = tuple((places[name], much) for name, much in brings if name in places)
        gpus = [gpu for gpu in map(context.catalogue.gpus.get, bundle) if gpu]
        home = context.catalogue.node(bundle[0])
        others = (address for address in close_groups(context.catalogue, bundle).members if address not in bundle)
        nodes = (context.catalogue.node(address) for address in others)
        trait = Trait(
            node=home if home in context.resources.nodes else None,
            size=len(bundle),
            models=frozenset(gpu.model for gpu in gpus),
            busy=sum(bool(gpu.processes) for gpu in gpus),
            labels=frozenset(labels[bundle]),
            also=also,
            along=tuple(sorted(node for node in nodes if node is not None and node in context.resources.nodes)),
        )
        groups.setdefault(trait, []).append(bundle)
    return groups


def _labels(context: PlanningContext, wants: Sequence[GuestRequest]) -> dict[Bundle, set[Label]]:
    """Return every bundle that a guest could take, with the guests and purposes. Named devices are single bundles."""
    labels: dict[Bundle, set[Label]] = {}
    for i, want in enumerate(wants):
        candidates = want.candidates
        for part, pool in enumerate(gpu_pools(want)):
            for bundle in pool:
                labels.setdefault(bundle, set()).add((i, "gpu", part))
        for part, gpus in enumerate(gpu_sets(candidates)):
            for address in gpus:
                labels.setdefault((address,), set()).add((i, "set", part))
        for address in want.named:
            labels.setdefault((address,), set()).add((i, "named", 0))
        for address in counted_nics(context, want):
            labels.setdefault((address,), set()).add((i, "nic", 0))
        for address in counted_nvme(context, want):
            labels.setdefault((address,), set()).add((i, "nvme", 0))
    return labels


def gpu_pools(want: GuestRequest) -> tuple[tuple[Bundle, ...], ...]:
    """Return the pools of a counted request: one pool of all models, or one for each NVLink island."""
    pools = want.candidates.bundles
    if isinstance(want.guest.gpus, GpuRequest) and want.guest.gpus.nvlink:
        return pools
    every = dict.fromkeys(bundle for pool in pools for bundle in pool)
    whole = tuple(one for one in every if not any(set(one) < set(other) for other in every))
    return (whole,) if pools else ()


def gpu_sets(candidates: Candidates) -> tuple[GpuSet, ...]:
    """Return the fixed sets of GPUs that a guest may have: the set that it names, or the partitions of its size."""
    return (candidates.named,) if candidates.named else candidates.sets or ()


def counted_nics(context: PlanningContext, want: GuestRequest) -> tuple[str, ...]:
    """Return the NICs that a guest could be given by count."""
    nics = want.guest.nics
    if isinstance(nics, int):
        nics = NicRequest(count=nics)
    if not isinstance(nics, NicRequest) or not nics.count:
        return ()
    return tuple(a for a in free_nics(context, nics) if can_be_counted(context, a, want.by_name))


def counted_nvme(context: PlanningContext, want: GuestRequest) -> tuple[str, ...]:
    """Return the drives that a guest could be given by count."""
    if not isinstance(want.guest.nvme, int) or not want.guest.nvme:
        return ()
    pool = (drive.address for drive in context.host.nvme)
    return tuple(address for address in pool if can_be_counted(context, address, want.by_name))


def _cut_up(context: PlanningContext, sites: Iterable[Sites]) -> dict[str, int]:
    """Return what vGPUs take of the GPUs that can carry a guest's MIG instances, with the amount of each."""
    amounts: dict[str, int] = {}
    for address in sorted({address for able in sites for address, _ in able}):
        amounts[instances_of(address)] = WHOLE_FUNCTION
        amounts[functions_of(address)] = len(free_functions(context, address))
        amounts |= {atom_of(address, bit): 1 for bit in range(ATOMS)}
    return amounts


def instances_of(gpu: str) -> str:
    """Return the name of the amount that instances take of a GPU so that no other guest can have it whole."""
    return f"instances of {gpu}"


def functions_of(gpu: str) -> str:
    """Return the name of a GPU's functions that can carry a vGPU."""
    return f"functions of {gpu}"


def atom_of(gpu: str, bit: int) -> str:
    """Return the name of one memory slice of a GPU (bits 0-7), or of its media engines (bit 8)."""
    return f"slice {bit} of {gpu}"


def _amounts_taken(context: PlanningContext, bundle: Bundle, cut: Mapping[str, int]) -> dict[str, int]:
    """Return what taking a bundle takes, itself included.

    A virtual function takes one part of its physical function.
    """
    amounts: dict[str, int] = {}
    for address in close_groups(context.catalogue, bundle).members:
        amounts[address] = 1
        device = context.catalogue.pci.get(address)
        if device and device.physfn:
            amounts[f"part of {device.physfn}"] = 1
        elif context.catalogue.virtuals.get(address):
            amounts[f"part of {address}"] = WHOLE_FUNCTION
    if context.catalogue.fabric.passthrough and not set(context.catalogue.fabric.members).isdisjoint(bundle):
        amounts["the fabric itself"] = 1  # in full passthrough mode the fabric has one owner
    amounts |= {instances_of(a): WHOLE_FUNCTION for a in bundle if instances_of(a) in cut}
    return amounts


def slots_use(resource_pool: ResourcePool, slots: Sequence[MigSlot]) -> list[tuple[int, int]]:
    """Return what instances take of their GPUs: their slices, a function each, and the right to have the GPU whole."""
    uses: dict[int, int] = {}
    for slot in slots:
        names = [instances_of(slot.gpu), functions_of(slot.gpu)]
        names += [atom_of(slot.gpu, bit) for bit in range(ATOMS) if slot.atoms >> bit & 1]
        for index in (resource_pool.parts[name] for name in names):
            uses[index] = uses.get(index, 0) + 1
    return sorted(uses.items())


def occupied(resource_pool: ResourcePool, left: Sequence[int]) -> dict[str, int]:
    """Return the bits of each GPU that planned guests have; `FULL` if a guest has it whole."""
    bits_of: dict[str, int] = {}
    for name, index in resource_pool.parts.items():
        word, _, rest = name.partition(" ")
        if word == "instances" and not left[index]:
            bits_of[rest.removeprefix("of ")] = FULL
        elif word == "slice" and not left[index]:
            bit, _, gpu = rest.partition(" of ")
            bits_of[gpu] = bits_of.get(gpu, 0) | 1 << int(bit)
    return bits_of
