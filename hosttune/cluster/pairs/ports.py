"""What a host has for measurements with others: its ports, its tools, and who runs on it. Reads, writes nothing."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hosttune.cluster.pairs.gpumemory import with_gpus
from hosttune.discovery.portfiles import NET, RDMA, interface_gbps, link_layer, rdma_rate, state_word
from hosttune.errors import BadInput, CommandFailed, Unreadable
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model.host import Host, Nic, Problem, RunningGuest
from hosttune.model.hostfields import OUTSIDE
from hosttune.model.jsontext import plain_json
from hosttune.model.pairs import Ends, Port, Tool
from hosttune.model.ports import believed_gbps
from hosttune.model.values import grouped

TOOLS: Mapping[Tool, str] = {"tcp": "iperf3", "rdma": "ib_write_bw"}
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_NO_RAIL = ("", "lo")
_IPOIB = "32"  # ARPHRD_INFINIBAND


def survey(system: System, host: Host, named: Sequence[str] = (), *, version: str | None = None) -> Ends:
    """Return what this host is and has, without measuring. `named`: its ports by interface, RDMA device (mlx5_0) or
    port of one (mlx5_0/2), else all.

    All: every physical port that is an RDMA port, or a network interface that has an address, but not one that the
    fabric of the GPUs uses. Raises BadInput for a name that the host does not have.
    """
    addresses = addresses_of(system)
    chosen = [port for name in named for port in _named_ports(system, host, name, addresses)]
    ports = tuple(dict.fromkeys(chosen)) if named else _all(system, host, addresses)
    guests = running_guests(host.guests, host.problems)
    tools = tuple(
        tool for tool, program in TOOLS.items() if any(system.exists(f"{folder}/{program}") for folder in _FOLDERS)
    )
    return Ends(
        host=host.hostname,
        version=version,
        machine=host.boot_id,
        guests=guests,
        tools=tools,
        ports=with_gpus(system, host, ports) if "rdma" in tools else ports,
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


def addresses_of(system: System) -> Mapping[str, str] | None:
    """Return the IP address of each interface that has one (IPv4 first, else a global IPv6); None if unknown."""
    try:
        text = system.query("ip-j-address", lambda: system.run(("ip", "-j", "address", "show")))
        rows = plain_json(text, where="ip") if text else None
        return None if rows is None else {row["ifname"]: best for row in rows if (best := _best(row))}
    except (CommandFailed, Unreadable, BadInput, ValueError, KeyError, TypeError, AttributeError):
        return None


def _best(row: Mapping[str, Any]) -> str | None:
    global_addresses = [
        info["local"] for info in row.get("addr_info") or () if info.get("scope") == "global" and info.get("local")
    ]
    return min(global_addresses, key=lambda text: ipaddress.ip_address(text).version, default=None)


def _all(system: System, host: Host, addresses: Mapping[str, str] | None) -> tuple[Port, ...]:
    nics = (nic for nic in host.nics if nic.physfn is None and not nic.fabric_bridge)
    ports = (port for nic in nics for port in _of_nic(system, nic, addresses))
    return tuple(port for port in ports if port.rdma or port.address)


def _named_ports(system: System, host: Host, name: str, addresses: Mapping[str, str] | None) -> tuple[Port, ...]:
    """Return the ports that the operator named. Raises BadInput if there are none."""
    nic = next((nic for nic in host.nics if name in nic.interfaces or name.partition("/")[0] == nic.rdma), None)
    ports = _of_nic(system, nic, addresses) if nic is not None else []
    own = tuple(port for port in ports if name in (port.interface, f"{port.rdma}/{port.rdma_port}"))
    if own or (nic is not None and name == nic.rdma):
        numbered = grouped((port.rdma_port, port) for port in ports if port.rdma is not None)
        return own or tuple(same[0] for same in numbered.values())
    if "/" in name or name in (".", "..", *_NO_RAIL) or not system.exists(f"{NET}/{name}"):
        raise BadInput(f"no port {name[:40]!r} on this host", where="ports", hint="`ip link` lists the interfaces")
    return (_port(system, None, name, _rdma_over(system, name), addresses),)  # a bond, a VLAN, a virtual interface


def _of_nic(system: System, nic: Nic, addresses: Mapping[str, str] | None) -> list[Port]:
    """Return the ports of a network function. If its RDMA device has one port, all interfaces are of this one.

    If it has several, each is a port of its own: that of an interface as far as the kernel says of which, and else
    without an interface.
    """
    numbers = _numbers(system, nic.rdma)
    if nic.rdma is None or len(numbers) < 2:
        own = None if nic.rdma is None else (nic.rdma, next(iter(numbers), None))
        names = nic.interfaces or (("",) if nic.rdma else ())
        return [_port(system, nic, name, own or _rdma_over(system, name), addresses) for name in names]
    owners = {number: _interface_of(system, nic, number) for number in numbers}
    places = {name: (nic.rdma, number) for number, name in owners.items()}
    ports = [_port(system, nic, name, places.get(name), addresses, several=True) for name in nic.interfaces]
    alone = [number for number, name in owners.items() if name is None or places[name] != (nic.rdma, number)]
    return ports + [_port(system, nic, "", (nic.rdma, number), addresses, several=True) for number in alone]


_Place = tuple[str, int | None]  # an RDMA device, and the number of its port


def _port(
    system: System, nic: Nic | None, interface: str, place: _Place | None, addresses: Mapping[str, str] | None, *,
    several: bool = False,
) -> Port:  # fmt: skip
    """Return a port. `several`: its RDMA device has other ports too, so that what is known of the function is of them
    all."""
    reader = Reader(system)
    alone = nic is not None and len(nic.interfaces) <= 1 and not several
    rdma, number = place or (None, None)
    layer = nic.link_layer if nic is not None and rdma == nic.rdma else "Ethernet"
    rate = nic.rate_gbps if nic is not None and alone else interface_gbps(reader, interface) if interface else None
    state = nic.state if nic is not None and alone else _text(system, interface, "operstate")
    if several and rdma is not None:
        at = f"{RDMA}/{rdma}/ports/{number}"
        layer, state = link_layer(reader, at), state_word(reader, f"{at}/state")
        if state != "active":  # one that is down shows the lowest
            rate = None
        elif layer != "Ethernet" or not interface:  # RoCE: that of its interface (discovery/devices)
            shown, _, speed = rdma_rate(reader, f"{at}/rate")
            rate = believed_gbps(layer, shown, speed)
    return Port(
        rail=interface or (f"{rdma}/{number}" if several else rdma) or "",
        interface=interface or None,
        rdma=rdma,
        rdma_port=number,
        address=(addresses or {}).get(interface),
        rate_gbps=rate,
        link_layer=layer if rdma else None,
        state=state,
    )


def _numbers(system: System, rdma: str | None) -> tuple[int, ...]:
    """Return the numbers of the ports of an RDMA device, from 1 on; () if they are not known."""
    try:
        names = system.list(f"{RDMA}/{rdma}/ports") if rdma else ()
    except Unreadable:
        return ()
    return tuple(sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]{0,2}", name)))


def _interface_of(system: System, nic: Nic, number: int) -> str | None:
    """Return the interface of one of several ports of an RDMA device; None if it is not known.

    RoCE: that of its first GID (Documentation/ABI/stable/sysfs-class-infiniband: gid_attrs). InfiniBand: the one whose
    dev_port, counted from 0, is this port (Documentation/ABI/testing/sysfs-class-net; drivers/infiniband/ulp/ipoib).
    """
    at = f"{RDMA}/{nic.rdma}/ports/{number}"
    if link_layer(Reader(system), at) != "InfiniBand":
        name = _gid_interface(system, nic.rdma or "", number)
        return name if name in nic.interfaces else None
    own = [name for name in nic.interfaces if _read(system, f"{NET}/{name}/dev_port") == str(number - 1)]
    ib = [name for name in own if _read(system, f"{NET}/{name}/type") == _IPOIB]
    return ib[0] if len(ib) == 1 else None


def _rdma_over(system: System, interface: str) -> _Place | None:
    """Return the RDMA port of an interface that is of no PCI function of its own: one over a bond, or the kernel's
    software one. None if there is none (Documentation/ABI/stable/sysfs-class-infiniband: gid_attrs)."""
    try:
        names = system.list(RDMA) if interface else ()
    except Unreadable:
        return None
    places = ((name, number) for name in names for number in _numbers(system, name))
    return next((place for place in places if _gid_interface(system, *place) == interface), None)


def _gid_interface(system: System, rdma: str, number: int) -> str | None:
    return _read(system, f"{RDMA}/{rdma}/ports/{number}/gid_attrs/ndevs/0")


def _read(system: System, path: str) -> str | None:
    try:
        return system.read(path)
    except Unreadable:
        return None


def _text(system: System, interface: str, name: str) -> str | None:
    return _read(system, f"{NET}/{interface}/{name}") if interface else None
