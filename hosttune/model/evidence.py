"""The evidence that checks judge: the host document and the facts that only a validation reads. None means unknown."""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.model.configuration import Fact
from hosttune.model.gpu import FabricManager, Gpu, GpuPort
from hosttune.model.guestplan import GuestPlan
from hosttune.model.host import Host, Problem
from hosttune.model.networkintent import Roce
from hosttune.model.plan import Plan
from hosttune.model.ports import NicPorts, PortDetail, PortInfo, RoceState
from hosttune.model.result import Result
from hosttune.model.validation import CheckResult, Counted, Validation
from hosttune.model.values import Closed, Value
from hosttune.model.verification import Verification


class SeenRun(Value, frozen=True, kw_only=True):
    """A guest that hosttune saw running with a GPU: its boot and its process ("PID.TICKS"), None if not known."""

    guest: str
    boot_id: str | None = None
    process: str | None = None


# The checks of a GPU that only its driver can answer: what a look keeps.
LOOKED = (
    "gpu-status", "ecc-mode", "ecc-errors", "row-remap", "retired-pages", "pcie-replay", "nvlink", "nvlink-errors",
    "xgmi", "xid",
)  # fmt: skip


# What a host saw of a GPU before it went to vfio-pci or into a guest, where it sees nothing. Kept in `gpus.json`.
class Look(Closed, frozen=True, kw_only=True):
    """What the checks of a GPU's health concluded at a time (UTC, ISO 8601), in a boot.

    `device`, `dsn`, `uuid` and `serial` tell the GPU from another one at its address (`DeviceIndex.identity`). `seen`:
    the guests that hosttune saw with it since.
    """

    at: str
    boot_id: str | None = None
    device: str | None = None
    dsn: str | None = None
    uuid: str | None = None
    serial: str | None = None
    results: tuple[CheckResult, ...] = ()
    seen: tuple[SeenRun, ...] = ()


class GuestRun(Closed, frozen=True, kw_only=True):
    """One start of a guest with these functions, as `source` recorded it. Each source has a start once."""

    guest: str
    at: str
    devices: tuple[str, ...]
    source: str


LIBVIRT_ANSWER = "/.hosttune/commands/libvirt.json"  # where a capture keeps libvirt's answers; missing if it has none
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
STATE = "hosttune's own state is unreadable"  # a problem of the evidence: it is unknown what is applied on this host

UNLIMITED = -1  # RdmaAccess.memlock
UNREAD_STATEMENT = "signed statement not read"  # a problem of the evidence
# Checks that say what hosttune's own records have of a device, and nothing about the device itself.
OF_REGISTER = ("device-quarantined", "handover-statement")


class KernelEvent(Value, frozen=True, kw_only=True):
    """A sign of failing hardware in the kernel log. Equal lines are counted together.

    `kind` is one of: xid, sxid, aer, dpc (a port that cut off its link), lost (a GPU off the bus, or one that could not
    be started), mce, edac (`count` memory errors), edac-mc (a memory controller that the kernel monitors: not a fault),
    driver-load (the same of a GPU driver), link-down (a network interface lost its link), and the kinds of
    `hosttune.linux.kernellines`.
    `code` is that of an XID or SXid, or the controller's number. The times of the first and the last line are in
    seconds since boot; `text` is the first line's. `subcode` and `registers` (details, error status, …) are those of
    XID 144 to 150. `recovery` is the action that the driver asks for since an XID 154. `least_seconds_apart`: between
    the two lines that follow each other most closely.
    """

    kind: str
    address: str | None = None
    code: int | None = None
    severity: str | None = None  # corrected, nonfatal, fatal: for AER, DPC, SXid, memory, and XID 144 to 150
    seconds: float | None = None
    last_seconds: float | None = None
    count: int = 1
    text: str = ""
    subcode: str | None = None
    registers: tuple[int, ...] = ()
    recovery: str | None = None
    least_seconds_apart: float | None = None


class Health(Closed, frozen=True, kw_only=True):
    """What hardware and kernel report about their own state.

    - `events`: None if the log could not be read.
    - `events_since`: seconds since boot of the oldest known line (0: the whole log of this boot).
    - `events_source`: where the log was read from.
    - `events_links`: lost links of network interfaces are among the events (an older capture's log lacks them).
    - `events_unread`: how many records of the log could not be read; any of them may be an event.
    - `edac`: by memory controller ("mc0"), its counts "ue" and "ce" since its driver was loaded; a count is None if it
      could not be read. None as a whole if it is unknown which controllers exist.
    - `aer`: by PCI address, error counts since boot by "correctable", "nonfatal", "fatal" and, if not 0, by kind
      ("correctable:RxErr"). None if it was not recorded. A function without an entry has no counters.
    - `corrupted_bytes`: memory that the kernel has found corrupted and does not use any more (HardwareCorrupted).
    - `disks`: by PCI address, in the drive's own words.
    """

    events: tuple[KernelEvent, ...] | None = None
    events_since: float | None = None
    events_source: str | None = None
    events_unread: int = 0
    events_links: bool = False
    edac: Mapping[str, Mapping[str, int | None]] | None = None
    corrupted_bytes: int | None = None
    uptime_seconds: float | None = None
    aer: Mapping[str, Mapping[str, int]] | None = None
    disks: Mapping[str, Mapping[str, str]] | None = None
    time_synchronised: bool | None = None
    time_source: str | None = None
    time_error_seconds: float | None = None  # the kernel's estimate of the maximum error

    MAPPINGS = ("aer", "disks", "edac")


class GuestThread(Value, frozen=True, kw_only=True):
    """The threads of a guest's process that have one name, and the CPUs that the kernel lets them run on."""

    name: str
    cpus: str | None


class GuestProcess(Closed, frozen=True, kw_only=True):
    """A running guest as /proc shows it. `pid` is None if its process was not found; nothing else is then known.

    `memory_by_node`: bytes by node; of huge pages if it has any (`page_sizes`, in bytes), else of all memory.
    `memory_by_cell`: bytes by guest cell and node, for memory whose file names its cell; None if there is none.
    `resident_bytes`: its memory on ordinary pages by another count of the kernel (VmRSS). `started`: when the process
    did, in clock ticks since boot.
    """

    guest: str
    pid: int | None = None
    threads: tuple[GuestThread, ...] | None = None
    memory_by_node: Mapping[str, int] | None = None
    page_sizes: tuple[int, ...] = ()
    memory_by_cell: Mapping[str, Mapping[str, int]] | None = None
    resident_bytes: int | None = None
    started: int | None = None

    MAPPINGS = ("memory_by_node", "memory_by_cell")


class Leftovers(Closed, frozen=True, kw_only=True):
    """What an earlier tenant may have left: mediated devices (UUID: address of its parent)."""

    mdevs: Mapping[str, str] | None = None

    MAPPINGS = ("mdevs",)


class RdmaAccess(Closed, frozen=True, kw_only=True):
    """How a planned guest reaches its RDMA devices and its GPUs' memory.

    `nodes`: the names in /dev/infiniband; (): proven absent, None: unknown. By maker of GPUs, no entry is unknown:
    `peer_modules`, whether its module for NICs is loaded; `open_drivers`, whether its driver is the open one.
    `memlock`: bytes that a program started as this one may lock, or UNLIMITED.
    """

    nodes: tuple[str, ...] | None = None
    peer_modules: Mapping[str, bool] = {}
    open_drivers: Mapping[str, bool] = {}
    memlock: int | None = None

    MAPPINGS = ("peer_modules", "open_drivers")


class ClockLimit(Value, frozen=True, kw_only=True):
    """CPUs that have the same limit of their clock, and the highest clock that their driver sets. None is unknown."""

    cpus: str
    limit_khz: int | None
    highest_khz: int | None


class Clocks(Value, frozen=True, kw_only=True):
    """The limits of clocks, of CPUs that have a frequency driver.

    `percent`: intel_pstate's limit of all CPUs, in percent of the highest performance.
    """

    limits: tuple[ClockLimit, ...]
    percent: int | None = None


class Security(Closed, frozen=True, kw_only=True):
    """What the running kernel says of the isolation between guests, of the boot, and of its clock. None is unknown.

    `vulnerabilities`: its words by name of the file. `microcode`: the CPUs by revision. `tpm`: the version, or "none".
    """

    vulnerabilities: Mapping[str, str | None] | None = None
    microcode: Mapping[str, str] | None = None
    secure_boot: bool | None = None
    tpm: str | None = None
    clocksource: str | None = None

    MAPPINGS = ("vulnerabilities", "microcode")


class Evidence(Closed, frozen=True, kw_only=True):
    """Everything that a validation looks at.

    - `inside`: this machine is a guest and is validated as one (`--guest`).
    - `plans`: the applied plans, oldest first (empty: none).
    - `applied_state`: what `status` reports about them; None if this host has no readable state.
    - `statements`: the signed statements of hand-overs that are kept on this host, as they are now; None if this host
      has no readable state.
    - `history`: stored validations of this host, oldest first.
    - `looks`: by address, the last look at each GPU while its driver had it; no entry: none is known.
    - `guest_runs`: the recorded starts of guests; None: not known.
    - `complete`: discovery has looked (live, or in a capture made by hosttune). None or False: what is missing may just
      not have been recorded.
    - `absent`: paths that the machine is proven not to have, of those that a check may ask about; "/" means all that is
      not in `host`.
    - `facts`: the number of the newest fact in the capture that this was read from; None: no capture of hosttune.
    - `bar_limits`: by address, the largest size in bytes that a resizable BAR can have. 0: not resizable; no entry:
      unknown.
    - `irqbalance`: it is installed and not masked.
    - `gpu_ports`: by GPU, its own network ports as the maker's tool lists them; no entry: unknown, or it has none.
    - `loaded_links`: by GPU, speed (GT/s) and width of its link, read while data was copied over it (from level 1 on).
    - `loaded_clocks`: by GPU, the highest SM clock (MHz) and the highest power (W) under load (from level 1 on).
    - `ports`: the ports of each physical network function, by address.
    - `port_details`: by network interface, what ethtool tells of it; no entry: it was not asked.
    - `port_info`: by InfiniBand port ("mlx5_0/1"), which lanes and speeds it supports; no entry: it was not asked.
    - `roce`: by address of a NIC, how its RoCE port is set; no entry: it has none, or that is not known.
    - `tuned_verified`: TuneD finds every value that its active profile sets; False: not every one.
    - `counted_later`: the counters of errors a second time; None: all were 0, or not read again.
    - `declared_roce`: what a document that the caller names declares of RoCE ports; it counts before the plans'.
    - `ports_later`, `gpus_later`: the same and the GPUs, `seconds_later` seconds later, after the benchmarks.
    """

    host: Host
    inside: bool = False
    health: Health | None = None
    fabric_manager: FabricManager | None = None
    processes: tuple[GuestProcess, ...] | None = None
    leftovers: Leftovers | None = None
    plans: tuple[Plan, ...] = ()
    applied_state: Result | None = None
    history: tuple[Validation, ...] = ()
    statements: tuple[Verification, ...] | None = None
    problems: tuple[Problem, ...] = ()
    complete: bool | None = None
    absent: tuple[str, ...] = ()
    facts: int | None = None
    bar_limits: Mapping[str, int] | None = None
    irqbalance: bool | None = None
    ksm_pages_shared: int | None = None
    loaded_links: Mapping[str, tuple[float, int]] | None = None
    loaded_clocks: Mapping[str, tuple[float, float]] | None = None
    looks: Mapping[str, Look] | None = None
    guest_runs: tuple[GuestRun, ...] | None = None
    gpu_ports: Mapping[str, tuple[GpuPort, ...]] | None = None
    ports: Mapping[str, NicPorts] | None = None
    ports_later: Mapping[str, NicPorts] | None = None
    gpus_later: tuple[Gpu, ...] | None = None
    seconds_later: float | None = None
    port_details: Mapping[str, PortDetail] | None = None
    port_info: Mapping[str, PortInfo] | None = None
    roce: Mapping[str, RoceState] | None = None
    declared_roce: Roce | None = None
    guest_plan: GuestPlan | None = None  # what this machine should find as a guest; None: not known
    # text of the library's settings file that the guest's plan names, by path; None: proven absent; no entry: unknown
    library_files: Mapping[str, str | None] | None = None
    rdma_access: RdmaAccess | None = None  # None: not a planned guest
    configuration: tuple[Fact, ...] | None = None  # facts read for comparing hosts; None: not read
    clocks: Clocks | None = None  # None: not read
    tuned_verified: bool | None = None
    counted_later: Counted | None = None
    security: Security | None = None  # None: not read

    MAPPINGS = (
        "bar_limits",
        "gpu_ports",
        "loaded_links",
        "loaded_clocks",
        "library_files",
        "looks",
        "ports",
        "ports_later",
        "port_details",
        "port_info",
        "roce",
    )
