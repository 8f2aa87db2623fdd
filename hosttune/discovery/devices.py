"""Network functions, NVMe controllers and NVSwitches among the PCI functions: what they are, how the host uses them.

Runs after `pci`. PCI class and id decide which of them exist, so a function on vfio-pci is found too. The class trees
of sysfs add the rest where the host's own driver holds the function. A capture must hold, as far as the host has them:
/sys/class/infiniband, /sys/class/net, the vital product data (`vpd`) of ConnectX functions beside GPUs of HGX B200 and
B300, the folders `net`, `virtioN/net`, `infiniband`, `nvme` and `block` of these functions, /sys/class/block,
/proc/self/mounts (or /proc/mounts), /proc/self/mountinfo, /proc/swaps, /proc/net/route, /proc/net/ipv6_route and
/proc/net/if_inet6, and the answers `ip-link-NAME` for the NICs that have virtual functions.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hosttune.discovery.holders import ROUTES, ROUTES6, is_up, network_use
from hosttune.discovery.portfiles import NET, RDMA, interface_gbps, link_layer, rdma_rate, state_word
from hosttune.disks import MOUNTS, block_uses, disk_uses, mounts_known, nvme_names
from hosttune.errors import Unreadable
from hosttune.gpu import nvswitches
from hosttune.gpu.bridges import MARK, bridges_among, has_bridges, may_be_bridge
from hosttune.machine.iplink import Settings, read_functions, uplink
from hosttune.machine.reader import Reader
from hosttune.model import pciclass, sysfs
from hosttune.model.host import Nic, Nvme, NvSwitch, PciDevice
from hosttune.model.ports import believed_gbps

_DEVICES = sysfs.PCI_DEVICES


# --- network -------------------------------------------------------------------------------------------------


def read_nics(reader: Reader, pci: tuple[PciDevice, ...]) -> tuple[Nic, ...]:
    """Return every network function (class 0200, 0207, 0280), physical or virtual, in the order of `pci`.

    `kind` is the link layer of the RDMA port, or else follows from the class; a function of class 0280 without
    interfaces is of unknown kind. `rate_gbps` is the rate of the fastest port that is up. `state` is "active" if any
    RDMA port is, or else the state that the port or interface reports ("down", "up", …). `in_use` says that without
    this function the host would lose its default route, or a bond or bridge a member. An address on an interface does
    not count as use, because RDMA networks have addresses too. It makes the function `busy`: apply takes no function
    from an interface that is up and has an address or a route. If the routes were not read, whether a function with an
    interface that may be up is in use is unknown (`use_unknown`): a problem, because it could be given away.
    """
    devices = [device for device in pci if (device.class_code or "").startswith(pciclass.NICS)]
    if not devices:
        return ()
    interfaces = by_address(reader, NET)
    rdmas = by_address(reader, RDMA)
    routed, unread = _routed(reader)
    # Whether each ConnectX function carries the GPUs' fabric, by address, according to its vital product data.
    # Empty on hosts that cannot have such functions. None: the data could not be read.
    marks: dict[str, bool | None] = {}
    for device in pci if has_bridges(pci) else ():
        if may_be_bridge(device):
            data = reader.data(f"{_DEVICES}/{device.address}/vpd")
            marks[device.address] = MARK in data if data else None
    bridges = bridges_among(marks)
    listed = [
        _nic(reader, device, interfaces.get(device.address, ()), rdmas.get(device.address, ()), routed)
        for device in devices
    ]
    nics = [_doubted(reader, nic, unread) for nic in listed] if unread is not None else listed
    if unread is not None and any(nic.use_unknown for nic in nics):
        reader.problem(
            "routes unknown", unread, "not read; whether a NIC carries the host's default route is not known"
        )
    return tuple(msgspec.structs.replace(nic, fabric_bridge=bridges.get(nic.address)) for nic in nics)


def _doubted(reader: Reader, nic: Nic, unread: str) -> Nic:
    """Return a NIC with the reason why its use is unknown, if an interface of it may carry a route.

    The kernel takes the routes of an interface that is taken down away (net/ipv4/fib_frontend.c, fib_disable_ip).
    """
    name = next((name for name in nic.interfaces if is_up(reader, name) is not False), None)
    if name is None or nic.in_use is not None:
        return nic
    state = "is up" if is_up(reader, name) else "may be up"
    why = f"{name} {state}, and whether it carries a default route is unknown: {unread} was not read"
    return msgspec.structs.replace(nic, use_unknown=why)


def by_address(reader: Reader, folder: str) -> dict[str, tuple[str, ...]]:
    """Return the entries of a class folder by the PCI function that their (`device`) link leads through."""
    names_of: dict[str, tuple[str, ...]] = {}
    for name in reader.names(folder):
        target = reader.link(f"{folder}/{name}") or reader.link(f"{folder}/{name}/device")
        functions = sysfs.functions_in(target or "")
        if functions:
            names_of[functions[-1]] = (*names_of.get(functions[-1], ()), name)
    return names_of


def _nic(
    reader: Reader, device: PciDevice, interfaces: tuple[str, ...], rdmas: tuple[str, ...], routed: frozenset[str]
) -> Nic:
    path = f"{_DEVICES}/{device.address}"
    names = reader.names(path)
    if not interfaces:
        folders = [f"{path}/{name}/net" for name in names if name.startswith("virtio")]
        folders += [f"{path}/net"] if "net" in names else []
        interfaces = tuple(name for folder in folders for name in reader.names(folder))
    if not rdmas and "infiniband" in names:
        rdmas = tuple(reader.names(f"{path}/infiniband"))
    ports = [port for rdma in rdmas for port in _rdma_ports(reader, rdma)]
    layer = next((layer for layer, _, _ in ports if layer), None)
    if ports:
        state, rate = _best_port(ports)
        if interfaces and all(of == "Ethernet" for of, _, _ in ports) and state == "active":
            rate = _interface_state(reader, interfaces)[1]
    else:
        state, rate = _interface_state(reader, interfaces)
    return Nic(
        address=device.address,
        kind=_kind(device, layer, interfaces),
        rdma=rdmas[0] if rdmas else None,
        rate_gbps=rate,
        interfaces=interfaces,
        link_layer=layer,
        state=state,
        physfn=device.physfn,
        in_use=_network_use(reader, interfaces, routed),
        busy=_busy(reader, interfaces),
        functions=_functions(reader, device) if device.sriov_vfs else None,
    )


def _functions(reader: Reader, device: PciDevice) -> Mapping[str, Settings] | None:
    """Return what a function keeps for its virtual ones, by number; None if that cannot be read."""
    try:
        interface, _ = uplink(reader.system, device.address)
        kept = read_functions(reader.system, interface) if interface else {}
    except Unreadable:
        return None
    return {str(number): settings for number, settings in kept.items()} or None


def _kind(device: PciDevice, layer: str | None, interfaces: tuple[str, ...]) -> str | None:
    if layer is not None:
        return layer.lower()
    code = device.class_code or ""
    if code.startswith(pciclass.INFINIBAND):
        return "infiniband"
    return "ethernet" if code.startswith(pciclass.ETHERNET) or interfaces else None


_Port = tuple[str | None, str | None, float | None]  # link layer, state, Gb/s


def _rdma_ports(reader: Reader, rdma: str) -> list[_Port]:
    """Return every port of an RDMA device.

    A port that is down shows the lowest possible rate. That is not its real rate, so it is left out. The rate of a RoCE
    port is its interface's (`_nic`): what is shown here is the next rate that InfiniBand has a name for, and with some
    kernels at most 100 Gb/s (drivers/infiniband/core/verbs.c, ib_get_eth_speed).
    """
    ports: list[_Port] = []
    for number in reader.names(f"{RDMA}/{rdma}/ports"):
        path = f"{RDMA}/{rdma}/ports/{number}"
        layer, state = link_layer(reader, path), state_word(reader, f"{path}/state")
        rate, _, speed = rdma_rate(reader, f"{path}/rate") if state == "active" else (None, None, None)
        rate = believed_gbps(layer, rate, speed)
        ports.append((layer if layer in ("InfiniBand", "Ethernet") else None, state, rate))
    return ports


def _best_port(ports: list[_Port]) -> tuple[str | None, float | None]:
    states = [state for _, state, _ in ports if state]
    rates = [rate for _, _, rate in ports if rate is not None]
    state = "active" if "active" in states else next(iter(states), None)
    return state, max(rates, default=None)


def _interface_state(reader: Reader, interfaces: tuple[str, ...]) -> tuple[str | None, float | None]:
    """Return the state and the Gb/s of the fastest interface."""
    states = [state for name in interfaces if (state := reader.text(f"{NET}/{name}/operstate"))]
    speeds = [speed for name in interfaces if (speed := interface_gbps(reader, name))]
    state = "up" if "up" in states else next((state for state in states if state != "unknown"), None)
    return state, max(speeds, default=None)


def _routed(reader: Reader) -> tuple[frozenset[str], str | None]:
    """Return the interfaces that carry a default route of IPv4 or IPv6, and the list of routes that was not read.

    Every host lists IPv4 routes, if only in a heading; one without IPv6 has no list of IPv6 routes.
    """
    interfaces: set[str] = set()
    routes, routes6 = reader.text(ROUTES), reader.text(ROUTES6)
    unread = ROUTES if not routes else ROUTES6 if routes6 is None and not reader.lacks(ROUTES6) else None
    for words in (line.split() for line in (routes or "").splitlines()[1:]):
        if len(words) > 7 and words[1] == words[7] == "00000000":
            interfaces.add(words[0])
    for words in (line.split() for line in (routes6 or "").splitlines()):
        if len(words) == 10 and words[0] == "0" * 32 and words[1] == "00" and words[9] != "lo":
            interfaces.add(words[9])
    return frozenset(interfaces), unread


def _network_use(reader: Reader, interfaces: tuple[str, ...], routed: frozenset[str]) -> str | None:
    reasons: list[str] = []
    for name in interfaces:
        stacked_interfaces = _stacked_interfaces(reader, name)
        carrier = next((upper for upper in (name, *stacked_interfaces) if upper in routed), None)
        master = reader.link_name(f"{NET}/{name}/master")
        if carrier is not None:
            via = "" if carrier == name else f" of {carrier}"
            reasons.append(f"{name} carries the default route{via}")
        elif master is not None:
            reasons.append(f"{name} belongs to {master}")
    return "; ".join(reasons) or None


def _busy(reader: Reader, interfaces: tuple[str, ...]) -> str | None:
    """Return what makes apply refuse the function. None also if the routes, which every kernel lists, were not read."""
    if reader.text(ROUTES) is None:
        return None
    uses = ((name, network_use(reader, name)) for name in interfaces)
    return "; ".join(f"{name} {use}" for name, use in uses if use is not None) or None


def _stacked_interfaces(reader: Reader, interface: str) -> tuple[str, ...]:
    """Return the interfaces stacked on this one (bond, bridge, VLAN), nearest first."""
    stacked: list[str] = []
    layer = [interface]
    while layer:
        above = [name[6:] for lower in layer for name in reader.names(f"{NET}/{lower}") if name.startswith("upper_")]
        layer = [name for name in dict.fromkeys(above) if name not in stacked]
        stacked += layer
    return tuple(stacked)


# --- NVMe ----------------------------------------------------------------------------------------------------


def read_nvme(reader: Reader, pci: tuple[PciDevice, ...]) -> tuple[Nvme, ...]:
    """Return every NVMe controller (class 0108) with its block devices, and why the host needs it if it does.

    `in_use` None means that no mount, swap or holder (device mapper, md) names a namespace. If the list of mounts
    cannot be read, that is a problem, because a disk that only looks free could be given away, and `use_unknown`.
    """
    devices = [device for device in pci if device.is_nvme]
    nvmes = [_controller(reader, device) for device in devices]
    if not any(nvme.namespaces for nvme in nvmes):
        return tuple(nvmes)
    uses = block_uses(reader)
    return tuple(_with_use(reader, nvme, uses) if nvme.namespaces else nvme for nvme in nvmes)


def _controller(reader: Reader, device: PciDevice) -> Nvme:
    controller, namespaces = nvme_names(reader, device.address)
    path = f"{_DEVICES}/{device.address}/nvme/{controller}"
    return Nvme(
        address=device.address,
        model=reader.text(f"{path}/model") or None if controller is not None else None,
        controller=controller,
        namespaces=namespaces,
    )


def _with_use(reader: Reader, nvme: Nvme, uses: dict[str, str]) -> Nvme:
    reasons = [reason for name in nvme.namespaces for reason in disk_uses(reader, name, uses)]
    in_use = "; ".join(dict.fromkeys(reasons)) or None
    doubt = in_use is None and not mounts_known(reader)
    why = f"whether {nvme.namespaces[0]} is mounted is unknown: {MOUNTS} was not read" if doubt else None
    return msgspec.structs.replace(nvme, in_use=in_use, use_unknown=why)


# --- NVSwitch ------------------------------------------------------------------------------------------------


def read_nvswitches(reader: Reader, pci: tuple[PciDevice, ...]) -> tuple[NvSwitch, ...]:
    """Return the NVSwitches that are PCI functions: those with known ids, or else NVIDIA bridges (0680) named as such.

    Blackwell boards have none: ConnectX-7 functions carry their fabric.
    """
    del reader  # `pci` has all that is needed; the signature is that of the other device readers
    return tuple(
        NvSwitch(
            address=device.address,
            model=nvswitches.MODELS.get(device.device_id or "") or device.device_name,
            driver=device.driver,
        )
        for device in pci
        if nvswitches.is_nvswitch(device)
    )
