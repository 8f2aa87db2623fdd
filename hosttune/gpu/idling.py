"""Drivers that lower the link speed of an idle GPU by themselves, so that a low speed alone is not a fault."""

from __future__ import annotations

# NVIDIA says that generation and width "may be reduced" while idle (nvidia-smi documentation). The others use runtime
# power management or dynamic link speeds (amdgpu's pcie_gen_cap; i915 and xe suspend the device).
IDLING_DRIVERS = frozenset(("nvidia", "nouveau", "amdgpu", "radeon", "i915", "xe"))

# Those drivers whose GPUs a level 1 validation loads; it reads their link speed under load (hosttune.bench.guard).
LOADED_DRIVERS = frozenset(("nvidia",))
