"""MIG instances as vGPUs for guests: which GPUs can carry them, every way to place them, and why there is none.

Pure. A MIG instance is not a PCI function: only a vGPU of the vendor's manager brings one into a guest (MIG user guide,
"Virtualization"). Existing instances stay where they are, and their slices are not available.

An existing, unused instance of the wanted profile is taken as it is.

Best first means: the fewest GPUs touched, then the fewest whose MIG mode must be enabled, then the fewest busy ones,
then the fewest new instances, then what can still be placed on these GPUs (`packing.room`), then the lowest addresses
and starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, product, zip_longest

import msgspec
from msgspec.structs import replace

from hosttune.gpu import vendor_of
from hosttune.gpu.mig_tables import SLICES, GpuProfiles, offer_of
from hosttune.gpu.vgpu import SRIOV_MANAGE
from hosttune.inventory.devices import countable_gpus, gpu_count
from hosttune.inventory.sizing import PlanningContext
from hosttune.model.gpu import Gpu, MigProfile
from hosttune.model.intent import GuestIntent
from hosttune.model.values import address_key
from hosttune.planning.mig.packing import FULL, Profiles, Starts, atoms_of, most, room, start_sets
from hosttune.planning.mig.types import Known, carries, free_functions, manager_off, no_manager, vgpu_of

VFIO = "vfio-pci"


class MigSlot(msgspec.Struct, frozen=True):
    """An instance at its place. `atoms`: what it takes of its GPU; see `packing`."""

    gpu: str
    profile: str
    start: int
    size: int
    atoms: int


class Space(msgspec.Struct, frozen=True):
    """A GPU on which instances of one profile can be made, without its address: equal GPUs are equal for a guest.

    `occupied`: the bits in use; `ready`: starts of existing, unused instances of the profile; `most_functions`: the
    number of vGPUs for which it has functions.
    """

    node: int | None
    model: str | None
    profile: MigProfile
    profiles: Profiles
    occupied: int
    ready: Starts
    enabled: bool
    busy: bool
    most_functions: int

    @property
    def capacity(self) -> int:
        """The number of further instances of the profile that fit."""
        return min(most(self.profile, self.occupied), self.most_functions)

    def sets(self, count: int) -> tuple[Starts, ...]:
        """Return every set of starts for `count` instances, best first: as few new instances as possible."""
        starts = start_sets(self.profile, count, self.occupied, self.profiles)
        return tuple(sorted(starts, key=self.new)) if self.ready else starts

    def new(self, starts: Starts) -> int:
        """Return how many instances would have to be created."""
        return sum(start not in self.ready for start in starts)


Spaces = Mapping[Space, tuple[str, ...]]  # addresses of equal GPUs, by what they have in common
Sites = tuple[tuple[str, Space], ...]  # GPUs by address
_Share = tuple[Space, int, int]  # GPUs of this kind, instances on each, number of such GPUs


# --- choices -------------------------------------------------------------------------------------------------


def mig_choices(
    context: PlanningContext, guest: GuestIntent, occupied: Mapping[str, int], where: str, sites: Sites | None = None
) -> Iterator[tuple[MigSlot, ...]]:
    """Yield every distinct way to give a guest its MIG instances as vGPUs, best first; none if there is no way.

    `occupied` is what other planned guests take, by GPU address (FULL: the whole GPU); existing instances are added
    here. `where` names the guest in errors. Of equal GPUs only one is tried, the lowest addresses first. `sites` are
    those of the guest's profile, if the caller has them.
    """
    del where  # `check_mig` has already refused wrong requests
    request = guest.mig
    if request is None:
        return
    spaces = spaces_of(mig_sites(context, request.profile) if sites is None else sites, occupied)
    total = sum(len(addresses) for addresses in spaces.values())
    for touched in range(1, min(request.count, total) + 1):
        ways = _distributions(tuple(spaces.items()), touched, request.count)
        for shares in sorted(ways, key=lambda shares: _rank(shares, spaces)):
            yield from _placed(shares, spaces)


def _distributions(
    spaces: Sequence[tuple[Space, tuple[str, ...]]], gpus: int, count: int, cap: int | None = None
) -> Iterator[tuple[_Share, ...]]:
    """Yield how many instances each of `gpus` GPUs gets.

    Equal GPUs get theirs in falling order, so that there are no duplicates.
    """
    if not gpus or not spaces:
        if not gpus and not count:
            yield ()
        return
    (space, addresses), rest = spaces[0], spaces[1:]
    limit = space.capacity if cap is None else min(cap, space.capacity)
    for each in range(min(limit, count), 0, -1):
        for number in range(min(gpus, len(addresses), count // each), 0, -1):
            left = ((space, addresses[number:]), *rest)
            for more in _distributions(left, gpus - number, count - each * number, each - 1 or -1):
                yield ((space, each, number), *more)
    yield from _distributions(rest, gpus, count)


def _rank(shares: tuple[_Share, ...], spaces: Spaces) -> tuple[object, ...]:
    switched = sum(number for space, _, number in shares if not space.enabled)
    busy = sum(number for space, _, number in shares if space.busy)
    new = 0
    lost: list[int] = []
    for space, each, number in shares:
        best = space.sets(each)[0]
        new += space.new(best) * number
        loss = [share * number for share in _loss(space, best)]
        lost = [sum(pair) for pair in zip_longest(lost, loss, fillvalue=0)]
    names = [address_key(address) for address in sorted(_addresses(shares, spaces), key=address_key)]
    return switched, busy, new, tuple(lost), tuple(names)


def _loss(space: Space, starts: Starts) -> Iterator[int]:
    """Yield what can no longer be placed, the largest profile first."""
    before = taken = space.occupied | sum(atoms_of(space.profile, start) for start in space.ready)
    for start in starts:
        taken |= atoms_of(space.profile, start)
    for old, now in zip(room(space.profiles, before), room(space.profiles, taken), strict=True):
        yield old - now


def _addresses(shares: tuple[_Share, ...], spaces: Spaces) -> list[str]:
    """Return the GPUs of the shares, in their order: for each share, the next GPUs of its kind."""
    used: dict[Space, int] = {}
    addresses: list[str] = []
    for space, _, number in shares:
        first = used.get(space, 0)
        addresses += spaces[space][first : first + number]
        used[space] = first + number
    return addresses


def _placed(shares: tuple[_Share, ...], spaces: Spaces) -> Iterator[tuple[MigSlot, ...]]:
    """Yield the slots of a distribution, for every combination of starts, without swaps between equal GPUs."""
    choices = [tuple(combinations_with_replacement(space.sets(each), number)) for space, each, number in shares]
    addresses = _addresses(shares, spaces)
    for ways in product(*choices):
        starts = [start for way in ways for start in way]
        profiles = [space.profile for space, _, number in shares for _ in range(number)]
        slots = [
            slot_of_start(address, profile, start)
            for address, profile, of_gpu in zip(addresses, profiles, starts, strict=True)
            for start in of_gpu
        ]
        yield tuple(sorted(slots, key=lambda slot: (address_key(slot.gpu), slot.start)))


def own_slots(context: PlanningContext, guest: GuestIntent) -> tuple[MigSlot, ...]:
    """Return the slots that a guest has had, if it asks for as many of that profile now; else none."""
    had, request, gpus = context.own.get(guest.name), guest.mig, context.catalogue.gpus
    if (
        had is None
        or request is None
        or [assignment.profile for assignment in had.mig] != [request.profile] * request.count
    ):
        return ()
    profiles = [
        gpu_offer(context, gpus[assignment.gpu]).find(assignment.profile) if assignment.gpu in gpus else None
        for assignment in had.mig
    ]
    rows = zip(had.mig, profiles, strict=True)
    return tuple(
        slot_of_start(assignment.gpu, profile, assignment.start) for assignment, profile in rows if profile is not None
    )


def slot_of_start(gpu: str, profile: MigProfile, start: int) -> MigSlot:
    """Return the slot of an instance of a profile at a start."""
    return MigSlot(gpu, profile.name, start, profile.size or 1, atoms_of(profile, start))


# --- GPUs that can carry instances -----------------------------------------------------------------------------


def mig_sites(context: PlanningContext, profile: str) -> Sites:
    """Return the GPUs on which a vGPU of this profile could be made, before anything is planned on them."""
    sites: list[tuple[str, Space]] = []
    if manager_off(context):
        return ()
    for gpu in sorted(countable_gpus(context.host, context.catalogue), key=lambda gpu: address_key(gpu.address)):
        offer = gpu_offer(context, gpu)
        wanted = offer.find(profile)
        taken = existing_atoms(gpu, offer)
        if wanted is None or taken is None or why_no_vgpu(context, gpu) is not None:
            continue
        ready = ready_starts(context, gpu, wanted)
        free = sum(atoms_of(wanted, start) for start in ready)
        space = Space(
            node=context.catalogue.node(gpu.address),
            model=gpu.model,
            profile=wanted,
            profiles=offer.profiles,
            occupied=taken & ~free,
            ready=ready,
            enabled=gpu.mig_on,
            busy=bool(gpu.processes) and not gpu.mig_on,
            most_functions=len(free_functions(context, gpu.address)),
        )
        sites.append((gpu.address, space))
    return tuple(sites)


def spaces_of(sites: Sites, occupied: Mapping[str, int]) -> Spaces:
    """Return the sites that have room once `occupied` is taken, grouped by equal GPUs."""
    spaces: dict[Space, list[str]] = {}
    for address, site in sites:
        taken = occupied.get(address, 0)
        space = replace(site, occupied=site.occupied | taken) if taken else site
        if space.capacity:
            spaces.setdefault(space, []).append(address)
    return {space: tuple(addresses) for space, addresses in spaces.items()}


def mig_spaces(context: PlanningContext, profile: str, occupied: Mapping[str, int]) -> Spaces:
    """Return the GPUs on which a vGPU of this profile could be made, grouped by equal GPUs."""
    return spaces_of(mig_sites(context, profile), occupied)


def gpu_offer(known: Known, gpu: Gpu) -> GpuProfiles:
    """Return the MIG profiles of a GPU."""
    return offer_of(gpu, known.catalogue.pci.get(gpu.address))


def mig_unknown(known: Known, gpu: Gpu) -> bool:
    """Return whether it is unknown if a GPU has MIG.

    Only the GPUs of some vendors have it, and some GPUs report that they do not have it.
    """
    vendor = vendor_of(gpu.vendor)
    return vendor is not None and vendor.mig and "mig" not in (gpu.lacks or ()) and not gpu_offer(known, gpu).profiles


def no_profiles(known: Known, gpu: Gpu) -> str:
    """Return the text for a GPU without a known MIG profile."""
    if mig_unknown(known, gpu):
        return f"whether GPU {gpu.address} has MIG is unknown: neither it nor a table lists its profiles"
    return f"GPU {gpu.address} has no MIG"


def existing_atoms(gpu: Gpu, offer: GpuProfiles) -> int | None:
    """Return what the GPU's existing instances take; None if unknown. Without MIG mode there are none."""
    mig = gpu.mig
    if mig is None or (mig.mode != "enabled" and not mig.instances):
        return 0
    if mig.instances is None:
        return None
    taken = 0
    for instance in mig.instances:
        known = offer.find(instance.profile or "")
        size = instance.size or (known.size if known else None)
        if instance.start is None or size is None or not 0 <= instance.start < instance.start + size <= SLICES:
            return None
        taken |= ((1 << size) - 1) << instance.start
        taken |= atoms_of(known, instance.start) if known else 0
    return taken & FULL


def ready_starts(known: Known, gpu: Gpu, profile: MigProfile) -> Starts:
    """Return the starts of the GPU's unused instances of a profile, which a vGPU can take as they are.

    Only if that is certain: NVML has listed them, they have no compute instance (with one they would have a UUID), and
    no function of the GPU carries a vGPU, because it is not reported which instance a vGPU uses.
    """
    instances = gpu.mig.instances if gpu.mig else None
    vgpu_gpu = vgpu_of(known, gpu.address)
    if gpu.source != "nvml" or vgpu_gpu is None or any(carries(known, function) for function in vgpu_gpu.functions):
        return ()  # which are unused is unknown
    unused = [instance for instance in instances or () if instance.profile == profile.name and instance.uuid is None]
    starts = {instance.start for instance in unused if instance.start is not None}
    return tuple(start for start in sorted(profile.starts or ()) if start in starts)


def why_no_vgpu(context: PlanningContext, gpu: Gpu) -> str | None:
    """Return why no vGPU backed by MIG can be made on this GPU; None if one can be made, as far as is known."""
    address, catalogue = gpu.address, context.catalogue
    device, offer = catalogue.pci.get(address), gpu_offer(context, gpu)
    if not offer.profiles:
        return no_profiles(context, gpu)
    if address in catalogue.holders:
        return f"GPU {address} is held as a whole by guest {catalogue.holders[address]}"
    if address in catalogue.quarantined:
        return f"GPU {catalogue.quarantined[address]}"
    if device is not None and device.driver == VFIO:
        return f"GPU {address} is bound to {VFIO}, to be given away as a whole"
    if existing_atoms(gpu, offer) is None:
        return f"GPU {address} has MIG on, and which instances it has is unknown"
    vgpu_gpu = vgpu_of(context, address)
    make = f"{SRIOV_MANAGE} -e {address}, then plan again"
    if vgpu_gpu is None:
        return f"GPU {address} has no function that offers a vGPU type: {make}"
    if not vgpu_gpu.functions:
        return f"GPU {address} has no virtual function that could carry a vGPU: {make}"
    if not gpu.mig_on and any(carries(context, function) for function in vgpu_gpu.functions):
        return f"GPU {address} carries vGPUs without MIG: they would end with the switch"
    if not free_functions(context, address):
        return f"every function of GPU {address} that can carry a vGPU is taken"
    return None


# --- shares and reasons ----------------------------------------------------------------------------------------


def mig_share(context: PlanningContext, slots: Sequence[MigSlot]) -> dict[str, Fraction]:
    """Return the part of each GPU that a guest has: the compute slices of its instances ÷ those of the GPU."""
    shares: dict[str, Fraction] = {}
    for slot in slots:
        offer = gpu_offer(context, context.catalogue.gpus[slot.gpu])
        profile = offer.find(slot.profile)
        part = Fraction((profile.compute_slices if profile else None) or 1, offer.compute_slices)
        shares[slot.gpu] = shares.get(slot.gpu, Fraction(0)) + part
    return shares


def is_vgpu_guest(guest: GuestIntent) -> bool:
    """Return whether `mig` means vGPUs: it is given without `gpus`."""
    return guest.mig is not None and not counts_inside(guest)


def counts_inside(guest: GuestIntent) -> bool:
    """Return whether a guest makes MIG instances itself, on its own whole GPUs: `mig` is given with `gpus`."""
    named = isinstance(guest.gpus, tuple) and bool(guest.gpus)
    return guest.mig is not None and (named or bool(gpu_count(guest)))


def mig_refusal(context: PlanningContext, guest: GuestIntent) -> tuple[str, ...]:
    """Return why a guest cannot get its vGPUs on this host in any way; () if it can."""
    request = guest.mig
    if request is None or next(mig_choices(context, guest, {}, ""), None) is not None:
        return ()
    missing = no_manager(context)
    if missing is not None:
        gpus = countable_gpus(context.host, context.catalogue)
        return (missing, *(no_profiles(context, gpu) for gpu in gpus if mig_unknown(context, gpu)))
    spaces = mig_spaces(context, request.profile, {})
    lines = [
        f"GPU {address} has room for {space.capacity} more"
        for space, addresses in spaces.items()
        for address in addresses
    ]
    lines += [
        why_no_vgpu(context, gpu) or _no_room(context, gpu, request.profile)
        for gpu in countable_gpus(context.host, context.catalogue)
        if not any(gpu.address in addresses for addresses in spaces.values())
    ]
    total = sum(space.capacity * len(addresses) for space, addresses in spaces.items())
    head = f"{request.count} x {request.profile} wanted, room for {total}"
    return (head, *lines)


def _no_room(context: PlanningContext, gpu: Gpu, profile: str) -> str:
    if gpu_offer(context, gpu).find(profile) is None:
        return f"GPU {gpu.address} ({gpu.model or 'model unknown'}) has no {profile}"
    return f"GPU {gpu.address} has no room for another {profile} beside its instances"


def mig_changes(context: PlanningContext, guest: GuestIntent) -> Iterator[tuple[str, GuestIntent]]:
    """Yield changes to a guest's `mig` to try, each with its text: fewer instances, or a whole GPU."""
    request = guest.mig
    if request is None:
        return
    replace = msgspec.structs.replace
    fewer = replace(guest, mig=replace(request, count=1))
    if is_vgpu_guest(guest):
        for count in range(min(request.count - 1, _room_for(context, request.profile)), 0, -1):
            text = f"mig: {{profile: {request.profile}, count: {count}}}"
            yield text, replace(guest, mig=replace(request, count=count))
    name = guest.mig.profile if guest.mig else ""
    offers = (gpu_offer(context, gpu) for gpu in countable_gpus(context.host, context.catalogue))
    each = max((most(profile, 0) for offer in offers if (profile := offer.find(name))), default=0)
    if each:
        count = min(request.count, each)
        whole = replace(fewer, gpus=1 if is_vgpu_guest(guest) else guest.gpus, mig=replace(request, count=count))
        if whole != guest:
            how = f"gpus: 1, mig: {{profile: {request.profile}, count: {count}}}"
            prefix = "the whole GPU with MIG inside the guest: " if is_vgpu_guest(guest) else ""
            text = f"{prefix}{how}" if prefix else how.removeprefix("gpus: 1, ")
            yield text, whole


def _room_for(context: PlanningContext, profile: str) -> int:
    return sum(space.capacity * len(addresses) for space, addresses in mig_spaces(context, profile, {}).items())
