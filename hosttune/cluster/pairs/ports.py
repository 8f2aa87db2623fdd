"""What a host has for measurements with others: its ports, its tools, and who runs on it. Reads, writes nothing."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hosttune.bench.guard import why_not
from hosttune.discovery.portfiles import NET, RDMA, interface_gbps, link_layer, rdma_rate, state_word
from hosttune.errors import BadInput, CommandFailed, Unreadable
from hosttune.gpu import vendor_of
from hosttune.gpu.memory_tests import MemoryTest
from hosttune.gpu.vendor import Vendor
from hosttune.machine.reader import Reader
from hosttune.machine.system import System
from hosttune.model.host import Gpu, Host, Nic, Problem, RunningGuest
from hosttune.model.hostfields import OUTSIDE
from hosttune.model.jsontext import plain_json
from hosttune.model.pairs import GPU_RAIL, Ends, GpuMemory, Port, Tool
from hosttune.model.pcitree import shared_switch
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


# --- GPU memory ------------------------------------------------------------------------------------------------
# Which ports of a host are measured with the memory of a GPU too (GPUDirect RDMA), and why others are not. Reads
# only.
# The GPU of a port is the one below the same PCIe switch, nearest; several NICs and GPUs there belong together in the
# order of their addresses. A guest has such switches if its topology is mirrored.

_HELP = ("sh", "-c", "exec ib_write_bw --help 2>&1")  # its exit status is 1
_NOWHERE = "none of the GPUs is below a PCIe switch with a measured port (in a guest: is its topology mirrored?)"


def with_gpus(system: System, host: Host, ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the ports; behind each RDMA port whose GPU can be measured the same port with `gpu`.

    A port without a GPU says nothing of it, unless this is so of all ports though the host has GPUs.
    """
    rails = {port.rail: gpu for port in ports if (gpu := _gpu_of(host, port)) is not None}
    if not rails and _gpus(host):
        return tuple(replace(port, gpu_why=_NOWHERE if port.rdma and port.address else None) for port in ports)
    text = _help(system) if rails else None
    return tuple(one for port in ports for one in _beside(system, host, port, rails.get(port.rail), text))


def _beside(system: System, host: Host, port: Port, gpu: Gpu | None, text: str | None) -> Iterator[Port]:
    if gpu is None:
        yield port
        return
    memory = _usable(system, host, gpu, text)
    if isinstance(memory, GpuMemory):
        yield port
        yield replace(port, rail=f"{port.rail}{GPU_RAIL}", gpu=memory)
    else:
        yield replace(port, gpu_why=memory)


def _gpu_of(host: Host, port: Port) -> Gpu | None:
    """Return the GPU of a port's rail; None without one, or for a port that RDMA is not measured on."""
    nic = next((nic for nic in host.nics if port.rdma is not None and nic.rdma == port.rdma), None)
    if nic is None or port.address is None:
        return None
    gpus = _gpus(host)
    depths = {gpu.address: _common(host, nic, gpu) for gpu in gpus}
    most = max(depths.values(), default=0)
    near = [gpu for gpu in gpus if most and depths[gpu.address] == most]
    if not near:
        return None
    nics = [nic for nic in host.nics if nic.rdma and nic.physfn is None and _common(host, nic, near[0]) == most]
    return near[sorted({nic.address, *(nic.address for nic in nics)}).index(nic.address) % len(near)]


def _gpus(host: Host) -> list[Gpu]:
    """Return the GPUs by address, without those that carry the ports to other hosts themselves."""
    makers = {gpu.vendor: vendor_of(gpu.vendor) for gpu in host.index.accelerators}
    own = {name for name, vendor in makers.items() if vendor is not None and vendor.ports is not None}
    return sorted((gpu for gpu in host.index.accelerators if gpu.vendor not in own), key=lambda gpu: gpu.address)


def _common(host: Host, nic: Nic, gpu: Gpu) -> int:
    """Return how many bridges are above both, 0 unless the nearest of them is a switch."""
    if not shared_switch(host.index, gpu.address, nic.address):
        return 0
    return len(set(host.index.above(gpu.address)) & set(host.index.above(nic.address)))


def _help(system: System) -> str | None:
    def live() -> str:
        try:
            return system.run(_HELP, timeout=10.0)
        except CommandFailed as error:
            return error.output

    try:
        text = system.query("ib-write-bw-help", live)
    except Unreadable:
        return None
    return text if text and "--report_gbits" in text else None


def _usable(system: System, host: Host, gpu: Gpu, text: str | None) -> GpuMemory | str:
    """Return the GPU as an end uses it, or why its memory is not measured."""
    vendor = vendor_of(gpu.vendor)
    test = vendor.memory_test if vendor is not None else None
    if vendor is None or test is None:
        return f"no source says how ib_write_bw uses memory of GPUs of {gpu.vendor}"
    if text is None:
        return "whether ib_write_bw is built for its memory is unknown: ib_write_bw --help was not read"
    if test.option not in text:
        return f"ib_write_bw is built without {test.option} (packages of distributions are)"
    if test.chosen(gpu.address, gpu.uuid) is None:
        return "its UUID, by which it is chosen, is unknown"
    busy = why_not(system, host, gpu)
    if busy is not None:
        return busy
    dmabuf = _dmabuf(Reader(system), vendor, test, text)
    if isinstance(dmabuf, str):
        return dmabuf
    return GpuMemory(address=gpu.address, maker=gpu.vendor, uuid=gpu.uuid, dmabuf=dmabuf)


def _dmabuf(reader: Reader, vendor: Vendor, test: MemoryTest, text: str) -> bool | str:
    """Return whether its memory is reached by dma-buf, not by a peer memory module; or why by neither."""
    if any(reader.exists(f"/sys/module/{name}") for name in vendor.peer_memory):
        return False
    built, inside = test.dmabuf in text, vendor.inside
    if not vendor.peer_memory or inside.driver_text is None or inside.open_words is None:
        return built
    driver = reader.text(inside.driver_text)
    if built and driver and inside.open_words in driver:
        return True
    lacking = "its driver is not the open one, which dma-buf needs" if driver else f"{inside.driver_text} was not read"
    without = f"ib_write_bw is built without {test.dmabuf}"
    return f"{vendor.peer_memory[0]} is not loaded, and {lacking if built else without}"
