"""GPUs in the host document: what their drivers tell of them, their MIG instances and their peers.

`None` is unknown or absent, as everywhere in the document. Sizes are bytes.
"""

from __future__ import annotations

from hosttune.model.values import Value

OTHER = "other"  # `Gpu.vendor` of a display of no known accelerator maker


class Peer(Value, frozen=True, kw_only=True):
    """Another GPU of this host and the best path to it; `links` counts NVLinks or XGMI links."""

    address: str
    kind: str
    links: int | None = None


class MigProfile(Value, frozen=True, kw_only=True):
    """A GPU instance profile as the device lists it; `starts` and `size` are memory slices."""

    name: str
    id: int | None = None
    memory_bytes: int | None = None
    compute_slices: int | None = None
    multiprocessors: int | None = None
    max_instances: int | None = None
    starts: tuple[int, ...] | None = None
    size: int | None = None


class MigInstance(Value, frozen=True, kw_only=True):
    """A GPU instance that exists now."""

    profile: str | None = None
    id: int | None = None
    start: int | None = None
    size: int | None = None
    uuid: str | None = None


class Mig(Value, frozen=True, kw_only=True):
    """Multi-Instance GPU: `mode` and `pending` are "enabled", "disabled" or None where not supported."""

    mode: str | None = None
    pending: str | None = None
    profiles: tuple[MigProfile, ...] | None = None
    instances: tuple[MigInstance, ...] | None = None


class Gpu(Value, frozen=True, kw_only=True):
    """A display or accelerator function. Which exist is decided by sysfs; `source` says who told the rest.

    `lacks` names fields of which its driver says that the device has no such thing: None there is an answer, in any
    other field it is unknown. Temperatures are degrees Celsius; `temperature_margin_c` is what is left up to the
    greatest one at which it should work, so below 0 it is too hot.
    """

    address: str
    vendor: str = OTHER
    model: str | None = None
    memory_bytes: int | None = None
    uuid: str | None = None
    serial: str | None = None
    module_id: int | None = None
    module_id_source: str | None = None  # who told it, where that is not `source`
    mig: Mig | None = None
    peers: tuple[Peer, ...] | None = None
    source: str | None = None
    driver_version: str | None = None
    firmware_version: str | None = None
    nvlinks_active: int | None = None
    nvlink_gb_per_s: float | None = None  # of one link, one direction
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
    ecc_corrected: int | None = None  # likewise
    ecc_uncorrected_lifetime: int | None = None
    sram_threshold_exceeded: bool | None = None  # more SRAM errors in its life than it should have
    unrepairable_memory: bool | None = None
    retired_pending: bool | None = None  # pages that wait for a reset to be retired (before Ampere)
    remapped_pending: bool | None = None
    remapped_failed: bool | None = None
    remapped_uncorrectable: int | None = None
    remapped_correctable: int | None = None
    remap_banks_low: int | None = None  # memory banks with few spare rows left
    remap_banks_none: int | None = None  # and with none
    clock_reasons: tuple[str, ...] | None = None
    pcie_max_generation: int | None = None  # of GPU and system together
    pcie_gpu_max_generation: int | None = None  # of the GPU alone
    pcie_replays: int | None = None  # since its reset
    processes: int | None = None
    fabric_health: tuple[str, ...] | None = None  # what is wrong with its place on the fabric, () when nothing is
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    application_clock_mhz: float | None = None
    default_application_clock_mhz: float | None = None
    temperature_c: float | None = None
    temperature_margin_c: float | None = None
    temperature_slowdown_c: float | None = None  # where it slows itself down
    memory_temperature_c: float | None = None
    recovery_action: str | None = None  # what its driver asks for: "none", "reset", "reboot", …
    status: str | None = None  # the driver's word for the device ("operational", "malfunction", …)
    lacks: tuple[str, ...] | None = None

    @property
    def is_accelerator(self) -> bool:
        """Whether it is of a known accelerator maker; any other (`other`) is a display, used only where it is named."""
        return self.vendor != OTHER


class FabricPartition(Value, frozen=True, kw_only=True):
    """GPUs that NVSwitches can join to each other and to no others, as the Fabric Manager lists them.

    `module_ids` are the GPUs' places on the baseboard (`Gpu.module_id`), not their order on PCI. `nvlinks` is how many
    each GPU has in this partition, the fewest where they differ; 0 for a GPU alone.
    """

    id: int
    module_ids: tuple[int, ...]
    active: bool | None = None
    nvlinks: int | None = None


class Fabric(Value, frozen=True, kw_only=True):
    """What this host's Fabric Manager says of the NVSwitch fabric: its mode, and the partitions that it can make.

    `mode`: 0 bare metal or full passthrough, 1 shared NVSwitch, 2 vGPU (FABRIC_MODE); of the configuration on disk.
    `generation` is the board's ("ampere", "hopper", "blackwell"), told by PCI device ids. `source` says who listed.
    """

    mode: int | None = None
    partitions: tuple[FabricPartition, ...] | None = None
    generation: str | None = None
    source: str | None = None
