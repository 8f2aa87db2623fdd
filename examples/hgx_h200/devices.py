"""Network, RDMA and NVMe class entries of the example host."""

from __future__ import annotations

from hgx_h200.pci import Function, functions
from hgx_h200.tree import Tree


def write_devices(tree: Tree) -> None:
    """Classes net, infiniband and nvme, numbered in bus order; the boot drive holds / and the EFI partition."""
    everything = tuple(functions())
    by_driver = {name: [f for f in everything if f.driver == name] for name in ("mlx5_core", "bnxt_en", "nvme")}
    for number, function in enumerate(by_driver["mlx5_core"]):
        _write_infiniband(tree, function, number)
    for number, function in enumerate(by_driver["bnxt_en"]):
        _write_ethernet(tree, function, number)
    for number, function in enumerate(by_driver["nvme"]):
        _write_nvme(tree, function, number)
    tree.put_all("sys/devices/virtual/net/lo", type=772, operstate="unknown", mtu=65536)
    tree.link("sys/class/net/lo", "sys/devices/virtual/net/lo")


def _bus(function: Function) -> int:
    return int(function.address[5:7], 16)


def _interface(tree: Tree, function: Function, name: str, **values: str | int) -> None:
    at = f"sys/devices/{function.path}/net/{name}"
    tree.put_all(at, dev_port=0, dev_id="0x0", **values)
    tree.link(f"{at}/device", f"sys/devices/{function.path}")
    tree.link(f"sys/class/net/{name}", at)


def _write_infiniband(tree: Tree, function: Function, number: int) -> None:
    """A ConnectX-7 port: InfiniBand NDR, 400 Gb/s, active."""
    name = f"mlx5_{number}"
    at = f"sys/devices/{function.path}/infiniband/{name}"
    tree.put_all(
        at, node_type="1: CA", node_guid=f"0200:00ff:fe00:{number:04x}", hca_type="MT4129", fw_ver="28.39.1002"
    )
    port = f"{at}/ports/1"
    tree.put_all(port, state="4: ACTIVE", phys_state="5: LinkUp", rate="400 Gb/sec (4X NDR)", link_layer="InfiniBand")
    tree.link(f"{at}/device", f"sys/devices/{function.path}")
    tree.link(f"sys/class/infiniband/{name}", at)
    mac = ":".join(("00",) * 18 + ("02", f"{number:02x}"))
    _interface(tree, function, f"ibp{_bus(function)}s0", type=32, address=mac, operstate="up", carrier=1, mtu=4092)


def _write_ethernet(tree: Tree, function: Function, number: int) -> None:
    """A management port of 25 Gb/s; the second one has no cable."""
    up = number == 0
    _interface(
        tree,
        function,
        f"ens2f{number}np{number}",
        type=1,
        address=f"02:00:00:00:00:{number:02x}",
        operstate="up" if up else "down",
        carrier=int(up),
        speed=25000 if up else -1,
        mtu=1500,
    )


def _write_nvme(tree: Tree, function: Function, number: int) -> None:
    """A controller with one namespace; the first one, the boot drive, has two partitions."""
    boot = number == 0
    at = f"sys/devices/{function.path}/nvme/nvme{number}"
    tree.put_all(
        at,
        model="SYNTHETIC NVMe 960 GB" if boot else "SYNTHETIC NVMe 7.68 TB",
        serial=f"EXAMPLE{number:04}",
        state="live",
        transport="pcie",
        numa_node=function.node,
        cntlid=number,
    )
    tree.link(f"{at}/device", f"sys/devices/{function.path}")
    tree.link(f"sys/class/nvme/nvme{number}", at)
    disk = f"{at}/nvme{number}n1"
    tree.put_all(disk, size=1875385008 if boot else 15002931888, dev=f"259:{0 if boot else number + 2}", ro=0)
    tree.put_all(f"{disk}/queue", scheduler="[none] mq-deadline", nr_requests=1023, rotational=0)
    tree.link(f"sys/class/block/nvme{number}n1", disk)
    tree.link(f"sys/block/nvme{number}n1", disk)
    for partition in (1, 2) if boot else ():
        name = f"nvme{number}n1p{partition}"
        tree.put_all(f"{disk}/{name}", partition=partition, dev=f"259:{partition}", size=1 << 20)
        tree.link(f"sys/class/block/{name}", f"{disk}/{name}")
