"""Checks of PCIe links: speed and width at both ends; a limit by design and an idle link are not faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from hosttune.gpu.idling import IDLING_DRIVERS, LOADED_DRIVERS
from hosttune.linux.pciconfig import WIDTHS
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu
from hosttune.model.host import Link, LinkFigures, PciDevice
from hosttune.model.pci import common_link, link_shape
from hosttune.model.validation import CheckResult
from hosttune.model.values import slot_of
from hosttune.rules.checks import driverlinks
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown
from hosttune.rules.checks.facts import SOFTWARE, accelerators, as_root, lacks, listed, model_of

_ID = "pcie-link"
_NO_LINK = ("root-complex-endpoint", "root-complex-event-collector")
_FACING_DOWN = ("root-port", "downstream-port", None)
_QEMU = "1b36"  # vendor id of QEMU's own ports: their link registers describe no physical link
_ABILITIES = (("max_speed_gts", "GT/s at most"), ("max_width", "lanes at most"))
_FAULT = (
    "reseat the card or its cable, compare with a sister slot, read AER in the kernel log; a speed forced down in the"
    " firmware's settings looks the same"
)
_AT_REST = "at rest"

Functions = Mapping[str, PciDevice]


class _End(NamedTuple):
    """The maximum speed (GT/s) and width (lanes) of one end of a link."""

    address: str
    speed: float
    width: int


class _Others(NamedTuple):
    """What other links of this host report: for each model the most lanes and the address that has them; whether any
    port reports its lanes in use; whether any function has two sources.
    """

    widest: Mapping[tuple[str | None, ...], tuple[int, str]]
    ports_report: bool
    two_sources: bool


def pcie_link(evidence: Evidence) -> Iterable[CheckResult]:
    """Yield one result per GPU, NIC, NVMe drive and NVSwitch; virtual functions of NICs share their parent's link."""
    host = evidence.host
    functions = host.index.pci
    accelerated = {gpu.address: gpu for gpu in accelerators(host)}
    gpus = list(accelerated)
    others = [nic.address for nic in host.nics]
    others += [drive.address for drive in host.nvme]
    others += [switch.address for switch in host.nvswitches]
    subjects = [*gpus, *(a for a in others if a not in functions or functions[a].physfn is None)]
    other_links = _others(functions)
    for address in dict.fromkeys(subjects):
        device = functions.get(address)
        if device is None or device.link is None:
            own = _without_link(evidence, device, address, is_gpu=address in gpus)
        else:
            own = _judge(evidence, functions, other_links, device, accelerated.get(address))
        yield own if own.outcome == "skip" else _with_path(evidence, other_links, own, tuple(dict.fromkeys(subjects)))


def _with_path(evidence: Evidence, others: _Others, own: CheckResult, subjects: Sequence[str]) -> CheckResult:
    """Judge the links between the device's own link and the root port, too: the narrowest one carries all it moves.

    (Linux drivers/pci/pci.c, pcie_bandwidth_available(), walks the same way.)
    """
    index, found = evidence.host.index, {"fail": list[str](), "unknown": list[str](), "pass": list[str]()}
    uplinks = [one for one in index.uplinks(own.subject) if one.vendor_id not in SOFTWARE]
    for bridge in (one for one in uplinks if one.link is not None or others.ports_report):
        bridge = msgspec.structs.replace(bridge, link=bridge.link or Link())
        port = _port(index.pci, bridge)
        outcome, why = _verdict(index.pci, bridge, port, _best(index.pci, bridge, port), loaded=False)
        sharing = listed([one for one in subjects if one != own.subject and bridge.address in index.above(one)])
        text = f"above it, {bridge.address} to {bridge.parent}: {why}"
        found[outcome].append(f"{text}; shared by {sharing}" if sharing else text)
    if not found["fail"] and (own.outcome != "pass" or not found["unknown"]):
        return own
    return msgspec.structs.replace(
        own,
        outcome="fail" if found["fail"] else "unknown",
        actual="; ".join((own.actual or "", *(found["fail"] or found["unknown"]))),
        source=own.source or sysfs.PCI_DEVICES,
        hint=_FAULT if found["fail"] else "read both ends with lspci -vvv as root while something copies",
    )


def _others(functions: Functions) -> _Others:
    linked = [one for one in functions.values() if one.link is not None and one.physfn is None]
    widest: dict[tuple[str | None, ...], tuple[int, str]] = {}
    for one in linked:
        lanes = (one.link.max_width if one.link else None) or 0
        if lanes > widest.get(model_of(one), (0, ""))[0]:
            widest[model_of(one)] = lanes, one.address
    above = (functions[one.parent].link for one in linked if one.parent is not None and one.parent in functions)
    return _Others(
        widest,
        any(link is not None and link.width is not None for link in above),
        any(len(one.link.told or ()) > 1 for one in linked if one.link is not None),
    )


def _judge(
    evidence: Evidence, functions: Functions, others: _Others, device: PciDevice, gpu: Gpu | None
) -> CheckResult:
    link = device.link
    assert link is not None
    port = _port(functions, device)
    address = device.address
    loaded = (evidence.loaded_links or {}).get(address)
    source = _read(functions, device, port)
    if loaded is not None:
        device = _under_load(device, *loaded)
        source += "; its speed and width while copies ran"
    best = _best(functions, device, port)
    expected = f"{link_shape(*best)}, the most that {'both ends' if port else 'it'} can do"
    outcome, why = _verdict(functions, device, port, best, loaded=loaded is not None)
    driven = gpu if device.physfn is None else None
    doubt = _contradiction(device, link)
    if driven is not None and outcome != "fail":  # a fault that both ends report is not healed by the driver
        doubt = doubt or driverlinks.contradiction(link, driven)
    doubt = doubt or _one_source(others, device, link)
    if doubt is None and outcome == "pass":
        doubt = _other_end(functions, others, device, link)
        if driven is not None and loaded is None:
            doubt = doubt or _unconfirmed(evidence, device, link, driven)
    outcome, why = ("unknown", doubt) if doubt else (outcome, why)
    actual = link_shape(link.speed_gts, link.width) if loaded is None else _text_under_load(loaded, link)
    actual += f", {why}" if why else ""
    if outcome == "pass":
        return passed(_ID, address, expected=expected, actual=actual, source=source)
    if outcome == "fail":
        return failed(_ID, address, expected=expected, actual=actual, source=source, hint=_FAULT)
    hint = _where_to_read(evidence, device, at_rest=why.startswith(_AT_REST))
    return unknown(_ID, address, expected=expected, why=actual, hint=hint, source=source)


def _under_load(device: PciDevice, speed: float, width: int) -> PciDevice:
    """Return the device with its link as read while copies ran; the values at rest are not used then."""
    assert device.link is not None
    link = msgspec.structs.replace(device.link, speed_gts=speed, width=width, state=None, why=None)
    return msgspec.structs.replace(device, link=link, power_state=None, runtime_status=None)


def _text_under_load(loaded: tuple[float, int], rest: Link) -> str:
    """Return a text: "32 GT/s x16 under load, 2.5 GT/s x16 at rest"."""
    text = f"{link_shape(*loaded)} under load"
    return (
        text if loaded == (rest.speed_gts, rest.width) else f"{text}, {link_shape(rest.speed_gts, rest.width)} at rest"
    )


def _read(functions: Functions, device: PciDevice, port: _End | None) -> str:
    """Return the files that were read, of both ends; "the host document" for a document that keeps no sources."""
    ends = [device.link, functions[port.address].link if port is not None else None]
    read = [figures.read for link in ends if link is not None for figures in link.told or ()]
    return ", ".join(read) or "the host document"


def _contradiction(device: PciDevice, link: Link) -> str | None:
    """Return which sources of a link report different values; None if they agree or there is only one.

    The current speed of a GPU is not compared: it may have changed between two reads.
    """
    return _differ(link.told or (), *_ABILITIES, *_now(device))


def _unconfirmed(evidence: Evidence, device: PciDevice, link: Link, gpu: Gpu) -> str | None:
    """Return why the GPU's driver does not confirm a link that would pass; None if it does, or cannot report it."""
    if why := driverlinks.missing(evidence, gpu, device):
        return why
    speed = driverlinks.speed_now(link, gpu)
    return None if speed is None else f"{_AT_REST}: {gpu.source or 'its driver'} read {speed:g} GT/s"


def _one_source(others: _Others, device: PciDevice, link: Link, whose: str = "its ") -> str | None:
    """Return which source of this link was not read although it was read for other functions; None if none is missing.

    The missing source could contradict the other one. Registers of a suspended device are not read, so as not to wake
    it.
    """
    kinds = {_is_config(one) for one in link.told or ()}
    if len(kinds) != 1 or device.runtime_status == "suspended":
        return None
    if not others.two_sources:
        return None
    lost = "link files" if True in kinds else "configuration space"
    return f"{whose}{lost} could not be read, and other functions' could"


def _other_end(functions: Functions, others: _Others, device: PciDevice, link: Link) -> str | None:
    """Return how the port above differs from this end, or that its values are missing; None for neither.

    Both ends of a link negotiate one width and one speed (PCI Express Base 5.0, 7.5.3.8). A port of a hypervisor, or
    one whose maximum is below the current values, is not the other end.
    """
    above = functions.get(functions.get(device.physfn or "", device).parent or "")
    if above is None or not above.is_bridge or above.port_type not in _FACING_DOWN or above.vendor_id in SOFTWARE:
        return None
    other = above.link
    if other is None or other.width is None:
        lost = others.ports_report and device.runtime_status != "suspended"
        return f"{above.address} above reports no lanes in use, and other ports do" if lost else None
    if _less((other.max_speed_gts or float("inf"), other.max_width or max(WIDTHS)), (link.speed_gts, link.width)):
        return None
    differ = _differ((*_figures_by_source(device, link), *_figures_by_source(above, other)), *_now(device))
    differ = differ or _differ(other.told or (), *_ABILITIES, *_now(device))
    if differ is None and (other.max_width or 0) < (link.max_width or 0):
        differ = _one_source(others, above, other, "the port's ") or _narrower(others, above, other)
    return differ or _narrower(others, device, link)


def _narrower(others: _Others, device: PciDevice, link: Link) -> str | None:
    """Return which function of this model has more lanes, if this one has a single source of its lanes; else None."""
    most, who = others.widest.get(model_of(device), (0, ""))
    if len(link.told or ()) != 1 or link.max_width is None or most <= link.max_width:
        return None
    read = (link.told or ())[0].read
    return f"{read} says {link.max_width} lanes at most, {who}, of the same model, {most}"


def _figures_by_source(device: PciDevice, link: Link) -> tuple[LinkFigures, ...]:
    """Return what each source reports for a link; a document that keeps no sources counts as one source."""
    return link.told or (LinkFigures(read=device.address, speed_gts=link.speed_gts, width=link.width),)


def _now(device: PciDevice) -> tuple[tuple[str, str], ...]:
    """Return the current values to compare, without the speed of a device that may change it between two reads."""
    restless = device.is_display or device.runtime_status == "suspended"
    return (("width", "lanes"),) if restless else (("width", "lanes"), ("speed_gts", "GT/s"))


def _differ(sources: Sequence[LinkFigures], *fields: tuple[str, str]) -> str | None:
    """Return which two sources report different numbers for one of these (field, unit); None if all agree."""
    for name, unit in fields:
        known = [(one.read, number) for one in sources if (number := getattr(one, name)) is not None]
        for read, number in known[1:]:
            if number != known[0][1]:
                return f"sources disagree: {known[0][0]} says {known[0][1]:g} {unit}, {read} {number:g}"
    return None


def _is_config(figures: LinkFigures) -> bool:
    return figures.read.endswith("/config")


def _verdict(
    functions: Functions,
    device: PciDevice,
    port: _End | None,
    best: tuple[float | None, int | None],
    *,
    loaded: bool,
) -> tuple[str, str]:
    """Return (pass, fail or unknown; why). The figures decide; where they cannot (sleep, idle), discovery's `state`."""
    link = device.link
    assert link is not None
    now, most = (link.speed_gts, link.width), (link.max_speed_gts, link.max_width)
    if link.state == "degraded":
        return "fail", link.why or "lower than both ends can do"
    if link.state == "unknown" or device.power_state == "D3cold":
        return "unknown", link.why or "the link cannot be judged"
    if None in (*now, *most):
        return "unknown", "the link reports no speed or width: not trained, or not readable"
    if now == most:
        return "pass", ""
    if port is None:
        return "unknown", f"of {link_shape(*most)}: the other end is not visible"
    if functions[port.address].vendor_id == _QEMU or _less((port.speed, port.width), now):
        return "unknown", f"of {link_shape(*most)}: {port.address} is not the real other end"
    if now == best:
        why = link.why if link.state == "by-design" else f"{port.address} can do {link_shape(port.speed, port.width)}"
        return "pass", f"by design: {why}"
    return _lower(device, link.state, link.why, now[1] == best[1] and not loaded)


def _lower(device: PciDevice, state: str | None, why: str | None, may_be_idle: bool) -> tuple[str, str]:
    """Judge a link below what both ends can do: a fault, unless only the speed is lower and the device may be at rest.

    At rest is a suspended device (also in D3hot: its registers can be read), or one whose driver may slow an idle link
    (and that was not loaded). A link at rest looks the same as one that trained low, so it must be read under load.
    """
    if may_be_idle and (device.runtime_status == "suspended" or device.power_state == "D3hot"):
        return "unknown", f"{_AT_REST}: the device is {'in D3hot' if device.power_state == 'D3hot' else 'suspended'}"
    if may_be_idle and (state == "idle" or (device.is_display and device.driver in IDLING_DRIVERS)):
        return (
            "unknown",
            f"{_AT_REST}: {'a GPU below' if device.is_bridge else device.driver or 'its driver'} may slow an idle link",
        )
    return "fail", why if why and state != "full" else "lower than both ends can do"


def _port(functions: Functions, device: PciDevice) -> _End | None:
    """Return the other end: as discovery found it, else the bridge directly above, if that faces the device."""
    link = functions.get(device.physfn or "", device).link
    end = link.upstream if link else None
    if end is not None and end.max_speed_gts is not None and end.max_width is not None and end.address in functions:
        return _End(end.address, end.max_speed_gts, end.max_width)
    above = functions.get(device.parent or "")
    if above is None or not above.is_bridge or above.port_type not in _FACING_DOWN or above.link is None:
        return None
    if above.link.max_speed_gts is None or above.link.max_width is None:
        return None
    return _End(above.address, above.link.max_speed_gts, above.link.max_width)


def _best(functions: Functions, device: PciDevice, port: _End | None) -> tuple[float | None, int | None]:
    """Return the best speed and width that both ends can do. For a slot with several functions, function 0 knows the
    width."""
    first = functions.get(f"{slot_of(device.address)}.0")
    links = [one.link for one in (device, first) if one is not None and one.link is not None]
    at_port = (port.speed, port.width) if port else (None, None)
    return common_link([*((link.max_speed_gts, link.max_width) for link in links), at_port])


def _less(most: tuple[float, int], now: tuple[float | None, int | None]) -> bool:
    """Return whether an end claims a maximum below the current values: then it is not the real other end."""
    return (now[0] or 0) > most[0] or (now[1] or 0) > most[1]


def _without_link(evidence: Evidence, device: PciDevice | None, address: str, *, is_gpu: bool) -> CheckResult:
    """Return the result for a device without link values: skipped if it has no PCIe link by design, else unknown."""
    if device is not None and device.port_type in _NO_LINK:
        return skipped(_ID, address, "part of the root complex: it has no link")
    if device is not None and device.vendor_id in SOFTWARE:
        return skipped(_ID, address, "a virtual device of the hypervisor: there is no wire")
    if device is not None and not is_gpu and lacks(evidence, sysfs.function(address, "current_link_speed")):
        return skipped(_ID, address, "it reports no PCIe link: a virtual or conventional PCI device")
    why = "the device itself is not in the list of PCI functions" if device is None else "no link speed or width"
    hint = as_root(evidence)
    return unknown(_ID, address, expected="the most that both ends can do", why=why, hint=hint)


def _where_to_read(evidence: Evidence, device: PciDevice, *, at_rest: bool) -> str:
    """Return when or where a link that is unknown, or at rest, can be read."""
    if (device.power_state or "").startswith("D3"):
        return (
            "validate again while its guest runs, or wake it:"
            f" echo on > /sys/bus/pci/devices/{device.address}/power/control"
        )
    if at_rest and device.driver in LOADED_DRIVERS:
        return "hosttune validate --level 1 reads it while copies run: on the machine itself, with the GPU free"
    if at_rest:
        return "validate again while something copies to and from it"
    if evidence.host.hypervisor:
        return "a virtual port shows no wire: run hosttune validate on the host of this guest"
    return "read both ends with lspci -vvv as root (LnkCap, LnkSta), and the kernel log for the port above"


CHECKS = (
    Check(
        id=_ID,
        title="PCIe generation and width, both ends",
        subjects="each GPU of a known maker, NIC, NVMe drive and NVSwitch, given to a guest or not",
        why="a link that trained low costs half its bandwidth or more, and nothing else shows it; a GPU at rest can"
        " only be judged under load (level 1)",
        source=(
            "PCI Express Base 5.0, 7.5.3.6 Link Capabilities and 7.5.3.8 Link Status;"
            " Linux Documentation/ABI/testing/sysfs-bus-pci (current_link_speed); nvidia-smi documentation: the current"
            " generation may be reduced when the GPU is not in use"
        ),
        judge=pcie_link,
        inside=True,
        none="GPU, NIC, NVMe drive or NVSwitch",
    ),
)
