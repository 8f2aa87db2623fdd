"""Hosts with MIG and vGPUs for tests: GPUs with their virtual functions, as the vGPU manager's host would show them.

Synthetic: no such host was at hand. The forms of the files are those of NVIDIA's vGPU documentation.
"""

from __future__ import annotations

from typing import Any

from domain_shapes import ONE_GPU, changed, flat_bus
from planhosts import Card, Shape, build_host

from hosttune.gpu.mig_tables import offer_of
from hosttune.inventory.sizing import PlanningContext, read_field
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, PciDevice
from hosttune.model.intent import GuestIntent, Intent, MigRequest
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import to_builtins, to_json
from hosttune.planning.mig.guest import MigParts, as_devices, plan_mig_guest
from hosttune.planning.mig.instances import mig_choices

A, B, C, D = "0000:41:00.0", "0000:42:00.0", "0000:81:00.0", "0000:82:00.0"
NODES = {A: 0, B: 0, C: 1, D: 1}
MODEL = "NVIDIA H200"
TYPES = {"1-18C": "1414", "1-18CME": "1415", "1-35C": "1416", "2-35C": "1417", "3-71C": "1418", "4-71C": "1419"}
PROFILES = offer_of(Gpu(address=A), PciDevice(address=A, vendor_id="10de", device_id="2335")).profiles


def functions_of(address: str, count: int = 8) -> list[str]:
    """The virtual functions of a GPU: slot 0, functions 4 and up, then slot 1, as an H200's."""
    slot = address.rpartition(":")[0]
    return [f"{slot}:{n // 8:02x}.{n % 8}" for n in range(4, 4 + count)]


def mig_host(*gpus: str, mode: str = "enabled", vgpus: bool = True, **changes: Any) -> dict[str, Any]:
    """A host document with these H200s on the host's driver, MIG on and no instance, and a running vGPU manager."""
    cards = [Card(address, node=NODES[address], driver="nvidia", group=n) for n, address in enumerate(gpus)]
    host = build_host(Shape(cards=cards, memory_gib=512, cores_per_node=32), **changes)
    for row in host["gpus"]:
        mig = {"mode": mode, "pending": mode, "profiles": to_builtins(PROFILES), "instances": []}
        row |= {"model": MODEL, "source": "nvml", "mig": mig if mode == "enabled" else {**mig, "instances": None}}
    if vgpus:
        host["vgpu"] = {"manager": True, "sriov_manage": True, "gpus": [_vgpu(address) for address in gpus]}
        group = 100
        for address in gpus:
            pf = next(row for row in host["pci"] if row["address"] == address)
            pf["virtfns"] = functions_of(address)
            for name in functions_of(address):
                group += 1
                row = {**pf, "address": name, "physfn": address, "virtfns": [], "iommu_group": group, "bars": []}
                host["pci"].append(row)
    return host


def _vgpu(address: str) -> dict[str, Any]:
    return {
        "address": address,
        "framework": "vfio",
        "functions": [{"address": name, "current_type": "0"} for name in functions_of(address)],
        "types": [{"id": number, "name": f"NVIDIA H200X-{suffix}"} for suffix, number in TYPES.items()],
    }


def gpu_row(host: dict[str, Any], address: str) -> dict[str, Any]:
    """The row of a GPU, to be changed."""
    row: dict[str, Any] = next(row for row in host["gpus"] if row["address"] == address)
    return row


def pci_row(host: dict[str, Any], address: str) -> dict[str, Any]:
    """The row of a PCI function, to be changed."""
    row: dict[str, Any] = next(row for row in host["pci"] if row["address"] == address)
    return row


def vgpu_row(host: dict[str, Any], address: str) -> dict[str, Any]:
    """The vGPU row of a GPU, to be changed."""
    row: dict[str, Any] = next(row for row in host["vgpu"]["gpus"] if row["address"] == address)
    return row


def field_of(host: dict[str, Any]) -> PlanningContext:
    """What planning looks at."""
    return read_field(Host.from_json(to_json(host)), Intent(version=1).reserve)


def guest_of(profile: str = "1g.18gb", count: int = 1, **more: Any) -> GuestIntent:
    """A guest with MIG instances; alone they are vGPUs."""
    return GuestIntent(name="g", mig=MigRequest(profile=profile, count=count), **more)


def parts_of(field: PlanningContext, guest: GuestIntent, *taken: str) -> MigParts:
    """What a guest's first choice of slots comes to."""
    return plan_mig_guest(field, guest, next(mig_choices(field, guest, {}, "")), taken)


def planned(parts: MigParts) -> PlannedGuest:
    """A planned guest with these vGPUs on root ports."""
    addresses = {device.function: f"0000:{n:02x}:00.0" for n, device in enumerate(parts.devices, 1)}
    devices = as_devices(parts, dict.fromkeys(addresses, 0), addresses)
    return changed(ONE_GPU, name="g", devices=devices, mig=parts.mig, steps=parts.steps, controllers=flat_bus(8))
