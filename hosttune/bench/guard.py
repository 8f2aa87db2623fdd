"""Which GPUs a benchmark may load: none that somebody uses, none that is prepared for a guest.

Loading a GPU under a tenant's work is an outage; so what is not known to be free is refused, not tried.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hosttune.errors import Refused
from hosttune.holders import Holder, holders
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host
from hosttune.system import System

# Daemons of the driver that keep GPUs open and compute nothing.
_KEEPERS = frozenset(
    ("nvidia-persistenced", "nvidia-persiste", "nv-fabricmanager", "nv-hostengine", "dcgm-exporter", "nvidia-topologyd")
)
# Names of vGPU types end so, "NVIDIA H200X-1-18C", "GRID A100X-40C" (NVIDIA, virtual GPU types for Hopper and Ampere).
_VGPU = re.compile(r"[A-Z0-9]-(?:\d{1,2}-)?\d{1,3}(?:C|CME|Q|B|A)$")


@dataclass(frozen=True)
class Chosen:
    """GPUs to load, and those left out with the reason and what would change it."""

    gpus: tuple[Gpu, ...]
    left_out: tuple[tuple[Gpu, str], ...]


def choose(system: System, host: Host) -> Chosen:
    """The GPUs of accelerator makers that may be loaded.

    Raises Refused for one that a process or guest holds, or where that cannot be told: by an unprivileged user who
    sees no other process, unless the driver itself counts none.
    """
    drivers = {device.address: device.driver for device in host.pci}
    left_out: list[tuple[Gpu, str]] = []
    wanted: list[Gpu] = []
    for gpu in host.gpus:
        why = None if gpu.vendor == "other" else _unfit(gpu, drivers.get(gpu.address))
        if gpu.vendor == "other":
            continue
        if why is None:
            wanted.append(gpu)
        else:
            left_out.append((gpu, why))
    _refuse_used(system, host, tuple(wanted))
    return Chosen(tuple(wanted), tuple(left_out))


def _unfit(gpu: Gpu, driver: str | None) -> str | None:
    if driver is None:
        return "no driver holds it: bind its maker's driver to measure it"
    if "vfio" in driver:
        return f"on {driver}, for a guest: measure it inside the guest, or give it back (hosttune revert) first"
    if gpu.vendor != "nvidia":
        return f"no benchmark for GPUs of {gpu.vendor} here: not measured, and held against nothing"
    if gpu.mig is not None and gpu.mig.mode == "enabled":
        return "MIG mode is on: not measured, for whole-GPU figures do not apply to its instances"
    if _VGPU.search(gpu.model or ""):
        return f"{gpu.model} is a vGPU: not measured, for a whole GPU's figures do not apply to a part of one"
    return None


def _refuse_used(system: System, host: Host, gpus: tuple[Gpu, ...]) -> None:
    for gpu in gpus:
        user = _guest_of(host, gpu.address)
        if user is not None:
            raise Refused(f"guest {user} has it", where=gpu.address, hint=f"virsh shutdown {user}, or wait for its end")
        if gpu.processes:
            raise Refused(
                f"{gpu.processes} processes compute on it",
                where=gpu.address,
                hint="nvidia-smi names them: end them first",
            )
    idle = {gpu.address for gpu in gpus if gpu.processes == 0}
    for holder in holders(system, [gpu.address for gpu in gpus]):
        if holder.unknown:
            if not all(gpu.address in idle for gpu in gpus):
                raise Refused(holder.text, where=holder.address, hint="run as root on the machine itself")
        elif not _harmless(holder):
            raise Refused(holder.text, where=holder.address, hint=holder.hint)


def _guest_of(host: Host, address: str) -> str | None:
    """The running guest that has a device. One that is merely defined uses nothing."""
    for guest in running(host):
        if address in {device for known in host.guests or () if known.name == guest for device in known.devices}:
            return guest
    return None


def running(host: Host) -> tuple[str, ...]:
    """Names of guests that are not known to be shut off."""
    return tuple(guest.name for guest in host.guests or () if guest.state not in ("shutoff", "shut off"))


def _harmless(holder: Holder) -> bool:
    return holder.guest is None and (holder.pid == os.getpid() or holder.name in _KEEPERS)
