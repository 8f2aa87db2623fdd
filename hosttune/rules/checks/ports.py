"""Checks of the ports of network functions: their links and rates. Their errors: `porterrors`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from hosttune.model.evidence import Evidence
from hosttune.model.pcitree import shared_switch
from hosttune.model.ports import RdmaPort
from hosttune.model.rates import believed_gbps
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, skipped, unknown
from hosttune.rules.checks.facts import SOFTWARE, listed
from hosttune.rules.checks.nics import (
    CABLE,
    ETHERNET,
    IB,
    LINKED,
    NO_LINK,
    NVSENTINEL,
    OFF,
    STATE,
    UNKNOWN,
    Cards,
    Found,
    Judged,
    each_nic,
    links,
    not_known,
    result_of_worst,
)
from hosttune.rules.checks.porterrors import CHECKS as ERROR_CHECKS

_MOST_GPUS = 64  # of which it is told that a port is their rail
_RATE = "port-rate"
_UNASSIGNED = frozenset((0, 0xFFFF))  # InfiniBand Architecture volume 1, 4.1.3: reserved, and the permissive LID
_UP = "each port that is set up has a link, and on InfiniBand an address from the subnet manager"
_DEVICE = "load its driver's RDMA module, look for its messages in the kernel log, and compare: rdma link; rdma dev"
_UPDATE = "bring the cards of a model to one firmware (mlxfwmanager, or the maker's tool), then reset them or reboot"
_MANAGER = "start the subnet manager (opensm, or the one of the switch), or look whether it can reach this port: sminfo"


# --- state -------------------------------------------------------------------------------------------------------


def port_state(evidence: Evidence) -> Iterable[CheckResult]:
    """Check each port: its link, and on InfiniBand what the subnet manager gave it.

    A port that was set down is not a fault: nothing can use it, and somebody decided so. Only an RDMA port warns where
    the same port of another card of its model has a link. A port that is set up and has no link warns, since a cable
    may be missing on purpose. It is a fault if it is an RDMA port of a card without any link, or if the same port of
    another card of its model has one.
    """
    return each_nic(evidence, STATE, _UP, lambda judged: _state(evidence, judged))


def _state(evidence: Evidence, judged: Judged) -> CheckResult:
    known = links(judged)
    found = [*not_known(judged)]
    found += [one for port in judged.rdma if known[port.name] == LINKED for one in _managed(port)]
    found += [Found("unknown", f"{name}: {_words(judged, name)}") for name, link in known.items() if link == UNKNOWN]
    if LINKED in known.values():
        found += [*_without_rdma(judged), *_firmware(judged)]
    others = judged.cards.any_linked(judged.cards.alike(judged)) if judged.rdma else False
    dead = [name for name, link in known.items() if link == NO_LINK]
    off = [name for name, link in known.items() if link == OFF]
    if dead:
        found.append(_dead(evidence, judged, dead, others, known))
    if off and LINKED not in known.values():
        text = f"{', '.join(off)} set down"
        if others:
            hint = f"ip link set {off[-1]} up, if it is meant to be used as the other card's is"
            found.append(Found("warn", f"{text}, and another card of its model has a link there", hint))
        elif others is None:
            found.append(Found("unknown", f"{text}; whether another card of its model has a link is not known"))
    if off and not dead and not found and LINKED not in known.values():
        return skipped(STATE, judged.address, f"{', '.join(off)} set down: nothing here can use it")
    good = ", ".join(_words(judged, name) for name in known)
    return result_of_worst(STATE, judged, _UP, [*found, *_beside(evidence, judged, found)], good)


def _beside(evidence: Evidence, judged: Judged, found: list[Found]) -> Iterator[Found]:
    """Yield which GPUs have this function below their switch: it is their rail, so a fault of it costs them."""
    worst = next((one for outcome in ("fail", "unknown", "warn") for one in found if one.outcome == outcome), None)
    if worst is not None and judged.rdma:
        index = evidence.host.index
        gpus = [
            gpu.address for gpu in index.accelerators[:_MOST_GPUS] if shared_switch(index, gpu.address, judged.address)
        ]
        if gpus:
            yield Found(worst.outcome, f"the rail of GPU {listed(gpus, 3)}, below the same switch", worst.hint)


def _managed(port: RdmaPort) -> Iterator[Found]:
    """Yield what is wrong with an InfiniBand port that has a link: not active, or without LID or subnet manager."""
    if port.state != "active":
        yield Found("fail", f"{port.name} is {port.state}: no subnet manager has activated it", _MANAGER)
    elif port.layer == IB and (port.lid is None or port.sm_lid is None):
        yield Found("unknown", f"{port.name} is active; its LID or the subnet manager's was not read")
    elif port.layer == IB and not _UNASSIGNED.isdisjoint((port.lid, port.sm_lid)):
        text = f"{port.name} is active with LID {port.lid}, subnet manager's LID {port.sm_lid}: none has assigned it"
        yield Found("fail", text, _MANAGER)


def _dead(evidence: Evidence, judged: Judged, dead: list[str], others: bool | None, known: Mapping[str, str]) -> Found:
    """Judge ports that are set up and have no link."""
    text = f"{', '.join(dead)} set up, without a link"
    if others:
        return Found("fail", f"{text}; the same port of another card of its model has one", CABLE)
    own = LINKED in known.values()
    card = True if own else judged.cards.any_linked(judged.cards.on_card(judged))
    fabric = any(port.name in dead for port in judged.rdma)
    if fabric and card is False:
        return Found("fail", f"{text}, nor has another port of the card", CABLE)
    if others is None or (fabric and card is None):
        return Found(
            "unknown", f"{text}; whether another port of the card or another card of its model has one is not known"
        )
    return Found("warn", text, CABLE)


def _without_rdma(judged: Judged) -> Iterator[Found]:
    """Yield that an Ethernet function has no RDMA device although the same function of another card of its model has
    one: collectives leave this rail out. A bond's ports have one RDMA device together, at one of the card's functions.
    """
    if judged.ports.rdma != () or judged.device.vendor_id in SOFTWARE:
        return
    cards = judged.cards
    if any("bond" in name for address in cards.on_card(judged) for name in cards.rdma_names(address) or ()):
        return
    alike = {address: cards.rdma_names(address) for address in cards.alike(judged)}
    having = [address for address, names in alike.items() if names]
    silent = [address for address, names in alike.items() if names is None]
    if having:
        yield Found("warn", f"no RDMA device, and {listed(having, 3)}, of the same model, has one", _DEVICE)
    elif silent:
        yield Found("unknown", f"no RDMA device; whether {listed(silent, 3)}, of the same model, has one is not known")


def _firmware(judged: Judged) -> Iterator[Found]:
    """Yield that its RDMA device runs another firmware than most cards of its model here."""
    cards, own = judged.cards, _versions(judged)
    having = {address: cards.judged(address) for address in cards.alike(judged) if cards.rdma_names(address) != ()}
    seen = {address: _versions(one) if one is not None else () for address, one in having.items()}
    theirs, unread = list(seen.values()), [address for address, versions in seen.items() if not versions]
    if not judged.rdma or not any([own, *theirs]):
        return  # it has no RDMA device, or its driver tells none
    (most, count), *rest = Counter([own, *theirs]).most_common()
    if not own:
        yield Found("unknown", "its firmware was not read, which other cards of its model show")
    elif unread:
        yield Found("unknown", f"the firmware of {listed(unread, 3)}, of the same model, was not read")
    elif rest and (own != most or any(other == count for _, other in rest)):
        shown = listed(sorted({version for versions in theirs for version in versions if version not in own}), 3)
        yield Found("warn", f"firmware {', '.join(own)}; other cards of its model have {shown}", _UPDATE)


def _versions(judged: Judged) -> tuple[str, ...]:
    return tuple(sorted({port.firmware for port in judged.rdma if port.firmware}))


def _words(judged: Judged, name: str) -> str:
    """Return a port in words: "mlx5_0/1 active, linkup, firmware 28.39.1002"."""
    port = next((one for one in judged.rdma if one.name == name), None)
    if port is not None:
        firmware = [f"firmware {port.firmware}"] if port.firmware else []
        return f"{name} {', '.join([port.state or 'state not read', port.phys_state or 'link not read', *firmware])}"
    one = next(one for one in judged.interfaces if one.name == name)
    up = {True: "set up", False: "set down", None: "whether it is set up not read"}[one.is_up]
    carrier = {True: "carrier", False: "no carrier", None: "carrier not read"}[one.carrier if one.is_up else False]
    return f"{name} {up}, {carrier}" + (f", MTU {one.mtu}" if one.mtu else "")


# --- rate --------------------------------------------------------------------------------------------------------

_LIKE = "full duplex, and the rate (on RoCE also the MTU) of the same port of the other cards of its model"
_ASK = "ibstat, or mlxlink -d DEVICE as root, asks the port itself"
_SLOWER = "look at the cable, the transceiver and the switch's port: one of them holds the rate down; compare with {0}"


def port_rate(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the rate of each function's ports that have a link against other cards of its model."""
    return each_nic(evidence, _RATE, _LIKE, lambda judged: _rate(evidence, judged))


def _rate(evidence: Evidence, judged: Judged) -> CheckResult:
    known = links(judged)
    if UNKNOWN in known.values():
        return unknown(_RATE, judged.address, expected=_LIKE, why="its link is not known", hint=_see(judged))
    if LINKED not in known.values():
        if doubts := list(not_known(judged)):
            return unknown(_RATE, judged.address, expected=_LIKE, why=doubts[0].text, hint=_see(judged))
        return skipped(_RATE, judged.address, "no link: see port-state")
    if judged.device.vendor_id in SOFTWARE:
        return skipped(_RATE, judged.address, "a virtual device: it has no rate of its own")
    rates = _rates(judged)
    found = [*not_known(judged), *_duplex(judged, known)]
    found += [
        Found("unknown", shown if shown.startswith(name) else f"the rate of {name} was not read", _ASK)
        for name, (rate, shown) in rates.items()
        if rate is None
    ]
    text = ", ".join(shown if shown.startswith(name) else f"{name} {shown}" for name, (_, shown) in rates.items())
    own = sorted((rate for rate, _ in rates.values() if rate is not None), reverse=True)
    like = {address: _fastest_first(judged.cards, address) for address in judged.cards.alike(judged)}
    silent = [address for address, those in like.items() if those is None]
    # A function may have several ports: the fastest is compared with the fastest, the next one with the next one.
    faster = {address: max(theirs) for address, those in like.items() if (theirs := _above(those or [], own))}
    if faster:
        of = max(faster, key=lambda address: faster[address])
        found.append(Found("warn", f"{text}; {of}, of the same model, runs at {faster[of]:g} Gb/s", _SLOWER.format(of)))
    elif silent:
        own_too = "" if None in (rate for rate, _ in rates.values()) else f"{text}; "
        found.append(Found("unknown", f"{own_too}the rate of {listed(silent, 3)}, of the same model, is not known"))
    elif (small := _smaller(judged, list(like))) is not None:
        found.append(small)
    elif not found and not any(like.values()):
        why = f"{text}; nothing here tells what it can do: no other card of its model has a link on this port"
        return skipped(_RATE, judged.address, why)
    good = f"{text}, as other cards of its model" if any(like.values()) else text
    return result_of_worst(_RATE, judged, _LIKE, found, good)


def _see(judged: Judged) -> str:
    return f"see {STATE} of {judged.address}"


def _rates(judged: Judged) -> dict[str, tuple[float | None, str]]:
    """Return the Gb/s of each port with a link, and its text. The RDMA port of an Ethernet port is the same port."""
    known = links(judged)
    found: dict[str, tuple[float | None, str]] = {}
    for port in judged.rdma:
        if known[port.name] == LINKED and not (port.layer != IB and judged.interfaces):
            lanes = f" ({port.width}X {port.speed})" if port.width and port.speed else ""
            shown = f"{port.rate_gbps or 0:g} Gb/s{lanes}"
            rate = believed_gbps(port.layer, port.rate_gbps, port.speed)
            if rate is None and port.rate_gbps is not None:
                shown = f"{port.name} shows {shown}, as the kernel does also for a speed that it has no name for"
            found[port.name] = rate, shown
    for one in judged.interfaces:
        if known[one.name] == LINKED:
            found[one.name] = one.speed_gbps, f"{one.speed_gbps or 0:g} Gb/s"
    return found


def _fastest_first(cards: Cards, address: str) -> list[float] | None:
    """Return the Gb/s of a function's ports that have a link, the fastest first; None if it is not known."""
    linked, judged = cards.has_link(address), cards.judged(address)
    if not linked or judged is None:
        return [] if linked is False else None
    rates = [rate for rate, _ in _rates(judged).values()]
    if None in rates or not rates:
        return None
    return sorted((rate for rate in rates if rate is not None), reverse=True)


def _above(theirs: list[float], own: list[float]) -> list[float]:
    return [rate for rate, mine in zip(theirs, own, strict=False) if rate > mine]


def _smaller(judged: Judged, like: list[str]) -> Found | None:
    """Return that a RoCE port's MTU is below that of its like: messages between rails then have the smaller one."""
    own = _mtus(judged)
    if not own:
        return None
    others = {address: _mtus(one) for address in like if (one := judged.cards.judged(address))}
    unread = [address for address, mtus in {judged.address: own, **others}.items() if 0 in mtus]
    if unread:
        return Found("unknown", f"the MTU of {listed(unread, 3)} was not read")
    most = max((mtu for mtus in others.values() for mtu in mtus), default=0)
    if min(own) >= most:
        return None
    of = next(address for address, mtus in others.items() if most in mtus)
    hint = f"ip link set {judged.interfaces[0].name} mtu {most}, and the same on the switch's port"
    return Found("warn", f"MTU {min(own)}; {of}, of the same model, has {most}", hint)


def _mtus(judged: Judged) -> list[int]:
    """Return the MTU of each interface of a RoCE function that has a link; 0 for one that was not read."""
    if not any(port.layer == ETHERNET for port in judged.rdma):
        return []
    known = links(judged)
    return [one.mtu or 0 for one in judged.interfaces if known[one.name] == LINKED]


def _duplex(judged: Judged, known: Mapping[str, str]) -> Iterator[Found]:
    for one in judged.interfaces:
        if known[one.name] == LINKED and one.duplex == "half":
            hint = "set both ends to negotiate: ethtool -s NAME autoneg on; and the switch's port likewise"
            yield Found("fail", f"{one.name} runs half duplex", hint)
        elif known[one.name] == LINKED and one.duplex != "full":
            yield Found("unknown", f"the duplex of {one.name} was not read")


CHECKS: tuple[Check, ...] = (
    Check(
        STATE,
        "Ports have a link, and InfiniBand ports a subnet manager",
        "each NIC (physical function), with all its RDMA ports and network interfaces",
        "A cluster is as fast as its worst cable: a rail that is down slows or stops every job that spans hosts",
        "Linux Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-class-net; InfiniBand Architecture"
        f" volume 1, 14.2 (subnet management); {NVSENTINEL}, link state detection",
        port_state,
        inside=True,
        none="NIC",
    ),
    Check(
        _RATE,
        "Ports run at the rate of other cards of their model",
        "each NIC whose port has a link",
        "One port at half its rate halves the collectives of the whole job, and nothing reports it",
        "Linux drivers/infiniband/core/sysfs.c (rate_show), Documentation/ABI/testing/sysfs-class-net (speed, duplex)",
        port_rate,
        inside=True,
        none="NIC",
    ),
    *ERROR_CHECKS,
)
