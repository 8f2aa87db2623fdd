"""The machine, its virtualization stack and the guests that libvirt knows: parts of a host document."""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.model.values import Closed, CpuSet, Value, parse_cpus

RUNNING = frozenset(("running", "paused", "idle", "in shutdown", "pmsuspended", "blocked"))  # states of a guest


class VcpuPin(Value, frozen=True, kw_only=True):
    """A vCPU and the host CPUs that it may run on (a plan names exactly one)."""

    vcpu: int
    cpus: str | tuple[int, ...]


class GuestMemory(Value, frozen=True, kw_only=True):
    """Memory of a guest that comes from one host node."""

    node: int | None = None
    memory_bytes: int | None = None
    page_bytes: int | None = None


class RunningGuest(Value, frozen=True, kw_only=True):
    """A guest that libvirt knows on this host, running or only defined. No other guest gets what it has.

    `starting`: libvirt has not ended its start; the state is "paused" until then, and its threads are not yet pinned.
    """

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
    starting: bool = False
    cliques: tuple[tuple[str, int], ...] = ()  # of its GPUs that may exchange data over PCIe (address, clique)
    # Nodes and interfaces of the host that it has, of which it shares the devices (`Guest.host_paths`).
    host_paths: tuple[str, ...] = ()
    next_start: tuple[str, ...] | None = None  # how its next start would differ from what runs; None: unknown

    @property
    def unread(self) -> bool:
        """Whether only its name and state are known: its definition could not be read.

        It may have any CPU, memory and device.
        """
        amounts = (self.vcpus, self.vcpu_pins, self.emulator_cpus, self.iothread_cpus, self.memory_bytes, self.memory)
        return not self.devices and not self.mdevs and all(amount is None for amount in amounts)

    @property
    def pins(self) -> dict[int, CpuSet]:
        """The host CPUs of each vCPU that has a pin; empty if the pins are unknown."""
        return {pin.vcpu: parse_cpus(pin.cpus) for pin in self.vcpu_pins or ()}

    @property
    def has_huge_pages(self) -> bool:
        """Whether any part of its memory is known to have huge pages."""
        return any(part.page_bytes for part in self.memory or ())

    @property
    def may_run(self) -> bool:
        """Whether it has its devices now, or may have them: its state is unknown."""
        return self.state != "shut off"


class Iommu(Value, frozen=True, kw_only=True):
    """The IOMMU. `present`: the kernel runs one, with groups; `mode`: the default domain type of most groups.

    `interrupt_posting`: whether every Intel unit can post interrupts to vCPUs; None: another maker, or not read.
    """

    present: bool | None = None
    mode: str | None = None
    vendor: str | None = None  # "intel", "amd", "smmu"
    address_bits: int | None = None
    interrupt_remapping: bool | None = None
    interrupt_posting: bool | None = None


class Module(Closed, frozen=True, kw_only=True):
    """A loaded kernel module and its parameters."""

    name: str
    version: str | None = None
    parameters: Mapping[str, str] | None = None

    MAPPINGS = ("parameters",)


class Platform(Value, frozen=True, kw_only=True):
    """The machine as the firmware names it, and the kernel modules that matter to hosttune."""

    vendor: str | None = None
    product: str | None = None
    bios_version: str | None = None
    uuid: str | None = None
    virtualization: str | None = None  # the hypervisor that runs this machine, None if none is seen
    modules: tuple[Module, ...] = ()
    os: str | None = None
    boot_loader: str | None = None
    unused_arguments: tuple[str, ...] = ()  # of /etc/default/grub, where another loader boots this host


class DomainCapabilities(Value, frozen=True, kw_only=True):
    """What the installed libvirt and QEMU offer for a q35 x86-64 guest (`virsh domcapabilities`).

    `domain_type` is the type that libvirt was asked about: "kvm", or "qemu" if the host has no KVM. `iothreads` and
    `hostdev_vfio` (host devices through VFIO) are None if this libvirt does not report them.
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
    """The virtualization stack of this host. `kvm` is True if /dev/kvm works here.

    The versions are those of the running daemon and its QEMU, or of the installed programs if libvirt does not answer.
    `reads_node_cpus`: whether AppArmor lets QEMU read which CPUs a node has; None: AppArmor confines no guest, or
    unknown.
    """

    kvm: bool | None = None
    libvirt_version: str | None = None
    qemu_version: str | None = None
    uri: str | None = None
    capabilities: DomainCapabilities | None = None
    schema_elements: tuple[str, ...] | None = None  # optional XML elements that the installed libvirt's schema knows
    reads_node_cpus: bool | None = None


class Tuned(Value, frozen=True, kw_only=True):
    """TuneD's active profiles, in order; none if their names could not be read.

    `mode`: "auto" if TuneD chose them, "manual". `own`: those that hosttune knows by name and of which there is, or
    may be, a version of the user's own in /etc/tuned.
    """

    profiles: tuple[str, ...]
    mode: str | None = None
    own: tuple[str, ...] = ()
