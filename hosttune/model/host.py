"""The host document: one machine as discovery found it (`hosttune.host/v1`).

Every value is frozen and can be saved, mailed and replayed. `None` is the only way to say unknown or
absent: 0 and -1 are never used for it. Sizes are bytes, link rates GT/s per lane, CPU lists strings in the
kernel's own list format ("0-3,8").
"""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.model.gpu import Fabric, Gpu
from hosttune.model.values import Value, close_lists, close_mappings, from_json, to_json
from hosttune.model.vgpu import Vgpu

HOST_SCHEMA = "hosttune.host/v1"

# --- CPU and memory ------------------------------------------------------------------------------------------


class Cpu(Value, frozen=True, kw_only=True):
    """One logical CPU. `core`, `llc` and `l2` are named by the lowest CPU id of the group.

    An offline CPU has no places (all None). `allowed` is False where a cpuset hides the CPU from guests.
    `kind` tells the cores of a hybrid part apart ("performance", "efficiency").
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
    resume_latency_us: str | None = None  # pm_qos_resume_latency_us verbatim: "0" no limit, "n/a" none tolerated


class CpuModel(Value, frozen=True, kw_only=True):
    """What is common to the host's CPUs."""

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
    """One size of huge page on one node; counts are pages."""

    size_bytes: int
    total: int | None = None
    free: int | None = None


class NumaNode(Value, frozen=True, kw_only=True):
    """One node directory of sysfs. `cpus` is the kernel's list verbatim.

    `kind`: "cpu" has CPUs, "memory" has memory and no CPU, "gpu" is a GPU's own memory, "empty" has neither.
    """

    id: int
    cpus: str | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    distances: Mapping[str, int] | None = None
    hugepages: tuple[HugePages, ...] | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        close_mappings(self, "distances")


class Hugetlbfs(Value, frozen=True, kw_only=True):
    """A mounted file system of huge pages. `libvirt`: the libvirt daemon has found it (it looks when it starts)."""

    path: str
    size_bytes: int | None = None
    libvirt: bool | None = None


class MemorySettings(Value, frozen=True, kw_only=True):
    """Host-wide memory settings, in the kernel's own words. `hugetlbfs` None: the mounts could not be read."""

    thp: str | None = None  # the bracketed word of transparent_hugepage/enabled
    thp_defrag: str | None = None
    ksm_run: int | None = None
    numa_balancing: int | None = None
    default_hugepage_bytes: int | None = None
    overcommit_hugepages: Mapping[str, int] | None = None  # page size in bytes -> nr_overcommit_hugepages
    hugetlbfs: tuple[Hugetlbfs, ...] | None = None

    def __post_init__(self) -> None:
        close_mappings(self, "overcommit_hugepages")


# --- PCI -----------------------------------------------------------------------------------------------------


class LinkEnd(Value, frozen=True, kw_only=True):
    """The port at the other end of a device's link, and what it can do."""

    address: str
    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None


class LinkFigures(Value, frozen=True, kw_only=True):
    """What one source says of a link by itself. `read` names the files that were read."""

    read: str
    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None


class Link(Value, frozen=True, kw_only=True):
    """A PCIe link as one function sees it, with the port above it in `upstream`.

    `state`: "full" runs at this device's most; "by-design" lower, because the other end can do no more;
    "degraded" lower than both ends can; "idle" speed lower, width full, and the device is suspended or known
    to slow its idle link; "unknown" cannot be told (a virtual port, a device in D3, missing figures).
    `told`: what each source says by itself, the files of sysfs before configuration space; None: not kept apart.
    """

    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None
    upstream: LinkEnd | None = None
    state: str | None = None
    why: str | None = None
    told: tuple[LinkFigures, ...] | None = None


class Bar(Value, frozen=True, kw_only=True):
    """One base address register, sized from sysfs `resource`. `index` is the region number (6 = ROM is left out)."""

    index: int
    size_bytes: int
    prefetchable: bool | None = None
    is_64bit: bool | None = None


class Acs(Value, frozen=True, kw_only=True):
    """Access Control Services: names of lspci ("SrcValid", "ReqRedir", …) that are capable and enabled."""

    capable: tuple[str, ...] = ()
    enabled: tuple[str, ...] = ()


class Irq(Value, frozen=True, kw_only=True):
    """One interrupt of a device and the CPUs it may go to, and really goes to."""

    irq: int
    affinity: str | None = None
    effective: str | None = None


class PciDevice(Value, frozen=True, kw_only=True):
    """One PCI function. `parent` is the bridge directly above, None on a root bus.

    `numa_source`: "device" said so itself; "bridge" the nearest bridge above that knows; "firmware" the
    local CPU list; "unknown". Fields past `virtfns` are read from config space and may need root. `responds` False: its
    ids or its configuration space read all ones, so nothing answers at this address any more. `contradicted`: where
    what sysfs says of it contradicts itself, so that what it is cannot be told; None where nothing does.
    """

    address: str
    vendor_id: str | None = None
    device_id: str | None = None
    subsystem_vendor_id: str | None = None
    subsystem_device_id: str | None = None
    revision: str | None = None
    class_code: str | None = None
    vendor_name: str | None = None
    device_name: str | None = None
    numa_node: int | None = None
    numa_source: str | None = None
    local_cpus: str | None = None
    iommu_group: int | None = None
    iommu_group_type: str | None = None
    driver: str | None = None
    unbound: bool | None = None  # True: it is proven to have no driver; else a missing `driver` may have been lost
    driver_override: str | None = None
    parent: str | None = None
    link: Link | None = None
    bars: tuple[Bar, ...] | None = None
    physfn: str | None = None
    virtfns: tuple[str, ...] = ()
    sriov_total_vfs: int | None = None
    sriov_vfs: int | None = None
    boot_display: bool | None = None
    power_state: str | None = None
    runtime_status: str | None = None
    reset_methods: tuple[str, ...] | None = None
    irqs: tuple[Irq, ...] | None = None
    port_type: str | None = None  # endpoint, legacy-endpoint, root-port, upstream-port, downstream-port, …
    acs: Acs | None = None
    ats_enabled: bool | None = None
    aspm: str | None = None  # enabled states: "off", "L0s", "L1", "L0s L1"
    aspm_supported: str | None = None
    max_payload_bytes: int | None = None
    max_payload_supported_bytes: int | None = None
    read_request_bytes: int | None = None
    relaxed_ordering: bool | None = None
    responds: bool | None = None
    contradicted: str | None = None

    @property
    def is_there(self) -> bool:
        """Whether it was seen to be a device: it says what it is, and does not read all ones."""
        return self.responds is not False and bool(self.vendor_id or self.class_code)

    @property
    def is_bridge(self) -> bool:
        """A PCI-to-PCI or host bridge (class 06 00 or 06 04): never passed to a guest, never counted in a group."""
        return (self.class_code or "")[:4] in ("0600", "0604")

    @property
    def is_display(self) -> bool:
        """Display (03xx) or processing accelerator (12xx): what the host document lists as a GPU."""
        return (self.class_code or "")[:2] in ("03", "12")


# --- devices by what they do ---------------------------------------------------------------------------------


class Nic(Value, frozen=True, kw_only=True):
    """A network function. `rdma` is the RDMA device's name (mlx5_0), `interfaces` the network interfaces."""

    address: str
    kind: str | None = None
    rdma: str | None = None
    rate_gbps: float | None = None
    interfaces: tuple[str, ...] = ()
    link_layer: str | None = None
    state: str | None = None
    physfn: str | None = None
    in_use: str | None = None  # why the host needs it ("carries the default route"), None when nothing says so
    fabric_bridge: bool | None = None  # carries the GPUs' NVLink fabric; None: not read, or no such GPUs here


class Nvme(Value, frozen=True, kw_only=True):
    """An NVMe controller; `namespaces` are block devices, `mounted` those in use by the host."""

    address: str
    model: str | None = None
    controller: str | None = None
    namespaces: tuple[str, ...] = ()
    in_use: str | None = None  # why the host needs it ("mounted on /"), None when nothing says so


class NvSwitch(Value, frozen=True, kw_only=True):
    """An NVSwitch that is a PCI function (A100 and Hopper boards)."""

    address: str
    model: str | None = None
    driver: str | None = None


# --- who knows of which devices --------------------------------------------------------------------------------


class SeenDevice(Value, frozen=True, kw_only=True):
    """A device as a source shows it. `kind` is "gpu", "nic", "nvme", "nvswitch" or "other", None where it does not say;
    `id` vendor:device as baselines name it ("10de:2335"); `vendor` as in `Gpu.vendor`; `driver` the driver that must
    hold it for this source to show it.
    """

    address: str
    kind: str | None = None
    vendor: str | None = None
    model: str | None = None
    id: str | None = None
    driver: str | None = None


class DeviceSource(Value, frozen=True, kw_only=True):
    """One source of devices besides the PCI tree (`Host.pci`), held against it.

    `read` is the file, folder or call. `shows` counts the devices that it shows, None where it was not read although
    something proves that it is there; `could` the functions of the tree that it could show. `beyond` are devices that
    it shows and the tree does not, `lacking` functions of the tree that it could show and does not. `contrary` are
    functions of the tree that it shows as another kind of device, or as held by another driver. `names` False: it only
    counts. `expects`: it says what was here before, or what is meant to be here (a plan, an earlier validation).
    """

    name: str
    read: str
    shows: int | None = None
    could: int | None = None
    beyond: tuple[SeenDevice, ...] = ()
    lacking: tuple[str, ...] = ()
    contrary: tuple[SeenDevice, ...] = ()
    names: bool = True
    expects: bool = False

    def __post_init__(self) -> None:
        close_lists(self)


# --- guests, platform ----------------------------------------------------------------------------------------


class VcpuPin(Value, frozen=True, kw_only=True):
    """A vCPU and the host CPUs it may run on (a plan names exactly one)."""

    vcpu: int
    cpus: str | tuple[int, ...]


class GuestMemory(Value, frozen=True, kw_only=True):
    """Memory of a guest that comes from one host node."""

    node: int | None = None
    memory_bytes: int | None = None
    page_bytes: int | None = None


class RunningGuest(Value, frozen=True, kw_only=True):
    """A guest that libvirt knows on this host, running or merely defined: it keeps what it holds."""

    name: str
    state: str | None = None
    vcpus: int | None = None
    vcpu_pins: tuple[VcpuPin, ...] | None = None
    emulator_cpus: str | tuple[int, ...] | None = None
    iothread_cpus: tuple[str, ...] | None = None
    memory_bytes: int | None = None
    memory: tuple[GuestMemory, ...] | None = None
    page_bytes: int | None = None
    devices: tuple[str, ...] = ()
    mdevs: tuple[str, ...] = ()  # UUIDs of its mediated devices
    uuid: str | None = None
    next_start: tuple[str, ...] | None = None  # in what its next start would differ from what runs; None: unknown


class Iommu(Value, frozen=True, kw_only=True):
    """`present`: the kernel runs an IOMMU with groups; `mode`: default domain type of most groups.

    `interrupt_posting`: whether every Intel unit can post interrupts to vCPUs; None: of other makers, or not read.
    """

    present: bool | None = None
    mode: str | None = None
    vendor: str | None = None  # "intel", "amd", "smmu"
    address_bits: int | None = None
    interrupt_remapping: bool | None = None
    interrupt_posting: bool | None = None


class Module(Value, frozen=True, kw_only=True):
    """A loaded kernel module and its parameters."""

    name: str
    version: str | None = None
    parameters: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        close_mappings(self, "parameters")


class Platform(Value, frozen=True, kw_only=True):
    """The machine as firmware names it, and the kernel modules that matter here."""

    vendor: str | None = None
    product: str | None = None
    bios_version: str | None = None
    uuid: str | None = None
    virtualization: str | None = None  # which hypervisor runs this machine, None when none is seen
    modules: tuple[Module, ...] = ()
    os: str | None = None
    boot_loader: str | None = None


class DomainCapabilities(Value, frozen=True, kw_only=True):
    """What the installed libvirt and QEMU offer for a q35 x86-64 guest (`virsh domcapabilities`).

    `domain_type` is what they were asked for: "kvm", or "qemu" where the host has no KVM. `iothreads` and
    `hostdev_vfio` (host devices through VFIO) are None where this libvirt does not say.
    """

    machine: str | None = None
    max_vcpus: int | None = None
    firmwares: tuple[str, ...] | None = None
    loaders: tuple[str, ...] | None = None
    cpu_modes: tuple[str, ...] | None = None
    host_cpu_model: str | None = None
    features: tuple[str, ...] | None = None
    domain_type: str | None = None
    iothreads: bool | None = None
    hostdev_vfio: bool | None = None


class Virtualization(Value, frozen=True, kw_only=True):
    """The virtualization stack of this host. `kvm` is True when /dev/kvm works here.

    The versions are the running daemon's and its QEMU's; of the installed programs where libvirt cannot be asked.
    `reads_node_cpus`: whether AppArmor lets QEMU read which CPUs a node has; None: it confines no guest, or unknown.
    """

    kvm: bool | None = None
    libvirt_version: str | None = None
    qemu_version: str | None = None
    uri: str | None = None
    capabilities: DomainCapabilities | None = None
    schema_elements: tuple[str, ...] | None = None  # optional XML elements that libvirt's installed schema knows
    reads_node_cpus: bool | None = None


class Problem(Value, frozen=True, kw_only=True):
    """A doubt: `what` is doubtful, `where` it was read, `why` it is doubtful and what was assumed instead."""

    what: str
    where: str
    why: str


class TunedKey(Value, frozen=True, kw_only=True):
    """What a profile of TuneD sets: a key of one of its plugins. `where`: the file that says so.

    `sure` False: it holds only of some devices or machines, or its value is worked out when TuneD starts.
    """

    plugin: str
    key: str
    value: str
    where: str
    sure: bool = True


class Tuned(Value, frozen=True, kw_only=True):
    """TuneD's active profiles, in order, and what they set together. `unread`: what could not be read, and why.

    `reapply_sysctl`: it applies the files of sysctl.d again after its own values, but for names that match one of
    `reapply_sysctl_exclude` (tuned-main.conf).
    """

    profiles: tuple[str, ...]
    keys: tuple[TunedKey, ...] = ()
    unread: tuple[str, ...] = ()
    reapply_sysctl: bool = True
    reapply_sysctl_exclude: tuple[str, ...] = ()


class Host(Value, frozen=True, kw_only=True):
    """One machine as discovery found it. `digest` ties a plan to a live host and is None in captures."""

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
    fabric: Fabric | None = None  # None: no NVSwitch fabric, or nothing known of it
    vgpu: Vgpu | None = None  # None: no GPU that its maker's driver holds, or nothing known of it
    virtualization: Virtualization | None = None
    guests: tuple[RunningGuest, ...] | None = None
    settings: Mapping[str, str] | None = None  # live values of settings that have no better place, by path
    tuned: Tuned | None = None  # None: no profile of TuneD is known to be active
    sources: tuple[DeviceSource, ...] | None = None  # who else knows of devices; None: not kept
    problems: tuple[Problem, ...] = ()

    def __post_init__(self) -> None:
        close_mappings(self, "settings")
        close_lists(self)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "host document") -> Host:
        """Read a host document. Raises BadInput naming the version, or the field that no machine can have so."""
        from hosttune.model.check import check_host

        host = from_json(cls, text, schema=HOST_SCHEMA, where=where)
        check_host(host, where)
        return host

    def to_json(self) -> str:
        """The document, indented, with every field (null where unknown)."""
        return to_json(self)

    def switched_on(self, module: str, parameter: str) -> bool | None:
        """Whether a module's switch reads Y or 1; None where it is not known, or the module not loaded."""
        modules = self.platform.modules if self.platform else ()
        known = next((one.parameters for one in modules if one.name == module), None)
        value = (known or {}).get(parameter)
        return None if value is None else value.strip() in ("Y", "1")
