"""Ports of network functions as the kernel shows them: RDMA ports and network interfaces. None is unknown."""

from __future__ import annotations

from collections.abc import Mapping

from hosttune.model.values import Closed, Value


class RdmaPort(Closed, frozen=True, kw_only=True):
    """One port of an RDMA device.

    `layer` is "infiniband", "ethernet" (RoCE) or "unspecified" (neither, such as EFA). `state` and `phys_state` are the
    kernel's words in small letters ("active", "linkup"). `lid` and `sm_lid` have a meaning on InfiniBand only; 0 means
    that no subnet manager has assigned it. `counters`: errors since the driver was loaded or they were last cleared; a
    counter that the driver proves not to have is left out, None is one that could not be read.
    """

    device: str
    number: int
    layer: str | None = None
    state: str | None = None
    phys_state: str | None = None
    rate_gbps: float | None = None
    width: int | None = None  # lanes: 4 of "4X NDR"
    speed: str | None = None  # the speed's name: "NDR"
    lid: int | None = None
    sm_lid: int | None = None
    firmware: str | None = None
    counters: Mapping[str, int | None] = {}

    MAPPINGS = ("counters",)

    @property
    def name(self) -> str:
        """The name that operators use: mlx5_0/1."""
        return f"{self.device}/{self.number}"


class Interface(Closed, frozen=True, kw_only=True):
    """One network interface.

    `is_up`: it is set up (IFF_UP). `carrier`: it has a link; the kernel tells it only of an interface that is set up.
    `arp_type`: 1 Ethernet, 32 IPoIB. `represents`: it stands for a virtual function (switchdev mode), not for a port.
    `counters`: as those of RdmaPort, and "carrier_down_count".
    """

    name: str
    is_up: bool | None = None
    carrier: bool | None = None
    arp_type: int | None = None
    speed_gbps: float | None = None
    duplex: str | None = None
    mtu: int | None = None
    represents: bool = False
    counters: Mapping[str, int | None] = {}

    MAPPINGS = ("counters",)


class NicPorts(Value, frozen=True, kw_only=True):
    """The ports of one network function. None: which there are is unknown; empty: it is proven to have none."""

    rdma: tuple[RdmaPort, ...] | None = None
    interfaces: tuple[Interface, ...] | None = None


class LinkModes(Closed, frozen=True, kw_only=True):
    """Rates in Gb/s that `ethtool` tells of a port: what it supports, offers, and what its partner offers.

    (): its driver does not report them. None: not read. `speed_gbps`: the rate that it has.
    """

    supported_gbps: tuple[float, ...] | None = None
    advertised_gbps: tuple[float, ...] | None = None
    partner_gbps: tuple[float, ...] | None = None
    speed_gbps: float | None = None


class Reading(Closed, frozen=True, kw_only=True):
    """One value that a module measures: temperature (°C), voltage (V), bias (mA), tx-power, rx-power (mW).

    `lane` None: of the whole module. `flags`: what the module has flagged since its flags were last read ("high
    alarm"); `flags_read`: how many of the four could be read.
    """

    quantity: str
    lane: int | None = None
    value: float | None = None
    flags: tuple[str, ...] = ()
    flags_read: int = 0


class Transceiver(Closed, frozen=True, kw_only=True):
    """The module in a port, in its own words. None is unknown.

    `copper`: a cable without optics. `monitored`: it measures itself. `flagged`: it has alarm and warning flags.
    `limits`: by quantity, its own "high alarm", "high warning", "low warning" and "low alarm".
    """

    kind: str | None = None
    vendor: str | None = None
    part: str | None = None
    copper: bool = False
    monitored: bool | None = None
    flagged: bool | None = None
    readings: tuple[Reading, ...] = ()
    limits: Mapping[str, Mapping[str, float | None]] = {}

    MAPPINGS = ("limits",)


class PortDetail(Value, frozen=True, kw_only=True):
    """What `ethtool` tells of one interface. `modes_error`, `module_error`: the tool's words where it told nothing."""

    modes: LinkModes | None = None
    modes_error: str | None = None
    module: Transceiver | None = None
    module_error: str | None = None


class PortInfo(Closed, frozen=True, kw_only=True):
    """Which lanes and speeds an InfiniBand port supports, which are enabled, and which it has. None is unknown.

    `widths`: numbers of lanes. `lane_gbps`: Gb/s of one lane, as the kernel counts them (100 for NDR). `gbps`: the rate
    that it has now. `unnamed`: the tool has no name for one of them. `error`: its words where it told nothing.
    """

    widths: tuple[int, ...] | None = None
    lane_gbps: tuple[float, ...] | None = None
    widths_enabled: tuple[int, ...] | None = None
    lane_gbps_enabled: tuple[float, ...] | None = None
    gbps: float | None = None
    unnamed: bool = False
    error: str | None = None


class RoceState(Closed, frozen=True, kw_only=True):
    """How a RoCE port is set. None is unknown; `why` has the reason by field, as far as there is one.

    `gid_types`: the kinds of its GIDs in the kernel's words, each once, up to the first "RoCE v2". `trust`: "dscp" or
    "pcp". `pfc`: priorities with priority flow control. `ecn_np`, `ecn_rp`: priorities on which the receiver notifies
    and the sender slows down. `traffic_class`: that of all its RDMA packets; -1: none is set. `active_mtu`: of RDMA.
    """

    device: str
    interface: str | None = None
    active_mtu: int | None = None
    gid_types: tuple[str, ...] | None = None
    trust: str | None = None
    pfc: tuple[int, ...] | None = None
    ecn_np: tuple[int, ...] | None = None
    ecn_rp: tuple[int, ...] | None = None
    traffic_class: int | None = None
    why: Mapping[str, str] = {}

    MAPPINGS = ("why",)


# --- rates ----------------------------------------------------------------------------------------------------


def believed_gbps(layer: str | None, rate: float | None, speed: str | None) -> float | None:
    """Return the rate of an active RDMA port in Gb/s, or None where the kernel's text does not prove it.

    `speed`: the name beside the rate. A kernel shows SDR also for a speed that it has no name for
    (drivers/infiniband/core/sysfs.c, rate_show: "default to SDR for invalid rates"): an XDR port of 800 Gb/s is
    "10 Gb/sec (4X SDR)" to an older one. Nothing there tells the two apart.
    """
    return None if layer is not None and layer.lower() == "infiniband" and speed in (None, "SDR") else rate
