"""What the checks of ports share: whose ports can be judged, why others' cannot, and which have a link. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from hosttune.checks.check import failed, passed, skipped, unknown, warned
from hosttune.checks.facts import RECORD, driver_unread, for_vfio, lacks, model_of
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import Nic, PciDevice
from hosttune.model.ports import Interface, NicPorts, RdmaPort
from hosttune.model.validation import CheckResult
from hosttune.model.values import slot_of

IB, ETHERNET = "infiniband", "ethernet"
_IPOIB = 32  # ARPHRD_INFINIBAND, linux/if_arp.h
LINKED, NO_LINK, OFF, UNKNOWN = "linked", "no link", "off", "unknown"
READ = "/sys/class/infiniband/*/ports, /sys/class/net"
NVSENTINEL = "NVIDIA, NVSentinel NIC Health Monitor (docs.nvidia.com/nvsentinel)"
CABLE = (
    "reseat or swap the cable or transceiver, try another port of the switch, and look at that port's own state there;"
    " a port that is not used: ip link set NAME down"
)
LOOK = "rdma link; ip -d link show"


class Judged(NamedTuple):
    """A network function whose ports were read."""

    nic: Nic
    device: PciDevice
    ports: NicPorts

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
    functions = evidence.host.index.pci
    for nic in evidence.host.nics:
        device = functions.get(nic.address)
        if nic.physfn is None and (device is None or device.physfn is None):
            yield _not_judged(evidence, check, expected, nic, device) or judge(
                Judged(nic, device or PciDevice(address=nic.address), (evidence.ports or {})[nic.address])
            )


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
        return skipped(*at, f"its driver {driver or ''} made no port: neither a network interface nor an RDMA device")
    return None


# --- results -------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """One thing that was found: fail, unknown, warn or pass, and the words for it."""

    outcome: str
    text: str
    hint: str = ""


def result_of_worst(check: str, judged: Judged, expected: str, found: Iterable[Found], good: str) -> CheckResult:
    """Return the result of the worst thing found; the text has all that is as bad as that, or `good`."""
    every = list(found)
    at = check, judged.address
    for outcome, make in (("fail", failed), ("warn", warned)):
        worst = [one for one in every if one.outcome == outcome]
        lacking = [one for one in every if one.outcome == "unknown"]
        if lacking and outcome == "warn":
            why = "; ".join(one.text for one in (*lacking, *worst))
            return unknown(*at, expected=expected, why=why, hint=lacking[0].hint or RECORD, source=READ)
        if worst:
            actual = "; ".join(one.text for one in worst)
            return make(*at, expected=expected, actual=actual, source=READ, hint=worst[0].hint)
    return passed(*at, expected=expected, actual="; ".join([good, *(one.text for one in every)]), source=READ)


def not_known(judged: Judged) -> Iterator[Found]:
    """Yield which ports the function may have besides those that were read."""
    if judged.ports.rdma is None:
        yield Found("unknown", "whether it has RDMA ports is not known")
    if judged.ports.interfaces is None:
        yield Found("unknown", "which network interfaces it has is not known")


# --- links -------------------------------------------------------------------------------------------------------


def link_of(port: RdmaPort, interfaces: Iterable[Interface]) -> str:
    """Return whether an RDMA port has a link. That of a RoCE port is the network interface's (`interface_link`)."""
    if port.layer not in (IB, ETHERNET) or port.state is None or port.phys_state is None:
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


def has_link(evidence: Evidence, address: str) -> bool | None:
    """Return whether any port of a function has a link; None if it is not known."""
    nic = next((one for one in evidence.host.nics if one.address == address), None)
    device, ports = evidence.host.index.pci.get(address), (evidence.ports or {}).get(address)
    if nic is None or device is None or address in evidence.host.index.contradicted:
        return None
    if for_vfio(device.driver) or (device.driver is None and lacks(evidence, sysfs.function(address, "driver"))):
        return False
    if ports is None:
        return None
    known = set(links(Judged(nic, device, ports)).values())
    whole = ports.rdma is not None and ports.interfaces is not None and UNKNOWN not in known
    return True if LINKED in known else False if whole else None


def alike(evidence: Evidence, judged: Judged) -> list[str]:
    """Return the other functions of the same model, and those that only other sources than the PCI tree show as NICs:
    they may be of it."""
    same = model_of(judged.device)
    functions = evidence.host.index.pci
    found = [
        nic.address
        for nic in evidence.host.nics
        if nic.address != judged.address and nic.physfn is None
        if (device := functions.get(nic.address)) is not None and model_of(device) == same
    ]
    lost = [seen.address for source in evidence.host.sources or () for seen in source.beyond if seen.kind == "nic"]
    return [*found, *dict.fromkeys(lost)]


def on_card(evidence: Evidence, judged: Judged) -> list[str]:
    """Return the other functions of the same card."""
    slot = slot_of(judged.address)
    return [nic.address for nic in evidence.host.nics if nic.address != judged.address and slot_of(nic.address) == slot]


def any_linked(evidence: Evidence, addresses: Iterable[str]) -> bool | None:
    """Return whether any of these functions has a link; None if none is known to have one, and one is not known."""
    known = {has_link(evidence, address) for address in addresses}
    return True if True in known else None if None in known else False
