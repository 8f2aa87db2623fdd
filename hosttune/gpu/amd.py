"""AMD GPUs (1002): Instinct, Radeon Pro. Facts come from amdgpu's sysfs files and the KFD topology; no tool is run.

A virtual function (MI300X VF) is a GPU of its own, and so is its physical function, which the SR-IOV host driver holds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from hosttune.gpu.inside import Inside
from hosttune.gpu.vendor import Bench, Hints, Listing, Part, Partitioning, Vendor, awake, fill
from hosttune.model import sysfs
from hosttune.model.gpu import Gpu, Peer
from hosttune.model.host import PciDevice
from hosttune.model.values import MAX_ID
from hosttune.reader import Reader, number

if TYPE_CHECKING:
    from hosttune.gpu.knobs import Knobs

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
# The switch on a discrete card (pci.ids: "Navi 10 XL … Port of PCI Express Switch", "Vega 10 PCIe Bridge").
CARD_SWITCHES = frozenset((("1002", "1478"), ("1002", "1479"), ("1022", "1470"), ("1022", "1471")))

NODES = "/sys/class/kfd/kfd/topology/nodes"
# Partition modes: drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c (current_compute_partition), amdgpu_gmc.c
# (current_memory_partition), aqua_vanjaram.c (modes of the memory that each mode of the compute dies allows).
COMPUTE_MODES = frozenset(("SPX", "DPX", "TPX", "QPX", "CPX"))
MEMORY_MODES = frozenset(("NPS1", "NPS2", "NPS3", "NPS4", "NPS6", "NPS8"))
VALID_MODES = {
    "SPX": ("NPS1",),
    "DPX": ("NPS1", "NPS2"),
    "TPX": ("NPS1", "NPS4"),
    "QPX": ("NPS1", "NPS2", "NPS4"),
    "CPX": ("NPS1", "NPS2", "NPS4"),
}
IOLINK_XGMI = 11  # CRAT_IOLINK_TYPE_XGMI, drivers/gpu/drm/amd/amdkfd/kfd_crat.h
_MOST_NODES = 256  # GPU nodes whose pairs are examined: 8 GPUs in 8 partitions each are 64
_MAX_U32, _MAX_U64 = (1 << 32) - 1, (1 << 64) - 1  # location_id and domain; any property (kfd_topology.h)


def _makes(device: PciDevice, bridge: PciDevice | None) -> bool:
    """Return whether it is a processing accelerator, a known card, or a function below a card's own switch.

    Any other function of class 03xx is graphics built into a CPU, or a board's console (ES1000, Rage XL).
    """
    if (device.class_code or "").startswith("12") or device.device_id in MODELS:
        return True
    return bridge is not None and (bridge.vendor_id, bridge.device_id) in CARD_SWITCHES


def _enrich(reader: Reader, devices: tuple[PciDevice, ...], gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    held = {device.address for device in awake(reader, devices, "amdgpu")}
    if not held:
        return gpus
    peers, listed = read_xgmi(reader)
    models = {device.address: device.device_id for device in devices if device.address in held}
    # If the topology lacks one GPU of a model, the peers of the model's other GPUs are not completely known.
    lacking = {models[address] for address in held - listed} & {models[address] for address in held & listed}
    peers = {address: others for address, others in peers.items() if models.get(address) not in lacking}
    version = reader.text("/sys/module/amdgpu/version") or None
    blocks = _blocks(reader, [device for device in devices if device.address in held])
    facts = {address: _facts(reader, address, version, peers.get(address), blocks[address]) for address in held}
    return tuple(fill(gpu, facts[gpu.address], source="amdgpu") if gpu.address in held else gpu for gpu in gpus)


def _blocks(reader: Reader, devices: Collection[PciDevice]) -> dict[str, frozenset[str]]:
    """Return the RAS blocks in which a GPU counts errors, by address: those of all GPUs here with its device id."""
    found: dict[str | None, frozenset[str]] = {}
    for device in devices:
        names = _ras_blocks(reader, sysfs.function(device.address))
        found[device.device_id] = found.get(device.device_id, frozenset()) | frozenset(names)
    return {device.address: found[device.device_id] for device in devices}


def _facts(
    reader: Reader, address: str, version: str | None, peers: tuple[Peer, ...] | None, blocks: Collection[str]
) -> Gpu:
    """Return the facts in amdgpu's own files.

    Source: Documentation/gpu/amdgpu/{driver-misc,thermal,ras}.rst; power caps are in microwatts. The UUID has ROCm's
    form GPU-<unique_id> (ROCR_VISIBLE_DEVICES).
    """
    folder = sysfs.function(address)
    unique = reader.text(f"{folder}/unique_id")
    sensors = _sensors(reader, folder)
    caps = sensors and f"{sensors}/power1_cap"
    uncorrected, corrected = read_ras(reader, folder, blocks)
    temperature, limit = _heat(reader, sensors)
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
        compute_partition=_mode(reader, f"{folder}/current_compute_partition", COMPUTE_MODES),
        memory_partition=_mode(reader, f"{folder}/current_memory_partition", MEMORY_MODES),
        ecc_uncorrected=uncorrected,
        ecc_corrected=corrected,
        pcie_replays=reader.count(f"{folder}/pcie_replay_count"),
        temperature_c=temperature,
        temperature_slowdown_c=limit,
    )


def _mode(reader: Reader, path: str, known: Collection[str]) -> str | None:
    """Return a partition mode as amdgpu prints it; None, with a problem, for any other text ("UNKNOWN")."""
    text = reader.text(path)
    if text and text not in known:
        reader.problem("not a partition mode", path, f"reads {text[:40]!r}")
    return text if text in known else None


def _sensors(reader: Reader, folder: str) -> str:
    """Return the folder of the GPU's sensors; "" if there is none, or several.

    amdgpu registers only one. If there are several, it is unknown which one is amdgpu's.
    """
    monitors = [name for name in reader.names(f"{folder}/hwmon") if re.fullmatch(r"hwmon[0-9]{1,9}", name)]
    if len(monitors) > 1:
        why = f"it has {' and '.join(monitors[:3])}: its power limits and temperature are unknown"
        reader.problem("sensors of a GPU listed more than once", f"{folder}/hwmon", why)
    return f"{folder}/hwmon/{monitors[0]}" if len(monitors) == 1 else ""


def _ras_blocks(reader: Reader, folder: str) -> list[str]:
    names = (re.fullmatch(r"([a-z0-9_]{1,40})_err_count", name) for name in reader.names(f"{folder}/ras"))
    return [name[1] for name in names if name]


def read_ras(reader: Reader, folder: str, blocks: Collection[str] = ()) -> tuple[int | None, int | None]:
    """Return uncorrected and corrected errors, summed over all blocks: "ue: 0", "ce: 0" in ras/BLOCK_err_count.

    `blocks`: those that must exist, because other GPUs of the model have them. If one of them is missing, cannot be
    read or has two values for a count, a sum of 0 is unknown; a sum of errors that were counted remains.
    """
    names = {*blocks, *_ras_blocks(reader, folder)}
    by_block = [_counts(reader.text(f"{folder}/ras/{name}_err_count") or "") for name in sorted(names)]
    sums = []
    for kind in ("ue", "ce"):
        counts = [counted.get(kind) for counted in by_block]
        known = [count for count in counts if count is not None]
        sums.append(sum(known) if known and (len(known) == len(counts) or sum(known)) else None)
    return sums[0], sums[1]


def _counts(text: str) -> dict[str, int | None]:
    """Return the counts of one block by kind; None for a kind that occurs more than once with different numbers."""
    found: dict[str, int | None] = {}
    for kind, _, value in (line.partition(":") for line in text.splitlines()):
        count = number(value.strip())
        found[kind] = count if found.get(kind, count) == count else None
    return found


def _heat(reader: Reader, sensors: str) -> tuple[float | None, float | None]:
    """Return temperature and limit of the sensor that is nearest to its limit, in degrees; None: unknown.

    amdgpu has three: edge, junction and memory, temp1 to temp3; MI300 has no edge (amdgpu_pm.c,
    hwmon_attributes_visible). If one of them is not known, it may be the hottest: then only a sensor at its limit
    is told.
    """
    names = filter(None, (re.match(r"temp([1-3])_", name) for name in reader.names(sensors))) if sensors else ()
    known = [
        (_celsius(reader, f"{sensors}/temp{one}_input"), _celsius(reader, f"{sensors}/temp{one}_crit"))
        for one in sorted({name[1] for name in names})
    ]
    whole = sorted((limit - now, now, limit) for now, limit in known if now is not None and limit)
    if whole and (whole[0][0] <= 0 or len(whole) == len(known)):
        return whole[0][1:]
    unsure = [now for now, limit in known if now is None or not limit]
    return (None if not unsure or None in unsure else unsure[0]), None


def _celsius(reader: Reader, path: str) -> float | None:
    thousandths = reader.count(path)  # a working GPU is not below 0 degrees
    return None if thousandths is None else thousandths / 1000


def _watts(reader: Reader, path: str) -> float | None:
    microwatts = reader.count(path) if path else None
    return None if microwatts is None else microwatts / 1e6


def read_xgmi(reader: Reader) -> tuple[dict[str, tuple[Peer, ...]], frozenset[str]]:
    """Return each GPU's peers by address, and the addresses of all GPUs, from the KFD topology.

    The kernel lists a link between two GPUs at both of them (kfd_parse_subtype_iolink adds the reverse link). A GPU is
    left out of the peers if its links, or those of a peer to it, were not read, contradict each other or lead to an
    unknown node. The number of XGMI links of a pair is not reported, so `links` stays unknown.
    """
    nodes = {name: node for name, node in _nodes(reader).items() if number(name, MAX_ID) is not None}
    places = {int(name): place for name, place in _places(nodes).items()}
    addresses = {key: address for key, address in places.items() if address}
    here = sorted(set(addresses.values()))
    if len(here) > _MOST_NODES:
        reader.problem("too many GPUs", NODES, f"{len(here)}, at most {_MOST_NODES}: their XGMI links are unknown")
        return {}, frozenset(here)
    links: dict[str, dict[str | None, set[int | None]]] = {address: {} for address in here}
    for key, address in addresses.items():
        for link in _links(reader, f"{NODES}/{key}"):
            node_to = link.get("node_to")
            to = None if node_to is None else places.get(node_to)
            links[address].setdefault(to, set()).add(link.get("type"))
    kinds = {(one, other): _kind(links[one].get(other), links[other].get(one)) for one in here for other in here}
    peers: dict[str, tuple[Peer, ...]] = {}
    for one in here:
        others = [other for other in here if other != one]
        doubtful = [other for other in others if kinds[one, other] is None]
        if doubtful or None in links[one]:
            why = f"its links to {doubtful[0] if doubtful else 'a node'} differ at their two ends, or were not read"
            reader.problem("XGMI links contradicted", f"{NODES}: {one}", f"{why}: which peers it has is unknown")
        elif links[one]:  # a GPU has at least a link to its CPU: without any link, they were not read
            peers[one] = tuple(Peer(address=other, kind=kinds[one, other] or "") for other in others)
    return peers, frozenset(here)


def _links(reader: Reader, node: str) -> Iterator[dict[str, int | None]]:
    for folder in (f"{node}/io_links", f"{node}/p2p_links"):
        for entry in reader.names(folder):
            yield read_properties(reader, f"{folder}/{entry}/properties")


def _kind(there: Collection[int | None] | None, back: Collection[int | None] | None) -> str | None:
    """Return what connects two GPUs, by the types of the links that each lists to the other; None if these differ.

    GPUs connected by PCIe list no link, or links of other types.
    """
    if there == back == {IOLINK_XGMI}:
        return "xgmi"
    return None if {IOLINK_XGMI, None} & {*(there or ()), *(back or ())} else "pcie"


def _nodes(reader: Reader) -> dict[str, dict[str, int | None]]:
    """Return the properties of each node of the KFD topology, by its name, which is its number."""
    return {name: read_properties(reader, f"{NODES}/{name}/properties") for name in reader.names(NODES)}


def read_properties(reader: Reader, path: str) -> dict[str, int | None]:
    """Return the values of a KFD `properties` file: one "name number" a line.

    None: not a number, or two different ones.
    """
    numbers: dict[str, int | None] = {}
    for line in (reader.text(path) or "").splitlines():
        name, _, word = line.partition(" ")
        value = number(word, _MAX_U64)
        if value is None or numbers.get(name, value) != value:
            reader.problem("not a property of the KFD topology", path, f"reads {line[:40]!r}")
            value = None
        numbers[name] = value
    return numbers


def _places(nodes: Mapping[str, Mapping[str, int | None]]) -> dict[str, str | None]:
    """Return where each node is (see `_place`); the partitions of a divided GPU are all where their GPU is.

    Each partition has a node. On MI300 its number is in the last bits of `location_id`, which are the PCI function's;
    newer kernels have it in bits 31:28 (kfd_topology.c, kfd_topology_add_device). All have the GPU's `unique_id`.
    """
    places = {name: _place(node) for name, node in nodes.items()}
    gpus: dict[tuple[str, int], str] = {}
    slots = {
        name: (place[:-1], unique)
        for name, place in places.items()
        if place and (unique := nodes[name].get("unique_id"))
    }
    for name, slot in slots.items():
        place = places[name] or ""
        gpus[slot] = min(gpus.get(slot, place), place)
    return {name: gpus[slots[name]] if name in slots else place for name, place in places.items()}


def _place(node: Mapping[str, int | None]) -> str | None:
    """Return the PCI address of a node that is a GPU, "" for a CPU (it has no SIMD), None if unknown.

    `location_id` is bus << 8 | device << 3 | function, and `domain` its PCI domain (kfd_topology.c).
    """
    simd, location, domain = node.get("simd_count"), node.get("location_id"), node.get("domain", 0)
    if simd == 0:
        return ""
    if simd is None or location is None or domain is None or max(location, domain) > _MAX_U32:
        return None
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _lists(reader: Reader) -> tuple[Listing, ...]:
    """Yield the GPUs of the KFD topology, which leaves out GPUs that cannot compute."""
    addresses = sorted({address for address in _places(_nodes(reader)).values() if address})
    gpus = tuple(Gpu(address=address, vendor="amd") for address in addresses)
    return (Listing(name="the KFD topology", read=NODES, gpus=gpus, whole=False),) if gpus else ()


# Sources: amd/MxGPU-Virtualization, release 9.4.0.K (MI300X in guests: SPX with NPS1, CPX with NPS4; XGMI between 8
# GPUs), README (1, 2, 4 or 8 GPUs in one guest); ROCm/amdsmi, docs/conceptual/partition.md (CDNA 3 and later).
PARTITIONING = Partitioning(
    devices=frozenset(("74a0", "74a1", "74a2", "74a5", "74a9", "75a0", "75a3")),
    valid=VALID_MODES,
    whole="SPX",
)
# ROCm/amdsmi, docs/conceptual/gpu-reset-behavior.md: Instinct GPUs that XGMI joins; nothing of virtual functions.
RESETS_PEERS = {
    device: "a reset of one GPU, as before each start of its guest, can interrupt the GPUs that XGMI joins with it, and"
    " their guests"
    for device, name in MODELS.items()
    if "Instinct" in name and not name.endswith(" VF")
}
TELLS = frozenset(
    (
        *("driver_version", "ecc_corrected", "ecc_uncorrected", "peers", "pcie_replays", "power_default_watts"),
        *("power_limit_watts", "temperature_c", "temperature_slowdown_c", "compute_partition", "memory_partition"),
    )
)


def _parts(gpu: Gpu) -> tuple[Part, ...] | str | None:
    """Return why a divided GPU is not measured: it is several devices with one PCI address; None for a whole GPU."""
    if gpu.compute_partition in (None, PARTITIONING.whole):
        return None
    return f"it is divided ({gpu.compute_partition}): no source has figures of its parts; measure it in SPX"


def _knobs() -> Knobs:
    from hosttune.gpu.amd_set import AMD_KNOBS

    return AMD_KNOBS


# Sources: ROCm/amdsmi, docs/how-to/amdsmi-cli-tool.md: static, metric, process, topology, bad-pages, reset (a reset of
# one GPU resets all GPUs of its XGMI hive, and ends every process that has /dev/kfd open).
HINTS = Hints(
    tool="amd-smi",
    reporters="none of the driver's files in sysfs",
    unreported="look for messages of amdgpu in the kernel log, and run as root",
    show="amd-smi metric -g {gpu}",
    defaults="amd-smi static --limit",
    power="amd-smi static --limit -g {gpu}",
    heat="amd-smi static --limit -g {gpu}",
    processes="amd-smi process -g {gpu}",
    links="amd-smi topology --link-type",
    partition="amd-smi static --partition -g {gpu}",
    reset="reboot, or run amd-smi reset --gpureset -g {gpu} once nothing uses any GPU here (it resets all that XGMI"
    " joins)",
    repaired="amd-smi bad-pages -g {gpu} lists the pages that were retired",
    lost="messages of amdgpu",
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
    tellers={"amdgpu": "sysfs of amdgpu"},
    hints=HINTS,
    knobs=_knobs,
    partitioning=PARTITIONING,
    resets_peers=RESETS_PEERS,
    # NCCL's version number: ROCm/rccl, src/graph/xml.h.
    inside=Inside(
        note="AMD: no persistence or power setting has a source, so none is made",
        nccl="2",
        library_file="/etc/rccl.conf",
    ),
    # PyTorch for ROCm uses torch.cuda, and gives each device's PCI address (torch/csrc/cuda/Module.cpp).
    bench=Bench(
        backends=frozenset(("PyTorch",)), parts=_parts, unproven="unproven: not seen on a machine with AMD GPUs"
    ),
)
