"""NVIDIA's driver on a host: which GPUs the driver and its tools list, its device nodes, its daemons."""

from __future__ import annotations

import re

from hosttune.errors import BadInput
from hosttune.gpu import nvswitches
from hosttune.gpu.nvidia_links import TopoMatrix, parse_topo_matrix
from hosttune.gpu.nvidia_smi import parse_smi_text, parse_smi_xml
from hosttune.gpu.nvml_facts import parse_nvml
from hosttune.gpu.vendor import Hints, Listing, LogRecords, Traces, ask
from hosttune.linux.kernellines import DRIVER_LOAD, LOGGED_ADDRESS, KernelLine
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.gpu import Gpu

DRIVER = "nvidia"
NVML = "nvml.json"
HELD = "/proc/driver/nvidia/gpus"  # a folder for each GPU that the module holds, by address (nv-procfs.c)


def lists(reader: Reader) -> tuple[Listing, ...]:
    """Return the module's folder, and recorded answers of NVML, nvidia-smi and the topology matrix.

    See `Vendor.lists`.
    """
    held = tuple(Gpu(address=name, vendor="nvidia") for name in reader.names(HELD) if sysfs.is_function(name))
    listings = [Listing(name="the nvidia module", read=HELD, gpus=held)] if held else []
    for name, words, parse in (
        (NVML, "NVML", parse_nvml),
        ("nvidia-smi-q-x", "nvidia-smi -q -x", parse_smi_xml),
        ("nvidia-smi-q", "nvidia-smi -q", parse_smi_text),
    ):
        text = ask(reader, name, _no_live_answer)
        if not text:
            continue
        try:
            answer = parse(text)
        except BadInput:
            continue  # reported where its facts are read
        known = tuple(_seen(gpu) for gpu in answer.gpus if gpu.uuid or gpu.model)  # a lost GPU has neither
        listings += [Listing(name=words, read=words, gpus=known)] if known else []
        if answer.count is not None:
            listings.append(Listing(name=f"the count of {words}", read=words, count=answer.count))
    matrix = _matrix(ask(reader, "nvidia-smi-topo-m", _no_live_answer))
    if matrix is not None:
        listings.append(Listing(name="the topology matrix", read="nvidia-smi topo -m", count=len(matrix.gpus)))
    return tuple(listings)


def _matrix(text: str | None) -> TopoMatrix | None:
    if not text:
        return None
    return parse_topo_matrix(text)


def _no_live_answer() -> None:
    """Answer nothing live: the tools would open every GPU."""
    return


def _seen(gpu: Gpu) -> Gpu:
    return Gpu(address=gpu.address, vendor="nvidia", model=gpu.model, uuid=gpu.uuid)


# --- the driver on a host ----------------------------------------------------------------------------------------

_MINOR = re.compile(r"(?m)^Device Minor:\s*([0-9]{1,4})\s*$")
# How to stop the daemons that commonly hold GPUs, if no systemd unit shows it. A process name may be cut off.
_DAEMONS = {
    "nvidia-persistenced": "systemctl stop nvidia-persistenced",
    "nvidia-persiste": "",
    "nv-hostengine": "systemctl stop nvidia-dcgm",
    "dcgm-exporter": "stop dcgm-exporter, and what would start it again",
    "nv-fabricmanager": "systemctl stop nvidia-fabricmanager",
    "nvidia-topologyd": "",
}


def _nodes(reader: Reader, address: str, driver: str) -> list[str]:
    """Return the device node of a GPU by its minor number (not its index), or the nodes of NVSwitches."""
    if driver == nvswitches.DRIVER:
        return [nvswitches.NODES]
    if driver != DRIVER:
        return []
    path = f"{HELD}/{address}/information"
    minor = _MINOR.search(reader.text(path) or "")
    if minor is None and not reader.system.scratch:
        reader.problem("no minor number", path, "which /dev/nvidiaN this is is unknown")
    return [f"/dev/nvidia{minor[1]}"] if minor else []


# Sources: NVIDIA, "XID Errors" (form of the record; 144 to 150: Xid catalogue, WORKFLOW_NVLINK5_ERR; 154: its row) and
# Fabric Manager user guide, appendix D (SXid); open-gpu-kernel-modules (RmInitAdapter, "fallen off the bus").
_GPU = rf"(?P<address>{LOGGED_ADDRESS})"
# The driver's branch does not know it, its open modules cannot have it, or only they can.
_UNSUPPORTED = r"(?s:.{0,99}?)(?:\bnot supported by|\brequires use of)\b"
_LOG = LogRecords(
    wanted=r"NVRM: |nvidia-nvswitch[0-9]+: SXid",
    # NVSwitches add further lines with data and severity.
    begins=r"NVRM: Xid\b"
    r"|nvidia-nvswitch[0-9]{1,4}: SXid\b(?! \([^)]{1,30}\): [0-9]{1,6}, (?:Data \{|Severity [0-9]))",
    shapes=(
        ("xid", rf"NVRM: Xid \((?:PCI:)?{_GPU}(?: GPU-I:[0-9]+)?\): (?P<code>[0-9]{{1,4}})\b(?P<rest>(?s:.*))"),
        (
            "sxid",
            rf"nvidia-nvswitch[0-9]+: SXid \((?:PCI:)?{_GPU}\): (?P<code>[0-9]{{1,6}}), "
            r"(?P<severity>Fatal|Non-fatal)\b",
        ),
        ("lost", rf"NVRM: GPU {_GPU}: (?:GPU has fallen off the bus|RmInitAdapter failed)"),
        ("lost", rf"NVRM: The NVIDIA GPU {_GPU}(?!{_UNSUPPORTED})"),
        (DRIVER_LOAD, "NVRM: loading NVIDIA UNIX"),  # kernel-open/nvidia/nv.c, nvidia_init_module
    ),
    lines=(
        KernelLine("gpu-unsupported", "NVRM: ",
                   rf"NVRM: The NVIDIA GPU {_GPU}{_UNSUPPORTED}",
                   "kernel-open/nvidia, nv.c and osapi.c of NVIDIA/open-gpu-kernel-modules; reports of closed ones",
                   outcome="fail", says="the driver that was loaded does not support it",
                   remedy="install a branch of the driver that supports it: its open kernel modules from Blackwell on,"
                   " its closed ones before Turing"),
        KernelLine("bar-unassigned", "NVRM: ",
                   r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\s"
                   rf"NVRM: BAR[0-5] is 0M @ 0x[0-9a-f]{{1,16}} \(PCI:{_GPU}\)",
                   "kernel-open/nvidia/nv-pci.c, nv_pci_validate_bars", outcome="fail"),
        KernelLine("confidential-mode", "NVRM: ",
                   r"NVRM: (?:GPU[0-9]{1,3} )?confComputeConstructEngine_IMPL: CPU does not support confidential comp",
                   "open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/conf_compute/conf_compute.c", outcome="fail",
                   says="a GPU was not started: it is in a confidential-computing mode, which only a confidential guest"
                   " may use",
                   remedy="find it with NVIDIA/gpu-admin-tools: nvidia_gpu_tools.py --devices gpus --query-cc-mode"
                   " --query-ppcie-mode; then --set-cc-mode=off --reset-after-cc-mode-switch, or --set-ppcie-mode=off"
                   " --reset-after-ppcie-mode-switch"),
    ),
)  # fmt: skip

HINTS = Hints(
    tool="nvidia-smi",
    unreported="install the driver's library or tool (nvidia-smi), or run as root",
    show="nvidia-smi -q",
    heat="nvidia-smi -q -d TEMPERATURE",
    processes="nvidia-smi -i {gpu}",
    links="nvidia-smi nvlink -s and -e, and the Fabric Manager's log",
    set_power="nvidia-smi -i {gpu} -pl",
    reset="nvidia-smi --gpu-reset -i {gpu} once nothing uses it (or reboot)",
    repaired="row-remap and xid say whether it is repaired",
    lost="XID 79 and RmInitAdapter",
    diagnose="run dcgmi diag -r 4",
    retakers=", its persistence daemon or Fabric Manager",
)
TRACES = Traces(modules=("nvidia",), proc=HELD, nodes=_nodes, daemons=_DAEMONS, log=_LOG)
