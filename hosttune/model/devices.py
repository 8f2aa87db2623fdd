"""Devices by what they do, and which source shows which device: parts of a host document."""

from __future__ import annotations

from hosttune.model.values import Value, close_lists


class Nic(Value, frozen=True, kw_only=True):
    """A network function. `rdma` is the RDMA device's name (mlx5_0), `interfaces` the network interfaces."""

    address: str
    kind: str | None = None
    rdma: str | None = None
    rate_gbps: float | None = None
    interfaces: tuple[str, ...] = ()
    link_layer: str | None = None
    state: str | None = None
    physfn: str | None = None
    in_use: str | None = None  # why the host needs it ("carries the default route"), None when nothing says so
    fabric_bridge: bool | None = None  # carries the GPUs' NVLink fabric; None: not read, or no such GPUs here


class Nvme(Value, frozen=True, kw_only=True):
    """An NVMe controller; `namespaces` are block devices, `mounted` those in use by the host."""

    address: str
    model: str | None = None
    controller: str | None = None
    namespaces: tuple[str, ...] = ()
    in_use: str | None = None  # why the host needs it ("mounted on /"), None when nothing says so


class NvSwitch(Value, frozen=True, kw_only=True):
    """An NVSwitch that is a PCI function (A100 and Hopper boards)."""

    address: str
    model: str | None = None
    driver: str | None = None


class SeenDevice(Value, frozen=True, kw_only=True):
    """A device as a source shows it. `kind` is "gpu", "nic", "nvme", "nvswitch" or "other", None where it does not say;
    `id` vendor:device as baselines name it ("10de:2335"); `vendor` as in `Gpu.vendor`; `driver` the driver that must
    hold it for this source to show it.
    """

    address: str
    kind: str | None = None
    vendor: str | None = None
    model: str | None = None
    id: str | None = None
    driver: str | None = None


class DeviceSource(Value, frozen=True, kw_only=True):
    """One source of devices besides the PCI tree (`Host.pci`), held against it.

    `read` is the file, folder or call. `shows` counts the devices that it shows, None where it was not read although
    something proves that it is there; `could` the functions of the tree that it could show. `beyond` are devices that
    it shows and the tree does not, `lacking` functions of the tree that it could show and does not. `contrary` are
    functions of the tree that it shows as another kind of device, or as held by another driver. `names` False: it only
    counts. `expects`: it says what was here before, or what is meant to be here (a plan, an earlier validation).
    """

    name: str
    read: str
    shows: int | None = None
    could: int | None = None
    beyond: tuple[SeenDevice, ...] = ()
    lacking: tuple[str, ...] = ()
    contrary: tuple[SeenDevice, ...] = ()
    names: bool = True
    expects: bool = False

    def __post_init__(self) -> None:
        close_lists(self)
