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


# Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-class-net-statistics: what a port counts.
_PORT_COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors"),
    *(
        "port_rcv_switch_relay_errors",
        "port_xmit_discards",
        "port_xmit_constraint_errors",
        "port_rcv_constraint_errors",
    ),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "VL15_dropped", "port_xmit_wait"),
)
_HARDWARE_COUNTERS = ("rnr_nak_retry_err", "local_ack_timeout_err", "roce_slow_restart")
_STATISTICS = ("rx_errors", "rx_crc_errors", "rx_missed_errors", "rx_dropped", "tx_errors", "tx_dropped")


def _port(tree: Tree, at: str, **values: str | int) -> None:
    """An RDMA port without an error."""
    tree.put_all(at, **values)
    tree.put_all(f"{at}/counters", **dict.fromkeys(_PORT_COUNTERS, 0))
    tree.put_all(f"{at}/hw_counters", **dict.fromkeys(_HARDWARE_COUNTERS, 0))


def _bus(function: Function) -> int:
    return int(function.address[5:7], 16)


def _interface(tree: Tree, function: Function, name: str, **values: str | int) -> None:
    at = f"sys/devices/{function.path}/net/{name}"
    tree.put_all(at, dev_port=0, dev_id="0x0", **values)
    downs = 1 if values["operstate"] == "up" else 0  # its driver took the link down once, when it was set up
    tree.put_all(at, carrier_changes=2 * downs, carrier_up_count=downs, carrier_down_count=downs)
    traffic = {"rx_bytes": 84 << 20, "tx_bytes": 12 << 20} if downs else {"rx_bytes": 0, "tx_bytes": 0}
    tree.put_all(f"{at}/statistics", **dict.fromkeys(_STATISTICS, 0), **traffic)
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
    up: dict[str, str] = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
    _port(tree, port, link_layer="InfiniBand", lid=f"{number + 2:#x}", sm_lid="0x1", **up)
    tree.link(f"{at}/device", f"sys/devices/{function.path}")
    tree.link(f"sys/class/infiniband/{name}", at)
    tree.put(f".hosttune/commands/smpquery-portinfo-{name}-1", _PORT_INFO)
    mac = ":".join(("00",) * 18 + ("02", f"{number:02x}"))
    _interface(tree, function, f"ibp{_bus(function)}s0", type=32, address=mac, operstate="up", flags="0x1043",
               carrier=1, mtu=4092)  # fmt: skip


def _write_ethernet(tree: Tree, function: Function, number: int) -> None:
    """A management port of 25 Gb/s; the second one is set down. The kernel tells carrier, speed and duplex only of an
    interface that is set up."""
    up = number == 0
    link: dict[str, str | int] = {"carrier": 1, "speed": 25000, "duplex": "full"} if up else {}
    _interface(
        tree,
        function,
        f"ens2f{number}np{number}",
        type=1,
        address=f"02:00:00:00:00:{number:02x}",
        operstate="up" if up else "down",
        flags="0x1003" if up else "0x1002",
        mtu=1500,
        **link,
    )
    name = f"ens2f{number}np{number}"
    speed = "25000Mb/s" if up else "Unknown!"
    tree.put(f".hosttune/commands/ethtool-{name}", _LINK.format(name=name, speed=speed, up="yes" if up else "no"))
    no_module = '{"error": "netlink error: Input/output error"}'
    tree.put(f".hosttune/commands/ethtool-m-{name}", _module() if up else no_module)


# The form of smpquery(8), portinfo: what a port of NDR supports.
_PORT_INFO = """LinkWidthEnabled:................1X or 4X or 2X
LinkWidthSupported:..............1X or 4X or 2X
LinkWidthActive:.................4X
LinkSpeedSupported:..............2.5 Gbps or 5.0 Gbps or 10.0 Gbps
LinkState:.......................Active
PhysLinkState:...................LinkUp
LinkSpeedActive:.................Extended speed
LinkSpeedEnabled:................2.5 Gbps or 5.0 Gbps or 10.0 Gbps
CapabilityMask2:.................0x7f2
LinkSpeedExtActive:..............106.25 Gbps
LinkSpeedExtSupported:...........14.0625 Gbps or 25.78125 Gbps or 53.125 Gbps or 106.25 Gbps
LinkSpeedExtEnabled:.............14.0625 Gbps or 25.78125 Gbps or 53.125 Gbps or 106.25 Gbps"""
# The form of ethtool(8), NAME and -m NAME; the module is made up, without a serial number.
_LINK = """Settings for {name}:
\tSupported ports: [ FIBRE ]
\tSupported link modes:   10000baseSR/Full
\t                        25000baseSR/Full
\tAdvertised link modes:  25000baseSR/Full
\tSpeed: {speed}
\tDuplex: Full
\tPort: FIBRE
\tLink detected: {up}"""
_READINGS = {
    "Module temperature": (
        "38.50 degrees C",
        "80.00 degrees C",
        "-10.00 degrees C",
        "75.00 degrees C",
        "-5.00 degrees C",
    ),
    "Module voltage": ("3.3000 V", "3.6300 V", "2.9700 V", "3.4650 V", "3.1350 V"),
    "Laser bias current": ("6.800 mA", "12.000 mA", "2.000 mA", "10.000 mA", "3.000 mA"),
    "Laser output power": ("0.9500 mW", "2.5119 mW", "0.1445 mW", "1.9953 mW", "0.1820 mW"),
    "Laser rx power": ("0.8200 mW", "2.5119 mW", "0.0589 mW", "1.9953 mW", "0.0933 mW"),
}
_LIMITS = ("high alarm", "low alarm", "high warning", "low warning")


def _module() -> str:
    """What ethtool -m prints of a healthy SFP28."""
    rows = {"Identifier": "0x03 (SFP)", "Vendor name": "SYNTHETIC", "Vendor PN": "EXAMPLE-25G-SR"}
    rows |= {"Optical diagnostics support": "Yes", "Alarm/warning flags implemented": "Yes"}
    for name, (value, *_) in _READINGS.items():
        rows["Receiver signal average optical power" if name == "Laser rx power" else name] = value
    rows |= {f"{name} {limit}": "Off" for name in _READINGS for limit in _LIMITS}
    for name, (_, *limits) in _READINGS.items():
        rows |= {f"{name} {limit} threshold": value for limit, value in zip(_LIMITS, limits, strict=True)}
    return "\n".join(f"\t{name:<41} : {value}" for name, value in rows.items())


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
