"""Packing of MIG instances: the placements that the MIG user guide allows and forbids, and a brute-force oracle."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosttune.gpu.mig_tables import offer_of
from hosttune.model.gpu import Gpu, MigProfile
from hosttune.model.host import PciDevice
from hosttune.planning.mig.packing import FULL, MEDIA, atoms_of, free_starts, most, pack, room, start_sets

H200 = offer_of(Gpu(address="0000:41:00.0"), PciDevice(address="0000:41:00.0", vendor_id="10de", device_id="2335"))
BY_NAME = {profile.name: profile for profile in H200.profiles}
SHORT = {"1": "1g.18gb", "1me": "1g.18gb+me", "d": "1g.35gb", "2": "2g.35gb", "3": "3g.71gb", "4": "4g.71gb"}
SHORT |= {"7": "7g.141gb"}
PROFILES = H200.profiles


def named(words: str) -> list[MigProfile]:
    return [BY_NAME[SHORT[word]] for word in words.split()]


# "4@0 3@4": a profile and its start. MIG user guide, placements of A100, H100 and H200.
ACCEPTED = (
    "4@0 3@4",
    "3@0 3@4",
    "4@0 2@4 1@6",
    "2@0 2@2 2@4 1@6",
    "1@0 1@1 1@2 1@3 1@4 1@5 1@6",
    "d@0 d@2 d@4 d@6",
    "3@0 2@4 1@6",
    "2@0 2@2 2@4 d@6",
)
REJECTED = ("3 3 3", "1me 1me", "7 1", "7 1me", "7 3", "1 1 1 1 1 1 1 1", "4 4", "d d d d d", "2 2 2 2", "3 3 1")
NO_START = (("4", 4), ("2", 6), ("1", 7), ("3", 2))


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_the_guide_shows_is_accepted(case: str) -> None:
    taken = 0
    for word in case.split():
        short, start = word.split("@")
        profile = BY_NAME[SHORT[short]]
        assert int(start) in free_starts(profile, taken), word
        taken |= atoms_of(profile, int(start))
    assert pack(named(" ".join(word.partition("@")[0] for word in case.split())), [0]) is not None


@pytest.mark.parametrize("case", REJECTED)
def test_what_cannot_be_is_rejected_on_one_gpu_and_finds_a_second(case: str) -> None:
    assert pack(named(case), [0]) is None
    found = pack(named(case), [0, 0])
    assert found is not None
    assert {gpu for gpu, _ in found} == {0, 1}


@pytest.mark.parametrize(("short", "start"), NO_START)
def test_a_start_that_no_profile_has_is_never_free(short: str, start: int) -> None:
    assert start not in free_starts(BY_NAME[SHORT[short]], 0)


def test_only_one_instance_has_the_media_engines() -> None:
    media = BY_NAME["1g.18gb+me"]
    assert most(media, 0) == 1
    assert free_starts(media, MEDIA) == ()
    assert free_starts(BY_NAME["1g.18gb"], MEDIA) == (0, 1, 2, 3, 4, 5, 6)
    assert pack(named("1me 1 1 1 1 1 1"), [0]) is not None


def test_existing_instances_are_in_the_way() -> None:
    three = atoms_of(BY_NAME["3g.71gb"], 4)
    assert pack(named("4"), [three]) == ((0, 0),)
    assert pack(named("4 1"), [three]) is None
    assert pack(named("4 1"), [three, FULL, 0]) == ((2, 0), (2, 4))


def test_the_fewest_gpus_are_touched() -> None:
    """A greedy packer would open a second GPU: the large instance only fits where the small ones leave its start."""
    found = pack(named("1 1 3 4"), [0, 0])
    assert found is not None
    assert len({gpu for gpu, _ in found}) == 2
    assert pack(named("1 1 1 4"), [0, 0]) is not None
    assert {gpu for gpu, _ in pack(named("1 1 1 4"), [0, 0]) or ()} == {0}


def test_one_small_instance_goes_where_the_most_stays_placeable() -> None:
    """At 6 it strands slice 7 alone: 4g at 0 and three 2g stay."""
    assert start_sets(BY_NAME["1g.18gb"], 1, 0, PROFILES)[0] == (6,)
    assert room(PROFILES, atoms_of(BY_NAME["1g.18gb"], 6)) == (0, 1, 1, 3, 3, 6, 1)
    assert start_sets(BY_NAME["3g.71gb"], 1, 0, PROFILES) == ((4,), (0,))  # 4g starts at 0 only


def test_every_set_of_starts_is_there_once() -> None:
    assert len(start_sets(BY_NAME["1g.18gb"], 3, 0, PROFILES)) == 35
    assert start_sets(BY_NAME["1g.18gb"], 7, 0, PROFILES) == ((0, 1, 2, 3, 4, 5, 6),)
    assert start_sets(BY_NAME["1g.18gb"], 8, 0, PROFILES) == ()


def _valid(places: tuple[tuple[int, int], ...], wanted: list[MigProfile], occupied: list[int]) -> bool:
    """Slices by slices, without masks: the oracle's own view."""
    slices: list[set[object]] = [{bit for bit in range(13) if mask >> bit & 1} for mask in occupied]
    for (gpu, start), profile in zip(places, wanted, strict=True):
        mine: set[object] = {start + i for i in range(profile.size or 0)}
        mine |= {12} if profile.name.endswith("+me") else set()
        if start not in (profile.starts or ()) or slices[gpu] & mine:
            return False
        slices[gpu] |= mine
    return True


def _least_touched(wanted: list[MigProfile], occupied: list[int]) -> int | None:
    places = [[(gpu, start) for gpu in range(len(occupied)) for start in profile.starts or ()] for profile in wanted]
    touched = [len({gpu for gpu, _ in way}) for way in product(*places) if _valid(way, wanted, occupied)]
    return min(touched, default=None)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(PROFILES), max_size=3),
    st.lists(st.integers(0, FULL), min_size=1, max_size=2),
)
def test_packing_is_exact(wanted: list[MigProfile], occupied: list[int]) -> None:
    found = pack(wanted, occupied)
    least = _least_touched(wanted, occupied)
    assert (found is None) == (least is None)
    if found is not None:
        assert _valid(found, wanted, occupied)
        assert len({gpu for gpu, _ in found}) == least


@settings(deadline=None)
@given(st.sampled_from(PROFILES), st.integers(0, FULL))
def test_the_most_of_a_profile_is_what_a_search_finds(profile: MigProfile, occupied: int) -> None:
    count = most(profile, occupied)
    assert pack([profile] * count, [occupied]) is not None
    assert pack([profile] * (count + 1), [occupied]) is None
    assert start_sets(profile, count, occupied, PROFILES)
    assert not start_sets(profile, count + 1, occupied, PROFILES)
