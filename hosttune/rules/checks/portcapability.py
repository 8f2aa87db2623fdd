"""Check of the rate of ports against what they support: Ethernet as `ethtool`, InfiniBand as `smpquery` tells it."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.model.evidence import Evidence
from hosttune.model.ports import Interface, LinkModes, PortDetail, PortInfo, RdmaPort
from hosttune.model.rates import believed_gbps
from hosttune.model.validation import CheckResult
from hosttune.rules.checks.check import Check, skipped
from hosttune.rules.checks.facts import SOFTWARE
from hosttune.rules.checks.nics import IB, LINKED, UNKNOWN, Found, Judged, each_nic, links, not_known
from hosttune.rules.checks.portanswers import OfPort, of_port, result_of_ports, unanswered

_CAPABILITY = "port-capability"
_ALL = "each port with a link at the fastest rate that it supports"
_SOURCE = "/sys/class/net/*/speed, ethtool NAME; /sys/class/infiniband/*/ports/*/rate, smpquery portinfo"
# Virtual functions in a guest (drivers/net/ethernet/mellanox/mlx5/core/main.c, mlx5_core_pci_table): they answer for no
# port.
_VIRTUAL = frozenset(("15b3", device) for device in ("1014", "1016", "1018", "101a", "101c", "101e", "a2d3"))
_SPLIT = 2  # lanes: a card limited to half of its rate has all lanes at half the speed, or two at the full one


def port_capability(evidence: Evidence) -> Iterable[CheckResult]:
    """Check the rate of each port with a link against the fastest that the port supports."""
    return each_nic(evidence, _CAPABILITY, _ALL, lambda judged: _judge(evidence, judged))


def _judge(evidence: Evidence, judged: Judged) -> CheckResult:
    if judged.device.vendor_id in SOFTWARE:
        return skipped(_CAPABILITY, judged.address, "a virtual device: it has no port of its own")
    known, infiniband = links(judged), [port for port in judged.rdma if port.layer == IB]
    layerless = [
        Found("unknown", f"the link layer of {port.name} was not read") for port in judged.rdma if not port.layer
    ]
    doubts = [*not_known(judged), *layerless]
    if not doubts and not judged.interfaces and not infiniband:
        return skipped(_CAPABILITY, judged.address, "neither an Ethernet nor an InfiniBand port")
    details, infos = evidence.port_details or {}, evidence.port_info or {}
    ports = [_ethernet(one, known[one.name], details.get(one.name, PortDetail())) for one in judged.interfaces]
    virtual = (judged.device.vendor_id, judged.device.device_id) in _VIRTUAL
    ports += [_infiniband(port, known[port.name], infos.get(port.name, PortInfo()), virtual) for port in infiniband]
    return result_of_ports(_CAPABILITY, judged, _ALL, ports, doubts=doubts, source=_SOURCE)


def _unlinked(name: str, linked: str) -> OfPort | None:
    """Return what is said of a port without a link, or whose link is not known; None for one with a link."""
    if linked == UNKNOWN:
        return of_port("unknown", f"whether {name} has a link is not known")
    return None if linked == LINKED else of_port("skip", f"{name} has no link: see port-state")


# --- Ethernet ----------------------------------------------------------------------------------------------------


def _ethernet(interface: Interface, linked: str, detail: PortDetail) -> OfPort:
    name, speed, modes = interface.name, interface.speed_gbps, detail.modes
    if (without := _unlinked(name, linked)) is not None:
        return without
    if modes is None:
        return unanswered(name, f"ethtool {name}", "ethtool", detail.modes_error, linked)
    if speed is None or modes.speed_gbps is None or modes.supported_gbps is None:
        return of_port("unknown", f"the rate of {name}, or which it supports, was not read")
    if speed != modes.speed_gbps:
        text = f"{name}: sysfs shows {speed:g} Gb/s, ethtool {modes.speed_gbps:g}"
        return of_port("unknown", text, f"ethtool {name}; cat /sys/class/net/{name}/speed")
    if not modes.supported_gbps:
        return of_port("skip", f"the driver of {name} does not report which rates it supports")
    most = max(modes.supported_gbps)
    if speed < most:
        hint = f"if the cable, the module and the switch's port can do more: ethtool {name} shows what both ends offer"
        return of_port("warn", _slower(name, speed, most, modes), hint)
    return _fastest(name, speed, most)


def _fastest(name: str, speed: float, most: float) -> OfPort:
    if speed > most:
        return of_port("unknown", f"{name} runs at {speed:g} Gb/s and supports at most {most:g}")
    return OfPort(good=f"{name} {speed:g} Gb/s, the fastest that it supports")


def _slower(name: str, speed: float, most: float, modes: LinkModes) -> str:
    """Return the words for a rate below the capability, with what each end offers as far as it is known."""
    text = f"{name} runs at {speed:g} Gb/s and supports {most:g}"
    offered = max(modes.advertised_gbps or (0.0,))
    if 0 < offered < most:
        text += f"; it offers at most {offered:g}"
    partner = max(modes.partner_gbps or (0.0,))
    return (
        f"{text}; its partner offers at most {partner:g}" if partner else f"{text}; what its partner can is not known"
    )


# --- InfiniBand --------------------------------------------------------------------------------------------------


def _infiniband(port: RdmaPort, linked: str, info: PortInfo, virtual: bool) -> OfPort:
    """Judge a port by PortInfo, which lists widths and speeds, but not which of them go together."""
    name = port.name
    if (without := _unlinked(name, linked)) is not None:
        return without
    if virtual:
        return of_port("skip", f"{name}: a virtual function; hosttune validate on its host judges the port")
    command = f"smpquery -C {port.device} -P {port.number} -D portinfo 0 {port.number}"
    if info == PortInfo() or info.error is not None:
        hint = f"as root: modprobe ib_umad; {command}" if "UMAD" in (info.error or "") else ""
        return unanswered(name, command, "infiniband-diags", info.error, linked, hint)
    rate = believed_gbps(port.layer, port.rate_gbps, port.speed)
    if rate is None:
        return of_port("unknown", f"the rate of {name} was not read, or is not proven: see port-rate")
    if info.unnamed:
        hint = "a newer infiniband-diags; XDR needs 49 or newer"
        return of_port("unknown", f"smpquery has no name for a speed or width that {name} supports", hint)
    if not info.widths or not info.lane_gbps or info.gbps is None:
        return of_port("unknown", f"which lanes and speeds {name} supports cannot be read", f"as root: {command}")
    if rate != info.gbps:
        text = f"{name}: sysfs shows {rate:g} Gb/s, smpquery {info.gbps:g}"
        return of_port("unknown", text, f"as root: {command}; cat /sys/class/infiniband/{port.device}/ports/*/rate")
    most = max(info.widths) * max(info.lane_gbps)
    if rate >= most:
        return _fastest(name, rate, most)
    text = f"{name} runs at {rate:g} Gb/s ({port.width}X {port.speed})"
    lanes = f"{max(info.widths)} lanes and {max(info.lane_gbps):g} Gb/s on each"
    if _SPLIT in info.widths and 2 * rate >= most:
        return of_port(
            "skip",
            f"{text} and supports {lanes}; PortInfo does not tell whether both together: a card limited to half"
            " (HDR100, NDR200) does not; its product name in lspci -vv, as root, has its rate",
        )
    enabled = max(info.widths_enabled or (0,)) * max(info.lane_gbps_enabled or (0.0,))
    told = f"; at most {enabled:g} is enabled" if 0 < enabled < most else ""
    hint = f"if the cable and the switch's port can do more: iblinkinfo shows both ends, {command} this one"
    return of_port("warn", f"{text} and supports {lanes}{told}", hint)


CHECKS: tuple[Check, ...] = (
    Check(
        _CAPABILITY,
        "Ports run at the fastest rate that they support",
        "each NIC, with all its Ethernet and InfiniBand ports that have a link",
        "A port that negotiated a lower rate works, only slower, and where all ports do so no other port shows it",
        "Linux Documentation/networking/ethtool-netlink.rst, LINKMODES_GET; ethtool(8); InfiniBand Architecture volume"
        " 1, 14.2.5.6 (PortInfo); smpquery(8)",
        port_capability,
        inside=True,
        none="NIC",
    ),
)
