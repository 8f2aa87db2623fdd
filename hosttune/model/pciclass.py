"""PCI classes that hosttune tells apart: the digits with which a `class_code` begins, each defined in one place.

A class code has six digits: base class, subclass, programming interface. Source: PCI-SIG, PCI Code and ID Assignment
Specification.
"""

from __future__ import annotations

STORAGE = "01"
NVME = "0108"  # non-volatile memory
NETWORK = "02"
ETHERNET = "0200"
INFINIBAND = "0207"
OTHER_NETWORK = "0280"
DISPLAY = "03"
DISPLAY_3D = "0302"  # a 3D controller: it has no screen
HOST_BRIDGE = "0600"
PCI_BRIDGE = "0604"
OTHER_BRIDGE = "0680"  # that of links between GPUs
ACCELERATOR = "12"

NICS = (ETHERNET, INFINIBAND, OTHER_NETWORK)  # what the host document lists as NICs
GPUS = (DISPLAY, ACCELERATOR)  # what it lists as GPUs, of whatever maker
BRIDGES = (HOST_BRIDGE, PCI_BRIDGE)  # what never goes to a guest


def in_sysfs(*classes: str) -> tuple[str, ...]:
    """Return with what the file `class` of a function of these classes begins."""
    return tuple(f"0x{code}" for code in classes)
