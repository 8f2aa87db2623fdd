"""The host tree: golden texts of hosts built here, each with the oddities that an operator must see."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import hosttune
from hosttune.model.gpu import Gpu, Mig, MigInstance
from hosttune.model.host import (
    Cpu,
    CpuModel,
    Host,
    HugePages,
    Iommu,
    Link,
    LinkEnd,
    MemorySettings,
    Nic,
    NumaNode,
    Nvme,
    PciDevice,
    Platform,
    Problem,
    RunningGuest,
    VcpuPin,
    Virtualization,
)
from hosttune.model.listing import short_list, some
from hosttune.report.branch import draw_rows, wrap
from hosttune.report.text import node_branches, print_host, problem_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "report"


def printed(host: Host, width: int = 100) -> str:
    out = io.StringIO()
    print_host(host, Console(file=out, width=width, force_terminal=False, color_system=None))
    return out.getvalue()


def agrees(name: str, text: str, request: pytest.FixtureRequest) -> None:
    """Compare with tests/golden/report/NAME; `--regenerate` writes it anew."""
    path = GOLDEN / name
    if request.config.getoption("--regenerate"):
        path.write_text(text)
    assert text == path.read_text()


FULL = Link(speed_gts=32.0, width=16, max_speed_gts=32.0, max_width=16, state="full")


def switch_branch(bus: int, node: int | None = 0) -> list[PciDevice]:
    """Root port > switch upstream port > two downstream ports > GPU, NIC."""
    port, up, first, second = (
        f"0000:{bus:02x}:01.0",
        f"0000:{bus + 1:02x}:00.0",
        f"0000:{bus + 2:02x}:00.0",
        f"0000:{bus + 2:02x}:01.0",
    )
    bridge = {"class_code": "060400", "numa_node": node}
    return [
        PciDevice(address=port, port_type="root-port", **bridge),  # type: ignore[arg-type]
        PciDevice(address=up, port_type="upstream-port", parent=port, link=FULL, **bridge),  # type: ignore[arg-type]
        PciDevice(address=first, port_type="downstream-port", parent=up, **bridge),  # type: ignore[arg-type]
        PciDevice(address=second, port_type="downstream-port", parent=up, **bridge),  # type: ignore[arg-type]
        PciDevice(
            address=f"0000:{bus + 3:02x}:00.0",
            class_code="030200",
            vendor_id="10de",
            device_id="2335",
            parent=first,
            numa_node=node,
            numa_source="bridge" if node is not None else "unknown",
            link=FULL,
            driver="vfio-pci",
            iommu_group=bus,
        ),
        PciDevice(
            address=f"0000:{bus + 4:02x}:00.0",
            class_code="020700",
            parent=second,
            numa_node=node,
            numa_source="device",
            link=Link(speed_gts=16.0, width=8, max_speed_gts=32.0, max_width=16, state="degraded"),
            driver="mlx5_core",
            iommu_group=bus + 1,
            virtfns=(f"0000:{bus + 4:02x}:00.1", f"0000:{bus + 4:02x}:00.2"),
            sriov_vfs=2,
            sriov_total_vfs=8,
        ),
        *(
            PciDevice(
                address=f"0000:{bus + 4:02x}:00.{n}",
                class_code="020700",
                parent=second,
                numa_node=node,
                physfn=f"0000:{bus + 4:02x}:00.0",
                driver=driver,
                iommu_group=bus + 1 + n,
            )
            for n, driver in ((1, "vfio-pci"), (2, "mlx5_core"))
        ),
    ]


def odd_host() -> Host:
    """Offline and isolated CPUs, a memory-only node, a degraded link, VFs, a held GPU, doubts, unknown affinity."""
    cpus = [
        Cpu(id=n, core=n % 4, package=0, numa_node=0, llc=n % 4 // 2 * 2, isolated=n in (3, 7), governor="powersave")
        for n in range(8)
    ]
    cpus.append(Cpu(id=8, online=False))
    return Host(
        hostname="odd",
        kernel="6.8.0",
        arch="x86_64",
        hypervisor=False,
        platform=Platform(vendor="Acme", product="Server 1"),
        cpu_model=CpuModel(
            vendor="GenuineIntel", model="Some Xeon", physical_address_bits=46, scaling_driver="intel_pstate"
        ),
        cpus=tuple(cpus),
        numa_nodes=(
            NumaNode(
                id=0,
                cpus="0-7",
                memory_bytes=64 << 30,
                free_bytes=0,
                distances={"0": 10, "1": 21},
                hugepages=(HugePages(size_bytes=1 << 30, total=8, free=2), HugePages(size_bytes=2 << 20, total=0)),
                kind="cpu",
            ),
            NumaNode(id=1, cpus="", memory_bytes=32 << 30, distances={"0": 21, "1": 10}, kind="memory"),
        ),
        memory_settings=MemorySettings(thp="always", ksm_run=1, numa_balancing=0),
        iommu=Iommu(present=True, mode="identity", vendor="intel"),
        pci=(*switch_branch(0x3E), *switch_branch(0xA0, None)),
        gpus=(
            Gpu(
                address="0000:41:00.0",
                vendor="nvidia",
                model="NVIDIA H200",
                memory_bytes=143771 << 20,
                module_id=1,
                mig=Mig(mode="enabled", instances=(MigInstance(profile="1g.18gb"),)),
            ),
            Gpu(address="0000:a3:00.0", vendor="nvidia"),
        ),
        nics=(
            Nic(address="0000:42:00.0", kind="infiniband", rdma="mlx5_0", rate_gbps=400.0, state="DOWN"),
            Nic(address="0000:42:00.1", kind="infiniband", physfn="0000:42:00.0"),
            Nic(address="0000:42:00.2", kind="infiniband", physfn="0000:42:00.0"),
            Nic(address="0000:a4:00.0", kind="infiniband"),
        ),
        nvme=(Nvme(address="0000:05:00.0", model="Disk", namespaces=("nvme0n1",), in_use="mounted on /"),),
        virtualization=Virtualization(kvm=True, libvirt_version="10.0.0"),
        guests=(
            RunningGuest(
                name="vm1",
                state="running",
                vcpu_pins=(VcpuPin(vcpu=0, cpus="3"), VcpuPin(vcpu=1, cpus="7")),
                memory_bytes=6 << 30,
                devices=("0000:41:00.0",),
            ),
        ),
        problems=(
            Problem(what="node unknown", where="0000:a3:00.0", why="no bridge above knows it"),
            Problem(what="node unknown", where="0000:a4:00.0", why="no bridge above knows it"),
            *(
                Problem(what="unreadable", where=f"/sys/kernel/iommu_groups/{n}/type", why="Permission denied")
                for n in range(7)
            ),
        ),
    )


@pytest.mark.parametrize("width", [60, 100])
def test_a_host_with_every_oddity(width: int, request: pytest.FixtureRequest) -> None:
    agrees(f"odd-{width}.txt", printed(odd_host(), width), request)


def test_an_empty_document_claims_nothing(request: pytest.FixtureRequest) -> None:
    agrees("empty.txt", printed(Host()), request)


def test_no_line_is_wider_than_the_console() -> None:
    for width in (60, 80, 120):
        assert max(map(len, printed(odd_host(), width).splitlines())) <= width


def test_no_line_ends_in_blanks() -> None:
    assert [line for line in printed(odd_host()).splitlines() if line != line.rstrip()] == []


def test_a_guest_says_that_it_is_one_and_hides_the_hardware() -> None:
    host = Host(hypervisor=True, platform=Platform(virtualization="kvm"))
    assert "this machine is itself a guest (hypervisor: kvm), the topology it sees is not the hardware's" in " ".join(
        printed(host, 200).split()
    )


def test_a_terminal_without_unicode_gets_plain_lines() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    print_host(odd_host(), Console(file=out, width=100, color_system=None))
    out.flush()
    assert b"|-- CPUs 0-7" in raw.getvalue()


def test_square_brackets_in_names_are_no_markup() -> None:
    assert "[red]evil[/]" in printed(Host(hostname="[red]evil[/]"))


def test_control_characters_of_a_hostile_document_do_not_reach_the_terminal() -> None:
    host = Host(hostname="a\x1b[31mb\nc", gpus=(Gpu(address="0000:01:00.0", model="x\x1b]0;evil\x07"),))
    text = printed(host)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.startswith("a?[31mb?c:")


def test_virtual_functions_are_counted_not_listed() -> None:
    text = printed(odd_host(), 200)
    assert "2 of 8 VFs, 1 on vfio-pci" in text
    assert "0000:42:00.1" not in text


def test_a_degraded_link_is_said_in_words_and_marked() -> None:
    branch = node_branches(odd_host())[0]
    lines = [leaf for bridge in branch.children for fork in bridge.children for leaf in fork.children]
    nic = next(leaf for leaf in lines if "0000:42:00.0" in leaf.text)
    assert "DEGRADED link 16 GT/s x8 of 32 GT/s x16" in nic.text
    assert nic.style == "warn"


def test_a_switch_with_a_degraded_link_is_shown_above_a_single_device() -> None:
    """The root port is its link's other end and needs no line; the GPU's own link below the switch is another one."""
    slow = Link(speed_gts=16.0, width=16, max_speed_gts=32.0, max_width=16, state="degraded")
    upper = msgspec.structs.replace(slow, upstream=LinkEnd(address="0000:01:01.0"))
    lower = msgspec.structs.replace(slow, upstream=LinkEnd(address="0000:03:00.0"))
    host = Host(
        numa_nodes=(NumaNode(id=0),),
        pci=(
            PciDevice(address="0000:01:01.0", port_type="root-port", link=slow),
            PciDevice(address="0000:02:00.0", port_type="upstream-port", parent="0000:01:01.0", link=upper),
            PciDevice(address="0000:03:00.0", port_type="downstream-port", parent="0000:02:00.0", link=slow),
            PciDevice(address="0000:04:00.0", parent="0000:03:00.0", numa_node=0, link=lower),
        ),
        gpus=(Gpu(address="0000:04:00.0", vendor="nvidia"),),
        problems=(Problem(what="degraded PCIe link", where="/sys/bus/pci/devices/0000:02:00.0", why="slow"),),
    )
    (root,) = node_branches(host)[0].children
    (switch,) = root.children
    assert switch.text == "switch 0000:02:00.0 (DEGRADED link 16 GT/s x16 of 32 GT/s x16, see problem 1)"
    assert switch.style == "warn"
    assert ["0000:04:00.0" in branch.text for branch in switch.children] == [True]


def test_a_degraded_port_is_shown_where_nothing_below_tells_its_link() -> None:
    slow = Link(speed_gts=16.0, width=8, max_speed_gts=32.0, max_width=16, state="degraded")
    host = Host(
        pci=(
            PciDevice(address="0000:01:01.0", port_type="root-port", link=slow),
            PciDevice(address="0000:02:00.1", parent="0000:01:01.0"),
        ),
        gpus=(Gpu(address="0000:02:00.1"),),
    )
    assert "root port 0000:01:01.0 (DEGRADED link 16 GT/s x8 of 32 GT/s x16)" in printed(host)


def test_a_device_of_unknown_id_says_so() -> None:
    host = Host(pci=(PciDevice(address="0000:01:00.0", vendor_id="10de"),), gpus=(Gpu(address="0000:01:00.0"),))
    assert "10de:????" in printed(host)


def test_a_device_without_node_is_never_shown_under_one() -> None:
    *nodes, unknown = node_branches(odd_host())
    assert unknown.text.startswith("affinity unknown")
    assert "0000:a3:00.0" not in repr(nodes)
    assert "0000:a3:00.0" in repr(unknown)


def test_a_device_on_a_node_that_does_not_exist_is_still_shown() -> None:
    host = Host(
        numa_nodes=(NumaNode(id=0),),
        pci=(PciDevice(address="0000:01:00.0", numa_node=7),),
        gpus=(Gpu(address="0000:01:00.0"),),
    )
    assert "0000:01:00.0" in repr(node_branches(host)[-1])


def test_a_parent_loop_in_a_document_ends() -> None:
    host = Host(
        pci=(
            PciDevice(address="0000:01:00.0", parent="0000:02:00.0"),
            PciDevice(address="0000:02:00.0", parent="0000:01:00.0"),
        ),
        gpus=(Gpu(address="0000:01:00.0"),),
    )
    assert "0000:01:00.0" in printed(host)


def test_problems_of_one_kind_share_a_line_that_the_device_refers_to() -> None:
    first, second = problem_lines(odd_host())
    assert first == "node unknown: 0000:a3:00.0, 0000:a4:00.0: no bridge above knows it"
    assert "and 3 more" in second
    assert "see problem 1" in printed(odd_host(), 200)


def test_zero_is_a_value() -> None:
    text = printed(odd_host(), 200)
    assert "0 B free" in text
    assert "NUMA balancing off" in text


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        ([], ""),
        ([0, 1, 2, 3, 8], "0-3,8"),
        (range(0, 224, 2), "0,2..222"),
        ([*range(0, 112, 2), *range(113, 224, 2)], "0,2..110,113,115..223"),
        ([*range(0, 40, 4), *range(200, 204), 300, 302], "0,4..36,200-203,300,302"),
    ],
)
def test_long_cpu_lists_are_shortened(cpus: list[int], text: str) -> None:
    assert short_list(cpus) == text


def test_a_hybrid_part_says_how_many_cores_have_two_threads() -> None:
    cpus = tuple(Cpu(id=n, core=core, package=0, numa_node=0) for n, core in enumerate((0, 0, 2, 2, 4, 5, 6)))
    text = printed(Host(cpus=cpus, numa_nodes=(NumaNode(id=0),)))
    assert "CPUs 0-6, 5 cores, 2 of them with 2 threads" in text


def test_a_problem_that_names_a_device_in_its_reason_is_marked_on_it() -> None:
    host = Host(
        gpus=(Gpu(address="0000:01:00.0"), Gpu(address="0000:02:00.0")),
        problems=(Problem(what="facts unknown", where="nvidia", why="no tool told of 0000:02:00.0"),),
    )
    first, second = (line for line in printed(host).splitlines() if "display  0000:0" in line)
    assert "problem" not in first
    assert "see problem 1" in second


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MT2910 Family [ConnectX-7]", "NIC      0000:01:00.0  ConnectX-7, infiniband"),
        ("Some NIC", "NIC      0000:01:00.0  Some NIC, infiniband"),
        (None, "NIC      0000:01:00.0  infiniband"),
    ],
)
def test_a_nic_is_named_as_it_is_sold(name: str | None, text: str) -> None:
    device = PciDevice(address="0000:01:00.0", device_name=name)
    assert text in printed(Host(pci=(device,), nics=(Nic(address="0000:01:00.0", kind="infiniband"),)))


def test_a_real_host_of_517_functions_stays_readable(host_root: Callable[[str], Path]) -> None:
    text = printed(hosttune.discover(str(host_root("derived/xe9680-8xh100-lspci"))), 120)
    assert len(text.splitlines()) <= 120
    assert text.count("GPU      0000:") == 8
    assert text.count("NVSwitch 0000:") == 4
    assert "CPUs 0,2..222, 56 cores, 2 threads each" in text
    assert "517 PCI functions in all" in " ".join(text.split())


def test_a_guest_on_real_hardware_shows_its_gpus_without_a_node(host_root: Callable[[str], Path]) -> None:
    host = hosttune.discover(str(host_root("h200/vm-h200x4")))
    *_, unknown = node_branches(host)
    assert unknown.text.startswith("affinity unknown")
    assert repr(unknown).count("NVIDIA H200") == 4


def test_some_names_says_how_many_are_left() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some("abcdef") == "a, b, c, d and 2 more"


def test_rows_wrap_below_their_last_column() -> None:
    out = io.StringIO()
    draw_rows([("label", "word " * 10)], Console(file=out, width=40, force_terminal=False))
    assert out.getvalue().splitlines()[1].startswith("         word")


def test_a_list_that_is_longer_than_a_line_breaks_after_commas() -> None:
    cpus = [1, 2, 4, 8, 16, 32, 64, 128, 256, 511]
    lines = wrap(f"the CPUs that a guest has and that are banned: {','.join(map(str, cpus))} and no more", 24)
    assert max(map(len, lines)) <= 24
    assert [int(number) for line in lines for number in re.findall("[0-9]+", line)] == cpus
    assert [line for line in lines if line[0] == ","] == []
    assert wrap("x" * 50, 24) == ["x" * 24, "x" * 24, "xx"]
