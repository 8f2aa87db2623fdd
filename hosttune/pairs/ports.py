"""What a host has for measurements with others: its ports, its tools, and who runs on it. Reads, writes nothing."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hosttune.discovery.portfiles import NET, RDMA, interface_gbps
from hosttune.errors import BadInput, CommandFailed, Unreadable
from hosttune.model.devices import Nic
from hosttune.model.host import Host
from hosttune.model.hostfields import Problem
from hosttune.model.pairs import Ends, Port, Tool
from hosttune.model.platform import RunningGuest
from hosttune.model.problems import OUTSIDE
from hosttune.reader import Reader
from hosttune.system import System

TOOLS: Mapping[Tool, str] = {"tcp": "iperf3", "rdma": "ib_write_bw"}
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_NO_RAIL = ("", "lo")


def survey(system: System, host: Host, named: Sequence[str] = (), *, version: str | None = None) -> Ends:
    """Return what this host is and has, without measuring. `named`: its ports by interface (or RDMA device), else all.

    All: every physical port that is an RDMA port, or a network interface that is up and has an address, but not one
    that the fabric of the GPUs uses. Raises BadInput for a name that the host does not have.
    """
    addresses = addresses_of(system)
    found = tuple(_named(system, host, name, addresses) for name in named) if named else _all(system, host, addresses)
    guests = running_guests(host.guests, host.problems)
    return Ends(
        host=host.hostname,
        version=version,
        machine=host.boot_id,
        guests=guests,
        tools=tuple(tool for tool, program in TOOLS.items() if _installed(system, program)),
        ports=found,
        notes=() if addresses is not None else ("addresses are unknown: `ip -j address show` gave no answer",),
    )


def present(system: System, *, version: str | None = None) -> Ends:
    """Return who answers and which guests run, read anew and no more than that: it is asked before each measurement."""
    from hosttune.discovery.guests import read_guests
    from hosttune.discovery.platform import read_identity

    reader = Reader(system)
    identity = read_identity(reader)
    guests, _ = read_guests(reader)
    running = running_guests(guests, reader.problems)
    return Ends(host=identity.hostname, version=version, machine=identity.boot_id, guests=running)


def running_guests(guests: Sequence[RunningGuest] | None, problems: Sequence[Problem]) -> tuple[str, ...] | None:
    """Return the guests that may be running, those outside libvirt too; None if that is unknown."""
    if guests is None:
        return None
    told = tuple(guest.name for guest in guests if guest.state != "shut off")
    return told + tuple(problem.what for problem in problems if problem.what.startswith(OUTSIDE))


def _installed(system: System, program: str) -> bool:
    return any(system.exists(f"{folder}/{program}") for folder in _FOLDERS)


def addresses_of(system: System) -> Mapping[str, str] | None:
    """Return the IP address of each interface that has one (IPv4 first, else a global IPv6); None if unknown."""
    try:
        text = system.query("ip-j-address", lambda: system.run(("ip", "-j", "address", "show")))
        rows = json.loads(text) if text else None
        return None if rows is None else {row["ifname"]: best for row in rows if (best := _best(row))}
    except (CommandFailed, Unreadable, ValueError, KeyError, TypeError, AttributeError):
        return None


def _best(row: Mapping[str, Any]) -> str | None:
    found = [one["local"] for one in row.get("addr_info") or () if one.get("scope") == "global" and one.get("local")]
    return min(found, key=lambda text: ipaddress.ip_address(text).version, default=None)


def _all(system: System, host: Host, addresses: Mapping[str, str] | None) -> tuple[Port, ...]:
    ports = []
    for nic in host.nics:
        if nic.physfn is not None or nic.fabric_bridge:
            continue
        names = nic.interfaces or (("",) if nic.rdma else ())
        for name in names:
            port = _port(system, nic, name, addresses)
            if port.rdma or (port.address and port.state in ("up", "active")):
                ports.append(port)
    return tuple(ports)


def _named(system: System, host: Host, name: str, addresses: Mapping[str, str] | None) -> Port:
    """Return a port that the operator named. Raises BadInput if there is none."""
    nic = next((nic for nic in host.nics if name in nic.interfaces or name == nic.rdma), None)
    if nic is not None:
        interface = name if name in nic.interfaces else next(iter(nic.interfaces), "")
        return _port(system, nic, interface, addresses)
    if "/" in name or name in (".", "..", *_NO_RAIL) or not system.exists(f"{NET}/{name}"):
        raise BadInput(f"no port {name[:40]!r} on this host", where="ports", hint="`ip link` lists the interfaces")
    return _port(system, None, name, addresses)  # a bond, a VLAN, a virtual interface


def _port(system: System, nic: Nic | None, interface: str, addresses: Mapping[str, str] | None) -> Port:
    alone = nic is not None and len(nic.interfaces) <= 1
    own = nic.rdma if nic is not None else None
    rdma = own or _rdma_over(system, interface)
    layer = nic.link_layer if nic is not None and own else "Ethernet" if rdma else None
    return Port(
        rail=interface or own or "",
        interface=interface or None,
        rdma=rdma,
        address=(addresses or {}).get(interface),
        rate_gbps=nic.rate_gbps if nic is not None and alone else interface_gbps(Reader(system), interface),
        link_layer=layer,
        state=nic.state if nic is not None and alone else _text(system, interface, "operstate"),
    )


def _rdma_over(system: System, interface: str) -> str | None:
    """Return the RDMA device whose first port uses an interface and is of no PCI function of its own: one over a bond,
    or the kernel's software one. None if there is none (Documentation/ABI/stable/sysfs-class-infiniband: gid_attrs)."""
    try:
        names = system.list(RDMA) if interface else ()
    except Unreadable:
        return None
    return next((name for name in names if _gid_interface(system, name) == interface), None)


def _gid_interface(system: System, rdma: str) -> str | None:
    try:
        return system.read(f"{RDMA}/{rdma}/ports/1/gid_attrs/ndevs/0")
    except Unreadable:
        return None


def _text(system: System, interface: str, name: str) -> str | None:
    try:
        return system.read(f"{NET}/{interface}/{name}") if interface else None
    except Unreadable:
        return None
