"""A host with existing guests as their definitions say, for the picture before an adoption."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from hosttune.domain.defined import as_defined
from hosttune.domain.reader import read_domain
from hosttune.model.host import Host


def with_defined(host: Host, definitions: Iterable[bytes]) -> Host:
    """Return the host with the guests of these domain XMLs as they are defined; those that run stay as they are."""
    if host.guests is None:
        return host
    guests = {guest.name: guest for guest in host.guests}
    for defined in (as_defined(read_domain(xml)) for xml in definitions if xml):
        there = guests.get(defined.name)
        if there is None or (there.memory is None and there.state == "shut off"):
            guests[defined.name] = defined
    return replace(host, guests=tuple(guests.values()))
