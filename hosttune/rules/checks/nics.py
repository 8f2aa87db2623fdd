"""What the checks of ports share: whose ports can be judged, why others' cannot, and which have a link. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import Nic, PciDevice
from hosttune.model.ports import Interface, NicPorts, RdmaPort
from hosttune.model.validation import CheckResult
from hosttune.model.values import grouped, slot_of
from hosttune.rules.checks.check import failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import RECORD, driver_unread, for_vfio, lacks

STATE = "port-state"
IB, ETHERNET, OTHER = "infiniband", "ethernet", "unspecified"
_MOST = 256  # other functions with which one is compared
_IPOIB = 32  # ARPHRD_INFINIBAND, linux/if_arp.h
LINKED, NO_LINK, OFF, UNKNOWN = "linked", "no link", "off", "unknown"
READ = "/sys/class/infiniband/*/ports, /sys/class/net"
NVSENTINEL = "NVIDIA, NVSentinel NIC Health Monitor (docs.nvidia.com/nvsentinel)"
CABLE = (
    "reseat or swap the cable or transceiver, try another port of the switch, and look at that port's own state there;"
    " a port that is not used: ip link set NAME down (InfiniBand: mlxlink -d DEVICE --port_state dn)"
)
LOOK = "rdma link; ip -d link show"


class Judged(NamedTuple):
    """A network function whose ports were read."""

    nic: Nic
    device: PciDevice
    ports: NicPorts
    cards: Cards

    @property
    def address(self) -> str:
        """The PCI address."""
        return self.nic.address

    @property
    def rdma(self) -> tuple[RdmaPort, ...]:
        """Its RDMA ports."""
        return self.ports.rdma or ()

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """Its interfaces that are ports of their own: without IPoIB and what stands for virtual functions."""
        only_ib = bool(self.rdma) and all(port.layer == IB for port in self.rdma)
        return tuple(
            one
            for one in self.ports.interfaces or ()
            if not one.represents and one.arp_type != _IPOIB and not (one.arp_type is None and only_ib)
        )


def each_nic(
    evidence: Evidence, check: str, expected: str, judge: Callable[[Judged], CheckResult]
) -> Iterable[CheckResult]:
    """Yield one result for each physical network function: the judgement, or why there is none."""
    functions, cards = evidence.host.index.pci, Cards(evidence)
    for nic in evidence.host.nics:
        device = functions.get(nic.address)
        if nic.physfn is None and (device is None or device.physfn is None):
            found = _not_judged(evidence, check, expected, nic, device)
            if found is None:
                own = (evidence.ports or {})[nic.address]
                found = judge(Judged(nic, device or PciDevice(address=nic.address), own, cards))
            yield found


def _not_judged(
    evidence: Evidence, check: str, expected: str, nic: Nic, device: PciDevice | None
) -> CheckResult | None:
    """Return why the ports of a function are not judged; None if they are."""
    at = check, nic.address
    driver = device.driver if device else None
    if for_vfio(driver):
        return skipped(*at, f"on {driver}: its guest sees it (hosttune validate --guest in there)")
    if nic.fabric_bridge:
        return skipped(*at, "carries the GPUs' fabric: its ports are not the network's")
    if driver is None and not driver_unread(evidence, nic.address):
        return skipped(*at, "no driver holds it: nothing here can use it")
    ports = (evidence.ports or {}).get(nic.address)
    why = None
    if ports is None:
        why = "its ports were not read"
    elif ports.rdma is None and ports.interfaces is None:
        why = "which ports it has is not known"
    if why is not None:
        hint = f"look with: {LOOK}" if evidence.complete else RECORD
        return unknown(*at, expected=expected, why=why, hint=hint, source=READ)
    if ports is not None and ports.rdma == () and ports.interfaces == ():
        if nic.kind == IB and check == STATE:
            actual = f"{driver or 'its driver'} holds an InfiniBand function, and there is no RDMA device of it"
            hint = "load the module that makes the RDMA devices of this driver, then look with: rdma link; ibstat"
            return warned(*at, expected=expected, actual=actual, source=READ, hint=hint)
        return skipped(*at, f"its driver {driver or ''} made no port: neither a network interface nor an RDMA device")
    return None


# --- results -------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """One thing that is amiss: fail, unknown or warn, and the words for it."""

    outcome: str
    text: str
    hint: str = ""


def result_of_worst(
    check: str, judged: Judged, expected: str, found: Iterable[Found], good: str, *, source: str = READ
) -> CheckResult:
    """Return the result of the worst thing found; the text has all that is as bad as that. A pass says `good`."""
    every = list(found)
    at = check, judged.address
    for outcome, make in (("fail", failed), ("warn", warned)):
        worst = [one for one in every if one.outcome == outcome]
        lacking = [one for one in every if one.outcome == "unknown"]
        if lacking and outcome == "warn":
            why = "; ".join(one.text for one in (*lacking, *worst))
            return unknown(*at, expected=expected, why=why, hint=lacking[0].hint or RECORD, source=source)
        if worst:
            actual = "; ".join(one.text for one in worst)
            return make(*at, expected=expected, actual=actual, source=source, hint=worst[0].hint)
    return passed(*at, expected=expected, actual=good, source=source)


def not_known(judged: Judged) -> Iterator[Found]:
    """Yield which ports the function may have besides those that were read."""
    if judged.ports.rdma is None:
        yield Found("unknown", "whether it has RDMA ports is not known")
    if judged.ports.interfaces is None:
        yield Found("unknown", "which network interfaces it has is not known")


# --- links -------------------------------------------------------------------------------------------------------


def link_of(port: RdmaPort, interfaces: Iterable[Interface]) -> str:
    """Return whether an RDMA port has a link. That of a RoCE port is the network interface's (`interface_link`)."""
    if port.layer not in (IB, ETHERNET, OTHER) or port.state is None or port.phys_state is None:
        return UNKNOWN
    if port.phys_state == "linkup":
        return LINKED if port.state in ("active", "init", "armed") else UNKNOWN
    if port.state != "down":
        return UNKNOWN
    if port.layer == ETHERNET:  # the driver says "disabled" without a cable too (mlx5_query_port_roce)
        links = {interface_link(one) for one in interfaces}
        return OFF if links == {OFF} else UNKNOWN if UNKNOWN in links or not links else NO_LINK
    return OFF if port.phys_state == "disabled" else NO_LINK


def interface_link(interface: Interface) -> str:
    """Return whether a network interface has a link; OFF: it was not set up, which says nothing of its cable."""
    up, carrier = interface.is_up, interface.carrier
    if up is None or interface.operstate is None:
        return UNKNOWN
    if not up:
        return UNKNOWN if carrier or interface.operstate == "up" else OFF
    if carrier is None or interface.operstate == ("down" if carrier else "up"):
        return UNKNOWN
    return LINKED if carrier else NO_LINK


def links(judged: Judged) -> dict[str, str]:
    """Return the link of each port by its name."""
    found = {port.name: link_of(port, judged.interfaces) for port in judged.rdma}
    return found | {one.name: interface_link(one) for one in judged.interfaces}


class Cards:
    """The network functions of a host: which are alike, which are on one card, and which have a link.

    `alike` and `on_card` name at most `_MOST` functions, since what the checks cost must not grow with their square.
    """

    def __init__(self, evidence: Evidence) -> None:
        host = evidence.host
        self._evidence = evidence
        self._nics = {nic.address: nic for nic in host.nics if nic.physfn is None}
        self._links: dict[str, bool | None] = {}
        self._slots = grouped((slot_of(address), address) for address in self._nics)
        functions = host.index.pci
        models = [(_model(functions[address]), address) for address in self._nics if address in functions]
        self._models = grouped(models)
        self._unread = [row for row in models if None in row[0]][:_MOST]
        self._first = models[:_MOST]
        classless = [one.address for one in host.pci if one.class_code is None and one.physfn is None]
        lost = [seen.address for source in host.sources or () for seen in source.beyond if seen.kind == "nic"]
        self._doubtful = [*classless, *lost][:_MOST]

    def alike(self, judged: Judged) -> list[str]:
        """Return the other functions of the same model and function number, and those that may be of it.

        These are functions whose kind or ids were not read, and those that only another source than
        the PCI tree shows as a NIC. Their link is not known.
        """
        model = _model(judged.device)
        near = [
            address
            for other, address in (self._first if None in model else self._unread)
            if all(a is None or b is None or a == b for a, b in zip(model, other, strict=True))
        ]
        found = (*islice(self._models.get(model, ()), _MOST), *near)
        return [address for address in dict.fromkeys((*found, *self._doubtful)) if address != judged.address]

    def on_card(self, judged: Judged) -> list[str]:
        """Return the other functions of the same card."""
        found = self._slots.get(slot_of(judged.address), ())
        return [address for address in islice(found, _MOST) if address != judged.address]

    def any_linked(self, addresses: Iterable[str]) -> bool | None:
        """Return whether any of these functions has a link; None if none is known to have one, and one is unknown."""
        known = {self.has_link(address) for address in addresses}
        return True if True in known else None if None in known else False

    def has_link(self, address: str) -> bool | None:
        """Return whether any port of a function has a link; None if it is not known."""
        if address not in self._links:
            self._links[address] = self._linked(address)
        return self._links[address]

    def rdma_names(self, address: str) -> tuple[str, ...] | None:
        """Return the RDMA devices of a function; () for one that is free or for guests, None if they are not known."""
        if self._not_held(address):
            return ()
        judged = self.judged(address)
        return None if judged is None or judged.ports.rdma is None else tuple({port.device for port in judged.rdma})

    def judged(self, address: str) -> Judged | None:
        """Return a function with its ports; None if it or they are not known."""
        nic, ports = self._nics.get(address), (self._evidence.ports or {}).get(address)
        device = self._evidence.host.index.pci.get(address)
        if nic is None or device is None or ports is None:
            return None
        return Judged(nic, device, ports, self)

    def _not_held(self, address: str) -> bool:
        """Return whether it is known that no driver of this machine holds a function."""
        device = self._evidence.host.index.pci.get(address)
        if address not in self._nics or device is None:
            return False
        return for_vfio(device.driver) or (
            device.driver is None and lacks(self._evidence, sysfs.function(address, "driver"))
        )

    def _linked(self, address: str) -> bool | None:
        if self._not_held(address):
            return False
        judged = self.judged(address)
        if judged is None:
            return None
        known, ports = set(links(judged).values()), judged.ports
        whole = ports.rdma is not None and ports.interfaces is not None and UNKNOWN not in known
        return True if LINKED in known else False if whole else None


def _model(device: PciDevice) -> tuple[str | None, ...]:
    ids = device.vendor_id, device.device_id, device.subsystem_vendor_id, device.subsystem_device_id
    return (*ids, device.address[-1])
