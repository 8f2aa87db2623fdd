"""What ibstat and ethtool show of a host's ports: rates and states, compared with what the ports could have."""

from __future__ import annotations

import re

from hosttune.errors import BadInput
from hosttune.model.listing import some
from hosttune.model.measured import Measured, NicLink, Nics, Observations, Setup

_PORT = re.compile(
    r"Port (\d{1,3}):\s+State: (\w+)\s+Physical state: (\w+)\s+Rate: (\d{1,4})\b[^:]{0,40}"
    r"(?:[^\n]{0,80}\n){0,8}?\s+Link layer: (\w+)"
)


def ibstat(text: str) -> Measured:
    """Read ibstat (infiniband-diags): cards of one type are each other's measure. Raises BadInput."""
    ports = [
        (f"{name} port {number}", kind, state == "Active", float(rate), layer)
        for name, kind, rest in re.findall(r"CA '([^'\n]{1,64})'\s+CA type: (\S{1,40})((?:(?!CA ')[\s\S])*)", text)
        for number, state, _, rate, layer in _PORT.findall(rest)
    ]
    if not ports:
        raise BadInput("no whole port in it", where="ibstat", hint="save its whole output")
    active = [port for port in ports if port[2]]
    most: dict[str, float] = {}
    for _, kind, _, rate, _ in active:
        most[kind] = max(rate, most.get(kind, 0))
    slow = [(name, rate, most[kind]) for name, kind, _, rate, _ in active if rate < most[kind]]
    down = [name for name, _, up, *_ in ports if not up]
    # The second ports of cards are often left without a cable: a port that is down stands out only among active ones.
    count = len(ports) if not active or len(down) * 3 <= len(ports) else len(active)
    layers = {layer for *_, layer in ports}
    rates = {rate for _, _, _, rate, _ in active}
    link = NicLink(
        rate_gbps=slow[0][1] if slow else None,
        max_rate_gbps=slow[0][2] if slow else None,
        ports=count,
        ports_active=len(active),
    )
    places = [name for name, *_ in slow] + (down if count == len(ports) else [])
    return Measured(
        version=1,
        setup=Setup(
            nics=Nics(
                count=count,
                rate_gbps=rates.pop() if len(rates) == 1 else None,
                kind="infiniband" if layers == {"InfiniBand"} else "roce" if layers == {"Ethernet"} else None,
            )
        ),
        observations=Observations(nic_link=link, said={"nic_link": some(places, 4)} if places else {}),
    )


def ethtool(text: str) -> Measured:
    """Read ethtool: the interface whose rate is the smallest part of what it supports. Raises BadInput."""
    found = []
    for name, rest in re.findall(r"Settings for ([\w.@-]{1,32}):((?:(?!Settings for )[\s\S])*)", text):
        modes = re.search(r"Supported link modes:((?:\s+\d{1,6}base\S{1,20})+)", rest)
        now = re.search(r"Speed: (\d{1,6})Mb/s", rest)
        if modes and now and int(now[1]):
            most = max(map(int, re.findall(r"(\d{1,6})base", modes[1])))
            found.append((int(now[1]) / most, name, int(now[1]) / 1e3, most / 1e3))
    if not found:
        raise BadInput("no speed with the modes that are supported", where="ethtool", hint="save its whole output")
    part, name, rate, top = min(found)
    link = NicLink(rate_gbps=rate, max_rate_gbps=top) if part < 1 else None
    return Measured(version=1, observations=Observations(nic_link=link, said={"nic_link": name} if link else {}))
