"""Faults of a domain XML on a host, each with its evidence (`hosttune plan --check-xml`).

A rule fires only on what is known: an unknown node, core or group gives no finding. The rules are those the planner
keeps by itself, so that XML written for a host is not criticised on it. Sources: libvirt formatdomain, and the
kernel's topology files named in each text.
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
    """What is wrong with this XML on this host, errors first. Raises BadInput, naming `where`, for no domain XML.

    error: the guest will not start, or not as meant; warn: it runs slower than it could, or disturbs others;
    info: worth knowing. `where` of a finding is the file and the XML path.
    """
    scene = GuestOnHost(host, read_domain(xml, where=where))
    rules = (cpu_faults, memory_faults, device_faults, pci_faults, shared_faults)
    faults = (fault for rule in rules for fault in rule(scene))
    rank = {"error": 0, "warn": 1, "info": 2}
    return tuple(
        Finding(level=fault.level, text=fault.text, where=f"{where}: {fault.where}")
        for fault in sorted(faults, key=lambda fault: rank[fault.level])
    )
