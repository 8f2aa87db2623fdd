"""CPUs, NUMA nodes and memory of a host document."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hosttune.model.values import Closed, Value


class Cpu(Value, frozen=True, kw_only=True):
    """One logical CPU. `core`, `llc` and `l2` are named by the lowest CPU id of the group.

    An offline CPU has no position (all None). `allowed` is False if a cpuset hides the CPU from guests. `kind`
    distinguishes the cores of a hybrid processor ("performance", "efficiency").
    """

    id: int
    core: int | None = None
    package: int | None = None
    die: int | None = None
    numa_node: int | None = None
    llc: int | None = None
    l2: int | None = None
    online: bool | None = True
    isolated: bool | None = False
    nohz_full: bool | None = False
    allowed: bool | None = True
    kind: str | None = None
    governor: str | None = None
    energy_preference: str | None = None
    resume_latency_us: str | None = None  # pm_qos_resume_latency_us unchanged: "0" no limit, "n/a" no latency tolerated


class CpuModel(Value, frozen=True, kw_only=True):
    """What all CPUs of the host have in common."""

    vendor: str | None = None  # "GenuineIntel", "AuthenticAMD", …
    model: str | None = None
    physical_address_bits: int | None = None
    virtual_address_bits: int | None = None
    flags: tuple[str, ...] | None = None
    possible: str | None = None
    present: str | None = None
    smt_control: str | None = None  # on, off, forceoff, notsupported, notimplemented
    smt_active: bool | None = None
    scaling_driver: str | None = None
    idle_driver: str | None = None
    hybrid: bool | None = None


class HugePages(Value, frozen=True, kw_only=True):
    """One size of huge page on one node. The counts are in pages."""

    size_bytes: int
    total: int | None = None
    free: int | None = None


class NumaNode(Closed, frozen=True, kw_only=True):
    """One node directory of sysfs. `cpus` is the kernel's list unchanged.

    `kind`: "cpu" has CPUs, "memory" has memory and no CPU, "gpu" is a GPU's own memory, "empty" has neither.
    """

    id: int
    cpus: str | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    cache_bytes: int | None = None  # not free, and given back on demand: files' pages and reclaimable slab
    distances: Mapping[str, int] | None = None
    hugepages: tuple[HugePages, ...] | None = None
    kind: str | None = None

    MAPPINGS = ("distances",)


class Hugetlbfs(Value, frozen=True, kw_only=True):
    """A mounted file system of huge pages. `libvirt`: the libvirt daemon has found it (it looks when it starts)."""

    path: str
    size_bytes: int | None = None
    libvirt: bool | None = None


class MemorySettings(Closed, frozen=True, kw_only=True):
    """Host-wide memory settings, in the kernel's words. `hugetlbfs` None: the mounts could not be read."""

    thp: str | None = None  # the bracketed word of transparent_hugepage/enabled
    thp_defrag: str | None = None
    ksm_run: int | None = None
    numa_balancing: int | None = None
    default_hugepage_bytes: int | None = None
    overcommit_hugepages: Mapping[str, int] | None = None  # page size in bytes -> nr_overcommit_hugepages
    hugetlbfs: tuple[Hugetlbfs, ...] | None = None

    MAPPINGS = ("overcommit_hugepages",)


# --- home nodes -----------------------------------------------------------------------------------------------

# Nodes without CPUs have only memory (CXL, HBM), or their CPUs are offline; nodes without memory have no modules. A
# cell of a guest has CPUs and memory of one node, so none can be on such a node.


def home_nodes(nodes: Iterable[int], able: Collection[int], distances: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """Return, for each node, itself if it is `able`, else the nearest node that is; of equally near ones the lowest.

    `able`: the nodes with CPUs and memory. `distances` are those of the host's own table, from such a node to the
    other. A node is left out if its nearest is unknown: there are several and a distance is missing, or there is none.
    """
    homes: dict[int, int] = {}
    for node in nodes:
        if node in able:
            homes[node] = node
        elif len(able) == 1 or all((other, node) in distances for other in able):
            nearest = min(able, key=lambda other: (distances.get((other, node), 0), other), default=None)
            if nearest is not None:
                homes[node] = nearest
    return homes


def table_of(nodes: Iterable[NumaNode]) -> dict[tuple[int, int], int]:
    """Return the distances between nodes, as far as the host's table has them."""
    return {
        (node.id, int(other)): distance
        for node in nodes
        for other, distance in (node.distances or {}).items()
        if distance > 0 and other.isdecimal()  # a document edited by hand can have any keys
    }


def homes_of(nodes: Iterable[NumaNode], cpus: Iterable[Cpu]) -> dict[int, int]:
    """Return the home of each node of a host. A node whose CPUs are unknown counts as one with CPUs."""
    nodes = tuple(nodes)
    with_cpus = {node.id for node in nodes if node.cpus != ""}
    with_cpus |= {cpu.numa_node for cpu in cpus if cpu.numa_node is not None and cpu.online is not False}
    able = with_cpus - {node.id for node in nodes if node.memory_bytes == 0}
    return home_nodes((node.id for node in nodes), able or with_cpus, table_of(nodes))
