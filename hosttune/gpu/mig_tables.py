"""Which MIG profiles a GPU has: its own listing first, else the sourced table of its product. Pure look-ups.

The table (`mig_tables.toml`) stands in only where the GPU cannot be asked, and whoever plans with it says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from hosttune.assets import read_table
from hosttune.errors import BadInput
from hosttune.model.gpu import Gpu, MigProfile
from hosttune.model.host import PciDevice

# A GPU instance profile as nvidia-smi names it: compute slices, memory, attributes ("1g.18gb+me", "1g.24gb-me").
_NAME = re.compile(r"([1-9][0-9]?)g\.([1-9][0-9]{0,3})gb((?:[+-][a-z]+(?:\.[a-z]+)*)*)")
_NVIDIA = "10de"
SLICES = 8  # memory slices of a GPU: no product has more
MIG_GUIDE = "MIG user guide, Supported MIG Profiles"


@dataclass(frozen=True)
class Offer:
    """The profiles that a GPU has, those with known placements only; `doubt` says what of them is a table's word."""

    profiles: tuple[MigProfile, ...]
    doubt: str | None = None

    def find(self, name: str) -> MigProfile | None:
        """The profile of a name; None where this GPU has none."""
        return next((profile for profile in self.profiles if profile.name == name), None)

    @property
    def compute_slices(self) -> int:
        """Compute slices of the whole GPU: those of its largest profile."""
        return max((profile.compute_slices or 1 for profile in self.profiles), default=1)


def is_profile_name(name: str) -> bool:
    """Whether a text has the form of a GPU instance profile. "1c.3g.71gb" is a compute instance's and has not."""
    return _NAME.fullmatch(name) is not None


def offer_of(gpu: Gpu, device: PciDevice | None) -> Offer:
    """What MIG profiles a GPU offers; an empty offer where it has none, or neither it nor a table tells."""
    listed = tuple(profile for profile in (gpu.mig.profiles if gpu.mig else None) or () if _fits(profile))
    product, table = _table(device)
    if not listed:
        doubt = f"its MIG profiles are those of {product} by table ({MIG_GUIDE}), for it could not be asked"
        return Offer(table, doubt) if table else Offer(())
    placed = tuple(profile for profile in listed if profile.starts is not None and profile.size)
    if len(placed) == len(listed):
        return Offer(placed)
    known = {profile.name: profile for profile in table}
    filled = tuple(
        msgspec.structs.replace(profile, starts=known[profile.name].starts, size=known[profile.name].size)
        if (profile.starts is None or not profile.size) and profile.name in known
        else profile
        for profile in listed
    )
    usable = tuple(profile for profile in filled if profile.starts is not None and profile.size)
    doubt = f"where its MIG profiles may start is that of {product} by table ({MIG_GUIDE}), for its listing lacks it"
    return Offer(usable, doubt if len(usable) > len(placed) else None)


def _fits(profile: MigProfile) -> bool:
    """Whether a listed profile is one that can be placed here, as far as it says: named as such, on eight slices."""
    places = [(start, start + (profile.size or 1)) for start in profile.starts or ()]
    return is_profile_name(profile.name) and all(0 <= start < end <= SLICES for start, end in places)


def resolve(gpu: Gpu, device: PciDevice | None, name: str, where: str) -> MigProfile:
    """The profile of this name. Raises BadInput, with the profiles that exist, where this GPU has no such one."""
    offer = offer_of(gpu, device)
    found = offer.find(name)
    if found is not None:
        return found
    model = gpu.model or "this GPU"
    have = ", ".join(profile.name for profile in offer.profiles)
    hint = f"{model} has {have}" if have else f"no MIG profile of {model} is known"
    raise BadInput(f"{name!r} is not a MIG profile of {model} ({gpu.address})", where=where, hint=hint)


def vgpu_type_name(device: PciDevice | None, profile: str) -> str | None:
    """The name of the vGPU type backed by an instance of a profile; None where the board's prefix has no source."""
    suffix = vgpu_suffix(profile)
    prefix = _tables()["vgpu_prefixes"].get(device.device_id) if device and device.vendor_id == _NVIDIA else None
    return f"{prefix}{suffix}" if prefix and suffix else None


def vgpu_suffix(profile: str) -> str | None:
    """How the vGPU type of a profile ends: "1-18C" of 1g.18gb, "1-18CME" of 1g.18gb+me; None for other attributes."""
    match = _NAME.fullmatch(profile)
    ending = {"": "C", "+me": "CME"}.get(match[3]) if match else None
    return f"{match[1]}-{match[2]}{ending}" if match and ending else None


def _table(device: PciDevice | None) -> tuple[str, tuple[MigProfile, ...]]:
    """(name, profiles) of a product by its PCI ids; ("", ()) for one that the table does not have."""
    if device is None or device.vendor_id != _NVIDIA or device.device_id is None:
        return "", ()
    return _products().get(device.device_id, ("", ()))


@cache
def _products() -> Mapping[str, tuple[str, tuple[MigProfile, ...]]]:
    tables = _tables()
    found: dict[str, tuple[str, tuple[MigProfile, ...]]] = {}
    for product in tables["products"]:
        profiles = tuple(
            _profile(name, tables["shapes"][shape], listed_id=product["listed_ids"])
            for shape, name in product["profiles"].items()
        )
        found |= dict.fromkeys(product["ids"], (product["name"], profiles))
    return found


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
