"""Check of the errors of ports: what came since the last look, what came under load, and links that were lost again."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from hosttune.model.counters import Growth, grew, growth, last_reading
from hosttune.model.ports import Interface, RdmaPort
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import listed
from hosttune.rules.checks.nics import (
    CABLE,
    LINKED,
    NVSENTINEL,
    READ,
    UNKNOWN,
    PhysicalFunction,
    in_use,
    port_check,
    unlisted_ports,
)
from hosttune.rules.checks.on import On, worst_of
from hosttune.rules.engine import Finding

_WIRE = "clean or swap the cable or transceiver; perfquery -R, or reloading the driver, clears the counters"
_AFTER = "after the benchmarks"
_Port = RdmaPort | Interface


@port_check(
    "port-errors",
    title="Few errors on ports, and no flapping link",
    about="each NIC, with its ports",
    why="A bad cable shows itself in counters long before it breaks; each retransmission stalls a whole job",
    source=f"{NVSENTINEL}, link counter detection 4.5; Azure/azurehpc-health-checks azure_ib_link_flapping.nhc;"
    " IEEE 802.3",
    expected="no more errors than the sources of ports.toml allow, since the last look and while benchmarks ran",
    remedy=_WIRE,
    reads=READ,
)
@worst_of
def port_errors(on: On, nic: PhysicalFunction) -> Iterator[Finding]:
    in_use(on, nic)
    yield from unlisted_ports(on, nic)
    for port in nic.rdma:
        yield from _counted(on, port, growth(on.evidence, "port", port.name))
    for net in nic.interfaces:
        grown = growth(on.evidence, "port", net.name)
        yield from _frames(on, net, grown)
        if last_reading(on.evidence) is None or grown is None or grown.counts.get("carrier_down_count") != 0:
            yield from _lost_links(on, net)
    if on.evidence.ports_later is not None:
        yield from _later(on, nic, replace(nic, ports=on.evidence.ports_later.get(nic.address)))
    limited = {row["name"] for row in table("ports")["rdma"]}
    bare = [port.name for port in nic.rdma if limited.isdisjoint(port.counters)]
    shown = [
        f"{port.name}: {name} {count}"
        for port in _ports(nic)
        for name, count in port.counters.items()
        if count and name not in ("rx_bytes", "carrier_down_count")
    ]
    told = f"; the driver of {listed(bare, 3)} keeps none of the RDMA counters that have a limit" if bare else ""
    told = f"{listed(shown, 8) or 'none'}{told}"
    if len(bare) == len(nic.rdma) and not any(net.counters for net in nic.interfaces):
        why = f": {told}" if any(port.counters for port in nic.rdma) else ""
        on.skip(f"its driver keeps no counters of its ports that have a limit{why}")
    yield on.passed(told)


def _counted(on: On, port: RdmaPort, grown: Growth | None, when: str = "before") -> Iterator[Finding]:
    """Judge the counters of an RDMA port by their growth; without, any that is not 0 warns. `when` as in ports.toml."""
    if lacking := [name for name, count in port.counters.items() if count is None]:
        yield on.unknown(f"{listed(lacking, 3)} of {port.name} could not be read")
    for row in table("ports")["rdma"]:
        count = port.counters.get(row["name"])
        if not count:
            continue
        full = count == row.get("full")
        text = f"{port.name}: {row['name']} {count}{' or more' if full else ''}"
        if grown is None:
            yield on.alone(f"{text} since boot", _WIRE)
            continue
        more = grown.counts.get(row["name"], 0)
        text += f", of which {more or 'none'} {grown.words}"
        if more * row["seconds"] > row["most"] * max(grown.seconds, 60.0) or (more and not row["seconds"]):
            most = f": more than {row['most']} in {row['seconds']} s" if row["seconds"] else ""
            yield (on.failed if row[when] == "fail" else on.warned)(f"{text}{most}")
        elif full:
            yield on.unknown(f"{text}: the counter is full, and how many there were since is not known", _WIRE)


def _frames(on: On, net: Interface, grown: Growth | None) -> Iterator[Finding]:
    """Judge frames with a wrong check sum against the bit error rate that the standard allows; without growth any."""
    lacking = [name for name, count in net.counters.items() if count is None and name != "carrier_down_count"]
    if lacking:
        yield on.unknown(f"{listed(lacking, 3)} of {net.name} could not be read")
    if not net.counters.get("rx_crc_errors"):
        return
    if grown is None:
        yield on.alone(f"{net.name}: rx_crc_errors {net.counters['rx_crc_errors']} since boot", _WIRE)
        return
    limits, wrong, received = table("ports")["ethernet"], grown.counts["rx_crc_errors"], grown.counts.get("rx_bytes")
    if not wrong or received is None:
        return
    fast, slow = (math.ceil(received * 8 * limits[rate]) for rate in ("bit_error_rate", "slow_bit_error_rate"))
    allowed = fast if net.speed_gbps is not None and net.speed_gbps >= limits["fast_gbps"] else slow
    text = f"{net.name}: rx_crc_errors {wrong} {grown.words}, with {received} bytes received"
    if wrong > allowed:
        yield on.warned(f"{text}: more than {allowed}")
    elif net.speed_gbps is None and wrong > fast:
        yield on.unknown(f"{text}; its speed, which decides how many are allowed, is not known")


def _lost_links(on: On, net: Interface) -> Iterator[Finding]:
    """Judge how often an interface lost its link since boot: the kernel log has the times, a counter the number."""
    limits, health = table("ports")["flapping"], on.evidence.health
    times, seconds = limits["times"], limits["seconds"]
    down = net.counters.get("carrier_down_count")
    events = health.events or () if health else ()
    mine = [event for event in events if event.kind == "link-down" and event.address == on.subject]
    count = sum(event.count for event in mine)
    span = max((e.last_seconds or 0 for e in mine), default=0) - min((e.seconds or 0 for e in mine), default=0)
    # Among n events in a span there are two within 6 hours of each other if the n - 1 gaps cannot all be longer.
    near = min((e.least_seconds_apart for e in mine if e.least_seconds_apart is not None), default=math.inf)
    if count >= times and (span <= (count - 1) * seconds or near <= seconds):
        yield on.warned(f"{net.name} lost its link {count} times since boot, twice within {seconds // 3600} h", CABLE)
        return
    if down is not None and down < times:
        return
    up = health.uptime_seconds if health else None
    since = None if health is None or not health.events_links or health.events_unread else health.events_since
    if since is None or up is None or (since > table("limits")["xids"]["whole_log_seconds"] and since > up - seconds):
        told = f"lost its link {down} times since boot" if down is not None else "how often it lost its link"
        text = f"{net.name}: {told}; when is not known: the kernel log of the last {seconds // 3600} h was not read"
        yield on.unknown(text, "journalctl -k | grep -i 'link.*down'")
    elif down is not None and seconds < up <= (down - 1) * seconds:
        # Not every driver writes these lines. Soon after a boot the counter has what the set-up did to the interface.
        text = f"{net.name} lost its link {down} times in {up / 3600:.0f} h, twice within {seconds // 3600} h"
        yield on.warned(f"{text}; the kernel log shows {count} of them", CABLE)


def _later(on: On, nic: PhysicalFunction, later: PhysicalFunction) -> Iterator[Finding]:
    """Judge what was counted between the two looks, and whether each link is what it was. `later`: the second look."""
    seconds = on.evidence.seconds_later or 0.0
    after = {port.name: port for port in _ports(later)}
    for port in _ports(nic):
        again = after.get(port.name)
        if nic.links[port.name] == LINKED:
            yield from _link_later(on, port, again, later.links.get(port.name, UNKNOWN))
        counts = again.counters if again else {}
        missing = [name for name, count in port.counters.items() if count is not None and counts.get(name) is None]
        if missing:
            yield on.unknown(f"{port.name}: {listed(missing, 3)} could not be read again {_AFTER}")
        grown = Growth(counts=grew(port.counters, counts), seconds=seconds, words=f"in {seconds:.0f} s of benchmarks")
        if isinstance(again, RdmaPort):
            yield from _counted(on, again, grown, "later")
        elif isinstance(again, Interface):
            yield from _frames(on, again, grown)
        if lost := grown.counts.get("carrier_down_count"):
            yield on.failed(f"{port.name} lost its link {lost} times while benchmarks ran", CABLE)


def _link_later(on: On, port: _Port, again: _Port | None, link: str) -> Iterator[Finding]:
    """Judge a port that had a link before the benchmarks. `again`, `link`: the port and its link after them."""
    was_active, is_active = (getattr(look, "state", "active") == "active" for look in (port, again))
    if again is None or link == UNKNOWN:
        yield on.unknown(f"whether {port.name} still has a link {_AFTER} is not known")
    elif link != LINKED or (was_active and not is_active):
        yield on.failed(f"{port.name} had a link before the benchmarks, and none that works {_AFTER}", CABLE)
    elif (rate := _rate(port)) is not None and (now := _rate(again)) != rate:
        if now is None:
            yield on.unknown(f"the rate of {port.name} {_AFTER} was not read")
        elif now < rate:
            yield on.failed(f"{port.name} ran at {rate:g} Gb/s, and {_AFTER} at {now:g}", CABLE)


def _ports(nic: PhysicalFunction) -> tuple[_Port, ...]:
    return *nic.rdma, *nic.interfaces


def _rate(port: _Port) -> float | None:
    return port.rate_gbps if isinstance(port, RdmaPort) else port.speed_gbps
