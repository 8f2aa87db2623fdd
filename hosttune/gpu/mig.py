"""`nvidia-smi mig -lgip` and `-lgipp`: which GPU instances a GPU offers and where they may start. Pure parsers.

Both answer with MIG off as well (measured on H200). Profile ids differ between products: nothing here knows one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from hosttune.model.gpu import MigProfile

Placement = tuple[tuple[int, ...], int]

_PROFILE = re.compile(
    r"\|\s+(\d{1,4})\s+MIG (\S+)\s+(\d{1,9})\s+\d+/(\d{1,9})\s+(\d{1,9}(?:\.\d{1,9})?)\s+\S+\s+(\d{1,9})\s"
)
_PLACEMENT = re.compile(r"GPU\s+(\d{1,4}) Profile ID\s+(\d{1,9}) Placements?\s*: \{([\d,]{0,99})\}:(\d{1,4})")


def compute_slices(name: str) -> int | None:
    """Compute slices from a profile's name: "3g.71gb" has 3 (MIG user guide, "Supported MIG Profiles")."""
    match = re.match(r"(\d{1,4})g\.", name)
    return int(match[1]) if match else None


def parse_mig_profiles(text: str) -> dict[int, tuple[MigProfile, ...]]:
    """`mig -lgip`: each GPU's profiles by nvidia-smi's index, in the tool's order; memory as shown, in GiB."""
    profiles: dict[int, list[MigProfile]] = {}
    for line in text.splitlines():
        match = _PROFILE.match(line)
        if not match:
            continue
        profile = MigProfile(
            name=match[2],
            id=int(match[3]),
            max_instances=int(match[4]),
            memory_bytes=int(float(match[5]) * (1 << 30)),
            multiprocessors=int(match[6]),
            compute_slices=compute_slices(match[2]),
        )
        profiles.setdefault(int(match[1]), []).append(profile)
    return {index: tuple(found) for index, found in profiles.items()}


def parse_mig_placements(text: str) -> dict[int, dict[int, Placement]]:
    """`mig -lgipp`: by GPU index and profile id, the possible starts and the size, all in memory slices."""
    placements: dict[int, dict[int, Placement]] = {}
    for match in _PLACEMENT.finditer(text):
        starts = tuple(int(start) for start in match[3].split(",") if start)
        placements.setdefault(int(match[1]), {})[int(match[2])] = (starts, int(match[4]))
    return placements


def place(profiles: tuple[MigProfile, ...], placements: Mapping[int, Placement]) -> tuple[MigProfile, ...]:
    """The profiles with their placements; a profile without one keeps them unknown."""
    return tuple(
        msgspec.structs.replace(profile, starts=placements[profile.id][0], size=placements[profile.id][1])
        if profile.id is not None and profile.id in placements
        else profile
        for profile in profiles
    )
