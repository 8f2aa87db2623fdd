"""What tools show of ports: rates, states and counters, compared with what the ports could have and with each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from hosttune.bench.parse.answer import NotJudged
from hosttune.errors import BadInput
from hosttune.model.listing import some
from hosttune.model.measured import Figure, Measured, NicLink, Nics, Observations, Setup, Stated
from hosttune.model.text import count
from hosttune.predicting.formulas import pcie_gb_per_s
from hosttune.rules.causes.faultlines import NO_LID

_IBSTAT = (
    r"Port (\d{1,3}):\s+State: (\w+)\s+Physical state: (\w+)\s+Rate: (\d{1,4})\b[^:]{0,40}"
    r"(?:[^\n]{0,80}\n){0,8}?\s*Link layer: (\w+)"
)
_STATUS = (
    r"Infiniband device '([^'\n]{1,64})' port (\d{1,3}) status:\s+(?:[^\n]{0,100}\n){0,4}?\s+state:\s+\d: (\w{1,20})"
    r"\s+phys state:\s+\d: (\w{1,20})\s+rate:\s+(\d{1,4})[^\n]{0,40}\s+link_layer:\s+(\w{1,20})"
)
_DEVINFO = (  # ibv_devinfo, -v also
    r"port:\s+(\d{1,3})\s+state:\s+PORT_(\w{1,20}) \(\d\)(?:(?!\s+port:\s)[\s\S])*?\s+link_layer:\s+(\w{1,20})"
    r"(?:(?!\s+port:\s)[\s\S])*?"
    r"(?:active_width:\s+(\d{1,2})X[^\n]*\s+active_speed:\s+([\d.]{1,6}) Gbps|(?=\n\s+port:|\Z))"
)
_NETDEV = (  # ibdev2netdev, also in columns
    r"(?m)^[ \t]*([\w.-]{1,64})[ \t]{1,8}port[ \t]{1,8}(\d{1,3})[ \t]{1,8}==>[ \t]{1,8}(?!ib)\S{1,16}[ \t]{1,16}"
    r"\((\w{1,8})\)"
)
_RDMA_LINK = (  # iproute2
    r"(?m)^[ \t]*(?:\d+/\d+: |link )([\w.-]{1,64})/(\d{1,3}):? (?:[^\n]{0,160}? )?state (\w{1,20})"
    r" physical_state (\w{1,20})"
)
# Counters of `ethtool -S` (Linux Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst, and the
# common rtnl_link_stats64) → what they count, what to do, and the part of the packets from which that is a fault.
_COUNTERS = (
    (("SymbolErrorCounter", "PortRcvErrors", "LocalLinkIntegrityErrors"),
     "packets arrive damaged at a port of the fabric",
     "clear the counters (perfquery -R), run, and read them again: where they grow, clean, reseat or replace cable and"
     " module", 1e-6),
    (("PortXmitDiscards",), "a port of the fabric dropped packets that it could not send on",
     "the port behind it does not take them: look for a host that hangs, a link that went down, or congestion", 1e-3),
    (("rx_discards_phy", "rx_out_of_buffer", "rx_missed_errors", "rx_no_buffer_count", "rx_fifo_errors"),
     "packets were dropped because buffers were full",
     "see with ethtool -S whether it still grows; RoCE: PFC or ECN alike on NIC and switch; else larger rings"
     " (ethtool -G) and more queues", 1e-3),
    (("rx_crc_errors_phy", "rx_symbol_err_phy", "rx_crc_errors", "rx_frame_errors", "rx_in_range_len_errors_phy"),
     "packets arrive damaged", "see with ethtool -S whether it still grows; clean, reseat or replace cable and module",
     1e-6),
)  # fmt: skip


_COUNTED = "ethtool(8), -S; perfquery(8)"
_STALLS = 2  # intervals without a byte
_INTERVALS, _UNSTEADY = 5, 1.25  # of iperf3; greatest by least
_ONE_CPU = 9.0  # Gb/s: with offloads a stream has more, and 10 Gb/s of a wire are 9.4
_NEARBY = 2e-3  # seconds; a longer way is limited by windows


def counters(text: str) -> Measured:
    """Read ethtool -S and perfquery: counters that are a large part of the packets. Small ones may be from long ago."""
    form = r"(?m)^[ \t]*([A-Za-z]\w{1,60}):[. ]{1,60}(\d{1,20})[ \t]*$"
    rows = [(name, int(count)) for name, count in re.findall(form, text)]
    packets = max((count for name, count in rows if name in ("rx_packets_phy", "rx_packets", "PortRcvPkts")), default=0)
    stated = tuple(
        Stated(says=says, line=f"{name}: {count:,} of {packets:,} packets", remedy=remedy, source=_COUNTED)
        for names, says, remedy, part in _COUNTERS
        for count, name in [max(((count, name) for name, count in rows if name in names), default=(0, ""))]
        if packets and count > packets * part
    )
    return Measured(version=1, observations=Observations(stated=stated))


_STALLED = Stated(
    says="the connection is made and then carries nothing: packets of full size do not pass, or the way is cut",
    line="0.00 bits/sec in most intervals", source="RFC 2923, 2.1; esnet/iperf issue 955",
    remedy="one MTU on interfaces, bridges, VFs and switch ports of the whole way: ping -M do -s 8972 (for 9000) must"
    " pass; or the smaller MTU at both ends",
)  # fmt: skip


# Retries, and the window at the end of an interval.
_WINDOW, _UNITS = (
    r"(?:bits/sec[ \t]+(\d+)|TCP window size:)[ \t]+(\d{1,4}(?:\.\d{1,2})?) ([KM])Bytes?\b",
    {"K": 8 * 1024, "M": 8 << 20},
)
_HUNDRED = Stated(
    says="the rate is that of Fast Ethernet: a link on the way runs at 100 Mb/s",
    line="", remedy="ethtool at both ends and the switch ports between: Speed; reseat or exchange the cable (all four"
    " pairs), and leave autonegotiation on; a cloud or VPN can also limit the rate",
    source="IEEE 802.3, 100BASE-TX: 94.9 Mb/s of TCP, 95.7 of UDP with frames of 1500 bytes",
)  # fmt: skip
OF_IPERF2 = " of iperf 2"
_FAST_ETHERNET = (93.0, 96.5)  # Mb/s
_HELD = Stated(
    says="the window of TCP, not the wire, holds one stream on this long way",
    line="", remedy="larger windows at both ends (sysctl net.ipv4.tcp_rmem, tcp_wmem, net.core.rmem_max, wmem_max: at"
    " least rate × round trip), or several streams (iperf3 -P 8)",
    source="RFC 7323, 1.1: a window each round trip",
)  # fmt: skip


def iperf(text: str) -> Measured:
    """Read iperf3, iperf 2: what all streams received together. Raises BadInput."""
    rows = re.findall(
        r"(?m)^\[([ \dSUM]{2,4})\][ \t]+[\d.]{1,9}-[\d.]{1,9}[ \t]+sec[ \t]+\S+ \w+[ \t]+"
        r"(\d{1,6}(?:\.\d{1,3})?) ([GM])bits/sec",
        text,
    )
    every = re.findall(r"(?m)^\[[ \d]{2,4}\].* (\d\S*) ([GMK]?)bits/sec[ \t]+\d+[ \t]+\d", text)  # TCP's have a window
    if every.count(("0.00", "")) >= max(_STALLS, len(every) / 2):
        return Measured(version=1, observations=Observations(stated=(_STALLED,)))
    if re.search(r"Lost/Total Datagrams|, UDP port \d", text):
        raise NotJudged("iperf", "of UDP, which carries what -b asks for, less what is lost")
    if not rows:
        raise BadInput("no line of figures", where="iperf3", hint="save its whole output")
    streams = len({stream for stream, *_ in rows if "SUM" not in stream})
    *_, (_, rate, unit) = [row for row in rows if "SUM" in row[0]] or rows
    subject = count(streams, "stream")
    # Rate, retries and window of each interval after the first: unsteady without a loss, over a short way.
    row = (
        r"(?m)^\[[ \d]{2,4}\].* (\d{1,6}(?:\.\d{1,3})?) ([GM])bits/sec[ \t]+(\d+)[ \t]+(\d{1,6}(?:\.\d+)?) ([KM])Bytes"
    )
    sent = [
        (float(now) / (1 if part == "G" else 1e3), int(retries), float(window) * (1 if size == "K" else 1e3))
        for now, part, retries, window, size in re.findall(row, text)[1:]
    ]
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
    far, sizes = re.search(r"rtt min/avg/max/mdev = [\d.]{1,9}/([1-9][\d.]{1,9})/", text), re.findall(_WINDOW, text)
    each = float(far[1] if far else "inf") * (1e6 if unit == "G" else 1e3)
    most = max((float(size) * _UNITS[power] / each for _, size, power in sizes), default=0.0)
    if (
        streams == 1
        and most / _UNSTEADY < float(rate) < most * _UNSTEADY
        and not any(int(row[0] or 0) for row in sizes)
    ):
        stated = replace(_HELD, line=f"{rate} {unit}b/s; the largest window each round trip: {most:.3g} {unit}b/s")
    asked = re.search(r" -b ?9\d(?:\.\d)?[mM]\b", text)
    if unit == "M" and _FAST_ETHERNET[0] < float(rate) < _FAST_ETHERNET[1] and not asked:
        stated = replace(_HUNDRED, line=f"{rate} Mb/s")
    subject += OF_IPERF2 if re.search(r"Client connecting to|\bTCP port 5001\b", text) else ""
    figure = Figure(metric="tcp", subject=subject, value=float(rate), unit=f"{unit}b/s")
    return Measured(version=1, figures=(figure,), observations=Observations(stated=(stated,) if stated else ()))


class _PastedPort(NamedTuple):
    name: str
    kind: str  # those of one kind are each other's measure
    state: str  # ACTIVE, INIT …
    physical: str = ""
    rate: float | None = None  # Gb/s
    layer: str = ""
    adapter: str = ""  # what the ports of one card have alike


_UNSAID = "kind not said"
# Device ids (ibstat: CA type) of ConnectX-4 and later → the greatest rate of their models, Gb/s.
_GREATEST = {"MT4115": 100, "MT4119": 100, "MT4121": 100, "MT4123": 200, "MT4125": 200, "MT4129": 400, "MT4131": 800}
# What a text says that ports have, beside what they show (4X HDR); there are models of half the rate.
_NAMED, _ADAPTER = r"(?<!\dX )\b([EHNX]DR)\b", r"ConnectX-\d[^\n]{0,40}?(?<!X )\b[EHN]DR\b"
_RATES = {"EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}


def _ports(text: str) -> Iterator[_PastedPort]:
    for name, kind, rest in re.findall(r"CA '([^'\n]{1,64})'(?:\s+CA type: (\S{1,40}))?((?:(?!CA ')[\s\S])*)", text):
        for number, state, physical, rate, layer in re.findall(_IBSTAT, rest):
            yield _PastedPort(
                f"{name} port {number}", kind, state.upper(), physical, float(rate), layer, _card(name, rest)
            )
        if "Port " not in rest and (rate := re.search(r"Rate: (\d{1,4})\b", rest)):  # people leave lines out
            state, physical = (re.search(rf"{what}: (\w+)", rest) for what in ("State", "Physical state"))
            words = (state[1].upper() if state else "ACTIVE", physical[1] if physical else "")
            yield _PastedPort(name, kind or _UNSAID, *words, float(rate[1]))
    for name, number, state, physical, rate, layer in re.findall(_STATUS, text):
        yield _PastedPort(
            f"{name} port {number}", name.rstrip("0123456789"), state, physical, float(rate), layer, _card(name, "")
        )
    for name, rest in re.findall(r"hca_id:\s+(\S{1,64})((?:(?!hca_id:)[\s\S])*)", text):
        kind = re.search(r"vendor_part_id:\s+(\d{1,8})", rest)
        for number, state, layer, width, speed in re.findall(_DEVINFO, rest):
            speeds = float(width) * float(speed) if speed else None
            yield _PastedPort(
                f"{name} port {number}", kind[1] if kind else "", state, "", speeds, layer, _card(name, rest)
            )
    # Of InfiniBand ibdev2netdev tells only whether IPoIB is up.
    for name, number, state in re.findall(_NETDEV, text):
        yield _PastedPort(f"{name} port {number}", name.rstrip("0123456789"), "ACTIVE" if state == "Up" else state)
    for name, number, state, physical in re.findall(_RDMA_LINK, text):
        yield _PastedPort(f"{name} port {number}", name.rstrip("0123456789"), state, physical)


def _card(name: str, rest: str) -> str:
    """Return what says of which card a device is: the GUID of the card, or a name as rocep1s0f1 without its port."""
    guid = re.search(r"(?:System image GUID|sys_image_guid): {1,8}(?:0x)?([0-9a-f:]*[1-9a-f][0-9a-f:]*)", rest)
    return guid[1] if guid else name[:-2] if re.fullmatch(r"\w+s\d+f\d", name) else ""


_WAITING = Stated(
    says="a port waits for the subnet manager: it has a signal and is not active",
    line="",
    source="rdma-core, opensm(8)",
    remedy="run opensm on one host, or the switch's own; a virtual function also needs its GUID (ip link set PF vf N"
    " node_guid) and virt_enabled 2 in opensm.conf",
)  # fmt: skip


# Two ports of one adapter that a run uses together, and what the adapter's one slot carries.
RAILS = r"UCX_NET_DEVICES=\w{1,24}:\d,\w{1,24}:\d|UCX_MAX_(?:RMA|RNDV)_RAILS=[2-9]"
_TWO_PORTS = r"MCX(?:[45]\d6|[67]\d{4}6)A|(?i:\b(?:two|both|dual|2)[- ]ports?\b)"
_GENERATION = r"ConnectX-([56])|MCX([56])\d|\bMT(?:27[78]|289)\d\d\b"
_SLOT = r"(?i:PCIe?\b[^\n]{0,12}?Gen ?([345])(?:\.0)?[ ,]{0,2}x(\d\d?)\b)"
_GTS, _OF_PORT = {"3": 8.0, "4": 16.0, "5": 32.0}, {"5": 100.0, "6": 200.0}  # Gb/s of a generation's largest port
_LEAST, _MOST = 0.6, 1.02  # of the slot: less is another cause, and more is not one slot


def shared_slot(text: str) -> Iterator[Stated]:
    """Yield that two ports of one adapter reach what its one PCIe slot carries: lanes x speed against their sum."""
    rails, adapter = re.search(RAILS, text), re.search(_GENERATION, text)
    rates = [float(rate.replace(",", "")) / 1e3 for rate in re.findall(r"\b(\d[\d,]{2,9}\.\d\d)\b", text)]  # MB/s
    if not (rails and adapter and rates and "MB/s" in text and re.search(_TWO_PORTS, text)):
        return
    generation = adapter[1] or adapter[2] or "5"
    said = re.search(_SLOT, text)
    speed, lanes = (_GTS[said[1]], int(said[2])) if said else (_OF_PORT[generation] / 12.5, 16)
    slot, both = pcie_gb_per_s(speed, lanes), 2 * _OF_PORT[generation] / 8
    of_one = {int(device) // 2 for device in re.findall(r"mlx5_(\d{1,3}):", rails[0])}
    if slot and len(of_one) < 2 and slot < both and _LEAST * slot < max(rates) < _MOST * slot:
        yield Stated(
            says=f"two ports of one adapter share its PCIe slot, which carries {slot:.3g} GB/s, and they"
            f" {both:g}: the second one adds little",
            line=f"{rails[0]}: {max(rates):.3g} GB/s",
            remedy="take one port of each adapter (UCX_NET_DEVICES=mlx5_0:1,mlx5_2:1; UCX_MAX_RMA_RAILS=2 for get and"
            " put), each adapter in a slot of its own",
            source="PCI Express Base Specification: rate × lanes × encoding; openucx/ucx issue 9520",
        )


_MTUS = Stated(
    says="the ports of two hosts have different MTUs",
    line="",
    source="rdma-core, ibv_devinfo(1), active_mtu; NVIDIA/nccl issue 1524",
    remedy="RoCE: the same MTU for the interfaces of all hosts and the switch (9000 gives 4096); InfiniBand: the subnet"
    " manager's partitions.conf",
)


def rdma_ports(text: str) -> Measured:
    """Read ibstat, ibstatus, ibv_devinfo and rdma link: ports of one kind are each other's measure. Raises BadInput."""
    text = re.sub(r"(?m)^.{0,80}\bibstat (\w{1,24}) ?\|.*$", r"CA '\1'", text)  # of one device, by grep
    ports = list(dict.fromkeys(_ports(text)))
    if not ports:
        raise BadInput("no whole port in it", where="ibstat", hint="save its whole output")
    waiting = [port for port in ports if port.state.startswith("INIT") and port.layer != "Ethernet"]
    ports = [port for port in ports if port not in waiting]
    active = [port for port in ports if port.state == "ACTIVE"]
    used, cards = {port.kind for port in active}, {port.adapter for port in active} - {""}
    # The second port of a card is often left without a cable.
    ports = [port for port in ports if port.state == "ACTIVE" or port.adapter not in cards]
    ports = [port for port in ports if port.kind in used or not used]  # adapters of a kind without any link are spare
    named = max((_RATES[word] for word in re.findall(_NAMED, text)), default=0)
    of_adapter = re.search(_ADAPTER, text) is not None
    most: dict[str, float] = {}
    wanted: dict[str, float] = {}
    for port in active:
        able = named <= _GREATEST.get(port.kind, 0) or (port.layer == "InfiniBand" and of_adapter)
        wanted[port.name] = max(port.rate or 0, named if able else 0)
        most[port.kind] = max(wanted[port.name], most.get(port.kind, 0))
    slow = [(port.name, port.rate, most[port.kind]) for port in active if port.rate and port.rate < most[port.kind]]
    if len(slow) > 1 and {port.kind for port in active} == {_UNSAID}:
        slow = []  # hosts have NICs of a lower rate for other networks
    words = {port.name: f"{port.name} {port.physical}".removesuffix(" LinkUp").strip() for port in ports}
    down = [words[port.name] for port in ports if port not in active]
    # The second ports of cards are often left without a cable: a port that is down stands out only among active ones.
    count = len(ports) if not active or len(down) * 3 <= len(ports) else len(active)
    layers = {port.layer for port in ports}
    rates = {wanted[port.name] or None for port in active}
    link = NicLink(
        rate_gbps=slow[0][1] if slow else None,
        max_rate_gbps=slow[0][2] if slow else None,
        ports=count,
        ports_active=len(active),
    )
    places = [name for name, *_ in slow] + (down if count == len(ports) else [])
    stated: tuple[Stated, ...] = (replace(_WAITING, line=some([port.name for port in waiting], 4)),) if waiting else ()
    if not active and "Port number " not in text and (lost := re.search(NO_LID.pattern, text)):
        stated += (
            Stated(line=" ".join(lost[0].split()), says=NO_LID.says, remedy=NO_LID.remedy, source=NO_LID.source),
        )
    mtus = sorted(set(re.findall(r"hca_id:\s+(\S{1,64})(?:(?!hca_id:)[\s\S])*?active_mtu:\s+(\d{3,4})\b", text)))
    if len(mtus) > len(dict(mtus)):  # the same name twice: of two hosts
        stated += (replace(_MTUS, line=some([" ".join(row) for row in mtus], 4)),)
    return Measured(
        version=1,
        setup=Setup(
            nics=Nics(
                count=count or None,
                rate_gbps=rates.pop() if len(rates) == 1 else None,
                kind="infiniband" if layers == {"InfiniBand"} else "roce" if layers == {"Ethernet"} else None,
            )
        ),
        observations=Observations(nic_link=link, said={"nic_link": some(places, 4)} if places else {}, stated=stated),
    )


_VIRTUAL = r"(?:lo|docker|virbr|veth|br-|cni|flannel|cali|tap|vnet|tun|ovs|bond)"


def interfaces(text: str) -> Measured:
    """Read `ip link`, `ip addr`, ifconfig: of one interface alone whether it has a carrier; many have unused ones."""
    named = rf"(?m)^(?:\d{{1,4}}: )?(?!{_VIRTUAL})([\w.@-]{{1,32}}): (flags=\d{{1,6}})?"
    found = re.findall(rf"{named}<([A-Z0-9_,-]{{2,120}})> {{1,2}}mtu \d", text)
    name, by_number, flags = found[0] if len(found) == 1 else ("", "", "UP")
    up = re.search(r"\bUP\b", flags)
    lost = "NO-CARRIER" in flags or (by_number and up and "RUNNING" not in flags)
    words = "no carrier" if lost else "" if up else "ip link set … up"
    return _without_link(f"{name}: {words}") if words else Measured(version=1)


def _without_link(words: str) -> Measured:
    link = NicLink(ports=1, ports_active=0)
    return Measured(version=1, observations=Observations(nic_link=link, said={"nic_link": words}))


def ethtool(text: str) -> Measured:
    """Read ethtool: the interface whose rate is the smallest part of what it supports. Raises BadInput."""
    found, lost = [], []
    for name, rest in re.findall(r"Settings for ([\w.@-]{1,32}):((?:(?!Settings for )[\s\S])*)", text):
        modes = re.search(r"Supported link modes:((?:\s+\d{1,6}base\S{1,20})+)", rest)
        now = re.search(r"Speed: (\d{1,6})Mb/s", rest)
        if modes and now and int(now[1]):
            # 56 Gb/s of Ethernet is there between ports of one maker only.
            most = max(map(int, re.findall(r"\b(?!56000base)(\d{1,6})base", modes[1])), default=int(now[1]))
            found.append((int(now[1]) / most, name, int(now[1]) / 1e3, most / 1e3))
        elif "Link detected: no" in rest:
            lost.append(name)
    if len(lost) == 1 and not found:  # of several, ports without a cable are usual
        return _without_link(f"{lost[0]}: no link")
    if not found:
        raise BadInput("no speed with the modes that are supported", where="ethtool", hint="save its whole output")
    part, name, rate, top = min(found)
    link = NicLink(rate_gbps=rate, max_rate_gbps=top) if part < 1 else None
    return Measured(version=1, observations=Observations(nic_link=link, said={"nic_link": name} if link else {}))
