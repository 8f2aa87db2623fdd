"""The kinds of setting that a plan can name, with the class of each. This module collects them from all packages.

Kinds for files, registers and processes are in `hosttune.settings`, those for GPUs in `hosttune.gpu.settings`, those
for guests in `hosttune.hypervisor`. A test requires that every kind is exercised, and killed at every step.
"""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.errors import BadInput
from hosttune.gpu.settings import GpuComputeMode, GpuEcc, GpuMigMode, GpuPersistence, GpuPowerLimit
from hosttune.gpu.vgpu_set import MediatedDevice, MigInstanceSetting, VgpuFunctions
from hosttune.hypervisor.affinity import LiveAffinity
from hosttune.hypervisor.daemon import LibvirtRestart
from hosttune.hypervisor.definition import AdoptedDefinition, PlannedDefinition
from hosttune.hypervisor.disk import CopiedDisk
from hosttune.hypervisor.hugemount import Mount
from hosttune.hypervisor.partition import FabricPartitionState
from hosttune.hypervisor.state import Autostart, GuestState
from hosttune.knobs.files import KNOBS
from hosttune.settings.apparmor import AppArmorRule
from hosttune.settings.block import NvmeQueue
from hosttune.settings.cpus import EnergyPreference, Governor, ResumeLatency
from hosttune.settings.drivers import Driver, SriovVfs
from hosttune.settings.dropin import DropIn
from hosttune.settings.files import NodeHugePages
from hosttune.settings.hook import LibvirtHook
from hosttune.settings.irqs import DefaultAffinity, IrqAffinity, IrqbalanceBan, SliceCpus
from hosttune.settings.kernelargs import KernelArguments
from hosttune.settings.pcie import AccessControl, Aspm, ReadRequest, RelaxedOrdering
from hosttune.settings.setting import Setting
from hosttune.settings.sysctl import Sysctl
from hosttune.settings.virtual import VgpuTypeSetting, VirtualFunction
from hosttune.transaction.guestfiles import FilesOfGuest

_CLASSES: tuple[type[Setting], ...] = (
    NodeHugePages, Governor, EnergyPreference, ResumeLatency,
    Aspm, ReadRequest, RelaxedOrdering, AccessControl, NvmeQueue, Sysctl,
    AppArmorRule, Mount, LibvirtRestart, CopiedDisk, FilesOfGuest,
    PlannedDefinition, AdoptedDefinition, LiveAffinity, GuestState, Autostart,
    GpuPersistence, GpuPowerLimit, GpuComputeMode, GpuEcc, GpuMigMode,
    FabricPartitionState, Driver, SriovVfs, VirtualFunction, MigInstanceSetting, VgpuFunctions, VgpuTypeSetting,
    MediatedDevice, IrqAffinity, IrqbalanceBan, DefaultAffinity, SliceCpus, KernelArguments, DropIn, LibvirtHook,
)  # fmt: skip


def kinds() -> Mapping[str, type[Setting]]:
    """Return every kind by its name in a plan. Kinds with one file each come from their knobs."""
    return {cls.kind: cls for cls in (*_CLASSES, *(knob.setting for knob in KNOBS))}


def kind_class(kind: str, where: str) -> type[Setting]:
    """Return the class of a kind. Raises BadInput for a kind that this version does not know."""
    setting = kinds().get(kind)
    if setting is None:
        raise BadInput(f"unknown setting kind {kind!r}", where=where, hint="plan again with this version of hosttune")
    return setting


def setting_of(kind: str, target: str) -> Setting:
    """Return the setting that an action names. Raises BadInput."""
    return kind_class(kind, f"action {kind}:{target}").of(target)
