"""Collectives over several hosts: what one host is to do, what it answers (`hosttune.member/v1`), and the report on all
groups of a run (`hosttune.collective/v1`). Bus bandwidth in GB/s (10^9 bytes), sizes in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hosttune.model.validation import Verdict
from hosttune.model.values import Closed, Document, Value, from_json

MEMBER_SCHEMA = "hosttune.member/v1"
COLLECTIVE_SCHEMA = "hosttune.collective/v1"
Kind = Literal["all-reduce", "all-gather"]
Device = Literal["gpu", "cpu"]

# What became of a group at one host. `measured` has figures and right values; `wrong` had wrong values.
MemberOutcome = Literal[
    "listed", "measured", "wrong", "no-connection", "connection-refused", "no-route", "wrong-fabric", "nobody-came",
    "other-member", "member-lost", "collective-failed", "port-busy", "other-version", "not-installed", "tool-failed",
    "not-understood",
]  # fmt: skip
# What became of a group, from the answers of all of its hosts.
GroupOutcome = Literal[
    "measured", "wrong", "no-connection", "connection-refused", "no-route", "wrong-fabric", "nobody-came",
    "other-member", "member-lost", "collective-failed", "port-busy", "other-version", "not-installed", "tool-failed",
    "not-understood", "refused", "host-lost", "not-asked",
]  # fmt: skip
# good and low: measured. failed: all hosts answered, and the collective did not work, or its values were wrong.
GroupState = Literal["good", "low", "failed", "unknown"]
Purpose = Literal["series", "search"]


class Library(Value, frozen=True, kw_only=True):
    """What the Python that measures has: PyTorch, its library for collectives on GPUs, and the GPUs that it sees."""

    python: str
    torch: str | None = None
    nccl: str | None = None
    made_for: str | None = None
    gpus: int = 0
    names: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The versions that all hosts of a group must have in common, as one text."""
        return f"torch {self.torch}, nccl {self.nccl}, {self.made_for}"


class Wiring(Closed, frozen=True, kw_only=True):
    """The facts of a host that the prediction needs, as `hosttune.predicting.shape.Shape` has them. None is unknown."""

    gpu: str | None = None
    peaks: Mapping[str, float] = {}
    slot: tuple[float, int] | None = None
    links: int | None = None
    switched: bool | None = None
    per_host: int | None = None
    nics: int | None = None
    nic_gb_per_s: float | None = None
    cpu: str | None = None
    virtual: bool | None = None

    MAPPINGS = ("peaks",)


class Place(Value, frozen=True, kw_only=True):
    """Where a host meets the others: an interface, its address, and its rate in Gb/s (None: unknown)."""

    interface: str
    address: str | None = None
    rate_gbps: float | None = None


class Task(Value, frozen=True, kw_only=True):
    """What one host does in a group. `group` is a name that no other group ever has.

    `hosts` are all members in the order of their ranks, this one is `hosts[index]`; `machines` are their identities
    as they were listed (None: unknown); only the first host needs them. The first host listens at `address` and
    `port`; `own` is this host's address. `ranks`: processes on each host. `library`: versions that every rank must
    have. `seconds`: the limit of everything after the hosts have met; `wait`: how long they wait for each other.
    """

    group: str
    hosts: tuple[str, ...]
    index: int
    machines: tuple[str | None, ...]
    address: str
    port: int
    own: str
    ranks: int
    kinds: tuple[Kind, ...]
    sizes: tuple[int, ...]
    device: Device = "gpu"
    interface: str | None = None
    library: str | None = None
    runs: int = 5
    run_seconds: float = 0.2
    seconds: int = 60
    wait: int = 30


class CollectiveJob(Value, frozen=True, kw_only=True):
    """What one host is to do. Without `task` it only says what it has. `interface`: where it meets others; None: that
    of its default route. `python`: the interpreter that has PyTorch; None: hosttune's own.

    `disrupt`: measure though guests run, or though that is unknown.
    """

    task: Task | None = None
    interface: str | None = None
    python: str | None = None
    disrupt: bool = False


class Timing(Value, frozen=True, kw_only=True):
    """Measured times of one operation, one a run, each of its slowest rank. `ranks`: how many took part."""

    kind: Kind
    size_bytes: int
    ranks: int
    seconds: tuple[float, ...]


class Member(Document, frozen=True, kw_only=True):
    """What a host says of itself, and of the group that it was asked for.

    `machine`: an identity that no other machine has, and a restart changes. `guests`: names of those that may be
    running. None is unknown. `environment`: variables that libraries for collectives read, as they were; `settings`:
    the lines of their settings file. `accused`: hosts that this one did not meet, lost, or had wrong values from.
    """

    schema: str = MEMBER_SCHEMA
    host: str | None = None
    version: str | None = None
    machine: str | None = None
    guests: tuple[str, ...] | None = None
    library: Library | None = None
    wiring: Wiring | None = None
    place: Place | None = None
    rdma: bool | None = None
    gpus_present: int | None = None
    environment: Mapping[str, str] = {}
    settings: tuple[str, ...] = ()
    group: str | None = None
    ranks: int | None = None
    outcome: MemberOutcome = "listed"
    why: str | None = None
    accused: tuple[str, ...] = ()
    timings: tuple[Timing, ...] = ()
    notes: tuple[str, ...] = ()

    MAPPINGS = ("environment",)

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "member") -> Member:
        """Read such a document. Raises BadInput with the offending field or version."""
        return from_json(cls, text, schema=MEMBER_SCHEMA, where=where)


class GroupFigure(Value, frozen=True, kw_only=True):
    """The bus bandwidth of a group at one size: the median of its runs, and the lowest and highest one.

    `bound` and `typical`: the prediction of this shape; `expected`: below this it is low; None: unknown.
    """

    kind: Kind
    size_bytes: int
    busbw: float
    lowest: float
    highest: float
    state: GroupState = "unknown"
    bound: float | None = None
    typical: float | None = None
    expected: float | None = None
    why: str | None = None


class HostGroup(Value, frozen=True, kw_only=True):
    """Hosts that did collectives together. `step`: groups of one step ran at once. `repeated`: a later step measured
    the same hosts again, and that counts. `left_out`: what was asked for and has no figure."""

    step: int
    purpose: Purpose
    hosts: tuple[str, ...]
    ranks: int
    state: GroupState = "unknown"
    outcome: GroupOutcome = "not-asked"
    figures: tuple[GroupFigure, ...] = ()
    accused: tuple[str, ...] = ()
    why: str | None = None
    left_out: tuple[str, ...] = ()
    repeated: bool = False


class Scaling(Value, frozen=True, kw_only=True):
    """What `hosts` hosts reach at one size: the median of the `groups` groups of the series, and the lowest.

    `efficiency`: of the throughput of all ranks, per rank, against groups of `base_hosts` hosts, the fewest with a
    network between them. `of_one_host`: the same against one host alone. None: no such figure.
    """

    kind: Kind
    size_bytes: int
    hosts: int
    ranks: int
    groups: int
    busbw: float
    lowest: float
    bound: float | None = None
    typical: float | None = None
    efficiency: float | None = None
    base_hosts: int | None = None
    of_one_host: float | None = None


class CollectiveFault(Value, frozen=True, kw_only=True):
    """What explains groups that are low or failed.

    host: every group with this host is bad, and others with its companions are good. alone: bad by itself, without a
    network. together: each of these hosts is in a good group, but not these together, twice. suspects: one or more of
    these, the measurements cannot tell which. `bad` and `good`: how many groups they are in.
    """

    kind: Literal["host", "alone", "together", "suspects"]
    hosts: tuple[str, ...]
    bad: int
    good: int = 0
    words: str


class CollectiveHost(Closed, frozen=True, kw_only=True):
    """A host of the report. `outcome` other than ok: it was not measured, or not to the end, and why."""

    host: str
    outcome: str = "ok"
    why: str | None = None
    gpus: int | None = None
    library: str | None = None
    environment: Mapping[str, str] = {}
    settings: tuple[str, ...] = ()

    MAPPINGS = ("environment",)


class CollectiveReport(Document, frozen=True, kw_only=True):
    """All groups of a run.

    Verdict: fail if any group is low or failed, else unknown if any group or host is, else warn if a group was low
    once and good when it was repeated, else pass. `minutes`: the most that the series was to take.
    """

    schema: str = COLLECTIVE_SCHEMA
    run: str
    at: str | None = None
    check: bool = False
    device: Device = "gpu"
    ranks_per_host: int | None = None
    against: tuple[str, ...] = ("prediction", "fleet")
    floor: float = 0.9
    least: float | None = None
    verdict: Verdict = "unknown"
    series: tuple[int, ...] = ()
    minutes: float = 0.0
    hosts: tuple[CollectiveHost, ...] = ()
    scaling: tuple[Scaling, ...] = ()
    faults: tuple[CollectiveFault, ...] = ()
    groups: tuple[HostGroup, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: str | None = None

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "report on collectives") -> CollectiveReport:
        """Read a report on collectives. Raises BadInput with the offending field or version."""
        return from_json(cls, text, schema=COLLECTIVE_SCHEMA, where=where)
