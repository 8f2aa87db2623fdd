"""Stand-ins for the GPU libraries that the children import: devices by a JSON variable, operations that do nothing.

They show how devices are told apart and which figures come; what a figure is, only hardware shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TORCH = """
import json, os
_TOLD = json.loads(os.environ["STANDIN"])
_ROWS = _TOLD["devices"]
if _TOLD.get("by", "") in os.environ:
    _ROWS = [row for row in _ROWS if str(row.get("name")) in os.environ[_TOLD["by"]].split(",")]
__version__ = "2.9.0"
uint8 = bfloat16 = float32 = float64 = "type"
float8_e4m3fn, float8_e4m3fnuz = "fn", "fnuz"


class version:
    hip, cuda = _TOLD.get("hip"), None if _TOLD.get("hip") else "13.0"


class Tensor:
    used = []

    def __init__(self, size=1): self.size = size
    def data_ptr(self): return 1 << 40
    def copy_(self, other, non_blocking=False): return self
    def to(self, kind):
        Tensor.used.append(kind)
        return self
    def t(self): return self
    def clone(self): return self
    def cpu(self): return self
    def zero_(self): return self
    def pin_memory(self, device=None):
        if device != "hpu": raise RuntimeError("pinned for " + str(device))
        return self


def _tensor(*a, **k): return Tensor()
empty = randint = randn = ones = empty_like = matmul = _tensor
def _scaled_mm(left, right, **k):
    if Tensor.used[-1] != _TOLD.get("fp8", "fn"): raise RuntimeError("wrong FP8 type " + str(Tensor.used[-1]))
    return Tensor()
def manual_seed(seed): pass
def equal(a, b): return True


class _Event:
    def __init__(self, enable_timing=False): pass
    def record(self): pass
    def synchronize(self): pass
    def query(self): return True
    def elapsed_time(self, other): return 10.0


class _Device:
    def __init__(self, index): pass
    def __enter__(self): pass
    def __exit__(self, *a): pass


class cuda:
    class nccl:
        version = staticmethod(lambda: (2, 27, 3))
    Event, device = _Event, _Device
    device_count = staticmethod(lambda: len(_ROWS))
    synchronize = staticmethod(lambda index=None: None)
    can_device_access_peer = staticmethod(lambda a, b: True)
    class cudart:
        cudaHostRegister = staticmethod(lambda *a: 0)
        cudaHostUnregister = staticmethod(lambda *a: 0)
    @staticmethod
    def get_device_properties(index):
        row = _ROWS[index]
        class seen:
            name, total_memory = "GPU", 1 << 37
            multi_processor_count = row.get("multiprocessors", 132)
            gcnArchName = row.get("arch", "")
        if "bus" in row:
            seen.pci_domain_id, seen.pci_bus_id, seen.pci_device_id = 0, row["bus"], 0
        return seen


class backends:
    class cuda:
        class matmul:
            allow_tf32 = False


class hpu:
    device_count = staticmethod(lambda: len(_ROWS))
    get_device_name = staticmethod(lambda index: "GAUDI3")
    synchronize = staticmethod(lambda: None)
"""


def install(folder: Path) -> None:
    """The modules `torch` and `habana_frameworks.torch.core` in a folder for PYTHONPATH."""
    (folder / "torch.py").write_text(TORCH)
    core = folder / "habana_frameworks" / "torch"
    core.mkdir(parents=True)
    (core / "core.py").write_text("")


def told(devices: Sequence[Mapping[str, Any]], **more: Any) -> str:
    """The variable STANDIN: devices, `hip`, `by` (the variable that hides devices by their name), `fp8`."""
    return json.dumps({"devices": list(devices), **more})
