"""The devices of a host, found by address, by slot, or by the bridge above them.

Pure. A `Host` builds its index once, on first use (`Host.index`). The index is not part of the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from hosttune.model import sysfs
from hosttune.model.devices import Nic, Nvme, functions_under
from hosttune.model.gpu import Gpu
from hosttune.model.pci import PciDevice
from hosttune.model.platform import RunningGuest
from hosttune.model.values import address_key, grouped, slot_of


def is_another(was: Mapping[str, Any], now: Mapping[str, str]) -> bool:
    """Return whether two identities at one address (`DeviceIndex.identity`) are known to be of two devices."""
    return any(was.get(name) not in (None, value) for name, value in now.items())


class DeviceIndex:
    """An immutable index of PCI functions, and of what other parts of a document say about the same devices.

    If two functions or two GPUs have the same address, the last one is used. `inside`: the machine is a guest, so the
    bridges that it shows are emulated.
    """

    def __init__(
        self,
        pci: Sequence[PciDevice],
        gpus: Sequence[Gpu] = (),
        used: Iterable[Nic | Nvme] = (),
        guests: Iterable[RunningGuest] = (),
        nodes: Mapping[str, tuple[str, ...]] | None = None,
        inside: bool = False,
    ) -> None:
        self.inside = inside
        self._functions = pci
        self._gpus = gpus
        self._used = used
        self._guests = guests
        self._nodes = nodes or {}
        self._above: dict[str, tuple[str, ...]] = {}

    @cached_property
    def pci(self) -> Mapping[str, PciDevice]:
        """The PCI functions by address."""
        return {device.address: device for device in self._functions}

    @cached_property
    def gpus(self) -> Mapping[str, Gpu]:
        """The GPUs by address, including displays of other makers (`other`)."""
        return {gpu.address: gpu for gpu in self._gpus}

    @cached_property
    def accelerators(self) -> tuple[Gpu, ...]:
        """The GPUs of known accelerator makers, in the order of the document."""
        return tuple(gpu for gpu in self._gpus if gpu.is_accelerator)

    @cached_property
    def unidentified(self) -> tuple[str, ...]:
        """The functions whose class or vendor id was not read: each may be any device."""
        return tuple(device.address for device in self._functions if not device.is_identified)

    def ids(self, address: str) -> str | None:
        """Return the ids "vendor:device" of a function ("10de:2335"); None if the function or one id is unknown."""
        device = self.pci.get(address)
        return device.ids if device else None

    def device_id(self, address: str) -> str | None:
        """Return the device id of a function ("2335"); None if it is unknown."""
        device = self.pci.get(address)
        return device.device_id if device else None

    def identity(self, address: str) -> dict[str, str]:
        """Return what tells a device from another one at its address, as far as it is known: its PCI ids in a row
        (`device`), its Device Serial Number (`dsn`), and of a GPU the serial number and UUID that its driver tells.
        """
        function, gpu = self.pci.get(address), self.gpus.get(address)
        ids = (
            (function.vendor_id, function.device_id, function.subsystem_vendor_id, function.subsystem_device_id)
            if function
            else ()
        )
        known = {"device": ":".join(part for part in ids if part), "dsn": function and function.dsn}
        known |= {"uuid": gpu.uuid, "serial": gpu.serial} if gpu else {}
        return {name: value for name, value in known.items() if value}

    @cached_property
    def in_use(self) -> Mapping[str, str]:
        """Why the host itself needs a NIC or a drive, by address. Devices that it does not need are left out."""
        return {drive.address: drive.in_use for drive in self._used if drive.in_use is not None}

    @cached_property
    def use_unknown(self) -> Mapping[str, str]:
        """Why it is unknown whether the host needs a NIC or a drive, by address. Those without a doubt are left out."""
        return {drive.address: drive.use_unknown for drive in self._used if drive.use_unknown is not None}

    @cached_property
    def holders(self) -> Mapping[str, str]:
        """The guest that has a device, running or only defined. If several have it, the last one."""
        return {address: guest.name for guest in self._guests for address in guest.devices}

    @cached_property
    def nodes(self) -> Mapping[str, tuple[str, ...]]:
        """The PCI functions of nodes and interfaces of the host: `Host.nodes`, with those of NVMe drives and NICs."""
        drives = (
            (f"/dev/{name}", drive.address)
            for drive in self._used
            if isinstance(drive, Nvme)
            for name in drive.namespaces
        )
        nics = (
            (f"{sysfs.NET}/{name}", drive.address)
            for drive in self._used
            if isinstance(drive, Nic)
            for name in drive.interfaces
        )
        return {path: tuple(users) for path, users in grouped((*drives, *nics)).items()} | dict(self._nodes)

    def functions_under(self, path: str) -> tuple[str, ...] | None:
        """Return the PCI functions that a node or an interface of the host is on; None if that is unknown."""
        return functions_under(self.nodes, path)

    @cached_property
    def users(self) -> Mapping[str, Mapping[str, str]]:
        """The guests that share a device, running or only defined, by its address; each with the path of its part."""
        rows = ((guest.name, path) for guest in self._guests for path in guest.host_paths)
        by_function = grouped((function, row) for row in rows for function in self.functions_under(row[1]) or ())
        return {address: dict(pairs) for address, pairs in by_function.items()}

    @cached_property
    def untold(self) -> Mapping[str, str]:
        """The disks of guests of which it is unknown what they are on: the guest by path."""
        paths = {path: guest.name for guest in self._guests for path in guest.host_paths}
        return {
            path: name for path, name in paths.items() if sysfs.NET not in path and self.functions_under(path) is None
        }

    @cached_property
    def groups(self) -> Mapping[int, tuple[PciDevice, ...]]:
        """The functions of each IOMMU group. Bridges, which no guest gets, are left out."""
        members = (device for device in self._functions if not device.is_bridge)
        by_group = grouped((function.iommu_group, function) for function in members if function.iommu_group is not None)
        return {number: tuple(members) for number, members in by_group.items()}

    @cached_property
    def virtuals(self) -> Mapping[str, tuple[str, ...]]:
        """The virtual functions of each physical function. Either of the two may be the one that names the other."""
        by_physical: dict[str, set[str]] = {}
        for device in self._functions:
            if device.virtfns:
                by_physical.setdefault(device.address, set()).update(device.virtfns)
            if device.physfn:
                by_physical.setdefault(device.physfn, set()).add(device.address)
        return {address: tuple(sorted(virtual, key=address_key)) for address, virtual in by_physical.items()}

    @cached_property
    def below(self) -> Mapping[str, tuple[PciDevice, ...]]:
        """The functions directly below each bridge, and those of each slot of a root bus ("0000:00:1f")."""
        by_place = grouped((device.parent or slot_of(device.address), device) for device in self._functions)
        return {place: tuple(members) for place, members in by_place.items()}

    def siblings(self, device: PciDevice) -> tuple[PciDevice, ...]:
        """Return the functions below the same bridge as a function, including the function itself.

        On a root bus, these are the functions in its slot.
        """
        return self.below.get(device.parent or slot_of(device.address), (device,))

    def above(self, address: str) -> tuple[str, ...]:
        """Return the addresses of the bridges above a function, nearest first.

        The last one may be missing in the document. If the parents form a loop, the result ends where the loop closes.
        """
        if (known := self._above.get(address)) is None:
            bridges: dict[str, None] = {}
            device = self.pci.get(address)
            while device is not None and device.parent and device.parent not in bridges and device.parent != address:
                bridges[device.parent] = None
                device = self.pci.get(device.parent)
            known = self._above[address] = tuple(bridges)
        return known

    def bridges(self, address: str) -> tuple[PciDevice, ...]:
        """Return the bridges above a function that the document has, nearest first."""
        return tuple(self.pci[bridge] for bridge in self.above(address) if bridge in self.pci)

    def path(self, address: str) -> tuple[str, ...]:
        """Return the bridges above a function and the function itself, topmost first."""
        return (*reversed(self.above(address)), address)
