"""Check of the errors of ports: counters since boot, what came while benchmarks ran, and links that were lost again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from hosttune.model.evidence import Evidence
from hosttune.model.ports import Interface, NicPorts, RdmaPort
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, skipped
from hosttune.rules.checks.data import table
from hosttune.rules.checks.facts import listed
from hosttune.rules.checks.nics import (
    CABLE,
    LINKED,
    NVSENTINEL,
    UNKNOWN,
    Found,
    Judged,
    each_nic,
    links,
    not_known,
    result_of_worst,
)

_ERRORS = "port-errors"
_WIRE = "clean or swap the cable or transceiver; perfquery -R, or reloading the driver, clears the counters"
_FEW = "no more errors than the sources of ports.toml allow, since boot and while benchmarks ran"


def port_errors(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the error counters of each function's ports, and links that were lost again and again."""
    return each_nic(evidence, _ERRORS, _FEW, lambda judged: _errors(evidence, judged))


def _errors(evidence: Evidence, judged: Judged) -> CheckResult:
    later = (evidence.ports_later or {}).get(judged.address) if evidence.ports_later is not None else None
    found = [*not_known(judged)]
    for port in judged.rdma:
        found += _counted(evidence, port.name, port.counters, port.counters)
    for one in judged.interfaces:
        found += _frames(one, one.counters, one.counters.get("rx_bytes"), "since boot")
        found += _lost_links(evidence, judged, one)
    if evidence.ports_later is not None:
        found += _between(evidence, judged, later)
    if not found and not any(one.counters for one in judged.interfaces) and len(_bare(judged)) == len(judged.rdma):
        told = f": {_shown(judged)}" if any(port.counters for port in judged.rdma) else ""
        return skipped(_ERRORS, judged.address, f"its driver keeps no counters of its ports that have a limit{told}")
    return result_of_worst(_ERRORS, judged, _FEW, found, _shown(judged))


def _all(ports: NicPorts | None) -> list[RdmaPort | Interface]:
    return [] if ports is None else [*(ports.rdma or ()), *(ports.interfaces or ())]


def _own(judged: Judged) -> list[RdmaPort | Interface]:
    return _all(NicPorts(rdma=judged.rdma, interfaces=judged.interfaces))


def _bare(judged: Judged) -> list[str]:
    """Return the RDMA ports whose driver keeps none of the counters that are judged."""
    limited = {row["name"] for row in table("ports")["rdma"]}
    return [port.name for port in judged.rdma if limited.isdisjoint(port.counters)]


def _shown(judged: Judged) -> str:
    """Return the counters above 0 in words, those that are not judged too."""
    parts = [
        f"{one.name}: {name} {count}"
        for one in _own(judged)
        for name, count in one.counters.items()
        if count and name not in ("rx_bytes", "carrier_down_count")
    ]
    bare = _bare(judged)
    said = f"; the driver of {listed(bare, 3)} keeps none of the RDMA counters that have a limit" if bare else ""
    return f"{listed(parts, 8) or 'none'}{said}"


def _counted(
    evidence: Evidence, name: str, counts: Mapping[str, int | None], whole: Mapping[str, int | None], *,
    seconds: float | None = None,
) -> Iterator[Found]:  # fmt: skip
    """Judge the counters of an RDMA port: since boot, or with `seconds` those that came in that time.

    `whole`: the counters themselves, which cannot count on at their largest number.
    """
    up = evidence.health.uptime_seconds if evidence.health else None
    time = up if seconds is None else seconds
    said = "since boot" if seconds is None else f"in {seconds:.0f} s of benchmarks"
    lacking = [counter for counter, count in counts.items() if count is None]
    if lacking:
        yield Found("unknown", f"{listed(lacking, 3)} of {name} could not be read")
    for row in table("ports")["rdma"]:
        count = counts.get(row["name"])
        if not count:
            continue
        least = " or more" if (whole.get(row["name"]) or 0) >= row.get("full", math.inf) else ""
        text = f"{name}: {row['name']} {count}{least} {said}"
        if not row["seconds"]:
            yield Found(row["before" if seconds is None else "later"], text, _WIRE)
        elif not time:
            yield Found("unknown", f"{text}; how long the host is up is not known")
        elif count * row["seconds"] > row["most"] * max(time, 60.0):
            limit = f"{row['most']} in {row['seconds']} s"
            yield Found(row["before" if seconds is None else "later"], f"{text}: more than {limit}", _WIRE)
        elif whole.get(row["name"]) == row.get("full"):
            yield Found("unknown", f"{text}: the counter is full, and how many there were since is not known", _WIRE)


def _frames(one: Interface, counts: Mapping[str, int | None], received: int | None, said: str) -> Iterator[Found]:
    """Judge frames with a wrong check sum against the bit error rate that the standard allows."""
    lacking = [name for name, count in counts.items() if count is None and name != "carrier_down_count"]
    if lacking:
        yield Found("unknown", f"{listed(lacking, 3)} of {one.name} could not be read")
    limits, wrong = table("ports")["ethernet"], counts.get("rx_crc_errors")
    if not wrong or received is None:
        return
    fast, slow = (math.ceil(received * 8 * limits[rate]) for rate in ("bit_error_rate", "slow_bit_error_rate"))
    allowed = fast if one.speed_gbps is not None and one.speed_gbps >= limits["fast_gbps"] else slow
    text = f"{one.name}: rx_crc_errors {wrong} {said}, with {received} bytes received"
    if wrong > allowed:
        yield Found("warn", f"{text}: more than {allowed}", _WIRE)
    elif one.speed_gbps is None and wrong > fast:
        yield Found("unknown", f"{text}; its speed, which decides how many are allowed, is not known")


def _lost_links(evidence: Evidence, judged: Judged, one: Interface) -> Iterator[Found]:
    """Judge how often an interface lost its link since boot: the kernel log has the times, a counter the number."""
    limits, health = table("ports")["flapping"], evidence.health
    times, seconds = limits["times"], limits["seconds"]
    down = one.counters.get("carrier_down_count")
    events = [e for e in (health.events or () if health else ()) if e.kind == "link-down"]
    mine = [event for event in events if event.address == judged.address]
    count = sum(event.count for event in mine)
    span = max((e.last_seconds or 0 for e in mine), default=0) - min((e.seconds or 0 for e in mine), default=0)
    # Among n events in a span there are two within 6 hours of each other if the n - 1 gaps cannot all be longer.
    near = min((e.least_seconds_apart for e in mine if e.least_seconds_apart is not None), default=math.inf)
    if count >= times and (span <= (count - 1) * seconds or near <= seconds):
        text = f"{one.name} lost its link {count} times since boot, twice within {seconds // 3600} h"
        yield Found("warn", text, CABLE)
        return
    if down is not None and down < times:
        return
    up = health.uptime_seconds if health else None
    since = None if health is None or not health.events_links or health.events_unread else health.events_since
    if since is None or up is None or (since > table("limits")["xids"]["whole_log_seconds"] and since > up - seconds):
        told = f"lost its link {down} times since boot" if down is not None else "how often it lost its link"
        text = f"{one.name}: {told}; when is not known: the kernel log of the last {seconds // 3600} h was not read"
        yield Found("unknown", text, "journalctl -k | grep -i 'link.*down'")
    elif down is not None and seconds < up <= (down - 1) * seconds:
        # Not every driver writes these lines. Soon after a boot the counter has what the set-up did to the interface.
        text = f"{one.name} lost its link {down} times in {up / 3600:.0f} h, twice within {seconds // 3600} h"
        yield Found("warn", f"{text}; the kernel log shows {count} of them", CABLE)


def _between(evidence: Evidence, judged: Judged, later: NicPorts | None) -> Iterator[Found]:
    """Judge what was counted between the two looks."""
    seconds = evidence.seconds_later or 0.0
    again = {one.name: one.counters for one in _all(later)}
    yield from _links_later(judged, judged._replace(ports=later or NicPorts()))
    for one in _own(judged):
        counts = again.get(one.name, {})
        missing = [name for name, count in one.counters.items() if count is not None and counts.get(name) is None]
        if missing:
            yield Found("unknown", f"{one.name}: {listed(missing, 3)} could not be read again after the benchmarks")
        grown = {name: _growth(one.counters.get(name), count) for name, count in counts.items()}
        if isinstance(one, RdmaPort):
            yield from _counted(evidence, one.name, grown, counts, seconds=seconds)
            continue
        yield from _frames(one, grown, grown.get("rx_bytes"), f"in {seconds:.0f} s of benchmarks")
        if grown.get("carrier_down_count"):
            text = f"{one.name} lost its link {grown['carrier_down_count']} times while benchmarks ran"
            yield Found("fail", text, CABLE)


def _links_later(judged: Judged, later: Judged) -> Iterator[Found]:
    """Yield the ports that had a link before the benchmarks and have none, or a slower one, after them."""
    known, said = links(later), "after the benchmarks"
    after = {one.name: one for one in _own(later)}
    before = links(judged)
    for one in _own(judged):
        if before[one.name] != LINKED:
            continue
        again = after.get(one.name)
        if again is None or known[one.name] == UNKNOWN:
            yield Found("unknown", f"whether {one.name} still has a link {said} is not known")
        elif known[one.name] != LINKED or (_active(one) and not _active(again)):
            yield Found("fail", f"{one.name} had a link before the benchmarks, and none that works {said}", CABLE)
        elif (rate := _rate(one)) is not None and (now := _rate(again)) != rate:
            if now is None:
                yield Found("unknown", f"the rate of {one.name} {said} was not read")
            elif now < rate:
                yield Found("fail", f"{one.name} ran at {rate:g} Gb/s, and {said} at {now:g}", CABLE)


def _active(one: RdmaPort | Interface) -> bool:
    return isinstance(one, Interface) or one.state == "active"


def _rate(one: RdmaPort | Interface) -> float | None:
    return one.rate_gbps if isinstance(one, RdmaPort) else one.speed_gbps


def _growth(before: int | None, after: int | None) -> int | None:
    """Return how much a counter grew; one that is smaller than before was reset, and began at 0 again."""
    if before is None or after is None:
        return None
    return after - before if after >= before else after


CHECKS: tuple[Check, ...] = (
    Check(
        _ERRORS,
        "Few errors on ports, and no flapping link",
        "each NIC, with the counters of all its ports",
        "A bad cable shows itself in error counters long before it breaks; each retransmission stalls a whole job",
        f"{NVSENTINEL}, link counter detection 4.5; Azure/azurehpc-health-checks azure_ib_link_flapping.nhc;"
        " IEEE 802.3 (bit error rate)",
        port_errors,
        inside=True,
        none="NIC",
    ),
)
