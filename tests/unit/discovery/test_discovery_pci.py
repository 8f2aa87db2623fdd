"""The PCI tree: real captures against their facts, and small made-up trees for what captures do not show."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pcitrees import CARD, PORT, Tree, discover, told

from hosttune.errors import BadInput
from hosttune.model.host import Bar, Link, LinkEnd, NumaNode, PciDevice

HOSTS = Path(__file__).parents[2] / "hosts"
DERIVED = sorted(path.name.removesuffix(".expected.json") for path in HOSTS.glob("derived/*.expected.json"))
HWLOC = sorted(
    path.name.removesuffix(".expected.json")
    for path in HOSTS.glob("hwloc/*.expected.json")
    if json.loads(path.read_text())["sysfs_inventory"]["pci"]
)
XE9680 = "derived/xe9680-8xh100-lspci"
HostRoot = Callable[[str], Path]


def expected(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((HOSTS / f"{name}.expected.json").read_text())
    return facts


def nodes_of(root: Path) -> tuple[NumaNode, ...]:
    base = root / "sys/devices/system/node"
    return tuple(
        NumaNode(id=int(path.name[4:]), cpus=(path / "cpulist").read_text().strip())
        for path in sorted(base.glob("node[0-9]*"))
        if (path / "cpulist").exists()
    )


def bridges_above(pci: dict[str, PciDevice], address: str) -> list[str]:
    chain: list[str] = []
    parent = pci[address].parent
    while parent is not None:
        chain.append(parent)
        parent = pci[parent].parent
    return chain


# --- captures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DERIVED)
def test_derived_tree(name: str, host_root: HostRoot) -> None:
    facts = expected(f"derived/{name}")
    pci, reader = discover(host_root(f"derived/{name}"), nodes_of(host_root(f"derived/{name}")))
    assert len(pci) == facts["pci_total"]
    assert reader.problems == []
    for address, gpu in facts["gpus"].items():
        device = pci[address]
        assert (device.vendor_id, device.device_id) == (gpu["vendor"], gpu["device"])
        assert (device.numa_node, device.numa_source) == (gpu["numa"], "device")
        assert bridges_above(pci, address) == gpu["bridges"]
        assert device.link is not None
        assert [device.link.speed_gts, device.link.width] == [float(gpu["link"][0]), gpu["link"][1]]
        assert [device.link.max_speed_gts, device.link.max_width] == [float(gpu["link_max"][0]), gpu["link_max"][1]]
        assert device.link.state == "full"
        assert device.iommu_group == gpu["iommu_group"]
    for address, nic in facts["nics"].items():
        assert (pci[address].vendor_id, pci[address].numa_node) == (nic["vendor"], nic["numa"])
        assert bridges_above(pci, address) == nic["bridges"]


@pytest.mark.parametrize("name", HWLOC)
def test_hwloc_tree(name: str, host_root: HostRoot) -> None:
    facts = expected(f"hwloc/{name}")["sysfs_inventory"]
    root = host_root(f"hwloc/{name}")
    pci, _ = discover(root, nodes_of(root))
    assert len(pci) == facts["pci"]
    assert sorted({address.split(":")[0] for address in pci}, key=lambda d: int(d, 16)) == facts["domains"]
    no_node = [device for device in pci.values() if device.numa_source != "device"]
    # nvidiagpunumanodes keeps no numa_node file at all
    assert len(no_node) == (facts["numa_minus1"] or facts["pci"])
    displays = {device.address: device for device in pci.values() if (device.class_code or "").startswith("03")}
    assert {address: _ox(displays[address].vendor_id) for address in displays} == {g[0]: g[1] for g in facts["gpus"]}


def _ox(digits: str | None) -> str | None:
    return None if digits is None else f"0x{digits}"


def test_local_cpu_list_of_part_of_one_node_places_a_device(host_root: HostRoot) -> None:
    """One of 93 functions without a node lists CPUs 0-3 of node 0; the others list all CPUs, which says nothing."""
    root = host_root("hwloc/32em64t-2n8c+dax+nvme+mic+dimms")
    pci, _ = discover(root, nodes_of(root))
    assert Counter(device.numa_source for device in pci.values()) == {"unknown": 92, "device": 44, "firmware": 1}
    assert [(d.local_cpus, d.numa_node) for d in pci.values() if d.numa_source == "firmware"] == [("0-3", 0)]


def test_a_mask_of_local_cpus_places_where_there_is_no_list(host_root: HostRoot) -> None:
    """POWER9: six GPUs, of which the capture keeps neither `numa_node` nor `local_cpulist`."""
    root = host_root("hwloc/nvidiagpunumanodes")
    pci, _ = discover(root, nodes_of(root))
    gpus = [device for device in pci.values() if device.is_display]
    assert [(gpu.numa_node, gpu.numa_source) for gpu in gpus] == [(n, "firmware") for n in (0, 0, 0, 8, 8, 8)]
    assert {(gpu.numa_node, gpu.local_cpus) for gpu in gpus} == {(0, "0-15"), (8, "88-103")}


def test_domains_of_32_bits_follow_and_sit_on_root_buses(host_root: HostRoot) -> None:
    pci, _ = discover(host_root("hwloc/2pa-pcidomain32bits"))
    assert [address for address in pci if address.startswith("10000:")] == list(pci)[-2:]
    assert all(device.parent is None for device in pci.values())


@pytest.mark.parametrize(
    ("name", "total", "without_node"),
    [("linux-amd64-8581cf3a529e5d8b97ea876eade2f60d", 82, 72), ("linux-amd64-accel-nvidia", 29, 29)],
)
def test_ghw_tree(name: str, total: int, without_node: int, host_root: HostRoot) -> None:
    pci, _ = discover(host_root(f"ghw/{name}"))
    assert len(pci) == total
    assert [device.numa_node for device in pci.values()].count(None) == without_node


@pytest.mark.parametrize("gpus", [1, 4])
def test_h200_guest(gpus: int, host_root: HostRoot) -> None:
    """A flat guest: every function on bus 00 without a node; the link's other end is not visible, BARs are measured."""
    root = host_root(f"h200/vm-h200x{gpus}")
    pci, _ = discover(root, nodes_of(root))
    assert {(device.parent, device.numa_node, device.numa_source) for device in pci.values()} == {
        (None, None, "unknown")
    }
    cards = [device for device in pci.values() if device.is_display]
    assert [(card.vendor_id, card.device_id) for card in cards] == [("10de", "2335")] * gpus
    for card in cards:
        assert card.link is not None
        assert [told.read.rpartition("/")[2] for told in card.link.told or ()][-1] == "config"
        assert msgspec.structs.replace(card.link, told=None) == Link(
            speed_gts=32.0,
            width=16,
            max_speed_gts=32.0,
            max_width=16,
            state="full",
            why="runs at the device's most; no port above: the other end is not visible",
        )
        assert card.bars == tuple(
            Bar(index=index, size_bytes=size << 20, prefetchable=True, is_64bit=True)
            for index, size in ((0, 16), (2, 262144), (4, 32))
        )
        assert (card.iommu_group, card.driver, card.power_state, card.runtime_status) == (
            *(None, "nvidia", "D0"),
            "active",
        )
        assert card.irqs is not None
        assert len(card.irqs) == 8


# --- the HGX board: links and ACS ----------------------------------------------------------------------------


def test_no_link_of_the_hgx_board_is_a_fault(host_root: HostRoot) -> None:
    """lspci marks 16 lines downgraded; all 16 are by design once both ends (and function 0) are asked."""
    pci, _ = discover(host_root(XE9680))
    states = Counter(device.link.state for device in pci.values() if device.link is not None)
    assert states == {"full": 86, "by-design": 16}
    nvme_ports = {bridges_above(pci, address)[0] for address in expected(XE9680)["nvme"]}
    by_design = {device.address for device in pci.values() if device.link and device.link.state == "by-design"}
    assert by_design == nvme_ports | {
        *("0000:17:03.0", "0000:99:03.0"),  # Gen4 ConnectX-6 Dx in Gen5 slots
        *("0000:00:0c.0", "0000:00:0e.0", "0000:01:00.0", "0000:01:00.1"),  # PCH ports, BCM5720
        *("0000:80:01.0", "0000:81:00.1"),  # the switch in front of the NVSwitches
    }


def test_x2_link_to_the_management_switch_says_why(host_root: HostRoot) -> None:
    pci, _ = discover(host_root(XE9680))
    port = pci["0000:80:01.0"].link
    assert port is not None
    assert (port.width, port.max_width) == (2, 16)
    assert (port.state, port.why) == ("by-design", "0000:81:00.0 below can do 16 GT/s x2")
    second = pci["0000:81:00.1"].link
    assert second is not None
    assert (second.state, second.why) == ("by-design", "the slot can do 16 GT/s x2")


def test_both_ends_of_a_gpu_link_are_told(host_root: HostRoot) -> None:
    pci, _ = discover(host_root(XE9680))
    link = pci["0000:19:00.0"].link
    assert link is not None
    assert link.upstream == LinkEnd(address="0000:17:01.0", speed_gts=32.0, width=16, max_speed_gts=32.0, max_width=16)


def test_acs_of_the_hgx_board(host_root: HostRoot) -> None:
    """Request redirect is on for the PMC switch's 4 downstream ports and off on all 42 PEX890xx ports.

    Of these, the 34 downstream ports could; of the 8 upstream ports no extended space was captured.
    """
    pci, _ = discover(host_root(XE9680))
    redirecting = [d.address for d in pci.values() if d.acs is not None and "ReqRedir" in d.acs.enabled]
    assert redirecting == ["0000:82:00.0", "0000:82:01.0", "0000:82:02.0", "0000:82:03.0"]
    ports = [d for d in pci.values() if (d.vendor_id, d.device_id) == ("1000", "c030") and d.is_bridge]
    assert Counter((d.port_type, d.acs and "ReqRedir" in d.acs.capable) for d in ports) == {
        ("downstream-port", True): 34,
        ("upstream-port", None): 8,
    }


def test_a_gpu_of_the_hgx_board_in_full(host_root: HostRoot) -> None:
    pci, _ = discover(host_root(XE9680))
    card = pci["0000:19:00.0"]
    assert (card.subsystem_vendor_id, card.subsystem_device_id, card.revision) == ("10de", "16c1", "a1")
    assert [(bar.index, bar.size_bytes) for bar in card.bars or ()] == [(0, 16 << 20), (2, 128 << 30), (4, 32 << 20)]
    assert (card.sriov_total_vfs, card.sriov_vfs, card.virtfns, card.port_type) == (32, 0, (), "endpoint")


# --- small trees ---------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_the_bridge_above_places_a_device_without_a_node(tree: Tree) -> None:
    tree.port(PORT, numa_node="1")
    tree.port(f"{PORT}/0000:01:00.0", numa_node="-1")
    tree.add(f"{PORT}/0000:01:00.0/0000:02:00.0", numa_node="-1", local_cpulist="0-7")
    pci, reader = tree.discover()
    assert (pci["0000:02:00.0"].numa_node, pci["0000:02:00.0"].numa_source) == (1, "bridge")
    assert reader.problems == []


def test_the_own_node_wins_over_a_contradicting_bridge(tree: Tree) -> None:
    tree.port(PORT, numa_node="1")
    tree.add(CARD, numa_node="0")
    pci, reader = tree.discover()
    assert (pci["0000:01:00.0"].numa_node, pci["0000:01:00.0"].numa_source) == (0, "device")
    assert told(reader) == [("NUMA node contradicts the bridge above", "/sys/bus/pci/devices/0000:01:00.0/numa_node")]


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("numa_node", None, (None, "unknown")),
        ("numa_node", "", (None, "unknown")),
        ("numa_node", "NaN", (None, "unknown")),
        ("numa_node", "-7", (None, "unknown")),
        ("numa_node", "+0", (None, "unknown")),
        ("numa_node", "0_0", (None, "unknown")),
        ("numa_node", "-1", (1, "bridge")),
        ("local_cpulist", None, (0, "device")),
    ],
)
def test_what_was_lost_of_a_node_is_not_filled_in(
    tree: Tree, file: str, text: str | None, place: tuple[int | None, str]
) -> None:
    files = {"numa_node": "0", "local_cpulist": "0-3"}
    tree.add("pci0000:00/0000:00:01.0", numa_node="1", local_cpulist="4-7")
    files = {**files, file: text} if text is not None else {name: files[name] for name in files if name != file}
    tree.add("pci0000:00/0000:00:01.0/0000:01:00.0", **files)
    pci, reader = tree.discover()
    device = pci["0000:01:00.0"]
    assert (device.numa_node, device.numa_source) == place
    noted = {problem.what for problem in reader.problems if problem.what.startswith("NUMA node not")}
    lost = "NUMA node not read" if place == (None, "unknown") else "NUMA node not compared"
    assert noted == (set() if text == "-1" else {lost})


def test_a_bridge_that_lost_its_node_leaves_the_node_below_uncompared(tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:01.0", local_cpulist="0-3")
    tree.add("pci0000:00/0000:00:01.0/0000:01:00.0", numa_node="1", local_cpulist="4-7")
    pci, reader = tree.discover()
    assert (pci["0000:01:00.0"].numa_node, pci["0000:01:00.0"].numa_source) == (1, "device")
    assert ("NUMA node not compared", "/sys/bus/pci/devices/0000:01:00.0/numa_node") in told(reader)


def test_the_own_node_wins_over_a_contradicting_local_list(tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:02.0", numa_node="0", local_cpulist="4-7")
    pci, reader = tree.discover()
    assert pci["0000:00:02.0"].numa_node == 0
    assert [(problem.what, problem.why) for problem in reader.problems] == [
        (
            "NUMA node contradicts the local CPU list",
            "node 0 was taken, but local_cpulist 4-7 lies on node 1",
        )
    ]


@pytest.mark.parametrize(
    ("local", "place"),
    [("4-5", (1, "firmware")), ("0-7", (None, "unknown")), ("3-4", (None, "unknown")), ("", (None, "unknown"))],
)
def test_firmware_places_by_part_of_one_node_only(tree: Tree, local: str, place: tuple[int | None, str]) -> None:
    tree.add("pci0000:00/0000:00:02.0", numa_node="-1", local_cpulist=local)
    device = tree.discover()[0]["0000:00:02.0"]
    assert (device.numa_node, device.numa_source) == place


def test_on_a_host_of_one_node_all_cpus_still_say_nothing(tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:02.0", numa_node="-1", local_cpulist="0-7")
    device = tree.discover((NumaNode(id=0, cpus="0-7"),))[0]["0000:00:02.0"]
    assert (device.numa_node, device.numa_source) == (None, "unknown")


def test_a_node_that_does_not_exist_is_a_problem(tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:02.0", numa_node="5")
    assert told(tree.discover()[1]) == [("NUMA node does not exist", "/sys/bus/pci/devices/0000:00:02.0/numa_node")]


def test_a_vmd_domain_has_a_root_bus_and_its_controllers_node(tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:05.5", **{"class": "0x010400"}, numa_node="1")
    tree.add("pci0000:00/0000:00:05.5/pci10000:00/10000:00:02.0", **{"class": "0x010802"}, numa_node="-1")
    drive = tree.discover()[0]["10000:00:02.0"]
    assert (drive.parent, drive.numa_node, drive.numa_source) == (None, 1, "bridge")


def test_iommu_groups_are_numbers_with_their_type(tree: Tree) -> None:
    groups = tree.root / "sys/kernel/iommu_groups"
    (groups / "42").mkdir(parents=True)
    (groups / "42/type").write_text("DMA-FQ\n")
    good = tree.add("pci0000:00/0000:00:02.0")
    (good / "iommu_group").symlink_to("../../../kernel/iommu_groups/42")
    bad = tree.add("pci0000:00/0000:00:03.0")
    (bad / "iommu_group").symlink_to("../../../kernel/iommu_groups/odd")
    pci, reader = tree.discover()
    assert (pci["0000:00:02.0"].iommu_group, pci["0000:00:02.0"].iommu_group_type) == (42, "DMA-FQ")
    assert pci["0000:00:03.0"].iommu_group is None
    assert told(reader) == [("no IOMMU group number", "/sys/devices/pci0000:00/0000:00:03.0/iommu_group")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0x00000000fee00000 0x00000000feefffff msi\n", ()),
        ("0x0000000000000000 0x0000000000ffffff direct-relaxable\n0x00000000fee00000 0x00000000feefffff msi\n", ()),
        (
            "0x00000000bdf83000 0x00000000bdf84fff direct\n0x00000000fee00000 0x00000000feefffff msi\n",
            ("0x00000000bdf83000-0x00000000bdf84fff",),
        ),
        ("", None),  # each group has at least the region of interrupts
        ("0x00000000bdf83000 0x0000\n", None),
        (None, None),
    ],
)
def test_what_firmware_keeps_for_a_group(tree: Tree, text: str | None, expected: tuple[str, ...] | None) -> None:
    group = tree.root / "sys/kernel/iommu_groups/42"
    group.mkdir(parents=True)
    if text is not None:
        (group / "reserved_regions").write_text(text)
    (tree.add("pci0000:00/0000:00:02.0") / "iommu_group").symlink_to("../../../kernel/iommu_groups/42")
    assert tree.discover()[0]["0000:00:02.0"].iommu_direct == expected


EMPTY = "0x0000000000000000 0x0000000000000000 0x0000000000000000"


@pytest.mark.parametrize(
    ("registers", "second", "expected"),
    [
        ({}, EMPTY, ()),
        ({1: 0x0C}, EMPTY, (1,)),  # reset_resource() leaves zeros
        ({1: 0x0C, 2: 0x2004}, EMPTY, (1,)),  # its upper half is no BAR
        ({1: 0x0C}, "0x0000380000000000 0x0000383fffffffff 0x000000000014220c", ()),
        ({}, "0x0000000000000000 0x0000001fffffffff 0x000000002014220c", (1,)),  # IORESOURCE_UNSET
        ({}, "0x0000000000000000 0x0000000000ffffff 0x0000000020040200", (1,)),  # the same of 32-bit memory
        ({}, "0x0000000000000000 0x000000000000007f 0x0000000020040101", ()),  # I/O ports: nobody needs them
    ],
)
def test_bars_that_got_no_address(
    tree: Tree, registers: dict[int, int], second: str, expected: tuple[int, ...]
) -> None:
    config = bytearray(b"\xde\x10\x35\x23" + bytes(60))
    for index, value in registers.items():
        config[0x10 + 4 * index : 0x14 + 4 * index] = value.to_bytes(4, "little")
    lines = ["0x0000000091000000 0x0000000091ffffff 0x0000000000040200", second, *[EMPTY] * 4]
    tree.add("pci0000:00/0000:00:02.0", resource="\n".join(lines), config=bytes(config))
    device = tree.discover()[0]["0000:00:02.0"]
    assert device.unassigned_bars == expected
    assert [bar.index for bar in device.bars or ()] == ([0, 1] if second.startswith("0x000038") else [0])


def test_bars_are_sized_from_memory_lines_only(tree: Tree) -> None:
    lines = [
        "0x0000000091000000 0x0000000091ffffff 0x0000000000040200",  # 16 MiB of 32-bit memory
        "0x0000000000000000 0x0000000000000000 0x0000000000000000",
        "0x0000380000000000 0x0000383fffffffff 0x000000000014220c",  # 256 GiB, 64-bit prefetchable
        "0x0000000000000000 0x0000000000000000 0x0000000000000000",
        "0x0000000000003000 0x000000000000307f 0x0000000000040101",  # I/O ports
        "0x0000000000000000 0x0000000000000000 0x0000000000000000",
        "0x0000000092000000 0x000000009207ffff 0x0000000000046200",  # ROM
    ]
    tree.add("pci0000:00/0000:00:02.0", resource="\n".join(lines))
    assert tree.discover()[0]["0000:00:02.0"].bars == (
        Bar(index=0, size_bytes=16 << 20, prefetchable=False, is_64bit=False),
        Bar(index=2, size_bytes=256 << 30, prefetchable=True, is_64bit=True),
    )


def test_no_resource_file_leaves_bars_unknown_and_garbage_is_a_problem(tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:02.0")
    tree.add("pci0000:00/0000:00:03.0", resource="no regions here")
    pci, reader = tree.discover()
    assert [device.bars for device in pci.values()] == [None, None]
    assert told(reader) == [("not a list of regions", "/sys/devices/pci0000:00/0000:00:03.0/resource")]


def test_interrupts_with_where_they_may_and_do_go(tree: Tree) -> None:
    folder = tree.add("pci0000:00/0000:00:02.0", irq="16", msi_irqs__140="msix", msi_irqs__45="msix")
    assert folder.is_dir()
    for number, files in {45: {"smp": "0-3", "effective": "2"}, 140: {"smp": "4-7"}}.items():
        for kind, content in files.items():
            path = tree.root / f"proc/irq/{number}/{kind}_affinity{'_list'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
    tree.add("pci0000:00/0000:00:1f.0", **{"class": "0x060100"}, irq="9")
    pci, _ = tree.discover()
    irqs = pci["0000:00:02.0"].irqs
    assert irqs is not None
    assert [(irq.irq, irq.affinity, irq.effective) for irq in irqs] == [(45, "0-3", "2"), (140, "4-7", None)]
    assert pci["0000:00:1f.0"].irqs is None


def test_power_reset_override_and_boot_display(tree: Tree) -> None:
    tree.add(
        "pci0000:00/0000:00:02.0", boot_vga="1", driver_override="(null)", reset_method="flr bus", power_state="D0"
    )
    tree.add("pci0000:00/0000:00:03.0", boot_vga="0", driver_override="vfio-pci", reset_method="")
    tree.add("pci0000:00/0000:00:04.0")
    pci, _ = tree.discover()
    assert [
        (device.boot_display, device.driver_override, device.reset_methods, device.power_state)
        for device in pci.values()
    ] == [(True, None, ("flr", "bus"), "D0"), (False, "vfio-pci", (), None), (None, None, None, None)]


def test_an_unreadable_file_is_a_problem_and_not_a_zero(tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:02.0", numa_node="-1")
    marker = tree.root / ".hosttune/unreadable"
    marker.parent.mkdir()
    marker.write_text("/sys/devices/pci0000:00/0000:00:02.0/numa_node\tInput/output error\n")
    pci, reader = tree.discover()
    assert pci["0000:00:02.0"].numa_source == "unknown"
    assert told(reader) == [
        ("unreadable", "/sys/devices/pci0000:00/0000:00:02.0/numa_node"),
        ("NUMA node not read", "/sys/bus/pci/devices/0000:00:02.0/numa_node"),
    ]


def test_a_special_file_in_a_capture_is_refused(tree: Tree) -> None:
    folder = tree.add("pci0000:00/0000:00:02.0")
    os.mkfifo(folder / "numa_node")
    with pytest.raises(BadInput, match="numa_node is a special file"):
        tree.discover()


def test_a_name_that_is_no_address_is_left_out_and_told(tree: Tree) -> None:
    tree.add("pci0000:00/nonsense")
    pci, reader = tree.discover()
    assert pci == {}
    assert told(reader) == [("not a PCI address", "/sys/bus/pci/devices/nonsense")]


@pytest.mark.parametrize("name", ["0000:00:40.0", "00000000:00:01.0", "0000:00:01.8", "0000:00:01.0A"])
def test_a_directory_that_is_no_canonical_address_is_left_out(name: str, tree: Tree) -> None:
    """Two names for one function would be two functions."""
    tree.add("pci0000:00/0000:00:01.0")
    tree.add(f"pci0000:00/{name}")
    pci, reader = tree.discover()
    assert list(pci) == ["0000:00:01.0"]
    assert told(reader) == [("not a PCI address", f"/sys/bus/pci/devices/{name}")]


@pytest.mark.parametrize(
    ("text", "local"), [("0-3", "0-3"), ("(null)", None), ("0-3,,5", "0-3,5"), ("9" * 5000, None), ("x", None)]
)
def test_the_document_holds_local_cpus_that_are_a_list(text: str, local: str | None, tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:01.0", numa_node="0", local_cpulist=text)
    pci, reader = tree.discover()
    assert pci["0000:00:01.0"].local_cpus == local
    bad = ("not a CPU list", "/sys/devices/pci0000:00/0000:00:01.0/local_cpulist")
    assert told(reader) == {"9": [bad], "x": [bad]}.get(text[0], [])


@pytest.mark.parametrize("number", ["-1", "18446744073709551615"])
def test_an_interrupt_that_cannot_be_is_unknown(number: str, tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:01.0", irq=number)
    pci, reader = tree.discover()
    assert pci["0000:00:01.0"].irqs is None
    assert told(reader) == [("not a count", "/sys/devices/pci0000:00/0000:00:01.0/irq")]


def test_sysfs_ids_go_before_the_header(tree: Tree) -> None:
    header = bytearray(64)
    header[0:4] = bytes.fromhex("de103523")
    header[9:12] = bytes.fromhex("000203")
    tree.add("pci0000:00/0000:00:02.0", config=bytes(header), device="0x2330")
    assert tree.discover()[0]["0000:00:02.0"].device_id == "2330"
