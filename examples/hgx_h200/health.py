"""What a validation reads besides: error counters, kernel log, drives, clock, Fabric Manager; all in good health."""

from __future__ import annotations

import json

from hgx_h200.pci import FIRST_IRQ, functions
from hgx_h200.tree import CPUS, Tree

DRIVER = "580.159.04"
UPTIME_SECONDS = 86400
# Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats
CORRECTABLE = ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF")
UNCORRECTABLE = (
    *("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC"),
    *("UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked"),
)
COUNTERS = (
    ("aer_dev_correctable", CORRECTABLE, "TOTAL_ERR_COR"),
    ("aer_dev_nonfatal", UNCORRECTABLE, "TOTAL_ERR_NONFATAL"),
    ("aer_dev_fatal", UNCORRECTABLE, "TOTAL_ERR_FATAL"),
)
_COMMANDS = ".hosttune/commands"


def write_health(tree: Tree) -> None:
    """No fault anywhere."""
    _write_errors(tree)
    _write_interrupts(tree)
    _write_fabric_manager(tree)
    tree.put("proc/uptime", f"{UPTIME_SECONDS}.00 {UPTIME_SECONDS * CPUS}.00")
    log = {"since": 0.0, "source": "dmesg", "links": True, "lines": []}
    tree.put(f"{_COMMANDS}/kernel-log", json.dumps(log))
    tree.put(f"{_COMMANDS}/adjtimex", "status 8193 maxerror 5500")  # STA_PLL | STA_NANO, as chrony leaves it
    smart = {"critical_warning": 0, "avail_spare": 100, "spare_thresh": 10, "percent_used": 1, "media_errors": 0}
    for number, _ in enumerate(function for function in functions() if function.driver == "nvme"):
        tree.put(f"{_COMMANDS}/nvme-smart-log-nvme{number}", json.dumps(smart))
    tree.folders.add("sys/bus/mdev/devices")  # no mediated device


def _write_errors(tree: Tree) -> None:
    """AER counters of every function that has the capability."""
    for function in functions():
        if function.port:
            for name, kinds, total in COUNTERS:
                text = "".join(f"{kind} 0\n" for kind in (*kinds, total))
                tree.files[f"sys/devices/{function.path}/{name}"] = text.encode()


def _write_interrupts(tree: Tree) -> None:
    """/proc/interrupts of a host that remaps interrupts; none has come yet."""
    counts = " 0" * CPUS
    lines = ["    " + "".join(f" CPU{cpu}" for cpu in range(CPUS))]
    lines.append(f"   9:{counts}  IR-IO-APIC    9-fasteoi   acpi")
    number = FIRST_IRQ
    for function in functions():
        for entry in range(function.irqs):
            lines.append(f"{number:4}:{counts}  IR-PCI-MSIX-{function.address}    {entry}-edge")
            number += 1
    tree.files["proc/interrupts"] = ("\n".join(lines) + "\n").encode()


def _write_fabric_manager(tree: Tree) -> None:
    """Running, of the driver's version, in the mode in which each guest has a partition, and none is active."""
    tree.put("usr/share/nvidia/nvswitch/fabricmanager.cfg", "DAEMONIZE=1\nFABRIC_MODE=1")
    tree.put(f"{_COMMANDS}/fabric-manager-service", "LoadState=loaded\nActiveState=active")
    tree.put(f"{_COMMANDS}/fabric-manager-version", f"Fabric Manager version is : {DRIVER}")
    tree.put(f"{_COMMANDS}/fabric-manager-partitions", json.dumps(_partitions(), indent=3))


def _partitions() -> dict[str, object]:
    """What `fmpm -l` lists on an HGX H200 board while no partition is active."""
    pairs = ((1, 3), (2, 4), (5, 7), (6, 8))
    members = [range(1, 9), range(1, 5), range(5, 9), *pairs, *((module,) for module in range(1, 9))]
    rows = [
        {"gpuInfo": [_member(module, len(modules) > 1) for module in modules], "isActive": 0, "numGpus": len(modules)}
        for modules in members
    ]
    listed = [{**row, "partitionId": number} for number, row in enumerate(rows)]
    return {"maxNumPartitions": 15, "numPartitions": len(listed), "partitionInfo": listed, "version": 16909068}


def _member(module: int, joined: bool) -> dict[str, object]:
    links = 18 if joined else 0
    return {
        "maxNumNvLinks": links,
        "numNvLinksAvailable": links,
        "nvlinkLineRateMBps": 26562,
        "pciBusId": "00000000:00:00.0",
        "physicalId": module,
        "uuid": "",
    }
