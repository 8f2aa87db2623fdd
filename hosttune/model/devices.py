"""Devices by function (NICs, drives, NVSwitches) and the sources that show devices: parts of a host document."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hosttune.model.values import Closed, Value


class Nic(Closed, frozen=True, kw_only=True):
    """A network function. `rdma` is the name of the RDMA device (mlx5_0), `interfaces` the network interfaces."""

    address: str
    kind: str | None = None
    rdma: str | None = None
    rate_gbps: float | None = None
    interfaces: tuple[str, ...] = ()
    link_layer: str | None = None
    state: str | None = None
    physfn: str | None = None
    in_use: str | None = None  # why the host needs it ("carries the default route"); None: no reason is known
    use_unknown: str | None = None  # why it is unknown whether the host needs it; None: it is not in doubt
    busy: str | None = None  # why apply does not take it now ("eth0 is up and has an address"); None: none is known
    fabric_bridge: bool | None = None  # carries the GPUs' NVLink fabric; None: not read, or no such GPUs here
    functions: Mapping[str, Mapping[str, str | int | bool]] | None = None  # what it keeps for virtual ones, by number

    MAPPINGS = ("functions",)


class Nvme(Value, frozen=True, kw_only=True):
    """An NVMe controller. `namespaces` are its block devices, `mounted` those that the host uses."""

    address: str
    model: str | None = None
    controller: str | None = None
    namespaces: tuple[str, ...] = ()
    in_use: str | None = None  # why the host needs it ("nvme0n1p2 mounted on /; …"); None: no reason is known
    use_unknown: str | None = None  # why it is unknown whether the host needs it; None: it is not in doubt

    def namespace_of(self, disk: str) -> str | None:
        """Return the namespace of this drive that a block device is, or is a partition of; None if it is neither."""
        for name in self.namespaces:
            if disk == name or (disk.startswith(f"{name}p") and disk[len(name) + 1 :].isdecimal()):
                return name
        return None

    def use_of(self, disk: str) -> str | None:
        """Return why the host needs a namespace ("nvme0n1") or a partition of it; None: no reason is known.

        A namespace is in use if a partition of it is, and a partition if its whole namespace is. A reason that names
        neither is about the whole drive.
        """
        whole = self.namespace_of(disk) or disk

        def is_about(named: str) -> bool:
            return named in (disk, whole) or not named.startswith("nvme") or named.startswith(f"{disk}p")

        reasons = [reason for reason in (self.in_use or "").split("; ") if reason and is_about(reason.split(" ")[0])]
        return "; ".join(reasons) or None


class NvSwitch(Value, frozen=True, kw_only=True):
    """An NVSwitch that is a PCI function (A100 and Hopper boards)."""

    address: str
    model: str | None = None
    driver: str | None = None


def node_of(nodes: Mapping[str, tuple[str, ...]], path: str) -> str:
    """Return the node that a link leads to, or the path itself. `nodes`: see `HostFields`."""
    node = nodes.get(path)
    return node[0] if node and node[0].startswith("/") else path


def functions_under(nodes: Mapping[str, tuple[str, ...]], path: str) -> tuple[str, ...] | None:
    """Return the PCI functions that a device node or an interface is on; None if that is unknown.

    A partition that is not in `nodes` is on what its disk is on.
    """
    node = node_of(nodes, path)
    whole = re.sub(r"(?<=[0-9])p[0-9]+$", "", node)
    return next((nodes[name] for name in (node, whole) if name in nodes), None)


class SeenDevice(Value, frozen=True, kw_only=True):
    """A device as one source shows it.

    `kind` is "gpu", "nic", "nvme", "nvswitch" or "other"; None if the source does not say. `id` is vendor:device as in
    the baselines ("10de:2335"). `vendor` is as in `Gpu.vendor`.
    """

    address: str
    kind: str | None = None
    vendor: str | None = None
    model: str | None = None
    id: str | None = None


class DeviceSource(Closed, frozen=True, kw_only=True):
    """One source of devices besides the PCI tree (`Host.pci`), compared with the tree.

    - `read`: the file, folder or call.
    - `shows`: how many devices it shows; None if it could not be read although it is proven to exist.
    - `could`: how many functions of the tree it could show.
    - `beyond`: devices that it shows and that are not in the tree.
    - `lacking`: functions of the tree that it could show and does not.
    - `names` False: it only counts devices.
    - `expects`: it says what was here before, or what should be here (a plan, an earlier validation).
    """

    name: str
    read: str
    shows: int | None = None
    could: int | None = None
    beyond: tuple[SeenDevice, ...] = ()
    lacking: tuple[str, ...] = ()
    names: bool = True
    expects: bool = False
