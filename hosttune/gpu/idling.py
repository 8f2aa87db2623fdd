"""Which drivers slow the link of an idle GPU by themselves, so that a low speed alone is no fault."""

from __future__ import annotations

# NVIDIA says that generation and width "may be reduced" while idle (nvidia-smi documentation); the others use
# runtime power management or dynamic link speeds (amdgpu's pcie_gen_cap, i915 and xe suspend the device).
IDLING_DRIVERS = frozenset(("nvidia", "nouveau", "amdgpu", "radeon", "i915", "xe"))

# Of those, the drivers whose GPUs a level 1 validation loads, and reads the link of meanwhile (hosttune.bench.guard).
LOADED_DRIVERS = frozenset(("nvidia",))
