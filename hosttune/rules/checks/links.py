"""Check of PCIe links: speed and width at both ends; a limit by design and an idle link are not faults."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.gpu.vendor import LOADED_DRIVERS
from hosttune.inventory.pcielink import IN_THE_ROOT, SOFTWARE, JudgedLink, link_of, uplinks
from hosttune.model import sysfs
from hosttune.model.counters import of_this_boot
from hosttune.model.evidence import Evidence
from hosttune.model.host import PciDevice
from hosttune.model.pci import link_shape
from hosttune.rules.checks.facts import accelerators, as_root, lacks
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

_RESTING_GTS = 2.5  # at any other speed it may have trained low
_OUTCOME = {"full": "pass", "by-design": "pass", "degraded": "fail"}  # of other states: unknown


def linked(evidence: Evidence) -> Iterator[tuple[str, PciDevice | None]]:
    """Yield GPUs, NICs, NVMe drives and NVSwitches; virtual functions of NICs and drives share their parent's link."""
    host = evidence.host
    functions = host.index.pci
    gpus = [gpu.address for gpu in accelerators(host)]
    others = [one.address for part in (host.nics, host.nvme, host.nvswitches) for one in part]
    others = [other for other in others if other not in functions or functions[other].physfn is None]
    yield from ((address, functions.get(address)) for address in dict.fromkeys((*gpus, *others)))


@check(
    "pcie-link",
    title="PCIe generation and width, both ends",
    about="each GPU, NIC, NVMe drive and NVSwitch",
    why="a link that trained low costs half its bandwidth or more, and nothing else shows it; a GPU at rest can"
    " only be judged under load (level 1)",
    source="PCI Express Base 5.0, 7.5.3.6 Link Capabilities and 7.5.3.8 Link Status; Linux"
    " Documentation/ABI/testing/sysfs-bus-pci (current_link_speed); nvidia-smi documentation: lower when the GPU is"
    " not in use",
    expected="the most that both ends can do",
    remedy="reseat the card or its cable, compare with a sister slot, read AER in the kernel log; a speed forced down"
    " in the firmware's settings looks the same",
    each=linked,
    inside=True,
    none="GPU, NIC, NVMe drive or NVSwitch",
)
def pcie_link(on: On, device: PciDevice | None) -> Finding:
    if device is None:
        on.give_up("the device itself is not in the list of PCI functions", as_root(on.evidence))
    loaded = (on.evidence.loaded_links or {}).get(device.address)
    own = link_of(on.host.index, device.address, loaded)
    if own is None:
        if device.port_type in IN_THE_ROOT:
            on.skip("part of the root complex: it has no link")
        if device.vendor_id in SOFTWARE:
            on.skip("a virtual device of the hypervisor: there is no wire")
        if not device.is_display and lacks(on.evidence, sysfs.function(device.address, "current_link_speed")):
            on.skip("it reports no PCIe link: a virtual or conventional PCI device")
        outcome, texts, source = "unknown", ["no link speed or width"], sysfs.PCI_DEVICES
    else:
        outcome, texts, source = _OUTCOME.get(own.state, "unknown"), [_text(own, device, loaded)], _read(own, loaded)
        best = link_shape(own.best_speed_gts, own.best_width)
        on = on.reading(source, f"{best}, the most that {'both ends' if own.other else 'it'} can do")
    above = tuple(uplinks(on.host.index, device.address if own is None else own.end.address))
    texts += [_above(hop) for hop in above if hop.state == "degraded"]
    if outcome == "fail" or len(texts) > 1:
        return on.failed("; ".join(texts), source=source)
    texts += [_above(hop) for hop in above if outcome == "pass" and hop.state not in _OUTCOME]
    if len(texts) > 1:
        return on.unknown("; ".join(texts), "read both ends with lspci -vvv as root while something copies")
    if outcome == "pass":
        return on.passed(texts[0])
    if own is None:
        return on.unknown(texts[0], as_root(on.evidence))
    seen = next((old.at for old, _ in of_this_boot(on.evidence) if on.passed_in(old)), None)
    if seen is not None and own.state == "idle" and own.link.speed_gts == _RESTING_GTS:
        return on.passed(f"{texts[0]}; since the boot it has run as it should, as read at {seen}")
    return on.unknown(texts[0], _where_to_read(on, device, at_rest=own.state == "idle"))


def _text(own: JudgedLink, device: PciDevice, loaded: tuple[float, int] | None) -> str:
    """Return what runs and why: "16 GT/s x8, by design: …", "32 GT/s x16 under load, 2.5 GT/s x16 at rest"."""
    now = link_shape(own.link.speed_gts, own.link.width)
    if loaded is not None:
        at_rest = device.link or own.link
        rest = link_shape(at_rest.speed_gts, at_rest.width)
        now += f" under load{f', {rest} at rest' if rest != now else ''}"
    why = {"full": "", "by-design": f"by design: {own.why}", "idle": f"at rest: {own.rest}"}.get(own.state, own.why)
    return f"{now}, {why}" if why else now


def _read(own: JudgedLink, loaded: tuple[float, int] | None) -> str:
    """Return the files that were read, of both ends; "the host document" for a document that keeps no sources."""
    links = (own.link, None if own.port is None else own.port.link)
    read = [figures.read for link in links if link is not None for figures in link.told or ()]
    return (", ".join(read) or "the host document") + ("; its speed and width while copies ran" if loaded else "")


def _above(hop: JudgedLink) -> str:
    return f"above it, {hop.end.address} to {hop.end.parent}: {hop.why}"


def _where_to_read(on: On, device: PciDevice, *, at_rest: bool) -> str:
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
    if on.host.hypervisor:
        return "a virtual port shows no wire: run hosttune validate on the host of this guest"
    return "read both ends with lspci -vvv as root (LnkCap, LnkSta), and the kernel log for the port above"
