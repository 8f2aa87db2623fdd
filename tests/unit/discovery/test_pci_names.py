"""Names of PCI ids: whose file they come from, and that the search finds what a full reading would."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from pcitrees import Tree

from hosttune.discovery import pci_names
from hosttune.discovery.pci import read_pci
from hosttune.machine.capture import Capture
from hosttune.machine.reader import Reader


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


IDS = b"""#
# comment
0e11  Compaq Computer Corporation
\t0001  PCI to EISA Bridge
10de  NVIDIA Corporation
\t2330  GH100 [H100 SXM5 80GB]
\t2335  GH100 [H200 SXM 141GB]
\t\t10de 18be  H200 board
\t2336  Other
8086  Intel Corporation
\t352a  Root Port
ffff  Illegal Vendor ID
C 00  Unclassified device
\t2335  not a device
"""


def test_names_come_from_the_hosts_own_file(tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:02.0")
    (tree.root / "usr/share/misc").mkdir(parents=True)
    (tree.root / "usr/share/misc/pci.ids").write_bytes(IDS)
    device = tree.discover()[0]["0000:00:02.0"]
    assert (device.vendor_name, device.device_name) == ("NVIDIA Corporation", "GH100 [H200 SXM 141GB]")


def test_without_a_file_devices_are_nameless_unless_the_caller_brings_one(tree: Tree) -> None:
    tree.add("pci0000:00/0000:00:02.0")
    assert tree.discover()[0]["0000:00:02.0"].vendor_name is None
    (device,) = read_pci(Reader(Capture(str(tree.root))), (), fallback_ids=lambda: IDS)
    assert device.device_name == "GH100 [H200 SXM 141GB]"


def test_compressed_ids_are_read_and_broken_ones_are_none(tree: Tree) -> None:
    folder = tree.root / "usr/share/misc"
    folder.mkdir(parents=True)
    (folder / "pci.ids.gz").write_bytes(gzip.compress(IDS))
    assert pci_names.load(Capture(str(tree.root))) == IDS
    (folder / "pci.ids.gz").write_bytes(b"no gzip")
    assert pci_names.load(Capture(str(tree.root))) is None


def test_lookup_of_unlisted_ids_and_of_the_edges() -> None:
    ids = [("0e11", "0001"), ("10de", "9999"), ("ffff", "2335"), ("dead", "0001"), ("0001", "0001")]
    assert pci_names.lookup(IDS, ids) == {
        ("0001", "0001"): (None, None),
        ("0e11", "0001"): ("Compaq Computer Corporation", "PCI to EISA Bridge"),
        ("10de", "9999"): ("NVIDIA Corporation", None),
        ("dead", "0001"): (None, None),
        ("ffff", "2335"): ("Illegal Vendor ID", None),
    }


def test_lookup_in_a_large_file_finds_every_id() -> None:
    """The halving search against a line by line reading of a file with the shape of the real one."""
    named = {
        (f"{vendor:04x}", f"{device:04x}"): (f"Vendor {vendor}", f"Device {device} of {vendor}")
        for vendor in range(1, 0xFFFF, 1777)
        for device in range(0, 0xFFFF, 401 + vendor % 300)
    }
    lines: list[str] = []
    last = ""
    for (vendor, device), (vendor_name, device_name) in named.items():
        if vendor != last:
            lines.append(f"{vendor}  {vendor_name}")
        last = vendor
        lines += [f"\t{device}  {device_name}", f"\t\t{device} {vendor}  a board"]
    assert pci_names.lookup("\n".join(lines).encode(), named) == named
