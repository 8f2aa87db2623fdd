"""Choose the GPUs that a benchmark may load: only GPUs that are not in use and not prepared for a guest.

Loading a GPU while a tenant uses it is an outage. So a GPU that is not known to be free is refused.
"""

from __future__ import annotations

import os
import re

import msgspec

from hosttune.discovery.holders import holders
from hosttune.errors import Refused, Unreadable
from hosttune.gpu import VENDORS, hints_for, vendor_of
from hosttune.gpu.inside import is_vgpu
from hosttune.gpu.vendor import Bench, MeasuredPart
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.host import Gpu, Host, PciDevice

# Driver daemons that keep GPUs open but compute nothing.
_KEEPERS = frozenset(name for vendor in VENDORS for name in vendor.traces.daemons)
# A mediated device is a folder in its parent device's folder: Documentation/driver-api/vfio-mediated-device.rst.
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# The initial PID namespace, in which every process is visible: PROC_PID_INIT_INO, include/linux/proc_ns.h.
_ALL_PROCESSES = f"pid:[{0xEFFFFFFC}]"


class Chosen(msgspec.Struct, frozen=True):
    """The GPUs of one maker that may be loaded: `gpus` together, each of `parts` by a separate process.

    `left_out`: GPUs that are not measured, with the reason and what would change it. `unknown`: GPUs for which it is
    unknown what to load, with the reason. `bench`: how the maker's GPUs are loaded.
    """

    gpus: tuple[Gpu, ...]
    left_out: tuple[tuple[Gpu, str], ...]
    parts: tuple[MeasuredPart, ...] = ()
    bench: Bench | None = None
    unknown: tuple[tuple[Gpu, str], ...] = ()


def choose(system: System, host: Host) -> Chosen:
    """Return the accelerators that may be loaded, and the parts of those that are measured in parts.

    Raises Refused if a process or guest uses one of them. Also raises Refused if this is unknown, because the user has
    no privilege to see other processes, unless the driver itself counts no process.
    """
    reasons = {gpu.address: _unfit(gpu, host.index.pci.get(gpu.address)) for gpu in host.index.accelerators}
    fit = tuple(gpu for gpu in host.gpus if gpu.address in reasons and reasons[gpu.address] is None)
    maker = next((vendor for vendor in VENDORS if any(gpu.vendor == vendor.name for gpu in fit)), None)
    bench = maker.bench if maker is not None else None
    gpus: list[Gpu] = []
    parts: list[MeasuredPart] = []
    unknown: list[tuple[Gpu, str]] = []
    for gpu in fit:
        gpu_parts = bench.parts(gpu) if bench is not None else None
        if maker is not None and gpu.vendor != maker.name:
            reasons[gpu.address] = f"GPUs of {maker.name} are measured here, and one Python has one maker's library"
        elif isinstance(gpu_parts, str):
            unknown.append((gpu, gpu_parts))
        elif gpu_parts is None:
            gpus.append(gpu)
        elif not gpu_parts:
            reasons[gpu.address] = "it is divided into instances, and there is none: nothing on it can be loaded"
        else:
            parts += gpu_parts
    loaded = {gpu.address for gpu in gpus} | {part.address for part in parts}
    _refuse_used(system, host, tuple(gpu for gpu in fit if gpu.address in loaded))
    left_out = tuple((gpu, why) for gpu in host.gpus if (why := reasons.get(gpu.address)) is not None)
    return Chosen(tuple(gpus), left_out, tuple(parts), bench, tuple(unknown))


def why_not(system: System, host: Host, gpu: Gpu) -> str | None:
    """Return why one GPU, as a whole, may not be loaded; None if it may: as `choose`."""
    unfit = _unfit(gpu, host.index.pci.get(gpu.address))
    if unfit is not None:
        return unfit
    maker = vendor_of(gpu.vendor)
    if maker is not None and maker.bench is not None and maker.bench.parts(gpu) is not None:
        return "it is divided into parts, or whether it is, is unknown"
    try:
        _refuse_used(system, host, (gpu,))
    except Refused as error:
        return error.what
    return None


def _unfit(gpu: Gpu, device: PciDevice | None) -> str | None:
    driver = device.driver if device is not None else None
    maker = vendor_of(gpu.vendor)
    if device is None or driver is None:
        return "no driver holds it: bind its maker's driver to measure it"
    if "vfio" in driver:
        return f"on {driver}, for a guest: measure it inside the guest, or give it back (hosttune revert) first"
    if maker is None or maker.bench is None:
        return f"no benchmark for GPUs of {gpu.vendor} here: not measured, not compared"
    if driver != maker.driver:
        return f"on {driver}, through which no library reaches it: bind {maker.driver} to measure it"
    if device.virtfns:
        return f"it has {len(device.virtfns)} virtual functions, for guests: neither it nor its parts are loaded"
    if gpu.fabric_state == "in progress" and not gpu.mig_on:
        return (
            "its NVSwitch fabric is in progress, and CUDA fails with error 802: on a host with FABRIC_MODE 1 or 2"
            " activate a partition with it first (fmpm -l, fmpm -a ID), or measure it inside its guest; else see"
            " fabric-state"
        )
    if is_vgpu(gpu.model):
        return f"{gpu.model} is a vGPU: not measured, for a whole GPU's figures do not apply to a part of one"
    return None


def _refuse_used(system: System, host: Host, gpus: tuple[Gpu, ...]) -> None:
    for gpu in gpus:
        mediated = [name for name in Reader(system).names(sysfs.function(gpu.address)) if _UUID.fullmatch(name)]
        if mediated:
            raise Refused(
                f"it has {len(mediated)} mediated devices, for guests", where=gpu.address, hint="measure inside a guest"
            )
        user = _guest_of(host, gpu.address)
        if user is not None:
            raise Refused(f"guest {user} has it", where=gpu.address, hint=f"virsh shutdown {user}, or wait for its end")
        if gpu.processes:
            raise Refused(
                f"{gpu.processes} processes compute on it",
                where=gpu.address,
                hint=f"{hints_for(gpu).processes} names them: end them first",
            )
    # In MIG mode the driver counts the processes on all instances only for callers with the permission to see them
    # (nvml.h, nvmlDeviceGetComputeRunningProcesses). So a count of 0 proves nothing there.
    idle = {gpu.address for gpu in gpus if (gpu.processes == 0 and not gpu.mig_on)}
    if not all(gpu.address in idle for gpu in gpus) and not _sees_all_processes(system):
        raise Refused(
            "whether anything uses it is unknown: its driver counts no processes, and not all are visible from here",
            where=", ".join(gpu.address for gpu in gpus if gpu.address not in idle),
            hint="run on the machine itself, not in a container: readlink /proc/self/ns/pid says " + _ALL_PROCESSES,
        )
    for holder in holders(system, [gpu.address for gpu in gpus]):
        if holder.unknown:
            if not all(gpu.address in idle for gpu in gpus):
                raise Refused(holder.text, where=holder.address, hint="run as root on the machine itself")
        elif not (holder.guest is None and (holder.pid == os.getpid() or holder.name in _KEEPERS)):
            raise Refused(holder.text, where=holder.address, hint=holder.hint)


def _sees_all_processes(system: System) -> bool:
    """Return whether this process is in the machine's own PID namespace, not in that of a container."""
    try:
        return (system.link("/proc/self/ns/pid") or "").rpartition("/")[2] == _ALL_PROCESSES
    except Unreadable:
        return False


def _guest_of(host: Host, address: str) -> str | None:
    """Return the name of the running guest that has a device, or None. A guest that is only defined uses no device."""
    for guest in running(host):
        if address in {device for known in host.guests or () if known.name == guest for device in known.devices}:
            return guest
    return None


def running(host: Host) -> tuple[str, ...]:
    """Return the names of all guests except those known to be shut off."""
    return tuple(guest.name for guest in host.guests or () if guest.state not in ("shutoff", "shut off"))
