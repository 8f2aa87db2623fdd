"""What a host's figures belong to: its GPUs and its product, from its validation, else from its host document."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.medians import Hardware
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.gpu import OTHER
from hosttune.model.validation import Validation


class _Platform(msgspec.Struct):
    product: str | None = None


class _Function(msgspec.Struct):
    address: str
    vendor_id: str | None = None
    device_id: str | None = None


class _Gpu(msgspec.Struct):
    address: str
    vendor: str | None = None
    model: str | None = None


class _Host(msgspec.Struct):
    """What the report needs of a host document; the rest of it is skipped, never built."""

    hostname: str | None = None
    platform: _Platform | None = None
    pci: tuple[_Function, ...] | None = None
    gpus: tuple[_Gpu, ...] | None = None


_DECODER = msgspec.json.Decoder(_Host)


@dataclass(frozen=True)
class HostHardware:
    """A host as its last host document has it."""

    hostname: str | None
    hardware: Hardware

    @property
    def devices(self) -> str | None:
        """Its GPUs counted ("8 × NVIDIA H200"); None without any."""
        counted = Counter(model for model, _ in self.hardware.gpus.values())
        return ", ".join(f"{number} × {model}" for model, number in counted.items()) or None


def machine_of(validation: Validation) -> HostHardware | None:
    """The machine that a validation says it is about; None where an older hosttune made it."""
    found = validation.machine
    if found is None:
        return None
    gpus = {gpu.address: (gpu.model or "GPU", gpu.id) for gpu in found.gpus}
    return HostHardware(validation.host, Hardware(gpus, found.product))


def read_machine(results: str, host: str) -> HostHardware | None:
    """The machine from RESULTS/HOST/discover.json, of whichever run wrote it; None where there is none that reads.

    Nothing is judged by it: it only says with whom figures are compared, and what stands beside a name.
    """
    try:
        data = read_file(answer_path(results, host, "discover"))
        found = _DECODER.decode(data) if data is not None else None
    except (BadInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the phase `discover` is judged by its own answer; here it is only missing knowledge
    if found is None or found.gpus is None:
        return None
    ids = {
        one.address: f"{one.vendor_id}:{one.device_id}" for one in found.pci or () if one.vendor_id and one.device_id
    }
    gpus = {
        gpu.address: (gpu.model or f"{gpu.vendor} GPU", ids.get(gpu.address))
        for gpu in found.gpus
        if gpu.vendor not in (None, OTHER)
    }
    return HostHardware(found.hostname, Hardware(gpus, found.platform.product if found.platform is not None else None))
