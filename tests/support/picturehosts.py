"""Hosts for tests of the picture: everything at once on few devices, many of everything, nothing known, hostile names.

All synthetic.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from planhosts import Card, build_host

from hosttune.model.gpu import Gpu, Peer
from hosttune.model.host import (
    Cpu,
    GuestMemory,
    Host,
    HugePages,
    Link,
    LinkEnd,
    Nic,
    NumaNode,
    Nvme,
    NvSwitch,
    PciDevice,
    Problem,
    RunningGuest,
    VcpuPin,
)
from hosttune.model.validation import CheckResult
from hosttune.model.values import to_json

FULL = Link(speed_gts=32.0, width=16, max_speed_gts=32.0, max_width=16, state="full")
HOSTILE = '</text><script>alert("1")</script>&\x00\x1b[31m\u202e' + "W" * 400 + "漢字\U0001f9e8"


def slow(above: str | None) -> Link:
    """A link that both ends could run faster."""
    return Link(
        speed_gts=16.0,
        width=8,
        max_speed_gts=32.0,
        max_width=16,
        state="degraded",
        upstream=LinkEnd(address=above, speed_gts=16.0, width=8, max_speed_gts=32.0, max_width=16) if above else None,
        why="half of the lanes at half of the speed",
    )


def switch_board(bus: int, node: int | None, below: tuple[str, ...]) -> list[PciDevice]:
    """Root port > switch > one downstream port a device; `below` are class codes of the devices."""
    port, up = f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"
    found = [
        PciDevice(address=port, class_code="060400", port_type="root-port", numa_node=node),
        PciDevice(address=up, class_code="060400", port_type="upstream-port", numa_node=node, parent=port, link=FULL),
    ]
    for n, code in enumerate(below):
        down = f"0000:{bus + 2:02x}:{n:02x}.0"
        device = f"0000:{bus + 3 + n:02x}:00.0"
        found += [
            PciDevice(address=down, class_code="060400", port_type="downstream-port", numa_node=node, parent=up),
            PciDevice(
                address=device,
                class_code=code,
                numa_node=node,
                parent=down,
                link=FULL,
                driver="vfio-pci",
                iommu_group=bus + n,
            ),
        ]
    return found


def busy_host() -> Host:
    """Two nodes; guests with CPUs, memory, GPUs, a virtual function and a USB controller; faults of all kinds."""
    boards = [
        *switch_board(0x10, 0, ("030200", "020700", "010802")),
        *switch_board(0x20, 1, ("030200", "020000", "0c0330")),
    ]
    changes: dict[str, dict[str, Any]] = {
        "0000:13:00.0": {"link": slow("0000:12:00.0")},
        "0000:12:00.0": {"link": slow(None)},
        "0000:21:00.0": {"link": slow("0000:20:01.0")},
        "0000:14:00.0": {"sriov_total_vfs": 8, "sriov_vfs": 2, "virtfns": ("0000:14:00.1", "0000:14:00.2")},
    }
    pci = [
        PciDevice(**{**{f: getattr(d, f) for f in d.__struct_fields__}, **changes.get(d.address, {})}) for d in boards
    ]
    pci += [
        PciDevice(
            address=f"0000:14:00.{n}", class_code="020700", physfn="0000:14:00.0", parent="0000:12:01.0", numa_node=0
        )
        for n in (1, 2)
    ]
    pci.append(PciDevice(address="0000:40:00.0", class_code="030200", link=FULL))
    cpus = [Cpu(id=n, core=n % 16, package=n % 16 // 8, numa_node=n % 16 // 8, llc=n % 16 // 4 * 4) for n in range(32)]
    cpus += [Cpu(id=32, online=False)]
    node = {"memory_bytes": 64 << 30, "free_bytes": 20 << 30, "distances": {"0": 10, "1": 21}}
    pages = (HugePages(size_bytes=1 << 30, total=32, free=8), HugePages(size_bytes=2 << 20, total=0))
    first = "0000:13:00.0"
    return Host(
        hostname="busy",
        cpus=tuple(cpus),
        numa_nodes=(
            NumaNode(id=0, cpus="0-7,16-23", hugepages=pages, **node),  # type: ignore[arg-type]
            NumaNode(id=1, cpus="8-15,24-31", **{**node, "memory_bytes": 32 << 30}),  # type: ignore[arg-type]
        ),
        pci=tuple(pci),
        gpus=(
            Gpu(
                address=first, vendor="nvidia", model="H", peers=(Peer(address="0000:23:00.0", kind="nvlink", links=4),)
            ),
            Gpu(
                address="0000:23:00.0", vendor="nvidia", model="H", peers=(Peer(address=first, kind="nvlink", links=4),)
            ),
            Gpu(address="0000:40:00.0", vendor="amd"),
        ),
        nics=(
            Nic(address="0000:14:00.0", kind="infiniband", rdma="mlx5_0", rate_gbps=400.0),
            Nic(address="0000:14:00.1", physfn="0000:14:00.0"),
            Nic(address="0000:14:00.2", physfn="0000:14:00.0"),
            Nic(address="0000:24:00.0", kind="ethernet", interfaces=("eth0",), state="DOWN"),
        ),
        nvme=(Nvme(address="0000:15:00.0", model="Disk", namespaces=("nvme0n1",), in_use="mounted on /"),),
        guests=(
            RunningGuest(
                name="train-0",
                state="running",
                vcpu_pins=tuple(VcpuPin(vcpu=n, cpus=str(c)) for n, c in enumerate((4, 20, 5, 21))),
                memory_bytes=24 << 30,
                memory=(GuestMemory(node=0, memory_bytes=24 << 30),),
                devices=(first, "0000:14:00.1"),
            ),
            RunningGuest(
                name="inference",
                state="shut off",
                vcpu_pins=(VcpuPin(vcpu=0, cpus="12"), VcpuPin(vcpu=1, cpus="5")),
                devices=("0000:23:00.0", "0000:25:00.0", first),
            ),
        ),
        problems=(Problem(what="node unknown", where="0000:40:00.0", why="no bridge above knows it"),),
    )


BUSY_RESULTS = (
    CheckResult(check="pcie-link", subject="0000:13:00.0", outcome="fail", expected="32 GT/s x16", actual="16 GT/s x8"),
    CheckResult(check="numa-affinity", subject="0000:40:00.0", outcome="unknown", hint="look"),
    CheckResult(check="free-memory", subject="node 1", outcome="warn"),
    CheckResult(check="pinned-memory", subject="inference", outcome="fail"),
    CheckResult(check="iommu", subject="host", outcome="fail"),
    CheckResult(check="acs", subject="0000:77:00.0", outcome="unknown"),
    CheckResult(check="pcie-link", subject="0000:23:00.0", outcome="pass"),
)


def many_gpus(nodes: int, gpus: int, *, kind: str = "nvlink", pairs: int = 0, cores: int = 16) -> Host:
    """Many nodes and GPUs on switches of two GPUs and a NIC. `pairs`: join each so many GPUs; 0 joins all."""
    cards: list[Card] = []
    for n in range(gpus):
        bus = 0x10 + n // 2 * 0x08 + n % 2
        cards.append(Card(f"0000:{bus:02x}:00.0", n * nodes // gpus if gpus else 0, group=n))
        if n % 2 == 0:
            cards += [Card(f"0000:{bus + 2:02x}:00.0", n * nodes // gpus, kind="nic", group=100 + n)]
    cards += [Card(f"0001:{n + 1:02x}:00.0", 0, kind="nvswitch") for n in range(4 if gpus > 4 else 0)]
    plain = build_host(nodes=nodes, cores_per_node=cores, cards=cards)
    addresses = [card.address for card in cards if card.kind == "gpu"]
    size = pairs or len(addresses)
    for gpu in plain["gpus"]:
        at = addresses.index(gpu["address"])
        group = addresses[at // size * size : at // size * size + size]
        gpu["peers"] = [{"address": a, "kind": kind, "links": 18} for a in group if a != gpu["address"]]
    return Host.from_json(to_json(plain))


def cube_mesh() -> Host:
    """Eight GPUs whose pairs have none, one or two links, as the boards of 2017 had them."""
    base = many_gpus(2, 8, pairs=1)
    near = {
        (0, 1): 1,
        (0, 2): 1,
        (0, 3): 2,
        (0, 4): 2,
        (1, 2): 2,
        (1, 3): 1,
        (1, 5): 2,
        (2, 3): 2,
        (2, 6): 1,
        (3, 7): 1,
    }
    links = {**near, **{(a + 4, b + 4): n for (a, b), n in near.items() if b < 4}}
    addresses = [gpu.address for gpu in base.gpus]
    peers: dict[str, list[Peer]] = {address: [] for address in addresses}
    for a, b in combinations(range(8), 2):
        if number := links.get((a, b)):
            peers[addresses[a]].append(Peer(address=addresses[b], kind="nvlink", links=number))
            peers[addresses[b]].append(Peer(address=addresses[a], kind="nvlink", links=number))
    gpus = tuple(
        Gpu(address=g.address, vendor=g.vendor, model=g.model, peers=tuple(peers[g.address])) for g in base.gpus
    )
    return Host(**{**{f: getattr(base, f) for f in base.__struct_fields__}, "gpus": gpus})


def crowded() -> Host:
    """500 virtual functions and all cores of eight nodes in the hands of 125 guests."""
    base = many_gpus(8, 16, cores=96)
    owners = [device for device in base.pci if device.class_code == "020700"]
    functions = tuple(
        PciDevice(
            address=f"0002:{n // 8:02x}:{n % 8:02x}.0",
            class_code="020700",
            physfn=owners[n % 8].address,
            numa_node=owners[n % 8].numa_node,
        )
        for n in range(500)
    )
    guests = tuple(
        RunningGuest(
            name=f"vm-{n}",
            state="running",
            vcpu_pins=tuple(VcpuPin(vcpu=vcpu, cpus=str(n * 12 + vcpu)) for vcpu in range(12)),
            devices=tuple(function.address for function in functions[n * 4 : n * 4 + 4]),
        )
        for n in range(125)
    )
    fields = {name: getattr(base, name) for name in base.__struct_fields__}
    return Host(**{**fields, "pci": (*base.pci, *functions), "guests": guests})


def nothing_known() -> Host:
    """A host that lists devices and knows nothing about them."""
    return Host(
        gpus=(Gpu(address="0000:01:00.0"), Gpu(address="0000:02:00.0", vendor="nvidia")),
        nics=(Nic(address="0000:03:00.0"),),
        nvme=(Nvme(address="0000:04:00.0"),),
        nvswitches=(NvSwitch(address="0000:05:00.0"),),
        numa_nodes=(NumaNode(id=0), NumaNode(id=1)),
        cpus=(Cpu(id=0, online=None), Cpu(id=1)),
    )


def hostile_host() -> Host:
    """Names that are markup, controls, endless, or not Latin."""
    base = busy_host()
    changes: dict[str, Any] = {
        "hostname": HOSTILE,
        "kernel": HOSTILE,
        "gpus": tuple(Gpu(address=g.address, vendor="nvidia", model=HOSTILE, peers=g.peers) for g in base.gpus),
        "nics": (Nic(address="0000:14:00.0", rdma=HOSTILE, interfaces=(HOSTILE, HOSTILE)), *base.nics[1:]),
        "nvme": (Nvme(address="0000:15:00.0", model=HOSTILE, in_use=HOSTILE),),
        "guests": tuple(
            RunningGuest(name=f"{n}{HOSTILE}", devices=guest.devices, vcpu_pins=guest.vcpu_pins, state=HOSTILE)
            for n, guest in enumerate(base.guests or ())
        ),
        "problems": tuple(Problem(what=HOSTILE, where=f"{n}", why=HOSTILE) for n in range(40)),
    }
    return Host(**{**{f: getattr(base, f) for f in base.__struct_fields__}, **changes})
