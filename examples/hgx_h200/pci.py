"""The PCI functions of the example host and what sysfs says of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hgx_h200.tree import CORES_PER_NODE, GIB, Tree, cpulist, cpumask, node_cpus

# Root bus of each GPU's host bridge; the GPU sits three buses below. 0x3e puts one at 0000:41:00.0.
GPU_ROOTS = ((0, 0x15), (0, 0x26), (0, 0x3E), (0, 0x53), (1, 0x97), (1, 0xA7), (1, 0xB7), (1, 0xD7))
NVSWITCH_ROOT = 0x80


@dataclass(frozen=True)
class Port:
    """What a function's PCI Express capability says: port type, link speed code (1 = 2.5 … 5 = 32 GT/s) and width."""

    kind: int  # device/port type of the capability register: 0 endpoint, 4 root, 5 upstream, 6 downstream, 7 to PCI
    speed: int
    width: int
    now_speed: int | None = None
    now_width: int | None = None
    acs: bool = False
    ats: bool = False


@dataclass(frozen=True)
class Function:
    """One PCI function: where it sits, what it is, and the kernel's view of it."""

    path: str  # below sys/devices: "pci0000:3e/0000:3e:01.0"
    ids: str  # "10de:2335 10de:18be"
    class_code: str
    node: int
    port: Port | None = None
    driver: str | None = None
    revision: int = 0
    bars: tuple[tuple[int, int, int], ...] = ()  # region, start, size
    prefetchable: bool = False
    group_with: str | None = None
    irqs: int = 0
    resets: str = ""
    vfs: int | None = None

    @property
    def address(self) -> str:
        """PCI address: the last part of the path."""
        return self.path.rpartition("/")[2]


def functions() -> Iterator[Function]:
    """Every PCI function of the host, in bus order."""
    yield from _platform_devices()
    for number, (node, root) in enumerate(GPU_ROOTS):
        if root > NVSWITCH_ROOT and GPU_ROOTS[number - 1][1] < NVSWITCH_ROOT:
            yield from _nvswitches()
        yield from _gpu_branch(node, root, number)


def _bridge(path: str, ids: str, node: int, port: Port, *, revision: int = 0) -> Function:
    return Function(path, ids, "060400", node, port, driver="pcieport", revision=revision)


def _root(node: int, bus: int) -> Iterator[Function]:
    at = f"pci0000:{bus:02x}"
    yield Function(f"{at}/0000:{bus:02x}:00.0", "8086:09a2 8086:0000", "088000", node, Port(9, 0, 0), revision=4)


def _platform_devices() -> Iterator[Function]:
    yield from _root(0, 0)
    disk, lan, hub = (f"pci0000:00/0000:00:{slot}.0" for slot in ("01", "02", "0e"))
    yield _bridge(disk, "8086:352a 8086:0000", 0, Port(4, 5, 4, 4, 4, acs=True), revision=4)
    yield Function(
        f"{disk}/0000:01:00.0",
        "144d:a80a 144d:aa0a",
        "010802",
        0,
        Port(0, 4, 4),
        driver="nvme",
        bars=((0, 0x90000000, 0x4000),),
        irqs=2,
        resets="flr bus",
    )
    yield _bridge(lan, "8086:352a 8086:0000", 0, Port(4, 5, 8, 3, 8, acs=True), revision=4)
    for n in (0, 1):  # two functions without ACS between them: one IOMMU group
        yield Function(
            f"{lan}/0000:02:00.{n}",
            "14e4:16d7 14e4:1402",
            "020000",
            0,
            Port(0, 3, 8),
            driver="bnxt_en",
            revision=1,
            bars=((0, 0x20_0000_0000 + (n << 21), 0x10000),),
            prefetchable=True,
            irqs=2,
            resets="flr",
            group_with=f"{lan}/0000:02:00.0",
            vfs=16,
        )
    yield _bridge(hub, "8086:1bbe 8086:0000", 0, Port(4, 3, 1, 2, 1, acs=True), revision=0x11)
    yield Function(f"{hub}/0000:03:00.0", "1a03:1150 0000:0000", "060400", 0, Port(7, 2, 1), revision=6)
    yield Function(
        f"{hub}/0000:03:00.0/0000:04:00.0",
        "1a03:2000 1a03:2000",
        "030000",
        0,
        driver="ast",
        revision=0x52,
        bars=((0, 0x91000000, 0x1000000), (1, 0x92000000, 0x40000)),
        group_with=f"{hub}/0000:03:00.0",
    )


def _gpu_branch(node: int, bus: int, number: int) -> Iterator[Function]:
    """One host bridge: root port, switch with the GPU, its ConnectX-7 and an NVMe drive below."""
    yield from _root(node, bus)
    port = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0"
    top = f"{port}/0000:{bus + 1:02x}:00.0"
    gpu, nic, disk = (f"{top}/0000:{bus + 2:02x}:{slot:02x}.0" for slot in range(3))
    window = 0x2000_0000_0000 + number * 0x100_0000_0000
    yield _bridge(port, "8086:352a 8086:0000", node, Port(4, 5, 16, acs=True), revision=4)
    yield _bridge(top, "1000:c030 1000:100b", node, Port(5, 5, 16), revision=0xB0)
    yield _bridge(gpu, "1000:c030 1000:100b", node, Port(6, 5, 16, acs=True), revision=0xB0)
    yield _bridge(nic, "1000:c030 1000:100b", node, Port(6, 5, 16, acs=True), revision=0xB0)
    yield _bridge(disk, "1000:c030 1000:100b", node, Port(6, 5, 4, 4, 4, acs=True), revision=0xB0)
    yield Function(
        f"{gpu}/0000:{bus + 3:02x}:00.0",
        "10de:2335 10de:18be",
        "030200",
        node,
        Port(0, 5, 16),
        driver="nvidia",
        revision=0xA1,
        bars=((0, window + 0x40_4200_0000, 16 << 20), (2, window, 256 * GIB), (4, window + 0x40_4000_0000, 32 << 20)),
        prefetchable=True,
        irqs=2,
        resets="flr bus",
    )
    yield Function(
        f"{nic}/0000:{bus + 4:02x}:00.0",
        "15b3:1021 15b3:0023",
        "020700",
        node,
        Port(0, 5, 16, ats=True),
        driver="mlx5_core",
        bars=((0, window + 0x80_0000_0000, 32 << 20),),
        prefetchable=True,
        irqs=4,
        resets="flr bus",
        vfs=16,
    )
    yield Function(
        f"{disk}/0000:{bus + 5:02x}:00.0",
        "1344:51c3 1344:3100",
        "010802",
        node,
        Port(0, 4, 4),
        driver="nvme",
        revision=1,
        bars=((0, 0xA0000000 + (number << 20), 0x40000),),
        irqs=2,
        resets="flr bus",
    )


def _nvswitches() -> Iterator[Function]:
    """The board's side switch with the four NVSwitches: x2 links at 16 GT/s, by design."""
    yield from _root(1, NVSWITCH_ROOT)
    port = f"pci0000:{NVSWITCH_ROOT:02x}/0000:{NVSWITCH_ROOT:02x}:01.0"
    top = f"{port}/0000:81:00.0"
    yield _bridge(port, "8086:352a 8086:0000", 1, Port(4, 4, 16, 4, 2, acs=True), revision=4)
    yield _bridge(top, "11f8:4128 10de:1643", 1, Port(5, 4, 2))
    for n in range(4):
        yield _bridge(f"{top}/0000:82:{n:02x}.0", "11f8:4128 10de:1643", 1, Port(6, 4, 2, acs=True))
    for n in range(4):
        yield Function(
            f"{top}/0000:82:{n:02x}.0/0000:{0x83 + n:02x}:00.0",
            "10de:22a3 10de:1796",
            "068000",
            1,
            Port(0, 4, 2),
            driver="nvidia-nvswitch",
            revision=0xA1,
            bars=((0, 0xB0000000 + (n << 25), 32 << 20),),
            irqs=1,
            resets="flr bus",
        )


SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0"}


FIRST_IRQ = 100  # of those of devices


def write_pci(tree: Tree) -> None:
    """sysfs of all functions, with IOMMU groups numbered in bus order and interrupts."""
    groups: dict[str, int] = {}
    irq = FIRST_IRQ
    everything = tuple(functions())
    for function in everything:
        owner = function.group_with or function.path
        group = groups.setdefault(owner, len(groups))
        _write_function(tree, function, buses_below(function, everything))
        at = f"sys/devices/{function.path}"
        tree.link(f"sys/bus/pci/devices/{function.address}", at)
        kernel = f"sys/kernel/iommu_groups/{group}"
        tree.put(f"{kernel}/type", "DMA-FQ")
        tree.put(f"{kernel}/reserved_regions", f"0x{0xFEE00000:016x} 0x{0xFEEFFFFF:016x} msi")
        tree.link(f"{kernel}/devices/{function.address}", at)
        tree.link(f"{at}/iommu_group", kernel)
        for number in range(irq, irq + function.irqs):
            tree.put(f"{at}/msi_irqs/{number}", "msix")
            tree.put_all(f"proc/irq/{number}", smp_affinity_list=cpulist(function.node), node=function.node)
            tree.put(f"proc/irq/{number}/effective_affinity_list", node_cpus(function.node)[number % CORES_PER_NODE])
        irq += function.irqs


def buses_below(bridge: Function, everything: tuple[Function, ...]) -> tuple[int, int]:
    """Lowest and highest bus number below a bridge; (0, 0) where nothing is below."""
    buses = [int(other.address[5:7], 16) for other in everything if other.path.startswith(f"{bridge.path}/")]
    return (min(buses), max(buses)) if buses else (0, 0)


def _write_function(tree: Tree, function: Function, buses: tuple[int, int]) -> None:
    at = f"sys/devices/{function.path}"
    ids = function.ids.replace(" ", ":").split(":")
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    tree.put_all(at, **{name: f"0x{value}" for name, value in zip(names, ids, strict=True)})
    tree.put_all(at, **{"class": f"0x{function.class_code}"}, revision=f"0x{function.revision:02x}")
    tree.put_all(at, numa_node=function.node, local_cpulist=cpulist(function.node), irq=0, enable=1)
    tree.put(f"{at}/local_cpus", cpumask(node_cpus(function.node)))
    tree.put_all(at, driver_override="(null)", power_state="D0", d3cold_allowed=0)
    tree.put_all(f"{at}/power", runtime_status="active", control="on")
    tree.files[f"{at}/resource"] = _resource(function).encode()
    tree.files[f"{at}/config"] = config_space(function, buses)
    tree.link(f"{at}/subsystem", "sys/bus/pci")
    if function.driver:
        tree.link(f"{at}/driver", f"sys/bus/pci/drivers/{function.driver}")
        tree.link(f"sys/bus/pci/drivers/{function.driver}/{function.address}", at)
    if function.port and function.port.width:
        port = function.port
        tree.put_all(at, max_link_speed=f"{SPEEDS[port.speed]} GT/s PCIe", max_link_width=port.width)
        now = SPEEDS[port.now_speed or port.speed]
        tree.put_all(at, current_link_speed=f"{now} GT/s PCIe", current_link_width=port.now_width or port.width)
    if function.resets:
        tree.put(f"{at}/reset_method", function.resets)
    if function.vfs is not None:
        tree.put_all(at, sriov_totalvfs=function.vfs, sriov_numvfs=0, sriov_drivers_autoprobe=1)
    if function.class_code == "030000":
        tree.put(f"{at}/boot_vga", 1)


def _resource(function: Function) -> str:
    regions = {region: (start, size) for region, start, size in function.bars}
    # IORESOURCE_MEM | PREFETCH | MEM_64 | SIZEALIGN, as the kernel prints it for such BARs
    flags = 0x14220C if function.prefetchable else 0x40200
    lines = []
    for region in range(7):
        start, size = regions.get(region, (0, 0))
        lines.append(f"0x{start:016x} 0x{start + size - 1 if size else 0:016x} 0x{flags if size else 0:016x}\n")
    return "".join(lines)


def config_space(function: Function, buses: tuple[int, int]) -> bytes:
    """4096 bytes of config space: header, power management, PCI Express, ACS and ATS (pci_regs.h)."""
    space = bytearray(4096)
    vendor, device, sub_vendor, sub_device = (int(part, 16) for part in function.ids.replace(" ", ":").split(":"))
    class_code = int(function.class_code, 16)
    bridge = function.class_code == "060400"
    struct.pack_into("<HHHH", space, 0, vendor, device, 0x0407, 0x0010)
    space[0x08] = function.revision
    space[0x09:0x0C] = class_code.to_bytes(3, "little")
    multifunction = 0x80 if function.group_with and function.class_code == "020000" else 0
    space[0x0E] = (1 if bridge else 0) | multifunction
    if bridge:
        bus = int(function.address[5:7], 16)
        space[0x18:0x1B] = bytes((bus, *buses))
    else:
        struct.pack_into("<HH", space, 0x2C, sub_vendor, sub_device)
    space[0x34] = 0x40
    space[0x40:0x44] = bytes((0x01, 0x60 if function.port else 0, 0x03, 0x00))  # power management, D0
    if function.port:
        _write_express(space, function.port)
        _write_extended(space, function.port)
    return bytes(space)


def _write_express(space: bytearray, port: Port) -> None:
    """The PCI Express capability at 0x60: payload 256 of 512 bytes, read requests 512 (GPU and NIC 4096), ASPM off."""
    control = (1 << 5) | ((5 if port.kind == 0 and port.width == 16 else 2) << 12) | (1 << 4 if port.kind == 0 else 0)
    struct.pack_into("<BBHIHH", space, 0x60, 0x10, 0, 2 | port.kind << 4, 0x10008002, control, 0)
    link_capability = port.speed | port.width << 4 | 2 << 10  # ASPM L1 supported
    now = (port.now_speed or port.speed) | (port.now_width or port.width) << 4
    struct.pack_into("<IHH", space, 0x6C, link_capability, 0, now)


def _write_extended(space: bytearray, port: Port) -> None:
    """Extended capabilities from 0x100: ACS as Linux sets it with an IOMMU, or ATS; then advanced error reporting."""
    errors = 0x100
    if port.acs or port.ats:
        errors = 0x148
    if port.acs:
        head = 0x000D | 1 << 16 | errors << 20
        struct.pack_into("<IHH", space, 0x100, head, 0x005F if port.kind == 6 else 0x001F, 0x001D)
    elif port.ats:
        struct.pack_into("<IHH", space, 0x100, 0x000F | 1 << 16 | errors << 20, 0x0000, 0x8000)
    struct.pack_into("<I", space, errors, 0x0001 | 2 << 16)  # nothing to report
