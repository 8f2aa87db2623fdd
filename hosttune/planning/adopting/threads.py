"""Where the threads of a guest may run, as its definition says: the value of a `live-affinity` action. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.domain.facts import DomainFacts
from hosttune.model.host import RunningGuest
from hosttune.model.values import parse_cpus

LIVE_AFFINITY = "live-affinity"


def affinity(facts: DomainFacts) -> str:
    """Return where each pinned thread may run: words that a space separates, vCPUs, emulator and I/O threads in order.

    "vcpu.0=4 vcpu.1=68 emulator=0,64 iothread.1=0,64"
    """
    return " ".join(_words(facts))


def _words(facts: DomainFacts) -> Iterator[str]:
    for pin in sorted(facts.vcpu_pins, key=lambda pin: pin.id):
        yield f"vcpu.{pin.id}={parse_cpus(pin.cpus)}"
    if facts.emulator_cpus:
        yield f"emulator={parse_cpus(facts.emulator_cpus)}"
    for pin in sorted(facts.iothread_pins, key=lambda pin: pin.id):
        yield f"iothread.{pin.id}={parse_cpus(pin.cpus)}"


def is_there(facts: DomainFacts, running: RunningGuest) -> bool:
    """Return whether libvirt reports the threads of a running guest where the definition has them."""
    pins = {pin.vcpu: parse_cpus(pin.cpus) for pin in running.vcpu_pins or ()}
    if pins != {pin.id: parse_cpus(pin.cpus) for pin in facts.vcpu_pins}:
        return False
    if facts.emulator_cpus and parse_cpus(running.emulator_cpus) != parse_cpus(facts.emulator_cpus):
        return False
    return [*map(parse_cpus, running.iothread_cpus or ())] == [parse_cpus(pin.cpus) for pin in facts.iothread_pins]
