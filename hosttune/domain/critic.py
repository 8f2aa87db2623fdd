"""Faults of a domain XML on a host, each with its evidence (`hosttune plan --check-xml`).

A rule uses only what is known: an unknown node, core or group gives no finding. The planner follows the same rules,
so XML written for a host has no finding there. Sources: libvirt formatdomain, and the kernel's topology files named
in each text.
"""

from __future__ import annotations

from hosttune.domain.critic_cpus import cpu_faults
from hosttune.domain.critic_devices import device_faults
from hosttune.domain.critic_memory import memory_faults
from hosttune.domain.critic_pci import pci_faults
from hosttune.domain.critic_shared import shared_faults
from hosttune.domain.guest_on_host import GuestOnHost
from hosttune.domain.reader import read_domain
from hosttune.model.host import Host
from hosttune.model.plan import Finding


def criticise(host: Host, xml: str | bytes, *, where: str) -> tuple[Finding, ...]:
    """Return what is wrong with this XML on this host, errors first.

    error: the guest will not start, or not as intended; warn: it runs slower than it could, or disturbs others;
    info: worth knowing. `where` of a finding is the file and the XML path. Raises BadInput, naming `where`, if this is
    not a domain XML.
    """
    scene = GuestOnHost(host, read_domain(xml, where=where))
    rules = (cpu_faults, memory_faults, device_faults, pci_faults, shared_faults)
    faults = (fault for rule in rules for fault in rule(scene))
    rank = {"error": 0, "warn": 1, "info": 2}
    return tuple(
        Finding(level=fault.level, text=fault.text, where=f"{where}: {fault.where}")
        for fault in sorted(faults, key=lambda fault: rank[fault.level])
    )
