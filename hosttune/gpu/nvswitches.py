"""NVSwitches that are PCI functions, and the Fabric Manager that sets them up: how they are recognised on a host.

Pure. Source of the ids: pci.ids; of the daemon's names: NVIDIA, Fabric Manager for NVIDIA NVSwitch systems, user guide.
"""

from __future__ import annotations

from hosttune.model.host import PciDevice

VENDOR_ID = "10de"
MODELS = {"1af1": "A100 NVSwitch", "22a3": "H100/H200 NVSwitch"}  # by device id; class 0680
DRIVER = "nvidia-nvswitch"  # its name in /sys/bus/pci/drivers
MODULE = "nvidia"  # the kernel module that it is part of
# No file shows which switch has which device node. So a process that has any of them open counts as a user of each
# switch.
NODE = r"/dev/nvidia-nvswitch[0-9]+"
NODES = "/dev/nvidia-nvswitch*"
MANAGER_CONFIG = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
MANAGER_SERVICE = "nvidia-fabricmanager.service"
_CLASS = "0680"


def is_known(vendor_id: str | None, device_id: str | None) -> bool:
    """Return whether these are the ids of a switch."""
    return vendor_id == VENDOR_ID and device_id in MODELS


def may_be_nvswitch(device: PciDevice) -> bool:
    """Return whether a function has the vendor and the class of a switch."""
    return device.vendor_id == VENDOR_ID and (device.class_code or "")[:4] == _CLASS


def is_nvswitch(device: PciDevice) -> bool:
    """Return whether a function is a switch: by its ids, or else by its class and its name."""
    named = may_be_nvswitch(device) and "NVSwitch" in (device.device_name or "")
    return named or is_known(device.vendor_id, device.device_id)
