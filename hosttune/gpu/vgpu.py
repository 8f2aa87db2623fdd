"""Which vGPU framework NVIDIA's GPUs have on this host. It is read from sysfs, never inferred from a version.

Two frameworks do the same job (NVIDIA vGPU software documentation; NVIDIA/vgpu-device-manager): mediated devices
(Documentation/driver-api/vfio-mediated-device.rst) and the vendor's own virtual functions, each with the files
`nvidia/current_vgpu_type` and `nvidia/creatable_vgpu_types`. A capture must hold these folders of the GPUs and of their
virtual functions, /sys/bus/mdev and the answer `nvidia-vgpu-mgr-service`.
"""

from __future__ import annotations

import re

from hosttune.errors import CommandFailed
from hosttune.gpu import VENDORS
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.host import Gpu, PciDevice
from hosttune.model.vgpu import Vgpu, VgpuFunction, VgpuGpu, VgpuType, is_type_id

SERVICE = "nvidia-vgpu-mgr.service"
SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"
_DEVICES = sysfs.PCI_DEVICES
_TYPE = re.compile(r"\s*([1-9][0-9]{0,8})\s*:\s*(\S.{0,99}?)\s*")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


_SERVING = {vendor.driver: vendor.vendor_id for vendor in VENDORS if vendor.serves_vfio}


def is_uuid(text: str) -> bool:
    """Return whether a text can be the name of a mediated device."""
    return _UUID.fullmatch(text) is not None


def stays_with_driver(device: PciDevice | None) -> bool:
    """Return whether it is the function of a vGPU: a virtual function that stays with its maker's driver.

    That driver is also its VFIO driver.
    """
    return device is not None and device.physfn is not None and device.driver in _SERVING


def type_folder(function: str) -> str:
    """Return the folder of a virtual function's vGPU types: `creatable_vgpu_types`, `current_vgpu_type`."""
    return f"{_DEVICES}/{function}/nvidia"


def read_vgpu(reader: Reader, pci: tuple[PciDevice, ...], gpus: tuple[Gpu, ...]) -> Vgpu | None:
    """Return the host's vGPU facts; None if NVIDIA's driver holds no physical GPU, so that no vGPU can be created."""
    functions = {device.address: device for device in pci}
    held = [functions[gpu.address] for gpu in gpus if gpu.address in functions]
    physical = [d for d in held if d.vendor_id == _SERVING.get(d.driver or "", "") and d.physfn is None]
    if not physical:
        return None
    vgpu_gpus = tuple(_gpu(reader, device) for device in physical)
    tool = reader.exists(SRIOV_MANAGE)
    return Vgpu(
        manager=_manager(reader, any(gpu.framework for gpu in vgpu_gpus)),
        sriov_manage=tool or (False if reader.system.complete else None),
        gpus=vgpu_gpus,
    )


def _manager(reader: Reader, framework: bool) -> bool | None:
    """Return whether the vGPU manager runs, as systemd reports it (systemctl(1)).

    A container can run it without a unit of that name. So if a framework is there, a missing unit means unknown.
    """

    def live() -> str | None:
        try:
            return reader.system.run(("systemctl", "show", SERVICE, "--property=LoadState,ActiveState"), timeout=10.0)
        except CommandFailed as error:
            if error.reason != "not installed":
                reader.problem("systemd did not answer", " ".join(error.argv), error.reason)
            return None

    text = reader.query("nvidia-vgpu-mgr-service", live) or ""
    words = dict(line.partition("=")[::2] for line in text.splitlines())
    if words.get("LoadState") == "loaded" and words.get("ActiveState"):
        return words["ActiveState"] == "active"
    if words.get("LoadState") == "not-found" and not framework:
        return False
    return None


def _gpu(reader: Reader, device: PciDevice) -> VgpuGpu:
    """Return a physical GPU with the vGPU types that its virtual functions offer.

    Includes the GPU's own function, for mediated devices without SR-IOV.
    """
    addresses = (*device.virtfns, device.address)
    vendor = [address for address in device.virtfns if reader.exists(f"{type_folder(address)}/current_vgpu_type")]
    if vendor:
        return VgpuGpu(
            address=device.address,
            framework="vfio",
            functions=tuple(_vendor_function(reader, address) for address in vendor),
            types=_vendor_types(reader, vendor),
        )
    mediated = [address for address in addresses if reader.names(f"{_DEVICES}/{address}/mdev_supported_types")]
    if mediated:
        return VgpuGpu(
            address=device.address,
            framework="mdev",
            functions=tuple(_mdev_function(reader, address) for address in mediated),
            types=_mdev_types(reader, mediated),
        )
    return VgpuGpu(address=device.address)


def _vendor_function(reader: Reader, address: str) -> VgpuFunction:
    text = reader.text(f"{type_folder(address)}/current_vgpu_type")
    number = text if text and text.isascii() and text.isdecimal() and len(text) < 10 else None
    if text and number is None:
        reader.problem("not a vGPU type", f"{type_folder(address)}/current_vgpu_type", f"reads {text[:40]!r}")
    return VgpuFunction(address=address, current_type=number)


def _vendor_types(reader: Reader, addresses: list[str]) -> tuple[VgpuType, ...]:
    """Return the types that any of the functions can become: "1414 : NVIDIA H200X-1-18C" a line.

    The list shrinks as types are used.
    """
    type_of: dict[str, str] = {}
    for address in addresses:
        text = reader.text(f"{type_folder(address)}/creatable_vgpu_types") or ""
        matches = (_TYPE.fullmatch(line) for line in text.splitlines())
        type_of |= {match[1]: match[2] for match in matches if match}
    return tuple(
        VgpuType(id=number, name=name) for number, name in sorted(type_of.items(), key=lambda row: int(row[0]))
    )


def _mdev_function(reader: Reader, address: str) -> VgpuFunction:
    """Return a function's mediated devices.

    They are folders of their parent, named by UUID (vfio-mediated-device.rst).
    """
    names = reader.names(f"{_DEVICES}/{address}")
    return VgpuFunction(address=address, mdevs=tuple(filter(is_uuid, names)))


def _mdev_types(reader: Reader, addresses: list[str]) -> tuple[VgpuType, ...]:
    mdev_types: dict[str, VgpuType] = {}
    for address in addresses:
        folder = f"{_DEVICES}/{address}/mdev_supported_types"
        for name in filter(is_type_id, reader.names(folder)):
            shown = reader.text(f"{folder}/{name}/name")
            available = reader.count(f"{folder}/{name}/available_instances")
            before = mdev_types.get(name)
            most = max((n for n in (available, before.available if before else None) if n is not None), default=None)
            if shown:
                mdev_types[name] = VgpuType(id=name, name=shown, available=most)
    return tuple(mdev_types[name] for name in sorted(mdev_types))
