"""The files of one PCI function in sysfs, and the forms in which the kernel writes values there."""

from __future__ import annotations

import re
from functools import lru_cache

from hosttune.errors import Unreadable
from hosttune.gpu import nvswitches
from hosttune.linux.pciconfig import ConfigFacts, decode
from hosttune.machine.reader import Reader, number
from hosttune.machine.system import Folder
from hosttune.model import pciclass

_DIGITS = re.compile(r"[0-9a-f]+")


class FunctionFiles:
    """The files of one function, each as bytes; None if absent or unreadable (unreadable also adds a problem)."""

    def __init__(self, reader: Reader, path: str, folder: Folder) -> None:
        self.reader = reader
        self.path = path
        self.names = folder.names
        self._folder = folder

    def data(self, name: str) -> bytes | None:
        """Return the bytes of a file."""
        try:
            return self._folder.read(name)
        except Unreadable as error:
            self.reader.problem("unreadable", f"{self.path}/{name}", error.reason)
            return None

    def link_name(self, name: str) -> str | None:
        """Return the last part of a link's target."""
        return self.reader.link_name(f"{self.path}/{name}") if name in self.names else None

    def runtime_status(self) -> str | None:
        """The status of runtime power management: "active", "suspended"…"""
        return line(self.reader.data(f"{self.path}/power/runtime_status")) if "power" in self.names else None


@lru_cache(maxsize=128)
def line(data: bytes | None) -> str | None:
    """Return the text of a file with one line; None if the file is absent or empty."""
    return data.decode("utf-8", "replace").strip() or None if data else None


@lru_cache(maxsize=128)
def hex_digits(data: bytes | None, digits: int) -> str | None:
    """Return the digits of a text such as "0x10de".

    The kernel writes exactly `digits` of them. None for a text that is not such a number or is cut off.
    """
    text = (line(data) or "").removeprefix("0x").lower()
    return text if len(text) == digits and _DIGITS.fullmatch(text) else None


@lru_cache(maxsize=128)
def decimal(data: bytes | None, most: int) -> int | None:
    """Return a number from 0 to `most`, written in decimal digits only as the kernel does; None for anything else."""
    return number((data or b"").decode("ascii", "replace").rstrip("\n"), most)


def is_whole(data: bytes | None) -> bool:
    """Return whether a file with one line was read to its end.

    The kernel ends each with a line break, even an empty list.
    """
    return data is not None and data.endswith(b"\n")


# --- what tells a function's ids ------------------------------------------------------------------------------

_NOT_READ = ConfigFacts()  # also of a device that reading it would wake
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
        return _NOT_READ
    data = files.data("config")
    if data is None:
        return _NOT_READ
    facts = decode(data)
    if facts.doubts:
        files.reader.problem("configuration space doubtful", f"{files.path}/config", "; ".join(facts.doubts))
    return facts


def read_ids(files: FunctionFiles, config: ConfigFacts) -> Ids:
    """Return vendor, device and class.

    The files are preferred to the header, because the header differs for a kernel quirk or a virtual function. For
    uncore functions whose class agrees only the header is used, since the kernel takes the files from it.
    """
    header = (config.vendor_id, config.device_id, config.class_code)
    vendor = device = None
    class_code = hex_digits(files.data("class"), 6)
    uncore = config.vendor_id is not None and is_uncore(config.class_code) and not matters(*header)
    if not uncore or class_code not in (None, config.class_code):
        vendor, device = hex_digits(files.data("vendor"), 4), hex_digits(files.data("device"), 4)
    return vendor or config.vendor_id, device or config.device_id, class_code or config.class_code


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
