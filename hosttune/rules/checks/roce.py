"""Check of RoCE ports: what the operator declares of them (`fabric: roce:` of an intent) holds on this host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hosttune.model import sysfs
from hosttune.model.evidence import STATE, Evidence
from hosttune.model.guestplan import UNREADABLE
from hosttune.model.networkintent import Roce
from hosttune.model.ports import RoceState
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, failed, skipped, unknown
from hosttune.rules.checks.facts import HOST, LIST_PCI, RECORD, for_vfio, unlisted
from hosttune.rules.checks.nics import ETHERNET, LINKED, UNKNOWN, Found, Judged, each_nic, links, result_of_worst

_ID = "port-roce"
_V2 = "RoCE v2"
_SOURCE = "/sys/class/net, /sys/class/infiniband, mlnx_qos, dcb, ibv_devinfo"
_NOTHING = "no plan in force, no --expect and no guest's plan declares what holds for RoCE (fabric: roce: of an intent)"


def declared_roce(evidence: Evidence) -> Roce | None:
    """Return what is declared: by the document that the caller named, the newest plan in force, or the guest's plan."""
    if evidence.declared_roce is not None:
        return evidence.declared_roce
    plans = [plan.intent.fabric.roce for plan in evidence.plans if plan.intent.fabric is not None]
    found = next((roce for roce in reversed(plans) if roce is not None), None)
    return found if found is not None or evidence.guest_plan is None else evidence.guest_plan.roce


def port_roce(evidence: Evidence) -> Iterable[CheckResult]:
    """Check each RoCE port against what is declared."""
    roce = declared_roce(evidence)
    if roce is None:
        yield from _undeclared(evidence)
        return
    expected = _expected(roce)
    found = list(each_nic(evidence, _ID, expected, lambda judged: _judge(evidence, judged, roce, expected)))
    yield from found
    here = {nic.address for nic in evidence.host.nics}
    for address in roce.addresses or ():
        if address not in here:
            hint = "look with: lspci -D; or correct fabric.roce.nics of the intent"
            actual = "no such NIC here"
            yield failed(_ID, address, expected=expected, actual=actual, source=sysfs.PCI_DEVICES, hint=hint)
    if roce.nics is None and all(result.outcome == "skip" for result in found):
        yield from _nowhere(evidence, expected)


def _nowhere(evidence: Evidence, expected: str) -> Iterator[CheckResult]:
    """Yield that no port of this host is RoCE although it is declared, unless its NICs are for guests."""
    layers = {port.layer for ports in (evidence.ports or {}).values() for port in ports.rdma or ()}
    drivers = {device.driver for nic in evidence.host.nics if (device := evidence.host.index.pci.get(nic.address))}
    if ETHERNET in layers or any(for_vfio(driver) for driver in drivers):
        return
    if (why := unlisted(evidence)) is not None:
        why = f"whether there is a RoCE port is not known: {why}"
        yield unknown(_ID, HOST, expected=expected, why=why, hint=LIST_PCI, source=_SOURCE)
        return
    hint = (
        "set the ports to Ethernet (mlxconfig LINK_TYPE), load their RDMA driver, or take fabric.roce out of the intent"
    )
    yield failed(_ID, HOST, expected=expected, actual="no port here is RoCE", source=_SOURCE, hint=hint)


def _undeclared(evidence: Evidence) -> Iterator[CheckResult]:
    """Yield for each NIC that nothing is declared, or that this is not known."""
    lost = next((one for one in evidence.problems if one.what in (STATE, UNREADABLE)), None)
    for subject in [nic.address for nic in evidence.host.nics if nic.physfn is None] or [HOST]:
        if lost is None:
            yield skipped(_ID, subject, _NOTHING)
        else:
            why, hint = f"what is declared is not known: {lost.what}", f"see {lost.where}: {lost.why}"
            yield unknown(_ID, subject, expected="what is declared", why=why, hint=hint, source=lost.where)


def _expected(roce: Roce) -> str:
    """Return the declaration in words: "a GID of RoCE v2, mtu 9000, trust dscp, pfc 3"."""
    parts = [f"a GID of {_V2}"]
    for name in ("mtu", "rdma_mtu", "trust", "pfc", "ecn", "traffic_class"):
        value = getattr(roce, name)
        if value is not None:
            parts.append(f"{name} {_shown(value)}")
    return ", ".join(parts)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(str(one) for one in sorted(value)) or "none"
    return "none" if value == -1 else str(value)


def _judge(evidence: Evidence, judged: Judged, roce: Roce, expected: str) -> CheckResult:
    at = _ID, judged.address
    addresses = roce.addresses
    if addresses is not None and judged.address not in addresses:
        return skipped(*at, "fabric.roce.nics does not name it")
    layers = {port.layer for port in judged.rdma}
    found: list[Found] = []
    if judged.ports.rdma is None or None in layers:
        found.append(Found("unknown", "whether it has a RoCE port is not known", RECORD))
    elif ETHERNET not in layers:
        what = "no RDMA port here" if not layers else "its ports are not RoCE"
        if roce.nics is None:
            return skipped(*at, what)
        found.append(Found("fail", what, "load its RDMA driver (rdma link), or correct fabric.roce.nics of the intent"))
    linked = set(links(judged).values())
    if not found and LINKED not in linked and UNKNOWN not in linked:
        return skipped(*at, "no link: see port-state")
    state = (evidence.roce or {}).get(judged.address)
    if not found and state is None:
        found.append(Found("unknown", "how its RoCE port is set was not read", RECORD))
    if not found and state is not None:
        found += _compare(judged, state, roce)
    return result_of_worst(_ID, judged, expected, found, expected, source=_SOURCE)


def _compare(judged: Judged, state: RoceState, roce: Roce) -> Iterator[Found]:
    """Yield what differs from the declaration, or could not be read."""
    name = state.interface or "NAME"
    if state.gid_types is None:
        yield Found("unknown", "the types of its GIDs were not read", RECORD)
    elif _V2 not in state.gid_types:
        text = f"no GID of {_V2}: {', '.join(state.gid_types)}"
        yield Found("fail", text, f"give {name} an IP address; rdma link, show_gids")
    own = next((one for one in judged.interfaces if one.name == state.interface), None)
    mtu = own.mtu if own is not None else None
    yield from _one(
        state, "mtu", roce.mtu, mtu, f"ip link set {name} mtu {roce.mtu}, and the same on the switch's port"
    )
    hint = f"the RDMA MTU follows from the interface's: ip link set {name} mtu 4200 or more gives 4096"
    yield from _one(state, "rdma_mtu", roce.rdma_mtu, state.active_mtu, hint, "active_mtu")
    yield from _one(state, "trust", roce.trust, state.trust, f"mlnx_qos -i {name} --trust {roce.trust}")
    wanted = None if roce.pfc is None else tuple(sorted(roce.pfc))
    flags = ",".join("1" if number in (roce.pfc or ()) else "0" for number in range(8))
    yield from _one(state, "pfc", wanted, state.pfc, f"mlnx_qos -i {name} --pfc {flags}")
    for end in ("np", "rp") if roce.ecn is not None else ():
        yield from _ecn(state, end, tuple(sorted(roce.ecn or ())), name)
    hint = f"echo {roce.traffic_class} > /sys/class/infiniband/{state.device}/tc/1/traffic_class"
    yield from _one(state, "traffic_class", roce.traffic_class, state.traffic_class, hint)


def _one(
    state: RoceState, key: str, wanted: object, value: object, hint: str, field: str | None = None
) -> Iterator[Found]:
    if wanted is None or wanted == value:
        return
    if value is None:
        yield Found("unknown", f"{key} was not read ({state.why.get(field or key, 'not recorded')})", _look(state))
    else:
        yield Found("fail", f"{key} {_shown(value)}", hint)


def _ecn(state: RoceState, end: str, wanted: tuple[int, ...], name: str) -> Iterator[Found]:
    """Yield which declared priorities lack congestion control. Others may have it: drivers switch it on for all."""
    value: tuple[int, ...] | None = getattr(state, f"ecn_{end}")
    role = {"np": "the receiver does not notify", "rp": "the sender does not slow down"}[end]
    if value is None:
        yield Found("unknown", f"ecn of roce_{end} was not read ({state.why.get('ecn', 'not recorded')})", _look(state))
    elif off := [number for number in wanted if number not in value]:
        hint = f"echo 1 > /sys/class/net/{name}/ecn/roce_{end}/enable/{off[0]}"
        yield Found("fail", f"ecn off on {_shown(tuple(off))} ({role})", hint)


def _look(state: RoceState) -> str:
    name = state.interface or "NAME"
    return f"as root: mlnx_qos -i {name}; dcb pfc show dev {name}; ibv_devinfo -d {state.device}"


CHECKS: tuple[Check, ...] = (
    Check(
        _ID,
        "RoCE ports are set as declared",
        "each NIC with a RoCE port, where an intent declares what must hold",
        "One port whose flow control, trust or MTU differs drops packets under load, and slows every job that uses it",
        "the intent's declaration; IEEE 802.1Qbb (PFC), Annex A17 of the InfiniBand Architecture (RoCE v2); dcb(8)",
        port_roce,
        inside=True,
    ),
)
