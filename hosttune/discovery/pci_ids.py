"""What a PCI function is: its ids and class, by its files and by its configuration space, and whether the two agree."""

from __future__ import annotations

from functools import lru_cache

from hosttune.discovery.pci_files import FunctionFiles, hex_digits
from hosttune.gpu import model_of, nvswitches
from hosttune.linux.pciconfig import ConfigFacts, decode
from hosttune.model import pciclass

NO_CONFIG = ConfigFacts()
_ASLEEP = ConfigFacts()  # of a device that reading it would wake
_MATTER = (*pciclass.GPUS, pciclass.NETWORK, pciclass.NVME)
_UNCORE = ("08", "11")  # system peripherals, signal processing

Ids = tuple[str | None, str | None, str | None]  # vendor, device, class


@lru_cache(maxsize=128)  # hundreds of functions have the same ids
def matters(vendor: str | None, device: str | None, class_code: str | None) -> bool:
    """Return whether guests or tuning need a function of these ids and this class."""
    return (class_code or "").startswith(_MATTER) or nvswitches.is_known(vendor, device)


def is_uncore(class_code: str | None) -> bool:
    """Return whether a class is one of those that a processor's own functions have: a server has hundreds of them."""
    return (class_code or "")[:2] in _UNCORE


def read_config(files: FunctionFiles, power_state: str | None, runtime_status: str | None) -> ConfigFacts:
    """Return the configuration space, unless reading it would wake the device: the kernel resumes a device in D3cold.

    (drivers/pci/pci.c, pci_config_pm_runtime_get. A suspended device whose power state is unknown may be in D3cold.)
    """
    if power_state == "D3cold" or (power_state is None and runtime_status == "suspended"):
        return _ASLEEP
    data = files.data("config")
    if data is None:
        return NO_CONFIG
    facts = decode(data)
    if facts.doubts:
        files.reader.problem("configuration space doubtful", f"{files.path}/config", "; ".join(facts.doubts))
    return facts


def read_ids(files: FunctionFiles, config: ConfigFacts) -> tuple[Ids, str | None]:
    """Return vendor, device and class, and why they are doubtful (None if they are not).

    The files are preferred to the header, because the header differs for a kernel quirk or a virtual function. For
    uncore functions whose class agrees only the header is used, since the kernel takes the files from it. If file and
    header differ and only one of them describes a device that matters, that one is used, so that no such device is
    overlooked.
    """
    header = (config.vendor_id, config.device_id, config.class_code)
    vendor = device = None
    class_code = hex_digits(files.data("class"), 6)
    uncore = config.vendor_id is not None and is_uncore(config.class_code) and not matters(*header)
    if not uncore or class_code not in (None, config.class_code):
        vendor, device = hex_digits(files.data("vendor"), 4), hex_digits(files.data("device"), 4)
    filed = (vendor, device, class_code)
    ids = (vendor or config.vendor_id, device or config.device_id, class_code or config.class_code)
    ids = header if matters(*header) and not matters(*ids) else ids
    return ids, _why_doubtful(files, config, filed, ids)


def _why_doubtful(files: FunctionFiles, config: ConfigFacts, filed: Ids, ids: Ids) -> str | None:
    """Return why the ids of a device that matters are doubtful; None if they are not.

    They are doubtful if its files and its header differ, if neither gives its vendor, if the ids of a known GPU have
    another class, and if the header of a GPU is there and cannot be read. A virtual function has no ids in its header.
    Linux corrects the classes of some bridges, storage and serial controllers in its own records
    (drivers/pci/quirks.c), but it never turns another device into a GPU, NIC, NVMe drive or NVSwitch.
    """
    header = (config.vendor_id, config.device_id, config.class_code)
    vendor, device, kind = ids
    if vendor is None and (kind.startswith(pciclass.GPUS) if kind else device is not None):
        return "who made it could not be read"
    is_gpu = kind is not None and kind.startswith(pciclass.GPUS)
    if not is_gpu and (model := model_of(vendor, device)):
        return f"its class reads {kind or 'nothing'}, its ids are those of {model}"
    if None in header:
        lost = is_gpu and config is not _ASLEEP and "config" in files.names and "physfn" not in files.names
        return "its configuration space could not be read, which would confirm its ids" if lost else None
    if not (matters(*ids) or matters(*header)):
        return None
    differing = "; ".join(
        f"its {name} reads {by_file}, in its configuration space {by_header}"
        for name, by_file, by_header in zip(("vendor", "device", "class"), filed, header, strict=True)
        if by_file is not None and by_file != by_header
    )
    if differing:
        files.reader.problem("PCI function contradicts itself", files.path, differing)
    return differing or None


def read_subsystem(
    files: FunctionFiles, config: ConfigFacts, vendor: str | None
) -> tuple[str | None, str | None, str | None]:
    """Return subsystem vendor, subsystem device and revision.

    The kernel takes all from the header, so if the header agrees, three files need not be read.
    """
    if vendor is not None and vendor == config.vendor_id and not config.is_bridge:
        return config.subsystem_vendor_id, config.subsystem_device_id, config.revision
    subsystem_vendor = hex_digits(files.data("subsystem_vendor"), 4)
    subsystem_device = hex_digits(files.data("subsystem_device"), 4)
    revision = hex_digits(files.data("revision"), 2) or config.revision
    if subsystem_vendor in (None, "0000", "ffff"):
        return None, None, revision
    return subsystem_vendor, subsystem_device, revision
