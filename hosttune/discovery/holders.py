"""Who uses a PCI function: processes that have its device nodes open, and the host's own use of it.

A driver's unbind waits in the kernel until every user has closed the device; if they are named first, there is no need
to wait. Reads only. Sources: proc(5) (PID/fd, cgroup), Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-net;
NVIDIA's /proc/driver/nvidia (driver README, "The /proc Interface"). /proc has all of this in one pass; psutil omits
device files from a process's open files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from hosttune.disks import block_uses, disk_uses, namespace_of, nvme_names, partitions
from hosttune.errors import Unreadable
from hosttune.gpu import VENDORS, nvswitches
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model import sysfs

_DEVICES = sysfs.PCI_DEVICES
_NET = "/sys/class/net"
ROUTES = "/proc/net/route"
ROUTES6 = "/proc/net/ipv6_route"
_UP = 0x1  # IFF_UP, linux/if.h
# Folder below a function -> where its entries have their nodes (devtmpfs names them so: each class's `devnode`).
_NODES = {
    "drm": "/dev/dri/",
    "accel": "/dev/accel/",
    "infiniband_verbs": "/dev/infiniband/",
    "infiniband_mad": "/dev/infiniband/",
    "infiniband_cm": "/dev/infiniband/",
    "vfio-dev": "/dev/vfio/devices/",
    "nvme": "/dev/",
    "block": "/dev/",
} | {folder: place for vendor in VENDORS for folder, place in vendor.traces.node_classes.items()}
_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_PARENT = re.compile(r"^PPid:\s*([0-9]{1,10})\s*$", re.MULTILINE)
_DEEPEST = 64  # generations of processes: many more than between hosttune and a process that it starts
_COMM = 15  # bytes of a process's name that the kernel keeps
# How to stop daemons that often hold GPUs, if the process is in no systemd unit.
_ENDS = {name: hint for vendor in VENDORS for name, hint in vendor.traces.daemons.items() if hint}


class DeviceUser(msgspec.Struct, frozen=True):
    """One user of a PCI function.

    `what`: what it uses, device nodes or something of the host. `name`: the process, the guest or "the host"; `pid` and
    `place` (systemd unit or container): of a process. `hint`: how to stop it. `unknown`: no user was found, but not
    everything could be read.
    """

    address: str
    what: str
    hint: str
    name: str = "the host"
    pid: int | None = None
    place: str | None = None
    guest: str | None = None
    unknown: bool = False

    @property
    def text(self) -> str:
        """Return one line for people."""
        if self.unknown:
            return f"{self.address}: whether anything uses it is unknown: {self.what}: {self.hint}"
        if self.pid is None:
            return f"{self.address}: {self.what}: {self.hint}"
        who = f"guest {self.guest}, {self.name}" if self.guest else self.name
        place = f", {self.place}" if self.place else ""
        return f"{self.address}: {who} (process {self.pid}{place}) has {self.what} open: {self.hint}"


def holders(system: System, addresses: Sequence[str]) -> tuple[DeviceUser, ...]:
    """Return every user of these PCI functions, in the order of addresses, the host's own uses first.

    Only nodes of the functions themselves count (/dev/nvidiactl alone does not hold a GPU), compared by the name that
    the kernel gives the node. What could not be read gives an `unknown` entry: other processes are hidden unless
    hosttune runs as root and in the machine's own PID namespace. A scratch root has no processes. On the live machine
    hosttune and the processes that it started do not count, because they end with it.
    """
    reader = Reader(system)
    nodes = {address: device_nodes(reader, address) for address in addresses}
    users = [holder for address in addresses for holder in _host_uses(reader, address)]
    opened = _opened(reader, nodes)
    users += [
        _process_holder(reader, pid, address, [node for node in nodes[address] if node in has])
        for address in addresses
        for pid, has in opened.found.items()
        if not has.isdisjoint(nodes[address]) and (system.captured or not _is_own_process(reader, pid))
    ]
    users.sort(key=lambda holder: addresses.index(holder.address))
    doubts = (*_unseen(system, opened), *(f"{doubt.where} ({doubt.why})" for doubt in reader.problems))
    everyone = ", ".join(addresses)
    hint = "run as root on the machine itself, or check the kernel log"
    return (*users, *(DeviceUser(everyone, doubt, hint, unknown=True) for doubt in doubts if addresses))


# --- nodes ---------------------------------------------------------------------------------------------------


def device_nodes(reader: Reader, address: str) -> tuple[str, ...]:
    """Return the device nodes of a function; what could not be read is added to the reader's problems."""
    path = f"{_DEVICES}/{address}"
    names = reader.names(path)
    driver = reader.link_name(f"{path}/driver") or ""
    nodes = [node for folder in _with_virtio(path, names) for node in _class_nodes(reader, folder)]
    nodes += [node for vendor in VENDORS for node in vendor.traces.nodes(reader, address, driver)]
    if "vfio" in driver or "vfio-dev" in names:
        group = reader.link_name(f"{path}/iommu_group")
        nodes += [f"/dev/vfio/{group}", f"/dev/vfio/noiommu-{group}"] if group else []
    return tuple(dict.fromkeys(nodes))


def _with_virtio(path: str, names: Iterable[str]) -> list[str]:
    """Return the function's folder, and that of the virtio device on it, which contains its class folders."""
    return [path, *(f"{path}/{name}" for name in names if re.fullmatch(r"virtio[0-9]+", name))]


def _class_nodes(reader: Reader, folder: str) -> Iterator[str]:
    present = set(reader.names(folder))
    for kind in sorted(_NODES.keys() & present):
        for name in reader.names(f"{folder}/{kind}"):
            yield _NODES[kind] + name
            if kind in ("nvme", "block"):
                yield from _below(reader, f"{folder}/{kind}/{name}")


def _below(reader: Reader, folder: str) -> Iterator[str]:
    """Yield the nodes of an NVMe controller's namespaces (block and generic), and of a disk's partitions."""
    for name in reader.names(folder):
        head = namespace_of(name)
        if head is not None:
            yield f"/dev/{head}"
            yield from (f"/dev/{part}" for part in partitions(reader, head))
        elif re.fullmatch(r"ng[0-9]+n[0-9]+", name) or name.startswith(folder.rpartition("/")[2]):
            yield f"/dev/{name}"


# --- processes -----------------------------------------------------------------------------------------------


class _Opened(msgspec.Struct, frozen=True):
    """Process ids with the wanted nodes that they have open, and ids of processes whose files are hidden."""

    found: Mapping[int, frozenset[str]]
    hidden: tuple[int, ...] = ()
    processes: int = 0
    reasons: tuple[str, ...] = ()


def _opened(reader: Reader, nodes: Mapping[str, Iterable[str]]) -> _Opened:
    """Check all processes once. A process that ends during the check is left out."""
    wanted = frozenset(node for names in nodes.values() for node in names)
    opened: dict[int, frozenset[str]] = {}
    hidden: list[int] = []
    reasons: list[str] = []
    pids = sorted(int(name) for name in reader.names("/proc") if name.isdecimal()) if wanted else []
    for pid in pids:
        try:
            has = wanted.intersection(_files(reader.system, pid))
        except Unreadable as error:
            hidden.append(pid)
            reasons.append(error.reason)
            continue
        if has:
            opened[pid] = has
    return _Opened(opened, tuple(hidden), len(pids) if wanted else -1, tuple(dict.fromkeys(reasons)))


def _files(system: System, pid: int) -> Iterator[str]:
    """Yield the paths of a process's open files. Raises Unreadable if access is denied."""
    folder = f"/proc/{pid}/fd"
    for name in system.list(folder):
        target = system.link(f"{folder}/{name}")
        if target is not None and target.startswith("/dev/"):
            target = target.removesuffix(" (deleted)")
            yield nvswitches.NODES if re.fullmatch(nvswitches.NODE, target) else target


def _is_own_process(reader: Reader, pid: int) -> bool:
    """Return whether a process is hosttune itself or a descendant of it. Source: proc(5), status."""
    own_pid = os.getpid()
    for _ in range(_DEEPEST):
        if pid == own_pid or pid <= 1:
            return pid == own_pid
        parent = _PARENT.search(reader.text(f"/proc/{pid}/status") or "")
        pid = int(parent[1]) if parent else 0
    return False


def _unseen(system: System, opened: _Opened) -> Iterator[str]:
    """Yield why the check of processes is incomplete, if it is."""
    if opened.hidden:
        some = ", ".join(map(str, opened.hidden[:3])) + (", …" if len(opened.hidden) > 3 else "")
        many = "1 process" if len(opened.hidden) == 1 else f"{len(opened.hidden)} processes"
        yield f"the open files of {many} are hidden ({some}: {'; '.join(opened.reasons)})"
    if opened.processes == 0 and not system.scratch:
        yield "no process is visible in /proc"


def _process_holder(reader: Reader, pid: int, address: str, nodes: list[str]) -> DeviceUser:
    arguments = (reader.text(f"/proc/{pid}/cmdline") or "").split("\0")
    comm = reader.text(f"/proc/{pid}/comm") or ""
    called = arguments[0].rpartition("/")[2]
    name = called if comm and called.encode()[:_COMM] == comm.encode() else comm or called or "a process"
    # The guest that a QEMU process runs, from its option -name.
    if not name.startswith(("qemu-", "kvm")) or "-name" not in arguments[:-1]:
        guest = None
    else:
        guest = arguments[arguments.index("-name") + 1].removeprefix("guest=").partition(",")[0] or None
    place = _place(reader.text(f"/proc/{pid}/cgroup") or "")
    if guest:
        hint = f"virsh shutdown {guest}"
    else:
        if place is not None and place.startswith("container "):
            hint = f"stop {place}, and what would start it again"
        elif place is not None and place.endswith(".service") and not place.startswith("user@"):
            hint = f"systemctl stop {place.removesuffix('.service')}"
        else:
            hint = _ENDS.get(name, f"end process {pid}")
    return DeviceUser(address, ", ".join(nodes), hint, name=name, pid=pid, place=place, guest=guest)


def _place(text: str) -> str | None:
    """Return the systemd unit or the container of a process, from its control groups."""
    rows = [line.split(":", 2) for line in text.splitlines()]
    paths = [row[2] for row in rows if len(row) == 3 and (row[:2] == ["0", ""] or row[1] == "name=systemd")]
    for path in paths:
        container = _CONTAINER.search(path)
        if container:
            return f"container {container[1][:12]}"
    units = [part for path in paths for part in path.split("/") if part.endswith((".service", ".scope"))]
    return units[-1] if units else None


# --- the host's own use --------------------------------------------------------------------------------------


def _host_uses(reader: Reader, address: str) -> Iterator[DeviceUser]:
    path = f"{_DEVICES}/{address}"
    names = reader.names(path)
    for folder in _with_virtio(path, names):
        for interface in reader.names(f"{folder}/net"):
            use = network_use(reader, interface)
            if use is not None:
                hint = f"take it down if nothing needs it: ip link set {interface} down"
                yield DeviceUser(address, f"network interface {interface} {use}", hint)
    _, disks = nvme_names(reader, address)
    disks = (*disks, *(disk for folder in _with_virtio(path, names)[1:] for disk in reader.names(f"{folder}/block")))
    uses = block_uses(reader) if disks else {}
    for disk in disks:
        for use in disk_uses(reader, disk, uses):
            yield DeviceUser(address, use, "free it if nothing needs it: umount, swapoff, or stop the array")


def network_use(reader: Reader, interface: str) -> str | None:
    """Return what the host uses an interface for; None for nothing.

    An interface that is only up does not count, because services bring all of them up. Sources: proc_net(5),
    /proc/net/route (interface first) and if_inet6 (scope 20 is link-local, interface last).
    """
    if not is_up(reader, interface):
        return None
    above = [name.partition("_")[2] for name in reader.names(f"{_NET}/{interface}") if name.startswith("upper_")]
    if above:
        return f"is part of {', '.join(above)}"
    routes = reader.text(ROUTES)
    if routes is None:
        return "is up, and whether it has an address is unknown"
    if any(line.split()[:1] == [interface] for line in routes.splitlines()):
        return "is up and has routes"
    addresses = (line.split() for line in (reader.text("/proc/net/if_inet6") or "").splitlines())
    if any(len(words) == 6 and words[5] == interface and words[3] != "20" for words in addresses):
        return "is up and has an address"
    return None


def is_up(reader: Reader, interface: str) -> bool | None:
    """Return whether an interface is up; None if that is unknown (operstate: Documentation/networking/operstates)."""
    flags = reader.integer(f"{_NET}/{interface}/flags", 16)
    if flags is not None:
        return bool(flags & _UP)
    state = reader.text(f"{_NET}/{interface}/operstate")
    return None if state in (None, "", "unknown") else state == "up"
