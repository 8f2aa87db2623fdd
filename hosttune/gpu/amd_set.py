"""Settings of AMD GPUs that `amdgpu` holds: only the power cap, a file of the kernel. No other knob is known.

Source: drivers/gpu/drm/amd/pm/amdgpu_pm.c, "DOC: hwmon" (Documentation/gpu/amdgpu/thermal.rst): power1_cap is the
selected cap in microwatts, between power1_cap_min and power1_cap_max. The driver keeps only whole watts of a written
value.
"""

from __future__ import annotations

from typing import Any

from hosttune.errors import Unreadable, WriteFailed
from hosttune.gpu.knobs import POWER_LIMIT, Knobs
from hosttune.machine.reader import number
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.gpu import Gpu

_MICROWATTS = 10**6


def facts(system: System, address: str) -> Gpu:
    """Return the power cap and its range in watts; unknown if the driver shows none (a virtual function). See Knobs."""
    cap = _cap(system, address)
    return Gpu(
        address=address,
        power_limit_watts=_watts(system, cap),
        power_default_watts=_watts(system, cap and f"{cap}_default"),
        power_min_watts=_watts(system, cap and f"{cap}_min"),
        power_max_watts=_watts(system, cap and f"{cap}_max"),
    )


def _cap(system: System, address: str) -> str | None:
    """Return the path of the cap's file. The kernel numbers its hardware monitors anew at every boot."""
    folder = sysfs.function(address, "hwmon")
    monitors = system.list(folder)
    return f"{folder}/{monitors[0]}/power1_cap" if monitors else None


def _watts(system: System, path: str | None) -> float | None:
    text = system.read(path) if path else None
    if not text:
        return None
    microwatts = number(text)
    if microwatts is None:
        raise Unreadable(path or "", f"reads {text[:40]!r}, which is not a number")
    return microwatts / _MICROWATTS


def _set_power_limit(system: System, address: str, watts: Any) -> None:
    path = _cap(system, address)
    if path is None:
        raise WriteFailed(f"the power limit of {address}", "amdgpu shows no power cap for it")
    system.write(path, str(round(watts * _MICROWATTS)))


AMD_KNOBS = Knobs(driver="amdgpu", facts=facts, writers={POWER_LIMIT: _set_power_limit})
