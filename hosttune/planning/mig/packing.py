"""Pack MIG instances: memory slices as bits, profiles with fixed starts, exact search. Pure, independent of a host.

A GPU's slices are the low bits of a mask; the next one stands for the media engines, which only one `+me` instance can
have. An instance is valid if its start is one of its profile's and none of its bits is in use (NVML, nvml.h,
nvmlGpuInstancePlacement_t; MIG user guide, "Supported MIG Profiles").

Ties are decided by what can still be placed: the number of further instances of each profile, largest profile first, as
`room` returns it; then by the lowest starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from hosttune.gpu.mig_tables import SLICES
from hosttune.model.gpu import MigProfile

MEDIA = 1 << SLICES  # the bit of the media engines
FULL = 2 * MEDIA - 1
_CACHED = 1 << 14

Profiles = tuple[MigProfile, ...]
Starts = tuple[int, ...]


def atoms_of(profile: MigProfile, start: int) -> int:
    """Return the bits that an instance takes: its memory slices, and the media bit if it has the media engines."""
    return ((1 << (profile.size or 1)) - 1) << start | (MEDIA if "+me" in profile.name else 0)


def free_starts(profile: MigProfile, occupied: int) -> Starts:
    """Return the possible starts of one more instance of a profile, lowest first."""
    return tuple(start for start in sorted(profile.starts or ()) if not atoms_of(profile, start) & occupied)


@lru_cache(maxsize=_CACHED)
def most(profile: MigProfile, occupied: int) -> int:
    """Return how many more instances of a profile fit.

    Instances are equal, so that taking the lowest start each time gives the exact number.
    """
    count = 0
    for start in sorted(profile.starts or ()):
        atoms = atoms_of(profile, start)
        if not atoms & occupied:
            occupied |= atoms
            count += 1
    return count


@lru_cache(maxsize=_CACHED)
def room(profiles: Profiles, occupied: int) -> tuple[int, ...]:
    """Return what can still be placed: for each profile, the largest first, how many more of it would fit alone."""
    ordered = sorted(profiles, key=lambda p: (-(p.size or 1), -(p.compute_slices or 1), p.name))
    return tuple(most(profile, occupied) for profile in ordered)


@lru_cache(maxsize=_CACHED)
def start_sets(profile: MigProfile, count: int, occupied: int, profiles: Profiles) -> tuple[Starts, ...]:
    """Return every set of starts for `count` instances of a profile; sets that leave the most room come first.

    `profiles` are all that the GPU has: they measure the room that is left.
    """
    ranked: list[tuple[tuple[int, ...], Starts]] = []
    for starts in combinations(free_starts(profile, occupied), count):
        mask = _taken(profile, starts, occupied)
        if mask is not None:
            ranked.append((tuple(-number for number in room(profiles, mask)), starts))
    return tuple(starts for _, starts in sorted(ranked))


def _taken(profile: MigProfile, starts: Starts, occupied: int) -> int | None:
    """Return the mask with instances at these starts; None if two of them overlap."""
    for start in starts:
        atoms = atoms_of(profile, start)
        if atoms & occupied:
            return None
        occupied |= atoms
    return occupied


def pack(wanted: Sequence[MigProfile], occupied: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
    """Place instances of several profiles on GPUs that differ only in what is in use. The search is exact.

    Returns (GPU, start) for each wanted one, in the given order; None if they do not all fit. The fewest GPUs are used.
    Of the ways to do so the first is taken: larger profiles first, GPUs and starts from the lowest.
    """
    order = sorted(range(len(wanted)), key=lambda n: (-(wanted[n].size or 1), wanted[n].name))
    for touched in range(min(1, len(wanted)), len(occupied) + 1):
        for chosen in combinations(range(len(occupied)), touched):
            packed = _search([wanted[n] for n in order], {gpu: occupied[gpu] for gpu in chosen})
            if packed is not None:
                places = dict(zip(order, packed, strict=True))
                return tuple(places[n] for n in range(len(wanted)))
    return None


def _search(wanted: Sequence[MigProfile], masks: Mapping[int, int]) -> tuple[tuple[int, int], ...] | None:
    """Search depth first, one instance after the other.

    Failed states are remembered by what is in use and what is left. Instances of one profile follow each other from low
    to high, so that no two orders of the same places are tried.
    """
    failed: set[tuple[int, tuple[int, ...], tuple[int, int]]] = set()

    def place(n: int, taken: dict[int, int], last: tuple[int, int]) -> tuple[tuple[int, int], ...] | None:
        if n == len(wanted):
            return ()
        low = last if n and wanted[n] == wanted[n - 1] else (-1, -1)
        state = n, tuple(taken.values()), low
        if state in failed:
            return None
        for gpu, start in _places(wanted[n], taken):
            if (gpu, start) > low:
                rest = place(n + 1, {**taken, gpu: taken[gpu] | atoms_of(wanted[n], start)}, (gpu, start))
                if rest is not None:
                    return ((gpu, start), *rest)
        failed.add(state)
        return None

    return place(0, dict(masks), (-1, -1))


def _places(profile: MigProfile, taken: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    for gpu, mask in taken.items():
        for start in free_starts(profile, mask):
            yield gpu, start
