"""Kinds of setting: what can be read, written and put back on a host. `KINDS` lists them; a plan names them.

Importing this package imports no kind; `setting_of` does.
"""

from __future__ import annotations

from hosttune.errors import BadInput
from hosttune.settings.setting import Setting

__all__ = ["KINDS", "Setting", "kind_class", "setting_of"]

# kind -> (module, class). One row a kind; a test wants each of them exercised and killed at every step. A module is one
# of this package, or the whole name of one in a layer above, which this layer must not import by itself.
KINDS: dict[str, tuple[str, str]] = {
    "hugepages": ("memory", "HugePages"),
    "thp": ("memory", "Thp"),
    "ksm": ("memory", "Ksm"),
    "numa-balancing": ("memory", "NumaBalancing"),
    "governor": ("cpus", "Governor"),
    "energy-preference": ("cpus", "EnergyPreference"),
    "resume-latency": ("cpus", "ResumeLatency"),
    "aspm": ("aspm", "Aspm"),
    "read-request": ("pcie", "ReadRequest"),
    "relaxed-ordering": ("pcie", "RelaxedOrdering"),
    "acs": ("pcie", "AccessControl"),
    "nvme-queue": ("block", "NvmeQueue"),
    "sysctl": ("sysctl", "Sysctl"),
    "apparmor-rule": ("apparmor", "AppArmorRule"),
    "mount": ("hosttune.hypervisor.hugemount", "Mount"),
    "libvirt-restart": ("hosttune.hypervisor.daemon", "LibvirtRestart"),
    "guest-files": ("hosttune.transaction.guestfiles", "FilesOfGuest"),
    "guest": ("hosttune.hypervisor.definition", "Guest"),
    "guest-state": ("hosttune.hypervisor.state", "GuestState"),
    "gpu-persistence": ("hosttune.gpu.settings", "GpuPersistence"),
    "gpu-power-limit": ("hosttune.gpu.settings", "GpuPowerLimit"),
    "gpu-compute-mode": ("hosttune.gpu.settings", "GpuComputeMode"),
    "gpu-ecc": ("hosttune.gpu.settings", "GpuEcc"),
    "gpu-mig-mode": ("hosttune.gpu.settings", "GpuMigMode"),
    "driver": ("drivers", "Driver"),
    "sriov-vfs": ("drivers", "SriovVfs"),
    "vgpu-type": ("vgpu", "VgpuType"),
    "irq-affinity": ("irqs", "IrqAffinity"),
    "irqbalance-ban": ("irqs", "IrqbalanceBan"),
    "kernel-argument": ("kernelargs", "KernelArguments"),
    "drop-in": ("dropin", "DropIn"),
}


def kind_class(kind: str, where: str) -> type[Setting]:
    """The class of a kind. Raises BadInput for one that this version does not know."""
    from importlib import import_module

    if kind not in KINDS:
        raise BadInput(f"unknown setting kind {kind!r}", where=where, hint="plan again with this version of hosttune")
    module, name = KINDS[kind]
    path = module if "." in module else f"hosttune.settings.{module}"
    found: type[Setting] = getattr(import_module(path), name)
    return found


def setting_of(kind: str, target: str) -> Setting:
    """The setting that an action names. Raises BadInput."""
    return kind_class(kind, f"action {kind}:{target}").of(target)
