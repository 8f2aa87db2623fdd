"""Measurements between hosts: a host's ports and ends (`hosttune.ends/v1`), what one host is to do, and the report on
all pairs (`hosttune.pairs/v1`). Rates are in Gb/s (10^9 bits), times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hosttune.model.validation import Verdict
from hosttune.model.values import Closed, Document, Value, from_json

ENDS_SCHEMA = "hosttune.ends/v1"
PAIRS_SCHEMA = "hosttune.pairs/v1"
Tool = Literal["tcp", "rdma"]
Role = Literal["server", "client"]
Memory = Literal["host", "gpu"]
GPU_RAIL = " gpu"  # behind the name of a rail: its ports, measured with the memory of their GPUs

# What became of one end. `measured` has a figure; the others say why there is none.
EndOutcome = Literal[
    "measured", "no-connection", "connection-refused", "no-route", "wrong-fabric", "port-busy", "nobody-came",
    "not-installed", "not-understood", "tool-failed",
]  # fmt: skip
# What became of a pair on a rail, from both ends. `one-way`: it connects only in the other direction.
PairOutcome = Literal[
    "measured", "no-connection", "connection-refused", "one-way", "no-route", "wrong-fabric", "other-peer", "port-busy",
    "not-installed", "not-understood", "tool-failed", "refused", "host-lost", "not-asked",
]  # fmt: skip
# good and low: measured. cut: the network between two hosts that answered did not carry it. unknown: anything else.
PairState = Literal["good", "low", "cut", "unknown"]
FaultKind = Literal["host", "port", "rail", "group", "pair"]


class GpuMemory(Value, frozen=True, kw_only=True):
    """A GPU whose memory is sent from and received into. `maker` as in `Gpu.vendor`; `dmabuf`: reached by dma-buf."""

    address: str
    maker: str
    uuid: str | None = None
    dmabuf: bool = False


class Port(Value, frozen=True, kw_only=True):
    """A port of a host that can be measured. `rail` is what ports of different hosts have in common, a name.

    `address`: its IP address. `rate_gbps`: its active rate. None is unknown. `interface` or `rdma` may be missing.
    `rdma_port`: the number of this port of the RDMA device, from 1 on. `gpu`: it is this port once more, measured with
    the memory of the GPU of its rail, and its own rail has GPU_RAIL behind its name. `gpu_why`: why there is no such
    port although it has a GPU.
    """

    rail: str
    interface: str | None = None
    rdma: str | None = None
    rdma_port: int | None = None
    address: str | None = None
    rate_gbps: float | None = None
    link_layer: str | None = None
    state: str | None = None
    gpu: GpuMemory | None = None
    gpu_why: str | None = None


class End(Value, frozen=True, kw_only=True):
    """One end of a measurement, for the host that it belongs to: it sends as `client`, or receives as `server`.

    `port`: TCP port of the server. `seconds` of measuring; `wait`: how long the client tries to connect.
    `rdma_port`: the number of the port of the RDMA device `rdma`; None: its only one. `gpu`: with this GPU's memory,
    not with the host's.
    """

    rail: str
    role: Role
    tool: Tool
    address: str
    peer_address: str
    port: int
    seconds: int
    wait: int
    interface: str | None = None
    rdma: str | None = None
    rdma_port: int | None = None
    rate_gbps: float | None = None
    streams: int = 1
    gpu: GpuMemory | None = None


class Job(Closed, frozen=True, kw_only=True):
    """What one host is to do. Without `ends` it only lists its ports. `ports`: the interfaces to list, empty: all.

    `disrupt`: measure though guests run, or though that is unknown. `together`: all ends at once.
    """

    ports: tuple[str, ...] = ()
    ends: tuple[End, ...] = ()
    disrupt: bool = False
    together: bool = False


class PathMtu(Value, frozen=True, kw_only=True):
    """Whether packets of `bytes`, the MTU of the sender's interface, reach the receiver undivided.

    not-asked: the port is one of InfiniBand, or was asked with host memory. `why`: the reason for smaller and unknown.
    """

    state: Literal["whole", "smaller", "unknown", "not-asked"] = "unknown"
    bytes: int | None = None
    why: str | None = None


class EndResult(Closed, frozen=True, kw_only=True):
    """What became of one end. `connection` is the same text at both ends of one connection and nowhere else.

    `gbps`: what the receiver got. `seen`: the address of the peer as this end saw it. `errors`: by port and counter,
    what this end's port counted meanwhile beyond what is allowed; None: not known. `path_mtu`: of the sender alone.
    """

    rail: str
    role: Role
    outcome: EndOutcome
    gbps: float | None = None
    connection: str | None = None
    seen: str | None = None
    retransmits: int | None = None
    errors: Mapping[str, int] | None = None
    path_mtu: PathMtu = PathMtu()
    why: str | None = None

    MAPPINGS = ("errors",)


class Ends(Document, frozen=True, kw_only=True):
    """What a host says of itself, and of the ends that it was asked for. `guests`: names of those that may be running.

    `machine`: an identity that no other machine has, and a restart changes. None is unknown.
    """

    schema: str = ENDS_SCHEMA
    host: str | None = None
    version: str | None = None
    machine: str | None = None
    guests: tuple[str, ...] | None = None
    tools: tuple[Tool, ...] = ()
    ports: tuple[Port, ...] = ()
    ends: tuple[EndResult, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "ends") -> Ends:
        """Read such a document. Raises BadInput with the offending field or version."""
        return from_json(cls, text, schema=ENDS_SCHEMA, where=where)


class Pair(Closed, frozen=True, kw_only=True):
    """Two hosts on a rail: `sender` sends, `receiver` receives. `expected`: below this figure it is low; None: unknown.

    `rate_gbps`: the lower active rate of the two ports. `round`: the number of its round, from 1. `errors`: what the
    two ports counted meanwhile beyond what is allowed, such as "receiver: mlx5_0/1 symbol_error 300"; None: not known.
    `path_mtu`: whether the path carries packets as large as the sender's MTU. `memory`: what both ends sent from and
    received into; "gpu" only on rails that have GPU_RAIL behind their name.
    """

    sender: str
    receiver: str
    rail: str
    memory: Memory = "host"
    round: int
    state: PairState
    outcome: PairOutcome
    gbps: float | None = None
    expected: float | None = None
    rate_gbps: float | None = None
    retransmits: int | None = None
    errors: tuple[str, ...] | None = ()
    path_mtu: PathMtu = PathMtu()
    why: str | None = None

    @property
    def with_host_memory(self) -> tuple[str, str, str]:
        """Sender, receiver and rail of the same pair with host memory."""
        return self.sender, self.receiver, self.rail.removesuffix(GPU_RAIL)


class Fault(Value, frozen=True, kw_only=True):
    """What explains low and cut pairs: a host (all of its measured ports), one port, a whole rail, or one pair.

    group: hosts that are good with each other and bad with the others, so what is between them and the others is.
    `hosts`: whose it is (two for a pair). `bad` of `measured` pairs are low or cut. `suspects`: where it may be
    instead, if the measurements cannot tell. `memory` gpu: not the network, but the way between NIC and GPU. `words` is
    the sentence for people.
    """

    kind: FaultKind
    hosts: tuple[str, ...]
    rail: str | None = None
    memory: Memory = "host"
    bad: int
    measured: int
    worst_gbps: float | None = None
    suspects: tuple[str, ...] = ()
    words: str


class PairHost(Value, frozen=True, kw_only=True):
    """A host of the report. `outcome` other than ok: it was not measured, or not to the end, and why."""

    host: str
    outcome: str = "ok"
    why: str | None = None
    rails: tuple[str, ...] = ()


class RailFigures(Value, frozen=True, kw_only=True):
    """The figures of a rail: how many pairs in which state, and their median in Gb/s."""

    rail: str
    good: int = 0
    low: int = 0
    cut: int = 0
    unknown: int = 0
    median: float | None = None


class PairsReport(Document, frozen=True, kw_only=True):
    """All pairs of a run.

    Verdict: fail if any pair is low or cut, else unknown if anything is, else warn if the rate was limited, only
    medians were compared, ports sent or received only, hosts lack ports, GPUs were not measured, ports counted errors
    or did not tell, or a path has a smaller MTU than its port or did not tell, else pass. `rounds`: how many there are;
    `all_pairs`: whether each pair of hosts is in one.
    `against`: what a figure is compared with. `minutes`: what the rounds were estimated to take.
    """

    schema: str = PAIRS_SCHEMA
    run: str
    at: str | None = None
    tool: Tool = "tcp"
    check: bool = False
    against: tuple[str, ...] = ("rate", "median")
    floor: float = 0.9
    rate_limit_gbps: float | None = None
    verdict: Verdict = "unknown"
    rounds: int = 0
    all_pairs: bool = True
    minutes: float = 0.0
    hosts: tuple[PairHost, ...] = ()
    rails: tuple[RailFigures, ...] = ()
    faults: tuple[Fault, ...] = ()
    pairs: tuple[Pair, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: str | None = None

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "pairs report") -> PairsReport:
        """Read a report on pairs. Raises BadInput with the offending field or version."""
        return from_json(cls, text, schema=PAIRS_SCHEMA, where=where)
