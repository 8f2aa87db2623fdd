"""Checks of the network ports that GPUs carry themselves: those to the GPUs of their board, and those for scale-out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hosttune.gpu import hints_for, vendor_of
from hosttune.gpu.vendor import Ports
from hosttune.model.evidence import Evidence
from hosttune.model.gpu import Gpu, GpuPort
from hosttune.model.host import PciDevice
from hosttune.model.validation import CheckResult
from hosttune.model.values import CpuSet
from hosttune.rules.checks.check import Check, failed, passed, skipped, unknown, warned
from hosttune.rules.checks.facts import RECORD, accelerators, for_vfio

_INTERNAL, _EXTERNAL = "gpu-ports", "scale-out-ports"
_SPEED = "/sys/class/net/*/speed"
_KINDS = {_INTERNAL: "internal", _EXTERNAL: "external"}


def _each(evidence: Evidence, check: str) -> Iterator[CheckResult]:
    """Yield one result for each GPU that carries ports."""
    for gpu in accelerators(evidence.host):
        vendor = vendor_of(gpu.vendor)
        if vendor is not None and vendor.ports is not None:
            device = evidence.host.index.pci.get(gpu.address)
            yield _asked(evidence, check, gpu, device, vendor.driver) or _judged(
                evidence, check, gpu, device, vendor.ports
            )


def _asked(evidence: Evidence, check: str, gpu: Gpu, device: PciDevice | None, driver: str) -> CheckResult | None:
    """Return why the ports of this GPU cannot be judged; None if they were listed."""
    held = device.driver if device else None
    if for_vfio(held):
        return skipped(check, gpu.address, f"on {held}: its guest sees them (hosttune validate --guest in there)")
    if (evidence.gpu_ports or {}).get(gpu.address):
        return None
    why, hint = f"{held} holds it, and nothing listed its ports", f"look with: {hints_for(gpu).links}"
    if held is None:
        why, hint = "which driver holds it is not known, or none does", f"bind it to {driver} to look at them"
    elif held != driver:
        why, hint = f"{held} holds it, which does not list its ports", f"bind it to {driver} to look at them"
    expected = f"each {_KINDS[check]} port up"
    return unknown(check, gpu.address, expected=expected, why=why, hint=hint if evidence.complete else RECORD)


def _judged(evidence: Evidence, check: str, gpu: Gpu, device: PciDevice | None, ports: Ports) -> CheckResult:
    """Judge the ports of one kind. A port that is down is a fault whatever else is unknown."""
    kind = _KINDS[check]
    listed = (evidence.gpu_ports or {}).get(gpu.address, ())
    mine = [port for port in listed if port.kind == kind]
    counts = ports.counts.get((device.device_id if device else None) or "")
    count = None if counts is None else counts[check == _EXTERNAL]
    expected = f"each {kind} port up" if count is None else f"{count} {kind} ports, each up"
    expected += f" at {ports.external_gbps:g} Gb/s" if check == _EXTERNAL else ""
    actual = _text(mine)
    down = [port for port in mine if port.state == "down"]
    elsewhere = _elsewhere(evidence, gpu, device, count, ports) if check == _INTERNAL else 0
    if check == _INTERNAL and len(down) > elsewhere * ports.between:
        return failed(check, gpu.address, expected=expected, actual=actual, source=ports.tool, hint=ports.mend)
    why = None
    if down and elsewhere:
        why = (
            f"{elsewhere} GPUs of its board are not driven here, and {ports.between} ports lead to each:"
            " whether those that are down are such ports is not known"
        )
    why = why or _unsure(listed, mine, kind, count) or (_unrated(mine) if check == _EXTERNAL else None)
    if why is not None:
        hint = f"look with: {hints_for(gpu).links}" if evidence.complete else RECORD
        return unknown(check, gpu.address, expected=expected, why=f"{actual}; {why}", hint=hint, source=ports.tool)
    if down:
        hint = f"a port without a cable is down too: cable it, or keep this in mind; {ports.mend}"
        return warned(check, gpu.address, expected=expected, actual=actual, source=ports.tool, hint=hint)
    slow = [port for port in mine if port.rate_gbps is not None and port.rate_gbps < ports.external_gbps]
    if slow and check == _EXTERNAL:
        actual = "; ".join(f"{port.interface} ({port.number}) at {port.rate_gbps:g} Gb/s" for port in slow)
        hint = f"each has {ports.external_gbps:g} Gb/s: look at the port of its switch, and at the cable"
        return warned(check, gpu.address, expected=expected, actual=actual, source=_SPEED, hint=hint)
    return passed(check, gpu.address, expected=expected, actual=actual, source=ports.tool)


def _elsewhere(evidence: Evidence, gpu: Gpu, device: PciDevice | None, count: int | None, ports: Ports) -> int:
    """Return how many GPUs of its board another machine drives: those for guests, and in a guest those it has not.

    Only what is shown counts: a GPU that is lost is not taken for one of them.
    """
    index = evidence.host.index
    if count is None or device is None:
        return 0
    like = [index.pci.get(one.address) for one in index.accelerators if one.vendor == gpu.vendor]
    alike = [one for one in like if one is not None and one.device_id == device.device_id]
    if evidence.host.hypervisor:
        return max(0, count // ports.between + 1 - len(alike))
    return sum(for_vfio(one.driver) for one in alike)


def _unsure(listed: Iterable[GpuPort], mine: list[GpuPort], kind: str, count: int | None) -> str | None:
    """Return why it is unknown whether each port of this kind is up; None if it is known."""
    unsorted = [port for port in listed if port.kind is None]
    silent = [port for port in mine if port.state is None]
    if unsorted:
        return f"what kind of port {_numbers(unsorted)} is was not read"
    if silent:
        return f"the state of port {_numbers(silent)} was not read"
    if count is None:
        return f"how many {kind} ports it has, no source says"
    if len(mine) != count:
        return f"{len(mine)} listed, and it has {count}"
    return None


def _unrated(mine: list[GpuPort]) -> str | None:
    """Return which external port that is up has no known rate; None if there is none."""
    nameless = [port for port in mine if port.state == "up" and port.interface is None]
    if nameless:
        return f"which interface port {_numbers(nameless)} is, and so its rate, was not read"
    unread = [port.interface or "" for port in mine if port.state == "up" and port.rate_gbps is None]
    return f"the rate of {', '.join(unread)} was not read" if unread else None


def _text(mine: list[GpuPort]) -> str:
    """Return the state of every port: "0-7,9-20 up; 8 down"."""
    states = (("up", "up"), ("down", "down"), (None, "unknown"))
    parts = ((word, [port for port in mine if port.state == state]) for state, word in states)
    return "; ".join(f"{_numbers(ports)} {word}" for word, ports in parts if ports) or "no port of this kind listed"


def _numbers(ports: Iterable[GpuPort]) -> str:
    return str(CpuSet(port.number for port in ports))


_SOURCE = (
    "docs.habana.ai, Gaudi 3 (21 ports of 200 Gb/s between the cards of a board, 3 for scale-out);"
    " HabanaAI/Setup_and_Install, intel_gaudi_health_screen: a card with a link that is down is not healthy"
)
CHECKS = (
    Check(
        _INTERNAL,
        "Ports that join the GPUs of a board are up",
        "each GPU that carries network ports",
        "A port between GPUs that is down slows or stops every job over them",
        _SOURCE,
        lambda evidence: _each(evidence, _INTERNAL),
        inside=True,
        none="GPU that carries network ports",
    ),
    Check(
        _EXTERNAL,
        "Scale-out ports of GPUs are up, at their rate",
        "each GPU that carries network ports",
        "A job over several hosts is as fast as its worst port; a port without a cable looks the same as a broken one",
        _SOURCE,
        lambda evidence: _each(evidence, _EXTERNAL),
        inside=True,
        none="GPU that carries network ports",
    ),
)
