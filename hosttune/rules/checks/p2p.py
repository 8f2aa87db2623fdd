"""Checks of traffic between devices: ACS sends it through the IOMMU; only requests that ATS translated are direct."""

from __future__ import annotations

from collections.abc import Iterator

from hosttune.gpu.ats import ats_step
from hosttune.inventory.cliques import UNKNOWN, apart, clique_gpus, in_words, wrong
from hosttune.model import sysfs
from hosttune.model.evidence import Evidence
from hosttune.model.host import PciDevice, RunningGuest
from hosttune.model.index import DeviceIndex
from hosttune.model.pcitree import shared_switch
from hosttune.model.values import grouped, slot_of
from hosttune.rules.checks.facts import AS_LIBVIRT, as_root, given, holders, listed, lost_gpus
from hosttune.rules.checks.guests import PLACE, with_definition
from hosttune.rules.checks.on import On, check
from hosttune.rules.checks.subjects import guests, nothing_given
from hosttune.rules.engine import Finding

# The ACS bits that the kernel requires of a port to treat devices below as isolated: REQ_ACS_FLAGS,
# drivers/iommu/iommu.c.
_REQUIRED = ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
_FACING_DOWN = ("root-port", "downstream-port", None)  # None: of which the type was not read


def _ports(evidence: Evidence) -> Iterator[tuple[str, list[PciDevice]]]:
    """Yield each port above guests' devices with these devices, those first that are not in the list of functions."""
    index, devices = evidence.host.index, given(evidence)
    if not devices:
        nothing_given(evidence, "no device is given to a guest")
    missing = {device.parent for device in devices if device.parent and device.parent not in index.pci}
    below = grouped(
        (bridge.address, device)
        for device in devices
        for bridge in index.bridges(device.address)
        if bridge.port_type in _FACING_DOWN
    )
    yield from ((address, []) for address in sorted(missing))
    yield from sorted(below.items())
    if not below and not missing:
        nothing_given(evidence, "no bridge above the devices of guests")


@check(
    "acs",
    title="ACS above devices of guests",
    about="each root and downstream port above a device of a guest or bound for one",
    why="the kernel made the IOMMU groups with these bits on; off, devices of two tenants can reach each other",
    source="PCI Express Base 5.0, 6.12 Access Control Services; Linux drivers/iommu/iommu.c (REQ_ACS_FLAGS)",
    expected=f"{' '.join(_REQUIRED)}, as far as the port has them",
    each=_ports,
    for_guests=True,
)
def acs(on: On, below: list[PciDevice]) -> Finding:
    port = on.host.index.pci.get(on.subject)
    if port is None:
        why = "it is above a device of a guest and is not in the list of PCI functions"
        return on.unknown(why, f"look with: lspci -s {on.subject}")
    on = on.reading(f"{sysfs.PCI_DEVICES}/{port.address}/config (ACS Control)")
    if port.acs is None:
        on.give_up("extended configuration space was not read", as_root(on.evidence))
    merged = all(_shares_group(on.host.index, device) for device in below)
    if not port.acs.capable:
        return on.passed(
            "it has no ACS: " + ("its devices share a group" if merged else "the kernel's groups say enough")
        )
    missing = [name for name in _REQUIRED if name in port.acs.capable and name not in port.acs.enabled]
    if not missing:
        return on.passed(" ".join(port.acs.enabled))
    actual = f"{' '.join(missing)} off, above {listed([device.address for device in below])}"
    if merged:
        return on.passed(f"{actual}, which share a group with what they can reach (see iommu-groups)")
    hint = (
        f"they were cleared after boot, and the groups are older: settings: acs: {' '.join(missing)}, then apply;"
        " a reboot puts them back too"
    )
    return on.failed(actual, hint)


def _shares_group(index: DeviceIndex, device: PciDevice) -> bool:
    """Return whether a device's group also has functions of other slots: the kernel knows that they are not isolated
    from each other."""
    mates = () if device.iommu_group is None else index.groups[device.iommu_group]
    return any(slot_of(mate.address) != slot_of(device.address) for mate in mates)


# --- GPUs -------------------------------------------------------------------------------------------------------


def _with_peers(evidence: Evidence) -> Iterator[tuple[str, RunningGuest]]:
    """Yield the guests of a host with several GPUs that need a clique, of which some may be lost."""
    if len(clique_gpus(evidence.host, evidence.host.index.gpus)) + len(lost_gpus(evidence.host)) > 1:
        yield from guests(evidence)


@check(
    "gpu-cliques",
    title="Peer-to-peer of GPUs in a guest",
    about="each guest with several GPUs whose driver has to be told their cliques",
    why="without a clique data between two GPUs goes through the guest's memory; within a wrong one it can reach"
    " another device",
    source="QEMU hw/vfio/pci-quirks.c (x-nv-gpudirect-clique); PCI Express Base 5.0, 6.12.1.1",
    expected="one clique for all GPUs below one host bridge that ACS separates, none for others",
    look=AS_LIBVIRT,
    reads="libvirt",
    each=_with_peers,
    none="two GPUs that need a clique",
)
def gpu_cliques(on: On, guest: RunningGuest) -> Finding:
    with_definition(on, guest)
    host, written = on.host, dict(guest.cliques)
    if len(clique_gpus(host, guest.devices)) < 2:
        lost = [gpu.address for gpu in lost_gpus(host) if gpu.address in guest.devices]
        on.need(None if lost else "", f"what joins {listed(lost)}, which device-present misses,", look="lspci -D")
        on.skip("it has no two GPUs that need a clique")
    bad = list(wrong(host, guest.devices, written))
    pairs = list(apart(host, guest.devices, written))
    if any(why == UNKNOWN for *_, why in (*bad, *pairs)):
        on.give_up(UNKNOWN, as_root(on.evidence))
    if bad:
        return on.failed(f"in one clique: {'; '.join(in_words(bad))}", PLACE.format(guest.name))
    if missing := [pair for pair in pairs if not pair[2]]:
        return on.warned(f"in no clique, and they could be: {'; '.join(in_words(missing))}", PLACE.format(guest.name))
    return on.passed(f"no peer-to-peer: {'; '.join(in_words(pairs))}" if pairs else "all of them in cliques")


# --- ATS -----------------------------------------------------------------------------------------------------


def _pairs(evidence: Evidence) -> Iterator[tuple[str, list[str]]]:
    """Yield the guests' RDMA NICs, each with the GPUs of the same guest below the same switch."""
    index, held = evidence.host.index, holders(evidence)
    rdma = {nic.address for nic in evidence.host.nics if nic.rdma or nic.kind == "infiniband"}
    near = {
        address: [
            gpu
            for gpu in sorted({gpu.address for gpu in evidence.host.gpus} & held.keys())
            if not {*held[gpu]}.isdisjoint(names) and shared_switch(index, gpu, address)
        ]
        for address, names in held.items()
        if address in index.pci and not {address, index.pci[address].physfn}.isdisjoint(rdma)
    }
    yield from ((address, gpus) for address, gpus in near.items() if gpus)
    if not any(near.values()):
        nothing_given(evidence, "no guest has a GPU and an RDMA NIC below one switch")


@check(
    "ats",
    title="ATS for GPUDirect RDMA",
    about="each RDMA NIC whose guest also has a GPU below the same switch",
    why="only requests that ATS translated can stay below the switch, where ports that redirect let them through"
    " (DirectTrans)",
    source="PCI Express Base 5.0, 6.12.1.1 ACS Direct Translated P2P and 10 ATS Specification",
    each=_pairs,
    for_guests=True,
)
def ats(on: On, gpus: list[str]) -> Finding:
    index = on.host.index
    function = index.pci[on.subject]
    physical = index.pci.get(function.physfn or "", function)
    on = on.reading(
        f"{sysfs.PCI_DEVICES}/{physical.address}/config (ATS Control)",
        f"direct traffic with {listed(gpus)} below the same switch",
    )
    if physical.ats_enabled is None and physical.acs is None:
        on.give_up("whether ATS is on was not read", as_root(on.evidence))
    if not physical.ats_enabled:
        actual = "ATS is off: it sends the guest's addresses, which mean nothing to the switch, so nothing is direct"
        return on.warned(actual, ats_step(physical, on.host.kernel_args))
    ports = [index.bridges(end)[0] for end in (on.subject, *gpus)]
    if silent := [port.address for port in ports if port.acs is None]:
        on.give_up(f"whether ports {listed(silent)} redirect (ACS) was not read", as_root(on.evidence))
    enabled = {port.address: port.acs.enabled for port in ports if port.acs}
    blocked = [address for address, bits in enabled.items() if "ReqRedir" in bits and "DirectTrans" not in bits]
    if blocked:
        hint = "add DirectTrans: settings: acs: SrcValid ReqRedir CmpltRedir UpstreamFwd DirectTrans"
        return on.warned(f"ATS is on, but ports {listed(blocked)} redirect translated requests too", hint)
    return on.passed("ATS on, ports let it through")
