"""What knobs can read of a plan that is being made: the host, the intent and the placed guests. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from hosttune.model.host import Host, PciDevice
from hosttune.model.index import DeviceIndex
from hosttune.model.intent import Intent
from hosttune.model.plan import PlannedGuest
from hosttune.model.values import CpuSet, parse_cpus


@dataclass(frozen=True)
class KnobContext:
    """The host, the intent, and the guests that were planned.

    `held_cpus`: CPUs that existing guests hold, without housekeeping CPUs; `node_cpus`: the usable CPUs of each node.
    `every`: also actions for what is as wanted now.
    """

    host: Host
    intent: Intent
    guests: tuple[PlannedGuest, ...]
    held_cpus: CpuSet
    node_cpus: Mapping[int, CpuSet]
    every: bool = False

    @property
    def devices(self) -> DeviceIndex:
        """The host's devices by address."""
        return self.host.index

    @cached_property
    def pinned(self) -> CpuSet:
        """The CPUs that vCPUs of the planned guests are pinned to."""
        return CpuSet(cpu for guest in self.guests for pin in guest.vcpu_pins for cpu in parse_cpus(pin.cpus))

    @cached_property
    def given(self) -> frozenset[str]:
        """The devices that an existing or planned guest has."""
        planned = (device.address for guest in self.guests for device in guest.devices)
        return frozenset((*self.devices.holders, *planned))

    def passed(self) -> Iterator[PciDevice]:
        """Yield the functions that planned guests get, guest by guest, without those that the host document does not
        have.
        """
        for guest in self.guests:
            for device in guest.devices:
                if (function := self.devices.pci.get(device.address)) is not None:
                    yield function
