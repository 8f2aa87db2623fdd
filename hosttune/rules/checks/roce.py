"""Check of RoCE ports: what the operator declares of them (`fabric: roce:` of an intent) holds on this host."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.model import sysfs
from hosttune.model.evidence import STATE as RECORDS
from hosttune.model.evidence import Evidence
from hosttune.model.guestplan import UNREADABLE
from hosttune.model.networkintent import Roce
from hosttune.model.pci import for_vfio
from hosttune.model.ports import RoceState
from hosttune.rules.checks.facts import HOST, LIST_PCI, RECORD, unlisted
from hosttune.rules.checks.nics import ETHERNET, LINKED, STATE, UNKNOWN, PhysicalFunction, in_use, nics
from hosttune.rules.checks.on import On, check, worst_of
from hosttune.rules.engine import Finding

_V2 = "RoCE v2"
_NOTHING = "no plan in force, no --expect and no guest's plan declares what holds for RoCE (fabric: roce: of an intent)"
_LOAD = "load its RDMA driver (rdma link), or correct fabric.roce.nics of the intent"


def declared_roce(evidence: Evidence) -> Roce | None:
    """Return what is declared: by the document that the caller named, the newest plan in force, or the guest's plan."""
    if evidence.declared_roce is not None:
        return evidence.declared_roce
    plans = [plan.intent.fabric.roce for plan in reversed(evidence.plans) if plan.intent.fabric is not None]
    planned = next((roce for roce in plans if roce is not None), None)
    return planned if planned is not None or evidence.guest_plan is None else evidence.guest_plan.roce


def _subjects(evidence: Evidence) -> Iterator[tuple[str, PhysicalFunction | None]]:
    """Yield each NIC, each declared one that is not here, and the host if none of its NICs can have a RoCE port.

    A NIC for guests may have one: its guest sees it.
    """
    roce, here = declared_roce(evidence), dict(nics(evidence))
    yield from here.items()
    listed = {nic.address for nic in evidence.host.nics}
    yield from ((address, None) for address in (roce.addresses if roce else None) or () if address not in listed)
    may_be = any(for_vfio(nic.device.driver) or _may_be_roce(nic) for nic in here.values())
    if not may_be and (roce.nics is None if roce else not here):
        yield HOST, None


def _may_be_roce(nic: PhysicalFunction) -> bool:
    layers = {port.layer for port in nic.rdma}
    return not (nic.free or nic.nic.fabric_bridge) and (nic.rdma_devices is None or bool({ETHERNET, None} & layers))


@check(
    "port-roce",
    title="RoCE ports are set as declared",
    about="each NIC with a RoCE port, where an intent declares what must hold",
    why="One port whose flow control, trust or MTU differs drops packets under load",
    source="the intent's declaration; IEEE 802.1Qbb (PFC), Annex A17 of the InfiniBand Architecture (RoCE v2); dcb(8)",
    expected="what is declared",
    look=RECORD,
    each=_subjects,
    inside=True,
)
def port_roce(on: On, nic: PhysicalFunction | None) -> Finding:
    roce = declared_roce(on.evidence)
    if roce is None:
        lost = next((problem for problem in on.evidence.problems if problem.what in (RECORDS, UNREADABLE)), None)
        if lost is None:
            on.skip(_NOTHING)
        on.give_up(f"what is declared is not known: {lost.what}", f"see {lost.where}: {lost.why}", lost.where)
    on = on.reading("/sys/class/net, /sys/class/infiniband, mlnx_qos, dcb, ibv_devinfo", _expected(roce))
    if nic is not None:
        return _port(on, nic, roce)
    if on.subject != HOST:
        hint = "look with: lspci -D; or correct fabric.roce.nics of the intent"
        return on.failed("no such NIC here", hint, sysfs.PCI_DEVICES)
    if why := unlisted(on.evidence):
        return on.unknown(f"whether there is a RoCE port is not known: {why}", LIST_PCI)
    ways = "set the ports to Ethernet (mlxconfig LINK_TYPE), load their RDMA driver"
    return on.failed("no port here is RoCE", f"{ways}, or take fabric.roce out of the intent")


def _expected(roce: Roce) -> str:
    """Return the declaration in words: "a GID of RoCE v2, mtu 9000, trust dscp, pfc 3"."""
    parts = [f"a GID of {_V2}"]
    for name in ("mtu", "rdma_mtu", "trust", "pfc", "ecn", "traffic_class"):
        value = getattr(roce, name)
        if value is not None:
            parts.append(f"{name} {_value_text(value)}")
    return ", ".join(parts)


def _value_text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in sorted(value)) or "none"
    return "none" if value == -1 else str(value)


@worst_of
def _port(on: On, nic: PhysicalFunction, roce: Roce) -> Iterator[Finding]:
    in_use(on, nic)
    if roce.addresses is not None and nic.address not in roce.addresses:
        on.skip("fabric.roce.nics does not name it")
    layers = {port.layer for port in nic.rdma}
    if nic.rdma_devices is None or None in layers:
        on.give_up("whether it has a RoCE port is not known")
    if ETHERNET not in layers:
        what = "its ports are not RoCE" if layers else "no RDMA port here"
        yield on.skipped(what) if roce.nics is None else on.failed(what, _LOAD)
        return
    if {LINKED, UNKNOWN}.isdisjoint(nic.links.values()):
        on.skip(f"no link: see {STATE}")
    state = on.need((on.evidence.roce or {}).get(nic.address), "how its RoCE port is set")
    yield from _compare(on, nic, state, roce)
    yield on.passed(_expected(roce))


def _compare(on: On, nic: PhysicalFunction, state: RoceState, roce: Roce) -> Iterator[Finding]:
    """Yield what differs from the declaration, or could not be read.

    Of congestion control only the declared priorities count: drivers switch it on for all.
    """
    name = state.interface or "NAME"
    look = f"as root: mlnx_qos -i {name}; dcb pfc show dev {name}; ibv_devinfo -d {state.device}"
    if state.gid_types is None:
        yield on.unknown("the types of its GIDs were not read")
    elif _V2 not in state.gid_types:
        text = f"no GID of {_V2}: {', '.join(state.gid_types)}"
        yield on.failed(text, f"give {name} an IP address; rdma link, show_gids")
    mtu = next((net.mtu for net in nic.interfaces if net.name == state.interface), None)
    flags = ",".join("1" if number in (roce.pfc or ()) else "0" for number in range(8))
    larger = f"the RDMA MTU follows from the interface's: ip link set {name} mtu 4200 or more gives 4096"
    tc = f"/sys/class/infiniband/{state.device}/tc/1/traffic_class"
    for key, wanted, value, hint in (
        ("mtu", roce.mtu, mtu, f"ip link set {name} mtu {roce.mtu}, and the same on the switch's port"),
        ("rdma_mtu", roce.rdma_mtu, state.active_mtu, larger),
        ("trust", roce.trust, state.trust, f"mlnx_qos -i {name} --trust {roce.trust}"),
        ("pfc", roce.pfc and tuple(sorted(roce.pfc)), state.pfc, f"mlnx_qos -i {name} --pfc {flags}"),
        ("traffic_class", roce.traffic_class, state.traffic_class, f"echo {roce.traffic_class} > {tc}"),
    ):
        if wanted is not None and value is None:
            why = state.why.get("active_mtu" if key == "rdma_mtu" else key, "not recorded")
            yield on.unknown(f"{key} was not read ({why})", look)
        elif wanted not in (None, value):
            yield on.failed(f"{key} {_value_text(value)}", hint)
    for end, priorities, role in (
        ("np", state.ecn_np, "the receiver does not notify"),
        ("rp", state.ecn_rp, "the sender does not slow down"),
    ):
        off = tuple(sorted(set(roce.ecn or ()) - set(priorities or ())))
        if priorities is None and roce.ecn is not None:
            yield on.unknown(f"ecn of roce_{end} was not read ({state.why.get('ecn', 'not recorded')})", look)
        elif off:
            hint = f"echo 1 > /sys/class/net/{name}/ecn/roce_{end}/enable/{off[0]}"
            yield on.failed(f"ecn off on {_value_text(off)} ({role})", hint)
