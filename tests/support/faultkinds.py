"""One small scratch root at least for every kind of setting, and what to apply there. Files are the fewest that do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adoptions import BY_HAND, adopted_by_hand
from configspace import ROOT_PORT, space
from domain_shapes import NO_GPU, changed

from hosttune.domain.writer import domain_xml
from hosttune.linux.apparmor import LOCAL, RULE
from hosttune.model.host import Host, Virtualization
from hosttune.model.intent import GuestIntent, Intent, Network
from hosttune.model.plan import Action, AdoptedGuest, Plan, PlannedGuest
from hosttune.model.topology import Cpu, NumaNode

DIGEST = "d" * 64
MDEV = "6b1f4c52-9f2e-5a54-8f0c-6a1d0c5d1f7e"
PORT, GPU, NIC, DRIVE, AMD_GPU = "0000:40:01.0", "0000:41:00.0", "0000:81:00.0", "0000:c1:00.0", "0000:e1:00.0"
_PORT = f"sys/devices/pci0000:40/{PORT}"
_GPU = f"{_PORT}/{GPU}"
_DRIVERS = "sys/bus/pci/drivers"
_DRIVE = f"sys/devices/pci0000:c0/{DRIVE}"
_NODE = "sys/devices/system/node/node0/hugepages/hugepages-2048kB"
_CPU = "sys/devices/system/cpu"
_DEVICES = "sys/bus/pci/devices"
_ACS = "SrcValid ReqRedir CmpltRedir UpstreamFwd"

_MAC = "52:54:00:00:00:01"
_VF = {
    "vf": 0, "address": _MAC, "vlan_list": [{}], "rate": {"max_tx": 0, "min_tx": 0}, "link_state": "auto",
    "spoofchk": True, "trust": False,
}  # fmt: skip

VM = changed(  # it boots from its network: the roots have no disks of guests
    NO_GPU, name="vm", page_bytes=None, accelerator="tcg", disk=None, networks=(Network(network="default"),)
)
Content = str | bytes


@dataclass(frozen=True)
class Example:
    """A root by its files and links (link -> target, both inside), and a plan's actions as (kind, target, want)."""

    name: str
    files: Mapping[str, Content]
    wants: tuple[tuple[str, str, Any], ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    guests: tuple[PlannedGuest, ...] = ()
    adoptions: tuple[AdoptedGuest, ...] = ()
    start: bool = False
    needed: bool = True

    @property
    def plan(self) -> Plan:
        """The plan of these wants."""
        actions = tuple(
            Action(
                id=f"{kind}:{target}", kind=kind, target=target, current=None, want=want, effect="now",
                needed=self.needed, reversible=True, why="a fault is to hit it",
            )
            for kind, target, want in self.wants
        )  # fmt: skip
        guests = tuple(GuestIntent(name=guest.name, vcpus=16, memory="64GiB") for guest in self.guests)
        intent = Intent(version=1, guests=guests)
        return Plan(
            intent=intent, host_digest=DIGEST, hostname="scratch", actions=actions, guests=self.guests,
            adoptions=self.adoptions,
        )  # fmt: skip


def host() -> Host:
    """What discovery would tell of each of these roots, as far as the transaction asks."""
    return Host(
        hostname="scratch", digest=DIGEST, guests=(), virtualization=Virtualization(kvm=True),
        cpus=tuple(Cpu(id=n, core=n, numa_node=0) for n in range(64)), numa_nodes=(NumaNode(id=0, cpus="0-63"),),
    )  # fmt: skip


def _function(folder: str, kind: str = "0x030200", **files: Content) -> dict[str, Content]:
    found: dict[str, Content] = {"class": f"{kind}\n", "vendor": "0x10de\n", "power_state": "D0\n", **files}
    return {f"{folder}/{name.replace('__', '/')}": content for name, content in found.items()}


def _links(folder: str, address: str, driver: str | None = None) -> dict[str, str]:
    links = {f"{_DEVICES}/{address}": folder, f"{folder}/iommu_group": "sys/kernel/iommu_groups/7"}
    return links | ({f"{folder}/driver": f"{_DRIVERS}/{driver}"} if driver else {})


def _one_field(kind: str, want: Any, config: bytes) -> Example:
    return Example(kind, _function(_GPU, config=config), ((kind, GPU, want),), _links(_GPU, GPU))


# --- CPUs and memory -----------------------------------------------------------------------------------------


def _per_cpu(kind: str, file: str, want: str, *old: str) -> Example:
    files = {f"{_CPU}/cpu{cpu}/{file}": f"{value}\n" for cpu, value in enumerate(old, 2)}
    return Example(kind, files, ((kind, f"cpus 2-{len(old) + 1}", want),))


HOST = (
    Example(
        "mount",
        {"proc/mounts": "proc /proc proc rw 0 0\n", "dev/null": ""},
        (("mount", "/dev/hugepages1G", 1 << 30), ("libvirt-restart", "/dev/hugepages1G", "found")),
    ),
    Example(
        "apparmor-rule",
        {"etc/apparmor.d/local/abstractions/libvirt-qemu": "  /srv/images/** r,\n"},
        (("apparmor-rule", LOCAL, RULE),),
    ),
    Example(
        "hugepages",
        {f"{_NODE}/nr_hugepages": "3\n", f"{_NODE}/free_hugepages": "3\n"},
        (("hugepages", f"/{_NODE}/nr_hugepages", 64),),
    ),
    Example(
        "thp",
        {"sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n"},
        (("thp", "/sys/kernel/mm/transparent_hugepage/enabled", "never"),),
    ),
    Example("ksm", {"sys/kernel/mm/ksm/run": "1\n"}, (("ksm", "/sys/kernel/mm/ksm/run", 2),)),
    Example(
        "numa-balancing",
        {"proc/sys/kernel/numa_balancing": "1\n"},
        (("numa-balancing", "kernel.numa_balancing", 0),),
    ),
    _per_cpu(
        "governor", "cpufreq/scaling_governor", "performance", "powersave", "schedutil", "performance", "ondemand"
    ),
    _per_cpu("energy-preference", "cpufreq/energy_performance_preference", "performance", "default", "default"),
    _per_cpu("resume-latency", "power/pm_qos_resume_latency_us", "30", "0", "n/a", "100"),
    Example(
        "sysctl",
        {"proc/sys/vm/swappiness": "60\n", "proc/sys/vm/zone_reclaim_mode": "1\n"},
        (("sysctl", "vm.swappiness", "1"), ("sysctl", "vm.zone_reclaim_mode", "0")),
    ),
    Example(
        "sysctl beside a line of somebody else's",
        {
            "proc/sys/vm/swappiness": "60\n",
            "etc/sysctl.d/90-hosttune.conf": "# Written by hosttune; `hosttune revert` takes its lines away.\n"
            "vm.stat_interval = 10\n",
        },
        (("sysctl", "vm.swappiness", "1"),),
    ),
)

# --- PCI -----------------------------------------------------------------------------------------------------

_ENDS = {
    **_function(_PORT, "0x060400", config=space(ROOT_PORT, aspm=3, acs=(0x1D, 0))),
    **_function(_GPU, config=space(aspm=3)),
}
_END_LINKS = {**_links(_PORT, PORT), **_links(_GPU, GPU)}
_SWITCHES = {
    f"{_GPU}/link/{name}": "1\n"
    for name in ("l0s_aspm", "l1_aspm", "l1_1_aspm", "l1_2_aspm", "l1_1_pcipm", "l1_2_pcipm")
}
_QUEUE = f"{_DRIVE}/nvme/nvme3/nvme3n1/queue"

PCI = (
    Example("aspm by registers", _ENDS, (("aspm", PORT, "off"),), _END_LINKS),
    Example("aspm by switches", {**_ENDS, **_SWITCHES}, (("aspm", PORT, "off"),), _END_LINKS),
    _one_field("read-request", 4096, space(read_request=2)),
    _one_field("relaxed-ordering", True, space(relaxed=False)),
    Example("acs", _ENDS, (("acs", PORT, _ACS),), _END_LINKS),
    Example(
        "nvme-queue",
        {
            f"{_QUEUE}/scheduler": "[mq-deadline] kyber none\n",
            f"{_QUEUE}/nr_requests": "256\n",
            f"{_QUEUE}/rq_affinity": "1\n",
        },
        (("nvme-queue", f"{DRIVE} n1", {"scheduler": "none", "nr_requests": 1023, "rq_affinity": 2}),),
        {f"{_DEVICES}/{DRIVE}": _DRIVE},
    ),
    Example(
        "driver",
        {**_function(_GPU, driver_override="(null)\n"), f"{_DRIVERS}/vfio-pci/bind": "", "run/udev/control": ""},
        (("driver", GPU, "vfio-pci"),),
        _links(_GPU, GPU, "nvidia"),
    ),
    Example(
        "driver of none, vfio-pci not loaded",
        _function(_GPU, driver_override="(null)\n"),
        (("driver", GPU, "vfio-pci"),),
        _links(_GPU, GPU),
    ),
    Example(
        "driver with an override of somebody else's",
        {**_function(_GPU, driver_override="nvidia\n"), f"{_DRIVERS}/vfio-pci/bind": ""},
        (("driver", GPU, "vfio-pci"),),
        _links(_GPU, GPU, "nvidia"),
    ),
    Example(
        "sriov-vfs from none",
        _function(_GPU, vendor="0x15b3\n", sriov_numvfs="0\n", sriov_totalvfs="8\n"),
        (("sriov-vfs", GPU, 4),),
        _links(_GPU, GPU, "mlx5_core"),
    ),
    Example(
        "sriov-vfs from some",
        _function(_GPU, vendor="0x15b3\n", sriov_numvfs="2\n", sriov_totalvfs="8\n"),
        (("sriov-vfs", GPU, 4),),
        _links(_GPU, GPU, "mlx5_core"),
    ),
    Example(
        "fabric-partition",
        {
            **_function(_GPU),
            ".hosttune/commands/fabric-manager-partitions": json.dumps(
                {"partitionInfo": [{"partitionId": 7, "isActive": 0, "numGpus": 1, "gpuInfo": [{"physicalId": 1}]}]}
            ),
        },
        (("fabric-partition", f"7@{GPU}", "active: modules 1"),),
        _links(_GPU, GPU, "nvidia"),
    ),
    Example(
        "vgpu-functions",
        {
            **_function(_GPU, sriov_numvfs="0\n", sriov_totalvfs="16\n"),
            f".hosttune/commands/mig-lgi-{GPU}": "No GPU instances found: Not Found\n",
        },
        (("vgpu-functions", GPU, True),),
        _links(_GPU, GPU, "nvidia"),
    ),
    Example(
        "mig-instance",
        {**_function(_GPU), f".hosttune/commands/mig-lgi-{GPU}": "No GPU instances found: Not Found\n"},
        (("mig-instance", f"{GPU} 1g.18gb:4", True),),
        _links(_GPU, GPU, "nvidia"),
    ),
    Example(
        "vgpu-mdev",
        _function(_GPU, **{"mdev_supported_types__nvidia-474__create": ""}),
        (("vgpu-mdev", f"{MDEV} {GPU}", "nvidia-474"),),
        _links(_GPU, GPU, "nvidia"),
    ),
    Example(
        "virtual-function",
        {
            **_function(_GPU, sriov_numvfs="1\n", net__up0__address=f"{_MAC}\n"),
            ".hosttune/commands/ip-link-up0": json.dumps([{"ifname": "up0", "vfinfo_list": [_VF]}]),
        },
        (("virtual-function", f"{GPU}/0", {"max_tx": 100, "trust": True}),),
        _links(_GPU, GPU, "mlx5_core") | {f"{_GPU}/virtfn0": f"{_PORT}/0000:41:00.1"},
    ),
    Example(
        "vgpu-type",
        _function(_GPU, nvidia__current_vgpu_type="0\n", nvidia__creatable_vgpu_types="1414 : NVIDIA H200X-1-18C\n"),
        (("vgpu-type", GPU, "1414"),),
        _links(_GPU, GPU, "nvidia"),
    ),
    Example(
        "irq-affinity",
        {
            **_function(_GPU, msi_irqs__40="", msi_irqs__41="", msi_irqs__42=""),
            "proc/irq/40/smp_affinity_list": "0-7\n",
            "proc/irq/41/smp_affinity_list": "4\n",
            "proc/irq/42/smp_affinity_list": "0-1\n",
        },
        (("irq-affinity", GPU, "0-1"),),
        _links(_GPU, GPU, "vfio-pci"),
    ),
    Example("libvirt-hook", {}, (("libvirt-hook", "/etc/libvirt/hooks/qemu.d/hosttune", "installed"),)),
    Example("irqbalance-ban", {}, (("irqbalance-ban", "irqbalance", "2-7"),)),
    Example("slice-cpus", {}, (("slice-cpus", "system.slice", "0-1"), ("slice-cpus", "user.slice", "0-1"))),
    Example(
        "default-irq-affinity",
        {"proc/irq/default_smp_affinity": "ff,ffffffff\n"},
        (("default-irq-affinity", "/proc/irq/default_smp_affinity", "0-1,32"),),
    ),
    Example(
        "irqbalance-ban of a running irqbalance",
        {
            "usr/lib/systemd/system/irqbalance.service": "[Service]\n",
            "run/systemd/system/.keep": "",
            "etc/default/irqbalance": "IRQBALANCE_BANNED_CPULIST=4\n",
        },
        (("irqbalance-ban", "irqbalance", "2-7"),),
    ),
)

# --- GPUs ----------------------------------------------------------------------------------------------------

_NVML = json.dumps(
    {
        "driver": "580.159.04",
        "nvml": "13.580.159.04",
        "0": {
            "busId": GPU,
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetPersistenceMode": 0,
            "nvmlDeviceGetPowerManagementLimit": 700000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700000,
            "nvmlDeviceGetPowerManagementLimitConstraints": [200000, 700000],
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetEccMode": [1, 1],
            "processes": 0,
        },
    }
)
_HELD = {**_function(_GPU), ".hosttune/commands/nvml.json": _NVML}


def _gpu(kind: str, want: Any) -> Example:
    return Example(kind, _HELD, ((kind, GPU, want),), _links(_GPU, GPU, "nvidia"))


_AMD = f"sys/devices/pci0000:e0/{AMD_GPU}"
_CAPS = {"power1_cap": 750, "power1_cap_default": 750, "power1_cap_min": 100, "power1_cap_max": 750}
GPUS = (
    _gpu("gpu-persistence", True),
    _gpu("gpu-power-limit", 500),
    Example(
        "gpu-power-limit of amdgpu",
        _function(_AMD, **{f"hwmon__hwmon5__{name}": f"{watts}000000\n" for name, watts in _CAPS.items()}),
        (("gpu-power-limit", AMD_GPU, 500),),
        _links(_AMD, AMD_GPU, "amdgpu"),
    ),
    _gpu("gpu-compute-mode", "exclusive_process"),
    _gpu("gpu-ecc", False),
    _gpu("gpu-mig-mode", "enabled"),
)

# --- boot ----------------------------------------------------------------------------------------------------

_CMDLINE = {"proc/cmdline": "BOOT_IMAGE=/vmlinuz-6.1 root=/dev/vda1 ro quiet iommu=off\n"}
_ARGUMENTS = (("kernel-argument", "iommu", "iommu=pt"), ("kernel-argument", "isolcpus", "isolcpus=domain,2-3"))
_MKCONFIG = 'for x in ${sysconfdir}/default/grub.d/*.cfg ; do . "${x}" ; done\n'
_KERNEL = {"usr/lib/modules/6.1.0/vmlinuz": "", "boot/loader/entries/6.1.0.conf": "options root=/dev/vda1 ro\n"}
BOOT = (
    Example(
        "kernel-argument by GRUB",
        {**_CMDLINE, "usr/sbin/grub-mkconfig": _MKCONFIG, "usr/sbin/update-grub": "", "boot/grub/grub.cfg": "\n"},
        _ARGUMENTS,
    ),
    Example(
        "kernel-argument by grubby",
        {
            **_CMDLINE,
            "usr/sbin/grubby": "",
            ".hosttune/commands/grubby-info-all": 'args="ro quiet iommu=off"\n',
            **_KERNEL,
        },
        _ARGUMENTS,
    ),
    Example("kernel-argument by kernel-install", {**_CMDLINE, "usr/bin/kernel-install": "", **_KERNEL}, _ARGUMENTS),
)

# --- guests --------------------------------------------------------------------------------------------------

_NO_GUESTS = {".hosttune/commands/virsh-list": " Id   Name   State\n--------------------\n"}
_OLD = changed(VM, emulator_cpus="0", disk="/srv/old.qcow2", uuid="11111111-2222-4333-8444-555555555555")
_OLD_XML = domain_xml(Example("old", {}, guests=(_OLD,)).plan, "vm")
_DEFINED = {
    ".hosttune/commands/virsh-list": " Id   Name   State\n--------------------\n -    vm     shut off\n",
    ".hosttune/commands/virsh-dumpxml-vm": _OLD_XML,
}
GUESTS = (
    Example("guest", _NO_GUESTS, guests=(VM,)),
    Example("guest redefined", _DEFINED, guests=(VM,)),
    Example(
        "adopted-guest",
        {".hosttune/commands/virsh-dumpxml-byhand": BY_HAND},
        adoptions=(adopted_by_hand(BY_HAND, cpus=(4, 5), node=0),),
    ),
    Example("guest-autostart", _NO_GUESTS, guests=(changed(VM, autostart=True),)),
    Example("guest-state", _NO_GUESTS, guests=(VM,), start=True),
    Example(
        "guest-disk",
        {**_NO_GUESTS, "srv/image.qcow2": "an image"},
        guests=(changed(VM, disk="/srv/disk.qcow2", image="/srv/image.qcow2"),),
    ),
    Example(
        "guest-files",
        _NO_GUESTS,
        guests=(
            changed(
                VM,
                seed="/var/lib/hosttune/guests/vm/seed.iso",
                guest_settings={"persistence": True, "power_limit_watts": 700},
            ),
        ),
    ),
)


def running(*guests: tuple[int, str, Mapping[str, str]]) -> dict[str, Content]:
    """Files of running guests: (process id, name, CPUs by the name of a thread). The first thread is the process."""
    rows = [f" {number}    {name}     running\n" for number, (_, name, _) in enumerate(guests, 1)]
    files: dict[str, Content] = {
        ".hosttune/commands/virsh-list": " Id   Name   State\n--------------------\n" + "".join(rows),
        ".hosttune/commands/qemu-processes": "".join(f"{process} {name}\n" for process, name, _ in guests),
        f"{_CPU}/online": "0-7\n",
    }
    for cpu in range(8):
        files[f"{_CPU}/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu & ~1}-{cpu | 1}\n"
    for process, name, threads in guests:
        files[f"run/libvirt/qemu/{name}.pid"] = f"{process}\n"
        files[f"proc/{process}/stat"] = f"{process} (qemu-system-x86) S {' '.join(['0'] * 18)} 4711 0\n"
        for number, (thread, cpus) in enumerate(threads.items()):
            task = f"proc/{process}/task/{process + number}"
            files[f"{task}/comm"] = f"{thread}\n"
            files[f"{task}/status"] = f"Threads:\t{len(threads)}\nCpus_allowed_list:\t{cpus}\n"
    return files


QEMU = "qemu-system-x86"
LIVE = Example(
    "live-affinity",
    running(
        (1000, "one", {QEMU: "0-7", "CPU 0/KVM": "4", "CPU 1/KVM": "5", "IO iothread1": "0-7", "worker": "4"}),
        (2000, "two", {QEMU: "0-7", "CPU 0/KVM": "2", "CPU 1/KVM": "3"}),
        (3000, "loose", {QEMU: "0-7", "CPU 0/KVM": "0-7", "CPU 1/KVM": "0-7"}),
    ),
    (
        ("live-affinity", "one", "vcpu.0=2 vcpu.1=3 emulator=0-1 iothread.1=0-1"),
        ("live-affinity", "two", "vcpu.0=4 vcpu.1=5 emulator=0-1"),
        ("live-affinity", "loose", "vcpu.0=6 vcpu.1=7 emulator=0-1"),
    ),
)

EXAMPLES = {example.name: example for example in (*HOST, *PCI, *GPUS, *BOOT, *GUESTS, LIVE)}


def together(*examples: Example) -> Example:
    """One root with all of these, and one plan of all their wants. Examples must not contradict each other."""
    return Example(
        "all kinds",
        {path: content for example in examples for path, content in example.files.items()},
        tuple({(kind, target): (kind, target, want) for one in examples for kind, target, want in one.wants}.values()),
        {path: target for example in examples for path, target in example.links.items()},
        tuple({guest.name: guest for example in examples for guest in example.guests}.values()),
        tuple({guest.name: guest for example in examples for guest in example.adoptions}.values()),
        any(example.start for example in examples),
    )
