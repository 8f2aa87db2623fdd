"""Parsers for `nvidia-smi mig -lgip` and `-lgipp`: which GPU instances a GPU offers and where they may start. Pure.

Both commands also answer while MIG is off (measured on H200). Profile ids differ between products, so none is known
here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from hosttune.gpu.vendor import MeasuredPart
from hosttune.model.gpu import Gpu, MigInstance, MigProfile
from hosttune.model.values import grouped

Placement = tuple[tuple[int, ...], int]

_PROFILE = (
    r"\|\s+([0-9]{1,4})\s+MIG (\S+)\s+([0-9]{1,9})\s+[0-9]+/([0-9]{1,9})\s+([0-9]{1,9}(?:\.[0-9]{1,9})?)"
    r"\s+\S+\s+([0-9]{1,9})\s"
)
_PLACEMENT = r"GPU\s+([0-9]{1,4}) Profile ID\s+([0-9]{1,9}) Placements?\s*: \{([0-9,]{0,99})\}:([0-9]{1,4})"


def compute_slices(name: str) -> int | None:
    """Return the compute slices in a profile's name: "3g.71gb" has 3 (MIG user guide, "Supported MIG Profiles")."""
    match = re.match(r"([0-9]{1,4})g\.", name)
    return int(match[1]) if match else None


def parse_mig_profiles(text: str) -> dict[int, tuple[MigProfile, ...]]:
    """Parse `mig -lgip`: each GPU's profiles by nvidia-smi's index, in the tool's order.

    The tool prints memory in GiB; it becomes bytes, with no other correction.
    """
    matches = (match for line in text.splitlines() if (match := re.match(_PROFILE, line)))
    profiles = grouped(
        (
            int(match[1]),
            MigProfile(
                name=match[2],
                id=int(match[3]),
                max_instances=int(match[4]),
                memory_bytes=int(float(match[5]) * (1 << 30)),
                multiprocessors=int(match[6]),
                compute_slices=compute_slices(match[2]),
            ),
        )
        for match in matches
    )
    return {index: tuple(mig_profiles) for index, mig_profiles in profiles.items()}


def parse_mig_placements(text: str) -> dict[int, dict[int, Placement]]:
    """Parse `mig -lgipp`: by GPU index and profile id, the possible starts and the size, all in memory slices."""
    placements: dict[int, dict[int, Placement]] = {}
    for match in re.finditer(_PLACEMENT, text):
        starts = tuple(int(start) for start in match[3].split(",") if start)
        placements.setdefault(int(match[1]), {})[int(match[2])] = (starts, int(match[4]))
    return placements


def place(profiles: tuple[MigProfile, ...], placements: Mapping[int, Placement]) -> tuple[MigProfile, ...]:
    """Return the profiles with their placements. For a profile without one, the placement stays unknown."""
    return tuple(
        msgspec.structs.replace(profile, starts=placements[profile.id][0], size=placements[profile.id][1])
        if profile.id is not None and profile.id in placements
        else profile
        for profile in profiles
    )


# MIG user guide, "Application Considerations": there are no copies from GPU to GPU (PCIe or NVLink), and a CUDA process
# sees only one compute instance, the one whose UUID is in CUDA_VISIBLE_DEVICES.
_ALONE = "MIG instances do not reach each other (MIG user guide, Application Considerations): not measured between them"
WITHOUT = {"p2p-write-ce": _ALONE, "all-reduce": _ALONE}


def parts(gpu: Gpu) -> tuple[MeasuredPart, ...] | str | None:
    """Return the instances of a GPU in MIG mode, each for a process of its own.

    If they are unknown, returns the reason; without MIG mode, None. They are named by profile and placement, which stay
    the same when an instance is created again with another UUID.
    """
    if gpu.mig is None or gpu.mig.mode != "enabled":
        return None
    instances = gpu.mig.instances
    if instances is None:
        return "MIG mode is on, and which instances it has is not known: not measured"
    if any(instance.uuid is None or instance.profile is None or instance.start is None for instance in instances):
        return "MIG mode is on, and UUID, profile or place of an instance is not known: not measured"
    return tuple(_part(gpu, instance) for instance in instances)


def _part(gpu: Gpu, instance: MigInstance) -> MeasuredPart:
    profiles = gpu.mig.profiles if gpu.mig is not None else None
    counts = [profile.multiprocessors for profile in profiles or () if profile.name == instance.profile]
    return MeasuredPart(
        subject=f"{gpu.address} MIG {instance.profile} at {instance.start}",
        address=gpu.address,
        environment={"CUDA_VISIBLE_DEVICES": instance.uuid or ""},
        whole=False,
        multiprocessors=counts[0] if counts else None,
        without=WITHOUT,
        unproven="unproven: not seen on a machine with MIG instances",
    )
