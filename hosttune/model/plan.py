"""The plan document (`hosttune.plan/v1`): guests placed, actions to take, findings. Decides; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hosttune.model.intent import Boot, Intent, Network
from hosttune.model.values import Value, close_lists, close_mappings, from_json, to_json

PLAN_SCHEMA = "hosttune.plan/v1"


class PlannedPin(Value, frozen=True, kw_only=True):
    """A vCPU and the one host CPU it runs on."""

    vcpu: int
    cpus: str


class Cell(Value, frozen=True, kw_only=True):
    """A NUMA cell of the guest: its vCPUs, its memory, and the host node both come from.

    `distances` are to the guest's cells in order, copied from the host's table (10 = local).
    """

    id: int
    vcpus: str
    memory_bytes: int
    host_nodes: str
    distances: tuple[int, ...] = ()


class Device(Value, frozen=True, kw_only=True):
    """A host device given to the guest. `guest_address` is where the XML puts it; `guest_cell` None = no affinity.

    `managed`: libvirt rebinds the driver around the guest's life ("yes") or the plan's own binding holds ("no").
    `rom_bar` False switches the option ROM off. `identity` is compared before apply.
    """

    address: str
    kind: str
    guest_cell: int | None
    guest_address: str
    identity: str
    managed: bool = False
    rom_bar: bool = False
    host_node: int | None = None
    name: str | None = None
    class_code: str | None = None
    link_speed_gts: float | None = None  # the most that its link on the host can do
    link_width: int | None = None
    switches: tuple[str, ...] = ()  # the host's PCIe switches above it, nearest first, by their upstream ports
    vgpu_type: str | None = None  # what its function carries; None: it is no vGPU


class PciController(Value, frozen=True, kw_only=True):
    """A PCI controller of the guest: `index` is its number, `bus` and `slot` where it sits.

    `model` is libvirt's: pcie-root, pcie-root-port, pcie-expander-bus, pcie-switch-upstream-port,
    pcie-switch-downstream-port. `chassis` and `port` make a port unique; `node` is a guest cell and `bus_nr` the first
    bus number of an expander. `host` is the switch of the host that an upstream port stands for, by its own upstream
    port, with the most that the link above it can do.
    """

    index: int
    model: str
    bus: int | None = None
    slot: int | None = None
    function: int = 0
    chassis: int | None = None
    port: int | None = None
    bus_nr: int | None = None
    node: int | None = None
    host: str | None = None
    link_speed_gts: float | None = None
    link_width: int | None = None


class Topology(Value, frozen=True, kw_only=True):
    """The guest's CPU topology: sockets x dies x cores x threads = vCPUs."""

    sockets: int
    dies: int
    cores: int
    threads: int


class MigAssignment(Value, frozen=True, kw_only=True):
    """A MIG instance on a GPU: profile and first memory slice."""

    gpu: str
    profile: str
    start: int


class Step(Value, frozen=True, kw_only=True):
    """Something that a person does around a guest: `when` is "start" (before it) or "stop" (after it has ended).

    hosttune carries none of them out. `unproven`: the order rests on documents and was tried on no hardware.
    """

    when: str
    text: str
    unproven: bool = True


class PlannedGuest(Value, frozen=True, kw_only=True):
    """One guest as decided: everything its XML needs, and why.

    `guest_settings` is what is wanted inside the guest (names and values of `hosttune.guest.wanted`; None = nothing).
    `seed` is the path of the image that carries it to cloud-init; None = the XML gets no such drive.
    """

    name: str
    vcpu_pins: tuple[PlannedPin, ...]
    emulator_cpus: str
    iothread_cpus: tuple[str, ...] = ()
    cells: tuple[Cell, ...]
    page_bytes: int | None
    devices: tuple[Device, ...] = ()
    mig: tuple[MigAssignment, ...] = ()
    fabric_partition: int | None = None
    steps: tuple[Step, ...] = ()
    why: tuple[str, ...] = ()
    uuid: str | None = None
    machine: str = "q35"
    firmware: str = "efi"
    accelerator: str = "kvm"
    cpu_vendor: str | None = None
    topology: Topology | None = None
    controllers: tuple[PciController, ...] = ()
    physical_address_bits: int | None = None  # of the guest, as computed
    mmio64_bytes: int | None = None  # 64-bit window its BARs need; None = not computed
    mmio_note: str | None = None  # in a few words, who opens that window
    pci_hole64_bytes: int | None = None
    ovmf_window_mib: int | None = None  # X-PciMmio64Mb floor, None = no floor is needed
    iommu_eim: bool = False  # an IOMMU device with extended interrupt mode: more than 255 vCPUs
    disk: str | None = None
    networks: tuple[Network, ...] = ()
    boot: Boot | None = None
    elements: tuple[str, ...] = ()  # optional XML elements that the installed libvirt and QEMU know
    physical_address_limit_bits: int | None = None  # where the IOMMU maps fewer bits than the CPU has
    allocation_threads: int | None = None  # threads that touch its memory at start
    guest_settings: Mapping[str, Any] | None = None
    seed: str | None = None

    def __post_init__(self) -> None:
        close_lists(self)
        close_mappings(self, "guest_settings")


class Unplaced(Value, frozen=True, kw_only=True):
    """A guest that does not fit: the reasons, and what would make room."""

    guest: str
    why: tuple[str, ...]
    relaxation: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)


class Action(Value, frozen=True, kw_only=True):
    """One setting to change. `effect` is "now" or "reboot"; `needed`: the guest cannot work without it."""

    id: str
    kind: str
    target: str
    current: Any
    want: Any
    effect: str
    needed: bool
    reversible: bool
    why: str

    def __post_init__(self) -> None:
        close_mappings(self, "current", "want")


class Finding(Value, frozen=True, kw_only=True):
    """Something the operator should know; `level` is info, warn or error. Findings never change the exit code."""

    level: str
    text: str
    where: str


class Plan(Value, frozen=True, kw_only=True):
    """What to do on one host: guests, actions, findings, and what could not be placed."""

    schema: str = PLAN_SCHEMA
    host_digest: str | None = None
    hostname: str | None = None
    boot_id: str | None = None
    intent: Intent
    housekeeping_cpus: str = ""
    guests: tuple[PlannedGuest, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    actions: tuple[Action, ...] = ()
    findings: tuple[Finding, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "plan") -> Plan:
        """Read a plan. Raises BadInput naming the offending field or version."""
        return from_json(cls, text, schema=PLAN_SCHEMA, where=where, once=True)

    def to_json(self) -> str:
        """The plan, indented; the same host and intent give the same bytes."""
        return to_json(self)
