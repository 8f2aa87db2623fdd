"""A builder of small sysfs PCI trees, for what captures of real machines do not show."""

from __future__ import annotations

import os
from pathlib import Path

from hosttune.discovery.pci import judged_links, read_pci
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader
from hosttune.model.host import NumaNode, PciDevice
from hosttune.model.index import DeviceIndex

TWO_NODES = (NumaNode(id=0, cpus="0-3"), NumaNode(id=1, cpus="4-7"))
PORT = "pci0000:00/0000:00:01.0"
CARD = f"{PORT}/0000:01:00.0"


def discover(root: Path, nodes: tuple[NumaNode, ...] = ()) -> tuple[dict[str, PciDevice], Reader]:
    reader = Reader(Capture(str(root)))
    devices = judged_links(reader, DeviceIndex(read_pci(reader, nodes)))
    return {device.address: device for device in devices}, reader


def told(reader: Reader) -> list[tuple[str, str]]:
    return [(problem.what, problem.where) for problem in reader.problems]


def link(now: tuple[float, int], most: tuple[float, int]) -> dict[str, str]:
    return {
        "current_link_speed": f"{now[0]} GT/s PCIe",
        "current_link_width": str(now[1]),
        "max_link_speed": f"{most[0]} GT/s PCIe",
        "max_link_width": str(most[1]),
    }


class Tree:
    """A sysfs PCI tree under a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def add(self, path: str, **files: str | bytes) -> Path:
        """Add a function by its path below /sys/devices ("pci0000:00/0000:00:01.0/0000:01:00.0")."""
        folder = self.root / "sys/devices" / path
        folder.mkdir(parents=True, exist_ok=True)
        link = self.root / "sys/bus/pci/devices" / folder.name
        link.symlink_to(os.path.relpath(folder, link.parent))
        for name, content in {"class": "0x030200", "vendor": "0x10de", "device": "0x2335", **files}.items():
            data = content if isinstance(content, bytes) else f"{content}\n".encode()
            (folder / name.replace("__", "/")).parent.mkdir(exist_ok=True)
            (folder / name.replace("__", "/")).write_bytes(data)
        return folder

    def port(self, path: str, **files: str | bytes) -> Path:
        """Add a bridge."""
        return self.add(path, **{"class": "0x060400", "vendor": "0x8086", "device": "0x352a", **files})

    def discover(self, nodes: tuple[NumaNode, ...] = TWO_NODES) -> tuple[dict[str, PciDevice], Reader]:
        """Read it."""
        return discover(self.root, nodes)
