"""AMD GPUs (1002): Instinct, Radeon Pro. Facts come from amdgpu's sysfs files and the KFD topology, beside `amd-smi`.

A virtual function (MI300X VF) is a GPU of its own, and so is its physical function, which the SR-IOV host driver holds.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from hosttune.errors import Unreadable, WriteFailed
from hosttune.gpu.amd_smi import QUERY, listings, with_static
from hosttune.gpu.amd_topology import NODES, listed_gpus, read_xgmi, render_nodes
from hosttune.gpu.inside import Inside
from hosttune.gpu.knobs import POWER_LIMIT, Knobs
from hosttune.gpu.memory_tests import ROCM
from hosttune.gpu.vendor import (
    Bench,
    Hints,
    Listing,
    LogRecords,
    MeasuredPart,
    Partitioning,
    Traces,
    Vendor,
    awake,
    fill,
)
from hosttune.linux.kernellines import FULL, KernelLine
from hosttune.machine.reader import Reader, number
from hosttune.machine.system import System
from hosttune.model import pciclass, sysfs
from hosttune.model.host import Gpu, PciDevice, Peer

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

# Partition modes: drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c (current_compute_partition), amdgpu_gmc.c
# (current_memory_partition).
COMPUTE_MODES = frozenset(("SPX", "DPX", "TPX", "QPX", "CPX"))
MEMORY_MODES = frozenset(("NPS1", "NPS2", "NPS3", "NPS4", "NPS6", "NPS8"))


def _makes(device: PciDevice, bridge: PciDevice | None) -> bool:
    """Return whether it is a processing accelerator, a known card, or a function below a card's own switch.

    Any other function of class 03xx is graphics built into a CPU, or a board's console (ES1000, Rage XL).
    """
    if (device.class_code or "").startswith(pciclass.ACCELERATOR) or device.device_id in MODELS:
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
    version = _version(reader)
    blocks = _blocks(reader, [device for device in devices if device.address in held])
    facts = {address: _facts(reader, address, version, peers.get(address), blocks[address]) for address in held}
    facts = with_static(reader, devices, facts)
    return tuple(fill(gpu, facts[gpu.address], source="amdgpu") if gpu.address in held else gpu for gpu in gpus)


def _version(reader: Reader) -> str | None:
    """Return the driver's version: the kernel's, where the module has none of its own, because it is a part of it.

    Source: ROCm/amdsmi @0ceca28, src/amd_smi/amd_smi_utils.cc (smi_amdgpu_get_driver_version).
    """
    own = "/sys/module/amdgpu/version"
    version = reader.text(own) or None
    return reader.text("/proc/sys/kernel/osrelease") or None if version is None and reader.lacks(own) else version


def _blocks(reader: Reader, devices: Collection[PciDevice]) -> dict[str, frozenset[str]]:
    """Return the RAS blocks in which a GPU counts errors, by address: those of all GPUs here with its device id."""
    blocks: dict[str | None, frozenset[str]] = {}
    for device in devices:
        names = _ras_blocks(reader, sysfs.function(device.address))
        blocks[device.device_id] = blocks.get(device.device_id, frozenset()) | frozenset(names)
    return {device.address: blocks[device.device_id] for device in devices}


def _facts(
    reader: Reader, address: str, version: str | None, peers: tuple[Peer, ...] | None, blocks: Collection[str]
) -> Gpu:
    """Return the facts in amdgpu's own files.

    Source: Documentation/gpu/amdgpu/{driver-misc,thermal,ras}.rst; power caps are in microwatts. The UUID has ROCm's
    form GPU-<unique_id> (ROCR_VISIBLE_DEVICES).
    """
    folder = sysfs.function(address)
    unique = reader.text(f"{folder}/unique_id")
    # amdgpu registers only one; of several it is unknown which one is amdgpu's
    monitors = [name for name in reader.names(f"{folder}/hwmon") if re.fullmatch(r"hwmon[0-9]{1,9}", name)]
    if len(monitors) > 1:
        why = f"it has {' and '.join(monitors[:3])}: its power limits and temperature are unknown"
        reader.problem("sensors of a GPU listed more than once", f"{folder}/hwmon", why)
    sensors = f"{folder}/hwmon/{monitors[0]}" if len(monitors) == 1 else ""
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
    counts: dict[str, int | None] = {}
    for kind, _, value in (line.partition(":") for line in text.splitlines()):
        count = number(value.strip())
        counts[kind] = count if counts.get(kind, count) == count else None
    return counts


def _heat(reader: Reader, sensors: str) -> tuple[float | None, float | None]:
    """Return temperature and limit of the sensor that is nearest to its limit, in degrees; None: unknown.

    amdgpu has three: edge, junction and memory, temp1 to temp3; MI300 has no edge (amdgpu_pm.c,
    hwmon_attributes_visible). If one of them is not known, it may be the hottest: then only a sensor at its limit
    is told.
    """
    names = filter(None, (re.match(r"temp([1-3])_", name) for name in reader.names(sensors))) if sensors else ()
    known = [
        (_celsius(reader, f"{sensors}/temp{sensor}_input"), _celsius(reader, f"{sensors}/temp{sensor}_crit"))
        for sensor in sorted({name[1] for name in names})
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


def _lists(reader: Reader) -> tuple[Listing, ...]:
    """Return the GPUs that amd-smi listed, and those of the KFD topology, which leaves out GPUs that cannot compute."""
    addresses = listed_gpus(reader)
    gpus = tuple(Gpu(address=address, vendor="amd") for address in addresses)
    topology = (Listing(name="the KFD topology", read=NODES, gpus=gpus, whole=False),) if gpus else ()
    return (*listings(reader), *topology)


# Sources: amd/MxGPU-Virtualization, release 9.4.0.K (MI300X in guests: SPX with NPS1, CPX with NPS4; XGMI between 8
# GPUs), README (1, 2, 4 or 8 GPUs in one guest); ROCm/amdsmi, docs/conceptual/partition.md (CDNA 3 and later).
PARTITIONING = Partitioning(
    devices=frozenset(("74a0", "74a1", "74a2", "74a5", "74a9", "75a0", "75a3")),
    whole="SPX",
)
# amd/MxGPU-Virtualization issue 25 (open), MI300X.
RESET_REPORTS = {
    "74a1": "one report has it that a reset by vfio leaves its configuration space at all ones until the host reboots:"
    " AMD gives virtual functions to guests (GIM)"
}
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
        "unrepairable_memory",
    )
)


def _parts(gpu: Gpu) -> tuple[MeasuredPart, ...] | str | None:
    """Return why a divided GPU is not measured: it is several devices with one PCI address; None for a whole GPU."""
    if gpu.compute_partition in (None, PARTITIONING.whole):
        return None
    return f"it is divided ({gpu.compute_partition}): no source has figures of its parts; measure it in SPX"


# Sources: ROCm/amdsmi, docs/how-to/amdsmi-cli-tool.md: static, metric, process, topology, bad-pages, reset (a reset of
# one GPU resets all GPUs of its XGMI hive, and ends every process that has /dev/kfd open).
HINTS = Hints(
    tool="amd-smi",
    reporters="none of the driver's files in sysfs",
    unreported="look for messages of amdgpu in the kernel log, and run as root",
    show="amd-smi metric -g {gpu}",
    heat="amd-smi static --limit -g {gpu}",
    processes="amd-smi process -g {gpu}",
    links="amd-smi topology --link-type",
    partition="amd-smi static --partition -g {gpu}",
    reset="reboot, or run amd-smi reset --gpureset -g {gpu} once nothing uses any GPU here (it resets all that XGMI"
    " joins)",
    repaired="amd-smi bad-pages -g {gpu} lists the pages that were retired",
    lost="messages of amdgpu",
)
# Linux drivers/gpu/drm/amd/amdgpu: amdgpu_ras.c, amdgpu_device.c, amdgpu_drv.c; newer kernels repeat the driver's name.
_LOGGED = rf"amdgpu (?P<address>{FULL}): (?:amdgpu: )?"
_LINES = (
    KernelLine("gpu-memory", "uncorrectable hardware errors detected in",
               rf"{_LOGGED}(?:\{{[0-9]{{1,20}}\}} ?)?(?:socket: [0-9]{{1,3}},? (?:die: [0-9]{{1,3}},? )?)?"
               r"[1-9][0-9]{0,9} (?:new )?uncorrectable hardware errors detected in",
               "amdgpu_ras.c, amdgpu_ras_error_print_error_data", outcome="fail",
               says="it counted uncorrected errors of its memory or engines",
               remedy="see ecc-errors and amd-smi bad-pages; reset it before the next tenant, and replace it if they"
               " come back"),
    KernelLine("gpu-reset-failed", "GPU reset.* failed|GPU reset end with ret|error during GPU init",
               rf"{_LOGGED}(?:GPU reset\([0-9]{{1,5}}\) failed|GPU reset end with ret = -|Fatal error during GPU init)",
               "amdgpu_device.c, amdgpu_device_gpu_recover; amdgpu_kms.c, amdgpu_driver_load_kms", outcome="fail",
               says="it did not start, or not again after a reset",
               remedy="power-cycle the host; if it comes back, take the GPU out of use and ask its maker"),
)  # fmt: skip

# --- the power cap ---------------------------------------------------------------------------------------------
# Settings of AMD GPUs that `amdgpu` holds: only the power cap, a file of the kernel. No other knob is known.
# Source: drivers/gpu/drm/amd/pm/amdgpu_pm.c, "DOC: hwmon" (Documentation/gpu/amdgpu/thermal.rst): power1_cap is the
# selected cap in microwatts, between power1_cap_min and power1_cap_max. The driver keeps only whole watts of a
# written value.

_MICROWATTS = 10**6


def facts(system: System, address: str) -> Gpu:
    """Return the power cap and its range in watts; unknown if the driver shows none (a virtual function). See Knobs."""
    cap = _cap(system, address)
    return Gpu(
        address=address,
        power_limit_watts=_cap_watts(system, cap),
        power_default_watts=_cap_watts(system, cap and f"{cap}_default"),
        power_min_watts=_cap_watts(system, cap and f"{cap}_min"),
        power_max_watts=_cap_watts(system, cap and f"{cap}_max"),
    )


def _cap(system: System, address: str) -> str | None:
    """Return the path of the cap's file. The kernel numbers its hardware monitors anew at every boot."""
    folder = sysfs.function(address, "hwmon")
    monitors = system.list(folder)
    return f"{folder}/{monitors[0]}/power1_cap" if monitors else None


def _cap_watts(system: System, path: str | None) -> float | None:
    text = system.read(path) if path else None
    if not text:
        return None
    microwatts = number(text)
    if microwatts is None:
        raise Unreadable(path or "", f"reads {text[:40]!r}, which is not a number")
    return microwatts / _MICROWATTS


def _set_power_limit(system: System, address: str, watts: Any) -> None:
    path = _cap(system, address)
    if path is None:
        raise WriteFailed(f"the power limit of {address}", "amdgpu shows no power cap for it")
    system.write(path, str(round(watts * _MICROWATTS)))


AMD_KNOBS = Knobs(driver="amdgpu", facts=facts, writers={POWER_LIMIT: _set_power_limit})

# --- the maker ---------------------------------------------------------------------------------------------------

AMD = Vendor(
    name="amd",
    vendor_id="1002",
    models=MODELS,
    makes=_makes,
    enrich=_enrich,
    queries=(QUERY,),
    driver="amdgpu",
    module_version=False,
    tells=TELLS,
    link="xgmi",
    lists=_lists,
    tellers={"amdgpu": "sysfs of amdgpu"},  # amd-smi contradicts, and adds little
    hints=HINTS,
    knobs=AMD_KNOBS,
    traces=Traces(nodes=render_nodes, log=LogRecords(lines=_LINES)),
    partitioning=PARTITIONING,
    resets_peers=RESETS_PEERS,
    reset_reports=RESET_REPORTS,
    # NCCL's version number: ROCm/rccl, src/graph/xml.h.
    inside=Inside(
        note="AMD: no persistence or power setting has a source, so none is made",
        nccl="2",
        library_file="/etc/rccl.conf",
        reads_rom=True,  # Linux drivers/gpu/drm/amd/amdgpu/amdgpu_bios.c, amdgpu_read_bios (pci_map_rom)
    ),
    memory_test=ROCM,
    # PyTorch for ROCm uses torch.cuda, and gives each device's PCI address (torch/csrc/cuda/Module.cpp).
    bench=Bench(
        backends=frozenset(("PyTorch",)), parts=_parts, unproven="unproven: not seen on a machine with AMD GPUs"
    ),
)
