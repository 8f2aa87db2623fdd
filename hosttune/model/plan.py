"""The plan document (`hosttune.plan/v1`): placed guests, actions, findings. A plan decides and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from hosttune.errors import BadInput
from hosttune.model.intent import Boot, Intent, Network
from hosttune.model.prediction import Expectation
from hosttune.model.values import Closed, CpuSet, Document, Value, check_address, from_json

PLAN_SCHEMA = "hosttune.plan/v1"
SMALL_PAGE_BYTES = 4096


class Source(Value, frozen=True, kw_only=True):
    """Where an intent came from."""

    kind: Literal["file", "options", "adopted"]
    """Where the intent came from."""
    name: str | None = None
    """Path of the file, as it was given."""
    sha256: str | None = None
    """Digest of the file's bytes."""


class PlannedPin(Value, frozen=True, kw_only=True):
    """A vCPU and the one host CPU that it runs on."""

    vcpu: int
    """Number of the vCPU."""
    cpus: str
    """The one host CPU that it runs on."""


class Cell(Value, frozen=True, kw_only=True):
    """A NUMA cell of the guest."""

    id: int
    """Number of the cell."""
    vcpus: str
    """Its vCPUs, as a CPU list."""
    memory_bytes: int
    """Its memory."""
    host_nodes: str
    """The host node that its CPUs and memory come from."""
    distances: tuple[int, ...] = ()
    """To the guest's cells, in order, copied from the host's table; 10 is local."""


class Device(Value, frozen=True, kw_only=True):
    """A host device given to the guest."""

    address: str
    """PCI address on the host; of a mediated device its UUID."""
    kind: str
    """gpu, nic, nvme, vf, mdev, nvswitch or other."""
    guest_cell: int | None
    """Cell that it is near to; null: no affinity."""
    guest_address: str
    """Its address in the XML."""
    identity: str
    """What it is; compared before apply."""
    managed: bool = False
    """true: libvirt rebinds the driver when the guest starts and stops; false: the planned driver stays."""
    rom_bar: bool = False
    """false: its option ROM is off."""
    host_node: int | None = None
    """Its node on the host."""
    name: str | None = None
    """Its model."""
    class_code: str | None = None
    """PCI class."""
    link_speed_gts: float | None = None
    """Greatest speed of its link on the host."""
    link_width: int | None = None
    """Greatest width of its link on the host."""
    switches: tuple[str, ...] = ()
    """The host's PCIe switches above it, nearest first, named by their upstream ports."""
    clique: int | None = None
    """Number of the group of GPUs that may exchange data over PCIe."""
    vgpu_type: str | None = None
    """The vGPU type that its function has; null: it is not a vGPU."""
    network: Network | None = None
    """The network of the intent that a virtual function is for, with the MAC that it gets."""


class PciController(Value, frozen=True, kw_only=True):
    """A PCI controller of the guest."""

    index: int
    """Its number."""
    model: str
    """libvirt's model: pcie-root, pcie-root-port, pcie-expander-bus, pcie-switch-upstream-port or pcie-switch-
    downstream-port.
    """
    bus: int | None = None
    """Bus that it is on."""
    slot: int | None = None
    """Slot on that bus."""
    function: int = 0
    """Function of that slot."""
    chassis: int | None = None
    """Makes a port unique, with `port`."""
    port: int | None = None
    """Makes a port unique, with `chassis`."""
    bus_nr: int | None = None
    """Of an expander: its first bus number."""
    node: int | None = None
    """Of an expander: its guest cell."""
    host: str | None = None
    """Of an upstream port: the host's switch that it represents, named by that switch's upstream port."""
    link_speed_gts: float | None = None
    """Of an upstream port: greatest speed of the link above it."""
    link_width: int | None = None
    """Of an upstream port: greatest width of the link above it."""


class Topology(Value, frozen=True, kw_only=True):
    """The guest's CPU topology."""

    sockets: int
    """Number of sockets."""
    dies: int
    """Dies of a socket."""
    cores: int
    """Cores of a die."""
    threads: int
    """Threads of a core."""


class MigAssignment(Value, frozen=True, kw_only=True):
    """A MIG instance on a GPU."""

    gpu: str
    """PCI address of the GPU."""
    profile: str
    """Name of the profile."""
    start: int
    """First memory slice of the instance."""


class Step(Value, frozen=True, kw_only=True):
    """A step that a person does for a guest; hosttune does none of these steps."""

    when: str
    """"start": before the guest starts; "stop": after it has ended."""
    text: str
    """What to do."""
    unproven: bool = True
    """The order comes from documents and was not tried on hardware."""


BOOT_WAYS = "give it a disk (disk: PATH, --disk), a network (networks:, --network) or a kernel (boot:)"
NO_BOOT = f"nothing to boot from: {BOOT_WAYS}"


class GuestChange(Value, frozen=True, kw_only=True):
    """A difference between a guest in force and the guest as planned now."""

    element: str
    """What differs."""
    was: str
    """Its value in force."""
    becomes: str
    """Its value as planned now."""
    when: Literal["now", "next-start", "after-stop"]
    """When it takes effect."""


class PlannedGuest(Closed, frozen=True, kw_only=True):
    """One planned guest: everything that its XML needs, and the reasons."""

    name: str
    """Name of the guest."""
    vcpu_pins: tuple[PlannedPin, ...]
    """Where each vCPU runs: exactly one CPU each."""
    emulator_cpus: str
    """CPUs of the emulator threads."""
    iothread_cpus: tuple[str, ...] = ()
    """CPUs of each I/O thread."""
    cells: tuple[Cell, ...]
    """Its NUMA cells."""
    page_bytes: int | None
    """Size of the pages behind its memory."""
    devices: tuple[Device, ...] = ()
    """The host devices that it gets."""
    mig: tuple[MigAssignment, ...] = ()
    """MIG instances that back it as vGPUs."""
    fabric_partition: int | None = None
    """The NVSwitch partition that its GPUs are; null: none, or unknown."""
    steps: tuple[Step, ...] = ()
    """Steps that a person does for it."""
    why: tuple[str, ...] = ()
    """Reasons of its placement."""
    uuid: str | None = None
    """UUID of its definition."""
    machine: str = "q35"
    """Machine type of QEMU."""
    firmware: str = "efi"
    """efi or bios."""
    secure_boot: bool = False
    """Its firmware loads only signed code."""
    tpm: bool = False
    """It has an emulated TPM 2.0."""
    watchdog: bool = False
    """It has a watchdog."""
    autostart: bool | None = None
    """Whether libvirt starts it when the host has booted; null: as it is."""
    accelerator: str = "kvm"
    """kvm or tcg."""
    cpu_vendor: str | None = None
    """Vendor of the host's CPU."""
    topology: Topology | None = None
    """Its CPU topology: sockets × dies × cores × threads = vCPUs."""
    cache: Literal["passthrough", "disable"] = "passthrough"
    """"disable": it sees no last-level cache."""
    controllers: tuple[PciController, ...] = ()
    """Its PCI controllers."""
    physical_address_bits: int | None = None
    """Bits of its physical addresses."""
    mmio64_bytes: int | None = None
    """The 64-bit window that its BARs need; null: not computed."""
    mmio_note: str | None = None
    """What opens that window."""
    pci_hole64_bytes: int | None = None
    """Size of the 64-bit PCI hole."""
    ovmf_window_mib: int | None = None
    """Least value of X-PciMmio64Mb; null: none is needed."""
    iommu_eim: bool = False
    """It has an IOMMU device with extended interrupt mode, for more than 255 vCPUs."""
    disk: str | None = None
    """Path of its first disk."""
    further_disks: tuple[str, ...] = ()
    """Paths of its other disks."""
    image: str | None = None
    """Path of the image of which apply makes the first disk if it is not there."""
    user: str | None = None
    """The user that its seed makes; null: the image's own."""
    ssh_keys: tuple[str, ...] = ()
    """The public keys with which that user may log in."""
    networks: tuple[Network, ...] = ()
    """Its virtual NICs."""
    boot: Boot | None = None
    """The kernel that is booted directly."""
    elements: tuple[str, ...] = ()
    """Optional XML elements that the installed libvirt and QEMU support."""
    physical_address_limit_bits: int | None = None
    """Set if the IOMMU maps fewer bits than the CPU has."""
    allocation_threads: int | None = None
    """Threads that touch its memory when it starts."""
    guest_settings: Mapping[str, Any] | None = None
    """What is wanted inside it, by name; null: nothing."""
    seed: str | None = None
    """Path of the image that brings its settings to cloud-init; null: no such drive."""
    change: Literal["create", "update", "keep"] = "create"
    """Whether it is made, changed or left as it is."""
    changes: tuple[GuestChange, ...] = ()
    """What an update changes."""

    MAPPINGS = ("guest_settings",)

    @property
    def id_lists(self) -> tuple[tuple[str, str], ...]:
        """The lists of CPUs and nodes that it has, by their fields ("vcpu_pins[0].cpus")."""
        return (
            *((f"cells[{n}].{name}", text) for n, cell in enumerate(self.cells)
              for name, text in (("vcpus", cell.vcpus), ("host_nodes", cell.host_nodes))),
            *((f"vcpu_pins[{n}].cpus", pin.cpus) for n, pin in enumerate(self.vcpu_pins)),
            ("emulator_cpus", self.emulator_cpus),
            *((f"iothread_cpus[{n}]", text) for n, text in enumerate(self.iothread_cpus)),
        )  # fmt: skip

    @property
    def huge_page_bytes(self) -> int | None:
        """The size of the huge pages behind it; None for the kernel's ordinary pages."""
        return self.page_bytes if self.page_bytes and self.page_bytes > SMALL_PAGE_BYTES else None

    @property
    def disks(self) -> tuple[str, ...]:
        """The paths of its disks, the first one first."""
        return (*filter(None, (self.disk,)), *self.further_disks)

    @property
    def boots_from(self) -> tuple[str, ...]:
        """The kernel, disk and networks that it boots from."""
        own = (
            self.boot and self.boot.kernel,
            self.disk,
            *(network.network or network.bridge for network in self.networks),
        )
        return tuple(name for name in own if name)

    @property
    def may_boot_from(self) -> tuple[str, ...]:
        """The passed drives, which may hold a system, and NICs, whose own ROM may boot from their network."""
        return tuple(device.address for device in self.devices if device.kind in ("nic", "nvme"))


class Unplaced(Closed, frozen=True, kw_only=True):
    """A guest that does not fit."""

    guest: str
    """Name of the guest."""
    why: tuple[str, ...]
    """Why it does not fit."""
    relaxation: tuple[str, ...] = ()
    """What would make room for it."""
    refused: bool = False
    """What is asked for is wrong as this host is: no room would help."""
    stays: bool = False
    """It is in force and left as it is, so that the rest of the plan can be applied."""


class Removal(Value, frozen=True, kw_only=True):
    """A guest in force that is taken away."""

    name: str
    """Name of the guest."""
    uuid: str | None = None
    """UUID of its definition."""
    when: Literal["now", "after-stop"] = "now"
    """"after-stop": it runs now."""


class Unnamed(Value, frozen=True, kw_only=True):
    """A guest or a value asked for by name that is in force and that the intent does not name."""

    kind: Literal["guest", "setting"]
    """What is in force although the intent does not name it."""
    name: str
    """Name of the guest or of the setting."""
    source: Source | None = None
    """The intent that asked for it."""


class Action(Closed, frozen=True, kw_only=True):
    """One setting to change."""

    id: str
    """Number of the action."""
    kind: str
    """Kind of the setting."""
    target: str
    """What it is set on."""
    current: Any
    """Its value now; null: unknown or absent."""
    want: Any
    """The value that is wanted."""
    effect: str
    """now or reboot."""
    needed: bool
    """The guest cannot work without it."""
    reversible: bool
    """hosttune can put it back."""
    why: str
    """Why it is wanted."""
    change: Literal["set", "back"] = "set"
    """"set" it to what is wanted, or put it "back" to its original."""
    when: Literal["now", "next-start", "after-stop", "reboot"] = "now"
    """`effect`, or at the next start of its guest, or after its `holders` have stopped."""
    drift: bool = False
    """It is in force and has another value."""
    holders: tuple[str, ...] = ()
    """Guests whose present runs hold it."""

    MAPPINGS = ("current", "want")


class PlanFinding(Value, frozen=True, kw_only=True):
    """A fact that the operator should know."""

    level: str
    """info, warn or error; it never changes the exit code."""
    text: str
    """What the operator should know."""
    where: str
    """What it is about."""


class AdoptedChange(Value, frozen=True, kw_only=True):
    """A change of an existing definition."""

    element: str
    """What is changed."""
    was: str
    """Its value in the definition."""
    becomes: str
    """Its value as planned."""
    why: str
    """Why it is changed."""
    effect: str
    """"live": possible while the guest runs; or "next start"."""


class AdoptedCell(Value, frozen=True, kw_only=True):
    """A planned cell, and the number that the existing definition gives it."""

    id: int
    """The number that the definition gives it."""
    cell: Cell
    """The planned cell."""


class AdoptedGuest(Closed, frozen=True, kw_only=True):
    """An existing guest, and its place. Apply makes the same changes again in the definition that libvirt then has."""

    name: str
    """Name of the guest."""
    uuid: str
    """UUID of its definition."""
    definition_sha256: str
    """Digest of `virsh dumpxml --inactive`, without secrets."""
    changes: tuple[AdoptedChange, ...]
    """What is changed in its definition."""
    guest: PlannedGuest
    """The guest as the planner would write it; only its place is used."""
    pins: tuple[PlannedPin, ...]
    """Where each vCPU runs, in the definition's numbers."""
    cells: tuple[AdoptedCell, ...]
    """Its cells, in the definition's numbers."""
    foreign_cpus: str
    """CPUs that its other threads must not use."""
    managers: tuple[str, ...] = ()
    """The other programs that manage it."""
    consent: bool = False
    """The operator agreed to change it nevertheless."""


def check_guest(guest: PlannedGuest, where: str) -> None:
    """Raise BadInput for a device or a list of CPUs or nodes that is none. A mediated device has a UUID as address."""
    for n, device in enumerate(guest.devices):
        at = f"{where}.devices[{n}].address"
        if device.kind != "mdev":
            check_address(device.address, at)
        elif not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", device.address):
            raise BadInput(f"{device.address!r} is not a UUID", where=at, hint="plan again")
    for n, instance in enumerate(guest.mig):
        check_address(instance.gpu, f"{where}.mig[{n}].gpu")
    for name, text in guest.id_lists:
        try:
            CpuSet.parse(text)
        except ValueError as error:
            raise BadInput(str(error), where=f"{where}.{name}", hint="plan again") from error


class Plan(Document, frozen=True, kw_only=True):
    """What to do on one host: guests, actions, findings, and the guests that could not be placed.

    The planner leaves `expected` empty; `hosttune.predicting.expecting` fills it.
    """

    schema: str = PLAN_SCHEMA
    """Name and version of this format."""
    host_digest: str | None = None
    """Digest of the host that it was made for; null in captures: it is then never applied."""
    hostname: str | None = None
    """Name of the host."""
    boot_id: str | None = None
    """The host's boot."""
    intent: Intent
    """What was asked for."""
    housekeeping_cpus: str = ""
    """CPUs that stay with the host."""
    guests: tuple[PlannedGuest, ...] = ()
    """The guests that were placed."""
    unplaced: tuple[Unplaced, ...] = ()
    """The guests that were not."""
    actions: tuple[Action, ...] = ()
    """Host settings to change."""
    findings: tuple[PlanFinding, ...] = ()
    """What the operator should know."""
    adoptions: tuple[AdoptedGuest, ...] = ()
    """Existing guests whose definitions are changed; none of them is in `guests`."""
    expected: tuple[Expectation, ...] = ()
    """What guests with GPUs can reach, and what a worse placement would lose."""
    source: Source | None = None
    """Where the intent came from."""
    based_on: int | None = None
    """The newest transaction that the plan knows of; null: what is in force is unknown."""
    removals: tuple[Removal, ...] = ()
    """Guests in force that are taken away."""
    unnamed: tuple[Unnamed, ...] = ()
    """What is in force and stays although the intent does not name it."""
    prune: bool = False
    """What came from files and is not named is taken away."""

    @property
    def unplaced_code(self) -> int:
        """The exit code for its unplaced guests: 2 if one is asked for wrongly, else 1; 0 without any."""
        return 2 if any(left_out.refused for left_out in self.unplaced) else int(bool(self.unplaced))

    def guest(self, name: str) -> PlannedGuest:
        """Return the guest with this name. Raises BadInput if the plan places no such guest."""
        planned_guest = next((guest for guest in self.guests if guest.name == name), None)
        if planned_guest is None:
            placed = ", ".join(guest.name for guest in self.guests) or "none"
            raise BadInput(f"the plan places no guest named {name!r}", where="plan: guests", hint=f"it places {placed}")
        return planned_guest

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "plan") -> Plan:
        """Read a plan. Raises BadInput with the offending field or version."""
        plan = from_json(cls, text, schema=PLAN_SCHEMA, where=where)
        for i, guest in enumerate(plan.guests):
            check_guest(guest, f"{where}: guests[{i}]")
        for i, adopted in enumerate(plan.adoptions):
            check_guest(adopted.guest, f"{where}: adoptions[{i}].guest")
        return plan
