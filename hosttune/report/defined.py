"""A host with existing guests as their definitions say, for the picture before an adoption."""

from __future__ import annotations

from collections.abc import Iterable

from hosttune.domain.guest import Guest
from hosttune.model.host import GuestMemory, Host
from hosttune.model.values import parse_cpus


def with_defined(host: Host, definitions: Iterable[bytes]) -> Host:
    """Return the host with the guests of these domain XMLs as they are defined; those that run stay as they are.

    A guest that does not run has its memory where its definition binds it.
    """
    from msgspec.structs import replace

    from hosttune.domain.reader import read_domain
    from hosttune.rules.lint.judge import as_defined

    if host.guests is None:
        return host
    guests = {guest.name: guest for guest in host.guests}
    for facts in (read_domain(xml, where="domain XML") for xml in definitions if xml):
        guest = guests.get(facts.name or "") or as_defined(facts)
        if guest.memory is None and guest.state == "shut off":
            guest = replace(guest, memory=bound_memory(facts))
        guests[guest.name] = guest
    return replace(host, guests=tuple(guests.values()))


def bound_memory(facts: Guest) -> tuple[GuestMemory, ...] | None:
    """Return the memory that a definition binds to one node each; None if any of it may come from several."""
    tune = facts.numatune
    own = {one.cell: one for one in tune.memnodes}
    found = []
    for cell, memory in [(one.id, one.memory_bytes) for one in facts.cells] or [(0, facts.memory_bytes)]:
        rule = own.get(cell, tune) if facts.cells else tune
        nodes = sorted(parse_cpus(rule.nodes))
        if len(nodes) != 1 or (rule.mode or "strict") != "strict" or memory is None:
            return None
        found.append(GuestMemory(node=nodes[0], memory_bytes=memory, page_bytes=_page_bytes(facts, cell)))
    return tuple(found)


def _page_bytes(facts: Guest, cell: int) -> int | None:
    pages = facts.backing.pages or ()
    own = [one for one in pages if one.cells is not None and cell in parse_cpus(one.cells)]
    return next((one.size_bytes for one in (*own, *(one for one in pages if one.cells is None))), None)
