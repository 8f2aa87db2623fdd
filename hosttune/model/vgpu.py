"""vGPUs in the host document: the framework that a GPU's functions offer, and what of it is in use.

`None` is unknown or absent, as everywhere in the document.
"""

from __future__ import annotations

import re

from hosttune.model.values import Value

FRAMEWORKS = ("vfio", "mdev")
_TYPE_ID = re.compile(r"(?:[a-z0-9_]{1,16}-)?[1-9][0-9]{0,8}")


def is_type_id(text: str) -> bool:
    """Whether a text can be the id of a vGPU type: a number, or for mdev a driver's name and a number."""
    return _TYPE_ID.fullmatch(text) is not None


class VgpuType(Value, frozen=True, kw_only=True):
    """A vGPU type that the driver offers now. `id` is written to create one: "1414", or "nvidia-474" for mdev.

    `available`: how many more of it one function can have (mdev only).
    """

    id: str
    name: str
    available: int | None = None


class VgpuFunction(Value, frozen=True, kw_only=True):
    """A function that can have a vGPU. `current_type` is the kernel's word: "0" = none, else the number of the type.

    `mdevs` are the UUIDs of its mediated devices.
    """

    address: str
    current_type: str | None = None
    mdevs: tuple[str, ...] = ()


class VgpuGpu(Value, frozen=True, kw_only=True):
    """A physical GPU and its vGPU framework.

    The framework is "vfio" (the vendor's own virtual functions), "mdev", or None = none seen. Planning treats any other
    word as unknown.
    """

    address: str
    framework: str | None = None
    functions: tuple[VgpuFunction, ...] = ()
    types: tuple[VgpuType, ...] | None = None


class Vgpu(Value, frozen=True, kw_only=True):
    """The host's side of vGPUs. `manager`: the maker's vGPU manager runs; `sriov_manage`: its tool is installed."""

    manager: bool | None = None
    sriov_manage: bool | None = None
    gpus: tuple[VgpuGpu, ...] = ()
