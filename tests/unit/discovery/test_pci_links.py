"""Links are judged by both ends: degraded, by design, idle, full or unknown, and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pcitrees import CARD, PORT, TWO_NODES, Tree, link

from hosttune.discovery.pci import judged_links
from hosttune.inventory.pcielink import link_of, narrowest, path
from hosttune.machine.reader import Reader
from hosttune.model.gpu import Gpu
from hosttune.model.host import Host, RunningGuest
from hosttune.predicting.paths import path_between


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_slower_link_than_both_ends_can_is_degraded(tree: Tree) -> None:
    tree.port(PORT, **link((32.0, 8), (32.0, 16)))
    tree.add(CARD, **link((32.0, 8), (32.0, 16)), power_state="D0")
    pci, _ = tree.discover()
    for address in ("0000:01:00.0", "0000:00:01.0"):
        found = pci[address].link
        assert found is not None
        assert (found.state, found.why) == (
            "degraded",
            "32 GT/s x8 of 32 GT/s x16, which both ends (0000:01:00.0, 0000:00:01.0) can do",
        )


def test_a_degraded_link_is_one_problem(tree: Tree) -> None:
    """Not a second one for the port above, for another function of the slot, nor for a virtual function."""
    slow = link((32.0, 8), (32.0, 16))
    tree.port(PORT, **slow)
    card = tree.add(CARD, **slow, power_state="D0")
    tree.add(f"{PORT}/0000:01:00.1", **slow, power_state="D0")
    virtual = tree.add(f"{PORT}/0000:01:00.2", **slow, power_state="D0")
    (virtual / "physfn").symlink_to(os.path.relpath(card, virtual))
    tree.port("pci0000:00/0000:00:02.0", **link((32.0, 16), (32.0, 16)))
    tree.add("pci0000:00/0000:00:02.0/0000:02:00.0", **link((32.0, 16), (32.0, 16)), power_state="D0")
    pci, reader = tree.discover()
    assert [address for address, device in pci.items() if device.link and device.link.state == "degraded"] == [
        "0000:00:01.0",
        "0000:01:00.0",
        "0000:01:00.1",
        "0000:01:00.2",
    ]
    assert [(problem.what, problem.where, problem.why) for problem in reader.problems] == [
        (
            "degraded PCIe link",
            "/sys/bus/pci/devices/0000:01:00.0",
            "32 GT/s x8 of 32 GT/s x16, which both ends (0000:01:00.0, 0000:00:01.0) can do",
        )
    ]


def test_discovery_judges_a_link_with_all_that_the_host_tells(tree: Tree) -> None:
    """The driver of a guest may slow its GPU's idle link; in a guest the port is no real end."""
    tree.port(PORT, **link((32.0, 16), (32.0, 16)))
    folder = tree.add(CARD, **link((2.5, 16), (32.0, 16)), power_state="D0", power__runtime_status="active")
    (folder / "driver").symlink_to("../../../../bus/pci/drivers/vfio-pci")
    pci, reader = tree.discover()
    card = pci["0000:01:00.0"]
    assert card.link is not None
    assert card.link.state == "degraded"
    guest = RunningGuest(name="alice", state="running", devices=(card.address,), vcpus=2)
    functions = tuple(pci.values())
    in_guest, inside = Host(pci=functions, guests=(guest,)), Host(pci=functions, hypervisor=True)
    for host, state in ((in_guest, "idle"), (inside, "unknown")):
        again = Reader(reader.system)
        judged = {one.address: one.link for one in judged_links(again, host.index)}[card.address]
        assert (judged and judged.state, again.problems) == (state, [])


def test_a_narrower_slot_is_by_design(tree: Tree) -> None:
    tree.port(PORT, **link((16.0, 8), (16.0, 8)))
    tree.add(CARD, **link((16.0, 8), (32.0, 16)))
    found = tree.discover()[0]["0000:01:00.0"].link
    assert found is not None
    assert (found.state, found.why) == ("by-design", "0000:00:01.0 above can do 16 GT/s x8")


@pytest.mark.parametrize(
    ("driver", "runtime", "width", "state"),
    [
        ("nvidia", "active", 16, "idle"),
        ("nvidia", "active", 8, "degraded"),
        ("vfio-pci", "suspended", 16, "idle"),
        ("vfio-pci", "active", 16, "degraded"),
        ("mlx5_core", "active", 16, "degraded"),
    ],
)
def test_only_a_resting_device_may_be_slow(tree: Tree, driver: str, runtime: str, width: int, state: str) -> None:
    tree.port(PORT, **link((2.5, width), (32.0, 16)))
    folder = tree.add(CARD, **link((2.5, width), (32.0, 16)), power_state="D0", power__runtime_status=runtime)
    (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    device = tree.discover()[0]["0000:01:00.0"]
    assert device.link is not None
    assert (device.driver, device.link.state) == (driver, state)


@pytest.mark.parametrize(
    ("power", "now", "state"),
    [
        ("D3hot", (32.0, 16), "full"),
        ("D3hot", (2.5, 16), "idle"),  # saving power, perhaps
        ("D3hot", (32.0, 8), "degraded"),  # no power state takes lanes away
        ("D3hot", (2.5, 8), "degraded"),
        ("D3cold", (32.0, 16), "unknown"),
    ],
)
def test_a_device_without_power_says_nothing_and_one_in_d3hot_its_width(
    tree: Tree, power: str, now: tuple[float, int], state: str
) -> None:
    tree.port(PORT, **link(now, (32.0, 16)))
    tree.add(CARD, **link(now, (32.0, 16)), power_state=power, power__runtime_status="suspended")
    found = tree.discover()[0]["0000:01:00.0"].link
    assert found is not None
    assert (found.state, power in (found.why or "")) == (state, state in ("idle", "unknown"))


@pytest.mark.parametrize(
    ("vendor", "driver", "width", "state"),
    [
        ("0x1002", "amdgpu", 16, "idle"),
        ("0x1002", "amdgpu", 8, "degraded"),
        ("0x1000", "amdgpu", 16, "degraded"),  # a switch of the host: its uplink does not rest with a GPU
        ("0x1002", "vfio-pci", 16, "degraded"),
    ],
)
def test_the_slot_of_a_card_with_a_switch_is_slow_while_its_gpu_rests(
    tree: Tree, vendor: str, driver: str, width: int, state: str
) -> None:
    up, down = f"{PORT}/0000:01:00.0", f"{PORT}/0000:01:00.0/0000:02:00.0"
    tree.port(PORT, **link((2.5, width), (16.0, 16)))
    tree.port(up, vendor=vendor, **link((2.5, width), (16.0, 16)))
    tree.port(down, vendor=vendor, **link((16.0, 16), (16.0, 16)))
    card = tree.add(f"{down}/0000:03:00.0", vendor="0x1002", **link((16.0, 16), (16.0, 16)), power_state="D0")
    (card / "driver").symlink_to(f"../../../../../../bus/pci/drivers/{driver}")
    devices = tree.discover()[0]
    found = {address: device.link.state for address, device in devices.items() if device.link}
    assert (found["0000:01:00.0"], found["0000:03:00.0"]) == (state, "full")
    links = path(Host(pci=tuple(devices.values())).index, "0000:03:00.0")
    assert [(hop.end.address, hop.state) for hop in links] == [("0000:03:00.0", "full"), ("0000:01:00.0", state)]


def card_with_nominal_ports(tree: Tree, width: int) -> str:
    """A card with its own switch (geerlingguy/raspberry-pi-pcie-devices#695): the ports inside claim 2.5 GT/s x1."""
    up, nominal = f"{PORT}/0000:01:00.0", link((2.5, 1), (2.5, 1))
    tree.port(PORT, vendor="0x1022", **link((16.0, width), (16.0, 16)))
    tree.port(up, device="0x4fa1", **link((16.0, width), (16.0, 16)))
    for number, function in ((1, {"device": "0x56c0"}), (4, {"device": "0x4f92", "class": "0x040300"})):
        port = f"{up}/0000:02:0{number}.0"
        tree.port(port, device="0x4fa4", **nominal)
        tree.add(f"{port}/0000:0{2 + number}:00.0", vendor="0x8086", **function, **nominal, power_state="D0")
    return "0000:03:00.0"


@pytest.mark.parametrize(("width", "state"), [(16, "full"), (4, "degraded")])
def test_a_link_inside_a_card_is_no_wire(tree: Tree, width: int, state: str) -> None:
    gpu = card_with_nominal_ports(tree, width)
    devices, reader = tree.discover()
    found = devices[gpu].link
    assert found is not None
    assert (found.speed_gts, found.width, found.max_width, found.state) == (16.0, width, 16, state)
    assert [problem.where for problem in reader.problems] == (
        ["/sys/bus/pci/devices/0000:01:00.0"] if state == "degraded" else []
    )
    index = Host(pci=tuple(devices.values())).index
    assert [hop.end.address for hop in path(index, gpu)] == ["0000:01:00.0"]
    assert narrowest(index, [gpu], now=True) == (16.0, width)
    assert narrowest(index, [gpu]) == (16.0, 16)
    host = Host(pci=tuple(devices.values()), gpus=(Gpu(address=gpu, vendor="intel"),), numa_nodes=TWO_NODES)
    assert [hop.start for hop in path_between(host, gpu, "node 0").hops if hop.kind == "pcie"] == ["0000:01:00.0"]


@pytest.mark.parametrize(("width", "most", "state"), [(4, 16, "degraded"), (8, 8, "by-design")])
def test_the_uplink_of_a_switch_bounds_all_that_share_it(tree: Tree, width: int, most: int, state: str) -> None:
    whole, up = link((32.0, 16), (32.0, 16)), f"{PORT}/0000:01:00.0"
    tree.port(PORT, **link((32.0, width), (32.0, most)))
    tree.port(up, vendor="0x1000", **link((32.0, width), (32.0, 16)))
    for number in (0, 1):
        tree.port(f"{up}/0000:02:0{number}.0", vendor="0x1000", **whole)
        tree.add(f"{up}/0000:02:0{number}.0/0000:0{3 + number}:00.0", **whole, power_state="D0")
    devices, reader = tree.discover()
    index = Host(pci=tuple(devices.values())).index
    uplink = link_of(index, "0000:01:00.0")
    assert uplink is not None
    assert (uplink.state, narrowest(index, ["0000:03:00.0"], now=True)) == (state, (32.0, width))
    shared = "; shared by 0000:03:00.0, 0000:04:00.0"
    assert [problem.why.endswith(shared) for problem in reader.problems] == ([True] if state == "degraded" else [])


def test_a_device_in_d3cold_is_not_asked_for_its_registers(tree: Tree) -> None:
    """Reading config would wake it, so it is not opened: a FIFO in its place would be refused."""
    folder = tree.add(CARD, power_state="D3cold")
    os.mkfifo(folder / "config")
    device = tree.discover()[0]["0000:01:00.0"]
    assert (device.power_state, device.port_type) == ("D3cold", None)


def test_qemu_ports_hide_the_other_end(tree: Tree) -> None:
    tree.port(PORT, vendor="0x1b36", device="0x000c", **link((16.0, 32), (64.0, 32)))
    tree.add(CARD, **link((16.0, 16), (32.0, 16)))
    found = tree.discover()[0]["0000:01:00.0"].link
    assert found is not None
    assert (found.state, found.why) == (
        "unknown",
        "16 GT/s x16 of 32 GT/s x16; 0000:00:01.0 is a virtual port: the real other end is not visible",
    )


def test_an_untrained_port_is_unknown_and_never_zero(tree: Tree) -> None:
    tree.port(
        PORT, current_link_speed="Unknown", current_link_width="0", max_link_speed="32.0 GT/s PCIe", max_link_width="16"
    )
    found = tree.discover()[0]["0000:00:01.0"].link
    assert found is not None
    assert (found.speed_gts, found.width, found.state) == (None, None, "unknown")


def test_a_virtual_function_shows_its_physical_functions_link(tree: Tree) -> None:
    tree.port(PORT, **link((32.0, 16), (32.0, 16)))
    physical = tree.add(CARD, **link((32.0, 16), (32.0, 16)), sriov_totalvfs="16", sriov_numvfs="2")
    for number, virtual in enumerate(
        (
            tree.add(f"{PORT}/0000:01:00.2", **link((0, 0), (0, 0)), config=b"\xff" * 64),
            tree.add(f"{PORT}/0000:01:01.2"),
        )
    ):
        (virtual / "physfn").symlink_to("../0000:01:00.0")
        (physical / f"virtfn{2 + number * 8}").symlink_to(f"../{virtual.name}")
    pci, _ = tree.discover()
    card = pci["0000:01:00.0"]
    assert (card.virtfns, card.sriov_total_vfs, card.sriov_vfs) == (("0000:01:00.2", "0000:01:01.2"), 16, 2)
    virtual_device = pci["0000:01:00.2"]
    assert virtual_device.physfn == "0000:01:00.0"
    assert virtual_device.link is not None
    assert virtual_device.link.why == "the link of the physical function 0000:01:00.0: runs at the device's most"
    assert virtual_device.vendor_id == "10de"


@pytest.mark.parametrize(
    ("speed", "width"), [("+32.0 GT/s PCIe", "+16"), ("3_2.0 GT/s PCIe", "1_6"), ("nan GT/s", "16x"), ("32.0", "９")]
)
def test_numbers_that_no_kernel_writes_are_unknown(tree: Tree, speed: str, width: str) -> None:
    tree.add("pci0000:00/0000:00:01.0", current_link_speed=speed, current_link_width=width, max_link_width="16")
    link = tree.discover()[0]["0000:00:01.0"].link
    assert link is not None
    assert (link.speed_gts, link.width, link.max_width) == (None, None, 16)
