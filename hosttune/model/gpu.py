"""GPUs in the host document: what their drivers report, their MIG instances and their peers.

`None` is unknown or absent, as everywhere in the document. Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.model.values import Closed, Value

OTHER = "other"  # `Gpu.vendor` of a display whose maker is not a known maker of accelerators


class Peer(Value, frozen=True, kw_only=True):
    """Another GPU of this host and the best path to it. `links` counts NVLinks or XGMI links."""

    address: str
    kind: str
    links: int | None = None


class Nvlink(Closed, frozen=True, kw_only=True):
    """One NVLink of a GPU. `gb_per_s`: in one direction. Errors are counted since the driver was loaded or they were
    cleared; None is unknown. A link that is not `active` has neither.

    `errors`: the counters of NVLink 5 by name, in place of the three others; None: it has those.
    """

    link: int
    active: bool
    gb_per_s: float | None = None
    replays: int | None = None
    recoveries: int | None = None
    crc_errors: int | None = None
    errors: Mapping[str, int | None] | None = None

    MAPPINGS = ("errors",)

    @property
    def counters(self) -> Mapping[str, int | None]:
        """The counters that it has, by name."""
        if self.errors is not None:
            return self.errors
        return {"replays": self.replays, "recoveries": self.recoveries, "crc_errors": self.crc_errors}


class MigProfile(Value, frozen=True, kw_only=True):
    """A GPU instance profile as the device lists it. `starts` and `size` are in memory slices."""

    name: str
    id: int | None = None
    memory_bytes: int | None = None
    compute_slices: int | None = None
    multiprocessors: int | None = None
    max_instances: int | None = None
    starts: tuple[int, ...] | None = None
    size: int | None = None


class MigInstance(Value, frozen=True, kw_only=True):
    """An existing GPU instance."""

    profile: str | None = None
    id: int | None = None
    start: int | None = None
    size: int | None = None
    uuid: str | None = None


class Mig(Value, frozen=True, kw_only=True):
    """The MIG state of a GPU. `mode` and `pending` are "enabled", "disabled" or None (not supported)."""

    mode: str | None = None
    pending: str | None = None
    profiles: tuple[MigProfile, ...] | None = None
    instances: tuple[MigInstance, ...] | None = None


class GpuPort(Value, frozen=True, kw_only=True):
    """A network port that a GPU carries itself.

    `kind`: "internal" (to other GPUs of its board) or "external" (scale-out). `state`: "up" or "down". `interface`: its
    network interface in the kernel, which only external ones have; `rate_gbps` is that one's. None is unknown.
    """

    number: int
    kind: str | None = None
    state: str | None = None
    interface: str | None = None
    rate_gbps: float | None = None


class Gpu(Value, frozen=True, kw_only=True):
    """A display or accelerator function. sysfs decides which ones exist; `source` is where the other facts come from.

    `lacks` names fields that the device does not have, according to its driver: there None is an answer; in any other
    field None is unknown. Temperatures are in degrees Celsius. `temperature_margin_c` is the distance to the maximum
    operating temperature; below 0 the GPU is too hot.
    """

    address: str
    vendor: str = OTHER
    model: str | None = None
    memory_bytes: int | None = None
    uuid: str | None = None
    serial: str | None = None
    module_id: int | None = None
    module_id_source: str | None = None  # its source, if it is not `source`
    mig: Mig | None = None
    peers: tuple[Peer, ...] | None = None
    source: str | None = None
    driver_version: str | None = None
    firmware_version: str | None = None
    inforom_version: str | None = None  # of the image: it describes all of the InfoROM (nvml.h)
    nvlinks_active: int | None = None
    nvlink_gb_per_s: float | None = None  # of one link, one direction
    nvlinks: tuple[Nvlink, ...] | None = None  # with speed and errors; None: no source has them
    fabric_state: str | None = None
    fabric_status: str | None = None
    power_limit_watts: float | None = None
    power_default_watts: float | None = None
    power_min_watts: float | None = None
    power_max_watts: float | None = None
    persistence: bool | None = None
    compute_mode: str | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    ecc_uncorrected: int | None = None  # since the driver was loaded, SRAM and DRAM together
    ecc_corrected: int | None = None  # since the driver was loaded
    ecc_uncorrected_lifetime: int | None = None
    sram_threshold_exceeded: bool | None = None  # its lifetime SRAM errors exceed the threshold
    unrepairable_memory: bool | None = None
    channel_repair_pending: bool | None = None  # of a memory channel, made by the next reset
    tpc_repair_pending: bool | None = None  # of a part of its processors (TPC), made by the next reset
    retired_pending: bool | None = None  # pages that are retired at the next reset (before Ampere)
    remapped_pending: bool | None = None
    remapped_failed: bool | None = None
    remapped_uncorrectable: int | None = None
    remapped_correctable: int | None = None
    remap_banks_low: int | None = None  # memory banks with few spare rows left
    remap_banks_none: int | None = None  # memory banks with no spare rows left
    clock_reasons: tuple[str, ...] | None = None
    pcie_max_generation: int | None = None  # of GPU and system together
    pcie_gpu_max_generation: int | None = None  # of the GPU alone
    pcie_generation: int | None = None  # now; an idle GPU may lower it
    pcie_width: int | None = None  # lanes in use
    pcie_max_width: int | None = None  # lanes, of GPU and system together
    pcie_replays: int | None = None  # since its last reset
    processes: int | None = None
    fabric_health: tuple[str, ...] | None = None  # faults of its connection to the fabric, () if there are none
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    application_clock_mhz: float | None = None
    default_application_clock_mhz: float | None = None
    temperature_c: float | None = None
    temperature_margin_c: float | None = None
    temperature_slowdown_c: float | None = None  # at which it reduces its own clocks
    memory_temperature_c: float | None = None
    recovery_action: str | None = None  # what its driver asks for: "none", "reset", "reboot", …
    status: str | None = None  # the driver's word for the device ("operational", "malfunction", …)
    compute_partition: str | None = None  # how its compute dies are divided into devices: "SPX" (one), "CPX", …
    memory_partition: str | None = None  # how its memory is divided into NUMA domains: "NPS1" (one), "NPS4", …
    lacks: tuple[str, ...] | None = None

    @property
    def is_accelerator(self) -> bool:
        """Whether its maker is a known maker of accelerators.

        Any other GPU (`other`) is a display, which is used only if an intent names it.
        """
        return self.vendor != OTHER

    @property
    def mig_on(self) -> bool:
        """Whether the GPU is in MIG mode now, as its driver reports."""
        return self.mig is not None and self.mig.mode == "enabled"


class FabricPartition(Value, frozen=True, kw_only=True):
    """GPUs that NVSwitches can connect to each other and to no others, as Fabric Manager lists them.

    `module_ids` are the GPUs' positions on the baseboard (`Gpu.module_id`), not their order on PCI. `nvlinks` is how
    many NVLinks each GPU has in this partition, the smallest number if they differ; 0 for a single GPU.
    """

    id: int
    module_ids: tuple[int, ...]
    active: bool | None = None
    nvlinks: int | None = None


class Fabric(Value, frozen=True, kw_only=True):
    """What this host's Fabric Manager reports about the NVSwitch fabric: its mode, and the partitions that it can make.

    `mode` is FABRIC_MODE of the configuration on disk: 0 bare metal or full passthrough, 1 shared NVSwitch, 2 vGPU.
    `generation` is the board's ("ampere", "hopper", "blackwell"), derived from PCI device ids. `source` says where the
    list of partitions comes from.
    """

    mode: int | None = None
    partitions: tuple[FabricPartition, ...] | None = None
    generation: str | None = None
    source: str | None = None


class FabricManager(Value, frozen=True, kw_only=True):
    """The state of NVIDIA's Fabric Manager.

    `mode` is FABRIC_MODE: 0 bare metal or full passthrough, 1 shared NVSwitch, 2 vGPU. `state` is systemd's word for
    its service (active, inactive, failed, …).
    """

    installed: bool | None = None
    running: bool | None = None
    state: str | None = None
    version: str | None = None
    mode: int | None = None
    active_partitions: tuple[int, ...] | None = None
