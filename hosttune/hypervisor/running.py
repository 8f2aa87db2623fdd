"""Proof that a running guest is where its plan puts it, from the kernel's own files and not from XML.

proc(5): `status` (Cpus_allowed_list) and `comm` of each thread, `numa_maps` of the process, the links in `fd`.
"""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.discovery.processes import read_process
from hosttune.domain.defined import as_planned
from hosttune.domain.guestdiff import compare_memory, compare_threads
from hosttune.errors import Unreadable
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.plan import PlannedGuest


def verify_running(system: System, guest: PlannedGuest, process: int) -> tuple[str, ...]:
    """Return how a running guest differs from its plan, one text each; empty if everything is as planned.

    `process` is QEMU's. What cannot be read counts as a difference, because unknown is not proof.
    """
    expected, reader = as_planned(guest), Reader(system)
    running = read_process(reader, guest.name, process)
    differences = [f"{problem.what}: {problem.where}: {problem.why}" for problem in reader.problems]
    if running.threads is None:
        differences.append(f"threads: unknown, process {process} shows none")
    else:
        differences += [difference.text for difference in compare_threads(expected, running.threads, planned=True)]
    differences += [difference.text for difference in compare_memory(expected, running, planned=True)]
    try:
        differences += _devices(system, guest, process)
    except Unreadable as error:
        differences.append(f"devices: unknown, {error.what}")
    return tuple(differences)


def _devices(system: System, guest: PlannedGuest, process: int) -> Iterator[str]:
    if not guest.devices:
        return
    folder = f"/proc/{process}/fd"
    open_files = {system.link(f"{folder}/{name}") for name in system.list(folder)}
    for device in guest.devices:
        mediated = device.kind == "mdev"
        if not mediated:
            driver = (system.link(sysfs.function(device.address, "driver")) or "").rpartition("/")[2]
            if driver != "vfio-pci":
                yield f"device {device.address}: planned on vfio-pci, bound to {driver or 'no driver'}"
        # The files through which QEMU can hold a device: its group's, or with iommufd its own. Source: driver-
        # api/vfio.rst.
        bus = "mdev" if device.kind == "mdev" else "pci"
        device_folder = f"/sys/bus/{bus}/devices/{device.address}"
        group = (system.link(f"{device_folder}/iommu_group") or "").rpartition("/")[2]
        own = (f"/dev/vfio/devices/{name}" for name in system.list(f"{device_folder}/vfio-dev"))
        doors = ((f"/dev/vfio/{group}",) if group else ()) + tuple(own)
        if not doors:
            yield f"device {device.address}: unknown, it has no IOMMU group"
        elif not open_files.intersection(doors):
            yield f"device {device.address}: process {process} does not hold {' or '.join(doors)}"
