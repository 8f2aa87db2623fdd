"""Threads of running guests: where they may run (the value of `live-affinity`), and which can move now. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hosttune.domain.guest import Guest
from hosttune.model.affinity import affinity_text
from hosttune.model.host import RunningGuest
from hosttune.model.values import parse_cpus

LIVE_AFFINITY = "live-affinity"


def affinity(facts: Guest) -> str:
    """Return where each pinned thread may run: words that a space separates, vCPUs, emulator and I/O threads in order.

    "vcpu.0=4 vcpu.1=68 emulator=0,64 iothread.1=0,64"
    """
    return affinity_text(
        {pin.id: parse_cpus(pin.cpus) for pin in facts.vcpu_pins},
        parse_cpus(facts.emulator_cpus) if facts.emulator_cpus else None,
        {pin.id: parse_cpus(pin.cpus) for pin in facts.iothread_pins},
    )


def is_there(facts: Guest, running: RunningGuest) -> bool:
    """Return whether libvirt reports the threads of a running guest where the definition has them."""
    if running.pins != facts.pins:
        return False
    if facts.emulator_cpus and parse_cpus(running.emulator_cpus) != parse_cpus(facts.emulator_cpus):
        return False
    return [*map(parse_cpus, running.iothread_cpus or ())] == [parse_cpus(pin.cpus) for pin in facts.iothread_pins]


class Threads(msgspec.Struct, frozen=True):
    """A guest: the cores that its vCPUs run on now (empty: it does not run, or floats) and are planned on.

    `moves`: whether its threads can move while it runs.
    """

    name: str
    now: frozenset[int]
    planned: frozenset[int]
    moves: bool


def in_the_way(guests: Sequence[Threads]) -> dict[str, str]:
    """Return the guests that must not use their planned cores yet: each with a guest that runs there and stays.

    A guest that has to wait is then itself in the way of others.
    """
    holder_of: dict[str, str] = {}
    while True:
        staying = [threads for threads in guests if threads.now and (not threads.moves or threads.name in holder_of)]
        more = {
            threads.name: other.name
            for threads in guests
            if threads.name not in holder_of
            for other in staying
            if other.name != threads.name and not threads.planned.isdisjoint(other.now)
        }
        if not more:
            return holder_of
        holder_of |= more
