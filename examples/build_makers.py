"""Write `gaudi3-8.tar.xz` and `mi300x-8.tar.xz`: synthetic hosts with eight Gaudi 3 and eight MI300X.

Neither host exists. Both are the machine of `build_hgx_h200.py` (its CPUs, memory, switches, drives) with other
accelerators in place of its GPUs and NVSwitches. From sources: PCI ids (pci.ids), memory sizes, the names and forms of
the drivers' files (Documentation/ABI/testing/sysfs-driver-habanalabs, Documentation/gpu/amdgpu, kfd_topology.c), the
forms of what hl-smi and amd-smi print, ports and which of them are external, power limits, partition modes, limits of
temperature, lines of the KFD topology. Made up: addresses, UUIDs, versions, temperatures, names of interfaces, BAR
sizes of Gaudi 3 (no source has them), and good health. The same source gives the same
archives. Run it to write them again:

    python3 examples/build_makers.py [FOLDER]
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from build_hgx_h200 import archive, build
from hgx_h200.pci import Function, functions
from hgx_h200.tree import GIB, Tree

NOTE = """SYNTHETIC HOST, built from facts by examples/build_makers.py; not a capture of a machine.
PCI ids, memory, ports, power limits, partition modes and the form of files and outputs: as published.
Addresses, UUIDs, versions, temperatures, names of interfaces, BAR sizes of Gaudi 3, good health: made up.
A validation of it shows what the page looks like, and proves nothing about any machine.
"""
GPUS = tuple(function for function in functions() if function.driver == "nvidia")
OF_NVIDIA = ("nvidia", "fabric-manager", "nvml", "nvswitch")


def without(tree: Tree, function: Function) -> None:
    """Take a function away, with all that names it."""
    at = f"sys/devices/{function.path}"
    group = tree.links.get(f"{at}/iommu_group", "").rpartition("/")[2]
    for number in [name.rpartition("/")[2] for name in tree.files if name.startswith(f"{at}/msi_irqs/")]:
        for name in [name for name in tree.files if name.startswith(f"proc/irq/{number}/")]:
            del tree.files[name]
    inside = f"{at}/infiniband/"
    for device in {name.removeprefix(inside).split("/")[0] for name in tree.files if name.startswith(inside)}:
        tree.files.pop(f".hosttune/commands/smpquery-portinfo-{device}-1", None)
    for names in (tree.files, tree.links):
        for name in [name for name in names if name.startswith(f"{at}/") or f"/{function.address}" in name]:
            del names[name]
    for name in [name for name, to in tree.links.items() if f"{function.path}/" in f"{to}/"]:
        del tree.links[name]
    left = f"sys/kernel/iommu_groups/{group}/devices/"
    if not any(name.startswith(left) for name in tree.links):
        for name in ("type", "reserved_regions"):
            tree.files.pop(f"sys/kernel/iommu_groups/{group}/{name}", None)
    lines = tree.files["proc/interrupts"].decode().splitlines(keepends=True)
    tree.files["proc/interrupts"] = "".join(line for line in lines if f"-{function.address} " not in line).encode()


def without_nvidia(tree: Tree) -> None:
    """Take NVSwitches, tools, modules and Fabric Manager away."""
    for function in functions():
        if function.path.startswith("pci0000:80/"):
            without(tree, function)
    for names in (tree.files, tree.links):
        for name in [name for name in names if any(word in name for word in OF_NVIDIA)]:
            del names[name]


def becomes(tree: Tree, function: Function, ids: str, driver: str, bar_bytes: int) -> str:
    """Make a processing accelerator of a GPU, and return its folder."""
    at = f"sys/devices/{function.path}"
    parts = ids.replace(" ", ":").split(":")
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    tree.put_all(at, **{name: f"0x{value}" for name, value in zip(names, parts, strict=True)})
    tree.put_all(at, **{"class": "0x120000"}, revision="0x00")
    config = bytearray(tree.files[f"{at}/config"])
    struct.pack_into("<HH", config, 0, *(int(part, 16) for part in parts[:2]))
    config[0x08:0x0C] = bytes((0x00, 0x00, 0x00, 0x12))
    struct.pack_into("<HH", config, 0x2C, *(int(part, 16) for part in parts[2:]))
    tree.files[f"{at}/config"] = bytes(config)
    start = function.bars[1][1]
    rows = [
        f"0x{start:016x} 0x{start + bar_bytes - 1:016x} 0x000000000014220c",
        *[f"0x{0:016x} " * 2 + f"0x{0:016x}"] * 6,
    ]
    tree.files[f"{at}/resource"] = "".join(f"{row}\n" for row in rows).encode()
    tree.link(f"{at}/driver", f"sys/bus/pci/drivers/{driver}")
    tree.link(f"sys/bus/pci/drivers/{driver}/{function.address}", at)
    return at


def named(tree: Tree, name: str, product: str, module: str, version: str) -> None:
    """Give the host its name and its driver."""
    tree.files[".hosttune/SYNTHETIC"] = NOTE.encode()
    tree.put("sys/devices/virtual/dmi/id/product_name", f"SYNTHETIC {product} (built from facts, not a capture)")
    tree.put("proc/sys/kernel/hostname", name)
    tree.put("etc/hostname", name)
    tree.put(f"sys/module/{module}/version", version)
    modules = tree.files["proc/modules"].decode()
    tree.files["proc/modules"] = modules.replace("nvidia ", f"{module} ").encode()


# --- Gaudi 3 -----------------------------------------------------------------------------------------------------

# Ports for scale-out by module id: HabanaAI/HCL @2ba2428, hcl/src/platform/gaudi3/port_mapping_autogen.cpp.
EXTERNAL = (
    *((17, 20, 21), (5, 8, 9), (5, 8, 9), (17, 20, 21)),
    *((14, 15, 19), (2, 3, 7), (2, 3, 7), (14, 15, 19)),
)
MODULES = (1, 3, 2, 6, 0, 7, 5, 4)  # as hl-smi listed the cards of a host (tests/cases/gpu/hl-smi/gaudi3-x8.txt)


def gaudi3() -> Tree:
    """Eight HL-325L with one NIC beside them, for storage: they carry the ports to other hosts themselves."""
    tree = build()
    without_nvidia(tree)
    for function in [one for one in functions() if one.driver == "mlx5_core"][1:]:
        without(tree, function)
    rows, ports = [], []
    for number, (function, module) in enumerate(zip(GPUS, MODULES, strict=True)):
        at = becomes(tree, function, "1da3:1060 1da3:1060", "habanalabs", 128 * GIB)
        tree.link(f"sys/class/accel/accel{number}", f"{at}/accel/accel{number}")
        tree.link(f"{at}/accel/accel{number}/device", at)
        tree.put(f"{at}/accel/accel{number}/dev", f"261:{number}")
        tree.put_all(at, pci_addr=function.address, module_id=module, max_power=850000, status="Operational")
        tree.put_all(at, cpucp_ver="hl-gaudi3-1.24.1-fw-61.4.2", driver_ver="1.24.1-b336d5e")
        for port in EXTERNAL[module]:
            interface = f"{at}/net/acc{number}p{port}"
            tree.put_all(interface, dev_port=port, speed=200000, operstate="up", mtu=9000)
            tree.link(f"{interface}/device", at)
            tree.link(f"sys/class/net/acc{number}p{port}", interface)
        uuid = f"01P4-HL3090A0-18-U00000-{number:02d}-00-00"
        rows.append(f"{number}, {module}, {function.address}, HL-325L, {uuid}, 131072 MiB")
        kinds = "".join(f"port {n}:\t{'external' if n in EXTERNAL[module] else 'internal'}\n" for n in range(24))
        states = "".join(f"port {n}:\tUP\n" for n in range(24))
        ports.append(f"[{function.address} ports]\n{kinds}[{function.address} link]\n{states}")
    tree.put(".hosttune/commands/hl-smi-q", "\n".join(rows))
    tree.files[".hosttune/commands/hl-smi-ports"] = "".join(ports).encode()
    named(tree, "example-gaudi3", "GAUDI 3", "habanalabs", "1.24.1-b336d5e")
    return tree


# --- MI300X ------------------------------------------------------------------------------------------------------

NODES = "sys/class/kfd/kfd/topology/nodes"
UNIQUE = 0x6CF1F9CF00000000
IMAGE, DRIVER = "113-M3000100-102", "6.14.14"
BLOCKS = ("umc", "sdma", "gfx", "mmhub", "xgmi_wafl")
# amd/MxGPU-Virtualization, the manual of amd-smi: SLOWDOWN and SHUTDOWN of an MI300X, which has no edge sensor.
LIMITS = {"temp2_crit": 100000, "temp2_emergency": 110000, "temp3_crit": 95000, "temp3_emergency": 105000}
# Lines of a node and of a link as an MI300X host has them (tests/cases/gpu/kfd).
GPU_NODE = """cpu_cores_count 0
simd_count 1216
io_links_count 8
p2p_links_count 0
gfx_target_version 90402
vendor_id 4098
device_id 29857
location_id {location}
domain 0
drm_render_minor {render}
hive_id 15000000000000000003
unique_id {unique}
num_xcc 8"""
LINK = """type {kind}
version_major 0
version_minor 0
node_from {one}
node_to {to}
min_latency 0
max_latency 0
recommended_transfer_size 0
recommended_sdma_engine_id_mask 3
flags 1"""


def watts(amount: int) -> dict[str, object]:
    """A power as amd-smi prints it."""
    return {"value": amount, "unit": "W"}


def degrees(amount: int) -> dict[str, object]:
    """A temperature as amd-smi prints it."""
    return {"value": amount, "unit": "C"}


def static(number: int, function: Function) -> dict[str, object]:
    """What `amd-smi static --json` of ROCm 7.2.1 prints of a GPU (tests/cases/gpu/amd-smi), the main parts of it."""
    return {
        "gpu": number,
        "asic": {
            "market_name": "AMD Instinct MI300X",
            "vendor_id": "0x1002",
            "device_id": "0x74a1",
            "asic_serial": f"0x{UNIQUE + number:016X}",
            "oam_id": number,
            "target_graphics_version": "gfx942",
        },
        "bus": {"bdf": function.address, "max_pcie_width": 16, "max_pcie_speed": {"value": 32, "unit": "GT/s"}},
        "ifwi": {"name": "AMD MI300X", "build_date": "N/A", "part_number": IMAGE, "version": "N/A"},
        "limit": {
            "ppt0": {
                "max_power_limit": watts(750),
                "min_power_limit": watts(0),
                "socket_power_limit": watts(750),
            },
            "ppt1": {"max_power_limit": "N/A", "min_power_limit": "N/A", "socket_power_limit": "N/A"},
            "slowdown_edge_temperature": "N/A",
            "slowdown_hotspot_temperature": degrees(100),
            "slowdown_vram_temperature": degrees(95),
            "shutdown_edge_temperature": "N/A",
            "shutdown_hotspot_temperature": degrees(110),
            "shutdown_vram_temperature": degrees(105),
        },
        "driver": {"name": "amdgpu", "version": DRIVER},
        "board": {"product_serial": f"SCRUBBED-{number:08d}", "product_name": "AMD Instinct MI300X OAM"},
        "ras": {
            "eeprom_version": "0x10000",
            "bad_page_threshold": 128,
            "bad_page_threshold_exceeded": "False",
            "poison_schema": "ENABLED",
        },
        "vram": {"type": "HBM", "size": {"value": 192 << 10, "unit": "MB"}},
    }


def mi300x() -> Tree:
    """Eight MI300X in SPX and NPS1, joined by XGMI, each with a ConnectX-7 below its switch."""
    tree = build()
    without_nvidia(tree)
    for node in (0, 1):
        tree.put(f"{NODES}/{node}/properties", "cpu_cores_count 96\nsimd_count 0\nlocation_id 0\ndomain 0")
    for number, function in enumerate(GPUS):
        at = becomes(tree, function, "1002:74a1 1002:74a1", "amdgpu", 256 * GIB)
        tree.put_all(
            at,
            mem_info_vram_total=192 * GIB,
            unique_id=f"{UNIQUE + number:016x}",
            vbios_version=IMAGE,
            pcie_replay_count=0,
            current_compute_partition="SPX",
            available_compute_partition="SPX, DPX, QPX, CPX",
            current_memory_partition="NPS1",
        )
        sensors = f"{at}/hwmon/hwmon{number + 4}"
        caps = {"power1_cap": 750, "power1_cap_default": 750, "power1_cap_min": 0, "power1_cap_max": 750}
        tree.put_all(
            sensors, name="amdgpu", temp2_label="junction", temp2_input=41000, temp3_label="mem", temp3_input=38000
        )
        tree.put_all(sensors, **LIMITS)
        tree.put_all(sensors, **{name: watts * 10**6 for name, watts in caps.items()})
        for block in BLOCKS:
            tree.put(f"{at}/ras/{block}_err_count", "ue: 0\nce: 0")
        _kfd(tree, number, int(function.address[5:7], 16))
    printed = {"gpu_data": [static(number, function) for number, function in enumerate(GPUS)]}
    tree.files[".hosttune/commands/amd-smi-static"] = f"{json.dumps(printed, indent=4)}\n".encode()
    named(tree, "example-mi300x", "MI300X", "amdgpu", DRIVER)
    return tree


def _kfd(tree: Tree, number: int, bus: int) -> None:
    """A GPU's node: its place, a link to its CPU (type 2, PCIe) and one to each other GPU (type 11, XGMI)."""
    at = f"{NODES}/{number + 2}"
    tree.put(f"{at}/properties", GPU_NODE.format(location=bus << 8, render=128 + 8 * number, unique=UNIQUE + number))
    cpu = 0 if number < 4 else 1
    others = [other + 2 for other in range(8) if other != number]
    for index, (to, kind) in enumerate([(cpu, 2), *((other, 11) for other in others)]):
        tree.put(f"{at}/io_links/{index}/properties", LINK.format(kind=kind, one=number + 2, to=to))


HOSTS: dict[str, Callable[[], Tree]] = {"gaudi3-8": gaudi3, "mi300x-8": mi300x}

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, make in HOSTS.items():
        (folder / f"{name}.tar.xz").write_bytes(archive(make()))
