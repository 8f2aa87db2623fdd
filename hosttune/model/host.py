"""The host document: one machine as discovery found it (`hosttune.host/v1`).

Every value is frozen and can be saved and used on another machine. Only `None` means unknown or absent; 0 and -1 are
never used for that. Sizes are in bytes, link rates in GT/s per lane; CPU lists are strings in the kernel's list format
("0-3,8"). The parts are in `topology`, `pci`, `devices`, `gpu`, `vgpu` and `platform`; what other rooms use of them is
here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from hosttune.model.check import check_host
from hosttune.model.devices import DeviceSource, Nic, Nvme, NvSwitch, SeenDevice
from hosttune.model.gpu import Fabric, FabricPartition, Gpu, GpuPort, Mig, MigInstance, MigProfile, Peer
from hosttune.model.hostfields import HOST_SCHEMA, HostFields, Problem
from hosttune.model.index import DeviceIndex
from hosttune.model.pci import Acs, Bar, Irq, Link, LinkEnd, LinkFigures, PciDevice
from hosttune.model.platform import (
    DomainCapabilities,
    GuestMemory,
    Iommu,
    Module,
    Platform,
    RunningGuest,
    Tuned,
    VcpuPin,
    Virtualization,
)
from hosttune.model.topology import Cpu, CpuModel, HugePages, Hugetlbfs, MemorySettings, NumaNode, homes_of
from hosttune.model.values import from_json
from hosttune.model.vgpu import Vgpu, VgpuFunction

__all__ = [
    "HOST_SCHEMA", "Acs", "Bar", "Cpu", "CpuModel", "DeviceSource", "DomainCapabilities", "Fabric",
    "FabricPartition", "Gpu", "GpuPort", "GuestMemory", "Host", "HugePages", "Hugetlbfs", "Iommu", "Irq", "Link",
    "LinkEnd", "LinkFigures", "MemorySettings", "Mig", "MigInstance", "MigProfile", "Module", "Nic", "NumaNode",
    "NvSwitch", "Nvme", "PciDevice", "Peer", "Platform", "Problem", "RunningGuest", "SeenDevice", "Tuned",
    "VcpuPin", "Vgpu", "VgpuFunction", "Virtualization",
]  # fmt: skip


class Host(HostFields, frozen=True, kw_only=True, dict=True):  # dict: for the cached index
    """One machine as discovery found it: the fields of `HostFields`, its index, and its JSON document."""

    @cached_property
    def index(self) -> DeviceIndex:
        """The devices by address, slot and bridge. Computed on first use."""
        used: tuple[Nic | Nvme, ...] = (*self.nics, *self.nvme)
        return DeviceIndex(self.pci, self.gpus, used, self.guests or (), self.nodes, inside=self.hypervisor is True)

    def home(self, node: int | None) -> int | None:
        """Return the node that a device on this node counts for: itself, or the nearest with CPUs and memory.

        A node that is unknown, none of the host's, or without a known nearest one is returned as it is.
        """
        return None if node is None else self._homes.get(node, node)

    @cached_property
    def _homes(self) -> Mapping[int, int]:
        return homes_of(self.numa_nodes, self.cpus)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "host document") -> Host:
        """Read a host document.

        Raises BadInput with the version, or with the field whose value no machine can have.
        """
        host = from_json(cls, text, schema=HOST_SCHEMA, where=where)
        check_host(host, where)
        return host

    def switched_on(self, module: str, parameter: str) -> bool | None:
        """Whether a module's switch reads Y or 1; None if it is unknown or the module is not loaded."""
        modules = self.platform.modules if self.platform else ()
        known = next((one.parameters for one in modules if one.name == module), None)
        value = (known or {}).get(parameter)
        return None if value is None else value.strip() in ("Y", "1")

    @property
    def interrupts_through_host(self) -> bool:
        """Whether each interrupt of a passed device is known to run on the host before its vCPU gets it.

        Linux arch/x86/kvm/vmx/vmx.c (enable_apicv), arch/x86/kvm/svm/avic.c (avic), Intel VT-d CAP_REG.PI.
        """
        switches = self.switched_on("kvm_intel", "enable_apicv"), self.switched_on("kvm_amd", "avic")
        return False in (*switches, self.iommu.interrupt_posting if self.iommu else None)

    @property
    def snp_meant(self) -> bool:
        """Whether SEV-SNP is on, or off although the kernel's arguments ask for SEV or the firmware has set SNP up.

        Linux arch/x86/kernel/cpu/amd.c (bsp_determine_snp): the flag stays only where the firmware has made room.
        """
        snp, sev = (self.switched_on("kvm_amd", switch) for switch in ("sev_snp", "sev"))
        asked = {"mem_encrypt=on", "kvm_amd.sev=1", "kvm_amd.sev_snp=1"} & set(self.kernel_args or ())
        ready = "sev_snp" in ((self.cpu_model.flags if self.cpu_model else None) or ())
        return snp is True or (snp is False and sev is True and (ready or bool(asked)))
