"""NVIDIA GPUs (10de): what NVML reports of those that the `nvidia` driver holds, or else what nvidia-smi printed.

A GPU on vfio-pci is invisible to both, so only the facts of its PCI function are known. NVML does not list virtual
functions on a host. Sources are asked in this order: NVML, `nvidia-smi -q -x`, `nvidia-smi -q`, then the tables.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hosttune.errors import BadInput, CommandFailed
from hosttune.gpu.inside import Inside
from hosttune.gpu.memory_tests import CUDA
from hosttune.gpu.mig import parse_mig_placements, parse_mig_profiles, parts, place
from hosttune.gpu.nvidia_clear import MEMORY_CLEAR
from hosttune.gpu.nvidia_host import DRIVER, HINTS, NVML, TRACES, lists
from hosttune.gpu.nvidia_links import (
    links_of_tables,
    nvlinks_by_address,
    parse_nvlink_status,
    parse_topo_matrix,
    peers_from_matrix,
)
from hosttune.gpu.nvidia_rates import GENERATIONS
from hosttune.gpu.nvidia_set import NVIDIA_KNOBS, with_recorded_settings
from hosttune.gpu.nvidia_smi import parse_smi_text, parse_smi_xml
from hosttune.gpu.nvidia_words import TELLS
from hosttune.gpu.nvml import Asking
from hosttune.gpu.nvml_facts import parse_nvml
from hosttune.gpu.vendor import Bench, MeasuredPart, Vendor, VendorAnswer, always, ask, awake, fill
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.gpu import Gpu, Mig
from hosttune.model.host import PciDevice, Problem

# pci.ids (pciutils/pciids 2026.08.22); product names of open-gpu-kernel-modules g_nv_name_released.h and nvidia-smi.
MODELS = {
    "20b0": "NVIDIA A100-SXM4-40GB",
    "20b1": "NVIDIA A100-PCIE-40GB",
    "20b2": "NVIDIA A100-SXM4-80GB",
    "20b5": "NVIDIA A100 80GB PCIe",
    "20b7": "NVIDIA A30",
    "20f1": "NVIDIA A100-PCIE-40GB",
    "20f3": "NVIDIA A800-SXM4-80GB",
    "20f5": "NVIDIA A800 80GB PCIe",
    "2235": "NVIDIA A40",
    "2236": "NVIDIA A10",
    "2321": "NVIDIA H100 NVL",
    "2322": "NVIDIA H800 PCIe",
    "2324": "NVIDIA H800",
    "2329": "NVIDIA H20",
    "232c": "NVIDIA H20-3e",
    "2330": "NVIDIA H100 80GB HBM3",
    "2331": "NVIDIA H100 PCIe",
    "2335": "NVIDIA H200",
    "2336": "NVIDIA H100",
    "2337": "NVIDIA H100 SXM5 64GB",
    "2338": "NVIDIA H100 SXM5 96GB",
    "2339": "NVIDIA H100 SXM5 94GB",
    "233a": "NVIDIA H800 NVL",
    "233b": "NVIDIA H200 NVL",
    "233d": "NVIDIA H100 96GB",
    "26b5": "NVIDIA L40",
    "26b9": "NVIDIA L40S",
    "27b8": "NVIDIA L4",
    "2901": "NVIDIA B200",
    "2941": "NVIDIA GB200",
    "2bb1": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "2bb4": "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "2bb5": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "3182": "NVIDIA B300",
    "31c2": "NVIDIA GB300",
}
# Reported by operators, not documented by NVIDIA: CloudRift, "RTX 5090 and RTX PRO 6000 virtualization bug" (2025), and
# tinygrad pull request 18199 (2026, RTX 5090, the same chip). Under vfio-pci, after a function-level reset, the
# function no longer answers until the host is power-cycled. H100 and B200 are not affected. No driver or VBIOS that
# fixes it is known.
_HANGS = (
    "boards of this model have been seen not to come back from the reset when a guest ends (no answer after FLR until"
    " the host is power-cycled): end its guests seldom, and keep driver, VBIOS and kernel recent"
)
# Dstack-TEE/dstack#1048: on H200 a function-level reset left state of the security processor; a bus reset cleared it.
WEAK_RESETS = {"flr": "a function-level reset left state of the security processor (H200)"}
RESET_DOUBTS = dict.fromkeys(("2bb1", "2bb4", "2bb5"), _HANGS)
COMMANDS = {
    "nvidia-smi-q-x": ("nvidia-smi", "-q", "-x"),
    "nvidia-smi-q": ("nvidia-smi", "-q"),
    "nvidia-smi-topo-m": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-nvlink-s": ("nvidia-smi", "nvlink", "-s"),
    "nvidia-smi-nvlink-e": ("nvidia-smi", "nvlink", "-e"),
    "mig-lgip": ("nvidia-smi", "mig", "-lgip"),
    "mig-lgipp": ("nvidia-smi", "mig", "-lgipp"),
}


def _begin(reader: Reader) -> None:
    """Begin to ask NVML what `_from_nvml` will: it takes as long as all else of discovery, which goes on meanwhile."""
    if reader.system.captured:
        return
    held = filter(sysfs.is_function, reader.names(f"{sysfs.PCI_DRIVERS}/{DRIVER}"))
    asked = [
        address
        for address in held
        if reader.lacks(sysfs.function(address, "physfn"))
        and reader.text(sysfs.function(address, "power/runtime_status")) in ("active", "unsupported")
    ]
    if asked:
        reader.begun[NVML] = Asking(asked)


def _enrich(reader: Reader, devices: tuple[PciDevice, ...], gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    held = tuple(device for device in devices if device.driver == DRIVER and device.physfn is None)
    asked = awake(reader, held, DRIVER)
    if not asked:
        return gpus
    addresses = tuple(device.address for device in asked)
    facts = _from_nvml(reader, addresses)
    # A capture may hold the answers of both NVML and nvidia-smi: what the first lacks is taken from the second.
    if reader.system.captured or any(address not in facts or facts[address].uuid is None for address in addresses):
        for address, gpu in _from_smi(reader, addresses, all_awake=len(asked) == len(held)).items():
            facts[address] = fill(facts[address], gpu) if address in facts else gpu
    _name_missing(reader, addresses, facts)
    joined = tuple(
        fill(gpu, facts[gpu.address], source=facts[gpu.address].source) if gpu.address in facts else gpu for gpu in gpus
    )
    joined = _unique_modules(reader, joined)
    if reader.system.scratch:  # the settings made on it since it was recorded
        joined = tuple(with_recorded_settings(reader.system, gpu) if gpu.address in facts else gpu for gpu in joined)
    for problem in gpus_off_fabric(joined):
        reader.problem(problem.what, problem.where, problem.why)
    return joined


def _from_nvml(reader: Reader, addresses: tuple[str, ...]) -> dict[str, Gpu]:
    """Return NVML's facts about these GPUs. If the library itself fails, nvidia-smi is used instead."""

    def live() -> str:
        begun: Asking | None = reader.begun.pop(NVML, None)
        return (begun if begun and begun.addresses >= set(addresses) else Asking(addresses)).answer()

    text = ask(reader, NVML, live)
    if text is None:
        return {}
    try:
        answer = parse_nvml(text, only=addresses[0] if len(addresses) == 1 else None)
    except BadInput as error:
        reader.problem("NVML did not answer", NVML, error.what)
        return {}
    return _join(reader, answer, addresses, NVML)


def _join(reader: Reader, answer: VendorAnswer, addresses: tuple[str, ...], source: str) -> dict[str, Gpu]:
    """Return the reported GPUs that are among `addresses`, with their source. Adds the answer's problems."""
    for problem in answer.problems:
        reader.problem(problem.what, problem.where, problem.why)
    teller = "nvml" if source == NVML else "nvidia-smi"
    return {gpu.address: msgspec.structs.replace(gpu, source=teller) for gpu in answer.gpus if gpu.address in addresses}


def _from_smi(reader: Reader, addresses: tuple[str, ...], *, all_awake: bool) -> dict[str, Gpu]:
    """Return nvidia-smi's facts. It opens every GPU, so on a live host it runs only if none is asleep (`all_awake`)."""
    answers: list[VendorAnswer] = []
    for name, parse in (("nvidia-smi-q-x", parse_smi_xml), ("nvidia-smi-q", parse_smi_text)):
        if answers and not reader.system.captured:
            break
        text = _command(reader, name, all_awake=all_awake)
        answer = VendorAnswer() if text is None else _parse(reader, name, text, parse)
        if answer.gpus:
            answers.append(answer)
    if not answers:
        return {}
    facts: dict[str, Gpu] = {}
    for answer in answers:
        for address, gpu in _join(reader, answer, addresses, "nvidia-smi").items():
            facts[address] = fill(facts[address], gpu) if address in facts else gpu
    listed = answers[0]
    if any([gpu.address for gpu in other.gpus] != [gpu.address for gpu in listed.gpus] for other in answers):
        problem = Problem(
            what="GPUs in two orders",
            where="nvidia-smi-q",
            why="nvidia-smi -q and nvidia-smi -q -x do not list the same GPUs",
        )
        reader.problem(problem.what, problem.where, problem.why)
        listed = msgspec.structs.replace(listed, problems=(*listed.problems, problem))
    return _from_tables(reader, facts, listed, all_awake=all_awake)


def _parts(gpu: Gpu) -> tuple[MeasuredPart, ...] | str | None:
    return parts(gpu)


def _parse(reader: Reader, name: str, text: str, parse: Callable[[str], VendorAnswer]) -> VendorAnswer:
    try:
        return parse(text)
    except BadInput as error:
        reader.problem("nvidia-smi output not understood", name, error.what)
        return VendorAnswer()


def _command(reader: Reader, name: str, *, all_awake: bool) -> str | None:
    """Return a command's output, recorded or live; None if there is none (on a live host, a failure is a problem)."""

    def live() -> str | None:
        if not all_awake:
            return None
        try:
            return reader.system.run(COMMANDS[name], timeout=60.0)
        except CommandFailed as error:
            reader.problem("nvidia-smi did not answer", " ".join(COMMANDS[name]), error.reason)
            return None

    return ask(reader, name, live)


def _from_tables(reader: Reader, facts: dict[str, Gpu], listed: VendorAnswer, *, all_awake: bool) -> dict[str, Gpu]:
    """Add peers, NVLinks and MIG profiles from tables that name a GPU by its place in nvidia-smi's order.

    If `listed` has left out a GPU (because it has no address, or is listed twice), the places are unknown.
    """
    order = () if listed.problems else tuple(gpu.address for gpu in listed.gpus)
    texts = {name: _command(reader, name, all_awake=all_awake) or "" for name in list(COMMANDS)[2:]}
    matrix = parse_topo_matrix(texts["nvidia-smi-topo-m"])
    if matrix is not None and len(matrix.gpus) != len(order):
        why = f"{len(matrix.gpus)} GPUs, but nvidia-smi -q lists {len(order)}: the matrix is left out"
        reader.problem("topology matrix of another set of GPUs", "nvidia-smi-topo-m", why)
        matrix = None
    peers = peers_from_matrix(matrix, order) if matrix else {}
    links = nvlinks_by_address(parse_nvlink_status(texts["nvidia-smi-nvlink-s"]), listed.gpus, numbered=bool(order))
    errors = links_of_tables(texts["nvidia-smi-nvlink-e"], links, listed.gpus, numbered=bool(order))
    profiles = parse_mig_profiles(texts["mig-lgip"])
    placements = parse_mig_placements(texts["mig-lgipp"])
    for index, gpu in enumerate(listed.gpus):
        address = gpu.address
        if address not in facts:
            continue
        speeds = links.get(address)
        active = None if speeds is None else [speed for speed in speeds if speed is not None]
        more = Gpu(
            address=address,
            peers=peers.get(address),
            nvlinks_active=None if active is None else len(active),
            nvlink_gb_per_s=active[0] if active else None,
            nvlinks=errors.get(address),
            mig=Mig(profiles=place(profiles[index], placements.get(index, {})))
            if order and index in profiles
            else None,
        )
        facts[address] = fill(facts[address], more)
    return facts


def _name_missing(reader: Reader, addresses: tuple[str, ...], facts: dict[str, Gpu]) -> None:
    """Add a problem for GPUs that the driver holds but no source reported: no library, or a GPU lost to its driver."""
    missing = [address for address in addresses if address not in facts]
    if len(missing) == len(addresses):
        why = f"NVML and nvidia-smi did not report the {len(missing)} GPUs that the driver holds: {', '.join(missing)}"
        reader.problem("GPU facts unknown", DRIVER, why)
        return
    for address in missing:
        why = (
            "the driver holds it, but its library does not list it: lost to the driver, excluded, or not in the record"
        )
        reader.problem("GPU facts unknown", address, why)


def _unique_modules(reader: Reader, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Drop module ids that several GPUs share.

    Cards that are not on a baseboard may all report 1, which is not a place.
    """
    numbers = [gpu.module_id for gpu in gpus if gpu.module_id is not None]
    shared = {number for number in numbers if numbers.count(number) > 1}
    if not shared:
        return gpus
    reader.problem("module id not unique", DRIVER, f"several GPUs say {sorted(shared)}: taken as unknown")
    return tuple(msgspec.structs.replace(gpu, module_id=None) if gpu.module_id in shared else gpu for gpu in gpus)


def gpus_off_fabric(gpus: tuple[Gpu, ...]) -> tuple[Problem, ...]:
    """Return a problem for each GPU that is off an NVLink fabric which connects others of its model.

    Example: "7 of 8 GPUs on the NVLink fabric". Such a fabric is three or more GPUs of one model that reach each other
    over NVLink. Pairs on a bridge do not count.
    """
    doubts: list[Problem] = []
    for model in dict.fromkeys(gpu.model for gpu in gpus):
        alike = [gpu for gpu in gpus if gpu.model == model and gpu.peers is not None]
        off = [gpu for gpu in alike if all(peer.kind != "nvlink" for peer in gpu.peers or ())]
        joined = len(alike) - len(off)
        reach = max((sum(peer.kind == "nvlink" for peer in gpu.peers or ()) for gpu in alike), default=0)
        if reach < 2:
            continue
        for gpu in off:
            why = "no NVLink to any other GPU" + (": MIG is on" if gpu.mig_on else "")
            what = f"{joined} of {len(alike)} GPUs on the NVLink fabric"
            doubts.append(Problem(what=what, where=gpu.address, why=why))
    return tuple(doubts)


NVIDIA = Vendor(
    name="nvidia",
    vendor_id="10de",
    models=MODELS,
    makes=always,
    enrich=_enrich,
    begin=_begin,
    queries=(NVML, *COMMANDS),
    driver=DRIVER,
    tells=TELLS,
    fabric=True,
    link="nvlink",
    lists=lists,
    must_list=True,
    tellers={"nvml": "NVML {call}", "nvidia-smi": "nvidia-smi -q"},
    hints=HINTS,
    reset_doubts=RESET_DOUBTS,
    weak_resets=WEAK_RESETS,
    memory_search="hosttune.gpu.nvidia_memory",
    memory_clear=MEMORY_CLEAR,
    serves_vfio=True,
    mig=True,
    knobs=NVIDIA_KNOBS,
    # nvidia-smi(1): -pm, -pl; a reboot resets both (nvml.h: nvmlDeviceSetPersistenceMode). NVIDIA/nccl, src/graph/xml.h
    # GPU Operator, "GPUDirect RDMA": nvidia-peermem, or DMA-BUF with the open kernel modules on Linux 5.12 or newer.
    inside=Inside(
        tool="nvidia-smi",
        nccl="1",
        cliques=True,  # open-gpu-kernel-modules 595.45.04, p2p_caps.c:435 and hypervisor.c:66
        library_file="/etc/nccl.conf",
        peer_module="nvidia_peermem",
        driver_text="/proc/driver/nvidia/version",
        open_words="Open Kernel Module",
    ),
    traces=TRACES,
    generations=GENERATIONS,
    peer_memory=("nvidia_peermem", "nv_peer_mem"),
    memory_test=CUDA,
    bench=Bench(backends=frozenset(("PyTorch", "nvbandwidth", "nccl-tests", "DCGM")), parts=_parts, watch="nvidia-smi"),
)
