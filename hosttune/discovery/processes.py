"""System → running guests as the kernel has them, and what a former tenant may have left behind.

proc(5): `comm` and `status` (Cpus_allowed_list) of each thread, `numa_maps` of the process. libvirt keeps the process
id of a guest in /run/libvirt/qemu; a QEMU of that name serves where it does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hosttune.discovery.guests import qemu_processes
from hosttune.discovery.maps import Mapped, parse_maps
from hosttune.model.evidence import GuestProcess, GuestThread, Leftovers
from hosttune.model.host import Host
from hosttune.reader import Reader, number

_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*([0-9,-]+)\s*$", re.MULTILINE)
_MDEVS = "/sys/bus/mdev/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MOST_PID = 1 << 22  # PID_MAX_LIMIT, include/linux/threads.h


def read_processes(reader: Reader, host: Host) -> tuple[GuestProcess, ...] | None:
    """Every guest that has a process now, by name; None where nobody knows which guests there are."""
    if host.guests is None:
        return None
    return tuple(_process(reader, guest.name) for guest in host.guests if guest.state not in (None, "shut off"))


def _process(reader: Reader, name: str) -> GuestProcess:
    pid = _pid(reader, name)
    if pid is None:
        return GuestProcess(guest=name)
    maps = tuple(parse_maps(reader.text(f"/proc/{pid}/numa_maps") or ""))
    sizes = {mapped.page_bytes for mapped in maps if mapped.huge}
    return GuestProcess(
        guest=name,
        pid=pid,
        threads=_threads(reader, pid),
        memory_by_node=_by_node(maps) if maps else None,
        page_bytes=sizes.pop() if len(sizes) == 1 else None,
    )


def _pid(reader: Reader, name: str) -> int | None:
    kept = number(reader.text(f"/run/libvirt/qemu/{name}.pid") or "", _MOST_PID)
    if kept is not None:
        return kept
    found = [pid for pid, guest in qemu_processes(reader) if guest == name]
    return found[0] if len(found) == 1 else None


def _threads(reader: Reader, pid: int) -> tuple[GuestThread, ...] | None:
    """The threads by name; None where the kernel shows none, for a process has at least one."""
    found: dict[tuple[str, str | None], None] = {}
    for thread in reader.names(f"/proc/{pid}/task"):
        name = reader.text(f"/proc/{pid}/task/{thread}/comm")
        status = reader.text(f"/proc/{pid}/task/{thread}/status")
        if name is None or status is None:
            continue  # it ended meanwhile
        allowed = _ALLOWED.search(status)
        found[name, allowed[1] if allowed else None] = None
    return tuple(GuestThread(name=name, cpus=cpus) for name, cpus in found) or None


def _by_node(maps: Sequence[Mapped]) -> dict[str, int]:
    huge = [mapped for mapped in maps if mapped.huge]
    held: dict[str, int] = {}
    for mapped in huge or maps:
        for node, pages in mapped.pages.items():
            held[node] = held.get(node, 0) + pages * (mapped.page_bytes or 0)
    return held


def read_leftovers(reader: Reader, host: Host) -> Leftovers:
    """Mediated devices that exist (Documentation/driver-api/vfio-mediated-device)."""
    names = reader.listing(_MDEVS)
    if names is None:
        return Leftovers()
    return Leftovers(mdevs={name: _parent(reader, name) for name in names})


def _parent(reader: Reader, uuid: str) -> str:
    """The PCI function that a mediated device is of; "" where its place does not say."""
    path = reader.link(f"{_MDEVS}/{uuid}") or ""
    found = [part for part in path.split("/") if _ADDRESS.fullmatch(part)]
    return found[-1] if found else ""
