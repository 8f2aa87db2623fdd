"""System → running guests as the kernel shows them, and devices that a former tenant may have left behind.

proc(5): `comm` and `status` (Cpus_allowed_list) of each thread, `numa_maps` of the process. A guest's process is the
QEMU process of its name. If several have that name, it is the one whose id libvirt keeps in /run/libvirt/qemu. That
file alone proves nothing: it stays when libvirt dies, and the kernel reuses ids. But no other process is the guest's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hosttune.discovery.qemu import MAX_PID, QEMU_COMMS, qemu_processes
from hosttune.discovery.sets import parsed
from hosttune.machine.reader import Reader, number
from hosttune.model import sysfs
from hosttune.model.evidence import GuestProcess, GuestThread, Leftovers
from hosttune.model.host import Host
from hosttune.model.text import unescaped
from hosttune.model.values import grouped

# --- the text of numa_maps -----------------------------------------------------------------------------------


_COUNTED = re.compile(r" (?:N[0-9]|anon=|dirty=|mapped=)")  # half of the mappings have no pages
_FIELD = re.compile(r" (N[0-9]{1,4}|anon|dirty|mapped|kernelpagesize_kB)=([0-9]{1,15})(?![^ ])")
_FILE = re.compile(r" (?:file=(\S+)|(heap|stack)\b)")


class Mapped(NamedTuple):
    """One mapping: its memory policy ("bind:0"), the file behind it, and the number of its pages in memory by node.

    `file` is None for anonymous memory, and a name in brackets for heap and stack. `page_bytes` None: unknown.
    """

    policy: str
    pages: Mapping[str, int]
    page_bytes: int | None
    huge: bool
    file: str | None


def parse_maps(text: str) -> tuple[list[Mapped], str | None]:
    """Return the mappings that have pages, and the first incomplete line.

    Its pages by node do not add up to its total, or an earlier line has its address. The total is `mapped`. The kernel
    leaves `mapped` out if it equals `anon` or `dirty`, which are parts of it; it leaves out all three if there are no
    pages (show_numa_map, fs/proc/task_mmu.c). It escapes blanks in file names ("\\040").
    """
    maps: list[Mapped] = []
    unread: str | None = None
    seen: set[str] = set()
    for line in text.splitlines():
        address, _, rest = line.partition(" ")
        if address in seen or not rest.strip():
            unread = unread or line
        seen.add(address)
        if not _COUNTED.search(rest):
            continue
        fields = dict(_FIELD.findall(rest))
        pages = {key[1:]: int(count) for key, count in fields.items() if key[0] == "N"}
        every = fields.get("mapped") or max(fields.get("anon", "0"), fields.get("dirty", "0"), key=int)
        if sum(pages.values()) != int(every):
            unread = unread or line
        if pages:
            place = _FILE.search(rest)
            file = place[1] or f"[{place[2]}]" if place else None
            size = int(fields["kernelpagesize_kB"]) << 10 if "kernelpagesize_kB" in fields else None
            maps.append(Mapped(rest.split(" ", 1)[0], pages, size, " huge " in f"{rest} ", file))
    return maps, unread


# --- processes -----------------------------------------------------------------------------------------------


_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(.*?)\s*$", re.MULTILINE)
_COUNT = re.compile(r"^Threads:\s*([0-9]{1,7})\s*$", re.MULTILINE)
_RESIDENT = re.compile(r"^VmRSS:\s*([0-9]{1,12}) kB$", re.MULTILINE)
_LOST = GuestThread(name="", cpus=None)  # stands for threads that were not read
_PIDS = "/run/libvirt/qemu"
_OWNER = re.compile(r"/libvirt/qemu/[0-9]{1,9}-([^/]+)/")
_SHORT = 20
_MDEVS = "/sys/bus/mdev/devices"
_CELL = re.compile(r"\bram-node([0-9]{1,4})\b")  # libvirt's name of a cell's memory, part of the file's name


def read_processes(reader: Reader, host: Host) -> tuple[GuestProcess, ...] | None:
    """Return every guest that has a process now, by name; None if it is unknown which guests there are."""
    if host.guests is None:
        return None
    pids = _pids(reader)
    return tuple(_process(reader, guest.name, pids) for guest in host.guests if guest.state not in (None, "shut off"))


def _process(reader: Reader, name: str, pids: Mapping[str, Sequence[int]]) -> GuestProcess:
    pid = _own_pid(reader, name, pids)
    if pid is None:
        return GuestProcess(guest=name)
    comm = reader.text(f"/proc/{pid}/task/{pid}/comm")
    why = f"it is {comm[:20]!r}" if comm and not comm.lstrip(".").startswith(QEMU_COMMS) else None
    text = numa_maps(reader, pid) if why is None else ""
    if why := why or _memory_of_another(name, text):
        reader.problem("process of another guest", f"/proc/{pid}", f"listed as that of guest {name}, but {why}")
        return GuestProcess(guest=name)
    return _read(reader, name, pid, text)


def numa_maps(reader: Reader, pid: int) -> str:
    """Return the text of numa_maps, which is read once: the kernel walks through all pages of the process."""
    return reader.text(f"/proc/{pid}/numa_maps") or ""


def _memory_of_another(name: str, text: str) -> str | None:
    """Return why a process is not that of the guest with this name, by its numa_maps; None if nothing shows it.

    libvirt puts huge pages into a folder with the guest's id and the first 20 characters of its name (domain_conf.c,
    virDomainDefGetShortName).
    """
    files = (mapped.file for mapped in parse_maps(text)[0] if mapped.file)
    owners = {unescaped(match[1]) for file in files if (match := _OWNER.search(file))}
    others = sorted(owner for owner in owners if owner != name[:_SHORT])
    return f"its memory is in the folder of guest {others[0]!r}" if others else None


def read_process(reader: Reader, name: str, pid: int) -> GuestProcess:
    """Return the threads and the memory of a guest's process.

    What cannot be read is None, with a problem of the reader.
    """
    return _read(reader, name, pid, numa_maps(reader, pid))


def _read(reader: Reader, name: str, pid: int, text: str) -> GuestProcess:
    maps, unread = parse_maps(text)
    if unread is not None:
        reader.problem(
            "not a line of numa_maps",
            f"/proc/{pid}/numa_maps",
            f"reads {unread[:60]!r}: where its memory is, is unknown",
        )
        maps = []
    # Each thread of a process shows the same; the one with the process's id is read.
    resident = set(_RESIDENT.findall(reader.text(f"/proc/{pid}/task/{pid}/status") or ""))
    # By cell and node; None if no mapping names a cell.
    held: dict[str, dict[str, int]] = {}
    for mapped in maps:
        named = _CELL.search(mapped.file or "")
        if named and mapped.page_bytes is not None:
            of_cell = held.setdefault(named[1], {})
            for node, pages in mapped.pages.items():
                of_cell[node] = of_cell.get(node, 0) + pages * mapped.page_bytes
    fields = (reader.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()  # the name may have any characters
    return GuestProcess(
        guest=name,
        pid=pid,
        threads=read_threads(reader, pid),
        memory_by_node=_by_node(maps),
        page_sizes=tuple(sorted({mapped.page_bytes for mapped in maps if mapped.huge and mapped.page_bytes})),
        memory_by_cell=held or None,
        resident_bytes=int(resident.pop()) << 10 if len(resident) == 1 else None,
        started=number(fields[19]) if len(fields) > 19 else None,
    )


def pid_of(reader: Reader, name: str) -> int | None:
    """Return the guest's process id; None if no QEMU has its name, or if several do and libvirt does not say which."""
    return _own_pid(reader, name, _pids(reader))


def _pids(reader: Reader) -> dict[str, list[int]]:
    """Return the ids of QEMU processes by the name of their guest. Read only once, because there may be many guests.

    A process that is listed for two guests is known for neither.
    """
    pids: dict[str, list[int]] = {}
    for pid, listed in grouped(qemu_processes(reader)).items():
        names = set(listed)
        if len(names) > 1:
            reader.problem("process of two guests", f"/proc/{pid}", f"listed for {', '.join(sorted(names)[:3])}")
        else:
            pids.setdefault(names.pop(), []).append(pid)
    return pids


def _own_pid(reader: Reader, name: str, pids: Mapping[str, Sequence[int]]) -> int | None:
    pid = pids.get(name, [])
    if "/" in name or "\0" in name:  # cannot be a name in libvirt; a recorded text may be anything
        return pid[0] if len(pid) == 1 else None
    path = f"{_PIDS}/{name}.pid"
    text = reader.text(path) if pid else None
    if text is None and len(pid) == 1 and reader.exists(path) is False:
        return pid[0]
    kept = number(text or "", MAX_PID)
    if pid and kept not in pid:
        why = f"reads {(text or '')[:20]!r}, and the processes of that name are {pid[:3]}"
        reader.problem("process of a guest not known", path, why)
    return kept if kept in pid else None


def read_threads(reader: Reader, pid: int) -> tuple[GuestThread, ...] | None:
    """Return the threads by name; None if the kernel shows none (a process has at least one, with the process's id).

    If fewer were read than the kernel counts (`Threads` in each status), a thread without a name is among them.
    """
    threads: dict[GuestThread, None] = {}
    seen: set[str] = set()
    counts: set[int] = set()
    for _ in range(3):  # repeat for threads that started while the others were read
        new = [thread for thread in reader.names(f"/proc/{pid}/task") if thread not in seen]
        seen.update(new)
        for thread in new:
            folder = f"/proc/{pid}/task/{thread}"
            name = reader.text(f"{folder}/comm")
            status = reader.text(f"{folder}/status")
            if (name is None or status is None) and reader.exists(folder) is False:
                continue  # it ended meanwhile
            counts.update(int(count) for count in _COUNT.findall(status or ""))
            threads[GuestThread(name=name or "", cpus=_allowed(reader, folder, status or ""))] = None
    if threads and (str(pid) not in seen or len(seen) < min(counts, default=0)):
        why = f"{len(seen)} were read, the kernel counts {min(counts, default=len(seen) + 1)}"
        reader.problem("threads of a guest not read", f"/proc/{pid}/task", f"{why}: where the others run is unknown")
        threads[_LOST] = None
    return tuple(threads) or None


def _allowed(reader: Reader, folder: str, status: str) -> str | None:
    """Return the CPUs of a thread in the kernel's list format.

    None if `status` has no such list, or several different ones.
    """
    lists = set(_ALLOWED.findall(status))
    if len(lists) > 1:
        reader.problem("not a CPU list", f"{folder}/status", "Cpus_allowed_list is there more than once")
        return None
    try:
        return str(parsed(reader, lists.pop())) or None if lists else None
    except ValueError as error:
        reader.problem("not a CPU list", f"{folder}/status", str(error))
        return None


def _by_node(maps: Sequence[Mapped]) -> dict[str, int] | None:
    """Return bytes by node: those of huge pages only, if the process has any.

    None if the kernel shows nothing, or pages of unknown size.
    """
    huge = [mapped for mapped in maps if mapped.huge]
    if not maps or any(mapped.page_bytes is None for mapped in maps):
        return None
    parts = ((node, n * (m.page_bytes or 0)) for m in huge or maps for node, n in m.pages.items())
    return {node: sum(sizes) for node, sizes in grouped(parts).items()}


def read_leftovers(reader: Reader, host: Host) -> Leftovers:
    """Return the mediated devices that exist (Documentation/driver-api/vfio-mediated-device).

    A capture has no empty directories, and the bus exists only while its module is loaded. So if the bus is not in a
    capture made by hosttune, there was no such device.
    """
    names = reader.listing(_MDEVS)
    if names is None:
        return Leftovers()
    # "" if the path of a device does not show the function that it belongs to.
    parents = {name: sysfs.functions_in(reader.link(f"{_MDEVS}/{name}") or "") for name in names}
    return Leftovers(mdevs={name: functions[-1] if functions else "" for name, functions in parents.items()})
