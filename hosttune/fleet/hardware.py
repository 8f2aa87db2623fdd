"""The hardware that a host's figures belong to: its GPUs and its product name.

Read from the host's validation, or from its host document if the validation does not have it.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from hosttune.errors import BadInput
from hosttune.fleet.medians import Hardware
from hosttune.fleet.results import answer_path, read_file
from hosttune.model.gpu import OTHER
from hosttune.model.jsontext import typed_json
from hosttune.model.validation import Validation


class _FleetPlatform(msgspec.Struct):
    product: str | None = None


class _FleetFunction(msgspec.Struct):
    address: str
    vendor_id: str | None = None
    device_id: str | None = None


class _FleetGpu(msgspec.Struct):
    address: str
    vendor: str | None = None
    model: str | None = None


class _FleetHost(msgspec.Struct):
    """The part of a host document that the report needs; the rest is skipped and not decoded."""

    hostname: str | None = None
    platform: _FleetPlatform | None = None
    pci: tuple[_FleetFunction, ...] | None = None
    gpus: tuple[_FleetGpu, ...] | None = None


class HostHardware(msgspec.Struct, frozen=True):
    """The host name and hardware of a host, from its validation or its last host document."""

    hostname: str | None
    hardware: Hardware

    @property
    def devices(self) -> str | None:
        """The number of its GPUs by model ("8 × NVIDIA H200"); None if it has no GPU."""
        counted = Counter(model for model, _ in self.hardware.gpus.values())
        return ", ".join(f"{number} × {model}" for model, number in counted.items()) or None


def machine_of(validation: Validation) -> HostHardware | None:
    """Return the machine that a validation names; None if an older hosttune made the validation."""
    machine = validation.machine
    if machine is None:
        return None
    gpus = {gpu.address: (gpu.model or "GPU", gpu.id) for gpu in machine.gpus}
    return HostHardware(validation.host, Hardware(gpus, machine.product))


def read_machine(results: str, host: str) -> HostHardware | None:
    """Return the machine from RESULTS/HOST/discover.json of any run; None if there is none or it cannot be read.

    It does not influence a verdict. It only decides with which hosts figures are compared, and what the report prints
    beside the host's name.
    """
    try:
        data = read_file(answer_path(results, host, "discover"))
        document = typed_json(data, _FleetHost) if data is not None else None
    except BadInput:
        return None  # the phase `discover` has its own answer; here the hardware is just unknown
    if document is None or document.gpus is None:
        return None
    ids = {
        function.address: f"{function.vendor_id}:{function.device_id}"
        for function in document.pci or ()
        if function.vendor_id and function.device_id
    }
    gpus = {
        gpu.address: (gpu.model or f"{gpu.vendor} GPU", ids.get(gpu.address))
        for gpu in document.gpus
        if gpu.vendor not in (None, OTHER)
    }
    return HostHardware(
        document.hostname, Hardware(gpus, document.platform.product if document.platform is not None else None)
    )
