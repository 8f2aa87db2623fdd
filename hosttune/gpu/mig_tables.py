"""Which MIG profiles a GPU has: from its own listing, or else from the table of its product. Pure look-ups.

The table (`mig_tables.toml`, with sources) is used only if the GPU could not be asked; the planner reports this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from hosttune.assets import read_table
from hosttune.errors import BadInput
from hosttune.gpu.vendor import MeasuredPart
from hosttune.model.hints import did_you_mean
from hosttune.model.host import Gpu, MigInstance, MigProfile, PciDevice
from hosttune.model.values import grouped

# A GPU instance profile as nvidia-smi names it: compute slices, memory, attributes ("1g.18gb+me", "1g.24gb-me").
_NAME = re.compile(r"([1-9][0-9]?)g\.([1-9][0-9]{0,3})gb((?:[+-][a-z]+(?:\.[a-z]+)*)*)")
_NVIDIA = "10de"
SLICES = 12  # memory slices of a GPU; no product has more (RTX PRO 6000; most have 8, by nvidia-smi mig -lgipp)
MIG_GUIDE = "MIG user guide, Supported MIG Profiles"


class GpuProfiles(msgspec.Struct, frozen=True):
    """The profiles of a GPU whose placements are known.

    `doubt` says which facts come from a table and not from the GPU.
    """

    profiles: tuple[MigProfile, ...]
    doubt: str | None = None

    def find(self, name: str) -> MigProfile | None:
        """Return the profile with a name; None if this GPU has no such profile."""
        return next((profile for profile in self.profiles if profile.name == name), None)

    @property
    def compute_slices(self) -> int:
        """The compute slices of the whole GPU: those of its largest profile."""
        return max((profile.compute_slices or 1 for profile in self.profiles), default=1)


def is_profile_name(name: str) -> bool:
    """Return whether a text has the form of a GPU instance profile.

    "1c.3g.71gb" (a compute instance) does not have it.
    """
    return _NAME.fullmatch(name) is not None


def offer_of(gpu: Gpu, device: PciDevice | None) -> GpuProfiles:
    """Return the MIG profiles that a GPU offers; empty if it has none, or if neither the GPU nor a table lists any."""
    listed = tuple(profile for profile in (gpu.mig.profiles if gpu.mig else None) or () if _fits(profile))
    product, table = _table(device)
    if not listed:
        doubt = f"its MIG profiles are those of {product} by table ({MIG_GUIDE}), for it could not be asked"
        return GpuProfiles(table, doubt) if table else GpuProfiles(())
    placed = tuple(profile for profile in listed if profile.starts is not None and profile.size)
    if len(placed) == len(listed):
        return GpuProfiles(placed)
    known = {profile.name: profile for profile in table}
    filled = tuple(
        msgspec.structs.replace(profile, starts=known[profile.name].starts, size=known[profile.name].size)
        if (profile.starts is None or not profile.size) and profile.name in known
        else profile
        for profile in listed
    )
    usable = tuple(profile for profile in filled if profile.starts is not None and profile.size)
    doubt = f"where its MIG profiles may start is that of {product} by table ({MIG_GUIDE}), for its listing lacks it"
    return GpuProfiles(usable, doubt if len(usable) > len(placed) else None)


def _fits(profile: MigProfile) -> bool:
    """Return whether a listed profile has a valid name, and its known placements fit on a GPU's memory slices."""
    places = [(start, start + (profile.size or 1)) for start in profile.starts or ()]
    return is_profile_name(profile.name) and all(0 <= start < end <= SLICES for start, end in places)


def resolve(gpu: Gpu, device: PciDevice | None, name: str, where: str) -> MigProfile:
    """Return the profile with this name.

    Raises BadInput, with the existing profiles, if this GPU has no such profile.
    """
    offer = offer_of(gpu, device)
    mig_profile = offer.find(name)
    if mig_profile is not None:
        return mig_profile
    model = gpu.model or "this GPU"
    have = ", ".join(profile.name for profile in offer.profiles)
    hint = f"{model} has {have}" if have else f"no MIG profile of {model} is known"
    hint = did_you_mean(name, (profile.name for profile in offer.profiles), hint)
    raise BadInput(f"{name!r} is not a MIG profile of {model} ({gpu.address})", where=where, hint=hint)


def vgpu_type_name(device: PciDevice | None, profile: str) -> str | None:
    """Return the name of the vGPU type backed by an instance of a profile.

    None if no source gives the board's prefix.
    """
    suffix = vgpu_suffix(profile)
    prefix = _tables()["vgpu_prefixes"].get(device.device_id) if device and device.vendor_id == _NVIDIA else None
    return f"{prefix}{suffix}" if prefix and suffix else None


def vgpu_suffix(profile: str) -> str | None:
    """Return the suffix of a profile's vGPU type: "1-18C" of 1g.18gb, "1-18CME" of 1g.18gb+me.

    None for other attributes.
    """
    match = _NAME.fullmatch(profile)
    ending = {"": "C", "+me": "CME"}.get(match[3]) if match else None
    return f"{match[1]}-{match[2]}{ending}" if match and ending else None


def _table(device: PciDevice | None) -> tuple[str, tuple[MigProfile, ...]]:
    """Return (name, profiles) of a product by its PCI ids; ("", ()) if the table does not have it."""
    if device is None or device.vendor_id != _NVIDIA or device.device_id is None:
        return "", ()
    return _products().get(device.device_id, ("", ()))


@cache
def _products() -> Mapping[str, tuple[str, tuple[MigProfile, ...]]]:
    tables = _tables()
    products: dict[str, tuple[str, tuple[MigProfile, ...]]] = {}
    for product in tables["products"]:
        profiles = tuple(
            _profile(name, tables["shapes"][shape], listed_id=product["listed_ids"])
            for shape, name in product["profiles"].items()
        )
        products |= dict.fromkeys(product["ids"], (product["name"], profiles))
    return products


def _profile(name: str, shape: Mapping[str, Any], *, listed_id: bool) -> MigProfile:
    return MigProfile(
        name=name,
        id=shape["id"] if listed_id else None,
        compute_slices=shape["compute"],
        max_instances=shape["most"],
        starts=tuple(shape["starts"]),
        size=shape["size"],
    )


@cache
def _tables() -> Mapping[str, Any]:
    return read_table(Path(__file__).with_suffix(".toml"))


# --- nvidia-smi mig --------------------------------------------------------------------------------------------
# Parsers for `nvidia-smi mig -lgip` and `-lgipp`: which GPU instances a GPU offers and where they may start. Pure.
# Both commands also answer while MIG is off (measured on H200). Profile ids differ between products, so none is known
# here.

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
