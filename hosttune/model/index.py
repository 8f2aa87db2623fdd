"""The devices of a host looked up: by address, by slot, by the bridge above them.

Pure. A `Host` builds its index once, when it is first asked for (`Host.index`); it is no part of the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from hosttune.model.devices import DeviceSource, Nic, Nvme, SeenDevice
from hosttune.model.gpu import Gpu
from hosttune.model.pci import PciDevice
from hosttune.model.platform import RunningGuest
from hosttune.model.values import slot_of

_KIND_WORDS = {"gpu": "a GPU", "nic": "a NIC", "nvme": "an NVMe drive", "nvswitch": "an NVSwitch"}


class DeviceIndex:
    """An index over PCI functions, and over what else a document says of the same devices. It does not change.

    Of two functions with one address the last counts, as of two GPUs.
    """

    def __init__(
        self,
        pci: Sequence[PciDevice],
        gpus: Sequence[Gpu] = (),
        used: Iterable[Nic | Nvme] = (),
        sources: Iterable[DeviceSource] = (),
        guests: Iterable[RunningGuest] = (),
    ) -> None:
        self._functions = pci
        self._gpus = gpus
        self._used = used
        self._sources = sources
        self._guests = guests
        self._above: dict[str, tuple[str, ...]] = {}

    @cached_property
    def pci(self) -> Mapping[str, PciDevice]:
        """The PCI functions by address."""
        return {device.address: device for device in self._functions}

    @cached_property
    def gpus(self) -> Mapping[str, Gpu]:
        """The GPUs by address, displays of no known accelerator maker (`other`) among them."""
        return {gpu.address: gpu for gpu in self._gpus}

    @cached_property
    def accelerators(self) -> tuple[Gpu, ...]:
        """The GPUs of known accelerator makers, in the order of the document."""
        return tuple(gpu for gpu in self._gpus if gpu.is_accelerator)

    def ids(self, address: str) -> str | None:
        """Vendor and device id of a function ("10de:2335"); None where it, or one of them, is unknown."""
        device = self.pci.get(address)
        return device.ids if device else None

    def device_id(self, address: str) -> str | None:
        """The device id of a function ("2335"); None where it is unknown."""
        device = self.pci.get(address)
        return device.device_id if device else None

    @cached_property
    def in_use(self) -> Mapping[str, str]:
        """Why the host itself needs a NIC or a drive, by address; those that it does not need are left out."""
        return {one.address: one.in_use for one in self._used if one.in_use is not None}

    @cached_property
    def holders(self) -> Mapping[str, str]:
        """The guest that has a device, running or merely defined; of several the last."""
        return {address: guest.name for guest in self._guests for address in guest.devices}

    @cached_property
    def groups(self) -> Mapping[int, tuple[PciDevice, ...]]:
        """The functions of each IOMMU group; bridges, which no guest gets, are left out."""
        found: dict[int, list[PciDevice]] = {}
        for device in self._functions:
            if device.iommu_group is not None and not device.is_bridge:
                found.setdefault(device.iommu_group, []).append(device)
        return {number: tuple(members) for number, members in found.items()}

    @cached_property
    def below(self) -> Mapping[str, tuple[PciDevice, ...]]:
        """The functions on the bus directly below each bridge, and those of each slot of a root bus ("0000:00:1f")."""
        found: dict[str, list[PciDevice]] = {}
        for device in self._functions:
            found.setdefault(device.parent or slot_of(device.address), []).append(device)
        return {place: tuple(members) for place, members in found.items()}

    def siblings(self, device: PciDevice) -> tuple[PciDevice, ...]:
        """The functions below the same bridge as a function, or on a root bus in its slot, and the function itself."""
        return self.below.get(device.parent or slot_of(device.address), (device,))

    @cached_property
    def contradicted(self) -> Mapping[str, str]:
        """Functions of which one source says another device or another driver than the tree, by address, and why."""
        found = {device.address: device.contradicted for device in self._functions if device.contradicted is not None}
        for source in self._sources:
            for seen in source.contrary:
                found.setdefault(seen.address, _contradiction(seen, self.pci.get(seen.address), source))
        return found

    def above(self, address: str) -> tuple[str, ...]:
        """The addresses of the bridges above a function, nearest first.

        The last one may be missing in the document. A loop of parents ends where it closes.
        """
        if (known := self._above.get(address)) is None:
            found: dict[str, None] = {}
            device = self.pci.get(address)
            while device is not None and device.parent and device.parent not in found and device.parent != address:
                found[device.parent] = None
                device = self.pci.get(device.parent)
            known = self._above[address] = tuple(found)
        return known

    def bridges(self, address: str) -> tuple[PciDevice, ...]:
        """The bridges above a function that the document has, nearest first."""
        return tuple(self.pci[bridge] for bridge in self.above(address) if bridge in self.pci)

    def path(self, address: str) -> tuple[str, ...]:
        """The bridges above a function and the function itself, top first."""
        return (*reversed(self.above(address)), address)


def _contradiction(seen: SeenDevice, function: PciDevice | None, source: DeviceSource) -> str:
    known = [seen.id, seen.model or _KIND_WORDS.get(seen.kind or ""), f"held by {seen.driver}" if seen.driver else None]
    here = f"{function.vendor_id}:{function.device_id} of class {function.class_code}" if function else "nothing"
    held = f", on {function.driver}," if function and function.driver else ""
    return f"{here}{held} in the PCI tree; {', '.join(word for word in known if word)} in {source.name}"
