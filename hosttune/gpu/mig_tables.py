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
from hosttune.model.hints import did_you_mean
from hosttune.model.host import Gpu, MigProfile, PciDevice

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
