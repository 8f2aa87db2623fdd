"""What checks judge: the host document and what only validation asks for, as one frozen value. None is unknown."""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.model.guestplan import GuestPlan
from hosttune.model.host import Host, Problem
from hosttune.model.plan import Plan
from hosttune.model.problems import LIST_UNREAD as LIST_UNREAD
from hosttune.model.problems import OUTSIDE as OUTSIDE
from hosttune.model.problems import PAGES_UNSURE as PAGES_UNSURE
from hosttune.model.result import Result
from hosttune.model.validation import Validation
from hosttune.model.values import Value, close_lists, close_mappings

LIBVIRT_ANSWER = "/.hosttune/commands/libvirt.json"  # where a capture keeps what libvirt said; absent: there is none
STATE = "hosttune's own state is unreadable"  # a problem of the evidence: what is applied here is not known


class KernelEvent(Value, frozen=True, kw_only=True):
    """What the kernel log says of failing hardware, equal lines counted together.

    `kind`: xid, sxid, aer, dpc (a port that cut its link off), lost (a GPU off the bus, or one that could not be
    started), mce, edac (`count` errors of memory), edac-mc (a memory controller that the kernel watches: no fault);
    `code` of an XID or SXid, or the controller's number. Seconds are since boot, of the first and the last line; `text`
    is the first line's. `subcode` and `registers` (details, error status, …) of XID 144 to 150; `recovery`: what an
    XID 154 says that the driver asks for from then on.
    """

    kind: str
    address: str | None = None
    code: int | None = None
    severity: str | None = None  # corrected, nonfatal, fatal: of AER, DPC, SXid, memory, and of XID 144 to 150
    seconds: float | None = None
    last_seconds: float | None = None
    count: int = 1
    text: str = ""
    subcode: str | None = None
    registers: tuple[int, ...] = ()
    recovery: str | None = None


class Health(Value, frozen=True, kw_only=True):
    """What hardware and kernel say of themselves.

    `events` None: the log could not be read; `events_since`: seconds since boot of the oldest line that is known
    (0: the whole log of this boot); `events_source`: who told it; `events_unread`: how many records of it could not be
    read, any of which may be an event. `edac`: by memory controller ("mc0"), its counts "ue" and "ce" since its driver
    was loaded, None where one could not be read; None as a whole where it is not known which controllers there are.
    `aer`: by PCI address, error counts since boot by "correctable", "nonfatal", "fatal" and, where not 0, by kind
    ("correctable:RxErr"); None where it was not recorded, and a function without an entry keeps no count. `disks`: by
    PCI address, in the words of the drive.
    """

    events: tuple[KernelEvent, ...] | None = None
    events_since: float | None = None
    events_source: str | None = None
    events_unread: int = 0
    edac: Mapping[str, Mapping[str, int | None]] | None = None
    uptime_seconds: float | None = None
    aer: Mapping[str, Mapping[str, int]] | None = None
    disks: Mapping[str, Mapping[str, str]] | None = None
    time_synchronised: bool | None = None
    time_source: str | None = None
    time_error_seconds: float | None = None  # the kernel's estimate of the greatest error

    def __post_init__(self) -> None:
        close_mappings(self, "aer", "disks", "edac")


class FabricManager(Value, frozen=True, kw_only=True):
    """NVIDIA's Fabric Manager: `mode` 0 bare metal or full passthrough, 1 shared NVSwitch, 2 vGPU (FABRIC_MODE).

    `state` is systemd's word for its service (active, inactive, failed, …).
    """

    installed: bool | None = None
    running: bool | None = None
    state: str | None = None
    version: str | None = None
    mode: int | None = None
    active_partitions: tuple[int, ...] | None = None


class GuestThread(Value, frozen=True, kw_only=True):
    """Threads of a guest's process that have one name, and the CPUs that the kernel lets them run on."""

    name: str
    cpus: str | None


class GuestProcess(Value, frozen=True, kw_only=True):
    """A running guest as /proc shows it. `pid` None: its process was not found, and nothing else is known.

    `memory_by_node`: bytes by node, of huge pages where it has any (`page_sizes`, in bytes), else of everything.
    `memory_by_cell`: bytes by guest cell and node, of what has a file that names its cell; None: nothing has.
    """

    guest: str
    pid: int | None = None
    threads: tuple[GuestThread, ...] | None = None
    memory_by_node: Mapping[str, int] | None = None
    page_sizes: tuple[int, ...] = ()
    memory_by_cell: Mapping[str, Mapping[str, int]] | None = None

    def __post_init__(self) -> None:
        close_mappings(self, "memory_by_node", "memory_by_cell")


class Leftovers(Value, frozen=True, kw_only=True):
    """What a former tenant may have left: mediated devices (UUID: its parent's address)."""

    mdevs: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        close_mappings(self, "mdevs")


class Evidence(Value, frozen=True, kw_only=True):
    """All that a validation looks at. `inside`: this is a guest, looked at as one (`--guest`).

    `plans` are those applied, oldest first (empty: none); `standing` what `status` says of them, None where this host
    has no state that can be read. `history`: stored validations of this host, oldest first. `complete`: discovery has
    looked (live, or a capture of ours); None or False: perhaps nobody recorded what is missing. `absent`: paths that
    the machine is proven not to have, of those that a check may ask about; "/" stands for all that is not in `host`.
    `bar_limits`: the largest size in bytes that a resizable BAR can have, by address; 0: not resizable, no entry: not
    known. `irqbalance`: it is installed and not masked. `loaded_links`: by GPU, speed (GT/s) and width of its link,
    read while copies ran over it (from level 1 on).
    """

    host: Host
    inside: bool = False
    health: Health | None = None
    fabric_manager: FabricManager | None = None
    processes: tuple[GuestProcess, ...] | None = None
    leftovers: Leftovers | None = None
    plans: tuple[Plan, ...] = ()
    standing: Result | None = None
    history: tuple[Validation, ...] = ()
    problems: tuple[Problem, ...] = ()
    complete: bool | None = None
    absent: tuple[str, ...] = ()
    bar_limits: Mapping[str, int] | None = None
    irqbalance: bool | None = None
    ksm_pages_shared: int | None = None
    loaded_links: Mapping[str, tuple[float, int]] | None = None
    guest_plan: GuestPlan | None = None  # what this machine is to find in itself as a guest; None: nothing says so

    def __post_init__(self) -> None:
        close_lists(self)
        close_mappings(self, "bar_limits", "loaded_links")
