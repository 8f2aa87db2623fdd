"""The fields of the host document; `host.Host` reads and writes it, `check` refuses values that no machine can have."""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.model.devices import DeviceSource, Nic, Nvme, NvSwitch
from hosttune.model.force import InForce
from hosttune.model.gpu import Fabric, Gpu
from hosttune.model.pci import PciDevice
from hosttune.model.platform import Iommu, Platform, RunningGuest, Tuned, Virtualization
from hosttune.model.quarantine import HandoverState
from hosttune.model.topology import Cpu, CpuModel, MemorySettings, NumaNode
from hosttune.model.values import Document, Value
from hosttune.model.vgpu import Vgpu

HOST_SCHEMA = "hosttune.host/v1"


# `what` of the problem that the journals are lost, or a transaction is unfinished; the end of the plan's finding of it.
FORCE_UNKNOWN, UNTIL_THEN = "what is in force", "until then apply refuses to write"


class Problem(Value, frozen=True, kw_only=True):
    """A doubt: `what` is doubtful, `where` it was read, `why` it is doubtful and what was assumed instead."""

    what: str
    where: str
    why: str


class HostFields(Document, frozen=True, kw_only=True):
    """One machine as discovery found it. `digest` identifies the live host; it is None in captures."""

    schema: str = HOST_SCHEMA
    hostname: str | None = None
    boot_id: str | None = None
    kernel: str | None = None
    kernel_args: tuple[str, ...] | None = None
    arch: str | None = None
    hypervisor: bool | None = None
    digest: str | None = None
    platform: Platform | None = None
    cpu_model: CpuModel | None = None
    cpus: tuple[Cpu, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    memory_settings: MemorySettings | None = None
    iommu: Iommu | None = None
    pci: tuple[PciDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    nvme: tuple[Nvme, ...] = ()
    nvswitches: tuple[NvSwitch, ...] = ()
    fabric: Fabric | None = None  # None: no NVSwitch fabric, or nothing is known about it
    vgpu: Vgpu | None = None  # None: no GPU that its maker's driver holds, or nothing is known about it
    virtualization: Virtualization | None = None
    guests: tuple[RunningGuest, ...] | None = None
    settings: Mapping[str, str] | None = None  # present values of settings that no other field holds, by path
    tuned: Tuned | None = None  # None: no active TuneD profile is known
    sources: tuple[DeviceSource, ...] | None = None  # other sources that know devices; None: not recorded
    handover: HandoverState | None = None  # devices between two tenants; None: unknown
    # The PCI functions that nodes (/dev/…) and interfaces (/sys/class/net/…) of the host are on; of a link:
    # the node. What `nvme` and `nics` name is not in it.
    nodes: Mapping[str, tuple[str, ...]] = {}
    in_force: InForce | None = None  # what hosttune has applied here; None: unknown (a capture, no root)
    problems: tuple[Problem, ...] = ()

    MAPPINGS = ("settings", "nodes")


# --- texts of problems that checks look for -------------------------------------------------------------------

LIST_UNREAD = "list of guests unknown"  # there may be more guests than the known ones
NO_DEFINITION = "no definition"  # of a guest: what it has is unknown
OUTSIDE = "a QEMU guest outside libvirt"  # beginning of the text: a process of a guest that libvirt does not list
