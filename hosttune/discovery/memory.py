"""NUMA nodes, their memory and the host's memory settings, from sysfs and procfs.

First step of discovery: CPUs (`cpu`) and PCI functions take their node ids from here. The formats are those of Linux'
Documentation/ABI/stable/sysfs-devices-node and Documentation/admin-guide/mm.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from hosttune.discovery.sets import read_list, read_set
from hosttune.gpu import VENDORS
from hosttune.linux.hugetlbfs import MOUNTS, default_page_bytes, libvirts_folder, read_hugetlbfs
from hosttune.machine.reader import Reader, number
from hosttune.model import sysfs
from hosttune.model.host import HugePages, Hugetlbfs, MemorySettings, NumaNode
from hosttune.model.limits import check_count
from hosttune.model.values import MAX_SIZE, CpuSet, format_size
from hosttune.settings.files import Ksm, NumaBalancing, Thp

_NODES = sysfs.NODES
_HUGEPAGES = "/sys/kernel/mm/hugepages"
_THP = "/sys/kernel/mm/transparent_hugepage"

_NODE_NAME = re.compile(r"node([0-9]{1,6})")
_CPU_NAME = re.compile(r"cpu([0-9]{1,6})")
_POOL_NAME = re.compile(r"hugepages-([0-9]{1,12})kB")
_MOST_DISTANCE = 255  # the SLIT's entries are bytes; 255 is "unreachable" (ACPI 6.5, 5.2.17)
_CACHES = ("Active(file)", "Inactive(file)", "SReclaimable")  # as the kernel counts MemAvailable (si_mem_available)
_MEMORY_LINE = re.compile(r"(MemTotal|MemFree|Active\(file\)|Inactive\(file\)|SReclaimable):\s*([0-9]+) kB")
_GPU_NODE_LINE = re.compile(r"(?m)^Node:\s*([0-9]{1,6})\s*$")
_CHOSEN_WORD = re.compile(r"\[(\S+)\]")


def read_nodes(reader: Reader) -> tuple[NumaNode, ...]:
    """Return every node directory of sysfs, by id, including nodes without CPUs or memory and nodes of GPUs.

    A kernel built without NUMA has no node directories. Then the result is empty and there is a problem, because "one
    node" would be an assumption and not a fact of the machine. The result is also empty if the directory cannot be read
    or a capture lacks it; then the number of nodes is unknown.
    """
    names = reader.listing(_NODES)
    if names is None:
        reader.problem("unknown NUMA nodes", _NODES, "not readable, or not in the capture: no node is known")
        return ()
    ids = sorted(int(match[1]) for name in names if (match := _NODE_NAME.fullmatch(name)))
    if not ids:
        reader.problem("no NUMA nodes", _NODES, "the kernel lists none: memory and CPUs have no known node")
        return ()
    check_count(len(ids), "NUMA nodes", f"{reader.system.origin}: {_NODES}")
    # The nodes that the columns of `distance` stand for: the online ones, ascending (drivers/base/node.c).
    online = read_set(reader, f"{_NODES}/online")
    columns = sorted(online) if online else ids
    # The nodes that are a GPU's memory: a driver reports for each GPU the node it onlined (POWER9, Grace).
    of_gpus = set[int]()
    for folder in (vendor.traces.proc for vendor in VENDORS if vendor.traces.proc):
        for gpu in reader.names(folder):
            status = reader.text(f"{folder}/{gpu}/numa_status")
            if status and (match := _GPU_NODE_LINE.search(status)):
                of_gpus.add(int(match[1]))
    gpu_nodes = frozenset(of_gpus)
    nodes = tuple(_read_node(reader, node, columns, gpu_nodes) for node in ids)
    # Old kernels include a node's reserved pages, up to a few per cent. A difference of a tenth is more than that.
    machine = _memory_lines(reader, "/proc/meminfo")
    total = machine.get("MemTotal")
    sizes = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    if total and len(sizes) == len(nodes) and abs(sum(sizes) - total) > total // 10:
        if ids == [*(online or ())] == ids[:1] and sizes[0] < total:
            # A kernel that initialises memory when it is needed (Firecracker's, deferred_init=lazy) counts in the node
            # only what it has initialised. A machine's only node has all of its memory.
            nodes = (msgspec.structs.replace(nodes[0], memory_bytes=total, free_bytes=machine.get("MemFree")),)
        else:
            why = f"the nodes hold {format_size(sum(sizes))}, /proc/meminfo says {format_size(total)}"
            reader.problem("node memory contradicts the total", _NODES, f"{why}: nodes kept as read")
    return nodes


def read_memory_settings(reader: Reader) -> MemorySettings:
    """Return the host-wide settings as the kernel shows them; None for a file that this kernel does not have."""
    default_bytes = default_page_bytes(reader.text("/proc/meminfo") or "")
    memory_settings = {
        str(size): reader.count(f"{_HUGEPAGES}/{pool}/nr_overcommit_hugepages")
        for size, pool in _pools(reader, _HUGEPAGES)
    }
    return MemorySettings(
        thp=_chosen_word(reader, Thp.path),
        thp_defrag=_chosen_word(reader, f"{_THP}/defrag"),
        ksm_run=reader.count(Ksm.path),
        numa_balancing=reader.count(NumaBalancing.path),
        default_hugepage_bytes=default_bytes,
        overcommit_hugepages={size: count for size, count in memory_settings.items() if count is not None} or None,
        hugetlbfs=_hugetlbfs(reader, default_bytes),
    )


def _hugetlbfs(reader: Reader, default_bytes: int | None) -> tuple[Hugetlbfs, ...] | None:
    """Return the mounted file systems of huge pages; None if no list of mounts can be read."""
    text = next((text for path in MOUNTS if (text := reader.text(path)) is not None), None)
    if text is None:
        return None
    return tuple(
        Hugetlbfs(path=mount.path, size_bytes=mount.size_bytes, libvirt=_libvirt_uses(reader, mount.path))
        for mount in read_hugetlbfs(text, default_bytes)
    )


def _libvirt_uses(reader: Reader, path: str) -> bool | None:
    """Return whether the libvirt daemon has found this hugetlbfs; None if that cannot be seen."""
    there = reader.exists(libvirts_folder(path))
    return there if there or reader.system.complete else None


def _read_node(reader: Reader, node: int, columns: Sequence[int], gpu_nodes: frozenset[int]) -> NumaNode:
    names = reader.names(f"{_NODES}/node{node}")
    cpus = _node_cpus(reader, node, names)
    memory = _memory_lines(reader, f"{_NODES}/node{node}/meminfo")
    return NumaNode(
        id=node,
        cpus=cpus,
        memory_bytes=memory.get("MemTotal"),
        free_bytes=memory.get("MemFree"),
        cache_bytes=sum(memory[name] for name in _CACHES) if memory.keys() >= {*_CACHES} else None,
        distances=_distances(reader, node, columns),
        hugepages=_huge_pages(reader, node) if "hugepages" in names else None,
        kind=_kind(cpus, memory.get("MemTotal"), node in gpu_nodes),
    )


def _node_cpus(reader: Reader, node: int, names: Sequence[str]) -> str | None:
    """Return `cpulist` unchanged.

    Older kernels have only the mask, and an incomplete capture only the links to the CPUs.
    """
    path = f"{_NODES}/node{node}"
    if "cpulist" in names and (listed := read_list(reader, f"{path}/cpulist")) is not None:
        return listed
    if "cpumap" in names and (cpus := read_set(reader, f"{path}/cpumap")) is not None:
        return str(cpus)
    linked = CpuSet(int(match[1]) for name in names if (match := _CPU_NAME.fullmatch(name)))
    return str(linked) if linked else None


def _memory_lines(reader: Reader, path: str) -> dict[str, int]:
    """Return bytes by the kernel's name, from lines such as "Node 0 MemTotal: 8386704 kB" or "MemTotal: 8386704 kB"."""
    memory_lines: dict[str, int] = {}
    for match in _MEMORY_LINE.finditer(reader.text(path) or ""):
        kibibytes = number(match[2], MAX_SIZE >> 10)
        if kibibytes is None:
            reader.problem("not a count", path, f"{match[1]} reads {match[2][:40]!r}")
        else:
            memory_lines[match[1]] = kibibytes << 10
    return memory_lines


def _distances(reader: Reader, node: int, columns: Sequence[int]) -> dict[str, int] | None:
    """Return the ACPI SLIT distances (10 = local) by node id."""
    path = f"{_NODES}/node{node}/distance"
    text = reader.text(path)
    if not text:
        return None
    values = [number(value, _MOST_DISTANCE) for value in text.split()]
    if len(values) != len(columns) or None in values:
        bad = f", {values.count(None)} of them no distance" if None in values else ""
        why = f"{len(values)} values{bad} for {len(columns)} online nodes: ignored"
        reader.problem("unusable distances", path, why)
        return None
    return {str(column): value for column, value in zip(columns, values, strict=True) if value is not None}


def _huge_pages(reader: Reader, node: int) -> tuple[HugePages, ...]:
    """Return the node's pools of huge pages, smallest page size first."""
    path = f"{_NODES}/node{node}/hugepages"
    return tuple(_huge_page_pool(reader, size, f"{path}/{pool}") for size, pool in _pools(reader, path))


def _huge_page_pool(reader: Reader, size: int, path: str) -> HugePages:
    """Return one pool. If it has more free pages than pages, both numbers are unknown."""
    total, free = reader.count(f"{path}/nr_hugepages"), reader.count(f"{path}/free_hugepages")
    if total is not None and free is not None and free > total:
        reader.problem("more huge pages free than there are", path, f"nr_hugepages {total}, free_hugepages {free}")
        total = free = None
    return HugePages(size_bytes=size, total=total, free=free)


def _pools(reader: Reader, path: str) -> list[tuple[int, str]]:
    """Return the page size in bytes and the directory name of every pool under a `hugepages` directory."""
    matches = (_POOL_NAME.fullmatch(name) for name in reader.names(path))
    return sorted((int(match[1]) << 10, match[0]) for match in matches if match)


def _kind(cpus: str | None, memory_bytes: int | None, is_gpu: bool) -> str | None:
    """Return what the node is for; None if its CPUs or its memory are unknown."""
    if cpus:
        return "cpu"
    if is_gpu:
        return "gpu"
    if cpus is None or memory_bytes is None:
        return None
    return "memory" if memory_bytes else "empty"


def _chosen_word(reader: Reader, path: str) -> str | None:
    """Return the word in brackets of a file such as "always [madvise] never"."""
    text = reader.text(path)
    if not text:
        return None
    chosen = _CHOSEN_WORD.findall(text)
    if len(chosen) != 1 or "\n" in text:
        reader.problem("not one choice marked" if chosen else "no choice marked", path, f"reads {text[:40]!r}")
        return None
    return str(chosen[0])
