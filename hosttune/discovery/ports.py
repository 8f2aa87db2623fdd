"""System → the ports of network functions: RDMA ports and network interfaces, with their error counters. Read only.

A capture must hold, as far as the host has them: of each RDMA port `link_layer`, `state`, `phys_state`, `rate`, `lid`,
`sm_lid` and the counters named here; `fw_ver` of its device; of each network interface `flags`, `carrier`,
`type`, `speed`, `duplex`, `mtu`, `phys_port_name`, `carrier_down_count` and the statistics named here. Sources:
Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/testing/sysfs-class-net and
sysfs-class-net-statistics; drivers/infiniband/core/sysfs.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from hosttune.discovery.devices import by_address
from hosttune.discovery.portfiles import NET, RDMA, interface_gbps, link_layer, rdma_rate, state_word
from hosttune.machine.reader import Reader
from hosttune.model import sysfs
from hosttune.model.host import Host, Nic
from hosttune.model.ports import Interface, NicPorts, RdmaPort

PORT_COUNTERS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_rcv_remote_physical_errors"),
)
HARDWARE_COUNTERS = ("rnr_nak_retry_err", "local_ack_timeout_err", "roce_slow_restart")
# Told where a driver keeps them, and not judged: no source has a bound. drivers/infiniband/hw/bnxt_re/hw_counters.c;
# drivers/infiniband/hw/mlx5/counters.c.
TOLD_COUNTERS = (
    *("max_retry_exceeded", "oos_drop_count", "recoverable_errors", "rnr_naks_rcvd", "rx_roce_discards"),
    *("rx_roce_errors", "seq_err_naks_rcvd", "to_retransmits", "unrecoverable_err"),
    *("out_of_sequence", "packet_seq_err", "req_transport_retries_exceeded"),
)
STATISTICS = ("rx_errors", "rx_crc_errors", "rx_missed_errors", "rx_dropped", "tx_errors", "rx_bytes")
_MOST_PORTS = 256  # of one RDMA device: its port number has 8 bits
_UP = 0x1  # IFF_UP, linux/if.h
_FLAGS = re.compile(r"0x[0-9a-f]{1,8}")
_REPRESENTS = re.compile(r"(?:c[0-9]{1,3})?pf[0-9]{1,3}(?:vf|sf)[0-9]{1,5}")  # netdev representors, drivers/net


def read_ports(reader: Reader, host: Host) -> Mapping[str, NicPorts]:
    """Return the ports of each physical network function, by its PCI address. A virtual function has those of its own
    device, which the physical one reports."""
    devices = by_address(reader, RDMA)
    return {
        nic.address: NicPorts(
            rdma=_rdma(reader, nic, devices.get(nic.address, ())), interfaces=_interfaces(reader, nic)
        )
        for nic in host.nics
        if nic.physfn is None
    }


# --- RDMA --------------------------------------------------------------------------------------------------------


def _rdma(reader: Reader, nic: Nic, listed: Iterable[str]) -> tuple[RdmaPort, ...] | None:
    """Return the ports of all RDMA devices of a function; None if one may be missing."""
    inside = sysfs.function(nic.address, "infiniband")
    devices = list(dict.fromkeys((*listed, *reader.names(inside))))
    if not devices:
        return () if reader.lacks(inside) or _others_have(reader, nic) else None
    ports: list[RdmaPort] = []
    for device in devices:
        folder = f"{RDMA}/{device}/ports"
        numbers = [name for name in reader.names(folder) if re.fullmatch(r"[1-9][0-9]{0,2}", name)]
        # Ports are numbered from 1 on: a number that is missing was lost.
        if not numbers or len(numbers) > _MOST_PORTS or sorted(map(int, numbers)) != list(range(1, len(numbers) + 1)):
            return None
        ports += [_port(reader, device, number) for number in numbers]
    return tuple(sorted(ports, key=lambda port: (port.device, port.number)))


def _others_have(reader: Reader, nic: Nic) -> bool:
    """Return whether, in a capture that lists nothing as absent, both places of RDMA devices show none of it.

    These are its own folder, which has a driver's other entries, and the class folder, which has other devices.
    """
    if reader.system.complete:
        return False
    names = reader.names_of_open_folder(sysfs.function(nic.address))
    return nic.kind == "ethernet" and "net" in names and "infiniband" not in names and bool(reader.names(RDMA))


def _port(reader: Reader, device: str, number: str) -> RdmaPort:
    at = f"{RDMA}/{device}/ports/{number}"
    layer = link_layer(reader, at)
    rate, width, speed = rdma_rate(reader, f"{at}/rate")
    counters = _counters(reader, f"{at}/counters", PORT_COUNTERS)
    hardware = f"{at}/hw_counters"
    counters |= _counters(reader, hardware, HARDWARE_COUNTERS)
    kept = set(reader.names(hardware))
    told = {name: reader.count(f"{hardware}/{name}") for name in TOLD_COUNTERS if name in kept}
    counters |= {name: value for name, value in told.items() if value is not None}
    return RdmaPort(
        device=device,
        number=int(number),
        layer=layer.lower() if layer else None,
        state=state_word(reader, f"{at}/state"),
        phys_state=state_word(reader, f"{at}/phys_state"),
        rate_gbps=rate,
        width=width,
        speed=speed,
        lid=reader.integer(f"{at}/lid", 16),
        sm_lid=reader.integer(f"{at}/sm_lid", 16),
        firmware=reader.text(f"{RDMA}/{device}/fw_ver") or None,
        counters=counters,
    )


def _counters(reader: Reader, folder: str, names: Iterable[str]) -> dict[str, int | None]:
    """Return counters by name: None for one that could not be read; one that is proven to be absent is left out."""
    if reader.lacks(folder):
        return {}
    paths = {name: f"{folder}/{name}" for name in names}
    values = {name: reader.count(path) for name, path in paths.items()}
    return {name: value for name, value in values.items() if value is not None or not reader.lacks(paths[name])}


# --- interfaces --------------------------------------------------------------------------------------------------


def _interfaces(reader: Reader, nic: Nic) -> tuple[Interface, ...] | None:
    if not nic.interfaces:
        path = sysfs.function(nic.address)
        folders = [f"{path}/net", *(f"{path}/{name}/net" for name in reader.names(path) if name.startswith("virtio"))]
        return () if all(reader.lacks(folder) for folder in folders) else None
    return tuple(_interface(reader, name) for name in nic.interfaces)


def represents(reader: Reader, name: str) -> bool:
    """Return whether a network interface stands for a virtual function, not for a port."""
    return _REPRESENTS.fullmatch(reader.text(f"{NET}/{name}/phys_port_name") or "") is not None


def _interface(reader: Reader, name: str) -> Interface:
    at = f"{NET}/{name}"
    flags = reader.text(f"{at}/flags")
    carrier = reader.text(f"{at}/carrier")
    counters = _counters(reader, f"{at}/statistics", STATISTICS)
    counters |= _counters(reader, at, ("carrier_down_count",))
    return Interface(
        name=name,
        is_up=bool(int(flags, 16) & _UP) if flags and _FLAGS.fullmatch(flags) else None,
        carrier={"0": False, "1": True}.get(carrier or ""),
        arp_type=reader.identifier(f"{at}/type"),
        speed_gbps=interface_gbps(reader, name),
        duplex=reader.text(f"{at}/duplex") or None,
        mtu=reader.identifier(f"{at}/mtu"),
        represents=represents(reader, name),
        counters=counters,
    )
