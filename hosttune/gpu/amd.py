"""AMD GPUs (1002): Instinct, Radeon Pro. Facts from amdgpu's sysfs files and the KFD topology; no tool is run.

A virtual function (MI300X VF) is a GPU of its own; so is the function it belongs to, held by the SR-IOV host driver.
"""

from __future__ import annotations

from hosttune.gpu.vendor import Bench, Listing, Vendor, awake, fill
from hosttune.model.gpu import Gpu, Peer
from hosttune.model.host import PciDevice
from hosttune.reader import Reader, number

# pci.ids (pciutils/pciids 2026.08.22), vendor 1002.
MODELS = {
    "66a0": "AMD Radeon Instinct MI50/MI60",
    "66a1": "AMD Radeon Instinct MI50/Radeon Pro VII",
    "738c": "AMD Instinct MI100",
    "738e": "AMD Instinct MI100",
    "7408": "AMD Instinct MI250X",
    "740c": "AMD Instinct MI250X/MI250",
    "740f": "AMD Instinct MI210",
    "73a1": "AMD Radeon Pro V620",
    "74a0": "AMD Instinct MI300A",
    "74a1": "AMD Instinct MI300X",
    "74a2": "AMD Instinct MI308X",
    "74a5": "AMD Instinct MI325X",
    "74a9": "AMD Instinct MI300X HF",
    "74b5": "AMD Instinct MI300X VF",
    "74b9": "AMD Instinct MI325X VF",
    "75a0": "AMD Instinct MI350X",
    "75a3": "AMD Instinct MI355X",
}
# The switch on a discrete card itself (pci.ids: "Navi 10 XL … Port of PCI Express Switch", "Vega 10 PCIe Bridge").
CARD_SWITCHES = frozenset((("1002", "1478"), ("1002", "1479"), ("1022", "1470"), ("1022", "1471")))

NODES = "/sys/class/kfd/kfd/topology/nodes"
IOLINK_PCIE = 2  # CRAT_IOLINK_TYPE_PCIEXPRESS, drivers/gpu/drm/amd/amdkfd/kfd_crat.h
IOLINK_XGMI = 11  # CRAT_IOLINK_TYPE_XGMI, same file


def _makes(device: PciDevice, bridge: PciDevice | None) -> bool:
    """A processing accelerator, a known card, or a function below a card's own switch.

    Anything else of class 03xx is graphics built into a CPU, or a board's console (ES1000, Rage XL).
    """
    if (device.class_code or "").startswith("12") or device.device_id in MODELS:
        return True
    return bridge is not None and (bridge.vendor_id, bridge.device_id) in CARD_SWITCHES


def _enrich(reader: Reader, devices: tuple[PciDevice, ...], gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    held = {device.address for device in awake(reader, devices, "amdgpu")}
    if not held:
        return gpus
    peers = read_xgmi(reader)
    version = reader.text("/sys/module/amdgpu/version") or None
    told = {address: _facts(reader, address, version, peers.get(address)) for address in held}
    return tuple(fill(gpu, told[gpu.address], source="amdgpu") if gpu.address in held else gpu for gpu in gpus)


def _facts(reader: Reader, address: str, version: str | None, peers: tuple[Peer, ...] | None) -> Gpu:
    """amdgpu's own files. Source: Documentation/gpu/amdgpu/{driver-misc,thermal,ras}.rst; power caps are microwatts.

    The UUID has ROCm's form GPU-<unique_id> (ROCR_VISIBLE_DEVICES).
    """
    folder = f"/sys/bus/pci/devices/{address}"
    unique = reader.text(f"{folder}/unique_id")
    monitors = reader.names(f"{folder}/hwmon")
    sensors = f"{folder}/hwmon/{monitors[0]}" if monitors else ""
    caps = sensors and f"{sensors}/power1_cap"
    uncorrected, corrected = read_ras(reader, folder)
    return Gpu(
        address=address,
        memory_bytes=reader.count(f"{folder}/mem_info_vram_total") or None,
        uuid=f"GPU-{unique.removeprefix('0x')}" if unique else None,
        firmware_version=reader.text(f"{folder}/vbios_version") or None,
        driver_version=version,
        power_limit_watts=_watts(reader, caps),
        power_default_watts=_watts(reader, caps and f"{caps}_default"),
        power_min_watts=_watts(reader, caps and f"{caps}_min"),
        power_max_watts=_watts(reader, caps and f"{caps}_max"),
        peers=peers,
        ecc_uncorrected=uncorrected,
        ecc_corrected=corrected,
        pcie_replays=reader.count(f"{folder}/pcie_replay_count"),
        temperature_c=_celsius(reader, sensors and f"{sensors}/temp1_input"),
        temperature_slowdown_c=_celsius(reader, sensors and f"{sensors}/temp1_crit"),
    )


def read_ras(reader: Reader, folder: str) -> tuple[int | None, int | None]:
    """Uncorrected and corrected errors of all blocks that count them: "ue: 0", "ce: 0" in ras/BLOCK_err_count."""
    blocks = []
    for name in reader.names(f"{folder}/ras"):
        if name.endswith("_err_count"):
            lines = (line.partition(":") for line in (reader.text(f"{folder}/ras/{name}") or "").splitlines())
            blocks.append({kind: number(value.strip()) for kind, _, value in lines})
    sums = []
    for kind in ("ue", "ce"):
        counts = [block.get(kind) for block in blocks]
        known = [count for count in counts if count is not None]
        sums.append(sum(known) if known and (len(known) == len(counts) or sum(known)) else None)
    return sums[0], sums[1]


def _celsius(reader: Reader, path: str) -> float | None:
    thousandths = reader.integer(path) if path else None
    return None if thousandths is None else thousandths / 1000


def _watts(reader: Reader, path: str) -> float | None:
    microwatts = reader.count(path) if path else None
    return None if microwatts is None else microwatts / 1e6


def read_xgmi(reader: Reader) -> dict[str, tuple[Peer, ...]]:
    """Each GPU's peers by address, from the KFD topology; a GPU that it does not list is missing.

    A node's `location_id` is bus << 8 | device << 3 | function and `domain` its PCI domain (kfd_topology.c);
    `gpu_id` 0 is a CPU. The number of XGMI links of a pair is not told: `links` stays unknown.
    """
    addresses = _nodes(reader)
    peers: dict[str, tuple[Peer, ...]] = {}
    for name, address in addresses.items():
        kinds = {
            link["node_to"]: link.get("type")
            for folder in (f"{NODES}/{name}/io_links", f"{NODES}/{name}/p2p_links")
            for entry in reader.names(folder)
            if "node_to" in (link := read_properties(reader, f"{folder}/{entry}/properties"))
        }
        if not kinds:
            continue  # a GPU has a link to its CPU at least: they were not read
        peers[address] = tuple(
            Peer(address=other, kind="xgmi" if kinds.get(int(key)) == IOLINK_XGMI else "pcie")
            for key, other in addresses.items()
            if key != name
        )
    return peers


def _nodes(reader: Reader) -> dict[str, str]:
    """The PCI address of each GPU of the KFD topology, by the name of its node."""
    nodes = {name: read_properties(reader, f"{NODES}/{name}/properties") for name in reader.names(NODES)}
    return {name: _address(node) for name, node in nodes.items() if node.get("simd_count")}


def read_properties(reader: Reader, path: str) -> dict[str, int]:
    """A KFD `properties` file: one "name number" a line; lines of another shape are passed over."""
    numbers: dict[str, int] = {}
    for line in (reader.text(path) or "").splitlines():
        name, _, number = line.partition(" ")
        if number.isdecimal():
            numbers[name] = int(number)
    return numbers


def _address(node: dict[str, int]) -> str:
    location = node.get("location_id", 0)
    return f"{node.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _lists(reader: Reader) -> tuple[Listing, ...]:
    """The GPUs of the KFD topology; it leaves out those that cannot compute."""
    gpus = tuple(Gpu(address=address, vendor="amd") for address in sorted(_nodes(reader).values()))
    return (Listing(name="the KFD topology", read=NODES, gpus=gpus, whole=False),) if gpus else ()


TELLS = frozenset(
    (
        *("driver_version", "ecc_corrected", "ecc_uncorrected", "peers", "pcie_replays", "power_default_watts"),
        *("power_limit_watts", "temperature_c", "temperature_slowdown_c"),
    )
)

AMD = Vendor(
    name="amd",
    vendor_id="1002",
    models=MODELS,
    makes=_makes,
    enrich=_enrich,
    driver="amdgpu",
    tells=TELLS,
    link="xgmi",
    lists=_lists,
    # PyTorch for ROCm speaks torch.cuda, and tells each device's PCI address (torch/csrc/cuda/Module.cpp).
    bench=Bench(backends=frozenset(("PyTorch",)), unproven="unproven: not seen on a machine with AMD GPUs"),
)
