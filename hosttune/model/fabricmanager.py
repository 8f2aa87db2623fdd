"""The Fabric Manager of a host: a part of the evidence that discovery, which imports no evidence, reads."""

from __future__ import annotations

from hosttune.model.values import Value


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
