"""What a tenant's use can have left on the host: parts of a device, and files with its guest's memory.

Memory: when a guest has ended, its pages are the kernel's. It zeroes a page before it gives it to a program again:
mm/memory.c (do_anonymous_page: a zeroed folio), mm/hugetlb.c (hugetlb_no_page: clear_huge_page, folio_zero_user since
6.11), mm/shmem.c (shmem_get_folio_gfp clears). hosttune zeroes nothing. Only a file that was left, in hugetlbfs or in
libvirt's folder of memory files, keeps pages with their contents: libvirt makes ID-NAME of at most 20 characters of the
name there, and removes it at the guest's end (src/qemu/qemu_process.c, virDomainDefGetShortName). All of a guest's
memory is also in what libvirt saved or dumped of it: NAME.save (virsh managedsave: qemuDomainManagedSavePath) and
ID-NAME-TIME (on_crash: getAutoDumpPath, both src/qemu/qemu_driver.c), at the places of an unchanged qemu.conf.
"""

from __future__ import annotations

import re

from hosttune.errors import Unreadable
from hosttune.handover.targets import Target
from hosttune.machine.system import System
from hosttune.model import sysfs
from hosttune.model.host import Host

_MOUNTS, _MDEVS = "/proc/self/mounts", "/sys/bus/mdev/devices"
_SAVED, _DUMPED = "/var/lib/libvirt/qemu/save", "/var/lib/libvirt/qemu/dump"
_WHEN = r"-[0-9]{4}(?:-[0-9]{2}){3}(?::[0-9]{2}){2}$"  # the end of a dump's name: -2026-01-31-12:00:59
_SHORT = 20  # characters of a guest's name in its folder
ZEROED = "freed at the guest's end, and zeroed by the kernel before a program gets them"


def parts_left(system: System, host: Host, target: Target) -> tuple[list[str], list[str]]:
    """Return (the parts of a device that a tenant had, which are still there; what cannot be told), one text each.

    The host's driver has the device. Raises Unreadable.
    """
    function, gpu = host.index.pci.get(target.address), host.index.gpus.get(target.address)
    left, unknown = [], []
    if function is not None and function.virtfns:
        left.append(f"virtual functions {', '.join(function.virtfns)}: set their number to 0")
    for name in system.list(_MDEVS):
        path = system.link(f"{_MDEVS}/{name}")
        if path is None:
            unknown.append(f"of which device the mediated device {name} is")
        elif target.address in sysfs.functions_in(path):
            left.append(f"mediated device {name}: echo 1 > {_MDEVS}/{name}/remove")
    mig = gpu.mig if gpu is not None else None
    if mig is not None and mig.instances:
        left.append(f"{len(mig.instances)} MIG instances: destroy them with the maker's tool")
    unlisted = mig is None or (mig.mode != "disabled" and mig.instances is None)
    if gpu is not None and target.search and unlisted and "mig" not in (gpu.lacks or ()):
        unknown.append("whether it has MIG instances")
    return left, unknown


def memory_left(system: System, guest: str) -> list[str]:
    """Return the files and folders that may have the memory of a guest that has ended. Raises Unreadable."""
    text = system.read(_MOUNTS)
    if text is None:
        raise Unreadable(_MOUNTS, "it does not exist: where huge pages are mounted is unknown")
    mounted = [words[1] for line in text.splitlines() for words in (line.split(" "),) if words[2:3] == ["hugetlbfs"]]
    places = [*(f"{mount}/libvirt/qemu" for mount in dict.fromkeys(mounted)), "/var/lib/libvirt/qemu/ram"]
    saved = f"{_SAVED}/{guest}.save"
    return [
        *(f"{place}/{name}" for place in places for name in system.list(place) if _is_of(name, guest)),
        *([saved] if system.exists(saved) else []),
        *(f"{_DUMPED}/{name}" for name in system.list(_DUMPED) if _is_of(re.sub(_WHEN, "", name), guest)),
    ]


def _is_of(name: str, guest: str) -> bool:
    """Return whether libvirt's short name of a guest can be that of this one."""
    number, _, short = name.partition("-")
    return number.isdecimal() and short == guest[:_SHORT]
