"""Measured figures of a machine, and what is known of it: the input of `hosttune diagnose --measured FILE`.

Every value may be unknown (None, or left out). Units are free text, because published figures have many: a unit that
does not fit its metric makes that figure unknown, and is no reason to refuse the document.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from hosttune.errors import BadInput
from hosttune.model.text import below_root, decoding_fault
from hosttune.model.values import Part, close_lists, close_mappings, to_json, without_nulls

MEASURED_VERSION = 1
Transport = Literal["ib", "roce", "socket", "shm", "p2p", "nvls", "libfabric"]
# Bus bandwidths as nccl-tests computes them (doc/PERFORMANCE.md): of rings, and of all collectives.
RINGS = ("all-reduce-busbw", "all-gather-busbw")
COLLECTIVES = (*RINGS, "all-to-all-busbw", "send-recv-busbw", "broadcast-busbw", "reduce-busbw")
# The metrics of the document, and the dimension of each.
METRICS: Mapping[str, str] = {
    **dict.fromkeys(("h2d", "d2h", "p2p", *COLLECTIVES), "bytes per second"),
    **dict.fromkeys(("device-copy", "memory-copy", "disk-read", "storage-read"), "bytes per second"),
    "rdma-write": "bytes per second",
    "tcp": "bytes per second",
    "gemm-bf16": "operations per second",
    "gemm-fp8": "operations per second",
    "memory-latency": "time",
    "tokens-per-second": "tokens per second",
    "mfu": "fraction",
    "sm-clock": "clock",
    "power": "power",
    "link-speed-gts": "transfers per second",
    "link-width": "link width",
}


class Nics(Part, frozen=True, kw_only=True):
    """The ports that a host uses: how many, the rate of one in Gb/s, and their kind."""

    count: int | None = None
    rate_gbps: float | None = None
    kind: Literal["infiniband", "roce", "ethernet"] | None = None


class Setup(Part, frozen=True, kw_only=True):
    """The machine. `nvlinks_per_gpu` counts links; `pcie` is the slot of a GPU ("5.0 x16"); `virtual`: it is a guest.

    `environment`: variables that were set for the run.
    """

    gpu: str | None = None
    pci_id: str | None = None
    gpus_per_host: int | None = None
    hosts: int | None = None
    virtual: bool | None = None
    nvlinks_per_gpu: int | None = None
    nvswitch: bool | None = None
    nics: Nics | None = None
    pcie: str | None = None
    cpu: str | None = None
    environment: Mapping[str, str | int | float | bool | None] = {}

    def __post_init__(self) -> None:
        close_mappings(self, "environment")


class Figure(Part, frozen=True, kw_only=True):
    """One measured figure. `size_bytes`: of the message or block, None if unknown."""

    metric: str
    subject: str = ""
    value: float | None = None
    unit: str = ""
    size_bytes: float | None = None


class LinkSeen(Part, frozen=True, kw_only=True):
    """The own PCIe link of a GPU or NIC: its state, what it can do, and whether it was read under load."""

    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None
    under_load: bool | None = None


class NicLink(Part, frozen=True, kw_only=True):
    """The ports of a host's NICs: rate now and at most, in Gb/s, how many there are and how many are active."""

    rate_gbps: float | None = None
    max_rate_gbps: float | None = None
    ports: int | None = None
    ports_active: int | None = None


class Stated(Part, frozen=True, kw_only=True):
    """A fault that a log states: in words, the line, what to do, and the source of that."""

    says: str
    line: str = ""
    remedy: str = ""
    source: str = ""


class Observations(Part, frozen=True, kw_only=True):
    """What was read about the machine besides figures; None is unknown.

    `said`: of an observation, where it was seen or the words that say it ("0000:40:01.0"). `stated`: what lines of logs
    say outright, the gravest first.
    """

    guest_topology: Literal["flat", "mirrored"] | None = None
    guest_numa: bool | None = None
    pinned: bool | None = None
    hugepages: bool | None = None
    memory_node: Literal["near", "far"] | None = None
    iommu: Literal["off", "on", "passthrough"] | None = None
    acs_redirect: bool | None = None
    ats: bool | None = None
    p2p: Literal["nvlink", "pcie", "off", "partly"] | None = None
    peer_copies_slow: bool | None = None
    gpudirect_rdma: bool | None = None
    peer_memory_module: bool | None = None
    gpu_nic_path: Literal["PIX", "PXB", "PHB", "NODE", "SYS"] | None = None
    transport: Transport | None = None
    nvls: bool | None = None
    topology_file: bool | None = None
    link: LinkSeen | None = None
    nic_pcie_link: LinkSeen | None = None
    nic_link: NicLink | None = None
    relaxed_ordering: bool | None = None
    max_read_request_bytes: float | None = None
    power_capped: bool | None = None
    power_limit_watts: float | None = None
    default_power_limit_watts: float | None = None
    thermal_slowdown: bool | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    c_states: Literal["deep", "shallow"] | None = None
    other_cpu_load: bool | None = None
    pageable_memory: bool | None = None
    cold: bool | None = None
    bidirectional_sum: bool | None = None
    congestion: bool | None = None
    changed_with_version: bool | None = None
    storage_bound: bool | None = None
    input_bound: bool | None = None
    said: Mapping[str, str] = {}
    stated: tuple[Stated, ...] = ()

    def __post_init__(self) -> None:
        close_mappings(self, "said")
        close_lists(self)


class Measured(Part, frozen=True, kw_only=True):
    """The whole document (YAML or JSON)."""

    version: int
    setup: Setup = msgspec.field(default_factory=Setup)
    figures: tuple[Figure, ...] = ()
    observations: Observations = msgspec.field(default_factory=Observations)

    def __post_init__(self) -> None:
        close_lists(self)

    @classmethod
    def from_yaml(cls, text: str | bytes, *, where: str = "measured") -> Measured:
        """Read the document from YAML or JSON. Raises BadInput with the path of the key that is wrong."""
        from hosttune.model.yamltext import load_versioned  # PyYAML loads slowly, and most figures are a validation's

        document = load_versioned(text, MEASURED_VERSION, "measured figures (docs/diagnose.md)", where)
        try:
            measured = msgspec.convert(without_nulls(document, cls), cls)
        except (msgspec.ValidationError, RecursionError) as error:
            problem, path, unknown = decoding_fault(error)
            what = problem if unknown is None else f"unknown key {unknown[:80]!r}"
            hint = "docs/diagnose.md lists the keys"
            hint = f"correct the value; {hint}" if unknown is None else hint
            raise BadInput(what, where=f"{where}: {below_root(path) or path}", hint=hint) from error
        for path, value, least in _numbers(measured):
            if value is None:
                continue
            if not math.isfinite(value) or value < least or (least == 0 and value < 0):
                what = f"{value:g} is not possible here"
                raise BadInput(what, where=f"{where}: {path}", hint="correct it, or leave it out if it is not known")
        return measured

    def to_json(self) -> str:
        """Return the document as JSON that `from_yaml` can read."""
        return to_json(self)


def _numbers(measured: Measured) -> Iterator[tuple[str, float | None, float]]:
    """Yield (path, value, the least value that is possible) of every number."""
    tiny = 1e-9
    setup, seen = measured.setup, measured.observations
    yield "setup.hosts", setup.hosts, 1
    yield "setup.gpus_per_host", setup.gpus_per_host, 1
    yield "setup.nvlinks_per_gpu", setup.nvlinks_per_gpu, 0
    if setup.nics is not None:
        yield "setup.nics.count", setup.nics.count, 0
        yield "setup.nics.rate_gbps", setup.nics.rate_gbps, tiny
    for number, figure in enumerate(measured.figures):
        yield f"figures[{number}].value", figure.value, 0
        yield f"figures[{number}].size_bytes", figure.size_bytes, 1
    for name in ("power_limit_watts", "default_power_limit_watts", "sm_clock_mhz", "max_sm_clock_mhz"):
        yield f"observations.{name}", getattr(seen, name), tiny
    yield "observations.max_read_request_bytes", seen.max_read_request_bytes, 1
    for name, link in (("link", seen.link), ("nic_pcie_link", seen.nic_pcie_link), ("nic_link", seen.nic_link)):
        if link is not None:
            for field in link.__struct_fields__:
                value: Any = getattr(link, field)
                if field != "under_load":
                    yield f"observations.{name}.{field}", value, 0
