"""What the checks of ports share: the network functions, which of them can be judged, and which have a link. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial

import msgspec

from hosttune.inventory.pcielink import SOFTWARE
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import Nic, PciDevice
from hosttune.model.pci import for_vfio
from hosttune.model.ports import Interface, NicPorts, RdmaPort
from hosttune.model.values import slot_of
from hosttune.rules.checks.facts import RECORD, lacks
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

STATE = "port-state"
IB, ETHERNET = "infiniband", "ethernet"
_MOST = 256  # functions with which one is compared
_IPOIB = 32  # ARPHRD_INFINIBAND, linux/if_arp.h
LINKED, NO_LINK, OFF, UNKNOWN = "linked", "no link", "off", "unknown"
READ = "/sys/class/infiniband/*/ports, /sys/class/net"
NO_PORT = NicPorts(rdma=(), interfaces=())
NVSENTINEL = "NVIDIA, NVSentinel NIC Health Monitor (docs.nvidia.com/nvsentinel)"
CABLE = (
    "reseat or swap the cable or transceiver, try another port of the switch, and look at that port's own state there;"
    " a port that is not used: ip link set NAME down (InfiniBand: mlxlink -d DEVICE --port_state dn)"
)


class PhysicalFunction(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A physical network function. `free`: no driver of this machine has it. `here`: all functions of the host."""

    address: str
    nic: Nic
    device: PciDevice
    ports: NicPorts | None
    free: bool
    here: Sequence[PhysicalFunction]

    @property
    def rdma(self) -> tuple[RdmaPort, ...]:
        """Its RDMA ports."""
        return self.ports.rdma or () if self.ports else ()

    @cached_property
    def interfaces(self) -> tuple[Interface, ...]:
        """Its interfaces that are ports of their own: without IPoIB and what stands for virtual functions."""
        only_ib = bool(self.rdma) and all(port.layer == IB for port in self.rdma)
        every = self.ports.interfaces or () if self.ports else ()
        return tuple(
            interface
            for interface in every
            if not interface.represents
            and interface.arp_type != _IPOIB
            and not (interface.arp_type is None and only_ib)
        )

    @property
    def is_virtual(self) -> bool:
        """Whether it is software: it has no port, and no rate of its own."""
        return self.device.vendor_id in SOFTWARE

    @cached_property
    def links(self) -> Mapping[str, str]:
        """The link of each port by its name."""
        rdma = {port.name: _rdma_link(port, self.interfaces) for port in self.rdma}
        return rdma | {interface.name: _link(interface) for interface in self.interfaces}

    @cached_property
    def linked(self) -> bool | None:
        """Whether any of its ports has a link; None: not known."""
        if self.free or LINKED in self.links.values():
            return not self.free
        whole = self.ports and self.ports.rdma is not None and self.ports.interfaces is not None
        return False if whole and UNKNOWN not in self.links.values() else None

    @property
    def rdma_devices(self) -> frozenset[str] | None:
        """The names of its RDMA devices; None: not known."""
        if self.free:
            return frozenset()
        return None if self.ports is None or self.ports.rdma is None else frozenset(port.device for port in self.rdma)

    @cached_property
    def alike(self) -> list[PhysicalFunction]:
        """The other functions of the same model and function number, and those that may be of it.

        These are functions whose kind or ids were not read, and those that only another source than the PCI tree shows.
        """
        own = _model(self)
        others = ((other, zip(own, _model(other), strict=True)) for other in self.here[:_MOST] if other is not self)
        return [other for other, pairs in others if all(None in pair or len(set(pair)) == 1 for pair in pairs)]

    @cached_property
    def on_card(self) -> list[PhysicalFunction]:
        """The other functions of the same card."""
        own = slot_of(self.address)
        return [other for other in self.here[:_MOST] if other is not self and slot_of(other.address) == own]


def nics(evidence: Evidence) -> Iterator[tuple[str, PhysicalFunction]]:
    """Yield every physical network function. What may be one is among `Function.here`."""
    host, functions = evidence.host, evidence.host.index.pci
    physical = [nic for nic in host.nics if nic.physfn is None]
    physical = [nic for nic in physical if nic.address not in functions or functions[nic.address].physfn is None]
    doubtful = {device.address for device in host.pci if device.class_code is None and device.physfn is None}
    doubtful |= {seen.address for source in host.sources or () for seen in source.beyond if seen.kind == "nic"}
    doubtful -= {nic.address for nic in host.nics}
    here: list[PhysicalFunction] = []
    for nic in (*physical, *(Nic(address=address) for address in sorted(doubtful))):
        device = functions.get(nic.address, PciDevice(address=nic.address))
        no_driver = device.driver is None and lacks(evidence, sysfs.function(nic.address, "driver"))
        ports = (evidence.ports or {}).get(nic.address)
        here.append(PhysicalFunction(nic.address, nic, device, ports, no_driver or for_vfio(device.driver), here))
    yield from ((function.address, function) for function in here[: len(physical)])


port_check = partial(check, each=nics, inside=True, none="NIC", look=RECORD)


def _model(function: PhysicalFunction) -> tuple[str | None, ...]:
    device = function.device
    ids = device.vendor_id, device.device_id, device.subsystem_vendor_id, device.subsystem_device_id
    return (*ids, function.address[-1])


def any_linked(functions: Iterable[PhysicalFunction]) -> bool | None:
    """Return whether any of these functions has a link; None if none is known to have one, and one is unknown."""
    known = {function.linked for function in functions}
    return True if True in known else None if None in known else False


def in_use(on: On, nic: PhysicalFunction) -> None:
    """End the check for a function that nothing here can use, whose ports were not read, or that has none."""
    driver = nic.device.driver
    if for_vfio(driver):
        on.skip(f"on {driver}: its guest sees it (hosttune validate --guest in there)")
    if nic.nic.fabric_bridge:
        on.skip("carries the GPUs' fabric: its ports are not the network's")
    if nic.free:
        on.skip("no driver holds it: nothing here can use it")
    if nic.ports is None or nic.ports == NicPorts():
        on.give_up("its ports were not read", on.look("rdma link; ip -d link show"))
    if nic.ports == NO_PORT:
        on.skip(f"its driver {driver or ''} made no port: neither a network interface nor an RDMA device")


def unlisted_ports(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    """Yield which ports a function may have besides those that were read."""
    if nic.ports is None or nic.ports.rdma is None:
        yield on.unknown("whether it has RDMA ports is not known")
    if nic.ports is None or nic.ports.interfaces is None:
        yield on.unknown("which network interfaces it has is not known")


def _rdma_link(port: RdmaPort, interfaces: Iterable[Interface]) -> str:
    """Return whether an RDMA port has a link. That of a RoCE port is the network interface's."""
    if port.layer is None or port.state is None or port.phys_state is None:
        return UNKNOWN
    if port.phys_state == "linkup":
        return LINKED
    if port.state != "down":  # in between: it is training, or recovers from errors
        return UNKNOWN
    if port.layer == ETHERNET:  # the driver says "disabled" without a cable too (mlx5_query_port_roce)
        links = {_link(interface) for interface in interfaces}
        return OFF if links == {OFF} else UNKNOWN if UNKNOWN in links or not links else NO_LINK
    return OFF if port.phys_state == "disabled" else NO_LINK


def _link(interface: Interface) -> str:
    """Return whether a network interface has a link; OFF: it was not set up, which says nothing of its cable."""
    if not interface.is_up:
        return UNKNOWN if interface.is_up is None else OFF
    return {True: LINKED, False: NO_LINK, None: UNKNOWN}[interface.carrier]


def unanswered(
    on: On, name: str, command: str, package: str, error: str | None, linked: str, hint: str = ""
) -> Finding:
    """Return what follows from an answer of `command` about a port that is not there. `package` has the tool."""
    tool = command.partition(" ")[0]
    if error is None:
        return on.unknown(f"what {tool} tells of {name} was not read", RECORD)
    if error.lower() == "not installed":
        return on.skipped(f"{tool} is not installed, which reads it: apt-get install {package} ({name})")
    if "operation not supported" in error.lower():
        return on.skipped(f"the driver of {name} does not tell it: {error}")
    if linked not in (LINKED, UNKNOWN):
        return on.skipped(f"{name} has no link, and nothing answers there: {error}")
    return on.unknown(f"{command}: {error}", hint or f"as root: {command}")
