"""NICs, NVMe controllers and NVSwitches: captures against their facts, and made-up class trees."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hosttune.discovery.devices import read_nics, read_nvme, read_nvswitches
from hosttune.discovery.pci import read_pci
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.host import Nic, Nvme, NvSwitch, PciDevice

HOSTS = Path(__file__).parents[2] / "hosts"
DERIVED = sorted(path.name.removesuffix(".expected.json") for path in HOSTS.glob("derived/*.expected.json"))
NIC = PciDevice(address="0000:01:00.0", vendor_id="15b3", device_id="1021", class_code="020700")
DISK = PciDevice(address="0000:02:00.0", vendor_id="144d", device_id="a80a", class_code="010802")
SWITCH = PciDevice(address="0000:03:00.0", vendor_id="10de", device_id="22a3", class_code="068000", driver="vfio-pci")


def write(root: Path, path: str, text: str = "") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def link(root: Path, path: str, target: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.symlink_to(target)


def reader_of(root: Path) -> Reader:
    return Reader(Capture(str(root)))


# --- captures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DERIVED)
def test_devices_of_derived_hosts(name: str, host_root: Callable[[str], Path]) -> None:
    facts: dict[str, Any] = json.loads((HOSTS / f"derived/{name}.expected.json").read_text())
    reader = reader_of(host_root(f"derived/{name}"))
    pci = read_pci(reader, ())
    nics = {nic.address: nic for nic in read_nics(reader, pci)}
    assert nics.keys() == facts["nics"].keys()
    for address, nic in facts["nics"].items():
        assert [nics[address].rdma] == (nic["ib"] or [None])
    assert [nvme.address for nvme in read_nvme(reader, pci)] == facts["nvme"]
    assert [switch.address for switch in read_nvswitches(reader, pci)] == facts["nvswitch"]
    assert reader.problems == []


def routes_unread(interface: str, file: str = "/proc/net/route", state: str = "is up") -> str:
    return f"{interface} {state}, and whether it carries a default route is unknown: {file} was not read"


def test_devices_of_a_real_host_with_infiniband_and_an_old_nvme(host_root: Callable[[str], Path]) -> None:
    reader = reader_of(host_root("hwloc/32em64t-2n8c+dax+nvme+mic+dimms"))
    pci = read_pci(reader, ())
    assert read_nics(reader, pci) == (
        Nic(
            address="0000:02:00.0",
            kind="ethernet",
            rate_gbps=1.0,
            interfaces=("eth0",),
            state="up",
            use_unknown=routes_unread("eth0"),
        ),
        Nic(address="0000:02:00.3", kind="ethernet", interfaces=("eth1",), state="down"),
        Nic(
            address="0000:82:00.0",
            kind="infiniband",
            rdma="mlx4_0",
            rate_gbps=56.0,
            interfaces=("ib0",),
            link_layer="InfiniBand",
            state="active",
            use_unknown=routes_unread("ib0"),
        ),
    )
    assert read_nvme(reader, pci) == (Nvme(address="0000:00:02.0", controller="nvme0", namespaces=("nvme0n1",)),)


def test_the_virtio_interface_of_a_guest(host_root: Callable[[str], Path]) -> None:
    reader = reader_of(host_root("h200/vm-h200x4"))
    (nic,) = read_nics(reader, read_pci(reader, ()))
    assert (nic.address, nic.kind, nic.interfaces, nic.rate_gbps) == ("0000:00:03.0", "ethernet", ("eth0",), None)


# --- network -------------------------------------------------------------------------------------------------


def rdma(root: Path, name: str, *ports: tuple[str, str, str], address: str = NIC.address) -> None:
    """An RDMA device with (link layer, state, rate) per port."""
    base = f"sys/devices/pci0000:00/{address}/infiniband/{name}"
    for number, port in enumerate(ports, 1):
        for file, text in zip(("link_layer", "state", "rate"), port, strict=True):
            write(root, f"{base}/ports/{number}/{file}", text)
    link(root, f"sys/class/infiniband/{name}", f"../../devices/pci0000:00/{address}/infiniband/{name}")


def interface(root: Path, name: str, *, address: str = NIC.address, **files: str) -> str:
    base = f"sys/devices/pci0000:00/{address}/net/{name}"
    for file, text in {"operstate": "up", **files}.items():
        write(root, f"{base}/{file}", text)
    link(root, f"sys/class/net/{name}", f"../../devices/pci0000:00/{address}/net/{name}")
    return base


NDR = ("InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)")


def test_infiniband_rate_comes_from_the_active_port(tmp_path: Path) -> None:
    rdma(tmp_path, "mlx5_0", ("InfiniBand", "1: DOWN", "2.5 Gb/sec (1X SDR)"), NDR)
    (nic,) = read_nics(reader_of(tmp_path), (NIC,))
    assert (nic.kind, nic.rdma, nic.rate_gbps, nic.state) == ("infiniband", "mlx5_0", 400.0, "active")


def test_a_port_that_is_down_has_no_rate(tmp_path: Path) -> None:
    rdma(tmp_path, "mlx5_0", ("InfiniBand", "1: DOWN", "10 Gb/sec (4X SDR)"))
    (nic,) = read_nics(reader_of(tmp_path), (NIC,))
    assert (nic.rate_gbps, nic.state) == (None, "down")


@pytest.mark.parametrize("text", ["10 Gb/sec (4X SDR)", "10 Gb/sec (4X)"])
def test_a_speed_that_the_kernel_may_have_no_name_for_is_unknown(tmp_path: Path, text: str) -> None:
    """rate_show: "default to SDR for invalid rates": an XDR port of 800 Gb/s, to an older kernel."""
    rdma(tmp_path, "mlx5_0", ("InfiniBand", "4: ACTIVE", text))
    (nic,) = read_nics(reader_of(tmp_path), (NIC,))
    assert (nic.rate_gbps, nic.state) == (None, "active")


@pytest.mark.parametrize(("speed", "rate"), [("400000", 400.0), ("-1", None)])
def test_the_rate_of_a_roce_port_is_that_of_its_interface(tmp_path: Path, speed: str, rate: float | None) -> None:
    """ib_get_eth_speed names no rate above 100 Gb/s without the number of lanes (bnxt_re, irdma on older kernels)."""
    rdma(tmp_path, "bnxt_re0", ("Ethernet", "4: ACTIVE", "100 Gb/sec (4X EDR)"))
    interface(tmp_path, "ens1f0np0", speed=speed)
    (nic,) = read_nics(reader_of(tmp_path), (NIC,))
    assert (nic.rdma, nic.rate_gbps, nic.state) == ("bnxt_re0", rate, "active")


def test_roce_is_ethernet_with_an_rdma_device(tmp_path: Path) -> None:
    rdma(tmp_path, "mlx5_bond_0", ("Ethernet", "4: ACTIVE", "200 Gb/sec (2X NDR)"))
    interface(tmp_path, "ens1f0np0", speed="200000")
    (nic,) = read_nics(reader_of(tmp_path), (PciDevice(address=NIC.address, class_code="020000"),))
    assert (nic.kind, nic.rdma, nic.link_layer, nic.rate_gbps) == ("ethernet", "mlx5_bond_0", "Ethernet", 200.0)


def test_a_rate_that_makes_no_sense_is_a_problem(tmp_path: Path) -> None:
    rdma(tmp_path, "mlx5_0", ("InfiniBand", "4: ACTIVE", "fast"))
    reader = reader_of(tmp_path)
    assert read_nics(reader, (NIC,))[0].rate_gbps is None
    assert [(problem.what, problem.where) for problem in reader.problems] == [
        ("not a rate", "/sys/class/infiniband/mlx5_0/ports/1/rate")
    ]


def test_a_nic_on_vfio_is_known_by_its_class(tmp_path: Path) -> None:
    devices = (NIC, PciDevice(address="0000:01:00.1", class_code="028000", physfn=NIC.address))
    assert read_nics(reader_of(tmp_path), devices) == (
        Nic(address=NIC.address, kind="infiniband"),
        Nic(address="0000:01:00.1", physfn=NIC.address),
    )


def test_speed_minus_one_of_a_down_interface_is_unknown(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", operstate="down", speed="-1")
    (nic,) = read_nics(reader_of(tmp_path), (NIC,))
    assert (nic.rate_gbps, nic.state, nic.in_use) == (None, "down", None)


ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"


def test_the_default_route_is_seen_through_bond_and_bridge(tmp_path: Path) -> None:
    base = interface(tmp_path, "eth0")
    link(tmp_path, f"{base}/upper_bond0", "../../../../virtual/net/bond0")
    link(tmp_path, f"{base}/master", "../../../../virtual/net/bond0")
    link(tmp_path, "sys/devices/virtual/net/bond0/upper_br0", "../br0")
    link(tmp_path, "sys/class/net/bond0", "../../devices/virtual/net/bond0")
    write(tmp_path, "sys/devices/virtual/net/br0/operstate", "up")
    link(tmp_path, "sys/class/net/br0", "../../devices/virtual/net/br0")
    write(tmp_path, "proc/net/route", f"{ROUTES}br0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0")
    (nic,) = read_nics(reader_of(tmp_path), (NIC,))
    assert nic.in_use == "eth0 carries the default route of br0"


def test_an_address_alone_is_no_use_but_a_bond_is(tmp_path: Path) -> None:
    interface(tmp_path, "ib0")
    base = interface(tmp_path, "eth1", address=DISK.address)
    link(tmp_path, f"{base}/master", "../../../../virtual/net/bond1")
    write(tmp_path, "proc/net/route", f"{ROUTES}ib0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0")
    nics = read_nics(reader_of(tmp_path), (NIC, PciDevice(address=DISK.address, class_code="020000")))
    assert [nic.in_use for nic in nics] == [None, "eth1 belongs to bond1"]
    assert nics[0].busy == "ib0 is up and has routes"


def test_an_interface_that_apply_would_not_take_is_busy(tmp_path: Path) -> None:
    base = interface(tmp_path, "ib0", operstate="up")
    assert read_nics(reader_of(tmp_path), (NIC,))[0].busy is None  # the routes were not recorded
    write(tmp_path, "proc/net/route", ROUTES)
    write(tmp_path, "proc/net/if_inet6", f"{'20010db8':0<32} 02 40 00 80 ib0\n")
    assert read_nics(reader_of(tmp_path), (NIC,))[0].busy == "ib0 is up and has an address"
    write(tmp_path, f"{base}/flags", "0x1002")
    assert read_nics(reader_of(tmp_path), (NIC,))[0].busy is None


ROUTES6 = f"{'0' * 31}1 80 {'0' * 32} 00 {'0' * 32} 00000100 00000001 00000000 00000001 lo"


@pytest.mark.parametrize(
    ("files", "unread"),
    [
        ({}, "/proc/net/route"),
        ({"proc/net/ipv6_route": ROUTES6}, "/proc/net/route"),
        ({"proc/net/route": ""}, "/proc/net/route"),  # the kernel writes a heading
        ({"proc/net/route": ROUTES}, "/proc/net/ipv6_route"),
        ({"proc/net/route": ROUTES, "proc/net/ipv6_route": ROUTES6}, None),
        ({"proc/net/route": ROUTES, "proc/net/ipv6_route": ""}, None),
    ],
)
def test_without_the_routes_it_is_unknown_whether_the_host_uses_an_interface_that_is_up(
    tmp_path: Path, files: Mapping[str, str], unread: str | None
) -> None:
    interface(tmp_path, "eth0", flags="0x1003")
    for path, text in files.items():
        write(tmp_path, path, text)
    reader = reader_of(tmp_path)
    (nic,) = read_nics(reader, (NIC,))
    assert nic.in_use is None
    assert nic.use_unknown == (unread and routes_unread("eth0", unread))
    assert [(one.what, one.where) for one in reader.problems] == ([("routes unknown", unread)] if unread else [])


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"operstate": "up", "flags": "0x1002"}, None),  # down, whatever the link says
        ({"operstate": "down"}, None),
        ({"operstate": "down", "flags": "0x1003"}, "is up"),  # its cable may come back, and its routes stay
        ({"operstate": "unknown"}, "may be up"),
        ({"operstate": ""}, "may be up"),
    ],
)
def test_only_an_interface_that_may_be_up_is_in_doubt(
    tmp_path: Path, files: Mapping[str, str], state: str | None
) -> None:
    interface(tmp_path, "eth0", **files)
    reader = reader_of(tmp_path)
    (nic,) = read_nics(reader, (NIC,))
    assert nic.use_unknown == (state and routes_unread("eth0", state=state))
    assert len(reader.problems) == (state is not None)


def test_a_host_that_is_proven_to_have_no_ipv6_lacks_no_routes(tmp_path: Path) -> None:
    class WithoutIpv6(Capture):
        def lacks(self, path: str) -> bool:
            return path == "/proc/net/ipv6_route"

    interface(tmp_path, "eth0")
    write(tmp_path, "proc/net/route", ROUTES)
    assert read_nics(Reader(WithoutIpv6(str(tmp_path))), (NIC,))[0].use_unknown is None


def test_a_port_of_a_bond_is_in_use_without_the_routes_too(tmp_path: Path) -> None:
    base = interface(tmp_path, "eth0")
    link(tmp_path, f"{base}/master", "../../../../virtual/net/bond0")
    (nic,) = read_nics(reader_of(tmp_path), (NIC,))
    assert (nic.in_use, nic.use_unknown) == ("eth0 belongs to bond0", None)


def test_an_ipv6_default_route_counts(tmp_path: Path) -> None:
    interface(tmp_path, "eth0")
    zero = "0" * 32
    lines = [f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000001 00200200 {name}" for name in ("lo", "eth0")]
    write(tmp_path, "proc/net/ipv6_route", "\n".join(lines))
    assert read_nics(reader_of(tmp_path), (NIC,))[0].in_use == "eth0 carries the default route"


# --- NVMe ----------------------------------------------------------------------------------------------------


def nvme(root: Path, *entries: str, model: str = "SAMSUNG MZQL2 ") -> None:
    """An NVMe controller nvme0 with these entries in its folder, and one partition of namespace nvme0n1."""
    base = f"sys/bus/pci/devices/{DISK.address}/nvme/nvme0"
    write(root, f"{base}/model", model)
    for entry in entries:
        write(root, f"{base}/{entry}/size", "1")
    write(root, "sys/class/block/nvme0n1/nvme0n1p1/partition", "1")
    write(root, "sys/class/block/nvme0n1p1/dev", "259:2")


def test_namespaces_and_model_of_a_free_drive(tmp_path: Path) -> None:
    nvme(tmp_path, "nvme0n1", "nvme0n2", "hwmon3")
    write(tmp_path, "proc/self/mounts", "/dev/nvme1n1p1 / ext4 rw 0 0")
    reader = reader_of(tmp_path)
    assert read_nvme(reader, (DISK, NIC)) == (
        Nvme(address=DISK.address, model="SAMSUNG MZQL2", controller="nvme0", namespaces=("nvme0n1", "nvme0n2")),
    )
    assert reader.problems == []


def test_a_path_of_a_multipath_namespace_means_its_head(tmp_path: Path) -> None:
    nvme(tmp_path, "nvme0c3n2")
    write(tmp_path, "proc/self/mounts", "proc /proc proc rw 0 0")
    assert read_nvme(reader_of(tmp_path), (DISK,))[0].namespaces == ("nvme0n2",)


@pytest.mark.parametrize(
    ("file", "text", "use"),
    [
        ("proc/self/mounts", "/dev/nvme0n1p1 /boot ext4 rw 0 0", "nvme0n1p1 mounted on /boot"),
        ("proc/mounts", "/dev/nvme0n1 /data xfs rw 0 0", "nvme0n1 mounted on /data"),
        ("proc/self/mountinfo", "22 1 259:2 / / rw - ext4 /dev/root rw", "nvme0n1p1 mounted on /"),
        ("proc/self/mounts", "/dev/nvme0n1p7 /odd ext4 rw 0 0", "nvme0n1p7 mounted on /odd"),
    ],
)
def test_a_mounted_drive_is_in_use(tmp_path: Path, file: str, text: str, use: str) -> None:
    nvme(tmp_path, "nvme0n1")
    write(tmp_path, file, text)
    assert read_nvme(reader_of(tmp_path), (DISK,))[0].in_use == use


def test_swap_and_holders_are_uses(tmp_path: Path) -> None:
    nvme(tmp_path, "nvme0n1")
    write(tmp_path, "proc/self/mounts", "/dev/mapper/vg-root / ext4 rw 0 0")
    write(tmp_path, "proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p1 partition 1 0 -2")
    write(tmp_path, "sys/class/block/nvme0n1p1/holders/dm-0/uevent")
    assert read_nvme(reader_of(tmp_path), (DISK,))[0].in_use == "nvme0n1p1 swap; nvme0n1p1 held by dm-0"


def test_a_drive_with_a_longer_name_is_another(tmp_path: Path) -> None:
    nvme(tmp_path, "nvme0n1")
    write(tmp_path, "proc/self/mounts", "/dev/nvme0n10 /data ext4 rw 0 0")
    assert read_nvme(reader_of(tmp_path), (DISK,))[0].in_use is None


def test_unknown_mounts_are_a_problem(tmp_path: Path) -> None:
    nvme(tmp_path, "nvme0n1")
    reader = reader_of(tmp_path)
    (drive,) = read_nvme(reader, (DISK,))
    assert [(problem.what, problem.where) for problem in reader.problems] == [("mounts unknown", "/proc/self/mounts")]
    assert drive.use_unknown == "whether nvme0n1 is mounted is unknown: /proc/self/mounts was not read"
    write(tmp_path, "proc/self/mountinfo", "30 1 8:2 / / rw - ext4 /dev/sda2 rw")
    assert read_nvme(reader_of(tmp_path), (DISK,))[0].use_unknown is None


def test_a_drive_on_vfio_has_an_address_only(tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    assert read_nvme(reader, (DISK,)) == (Nvme(address=DISK.address),)
    assert reader.problems == []


# --- NVSwitch ------------------------------------------------------------------------------------------------


def test_nvswitches_by_id_and_by_name_but_no_other_nvidia_bridge(tmp_path: Path) -> None:
    devices = (
        SWITCH,
        PciDevice(address="0000:04:00.0", vendor_id="10de", device_id="0057", class_code="068000", device_name="CK804"),
        PciDevice(
            address="0000:05:00.0", vendor_id="10de", device_id="9999", class_code="068000", device_name="New NVSwitch"
        ),
        PciDevice(address="0000:06:00.0", vendor_id="1000", device_id="22a3", class_code="068000"),
    )
    assert read_nvswitches(reader_of(tmp_path), devices) == (
        NvSwitch(address="0000:03:00.0", model="H100/H200 NVSwitch", driver="vfio-pci"),
        NvSwitch(address="0000:05:00.0", model="New NVSwitch"),
    )
