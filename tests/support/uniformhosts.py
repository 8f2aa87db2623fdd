"""Synthetic hosts for the comparison of configuration facts: each fact has a value that all share unless planted."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec
from fleetresults import validation

from hosttune.model.configuration import FACT_KINDS, Fact
from hosttune.model.validation import Machine, MeasuredGpu, Validation

GPUS = tuple(f"0000:{bus:02x}:00.0" for bus in (0x18, 0x2A, 0x3A, 0x5D, 0x84, 0x9A, 0xAB, 0xBA))
NICS, DRIVES = ("0000:17:00.0", "0000:29:00.0"), ("0000:01:00.0",)
KINDS = {"gpu": ("10de:2335 10de:18be", "NVIDIA H200", GPUS), "nic": ("15b3:1021 15b3:0023", "ConnectX-7", NICS),
         "drive": ("144d:a824 1028:0001", "PM1743", DRIVES)}  # fmt: skip
VALUES = {
    "bios-vendor": "Acme", "bios-version": "2.3.5", "bios-date": "07/14/2025", "boot-mode": "EFI",
    "cpu-model": "Xeon 8480", "microcode": "0x2b000590", "sockets": "2", "numa-nodes-per-socket": "1", "smt": "on",
    "boost": "on", "c-states": "POLL C1 C6", "frequency-driver": "intel_pstate", "lockdown": "none",
    "secure-boot": "off",
    "memory-modules": "16 x 65536 MiB at 4800 MT/s", "devices": "1 x 144d:a824, 2 x 10de:2335, 2 x 15b3:1021",
    "iommu": "on, identity", "interrupt-remapping": "yes",
    "os": "Ubuntu 24.04.1 LTS", "kernel": "6.8.0-45-generic", "kernel-arguments": "intel_iommu=on iommu=pt ro root=*",
    "fabric-manager": "570.86.15", "gpu-driver": "570.86.15", "vbios": "96.00.A5.00.01", "gpu-bar": "262144 MiB",
    "nic-firmware": "28.39.1002", "nic-virtual-functions": "16", "drive-firmware": "GDC5602Q",
}  # fmt: skip
assert VALUES.keys() == FACT_KINDS.keys()


def facts(
    planted: Mapping[str, str | None] | None = None,
    *,
    lost: Sequence[str] = (),
    device: Mapping[str, tuple[str, str | None]] | None = None,
) -> tuple[Fact, ...]:
    """The facts of a host. `planted`: other values by name; `lost`: names that are left out; `device`: by name, one
    address of its devices and the value that only this one has."""
    found: list[Fact] = []
    for name in (one for one in VALUES if one not in lost):
        kind, model, subjects = KINDS.get(FACT_KINDS[name].of, (None, None, ()))
        address, odd = (device or {}).get(name, (None, None))
        rows = [((planted or {}).get(name, VALUES[name]), tuple(one for one in subjects if one != address))]
        rows += [(odd, (address,))] if address is not None else []
        found += [
            Fact(name=name, value=value, kind=kind, model=model, subjects=of, source="here") for value, of in rows
        ]
    return tuple(found)


def machine(product: str | None = "PowerBox 9680", gpu: tuple[str, str] = ("NVIDIA H200", "10de:2335")) -> Machine:
    return Machine(product=product, gpus=tuple(MeasuredGpu(address=one, model=gpu[0], id=gpu[1]) for one in GPUS))


def document(
    name: str, configuration: tuple[Fact, ...] | None, of: Machine | None = None, *, bad: bool = False
) -> Validation:
    """A validation with these facts; it passes but for `bad`."""
    found = validation(name, random.Random(1), level=0)
    results = tuple(one for one in found.results if one.outcome == "pass")[:3]
    if bad:
        results = (msgspec.structs.replace(results[0], outcome="fail", hint="mend it"), *results[1:])
    return msgspec.structs.replace(
        found, results=results, verdict="fail" if bad else "pass", machine=of or machine(), configuration=configuration
    )
