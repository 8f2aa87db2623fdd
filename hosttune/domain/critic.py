"""Faults of a domain XML on a host, each with its evidence (`hosttune plan --check-xml`)."""

from __future__ import annotations

from hosttune.domain.reader import read_domain
from hosttune.model.host import Host
from hosttune.model.plan import Finding


def criticise(host: Host, xml: str | bytes, *, where: str) -> tuple[Finding, ...]:
    """What is wrong with this XML on this host. Raises BadInput, naming `where`, for what is no domain XML."""
    read_domain(xml, where=where)
    return ()
