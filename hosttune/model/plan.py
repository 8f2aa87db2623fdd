"""The plan document (`hosttune.plan/v1`): placed guests, actions, findings. A plan decides and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from hosttune.errors import BadInput
from hosttune.model.intent import Boot, Intent, Network
from hosttune.model.prediction import Expectation
from hosttune.model.values import CpuSet, Value, check_address, close_lists, close_mappings, from_json, to_json

PLAN_SCHEMA = "hosttune.plan/v1"
SMALL_PAGE_BYTES = 4096


class Source(Value, frozen=True, kw_only=True):
    """Where an intent came from: "file" (`name` is its path as given, `sha256` of its bytes), "options", "adopted"."""

    kind: Literal["file", "options", "adopted"]
    name: str | None = None
    sha256: str | None = None


class PlannedPin(Value, frozen=True, kw_only=True):
    """A vCPU and the one host CPU that it runs on."""

    vcpu: int
    cpus: str


class Cell(Value, frozen=True, kw_only=True):
    """A NUMA cell of the guest: its vCPUs, its memory, and the host node that both come from.

    `distances` are those to the guest's cells, in order, copied from the host's table (10 = local).
    """

    id: int
    vcpus: str
    memory_bytes: int
    host_nodes: str
    distances: tuple[int, ...] = ()


class Device(Value, frozen=True, kw_only=True):
    """A host device given to the guest.

    `guest_address` is its address in the XML; `guest_cell` None means no affinity. `managed` ("yes" in the XML):
    libvirt rebinds the driver when the guest starts and stops; else ("no") the driver that the plan binds stays.
    `rom_bar` False turns the option ROM off. `identity` is compared before apply. `clique`: of GPUs that may exchange
    data over PCIe. `network`: of a virtual function that the intent asks for by `networks`, with the MAC that it gets.
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
    link_speed_gts: float | None = None  # the maximum of its link on the host
    link_width: int | None = None
    switches: tuple[str, ...] = ()  # the host's PCIe switches above it, nearest first, named by their upstream ports
    clique: int | None = None
    vgpu_type: str | None = None  # the vGPU type that its function has; None: it is not a vGPU
    network: Network | None = None


class PciController(Value, frozen=True, kw_only=True):
    """A PCI controller of the guest. `index` is its number; `bus` and `slot` are its position.

    `model` is libvirt's: pcie-root, pcie-root-port, pcie-expander-bus, pcie-switch-upstream-port,
    pcie-switch-downstream-port. `chassis` and `port` make a port unique. Of an expander, `node` is the guest cell and
    `bus_nr` the first bus number. Of an upstream port, `host` is the host switch that it represents (named by that
    switch's upstream port), with the maximum of the link above it.
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
    """A MIG instance on a GPU: its profile and first memory slice."""

    gpu: str
    profile: str
    start: int


class Step(Value, frozen=True, kw_only=True):
    """A step that a person does for a guest: `when` is "start" (before it starts) or "stop" (after it has ended).

    hosttune does none of these steps. `unproven`: the order comes from documents and was not tried on hardware.
    """

    when: str
    text: str
    unproven: bool = True


BOOT_WAYS = "give it a disk (disk: PATH, --disk), a network (networks:, --network) or a kernel (boot:)"
NO_BOOT = f"nothing to boot from: {BOOT_WAYS}"


class GuestChange(Value, frozen=True, kw_only=True):
    """A difference between a guest in force and the guest as planned now; `when` it takes effect."""

    element: str
    was: str
    becomes: str
    when: Literal["now", "next-start", "after-stop"]


class PlannedGuest(Value, frozen=True, kw_only=True):
    """One planned guest: everything that its XML needs, and the reasons.

    `guest_settings` is what is wanted inside the guest (names and values of `hosttune.guest.wanted`; None = nothing).
    `seed` is the path of the image that gives these settings to cloud-init; None = the XML gets no such drive.
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
    secure_boot: bool = False
    tpm: bool = False
    accelerator: str = "kvm"
    cpu_vendor: str | None = None
    topology: Topology | None = None
    cache: Literal["passthrough", "disable"] = "passthrough"  # "disable": it sees no L3
    controllers: tuple[PciController, ...] = ()
    physical_address_bits: int | None = None  # of the guest, computed
    mmio64_bytes: int | None = None  # 64-bit window that its BARs need; None = not computed
    mmio_note: str | None = None  # short text: what opens that window
    pci_hole64_bytes: int | None = None
    ovmf_window_mib: int | None = None  # minimum of X-PciMmio64Mb, None = no minimum is needed
    iommu_eim: bool = False  # an IOMMU device with extended interrupt mode, for more than 255 vCPUs
    disk: str | None = None
    networks: tuple[Network, ...] = ()
    boot: Boot | None = None
    elements: tuple[str, ...] = ()  # optional XML elements that the installed libvirt and QEMU support
    physical_address_limit_bits: int | None = None  # set if the IOMMU maps fewer bits than the CPU has
    allocation_threads: int | None = None  # threads that touch its memory when it starts
    guest_settings: Mapping[str, Any] | None = None
    seed: str | None = None
    change: Literal["create", "update", "keep"] = "create"
    changes: tuple[GuestChange, ...] = ()  # of an update

    def __post_init__(self) -> None:
        close_lists(self)
        close_mappings(self, "guest_settings")

    @property
    def huge_page_bytes(self) -> int | None:
        """The size of the huge pages behind it; None for the kernel's ordinary pages."""
        return self.page_bytes if self.page_bytes and self.page_bytes > SMALL_PAGE_BYTES else None

    @property
    def boots_from(self) -> tuple[str, ...]:
        """The kernel, disk and networks that it boots from."""
        own = (self.boot and self.boot.kernel, self.disk, *(one.network or one.bridge for one in self.networks))
        return tuple(name for name in own if name)

    @property
    def may_boot_from(self) -> tuple[str, ...]:
        """The passed drives, which may hold a system, and NICs, whose own ROM may boot from their network."""
        return tuple(device.address for device in self.devices if device.kind in ("nic", "nvme"))


class Unplaced(Value, frozen=True, kw_only=True):
    """A guest that does not fit: the reasons, and what would make room for it.

    `refused`: what is asked for is wrong as this host is (exit code 2), so that no room would help. `stays`: it is in
    force and left as it is, so that the rest of the plan can be applied.
    """

    guest: str
    why: tuple[str, ...]
    relaxation: tuple[str, ...] = ()
    refused: bool = False
    stays: bool = False

    def __post_init__(self) -> None:
        close_lists(self)


class Removal(Value, frozen=True, kw_only=True):
    """A guest in force that is taken away; `when`: "after-stop" while it runs."""

    name: str
    uuid: str | None = None
    when: Literal["now", "after-stop"] = "now"


class Unnamed(Value, frozen=True, kw_only=True):
    """A guest ("guest") or a value asked for by name ("setting") that is in force and that the intent does not name."""

    kind: Literal["guest", "setting"]
    name: str
    source: Source | None = None


class Action(Value, frozen=True, kw_only=True):
    """One setting to change. `effect` is "now" or "reboot"; `needed`: the guest cannot work without it.

    `change`: "set" it to what is wanted, or put it "back" to its original. `when`: `effect`, or "next-start" of its
    guest, or "after-stop": only the present runs of guests (`holders`) hold it. `drift`: it is in force and has another
    value.
    """

    id: str
    kind: str
    target: str
    current: Any
    want: Any
    effect: str
    needed: bool
    reversible: bool
    why: str
    change: Literal["set", "back"] = "set"
    when: Literal["now", "next-start", "after-stop", "reboot"] = "now"
    drift: bool = False
    holders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        close_lists(self)
        close_mappings(self, "current", "want")


class Finding(Value, frozen=True, kw_only=True):
    """A fact that the operator should know. `level` is info, warn or error. Findings never change the exit code."""

    level: str
    text: str
    where: str


class AdoptedChange(Value, frozen=True, kw_only=True):
    """A change of an existing definition. `effect`: "live" (possible while the guest runs) or "next start"."""

    element: str
    was: str
    becomes: str
    why: str
    effect: str


class AdoptedCell(Value, frozen=True, kw_only=True):
    """A planned cell, and the number that the existing definition gives it."""

    id: int
    cell: Cell


class AdoptedGuest(Value, frozen=True, kw_only=True):
    """An existing guest, and its place. Apply makes the same changes again in the definition that libvirt then has.

    `definition_sha256` is of `virsh dumpxml --inactive`, without secrets (`domain.definitions.digest_of`). `guest`: the
    guest as the planner would write it; only its place is used, its definition stays the existing one. `pins` and
    `cells` have the numbers of that definition. `foreign_cpus`: those that its other threads must not use.
    `managers`: the other programs that manage it; `consent`: the operator agreed to change it nevertheless.
    """

    name: str
    uuid: str
    definition_sha256: str
    changes: tuple[AdoptedChange, ...]
    guest: PlannedGuest
    pins: tuple[PlannedPin, ...]
    cells: tuple[AdoptedCell, ...]
    foreign_cpus: str
    managers: tuple[str, ...] = ()
    consent: bool = False

    def __post_init__(self) -> None:
        close_lists(self)


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
    lists = (
        *((f"cells[{n}].{name}", text) for n, cell in enumerate(guest.cells)
          for name, text in (("vcpus", cell.vcpus), ("host_nodes", cell.host_nodes))),
        *((f"vcpu_pins[{n}].cpus", pin.cpus) for n, pin in enumerate(guest.vcpu_pins)),
        ("emulator_cpus", guest.emulator_cpus),
        *((f"iothread_cpus[{n}]", text) for n, text in enumerate(guest.iothread_cpus)),
    )  # fmt: skip
    for name, text in lists:
        try:
            CpuSet.parse(text)
        except ValueError as error:
            raise BadInput(str(error), where=f"{where}.{name}", hint="plan again") from error


class Plan(Value, frozen=True, kw_only=True):
    """What to do on one host: guests, actions, findings, and the guests that could not be placed.

    `adoptions`: guests that exist, whose definitions are changed; none of them is in `guests`. `expected`: what guests
    with GPUs can reach, and what a worse placement would lose; the planner itself leaves it empty.

    `source`: of the intent. `based_on`: the newest transaction that the plan knows of; None: what is in force is
    unknown. `removals`: guests in force that are taken away. `unnamed`: what is in force and stays although the intent
    does not name it. `prune`: whether that which came from files is taken away.
    """

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
    adoptions: tuple[AdoptedGuest, ...] = ()
    expected: tuple[Expectation, ...] = ()
    source: Source | None = None
    based_on: int | None = None
    removals: tuple[Removal, ...] = ()
    unnamed: tuple[Unnamed, ...] = ()
    prune: bool = False

    def __post_init__(self) -> None:
        close_lists(self)

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

    def to_json(self) -> str:
        """Return the plan as indented JSON. The same host and intent give the same bytes."""
        return to_json(self)
