"""What ibstat and ethtool show of a host's ports: rates and states, compared with what the ports could have."""

from __future__ import annotations

import re

from hosttune.errors import BadInput
from hosttune.model.listing import some
from hosttune.model.measured import Figure, Measured, NicLink, Nics, Observations, Setup, Stated
from hosttune.model.text import count

_PORT = re.compile(
    r"Port (\d{1,3}):\s+State: (\w+)\s+Physical state: (\w+)\s+Rate: (\d{1,4})\b[^:]{0,40}"
    r"(?:[^\n]{0,80}\n){0,8}?\s+Link layer: (\w+)"
)

_STATUS = re.compile(
    r"Infiniband device '([^'\n]{1,64})' port (\d{1,3}) status:\s+(?:[^\n]{0,100}\n){0,4}?\s+state:\s+\d: (\w{1,20})"
    r"\s+phys state:\s+\d: (\w{1,20})\s+rate:\s+(\d{1,4})[^\n]{0,40}\s+link_layer:\s+(\w{1,20})"
)
# Counters of `ethtool -S` (Linux Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst, and the
# common rtnl_link_stats64) → what they count, what to do, and the part of the packets from which that is a fault.
_COUNTERS = (
    (("rx_discards_phy", "rx_out_of_buffer", "rx_missed_errors", "rx_no_buffer_count", "rx_fifo_errors"),
     "packets were dropped because buffers were full",
     "see with ethtool -S whether it still grows; RoCE: PFC or ECN alike on NIC and switch; else larger rings"
     " (ethtool -G) and more queues", 1e-3),
    (("rx_crc_errors_phy", "rx_symbol_err_phy", "rx_crc_errors", "rx_frame_errors", "rx_in_range_len_errors_phy"),
     "packets arrive damaged", "see with ethtool -S whether it still grows; clean, reseat or replace cable and module",
     1e-6),
)  # fmt: skip


_INTERVALS, _UNSTEADY = 5, 1.25  # of iperf3; greatest by least
_ONE_CPU = 9.0  # Gb/s: with offloads a stream has more, and 10 Gb/s of a wire are 9.4
_NEARBY = 2e-3  # seconds; a longer way is limited by windows


def counters(text: str) -> Measured:
    """Read ethtool -S: counters that are a large part of the packets. Small ones may be from long ago."""
    rows = [(name, int(count)) for name, count in re.findall(r"(?m)^[ \t]*([a-z]\w{1,60}): (\d{1,20})[ \t]*$", text)]
    packets = max((count for name, count in rows if name in ("rx_packets_phy", "rx_packets")), default=0)
    stated = tuple(
        Stated(says=says, line=f"{name}: {count:,} of {packets:,} packets", remedy=remedy, source="ethtool(8), -S")
        for names, says, remedy, part in _COUNTERS
        for count, name in [max(((count, name) for name, count in rows if name in names), default=(0, ""))]
        if packets and count > packets * part
    )
    return Measured(version=1, observations=Observations(stated=stated))


def iperf(text: str) -> Measured:
    """Read iperf3: what all streams received together. Raises BadInput."""
    rows = re.findall(
        r"(?m)^\[([ \dSUM]{2,4})\][ \t]+[\d.]{1,9}-[\d.]{1,9}[ \t]+sec[ \t]+\S+ \w+[ \t]+"
        r"(\d{1,6}(?:\.\d{1,3})?) ([GM])bits/sec",
        text,
    )
    if not rows:
        raise BadInput("no line of figures", where="iperf3", hint="save its whole output")
    streams = len({stream for stream, *_ in rows if "SUM" not in stream})
    *_, (_, rate, unit) = [row for row in rows if "SUM" in row[0]] or rows
    subject = count(streams, "stream")
    # Rate, retries and window of each interval after the first: unsteady without a loss, over a short way.
    row = r"(?m)^\[[ \d]{2,4}\].* (\d{1,6}(?:\.\d{1,3})?) Gbits/sec[ \t]+(\d+)[ \t]+(\d{1,6})(?:\.\d+)? KBytes"
    sent = [(float(now), int(retries), int(window)) for now, retries, window in re.findall(row, text)[1:]]
    steady = [now for now, *_ in sent]
    slow = (
        streams == 1
        and len(sent) >= _INTERVALS
        and not any(retries for _, retries, _ in sent)
        and max(steady) < _ONE_CPU
        and max(steady) > _UNSTEADY * min(steady)
        and all(window * 8e3 / (now * 1e9) < _NEARBY for now, _, window in sent if now)
    )
    stated = Stated(
        says="one stream without a loss is unsteady and slow: a CPU on its way, rather than the wire, limits it",
        line=f"{min(steady):g} to {max(steady):g} Gb/s, no retries",
        remedy="ethtool -k at both ends: tx-checksumming and tcp-segmentation-offload on, in a guest also on its tap"
        " (vnet_hdr, vhost) and with several queues; run several streams (iperf3 -P 8)",
        source="Linux Documentation/networking/segmentation-offloads.rst",
    ) if slow else None  # fmt: skip
    figure = Figure(metric="tcp", subject=subject, value=float(rate), unit=f"{unit}b/s")
    return Measured(version=1, figures=(figure,), observations=Observations(stated=(stated,) if stated else ()))


def ibstat(text: str) -> Measured:
    """Read ibstat (infiniband-diags): cards of one type are each other's measure. Raises BadInput."""
    text = _STATUS.sub(  # ibstatus
        lambda port: (
            f"CA '{port[1]}'\n CA type: {port[1].rstrip('0123456789')}\n Port {port[2]}:\n State: {port[3].title()}\n"
            f" Physical state: {port[4]}\n Rate: {port[5]}\n Link layer: {port[6]}\n"
        ),
        text,
    )
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
