"""Checks of the network ports that GPUs carry themselves: those to the GPUs of their board, and those for scale-out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hosttune.gpu import hints_for, vendor_of
from hosttune.gpu.vendor import Ports
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu, GpuPort
from hosttune.model.pci import for_vfio
from hosttune.model.values import CpuSet
from hosttune.rules.checks.facts import RECORD, accelerators
from hosttune.rules.checks.gpufacts import function
from hosttune.rules.checks.on import On, check
from hosttune.rules.engine import Finding

_SOURCE = (
    "docs.habana.ai, Gaudi 3 (21 ports between cards, 3 for scale-out); HabanaAI/Setup_and_Install,"
    " intel_gaudi_health_screen"
)


class _Carrier(NamedTuple):
    """A GPU that carries ports: those that were listed, and how many internal and external ones its model has."""

    gpu: Gpu
    driver: str  # of its maker: what holds it must be this to list its ports
    maker: Ports
    listed: Sequence[GpuPort]
    internal: int | None
    external: int | None


def _carriers(evidence: Evidence) -> Iterator[tuple[str, _Carrier]]:
    """Yield each GPU that carries ports."""
    for gpu in accelerators(evidence.host):
        vendor = vendor_of(gpu.vendor)
        if vendor is not None and (ports := vendor.ports) is not None:
            counts = ports.counts.get(evidence.host.index.device_id(gpu.address) or "", (None, None))
            listed = (evidence.gpu_ports or {}).get(gpu.address, ())
            yield gpu.address, _Carrier(gpu, vendor.driver, ports, listed, *counts)


@check(
    "gpu-ports",
    title="Ports that join the GPUs of a board are up",
    about="each GPU that carries network ports",
    why="A port between GPUs that is down slows or stops every job over them",
    source=_SOURCE,
    expected="each internal port up",
    each=_carriers,
    inside=True,
    none="GPU that carries network ports",
)
def gpu_ports(on: On, carrier: _Carrier) -> Finding:
    """Check the internal ports of a GPU. A port that is down is a fault whatever else is unknown."""
    maker, mine, count = carrier.maker, _listed(on, carrier, "internal"), carrier.internal
    on = on.reading(maker.tool, None if count is None else f"{count} internal ports, each up")
    down, elsewhere = [port for port in mine if port.state == "down"], _elsewhere(on, carrier)
    if len(down) > elsewhere * maker.between:
        return on.failed(_text(mine), maker.mend)
    if down:
        why = f"{elsewhere} GPUs of its board are not driven here, and {maker.between} ports lead to each"
        hint = on.look(hints_for(carrier.gpu).links)
        return on.unknown(f"{_text(mine)}; {why}: whether those that are down are such ports is not known", hint)
    _all_read(on, carrier, mine, count)
    return on.passed(_text(mine))


@check(
    "scale-out-ports",
    title="Scale-out ports of GPUs are up, at their rate",
    about="each GPU that carries network ports",
    why="A job is as fast as its worst port; one without a cable looks like a broken one",
    source=_SOURCE,
    expected="each external port up",
    each=_carriers,
    inside=True,
    none="GPU that carries network ports",
)
def scale_out_ports(on: On, carrier: _Carrier) -> Finding:
    maker, mine, count = carrier.maker, _listed(on, carrier, "external"), carrier.external
    expected = "each external port up" if count is None else f"{count} external ports, each up"
    on, actual = on.reading(maker.tool, f"{expected} at {maker.external_gbps:g} Gb/s"), _text(mine)
    _all_read(on, carrier, mine, count)
    up = [port for port in mine if port.state == "up"]
    nameless = [port for port in up if port.interface is None]
    if nameless:
        on.need(None, f"{actual}; which interface port {_numbers(nameless)} is, and so its rate,", look="ip link")
    unrated = [f"/sys/class/net/{port.interface}/speed" for port in up if port.rate_gbps is None]
    if unrated:
        on.need(None, f"{actual}; the rate of each", unrated[0])
    if len(up) < len(mine):
        return on.warned(actual, f"a port without a cable is down too: cable it, or keep this in mind; {maker.mend}")
    slow = [port for port in up if port.rate_gbps is not None and port.rate_gbps < maker.external_gbps]
    if slow:
        actual = "; ".join(f"{port.interface} ({port.number}) at {port.rate_gbps:g} Gb/s" for port in slow)
        hint = f"each has {maker.external_gbps:g} Gb/s: look at the port of its switch, and at the cable"
        return on.warned(actual, hint, "/sys/class/net/*/speed")
    return on.passed(actual)


def _listed(on: On, carrier: _Carrier, kind: str) -> Sequence[GpuPort]:
    """Return the ports of one kind that were listed for a GPU; the check ends if none of any kind was."""
    device = function(on, carrier.gpu)
    held = device.driver if device else None
    if for_vfio(held):
        on.skip(f"on {held}: its guest sees them (hosttune validate --guest in there)")
    if not carrier.listed and held != carrier.driver:
        why = f"{held} holds it, which does not list its ports" if held else "its driver was not read, or none holds it"
        on.give_up(why, f"bind it to {carrier.driver} to look at them" if on.evidence.complete else RECORD)
    if not carrier.listed:
        on.give_up(f"{held} holds it, and nothing listed its ports", on.look(hints_for(carrier.gpu).links))
    return [port for port in carrier.listed if port.kind == kind]


def _elsewhere(on: On, carrier: _Carrier) -> int:
    """Return how many GPUs of its board another machine drives: those for guests, and in a guest those it has not.

    Only what is shown counts: a GPU that is lost is not taken for one of them.
    """
    if carrier.internal is None:
        return 0
    index, own = on.host.index, function(on, carrier.gpu)
    like = [index.pci.get(other.address) for other in index.accelerators if other.vendor == carrier.gpu.vendor]
    alike = [device for device in like if device and own and device.device_id == own.device_id]
    if on.host.hypervisor:
        return max(0, carrier.internal // carrier.maker.between + 1 - len(alike))
    return sum(for_vfio(device.driver) for device in alike)


def _all_read(on: On, carrier: _Carrier, mine: Sequence[GpuPort], count: int | None) -> None:
    """End the check as unknown unless each port of its kind is known, with its state."""
    unsorted = [port for port in carrier.listed if port.kind is None]
    silent = [port for port in mine if port.state is None]
    why = None
    if unsorted:
        why = f"what kind of port {_numbers(unsorted)} is was not read"
    elif silent:
        why = f"the state of port {_numbers(silent)} was not read"
    elif count is None:
        why = "how many such ports it has, no source says"
    elif len(mine) != count:
        why = f"{len(mine)} listed, and it has {count}"
    if why is not None:
        on.give_up(f"{_text(mine)}; {why}", on.look(hints_for(carrier.gpu).links))


def _text(mine: Sequence[GpuPort]) -> str:
    """Return the state of every port: "0-7,9-20 up; 8 down"."""
    states = (("up", "up"), ("down", "down"), (None, "unknown"))
    parts = ((word, [port for port in mine if port.state == state]) for state, word in states)
    return "; ".join(f"{_numbers(ports)} {word}" for word, ports in parts if ports) or "no port of this kind listed"


def _numbers(ports: Iterable[GpuPort]) -> str:
    return str(CpuSet(port.number for port in ports))
